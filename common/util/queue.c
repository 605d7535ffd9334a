/* queue.c - a ring of pointers under one mutex, with a condition variable. */
#include "util/queue.h"
#include "util/check.h"
#include "util/err.h"
#include "util/mem.h"

#include <pthread.h>
#include <stdlib.h>

struct queue {
	pthread_mutex_t lock;
	pthread_cond_t more;
	int closed;
	size_t bound, head, count;
	void **item; /* (bound), a ring whose first item is at head */
};

struct queue *queue_new(size_t bound)
{
	CHECK(bound > 0);
	struct queue *q = mem_zalloc(sizeof *q);
	q->bound = bound;
	q->item = mem_array(bound, sizeof *q->item);
	pthread_mutex_init(&q->lock, NULL);
	pthread_cond_init(&q->more, NULL);
	return q;
}

void queue_destroy(struct queue **qp)
{
	struct queue *q = *qp;
	if (!q)
		return;
	pthread_cond_destroy(&q->more);
	pthread_mutex_destroy(&q->lock);
	free(q->item);
	free(q);
	*qp = NULL;
}

int queue_put(struct queue *q, void *item)
{
	CHECK(item);
	pthread_mutex_lock(&q->lock);
	int r = q->closed ? ERR_CLOSED : q->count == q->bound ? ERR_FULL : 0;
	if (r == 0) {
		q->item[(q->head + q->count++) % q->bound] = item;
		pthread_cond_signal(&q->more);
	}
	pthread_mutex_unlock(&q->lock);
	return r;
}

void *queue_take(struct queue *q)
{
	pthread_mutex_lock(&q->lock);
	while (!q->count && !q->closed)
		pthread_cond_wait(&q->more, &q->lock);
	void *item = q->count ? q->item[q->head] : NULL;
	if (item) {
		q->head = (q->head + 1) % q->bound;
		q->count--;
	}
	pthread_mutex_unlock(&q->lock);
	return item;
}

void queue_close(struct queue *q)
{
	pthread_mutex_lock(&q->lock);
	q->closed = 1;
	pthread_cond_broadcast(&q->more);
	pthread_mutex_unlock(&q->lock);
}
