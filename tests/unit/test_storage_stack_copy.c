/* test_storage_stack_copy.c - blocks on their way from one tier of a stack to another: down by
 * the policy of the tier that has them, up when they are asked for. */
/* run: threads */
#include "tests/unit/stack_world.h"

/* --- down ---------------------------------------------------------------- */

TEST_CASE("copy", .timeout_s = 60);

/* With time between the puts nothing is ever lost, and each block is found, in whichever tier. */
TEST(test_offload)
{
	start(8, TIER_OFFLOAD, 0, 0, TIER_RECYCLE, 0);
	for (unsigned i = 0; i < 40; i++) {
		ck_assert_int_eq(put(i), 'm');
		UNTIL(stat_of(0).copying == 0 && (i < 6 || fake_has(disk, i - 6)));
	}
	ck_assert_uint_eq(stat_of(0).tier.lost, 0);
	ck_assert_uint_ge(stat_of(0).copied_down, 32);
	ck_assert_uint_lt(stat_of(0).copied_down, 38); /* the youngest stay in memory alone */
	for (unsigned i = 0; i < 40; i++)
		ck_assert_int_ne(where_is(i), '-');
	for (unsigned i = 0; i < 40; i++) /* what comes up drops nothing that is nowhere else */
		ck_assert_int_ne(get(i), '-');
	ck_assert_uint_eq(stat_of(0).tier.lost, 0);
	end();
}

/* Reading the oldest of memory keeps it there: the order of use counts, not that of writing, and
 * copying down is no use. */
TEST(test_offload_order)
{
	start(8, TIER_OFFLOAD, 0, 0, TIER_RECYCLE, 0);
	for (unsigned i = 0; i < 30; i++) {
		ck_assert_int_eq(put(100 + i), 'm');
		if (i == 0)
			ck_assert_int_eq(put(1), 'm');
		ck_assert_int_eq(get(1), 'm');
		UNTIL(stat_of(0).copying == 0);
	}
	end();
}

TEST_LOOP(test_write_through, 0, 3)
{
	static const uint32_t after[] = {0, 1, 3};
	start(8, TIER_WRITE_THROUGH, after[_i], 0, TIER_RECYCLE, 0);
	ck_assert_int_eq(put(1), 'm');
	for (uint32_t hit = 0; hit < after[_i]; hit++) {
		usleep(5000);
		ck_assert_int_eq(fake_has(disk, 1), 0);
		ck_assert_int_eq(get(1), 'm');
	}
	UNTIL(fake_has(disk, 1) && stat_of(0).copied_down == 1);
	get(1);
	get(1);
	usleep(5000);
	ck_assert_uint_eq(fake_count(disk, &disk->n_puts), 1); /* once */
	for (unsigned i = 10; i < 20; i++)                     /* and it is evicted for free */
		put(i);
	ck_assert_int_eq(get(1), 'd');
	end();
}

/* From a tier that does not say what is due: at once, after its hits, or when it has taken the
 * block (offload). */
TEST_LOOP(test_disk_to_redis, 0, 5)
{
	static const struct {
		enum tier_policy policy;
		uint32_t after, hits;
		unsigned memory;
	} row[] = {{TIER_OFFLOAD, 0, 0, 0},
	           {TIER_WRITE_THROUGH, 0, 0, 0},
	           {TIER_WRITE_THROUGH, 3, 3, 0},
	           {TIER_WRITE_THROUGH, 0, 0, 8},
	           {TIER_RECYCLE, 0, 0, 8}};
	start(row[_i].memory, TIER_WRITE_THROUGH, 0, 1, row[_i].policy, row[_i].after);
	put(1);
	for (uint32_t i = 0; i < row[_i].hits; i++) {
		usleep(5000);
		ck_assert_int_eq(fake_has(redis, 1), 0);
		ck_assert_int_eq(get(1), 'd');
	}
	UNTIL(fake_has(disk, 1));
	if (row[_i].policy == TIER_RECYCLE) {
		usleep(20000);
		ck_assert_int_eq(fake_has(redis, 1), 0);
	} else {
		UNTIL(fake_has(redis, 1));
		tier_flushed(&disk->tier, NULL);
		if (row[_i].memory)
			tier_flushed(tier_stack_find(s, TIER_MEMORY), NULL);
		ck_assert_int_eq(get(1), 'r');
	}
	end();
}

/* The tier below refuses for a while: it is left alone in between, memory keeps what it has, and
 * afterwards everything goes down. */
TEST_LOOP(test_lower_fails, 0, 3)
{
	static const int code[] = {ERR_IO, ERR_CLOSED, ERR_FULL};
	start(16, TIER_WRITE_THROUGH, 0, 0, TIER_RECYCLE, 0);
	uint64_t begun = clock_us();
	fake_set(disk, 0, code[_i]);
	for (unsigned i = 0; i < 8; i++)
		ck_assert_int_eq(put(i), 'm');
	UNTIL(stat_of(0).copy_failed > 0);
	ck_assert_int_eq(get(0), 'm');
	usleep(30000);
	unsigned puts = fake_count(disk, &disk->n_puts);
	/* each block once between two pauses, not again and again */
	ck_assert_uint_le(puts, 16 + (clock_us() - begun) / 20000 * 8);
	fake_set(disk, 0, 0);
	for (unsigned i = 0; i < 8; i++)
		/* what it had no room for is not offered for ever */
		UNTIL(fake_has(disk, i) || code[_i] == ERR_FULL);
	for (unsigned i = 0; i < 8; i++)
		ck_assert_int_eq(get(i), 'm');
	end();
}

static void disk_remove(unsigned name)
{
	struct tier_key k = {{0}};
	memcpy(k.b, &name, sizeof name);
	ck_assert_int_eq(disk->ops.remove(&disk->tier, &k), 0);
}

/* What has gone below (evicted, removed, damaged, flushed) is not evicted from memory as if it were
 * kept there: it is copied down again before, and when that cannot be it counts as lost. */
TEST_LOOP(test_gone_below, 0, 3)
{
	start(8, TIER_OFFLOAD, 0, 0, TIER_RECYCLE, 0);
	for (unsigned i = 0; i < 8; i++)
		put(i);
	UNTIL(fake_has(disk, 0) && stat_of(0).copying == 0);
	fake_set(disk, 0, _i < 2 ? 0 : ERR_IO);
	if (_i == 0)
		disk_remove(0);
	else
		ck_assert_int_eq(flushed(TIER_DISK, NULL, NULL), 0);
	if (_i == 0)
		ck_assert(!fake_has(disk, 0));
	if (_i < 2) {
		for (unsigned i = 0; i < 8; i++) { /* the oldest is kept below before it has to go */
			UNTIL(put(7 + i) == 'm' && fake_has(disk, i));
			put(8 + i);
		}
		ck_assert_int_eq(get(0), 'd');
		ck_assert_uint_eq(stat_of(0).tier.lost, 0);
	} else {
		for (unsigned i = 100; i < 108; i++)
			put(i);
		ck_assert_int_eq(get(0), '-');
		ck_assert_uint_eq(stat_of(0).tier.lost, 8);
	}
	end();
}

/* What goes below between being stored there and being told to be is not taken for kept. */
TEST(test_gone_before_told)
{
	start(8, TIER_OFFLOAD, 0, 0, TIER_RECYCLE, 0);
	disk->hold_done = 1;
	for (unsigned i = 0; i < 8; i++)
		put(i);
	UNTIL(fake_has(disk, 0));
	disk_remove(0);
	pthread_mutex_lock(&disk->lock);
	disk->hold_done = 0;
	pthread_cond_signal(&disk->more);
	pthread_mutex_unlock(&disk->lock);
	UNTIL(put(7) == 'm' && fake_has(disk, 0));
	end();
}

/* A block that is evicted from memory while the disk is about to copy it: it is lost, nothing
 * else. */
TEST(test_evicted_meanwhile)
{
	start(2, TIER_WRITE_THROUGH, 0, 0, TIER_RECYCLE, 0);
	fake_set(disk, 1, 0);
	for (unsigned i = 0; i < 10; i++)
		ck_assert_int_eq(put(i), 'm');
	fake_set(disk, 0, 0);
	UNTIL(stat_of(0).copying == 0 && fake_has(disk, 8) && fake_has(disk, 9));
	for (unsigned i = 0; i < 8; i++)
		ck_assert_int_eq(get(i), '-');
	end();
}

/* A flush wins over copies that are on their way. */
TEST(test_flush)
{
	uint64_t n;
	start(8, TIER_WRITE_THROUGH, 0, 0, TIER_RECYCLE, 0);
	fake_set(disk, 1, 0);
	for (unsigned i = 0; i < 8; i++)
		put(i);
	UNTIL(fake_count(disk, &disk->queued) == 8);
	ck_assert_int_eq(flushed(TIER_NONE, &n, NULL), 0);
	ck_assert_uint_eq(n, 8);
	fake_set(disk, 0, 0);
	UNTIL(stat_of(0).copying == 0);
	for (unsigned i = 0; i < 8; i++)
		ck_assert_int_eq(get(i), '-');
	pthread_mutex_lock(&disk->lock);
	/* also over one that is written already, and only not said to be */
	disk->hold_late = 1;
	unsigned moved = disk->n_moved_in;
	pthread_mutex_unlock(&disk->lock);
	put(100);
	put(101);
	UNTIL(fake_count(disk, &disk->n_moved_in) > moved && stat_of(0).copying == 2);
	ck_assert_int_eq(flushed(TIER_NONE, &n, NULL), 0);
	pthread_mutex_lock(&disk->lock);
	disk->hold_late = 0;
	pthread_cond_signal(&disk->more);
	pthread_mutex_unlock(&disk->lock);
	UNTIL(stat_of(0).copying == 0);
	ck_assert_int_eq(get(100), '-');
	ck_assert_int_eq(get(101), '-');
	ck_assert_int_eq(flushed(TIER_REDIS, &n, NULL), ERR_NOTFOUND);
	put(1);
	UNTIL(fake_has(disk, 1));
	ck_assert_int_eq(flushed(TIER_MEMORY, &n, NULL), 0);
	ck_assert_uint_eq(n, 1);
	ck_assert_int_eq(get(1), 'd');
	end();
}

static int flush_move(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	uint64_t blocks;
	ck_assert_int_eq(flushed(TIER_NONE, &blocks, NULL), 0);
	return op_move_out(op, span, n);
}

/* And over a block that a get has read below and is about to copy up: the get has it, nobody
 * after. */
TEST(test_flush_promotion)
{
	start(8, TIER_WRITE_THROUGH, 0, 0, TIER_RECYCLE, 0);
	only_below(1, 2);
	struct op *o = op_new(0, 1, UNIT);
	o->op.move = flush_move;
	s->ops->get(s, &o->op);
	ck_assert_int_eq(op_end(o, 1, NULL, NULL), 0);
	ck_assert_int_eq(where_is(1), '-');
	ck_assert_uint_eq(stat_of(0).tier.blocks, 0);
	ck_assert_uint_eq(stat_of(1).promoted, 0);
	end();
}

/* --- up ------------------------------------------------------------------ */

TEST(test_promotion)
{
	start(8, TIER_WRITE_THROUGH, 0, 0, TIER_RECYCLE, 0);
	only_below(1, 3);
	ck_assert_int_eq(where_is(1), 'd');
	ck_assert_int_eq(get(1), 'd');
	ck_assert_int_eq(get(1), 'm');
	ck_assert_uint_eq(stat_of(1).promoted, 1);
	usleep(5000);
	/* what came from below is not written there again */
	ck_assert_uint_eq(fake_count(disk, &disk->n_puts), 2);
	ck_assert_int_eq(where_is(2), 'd');
	end();
}

/* Under offload what comes up drops nothing that has not gone down yet: it is given from below,
 * and stays there. */
TEST(test_promotion_spares)
{
	start(4, TIER_OFFLOAD, 0, 0, TIER_RECYCLE, 0);
	struct tier *whole = s;
	s = &disk->tier;
	put(50);
	s = whole;
	fake_set(disk, 0, ERR_IO);
	for (unsigned i = 1; i <= 4; i++)
		put(i);
	ck_assert_int_eq(get(50), 'd');
	for (unsigned i = 1; i <= 4; i++)
		ck_assert_int_eq(get(i), 'm');
	ck_assert_int_eq(where_is(50), 'd');
	ck_assert_uint_eq(stat_of(0).tier.lost, 0);
	fake_set(disk, 0, 0);
	UNTIL(stat_of(0).copied_down > 0); /* now there is room that is safe */
	ck_assert_int_eq(get(50), 'd');
	ck_assert_int_eq(get(50), 'm');
	end();
}

TEST(test_prefetch)
{
	static const unsigned names[] = {1, 2, 3, 4, 7, 5};
	start(16, TIER_WRITE_THROUGH, 0, 0, TIER_RECYCLE, 0);
	only_below(1, 6);
	ck_assert_str_eq(where(names, 6, 1, 1), "dddd--");
	for (unsigned i = 1; i < 5; i++)
		UNTIL(where_is(i) == 'm');
	UNTIL(stat_of(1).prefetched >= 4); /* counted after the block can be seen */
	ck_assert_uint_eq(stat_of(1).prefetched, 4);
	ck_assert_int_eq(where_is(5), 'd'); /* behind the hole: not wanted */
	unsigned gets = fake_count(disk, &disk->n_gets);
	ck_assert_int_eq(get(3), 'm');
	ck_assert_uint_eq(fake_count(disk, &disk->n_gets), gets);
	end();
}

/* A get of a block that is on its way up is served with it instead of reading it twice; given
 * up, it ends without. */
TEST(test_get_meets_prefetch)
{
	static const unsigned names[] = {1, 2};
	start(16, TIER_WRITE_THROUGH, 0, 0, TIER_RECYCLE, 0);
	only_below(1, 3);
	unsigned gets = fake_count(disk, &disk->n_gets);
	fake_set(disk, 1, 0);
	where(names, 2, 1, 1);
	UNTIL(fake_count(disk, &disk->queued) == 2);
	struct op *a = op_begin(0, 1, UNIT), *b = op_begin(0, 2, UNIT);
	usleep(5000);
	ck_assert_int_eq(a->done + b->done, 0);
	tier_op_give_up(&b->op, 0);
	fake_set(disk, 0, 0);
	enum tier_id tier;
	ck_assert_int_eq(op_end(a, 1, &tier, NULL), 0);
	ck_assert_int_eq(tier, TIER_DISK);
	ck_assert_int_eq(op_end(b, 2, &tier, NULL), ERR_CANCELLED);
	ck_assert_uint_eq(fake_count(disk, &disk->n_gets), gets + 2);
	end();
}

/* Several ask for one block below memory: it is read once and all have it. Who asks after a
 * flush does not get what was there before it. */
TEST(test_gets_meet)
{
	enum tier_id tier;
	start(16, TIER_WRITE_THROUGH, 0, 0, TIER_RECYCLE, 0);
	only_below(1, 3);
	unsigned gets = fake_count(disk, &disk->n_gets);
	fake_set(disk, 1, 0);
	struct op *before[4], *after;
	for (unsigned i = 0; i < 4; i++)
		before[i] = op_begin(0, 1, UNIT);
	tier_op_give_up(&before[2]->op, 0);
	ck_assert_int_eq(flushed(TIER_MEMORY, NULL, NULL), 0);
	after = op_begin(0, 1, UNIT);
	fake_set(disk, 0, 0);
	for (unsigned i = 0; i < 4; i++)
		ck_assert_int_eq(op_end(before[i], 1, &tier, NULL), i == 2 ? ERR_CANCELLED : 0);
	ck_assert_int_eq(op_end(after, 1, &tier, NULL), 0);
	ck_assert_uint_eq(fake_count(disk, &disk->n_gets), gets + 2);
	ck_assert_int_eq(get(1), 'm');
	end();
}

/* One of them cannot take it, the first or the last; no memory keeps it. The others have it. */
TEST_LOOP(test_one_of_them_fails, 0, 3)
{
	enum tier_id tier;
	start(0, TIER_RECYCLE, 0, 0, TIER_RECYCLE, 0);
	ck_assert_int_eq(put(1), 'd');
	unsigned gets = fake_count(disk, &disk->n_gets);
	fake_set(disk, 1, 0);
	struct op *got[3];
	for (int i = 0; i < 3; i++) {
		got[i] = op_new(0, 1, UNIT);
		got[i]->move_code = i == _i ? ERR_CANCELLED : 0;
		s->ops->get(s, &got[i]->op);
	}
	fake_set(disk, 0, 0);
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(op_end(got[i], 1, &tier, NULL), i == _i ? ERR_CANCELLED : 0);
	ck_assert_uint_eq(fake_count(disk, &disk->n_gets), gets + 1);
	end();
}

/* A get while a flush is between the tiers: what it reads below is not in memory afterwards. */
static void read_below(void)
{
	ck_assert_int_eq(get(1), 'd');
}

TEST(test_flush_between_tiers)
{
	start(16, TIER_WRITE_THROUGH, 0, 0, TIER_RECYCLE, 0);
	only_below(1, 3);
	disk->at_flush = read_below;
	ck_assert_int_eq(flushed(TIER_NONE, NULL, NULL), 0);
	ck_assert_int_eq(where_is(1), '-');
	disk->at_flush = NULL;
	end();
}

/* A block of memory that is damaged when it is to go down is dropped, and nobody has it then. */
static unsigned char *in_memory;
static int see_move(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	in_memory = span[0].at;
	return op_move_in(op, span, n);
}

TEST(test_damaged_before_it_goes)
{
	start(8, TIER_WRITE_THROUGH, 1, 0, TIER_RECYCLE, 0);
	struct op *o = op_new(1, 1, UNIT);
	o->op.move = see_move;
	s->ops->put(s, &o->op);
	ck_assert_int_eq(op_end(o, 1, NULL, NULL), 0);
	fake_set(disk, 1, 0);
	ck_assert_int_eq(get(1), 'm'); /* due now */
	UNTIL(fake_count(disk, &disk->queued) == 1);
	in_memory[100] ^= 1;
	fake_set(disk, 0, 0);
	UNTIL(stat_of(0).copying == 0);
	ck_assert_int_eq(where_is(1), '-');
	ck_assert_uint_eq(stat_of(0).tier.corrupt, 1);
	ck_assert_uint_eq(stat_of(0).tier.lost, 1);
	end();
}

/* The prefetch fails: who waited for it reads for himself, and hears the reason. */
TEST(test_prefetch_fails)
{
	static const unsigned names[] = {1};
	char text[64];
	start(16, TIER_WRITE_THROUGH, 0, 0, TIER_RECYCLE, 0);
	only_below(1, 2);
	fake_set(disk, 1, 0);
	where(names, 1, 1, 1);
	UNTIL(fake_count(disk, &disk->queued) == 1);
	struct op *a = op_begin(0, 1, UNIT);
	disk->get_corrupt = 1;
	fake_set(disk, 0, 0);
	ck_assert_int_eq(op_end(a, 1, NULL, text), ERR_CORRUPT);
	ck_assert_str_eq(text, "damaged");
	end();
}
