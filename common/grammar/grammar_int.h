/* grammar_int.h - shared by compile.c, vocab.c and automaton*.c. */
#ifndef GRAMMAR_GRAMMAR_INT_H
#define GRAMMAR_GRAMMAR_INT_H

#include "grammar.h"
#include "nfa.h"

struct grammar {
	struct nfa f;
	int counted;             /* some node has an alias: tokens over NFA_LOOKAHEAD bytes are not offered */
};

/* Tokens in the order of their bytes, as a tree in preorder. */
struct trie_node {
	uint32_t tokens;         /* first of trie.id that ends here; the next node's `tokens` is behind the last */
	uint32_t skip;           /* the next node that is no descendant */
	uint8_t byte, depth;     /* depth 1: the first byte of a token */
};

struct trie {
	struct trie_node *node;  /* n, and one behind them */
	uint32_t n, *id;
};

enum { TRIE_PLAIN, TRIE_OTHER, TRIE_LONG, TRIES };      /* plain: of at most NFA_LOOKAHEAD bytes that JSON strings hold as they are; long: of more */

struct grammar_vocab {
	uint32_t n;
	struct trie trie[TRIES];
	uint64_t *plain;         /* mask of the plain ones */
	char *bytes;             /* of all tokens */
	uint32_t *at;            /* (n + 1) where each one's begin */
};

static inline int vocab_is_plain(unsigned char b)
{
	return b >= 0x20 && b < 0x7f && b != '"' && b != '\\';
}

#endif
