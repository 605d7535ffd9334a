/* grammar_int.h - shared by compile.c, vocab.c, automaton.c, mask.c and walk.c. */
#ifndef GRAMMAR_GRAMMAR_INT_H
#define GRAMMAR_GRAMMAR_INT_H

#include "grammar.h"
#include "nfa.h"
#include "schema.h"

struct grammar {
	struct nfa f;
	/* 1: some node has an alias, so tokens longer than NFA_LOOKAHEAD bytes are never allowed */
	int counted;
	struct schema_ignored ignored;
};

/* Tokens sorted by their bytes, or by their shapes, as a tree in preorder. */
struct trie_node {
	/* index in trie.id of the first token that ends here; they end at the next node's `tokens` */
	uint32_t tokens;
	uint32_t skip;       /* the next node that is not a descendant */
	uint8_t byte, depth; /* depth 1: the first byte of a token */
};

struct trie {
	struct trie_node *node; /* n, and a sentinel */
	uint32_t n, *id;
};

/* PLAIN: at most NFA_LOOKAHEAD bytes, all of which JSON strings contain unescaped; LONG: longer
 * tokens; OTHER: the rest */
enum { TRIE_PLAIN, TRIE_OTHER, TRIE_LONG, TRIES };

struct grammar_vocab {
	uint32_t n;
	struct trie trie[TRIES];
	struct trie shape;    /* all except the long tokens, by their shapes */
	uint64_t *shaped;     /* mask of the tokens in `shape` */
	uint8_t cell_of[256]; /* 1 + the cell that a mark stands for; 0: the byte stands for itself */
	char *bytes;          /* of all tokens */
	uint32_t *at;         /* (n + 1) offsets into `bytes` */
};

/* Cells: sets of bytes that most constraints do not distinguish: letters, digits, parts of a UTF-8
 * character. A token's shape is its bytes with each byte of a cell replaced by the cell's mark, so
 * that a few thousand shapes represent all tokens of a vocabulary. */
struct vocab_cell {
	unsigned char lo, hi; /* its bytes ... */
	unsigned char before; /* ... if preceded by this byte; 0: anywhere */
	unsigned char mark;
};
#define CELLS 12u
#define CELL_BYTES_MAX 64u
extern const struct vocab_cell vocab_cell[CELLS];

static inline int vocab_is_plain(unsigned char b)
{
	return b >= 0x20 && b < 0x7f && b != '"' && b != '\\';
}

#endif
