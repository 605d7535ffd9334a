/* copier.h - batches of puts and gets, and the threads that copy them.
 *
 * A batch belongs to one attachment of a worker: it reads or writes the blocks of the region that
 * the worker handed over. Workers are served round-robin, TURN_BYTES at a time, and at most
 * AWAY_BYTES_MAX of one worker are with the tiers. A worker that queues 65,536 blocks therefore
 * delays others by at most that much, not by its whole queue. Gets go first because a request waits
 * for them, but one put is served after every GETS_BYTES of gets. A worker's batches start in
 * order, and so do the items of a batch; several threads may run items concurrently.
 *
 * `finished` is called exactly once per batch, when no thread touches the region for it any more.
 * What it triggers (the reply, the fence acknowledgement, the unmapping) is therefore safe. It is
 * called on a copy thread, a tier's thread, or by copier_cancel on the caller's thread; the batch
 * then belongs to the callee.
 *
 * A cancelled batch does not wait for a tier: an operation in a tier (a ride) continues detached
 * and no longer touches the region. */
#ifndef STORAGE_COPIER_H
#define STORAGE_COPIER_H

#include "tier.h"

#include "kv/layout.h"
#include "kv/region.h"
#include "msg/types.h"
#include "util/list.h"

#include <stdatomic.h>
#include <stdint.h>

#define TURN_BYTES ((size_t)4 << 20)
/* may be exceeded by the last block; equals the maximum of the disk tier's buffers */
#define AWAY_BYTES_MAX ((size_t)256 << 20)
#define GETS_BYTES ((size_t)16 << 20)

enum copy_kind { COPY_GET, COPY_PUT, COPY_KINDS };

/* A worker's place in the queue of one kind; protected by the copier's lock. */
struct copy_turn {
	struct list link;    /* in the queue while an item is left to start and may start */
	struct list batches; /* batches with items left to start */
	size_t begun_bytes;  /* started in this turn */
	size_t away_bytes;   /* with the tiers */
};

/* The copier's state of a worker. It must outlive the worker's batches. */
struct copy_target {
	struct kv_layout layout;
	struct kv_region region;
	struct copy_turn turn[COPY_KINDS];
};

void copy_target_init(struct copy_target *t, const struct kv_layout *layout,
                      const struct kv_region *region);

struct batch;
struct copier;

struct copy_ride;

struct copy_item {
	struct tier_key key;
	struct batch *batch;
	struct copy_ride *ride; /* while a tier has the item; protected by the copier's lock */
	uint32_t block;
	uint64_t generation, begun_ns;
	int refused;           /* code is already set: skip the item */
	int moved;             /* its bytes have been copied */
	unsigned char tail[8]; /* the owner's */
	Pds__StoreCode code;
	enum tier_id tier; /* the tier that has the block */
	const char *text;  /* static, or NULL */
};

struct batch {
	struct list run; /* in its worker's turn while items are left to start */
	enum copy_kind kind;
	struct copier *copier;
	struct copy_target *target;
	atomic_int cancelled;
	uint32_t n, next, running;
	int over; /* finished has been called */
	/* bytes: copied; copy_ns: time that items spent in the tier */
	uint64_t begun_us, bytes, copy_ns;
	/* the owner's */
	struct list link;
	void *owner;
	uint64_t number;
	int fence_wanted;
	struct copy_item item[]; /* (n) */
};

struct copier *copier_new(struct tier *tier, unsigned threads,
                          void (*finished)(void *arg, struct batch *b), void *arg);
/* Ends the threads; every batch must have been cancelled. Operations still in a tier end when the
 * tier is destroyed, which happens before copier_destroy. */
void copier_stop(struct copier *c);
void copier_destroy(struct copier **c); /* stops it if necessary */

/* Zeroed, with n items; the caller sets block, generation and key. */
struct batch *batch_new(enum copy_kind kind, struct copy_target *target, uint32_t n);
void batch_free(struct batch *b);
void copier_submit(struct copier *c, struct batch *b);
/* Items that have not started become STORE_CANCELLED, as do those in a tier that are not copied
 * yet. A put that the tier has copied becomes STORE_CANCELLED too, although its block may be
 * stored. An item that is being copied ends after the current burst of pieces. Must not be called
 * for a finished batch. */
void copier_cancel(struct copier *c, struct batch *b);

#endif
