/* spec.h - everything that a model's files say about its tokenizer, whatever format they have. A
 * source (GGUF metadata, a Hugging Face folder) fills one, spec_finish completes it; the
 * tokenizer works from it alone. */
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
	uint32_t left, right, id; /* its rank is its place */
};

struct spec_added {
	uint32_t id;
	uint8_t lstrip, rstrip; /* takes the white space before, behind it along */
	uint8_t normalized;     /* is sought in normalized text */
};

struct spec {
	struct vocab vocab;
	enum spec_model model;
	struct spec_merge *merges; /* BPE */
	size_t n_merges, merges_size;
	struct spec_added *added;
	size_t n_added, added_size;
	struct normalizer normalizer;

	/* pre-tokenizer: the prefix comes first (a space, byte-level; metaspace also where there is
	 * no space: see below), then the stages */
	enum pretok_stage stages[PRETOK_STAGES];
	/* a space before a stretch of text that has none there; FIRST: only where the whole text
	 * begins */
	enum spec_prefix prefix;
	int metaspace;       /* the space is written U+2581, here and everywhere */
	int metaspace_split; /* a piece begins at every U+2581 */

	/* model */
	int byte_level; /* tokens are written in the byte table's characters */
	int byte_fallback, fuse_unk, ignore_merges;
	uint32_t unk; /* UINT32_MAX: none, what has no token is dropped */

	/* ids to text: replacements in each token, then bytes of <0x0A> and its like, then the first
	 * strip spaces are dropped */
	struct normalizer decode; /* only NORMALIZE_REPLACE */
	int decode_bytes;
	unsigned strip;
	int strip_metaspace; /* instead: every U+2581 of the first token */

	uint32_t bos, eos[SPEC_EOS_MAX];
	unsigned n_eos;
	int adds_bos;
};

#define SPEC_SPACE "\xe2\x96\x81" /* U+2581 */

void spec_init(struct spec *s);
void spec_fini(struct spec *s);
void spec_add_merge(struct spec *s, uint32_t left, uint32_t right, uint32_t id);
void spec_add_added(struct spec *s, struct spec_added a);
/* Appends where it is not there yet and there is room. */
void spec_add_eos(struct spec *s, uint32_t id);

/* SentencePiece's scores as merges: each token cut in two tokens, in every way; by score, then
 * length of left and right part in characters, all descending. ERR_INVALID names a token that is
 * too long for that. */
int spec_merges_from_scores(struct spec *s, struct err *err);
/* What each token decodes to. */
void spec_make_bytes(struct spec *s);
/* BLAKE2b-256 over what decides ids, 64 hex digits and a NUL. */
void spec_hash(const struct spec *s, char hex[65]);

/* Errors name what in the file is wrong; ERR_UNSUPPORTED what this build does not do. After an
 * error the spec is to be freed all the same. */
int spec_from_gguf(struct spec *s, const struct gguf *g, struct err *err);
int spec_from_folder(struct spec *s, const char *folder, struct err *err);

#endif
