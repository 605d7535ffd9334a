/* events.h - tells each router what this worker's prefix index can be matched for (KV_EVENTS): a
 * whole list when its link comes up, then the changes.
 *
 * A router's state at any time is the pool's record of changes (kv_pool_changes) and a cursor in
 * it: what a full link, or a router that was away, could not take is taken up later, and when the
 * record does not reach back so far a new list begins. So nothing here grows with the time that
 * a router is slow. At most one message per router and interval. On the loop's thread. */
#ifndef WORKER_EVENTS_H
#define WORKER_EVENTS_H

#include "kv/pool.h"
#include "svc/svc.h"

struct events;

struct events_stats {
	unsigned changes, lists, overflows; /* indices in the daemon's stat table */
};

/* interval_us 0: nobody is told anything, and NULL is returned; all functions take NULL. */
struct events *events_new(struct svc *s, struct kv_pool *pool, uint64_t interval_us,
                          const struct events_stats *stats);
/* before the pool; threads that change the pool have ended */
void events_destroy(struct events **ev);
void events_up(struct events *ev, struct peer *router);
void events_down(struct events *ev, struct peer *router);

#endif
