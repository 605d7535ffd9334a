/* api_chat.c - POST /v1/chat/completions: messages through the model's own template. */
#include "call.h"
#include "util/mem.h"

#include <string.h>

#define MESSAGES_MAX 4096
#define PARTS_MAX 4096
#define TOOL_CALLS_MAX 128

/* A text in parts: as it is for a template that takes parts, else joined. */
static int join_parts(struct call *c, const json_t *parts, size_t at, int takes_parts, json_t *into)
{
	struct buf b;
	buf_init(&b, 0);
	for (size_t i = 0; i < json_array_size(parts); i++) {
		const json_t *part = json_array_get(parts, i), *text = json_object_get(part, "text");
		const char *type = json_string_value(json_object_get(part, "type"));
		if (!type || strcmp(type, "text") != 0 || !json_is_string(text)) {
			buf_fini(&b);
			return api_bad(&c->error, "messages", "messages[%zu].content[%zu] must be {\"type\":\"text\",\"text\":\"...\"}, got %s", at, i,
			               param_show(part));
		}
		buf_add(&b, json_string_value(text), json_string_length(text));
	}
	if (!takes_parts)
		json_object_set_new(into, "content", json_stringn(b.data ? b.data : "", b.len));
	buf_fini(&b);
	return 0;
}

/* One call that the assistant made: its arguments, a string of JSON for OpenAI, are an object for templates. Appends to `list` what those see. */
static int read_tool_call(struct call *c, const json_t *call, size_t at, size_t i, json_t *list)
{
	const json_t *f = json_object_get(call, "function"), *name = json_object_get(f, "name"), *args = json_object_get(f, "arguments");
	if (!json_is_object(call) || !json_is_object(f))
		return api_bad(&c->error, "messages", "messages[%zu].tool_calls[%zu] must be an object with a function, got %s", at, i, param_show(call));
	if (!json_is_string(name) || json_string_length(name) == 0)
		return api_bad(&c->error, "messages", "messages[%zu].tool_calls[%zu].function.name must be a string, got %s", at, i, param_show(name));
	if (args && !json_is_string(args) && !json_is_object(args) && !json_is_null(args))
		return api_bad(&c->error, "messages", "messages[%zu].tool_calls[%zu].function.arguments must be a string of JSON, got %s", at, i, param_show(args));
	json_t *parsed = NULL;
	if (json_string_length(args))
		parsed = json_loadb(json_string_value(args), json_string_length(args), JSON_ALLOW_NUL, NULL);
	else
		parsed = json_is_object(args) ? json_incref((json_t *)args) : json_object();
	json_t *own = json_copy((json_t *)call), *own_f = json_copy((json_t *)f);
	if (json_is_object(parsed))      /* what is no object stays the string that it is: the template may take that */
		json_object_set(own_f, "arguments", parsed);
	json_decref(parsed);
	json_object_set_new(own, "function", own_f);
	json_array_append_new(list, own);
	return 0;
}

/* Sets tool_calls of `own`, a shallow copy of message m. */
static int read_tool_calls(struct call *c, const json_t *m, size_t at, json_t *own)
{
	const json_t *calls = json_object_get(m, "tool_calls");
	if (!calls || json_is_null(calls))
		return 0;
	if (!json_is_array(calls) || json_array_size(calls) > TOOL_CALLS_MAX)
		return api_bad(&c->error, "messages", "messages[%zu].tool_calls must be an array of at most %d calls, got %s", at, TOOL_CALLS_MAX, param_show(calls));
	json_t *list = json_array();
	json_object_set_new(own, "tool_calls", list);
	for (size_t i = 0; i < json_array_size(calls); i++)
		if (read_tool_call(c, json_array_get(calls, i), at, i, list) < 0)
			return -1;
	return 0;
}

/* An assistant that called tools or thought may have said nothing. */
static int may_be_silent(const json_t *m)
{
	const char *role = json_string_value(json_object_get(m, "role"));
	int thought = json_is_string(json_object_get(m, "reasoning_content")) || json_is_string(json_object_get(m, "reasoning"));
	return strcmp(role, "assistant") == 0 && (thought || json_array_size(json_object_get(m, "tool_calls")) > 0);
}

/* Appends to `list` the message as the template shall see it. */
static int read_message(struct call *c, const json_t *m, size_t at, int takes_parts, json_t *list)
{
	const json_t *role = json_object_get(m, "role"), *content = json_object_get(m, "content"), *id = json_object_get(m, "tool_call_id");
	if (!json_is_object(m))
		return api_bad(&c->error, "messages", "messages[%zu] must be an object, got %s", at, param_show(m));
	if (!json_is_string(role) || json_string_length(role) == 0)
		return api_bad(&c->error, "messages", "messages[%zu].role must be a string, got %s", at, param_show(role));
	if (id && !json_is_null(id) && !json_is_string(id))
		return api_bad(&c->error, "messages", "messages[%zu].tool_call_id must be a string, got %s", at, param_show(id));
	if (json_is_object(json_object_get(m, "function_call")))
		return api_bad(&c->error, "messages", "messages[%zu].function_call is not supported by this server: use tool_calls", at);
	int parts = json_is_array(content) && json_array_size(content) > 0 && json_array_size(content) <= PARTS_MAX;
	int silent = (!content || json_is_null(content)) && may_be_silent(m);
	if (!parts && !json_is_string(content) && !silent)
		return api_bad(&c->error, "messages", "messages[%zu].content must be a string or an array of text parts, got %s", at, param_show(content));
	json_t *own = json_copy((json_t *)m);
	json_array_append_new(list, own);
	if (read_tool_calls(c, m, at, own) < 0)
		return -1;
	return parts ? join_parts(c, content, at, takes_parts, own) : 0;
}

/* Templates differ in what they take of an assistant that called tools. The list as it stands is what the reference renders; if that fails, the n-th
 * other way to say it: 0: content "" where there is none, 1: arguments as the string that came. 0: nothing in it can be said so. */
static int say_otherwise(json_t *list, const json_t *messages, int n)
{
	int any = 0;
	for (size_t i = 0; i < json_array_size(list); i++) {
		json_t *own = json_array_get(list, i), *came = json_object_get(json_array_get(messages, i), "tool_calls");
		if (json_array_size(came) == 0)
			continue;
		if (n == 0 && !json_is_string(json_object_get(own, "content")))
			any |= json_object_set_new(own, "content", json_string("")) == 0;
		else if (n == 1)
			any |= json_object_set(own, "tool_calls", came) == 0;
	}
	return any;
}

static int render(struct call *c, const struct chat_template *t, const struct chat_render *in, json_t *list, const json_t *messages, struct buf *out)
{
	struct err first = {0}, err = {0};
	int r = chat_template_render(t, in, out, &first);
	for (int n = 0; r == ERR_INVALID && n < 2; n++)
		if (say_otherwise(list, messages, n)) {
			buf_reset(out);
			r = chat_template_render(t, in, out, &err);
		}
	return r < 0 ? api_bad(&c->error, "messages", "the chat template cannot render this conversation: %s", *first.text ? first.text : "too long") : 0;
}

int chat_render(struct call *c, const json_t *o, struct buf *out)
{
	const json_t *messages = json_object_get(o, "messages"), *tools;
	size_t n = json_array_size(messages);
	if (!json_is_array(messages) || n == 0 || n > MESSAGES_MAX)
		return api_bad(&c->error, "messages", "messages must be an array of 1 to %d messages, got %s", MESSAGES_MAX, param_show(messages));
	if (tools_read(c, o, &tools) < 0 || prompt_need_text(c, "messages") < 0)
		return -1;
	const struct chat_template *t;
	struct chat_render in = {0};
	if (template_choose(c, o, tools, &in, &t) < 0)
		return -1;
	json_t *list = json_array();
	int r = 0;
	in.messages = list;
	for (size_t i = 0; i < n && r == 0; i++)
		r = read_message(c, json_array_get(messages, i), i, chat_template_takes_parts(t), list);
	if (r == 0)
		r = render(c, t, &in, list, messages, out);
	if (r == 0 && c->message.reasoning)
		c->message.inside = reasoning_opened(c->message.reasoning, out->data ? out->data : "", out->len);
	json_decref(list);
	return r;
}

int api_chat_prepare(struct call *c, const json_t *o)
{
	const json_t *v = json_object_get(o, "messages");
	struct buf text;
	if (params_read(o, 1, c->max_choices, &c->p, &c->error) < 0 || params_read_ids(o, c->model->tokenizer, c->vocab, &c->p, &c->error) < 0 ||
	    format_read(c, o) < 0)
		return -1;
	if (!v || json_is_null(v))
		return api_bad(&c->error, "messages", "messages is required");
	buf_init(&text, c->body_len * 4 + (1u << 20));
	c->prompts = mem_array(1, sizeof *c->prompts);
	c->n_prompts = 1;
	int r = chat_render(c, o, &text);
	if (r == 0)
		r = tools_force(c, o, text.data ? text.data : "", text.len);
	if (r == 0)
		r = prompt_encode(c, &c->prompts[0], text.data ? text.data : "", text.len, "messages");
	buf_fini(&text);
	return r < 0 ? r : prompt_check_lengths(c, "messages");
}
