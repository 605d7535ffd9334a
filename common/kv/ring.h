/* ring.h - transfer ring and progress board in shared memory: how a prefill worker (P) passes
 * transfers and their progress to the messager (M).
 *
 * One memfd: a header, `slots` transfer slots, and a board of slots x layers progress words.
 *
 * A slot's word is (generation << 8 | state). P is the only producer. Life of a slot:
 *   FREE --publish--> PENDING --M: compare-and-swap--> SENT --P: retire--> FREE (generation + 1)
 *                     PENDING --P: cancel (c-a-s)-----> VOID --P: retire--> FREE (generation + 1)
 * P retires a VOID slot after the device has drained.
 * To reuse a slot P closes the word (state CLOSED, new generation), then writes the fields, then
 * clears the board words, then stores (generation, PENDING) with release order. M reads the word,
 * copies the fields, reads the word again and drops the copy if it changed. Generations (56 bits)
 * do not wrap: a slot that reaches the last one is not used again.
 *
 * A progress word is (generation << 32 | tokens computed), with the generation's low 32 bits. There
 * is one per layer, stored with release order after the layer's KV of those tokens is in the pool
 * (on CUDA by a stream-ordered write). It is state, not an event: a store of another generation,
 * early, repeated or late, is ignored.
 *
 * Each slot has one more word, (generation << 32 | step number), each cut to 32 bits: the last step
 * of P's schedule that included the transfer. The header has the number of the current step. By
 * these M can tell a transfer that waits for its turn from one that P has lost. Both words are
 * state as well.
 *
 * Doorbell: an eventfd that M creates. P rings it only while M says that it is sleeping. It
 * shortens the wait; correctness does not depend on it.
 *
 * M trusts nothing here: counts are checked against the sizes in the hello; a bad slot is a failed
 * transfer, not a crash. Model: tests/model (board). */
#ifndef KV_RING_H
#define KV_RING_H

#include "util/err.h"
#include "util/log.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define RING_MAGIC 0x31474e4952564b50ull /* "PKVRING1" */
#define RING_BLOCKS_MAX 4096u            /* blocks of one transfer: 262,144 tokens of 64 */
#define RING_NAME_MAX 48
#define RING_SLOTS_MAX 1024u

enum ring_state { RING_FREE, RING_CLOSED, RING_PENDING, RING_SENT, RING_VOID };

struct ring_transfer {
	struct reqid req;
	uint32_t attempt;
	uint64_t lease_id, lease_epoch, lease_generation;
	char decode[RING_NAME_MAX]; /* name of the decode worker that granted, NUL-terminated */
	uint64_t deadline_us;       /* CLOCK_MONOTONIC of this host */
	/* number of prompt tokens that D has in its prefix cache: a multiple of block_tokens */
	uint32_t first_token;
	/* prompt tokens in total; [first_token, tokens) are sent */
	uint32_t tokens;
	uint32_t blocks;               /* entries in src and dst: the blocks of [first_token, tokens) */
	uint32_t src[RING_BLOCKS_MAX]; /* P's blocks */
	uint32_t dst[RING_BLOCKS_MAX]; /* D's blocks */
};

struct ring;

/* P. slots 1 to RING_SLOTS_MAX, layers 1 to KV_LAYERS_MAX. 0, ERR_INVALID, ERR_IO or ERR_NOMEM. */
int ring_create(uint32_t slots, uint32_t layers, uint64_t epoch, struct ring **ret_ring,
                struct err *err);
/* M. Takes over fd, also on failure; slots, layers and epoch are those of the hello. 0, ERR_INVALID
 * (not a sealed memfd of exactly that size), ERR_CORRUPT (header), ERR_STALE (epoch), ERR_IO or
 * ERR_NOMEM. */
int ring_map(int fd, uint32_t slots, uint32_t layers, uint64_t epoch, struct ring **ret_ring,
             struct err *err);
void ring_destroy(struct ring **r);
/* The ring keeps ownership; sock_send passes a duplicate. */
int ring_fd(const struct ring *r);
/* The whole mapping, for a device that stores into the board. */
void *ring_mapping(const struct ring *r, size_t *ret_bytes);
uint32_t ring_slots(const struct ring *r);
uint32_t ring_layers(const struct ring *r);

/* --- P; any thread (one mutex inside) --- */
/* Takes a free slot; 0 or ERR_FULL. From now on (*ret_slot, *ret_gen) identifies the transfer.
 * blocks must be 1 to RING_BLOCKS_MAX and first_token < tokens, else it is a bug. */
int ring_publish(struct ring *r, const struct ring_transfer *transfer, uint32_t *ret_slot,
                 uint64_t *ret_gen);
/* PENDING -> VOID. 0, or ERR_STALE if M has already marked it sent (or the slot has another
 * transfer). */
int ring_cancel(struct ring *r, uint32_t slot, uint64_t gen);
/* Makes the slot reusable. The transfer must be sent or void and the device drained (nothing stores
 * into its board words any more). Ignored for another generation. */
void ring_retire(struct ring *r, uint32_t slot, uint64_t gen);
/* Address of the layer's word, in ring_mapping, and the value to store there (atomically, with
 * release order). */
uint64_t *ring_progress_word(struct ring *r, uint32_t slot, uint32_t layer);
uint64_t ring_progress_value(uint64_t gen, uint32_t tokens);
/* ring_step: the schedule begins a step. ring_schedule: this step includes the transfer. One thread
 * calls both. A transfer that was just published counts as scheduled until the step after the next
 * begins. */
void ring_step(struct ring *r);
void ring_schedule(struct ring *r, uint32_t slot, uint64_t gen);
uint32_t ring_used(struct ring *r); /* slots that are not free */

/* --- M --- */
/* The state and the generation of the slot's word. */
enum ring_state ring_peek(const struct ring *r, uint32_t slot, uint64_t *ret_gen);
/* Copies the fields of a PENDING or SENT transfer, and `blocks` entries of src and dst; 0,
 * ERR_STALE (the slot has none, or changed during the copy), or ERR_CORRUPT (counts or
 * the name out of range; *ret_gen is set). *ret_transfer is undefined unless 0. */
int ring_read(const struct ring *r, uint32_t slot, struct ring_transfer *ret_transfer,
              uint64_t *ret_gen, enum ring_state *ret_state);
/* Checks that a transfer fits both sides: `blocks` matches its tokens, and each block number is
 * below its pool's count. 0 or ERR_CORRUPT. M calls this before it computes any address from the
 * transfer. */
int ring_transfer_check(const struct ring_transfer *t, uint32_t block_tokens, uint32_t src_blocks,
                        uint32_t dst_blocks);
/* Tokens computed in this layer for exactly this generation; 0 if the word has another. Acquire
 * order. A broken P may store any number: the caller must bound it by the transfer's tokens. */
uint32_t ring_progress(const struct ring *r, uint32_t slot, uint32_t layer, uint64_t gen);
/* 1 if P's schedule included this transfer in its current step or in the one before (P may not yet
 * have reached it in the current one). */
int ring_in_schedule(const struct ring *r, uint32_t slot, uint64_t gen);
/* (gen, PENDING) -> (gen, SENT); 0 or ERR_STALE. */
int ring_mark_sent(struct ring *r, uint32_t slot, uint64_t gen);

/* --- doorbell --- */
/* P: sets the bell, an eventfd from M (taken over; -1 removes it). ring_bell rings it if M is
 * sleeping: call it after a store that M should see. It never waits, whatever M handed over. Any
 * thread. */
void ring_set_bell(struct ring *r, int fd);
void ring_bell(struct ring *r);
/* M: 1 before it sleeps on the bell, 0 when it is awake. After 1, M must look at the ring once more
 * before it sleeps. */
void ring_sleeping(struct ring *r, int sleeping);

#endif
