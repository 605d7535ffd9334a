/* mask_vocab.h - a vocabulary of the size of a small model's, for what masks cost: bytes, all
 * strings of up to three letters, the same after a space and with a capital, and 6,000 longer
 * words. About 62,000 tokens, and as many nodes of trees by bytes as SmolLM2's 49,152 have. */
#ifndef TESTS_MASK_VOCAB_H
#define TESTS_MASK_VOCAB_H

#include "grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

enum { MASK_VOCAB_MAX = 64000, MASK_WORDS = (MASK_VOCAB_MAX + 63) / 64 };

struct mask_vocab {
	const char *s[MASK_VOCAB_MAX];
	uint32_t len[MASK_VOCAB_MAX], n;
	char store[MASK_VOCAB_MAX][16];
};

static inline void mask_vocab_add(struct mask_vocab *m, const char *s, size_t len)
{
	m->s[m->n] = memcpy(m->store[m->n], s, len);
	m->len[m->n++] = (uint32_t)len;
}

static inline void mask_vocab_letters(struct mask_vocab *m, char *s, size_t from, size_t len)
{
	for (s[len] = 'a'; s[len] <= 'z'; s[len]++) {
		char other[8];
		memcpy(other, s, len + 1);
		mask_vocab_add(m, s, len + 1);
		if (from == 0) {
			other[0] = (char)(other[0] - 'a' + 'A');
			mask_vocab_add(m, other, len + 1);
		}
		if (len - from < 2)
			mask_vocab_letters(m, s, from, len + 1);
	}
}

static inline struct grammar_vocab *mask_vocab_new(struct mask_vocab *m)
{
	uint64_t rng = 1;
	char s[16] = " ";
	m->n = 0;
	for (unsigned b = 0; b < 256; b++)
		mask_vocab_add(m, &(char){(char)b}, 1);
	mask_vocab_letters(m, s, 0, 0);
	s[0] = ' ';
	mask_vocab_letters(m, s, 1, 1);
	for (unsigned i = 0; i < 6000; i++) {
		size_t len = 4 + i % 12;
		for (size_t k = 0; k < len; k++) {
			rng = rng * 6364136223846793005u + 1442695040888963407u;
			s[k] = k == 0 && i % 2
			           ? ' '
			           : "etaoinshrdlucm\"{}:,[]0123456789"[(rng >> 33) % (i % 5 ? 14 : 31)];
		}
		mask_vocab_add(m, s, len);
	}
	return grammar_vocab_new(m->s, m->len, m->n);
}

#endif
