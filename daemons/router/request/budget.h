/* budget.h - what a client's request may hold of the router's memory.
 *
 * One pool (max_memory_mb) for all requests, one limit for each (max_request_memory_mb). Everything
 * whose size a client chooses is taken from both, by what it really takes:
 *
 *   until it is prepared                    the JSON tree (the body itself counts at the edge,
 *                                           clients.h); what chat template and tokenizer need on
 *                                           the way
 *   to its end                              the prompts' tokens, the texts to be echoed, tools,
 *                                           stop strings, lists of ids, the constraint's text
 *                                           log-probabilities of the prompts: one set for each
 *                                           prompt, whatever n is what was generated and the client
 *                                           has not been sent
 *
 * When it is decided:
 *
 *   before anything is queued   all that is certain by then, and beside it log-probabilities of
 *                               answers that are not streamed: for max_tokens, or for
 *                               OPEN_ANSWER_TOKENS if the client left the length open. Over the
 *                               request's own limit: 400, with the limit, the amount, and what to
 *                               lower. More than the pool has left: 429 with Retry-After.
 *   while an answer grows       its text and the rest, as they come; nothing of it is estimated
 *                               before. An answer that finds no more memory ends there with
 *                               finish_reason "length". What was admitted may use the whole pool,
 *                               so it comes to its end before others are admitted.
 *
 * The last eighth of the pool is for requests that hold no more than QUOTA_SMALL and for those
 * that were admitted: large ones cannot keep ordinary ones out. */
#ifndef ROUTER_BUDGET_H
#define ROUTER_BUDGET_H

#include "util/json_load.h"
#include "util/quota.h"

#include <stddef.h>
#include <stdint.h>

#define OPEN_ANSWER_TOKENS 1024u

struct request;

/* bytes of a body whose JSON tree, some 80 times as much, is counted only if it waits for a text
 * thread; else it is gone before the loop goes on */
#define JSON_SMALL 4096u

/* Sets the request's error by what its quota says of the last thing it asked for; what: for whom it
 * asked, "the log-probabilities of its prompt". Returns -1. */
int budget_refuse(struct request *q, const char *param, const char *what);
/* What stays of a request that is prepared and that nobody else has counted. 0 or -1 with the error
 * set. */
int budget_keep(struct request *q);
/* Takes what the log-probabilities of its prompts, and of answers that are not streamed, need. 0
 * or -1 with the error set. */
int budget_prompt_rows(struct request *q);
int budget_answers(struct request *q);

#endif
