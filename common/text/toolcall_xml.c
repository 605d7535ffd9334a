/* toolcall_xml.c - calls with parameters in tags: Qwen3-Coder, GLM, DeepSeek V3.2. They are
 * converted to JSON: {"key": value, ..}.
 *
 * A parameter that the schema allows only to be a string is emitted as it arrives. Any other is
 * held back until it is complete and becomes a JSON value if the text is one of an allowed type
 * (including Python's True, False, None), else a string. A call that is broken off leaves its JSON
 * unterminated. */
#include "text/toolcall_int.h"
#include "util/json_load.h"

#include <math.h>
#include <string.h>
#include <strings.h>

static tc_step param_next, param_value;

/* --- values -------------------------------------------------------------- */

static unsigned type_of(const json_t *v)
{
	switch (json_typeof(v)) {
	case JSON_OBJECT: return TC_OBJECT;
	case JSON_ARRAY: return TC_ARRAY;
	case JSON_STRING: return TC_STRING;
	case JSON_INTEGER: return TC_INTEGER | TC_NUMBER;
	case JSON_REAL:
		return json_real_value(v) == floor(json_real_value(v)) ? TC_INTEGER | TC_NUMBER : TC_NUMBER;
	case JSON_TRUE:
	case JSON_FALSE: return TC_BOOLEAN;
	case JSON_NULL: return TC_NULL;
	}
	return 0;
}

static const char *python_word(const char *s, size_t n)
{
	static const char *const words[][2] = {
		{"true", "true"}, {"false", "false"}, {"none", "null"}, {"null", "null"}};
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (n == strlen(words[i][0]) && strncasecmp(s, words[i][0], n) == 0)
			return words[i][1];
	return NULL;
}

int tc_xml_is_json(unsigned types, const char **s, size_t *n)
{
	const char *v = *s, *word;
	size_t len = *n;
	while (len && strchr(" \n\t\r", *v) && *v)
		v++, len--;
	while (len && v[len - 1] && strchr(" \n\t\r", v[len - 1]))
		len--;
	word = python_word(v, len);
	v = word ? word : v;
	len = word ? strlen(word) : len;
	json_error_t bad;
	json_t *json = json_load(v, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &bad);
	/* If a string is allowed, a quoted text is a string that contains the quotes. Null is accepted
	 * even if the schema allows only another type, unless that is a string. */
	unsigned allowed = types & TC_STRING ? types & ~(unsigned)TC_STRING : types | TC_NULL;
	int good = json && type_of(json) & allowed;
	json_decref(json);
	if (!good)
		return 0;
	*s = v;
	*n = len;
	return 1;
}

static void give_value(struct toolcall *t, const char *s, size_t n)
{
	if (tc_xml_is_json(t->types, &s, &n)) {
		tc_give(t, s, n);
	} else {
		tc_give(t, "\"", 1);
		tc_give_string(t, s, n);
		tc_give(t, "\"", 1);
	}
}

static void end_value(struct toolcall *t, size_t to, size_t next)
{
	if (t->holding)
		give_value(t, t->in.data + t->start, to - t->start);
	else
		tc_give_string(t, t->in.data + t->start, to - t->start);
	tc_give(t, "\"", t->holding ? 0 : 1);
	t->holding = 0;
	t->start = t->at = next;
	t->step = param_next;
}

/* Looks for the tag that ends the value; [start, at) is known not to contain it. */
static enum tc_go param_value(struct toolcall *t)
{
	const struct tc_xml *f = &t->f->xml;
	while (t->at < t->in.len) {
		const char *hit = memchr(t->in.data + t->at, f->value_end[0], t->in.len - t->at);
		size_t at = hit ? (size_t)(hit - t->in.data) : t->in.len;
		enum tc_match m = hit ? tc_compare(t, at, f->value_end) : TC_NO;
		t->at = at;
		if (m == TC_NO && hit) {
			t->at++;
			continue;
		}
		size_t to = f->trims_newline && at > t->start && t->in.data[at - 1] == '\n' ? at - 1 : at;
		if (m == TC_YES) {
			end_value(t, to, at + strlen(f->value_end));
			return TC_GO;
		}
		if (!t->holding) {
			tc_give_string(t, t->in.data + t->start, to - t->start);
			t->start = to;
		}
		break;
	}
	return TC_MORE;
}

/* --- parameters ---------------------------------------------------------- */

static enum tc_go begin_param(struct toolcall *t, const struct tc_cursor *c, size_t key,
                              size_t key_len)
{
	char name[TC_HEAD_MAX + 1];
	memcpy(name, t->in.data + key, key_len);
	name[key_len] = 0;
	if (!t->f->xml.typed)
		t->types = tc_tools_types(t->tools, t->name, name);
	t->holding = t->types != TC_STRING;
	tc_give(t, t->params ? ", \"" : "{\"", t->params ? 3 : 2);
	tc_give_string(t, name, key_len);
	tc_give(t, "\": \"", t->holding ? 3 : 4);
	t->params++;
	t->start = t->at = c->at;
	t->step = param_value;
	return TC_GO;
}

static int key_end(struct toolcall *t, struct tc_cursor *c)
{
	const struct tc_xml *f = &t->f->xml;
	if (!tc_cursor_literal(c, f->key_end))
		return 0;
	if (f->typed) {
		t->types = tc_cursor_literal(c, "true\">") ? TC_STRING : TC_TYPES & ~(unsigned)TC_STRING;
		return t->types == TC_STRING || tc_cursor_literal(c, "false\">");
	}
	if (f->value) {
		tc_cursor_space(c);
		return tc_cursor_literal(c, f->value);
	}
	int newline = f->trims_newline ? tc_cursor_peek(c) : 0;
	c->at += newline == '\n';
	return newline >= 0;
}

static enum tc_go param_next(struct toolcall *t)
{
	const struct tc_xml *f = &t->f->xml;
	struct tc_cursor c;
	tc_cursor_init(&c, t, t->start);
	tc_cursor_space(&c);
	if (tc_cursor_literal(&c, f->call_end)) {
		tc_give(t, t->params ? "}" : "{}", t->params ? 1 : 2);
		tc_end(t);
		t->start = t->at = c.at;
		t->step = tc_close;
		return TC_GO;
	}
	if (!tc_cursor_literal(&c, f->param))
		return tc_cursor_mismatch(t, &c);
	size_t key = c.at;
	for (int b; (b = tc_cursor_peek(&c)) >= 0 && b != '<' && b != '>' && b != '"' && b != '\n';)
		c.at++;
	size_t key_len = c.at - key;
	if (!key_len || !key_end(t, &c))
		return tc_cursor_mismatch(t, &c);
	return begin_param(t, &c, key, key_len);
}

/* --- the head ------------------------------------------------------------ */

enum tc_go tc_xml_open(struct toolcall *t)
{
	const struct tc_xml *f = &t->f->xml;
	size_t from, n;
	struct tc_cursor c;
	tc_cursor_init(&c, t, t->at);
	if (f->call && strcmp(t->f->triggers[t->trigger], f->call) != 0) {
		tc_cursor_space(&c);
		if (!tc_cursor_literal(&c, f->call))
			return tc_cursor_mismatch(t, &c);
	}
	if (!f->name_end)
		tc_cursor_space(&c);
	if (!tc_cursor_name(&c, &from, &n))
		return tc_cursor_mismatch(t, &c);
	size_t end = c.at;
	if (f->name_end) {
		if (!tc_cursor_literal(&c, f->name_end))
			return tc_cursor_mismatch(t, &c);
		end = c.at;
	} else { /* the name ends only where one of these tags follows */
		tc_cursor_space(&c);
		if (!tc_cursor_literal(&c, f->param) && !tc_cursor_literal(&c, f->call_end))
			return tc_cursor_mismatch(t, &c);
	}
	if (!tc_take_name(t, t->in.data + from, n))
		return tc_break(t, end);
	tc_begin(t);
	t->params = 0;
	t->start = t->at = end;
	t->step = param_next;
	return TC_GO;
}
