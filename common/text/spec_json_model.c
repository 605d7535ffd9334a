/* spec_json_model.c - see spec_json.h: the model of a tokenizer.json (BPE or Unigram) and its added
 * tokens.
 *
 * Every id has one text, and every text of the vocabulary one id; an added token that is also in
 * the vocabulary has the same id there. Ids may have gaps, but not many more than there are tokens,
 * so a file cannot make us allocate far more than its own size. */
#include "text/spec_json.h"
#include "text/unicode.h"
#include "util/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GAPS_MAX = 65536 };

static int text_fits(size_t len)
{
	return len <= VOCAB_TOKEN_MAX;
}

/* --- vocabulary ---------------------------------------------------------- */

/* *ret: the number of ids, one more than the highest. */
static int count_ids(const json_t *vocab, const json_t *added, uint32_t *ret, struct err *err)
{
	json_int_t top = -1, lowest = 0;
	size_t entries = json_is_array(vocab) ? json_array_size(vocab) : json_object_size(vocab), i;
	const char *key;
	json_t *v;
	if (json_is_array(vocab))
		top = (json_int_t)entries - 1;
	json_object_foreach((json_t *)vocab, key, v) {
		if (!json_is_integer(v))
			return err_set(err, ERR_INVALID, "model.vocab: expected a token id for each text");
		top = json_integer_value(v) > top ? json_integer_value(v) : top;
		lowest = json_integer_value(v) < lowest ? json_integer_value(v) : lowest;
	}
	json_array_foreach(added, i, v) {
		const json_t *id = json_object_get(v, "id");
		if (!json_is_integer(id) || !json_is_string(json_object_get(v, "content")))
			return err_set(err, ERR_INVALID, "added_tokens: entry %zu has no id or no content", i);
		top = json_integer_value(id) > top ? json_integer_value(id) : top;
		lowest = json_integer_value(id) < lowest ? json_integer_value(id) : lowest;
	}
	entries += json_array_size(added);
	if (lowest < 0 || top < 0 || top >= VOCAB_IDS_MAX || top > (json_int_t)(2 * entries + GAPS_MAX))
		return err_set(err, ERR_INVALID,
		               "token ids from %lld to %lld for %zu tokens: expected 0 or more, and less "
		               "than %d and than twice the tokens and %d",
		               (long long)lowest, (long long)top, entries, VOCAB_IDS_MAX, GAPS_MAX);
	*ret = (uint32_t)top + 1;
	return 0;
}

static int set_token(struct tokenizer_spec *s, uint32_t id, const char *text, size_t len,
                     struct err *err)
{
	if (!text_fits(len))
		return err_set(err, ERR_INVALID, "token %u has %zu bytes, expected at most %d", id, len,
		               VOCAB_TOKEN_MAX);
	if (vocab_set(&s->vocab, id, text, len, VOCAB_NORMAL) < 0)
		return err_set(err, ERR_INVALID, "model.vocab: two texts have the id %u", id);
	return 0;
}

static int read_bpe_vocab(struct tokenizer_spec *s, const json_t *vocab, struct err *err)
{
	json_t *v;
	void *it = json_object_iter((json_t *)vocab);
	int rc = 0;
	for (; it && rc == 0; it = json_object_iter_next((json_t *)vocab, it)) {
		v = json_object_iter_value(it);
		rc = set_token(s, (uint32_t)json_integer_value(v), json_object_iter_key(it),
		               json_object_iter_key_len(it), err);
	}
	return rc;
}

static int read_unigram_vocab(struct tokenizer_spec *s, const json_t *vocab, struct err *err)
{
	size_t i;
	json_t *v;
	int rc = 0;
	json_array_foreach(vocab, i, v) {
		const json_t *text = json_array_get(v, 0), *score = json_array_get(v, 1);
		if (!json_is_string(text) || !json_is_number(score) || !isfinite(json_number_value(score)))
			return err_set(err, ERR_INVALID, "model.vocab: entry %zu is not a text and a score", i);
		if ((rc = set_token(s, (uint32_t)i, json_string_value(text), json_string_length(text),
		                    err)) < 0)
			return rc;
		s->vocab.tokens[i].score = json_number_value(score);
	}
	return 0;
}

/* Sets the kind of tokens that are in the vocabulary and appends the others. vocab_find already
 * works. */
static int read_added_one(struct tokenizer_spec *s, size_t i, const json_t *v, struct err *err)
{
	const json_t *content = json_object_get(v, "content");
	uint32_t id = (uint32_t)json_integer_value(json_object_get(v, "id"));
	size_t len = json_string_length(content);
	struct vocab_token *t = &s->vocab.tokens[id];
	if (json_is_true(json_object_get(v, "single_word")))
		return err_set(err, ERR_UNSUPPORTED,
		               "added_tokens: entry %zu (id %u): single_word is not supported", i, id);
	if (!text_fits(len))
		return err_set(err, ERR_INVALID,
		               "added_tokens: entry %zu has %zu bytes, expected at most %d", i, len,
		               VOCAB_TOKEN_MAX);
	if (vocab_set(&s->vocab, id, json_string_value(content), len, VOCAB_NORMAL) < 0 &&
	    (t->text_len != len || memcmp(vocab_text(&s->vocab, id), json_string_value(content), len)))
		return err_set(err, ERR_INVALID,
		               "added_tokens: entry %zu has the id %u, which is another token's", i, id);
	t->type = json_is_true(json_object_get(v, "special")) ? VOCAB_CONTROL : VOCAB_USER_DEFINED;
	if (len)
		spec_add_added(
			s, (struct spec_added){.id = id,
		                           .lstrip = json_is_true(json_object_get(v, "lstrip")),
		                           .rstrip = json_is_true(json_object_get(v, "rstrip")),
		                           .normalized = json_is_true(json_object_get(v, "normalized"))});
	return 0;
}

/* Refuses an added token whose text has another id in the vocabulary: two tokens would have the
 * same text. */
static int check_added(const json_t *vocab, const json_t *added, struct err *err)
{
	size_t i;
	json_t *v;
	json_array_foreach(added, i, v) {
		const json_t *content = json_object_get(v, "content");
		const json_t *known = json_object_getn(vocab, json_string_value(content),
		                                       json_string_length(content));
		if (known && json_integer_value(known) != json_integer_value(json_object_get(v, "id")))
			return err_set(err, ERR_INVALID,
			               "added_tokens: entry %zu has the id %lld, but its text has the id %lld "
			               "in model.vocab",
			               i, (long long)json_integer_value(json_object_get(v, "id")),
			               (long long)json_integer_value(known));
	}
	return 0;
}

static int read_added(struct tokenizer_spec *s, const json_t *added, struct err *err)
{
	size_t i;
	json_t *v;
	int rc = 0;
	json_array_foreach(added, i, v)
		if (rc == 0)
			rc = read_added_one(s, i, v, err);
	return rc;
}

static void mark_kinds(struct tokenizer_spec *s)
{
	for (uint32_t id = 0; s->byte_fallback && id < s->vocab.n; id++)
		if (s->vocab.tokens[id].type == VOCAB_NORMAL &&
		    vocab_byte_of(vocab_text(&s->vocab, id), s->vocab.tokens[id].text_len) >= 0)
			s->vocab.tokens[id].type = VOCAB_BYTE;
	if (s->unk != UINT32_MAX)
		s->vocab.tokens[s->unk].type = VOCAB_UNKNOWN;
}

/* --- merges -------------------------------------------------------------- */

struct merge_text {
	const char *left, *right;
	size_t left_len, right_len;
};

/* A merge is "a b" with one space, or ["a", "b"]. */
static int merge_parts(const json_t *v, struct merge_text *m)
{
	const json_t *left = json_array_get(v, 0), *right = json_array_get(v, 1);
	if (json_is_string(v)) {
		size_t len = json_string_length(v);
		m->left = json_string_value(v);
		const char *space = memchr(m->left, ' ', len);
		if (!space || memchr(space + 1, ' ', len - (size_t)(space + 1 - m->left)))
			return -1;
		m->left_len = (size_t)(space - m->left);
		m->right = space + 1;
		m->right_len = len - m->left_len - 1;
	} else if (json_array_size(v) == 2 && json_is_string(left) && json_is_string(right)) {
		*m = (struct merge_text){json_string_value(left), json_string_value(right),
		                         json_string_length(left), json_string_length(right)};
	} else
		return -1;
	return m->left_len && m->right_len && text_fits(m->left_len) && text_fits(m->right_len) ? 0
	                                                                                        : -1;
}

/* Writes both parts to tmp, one after the other, in the form that vocab_find expects. */
static int merge_key(const struct tokenizer_spec *s, struct merge_text *m, char *tmp)
{
	if (!s->byte_level) {
		memcpy(tmp, m->left, m->left_len);
		memcpy(tmp + m->left_len, m->right, m->right_len);
		return 0;
	}
	size_t left = vocab_unmap(m->left, m->left_len, tmp),
		   right = left == SIZE_MAX ? SIZE_MAX : vocab_unmap(m->right, m->right_len, tmp + left);
	if (right == SIZE_MAX)
		return -1;
	m->left_len = left;
	m->right_len = right;
	return 0;
}

static int read_merge(struct tokenizer_spec *s, size_t rank, const json_t *v, char *tmp,
                      struct err *err)
{
	struct merge_text m;
	if (merge_parts(v, &m) < 0 || merge_key(s, &m, tmp) < 0)
		return err_set(err, ERR_INVALID, "model.merges: entry %zu is not two %s", rank,
		               s->byte_level ? "byte-level tokens" : "tokens");
	const struct vocab *vocab = &s->vocab;
	uint32_t a = vocab_find(vocab, tmp, m.left_len),
			 b = vocab_find(vocab, tmp + m.left_len, m.right_len),
			 id = vocab_find(vocab, tmp, m.left_len + m.right_len);
	if (a == UINT32_MAX || b == UINT32_MAX || id == UINT32_MAX)
		return err_set(err, ERR_INVALID, "model.merges: entry %zu: its %s is not in the vocabulary",
		               rank,
		               a == UINT32_MAX   ? "left part"
		               : b == UINT32_MAX ? "right part"
		                                 : "result");
	if (!vocab_is_special(vocab, a) && !vocab_is_special(vocab, b) && !vocab_is_special(vocab, id))
		spec_add_merge(s, a, b, id);
	return 0;
}

static int read_merges(struct tokenizer_spec *s, const json_t *merges, struct err *err)
{
	size_t i;
	json_t *v;
	if (!json_is_array(merges))
		return err_set(err, ERR_INVALID, "model.merges: expected an array");
	char *tmp = mem_alloc(2 * VOCAB_TOKEN_MAX);
	int rc = 0;
	json_array_foreach(merges, i, v)
		if (rc == 0)
			rc = read_merge(s, i, v, tmp, err);
	free(tmp);
	return rc;
}

/* --- the model ----------------------------------------------------------- */

static int is_set(const json_t *model, const char *key)
{
	const json_t *v = json_object_get(model, key);
	return json_is_string(v) ? json_string_length(v) > 0
	                         : json_is_number(v) && json_number_value(v) > 0;
}

static int read_options(struct tokenizer_spec *s, const json_t *model, struct err *err)
{
	static const char *const unknown[] = {"dropout", "continuing_subword_prefix",
	                                      "end_of_word_suffix"};
	for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
		if (is_set(model, unknown[i]))
			return err_set(err, ERR_UNSUPPORTED, "model.%s is not supported", unknown[i]);
	s->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
	s->fuse_unk = s->model == SPEC_UNIGRAM || json_is_true(json_object_get(model, "fuse_unk"));
	s->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
	if (s->byte_level && (s->byte_fallback || s->model == SPEC_UNIGRAM))
		return err_set(err, ERR_UNSUPPORTED,
		               "model: byte-level tokens with byte_fallback or Unigram are not supported");
	return 0;
}

static int read_unk(struct tokenizer_spec *s, const json_t *model, const json_t *vocab,
                    struct err *err)
{
	const json_t *name = json_object_get(model, "unk_token"),
				 *id = json_object_get(model, "unk_id");
	if (s->model == SPEC_BPE && json_is_string(name)) {
		id = json_object_getn(vocab, json_string_value(name), json_string_length(name));
		if (!id)
			return s->byte_level
			           ? 0
			           : err_set(err, ERR_INVALID, "model.unk_token is not in model.vocab");
	}
	if (!id || json_is_null(id))
		return 0;
	if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= s->vocab.n)
		return err_set(err, ERR_INVALID, "model.unk_id: expected a token id below %u", s->vocab.n);
	s->unk = (uint32_t)json_integer_value(id);
	return 0;
}

static int read_kind(struct tokenizer_spec *s, const json_t *model, struct err *err)
{
	char quote[ASCII_QUOTE + 1];
	const char *type = json_string_value(json_object_get(model, "type"));
	if (!json_is_object(model))
		return err_set(err, ERR_INVALID, "model: expected an object");
	if (!type) /* old files: the members tell the type */
		type = json_object_get(model, "merges")                 ? "BPE"
		       : json_is_array(json_object_get(model, "vocab")) ? "Unigram"
		                                                        : "none given";
	if (strcmp(type, "BPE") && strcmp(type, "Unigram"))
		return err_set(err, ERR_UNSUPPORTED, "model '%s' is not supported: expected BPE or Unigram",
		               ascii_quote(type, strlen(type), quote));
	s->model = strcmp(type, "BPE") ? SPEC_UNIGRAM : SPEC_BPE;
	return 0;
}

int spec_json_model(struct tokenizer_spec *s, const json_t *model, const json_t *added,
                    struct err *err)
{
	uint32_t n = 0;
	const json_t *vocab = json_object_get(model, "vocab");
	int rc = read_kind(s, model, err);
	if (rc == 0)
		rc = read_options(s, model, err);
	if (rc == 0 && !(s->model == SPEC_BPE ? json_is_object(vocab) : json_is_array(vocab)))
		rc = err_set(err, ERR_INVALID, "model.vocab: expected an %s",
		             s->model == SPEC_BPE ? "object" : "array");
	if (rc == 0)
		rc = count_ids(vocab, added, &n, err);
	if (rc < 0)
		return rc;
	vocab_init(&s->vocab, n);
	rc = s->model == SPEC_BPE ? read_bpe_vocab(s, vocab, err) : read_unigram_vocab(s, vocab, err);
	if (rc == 0)
		rc = check_added(vocab, added, err);
	if (rc == 0)
		rc = read_added(s, added, err);
	if (rc == 0)
		rc = read_unk(s, model, vocab, err);
	if (rc < 0)
		return rc;
	mark_kinds(s);
	vocab_index(&s->vocab, s->byte_level);
	return s->model == SPEC_BPE ? read_merges(s, json_object_get(model, "merges"), err) : 0;
}
