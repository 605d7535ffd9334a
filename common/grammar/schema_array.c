/* schema_array.c - see schema.h: arrays of a schema. What the items must have together (contains,
 * uniqueItems) takes a node for each number of items of a kind, or for each set of values, that was
 * written so far. */
#include "schema_int.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>

#define STATES_MAX 4096u /* such numbers or sets */
#define SUBSETS_OF 8u    /* unique values that may come in any order; more: in that of the schema */

struct array {
	struct schema *s;
	const json_t *prefix, *items; /* items NULL: any value */
	size_t n_prefix;
	uint32_t min, max;
};

static uint32_t item_of(struct schema *s, const json_t *v, const char *key, uint32_t next)
{
	if (!v)
		return json_any_rule(s->rules, next);
	size_t mark = schema_enter(s, key);
	uint32_t begin = schema_call(s, v, next);
	schema_leave(s, mark);
	return begin;
}

static uint32_t item(struct nfa *f, void *arg, uint32_t next)
{
	const struct array *a = arg;
	(void)f;
	return item_of(a->s, a->items, "items", next);
}

static uint32_t further(struct nfa *f, void *arg, uint32_t next)
{
	return nfa_byte(f, ',', json_space(f, item(f, arg, next)));
}

/* What may follow n items: another one (NFA_DEAD: none), or the end. close: "]" */
static uint32_t after(struct nfa *f, uint32_t n, uint32_t more, int may_end, uint32_t close)
{
	if (n && more != NFA_DEAD)
		more = nfa_byte(f, ',', json_space(f, more));
	return nfa_either(f, more, may_end ? n ? json_space(f, close) : close : NFA_DEAD);
}

static int read_array(struct array *a, const json_t *v)
{
	const json_t *rest = json_object_get(v, "items");
	int is_2020 = !json_is_array(rest);
	a->prefix = is_2020 ? json_object_get(v, "prefixItems") : rest;
	if (!is_2020)
		rest = json_object_get(v, "additionalItems");
	if (a->prefix && !json_is_array(a->prefix))
		return schema_bad(a->s, ERR_INVALID, "prefixItems", "must be an array of schemas"), -1;
	if (schema_count(a->s, v, "minItems", 0, &a->min) < 0 ||
	    schema_count(a->s, v, "maxItems", NFA_UNBOUNDED, &a->max) < 0)
		return -1;
	if (a->max < a->min)
		return schema_bad(a->s, ERR_INVALID, "maxItems", "is less than minItems"), -1;
	a->n_prefix = json_array_size(a->prefix);
	a->items = json_is_true(rest) ? NULL : rest;
	if ((json_is_false(rest) || (!rest && a->n_prefix && a->min <= a->n_prefix)) &&
	    a->max > a->n_prefix)
		a->max = (uint32_t)a->n_prefix;
	return a->max >= a->min
	           ? 0
	           : (schema_bad(a->s, ERR_INVALID, "minItems", "is more than there may be"), -1);
}

static uint32_t prefixed(struct array *a, uint32_t next)
{
	struct nfa *f = a->s->f;
	uint32_t n = a->n_prefix < a->max ? (uint32_t)a->n_prefix : a->max,
			 close = nfa_byte(f, ']', next), at = json_space(f, close);
	if (a->max > n)
		at = nfa_repeat(f, further, a, a->min > n ? a->min - n : 0,
		                a->max == NFA_UNBOUNDED ? a->max : a->max - n, at);
	for (uint32_t i = n; i-- > 0 && !a->s->failed && !f->err.code;) {
		char place[40];
		snprintf(place, sizeof place, "prefixItems/%u", i);
		size_t mark = schema_enter(a->s, place);
		uint32_t one = schema_value(a->s, json_array_get(a->prefix, i), at);
		schema_leave(a->s, mark);
		at = after(f, i, one, i >= a->min, close);
	}
	return nfa_byte(f, '[', json_space(f, at));
}

/* --- contains ------------------------------------------------------------ */

struct contained {
	const json_t *v, *others; /* others: of items that are not counted; NULL: any value */
	uint32_t least, most;
};

/* The items that are not `in`; NULL: they cannot be told. */
static const json_t *items_without(struct array *a, const struct contained *c, const json_t *in,
                                   const json_t *of)
{
	if (!a->items)
		return schema_keep(a->s, json_pack("{s:O}", "not", c->v));
	json_t *rest = json_array();
	for (size_t i = 0; i < json_array_size(of); i++)
		if (!schema_has(a->s, in, json_array_get(of, i)))
			json_array_append(rest, json_array_get(of, i));
	return schema_keep(a->s, json_pack("{s:o}", "enum", rest));
}

static int read_contained(struct array *a, const json_t *v, struct contained *c)
{
	struct schema *s = a->s;
	json_t *in = schema_enumerated(s, c->v), *of = a->items ? schema_enumerated(s, a->items) : NULL;
	int among = in && of;
	c->others = a->items;
	for (size_t i = 0; among && i < json_array_size(in); i++)
		among = schema_has(s, of, json_array_get(in, i));
	if (a->items && !among)
		schema_bad(s, ERR_UNSUPPORTED, "contains",
		           "is supported beside items only if both have an enum or const, and these values "
		           "are among those of items");
	else if (a->n_prefix || json_is_true(json_object_get(v, "uniqueItems")))
		schema_bad(s, ERR_UNSUPPORTED, "contains", "is not supported beside %s",
		           a->n_prefix ? "prefixItems" : "uniqueItems");
	else if (c->most != NFA_UNBOUNDED)
		c->others = items_without(a, c, in, of);
	json_decref(in);
	json_decref(of);
	return s->failed || s->f->err.code ? -1 : 0;
}

/* at[i * columns + k]: after i items, k of which are counted. The last row, without maxItems, and
 * the last column, without maxContains, stand for all above, too. */
static uint32_t counted(struct array *a, const struct contained *c, uint32_t next)
{
	struct schema *s = a->s;
	struct nfa *f = s->f;
	int open = a->max == NFA_UNBOUNDED;
	uint32_t last = !open               ? a->max
	                : a->min > c->least ? a->min
	                                    : c->least,
			 columns = (c->most == NFA_UNBOUNDED ? c->least : c->most) + 1,
			 close = nfa_byte(f, ']', next);
	last += last == 0; /* the first item has no comma before it */
	if (last + 1 > STATES_MAX / columns)
		return schema_bad(s, ERR_FULL, "contains", "needs more than %u states with these counts",
		                  STATES_MAX);
	uint32_t *at = mem_try_array((size_t)(last + 1) * columns, sizeof *at);
	if (!at)
		return nfa_no_memory(f);
	for (uint32_t k = 0; k < columns; k++)
		at[last * columns + k] = open ? nfa_loop(f) : NFA_DEAD;
	for (uint32_t i = last + 1; i-- > 0 && !s->failed && !f->err.code;)
		for (uint32_t k = columns; k-- > 0;) {
			uint32_t *to = &at[(i < last ? i + 1 : last) * columns + k], more = NFA_DEAD;
			if ((i < last || open) && to[0] != NFA_DEAD)
				more = item_of(s, c->others, "items", to[0]);
			if ((i < last || open) && k + 1 < columns && to[1] != NFA_DEAD)
				more = nfa_either(f, more, item_of(s, c->v, "contains", to[1]));
			uint32_t way = after(f, i, more, i >= a->min && k >= c->least, close);
			if (i == last && open)
				nfa_loop_set(f, at[i * columns + k], way, way);
			else
				at[i * columns + k] = way;
		}
	uint32_t begin = at[0];
	free(at);
	return begin != NFA_DEAD ? nfa_byte(f, '[', json_space(f, begin))
	                         : schema_bad(s, ERR_INVALID, "minContains", "is more than maxItems");
}

/* --- uniqueItems --------------------------------------------------------- */

/* In any order: at[m] when the values with a bit in m were written. */
static uint32_t unique_sets(struct array *a, const uint32_t *rule, uint32_t n, uint32_t *at,
                            uint32_t close)
{
	struct nfa *f = a->s->f;
	for (uint32_t m = 1u << n; m-- > 0 && !f->err.code;) {
		uint32_t more = NFA_DEAD, count = (uint32_t)__builtin_popcount(m);
		for (uint32_t i = 0; i < n && count < a->max; i++)
			if (!(m >> i & 1))
				more = nfa_either(f, more, nfa_call(f, rule[i], at[m | 1u << i]));
		at[m] = after(f, count, more, count >= a->min, close);
	}
	return at[0];
}

/* In their order: at[k] when k values were written (the last: or more), and those before i are
 * not allowed any more; some[k]: one of those from i on, and what follows. */
static uint32_t unique_sorted(struct array *a, const uint32_t *rule, uint32_t n, uint32_t *at,
                              uint32_t close)
{
	struct nfa *f = a->s->f;
	uint32_t last = a->max < n ? a->max : a->min ? a->min : 1, *some = at + last + 1;
	for (uint32_t k = 0; k <= last; k++) {
		some[k] = NFA_DEAD;
		at[k] = after(f, k, NFA_DEAD, k >= a->min, close);
	}
	for (uint32_t i = n; i-- > 0 && !f->err.code;)
		for (uint32_t k = 0; k <= last; k++) {
			uint32_t to = k < last ? at[k + 1] : a->max < n ? NFA_DEAD : at[last];
			some[k] = nfa_either(f, some[k], to == NFA_DEAD ? NFA_DEAD : nfa_call(f, rule[i], to));
			at[k] = after(f, k, some[k], k >= a->min, close);
		}
	return at[0];
}

static uint32_t unique(struct array *a, json_t *values, uint32_t next)
{
	struct schema *s = a->s;
	for (size_t i = json_array_size(values); i-- > 0 && nfa_step(s->f) == 0;)
		for (size_t k = 0; k < i; k++)
			if (schema_same(s, json_array_get(values, k), json_array_get(values, i))) {
				json_array_remove(values, i);
				break;
			}
	uint32_t n = (uint32_t)json_array_size(values), begin = 0;
	a->max = a->max < n ? a->max : n;
	if (a->min > n)
		return schema_bad(s, ERR_INVALID, "minItems", "is more than there are different values");
	if (n > SUBSETS_OF && n > STATES_MAX / (a->max < n ? a->max : a->min + 1))
		return schema_bad(s, ERR_FULL, "uniqueItems", "needs more than %u states", STATES_MAX);
	uint32_t *rule = mem_try_array((size_t)n + 1, sizeof *rule),
			 *at = mem_try_array(2 * (size_t)n + (1u << SUBSETS_OF) + 4, sizeof *at);
	for (uint32_t i = 0; rule && i < n && !s->f->err.code; i++) {
		json_t *one = json_pack("[O]", json_array_get(values, i));
		rule[i] = nfa_rule(s->f);
		uint32_t body = one ? schema_one_of(s, one, 0) : nfa_no_memory(s->f);
		if (!s->f->err.code)
			nfa_rule_set(s->f, rule[i], body);
		json_decref(one);
	}
	uint32_t close = nfa_byte(s->f, ']', next);
	if (!rule || !at)
		nfa_no_memory(s->f);
	if (!s->f->err.code)
		begin = n > SUBSETS_OF ? unique_sorted(a, rule, n, at, close)
		                       : unique_sets(a, rule, n, at, close);
	free(rule);
	free(at);
	return nfa_byte(s->f, '[', json_space(s->f, begin));
}

static int is_scalar(const json_t *values)
{
	for (size_t i = 0; i < json_array_size(values); i++)
		if (schema_value_type(json_array_get(values, i)) & (TYPE_ARRAY | TYPE_OBJECT))
			return 0;
	return 1;
}

/* Items that are unique as their schemas have no value in common. */
static int is_unique_anyhow(struct array *a)
{
	if (a->max > a->n_prefix)
		return a->max < 2;
	for (uint32_t i = 0; i < a->max; i++)
		for (uint32_t k = 0; k < i; k++)
			if (!schema_apart(a->s, json_array_get(a->prefix, i), json_array_get(a->prefix, k)))
				return 0;
	return 1;
}

uint32_t schema_array(struct schema *s, const json_t *v, uint32_t next)
{
	struct array a = {.s = s};
	struct contained c = {.v = json_object_get(v, "contains")};
	if (read_array(&a, v) < 0 || schema_count(s, v, "minContains", 1, &c.least) < 0 ||
	    schema_count(s, v, "maxContains", NFA_UNBOUNDED, &c.most) < 0)
		return 0;
	if (c.v && c.most < c.least)
		return schema_bad(s, ERR_INVALID, "maxContains", "is less than minContains");
	if (c.v && (c.least || c.most != NFA_UNBOUNDED))
		return read_contained(&a, v, &c) < 0 ? 0 : counted(&a, &c, next);
	if (json_is_true(json_object_get(v, "uniqueItems")) && !is_unique_anyhow(&a)) {
		json_t *values = !a.n_prefix && a.items ? schema_enumerated(s, a.items) : NULL;
		uint32_t begin = values && is_scalar(values)
		                     ? unique(&a, values, next)
		                     : schema_bad(s, ERR_UNSUPPORTED, "uniqueItems",
		                                  "is supported for items of enum, const or boolean, and "
		                                  "where there is at most one");
		json_decref(values);
		return begin;
	}
	return a.n_prefix ? prefixed(&a, next) : json_array_of(s->f, item, &a, a.min, a.max, next);
}
