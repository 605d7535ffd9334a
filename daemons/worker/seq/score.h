/* score.h - log-probabilities of the prompt's tokens on their way to the router: one slice for each
 * step that computed some. So no message holds those of a whole prompt, and the worker keeps
 * none. */
#ifndef WORKER_SCORE_H
#define WORKER_SCORE_H

#include "copy.h"
#include "daemons/worker/worker.h"

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

#endif
