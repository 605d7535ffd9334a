/* tokenizer.c - see tokenizer.h: builds an instance from a spec, converts ids to text and answers
 * questions about tokens. encode.c converts text to ids.
 *
 * An instance is complete and checked before it is returned: ids are inside the vocabulary, and the
 * parts and results of all merges exist. Errors in the files are returned as one sentence that
 * starts with the file's name. */
#include "format/gguf.h"
#include "text/tokenizer_int.h"
#include "text/unicode.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

/* --- building ------------------------------------------------------------- */

static void make_merges(struct tokenizer *t)
{
	t->bpe = bpe_new(t->spec.n_merges);
	for (size_t i = 0; i < t->spec.n_merges; i++)
		bpe_add_merge(t->bpe, t->spec.merges[i].left, t->spec.merges[i].right, (uint32_t)i,
		              t->spec.merges[i].id);
}

static uint32_t find_plain(const struct vocab *v, const char *s, size_t len)
{
	uint32_t id = vocab_find(v, s, len);
	return id != UINT32_MAX && vocab_is_special(v, id) ? UINT32_MAX : id;
}

static void find_bytes(struct tokenizer *t)
{
	static const char digits[] = "0123456789ABCDEF";
	const struct vocab *v = &t->spec.vocab;
	for (unsigned c = 0; c < 256; c++) {
		const char name[] = {'<', '0', 'x', digits[c >> 4], digits[c & 15], '>'};
		t->byte_id[c] = t->spec.byte_level      ? find_plain(v, &(char){(char)c}, 1)
		                : t->spec.byte_fallback ? find_plain(v, name, sizeof name)
		                                        : UINT32_MAX;
		if (c < 128)
			t->ascii_id[c] = find_plain(v, &(char){(char)c}, 1);
	}
}

static int well_formed(const char *s, size_t len)
{
	uint32_t cp;
	int step = 1;
	for (size_t i = 0; i < len && step > 0; i += (size_t)step)
		step = utf8_step(s + i, len - i, &cp);
	return step > 0;
}

/* Can a character be dropped, so that its neighbours merge? */
static int may_drop(const struct tokenizer *t)
{
	unsigned missing = 0;
	for (unsigned c = 0; c < 256; c++)
		missing += t->byte_id[c] == UINT32_MAX;
	return t->spec.byte_fallback ? missing > 0 : t->spec.unk == UINT32_MAX;
}

static int is_odd(const struct vocab *v, uint32_t id)
{
	return v->tokens[id].type == VOCAB_BYTE ||
	       !well_formed(vocab_text(v, id), v->tokens[id].text_len);
}

/* Cuts are exact if every token that a word can become consists of characters of the word's own
 * text. */
static void make_cuts(struct tokenizer *t)
{
	const struct tokenizer_spec *s = &t->spec;
	if (s->byte_level || may_drop(t))
		return;
	struct text_cuts *c = mem_zalloc(sizeof *c);
	for (size_t i = 0; i < s->n_merges && c; i++) {
		const struct spec_merge *m = &s->merges[i];
		if (is_odd(&s->vocab, m->left) || is_odd(&s->vocab, m->right)) {
			free(c);
			c = NULL;
		} else
			cuts_add(c, vocab_text(&s->vocab, m->id), s->vocab.tokens[m->id].text_len);
	}
	for (uint32_t id = 0; id < s->vocab.n && s->model == SPEC_UNIGRAM; id++)
		cuts_add(c, vocab_text(&s->vocab, id), s->vocab.tokens[id].text_len);
	t->cuts = c;
}

/* Marks the tokens that a piece with exactly their text becomes: those that the model produces from
 * it or, if the kind ignores merges, all ordinary ones. */
static void mark_whole(struct tokenizer *t)
{
	struct vocab *v = &t->spec.vocab;
	struct token_list l = {0};
	struct encoder e;
	encoder_init(&e, t, &l, SIZE_MAX, 0);
	for (uint32_t id = 0; id < v->n; id++) {
		struct vocab_token *k = &v->tokens[id];
		const char *key = v->byte_level ? vocab_bytes(v, id) : vocab_text(v, id);
		size_t len = v->byte_level ? k->bytes_len : k->text_len;
		if (!len || vocab_is_special(v, id) ||
		    (v->byte_level ? !k->mapped : !well_formed(key, len)))
			continue;
		l.n = 0;
		e.unk_open = 0;
		k->whole = (v->byte_level && t->spec.ignore_merges && k->type == VOCAB_NORMAL) ||
		           (encode_word(&e, key, len) == 0 && l.n == 1 && l.ids[0] == id);
	}
	encoder_fini(&e);
	token_list_fini(&l);
}

static char *copy(const char *s, size_t len)
{
	return memcpy(mem_alloc(len), s, len);
}

/* Builds the set of added tokens matched in raw text, or of those matched in normalized text, which
 * are normalized here. */
static int make_added(struct tokenizer *t, struct added_set *set, int normalized, struct err *err)
{
	const struct tokenizer_spec *s = &t->spec;
	struct added_token *list = mem_array(s->n_added, sizeof *list);
	struct buf text, spare;
	size_t n = 0;
	int rc = 0;
	buf_init(&text, 0);
	buf_init(&spare, 0);
	for (size_t i = 0; i < s->n_added && rc == 0; i++) {
		const struct spec_added *a = &s->added[i];
		const char *p = vocab_text(&s->vocab, a->id);
		size_t len = s->vocab.tokens[a->id].text_len;
		if (a->normalized != normalized)
			continue;
		if (normalized && !well_formed(p, len))
			rc = err_set(err, ERR_INVALID, "added token %u is not UTF-8", a->id);
		else if (normalized && normalizer_run(&s->normalizer, 1, p, len, &text, &spare) == 0)
			p = text.data, len = text.len;
		if (rc == 0 && len)
			list[n++] = (struct added_token){.text = copy(p, len),
			                                 .len = len,
			                                 .id = a->id,
			                                 .special = (uint8_t)vocab_is_special(&s->vocab, a->id),
			                                 .lstrip = a->lstrip,
			                                 .rstrip = a->rstrip};
	}
	added_init(set, list, n);
	buf_fini(&text);
	buf_fini(&spare);
	return rc;
}

static int make(struct tokenizer *t, struct err *err)
{
	struct tokenizer_spec *s = &t->spec;
	s->adds_bos = s->adds_bos && s->bos != UINT32_MAX;
	spec_make_bytes(s);
	find_bytes(t);
	if (s->stages[0] != PRETOK_NONE)
		t->pretok = pretok_new(s->stages);
	if (s->model == SPEC_BPE)
		make_merges(t);
	else
		t->unigram = unigram_new(&s->vocab);
	make_cuts(t);
	mark_whole(t);
	spec_hash(s, t->hash);
	int rc = make_added(t, &t->raw, 0, err);
	return rc < 0 ? rc : make_added(t, &t->normalized, 1, err);
}

static int finish(struct tokenizer *t, int rc, struct tokenizer **ret_t, struct err *err)
{
	if (rc == 0)
		rc = make(t, err);
	if (rc < 0) {
		tokenizer_destroy(&t);
		return rc;
	}
	*ret_t = t;
	return 0;
}

int tokenizer_from_gguf(const struct gguf *g, struct tokenizer **ret_t, struct err *err)
{
	struct tokenizer *t = mem_zalloc(sizeof *t);
	spec_init(&t->spec);
	int rc = finish(t, spec_from_gguf(&t->spec, g, err), ret_t, err);
	if (rc < 0)
		err_prefix(err, "%s", gguf_path(g));
	return rc;
}

int tokenizer_from_folder(const char *folder, struct tokenizer **ret_t, struct err *err)
{
	struct tokenizer *t = mem_zalloc(sizeof *t);
	spec_init(&t->spec);
	return finish(t, spec_from_folder(&t->spec, folder, err), ret_t, err);
}

void tokenizer_destroy(struct tokenizer **tp)
{
	struct tokenizer *t = *tp;
	if (!t)
		return;
	added_fini(&t->raw);
	added_fini(&t->normalized);
	pretok_destroy(&t->pretok);
	bpe_destroy(&t->bpe);
	unigram_destroy(&t->unigram);
	free(t->cuts);
	spec_fini(&t->spec);
	free(t);
	*tp = NULL;
}

/* --- ids to text --------------------------------------------------------- */

int tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t n, unsigned flags,
                     struct buf *out)
{
	struct detok d;
	int rc = 0;
	detok_init(&d, t, flags);
	for (size_t i = 0; i < n && rc == 0; i++)
		rc = detok_bytes(&d, ids[i], out);
	return rc;
}

uint32_t tokenizer_size(const struct tokenizer *t)
{
	return t->spec.vocab.n;
}

int tokenizer_is_special(const struct tokenizer *t, uint32_t id)
{
	return id < t->spec.vocab.n && vocab_is_special(&t->spec.vocab, id);
}

uint32_t tokenizer_bos(const struct tokenizer *t)
{
	return t->spec.bos;
}

uint32_t tokenizer_eos(const struct tokenizer *t)
{
	return t->spec.n_eos ? t->spec.eos[0] : UINT32_MAX;
}

int tokenizer_is_eos(const struct tokenizer *t, uint32_t id)
{
	for (unsigned i = 0; i < t->spec.n_eos; i++)
		if (t->spec.eos[i] == id)
			return 1;
	return 0;
}

int tokenizer_adds_bos(const struct tokenizer *t)
{
	return t->spec.adds_bos;
}

const char *tokenizer_bytes(const struct tokenizer *t, uint32_t id, size_t *ret_len)
{
	if (id >= t->spec.vocab.n)
		return NULL;
	*ret_len = t->spec.vocab.tokens[id].bytes_len;
	return vocab_bytes(&t->spec.vocab, id);
}

const char *tokenizer_piece(const struct tokenizer *t, uint32_t id, size_t *ret_len)
{
	if (id >= t->spec.vocab.n)
		return NULL;
	*ret_len = t->spec.vocab.tokens[id].text_len;
	return vocab_text(&t->spec.vocab, id);
}

const char *tokenizer_hash(const struct tokenizer *t)
{
	return t->hash;
}
