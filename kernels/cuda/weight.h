/* weight.h - the layout of weights in device memory.
 *
 * float32 and float16 stay rows, `ld` elements apart, as does bfloat16 for cuBLASLt
 * (WEIGHT_BF16_ROWS, see lt.c). The other types are stored in the order in which tensor cores read
 * them: 16 rows (a panel) by 16 or 32 values (a record). In a record each lane of a warp has what
 * its registers of mma_bf16 need (kernel.h): 8 values of 16, in one or two tiles, so that a warp
 * reads a record's values from consecutive addresses and nothing is expanded in memory. Lane l has
 * rows l / 4 and l / 4 + 8; its value e (0 .. 7) of a tile is half e % 2 of register e / 2.
 *
 *   type    values  record (bytes)
 *   bf16    16      512: a lane's 8 values
 *   q8_0    32      512 codes, 16 x f16 d
 *   q4_0    32      256 nibbles, 16 x f16 d
 *   q4_1    32      256 nibbles, 16 x f16 d, 16 x f16 m
 *   q5_0    32      256 nibbles, 64 fifth bits, 16 x f16 d
 *   q5_1    32      256 nibbles, 64 fifth bits, 16 x f16 d, 16 x f16 m
 *   mxfp4   32      256 nibbles, 16 x exponent
 *   q4_k    32      256 nibbles, 16 x s, 16 x t
 *   q5_k    32      256 nibbles, 64 fifth bits, 16 x s, 16 x t
 *   q6_k    32      256 nibbles, 128 high pairs, 16 x scale of tile 0, of tile 1
 *   f8_e4m3 32      512 codes
 *
 * A block of q4_k and q5_k is 8 records and their shared 16 x f16 d, 16 x f16 m; of q6_k 8 records
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
	/* of m or t, from scale_at or in the shared part; 0: the type has none */
	uint32_t offset_at;
};

static __host__ __device__ constexpr struct weight_layout weight_layout_of(int type)
{
	switch (type) {
	/* panels values record high scale records block offset */
	case KERN_BF16: return weight_layout{1, 16, 512, 0, 0, 1, 512, 0};
	case KERN_Q8_0: return weight_layout{1, 32, 544, 0, 512, 1, 544, 0};
	case KERN_Q4_0: return weight_layout{1, 32, 288, 0, 256, 1, 288, 0};
	case KERN_Q4_1: return weight_layout{1, 32, 320, 0, 256, 1, 320, 32};
	case KERN_Q5_0: return weight_layout{1, 32, 352, 256, 320, 1, 352, 0};
	case KERN_Q5_1: return weight_layout{1, 32, 384, 256, 320, 1, 384, 32};
	case KERN_MXFP4: return weight_layout{1, 32, 272, 0, 256, 1, 272, 0};
	case KERN_Q4_K: return weight_layout{1, 32, 288, 0, 256, 8, 8 * 288 + 64, 16};
	case KERN_Q5_K: return weight_layout{1, 32, 352, 256, 320, 8, 8 * 352 + 64, 16};
	case KERN_Q6_K: return weight_layout{1, 32, 416, 256, 384, 8, 8 * 416 + 32, 0};
	case KERN_E4M3: return weight_layout{1, 32, 512, 0, 512, 4, 4 * 512 + 64, 0};
	default: return weight_layout{0, 1, 0, 0, 0, 1, 0, 0};
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

/* Whether tensor cores compute products with it. */
static inline bool by_tensor_cores(int type)
{
	return weight_layout_of(type).panels || type == WEIGHT_BF16_ROWS;
}

/* Twice the value of an E2M1 code. */
static __device__ inline int mxfp4_code(uint32_t q)
{
	int v = (int)(0xc8643210u >> 4 * (q & 7) & 15);
	return q & 8 ? -v : v;
}

/* Zero point of the codes: values are multiples of code - zero. */
static __host__ __device__ constexpr int weight_zero(int type)
{
	return type == KERN_Q4_0 ? 8 : type == KERN_Q5_0 ? 16 : type == KERN_Q6_K ? 32 : 0;
}

/* Value e of tile j of a lane in a record of a quantised type, as a number that is exact in
 * bfloat16. */
static __device__ inline float weight_code(int type, const unsigned char *record, uint32_t lane,
                                           uint32_t j, uint32_t e)
{
	if (type == KERN_Q8_0)
		return (float)(int8_t)record[16 * lane + 8 * j + e];
	if (type == KERN_E4M3)
		return kern_f8_to_f32(record[16 * lane + 8 * j + e]);
	uint32_t q = record[8 * lane + e] >> 4 * j & 15;
	if (type == KERN_MXFP4)
		return (float)mxfp4_code(q);
	if (type == KERN_Q5_0 || type == KERN_Q5_1 || type == KERN_Q5_K)
		q |= (uint32_t)(record[256 + 2 * lane + j] >> e & 1) << 4;
	if (type == KERN_Q6_K)
		q |= (uint32_t)(record[256 + 4 * lane + 2 * j + e / 4] >> 2 * (e % 4) & 3) << 4;
	return (float)((int)q - weight_zero(type));
}

static __device__ inline float f16_at(const unsigned char *at)
{
	return f16_value(*(const uint16_t *)at);
}

/* The scale for row `row` (0 .. 15) of a record, tile j (only q6_k has one per tile): values are
 * scale * code + offset. */
static __device__ inline float weight_scale(int type, const unsigned char *record,
                                            const unsigned char *shared, uint32_t row, uint32_t j,
                                            float *ret_offset)
{
	struct weight_layout l = weight_layout_of(type);
	const unsigned char *s = record + l.scale_at;
	*ret_offset = 0;
	switch (type) {
	case KERN_Q4_1:
	case KERN_Q5_1: *ret_offset = f16_at(s + 32 + 2 * row); return f16_at(s + 2 * row);
	case KERN_MXFP4: return kern_bf16_to_f32(kern_mxfp4_scale(s[row]));
	case KERN_Q4_K:
	case KERN_Q5_K:
		*ret_offset = -(f16_at(shared + 32 + 2 * row) * (float)s[16 + row]);
		return f16_at(shared + 2 * row) * (float)s[row];
	case KERN_Q6_K: return f16_at(shared + 2 * row) * (float)(int8_t)s[16 * j + row];
	case KERN_E4M3: return ((const float *)shared)[row];
	default: return f16_at(s + 2 * row);
	}
}

/* The tile, lane and index of the value at a row and column of a record. */
static __host__ __device__ inline void weight_place(uint32_t row, uint32_t column,
                                                    uint32_t *ret_tile, uint32_t *ret_lane,
                                                    uint32_t *ret_e)
{
	uint32_t c = column % TILE_VALUES;
	*ret_tile = column / TILE_VALUES;
	*ret_lane = row % 8 * 4 + c % 8 / 2;
	*ret_e = ((row >= 8) + 2 * (c >= 8)) * 2 + c % 2;
}

/* One value, for embeddings and similar uses. */
static __device__ inline float weight_value(const struct weight_view &w, uint32_t row,
                                            uint32_t column)
{
	if (w.type == KERN_F32)
		return ((const float *)w.data)[row * w.ld + column];
	if (w.type == KERN_F16)
		return kern_f16_to_f32(((const uint16_t *)w.data)[row * w.ld + column]);
	if (w.type == WEIGHT_BF16_ROWS)
		return kern_bf16_to_f32(((const uint16_t *)w.data)[row * w.ld + column]);
	struct weight_layout l = weight_layout_of(w.type);
	uint32_t r = column / l.values, tile, lane, e;
	const unsigned char *block = w.data + row / PANEL_ROWS * w.ld +
	                             (size_t)(r / l.records) * l.block_bytes;
	const unsigned char *record = block + r % l.records * l.record_bytes,
						*shared = block + l.records * l.record_bytes;
	weight_place(row % PANEL_ROWS, column % l.values, &tile, &lane, &e);
	if (w.type == KERN_BF16)
		return kern_bf16_to_f32(((const uint16_t *)record)[8 * lane + e]);
	float offset, scale = weight_scale(w.type, record, shared, row % PANEL_ROWS, tile, &offset);
	return scale * weight_code(w.type, record, lane, tile, e) + offset;
}

#endif
