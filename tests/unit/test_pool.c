/* test_pool.c - accounting, eviction order, readers and copies of the block pool, by example.
 * Against a naive model: test_pool_model.c; with two threads: test_pool_threads.c; what it tells
 * of changes: test_pool_events.c. */
#include "kv/prefix.h"
#include "pool_rig.h"
#include "util/clock.h"

static enum kv_state state_of(uint32_t b)
{
	struct kv_block_info i;
	kv_pool_block(pool, b, &i);
	return i.state;
}

/* Takes n blocks for a chain first, first+1, ... of hashes, publishes them, and gives them back:
 * n cached blocks. */
static void cache_chain(uint32_t first, uint32_t n, uint32_t *out)
{
	ck_assert_int_eq(kv_pool_take(pool, n, KV_HELD, &A, out), 0);
	for (uint32_t i = 0; i < n; i++) {
		struct kv_hash h = H(first + i), up = H(first + i - 1);
		ck_assert_int_eq(kv_pool_publish(pool, out[i], &h, i ? &up : NULL), 1);
	}
	kv_pool_release(pool, out, n);
}

TEST(take_is_all_or_nothing_and_evicts_nothing_in_vain)
{
	uint32_t c[4], t[8], more[8];
	make(8);
	cache_chain(1, 4, c);
	expect(4, 0, 0, 4, 4);
	ck_assert_int_eq(kv_pool_take(pool, 3, KV_LEASED, &B, t), 0);
	expect(1, 0, 3, 4, 4);
	ck_assert_int_eq(kv_pool_take(pool, 6, KV_HELD, &B, more), ERR_FULL);
	expect(1, 0, 3, 4, 4);
	ck_assert_int_eq(kv_pool_take(pool, 0, KV_HELD, &B, more), 0);
	/* one free, two evicted: the tail of the chain */
	ck_assert_int_eq(kv_pool_take(pool, 3, KV_HELD, &B, more), 0);
	expect(0, 3, 3, 2, 2);
	struct kv_hash h[4] = {H(1), H(2), H(3), H(4)};
	ck_assert_uint_eq(kv_pool_probe(pool, h, 4), 2);
	struct kv_stats s;
	kv_pool_stats(pool, &s);
	ck_assert_uint_eq(s.evictions, 2);
}

TEST(pm4_pm9_same_gen_after_ack)
{
	uint32_t t[4];
	make(4);
	uint64_t before = 0;
	for (int i = 0; i < 5; i++) {
		ck_assert_int_eq(kv_pool_take(pool, 4, i % 2 ? KV_HELD : KV_LEASED, &A, t), 0);
		for (int k = 0; k < 4; k++)
			ck_assert_uint_eq(gens[t[k]], before + 1);
		kv_pool_release(pool, t, 4);
		for (int k = 0; k < 4; k++)
			/* giving back changes nothing: who matched may read on */
			ck_assert_uint_eq(gens[t[k]], before + 1);
		before++;
	}
}

TEST(generations_go_on_from_what_is_there)
{
	uint32_t t[2];
	make(2);
	kv_pool_destroy(&pool);
	gens[0] = 41;
	gens[1] = 7;
	pool = kv_pool_new(2, BT, gens);
	ck_assert_int_eq(kv_pool_take(pool, 2, KV_HELD, &A, t), 0);
	ck_assert_uint_eq(gens[0], 42);
	ck_assert_uint_eq(gens[1], 8);
}

TEST(sequences_share_a_prefix)
{
	uint32_t c[3], m[3], m2[3];
	struct kv_hash h[4] = {H(1), H(2), H(3), H(9)};
	make(4);
	cache_chain(1, 3, c);
	ck_assert_uint_eq(kv_pool_match(pool, h, 4, &A, m), 3);
	ck_assert_mem_eq(m, c, sizeof c);
	expect(1, 3, 0, 0, 0);
	ck_assert_uint_eq(kv_pool_match(pool, h, 2, &B, m2), 2);
	kv_pool_release(pool, m, 3);
	expect(1, 2, 0, 1, 1);
	struct kv_block_info i;
	kv_pool_block(pool, c[0], &i);
	ck_assert_uint_eq(i.refs, 1);
	ck_assert_uint_eq(i.owner.hi, B.hi);
	ck_assert(i.indexed);
	kv_pool_release(pool, m2, 2);
	expect(1, 0, 0, 3, 3);
	struct kv_stats s;
	kv_pool_stats(pool, &s);
	ck_assert_uint_eq(s.queries_tokens, 6 * BT);
	ck_assert_uint_eq(s.hit_tokens, 5 * BT);
}

TEST(unpublished_blocks_are_never_matched)
{
	uint32_t t[2], m[2];
	struct kv_hash h[2] = {H(1), H(2)};
	make(2);
	ck_assert_int_eq(kv_pool_take(pool, 2, KV_LEASED, &A, t), 0);
	ck_assert_uint_eq(kv_pool_match(pool, h, 2, &B, m), 0);
	kv_pool_lease_to_held(pool, t, 2);
	expect(0, 2, 0, 0, 0);
	ck_assert_int_eq(kv_pool_publish(pool, t[0], &h[0], NULL), 1);
	ck_assert_int_eq(kv_pool_publish(pool, t[0], &h[0], NULL), 1);
	ck_assert_uint_eq(kv_pool_probe(pool, h, 2), 1);
	kv_pool_release(pool, t, 2); /* aborted: what was published stays, the rest is free */
	expect(1, 0, 0, 1, 1);
}

/* Two sequences computed the same prefix: the second's block stays its own, and the first's
 * entry cannot go while the second's child hangs on it. */
TEST(twin_blocks)
{
	uint32_t c[1], t[2], out[4];
	struct kv_hash h[2] = {H(1), H(2)};
	make(3);
	cache_chain(1, 1, c);
	ck_assert_int_eq(kv_pool_take(pool, 2, KV_HELD, &B, t), 0);
	ck_assert_int_eq(kv_pool_publish(pool, t[0], &h[0], NULL), 0);
	ck_assert_int_eq(kv_pool_publish(pool, t[1], &h[1], &h[0]), 1);
	expect(0, 2, 0, 1, 0); /* c is cached and has no reader, yet take could not get it */
	ck_assert_int_eq(kv_pool_take(pool, 1, KV_HELD, &A, out), ERR_FULL);
	kv_pool_release(pool, t, 2);
	expect(1, 0, 0, 2, 2);
	ck_assert_int_eq(kv_pool_take(pool, 2, KV_HELD, &A, out), 0);
	ck_assert_int_eq(state_of(c[0]), KV_CACHED); /* leaf first, although c was used longest ago */
	ck_assert_uint_eq(kv_pool_probe(pool, h, 2), 1);
}

/* Storage names blocks by the first 8 bytes of their hashes: of two that share them the later one
 * is meant, also when the other one goes. */
TEST(two_hashes_with_one_beginning)
{
	struct kv_hash a = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}, b = a;
	const uint64_t both = 0x0807060504030201u;
	struct prefix *t = prefix_new(2);
	b.b[31] = 1;
	ck_assert_int_eq(prefix_add(t, 0, &a, NULL), 1);
	ck_assert_uint_eq(prefix_find_64(t, both), 0);
	ck_assert_int_eq(prefix_add(t, 1, &b, NULL), 1);
	ck_assert_uint_eq(prefix_find_64(t, both), 1);
	prefix_drop(t, 0);
	ck_assert_uint_eq(prefix_find_64(t, both), 1);
	prefix_drop(t, 1);
	ck_assert_uint_eq(prefix_find_64(t, both), KV_BLOCK_NONE);
	prefix_destroy(&t);
}

/* A flush may drop a parent whose child is held. The child is found again when the parent comes
 * back. */
TEST(orphan_is_found_again)
{
	uint32_t c[1], t[2], n[1];
	struct kv_hash h[2] = {H(1), H(2)};
	make(3);
	cache_chain(1, 1, c);
	ck_assert_int_eq(kv_pool_take(pool, 2, KV_HELD, &B, t), 0);
	kv_pool_publish(pool, t[0], &h[0], NULL);
	kv_pool_publish(pool, t[1], &h[1], &h[0]);
	ck_assert_uint_eq(kv_pool_flush(pool), 1);
	ck_assert_uint_eq(kv_pool_probe(pool, h, 2), 0);
	ck_assert_int_eq(kv_pool_take(pool, 1, KV_HELD, &A, n), 0);
	ck_assert_int_eq(kv_pool_publish(pool, n[0], &h[0], NULL), 1);
	ck_assert_uint_eq(kv_pool_probe(pool, h, 2), 2);
	kv_pool_release(pool, n, 1);
	expect(0, 2, 0, 1, 0);
	kv_pool_release(pool, t, 2);
	expect(1, 0, 0, 2, 2);
	ck_assert_uint_eq(kv_pool_flush(pool), 2);
	expect(3, 0, 0, 0, 0);
}

TEST(least_recently_used_chain_goes_first)
{
	uint32_t x[3], y[3], m[3], t[9];
	struct kv_hash hx[3] = {H(11), H(12), H(13)}, hy[3] = {H(21), H(22), H(23)};
	make(6);
	cache_chain(11, 3, x);
	cache_chain(21, 3, y);
	/* 11 and 12 are used again, 13 is not */
	ck_assert_uint_eq(kv_pool_match(pool, hx, 2, &A, m), 2);
	kv_pool_release(pool, m, 2);
	const uint32_t order[] = {x[2], y[2], y[1], y[0], x[1], x[0]};
	for (uint32_t i = 0; i < 6; i++) {
		ck_assert_int_eq(kv_pool_take(pool, 1, KV_HELD, &B, &t[i]), 0);
		ck_assert_uint_eq(t[i], order[i]);
	}
	ck_assert_uint_eq(kv_pool_probe(pool, hx, 3) + kv_pool_probe(pool, hy, 3), 0);
}

TEST(a_reader_keeps_the_block)
{
	uint32_t c[2], t[2], out[2];
	uint64_t gen = 0, pin;
	make(4);
	cache_chain(1, 2, c);
	ck_assert_int_eq(kv_pool_take(pool, 2, KV_HELD, &A, t), 0);
	pin = kv_pool_read_begin(pool, t[0], &gen);
	ck_assert_uint_ne(pin, 0);
	ck_assert_uint_eq(gen, gens[t[0]]);
	kv_pool_release(pool, t, 2);
	expect(1, 1, 0, 2, 2); /* t[0] is in quarantine */
	ck_assert_int_eq(kv_pool_take(pool, 4, KV_HELD, &B, out), ERR_FULL);
	kv_pool_read_end(pool, pin);
	expect(2, 0, 0, 2, 2);
	kv_pool_read_end(pool, pin); /* repeated: ignored */
	kv_pool_void(pool, pin);
	kv_pool_read_end(pool, 0);
	kv_pool_read_end(pool, UINT64_MAX);
	expect(2, 0, 0, 2, 2);
	pin = kv_pool_read_begin(pool, c[1], NULL); /* the tail: what is above it cannot go either */
	expect(2, 0, 0, 2, 0);
	ck_assert_uint_eq(kv_pool_flush(pool), 1);
	kv_pool_read_end(pool, pin);
	expect(3, 0, 0, 1, 1);
}

/* The wait for a reader ended, the block went to somebody else, who has a reader of its own;
 * then the first one reports. */
TEST(late_reader_of_a_void_access)
{
	uint32_t t[1], u[1];
	uint64_t gen, late, now;
	make(1);
	ck_assert_int_eq(kv_pool_take(pool, 1, KV_HELD, &A, t), 0);
	late = kv_pool_read_begin(pool, t[0], &gen);
	kv_pool_release(pool, t, 1);
	ck_assert_int_eq(kv_pool_take(pool, 1, KV_HELD, &B, u), ERR_FULL);
	kv_pool_void(pool, late);
	ck_assert_int_eq(kv_pool_take(pool, 1, KV_HELD, &B, u), 0);
	ck_assert_uint_ne(gens[u[0]], gen); /* what the late one has copied does not pass its check */
	now = kv_pool_read_begin(pool, u[0], &gen);
	kv_pool_release(pool, u, 1);
	kv_pool_read_end(pool, late);
	expect(0, 1, 0, 0, 0); /* the second one's pin stands */
	ck_assert_int_eq(kv_pool_take(pool, 1, KV_HELD, &A, t), ERR_FULL);
	kv_pool_read_end(pool, now);
	expect(1, 0, 0, 0, 0);
}

TEST(void_of_one_reader_leaves_the_other)
{
	uint32_t t[1];
	make(1);
	ck_assert_int_eq(kv_pool_take(pool, 1, KV_HELD, &A, t), 0);
	uint64_t a = kv_pool_read_begin(pool, t[0], NULL), b = kv_pool_read_begin(pool, t[0], NULL);
	kv_pool_release(pool, t, 1);
	kv_pool_void(pool, a);
	kv_pool_read_end(pool, a);
	expect(0, 1, 0, 0, 0);
	kv_pool_read_end(pool, b);
	expect(1, 0, 0, 0, 0);
}

/* What `pdctl kv` says of a reader that does not end. */
TEST(the_oldest_reader_is_known_with_its_age)
{
	struct kv_oldest_pin oldest;
	uint32_t t[2];
	uint64_t begun = clock_us();
	make(2);
	ck_assert_int_eq(kv_pool_oldest_pin(pool, &oldest), 0);
	ck_assert_int_eq(kv_pool_take(pool, 2, KV_HELD, &A, t), 0);
	uint64_t first = kv_pool_read_begin(pool, t[0], NULL), between = clock_us();
	while (clock_us() == between)
		;
	uint64_t second = kv_pool_read_begin(pool, t[1], NULL);
	ck_assert_int_eq(kv_pool_oldest_pin(pool, &oldest), 1);
	ck_assert(oldest.block == t[0] && oldest.since_us >= begun && oldest.since_us <= between);
	ck_assert_str_eq(oldest.why, "reader");
	kv_pool_read_end(pool, first);
	ck_assert_int_eq(kv_pool_oldest_pin(pool, &oldest), 1);
	ck_assert(oldest.block == t[1] && oldest.since_us > between && oldest.since_us <= clock_us());
	kv_pool_read_end(pool, second);
	ck_assert_int_eq(kv_pool_oldest_pin(pool, &oldest), 0);
}

TEST_SIGNAL(giving_back_twice_is_a_bug, 6)
{
	uint32_t t[1];
	make(1);
	ck_assert_int_eq(kv_pool_take(pool, 1, KV_HELD, &A, t), 0);
	kv_pool_release(pool, t, 1);
	kv_pool_release(pool, t, 1);
}
