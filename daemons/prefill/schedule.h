/* schedule.h - the schedule thread: it computes the prompts of running jobs, step after step.
 *
 * The thread gets a struct job_run and nothing else of a job. When all tokens are computed, or the
 * job was cancelled or has failed, it posts the structure back to the loop (struct schedule,
 * `back`). */
#ifndef PREFILL_SCHEDULE_H
#define PREFILL_SCHEDULE_H

#include "util/list.h"
#include "daemons/worker/seq/blocks.h"
#include "daemons/worker/seq/failure.h"

#include <pthread.h>

#define RUN_NO_SLOT UINT32_MAX

/* What the loop and the threads share of a job. */
struct job_shared {
	_Atomic int cancelled;     /* loop -> threads: give the job back soon */
	_Atomic uint32_t computed; /* tokens whose KV is in the pool */
	_Atomic uint64_t begun_us; /* schedule thread -> loop: of the first step; 0: none yet */
	/* loop -> schedule thread: how many published blocks a sharing job waits for; 0: none does */
	_Atomic uint32_t wanted;
	/* loop -> schedule thread: order in the schedule: the job's number, or that of an earlier job
	 * that waits for its blocks */
	_Atomic uint64_t turn;
};

/* Belongs to the schedule thread from schedule_add until it is posted back; to the loop
 * otherwise. */
struct job_run {
	struct list node; /* in the inbox or in `running` */
	/* set by the loop before schedule_add */
	struct request_copy *req; /* the thread advances its constraint only */
	struct seq_blocks *blocks;
	struct job_shared *shared;
	uint64_t seq;  /* the job's number, by arrival */
	uint32_t slot; /* of the ring; RUN_NO_SLOT: none is held */
	int alone;     /* the job needs no slot (job_is_alone) */
	uint64_t slot_gen;
	uint64_t ready_us; /* when it was added */
	/* the thread's */
	uint64_t key;     /* place in the present step: the lowest first */
	uint64_t done_us; /* of the last step */
	uint32_t chunks;  /* steps that computed some of it */
	uint32_t scored;  /* last token of the prompt whose log-probability was told */
	struct kern_drawn first;
	double *hidden; /* for an embedding: the sum over the tokens so far; else NULL */
	struct seq_failure failure;
};

enum prefill_order { ORDER_FIFO, ORDER_SRPT };

struct schedule {
	struct worker *w;
	/* on the loop, each gets the struct job_run; published: blocks that were `wanted` are there */
	void (*back)(struct svc *svc, void *run);
	void (*published)(struct svc *svc, void *run);
	/* from the configuration */
	enum prefill_order order;
	uint64_t ageing_us;
	pthread_t thread;
	pthread_mutex_t lock;
	/* under lock */
	pthread_cond_t wake;
	struct list inbox;
	int stop, kicked;
	/* the thread's */
	struct list running;
	uint64_t mask_steps;       /* what masks may still take of this step's plan */
	uint32_t unmasked;         /* jobs whose mask that step lacked */
	int stalled;               /* it had nothing that can run, for lack of masks */
	struct engine_draw *draws; /* (max_logits) of the present step */
	struct engine_span *spans; /* (max_sequences) */
	struct job_run **step_runs;
};

/* w, back, published and the configuration are set. */
int schedule_start(struct schedule *s, struct err *err);
void schedule_stop(struct schedule *s);
void schedule_add(struct schedule *s, struct job_run *r);
void schedule_kick(struct schedule *s); /* a job was cancelled, or a mask is ready */

/* Parts of a step, in their order. Only the thread and tests call them. */
void schedule_sort(struct schedule *s, uint64_t now_us);
/* Posts back the cancelled and the broken; all: every job. */
void schedule_sweep(struct schedule *s, int all);
void schedule_tell(struct schedule *s);     /* tells the messager which jobs are scheduled */
uint32_t schedule_fill(struct schedule *s); /* returns the number of spans of the next step */
/* The step is done: publishes full blocks, and posts `published` if a sharing job waits. */
void schedule_publish(struct schedule *s, struct job_run *r);

#endif
