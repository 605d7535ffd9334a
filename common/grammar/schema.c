/* schema.c - see schema.h: the kind of a schema, references, alternatives, fixed values.
 * SCHEMA_NEST_MAX bounds the recursion, the limit on nodes the work: after an error every builder
 * returns at once. */
#include "schema_int.h"
#include "util/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t schema_bad(struct schema *s, int code, const char *key, const char *fmt, ...)
{
	char text[200];
	va_list ap;
	if (s->failed)
		return 0;
	s->failed = 1;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	err_set(s->err, code, "%s%s%.60s: %s", s->path_len || key ? s->path : "the schema",
	        key ? "/" : "", key ? key : "", text);
	return 0;
}

size_t schema_enter(struct schema *s, const char *key)
{
	size_t mark = s->path_len,
		   n = (size_t)snprintf(s->path + mark, sizeof s->path - mark, "/%s", key);
	s->path_len = mark + n < sizeof s->path ? mark + n : sizeof s->path - 1;
	return mark;
}

void schema_leave(struct schema *s, size_t mark)
{
	s->path_len = mark;
	s->path[mark] = 0;
}

int schema_count(struct schema *s, const json_t *v, const char *key, uint32_t def, uint32_t *ret)
{
	const json_t *n = json_object_get(v, key);
	*ret = def;
	if (!n)
		return 0;
	if (!json_is_integer(n) || json_integer_value(n) < 0 ||
	    json_integer_value(n) > NFA_REPEAT_MAX) {
		schema_bad(s, ERR_INVALID, key, "must be a whole number from 0 to %u", NFA_REPEAT_MAX);
		return -1;
	}
	*ret = (uint32_t)json_integer_value(n);
	return 0;
}

/* --- fixed values -------------------------------------------------------- */

/* Compact JSON, with the fewest digits that preserve each number. malloc'ed. */
static char *dump(const json_t *v)
{
	char *text = NULL;
	for (unsigned digits = 15; digits <= 17; digits++) {
		free(text);
		text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits));
		json_t *back = text ? json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : NULL;
		int same = back && json_equal(back, v);
		json_decref(back);
		if (same)
			break;
	}
	return text;
}

static int is_type(const json_t *v, const char *type)
{
	if (strcmp(type, "integer") == 0)
		return json_is_integer(v);
	if (strcmp(type, "number") == 0)
		return json_is_number(v);
	return (json_is_string(v) && strcmp(type, "string") == 0) ||
	       (json_is_boolean(v) && strcmp(type, "boolean") == 0) ||
	       (json_is_null(v) && strcmp(type, "null") == 0) ||
	       (json_is_object(v) && strcmp(type, "object") == 0) ||
	       (json_is_array(v) && strcmp(type, "array") == 0);
}

/* Does v have one of the named types? 1 if none is named. */
static int fits_type(const json_t *types, const json_t *v)
{
	if (!types)
		return 1;
	if (json_is_string(types))
		return is_type(v, json_string_value(types));
	for (size_t i = 0; i < json_array_size(types); i++)
		if (json_is_string(json_array_get(types, i)) &&
		    is_type(v, json_string_value(json_array_get(types, i))))
			return 1;
	return 0;
}

/* The values of enum, or the one of const. */
static uint32_t fixed(struct schema *s, const json_t *v, const char *key, uint32_t next)
{
	const json_t *values = json_object_get(v, key), *types = json_object_get(v, "type");
	int single = strcmp(key, "const") == 0;
	size_t n = single ? 1 : json_array_size(values), kept = 0;
	if (!single && (!json_is_array(values) || n == 0))
		return schema_bad(s, ERR_INVALID, key, "must be an array with at least one value");
	struct nfa_string *list = mem_try_array(n, sizeof *list);
	if (!list)
		return nfa_no_memory(s->f);
	for (size_t i = 0; i < n && !s->f->err.code; i++) {
		const json_t *one = single ? values : json_array_get(values, i);
		if (!fits_type(types, one))
			continue;
		list[kept].s = dump(one);
		if (!list[kept].s) {
			nfa_no_memory(s->f);
			break;
		}
		list[kept].len = strlen(list[kept].s);
		kept++;
	}
	uint32_t begin = kept ? nfa_one_of(s->f, list, kept, next)
	                      : schema_bad(s, ERR_INVALID, key, "has no value of the named type");
	for (size_t i = 0; i < kept; i++)
		free((char *)list[i].s);
	free(list);
	return begin;
}

/* --- references ---------------------------------------------------------- */

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

static const json_t *resolve(const json_t *root, const char *ref)
{
	const json_t *at = root;
	if (*ref++ != '#')
		return NULL;
	while (at && *ref) {
		if (*ref++ != '/')
			return NULL;
		size_t n = strcspn(ref, "/");
		at = step(at, ref, n);
		ref += n;
	}
	return at;
}

uint32_t schema_call(struct schema *s, const json_t *target, uint32_t next)
{
	for (uint32_t i = 0; i < s->n_refs; i++)
		if (s->ref[i].target == target)
			return nfa_call(s->f, s->ref[i].rule, next);
	if (s->n_refs == SCHEMA_REFS_MAX)
		return schema_bad(s, ERR_FULL, NULL, "more than %u different references and arrays",
		                  SCHEMA_REFS_MAX);
	if (!s->ref)
		s->ref = mem_try_array(SCHEMA_REFS_MAX, sizeof *s->ref);
	if (!s->ref)
		return nfa_no_memory(s->f);
	uint32_t rule = nfa_rule(s->f);
	s->ref[s->n_refs++] = (struct schema_ref){target, rule};
	uint32_t begin = schema_value(s, target, 0);
	if (s->f->err.code || s->failed)
		return 0;
	nfa_rule_set(s->f, rule, begin);
	return nfa_call(s->f, rule, next);
}

static uint32_t reference(struct schema *s, const json_t *v, uint32_t next)
{
	const char *name = json_string_value(json_object_get(v, "$ref"));
	const json_t *target = name ? resolve(s->root, name) : NULL;
	char path[sizeof s->path];
	size_t mark = s->path_len;
	if (!target)
		return schema_bad(s, ERR_INVALID, "$ref", "\"%.80s\" leads nowhere within this schema",
		                  name ? name : "(not a string)");
	memcpy(path, s->path, sizeof path);
	schema_leave(s, 0);
	if (name[1] == '/')
		schema_enter(s, name + 2);
	uint32_t begin = schema_call(s, target, next);
	memcpy(s->path, path, sizeof path);
	s->path_len = mark;
	return begin;
}

/* --- allowed keywords ---------------------------------------------------- */

/* Keywords that do not constrain the value. */
static int is_annotation(const char *key)
{
	static const char *const names[] = {"title",    "description", "default",  "examples",
	                                    "$schema",  "$id",         "$comment", "deprecated",
	                                    "readOnly", "writeOnly",   "$defs",    "definitions"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strcmp(key, names[i]) == 0)
			return 1;
	return strncmp(key, "x-", 2) == 0;
}

static int is_typed(const char *key)
{
	static const char *const names[] = {
		"type",    "properties",       "required",        "additionalProperties",
		"items",   "minItems",         "maxItems",        "pattern",
		"format",  "minLength",        "maxLength",       "minimum",
		"maximum", "exclusiveMinimum", "exclusiveMaximum"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strcmp(key, names[i]) == 0)
			return 1;
	return 0;
}

static const char *const forms[] = {"$ref", "anyOf", "allOf", "enum", "const"};

/* The form of the schema: one of the above, or NULL: by type. Sets the error if a keyword is
 * unknown or the combination is not supported. */
static const char *form_of(struct schema *s, const json_t *v)
{
	const char *form = NULL, *key;
	json_t *member;
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
		if (json_object_get(v, forms[i]) && form)
			return schema_bad(s, ERR_UNSUPPORTED, forms[i], "is not supported beside %s", form),
			       NULL;
		form = json_object_get(v, forms[i]) ? forms[i] : form;
	}
	json_object_foreach((json_t *)v, key, member) {
		if (is_annotation(key) || (form && strcmp(key, form) == 0))
			continue;
		if (!is_typed(key))
			return schema_bad(s, ERR_UNSUPPORTED, key, "this keyword is not supported"), NULL;
		if (form &&
		    (strcmp(key, "type") != 0 || (strcmp(form, "enum") != 0 && strcmp(form, "const") != 0)))
			return schema_bad(s, ERR_UNSUPPORTED, key, "is not supported beside %s", form), NULL;
	}
	return form;
}

/* --- by type ------------------------------------------------------------- */

static uint32_t of_type(struct schema *s, const json_t *v, const char *type, uint32_t next)
{
	struct nfa *f = s->f;
	if (strcmp(type, "string") == 0)
		return schema_string(s, v, next);
	if (strcmp(type, "number") == 0 || strcmp(type, "integer") == 0)
		return schema_number(s, v, type[0] == 'i', next);
	if (strcmp(type, "object") == 0)
		return schema_object(s, v, next);
	if (strcmp(type, "array") == 0)
		return schema_array(s, v, next);
	if (strcmp(type, "boolean") == 0)
		return nfa_split(f, nfa_bytes(f, "true", 4, next), nfa_bytes(f, "false", 5, next));
	if (strcmp(type, "null") == 0)
		return nfa_bytes(f, "null", 4, next);
	return schema_bad(s, ERR_INVALID, "type",
	                  "\"%.40s\" is none of object, array, string, number, integer, boolean, null",
	                  type);
}

/* Without "type": the type that the other keywords imply. NULL: any value. */
static const char *implied_type(const json_t *v)
{
	static const struct {
		const char *key, *type;
	} says[] = {{"properties", "object"},
	            {"required", "object"},
	            {"additionalProperties", "object"},
	            {"items", "array"},
	            {"minItems", "array"},
	            {"maxItems", "array"},
	            {"pattern", "string"},
	            {"format", "string"},
	            {"minLength", "string"},
	            {"maxLength", "string"},
	            {"minimum", "number"},
	            {"maximum", "number"},
	            {"exclusiveMinimum", "number"},
	            {"exclusiveMaximum", "number"}};
	for (size_t i = 0; i < sizeof says / sizeof *says; i++)
		if (json_object_get(v, says[i].key))
			return says[i].type;
	return NULL;
}

static uint32_t by_type(struct schema *s, const json_t *v, uint32_t next)
{
	const json_t *types = json_object_get(v, "type");
	const char *type = types ? json_string_value(types) : implied_type(v);
	uint32_t way = 0;
	if (!types && !type)
		return json_any_rule(s->rules, next);
	if (type)
		return of_type(s, v, type, next);
	size_t n = json_array_size(types);
	if (n == 0 || n > 7)
		return schema_bad(s, ERR_INVALID, "type", "must be a name or an array of 1 to 7 names");
	for (size_t i = 0; i < n && !s->failed; i++) {
		const char *one = json_string_value(json_array_get(types, i));
		uint32_t part = of_type(s, v, one ? one : "(not a string)", next);
		way = way ? nfa_split(s->f, way, part) : part;
	}
	return way;
}

static uint32_t alternatives(struct schema *s, const json_t *list, uint32_t next)
{
	size_t n = json_array_size(list), up = schema_enter(s, "anyOf");
	uint32_t way = 0;
	if (n == 0)
		return schema_bad(s, ERR_INVALID, NULL, "must be an array with at least one schema");
	for (size_t i = 0; i < n && !s->failed && !s->f->err.code; i++) {
		char place[24];
		snprintf(place, sizeof place, "%zu", i);
		size_t mark = schema_enter(s, place);
		uint32_t part = schema_value(s, json_array_get(list, i), next);
		schema_leave(s, mark);
		way = way ? nfa_split(s->f, way, part) : part;
	}
	schema_leave(s, up);
	return way;
}

static uint32_t value(struct schema *s, const json_t *v, uint32_t next)
{
	if (json_is_true(v))
		return json_any_rule(s->rules, next);
	if (!json_is_object(v))
		return schema_bad(s, ERR_INVALID, NULL,
		                  json_is_false(v) ? "false allows no value" : "must be an object or true");
	const char *form = form_of(s, v);
	if (s->failed)
		return 0;
	if (!form)
		return by_type(s, v, next);
	if (strcmp(form, "$ref") == 0)
		return reference(s, v, next);
	if (strcmp(form, "anyOf") == 0)
		return alternatives(s, json_object_get(v, "anyOf"), next);
	if (strcmp(form, "allOf") != 0)
		return fixed(s, v, form, next);
	const json_t *all = json_object_get(v, "allOf");
	if (json_array_size(all) != 1)
		return schema_bad(s, ERR_UNSUPPORTED, "allOf", "is supported with one member only");
	size_t mark = schema_enter(s, "allOf/0");
	uint32_t begin = schema_value(s, json_array_get(all, 0), next);
	schema_leave(s, mark);
	return begin;
}

uint32_t schema_value(struct schema *s, const json_t *v, uint32_t next)
{
	if (s->failed || s->f->err.code)
		return 0;
	if (s->nest == SCHEMA_NEST_MAX)
		return schema_bad(s, ERR_FULL, NULL, "schemas nest more than %u deep", SCHEMA_NEST_MAX);
	s->nest++;
	uint32_t begin = value(s, v, next);
	s->nest--;
	return begin;
}

int schema_build(struct nfa *f, struct json_rules *rules, const json_t *schema, int strict,
                 uint32_t next, uint32_t *ret_begin, struct err *err)
{
	struct err own = {0};
	struct schema s = {.f = f, .rules = rules, .root = schema, .strict = strict, .err = &own};
	*ret_begin = schema_value(&s, schema, next);
	free(s.ref);
	return s.failed ? err_set(err, own.code, "%s", own.text) : 0;
}
