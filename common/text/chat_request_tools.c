/* chat_request_tools.c - checks the tools of a chat request, see chat_request.h. */
#include "text/chat_request.h"
#include "text/toolcall.h"

#include <string.h>

#define TOOL_DEPTH_MAX 64
#define TOOL_VALUES_MAX 20000 /* members, elements and leaves of all tools together */

/* The number of values in v, itself included. SIZE_MAX: v is nested too deeply. Stops counting
 * above TOOL_VALUES_MAX. */
static size_t count_values(const json_t *v, int depth)
{
	size_t n = 1, i;
	const char *key;
	json_t *sub;
	if (depth > TOOL_DEPTH_MAX)
		return SIZE_MAX;
	json_array_foreach((json_t *)v, i, sub) {
		size_t k = count_values(sub, depth + 1);
		if (k == SIZE_MAX || (n += k) > TOOL_VALUES_MAX)
			return k == SIZE_MAX ? k : n;
	}
	json_object_foreach((json_t *)v, key, sub) {
		size_t k = count_values(sub, depth + 1);
		if (k == SIZE_MAX || (n += k) > TOOL_VALUES_MAX)
			return k == SIZE_MAX ? k : n;
	}
	return n;
}

static int read_tool(struct body_error *e, const json_t *tools, size_t at)
{
	const json_t *t = json_array_get(tools, at), *type = json_object_get(t, "type"),
				 *f = json_object_get(t, "function");
	const json_t *name = json_object_get(f, "name"), *text = json_object_get(f, "description"),
				 *parameters = json_object_get(f, "parameters");
	if (!json_is_object(t))
		return body_bad(e, "tools", "tools[%zu] must be an object, got %s", at, body_show(t));
	if (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0)
		return body_bad(e, "tools", "tools[%zu].type must be \"function\", got %s", at,
		                body_show(type));
	if (!json_is_object(f))
		return body_bad(e, "tools", "tools[%zu].function must be an object, got %s", at,
		                body_show(f));
	if (!json_is_string(name) ||
	    !toolcall_name_good(json_string_value(name), json_string_length(name)))
		return body_bad(e, "tools",
		                "tools[%zu].function.name must be 1 to %d of A-Z a-z 0-9 _ - . : /, got %s",
		                at, TOOLCALL_NAME_MAX, body_show(name));
	if (text && !json_is_null(text) && !json_is_string(text))
		return body_bad(e, "tools", "tools[%zu].function.description must be a string, got %s", at,
		                body_show(text));
	if (parameters && !json_is_null(parameters) && !json_is_object(parameters))
		return body_bad(e, "tools",
		                "tools[%zu].function.parameters must be an object (a JSON schema), got %s",
		                at, body_show(parameters));
	for (size_t i = 0; i < at; i++)
		if (json_equal(name, json_object_get(json_object_get(json_array_get(tools, i), "function"),
		                                     "name")))
			return body_bad(e, "tools", "tools[%zu] and tools[%zu] have the same name %s", i, at,
			                body_show(name));
	return 0;
}

static int check_tools(struct body_error *e, const json_t *tools)
{
	size_t n = json_array_size(tools);
	if (!json_is_array(tools))
		return body_bad(e, "tools", "tools must be an array, got %s", body_show(tools));
	if (n > CHAT_TOOLS_MAX)
		return body_bad(e, "tools", "tools has %zu elements, more than %d", n, CHAT_TOOLS_MAX);
	size_t values = count_values(tools, 0);
	if (values == SIZE_MAX)
		return body_bad(e, "tools", "tools is nested deeper than %d levels", TOOL_DEPTH_MAX);
	if (values > TOOL_VALUES_MAX)
		return body_bad(e, "tools", "tools has more than %d values", TOOL_VALUES_MAX);
	for (size_t i = 0; i < n; i++)
		if (read_tool(e, tools, i) < 0)
			return -1;
	return 0;
}

static int read_choice(struct body_error *e, const json_t *o, const json_t *tools,
                       enum chat_choice *ret, const json_t **ret_name)
{
	static const char *const names[] = {[CHAT_CHOICE_NONE] = "none",
	                                    [CHAT_CHOICE_AUTO] = "auto",
	                                    [CHAT_CHOICE_REQUIRED] = "required"};
	const json_t *v = json_object_get(o, "tool_choice"), *type = json_object_get(v, "type");
	const json_t *name = json_object_get(json_object_get(v, "function"), "name");
	*ret = tools ? CHAT_CHOICE_AUTO : CHAT_CHOICE_NONE;
	*ret_name = NULL;
	if (!v || json_is_null(v))
		return 0;
	if (json_is_object(v) && json_is_string(name) && json_is_string(type) &&
	    strcmp(json_string_value(type), "function") == 0) {
		for (size_t i = 0; i < json_array_size(tools); i++)
			if (json_equal(name,
			               json_object_get(json_object_get(json_array_get(tools, i), "function"),
			                               "name")))
				*ret_name = name;
		*ret = CHAT_CHOICE_NAMED;
		return *ret_name ? 0
		                 : body_bad(e, "tool_choice",
		                            "tool_choice names a function %s that is not among tools",
		                            body_show(name));
	}
	for (size_t i = 0; json_is_string(v) && i < sizeof names / sizeof *names; i++)
		if (strcmp(json_string_value(v), names[i]) == 0) {
			*ret = tools || i == CHAT_CHOICE_REQUIRED ? (enum chat_choice)i : CHAT_CHOICE_NONE;
			return tools || i != CHAT_CHOICE_REQUIRED
			           ? 0
			           : body_bad(e, "tool_choice", "tool_choice \"required\" needs tools");
		}
	return body_bad(e, "tool_choice",
	                "tool_choice must be \"none\", \"auto\", \"required\" or "
	                "{\"type\":\"function\",\"function\":{\"name\":\"...\"}}, got %s",
	                body_show(v));
}

/* Refuses OpenAI's members that preceded tools. */
static int refuse_functions(struct body_error *e, const json_t *o)
{
	static const char *const old[][2] = {{"functions", "tools"}, {"function_call", "tool_choice"}};
	for (size_t i = 0; i < 2; i++) {
		const json_t *v = json_object_get(o, old[i][0]);
		if (v && !json_is_null(v) && !(json_is_array(v) && json_array_size(v) == 0) &&
		    !(json_is_string(v) && strcmp(json_string_value(v), "none") == 0))
			return body_bad(e, old[i][0], "%s is not supported by this server: use %s", old[i][0],
			                old[i][1]);
	}
	return 0;
}

int chat_tools_read(const json_t *body, struct chat_tools *ret, struct body_error *e)
{
	const json_t *tools = body_member(body, "tools"), *name;
	*ret = (struct chat_tools){0};
	if (refuse_functions(e, body) < 0 || (tools && check_tools(e, tools) < 0))
		return -1;
	if (json_array_size(tools) == 0)
		tools = NULL;
	if (read_choice(e, body, tools, &ret->choice, &name) < 0)
		return -1;
	ret->tools = ret->choice == CHAT_CHOICE_NONE ? NULL : tools;
	return 0;
}
