/* toolcall_python.c - calls written as Python: [get_weather(city="Oslo", days=[1, 2]), get_time()].
 *
 * Supports keyword arguments with literal values: strings, numbers, True, False, None, lists,
 * tuples, dicts with string keys. Each value is held back until it is complete and then converted
 * to JSON. Any other argument breaks the call off. */
#include "text/toolcall_int.h"
#include "util/json_load.h"

#include <string.h>

#define VALUE_DEPTH_MAX 64

/* --- a literal to JSON --------------------------------------------------- */

struct literal {
	const char *s, *end;
	struct buf *out;
	int depth;
};

static int value(struct literal *l);

static void space(struct literal *l)
{
	while (l->s < l->end && strchr(" \n\t\r", *l->s) && *l->s)
		l->s++;
}

/* Up to `max` digits of base 8 or 16. Returns how many there are. */
static int digits(struct literal *l, unsigned base, int max, uint32_t *ret)
{
	static const char all[] = "0123456789abcdefABCDEF";
	int n = 0;
	for (*ret = 0; n < max && l->s < l->end; n++, l->s++) {
		const char *at = memchr(all, *l->s, base == 8 ? 8 : sizeof all - 1);
		if (!at)
			break;
		*ret = *ret * base + (uint32_t)(at - all < 16 ? at - all : at - all - 6);
	}
	return n;
}

static void add_character(struct literal *l, uint32_t c)
{
	if (c == '"' || c == '\\')
		buf_printf(l->out, "\\%c", (char)c);
	else if (c >= 0x20 && c < 0x7f)
		buf_addc(l->out, (char)c);
	else if (c <= 0xffff)
		buf_printf(l->out, "\\u%04x", c);
	else
		buf_printf(l->out, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + (c & 0x3ff));
}

/* After the backslash. As in Python, the backslash of an unknown escape is text; \N{..} counts as
 * unknown, as names of characters are not known here. */
static int escape(struct literal *l)
{
	static const char from[] = "abfnrtv\\\"'", to[] = "\a\b\f\n\r\t\v\\\"'";
	uint32_t c;
	if (l->s == l->end)
		return 0;
	char e = *l->s;
	const char *at = e ? strchr(from, e) : NULL;
	int width = e == 'x' ? 2 : e == 'u' ? 4 : e == 'U' ? 8 : 0;
	if (at || width)
		l->s++;
	if (at) {
		c = (unsigned char)to[at - from];
	} else if (width) {
		if (digits(l, 16, width, &c) < width || c > 0x10ffff)
			return 0;
	} else if (e == '\n' || e == '\r') { /* the line goes on */
		l->s += e == '\r' && l->end - l->s > 1 && l->s[1] == '\n' ? 2 : 1;
		return 1;
	} else if (digits(l, 8, 3, &c) == 0) {
		c = '\\'; /* what follows it is read as text */
	}
	add_character(l, c);
	return 1;
}

static int string(struct literal *l)
{
	char quote = *l->s++;
	buf_addc(l->out, '"');
	for (; l->s < l->end && *l->s != quote;) {
		unsigned char c = (unsigned char)*l->s++;
		if (c == '\\') {
			if (!escape(l))
				return 0;
		} else if (c == '"') {
			buf_adds(l->out, "\\\"");
		} else if (c < 0x20) {
			buf_printf(l->out, "\\u%04x", c);
		} else {
			buf_addc(l->out, (char)c);
		}
	}
	buf_addc(l->out, '"');
	return l->s < l->end && *l->s++ == quote;
}

/* The elements of a list, tuple or dict, up to its closing byte. */
static int items(struct literal *l, char close, int pairs)
{
	int n = 0;
	l->s++;
	buf_addc(l->out, pairs ? '{' : '[');
	for (space(l); l->s < l->end && *l->s != close; space(l)) {
		if (n++) {
			if (*l->s++ != ',')
				return 0;
			space(l);
			if (l->s < l->end && *l->s == close)
				break; /* a trailing comma is allowed */
			buf_adds(l->out, ", ");
		}
		if (pairs) {
			if (l->s == l->end || (*l->s != '"' && *l->s != '\'') || !string(l))
				return 0;
			space(l);
			if (l->s == l->end || *l->s++ != ':')
				return 0;
			buf_adds(l->out, ": ");
		}
		if (!value(l))
			return 0;
	}
	buf_addc(l->out, pairs ? '}' : ']');
	return l->s < l->end && *l->s++ == close;
}

static int word_or_number(struct literal *l)
{
	static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
	                                       {"true", "true"}, {"false", "false"}, {"null", "null"}};
	const char *from = l->s;
	while (l->s < l->end && *l->s && !strchr(" \n\t\r,:()[]{}\"'=", *l->s))
		l->s++;
	size_t n = (size_t)(l->s - from);
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (n == strlen(words[i][0]) && memcmp(from, words[i][0], n) == 0) {
			buf_adds(l->out, words[i][1]);
			return 1;
		}
	json_error_t bad;
	json_t *v = json_load(from, n, JSON_DECODE_ANY, &bad);
	int good = json_is_number(v);
	if (good)
		buf_add(l->out, from, n);
	json_decref(v);
	return good;
}

static int value(struct literal *l)
{
	space(l);
	if (l->s == l->end || l->depth == VALUE_DEPTH_MAX)
		return 0;
	char c = *l->s;
	if (c == '"' || c == '\'')
		return string(l);
	if (c != '[' && c != '(' && c != '{')
		return word_or_number(l);
	l->depth++;
	int good = items(l, c == '[' ? ']' : c == '(' ? ')' : '}', c == '{');
	l->depth--;
	return good;
}

/* Emits the held text, one literal, as JSON. Returns 0 if it is invalid. */
static int give_value(struct toolcall *t, size_t to)
{
	struct buf out;
	buf_init_quota(&out, 0, t->in.quota);
	struct literal l = {.s = t->in.data + t->start, .end = t->in.data + to, .out = &out};
	int good = value(&l);
	space(&l);
	good = good && l.s == l.end;
	t->in.full |= out.full;
	if (good && !out.full)
		tc_give(t, out.data, out.len);
	buf_fini(&out);
	return good;
}

/* --- the call ------------------------------------------------------------ */

static tc_step call_head, call_arguments, argument;

/* Looks for the end of the value: a comma or the closing parenthesis outside of brackets and
 * strings. The position inside the value is kept between calls. */
static enum tc_go argument(struct toolcall *t)
{
	for (; t->at < t->in.len; t->at++) {
		char c = t->in.data[t->at];
		if (t->quote) { /* quote character of the current string */
			if (t->escaped || c == '\\')
				t->escaped = !t->escaped;
			else if ((unsigned char)c == t->quote)
				t->quote = 0;
			continue;
		}
		if (c == '"' || c == '\'')
			t->quote = (unsigned char)c;
		else if (c == '[' || c == '{' || c == '(')
			t->nesting++;
		else if ((c == ',' || c == ')') && t->nesting == 0)
			break;
		else if (c == ']' || c == '}' || c == ')')
			t->nesting -= t->nesting > 0;
	}
	if (t->at == t->in.len)
		return TC_MORE;
	int good = give_value(t, t->at);
	t->holding = !good;
	if (!good)
		return tc_break(t, t->at);
	t->start = t->at;
	t->step = call_arguments;
	return TC_GO;
}

/* After a ( or a value. */
static enum tc_go call_arguments(struct toolcall *t)
{
	size_t key, key_len;
	struct tc_cursor c;
	tc_cursor_init(&c, t, t->start);
	tc_cursor_space(&c);
	if (t->params && tc_cursor_literal(&c, ","))
		tc_cursor_space(&c);
	else if (t->params && tc_cursor_peek(&c) != ')')
		return tc_cursor_mismatch(t, &c);
	if (tc_cursor_literal(&c, ")")) {
		tc_give(t, t->params ? "}" : "{}", t->params ? 1 : 2);
		tc_end(t);
		t->start = t->at = c.at;
		t->step = call_head;
		return TC_GO;
	}
	if (!tc_cursor_name(&c, &key, &key_len))
		return tc_cursor_mismatch(t, &c);
	tc_cursor_space(&c);
	if (!tc_cursor_literal(&c, "="))
		return tc_cursor_mismatch(t, &c);
	tc_give(t, t->params ? ", \"" : "{\"", t->params ? 3 : 2);
	tc_give(t, t->in.data + key, key_len);
	tc_give(t, "\": ", 3);
	t->params++;
	t->holding = 1;
	t->start = t->at = c.at;
	t->quote = t->nesting = 0;
	t->escaped = 0;
	t->step = argument;
	return TC_GO;
}

/* Expects [NAME( for the first call, ,NAME( for the others, or ]. */
static enum tc_go call_head(struct toolcall *t)
{
	size_t from, n;
	struct tc_cursor c;
	tc_cursor_init(&c, t, t->at);
	tc_cursor_space(&c);
	if (t->in_array && tc_cursor_literal(&c, "]")) {
		t->in_array = 0;
		t->start = t->at = c.at;
		t->step = tc_close;
		return TC_GO;
	}
	if (!tc_cursor_literal(&c, t->in_array ? "," : "["))
		return tc_cursor_mismatch(t, &c);
	tc_cursor_space(&c);
	if (!tc_cursor_name(&c, &from, &n))
		return tc_cursor_mismatch(t, &c);
	tc_cursor_space(&c);
	if (!tc_cursor_literal(&c, "("))
		return tc_cursor_mismatch(t, &c);
	if (!tc_take_name(t, t->in.data + from, n))
		return tc_break(t, c.at);
	tc_begin(t);
	t->in_array = 1;
	t->params = 0;
	t->start = t->at = c.at;
	t->step = call_arguments;
	return TC_GO;
}

enum tc_go tc_python_open(struct toolcall *t)
{
	t->in_array = 0;
	t->step = call_head;
	return TC_GO;
}
