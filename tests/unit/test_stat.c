/* test_stat.c - counters, gauges and histograms: what is rendered, what threads add up to. */
/* run: threads */
#include "svc/stat.h"

#include <check.h>
#include <pthread.h>
#include <string.h>

enum { S_DONE, S_OPEN, S_TIME, S_SIZE, S_COUNT };
static const struct stat_def defs[S_COUNT] = {
	[S_DONE] = {"done_total", "Things done.", STAT_COUNTER},
	[S_OPEN] = {"open", "Things open.", STAT_GAUGE},
	[S_TIME] = {"time_seconds", "How long.", STAT_SECONDS},
	[S_SIZE] = {"other:size", "How much.", STAT_SIZES},
};

TEST(test_render)
{
	struct stat_set *s = stat_new(defs, S_COUNT);
	struct buf b;
	buf_init(&b, 0);
	stat_add(s, S_DONE, 3);
	stat_add(s, S_DONE, 0xFFFFFFFFu);
	stat_set_value(s, S_OPEN, -7);
	stat_observe_us(s, S_TIME, 100); /* on the bound of the first bucket */
	stat_observe_us(s, S_TIME, 101);
	stat_observe_us(s, S_TIME, 70000000); /* above the last bound */
	stat_observe(s, S_SIZE, 5);
	stat_observe(s, S_SIZE, 6);
	stat_observe(s, S_SIZE, 500001);
	stat_render(s, "a_", "name=\"a\"", &b);
	static const char *const want[] = {
		"# HELP a_done_total Things done.\n# TYPE a_done_total counter\na_done_total{name=\"a\"} "
		"4294967298\n",
		"# TYPE a_open gauge\na_open{name=\"a\"} -7\n",
		"# TYPE a_time_seconds histogram\na_time_seconds_bucket{name=\"a\",le=\"0.0001\"} 1\n",
		"a_time_seconds_bucket{name=\"a\",le=\"0.00025\"} 2\n",
		"a_time_seconds_bucket{name=\"a\",le=\"60\"} 2\n",
		"a_time_seconds_bucket{name=\"a\",le=\"+Inf\"} 3\n",
		"a_time_seconds_sum{name=\"a\"} 70.000201\n",
		"a_time_seconds_count{name=\"a\"} 3\n",
		"\n# TYPE other:size histogram\nother:size_bucket{name=\"a\",le=\"1\"} 0\n",
		"other:size_bucket{name=\"a\",le=\"5\"} 1\n",
		"other:size_bucket{name=\"a\",le=\"10\"} 2\n",
		"other:size_bucket{name=\"a\",le=\"500000\"} 2\n",
		"other:size_bucket{name=\"a\",le=\"+Inf\"} 3\n",
		"other:size_sum{name=\"a\"} 500012\n",
		"other:size_count{name=\"a\"} 3\n",
	};
	for (size_t i = 0; i < sizeof want / sizeof *want; i++)
		ck_assert_msg(strstr(b.data, want[i]) != NULL, "missing: %s in\n%s", want[i], b.data);
	buf_reset(&b);
	stat_render(s, "", "", &b);
	ck_assert_ptr_nonnull(strstr(b.data, "\nopen -7\n"));
	ck_assert_ptr_nonnull(strstr(b.data, "\ntime_seconds_bucket{le=\"+Inf\"} 3\n"));
	ck_assert_ptr_nonnull(strstr(b.data, "\ntime_seconds_count 3\n"));
	ck_assert_uint_eq(stat_get(s, S_DONE), 4294967298u);
	ck_assert_int_eq((int64_t)stat_get(s, S_OPEN), -7);
	ck_assert_uint_eq(stat_get(s, S_TIME), 3);
	buf_fini(&b);
	stat_destroy(&s);
	ck_assert_ptr_null(s);
}

#define THREADS 4
#define ROUNDS 200000

static void *add_many(void *arg)
{
	for (int i = 0; i < ROUNDS; i++) {
		stat_add(arg, S_DONE, 2);
		/* one bucket, and not in the line of memory that the sum is in */
		stat_observe_us(arg, S_TIME, 30000);
	}
	return NULL;
}

TEST(test_threads)
{
	struct stat_set *s = stat_new(defs, S_COUNT);
	pthread_t t[THREADS];
	for (int i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&t[i], NULL, add_many, s), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	ck_assert_uint_eq(stat_get(s, S_DONE), 2 * THREADS * ROUNDS);
	ck_assert_uint_eq(stat_get(s, S_TIME), THREADS * ROUNDS);
	stat_destroy(&s);
}

TEST_SIGNAL(test_wrong_index, 6)
{
	struct stat_set *s = stat_new(defs, S_COUNT);
	stat_add(s, S_OPEN, 1); /* a gauge: a bug, which panics */
}

TEST(test_none)
{
	struct stat_set *s = stat_new(NULL, 0);
	struct buf b;
	buf_init(&b, 0);
	stat_render(s, "", "", &b);
	ck_assert_uint_eq(b.len, 0);
	stat_destroy(&s);
}
