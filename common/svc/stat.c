/* stat.c - see stat.h. Every cell is atomic, with relaxed order: a reader may see one counter a
 * moment before another, but never a torn or a lost value. A wrong index is a bug and panics. */
#include "svc/stat.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Upper bounds of the histograms' buckets, durations in microseconds; the last bucket is
 * unbounded. */
#define BOUNDS 18u
static const uint64_t bound_us[BOUNDS] = {100,     250,     500,     1000,     2500,     5000,
                                          10000,   25000,   50000,   100000,   250000,   500000,
                                          1000000, 2500000, 5000000, 10000000, 30000000, 60000000};
static const uint64_t bound_size[BOUNDS] = {1,     2,     5,     10,     20,     50,
                                            100,   200,   500,   1000,   2000,   5000,
                                            10000, 20000, 50000, 100000, 200000, 500000};

struct cell {
	_Atomic uint64_t value;              /* counter, gauge; histogram: sum */
	_Atomic uint64_t bucket[BOUNDS + 1]; /* histogram: observations, not cumulative */
};

struct stat_set {
	const struct stat_def *defs;
	unsigned n;
	struct cell *cells;
};

struct stat_set *stat_new(const struct stat_def *defs, unsigned n)
{
	struct stat_set *s = mem_zalloc(sizeof *s);
	s->defs = defs;
	s->n = n;
	s->cells = mem_array(n ? n : 1, sizeof *s->cells);
	return s;
}

void stat_destroy(struct stat_set **s)
{
	if (!*s)
		return;
	free((*s)->cells);
	free(*s);
	*s = NULL;
}

static struct cell *cell(const struct stat_set *s, unsigned i, enum stat_type type)
{
	if (i >= s->n)
		PANIC("statistic %u does not exist: there are %u", i, s->n);
	if (s->defs[i].type != type)
		PANIC("statistic %s has type %d, used as type %d", s->defs[i].name, (int)s->defs[i].type,
		      (int)type);
	return &s->cells[i];
}

void stat_add(struct stat_set *s, unsigned i, uint64_t n)
{
	int is_sum = i < s->n && s->defs[i].type == STAT_SECONDS_SUM;
	struct cell *c = cell(s, i, is_sum ? STAT_SECONDS_SUM : STAT_COUNTER);
	atomic_fetch_add_explicit(&c->value, n, memory_order_relaxed);
}

void stat_set_value(struct stat_set *s, unsigned i, int64_t v)
{
	atomic_store_explicit(&cell(s, i, STAT_GAUGE)->value, (uint64_t)v, memory_order_relaxed);
}

static void observe(struct cell *c, const uint64_t *bounds, uint64_t v)
{
	unsigned b = 0;
	while (b < BOUNDS && v > bounds[b])
		b++;
	atomic_fetch_add_explicit(&c->value, v, memory_order_relaxed);
	atomic_fetch_add_explicit(&c->bucket[b], 1, memory_order_relaxed);
}

void stat_observe_us(struct stat_set *s, unsigned i, uint64_t us)
{
	observe(cell(s, i, STAT_SECONDS), bound_us, us);
}

void stat_observe(struct stat_set *s, unsigned i, uint64_t n)
{
	observe(cell(s, i, STAT_SIZES), bound_size, n);
}

static int is_histogram(enum stat_type type)
{
	return type == STAT_SECONDS || type == STAT_SIZES;
}

static uint64_t load(const _Atomic uint64_t *v)
{
	return atomic_load_explicit((_Atomic uint64_t *)v, memory_order_relaxed);
}

uint64_t stat_get(const struct stat_set *s, unsigned i)
{
	CHECK(i < s->n);
	const struct cell *c = &s->cells[i];
	if (!is_histogram(s->defs[i].type))
		return load(&c->value);
	uint64_t count = 0;
	for (unsigned b = 0; b <= BOUNDS; b++)
		count += load(&c->bucket[b]);
	return count;
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

static void render_histogram(const char *name, const struct cell *c, enum stat_type type,
                             const char *labels, struct buf *out)
{
	uint64_t count = 0;
	for (unsigned b = 0; b <= BOUNDS; b++) {
		count += load(&c->bucket[b]);
		buf_printf(out, "%s_bucket{%s%sle=\"", name, labels, *labels ? "," : "");
		if (b == BOUNDS)
			buf_adds(out, "+Inf");
		else if (type == STAT_SECONDS)
			buf_printf(out, "%g", (double)bound_us[b] / 1e6);
		else
			buf_add_uint(out, bound_size[b]);
		buf_printf(out, "\"} %llu\n", (unsigned long long)count);
	}
	line_begin(name, "_sum", labels, out);
	if (type == STAT_SECONDS)
		line_seconds(load(&c->value), out);
	else
		buf_printf(out, "%llu\n", (unsigned long long)load(&c->value));
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

void stat_render(const struct stat_set *s, const char *prefix, const char *labels, struct buf *out)
{
	char name[128];
	for (unsigned i = 0; i < s->n; i++) {
		const struct stat_def *d = &s->defs[i];
		uint64_t v = load(&s->cells[i].value);
		snprintf(name, sizeof name, "%s%s", prefix_of(d, prefix), d->name);
		stat_render_head(d, prefix, out);
		if (is_histogram(d->type)) {
			render_histogram(name, &s->cells[i], d->type, labels, out);
			continue;
		}
		line_begin(name, "", labels, out);
		if (d->type == STAT_SECONDS_SUM)
			line_seconds(v, out);
		else if (d->type == STAT_COUNTER)
			buf_printf(out, "%llu\n", (unsigned long long)v);
		else
			buf_printf(out, "%lld\n", (long long)v);
	}
}
