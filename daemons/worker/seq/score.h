/* score.h - log-probabilities of a prompt's own tokens on their way to the router, a slice for each
 * step that computed some. So neither worker nor router ever has the prompt's log-probabilities
 * in one message, and nothing of them stays here. */
#ifndef WORKER_SCORE_H
#define WORKER_SCORE_H

#include "copy.h"
#include "daemons/worker/worker.h"

#define SCORE_TOKENS_MAX 256u /* of one slice: some 45 KiB with 20 alternatives */

/* The log-probabilities that this span computed: row i of it is the distribution of token position
 * + i + 1. Tokens of the prompt after *scored, which is the last one told so far and advances (0 at
 * the start: the first token has none). Slices are posted to the loop, which sends them to the
 * router: before whatever the caller posts later. 0, or ERR_CORRUPT with a sentence: a row is not
 * finite; those before it are told. Any thread. */
int score_span(struct worker *w, const struct request_copy *req, const struct engine_span *sp,
               uint32_t *scored, struct err *err);
/* 1: tokens of the prompt are still to be told. */
static inline int score_is_owed(const struct request_copy *req, uint32_t scored)
{
	return req->prompt_logprobs && scored + 1 < req->prompt_tokens;
}

struct score;

/* The slice whose first token is the prompt's token `at`. Any thread; w is copied from. */
struct score *score_new(struct worker *worker, const struct request_copy *w, uint32_t at);
/* The next token's. 1: the slice is full now. */
int score_add(struct score *s, const struct kern_drawn *r);
struct list *score_node(struct score *s); /* for whoever holds it */
struct score *score_of(struct list *node);
/* to the request's router, if it is still there; frees. On the loop */
void score_send(struct score *s);
void score_post(struct svc *svc, void *score); /* score_send, for svc_post */
void score_free(struct score *s);

#endif
