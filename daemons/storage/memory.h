/* memory.h - the host-memory tier: an index of blocks.
 *
 * Its creator fills a block, which is immutable once complete. It lives as long as anything holds
 * it: the index, a get that copies it out, a tier that writes it. Callable from any thread. */
#ifndef STORAGE_MEMORY_H
#define STORAGE_MEMORY_H

#include "tier.h"

struct storage_block {
	struct tier_key key;
	size_t bytes;
	struct tier_sum sum; /* once complete */
	struct tier *memory; /* the tier whose units it uses; NULL: its own memory, one holder */
	unsigned held;       /* under memory's lock; the index is not counted */
	unsigned n;
	struct tier_span *span; /* (n) */
};

/* Allocates capacity_bytes at once and never exceeds it; ERR_NOMEM if the system does not have
 * it. */
int tier_memory_new(uint64_t capacity_bytes, struct tier **ret_t, struct err *err);

/* A block for the caller to fill, held once by the caller. NULL: no room. spare: evict no block
 * that must first be copied down (TIER_OFFLOAD). */
struct storage_block *memory_block(struct tier *memory, const struct tier_key *key, size_t bytes,
                                   int spare);
/* Publishes a complete block unless the index has its key. The caller still holds it. */
void memory_insert(struct storage_block *b);
/* Looks up and holds a block, without counting a hit or a miss and without changing the LRU order.
 * NULL: not found. */
struct storage_block *memory_hold(struct tier *memory, const struct tier_key *key, size_t bytes);
/* Checksum mismatch: logs, counts and drops the block. */
void memory_damaged(struct storage_block *b);

/* --- block.c --- */

/* A block with its own memory, to be filled; NULL: out of memory. */
struct storage_block *block_new(const struct tier_key *key, size_t bytes);
void block_release(struct storage_block *b);
/* Copies the spans into the block and computes its checksum. */
void block_write(struct storage_block *b, const struct tier_span *span, unsigned n);
/* Copies the block into the spans. 0, or ERR_CORRUPT: checksum mismatch. */
int block_read(const struct storage_block *b, const struct tier_span *span, unsigned n);
/* --- memory.c, for block_release --- */
void memory_release(struct storage_block *b);

#endif
