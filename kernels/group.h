/* group.h - the ranks of a tensor-parallel group and the operands of their collectives; the stages
 * of a pipeline and what they send each other. */
#ifndef KERNELS_GROUP_H
#define KERNELS_GROUP_H

#include "kernels/tensor.h"

/* The processes of a tensor-parallel group, this one included. All run the same programs over
 * their own columns. The operands of a collective lie in KERN_MEM_GROUP memory, where a rank
 * sees what others wrote only after a collective that names it. A rank may overwrite an operand
 * only after one further collective, by which time all ranks have read it. Every rank takes part
 * in every collective, even with no row or column to contribute. Only rank 0 draws: where its draws
 * are kept, it is in GROUP memory, and a broadcast follows them. */
struct kern_group {
	unsigned rank, ranks; /* ranks 0 or 1: no group */
	/* barrier: returns 0 once all ranks have called it, nonzero if the group is broken. Called from
	 * any thread, one call at a time; every rank calls it once per collective and once per
	 * KERN_OP_PROGRESS (of a batch with progress), in the same order. Devices with own_memory do
	 * not call it */
	int (*meet)(void *arg);
	/* every rank passes `bytes` (at most KERN_EXCHANGE_MAX) and a descriptor, or -1, which stays
	 * its own; returns 0 once it has those of all ranks: ret_all (ranks, bytes), ret_fds (ranks),
	 * of which the caller closes those that are not -1; this rank's own is -1. Nonzero: the group
	 * is broken. Called only in open and mem_new */
	int (*exchange)(void *arg, const void *mine, size_t bytes, int fd, void *ret_all, int *ret_fds);
	/* a word in host memory that becomes nonzero when the group is broken; a device may pin its
	 * page. NULL: there is none */
	const uint32_t *broken;
	/* devices with own_memory: how long a collective waits for another rank before it fails */
	unsigned limit_s;
	void *arg;
};
enum { KERN_EXCHANGE_MAX = 160 };

/* Start of rank `rank`'s share of `total` items, distributed in whole units of `unit` (at least 1);
 * the share ends where the next rank's starts. */
KERN_INLINE uint32_t kern_share(uint32_t total, uint32_t unit, unsigned rank, unsigned ranks)
{
	uint64_t units = ((uint64_t)total + unit - 1) / unit, begin = units * rank / ranks * unit;
	return begin < total ? (uint32_t)begin : total;
}

enum { KERN_GATHERED_MAX = 2 };
/* x (R, parts, dim); the leading dimension is a part's. ids = 0: each rank has written its columns
 * of every part, its kern_share of dim in units of `unit` (at least 1). Else whole rows: row r was
 * written by the rank whose kern_share of `ids` contains the row's token. With `chosen`, (R, parts)
 * ids: a part was written whole by the rank whose kern_share of `ids` in units of 1 contains its
 * id, and the ranks exchange: afterwards each has its columns of every part. */
struct kern_gathered {
	struct kern_tensor x;
	uint32_t parts, dim, unit, ids;
	kern_ptr chosen;
};

/* Afterwards every rank has every tensor complete (with `chosen`: its columns, and nothing else is
 * defined); with `to_first` only rank 0 needs to. */
struct kern_gather {
	uint32_t tensors;
	int to_first;
	struct kern_gathered t[KERN_GATHERED_MAX];
};

/* Afterwards every rank has the `bytes` bytes that rank 0 has at `at`; a multiple of 4. The batch
 * is not read. */
struct kern_broadcast {
	kern_ptr at;
	size_t bytes;
};

/* Afterwards every rank has in x the sum of all ranks' x: (R, dim), dense, float32 or bfloat16, in
 * which the device may also add. The order of additions may depend on the batch and on the ranks;
 * only where kern_ops.reduces. */
struct kern_reduce {
	struct kern_tensor x;
	uint32_t dim;
};

/* The stages of a pipeline, this one included: each is a process or a tensor-parallel group with
 * layers of its own, on any host, and all groups have the same number of ranks. Rows pass from
 * stage to stage by KERN_OP_SEND and KERN_OP_RECV. The stages' programs are made for equal limits
 * and run the same batches in the same order; what one sends to another, that one receives in the
 * same order, over rows of the same kind, dim and type. */
struct kern_pipe {
	unsigned stage, stages; /* stages 0 or 1: no pipeline */
	/* for devices without own_memory: moves bytes to or from the stage `peer`; returns 0 once they
	 * are sent or there, nonzero if the pipeline or this stage's group is broken, or the peer is
	 * late. Only rank 0 calls them, from any thread, one call at a time */
	int (*send)(void *arg, unsigned peer, const void *data, size_t bytes);
	int (*recv)(void *arg, unsigned peer, void *ret, size_t bytes);
	/* for devices with own_memory: the processes of the same rank of every stage each pass `bytes`
	 * (at most KERN_EXCHANGE_MAX); returns 0 once it has those of all: ret_all (stages, bytes).
	 * Nonzero: the pipeline is broken. Called only in open */
	int (*exchange)(void *arg, const void *mine, size_t bytes, void *ret_all);
	/* as in struct kern_group, when the pipeline is broken */
	const uint32_t *broken;
	/* devices with own_memory: how long a step waits for other stages before it fails */
	unsigned limit_s;
	void *arg;
};

/* Moves x, (R, dim), dense, to or from the same program of the stage `peer`, which is not this one;
 * no bit changes. With no row nothing is moved. A device with own_memory may also move rows beyond
 * the batch's, up to the limits: x has room for them, and what they hold afterwards is undefined;
 * its program_new may wait for the peer's.
 * In a group every rank has x before a send. x of a receive is in GROUP memory, for which the
 * receive is a collective that names it: afterwards every rank sees the rows. For other operands it
 * does not count as one, nor does a send. */
struct kern_transfer {
	struct kern_tensor x;
	uint32_t dim, peer;
};

#endif
