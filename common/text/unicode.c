/* unicode.c - see unicode.h. The list of runs is expanded once per process into a flat table, so a
 * look-up is one load. Nothing here can fail. */
#include "text/unicode.h"

#include <pthread.h>
#include <string.h>

enum { CODE_POINTS = 0x110000 };

static unsigned char classes[CODE_POINTS];
static pthread_once_t classes_once = PTHREAD_ONCE_INIT;

static enum unicode_class ascii_class(unsigned char c)
{
	if (c >= 'A' && c <= 'Z')
		return UNICODE_LU;
	if (c >= 'a' && c <= 'z')
		return UNICODE_LL;
	if (c >= '0' && c <= '9')
		return UNICODE_N;
	if (c == ' ' || (c >= '\t' && c <= '\r'))
		return UNICODE_SPACE;
	if (c < ' ' || c == 0x7f)
		return UNICODE_OTHER;
	return strchr("$+<=>^`|~", c) ? UNICODE_S : UNICODE_P;
}

static void classes_build(void)
{
	for (unsigned c = 0; c < 0x80; c++)
		classes[c] = ascii_class((unsigned char)c);
	for (unsigned i = 0; i < unicode_run_count; i++) {
		uint32_t first = unicode_runs[i] >> 8,
				 end = i + 1 < unicode_run_count ? unicode_runs[i + 1] >> 8 : CODE_POINTS;
		memset(classes + first, (int)(unicode_runs[i] & 0xff), end - first);
	}
}

const unsigned char *unicode_class_table(void)
{
	pthread_once(&classes_once, classes_build);
	return classes;
}

/* Returns the number of bytes that follow a lead byte, or -1. lo, hi: bounds of the first of them
 * (the others are 80..BF). */
static int utf8_lead(unsigned char c, unsigned char *lo, unsigned char *hi)
{
	*lo = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
	*hi = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
	return c < 0xc2 ? -1 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : c < 0xf5 ? 3 : -1;
}

int utf8_step(const char *s, size_t n, uint32_t *ret_cp)
{
	const unsigned char *p = (const unsigned char *)s;
	if (p[0] < 0x80) {
		*ret_cp = p[0];
		return 1;
	}
	unsigned char lo, hi;
	int more = utf8_lead(p[0], &lo, &hi);
	if (more < 0)
		return -1;
	uint32_t cp = p[0] & (0x3fu >> more);
	for (int i = 1; i <= more; i++) {
		if ((size_t)i == n)
			return 0;
		if (p[i] < lo || p[i] > hi)
			return -i;
		cp = cp << 6 | (p[i] & 0x3f);
		lo = 0x80;
		hi = 0xbf;
	}
	*ret_cp = cp;
	return more + 1;
}

size_t ascii_span(const char *s, size_t n)
{
	size_t i = 0;
	for (; i + 8 <= n; i += 8) {
		uint64_t w;
		memcpy(&w, s + i, 8);
		if (w & 0x8080808080808080u)
			break;
	}
	while (i < n && !(s[i] & 0x80))
		i++;
	return i;
}

size_t utf8_count(const char *s, size_t n)
{
	size_t chars = 0;
	for (size_t i = 0; i < n; i++)
		chars += ((unsigned char)s[i] & 0xc0) != 0x80;
	return chars;
}

const char *ascii_quote(const char *s, size_t n, char out[ASCII_QUOTE + 1])
{
	size_t i = 0;
	for (; i < n && i < ASCII_QUOTE; i++)
		out[i] = s[i] >= ' ' && s[i] <= '~' ? s[i] : '?';
	out[i] = 0;
	return out;
}
