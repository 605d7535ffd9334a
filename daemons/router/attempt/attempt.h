/* attempt.h - the attempts at an answer: which of them runs where, and each token of the answer
 * once.
 *
 * An answer has one struct attempt for its whole life; it is submitted again, under the next
 * number, when workers lose it. Each of these submissions is a try here; messages and PROTOCOL.md
 * call it an attempt, by that number. attempt_step (attempt.c) is the only function that changes
 * the state:
 *
 *   NEW -> WAITING, SUBMITTED, ENDED  nothing was sent
 *   WAITING -> SUBMITTED, ENDED  no worker has it. A new one waits for its turn, because workers
 *                        have enough to start with, or for a worker that restarts if there is no
 *                        other. One that was lost waits for a worker, or for a pause to end, but
 *                        for no turn
 *   SUBMITTED -> RUNNING, WAITING, ENDED  sent to the prefill worker; which candidate decodes is
 *                        not known yet. An embedding and an answer of a single token have no
 *                        candidates, and come in one piece
 *   RUNNING -> WAITING, ENDED  the decode worker is known: the prefill worker has named it with the
 *                        first token, or it has sent tokens itself. The two have links of their
 *                        own, so either may come first
 *
 * Rules (model-checked, the handover model): before an attempt is submitted the one before is
 * cancelled at its prefill worker and at every candidate; messages of lower numbers are dropped; a
 * token's index gives its position, so repeated tokens are recognised. In SUBMITTED only the
 * prefill worker can end a try, by its message or its death; a candidate's report of a lost lease
 * is kept, and counts if that candidate is named. In RUNNING the decode worker can; the prefill
 * worker too, until the decode worker has sent tokens, which shows that the KV has arrived, and
 * until all log-probabilities of the prompt are here. Tokens that come before those are held.
 *
 * A lost try is followed by another at once, a second loss in a row after a pause that grows,
 * because one fault may take several workers one after the other. The last one is made without
 * hand-over if that failed and no worker was to blame: messagers may be unable to reach each other.
 * A loss counts against the worker that caused it, if a worker did. These are not losses:
 *   - a link restart. The next try waits for the link: if this process was stopped for a while, all
 *     links restart;
 *   - an attempt that a worker gives back because it stops or switches its role, or that is taken
 *     from a worker that was told to stop;
 *   - an embedding for which a worker is full, if it has others of this router: its turn comes
 *     again.
 * A worker that is stuck, or told to stop, loses its attempts as soon as another worker can take
 * them; until then they stay.
 *
 * New attempts go to workers in the turns of their callers (util/fair.h), by tokens, and only as
 * far as workers can start with them soon (place.c): all others wait here. A caller that is alone
 * has all workers; beside others it gets its share of what becomes free.
 *
 * One thread. */
#ifndef ROUTER_ATTEMPT_H
#define ROUTER_ATTEMPT_H

#include "msg/chan.h"
#include "daemons/router/place/place.h"
#include "daemons/router/place/registry.h"
#include "util/list.h"
#include "util/log.h"
#include "util/fair.h"

#include <stddef.h>
#include <stdint.h>

enum attempt_state {
	ATTEMPT_NEW,
	ATTEMPT_WAITING,
	ATTEMPT_SUBMITTED,
	ATTEMPT_RUNNING,
	ATTEMPT_ENDED
};

/* How an answer ended: as OpenAI names it, or cancelled, or failed. */
enum answer_finish {
	ANSWER_FINISH_NONE,
	ANSWER_FINISH_STOP,
	ANSWER_FINISH_LENGTH,
	ANSWER_FINISH_ABORT,
	ANSWER_FINISH_ERROR
};

/* What the owner decides when it gets new tokens. */
enum attempt_verdict {
	ATTEMPT_GO,
	ATTEMPT_STOP /* the answer ends here: a stop string */,
	ATTEMPT_ABORT
};

struct attempt;

struct attempt_hooks {
	/* New tokens, each index once and in order. last: not NONE if these are the last tokens: STOP
	 * or LENGTH. The attempt must not be destroyed inside. */
	enum attempt_verdict (*tokens)(void *owner, struct attempt *a, Pds__Token *const *tokens,
	                               size_t n, enum answer_finish last);
	/* Log-probabilities of the prompt's tokens, if the request wants them: n entries of m, from
	 * entry `from` on. Each token's entry is passed once, in order, and all of them before the
	 * answer's first token. */
	void (*prompt)(void *owner, struct attempt *a, const Pds__PromptLogprobs *m, size_t from,
	               size_t n);
	/* The embedding, if the request wants one: (asked.hidden) values. 0, or -1: out of memory. */
	int (*embedding)(void *owner, struct attempt *a, const float *values);
	/* The attempt has ended, with the outcome in `end`. The owner may destroy it inside. */
	void (*ended)(void *owner, struct attempt *a);
};

/* A caller: its attempts take turns with those of other callers. */
struct attempt_caller {
	struct fair_owner turns;
	uint64_t id;    /* constant for a caller */
	uint32_t seats; /* its attempts at workers that decode or will decode */
};

void attempt_caller_init(struct attempt_caller *c, uint64_t id);

/* What was asked for. Pointers are not copied: what they point to outlives the attempt. */
struct attempt_spec {
	const uint32_t *tokens; /* (prompt_tokens) */
	uint32_t prompt_tokens, max_tokens;
	int open_end; /* the client set no limit: the answer may end where its worker's room does */
	Pds__Sampling sampling;
	const uint32_t *stop_ids; /* (n_stop_ids) */
	size_t n_stop_ids;
	int ignore_eos;
	Pds__Pooling pooling; /* not NONE: an embedding is made instead of tokens; max_tokens is 1 */
	uint32_t hidden;      /* its elements; else 0 */
	const Pds__Constraint *constraint; /* NULL: free text */
	const unsigned char *cache_salt;   /* (CACHE_SALT_BYTES), or NULL */
	uint64_t begun_us, deadline_us;
	const struct prefixes *prefixes; /* hashes of the prompt's blocks; NULL: not hashed */
	const struct place_pin *pin;     /* NULL: none */
	uint64_t session;                /* policy_key of the client's session; 0: none */
	const struct attempt *beside;    /* an earlier answer with the same prompt; NULL: none */
	struct attempt_caller *caller;
	const char *key, *client; /* for attempts_json: name of the access key, address; or NULL */
};

/* A decode worker that the prefill worker may choose. */
struct attempt_candidate {
	char name[WORKER_NAME_MAX];
	uint64_t epoch;
	/* what the candidate has reported about this try's lease: LOST: it has dropped the lease;
	 * GIVEN_BACK: it ends in order and gives the try back */
	enum { LEASE_KEPT, LEASE_LOST, LEASE_LOST_BY_PREFILL, LEASE_GIVEN_BACK } lease;
};

/* How many of the prompt's tokens the prefill worker was expected to have in its KV cache; compared
 * with what it reports. */
struct attempt_prediction {
	int made;
	uint32_t hit, stored; /* tokens; stored: the part of hit that is in its storage */
};

/* The present try. */
struct attempt_try {
	struct worker_record *prefill;            /* got Submit; NULL when it is down */
	struct worker_record *decode;             /* decodes or is expected to; NULL when it is down */
	struct list at_prefill, at_decode;        /* worker_record.prefills, .decodes */
	uint64_t charged_prefill, charged_decode; /* in the workers' tokens_in_flight */
	uint64_t backlog; /* in prefill's backlog_tokens, until the prompt is computed */
	int starts;       /* counts in decode's `starting` */
	int seated;       /* counts in caller's `seats` */
	int computed;     /* the prompt is computed; counted for the prefill worker */
	int decode_sent;  /* the decode worker has sent tokens: it has the KV */
	struct attempt_candidate cand[PLACE_CANDIDATES_MAX];
	unsigned n_cand; /* 0: prefill does it all */
	struct attempt_prediction predicted;
	uint32_t began_out; /* got.n_out when it was submitted */
	uint64_t began_ups; /* registry.ups when it was submitted */
	/* for the log when the workers are gone. decode_name: "" until the decode worker is known */
	char prefill_name[WORKER_NAME_MAX], decode_name[WORKER_NAME_MAX];
	struct list held; /* struct held_tokens: until all log-probabilities of the prompt are here */
	uint32_t n_held;
};

struct attempt_times {
	uint64_t turn_us; /* at the router, for its turn */
	uint64_t queue_us, prepare_us, reserve_us, prefill_us, transfer_us, decode_us;
	uint32_t cached_tokens, stored_tokens, chunks, preemptions;
};

/* What has arrived, over all tries. */
struct attempt_output {
	uint32_t *out; /* (size): the answer so far */
	uint32_t size, n_out;
	uint32_t prompt_rows; /* prompt tokens whose log-probabilities are here; the first has none */
	uint64_t first_us;    /* 0: no token yet */
	struct attempt_times times;
};

/* What earlier tries mean for the next one. */
struct attempt_history {
	uint32_t lost;               /* losses in a row without progress beyond a first token */
	uint32_t moved;              /* tries that workers gave back in order */
	int alone;                   /* the next try is the last one, and this one's hand-over failed */
	char avoid[WORKER_NAME_MAX]; /* worker that failed the last try, or gave it back */
	char numerics[96];           /* of the first try */
	uint64_t not_before_us;      /* the next try */
	int was_there;               /* a worker had it: the next try does not wait for a turn */
};

struct attempt_outcome {
	enum answer_finish finish;
	int status; /* of HTTP; 0: not ended */
	/* ERROR: time until workers may have room, as the worker that failed the attempt last has
	 * reported it; 0: unknown */
	uint64_t retry_after_us;
	char why[256];
};

struct attempt {
	struct attempts *all;
	const struct attempt_hooks *hooks;
	void *owner;
	struct reqid id;
	enum attempt_state state;
	uint32_t number;         /* of the present try; 0 before the first */
	struct list by_deadline; /* attempts.live */
	struct list waiting;     /* attempts.waiting in WAITING */
	struct fair_item turn;   /* attempts.queue in WAITING, instead of attempts.waiting */
	uint64_t until_us;       /* in attempts.waiting: the latest time at which that ends */
	uint64_t since_us;       /* in attempts.queue */
	struct attempt_spec asked;
	struct attempt_try try;
	struct attempt_output got;
	struct attempt_history past;
	struct attempt_outcome end;
};

struct attempts_opts {
	/* consecutive lost tries allowed; ATTEMPTS_TIMES as many in total, for whatever reason */
	uint32_t max_attempts;
	/* how long a lost attempt waits for a worker, and a new one for a worker that restarts */
	uint64_t retry_wait_us;
	void *arg;
	/* 0, ERR_FULL or ERR_CLOSED */
	int (*send)(void *arg, struct worker_record *w, enum msg_type type, const struct msg_head *head,
	            const void *body);
};

struct attempts_counts {
	uint64_t started, done, failed, cancelled, retries, duplicates, stale, mismatches,
		prompt_tokens, output_tokens, cached_tokens;
	/* prompt tokens of attempts for which a prediction was made; stored: read from storage */
	uint64_t hits_predicted, hits_actual, hits_stored_predicted, hits_stored_actual;
};

#define ATTEMPTS_RECENT 16384u
#define ATTEMPTS_TIMES 4u
#define ATTEMPTS_DRAWN 128u
#define ATTEMPT_MOVES_MAX 64u /* tries given back in order; each one after that is a loss */

struct attempts {
	struct attempts_opts opts;
	struct registry *registry;
	struct map *by_id;
	struct list live;        /* all that have not ended, earliest deadline first */
	struct list waiting;     /* attempts that wait for a worker, or for a pause to end */
	struct fair_queue queue; /* new attempts, which wait for their turn */
	size_t n_prefill_only;   /* attempts in the queue that need no decode worker */
	uint64_t queued_tokens;  /* of the prompts in the queue */
	int room;                /* a worker may have room for an attempt of the queue */
	/* the caller of the last new attempt, when that was, and when another caller had one before */
	struct {
		uint64_t id, us, other_us;
	} last;
	struct attempts_counts counts;
	/* random ids of the next attempts, drawn by one system call; the first n_drawn are unused */
	struct reqid drawn[ATTEMPTS_DRAWN];
	unsigned n_drawn;
	/* tries that were complete or cancelled at a worker: its late messages about them are
	 * ignored */
	struct {
		struct reqid id;
		uint64_t epoch; /* of the worker */
		uint32_t number;
	} recent[ATTEMPTS_RECENT];
};

void attempts_init(struct attempts *e, struct registry *g, const struct attempts_opts *opts);
void attempts_fini(struct attempts *e); /* attempts are freed by their owners */
size_t attempts_count(const struct attempts *e);
struct attempt *attempts_find(const struct attempts *e, const struct reqid *id);

struct attempt *attempt_new(struct attempts *e, const struct attempt_spec *spec,
                            const struct attempt_hooks *hooks, void *owner);
void attempt_destroy(struct attempt **a); /* cancels what still runs */
/* Makes the first try now, when the attempt's turn comes, or when a worker that restarts is
 * back. 0, or ERR_NOTFOUND (no worker), ERR_FULL (too long for all workers): nothing was
 * started, and `ended` is not called. */
int attempt_start(struct attempt *a);
/* After an error of attempt_start: waits for a worker, like an attempt that was lost. */
void attempt_wait(struct attempt *a);
/* Cancels it at all workers, at once. `ended` is not called. Does nothing if it has ended. */
void attempt_cancel(struct attempt *a, const char *reason);
/* After an error of attempt_start: the attempt fails. `ended` is not called. */
void attempt_refuse(struct attempt *a, int status, const char *why);
int attempt_ended(const struct attempt *a);
const char *attempt_state_name(enum attempt_state state);
const char *answer_finish_name(enum answer_finish finish);

void attempts_first_token(struct attempts *e, struct worker_record *w, const struct msg_head *head,
                          const Pds__FirstToken *m);
void attempts_prompt(struct attempts *e, struct worker_record *w, const struct msg_head *head,
                     const Pds__PromptLogprobs *m);
void attempts_embedding(struct attempts *e, struct worker_record *w, const struct msg_head *head,
                        const Pds__Embedding *m);
void attempts_tokens(struct attempts *e, struct worker_record *w, const Pds__Tokens *m);
void attempts_failed(struct attempts *e, struct worker_record *w, const struct msg_head *head,
                     const Pds__Failed *m);
void attempts_worker_up(struct attempts *e);
enum worker_end {
	WORKER_LOST,         /* its process has ended, or it is silent: its failure */
	WORKER_LINK_RESTART, /* its process lives, its link restarts */
	WORKER_GOODBYE       /* it has ended in order */
};
/* Call registry_down first. */
void attempts_worker_down(struct attempts *e, struct worker_record *w, const char *why,
                          enum worker_end how);
/* Submits queued attempts for which there is room, if places became free since the last call.
 * Attempts may be freed, so do not call it from a hook, or after attempt_cancel in an owner's
 * function. */
void attempts_take_turns(struct attempts *e, uint64_t now_us);
/* Handles deadlines and waits; call it about every 50 ms. */
void attempts_tick(struct attempts *e, uint64_t now_us);
/* An array. key: only of this access key; NULL: all. */
void attempts_json(const struct attempts *e, const char *key, uint64_t now_us, struct buf *out);

#endif
