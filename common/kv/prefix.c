/* prefix.c - see prefix.h.
 *
 * A node stands for a hash. With a block it is an entry; without one it is only named as the parent
 * of entries (its own entry was dropped or never existed). An entry is `blocked` if its block is
 * busy or one of its child entries is blocked. A change of that is propagated up the chain until
 * nothing changes; chains are taken from the root and released from the tail, so that is nearly
 * always one step. Leaves that are not blocked are in a heap by last use. All nodes are allocated
 * at the start: two per block (an entry and its parent) are enough. */
#include "kv/prefix.h"
#include "kv/pool.h"
#include "util/check.h"
#include "util/map.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define NO_PLACE UINT32_MAX

struct prefix_node {
	struct kv_hash hash;
	/* of an entry; NULL: the root. In a free node: the next free node */
	struct prefix_node *parent;
	uint32_t block;    /* KV_BLOCK_NONE: not an entry */
	uint32_t children; /* entries that name this hash as their parent */
	uint32_t blocked_children;
	uint32_t place; /* in the heap, or NO_PLACE */
	int busy, blocked;
	uint64_t used; /* when it was last used: prefix_touch */
};

struct prefix {
	uint32_t blocks, evictable, heap_n;
	struct map *by_hash;              /* struct prefix_node, by the whole hash */
	struct map *by_64;                /* entries, by the hash's first 8 bytes */
	struct prefix_node *nodes, *free; /* (2 x blocks) */
	struct prefix_node **entry;       /* (blocks): NULL if the block has none */
	struct prefix_node **heap;        /* (blocks) */
};

struct prefix *prefix_new(uint32_t blocks)
{
	struct prefix *t = mem_zalloc(sizeof *t);
	t->blocks = blocks;
	t->by_hash = map_new(sizeof(struct kv_hash));
	t->by_64 = map_new(sizeof(uint64_t));
	t->nodes = mem_array((size_t)blocks * 2, sizeof *t->nodes);
	t->entry = mem_array(blocks, sizeof *t->entry);
	t->heap = mem_array(blocks, sizeof *t->heap);
	for (size_t i = 0; i < (size_t)blocks * 2; i++) {
		t->nodes[i].parent = t->free;
		t->free = &t->nodes[i];
	}
	return t;
}

void prefix_destroy(struct prefix **tp)
{
	struct prefix *t = *tp;
	if (!t)
		return;
	map_destroy(&t->by_hash);
	map_destroy(&t->by_64);
	free(t->nodes);
	free(t->entry);
	free(t->heap);
	free(t);
	*tp = NULL;
}

/* --- heap of evictable leaves, the oldest on top ------------------------- */

static void heap_set(struct prefix *t, uint32_t at, struct prefix_node *n)
{
	t->heap[at] = n;
	n->place = at;
}

static void heap_up(struct prefix *t, uint32_t at, struct prefix_node *n)
{
	for (uint32_t up; at && n->used < t->heap[up = (at - 1) / 2]->used; at = up)
		heap_set(t, at, t->heap[up]);
	heap_set(t, at, n);
}

static void heap_down(struct prefix *t, uint32_t at, struct prefix_node *n)
{
	for (size_t low; (low = (size_t)at * 2 + 1) < t->heap_n; at = (uint32_t)low) {
		if (low + 1 < t->heap_n && t->heap[low + 1]->used < t->heap[low]->used)
			low++;
		if (n->used <= t->heap[low]->used)
			break;
		heap_set(t, at, t->heap[low]);
	}
	heap_set(t, at, n);
}

static void heap_add(struct prefix *t, struct prefix_node *n)
{
	heap_up(t, t->heap_n++, n);
}

static void heap_remove(struct prefix *t, struct prefix_node *n)
{
	struct prefix_node *last = t->heap[--t->heap_n];
	uint32_t at = n->place;
	n->place = NO_PLACE;
	if (last == n)
		return;
	if (at && last->used < t->heap[(at - 1) / 2]->used)
		heap_up(t, at, last);
	else
		heap_down(t, at, last);
}

/* --- nodes --------------------------------------------------------------- */

static struct prefix_node *node_find(const struct prefix *t, const struct kv_hash *hash)
{
	return map_get(t->by_hash, hash);
}

static struct prefix_node *node_get(struct prefix *t, const struct kv_hash *hash)
{
	struct prefix_node *n = node_find(t, hash);
	if (n)
		return n;
	n = t->free;
	CHECK(n);
	t->free = n->parent;
	*n = (struct prefix_node){.hash = *hash, .block = KV_BLOCK_NONE, .place = NO_PLACE};
	map_put(t->by_hash, hash, n);
	return n;
}

/* Frees the node if it is neither an entry nor named as a parent. */
static void node_put(struct prefix *t, struct prefix_node *n)
{
	if (n->block != KV_BLOCK_NONE || n->children)
		return;
	map_remove(t->by_hash, &n->hash);
	n->parent = t->free;
	t->free = n;
}

/* The entry n has changed: updates its place in the heap, and the blocked counts of its
 * ancestors. */
static void node_update(struct prefix *t, struct prefix_node *n)
{
	for (; n && n->block != KV_BLOCK_NONE; n = n->parent) {
		int blocked = n->busy || n->blocked_children, in_heap = !blocked && !n->children;
		if (in_heap && n->place == NO_PLACE)
			heap_add(t, n);
		else if (!in_heap && n->place != NO_PLACE)
			heap_remove(t, n);
		if (blocked == n->blocked)
			return;
		n->blocked = blocked;
		t->evictable += blocked ? -1u : 1u;
		if (n->parent)
			n->parent->blocked_children += blocked ? 1u : -1u;
	}
}

static void node_link(struct prefix *t, struct prefix_node *n, struct prefix_node *parent)
{
	n->parent = parent;
	if (!parent)
		return;
	parent->children++;
	parent->blocked_children += (uint32_t)n->blocked;
	node_update(t, parent);
}

static void node_unlink(struct prefix *t, struct prefix_node *n)
{
	struct prefix_node *parent = n->parent;
	n->parent = NULL;
	if (!parent)
		return;
	parent->children--;
	parent->blocked_children -= (uint32_t)n->blocked;
	node_update(t, parent);
	node_put(t, parent);
}

/* --- entries ------------------------------------------------------------- */

uint32_t prefix_find(const struct prefix *t, const struct kv_hash *hash)
{
	const struct prefix_node *n = node_find(t, hash);
	return n ? n->block : KV_BLOCK_NONE;
}

uint32_t prefix_find_64(const struct prefix *t, uint64_t hash)
{
	unsigned char key[8];
	for (unsigned i = 0; i < sizeof key; i++, hash >>= 8)
		key[i] = (unsigned char)hash;
	const struct prefix_node *n = map_get(t->by_64, key);
	return n ? n->block : KV_BLOCK_NONE;
}

int prefix_add(struct prefix *t, uint32_t block, const struct kv_hash *hash,
               const struct kv_hash *parent)
{
	CHECK(!t->entry[block] && !(parent && memcmp(hash, parent, sizeof *hash) == 0));
	struct prefix_node *n = node_get(t, hash);
	if (n->block != KV_BLOCK_NONE)
		return 0;
	n->block = block;
	n->busy = n->blocked = 1;
	t->entry[block] = n;
	map_put(t->by_64, n->hash.b, n);
	node_link(t, n, parent ? node_get(t, parent) : NULL);
	return 1;
}

void prefix_drop(struct prefix *t, uint32_t block)
{
	struct prefix_node *n = t->entry[block];
	CHECK(n);
	if (n->place != NO_PLACE)
		heap_remove(t, n);
	t->evictable -= (uint32_t)!n->blocked;
	t->entry[block] = NULL;
	if (map_get(t->by_64, n->hash.b) == n)
		map_remove(t->by_64, n->hash.b);
	n->block = KV_BLOCK_NONE;
	node_unlink(t, n);
	n->blocked = n->busy = 0;
	node_put(t, n);
}

void prefix_set_busy(struct prefix *t, uint32_t block, int busy)
{
	struct prefix_node *n = t->entry[block];
	CHECK(n);
	n->busy = busy;
	node_update(t, n);
}

void prefix_touch(struct prefix *t, uint32_t block, uint64_t used)
{
	struct prefix_node *n = t->entry[block];
	CHECK(n && n->busy); /* so it is not in the heap */
	n->used = used;
}

const struct kv_hash *prefix_hash(const struct prefix *t, uint32_t block)
{
	return t->entry[block] ? &t->entry[block]->hash : NULL;
}

uint32_t prefix_evictable(const struct prefix *t)
{
	return t->evictable;
}

uint32_t prefix_oldest(const struct prefix *t)
{
	return t->heap_n ? t->heap[0]->block : KV_BLOCK_NONE;
}

/* --- verification -------------------------------------------------------- */

static void verify_heap(const struct prefix *t)
{
	for (uint32_t i = 0; i < t->heap_n; i++) {
		const struct prefix_node *n = t->heap[i];
		if (n->place != i || n->block == KV_BLOCK_NONE || t->entry[n->block] != n || n->blocked ||
		    n->children)
			PANIC("prefix index: heap place %u has block %u, which is not an evictable leaf", i,
			      n->block);
		if (i && n->used < t->heap[(i - 1) / 2]->used)
			PANIC("prefix index: heap place %u was used before its parent", i);
	}
}

static void verify_node(const struct prefix *t, const struct prefix_node *n, uint32_t children,
                        uint32_t blocked_children)
{
	if (n->children != children || n->blocked_children != blocked_children)
		PANIC("prefix index: block %u counts %u children (%u blocked), but has %u (%u)", n->block,
		      n->children, n->blocked_children, children, blocked_children);
	if (node_find(t, &n->hash) != n)
		PANIC("prefix index: the hash of block %u finds another node", n->block);
	if (n->block == KV_BLOCK_NONE ? !n->children : n->blocked != (n->busy || blocked_children))
		PANIC("prefix index: block %u is blocked %d, busy %d", n->block, n->blocked, n->busy);
	if (n->block != KV_BLOCK_NONE && (n->place != NO_PLACE) != (!n->blocked && !n->children))
		PANIC("prefix index: block %u should not be in the heap, or is missing from it", n->block);
}

void prefix_verify(const struct prefix *t, const unsigned char *busy)
{
	uint32_t *kids = mem_array((size_t)t->blocks * 4, sizeof *kids),
			 *blocked = kids + (size_t)t->blocks * 2, evictable = 0;
	for (uint32_t b = 0; b < t->blocks; b++) {
		const struct prefix_node *n = t->entry[b];
		if (!n)
			continue;
		if (n->block != b || n->busy != busy[b])
			PANIC("prefix index: the entry of block %u has block %u, busy %d; the pool has busy %d",
			      b, n->block, n->busy, busy[b]);
		evictable += (uint32_t)!n->blocked;
		if (n->parent) {
			kids[n->parent - t->nodes]++;
			blocked[n->parent - t->nodes] += (uint32_t)n->blocked;
		}
	}
	size_t it = 0;
	void *val;
	while (map_next(t->by_hash, &it, NULL, &val))
		verify_node(t, val, kids[(struct prefix_node *)val - t->nodes],
		            blocked[(struct prefix_node *)val - t->nodes]);
	if (evictable != t->evictable)
		PANIC("prefix index: %u entries are evictable, the count is %u", evictable, t->evictable);
	verify_heap(t);
	free(kids);
}
