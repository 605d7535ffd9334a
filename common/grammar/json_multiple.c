/* json_multiple.c - builds networks of digits for whole multiples of a number between bounds: a
 * node for each remainder of the digits so far, and for each number of digits that must follow. */
#include "json.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS 20u
#define NO_END UINT64_MAX
#define UNSEEN (NFA_DEAD - 1)

struct multiple {
	struct nfa *f;
	uint32_t of, next;
	uint32_t *loop;     /* (of) any digits that lead to remainder 0 */
	uint32_t *after[2]; /* (DIGITS, of) so many digits; [1]: and then a loop */
};

/* One digit; target[d] follows the digit d. */
static uint32_t one_digit(struct nfa *f, const uint32_t target[10])
{
	uint32_t way = NFA_DEAD;
	for (unsigned d = 0; d < 10; d++) {
		struct byte_set s = {{0}};
		unsigned first = 0;
		while (target[first] != target[d])
			first++;
		if (target[d] == NFA_DEAD || first < d)
			continue;
		for (unsigned k = d; k < 10; k++)
			if (target[k] == target[d])
				byte_add(&s, '0' + k, '0' + k);
		uint32_t part = nfa_set(f, &s, target[d]);
		way = nfa_either(f, way, part);
	}
	return way;
}

static uint32_t free_digits(struct multiple *m, int loops, unsigned n, uint32_t rest)
{
	uint32_t target[10];
	if (n == 0 && loops)
		return m->loop[rest];
	if (n == 0)
		return rest == 0 ? m->next : NFA_DEAD;
	uint32_t *at = &m->after[loops][n * m->of + rest];
	if (*at == UNSEEN && !m->f->err.code) {
		for (unsigned d = 0; d < 10; d++)
			target[d] = free_digits(m, loops, n - 1, (rest * 10 + d) % m->of);
		*at = one_digit(m->f, target);
	}
	return *at;
}

/* n digits between lo and hi; NULL: no bound on this side. */
static uint32_t bound_digits(struct multiple *m, const char *lo, const char *hi, unsigned n,
                             uint32_t rest)
{
	uint32_t target[10];
	if (n == 0 || (!lo && !hi))
		return free_digits(m, 0, n, rest);
	for (unsigned d = 0; d < 10; d++) {
		char c = (char)('0' + d);
		target[d] = (lo && c < *lo) || (hi && c > *hi)
		                ? NFA_DEAD
		                : bound_digits(m, lo && c == *lo ? lo + 1 : NULL,
		                               hi && c == *hi ? hi + 1 : NULL, n - 1,
		                               (rest * 10 + d) % m->of);
	}
	return one_digit(m->f, target);
}

/* From a to b inclusive, without a sign; b NO_END: no upper bound. */
static uint32_t between(struct multiple *m, uint64_t a, uint64_t b)
{
	char lo[24], hi[24], least[24], most[24];
	uint32_t way = NFA_DEAD, target[10];
	if (a > b)
		return NFA_DEAD;
	unsigned from = (unsigned)snprintf(lo, sizeof lo, "%llu", (unsigned long long)a),
			 to = b == NO_END ? from
	                          : (unsigned)snprintf(hi, sizeof hi, "%llu", (unsigned long long)b);
	memset(least, '0', sizeof least);
	memset(most, '9', sizeof most);
	for (unsigned n = from; n <= to; n++) {
		least[0] = n > 1 ? '1' : '0';
		way = nfa_either(m->f, way,
		                 bound_digits(m, n == from ? lo : least, n == to && b != NO_END ? hi : most,
		                              n, 0));
	}
	for (unsigned d = 0; b == NO_END && d < 10; d++) /* all longer numbers as well */
		target[d] = d ? free_digits(m, 1, from, d % m->of) : NFA_DEAD;
	return b == NO_END ? nfa_either(m->f, way, one_digit(m->f, target)) : way;
}

static void build_loop(struct multiple *m)
{
	uint32_t target[10];
	for (uint32_t r = 0; r < m->of; r++)
		m->loop[r] = nfa_loop(m->f);
	for (uint32_t r = 0; r < m->of && !m->f->err.code; r++) {
		for (unsigned d = 0; d < 10; d++)
			target[d] = m->loop[(r * 10 + d) % m->of];
		uint32_t again = one_digit(m->f, target);
		nfa_loop_set(m->f, m->loop[r], again, r == 0 ? m->next : again);
	}
}

static uint64_t magnitude(int64_t v)
{
	return v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
}

uint32_t json_multiple_in(struct nfa *f, const struct json_bounds *b, uint32_t of, uint32_t next)
{
	size_t n = (size_t)DIGITS * of;
	uint32_t *nodes = mem_try_array(2 * n + of, sizeof *nodes), way = NFA_DEAD, minus = NFA_DEAD;
	struct multiple m = {f, of, next, nodes, {nodes + of, nodes + of + n}};
	if (!nodes)
		return nfa_no_memory(f);
	for (size_t i = of; i < 2 * n + of; i++)
		nodes[i] = UNSEEN;
	if (!b->has_lo || !b->has_hi)
		build_loop(&m);
	if ((!b->has_hi || b->hi >= 0) && !f->err.code)
		way = between(&m, b->has_lo && b->lo > 0 ? (uint64_t)b->lo : 0,
		              b->has_hi ? (uint64_t)b->hi : NO_END);
	if ((!b->has_lo || b->lo < 0) && !f->err.code)
		minus = between(&m, b->has_hi && b->hi < 0 ? magnitude(b->hi) : 1,
		                b->has_lo ? magnitude(b->lo) : NO_END);
	way = nfa_either(f, minus == NFA_DEAD ? NFA_DEAD : nfa_byte(f, '-', minus), way);
	free(nodes);
	return way == NFA_DEAD || f->err.code ? 0 : way;
}
