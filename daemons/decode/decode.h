/* decode.h - the decode stage's own business, shared by its files.
 *
 * A sequence is one attempt of one request. On the loop's thread (lease.c, stage.c) it is
 *
 *   COMPILING   the compiler has its constraint (form.c); nothing of it is freed before that is
 *               over
 *   QUEUED      a reservation that waits for room, in order
 *   LEASED      granted: the messager fills its blocks; waits for KvReady and the first token
 *   QUARANTINE  given up while a messager may still write: its blocks stay until the fence
 *   ACTIVE      handed to the schedule thread (joined after a hand-over, or submitted without a
 *               candidate)
 *   END         nothing is held; the memory goes
 *
 * While ACTIVE everything but `state`, `cancelled` and the lease belongs to the schedule thread
 * (batch.c), where it is waiting (new, or preempted: no blocks) or running, and there perhaps
 * restoring: it has its blocks and storage writes some of them. It comes back once, by
 * sequence_ended. Blocks that storage may still write when their sequence has lost them (it ended,
 * or its read took too long) are their restore's until storage has ended. */
#ifndef DECODE_DECODE_H
#define DECODE_DECODE_H

#include "engine/draw.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/map.h"
#include "daemons/worker/seq/score.h"
#include "daemons/worker/stage.h"
#include "daemons/worker/seq/copy.h"

#include <pthread.h>
#include <stdatomic.h>

enum sequence_state {
	SEQUENCE_NEW,
	SEQUENCE_COMPILING,
	SEQUENCE_QUEUED,
	SEQUENCE_LEASED,
	SEQUENCE_QUARANTINE,
	SEQUENCE_ACTIVE,
	SEQUENCE_END,
	SEQUENCE_STATE_COUNT
};

/* What an ACTIVE one does; for pdctl, by which it is read without a lock. */
enum sequence_phase { PHASE_WAITING, PHASE_PREEMPTED, PHASE_RESTORING, PHASE_RUNNING };

struct restore;

struct sequence {
	struct list node;  /* all, by arrival */
	struct list queue; /* reservations that wait, in order */
	/* QUEUED: ordinal in the queue, and blocks asked for by it and all before it. Both only grow:
	 * decode.gone_* are those of the last one that left at the head */
	uint64_t place, cumulative_blocks;
	uint32_t asks;        /* blocks: for its tokens, and what is kept for its growth */
	uint64_t estimate_us; /* the first that was told, 0: none */
	uint64_t told_us;     /* QUEUED: when its prefill worker was last told its place */
	struct list batch;    /* schedule thread: waiting or running */
	struct worker *w;
	struct request_copy req;
	enum sequence_state state;
	_Atomic int cancelled;
	struct compile_task form; /* COMPILING */
	char prefill[48];         /* who reserved, and its epoch; "" for local ones */
	uint64_t prefill_epoch;

	uint64_t lease_id, lease_generation;
	uint64_t lease_until_us;
	uint64_t writer; /* epoch of the messager that may write, 0: none */
	int revoke_owed; /* QUARANTINE: LEASE_REVOKE is not on the present link to it */
	int kv_ready, has_first;
	struct kern_drawn first;

	struct kv_hash *hashes; /* of full blocks so far */
	uint32_t n_hashes, room_hashes;
	uint32_t *blocks, n_blocks, room_blocks;
	uint32_t n_matched; /* blocks that the prefix index gave when it was granted */

	/* schedule thread */
	uint64_t born_us; /* youngest is preempted first */
	int running;
	uint64_t growth;    /* its part of decode.growth_blocks */
	uint32_t computed;  /* tokens whose KV is in the blocks */
	uint32_t published; /* full blocks in the index */
	/* rows after its last token for which this step has room too, without preempting anybody */
	uint32_t ahead;
	uint32_t preemptions, chunks;
	_Atomic int phase;       /* enum sequence_phase */
	struct restore *restore; /* storage is asked for its blocks; NULL: it is not */
	int no_read;             /* its last read was given up: this time it is computed */
	/* since a preemption: when it got blocks again, until it has caught up; 0: it has */
	uint64_t back_us;
	struct spec_sequence *spec; /* what its drafts were like; NULL: none was thought of */
	uint32_t drafted, accepted; /* tokens, of all its drafts */
	/* prompt_logprobs: tokens of the prompt that were sent, its first one not counted */
	uint32_t scored;
	int failed;
	/* of those that failed: its constraint or a draw did (constraint_fault); NONE: the step */
	Pds__Fault draw_fault;
	char fail_text[160];

	uint64_t accepted_us, granted_us, ready_us, joined_us, first_us, done_us;
	uint64_t prefill_begin_us;
	uint32_t cached_tokens;
};

struct tombstone { /* a cancel that came first, or an attempt that has ended */
	struct list node;
	struct attempt_key key;
	uint64_t until_us;
};

#define HASH_TOKENS 4096u /* hashed in one round of the loop: about 50 us */
#define TOMB_SECONDS 600u /* longest life of a tombstone */
#define TOMB_WHEEL 1024u  /* one list for each second of it, and to spare */

/* Events per microsecond: those of late weigh most. */
struct rate {
	uint64_t last;      /* what the counter said */
	double sum, weight; /* sum / weight is the rate; weight 0: not known */
};

struct decode {
	struct worker *w;
	struct list sequences, queued;
	struct map *by_key, *by_lease, *tombstone_by_key;
	uint32_t n_sequences, max_sequences, count[SEQUENCE_STATE_COUNT];
	uint64_t lease_us;
	int draining;
	struct event *timer;   /* pending while there are sequences */
	struct event *hashing; /* pending while the head of the queue is hashed in pieces */
	/* reservations that wait: place and cumulative_blocks of the last one that left at the head,
	 * and of the last one that came */
	uint64_t gone_place, gone_cumulative_blocks, last_place, last_cumulative_blocks;
	uint32_t max_queued;
	struct rate blocks, ends; /* blocks given back; leases and sequences that ended */
	uint64_t rated_us, ended;
	/* tombstones by the second of their end */
	struct list tombstones[TOMB_WHEEL];
	uint64_t tombstone_second; /* all before it have ended */
	uint32_t n_tombstones;
	/* schedule thread */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct list inbox;
	int stop, kicked;
	struct list answers;          /* restores whose batch has ended */
	struct list waiting, running; /* by age */
	struct list restores;         /* by when they were asked for (restore.c) */
	/* the one that storage reads for; one at a time, so that a storage that stops takes few
	 * blocks with it */
	struct restore *reading;
	uint32_t fenced; /* restores given up that storage has not ended: one at most */
	uint32_t *fence_blocks, n_fence_blocks; /* its blocks; under the lock */
	uint64_t no_storage_until_us; /* storage did not answer: it is not asked before that */
	int lacking;                  /* somebody sits out until a write-out or a fence has ended */
	int stalled;                  /* the last step had nothing that can run */
	_Atomic uint32_t at_storage;  /* batches of restores */
	int save_preempted;
	uint64_t wait_us, restore_wait_us;
	uint32_t n_running;
	/* sequences that wait for room to come back: they go before new reservations */
	_Atomic uint32_t preempted;
	_Atomic uint32_t active; /* handed to the thread and not yet back */
	/* room kept for the growth of the active, by the ratio below */
	_Atomic uint64_t growth_blocks;
	double ratio, ratio_first, ratio_min, ratio_step, ratio_rise;
	int raised; /* in this step */
	uint32_t growth_cap;
	uint32_t chunk_tokens;
	struct engine_draw *draws; /* (max_logits) of the present step */
	struct engine_span *spans;
	struct sequence **step_sequences;
	struct spec *spec;
	int keep_outputs;
};

static inline struct decode *decode_of(struct worker *w)
{
	return w->state;
}

void decode_watch(struct decode *d); /* stage.c: there is a sequence to watch */

/* sequence.c */
const char *sequence_state_name(enum sequence_state s);
void sequence_enter(struct sequence *q, enum sequence_state next);
/* Registers a checked request; NULL and a fault when it is refused (bounds, draining, size). */
struct sequence *sequence_new(struct worker *w, const struct msg_head *h, const Pds__Request *r,
                              Pds__Fault *fault, struct err *err);
void sequence_end(struct sequence *q); /* gives back what it has, leaves a tombstone, frees */
/* as if it had never come: the same attempt may be asked for again */
void sequence_forget(struct sequence *q);
void sequence_head(const struct sequence *q, struct msg_head *h);
struct sequence *sequence_find(struct decode *d, const struct msg_head *h);
/* Extends q->hashes by the blocks of at most `tokens` tokens. 1: all full blocks are hashed.
 * sequence_hash: all at once, on the schedule thread. */
int sequence_hash_some(struct sequence *q, uint32_t tokens);
void sequence_hash(struct sequence *q);
uint64_t sequence_growth_tokens(const struct decode *d, const struct request_copy *w);

/* tombstone.c */
void tombstones_init(struct decode *d);
void tombstones_fini(struct decode *d);
void tombstone_add(struct decode *d, const struct attempt_key *k, uint64_t until_us);
int tombstone_has(struct decode *d, const struct attempt_key *k);
void tombstone_expire(struct decode *d, uint64_t now_us);

/* queue.c: reservations that wait for room, in order */
void queue_push(struct decode *d, struct sequence *q);
/* from anywhere in it; nothing if it is not there */
void queue_remove(struct decode *d, struct sequence *q);
uint32_t queue_position(const struct decode *d, const struct sequence *q); /* 1: the next */
/* work begins: the time without any does not count */
void rates_begin(struct decode *d, uint64_t now_us);
void rates_update(struct decode *d, uint64_t now_us);
/* How long until `cumulative_blocks` blocks and `position` sequences have got room; 0: not
 * known. */
uint64_t queue_estimate(struct decode *d, uint64_t cumulative_blocks, uint32_t position);
uint64_t queue_estimate_of(struct decode *d, const struct sequence *q);
/* retry hint when the queue is full; never 0 */
uint64_t queue_retry_after(struct decode *d);

/* form.c: constraints are compiled before anything else is done with their sequences */
void form_stop(struct decode *d); /* none is at the compiler any more */
/* Goes on with a sequence that is NEW: reserved_new or submitted_new, now or when its constraint
 * is compiled; or it is refused. */
void form_then_go_on(struct sequence *q);
void submitted_new(struct sequence *q); /* stage.c */

/* lease.c */
void reserved_new(struct sequence *q);
/* to who reserved it, if it is still there */
void lease_deny(struct sequence *q, Pds__Fault fault, const char *text, uint64_t retry_us);
void lease_try_grant(struct decode *d);
/* blocks that are kept for those who have room */
uint64_t lease_growth(struct decode *d);
void lease_drop(struct sequence *q, const char *why); /* QUEUED, LEASED: with the fence */
/* As drop, and the router is told. by_prefill: it was the prefill worker's failure. */
void lease_lost(struct sequence *q, const char *why, int by_prefill);
/* Reservations that wait for room: their prefill workers hear the place again, each second. */
void lease_tell_queued(struct decode *d, uint64_t now_us);
/* those who wait for room ask elsewhere */
void lease_deny_queued(struct decode *d, const char *why);
void lease_messager_gone(struct decode *d, uint64_t epoch);
void lease_messager_up(struct decode *d);
void lease_check(struct decode *d, uint64_t now_us);
void on_reserve(struct worker *w, struct peer *p, const struct msg_head *h,
                const ProtobufCMessage *body);
void on_renew(struct worker *w, struct peer *p, const struct msg_head *h,
              const ProtobufCMessage *body);
void on_lease_open(struct worker *w, struct peer *p, const struct msg_head *h,
                   const ProtobufCMessage *body);
void on_lease_revoked(struct worker *w, struct peer *p, const struct msg_head *h,
                      const ProtobufCMessage *body);
void on_kv_ready(struct worker *w, struct peer *p, const struct msg_head *h,
                 const ProtobufCMessage *body);
void on_first_token(struct worker *w, struct peer *p, const struct msg_head *h,
                    const ProtobufCMessage *body);

/* batch.c */
int batch_start(struct decode *d, struct err *err);
void batch_stop(struct decode *d);
void batch_add(struct decode *d, struct sequence *q);
void batch_kick(struct decode *d);

/* room.c: blocks for those who run; the schedule thread's */
void room_insert_by_age(struct list *head, struct sequence *q);
void room_drop_blocks(struct sequence *q); /* also while it is being restored */
/* blocks for the next step of all that run; preempts */
void room_grow(struct decode *d);
void room_admit_waiting(struct decode *d); /* by age, while there is room */
/* it has what its next step needs */
int room_ready(const struct decode *d, const struct sequence *q);
void room_caught_up(struct decode *d, struct sequence *q); /* its last token was computed */
/* a running one gives its blocks back and waits, by age */
void room_wait_again(struct decode *d, struct sequence *q);
/* nothing can run: when to look again at the latest, 0: any time. With the lock held */
uint64_t room_wake_us(const struct decode *d);

/* restore.c: blocks that are read back from storage; the schedule thread's */
/* q has just got its blocks; those before `end` need not be computed */
void restore_begin(struct decode *d, struct sequence *q, uint32_t end);
/* q gives them back; those that storage may still write stay with the restore */
void restore_leave(struct decode *d, struct sequence *q);
/* what storage has answered, and what it did not in time */
void restore_deal(struct decode *d);
/* blocks come back when storage acknowledges, which is not long overdue */
int restore_fenced_soon(const struct decode *d);
uint64_t restore_next_us(const struct decode *d); /* 0: nothing is due */
/* it waits for the end of a read that was given up. Any thread */
int restore_fences(struct decode *d, uint32_t block);
void restore_fini(struct decode *d);

/* spec.c: drafts of what comes next, computed and checked in one step; the schedule thread's */
struct spec *spec_new(struct worker *w); /* by the configuration */
void spec_destroy(struct spec **s);
/* before room_grow: sets `ahead` of all that run; the drafts stand behind their tokens */
void spec_plan(struct decode *d);
/* number of leading draft tokens that were right */
void spec_learn(struct decode *d, struct sequence *q, uint32_t drafted, uint32_t right);
/* a step in which everybody only decoded */
void spec_step_took(struct decode *d, uint32_t rows, uint64_t us);
void spec_forget(struct sequence *q);
/* JSON members, begins with a comma. Any thread */
void spec_status(const struct decode *d, struct buf *out);

/* keep.c: output caching; the schedule thread's */
void keep_output(struct decode *d, struct sequence *q); /* q ends and still has its blocks */

/* report.c: what a step produced, on its way to the routers */
struct report;
struct report *report_new(struct worker *w);
void report_token(struct report *r, struct sequence *q, uint32_t index, const struct kern_drawn *s,
                  Pds__Finish finish);
void report_send(struct report *r); /* posts to the loop; r is gone */
void report_timing(const struct sequence *q, Pds__Timing *t);
void sequence_ended(struct svc *s, void *sequence); /* posted by the schedule thread */

#endif
