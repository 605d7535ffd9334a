/* test_trim.c - memory that was freed goes back to the system, although something above it is still
 * in use. */
/* run: threads */
#include "skip.h"
#include "util/mem.h"
#include "util/trim.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCKS 60000u
#define BLOCK_BYTES 2000u /* 114 MiB of them */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SKIP_SANITIZED() SKIP("a sanitizer has an allocator of its own")
#else
#define SKIP_SANITIZED() ((void)0)
#endif

static size_t resident(void)
{
	unsigned long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	ck_assert_int_eq(fscanf(f, "%*u %lu", &pages), 1);
	fclose(f);
	return pages * (size_t)sysconf(_SC_PAGESIZE);
}

TEST_CASE("trim", .timeout_s = 60);

TEST(after_a_flood)
{
	SKIP_SANITIZED();
	static char *block[BLOCKS];
	struct trim t;
	trim_setup(&t);
	size_t before = resident();
	ck_assert_uint_eq(trim_tick(&t), 0);
	for (size_t i = 0; i < BLOCKS; i++)
		memset(block[i] = mem_alloc(BLOCK_BYTES), 1, BLOCK_BYTES);
	ck_assert_uint_eq(trim_tick(&t), 0); /* it grows */
	ck_assert_int_eq(t.changed, 1);
	ck_assert_uint_eq(trim_tick(&t), 0); /* it is in use */
	ck_assert_int_eq(t.changed, 0);
	for (size_t i = 0; i + 1 < BLOCKS; i++)
		free(block[i]);
	ck_assert_uint_gt(resident(), before + (100u << 20));
	ck_assert_uint_gt(trim_tick(&t), 100u << 20);
	ck_assert_uint_lt(resident(), before + (10u << 20));
	ck_assert_uint_eq(trim_tick(&t), 0);
	free(block[BLOCKS - 1]);
}

/* A part is freed, goes back, and then the rest, which makes the process no larger than it was
 * after that. */
TEST(in_two_parts)
{
	SKIP_SANITIZED();
	static char *block[BLOCKS];
	struct trim t;
	trim_setup(&t);
	size_t before = resident(), half = BLOCKS / 2;
	for (size_t i = 0; i < BLOCKS; i++)
		memset(block[i] = mem_alloc(BLOCK_BYTES), 1, BLOCK_BYTES);
	ck_assert_uint_eq(trim_tick(&t), 0);
	for (size_t i = 0; i < half; i++)
		free(block[i]);
	ck_assert_uint_gt(trim_tick(&t), 50u << 20);
	for (size_t i = half; i + 1 < BLOCKS; i++)
		free(block[i]);
	ck_assert_uint_gt(resident(), before + (50u << 20));
	ck_assert_uint_gt(trim_tick(&t), 50u << 20);
	ck_assert_uint_lt(resident(), before + (10u << 20));
	free(block[BLOCKS - 1]);
}

/* By default the first large block that is freed keeps all others of its size. */
TEST(large_blocks)
{
	SKIP_SANITIZED();
	enum { N = 20, LARGE = 4 << 20 };
	static char *block[N];
	struct trim t;
	trim_setup(&t);
	free(memset(mem_alloc(LARGE), 1, LARGE));
	size_t before = resident();
	for (int i = 0; i < N; i++)
		memset(block[i] = mem_alloc(LARGE), 1, LARGE);
	char *last = memset(mem_alloc(300000), 1, 300000);
	ck_assert_uint_gt(resident(), before + (70u << 20));
	for (int i = 0; i < N; i++)
		free(block[i]);
	ck_assert_uint_lt(resident(), before + (4u << 20));
	free(last);
}
