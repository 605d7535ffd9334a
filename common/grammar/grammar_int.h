/* grammar_int.h - shared by compile.c, vocab.c and automaton*.c. */
#ifndef GRAMMAR_GRAMMAR_INT_H
#define GRAMMAR_GRAMMAR_INT_H

#include "grammar.h"
#include "nfa.h"

struct grammar {
	struct nfa f;
	/* some node has an alias: tokens over NFA_LOOKAHEAD bytes are not offered */
	int counted;
};

/* Tokens in the order of their bytes, or of their shapes, as a tree in preorder. */
struct trie_node {
	/* first of trie.id that ends here; the next node's `tokens` is behind the last */
	uint32_t tokens;
	uint32_t skip;       /* the next node that is no descendant */
	uint8_t byte, depth; /* depth 1: the first byte of a token */
};

struct trie {
	struct trie_node *node; /* n, and one behind them */
	uint32_t n, *id;
};

/* plain: of at most NFA_LOOKAHEAD bytes that JSON strings hold as they are; long: of more */
enum { TRIE_PLAIN, TRIE_OTHER, TRIE_LONG, TRIES };

struct grammar_vocab {
	uint32_t n;
	struct trie trie[TRIES];
	struct trie shape;    /* of all but the long ones, by their shapes */
	uint64_t *shaped;     /* mask of those */
	uint8_t cell_of[256]; /* of a mark: 1 + its cell; 0: it is the byte itself */
	char *bytes;          /* of all tokens */
	uint32_t *at;         /* (n + 1) where each one's begin */
};

/* Cells: bytes that most constraints do not tell apart where one of them may stand: letters,
 * digits, parts of a UTF-8 character. A token's shape is its bytes with each byte of a cell
 * replaced by the cell's mark, so that a few thousand shapes stand for all tokens of a
 * vocabulary. */
struct vocab_cell {
	unsigned char lo, hi; /* its bytes ... */
	unsigned char before; /* ... where this byte is before them; 0: anywhere */
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
