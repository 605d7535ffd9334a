/* buf.c - see buf.h. */
#include "util/buf.h"
#include "util/err.h"
#include "util/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_init(struct buf *b, size_t limit)
{
	memset(b, 0, sizeof *b);
	b->limit = limit;
}

void buf_fini(struct buf *b)
{
	free(b->data);
	memset(b, 0, sizeof *b);
}

void buf_reset(struct buf *b)
{
	b->len = 0;
	b->full = 0;
	if (b->data)
		b->data[0] = 0;
}

static int buf_room(struct buf *b, size_t n)
{
	if (b->full || (b->limit && (n > b->limit || b->len > b->limit - n))) {
		b->full = 1;
		return ERR_FULL;
	}
	if (b->len + n + 1 > b->size) {
		size_t want = b->size ? b->size * 2 : 128;
		while (want < b->len + n + 1)
			want *= 2;
		b->data = mem_grow(b->data, want, 1);
		b->size = want;
	}
	return 0;
}

int buf_add(struct buf *b, const void *p, size_t n)
{
	if (buf_room(b, n) < 0)
		return ERR_FULL;
	if (n)
		memcpy(b->data + b->len, p, n);
	b->len += n;
	b->data[b->len] = 0;
	return 0;
}

int buf_adds(struct buf *b, const char *s)
{
	return buf_add(b, s, strlen(s));
}

int buf_addc(struct buf *b, char c)
{
	return buf_add(b, &c, 1);
}

int buf_printf(struct buf *b, const char *fmt, ...)
{
	va_list ap, again;
	va_start(ap, fmt);
	va_copy(again, ap);
	int n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	int r = n < 0 ? ERR_INVALID : buf_room(b, (size_t)n);
	if (r == 0) {
		vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
		b->len += (size_t)n;
	}
	va_end(again);
	return r;
}

/* Length of the well-formed UTF-8 sequence at s, 0 if there is none (Unicode 16, table 3-7). */
static size_t utf8_len(const unsigned char *s, size_t n)
{
	if (s[0] < 0x80)
		return 1;
	size_t len = s[0] >= 0xC2 && s[0] <= 0xDF ? 2 : (s[0] & 0xF0) == 0xE0 ? 3 : s[0] >= 0xF0 && s[0] <= 0xF4 ? 4 : 0;
	if (!len || n < len)
		return 0;
	unsigned char lo = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
	unsigned char hi = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
	if (s[1] < lo || s[1] > hi)
		return 0;
	for (size_t i = 2; i < len; i++)
		if ((s[i] & 0xC0) != 0x80)
			return 0;
	return len;
}

int buf_add_json(struct buf *b, const char *str, size_t n)
{
	static const char esc[] = "\b\t\n\v\f\r", let[] = "btn?fr";
	const unsigned char *s = (const unsigned char *)str;
	buf_addc(b, '"');
	for (size_t i = 0; i < n;) {
		size_t run = i;
		while (run < n && s[run] >= 0x20 && s[run] < 0x7F && s[run] != '"' && s[run] != '\\')
			run++;
		if (run > i)
			buf_add(b, s + i, run - i);
		if ((i = run) == n)
			break;
		const char *e = s[i] ? strchr(esc, s[i]) : NULL;
		size_t len;
		if (s[i] == '"' || s[i] == '\\')
			buf_printf(b, "\\%c", s[i++]);
		else if (e && s[i] != '\v')
			buf_printf(b, "\\%c", let[e - esc]), i++;
		else if (s[i] < 0x20 || s[i] == 0x7F)
			buf_printf(b, "\\u%04x", s[i++]);
		else if ((len = utf8_len(s + i, n - i)))
			buf_add(b, s + i, len), i += len;
		else
			buf_adds(b, "\xEF\xBF\xBD"), i++;
	}
	return buf_addc(b, '"');
}
