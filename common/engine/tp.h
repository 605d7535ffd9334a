/* tp.h - tensor parallelism on one host: processes that compute one forward pass together, each
 * with its share of the weights.
 *
 * Rank 0 is the process that opened the engine; ranks 1 .. n-1 are processes of the program pdrank,
 * which it starts. They share a mapping with the batch. The activations that a product needs as a
 * whole are in GROUP memory (kernels.h): a rank writes its columns, and gets those of all ranks in
 * an all-gather; ranks of the CPU share that memory and only meet, at `tp_barrier`. No partial sums
 * are added up: each element is computed by one rank, with the additions in the order of a single
 * process. So the bits do not depend on the number of ranks, and workers with different tensor
 * parallelism can exchange KV.
 *
 * On the CPU all ranks share one KV pool; each writes and reads the part of its heads in every
 * block. Ranks with devices of their own each have a pool of their heads.
 *
 * Failure: a rank that ends, fails, or does not reach a barrier in time fails the group for good;
 * from then on every barrier returns an error. Ranks end when rank 0's process does, however it
 * ended, also if they are stopped; and when the thread that called tp_start ends. */
#ifndef ENGINE_TP_H
#define ENGINE_TP_H

#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

enum {
	TP_RANKS_MAX = 64,
	TP_COLUMNS = 16,       /* columns are divided in units of this many */
	TP_OPEN_LIMIT_S = 600, /* for a rank to load its weights */
	TP_STEP_LIMIT_S = 60   /* for a rank to reach a barrier of a step */
};

/* A rank's part of `total` items, which are divided in units: [begin, begin + count). */
struct tp_share {
	uint32_t begin, count, total, unit;
};
struct tp_share tp_share_of(uint32_t total, uint32_t unit, unsigned rank, unsigned ranks);

enum tp_order { TP_STEP, TP_HIDDEN, TP_ATTACH, TP_ROOM };

struct tp;

/* Called at most once, on any thread, when the group has failed; not during tp_destroy. */
typedef void tp_broken(void *arg, const char *why);

/* Rank 0: makes the mapping, with room for `bytes` that all ranks see (tp_shared_bytes). Starts the
 * other ranks with a copy of `hello` (parameters of their engines, opaque here). They load
 * while the caller does; tp_barrier with TP_OPEN_LIMIT_S waits until all are ready. `broken` may be
 * NULL. 0, ERR_INVALID (ranks), ERR_NOTFOUND (pdrank), ERR_NOMEM, ERR_IO. */
int tp_start(unsigned ranks, size_t bytes, const void *hello, size_t hello_bytes, tp_broken *broken,
             void *broken_arg, struct tp **ret_tp, struct err *err);
/* Other ranks: joins the group through the socket from rank 0 and copies its `hello`. 0,
 * ERR_INVALID, ERR_NOMEM, ERR_CORRUPT, ERR_IO. */
int tp_join(int fd, void *hello, size_t hello_bytes, struct tp **ret_tp, struct err *err);
/* Rank 0: ends the other ranks and waits for them, two seconds at most. Any rank: unmaps the
 * mapping. */
void tp_destroy(struct tp **tp);

unsigned tp_rank(const struct tp *tp);
unsigned tp_ranks(const struct tp *tp);
/* What all ranks see, on pages of its own. */
void *tp_shared_bytes(const struct tp *tp, size_t *ret_bytes);
/* A word of the mapping that becomes nonzero when the group has failed. */
const uint32_t *tp_failed_word(const struct tp *tp);

/* Waits for all ranks. 0, or ERR_IO once the group has failed. All ranks must make the same calls
 * in the same order. */
int tp_barrier(struct tp *tp, unsigned limit_s);
/* Fails the group; the first reason is kept. tp_why: that reason, or NULL if the group has not
 * failed. */
void tp_fail(struct tp *tp, const char *why);
const char *tp_why(const struct tp *tp);

/* Rank 0: wakes the others for an order with `bytes` of data, at most TP_ORDER_BYTES. Every rank
 * must have taken the order before the previous one: it has met the others since, or has done its
 * part of a step that is finished. */
#define TP_ORDER_BYTES 256u
enum { TP_ORDERS = 2 };
void tp_order(struct tp *tp, enum tp_order order, const void *data, size_t bytes);
/* Other ranks: waits for the next order, at most limit_us (0: without limit), and copies its data.
 * 0, or ERR_TIMEOUT. */
int tp_await(struct tp *tp, unsigned limit_us, enum tp_order *ret_order, void *data, size_t bytes);
/* Every rank passes `bytes`, at most TP_EXCHANGE_BYTES, and a descriptor or -1, which stays its
 * own, and gets those of all ranks: all (ranks, bytes), fds (ranks), of which the caller closes
 * those that are not -1; its own is -1. At most SOCK_FDS_MAX ranks pass a descriptor. Waits for all
 * ranks. 0, or ERR_IO once the group has failed. */
#define TP_EXCHANGE_BYTES 160u
int tp_exchange(struct tp *tp, const void *mine, size_t bytes, int fd, void *all, int *fds);

#endif
