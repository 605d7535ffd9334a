/* tokenizer.h - text to token ids and back, from what the model's own files say: byte-level BPE,
 * SentencePiece BPE and unigram.
 *
 * An instance is immutable after it was made and may be used by several threads at once.
 * Encoding is exact against Hugging Face `tokenizers` for well-formed UTF-8, but that text never
 * becomes control or unknown tokens unless TOKENIZE_PARSE_SPECIAL is said (the reference's unigram
 * does that; SentencePiece does not). Bytes that are not UTF-8 are defined: each maximal ill-formed
 * part is encoded byte by byte, by itself, as its own piece. A byte that the vocabulary lacks is
 * dropped where there is no unknown token, as the reference does. Time is linear in the text
 * (times log of the longest piece; unigram: times the longest token). */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include "util/buf.h"
#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

struct gguf;
struct quota;
struct tokenizer;

/* What this build cannot do (another tokenizer model, an unknown pre-tokenizer) is
 * ERR_UNSUPPORTED with its name. */
int tokenizer_from_gguf(const struct gguf *g, struct tokenizer **ret_t, struct err *err);
/* Of a Hugging Face folder: tokenizer.json, and what lies beside it about BOS and EOS.
 * ERR_NOTFOUND: no tokenizer.json. */
int tokenizer_from_folder(const char *folder, struct tokenizer **ret_t, struct err *err);
void tokenizer_destroy(struct tokenizer **t);

struct token_list {
	uint32_t *ids; /* malloc; free with token_list_fini */
	size_t n, size;
	/* that ids and whatever encoding into this needs is taken from; NULL: none. Outlives it */
	struct quota *quota;
};
void token_list_fini(struct token_list *l);

/* special tokens in the text become their ids; else they are plain text */
enum { TOKENIZE_PARSE_SPECIAL = 1 };

/* Appends to out. 0; ERR_FULL when more than max_tokens would come out (0: no limit) or the text
 * has 2^31 bytes or more; ERR_NOMEM when there is no memory, out's quota has none left (its
 * `over` says so), or the pre-tokenizer's expression runs into its memory bound. After an error
 * out holds the ids so far. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
                     size_t max_tokens, struct token_list *out);
/* The tokens of a prompt, into the empty out: BOS first where the model wants one and
 * add_special says so, special tokens in the text as their ids; else as above. */
int tokenizer_encode_prompt(const struct tokenizer *t, const char *text, size_t len,
                            int add_special, size_t max_tokens, struct token_list *out);
/* How ids become text. SentencePiece kinds begin a text with a space that is not its own: it is
 * dropped, unless the ids CONTINUE a text. */
enum { DECODE_SKIP_SPECIAL = 1, DECODE_CONTINUES = 2 };

/* Appends the raw bytes of the tokens; ERR_INVALID for an id outside the vocabulary.
 * DECODE_SKIP_SPECIAL leaves control tokens out. */
int tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t n, unsigned flags,
                     struct buf *out);

uint32_t tokenizer_size(const struct tokenizer *t);
int tokenizer_is_special(const struct tokenizer *t, uint32_t id);
/* Ids; UINT32_MAX when the model has none. */
uint32_t tokenizer_bos(const struct tokenizer *t);
uint32_t tokenizer_eos(const struct tokenizer *t); /* the first of them */
int tokenizer_is_eos(const struct tokenizer *t, uint32_t id);
int tokenizer_adds_bos(const struct tokenizer *t);
/* The token's bytes, as decode appends them in the middle of a text; not terminated. NULL for an
 * id outside the vocabulary. */
const char *tokenizer_bytes(const struct tokenizer *t, uint32_t id, size_t *ret_len);
/* Token text as stored (printable form for the /v1 logprobs "token" field is made by decode). */
const char *tokenizer_piece(const struct tokenizer *t, uint32_t id, size_t *ret_len);
/* 64 hex digits: hash over vocabulary, merges, pre-tokenizer; part of the prefix root. */
const char *tokenizer_hash(const struct tokenizer *t);

/* Streaming: feed tokens, take text that is whole UTF-8. Half a character is kept back until it is
 * complete; finish gives what is left, with U+FFFD for each maximal ill-formed part. The pieces
 * add up to what decoding all at once gives. */
struct detok {
	const struct tokenizer *t;
	unsigned flags, strip;
	int begun;
	unsigned char held[4];
	unsigned n_held;
};
void detok_init(struct detok *d, const struct tokenizer *t, unsigned flags);
int detok_feed(struct detok *d, uint32_t id, struct buf *out);
int detok_finish(struct detok *d, struct buf *out);
/* What a token adds, as raw bytes, at the place that d says: the step that decoding and
 * streaming share. */
int detok_bytes(struct detok *d, uint32_t id, struct buf *out);

#endif
