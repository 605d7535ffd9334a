/* schema_sets.c - see schema_int.h: which values schemas allow, as far as it can be told from their
 * types, enum and const, and from the properties that objects must have. */
#include "schema_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 8u

/* One step of a JSON pointer, text[0..len), with its escapes decoded. */
static const json_t *step(const json_t *at, const char *text, size_t len)
{
	char key[256];
	size_t n = 0;
	for (size_t i = 0; i < len; i++) {
		char c = text[i];
		if (c == '~' && i + 1 < len && (text[i + 1] == '0' || text[i + 1] == '1'))
			c = text[++i] == '0' ? '~' : '/';
		if (n + 1 == sizeof key)
			return NULL;
		key[n++] = c;
	}
	key[n] = 0;
	if (!json_is_array(at))
		return json_object_get(at, key);
	char *end;
	unsigned long i = strtoul(key, &end, 10);
	return n && n < 7 && !*end && key[0] != '-' && key[0] != '+' ? json_array_get(at, i) : NULL;
}

const json_t *schema_resolve(struct schema *s, const char *ref)
{
	const json_t *at = s->root;
	if (*ref++ != '#')
		return NULL;
	while (at && *ref && nfa_step(s->f) == 0) {
		if (*ref++ != '/')
			return NULL;
		size_t n = strcspn(ref, "/");
		at = step(at, ref, n);
		ref += n;
	}
	return at;
}

const json_t *schema_behind(struct schema *s, const json_t *v)
{
	const json_t *all = json_object_get(v, "allOf");
	const char *ref = json_string_value(json_object_get(v, "$ref"));
	if (json_is_true(json_object_get(v, "nullable")))
		return NULL;
	return ref ? schema_resolve(s, ref) : json_array_size(all) == 1 ? json_array_get(all, 0) : NULL;
}

const json_t *schema_meant(struct schema *s, const json_t *v)
{
	const json_t *to = v;
	for (unsigned i = 0; i < DEPTH_MAX && to; i++) {
		v = to;
		to = schema_behind(s, v);
	}
	return v;
}

unsigned schema_type_bits(const char *name)
{
	static const struct {
		const char *name;
		unsigned bits;
	} types[] = {{"null", TYPE_NULL},       {"boolean", TYPE_BOOLEAN},
	             {"integer", TYPE_INTEGER}, {"number", TYPE_INTEGER | TYPE_FRACTION},
	             {"string", TYPE_STRING},   {"array", TYPE_ARRAY},
	             {"object", TYPE_OBJECT}};
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (strcmp(types[i].name, name) == 0)
			return types[i].bits;
	return 0;
}

unsigned schema_named_types(const json_t *type)
{
	unsigned bits = json_is_string(type) ? schema_type_bits(json_string_value(type)) : 0;
	if (json_array_size(type) > SCHEMA_TYPES_MAX)
		return 0;
	for (size_t i = 0; i < json_array_size(type); i++)
		if (json_is_string(json_array_get(type, i)))
			bits |= schema_type_bits(json_string_value(json_array_get(type, i)));
	return bits;
}

unsigned schema_value_type(const json_t *v)
{
	switch (json_typeof(v)) {
	case JSON_OBJECT: return TYPE_OBJECT;
	case JSON_ARRAY: return TYPE_ARRAY;
	case JSON_STRING: return TYPE_STRING;
	case JSON_INTEGER: return TYPE_INTEGER;
	case JSON_REAL: /* 1.0 is an integer */
		return json_real_value(v) == floor(json_real_value(v)) ? TYPE_INTEGER | TYPE_FRACTION
		                                                       : TYPE_FRACTION;
	case JSON_TRUE:
	case JSON_FALSE: return TYPE_BOOLEAN;
	case JSON_NULL: return TYPE_NULL;
	}
	return 0;
}

int schema_same(struct schema *s, const json_t *a, const json_t *b)
{
	const char *key;
	json_t *member;
	if (nfa_step(s->f) < 0)
		return 1;
	if (json_is_number(a) && json_is_number(b) && !(json_is_integer(a) && json_is_integer(b)))
		return json_number_value(a) == json_number_value(b);
	if (json_is_array(a) && json_is_array(b)) {
		size_t i = 0, n = json_array_size(a);
		while (i < n && schema_same(s, json_array_get(a, i), json_array_get(b, i)))
			i++;
		return i == n && n == json_array_size(b);
	}
	if (!json_is_object(a) || !json_is_object(b))
		return json_equal(a, b);
	json_object_foreach((json_t *)a, key, member) {
		const json_t *other = json_object_get(b, key);
		if (!other || !schema_same(s, member, other))
			return 0;
	}
	return json_object_size(a) == json_object_size(b);
}

int schema_has(struct schema *s, const json_t *values, const json_t *v)
{
	for (size_t i = 0; i < json_array_size(values); i++)
		if (schema_same(s, json_array_get(values, i), v))
			return 1;
	return 0;
}

int schema_requires(struct schema *s, const json_t *v, const char *name)
{
	const json_t *required = json_object_get(v, "required");
	for (size_t i = 0; i < json_array_size(required) && nfa_step(s->f) == 0; i++) {
		const char *one = json_string_value(json_array_get(required, i));
		if (one && strcmp(one, name) == 0)
			return 1;
	}
	return 0;
}

json_t *schema_values(struct schema *s, const json_t *v)
{
	v = schema_meant(s, v);
	const json_t *type = json_object_get(v, "type"), *list = json_object_get(v, "enum");
	json_t *one = json_object_get(v, "const"), *values = json_array();
	unsigned types = type ? schema_named_types(type) : TYPE_ALL;
	int failed = 0;
	if (json_is_true(json_object_get(v, "nullable")))
		types |= TYPE_NULL;
	if (one || json_is_array(list)) {
		for (size_t i = 0; i < (one ? 1 : json_array_size(list)); i++) {
			json_t *each = one ? one : json_array_get(list, i);
			if (schema_value_type(each) & types && nfa_step(s->f) == 0)
				failed |= json_array_append(values, each);
		}
	} else if (type && !(types & ~(unsigned)(TYPE_BOOLEAN | TYPE_NULL))) {
		if (types & TYPE_BOOLEAN)
			failed = json_array_append_new(values, json_true()) |
			         json_array_append_new(values, json_false());
		if (types & TYPE_NULL)
			failed |= json_array_append_new(values, json_null());
	} else {
		json_decref(values);
		return NULL;
	}
	if (!values || failed)
		nfa_no_memory(s->f);
	return values;
}

static const json_t *members_of(const json_t *v)
{
	const json_t *any = json_object_get(v, "anyOf");
	return any ? any : json_object_get(v, "oneOf");
}

static unsigned types_of(struct schema *s, const json_t *v, unsigned depth)
{
	v = schema_meant(s, v);
	const json_t *type = json_object_get(v, "type"), *one = json_object_get(v, "const"),
				 *list = json_object_get(v, "enum"), *any = members_of(v);
	unsigned types = type ? schema_named_types(type) : TYPE_ALL, some = 0;
	if (depth == DEPTH_MAX || nfa_step(s->f) < 0)
		return TYPE_ALL;
	if (json_is_true(json_object_get(v, "nullable")))
		types |= TYPE_NULL;
	if (one)
		return types & schema_value_type(one);
	if (!json_is_array(list) && !json_is_array(any))
		return types;
	for (size_t i = 0; i < json_array_size(list) && nfa_step(s->f) == 0; i++)
		some |= schema_value_type(json_array_get(list, i));
	for (size_t i = 0; !list && i < json_array_size(any); i++)
		some |= types_of(s, json_array_get(any, i), depth + 1);
	return types & (some | (json_is_true(json_object_get(v, "nullable")) ? TYPE_NULL : 0));
}

unsigned schema_types(struct schema *s, const json_t *v)
{
	return types_of(s, v, 0);
}

static int apart(struct schema *s, const json_t *a, const json_t *b, unsigned depth);

/* Has each object of a a property that no object of b has? */
static int objects_apart(struct schema *s, const json_t *a, const json_t *b, unsigned depth)
{
	const json_t *required = json_object_get(a, "required"),
				 *in_a = json_object_get(a, "properties"), *in_b = json_object_get(b, "properties");
	int closed = json_is_false(json_object_get(b, "additionalProperties")) &&
	             !json_object_get(b, "patternProperties");
	for (size_t i = 0; i < json_array_size(required) && nfa_step(s->f) == 0; i++) {
		const char *name = json_string_value(json_array_get(required, i));
		const json_t *pa = name ? json_object_get(in_a, name) : NULL,
					 *pb = name ? json_object_get(in_b, name) : NULL;
		if (name && (pb ? pa && apart(s, pa, pb, depth + 1) : closed))
			return 1;
	}
	return 0;
}

static int all_apart(struct schema *s, const json_t *list, const json_t *b, unsigned depth)
{
	for (size_t i = 0; i < json_array_size(list); i++)
		if (!apart(s, json_array_get(list, i), b, depth + 1))
			return 0;
	return json_array_size(list) > 0;
}

static int values_apart(struct schema *s, const json_t *a, const json_t *b)
{
	if (!a || !b)
		return 0;
	for (size_t i = 0; i < json_array_size(a); i++)
		for (size_t k = 0; k < json_array_size(b); k++)
			if (schema_same(s, json_array_get(a, i), json_array_get(b, k)))
				return 0;
	return 1;
}

static int apart(struct schema *s, const json_t *a, const json_t *b, unsigned depth)
{
	a = schema_meant(s, a);
	b = schema_meant(s, b);
	if (depth == DEPTH_MAX || nfa_step(s->f) < 0)
		return 0;
	if (json_is_false(a) || json_is_false(b))
		return 1;
	unsigned both = types_of(s, a, depth) & types_of(s, b, depth);
	if (!both)
		return 1;
	json_t *of_a = schema_values(s, a), *of_b = schema_values(s, b);
	int are = values_apart(s, of_a, of_b);
	json_decref(of_a);
	json_decref(of_b);
	return are || all_apart(s, members_of(a), b, depth) || all_apart(s, members_of(b), a, depth) ||
	       (both == TYPE_OBJECT &&
	        (objects_apart(s, a, b, depth) || objects_apart(s, b, a, depth)));
}

int schema_apart(struct schema *s, const json_t *a, const json_t *b)
{
	return apart(s, a, b, 0);
}
