/* cuts.c - see cuts.h. Pairs of ASCII characters are in a small exact table, all others in a bit
 * table indexed by their hash. */
#include "text/cuts.h"
#include "text/unicode.h"

static uint32_t bit_of(uint32_t a, uint32_t b)
{
	return (a * 0x9e3779b1u ^ (b * 0x85ebca77u + 0x27d4eb2fu)) >> (32 - CUTS_BITS);
}

static int may_be_adjacent(const struct text_cuts *c, uint32_t a, uint32_t b)
{
	if (a < 0x80 && b < 0x80)
		return (c->ascii[a][b >> 6] >> (b & 63) & 1) != 0;
	uint32_t bit = bit_of(a, b);
	return (c->pairs[bit >> 6] >> (bit & 63) & 1) != 0;
}

/* Text of a model file may be ill-formed. Such a byte counts as a character beyond U+10FFFF, which
 * well-formed text cannot contain. */
static size_t step(const char *text, size_t len, uint32_t *ret_cp)
{
	int n = utf8_step(text, len, ret_cp);
	if (n > 0)
		return (size_t)n;
	*ret_cp = 0x110000 + (unsigned char)*text;
	return 1;
}

void cuts_add(struct text_cuts *c, const char *text, size_t len)
{
	uint32_t a = 0, b;
	for (size_t i = 0, n; i < len; i += n, a = b) {
		n = step(text + i, len - i, &b);
		if (!i)
			continue;
		uint32_t bit = bit_of(a, b);
		if (a < 0x80 && b < 0x80)
			c->ascii[a][b >> 6] |= (uint64_t)1 << (b & 63);
		else
			c->pairs[bit >> 6] |= (uint64_t)1 << (bit & 63);
	}
}

size_t cuts_next(const struct text_cuts *c, const char *text, size_t len)
{
	uint32_t a, b;
	size_t i = step(text, len, &a);
	for (size_t n; i < len; i += n, a = b) {
		n = step(text + i, len - i, &b);
		if (!may_be_adjacent(c, a, b))
			break;
	}
	return i;
}
