/* chat_generic.c - see chat_generic.h. Messages that need no change are kept as they are. Two of
 * the user never follow each other because of a result: some templates refuse that. */
#include "text/chat_generic.h"
#include "util/err.h"

#include <string.h>

static int role_is(const json_t *m, const char *role)
{
	const char *s = json_string_value(json_object_get(m, "role"));
	return s && strcmp(s, role) == 0;
}

/* A string, or a list of text parts. */
static void add_content(struct buf *b, const json_t *m)
{
	const json_t *content = json_object_get(m, "content"), *text;
	if (json_is_string(content))
		buf_add(b, json_string_value(content), json_string_length(content));
	for (size_t i = 0; i < json_array_size(content); i++) {
		text = json_object_get(json_array_get(content, i), "text");
		buf_add(b, json_string_value(text), json_string_length(text));
	}
}

/* Takes over the text. */
static int set_content(json_t *m, struct buf *b)
{
	int r = b->full
	            ? ERR_NOMEM
	            : json_object_set_new(m, "content", json_stringn(b->data ? b->data : "", b->len));
	buf_fini(b);
	return r < 0 ? ERR_NOMEM : 0;
}

static int add_piece(const char *s, size_t n, void *b)
{
	return buf_add(b, s, n);
}

static void add_json(struct buf *b, const json_t *v)
{
	json_dump_callback(v, add_piece, b, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
}

/* --- what the model is told ---------------------------------------------- */

/* The words were chosen by what SmolLM2 135M made of them. */
static void describe(struct buf *b, const struct chat_tools *t)
{
	int must = t->choice != CHAT_CHOICE_AUTO;
	buf_adds(b, must ? "You call functions." : "You can call these functions, or answer yourself.");
	buf_adds(b, " Each line describes a function, its parameters as a JSON schema:\n");
	for (size_t i = 0; i < json_array_size(t->tools); i++) {
		const json_t *f = json_object_get(json_array_get(t->tools, i), "function");
		if (t->named && strcmp(t->named, json_string_value(json_object_get(f, "name"))) != 0)
			continue;
		buf_addc(b, '\n');
		add_json(b, f);
	}
	buf_adds(b, must ? "\n\nWrite JSON that calls a function: " : "\n\nWrite JSON: either ");
	buf_adds(b, "{\"tool_calls\": [{\"name\": ..., \"arguments\": ...}]}");
	buf_adds(b, must ? ""
	                 : ", to call a function, or {\"response\": ...}, with your own answer to "
	                   "the user in words.");
}

/* The first message is the system's, and describes the tools. */
static int add_description(json_t *out, const json_t *first, const struct chat_tools *tools,
                           struct quota *q)
{
	int has_system = role_is(first, "system");
	json_t *m = has_system ? json_copy((json_t *)first) : json_pack("{s:s}", "role", "system");
	struct buf b;
	buf_init_quota(&b, 0, q);
	if (has_system) {
		add_content(&b, first);
		buf_adds(&b, "\n\n");
	}
	describe(&b, tools);
	if (json_array_append_new(out, m) == 0)
		return set_content(m, &b);
	buf_fini(&b);
	return ERR_NOMEM;
}

/* --- calls and results --------------------------------------------------- */

static int add_calls(json_t *out, const json_t *m, struct quota *q)
{
	const json_t *calls = json_object_get(m, "tool_calls");
	json_t *own = json_copy((json_t *)m);
	struct buf b;
	if (json_array_append_new(out, own) < 0)
		return ERR_NOMEM;
	json_object_del(own, "tool_calls");
	buf_init_quota(&b, 0, q);
	add_content(&b, m);
	buf_adds(&b, b.len ? "\n{\"tool_calls\": [" : "{\"tool_calls\": [");
	for (size_t i = 0; i < json_array_size(calls); i++) {
		const json_t *f = json_object_get(json_array_get(calls, i), "function");
		buf_adds(&b, i ? ", {\"name\": " : "{\"name\": ");
		add_json(&b, json_object_get(f, "name"));
		buf_adds(&b, ", \"arguments\": ");
		add_json(&b, json_object_get(f, "arguments"));
		buf_addc(&b, '}');
	}
	buf_adds(&b, "]}");
	return set_content(own, &b);
}

/* Of the call, among `calls`, that the result belongs to: found by id, else by its place. */
static const char *name_of(const json_t *m, const json_t *calls, size_t place)
{
	const json_t *id = json_object_get(m, "tool_call_id"), *own = json_object_get(m, "name");
	const json_t *call = json_array_get(calls, place);
	for (size_t i = 0; id && i < json_array_size(calls); i++)
		if (json_equal(json_object_get(json_array_get(calls, i), "id"), id))
			call = json_array_get(calls, i);
	if (!json_is_string(own))
		own = json_object_get(json_object_get(call, "function"), "name");
	return json_is_string(own) ? json_string_value(own) : "a function";
}

/* One message of the user: the results from list[*i] on, and what the user says after them. *i is
 * then that of the message behind. *place: of the result among `calls` */
static int add_results(json_t *out, const json_t *list, size_t *i, const json_t *calls,
                       size_t *place, struct quota *q)
{
	json_t *own = json_pack("{s:s}", "role", "user");
	struct buf b;
	if (json_array_append_new(out, own) < 0)
		return ERR_NOMEM;
	buf_init_quota(&b, 0, q);
	for (int more = 1; more && *i < json_array_size(list);) {
		const json_t *m = json_array_get(list, *i);
		more = role_is(m, "tool");
		if (!more && !role_is(m, "user"))
			break;
		buf_adds(&b, b.len ? "\n\n" : "");
		if (more)
			buf_printf(&b, "Result of %s:\n", name_of(m, calls, (*place)++));
		add_content(&b, m);
		(*i)++;
	}
	return set_content(own, &b);
}

int chat_generic_reword(json_t **list, const struct chat_tools *tools, struct quota *q)
{
	const json_t *calls = NULL; /* of the assistant's last message */
	json_t *out = json_array();
	size_t i = 0, n = json_array_size(*list), place = 0;
	int r = out ? 0 : ERR_NOMEM;
	if (r == 0 && tools->tools) {
		r = add_description(out, json_array_get(*list, 0), tools, q);
		i = role_is(json_array_get(*list, 0), "system");
	}
	while (i < n && r == 0) {
		json_t *m = json_array_get(*list, i);
		if (role_is(m, "tool")) {
			r = add_results(out, *list, &i, calls, &place, q);
			continue;
		}
		i++;
		place = 0;
		calls = json_object_get(m, "tool_calls");
		if (json_array_size(calls))
			r = add_calls(out, m, q);
		else if (json_array_append(out, m) < 0)
			r = ERR_NOMEM;
	}
	json_decref(*list);
	*list = out;
	return r;
}

int chat_generic_join_system(json_t *list, struct quota *q)
{
	const json_t *first = json_array_get(list, 0), *next = json_array_get(list, 1);
	json_t *own = next && role_is(first, "system") ? json_copy((json_t *)next) : NULL;
	struct buf b;
	if (!own)
		return 0;
	buf_init_quota(&b, 0, q);
	add_content(&b, first);
	buf_adds(&b, "\n\n");
	add_content(&b, next);
	if (set_content(own, &b) < 0) {
		json_decref(own);
		return 0;
	}
	return json_array_set_new(list, 1, own) == 0 && json_array_remove(list, 0) == 0;
}
