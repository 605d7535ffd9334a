/* textpool.h - threads for work on long texts (parsing, templates, tokenizing), which would block
 * the event loop. */
#ifndef ROUTER_TEXT_H
#define ROUTER_TEXT_H

#include <stdatomic.h>
#include <stddef.h>

struct text_pool;

struct text_job {
	void (*work)(struct text_job *j); /* on a thread of the pool */
	void (*done)(struct text_job *j); /* on the event loop */
	/* its result is not wanted: do not begin it */
	atomic_int skip;
};

/* post(arg, job), from any thread, makes job->done(job) run on the event loop soon. bound: jobs
 * waiting. */
struct text_pool *text_pool_new(unsigned threads, size_t bound,
                                void (*post)(void *arg, struct text_job *j), void *arg);
/* Waits for the jobs at work; jobs still waiting are not begun. Their `done` is posted, but may
 * never run. */
void text_pool_destroy(struct text_pool **p);
int text_pool_put(struct text_pool *p, struct text_job *j); /* 0 or ERR_FULL */
void text_job_skip(struct text_job *j);                     /* `done` is still called */

#endif
