/* work.h - generates the workload: lengths, prompts, conversations, the trace; and the requests'
 * bodies.
 *
 * Prompts depend only on the seed: token p of stream s is always the same. A shared prefix, a block
 * of the trace and the new tokens of a round are streams. */
#ifndef PDBENCH_WORK_H
#define PDBENCH_WORK_H

#include "options.h"

struct work;
struct talk;

/* What a request has beside what every server takes. */
enum body_level {
	BODY_FULL,
	BODY_PLAIN, /* nothing but OpenAI's parameters */
	BODY_BARE   /* and of these no seed and no stream_options */
};

/* What /v1/models reported, and what adapt_to_server has found. */
struct server_info {
	char model[256];         /* "": unknown */
	uint32_t context, vocab; /* 0: unknown */
	enum body_level level;
	double tokens_per_word; /* of text prompts; 0: unknown, a word counts as a token */
	uint32_t tokens_beside; /* of a prompt, beside its words */
	char adapted[400];      /* what of the load is other than asked for; "": nothing */
};

/* One request to be sent. */
struct bench_turn {
	struct talk *talk;             /* the conversation it belongs to; NULL: a trace */
	uint64_t at_us;                /* trace: due time since its start, at the replay's speed */
	uint64_t number, conversation; /* from 0 */
	/* added to --seed; depends on the request only, not on when it is sent */
	uint64_t seed;
	uint32_t round; /* from 0 */
	uint32_t input_tokens, output_tokens;
	struct buf prompt; /* a piece of JSON: ids, text between quotes, or messages */
};

struct work_counts {
	uint64_t skipped, clipped;  /* because of the limits */
	uint64_t cut_conversations; /* ended early because of the limits */
};

int work_new(const struct bench_options *o, const struct server_info *server, struct work **ret,
             struct err *err);
void work_destroy(struct work **w);
/* The next request that starts a conversation, or a single one. NULL: there is none. */
struct bench_turn *work_next(struct work *w);
/* The round after t, or NULL: the conversation has ended. answer: the answer of t, a piece of JSON
 * as received, of n tokens. Frees t. */
struct bench_turn *work_follow(struct work *w, struct bench_turn *t, const char *answer,
                               size_t answer_len, uint32_t n);
void work_drop(struct work *w, struct bench_turn *t); /* also drops its conversation */
/* Writes head and body of the request. */
void work_request(struct work *w, const struct url *u, const struct bench_turn *t, struct buf *out);
uint64_t work_think_us(struct work *w, struct bench_turn *t); /* pause before t, a further round */
/* a further round will need the answer */
int work_wants_answer(const struct work *w, const struct bench_turn *t);
const struct work_counts *work_counts(const struct work *w);
const char *work_path(const struct work *w);

#endif
