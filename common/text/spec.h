/* spec.h - everything that a model's files say about its tokenizer, independent of their format. A
 * source (GGUF metadata, a Hugging Face folder) fills it in; tokenizer.c completes it and works
 * from it alone. */
#ifndef TEXT_SPEC_H
#define TEXT_SPEC_H

#include "text/normalize.h"
#include "text/pretok.h"
#include "text/vocab.h"
#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

struct gguf;

enum spec_model { SPEC_BPE, SPEC_UNIGRAM };
enum spec_prefix { SPEC_PREFIX_NEVER, SPEC_PREFIX_FIRST, SPEC_PREFIX_ALWAYS };
enum { SPEC_EOS_MAX = 16 };

struct spec_merge {
	uint32_t left, right, id; /* rank: its index */
};

struct spec_added {
	uint32_t id;
	uint8_t lstrip, rstrip; /* strips the white space before, after it */
	uint8_t normalized;     /* is matched in normalized text */
};

struct tokenizer_spec {
	struct vocab vocab;
	enum spec_model model;
	struct spec_merge *merges; /* BPE only */
	size_t n_merges, merges_size;
	struct spec_added *added;
	size_t n_added, added_size;
	struct normalizer normalizer;

	/* pre-tokenizer: adds the prefix, then applies the stages. The prefix is a space; if
	 * `metaspace` is set, U+2581. */
	enum pretok_stage stages[PRETOK_STAGES];
	/* when to put a space before a stretch of text that does not start with one; FIRST: only at the
	 * start of the whole text */
	enum spec_prefix prefix;
	int metaspace;       /* every space, also the prefix, becomes U+2581 */
	int metaspace_split; /* cut before every U+2581 */

	/* model */
	int byte_level; /* tokens are written in the byte table's characters */
	int byte_fallback, fuse_unk, ignore_merges;
	uint32_t unk; /* UINT32_MAX: none; text without a token is dropped */

	/* Ids to text: replacements in each token, then tokens like <0x0A> become bytes, then the first
	 * `strip` spaces of the text are dropped. */
	struct normalizer decode; /* NORMALIZE_REPLACE only */
	int decode_bytes;
	unsigned strip;
	int strip_metaspace; /* instead of `strip`: drop every U+2581 of the first token */

	uint32_t bos, eos[SPEC_EOS_MAX];
	unsigned n_eos;
	int adds_bos;
};

#define SPEC_SPACE "\xe2\x96\x81" /* U+2581 */

void spec_init(struct tokenizer_spec *s);
void spec_fini(struct tokenizer_spec *s);
void spec_add_merge(struct tokenizer_spec *s, uint32_t left, uint32_t right, uint32_t id);
void spec_add_added(struct tokenizer_spec *s, struct spec_added a);
/* Adds an id unless it is already there or the array is full. */
void spec_add_eos(struct tokenizer_spec *s, uint32_t id);

/* Derives merges from SentencePiece's scores: every split of a token into two tokens is a merge.
 * They are sorted by score, then by the length in characters of the left and of the right part, all
 * descending. ERR_INVALID: a token, named in err, is too long for this. */
int spec_merges_from_scores(struct tokenizer_spec *s, struct err *err);
/* Computes the bytes that each token decodes to. */
void spec_make_bytes(struct tokenizer_spec *s);
/* BLAKE2b-256 over everything that determines ids: 64 hex digits and a NUL. */
void spec_hash(const struct tokenizer_spec *s, char hex[65]);

/* Errors name what is wrong in the file; ERR_UNSUPPORTED names the feature that this build lacks.
 * Call spec_fini also after an error. */
int spec_from_gguf(struct tokenizer_spec *s, const struct gguf *g, struct err *err);
int spec_from_folder(struct tokenizer_spec *s, const char *folder, struct err *err);

#endif
