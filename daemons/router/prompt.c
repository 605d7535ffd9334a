/* prompt.c - from text to tokens, within the context. Runs on the event loop for short texts, on a text thread for long ones. */
#include "call.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define COUNTED_TIMES 4u   /* contexts */
#define ROOM_LEFT 16u      /* tokens that truncate_prompt_tokens -1 leaves for an answer whose length is open */

int prompt_need_text(struct call *c, const char *param)
{
	if (c->model->tokenizer)
		return 0;
	return api_bad(&c->error, param, "the model %s has no tokenizer here: only prompts of token ids can be served", c->model->name);
}

int prompt_encode(struct call *c, struct prompt *p, const char *text, size_t len, const char *param)
{
	if (prompt_need_text(c, param) < 0)
		return -1;
	/* A prompt that is too long is counted, so that the refusal can say by how much, as far as that costs little. */
	size_t most = c->context && !c->p.truncate ? (size_t)c->context * COUNTED_TIMES : 0;
	int r = tokenizer_encode_prompt(c->model->tokenizer, text, len, c->p.add_special, most, &p->tokens);
	if (r < 0) {
		api_bad(&c->error, param, "the prompt has more than %zu tokens; this model's context length is %u tokens for prompt and answer together", most,
		        c->context);
		c->error.code = "context_length_exceeded";
		return -1;
	}
	return 0;
}

static int too_long(struct call *c, const char *param, size_t n)
{
	if (c->p.has_max_tokens)
		api_bad(&c->error, param,
		        "the prompt has %zu tokens and max_tokens is %u, together %zu; this model's context length is %u tokens for prompt and answer together", n,
		        c->p.max_tokens, n + c->p.max_tokens, c->context);
	else
		api_bad(&c->error, param, "the prompt has %zu tokens; this model's context length is %u tokens for prompt and answer together", n, c->context);
	c->error.code = "context_length_exceeded";
	return -1;
}

/* truncate_prompt_tokens: the last ones stay. What is echoed is then what is left. */
static int truncate_prompts(struct call *c)
{
	if (c->p.truncate > 0 && c->context && c->p.truncate > c->context)
		return api_bad(&c->error, "truncate_prompt_tokens", "truncate_prompt_tokens is %lld, more than this model's context length of %u tokens",
		               (long long)c->p.truncate, c->context);
	size_t answer = c->p.has_max_tokens ? c->p.max_tokens : ROOM_LEFT, room = c->context > answer ? c->context - answer : 1;
	size_t keep = c->p.truncate > 0 ? (size_t)c->p.truncate : c->context ? room : SIZE_MAX;
	for (size_t i = 0; c->p.truncate && i < c->n_prompts; i++) {
		struct prompt *p = &c->prompts[i];
		if (p->tokens.n <= keep)
			continue;
		memmove(p->tokens.ids, p->tokens.ids + (p->tokens.n - keep), keep * sizeof *p->tokens.ids);
		p->tokens.n = keep;
		free(p->text);
		p->text = NULL;
	}
	return 0;
}

/* Each prompt has a token, and room for the answer that was asked for. Sets max_tokens where the client left it open. */
static int fit(struct call *c, const char *param)
{
	size_t longest = 0;
	for (size_t i = 0; i < c->n_prompts; i++) {
		size_t n = c->prompts[i].tokens.n;
		if (n == 0)
			return api_bad(&c->error, param, "%s is empty: a prompt needs at least one token", param);
		longest = n > longest ? n : longest;
	}
	if (!c->context) {
		if (longest > INT32_MAX / 2)
			return too_long(c, param, longest);
		if (!c->p.has_max_tokens && c->kind == CALL_CHAT)
			c->p.max_tokens = 4096;
		return 0;
	}
	if (longest > c->context || (longest == c->context && c->p.max_tokens > 0))
		return too_long(c, param, longest);
	uint32_t room = c->context - (uint32_t)longest;
	if (!c->p.has_max_tokens && (c->kind == CALL_CHAT || c->p.max_tokens > room))
		c->p.max_tokens = room;
	if (c->p.max_tokens <= room)
		return 0;
	api_bad(&c->error, "max_tokens", "max_tokens is %u, but after the prompt's %zu tokens only %u are left of this model's context length of %u tokens",
	        c->p.max_tokens, longest, room, c->context);
	c->error.code = "context_length_exceeded";
	return -1;
}

int prompt_check_lengths(struct call *c, const char *param)
{
	if (truncate_prompts(c) < 0 || fit(c, param) < 0)
		return -1;
	if (c->p.min_tokens > c->p.max_tokens)
		return api_bad(&c->error, "min_tokens", "min_tokens is %u, more than max_tokens, which is %u", c->p.min_tokens, c->p.max_tokens);
	return 0;
}
