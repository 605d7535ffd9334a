/* request.h - the life of one sequence: which attempt of it runs where, and each of its tokens
 * once.
 *
 *   NEW -> SUBMITTED -> HANDED -> DECODING -> DONE          HANDED: the prefill worker has sent the
 *   first token and named who goes on
 *            |            |          |                      DECODING: the decode worker has spoken,
 *                         or one worker does it all
 *            +------------+----------+--> WAITING (attempt lost; for a worker, or for a while) -->
 *            SUBMITTED
 *   from each of them: FAILED, CANCELLED
 *
 * Rules (model-checked, the handover model): before an attempt is submitted the one before is
 * cancelled at its prefill worker and at every candidate; messages of lower attempts are dropped; a
 * token's index says which it is, so that repetitions are seen. Until it is known who decodes only
 * the prefill worker, by its word or its end, ends an attempt; what a candidate says of a lost
 * lease is kept, and counts if that candidate is named. From then on the decode worker's word or
 * end does, and the prefill worker's until decode has spoken.
 *
 * A lost attempt is followed by another at once, a second loss in a row after a pause that grows,
 * since one fault may take several workers one after the other. It counts against the worker whose
 * failure it was, if it was one's. These are no losses:
 *   - a link that begins anew. It is waited for: when this process was stopped for a while, all do
 *     so;
 *   - what a worker that is told to end, or switches its role, gives back, and what is taken from a
 *     worker that is told to end: seq_attempt_moved.
 * A worker that is stuck, or told to end, loses its attempts as soon as somebody else can take
 * them; until then they stay.
 *
 * An answer that is complete before its prefill worker's account (times, cached tokens) has come
 * waits for that, for a moment. One thread. */
#ifndef ROUTER_REQUEST_H
#define ROUTER_REQUEST_H

#include "msg/chan.h"
#include "place.h"
#include "registry.h"
#include "util/list.h"
#include "util/log.h"

#include <stddef.h>
#include <stdint.h>

enum seq_state {
	SEQ_NEW,
	SEQ_WAITING,
	SEQ_SUBMITTED,
	SEQ_HANDED,
	SEQ_DECODING,
	SEQ_DONE,
	SEQ_FAILED,
	SEQ_CANCELLED
};

/* How an answer ended, as OpenAI names it. */
enum seq_finish { SEQ_FINISH_NONE, SEQ_FINISH_STOP, SEQ_FINISH_LENGTH, SEQ_FINISH_ABORT };

/* What the owner says to new tokens. */
enum seq_verdict { SEQ_GO, SEQ_STOP /* the answer ends here: a stop string */, SEQ_ABORT };

struct seq;

struct seq_hooks {
	/* New tokens, each index once and in order; last: no further ones follow, and the model ended
	 * the answer (finish is STOP or LENGTH). The sequence must not be destroyed inside. */
	enum seq_verdict (*tokens)(void *owner, struct seq *s, Pds__Token *const *tokens, size_t n,
	                           enum seq_finish last);
	/* Log-probabilities of the prompt's tokens, if they were asked for: of n of them, m's from
	 * `from` on, each token's once, in order, and all of them before the first token of the
	 * answer. */
	void (*prompt)(void *owner, struct seq *s, const Pds__PromptLogprobs *m, size_t from, size_t n);
	/* The state is DONE, FAILED or CANCELLED; the owner may destroy the sequence. */
	void (*ended)(void *owner, struct seq *s);
};

struct seq_spec {
	const uint32_t *tokens; /* the prompt; not copied: outlives the sequence */
	uint32_t prompt_tokens, max_tokens;
	Pds__Sampling sampling;   /* copied, but for its lists: they outlive the sequence */
	const uint32_t *stop_ids; /* copied */
	size_t n_stop_ids;
	int ignore_eos;
	const Pds__Constraint *constraint; /* not copied. NULL: free text */
	uint64_t begun_us, deadline_us;
	/* of the prompt; not copied: outlives the sequence. NULL: not hashed */
	const struct prefixes *prefixes;
	const struct place_pin *pin; /* not copied. NULL: none */
	uint64_t session;            /* policy_key of the client's session; 0: none */
	/* another sequence with this prompt, begun before; outlives this one's last attempt. NULL:
	 * none */
	const struct seq *beside;
};

struct seq_place {
	char name[WORKER_NAME_MAX];
	uint64_t epoch;
	int lost;           /* it says that it has dropped its lease of this attempt */
	int blames_prefill; /* ... through the prefill worker's failure */
};

/* What the prefill worker was thought to hold of the prompt, in tokens; counted against what it
 * says. */
struct seq_prediction {
	int made;
	uint32_t hit, stored; /* stored: of the hits, its storage */
};

struct seq_times {
	uint64_t queue_us, prepare_us, reserve_us, prefill_us, transfer_us, decode_us;
	uint32_t cached_tokens, stored_tokens, chunks, preemptions;
};

struct seq {
	struct seqs *all;
	const struct seq_hooks *hooks;
	void *owner;
	struct reqid id;
	enum seq_state state;
	uint32_t attempt;                  /* 0 before the first */
	struct list by_deadline;           /* seqs.live */
	struct list waiting;               /* seqs.waiting while WAITING */
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
	const struct seq *beside;
	/* log-probabilities of the prompt are still to come; tokens are held until then */
	int want_prompt;
	/* of so many of its tokens they have come, counting the first, which has none */
	uint32_t got_prompt;

	/* the present attempt */
	struct worker *prefill; /* who got Submit; NULL when it is down */
	struct worker *decode;  /* who decodes or is expected to; NULL when it is down */
	int alone;              /* no candidates: prefill does it all */
	int prefill_told;       /* the prefill worker has given its account of it */
	int named;              /* it is known which of the candidates decodes */
	struct seq_place cand[PLACE_CANDIDATES_MAX];
	unsigned n_cand;
	uint64_t charged_prefill, charged_decode; /* in the workers' tokens_in_flight */
	/* of charged_prefill: in the worker's backlog_tokens, until the prompt is computed */
	uint64_t backlog;
	struct seq_prediction predicted;
	struct list held; /* struct held_tokens, while want_prompt or ending */
	uint32_t n_held;
	/* seqs.ending, while the answer's end waits for the prefill worker's account */
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
	struct seq_times times;
	char prefill_name[WORKER_NAME_MAX], decode_name[WORKER_NAME_MAX]; /* for the summary */

	enum seq_finish finish;
	int status; /* FAILED: of HTTP */
	/* when workers may have room, as the one said that failed the last attempt; 0: not known */
	uint64_t retry_after_us;
	char why[256];
};

struct seqs_opts {
	/* that may be lost in a row; SEQ_ATTEMPTS_TIMES as many in all, whatever took them */
	uint32_t max_attempts;
	uint64_t retry_wait_us; /* how long a lost attempt waits for a worker */
	void *arg;
	/* 0, ERR_FULL or ERR_CLOSED */
	int (*send)(void *arg, struct worker *w, enum msg_type type, const struct msg_head *head,
	            const void *body);
};

struct seqs_counts {
	uint64_t started, done, failed, cancelled, retries, duplicates, stale, mismatches,
		prompt_tokens, output_tokens, cached_tokens, hits_predicted,
		hits_actual, /* tokens, of sequences for which there was a prediction */
		hits_stored_predicted, hits_stored_actual; /* of them: read back from storage */
};

#define SEQS_RECENT 16384u
#define SEQ_ATTEMPTS_TIMES 4u
#define SEQ_MOVES_MAX 64u /* attempts given back in order; each after that is a loss */

struct seqs {
	struct seqs_opts opts;
	struct registry *registry;
	struct map *by_id;
	struct list live; /* all that have not ended, earliest deadline first */
	struct list waiting;
	struct list ending; /* first come first */
	struct list late;   /* request_late.c */
	struct map *late_by_id;
	struct seqs_counts counts;
	struct {
		struct reqid id;
		uint64_t epoch; /* of the worker */
		uint32_t attempt;
		/* attempts that ended in order at a worker or were cancelled there: its late messages need
	 * no answer */
	} recent[SEQS_RECENT];
};

void seqs_init(struct seqs *e, struct registry *g, const struct seqs_opts *opts);
void seqs_fini(struct seqs *e); /* the sequences are their owners' */
size_t seqs_count(const struct seqs *e);
struct seq *seqs_find(const struct seqs *e, const struct reqid *id);

struct seq *seq_new(struct seqs *e, const struct seq_spec *spec, const struct seq_hooks *hooks,
                    void *owner);
void seq_destroy(struct seq **s); /* cancels what still runs */
/* The first attempt. 0, or ERR_NOTFOUND (no worker), ERR_FULL (too long for all workers):
 * nothing was started, `ended` is not called. */
int seq_start(struct seq *s);
/* everywhere, at once; `ended` is not called. Ended already: nothing */
void seq_cancel(struct seq *s, const char *reason);
int seq_ended(const struct seq *s);
const char *seq_state_name(enum seq_state state);
const char *seq_finish_name(enum seq_finish finish);

void seqs_first_token(struct seqs *e, struct worker *w, const struct msg_head *head,
                      const Pds__FirstToken *m);
void seqs_prompt(struct seqs *e, struct worker *w, const struct msg_head *head,
                 const Pds__PromptLogprobs *m);
void seqs_tokens(struct seqs *e, struct worker *w, const Pds__Tokens *m);
void seqs_failed(struct seqs *e, struct worker *w, const struct msg_head *head,
                 const Pds__Failed *m);
void seqs_worker_up(struct seqs *e);
enum worker_end {
	WORKER_LOST,   /* its process has ended, or it is silent: its failure */
	WORKER_ANEW,   /* it lives, its link begins anew */
	WORKER_GOODBYE /* it ends in order */
};
/* After registry_down. */
void seqs_worker_down(struct seqs *e, struct worker *w, const char *why, enum worker_end how);
void seqs_tick(struct seqs *e, uint64_t now_us); /* deadlines and waits; about every 50 ms */
void seqs_json(const struct seqs *e, uint64_t now_us, struct buf *out); /* an array */

#endif
