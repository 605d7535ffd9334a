/* api_text.c - POST /tokenize and /detokenize, as vLLM has them. They need no worker. The answer is
 * made as a whole, within what the request may hold, and sent in steps. */
#include "call.h"

#include <stdlib.h>
#include <string.h>

static void add_token_strings(struct call *c, const struct token_list *l)
{
	for (size_t i = 0; i < l->n; i++) {
		size_t len = 0;
		const char *bytes = tokenizer_bytes(c->model->tokenizer, l->ids[i], &len);
		buf_adds(&c->out, i ? "," : "");
		buf_add_json(&c->out, bytes ? bytes : "", len);
	}
}

static int whole(struct call *c)
{
	return c->out.full ? budget_refuse(c, NULL, "its answer") : 0;
}

int api_tokenize_prepare(struct call *c, const json_t *o)
{
	const json_t *prompt = json_object_get(o, "prompt"), *messages = json_object_get(o, "messages");
	int strings, chat = !prompt && messages;
	struct prompt p = {0};
	struct buf text;
	if (param_bool(o, "return_token_strs", 0, &strings, &c->error) < 0 ||
	    param_bool(o, "add_special_tokens", !chat, &c->p.add_special, &c->error) < 0)
		return -1;
	if (!chat && !json_is_string(prompt))
		return api_bad(&c->error, "prompt", "prompt must be a string, got %s", param_show(prompt));
	c->context = 0; /* counting is allowed beyond it */
	buf_init_quota(&text, chat_request_text_max(c->body.len), &c->quota);
	int r = chat ? chat_render(c, o, &text) : 0;
	if (r == 0 && chat)
		r = prompt_encode(c, &p, text.data ? text.data : "", text.len, "messages");
	else if (r == 0)
		r = prompt_encode(c, &p, json_string_value(prompt), json_string_length(prompt), "prompt");
	if (r == 0) {
		buf_printf(&c->out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", p.tokens.n,
		           c->max_model_len);
		for (size_t i = 0; i < p.tokens.n; i++) {
			if (i)
				buf_addc(&c->out, ',');
			buf_add_uint(&c->out, p.tokens.ids[i]);
		}
		buf_adds(&c->out, "],\"token_strs\":");
		buf_adds(&c->out, strings ? "[" : "null");
		if (strings)
			add_token_strings(c, &p.tokens);
		buf_adds(&c->out, strings ? "]}" : "}");
	}
	token_list_fini(&p.tokens);
	buf_fini(&text);
	return r < 0 ? r : whole(c);
}

/* The ids that were asked about; of a size that is taken from the quota. NULL with the error
 * set. */
static uint32_t *read_ids(struct call *c, const json_t *v, uint32_t vocab)
{
	size_t n = json_array_size(v);
	uint32_t *ids = quota_alloc(&c->quota, n * sizeof *ids);
	if (!ids) {
		budget_refuse(c, "tokens", "its tokens");
		return NULL;
	}
	for (size_t i = 0; i < n; i++) {
		const json_t *id = json_array_get(v, i);
		if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= vocab) {
			quota_free(&c->quota, ids, n * sizeof *ids);
			api_bad(&c->error, "tokens", "tokens[%zu] must be a token id from 0 to %u, got %s", i,
			        vocab - 1, param_show(id));
			return NULL;
		}
		ids[i] = (uint32_t)json_integer_value(id);
	}
	return ids;
}

int api_detokenize_prepare(struct call *c, const json_t *o)
{
	const json_t *v = json_object_get(o, "tokens");
	if (prompt_need_text(c, "tokens") < 0)
		return -1;
	if (!json_is_array(v))
		return api_bad(&c->error, "tokens", "tokens must be an array of token ids, got %s",
		               param_show(v));
	size_t n = json_array_size(v);
	uint32_t *ids = read_ids(c, v, tokenizer_size(c->model->tokenizer));
	if (!ids)
		return -1;
	struct buf text;
	buf_init_quota(&text, 0, &c->quota);
	tokenizer_decode(c->model->tokenizer, ids, n, 0, &text);
	quota_free(&c->quota, ids, n * sizeof *ids);
	c->out.full |= text.full;
	buf_adds(&c->out, "{\"prompt\":");
	buf_add_json(&c->out, text.data ? text.data : "", text.len);
	buf_adds(&c->out, "}");
	buf_fini(&text);
	return whole(c);
}
