/* prefill.h - the prefill stage, shared by its files.
 *
 * A job is an attempt at this prefill worker. Only job_step changes its state, on the loop's
 * thread:
 *
 *   PREPARE -> LOOKUP, RESERVE, SHARE, DROPPED  a prepare thread hashes the prompt and probes the
 *                           prefix index
 *   LOOKUP -> RESERVE, SHARE, DROPPED  storage was asked which further blocks it has
 *   RESERVE -> SHARE        a decode worker is asked for a lease, or none may be asked now and the
 *                           job is parked; it holds no thread and no blocks
 *   SHARE -> TAKE, RUN      a running job computes blocks of its prefix, which it waits for,
 *                           holding nothing but the lease. Nothing to wait for: it goes on at once
 *   TAKE -> READ, DROPPED   a prepare thread matches the prefix and takes blocks; or this pool has
 *                           no room (waits_room): tried again, by arrival, when blocks are given
 *                           back
 *   READ -> TAKE, SHARE     storage writes prefix blocks. Nothing worth reading: it goes on at once
 *   RUN -> HANDOVER, DROPPED  published to the messager, and in the schedule; or all slots of the
 *                           ring are taken (waits_room), and it waits with its blocks
 *   HANDOVER                the first token was sent; waits for KvSent, which gives slot and blocks
 *                           back, and for the first token's acknowledgement, in any order. KvSent
 *                           may come before the schedule thread gives the job back
 *   DROPPED                 cancelled or failed, but a thread or a look-up has it
 *
 * Each of them may end: everything is given back then, and job_step frees the job.
 *
 * A job without candidates ends with its prefill, because it makes an embedding or its answer is a
 * single token: it goes from PREPARE or LOOKUP to SHARE, has no slot, and ends in RUN.
 *
 * A cancel sets `shared.cancelled`: a thread that has the job gives it back soon, and DROPPED ends
 * then.
 *
 * Who waits for whom: RESERVE waits for a decode worker and holds nothing; SHARE waits for a job in
 * the schedule and holds nothing but the lease; who waits for blocks or a slot waits for jobs in
 * the schedule and in HANDOVER. Those wait only for the device, the messager and the decode
 * worker's acknowledgement, at most stall_ms. So no circle can arise. */
#ifndef PREFILL_PREFILL_H
#define PREFILL_PREFILL_H

#include "prepare.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/map.h"
#include "daemons/worker/batch/batch.h"
#include "daemons/worker/stage.h"

#define ROOM_AT_UNKNOWN UINT64_MAX
#define READ_PART_BLOCKS 16u /* blocks of one batch of a read */

enum job_state {
	JOB_PREPARE,
	JOB_LOOKUP,
	JOB_RESERVE,
	JOB_SHARE,
	JOB_TAKE,
	JOB_READ,
	JOB_RUN,
	JOB_HANDOVER,
	JOB_DROPPED
};
#define JOB_STATES (JOB_DROPPED + 1)

enum job_event {
	JE_ENTER,   /* the state was just entered */
	JE_BACK,    /* the thread or the look-up that had it is done */
	JE_CHECK,   /* time has passed, or a decode worker or its link has changed */
	JE_GRANTED, /* RESERVE: the lease is there */
	JE_REFUSED, /* RESERVE: the candidate denied, or is left for another */
	JE_PREFIX,  /* SHARE: the blocks are published, or their job computes no more */
	JE_ROOM,    /* waits_room: try again */
	JE_READ,    /* READ: storage is done */
	JE_SENT,    /* KvSent */
	JE_ACKED,   /* the first token's acknowledgement */
	JE_DROP     /* cancelled or failed: job_drop and job_fail only */
};

/* One life of a decode worker, for as long as a job names it. */
struct decode_target {
	struct list node;
	char name[48];
	uint64_t epoch;
	struct peer *peer;   /* its link; NULL while it is down or of another life */
	uint32_t refs;       /* candidates that point here */
	int ended_in_order;  /* that life said goodbye */
	uint32_t inflight;   /* jobs that asked it and are not handed over: at most max_inflight */
	uint64_t told_us;    /* when it last told how long a new reservation waits; 0: never */
	uint64_t room_at_us; /* when it grants a new one, by that; ROOM_AT_UNKNOWN */
};

struct candidate {
	struct decode_target *target;
	int closed;             /* not asked again in this attempt: it denied, or is gone */
	uint64_t since_us;      /* its link is awaited since; 0: not awaited */
	uint64_t not_before_us; /* it denied with a hint: asked again from then on */
	uint64_t routerless_us; /* it has denied since for want of a link to the router; 0: never */
};

/* A read from storage, in parts. It outlives its job when storage does not answer, because storage
 * may still write the blocks. */
struct prefill_read_part {
	struct store_asker asker;
	struct prefill_read *read;
	uint32_t n, got; /* blocks of it; how many of its first blocks were read */
	uint64_t batch;
};

struct prefill_read {
	struct list node;
	struct worker *w;
	struct job *job;        /* NULL: given up */
	struct seq_blocks left; /* those that are read, once it is given up */
	uint64_t begun_us, until_us;
	uint32_t first, n;      /* the job's blocks that are read */
	unsigned char *tier;    /* (n) that gave each; STORE_TIER_NONE: not read */
	unsigned expected;      /* the slowest tier that has some of them */
	uint32_t n_parts, open; /* open: parts that have not completed */
	struct prefill_read_part part[];
};

/* The way to a grant. */
struct job_reserve {
	struct candidate *candidate; /* (n) */
	uint32_t n;
	struct candidate *asked;        /* Reserve was sent to it, or it granted; NULL: none */
	struct decode_target *inflight; /* the job counts there; NULL: nowhere */
	uint64_t asked_us;
	uint64_t queued_us;    /* when it last told the job's position; 0: not yet */
	uint64_t room_at_us;   /* when it grants, by what it told; ROOM_AT_UNKNOWN */
	Pds__Fault why_fault;  /* of the candidate that was closed last */
	const char *why_blame; /* its name if that was its failure or its end; else NULL */
	char why[160];
	uint64_t room_after_us; /* shortest time until there is room that a candidate named; 0: none */
};

struct job_lease {
	Pds__Lease id;
	uint64_t length_us;
	uint32_t cached_tokens; /* tokens whose KV the decode worker has */
	uint32_t *dst, n_dst;
};

/* What storage has of the prompt's blocks. */
struct job_stored {
	struct store_asker asker;
	uint64_t batch;
	uint32_t leading;          /* leading blocks that this pool or storage had */
	unsigned char *tier;       /* of block prepare.probed + i */
	uint64_t looked_us;        /* when storage answered; from then on it moves them to its memory */
	struct prefill_read *read; /* NULL: none is under way */
	uint32_t read_tokens;
};

struct job_share {
	struct job *with; /* NULL: none, or it computes no more */
	uint32_t blocks;  /* leading blocks to wait for */
	uint32_t times;   /* how often it waited */
	uint32_t had;     /* blocks it could match when it first waited */
	uint64_t since_us, waited_us;
};

struct job {
	/* the loop's */
	struct list node; /* all jobs, by arrival */
	struct list wait; /* RESERVE (parked) or SHARE */
	struct worker *w;
	enum job_state state;
	uint64_t accepted_us, reserve_us;
	uint32_t start_tokens; /* not computed here: matched and read */
	uint64_t releases;     /* the stage's count when a thread got the job */
	int waits_room;        /* in TAKE for blocks, in RUN for a slot; no thread has it */
	int sent, acked;       /* KvSent, and the first token's acknowledgement, have come */
	Pds__Finish finish;
	struct job_reserve reserve;
	struct job_lease lease;
	struct job_stored stored;
	struct job_share share;
	/* a prepare thread's */
	struct job_prepare prepare;
	/* The batcher's from batcher_add on. Before that, run.req and run.blocks belong to whoever has
	 * the job. Constant while a thread has it: all of run.req but its constraint */
	struct run run;
	struct run_shared shared;
};

/* What the loop shall look at soon. */
enum { SOON_PLACE = 1, SOON_BLOCKED = 2, SOON_SHARE = 4 };

struct prefill;

struct prefill {
	/* the loop's */
	struct worker *w;
	struct list jobs;
	struct map *by_key;   /* attempt_key -> job */
	struct job **by_slot; /* ring slot -> job */
	uint32_t n_jobs;
	uint32_t count[JOB_STATES];
	uint32_t n_blocked, n_slotless; /* jobs with waits_room, in TAKE and in RUN */
	uint64_t next_seq;
	int draining;
	struct svc_timer *timer; /* only while there are jobs */
	uint64_t renewed_us, renew_us;
	unsigned soon;                        /* SOON_*; not 0: a post is on its way */
	struct list targets, parked, sharing; /* parked: by arrival */
	struct list reads;
	/* names of the decode workers that were skipped for want of keys, as logged last */
	char keyless[256];
	struct job *retrying; /* the blocked job that a prepare thread tries again */
	uint64_t releases;    /* how often slots or blocks were given back */
	/* the threads' */
	struct prepare prepare;
	struct batcher batcher;
};

static inline struct prefill *prefill_of(struct worker *w)
{
	return w->state;
}

/* stage.c */
void stage_soon(struct prefill *s, unsigned what);
void stage_leased(struct prefill *s, uint64_t lease_us);
/* The number of jobs has changed by `by`: the timer runs only while there are some. */
void stage_jobs(struct prefill *s, int by);

/* job.c */
/* Lets the job act on the event and enter the states that follow. Returns the last one; JOB_STATES:
 * the job has ended and is freed. */
enum job_state job_step(struct job *j, enum job_event e);
/* Cancels the job everywhere and ends it, or has it end when the thread that has it is done. */
void job_drop(struct job *j, const char *why);
/* The same after telling the router. */
void job_fail(struct job *j, const struct worker_failure *f);
const char *job_state_name(enum job_state s);
/* Registers an accepted job, whose request is set, in state PREPARE; JE_ENTER is its first
 * event. */
void job_init(struct job *j, struct prefill *s);
void job_retry_blocked(struct prefill *s);
void job_release_blocks(struct job *j);
void job_leave_ring(struct job *j);
void job_room_made(struct prefill *s); /* a slot or blocks were given back */
void job_prepare_back(struct svc *svc, void *prepare);
void job_run_back(struct svc *svc, void *run);
/* It has a lease, or needs none, and has not ended. */
static inline int job_is_leased(const struct job *j)
{
	return j->state >= JOB_SHARE && j->state <= JOB_HANDOVER;
}

/* The schedule thread has it. */
static inline int job_is_scheduled(const struct job *j)
{
	return j->state == JOB_RUN && !j->waits_room;
}

/* Nothing follows its prefill, so it has no lease, no transfer and no slot of the ring. */
static inline int job_is_alone(const struct job *j)
{
	return j->reserve.n == 0;
}

/* read.c */
/* 1: storage is asked which blocks it has; JE_BACK follows */
int read_look_up(struct job *j);
/* 1: blocks after the matched ones are being read; JE_READ follows */
int read_begin(struct job *j);
void read_finish(struct job *j); /* publishes the blocks that were read */
/* 1: storage has not answered in time; the read keeps the blocks, the job holds none */
int read_is_late(struct job *j);
/* The job's part ends; the read keeps its blocks until storage is done with them. */
void read_leave(struct job *j);
void read_free(struct prefill_read *r);
int read_fences(const struct prefill *s, uint32_t block); /* a read that was given up has it */

/* handover.c */
enum handover_first {
	FIRST_SENT,
	FIRST_ENDS_ANSWER,
	FIRST_LOST /* the link to the decode worker did not take it */
};
enum handover_first handover_first(struct job *j);
void handover_embedding(struct job *j); /* to the router: the job ends */
void handover_release(struct job *j);   /* KvSent: slot and blocks go back */
/* NULL, or why the job fails: KvSent or the acknowledgement is late */
const char *handover_late(const struct job *j);

/* reserve.c */
enum reserve_verdict {
	RESERVE_ASKED,
	RESERVE_MUST_WAIT,
	RESERVE_NONE_LEFT /* all candidates are closed: reserve_failure says why */
};
struct decode_target *target_get(struct prefill *s, const char *name, uint64_t epoch);
void reserve_link(struct prefill *s, struct peer *p, int up);
/* Why an attempt fails whose decode worker is gone. */
Pds__Fault reserve_gone_fault(const struct decode_target *t);
/* Asks the first candidate that may be asked now, or puts the job into the list of the parked. */
enum reserve_verdict reserve_place(struct job *j);
struct worker_failure reserve_failure(const struct job *j);
void reserve_parked(struct prefill *s); /* some of the parked may be asked now */
/* The asked candidate is closed and told; JE_REFUSED shall follow. */
void reserve_close(struct job *j, Pds__Fault fault, const char *text);
/* The candidate cannot be asked in this attempt. */
void reserve_skip(struct job *j, struct candidate *c, const char *why);
void reserve_denied(struct job *j, const Pds__Deny *m);   /* JE_REFUSED shall follow */
void reserve_queued(struct job *j, const Pds__Queued *m); /* JE_CHECK shall follow */
/* 0: the grant does not fit the prompt */
int reserve_granted(struct job *j, const Pds__Grant *g);
/* Another candidate may have room much sooner: then that one is asked. 0: none is asked now. */
int reserve_move(struct job *j);
void reserve_uncount(struct job *j);                 /* in flight no more */
void reserve_cancel(struct job *j, const char *why); /* at the decode worker */
void reserve_fini(struct job *j);
static inline struct peer *job_decode(const struct job *j)
{
	return j->reserve.asked ? j->reserve.asked->target->peer : NULL;
}
static inline const char *job_decode_name(const struct job *j)
{
	return j->reserve.asked ? j->reserve.asked->target->name : "";
}

/* share.c */
/* 1: the job waits for blocks of a running job, and holds none itself. 0: it goes on, without
 * blocks if it must match again. */
int share_wait(struct job *j);
void share_finish(struct job *j); /* JE_PREFIX */
void share_wake(struct prefill *s);
void share_source_gone(struct job *source); /* it computes no more */
void share_published(struct svc *svc, void *run);

#endif
