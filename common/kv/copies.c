/* copies.c - see copies.h.
 *
 * Two kinds of doubly linked list run through the blocks. `rest` has the cached blocks by last use;
 * its first `in_edge`, up to and including `edge`, are "the oldest" of copies.h. `fresh` has the
 * FRESH blocks by last use, `due` the DUE ones in the order of writing; a block is in at most one
 * of these two, so they share their links. The next to be written is the first DUE block, then a
 * FRESH one among the oldest. */
#include "kv/copies.h"
#include "kv/pool.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define NONE KV_BLOCK_NONE

struct copies_link {
	uint32_t prev, next;
};

struct copies_list {
	uint32_t first, last, n;
	struct copies_link *link; /* (blocks) */
};

struct copies_entry {
	unsigned char state, tier, rests; /* rests: 1 while the block is cached, so in `rest` */
	uint32_t uses;                    /* matches since the entry was made */
	uint64_t rested; /* tick at which it last became cached: the order of `rest` and of FRESH */
};

struct copies {
	uint32_t blocks, low, after, n_free; /* low, after: copies_policy */
	struct copies_entry *entry;          /* (blocks) */
	struct copies_list rest, fresh, due;
	struct copies_link *rest_link, *copy_link; /* copy_link is shared by fresh and due */
	uint32_t edge, in_edge;
	uint64_t ticks;
	uint32_t count[COPY_STATES];   /* blocks by state */
	uint32_t cached[COPIES_TIERS]; /* cached blocks by tier */
};

/* --- lists --- */

static void copies_list_init(struct copies_list *l, struct copies_link *link)
{
	l->first = l->last = NONE;
	l->n = 0;
	l->link = link;
}

static void copies_list_add(struct copies_list *l, uint32_t b, int first)
{
	struct copies_link *k = l->link;
	k[b].prev = first ? NONE : l->last;
	k[b].next = first ? l->first : NONE;
	*(k[b].prev == NONE ? &l->first : &k[k[b].prev].next) = b;
	*(k[b].next == NONE ? &l->last : &k[k[b].next].prev) = b;
	l->n++;
}

static void copies_list_remove(struct copies_list *l, uint32_t b)
{
	struct copies_link *k = l->link;
	*(k[b].prev == NONE ? &l->first : &k[k[b].prev].next) = k[b].next;
	*(k[b].next == NONE ? &l->last : &k[k[b].next].prev) = k[b].prev;
	l->n--;
}

/* --- states --- */

static struct copies_entry *at(const struct copies *c, uint32_t b)
{
	CHECK(b < c->blocks);
	return &c->entry[b];
}

static void enter(struct copies *c, uint32_t b, enum copy_state s, unsigned tier, int first)
{
	struct copies_entry *e = at(c, b);
	if (e->state == COPY_FRESH || e->state == COPY_DUE)
		copies_list_remove(e->state == COPY_FRESH ? &c->fresh : &c->due, b);
	c->cached[e->tier] -= e->rests;
	c->count[e->state]--;
	e->state = (unsigned char)s;
	e->tier = (unsigned char)tier;
	c->count[s]++;
	c->cached[tier] += e->rests;
	if (s == COPY_FRESH || s == COPY_DUE)
		copies_list_add(s == COPY_FRESH ? &c->fresh : &c->due, b, first);
}

/* --- the edge --- */

static int before_edge(const struct copies *c, uint32_t b)
{
	return c->in_edge && c->entry[b].rested <= c->entry[c->edge].rested;
}

static void edge_move(struct copies *c)
{
	uint32_t want = c->low > c->n_free ? c->low - c->n_free : 0;
	while (c->in_edge > want || c->in_edge > c->rest.n) {
		c->edge = c->rest_link[c->edge].prev;
		c->in_edge--;
	}
	while (c->in_edge < want && c->in_edge < c->rest.n) {
		c->edge = c->in_edge ? c->rest_link[c->edge].next : c->rest.first;
		c->in_edge++;
	}
}

void copies_free_blocks(struct copies *c, uint32_t n_free)
{
	c->n_free = n_free;
	edge_move(c);
}

void copies_rest(struct copies *c, uint32_t b)
{
	struct copies_entry *e = at(c, b);
	CHECK(!e->rests);
	e->rests = 1;
	e->rested = ++c->ticks;
	c->cached[e->tier]++;
	copies_list_add(&c->rest, b, 0);
	if (e->state == COPY_NONE)
		enter(c, b, COPY_FRESH, 0, 0);
}

void copies_wake(struct copies *c, uint32_t b)
{
	struct copies_entry *e = at(c, b);
	CHECK(e->rests);
	if (before_edge(c, b)) {
		if (b == c->edge)
			c->edge = c->rest_link[b].prev;
		c->in_edge--;
	}
	copies_list_remove(&c->rest, b);
	c->cached[e->tier]--;
	e->rests = 0;
	if (e->state == COPY_FRESH)
		enter(c, b, COPY_NONE, 0, 0);
}

/* --- entries --- */

void copies_policy(struct copies *c, uint32_t low, uint32_t after)
{
	c->low = low;
	c->after = after;
	edge_move(c);
}

static void use_counts(struct copies *c, uint32_t b)
{
	struct copies_entry *e = at(c, b);
	if (e->uses >= c->after && c->after != COPIES_NEVER &&
	    (e->state == COPY_NONE || e->state == COPY_FRESH))
		enter(c, b, COPY_DUE, 0, 0);
}

void copies_add(struct copies *c, uint32_t b)
{
	struct copies_entry *e = at(c, b);
	CHECK(e->state == COPY_NONE && !e->rests);
	e->uses = 0;
	use_counts(c, b);
}

void copies_use(struct copies *c, uint32_t b)
{
	struct copies_entry *e = at(c, b);
	e->uses += e->uses < COPIES_NEVER;
	use_counts(c, b);
}

enum copy_state copies_drop(struct copies *c, uint32_t b)
{
	enum copy_state was = at(c, b)->state;
	copies_wake(c, b);
	if (c->entry[b].state != COPY_NONE)
		enter(c, b, COPY_NONE, 0, 0);
	return was;
}

int copies_want(struct copies *c, uint32_t b, int first)
{
	const struct copies_entry *e = at(c, b);
	if (e->state != COPY_NONE && e->state != COPY_FRESH)
		return 0;
	enter(c, b, COPY_DUE, 0, first);
	return 1;
}

int copies_pending(const struct copies *c)
{
	return c->due.n || (c->fresh.n && before_edge(c, c->fresh.first));
}

uint32_t copies_next(struct copies *c)
{
	if (!copies_pending(c))
		return NONE;
	uint32_t b = c->due.n ? c->due.first : c->fresh.first;
	enter(c, b, COPY_WRITING, 0, 0);
	return b;
}

int copies_begin(struct copies *c, uint32_t b)
{
	if (at(c, b)->state == COPY_WRITING || c->entry[b].state == COPY_STORED)
		return 0;
	enter(c, b, COPY_WRITING, 0, 0);
	return 1;
}

void copies_set(struct copies *c, uint32_t b, unsigned tier)
{
	CHECK(tier < COPIES_TIERS);
	if (tier || at(c, b)->state == COPY_WRITING)
		enter(c, b, tier ? COPY_STORED : COPY_NONE, tier, 0);
}

void copies_note(struct copies *c, uint32_t b, unsigned tier, int stored)
{
	const struct copies_entry *e = at(c, b);
	CHECK(tier && tier < COPIES_TIERS);
	if (stored && e->state != COPY_WRITING && tier > e->tier)
		enter(c, b, COPY_STORED, tier, 0);
	else if (!stored && e->state == COPY_STORED && e->tier == tier)
		enter(c, b, COPY_NONE, 0, 0);
}

static int is_in(const struct copies *c, uint32_t b, unsigned tier)
{
	return c->entry[b].state == COPY_STORED && c->entry[b].tier == tier;
}

/* Also retries blocks whose write failed: they become FRESH. To keep FRESH in order of last use,
 * all FRESH blocks are removed and added again. */
void copies_forget(struct copies *c, unsigned tier)
{
	CHECK(tier && tier < COPIES_TIERS);
	for (uint32_t b = c->rest.first; b != NONE; b = c->rest_link[b].next)
		if (is_in(c, b, tier))
			enter(c, b, COPY_DUE, 0, 0);
		else if (c->entry[b].state == COPY_NONE || c->entry[b].state == COPY_FRESH)
			enter(c, b, COPY_FRESH, 0, 0);
	for (uint32_t b = 0; b < c->blocks; b++)
		if (is_in(c, b, tier))
			enter(c, b, COPY_DUE, 0, 0);
}

uint32_t copies_prepare(struct copies *c, uint32_t n)
{
	uint32_t without = 0, want = 0, b = c->rest.first;
	for (; n > 0 && b != NONE; n--, b = c->rest_link[b].next) {
		without += c->entry[b].state != COPY_STORED;
		want = b;
	}
	/* from the youngest to the oldest, each put first: the oldest ends up in front */
	for (uint32_t left = without; left > 0; want = c->rest_link[want].prev)
		if (c->entry[want].state != COPY_STORED) {
			left--;
			copies_want(c, want, 1);
		}
	return without;
}

/* --- queries --- */

enum copy_state copies_state(const struct copies *c, uint32_t b, unsigned *ret_tier)
{
	const struct copies_entry *e = at(c, b);
	if (ret_tier)
		*ret_tier = e->tier;
	return e->state;
}

uint32_t copies_count(const struct copies *c, enum copy_state s)
{
	return c->count[s];
}

uint32_t copies_cached(const struct copies *c, unsigned tier)
{
	return tier && tier < COPIES_TIERS ? c->cached[tier] : 0;
}

struct copies *copies_new(uint32_t blocks)
{
	struct copies *c = mem_zalloc(sizeof *c);
	c->blocks = blocks;
	c->after = COPIES_NEVER;
	c->entry = mem_array(blocks, sizeof *c->entry);
	c->rest_link = mem_array(blocks, sizeof *c->rest_link);
	c->copy_link = mem_array(blocks, sizeof *c->copy_link);
	copies_list_init(&c->rest, c->rest_link);
	copies_list_init(&c->fresh, c->copy_link);
	copies_list_init(&c->due, c->copy_link);
	c->edge = NONE;
	c->n_free = c->count[COPY_NONE] = blocks;
	return c;
}

void copies_destroy(struct copies **cp)
{
	struct copies *c = *cp;
	if (!c)
		return;
	free(c->entry);
	free(c->rest_link);
	free(c->copy_link);
	free(c);
	*cp = NULL;
}

/* --- verification --- */

static void verify_list(const struct copies *c, const struct copies_list *l, const char *name,
                        int ordered)
{
	uint32_t n = 0, last = NONE;
	for (uint32_t b = l->first; b != NONE; last = b, b = l->link[b].next, n++) {
		if (n >= l->n || l->link[b].prev != last)
			PANIC("copies: the list of %s is broken at block %u", name, b);
		if (ordered && last != NONE && c->entry[b].rested <= c->entry[last].rested)
			PANIC("copies: block %u follows %u in list %s, but was last used before it", b, last,
			      name);
	}
	if (n != l->n || last != l->last)
		PANIC("copies: list %s counts %u blocks, but has %u", name, l->n, n);
}

static void verify_edge(const struct copies *c, uint32_t n_free)
{
	uint32_t want = c->low > n_free ? c->low - n_free : 0, b = c->rest.first;
	if (want > c->rest.n)
		want = c->rest.n;
	for (uint32_t i = 1; i < want; i++)
		b = c->rest_link[b].next;
	if (c->in_edge != want || (want && c->edge != b))
		PANIC("copies: the oldest blocks are %u up to block %u, expected %u up to %u", c->in_edge,
		      c->edge, want, b);
}

void copies_verify(const struct copies *c, const unsigned char *cached,
                   const unsigned char *indexed, uint32_t n_free)
{
	uint32_t count[COPY_STATES] = {0}, by_tier[COPIES_TIERS] = {0}, rests = 0;
	for (uint32_t b = 0; b < c->blocks; b++) {
		const struct copies_entry *e = &c->entry[b];
		if (e->rests != cached[b] || (e->state != COPY_NONE && !indexed[b]) ||
		    (e->state == COPY_FRESH && !e->rests) || (e->state == COPY_STORED) != (e->tier != 0))
			PANIC("copies: block %u has state %d, tier %d, rests %d; cached %d, indexed %d", b,
			      e->state, e->tier, e->rests, cached[b], indexed[b]);
		count[e->state]++;
		rests += e->rests;
		by_tier[e->tier] += e->rests;
	}
	if (memcmp(count, c->count, sizeof count) != 0 ||
	    memcmp(by_tier, c->cached, sizeof by_tier) != 0 || rests != c->rest.n ||
	    count[COPY_FRESH] != c->fresh.n || count[COPY_DUE] != c->due.n)
		PANIC("copies: counts differ from the blocks: %u fresh, %u due, %u writing, %u stored, %u "
		      "cached",
		      count[COPY_FRESH], count[COPY_DUE], count[COPY_WRITING], count[COPY_STORED], rests);
	verify_list(c, &c->rest, "cached", 1);
	verify_list(c, &c->fresh, "fresh", 1);
	verify_list(c, &c->due, "due", 0);
	verify_edge(c, n_free);
}
