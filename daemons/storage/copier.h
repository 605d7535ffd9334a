/* copier.h - batches of puts and gets, and the threads that copy.
 *
 * A batch belongs to one worker's life: it reads or writes the blocks of the region that was handed
 * over. Workers are served in turn, TURN_BYTES at a time, and at most AWAY_BYTES_MAX of one worker
 * are with the tiers: a worker that queues 65,536 blocks delays another one by these, not by all of
 * its own. Gets are served before puts (somebody waits for them), but for one put after GETS_BYTES
 * of gets. Within a worker batches run in order, and items within a batch, several at a time if
 * there are several threads.
 *
 * `finished` is called exactly once for each batch, when no thread touches the region for it any
 * more; so what it leads to (the answer, the acknowledged fence, the unmapping) is a fence. It is
 * called on a copy thread, a tier's, or by copier_cancel on the caller's; the batch is then the
 * callee's.
 *
 * A batch that is given up does not wait for a tier: what a tier has of it (a ride) goes on
 * alone and touches the region no more. */
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
/* up to the block that reaches it; as much as the disk tier has buffers for at most */
#define AWAY_BYTES_MAX ((size_t)256 << 20)
#define GETS_BYTES ((size_t)16 << 20)

enum copy_kind { COPY_GET, COPY_PUT, COPY_KINDS };

/* A worker's place in the queue of one kind; the copier's, under its lock. */
struct copy_turn {
	struct list link;    /* in the queue while something is left to begin and may begin */
	struct list batches; /* with items left to begin */
	size_t begun_bytes;  /* in this turn */
	size_t away_bytes;   /* with the tiers */
};

/* What copying needs to know of a worker. It must outlive the batches on it. */
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
	struct copy_ride *ride; /* while a tier has it, under the copier's lock */
	uint32_t block;
	uint64_t generation, begun_ns;
	int refused;           /* code is set already: not to be done */
	int moved;             /* its bytes were copied */
	unsigned char tail[8]; /* the owner's */
	Pds__StoreCode code;
	enum tier_id tier; /* who has it */
	const char *text;  /* static, or NULL */
};

struct batch {
	struct list run; /* in its worker's turn while items are left to begin */
	enum copy_kind kind;
	struct copier *copier;
	struct copy_target *target;
	atomic_int cancelled;
	uint32_t n, next, running;
	int over; /* finished was called */
	/* bytes: copied; copy_ns: time of the items with the tier */
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
/* Every batch must be given up before. Ends the threads. What a tier still has ends by the
 * tier's end, which comes before copier_destroy. */
void copier_stop(struct copier *c);
void copier_destroy(struct copier **c); /* stops it if it was not */

/* Zeroed, with n items; block, generation and key are to be set. */
struct batch *batch_new(enum copy_kind kind, struct copy_target *target, uint32_t n);
void batch_free(struct batch *b);
void copier_submit(struct copier *c, struct batch *b);
/* Items that have not begun become STORE_CANCELLED, and so do those that a tier has and has not
 * copied yet; a put that it has copied, too, though the block may be stored after all. What is
 * being copied just now ends with the present burst of pieces. Not for a batch that is finished
 * and gone. */
void copier_cancel(struct copier *c, struct batch *b);

#endif
