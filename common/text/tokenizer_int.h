/* tokenizer_int.h - shared by the parts of the tokenizer; private to common/text. */
#ifndef TEXT_TOKENIZER_INT_H
#define TEXT_TOKENIZER_INT_H

#include "text/added.h"
#include "text/bpe.h"
#include "text/cuts.h"
#include "text/pretok.h"
#include "text/spec.h"
#include "text/tokenizer.h"
#include "text/unigram.h"

struct tokenizer {
	struct tokenizer_spec spec;
	struct added_set raw, normalized; /* matched in raw text, in normalized text */
	struct pretok *pretok;            /* NULL: text is not cut */
	struct bpe *bpe;                  /* bpe or unigram, the other is NULL */
	struct unigram *unigram;
	struct text_cuts *cuts; /* NULL: no cut is known to be safe */
	/* id of a byte: of its one-byte token (byte-level) or of <0x0A> and the like; UINT32_MAX:
	 * none */
	uint32_t byte_id[256];
	uint32_t ascii_id[128]; /* id of an ASCII character; not for byte-level */
	char hash[65];
};

/* State and working memory of one encoding. Initialise with encoder_init. */
struct encoder {
	const struct tokenizer *t;
	struct token_list *out;
	size_t limit; /* upper limit of out->n */
	unsigned flags;
	/* the last id of the piece is the unknown token, so a following one is fused with it */
	int unk_open;
	struct buf normal, spare, marked;
	struct pretok_scratch pretok;
	struct bpe_scratch bpe;
	struct unigram_scratch unigram;
};
void encoder_init(struct encoder *e, const struct tokenizer *t, struct token_list *out,
                  size_t limit, unsigned flags);
void encoder_fini(struct encoder *e);
/* Encodes a text with added tokens in it; encodes one word, which is not looked up as a whole. */
int encode_text(struct encoder *e, const char *text, size_t len);
int encode_word(struct encoder *e, const char *word, size_t len);

#endif
