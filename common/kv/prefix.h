/* prefix.h - the prefix index inside a pool: which block holds the KV of which hash, and which
 * entry is to be evicted next.
 *
 * Entries form chains (an entry has its parent's hash). An entry is busy while its block is held,
 * leased or read; it is evictable when neither it nor any entry below it is busy, so that all
 * evictable entries can be dropped, leaves first. Of the leaves among them the one that was used
 * longest ago comes first. The pool calls this under its mutex; nothing here locks, knows of
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
/* The same by the hash's first 8 bytes, as a little-endian number; of two such the younger. */
uint32_t prefix_find_64(const struct prefix *t, uint64_t hash);
/* A busy entry for a block that has none. parent NULL: the root; it need not be in the index. 1,
 * or 0 if another block has the hash. */
int prefix_add(struct prefix *t, uint32_t block, const struct kv_hash *hash,
               const struct kv_hash *parent);
/* The one place where an entry ends. Entries below it stay: they are found again if their parent
 * comes back. */
void prefix_drop(struct prefix *t, uint32_t block);
/* The entry's block became busy, or ceased to be. */
void prefix_set_busy(struct prefix *t, uint32_t block, int busy);
/* A busy entry was used just now; larger is later, no two alike. */
void prefix_touch(struct prefix *t, uint32_t block, uint64_t used);
/* NULL when the block has no entry. */
const struct kv_hash *prefix_hash(const struct prefix *t, uint32_t block);

uint32_t prefix_evictable(const struct prefix *t);
/* The next to evict, or KV_BLOCK_NONE. */
uint32_t prefix_oldest(const struct prefix *t);

/* Panics when counts or order do not hold. busy[b] is what the caller knows of each block. */
void prefix_verify(const struct prefix *t, const unsigned char *busy);

#endif
