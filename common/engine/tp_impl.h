/* tp_impl.h - a group's state, shared by tp.c (the group on one host) and bridge.c (its stages on
 * other hosts). */
#ifndef ENGINE_TP_IMPL_H
#define ENGINE_TP_IMPL_H

#include "engine/tp.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#define TP_MAGIC 0x6b6e617264703102u
enum { TP_WHY_BYTES = sizeof((struct err *)0)->text };

struct tp_shared {
	uint64_t magic, bytes;
	uint32_t stages, ranks;
	_Alignas(64) atomic_uint
		order_seq; /* number of the latest order, which is in order[number % TP_ORDERS] */
	struct {
		enum tp_order order;
		uint32_t at, bytes; /* of the shared bytes, what the order is about */
		unsigned char data[TP_ORDER_BYTES];
	} order[TP_ORDERS];
	_Alignas(64) atomic_uint done; /* grows when a rank has done an order */
	struct {
		_Alignas(64) atomic_uint generation; /* of the barrier */
		_Alignas(64) atomic_uint arrived;
	} stage[TP_RANKS_MAX];
	atomic_uint failing, failed; /* failing: someone writes `why`; failed: it is written */
	char why[TP_WHY_BYTES];
	struct {
		_Alignas(64) atomic_uint met; /* number of barriers that the rank has reached */
		atomic_uint done;             /* number of the order that it has done last */
	} at[TP_RANKS_MAX];
};

struct tp_child {
	pid_t pid; /* 0: it has ended, or is on another host */
	int fd;
};

struct tp {
	struct tp_shared *sh;
	unsigned rank, ranks, stages;
	unsigned order_seen;
	int fd;                              /* other ranks: socket to rank 0 */
	int to_next, from_previous;          /* the first rank of one of several stages; else -1 */
	struct tp_child child[TP_RANKS_MAX]; /* rank 0: rank i, from 1 on */
	int stop_fd;                         /* rank 0: stops the watcher */
	pthread_t watcher;
	int watching;
	tp_broken *broken;
	void *broken_arg;
	atomic_uint told; /* `broken` was called */
	_Atomic uint64_t waits;
	struct bridge *bridge[TP_RANKS_MAX]; /* rank 0: to stages on other hosts, in any order */
	unsigned bridges;
};

/* What rank 0 receives from a rank, and what it sends to each: all ranks' data, and which of them
 * passed a descriptor. Of these the receiver gets those of its stage but its own. */
struct tp_exchange_mine {
	uint32_t has_fd;
	unsigned char data[TP_EXCHANGE_BYTES];
};
struct tp_exchange_all {
	uint64_t has_fd; /* bit r: rank r */
	unsigned char data[TP_RANKS_MAX][TP_EXCHANGE_BYTES];
};

/* The sockets of each stage's first rank to the next stage and from the previous one. */
struct tp_ring {
	int to_next[TP_RANKS_MAX], from_previous[TP_RANKS_MAX];
};
/* Functions of tp.c: what a process needs that starts ranks of a group. */
struct tp *tp_new(unsigned stages, unsigned ranks);
/* The mapping's descriptor, or ERR_NOMEM, ERR_IO. */
int tp_map_new(struct tp *tp, size_t shared, struct err *err);
/* Starts one rank, with the mapping and, of a stage's first rank, its ends of the ring. */
int tp_start_rank(struct tp *tp, unsigned rank, int memory, const struct tp_ring *ring,
                  const void *hello, size_t bytes, struct err *err);
/* From now on the end of a process fails the group. */
int tp_watch(struct tp *tp, struct err *err);
static inline unsigned tp_stage_of(const struct tp *tp, unsigned rank)
{
	return rank / (tp->ranks / tp->stages);
}
/* Until `done` of the mapping is no longer `seen`, at most ms. */
void tp_sleep_on_done(struct tp *tp, unsigned seen, unsigned ms);
/* Marks the rank's orders up to this one as done. */
void tp_done_by(struct tp *tp, unsigned rank, unsigned order);
/* Whether a rank's descriptor goes to another one, which is not rank 0. */
static inline int tp_passes(const struct tp *tp, const struct tp_exchange_all *all, unsigned from,
                            unsigned to)
{
	return from != to && tp_stage_of(tp, from) == tp_stage_of(tp, to) && (all->has_fd >> from & 1);
}
static inline size_t tp_exchange_size(const struct tp *tp)
{
	return offsetof(struct tp_exchange_all, data) + tp->ranks * TP_EXCHANGE_BYTES;
}

#endif
