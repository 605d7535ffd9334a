/* copier.h - batches of puts and gets, and the threads that copy.
 *
 * A batch belongs to one worker's life: it reads or writes the blocks of the region that was handed over. Gets are served before puts (somebody
 * waits for them). Within a batch items run in order, several at a time if there are several threads.
 *
 * `finished` is called exactly once for each batch, when no thread touches the region for it any more; so what it leads to (the answer, the
 * acknowledged fence, the unmapping) is a fence. It is called on a copy thread, a tier's, or by copier_cancel on the caller's; the batch is then the callee's.
 *
 * A batch that is given up does not wait for a tier: what a tier has of it (a ride) goes on alone and touches the region no more. */
#ifndef STORAGE_COPIER_H
#define STORAGE_COPIER_H

#include "tier.h"

#include "kv/layout.h"
#include "kv/region.h"
#include "msg/types.h"
#include "util/list.h"

#include <stdatomic.h>
#include <stdint.h>

/* What copying needs to know of a worker. It must outlive the batches on it. */
struct copy_target {
	struct kv_layout layout;
	struct kv_region region;
};

enum copy_kind { COPY_GET, COPY_PUT, COPY_KINDS };

struct batch;
struct copier;

struct copy_ride;

struct copy_item {
	struct tier_key key;
	struct batch *batch;
	struct copy_ride *ride;    /* while a tier has it, under the copier's lock */
	uint32_t block;
	uint64_t generation, begun_ns;
	int refused;               /* code is set already: not to be done */
	int moved;                 /* its bytes were copied */
	unsigned char tail[8];     /* the owner's */
	Pds__StoreCode code;
	enum tier_id tier;         /* who has it */
	const char *text;          /* static, or NULL */
};

struct batch {
	struct list run;           /* in the queue of its kind while items are left to begin */
	enum copy_kind kind;
	struct copier *copier;
	const struct copy_target *target;
	atomic_int cancelled;
	uint32_t n, next, running;
	int over;                  /* finished was called */
	uint64_t begun_us, bytes, copy_ns;   /* bytes: copied; copy_ns: time of the items with the tier */
	/* the owner's */
	struct list link;
	void *owner;
	uint64_t number;
	int fence_wanted;
	struct copy_item item[];   /* (n) */
};

struct copier *copier_new(struct tier *tier, unsigned threads, void (*finished)(void *arg, struct batch *b), void *arg);
/* Ends the threads when nothing is left to begin. What a tier still has ends by the tier's end, which comes before copier_destroy. */
void copier_stop(struct copier *c);
void copier_destroy(struct copier **c);   /* stops it if it was not */

/* Zeroed, with n items; block, generation and key are to be set. */
struct batch *batch_new(enum copy_kind kind, const struct copy_target *target, uint32_t n);
void batch_free(struct batch *b);
void copier_submit(struct copier *c, struct batch *b);
/* Items that have not begun become STORE_CANCELLED, and so do those that a tier has and has not copied yet; a put that it has copied, too, though the
 * block may be stored after all. What is being copied just now ends with the present burst of pieces. Not for a batch that is finished and gone. */
void copier_cancel(struct copier *c, struct batch *b);

#endif
