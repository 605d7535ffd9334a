/* stop.c - see stop.h. */
#include "stop.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

struct pattern {
	char *bytes;
	uint16_t *fall; /* (len): fall[i] is the length of the longest border of bytes[0..i] */
	size_t len;
};

struct stop_set {
	size_t n;
	struct pattern p[STOP_STRINGS_MAX];
};

struct stop_set *stop_set_new(const char *const *strings, const size_t *lens, size_t n)
{
	CHECK(n <= STOP_STRINGS_MAX);
	struct stop_set *set = mem_zalloc(sizeof *set);
	set->n = n;
	for (size_t j = 0; j < n; j++) {
		struct pattern *p = &set->p[j];
		const char *s = strings[j];
		size_t len = lens[j];
		CHECK(len > 0 && len <= STOP_BYTES_MAX);
		p->bytes = mem_alloc(len + 1);
		memcpy(p->bytes, s, len);
		p->bytes[len] = 0;
		p->len = len;
		p->fall = mem_array(len, sizeof *p->fall);
		for (size_t i = 1, k = 0; i < len; i++) {
			while (k && s[i] != s[k])
				k = p->fall[k - 1];
			k += s[i] == s[k];
			p->fall[i] = (uint16_t)k;
		}
	}
	return set;
}

void stop_set_destroy(struct stop_set **sp)
{
	struct stop_set *s = *sp;
	if (!s)
		return;
	for (size_t i = 0; i < s->n; i++) {
		free(s->p[i].bytes);
		free(s->p[i].fall);
	}
	free(s);
	*sp = NULL;
}

size_t stop_set_bytes(const struct stop_set *s)
{
	size_t n = sizeof *s;
	for (size_t i = 0; i < s->n; i++)
		n += s->p[i].len * (1 + sizeof *s->p[i].fall) + 1;
	return n;
}

const char *stop_string(const struct stop_set *s, size_t i, size_t *ret_len)
{
	*ret_len = s->p[i].len;
	return s->p[i].bytes;
}

/* Feeds one byte. Returns 1 if it completes the string. */
static int pattern_feed(const struct pattern *p, uint16_t *matched, char byte)
{
	size_t k = *matched;
	while (k && byte != p->bytes[k])
		k = p->fall[k - 1];
	k += byte == p->bytes[k];
	*matched = (uint16_t)k;
	return k == p->len;
}

int stop_feed(const struct stop_set *s, struct stop_scan *scan, const char *text, size_t n,
              size_t *ret_end)
{
	for (size_t at = 0; at < n; at++) {
		int found = -1;
		for (size_t i = 0; i < s->n; i++)
			if (pattern_feed(&s->p[i], &scan->matched[i], text[at]) &&
			    (found < 0 || s->p[i].len > s->p[found].len))
				found = (int)i;
		if (found >= 0) {
			*ret_end = at + 1;
			return found;
		}
	}
	return -1;
}

void stop_pass(const struct stop_set *s, struct stop_scan *scan, const char *text, size_t n)
{
	for (size_t at = 0; at < n; at++)
		for (size_t i = 0; i < s->n; i++)
			if (pattern_feed(&s->p[i], &scan->matched[i], text[at]))
				scan->matched[i] = s->p[i].fall[s->p[i].len - 1];
}

size_t stop_held(const struct stop_set *s, const struct stop_scan *scan)
{
	size_t most = 0;
	for (size_t i = 0; i < s->n; i++)
		if (scan->matched[i] > most)
			most = scan->matched[i];
	return most;
}
