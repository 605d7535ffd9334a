/* walk.c - computes the mask of a state by walking the tree of token shapes along the states. A
 * shape represents all its tokens as long as all bytes of its cells lead to the same state. Where
 * they do not, tokens are checked by their bytes: those after bytes that stand for themselves by
 * the trees over bytes (names, words of a choice: most branches end at once), others one by one.
 *
 * So a state that differs from others only in a counter costs a few thousand steps, not one per
 * prefix of a token. The result is the same as checking the bytes of each token. */
#include "automaton.h"

#include <string.h>

#define BRANCHES_MAX 64u
#define NODE_STEPS 4u    /* of a node of a tree */
#define TOKENS_A_STEP 8u /* whose bits are set */

struct branch {
	/* shape: node whose cell leads to several states; state: the state before it */
	uint32_t shape, state;
};

struct walker {
	struct automaton *a;
	uint64_t *mask;
	int any;
	struct branch branch[BRANCHES_MAX];
	uint32_t n_branches;
};

/* --- trees by bytes ------------------------------------------------------ */

static void allow(struct walker *w, const struct trie *t, uint32_t from, uint32_t to)
{
	automaton_charge(w->a, (to - from) / TOKENS_A_STEP);
	for (; from < to; from++) {
		w->mask[t->id[from] / 64] |= 1ull << t->id[from] % 64;
		w->any = 1;
	}
}

/* Do all bytes that JSON strings contain unescaped lead from this state to itself? Then all tokens
 * of them are allowed. */
static int loops(struct automaton *a, uint32_t state)
{
	unsigned i = 0;
	while (i < a->n_plain && automaton_next(a, state, a->plain[i]) == state)
		i++;
	automaton_charge(a, i);
	return i && i == a->n_plain;
}

/* Walks nodes [i, end), the first of which have this depth. state: the state before them. */
static void walk(struct walker *w, const struct trie *t, uint32_t i, uint32_t end, uint32_t depth,
                 uint32_t state)
{
	struct automaton *a = w->a;
	uint32_t at[257];
	at[depth - 1] = state;
	while (i < end && !a->full) {
		const struct trie_node *n = &t->node[i];
		automaton_charge(a, NODE_STEPS);
		uint32_t s = automaton_next(a, at[n->depth - 1], n->byte);
		if (s == STATE_DEAD) {
			i = n->skip;
			continue;
		}
		at[n->depth] = s;
		if (t == &a->v->trie[TRIE_PLAIN] && loops(a, s)) {
			allow(w, t, n->tokens, t->node[n->skip].tokens);
			i = n->skip;
			continue;
		}
		allow(w, t, n->tokens, n[1].tokens);
		i++;
	}
}

/* Walks the tokens that start with these n bytes, followed by a byte of the cell. */
static void walk_branch(struct walker *w, const struct trie *t, const char *bytes, uint32_t n,
                        const struct vocab_cell *c, uint32_t state)
{
	uint32_t i = 0, end = t->n;
	for (uint32_t k = 0; k < n; k++) {
		for (; i < end && t->node[i].byte != (unsigned char)bytes[k]; i = t->node[i].skip)
			automaton_charge(w->a, 1);
		end = i < end ? t->node[i].skip : i;
		i++;
	}
	for (; i < end; i = t->node[i].skip)
		if (t->node[i].byte >= c->lo && t->node[i].byte <= c->hi)
			walk(w, t, i, t->node[i].skip, n + 1, state);
}

static void walk_branches(struct walker *w)
{
	const struct grammar_vocab *v = w->a->v;
	for (uint32_t k = 0; k < w->n_branches && !w->a->full; k++) {
		const struct trie_node *n = &v->shape.node[w->branch[k].shape];
		const char *bytes = v->bytes + v->at[v->shape.id[n->tokens]];
		const struct vocab_cell *c = &vocab_cell[v->cell_of[n->byte] - 1];
		walk_branch(w, &v->trie[TRIE_PLAIN], bytes, n->depth - 1u, c, w->branch[k].state);
		walk_branch(w, &v->trie[TRIE_OTHER], bytes, n->depth - 1u, c, w->branch[k].state);
	}
}

/* --- the tree by shapes -------------------------------------------------- */

static void run_add(struct automaton *a, uint32_t from, uint32_t to)
{
	if (from == to)
		return;
	if (a->n_runs && a->run[a->n_runs - 1].to == from) {
		a->run[a->n_runs - 1].to = to;
		return;
	}
	struct token_run *run = automaton_grow(a, a->run, &a->size_runs,
	                                       a->n_runs < 256 ? 256 : a->n_runs + 1, sizeof *run);
	if (!run)
		return;
	a->run = run;
	a->run[a->n_runs++] = (struct token_run){from, to};
}

static void one_by_one(struct walker *w, const struct trie_node *n, uint32_t state)
{
	struct automaton *a = w->a;
	const struct grammar_vocab *v = a->v;
	const struct trie *t = &v->shape;
	for (uint32_t k = n->tokens; k < t->node[n->skip].tokens && !a->full; k++) {
		uint32_t id = t->id[k], s = state;
		for (uint32_t i = v->at[id] + n->depth - 1; i < v->at[id + 1] && s != STATE_DEAD; i++) {
			s = automaton_next(a, s, (unsigned char)v->bytes[i]);
			automaton_charge(a, 1);
		}
		if (s != STATE_DEAD)
			run_add(a, k, k + 1);
	}
}

/* The bytes of a node's cell lead to several states: check its tokens by their bytes. */
static void split_up(struct walker *w, const struct trie_node *n, uint32_t state, int alone)
{
	const struct grammar_vocab *v = w->a->v;
	if (alone && w->n_branches < BRANCHES_MAX)
		w->branch[w->n_branches++] = (struct branch){(uint32_t)(n - v->shape.node), state};
	else
		one_by_one(w, n, state);
}

/* Collects runs of allowed tokens, in order, and branches. */
static void walk_shapes(struct walker *w, uint32_t state)
{
	struct automaton *a = w->a;
	const struct trie *t = &a->v->shape;
	uint32_t at[NFA_LOOKAHEAD + 1], from = 0;
	int alone[NFA_LOOKAHEAD + 1]; /* no cell on the path so far */
	at[0] = state;
	alone[0] = 1;
	a->n_runs = 0;
	for (uint32_t i = 0; i < t->n && !a->full;) {
		const struct trie_node *n = &t->node[i];
		unsigned cell = a->v->cell_of[n->byte];
		uint32_t before = at[n->depth - 1], s = cell ? automaton_next_in(a, before, cell - 1)
		                                             : automaton_next(a, before, n->byte);
		automaton_charge(a, NODE_STEPS);
		if (s != STATE_DEAD && s != STATE_MIXED) {
			at[n->depth] = s;
			alone[n->depth] = alone[n->depth - 1] && !cell;
			i++;
			continue;
		}
		run_add(a, from, n->tokens);
		from = t->node[n->skip].tokens;
		if (s == STATE_MIXED)
			split_up(w, n, before, alone[n->depth - 1]);
		i = n->skip;
	}
	run_add(a, from, t->node[t->n].tokens);
}

/* Writes the runs to the mask: sets their bits or clears all others, whichever is fewer. */
static void take_runs(struct walker *w)
{
	struct automaton *a = w->a;
	const struct trie *t = &a->v->shape;
	uint32_t all = t->node[t->n].tokens, n = 0, from = 0;
	for (uint32_t k = 0; k < a->n_runs; k++)
		n += a->run[k].to - a->run[k].from;
	w->any = n > 0;
	automaton_charge(a, all / TOKENS_A_STEP);
	if (n <= all / 2) {
		memset(w->mask, 0, a->words * sizeof *w->mask);
		for (uint32_t k = 0; k < a->n_runs; k++)
			allow(w, t, a->run[k].from, a->run[k].to);
		return;
	}
	memcpy(w->mask, a->v->shaped, a->words * sizeof *w->mask);
	for (uint32_t k = 0; k <= a->n_runs; k++) {
		for (uint32_t to = k < a->n_runs ? a->run[k].from : all; from < to; from++)
			w->mask[t->id[from] / 64] &= ~(1ull << t->id[from] % 64);
		from = k < a->n_runs ? a->run[k].to : all;
	}
}

int automaton_fill(struct automaton *a, uint32_t state, uint64_t *mask)
{
	const struct trie *far = &a->v->trie[TRIE_LONG];
	struct walker w = {.a = a, .mask = mask};
	walk_shapes(&w, state);
	take_runs(&w);
	walk_branches(&w);
	if (!a->g->counted)
		walk(&w, far, 0, far->n, 1, state);
	return w.any;
}
