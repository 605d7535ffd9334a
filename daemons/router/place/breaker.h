/* breaker.h - takes a worker that keeps failing out of the choice, and lets it back in after a
 * trial.
 *
 *   CLOSED -> OPEN       when, of at least min_requests outcomes within the window, error_pct
 *                        percent or more are the worker's own failures
 *   OPEN -> HALF_OPEN    after open_us: one request at a time is a trial
 *   HALF_OPEN -> CLOSED  by its success; -> OPEN by its failure, for twice as long as before, up to
 *                        BREAKER_OPEN_TIMES_MAX times open_us
 *
 * A worker whose process ended without a goodbye begins its next life HALF_OPEN. From the second
 * such end in a row on (the life between them was shorter than BREAKER_CRASH_WINDOWS windows) the
 * next life begins OPEN: for open_us, then for twice as long each time, up to the same bound.
 *
 * Only what a worker did wrong is an outcome: a refused request (400), a full pool, a deadline, a
 * client that left, never reach it. A trial whose outcome never comes (its client left) ends
 * after open_us, and the next one begins. */
#ifndef ROUTER_BREAKER_H
#define ROUTER_BREAKER_H

#include <stdint.h>

#define BREAKER_SLICES 8u /* of the window */
#define BREAKER_OPEN_TIMES_MAX 16u
#define BREAKER_CRASH_WINDOWS 10u /* a life of this many windows ends a crash loop */

struct breaker_opts {
	uint64_t window_us, open_us;
	unsigned error_pct, min_requests; /* error_pct 0: never opens */
};

enum breaker_state { BREAKER_CLOSED, BREAKER_OPEN, BREAKER_HALF_OPEN };

struct breaker {
	int open;          /* opened and not closed since */
	uint64_t until_us; /* open: half open from then on */
	uint64_t trial_us; /* half open: when the present trial began; 0: none */
	unsigned times;    /* of open_us, that it stays open next time */
	unsigned crashes;  /* lives in a row that ended without a goodbye, and soon */
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
/* 1 when it opened or closed by this. */
int breaker_outcome(struct breaker *b, const struct breaker_opts *o, int good, uint64_t now_us);
/* A new life of the worker, which ended the one before in order: a trial at once. */
void breaker_restart(struct breaker *b, uint64_t now_us);
/* A new life of the worker; the one before lasted lived_us and ended without a goodbye. */
void breaker_crashed(struct breaker *b, const struct breaker_opts *o, uint64_t lived_us,
                     uint64_t now_us);

#endif
