/* mask.c - computes which tokens may follow. Masks are cached per state, with the CLOCK algorithm,
 * or rather per alias of a state: counts beyond the longest token make no difference to the
 * mask. */
#include "automaton.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
#define SLOTS_FIRST 8u
#define STEPS_PER_TOKEN 1024u /* that has to be walked again */

/* Makes room for one more mask. Returns 0 if the limit is reached or memory is exhausted. */
static int slot_room(struct automaton *a)
{
	uint32_t masks = a->size_slots, want = 2 * masks < a->max_slots ? 2 * masks : a->max_slots;
	if (a->n_slots < a->size_slots || a->size_slots == a->max_slots)
		return a->n_slots < a->size_slots;
	want = want < SLOTS_FIRST ? SLOTS_FIRST : want;
	uint64_t *mask = quota_grow(&a->quota, a->mask, masks, want, a->words * sizeof *mask);
	if (!mask)
		return 0;
	a->mask = mask;
	struct mask_slot *slot = quota_grow(&a->quota, a->slot, masks, want, sizeof *slot);
	if (!slot) {
		quota_give(&a->quota, (want - masks) * a->words * sizeof *mask);
		return 0;
	}
	a->slot = slot;
	a->size_slots = want;
	return 1;
}

/* A free slot, or the next one that was not used recently. NONE with `full` set: out of memory. */
static uint32_t take_slot(struct automaton *a)
{
	if (slot_room(a))
		return a->n_slots++;
	if (!a->n_slots) {
		a->full = 1;
		return NONE;
	}
	for (;; a->hand = (a->hand + 1) % a->n_slots) {
		struct mask_slot *s = &a->slot[a->hand];
		if (s->used) {
			s->used = 0;
			continue;
		}
		a->state[s->state].mask = NONE;
		uint32_t slot = a->hand;
		a->hand = (a->hand + 1) % a->n_slots;
		return slot;
	}
}

/* Finds or computes the mask of a state. ERR_FULL: a table was full, or steps used up;
 * ERR_UNSUPPORTED: too expensive. *ret_as: the state whose mask it is. */
static int mask_of(struct automaton *a, uint32_t state, uint32_t *ret_slot, uint32_t *ret_as)
{
	uint32_t as = automaton_alias(a, state), slot;
	if (a->full)
		return ERR_FULL;
	*ret_as = as;
	if (a->state[as].mask == MASK_REFUSED)
		return ERR_UNSUPPORTED;
	if (a->state[as].mask == NONE) {
		slot = take_slot(a);
		if (slot == NONE)
			return ERR_FULL;
		a->slot[slot].state = as;
		a->slot[slot].used = 1;
		a->slot[slot].any = automaton_fill(a, as, a->mask + (size_t)slot * a->words);
		if (a->full) {
			a->slot[slot] = (struct mask_slot){.state = STATE_DEAD};
			a->n_slots -= slot + 1 == a->n_slots;
			return ERR_FULL;
		}
		a->state[as].mask = slot;
	}
	*ret_slot = a->state[as].mask;
	a->slot[*ret_slot].used = 1;
	return 0;
}

/* --- walks --------------------------------------------------------------- */

/* Renews the tables, if there are steps left for that. Returns whether it did. */
static int renewed(struct automaton *a, uint32_t *state)
{
	uint32_t s = a->spent ? STATE_DEAD : automaton_renew(a, *state);
	*state = a->spent ? *state : s;
	return !a->spent;
}

/* Why is there no next state for this byte? Returns ERR_UNSUPPORTED if it would be too large,
 * ERR_TIMEOUT, else 0. (The mask is that of an alias, which has fewer configs, so it may allow a
 * token that is too expensive here.) */
static int why_dead(struct automaton *a, uint32_t s, unsigned char byte)
{
	int over = automaton_is_over(a, s, byte);
	if (a->full && renewed(a, &s))
		over = automaton_is_over(a, s, byte);
	return a->spent ? ERR_TIMEOUT : over ? ERR_UNSUPPORTED : 0;
}

/* Advances *state by one token. Returns 1; 0 if the grammar does not allow it; ERR_UNSUPPORTED;
 * ERR_TIMEOUT: steps used up. May renew the tables. */
static int take_token(struct automaton *a, uint32_t *state, uint32_t id)
{
	const struct grammar_vocab *v = a->v;
	if (id >= v->n || v->at[id] == v->at[id + 1])
		return 0;
	uint32_t s = *state;
	for (uint32_t i = v->at[id]; i < v->at[id + 1]; i++) {
		uint32_t next = automaton_next(a, s, (unsigned char)v->bytes[i]);
		if (a->full && renewed(a, &s))
			next = automaton_next(a, s, (unsigned char)v->bytes[i]);
		automaton_charge(a, 1);
		if (a->spent)
			return ERR_TIMEOUT;
		if (next == STATE_DEAD)
			return why_dead(a, s, (unsigned char)v->bytes[i]);
		s = next;
	}
	*state = s;
	return 1;
}

static int catch_up(struct automaton *a, struct grammar_walk *w, const uint32_t *tokens, uint32_t n,
                    struct err *err)
{
	if (automaton_begin(a) < 0)
		return ERR_NOMEM;
	if (w->life != a->life || w->n > n)
		*w = (struct grammar_walk){a->life, a->start, 0};
	for (; w->n < n; w->n++) {
		uint32_t s = w->state;
		int r = take_token(a, &s, tokens[w->n]);
		if (r == ERR_TIMEOUT)
			return r;
		if (r < 0)
			return err_set(err, r,
			               "the constraint is too ambiguous: after token %u the answer has more "
			               "than %u interpretations",
			               w->n, CONFIGS_MAX);
		if (r == 0)
			return err_set(err, ERR_INVALID,
			               "token %u (id %u) of the answer violates its constraint", w->n,
			               tokens[w->n]);
		w->state = s;
		w->life = a->life;
	}
	return 0;
}

/* is_last: no other call will go on with it, so a mask for which the steps do not suffice is
 * refused, now and later. */
static int find_mask(struct automaton *a, struct grammar_walk *w, int is_last, uint32_t *ret_slot,
                     struct err *err)
{
	uint32_t as = STATE_DEAD;
	int r = mask_of(a, w->state, ret_slot, &as);
	if (r == ERR_FULL && renewed(a, &w->state)) {
		w->life = a->life;
		as = STATE_DEAD;
		r = mask_of(a, w->state, ret_slot, &as);
	}
	if (a->spent && is_last && as != STATE_DEAD)
		a->state[as].mask = MASK_REFUSED;
	if (a->spent && !is_last)
		return ERR_TIMEOUT;
	if (r == ERR_UNSUPPORTED || a->spent)
		return err_set(err, ERR_UNSUPPORTED,
		               "the grammar is too expensive: finding the tokens that may come next takes "
		               "more than %u steps",
		               AUTOMATON_STEPS_MAX);
	if (r == ERR_FULL)
		a->full = 0;
	return r == ERR_FULL ? err_set(err, ERR_FULL,
	                               "the constraint is too ambiguous: finding the next token takes "
	                               "more than %zu bytes",
	                               a->bytes_max)
	                     : r;
}

/* Locks the automaton for a call. Returns 0: another thread has it, and the caller does not
 * wait. */
static int call_begin(struct automaton *a, const uint64_t *steps)
{
	if (!steps)
		pthread_mutex_lock(&a->lock);
	else if (pthread_mutex_trylock(&a->lock) != 0)
		return 0;
	a->steps = steps ? *steps : UINT64_MAX;
	a->spent = a->lost = 0;
	a->quota.over = QUOTA_FITS;
	return 1;
}

static void call_end(struct automaton *a, uint64_t *steps)
{
	if (steps)
		*steps = a->steps;
	if (a->spent)
		a->full = 0;
	pthread_mutex_unlock(&a->lock);
}

int automaton_mask(struct automaton *a, struct grammar_walk *walk_, const uint32_t *tokens,
                   uint32_t n, uint64_t *steps, uint64_t *ret_mask, unsigned *ret_flags,
                   struct err *err)
{
	uint32_t slot = 0;
	if (!call_begin(a, steps))
		return ERR_TIMEOUT;
	if (!steps)
		a->steps = AUTOMATON_STEPS_MAX / 2 + (uint64_t)n * STEPS_PER_TOKEN;
	int r = catch_up(a, walk_, tokens, n, err);
	if (r == ERR_TIMEOUT && !steps)
		r = err_set(err, ERR_UNSUPPORTED,
		            "the grammar is too expensive: following the answer's %u tokens takes more "
		            "than %u steps, and %u for each token",
		            n, AUTOMATON_STEPS_MAX / 2, STEPS_PER_TOKEN);
	if (!steps)
		a->steps = AUTOMATON_STEPS_MAX;
	if (r == 0)
		r = find_mask(a, walk_, !steps, &slot, err);
	if (r == 0) {
		memcpy(ret_mask, a->mask + (size_t)slot * a->words, a->words * sizeof *ret_mask);
		*ret_flags = (automaton_ends(a, walk_->state) ? AUTOMATON_MAY_END : 0u) |
		             (a->slot[slot].any ? AUTOMATON_MAY_GO_ON : 0u);
		if (!*ret_flags)
			r = err_set(
				err, ERR_NOTFOUND,
				"after %u tokens of the constrained answer no token of the vocabulary is allowed",
				n);
	}
	if (a->lost || (r < 0 && a->quota.over)) {
		/* the result says nothing about the answer */
		r = err_set(err, ERR_NOMEM, "out of memory for the constraint, which has %zu bytes",
		            a->quota.used);
		walk_->life = 0;
	}
	call_end(a, steps);
	return r;
}

uint32_t automaton_leading(struct automaton *a, struct grammar_walk *walk_, const uint32_t *tokens,
                           uint32_t n, const uint32_t *more, uint32_t n_more, uint64_t *steps)
{
	uint32_t good = 0, state;
	struct err ignored;
	if (!call_begin(a, steps))
		return 0;
	if (catch_up(a, walk_, tokens, n, &ignored) == 0)
		for (state = walk_->state; good < n_more && take_token(a, &state, more[good]) > 0; good++)
			;
	if (a->lost) {
		walk_->life = 0;
		good = 0;
	}
	call_end(a, steps);
	return good;
}

int automaton_matches(struct automaton *a, const char *text, size_t len, size_t *ret_good)
{
	call_begin(a, NULL);
	uint32_t s = automaton_begin(a) < 0 ? STATE_DEAD : a->start;
	size_t i = 0;
	for (; i < len && s != STATE_DEAD; i++) {
		uint32_t next = automaton_next(a, s, (unsigned char)text[i]);
		if (a->full) {
			s = automaton_renew(a, s);
			next = automaton_next(a, s, (unsigned char)text[i]);
		}
		s = next;
	}
	int ends = s != STATE_DEAD && automaton_ends(a, s);
	if (ret_good)
		*ret_good = s == STATE_DEAD ? i - 1 : i;
	call_end(a, NULL);
	return ends;
}
