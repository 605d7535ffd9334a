/* toolcall_json.c - calls written as JSON: {"name": N, "arguments": {..}}, alone or in an array,
 * and arguments written as a bare object.
 *
 * Each byte is read once. A call object is held back until its name is known; then its arguments
 * are emitted as they arrive. Members may come in any order: arguments before the name wait for it.
 * Arguments written as a string that contains an object are unwrapped; null or missing arguments
 * are {}. Other members are ignored. */
#include "text/toolcall_int.h"
#include "util/json_load.h"

#include <string.h>

/* --- the scanner --------------------------------------------------------- */

enum {
	J_VALUE,
	J_FIRST_VALUE,
	J_FIRST_KEY,
	J_KEY,
	J_COLON,
	J_AFTER,
	J_STRING,
	J_ESCAPE,
	J_HEX,
	J_REST,
	J_MINUS,
	J_ZERO,
	J_INT,
	J_DOT,
	J_FRACTION,
	J_E,
	J_SIGN,
	J_EXP
};

void tc_json_init(struct tc_json *j)
{
	memset(j, 0, sizeof *j);
	j->state = J_VALUE;
}

static int in_object(const struct tc_json *j)
{
	return (int)(j->objects[(j->depth - 1) / 64] >> (j->depth - 1) % 64 & 1);
}

static unsigned push(struct tc_json *j, int object)
{
	if (j->depth == TC_DEPTH_MAX)
		return TC_JSON_BAD;
	uint64_t *word = &j->objects[j->depth / 64], bit = 1ull << j->depth % 64;
	*word = object ? *word | bit : *word & ~bit;
	j->depth++;
	j->state = object ? J_FIRST_KEY : J_FIRST_VALUE;
	return 0;
}

/* A value that is not the outermost one has ended. */
static unsigned value_ended(struct tc_json *j)
{
	j->state = J_AFTER;
	return j->depth == 1 && in_object(j) ? TC_JSON_VALUE_END : 0;
}

static unsigned pop(struct tc_json *j, unsigned char c)
{
	if ((c == '}') != in_object(j))
		return TC_JSON_BAD;
	j->depth--;
	return j->depth ? value_ended(j) : TC_JSON_END;
}

static unsigned begin_value(struct tc_json *j, unsigned char c)
{
	unsigned ev = j->depth == 1 && in_object(j) ? TC_JSON_VALUE : 0;
	if (c == '{' || c == '[')
		return ev | push(j, c == '{');
	if (j->depth == 0)
		return TC_JSON_BAD;
	j->key = 0;
	if (c == '"')
		j->state = J_STRING;
	else if (c == '-')
		j->state = J_MINUS;
	else if (c >= '0' && c <= '9')
		j->state = c == '0' ? J_ZERO : J_INT;
	else if (c == 't' || c == 'f' || c == 'n')
		j->state = J_REST, j->rest = c == 't' ? "rue" : c == 'f' ? "alse" : "ull";
	else
		return TC_JSON_BAD;
	return ev;
}

static unsigned begin_key(struct tc_json *j, unsigned char c)
{
	if (c == '}' && j->state == J_FIRST_KEY)
		return pop(j, c);
	if (c != '"')
		return TC_JSON_BAD;
	j->state = J_STRING;
	j->key = 1;
	return j->depth == 1 ? TC_JSON_KEY : 0;
}

static unsigned after_value(struct tc_json *j, unsigned char c)
{
	if (c == '}' || c == ']')
		return pop(j, c);
	if (c != ',')
		return TC_JSON_BAD;
	j->state = in_object(j) ? J_KEY : J_VALUE;
	return 0;
}

static unsigned in_string(struct tc_json *j, unsigned char c)
{
	if (c == '\\')
		j->state = J_ESCAPE;
	if (c != '"')
		return 0;
	if (!j->key)
		return value_ended(j);
	j->state = J_COLON;
	return j->depth == 1 ? TC_JSON_KEY_END : 0;
}

static unsigned in_escape(struct tc_json *j, unsigned char c)
{
	j->hex = 0;
	j->state = c == 'u' ? J_HEX : J_STRING;
	return c && strchr("\"\\/bfnrtu", c) ? 0 : TC_JSON_BAD;
}

static unsigned in_hex(struct tc_json *j, unsigned char c)
{
	if (++j->hex == 4)
		j->state = J_STRING;
	return c && strchr("0123456789abcdefABCDEF", c) ? 0 : TC_JSON_BAD;
}

static unsigned in_rest(struct tc_json *j, unsigned char c)
{
	if (c != (unsigned char)*j->rest)
		return TC_JSON_BAD;
	return *++j->rest ? 0 : value_ended(j);
}

/* How a number may continue: state, next state, and the bytes that lead there. */
static const struct {
	unsigned state, next;
	const char *bytes;
} number[] = {
	{J_MINUS, J_ZERO, "0"},
	{J_MINUS, J_INT, "123456789"},
	{J_INT, J_INT, "0123456789"},
	{J_INT, J_DOT, "."},
	{J_INT, J_E, "eE"},
	{J_ZERO, J_DOT, "."},
	{J_ZERO, J_E, "eE"},
	{J_DOT, J_FRACTION, "0123456789"},
	{J_FRACTION, J_FRACTION, "0123456789"},
	{J_FRACTION, J_E, "eE"},
	{J_E, J_SIGN, "+-"},
	{J_E, J_EXP, "0123456789"},
	{J_SIGN, J_EXP, "0123456789"},
	{J_EXP, J_EXP, "0123456789"},
};

static unsigned in_number(struct tc_json *j, unsigned char c)
{
	for (size_t i = 0; c && i < sizeof number / sizeof *number; i++)
		if (number[i].state == j->state && strchr(number[i].bytes, c)) {
			j->state = number[i].next;
			return 0;
		}
	if (j->state != J_INT && j->state != J_ZERO && j->state != J_FRACTION && j->state != J_EXP)
		return TC_JSON_BAD;
	unsigned ended = value_ended(j) ? TC_JSON_VALUE_ENDED : 0;
	return ended | tc_json_byte(j, c);
}

unsigned tc_json_byte(struct tc_json *j, unsigned char c)
{
	if (j->state <= J_AFTER && (c == ' ' || c == '\n' || c == '\t' || c == '\r'))
		return 0;
	switch (j->state) {
	case J_FIRST_VALUE:
		if (c == ']')
			return pop(j, c);
		return begin_value(j, c);
	case J_VALUE: return begin_value(j, c);
	case J_FIRST_KEY:
	case J_KEY: return begin_key(j, c);
	case J_COLON: j->state = J_VALUE; return c == ':' ? 0 : TC_JSON_BAD;
	case J_AFTER: return after_value(j, c);
	case J_STRING: return in_string(j, c);
	case J_ESCAPE: return in_escape(j, c);
	case J_HEX: return in_hex(j, c);
	case J_REST: return in_rest(j, c);
	}
	return in_number(j, c);
}

/* --- one call object ----------------------------------------------------- */

static int key_is(const char *s, size_t n, const char *key)
{
	return key && n == strlen(key) && memcmp(s, key, n) == 0;
}

static void note_key(struct toolcall *t)
{
	struct tc_object *o = &t->object;
	const char *s = t->in.data + t->start + o->from;
	size_t n = t->at - 1 - (t->start + o->from);
	o->member = TC_OTHER;
	if (t->begun)
		return;
	if (!o->named && (key_is(s, n, "name") || key_is(s, n, t->f->name_key)))
		o->member = TC_NAME;
	else if (!o->has_args && (key_is(s, n, "arguments") || key_is(s, n, "parameters")))
		o->member = TC_ARGS;
}

/* Starts the call, whose name is known, with the held arguments. Returns 0 if they are not
 * valid. */
static int give_held(struct toolcall *t)
{
	struct tc_object *o = &t->object;
	const char *s = t->in.data + t->start + o->args_from;
	size_t n = o->args_to - o->args_from;
	if (*s == '{') {
		tc_begin(t);
		tc_copy(t, s, n);
		return 1;
	}
	if (*s == 'n') {
		tc_begin(t);
		tc_give(t, "{}", 2);
		return 1;
	}
	json_error_t bad;
	json_t *text = json_load(s, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &bad);
	json_t *args = text ? json_load(json_string_value(text), json_string_length(text), 0, &bad)
	                    : NULL;
	int good = json_is_object(args);
	if (good) {
		tc_begin(t);
		tc_give(t, json_string_value(text), json_string_length(text));
	}
	json_decref(args);
	json_decref(text);
	return good;
}

/* The byte before `at` starts a member's value. Returns 0 if this object is no call. */
static int begin_member(struct toolcall *t)
{
	struct tc_object *o = &t->object;
	char c = t->in.data[t->at - 1];
	if (o->member == TC_NAME) {
		o->from = t->at - t->start;
		return c == '"';
	}
	if (o->member != TC_ARGS)
		return 1;
	o->has_args = 1;
	if (c == '{' && o->named) {
		tc_begin(t);
		o->streaming = 1;
		t->start = t->at - 1;
		return 1;
	}
	o->args_from = t->at - 1 - t->start;
	return c == '{' || c == '"' || c == 'n';
}

static void stream(struct toolcall *t)
{
	if (t->object.streaming)
		tc_copy(t, t->in.data + t->start, t->at - t->start);
	if (t->begun)
		t->start = t->at;
}

static int end_member(struct toolcall *t)
{
	struct tc_object *o = &t->object;
	if (t->begun) {
		stream(t);
		o->streaming = 0;
		return 1;
	}
	if (o->member == TC_NAME) {
		size_t from = t->start + o->from;
		o->named = tc_take_name(t, t->in.data + from, t->at - 1 - from);
		if (!o->named)
			return 0;
	} else if (o->member == TC_ARGS) {
		o->args_to = t->at - t->start;
		o->held = 1;
	}
	if (!o->named || !o->held)
		return 1;
	if (!give_held(t))
		return 0;
	t->start = t->at;
	return 1;
}

static int on_event(struct toolcall *t, unsigned ev)
{
	int good = 1;
	if (ev & TC_JSON_VALUE_ENDED && t->object.member != TC_OTHER)
		good = 0; /* a number */
	if (ev & TC_JSON_KEY)
		t->object.from = t->at - t->start;
	if (ev & TC_JSON_KEY_END)
		note_key(t);
	if (good && ev & TC_JSON_VALUE)
		good = begin_member(t);
	if (good && ev & TC_JSON_VALUE_END)
		good = end_member(t);
	return good;
}

static tc_step element_next, object_read;

static enum tc_go object_end(struct toolcall *t)
{
	struct tc_object *o = &t->object;
	if (!t->begun && o->named && !o->has_args && !t->is_bare) {
		tc_begin(t);
		tc_give(t, "{}", 2);
	}
	if (!t->begun)
		return tc_break(t, t->at);
	tc_end(t);
	t->start = t->at;
	t->step = t->in_array ? element_next : tc_close;
	return TC_GO;
}

static enum tc_go object_read(struct toolcall *t)
{
	while (t->at < t->in.len) {
		unsigned ev = tc_json_byte(&t->object.scan, (unsigned char)t->in.data[t->at]);
		if (ev & TC_JSON_BAD) {
			stream(t);
			return tc_break(t, t->at);
		}
		t->at++;
		if (ev && !on_event(t, ev))
			return tc_break(t, t->at);
		if (ev & TC_JSON_END)
			return object_end(t);
	}
	stream(t);
	return TC_MORE;
}

static void object_begin(struct toolcall *t, size_t at)
{
	t->object = (struct tc_object){0};
	tc_json_init(&t->object.scan);
	t->at = at;
	t->step = object_read;
}

/* --- objects after a trigger, alone or in an array ----------------------- */

static enum tc_go element_first(struct toolcall *t)
{
	struct tc_cursor c;
	tc_cursor_init(&c, t, t->at);
	tc_cursor_space(&c);
	if (tc_cursor_peek(&c) != '{')
		return tc_cursor_mismatch(t, &c);
	object_begin(t, c.at);
	return TC_GO;
}

static enum tc_go element_next(struct toolcall *t)
{
	struct tc_cursor c;
	tc_cursor_init(&c, t, t->start);
	tc_cursor_space(&c);
	int next = tc_cursor_peek(&c);
	if (next == ',') {
		t->at = c.at + 1;
		t->step = element_first;
		return TC_GO;
	}
	if (next < 0 && c.part && !t->final)
		return TC_MORE;
	if (next == ']')
		t->start = c.at + 1;
	t->in_array = 0;
	t->at = t->start;
	t->step = next == ']' ? tc_close : tc_content;
	return TC_GO;
}

enum tc_go tc_json_open(struct toolcall *t)
{
	struct tc_cursor c;
	tc_cursor_init(&c, t, t->at);
	tc_cursor_space(&c);
	int next = tc_cursor_peek(&c);
	if (next == '{') {
		object_begin(t, c.at);
	} else if (next == '[') {
		t->in_array = 1;
		t->at = c.at + 1;
		t->step = element_first;
	} else {
		return tc_cursor_mismatch(t, &c);
	}
	return TC_GO;
}

/* --- a bare object of arguments ------------------------------------------ */

void tc_json_start(struct toolcall *t)
{
	tc_json_init(&t->object.scan);
}

/* Called at a <, which the scanner accepts only inside a string and which leaves its state
 * unchanged. */
static enum tc_match breaks_off(const struct toolcall *t)
{
	enum tc_match m = t->f->breaks ? tc_compare(t, t->at, t->f->breaks) : TC_NO;
	return m == TC_PART && t->final ? TC_NO : m;
}

enum tc_go tc_json_arguments(struct toolcall *t)
{
	size_t from = t->at;
	int waits = 0;
	while (t->at < t->in.len) {
		unsigned ev = tc_json_byte(&t->object.scan, (unsigned char)t->in.data[t->at]);
		if (ev & TC_JSON_BAD)
			break;
		enum tc_match m = t->in.data[t->at] == '<' ? breaks_off(t) : TC_NO;
		if (m == TC_YES) {
			tc_copy(t, t->in.data + from, t->at - from);
			return tc_break(t, t->at + strlen(t->f->breaks));
		}
		if (m == TC_PART) {
			waits = 1;
			break;
		}
		t->at++;
		if (!(ev & TC_JSON_END))
			continue;
		tc_copy(t, t->in.data + from, t->at - from);
		tc_end(t);
		t->start = t->at;
		t->step = tc_close;
		return TC_GO;
	}
	tc_copy(t, t->in.data + from, t->at - from);
	t->start = t->at;
	return t->at < t->in.len && !waits ? tc_break(t, t->at) : TC_MORE;
}
