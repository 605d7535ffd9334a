/* attempt.h - the attempts at an answer: which of them runs where, and each token of the answer
 * once.
 *
 * An answer has one struct attempt for its whole life; it is submitted again, under the next
 * number, when workers lose it.
 *
 *   NEW -> SUBMITTED -> HANDED -> DECODING -> DONE
 *            |            |          |
 *            +------------+----------+--> WAITING --> SUBMITTED
 *   from each of them: FAILED, CANCELLED
 *
 *   HANDED    the prefill worker has sent the first token and named the decode worker
 *   DECODING  the decode worker has sent tokens, or one worker does it all
 *   WAITING   the attempt was lost; the next one waits for a worker, or for a pause to end
 *
 * Rules (model-checked, the handover model): before an attempt is submitted the one before is
 * cancelled at its prefill worker and at every candidate; messages of lower numbers are dropped; a
 * token's index says which one it is, so repeated tokens are recognised. Until the decode worker is
 * known only the prefill worker, by its message or its end, ends an attempt; a candidate's report
 * of a lost lease is kept, and counts if that candidate is named. From then on the decode worker's
 * message or end does, and the prefill worker's until decode has sent tokens.
 *
 * A lost attempt is followed by another at once, a second loss in a row after a pause that grows,
 * since one fault may take several workers one after the other. A loss counts against the worker
 * that caused it, if one did. These are not losses:
 *   - a link restart. It is waited for: if this process was stopped for a while, all links restart;
 *   - what a worker gives back because it stops or switches its role, and what is taken from a
 *     worker that was told to stop: attempt_moved.
 * A worker that is stuck, or told to stop, loses its attempts as soon as another one can take them;
 * until then they stay.
 *
 * An answer that is complete before the prefill worker's account of it (times, cached tokens) has
 * arrived waits for that, for a moment. One thread. */
#ifndef ROUTER_ATTEMPT_H
#define ROUTER_ATTEMPT_H

#include "msg/chan.h"
#include "daemons/router/place/place.h"
#include "daemons/router/place/registry.h"
#include "util/list.h"
#include "util/log.h"

#include <stddef.h>
#include <stdint.h>

enum attempt_state {
	ATTEMPT_NEW,
	ATTEMPT_WAITING,
	ATTEMPT_SUBMITTED,
	ATTEMPT_HANDED,
	ATTEMPT_DECODING,
	ATTEMPT_DONE,
	ATTEMPT_FAILED,
	ATTEMPT_CANCELLED
};

/* How an answer ended, as OpenAI names it. */
enum answer_finish {
	ANSWER_FINISH_NONE,
	ANSWER_FINISH_STOP,
	ANSWER_FINISH_LENGTH,
	ANSWER_FINISH_ABORT
};

/* What the owner says to new tokens. */
enum attempt_verdict {
	ATTEMPT_GO,
	ATTEMPT_STOP /* the answer ends here: a stop string */,
	ATTEMPT_ABORT
};

struct attempt;

struct attempt_hooks {
	/* New tokens, each index once and in order; last: no further ones follow, and the model ended
	 * the answer (finish is STOP or LENGTH). The answer must not be destroyed inside. */
	enum attempt_verdict (*tokens)(void *owner, struct attempt *a, Pds__Token *const *tokens,
	                               size_t n, enum answer_finish last);
	/* Log-probabilities of the prompt's tokens, if they were asked for: of n of them, m's from
	 * `from` on, each token's once, in order, and all of them before the first token of the
	 * answer. */
	void (*prompt)(void *owner, struct attempt *a, const Pds__PromptLogprobs *m, size_t from,
	               size_t n);
	/* The state is DONE, FAILED or CANCELLED; the owner may destroy the answer. */
	void (*ended)(void *owner, struct attempt *a);
};

struct attempt_spec {
	const uint32_t *tokens; /* the prompt; not copied: outlives the answer */
	uint32_t prompt_tokens, max_tokens;
	Pds__Sampling sampling;   /* copied, but for its lists: they outlive the answer */
	const uint32_t *stop_ids; /* copied */
	size_t n_stop_ids;
	int ignore_eos;
	const Pds__Constraint *constraint; /* not copied. NULL: free text */
	uint64_t begun_us, deadline_us;
	/* of the prompt; not copied: outlives the answer. NULL: not hashed */
	const struct prefixes *prefixes;
	const struct place_pin *pin; /* not copied. NULL: none */
	uint64_t session;            /* policy_key of the client's session; 0: none */
	/* another answer with this prompt, begun before; outlives this one's last attempt. NULL:
	 * none */
	const struct attempt *beside;
};

struct attempt_place {
	char name[WORKER_NAME_MAX];
	uint64_t epoch;
	int lost;           /* it says that it has dropped its lease of this attempt */
	int blames_prefill; /* ... through the prefill worker's failure */
};

/* What the prefill worker was thought to hold of the prompt, in tokens; counted against what it
 * says. */
struct attempt_prediction {
	int made;
	uint32_t hit, stored; /* stored: of the hits, its storage */
};

struct attempt_times {
	uint64_t queue_us, prepare_us, reserve_us, prefill_us, transfer_us, decode_us;
	uint32_t cached_tokens, stored_tokens, chunks, preemptions;
};

struct attempt {
	struct attempts *all;
	const struct attempt_hooks *hooks;
	void *owner;
	struct reqid id;
	enum attempt_state state;
	uint32_t number;                   /* 0 before the first */
	struct list by_deadline;           /* attempts.live */
	struct list waiting;               /* attempts.waiting while WAITING */
	struct list at_prefill, at_decode; /* worker.prefills, worker.decodes */

	const uint32_t *prompt; /* (prompt_tokens), the owner's */
	uint32_t *out;          /* (size): the answer so far */
	uint32_t size;
	uint32_t prompt_tokens, n_out, max_tokens;
	Pds__Sampling sampling;
	uint32_t *stop_ids;
	size_t n_stop_ids;
	int ignore_eos;
	const Pds__Constraint *constraint;
	const struct prefixes *prefixes;
	const struct place_pin *pin;
	uint64_t session;
	const struct attempt *beside;
	/* log-probabilities of the prompt are still to come; tokens are held until then */
	int want_prompt;
	/* prompt tokens whose log-probabilities have arrived, counting the first, which has none */
	uint32_t got_prompt;

	/* the present attempt */
	struct worker_record *prefill; /* who got Submit; NULL when it is down */
	struct worker_record *decode;  /* who decodes or is expected to; NULL when it is down */
	int alone;                     /* no candidates: prefill does it all */
	int prefill_told;              /* the prefill worker has given its account of it */
	int named;                     /* it is known which of the candidates decodes */
	struct attempt_place cand[PLACE_CANDIDATES_MAX];
	unsigned n_cand;
	uint64_t charged_prefill, charged_decode; /* in the workers' tokens_in_flight */
	/* of charged_prefill: in the worker's backlog_tokens, until the prompt is computed */
	uint64_t backlog;
	struct attempt_prediction predicted;
	struct list held; /* struct held_tokens, while want_prompt or ending */
	uint32_t n_held;
	/* attempts.ending, while the answer's end waits for the prefill worker's account */
	struct list ending;
	uint64_t ending_us; /* since then */

	/* attempts lost in a row, none of which brought more than a first token */
	uint32_t lost;
	uint32_t moved;              /* attempts that workers gave back in order */
	uint32_t began_out;          /* n_out when the present attempt was submitted */
	uint64_t began_ups;          /* and registry.ups */
	char avoid[WORKER_NAME_MAX]; /* whose failure the attempt before was, or who gave it back */
	char numerics[96];           /* of the first attempt */
	uint64_t begun_us, deadline_us, submitted_us, first_us, wait_until_us, not_before_us, ended_us;
	struct attempt_times times;
	char prefill_name[WORKER_NAME_MAX], decode_name[WORKER_NAME_MAX]; /* for the summary */

	enum answer_finish finish;
	int status; /* FAILED: of HTTP */
	/* when workers may have room, as the one said that failed the last attempt; 0: not known */
	uint64_t retry_after_us;
	char why[256];
};

struct attempts_opts {
	/* that may be lost in a row; ATTEMPTS_TIMES as many in all, whatever took them */
	uint32_t max_attempts;
	uint64_t retry_wait_us; /* how long a lost attempt waits for a worker */
	void *arg;
	/* 0, ERR_FULL or ERR_CLOSED */
	int (*send)(void *arg, struct worker_record *w, enum msg_type type, const struct msg_head *head,
	            const void *body);
};

struct attempts_counts {
	uint64_t started, done, failed, cancelled, retries, duplicates, stale, mismatches,
		prompt_tokens, output_tokens, cached_tokens, hits_predicted,
		hits_actual, /* tokens, of sequences for which there was a prediction */
		hits_stored_predicted, hits_stored_actual; /* of them: read back from storage */
};

#define ATTEMPTS_RECENT 16384u
#define ATTEMPTS_TIMES 4u
#define ATTEMPT_MOVES_MAX 64u /* attempts given back in order; each after that is a loss */

struct attempts {
	struct attempts_opts opts;
	struct registry *registry;
	struct map *by_id;
	struct list live; /* all that have not ended, earliest deadline first */
	struct list waiting;
	struct list ending; /* first come first */
	struct list late;   /* summary.c */
	struct map *late_by_id;
	struct attempts_counts counts;
	struct {
		struct reqid id;
		uint64_t epoch; /* of the worker */
		uint32_t attempt;
		/* attempts that ended in order at a worker or were cancelled there: its late messages
		 * need no answer */
	} recent[ATTEMPTS_RECENT];
};

void attempts_init(struct attempts *e, struct registry *g, const struct attempts_opts *opts);
void attempts_fini(struct attempts *e); /* the answers are their owners' */
size_t attempts_count(const struct attempts *e);
struct attempt *attempts_find(const struct attempts *e, const struct reqid *id);

struct attempt *attempt_new(struct attempts *e, const struct attempt_spec *spec,
                            const struct attempt_hooks *hooks, void *owner);
void attempt_destroy(struct attempt **a); /* cancels what still runs */
/* The first attempt. 0, or ERR_NOTFOUND (no worker), ERR_FULL (too long for all workers):
 * nothing was started, `ended` is not called. */
int attempt_start(struct attempt *a);
/* everywhere, at once; `ended` is not called. Ended already: nothing */
void attempt_cancel(struct attempt *a, const char *reason);
int attempt_ended(const struct attempt *a);
const char *attempt_state_name(enum attempt_state state);
const char *answer_finish_name(enum answer_finish finish);

void attempts_first_token(struct attempts *e, struct worker_record *w, const struct msg_head *head,
                          const Pds__FirstToken *m);
void attempts_prompt(struct attempts *e, struct worker_record *w, const struct msg_head *head,
                     const Pds__PromptLogprobs *m);
void attempts_tokens(struct attempts *e, struct worker_record *w, const Pds__Tokens *m);
void attempts_failed(struct attempts *e, struct worker_record *w, const struct msg_head *head,
                     const Pds__Failed *m);
void attempts_worker_up(struct attempts *e);
enum worker_end {
	WORKER_LOST,         /* its process has ended, or it is silent: its failure */
	WORKER_LINK_RESTART, /* it lives, its link restarts */
	WORKER_GOODBYE       /* it ends in order */
};
/* After registry_down. */
void attempts_worker_down(struct attempts *e, struct worker_record *w, const char *why,
                          enum worker_end how);
void attempts_tick(struct attempts *e,
                   uint64_t now_us); /* deadlines and waits; about every 50 ms */
void attempts_json(const struct attempts *e, uint64_t now_us, struct buf *out); /* an array */

#endif
