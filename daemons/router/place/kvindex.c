/* kvindex.c - see kvindex.h: open addressing with linear probing, at most three quarters full; an
 * entry without a tier is empty.
 *
 * Hashes come from workers. Slots are chosen by multiplication with an odd number that is drawn for
 * each index, so that a worker, which does not know the number, cannot fill one run of slots.
 * Expectations are in a small table of buckets beside the set: in a full bucket the one that ends
 * first is replaced, which makes one prediction worse and nothing else. */
#include "kvindex.h"
#include "util/err.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define SIZE_MIN_LOG 8u
#define EXPECTED_LOG 14u
#define EXPECTED_WAYS 4u
#define DEVICE 1u /* bit of tier 0 */
#define MEMORY 2u

struct index_entry {
	uint64_t hash;
	uint8_t tiers; /* bits; 0: empty */
};

struct expected {
	uint64_t hash, until_us;
};

struct kv_index {
	struct index_entry *slots;
	unsigned log; /* 1 << log slots */
	size_t used;  /* slots with an entry */
	size_t below; /* of these: in a tier below the device */
	size_t count[KV_TIERS], max;
	uint64_t dropped[KV_TIERS], odd;
	struct expected *expected; /* (1 << EXPECTED_LOG); NULL before the first */
};

static size_t size_of(const struct kv_index *ix)
{
	return (size_t)1 << ix->log;
}

static size_t home_of(const struct kv_index *ix, uint64_t hash, unsigned log)
{
	return (size_t)(hash * ix->odd >> (64 - log));
}

struct kv_index *kv_index_new(size_t entries_max)
{
	struct kv_index *ix = mem_zalloc(sizeof *ix);
	randombytes_buf(&ix->odd, sizeof ix->odd);
	ix->odd |= 1;
	ix->max = entries_max;
	ix->log = SIZE_MIN_LOG;
	ix->slots = mem_array(size_of(ix), sizeof *ix->slots);
	return ix;
}

void kv_index_destroy(struct kv_index **ixp)
{
	struct kv_index *ix = *ixp;
	if (!ix)
		return;
	free(ix->slots);
	free(ix->expected);
	free(ix);
	*ixp = NULL;
}

void kv_index_set_max(struct kv_index *ix, size_t entries_max)
{
	ix->max = entries_max;
}

/* The slot with the hash, or the empty slot where it would go. */
static struct index_entry *slot_of(const struct kv_index *ix, uint64_t hash)
{
	size_t mask = size_of(ix) - 1;
	for (size_t i = home_of(ix, hash, ix->log);; i = (i + 1) & mask)
		if (!ix->slots[i].tiers || ix->slots[i].hash == hash)
			return &ix->slots[i];
}

/* Moves entries into a new table of 1 << log slots and clears the tiers `without`; an entry that is
 * left without a tier is removed. */
static void rebuild(struct kv_index *ix, unsigned log, unsigned without)
{
	struct index_entry *old = ix->slots;
	size_t n = size_of(ix);
	ix->log = log;
	ix->slots = mem_array(size_of(ix), sizeof *ix->slots);
	ix->used = ix->below = 0;
	for (size_t i = 0; i < n; i++) {
		uint8_t tiers = old[i].tiers & (uint8_t)~without;
		if (!tiers)
			continue;
		*slot_of(ix, old[i].hash) = (struct index_entry){old[i].hash, tiers};
		ix->used++;
		ix->below += (tiers & ~DEVICE) != 0;
	}
	free(old);
}

void kv_index_clear(struct kv_index *ix, unsigned tier)
{
	size_t left = 0;
	if (tier >= KV_TIERS)
		return;
	for (size_t i = 0; i < size_of(ix) && ix->count[tier]; i++)
		left += (ix->slots[i].tiers & ~(1u << tier)) != 0;
	if (ix->count[tier]) { /* the table may become much smaller */
		unsigned log = SIZE_MIN_LOG;
		while (left * 4 > (size_t)3 << log)
			log++;
		rebuild(ix, log, 1u << tier);
	}
	ix->count[tier] = 0;
	ix->dropped[tier] = 0;
	if (tier)
		return;
	free(ix->expected);
	ix->expected = NULL;
}

/* The expectation of this hash, or NULL; then *ret_room, if asked for, is where to write one. */
static struct expected *expected_of(const struct kv_index *ix, uint64_t hash,
                                    struct expected **ret_room)
{
	struct expected
		*x = &ix->expected[home_of(ix, hash, EXPECTED_LOG) & ~(size_t)(EXPECTED_WAYS - 1)],
		*room = x;
	for (unsigned i = 0; i < EXPECTED_WAYS; i++) {
		if (x[i].hash == hash && x[i].until_us)
			return &x[i];
		room = x[i].until_us < room->until_us ? &x[i] : room;
	}
	if (ret_room)
		*ret_room = room;
	return NULL;
}

/* An event has reported this block of the device, so it is no longer expected. */
static void forget_expected(struct kv_index *ix, uint64_t hash)
{
	struct expected *x = ix->expected ? expected_of(ix, hash, NULL) : NULL;
	if (x)
		x->until_us = 0;
}

int kv_index_store(struct kv_index *ix, uint64_t hash, unsigned tier)
{
	if (tier >= KV_TIERS)
		return ERR_INVALID;
	if (tier == 0)
		forget_expected(ix, hash);
	struct index_entry *e = slot_of(ix, hash);
	if (e->tiers >> tier & 1)
		return 0;
	int is_below = (e->tiers & ~DEVICE) != 0;
	if (tier == 0 ? ix->count[0] >= ix->max : !is_below && ix->below >= ix->max) {
		ix->dropped[tier]++;
		return ERR_FULL;
	}
	if (!e->tiers) {
		if ((ix->used + 1) * 4 > size_of(ix) * 3) {
			rebuild(ix, ix->log + 1, 0);
			e = slot_of(ix, hash);
		}
		e->hash = hash;
		ix->used++;
	}
	ix->below += tier && !is_below;
	ix->count[tier]++;
	e->tiers |= (uint8_t)(1u << tier);
	return 0;
}

/* Entries after an emptied slot move up, so that probing from their home slots still finds them. */
static void close_gap(struct kv_index *ix, size_t gap)
{
	size_t mask = size_of(ix) - 1;
	for (size_t i = (gap + 1) & mask; ix->slots[i].tiers; i = (i + 1) & mask) {
		size_t home = home_of(ix, ix->slots[i].hash, ix->log);
		if (((i - home) & mask) < ((i - gap) & mask))
			continue;
		ix->slots[gap] = ix->slots[i];
		gap = i;
	}
	ix->slots[gap].tiers = 0;
}

void kv_index_remove(struct kv_index *ix, uint64_t hash, unsigned tier)
{
	if (tier >= KV_TIERS)
		return;
	if (tier == 0)
		forget_expected(ix, hash);
	struct index_entry *e = slot_of(ix, hash);
	if (!(e->tiers >> tier & 1))
		return;
	e->tiers &= (uint8_t) ~(1u << tier);
	ix->count[tier]--;
	ix->below -= tier && !(e->tiers & ~DEVICE);
	if (e->tiers)
		return;
	ix->used--;
	close_gap(ix, (size_t)(e - ix->slots));
}

void kv_index_expect(struct kv_index *ix, const uint64_t *hashes, size_t n, uint64_t until_us)
{
	if (!ix->expected && n)
		ix->expected = mem_array((size_t)1 << EXPECTED_LOG, sizeof *ix->expected);
	for (size_t i = 0; i < n; i++) {
		struct expected *room, *x;
		if (slot_of(ix, hashes[i])->tiers & DEVICE)
			continue;
		x = expected_of(ix, hashes[i], &room);
		*(x ? x : room) = (struct expected){hashes[i], until_us};
	}
}

void kv_index_match(const struct kv_index *ix, const uint64_t *hashes, size_t n, uint64_t now_us,
                    struct kv_match *ret)
{
	struct kv_match m = {0};
	for (; m.blocks < n; m.blocks++) {
		unsigned tiers = slot_of(ix, hashes[m.blocks])->tiers;
		const struct expected *x = ix->expected && !(tiers & DEVICE)
		                               ? expected_of(ix, hashes[m.blocks], NULL)
		                               : NULL;
		int device = tiers & DEVICE || (x && x->until_us > now_us);
		if (device && m.device == m.blocks)
			m.device++;
		else if (device || tiers & MEMORY)
			m.memory++;
		else if (tiers)
			m.disk++;
		else
			break;
	}
	*ret = m;
}

size_t kv_index_count(const struct kv_index *ix, unsigned tier)
{
	return tier < KV_TIERS ? ix->count[tier] : 0;
}

uint64_t kv_index_dropped(const struct kv_index *ix, unsigned tier)
{
	return tier < KV_TIERS ? ix->dropped[tier] : 0;
}
