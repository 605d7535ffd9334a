/* budget.h - what a client's request may hold of the router's memory.
 *
 * One pool (max_memory_mb) for all requests, one limit for each (max_request_memory_mb). Everything
 * whose size a client chooses is taken from both, by its real size:
 *
 *   until it is prepared    the JSON tree (the body itself is counted at the edge, clients.h); the
 *                           memory of chat template and tokenizer
 *   to its end              the prompts' tokens, texts to be echoed, tools, stop strings, lists of
 *                           ids, the constraint's text;
 *                           log-probabilities of the prompts: one set for each prompt, for any n;
 *                           generated text that has not been sent yet
 *
 * When a request is refused or cut:
 *
 *   before anything is queued   by all that is known then, and the log-probabilities of answers
 *                               that are not streamed: for max_tokens, or for OPEN_ANSWER_TOKENS
 *                               if the client left the length open. Beyond the request's own limit:
 *                               400 with the limit, the amount, and what to lower. More than the
 *                               pool has left: 429 with Retry-After.
 *   while an answer grows       by its text and the rest, as they are generated; none of it is
 *                               estimated before. An answer without memory for more ends there with
 *                               finish_reason "length". Admitted requests may use all of the pool,
 *                               so that they end before others are admitted.
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
struct request_prepare;

/* The JSON tree of a body up to this size (the tree takes some 80 times as much) is counted only if
 * it waits for a text thread; else it is freed before the loop goes on. */
#define JSON_SMALL 4096u

/* Sets the request's error from the state of its quota after a failed take; what: what the memory
 * was for, as in "the log-probabilities of its prompt". Returns -1. */
int budget_refuse(struct request_prepare *q, const char *param, const char *what);
/* Takes what a prepared request keeps, as far as it is not taken yet. 0 or -1 with the error
 * set. */
int budget_keep(struct request_prepare *q);
/* Take what log-probabilities need: of the prompts; of answers that are not streamed, when the
 * answers exist and none has begun. 0 or -1 with the error set. */
int budget_prompt_rows(struct request_prepare *q);
int budget_answers(struct request *q);

#endif
