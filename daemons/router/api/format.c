/* format.c - the form that an answer must have: response_format of OpenAI, guided_* and
 * structured_outputs of vLLM, grammar and json_schema of llama.cpp, regex and ebnf of SGLang. Each
 * asks for one constraint (grammar.h), which is compiled here so that an error is reported at once,
 * and again at the worker. */
#include "prepare.h"
#include "grammar/grammar.h"
#include "util/json_load.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

/* the length of a text that takes as long as compiling a form: milliseconds */
#define FORM_BYTES 65536u

static int no_form_memory(struct request_prepare *q, const char *param)
{
	return api_fault(&q->error, 503, "%s: this server has no memory to look at it now", param);
}

/* param: the parameter that asks for the form; a second one is refused. */
int format_constrain(struct request_prepare *q, const char *param, unsigned kind, char *text,
                     int strict)
{
	struct err err = {0};
	struct grammar *g;
	if (!text)
		return no_form_memory(q, param);
	if (q->constraint.kind) {
		free(text);
		return api_bad(&q->error, param, "%s: the answer's form is given twice", param);
	}
	q->constraint.text = text;
	q->bound_by = param;
	if (!q->model->tokenizer)
		return api_bad(&q->error, param,
		               "%s needs the model's vocabulary, which this server does not have", param);
	q->extra_bytes += FORM_BYTES;
	int r = grammar_compile(kind, text, strlen(text), strict ? GRAMMAR_STRICT : 0, &g, &err);
	if (r < 0)
		return r == ERR_NOMEM ? no_form_memory(q, param)
		                      : api_bad(&q->error, param, "%s: %s", param, err.text);
	/* a structure is made of forms that were checked before */
	r = kind == GRAMMAR_STRUCTURE ? 0 : params_ignored(q, param, "the answer's schema", g);
	grammar_destroy(&g);
	if (r < 0)
		return -1;
	q->constraint.kind = (Pds__ConstraintKind)kind;
	q->constraint.strict = strict;
	return 0;
}

static char *dump(const json_t *v)
{
	return json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
}

/* v: the constraint as a string. */
static int constrain_text(struct request_prepare *q, const char *param, unsigned kind,
                          const json_t *v, int strict)
{
	size_t len = json_string_length(v);
	if (len > GRAMMAR_TEXT_MAX)
		return api_bad(&q->error, param, "%s: the constraint has %zu bytes, the limit is %u", param,
		               len, GRAMMAR_TEXT_MAX);
	char *text = mem_try_alloc(len + 1);
	if (text)
		memcpy(text, json_string_value(v), len + 1);
	return format_constrain(q, param, kind, text, strict);
}

/* A schema, as an object or as a string. */
static int constrain_json(struct request_prepare *q, const char *param, const json_t *v, int strict)
{
	if (json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v))
		return constrain_text(q, param, GRAMMAR_JSON_SCHEMA, v, strict);
	if (!json_is_object(v))
		return api_bad(&q->error, param, "%s must be a JSON schema, got %s", param, param_show(v));
	return format_constrain(q, param, GRAMMAR_JSON_SCHEMA, dump(v), strict);
}

static int constrain_regex(struct request_prepare *q, const char *param, const json_t *v)
{
	if (!json_is_string(v) || json_string_length(v) == 0 ||
	    strlen(json_string_value(v)) != json_string_length(v))
		return api_bad(&q->error, param, "%s must be a regular expression, got %s", param,
		               param_show(v));
	return constrain_text(q, param, GRAMMAR_REGEX, v, 0);
}

static int constrain_grammar(struct request_prepare *q, const char *param, const json_t *v)
{
	if (!json_is_string(v) || json_string_length(v) == 0 ||
	    strlen(json_string_value(v)) != json_string_length(v))
		return api_bad(&q->error, param, "%s must be a grammar in GBNF, got %s", param,
		               param_show(v));
	return constrain_text(q, param, GRAMMAR_GBNF, v, 0);
}

static int constrain_choice(struct request_prepare *q, const char *param, const json_t *v)
{
	if (!json_is_array(v))
		return api_bad(&q->error, param, "%s must be an array of strings, got %s", param,
		               param_show(v));
	return format_constrain(q, param, GRAMMAR_CHOICE, dump(v), 0);
}

/* The member; NULL if it is absent or null. */
static const json_t *member(const json_t *o, const char *name)
{
	const json_t *v = json_object_get(o, name);
	return json_is_null(v) ? NULL : v;
}

static int read_response_format(struct request_prepare *q, const json_t *v)
{
	const char *type = json_string_value(json_object_get(v, "type"));
	if (!type)
		return api_bad(&q->error, "response_format",
		               "response_format must be an object with a type, got %s", param_show(v));
	if (strcmp(type, "text") == 0)
		return 0;
	const json_t *own = member(v, "schema"); /* as llama.cpp takes a schema */
	if (strcmp(type, "json_object") == 0)
		return own ? constrain_json(q, "response_format", own, 0)
		           : format_constrain(q, "response_format", GRAMMAR_JSON_OBJECT, mem_strdup(""), 0);
	if (strcmp(type, "json_schema") != 0)
		return api_bad(&q->error, "response_format",
		               "response_format.type must be text, json_object or json_schema, got %s",
		               param_show(json_object_get(v, "type")));
	const json_t *s = json_object_get(v, "json_schema"), *schema = json_object_get(s, "schema"),
				 *strict = member(s, "strict");
	if (!json_is_object(schema))
		return api_bad(&q->error, "response_format",
		               "response_format.json_schema.schema must be an object, got %s",
		               param_show(schema));
	if (strict && !json_is_boolean(strict))
		return api_bad(&q->error, "response_format",
		               "response_format.json_schema.strict must be true or false, got %s",
		               param_show(strict));
	return constrain_json(q, "response_format", schema, json_is_true(strict));
}

static int read_structured(struct request_prepare *q, const json_t *v)
{
	static const char *const known[] = {"json", "regex", "choice", "grammar", "json_object"};
	static const size_t n_known = sizeof known / sizeof *known;
	const char *key;
	json_t *m;
	if (!json_is_object(v))
		return api_bad(&q->error, "structured_outputs",
		               "structured_outputs must be an object, got %s", param_show(v));
	json_object_foreach((json_t *)v, key, m) {
		size_t i = 0;
		while (i < n_known && strcmp(key, known[i]) != 0)
			i++;
		if (i == n_known && !json_is_null(m))
			return api_bad(&q->error, "structured_outputs",
			               "structured_outputs.%.40s is not supported by this server: json, regex, "
			               "choice, grammar and json_object are",
			               key);
	}
	if ((m = (json_t *)member(v, "json")) && constrain_json(q, "structured_outputs", m, 0) < 0)
		return -1;
	if ((m = (json_t *)member(v, "regex")) && constrain_regex(q, "structured_outputs", m) < 0)
		return -1;
	if ((m = (json_t *)member(v, "choice")) && constrain_choice(q, "structured_outputs", m) < 0)
		return -1;
	if ((m = (json_t *)member(v, "grammar")) && constrain_grammar(q, "structured_outputs", m) < 0)
		return -1;
	return json_is_true(json_object_get(v, "json_object"))
	           ? format_constrain(q, "structured_outputs", GRAMMAR_JSON_OBJECT, mem_strdup(""), 0)
	           : 0;
}

static int constrain_schema(struct request_prepare *q, const char *param, const json_t *v)
{
	return constrain_json(q, param, v, 0);
}

static const struct {
	const char *name;
	int (*read)(struct request_prepare *q, const char *param, const json_t *v);
} ways[] = {
	{"guided_json", constrain_schema},
	{"json_schema", constrain_schema},
	{"guided_regex", constrain_regex},
	{"guided_choice", constrain_choice},
	{"guided_grammar", constrain_grammar},
	{"grammar", constrain_grammar},
	{"regex", constrain_regex},
	{"ebnf", constrain_grammar},
};
#define N_WAYS (sizeof ways / sizeof *ways)

int format_is_asked(const json_t *o)
{
	static const char *const more[] = {"response_format", "structured_outputs", "text",
	                                   "output_config", "output_format"};
	for (size_t i = 0; i < N_WAYS; i++)
		if (member(o, ways[i].name))
			return 1;
	for (size_t i = 0; i < sizeof more / sizeof *more; i++)
		if (member(o, more[i]))
			return 1;
	return 0;
}

int format_read(struct request_prepare *q, const json_t *o)
{
	const json_t *v;
	if ((v = member(o, "response_format")) && read_response_format(q, v) < 0)
		return -1;
	for (size_t i = 0; i < N_WAYS; i++) {
		v = member(o, ways[i].name);
		int is_empty = !v || (json_is_string(v) && !json_string_length(v)) ||
		               (json_is_array(v) && !json_array_size(v)) ||
		               (json_is_object(v) && !json_object_size(v));
		if (!is_empty && ways[i].read(q, ways[i].name, v) < 0)
			return -1;
	}
	return (v = member(o, "structured_outputs")) ? read_structured(q, v) : 0;
}

/* --- thoughts before the answer ------------------------------------------
 *
 * A model may think before an answer that is constrained. Thoughts that the prompt opened are ended
 * by the model. If the prompt neither opened nor closed them, the model chooses with its first
 * token, if that is a marker: in harmony, and where the marker that opens thoughts is one token
 * (Qwen 3). A marker of several tokens of text (Granite 3.2: "Here is my thought process:") begins
 * like any answer, after which only thoughts could follow: there the answer is constrained from its
 * first token. */

json_t *format_thoughts(const struct request_prepare *q, const char *prompt, size_t len,
                        int is_call)
{
	const struct reasoning_format *format = q->model->reasoning;
	if (!format)
		return json_array();
	const struct reasoning_form *f = reasoning_format_form(format);
	enum reasoning_at at = reasoning_opened(format, prompt, len);
	int is_row = *f->answer != 0; /* the format has messages, and the prompt may have begun one */
	json_t *first;
	if (at == REASONING_BEFORE && (is_row || q->model->opens_by_token))
		first = json_pack("[{s:[[{s:s},{s:s},{s:s}],[]]}]", "any_of", "literal", f->open, "free",
		                  f->close, "regex", f->next); /* thoughts, or none */
	else if (at == REASONING_WITHIN_THOUGHTS ||
	         (at == REASONING_WITHIN_ANSWER && is_row && is_call))
		first = json_pack("[{s:s},{s:s}]", "free", f->close, "regex", f->next);
	else
		first = json_array();
	if (is_row && !is_call && at != REASONING_WITHIN_ANSWER &&
	    json_array_append_new(first, json_pack("{s:s}", "literal", f->answer)) < 0) {
		json_decref(first);
		return NULL;
	}
	return first;
}

int format_behind_thoughts(struct request_prepare *q, const char *prompt, size_t len)
{
	Pds__Constraint *k = &q->constraint;
	if (!k->kind)
		return 0;
	json_t *pieces = format_thoughts(q, prompt, len, 0);
	if (pieces && !json_array_size(pieces)) {
		json_decref(pieces);
		return 0;
	}
	json_t *form; /* the constraint as one piece */
	if (k->kind == PDS__CONSTRAINT_KIND__CONSTRAINT_JSON_OBJECT) {
		form = json_pack("{s:{s:s}}", "schema", "type", "object");
	} else if (k->kind == PDS__CONSTRAINT_KIND__CONSTRAINT_REGEX) {
		form = json_pack("{s:s}", "regex", k->text);
	} else if (k->kind == PDS__CONSTRAINT_KIND__CONSTRAINT_GBNF) {
		form = json_pack("{s:s}", "gbnf", k->text);
	} else {
		int is_choice = k->kind == PDS__CONSTRAINT_KIND__CONSTRAINT_CHOICE;
		json_error_t bad;
		form = json_pack("{s:o}", is_choice ? "choice" : "schema",
		                 json_load(k->text, strlen(k->text), JSON_DECODE_ANY | JSON_ALLOW_NUL,
		                           &bad));
	}
	char *text = json_array_append_new(pieces, form) == 0 ? dump(pieces) : NULL;
	json_decref(pieces);
	if (!text)
		return no_form_memory(q, q->bound_by);
	free(k->text);
	k->text = NULL;
	k->kind = (Pds__ConstraintKind)GRAMMAR_NONE;
	return format_constrain(q, q->bound_by, GRAMMAR_STRUCTURE, text, k->strict);
}
