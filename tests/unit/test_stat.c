/* test_stat.c - counters, gauges and histograms: what is rendered, what threads add up to. */
/* run: threads */
#include "svc/stat.h"

#include <check.h>
#include <pthread.h>
#include <string.h>

static struct figures {
	_Atomic uint64_t done;
	uint64_t plain;
	int64_t open;
	uint32_t few;
	struct stat_seconds time;
	struct stat_sizes size;
} figures;
#define ROW(field, type, name, help) STAT_ROW(struct figures, field, type, name, help)
static const struct stat_row table[] = {
	ROW(done, COUNTER, "done_total", "Things done."),
	ROW(open, GAUGE, "open", "Things open."),
	ROW(time, SECONDS, "time_seconds", "How long."),
	ROW(size, SIZES, "other:size", "How much."),
	ROW(plain, SECONDS_SUM, "busy_seconds_total", "Busy."),
	ROW(few, GAUGE, "few", "A few."),
	ROW(done, COUNTER, "same_total", "A second name of one number."),
	STAT_END,
};

static void forget(void)
{
	figures = (struct figures){0};
}

TEST_CASE("stat", .setup = forget);

TEST(test_render)
{
	struct figures *f = &figures;
	struct buf b;
	buf_init(&b, 0);
	f->done += 3;
	f->done += 0xFFFFFFFFu;
	f->open = -7;
	f->few = 4294967295u;
	f->plain = 2000003;
	stat_observe_us(&f->time, 100); /* on the bound of the first bucket */
	stat_observe_us(&f->time, 101);
	stat_observe_us(&f->time, 70000000); /* above the last bound */
	stat_observe(&f->size, 5);
	stat_observe(&f->size, 6);
	stat_observe(&f->size, 500001);
	stat_render(table, f, "a_", "name=\"a\"", &b);
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
		"a_busy_seconds_total{name=\"a\"} 2.000003\n",
		"# TYPE a_few gauge\na_few{name=\"a\"} 4294967295\n",
		"\na_same_total{name=\"a\"} 4294967298\n",
	};
	for (size_t i = 0; i < sizeof want / sizeof *want; i++)
		ck_assert_msg(strstr(b.data, want[i]) != NULL, "missing: %s in\n%s", want[i], b.data);
	buf_reset(&b);
	stat_render(table, f, "", "", &b);
	ck_assert_ptr_nonnull(strstr(b.data, "\nopen -7\n"));
	ck_assert_ptr_nonnull(strstr(b.data, "\ntime_seconds_bucket{le=\"+Inf\"} 3\n"));
	ck_assert_ptr_nonnull(strstr(b.data, "\ntime_seconds_count 3\n"));
	buf_fini(&b);
}

#define THREADS 4
#define ROUNDS 200000

static void *add_many(void *arg)
{
	for (int i = 0; i < ROUNDS; i++) {
		figures.done += 2;
		/* one bucket, and not in the line of memory that the sum is in */
		stat_observe_us(&figures.time, 30000);
	}
	return arg;
}

TEST(test_threads)
{
	pthread_t t[THREADS];
	for (int i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&t[i], NULL, add_many, NULL), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	uint64_t seen = 0;
	for (unsigned i = 0; i <= STAT_BOUNDS; i++)
		seen += figures.time.h.n[i];
	ck_assert_uint_eq(figures.done, 2 * THREADS * ROUNDS);
	ck_assert_uint_eq(seen, THREADS * ROUNDS);
	ck_assert_uint_eq(figures.time.h.sum, (uint64_t)THREADS * ROUNDS * 30000);
}

/* A counter whose number is a histogram is a bug, which panics. */
TEST_SIGNAL(test_wrong_type, 6)
{
	static const struct stat_row wrong[] = {ROW(time, COUNTER, "x_total", "x"), STAT_END};
	struct buf b;
	buf_init(&b, 0);
	stat_render(wrong, &figures, "", "", &b);
}

TEST(test_none)
{
	static const struct stat_row none[] = {STAT_END};
	struct buf b;
	buf_init(&b, 0);
	stat_render(none, NULL, "", "", &b);
	ck_assert_uint_eq(b.len, 0);
	buf_fini(&b);
}
