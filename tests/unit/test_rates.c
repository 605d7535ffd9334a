/* test_rates.c - read or recompute: what was measured, where the blocks are, and how many of
 * them are read. */
#include "daemons/worker/storage/rates.h"
#include "util/clock.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define BT 64u
#define BYTES 1000000u /* of a block */

static struct rates r;

static void set_up(void)
{
	rates_init(&r, RATES_AUTO, BT, BYTES);
	r.retry_us = UINT64_MAX;
}

static void tear_down(void)
{
	rates_fini(&r);
}

/* Reads of 1 to 8 blocks: begin_us, then so much for each block. */
static void reads(unsigned tier, uint64_t begin_us, uint64_t block_us)
{
	for (uint64_t n = 1; n <= 8; n++)
		rates_note_read(&r, tier, n * BYTES, begin_us + n * block_us);
}

static void computes(uint64_t block_us)
{
	for (int i = 0; i < 8; i++)
		rates_note_compute(&r, BT * 2, block_us * 2);
}

/* Where the blocks are, one letter each: m, d, r, or ? where storage did not say. */
static uint32_t worth(const char *where)
{
	unsigned char tiers[32];
	uint32_t n = (uint32_t)strlen(where);
	for (uint32_t i = 0; i < n; i++)
		tiers[i] = where[i] == 'm'   ? STORE_TIER_MEMORY
		           : where[i] == 'd' ? STORE_TIER_DISK
		           : where[i] == 'r' ? STORE_TIER_REDIS
		                             : STORE_TIER_NONE;
	return rates_worth_reading(&r, tiers, n);
}

/* us of a block: computed, read from memory, disk and Redis; us until the first byte from each
 * of these. 0: never seen. */
static const struct row {
	uint64_t compute, memory, disk, redis, memory_begin, disk_begin, redis_begin;
	const char *where;
	uint32_t want;
} rows[] = {
	/* nothing is known: read, and learn */
	{0, 0, 0, 0, 0, 0, 0, "mmmm", 4},
	{1000, 0, 0, 0, 0, 0, 0, "mmdd", 4},
	{0, 100, 0, 0, 0, 0, 0, "mmmm", 4},
	{1000, 100, 0, 0, 0, 0, 0, "mmmm", 4},
	{1000, 1100, 0, 0, 0, 0, 0, "mmmm", 0},
	/* the slow ones are at the end: computed */
	{1000, 100, 2000, 0, 0, 0, 0, "mmdd", 2},
	/* one slow one, then three that make up for it */
	{1000, 100, 2000, 0, 0, 0, 0, "dmmm", 4},
	{1000, 100, 2000, 0, 0, 0, 0, "dm", 0}, /* ... and here they do not */
	{1000, 100, 2000, 0, 0, 0, 0, "mdm", 1},
	{1000, 100, 1500, 0, 0, 0, 0, "mdmm", 4},
	{1000, 100, 500, 5000, 0, 0, 0, "mddrm", 3},
	/* the seek alone takes as long as three blocks */
	{1000, 0, 500, 0, 0, 3000, 0, "ddd", 0},
	/* break-even: 3000 / (1000 - 500) = 6 */
	{1000, 0, 500, 0, 0, 3000, 0, "ddddddd", 7},
	{1000, 100, 500, 0, 0, 3000, 0, "mmddd", 2},
	{1000, 100, 500, 0, 50, 3000, 0, "mmddddddd", 9},
	{1000, 100, 0, 0, 0, 0, 0, "mmdd", 4}, /* the disk is not known */
	{1000, 2000, 0, 0, 0, 0, 0, "md", 2},
	{1000, 100, 0, 0, 0, 0, 0, "????", 4}, /* as memory */
	{1000, 2000, 0, 0, 0, 0, 0, "????", 0},
	{1000, 100, 0, 0, 0, 0, 0, "", 0},
};

TEST_CASE("rates", .setup = set_up, .teardown = tear_down);

TEST_LOOP(table, 0, sizeof rows / sizeof rows[0])
{
	const struct row *t = &rows[_i];
	if (t->compute)
		computes(t->compute);
	if (t->memory)
		reads(STORE_TIER_MEMORY, t->memory_begin, t->memory);
	if (t->disk)
		reads(STORE_TIER_DISK, t->disk_begin, t->disk);
	if (t->redis)
		reads(STORE_TIER_REDIS, t->redis_begin, t->redis);
	ck_assert_msg(worth(t->where) == t->want, "row %d: %s: %u blocks, want %u", _i, t->where,
	              worth(t->where), t->want);
}

TEST(settings)
{
	computes(1000);
	reads(STORE_TIER_MEMORY, 0, 5000);
	ck_assert_uint_eq(worth("mmm"), 0);
	r.mode = RATES_ALWAYS;
	ck_assert_uint_eq(worth("mmm"), 3);
	r.mode = RATES_NEVER;
	reads(STORE_TIER_MEMORY, 0, 5);
	ck_assert_uint_eq(worth("mmm"), 0);
	struct rates_view v;
	rates_view(&r, &v);
	ck_assert_uint_eq(v.chosen_read, 3);
	ck_assert_uint_eq(v.chosen_compute, 6);
}

/* The latest reads count most: a disk that became slow is left, one that recovered is found out
 * by a try. */
TEST(rates_move)
{
	computes(1000);
	reads(STORE_TIER_DISK, 0, 100);
	ck_assert_uint_eq(worth("ddd"), 3);
	for (int i = 0; i < 4; i++)
		rates_note_read(&r, STORE_TIER_DISK, 0, 500000); /* nothing came in half a second */
	ck_assert_uint_eq(worth("ddd"), 0);
	r.retry_us = 0;
	ck_assert_uint_eq(worth("ddd"), 3); /* a try */
	r.retry_us = UINT64_MAX;
	ck_assert_uint_eq(worth("ddd"), 0);
	for (int i = 0; i < 30; i++)
		reads(STORE_TIER_DISK, 0, 100);
	ck_assert_uint_eq(worth("ddd"), 3);
}

/* A try is one: the next is due retry_us later, or that long after what it has shown. */
TEST(one_try_at_a_time)
{
	computes(1000);
	reads(STORE_TIER_DISK, 0, 5000);
	r.noted_us[STORE_TIER_DISK] = 0;
	r.retry_us = clock_us(); /* as long as the machine is up */
	uint32_t first = worth("mmdd");
	ck_assert_uint_eq(first, 4);
	for (int i = 0; i < 5; i++)
		ck_assert_uint_eq(worth("mmdd"), 2);
}

TEST(mixed_reads_are_the_slowest_ones)
{
	uint32_t came[STORE_TIERS] = {[STORE_TIER_MEMORY] = 10, [STORE_TIER_DISK] = 2};
	reads(STORE_TIER_MEMORY, 0, 100);
	rates_note_blocks(&r, came, STORE_TIER_DISK, 10 * 100 + 2 * 3000);
	struct rates_view v;
	rates_view(&r, &v);
	ck_assert_double_eq_tol(1e6 / v.read_bytes_us[STORE_TIER_DISK], 3000, 30);
	ck_assert_double_eq_tol(1e6 / v.read_bytes_us[STORE_TIER_MEMORY], 100, 1);
	uint32_t none[STORE_TIERS] = {0};
	rates_note_blocks(&r, none, STORE_TIER_REDIS, 400000);
	rates_note_blocks(&r, none, STORE_TIER_NONE, 400000); /* nobody's */
	rates_note_blocks(&r, (const uint32_t[STORE_TIERS]){7}, STORE_TIER_NONE, 400000);
	computes(1000);
	ck_assert_uint_eq(worth("rrrr"), 0);
	rates_view(&r, &v);
	ck_assert_double_eq_tol(1e6 / v.read_bytes_us[STORE_TIER_MEMORY], 100, 1);
}

TEST(brought_up_meanwhile)
{
	unsigned char t[6] = {STORE_TIER_MEMORY, STORE_TIER_DISK,  STORE_TIER_DISK,
	                      STORE_TIER_DISK,   STORE_TIER_REDIS, STORE_TIER_NONE};
	reads(STORE_TIER_DISK, 200, 1000);
	rates_brought_up(&r, t, 6, 2300);
	static const unsigned char want[6] = {STORE_TIER_MEMORY, STORE_TIER_MEMORY, STORE_TIER_MEMORY,
	                                      STORE_TIER_DISK,   STORE_TIER_REDIS,  STORE_TIER_NONE};
	ck_assert_mem_eq(t, want, sizeof t);
	rates_brought_up(&r, t, 6, UINT64_MAX);
	ck_assert_int_eq(t[3], STORE_TIER_MEMORY);
	/* how long that takes is not known */
	ck_assert_int_eq(t[4], STORE_TIER_REDIS);
}

/* Nothing that can be measured makes nonsense of it. */
TEST(odd_points)
{
	static const uint64_t v[] = {0, 1, 500000, UINT32_MAX, UINT64_MAX};
	srand(3);
	for (int i = 0; i < 20000; i++) {
		rates_note_read(&r, (unsigned)rand() % 7, v[rand() % 5], v[rand() % 5]);
		rates_note_compute(&r, v[rand() % 5], v[rand() % 5]);
		uint32_t n = worth("mmddrr?");
		ck_assert_uint_le(n, 7);
		struct rates_view view;
		rates_view(&r, &view);
		for (unsigned t = STORE_TIER_MEMORY; t < STORE_TIERS; t++)
			ck_assert(view.read_begin_us[t] >= 0 && view.read_bytes_us[t] >= 0);
	}
}

TEST(what_people_see)
{
	struct rates_view v;
	rates_view(&r, &v);
	ck_assert_uint_eq(v.break_even_blocks[STORE_TIER_DISK], 0); /* not known */
	computes(1000);
	reads(STORE_TIER_MEMORY, 0, 100);
	reads(STORE_TIER_DISK, 3000, 500);
	reads(STORE_TIER_REDIS, 0, 1001);
	rates_view(&r, &v);
	ck_assert_double_eq_tol(v.compute_tokens_us * 1e6, 64000, 1);
	ck_assert_double_eq_tol(v.read_tokens_us[STORE_TIER_MEMORY] * 1e6, 640000, 10);
	ck_assert_double_eq_tol(v.read_tokens_us[STORE_TIER_DISK] * 1e6, 128000, 10);
	ck_assert_double_eq_tol(v.read_begin_us[STORE_TIER_DISK], 3000, 1);
	ck_assert_double_eq_tol(v.read_bytes_us[STORE_TIER_DISK], 2000, 1);
	ck_assert_uint_eq(v.break_even_blocks[STORE_TIER_MEMORY], 1);
	ck_assert_uint_ge(v.break_even_blocks[STORE_TIER_DISK], 6);
	ck_assert_uint_le(v.break_even_blocks[STORE_TIER_DISK], 7);
	ck_assert_uint_eq(v.break_even_blocks[STORE_TIER_REDIS], UINT32_MAX);
}
