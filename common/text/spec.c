/* spec.c - see spec.h: steps common to all sources. */
#include "text/spec.h"
#include "text/unicode.h"
#include "util/check.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

/* in bytes; splitting a token in all ways costs the square of its length */
enum { SPLIT_BYTES_MAX = 1024 };

void spec_init(struct tokenizer_spec *s)
{
	memset(s, 0, sizeof *s);
	s->unk = s->bos = UINT32_MAX;
}

void spec_fini(struct tokenizer_spec *s)
{
	vocab_fini(&s->vocab);
	free(s->merges);
	free(s->added);
	memset(s, 0, sizeof *s);
}

void spec_add_merge(struct tokenizer_spec *s, uint32_t left, uint32_t right, uint32_t id)
{
	if (s->n_merges == s->merges_size) {
		s->merges_size = s->merges_size ? s->merges_size * 2 : 1024;
		s->merges = mem_grow(s->merges, s->merges_size, sizeof *s->merges);
	}
	s->merges[s->n_merges++] = (struct spec_merge){left, right, id};
}

void spec_add_added(struct tokenizer_spec *s, struct spec_added a)
{
	if (s->n_added == s->added_size) {
		s->added_size = s->added_size ? s->added_size * 2 : 64;
		s->added = mem_grow(s->added, s->added_size, sizeof *s->added);
	}
	s->added[s->n_added++] = a;
}

void spec_add_eos(struct tokenizer_spec *s, uint32_t id)
{
	for (unsigned i = 0; i < s->n_eos; i++)
		if (s->eos[i] == id)
			return;
	if (s->n_eos < SPEC_EOS_MAX)
		s->eos[s->n_eos++] = id;
}

/* --- merges from scores -------------------------------------------------- */

struct merge_candidate {
	struct spec_merge m;
	double score;
	uint32_t left_chars, right_chars;
	size_t order;
};

static int by_rank(const void *pa, const void *pb)
{
	const struct merge_candidate *a = pa, *b = pb;
	if (a->score != b->score)
		return a->score > b->score ? -1 : 1;
	if (a->left_chars != b->left_chars)
		return a->left_chars > b->left_chars ? -1 : 1;
	if (a->right_chars != b->right_chars)
		return a->right_chars > b->right_chars ? -1 : 1;
	return a->order < b->order ? -1 : a->order > b->order;
}

struct merge_candidates {
	struct merge_candidate *v;
	size_t n, size;
};

static void add_candidates(const struct vocab *v, uint32_t id, struct merge_candidates *all)
{
	const char *text = vocab_text(v, id);
	size_t len = v->tokens[id].text_len;
	uint32_t chars = 0, before = 0;
	for (size_t i = 0; i < len; i++)
		chars += (text[i] & 0xc0) != 0x80;
	for (size_t i = 1; i < len; i++) {
		if ((text[i] & 0xc0) == 0x80)
			continue;
		before++;
		uint32_t left = vocab_find(v, text, i),
				 right = left == UINT32_MAX ? UINT32_MAX : vocab_find(v, text + i, len - i);
		if (right == UINT32_MAX || vocab_is_special(v, left) || vocab_is_special(v, right))
			continue;
		if (all->n == all->size) {
			all->size = all->size ? all->size * 2 : 4096;
			all->v = mem_grow(all->v, all->size, sizeof *all->v);
		}
		all->v[all->n] = (struct merge_candidate){
			{left, right, id}, v->tokens[id].score, before, chars - before, all->n};
		all->n++;
	}
}

int spec_merges_from_scores(struct tokenizer_spec *s, struct err *err)
{
	struct merge_candidates all = {0};
	int rc = 0;
	for (uint32_t id = 0; id < s->vocab.n && rc == 0; id++) {
		const struct vocab_token *t = &s->vocab.tokens[id];
		if (vocab_is_special(&s->vocab, id) ||
		    vocab_find(&s->vocab, vocab_text(&s->vocab, id), t->text_len) != id)
			continue;
		if (t->text_len > SPLIT_BYTES_MAX)
			rc = err_set(err, ERR_INVALID,
			             "token %u has %u bytes, expected at most %d where merges come from scores",
			             id, t->text_len, SPLIT_BYTES_MAX);
		else
			add_candidates(&s->vocab, id, &all);
	}
	if (all.n)
		qsort(all.v, all.n, sizeof *all.v, by_rank);
	for (size_t i = 0; i < all.n && rc == 0; i++)
		spec_add_merge(s, all.v[i].m.left, all.v[i].m.right, all.v[i].m.id);
	free(all.v);
	return rc;
}

/* --- decoding ------------------------------------------------------------ */

void spec_make_bytes(struct tokenizer_spec *s)
{
	struct buf out, spare;
	if (!s->decode.n && !s->decode_bytes)
		return;
	buf_init(&out, 0);
	buf_init(&spare, 0);
	s->vocab.bytes_len = 0;
	for (uint32_t id = 0; id < s->vocab.n; id++) {
		CHECK(normalizer_run(&s->decode, 0, vocab_text(&s->vocab, id), s->vocab.tokens[id].text_len,
		                     &out, &spare) == 0);
		int byte = s->decode_bytes ? vocab_byte_of(out.data, out.len) : -1;
		vocab_set_bytes(&s->vocab, id, byte >= 0 ? &(char){(char)byte} : out.data,
		                byte >= 0 ? 1 : out.len);
	}
	buf_fini(&out);
	buf_fini(&spare);
}

/* --- hash ---------------------------------------------------------------- */

static void hash_str(crypto_generichash_state *h, const char *s, size_t len)
{
	uint64_t n = len;
	crypto_generichash_update(h, (const unsigned char *)&n, sizeof n);
	crypto_generichash_update(h, (const unsigned char *)s, len);
}

static void hash_numbers(crypto_generichash_state *h, const struct tokenizer_spec *s)
{
	const uint32_t v[] = {s->model,
	                      s->stages[0],
	                      s->stages[1],
	                      s->stages[2],
	                      s->stages[3],
	                      s->prefix,
	                      (uint32_t)s->metaspace,
	                      (uint32_t)s->metaspace_split,
	                      (uint32_t)s->byte_level,
	                      (uint32_t)s->byte_fallback,
	                      (uint32_t)s->fuse_unk,
	                      (uint32_t)s->ignore_merges,
	                      s->unk};
	crypto_generichash_update(h, (const unsigned char *)v, sizeof v);
}

void spec_hash(const struct tokenizer_spec *s, char hex[65])
{
	static const char label[] = "pdserve tokenizer 2";
	crypto_generichash_state h;
	unsigned char sum[32];
	crypto_generichash_init(&h, NULL, 0, sizeof sum);
	hash_str(&h, label, sizeof label - 1);
	hash_numbers(&h, s);
	for (unsigned i = 0; i < s->normalizer.n; i++) {
		const struct normalize_step *step = &s->normalizer.steps[i];
		crypto_generichash_update(&h, &(unsigned char){(unsigned char)step->op}, 1);
		hash_str(&h, step->from, step->from_len);
		hash_str(&h, step->to, step->to_len);
	}
	for (uint32_t id = 0; id < s->vocab.n; id++) {
		hash_str(&h, vocab_text(&s->vocab, id), s->vocab.tokens[id].text_len);
		crypto_generichash_update(&h, &s->vocab.tokens[id].type, 1);
		if (s->model == SPEC_UNIGRAM)
			crypto_generichash_update(&h, (const unsigned char *)&s->vocab.tokens[id].score,
			                          sizeof(double));
	}
	for (size_t i = 0; i < s->n_merges; i++)
		crypto_generichash_update(&h, (const unsigned char *)&s->merges[i], sizeof s->merges[i]);
	for (size_t i = 0; i < s->n_added; i++) {
		const struct spec_added *a = &s->added[i];
		const uint32_t v[] = {a->id, a->lstrip, a->rstrip, a->normalized};
		crypto_generichash_update(&h, (const unsigned char *)v, sizeof v);
	}
	crypto_generichash_final(&h, sum, sizeof sum);
	sodium_bin2hex(hex, 65, sum, sizeof sum);
}
