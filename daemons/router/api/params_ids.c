/* params_ids.c - parameters that name tokens, by id or by text. Everything that is wrong with
 * them is said by name, value and limit. */
#include "params.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

static const json_t *member(const json_t *o, const char *name)
{
	return param_is_set(o, name) ? json_object_get(o, name) : NULL;
}

/* Decimal digits and nothing else; -1: it is none, or beyond 32 bits. */
static int64_t id_of_key(const char *s)
{
	int64_t id = 0;
	if (!*s || strlen(s) > 10)
		return -1;
	for (; *s; s++) {
		if (*s < '0' || *s > '9')
			return -1;
		id = id * 10 + (*s - '0');
	}
	return id;
}

static int read_bias(const json_t *o, uint32_t vocab, struct params *p, struct api_error *e)
{
	const json_t *v = member(o, "logit_bias"), *item;
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
		int64_t id = id_of_key(key);
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

static int read_allowed(const json_t *o, uint32_t vocab, struct params *p, struct api_error *e)
{
	const json_t *v = member(o, "allowed_token_ids");
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

static int add_word(struct params *p, const struct token_list *l, struct api_error *e)
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

/* As it stands at the beginning of a text and, where that is another token, as it stands after a
 * space. */
static int read_word(const struct tokenizer *t, const char *word, size_t len, struct params *p,
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
		r = add_word(p, &plain, e);
	if (r == 0 && after.n && after.n == plain.n && after.ids[0] != plain.ids[0])
		r = add_word(p, &after, e);
	token_list_fini(&plain);
	token_list_fini(&after);
	return r;
}

static int read_bad_words(const json_t *o, const struct tokenizer *t, struct params *p,
                          struct api_error *e)
{
	const json_t *v = member(o, "bad_words");
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
		if (read_word(t, json_string_value(s), len, p, e) < 0)
			return -1;
	}
	return 0;
}

int params_read_ids(const json_t *o, const struct tokenizer *t, uint32_t vocab, struct params *p,
                    struct api_error *e)
{
	if (read_bias(o, vocab, p, e) < 0 || read_allowed(o, vocab, p, e) < 0)
		return -1;
	return read_bad_words(o, t, p, e);
}
