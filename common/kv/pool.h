/* pool.h - the block pool of one worker with its prefix index (invariants I1, I2, I3).
 *
 * Each block has exactly one primary state; the states add up to the pool at every instant:
 *   FREE    nobody's
 *   HELD    by one or more running sequences (refs > 0), possibly also in the index
 *   LEASED  granted to a prefill worker that fills it from outside (refs > 0, a remote writer is
 *           possible)
 *   CACHED  in the index only: matchable, evictable when nobody reads it
 * and beside it counts of readers in flight (storage, messager). A block with readers is not
 * reused: one that is in no index stays HELD (or LEASED) without references until its last reader
 * has ended or was made void by kv_pool_void, then it becomes FREE.
 *
 * A block's generation (in shared memory, one word a block) grows at every hand-out of the block
 * for new contents, before the first new byte.
 *
 * Of a block in the index the pool remembers whether storage has a copy and in which tier, and
 * which blocks are to get one next (copies.h). A copy changes nothing about the block: it stays
 * matchable and is evicted in its turn; what was stored by then is not lost.
 *
 * The index maps a prefix hash to a block. An entry is made only by kv_pool_publish, that is after
 * the block's KV was computed, or received and verified. Eviction takes least recently used entries
 * that no other entry has as its parent. A match never evicts.
 *
 * Changes of the index are recorded for whoever follows it (kv_pool_follow), the newest only: a
 * bounded ring, no memory and no call under the lock.
 *
 * All functions lock the pool's own mutex; none waits, none calls back but the wakes of
 * kv_pool_follow and kv_pool_write_policy, which are called with the mutex free. Time
 * complexity: O(blocks in the call), times the logarithm of the pool for eviction; a reader of a
 * block at the end of a cached chain costs one step per block of the chain. */
#ifndef KV_POOL_H
#define KV_POOL_H

#include "kv/hash.h"
#include "util/log.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define KV_BLOCK_NONE UINT32_MAX

struct kv_pool;

enum kv_state { KV_FREE, KV_HELD, KV_LEASED, KV_CACHED, KV_STATE_COUNT };

struct kv_stats {
	uint32_t blocks, by_state[KV_STATE_COUNT]; /* sums to blocks */
	uint32_t readers;                          /* blocks with a reader in flight */
	/* cached, and neither it nor an entry below it held or read: what take can use beside free */
	uint32_t evictable;
	uint64_t queries_tokens, hit_tokens; /* of kv_pool_match, in blocks x block_tokens */
	uint64_t evictions, evicted_stored;  /* of them: storage had a copy */
	/* cached blocks by the tier of their copy; [0]: the sum */
	uint32_t stored[4];
	/* blocks that are to be written to storage, or are being written */
	uint32_t due, writing;
	/* blocks that ceased to be held or leased, so far */
	uint64_t given_back;
};

/* generations: blocks words, may be shared memory; they are read and advanced, never reset. */
struct kv_pool *kv_pool_new(uint32_t blocks, uint32_t block_tokens, _Atomic uint64_t *generations);
void kv_pool_destroy(struct kv_pool **p);

/* Takes n blocks for owner in state HELD or LEASED, evicting if it must: all or nothing. out gets
 * the numbers, each with a new generation. 0, or ERR_FULL (nothing was evicted either). */
int kv_pool_take(struct kv_pool *p, uint32_t n, enum kv_state state, const struct reqid *owner,
                 uint32_t *out);
/* Longest chain of hashes[0..n) in the index; each matched block gets one more reference for owner
 * and becomes (or stays) HELD, or stays LEASED. Returns how many. */
uint32_t kv_pool_match(struct kv_pool *p, const struct kv_hash *hashes, uint32_t n,
                       const struct reqid *owner, uint32_t *out);
/* As match, without references or LRU effect: how many leading blocks are there now. */
uint32_t kv_pool_probe(struct kv_pool *p, const struct kv_hash *hashes, uint32_t n);
/* A LEASED block's contents are verified: it becomes HELD (the sequence runs). Blocks that are
 * HELD stay so. */
void kv_pool_lease_to_held(struct kv_pool *p, const uint32_t *blocks, uint32_t n);
/* The block, referenced by the caller, holds the KV of this hash: make it matchable. parent NULL:
 * the root. If another block has the hash already nothing changes (the caller's block stays its
 * own) and 0 is returned, else 1 (also when this block has it already). */
int kv_pool_publish(struct kv_pool *p, uint32_t block, const struct kv_hash *hash,
                    const struct kv_hash *parent);
/* Gives back one reference each; the last of the blocks counts as used before the first. Without
 * references a block becomes CACHED if it is in the index, else FREE (once readers is 0). */
void kv_pool_release(struct kv_pool *p, const uint32_t *blocks, uint32_t n);

/* --- copies in storage --- */

/* Which blocks are to be written: low of the oldest (less as many as are free), before they must be
 * evicted; any that was matched `after` times, 0: as soon as it is published, UINT32_MAX: none.
 * wake(arg) is called by the thread that makes one due, after the mutex was released: once, and
 * again only after a kv_pool_collect after which nothing is due. NULL: nothing is written any
 * more. */
void kv_pool_write_policy(struct kv_pool *p, uint32_t low, uint32_t after, void (*wake)(void *arg),
                          void *arg);

struct kv_due {
	struct kv_hash hash;
	uint32_t block;
	/* under which the contents are valid; the reader's pin: see below */
	uint64_t generation, pin;
};
/* Up to n blocks to be written now; each gets a reader pin and stays in the index. Returns how
 * many. */
uint32_t kv_pool_collect(struct kv_pool *p, uint32_t n, struct kv_due *out);
/* The same of these blocks, whatever is due: of blocks[0 .. *end), from the last on, those that are
 * in the index and neither stored nor being written. *end: where it has stopped. The caller has
 * references to them. */
uint32_t kv_pool_collect_of(struct kv_pool *p, const uint32_t *blocks, uint32_t *end, uint32_t n,
                            struct kv_due *out);
/* The entry of the block, if it is still that of this generation, is in that tier of storage (1
 * ..); 0: it could not be written. Before the pin ends. */
void kv_pool_set_stored(struct kv_pool *p, uint32_t block, uint64_t generation, unsigned tier);
/* The tier where the block's contents are stored, 0: nowhere, as far as is known. */
unsigned kv_pool_stored(struct kv_pool *p, uint32_t block);
/* Those of the blocks that are in the index and have no copy are to be written. The caller has
 * references to them. Returns how many became due. */
uint32_t kv_pool_want_stored(struct kv_pool *p, const uint32_t *blocks, uint32_t n);
/* How many blocks without a copy would be evicted if n were taken now; those are due before all
 * others. */
uint32_t kv_pool_unstored_for(struct kv_pool *p, uint32_t n);
/* Storage says that the tier has these now, or no longer: hashes as in kv_change. Those that are
 * not in the index are ignored. */
void kv_pool_note_stored(struct kv_pool *p, unsigned tier, const uint64_t *hashes, size_t n,
                         int stored);
/* ... and begins a list of all that the tier has: what is not in it has no copy there. */
void kv_pool_doubt_stored(struct kv_pool *p, unsigned tier);
/* What was in that tier is lost, and due again. */
void kv_pool_forget_stored(struct kv_pool *p, unsigned tier);

/* --- readers --- */

/* A reader begins: while its pin stands the block is not reused. The block is not FREE: the caller
 * has a reference to it, or another pin. Returns the pin, never 0; ret_gen may be NULL. */
uint64_t kv_pool_read_begin(struct kv_pool *p, uint32_t block, uint64_t *ret_gen);
/* The reader has ended. A pin that has ended, or is void, names nobody any more: ending it again
 * changes nothing. */
void kv_pool_read_end(struct kv_pool *p, uint64_t pin);
/* The bounded wait for this reader is over: its pin is dropped. The block gets a new generation
 * when it is next handed out, so that the late reader's check fails; other readers' pins stand. */
void kv_pool_void(struct kv_pool *p, uint64_t pin);

/* One change of the index. hash: the first 8 bytes of the kv_hash, little-endian. */
struct kv_change {
	uint64_t hash;
	int stored; /* 0: removed */
};
/* From now on the newest `room` changes are kept. wake(arg) is called by the thread that makes a
 * change, after the mutex was released: once, and again only after a kv_pool_changes. Once in a
 * pool's life, before other threads use it. */
void kv_pool_follow(struct kv_pool *p, uint32_t room, void (*wake)(void *arg), void *arg);
/* Where the record ends now: the number of the next change. */
uint64_t kv_pool_changes_end(struct kv_pool *p);
/* Up to n changes from number *cursor on, in their order; *cursor is advanced. ERR_STALE: some of
 * them are not kept any more (only a new look at all entries helps). Any number of readers, each
 * with its own cursor. */
int kv_pool_changes(struct kv_pool *p, uint64_t *cursor, uint32_t n, struct kv_change *out,
                    uint32_t *ret_n);
/* Entries of up to n blocks from *block on, which is advanced; it is the pool's size after the
 * last. Returns how many hashes are in out (room for n). All entries of the pool, seen in
 * pieces: together with the changes since kv_pool_changes_end before the first piece they tell
 * what the index holds. */
uint32_t kv_pool_entries(struct kv_pool *p, uint32_t *block, uint32_t n, uint64_t *out);

/* The reader that has been there longest: its age, and what it is. 0: there is none. One look at
 * every pin. */
struct kv_oldest_pin {
	uint32_t block;
	uint64_t since_us; /* monotonic */
	/* "write-out": of kv_pool_collect; "reader": of kv_pool_read_begin */
	const char *why;
};
int kv_pool_oldest_pin(struct kv_pool *p, struct kv_oldest_pin *ret);

void kv_pool_stats(struct kv_pool *p, struct kv_stats *ret);
/* Panics when states do not add up or an entry's block is FREE; for tests and `pdctl kv`. */
void kv_pool_verify(struct kv_pool *p);

struct kv_block_info {
	uint32_t block, refs, readers;
	enum kv_state state;
	int indexed;
	unsigned stored;               /* tier of its copy, 0: none */
	uint64_t generation, since_us; /* of the present state, monotonic */
	struct reqid owner;            /* last one to take or match it */
};
void kv_pool_block(struct kv_pool *p, uint32_t block, struct kv_block_info *ret);
const char *kv_state_name(enum kv_state s);
/* Drops every index entry whose block nobody holds or reads (pdctl flush). Returns blocks freed. */
uint32_t kv_pool_flush(struct kv_pool *p);

#endif
