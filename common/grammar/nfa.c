/* nfa.c - see nfa.h. When a limit is exceeded, a builder records the first error and returns node
 * 0; nfa_finish rejects whatever was built on it. So builders need no checks between steps; only
 * loops over a count check f->err. */
#include "nfa.h"
#include "points.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define SET_SLOTS (2 * NFA_SETS_MAX)
#define COPIES 8u /* units repeated more often are called as a rule, not copied */

int nfa_init(struct nfa *f)
{
	memset(f, 0, sizeof *f);
	f->size = 256;
	f->node = mem_try_array(f->size, sizeof *f->node);
	f->n = 1; /* node 0: RET */
	f->size_rules = f->size_sets = 64;
	f->rule = mem_try_array(f->size_rules, sizeof *f->rule);
	f->set = mem_try_array(f->size_sets, sizeof *f->set);
	f->set_slot = mem_try_array(SET_SLOTS, sizeof *f->set_slot);
	if (f->node && f->rule && f->set && f->set_slot)
		return 0;
	nfa_fini(f);
	return ERR_NOMEM;
}

uint32_t nfa_no_memory(struct nfa *f)
{
	if (!f->err.code)
		err_set(&f->err, ERR_NOMEM, "out of memory while compiling the constraint");
	return 0;
}

/* Doubles the array p of *size elements. Returns NULL with the error recorded. */
static void *array_double(struct nfa *f, void *p, uint32_t *size, size_t each)
{
	void *more = mem_try_grow(p, *size * 2u, each);
	if (more)
		*size *= 2;
	else
		nfa_no_memory(f);
	return more;
}

void nfa_fini(struct nfa *f)
{
	free(f->node);
	free(f->rule);
	free(f->set);
	free(f->set_slot);
	memset(f, 0, sizeof *f);
}

static void *trim(void *p, uint32_t n, uint32_t *size, size_t each)
{
	void *less = mem_try_grow(p, n, each);
	if (!less)
		return p;
	*size = n;
	return less;
}

void nfa_trim(struct nfa *f)
{
	free(f->set_slot);
	f->set_slot = NULL;
	f->node = trim(f->node, f->n, &f->size, sizeof *f->node);
	f->rule = trim(f->rule, f->n_rules, &f->size_rules, sizeof *f->rule);
	f->set = trim(f->set, f->n_sets, &f->size_sets, sizeof *f->set);
}

size_t nfa_memory(const struct nfa *f)
{
	size_t n = (size_t)f->size * sizeof *f->node + (size_t)f->size_rules * sizeof *f->rule +
	           (size_t)f->size_sets * sizeof *f->set;
	return n + (f->set_slot ? SET_SLOTS * sizeof *f->set_slot : 0);
}

static uint32_t limit_exceeded(struct nfa *f, const char *what, uint32_t limit)
{
	if (!f->err.code)
		err_set(&f->err, ERR_FULL, "the constraint is too large: it needs more than %u %s", limit,
		        what);
	return 0;
}

int nfa_step(struct nfa *f)
{
	if (!f->err.code && f->steps++ >= NFA_STEPS_MAX)
		limit_exceeded(f, "steps", NFA_STEPS_MAX);
	return f->err.code;
}

static uint32_t node_add(struct nfa *f, enum nfa_kind kind, uint32_t a, uint32_t b)
{
	if (f->err.code || f->n == NFA_NODES_MAX)
		return limit_exceeded(f, "nodes", NFA_NODES_MAX);
	if (f->n == f->size) {
		struct nfa_node *more = array_double(f, f->node, &f->size, sizeof *more);
		if (!more)
			return 0;
		f->node = more;
	}
	f->node[f->n] = (struct nfa_node){.kind = (uint8_t)kind, .a = a, .b = b, .alias = f->n};
	return f->n++;
}

static uint32_t set_find(struct nfa *f, const struct byte_set *s)
{
	uint64_t h = (s->w[0] * 0x9E3779B97F4A7C15u) ^ (s->w[1] * 0xC2B2AE3D27D4EB4Fu) ^
	             (s->w[2] * 0x165667B19E3779F9u) ^ (s->w[3] * 0x27D4EB2F165667C5u);
	for (uint32_t i = (uint32_t)(h >> 40) % SET_SLOTS;; i = (i + 1) % SET_SLOTS) {
		if (f->set_slot[i] && memcmp(&f->set[f->set_slot[i] - 1], s, sizeof *s) == 0)
			return f->set_slot[i] - 1;
		if (f->set_slot[i])
			continue;
		if (f->n_sets == NFA_SETS_MAX)
			return limit_exceeded(f, "sets of bytes", NFA_SETS_MAX);
		if (f->n_sets == f->size_sets) {
			struct byte_set *more = array_double(f, f->set, &f->size_sets, sizeof *more);
			if (!more)
				return 0;
			f->set = more;
		}
		f->set[f->n_sets++] = *s;
		f->set_slot[i] = f->n_sets;
		return f->n_sets - 1;
	}
}

uint32_t nfa_set(struct nfa *f, const struct byte_set *s, uint32_t next)
{
	return node_add(f, NFA_SET, set_find(f, s), next);
}

uint32_t nfa_byte(struct nfa *f, unsigned char b, uint32_t next)
{
	struct byte_set s = {{0}};
	byte_add(&s, b, b);
	return nfa_set(f, &s, next);
}

uint32_t nfa_bytes(struct nfa *f, const char *s, size_t len, uint32_t next)
{
	while (len--)
		next = nfa_byte(f, (unsigned char)s[len], next);
	return next;
}

uint32_t nfa_split(struct nfa *f, uint32_t a, uint32_t b)
{
	return a == b ? a : node_add(f, NFA_SPLIT, a, b);
}

uint32_t nfa_loop(struct nfa *f)
{
	return node_add(f, NFA_SPLIT, 0, 0);
}

void nfa_loop_set(struct nfa *f, uint32_t loop, uint32_t again, uint32_t out)
{
	f->node[loop].a = again;
	f->node[loop].b = out;
}

uint32_t nfa_rule(struct nfa *f)
{
	if (f->n_rules == NFA_RULES_MAX)
		return limit_exceeded(f, "rules", NFA_RULES_MAX);
	if (f->n_rules == f->size_rules) {
		uint32_t *more = array_double(f, f->rule, &f->size_rules, sizeof *more);
		if (!more)
			return 0;
		f->rule = more;
	}
	f->rule[f->n_rules] = 0;
	return f->n_rules++;
}

void nfa_rule_set(struct nfa *f, uint32_t rule, uint32_t begin)
{
	f->rule[rule] = begin;
}

uint32_t nfa_call(struct nfa *f, uint32_t rule, uint32_t next)
{
	return node_add(f, NFA_CALL, rule, next);
}

/* --- UTF-8 --------------------------------------------------------------- */

static uint32_t range_of(struct nfa *f, unsigned lo, unsigned hi, uint32_t next)
{
	struct byte_set s = {{0}};
	byte_add(&s, lo, hi);
	return nfa_set(f, &s, next);
}

uint32_t nfa_between(struct nfa *f, const unsigned char *lo, const unsigned char *hi, unsigned n,
                     unsigned char first, unsigned char last, uint32_t next)
{
	unsigned char least[NFA_BETWEEN_MAX], most[NFA_BETWEEN_MAX];
	memset(least, first, sizeof least);
	memset(most, last, sizeof most);
	if (n == 1)
		return range_of(f, lo[0], hi[0], next);
	if (lo[0] == hi[0])
		return nfa_byte(f, lo[0], nfa_between(f, lo + 1, hi + 1, n - 1, first, last, next));
	unsigned from = lo[0], to = hi[0];
	uint32_t way = 0;
	if (memcmp(lo + 1, least, n - 1) != 0)
		way = nfa_byte(f, (unsigned char)from++,
		               nfa_between(f, lo + 1, most, n - 1, first, last, next));
	if (memcmp(hi + 1, most, n - 1) != 0) {
		uint32_t high = nfa_byte(f, (unsigned char)to--,
		                         nfa_between(f, least, hi + 1, n - 1, first, last, next));
		way = way ? nfa_split(f, way, high) : high;
	}
	if (from <= to) {
		uint32_t whole = range_of(f, from, to,
		                          nfa_between(f, least, most, n - 1, first, last, next));
		way = way ? nfa_split(f, whole, way) : whole;
	}
	return way;
}

uint32_t nfa_points(struct nfa *f, uint32_t lo, uint32_t hi, uint32_t next)
{
	static const uint32_t end[] = {0x7f, 0x7ff, 0xd7ff, 0xdfff, 0xffff, 0x10ffff};
	uint32_t way = 0;
	for (unsigned i = 0; i < sizeof end / sizeof *end && lo <= hi; i++) {
		if (lo > end[i])
			continue;
		uint32_t to = hi < end[i] ? hi : end[i];
		unsigned char a[4], b[4];
		if (i != 3) { /* index 3: surrogates */
			unsigned n = point_put(lo, a);
			point_put(to, b);
			uint32_t part = nfa_between(f, a, b, n, 0x80, 0xbf, next);
			way = way ? nfa_split(f, way, part) : part;
		}
		lo = to + 1;
	}
	return way;
}

/* --- repetition ---------------------------------------------------------- */

/* Gives places of a repetition the same alias if the next NFA_LOOKAHEAD units are the same from
 * there: as many required, as many allowed. */
static void name_aliases(struct nfa *f, const uint32_t *place, uint32_t n, uint32_t min,
                         uint32_t max)
{
	uint32_t was_min = UINT32_MAX, was_max = UINT32_MAX, alias = 0;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t least = i < min ? min - i : 0,
				 most = max == NFA_UNBOUNDED ? NFA_UNBOUNDED : max - i;
		least = least < NFA_LOOKAHEAD ? least : NFA_LOOKAHEAD;
		most = most < NFA_LOOKAHEAD ? most : NFA_LOOKAHEAD;
		if (least != was_min || most != was_max)
			alias = place[i];
		was_min = least;
		was_max = most;
		f->node[place[i]].alias = alias;
	}
}

static uint32_t repeat_unit(struct nfa *f,
                            uint32_t (*unit)(struct nfa *f, void *arg, uint32_t next), void *arg,
                            uint32_t rule, uint32_t next)
{
	return rule == UINT32_MAX ? unit(f, arg, next) : nfa_call(f, rule, next);
}

/* place[i]: the node after i units. */
static uint32_t chain(struct nfa *f, uint32_t (*unit)(struct nfa *f, void *arg, uint32_t next),
                      void *arg, uint32_t rule, uint32_t min, uint32_t max, uint32_t next)
{
	uint32_t n = max == NFA_UNBOUNDED ? min : max, at;
	uint32_t *place = mem_try_array((size_t)n + 1, sizeof *place);
	if (!place)
		return nfa_no_memory(f);
	if (max == NFA_UNBOUNDED) {
		at = nfa_loop(f);
		nfa_loop_set(f, at, repeat_unit(f, unit, arg, rule, at), next);
	} else {
		at = node_add(f, NFA_SPLIT, next, next); /* a node of its own, even if nothing may follow */
	}
	place[n] = at;
	for (uint32_t i = n; i-- > 0 && !f->err.code;) {
		uint32_t more = repeat_unit(f, unit, arg, rule, at);
		place[i] = at = i >= min             ? nfa_split(f, more, next)
		                : rule == UINT32_MAX ? node_add(f, NFA_SPLIT, more, more)
		                                     : more;
	}
	if (!f->err.code)
		name_aliases(f, place, n + 1, min, max);
	free(place);
	return at;
}

uint32_t nfa_repeat(struct nfa *f, uint32_t (*unit)(struct nfa *f, void *arg, uint32_t next),
                    void *arg, uint32_t min, uint32_t max, uint32_t next)
{
	uint32_t rule = UINT32_MAX;
	if ((min > NFA_REPEAT_MAX || (max != NFA_UNBOUNDED && max > NFA_REPEAT_MAX)) && !f->err.code)
		err_set(&f->err, ERR_FULL, "a repetition of %u is over the limit of %u",
		        max != NFA_UNBOUNDED && max > min ? max : min, NFA_REPEAT_MAX);
	if (f->err.code || max == 0)
		return f->err.code ? 0 : next;
	if ((max == NFA_UNBOUNDED ? min + 1 : max) > COPIES) {
		rule = nfa_rule(f);
		uint32_t begin = unit(f, arg, 0);
		if (!f->err.code)
			nfa_rule_set(f, rule, begin);
	}
	return f->err.code ? 0 : chain(f, unit, arg, rule, min, max, next);
}

/* --- one of many strings ------------------------------------------------- */

static int string_cmp(const void *a, const void *b)
{
	const struct nfa_string *x = a, *y = b;
	int c = memcmp(x->s, y->s, x->len < y->len ? x->len : y->len);
	return c ? c : (x->len > y->len) - (x->len < y->len);
}

/* list is sorted; all strings share their first `at` bytes. Common stretches are handled in a loop,
 * so the recursion is only as deep as there are nested branches: usually log n. A list with n
 * nested branches has about n * n bytes, which the limit on the text bounds. */
static uint32_t branch(struct nfa *f, const struct nfa_string *list, size_t n, size_t at,
                       uint32_t next)
{
	uint32_t way = 0;
	size_t i = 0;
	if (f->err.code)
		return 0;
	int ends = 0;
	for (; i < n && list[i].len == at; i++)
		ends = 1;
	for (size_t k; i < n; i = k) {
		for (k = i + 1; k < n && list[k].s[at] == list[i].s[at];)
			k++;
		size_t common = at + 1,
			   least = list[i].len < list[k - 1].len ? list[i].len : list[k - 1].len;
		while (common < least && list[i].s[common] == list[k - 1].s[common])
			common++;
		uint32_t part = nfa_bytes(f, list[i].s + at, common - at,
		                          k - i == 1 ? next : branch(f, list + i, k - i, common, next));
		way = way ? nfa_split(f, way, part) : part;
	}
	return ends ? (way ? nfa_split(f, way, next) : next) : way;
}

uint32_t nfa_one_of(struct nfa *f, struct nfa_string *list, size_t n, uint32_t next)
{
	qsort(list, n, sizeof *list, string_cmp);
	return branch(f, list, n, 0, next);
}
