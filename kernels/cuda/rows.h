/* rows.h - what a block does for a row in rows.cu's kernels, and in chains (chain.cu). */
#ifndef CUDA_ROWS_H
#define CUDA_ROWS_H

#include "kernels/cuda/act.h"
#include "kernels/cuda/ready.h"

enum { NORM_THREADS = 256 };

struct move_args {
	const struct kern_batch *batch;
	struct kern_tensor y, x;
	uint32_t dim;
	int rows; /* enum kern_rows */
	float factor;
};

static __device__ inline void gather_row(const struct move_args &a, struct block_place at)
{
	uint32_t r = at.x, c = at.y * at.threads + threadIdx.x;
	if (r < a.batch->tail_rows && c < a.dim)
		tensor_put(a.y, r, c, tensor_get(a.x, batch_words(a.batch, a.batch->tail_index)[r], c));
}

static __device__ inline void scale_row(const struct move_args &a, struct block_place at)
{
	uint32_t r = at.x, c = at.y * at.threads + threadIdx.x;
	if (r < batch_rows(a.batch, a.rows) && c < a.dim)
		tensor_put(a.y, r, c, tensor_get(a.x, r, c) * a.factor);
}

struct norm_args {
	const struct kern_batch *batch;
	struct kern_tensor y, x, addend; /* addend.at 0: none */
	const float *w;
	uint32_t dim;
	int rows;
	float eps;
	struct make_ready make; /* of y */
};

/* Each thread sums its columns in order, then the block is summed: the number of threads is the
 * same for every row of every batch. */
static __device__ inline void norm_row(const struct norm_args &a, struct block_place at)
{
	double *part = (double *)shared_memory();
	uint32_t r = at.x, top = 0;
	if (r >= batch_rows(a.batch, a.rows))
		return;
	double sum = 0;
	for (uint32_t c = threadIdx.x; c < a.dim; c += NORM_THREADS) {
		float x = tensor_get(a.x, r, c);
		if (a.addend.at.v)
			x = tensor_put(a.x, r, c, x + tensor_get(a.addend, r, c));
		sum += (double)x * (double)x;
	}
	sum = block_sum(sum, part, NORM_THREADS);
	float f = (float)(1.0 / sqrt(sum / a.dim + (double)a.eps));
	for (uint32_t c = threadIdx.x; c < a.dim; c += NORM_THREADS) {
		uint32_t u = magnitude_bits(tensor_put(a.y, r, c, tensor_get(a.x, r, c) * f * a.w[c]));
		top = u > top ? u : top;
	}
	if (a.make.to.parts)
		ready_row(a.make, r, 0, r, top, NORM_THREADS);
}

struct act_args {
	const struct kern_batch *batch;
	struct kern_tensor y, gate, up;
	uint32_t dim;
	int rows, act;          /* enum kern_act */
	struct make_ready make; /* of y */
};

/* Blocks divide a row, except when it is prepared for a product: then one block processes all of
 * it. */
static __device__ inline void act_row(const struct act_args &a, struct block_place at)
{
	uint32_t r = at.x, top = 0;
	if (r >= batch_rows(a.batch, a.rows))
		return;
	for (uint32_t c = at.y * at.threads + threadIdx.x; c < a.dim; c += at.height * at.threads) {
		uint32_t u = magnitude_bits(tensor_put(
			a.y, r, c, act_mul(a.act, tensor_get(a.gate, r, c), tensor_get(a.up, r, c))));
		top = u > top ? u : top;
	}
	if (a.make.to.parts)
		ready_row(a.make, r, 0, r, top, at.threads);
}

#endif
