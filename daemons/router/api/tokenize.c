/* tokenize.c - POST /tokenize and /detokenize, as in vLLM. They need no worker. The complete
 * answer is in memory, within the request's quota, and is sent in steps. */
#include "prepare.h"

#include <stdlib.h>
#include <string.h>

/* The answer is in `out` if there was memory for it. */
static int check_answer_memory(struct request_prepare *q)
{
	return q->out.full ? budget_refuse(q, NULL, "its answer") : 0;
}

int api_tokenize_prepare(struct request_prepare *q, const json_t *o)
{
	const json_t *prompt = json_object_get(o, "prompt"), *messages = json_object_get(o, "messages");
	int strings, chat = !prompt && messages;
	struct prompt p = {0};
	struct buf text;
	if (param_bool(o, "return_token_strs", 0, &strings, &q->error) < 0 ||
	    param_bool(o, "add_special_tokens", !chat, &q->p.add_special, &q->error) < 0)
		return -1;
	if (!chat && !json_is_string(prompt))
		return api_bad(&q->error, "prompt", "prompt must be a string, got %s", param_show(prompt));
	q->context = 0; /* longer prompts are counted, too */
	buf_init_quota(&text, chat_request_text_max(q->body.len), &q->quota);
	int r = chat ? chat_render(q, o, &text, NULL) : 0;
	if (r == 0 && chat)
		r = prompt_encode(q, &p, text.data ? text.data : "", text.len, "messages");
	else if (r == 0)
		r = prompt_encode(q, &p, json_string_value(prompt), json_string_length(prompt), "prompt");
	if (r == 0) {
		buf_printf(&q->out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", p.tokens.n,
		           q->max_model_len);
		for (size_t i = 0; i < p.tokens.n; i++) {
			if (i)
				buf_addc(&q->out, ',');
			buf_add_uint(&q->out, p.tokens.ids[i]);
		}
		buf_adds(&q->out, "],\"token_strs\":");
		buf_adds(&q->out, strings ? "[" : "null");
		for (size_t i = 0; strings && i < p.tokens.n; i++) {
			size_t len = 0;
			const char *bytes = tokenizer_bytes(q->model->tokenizer, p.tokens.ids[i], &len);
			buf_adds(&q->out, i ? "," : "");
			buf_add_json(&q->out, bytes ? bytes : "", len);
		}
		buf_adds(&q->out, strings ? "]}" : "}");
	}
	token_list_fini(&p.tokens);
	buf_fini(&text);
	return r < 0 ? r : check_answer_memory(q);
}

/* Returns the ids, in memory of the quota; NULL with the error set. */
static uint32_t *read_ids(struct request_prepare *q, const json_t *v, uint32_t vocab)
{
	size_t n = json_array_size(v);
	uint32_t *ids = quota_alloc(&q->quota, n * sizeof *ids);
	if (!ids) {
		budget_refuse(q, "tokens", "its tokens");
		return NULL;
	}
	for (size_t i = 0; i < n; i++) {
		const json_t *id = json_array_get(v, i);
		if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= vocab) {
			quota_free(&q->quota, ids, n * sizeof *ids);
			api_bad(&q->error, "tokens", "tokens[%zu] must be a token id from 0 to %u, got %s", i,
			        vocab - 1, param_show(id));
			return NULL;
		}
		ids[i] = (uint32_t)json_integer_value(id);
	}
	return ids;
}

int api_detokenize_prepare(struct request_prepare *q, const json_t *o)
{
	const json_t *v = json_object_get(o, "tokens");
	if (prompt_need_text(q, "tokens") < 0)
		return -1;
	if (!json_is_array(v))
		return api_bad(&q->error, "tokens", "tokens must be an array of token ids, got %s",
		               param_show(v));
	size_t n = json_array_size(v);
	uint32_t *ids = read_ids(q, v, tokenizer_size(q->model->tokenizer));
	if (!ids)
		return -1;
	struct buf text;
	buf_init_quota(&text, 0, &q->quota);
	tokenizer_decode(q->model->tokenizer, ids, n, 0, &text);
	quota_free(&q->quota, ids, n * sizeof *ids);
	q->out.full |= text.full;
	buf_adds(&q->out, "{\"prompt\":");
	buf_add_json(&q->out, text.data ? text.data : "", text.len);
	buf_adds(&q->out, "}");
	buf_fini(&text);
	return check_answer_memory(q);
}
