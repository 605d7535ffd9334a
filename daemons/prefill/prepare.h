/* prepare.h - the prepare threads: they hash prompts, look up what is cached, and take blocks.
 *
 * A thread gets a struct job_prepare and nothing else of a job. It never waits for a peer. When it
 * is done it posts the structure back to the loop (struct prepare, `back`). */
#ifndef PREFILL_PREPARE_H
#define PREFILL_PREPARE_H

#include "util/queue.h"
#include "daemons/worker/seq/blocks.h"
#include "daemons/worker/seq/tasks.h"
#include "daemons/worker/seq/failure.h"

#include <pthread.h>

#define WRITES_GIVEN_UP 1u /* a time long past: see evict_until_us */

enum prepare_work { PREPARE_HASH, PREPARE_TAKE };

/* Belongs to the compiler's thread or a prepare thread from prepare_hash or prepare_take until it
 * is posted back; to the loop otherwise. */
struct job_prepare {
	/* set by the loop once */
	const struct request_copy *req;
	struct seq_blocks *blocks;
	const _Atomic int *cancelled; /* not 0: nothing needs to be done any more */
	/* set by the loop each time */
	struct prepare *stage;
	enum prepare_work work;
	/* results */
	struct constraint_task form; /* compiles the request's constraint before blocks are taken */
	struct seq_failure failure;  /* the constraint could not be compiled */
	uint32_t may_match;          /* leading blocks that may come from the prefix index */
	uint32_t probed;             /* ... that the index had when the prompt was hashed */
	uint64_t begun_us, spent_us; /* spent_us: both works together */
	/* write-outs of blocks that would be evicted are awaited until then; 0: not awaited yet;
	 * WRITES_GIVEN_UP: not awaited any more */
	uint64_t evict_until_us;
};

struct prepare {
	struct worker *w;
	void (*back)(struct svc *svc, void *prepare); /* gets the struct job_prepare, on the loop */
	struct queue *queue;
	pthread_t *threads;
	uint32_t n_threads;
};

/* w and back are set. */
int prepare_start(struct prepare *s, struct err *err);
/* Joins the threads. All jobs must be cancelled, so that nothing is compiled first. */
void prepare_stop(struct prepare *s);
/* Hashes the prompt and probes the prefix index. */
void prepare_hash(struct prepare *s, struct job_prepare *p);
/* Compiles the constraint if needed, then takes blocks: p->blocks->n is 0 if there is no room.
 * urgent: the constraint is compiled before those that wait for the compiler. */
void prepare_take(struct prepare *s, struct job_prepare *p, struct request_copy *req, int urgent);

#endif
