/* writeout.h - writes cached blocks to storage in the background: those that are about to be
 * evicted (kv_eviction = offload), those that are used often (write_through), those that somebody
 * asks for (kv_pool_want_stored: output caching), and at once those of a sequence that gives way
 * (writeout_save).
 *
 * The pool says what is due (kv_pool_collect) and remembers what storage acknowledged, by tier;
 * this sends it in batches of up to WRITEOUT_BATCH blocks, a bounded number at a time. Nothing
 * waits for it: a block that is needed before it was written is evicted all the same, and a
 * write-out that storage does not answer in WRITEOUT_US is void by its block's next generation. */
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
/* What is under way is made void. Before store_destroy. */
void writeout_destroy(struct writeout **wo);

/* The bounded wait for write-outs is over: those begun before this time are void, so that their
 * blocks can be taken at once. Returns how many blocks these were. Any thread; NULL: nothing. */
uint32_t writeout_give_up(struct writeout *wo, uint64_t begun_before_us);
/* A sequence is about to lose these blocks: those that are in the index and that storage lacks are
 * sent now, the last first, since it is evicted first. Not while storage is silent. Any thread;
 * NULL: nothing. */
void writeout_save(struct writeout *wo, const struct reqid *id, const uint32_t *blocks, uint32_t n);
/* Somebody lacks a block. WAIT: some come back soon; VOID: those that have been under way for
 * wait_us or longer can be taken now, written or not. Any thread; NULL: NONE. */
enum writeout_wait { WRITEOUT_NONE, WRITEOUT_WAIT, WRITEOUT_VOID };
enum writeout_wait writeout_wait(struct writeout *wo, uint64_t wait_us);
/* When the next such wait is over, 0: none. Any thread; NULL: none. */
uint64_t writeout_next_us(struct writeout *wo, uint64_t wait_us);
/* Blocks of sequences that gave way and that are pinned now. Any thread; NULL: none. */
uint32_t writeout_saving(struct writeout *wo);
/* Somebody waits for what is due: sent at once, without gathering. On the loop; NULL: nothing. */
void writeout_hurry(struct writeout *wo);
/* Storage has just taken nothing: it is tried again after a pause, and nobody waits for it until
 * then. Any thread; NULL: no. */
int writeout_pauses(struct writeout *wo);
/* Storage is ready, in this life of it. On the loop. */
void writeout_storage_ready(struct writeout *wo, uint64_t epoch);
/* Members of the `kv` command's JSON, each begins with a comma. */
void writeout_json(struct writeout *wo, struct buf *out);

#endif
