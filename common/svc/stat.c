/* stat.c - see stat.h. Numbers are read and buckets changed with relaxed order: a reader may see
 * one a moment before another, but never a torn or a lost value. */
#include "svc/stat.h"
#include "util/check.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* Upper bounds of the histograms' buckets, durations in microseconds; the last bucket is
 * unbounded. */
static const uint64_t bound_us[STAT_BOUNDS] = {100,      250,      500,     1000,    2500,
                                               5000,     10000,    25000,   50000,   100000,
                                               250000,   500000,   1000000, 2500000, 5000000,
                                               10000000, 30000000, 60000000};
static const uint64_t bound_size[STAT_BOUNDS] = {1,     2,     5,     10,     20,     50,
                                                 100,   200,   500,   1000,   2000,   5000,
                                                 10000, 20000, 50000, 100000, 200000, 500000};

static void observe(struct stat_histogram *h, const uint64_t *bounds, uint64_t v)
{
	unsigned b = 0;
	while (b < STAT_BOUNDS && v > bounds[b])
		b++;
	atomic_fetch_add_explicit(&h->sum, v, memory_order_relaxed);
	atomic_fetch_add_explicit(&h->n[b], 1, memory_order_relaxed);
}

void stat_observe_us(struct stat_seconds *s, uint64_t us)
{
	observe(&s->h, bound_us, us);
}

void stat_observe(struct stat_sizes *s, uint64_t n)
{
	observe(&s->h, bound_size, n);
}

/* Of a counter or gauge, atomic or not. */
static uint64_t load(const struct stat_row *r, const void *at)
{
	switch (r->at.kind) {
	case STAT_UINT32: return __atomic_load_n((const uint32_t *)at, __ATOMIC_RELAXED);
	case STAT_UINT64:
	case STAT_INT64: return __atomic_load_n((const uint64_t *)at, __ATOMIC_RELAXED);
	case STAT_HISTOGRAM: break;
	}
	PANIC("metric %s has type %d, and its number is a histogram", r->def.name, (int)r->def.type);
}

/* NAMEENDING{LABELS} VALUE */
static void line_begin(const char *name, const char *ending, const char *labels, struct buf *out)
{
	buf_printf(out, "%s%s%s%s%s ", name, ending, *labels ? "{" : "", labels, *labels ? "}" : "");
}

static void line_seconds(uint64_t us, struct buf *out)
{
	buf_printf(out, "%llu.%06llu\n", (unsigned long long)(us / 1000000),
	           (unsigned long long)(us % 1000000));
}

static void render_histogram(const char *name, const struct stat_histogram *h, enum stat_type type,
                             const char *labels, struct buf *out)
{
	uint64_t count = 0, sum = atomic_load_explicit(&h->sum, memory_order_relaxed);
	for (unsigned b = 0; b <= STAT_BOUNDS; b++) {
		count += atomic_load_explicit(&h->n[b], memory_order_relaxed);
		buf_printf(out, "%s_bucket{%s%sle=\"", name, labels, *labels ? "," : "");
		if (b == STAT_BOUNDS)
			buf_adds(out, "+Inf");
		else if (type == STAT_SECONDS)
			buf_printf(out, "%g", (double)bound_us[b] / 1e6);
		else
			buf_add_uint(out, bound_size[b]);
		buf_printf(out, "\"} %llu\n", (unsigned long long)count);
	}
	line_begin(name, "_sum", labels, out);
	if (type == STAT_SECONDS)
		line_seconds(sum, out);
	else
		buf_printf(out, "%llu\n", (unsigned long long)sum);
	line_begin(name, "_count", labels, out);
	buf_printf(out, "%llu\n", (unsigned long long)count);
}

static const char *const type_names[] = {"counter", "gauge", "histogram", "counter", "histogram"};

/* A name with a colon is another server's, whole. */
static const char *prefix_of(const struct stat_def *d, const char *prefix)
{
	return strchr(d->name, ':') ? "" : prefix;
}

void stat_render_head(const struct stat_def *d, const char *prefix, struct buf *out)
{
	prefix = prefix_of(d, prefix);
	buf_printf(out, "# HELP %s%s %s\n# TYPE %s%s %s\n", prefix, d->name, d->help, prefix, d->name,
	           type_names[d->type]);
}

void stat_describe(const struct stat_def *d, const char *prefix, const char *labels,
                   struct buf *out)
{
	buf_printf(out, "%s%s{%s} %s: %s\n", prefix_of(d, prefix), d->name, labels, type_names[d->type],
	           d->help);
}

void stat_render(const struct stat_row *table, const void *values, const char *prefix,
                 const char *labels, struct buf *out)
{
	char name[128];
	for (const struct stat_row *r = table; r->def.name; r++) {
		const struct stat_def *d = &r->def;
		const void *at = (const char *)values + r->at.offset;
		snprintf(name, sizeof name, "%s%s", prefix_of(d, prefix), d->name);
		stat_render_head(d, prefix, out);
		if (d->type == STAT_SECONDS || d->type == STAT_SIZES) {
			CHECK(r->at.kind == STAT_HISTOGRAM);
			render_histogram(name, at, d->type, labels, out);
			continue;
		}
		uint64_t v = load(r, at);
		line_begin(name, "", labels, out);
		if (d->type == STAT_SECONDS_SUM)
			line_seconds(v, out);
		else if (d->type == STAT_COUNTER)
			buf_printf(out, "%llu\n", (unsigned long long)v);
		else
			buf_printf(out, "%lld\n", (long long)v);
	}
}
