/* messages.c - POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages. The body
 * becomes a chat request: a turn of the user with results of tools becomes a message for each of
 * them, and blocks of the assistant (thinking, text, tool_use) become one message. Tools of a
 * server, images and documents are refused by name. */
#include "translate.h"

#include <string.h>

/* Claude Code begins its system prompt with a block of this kind, which is different in each
 * request: no prefix would ever be found in a cache. It is about billing, not for the model. */
#define BILLING "x-anthropic-billing-header:"

static const char only_text[] = "only text blocks are";

/* Returns a block's text; NULL with the error set. supported: for the error, which types are */
static const json_t *block_text(struct request_prepare *q, const char *path, const json_t *block,
                                const char *supported)
{
	const char *type = translate_type(q, path, block);
	const json_t *text = json_object_get(block, "text");
	if (!type)
		return NULL;
	if (strcmp(type, "text") != 0)
		api_bad(&q->error, path,
		        "%s has the type \"%.40s\", which is not supported by this server: %s", path, type,
		        supported);
	else if (!json_is_string(text))
		translate_bad(q, translate_path("%s.text", path).text, "a string", text);
	else
		return text;
	return NULL;
}

/* Returns 1 if v is a string; 0 if it is an array of blocks, with their number; -1 with the
 * error set. */
static int read_blocks(struct request_prepare *q, const char *path, const json_t *v, size_t *ret_n)
{
	*ret_n = json_array_size(v);
	if (json_is_string(v))
		return 1;
	if (!json_is_array(v) || *ret_n > CHAT_PARTS_MAX)
		return translate_bad(q, path, "a string or an array of at most 4096 blocks", v);
	return 0;
}

/* Returns a string or text blocks in the form of chat's content; NULL as in translate.h. */
static json_t *read_text_blocks(struct request_prepare *q, const char *path, const json_t *v)
{
	size_t n;
	int is_string = read_blocks(q, path, v, &n);
	if (is_string)
		return is_string > 0 ? translate_string(v) : NULL;
	json_t *parts = json_array();
	for (size_t i = 0; i < n; i++) {
		const json_t *text = block_text(q, translate_path("%s[%zu]", path, i).text,
		                                json_array_get(v, i), only_text);
		if (text && translate_add_text(parts, text) == 0)
			continue;
		json_decref(parts);
		return NULL;
	}
	return parts;
}

static int read_system(struct request_prepare *q, const char *path, const json_t *v,
                       json_t *messages)
{
	json_t *content = read_text_blocks(q, path, v);
	for (size_t i = json_array_size(content); i-- > 0;) {
		const char *text = json_string_value(json_object_get(json_array_get(content, i), "text"));
		if (strncmp(text, BILLING, strlen(BILLING)) == 0)
			json_array_remove(content, i);
	}
	if (content && !json_array_size(content)) {
		json_decref(content);
		return 0;
	}
	return translate_add_system(messages, content);
}

/* --- turns --------------------------------------------------------------- */

static int add_message_text(json_t *message, const json_t *text)
{
	json_t *content = json_object_get(message, "content");
	if (!json_is_array(content) &&
	    json_object_set_new(message, "content", content = json_array()) < 0)
		return -1;
	return translate_add_text(content, text);
}

static int read_tool_result(struct request_prepare *q, const char *path, const json_t *block,
                            json_t *messages)
{
	const json_t *id = json_object_get(block, "tool_use_id"), *v = body_member(block, "content");
	json_t *empty = json_string(""), *content;
	int is_error, r = -1;
	if (!json_is_string(id))
		translate_bad(q, translate_path("%s.tool_use_id", path).text, "a string", id);
	else if (param_bool(block, "is_error", 0, &is_error, &q->error) == 0) {
		content = !v || (json_is_array(v) && !json_array_size(v))
		              ? translate_string(empty)
		              : read_text_blocks(q, translate_path("%s.content", path).text, v);
		r = translate_add_result(messages, id, content);
	}
	json_decref(empty);
	return r;
}

/* Adds a message for each result, and one for the text between results. */
static int read_user(struct request_prepare *q, const char *path, const json_t *blocks,
                     json_t *messages)
{
	json_t *open = NULL;
	for (size_t i = 0; i < json_array_size(blocks); i++) {
		const json_t *block = json_array_get(blocks, i);
		struct translate_path at = translate_path("%s[%zu]", path, i);
		const char *type = translate_type(q, at.text, block);
		if (!type)
			return -1;
		if (strcmp(type, "tool_result") == 0) {
			open = NULL;
			if (read_tool_result(q, at.text, block, messages) < 0)
				return -1;
			continue;
		}
		const json_t *text = block_text(q, at.text, block, "text and tool_result are");
		if (!open)
			open = text ? translate_add_message(messages, "user") : NULL;
		if (!text || !open || add_message_text(open, text) < 0)
			return -1;
	}
	return 0;
}

/* One block of an assistant's message. */
static int read_own_block(struct request_prepare *q, const char *path, const json_t *block,
                          json_t *message)
{
	const char *type = translate_type(q, path, block);
	const json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name"),
				 *input = json_object_get(block, "input"),
				 *thinking = json_object_get(block, "thinking");
	if (!type)
		return -1;
	if (strcmp(type, "tool_use") == 0) {
		if (!json_is_string(id))
			return translate_bad(q, translate_path("%s.id", path).text, "a string", id);
		if (!json_string_length(name))
			return translate_bad(q, translate_path("%s.name", path).text, "the name of a tool",
			                     name);
		if (!json_is_object(input))
			return translate_bad(q, translate_path("%s.input", path).text, "an object", input);
		return translate_add_call(q, path, message, id, name, input);
	}
	if (strcmp(type, "thinking") == 0) {
		if (!json_is_string(thinking))
			return translate_bad(q, translate_path("%s.thinking", path).text, "a string", thinking);
		return json_string_length(thinking) ? translate_add_thoughts(message, thinking) : 0;
	}
	if (strcmp(type, "redacted_thinking") == 0)
		return 0; /* only Anthropic can read it */
	const json_t *text = block_text(q, path, block, "text, tool_use and thinking are");
	return text ? add_message_text(message, text) : -1;
}

static int read_assistant(struct request_prepare *q, const char *path, const json_t *blocks,
                          json_t *messages)
{
	json_t *message = translate_add_message(messages, "assistant"), *empty;
	for (size_t i = 0; i < json_array_size(blocks); i++)
		if (!message || read_own_block(q, translate_path("%s[%zu]", path, i).text,
		                               json_array_get(blocks, i), message) < 0)
			return -1;
	if (json_is_array(json_object_get(message, "content")) ||
	    json_object_get(message, "tool_calls") || json_object_get(message, "reasoning_content"))
		return 0;
	empty = json_string("");
	int r = add_message_text(message, empty);
	json_decref(empty);
	return r;
}

static int read_turn(struct request_prepare *q, size_t at, const json_t *turn, json_t *messages)
{
	struct translate_path path = translate_path("messages[%zu].content", at);
	const char *role = json_string_value(json_object_get(turn, "role"));
	const json_t *content = json_object_get(turn, "content");
	int is_user = role && strcmp(role, "user") == 0,
		is_assistant = role && strcmp(role, "assistant") == 0;
	size_t n;
	if (role && strcmp(role, "system") == 0)
		return read_system(q, path.text, content, messages);
	if (!is_user && !is_assistant)
		return translate_bad(q, translate_path("messages[%zu].role", at).text,
		                     "\"user\", \"assistant\" or \"system\"",
		                     json_object_get(turn, "role"));
	int is_string = read_blocks(q, path.text, content, &n);
	if (is_string < 0)
		return -1;
	if (is_string)
		return json_object_set_new(translate_add_message(messages, role), "content",
		                           translate_string(content));
	if (is_user && n == 0)
		return translate_bad(q, path.text, "a string or an array of blocks that is not empty",
		                     content);
	return is_user ? read_user(q, path.text, content, messages)
	               : read_assistant(q, path.text, content, messages);
}

static int read_messages(struct request_prepare *q, const json_t *o, json_t *chat)
{
	const json_t *turns = body_member(o, "messages"), *system = body_member(o, "system");
	json_t *messages = json_array();
	if (json_object_set_new(chat, "messages", messages) < 0)
		return -1;
	if (system && read_system(q, "system", system, messages) < 0)
		return -1;
	if (!turns)
		return api_bad(&q->error, "messages", "messages is required");
	if (!json_is_array(turns) || !json_array_size(turns))
		return translate_bad(q, "messages", "an array of messages", turns);
	for (size_t i = 0; i < json_array_size(turns); i++)
		if (read_turn(q, i, json_array_get(turns, i), messages) < 0)
			return -1;
	/* the client has begun the answer itself if the last turn ends with text of the assistant */
	const json_t *last = json_array_get(turns, json_array_size(turns) - 1),
				 *content = json_object_get(last, "content"),
				 *block = json_array_get(content, json_array_size(content) - 1);
	const char *role = json_string_value(json_object_get(last, "role"));
	int is_begun = role && strcmp(role, "assistant") == 0 &&
	               (json_string_length(content) ||
	                json_string_length(json_object_get(block, "text")));
	return is_begun ? json_object_set_new(chat, "continue_final_message", json_true()) : 0;
}

/* --- tools --------------------------------------------------------------- */

static int read_custom_tool(struct request_prepare *q, const char *path, const json_t *tool,
                            json_t *tools)
{
	const json_t *type = body_member(tool, "type"), *schema = json_object_get(tool, "input_schema");
	if (!json_is_object(tool))
		return translate_bad(q, path, "an object", tool);
	if (type && (!json_is_string(type) || strcmp(json_string_value(type), "custom") != 0))
		return api_bad(&q->error, path,
		               "%s is the tool %s, which is not supported by this server: only tools with "
		               "an input_schema are",
		               path, param_show(type));
	if (!json_is_object(schema))
		return translate_bad(q, translate_path("%s.input_schema", path).text, "an object", schema);
	return translate_add_tool(tools, body_member(tool, "name"), body_member(tool, "description"),
	                          schema, body_member(tool, "strict"));
}

/* The forced choices need tools. */
static int choose_messages_tool(struct request_prepare *q, const json_t *o, json_t *chat)
{
	const json_t *v = body_member(o, "tool_choice"), *name = json_object_get(v, "name");
	int only_one, r;
	if (!v)
		return 0;
	const char *type = translate_type(q, "tool_choice", v);
	if (!type)
		return -1;
	int is_free = strcmp(type, "none") == 0 || strcmp(type, "auto") == 0,
		any = strcmp(type, "any") == 0;
	if (!is_free && !any && strcmp(type, "tool") != 0)
		return translate_bad(q, "tool_choice.type", "\"auto\", \"any\", \"tool\" or \"none\"",
		                     json_object_get(v, "type"));
	if (!is_free && !json_array_size(json_object_get(chat, "tools")))
		return api_bad(&q->error, "tool_choice", "tool_choice of the type \"%s\" needs tools",
		               type);
	if (is_free || any)
		r = json_object_set_new(chat, "tool_choice", json_string(any ? "required" : type));
	else
		r = json_is_string(name) ? translate_choose(chat, name)
		                         : translate_bad(q, "tool_choice.name", "the name of a tool", name);
	if (r < 0 || param_bool(v, "disable_parallel_tool_use", 0, &only_one, &q->error) < 0)
		return -1;
	return json_object_set_new(chat, "parallel_tool_calls", json_boolean(!only_one));
}

/* --- the rest ------------------------------------------------------------ */

/* budget_tokens has no effect: nothing limits the thoughts of a model here. */
static int read_thinking_options(struct request_prepare *q, const json_t *o, json_t *chat)
{
	const json_t *v = body_member(o, "thinking"), *display = body_member(v, "display");
	const char *type = v ? translate_type(q, "thinking", v) : NULL;
	if (!v)
		return 0;
	if (!type)
		return -1;
	int on = strcmp(type, "enabled") == 0, off = strcmp(type, "disabled") == 0;
	if (!on && !off && strcmp(type, "adaptive") != 0)
		return translate_bad(q, "thinking.type", "\"enabled\", \"disabled\" or \"adaptive\"",
		                     json_object_get(v, "type"));
	if (display &&
	    (!json_is_string(display) || (strcmp(json_string_value(display), "summarized") != 0 &&
	                                  strcmp(json_string_value(display), "omitted") != 0)))
		return translate_bad(q, "thinking.display", "\"summarized\" or \"omitted\"", display);
	if (display && strcmp(json_string_value(display), "omitted") == 0 &&
	    json_object_set_new(chat, "include_reasoning", json_false()) < 0)
		return -1;
	return on || off ? translate_thinking(chat, on) : 0;
}

static int read_output_format(struct request_prepare *q, const char *path, const json_t *f,
                              json_t *chat)
{
	const char *type = f ? translate_type(q, path, f) : NULL;
	if (!f)
		return 0;
	if (!type)
		return -1;
	if (strcmp(type, "json_schema") != 0)
		return translate_bad(q, translate_path("%s.type", path).text, "\"json_schema\"",
		                     json_object_get(f, "type"));
	if (!json_is_object(json_object_get(f, "schema")))
		return translate_bad(q, translate_path("%s.schema", path).text, "an object",
		                     json_object_get(f, "schema"));
	return translate_schema(chat, json_object_get(f, "schema"), NULL);
}

static int read_output(struct request_prepare *q, const json_t *o, json_t *chat)
{
	const json_t *v = body_member(o, "output_config"), *effort = body_member(v, "effort"),
				 *format = body_member(v, "format");
	if (v && !json_is_object(v))
		return translate_bad(q, "output_config", "an object", v);
	if (effort && !json_is_string(effort))
		return translate_bad(q, "output_config.effort", "a string", effort);
	if (effort && json_object_set(chat, "reasoning_effort", (json_t *)effort) < 0)
		return -1;
	return format ? read_output_format(q, "output_config.format", format, chat)
	              : read_output_format(q, "output_format", body_member(o, "output_format"), chat);
}

static int read_rest(struct request_prepare *q, const json_t *o, json_t *chat)
{
	static const char *const refused[] = {"container", "mcp_servers"};
	const json_t *stop = body_member(o, "stop_sequences"), *metadata = body_member(o, "metadata"),
				 *user = body_member(metadata, "user_id");
	for (size_t i = 0; i < 2; i++) {
		const json_t *v = body_member(o, refused[i]);
		if (v && !(json_is_array(v) && !json_array_size(v)))
			return translate_refuse(q, refused[i],
			                        "it runs no tools; give the client's own as tools");
	}
	if (stop && !json_is_array(stop))
		return translate_bad(q, "stop_sequences", "an array of strings", stop);
	if (stop && json_object_set(chat, "stop", (json_t *)stop) < 0)
		return -1;
	if (metadata && !json_is_object(metadata))
		return translate_bad(q, "metadata", "an object", metadata);
	if (user && !json_is_string(user))
		return translate_bad(q, "metadata.user_id", "a string", user);
	return user ? json_object_set(chat, "user", (json_t *)user) : 0;
}

/* The body as a chat request. NULL: no memory, or the error is set. */
static json_t *to_chat(struct request_prepare *q, const json_t *o)
{
	json_t *chat = params_of_chat(o, KIND_MESSAGES);
	if (chat && read_messages(q, o, chat) == 0 &&
	    translate_tools(q, o, chat, read_custom_tool) == 0 &&
	    choose_messages_tool(q, o, chat) == 0 && read_thinking_options(q, o, chat) == 0 &&
	    read_output(q, o, chat) == 0 && read_rest(q, o, chat) == 0)
		return chat;
	json_decref(chat);
	return NULL;
}

static const struct translate_name names[] = {
	{"stop", "stop_sequences"},
	{"continue_final_message", "messages"},
	{"response_format.json_schema", "output_config.format"},
	{"response_format", "output_config.format"},
	{"reasoning_effort", "output_config.effort"},
	{".function.parameters", ".input_schema"},
	{".function", ""},
	{NULL, NULL},
};

int api_messages_prepare(struct request_prepare *q, const json_t *o)
{
	if (!body_member(o, "max_tokens"))
		return api_bad(&q->error, "max_tokens", "max_tokens is required");
	return translate_prepare(q, to_chat(q, o), names, api_chat_prepare);
}

static int count_tokens(struct request_prepare *q, const json_t *chat)
{
	struct prompt p = {0};
	struct buf text;
	q->context = 0; /* longer prompts are counted, too */
	buf_init_quota(&text, chat_request_text_max(q->body.len), &q->quota);
	int r = chat_render(q, chat, &text, NULL);
	if (r == 0)
		r = prompt_encode(q, &p, text.data ? text.data : "", text.len, "messages");
	if (r == 0)
		buf_printf(&q->out, "{\"input_tokens\":%zu}", p.tokens.n);
	token_list_fini(&p.tokens);
	buf_fini(&text);
	return r;
}

int api_count_tokens_prepare(struct request_prepare *q, const json_t *o)
{
	return translate_prepare(q, to_chat(q, o), names, count_tokens);
}
