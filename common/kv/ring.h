/* ring.h - transfer ring and progress board: what a prefill worker (P) tells the messager (M), in
 * shared memory.
 *
 * One memfd: a header, `slots` transfer slots, and a board of slots x layers progress words.
 *
 * A slot's word is (generation << 8 | state). P is the only producer. Life of a slot:
 *   FREE --publish--> PENDING --M: compare-and-swap--> SENT --P: retire--> FREE (generation + 1)
 *                     PENDING --P: cancel (c-a-s)-----> VOID --P: retire--> FREE (generation + 1)
 * P retires a VOID slot after the device has drained.
 * To reuse a slot P closes the word (state CLOSED, new generation), then writes the fields, then
 * clears the board words, then stores (generation, PENDING) with release order. M reads the word,
 * copies the fields, reads the word again and drops the copy if it changed. Generations do not wrap
 * (56 bits; the ring is replaced under a new epoch before that).
 *
 * A progress word is (generation << 32 | tokens computed), generation cut to 32 bits; one for each
 * layer; stored with release order after the layer's KV of those tokens is in the pool (on CUDA by
 * a stream-ordered write). It is state, not an event: early, repeated or late stores of another
 * generation count for nothing.
 *
 * Beside the layers' words of a slot is one that says in which step P's schedule had the transfer
 * in hand, (generation << 32 | number of the step, cut to 32 bits); the header has the number of
 * the present step. So M can tell a transfer that waits for its turn from one that P has lost. Both
 * are state as well.
 *
 * Doorbell: an eventfd that M created and P rings only while M says that it sleeps; it is an
 * accelerator, never needed for correctness.
 *
 * M trusts nothing here: counts are checked against the sizes of the hello message; a bad slot is a
 * failed transfer, not a crash. Model: tests/model (board). */
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
	char decode[RING_NAME_MAX]; /* name of the worker that granted, NUL-terminated */
	uint64_t deadline_us;       /* CLOCK_MONOTONIC of this host */
	/* what D holds already (its prefix cache): a multiple of block_tokens */
	uint32_t first_token;
	/* prompt tokens in all; [first_token, tokens) are to be sent */
	uint32_t tokens;
	/* 1: P is told when M has taken the transfer up (TRANSFER_SEEN; for measurements) */
	uint32_t want_seen;
	uint32_t blocks;               /* entries below: those of [first_token, tokens) */
	uint32_t src[RING_BLOCKS_MAX]; /* P's blocks */
	uint32_t dst[RING_BLOCKS_MAX]; /* D's blocks */
};

struct ring;

/* P. slots 1 to RING_SLOTS_MAX, layers 1 to KV_LAYERS_MAX. 0, ERR_INVALID, ERR_IO or ERR_NOMEM. */
int ring_create(uint32_t slots, uint32_t layers, uint64_t epoch, struct ring **ret_ring,
                struct err *err);
/* M. Takes fd over, also on failure; slots, layers and epoch are what the hello said. 0,
 * ERR_INVALID (not a sealed memfd of exactly that size), ERR_CORRUPT (header), ERR_STALE
 * (epoch), ERR_IO or ERR_NOMEM. */
int ring_map(int fd, uint32_t slots, uint32_t layers, uint64_t epoch, struct ring **ret_ring,
             struct err *err);
void ring_destroy(struct ring **r);
/* Stays owned by the ring; sock_send hands a duplicate over. */
int ring_fd(const struct ring *r);
/* All of it, for a device that stores into the board. */
void *ring_mapping(const struct ring *r, size_t *ret_bytes);
uint32_t ring_slots(const struct ring *r);
uint32_t ring_layers(const struct ring *r);

/* --- P; any thread (one mutex inside) --- */
/* Takes a free slot; 0 or ERR_FULL. *ret_slot and *ret_gen name the transfer from now on. blocks is
 * 1 to RING_BLOCKS_MAX and first_token < tokens, else it is a bug. */
int ring_publish(struct ring *r, const struct ring_transfer *transfer, uint32_t *ret_slot,
                 uint64_t *ret_gen);
/* PENDING -> VOID. 0, or ERR_STALE when M has marked it sent already (or it is another
 * transfer's). */
int ring_cancel(struct ring *r, uint32_t slot, uint64_t gen);
/* The slot may be reused: the transfer is sent or void and the device has drained (nothing will
 * store into its board words any more). Ignored for another generation. */
void ring_retire(struct ring *r, uint32_t slot, uint64_t gen);
/* Address of the layer's word, in ring_mapping, and the value to store there (atomically, with
 * release order). */
uint64_t *ring_progress_word(struct ring *r, uint32_t slot, uint32_t layer);
uint64_t ring_progress_value(uint64_t gen, uint32_t tokens);
/* The schedule begins a step, then says of each transfer that it has in hand that it has. One
 * thread. A transfer that was just published counts as in hand until the step after the next
 * begins. */
void ring_step(struct ring *r);
void ring_schedule(struct ring *r, uint32_t slot, uint64_t gen);
uint32_t ring_used(struct ring *r); /* slots that are not free */

/* --- M --- */
enum ring_state ring_peek(const struct ring *r, uint32_t slot, uint64_t *ret_gen);
/* Copies the fields of a PENDING or SENT transfer, and `blocks` entries of src and dst; 0,
 * ERR_STALE (none there, or it changed meanwhile), or ERR_CORRUPT (counts out of range; *ret_gen is
 * set). *ret_transfer is garbage unless 0. */
int ring_read(const struct ring *r, uint32_t slot, struct ring_transfer *ret_transfer,
              uint64_t *ret_gen, enum ring_state *ret_state);
/* Does a transfer that was read fit both sides: blocks are just those of its tokens, and each
 * number is below its pool's count? 0 or ERR_CORRUPT. M asks before it computes any address from
 * the transfer. */
int ring_transfer_check(const struct ring_transfer *t, uint32_t block_tokens, uint32_t src_blocks,
                        uint32_t dst_blocks);
/* Tokens computed in this layer for exactly this generation, 0 if the word is another's. Acquire
 * order. A broken P may say any number: no more than the transfer's tokens count. */
uint32_t ring_progress(const struct ring *r, uint32_t slot, uint32_t layer, uint64_t gen);
/* 1: P's schedule had this transfer in hand in its present step, or in the one before (it may be
 * about to say so). */
int ring_in_schedule(const struct ring *r, uint32_t slot, uint64_t gen);
/* (gen, PENDING) -> (gen, SENT); 0 or ERR_STALE. */
int ring_mark_sent(struct ring *r, uint32_t slot, uint64_t gen);

/* --- doorbell --- */
/* P: fd (an eventfd from M; taken over; -1 removes it). ring_bell, called after a store that M
 * should see, writes to it if M sleeps; it never waits, whatever M handed over. Any thread. */
void ring_set_bell(struct ring *r, int fd);
void ring_bell(struct ring *r);
/* M: say that it will sleep on the bell (1) or is awake (0). After saying 1, M must look at the
 * ring once more before it sleeps. */
void ring_sleeping(struct ring *r, int sleeping);

#endif
