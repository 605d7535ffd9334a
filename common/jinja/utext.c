/* utext.c - UTF-8 processed by code point, like Python's strings. Ill-formed text is processed byte
 * by byte; nothing here can fail. */
#include "jinja/case_table.h"
#include "jinja/value.h"

#include <string.h>

int cp_step(const char *s, size_t n, uint32_t *ret_cp)
{
	const unsigned char *p = (const unsigned char *)s;
	if (p[0] < 0x80) {
		*ret_cp = p[0];
		return 1;
	}
	int len = p[0] >= 0xc2 && p[0] < 0xe0   ? 2
	          : (p[0] & 0xf0) == 0xe0       ? 3
	          : p[0] >= 0xf0 && p[0] < 0xf5 ? 4
	                                        : 0;
	*ret_cp = 0xfffd;
	if (!len || (size_t)len > n)
		return 1;
	uint32_t cp = p[0] & (0xffu >> (len + 1));
	for (int i = 1; i < len; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 1;
		cp = cp << 6 | (p[i] & 0x3f);
	}
	if ((len == 3 && (cp < 0x800 || (cp & 0xfffff800) == 0xd800)) ||
	    (len == 4 && (cp < 0x10000 || cp > 0x10ffff)))
		return 1;
	*ret_cp = cp;
	return len;
}

int cp_put(char out[4], uint32_t cp)
{
	if (cp < 0x80) {
		out[0] = (char)cp;
		return 1;
	}
	if (cp < 0x800) {
		out[0] = (char)(0xc0 | cp >> 6);
		out[1] = (char)(0x80 | (cp & 0x3f));
		return 2;
	}
	if (cp < 0x10000) {
		out[0] = (char)(0xe0 | cp >> 12);
		out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
		out[2] = (char)(0x80 | (cp & 0x3f));
		return 3;
	}
	out[0] = (char)(0xf0 | cp >> 18);
	out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
	out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
	out[3] = (char)(0x80 | (cp & 0x3f));
	return 4;
}

/* Python's str.isspace for one character. */
int cp_is_space(uint32_t cp)
{
	if (cp < 0x80)
		return cp == ' ' || (cp >= '\t' && cp <= '\r') || (cp >= 0x1c && cp <= 0x1f);
	return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
	       cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

/* Is the number of flips at or below cp odd? */
static int flipped(uint32_t cp, const uint32_t *flips, unsigned n)
{
	unsigned lo = 0, hi = n;
	while (lo < hi) {
		unsigned mid = (lo + hi) / 2;
		if (flips[mid] <= cp)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo % 2;
}

int cp_is_printable(uint32_t cp)
{
	return cp < 0x80 ? cp >= 0x20 && cp < 0x7f : !flipped(cp, printable_flips, printable_flips_n);
}

static uint32_t cp_case(uint32_t cp, const struct case_run *runs, unsigned n)
{
	unsigned lo = 0, hi = n;
	while (lo < hi) {
		unsigned mid = (lo + hi) / 2;
		if (cp > runs[mid].last)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo == n || cp < runs[lo].first || (cp - runs[lo].first) % runs[lo].step)
		return cp;
	return (uint32_t)((int32_t)cp + runs[lo].delta);
}

static const struct case_many *cp_many(uint32_t cp, uint32_t upper)
{
	for (unsigned i = 0; i < case_many_n; i++)
		if (case_many[i].cp == cp && case_many[i].upper == upper)
			return &case_many[i];
	return NULL;
}

int cp_is(enum cp_kind kind, uint32_t cp)
{
	int digit = cp >= '0' && cp <= '9',
		letter = (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z');
	switch (kind) {
	case CP_ALPHA: return cp < 0x80 ? letter : flipped(cp, alpha_flips, alpha_flips_n);
	case CP_ALNUM: return cp < 0x80 ? letter || digit : flipped(cp, alnum_flips, alnum_flips_n);
	case CP_DECIMAL: return cp < 0x80 ? digit : flipped(cp, decimal_flips, decimal_flips_n);
	case CP_DIGIT: return cp < 0x80 ? digit : flipped(cp, digit_flips, digit_flips_n);
	case CP_NUMERIC: return cp < 0x80 ? digit : flipped(cp, numeric_flips, numeric_flips_n);
	case CP_ID_START:
		return cp < 0x80 ? letter || cp == '_' : flipped(cp, id_start_flips, id_start_flips_n);
	case CP_ID_MORE:
		return cp < 0x80 ? letter || digit || cp == '_'
		                 : flipped(cp, id_more_flips, id_more_flips_n);
	case CP_UPPER:
		return cp < 0x80 ? cp >= 'A' && cp <= 'Z'
		                 : (cp_case(cp, case_lower, case_lower_n) != cp) ^
		                       flipped(cp, upper_odd_flips, upper_odd_flips_n);
	case CP_LOWER:
		return cp < 0x80 ? cp >= 'a' && cp <= 'z'
		                 : (cp_case(cp, case_upper, case_upper_n) != cp || cp_many(cp, 1)) ^
		                       flipped(cp, lower_odd_flips, lower_odd_flips_n);
	case CP_TITLE: return cp >= 0x80 && flipped(cp, title_flips, title_flips_n);
	default: return cp_is_space(cp);
	}
}

static int is_cased(uint32_t cp)
{
	char c = (char)cp;
	if (cp < 0x80)
		return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
	return cp_case(cp, case_upper, case_upper_n) != cp ||
	       cp_case(cp, case_lower, case_lower_n) != cp || cp_many(cp, 1) != NULL;
}

/* A Greek sigma at the end of a word has its own lower case. */
static int sigma_is_final(const char *s, size_t at, size_t len)
{
	size_t before = at;
	uint32_t cp;
	while (before && ((unsigned char)s[--before] & 0xc0) == 0x80)
		;
	if (before == at || !(cp_step(s + before, len - before, &cp), is_cased(cp)))
		return 0;
	return at + 2 >= len || !(cp_step(s + at + 2, len - at - 2, &cp), is_cased(cp));
}

void text_case(struct jin *r, struct buf *b, const char *s, size_t len, int upper)
{
	const struct case_run *runs = upper ? case_upper : case_lower;
	unsigned n_runs = upper ? case_upper_n : case_lower_n;
	char out[16];
	for (size_t i = 0; i < len;) {
		uint32_t cp;
		int n = cp_step(s + i, len - i, &cp);
		size_t put = 0;
		if (cp < 0x80) {
			char c = (char)cp;
			out[put++] = upper && c >= 'a' && c <= 'z'    ? (char)(c - 32)
			             : !upper && c >= 'A' && c <= 'Z' ? (char)(c + 32)
			                                              : c;
		} else if (cp == 0xfffd && n == 1) {
			out[put++] = s[i];
		} else if (!upper && cp == 0x3a3) {
			put = (size_t)cp_put(out, sigma_is_final(s, i, len) ? 0x3c2 : 0x3c3);
		} else {
			uint32_t to = cp_case(cp, runs, n_runs);
			const struct case_many *m = to == cp ? cp_many(cp, (uint32_t)upper) : NULL;
			for (int k = 0; m && k < 3 && m->to[k]; k++)
				put += (size_t)cp_put(out + put, m->to[k]);
			if (!m)
				put = (size_t)cp_put(out, to);
		}
		text_add(r, b, out, put);
		i += (size_t)n;
	}
}

size_t text_length(const char *s, size_t len)
{
	size_t n = 0;
	uint32_t cp;
	for (size_t i = 0; i < len; n++)
		i += (size_t)cp_step(s + i, len - i, &cp);
	return n;
}

size_t text_offset(const char *s, size_t len, size_t chars)
{
	size_t i = 0;
	uint32_t cp;
	for (; i < len && chars; chars--)
		i += (size_t)cp_step(s + i, len - i, &cp);
	return i;
}

static int is_one_of(uint32_t cp, const struct jv *chars)
{
	uint32_t c;
	if (!chars)
		return cp_is_space(cp);
	for (size_t i = 0; i < chars->len;) {
		i += (size_t)cp_step(chars->s + i, chars->len - i, &c);
		if (c == cp)
			return 1;
	}
	return 0;
}

void text_strip(const char **s, size_t *len, const struct jv *chars, int left, int right)
{
	uint32_t cp;
	while (left && *len) {
		size_t n = (size_t)cp_step(*s, *len, &cp);
		if (!is_one_of(cp, chars))
			break;
		*s += n;
		*len -= n;
	}
	while (right && *len) {
		size_t at = *len - 1;
		while (at && *len - at < 4 && ((unsigned char)(*s)[at] & 0xc0) == 0x80)
			at--;
		if (at + (size_t)cp_step(*s + at, *len - at, &cp) != *len) {
			at = *len - 1;
			cp_step(*s + at, 1, &cp);
		}
		if (!is_one_of(cp, chars))
			break;
		*len = at;
	}
}
