/* group.cu - collectives. This backend has no groups yet: a gather and a barrier are no-ops, a
 * reduce is a copy. */
#include "kernels/cuda/kernel.h"

enum { THREADS = 256 };

struct reduce_args {
	const struct kern_batch *batch;
	struct kern_tensor y, x;
	uint32_t dim;
	int rows;
};

KERNEL(reduce_rows, THREADS, struct reduce_args)
{
	uint32_t r = blockIdx.x, c = blockIdx.y * THREADS + threadIdx.x;
	if (r < batch_rows(a.batch, a.rows) && c < a.dim)
		tensor_put(a.y, r, c, tensor_get(a.x, r, c));
}

void plan_collective(struct plan *p)
{
	const struct kern_op *op = p->op;
	for (uint32_t i = 0; op->kind == KERN_OP_GATHER && i < op->gather.tensors; i++)
		plan_tensor(p, &op->gather.t[i].x, op->gather.t[i].dim);
	if (op->kind != KERN_OP_REDUCE)
		return;
	struct reduce_args a = {p->batch, op->reduce.y, op->reduce.x, op->reduce.dim, op->rows};
	if (!plan_tensor(p, &a.y, a.dim) && !plan_tensor(p, &a.x, a.dim))
		PLAN(p, reduce_rows, plan_rows(p), (a.dim + THREADS - 1) / THREADS, THREADS, 0, a);
}
