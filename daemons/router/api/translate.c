/* translate.c - see translate.h. */
#include "translate.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct translate_path translate_path(const char *fmt, ...)
{
	struct translate_path p;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(p.text, sizeof p.text, fmt, ap);
	va_end(ap);
	return p;
}

int translate_bad(struct request_prepare *q, const char *path, const char *must, const json_t *got)
{
	return api_bad(&q->error, path, "%s must be %s, got %s", path, must, param_show(got));
}

int translate_refuse(struct request_prepare *q, const char *path, const char *why)
{
	return api_bad(&q->error, path, "%s is not supported by this server: %s", path, why);
}

const char *translate_type(struct request_prepare *q, const char *path, const json_t *v)
{
	const char *type = json_string_value(json_object_get(v, "type"));
	if (!type)
		translate_bad(q, path, "an object with a type", v);
	return type;
}

/* --- messages ------------------------------------------------------------ */

int translate_add_text(json_t *parts, const json_t *text)
{
	return json_array_append_new(parts, json_pack("{s:s,s:O}", "type", "text", "text", text));
}

json_t *translate_string(const json_t *v)
{
	json_t *parts = json_array();
	if (translate_add_text(parts, v) == 0)
		return parts;
	json_decref(parts);
	return NULL;
}

json_t *translate_add_message(json_t *messages, const char *role)
{
	json_t *m = json_pack("{s:s,s:n}", "role", role, "content");
	return json_array_append_new(messages, m) == 0 ? m : NULL;
}

int translate_add_system(json_t *messages, json_t *content)
{
	json_t *last = json_array_get(messages, json_array_size(messages) - 1), *gap;
	const char *role = json_string_value(json_object_get(last, "role"));
	int r = -1;
	if (!role || strcmp(role, "system") != 0) {
		last = content ? translate_add_message(messages, "system") : NULL;
		return json_object_set_new(last, "content", content);
	}
	/* some templates allow a system message only as the first one */
	gap = json_string("\n\n");
	if (gap && translate_add_text(json_object_get(last, "content"), gap) == 0)
		r = json_array_extend(json_object_get(last, "content"), content);
	json_decref(gap);
	json_decref(content);
	return r;
}

int translate_add_call(struct request_prepare *q, const char *path, json_t *message,
                       const json_t *id, const json_t *name, const json_t *arguments)
{
	json_t *calls = json_object_get(message, "tool_calls");
	if (!calls && json_object_set_new(message, "tool_calls", calls = json_array()) < 0)
		return -1;
	if (json_array_size(calls) == CHAT_CALLS_MAX)
		return api_bad(&q->error, path, "%s: a turn of the assistant has at most %d calls", path,
		               CHAT_CALLS_MAX);
	return json_array_append_new(calls,
	                             json_pack("{s:O,s:s,s:{s:O,s:O}}", "id", id, "type", "function",
	                                       "function", "name", name, "arguments", arguments));
}

#define THOUGHTS "reasoning_content"

int translate_add_thoughts(json_t *message, const json_t *text)
{
	json_t *list = json_object_get(message, THOUGHTS);
	if (!list && json_object_set_new(message, THOUGHTS, list = json_array()) < 0)
		return -1;
	return json_array_append(list, (json_t *)text);
}

/* Each list of thoughts becomes one string: once, so that many of them cost no more than their
 * length. A message of thoughts alone gets an empty content, which templates expect. */
static int join_thoughts(struct request_prepare *q, json_t *messages)
{
	int r = 0;
	for (size_t i = 0; i < json_array_size(messages) && r == 0; i++) {
		json_t *m = json_array_get(messages, i), *list = json_object_get(m, THOUGHTS);
		struct buf b;
		if (!list)
			continue;
		buf_init_quota(&b, 0, &q->quota);
		for (size_t k = 0; k < json_array_size(list); k++)
			buf_add(&b, json_string_value(json_array_get(list, k)),
			        json_string_length(json_array_get(list, k)));
		r = b.full ? -1
		           : json_object_set_new(m, THOUGHTS, json_stringn(b.data ? b.data : "", b.len));
		buf_fini(&b);
		if (r == 0 && json_is_null(json_object_get(m, "content")) &&
		    !json_object_get(m, "tool_calls"))
			r = json_object_set_new(m, "content", json_string(""));
	}
	return r;
}

int translate_add_result(json_t *messages, const json_t *id, json_t *content)
{
	json_t *m = content ? translate_add_message(messages, "tool") : NULL;
	int r = json_object_set_new(m, "content", content);
	return r == 0 ? json_object_set(m, "tool_call_id", (json_t *)id) : r;
}

/* --- tools and forms ----------------------------------------------------- */

int translate_add_tool(json_t *tools, const json_t *name, const json_t *description,
                       const json_t *parameters, const json_t *strict)
{
	json_t *f = json_pack("{s:O*,s:O*,s:O*,s:O*}", "name", name, "description", description,
	                      "parameters", parameters, "strict", strict);
	return json_array_append_new(tools, json_pack("{s:s,s:o}", "type", "function", "function", f));
}

int translate_tools(struct request_prepare *q, const json_t *o, json_t *chat,
                    int (*read)(struct request_prepare *q, const char *path, const json_t *tool,
                                json_t *tools))
{
	const json_t *v = body_member(o, "tools");
	json_t *tools = json_array();
	if (json_object_set_new(chat, "tools", tools) < 0)
		return -1;
	if (v && !json_is_array(v))
		return translate_bad(q, "tools", "an array", v);
	for (size_t i = 0; i < json_array_size(v); i++)
		if (read(q, translate_path("tools[%zu]", i).text, json_array_get(v, i), tools) < 0)
			return -1;
	return 0;
}

int translate_choose(json_t *chat, const json_t *name)
{
	return json_object_set_new(chat, "tool_choice",
	                           json_pack("{s:s,s:{s:O}}", "type", "function", "function", "name",
	                                     name));
}

int translate_schema(json_t *chat, const json_t *schema, const json_t *strict)
{
	json_t *s = json_pack("{s:s,s:O,s:O*}", "name", "answer", "schema", schema, "strict", strict);
	return json_object_set_new(chat, "response_format",
	                           json_pack("{s:s,s:o}", "type", "json_schema", "json_schema", s));
}

/* Sets a variable of the template (chat_template_kwargs) that the body itself does not set. */
static int translate_variable(json_t *chat, const char *name, int value)
{
	const json_t *given = body_member(chat, "chat_template_kwargs");
	if (given && !json_is_object(given))
		return 0; /* chat refuses it */
	json_t *own = given ? json_copy((json_t *)given) : json_object();
	if (!json_object_get(own, name) && json_object_set_new(own, name, json_boolean(value)) < 0) {
		json_decref(own);
		return -1;
	}
	return json_object_set_new(chat, "chat_template_kwargs", own);
}

int translate_thinking(json_t *chat, int on)
{
	return translate_variable(chat, "enable_thinking", on) < 0
	           ? -1
	           : translate_variable(chat, "thinking", on);
}

/* --- errors -------------------------------------------------------------- */

/* Replaces the name in the path that the text begins with. */
static void rename_in(char *text, size_t size, const struct translate_name *n)
{
	char *end = text + strcspn(text, " :"), *at = strstr(text, n->chat), all[512];
	size_t len = strlen(n->chat);
	int is_inner = *n->chat == '.';
	if (!at || at >= end || (!is_inner && at != text) || isalnum((unsigned char)at[len]) ||
	    at[len] == '_')
		return;
	snprintf(all, sizeof all, "%.*s%s%s", (int)(at - text), text, n->own, at + len);
	snprintf(text, size, "%s", all);
}

/* Chat's errors have the index of a translated message, which the client does not know. */
static void leave_out_number(char *text)
{
	static const char counted[] = "messages[";
	char *from = text + sizeof counted - 2, *end = strchr(text, ']');
	if (strncmp(text, counted, sizeof counted - 1) == 0 && end)
		memmove(from, end + 1, strlen(end));
}

int translate_prepare(struct request_prepare *q, json_t *chat, const struct translate_name *names,
                      int (*prepare)(struct request_prepare *q, const json_t *chat))
{
	int r = chat ? join_thoughts(q, json_object_get(chat, "messages")) : -1;
	if (r == 0 && (r = prepare(q, chat)) < 0) {
		leave_out_number(q->error.text);
		leave_out_number(q->error.param);
	}
	json_decref(chat);
	for (const struct translate_name *n = names; r < 0 && n->chat; n++) {
		rename_in(q->error.text, sizeof q->error.text, n);
		rename_in(q->error.param, sizeof q->error.param, n);
	}
	return r;
}
