/* tp.h - processes that compute one forward pass together. Each is a stage
 * of a pipeline, with layers of its own, or one of several ranks of a stage (tensor parallelism),
 * with its share of these layers' weights.
 *
 * Rank 0 is the process that opened the engine; ranks 1 .. n-1 are processes of the program pdrank.
 * Rank 0 starts those of its own host; the last stages may be on other hosts, where bridge.h starts
 * their ranks. Stage s is the ranks [s * k, (s + 1) * k); the first of them passes rows between
 * stages (tp_send). All of a host share a mapping with the batch.
 *
 * Within a stage, the activations that a product needs as a whole are in GROUP memory (group.h):
 * a rank writes its columns, and gets those of all ranks in an all-gather; ranks of the CPU share
 * that memory and only meet, at `tp_barrier`. No partial sums are added up: each element is
 * computed by one rank, with the additions in the order of a single process, also where ranks have
 * whole experts (moe.c). So the bits do not
 * depend on the number of stages and ranks, and workers with different parallelism can exchange KV.
 *
 * Each stage has a KV pool of its layers. On the CPU its ranks share it; each writes and reads the
 * part of its heads in every block. Ranks with devices of their own each have a pool of their
 * heads. If there are more ranks than heads of the cache, several compute and write the same KV,
 * bit for bit alike (nearly so with the variant fast, where it does not matter whose is read).
 *
 * Failure: a rank that ends, fails, or is late fails the group for good; from then on every wait
 * for other ranks returns an error. A rank that waits for an order (tp_await) ends with rank 0's
 * group. Ranks end when rank 0's process does, however it ended, also if they are
 * stopped; and when the thread that called tp_start ends. */
#ifndef ENGINE_TP_H
#define ENGINE_TP_H

#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

enum {
	TP_RANKS_MAX = 64,
	TP_COLUMNS = 16,       /* columns are divided in units of this many */
	TP_OPEN_LIMIT_S = 600, /* for a rank to load its weights */
	TP_STEP_LIMIT_S = 60,  /* for a rank to reach a barrier of a step */
	TP_STAGE_LIMIT_S = 300 /* for a stage to do its part of a step */
};

/* A rank's part of `total` items, which are divided in units: [begin, begin + count). */
struct tp_share {
	uint32_t begin, count, total, unit;
};
struct tp_share tp_share_of(uint32_t total, uint32_t unit, unsigned rank, unsigned ranks);

enum tp_order { TP_STEP, TP_NEW_POOL, TP_ROOM };

struct tp;

/* Called at most once, on any thread, when the group has failed; not during tp_destroy. */
typedef void tp_broken(void *arg, const char *why);

/* A stage on another host: the connection to its process (engine_stage_main), and its name for
 * people. */
struct tp_remote {
	struct wire *wire;
	char name[48];
};

struct tp_start {
	unsigned stages, ranks; /* ranks: of all stages, each of which has equally many */
	size_t bytes;           /* that all ranks see (tp_shared_bytes) */
	const void *hello;      /* parameters of their engines, opaque here */
	size_t hello_bytes;
	tp_broken *broken; /* may be NULL */
	void *broken_arg;
	/* the last n_remote stages. A wire that the group has taken over is NULL afterwards, also after
	 * an error; the others stay the caller's */
	struct tp_remote *remote;
	unsigned n_remote;
};
/* Rank 0: makes the mapping and starts the other ranks, or has them started on their hosts, with a
 * copy of `hello`. They load while the caller does; tp_exchange waits until all are ready. 0,
 * ERR_INVALID (ranks), ERR_NOTFOUND (pdrank), ERR_NOMEM, ERR_IO. */
int tp_start(const struct tp_start *o, struct tp **ret_tp, struct err *err);
/* Other ranks: joins the group through the socket from rank 0 and copies its `hello`. 0,
 * ERR_INVALID, ERR_NOMEM, ERR_CORRUPT, ERR_IO. */
int tp_join(int fd, void *hello, size_t hello_bytes, struct tp **ret_tp, struct err *err);
/* Rank 0: ends the other ranks and waits for them, two seconds at most. Any rank: unmaps the
 * mapping. */
void tp_destroy(struct tp **tp);

unsigned tp_rank(const struct tp *tp);
unsigned tp_ranks(const struct tp *tp); /* of all stages */
unsigned tp_stages(const struct tp *tp);
/* What all ranks see, on pages of its own. */
void *tp_shared_bytes(const struct tp *tp, size_t *ret_bytes);
/* A word of the mapping that becomes nonzero when the group has failed. */
const uint32_t *tp_failed_word(const struct tp *tp);

/* Waits for all ranks of this stage, which must make the same calls in the same order. 0, or ERR_IO
 * once the group has failed. */
int tp_barrier(struct tp *tp, unsigned limit_s);
/* The first rank of a stage: passes bytes to the next stage (of the last one that is stage 0), or
 * takes as many as the previous one passes. 0, or ERR_IO once the group has failed. */
int tp_send(struct tp *tp, const void *data, size_t bytes, unsigned limit_s);
int tp_recv(struct tp *tp, void *ret, size_t bytes, unsigned limit_s);
/* Fails the group; the first reason is kept. tp_why: that reason, or NULL if the group has not
 * failed. */
void tp_fail(struct tp *tp, const char *why);
const char *tp_why(const struct tp *tp);

/* Rank 0: wakes the others for an order with `bytes` of data, at most TP_ORDER_BYTES, about a part
 * of the shared bytes. Every rank must have taken the order before the previous one: it has met the
 * others since, or has done its part of a step that is finished. */
#define TP_ORDER_BYTES 256u
enum { TP_ORDERS = 2 };
void tp_order(struct tp *tp, enum tp_order order, const void *data, size_t bytes, size_t shared_at,
              size_t shared_bytes);
/* Other ranks: waits for the next order, at most limit_us (0: without limit), and copies its data.
 * 0, or ERR_TIMEOUT. */
int tp_await(struct tp *tp, unsigned limit_us, enum tp_order *ret_order, void *data, size_t bytes);
/* Other ranks: the order that was taken last is done. Rank 0: waits until all orders are done. 0,
 * or ERR_IO once the group has failed. */
void tp_done(struct tp *tp);
int tp_await_done(struct tp *tp, unsigned limit_s);
/* Grows while rank 0 waits for another stage (tp_recv, tp_await_done). Any thread. */
uint64_t tp_waits(const struct tp *tp);
/* Every rank passes `bytes`, at most TP_EXCHANGE_BYTES, and a descriptor or -1, which stays its
 * own, and gets the bytes of all ranks, all (ranks, bytes), and the descriptors of its stage, rank
 * 0 those of all: fds (ranks), of which the caller closes those that are not -1; its own is -1. At
 * most SOCK_FDS_MAX ranks of a stage pass a descriptor. Waits for all ranks. 0, or ERR_IO once the
 * group has failed. */
#define TP_EXCHANGE_BYTES 160u
int tp_exchange(struct tp *tp, const void *mine, size_t bytes, int fd, void *all, int *fds);

#endif
