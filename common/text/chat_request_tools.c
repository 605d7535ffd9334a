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

/* The element of `tools` with this name, or NULL. */
static json_t *find_tool(const json_t *tools, const json_t *name)
{
	for (size_t i = 0; name && i < json_array_size(tools); i++) {
		json_t *t = json_array_get(tools, i);
		if (json_equal(name, json_object_get(json_object_get(t, "function"), "name")))
			return t;
	}
	return NULL;
}

#define ALLOWED "tool_choice.allowed_tools"

/* Those of `tools` that the list names, in the order of `tools`. NULL with the error set. */
static json_t *choose_allowed(struct body_error *e, const json_t *list, const json_t *tools)
{
	unsigned char chosen[CHAT_TOOLS_MAX] = {0};
	json_t *all = NULL;
	size_t n = json_array_size(list);
	if (!json_is_array(list) || n > CHAT_TOOLS_MAX) {
		body_bad(e, ALLOWED ".tools", ALLOWED ".tools must be an array of at most %d tools, got %s",
		         CHAT_TOOLS_MAX, body_show(list));
		return NULL;
	}
	for (size_t i = 0; i < n; i++) {
		const json_t *name = json_object_get(json_object_get(json_array_get(list, i), "function"),
		                                     "name");
		const json_t *t = find_tool(tools, name);
		if (!t) {
			body_bad(e, ALLOWED ".tools",
			         ALLOWED ".tools[%zu] must be a function that is among tools, got %s", i,
			         body_show(name ? name : json_array_get(list, i)));
			return NULL;
		}
		for (size_t k = 0; k < json_array_size(tools); k++)
			chosen[k] |= json_array_get(tools, k) == t;
	}
	all = json_array();
	for (size_t k = 0; k < json_array_size(tools) && all; k++)
		if (chosen[k])
			json_array_append(all, json_array_get(tools, k));
	if (!all)
		body_bad(e, ALLOWED ".tools", "there is no memory for " ALLOWED ".tools");
	return all;
}

/* {"type":"allowed_tools","allowed_tools":{"mode":..,"tools":[..]}}: the model sees only these. */
static int read_allowed(struct body_error *e, const json_t *v, struct chat_tools *ret)
{
	const json_t *allowed = json_object_get(v, "allowed_tools"),
				 *mode = json_object_get(allowed, "mode");
	const char *text = json_is_string(mode) ? json_string_value(mode) : "";
	int must = strcmp(text, "required") == 0;
	if (!must && strcmp(text, "auto") != 0)
		return body_bad(e, ALLOWED ".mode",
		                ALLOWED ".mode must be \"auto\" or \"required\", got %s", body_show(mode));
	json_t *chosen = choose_allowed(e, json_object_get(allowed, "tools"), ret->tools);
	if (!chosen)
		return -1;
	json_decref(ret->tools);
	ret->tools = chosen;
	ret->choice = must ? CHAT_CHOICE_REQUIRED : CHAT_CHOICE_AUTO;
	return 0;
}

/* ret: has the body's tools */
static int read_choice(struct body_error *e, const json_t *o, struct chat_tools *ret)
{
	static const char *const names[] = {[CHAT_CHOICE_NONE] = "none",
	                                    [CHAT_CHOICE_AUTO] = "auto",
	                                    [CHAT_CHOICE_REQUIRED] = "required"};
	const json_t *v = json_object_get(o, "tool_choice");
	const json_t *name = json_object_get(json_object_get(v, "function"), "name");
	const char *type = json_string_value(json_object_get(v, "type"));
	ret->choice = CHAT_CHOICE_AUTO;
	if (!v || json_is_null(v))
		return 0;
	if (type && strcmp(type, "allowed_tools") == 0)
		return read_allowed(e, v, ret);
	if (type && strcmp(type, "function") == 0 && json_is_string(name)) {
		ret->choice = CHAT_CHOICE_NAMED;
		ret->named = json_string_value(name);
		return find_tool(ret->tools, name)
		           ? 0
		           : body_bad(e, "tool_choice",
		                      "tool_choice names a function %s that is not among tools",
		                      body_show(name));
	}
	for (size_t i = 0; json_is_string(v) && i < sizeof names / sizeof *names; i++)
		if (strcmp(json_string_value(v), names[i]) == 0) {
			ret->choice = (enum chat_choice)i;
			return 0;
		}
	return body_bad(
		e, "tool_choice",
		"tool_choice must be \"none\", \"auto\", \"required\", "
		"{\"type\":\"function\",\"function\":{\"name\":\"...\"}} or "
		"{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"...\",\"tools\":[]}}, "
		"got %s",
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
	json_t *tools = json_object_get(body, "tools");
	*ret = (struct chat_tools){0};
	if (refuse_functions(e, body) < 0 || (body_member(body, "tools") && check_tools(e, tools) < 0))
		return -1;
	ret->tools = json_incref(json_is_array(tools) ? tools : NULL);
	int r = read_choice(e, body, ret);
	if (r == 0 && ret->choice == CHAT_CHOICE_REQUIRED && !json_array_size(ret->tools))
		r = body_bad(e, "tool_choice", "tool_choice \"required\" needs tools");
	if (r == 0 && json_array_size(ret->tools) && ret->choice != CHAT_CHOICE_NONE)
		return 0;
	chat_tools_fini(ret);
	ret->choice = CHAT_CHOICE_NONE;
	return r;
}

void chat_tools_fini(struct chat_tools *t)
{
	json_decref(t->tools);
	t->tools = NULL;
}
