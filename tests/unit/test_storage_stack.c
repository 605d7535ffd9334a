/* test_storage_stack.c - tiers as a stack: where blocks go, where they are found, and operations
 * that are many, given up, or overtaken by the end. */
/* run: threads */
#include "tests/unit/stack_world.h"

/* --- where a put goes ---------------------------------------------------- */

TEST_CASE("stack", .timeout_s = 60);

TEST(test_acknowledgement)
{
	start(4, TIER_RECYCLE, 0, 0, TIER_RECYCLE, 0);
	fake_set(disk, 1, 0);
	ck_assert_int_eq(put(1), 'm');
	ck_assert_int_eq(get(1), 'm');
	ck_assert_int_eq(where_is(1), 'm');
	ck_assert_uint_eq(fake_count(disk, &disk->n_puts), 0);
	fake_set(disk, 0, 0);
	/* larger than all of memory: the disk takes it */
	enum tier_id tier;
	ck_assert_int_eq(op_end(op_begin(1, 9, 5 * UNIT), 9, &tier, NULL), 0);
	ck_assert_int_eq(tier, TIER_DISK);
	ck_assert_int_eq(op_end(op_begin(0, 9, 5 * UNIT), 9, &tier, NULL), 0);
	ck_assert_int_eq(tier, TIER_DISK);
	end();
}

/* Without memory a put is acknowledged when the disk has it, not before. */
TEST(test_disk_acknowledges)
{
	start(0, TIER_RECYCLE, 0, 1, TIER_RECYCLE, 0);
	fake_set(disk, 1, 0);
	struct op *o = op_begin(1, 1, UNIT);
	usleep(20000);
	ck_assert_int_eq(o->done, 0);
	fake_set(disk, 0, 0);
	enum tier_id tier;
	ck_assert_int_eq(op_end(o, 1, &tier, NULL), 0);
	ck_assert_int_eq(tier, TIER_DISK);
	ck_assert_int_eq(get(1), 'd');
	fake_set(disk, 0, ERR_IO); /* it refuses: the next one takes it */
	ck_assert_int_eq(put(2), 'r');
	fake_set(redis, 0, ERR_CLOSED);
	char text[64];
	/* nobody does: the first reason */
	ck_assert_int_eq(op_end(op_begin(1, 3, UNIT), 3, &tier, text), ERR_IO);
	ck_assert_int_eq(tier, TIER_NONE);
	ck_assert_str_eq(text, "the device is broken");
	ck_assert_int_eq(get(2), 'r');
	end();
}

/* A stalled disk: puts into memory go on, and what memory has stays; nothing waits. */
TEST(test_put_never_waits)
{
	start(8, TIER_OFFLOAD, 0, 0, TIER_RECYCLE, 0);
	fake_set(disk, 1, 0);
	for (unsigned i = 0; i < 100; i++) {
		ck_assert_int_eq(put(i), 'm');
		ck_assert_int_eq(get(i), 'm');
	}
	ck_assert_uint_ge(stat_of(0).tier.lost, 80);
	ck_assert_uint_eq(stat_of(0).tier.evictions, 92);
	for (unsigned i = 99; i > 95; i--)
		ck_assert_int_eq(get(i), 'm');
	fake_set(disk, 0, 0);
	UNTIL(stat_of(0).copying == 0);
	end();
}

/* --- look-ups ------------------------------------------------------------ */

TEST(test_where)
{
	static const unsigned names[] = {1, 2, 3, 4, 9, 3};
	start(8, TIER_RECYCLE, 0, 1, TIER_RECYCLE, 0);
	put(1);
	put(3);
	struct tier *whole = s;
	s = &disk->tier;
	put(2);
	s = &redis->tier;
	put(4);
	s = whole;
	ck_assert_str_eq(where(names, 6, 0, 0), "mdmr-m");
	ck_assert_str_eq(where(names, 4, 1, 0), "mdmr");
	ck_assert_str_eq(where(&names[4], 1, 1, 0), "-");
	ck_assert_str_eq(where(names, 0, 1, 1), "");
	end();
}

/* --- many, given up, ended ----------------------------------------------- */

/* A slow tier has a bounded number of operations at a time, whatever comes; all end. */
TEST(test_many)
{
	struct op *o[600];
	start(0, TIER_RECYCLE, 0, 0, TIER_RECYCLE, 0);
	for (unsigned i = 0; i < 100; i++)
		ck_assert_int_eq(put(i), 'd');
	fake_set(disk, 1, 0);
	for (unsigned i = 0; i < 600; i++)
		o[i] = op_begin(i % 3 == 2, i % 3 == 2 ? 100 + i % 100 : i % 100, UNIT);
	usleep(5000);
	ck_assert_uint_le(disk->most_queued, TIER_QUEUE_MIN);
	/* a block that several ask for is read once */
	ck_assert_uint_eq(stat_of(0).tier.queued, 200 + 100);
	ck_assert_uint_gt(stat_of(0).tier.oldest_us, 0);
	for (unsigned i = 0; i < 300; i++)
		tier_op_give_up(&o[i * 2]->op, i * 2 % 3 == 2);
	fake_set(disk, 0, 0);
	for (unsigned i = 0; i < 600; i++) {
		UNTIL(o[i]->done);
		if (i % 2 == 0)
			ck_assert_int_eq(o[i]->code, ERR_CANCELLED);
		ck_assert_int_le(o[i]->moved, i % 2);
		ck_assert_int_eq(op_end(o[i], i % 3 == 2 ? 100 + i % 100 : i % 100, NULL, NULL),
		                 i % 2 ? 0 : ERR_CANCELLED);
	}
	end();
}

/* The end comes while everything is under way: each operation and look-up ends. */
TEST(test_end)
{
	static const unsigned names[] = {1, 2, 3};
	struct op *o[300];
	start(16, TIER_WRITE_THROUGH, 0, 1, TIER_WRITE_THROUGH, 0);
	only_below(1, 4);
	fake_set(disk, 1, 0);
	fake_set(redis, 1, 0);
	where(names, 3, 1, 1);
	for (unsigned i = 0; i < 300; i++)
		o[i] = op_begin(i % 2, i % 50, UNIT);
	end();
	for (unsigned i = 0; i < 300; i++) {
		ck_assert_int_eq(o[i]->done, 1);
		free(o[i]->bytes);
		free(o[i]);
	}
}

/* --- everything at once -------------------------------------------------- */

static void *race(void *arg)
{
	unsigned seed = *(unsigned *)arg;
	for (unsigned i = 0; i < 1500; i++) {
		seed = seed * 1103515245u + 12345u;
		unsigned name = (seed >> 8) % 40, what = (seed >> 20) % 16;
		if (what < 5)
			op_end(op_begin(1, name, UNIT / 4), name, NULL, NULL);
		else if (what < 12)
			op_end(op_begin(0, name, UNIT / 4), name, NULL, NULL); /* compares what it gets */
		else if (what == 12)
			tier_stack_find(s, TIER_MEMORY)
				->ops->remove(tier_stack_find(s, TIER_MEMORY),
			                  &(struct tier_key){.b = {(unsigned char)name}});
		else if (what == 13)
			tier_stack_resize(s, TIER_MEMORY, (4 + seed % 13) * UNIT);
		else if (what == 14)
			tier_stack_policy(s, TIER_MEMORY, seed % 3, seed % 2, 30);
		else if (seed % 8 == 0)
			flushed(TIER_NONE, NULL, NULL);
	}
	return NULL;
}

TEST(test_threads)
{
	unsigned seed[4] = {1, 2, 3, 4};
	pthread_t th[4];
	start(16, TIER_OFFLOAD, 0, 1, TIER_WRITE_THROUGH, 1);
	for (unsigned i = 0; i < 4; i++)
		pthread_create(&th[i], NULL, race, &seed[i]);
	for (unsigned i = 0; i < 4; i++)
		pthread_join(th[i], NULL);
	ck_assert_uint_eq(stat_of(0).tier.corrupt, 0);
	ck_assert_uint_gt(stat_of(0).copied_down, 0);
	ck_assert_uint_gt(stat_of(1).promoted, 0);
	end();
}
