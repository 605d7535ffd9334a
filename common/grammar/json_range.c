/* json_range.c - builds networks of digits for numbers between exact bounds. Numbers have no
 * leading zeros; each length is handled separately, digit by digit along the bounds. Where no
 * number is left, a builder returns NFA_DEAD, and what json.h declares returns 0. */
#include "json.h"

#include <stdio.h>
#include <string.h>

#define NO_END UINT64_MAX

static uint32_t digit(struct nfa *f, char from, char to, uint32_t next)
{
	struct byte_set s = {{0}};
	byte_add(&s, (unsigned char)from, (unsigned char)to);
	return nfa_set(f, &s, next);
}

static uint32_t digits(struct nfa *f, uint32_t next)
{
	uint32_t loop = nfa_loop(f);
	nfa_loop_set(f, loop, digit(f, '0', '9', loop), next);
	return loop;
}

static unsigned decimal(uint64_t v, char out[24])
{
	return (unsigned)snprintf(out, 24, "%llu", (unsigned long long)v);
}

/* From a to b inclusive; b NO_END: no upper bound. */
static uint32_t between(struct nfa *f, uint64_t a, uint64_t b, uint32_t next)
{
	char lo[24], hi[24], x[24], y[24];
	uint32_t way = NFA_DEAD;
	if (a > b)
		return NFA_DEAD;
	unsigned from = decimal(a, lo), to = b == NO_END ? from : decimal(b, hi);
	for (unsigned n = from; n <= to; n++) {
		memset(x, '0', sizeof x);
		memset(y, '9', sizeof y);
		x[0] = n > 1 ? '1' : '0';
		if (n == from)
			memcpy(x, lo, n);
		if (n == to && b != NO_END)
			memcpy(y, hi, n);
		way = nfa_either(f,
		                 nfa_between(f, (unsigned char *)x, (unsigned char *)y, n, '0', '9', next),
		                 way);
	}
	if (b == NO_END) { /* all longer numbers as well */
		uint32_t tail = digits(f, next);
		for (unsigned i = 0; i < from; i++)
			tail = digit(f, '0', '9', tail);
		way = nfa_either(f, digit(f, '1', '9', tail), way);
	}
	return way;
}

static uint64_t magnitude(int64_t v)
{
	return v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
}

uint32_t json_integer_in(struct nfa *f, const struct json_bounds *b, uint32_t next)
{
	uint32_t way = NFA_DEAD;
	if (b->has_lo && b->has_hi && b->lo > b->hi)
		return 0;
	if (!b->has_hi || b->hi >= 0)
		way = between(f, b->has_lo && b->lo > 0 ? (uint64_t)b->lo : 0,
		              b->has_hi ? (uint64_t)b->hi : NO_END, next);
	if (!b->has_lo || b->lo < 0) {
		uint32_t minus = between(f, b->has_hi && b->hi < 0 ? magnitude(b->hi) : 1,
		                         b->has_lo ? magnitude(b->lo) : NO_END, next);
		way = nfa_either(f, minus == NFA_DEAD ? NFA_DEAD : nfa_byte(f, '-', minus), way);
	}
	return way == NFA_DEAD ? 0 : way;
}

/* --- with fractions ------------------------------------------------------
 *
 * places: at most so many digits after the point; 0: any number. */

static uint32_t fraction_unit(struct nfa *f, void *last, uint32_t next)
{
	return digit(f, '0', *(const char *)last, next);
}

/* One digit of '0' to last, and more of them; or nothing. */
static uint32_t fraction_to(struct nfa *f, char last, uint32_t places, uint32_t next)
{
	uint32_t more = nfa_repeat(f, fraction_unit, &last, 0, places ? places - 1 : NFA_UNBOUNDED,
	                           next);
	return nfa_split(f, nfa_byte(f, '.', digit(f, '0', last, more)), next);
}

static uint32_t any_fraction(struct nfa *f, uint32_t places, uint32_t next)
{
	return fraction_to(f, '9', places, next);
}

static uint32_t zero_fraction(struct nfa *f, uint32_t places, uint32_t next)
{
	return fraction_to(f, '0', places, next);
}

static uint32_t some_fraction(struct nfa *f, uint32_t places, uint32_t next) /* greater than 0 */
{
	char last = '9';
	uint32_t some = places ? 0 : nfa_loop(f);
	for (uint32_t more = 0; more < places && !f->err.code; more++) {
		uint32_t tail = nfa_repeat(f, fraction_unit, &last, 0, more, next),
				 one = digit(f, '1', '9', tail);
		some = more ? nfa_split(f, one, nfa_byte(f, '0', some)) : one;
	}
	if (!places)
		nfa_loop_set(f, some, nfa_byte(f, '0', some), digit(f, '1', '9', digits(f, next)));
	return nfa_byte(f, '.', some);
}

/* From a to b, without a sign. */
static uint32_t size_between(struct nfa *f, uint64_t a, int open_a, uint64_t b, int open_b,
                             uint32_t places, uint32_t next)
{
	if (a > b || (a == b && (open_a || open_b)))
		return NFA_DEAD;
	if (a == b)
		return between(f, a, a, zero_fraction(f, places, next));
	uint32_t way = between(f, a, a,
	                       open_a ? some_fraction(f, places, next) : any_fraction(f, places, next));
	if (b == NO_END)
		return nfa_either(f, between(f, a + 1, b, any_fraction(f, places, next)), way);
	if (b - a > 1)
		way = nfa_either(f, between(f, a + 1, b - 1, any_fraction(f, places, next)), way);
	return open_b ? way : nfa_either(f, between(f, b, b, zero_fraction(f, places, next)), way);
}

uint32_t json_number_in(struct nfa *f, const struct json_bounds *b, uint32_t next)
{
	uint32_t way = NFA_DEAD;
	if (!b->has_hi || b->hi >= 0) {
		int lo = b->has_lo && b->lo >= 0;
		way = size_between(f, lo ? (uint64_t)b->lo : 0, lo && b->open_lo,
		                   b->has_hi ? (uint64_t)b->hi : NO_END, b->has_hi && b->open_hi, b->places,
		                   next);
	}
	if (!b->has_lo || b->lo < 0) {
		int hi = b->has_hi && b->hi < 0;
		uint32_t minus = size_between(f, hi ? magnitude(b->hi) : 0, hi ? b->open_hi : 1,
		                              b->has_lo ? magnitude(b->lo) : NO_END,
		                              b->has_lo && b->open_lo, b->places, next);
		way = nfa_either(f, minus == NFA_DEAD ? NFA_DEAD : nfa_byte(f, '-', minus), way);
	}
	return way == NFA_DEAD ? 0 : way;
}
