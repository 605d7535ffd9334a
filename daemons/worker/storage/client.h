/* client.h - the worker's client of this host's storage daemon: put, get and look up KV blocks by
 * prefix hash, in batches.
 *
 * store_put, store_get, store_lookup and store_cancel may be called from any thread; they copy
 * their arguments, never wait, and return the batch's number. Each numbered batch completes exactly
 * once, by a call of store_opts.done on the loop's thread: answered, timed out, cancelled, or
 * because storage is gone. Outstanding batches are bounded (batches_max): beyond that a caller gets
 * ERR_FULL.
 *
 * Who may touch the blocks:
 *   put     storage reads them. completion->quiet 1: storage has stopped reading
 *           (kv_pool_read_end). quiet 0 (timed out, cancelled, link down): storage may still read;
 *           what it stores is void once the block has a new generation (kv_pool_void).
 *   get     storage writes them. The completion arrives only after storage has stopped writing: it
 *           answered, it acknowledged a fence, or its process is gone. So a get that times out
 *           completes later than its deadline, and until it completes the blocks must not be
 *           reused, released or computed into. quiet is always 1.
 *
 * The store knows no pool and frees no block: a batch's owner keeps what belongs to it (user). */
#ifndef WORKER_STORAGE_CLIENT_H
#define WORKER_STORAGE_CLIENT_H

#include "kv/handover.h"
#include "kv/hash.h"
#include "svc/svc.h"

#include <stdint.h>

#define STORE_ITEMS_MAX 4096u /* of one batch */

struct store;

/* Where storage has a block, from the fastest to the slowest; the numbers are the protocol's
 * (StoreFound.tiers, KvEvents.tier). NONE: not told. */
enum store_tier {
	STORE_TIER_NONE,
	STORE_TIER_MEMORY,
	STORE_TIER_DISK,
	STORE_TIER_REDIS,
	STORE_TIERS
};

struct store_item {
	struct kv_hash hash;
	uint32_t block;
	/* the block's; put: the contents are valid under it; get: the block is ours under it */
	uint64_t generation;
};

enum store_op { STORE_OP_PUT, STORE_OP_GET, STORE_OP_LOOKUP };

struct store_result {
	struct store_item item; /* as asked */
	Pds__StoreCode code;    /* STORE_OK: put: stored; get: read into the block and verified */
	unsigned char tier;     /* enum store_tier that has the block */
	char text[112];         /* reason if code is neither OK nor MISS, else "" */
};

struct store_completion {
	uint64_t batch;
	enum store_op op;
	void *user;
	/* 0: storage answered in time; ERR_TIMEOUT, ERR_CANCELLED, ERR_CLOSED (storage or the link
	 * is gone), ERR_FULL, ERR_INVALID */
	int code;
	char text[160]; /* reason of code, "" when 0 */
	int quiet;      /* storage has stopped touching the blocks; see above */
	/* lookup: how many of the hashes, from the first, are stored. get: how many leading items are
	 * OK */
	uint32_t leading;
	uint64_t took_us; /* from the call to the completion */
	uint64_t epoch;   /* of the storage it was sent to, 0: it was not sent */
	/* lookup: enum store_tier of each leading one (leading); NULL for put and get. Part of the
	 * completion */
	const unsigned char *tiers;
	/* results: one per item, in the order of the call, also when code is not 0 (items that
	 * arrived are OK); 0 for lookups */
	uint32_t n;
	struct store_result result[];
};

struct store_opts {
	const char *name;                   /* of the storage daemon on this host: "storage" */
	int tag;                            /* its peer's tag (chan_connect) */
	const struct handover_hello *hello; /* copied */
	struct handover_fds fds;            /* the caller's; must stay open until store_destroy */
	uint32_t batches_max;
	/* Storage of this epoch is ready; on the loop. Host memory of an earlier epoch is lost. May be
	 * NULL */
	void (*on_ready)(void *arg, uint64_t epoch);
	/* A batch is complete; c is the callee's (store_completion_free). It may ask and cancel, but
	 * not destroy the store. */
	void (*done)(void *arg, struct store_completion *c);
	void *arg;
};

/* Connects in the background, and again after storage restarts, until destroyed. store_new and
 * store_destroy: on the loop's thread. */
struct store *store_new(struct svc *s, const struct store_opts *opts);
/* No other thread may use it any more. Outstanding batches end without a completion; storage may
 * still write into the blocks of the gets among them. */
void store_destroy(struct store **st);

const char *store_tier_name(unsigned tier);

/* 1 while storage maps our memory and its link is up: only then are batches accepted. Any
 * thread. */
int store_ready(const struct store *st);

/* deadline_us: monotonic, 0: none. Returns 0 and sets *ret_batch, or there is no batch: ERR_CLOSED
 * (not ready), ERR_FULL (batches_max), ERR_INVALID (n is 0 or above STORE_ITEMS_MAX). ret_batch may
 * be NULL. On another thread than the loop's the completion may come before the call returns. */
int store_put(struct store *st, const struct store_item *items, uint32_t n, uint64_t deadline_us,
              void *user, uint64_t *ret_batch);
int store_get(struct store *st, const struct store_item *items, uint32_t n, uint64_t deadline_us,
              void *user, uint64_t *ret_batch);
/* prefetch 1: storage copies blocks that it finds below host memory into it, because a get will
 * follow. */
int store_lookup(struct store *st, const struct kv_hash *hashes, uint32_t n, int prefetch,
                 uint64_t deadline_us, void *user, uint64_t *ret_batch);
/* Gives a batch up: it completes with ERR_CANCELLED, unless it has completed before. Unknown
 * batches are ignored. */
void store_cancel(struct store *st, uint64_t batch);

void store_completion_free(struct store_completion **c);

/* --- called by the daemon's svc hooks, on the loop; NULL: nothing is done --- */
/* Handles MSG_STORE_DONE, MSG_STORE_FOUND and MSG_STORE_FENCED. */
void store_message(struct store *st, struct peer *p, const ProtobufCMessage *body);
/* Call for every peer: peers other than storage are ignored. */
void store_up(struct store *st, struct peer *p);
void store_down(struct store *st, struct peer *p, const char *why);

struct store_counts {
	uint64_t missed_blocks, timeouts, errors;
	uint64_t looked_up; /* blocks, of all lookups */
	/* blocks by the tier that found, read or stored them; NONE: not told */
	uint64_t found[STORE_TIERS], got[STORE_TIERS], put[STORE_TIERS];
	int ready;
};
void store_counts(struct store *st, struct store_counts *ret);

#endif
