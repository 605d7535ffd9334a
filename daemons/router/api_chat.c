/* api_chat.c - POST /v1/chat/completions: messages through the model's own template. */
#include "call.h"
#include "util/mem.h"

#include <string.h>

int call_bad_body(struct call *c, const struct body_error *e)
{
	return api_bad(&c->error, e->param, "%s", e->text);
}

int chat_render(struct call *c, const json_t *o, struct buf *out)
{
	struct chat_tools tools;
	struct body_error bad;
	if (tools_read(c, o, &tools) < 0 || prompt_need_text(c, "messages") < 0)
		return -1;
	if (!chat_set_choose(&c->model->text.chats, tools.tools != NULL))
		return api_bad(&c->error, "messages",
		               "the model %s has no chat template: send a prompt to /v1/completions, or "
		               "give the server one (setting chat_template)",
		               c->model->name);
	if (chat_request_render(&c->model->text.chats, o, &tools, c->created_s, out, &bad) < 0)
		return call_bad_body(c, &bad);
	if (c->message.reasoning)
		c->message.at = reasoning_opened(c->message.reasoning, out->data ? out->data : "",
		                                 out->len);
	return 0;
}

int api_chat_prepare(struct call *c, const json_t *o)
{
	const json_t *v = json_object_get(o, "messages");
	struct buf text;
	if (params_read(o, 1, c->max_choices, &c->p, &c->error) < 0 ||
	    params_read_ids(o, c->model->tokenizer, c->vocab, &c->p, &c->error) < 0 ||
	    format_read(c, o) < 0)
		return -1;
	if (!v || json_is_null(v))
		return api_bad(&c->error, "messages", "messages is required");
	buf_init_quota(&text, chat_request_text_max(c->body.len), &c->quota);
	c->prompts = mem_array(1, sizeof *c->prompts);
	c->n_prompts = 1;
	int r = chat_render(c, o, &text);
	if (r == 0)
		r = format_behind_thoughts(c, text.data ? text.data : "", text.len);
	if (r == 0)
		r = tools_force(c, o, text.data ? text.data : "", text.len);
	if (r == 0)
		r = prompt_encode(c, &c->prompts[0], text.data ? text.data : "", text.len, "messages");
	buf_fini(&text);
	return r < 0 ? r : prompt_check_lengths(c, "messages");
}
