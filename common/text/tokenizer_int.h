/* tokenizer_int.h - what the parts of the tokenizer share; nothing outside common/text includes
 * it. */
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
	struct spec spec;
	struct added raw, normalized; /* sought in the text as it is, and after it was normalized */
	struct pretok *pretok;        /* NULL: text is not cut */
	struct bpe *bpe;              /* one of these two */
	struct unigram *unigram;
	struct cuts *cuts; /* NULL: words may reach anywhere */
	/* of a byte, as a piece of one (byte-level) or by its name (<0x0A>); UINT32_MAX: none */
	uint32_t byte_id[256];
	uint32_t ascii_id[128]; /* not byte-level: of a character */
	char hash[65];
};

/* What encoding needs besides; zeroed to begin with. */
struct encoder {
	const struct tokenizer *t;
	struct token_list *out;
	size_t limit; /* of out->n */
	unsigned flags;
	/* the piece's last id was the unknown token, and the next one joins it */
	int unk_open;
	struct buf normal, spare, marked;
	struct pretok_scratch pretok;
	struct bpe_scratch bpe;
	struct unigram_scratch unigram;
};
void encoder_init(struct encoder *e, const struct tokenizer *t, struct token_list *out,
                  size_t limit, unsigned flags);
void encoder_fini(struct encoder *e);
/* A text with added tokens in it; a piece that stays together, never looked up as a whole. */
int encode_text(struct encoder *e, const char *text, size_t len);
int encode_word(struct encoder *e, const char *word, size_t len);

#endif
