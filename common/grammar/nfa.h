/* nfa.h - the network that constraints are compiled to, and its builders. Internal to grammar.
 *
 * A rule is a sub-network entered by CALL and left by RET; rules may call each other and
 * themselves. Builders work from the end to the start: each takes the node that follows (`next`)
 * and returns the node that starts, so only loops are patched later. Node 0 is RET. */
#ifndef GRAMMAR_NFA_H
#define GRAMMAR_NFA_H

#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

#define NFA_NODES_MAX 100000u
#define NFA_RULES_MAX 4096u
#define NFA_SETS_MAX 4096u
#define NFA_STEPS_MAX 1000000u   /* of builders; also those that need no node */
#define NFA_NEED_NONE UINT16_MAX /* the end of the rule cannot be reached */
/* in bytes; for tokens up to this length, equivalent positions in a counted repetition share a
 * mask */
#define NFA_LOOKAHEAD 32u
#define NFA_REPEAT_MAX 10000u /* of any {m,n}, minItems, maxLength ... */
#define NFA_UNBOUNDED UINT32_MAX

enum nfa_kind { NFA_RET, NFA_SET, NFA_SPLIT, NFA_CALL };

struct nfa_node {
	uint8_t kind;
	/* stack levels needed on the shortest way from here to the end of the rule */
	uint16_t need;
	uint32_t a, b; /* SET: set, next; SPLIT: both ways; CALL: rule, next */
	/* a node after which the same NFA_LOOKAHEAD bytes may follow; usually the node itself */
	uint32_t alias;
};

struct byte_set {
	uint64_t w[4];
};

struct nfa {
	struct nfa_node *node;
	uint32_t n, size;
	uint32_t *rule; /* start node of each; 0: not built yet */
	uint32_t n_rules, size_rules;
	struct byte_set *set;
	uint32_t n_sets, size_sets;
	/* hash table of sets: index + 1; NULL: building is finished */
	uint32_t *set_slot;
	uint32_t start;
	uint32_t steps;              /* of builders */
	struct err err;              /* of the first builder that failed; builders then return 0 */
	unsigned char class_of[256]; /* class of bytes that no set distinguishes; set by nfa_finish */
	unsigned n_classes;
	unsigned char byte_of[256]; /* one byte of each class */
};

int nfa_init(struct nfa *f);           /* 0 or ERR_NOMEM */
int nfa_step(struct nfa *f);           /* to be called for each piece that is built; <0: stop */
uint32_t nfa_no_memory(struct nfa *f); /* records ERR_NOMEM; returns 0 */
void nfa_fini(struct nfa *f);

static inline void byte_add(struct byte_set *s, unsigned lo, unsigned hi)
{
	for (unsigned b = lo; b <= hi; b++)
		s->w[b / 64] |= 1ull << b % 64;
}
static inline int byte_has(const struct byte_set *s, unsigned b)
{
	return s->w[b / 64] >> b % 64 & 1;
}

uint32_t nfa_set(struct nfa *f, const struct byte_set *s, uint32_t next);
uint32_t nfa_byte(struct nfa *f, unsigned char b, uint32_t next);
uint32_t nfa_bytes(struct nfa *f, const char *s, size_t len, uint32_t next);
uint32_t nfa_split(struct nfa *f, uint32_t a, uint32_t b);
#define NFA_DEAD UINT32_MAX /* in place of a node: there is no way */
/* Both ways, or the one that is there; neither: NFA_DEAD. */
static inline uint32_t nfa_either(struct nfa *f, uint32_t a, uint32_t b)
{
	return a == NFA_DEAD ? b : b == NFA_DEAD ? a : nfa_split(f, a, b);
}
/* a SPLIT whose ways are set later */
uint32_t nfa_loop(struct nfa *f);
void nfa_loop_set(struct nfa *f, uint32_t loop, uint32_t again, uint32_t out);
/* returns a number; its body is set later */
uint32_t nfa_rule(struct nfa *f);
void nfa_rule_set(struct nfa *f, uint32_t rule, uint32_t begin);
uint32_t nfa_call(struct nfa *f, uint32_t rule, uint32_t next);

/* n bytes between lo and hi inclusive, compared as byte strings, where each byte after the first is
 * between `first` and `last`: for UTF-8 or digits. */
#define NFA_BETWEEN_MAX 20u
uint32_t nfa_between(struct nfa *f, const unsigned char *lo, const unsigned char *hi, unsigned n,
                     unsigned char first, unsigned char last, uint32_t next);
/* Code points lo to hi inclusive as UTF-8, without surrogates. */
uint32_t nfa_points(struct nfa *f, uint32_t lo, uint32_t hi, uint32_t next);
/* min to max repetitions (NFA_UNBOUNDED: no limit) of what unit(arg, next) builds. A unit repeated
 * often becomes a rule. */
uint32_t nfa_repeat(struct nfa *f, uint32_t (*unit)(struct nfa *f, void *arg, uint32_t next),
                    void *arg, uint32_t min, uint32_t max, uint32_t next);
/* One of n byte strings; strings with a common prefix share it. Sorts the list. */
struct nfa_string {
	const char *s;
	size_t len;
};
uint32_t nfa_one_of(struct nfa *f, struct nfa_string *list, size_t n, uint32_t next);

/* Checks the whole network and fails on f->err, infinite recursion, no finite answer, or nesting
 * above the limit. Simplifies it (nfa_drop_empty), and sets need and classes. */
int nfa_finish(struct nfa *f, uint32_t depth_max, struct err *err);
/* Frees what only builders need and shrinks the arrays. */
void nfa_trim(struct nfa *f);
size_t nfa_memory(const struct nfa *f);

/* nfa_empty.c. Both return ERR_FULL after passes_max passes. */
/* empty[i] = 1: from node i the end of its rule is reached without a byte */
int nfa_find_empty(const struct nfa *f, unsigned char *empty, uint32_t passes_max);
/* Rewrites the network so that no called rule matches the empty string, and no pointer leads to a
 * node that only leads on. What matches stays the same. ERR_NOMEM; on a limit f->err is set. */
int nfa_drop_empty(struct nfa *f, const unsigned char *empty, uint32_t passes_max);

#endif
