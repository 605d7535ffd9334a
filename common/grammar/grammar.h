/* grammar.h - constrained output: computes which tokens may come next, so that the whole answer has
 * a given form.
 *
 *   text of a constraint
 *     -- grammar_compile -->                      grammar
 *     -- automaton_new, with a vocabulary -->     automaton
 *     -- automaton_mask -->                       bits of allowed token ids
 *
 * A grammar is a recursive transition network over bytes: immutable and independent of the
 * vocabulary. An automaton makes it deterministic where answers go, and caches the result within a
 * memory limit. The state of an answer is a function of its tokens alone: a walk only caches it and
 * is rebuilt by whoever receives the tokens.
 *
 * Kinds of constraints, each given as one text:
 *   JSON_SCHEMA   a schema of the subset that schema.h lists; what cannot be enforced is refused
 *                 with its path ("/properties/a/pattern: ...")
 *   JSON_OBJECT   any JSON object; the text is ignored
 *   REGEX         an expression of the syntax that regex.h lists; the whole answer matches
 *   CHOICE        a JSON array of strings; the answer is one of them
 *   STRUCTURE     a JSON array of pieces, one after the other: {"literal":"text"},
 *                 {"schema":{...}}, {"regex":"..."}, {"choice":["text", ...]}, {"any_of":[[pieces],
 *                 ...]}, {"repeat":[pieces],"min":0,"max":8,"separator":"text"}, {"free":"trigger"}
 *                 (any text up to and including the trigger), {"free":""} (any text),
 *                 {"gbnf":"root ::= ..."}
 *   GBNF          a grammar in llama.cpp's notation (gbnf.h)
 * JSON is compact, with one optional space after each of { [ , : and before each of } ], so a model
 * cannot write white space forever. */
#ifndef GRAMMAR_GRAMMAR_H
#define GRAMMAR_GRAMMAR_H

#include "util/err.h"
#include "util/quota.h"

#include <stddef.h>
#include <stdint.h>

#define GRAMMAR_TEXT_MAX 131072u /* bytes of a constraint's text */
#define GRAMMAR_DEPTH_MAX 64u    /* levels of nested values in an answer */

enum grammar_kind {
	GRAMMAR_NONE,
	GRAMMAR_JSON_SCHEMA,
	GRAMMAR_JSON_OBJECT,
	GRAMMAR_REGEX,
	GRAMMAR_CHOICE,
	GRAMMAR_STRUCTURE,
	GRAMMAR_GBNF,
	GRAMMAR_KINDS
};
/* JSON_SCHEMA: objects must list all properties as required and forbid others */
enum { GRAMMAR_STRICT = 1 };

struct grammar;
const char *grammar_kind_name(enum grammar_kind k);
/* ERR_INVALID: malformed; ERR_UNSUPPORTED: well-formed, but cannot be enforced; ERR_FULL: over a
 * limit, which err names; ERR_NOMEM. Limits on nodes bound time and memory for any text. */
int grammar_compile(enum grammar_kind kind, const char *text, size_t len, unsigned flags,
                    struct grammar **ret_g, struct err *err);
void grammar_destroy(struct grammar **g);
uint32_t grammar_nodes(const struct grammar *g);
/* What its schemas have that constrains nothing, though a client may think so: unknown keywords,
 * formats; to be shown. The first eight; NULL: no further. */
const char *grammar_ignored(const struct grammar *g, unsigned i);
size_t grammar_bytes(const struct grammar *g); /* memory; at most about 2 MB */

/* The bytes of each token id, arranged for walking. Immutable, so several threads may use it.
 * Copies what it needs. bytes[i] NULL (special tokens, ids without a text) or length 0: never
 * allowed. */
struct grammar_vocab;
struct grammar_vocab *grammar_vocab_new(const char *const *bytes, const uint32_t *len, uint32_t n);
void grammar_vocab_destroy(struct grammar_vocab **v);
uint32_t grammar_vocab_size(const struct grammar_vocab *v);
/* Number of 64-bit words of a mask. The bit of a token is id % 64 of word id / 64. */
static inline size_t grammar_mask_words(uint32_t vocab)
{
	return ((size_t)vocab + 63) / 64;
}

/* The state of an answer. {0}: at its start. */
struct grammar_walk {
	uint64_t life;     /* the life of the automaton that `state` belongs to; 0: none */
	uint32_t state, n; /* n: tokens of the answer walked so far */
};

struct automaton; /* has its own lock */

/* Takes ownership of the grammar, also on error; the vocabulary must outlive the automaton.
 * bytes_max: approximate limit for states and masks together. pool: accounts for all memory, the
 * grammar included; NULL: no limit. Returns NULL if the pool or memory is exhausted. */
struct automaton *automaton_new(struct grammar *g, const struct grammar_vocab *v, size_t bytes_max,
                                struct quota_pool *pool);
void automaton_destroy(struct automaton **a);
size_t automaton_bytes(struct automaton *a); /* taken from the pool */
/* Drops everything cached; it is computed again when needed. Memory shrinks to that of a new
 * automaton. Returns 0 and does nothing if another thread uses it. */
int automaton_trim(struct automaton *a);

enum {
	AUTOMATON_MAY_END = 1, /* the answer is complete as it is */
	/* some token is allowed; without this flag only the end of the answer is */
	AUTOMATON_MAY_GO_ON = 2
};

/* Steps that one mask may cost: at most 50 ms, mostly 10 to 20. What is cached costs little. */
#define AUTOMATON_STEPS_MAX 3500000u

/* Computes the tokens allowed after `tokens`, the n tokens of the answer; the first walk->n of them
 * were walked before. ERR_INVALID: a token, which err names, violates the grammar; ERR_FULL,
 * ERR_UNSUPPORTED: the result would take more memory or time than allowed, which may depend on what
 * this automaton has cached, so that workers may differ; ERR_NOMEM: the pool has no room now;
 * ERR_NOTFOUND: neither a token nor the end is allowed. *ret_flags: see above.
 *
 * steps NULL: it may take as long as a mask may, and waits for other threads. Else it waits for
 * nobody, takes at most about *steps, from which it subtracts what it took, and returns ERR_TIMEOUT
 * if that is not enough; what it found so far makes the next call cheaper. */
int automaton_mask(struct automaton *a, struct grammar_walk *walk, const uint32_t *tokens,
                   uint32_t n, uint64_t *steps, uint64_t *ret_mask, unsigned *ret_flags,
                   struct err *err);
/* Returns how many of `more`, which would follow the n tokens, are allowed one after the other:
 * fewer if *steps, as above, are not enough to tell. */
uint32_t automaton_leading(struct automaton *a, struct grammar_walk *walk, const uint32_t *tokens,
                           uint32_t n, const uint32_t *more, uint32_t n_more, uint64_t *steps);
/* Does a whole text match the grammar? *ret_good: number of bytes before the first that does not.
 * For tests and tools. */
int automaton_matches(struct automaton *a, const char *text, size_t len, size_t *ret_good);

#endif
