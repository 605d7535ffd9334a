/* queue.h - bounded queue of pointers for any number of producers and consumers. It does not own
 * the items; a NULL item is a bug. All functions except new and destroy may be called from any
 * thread. */
#ifndef UTIL_QUEUE_H
#define UTIL_QUEUE_H

#include <stddef.h>
#include <stdint.h>

struct queue;

struct queue *queue_new(size_t bound);
/* No other thread may use the queue any more. Items left inside are not freed: close and drain the
 * queue first if they own something. */
void queue_destroy(struct queue **q);
/* Never waits. 0, ERR_FULL (the queue has `bound` items) or ERR_CLOSED; on an error the item stays
 * the caller's. */
int queue_put(struct queue *q, void *item);
/* Waits for the oldest item. NULL once the queue is closed and drained. */
void *queue_take(struct queue *q);
/* Refuses further items and wakes all waiting threads. Consumers still get the remaining items,
 * then NULL. */
void queue_close(struct queue *q);

#endif
