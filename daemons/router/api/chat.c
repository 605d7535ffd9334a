/* chat.c - POST /v1/chat/completions: messages through the model's own template. */
#include "prepare.h"
#include "util/mem.h"

#include <string.h>

int chat_render(struct request_prepare *q, const json_t *o, struct buf *out,
                struct chat_tools *ret_tools)
{
	struct chat_tools tools;
	struct body_error bad;
	if (tools_read(q, o, &tools) < 0)
		return -1;
	int r = prompt_need_text(q, "messages");
	if (r == 0 && !chat_set_choose(&q->model->text.chats, tools.tools != NULL))
		r = api_bad(&q->error, "messages",
		            "the model %s has no chat template: send a prompt to /v1/completions, or give "
		            "the server one (setting chat_template)",
		            q->model->name);
	if (r == 0 &&
	    chat_request_render(&q->model->text.chats, o, &tools, q->created_s, out, &bad) < 0)
		r = api_bad(&q->error, bad.param, "%s", bad.text);
	if (r == 0 && q->message.reasoning)
		q->message.at = reasoning_opened(q->message.reasoning, out->data ? out->data : "",
		                                 out->len);
	if (r == 0 && ret_tools)
		*ret_tools = tools;
	else
		chat_tools_fini(&tools);
	return r;
}

int api_chat_prepare(struct request_prepare *q, const json_t *o)
{
	const json_t *v = json_object_get(o, "messages");
	struct chat_tools tools = {0};
	struct buf text;
	if (params_read(o, 1, q->max_answers, &q->p, &q->error) < 0 ||
	    params_read_ids(o, q->model->tokenizer, q->vocab, &q->p, &q->error) < 0 ||
	    format_read(q, o) < 0)
		return -1;
	if (!v || json_is_null(v))
		return api_bad(&q->error, "messages", "messages is required");
	buf_init_quota(&text, chat_request_text_max(q->body.len), &q->quota);
	q->prompts = mem_array(1, sizeof *q->prompts);
	q->n_prompts = 1;
	int r = chat_render(q, o, &text, &tools);
	if (r == 0)
		r = format_behind_thoughts(q, text.data ? text.data : "", text.len);
	if (r == 0)
		r = tools_force(q, o, &tools, text.data ? text.data : "", text.len);
	if (r == 0)
		r = prompt_encode(q, &q->prompts[0], text.data ? text.data : "", text.len, "messages");
	chat_tools_fini(&tools);
	buf_fini(&text);
	return r < 0 ? r : prompt_check_lengths(q, "messages");
}
