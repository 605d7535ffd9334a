/* spec_gguf.c - reads a tokenizer from GGUF metadata, tokenizer.ggml.*: models gpt2 (byte-level
 * BPE), llama (SentencePiece BPE) and t5 (SentencePiece unigram).
 *
 * Counts were checked against the file when it was opened; other mistakes are returned as errors
 * that name the key. */
#include "format/gguf.h"
#include "text/ends_gguf.h"
#include "text/spec.h"
#include "text/unicode.h"
#include "util/check.h"
#include "util/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY "tokenizer.ggml."
#define TOKENS_KEY KEY "tokens"
#define TYPES_KEY KEY "token_type"
#define SCORES_KEY KEY "scores"
#define MERGES_KEY KEY "merges"

/* Error: the key does not hold the expected array. */
static int wrong_array(const struct gguf *g, const char *key, struct err *err, const char *expected,
                       ...) __attribute__((format(printf, 4, 5)));
static int wrong_array(const struct gguf *g, const char *key, struct err *err, const char *expected,
                       ...)
{
	static const char *const names[] = {
		[GGUF_U8] = "u8",         [GGUF_I8] = "i8",   [GGUF_U16] = "u16", [GGUF_I16] = "i16",
		[GGUF_U32] = "u32",       [GGUF_I32] = "i32", [GGUF_F32] = "f32", [GGUF_BOOL] = "bool",
		[GGUF_STRING] = "string", [GGUF_U64] = "u64", [GGUF_I64] = "i64", [GGUF_F64] = "f64"};
	enum gguf_type type;
	size_t count;
	const void *data;
	char found[48] = "none", want[64];
	int rc = gguf_get_array(g, key, &type, &count, &data);
	if (rc == 0)
		snprintf(found, sizeof found, "an array of %zu %s", count, names[type]);
	else if (rc != ERR_NOTFOUND)
		snprintf(found, sizeof found, "no array");
	va_list ap;
	va_start(ap, expected);
	vsnprintf(want, sizeof want, expected, ap);
	va_end(ap);
	return err_set(err, ERR_INVALID, "%s: found %s, expected %s", key, found, want);
}

static int read_texts(struct tokenizer_spec *s, const struct gguf *g, struct err *err)
{
	enum gguf_type type;
	size_t count;
	const void *data;
	struct gguf_str text;
	if (gguf_get_array(g, TOKENS_KEY, &type, &count, &data) < 0 || type != GGUF_STRING)
		return wrong_array(g, TOKENS_KEY, err, "an array of strings");
	if (!count || count > VOCAB_IDS_MAX)
		return err_set(err, ERR_INVALID, "%s: found %zu tokens, expected 1 to %d", TOKENS_KEY,
		               count, VOCAB_IDS_MAX);
	vocab_init(&s->vocab, (uint32_t)count);
	for (size_t i = 0; i < count; i++) {
		CHECK(gguf_array_str(g, TOKENS_KEY, i, &text) == 0);
		if (text.len > VOCAB_TOKEN_MAX)
			return err_set(err, ERR_INVALID, "%s: token %zu has %zu bytes, expected at most %d",
			               TOKENS_KEY, i, text.len, VOCAB_TOKEN_MAX);
		vocab_set(&s->vocab, (uint32_t)i, text.s, text.len, VOCAB_NORMAL);
	}
	return 0;
}

static int read_types(struct tokenizer_spec *s, const struct gguf *g, struct err *err)
{
	enum gguf_type type;
	size_t count;
	const void *data;
	int rc = gguf_get_array(g, TYPES_KEY, &type, &count, &data);
	if (rc == ERR_NOTFOUND)
		return 0;
	if (rc < 0 || (type != GGUF_I32 && type != GGUF_U32) || count != s->vocab.n)
		return wrong_array(g, TYPES_KEY, err, "an array of %u 32-bit integers", s->vocab.n);
	for (uint32_t i = 0; i < s->vocab.n; i++) {
		uint32_t value;
		memcpy(&value, (const char *)data + (size_t)i * 4, 4);
		if (value < VOCAB_NORMAL || value > VOCAB_BYTE)
			return err_set(err, ERR_INVALID, "%s: token %u has type %u, expected 1 to 6", TYPES_KEY,
			               i, value);
		s->vocab.tokens[i].type = (uint8_t)value;
	}
	return 0;
}

static int read_scores(struct tokenizer_spec *s, const struct gguf *g, struct err *err)
{
	enum gguf_type type;
	size_t count;
	const void *data;
	if (gguf_get_array(g, SCORES_KEY, &type, &count, &data) < 0 || type != GGUF_F32 ||
	    count != s->vocab.n)
		return wrong_array(g, SCORES_KEY, err, "an array of %u f32", s->vocab.n);
	for (uint32_t i = 0; i < s->vocab.n; i++) {
		float score;
		memcpy(&score, (const char *)data + (size_t)i * 4, 4);
		s->vocab.tokens[i].score = (double)score;
		if (!isfinite(score))
			return err_set(err, ERR_INVALID,
			               "%s: token %u has the score %g, expected a finite number", SCORES_KEY, i,
			               (double)score);
	}
	return 0;
}

/* Leaves *ret unchanged if the key is absent. */
static int read_bool(const struct gguf *g, const char *key, int *ret, struct err *err)
{
	int rc = gguf_get_bool(g, key, ret);
	return rc < 0 && rc != ERR_NOTFOUND
	           ? err_set(err, ERR_INVALID, "%s: found another type, expected a bool", key)
	           : 0;
}

static int read_id(const struct tokenizer_spec *s, const struct gguf *g, const char *key,
                   uint32_t *ret, struct err *err)
{
	uint32_t id = UINT32_MAX;
	int rc = gguf_get_u32(g, key, &id);
	if (rc == ERR_NOTFOUND)
		return 0;
	if (rc < 0)
		return err_set(err, ERR_INVALID,
		               "%s: found another type or range, expected a token id below %u", key,
		               s->vocab.n);
	if (id >= s->vocab.n)
		return err_set(err, ERR_INVALID, "%s: found %u, expected a token id below %u", key, id,
		               s->vocab.n);
	*ret = id;
	return 0;
}

/* A merge is the left and the right part separated by one space. Merges with control tokens are
 * skipped. */
static int add_merge(struct tokenizer_spec *s, size_t rank, const struct gguf_str *m, char *tmp,
                     struct err *err)
{
	const char *space = m->len > 1 ? memchr(m->s + 1, ' ', m->len - 1) : NULL;
	size_t left_len = space ? (size_t)(space - m->s) : 0;
	size_t left = space ? vocab_unmap(m->s, left_len, tmp) : SIZE_MAX;
	size_t right = left != SIZE_MAX ? vocab_unmap(space + 1, m->len - left_len - 1, tmp + left)
	                                : SIZE_MAX;
	if (right == SIZE_MAX || !right)
		return err_set(err, ERR_INVALID,
		               "%s: merge %zu is not two byte-level tokens with one space between",
		               MERGES_KEY, rank);
	uint32_t a = vocab_find(&s->vocab, tmp, left), b = vocab_find(&s->vocab, tmp + left, right),
			 id = vocab_find(&s->vocab, tmp, left + right);
	if (a == UINT32_MAX || b == UINT32_MAX || id == UINT32_MAX)
		return err_set(err, ERR_INVALID, "%s: merge %zu: its %s is not in the vocabulary",
		               MERGES_KEY, rank,
		               a == UINT32_MAX   ? "left part"
		               : b == UINT32_MAX ? "right part"
		                                 : "result");
	if (!vocab_is_special(&s->vocab, a) && !vocab_is_special(&s->vocab, b) &&
	    !vocab_is_special(&s->vocab, id))
		spec_add_merge(s, a, b, id);
	return 0;
}

static int read_merges(struct tokenizer_spec *s, const struct gguf *g, struct err *err)
{
	enum gguf_type type;
	size_t count, longest = 1;
	const void *data;
	struct gguf_str m;
	if (gguf_get_array(g, MERGES_KEY, &type, &count, &data) < 0 || type != GGUF_STRING ||
	    count >= UINT32_MAX)
		return wrong_array(g, MERGES_KEY, err, "an array of strings");
	for (size_t i = 0; i < count; i++) {
		CHECK(gguf_array_str(g, MERGES_KEY, i, &m) == 0);
		longest = m.len > longest ? m.len : longest;
	}
	char *tmp = mem_alloc(longest);
	int rc = 0;
	for (size_t i = 0; i < count && rc == 0; i++) {
		CHECK(gguf_array_str(g, MERGES_KEY, i, &m) == 0);
		rc = add_merge(s, i, &m, tmp, err);
	}
	free(tmp);
	return rc;
}

/* Phi-3's special tokens take the white space after them along, which the format cannot say; as
 * llama.cpp does. */
static int strips_after(const struct tokenizer_spec *s, const struct gguf *g, uint32_t id)
{
	static const char *const no[] = {"<unk>", "<s>", "<|endoftext|>"};
	const struct vocab_token *t = &s->vocab.tokens[id];
	struct gguf_str text = {vocab_text(&s->vocab, id), t->text_len};
	struct gguf_str arch;
	if (s->byte_level || t->type != VOCAB_CONTROL ||
	    gguf_get_str(g, "general.architecture", &arch) < 0 || !gguf_str_is(arch, "phi3"))
		return 0;
	for (size_t i = 0; i < sizeof no / sizeof *no; i++)
		if (gguf_str_is(text, no[i]))
			return 0;
	return 1;
}

static void find_added(struct tokenizer_spec *s, const struct gguf *g)
{
	for (uint32_t id = 0; id < s->vocab.n; id++) {
		const struct vocab_token *t = &s->vocab.tokens[id];
		if (t->text_len && (vocab_is_special(&s->vocab, id) || t->type == VOCAB_USER_DEFINED))
			spec_add_added(s, (struct spec_added){.id = id,
			                                      .rstrip = (uint8_t)strips_after(s, g, id)});
	}
}

static int read_byte_level(struct tokenizer_spec *s, const struct gguf *g, struct err *err)
{
	char quote[ASCII_QUOTE + 1];
	struct gguf_str pre;
	if (gguf_get_str(g, KEY "pre", &pre) < 0)
		return err_set(err, ERR_UNSUPPORTED,
		               KEY "pre: found no string, expected the name of a pre-tokenizer");
	const struct pretok_kind *kind = pretok_kind_find(pre.s, pre.len);
	if (!kind)
		return err_set(err, ERR_UNSUPPORTED,
		               KEY "pre: found '%s', which is not a supported pre-tokenizer",
		               ascii_quote(pre.s, pre.len, quote));
	memcpy(s->stages, kind->stage, sizeof s->stages);
	s->byte_level = 1;
	s->ignore_merges = kind->ignore_merges;
	s->adds_bos = kind->adds_bos;
	if (kind->nfc)
		normalizer_add(&s->normalizer, NORMALIZE_NFC, NULL, 0, NULL, 0);
	vocab_index(&s->vocab, 1);
	return read_merges(s, g, err);
}

static int refuse_unigram_extras(const struct gguf *g, struct err *err)
{
	enum gguf_type type;
	size_t count = 0;
	const void *data;
	int remove = 0, rc = read_bool(g, KEY "remove_extra_whitespaces", &remove, err);
	if (rc == 0 && remove)
		return err_set(err, ERR_UNSUPPORTED,
		               KEY "remove_extra_whitespaces: removing white space is not supported");
	if (rc == 0 && gguf_get_array(g, KEY "precompiled_charsmap", &type, &count, &data) == 0 &&
	    count)
		return err_set(err, ERR_UNSUPPORTED,
		               KEY "precompiled_charsmap: this normalizer is not supported");
	return rc;
}

static int read_sentencepiece(struct tokenizer_spec *s, const struct gguf *g, struct err *err)
{
	int prefix = 1, rc = read_bool(g, KEY "add_space_prefix", &prefix, err);
	if (rc == 0 && s->model == SPEC_UNIGRAM)
		rc = refuse_unigram_extras(g, err);
	if (rc == 0)
		rc = read_scores(s, g, err);
	if (rc < 0)
		return rc;
	s->adds_bos = s->model == SPEC_BPE;
	s->byte_fallback = s->fuse_unk = s->decode_bytes = 1;
	if (prefix)
		normalizer_add(&s->normalizer, NORMALIZE_PREPEND, NULL, 0, SPEC_SPACE, 3);
	normalizer_add(&s->normalizer, NORMALIZE_REPLACE, " ", 1, SPEC_SPACE, 3);
	normalizer_add(&s->decode, NORMALIZE_REPLACE, SPEC_SPACE, 3, " ", 1);
	s->strip = prefix != 0;
	for (uint32_t id = 0; id < s->vocab.n && s->unk == UINT32_MAX; id++)
		if (s->vocab.tokens[id].type == VOCAB_UNKNOWN)
			s->unk = id;
	vocab_index(&s->vocab, 0);
	return s->model == SPEC_BPE ? spec_merges_from_scores(s, err) : 0;
}

static int read_model(struct tokenizer_spec *s, const struct gguf *g, struct err *err)
{
	char quote[ASCII_QUOTE + 1];
	struct gguf_str model;
	if (gguf_get_str(g, KEY "model", &model) < 0)
		return err_set(err, ERR_INVALID, KEY "model: found no string, expected gpt2, llama or t5");
	int gpt2 = gguf_str_is(model, "gpt2"), llama = gguf_str_is(model, "llama"),
		t5 = gguf_str_is(model, "t5");
	if (!gpt2 && !llama && !t5)
		return err_set(err, ERR_UNSUPPORTED, KEY "model: found '%s', expected gpt2, llama or t5",
		               ascii_quote(model.s, model.len, quote));
	s->model = t5 ? SPEC_UNIGRAM : SPEC_BPE;
	int rc = read_texts(s, g, err);
	if (rc == 0)
		rc = read_types(s, g, err);
	if (rc == 0)
		rc = gpt2 ? read_byte_level(s, g, err) : read_sentencepiece(s, g, err);
	return rc;
}

int spec_from_gguf(struct tokenizer_spec *s, const struct gguf *g, struct err *err)
{
	static const char *const ends[] = {KEY "eos_token_id", KEY "eot_token_id", KEY "eom_token_id"};
	int rc = read_model(s, g, err);
	if (rc == 0)
		rc = read_id(s, g, KEY "bos_token_id", &s->bos, err);
	/* byte-level vocabularies drop what has no token, as the reference does */
	if (rc == 0 && !s->byte_level)
		rc = read_id(s, g, KEY "unknown_token_id", &s->unk, err);
	for (size_t i = 0; i < sizeof ends / sizeof *ends && rc == 0; i++) {
		uint32_t id = UINT32_MAX;
		rc = read_id(s, g, ends[i], &id, err);
		if (id != UINT32_MAX)
			spec_add_eos(s, id);
	}
	uint32_t id[SPEC_EOS_MAX];
	for (unsigned i = 0, n = rc == 0 ? ends_from_gguf(g, id, SPEC_EOS_MAX) : 0; i < n; i++)
		spec_add_eos(s, id[i]);
	if (rc == 0)
		rc = read_bool(g, KEY "add_bos_token", &s->adds_bos, err);
	if (rc == 0)
		find_added(s, g);
	return rc;
}
