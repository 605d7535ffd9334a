/* attempt_int.h - between attempt.c (states), try.c (workers of the present try) and messages.c
 * (what workers send).
 *
 * Events go into attempt_step, and nothing else changes a state. What a state's step function calls
 * returns a verdict and never steps by itself. */
#ifndef ROUTER_ATTEMPT_INT_H
#define ROUTER_ATTEMPT_INT_H

#include "attempt.h"

enum attempt_event_type {
	ON_ENTER,       /* the state was entered */
	ON_TRIED,       /* NEW, WAITING: it was to be submitted; placed, now_us */
	ON_FIRST_TOKEN, /* worker, first */
	ON_PROMPT,      /* worker, prompt */
	ON_EMBEDDING,   /* worker, embedding */
	ON_TOKENS,      /* worker, tokens */
	ON_FAILED,      /* worker, failed */
	ON_WORKER_DOWN, /* worker, how, why */
	ON_LEAVE,       /* worker is stuck, or is told to end: another one can take the attempt */
	ON_DEADLINE,    /* end is set */
	ON_REFUSED,     /* end is set; the owner knows */
	ON_CANCEL       /* end is set; the owner knows */
};

/* LATER: workers have enough to start with. LINK_FULL: the chosen worker's link took nothing;
 * not_before_us is set. TOO_EARLY: a pause has not ended yet */
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
	DECODES, /* as before, and it is known which worker decodes */
	RETRY,   /* the try is lost and its workers are cancelled; another one, from not_before_us on */
	OVER     /* the answer is complete, has failed, or nobody wants it; end is set */
};

/* Why a try is lost. */
struct attempt_loss {
	Pds__Fault fault;
	int retry;         /* another try may succeed */
	const char *who;   /* the worker that reported it, or that is gone */
	const char *blame; /* the worker that caused it; NULL: no worker did */
	const char *why;
};

/* attempt.c. The attempt may be freed when it returns. */
void attempt_step(struct attempt *a, const struct attempt_event *event);
/* a worker has it */
static inline int attempt_is_running(const struct attempt *a)
{
	return a->state == ATTEMPT_SUBMITTED || a->state == ATTEMPT_RUNNING;
}

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
/* How logs name the worker that decodes; "-": none does, the answer ends with its prefill. */
static inline const char *attempt_decode_name(const struct worker_record *w)
{
	return w && w->role != ROLE_PREFILL ? w->name : "-";
}
int attempt_is_prefill_only(const struct attempt *a);
struct place_wish attempt_wish(const struct attempt *a);
/* Of its caller's turns: the tokens of its context, and what a sequence costs where it decodes. */
static inline uint64_t attempt_cost(const struct attempt *a)
{
	return a->asked.prompt_tokens + a->got.n_out + KV_SEQUENCE_TOKENS;
}
struct attempt_candidate *attempt_candidate(struct attempt *a, const struct worker_record *w);
void attempt_join_decode(struct attempt *a, struct worker_record *w);
void attempt_leave(struct attempt *a, struct worker_record *w); /* w is down */
/* The prompt is computed: no backlog any more, and no load where another worker decodes. It has
 * started. */
void attempt_prefill_done(struct attempt *a);
/* The context at the decoding worker has grown by `tokens`. */
void attempt_add_load(struct attempt *a, uint64_t tokens);
/* Cancels the try at all its workers and forgets them. reason NULL: they have ended it by
 * themselves. */
void attempt_close_try(struct attempt *a, const char *reason);
/* The decode worker, or any candidate before it is known, if it lives but its link has restarted
 * since the try was submitted; else NULL. What it sent may have been lost with the old link, and it
 * has given up what was reserved there, because its router was gone. */
const struct worker_record *attempt_link_restarted(const struct attempt *a);
/* The attempt has failed: sets the outcome. OVER */
enum verdict attempt_give_up(struct attempt *a, int status, const char *why);
/* The try is lost. RETRY or OVER. */
enum verdict attempt_lost(struct attempt *a, const struct attempt_loss *l);
/* Likewise by its link, through no fault of the attempt or of w. */
enum verdict attempt_cut(struct attempt *a, const struct worker_record *w, const char *why);
/* Likewise: w gave it back, or is left, in order. */
enum verdict attempt_moved(struct attempt *a, const struct worker_record *w, const char *why);
/* w, which has others of this router, is full: until its turn comes again. */
enum verdict attempt_put_back(struct attempt *a, struct worker_record *w, const char *why);
int attempts_send_cancel(struct attempts *e, struct worker_record *w, const struct reqid *id,
                         uint32_t number, const char *reason);
int attempts_is_recent(const struct attempts *e, const struct reqid *id, uint32_t number,
                       uint64_t epoch);

/* messages.c: what they mean */
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
/* and tokens that were held for it */
enum verdict attempt_take_prompt(struct attempt *a, const struct attempt_event *event);
enum verdict attempt_take_embedding(struct attempt *a, const struct attempt_event *event);
enum verdict attempt_take_tokens(struct attempt *a, const struct attempt_event *event);
enum verdict attempt_take_failure(struct attempt *a, const struct attempt_event *event);
/* Does the try end when w fails or is gone? */
int attempt_needs(const struct attempt *a, const struct worker_record *w);

#endif
