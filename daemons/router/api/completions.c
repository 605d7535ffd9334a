/* completions.c - POST /v1/completions: prompts as a string, strings, token ids or lists of
 * ids. */
#include "prepare.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

static int bad_prompt(struct request_prepare *q, const char *param)
{
	return api_bad(&q->error, param,
	               "%s must be a string, an array of strings, an array of token ids, or an array "
	               "of such arrays",
	               param);
}

static int read_prompt_ids(struct request_prepare *q, struct prompt *p, const json_t *v,
                           const char *param)
{
	size_t n = json_array_size(v);
	p->tokens.quota = &q->quota;
	p->tokens.ids = quota_array(&q->quota, n, sizeof *p->tokens.ids);
	if (!p->tokens.ids)
		return budget_refuse(q, param, "the tokens of its prompt");
	p->tokens.size = n;
	for (size_t i = 0; i < n; i++) {
		const json_t *id = json_array_get(v, i);
		if (!json_is_integer(id))
			return api_bad(&q->error, param,
			               "%s: element %zu of the token ids must be an integer, got %s", param, i,
			               param_show(id));
		json_int_t k = json_integer_value(id);
		if (k < 0 || k >= q->vocab)
			return api_bad(&q->error, param,
			               "%s: token id %lld at %zu is out of range; the vocabulary has %u tokens "
			               "(ids must be those of this model's own tokenizer)",
			               param, (long long)k, i, q->vocab);
		p->tokens.ids[p->tokens.n++] = (uint32_t)k;
	}
	return 0;
}

int prompts_read(struct request_prepare *q, const json_t *v, const char *param)
{
	const json_t *first = json_array_get(v, 0);
	int several = json_is_array(v) && !json_is_integer(first);
	size_t n = several ? json_array_size(v) : 1;
	if (!json_is_string(v) && !json_is_array(v))
		return bad_prompt(q, param);
	if (n == 0 || n * q->p.n > q->max_answers)
		return api_bad(&q->error, param,
		               "%s has %zu items; with n %u that must be 1 to %u answers (max_choices)",
		               param, n, q->p.n, q->max_answers);
	q->prompts = quota_take(&q->quota, n * sizeof *q->prompts) < 0
	                 ? NULL
	                 : mem_try_array(n, sizeof *q->prompts);
	if (!q->prompts)
		return budget_refuse(q, param, "its prompts");
	for (q->n_prompts = 0; q->n_prompts < n;) {
		const json_t *item = several ? json_array_get(v, q->n_prompts) : v;
		struct prompt *p = &q->prompts[q->n_prompts++];
		const char *text = json_string_value(item);
		size_t len = json_string_length(item);
		if (text && q->p.echo) {
			buf_init_quota(&p->text, 0, &q->quota);
			buf_add(&p->text, text, len);
		}
		if (text                  ? prompt_encode(q, p, text, len, param)
		    : json_is_array(item) ? read_prompt_ids(q, p, item, param)
		                          : bad_prompt(q, param))
			return -1;
	}
	return 0;
}

int api_completions_prepare(struct request_prepare *q, const json_t *o)
{
	const json_t *v = json_object_get(o, "prompt");
	if (params_read(o, 0, q->max_answers, &q->p, &q->error) < 0 || format_read(q, o) < 0)
		return -1;
	if (!v || json_is_null(v))
		return api_bad(&q->error, "prompt", "prompt is required");
	if (q->p.stop && prompt_need_text(q, "stop") < 0)
		return -1;
	if (params_read_ids(o, q->model->tokenizer, q->vocab, &q->p, &q->error) < 0 ||
	    prompts_read(q, v, "prompt") < 0 || prompt_check_lengths(q, "prompt") < 0)
		return -1;
	q->score_only = q->p.max_tokens == 0 && q->p.sampling.prompt_logprobs;
	return 0;
}
