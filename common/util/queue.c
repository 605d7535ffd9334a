/* queue.c - a ring of pointers under one mutex, with a condition variable for threads and an
 * eventfd for event loops.
 *
 * Invariant while the mutex is free: the eventfd's count is 1 if the queue has items or is closed,
 * else 0. The count is changed only where that condition changes, under the mutex, so no wake-up is
 * lost and a drained queue is not readable. Producers and consumers wait for each other only for
 * the mutex. A failure to create the eventfd is fatal. */
#include "util/queue.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/err.h"
#include "util/mem.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

struct queue {
	pthread_mutex_t lock;
	pthread_cond_t more;
	int fd, closed;
	size_t bound, head, count;
	void **item; /* (bound), a ring whose first item is at head */
};

struct queue *queue_new(size_t bound)
{
	CHECK(bound > 0);
	struct queue *q = mem_zalloc(sizeof *q);
	q->bound = bound;
	q->item = mem_array(bound, sizeof *q->item);
	q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (q->fd < 0)
		check_fatal("cannot create an eventfd: %s; raise the limit on open files (LimitNOFILE)",
		            strerror(errno));
	pthread_mutex_init(&q->lock, NULL);
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	CHECK(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0);
	pthread_cond_init(&q->more, &attr);
	pthread_condattr_destroy(&attr);
	return q;
}

void queue_destroy(struct queue **qp)
{
	struct queue *q = *qp;
	if (!q)
		return;
	pthread_cond_destroy(&q->more);
	pthread_mutex_destroy(&q->lock);
	close(q->fd);
	free(q->item);
	free(q);
	*qp = NULL;
}

static void fd_raise(struct queue *q)
{
	CHECK(eventfd_write(q->fd, 1) == 0);
}

static void fd_clear(struct queue *q)
{
	eventfd_t v;
	CHECK(eventfd_read(q->fd, &v) == 0);
}

int queue_put(struct queue *q, void *item)
{
	CHECK(item);
	pthread_mutex_lock(&q->lock);
	int r = q->closed ? ERR_CLOSED : q->count == q->bound ? ERR_FULL : 0;
	if (r == 0) {
		q->item[(q->head + q->count) % q->bound] = item;
		if (q->count++ == 0)
			fd_raise(q);
		pthread_cond_signal(&q->more);
	}
	pthread_mutex_unlock(&q->lock);
	return r;
}

/* The caller holds the lock. NULL if the queue is empty. */
static void *pop(struct queue *q)
{
	if (!q->count)
		return NULL;
	void *item = q->item[q->head];
	q->head = (q->head + 1) % q->bound;
	if (--q->count == 0 && !q->closed)
		fd_clear(q);
	return item;
}

void *queue_try(struct queue *q)
{
	pthread_mutex_lock(&q->lock);
	void *item = pop(q);
	pthread_mutex_unlock(&q->lock);
	return item;
}

void *queue_take(struct queue *q)
{
	pthread_mutex_lock(&q->lock);
	while (!q->count && !q->closed)
		pthread_cond_wait(&q->more, &q->lock);
	void *item = pop(q);
	pthread_mutex_unlock(&q->lock);
	return item;
}

int queue_fd(const struct queue *q)
{
	return q->fd;
}

void queue_close(struct queue *q)
{
	pthread_mutex_lock(&q->lock);
	if (!q->closed) {
		q->closed = 1;
		if (!q->count)
			fd_raise(q);
		pthread_cond_broadcast(&q->more);
	}
	pthread_mutex_unlock(&q->lock);
}
