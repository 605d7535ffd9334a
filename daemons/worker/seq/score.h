/* score.h - log-probabilities of a prompt's own tokens on their way to the router, a slice for each
 * step that computed some. So neither worker nor router ever has the prompt's log-probabilities
 * in one message, and nothing of them stays here. */
#ifndef WORKER_SCORE_H
#define WORKER_SCORE_H

#include "copy.h"
#include "daemons/worker/worker.h"

#define SCORE_TOKENS_MAX 256u /* of one slice: some 45 KiB with 20 alternatives */

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
