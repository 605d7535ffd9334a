/* budget.c - see budget.h. */
#include "budget.h"
#include "daemons/router/request/request.h"

#include <stdlib.h>
#include <string.h>

/* --- refusals ------------------------------------------------------------ */

static unsigned long long mib(size_t bytes)
{
	return (bytes + (1u << 20) - 1) >> 20;
}

int budget_refuse(struct request_prepare *q, const char *param, const char *what)
{
	const struct quota *quota = &q->quota;
	q->refused = 1;
	if (quota->over == QUOTA_OVER_LIMIT)
		return api_bad(&q->error, param,
		               "with %s the request takes more memory than the %llu MiB that this server "
		               "gives to one (max_request_memory_mb)",
		               what, mib(quota->limit));
	if (quota->over != QUOTA_OVER_POOL)
		return api_fault(&q->error, 503, "this server has no memory for %s now", what);
	return api_fault(&q->error, 429,
	                 "with %s the request takes more memory than the requests running here leave: "
	                 "%llu of %llu MiB are taken (max_memory_mb)",
	                 what, mib(quota->pool->lent), mib(quota->pool->size));
}

/* --- what is held -------------------------------------------------------- */

int budget_keep(struct request_prepare *q)
{
	const Pds__Sampling *s = &q->p.sampling;
	size_t ids = s->n_bias_ids + s->n_bias + s->n_allowed_ids +
	             (s->bad_words ? PARAM_BAD_TOKENS_MAX : 0);
	size_t n = ids * sizeof(uint32_t) + (q->p.stop ? stop_set_bytes(q->p.stop) : 0);
	n += q->constraint.text ? strlen(q->constraint.text) : 0;
	for (size_t i = 0; i < q->n_prompts; i++)
		for (unsigned k = 0; k < q->prompts[i].prefixes.n; k++)
			n += q->prompts[i].prefixes.of[k].n * sizeof(uint64_t);
	return quota_take(&q->quota, n) < 0 ? budget_refuse(q, NULL, "its parameters") : 0;
}

/* Returns -1 with the error set if rows of `tokens` tokens with `top` alternatives each take more
 * than a request may have; else 0. of: whose tokens; lower: the remedy */
static int rows_exceed(struct request_prepare *q, const char *param, const char *of,
                       uint64_t tokens, uint32_t top, const char *lower)
{
	uint64_t bytes = tokens * row_bytes(top);
	if (bytes <= q->quota.limit)
		return 0;
	return api_bad(&q->error, param,
	               "log-probabilities of %llu tokens of %s with %u alternatives each take %llu "
	               "MiB; a request may take %llu MiB (max_request_memory_mb): lower %s",
	               (unsigned long long)tokens, of, top, mib(bytes), mib(q->quota.limit), lower);
}

int budget_prompt_rows(struct request_prepare *q)
{
	uint32_t top = (uint32_t)q->p.sampling.prompt_top;
	uint64_t tokens = 0;
	const char *param = q->p.prompt_logprobs >= 0 ? "prompt_logprobs" : "logprobs";
	for (size_t i = 0; i < q->n_prompts; i++)
		tokens += q->prompts[i].tokens.n;
	if (!q->p.sampling.prompt_logprobs)
		return 0;
	if (rows_exceed(q, param, "the prompts", tokens, top, "it, or send less at once"))
		return -1;
	for (size_t i = 0; i < q->n_prompts; i++) {
		struct prompt *p = &q->prompts[i];
		rows_init(&p->rows, top, &q->quota);
		if (rows_reserve(&p->rows, (uint32_t)p->tokens.n) < 0)
			return budget_refuse(q, param, "the log-probabilities of its prompts");
	}
	return 0;
}

int budget_answers(struct request *q)
{
	uint32_t tokens = q->prep.p.max_tokens,
			 top = q->prep.p.logprobs > 0 ? (uint32_t)q->prep.p.logprobs : 0;
	if (q->prep.p.logprobs < 0 || q->prep.p.stream || q->prep.score_only || !tokens)
		return 0;
	if (!q->prep.p.has_max_tokens && tokens > OPEN_ANSWER_TOKENS)
		tokens = OPEN_ANSWER_TOKENS;
	const char *param = q->prep.kind == KIND_COMPLETION ? "logprobs" : "top_logprobs";
	if (rows_exceed(
			&q->prep, param, "its answers", (uint64_t)tokens * q->n_answers, top,
			"the number or length of the answers, or the number of alternatives, or ask for a "
			"stream"))
		return -1;
	for (uint32_t i = 0; i < q->n_answers; i++)
		if (rows_reserve(&q->answers[i].rows, tokens) < 0)
			return budget_refuse(&q->prep, param, "the log-probabilities of its answers");
	return 0;
}
