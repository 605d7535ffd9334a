/* record.h - loads a record of a weight (weight.h) from memory into tensor-core registers.
 *
 * Loading and unpacking are separate, so that the next records are loaded during computation with
 * the current one. Codes minus code_zero become integers, two per register, without conversion
 * through float32: a byte c below 128 after the byte 0x43 is the bfloat16 128 + c. */
#ifndef CUDA_RECORD_H
#define CUDA_RECORD_H

#include "kernels/cuda/weight.h"

struct alignas(16) words4 {
	uint32_t w[4];
};
struct alignas(8) words2 {
	uint32_t w[2];
};

/* A lane's part of 32 values of a panel, for its rows lane / 4 and lane / 4 + 8. The compiler
 * removes fields that a type does not use. */
struct weight_record {
	uint32_t code[8];             /* bf16: the registers of both tiles; else bytes or nibbles */
	uint32_t high;                /* bits of the codes */
	uint16_t scale[2], offset[2]; /* q6_k: the scales of tile 0, of tile 1 */
	uint16_t block_scale[2], block_offset[2];
	float wide_scale[2]; /* f8_e4m3 */
};

template <int TYPE> constexpr bool is_bf16 = TYPE == KERN_BF16 || TYPE == WEIGHT_BF16_ROWS;
template <int TYPE>
constexpr bool is_k_type = TYPE == KERN_Q4_K || TYPE == KERN_Q5_K || TYPE == KERN_Q6_K;
template <int TYPE>
constexpr bool has_offset = TYPE == KERN_Q4_1 || TYPE == KERN_Q5_1 || TYPE == KERN_Q4_K ||
                            TYPE == KERN_Q5_K;
/* Subtracted from a code. Types with offsets have no zero point in the file; using the middle of
 * the codes keeps offsets and products small, and their sums exact. */
template <int TYPE>
constexpr uint32_t code_zero = !has_offset<TYPE> ? (uint32_t)weight_zero(TYPE)
                               : TYPE == KERN_Q5_1 || TYPE == KERN_Q5_K ? 16
                                                                        : 8;
template <int TYPE>
constexpr bool has_fifth_bits = TYPE == KERN_Q5_0 || TYPE == KERN_Q5_1 || TYPE == KERN_Q5_K;

static __device__ __forceinline__ void load_words4(uint32_t to[4], const unsigned char *at)
{
	struct words4 v = *(const struct words4 *)at;
	for (int i = 0; i < 4; i++)
		to[i] = v.w[i];
}

template <int TYPE>
static __device__ __forceinline__ void load_codes(struct weight_record &r,
                                                  const unsigned char *record, uint32_t lane)
{
	if constexpr (TYPE == KERN_Q8_0 || TYPE == KERN_E4M3) {
		load_words4(r.code, record + 16 * lane);
	} else {
		struct words2 v = *(const struct words2 *)(record + 8 * lane);
		r.code[0] = v.w[0];
		r.code[1] = v.w[1];
	}
	if constexpr (has_fifth_bits<TYPE>)
		r.high = *(const uint16_t *)(record + 256 + 2 * lane);
	if constexpr (TYPE == KERN_Q6_K)
		r.high = *(const uint32_t *)(record + 256 + 4 * lane);
}

template <int TYPE>
static __device__ __forceinline__ void load_scales(struct weight_record &r,
                                                   const unsigned char *scales,
                                                   const unsigned char *shared, uint32_t lane)
{
	constexpr bool bytes = is_k_type<TYPE> || TYPE == KERN_MXFP4;
	for (uint32_t i = 0; i < 2; i++) {
		uint32_t row = lane / 4 + 8 * i;
		if constexpr (TYPE == KERN_E4M3) {
			r.wide_scale[i] = ((const float *)shared)[row];
			continue;
		}
		r.scale[i] = bytes ? scales[row] : ((const uint16_t *)scales)[row];
		if constexpr (is_k_type<TYPE>) {
			r.offset[i] = scales[16 + row];
			r.block_scale[i] = ((const uint16_t *)shared)[row];
		} else if constexpr (has_offset<TYPE>)
			r.offset[i] = ((const uint16_t *)scales)[16 + row];
		if constexpr (is_k_type<TYPE> && has_offset<TYPE>)
			r.block_offset[i] = ((const uint16_t *)shared)[16 + row];
	}
}

/* Where a lane reads a panel: the records; for plain rows the lane's first row, and the distance to
 * the second. */
struct panel {
	const unsigned char *at;
	size_t second;
};

template <int TYPE>
static __device__ __forceinline__ struct panel panel_of(const struct weight_view &w,
                                                        const unsigned char *data, uint32_t index,
                                                        uint32_t lane)
{
	if constexpr (TYPE == WEIGHT_BF16_ROWS) {
		uint32_t row = index * PANEL_ROWS + lane / 4;
		/* the last panel may have 8 rows: then the first rows are read twice, and the second result
		 * is discarded */
		return panel{data + row * w.ld * 2 + lane % 4 * 4, row + 8 < w.n ? 8 * w.ld * 2 : 0};
	} else {
		return panel{data + index * w.ld, 0};
	}
}

/* 32 values of two plain rows: a lane has word lane % 4 of each 8 values. */
static __device__ __forceinline__ void load_plain(struct weight_record &r, const struct panel &p,
                                                  uint32_t step, uint32_t k)
{
	for (uint32_t i = 0; i < 4; i++) {
		const unsigned char *at = p.at + ((size_t)step * 4 + i) * 16;
		bool there = step * 32 + i * 8 < k;
		r.code[i / 2 * 4 + i % 2 * 2] = there ? *(const uint32_t *)at : 0;
		r.code[i / 2 * 4 + i % 2 * 2 + 1] = there ? *(const uint32_t *)(at + p.second) : 0;
	}
}

/* Loads step `step` of a panel. k: columns of a row; a bf16 row may end in the middle of a step. */
template <int TYPE>
static __device__ __forceinline__ void load_record(struct weight_record &r, const struct panel &p,
                                                   uint32_t step, uint32_t k, uint32_t lane)
{
	constexpr struct weight_layout l = weight_layout_of(TYPE);
	if constexpr (TYPE == WEIGHT_BF16_ROWS) {
		load_plain(r, p, step, k);
	} else if constexpr (TYPE == KERN_BF16) {
		const unsigned char *at = p.at + (size_t)step * 2 * l.record_bytes + 16 * lane;
		load_words4(r.code, at);
		for (int i = 4; i < 8; i++)
			r.code[i] = 0;
		if ((2 * step + 1) * TILE_VALUES < k)
			load_words4(r.code + 4, at + l.record_bytes);
	} else {
		const unsigned char *block = p.at + (size_t)(step / l.records) * l.block_bytes,
							*record = block + step % l.records * l.record_bytes;
		load_codes<TYPE>(r, record, lane);
		load_scales<TYPE>(r, record + l.scale_at, block + l.records * l.record_bytes, lane);
	}
}

/* --- codes --------------------------------------------------------------- */

#define BOTH_HALVES(H) ((H)*0x10001u)

/* Moves bytes 2 w and 2 w + 1 to the low bytes of both halves, with `fill` as high bytes. */
static __device__ __forceinline__ uint32_t spread(uint32_t bytes, uint32_t fill, int w)
{
	return __byte_perm(bytes, fill, w ? 0x4342 : 0x4140);
}

/* A signed byte b is (b & 127) - (b & 128). 0x4380 is 256, so it is 128 + (b & 127) minus 128, or
 * minus 256. */
static __device__ __forceinline__ uint32_t q8_pair(uint32_t bytes, int w)
{
	uint32_t v = spread(bytes, 0x43, w);
	return fma_bf16x2(v & BOTH_HALVES(0xff80u), BOTH_HALVES(0xbf80u), v & BOTH_HALVES(0xff7fu));
}

/* E2M1 bits in the place of bfloat16's exponent and mantissa represent 2^-126 times the number; the
 * result is twice the number. */
static __device__ __forceinline__ uint32_t mxfp4_pair(uint32_t q)
{
	return fma_bf16x2((q & BOTH_HALVES(7u)) << 6 | (q & BOTH_HALVES(8u)) << 12,
	                  BOTH_HALVES(0x7f00u), 0);
}

/* E4M3 bits in the place of bfloat16's sign, exponent and mantissa represent 2^-120 times the
 * number. */
static __device__ __forceinline__ uint32_t e4m3_pair(uint32_t bytes, int w)
{
	uint32_t v = spread(bytes, 0, w);
	return fma_bf16x2((v & BOTH_HALVES(0x7fu)) << 4 | (v & BOTH_HALVES(0x80u)) << 8,
	                  BOTH_HALVES(0x7b80u), 0);
}

/* The bits above the nibbles in register i (values 2 i, 2 i + 1) of tile j, at bit 4 of each
 * half. */
template <int TYPE>
static __device__ __forceinline__ uint32_t high_bits(uint32_t high, int j, int i)
{
	if constexpr (has_fifth_bits<TYPE>) {
		/* bits of the even values in the low half, of the odd ones in the high half */
		uint32_t both = (high & 0x5555) | (high & 0xaaaa) << 15;
		return (both >> (8 * j + 2 * i) & BOTH_HALVES(1u)) << 4;
	}
	if constexpr (TYPE == KERN_Q6_K) {
		uint32_t tile = high >> 16 * j, both = (tile & 0x3333) | (tile >> 2 & 0x3333) << 16;
		return (both >> 4 * i & BOTH_HALVES(3u)) << 4;
	}
	return 0;
}

/* Sets a[j] to the A operand of tile j. */
template <int TYPE>
static __device__ __forceinline__ void unpack_codes(const struct weight_record &r, uint32_t a[2][4])
{
	for (int j = 0; j < 2; j++)
		for (int i = 0; i < 4; i++) {
			uint32_t nibbles = r.code[i / 2] >> 4 * j & 0x0f0f0f0f;
			if constexpr (is_bf16<TYPE>)
				a[j][i] = r.code[4 * j + i];
			else if constexpr (TYPE == KERN_Q8_0)
				a[j][i] = q8_pair(r.code[2 * j + i / 2], i % 2);
			else if constexpr (TYPE == KERN_E4M3)
				a[j][i] = e4m3_pair(r.code[2 * j + i / 2], i % 2);
			else if constexpr (TYPE == KERN_MXFP4)
				a[j][i] = mxfp4_pair(spread(nibbles, 0, i % 2));
			else
				a[j][i] = fma_bf16x2(spread(nibbles, 0x43, i % 2) | high_bits<TYPE>(r.high, j, i),
				                     BOTH_HALVES(0x3f80u), BOTH_HALVES(0xc300u | code_zero<TYPE>));
		}
}

/* The scale of row lane / 4 + 8 i, tile j. */
template <int TYPE>
static __device__ __forceinline__ float record_scale(const struct weight_record &r, int i, int j)
{
	if constexpr (TYPE == KERN_E4M3)
		return r.wide_scale[i];
	if constexpr (TYPE == KERN_MXFP4)
		return kern_bf16_to_f32(kern_mxfp4_scale((unsigned char)r.scale[i]));
	if constexpr (TYPE == KERN_Q6_K)
		return f16_value(r.block_scale[i]) * (float)(int8_t)(j ? r.offset[i] : r.scale[i]);
	if constexpr (is_k_type<TYPE>)
		return f16_value(r.block_scale[i]) * (float)r.scale[i];
	return f16_value(r.scale[i]);
}

template <int TYPE>
static __device__ __forceinline__ float record_offset(const struct weight_record &r, int i)
{
	float offset = is_k_type<TYPE> ? -(f16_value(r.block_offset[i]) * (float)r.offset[i])
	                               : f16_value(r.offset[i]);
	return fmaf((float)code_zero<TYPE>, record_scale<TYPE>(r, i, 0), offset);
}

#endif
