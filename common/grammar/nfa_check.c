/* nfa_check.c - checks a whole network before it is walked: it can be finished within the nesting
 * limit, and no rule enters itself again without consuming a byte, which would be infinite
 * recursion. In between nfa_empty.c simplifies it. Cost: a few passes over the nodes, each rule
 * once. */
#include "nfa.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

/* passes until the needs are stable; each level of nesting takes at most one */
#define PASSES_MAX 256u

/* --- need: levels of nesting to the end of the rule ---------------------- */

static uint16_t least(uint16_t a, uint16_t b)
{
	return a < b ? a : b;
}

static uint16_t need_of(const struct nfa *f, const struct nfa_node *n)
{
	uint16_t in, out;
	switch ((enum nfa_kind)n->kind) {
	case NFA_RET: return 0;
	case NFA_SET: return f->node[n->b].need;
	case NFA_SPLIT: return least(f->node[n->a].need, f->node[n->b].need);
	case NFA_CALL:
		in = f->node[f->rule[n->a]].need;
		out = f->node[n->b].need;
		if (in == NFA_NEED_NONE || out == NFA_NEED_NONE)
			return NFA_NEED_NONE;
		in = (uint16_t)(in + (n->b != 0)); /* the last call of a rule needs no level */
		return in > out ? in : out;
	}
	return NFA_NEED_NONE;
}

/* Except for loops and calls, nodes come after the nodes they lead to, so few passes are enough.
 * Returns ERR_FULL if they are not. */
static int find_needs(struct nfa *f)
{
	int changed = 1;
	for (uint32_t i = 1; i < f->n; i++)
		f->node[i].need = NFA_NEED_NONE;
	for (uint32_t pass = 0; changed; pass++) {
		if (pass == PASSES_MAX)
			return ERR_FULL;
		changed = 0;
		for (uint32_t i = 1; i < f->n; i++) {
			uint16_t need = need_of(f, &f->node[i]);
			changed |= need != f->node[i].need;
			f->node[i].need = need;
		}
	}
	return 0;
}

/* --- recursion without consuming a byte ---------------------------------- */

struct search {
	struct nfa *f;
	unsigned char *color;       /* of rules: 0 new, 1 in progress, 2 done */
	unsigned char *seen;        /* of nodes: visited */
	const unsigned char *empty; /* of nodes: nfa_find_empty */
	uint32_t *stack;
	uint32_t n;
};

static void push(struct search *s, uint32_t node)
{
	if (s->seen[node])
		return;
	s->seen[node] = 1;
	s->stack[s->n++] = node;
}

/* Visits everything that can be entered from here without consuming a byte. Returns 1 if a rule
 * enters itself. */
static int enters_itself(struct search *s, uint32_t begin)
{
	uint32_t base = s->n;
	push(s, begin);
	while (s->n > base) {
		const struct nfa_node *n = &s->f->node[s->stack[--s->n]];
		if (n->kind == NFA_SPLIT) {
			push(s, n->a);
			push(s, n->b);
		} else if (n->kind == NFA_CALL) {
			uint32_t rule = n->a, next = n->b;
			if (s->color[rule] == 1)
				return 1;
			if (s->color[rule] == 0) {
				s->color[rule] = 1;
				if (enters_itself(s, s->f->rule[rule]))
					return 1;
				s->color[rule] = 2;
			}
			if (s->empty[s->f->rule[rule]])
				push(s, next);
		}
	}
	return 0;
}

/* Returns 1, 0 or ERR_NOMEM. */
static int has_endless(struct nfa *f, const unsigned char *empty)
{
	struct search s = {.f = f,
	                   .color = mem_try_array(f->n_rules + 1, 1),
	                   .seen = mem_try_array(f->n, 1),
	                   .empty = empty,
	                   .stack = mem_try_array(f->n, sizeof *s.stack)};
	int bad = s.color && s.seen && s.stack ? 0 : ERR_NOMEM;
	if (!bad)
		bad = enters_itself(&s, f->start);
	for (uint32_t r = 0; r < f->n_rules && !bad; r++) {
		if (s.color[r])
			continue;
		s.color[r] = 1;
		bad = enters_itself(&s, f->rule[r]);
		s.color[r] = 2;
	}
	free(s.color);
	free(s.seen);
	free(s.stack);
	return bad;
}

/* --- classes of bytes ---------------------------------------------------- */

/* Each set splits the classes that it contains only in part. */
static void find_classes(struct nfa *f)
{
	unsigned n = 1;
	memset(f->class_of, 0, sizeof f->class_of);
	for (uint32_t i = 0; i < f->n_sets && n < 256; i++) {
		/* per class: members in the set; the new class of those, -1: none yet */
		int inside[256], moved[256];
		unsigned size[256] = {0};
		memset(inside, 0, sizeof inside);
		memset(moved, -1, sizeof moved);
		for (unsigned b = 0; b < 256; b++) {
			size[f->class_of[b]]++;
			inside[f->class_of[b]] += byte_has(&f->set[i], b);
		}
		for (unsigned b = 0; b < 256; b++) {
			unsigned c = f->class_of[b];
			if (!byte_has(&f->set[i], b) || (unsigned)inside[c] == size[c])
				continue;
			if (moved[c] < 0)
				moved[c] = (int)n++;
			f->class_of[b] = (unsigned char)moved[c];
		}
	}
	f->n_classes = n;
	for (unsigned b = 256; b-- > 0;)
		f->byte_of[f->class_of[b]] = (unsigned char)b;
}

/* Returns 1 if the network may enter a rule endlessly, else 0, ERR_NOMEM or ERR_FULL. */
static int check_and_simplify(struct nfa *f)
{
	unsigned char *empty = mem_try_array(f->n, 1);
	int r = empty ? nfa_find_empty(f, empty, PASSES_MAX) : ERR_NOMEM;
	if (r == 0)
		r = has_endless(f, empty);
	if (r == 0)
		r = nfa_drop_empty(f, empty, PASSES_MAX);
	free(empty);
	return r ? r : find_needs(f);
}

int nfa_finish(struct nfa *f, uint32_t depth_max, struct err *err)
{
	int endless = f->err.code ? 0 : check_and_simplify(f);
	if (f->err.code)
		return err_set(err, f->err.code, "%s", f->err.text);
	if (endless == ERR_NOMEM)
		return err_set(err, endless, "out of memory while checking the constraint");
	if (endless == ERR_FULL)
		return err_set(err, ERR_FULL,
		               "the constraint's parts refer to each other over more than %u levels",
		               PASSES_MAX);
	if (endless)
		return err_set(
			err, ERR_INVALID,
			"the constraint refers to itself with nothing in between: infinite recursion");
	uint16_t need = f->node[f->start].need;
	if (need == NFA_NEED_NONE)
		return err_set(err, ERR_INVALID, "no finite answer satisfies the constraint");
	if (need > depth_max)
		return err_set(err, ERR_FULL,
		               "the constraint's smallest answer nests %u levels deep, the limit is %u",
		               need, depth_max);
	find_classes(f);
	return 0;
}
