/* kvindex.h - the blocks in one worker's prefix index and its host's storage, as reported by
 * KV_EVENTS, and those that the worker will hold soon: of prompts that were just placed there.
 *
 * A set of 64-bit hashes (the first 8 bytes of prefix hashes), each with the tiers that hold it.
 * Its size is limited for the device, and separately for the tiers below, so that a large storage
 * does not crowd out the device. When it is full, new entries are counted and dropped: workers
 * report parents before children and drop leaves first, so a set that stops growing is still right
 * about what it has, while a set that forgot its oldest entries would lose the beginnings of all
 * prefixes. One thread. */
#ifndef ROUTER_KVINDEX_H
#define ROUTER_KVINDEX_H

#include <stddef.h>
#include <stdint.h>

#define KV_TIERS 4u /* 0 device, 1 host memory, 2 disk, 3 shared */

struct kv_index;

struct kv_index *kv_index_new(size_t entries_max);
void kv_index_destroy(struct kv_index **ix);
void kv_index_set_max(struct kv_index *ix, size_t entries_max); /* existing entries stay */
/* Removes all of a tier; tier 0: expectations too. Ignores an unknown tier. */
void kv_index_clear(struct kv_index *ix, unsigned tier);
/* 0, ERR_FULL: dropped and counted, or ERR_INVALID: unknown tier. */
int kv_index_store(struct kv_index *ix, uint64_t hash, unsigned tier);
void kv_index_remove(struct kv_index *ix, uint64_t hash, unsigned tier);
/* These blocks will be computed or received there. They are expected until until_us, or until an
 * event reports them. A few may be lost to collisions. */
void kv_index_expect(struct kv_index *ix, const uint64_t *hashes, size_t n, uint64_t until_us);

struct kv_match {
	uint32_t blocks; /* leading blocks that are there or expected: the sum of the three below */
	uint32_t device; /* the first of these, on the device or expected there */
	/* after these: in host memory, or on the device after a block that is not */
	uint32_t memory;
	uint32_t disk; /* only in tiers below host memory */
};
void kv_index_match(const struct kv_index *ix, const uint64_t *hashes, size_t n, uint64_t now_us,
                    struct kv_match *ret);

size_t kv_index_count(const struct kv_index *ix, unsigned tier);
/* entries dropped since the tier was last cleared */
uint64_t kv_index_dropped(const struct kv_index *ix, unsigned tier);

#endif
