/* automaton.h - makes a grammar deterministic step by step, only where answers go. Internal to
 * grammar.
 *
 * A config is a node of the network with a stack of return nodes; a state is the set of all configs
 * that an answer may be in. States, stacks and masks are interned in tables of one automaton. When
 * a table is full, all tables are emptied except for the state needed now: a new life begins. */
#ifndef GRAMMAR_AUTOMATON_H
#define GRAMMAR_AUTOMATON_H

#include "grammar_int.h"

#include <pthread.h>

#define STATE_DEAD 0u /* no configs: nothing may follow, and the answer may not end */
#define STATE_UNKNOWN UINT32_MAX
#define STATE_MIXED (UINT32_MAX - 1) /* the bytes of a cell lead to different states */
#define CONFIGS_MAX 512u             /* per state; a state with more counts as dead */

struct config {
	uint32_t node, stack; /* node 0 with stack 0: the answer may end */
};

struct automaton_level { /* of a stack, a linked list; level 0 is the empty stack */
	uint32_t ret, up, depth;
	/* the level with all return nodes replaced by their aliases; UINT32_MAX: not computed */
	uint32_t alias;
};

struct state {
	uint32_t first, n; /* its configs, sorted */
	uint32_t row;      /* its transitions are at row[row * row_len]; UINT32_MAX: none yet */
	uint32_t alias;    /* the state with aliases in its stacks; STATE_UNKNOWN: not computed */
	uint32_t mask;     /* slot of its mask; UINT32_MAX: none; MASK_REFUSED */
};

#define MASK_REFUSED (UINT32_MAX - 1) /* too expensive */

struct mask_slot {
	uint32_t state;
	int used, any; /* used: since the clock hand passed; any: at least one token is allowed */
};

struct token_run { /* ids[from, to) of a trie */
	uint32_t from, to;
};

struct automaton_table { /* hash table with open addressing; a slot holds index + 1, 0: free */
	uint32_t *slot, size;
};

struct automaton {
	struct grammar *g;
	const struct nfa *f;
	const struct grammar_vocab *v; /* NULL: no masks */
	pthread_mutex_t lock;
	uint64_t life;
	uint32_t start; /* STATE_UNKNOWN: out of memory when it was needed */
	/* 1: a table had no room since this was last cleared, or `steps` were used up; results since
	 * then are invalid */
	int full;
	/* what the present call may still cost (automaton_charge); spent: it would have cost more */
	uint64_t steps;
	int spent;
	size_t bytes_max;
	struct quota quota; /* accounts for the grammar and everything below */
	/* a renewal ran out of memory: the state it returned is a different one */
	int lost;

	struct state *state;
	uint32_t n_states, size_states, max_states;
	struct config *config;
	uint32_t n_configs, size_configs, max_configs;
	struct automaton_level *level;
	uint32_t n_levels, size_levels, max_levels;
	uint32_t *row, n_rows, size_rows, max_rows;
	uint32_t row_len; /* one state per byte class, then one per cell */
	struct automaton_table states, levels;

	uint64_t *mask; /* (size_slots, words) */
	struct mask_slot *slot;
	uint32_t n_slots, size_slots, max_slots, hand;
	size_t words;
	struct token_run *run; /* scratch of automaton_fill */
	uint32_t n_runs, size_runs;
	struct {
		unsigned char byte[CELL_BYTES_MAX]; /* one byte of each class */
		unsigned n;
	} cell[CELLS];
	/* one byte of each class among those that JSON strings contain unescaped */
	unsigned char plain[256];
	unsigned n_plain;
};

/* Each loop whose length depends on the constraint pays for its turns: a step is what one turn
 * costs, about 5 to 15 ns. */
static inline void automaton_charge(struct automaton *a, uint64_t steps)
{
	if (steps <= a->steps) {
		a->steps -= steps;
	} else {
		a->steps = 0;
		a->spent = a->full = 1;
	}
}

/* automaton.c; call with the lock held */
/* Returns the array p of *size elements with room for n; grows at least to twice the size. NULL
 * with `full` set: out of memory, p is unchanged. */
void *automaton_grow(struct automaton *a, void *p, uint32_t *size, uint32_t n, size_t each);
uint32_t automaton_next(struct automaton *a, uint32_t state, unsigned char byte);
/* Like automaton_next for all bytes of a cell; STATE_MIXED: they lead to different states. */
uint32_t automaton_next_in(struct automaton *a, uint32_t state, unsigned cell);
/* Is the next state dead because of the limit on configs? If `full` is set, the result is
 * invalid. */
int automaton_is_over(struct automaton *a, uint32_t state, unsigned char byte);
uint32_t automaton_alias(struct automaton *a, uint32_t state);
/* walk.c: computes the mask of a state. Returns whether it has any bit set; if `full` is set, the
 * result is invalid. */
int automaton_fill(struct automaton *a, uint32_t state, uint64_t *mask);
/* Makes sure `start` is known. Returns -1: out of memory. */
int automaton_begin(struct automaton *a);
/* Empties all tables. Returns the same state in the new life; if the steps do not suffice, changes
 * nothing. */
uint32_t automaton_renew(struct automaton *a, uint32_t state);
static inline int automaton_ends(const struct automaton *a, uint32_t state)
{
	const struct state *s = &a->state[state];
	return s->n && a->config[s->first].node == 0;
}
/* Checks that the start state is within the limit on configs. */
int automaton_probe(struct grammar *g, struct err *err);

#endif
