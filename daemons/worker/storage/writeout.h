/* writeout.h - writes cached blocks to storage in the background: blocks about to be evicted
 * (kv_eviction = offload), blocks used often (write_through), blocks of finished sequences
 * (kv_pool_want_stored: output caching), and at once the blocks of a sequence that is preempted
 * (writeout_save).
 *
 * The pool says which blocks are due (kv_pool_collect) and remembers which ones storage has, by
 * tier. This module sends them in batches of up to WRITEOUT_BATCH blocks, a bounded number at a
 * time. Nothing waits for it without a bound: a block that is needed before it was written is
 * evicted unwritten, and a write-out that storage does not answer within WRITEOUT_US is void by the
 * block's next generation. */
#ifndef WORKER_WRITEOUT_H
#define WORKER_WRITEOUT_H

#include "util/buf.h"
#include "util/log.h"

#include <stdint.h>

#define WRITEOUT_BATCH 64u
#define WRITEOUT_US 1000000u

struct worker;
struct writeout;

/* One for each worker with storage, whatever its role. On the loop. */
struct writeout *writeout_new(struct worker *w);
/* Makes outstanding write-outs void. Call before store_destroy. */
void writeout_destroy(struct writeout **wo);

/* Ends the wait for write-outs that began before this time: they are void, and their blocks can be
 * taken at once. Returns the number of these blocks. Any thread; NULL: 0. */
uint32_t writeout_give_up(struct writeout *wo, uint64_t begun_before_us);
/* A sequence is about to lose these blocks: sends those that are in the prefix index and not in
 * storage, the last one first, since it is evicted first. Does nothing while storage does not
 * answer. Any thread; NULL: nothing. */
void writeout_save(struct writeout *wo, const struct reqid *id, const uint32_t *blocks, uint32_t n);
/* The caller lacks a block. NONE: no write-out holds any. WAIT: write-outs younger than wait_us
 * hold some. VOID: write-outs of wait_us or older were given up, their blocks can be taken now. Any
 * thread; NULL: NONE. */
enum writeout_wait { WRITEOUT_NONE, WRITEOUT_WAIT, WRITEOUT_VOID };
enum writeout_wait writeout_wait(struct writeout *wo, uint64_t wait_us);
/* When the next such wait ends, 0: none. Any thread; NULL: 0. */
uint64_t writeout_next_us(struct writeout *wo, uint64_t wait_us);
/* Blocks of preempted sequences that are pinned now. Any thread; NULL: 0. */
uint32_t writeout_saving(struct writeout *wo);
/* Somebody waits for blocks that are due: sends them at once instead of gathering more. On the
 * loop; NULL: nothing. */
void writeout_hurry(struct writeout *wo);
/* 1 while storage is left alone because it took nothing last time: nobody should wait for it. Any
 * thread; NULL: 0. */
int writeout_pauses(struct writeout *wo);
/* Storage of this epoch is ready. On the loop. */
void writeout_storage_ready(struct writeout *wo, uint64_t epoch);
/* Members of the `kv` command's JSON, each begins with a comma. */
void writeout_json(struct writeout *wo, struct buf *out);

#endif
