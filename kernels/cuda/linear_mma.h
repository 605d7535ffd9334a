/* linear_mma.h - what the kernels of products on tensor cores share.
 *
 * The weight is always the A operand (16 of its rows), and activations the B operand (8 rows as 8
 * columns), so the same instructions in the same order compute a result for any number of rows.
 * Tensor cores sum 32 values; they truncate rather than round, so that sum is scaled and added to a
 * float32 sum, which limits the loss. */
#ifndef CUDA_LINEAR_MMA_H
#define CUDA_LINEAR_MMA_H

#include "kernels/cuda/linear.h"
#include "kernels/cuda/record.h"

/* What sums of a panel's rows lane / 4 and lane / 4 + 8 are multiplied by, and what sums of x. */
struct row_scales {
	float scale[2], offset[2];
};

/* j: the tile of q6_k, which has one scale per tile of 16 values; else 0. */
template <int CODES>
static __device__ __forceinline__ struct row_scales row_scales_of(const struct weight_record &r,
                                                                  int type, int j)
{
	struct row_scales s = {};
	for (int i = 0; i < 2; i++) {
		if constexpr (CODES != CODES_BF16 && CODES != CODES_FLOAT)
			s.scale[i] = record_scale<CODES>(r, type, i, j);
		if (CODES == CODES_NIBBLES && has_offset(type))
			s.offset[i] = record_offset(r, type, i);
	}
	return s;
}

/* acc += what tensor cores have summed for 8 rows of x, of which this lane has two, with `sums`. */
template <int CODES>
static __device__ __forceinline__ void add_sum(float acc[4], int type, const struct row_scales &s,
                                               const float sum[4], const float sums[2])
{
	for (int i = 0; i < 4; i++) {
		if constexpr (CODES == CODES_BF16 || CODES == CODES_FLOAT)
			acc[i] += sum[i];
		else
			acc[i] = fmaf(s.scale[i / 2], sum[i], acc[i]);
		if (CODES == CODES_NIBBLES && has_offset(type))
			acc[i] = fmaf(s.offset[i / 2], sums[i % 2], acc[i]);
	}
}

#endif
