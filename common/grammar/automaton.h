/* automaton.h - a grammar made deterministic, step by step, as answers go. Internal to grammar.
 *
 * A config is a place in the network with a stack of places to return to; a state is the set of all
 * configs in which an answer may be. States, stacks and masks are interned in tables of one
 * automaton. When a table is full all are dropped (a life ends) but the state that is needed
 * now. */
#ifndef GRAMMAR_AUTOMATON_H
#define GRAMMAR_AUTOMATON_H

#include "grammar_int.h"

#include <pthread.h>

#define STATE_DEAD 0u /* no config: nothing leads on, and it is no end */
#define STATE_UNKNOWN UINT32_MAX
#define STATE_MIXED (UINT32_MAX - 1) /* the bytes of a cell lead to several states */
#define CONFIGS_MAX 512u             /* of one state; one with more counts as dead */

struct config {
	uint32_t node, stack; /* node 0 with stack 0: the answer may end */
};

struct level { /* of a stack; level 0 is the empty one */
	uint32_t ret, up, depth;
	/* the level with aliases for all returns; UINT32_MAX: not looked for */
	uint32_t alias;
};

struct state {
	uint32_t first, n; /* configs, sorted */
	uint32_t row;      /* its transitions at rows[row * row_len]; UINT32_MAX: none yet */
	uint32_t alias;    /* the state with aliases in its stacks; STATE_UNKNOWN */
	uint32_t mask;     /* slot; UINT32_MAX: none */
};

struct mask_slot {
	uint32_t state;
	int used, any; /* used: since the hand passed; any: some token is allowed */
};

struct token_run { /* of a trie's ids, from .. to - 1 */
	uint32_t from, to;
};

struct table { /* open addressing: index + 1 */
	uint32_t *slot, size;
};

struct automaton {
	struct grammar *g;
	const struct nfa *f;
	const struct grammar_vocab *v; /* NULL: no masks */
	pthread_mutex_t lock;
	uint64_t life;
	uint32_t start; /* STATE_UNKNOWN: there was no memory for it */
	/* a table had no room since this was last cleared: what was found meanwhile does not count */
	int full;
	size_t bytes_max;
	struct quota quota; /* of the grammar and all below */
	/* a renewal found no memory: the state it gave is another one */
	int lost;

	struct state *state;
	uint32_t n_states, size_states, max_states;
	struct config *config;
	uint32_t n_configs, size_configs, max_configs;
	struct level *level;
	uint32_t n_levels, size_levels, max_levels;
	uint32_t *row, n_rows, size_rows, max_rows;
	uint32_t row_len; /* a state for each class of bytes, then for each cell */
	struct table states, levels;

	uint64_t *mask; /* (size_slots, words) */
	struct mask_slot *slot;
	uint32_t n_slots, size_slots, max_slots, hand;
	size_t words;
	struct token_run *run; /* scratch of a mask */
	uint32_t n_runs, size_runs;
	struct {
		unsigned char byte[CELL_BYTES_MAX]; /* one of each class */
		unsigned n;
	} cell[CELLS];
	unsigned char plain[256]; /* the same of the bytes that JSON strings hold as they are */
	unsigned n_plain;
};

/* automaton.c; the lock is held */
/* p, an array of *size elements, with room for n, and twice as many as before at least; NULL
 * with `full` set: no memory, p is as it was. */
void *automaton_grow(struct automaton *a, void *p, uint32_t *size, uint32_t n, size_t each);
uint32_t automaton_next(struct automaton *a, uint32_t state, unsigned char byte);
/* The same for all bytes of a cell; STATE_MIXED: they lead to different states. */
uint32_t automaton_next_in(struct automaton *a, uint32_t state, unsigned cell);
/* Whether it is dead there for the limit on configs. `full` set: not known. */
int automaton_is_over(struct automaton *a, uint32_t state, unsigned char byte);
uint32_t automaton_alias(struct automaton *a, uint32_t state);
/* walk.c: the mask of a state, and whether it has a bit. ERR_FULL: a table was; ERR_UNSUPPORTED:
 * too costly. */
int automaton_fill(struct automaton *a, uint32_t state, uint64_t *mask, int *ret_any,
                   struct err *err);
/* `start` is known, or -1: no memory. */
int automaton_begin(struct automaton *a);
/* All tables are emptied; returns the same state in the new life. */
uint32_t automaton_renew(struct automaton *a, uint32_t state);
static inline int automaton_ends(const struct automaton *a, uint32_t state)
{
	const struct state *s = &a->state[state];
	return s->n && a->config[s->first].node == 0;
}
/* Whether the beginning can be told at all, within the limit on configs. */
int automaton_probe(struct grammar *g, struct err *err);

#endif
