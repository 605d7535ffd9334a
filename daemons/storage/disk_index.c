/* disk_index.c - see disk_index.h.
 *
 * Invariants: a slot is in exactly one place: free (beyond `cut`, or in its segment's list), with
 * its owner (TAKEN), in the hash table and LRU list (HELD), or dropped (listed unless it has
 * readers). A class's `slots` and `free` count living segments only; its LRU list also has the
 * blocks of dying ones. The LRU list is sorted by `seq`. The `considered` blocks are the
 * n_considered oldest. A call in the wrong state is a bug. */
#include "disk_index.h"

#include "util/check.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define BUCKETS_MIN 1024u

void disk_index_init(struct disk_index *x)
{
	memset(x, 0, sizeof *x);
	x->dropped = DISK_NONE;
	x->n_buckets = x->bucket_room = BUCKETS_MIN;
	x->bucket = mem_array(x->bucket_room, sizeof *x->bucket);
	memset(x->bucket, 0xff, x->bucket_room * sizeof *x->bucket);
	randombytes_buf(&x->hash_seed, sizeof x->hash_seed);
}

void disk_index_fini(struct disk_index *x)
{
	for (uint32_t i = 0; i < x->n_segments; i++)
		free(x->segment[i]);
	free(x->bucket);
}

/* --- the hash table --- */

static uint32_t *bucket_of(const struct disk_index *x, const struct tier_key *key)
{
	uint64_t h = XXH3_64bits_withSeed(key->b, sizeof key->b, x->hash_seed);
	/* buckets below n_buckets - round are already split */
	uint32_t round = 1u << (31 - __builtin_clz(x->n_buckets));
	uint32_t at = (uint32_t)h & (2 * round - 1);
	return &x->bucket[at < x->n_buckets ? at : at - round];
}

static uint32_t *link_of(const struct disk_index *x, uint32_t id)
{
	uint32_t *at = bucket_of(x, &disk_slot_at(x, id)->key);
	while (*at != id)
		at = &disk_slot_at(x, *at)->chain;
	return at;
}

/* Adds a bucket and moves to it the matching part of the chain being split. */
static void buckets_grow(struct disk_index *x)
{
	uint32_t round = 1u << (31 - __builtin_clz(x->n_buckets)), old = x->n_buckets - round;
	if (x->n_buckets == x->bucket_room) {
		x->bucket_room *= 2;
		x->bucket = mem_grow(x->bucket, x->bucket_room, sizeof *x->bucket);
	}
	uint32_t id = x->bucket[old];
	x->bucket[old] = x->bucket[x->n_buckets] = DISK_NONE;
	x->n_buckets++;
	while (id != DISK_NONE) {
		struct disk_slot *s = disk_slot_at(x, id);
		uint32_t next = s->chain, *to = bucket_of(x, &s->key);
		s->chain = *to;
		*to = id;
		id = next;
	}
}

uint32_t disk_index_find(const struct disk_index *x, const struct tier_key *key)
{
	uint32_t id = *bucket_of(x, key);
	while (id != DISK_NONE && memcmp(disk_slot_at(x, id)->key.b, key->b, sizeof key->b) != 0)
		id = disk_slot_at(x, id)->chain;
	return id;
}

/* --- segments and classes --- */

struct disk_segment *disk_segment_new(uint32_t number, uint32_t slot_bytes, uint32_t slots)
{
	/* memory of slots that are never used is never touched */
	struct disk_segment *g = mem_zalloc(sizeof *g + (size_t)slots * sizeof g->slot[0]);
	g->number = number;
	g->slot_bytes = slot_bytes;
	g->slots = slots;
	g->free = DISK_NONE;
	g->fd = g->heads_fd = -1;
	return g;
}

struct disk_class *disk_index_class(struct disk_index *x, uint32_t slot_bytes)
{
	struct disk_class *unused = NULL;
	for (unsigned i = 0; i < DISK_CLASSES_MAX; i++) {
		struct disk_class *c = &x->class[i];
		if (c->slot_bytes == slot_bytes)
			return c;
		if (!unused && c->slots == 0 && c->held == 0 && c->busy == 0 && !c->wants_segment)
			unused = c;
	}
	if (unused)
		*unused = (struct disk_class){.slot_bytes = slot_bytes,
		                              .oldest = DISK_NONE,
		                              .newest = DISK_NONE,
		                              .next_candidate = DISK_NONE};
	return unused;
}

int disk_index_number(const struct disk_index *x)
{
	for (uint32_t i = 0; i < DISK_SEGMENTS_MAX; i++)
		if (!x->segment[i])
			return (int)i;
	return -1;
}

void disk_index_add_segment(struct disk_index *x, struct disk_segment *g)
{
	struct disk_class *c = disk_index_class(x, g->slot_bytes);
	CHECK(c && !x->segment[g->number] && g->taken == 0 && !g->dying);
	g->class = c;
	x->segment[g->number] = g;
	x->n_segments = x->n_segments > g->number ? x->n_segments : g->number + 1;
	x->file_bytes += g->file_bytes;
	x->n_classes += c->slots == 0;
	c->slots += g->slots;
	c->free += g->slots;
}

struct disk_segment *disk_index_coldest(const struct disk_index *x, uint32_t other_than)
{
	struct disk_segment *best = NULL;
	for (uint32_t i = 0; i < x->n_segments; i++) {
		struct disk_segment *g = x->segment[i];
		if (g && !g->dying && g->slot_bytes != other_than &&
		    (!best || g->last_used < best->last_used))
			best = g;
	}
	return best;
}

void disk_index_kill(struct disk_index *x, struct disk_segment *g)
{
	struct disk_class *c = g->class;
	CHECK(!g->dying && x->segment[g->number] == g);
	g->dying = 1;
	c->slots -= g->slots;
	c->free -= g->slots - g->taken;
	x->n_classes -= c->slots == 0;
	x->n_dying++;
	x->dying_bytes += g->file_bytes;
}

void disk_index_remove_segment(struct disk_index *x, struct disk_segment *g)
{
	CHECK(g->dying && g->taken == 0 && g->users == 0);
	x->segment[g->number] = NULL;
	while (x->n_segments && !x->segment[x->n_segments - 1])
		x->n_segments--;
	x->file_bytes -= g->file_bytes;
	x->dying_bytes -= g->file_bytes;
	x->n_dying--;
}

/* --- the LRU list --- */

static void order_add(struct disk_index *x, struct disk_class *c, uint32_t id)
{
	struct disk_slot *s = disk_slot_at(x, id);
	s->considered = 0;
	s->older = c->newest;
	s->newer = DISK_NONE;
	if (c->newest != DISK_NONE)
		disk_slot_at(x, c->newest)->newer = id;
	else
		c->oldest = id;
	c->newest = id;
	if (c->next_candidate == DISK_NONE)
		c->next_candidate = id;
	if (disk_segment_of(x, id)->last_used < s->seq)
		disk_segment_of(x, id)->last_used = s->seq;
}

static void order_remove(struct disk_index *x, struct disk_class *c, uint32_t id)
{
	struct disk_slot *s = disk_slot_at(x, id);
	c->n_considered -= s->considered;
	if (c->next_candidate == id)
		c->next_candidate = s->newer;
	*(s->older == DISK_NONE ? &c->oldest : &disk_slot_at(x, s->older)->newer) = s->newer;
	*(s->newer == DISK_NONE ? &c->newest : &disk_slot_at(x, s->newer)->older) = s->older;
}

void disk_index_touch(struct disk_index *x, uint32_t id, uint64_t seq)
{
	struct disk_class *c = disk_segment_of(x, id)->class;
	struct disk_slot *s = disk_slot_at(x, id);
	order_remove(x, c, id);
	s->seq = seq;
	s->used = 1;
	order_add(x, c, id);
}

uint32_t disk_index_next_candidate(struct disk_index *x, struct disk_class *c, uint32_t share)
{
	uint32_t id = c->next_candidate;
	if (id == DISK_NONE || c->n_considered >= share)
		return DISK_NONE;
	disk_slot_at(x, id)->considered = 1;
	c->n_considered++;
	c->next_candidate = disk_slot_at(x, id)->newer;
	return id;
}

void disk_index_reset_candidates(struct disk_index *x)
{
	for (unsigned i = 0; i < DISK_CLASSES_MAX; i++) {
		struct disk_class *c = &x->class[i];
		for (uint32_t id = c->oldest; c->n_considered;
		     id = disk_slot_at(x, id)->newer, c->n_considered--)
			disk_slot_at(x, id)->considered = 0;
		c->next_candidate = c->slot_bytes ? c->oldest : DISK_NONE;
	}
}

/* --- slots --- */

static void slot_taken(struct disk_segment *g, uint32_t slot)
{
	g->slot[slot] = (struct disk_slot){.state = DISK_TAKEN};
	g->taken++;
	g->class->free--;
	g->class->busy++;
	g->class->fill = g->number;
}

static struct disk_segment *segment_with_room(struct disk_index *x, const struct disk_class *c)
{
	struct disk_segment *g = x->segment[c->fill];
	for (uint32_t i = 0; !g || g->dying || g->slot_bytes != c->slot_bytes || g->taken == g->slots;
	     i++) {
		CHECK(i < x->n_segments); /* exists because c->free > 0 */
		g = x->segment[i];
	}
	return g;
}

uint32_t disk_index_take(struct disk_index *x, struct disk_class *c)
{
	if (c->free == 0)
		return DISK_NONE;
	struct disk_segment *g = segment_with_room(x, c);
	uint32_t slot = g->free;
	if (slot != DISK_NONE)
		g->free = g->slot[slot].newer;
	else
		slot = g->cut++;
	slot_taken(g, slot);
	return disk_slot_id(g, slot);
}

void disk_segment_take_at(struct disk_segment *g, uint32_t slot)
{
	CHECK(slot >= g->cut && slot < g->slots);
	for (; g->cut < slot; g->cut++) {
		g->slot[g->cut].newer = g->free;
		g->free = g->cut;
	}
	g->cut++;
	slot_taken(g, slot);
}

void disk_index_insert(struct disk_index *x, uint32_t id)
{
	struct disk_slot *s = disk_slot_at(x, id);
	struct disk_class *c = disk_segment_of(x, id)->class;
	CHECK(s->state == DISK_TAKEN && s->readers == 0);
	s->state = DISK_HELD;
	c->busy--;
	c->held++;
	if (++x->held > x->n_buckets)
		buckets_grow(x);
	uint32_t *at = bucket_of(x, &s->key);
	s->chain = *at;
	*at = id;
	order_add(x, c, id);
}

/* Removes a HELD slot from hash table and LRU list. */
static void slot_forget(struct disk_index *x, uint32_t id, enum disk_slot_state state)
{
	struct disk_slot *s = disk_slot_at(x, id);
	struct disk_class *c = disk_segment_of(x, id)->class;
	CHECK(s->state == DISK_HELD);
	*link_of(x, id) = s->chain;
	order_remove(x, c, id);
	x->held--;
	c->held--;
	c->busy++;
	s->state = state;
}

void disk_index_evict(struct disk_index *x, uint32_t id)
{
	CHECK(disk_slot_at(x, id)->readers == 0);
	slot_forget(x, id, DISK_TAKEN);
	*disk_slot_at(x, id) = (struct disk_slot){.state = DISK_TAKEN};
}

void disk_index_dropped_back(struct disk_index *x, uint32_t id)
{
	disk_slot_at(x, id)->newer = x->dropped;
	x->dropped = id;
}

static void dropped_add(struct disk_index *x, uint32_t id)
{
	disk_index_dropped_back(x, id);
	disk_segment_of(x, id)->class->clearing++;
}

void disk_index_drop(struct disk_index *x, uint32_t id)
{
	struct disk_slot *s = disk_slot_at(x, id);
	if (s->state == DISK_HELD)
		slot_forget(x, id, DISK_DROPPED);
	CHECK(s->state == DISK_TAKEN || s->state == DISK_DROPPED);
	s->state = DISK_DROPPED;
	if (s->readers == 0)
		dropped_add(x, id);
}

void disk_index_unread(struct disk_index *x, uint32_t id)
{
	struct disk_slot *s = disk_slot_at(x, id);
	CHECK(s->readers > 0 && (s->state == DISK_HELD || s->state == DISK_DROPPED));
	if (--s->readers == 0 && s->state == DISK_DROPPED)
		dropped_add(x, id);
}

uint32_t disk_index_next_dropped(struct disk_index *x)
{
	uint32_t id = x->dropped;
	if (id != DISK_NONE)
		x->dropped = disk_slot_at(x, id)->newer;
	return id;
}

void disk_index_free_dying(struct disk_index *x)
{
	uint32_t id = x->dropped, next;
	x->dropped = DISK_NONE;
	for (; id != DISK_NONE; id = next) {
		next = disk_slot_at(x, id)->newer;
		if (disk_segment_of(x, id)->dying)
			disk_index_free(x, id);
		else
			disk_index_dropped_back(x, id);
	}
}

void disk_index_free(struct disk_index *x, uint32_t id)
{
	struct disk_segment *g = disk_segment_of(x, id);
	struct disk_slot *s = disk_slot_at(x, id);
	struct disk_class *c = g->class;
	CHECK((s->state == DISK_TAKEN || s->state == DISK_DROPPED) && s->readers == 0);
	c->clearing -= s->state == DISK_DROPPED;
	s->state = DISK_FREE;
	s->newer = g->free;
	g->free = id & (DISK_SLOTS_MAX - 1);
	g->taken--;
	c->busy--;
	c->free += !g->dying;
}
