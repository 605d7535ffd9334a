/* blocks.h - the KV blocks of one job or sequence, in the order of its tokens, and the hashes under
 * which its full blocks are found in the prefix index.
 *
 * block[i] holds the KV of tokens [i * block_tokens, (i + 1) * block_tokens). hash[i] covers all
 * tokens up to the end of block i, and the request's cache salt (kv/hash.h): two requests with the
 * same hash[i] have the same tokens up to there.
 *
 * The structure belongs to whoever owns the job or sequence at the moment; one thread at a time
 * writes it. Other threads may read `published`, and `hash` once all of it is computed. */
#ifndef WORKER_SEQ_BLOCKS_H
#define WORKER_SEQ_BLOCKS_H

#include "copy.h"
#include "daemons/worker/worker.h"

#include <stdatomic.h>

struct seq_blocks {
	struct kv_hash *hash; /* (n_hashes) */
	uint32_t n_hashes, hash_capacity;
	uint32_t *block; /* (n) */
	uint32_t n, capacity;
	_Atomic uint32_t published; /* leading blocks that the prefix index has */
};

/* Frees the arrays. The blocks must have been released. */
void seq_blocks_fini(struct seq_blocks *b);

/* Hashes the next full blocks of req, those of `max_tokens` tokens at most. Returns 1 when all full
 * blocks are hashed. */
int seq_blocks_hash(struct seq_blocks *b, const struct worker *w, const struct request_copy *req,
                    uint32_t max_tokens);

/* May `missing` blocks be taken from the pool now? Asked before and after the prefix index was
 * searched: a match makes fewer blocks evictable. */
typedef int (*seq_blocks_room)(void *arg, uint32_t missing);

/* Takes blocks for all tokens of req: the longest prefix that the index has, at most its first
 * `may_match` blocks, and fresh ones in `state` for the rest. `published` becomes the number of
 * matched blocks. Returns 1, or 0 if there is no room: then nothing is held. room may be NULL. */
int seq_blocks_take(struct seq_blocks *b, const struct worker *w, const struct request_copy *req,
                    uint32_t may_match, enum kv_state state, seq_blocks_room room, void *arg);

/* Takes one more block in state HELD. Returns 1, or 0 if the pool has none. */
int seq_blocks_add(struct seq_blocks *b, const struct worker *w, const struct request_copy *req);

/* Publishes hashed blocks until the first `full` are published: their KV is in the pool. */
void seq_blocks_publish(struct seq_blocks *b, const struct worker *w, uint32_t full);

/* Publishes the next block, whose KV was read from this tier of storage (enum store_tier). */
void seq_blocks_publish_read(struct seq_blocks *b, const struct worker *w, unsigned tier);

/* Gives all blocks back to the pool. The hashes stay. */
void seq_blocks_release(struct seq_blocks *b, const struct worker *w);

/* How many leading blocks both have, at most `most`: equal tokens. O(log n). */
uint32_t seq_blocks_common(const struct seq_blocks *a, const struct seq_blocks *b, uint32_t most);

#endif
