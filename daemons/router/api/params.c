/* params.c - see params.h. */
#include "params.h"
#include "daemons/router/place/policy.h"
#include "util/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int param_is_set(const json_t *o, const char *name)
{
	return body_member(o, name) != NULL;
}

int param_int(const json_t *o, const char *name, int64_t min, int64_t max, int64_t def,
              int64_t *ret, struct api_error *e)
{
	const json_t *v = body_member(o, name);
	int64_t n = def;
	int good = 1;
	if (json_is_integer(v)) {
		n = json_integer_value(v);
	} else if (json_is_real(v)) {
		double d = json_real_value(v);
		good = fabs(d) < 9e15 && d == floor(d); /* many JSON writers write 16.0 for an integer */
		n = good ? (int64_t)d : 0;
	} else {
		good = !v;
	}
	if (!good || (v && (n < min || n > max)))
		return api_bad(e, name, "%s must be an integer from %lld to %lld, got %s", name,
		               (long long)min, (long long)max, param_show(v));
	*ret = n;
	return 0;
}

static int param_float(const json_t *o, const char *name, double min, double max, double def,
                       double *ret, struct api_error *e)
{
	const json_t *v = body_member(o, name);
	double d = v ? json_number_value(v) : def;
	if (v && (!json_is_number(v) || !(d >= min && d <= max)))
		return api_bad(e, name, "%s must be a number from %g to %g, got %s", name, min, max,
		               param_show(v));
	*ret = d;
	return 0;
}

int param_bool(const json_t *o, const char *name, int def, int *ret, struct api_error *e)
{
	struct body_error bad;
	return body_bool(o, name, def, ret, &bad) < 0 ? api_bad(e, bad.param, "%s", bad.text) : 0;
}

/* --- what this build does not support ------------------------------------ */

/* Accepts these with a value that asks for nothing. */
static int check_unsupported(const json_t *o, struct api_error *e)
{
	static const char *const names[] = {
		"suffix", "use_beam_search", "prompt_embeds", "chat_template", "audio", "prediction",
		/* of other servers; ignored, they would leave an answer without its form */
		"structural_tag", "guided_whitespace_pattern", "custom_logit_processor",
		"logits_processors"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const json_t *v = body_member(o, names[i]);
		int is_switch = strcmp(names[i], "use_beam_search") == 0,
			is_empty = (json_is_string(v) && json_string_length(v) == 0) ||
		               (json_is_array(v) && json_array_size(v) == 0) ||
		               (json_is_object(v) && json_object_size(v) == 0);
		if (v && !(is_switch ? json_is_false(v) : is_empty))
			return api_bad(e, names[i],
			               "%s is not supported by this server: only %s is accepted, got %s",
			               names[i], is_switch ? "false" : "an empty value", param_show(v));
	}
	return 0;
}

/* --- the groups ---------------------------------------------------------- */

static int read_stop(const json_t *o, struct params *p, struct api_error *e)
{
	const json_t *v = body_member(o, "stop");
	const char *strings[STOP_STRINGS_MAX];
	size_t lens[STOP_STRINGS_MAX], n = 0;
	if (!v)
		return 0;
	if (!json_is_string(v) && !json_is_array(v))
		return api_bad(e, "stop", "stop must be a string or an array of strings, got %s",
		               param_show(v));
	size_t count = json_is_array(v) ? json_array_size(v) : 1;
	if (count > STOP_STRINGS_MAX)
		return api_bad(e, "stop", "stop has %zu strings, more than %d", count, STOP_STRINGS_MAX);
	for (size_t i = 0; i < count; i++) {
		const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;
		if (!json_is_string(s))
			return api_bad(e, "stop", "stop[%zu] must be a string, got %s", i, param_show(s));
		size_t len = json_string_length(s);
		if (len == 0 && !json_is_array(v))
			return 0; /* "" means none to some clients */
		if (len == 0 || len > STOP_BYTES_MAX)
			return api_bad(e, "stop", "stop[%zu] has %zu bytes; it must have 1 to %d", i, len,
			               STOP_BYTES_MAX);
		strings[n] = json_string_value(s);
		lens[n++] = len;
	}
	p->stop = n ? stop_set_new(strings, lens, n) : NULL;
	return 0;
}

static int read_stop_ids(const json_t *o, struct params *p, struct api_error *e)
{
	const json_t *v = body_member(o, "stop_token_ids");
	if (!v)
		return 0;
	if (!json_is_array(v) || json_array_size(v) > PARAM_STOP_IDS_MAX)
		return api_bad(e, "stop_token_ids",
		               "stop_token_ids must be an array of at most %d token ids, got %s",
		               PARAM_STOP_IDS_MAX, param_show(v));
	for (size_t i = 0; i < json_array_size(v); i++) {
		const json_t *id = json_array_get(v, i);
		if (!json_is_integer(id) || json_integer_value(id) < 0 ||
		    json_integer_value(id) > INT32_MAX)
			return api_bad(e, "stop_token_ids", "stop_token_ids[%zu] must be a token id, got %s", i,
			               param_show(id));
		p->stop_ids[p->n_stop_ids++] = (uint32_t)json_integer_value(id);
	}
	return 0;
}

static int read_logprobs(const json_t *o, int chat, struct params *p, struct api_error *e)
{
	int64_t n = -1;
	int wanted = 0;
	p->logprobs = -1;
	if (!chat) {
		if (param_int(o, "logprobs", 0, PARAM_LOGPROBS_MAX, -1, &n, e) < 0)
			return -1;
		p->logprobs = (int)n;
		return 0;
	}
	if (param_bool(o, "logprobs", 0, &wanted, e) < 0 ||
	    param_int(o, "top_logprobs", 0, PARAM_LOGPROBS_MAX, 0, &n, e) < 0)
		return -1;
	if (!wanted && n > 0)
		return api_bad(e, "top_logprobs", "top_logprobs needs logprobs to be true");
	p->logprobs = wanted ? (int)n : -1;
	return 0;
}

/* A number that must be greater than 0: 0 would be a divisor, or leave no token to draw. */
static int read_above(const json_t *o, const char *name, double max, double def, double *ret,
                      struct api_error *e)
{
	struct api_error unused;
	if (param_float(o, name, 0, max, def, ret, &unused) < 0 || (float)*ret <= 0)
		return api_bad(e, name, "%s must be a number greater than 0 and at most %g, got %s", name,
		               max, param_show(body_member(o, name)));
	return 0;
}

static int read_sampling(const json_t *o, struct params *p, struct api_error *e)
{
	double temperature, top_p, min_p, typical_p, repetition, presence, frequency;
	int64_t top_k, seed;
	pds__sampling__init(&p->sampling);
	if (param_float(o, "temperature", 0, 100, 1, &temperature, e) < 0 ||
	    read_above(o, "top_p", 1, 1, &top_p, e) < 0 ||
	    param_float(o, "min_p", 0, 1, 0, &min_p, e) < 0 ||
	    read_above(o, "typical_p", 1, 1, &typical_p, e) < 0 ||
	    param_int(o, "top_k", -1, INT32_MAX, 0, &top_k, e) < 0 ||
	    param_int(o, "seed", INT64_MIN, INT64_MAX, 0, &seed, e) < 0 ||
	    read_above(o, "repetition_penalty", 10, 1, &repetition, e) < 0 ||
	    param_float(o, "presence_penalty", -2, 2, 0, &presence, e) < 0 ||
	    param_float(o, "frequency_penalty", -2, 2, 0, &frequency, e) < 0)
		return -1;
	p->sampling.repetition_penalty = (float)repetition;
	p->sampling.presence_penalty = (float)presence;
	p->sampling.frequency_penalty = (float)frequency;
	p->sampling.temperature = (float)temperature;
	p->sampling.top_p = (float)top_p;
	p->sampling.min_p = (float)min_p;
	p->sampling.typical_p = (float)typical_p;
	p->sampling.top_k = top_k > 0 ? (uint32_t)top_k : 0;
	p->sampling.seed = (uint64_t)seed;
	p->has_seed = param_is_set(o, "seed");
	return 0;
}

int params_read_truncate(const json_t *o, struct params *p, struct api_error *e)
{
	if (param_int(o, "truncate_prompt_tokens", -1, INT32_MAX, -2, &p->truncate, e) < 0)
		return -1;
	if (p->truncate == 0)
		return api_bad(e, "truncate_prompt_tokens",
		               "truncate_prompt_tokens must be at least 1, or -1 for as many as there is "
		               "room for, got 0");
	p->truncate = p->truncate == -2 ? 0 : p->truncate;
	return 0;
}

static int read_stream(const json_t *o, struct params *p, struct api_error *e)
{
	const json_t *v = body_member(o, "stream_options");
	if (param_bool(o, "stream", 0, &p->stream, e) < 0)
		return -1;
	if (!v)
		return 0;
	if (!json_is_object(v))
		return api_bad(e, "stream_options", "stream_options must be an object, got %s",
		               param_show(v));
	if (!p->stream)
		return api_bad(e, "stream_options", "stream_options is only allowed when stream is true");
	if (param_bool(v, "continuous_usage_stats", 0, &p->continuous_usage, e) < 0 ||
	    param_bool(v, "include_usage", p->continuous_usage, &p->include_usage, e) < 0) {
		char text[sizeof e->text];
		snprintf(text, sizeof text, "%s", e->text);
		return api_bad(e, "stream_options", "stream_options.%s", text);
	}
	p->continuous_usage &= p->include_usage;
	return 0;
}

/* Reads the key of the client's session, which is only for placement. */
static int read_session(const json_t *o, struct params *p, struct api_error *e)
{
	static const char *const names[] = {"user", "prompt_cache_key"};
	for (size_t i = 0; i < 2; i++) {
		const json_t *v = body_member(o, names[i]);
		if (v && !json_is_string(v))
			return api_bad(e, names[i], "%s must be a string, got %s", names[i], param_show(v));
		if (v && json_string_length(v))
			p->session = policy_key(json_string_value(v), json_string_length(v));
	}
	return 0;
}

int params_read(const json_t *o, int chat, uint32_t n_max, struct params *p, struct api_error *e)
{
	int is_new = chat && param_is_set(o, "max_completion_tokens"); /* OpenAI's newer name */
	const char *max = is_new ? "max_completion_tokens" : "max_tokens";
	int64_t n, best_of, max_tokens, min_tokens, prompt_logprobs;
	memset(p, 0, sizeof *p);
	if (check_unsupported(o, e) < 0 || param_int(o, "n", 1, n_max, 1, &n, e) < 0 ||
	    param_int(o, "best_of", 1, n_max, n, &best_of, e) < 0)
		return -1;
	if (best_of != n)
		return api_bad(e, "best_of",
		               "best_of is not supported by this server: only the value of n (%lld) is "
		               "accepted, got %lld",
		               (long long)n, (long long)best_of);
	p->n = (uint32_t)n;
	if (read_stream(o, p, e) < 0 || read_sampling(o, p, e) < 0 ||
	    read_logprobs(o, chat, p, e) < 0 ||
	    param_int(o, "prompt_logprobs", 0, PARAM_LOGPROBS_MAX, -1, &prompt_logprobs, e) < 0)
		return -1;
	if (prompt_logprobs >= 0 && p->stream)
		return api_bad(e, "prompt_logprobs",
		               "prompt_logprobs is not available when stream is true");
	if (param_int(o, "min_tokens", 0, INT32_MAX, 0, &min_tokens, e) < 0 ||
	    params_read_truncate(o, p, e) < 0 || param_bool(o, "echo", 0, &p->echo, e) < 0 ||
	    param_int(o, max, !chat && p->echo ? 0 : 1, INT32_MAX, 16, &max_tokens, e) < 0 ||
	    param_bool(o, "ignore_eos", 0, &p->ignore_eos, e) < 0 ||
	    param_bool(o, "return_token_ids", 0, &p->return_token_ids, e) < 0 ||
	    param_bool(o, "timings_per_token", 0, &p->timings_per_token, e) < 0 ||
	    param_bool(o, "return_timings", p->timings_per_token, &p->timings, e) < 0 ||
	    param_bool(o, "include_stop_str_in_output", 0, &p->include_stop, e) < 0 ||
	    param_bool(o, "skip_special_tokens", 1, &p->skip_special, e) < 0 ||
	    param_bool(o, "add_special_tokens", !chat, &p->add_special, e) < 0 ||
	    read_stop_ids(o, p, e) < 0 || read_session(o, p, e) < 0 || read_stop(o, p, e) < 0)
		return -1;
	if (chat && p->echo)
		return api_bad(e, "echo", "echo is not supported for chat completions");
	p->prompt_logprobs = (int)prompt_logprobs;
	p->min_tokens = p->sampling.min_tokens = (uint32_t)min_tokens;
	p->has_max_tokens = param_is_set(o, max);
	p->max_tokens = (uint32_t)max_tokens;
	p->timings |= p->timings_per_token;
	p->sampling.logprobs = p->logprobs;
	int echoed = p->echo && p->logprobs >= 0 ? p->logprobs : -1,
		most = echoed > p->prompt_logprobs ? echoed : p->prompt_logprobs;
	p->sampling.prompt_logprobs = most >= 0;
	p->sampling.prompt_top = most >= 0 ? most : 0;
	return 0;
}

/* --- parameters that name tokens ----------------------------------------- */

static int read_bias(const json_t *o, uint32_t vocab, struct params *p, struct api_error *e)
{
	const json_t *v = body_member(o, "logit_bias"), *item;
	const char *key;
	if (!v)
		return 0;
	if (!json_is_object(v) || json_object_size(v) > PARAM_BIASES_MAX)
		return api_bad(
			e, "logit_bias",
			"logit_bias must be an object of at most %d token ids with their values, got %s%s",
			PARAM_BIASES_MAX, param_show(v), json_is_object(v) ? ", which is longer" : "");
	p->sampling.bias_ids = mem_array(json_object_size(v) + 1, sizeof *p->sampling.bias_ids);
	p->sampling.bias = mem_array(json_object_size(v) + 1, sizeof *p->sampling.bias);
	json_object_foreach((json_t *)v, key, item) {
		size_t digits = strspn(key, "0123456789");
		int64_t id = digits && !key[digits] && digits <= 10 ? strtoll(key, NULL, 10) : -1;
		double d = json_number_value(item);
		if (id < 0 || id >= vocab)
			return api_bad(e, "logit_bias",
			               "logit_bias: \"%.40s\" is no token id; the vocabulary has %u tokens",
			               key, vocab);
		if (!json_is_number(item) || !(d >= -100 && d <= 100))
			return api_bad(e, "logit_bias",
			               "logit_bias[%s] must be a number from -100 to 100, got %s", key,
			               param_show(item));
		p->sampling.bias_ids[p->sampling.n_bias_ids++] = (uint32_t)id;
		p->sampling.bias[p->sampling.n_bias++] = (float)d;
	}
	return 0;
}

static int read_allowed_ids(const json_t *o, uint32_t vocab, struct params *p, struct api_error *e)
{
	const json_t *v = body_member(o, "allowed_token_ids");
	size_t n = json_array_size(v);
	if (!v)
		return 0;
	if (!json_is_array(v) || n == 0 || n > PARAM_ALLOWED_MAX)
		return api_bad(e, "allowed_token_ids",
		               "allowed_token_ids must be an array of 1 to %d token ids, got %zu: %s",
		               PARAM_ALLOWED_MAX, n, param_show(v));
	p->sampling.allowed_ids = mem_try_array(n, sizeof *p->sampling.allowed_ids);
	if (!p->sampling.allowed_ids)
		return api_fault(e, 503, "allowed_token_ids: this server has no memory for them now");
	for (size_t i = 0; i < n; i++) {
		const json_t *id = json_array_get(v, i);
		if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= vocab)
			return api_bad(e, "allowed_token_ids",
			               "allowed_token_ids[%zu] must be a token id from 0 to %u, got %s", i,
			               vocab - 1, param_show(id));
		p->sampling.allowed_ids[p->sampling.n_allowed_ids++] = (uint32_t)json_integer_value(id);
	}
	return 0;
}

/* --- bad words ----------------------------------------------------------- */

static int add_bad_word(struct params *p, const struct token_list *l, struct api_error *e)
{
	Pds__Sampling *s = &p->sampling;
	if (s->n_bad_words + l->n + 1 > PARAM_BAD_TOKENS_MAX)
		return api_bad(
			e, "bad_words",
			"bad_words are more than %d tokens together (one more is counted for each word)",
			PARAM_BAD_TOKENS_MAX);
	s->bad_words[s->n_bad_words++] = (uint32_t)l->n;
	memcpy(s->bad_words + s->n_bad_words, l->ids, l->n * sizeof *l->ids);
	s->n_bad_words += l->n;
	return 0;
}

/* Adds the word's tokens at the beginning of a text and, if those differ, after a space. */
static int read_bad_word(const struct tokenizer *t, const char *word, size_t len, struct params *p,
                         struct api_error *e)
{
	char spaced[PARAM_BAD_BYTES_MAX + 2];
	struct token_list plain = {0}, after = {0};
	while (len && *word == ' ') {
		word++;
		len--;
	}
	spaced[0] = ' ';
	memcpy(spaced + 1, word, len);
	int r = 0;
	if (!len || tokenizer_encode(t, word, len, 0, 0, &plain) < 0 ||
	    tokenizer_encode(t, spaced, len + 1, 0, 0, &after) < 0)
		r = api_bad(e, "bad_words", "bad_words has a word without a token");
	if (r == 0 && plain.n)
		r = add_bad_word(p, &plain, e);
	if (r == 0 && after.n && after.n == plain.n && after.ids[0] != plain.ids[0])
		r = add_bad_word(p, &after, e);
	token_list_fini(&plain);
	token_list_fini(&after);
	return r;
}

static int read_bad_words(const json_t *o, const struct tokenizer *t, struct params *p,
                          struct api_error *e)
{
	const json_t *v = body_member(o, "bad_words");
	size_t n = json_array_size(v);
	if (!v || (json_is_array(v) && !n))
		return 0;
	if (!json_is_array(v) || n > PARAM_BAD_WORDS_MAX)
		return api_bad(e, "bad_words",
		               "bad_words must be an array of at most %d strings, got %zu: %s",
		               PARAM_BAD_WORDS_MAX, n, param_show(v));
	if (!t)
		return api_bad(e, "bad_words", "bad_words needs a tokenizer, and this model has none here");
	p->sampling.bad_words = mem_try_array(PARAM_BAD_TOKENS_MAX, sizeof *p->sampling.bad_words);
	if (!p->sampling.bad_words)
		return api_fault(e, 503, "bad_words: this server has no memory for them now");
	for (size_t i = 0; i < n; i++) {
		const json_t *s = json_array_get(v, i);
		size_t len = json_string_length(s);
		if (!json_is_string(s) || len == 0 || len > PARAM_BAD_BYTES_MAX)
			return api_bad(e, "bad_words",
			               "bad_words[%zu] must be a string of 1 to %d bytes, got %s", i,
			               PARAM_BAD_BYTES_MAX, param_show(s));
		if (read_bad_word(t, json_string_value(s), len, p, e) < 0)
			return -1;
	}
	return 0;
}

int params_read_ids(const json_t *o, const struct tokenizer *t, uint32_t vocab, struct params *p,
                    struct api_error *e)
{
	if (read_bias(o, vocab, p, e) < 0 || read_allowed_ids(o, vocab, p, e) < 0)
		return -1;
	return read_bad_words(o, t, p, e);
}

void params_fini(struct params *p)
{
	stop_set_destroy(&p->stop);
	free(p->sampling.bias_ids);
	free(p->sampling.bias);
	free(p->sampling.allowed_ids);
	free(p->sampling.bad_words);
}
