/* kv.h - the layout of K and V in a layer's pool, for kernels. */
#ifndef CUDA_KV_H
#define CUDA_KV_H

#include "kernels/cuda/kernel.h"

struct kv_shape {
	size_t row_bytes; /* per token and head, without its scale */
	size_t plane_bytes;
	/* the type has scales: (block_tokens) float32 after a plane's elements */
	int scaled;
};

static __host__ __device__ inline struct kv_shape kv_shape_of(const struct kern_kv_layer &kv)
{
	struct kv_shape s;
	s.scaled = kv.dtype == KERN_I8 || kv.dtype == KERN_F8;
	s.row_bytes = (size_t)kv.head_dim * (s.scaled ? 1 : kv.dtype == KERN_F32 ? 4 : 2);
	s.plane_bytes = (s.row_bytes + (s.scaled ? 4 : 0)) * kv.block_tokens;
	return s;
}

#endif
