/* bpe.c - see bpe.h.
 *
 * Merges lie in an open-addressing hash table keyed by the pair of ids. The hash multiplies by an
 * odd random number drawn per table, so that no model file can provoke collisions.
 *
 * Short pieces are merged in an array by scanning for the lowest rank. Long pieces are merged in a
 * linked list with a heap of (rank, position). Heap entries are not removed when their pair
 * changes: looking the pair up again shows that an entry is stale. */
#include "text/bpe.h"
#include "util/check.h"
#include "util/mem.h"
#include "util/quota.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT_PIECE = 40 };

struct merge {
	uint64_t pair;     /* left << 32 | right */
	uint32_t rank, id; /* rank BPE_NONE: the slot is free */
};

struct bpe {
	struct merge *slots;
	size_t mask;
	uint64_t factor;
	unsigned shift;
	size_t room;
};

#define GROW_AHEAD_MAX 65536u

struct bpe_symbol {
	uint32_t id;        /* BPE_NONE: merged into its left neighbour */
	int32_t prev, next; /* -1: none */
};

struct bpe *bpe_new(size_t merges)
{
	CHECK(sodium_init() >= 0);
	struct bpe *b = mem_zalloc(sizeof *b);
	unsigned bits = 4;
	while ((size_t)1 << bits < merges * 2)
		bits++;
	b->mask = ((size_t)1 << bits) - 1;
	b->shift = 64 - bits;
	b->room = merges;
	randombytes_buf(&b->factor, sizeof b->factor);
	b->factor |= 1;
	b->slots = mem_array(b->mask + 1, sizeof *b->slots);
	for (size_t i = 0; i <= b->mask; i++)
		b->slots[i].rank = BPE_NONE;
	return b;
}

void bpe_destroy(struct bpe **bp)
{
	if (!*bp)
		return;
	free((*bp)->slots);
	free(*bp);
	*bp = NULL;
}

static struct merge *slot_of(const struct bpe *b, uint64_t pair)
{
	size_t i = ((pair ^ pair >> 29) * b->factor) >> b->shift;
	while (b->slots[i].rank != BPE_NONE && b->slots[i].pair != pair)
		i = (i + 1) & b->mask;
	return &b->slots[i];
}

static const struct merge *find(const struct bpe *b, uint32_t left, uint32_t right)
{
	return slot_of(b, (uint64_t)left << 32 | right);
}

void bpe_add_merge(struct bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
	uint64_t pair = (uint64_t)left << 32 | right;
	CHECK(b->room-- && rank != BPE_NONE);
	*slot_of(b, pair) = (struct merge){pair, rank, id};
}

void bpe_scratch_fini(struct bpe_scratch *s)
{
	quota_free(s->quota, s->symbols, s->symbols_size * sizeof *s->symbols);
	quota_free(s->quota, s->heap, s->heap_size * sizeof *s->heap);
	quota_free(s->quota, s->ids, s->ids_size * sizeof *s->ids);
	memset(s, 0, sizeof *s);
}

/* Returns an array of at least `want` elements; the old contents are lost. On allocation failure
 * returns NULL and sets *size to 0. */
static void *array_reserve(struct bpe_scratch *s, void *p, size_t *size, size_t want, size_t bytes)
{
	if (*size >= want)
		return p;
	quota_free(s->quota, p, *size * bytes);
	/* longer pieces are rare: allocate exactly */
	*size = want < 64 ? 64 : want < GROW_AHEAD_MAX ? want + want / 2 : want;
	p = quota_alloc(s->quota, *size * bytes);
	if (!p)
		*size = 0;
	return p;
}

/* --- short pieces -------------------------------------------------------- */

static size_t merge_short(const struct bpe *b, uint32_t *ids, size_t n)
{
	uint32_t rank[SHORT_PIECE], id[SHORT_PIECE]; /* of the pair at i and i + 1 */
	for (size_t i = 0; i + 1 < n; i++) {
		const struct merge *m = find(b, ids[i], ids[i + 1]);
		rank[i] = m->rank;
		id[i] = m->id;
	}
	while (n > 1) {
		size_t at = 0;
		for (size_t i = 1; i + 1 < n; i++)
			if (rank[i] < rank[at])
				at = i;
		if (rank[at] == BPE_NONE)
			break;
		ids[at] = id[at];
		n--;
		memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof *ids);
		memmove(rank + at, rank + at + 1, (n - at - 1) * sizeof *rank);
		memmove(id + at, id + at + 1, (n - at - 1) * sizeof *id);
		for (size_t i = at ? at - 1 : 0; i <= at && i + 1 < n; i++) {
			const struct merge *m = find(b, ids[i], ids[i + 1]);
			rank[i] = m->rank;
			id[i] = m->id;
		}
	}
	return n;
}

/* --- long pieces --------------------------------------------------------- */

static void heap_sink(uint64_t *heap, size_t n, size_t i)
{
	uint64_t v = heap[i];
	for (size_t child; (child = 2 * i + 1) < n; i = child) {
		if (child + 1 < n && heap[child + 1] < heap[child])
			child++;
		if (v <= heap[child])
			break;
		heap[i] = heap[child];
	}
	heap[i] = v;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t v)
{
	size_t i = (*n)++;
	for (; i && v < heap[(i - 1) / 2]; i = (i - 1) / 2)
		heap[i] = heap[(i - 1) / 2];
	heap[i] = v;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
	uint64_t top = heap[0];
	heap[0] = heap[--*n];
	if (*n)
		heap_sink(heap, *n, 0);
	return top;
}

/* The heap entry of the pair that starts at symbol i, or 0 if that pair cannot be merged. Valid
 * entries are never 0 because they hold rank + 1. */
static uint64_t entry_of(const struct bpe *b, const struct bpe_symbol *sym, int32_t i,
                         uint32_t *ret_id)
{
	if (i < 0 || sym[i].id == BPE_NONE || sym[i].next < 0)
		return 0;
	const struct merge *m = find(b, sym[i].id, sym[sym[i].next].id);
	*ret_id = m->id;
	return m->rank == BPE_NONE ? 0 : ((uint64_t)m->rank + 1) << 32 | (uint32_t)i;
}

static void join(struct bpe_symbol *sym, int32_t i, uint32_t id)
{
	int32_t gone = sym[i].next;
	sym[i].id = id;
	sym[i].next = sym[gone].next;
	if (sym[gone].next >= 0)
		sym[sym[gone].next].prev = i;
	sym[gone].id = BPE_NONE;
}

static size_t merge_long(const struct bpe *b, struct bpe_scratch *s, size_t n)
{
	uint32_t id;
	size_t queued = 0, out = 0;
	s->symbols = array_reserve(s, s->symbols, &s->symbols_size, n, sizeof *s->symbols);
	/* each merge removes one entry and adds at most two */
	s->heap = array_reserve(s, s->heap, &s->heap_size, 2 * n, sizeof *s->heap);
	if (!s->symbols || !s->heap)
		return BPE_NO_MEMORY;
	struct bpe_symbol *sym = s->symbols;
	for (size_t i = 0; i < n; i++)
		sym[i] = (struct bpe_symbol){s->ids[i], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1};
	for (size_t i = 0; i < n; i++)
		if ((s->heap[queued] = entry_of(b, sym, (int32_t)i, &id)))
			queued++;
	for (size_t i = queued / 2; i-- > 0;)
		heap_sink(s->heap, queued, i);
	while (queued) {
		uint64_t top = heap_pop(s->heap, &queued), e;
		int32_t i = (int32_t)(uint32_t)top;
		if (entry_of(b, sym, i, &id) != top)
			continue;
		join(sym, i, id);
		if ((e = entry_of(b, sym, i, &id)))
			heap_push(s->heap, &queued, e);
		if ((e = entry_of(b, sym, sym[i].prev, &id)))
			heap_push(s->heap, &queued, e);
	}
	for (int32_t i = n ? 0 : -1; i >= 0; i = sym[i].next)
		s->ids[out++] = sym[i].id;
	return out;
}

uint32_t *bpe_room(struct bpe_scratch *s, size_t n)
{
	CHECK(n <= INT32_MAX);
	return s->ids = array_reserve(s, s->ids, &s->ids_size, n, sizeof *s->ids);
}

size_t bpe_merge(const struct bpe *b, struct bpe_scratch *s, size_t n)
{
	return n <= SHORT_PIECE ? merge_short(b, s->ids, n) : merge_long(b, s, n);
}
