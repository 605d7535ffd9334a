/* batch.h - the batcher: the thread that computes the runs of a stage, step after step; what it
 * owns, what it is handed, what it shares with the loop. Files of the thread (batch, order,
 * preempt, restore, report, draft/) include this header and none of a stage: they cannot name what
 * belongs to the loop.
 *
 * The loop hands a run to the thread (batcher_add) and gets it back once (batcher.returned). A
 * sequence of the decode stage is a run that ends with its answer. A job of the prefill stage is
 * one that ends with its first token (`first_only`): it comes with all its blocks and keeps them.
 * What a run does in between:
 *
 *   WAITING -> RUNNING    in the inbox, or has no blocks yet
 *   PREEMPTED -> RUNNING    gave its blocks to an older run, or gave them up because storage did
 *          not answer in time (`late`); goes before new reservations
 *   RUNNING -> RESTORING, PREEMPTED    takes part in steps, except those in which the mask thread
 *          has it (constraint.h)
 *   RESTORING -> RUNNING, PREEMPTED    has blocks, and storage is asked for their contents; takes
 *          part in no step
 *
 * In each of them it may be given back: its phase stays what it was.
 *
 * Blocks that storage may still write after their run has lost them belong to the restore until
 * storage has acknowledged the fence. */
#ifndef WORKER_BATCH_H
#define WORKER_BATCH_H

#include "engine/draw.h"
#include "util/clock.h"
#include "util/list.h"
#include "daemons/worker/seq/blocks.h"
#include "daemons/worker/seq/copy.h"
#include "daemons/worker/seq/failure.h"

#include <pthread.h>
#include <stdatomic.h>

enum run_phase { RUN_WAITING, RUN_PREEMPTED, RUN_RESTORING, RUN_RUNNING };

struct restore;
struct drafts;
struct sequence_drafts;

#define RUN_NO_SLOT UINT32_MAX
#define LOOK_AGAIN_US 5000u /* other sequences and leases may give blocks back at any time */

/* Read and written by both threads. */
struct run_shared {
	_Atomic int cancelled;        /* set by the loop: the run is to be returned */
	_Atomic enum run_phase phase; /* set by the batcher's thread, by run_enter */
	/* of a run that has its blocks. wanted: set by the loop: how many published blocks others wait
	 * for, 0: none do; turn: its order among the runs, or that of an earlier one that waits for its
	 * blocks */
	_Atomic uint32_t wanted;
	_Atomic uint64_t turn;
};

/* Before batcher_add and after batcher.returned it is the loop's. Of `req` the loop may always read
 * what never changes: id, attempt, deadline, router, prompt and given tokens. */
struct run {
	struct list node; /* of inbox, waiting or running */
	struct run_shared *shared;
	struct request_copy req;
	struct seq_blocks blocks;
	struct seq_failure failure;
	/* it ends when the token after its prompt is drawn (`first`) or its embedding is made; its
	 * blocks stay its own */
	int first_only;
	struct kern_drawn first;
	/* of the ring, where the messager is told what is computed; RUN_NO_SLOT: nobody is */
	uint32_t slot;
	uint64_t slot_gen;
	/* when it came, or, with first_only, when it could begin: the youngest is preempted first */
	uint64_t born_us;
	uint64_t seq;              /* number by arrival, for batcher_config.order */
	uint64_t key;              /* its place in the present step, by that order */
	uint64_t growth;           /* its part of batcher_shared.growth_blocks */
	_Atomic uint32_t computed; /* tokens whose KV is in the blocks; the loop may read it */
	uint32_t scored;           /* the last token of the prompt whose log-probability was sent */
	uint32_t ahead;            /* tokens drafted for the next step (drafts_plan) */
	/* the latest step in flight that has rows of it, NULL: none; its span there, how many rows
	 * without those of a draft, 1 if the last of them draws its next token, and rows of the draft,
	 * each of which may draw one more */
	struct batch_step *step;
	uint32_t span_in_flight, rows_in_flight, draws_in_flight, drafts_in_flight;
	/* it has ended, or is given up, and is given back when no step and not the mask thread has it;
	 * rows that are in flight count no more */
	int ended;
	int late; /* storage did not answer in time: it computes its blocks instead of reading them */
	double
		*hidden; /* for an embedding: the sum over the tokens so far; NULL before it had blocks */
	struct restore *restore;        /* RESTORING: what storage is asked for */
	struct sequence_drafts *drafts; /* NULL: nothing was drafted yet */
	uint64_t back_us; /* when it got blocks again, until it has caught up; 0: it has caught up */
	uint32_t preemptions, chunks, drafted, accepted, cached_tokens;
	/* for Timing: queue_us and transfer_us are durations, the others points in time; 0: not yet */
	uint64_t queue_us, transfer_us, first_us, done_us;
	_Atomic uint64_t begin_us; /* the loop may read it */
};

/* What the device is given at a time. */
struct batch_step {
	struct engine_span *spans; /* (max_sequences) */
	struct engine_draw *draws; /* (max_logits) */
	struct run **runs;         /* (max_sequences) */
	uint32_t n;                /* spans */
	int alone; /* the next step can only be planned when this one's tokens are known */
	int code;  /* of its start: 0, or ERR_* with `err` */
	struct err err;
	uint64_t begin_us;
};

/* How the share of tokens still allowed for which room is kept (growth_ratio) follows the load: a
 * preemption costs a prompt computed again and raises it at once, as much as fifty steps without
 * one lower it. */
#define GROWTH_RISE 0.05
#define GROWTH_MIN 0.02 /* above 0 each sequence keeps at least one block */
#define GROWTH_STEP 0.001
/* Growth counted for one sequence at most: a client that allows 100,000 tokens seldom gets them,
 * and would keep the room of twenty others. */
#define GROWTH_CAP_TOKENS 4096u

/* Which runs a step takes first, after those that have one token left. */
enum batch_order {
	ORDER_AGE,  /* by born_us */
	ORDER_FIFO, /* by turn */
	ORDER_SRPT  /* the shortest rest first; who has waited ageing_us comes before all, by turn */
};

struct batcher_config {
	enum batch_order order;
	uint64_t ageing_us;
	int drafts;     /* speculative decoding */
	int hands_over; /* the messager is told which runs are scheduled */
	/* a step is started while the one before it is in flight, if the device can. Steps of prompts
	 * alone are long: a prompt that arrives would wait for two of them */
	int overlap;
	uint32_t chunk_tokens;
	int save_preempted, keep_outputs;
	uint64_t wait_us, restore_wait_us;
	double ratio_first, ratio_min;
};

/* The schedule thread's alone. */
struct batcher_own {
	struct list waiting, running; /* by age; running in batcher_config.order */
	struct list restores;         /* by the time when they were asked for */
	/* the one that storage reads for: one at a time, so that a storage daemon that stops takes few
	 * blocks with it */
	struct restore *reading;
	uint32_t n_running;
	uint32_t fenced;              /* abandoned restores that storage has not acknowledged: 0 or 1 */
	uint64_t no_storage_until_us; /* storage did not answer: it is not asked before this time */
	int lacking;         /* a run sits this step out, until a write-out or a fence has ended */
	int stalled;         /* the last step had nothing that can run */
	uint32_t unmasked;   /* runs that sit this step out, until the mask thread has their masks */
	uint64_t mask_steps; /* what masks may still take of this step's plan */
	/* the step in flight must end first: blocks must be taken from a run, which it may be writing
	 * to; or a run can only have a draft when its tokens are known */
	int must_land;
	struct batch_step step[2];
	struct batch_step *in_flight; /* while the next one is planned; NULL: none */
	uint64_t landed_us;           /* when the latest step had ended */
	struct drafts *drafts;
};

struct batcher_locked {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct list inbox;   /* runs that the thread has not seen yet */
	struct list answers; /* restores that storage has answered */
	int kicked;
	double ratio; /* part of the tokens that may still be generated for which room is kept */
	uint32_t *fence_blocks, n_fence_blocks; /* of the abandoned restore */
};

struct batcher_shared {
	_Atomic int stop;
	_Atomic uint32_t preempted;     /* runs that are PREEMPTED */
	_Atomic uint32_t at_storage;    /* batches of restores that storage has not ended */
	_Atomic uint64_t growth_blocks; /* room kept for the growth of all runs */
};

struct batcher {
	struct worker *w;
	struct batcher_config config;
	/* Posted to the loop. A run comes back, with what it owns; the blocks that its shared.wanted
	 * asked for are published (NULL: nobody sets `wanted`); storage has ended an abandoned restore,
	 * whose blocks are free (NULL: no run is restored) */
	void (*returned)(struct svc *s, void *run), (*published)(struct svc *s, void *run),
		(*room)(struct svc *s, void *batcher);
	struct batcher_own own;
	struct batcher_locked locked;
	struct batcher_shared shared;
	pthread_t thread;
};

/* Parts of a step; test_batch.c calls them. */
void batch_sweep(struct batcher *b, struct list *l);
void batch_tell_messager(struct batcher *b);
void batch_fill(struct batcher *b, struct batch_step *s); /* chooses its spans */
void batch_publish(struct batcher *b, struct run *r);     /* the full blocks */

/* batch.c: towards the loop */
/* w, config and the three functions are set */
int batcher_start(struct batcher *b, struct err *err);
void batcher_stop(struct batcher *b);
void batcher_add(struct batcher *b, struct run *r);
/* Something changed that a sleeping thread cannot see: a cancel, a mask that is ready, or blocks
 * that came back. */
void batcher_kick(struct batcher *b);
double batcher_ratio(struct batcher *b);
/* Blocks that req is expected to grow by. */
uint64_t batcher_growth(const struct batcher *b, const struct request_copy *req, double ratio);
static inline uint32_t run_tokens_left(const struct run *r)
{
	return r->req.n_tokens - r->computed; /* to be computed; 1: it decodes */
}
/* It is complete with what the step in flight draws. */
static inline int run_ends_in_flight(const struct run *r)
{
	return r->draws_in_flight && (r->first_only || request_copy_is_full(&r->req, 1));
}
/* run_tokens_left when the steps in flight have ended. */
static inline uint32_t run_rows_after_step(const struct run *r)
{
	return r->req.n_tokens + r->draws_in_flight - r->computed - r->rows_in_flight;
}
/* Tokens that it has then, if all of its draft is right. */
static inline uint32_t run_tokens_after_drafts(const struct run *r)
{
	return r->req.n_tokens + r->draws_in_flight + r->drafts_in_flight;
}
const char *run_phase_name(enum run_phase p); /* as pdctl shows it */
/* Enters the phase and moves the run to the list that goes with it. */
void run_enter(struct batcher *b, struct run *r, enum run_phase next);
static inline enum run_phase run_phase(const struct run *r)
{
	return atomic_load_explicit(&r->shared->phase, memory_order_relaxed);
}

/* order.c: puts the running ones into batcher_config.order. Not for ORDER_AGE, which run_enter
 * keeps. */
void order_sort(struct batcher *b, uint64_t now_us);

/* preempt.c: blocks for those that run */
/* Takes those for r's tokens (HELD or LEASED) if `growth` more stay free. Write-outs older than
 * preempt_wait_ms are given up if they are what the room lacks. Any thread. */
int run_take_blocks(struct batcher *b, struct run *r, enum kv_state state, uint64_t growth);
/* A block for the next token of each running one, at the cost of the youngest; then rows for
 * drafts, as far as there is room. */
void preempt_grow(struct batcher *b);
void preempt_admit(struct batcher *b); /* waiting ones by age, while there is room */
/* Has what its next step needs. */
int preempt_is_ready(const struct batcher *b, const struct run *r);
void preempt_drop_blocks(struct batcher *b, struct run *r);
/* Gives the blocks back and waits: PREEMPTED. */
void preempt_wait_again(struct batcher *b, struct run *r);
/* When to look again although nobody woke the thread; 0: never. */
uint64_t preempt_wake_us(const struct batcher *b);

/* restore.c: blocks that are read back from storage */
/* r has just got its blocks. Asks storage for those before `end` whose contents it lacks;
 * may_read 0: they are computed. */
void restore_begin(struct batcher *b, struct run *r, uint32_t end, int may_read);
/* r gives its blocks back; those that storage may still write stay with the restore. */
void restore_leave(struct batcher *b, struct run *r);
/* Takes what storage has answered, gives up what it did not answer in time, reads on. */
void restore_progress(struct batcher *b);
/* Blocks come back when storage acknowledges a fence, which is not overdue. */
int restore_is_fenced_soon(const struct batcher *b);
uint64_t restore_wake_us(const struct batcher *b); /* when one is due; 0: never */
/* The block waits for the fence of an abandoned restore. Any thread. */
int restore_fences(struct batcher *b, uint32_t block);
void restore_fini(struct batcher *b);

/* draft/spec.c: drafts of the next tokens, computed and checked in one step */
struct drafts *drafts_new(const struct batcher *b); /* by the configuration */
void drafts_destroy(struct drafts **d);
/* Before preempt_grow: sets `ahead` of all that run. A draft stands behind the run's tokens, unless
 * only the device knows the last of these: then it makes the draft. */
void drafts_plan(struct batcher *b);
/* Where the device finds the draft of a span that continues another, if it has one. */
void drafts_ask(struct batcher *b, struct run *r, struct engine_span *sp);
/* Before the tokens of a step that drafted are taken: what the device looked for as well. */
void drafts_recall(struct run *r);
/* After each step in which r decodes; right: number of leading tokens of the draft that were
 * drawn. */
void drafts_learn(struct batcher *b, struct run *r, uint32_t drafted, uint32_t right);
/* The time of a step in which all runs only decoded. */
void drafts_step_took(struct batcher *b, uint32_t rows, uint64_t us);
void drafts_forget(struct batcher *b, struct run *r);
/* r has no step in flight: another may have its history. */
void drafts_give_history(struct batcher *b, struct run *r);
/* JSON members, begins with a comma. Any thread. */
void drafts_status(const struct batcher *b, struct buf *out);

/* report.c: the tokens of a step on their way to the routers */
struct token_report;
struct token_report *report_new(struct worker *w);
/* The tokens of one sequence are added one after the other. */
void report_token(struct token_report *t, const struct run *r, uint32_t index,
                  const struct kern_drawn *drawn, Pds__Finish finish);
/* The prefill worker's timing goes with the sequence that was added last. */
void report_prompt(struct token_report *t, const Pds__Timing *prompt);
/* What the run took so far. */
void report_timing(const struct run *r, Pds__Timing *t);
void report_send(struct token_report *t); /* posts it to the loop, which sends and frees it */

#endif
