/* fair.h - items of several owners that wait for the same thing: a queue for each owner, first in,
 * first out, and the owners in turn, by the cost of what each has got (start-time fair queueing).
 *
 * An owner's turn is a number that grows by the cost of each item that it gets; the lowest is next.
 * One that had nothing waiting is next at once: what it did not use is not saved up for it. To
 * serve owners unequally, divide the costs of each by its weight. The memory is the caller's. One
 * thread, or under the caller's lock. */
#ifndef UTIL_FAIR_H
#define UTIL_FAIR_H

#include "util/list.h"

#include <stddef.h>
#include <stdint.h>

struct fair_queue {
	struct list owners; /* that have items, the next first */
	uint64_t
		now; /* the turn of the item served last, before it was charged; or the lowest that waits */
	size_t n; /* items */
};

struct fair_owner {
	struct list node;  /* fair_queue.owners, while it has items */
	struct list items; /* the next first */
	uint64_t turn;
	size_t n; /* items */
};

struct fair_item {
	struct list node; /* fair_owner.items, while it waits */
	struct fair_owner *owner;
	uint64_t cost;
};

void fair_init(struct fair_queue *q);
void fair_owner_init(struct fair_owner *o);
void fair_item_init(struct fair_item *i);
void fair_put(struct fair_queue *q, struct fair_owner *o, struct fair_item *i, uint64_t cost);
/* The item gets what it waits for: its owner is charged. */
void fair_take(struct fair_queue *q, struct fair_item *i);
/* It leaves without. */
void fair_drop(struct fair_queue *q, struct fair_item *i);
/* Charges an owner for something that did not have to wait. */
void fair_charge(struct fair_queue *q, struct fair_owner *o, uint64_t cost);
static inline int fair_waits(const struct fair_item *i)
{
	return !list_empty(&i->node);
}
/* the next item of an owner that has any */
static inline struct fair_item *fair_first(const struct fair_owner *o)
{
	return list_entry(o->items.next, struct fair_item, node);
}
/* May an owner that has `n` of some bounded places get one more, with `free` left for all? One
 * owner gets at most seven eighths of them, k greedy owners 7/(7k+1) each: some are left for the
 * next one. */
static inline int fair_share(size_t n, size_t free)
{
	return free && n <= 7 * free;
}

#endif
