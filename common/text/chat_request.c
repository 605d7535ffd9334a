/* chat_request.c - see chat_request.h. Converts messages as the client sent them to messages as the
 * template accepts them, and renders these. */
#include "text/chat_generic.h"
#include "text/chat_turns.h"
#include "util/json_load.h"
#include "util/mem.h"

#include <string.h>

#define MESSAGES_MAX 4096
#define DOCUMENTS_MAX 1024

/* Sets into.content to the joined parts, unless the template accepts a list of parts. */
static int join_parts(struct body_error *e, const json_t *parts, size_t at, int takes_parts,
                      struct quota *q, json_t *into)
{
	struct buf b;
	buf_init_quota(&b, 0, q);
	for (size_t i = 0; i < json_array_size(parts); i++) {
		const json_t *part = json_array_get(parts, i), *text = json_object_get(part, "text");
		const char *type = json_string_value(json_object_get(part, "type"));
		if (!type || strcmp(type, "text") != 0 || !json_is_string(text)) {
			buf_fini(&b);
			if (type && strcmp(type, "text") != 0)
				return body_bad(
					e, "messages",
					"messages[%zu].content[%zu] has the type %s, which is not supported "
					"by this server: only text is",
					at, i, body_show(json_object_get(part, "type")));
			return body_bad(
				e, "messages",
				"messages[%zu].content[%zu] must be {\"type\":\"text\",\"text\":\"...\"}, got %s",
				at, i, body_show(part));
		}
		buf_add(&b, json_string_value(text), json_string_length(text));
	}
	int r = b.full
	            ? body_bad(e, "messages",
	                       "messages[%zu].content needs more memory than is left for this request",
	                       at)
	            : 0;
	if (!takes_parts && r == 0)
		json_object_set_new(into, "content", json_stringn(b.data ? b.data : "", b.len));
	buf_fini(&b);
	return r;
}

/* jansson frees a value that it cannot add: do not use that value any more. */
static int no_room(struct body_error *e, size_t at)
{
	return body_bad(e, "messages", "messages[%zu] needs more memory than is left for this request",
	                at);
}

/* Appends to `list` one tool call of the assistant as templates see it: OpenAI's arguments are a
 * string of JSON, templates expect an object. */
static int read_tool_call(struct body_error *e, const json_t *call, size_t at, size_t i,
                          json_t *list)
{
	const json_t *f = json_object_get(call, "function"), *name = json_object_get(f, "name"),
				 *args = json_object_get(f, "arguments");
	if (!json_is_object(call) || !json_is_object(f))
		return body_bad(e, "messages",
		                "messages[%zu].tool_calls[%zu] must be an object with a function, got %s",
		                at, i, body_show(call));
	if (!json_is_string(name) || json_string_length(name) == 0)
		return body_bad(e, "messages",
		                "messages[%zu].tool_calls[%zu].function.name must be a string, got %s", at,
		                i, body_show(name));
	if (args && !json_is_string(args) && !json_is_object(args) && !json_is_null(args))
		return body_bad(
			e, "messages",
			"messages[%zu].tool_calls[%zu].function.arguments must be a string of JSON, got %s", at,
			i, body_show(args));
	json_t *parsed = NULL;
	json_error_t bad;
	if (json_string_length(args))
		parsed = json_load(json_string_value(args), json_string_length(args), JSON_ALLOW_NUL, &bad);
	else
		parsed = json_is_object(args) ? json_incref((json_t *)args) : json_object();
	json_t *own = json_copy((json_t *)call), *own_f = json_copy((json_t *)f);
	/* if it is no object, keep the string: the template may accept it */
	if (json_is_object(parsed))
		json_object_set(own_f, "arguments", parsed);
	json_decref(parsed);
	json_object_set_new(own, "function", own_f);
	return json_array_append_new(list, own) < 0 ? no_room(e, at) : 0;
}

/* Sets tool_calls of `own`, a shallow copy of message m. */
static int read_tool_calls(struct body_error *e, const json_t *m, size_t at, json_t *own)
{
	const json_t *calls = json_object_get(m, "tool_calls");
	if (!calls || json_is_null(calls))
		return 0;
	if (!json_is_array(calls) || json_array_size(calls) > CHAT_CALLS_MAX)
		return body_bad(e, "messages",
		                "messages[%zu].tool_calls must be an array of at most %d calls, got %s", at,
		                CHAT_CALLS_MAX, body_show(calls));
	json_t *list = json_array();
	if (json_object_set_new(own, "tool_calls", list) < 0)
		return no_room(e, at);
	for (size_t i = 0; i < json_array_size(calls); i++)
		if (read_tool_call(e, json_array_get(calls, i), at, i, list) < 0)
			return -1;
	return 0;
}

/* An assistant message with tool calls or reasoning may have no content. */
static int may_be_silent(const json_t *m)
{
	const char *role = json_string_value(json_object_get(m, "role"));
	int thought = json_is_string(json_object_get(m, "reasoning_content")) ||
	              json_is_string(json_object_get(m, "reasoning"));
	return strcmp(role, "assistant") == 0 &&
	       (thought || json_array_size(json_object_get(m, "tool_calls")) > 0);
}

/* Appends to `list` the message as the template sees it. */
static int read_message(struct body_error *e, const json_t *m, size_t at,
                        const struct chat_template *t, struct quota *q, json_t *list)
{
	const json_t *role = json_object_get(m, "role"), *content = json_object_get(m, "content"),
				 *id = json_object_get(m, "tool_call_id");
	if (!json_is_object(m))
		return body_bad(e, "messages", "messages[%zu] must be an object, got %s", at, body_show(m));
	if (!json_is_string(role) || json_string_length(role) == 0)
		return body_bad(e, "messages", "messages[%zu].role must be a string, got %s", at,
		                body_show(role));
	if (id && !json_is_null(id) && !json_is_string(id))
		return body_bad(e, "messages", "messages[%zu].tool_call_id must be a string, got %s", at,
		                body_show(id));
	if (json_is_object(json_object_get(m, "function_call")))
		return body_bad(
			e, "messages",
			"messages[%zu].function_call is not supported by this server: use tool_calls", at);
	int parts = json_is_array(content) && json_array_size(content) > 0 &&
	            json_array_size(content) <= CHAT_PARTS_MAX;
	int silent = (!content || json_is_null(content)) && may_be_silent(m);
	if (!parts && !json_is_string(content) && !silent)
		return body_bad(e, "messages",
		                "messages[%zu].content must be a string or an array of text parts, got %s",
		                at, body_show(content));
	json_t *own = json_copy((json_t *)m);
	if (json_array_append_new(list, own) < 0)
		return no_room(e, at);
	if (read_tool_calls(e, m, at, own) < 0)
		return -1;
	if (strcmp(json_string_value(role), "developer") == 0 && !chat_template_names_developer(t) &&
	    json_object_set_new(own, "role", json_string("system")) < 0)
		return no_room(e, at);
	return parts ? join_parts(e, content, at, chat_template_takes_parts(t), q, own) : 0;
}

static int read_documents(struct body_error *e, const json_t *o, struct chat_render *in)
{
	const json_t *v = json_object_get(o, "documents");
	if (!v || json_is_null(v))
		return 0;
	if (!json_is_array(v) || json_array_size(v) > DOCUMENTS_MAX)
		return body_bad(e, "documents", "documents must be an array of at most %d objects, got %s",
		                DOCUMENTS_MAX, body_show(v));
	for (size_t i = 0; i < json_array_size(v); i++)
		if (!json_is_object(json_array_get(v, i)))
			return body_bad(e, "documents", "documents[%zu] must be an object, got %s", i,
			                body_show(json_array_get(v, i)));
	in->documents = json_array_size(v) ? v : NULL;
	return 0;
}

/* Reads what the body has besides messages and tools. own: an empty object that receives the
 * template's variables. */
static int read_options(struct body_error *e, const json_t *o, json_t *own, struct chat_render *in)
{
	const json_t *more = body_member(o, "chat_template_kwargs");
	const json_t *effort = body_member(o, "reasoning_effort");
	if (body_bool(o, "add_generation_prompt", 1, &in->add_generation_prompt, e) < 0 ||
	    body_bool(o, "continue_final_message", 0, &in->continue_final_message, e) < 0 ||
	    read_documents(e, o, in) < 0)
		return -1;
	if (in->continue_final_message && in->add_generation_prompt) {
		if (body_member(o, "add_generation_prompt"))
			return body_bad(e, "continue_final_message",
			                "continue_final_message and add_generation_prompt cannot both be true");
		in->add_generation_prompt = 0;
	}
	if (more && !json_is_object(more))
		return body_bad(e, "chat_template_kwargs", "chat_template_kwargs must be an object, got %s",
		                body_show(more));
	if (effort && !json_is_string(effort))
		return body_bad(e, "reasoning_effort", "reasoning_effort must be a string, got %s",
		                body_show(effort));
	json_object_set(own, "reasoning_effort", (json_t *)effort);
	json_object_update(own, (json_t *)more);
	in->variables = own;
	return 0;
}

static int render(const struct chat_template *t, struct chat_render *in, json_t *list,
                  const json_t *sent_calls, int generic, struct buf *out, struct err *err)
{
	struct err again = {0};
	int r = chat_turns_render(t, in, list, sent_calls, out, err);
	if (r == ERR_INVALID && generic && chat_generic_join_system(list, out->quota))
		r = chat_turns_render(t, in, list, sent_calls, out, &again);
	return r;
}

int chat_request_render(const struct chat_set *chats, const json_t *body,
                        const struct chat_tools *tools, int64_t now_s, struct buf *out,
                        struct body_error *e)
{
	const json_t *messages = json_object_get(body, "messages");
	size_t n = json_array_size(messages);
	const struct chat_template *t = chat_set_choose(chats, json_array_size(tools->tools) > 0);
	struct chat_render in = {.tools = tools->generic ? NULL : tools->tools,
	                         .special_tokens = chats->special_tokens,
	                         .now_s = now_s};
	if (!json_is_array(messages) || n == 0 || n > MESSAGES_MAX)
		return body_bad(e, "messages", "messages must be an array of 1 to %d messages, got %s",
		                MESSAGES_MAX, body_show(messages));
	if (!t)
		return body_bad(e, "messages", "the model has no chat template");
	json_t *list = json_array(), *sent_calls = json_array(), *variables = json_object();
	struct err err = {0};
	int r = read_options(e, body, variables, &in);
	for (size_t i = 0; i < n && r == 0; i++) {
		json_t *m = json_array_get(messages, i), *calls = json_object_get(m, "tool_calls");
		r = read_message(e, m, i, t, out->quota, list);
		if (r == 0 &&
		    json_array_append_new(sent_calls, calls ? json_incref(calls) : json_null()) < 0)
			r = no_room(e, i);
	}
	if (r == 0 && tools->generic && chat_generic_reword(&list, tools, out->quota) < 0)
		r = body_bad(e, "messages", "messages needs more memory than is left for this request");
	if (tools->generic)
		json_array_clear(sent_calls);
	if (r == 0 && chat_template_takes_one_call(t) && !tools->generic &&
	    chat_turns_split_calls(&list, &sent_calls, in.continue_final_message) < 0)
		r = body_bad(e, "messages", "messages needs more memory than is left for this request");
	if (r == 0 && render(t, &in, list, sent_calls, tools->generic, out, &err) < 0)
		r = body_bad(e, "messages", "the chat template cannot render this conversation: %s",
		             *err.text ? err.text : "too long");
	json_decref(list);
	json_decref(sent_calls);
	json_decref(variables);
	return r;
}

size_t chat_request_text_max(size_t body_bytes)
{
	return body_bytes * 4 + (1u << 20);
}
