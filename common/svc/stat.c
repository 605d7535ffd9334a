/* stat.c - see stat.h. Every cell is atomic, with relaxed order: a reader may see one counter a
 * moment before another, but never a torn or a lost value. A wrong index is a bug and panics. */
#include "svc/stat.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* Upper bounds of the histogram's buckets; the last bucket is unbounded. */
static const uint64_t bound_us[] = {100,     250,     500,     1000,     2500,     5000,
                                    10000,   25000,   50000,   100000,   250000,   500000,
                                    1000000, 2500000, 5000000, 10000000, 30000000, 60000000};
static const char *const bound_text[] = {"0.0001", "0.00025", "0.0005", "0.001", "0.0025", "0.005",
                                         "0.01",   "0.025",   "0.05",   "0.1",   "0.25",   "0.5",
                                         "1",      "2.5",     "5",      "10",    "30",     "60"};
#define BOUNDS (sizeof bound_us / sizeof *bound_us)

struct cell {
	_Atomic uint64_t value;              /* counter, gauge; histogram: sum in microseconds */
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

void stat_observe_us(struct stat_set *s, unsigned i, uint64_t us)
{
	struct cell *c = cell(s, i, STAT_SECONDS);
	unsigned b = 0;
	while (b < BOUNDS && us > bound_us[b])
		b++;
	atomic_fetch_add_explicit(&c->value, us, memory_order_relaxed);
	atomic_fetch_add_explicit(&c->bucket[b], 1, memory_order_relaxed);
}

static uint64_t load(const _Atomic uint64_t *v)
{
	return atomic_load_explicit((_Atomic uint64_t *)v, memory_order_relaxed);
}

uint64_t stat_get(const struct stat_set *s, unsigned i)
{
	CHECK(i < s->n);
	const struct cell *c = &s->cells[i];
	if (s->defs[i].type != STAT_SECONDS)
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

static void render_histogram(const char *name, const struct cell *c, const char *labels,
                             struct buf *out)
{
	uint64_t count = 0;
	for (unsigned b = 0; b <= BOUNDS; b++) {
		count += load(&c->bucket[b]);
		buf_printf(out, "%s_bucket{%s%sle=\"%s\"} %llu\n", name, labels, *labels ? "," : "",
		           b < BOUNDS ? bound_text[b] : "+Inf", (unsigned long long)count);
	}
	line_begin(name, "_sum", labels, out);
	line_seconds(load(&c->value), out);
	line_begin(name, "_count", labels, out);
	buf_printf(out, "%llu\n", (unsigned long long)count);
}

void stat_render(const struct stat_set *s, const char *prefix, const char *labels, struct buf *out)
{
	static const char *const types[] = {"counter", "gauge", "histogram", "counter"};
	char name[128];
	for (unsigned i = 0; i < s->n; i++) {
		const struct stat_def *d = &s->defs[i];
		uint64_t v = load(&s->cells[i].value);
		snprintf(name, sizeof name, "%s%s", prefix, d->name);
		buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, d->help, name, types[d->type]);
		if (d->type == STAT_SECONDS) {
			render_histogram(name, &s->cells[i], labels, out);
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
