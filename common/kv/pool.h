/* pool.h - the block pool of one worker with its prefix index (invariants I1, I2, I3).
 *
 * Each block has exactly one primary state, and the counts of the states always add up to the pool:
 *   FREE    unused
 *   HELD    in use by one or more running sequences (refs > 0), possibly also in the index
 *   LEASED  granted to a prefill worker, which fills it from outside (refs > 0, a remote writer is
 *           possible)
 *   CACHED  in the index only: matchable, and evictable while nobody reads it
 * In addition it counts its readers in flight (storage, messager). A block with readers is not
 * reused: without references and without an entry it stays HELD (or LEASED) until its last reader
 * has ended or was voided by kv_pool_void, and then becomes FREE.
 *
 * A block's generation (one word per block, in shared memory) is incremented each time the block is
 * handed out for new contents, before the first new byte.
 *
 * For blocks in the index the pool tracks whether storage has a copy, in which tier, and which
 * blocks get one next (copies.h). A copy does not change the block's state: it stays matchable and
 * is evicted in its turn, but its contents survive in storage.
 *
 * The index maps a prefix hash to a block. Only kv_pool_publish makes an entry, after the block's
 * KV was computed, or received and verified. Eviction takes the least recently used entry that is
 * no other entry's parent. A match never evicts.
 *
 * Changes of the index are recorded for those who follow it (kv_pool_follow). The record is a
 * bounded ring that keeps the newest: it allocates nothing and calls nobody under the lock.
 *
 * All functions lock the pool's own mutex. None waits, and none calls back except the wakes of
 * kv_pool_follow and kv_pool_write_policy, which run after the mutex is released. Time complexity:
 * O(blocks in the call), times the logarithm of the pool's size for eviction; a reader of a block
 * at the end of a cached chain costs one step per block of the chain. */
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
	/* cached blocks that, like all entries below them, are neither held nor read: what kv_pool_take
	 * can use in addition to the free ones */
	uint32_t evictable;
	uint64_t queries_tokens, hit_tokens; /* of kv_pool_match: blocks x block_tokens */
	uint64_t evictions, evicted_stored;  /* evicted_stored: those that had a copy in storage */
	/* cached blocks by the tier of their copy; [0]: the sum */
	uint32_t stored[4];
	/* blocks queued for writing to storage, and being written */
	uint32_t due, writing;
	/* total number of times a block ceased to be held or leased */
	uint64_t given_back;
};

/* generations: one word per block, may be shared memory; they are read and incremented, never
 * reset. */
struct kv_pool *kv_pool_new(uint32_t blocks, uint32_t block_tokens, _Atomic uint64_t *generations);
void kv_pool_destroy(struct kv_pool **p);

/* Takes n blocks for owner in state HELD or LEASED, evicting if necessary: all or nothing. out gets
 * the block numbers, each with a new generation. 0, or ERR_FULL (then nothing was evicted). */
int kv_pool_take(struct kv_pool *p, uint32_t n, enum kv_state state, const struct reqid *owner,
                 uint32_t *out);
/* Finds the longest chain of hashes[0..n) in the index. Each matched block gets one more reference
 * for owner and becomes (or stays) HELD, or stays LEASED. Returns the number of blocks in out. */
uint32_t kv_pool_match(struct kv_pool *p, const struct kv_hash *hashes, uint32_t n,
                       const struct reqid *owner, uint32_t *out);
/* Like kv_pool_match, without references and without counting as a use: returns how many leading
 * blocks are in the index now. */
uint32_t kv_pool_probe(struct kv_pool *p, const struct kv_hash *hashes, uint32_t n);
/* The blocks' contents are verified: LEASED blocks become HELD (the sequence runs), HELD ones stay
 * so. */
void kv_pool_lease_to_held(struct kv_pool *p, const uint32_t *blocks, uint32_t n);
/* Makes a block matchable whose KV has this hash; the caller has a reference to it. parent NULL:
 * the root. Returns 1 (also if this block is already in the index under this hash), or 0 if another
 * block has the hash: then nothing changes and the block stays the caller's alone. */
int kv_pool_publish(struct kv_pool *p, uint32_t block, const struct kv_hash *hash,
                    const struct kv_hash *parent);
/* Releases one reference to each block; the last of them counts as used before the first. A block
 * without references becomes CACHED if it is in the index, else FREE (once it has no readers). */
void kv_pool_release(struct kv_pool *p, const uint32_t *blocks, uint32_t n);

/* --- copies in storage --- */

/* Selects the blocks to write to storage: the `low` oldest cached ones (less the number of free
 * blocks) before they must be evicted, and any that was matched `after` times; 0: as soon as it is
 * published, UINT32_MAX: none for this reason. wake(arg) is called by the thread that makes a block
 * due, after it released the mutex: once, and then again only after a kv_pool_collect that left
 * nothing due. wake NULL: nothing is written any more. */
void kv_pool_write_policy(struct kv_pool *p, uint32_t low, uint32_t after, void (*wake)(void *arg),
                          void *arg);

struct kv_due {
	struct kv_hash hash;
	uint32_t block;
	/* generation: under which the contents are valid; pin: of the reader, see below */
	uint64_t generation, pin;
};
/* Takes up to n blocks that are to be written now; each gets a reader pin and stays in the index.
 * Returns how many. */
uint32_t kv_pool_collect(struct kv_pool *p, uint32_t n, struct kv_due *out);
/* The same for given blocks, whether they are due or not: takes from blocks[0 .. *end), backwards,
 * up to n that are in the index and neither stored nor being written. *end is set to where it
 * stopped. The caller has references to the blocks. */
uint32_t kv_pool_collect_of(struct kv_pool *p, const uint32_t *blocks, uint32_t *end, uint32_t n,
                            struct kv_due *out);
/* The block was written to that tier (1 or more); 0: the write failed. Ignored if the block's entry
 * is not that of this generation any more. Call it before the pin ends. */
void kv_pool_set_stored(struct kv_pool *p, uint32_t block, uint64_t generation, unsigned tier);
/* Queues those of the blocks for writing that are in the index and have no copy. The caller has
 * references to the blocks. Returns how many became due. */
uint32_t kv_pool_want_stored(struct kv_pool *p, const uint32_t *blocks, uint32_t n);
/* Returns how many blocks without a copy would be evicted if n were taken now. Those not queued yet
 * are put in front of the queue for writing. */
uint32_t kv_pool_unstored_for(struct kv_pool *p, uint32_t n);
/* Storage reports that the tier now has these blocks (stored), or no longer. hashes are as in
 * struct kv_change; those not in the index are ignored. */
void kv_pool_note_stored(struct kv_pool *p, unsigned tier, const uint64_t *hashes, size_t n,
                         int stored);
/* Storage is about to list all that the tier has: until it lists a block, the block has no copy
 * there. */
void kv_pool_doubt_stored(struct kv_pool *p, unsigned tier);
/* The tier has lost all its copies: the blocks are due again. */
void kv_pool_forget_stored(struct kv_pool *p, unsigned tier);

/* --- readers --- */

/* Begins a read: the block is not reused while the pin exists. The block must not be FREE: the
 * caller has a reference to it, or another pin. Returns the pin, never 0; ret_gen may be NULL. */
uint64_t kv_pool_read_begin(struct kv_pool *p, uint32_t block, uint64_t *ret_gen);
/* Ends a read. Ignored if the pin has ended or was voided. */
void kv_pool_read_end(struct kv_pool *p, uint64_t pin);
/* Gives up on a reader after a bounded wait: drops its pin. When the block is next handed out it
 * gets a new generation, so that the late reader's check fails. Other readers' pins are kept. */
void kv_pool_void(struct kv_pool *p, uint64_t pin);

/* One change of the index. hash: the first 8 bytes of the kv_hash, little-endian. */
struct kv_change {
	uint64_t hash;
	int stored; /* 0: removed */
};
/* Starts recording the newest `room` changes. wake(arg) is called by the thread that makes a
 * change, after it released the mutex: once, and then again only after a kv_pool_changes. Call this
 * at most once per pool, before other threads use it. */
void kv_pool_follow(struct kv_pool *p, uint32_t room, void (*wake)(void *arg), void *arg);
/* The number of the next change: where the record ends now. */
uint64_t kv_pool_changes_end(struct kv_pool *p);
/* Returns up to n changes in order, from number *cursor on, and advances *cursor. ERR_STALE: some
 * of them are no longer in the record (read all entries again). Any number of readers may follow,
 * each with its own cursor. */
int kv_pool_changes(struct kv_pool *p, uint64_t *cursor, uint32_t n, struct kv_change *out,
                    uint32_t *ret_n);
/* Lists the index in pieces: returns the hashes of the entries among the n blocks from *block on in
 * out (room for n), and advances *block; it equals the number of blocks at the end. The pieces plus
 * all changes since a kv_pool_changes_end before the first piece give the contents of the index. */
uint32_t kv_pool_entries(struct kv_pool *p, uint32_t *block, uint32_t n, uint64_t *out);

/* The reader that has been active longest. Returns 0 if there is none. Scans all pins. */
struct kv_oldest_pin {
	uint32_t block;
	uint64_t since_us; /* monotonic */
	/* "write-out": pin of kv_pool_collect; "reader": of kv_pool_read_begin */
	const char *why;
};
int kv_pool_oldest_pin(struct kv_pool *p, struct kv_oldest_pin *ret);

void kv_pool_stats(struct kv_pool *p, struct kv_stats *ret);
/* Panics if the states are inconsistent or an entry's block is FREE; for tests and `pdctl kv`. */
void kv_pool_verify(struct kv_pool *p);

struct kv_block_info {
	uint32_t block, refs, readers;
	enum kv_state state;
	int indexed;
	unsigned stored;               /* tier of its copy, 0: none */
	uint64_t generation, since_us; /* since_us: of the current state, monotonic */
	struct reqid owner;            /* the last one that took or matched it */
};
void kv_pool_block(struct kv_pool *p, uint32_t block, struct kv_block_info *ret);
const char *kv_state_name(enum kv_state s);
/* Drops every index entry whose block is neither held nor read (pdctl flush). Returns how many. */
uint32_t kv_pool_flush(struct kv_pool *p);

#endif
