/* watch.h - sees that a step does not end (a device that hangs, a rank that is stopped), and ends
 * the process then.
 *
 * Nothing can be freed while a step is under way: it may still write the pool. So the process
 * leaves as it is. Its end is the fence for every peer, the router goes on elsewhere, and the
 * service manager restarts it.
 *
 * The schedule thread says when a step begins and ends, the engine's pulse that its layers get
 * done; the loop looks. Time in which the loop itself did not run (a stopped process, a machine
 * that was suspended) does not count. */
#ifndef WORKER_WATCH_H
#define WORKER_WATCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

struct worker;

struct watch {
	uint64_t limit_us;      /* step_timeout_ms; 0: off */
	_Atomic uint64_t turns; /* the schedule thread's: odd while a step is under way */
	/* the loop's */
	uint64_t seen, looked_us;
	/* how long the step has been seen without any progress since `seen` */
	uint64_t still_us;
};

/* The schedule thread: a step begins, or has ended. */
static inline void watch_turn(struct watch *t)
{
	atomic_fetch_add_explicit(&t->turns, 1, memory_order_relaxed);
}
/* The loop, each 50 ms or so while there is work. Does not return if a step has stood still for
 * the limit. */
void watch_look(struct worker *w);
/* How long the present step has made no progress; 0: it does, or there is none. */
uint64_t watch_still_us(const struct worker *w);
/* 1: hanging for longer than a stopping process waits. */
int watch_gives_up(const struct worker *w);
/* The schedule thread has been told to end. Does not return if its step does not end soon. */
void watch_join(pthread_t thread);

#endif
