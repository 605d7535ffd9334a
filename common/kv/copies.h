/* copies.h - inside a pool: which index entries have a copy in storage, and which get one next.
 *
 *   NONE     no copy, none planned (in use, or the write failed or the copy was lost: becomes FRESH
 *            after its next use)
 *   FRESH    no copy; cached: written when it is among the oldest
 *   DUE      queued for writing
 *   WRITING  being written
 *   STORED   storage acknowledged it; its tier is known
 *
 * "The oldest" are the first (low - free blocks) cached blocks by last use: those evicted next once
 * the free blocks are used up. The boundary between them and the younger ones moves a step with
 * each change, so nothing is ever searched. The pool calls these functions under its mutex; none of
 * them locks or fails. */
#ifndef KV_COPIES_H
#define KV_COPIES_H

#include <stdint.h>

#define COPIES_TIERS 4u /* tier numbers are 1 .. 3 */
#define COPIES_NEVER UINT32_MAX

enum copy_state { COPY_NONE, COPY_FRESH, COPY_DUE, COPY_WRITING, COPY_STORED, COPY_STATES };

struct copies;

struct copies *copies_new(uint32_t blocks);
void copies_destroy(struct copies **c);
/* low: number of oldest blocks that should be stored before they must be evicted. after: a block is
 * queued for writing once it has been matched this many times; 0: as soon as it is matchable,
 * COPIES_NEVER: never. */
void copies_policy(struct copies *c, uint32_t low, uint32_t after);

/* The block got an index entry; it is in use. */
void copies_add(struct copies *c, uint32_t b);
/* Its entry was dropped while it was cached. Returns the state it had. */
enum copy_state copies_drop(struct copies *c, uint32_t b);
/* The block was matched. */
void copies_use(struct copies *c, uint32_t b);
/* copies_rest: the block is no longer in use; it becomes the youngest of the cached ones.
 * copies_wake: it is in use again. */
void copies_rest(struct copies *c, uint32_t b);
void copies_wake(struct copies *c, uint32_t b);
/* Sets the number of free blocks. */
void copies_free_blocks(struct copies *c, uint32_t n_free);

/* Makes the block DUE, unless it is DUE, WRITING or STORED. first: in front of the queue, else at
 * its end. 1 if its state changed. */
int copies_want(struct copies *c, uint32_t b, int first);
/* 1 if copies_next would return a block. */
int copies_pending(const struct copies *c);
/* The next block to write, which becomes WRITING; KV_BLOCK_NONE: none. */
uint32_t copies_next(struct copies *c);
/* Makes this block WRITING out of turn. 0: it is WRITING or STORED already. */
int copies_begin(struct copies *c, uint32_t b);
/* The block was written to that tier (1 or more); 0: the write failed. */
void copies_set(struct copies *c, uint32_t b, unsigned tier);
/* Storage reports that the tier now has the block (stored), or no longer. The tier of a block is
 * the slowest that has it, since that one loses it last. A copy lost in this way is not written
 * again before the block's next use: else a storage smaller than the pool would be written to
 * endlessly. */
void copies_note(struct copies *c, uint32_t b, unsigned tier, int stored);
/* The tier lost all its copies: the blocks become DUE again, the oldest cached ones first. */
void copies_forget(struct copies *c, unsigned tier);

/* Returns how many of the n oldest cached blocks have no copy, and moves those to the front of the
 * queue unless they are DUE or WRITING. O(n). */
uint32_t copies_prepare(struct copies *c, uint32_t n);

/* ret_tier may be NULL */
enum copy_state copies_state(const struct copies *c, uint32_t b, unsigned *ret_tier);
uint32_t copies_count(const struct copies *c, enum copy_state s);
/* cached blocks whose copy is in that tier */
uint32_t copies_cached(const struct copies *c, unsigned tier);

/* Panics if lists and counts are inconsistent. cached[b], indexed[b]: what the pool knows of each
 * block. */
void copies_verify(const struct copies *c, const unsigned char *cached,
                   const unsigned char *indexed, uint32_t n_free);

#endif
