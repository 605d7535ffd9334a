/* kvindex.h - what one worker's prefix index and its host's storage hold, as KV_EVENTS say, and
 * what the worker will hold soon: the blocks of prompts that were just placed there.
 *
 * A set of 64-bit hashes (the first 8 bytes of prefix hashes) with the tiers that have each,
 * bounded: so many on the device, and as many again below it, so that a large storage leaves the
 * device its room. When it is full nothing more is taken in, and that is counted: workers tell
 * parents before children and drop leaves first, so a set that only stops growing still answers
 * truly for what it has, while one that forgot its oldest entries would lose the beginnings of
 * all prefixes. One thread. */
#ifndef ROUTER_KVINDEX_H
#define ROUTER_KVINDEX_H

#include <stddef.h>
#include <stdint.h>

#define KV_TIERS 4u /* 0 device, 1 host memory, 2 disk, 3 shared */

struct kv_index;

struct kv_index *kv_index_new(size_t entries_max);
void kv_index_destroy(struct kv_index **ix);
void kv_index_set_max(struct kv_index *ix, size_t entries_max); /* existing entries stay */
/* Forgets all of a tier; tier 0: expectations too. A tier that is none: nothing. */
void kv_index_clear(struct kv_index *ix, unsigned tier);
/* 0, or ERR_FULL: not taken in, counted. A tier that is none: ERR_INVALID. */
int kv_index_store(struct kv_index *ix, uint64_t hash, unsigned tier);
void kv_index_remove(struct kv_index *ix, uint64_t hash, unsigned tier);
/* These blocks are to be computed or received there; expected until then, or until an event
 * tells of them. Few are lost when many collide. */
void kv_index_expect(struct kv_index *ix, const uint64_t *hashes, size_t n, uint64_t until_us);

struct kv_match {
	uint32_t blocks; /* leading ones that are there or expected: the three below */
	uint32_t device; /* the first of them: on the device, or expected there */
	/* behind these: in host memory, or on the device behind one that is not */
	uint32_t memory;
	uint32_t disk; /* in no faster tier */
};
void kv_index_match(const struct kv_index *ix, const uint64_t *hashes, size_t n, uint64_t now_us,
                    struct kv_match *ret);

size_t kv_index_count(const struct kv_index *ix, unsigned tier);
/* were not taken in, since the tier was last cleared */
uint64_t kv_index_dropped(const struct kv_index *ix, unsigned tier);

#endif
