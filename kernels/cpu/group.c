/* group.c - collectives of a group, and progress, which is reported after all ranks have met;
 * transfers between stages. Operands of collectives are in memory that all ranks share, so a gather
 * is a barrier, and rank 0 sends and receives for all. */
#include "kernels/cpu/build.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Rank 0 makes the memory, the others map it. */
static int group_mem_new(struct kern_device *dev, size_t bytes, struct kern_mem *ret_mem)
{
	const struct kern_group *g = &dev->group;
	struct kern_mem mem = {0};
	int *fds = malloc(g->ranks * sizeof *fds),
		rc = !fds      ? cpu_fail(dev, KERN_ENOMEM, "out of memory for a group")
	         : g->rank ? KERN_OK
	                   : host_mem_new(dev, KERN_MEM_SHARED, bytes, &mem);
	if (!rc && mem.host)
		memset(mem.host, 0, bytes); /* touch the pages now, not in the first steps */
	if (!rc && g->exchange(g->arg, NULL, 0, mem.host ? mem.fd : -1, NULL, fds))
		rc = cpu_fail(dev, KERN_EDEVICE, "the group of ranks is broken");
	else if (!rc && g->rank) {
		rc = host_mem_map(dev, fds[0], bytes, &mem);
		close(fds[0]);
	}
	free(fds);
	if (rc)
		host_mem_free(dev, &mem);
	else
		*ret_mem = mem;
	return rc;
}

int cpu_mem_new(struct kern_device *dev, enum kern_memory kind, size_t bytes,
                struct kern_mem *ret_mem)
{
	return kind == KERN_MEM_GROUP && dev->group.ranks > 1 ? group_mem_new(dev, bytes, ret_mem)
	                                                      : host_mem_new(dev, kind, bytes, ret_mem);
}

struct progress_phase {
	struct kern_program *p;
	uint32_t layer;
};

static uint32_t progress_items(const void *ctx)
{
	return ((const struct progress_phase *)ctx)->p->batch->progress != 0;
}

static uint32_t one_item(const void *ctx)
{
	(void)ctx;
	return 1;
}

static void meet(struct kern_program *p)
{
	const struct kern_group *g = &p->dev->group;
	unsigned whole = 0;
	/* with a broken pipeline the others must not wait for this rank, which alone knows */
	if (atomic_load(&p->broken) != CPU_BROKEN_GROUP && g->meet(g->arg))
		atomic_compare_exchange_strong(&p->broken, &whole, CPU_BROKEN_GROUP);
}

static void progress_item(const void *ctx, uint32_t item, unsigned worker)
{
	(void)item, (void)worker;
	const struct progress_phase *ph = ctx;
	const struct kern_device *dev = ph->p->dev;
	const struct kern_batch *b = ph->p->batch;
	const struct kern_progress *of = kern_part(b, b->progress);
	if (dev->group.ranks > 1)
		meet(ph->p);
	if (dev->group.rank || atomic_load(&ph->p->broken))
		return;
	for (uint32_t i = 0; i < b->spans; i++)
		if (of[i].word.v)
			__atomic_store_n((uint64_t *)(void *)of[i].word.v + ph->layer * of[i].stride,
			                 of[i].value, __ATOMIC_RELEASE);
	if (dev->progressed)
		dev->progressed(dev->progressed_arg);
}

void build_progress(struct build *b, const struct kern_op *op)
{
	struct progress_phase *ph = build_alloc(b, sizeof *ph);
	if (ph)
		*ph = (struct progress_phase){b->p, op->progress.layer};
	build_phase(b, progress_items, progress_item, ph);
}

static void meet_item(const void *ctx, uint32_t item, unsigned worker)
{
	(void)item, (void)worker;
	meet((struct kern_program *)(uintptr_t)ctx);
}

void build_barrier(struct build *b, const struct kern_op *op)
{
	(void)op;
	if (b->p->dev->group.ranks > 1)
		build_phase(b, one_item, meet_item, b->p);
}

void build_gather(struct build *b, const struct kern_op *op)
{
	build_barrier(b, op);
}

void build_broadcast(struct build *b, const struct kern_op *op)
{
	build_barrier(b, op);
}

void build_reduce(struct build *b, const struct kern_op *op)
{
	(void)b, (void)op; /* there is one rank */
}

/* --- transfers between stages -------------------------------------------- */

struct transfer_phase {
	struct kern_program *p;
	const struct kern_op *op;
};

static const struct kern_transfer *transfer_of(const struct kern_op *op)
{
	return op->kind == KERN_OP_SEND ? &op->send : &op->recv;
}

static void transfer_item(const void *ctx, uint32_t item, unsigned worker)
{
	(void)item, (void)worker;
	const struct transfer_phase *ph = ctx;
	struct kern_program *p = ph->p;
	const struct kern_transfer *t = transfer_of(ph->op);
	const struct kern_pipe *pipe = &p->dev->pipe;
	int sends = ph->op->kind == KERN_OP_SEND;
	void *x = cpu_f32(t->x.at);
	size_t bytes = (size_t)cpu_rows(p, ph->op->rows) * t->dim * sizeof(float);
	if (!p->dev->group.rank && bytes && !atomic_load(&p->broken) &&
	    (sends ? pipe->send(pipe->arg, t->peer, x, bytes)
	           : pipe->recv(pipe->arg, t->peer, x, bytes)))
		atomic_store(&p->broken, CPU_BROKEN_PIPE + t->peer);
	if (!sends && p->dev->group.ranks > 1)
		meet(p);
}

static void build_transfer(struct build *b, const struct kern_op *op)
{
	struct transfer_phase *ph = build_alloc(b, sizeof *ph);
	if (!ph)
		return;
	*ph = (struct transfer_phase){b->p, op};
	if (op->kind == KERN_OP_RECV || !b->p->dev->group.rank)
		build_phase(b, one_item, transfer_item, ph);
}

void build_send(struct build *b, const struct kern_op *op)
{
	build_transfer(b, op);
}

void build_recv(struct build *b, const struct kern_op *op)
{
	build_transfer(b, op);
}
