/* toolcall_form.c - see toolcall_form.h. A table describes how each format writes calls; a format
 * with several shapes has several lines, among which the model chooses. */
#include "text/toolcall_form.h"
#include "text/toolcall_int.h"

#include <string.h>

struct form {
	const char *name;
	const char *open, *close;  /* around all calls together */
	const char *head;          /* before a call's name; # is a digit that the model chooses */
	const char *middle, *tail; /* after the name, after the arguments */
	const char *between;       /* between two calls; NULL: only one call per answer */
	/* Parameters in tags; param NULL: the arguments are a JSON object. */
	/* before the key; after the key of a string, of any other value */
	const char *param, *text, *json;
	const char *value_end, *param_end; /* the tag that ends a value, the text after it */
	const char *before_end;            /* before value_end, for values whose end is known */
};

static const struct form forms[] = {
	{"hermes", "", "", "<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>", "\n",
     NULL, NULL, NULL, NULL, NULL, NULL},
	{"llama3_json", "", "", "{\"name\": \"", "\", \"parameters\": ", "}", "; ", NULL, NULL, NULL,
     NULL, NULL, NULL},
	{"mistral", "[TOOL_CALLS][", "]", "{\"name\": \"", "\", \"arguments\": ", "}", ", ", NULL, NULL,
     NULL, NULL, NULL, NULL},
	{"mistral", "", "", "[TOOL_CALLS]", "[ARGS]", "", "", NULL, NULL, NULL, NULL, NULL, NULL},
	{"deepseek", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
     "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "", NULL, NULL, NULL, NULL, NULL, NULL},
	{"deepseek", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
     "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>", "\n",
     NULL, NULL, NULL, NULL, NULL, NULL},
	{"kimi_k2", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
     "<|tool_call_begin|>functions.", ":#<|tool_call_argument_begin|>", "<|tool_call_end|>", "",
     NULL, NULL, NULL, NULL, NULL, NULL},
	{"granite", "<|tool_call|>[", "]", "{\"name\": \"", "\", \"arguments\": ", "}", ", ", NULL,
     NULL, NULL, NULL, NULL, NULL},
	{"cohere", "<|START_ACTION|>[\n", "\n]<|END_ACTION|>",
     "    {\"tool_call_id\": \"#\", \"tool_name\": \"", "\", \"parameters\": ", "}", ",\n", NULL,
     NULL, NULL, NULL, NULL, NULL},
	{"harmony", "", "", "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "",
     NULL, NULL, NULL, NULL, NULL, NULL, NULL},
	{"harmony", "", "", " to=functions.", "<|channel|>commentary json<|message|>", "", NULL, NULL,
     NULL, NULL, NULL, NULL, NULL},
	{"generic", "{\"tool_calls\": [", "]}", "{\"name\": \"", "\", \"arguments\": ", "}", ", ", NULL,
     NULL, NULL, NULL, NULL, NULL},
	{"qwen3_coder", "", "", "<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", "\n",
     "<parameter=", ">\n", ">\n", "</parameter>", "\n", "\n"},
	{"glm", "", "", "<tool_call>", "\n", "</tool_call>", "\n", "<arg_key>",
     "</arg_key>\n<arg_value>", "</arg_key>\n<arg_value>", "</arg_value>", "\n", ""},
	{"deepseek_v32", "<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>",
     "<｜DSML｜invoke name=\"", "\">\n", "</｜DSML｜invoke>", "\n", "<｜DSML｜parameter name=\"",
     "\" string=\"true\">", "\" string=\"false\">", "</｜DSML｜parameter>", "\n", ""},
};

#define N_FORMS (sizeof forms / sizeof *forms)
#define HOPS_MAX 8
/* schemas that are looked at and values that are listed, for all tools together: references let a
 * short body ask for many */
#define STEPS_MAX 100000

/* --- pieces -------------------------------------------------------------- */

static void add(json_t *list, const char *kind, json_t *v)
{
	json_t *piece = json_object();
	json_object_set_new(piece, kind, v);
	json_array_append_new(list, piece);
}

static void add_text(json_t *list, const char *text)
{
	size_t n = strcspn(text, "#");
	if (n)
		add(list, "literal", json_stringn(text, n));
	if (text[n]) {
		add(list, "regex", json_string("[0-9]"));
		add_text(list, text + n + 1);
	}
}

/* min to max repetitions of `unit` (reference taken over), joined by the separator ("": none). */
static void add_repeat(json_t *list, json_t *unit, unsigned min, unsigned max,
                       const char *separator)
{
	json_t *piece = json_object();
	json_object_set_new(piece, "repeat", unit);
	json_object_set_new(piece, "min", json_integer(min));
	json_object_set_new(piece, "max", json_integer(max));
	if (*separator)
		json_object_set_new(piece, "separator", json_string(separator));
	json_array_append_new(list, piece);
}

/* --- schemas ------------------------------------------------------------- */

json_t *toolcall_form_schema(const json_t *tool, struct err *err)
{
	const json_t *p = json_object_get(json_object_get(tool, "function"), "parameters"),
				 *type = json_object_get(p, "type");
	if (!json_is_object(p) || json_object_size(p) == 0)
		return json_pack("{s:s, s:{}}", "type", "object", "properties");
	int is_object = type ? json_is_string(type) && strcmp(json_string_value(type), "object") == 0
	                     : json_is_object(json_object_get(p, "properties"));
	if (!is_object) {
		err_set(err, ERR_UNSUPPORTED,
		        "must have type \"object\" to constrain the arguments of a call");
		return NULL;
	}
	return json_deep_copy(p);
}

/* Does the schema constrain nothing but types, so that any text is a valid value? (The parser
 * converts the text to an allowed type or a string.) */
static int is_plain(const json_t *schema, int depth)
{
	static const char *const known[] = {"type",     "anyOf",      "title",
	                                    "default",  "examples",   "description",
	                                    "nullable", "deprecated", "$comment"};
	const json_t *type = json_object_get(schema, "type"), *any = json_object_get(schema, "anyOf");
	const char *key;
	json_t *v;
	if (json_is_true(schema))
		return 1;
	if (!json_is_object(schema) || depth > 4)
		return 0;
	json_object_foreach((json_t *)schema, key, v) {
		size_t i = 0;
		while (i < sizeof known / sizeof *known && strcmp(key, known[i]) != 0)
			i++;
		if (i == sizeof known / sizeof *known)
			return 0;
	}
	if (json_is_array(any))
		for (size_t i = 0; i < json_array_size(any); i++)
			if (!is_plain(json_array_get(any, i), depth + 1))
				return 0;
	int left = TC_STEPS_MAX;
	return !(type && tc_schema_types(NULL, schema, &left) & (TC_OBJECT | TC_ARRAY));
}

/* The schema behind $ref or an allOf with one member. */
static const json_t *meant(const json_t *root, const json_t *schema)
{
	for (int i = 0; i < HOPS_MAX; i++) {
		const json_t *all = json_object_get(schema, "allOf"),
					 *to = json_array_size(all) == 1 ? json_array_get(all, 0)
		                                             : tc_schema_target(root, schema);
		if (!to)
			break;
		schema = to;
	}
	return schema;
}

/* Adds the values of enum or const. Returns 0 if there are none, or not only strings. */
static int add_fixed_strings(json_t *values, const json_t *schema, int *left)
{
	json_t *one = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
	size_t n = one ? 1 : json_array_size(list);
	for (size_t i = 0; i < n; i++) {
		json_t *v = one ? one : json_array_get(list, i);
		if (!json_is_string(v) || --*left <= 0)
			return 0;
		json_array_append(values, v);
	}
	return n > 0;
}

static json_t *with_definitions(const json_t *root, const json_t *schema)
{
	static const char *const names[] = {"$defs", "definitions"};
	json_t *own = json_copy((json_t *)schema);
	for (size_t i = 0; i < 2; i++)
		if (json_is_object(own) && !json_object_get(own, names[i]) &&
		    json_object_get(root, names[i]))
			json_object_set(own, names[i], json_object_get(root, names[i]));
	return own;
}

/* The values that the schema allows: strings of enum or const, or of several such below anyOf,
 * where others may be null, or have a schema that allows no string: an object with that schema.
 * NULL: more than that, or too many. A new reference. */
static json_t *fixed_values(const json_t *root, const json_t *schema, int *left)
{
	const json_t *any = json_object_get(schema, "anyOf");
	json_t *values = json_array();
	size_t n = json_array_size(any);
	int good = n || add_fixed_strings(values, schema, left);
	for (size_t i = 0; good && i < n; i++) {
		const json_t *own = json_array_get(any, i), *part = meant(root, own);
		const char *type = json_string_value(json_object_get(part, "type"));
		if (type && strcmp(type, "null") == 0)
			json_array_append_new(values, json_null());
		else if (!(tc_schema_types(root, part, left) & TC_STRING))
			json_array_append_new(values, with_definitions(root, own));
		else
			good = add_fixed_strings(values, part, left);
		good = good && --*left > 0;
	}
	if (good)
		return values;
	json_decref(values);
	return NULL;
}

/* --- parameters in tags -------------------------------------------------- */

/* Is the string read back as one, though values of these types may stand in its place? */
static int is_read_as_string(const struct form *m, const json_t *v, unsigned types)
{
	const char *s = json_string_value(v);
	size_t n = json_string_length(v);
	return !memmem(s, n, m->value_end, strlen(m->value_end)) &&
	       (strcmp(m->text, m->json) != 0 || !tc_xml_is_json(types, &s, &n));
}

/* Strings, and others, which the format may mark as another kind of value; of these types. (Of null
 * alone beside strings the model is taken at its word: "none" is null.) */
static int add_fixed(json_t *list, const struct form *m, const json_t *values, unsigned types)
{
	json_t *words = json_array(), *text = json_array(), *others = json_array(), *json;
	int good = 1, mixed = 0;
	for (size_t i = 0; i < json_array_size(values); i++)
		mixed |= json_is_object(json_array_get(values, i));
	for (size_t i = 0; i < json_array_size(values); i++) {
		const json_t *v = json_array_get(values, i);
		json_t *way = json_array();
		if (json_is_string(v))
			good &= is_read_as_string(m, v, mixed ? types : TC_STRING);
		if (json_is_null(v))
			add_text(way, "null");
		else
			add(way, json_is_string(v) ? "literal" : "schema", json_copy((json_t *)v));
		json_array_append_new(json_is_string(v) ? words : others, way);
	}
	add_text(text, m->text);
	add(text, "any_of", words);
	if (json_array_size(others)) {
		json = json_array();
		add_text(json, m->json);
		add(json, "any_of", others);
		add(list, "any_of", json_pack("[o, o]", text, json));
	} else {
		json_array_extend(list, text);
		json_decref(text);
		json_decref(others);
	}
	if (*m->before_end)
		add_text(list, m->before_end);
	add_text(list, m->value_end);
	return good;
}

/* Adds what follows the key. */
static int add_value(json_t *list, const struct form *m, const json_t *root, const json_t *schema,
                     int *left)
{
	int before = *left;
	unsigned types = tc_schema_types(root, schema, left);
	if (before - *left >= TC_STEPS_MAX) /* the parser looks no further */
		types = TC_TYPES;
	if (!(types & TC_STRING)) {
		add_text(list, m->json);
		add(list, "schema", with_definitions(root, schema));
		if (*m->before_end)
			add_text(list, m->before_end);
		add_text(list, m->value_end);
		return 1;
	}
	schema = meant(root, schema);
	json_t *values = fixed_values(root, schema, left);
	if (values) {
		int good = add_fixed(list, m, values, types);
		json_decref(values);
		return good;
	}
	add_text(list, m->text);
	add(list, "free", json_string(m->value_end));
	return is_plain(schema, 0);
}

static int add_param(json_t *list, const struct form *m, const json_t *root, const char *key,
                     const json_t *schema, int *left, struct err *err)
{
	json_t *unit = json_array(), *required = json_object_get(root, "required");
	unsigned min = 0;
	for (size_t i = 0; i < json_array_size(required); i++)
		min |= json_is_string(json_array_get(required, i)) &&
		       strcmp(json_string_value(json_array_get(required, i)), key) == 0;
	add_text(unit, m->param);
	add(unit, "literal", json_string(key));
	int good = *key && strlen(key) <= 256 && !strpbrk(key, "<>\"\n") &&
	           add_value(unit, m, root, schema, left);
	add_text(unit, m->param_end);
	add_repeat(list, unit, min, 1, "");
	return good ? 0
	            : err_set(
					  err, ERR_UNSUPPORTED,
					  "/properties/%.80s: the format %s cannot constrain a parameter of this kind",
					  key, m->name);
}

static int add_params(json_t *list, const struct form *m, const json_t *root, int *left,
                      struct err *err)
{
	static const char *const more[] = {"enum",          "const",         "$ref",
	                                   "allOf",         "anyOf",         "oneOf",
	                                   "minProperties", "maxProperties", "propertyNames"};
	const char *key;
	json_t *schema;
	for (size_t i = 0; i < sizeof more / sizeof *more; i++)
		if (json_object_get(root, more[i]))
			return err_set(err, ERR_UNSUPPORTED,
			               "/%s: the format %s can constrain arguments one by one only", more[i],
			               m->name);
	json_object_foreach(json_object_get(root, "properties"), key, schema)
		if (add_param(list, m, root, key, schema, left, err) < 0)
			return -1;
	return 0;
}

/* --- calls --------------------------------------------------------------- */

/* The tool's name and arguments. NULL: error. */
static json_t *one_tool(const struct form *m, const json_t *tool, int *left, struct err *err)
{
	json_t *schema = toolcall_form_schema(tool, err), *list = json_array();
	if (!schema) {
		json_decref(list);
		return NULL;
	}
	add(list, "literal", json_copy(json_object_get(json_object_get(tool, "function"), "name")));
	add_text(list, m->middle);
	if (!m->param) {
		add(list, "schema", json_incref(schema));
	} else if (add_params(list, m, schema, left, err) < 0) {
		json_decref(list);
		list = NULL;
	}
	json_decref(schema);
	return list;
}

static json_t *one_form(const struct form *m, const json_t *tools, const char *only,
                        unsigned calls_max, size_t *ret_at, struct err *err)
{
	json_t *list = json_array(), *unit = json_array(), *ways = json_array();
	int left = STEPS_MAX;
	for (size_t i = 0; i < json_array_size(tools); i++) {
		const json_t *tool = json_array_get(tools, i);
		if (only && strcmp(only, json_string_value(json_object_get(
									 json_object_get(tool, "function"), "name"))) != 0)
			continue;
		json_t *way = one_tool(m, tool, &left, err);
		if (!way) {
			*ret_at = i;
			json_decref(list);
			json_decref(unit);
			json_decref(ways);
			return NULL;
		}
		json_array_append_new(ways, way);
	}
	add_text(unit, m->head);
	add(unit, "any_of", ways);
	add_text(unit, m->tail);
	add_text(list, m->open);
	add_repeat(list, unit, 1, m->between ? calls_max : 1, m->between ? m->between : "");
	add_text(list, m->close);
	return list;
}

json_t *toolcall_form(const struct toolcall_format *f, const json_t *tools, const char *only,
                      unsigned calls_max, size_t *ret_at, struct err *err)
{
	json_t *ways = json_array(), *list = json_array();
	*ret_at = TOOLCALL_FORM_WHOLE;
	for (size_t i = 0; i < N_FORMS; i++) {
		if (strcmp(forms[i].name, toolcall_format_name(f)) != 0)
			continue;
		json_t *way = one_form(&forms[i], tools, only, calls_max, ret_at, err);
		if (!way) {
			json_decref(ways);
			json_decref(list);
			return NULL;
		}
		json_array_append_new(ways, way);
	}
	if (json_array_size(ways)) {
		add(list, "any_of", ways);
		return list;
	}
	json_decref(ways);
	json_decref(list);
	err_set(err, ERR_UNSUPPORTED, "calls cannot be constrained in the format %s",
	        toolcall_format_name(f));
	return NULL;
}

int toolcall_form_or_response(json_t *form)
{
	json_t *ways = json_object_get(json_array_get(form, 0), "any_of");
	return json_array_append_new(ways, json_pack("[{s:s},{s:{s:s}},{s:s}]", "literal",
	                                             "{\"response\": ", "schema", "type", "string",
	                                             "literal", "}"));
}

int toolcall_form_spells(const char *marker)
{
	for (const struct form *m = forms; m < forms + N_FORMS; m++) {
		const char *const texts[] = {
			m->open,  m->close, m->head, m->middle,    m->tail,      m->between,
			m->param, m->text,  m->json, m->value_end, m->param_end, m->before_end,
		};
		for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
			if (texts[i] && strstr(texts[i], marker))
				return 1;
	}
	return 0;
}
