/* stat.h - counters, gauges and histograms of a daemon, rendered as Prometheus text. Who counts has
 * the numbers in a structure of its own and adds to them in place; the daemon's one table says
 * which metric each of them is. Those that several threads change are _Atomic. */
#ifndef SVC_STAT_H
#define SVC_STAT_H

#include "util/buf.h"

#include <stddef.h>
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

#define STAT_BOUNDS 18u
struct stat_histogram {
	_Atomic uint64_t sum, n[STAT_BOUNDS + 1]; /* n: observations of each bucket, not cumulative */
};
struct stat_seconds {
	struct stat_histogram h;
};
struct stat_sizes {
	struct stat_histogram h;
};

/* A metric, and where its number is in the daemon's structure. */
enum stat_kind { STAT_UINT32, STAT_UINT64, STAT_INT64, STAT_HISTOGRAM };
struct stat_row {
	struct stat_def def;
	struct {
		enum stat_kind kind;
		size_t offset;
	} at;
};
/* field: a uint32_t, uint64_t, int64_t, struct stat_seconds or struct stat_sizes */
#define STAT_ROW(structure, field, type, name, help)         \
	{                                                        \
		{name, help, STAT_##type}, STAT_AT(structure, field) \
	}
/* clang-format off */
#define STAT_AT(structure, field)                             \
	{                                                         \
		.kind = _Generic(((structure *)0)->field,             \
		                 int64_t: STAT_INT64,                 \
		                 uint32_t: STAT_UINT32,               \
		                 uint64_t: STAT_UINT64,               \
		                 struct stat_seconds: STAT_HISTOGRAM, \
		                 struct stat_sizes: STAT_HISTOGRAM),  \
		.offset = offsetof(structure, field)                  \
	}
/* clang-format on */
#define STAT_END    \
	{               \
		.at = { 0 } \
	}

/* Metrics of one name whose samples differ in labels; their owner keeps the values. */
struct stat_family {
	struct stat_def def;
	const char *labels; /* names of the labels, "worker,role" */
};

/* Any thread. */
void stat_observe_us(struct stat_seconds *s, uint64_t us);
void stat_observe(struct stat_sizes *s, uint64_t n);
/* The lines # HELP and # TYPE. prefix: of every name */
void stat_render_head(const struct stat_def *d, const char *prefix, struct buf *out);
/* All of the table, ended by STAT_END, with the numbers in *values. labels: "" or "name=\"x\"" */
void stat_render(const struct stat_row *table, const void *values, const char *prefix,
                 const char *labels, struct buf *out);
/* For --print-metrics, a line each: NAME{LABELS} TYPE: HELP. labels: their names, "name,role" */
void stat_describe(const struct stat_def *d, const char *prefix, const char *labels,
                   struct buf *out);

#endif
