/* memory.h - the host-memory tier: an index of blocks.
 *
 * A block is filled by who made it, and never changes once it is whole. It stays as long as
 * somebody holds it: the index, a get that copies it out, a tier that writes it. Any thread. */
#ifndef STORAGE_MEMORY_H
#define STORAGE_MEMORY_H

#include "tier.h"

struct block {
	struct tier_key key;
	size_t bytes;
	struct tier_sum sum; /* once it is whole */
	struct tier *memory; /* whose room it has; NULL: its own, and one holder */
	unsigned held;       /* under memory's lock; the index not counted */
	unsigned n;
	struct tier_span *span; /* (n) */
};

/* capacity_bytes is taken from the system at once, and never exceeded; ERR_NOMEM: it is not
 * there. */
int tier_memory_new(uint64_t capacity_bytes, struct tier **ret_t, struct err *err);

/* To be filled; held once by the caller. NULL: no room. spare: takes the room of nothing that is
 * to be copied down first (TIER_OFFLOAD). */
struct block *memory_block(struct tier *memory, const struct tier_key *key, size_t bytes,
                           int spare);
/* It is whole: found from now on, unless an equal one is there. The caller goes on holding it. */
void memory_insert(struct block *b);
/* The stored one, held; it is neither a hit nor a miss, and the order of use stays. NULL: there
 * is none. */
struct block *memory_hold(struct tier *memory, const struct tier_key *key, size_t bytes);
/* Its checksum does not hold: logged, counted and dropped. */
void memory_damaged(struct block *b);

/* --- block.c --- */

/* With room of its own, to be filled; NULL: the system has none. */
struct block *block_new(const struct tier_key *key, size_t bytes);
void block_release(struct block *b);
/* Copies it from these spans, and sums it. */
void block_write(struct block *b, const struct tier_span *span, unsigned n);
/* Copies it into these spans. 0, or ERR_CORRUPT: what was copied is not what was summed. */
int block_read(const struct block *b, const struct tier_span *span, unsigned n);
/* --- memory.c, for block_release --- */
void memory_release(struct block *b);

#endif
