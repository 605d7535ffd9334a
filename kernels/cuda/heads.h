/* heads.h - what a block does for a row's heads in heads.cu's kernel, and in chains (chain.cu). */
#ifndef CUDA_HEADS_H
#define CUDA_HEADS_H

#include "kernels/cuda/kv.h"
#include "kernels/own_math.h"

enum { HEAD_STEPS_MAX = 6 };

/* What an operation does to its heads. */
enum step_kind { STEP_NORM, STEP_TURN_HALF, STEP_TURN_INTERLEAVED, STEP_STORE_K, STEP_STORE_V };

struct head_step {
	struct kern_tensor x; /* (R, heads, stride) */
	const float *w;       /* NORM: (dim) */
	float eps;
	uint32_t heads, stride;
	uint32_t dim;   /* elements of a head that are touched */
	uint32_t first; /* head i belongs to item first + i */
	enum step_kind kind;
};

struct heads_args {
	const struct kern_batch *batch;
	const float *inv_freq; /* (pairs), for all rotation steps */
	uint32_t pairs;
	float scale;
	struct kern_kv_layer kv;
	int rows; /* enum kern_rows */
	uint32_t items, steps;
	struct head_step step[HEAD_STEPS_MAX];
};

/* A head of a row, processed by the lanes of a warp. */
struct head {
	struct kern_tensor x;
	size_t row;
	uint32_t first, count, lane; /* columns [first, first + count) */
};

static __device__ inline void norm_head(const struct head &h, const float *w, float eps)
{
	double sum = 0;
	for (uint32_t c = h.lane; c < h.count; c += WARP) {
		float x = tensor_get(h.x, h.row, h.first + c);
		sum += (double)x * (double)x;
	}
	sum = warp_sum(sum);
	float f = (float)(1.0 / sqrt(sum / h.count + (double)eps));
	for (uint32_t c = h.lane; c < h.count; c += WARP)
		tensor_put(h.x, h.row, h.first + c, tensor_get(h.x, h.row, h.first + c) * f * w[c]);
}

/* Sine and cosine of a row's pairs, shared by all its heads because they are computed in double
 * precision, which is slow on some GPUs. */
static __device__ inline void put_angles(const struct heads_args &a, uint32_t row, float *sines,
                                         uint32_t threads)
{
	float position = (float)batch_words(a.batch, a.batch->positions)[row];
	for (uint32_t i = threadIdx.x; i < a.pairs; i += threads) {
		float s, c;
		own_sin_cos(position * a.inv_freq[i], &s, &c);
		sines[i] = s * a.scale;
		sines[a.pairs + i] = c * a.scale;
	}
}

static __device__ inline void turn_head(const struct head &h, const float *sines, bool half)
{
	uint32_t pairs = h.count / 2;
	for (uint32_t i = h.lane; i < pairs; i += WARP) {
		uint32_t at_u = h.first + (half ? i : 2 * i), at_v = half ? at_u + pairs : at_u + 1;
		float u = tensor_get(h.x, h.row, at_u), v = tensor_get(h.x, h.row, at_v), s = sines[i],
			  c = sines[pairs + i];
		tensor_put(h.x, h.row, at_u, u * c - v * s);
		tensor_put(h.x, h.row, at_v, v * c + u * s);
	}
}

/* The largest magnitude of a head's elements, or NaN if one is NaN or infinite. Compares bits: a
 * NaN's are above all numbers'. */
static __device__ inline float largest_of(const struct head &h)
{
	uint32_t top = 0;
	for (uint32_t c = h.lane; c < h.count; c += WARP) {
		uint32_t u = magnitude_bits(tensor_get(h.x, h.row, h.first + c));
		top = u > top ? u : top;
	}
	top = warp_largest(top);
	return top < 0x7f800000 ? kern_bits_to_f32(top) : kern_bits_to_f32(0x7fc00000);
}

static __device__ inline void store_scaled(unsigned char *to, float *scale, const struct head &h,
                                           int i8)
{
	float max = largest_of(h), top = i8 ? 127.0f : 448.0f;
	float factor = max >= 1e-30f ? top / max : 0.0f; /* (nearly) zero or not finite: all zeros */
	if (h.lane == 0)
		*scale = max >= 1e-30f ? max / top : isnan(max) ? max : 0.0f;
	for (uint32_t c = h.lane; c < h.count; c += WARP) {
		float v = tensor_get(h.x, h.row, h.first + c) * factor;
		/* 1.5 * 2^23: the sum's low bits are the nearest integer, ties to even */
		to[c] = factor == 0 ? 0
		        : i8        ? (unsigned char)kern_f32_bits(v + 12582912.0f)
		                    : kern_f32_to_f8(v);
	}
}

static __device__ inline void store_head(const struct heads_args &a, const struct head &h,
                                         uint32_t plane)
{
	const struct kern_kv_layer &kv = a.kv;
	struct kv_shape s = kv_shape_of(kv);
	uint32_t slot = batch_words(a.batch, a.batch->slots)[h.row], at = slot % kv.block_tokens;
	unsigned char *base = (unsigned char *)kv.base.v +
	                      slot / kv.block_tokens * kv.block_stride_bytes + plane * s.plane_bytes;
	unsigned char *to = base + (size_t)at * s.row_bytes;
	if (s.scaled) {
		store_scaled(to, (float *)(base + s.row_bytes * kv.block_tokens) + at, h,
		             kv.dtype == KERN_I8);
		return;
	}
	struct kern_tensor out = {{(uintptr_t)to}, 0, kv.dtype};
	for (uint32_t c = h.lane; c < h.count; c += WARP)
		tensor_put(out, 0, c, tensor_get(h.x, h.row, h.first + c));
}

static __device__ inline void do_step(const struct heads_args &a, const struct head_step &s,
                                      uint32_t row, uint32_t i, const float *sines)
{
	struct head h = {s.x, row, i * s.stride, s.dim, threadIdx.x % WARP};
	switch (s.kind) {
	case STEP_NORM: norm_head(h, s.w, s.eps); break;
	case STEP_TURN_HALF: turn_head(h, sines, true); break;
	case STEP_TURN_INTERLEAVED: turn_head(h, sines, false); break;
	case STEP_STORE_K: store_head(a, h, a.kv.latent ? i : 2 * i); break;
	case STEP_STORE_V: store_head(a, h, 2 * i + 1); break;
	}
}

/* Blocks divide a row's items; their warps take them in turn. */
static __device__ inline void do_steps(const struct heads_args &a, struct block_place at)
{
	float *sines = (float *)shared_memory();
	uint32_t r = at.x, warps = at.threads / WARP;
	if (r >= batch_rows(a.batch, a.rows))
		return;
	if (a.pairs)
		put_angles(a, r, sines, at.threads);
	__syncthreads();
	for (uint32_t item = at.y * warps + threadIdx.x / WARP; item < a.items;
	     item += at.height * warps)
		for (uint32_t s = 0; s < a.steps; s++) {
			if (item - a.step[s].first < a.step[s].heads)
				do_step(a, a.step[s], r, item - a.step[s].first, sines);
			__syncwarp(); /* other lanes read what the step wrote */
		}
}

#endif
