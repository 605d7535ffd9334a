/* vocab.h - the tokens of a vocabulary: their text as stored, the bytes they decode to, and an
 * index by the text they match.
 *
 * Byte-level vocabularies write each byte as a printable character; a token matches the bytes that
 * it stands for. In other vocabularies a token matches its own text. */
#ifndef TEXT_VOCAB_H
#define TEXT_VOCAB_H

#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

enum { VOCAB_IDS_MAX = 1 << 22, VOCAB_TOKEN_MAX = 1 << 16 }; /* number of ids; bytes of one token */
/* GGUF's values */
enum vocab_type {
	VOCAB_NORMAL = 1,
	VOCAB_UNKNOWN,
	VOCAB_CONTROL,
	VOCAB_USER_DEFINED,
	VOCAB_UNUSED,
	VOCAB_BYTE
};

struct vocab_token {
	size_t text, bytes; /* offsets into vocab.texts, vocab.bytes */
	uint32_t text_len, bytes_len;
	double score;
	uint8_t type;  /* enum vocab_type */
	uint8_t given; /* 1: vocab_set was called; 0: the id is a gap */
	/* byte-level: the text consists of the byte table's characters only; else bytes = text */
	uint8_t mapped;
	/* a piece with exactly this text becomes this token (set by tokenizer.c) */
	uint8_t whole;
};

struct vocab {
	struct vocab_token *tokens;
	uint32_t n;
	int byte_level;
	char *texts, *bytes; /* of all tokens, one after the other */
	size_t texts_len, texts_size, bytes_len, bytes_size;
	struct vocab_slot *slots;
	size_t mask;
	uint64_t factor;
	uint32_t longest; /* bytes of the longest token in the index */
};

/* Makes n ids, all of them still gaps: empty, VOCAB_UNUSED. */
void vocab_init(struct vocab *v, uint32_t n);
void vocab_fini(struct vocab *v);
/* Copies the text. ERR_EXISTS: the id already has one. id < n, len <= VOCAB_TOKEN_MAX. */
int vocab_set(struct vocab *v, uint32_t id, const char *text, size_t len, enum vocab_type type);
/* Call after the last vocab_set: builds the index for vocab_find and sets each token's bytes, which
 * vocab_set_bytes may change later. */
void vocab_index(struct vocab *v, int byte_level);
/* Sets the bytes that a token decodes to, if they differ from those that vocab_index set. */
void vocab_set_bytes(struct vocab *v, uint32_t id, const char *bytes, size_t len);

/* The id of the token that matches these bytes, or UINT32_MAX. If several match, ordinary tokens
 * win over special ones, then the highest id wins. May return special tokens: encoders skip
 * them. */
uint32_t vocab_find(const struct vocab *v, const char *bytes, size_t len);
/* The id of the first token with this text, of any type, by linear search; UINT32_MAX: none. */
uint32_t vocab_find_text(const struct vocab *v, const char *text, size_t len);
/* Converts text in the byte table's characters to bytes. Returns their number, or SIZE_MAX if the
 * text contains another character. out has space for len bytes. */
size_t vocab_unmap(const char *text, size_t len, char *out);
/* The byte that a text like <0x0A> names; -1: none. */
int vocab_byte_of(const char *text, size_t len);

static inline int vocab_is_special(const struct vocab *v, uint32_t id)
{
	return v->tokens[id].type == VOCAB_CONTROL || v->tokens[id].type == VOCAB_UNKNOWN;
}
static inline const char *vocab_text(const struct vocab *v, uint32_t id)
{
	return v->texts + v->tokens[id].text;
}
static inline const char *vocab_bytes(const struct vocab *v, uint32_t id)
{
	return v->bytes + v->tokens[id].bytes;
}

#endif
