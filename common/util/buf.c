/* buf.c - see buf.h. */
#include "util/buf.h"
#include "util/err.h"
#include "util/mem.h"
#include "util/quota.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Larger buffers grow by a quarter at a time, which bounds the unused part. */
#define GROW_DOUBLE_MAX (1u << 20)

void buf_init(struct buf *b, size_t limit)
{
	buf_init_quota(b, limit, NULL);
}

void buf_init_quota(struct buf *b, size_t limit, struct quota *q)
{
	memset(b, 0, sizeof *b);
	b->limit = limit;
	b->quota = q;
}

void buf_fini(struct buf *b)
{
	if (b->quota)
		quota_give(b->quota, b->size);
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

static int no_room(struct buf *b)
{
	b->full = 1;
	return ERR_FULL;
}

static int buf_grow(struct buf *b, size_t need)
{
	size_t want = b->size ? b->size : 64;
	char *data;
	while (want < need)
		want += want < GROW_DOUBLE_MAX ? want : want / 4;
	if (b->limit && want > b->limit + 1)
		want = b->limit + 1;
	if (b->quota)
		data = quota_grow(b->quota, b->data, b->size, want, 1);
	else
		data = b->limit ? mem_try_grow(b->data, want, 1) : mem_grow(b->data, want, 1);
	if (!data)
		return no_room(b);
	b->data = data;
	b->size = want;
	return 0;
}

static inline int buf_room(struct buf *b, size_t n)
{
	if (b->full || (b->limit && (n > b->limit || b->len > b->limit - n)))
		return no_room(b);
	return b->len + n < b->size ? 0 : buf_grow(b, b->len + n + 1);
}

int buf_reserve(struct buf *b, size_t n)
{
	return buf_room(b, n);
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
	size_t room = b->full ? 0 : b->size - b->len;
	va_start(ap, fmt);
	va_copy(again, ap);
	int n = vsnprintf(room ? b->data + b->len : NULL, room, fmt, ap);
	va_end(ap);
	int r = n < 0 ? ERR_INVALID : buf_room(b, (size_t)n);
	if (r == 0 && (size_t)n >= room)
		vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
	va_end(again);
	if (r == 0)
		b->len += (size_t)n;
	else if (room)
		b->data[b->len] = 0;
	return r;
}

/* Length of the well-formed UTF-8 sequence at s, 0 if there is none (Unicode 16, table 3-7). */
static size_t utf8_len(const unsigned char *s, size_t n)
{
	if (s[0] < 0x80)
		return 1;
	size_t len = s[0] >= 0xC2 && s[0] <= 0xDF   ? 2
	             : (s[0] & 0xF0) == 0xE0        ? 3
	             : s[0] >= 0xF0 && s[0] <= 0xF4 ? 4
	                                            : 0;
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

int buf_add_uint(struct buf *b, uint64_t v)
{
	char text[20];
	size_t at = sizeof text;
	do
		text[--at] = (char)('0' + v % 10);
	while (v /= 10);
	return buf_add(b, text + at, sizeof text - at);
}

enum { JSON_SELF, JSON_CONTROL, JSON_LONG }; /* any other value: the letter after the backslash */

static inline unsigned char json_kind(unsigned char c)
{
	static const unsigned char kinds[128] = {
		[0 ... 7] = JSON_CONTROL,
		[0x0B] = JSON_CONTROL,
		[0x0E ... 0x1F] = JSON_CONTROL,
		[0x7F] = JSON_CONTROL,
		['\b'] = 'b',
		['\t'] = 't',
		['\n'] = 'n',
		['\f'] = 'f',
		['\r'] = 'r',
		['"'] = '"',
		['\\'] = '\\',
	};
	return c < 0x80 ? kinds[c] : JSON_LONG;
}

static void add_control(struct buf *b, unsigned char c)
{
	static const char hex[] = "0123456789abcdef";
	char text[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
	buf_add(b, text, sizeof text);
}

int buf_add_json_part(struct buf *b, const char *str, size_t n)
{
	const unsigned char *s = (const unsigned char *)str;
	for (size_t i = 0; i < n;) {
		size_t run = i, len;
		unsigned char kind = JSON_SELF;
		while (run < n && ((kind = json_kind(s[run])) == JSON_SELF))
			run++;
		if (run > i)
			buf_add(b, s + i, run - i);
		if ((i = run) == n)
			break;
		if (kind == JSON_CONTROL) {
			add_control(b, s[i++]);
		} else if (kind != JSON_LONG) {
			char text[2] = {'\\', (char)kind};
			buf_add(b, text, 2);
			i++;
		} else if ((len = utf8_len(s + i, n - i))) {
			buf_add(b, s + i, len);
			i += len;
		} else {
			buf_adds(b, "\xEF\xBF\xBD");
			i++;
		}
	}
	return b->full ? ERR_FULL : 0;
}

int buf_add_json(struct buf *b, const char *s, size_t n)
{
	buf_addc(b, '"');
	buf_add_json_part(b, s, n);
	return buf_addc(b, '"');
}

size_t buf_json_piece(const char *s, size_t n, size_t most)
{
	if (n <= most)
		return n;
	size_t at = most;
	while (most - at < 3 && ((unsigned char)s[at] & 0xC0) == 0x80)
		at--;
	return ((unsigned char)s[at] & 0xC0) == 0x80 ? most : at;
}
