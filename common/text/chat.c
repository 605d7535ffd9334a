/* chat.c - see chat.h.
 *
 * Follows apply_chat_template of transformers 5 step by step: drop members that are null, copy
 * reasoning to both names that templates read, render the template and, for continue_final_message,
 * cut the text at a marker appended to the last message.
 *
 * Other servers pass `"content": null` to the template unchanged, so they render an assistant
 * message that has only tool calls differently. We drop it, as the reference does: template authors
 * test against the reference. */
#include "text/chat.h"
#include "jinja/jinja.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define MARK "CONTINUE_FINAL_MESSAGE_TAG"
#define PROBE "parts-of-a-message"

struct chat_template {
	struct jinja_template *jinja;
	char *text;
	size_t len;
	int takes_parts, takes_one_call, names_developer;
	int names_content; /* the template's text contains the word "content" */
};

static const char *const reasoning_names[] = {"reasoning_content", "thinking", "reasoning"};

/* --- messages as the template sees them --------------------------------- */

static json_t *without_nulls(const json_t *m)
{
	json_t *out = json_object(), *from = (json_t *)m; /* jansson's iterators take no const */
	for (void *it = json_object_iter(from); it; it = json_object_iter_next(from, it))
		if (!json_is_null(json_object_iter_value(it)))
			json_object_setn(out, json_object_iter_key(it), json_object_iter_key_len(it),
			                 json_object_iter_value(it));
	return out;
}

/* Copies reasoning, whatever its name, to both names that templates read. `thinking` becomes the
 * first member. */
static json_t *name_reasoning(json_t *m)
{
	json_t *text = NULL, *out;
	for (int i = 0; i < 3 && !text; i++)
		text = json_object_get(m, reasoning_names[i]);
	if (!text)
		return m;
	out = json_object();
	json_object_set(out, "thinking", text);
	json_object_update(out, m);
	json_object_set(out, "reasoning_content", text);
	json_decref(m);
	return out;
}

static json_t *prepare_messages(const json_t *messages)
{
	json_t *list = json_array();
	for (size_t i = 0; i < json_array_size(messages); i++) {
		json_t *m = json_array_get(messages, i);
		if (json_is_object(m))
			json_array_append_new(list, name_reasoning(without_nulls(m)));
		else
			json_array_append(list, m);
	}
	return list;
}

/* --- continuing the last message ----------------------------------------- */

static json_t *with_marker(const json_t *text)
{
	struct buf b;
	buf_init(&b, json_string_length(text) + sizeof MARK);
	buf_add(&b, json_string_value(text), json_string_length(text));
	buf_adds(&b, MARK " ");
	json_t *out = b.full ? NULL : json_stringn(b.data, b.len);
	buf_fini(&b);
	return out;
}

/* Returns a copy of the parts with the marker appended to the last part that has a text. NULL: no
 * part has one. */
static json_t *mark_parts(const json_t *parts, const json_t **ret_text)
{
	json_t *out = json_copy((json_t *)parts);
	for (size_t i = json_array_size(out); i-- > 0;) {
		json_t *part = json_array_get(out, i), *text = json_object_get(part, "text"), *own;
		if (!json_is_string(text))
			continue;
		*ret_text = text; /* stays alive in the caller's parts */
		own = json_copy(part);
		json_object_set_new(own, "text", with_marker(text));
		json_array_set_new(out, i, own);
		return out;
	}
	json_decref(out);
	return NULL;
}

/* Appends the marker to the last message of `list`, which belongs to us. *ret_text: the text to be
 * continued. */
static int mark_last(const struct chat_template *c, json_t *list, const json_t *given,
                     const json_t **ret_text, struct err *err)
{
	size_t n = json_array_size(list);
	json_t *last = json_array_get(list, n - 1);
	const json_t *content = json_object_get(json_array_get(given, n - 1), "content");
	if (!c->names_content)
		return err_set(
			err, ERR_INVALID,
			"cannot continue the last message: the chat template does not use a message's content");
	json_t *with = NULL;
	if (json_is_string(content)) {
		*ret_text = content;
		with = with_marker(content);
	} else if (json_is_array(content)) {
		with = mark_parts(content, ret_text);
	}
	if (!with)
		return err_set(err, ERR_INVALID,
		               "cannot continue the last message: it has no text to continue");
	json_object_set_new(last, "content", with);
	return 0;
}

static int is_space(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

static size_t trimmed(const char *s, size_t len)
{
	while (len && is_space(s[len - 1]))
		len--;
	return len;
}

/* Appends to out the text before the marker. */
static int cut_at_mark(const struct buf *b, const json_t *final, struct buf *out, struct err *err)
{
	const char *text = json_string_value(final), *at = NULL, *from = b->data ? b->data : "";
	size_t len = trimmed(text, json_string_length(final)), keep;
	while (len && is_space(*text)) {
		text++;
		len--;
	}
	for (const char *s = from; (s = memmem(s, b->len - (size_t)(s - from), MARK, strlen(MARK)));
	     s++)
		at = s;
	if (!at || (len && !memmem(from, b->len, text, len)))
		return err_set(
			err, ERR_INVALID,
			"cannot continue the last message: the chat template changes or leaves out the last "
			"message, so that it cannot be continued");
	keep = (size_t)(at - from);
	if (keep + strlen(MARK) >= b->len || at[strlen(MARK)] != ' ')
		keep = trimmed(from, keep); /* the template stripped the end of the message */
	if (buf_add(out, from, keep) < 0)
		return err_set(err, ERR_FULL, "the output is longer than %zu bytes", out->limit);
	return 0;
}

/* --- rendering ----------------------------------------------------------- */

static int render(const struct chat_template *c, const struct chat_render *in, const json_t *list,
                  struct buf *out, struct err *err)
{
	json_t *own = json_object();
	const json_t *layers[3];
	struct jinja_run run = {.layers = layers, .now_s = in->now_s, .quota = out->quota};
	if (in->special_tokens)
		layers[run.n_layers++] = in->special_tokens;
	if (in->variables)
		layers[run.n_layers++] = in->variables;
	json_object_set(own, "messages", (json_t *)list);
	/* defined as none if the request has none */
	json_object_set_new(own, "tools", in->tools ? json_incref((json_t *)in->tools) : json_null());
	json_object_set_new(own, "documents",
	                    in->documents ? json_incref((json_t *)in->documents) : json_null());
	json_object_set_new(own, "add_generation_prompt", json_boolean(in->add_generation_prompt));
	layers[run.n_layers++] = own;
	int r = jinja_render(c->jinja, &run, out, err);
	json_decref(own);
	return r;
}

int chat_template_render(const struct chat_template *c, const struct chat_render *in,
                         struct buf *out, struct err *err)
{
	const json_t *final = NULL;
	struct buf whole;
	if (json_array_size(in->messages) == 0)
		return err_set(err, ERR_INVALID, "the conversation has no message; at least one is needed");
	if (in->continue_final_message && in->add_generation_prompt)
		return err_set(err, ERR_INVALID,
		               "continue_final_message and add_generation_prompt exclude each other");
	json_t *list = prepare_messages(in->messages);
	size_t before = out->len;
	int r = in->continue_final_message ? mark_last(c, list, in->messages, &final, err) : 0;
	if (r == 0 && !final) {
		r = render(c, in, list, out, err);
	} else if (r == 0) {
		buf_init_quota(&whole, out->limit ? out->limit + sizeof MARK : 0, out->quota);
		r = render(c, in, list, &whole, err);
		if (r == 0)
			r = cut_at_mark(&whole, final, out, err);
		buf_fini(&whole);
	}
	json_decref(list);
	if (r < 0 && out->data) {
		out->len = before;
		out->data[before] = 0;
	}
	return r;
}

/* --- a template ---------------------------------------------------------- */

/* Renders `messages` (reference taken over) within the probe's limits. 0 or ERR_*. */
static int probe(const struct chat_template *c, json_t *messages, struct buf *out)
{
	json_t *tokens = json_pack("{s:s, s:s}", "bos_token", "", "eos_token", "");
	json_t *vars = json_pack("{s:o, s:n, s:n, s:b}", "messages", messages, "tools", "documents",
	                         "add_generation_prompt", 0);
	const json_t *layers[] = {tokens, vars};
	struct jinja_run run = {
		.layers = layers, .n_layers = 2, .steps_max = 1000000, .memory_max = 16u << 20};
	buf_init(out, 1u << 20);
	int r = jinja_render(c->jinja, &run, out, NULL);
	json_decref(tokens);
	json_decref(vars);
	return r;
}

static int contains(const struct buf *b, const char *text)
{
	return b->data && memmem(b->data, b->len, text, strlen(text)) != NULL;
}

/* A template that supports parts renders only their text; others fail or print the list itself. */
static int probe_parts(const struct chat_template *c)
{
	struct buf out;
	json_t *m = json_pack("[{s:s, s:[{s:s, s:s}]}]", "role", "user", "content", "type", "text",
	                      "text", PROBE);
	int yes = probe(c, m, &out) == 0 && contains(&out, PROBE) &&
	          !contains(&out, "'text': '" PROBE) && !contains(&out, "\"text\": \"" PROBE);
	buf_fini(&out);
	return yes;
}

#define CALLS 2
#define ALL_CALLS ((1u << CALLS) - 1)
static const char *const call_ids[CALLS] = {"probe0001", "probe0002"};
static const char *const call_names[CALLS] = {"probe_first", "probe_second"};

static json_t *probe_call(int i)
{
	return json_pack("{s:s, s:s, s:{s:s, s:{}}}", "id", call_ids[i], "type", "function", "function",
	                 "name", call_names[i], "arguments");
}

static json_t *probe_result(int i)
{
	return json_pack("{s:s, s:s, s:s}", "role", "tool", "tool_call_id", call_ids[i], "content",
	                 "r");
}

/* Bit i: the template renders call i. The calls are either in one message each or together in
 * one. */
static unsigned calls_shown(const struct chat_template *c, int together)
{
	struct buf out;
	json_t *list = json_pack("[{s:s, s:s}]", "role", "user", "content", "x");
	for (int i = 0; i < CALLS; i++) {
		if (i == 0 || !together)
			json_array_append_new(list, json_pack("{s:s, s:s, s:[o]}", "role", "assistant",
			                                      "content", "", "tool_calls", probe_call(i)));
		if (i == 0 && together)
			json_array_append_new(json_object_get(json_array_get(list, 1), "tool_calls"),
			                      probe_call(1));
		json_array_append_new(list, probe_result(i));
	}
	unsigned shown = 0;
	if (probe(c, list, &out) == 0)
		for (int i = 0; i < CALLS; i++)
			shown |= contains(&out, call_names[i]) ? 1u << i : 0;
	buf_fini(&out);
	return shown;
}

int chat_template_new(const char *text, size_t len, struct chat_template **ret_c, struct err *err)
{
	struct jinja_template *j;
	int r = jinja_template_new(text, len, &j, err);
	if (r < 0)
		return r;
	struct chat_template *c = mem_zalloc(sizeof *c);
	c->jinja = j;
	c->text = mem_alloc(len + 1);
	c->len = len;
	memcpy(c->text, text, len);
	c->text[len] = 0;
	c->names_content = memmem(text, len, "content", 7) != NULL;
	c->takes_parts = probe_parts(c);
	c->names_developer = strstr(c->text, "'developer'") || strstr(c->text, "\"developer\"");
	c->takes_one_call = calls_shown(c, 1) != ALL_CALLS && calls_shown(c, 0) == ALL_CALLS;
	*ret_c = c;
	return 0;
}

void chat_template_destroy(struct chat_template **cp)
{
	if (!*cp)
		return;
	jinja_template_destroy(&(*cp)->jinja);
	free((*cp)->text);
	free(*cp);
	*cp = NULL;
}

const char *chat_template_text(const struct chat_template *c, size_t *ret_len)
{
	*ret_len = c->len;
	return c->text;
}

int chat_template_takes_parts(const struct chat_template *c)
{
	return c->takes_parts;
}

int chat_template_names_developer(const struct chat_template *c)
{
	return c->names_developer;
}

int chat_template_takes_one_call(const struct chat_template *c)
{
	return c->takes_one_call;
}
