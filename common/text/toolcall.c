/* toolcall.c - the state machine of toolcall.h: text outside of calls, held-back text, events.
 *
 * Invariant: text before `start` has been emitted or belonged to a call. A candidate that turns out
 * to be no call is emitted from `start` to where it failed and never parsed again, so hostile text
 * costs no more than plain text. */
#include "text/toolcall_int.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

/* --- events -------------------------------------------------------------- */

static void give(struct toolcall *t, enum toolcall_kind kind, const char *s, size_t n)
{
	struct toolcall_event e = {
		.kind = kind, .index = t->calls ? t->calls - 1 : 0, .text = s, .len = n};
	t->sink(t->arg, &e);
}

static void give_content(struct toolcall *t, size_t to)
{
	if (to > t->start) {
		give(t, TOOLCALL_CONTENT, t->in.data + t->start, to - t->start);
		t->fresh = t->after_call = 0;
	}
	t->start = to;
}

void tc_begin(struct toolcall *t)
{
	CHECK(!t->begun);
	t->begun = 1;
	t->calls++;
	t->in_string = t->escaped = 0;
	give(t, TOOLCALL_BEGIN, t->name, strlen(t->name));
}

static void end_call(struct toolcall *t, int is_broken)
{
	CHECK(t->begun);
	t->begun = 0;
	t->holding = 0;
	t->after_call = 1;
	t->closer = 0;
	is_broken |= t->in.full; /* some of it is missing */
	t->sink(t->arg, &(struct toolcall_event){TOOLCALL_END, t->calls - 1, "", 0, is_broken});
}

void tc_end(struct toolcall *t)
{
	end_call(t, 0);
}

void tc_give(struct toolcall *t, const char *s, size_t n)
{
	if (n)
		give(t, TOOLCALL_ARGUMENTS, s, n);
}

void tc_say(struct toolcall *t, const char *s, size_t n)
{
	if (n)
		give(t, TOOLCALL_CONTENT, s, n);
	t->fresh = t->after_call = 0;
}

static const char *escape_of(unsigned char c, char room[8])
{
	static const char hex[] = "0123456789abcdef";
	switch (c) {
	case '"': return "\\\"";
	case '\\': return "\\\\";
	case '\n': return "\\n";
	case '\r': return "\\r";
	case '\t': return "\\t";
	}
	memcpy(room, "\\u00", 4);
	room[4] = hex[c >> 4];
	room[5] = hex[c & 15];
	room[6] = 0;
	return room;
}

void tc_give_string(struct toolcall *t, const char *s, size_t n)
{
	char room[8];
	size_t done = 0;
	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)s[i];
		if (c >= 0x20 && c != '"' && c != '\\')
			continue;
		tc_give(t, s + done, i - done);
		const char *e = escape_of(c, room);
		tc_give(t, e, strlen(e));
		done = i + 1;
	}
	tc_give(t, s + done, n - done);
}

void tc_copy(struct toolcall *t, const char *s, size_t n)
{
	char room[8];
	size_t done = 0;
	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)s[i];
		if (t->in_string && c < 0x20) {
			tc_give(t, s + done, i - done);
			const char *e = escape_of(c, room);
			tc_give(t, e, strlen(e));
			done = i + 1;
		} else if (c == '"' && !t->escaped) {
			t->in_string = !t->in_string;
		}
		t->escaped = t->in_string && c == '\\' && !t->escaped;
	}
	tc_give(t, s + done, n - done);
}

/* --- parsing ------------------------------------------------------------- */

enum tc_match tc_compare(const struct toolcall *t, size_t at, const char *s)
{
	size_t n = strlen(s), have = t->in.len - at;
	if (have && memcmp(t->in.data + at, s, have < n ? have : n) != 0)
		return TC_NO;
	return have >= n ? TC_YES : TC_PART;
}

int tc_take_name(struct toolcall *t, const char *s, size_t n)
{
	if (!toolcall_name_good(s, n) || t->calls == TOOLCALL_COUNT_MAX)
		return 0;
	memcpy(t->name, s, n);
	t->name[n] = 0;
	return tc_tools_has(t->tools, t->name);
}

enum tc_go tc_break(struct toolcall *t, size_t pos)
{
	if (t->begun) {
		if (t->holding)
			tc_give(t, t->in.data + t->start, pos - t->start);
		end_call(t, 1);
		t->start = pos;
	} else {
		give_content(t, pos);
	}
	t->at = pos;
	t->in_array = 0;
	t->step = tc_content;
	return TC_GO;
}

/* Is there a trigger at `at`? TC_PART: no, but more text could complete one. */
static enum tc_match find_trigger(struct toolcall *t, size_t at)
{
	enum tc_match found = TC_NO;
	for (size_t i = 0; t->f->triggers[i]; i++) {
		enum tc_match m = tc_compare(t, at, t->f->triggers[i]);
		if (m == TC_YES) {
			t->trigger = i;
			return TC_YES;
		}
		found = m == TC_PART ? TC_PART : found;
	}
	return found;
}

enum tc_go tc_content(struct toolcall *t)
{
	size_t keep = t->start; /* content ends here; [keep, at) is white space */
	const char *s = t->in.data;
	while (t->at < t->in.len) {
		unsigned char c = (unsigned char)s[t->at];
		if (text_is_space((char)c)) {
			t->at++;
			continue;
		}
		int bare = t->f->bare && c == (unsigned char)t->f->bare && (t->fresh || t->after_call) &&
		           keep == t->start;
		enum tc_match m = t->first[c] ? find_trigger(t, t->at) : TC_NO;
		if (m == TC_YES || bare) {
			give_content(t, keep);
			t->is_bare = m != TC_YES;
			t->at += m == TC_YES ? strlen(t->f->triggers[t->trigger]) : 0;
			t->step = t->f->open;
			return TC_GO;
		}
		if (m == TC_PART && !t->final)
			break;
		keep = ++t->at;
	}
	give_content(t, keep);
	if (!t->final || t->at < t->in.len)
		return TC_MORE;
	if (t->after_call)
		t->start = t->in.len;
	give_content(t, t->in.len);
	return TC_MORE;
}

enum tc_go tc_close(struct toolcall *t)
{
	int part = 0;
	while (t->at < t->in.len && text_is_space(t->in.data[t->at]))
		t->at++;
	for (unsigned i = t->closer; t->f->closers[i]; i++) {
		enum tc_match m = tc_compare(t, t->at, t->f->closers[i]);
		if (m == TC_YES) {
			t->start = t->at += strlen(t->f->closers[i]);
			t->closer = i + 1;
			return TC_GO;
		}
		part |= m == TC_PART;
	}
	if (part && !t->final)
		return TC_MORE;
	t->at = t->start;
	t->step = tc_content;
	return TC_GO;
}

/* --- heads --------------------------------------------------------------- */

void tc_cursor_init(struct tc_cursor *c, const struct toolcall *t, size_t at)
{
	*c = (struct tc_cursor){.t = t, .at = at, .end = t->in.len};
	if (c->end > at + TC_HEAD_MAX)
		c->end = at + TC_HEAD_MAX;
}

/* At the end of the text? More may follow, unless the head already has its maximal length. */
static int at_end(struct tc_cursor *c)
{
	if (c->at < c->end)
		return 0;
	c->part |= c->end == c->t->in.len;
	return 1;
}

void tc_cursor_space(struct tc_cursor *c)
{
	while (!at_end(c) && text_is_space(c->t->in.data[c->at]))
		c->at++;
}

int tc_cursor_literal(struct tc_cursor *c, const char *s)
{
	enum tc_match m = tc_compare(c->t, c->at, s);
	if (m == TC_YES)
		c->at += strlen(s);
	c->part |= m == TC_PART;
	return m == TC_YES;
}

int tc_cursor_name(struct tc_cursor *c, size_t *ret_from, size_t *ret_len)
{
	size_t from = c->at;
	while (!at_end(c) && toolcall_name_good(&c->t->in.data[c->at], 1))
		c->at++;
	*ret_from = from;
	*ret_len = c->at - from;
	return *ret_len > 0 && *ret_len <= TOOLCALL_NAME_MAX;
}

int tc_cursor_peek(struct tc_cursor *c)
{
	return at_end(c) ? -1 : (unsigned char)c->t->in.data[c->at];
}

enum tc_go tc_cursor_mismatch(struct toolcall *t, const struct tc_cursor *c)
{
	if (c->part && !t->final)
		return TC_MORE;
	return tc_break(t, t->begun ? t->start : c->at);
}

/* --- public functions ---------------------------------------------------- */

struct toolcall *toolcall_new(const struct toolcall_format *f, const struct toolcall_tools *tools,
                              struct quota *q, toolcall_sink *sink, void *arg)
{
	struct toolcall *t = mem_zalloc(sizeof *t);
	t->f = f;
	t->tools = tools;
	t->sink = sink;
	t->arg = arg;
	t->step = tc_content;
	t->fresh = 1;
	buf_init_quota(&t->in, 0, q);
	for (size_t i = 0; f->triggers[i]; i++)
		t->first[(unsigned char)f->triggers[i][0]] = 1;
	return t;
}

void toolcall_destroy(struct toolcall **tp)
{
	if (!*tp)
		return;
	buf_fini(&(*tp)->in);
	free(*tp);
	*tp = NULL;
}

void toolcall_feed(struct toolcall *t, const char *text, size_t len)
{
	CHECK(!t->final);
	if (t->start) {
		memmove(t->in.data, t->in.data + t->start, t->in.len - t->start);
		t->in.len -= t->start;
		t->at -= t->start;
		t->start = 0;
	}
	buf_add(&t->in, text, len);
	while (t->in.len && t->step(t) == TC_GO)
		;
}

void toolcall_finish(struct toolcall *t, int ended)
{
	CHECK(!t->final);
	t->final = 1;
	t->ended = ended;
	while (t->in.len && t->step(t) == TC_GO)
		;
	if (t->step != tc_content) {
		tc_break(t, t->in.len);
		tc_content(t);
	}
}

unsigned toolcall_count(const struct toolcall *t)
{
	return t->calls;
}

int toolcall_is_full(const struct toolcall *t)
{
	return t->in.full;
}
