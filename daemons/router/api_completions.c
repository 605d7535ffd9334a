/* api_completions.c - POST /v1/completions: prompts as a string, strings, token ids or lists of
 * ids. */
#include "call.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

static int bad_prompt(struct call *c)
{
	return api_bad(&c->error, "prompt",
	               "prompt must be a string, an array of strings, an array of token ids, or an "
	               "array of such arrays");
}

static int take_text(struct call *c, struct prompt *p, const json_t *v)
{
	if (c->p.echo) {
		buf_init_quota(&p->text, 0, &c->quota);
		buf_add(&p->text, json_string_value(v), json_string_length(v));
	}
	return prompt_encode(c, p, json_string_value(v), json_string_length(v), "prompt");
}

static int take_ids(struct call *c, struct prompt *p, const json_t *v)
{
	size_t n = json_array_size(v);
	p->tokens.quota = &c->quota;
	p->tokens.ids = quota_array(&c->quota, n, sizeof *p->tokens.ids);
	if (!p->tokens.ids)
		return budget_refuse(c, "prompt", "the tokens of its prompt");
	p->tokens.size = n;
	for (size_t i = 0; i < n; i++) {
		const json_t *id = json_array_get(v, i);
		if (!json_is_integer(id))
			return api_bad(&c->error, "prompt",
			               "prompt: element %zu of the token ids must be an integer, got %s", i,
			               param_show(id));
		json_int_t k = json_integer_value(id);
		if (k < 0 || k >= c->vocab)
			return api_bad(
				&c->error, "prompt",
				"prompt: token id %lld at %zu is out of range; the vocabulary has %u tokens",
				(long long)k, i, c->vocab);
		p->tokens.ids[p->tokens.n++] = (uint32_t)k;
	}
	return 0;
}

static int read_prompts(struct call *c, const json_t *v)
{
	const json_t *first = json_array_get(v, 0);
	int several = json_is_array(v) && !json_is_integer(first);
	size_t n = several ? json_array_size(v) : 1;
	if (!json_is_string(v) && !json_is_array(v))
		return bad_prompt(c);
	if (n == 0 || n * c->p.n > c->max_choices)
		return api_bad(&c->error, "prompt",
		               "prompt has %zu items; with n %u that must be 1 to %u answers (max_choices)",
		               n, c->p.n, c->max_choices);
	c->prompts = quota_take(&c->quota, n * sizeof *c->prompts) < 0
	                 ? NULL
	                 : mem_try_array(n, sizeof *c->prompts);
	if (!c->prompts)
		return budget_refuse(c, "prompt", "its prompts");
	for (c->n_prompts = 0; c->n_prompts < n;) {
		const json_t *item = several ? json_array_get(v, c->n_prompts) : v;
		struct prompt *p = &c->prompts[c->n_prompts++];
		if (json_is_string(item)  ? take_text(c, p, item)
		    : json_is_array(item) ? take_ids(c, p, item)
		                          : bad_prompt(c))
			return -1;
	}
	return 0;
}

int api_completions_prepare(struct call *c, const json_t *o)
{
	const json_t *v = json_object_get(o, "prompt");
	if (params_read(o, 0, c->max_choices, &c->p, &c->error) < 0 || format_read(c, o) < 0)
		return -1;
	if (!v || json_is_null(v))
		return api_bad(&c->error, "prompt", "prompt is required");
	if (c->p.stop && prompt_need_text(c, "stop") < 0)
		return -1;
	if (params_read_ids(o, c->model->tokenizer, c->vocab, &c->p, &c->error) < 0 ||
	    read_prompts(c, v) < 0 || prompt_check_lengths(c, "prompt") < 0)
		return -1;
	c->score_only = c->p.max_tokens == 0 && c->p.sampling.prompt_logprobs;
	return 0;
}
