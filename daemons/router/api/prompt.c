/* prompt.c - from text to tokens, within the context. Runs on the event loop for short texts, on
 * a text thread for long ones. */
#include "prepare.h"
#include "text/unicode.h"
#include "util/least.h"

#include <stdlib.h>
#include <string.h>

#define COUNTED_TIMES 4u /* contexts */
/* tokens that truncate_prompt_tokens -1 leaves for an answer whose length is open */
#define ROOM_LEFT 16u

int prompt_need_text(struct request_prepare *q, const char *param)
{
	if (q->model->tokenizer)
		return 0;
	return api_bad(&q->error, param,
	               "the model %s has no tokenizer here: only prompts of token ids can be served",
	               q->model->name);
}

int prompt_encode(struct request_prepare *q, struct prompt *p, const char *text, size_t len,
                  const char *param)
{
	if (prompt_need_text(q, param) < 0)
		return -1;
	/* A prompt that is too long is counted up to this limit, so that the refusal can name its
	 * length. */
	size_t most = q->context && !q->p.truncate ? (size_t)q->context * COUNTED_TIMES : 0;
	p->tokens.quota = &q->quota;
	int r = tokenizer_encode_prompt(q->model->tokenizer, text, len, q->p.add_special, most,
	                                &p->tokens);
	if (q->quota.over)
		return budget_refuse(q, param, "the tokens of its prompt");
	if (r == ERR_NOMEM)
		return api_fault(
			&q->error, 503,
			"the prompt is too hard to cut into words: that takes more memory than is allowed");
	if (r < 0) {
		api_bad(&q->error, param,
		        "This model's maximum context length is %u tokens. However, your prompt has more "
		        "than %zu tokens. The prompt is too long: shorten it.",
		        q->context, most);
		q->error.code = "context_length_exceeded";
		return -1;
	}
	return 0;
}

/* max_tokens for the worker: log-probabilities of a prompt are sent with a token, which is not
 * shown. */
static uint32_t tokens_asked(const struct request_prepare *q)
{
	return q->p.max_tokens || !q->p.sampling.prompt_logprobs ? q->p.max_tokens : 1;
}

/* Refuses with the words that clients look for to shorten a conversation. limit: of prompt and
 * answer, or of the prompt alone */
static int too_long(struct request_prepare *q, const char *param, size_t prompt, uint32_t limit)
{
	if (limit < q->context || q->kind == KIND_EMBEDDING)
		api_bad(&q->error, param,
		        "This model's maximum context length is %u tokens for a prompt here. However, your "
		        "prompt has %zu tokens. The prompt is too long: shorten it.",
		        limit, prompt);
	else if (q->p.has_max_tokens)
		api_bad(&q->error, param,
		        "This model's maximum context length is %u tokens. However, you requested %zu "
		        "tokens (%zu in the prompt, %u for the answer). %s %s.",
		        limit, prompt + tokens_asked(q), prompt, tokens_asked(q),
		        prompt < limit && q->p.max_tokens >= limit
		            ? "Lower"
		            : "The prompt is too long: shorten it or lower",
		        request_kind_max_tokens(q->kind));
	else
		api_bad(&q->error, param,
		        "This model's maximum context length is %u tokens. However, your prompt has %zu "
		        "tokens, and the answer needs room, too. The prompt is too long: shorten it.",
		        limit, prompt);
	q->error.code = "context_length_exceeded";
	return -1;
}

/* truncate_prompt_tokens: keeps the last tokens of each prompt; only those are echoed. */
static int truncate_prompts(struct request_prepare *q)
{
	if (q->p.truncate > 0 && q->context && q->p.truncate > q->context)
		return api_bad(
			&q->error, "truncate_prompt_tokens",
			"truncate_prompt_tokens is %lld; this model's maximum context length is %u tokens",
			(long long)q->p.truncate, q->context);
	size_t answer = q->p.has_max_tokens ? tokens_asked(q) : ROOM_LEFT,
		   room = q->context > answer ? q->context - answer : 1;
	room = q->prompt_max && room > q->prompt_max ? q->prompt_max : room;
	size_t keep = q->p.truncate > 0 ? (size_t)q->p.truncate : q->context ? room : SIZE_MAX;
	for (size_t i = 0; q->p.truncate && i < q->n_prompts; i++) {
		struct prompt *p = &q->prompts[i];
		if (p->tokens.n <= keep)
			continue;
		memmove(p->tokens.ids, p->tokens.ids + (p->tokens.n - keep), keep * sizeof *p->tokens.ids);
		p->tokens.n = keep;
		buf_fini(&p->text);
	}
	return 0;
}

/* Checks that each prompt has a token, and that prompt and answer fit into the context. Sets
 * max_tokens if the client left it open. */
static int fit(struct request_prepare *q, const char *param)
{
	size_t longest = 0;
	for (size_t i = 0; i < q->n_prompts; i++) {
		size_t n = q->prompts[i].tokens.n;
		if (n == 0)
			return api_bad(&q->error, param, "%s is empty: a prompt needs at least one token",
			               param);
		longest = n > longest ? n : longest;
	}
	if (!q->context) {
		if (longest > INT32_MAX / 2)
			return too_long(q, param, longest, INT32_MAX / 2);
		if (!q->p.has_max_tokens && (q->default_max_tokens || q->kind != KIND_COMPLETION))
			q->p.max_tokens = q->default_max_tokens ? q->default_max_tokens : 4096;
		return 0;
	}
	if (longest > q->context || (longest == q->context && tokens_asked(q) > 0))
		return too_long(q, param, longest, q->context);
	if (q->prompt_max && longest > q->prompt_max)
		return too_long(q, param, longest, q->prompt_max);
	uint32_t room = q->context - (uint32_t)longest;
	if (!q->p.has_max_tokens && q->default_max_tokens)
		q->p.max_tokens = least(q->default_max_tokens, room);
	else if (!q->p.has_max_tokens && (q->kind != KIND_COMPLETION || q->p.max_tokens > room))
		q->p.max_tokens = room;
	return q->p.max_tokens <= room
	           ? 0
	           : too_long(q, request_kind_max_tokens(q->kind), longest, q->context);
}

int prompt_check_lengths(struct request_prepare *q, const char *param)
{
	if (truncate_prompts(q) < 0 || fit(q, param) < 0)
		return -1;
	if (q->p.min_tokens > q->p.max_tokens)
		return api_bad(&q->error, "min_tokens", "min_tokens is %u, more than %s, which is %u",
		               q->p.min_tokens, request_kind_max_tokens(q->kind), q->p.max_tokens);
	return 0;
}

/* --- what the answer needs of a prompt ----------------------------------- */

static unsigned decode_flags(const struct request_prepare *q)
{
	return q->p.skip_special ? DECODE_SKIP_SPECIAL : 0;
}

/* The client's own text is kept already, unless it was truncated. */
static int keep_echo_text(struct request_prepare *q, struct prompt *p)
{
	struct detok d;
	p->is_given = p->text.quota != NULL;
	if (!p->is_given)
		buf_init_quota(&p->text, 0, &q->quota);
	if (!p->is_given && q->model->tokenizer) {
		detok_init(&d, q->model->tokenizer, decode_flags(q));
		for (size_t i = 0; i < p->tokens.n; i++)
			detok_feed(&d, p->tokens.ids[i], &p->text);
		detok_finish(&d, &p->text);
	}
	p->chars = utf8_count(p->text.data, p->text.len);
	return p->text.full ? budget_refuse(q, "echo", "the prompt to be echoed") : 0;
}

int prompt_keep(struct request_prepare *q)
{
	if (budget_prompt_rows(q) < 0)
		return -1;
	for (size_t i = 0; i < q->n_prompts; i++) {
		struct prompt *p = &q->prompts[i];
		if (q->p.echo && keep_echo_text(q, p) < 0)
			return -1;
		if (q->p.return_token_ids) {
			buf_init_quota(&p->ids, 0, &q->quota);
			for (size_t k = 0; k < p->tokens.n; k++) {
				if (k)
					buf_addc(&p->ids, ',');
				buf_add_uint(&p->ids, p->tokens.ids[k]);
			}
			if (p->ids.full)
				return budget_refuse(q, "return_token_ids", "the ids of its prompt");
		}
		if (q->p.sampling.prompt_logprobs) {
			/* the first token has a row without a log-probability */
			struct row *r = rows_add(&p->rows);
			r->id = p->tokens.ids[0];
			r->n_top = ROW_NONE;
			if (q->model->tokenizer)
				detok_init(&p->detok, q->model->tokenizer, decode_flags(q));
		}
	}
	return 0;
}

/* Code points of the prompt's text before token `at`. Call it for each token, in order. */
static size_t chars_before(const struct request_prepare *q, struct prompt *p, uint32_t at)
{
	struct buf text;
	if (!q->p.echo || !q->model->tokenizer)
		return 0;
	/* the client's own text contains its special tokens, but not the added first one */
	if (p->is_given)
		p->detok.flags = at == 1 && q->p.add_special && tokenizer_adds_bos(q->model->tokenizer)
		                     ? DECODE_SKIP_SPECIAL
		                     : 0;
	buf_init(&text, 0); /* of one token */
	detok_feed(&p->detok, p->tokens.ids[at - 1], &text);
	p->row_chars += utf8_count(text.data, text.len);
	buf_fini(&text);
	return p->row_chars;
}

void prompt_add_rows(const struct request_prepare *q, struct prompt *p,
                     const Pds__PromptLogprobs *m, size_t from, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t at = p->rows.n;
		struct row *r = rows_add(&p->rows); /* there is room: budget_prompt_rows */
		r->id = p->tokens.ids[at];
		r->offset = (uint32_t)chars_before(q, p, at);
		row_take(r, p->rows.top, m, from + i);
	}
}
