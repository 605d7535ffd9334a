/* points.c - see points.h. */
#include "points.h"

#include <stdlib.h>
#include <string.h>

/* --- sets ---------------------------------------------------------------- */

int points_add(struct point_set *s, uint32_t lo, uint32_t hi)
{
	if (s->n == POINTS_RANGES_MAX)
		return -1;
	s->r[s->n++] = (struct point_range){lo, hi};
	return 0;
}

static int range_cmp(const void *a, const void *b)
{
	const struct point_range *x = a, *y = b;
	return (x->lo > y->lo) - (x->lo < y->lo);
}

void points_merge(struct point_set *s)
{
	uint32_t n = 0;
	qsort(s->r, s->n, sizeof *s->r, range_cmp);
	for (uint32_t i = 0; i < s->n; i++) {
		if (n && s->r[i].lo <= s->r[n - 1].hi + 1)
			s->r[n - 1].hi = s->r[i].hi > s->r[n - 1].hi ? s->r[i].hi : s->r[n - 1].hi;
		else
			s->r[n++] = s->r[i];
	}
	s->n = n;
}

void points_negate(struct point_set *s)
{
	uint32_t from = 0, n = 0;
	struct point_set was = *s;
	for (uint32_t i = 0; i < was.n; i++) {
		if (was.r[i].lo > from)
			s->r[n++] = (struct point_range){from, was.r[i].lo - 1};
		from = was.r[i].hi + 1;
	}
	if (from <= POINT_LAST)
		s->r[n++] = (struct point_range){from, POINT_LAST};
	s->n = n;
}

int points_intersect(struct point_set *s, const struct point_set *with)
{
	struct point_set was = *s;
	uint32_t n = 0;
	for (uint32_t i = 0, k = 0; i < was.n && k < with->n;) {
		uint32_t lo = was.r[i].lo > with->r[k].lo ? was.r[i].lo : with->r[k].lo,
				 hi = was.r[i].hi < with->r[k].hi ? was.r[i].hi : with->r[k].hi;
		if (lo <= hi && n == sizeof s->r / sizeof *s->r)
			return -1;
		if (lo <= hi)
			s->r[n++] = (struct point_range){lo, hi};
		if (was.r[i].hi < with->r[k].hi)
			i++;
		else
			k++;
	}
	s->n = n;
	return 0;
}

/* --- networks ------------------------------------------------------------ */

/* Control characters, quotes and backslashes inside a JSON string: as their short escape if they
 * have one, else as \u00XX. */
static uint32_t build_escaped(struct nfa *f, const struct byte_set *s, uint32_t next)
{
	static const char shorts[] = "\"\"\\\\\bb\ff\nn\rr\tt", digit[] = "0123456789abcdefABCDEF";
	struct byte_set letters = {{0}}, low[2] = {{{0}}, {{0}}};
	int any = 0, some[2] = {0, 0};
	for (unsigned b = 0; b < 128; b++) {
		if (!byte_has(s, b))
			continue;
		const char *at = b ? strchr(shorts, (int)b) : NULL;
		while (at && (at - shorts) % 2)
			at = strchr(at + 1, (int)b);
		if (at) {
			byte_add(&letters, (unsigned char)at[1], (unsigned char)at[1]);
			any = 1;
			continue;
		}
		some[b >> 4] = 1;
		for (unsigned i = 0; digit[i]; i++)
			if ((i < 16 ? i : i - 6) == (b & 15))
				byte_add(&low[b >> 4], (unsigned char)digit[i], (unsigned char)digit[i]);
	}
	uint32_t way = any ? nfa_set(f, &letters, next) : 0;
	for (unsigned h = 0; h < 2; h++)
		if (some[h]) {
			uint32_t part = nfa_bytes(f, h ? "u001" : "u000", 4, nfa_set(f, &low[h], next));
			way = way ? nfa_split(f, way, part) : part;
		}
	return nfa_byte(f, '\\', way);
}

uint32_t points_build(struct nfa *f, const struct point_range *r, uint32_t n, int json,
                      uint32_t next)
{
	struct byte_set plain = {{0}}, escaped = {{0}};
	int any_plain = 0, any_escaped = 0;
	uint32_t way = 0;
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t b = r[i].lo; b <= r[i].hi && b < 128; b++) {
			int e = json && (b < 32 || b == '"' || b == '\\');
			byte_add(e ? &escaped : &plain, b, b);
			any_escaped |= e;
			any_plain |= !e;
		}
		if (r[i].hi >= 128) {
			uint32_t part = nfa_points(f, r[i].lo < 128 ? 128 : r[i].lo, r[i].hi, next);
			way = way && part ? nfa_split(f, way, part) : way + part;
		}
	}
	if (any_escaped) {
		uint32_t part = build_escaped(f, &escaped, next);
		way = way ? nfa_split(f, part, way) : part;
	}
	if (any_plain) {
		uint32_t part = nfa_set(f, &plain, next);
		way = way ? nfa_split(f, part, way) : part;
	}
	if (!way && !f->err.code)
		err_set(&f->err, ERR_INVALID, "a [...] contains only surrogates");
	return way;
}

/* --- UTF-8 --------------------------------------------------------------- */

unsigned point_take(const char *text, size_t len, uint32_t *ret)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	const unsigned char *s = (const unsigned char *)text;
	unsigned n = !len                          ? 0
	             : s[0] < 0x80                 ? 1
	             : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
	             : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
	             : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
	                                           : 0;
	if (!n || len < n)
		return 0;
	uint32_t c = n == 1 ? s[0] : s[0] & (0xffu >> (n + 1));
	for (unsigned i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (s[i] & 63);
	}
	*ret = c;
	return c >= least[n] && c <= POINT_LAST && (c < 0xd800 || c >= 0xe000) ? n : 0;
}

unsigned point_put(uint32_t c, unsigned char out[POINT_BYTES_MAX])
{
	if (c < 0x80)
		return out[0] = (unsigned char)c, 1;
	if (c < 0x800)
		return out[0] = (unsigned char)(0xc0 | c >> 6), out[1] = (unsigned char)(0x80 | (c & 63)),
		       2;
	if (c < 0x10000)
		return out[0] = (unsigned char)(0xe0 | c >> 12),
		       out[1] = (unsigned char)(0x80 | (c >> 6 & 63)),
		       out[2] = (unsigned char)(0x80 | (c & 63)), 3;
	out[0] = (unsigned char)(0xf0 | c >> 18), out[1] = (unsigned char)(0x80 | (c >> 12 & 63)),
	out[2] = (unsigned char)(0x80 | (c >> 6 & 63));
	out[3] = (unsigned char)(0x80 | (c & 63));
	return 4;
}
