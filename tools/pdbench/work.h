/* work.h - what is asked: lengths, prompts, conversations, the trace; and the bodies of the
 * requests.
 *
 * Prompts are made from the seed alone: token p of stream s is always the same, whoever asks. A
 * shared prefix, a block of the trace, the new tokens of a round are streams. */
#ifndef PDBENCH_WORK_H
#define PDBENCH_WORK_H

#include "options.h"

struct work;
struct talk;

/* What /v1/models said. */
struct server_says {
	char model[256];         /* empty: not said */
	uint32_t context, vocab; /* 0: not said */
};

/* One request to be sent. */
struct turn {
	struct talk *talk;             /* the conversation that it belongs to */
	uint64_t at_us;                /* trace: when, since its beginning, at the replay's speed */
	uint64_t number, conversation; /* from 0 */
	/* added to --seed: the same for the same request, whenever it is sent */
	uint64_t seed;
	uint32_t round; /* from 0 */
	uint32_t input_tokens, output_tokens;
	struct buf prompt; /* a piece of JSON: ids, text between quotes, or messages */
};

struct work_counts {
	uint64_t skipped, clipped;  /* by the limits */
	uint64_t cut_conversations; /* that ended early because of them */
};

int work_new(const struct options *o, const struct server_says *says, struct work **ret,
             struct err *err);
void work_destroy(struct work **w);
/* The next request that is not a further round, or NULL: there is none. */
struct turn *work_next(struct work *w);
/* When the next one is due (trace); UINT64_MAX: there is none. */
uint64_t work_next_at(const struct work *w);
/* The round after `t`, whose answer was `answer` (a piece of JSON as it came) of n tokens, or
 * NULL: the conversation has ended. Frees t. */
struct turn *work_follow(struct work *w, struct turn *t, const char *answer, size_t answer_len,
                         uint32_t n);
void work_drop(struct work *w, struct turn *t); /* and its conversation */
/* Head and body of the request. */
void work_request(struct work *w, const struct url *u, const struct turn *t, struct buf *out);
uint64_t work_think_us(struct work *w, struct turn *t); /* before t, a further round */
/* a further round will need it */
int work_wants_answer(const struct work *w, const struct turn *t);
const struct work_counts *work_counts(const struct work *w);
const char *work_path(const struct work *w);
size_t work_trace_records(const struct work *w); /* 0: no trace */

#endif
