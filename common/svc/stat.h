/* stat.h - counters, gauges and histograms of a daemon, rendered as Prometheus text. Each daemon
 * defines its statistics in one table. Thread-safe. */
#ifndef SVC_STAT_H
#define SVC_STAT_H

#include "util/buf.h"

#include <stdint.h>

enum stat_type {
	STAT_COUNTER,
	STAT_GAUGE,
	STAT_SECONDS,     /* histogram of durations */
	STAT_SECONDS_SUM, /* counter, counted in microseconds and shown in seconds */
	STAT_SIZES        /* histogram of numbers, as of tokens */
};

struct stat_def {
	/* name: in base units; of counters it ends in _total. One with a colon is another server's, and
	 * has no prefix */
	const char *name, *help;
	enum stat_type type;
};

/* Metrics of one name whose samples differ in labels; their owner keeps the values. */
struct stat_family {
	struct stat_def def;
	const char *labels; /* names of the labels, "worker,role" */
};

struct stat_set;
/* defs must outlive the set; the index in defs identifies a statistic */
struct stat_set *stat_new(const struct stat_def *defs, unsigned n);
void stat_destroy(struct stat_set **s);
void stat_add(struct stat_set *s, unsigned i, uint64_t n);         /* counters */
void stat_set_value(struct stat_set *s, unsigned i, int64_t v);    /* gauges */
void stat_observe_us(struct stat_set *s, unsigned i, uint64_t us); /* STAT_SECONDS */
void stat_observe(struct stat_set *s, unsigned i, uint64_t n);     /* STAT_SIZES */
/* value of a counter or gauge; number of observations of a histogram */
uint64_t stat_get(const struct stat_set *s, unsigned i);
/* The lines # HELP and # TYPE. prefix: of every name */
void stat_render_head(const struct stat_def *d, const char *prefix, struct buf *out);
/* labels: "" or "name=\"x\"" */
void stat_render(const struct stat_set *s, const char *prefix, const char *labels, struct buf *out);
/* For --print-metrics, a line each: NAME{LABELS} TYPE: HELP. labels: their names, "name,role" */
void stat_describe(const struct stat_def *d, const char *prefix, const char *labels,
                   struct buf *out);

#endif
