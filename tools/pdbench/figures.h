/* figures.h - the measurements: one record per request, all gaps between tokens, errors, a
 * timeline; and the figures computed from them.
 *
 * Percentiles of TTFT, TPOT and E2E are exact (nearest rank: a value that was observed). Gaps are
 * counted in a histogram; their percentiles are within 0.2 % of an observed value. */
#ifndef PDBENCH_FIGURES_H
#define PDBENCH_FIGURES_H

#include "options.h"

#define ERRORS_MAX 32
#define TIMELINE_SLOTS 600

/* --- gaps --- */

#define HIST_SUB_BITS 8
#define HIST_BUCKETS ((65 - HIST_SUB_BITS) << HIST_SUB_BITS)

struct hist {
	uint64_t *count; /* [HIST_BUCKETS] */
	uint64_t n, max;
	double sum;
};

void hist_init(struct hist *h);
void hist_fini(struct hist *h);
void hist_add(struct hist *h, uint64_t v);
double hist_percentile(const struct hist *h, double p);
double hist_mean(const struct hist *h);
/* The values of bucket i: [low, low + width). */
uint64_t hist_low(unsigned i);
uint64_t hist_width(unsigned i);

/* --- requests --- */

/* LEFT: aborted by the client (--abort); CUT: the run was interrupted */
enum outcome { OUTCOME_OK, OUTCOME_FAILED, OUTCOME_LEFT, OUTCOME_CUT };

struct bench_record {
	/* since the run began; 0: did not happen (except due_us) */
	uint64_t due_us, sent_us, first_us, last_us, end_us;
	uint64_t number, conversation;
	uint32_t round;
	uint32_t input_tokens, max_tokens, output_tokens;
	uint32_t cached_tokens, prompt_tokens; /* as reported by the server */
	uint64_t longest_gap_us;
	int16_t status;
	int16_t error; /* index into errors; -1: none */
	uint8_t outcome, measured;
};

struct error_kind {
	int status;
	char text[160];
	uint64_t count;
};

/* Counts and sums per time slot. When all slots are used, pairs of slots are merged. */
struct timeline {
	uint64_t slot_us;
	unsigned n; /* slots in use */
	struct slot {
		uint64_t tokens, arrived, done;
		double in_flight, waiting; /* sums over samples */
		unsigned samples;
	} slots[TIMELINE_SLOTS];
};

void timeline_init(struct timeline *t);
struct slot *timeline_at(struct timeline *t, uint64_t since_us);

struct result {
	struct bench_record *records;
	size_t n, size;
	struct hist gaps;
	struct error_kind errors[ERRORS_MAX + 1]; /* the last element: all others */
	unsigned n_errors;
	struct timeline timeline;
	uint64_t began_unix_us;
	uint64_t window_begin_us, window_end_us; /* the measured part of the run */
	/* when the last request under full load was sent */
	uint64_t full_end_us;
	/* input: of requests whose first token arrived in the window */
	uint64_t window_tokens, window_input, full_tokens;
	uint64_t events, tokens;
	uint64_t skipped, clipped, cut_conversations;
	uint64_t cpu_us, wall_us, connections;
	unsigned in_flight_most;
	int interrupted;
};

void result_init(struct result *r);
void result_fini(struct result *r);
struct bench_record *result_record(struct result *r);             /* valid until the next call */
int result_error(struct result *r, int status, const char *text); /* returns the error's index */

/* --- figures --- */

struct bench_summary {
	size_t n;
	double mean, p50, p90, p95, p99, max; /* ms; NAN if n is 0 */
};

struct figures {
	uint64_t requests, ok, failed, left, cut; /* measured requests only */
	uint64_t warmup_requests, warmup_failed;
	double window_s, request_rate, token_rate, total_token_rate, full_token_rate;
	double input_mean, output_mean, cached_percent;
	struct bench_summary ttft, itl, tpot, e2e, late;
	uint64_t good;
	double goodput_rate, goodput_percent;
	double cpu_us_per_token, cpu_percent, tokens_per_event;
	/* percent of the gaps that are 0: events read together */
	double together_percent;
};

void figures_make(const struct result *r, const struct bench_options *o, struct figures *ret);
int figures_is_good(const struct bench_record *r, const struct slo *slo);
double record_ttft_ms(const struct bench_record *r); /* NAN: no token arrived */
double record_tpot_ms(const struct bench_record *r); /* NAN: fewer than two tokens */
double record_e2e_ms(const struct bench_record *r);
/* Sorts v. Percentiles use the nearest rank, p from 0 to 100. */
void summary_make(double *v, size_t n, struct bench_summary *ret);
double percentile_sorted(const double *v, size_t n, double p);

/* Calls fn for each figure by name, in a fixed order, for RESULT lines and JSON. Figures without a
 * value are omitted. */
void figures_visit(const struct figures *f, int has_slo,
                   void (*fn)(void *arg, const char *name, double value, int digits), void *arg);

#endif
