/* attempt_int.h - between attempt.c (states and events), messages.c (what messages of workers mean)
 * and try.c (workers of the present try), which call each other in this order only.
 *
 * Events go into attempt_step, and nothing else changes a state. What a state's step function calls
 * returns a verdict and never steps by itself. */
#ifndef ROUTER_ATTEMPT_INT_H
#define ROUTER_ATTEMPT_INT_H

#include "attempt.h"

enum attempt_event_type {
	ON_ENTER,       /* the state was entered */
	ON_TRIED,       /* NEW, WAITING: attempt_submit was called; placed, now_us */
	ON_FIRST_TOKEN, /* worker, first */
	ON_PROMPT,      /* worker, prompt */
	ON_EMBEDDING,   /* worker, embedding */
	ON_TOKENS,      /* worker, tokens */
	ON_FAILED,      /* worker, failed */
	ON_WORKER_DOWN, /* worker, how, why */
	ON_LEAVE,       /* worker is stuck or was told to end, and another one can take the attempt */
	ON_DEADLINE,    /* end is set */
	ON_REFUSED,     /* end is set; the owner knows */
	ON_CANCEL       /* end is set; the owner knows */
};

/* LATER: workers have enough work. LINK_FULL: the chosen worker's link is full, and
 * not_before_us is set. TOO_EARLY: a pause has not ended yet. */
enum attempt_placed { PLACED, LATER, NO_WORKER, TOO_LONG, LINK_FULL, TOO_EARLY };

struct attempt_event {
	enum attempt_event_type type;
	struct worker_record *worker;
	union {
		const Pds__FirstToken *first;
		const Pds__PromptLogprobs *prompt;
		const Pds__Embedding *embedding;
		const Pds__SequenceTokens *tokens;
		const Pds__Failed *failed;
		struct {
			enum attempt_placed placed;
			uint64_t now_us;
		};
		int stuck;
		struct {
			enum worker_end how;
			const char *why;
		};
	};
};

/* What an event means for the present try. */
enum verdict {
	GO_ON,
	DECODES, /* the try goes on, and the decode worker is known */
	RETRY,   /* the try is lost and cancelled; the next one is made from not_before_us on */
	OVER     /* the answer is complete, has failed or was cancelled; end is set */
};

/* Why a try is lost. */
struct attempt_loss {
	Pds__Fault fault;
	int retry;         /* another try may succeed */
	const char *who;   /* the worker that reported the loss, or that is gone */
	const char *blame; /* the worker that caused the loss; NULL: none */
	const char *why;
};

/* try.c: the present try */
enum attempt_placed attempt_submit(struct attempt *a);
static inline int attempt_is_alone(const struct attempt *a)
{
	return a->try.n_cand == 0;
}
static inline struct worker_record *attempt_decoder(const struct attempt *a)
{
	return attempt_is_alone(a) ? a->try.prefill : a->try.decode;
}
/* The decode worker's name for logs; "-": none, the answer ends with its prefill. */
static inline const char *attempt_decode_name(const struct worker_record *w)
{
	return w && w->role != ROLE_PREFILL ? w->name : "-";
}
int attempt_is_prefill_only(const struct attempt *a);
struct place_query attempt_query(const struct attempt *a);
/* Charged to its caller's turns: the tokens of its context, and a sequence's fixed cost. */
static inline uint64_t attempt_cost(const struct attempt *a)
{
	return a->asked.prompt_tokens + a->got.n_out + KV_SEQUENCE_TOKENS;
}
struct attempt_candidate *attempt_candidate(struct attempt *a, const struct worker_record *w);
void attempt_join_decode(struct attempt *a, struct worker_record *w);
void attempt_leave(struct attempt *a, struct worker_record *w); /* w is down */
/* The prompt is computed: it leaves the prefill worker's backlog, and its load too if another
 * worker decodes. */
void attempt_prefill_done(struct attempt *a);
/* The context at the decoding worker has grown by `tokens`. */
void attempt_add_load(struct attempt *a, uint64_t tokens);
/* Cancels the try at all its workers and unlinks it from them. reason NULL: the workers have ended
 * the try themselves and need no cancel. */
void attempt_close_try(struct attempt *a, const char *reason);
/* The decode worker, or any candidate before the decode worker is known, whose process lives but
 * whose link has restarted since the try was submitted; else NULL. Its messages may have been lost
 * with the old link, and it has dropped the lease because its router was gone. */
const struct worker_record *attempt_link_restarted(const struct attempt *a);
/* The attempt has failed: sets the outcome. OVER */
enum verdict attempt_give_up(struct attempt *a, int status, const char *why);
/* The try is lost. RETRY or OVER. */
enum verdict attempt_lost(struct attempt *a, const struct attempt_loss *l);
/* The try is lost because w's link has restarted, which is neither the attempt's fault nor w's. */
enum verdict attempt_cut(struct attempt *a, const struct worker_record *w, const char *why);
/* w ends in order and gave the try back, or the router takes it away from w. It is placed again at
 * once, or after a pause if w gave back the try before too. RETRY or OVER. */
enum verdict attempt_moved(struct attempt *a, const struct worker_record *w, const char *why);
/* w is full, but has other embeddings of this router: the attempt waits for its turn again. */
enum verdict attempt_put_back(struct attempt *a, struct worker_record *w, const char *why);
int attempts_send_cancel(struct attempts *e, struct worker_record *w, const struct reqid *id,
                         uint32_t number, const char *reason);
int attempts_is_recent(const struct attempts *e, const struct reqid *id, uint32_t number,
                       uint64_t epoch);

/* messages.c: what messages mean. */
static inline int attempt_prompt_missing(const struct attempt *a)
{
	return a->asked.sampling.prompt_logprobs && a->got.prompt_rows < a->asked.prompt_tokens;
}
/* A SequenceTokens message that waits, packed. */
struct held_tokens {
	struct list node;
	size_t len;
	uint8_t bytes[];
};
enum verdict attempt_take_first(struct attempt *a, const struct attempt_event *event);
/* Also passes on the tokens that were held until now. */
enum verdict attempt_take_prompt(struct attempt *a, const struct attempt_event *event);
enum verdict attempt_take_embedding(struct attempt *a, const struct attempt_event *event);
enum verdict attempt_take_tokens(struct attempt *a, const struct attempt_event *event);
enum verdict attempt_take_failure(struct attempt *a, const struct attempt_event *event);
/* Does the try end when w fails or is gone? */
int attempt_needs(const struct attempt *a, const struct worker_record *w);

#endif
