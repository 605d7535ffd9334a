/* toolcall_generic.c - the form that is asked of a model whose template shows none, as the whole
 * answer: {"tool_calls": [{"name": N, "arguments": {..}}, ..]} or {"response": "text"}. All else
 * that it writes is content. chat_generic.h tells the model so. */
#include "text/toolcall_int.h"

#include <stdlib.h>
#include <string.h>

/* --- the text of a response ---------------------------------------------- */

static int put_utf8(uint32_t cp, char *out)
{
	if (cp < 0x80) {
		out[0] = (char)cp;
		return 1;
	}
	int n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
	for (int i = n - 1; i > 0; i--, cp >>= 6)
		out[i] = (char)(0x80 | (cp & 0x3F));
	out[0] = (char)((0xF00 >> n & 0xFF) | cp);
	return n;
}

/* The four hexadecimal digits of \uXXXX at s. -1: they are none. */
static int32_t unit_at(const char *s, size_t n)
{
	char digits[5] = {0};
	if (n < 6 || s[0] != '\\' || s[1] != 'u')
		return -1;
	memcpy(digits, s + 2, 4);
	return strspn(digits, "0123456789abcdefABCDEF") == 4 ? (int32_t)strtol(digits, NULL, 16) : -1;
}

/* Decodes the escape at s into out (4 bytes); *ret_n: bytes of it. Returns the bytes read; 0: more
 * text is needed; -1: it is no escape. Half of a pair becomes U+FFFD. */
static int decode(const char *s, size_t n, char *out, int *ret_n)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	const char *simple = n > 1 && s[1] ? strchr(from, s[1]) : NULL;
	if (simple) {
		*out = to[simple - from];
		*ret_n = 1;
		return 2;
	}
	if (n < 2 || (s[1] == 'u' && n < 6))
		return 0;
	int32_t high = unit_at(s, n), low = -1;
	if (high < 0)
		return -1;
	if (high >= 0xD800 && high < 0xDC00) {
		if (n < 12 && memcmp(s + 6, "\\u", n - 6 < 2 ? n - 6 : 2) == 0)
			return 0;
		low = unit_at(s + 6, n - 6);
	}
	int is_pair = low >= 0xDC00 && low < 0xE000, is_half = high >= 0xD800 && high < 0xE000;
	*ret_n = put_utf8(is_pair ? 0x10000 + (((uint32_t)high & 0x3FF) << 10) + ((uint32_t)low & 0x3FF)
	                  : is_half ? 0xFFFD
	                            : (uint32_t)high,
	                  out);
	return is_pair ? 12 : 6;
}

/* Within the string. */
static enum tc_go response(struct toolcall *t)
{
	while (t->at < t->in.len) {
		const char *s = t->in.data + t->at;
		size_t left = t->in.len - t->at, n = 0;
		char text[4];
		int len = 0;
		while (n < left && s[n] != '"' && s[n] != '\\')
			n++;
		tc_say(t, s, n);
		t->start = t->at += n;
		if (n == left)
			break;
		if (s[n] == '"') {
			t->start = ++t->at;
			t->after_call = 1;
			t->closer = 0;
			t->step = tc_close;
			return TC_GO;
		}
		int read = decode(s + n, left - n, text, &len);
		if (read == 0)
			return TC_MORE;
		if (read < 0)
			tc_say(t, s + n, 1);
		else
			tc_say(t, text, (size_t)len);
		t->start = t->at += read < 0 ? 1 : (size_t)read;
	}
	return TC_MORE;
}

/* --- the head ------------------------------------------------------------ */

enum tc_go tc_generic_open(struct toolcall *t)
{
	struct tc_cursor c;
	tc_cursor_init(&c, t, t->at);
	int is_object = tc_cursor_literal(&c, "{");
	tc_cursor_space(&c);
	int calls = is_object && tc_cursor_literal(&c, "\"tool_calls\"");
	if (!calls && !(is_object && tc_cursor_literal(&c, "\"response\"")))
		return tc_cursor_mismatch(t, &c);
	tc_cursor_space(&c);
	if (!tc_cursor_literal(&c, ":"))
		return tc_cursor_mismatch(t, &c);
	tc_cursor_space(&c);
	if (tc_cursor_peek(&c) != (calls ? '[' : '"'))
		return tc_cursor_mismatch(t, &c);
	t->is_bare = 0;
	t->at = c.at;
	if (!calls)
		t->start = ++t->at;
	t->step = calls ? tc_json_open : response;
	return TC_GO;
}
