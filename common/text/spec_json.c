/* spec_json.c - see spec_json.h: all steps except the model. Supports the steps that the model
 * families in docs/models.md use; any other step is refused by name, because leaving it out would
 * silently produce other ids.
 *
 * Format: the serialization of https://github.com/huggingface/tokenizers, as found in published
 * files. */
#include "text/spec_json.h"
#include "text/unicode.h"

#include <stdio.h>
#include <string.h>

enum { NESTING_MAX = 8 };

static const char *type_of(const json_t *v)
{
	const char *type = json_string_value(json_object_get(v, "type"));
	return type ? type : "";
}

static int refuse(const char *what, const char *name, struct err *err)
{
	char quote[ASCII_QUOTE + 1];
	return err_set(err, ERR_UNSUPPORTED, "%s '%s' is not supported", what,
	               ascii_quote(name, strlen(name), quote));
}

static int flag(const json_t *v, const char *key, int otherwise)
{
	const json_t *f = json_object_get(v, key);
	return json_is_boolean(f) ? json_is_true(f) : otherwise;
}

/* Calls `one` for v, or for each element if v is a Sequence. */
typedef int (*step_fn)(struct tokenizer_spec *s, const json_t *v, struct err *err);
static int each_step(struct tokenizer_spec *s, const json_t *v, const char *list, step_fn one,
                     unsigned depth, struct err *err)
{
	size_t i;
	json_t *e;
	if (json_is_null(v) || !v)
		return 0;
	if (strcmp(type_of(v), "Sequence"))
		return one(s, v, err);
	const json_t *steps = json_object_get(v, list);
	if (!json_is_array(steps) || depth == NESTING_MAX)
		return err_set(err, ERR_INVALID, "%s: expected an array, nested at most %d deep", list,
		               NESTING_MAX);
	int rc = 0;
	json_array_foreach(steps, i, e)
		if (rc == 0)
			rc = each_step(s, e, list, one, depth + 1, err);
	return rc;
}

/* {"String": "..."}: returns the text. {"Regex": "..."}: returns NULL, *ret_regex is the
 * expression. */
static const char *pattern_of(const json_t *v, size_t *ret_len, const char **ret_regex)
{
	const json_t *pattern = json_object_get(v, "pattern"),
				 *string = json_object_get(pattern, "String"),
				 *regex = json_object_get(pattern, "Regex");
	*ret_regex = json_string_value(regex);
	*ret_len = json_string_length(string ? string : regex);
	return json_string_value(string);
}

static int add_replace(struct normalizer *n, const json_t *v, const char *what, struct err *err)
{
	const char *regex, *from;
	size_t len;
	const json_t *to = json_object_get(v, "content");
	from = pattern_of(v, &len, &regex);
	if (regex)
		return refuse(what, "Replace of a Regex", err);
	if (!from || !len || !json_is_string(to))
		return err_set(err, ERR_INVALID,
		               "%s Replace: expected a pattern that is not empty and a content", what);
	if (normalizer_add(n, NORMALIZE_REPLACE, from, len, json_string_value(to),
	                   json_string_length(to)) < 0)
		return err_set(err, ERR_UNSUPPORTED,
		               "%s Replace: more than %d steps, or a text of more than %d bytes", what,
		               NORMALIZE_STEPS, NORMALIZE_TEXT);
	return 0;
}

/* --- normalizer ---------------------------------------------------------- */

static int normalizer_step(struct tokenizer_spec *s, const json_t *v, struct err *err)
{
	const char *type = type_of(v);
	const json_t *prepend = json_object_get(v, "prepend");
	int rc;
	if (!strcmp(type, "Replace"))
		return add_replace(&s->normalizer, v, "normalizer", err);
	if (!strcmp(type, "NFC"))
		rc = normalizer_add(&s->normalizer, NORMALIZE_NFC, NULL, 0, NULL, 0);
	else if (!strcmp(type, "Prepend") && json_is_string(prepend))
		rc = normalizer_add(&s->normalizer, NORMALIZE_PREPEND, NULL, 0, json_string_value(prepend),
		                    json_string_length(prepend));
	else
		return refuse("normalizer", type, err);
	return rc < 0 ? err_set(err, ERR_UNSUPPORTED,
	                        "normalizer %s: more than %d steps, or a text of more than %d bytes",
	                        type, NORMALIZE_STEPS, NORMALIZE_TEXT)
	              : 0;
}

int spec_json_normalizer(struct tokenizer_spec *s, const json_t *v, struct err *err)
{
	return each_step(s, v, "normalizers", normalizer_step, 0, err);
}

/* --- pre-tokenizer ------------------------------------------------------- */

static int add_stage(struct tokenizer_spec *s, enum pretok_stage stage, struct err *err)
{
	unsigned n = 0;
	while (n < PRETOK_STAGES && s->stages[n] != PRETOK_NONE)
		n++;
	if (n == PRETOK_STAGES)
		return err_set(err, ERR_UNSUPPORTED, "pre-tokenizer: more than %d steps", PRETOK_STAGES);
	s->stages[n] = stage;
	return 0;
}

/* Gemma splits at every space, but its normalizer has replaced all of them. */
static int cuts_nothing(const struct tokenizer_spec *s, const char *text, size_t len)
{
	for (unsigned i = 0; i < s->normalizer.n; i++) {
		const struct normalize_step *step = &s->normalizer.steps[i];
		if (step->op == NORMALIZE_REPLACE && step->from_len == len &&
		    !memcmp(step->from, text, len) && !memmem(step->to, step->to_len, text, len) &&
		    i + 1 == s->normalizer.n)
			return 1;
	}
	return 0;
}

static int add_split(struct tokenizer_spec *s, const json_t *v, struct err *err)
{
	char quote[ASCII_QUOTE + 1];
	size_t len;
	const char *regex, *text = pattern_of(v, &len, &regex),
					   *behavior = json_string_value(json_object_get(v, "behavior"));
	int invert = flag(v, "invert", 0);
	if (text && len && cuts_nothing(s, text, len))
		return 0;
	enum pretok_stage stage = regex ? pretok_stage_find(regex, len) : PRETOK_NONE;
	if (stage == PRETOK_NONE)
		return err_set(err, ERR_UNSUPPORTED,
		               "pre-tokenizer Split: pattern '%s...' is not supported",
		               ascii_quote(text    ? text
		                           : regex ? regex
		                                   : "",
		                           text || regex ? len : 0, quote));
	int isolated = behavior && !strcmp(behavior, "Isolated"),
		removed = behavior && !strcmp(behavior, "Removed");
	if (!isolated && !(removed && invert && pretok_stage_covers(stage)))
		return refuse("pre-tokenizer Split: behavior", behavior ? behavior : "", err);
	return add_stage(s, stage, err);
}

/* Old files have add_prefix_space, new ones prepend_scheme. */
static int prefix_of(const json_t *v, enum spec_prefix *ret, struct err *err)
{
	const char *scheme = json_string_value(json_object_get(v, "prepend_scheme"));
	*ret = flag(v, "add_prefix_space", 1) ? SPEC_PREFIX_ALWAYS : SPEC_PREFIX_NEVER;
	if (scheme && !strcmp(scheme, "first"))
		*ret = SPEC_PREFIX_FIRST;
	else if (scheme && !strcmp(scheme, "never"))
		*ret = SPEC_PREFIX_NEVER;
	else if (scheme && !strcmp(scheme, "always"))
		*ret = SPEC_PREFIX_ALWAYS;
	else if (scheme)
		return refuse("Metaspace: prepend_scheme", scheme, err);
	const char *replacement = json_string_value(json_object_get(v, "replacement"));
	return replacement && !strcmp(replacement, SPEC_SPACE)
	           ? 0
	           : refuse("Metaspace: replacement", replacement ? replacement : "", err);
}

static int pretokenizer_step(struct tokenizer_spec *s, const json_t *v, struct err *err)
{
	const char *type = type_of(v);
	int first = s->stages[0] == PRETOK_NONE && !s->metaspace && !s->byte_level;
	if (s->byte_level || s->metaspace)
		return err_set(err, ERR_UNSUPPORTED,
		               "pre-tokenizer: steps after ByteLevel or Metaspace are not supported");
	if (!strcmp(type, "Split"))
		return add_split(s, v, err);
	if (!strcmp(type, "Digits"))
		return add_stage(s, flag(v, "individual_digits", 0) ? PRETOK_DIGIT : PRETOK_DIGITS, err);
	if (!strcmp(type, "ByteLevel")) {
		int prefix = flag(v, "add_prefix_space", 1);
		if (prefix && !first)
			return err_set(
				err, ERR_UNSUPPORTED,
				"pre-tokenizer ByteLevel: add_prefix_space after another step is not supported");
		s->byte_level = 1;
		s->prefix = prefix ? SPEC_PREFIX_ALWAYS : SPEC_PREFIX_NEVER;
		return flag(v, "use_regex", 1) ? add_stage(s, PRETOK_GPT2, err) : 0;
	}
	if (!strcmp(type, "Metaspace") && first) {
		s->metaspace = 1;
		s->metaspace_split = flag(v, "split", 1);
		return prefix_of(v, &s->prefix, err);
	}
	return refuse("pre-tokenizer", type, err);
}

int spec_json_pretokenizer(struct tokenizer_spec *s, const json_t *v, struct err *err)
{
	return each_step(s, v, "pretokenizers", pretokenizer_step, 0, err);
}

/* --- decoder ------------------------------------------------------------- */

struct decoder_state {
	int byte_level, fused;
};

static int add_strip(struct tokenizer_spec *s, const json_t *v, int fused, struct err *err)
{
	const char *content = json_string_value(json_object_get(v, "content"));
	json_int_t start = json_integer_value(json_object_get(v, "start")),
			   stop = json_integer_value(json_object_get(v, "stop"));
	if (!content || strcmp(content, " ") || start < 0 || start > 255 || stop != 0 || !fused)
		return err_set(
			err, ERR_UNSUPPORTED,
			"decoder Strip: only stripping spaces at the start of the fused text is supported");
	s->strip = (unsigned)start;
	return 0;
}

static int decoder_step(struct tokenizer_spec *s, const json_t *v, struct err *err)
{
	const char *type = type_of(v);
	enum spec_prefix prefix;
	int fused = s->strip_metaspace & 2, rc;
	if (!strcmp(type, "ByteLevel") && s->byte_level)
		return 0;
	if (!strcmp(type, "Fuse"))
		s->strip_metaspace |= 2;
	else if (!strcmp(type, "Strip"))
		return add_strip(s, v, fused, err);
	else if (!strcmp(type, "ByteFallback") && !fused)
		s->decode_bytes = 1;
	else if (!strcmp(type, "Replace") && !fused && !s->decode_bytes)
		return add_replace(&s->decode, v, "decoder", err);
	else if (!strcmp(type, "Metaspace") && !fused && !s->decode_bytes) {
		if ((rc = prefix_of(v, &prefix, err)) < 0)
			return rc;
		normalizer_add(&s->decode, NORMALIZE_REPLACE, SPEC_SPACE, 3, " ", 1);
		s->strip_metaspace |= prefix != SPEC_PREFIX_NEVER;
	} else
		return refuse("decoder (at this position)", type, err);
	return 0;
}

int spec_json_decoder(struct tokenizer_spec *s, const json_t *v, struct err *err)
{
	if (!json_is_object(v))
		return err_set(err, ERR_UNSUPPORTED,
		               "decoder: missing, so tokens cannot be converted to text");
	int rc = each_step(s, v, "decoders", decoder_step, 0, err);
	if (rc == 0 && s->byte_level && (s->decode.n || s->decode_bytes || s->strip))
		rc = err_set(err, ERR_UNSUPPORTED,
		             "decoder: byte-level tokens with another decoder than ByteLevel");
	s->strip_metaspace &= 1;
	return rc;
}

/* --- all ----------------------------------------------------------------- */

/* A post-processor's template may put one token, BOS, before every text. */
static int template_step(struct tokenizer_spec *s, const json_t *v, struct err *err)
{
	(void)err;
	if (strcmp(type_of(v), "TemplateProcessing"))
		return 0;
	const json_t *single = json_object_get(v, "single");
	const char *name = json_string_value(
		json_object_get(json_object_get(json_array_get(single, 0), "SpecialToken"), "id"));
	if (!name || json_object_get(json_array_get(single, 1), "SpecialToken"))
		return 0;
	const json_t *ids = json_object_get(json_object_get(json_object_get(v, "special_tokens"), name),
	                                    "ids");
	json_int_t id = json_is_integer(json_array_get(ids, 0))
	                    ? json_integer_value(json_array_get(ids, 0))
	                    : -1;
	if (json_array_size(ids) != 1 || id < 0 || id >= s->vocab.n)
		return 0;
	s->bos = (uint32_t)id;
	s->adds_bos = 1;
	return 0;
}

int spec_from_json(struct tokenizer_spec *s, const json_t *root, struct err *err)
{
	if (!json_is_object(root))
		return err_set(err, ERR_INVALID, "expected a JSON object");
	int rc = spec_json_normalizer(s, json_object_get(root, "normalizer"), err);
	if (rc == 0)
		rc = spec_json_pretokenizer(s, json_object_get(root, "pre_tokenizer"), err);
	if (rc == 0)
		rc = spec_json_decoder(s, json_object_get(root, "decoder"), err);
	if (rc == 0)
		rc = spec_json_model(s, json_object_get(root, "model"),
		                     json_object_get(root, "added_tokens"), err);
	if (rc == 0)
		rc = each_step(s, json_object_get(root, "post_processor"), "processors", template_step, 0,
		               err);
	return rc;
}
