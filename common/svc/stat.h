/* stat.h - counters, gauges and histograms of a daemon, rendered as Prometheus text. Each daemon
 * defines its statistics in one table. Thread-safe. */
#ifndef SVC_STAT_H
#define SVC_STAT_H

#include "util/buf.h"

#include <stdint.h>

enum stat_type {
	STAT_COUNTER,
	STAT_GAUGE,
	STAT_SECONDS,    /* histogram of durations */
	STAT_SECONDS_SUM /* counter, counted in microseconds and shown in seconds */
};

struct stat_def {
	const char *name, *help; /* name: in base units; of counters it ends in _total */
	enum stat_type type;
};

struct stat_set;
/* defs must outlive the set; the index in defs identifies a statistic */
struct stat_set *stat_new(const struct stat_def *defs, unsigned n);
void stat_destroy(struct stat_set **s);
void stat_add(struct stat_set *s, unsigned i, uint64_t n);         /* counters */
void stat_set_value(struct stat_set *s, unsigned i, int64_t v);    /* gauges */
void stat_observe_us(struct stat_set *s, unsigned i, uint64_t us); /* histograms */
/* value of a counter or gauge; number of observations of a histogram */
uint64_t stat_get(const struct stat_set *s, unsigned i);
/* prefix: of every name; labels: "" or "name=\"x\"" */
void stat_render(const struct stat_set *s, const char *prefix, const char *labels, struct buf *out);

#endif
