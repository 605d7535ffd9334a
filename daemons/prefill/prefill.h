/* prefill.h - the prefill stage's own business, shared by its files.
 *
 * A job is an attempt at this prefill worker. Its life (only job_enter changes `state`, on the
 * loop's thread):
 *
 *   NEW       accepted; in the benchmark modes of gate.c it waits here for its turn
 *   PREPARE   a prepare thread hashes the prompt and looks what is cached
 *   LOOKUP    storage was asked what it has of the rest
 *   RESERVE   asked of a decode worker, or parked until one may be asked; no thread, no blocks
 *   TAKE      granted; a prepare thread matches again and takes blocks
 *   BLOCKED   granted, but this pool or the ring has no room now; tried again, in order, when
 *             something is given back
 *   SHARE     granted; a running job computes blocks of its prefix, which it waits for. It holds
 *             nothing (share.c)
 *   FETCH     blocks taken; storage writes prefix blocks into them
 *   RUN       published to the messager, in the schedule
 *   COMPUTED  first token sampled and sent; waits for KvSent and the first token's acknowledgement
 *   END       nothing is held; the memory goes when no thread or batch has a pointer to it
 *
 * `holders` counts who else holds the job (prepare thread, schedule thread, a look-up); only the
 * loop reads `state`. A cancel sets `cancelled`; whoever has the job gives it back soon, and the
 * loop drops it then.
 *
 * Who waits for whom: RESERVE waits for a decode worker holding nothing; SHARE waits for a RUN job
 * holding nothing but the grant; BLOCKED waits for RUN and COMPUTED jobs; those wait for the
 * device, the messager and the decode worker's acknowledgement only, under stall_ms. So no
 * circle can arise. */
#ifndef PREFILL_PREFILL_H
#define PREFILL_PREFILL_H

#include "gate.h"
#include "engine/draw.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/map.h"
#include "util/queue.h"
#include "daemons/worker/seq/score.h"
#include "daemons/worker/stage.h"
#include "daemons/worker/seq/copy.h"

#include <pthread.h>
#include <stdatomic.h>

#define RESERVE_FAR UINT64_MAX
/* blocks read in one batch; those that arrive within the wait are used */
#define FETCH_PART 16u

enum job_state {
	JOB_NEW,
	JOB_PREPARE,
	JOB_LOOKUP,
	JOB_RESERVE,
	JOB_TAKE,
	JOB_BLOCKED,
	JOB_SHARE,
	JOB_FETCH,
	JOB_RUN,
	JOB_COMPUTED,
	JOB_END,
	JOB_STATE_COUNT
};

/* One life of a decode worker, for as long as a job names it. */
struct target {
	struct list node;
	char name[48];
	uint64_t epoch;
	struct peer *peer;   /* its link, NULL while it is down or of another life */
	uint32_t refs;       /* candidates that point here */
	int ended_in_order;  /* that life said goodbye */
	uint32_t inflight;   /* asked of it and not yet handed over: at most max_inflight */
	uint64_t told_us;    /* when it last told how long a new reservation waits; 0: never */
	uint64_t room_at_us; /* when it grants a new one, by that; RESERVE_FAR: not known */
};

struct candidate {
	struct target *target;
	/* it denied, was late, is gone: not asked again in this attempt */
	int closed;
	uint64_t since_us;      /* its link is awaited since; 0: not yet */
	uint64_t not_before_us; /* it denied with a hint: asked again from then on */
};

/* A read from storage, in parts: outlives its job when storage does not answer, because storage
 * may still write the blocks. */
struct fetch_part {
	struct store_asker asker;
	struct fetch *fetch;
	uint32_t n, got; /* blocks; leading ones of them that came */
	uint64_t batch;
};

struct fetch {
	struct list node;
	struct worker *w;
	struct job *job;            /* NULL: given up */
	uint32_t *blocks, n_blocks; /* the job's, once it is given up */
	uint64_t begun_us, until_us;
	uint32_t first, n;      /* the job's blocks that are read */
	unsigned char *tier;    /* (n) that gave each, NONE: it has not come */
	unsigned expected;      /* the slowest tier that was to give some */
	uint32_t n_parts, left; /* left: parts that have not completed */
	struct fetch_part part[];
};

enum job_back { BACK_PREPARED, BACK_TAKEN, BACK_COMPUTED };

struct job {
	struct list node; /* all jobs, by arrival */
	struct list run;  /* the schedule thread's list, or its inbox */
	struct list back; /* on the way back to the loop */
	struct list wait; /* parked, sharing, or at the gate */
	struct worker *w;
	struct request_copy req;
	uint64_t seq; /* by arrival */
	enum job_state state;
	int holders;
	_Atomic int cancelled;
	int phase;                /* for the prepare thread: 1 or 2 */
	struct compile_task form; /* before phase 2 */
	enum job_back back_as;
	int told_failed;

	struct candidate *candidate;
	uint32_t n_candidates, at; /* at: index of the candidate asked, or granted */
	/* Reserve is sent to candidate[at]; counted in its inflight; in the list of the parked */
	int asked, counted, parked;
	uint64_t asked_us;
	uint64_t queued_us;    /* when the candidate last told its place; 0: not yet */
	uint64_t room_at_us;   /* when it grants, by what it told; RESERVE_FAR: not known */
	Pds__Fault why_fault;  /* of the candidate that was closed last */
	const char *why_blame; /* its name, if that was its failure; else NULL */
	/* least time that a candidate named until there is room, 0: none did */
	uint64_t room_after_us;
	char why[160];

	struct kv_hash *hashes; /* of full blocks: n_match may be matched, n_hashes published */
	/* probed: blocks from the first that this pool had in PREPARE */
	uint32_t n_hashes, n_match, probed;
	uint32_t store_leading;    /* ... that this pool or storage had then */
	unsigned char *store_tier; /* where: of block probed + i */
	uint64_t looked_us;        /* ... and when it said so; from then on it brings them up */
	struct store_asker lookup_asker;
	uint64_t lookup; /* storage's batch */
	struct fetch *fetch;

	struct job *share_with;            /* SHARE: its source, NULL when that has ended */
	uint32_t share_blocks;             /* SHARE: leading blocks to wait for until published */
	uint32_t shares;                   /* times that it waited so */
	uint32_t share_had;                /* blocks it could have matched when it began to wait */
	uint64_t share_since_us, share_us; /* share_us: waited so, in all */
	/* RUN: published blocks that a sharer waits for; 0: none */
	_Atomic uint32_t wanted;
	/* order in the schedule: seq, or that of an earlier one who waits for its blocks */
	_Atomic uint64_t turn;

	int leased;
	Pds__Lease lease;
	uint64_t lease_us;
	uint32_t d_cached; /* tokens that D holds */
	uint32_t *dst, n_dst;

	/* What the prepare thread took, in TAKE; the job's own once the loop has adopted it. matched:
	 * the leading blocks that came from the prefix index. */
	struct {
		uint32_t *blocks, n, matched;
	} taken;
	uint32_t *blocks, n_blocks; /* held here */
	uint32_t start_tokens;      /* not computed here: matched and fetched */
	uint32_t fetched_tokens;
	/* tokens whose KV is in the pool; the schedule thread's while it runs */
	_Atomic uint32_t computed;
	_Atomic uint32_t published; /* full blocks in the index; likewise */
	/* what it would evict may be waited for until then; 0: it did not wait yet */
	uint64_t evict_until_us;
	int gave_up_writes; /* ... and that was long enough: once */
	uint64_t releases;  /* the stage's count when a thread got the job */
	int in_ring;
	uint32_t slot;
	uint64_t slot_gen;
	uint64_t key;      /* its place in the present step: the least first */
	uint64_t ready_us; /* in the schedule since */

	struct kern_drawn first;
	Pds__Finish finish;
	int step_failed, broken; /* broken: a precondition did not hold */
	/* its constraint or a draw failed (constraint_fault); NONE: it did not */
	Pds__Fault draw_fault;
	char fail_text[160];
	int kv_sent, first_acked;

	uint64_t accepted_us, prepare_begin_us, prepare_us, granted_us, reserve_us, run_us, first_us;
	uint32_t chunks;
};

/* What the loop shall look at soon; set by any thread. */
enum { SOON_RETURNED = 1, SOON_PLACE = 2, SOON_BLOCKED = 4, SOON_SHARE = 8, SOON_GATE = 16 };

enum prefill_order { ORDER_FIFO, ORDER_SRPT };

struct prefill {
	struct worker *w;
	struct list jobs;
	struct map *by_key;   /* work_key -> job */
	struct job **by_slot; /* ring slot -> job */
	uint32_t n_jobs, max_jobs;
	uint32_t count[JOB_STATE_COUNT];
	uint64_t next_seq;
	int draining;
	struct svc_timer *timer; /* only while there are jobs */
	uint64_t stall_us, renewed_us, renew_us;
	uint64_t lookup_us, fetch_us; /* longest waits for storage */
	uint64_t evict_wait_us;
	int offload; /* what would be evicted is written first */
	/* threads -> loop */
	pthread_mutex_t back_lock;
	struct list back;
	/* struct score: the loop sends those of a job before it takes the job back */
	struct list scores;
	_Atomic unsigned soon;
	int bell_fd;
	struct event *bell;
	/* reservation */
	struct list targets, parked; /* parked: by arrival */
	uint32_t max_inflight;
	/* own blocks */
	struct job *retrying;  /* the blocked one that a prepare thread tries again */
	uint64_t releases;     /* slots and blocks that came back */
	uint32_t ring_blocked; /* blocked with blocks: the ring is full */
	struct list fetches;
	/* shared prefixes */
	int share;
	struct list sharing;
	/* prepare */
	struct queue *prepare;
	pthread_t *threads;
	uint32_t n_threads;
	/* schedule */
	pthread_t schedule;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct list inbox;
	int stop;
	struct list running;
	enum prefill_order order;
	uint64_t ageing_us;
	struct engine_draw *draws; /* (max_logits) of the present step */
	struct engine_span *spans;
	struct job **step_jobs;
	struct gate *gate; /* benchmark modes; NULL in service */
};

static inline struct prefill *prefill_of(struct worker *w)
{
	return w->state;
}

/* stage.c */
void stage_soon(struct prefill *s, unsigned what); /* any thread */
/* a thread gives a job back to the loop */
void stage_return(struct prefill *s, struct job *j, enum job_back as);
/* the schedule thread gives a slice of a prompt's log-probabilities to the loop */
void stage_score(struct prefill *s, struct score *c);
void stage_leased(struct prefill *s, uint64_t lease_us);
/* one more or one less: the timer runs only while there are some */
void stage_jobs(struct prefill *s, int by);

/* job.c */
void job_enter(struct job *j, enum job_state next);
/* cancel everywhere, give all back, end; when held by others: as soon as they return it */
void job_drop(struct job *j, const char *why);
void job_end(struct job *j); /* give all back, end; nobody holds it */
/* blame: the worker whose failure it is, or NULL. job_fail: no worker's. */
void job_fail(struct job *j, Pds__Fault fault, int retry, const char *text);
void job_fail_by(struct job *j, Pds__Fault fault, int retry, const char *text, const char *blame);
void job_fail_draw(struct job *j); /* draw_fault, with fail_text */
void job_begin(struct job *j);     /* NEW -> PREPARE */
/* granted: to a prepare thread, or behind those who wait for blocks */
void job_take(struct job *j);
void job_retry_blocked(struct prefill *s);
void job_release_blocks(struct job *j);
void job_leave_ring(struct job *j);
void job_head(const struct job *j, struct msg_head *h);
const char *job_state_name(enum job_state s);
void job_prepared(struct job *j);
void job_taken(struct job *j);
void job_adopt_taken(struct job *j); /* j->taken becomes its blocks */
/* to the ring and into the schedule; or it waits, with its blocks, for a slot */
void job_run(struct job *j);
void job_came_back(struct prefill *s); /* a slot or blocks are there again */

/* fetch.c: prefixes from storage */
/* 1: storage is asked what it has, the job is held */
int fetch_look_up(struct job *j);
/* 1: blocks after the matched ones are being read */
int fetch_begin(struct job *j);
/* the job's part ends; its blocks stay with the fetch until storage has ended too */
void fetch_leave(struct job *j);
void fetch_free(struct fetch *f);
/* it waits for the end of a read that was given up */
int fetch_fences(const struct prefill *s, uint32_t block);
/* storage does not answer: its blocks stay with the fetch, the job goes on without */
void fetch_late(struct job *j);

/* first.c */
void job_computed(struct job *j);
void job_finish_if_done(struct job *j);

/* reserve.c */
struct target *target_get(struct prefill *s, const char *name, uint64_t epoch);
void target_put(struct target *t);
void reserve_link(struct prefill *s, struct peer *p, int up);
/* Why an attempt fails whose decode worker is gone */
Pds__Fault reserve_gone_fault(const struct target *t);
/* asks the first candidate that may be asked now, or parks */
void reserve_place(struct job *j);
void reserve_parked(struct prefill *s); /* some of the parked may be asked now */
/* the present candidate is given up; the next is asked */
void reserve_close(struct job *j, Pds__Fault fault, const char *text);
void reserve_denied(struct job *j, const Pds__Deny *m);
void reserve_queued(struct job *j, const Pds__Queued *m);
void reserve_granted(struct job *j, const Pds__Grant *g, const char *from);
void reserve_check(struct job *j, uint64_t now);     /* late or due? */
void reserve_uncount(struct job *j);                 /* it is in flight no more */
void reserve_cancel(struct job *j, const char *why); /* at the decode worker */
void reserve_leave(struct job *j);                   /* out of the parked, candidates freed */
static inline struct peer *job_decode(const struct job *j)
{
	return j->at < j->n_candidates ? j->candidate[j->at].target->peer : NULL;
}
static inline const char *job_decode_name(const struct job *j)
{
	return j->at < j->n_candidates ? j->candidate[j->at].target->name : "";
}

/* share.c */
/* 1: it waits for a running job's blocks; have: leading blocks it can match by itself */
int share_wait(struct job *j, uint32_t have);
void share_wake(struct prefill *s);
/* a computes no more: those who wait for it go on */
void share_left(struct job *a);
void share_stop(struct job *j); /* j waits no more */
/* the schedule thread has published some */
void share_published(struct job *a);

/* prepare.c */
int prepare_start(struct prefill *s, struct err *err);
void prepare_stop(struct prefill *s);
/* schedule.c */
int schedule_start(struct prefill *s, struct err *err);
void schedule_stop(struct prefill *s);
void schedule_add(struct prefill *s, struct job *j);
void schedule_kick(struct prefill *s);
/* its parts, in the order of a step; the schedule thread's (and tests') */
void schedule_sort(struct prefill *s, uint64_t now_us);
/* gives back the cancelled and the broken; all: everybody */
void schedule_sweep(struct prefill *s, int all);
void schedule_tell(struct prefill *s);     /* the messager: who is in hand */
uint32_t schedule_fill(struct prefill *s); /* spans of the next step */
#endif
