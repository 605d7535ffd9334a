/* textpool.h - threads for work on long texts (parsing, templates, tokenizing, compiling forms),
 * which would block the event loop. Callers are served in turn, by bytes; while others wait, none
 * has more than half of the threads. */
#ifndef ROUTER_TEXT_H
#define ROUTER_TEXT_H

#include "util/fair.h"

#include <stdatomic.h>
#include <stddef.h>

struct text_pool;

/* A caller, whose jobs share a turn. It outlives its jobs and is under the pool's lock. */
struct text_caller {
	struct fair_owner turns; /* first */
	unsigned at_work;        /* threads */
};

struct text_job {
	struct fair_item turn;            /* first; the pool's until a thread has it */
	void (*work)(struct text_job *j); /* on a thread of the pool */
	void (*done)(struct text_job *j); /* on the event loop */
	/* set by `work`: bytes of work beyond those of text_pool_put, charged to the caller's turns */
	size_t more;
	/* the result is not needed: a job that has not begun is skipped */
	atomic_int skip;
};

void text_caller_init(struct text_caller *c);
/* post(arg, job), from any thread, makes job->done(job) run on the event loop soon. bound: jobs
 * waiting. */
struct text_pool *text_pool_new(unsigned threads, size_t bound,
                                void (*post)(void *arg, struct text_job *j), void *arg);
/* Waits for the jobs at work; jobs still waiting are not begun. Their `done` is posted, but may
 * never run. */
void text_pool_destroy(struct text_pool **p);
/* 0, or ERR_FULL: `bound` is reached, or the caller has its share of it (fair_share) */
int text_pool_put(struct text_pool *p, struct text_caller *c, struct text_job *j, size_t bytes);
void text_job_skip(struct text_job *j); /* `done` is still called */

#endif
