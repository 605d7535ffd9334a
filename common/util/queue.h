/* queue.h - bounded queue of pointers, any number of producers and consumers: how a compute thread
 * and an event loop speak to each other.
 *
 * The queue's descriptor (an eventfd) is readable exactly while items are there or the queue is
 * closed, so that an event loop sleeps in poll and takes with queue_try until NULL. Items are the
 * caller's; a NULL item is a bug. All functions but new and destroy may be called from any
 * thread. */
#ifndef UTIL_QUEUE_H
#define UTIL_QUEUE_H

#include <stddef.h>
#include <stdint.h>

struct queue;

struct queue *queue_new(size_t bound);
/* Nobody may use it any more. Items left inside are not touched: close and drain first if they
 * own something. */
void queue_destroy(struct queue **q);
/* Never waits. 0, ERR_FULL (bound items are there), or ERR_CLOSED; the item stays the caller's
 * unless 0. */
int queue_put(struct queue *q, void *item);
/* Waits for an item, first in first out. NULL once the queue is closed and drained. */
void *queue_take(struct queue *q);
/* As take, at most timeout_us. 0, ERR_TIMEOUT, or ERR_CLOSED (closed and drained). *ret is
 * written only on 0. */
int queue_take_timed(struct queue *q, uint64_t timeout_us, void **ret);
/* Does not wait; NULL when empty. */
void *queue_try(struct queue *q);
/* Readable while items are there or the queue is closed. Owned by the queue: poll it, never read
 * it. */
int queue_fd(const struct queue *q);
/* No further items; wakes all who wait. They drain what is there and then get NULL or
 * ERR_CLOSED. */
void queue_close(struct queue *q);
size_t queue_count(struct queue *q);

#endif
