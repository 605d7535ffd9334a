/* schema_object.c - see schema.h: objects of a schema. Properties come in the schema's order, so a
 * node for each property and each number of those before it tells what may follow. */
#include "automaton.h"
#include "schema_int.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

struct schema_property {
	const char *name;
	const json_t *v;     /* NULL: listed in `required` only, so additionalProperties governs it */
	int required, never; /* never: allowed to have no value, so not written */
};

struct object {
	struct schema *s;
	struct schema_property *p;
	size_t n;
	const char *more_is;      /* the keyword that `more` is of */
	const json_t *more;       /* additionalProperties; NULL: none allowed */
	const json_t *further;    /* of properties that are not in p; NULL: none are written */
	const json_t *names;      /* schema of their names; NULL: any */
	const char *says;         /* the keyword that `further` is of, and `names` */
	struct nfa_string *taken; /* (n_taken) names that additional properties may not have; sorted */
	size_t n_taken;
	uint32_t min, max;
};

static int is_never(const json_t *v)
{
	const json_t *no = json_object_get(v, "not");
	return json_is_false(v) || json_is_true(no) || (json_is_object(no) && !json_object_size(no));
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
	qsort(must, n_must, sizeof *must, schema_name_cmp);
	json_object_foreach((json_t *)named, key, member) {
		struct nfa_string name = {key, 0};
		struct schema_property p = {key, member, 0, is_never(member)};
		p.required = bsearch(&name, must, n_must, sizeof *must, schema_name_cmp) != NULL;
		if (p.never && p.required)
			return schema_bad(s, ERR_INVALID, "required", "has \"%.60s\", which may have no value",
			                  key),
			       -1;
		o->p[o->n++] = p;
	}
	for (size_t i = 0; i < n_must; i++)
		if (!json_object_get(named, must[i].s) && (i == 0 || strcmp(must[i].s, must[i - 1].s) != 0))
			o->p[o->n++] = (struct schema_property){must[i].s, NULL, 1, 0};
	return 0;
}

/* --- names of properties ------------------------------------------------- */

/* The strings that a schema of a string allows, as an automaton without a vocabulary; NULL with
 * the error set. */
static struct automaton *strings_of(struct schema *s, const json_t *v, const char *key)
{
	struct grammar *g = mem_zalloc(sizeof *g);
	struct err err = {0};
	struct json_rules rules = {.f = &g->f};
	struct schema own = {.f = &g->f,
	                     .rules = &rules,
	                     .root = s->root,
	                     .err = &err,
	                     .nest = s->nest,
	                     .ignored = s->ignored};
	int r = nfa_init(&g->f);
	if (r == 0) {
		g->f.start = schema_value(&own, v, 0);
		schema_fini(&own);
		r = own.failed ? err.code : 0;
	}
	if (r == 0)
		r = nfa_finish(&g->f, GRAMMAR_DEPTH_MAX, &err);
	s->f->steps += g->f.steps + g->f.n; /* it is a part of the work for the schema */
	if (r < 0) {
		nfa_fini(&g->f);
		free(g);
		return schema_bad(s, r, key, "%s", err.text), NULL;
	}
	struct automaton *a = automaton_new(g, NULL, 1 << 20, NULL);
	if (!a)
		nfa_no_memory(s->f);
	return a;
}

/* Checks that all names written so far match the schema of a string (want 1), or that none does
 * (want 0): as both bind the value of one that does. */
static int check_names(struct object *o, const json_t *v, const char *key, int want)
{
	struct schema *s = o->s;
	struct automaton *a = o->n ? strings_of(s, v, key) : NULL;
	for (size_t i = 0; i < o->n && a; i++) {
		const char *name = o->p[i].name;
		json_t *text = json_pack("[s]", name);
		char *dumped = text ? json_dumps(text, JSON_COMPACT) : NULL;
		size_t len = dumped ? strlen(dumped) : 2;
		int is = dumped && len <= SCHEMA_NAME_MAX &&
		         automaton_matches(a, dumped + 1, len - 2, NULL),
			known = is || (dumped && len <= SCHEMA_NAME_MAX && schema_is_plain(name));
		free(dumped);
		json_decref(text);
		s->f->steps += (uint32_t)((UINT64_MAX - a->steps) / 8); /* those of the automaton */
		if (nfa_step(s->f) == 0 && is == want && known)
			continue;
		automaton_destroy(&a);
		return schema_bad(s, ERR_UNSUPPORTED, key, "is not supported beside a property \"%.60s\"%s",
		                  name, want ? " that it does not allow" : " that it may be about, too"),
		       -1;
	}
	automaton_destroy(&a);
	return s->failed || s->f->err.code ? -1 : 0;
}

static int cannot_name(struct object *o, const char *key, const char *why)
{
	return schema_bad(o->s, ERR_UNSUPPORTED, key, "%s", why), -1;
}

/* propertyNames that allows few names: these are the properties. */
static int take_name_list(struct object *o, const json_t *names)
{
	struct schema *s = o->s;
	size_t n = json_array_size(names), kept = 0;
	struct schema_property *p = mem_try_grow(o->p, o->n + n + 1, sizeof *p);
	struct nfa_string *taken = mem_try_grow(o->taken, 2 * (o->n + n + 1), sizeof *taken);
	o->p = p ? p : o->p;
	o->taken = taken ? taken : o->taken;
	if (!p || !taken)
		return nfa_no_memory(s->f), -1;
	for (size_t i = 0; i < o->n; i++) {
		json_t *name = json_string(p[i].name);
		int is = schema_has(s, names, name);
		json_decref(name);
		if (!is && p[i].required)
			return schema_bad(s, ERR_INVALID, "required",
			                  "has \"%.60s\", which propertyNames forbids", p[i].name),
			       -1;
		if (is)
			p[kept++] = p[i];
	}
	o->n = kept;
	for (size_t i = 0; i < n && o->more; i++) {
		const json_t *name = json_array_get(names, i);
		const char *text = json_string_value(name);
		int is = !text || strlen(text) != json_string_length(name);
		for (size_t k = 0; k < o->n && !is && nfa_step(s->f) == 0; k++)
			is = strcmp(p[k].name, text) == 0;
		if (!is)
			p[o->n++] = (struct schema_property){text, NULL, 0, 0};
	}
	o->further = NULL;
	return 0;
}

static int take_names(struct object *o, const json_t *v)
{
	struct schema *s = o->s;
	const json_t *names = schema_referred(s, json_object_get(v, "propertyNames")),
				 *type = json_object_get(names, "type");
	if (s->failed)
		return -1;
	if (!json_is_object(names) || !json_object_size(names))
		return names && !json_is_true(names) && !json_is_object(names)
		           ? cannot_name(o, "propertyNames", "must be a schema that allows a name")
		           : 0;
	if (type && !(schema_named_types(type) & TYPE_STRING))
		return cannot_name(o, "propertyNames", "must allow strings");
	json_t *values = schema_enumerated(s, names), *own = json_copy((json_t *)names);
	int r = values ? take_name_list(o, values) : 0, is_list = values != NULL;
	if (values)
		schema_keep(s, values);
	if (own && (json_object_set_new(own, "type", json_string("string")) < 0))
		nfa_no_memory(s->f);
	json_object_del(own, "nullable");
	names = schema_keep(s, own);
	if (is_list || !names || s->failed || s->f->err.code)
		return s->failed || s->f->err.code ? -1 : r;
	if (o->n) { /* further ones could not be told from them */
		o->further = NULL;
		return check_names(o, names, "propertyNames", 1);
	}
	o->names = names;
	o->says = "propertyNames";
	return 0;
}

/* patternProperties: what has no such name is not written. */
static int take_patterns(struct object *o, const json_t *v)
{
	static const char key[] = "patternProperties";
	struct schema *s = o->s;
	const json_t *patterns = json_object_get(v, key), *first = NULL;
	const char *pattern;
	json_t *member, *any = json_array();
	int failed = 0;
	if (patterns && !json_is_object(patterns))
		schema_bad(s, ERR_INVALID, key, "must be an object");
	json_object_foreach((json_t *)patterns, pattern, member) {
		if (first && !json_equal(first, member))
			cannot_name(o, key, "is supported with one pattern, or with the same schema for all");
		first = first ? first : member;
		failed |= json_array_append_new(any, json_pack("{s:s,s:s}", "type", "string", "pattern",
		                                               pattern));
	}
	const json_t *names = schema_keep(s, json_array_size(any) == 1
	                                         ? json_incref(json_array_get(any, 0))
	                                         : json_pack("{s:O}", "anyOf", any));
	json_decref(any);
	if (failed)
		nfa_no_memory(s->f);
	if (!first || s->failed || s->f->err.code)
		return s->failed || s->f->err.code ? -1 : 0;
	if (json_object_get(v, "propertyNames"))
		return cannot_name(o, key, "is not supported beside propertyNames");
	if (check_names(o, names, key, 0) < 0)
		return -1;
	o->names = names;
	o->says = key;
	o->further = is_never(first) ? NULL : first;
	return 0;
}

static int check_more(struct object *o, const json_t *v)
{
	struct schema *s = o->s;
	const json_t *more = json_object_get(v, o->more_is);
	if (s->strict && !json_is_false(more))
		return schema_bad(s, ERR_UNSUPPORTED, "additionalProperties", "must be false with strict"),
		       -1;
	for (size_t i = 0; i < o->n; i++) {
		if (s->strict && !o->p[i].required && !o->p[i].never)
			return schema_bad(s, ERR_UNSUPPORTED, "required",
			                  "must have \"%.60s\" with strict, as all properties", o->p[i].name),
			       -1;
		if (json_is_false(more) && !o->p[i].v)
			return schema_bad(s, ERR_INVALID, "required", "has \"%.60s\", which %s forbids",
			                  o->p[i].name, o->more_is),
			       -1;
		if (o->further && !o->names && strlen(o->p[i].name) > SCHEMA_NAME_MAX)
			return schema_bad(s, ERR_FULL, "properties",
			                  "a name is longer than %u bytes beside additionalProperties",
			                  SCHEMA_NAME_MAX),
			       -1;
	}
	return 0;
}

static int read_object(struct object *o, const json_t *v)
{
	struct schema *s = o->s;
	/* $ref, allOf ... are refused beside both, so without the one the other says the same */
	o->more_is = json_object_get(v, "additionalProperties") ||
	                     !json_object_get(v, "unevaluatedProperties")
	                 ? "additionalProperties"
	                 : "unevaluatedProperties";
	json_t *more = json_object_get(v, o->more_is);
	if (read_properties(o, v) < 0)
		return -1;
	if (!more && !json_object_get(v, "properties") && !json_object_get(v, "required"))
		more = json_true(); /* not counted: it is one for all */
	o->more = o->further = json_is_false(more) ? NULL : more;
	o->says = o->more_is;
	if (take_names(o, v) < 0 || take_patterns(o, v) < 0 || check_more(o, v) < 0 ||
	    schema_count(s, v, "minProperties", 0, &o->min) < 0 ||
	    schema_count(s, v, "maxProperties", NFA_UNBOUNDED, &o->max) < 0)
		return -1;
	if (o->max < o->min)
		return schema_bad(s, ERR_INVALID, "maxProperties", "is less than minProperties"), -1;
	return 0;
}

/* --- the network --------------------------------------------------------- */

static uint32_t member_value(struct object *o, const struct schema_property *p, uint32_t next)
{
	struct schema *s = o->s;
	if (!p->v && (!o->more || json_is_true(o->more)))
		return json_any_rule(s->rules, next);
	size_t up = schema_enter(s, p->v ? "properties" : o->more_is);
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
	begin = text ? nfa_bytes(f, text, strlen(text), begin) : nfa_no_memory(f);
	free(text);
	json_decref(name);
	return begin;
}

/* A further property, and what follows it. */
static uint32_t further(struct object *o, uint32_t next)
{
	struct schema *s = o->s;
	struct nfa *f = s->f;
	size_t mark = schema_enter(s, o->says);
	uint32_t after = nfa_byte(f, ':', json_space(f, schema_value(s, o->further, next)));
	if (o->names)
		after = schema_value(s, o->names, after);
	schema_leave(s, mark);
	if (o->names)
		return after;
	if (o->n == 0)
		return json_string_rule(s->rules, after);
	o->n_taken = 0;
	for (size_t i = 0; i < o->n; i++)
		if (schema_is_plain(o->p[i].name))
			o->taken[o->n_taken++].s = o->p[i].name;
	qsort(o->taken, o->n_taken, sizeof *o->taken, schema_name_cmp);
	struct byte_set plain = {{0}};
	byte_add(&plain, 0x20, 0x7e);
	plain.w[0] &= ~(1ull << '"');
	plain.w['\\' / 64] &= ~(1ull << '\\' % 64);
	uint32_t tail = nfa_loop(f);
	nfa_loop_set(f, tail, nfa_set(f, &plain, tail), nfa_byte(f, '"', after));
	return nfa_byte(f, '"', schema_other(f, o->taken, o->n_taken, 0, tail, 0, after));
}

/* As a rule: not copied for each number of properties before it. */
static uint32_t as_rule(struct object *o, const struct schema_property *p)
{
	uint32_t rule = nfa_rule(o->s->f), begin = p ? pair(o, p, 0) : further(o, 0);
	if (!o->s->f->err.code)
		nfa_rule_set(o->s->f, rule, begin);
	return rule;
}

/* n properties were written before: is a comma needed? */
static uint32_t behind(struct nfa *f, uint32_t n, uint32_t one)
{
	return n && one != NFA_DEAD ? nfa_byte(f, ',', json_space(f, one)) : one;
}

/* at[c], c to `last`: what follows c properties of p, when all of them had their turn. The last
 * stands for more, too, unless max bounds them. Names of further properties may repeat, so only one
 * of these counts for min. */
static void after_all(struct object *o, uint32_t *at, uint32_t last, int bound, uint32_t next)
{
	struct nfa *f = o->s->f;
	uint32_t end = nfa_byte(f, '}', next), rest = json_space(f, end), loop = NFA_DEAD,
			 one = NFA_DEAD, named = o->n < last ? (uint32_t)o->n : last, rule = 0;
	if (o->further && !bound) {
		loop = nfa_loop(f);
		one = further(o, loop);
		nfa_loop_set(f, loop, behind(f, 1, one), rest);
	} else if (o->further) {
		rule = as_rule(o, NULL);
		loop = rest;
	}
	for (uint32_t c = last + 1; c-- > 0 && !f->err.code;) {
		int ends = c >= o->min;
		if (c > named && !bound)
			continue;
		if (bound && o->further) /* loop: after c + 1, at least one of them further */
			one = c < last ? nfa_call(f, rule, loop) : NFA_DEAD;
		uint32_t more = behind(f, c, one);
		at[c] = !bound && c && ends && o->further ? loop
		                                          : nfa_either(f, c + 1 >= o->min ? more : NFA_DEAD,
		                                                       !ends ? NFA_DEAD
		                                                       : c   ? rest
		                                                             : end);
		if (bound && o->further)
			loop = nfa_either(f, c ? more : NFA_DEAD, rest);
	}
}

/* Built from the last property to the first: at[c] follows c properties. */
static uint32_t members(struct object *o, uint32_t next)
{
	struct nfa *f = o->s->f;
	int bound = o->max != NFA_UNBOUNDED && (o->further || o->max < o->n);
	uint32_t last = bound ? o->max : o->min ? o->min : 1, begin;
	uint32_t *at = mem_try_array((size_t)last + 1, sizeof *at);
	if (!at)
		return nfa_no_memory(f);
	after_all(o, at, last, bound, next);
	for (size_t i = o->n; i-- > 0 && !o->s->failed && !f->err.code;) {
		const struct schema_property *p = &o->p[i];
		uint32_t to = NFA_DEAD, one = NFA_DEAD, rule = last > 1 && !p->never ? as_rule(o, p) : 0;
		for (uint32_t c = 0; c <= last && c <= i; c++) {
			uint32_t follows = c < last ? at[c + 1] : bound ? NFA_DEAD : at[last];
			if (p->never || follows == NFA_DEAD)
				one = NFA_DEAD;
			else if (follows != to)
				one = last > 1 ? nfa_call(f, rule, follows) : pair(o, p, follows);
			to = follows;
			at[c] = nfa_either(f, behind(f, c, one), p->required ? NFA_DEAD : at[c]);
		}
	}
	begin = at[0];
	free(at);
	return begin != NFA_DEAD
	           ? nfa_byte(f, '{', json_space(f, begin))
	           : schema_bad(o->s, o->further ? ERR_UNSUPPORTED : ERR_INVALID,
	                        o->min ? "minProperties" : "maxProperties",
	                        o->min && o->further
	                            ? "is supported up to one more than the properties that are named"
	                            : "is not possible with these properties");
}

uint32_t schema_object(struct schema *s, const json_t *v, uint32_t next)
{
	static const char *const keys[] = {"properties",           "required",
	                                   "additionalProperties", "propertyNames",
	                                   "patternProperties",    "minProperties",
	                                   "maxProperties",        "unevaluatedProperties"};
	struct object o = {.s = s};
	uint32_t begin = 0;
	int any = 1;
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		any &= !json_object_get(v, keys[i]);
	if (any && !s->strict)
		return json_object_rule(s->rules, next);
	if (read_object(&o, v) == 0)
		begin = members(&o, next);
	free(o.p);
	free(o.taken);
	return begin;
}
