/* vocab.h - the tokens of a vocabulary: as stored, as the bytes that they decode to, and found by
 * what text they match.
 *
 * Byte-level vocabularies write each byte as a printable character; a token matches the bytes
 * that it stands for. All others match their own text. */
#ifndef TEXT_VOCAB_H
#define TEXT_VOCAB_H

#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

enum { VOCAB_IDS_MAX = 1 << 22, VOCAB_TOKEN_MAX = 1 << 16 }; /* ids; bytes of one token */
/* GGUF's numbers */
enum vocab_type {
	VOCAB_NORMAL = 1,
	VOCAB_UNKNOWN,
	VOCAB_CONTROL,
	VOCAB_USER_DEFINED,
	VOCAB_UNUSED,
	VOCAB_BYTE
};

struct vocab_token {
	size_t text, bytes; /* where in the blobs */
	uint32_t text_len, bytes_len;
	double score;
	uint8_t type;  /* enum vocab_type */
	uint8_t given; /* vocab_set was called: not a gap */
	/* byte-level: the text is made of the byte table's characters alone; else bytes = text */
	uint8_t mapped;
	/* a piece that this token matches becomes it (set by the tokenizer) */
	uint8_t whole;
};

struct vocab {
	struct vocab_token *tokens;
	uint32_t n;
	int byte_level;
	char *texts, *bytes; /* all tokens, one after the other */
	size_t texts_len, texts_size, bytes_len, bytes_size;
	struct vocab_slot *slots;
	size_t mask;
	uint64_t factor;
	uint32_t longest; /* bytes of the longest token that can be found */
};

/* n ids, all of them gaps as yet: empty, VOCAB_UNUSED. */
void vocab_init(struct vocab *v, uint32_t n);
void vocab_fini(struct vocab *v);
/* Copies the text. ERR_EXISTS: the id has one. id < n, len <= VOCAB_TOKEN_MAX. */
int vocab_set(struct vocab *v, uint32_t id, const char *text, size_t len, enum vocab_type type);
/* After the last vocab_set: what each token matches, and the index behind vocab_find. bytes =
 * text until vocab_set_bytes. */
void vocab_index(struct vocab *v, int byte_level);
/* What the token decodes to, where that is not what vocab_index made it. */
void vocab_set_bytes(struct vocab *v, uint32_t id, const char *bytes, size_t len);

/* Id of the token that matches these bytes (of several an ordinary one, then the last), or
 * UINT32_MAX. Special ones are found too: whoever encodes leaves them out. */
uint32_t vocab_find(const struct vocab *v, const char *bytes, size_t len);
/* Id of the token with this text, of any type, by looking at all of them; UINT32_MAX. */
uint32_t vocab_find_text(const struct vocab *v, const char *text, size_t len);
/* Turns text in the byte table's characters into bytes; returns their number, or SIZE_MAX when it
 * holds another character. out has room for len bytes. */
size_t vocab_unmap(const char *text, size_t len, char *out);
/* The byte that <0x0A> and its like name, or -1. */
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
