/* test_decode_queue.c - the reservation queue by itself: places against a plain list, estimates
 * from measured rates; and the tombstones. */
#include "daemons/decode/decode.h"
#include "hash_chain.h"
#include "util/mem.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX 64u
static _Atomic uint64_t gens[4096];
static struct worker W;
static struct engine_info info;
static struct decode *D;
static const struct reqid A = {1, 1};

static void make(uint32_t blocks)
{
	memset(&W, 0, sizeof W);
	W.pool = kv_pool_new(blocks, 16, gens);
	W.conf.max_sequences = 8;
	info.kv.block_tokens = 16;
	W.info = &info;
	D = mem_zalloc(sizeof *D);
	W.state = D;
	D->w = D->batcher.w = &W;
	list_init(&D->sequences);
	list_init(&D->queue.waiting);
	pthread_mutex_init(&D->batcher.locked.lock, NULL);
	tombstones_init(D);
}

static void unmake(void)
{
	kv_pool_destroy(&W.pool);
	tombstones_fini(D);
	free(D);
}

/* --- places -------------------------------------------------------------- */

TEST_CASE("queue", .timeout_s = 60);

TEST_LOOP(places_against_a_list, 0, 4)
{
	struct sequence sequences[MAX] = {0}, *line[MAX];
	uint32_t n = 0;
	srand(3 + (unsigned)_i);
	make(64);
	for (uint32_t i = 0; i < MAX; i++)
		list_init(&sequences[i].place.node);
	for (int round = 0; round < 5000; round++) {
		struct sequence *q = &sequences[(uint32_t)rand() % MAX];
		int what = rand() % 4;
		if (what < 2 && list_empty(&q->place.node)) {
			q->place.blocks = 1 + (uint32_t)rand() % 40;
			queue_push(D, q);
			line[n++] = q;
		} else if (what == 2 && n) { /* the head is granted */
			queue_remove(D, line[0]);
			memmove(line, line + 1, --n * sizeof *line);
		} else if (what == 3) {
			/* anyone is cancelled; perhaps it does not wait */
			uint32_t at = 0;
			queue_remove(D, q);
			while (at < n && line[at] != q)
				at++;
			if (at < n) {
				n--;
				memmove(line + at, line + at + 1, (n - at) * sizeof *line);
			}
		}
		uint64_t cumulative_blocks = 0;
		for (uint32_t i = 0; i < n; i++) {
			cumulative_blocks += line[i]->place.blocks;
			ck_assert_uint_eq(queue_position(D, line[i]), i + 1);
			ck_assert_uint_eq(line[i]->place.cumulative_blocks - D->queue.gone_cumulative_blocks,
			                  cumulative_blocks);
		}
		ck_assert_uint_eq(D->queue.last_number - D->queue.gone_number, n);
		ck_assert_uint_eq(D->queue.last_cumulative_blocks - D->queue.gone_cumulative_blocks,
		                  cumulative_blocks);
	}
	unmake();
}

/* --- estimates ----------------------------------------------------------- */

/* Takes and gives back n blocks: a sequence that has ended. */
static void one_ends(uint32_t n)
{
	uint32_t b[64];
	ck_assert_int_eq(kv_pool_take(W.pool, n, KV_HELD, &A, b), 0);
	kv_pool_release(W.pool, b, n);
	D->queue.ended++;
}

#define NEAR(x, want)                                                                      \
	ck_assert_msg((x) >= (want)*0.8 && (x) <= (want)*1.25, "%llu us, expected about %llu", \
	              (unsigned long long)(x), (unsigned long long)(want))

TEST(estimate_from_rates)
{
	uint32_t held[60];
	uint64_t now = 1000000;
	make(64);
	kv_pool_take(W.pool, 60, KV_HELD, &A, held); /* 4 are free */
	queue_rates_begin(D, now);
	ck_assert_uint_eq(queue_estimate(D, 10, 1), 0); /* nothing is known */
	ck_assert_uint_eq(queue_estimate(D, 3, 1), 1);  /* there is room: soon */
	ck_assert_uint_eq(queue_retry_after(D), 20000); /* likewise */
	queue_rates_update(D, now += 50000);
	ck_assert_uint_eq(queue_estimate(D, 10, 1), 0); /* nothing was given back */
	for (int i = 0; i < 100; i++) {
		one_ends(2);
		queue_rates_update(D, now += 50000); /* 40 blocks a second, 20 ends */
	}
	NEAR(queue_estimate(D, 44, 1), 1000000.0);
	NEAR(queue_estimate(D, 404, 1), 10000000.0);
	ck_assert_uint_lt(queue_estimate(D, 44, 1), queue_estimate(D, 45, 1));
	NEAR(queue_estimate(D, 1, 8 + 20), 1000000.0); /* blocks enough, but 8 sequence slots */
	D->n_active = 8;
	NEAR(queue_estimate(D, 1, 20), 1000000.0);
	D->n_active = 0;
	D->batcher.shared.growth_blocks = 40; /* kept for others */
	NEAR(queue_estimate(D, 4, 1), 1000000.0);
	D->batcher.shared.growth_blocks = 0;
	for (int i = 0; i < 200; i++) {
		/* now twice as fast: what was is forgotten */
		one_ends(4);
		queue_rates_update(D, now += 50000);
	}
	NEAR(queue_estimate(D, 84, 1), 1000000.0);
	now += 3600000000u; /* an hour without work does not count */
	queue_rates_begin(D, now);
	queue_rates_update(D, now += 1000); /* too short to say anything */
	NEAR(queue_estimate(D, 84, 1), 1000000.0);
	ck_assert_uint_le(queue_estimate(D, UINT32_MAX, 1), 600000000u);
	kv_pool_release(W.pool, held, 60);
	unmake();
}

TEST(first_rate_is_not_too_small)
{
	uint32_t held[64];
	uint64_t now = 1000000;
	make(64);
	queue_rates_begin(D, now);
	one_ends(8);
	queue_rates_update(D, now += 100000); /* 8 in the first tenth of a second */
	kv_pool_take(W.pool, 64, KV_HELD, &A, held);
	NEAR(queue_estimate(D, 8, 1), 100000.0);
	kv_pool_release(W.pool, held, 64);
	unmake();
}

TEST(retry_after_is_bounded)
{
	uint32_t held[64];
	struct sequence q = {.place.blocks = 100000};
	uint64_t now = 1000000;
	make(64);
	list_init(&q.place.node);
	kv_pool_take(W.pool, 64, KV_HELD, &A, held);
	queue_push(D, &q);
	ck_assert_uint_eq(queue_retry_after(D), 1000000); /* not known */
	queue_rates_begin(D, now);
	kv_pool_release(W.pool, held, 1);
	D->queue.ended++;
	queue_rates_update(D, now += 50000);
	ck_assert_uint_eq(queue_retry_after(D), 10000000);
	ck_assert_uint_eq(queue_estimate_of(D, &q), 600000000);
	kv_pool_release(W.pool, held + 1, 63);
	queue_remove(D, &q);
	ck_assert_uint_eq(queue_retry_after(D), 20000); /* never 0, never a storm */
	unmake();
}

/* --- tombstones --------------------------------------------------------------- */

static struct attempt_key key(uint64_t i)
{
	struct reqid id = {5, i};
	return attempt_key(&id, 1);
}

static void add(uint64_t i, uint64_t in_us)
{
	struct attempt_key k = key(i);
	tombstone_add(D, &k, clock_us() + in_us);
}

static int has(uint64_t i)
{
	struct attempt_key k = key(i);
	return tombstone_has(D, &k);
}

TEST(tombstones_stand_until_the_deadline)
{
	make(2);
	uint64_t now = clock_us();
	add(1, 3000000);
	add(1, 9000000); /* it has one */
	add(2, 500000000);
	add(3, 100000000000u); /* cut to ten minutes */
	add(4, 0);
	add(5, 400000);
	ck_assert_uint_eq(D->tombstones.n, 4);
	ck_assert(has(1) && has(2) && has(3) && !has(4) && has(5) && !has(6));
	usleep(410000);
	ck_assert(!has(5)); /* whether or not anybody has swept */
	tombstone_expire(D, now + 6000000);
	ck_assert_uint_eq(D->tombstones.n, 2);
	tombstone_expire(D, now + 499000000);
	ck_assert(has(2) && has(3));
	tombstone_expire(D, now + 503000000);
	ck_assert(!has(2) && has(3));
	tombstone_expire(D, now + 1000000000000u); /* nobody looked for days */
	ck_assert_uint_eq(D->tombstones.n, 0);
	unmake();
}

TEST(tombstones_are_bounded)
{
	make(2);
	for (uint64_t i = 0; i < 80000; i++)
		add(i, 1000000u * (60 + i % 500));
	ck_assert_uint_eq(D->tombstones.n, 65536);
	ck_assert(has(79999));
	uint32_t soon = 0, late = 0;
	for (uint64_t i = 0; i < 65000; i++) {
		soon += has(i) && i % 500 < 50;
		late += has(i) && i % 500 >= 450;
	}
	ck_assert_uint_lt(soon, 1000); /* those that would end soonest have gone */
	ck_assert_uint_gt(late, 6000);
	unmake();
}

/* --- hashing ------------------------------------------------------------- */

/* The head of the queue is hashed in pieces, so that a long prompt does not hold up the loop: each
 * piece is bounded, and the hashes are those of the whole. */
TEST_LOOP(hashed_in_pieces, 0, 9)
{
	static const uint32_t sizes[] = {0, 15, 16, 17, 4095, 4096, 4097, 4096 * 3 + 5, 100000};
	uint32_t n = sizes[_i], *tokens = mem_array(n + 1, sizeof *tokens), pieces = 1;
	struct kv_hash *want = mem_array(n / 16 + 1, sizeof *want);
	struct seq_blocks b = {0};
	struct request_copy req = {.tokens = tokens, .n_tokens = n};
	make(4);
	kv_hash_root(&(struct kv_root){.model_fingerprint = "f"}, &W.root);
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = i * 7 % 1000;
	for (uint32_t had = 0; !seq_blocks_hash(&b, &W, &req, HASH_TOKENS); pieces++, had = b.n_hashes)
		ck_assert_uint_le(b.n_hashes - had, HASH_TOKENS / 16);
	ck_assert_uint_eq(pieces, n / 16 ? (n / 16 + HASH_TOKENS / 16 - 1) / (HASH_TOKENS / 16) : 1);
	ck_assert_uint_eq(b.n_hashes, hash_chain(&W.root, tokens, n, 16, want));
	ck_assert(!b.n_hashes || memcmp(b.hash, want, b.n_hashes * sizeof *want) == 0);
	ck_assert_int_eq(seq_blocks_hash(&b, &W, &req, 1), 1);
	seq_blocks_fini(&b);
	free(want);
	free(tokens);
	unmake();
}
