/* schema_type.c - see schema.h: strings and numbers of a schema. */
#include "regex.h"
#include "schema_int.h"
#include "util/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BOUND_MAX 9007199254740992.0 /* doubles hold whole numbers up to this exactly */
#define MULTIPLE_MAX 2000
#define PLACES_MAX 15u

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

/* Notes that the format constrains nothing, or returns its name. NULL also if there is none. */
static const char *known_format(struct schema *s, const json_t *v)
{
	const char *name = json_string_value(json_object_get(v, "format"));
	if (name && schema_has_format(name))
		return name;
	if (json_object_get(v, "format"))
		schema_note(s, "format", name ? name : "(not a string)");
	return NULL;
}

int schema_is_plain(const char *text)
{
	for (; *text; text++)
		if (*text < 0x20 || *text > 0x7e || *text == '"' || *text == '\\')
			return 0;
	return 1;
}

int schema_name_cmp(const void *a, const void *b)
{
	const struct nfa_string *x = a, *y = b;
	return strcmp(x->s, y->s);
}

uint32_t schema_other(struct nfa *f, const struct nfa_string *list, size_t n, size_t at,
                      uint32_t tail, uint32_t more, uint32_t next)
{
	struct byte_set rest = {{0}};
	uint32_t way = more;
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
		uint32_t part = nfa_byte(f, b, schema_other(f, list + i, k - i, at + 1, tail, more, next));
		way = way ? nfa_split(f, way, part) : part;
	}
	uint32_t part = nfa_set(f, &rest, tail);
	way = way ? nfa_split(f, way, part) : part;
	return taken ? way : nfa_split(f, way, nfa_byte(f, '"', next));
}

static uint32_t other_string(struct schema *s, const json_t *except, uint32_t next)
{
	size_t n = 0;
	struct nfa_string *list = mem_try_array(json_array_size(except), sizeof *list);
	if (!list)
		return nfa_no_memory(s->f);
	for (size_t i = 0; i < json_array_size(except) && !s->failed; i++) {
		const char *text = json_string_value(json_array_get(except, i));
		if (text && (!schema_is_plain(text) || strlen(text) > SCHEMA_NAME_MAX ||
		             strlen(text) != json_string_length(json_array_get(except, i))))
			schema_bad(s, ERR_UNSUPPORTED, "not",
			           "is supported for strings of at most %u plain ASCII characters",
			           SCHEMA_NAME_MAX);
		else if (text)
			list[n++].s = text;
	}
	qsort(list, n, sizeof *list, schema_name_cmp);
	uint32_t tail = json_string_rest(s->rules, next),
			 begin = schema_other(s->f, list, n, 0, tail, nfa_points(s->f, 0x80, 0x10ffff, tail),
	                              next);
	free(list);
	return nfa_byte(s->f, '"', begin);
}

uint32_t schema_string(struct schema *s, const json_t *v, const json_t *except, uint32_t next)
{
	const json_t *pattern = json_object_get(v, "pattern");
	const char *format = known_format(s, v);
	int lengths = json_object_get(v, "minLength") || json_object_get(v, "maxLength");
	uint32_t min, max, begin = 0;
	if (!!pattern + !!format + lengths + !!except > 1)
		return schema_bad(s, ERR_UNSUPPORTED,
		                  except    ? "not"
		                  : pattern ? "pattern"
		                            : "format",
		                  "is not supported beside %s",
		                  pattern && !except ? format ? "format" : "minLength or maxLength"
		                  : pattern          ? "pattern"
		                  : format && except ? "format"
		                                     : "minLength or maxLength");
	if (pattern)
		return patterned(s, pattern, next);
	if (format && schema_format(s->f, format, nfa_byte(s->f, '"', next), &begin) == 0)
		return nfa_byte(s->f, '"', begin);
	if (except)
		return other_string(s, except, next);
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
	if (!n || (open && json_is_boolean(n)))
		return 0;
	if (!open) /* as in OpenAPI 3.0 */
		open = json_is_true(json_object_get(v, high ? "exclusiveMaximum" : "exclusiveMinimum"));
	double d = json_number_value(n);
	json_int_t whole = json_integer_value(n);
	if (json_is_integer(n) ? open && (whole == INT64_MIN || whole == INT64_MAX)
	                       : !json_is_real(n) || !(fabs(d) <= BOUND_MAX)) {
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
	int64_t at = json_is_integer(n) ? whole : (int64_t)(high ? floor(d) : ceil(d));
	if (integer && open && (json_is_integer(n) || (double)at == d))
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

/* Sets *ret_of to the whole number whose multiples are allowed (1: any; 0: numbers that are not
 * whole, too), or b->places. */
static int take_multiple(struct schema *s, const json_t *v, int integer, struct json_bounds *b,
                         uint32_t *ret_of)
{
	const json_t *n = json_object_get(v, "multipleOf");
	double of = json_number_value(n), tenth = 10;
	*ret_of = integer;
	if (!n)
		return 0;
	if (!json_is_number(n) || !(of > 0))
		return schema_bad(s, ERR_INVALID, "multipleOf", "must be a number above 0"), -1;
	if (of == floor(of) && of <= MULTIPLE_MAX) {
		*ret_of = (uint32_t)of;
		return 0;
	}
	for (uint32_t places = 1; places <= PLACES_MAX; places++, tenth *= 10) {
		if (of != 1 / tenth)
			continue;
		b->places = places;
		return 0;
	}
	return schema_bad(s, ERR_UNSUPPORTED, "multipleOf",
	                  "%.10g is not supported: whole numbers up to %u and 0.1, 0.01 ... are", of,
	                  MULTIPLE_MAX),
	       -1;
}

static int int_cmp(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

static uint32_t integers(struct schema *s, const struct json_bounds *b, uint32_t of, uint32_t next)
{
	if (b->has_lo && b->has_hi && b->lo > b->hi)
		return 0;
	return of > 1 ? json_multiple_in(s->f, b, of, next) : json_integer_in(s->f, b, next);
}

/* The integers between those of `except`. */
static uint32_t other_integers(struct schema *s, struct json_bounds b, uint32_t of,
                               const json_t *except, uint32_t next)
{
	size_t n = 0;
	int64_t *list = mem_try_array(json_array_size(except), sizeof *list);
	uint32_t way = 0;
	if (!list)
		return nfa_no_memory(s->f);
	for (size_t i = 0; i < json_array_size(except); i++) {
		const json_t *one = json_array_get(except, i);
		double d = json_number_value(one);
		if (json_is_number(one) && fabs(d) <= BOUND_MAX && d == floor(d))
			list[n++] = (int64_t)d;
		else if (json_is_number(one) && d == floor(d))
			schema_bad(s, ERR_UNSUPPORTED, "not", "has a number beyond 9e15");
	}
	qsort(list, n, sizeof *list, int_cmp);
	for (size_t i = 0; i < n && !s->failed && !s->f->err.code; i++) {
		struct json_bounds part = b;
		if ((b.has_hi && list[i] > b.hi) || (b.has_lo && list[i] < b.lo))
			continue;
		part.has_hi = 1;
		part.hi = list[i] - 1;
		uint32_t one = integers(s, &part, of, next);
		way = way && one ? nfa_split(s->f, way, one) : way ? way : one;
		b.has_lo = 1;
		b.lo = list[i] + 1;
	}
	free(list);
	uint32_t one = integers(s, &b, of, next);
	return way && one ? nfa_split(s->f, way, one) : way ? way : one;
}

uint32_t schema_number(struct schema *s, const json_t *v, int integer, const json_t *except,
                       uint32_t next)
{
	struct json_bounds b = {0};
	uint32_t of, begin;
	known_format(s, v);
	if (take_multiple(s, v, integer, &b, &of) < 0 ||
	    take_bound(s, v, "minimum", 0, 0, of > 0, &b) < 0 ||
	    take_bound(s, v, "exclusiveMinimum", 0, 1, of > 0, &b) < 0 ||
	    take_bound(s, v, "maximum", 1, 0, of > 0, &b) < 0 ||
	    take_bound(s, v, "exclusiveMaximum", 1, 1, of > 0, &b) < 0)
		return 0;
	if (!b.has_lo && !b.has_hi && of < 2 && !b.places && !except)
		return of ? json_integer_rule(s->rules, next) : json_number_rule(s->rules, next);
	begin = except ? other_integers(s, b, of, except, next)
	        : of   ? integers(s, &b, of, next)
	               : json_number_in(s->f, &b, next);
	return begin || s->failed || s->f->err.code
	           ? begin
	           : schema_bad(s, ERR_INVALID, NULL, "no number is between the bounds");
}
