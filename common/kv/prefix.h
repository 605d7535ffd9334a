/* prefix.h - the prefix index inside a pool: which block has the KV of a hash, and which entry is
 * evicted next.
 *
 * Entries form chains: an entry names its parent's hash. An entry is busy while its block is held,
 * leased or read. It is evictable while neither it nor any entry below it is busy, so that all
 * evictable entries can be dropped, leaves first. Among evictable leaves the least recently used
 * goes first. The pool calls these functions under its mutex; none of them locks, knows about
 * states, or fails. */
#ifndef KV_PREFIX_H
#define KV_PREFIX_H

#include "kv/hash.h"

#include <stddef.h>
#include <stdint.h>

struct prefix;

struct prefix *prefix_new(uint32_t blocks);
void prefix_destroy(struct prefix **t);

/* The block with this hash, or KV_BLOCK_NONE. */
uint32_t prefix_find(const struct prefix *t, const struct kv_hash *hash);
/* The same by the hash's first 8 bytes as a little-endian number; if two share them, the newer. */
uint32_t prefix_find_64(const struct prefix *t, uint64_t hash);
/* Adds an entry, busy, for a block that has none. parent NULL: the root; the parent need not be in
 * the index. 1, or 0 if another block has the hash. */
int prefix_add(struct prefix *t, uint32_t block, const struct kv_hash *hash,
               const struct kv_hash *parent);
/* Removes the block's entry. Entries below it stay, and can be matched again if their parent is
 * added again. */
void prefix_drop(struct prefix *t, uint32_t block);
/* Sets whether the entry's block is busy. */
void prefix_set_busy(struct prefix *t, uint32_t block, int busy);
/* A busy entry was used. `used` is the time of it: larger is later, no two are equal. */
void prefix_touch(struct prefix *t, uint32_t block, uint64_t used);
/* The hash of the block's entry; NULL if it has none. */
/* NULL when the block has no entry. */
const struct kv_hash *prefix_hash(const struct prefix *t, uint32_t block);

uint32_t prefix_evictable(const struct prefix *t); /* number of evictable entries */
/* The block to evict next, or KV_BLOCK_NONE. */
uint32_t prefix_oldest(const struct prefix *t);

/* Panics if counts or order are inconsistent. busy[b]: what the pool knows of each block. */
void prefix_verify(const struct prefix *t, const unsigned char *busy);

#endif
