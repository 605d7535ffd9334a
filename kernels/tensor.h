/* tensor.h - what operations compute with: element types, device addresses, matrices of
 * activations, layers of the paged KV pool. */
#ifndef KERNELS_TENSOR_H
#define KERNELS_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* For functions that device code uses too. */
#ifdef __CUDACC__
#define KERN_INLINE static inline __host__ __device__
#else
#define KERN_INLINE static inline
#endif

/* Element types of weights and KV. Block formats are GGML's:
 * https://github.com/ggml-org/ggml/blob/master/docs/gguf.md */
enum kern_dtype {
	KERN_F32,
	KERN_F16,
	KERN_BF16,
	KERN_Q8_0, /* 32 values: f16 scale d, 32 x int8; w = d q */
	/* 32 values: f16 d, 16 bytes of nibbles (low: 0..15, high: 16..31); w = d (q - 8) */
	KERN_Q4_0,
	KERN_Q4_1, /* 32 values: f16 d, f16 m, 16 bytes of nibbles; w = d q + m */
	/* 256 values: 128 low nibbles, 64 high pairs, 16 int8 scales, f16 d */
	KERN_Q6_K,
	/* 32 values: f16 d, 32 high bits, 16 bytes of low nibbles; w = d (q - 16) */
	KERN_Q5_0,
	/* 32 values: f16 d, f16 m, 32 high bits, 16 bytes of low nibbles; w = d q + m */
	KERN_Q5_1,
	/* 256 values: f16 d, f16 m, 8 pairs of 6-bit s and t, 128 bytes of nibbles; for each group of
	 * 32 values w = d s q - m t */
	KERN_Q4_K,
	KERN_Q5_K, /* as Q4_K, with 32 bytes of high bits before the nibbles */
	/* 32 values (OCP MX): exponent e, 16 bytes of nibbles in Q4_0's order; w = E2M1(q) 2^(e - 127);
	 * e = 255: NaN */
	KERN_MXFP4,
	/* 128 values: float32 scale s, 128 codes of OCP 8-bit E4M3; w = s E4M3(c). A NaN code makes its
	 * whole block NaN. The last block of a row may have fewer values than its 128 codes */
	KERN_E4M3,
	/* end of the weight types; the types below are for KV only */
	KERN_WEIGHT_DTYPES,
	/* int8 q, |q| <= 127; x = s q, one float32 scale s per token, head, and K or V */
	KERN_I8 = KERN_WEIGHT_DTYPES,
	KERN_F8, /* OCP 8-bit E4M3 f, |f| <= 448; x = s f, scales as for KERN_I8 */
	KERN_DTYPE_COUNT
};

/* Size in bytes of `count` elements of a row; 0 if `count` is not a multiple of the type's block
 * (KERN_E4M3: rounded up to whole blocks). */
size_t kern_dtype_bytes(enum kern_dtype t, size_t count);
const char *kern_dtype_name(enum kern_dtype t);

/* A device address; v = 0: none. */
typedef struct kern_ptr {
	uintptr_t v;
} kern_ptr;

KERN_INLINE kern_ptr kern_at(kern_ptr p, size_t bytes)
{
	return (kern_ptr){p.v + bytes};
}

/* A matrix of activations (rows, columns) in device memory; row r starts at element r * ld. */
struct kern_tensor {
	kern_ptr at;
	size_t ld;
	enum kern_dtype type;
};

/* One layer of the paged KV pool. The layer's piece of block b starts at base + b *
 * block_stride_bytes and is (kv_heads, 2) planes; index 0 is K, 1 is V. A plane is (block_tokens,
 * head_dim) elements of dtype, directly followed, for types with scales, by (block_tokens) float32
 * scales. A range of heads of a piece is therefore contiguous including its scales, and code that
 * moves pieces need not know about scales. There is no padding: head_dim is a multiple of 4, which
 * aligns the scales. With a latent the piece is (kv_heads) planes, one per head, and V is K's first
 * `latent` elements (multi-head latent attention, arXiv:2405.04434). */
struct kern_kv_layer {
	kern_ptr base;
	size_t block_stride_bytes;
	uint32_t kv_heads, head_dim, block_tokens;
	enum kern_dtype dtype; /* KERN_F32, KERN_F16, KERN_BF16, KERN_I8 or KERN_F8 */
	uint32_t layer;        /* layer number, from 0 */
	/* 0: separate planes for K and V; else V is K's first `latent` elements; at most head_dim, a
	 * multiple of 4 */
	uint32_t latent;
};

/* Scale bytes per token and head, in addition to its elements: 4 for types with scales, else 0. */
size_t kern_kv_scale_bytes(enum kern_dtype t);
size_t kern_kv_plane_bytes(const struct kern_kv_layer *kv);
KERN_INLINE uint32_t kern_kv_planes(const struct kern_kv_layer *kv)
{
	return kv->latent ? kv->kv_heads : 2 * kv->kv_heads;
}

#ifdef __cplusplus
}
#endif

#endif
