/* textpool.c - see textpool.h. A job belongs to exactly one side at a time: to its owner before
 * put, to a thread until its `done` was posted. */
#include "textpool.h"
#include "util/check.h"
#include "util/mem.h"
#include "util/queue.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct text_pool {
	struct queue *jobs;
	void (*post)(void *arg, struct text_job *j);
	void *arg;
	atomic_int ends;
	unsigned n;
	pthread_t threads[];
};

static void *thread_main(void *arg)
{
	struct text_pool *p = arg;
	struct text_job *j;
	pthread_setname_np(pthread_self(), "text");
	while ((j = queue_take(p->jobs))) {
		if (!atomic_load(&j->skip) && !atomic_load(&p->ends))
			j->work(j);
		p->post(p->arg, j);
	}
	return NULL;
}

struct text_pool *text_pool_new(unsigned threads, size_t bound,
                                void (*post)(void *arg, struct text_job *j), void *arg)
{
	struct text_pool *p = mem_zalloc(sizeof *p + threads * sizeof *p->threads);
	p->jobs = queue_new(bound);
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
	atomic_store(&p->ends, 1);
	queue_close(p->jobs);
	for (unsigned i = 0; i < p->n; i++)
		pthread_join(p->threads[i], NULL);
	queue_destroy(&p->jobs);
	free(p);
	*pp = NULL;
}

int text_pool_put(struct text_pool *p, struct text_job *j)
{
	return queue_put(p->jobs, j);
}

void text_job_skip(struct text_job *j)
{
	atomic_store(&j->skip, 1);
}
