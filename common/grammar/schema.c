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
	if (s->failed || s->f->err.code)
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

uint32_t schema_one_of(struct schema *s, const json_t *values, uint32_t next)
{
	size_t n = json_array_size(values), kept = 0;
	struct nfa_string *list = mem_try_array(n, sizeof *list);
	if (!list)
		return nfa_no_memory(s->f);
	for (; kept < n; kept++) {
		list[kept].s = dump(json_array_get(values, kept));
		if (!list[kept].s) {
			nfa_no_memory(s->f);
			break;
		}
		list[kept].len = strlen(list[kept].s);
	}
	uint32_t begin = kept ? nfa_one_of(s->f, list, kept, next) : 0;
	for (size_t i = 0; i < kept; i++)
		free((char *)list[i].s);
	free(list);
	return begin;
}

/* --- references ---------------------------------------------------------- */

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
	const json_t *target = name ? schema_resolve(s, name) : NULL;
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

/* --- keywords ------------------------------------------------------------ */

/* Sorted. ANNOTATION: known to constrain nothing; TYPED: for values of one type, which the builders
 * of the types read; REFUSED: constrains, and cannot be kept. */
enum keyword_kind { ANNOTATION, TYPED, FORM, BESIDE, REFUSED };

static const struct keyword {
	const char *name;
	enum keyword_kind kind;
	const char *implies; /* the type, if no other says it */
} keywords[] = {
	{"$anchor", ANNOTATION, NULL},
	{"$comment", ANNOTATION, NULL},
	{"$defs", ANNOTATION, NULL},
	{"$dynamicRef", REFUSED, NULL},
	{"$id", ANNOTATION, NULL},
	{"$recursiveRef", REFUSED, NULL},
	{"$ref", FORM, NULL},
	{"$schema", ANNOTATION, NULL},
	{"$vocabulary", ANNOTATION, NULL},
	{"additionalItems", TYPED, NULL},
	{"additionalProperties", TYPED, "object"},
	{"allOf", FORM, NULL},
	{"anyOf", FORM, NULL},
	{"const", FORM, NULL},
	{"contains", TYPED, "array"},
	{"default", ANNOTATION, NULL},
	{"definitions", ANNOTATION, NULL},
	{"dependencies", REFUSED, NULL},
	{"dependentRequired", REFUSED, NULL},
	{"dependentSchemas", REFUSED, NULL},
	{"deprecated", ANNOTATION, NULL},
	{"description", ANNOTATION, NULL},
	{"discriminator", ANNOTATION, NULL}, /* the members of oneOf are told apart without it, too */
	{"else", REFUSED, NULL},
	{"enum", FORM, NULL},
	{"enumNames", ANNOTATION, NULL},
	{"errorMessage", ANNOTATION, NULL},
	{"example", ANNOTATION, NULL},
	{"examples", ANNOTATION, NULL},
	{"exclusiveMaximum", TYPED, "number"},
	{"exclusiveMinimum", TYPED, "number"},
	{"externalDocs", ANNOTATION, NULL},
	{"format", TYPED, "string"},
	{"id", ANNOTATION, NULL},
	{"if", REFUSED, NULL},
	{"items", TYPED, "array"},
	{"maxContains", TYPED, NULL},
	{"maxItems", TYPED, "array"},
	{"maxLength", TYPED, "string"},
	{"maxProperties", TYPED, "object"},
	{"maximum", TYPED, "number"},
	{"minContains", TYPED, NULL},
	{"minItems", TYPED, "array"},
	{"minLength", TYPED, "string"},
	{"minProperties", TYPED, "object"},
	{"minimum", TYPED, "number"},
	{"multipleOf", TYPED, "number"},
	{"not", BESIDE, NULL},
	{"nullable", BESIDE, NULL},
	{"oneOf", FORM, NULL},
	{"pattern", TYPED, "string"},
	{"patternProperties", TYPED, "object"},
	{"prefixItems", TYPED, "array"},
	{"properties", TYPED, "object"},
	{"propertyNames", TYPED, "object"},
	{"readOnly", ANNOTATION, NULL},
	{"required", TYPED, "object"},
	{"strict", ANNOTATION, NULL}, /* in the parameters of a tool */
	{"then", REFUSED, NULL},
	{"title", ANNOTATION, NULL},
	{"type", BESIDE, NULL},
	{"unevaluatedItems", REFUSED, NULL},
	{"unevaluatedProperties", TYPED, "object"},
	{"uniqueItems", TYPED, "array"},
	{"writeOnly", ANNOTATION, NULL},
	{"xml", ANNOTATION, NULL},
};

static int keyword_cmp(const void *name, const void *k)
{
	return strcmp(name, ((const struct keyword *)k)->name);
}

/* NULL: nobody knows it, so it is an annotation. */
static const struct keyword *keyword(const char *name)
{
	return bsearch(name, keywords, sizeof keywords / sizeof *keywords, sizeof *keywords,
	               keyword_cmp);
}

void schema_note(struct schema *s, const char *key, const char *value)
{
	struct schema_ignored *i = s->ignored;
	char text[sizeof i->name[0]];
	snprintf(text, sizeof text, value ? "%.30s \"%.30s\"" : "%.60s", key, value);
	for (unsigned k = 0; k < i->n; k++)
		if (strcmp(i->name[k], text) == 0)
			return;
	if (i->n < SCHEMA_IGNORED_MAX)
		memcpy(i->name[i->n++], text, sizeof text);
}

const json_t *schema_keep(struct schema *s, json_t *v)
{
	if (!s->made)
		s->made = json_array();
	if (!v || json_array_append_new(s->made, v) < 0)
		return nfa_no_memory(s->f), NULL;
	return v;
}

static int is_fixed(const char *form)
{
	return form && (strcmp(form, "enum") == 0 || strcmp(form, "const") == 0);
}

/* The form of the schema, a FORM, or NULL: by type. Sets the error if the combination is not
 * supported. */
static const char *form_of(struct schema *s, const json_t *v)
{
	const char *form = NULL, *key;
	json_t *member;
	json_object_foreach((json_t *)v, key, member) {
		const struct keyword *k = keyword(key);
		if (k && k->kind == REFUSED)
			return schema_bad(s, ERR_UNSUPPORTED, key, "this keyword is not supported"), NULL;
		if (k && k->kind == FORM && form)
			return schema_bad(s, ERR_UNSUPPORTED, key, "is not supported beside %s", form), NULL;
		if (!k && strncmp(key, "x-", 2) != 0)
			schema_note(s, key, NULL);
		form = k && k->kind == FORM ? k->name : form;
	}
	json_object_foreach((json_t *)v, key, member) {
		const struct keyword *k = form ? keyword(key) : NULL;
		if (k && (k->kind == TYPED || (!is_fixed(form) && strcmp(key, "not") == 0)))
			return schema_bad(s, ERR_UNSUPPORTED, key, "is not supported beside %s", form), NULL;
	}
	return form;
}

/* --- by type ------------------------------------------------------------- */

/* What `not` excludes: types, or an array of values. */
struct denied {
	unsigned types;
	json_t *values; /* owned; NULL: none */
};

static int read_not(struct schema *s, const json_t *v, struct denied *ret)
{
	const json_t *no = json_object_get(v, "not");
	*ret = (struct denied){0};
	if (!no)
		return 0;
	no = schema_meant(s, no);
	const json_t *one = json_object_get(no, "const"), *list = json_object_get(no, "enum");
	const char *key;
	json_t *member;
	json_object_foreach((json_t *)no, key, member) {
		const struct keyword *k = keyword(key);
		if (k && k->kind != ANNOTATION && strcmp(key, "type") != 0 && member != one &&
		    member != list)
			return schema_bad(s, ERR_UNSUPPORTED, "not",
			                  "is supported with type, enum or const only, not with %.40s", key),
			       -1;
	}
	if (one || json_is_array(list))
		ret->values = one ? json_pack("[O]", one) : json_incref((json_t *)list);
	else
		ret->types = schema_named_types(json_object_get(no, "type"));
	if (ret->values || ret->types)
		return 0;
	return schema_bad(s, ERR_UNSUPPORTED, "not", "is supported with type, enum or const only"), -1;
}

/* Does "type" beside this form say nothing that the form does not? */
static int is_typed_so(struct schema *s, const json_t *v, const char *form)
{
	const json_t *type = json_object_get(v, "type"), *list = json_object_get(v, form);
	unsigned types = 0;
	if (!type)
		return 1;
	if (json_is_string(list))
		types = schema_types(s, schema_resolve(s, json_string_value(list)));
	for (size_t i = 0; i < json_array_size(list); i++)
		types |= schema_types(s, json_array_get(list, i));
	return !(types & ~schema_named_types(type));
}

/* form_of, and checks "type" beside it. */
static const char *typed_form_of(struct schema *s, const json_t *v)
{
	const char *form = form_of(s, v);
	if (form && !is_fixed(form) && !is_typed_so(s, v, form))
		schema_bad(s, ERR_UNSUPPORTED, "type", "is not supported beside %s", form);
	return s->failed ? NULL : form;
}

const json_t *schema_referred(struct schema *s, const json_t *v)
{
	const json_t *last = schema_meant(s, v);
	for (; v && v != last && !s->failed && !s->f->err.code; v = schema_behind(s, v))
		typed_form_of(s, v);
	return v;
}

json_t *schema_enumerated(struct schema *s, const json_t *v)
{
	struct denied no;
	v = schema_referred(s, v);
	const char *form = typed_form_of(s, v);
	json_t *values = s->failed || (form && !is_fixed(form)) ? NULL : schema_values(s, v);
	if (!values || read_not(s, v, &no) < 0)
		return values;
	for (size_t i = json_array_size(values); i-- > 0 && nfa_step(s->f) == 0;) {
		const json_t *one = json_array_get(values, i);
		if (schema_has(s, no.values, one) || schema_value_type(one) & no.types)
			json_array_remove(values, i);
	}
	json_decref(no.values);
	return values;
}

/* The values of enum, or the one of const. */
static uint32_t fixed(struct schema *s, const json_t *v, const char *key, uint32_t next)
{
	const json_t *list = json_object_get(v, key);
	if (strcmp(key, "const") != 0 && json_array_size(list) == 0)
		return schema_bad(s, ERR_INVALID, key, "must be an array with at least one value");
	json_t *values = schema_enumerated(s, v);
	uint32_t begin = values && json_array_size(values)
	                     ? schema_one_of(s, values, next)
	                     : schema_bad(s, ERR_INVALID, key, "has no value of the named type%s",
	                                  json_object_get(v, "not") ? " that `not` allows" : "");
	json_decref(values);
	return begin;
}

/* true and false, or null, but for those of `except`. */
static uint32_t literals(struct schema *s, json_t *values, const json_t *except, uint32_t next)
{
	for (size_t i = json_array_size(values); i-- > 0;)
		if (schema_has(s, except, json_array_get(values, i)))
			json_array_remove(values, i);
	uint32_t begin = values && json_array_size(values) ? schema_one_of(s, values, next) : 0;
	if (!values)
		nfa_no_memory(s->f);
	json_decref(values);
	return begin;
}

static int excludes_some(const struct denied *no, unsigned types)
{
	for (size_t i = 0; i < json_array_size(no->values); i++)
		if (schema_value_type(json_array_get(no->values, i)) & types)
			return 1;
	return 0;
}

/* Returns 0 without an error if `not` leaves no value of this type. */
static uint32_t of_type(struct schema *s, const json_t *v, const char *type,
                        const struct denied *no, uint32_t next)
{
	unsigned types = schema_type_bits(type);
	const json_t *except = excludes_some(no, types) ? no->values : NULL;
	if (!types)
		return schema_bad(
			s, ERR_INVALID, "type",
			"\"%.40s\" is none of object, array, string, number, integer, boolean, null", type);
	if (types & no->types && types & ~no->types)
		return schema_bad(s, ERR_UNSUPPORTED, "not", "integer is not supported beside number");
	if (types & no->types)
		return 0;
	if (except && (types & TYPE_FRACTION || types == TYPE_OBJECT || types == TYPE_ARRAY))
		return schema_bad(s, ERR_UNSUPPORTED, "not", "values of type %s are not supported", type);
	switch (types) {
	case TYPE_STRING: return schema_string(s, v, except, next);
	case TYPE_OBJECT: return schema_object(s, v, next);
	case TYPE_ARRAY: return schema_array(s, v, next);
	case TYPE_BOOLEAN: return literals(s, json_pack("[b,b]", 1, 0), except, next);
	case TYPE_NULL: return literals(s, json_pack("[n]"), except, next);
	default: return schema_number(s, v, types == TYPE_INTEGER, except, next);
	}
}

static uint32_t by_types(struct schema *s, const json_t *v, const json_t *types,
                         const struct denied *no, uint32_t next)
{
	size_t n = json_array_size(types);
	uint32_t way = 0;
	if (n == 0 || n > SCHEMA_TYPES_MAX)
		return schema_bad(s, ERR_INVALID, "type", "must be a name or an array of 1 to %u names",
		                  SCHEMA_TYPES_MAX);
	for (size_t i = 0; i < n && !s->failed; i++) {
		const char *one = json_string_value(json_array_get(types, i));
		uint32_t part = of_type(s, v, one ? one : "(not a string)", no, next);
		way = way && part ? nfa_split(s->f, way, part) : way ? way : part;
	}
	return way;
}

/* Without "type": the type that the other keywords imply. NULL: any value. */
static const char *implied_type(const json_t *v)
{
	const char *key;
	json_t *member;
	json_object_foreach((json_t *)v, key, member) {
		const struct keyword *k = keyword(key);
		if (k && k->implies)
			return k->implies;
	}
	return NULL;
}

static uint32_t by_type(struct schema *s, const json_t *v, const struct denied *no, uint32_t next)
{
	const json_t *types = json_object_get(v, "type");
	const char *type = types ? json_string_value(types) : implied_type(v);
	uint32_t begin;
	if (type) {
		begin = of_type(s, v, type, no, next);
	} else if (!types && (no->types || no->values)) {
		json_t *all = json_pack("[s,s,s,s,s,s]", "string", "number", "boolean", "null", "array",
		                        "object");
		begin = all ? by_types(s, v, all, no, next) : nfa_no_memory(s->f);
		json_decref(all);
	} else {
		begin = types ? by_types(s, v, types, no, next) : json_any_rule(s->rules, next);
	}
	return begin || s->failed || s->f->err.code
	           ? begin
	           : schema_bad(s, ERR_INVALID, "not", "leaves no value");
}

/* --- alternatives -------------------------------------------------------- */

/* The schema with the property among `required`; the same for the same schema. NULL: error. */
static const json_t *with_required(struct schema *s, const json_t *v, const char *name)
{
	v = schema_referred(s, v);
	json_t *required = json_object_get(v, "required");
	if (s->failed || !json_object_get(json_object_get(v, "properties"), name) ||
	    schema_requires(s, v, name))
		return v;
	if (required && !json_is_array(required))
		return schema_bad(s, ERR_INVALID, "required", "must be an array of names"), NULL;
	for (uint32_t i = 0; i < s->n_tagged && nfa_step(s->f) == 0; i++)
		if (s->tagged[i].from == v && schema_requires(s, s->tagged[i].made, name))
			return s->tagged[i].made;
	if (s->n_tagged == SCHEMA_REFS_MAX)
		return schema_bad(s, ERR_FULL, NULL, "more than %u members with a discriminator",
		                  SCHEMA_REFS_MAX),
		       NULL;
	if (!s->tagged)
		s->tagged = mem_try_array(SCHEMA_REFS_MAX, sizeof *s->tagged);
	json_t *own = json_copy((json_t *)v), *list = json_array();
	if (!s->tagged || (required && json_array_extend(list, required) < 0) ||
	    json_array_append_new(list, json_string(name)) < 0 ||
	    json_object_set_new(own, "required", json_incref(list)) < 0) {
		json_decref(own);
		json_decref(list);
		return nfa_no_memory(s->f), NULL;
	}
	json_decref(list);
	if (schema_keep(s, own))
		s->tagged[s->n_tagged++] = (struct schema_tagged){v, own};
	return s->f->err.code ? NULL : own;
}

/* oneOf is anyOf if no value is valid by two of its members. */
static void check_apart(struct schema *s, const json_t *const *list, size_t n)
{
	for (size_t i = 0; i < n && !s->failed && !s->f->err.code; i++)
		for (size_t k = 0; k < i; k++)
			if (!schema_apart(s, list[i], list[k]))
				schema_bad(s, ERR_UNSUPPORTED, NULL,
				           "members %zu and %zu may both match: give them different types, or a "
				           "required property with a different const or enum",
				           k, i);
}

static uint32_t alternatives(struct schema *s, const json_t *v, const char *form, uint32_t next)
{
	const json_t *all = json_object_get(v, form);
	const char *tag = json_string_value(
		json_object_get(json_object_get(v, "discriminator"), "propertyName"));
	size_t n = json_array_size(all), up = schema_enter(s, form);
	const json_t **list = mem_try_array(n, sizeof *list);
	uint32_t way = 0;
	int one = strcmp(form, "oneOf") == 0;
	if (n == 0)
		schema_bad(s, ERR_INVALID, NULL, "must be an array with at least one schema");
	if (!list)
		nfa_no_memory(s->f);
	for (size_t i = 0; i < n && list; i++)
		list[i] = one && tag ? with_required(s, json_array_get(all, i), tag)
		                     : json_array_get(all, i);
	if (one && list)
		check_apart(s, list, n);
	for (size_t i = 0; i < n && !s->failed && !s->f->err.code; i++) {
		char place[24];
		snprintf(place, sizeof place, "%zu", i);
		size_t mark = schema_enter(s, place);
		/* one that is required to have its tag may refer to itself */
		uint32_t part = one && tag ? schema_call(s, list[i], next) : schema_value(s, list[i], next);
		schema_leave(s, mark);
		way = way ? nfa_split(s->f, way, part) : part;
	}
	free(list);
	schema_leave(s, up);
	return way;
}

static uint32_t of_form(struct schema *s, const json_t *v, const char *form,
                        const struct denied *no, uint32_t next)
{
	if (!form)
		return by_type(s, v, no, next);
	if (is_fixed(form))
		return fixed(s, v, form, next);
	if (strcmp(form, "$ref") == 0)
		return reference(s, v, next);
	if (strcmp(form, "allOf") != 0)
		return alternatives(s, v, form, next);
	const json_t *all = json_object_get(v, "allOf");
	if (json_array_size(all) != 1)
		return schema_bad(s, ERR_UNSUPPORTED, "allOf", "is supported with one member only");
	size_t mark = schema_enter(s, "allOf/0");
	uint32_t begin = schema_value(s, json_array_get(all, 0), next);
	schema_leave(s, mark);
	return begin;
}

static uint32_t value(struct schema *s, const json_t *v, uint32_t next)
{
	if (json_is_true(v))
		return json_any_rule(s->rules, next);
	if (!json_is_object(v))
		return schema_bad(s, ERR_INVALID, NULL,
		                  json_is_false(v) ? "false allows no value" : "must be an object or true");
	struct denied no = {0};
	const char *form = typed_form_of(s, v);
	if (s->failed || read_not(s, v, &no) < 0)
		return 0;
	uint32_t begin = of_form(s, v, form, &no, next);
	json_t *null = json_null();
	int or_null = !is_fixed(form) && json_is_true(json_object_get(v, "nullable")) &&
	              !(no.types & TYPE_NULL) && !schema_has(s, no.values, null);
	json_decref(null);
	json_decref(no.values);
	if (!or_null)
		return begin;
	return nfa_split(s->f, begin, nfa_bytes(s->f, "null", 4, next));
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

void schema_fini(struct schema *s)
{
	free(s->ref);
	free(s->tagged);
	json_decref(s->made);
}

int schema_build(struct nfa *f, struct json_rules *rules, const json_t *schema, int strict,
                 uint32_t next, uint32_t *ret_begin, struct schema_ignored *ignored,
                 struct err *err)
{
	struct err own = {0};
	struct schema s = {
		.f = f, .rules = rules, .root = schema, .strict = strict, .err = &own, .ignored = ignored};
	*ret_begin = schema_value(&s, schema, next);
	schema_fini(&s);
	return s.failed ? err_set(err, own.code, "%s", own.text) : 0;
}
