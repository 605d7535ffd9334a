/* test_pdctl_histogram.c - percentiles of what came between two texts of a histogram. */
#include "pdctl/histogram.h"

#include <check.h>
#include <stdio.h>

#define LABELS "name=\"messager\",role=\"messager\","
#define BUCKETS(a, b, c, inf)                           \
	"# TYPE x_seconds histogram\n"                      \
	"other_x_seconds_bucket{" LABELS "le=\"0.1\"} 9\n"  \
	"x_seconds_bucket{" LABELS "le=\"0.1\"} " a "\n"    \
	"x_seconds_bucket{" LABELS "le=\"0.2\"} " b "\n"    \
	"x_seconds_bucket{" LABELS "le=\"1\"} " c "\n"      \
	"x_seconds_bucket{" LABELS "le=\"+Inf\"} " inf "\n" \
	"x_seconds_sum{name=\"r\"} 1.5\nx_seconds_count{name=\"r\"} " inf "\n"

static struct histogram between(const char *before, const char *now)
{
	struct histogram h = {0};
	histogram_add(&h, now, "x_seconds", 1);
	histogram_add(&h, before, "x_seconds", -1);
	return h;
}

TEST(quantiles_of_the_difference)
{
	static const struct {
		const char *before, *now;
		double p50, p99;
	} cases[] = {
		{BUCKETS("0", "0", "0", "0"), BUCKETS("10", "10", "10", "10"), 0.05, 0.099},
		{BUCKETS("10", "10", "10", "10"), BUCKETS("10", "20", "20", "20"), 0.15, 0.199},
		{BUCKETS("5", "5", "5", "5"), BUCKETS("5", "6", "7", "7"), 0.2, 0.984},
		/* beyond the last bound */
		{BUCKETS("0", "0", "0", "0"), BUCKETS("0", "0", "0", "4"), 1, 1},
		/* nothing came */
		{BUCKETS("3", "4", "5", "6"), BUCKETS("3", "4", "5", "6"), -1, -1},
		{"", "", -1, -1},
		{NULL, NULL, -1, -1},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct histogram h = between(cases[i].before, cases[i].now);
		ck_assert_double_eq_tol(histogram_quantile(&h, 0.5), cases[i].p50, 1e-9);
		ck_assert_double_eq_tol(histogram_quantile(&h, 0.99), cases[i].p99, 1e-9);
	}
}

TEST(other_bounds_add_nothing)
{
	struct histogram h = between("x_seconds_bucket{le=\"5\"} 7\n", BUCKETS("1", "1", "1", "1"));
	ck_assert_uint_eq(h.n, 4);
	ck_assert_double_eq_tol(histogram_quantile(&h, 0.5), 0.05, 1e-9);
}

TEST(malformed_and_endless_text)
{
	static char text[300 * 40];
	size_t n = 0;
	for (int i = 0; i < 300; i++)
		n += (size_t)sprintf(text + n, "x_seconds_bucket{le=\"%d\"} %d\n", i + 1, i);
	struct histogram h = between("x_seconds_bucket{le=\"",
	                             "x_seconds_bucket{name=\"r\"\nle=\"1\"} 3\n");
	ck_assert_uint_eq(h.n, 0);
	h = between("", text);
	ck_assert_uint_eq(h.n, HISTOGRAM_BUCKETS);
}
