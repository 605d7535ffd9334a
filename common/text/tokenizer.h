/* tokenizer.h - converts text to token ids and back, as the model's own files define: byte-level
 * BPE, SentencePiece BPE and unigram.
 *
 * An instance is immutable and may be used by several threads at once. Encoding well-formed UTF-8
 * gives exactly the ids of Hugging Face `tokenizers`, with one exception: text never becomes
 * control or unknown tokens unless TOKENIZE_PARSE_SPECIAL is set (the reference's unigram model
 * does that, SentencePiece does not). Bytes that are not UTF-8: each maximal ill-formed part is a
 * piece of its own and encoded byte by byte. A byte without a token becomes the unknown token or,
 * if there is none, is dropped, as in the reference. Time is linear in the text (times the
 * logarithm of the longest piece; unigram: times the longest token). */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include "util/buf.h"
#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

struct gguf;
struct quota;
struct tokenizer;

/* ERR_UNSUPPORTED names what this build does not support: another tokenizer model, an unknown
 * pre-tokenizer. */
int tokenizer_from_gguf(const struct gguf *g, struct tokenizer **ret_t, struct err *err);
/* Reads a Hugging Face folder: tokenizer.json, and BOS and EOS from the files beside it.
 * ERR_NOTFOUND: no tokenizer.json. */
int tokenizer_from_folder(const char *folder, struct tokenizer **ret_t, struct err *err);
void tokenizer_destroy(struct tokenizer **t);

struct token_list {
	uint32_t *ids; /* malloc'ed; free with token_list_fini */
	size_t n, size;
	/* accounts for the ids and all working memory of encoding; NULL: no limit. Must outlive the
	 * list. */
	struct quota *quota;
};
void token_list_fini(struct token_list *l);

/* special tokens in the text become their ids; otherwise they are plain text */
enum { TOKENIZE_PARSE_SPECIAL = 1 };

/* Appends to out. Returns 0; ERR_FULL if there would be more than max_tokens (0: no limit) or the
 * text has 2^31 bytes or more; ERR_NOMEM if out of memory, if out's quota is exhausted (its `over`
 * is set), or if the pre-tokenizer's expression reaches its memory limit. After an error out holds
 * the ids so far. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
                     size_t max_tokens, struct token_list *out);
/* Encodes a prompt into the empty list out: BOS first if the model wants one and add_special is
 * set; special tokens in the text become their ids. Otherwise like tokenizer_encode. */
int tokenizer_encode_prompt(const struct tokenizer *t, const char *text, size_t len,
                            int add_special, size_t max_tokens, struct token_list *out);
/* Options for ids to text. DECODE_SKIP_SPECIAL omits control tokens. SentencePiece kinds add a
 * space at the start of a text; decoding drops it, unless DECODE_CONTINUES says that the ids
 * continue a text. */
enum { DECODE_SKIP_SPECIAL = 1, DECODE_CONTINUES = 2 };

/* Appends the raw bytes of the tokens. ERR_INVALID: an id is outside the vocabulary. */
int tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t n, unsigned flags,
                     struct buf *out);

uint32_t tokenizer_size(const struct tokenizer *t);
int tokenizer_is_special(const struct tokenizer *t, uint32_t id);
/* Ids; UINT32_MAX: the model has none. */
uint32_t tokenizer_bos(const struct tokenizer *t);
uint32_t tokenizer_eos(const struct tokenizer *t); /* the first one */
int tokenizer_is_eos(const struct tokenizer *t, uint32_t id);
int tokenizer_adds_bos(const struct tokenizer *t);
/* The token's bytes as decode appends them inside a text; not NUL-terminated. NULL: the id is
 * outside the vocabulary. */
const char *tokenizer_bytes(const struct tokenizer *t, uint32_t id, size_t *ret_len);
/* The token's text as stored. (For the "token" of /v1 logprobs, use decode.) */
const char *tokenizer_piece(const struct tokenizer *t, uint32_t id, size_t *ret_len);
/* 64 hex digits: a hash of everything that determines ids, such as vocabulary, merges and
 * pre-tokenizer. Part of the prefix root. */
const char *tokenizer_hash(const struct tokenizer *t);

/* Streaming: feed tokens, get text in whole UTF-8 characters. An incomplete character is held back
 * until it is complete; finish returns the rest, with U+FFFD for each maximal ill-formed part.
 * Together the pieces equal the text decoded at once. */
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
/* Appends the raw bytes that a token adds in state d: the step that decoding and streaming
 * share. */
int detok_bytes(struct detok *d, uint32_t id, struct buf *out);

#endif
