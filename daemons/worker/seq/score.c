/* score.c - see score.h. */
#include "score.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define SCORE_TOKENS_MAX 256u /* of one slice: some 45 KiB with 20 alternatives */

struct score {
	struct worker *worker;
	struct msg_head head;
	char router[48];
	uint64_t router_epoch;
	uint32_t first, n; /* prompt index of its first token; tokens */
	uint32_t n_top;    /* alternatives of each token */
	float logprobs[SCORE_TOKENS_MAX];
	uint32_t ranks[SCORE_TOKENS_MAX];
	struct kern_top top[]; /* (SCORE_TOKENS_MAX, n_top) */
};

/* A slice whose first token is the prompt's token `at`. */
static struct score *score_new(struct worker *worker, const struct request_copy *w, uint32_t at)
{
	uint32_t top = (uint32_t)w->prompt_top;
	uint32_t n_top = top < worker->info->vocab ? top : worker->info->vocab;
	struct score *s = mem_alloc(sizeof *s + SCORE_TOKENS_MAX * n_top * sizeof *s->top);
	memset(s, 0, sizeof *s);
	s->worker = worker;
	s->head = (struct msg_head){w->id, w->attempt, w->deadline_us};
	memcpy(s->router, w->router, sizeof s->router);
	s->router_epoch = w->router_epoch;
	s->first = at;
	s->n_top = n_top;
	return s;
}

/* Returns 1 if the slice is full now. */
static int score_add(struct score *s, const struct kern_drawn *r)
{
	CHECK(s->n < SCORE_TOKENS_MAX && r->n_top == s->n_top); /* a score has as many as there are */
	s->logprobs[s->n] = r->logprob;
	s->ranks[s->n] = r->rank;
	memcpy(s->top + (size_t)s->n * s->n_top, r->top, s->n_top * sizeof *r->top);
	return ++s->n == SCORE_TOKENS_MAX;
}

/* To the request's router, if that is still there. On the loop. */
static void score_post(struct svc *svc, void *score)
{
	struct score *s = score;
	(void)svc;
	struct worker *w = s->worker;
	struct peer *p = worker_router(w, s->router, s->router_epoch);
	Pds__PromptLogprobs m = PDS__PROMPT_LOGPROBS__INIT;
	size_t n = (size_t)s->n * s->n_top;
	uint32_t *ids = mem_array(n, sizeof *ids);
	float *logprobs = mem_array(n, sizeof *logprobs);
	for (size_t i = 0; i < n; i++) {
		ids[i] = s->top[i].id;
		logprobs[i] = s->top[i].logprob;
	}
	m.first = s->first;
	m.logprobs = s->logprobs;
	m.ranks = s->ranks;
	m.n_logprobs = m.n_ranks = s->n;
	m.top_ids = ids;
	m.top_logprobs = logprobs;
	m.n_top_ids = m.n_top_logprobs = n;
	if (p)
		worker_send_awaited(w, p, MSG_REQUEST_PROMPT_LOGPROBS, &s->head, &m.base);
	free(ids);
	free(logprobs);
	free(s);
}

int score_span(struct worker *w, const struct request_copy *req, const struct engine_span *sp,
               uint32_t *scored, struct err *err)
{
	struct score *s = NULL;
	int rc = 0;
	for (uint32_t i = 0; i < sp->n; i++) {
		uint32_t at = sp->position + i + 1;
		if (at >= req->prompt_tokens || at != *scored + 1)
			continue;
		if ((rc = drawn_check_finite(&sp->drawn[i], "prompt", at, err)))
			break;
		if (!s)
			s = score_new(w, req, at);
		*scored = at;
		if (score_add(s, &sp->drawn[i])) {
			svc_post(w->svc, score_post, s);
			s = NULL;
		}
	}
	if (s)
		svc_post(w->svc, score_post, s);
	return rc;
}
