/* events.h - tells each router what this worker's prefix index can be matched for (KV_EVENTS): a
 * whole list when its link comes up, then the changes.
 *
 * What a router knows is described by a cursor in the pool's record of changes (kv_pool_changes).
 * A router whose link was full or down continues from its cursor; if the record does not reach back
 * that far, it gets a whole list again. So memory does not grow with a slow router. At most one
 * message per router and interval. On the loop's thread. */
#ifndef WORKER_EVENTS_H
#define WORKER_EVENTS_H

#include "kv/pool.h"
#include "svc/svc.h"

struct events;

struct events_stats {
	uint64_t changes, lists, overflows;
};

/* interval_us 0: no reports; returns NULL. All functions accept NULL. Counts in *stats. */
struct events *events_new(struct svc *s, struct kv_pool *pool, uint64_t interval_us,
                          struct events_stats *stats);
/* Call before kv_pool_destroy, after the threads that change the pool have ended. */
void events_destroy(struct events **ev);
void events_up(struct events *ev, struct peer *router);
void events_down(struct events *ev, struct peer *router);

#endif
