/* decode.h - the decode stage on the loop: sequences and their leases. What the schedule thread
 * owns is in daemons/worker/batch/batch.h.
 *
 * A sequence is one attempt of one request at this worker. Its states (sequence.c):
 *
 *   COMPILING -> QUEUED, ACTIVE, GIVEN_UP    the compiler has its constraint, if it has one
 *   QUEUED -> LEASED    a reservation that waits for room, in order
 *   LEASED -> ACTIVE, QUARANTINE    has blocks, which the messager fills; waits for KvReady and for
 *          the first token
 *   ACTIVE -> GIVEN_UP    the schedule thread has its run (joined after a hand-over, or submitted
 *          without a candidate)
 *   QUARANTINE    given up while a messager may still write: the blocks stay until that messager
 *          acknowledges LEASE_REVOKE, or its process ends
 *   GIVEN_UP    while the compiler has its constraint, or the schedule thread its run: until that
 *          thread gives it back
 *
 * Each of them may end: then nothing is held, and the memory is freed. An attempt that is refused
 * leaves no tombstone, because the same one may be asked for again. */
#ifndef DECODE_DECODE_H
#define DECODE_DECODE_H

#include "util/map.h"
#include "daemons/worker/batch/batch.h"
#include "daemons/worker/stage.h"

enum sequence_state {
	SEQUENCE_COMPILING,
	SEQUENCE_QUEUED,
	SEQUENCE_LEASED,
	SEQUENCE_ACTIVE,
	SEQUENCE_QUARANTINE,
	SEQUENCE_GIVEN_UP
};
#define SEQUENCE_STATES (SEQUENCE_GIVEN_UP + 1)

enum sequence_event {
	SEQUENCE_ON_ENTER,        /* the state was entered just now */
	SEQUENCE_ON_COMPILED,     /* the compiler is done with its constraint: form.code */
	SEQUENCE_ON_ROOM,         /* it is the head of the queue, and room may have come back */
	SEQUENCE_ON_NO_HANDOVER,  /* the stage takes no reservations any more */
	SEQUENCE_ON_KV_READY,     /* lease.ready_us is set */
	SEQUENCE_ON_FIRST_TOKEN,  /* lease.first_us is set */
	SEQUENCE_ON_BAD_TOKEN,    /* the first token is outside the vocabulary */
	SEQUENCE_ON_RETURNED,     /* the schedule thread has given its run back */
	SEQUENCE_ON_FENCED,       /* no messager can write under its lease */
	SEQUENCE_ON_MESSAGER_UP,  /* the link to a messager has come up */
	SEQUENCE_ON_PREFILL_GONE, /* the prefill worker that reserved it */
	SEQUENCE_ON_CANCEL,       /* by router, prefill worker, deadline, or abort of the stage */
	SEQUENCE_ON_TICK,         /* every 50 ms */
	SEQUENCE_ON_STOP,         /* the stage ends: no thread has it any more */
};

/* Of a reservation. */
struct queue_place {
	struct list node; /* of reserve_queue.waiting */
	uint32_t blocks;  /* that it asks for: for its tokens, and kept for its growth */
	/* its number, and the blocks asked for by it and all before it. Both only grow along the queue:
	 * reserve_queue.gone_* are those of the last one that left at the head */
	uint64_t number, cumulative_blocks;
	uint64_t estimate_us; /* the first one that its prefill worker was told, 0: none */
	uint64_t told_us;     /* when that worker was last told its place */
};

struct sequence_lease {
	uint64_t id; /* and its generation; 0: nothing was granted */
	uint64_t until_us;
	uint64_t writer; /* epoch of the messager that may write, 0: none */
	int opened;      /* a messager was registered as the writer, whether or not it still lives */
	uint64_t granted_us;
	uint64_t ready_us; /* when the KV was complete, 0: it is not */
	uint64_t first_us; /* when the first token came, 0: it has not */
	int in_order;      /* given back because this worker ends, or switches its role */
	int revoked;       /* in QUARANTINE: LEASE_REVOKE was sent, or nobody needs it */
	struct kern_drawn first;
	Pds__Timing prompt; /* the prefill worker's, which came with the first token */
};

/* The loop's, except `run` while the schedule thread has it, and `shared`. */
struct sequence {
	struct list node; /* of decode.sequences, by arrival */
	struct worker *w;
	enum sequence_state state;
	int refused;                 /* it ends with this answer: no tombstone */
	struct constraint_task form; /* its constraint */
	char prefill[48];            /* the worker that reserved it; "": it was submitted to this one */
	uint64_t prefill_epoch;
	char messager[48]; /* of that worker */
	struct queue_place place;
	struct sequence_lease lease;
	struct run run;
	struct run_shared shared;
};

struct tombstone { /* a cancel that came before its attempt, or an attempt that has ended */
	struct list node;
	struct attempt_key key;
	uint64_t until_us;
};

#define HASH_TOKENS 4096u      /* hashed in one round of the loop: about 50 us */
#define TOMBSTONE_SECONDS 600u /* longest life of a tombstone */
#define TOMBSTONE_WHEEL 1024u  /* one list for each second of it; more than TOMBSTONE_SECONDS */

struct tombstones {
	struct map *by_key;
	struct list wheel[TOMBSTONE_WHEEL]; /* by the second in which they end */
	uint64_t second;                    /* all that end before it are freed */
	uint32_t n;
};

/* Events per microsecond; recent ones weigh most. */
struct event_rate {
	uint64_t last;      /* value of the counter at the last update */
	double sum, weight; /* sum / weight is the rate; weight 0: unknown */
};

struct reserve_queue {
	struct list waiting;
	/* of the last one that left at the head, and of the last one that came */
	uint64_t gone_number, gone_cumulative_blocks, last_number, last_cumulative_blocks;
	struct event_rate blocks; /* given back */
	struct event_rate ends;   /* of leases and sequences */
	uint64_t rated_us, ended;
	struct event *room; /* pending: the head is looked at in the next round of the loop */
};

struct decode {
	struct worker *w;
	struct list sequences;
	struct map *by_key, *by_lease;
	uint32_t n_sequences, n_active, count[SEQUENCE_STATES];
	int draining;
	struct event *timer; /* pending while there are sequences */
	struct reserve_queue queue;
	struct tombstones tombstones;
	struct batcher batcher;
};

static inline struct decode *decode_of(struct worker *w)
{
	return w->state;
}

/* Sequences whose run the schedule thread has. */
static inline uint32_t decode_active(const struct decode *d)
{
	return d->n_active;
}

/* stage.c: starts the timer if it does not run */
void decode_watch(struct decode *d);

/* sequence.c */
const char *sequence_state_name(enum sequence_state s);
static inline int sequence_is_given_up(const struct sequence *q)
{
	return q->state >= SEQUENCE_QUARANTINE;
}
/* Registers a checked request in state COMPILING; its first event is ON_ENTER. NULL, fault and err
 * when it is refused (bounds, draining, size). */
struct sequence *sequence_new(struct worker *w, const struct msg_head *h, const Pds__Request *r,
                              Pds__Fault *fault, struct err *err);
struct sequence *sequence_find(struct decode *d, const struct msg_head *h);
/* Acts on the event; q may be freed. Frees no other sequence. */
void sequence_step(struct sequence *q, enum sequence_event event);
void sequence_returned(struct svc *s, void *run); /* batcher.returned */
/* Logs and counts it, then ON_CANCEL; nothing if it is given up already. */
void sequence_cancel(struct sequence *q, const char *why);

/* tombstone.c */
void tombstones_init(struct decode *d);
void tombstones_fini(struct decode *d);
void tombstone_add(struct decode *d, const struct attempt_key *k, uint64_t until_us);
int tombstone_has(struct decode *d, const struct attempt_key *k);
void tombstone_expire(struct decode *d, uint64_t now_us);

/* queue.c: reservations that wait for room, in order */
void queue_init(struct decode *d);
void queue_fini(struct decode *d);
void queue_push(struct decode *d, struct sequence *q);
/* From anywhere in the queue; does nothing if q is not in it. */
void queue_remove(struct decode *d, struct sequence *q);
uint32_t queue_position(const struct decode *d, const struct sequence *q); /* 1: the next */
/* Room may have come back: as many as fit get ON_ROOM, in the next round of the loop. */
void queue_room(struct decode *d);
/* There was no work until now: that time does not count. */
void queue_rates_begin(struct decode *d, uint64_t now_us);
void queue_rates_update(struct decode *d, uint64_t now_us);
/* Time in us until `cumulative_blocks` blocks and `position` sequences have got room; 0:
 * unknown. */
uint64_t queue_estimate(struct decode *d, uint64_t cumulative_blocks, uint32_t position);
uint64_t queue_estimate_of(struct decode *d, const struct sequence *q);
/* Retry hint in us when the queue is full; never 0. */
uint64_t queue_retry_after(struct decode *d);

/* lease.c: what the states QUEUED, LEASED and QUARANTINE do; each only acts on its
 * sequence and answers, none of them steps */
enum lease_verdict { LEASE_GRANTED, LEASE_MUST_WAIT };
enum lease_verdict lease_try(struct sequence *q); /* the head of the queue */
enum join_verdict { JOIN_RUNS, JOIN_ANSWERED };
/* KV and first token are there: sends the first token. ANSWERED: it was the last one. */
enum join_verdict lease_join(struct sequence *q);
/* Tells the writer, if its link is up; else it is told when the link comes up. */
void lease_revoke(struct sequence *q);
void lease_send_grant(struct sequence *q);
/* To the prefill worker that reserved q, if its link is up: place and estimate, or a refusal. */
void lease_send_queued(struct sequence *q);
void lease_send_queued_again(struct sequence *q); /* once a second */
void lease_send_deny(struct sequence *q, Pds__Fault fault, const char *text, uint64_t retry_us);
/* The link to q's router has ended. The prefill worker may still have its own, and waits for a
 * grant: it is told, to ask again in a moment. By then the router has told it that the attempt is
 * over; if not, it is over here (LEASE_LOST). */
void lease_router_gone(struct sequence *q);
/* Tells the router that the lease is lost. by_prefill: it was the prefill worker's failure. */
void lease_fail(struct sequence *q, const char *why, int by_prefill);
/* Blocks that are kept for the growth of those who have room. */
uint64_t lease_growth(struct decode *d);
/* That messager process has ended: it writes no more. */
void lease_messager_gone(struct worker *w, uint64_t epoch);
void on_reserve(struct svc *s, struct peer *p, const struct msg_head *h,
                const ProtobufCMessage *body);
void on_renew(struct svc *s, struct peer *p, const struct msg_head *h,
              const ProtobufCMessage *body);
void on_lease_open(struct svc *s, struct peer *p, const struct msg_head *h,
                   const ProtobufCMessage *body);
void on_lease_revoked(struct svc *s, struct peer *p, const struct msg_head *h,
                      const ProtobufCMessage *body);
void on_kv_ready(struct svc *s, struct peer *p, const struct msg_head *h,
                 const ProtobufCMessage *body);
void on_first_token(struct svc *s, struct peer *p, const struct msg_head *h,
                    const ProtobufCMessage *body);

#endif
