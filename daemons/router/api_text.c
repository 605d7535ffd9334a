/* api_text.c - POST /tokenize and /detokenize, as vLLM has them. They need no worker. */
#include "call.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

static void add_token_strings(struct call *c, const struct token_list *l)
{
	struct buf piece;
	buf_init(&piece, 0);
	for (size_t i = 0; i < l->n; i++) {
		buf_reset(&piece);
		tokenizer_decode(c->model->tokenizer, &l->ids[i], 1, DECODE_CONTINUES, &piece);
		buf_adds(&c->out, i ? "," : "");
		buf_add_json(&c->out, piece.data ? piece.data : "", piece.len);
	}
	buf_fini(&piece);
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
	c->context = 0;   /* counting is allowed beyond it */
	buf_init(&text, chat_request_text_max(c->body.len));
	int r = chat ? chat_render(c, o, &text) : 0;
	if (r == 0 && chat)
		r = prompt_encode(c, &p, text.data ? text.data : "", text.len, "messages");
	else if (r == 0)
		r = prompt_encode(c, &p, json_string_value(prompt), json_string_length(prompt), "prompt");
	if (r == 0) {
		buf_printf(&c->out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", p.tokens.n, c->max_model_len);
		for (size_t i = 0; i < p.tokens.n; i++)
			buf_printf(&c->out, i ? ",%u" : "%u", p.tokens.ids[i]);
		buf_adds(&c->out, "],\"token_strs\":");
		buf_adds(&c->out, strings ? "[" : "null");
		if (strings)
			add_token_strings(c, &p.tokens);
		buf_adds(&c->out, strings ? "]}" : "}");
	}
	token_list_fini(&p.tokens);
	buf_fini(&text);
	return r;
}

int api_detokenize_prepare(struct call *c, const json_t *o)
{
	const json_t *v = json_object_get(o, "tokens");
	if (prompt_need_text(c, "tokens") < 0)
		return -1;
	if (!json_is_array(v))
		return api_bad(&c->error, "tokens", "tokens must be an array of token ids, got %s", param_show(v));
	size_t n = json_array_size(v);
	uint32_t *ids = mem_array(n, sizeof *ids);
	uint32_t size = tokenizer_size(c->model->tokenizer);
	for (size_t i = 0; i < n; i++) {
		const json_t *id = json_array_get(v, i);
		if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= size) {
			free(ids);
			return api_bad(&c->error, "tokens", "tokens[%zu] must be a token id from 0 to %u, got %s", i, size - 1, param_show(id));
		}
		ids[i] = (uint32_t)json_integer_value(id);
	}
	struct buf text;
	buf_init(&text, 0);
	tokenizer_decode(c->model->tokenizer, ids, n, 0, &text);
	buf_adds(&c->out, "{\"prompt\":");
	buf_add_json(&c->out, text.data ? text.data : "", text.len);
	buf_adds(&c->out, "}");
	buf_fini(&text);
	free(ids);
	return 0;
}
