/* copies.h - inside a pool: which entries of the index have a copy in storage, and which are to get
 * one next.
 *
 *   NONE     none, and none is asked for (in use, or a write-out failed: tried again once it was
 *            used again)
 *   FRESH    none; cached: written out when it comes among the oldest
 *   DUE      to be written out, in order
 *   WRITING  a write-out is under way
 *   STORED   storage acknowledged it; the tier is known
 *
 * The oldest are the first `low` of all cached blocks by last use, less as many as are free: what
 * would be evicted next once the free ones are used up. An edge between them and the rest moves
 * by a step with each change, so that nothing is ever searched. The pool calls this under its
 * mutex; nothing here locks or fails. */
#ifndef KV_COPIES_H
#define KV_COPIES_H

#include <stdint.h>

#define COPIES_TIERS 4u /* tier numbers are 1 .. 3 */
#define COPIES_NEVER UINT32_MAX

enum copy_state { COPY_NONE, COPY_FRESH, COPY_DUE, COPY_WRITING, COPY_STORED, COPY_STATES };

struct copies;

struct copies *copies_new(uint32_t blocks);
void copies_destroy(struct copies **c);
/* low: so many of the oldest shall be stored before they must be evicted. after: a block is
 * written after this many reuses, 0: as soon as it is matchable. */
void copies_policy(struct copies *c, uint32_t low, uint32_t after);

/* The block got an entry, which is in use. */
void copies_add(struct copies *c, uint32_t b);
/* Its entry is dropped (it rests). Returns its state until now. */
enum copy_state copies_drop(struct copies *c, uint32_t b);
/* It was matched. */
void copies_use(struct copies *c, uint32_t b);
/* Nobody uses it any more: the youngest of the cached. And the reverse. */
void copies_rest(struct copies *c, uint32_t b);
void copies_wake(struct copies *c, uint32_t b);
/* So many blocks are free now. */
void copies_free_blocks(struct copies *c, uint32_t n_free);

/* An entry is asked for: DUE, unless it is that, written or stored already. first: before all
 * others. 1 if it changed. */
int copies_want(struct copies *c, uint32_t b, int first);
/* 1: copies_next would give a block. */
int copies_pending(const struct copies *c);
/* The next to be written, WRITING from now; KV_BLOCK_NONE: none. */
uint32_t copies_next(struct copies *c);
/* This one is written now, before its turn: WRITING. 0: it is that already, or stored. */
int copies_begin(struct copies *c, uint32_t b);
/* An entry is in that tier (1 ..); 0: it could not be written. */
void copies_set(struct copies *c, uint32_t b, unsigned tier);
/* Storage says by itself that the tier has it now, or no longer. A block's tier is the slowest that
 * has it: that loses it last. What is lost so is not written again before its next use, or a
 * storage that is smaller than the pool would be written to without end. */
void copies_note(struct copies *c, uint32_t b, unsigned tier, int stored);
/* That tier has lost what it had: all of it is DUE again, the oldest first. */
void copies_forget(struct copies *c, unsigned tier);

/* Of the n oldest cached ones: how many have no copy; all of these are asked for, before others.
 * O(n). */
uint32_t copies_prepare(struct copies *c, uint32_t n);

/* ret_tier may be NULL */
enum copy_state copies_state(const struct copies *c, uint32_t b, unsigned *ret_tier);
uint32_t copies_count(const struct copies *c, enum copy_state s);
/* cached and stored in that tier */
uint32_t copies_cached(const struct copies *c, unsigned tier);

/* Panics when lists and counts do not hold. cached[b], indexed[b]: what the pool knows of each
 * block. */
void copies_verify(const struct copies *c, const unsigned char *cached,
                   const unsigned char *indexed, uint32_t n_free);

#endif
