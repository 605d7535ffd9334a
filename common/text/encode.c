/* encode.c - converts text to ids in the reference's order: cut at added tokens; normalize the text
 * between them, and cut that at added tokens that match normalized text; add the prefix; cut by the
 * pre-tokenizer; turn each piece into tokens by merging or by the best path. Bytes that are not
 * UTF-8 are taken out before normalizing.
 *
 * A piece known to become one token skips the model. SentencePiece kinds often have the whole text
 * as one piece: it is first cut into words where no token can span the cut, which changes the speed
 * and not the result. */
#include "text/tokenizer_int.h"
#include "text/unicode.h"
#include "util/check.h"
#include "util/quota.h"

#include <stdlib.h>
#include <string.h>

#define TEXT_MAX ((size_t)INT32_MAX) /* the merger counts symbols in 31 bits */

void encoder_init(struct encoder *e, const struct tokenizer *t, struct token_list *out,
                  size_t limit, unsigned flags)
{
	memset(e, 0, sizeof *e);
	e->t = t;
	e->out = out;
	e->limit = limit;
	e->flags = flags;
	buf_init_quota(&e->normal, TEXT_MAX, out->quota);
	buf_init_quota(&e->spare, TEXT_MAX, out->quota);
	buf_init_quota(&e->marked, TEXT_MAX, out->quota);
	e->pretok.quota = e->bpe.quota = e->unigram.quota = out->quota;
}

void encoder_fini(struct encoder *e)
{
	buf_fini(&e->normal);
	buf_fini(&e->spare);
	buf_fini(&e->marked);
	pretok_scratch_fini(&e->pretok);
	bpe_scratch_fini(&e->bpe);
	unigram_scratch_fini(&e->unigram);
}

void token_list_fini(struct token_list *l)
{
	quota_free(l->quota, l->ids, l->size * sizeof *l->ids);
	l->ids = NULL;
	l->n = l->size = 0;
}

static int push(struct encoder *e, const uint32_t *ids, size_t n)
{
	struct token_list *l = e->out;
	if (n > e->limit - l->n)
		return ERR_FULL;
	if (l->n + n > l->size) {
		size_t size = l->size * 2 > l->n + n ? l->size * 2 : l->n + n + 32;
		uint32_t *ids_now = quota_grow(l->quota, l->ids, l->size, size, sizeof *l->ids);
		if (!ids_now)
			return ERR_NOMEM;
		l->ids = ids_now;
		l->size = size;
	}
	if (n)
		memcpy(l->ids + l->n, ids, n * sizeof *ids);
	l->n += n;
	return 0;
}

/* --- words --------------------------------------------------------------- */

/* Appends the ids of a word. If unknown tokens are fused and the word before ended with one, a
 * leading unknown token is dropped. */
static int push_word(struct encoder *e, const uint32_t *ids, size_t n)
{
	const struct tokenizer_spec *s = &e->t->spec;
	if (!n)
		return 0;
	size_t skip = s->fuse_unk && e->unk_open && ids[0] == s->unk;
	e->unk_open = ids[n - 1] == s->unk;
	return push(e, ids + skip, n - skip);
}

static size_t symbols_of_bytes(const struct tokenizer *t, uint32_t *ids, const char *piece,
                               size_t len)
{
	size_t n = 0;
	int was_unknown = 0;
	for (size_t i = 0; i < len; i++) {
		uint32_t id = t->byte_id[(unsigned char)piece[i]];
		int unknown = id == UINT32_MAX;
		if (unknown && (id = t->spec.unk) == UINT32_MAX)
			continue;
		if (!unknown || !was_unknown || !t->spec.fuse_unk)
			ids[n++] = id;
		was_unknown = unknown;
	}
	return n;
}

/* Looks up the byte tokens of a character. Returns len, or 0 if any byte has none. */
static size_t add_bytes(const struct tokenizer *t, uint32_t *ids, const char *c, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if ((ids[i] = t->byte_id[(unsigned char)c[i]]) == UINT32_MAX)
			return 0;
	return len;
}

/* Follows the reference: an unknown character is held back until the next known one, so it comes
 * out after byte tokens in between. */
static size_t symbols_of_chars(const struct tokenizer *t, uint32_t *ids, const char *word,
                               size_t len)
{
	const struct tokenizer_spec *s = &t->spec;
	size_t n = 0, bytes;
	int waits = 0;
	uint32_t cp;
	for (size_t i = 0, step; i < len; i += step) {
		step = (size_t)utf8_step(word + i, len - i, &cp);
		uint32_t id = cp < 128 ? t->ascii_id[cp] : vocab_find(&s->vocab, word + i, step);
		if (id != UINT32_MAX && !vocab_is_special(&s->vocab, id)) {
			if (waits)
				ids[n++] = s->unk;
			waits = 0;
			ids[n++] = id;
		} else if (s->byte_fallback && (bytes = add_bytes(t, ids + n, word + i, step)))
			n += bytes;
		else if (s->unk != UINT32_MAX) {
			if (waits && !s->fuse_unk)
				ids[n++] = s->unk;
			waits = 1;
		}
	}
	if (waits)
		ids[n++] = s->unk;
	return n;
}

static int encode_best(struct encoder *e, const char *word, size_t len)
{
	const struct tokenizer *t = e->t;
	size_t n = unigram_best(t->unigram, &e->unigram, word, len);
	int rc = 0;
	if (n == UNIGRAM_NO_MEMORY)
		return ERR_NOMEM;
	for (size_t i = 0; i < n && rc == 0; i++) {
		const struct unigram_part *p = &e->unigram.parts[i];
		if (p->id != UNIGRAM_UNKNOWN) {
			rc = push_word(e, &p->id, 1);
			continue;
		}
		uint32_t *ids = bpe_room(&e->bpe, p->len);
		if (!ids)
			return ERR_NOMEM;
		size_t bytes = t->spec.byte_fallback ? add_bytes(t, ids, word + p->begin, p->len) : 0;
		if (bytes)
			rc = push_word(e, ids, bytes);
		else if (t->spec.unk != UINT32_MAX)
			rc = push_word(e, &t->spec.unk, 1);
	}
	return rc;
}

int encode_word(struct encoder *e, const char *word, size_t len)
{
	const struct tokenizer *t = e->t;
	if (t->unigram)
		return encode_best(e, word, len);
	uint32_t *ids = bpe_room(&e->bpe, len + 1);
	if (!ids)
		return ERR_NOMEM;
	size_t n = t->spec.byte_level ? symbols_of_bytes(t, ids, word, len)
	                              : symbols_of_chars(t, ids, word, len);
	n = bpe_merge(t->bpe, &e->bpe, n);
	return n == BPE_NO_MEMORY ? ERR_NOMEM : push_word(e, e->bpe.ids, n);
}

static int encode_known(struct encoder *e, const char *word, size_t len)
{
	const struct vocab *v = &e->t->spec.vocab;
	uint32_t id = len <= v->longest ? vocab_find(v, word, len) : UINT32_MAX;
	if (id == UINT32_MAX || !v->tokens[id].whole)
		return encode_word(e, word, len);
	e->unk_open = 0;
	return push(e, &id, 1);
}

static int encode_piece(void *arg, const char *piece, size_t len)
{
	struct encoder *e = arg;
	const struct tokenizer *t = e->t;
	const struct vocab *v = &t->spec.vocab;
	int rc = 0;
	e->unk_open = 0;
	if (t->spec.ignore_merges && !t->spec.byte_level && len <= v->longest) {
		uint32_t id = vocab_find(v, piece, len);
		if (id != UINT32_MAX && !vocab_is_special(v, id))
			return push(e, &id, 1);
	}
	if (!t->cuts)
		return encode_known(e, piece, len);
	for (size_t i = 0, n; i < len && rc == 0; i += n) {
		n = cuts_next(t->cuts, piece + i, len - i);
		rc = encode_known(e, piece + i, n);
	}
	return rc;
}

/* --- stretches between added tokens -------------------------------------- */

/* Encodes a stretch of text or part of one. first: it starts the stretch; text_first: it starts the
 * whole text. */
typedef int (*stretch_fn)(struct encoder *e, const char *text, size_t len, int first,
                          int text_first);

static int encode_cut(struct encoder *e, const char *text, size_t len)
{
	return e->t->pretok ? pretok_split(e->t->pretok, &e->pretok, text, len, encode_piece, e)
	                    : encode_piece(e, text, len);
}

/* Cuts before every U+2581 except one at the start. */
static int encode_split_at_spaces(struct encoder *e, const char *text, size_t len)
{
	size_t begin = 0;
	int rc = 0;
	while (begin < len && rc == 0) {
		const char *next = begin + 1 < len
		                       ? memmem(text + begin + 1, len - begin - 1, SPEC_SPACE, 3)
		                       : NULL;
		size_t end = next ? (size_t)(next - text) : len;
		rc = encode_piece(e, text + begin, end - begin);
		begin = end;
	}
	return rc;
}

static int encode_prefixed(struct encoder *e, const char *text, size_t len, int first,
                           int text_first)
{
	const struct tokenizer_spec *s = &e->t->spec;
	const char *space = s->metaspace ? SPEC_SPACE : " ";
	int prefix = first && (s->prefix == SPEC_PREFIX_ALWAYS ||
	                       (s->prefix == SPEC_PREFIX_FIRST && text_first));
	prefix = prefix && !(len && *text == ' ') &&
	         !(s->metaspace && len >= 3 && !memcmp(text, SPEC_SPACE, 3));
	if (!prefix && !s->metaspace)
		return len ? encode_cut(e, text, len) : 0;
	buf_reset(&e->marked);
	if (prefix)
		buf_adds(&e->marked, space);
	int rc = s->metaspace ? normalize_replace(&e->marked, text, len, " ", 1, SPEC_SPACE, 3)
	                      : buf_add(&e->marked, text, len);
	if (rc < 0 || !e->marked.len)
		return rc;
	return s->metaspace_split ? encode_split_at_spaces(e, e->marked.data, e->marked.len)
	                          : encode_cut(e, e->marked.data, e->marked.len);
}

static size_t space_before(const char *text, size_t from, size_t at)
{
	uint32_t cp;
	while (at > from) {
		size_t i = at - 1;
		while (i > from && (text[i] & 0xc0) == 0x80)
			i--;
		if (utf8_step(text + i, at - i, &cp) != (int)(at - i) ||
		    unicode_class_table()[cp] != UNICODE_SPACE)
			break;
		at = i;
	}
	return at;
}

static size_t space_behind(const char *text, size_t len, size_t at)
{
	uint32_t cp;
	for (int step; at < len; at += (size_t)step) {
		step = utf8_step(text + at, len - at, &cp);
		if (step <= 0 || unicode_class_table()[cp] != UNICODE_SPACE)
			break;
	}
	return at;
}

/* Follows the reference in two oddities: a special token in plain text still hides the tokens that
 * overlap it; and white space stripped by one token may contain another token, which comes out
 * too. */
static int split_added(struct encoder *e, const struct added_set *set, const char *text, size_t len,
                       int first, int text_first, stretch_fn between)
{
	const struct added_token *a;
	size_t begin = 0, pos = 0, stripped = 0;
	int rc = 0;
	while (rc == 0 && (a = added_find(set, text, len, &pos))) {
		size_t at = pos, end = pos += a->len;
		if (a->special && !(e->flags & TOKENIZE_PARSE_SPECIAL))
			continue;
		if (a->lstrip)
			at = at > begin ? space_before(text, begin, at) : begin;
		if (a->rstrip)
			end = stripped = end < stripped ? stripped : space_behind(text, len, end);
		if (begin < at)
			rc = between(e, text + begin, at - begin, begin ? 1 : first, begin ? 0 : text_first);
		if (rc == 0)
			rc = push(e, &a->id, 1);
		begin = end;
	}
	if (rc == 0 && begin < len)
		rc = between(e, text + begin, len - begin, begin ? 1 : first, begin ? 0 : text_first);
	return rc;
}

/* The text is well-formed UTF-8, or empty if only a prefix is to be added. */
static int encode_run(struct encoder *e, const char *text, size_t len, int first, int text_first)
{
	const struct tokenizer *t = e->t;
	if (t->spec.normalizer.n) {
		int rc = normalizer_run(&t->spec.normalizer, first, text, len, &e->normal, &e->spare);
		if (rc < 0)
			return rc;
		text = e->normal.data;
		len = e->normal.len;
	}
	if (len && t->normalized.n)
		return split_added(e, &t->normalized, text, len, first, text_first, encode_prefixed);
	return encode_prefixed(e, text, len, first, text_first);
}

/* Bytes that form no character become one token each and are never merged. */
static int encode_ill_formed(struct encoder *e, const char *text, size_t len)
{
	const struct tokenizer *t = e->t;
	int rc = 0;
	for (size_t i = 0; i < len && rc == 0; i++) {
		uint32_t id = t->byte_id[(unsigned char)text[i]];
		id = id == UINT32_MAX ? t->spec.unk : id;
		if (id != UINT32_MAX)
			rc = push(e, &id, 1);
	}
	return rc;
}

/* Encodes text between added tokens, in runs of well-formed characters and of other bytes. */
static int encode_stretch(struct encoder *e, const char *text, size_t len, int first,
                          int text_first)
{
	size_t begin = 0, i = 0;
	int rc = 0;
	while (i < len && rc == 0) {
		uint32_t cp;
		i += ascii_span(text + i, len - i);
		if (i == len)
			break;
		int step = utf8_step(text + i, len - i, &cp);
		if (step > 0) {
			i += (size_t)step;
			continue;
		}
		size_t bad = step < 0 ? (size_t)-step : len - i;
		if (begin < i || !i)
			rc = encode_run(e, text + begin, i - begin, first && !begin, text_first && !begin);
		if (rc == 0)
			rc = encode_ill_formed(e, text + i, bad);
		begin = i += bad;
	}
	if (rc == 0 && begin < len)
		rc = encode_run(e, text + begin, len - begin, first && !begin, text_first && !begin);
	return rc;
}

int encode_text(struct encoder *e, const char *text, size_t len)
{
	return split_added(e, &e->t->raw, text, len, 1, 1, encode_stretch);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
                     size_t max_tokens, struct token_list *out)
{
	struct encoder e;
	if (len > TEXT_MAX)
		return ERR_FULL;
	encoder_init(&e, t, out,
	             max_tokens && max_tokens < SIZE_MAX - out->n ? out->n + max_tokens : SIZE_MAX,
	             flags);
	int rc = encode_text(&e, text, len);
	encoder_fini(&e);
	return rc;
}

int tokenizer_encode_prompt(const struct tokenizer *t, const char *text, size_t len,
                            int add_special, size_t max_tokens, struct token_list *out)
{
	if (add_special && tokenizer_adds_bos(t) && tokenizer_bos(t) != UINT32_MAX) {
		out->ids = quota_array(out->quota, 16, sizeof *out->ids);
		if (!out->ids)
			return ERR_NOMEM;
		out->size = 16;
		out->ids[out->n++] = tokenizer_bos(t);
	}
	return tokenizer_encode(t, text, len, TOKENIZE_PARSE_SPECIAL, max_tokens, out);
}
