/* breaker.h - excludes a worker that keeps failing from placement, and readmits it after a trial.
 *
 *   CLOSED -> OPEN       when, of at least min_requests outcomes within the window, error_pct
 *                        percent or more are the worker's own failures
 *   OPEN -> HALF_OPEN    after open_us: one request at a time is a trial
 *   HALF_OPEN -> CLOSED  when the trial succeeds
 *   HALF_OPEN -> OPEN    when it fails, for twice as long as before, up to BREAKER_OPEN_TIMES_MAX
 *                        times open_us
 *
 * A worker whose process ended without a goodbye restarts HALF_OPEN. From the second such end in a
 * row on (with less than BREAKER_CRASH_WINDOWS windows between them) it restarts OPEN: for open_us,
 * then for twice as long each time, up to the same limit.
 *
 * Only a worker's own failures count: a refused request (400), a full pool, a deadline or a client
 * that left are not reported here. A trial without an outcome (its client left) ends after open_us,
 * and the next one begins. */
#ifndef ROUTER_BREAKER_H
#define ROUTER_BREAKER_H

#include <stdint.h>

#define BREAKER_SLICES 8u /* of the window */
#define BREAKER_OPEN_TIMES_MAX 16u
#define BREAKER_CRASH_WINDOWS 10u /* a worker that runs for this many windows is in no crash loop */

struct breaker_opts {
	uint64_t window_us, open_us;
	unsigned error_pct, min_requests; /* error_pct 0: never opens */
};

enum breaker_state { BREAKER_CLOSED, BREAKER_OPEN, BREAKER_HALF_OPEN };

struct breaker {
	int open;          /* OPEN or HALF_OPEN */
	uint64_t until_us; /* open: HALF_OPEN from then on */
	uint64_t trial_us; /* HALF_OPEN: when the present trial began; 0: none */
	unsigned times;    /* the next OPEN lasts this many open_us */
	unsigned crashes;  /* ends without a goodbye in a row, each soon after the one before */
	struct {
		uint64_t slice; /* time / (window / BREAKER_SLICES) */
		uint32_t good, bad;
	} slices[BREAKER_SLICES];
};

enum breaker_state breaker_state(const struct breaker *b, uint64_t now_us);
const char *breaker_state_name(enum breaker_state s);
/* May a request be placed there now? */
int breaker_takes(const struct breaker *b, const struct breaker_opts *o, uint64_t now_us);
void breaker_placed(struct breaker *b, uint64_t now_us);
/* 1 if it opened or closed. */
int breaker_outcome(struct breaker *b, const struct breaker_opts *o, int good, uint64_t now_us);
/* The worker has restarted after a goodbye: a trial at once. */
void breaker_restart(struct breaker *b, uint64_t now_us);
/* The worker has restarted without a goodbye, after lived_us. */
void breaker_crashed(struct breaker *b, const struct breaker_opts *o, uint64_t lived_us,
                     uint64_t now_us);

#endif
