/* responses.c - POST /v1/responses: OpenAI's Responses, without a store. The body becomes a chat
 * request: items of the input become messages, and those that the assistant has written one after
 * the other (thoughts, text, calls) become one message, as templates expect it. What needs a store,
 * or tools of a server, is refused by name. */
#include "translate.h"

#include <string.h>

struct turns {
	struct request_prepare *q;
	json_t *messages;
	json_t *open; /* message of the assistant that the next item may be a part of; NULL: none */
};

/* --- items of the input -------------------------------------------------- */

/* Returns a part's text; NULL with the error set. */
static const json_t *part_text(struct request_prepare *q, const char *path, const json_t *part)
{
	const char *type = translate_type(q, path, part);
	if (!type)
		return NULL;
	int is_refusal = strcmp(type, "refusal") == 0;
	if (!is_refusal && strcmp(type, "input_text") != 0 && strcmp(type, "output_text") != 0 &&
	    strcmp(type, "text") != 0) {
		api_bad(&q->error, path,
		        "%s has the type \"%.40s\", which is not supported by this server: input_text, "
		        "output_text and refusal are",
		        path, type);
		return NULL;
	}
	const json_t *text = json_object_get(part, is_refusal ? "refusal" : "text");
	if (json_is_string(text))
		return text;
	translate_bad(q, translate_path("%s.%s", path, is_refusal ? "refusal" : "text").text,
	              "a string", text);
	return NULL;
}

/* Returns a string or parts in the form of chat's content; NULL as in translate.h. */
static json_t *read_content(struct request_prepare *q, const char *path, const json_t *v)
{
	size_t n = json_array_size(v);
	if (json_is_string(v))
		return translate_string(v);
	if (!json_is_array(v) || n == 0 || n > CHAT_PARTS_MAX) {
		translate_bad(q, path, "a string or an array of 1 to 4096 parts", v);
		return NULL;
	}
	json_t *parts = json_array();
	for (size_t i = 0; i < n; i++) {
		const json_t *text = part_text(q, translate_path("%s[%zu]", path, i).text,
		                               json_array_get(v, i));
		if (text && translate_add_text(parts, text) == 0)
			continue;
		json_decref(parts);
		return NULL;
	}
	return parts;
}

/* Returns the open message of the assistant, or a new one. */
static json_t *open_turn(struct turns *t)
{
	if (!t->open)
		t->open = translate_add_message(t->messages, "assistant");
	return t->open;
}

/* Has the open message more than thoughts? */
static int has_spoken(const json_t *m)
{
	return json_object_get(m, "tool_calls") || !json_is_null(json_object_get(m, "content"));
}

static int read_message(struct turns *t, const char *path, const json_t *item)
{
	static const char *const roles[] = {"user", "assistant", "system", "developer"};
	const char *role = json_string_value(json_object_get(item, "role"));
	size_t i = 0;
	while (role && i < 4 && strcmp(role, roles[i]) != 0)
		i++;
	if (!role || i == 4)
		return translate_bad(t->q, translate_path("%s.role", path).text,
		                     "\"user\", \"assistant\", \"system\" or \"developer\"",
		                     json_object_get(item, "role"));
	json_t *content = read_content(t->q, translate_path("%s.content", path).text,
	                               json_object_get(item, "content"));
	if (!content)
		return -1;
	if (i >= 2) {
		t->open = NULL;
		return translate_add_system(t->messages, content);
	}
	if (i == 0 || (t->open && has_spoken(t->open)))
		t->open = NULL;
	json_t *m = i == 0 ? translate_add_message(t->messages, role) : open_turn(t);
	return json_object_set_new(m, "content", content);
}

/* Returns a member that is a string; NULL with the error set. */
static const json_t *need_string(struct request_prepare *q, const char *path, const json_t *item,
                                 const char *name)
{
	const json_t *v = json_object_get(item, name);
	if (json_is_string(v))
		return v;
	translate_bad(q, translate_path("%s.%s", path, name).text, "a string", v);
	return NULL;
}

static int read_call(struct turns *t, const char *path, const json_t *item)
{
	const json_t *id = need_string(t->q, path, item, "call_id"),
				 *name = id ? need_string(t->q, path, item, "name") : NULL,
				 *arguments = name ? need_string(t->q, path, item, "arguments") : NULL;
	if (!arguments)
		return -1;
	if (!json_string_length(name))
		return translate_bad(t->q, translate_path("%s.name", path).text, "the name of a function",
		                     name);
	json_t *m = open_turn(t);
	return m ? translate_add_call(t->q, path, m, id, name, arguments) : -1;
}

static int read_call_output(struct turns *t, const char *path, const json_t *item)
{
	const json_t *id = need_string(t->q, path, item, "call_id");
	if (!id)
		return -1;
	t->open = NULL;
	return translate_add_result(t->messages, id,
	                            read_content(t->q, translate_path("%s.output", path).text,
	                                         json_object_get(item, "output")));
}

/* Adds the texts of `content`; if there are none, those of `summary`. Thoughts that are only
 * encrypted are left out. */
static int read_thoughts(struct turns *t, const char *path, const json_t *item)
{
	const char *name = json_array_size(json_object_get(item, "content")) ? "content" : "summary";
	const json_t *list = body_member(item, name);
	if (list && !json_is_array(list))
		return translate_bad(t->q, translate_path("%s.%s", path, name).text, "an array", list);
	if (json_array_size(list) && t->open && has_spoken(t->open))
		t->open = NULL;
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *text = json_object_get(json_array_get(list, i), "text");
		if (!json_is_string(text))
			return translate_bad(t->q, translate_path("%s.%s[%zu].text", path, name, i).text,
			                     "a string", text);
		json_t *m = open_turn(t);
		if (!m || translate_add_thoughts(m, text) < 0)
			return -1;
	}
	return 0;
}

static const struct {
	const char *type;
	int (*read)(struct turns *t, const char *path, const json_t *item);
} items[] = {
	{"message", read_message},
	{"function_call", read_call},
	{"function_call_output", read_call_output},
	{"reasoning", read_thoughts},
};
#define N_ITEMS (sizeof items / sizeof *items)

/* path: of the item */
static int read_item(struct turns *t, const char *path, const json_t *item)
{
	const json_t *v = body_member(item, "type");
	const char *type = v ? json_string_value(v) : "message"; /* may be left out */
	size_t i = 0;
	if (!json_is_object(item) || !type)
		return translate_bad(t->q, path, "an object with a type or a role", item);
	while (i < N_ITEMS && strcmp(items[i].type, type) != 0)
		i++;
	if (i < N_ITEMS)
		return items[i].read(t, path, item);
	if (strcmp(type, "item_reference") == 0)
		return translate_refuse(t->q, path,
		                        "nothing is stored that item_reference could refer to; send the "
		                        "item itself");
	return api_bad(&t->q->error, path,
	               "%s has the type \"%.40s\", which is not supported by this server: message, "
	               "function_call, function_call_output and reasoning are",
	               path, type);
}

static int read_input(struct request_prepare *q, const json_t *o, json_t *chat)
{
	const json_t *input = body_member(o, "input"), *first = body_member(o, "instructions");
	struct turns t = {.q = q, .messages = json_array()};
	if (json_object_set_new(chat, "messages", t.messages) < 0)
		return -1;
	if (first && !json_is_string(first))
		return translate_bad(q, "instructions", "a string", first);
	if (first && translate_add_system(t.messages, translate_string(first)) < 0)
		return -1;
	if (!input)
		return api_bad(&q->error, "input", "input is required");
	if (json_is_string(input))
		return json_object_set_new(translate_add_message(t.messages, "user"), "content",
		                           translate_string(input));
	if (!json_is_array(input) || !json_array_size(input))
		return translate_bad(q, "input", "a string or an array of items", input);
	for (size_t i = 0; i < json_array_size(input); i++)
		if (read_item(&t, translate_path("input[%zu]", i).text, json_array_get(input, i)) < 0)
			return -1;
	return 0;
}

/* --- tools --------------------------------------------------------------- */

static int read_function_tool(struct request_prepare *q, const char *path, const json_t *tool,
                              json_t *tools)
{
	const char *type = translate_type(q, path, tool);
	if (!type)
		return -1;
	if (strcmp(type, "function") != 0)
		return api_bad(
			&q->error, path,
			"%s is the tool \"%.40s\", which is not supported by this server: only tools "
			"of the type \"function\" are",
			path, type);
	return translate_add_tool(tools, body_member(tool, "name"), body_member(tool, "description"),
	                          body_member(tool, "parameters"), body_member(tool, "strict"));
}

/* The tools that tool_choice allows, in chat's form: each name within a function. */
static int choose_allowed_tools(const json_t *v, json_t *chat)
{
	const json_t *list = json_object_get(v, "tools"), *tool;
	json_t *allowed = json_array();
	size_t i;
	int r = 0;
	json_array_foreach((json_t *)list, i, tool)
		r |= json_array_append_new(allowed, json_pack("{s:{s:O*}}", "function", "name",
		                                              json_object_get(tool, "name")));
	if (!json_is_array(list)) { /* chat refuses it */
		json_decref(allowed);
		allowed = list ? json_incref((json_t *)list) : json_null();
	}
	return r < 0 ? r
	             : json_object_set_new(chat, "tool_choice",
	                                   json_pack("{s:s,s:{s:O*,s:o}}", "type", "allowed_tools",
	                                             "allowed_tools", "mode",
	                                             json_object_get(v, "mode"), "tools", allowed));
}

static int choose_responses_tool(struct request_prepare *q, const json_t *o, json_t *chat)
{
	static const char *const words[] = {"none", "auto", "required"};
	const json_t *v = body_member(o, "tool_choice");
	const char *type = json_string_value(json_object_get(v, "type"));
	if (!v)
		return 0;
	for (size_t i = 0; json_is_string(v) && i < 3; i++)
		if (strcmp(json_string_value(v), words[i]) == 0)
			return 0; /* chat has the same words */
	if (type && strcmp(type, "function") == 0 && json_is_string(json_object_get(v, "name")))
		return translate_choose(chat, json_object_get(v, "name"));
	if (type && strcmp(type, "allowed_tools") == 0)
		return choose_allowed_tools(v, chat);
	return translate_bad(q, "tool_choice",
	                     "\"none\", \"auto\", \"required\", {\"type\":\"function\",\"name\":"
	                     "\"...\"} or {\"type\":\"allowed_tools\",\"mode\":\"...\",\"tools\":[]}",
	                     v);
}

/* --- the rest ------------------------------------------------------------ */

static int read_text_format(struct request_prepare *q, const json_t *o, json_t *chat)
{
	const json_t *v = body_member(o, "text"), *f = body_member(v, "format");
	if (v && !json_is_object(v))
		return translate_bad(q, "text", "an object", v);
	if (!f)
		return 0;
	const char *type = translate_type(q, "text.format", f);
	if (!type)
		return -1;
	if (strcmp(type, "text") == 0)
		return 0;
	if (strcmp(type, "json_object") == 0)
		return json_object_set_new(chat, "response_format", json_pack("{s:s}", "type", type));
	if (strcmp(type, "json_schema") != 0)
		return translate_bad(q, "text.format.type", "\"text\", \"json_object\" or \"json_schema\"",
		                     json_object_get(f, "type"));
	if (!json_is_object(json_object_get(f, "schema")))
		return translate_bad(q, "text.format.schema", "an object", json_object_get(f, "schema"));
	return translate_schema(chat, json_object_get(f, "schema"), body_member(f, "strict"));
}

/* No summary is made, because the answer has the thoughts themselves. */
static int read_reasoning_options(struct request_prepare *q, const json_t *o, json_t *chat)
{
	const json_t *v = body_member(o, "reasoning"), *effort = body_member(v, "effort");
	if (v && !json_is_object(v))
		return translate_bad(q, "reasoning", "an object", v);
	if (!effort)
		return 0;
	if (!json_is_string(effort))
		return translate_bad(q, "reasoning.effort", "a string", effort);
	if (strcmp(json_string_value(effort), "none") == 0 && translate_thinking(chat, 0) < 0)
		return -1;
	return json_object_set(chat, "reasoning_effort", (json_t *)effort);
}

/* Of what a request may include this server has log-probabilities only: the rest is of built-in
 * tools, or encrypted. */
static int read_include(struct request_prepare *q, const json_t *o, json_t *chat)
{
	const json_t *include = body_member(o, "include");
	int wanted = json_number_value(body_member(o, "top_logprobs")) > 0;
	if (include && !json_is_array(include))
		return translate_bad(q, "include", "an array", include);
	for (size_t i = 0; i < json_array_size(include); i++) {
		const char *s = json_string_value(json_array_get(include, i));
		if (!s)
			return translate_bad(q, translate_path("include[%zu]", i).text, "a string",
			                     json_array_get(include, i));
		wanted |= strcmp(s, "message.output_text.logprobs") == 0;
	}
	return wanted ? json_object_set_new(chat, "logprobs", json_true()) : 0;
}

static int refuse_stored(struct request_prepare *q, const json_t *o)
{
	static const struct {
		const char *name, *why;
	} refused[] = {
		{"previous_response_id", "no responses are stored; send the conversation as input"},
		{"conversation", "no conversations are stored; send the conversation as input"},
		{"prompt", "no prompts are stored; send the text as input"},
	};
	const json_t *truncation = body_member(o, "truncation");
	int on;
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
		if (body_member(o, refused[i].name))
			return translate_refuse(q, refused[i].name, refused[i].why);
	if (param_bool(o, "store", 1, &on, &q->error) < 0 ||
	    param_bool(o, "background", 0, &on, &q->error) < 0)
		return -1;
	if (on)
		return translate_refuse(
			q, "background", "no responses are stored; wait for the answer, or ask for a stream");
	if (truncation &&
	    (!json_is_string(truncation) || strcmp(json_string_value(truncation), "disabled") != 0))
		return translate_bad(q, "truncation", "\"disabled\"", truncation);
	return 0;
}

/* --- what the answer repeats of the request ------------------------------ */

static const struct {
	const char *name, *otherwise;
} repeated[] = {
	{"instructions", "null"},
	{"max_output_tokens", "null"},
	{"max_tool_calls", "null"},
	{"metadata", "{}"},
	{"parallel_tool_calls", "true"},
	{"prompt_cache_key", "null"},
	{"reasoning", "{\"effort\":null,\"summary\":null}"},
	{"safety_identifier", "null"},
	{"temperature", "1.0"},
	{"text", "{\"format\":{\"type\":\"text\"}}"},
	{"tool_choice", "\"auto\""},
	{"tools", "[]"},
	{"top_logprobs", "0"},
	{"top_p", "1.0"},
	{"user", "null"},
};

static int add_to_echo(const char *text, size_t len, void *arg)
{
	return buf_add(arg, text, len);
}

static int keep_repeated(struct request_prepare *q, const json_t *o)
{
	/* OpenAI's schema of a function requires these of what the answer repeats */
	static const char *const required[] = {"parameters", "strict"};
	const json_t *tools = body_member(o, "tools");
	for (size_t i = 0; i < 2 * json_array_size(tools); i++) {
		json_t *tool = json_array_get(tools, i / 2);
		if (!json_object_get(tool, required[i % 2]) &&
		    json_object_set_new(tool, required[i % 2], json_null()) < 0)
			return budget_refuse(q, "tools", "what the answer repeats of it");
	}
	for (size_t i = 0; i < sizeof repeated / sizeof *repeated; i++) {
		const json_t *v = body_member(o, repeated[i].name);
		buf_printf(&q->echo, ",\"%s\":", repeated[i].name);
		if (!v)
			buf_adds(&q->echo, repeated[i].otherwise);
		else if (json_dump_callback(v, add_to_echo, &q->echo,
		                            JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17)) < 0)
			return budget_refuse(q, repeated[i].name, "what the answer repeats of it");
	}
	return q->echo.full ? budget_refuse(q, NULL, "what the answer repeats of it") : 0;
}

int api_responses_prepare(struct request_prepare *q, const json_t *o)
{
	static const struct translate_name names[] = {
		{"max_tokens", "max_output_tokens"},
		{"response_format.json_schema", "text.format"},
		{"response_format", "text.format"},
		{"reasoning_effort", "reasoning.effort"},
		{"messages", "input"},
		{".function", ""},
		{".allowed_tools", ""},
		{NULL, NULL},
	};
	json_t *chat = params_of_chat(o, KIND_RESPONSES),
		   *max = json_object_get(o, "max_output_tokens");
	if (!chat || refuse_stored(q, o) < 0 || read_input(q, o, chat) < 0 ||
	    translate_tools(q, o, chat, read_function_tool) < 0 ||
	    choose_responses_tool(q, o, chat) < 0 || read_text_format(q, o, chat) < 0 ||
	    read_reasoning_options(q, o, chat) < 0 || read_include(q, o, chat) < 0 ||
	    keep_repeated(q, o) < 0 || (max && json_object_set(chat, "max_tokens", max) < 0)) {
		json_decref(chat);
		return -1;
	}
	return translate_prepare(q, chat, names, api_chat_prepare);
}
