/* weight.h - the layout of weights in device memory.
 *
 * bfloat16 for cuBLASLt stays rows, `ld` elements apart (WEIGHT_BF16_ROWS, see lt.c). All else is
 * stored in the order in which tensor cores read it: 16 rows (a panel) by 16 or 32 values (a
 * record). In a record each lane of a warp has what its registers of mma_bf16 need (kernel.h): 8
 * values of 16, in one or two tiles, so that a warp reads a record's values from consecutive
 * addresses and nothing is expanded in memory. Lane l has rows l / 4 and l / 4 + 8; its value e (0
 * .. 7) of a tile is half e % 2 of register e / 2.
 *
 *   type    values  record (bytes)
 *   f32     16      1024: a lane's 8 values
 *   f16     16      512: the same
 *   bf16    16      512: the same
 *   q8_0    32      512 codes, 16 x f16 d
 *   q4_0    32      256 nibbles, 16 x f16 d
 *   q4_1    32      256 nibbles, 16 x (f16 d, f16 m)
 *   q5_0    32      256 nibbles, 64 fifth bits, 16 x f16 d
 *   q5_1    32      256 nibbles, 64 fifth bits, 16 x (f16 d, f16 m)
 *   mxfp4   32      256 nibbles, 16 x exponent
 *   q4_k    32      256 nibbles, 16 x (s, t)
 *   q5_k    32      256 nibbles, 64 fifth bits, 16 x (s, t)
 *   q6_k    32      256 nibbles, 128 high pairs, 16 x (scale of tile 0, of tile 1)
 *   f8_e4m3 32      512 codes
 *
 * A block of q4_k and q5_k is 8 records and their shared 16 x (f16 d, f16 m); of q6_k 8 records
 * and 16 x f16 d; of f8_e4m3 4 records and 16 x f32 scale; of the other types one record.
 *
 * Nibbles: a lane has 8 bytes, value e of tile 0 in the low half of byte e, of tile 1 in the high
 * half. Fifth bits: a lane has 16, value e of tile j is bit 8 j + e. High pairs: a lane has 32
 * bits, value e of tile j at bit 2 (8 j + e). Rows and values beyond the matrix are zero codes
 * with zero scales. */
#ifndef CUDA_WEIGHT_H
#define CUDA_WEIGHT_H

#include "kernels/cuda/kernel.h"

enum { PANEL_ROWS = 16, TILE_VALUES = 16 };

/* How a weight is stored: its enum kern_dtype, or as bfloat16 rows, whose length and number are
 * multiples of ROWS_UNIT (16 bytes). */
enum { WEIGHT_BF16_ROWS = KERN_WEIGHT_DTYPES, WEIGHT_TYPES, ROWS_UNIT = 8 };

struct weight_layout {
	int panels;                                       /* 0: rows */
	uint32_t values, record_bytes, high_at, scale_at; /* of a record */
	/* records of a block, which are followed by their shared part; bytes of a block */
	uint32_t records, block_bytes;
};

static __host__ __device__ constexpr struct weight_layout weight_layout_of(int type)
{
	switch (type) {
	/* panels values record high scale records block */
	case KERN_F32: return weight_layout{1, 16, 1024, 0, 0, 1, 1024};
	case KERN_F16:
	case KERN_BF16: return weight_layout{1, 16, 512, 0, 0, 1, 512};
	case KERN_Q8_0: return weight_layout{1, 32, 544, 0, 512, 1, 544};
	case KERN_Q4_0: return weight_layout{1, 32, 288, 0, 256, 1, 288};
	case KERN_Q4_1: return weight_layout{1, 32, 320, 0, 256, 1, 320};
	case KERN_Q5_0: return weight_layout{1, 32, 352, 256, 320, 1, 352};
	case KERN_Q5_1: return weight_layout{1, 32, 384, 256, 320, 1, 384};
	case KERN_MXFP4: return weight_layout{1, 32, 272, 0, 256, 1, 272};
	case KERN_Q4_K: return weight_layout{1, 32, 288, 0, 256, 8, 8 * 288 + 64};
	case KERN_Q5_K: return weight_layout{1, 32, 352, 256, 320, 8, 8 * 352 + 64};
	case KERN_Q6_K: return weight_layout{1, 32, 416, 256, 384, 8, 8 * 416 + 32};
	case KERN_E4M3: return weight_layout{1, 32, 512, 0, 512, 4, 4 * 512 + 64};
	default: return weight_layout{0, 1, 0, 0, 0, 1, 0};
	}
}

/* A weight as passed to kernels. */
struct weight_view {
	const unsigned char *data;
	uint32_t n, k;
	int type;  /* or WEIGHT_BF16_ROWS */
	size_t ld; /* rows: elements between rows; panels: bytes between panels */
};

static inline struct weight_view weight_view_of(const struct kern_weight *w)
{
	int type = w->plain ? WEIGHT_BF16_ROWS : (int)w->dtype;
	struct weight_layout l = weight_layout_of(type);
	size_t ld = ((size_t)w->k + 7) / 8 * 8;
	if (l.panels)
		ld = ((size_t)w->k + l.values * l.records - 1) / (l.values * l.records) * l.block_bytes;
	return weight_view{w->data, w->n, w->k, type, ld};
}

static __host__ __device__ constexpr bool is_k_type(int type)
{
	return type == KERN_Q4_K || type == KERN_Q5_K;
}

/* Whether a type has offsets: m, or t. */
static __host__ __device__ constexpr bool has_offset(int type)
{
	return type == KERN_Q4_1 || type == KERN_Q5_1 || is_k_type(type);
}

/* Zero point of the codes, which those beyond the matrix have: values are multiples of code -
 * zero. */
static __host__ __device__ constexpr int weight_zero(int type)
{
	return type == KERN_Q4_0 ? 8 : type == KERN_Q5_0 ? 16 : type == KERN_Q6_K ? 32 : 0;
}

#endif
