/* nfa_empty.c - takes out of a network what matches the empty string.
 *
 * A rule that may be empty is called as one that may not, or passed by: CALL r, next becomes a
 * SPLIT between CALL r' and next. So a walk over nodes that consume nothing goes up only from where
 * a byte was consumed, and each rule that it enters leads to a byte. Nested rules of which each
 * may be empty would otherwise be entered and left in all combinations before each byte.
 *
 * A SPLIT whose ways are the same, or of which one leads back to it, leads on only, and so does a
 * call at the end of a rule: pointers go past them. Nodes stay where they are: other nodes' aliases
 * name them. */
#include "nfa.h"
#include "util/mem.h"

#include <stdlib.h>

#define NONE UINT32_MAX
/* Bounds of `shorten`: a pass ends at least one level of nested loops. What is left then costs
 * steps when the network is walked, and nothing else. */
#define SHORTEN_PASSES 16u
#define HOPS_MAX 2000000u

/* Repeats what a node says of itself (by its kind and what is known of the nodes that it leads to)
 * until nothing changes. Nodes mostly come after the nodes they lead to, so few passes are
 * enough. */
static int fixpoint(const struct nfa *f, unsigned char *is, uint32_t passes_max,
                    unsigned char (*says)(const struct nfa *f, const struct nfa_node *n,
                                          const unsigned char *is))
{
	int changed = 1;
	for (uint32_t pass = 0; changed; pass++) {
		if (pass == passes_max)
			return ERR_FULL;
		changed = 0;
		for (uint32_t i = 1; i < f->n; i++) {
			unsigned char now = says(f, &f->node[i], is);
			changed |= now != is[i];
			is[i] = now;
		}
	}
	return 0;
}

static unsigned char says_empty(const struct nfa *f, const struct nfa_node *n,
                                const unsigned char *is)
{
	return n->kind == NFA_SPLIT  ? is[n->a] | is[n->b]
	       : n->kind == NFA_CALL ? is[f->rule[n->a]] & is[n->b]
	                             : 0;
}

int nfa_find_empty(const struct nfa *f, unsigned char *empty, uint32_t passes_max)
{
	empty[0] = 1;
	return fixpoint(f, empty, passes_max, says_empty);
}

/* A byte may be consumed between this node and the end of its rule. */
static unsigned char says_some(const struct nfa *f, const struct nfa_node *n,
                               const unsigned char *is)
{
	return n->kind == NFA_SPLIT  ? is[n->a] | is[n->b]
	       : n->kind == NFA_CALL ? is[f->rule[n->a]] | is[n->b]
	                             : n->kind == NFA_SET;
}

struct dropper {
	struct nfa *f;
	uint32_t n;                 /* nodes of the network as it was built */
	const unsigned char *empty; /* of those nodes */
	unsigned char *some;
	uint32_t *copy;  /* of those nodes: the one that matches the same, but not nothing; 0: none */
	uint32_t *queue; /* nodes whose copy has no ways yet */
	uint32_t n_queue;
};

/* The node that matches what node i does, except the empty string. NONE: nothing is left. */
static uint32_t without_empty(struct dropper *d, uint32_t i)
{
	if (i >= d->n || !d->empty[i])
		return i;
	if (!d->some[i])
		return NONE;
	if (!d->copy[i]) {
		d->copy[i] = nfa_loop(d->f);
		d->queue[d->n_queue++] = i;
	}
	return d->copy[i];
}

static void split_calls(struct dropper *d)
{
	struct nfa *f = d->f;
	for (uint32_t i = 1; i < d->n && !f->err.code; i++) {
		struct nfa_node n = f->node[i];
		if (n.kind != NFA_CALL || !d->empty[f->rule[n.a]])
			continue;
		uint32_t call = d->some[f->rule[n.a]] ? nfa_call(f, n.a, n.b) : n.b;
		f->node[i].kind = NFA_SPLIT;
		f->node[i].a = call;
	}
}

static void copy_rules(struct dropper *d)
{
	struct nfa *f = d->f;
	for (uint32_t r = 0; r < f->n_rules; r++) {
		uint32_t begin = without_empty(d, f->rule[r]);
		f->rule[r] = begin == NONE ? 0 : begin; /* NONE: nobody calls it any more */
	}
	while (d->n_queue && !f->err.code) {
		uint32_t i = d->queue[--d->n_queue];
		uint32_t a = without_empty(d, f->node[i].a), b = without_empty(d, f->node[i].b);
		nfa_loop_set(f, d->copy[i], a == NONE ? b : a, b == NONE ? a : b);
	}
}

/* --- nodes that only lead on --------------------------------------------- */

struct shortener {
	struct nfa *f;
	/* nodes that have an alias or are one: a call must return to them, as stacks name them
	 * (name_aliases) */
	unsigned char *kept;
	uint32_t hops;
	int changed;
};

/* Moves a pointer past nodes that only lead on. is_return: of a call. */
static void lead(struct shortener *s, uint32_t *to, int is_return)
{
	const struct nfa *f = s->f;
	uint32_t i = *to;
	for (; s->hops < HOPS_MAX && !(is_return && s->kept[i]); s->hops++) {
		const struct nfa_node *n = &f->node[i];
		if (n->kind == NFA_SPLIT && (n->a == n->b || n->b == i))
			i = n->a;
		else if (n->kind == NFA_SPLIT && n->a == i)
			i = n->b;
		else if (n->kind == NFA_CALL && n->b == 0)
			i = f->rule[n->a];
		else
			break;
	}
	s->changed |= *to != i;
	*to = i;
}

static void shorten(struct shortener *s)
{
	struct nfa *f = s->f;
	s->changed = 1;
	for (uint32_t i = 1; i < f->n; i++)
		if (f->node[i].alias != i)
			s->kept[i] = s->kept[f->node[i].alias] = 1;
	for (unsigned pass = 0; pass < SHORTEN_PASSES && s->changed; pass++) {
		s->changed = 0;
		lead(s, &f->start, 0);
		for (uint32_t r = 0; r < f->n_rules; r++)
			lead(s, &f->rule[r], 0);
		for (uint32_t i = 1; i < f->n; i++) {
			struct nfa_node *n = &f->node[i];
			if (n->kind == NFA_SPLIT)
				lead(s, &n->a, 0);
			lead(s, &n->b, n->kind == NFA_CALL);
		}
	}
}

int nfa_drop_empty(struct nfa *f, const unsigned char *empty, uint32_t passes_max)
{
	struct dropper d = {.f = f,
	                    .n = f->n,
	                    .empty = empty,
	                    .some = mem_try_array(f->n, 1),
	                    .copy = mem_try_array(f->n, sizeof *d.copy),
	                    .queue = mem_try_array(f->n, sizeof *d.queue)};
	struct shortener s = {.f = f};
	int r = d.some && d.copy && d.queue ? fixpoint(f, d.some, passes_max, says_some) : ERR_NOMEM;
	if (r == 0) {
		split_calls(&d);
		copy_rules(&d);
		s.kept = mem_try_array(f->n, 1);
		r = s.kept ? 0 : ERR_NOMEM;
	}
	if (r == 0 && !f->err.code)
		shorten(&s);
	free(d.some);
	free(d.copy);
	free(d.queue);
	free(s.kept);
	return r;
}
