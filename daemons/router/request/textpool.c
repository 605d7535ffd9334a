/* textpool.c - see textpool.h. A job belongs to exactly one side at a time: to its owner before
 * put, to the queue or a thread until its `done` was posted. */
#include "textpool.h"
#include "util/check.h"
#include "util/err.h"
#include "util/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct text_pool {
	void (*post)(void *arg, struct text_job *j);
	void *arg;
	size_t bound;
	unsigned share; /* threads of one caller while others wait */
	struct {        /* under the lock */
		struct fair_queue queue;
		int ends;
	} shared;
	pthread_mutex_t lock;
	pthread_cond_t more;
	unsigned n;
	pthread_t threads[];
};

/* The caller whose turn it is, unless it has its share; if all have theirs, the first. NULL: no job
 * waits. */
static struct text_caller *next_caller(const struct text_pool *p)
{
	const struct list *all = &p->shared.queue.owners;
	if (list_empty(all))
		return NULL;
	list_each(n, all) {
		struct text_caller *c = list_entry(n, struct text_caller, turns.node);
		if (c->at_work < p->share)
			return c;
	}
	return list_entry(all->next, struct text_caller, turns.node);
}

static void *thread_main(void *arg)
{
	struct text_pool *p = arg;
	struct text_caller *c;
	pthread_setname_np(pthread_self(), "text");
	pthread_mutex_lock(&p->lock);
	for (;;) {
		while (!(c = next_caller(p)) && !p->shared.ends)
			pthread_cond_wait(&p->more, &p->lock);
		if (!c)
			break;
		struct text_job *j = list_entry(fair_first(&c->turns), struct text_job, turn);
		int begins = !p->shared.ends && !atomic_load(&j->skip);
		fair_take(&p->shared.queue, &j->turn);
		c->at_work++;
		pthread_mutex_unlock(&p->lock);
		if (begins)
			j->work(j);
		pthread_mutex_lock(&p->lock);
		c->at_work--;
		if (j->more)
			fair_charge(&p->shared.queue, &c->turns, j->more);
		pthread_mutex_unlock(&p->lock);
		p->post(p->arg, j); /* then the loop may free the job and its caller */
		pthread_mutex_lock(&p->lock);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

struct text_pool *text_pool_new(unsigned threads, size_t bound,
                                void (*post)(void *arg, struct text_job *j), void *arg)
{
	struct text_pool *p = mem_zalloc(sizeof *p + threads * sizeof *p->threads);
	fair_init(&p->shared.queue);
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->more, NULL);
	p->bound = bound;
	p->share = threads > 1 ? threads / 2 : 1;
	p->post = post;
	p->arg = arg;
	for (; p->n < threads; p->n++) {
		int r = pthread_create(&p->threads[p->n], NULL, thread_main, p);
		if (r)
			check_fatal(
				"cannot start a text thread: %s; raise the limit on tasks or lower text_threads",
				strerror(r));
	}
	return p;
}

void text_pool_destroy(struct text_pool **pp)
{
	struct text_pool *p = *pp;
	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->shared.ends = 1;
	pthread_cond_broadcast(&p->more);
	pthread_mutex_unlock(&p->lock);
	for (unsigned i = 0; i < p->n; i++)
		pthread_join(p->threads[i], NULL);
	pthread_cond_destroy(&p->more);
	pthread_mutex_destroy(&p->lock);
	free(p);
	*pp = NULL;
}

void text_caller_init(struct text_caller *c)
{
	fair_owner_init(&c->turns);
	c->at_work = 0;
}

int text_pool_put(struct text_pool *p, struct text_caller *c, struct text_job *j, size_t bytes)
{
	fair_item_init(&j->turn);
	pthread_mutex_lock(&p->lock);
	int fits = fair_share(c->turns.n, p->bound - p->shared.queue.n);
	if (fits)
		fair_put(&p->shared.queue, &c->turns, &j->turn, bytes + 1);
	pthread_cond_signal(&p->more);
	pthread_mutex_unlock(&p->lock);
	return fits ? 0 : ERR_FULL;
}

void text_job_skip(struct text_job *j)
{
	atomic_store(&j->skip, 1);
}
