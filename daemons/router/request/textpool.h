/* textpool.h - the pool of threads for work on long texts, so that it never runs on the event loop:
 * parsing, templates, tokenising. */
#ifndef ROUTER_TEXT_H
#define ROUTER_TEXT_H

#include <stdatomic.h>
#include <stddef.h>

struct text_pool;

struct text_job {
	void (*work)(struct text_job *j); /* on a thread of the pool */
	void (*done)(struct text_job *j); /* on the event loop */
	/* nobody wants its result: if it has not begun, it does not */
	atomic_int skip;
};

/* post(arg, job), from any thread, makes job->done(job) run on the event loop soon. bound: jobs
 * waiting. */
struct text_pool *text_pool_new(unsigned threads, size_t bound,
                                void (*post)(void *arg, struct text_job *j), void *arg);
/* Waits for the jobs at work; those waiting are not worked on any more. Their `done` is posted, but
 * may never run. */
void text_pool_destroy(struct text_pool **p);
int text_pool_put(struct text_pool *p, struct text_job *j); /* 0 or ERR_FULL */
void text_job_skip(struct text_job *j);                     /* its `done` runs all the same */

#endif
