/* schema_type.c - see schema.h: strings, numbers, arrays and objects of a schema. */
#include "regex.h"
#include "schema_int.h"
#include "util/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 256u /* of a property name that other names must be told apart from */
#define BOUND_MAX 9e15      /* doubles hold whole numbers up to this exactly */

/* --- strings ------------------------------------------------------------- */

static uint32_t patterned(struct schema *s, const json_t *pattern, uint32_t next)
{
	struct err err = {0};
	uint32_t begin = 0;
	if (!json_is_string(pattern))
		return schema_bad(s, ERR_INVALID, "pattern", "must be a string");
	int r = regex_build(s->f, json_string_value(pattern), json_string_length(pattern),
	                    &(struct regex_opts){.search = 1, .json = 1}, nfa_byte(s->f, '"', next),
	                    &begin, &err);
	return r < 0 ? schema_bad(s, r, "pattern", "%s", err.text) : nfa_byte(s->f, '"', begin);
}

static uint32_t formatted(struct schema *s, const json_t *format, uint32_t next)
{
	uint32_t begin = 0;
	const char *name = json_string_value(format);
	if (!name || schema_format(s->f, name, nfa_byte(s->f, '"', next), &begin) < 0)
		return schema_bad(s, ERR_UNSUPPORTED, "format",
		                  "\"%.40s\" is not supported: date-time, date, time, duration, email, "
		                  "hostname, ipv4, ipv6 and uuid are",
		                  name ? name : "(not a string)");
	return nfa_byte(s->f, '"', begin);
}

uint32_t schema_string(struct schema *s, const json_t *v, uint32_t next)
{
	const json_t *pattern = json_object_get(v, "pattern"), *format = json_object_get(v, "format");
	int lengths = json_object_get(v, "minLength") || json_object_get(v, "maxLength");
	uint32_t min, max;
	if (!!pattern + !!format + lengths > 1)
		return schema_bad(s, ERR_UNSUPPORTED, pattern ? "pattern" : "format",
		                  "is not supported beside %s",
		                  pattern && format ? "format" : "minLength or maxLength");
	if (pattern)
		return patterned(s, pattern, next);
	if (format)
		return formatted(s, format, next);
	if (!lengths)
		return json_string_rule(s->rules, next);
	if (schema_count(s, v, "minLength", 0, &min) < 0 ||
	    schema_count(s, v, "maxLength", NFA_UNBOUNDED, &max) < 0)
		return 0;
	return max < min ? schema_bad(s, ERR_INVALID, "maxLength", "is less than minLength")
	                 : json_string_of(s->rules, min, max, next);
}

/* --- numbers ------------------------------------------------------------- */

/* Applies one bound to b->lo (high: b->hi) if it is tighter. For integers, it is rounded inwards
 * and made inclusive. */
static int take_bound(struct schema *s, const json_t *v, const char *key, int high, int open,
                      int integer, struct json_bounds *b)
{
	const json_t *n = json_object_get(v, key);
	if (!n)
		return 0;
	double d = json_number_value(n);
	if (!json_is_number(n) || !(fabs(d) <= BOUND_MAX)) {
		schema_bad(s, ERR_INVALID, key, "must be a number between -9e15 and 9e15");
		return -1;
	}
	if (!integer && d != floor(d)) {
		schema_bad(s, ERR_UNSUPPORTED, key,
		           "%.10g is not supported: bounds of type number must be whole (those of type "
		           "integer need not)",
		           d);
		return -1;
	}
	int64_t at = (int64_t)(high ? floor(d) : ceil(d));
	if (integer && open && (double)at == d)
		at += high ? -1 : 1;
	open = !integer && open;
	if (high && (!b->has_hi || at < b->hi || (at == b->hi && open))) {
		b->has_hi = 1;
		b->hi = at;
		b->open_hi = open;
	} else if (!high && (!b->has_lo || at > b->lo || (at == b->lo && open))) {
		b->has_lo = 1;
		b->lo = at;
		b->open_lo = open;
	}
	return 0;
}

uint32_t schema_number(struct schema *s, const json_t *v, int integer, uint32_t next)
{
	struct json_bounds b = {0};
	const char *format = json_string_value(json_object_get(v, "format"));
	if (format && !json_is_array(json_object_get(v, "type")))
		return schema_bad(s, ERR_UNSUPPORTED, "format", "\"%.40s\" is not supported for numbers",
		                  format);
	if (take_bound(s, v, "minimum", 0, 0, integer, &b) < 0 ||
	    take_bound(s, v, "exclusiveMinimum", 0, 1, integer, &b) < 0 ||
	    take_bound(s, v, "maximum", 1, 0, integer, &b) < 0 ||
	    take_bound(s, v, "exclusiveMaximum", 1, 1, integer, &b) < 0)
		return 0;
	if (!b.has_lo && !b.has_hi)
		return integer ? json_integer_rule(s->rules, next) : json_number_rule(s->rules, next);
	uint32_t begin = integer ? json_integer_in(s->f, &b, next) : json_number_in(s->f, &b, next);
	return begin || s->f->err.code
	           ? begin
	           : schema_bad(s, ERR_INVALID, NULL, "no number is between the bounds");
}

/* --- arrays -------------------------------------------------------------- */

struct items {
	struct schema *s;
	const json_t *v;
};

static uint32_t item(struct nfa *f, void *arg, uint32_t next)
{
	struct items *it = arg;
	(void)f;
	if (!it->v)
		return json_any_rule(it->s->rules, next);
	size_t mark = schema_enter(it->s, "items");
	uint32_t begin = schema_call(it->s, it->v, next);
	schema_leave(it->s, mark);
	return begin;
}

uint32_t schema_array(struct schema *s, const json_t *v, uint32_t next)
{
	struct items it = {s, json_object_get(v, "items")};
	uint32_t min, max;
	if (schema_count(s, v, "minItems", 0, &min) < 0 ||
	    schema_count(s, v, "maxItems", NFA_UNBOUNDED, &max) < 0)
		return 0;
	return max < min ? schema_bad(s, ERR_INVALID, "maxItems", "is less than minItems")
	                 : json_array_of(s->f, item, &it, min, max, next);
}

/* --- objects ------------------------------------------------------------- */

struct schema_property {
	const char *name;
	const json_t *v; /* NULL: listed in `required` only, so additionalProperties governs it */
	int required;
};

struct object {
	struct schema *s;
	struct schema_property *p;
	/* n_named: members of `properties`; after them come those only listed in `required` */
	size_t n, n_named;
	const json_t *more;       /* additionalProperties; NULL: none allowed */
	struct nfa_string *taken; /* (n_taken) names that additional properties may not have; sorted */
	size_t n_taken;
};

static int name_cmp(const void *a, const void *b)
{
	const struct nfa_string *x = a, *y = b;
	return strcmp(x->s, y->s);
}

static int is_simple(const char *name)
{
	for (; *name; name++)
		if (*name < 0x20 || *name > 0x7e || *name == '"' || *name == '\\')
			return 0;
	return 1;
}

static int read_properties(struct object *o, const json_t *v)
{
	struct schema *s = o->s;
	const json_t *named = json_object_get(v, "properties"),
				 *required = json_object_get(v, "required");
	const char *key;
	json_t *member;
	if (named && !json_is_object(named))
		return schema_bad(s, ERR_INVALID, "properties", "must be an object"), -1;
	if (required && !json_is_array(required))
		return schema_bad(s, ERR_INVALID, "required", "must be an array of names"), -1;
	o->p = mem_try_array(json_object_size(named) + json_array_size(required) + 1, sizeof *o->p);
	struct nfa_string *must = o->taken = mem_try_array(
		json_object_size(named) + 2 * json_array_size(required) + 1, sizeof *must);
	if (!o->p || !must)
		return nfa_no_memory(s->f), -1;
	size_t n_must = json_array_size(required);
	for (size_t i = 0; i < n_must; i++) {
		must[i].s = json_string_value(json_array_get(required, i));
		if (!must[i].s)
			return schema_bad(s, ERR_INVALID, "required", "must be an array of names"), -1;
	}
	qsort(must, n_must, sizeof *must, name_cmp);
	json_object_foreach((json_t *)named, key, member) {
		struct nfa_string name = {key, 0};
		o->p[o->n++] = (struct schema_property){
			key, member, bsearch(&name, must, n_must, sizeof *must, name_cmp) != NULL};
	}
	o->n_named = o->n;
	for (size_t i = 0; i < n_must; i++)
		if (!json_object_get(named, must[i].s) && (i == 0 || strcmp(must[i].s, must[i - 1].s) != 0))
			o->p[o->n++] = (struct schema_property){must[i].s, NULL, 1};
	return 0;
}

static int check_more(struct object *o, const json_t *v)
{
	struct schema *s = o->s;
	const json_t *more = json_object_get(v, "additionalProperties");
	o->more = more && !json_is_false(more) ? more : NULL;
	if (s->strict && !json_is_false(more))
		return schema_bad(s, ERR_UNSUPPORTED, "additionalProperties", "must be false with strict"),
		       -1;
	for (size_t i = 0; i < o->n; i++) {
		if (s->strict && !o->p[i].required)
			return schema_bad(s, ERR_UNSUPPORTED, "required",
			                  "must have \"%.60s\" with strict, as all properties", o->p[i].name),
			       -1;
		if (json_is_false(more) && i >= o->n_named)
			return schema_bad(s, ERR_INVALID, "required",
			                  "has \"%.60s\", which additionalProperties forbids", o->p[i].name),
			       -1;
		if (o->more && strlen(o->p[i].name) > NAME_MAX_BYTES)
			return schema_bad(s, ERR_FULL, "properties",
			                  "a name is longer than %u bytes beside additionalProperties",
			                  NAME_MAX_BYTES),
			       -1;
	}
	return 0;
}

static uint32_t member_value(struct object *o, const struct schema_property *p, uint32_t next)
{
	struct schema *s = o->s;
	if (!p->v && (!o->more || json_is_true(o->more)))
		return json_any_rule(s->rules, next);
	size_t up = schema_enter(s, p->v ? "properties" : "additionalProperties");
	if (p->v)
		schema_enter(s, p->name);
	/* a rule, not a copy for each name that only `required` lists */
	uint32_t begin = p->v ? schema_value(s, p->v, next) : schema_call(s, o->more, next);
	schema_leave(s, up);
	return begin;
}

static uint32_t pair(struct object *o, const struct schema_property *p, uint32_t next)
{
	struct nfa *f = o->s->f;
	json_t *name = json_string(p->name);
	char *text = json_dumps(name, JSON_ENCODE_ANY);
	uint32_t begin = nfa_byte(f, ':', json_space(f, member_value(o, p, next)));
	begin = nfa_bytes(f, text, strlen(text), begin);
	free(text);
	json_decref(name);
	return begin;
}

/* A plain ASCII name that is none of the taken ones, up to and including its quote. list[0 .. n):
 * the taken names that share its first `at` bytes. tail: any plain ASCII. */
static uint32_t other_name(struct nfa *f, const struct nfa_string *list, size_t n, size_t at,
                           uint32_t tail, uint32_t next)
{
	struct byte_set rest = {{0}};
	uint32_t way = 0;
	size_t i = 0;
	byte_add(&rest, 0x20, 0x7e);
	rest.w[0] &= ~(1ull << '"');
	rest.w['\\' / 64] &= ~(1ull << '\\' % 64);
	int taken = n && list[0].s[at] == 0;
	while (i < n && list[i].s[at] == 0)
		i++;
	for (size_t k; i < n && !f->err.code; i = k) {
		unsigned char b = (unsigned char)list[i].s[at];
		for (k = i + 1; k < n && (unsigned char)list[k].s[at] == b;)
			k++;
		rest.w[b / 64] &= ~(1ull << b % 64);
		uint32_t part = nfa_byte(f, b, other_name(f, list + i, k - i, at + 1, tail, next));
		way = way ? nfa_split(f, way, part) : part;
	}
	uint32_t part = nfa_set(f, &rest, tail);
	way = way ? nfa_split(f, way, part) : part;
	return taken ? way : nfa_split(f, way, nfa_byte(f, '"', next));
}

/* An additional property, and what follows it. */
static uint32_t further(struct object *o, uint32_t next)
{
	struct schema *s = o->s;
	struct nfa *f = s->f;
	size_t mark = schema_enter(s, "additionalProperties");
	uint32_t after = nfa_byte(f, ':', json_space(f, schema_value(s, o->more, next)));
	schema_leave(s, mark);
	if (o->n == 0)
		return json_string_rule(s->rules, after);
	o->n_taken = 0;
	for (size_t i = 0; i < o->n; i++)
		if (is_simple(o->p[i].name))
			o->taken[o->n_taken++].s = o->p[i].name;
	qsort(o->taken, o->n_taken, sizeof *o->taken, name_cmp);
	struct byte_set plain = {{0}};
	byte_add(&plain, 0x20, 0x7e);
	plain.w[0] &= ~(1ull << '"');
	plain.w['\\' / 64] &= ~(1ull << '\\' % 64);
	uint32_t tail = nfa_loop(f);
	nfa_loop_set(f, tail, nfa_set(f, &plain, tail), nfa_byte(f, '"', after));
	return nfa_byte(f, '"', other_name(f, o->taken, o->n_taken, 0, tail, after));
}

/* Built from the last property to the first. first: continues if no property was written yet; rest:
 * continues after one. */
static uint32_t members(struct object *o, uint32_t next)
{
	struct nfa *f = o->s->f;
	uint32_t end = nfa_byte(f, '}', next), first = end, rest = json_space(f, end);
	if (o->more) {
		uint32_t loop = nfa_loop(f), one = further(o, loop);
		nfa_loop_set(f, loop, nfa_byte(f, ',', json_space(f, one)), rest);
		first = nfa_split(f, one, end);
		rest = loop;
	}
	for (size_t i = o->n; i-- > 0 && !o->s->failed && !f->err.code;) {
		uint32_t one = pair(o, &o->p[i], rest), behind = nfa_byte(f, ',', json_space(f, one));
		first = o->p[i].required ? one : nfa_split(f, one, first);
		rest = o->p[i].required ? behind : nfa_split(f, behind, rest);
	}
	return nfa_byte(f, '{', json_space(f, first));
}

uint32_t schema_object(struct schema *s, const json_t *v, uint32_t next)
{
	struct object o = {.s = s};
	uint32_t begin = 0;
	int any = !json_object_get(v, "properties") && !json_object_get(v, "required") &&
	          !json_object_get(v, "additionalProperties");
	if (any && !s->strict)
		return json_object_rule(s->rules, next);
	if (read_properties(&o, v) == 0 && check_more(&o, v) == 0)
		begin = members(&o, next);
	free(o.p);
	free(o.taken);
	return begin;
}
