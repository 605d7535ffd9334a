/* tp.h - tensor parallel on one host: processes that compute one forward pass together, each with
 * its share of the weights.
 *
 * Rank 0 is the process that opened the engine; ranks 1 .. n-1 are processes of the program pdrank,
 * which it starts. What they tell each other lies in one shared mapping: the batch, and the
 * activations that a product needs in whole. A rank writes its columns, `tp_barrier` is the
 * barrier, then every rank reads all columns (an all-gather). No partial sums are added up: each
 * element is computed by one rank, in the order of additions of a single process. So the bits do
 * not depend on the number of ranks, and workers of different tensor parallelism may exchange KV.
 *
 * The KV pool is one for all ranks; each writes and reads its own heads' part of every block.
 *
 * Failure: a rank that ends, fails, or does not come to a meeting in time fails the group for good;
 * every wait returns then. Ranks end when rank 0's process does, however it ended, stopped ones
 * too; and with the thread that called tp_start. */
#ifndef ENGINE_TP_H
#define ENGINE_TP_H

#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

enum {
	TP_RANKS_MAX = 64,
	TP_COLUMNS = 16,       /* columns are shared out in units of these */
	TP_OPEN_LIMIT_S = 600, /* for a rank to load its weights */
	TP_STEP_LIMIT_S = 60   /* for a rank to come to a meeting of a step */
};

/* A rank's part of `total` things, which are shared out in units: [begin, begin + count). */
struct tp_share {
	uint32_t begin, count, total, unit;
};
struct tp_share tp_share_of(uint32_t total, uint32_t unit, unsigned rank, unsigned ranks);

/* What all ranks see, in elements. */
struct tp_sizes {
	size_t att, sum, act, logits, words;
};
struct tp_view {
	float *att, *sum, *act, *logits; /* one row after the other, whole rows */
	uint32_t *words;                 /* the batch */
	void *base;                      /* of all of them, `bytes` long */
	size_t bytes;
};

enum tp_order { TP_STEP, TP_ATTACH };

struct tp;

/* Told once, on any thread, when the group has failed; not while it is destroyed. */
typedef void tp_broken(void *arg, const char *why);

/* Rank 0: makes the mapping and starts the others with a copy of `hello` (what their engines are
 * opened with; its meaning is the caller's). They load while the caller does; tp_barrier with
 * TP_OPEN_LIMIT_S is where all are ready. `broken` may be NULL. 0, ERR_INVALID (ranks),
 * ERR_NOTFOUND (pdrank), ERR_NOMEM, ERR_IO. */
int tp_start(unsigned ranks, const struct tp_sizes *sizes, const void *hello, size_t hello_bytes,
             tp_broken *broken, void *broken_arg, struct tp **ret_tp, struct err *err);
/* A rank, from the socket that rank 0 gave it: `hello` is filled with what rank 0 said. 0,
 * ERR_INVALID, ERR_CORRUPT, ERR_IO. */
int tp_join(int fd, void *hello, size_t hello_bytes, struct tp **ret_tp, struct err *err);
/* Rank 0: ends the other ranks and waits for them. Any rank: unmaps. */
void tp_destroy(struct tp **tp);

unsigned tp_rank(const struct tp *tp);
unsigned tp_ranks(const struct tp *tp);
struct tp_view tp_view(const struct tp *tp);

/* Returns 0 when all ranks have come, or ERR_IO once the group has failed. All ranks must make
 * the same calls in the same order. */
int tp_barrier(struct tp *tp, unsigned limit_s);
/* Fails the group; the first reason stays. tp_why: that reason, or NULL while the group is well. */
void tp_fail(struct tp *tp, const char *why);
const char *tp_why(const struct tp *tp);

/* Rank 0: wakes the others for an order with `bytes` of data, at most TP_ORDER_BYTES. They must
 * have met since the order before. */
#define TP_ORDER_BYTES 256u
void tp_order(struct tp *tp, enum tp_order order, const void *data, size_t bytes);
/* Other ranks: waits for the next order, however long; copies its data. */
enum tp_order tp_await(struct tp *tp, void *data, size_t bytes);
/* Rank 0 hands a descriptor to every other rank, after the order that announces it; a rank takes
 * it. ERR_IO on failure. */
int tp_give_fd(struct tp *tp, int fd);
int tp_take_fd(struct tp *tp);

#endif
