/* watch.h - ends the process when a step hangs (the device hangs, a rank is stopped).
 *
 * Nothing can be freed while a step is running: it may still write to the pool. So the process
 * exits at once, without cleaning up. Its end is the fence for every peer, the router resubmits its
 * attempts elsewhere, and the service manager restarts it.
 *
 * The schedule thread marks the begin and the end of each step, and the engine's pulse grows with
 * each layer; the loop compares them. Time in which the loop did not run (the process was stopped,
 * the machine was suspended) does not count. */
#ifndef WORKER_WATCH_H
#define WORKER_WATCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

struct worker;

struct watch {
	_Atomic uint64_t begun, ended; /* steps; written by the schedule thread */
	/* the loop's own: */
	uint64_t seen, looked_us;
	/* how long the step has made no progress, as far as the loop has run */
	uint64_t still_us;
};

/* Called by the schedule thread at the begin and the end of each step. Two may be running. */
static inline void watch_begin(struct watch *t)
{
	atomic_fetch_add_explicit(&t->begun, 1, memory_order_relaxed);
}
static inline void watch_end(struct watch *t)
{
	atomic_fetch_add_explicit(&t->ended, 1, memory_order_relaxed);
}
/* Called by the loop about every 50 ms while there are jobs or sequences. Ends the process if a
 * step made no progress for step_timeout_ms. */
void watch_look(struct worker *w);
/* How long the running step has made no progress; 0: it does, or no step is running. */
uint64_t watch_still_us(const struct worker *w);
/* 1: the step hangs for longer than a process that is told to end waits for it. */
int watch_gives_up(const struct worker *w);
/* Joins the schedule thread, which was told to end. Ends the process if its step does not end in
 * time. */
void watch_join(pthread_t thread);

#endif
