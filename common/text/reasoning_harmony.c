/* reasoning_harmony.c - the messages of the harmony format, see reasoning.h and harmony.h. */
#include "text/harmony.h"
#include "text/reasoning_int.h"

#include <string.h>

/* Looks at the last message of the prompt if that has a head and no end. */
enum reasoning_at reasoning_last_message(const char *s, size_t len)
{
	struct harmony_head h = {0};
	size_t begin = len, n;
	for (size_t at = len; at-- > 0;) {
		enum harmony_mark m = harmony_mark_at(s + at, len - at, 1, &n);
		if (m == HARMONY_ENDS)
			break;
		if (m == HARMONY_STARTS || m == HARMONY_CHANNEL)
			begin = at;
		if (m == HARMONY_STARTS)
			break;
	}
	if (begin == len || harmony_head_read(s + begin, len - begin, 1, &h) <= 0 || !h.whole)
		return REASONING_BEFORE;
	return h.kind == HARMONY_THOUGHTS ? REASONING_WITHIN_THOUGHTS : REASONING_WITHIN_ANSWER;
}

static void give_message(struct reasoning *r, size_t to)
{
	int thoughts = r->part == MESSAGE_THOUGHTS;
	if (to > r->start) {
		if (r->gap)
			r->sink(r->arg, thoughts, "\n\n", 2);
		r->gap = 0;
		r->said |= r->part == MESSAGE_CALL ? 0 : 1u << thoughts;
		r->sink(r->arg, thoughts, r->in.data + r->start, to - r->start);
	}
	r->start = to;
}

/* Text without a head before it belongs to the answer. */
static int message_head(struct reasoning *r)
{
	static const enum reasoning_part parts[] = {
		[HARMONY_THOUGHTS] = MESSAGE_FIRST,
		[HARMONY_ANSWER] = MESSAGE_ANSWER,
		[HARMONY_CALL] = MESSAGE_CALL,
	};
	struct harmony_head h;
	size_t at = reasoning_skip_space(r), n;
	if (at == r->in.len)
		return 0;
	enum harmony_mark m = harmony_mark_at(r->in.data + at, r->in.len - at, r->final, &n);
	if (m == HARMONY_ENDS) {
		r->start = at + n;
		return 1;
	}
	int read = harmony_head_read(r->in.data + at, r->in.len - at, r->final, &h);
	if (read == 0 || (read < 0 && m == HARMONY_PART))
		return 0;
	r->part = read > 0 ? parts[h.kind] : MESSAGE_ANSWER;
	r->gap = r->part == MESSAGE_CALL ? 0 : r->said >> (r->part == MESSAGE_FIRST) & 1;
	if (r->part == MESSAGE_CALL) {
		tc_json_init(&r->arguments);
		r->reads_json = 1;
		r->start = at;
		if (r->in.data[at] != '<') /* toolcall.h recognises the head of a call by its marker */
			r->sink(r->arg, 0, "<|start|>", strlen("<|start|>"));
		give_message(r, at + h.len);
	} else if (read > 0) {
		r->start = at + h.len;
	}
	return 1;
}

/* A marker inside a string of a call's arguments is text. But the string may be unterminated: an
 * end marker followed by a complete head with a channel ends the message. */
static enum harmony_mark mark_in_string(const struct reasoning *r, size_t at, enum harmony_mark m,
                                        size_t len)
{
	const char *s = r->in.data + at;
	size_t n = r->in.len - at;
	struct harmony_head h;
	if (m != HARMONY_ENDS)
		return m == HARMONY_PART ? m : HARMONY_TEXT;
	while (len < n && len < HARMONY_HEAD_MAX && text_is_space(s[len]))
		len++;
	int read = harmony_head_read(s + len, n - len, r->final, &h);
	if (read == 0)
		return HARMONY_PART;
	return read > 0 && h.whole && memmem(s + len, h.len, "<|channel|>", strlen("<|channel|>"))
	           ? HARMONY_ENDS
	           : HARMONY_TEXT;
}

/* The marker at `at`. If the arguments up to here are not valid JSON, a marker cannot be inside one
 * of their strings. */
static enum harmony_mark body_mark(struct reasoning *r, size_t at, size_t *ret_len)
{
	char c = r->in.data[at];
	if (r->reads_json)
		r->reads_json = !(tc_json_byte(&r->arguments, (unsigned char)c) &
		                  (TC_JSON_BAD | TC_JSON_END));
	if (c != '<')
		return HARMONY_TEXT;
	enum harmony_mark m = harmony_mark_at(r->in.data + at, r->in.len - at, r->final, ret_len);
	return r->reads_json ? mark_in_string(r, at, m, *ret_len) : m;
}

/* keep: end of the message's text; next: position after the marker that ends it. */
static void end_message(struct reasoning *r, size_t keep, size_t next)
{
	int breaks = r->part == MESSAGE_CALL && r->reads_json;
	give_message(r, r->part == MESSAGE_CALL && !breaks ? next : keep);
	if (breaks)
		r->sink(r->arg, 0, HARMONY_BREAK, strlen(HARMONY_BREAK));
	r->reads_json = 0;
	r->start = next;
	r->part = HEAD;
}

/* Emits text up to the marker that ends the message or starts the next. White space at the end of
 * reasoning is dropped. */
static int message_body(struct reasoning *r)
{
	int trims = r->part == MESSAGE_THOUGHTS;
	size_t at = trims ? reasoning_skip_space(r) : r->start, keep = r->start, n = 0;
	while (at < r->in.len) {
		if (trims && text_is_space(r->in.data[at])) {
			at++;
			continue;
		}
		enum harmony_mark m = body_mark(r, at, &n);
		if (m == HARMONY_PART)
			break;
		if (m != HARMONY_TEXT) {
			end_message(r, keep, m == HARMONY_ENDS ? at + n : at);
			return 1;
		}
		keep = ++at;
	}
	give_message(r, keep);
	r->space = at;
	return 0;
}

enum reasoning_part reasoning_message_part(enum reasoning_at at)
{
	static const enum reasoning_part parts[] = {
		[REASONING_BEFORE] = HEAD,
		[REASONING_WITHIN_THOUGHTS] = MESSAGE_FIRST,
		[REASONING_WITHIN_ANSWER] = MESSAGE_ANSWER,
	};
	return parts[at];
}

int reasoning_message_step(struct reasoning *r)
{
	if (r->part == HEAD)
		return message_head(r);
	if (r->part != MESSAGE_FIRST)
		return message_body(r);
	r->start = reasoning_skip_space(r);
	r->part = r->start < r->in.len ? MESSAGE_THOUGHTS : MESSAGE_FIRST;
	return r->part == MESSAGE_THOUGHTS;
}
