/* toolcall_types.c - the types that a parameter's schema allows.
 *
 * A schema that says nothing allows all types. Clients write the schemas, and references let a
 * short one describe a tree without end: what lies too deep, or beyond TC_STEPS_MAX, says
 * nothing. */
#include "text/toolcall_int.h"

#include <string.h>

#define DEPTH_MAX 8
#define DEFINITION_NAME_MAX 255

struct type_walk {
	const json_t *root;
	int *left; /* of TC_STEPS_MAX */
};

static unsigned type_named(const json_t *name)
{
	static const struct {
		const char *name;
		unsigned type;
	} types[] = {
		{"string", TC_STRING},   {"integer", TC_INTEGER}, {"number", TC_INTEGER | TC_NUMBER},
		{"boolean", TC_BOOLEAN}, {"null", TC_NULL},       {"object", TC_OBJECT},
		{"array", TC_ARRAY}};
	for (size_t i = 0; json_is_string(name) && i < sizeof types / sizeof *types; i++)
		if (strcmp(types[i].name, json_string_value(name)) == 0)
			return types[i].type;
	return 0;
}

static unsigned type_of_value(const json_t *v)
{
	static const unsigned types[] = {
		[JSON_OBJECT] = TC_OBJECT,   [JSON_ARRAY] = TC_ARRAY, [JSON_STRING] = TC_STRING,
		[JSON_INTEGER] = TC_INTEGER, [JSON_REAL] = TC_NUMBER, [JSON_TRUE] = TC_BOOLEAN,
		[JSON_FALSE] = TC_BOOLEAN,   [JSON_NULL] = TC_NULL};
	return types[json_typeof(v)];
}

static unsigned types_of_list(struct type_walk *w, const json_t *list,
                              unsigned type(const json_t *))
{
	unsigned types = 0;
	for (size_t i = 0; i < json_array_size(list); i++) {
		if (--*w->left <= 0)
			return TC_TYPES;
		types |= type(json_array_get(list, i));
	}
	return types;
}

const json_t *tc_schema_target(const json_t *root, const json_t *schema)
{
	static const char *const places[] = {"$defs", "definitions"};
	const char *ref = json_string_value(json_object_get(schema, "$ref"));
	char key[DEFINITION_NAME_MAX + 1];
	for (size_t i = 0; ref && i < sizeof places / sizeof *places; i++) {
		size_t n = strlen(places[i]), len = 0;
		if (strncmp(ref, "#/", 2) != 0 || strncmp(ref + 2, places[i], n) != 0 || ref[2 + n] != '/')
			continue;
		for (const char *s = ref + 3 + n; *s; s++) {
			if (*s == '/' || len == DEFINITION_NAME_MAX)
				return NULL;
			int is_escape = *s == '~' && (s[1] == '0' || s[1] == '1');
			key[len++] = !is_escape ? *s : *++s == '0' ? '~' : '/';
		}
		key[len] = 0;
		return json_object_get(json_object_get(root, places[i]), key);
	}
	return NULL;
}

/* Keywords that make sense for strings only. */
static int is_about_strings(const json_t *schema)
{
	return json_object_get(schema, "pattern") || json_object_get(schema, "format") ||
	       json_object_get(schema, "minLength") || json_object_get(schema, "maxLength");
}

static unsigned schema_types(struct type_walk *w, const json_t *schema, int depth);

static unsigned named_types(struct type_walk *w, const json_t *schema, int depth)
{
	static const char *const unions[] = {"anyOf", "oneOf"};
	if (--*w->left <= 0 || depth > DEPTH_MAX)
		return TC_TYPES;
	const json_t *type = json_object_get(schema, "type"), *one = json_object_get(schema, "const"),
				 *all = json_object_get(schema, "allOf");
	unsigned types = type_named(type) | types_of_list(w, type, type_named);
	if (!types)
		types = (one ? type_of_value(one) : 0) |
		        types_of_list(w, json_object_get(schema, "enum"), type_of_value);
	if (types)
		return types;
	types = TC_TYPES;
	const json_t *target = tc_schema_target(w->root, schema);
	if (target)
		types &= schema_types(w, target, depth + 1);
	for (size_t i = 0; i < json_array_size(all) && *w->left > 0; i++)
		types &= schema_types(w, json_array_get(all, i), depth + 1);
	for (size_t k = 0; k < 2; k++) {
		const json_t *parts = json_object_get(schema, unions[k]);
		unsigned some = 0;
		for (size_t i = 0; i < json_array_size(parts) && some != TC_TYPES && *w->left > 0; i++)
			some |= schema_types(w, json_array_get(parts, i), depth + 1);
		types &= some ? some : TC_TYPES;
	}
	if (types == TC_TYPES && is_about_strings(schema))
		return TC_STRING;
	return types ? types : TC_TYPES;
}

static unsigned schema_types(struct type_walk *w, const json_t *schema, int depth)
{
	unsigned types = named_types(w, schema, depth);
	return json_is_true(json_object_get(schema, "nullable")) ? types | TC_NULL : types;
}

unsigned tc_schema_types(const json_t *root, const json_t *schema, int *left)
{
	struct type_walk w = {.root = root, .left = left};
	return schema_types(&w, schema, 0);
}
