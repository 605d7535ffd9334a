/* grammar.h - constrained output: which tokens may come next, so that the whole answer is of a
 * given form.
 *
 *   text of a constraint
 *     -- grammar_compile -->                      grammar
 *     -- automaton_new, with a vocabulary -->     automaton
 *     -- automaton_mask -->                       bits of allowed token ids
 *
 * A grammar is a recursive transition network over bytes: immutable, for any vocabulary. An
 * automaton makes it deterministic as far as answers go there, and keeps what it found within a
 * bound on memory. Where an answer stands is a function of its tokens alone: a walk is a memo of
 * that, made anew by whoever gets the tokens.
 *
 * What can be asked for, each in one text:
 *   JSON_SCHEMA   a schema of the subset that schema.c lists; what cannot be enforced is refused
 *                 with its path ("/properties/a/pattern: ...")
 *   JSON_OBJECT   any JSON object; the text is ignored
 *   REGEX         an expression of the syntax that regex.c lists; the whole answer matches
 *   CHOICE        a JSON array of strings; the answer is one of them
 *   STRUCTURE     a JSON array of pieces, one after the other: {"literal":"text"},
 *                 {"schema":{...}}, {"regex":"..."}, {"choice":["text", ...]}, {"any_of":[[pieces],
 *                 ...]}, {"repeat":[pieces],"min":0,"max":8,"separator":"text"}, {"free":"trigger"}
 *                 (any text up to and with the trigger), {"free":""} (any text)
 * JSON is compact, with one optional space after each of { [ , : and before each of } ], so a
 * model cannot write white space for ever. */
#ifndef GRAMMAR_GRAMMAR_H
#define GRAMMAR_GRAMMAR_H

#include "util/err.h"
#include "util/quota.h"

#include <stddef.h>
#include <stdint.h>

#define GRAMMAR_TEXT_MAX 131072u /* bytes of a constraint */
#define GRAMMAR_DEPTH_MAX 64u    /* of nested values in an answer */

enum grammar_kind {
	GRAMMAR_NONE,
	GRAMMAR_JSON_SCHEMA,
	GRAMMAR_JSON_OBJECT,
	GRAMMAR_REGEX,
	GRAMMAR_CHOICE,
	GRAMMAR_STRUCTURE,
	GRAMMAR_KINDS
};
/* JSON_SCHEMA: objects must name all properties as required and forbid others */
enum { GRAMMAR_STRICT = 1 };

struct grammar;
const char *grammar_kind_name(enum grammar_kind k);
/* ERR_INVALID: not well formed; ERR_UNSUPPORTED: well formed, and cannot be enforced; ERR_FULL:
 * over a limit, which is named. Time and memory are bounded by limits on nodes, whatever the
 * text says. */
int grammar_compile(enum grammar_kind kind, const char *text, size_t len, unsigned flags,
                    struct grammar **ret_g, struct err *err);
void grammar_destroy(struct grammar **g);
uint32_t grammar_nodes(const struct grammar *g);
size_t grammar_bytes(const struct grammar *g); /* of memory; some 2 MB at most */

/* The bytes of each token id, arranged for walking. Immutable; used by several threads. bytes[i]
 * NULL (special tokens, ids without a text) or of length 0: never allowed. Copies what it needs. */
struct grammar_vocab;
struct grammar_vocab *grammar_vocab_new(const char *const *bytes, const uint32_t *len, uint32_t n);
void grammar_vocab_destroy(struct grammar_vocab **v);
uint32_t grammar_vocab_size(const struct grammar_vocab *v);
/* 64-bit words of a mask; bit id % 64 of word id / 64 is the token's. */
static inline size_t grammar_mask_words(uint32_t vocab)
{
	return ((size_t)vocab + 63) / 64;
}

/* Where an answer stands. {0}: at its beginning. */
struct grammar_walk {
	uint64_t life;     /* of the automaton's states: 0, or what `state` is of */
	uint32_t state, n; /* after so many tokens of the answer */
};

struct automaton; /* has its own lock */

/* Takes the grammar, in any case; the vocabulary outlives it. bytes_max: of states and masks
 * together, about. pool: all that the automaton has is taken from it, the grammar too (NULL:
 * none). NULL: there is no room in it, or no memory. */
struct automaton *automaton_new(struct grammar *g, const struct grammar_vocab *v, size_t bytes_max,
                                struct quota_pool *pool);
void automaton_destroy(struct automaton **a);
size_t automaton_bytes(struct automaton *a); /* that are taken from the pool */
/* What was found goes, and is found again when it is needed: it keeps no more than a new one
 * has. */
void automaton_trim(struct automaton *a);

enum {
	AUTOMATON_MAY_END = 1, /* the answer is whole as it stands */
	AUTOMATON_MAY_GO_ON = 2
}; /* some token is allowed; without it, only the end is */

/* The tokens allowed after `tokens`: n of the answer, of which the first walk->n were walked
 * before. ERR_INVALID: these tokens are none of the grammar's, with the first that is not;
 * ERR_FULL, ERR_UNSUPPORTED: telling would take more memory or time than is allowed; ERR_NOMEM:
 * the pool has no room for it now. *ret_flags as above, and of neither there is no way on
 * (ERR_NOTFOUND). */
int automaton_mask(struct automaton *a, struct grammar_walk *walk, const uint32_t *tokens,
                   uint32_t n, uint64_t *ret_mask, unsigned *ret_flags, struct err *err);
/* How many of `more`, which would follow the walked tokens, are allowed one after the other. */
uint32_t automaton_leading(struct automaton *a, struct grammar_walk *walk, const uint32_t *tokens,
                           uint32_t n, const uint32_t *more, uint32_t n_more);
/* Whether a whole text is of the grammar: 1 or 0; what came before a byte that does not fit is
 * *ret_good bytes. For tests and tools. */
int automaton_matches(struct automaton *a, const char *text, size_t len, size_t *ret_good);

#endif
