/* record.h - loads a record of a weight (weight.h) from memory into tensor-core registers.
 *
 * Kernels are made for classes of types, whose records have the same codes. A block has weights of
 * one type, which decides what is added to them.
 *
 * Loading and unpacking are separate, so that the next records are loaded during computation with
 * the current one. Codes minus code_zero become integers, two per register, without conversion
 * through float32: a byte c below 128 after the byte 0x43 is the bfloat16 128 + c. */
#ifndef CUDA_RECORD_H
#define CUDA_RECORD_H

#include "kernels/cuda/weight.h"

/* The classes: of bfloat16; of larger floating-point types, which are the sum of several bfloat16
 * numbers; of bytes; of nibbles, with or without a fifth bit; of six bits, with a scale for each 16
 * values. */
enum codes { CODES_BF16, CODES_FLOAT, CODES_BYTES, CODES_NIBBLES, CODES_Q6_K, CODES };

static __host__ __device__ constexpr enum codes codes_of(int type)
{
	switch (type) {
	case KERN_BF16:
	case WEIGHT_BF16_ROWS: return CODES_BF16;
	case KERN_F32:
	case KERN_F16: return CODES_FLOAT;
	case KERN_Q8_0:
	case KERN_E4M3: return CODES_BYTES;
	case KERN_Q6_K: return CODES_Q6_K;
	default: return CODES_NIBBLES;
	}
}

/* A lane's part of a record, and of what its block shares, for its rows lane / 4 and lane / 4 + 8.
 * The compiler removes fields that a class does not use. */
struct weight_record {
	/* bf16: the registers of both tiles; f16, f32: of one; else bytes or nibbles */
	uint32_t code[8];
	uint32_t high; /* bits of the codes */
	/* of the record, of the block: a scale, then what lies beside it in memory: an offset, or
	 * q6_k's scale of tile 1 */
	uint32_t scale[2], block[2];
	float f32_scale[2]; /* f8_e4m3 */
};

/* Values of a record of a class; bf16: two records. */
template <int CODES>
constexpr uint32_t record_values = CODES == CODES_FLOAT ? (uint32_t)TILE_VALUES
                                                        : (uint32_t)STEP_VALUES;

static __device__ __forceinline__ bool has_fifth_bits(int type)
{
	return type == KERN_Q5_0 || type == KERN_Q5_1 || type == KERN_Q5_K;
}

/* Subtracted from a nibble or five bits. Types with offsets have no zero point in the file; using
 * the middle of the codes keeps offsets and products small, and their sums exact. */
static __device__ __forceinline__ uint32_t code_zero(int type)
{
	return has_fifth_bits(type) ? 16 : 8;
}

static __device__ __forceinline__ void load_words4(uint32_t to[4], const unsigned char *at)
{
	struct words<4> v = *(const struct words<4> *)at;
	for (int i = 0; i < 4; i++)
		to[i] = v.w[i];
}

/* Where a lane reads a panel: the records; for plain rows the lane's first row, and the distance to
 * the second. */
struct panel {
	const unsigned char *at;
	size_t second;
};

static __device__ __forceinline__ struct panel panel_of(const struct weight_view &w,
                                                        const unsigned char *data, uint32_t index,
                                                        uint32_t lane)
{
	if (w.type == WEIGHT_BF16_ROWS) {
		uint32_t row = index * PANEL_ROWS + lane / 4;
		/* the last panel may have 8 rows: then the first rows are read twice, and the second result
		 * is discarded */
		return panel{data + row * w.ld * 2 + lane % 4 * 4, row + 8 < w.n ? 8 * w.ld * 2 : 0};
	}
	return panel{data + index * w.ld, 0};
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

/* Two records, of which a row may have only the first. */
static __device__ __forceinline__ void load_bf16(struct weight_record &r, const struct panel &p,
                                                 uint32_t step, uint32_t k, uint32_t lane)
{
	constexpr uint32_t bytes = weight_layout_of(KERN_BF16).record_bytes;
	const unsigned char *at = p.at + (size_t)step * 2 * bytes + 16 * lane;
	load_words4(r.code, at);
	for (int i = 4; i < 8; i++)
		r.code[i] = 0;
	if ((2 * step + 1) * TILE_VALUES < k)
		load_words4(r.code + 4, at + bytes);
}

static __device__ __forceinline__ void load_float(struct weight_record &r, const struct panel &p,
                                                  int type, uint32_t index, uint32_t lane)
{
	uint32_t lane_bytes = type == KERN_F32 ? 32 : 16;
	const unsigned char *at = p.at + (size_t)index * WARP * lane_bytes + lane_bytes * lane;
	load_words4(r.code, at);
	if (type == KERN_F32)
		load_words4(r.code + 4, at + 16);
}

static __device__ __forceinline__ void load_bytes(struct weight_record &r, const struct panel &p,
                                                  int type, uint32_t index, uint32_t lane)
{
	constexpr struct weight_layout q8 = weight_layout_of(KERN_Q8_0),
								   f8 = weight_layout_of(KERN_E4M3);
	if (type == KERN_Q8_0) {
		const unsigned char *record = p.at + (size_t)index * q8.block_bytes;
		load_words4(r.code, record + 16 * lane);
		for (uint32_t i = 0; i < 2; i++)
			r.scale[i] = ((const uint16_t *)(record + q8.scale_at))[lane / 4 + 8 * i];
	} else {
		const unsigned char *block = p.at + (size_t)(index / f8.records) * f8.block_bytes;
		load_words4(r.code, block + index % f8.records * f8.record_bytes + 16 * lane);
		for (uint32_t i = 0; i < 2; i++)
			r.f32_scale[i] = ((const float *)(block +
			                                  f8.records * f8.record_bytes))[lane / 4 + 8 * i];
	}
}

/* A lane's nibbles of a record. */
static __device__ __forceinline__ void load_nibbles(struct weight_record &r,
                                                    const unsigned char *record, uint32_t lane)
{
	struct words<2> v = *(const struct words<2> *)(record + 8 * lane);
	r.code[0] = v.w[0];
	r.code[1] = v.w[1];
}

/* A type's nibbles, fifth bits and scales; of the k types also what 8 records share. */
static __device__ __forceinline__ void load_small(struct weight_record &r, const struct panel &p,
                                                  int type, uint32_t index, uint32_t lane)
{
	struct weight_layout l = weight_layout_of(type);
	const unsigned char *block = p.at, *record;
	if (is_k_type(type)) {
		block += (size_t)(index / 8) * l.block_bytes;
		record = block + index % 8 * l.record_bytes;
	} else
		record = block + (size_t)index * l.record_bytes;
	const unsigned char *scales = record + l.scale_at;
	load_nibbles(r, record, lane);
	if (has_fifth_bits(type))
		r.high = *(const uint16_t *)(record + 256 + 2 * lane);
	UNROLL
	for (uint32_t i = 0; i < 2; i++) {
		uint32_t row = lane / 4 + 8 * i;
		if (is_k_type(type)) {
			const uint32_t *shared = (const uint32_t *)(block + 8 * l.record_bytes);
			r.scale[i] = ((const uint16_t *)scales)[row];
			r.block[i] = shared[row];
		} else if (type == KERN_MXFP4) {
			r.scale[i] = scales[row];
		} else if (has_offset(type)) {
			r.scale[i] = ((const uint32_t *)scales)[row];
		} else {
			r.scale[i] = ((const uint16_t *)scales)[row];
		}
	}
}

static __device__ __forceinline__ void load_q6(struct weight_record &r, const struct panel &p,
                                               uint32_t index, uint32_t lane)
{
	constexpr struct weight_layout l = weight_layout_of(KERN_Q6_K);
	const unsigned char *block = p.at + (size_t)(index / l.records) * l.block_bytes,
						*record = block + index % l.records * l.record_bytes;
	load_nibbles(r, record, lane);
	r.high = *(const uint32_t *)(record + l.high_at + 4 * lane);
	for (uint32_t i = 0; i < 2; i++) {
		uint32_t row = lane / 4 + 8 * i;
		r.scale[i] = ((const uint16_t *)(record + l.scale_at))[row];
		r.block[i] = ((const uint16_t *)(block + l.records * l.record_bytes))[row];
	}
}

/* Loads record `index` of a panel. k: columns of a row; a row may end in the middle of a step. */
template <int CODES>
static __device__ __forceinline__ void load_record(struct weight_record &r, const struct panel &p,
                                                   int type, uint32_t index, uint32_t k,
                                                   uint32_t lane)
{
	if constexpr (CODES == CODES_BF16) {
		if (type == WEIGHT_BF16_ROWS)
			load_plain(r, p, index, k);
		else
			load_bf16(r, p, index, k, lane);
	} else if constexpr (CODES == CODES_FLOAT)
		load_float(r, p, type, index, lane);
	else if constexpr (CODES == CODES_BYTES)
		load_bytes(r, p, type, index, lane);
	else if constexpr (CODES == CODES_Q6_K)
		load_q6(r, p, index, lane);
	else
		load_small(r, p, type, index, lane);
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

/* The fifth bits of register i (values 2 i, 2 i + 1) of tile j, at bit 4 of each half. */
static __device__ __forceinline__ uint32_t fifth_bits(uint32_t high, int j, int i)
{
	/* bits of the even values in the low half, of the odd ones in the high half */
	uint32_t both = (high & 0x5555) | (high & 0xaaaa) << 15;
	return (both >> (8 * j + 2 * i) & BOTH_HALVES(1u)) << 4;
}

/* The same for the two bits of q6_k, at bits 4 and 5. */
static __device__ __forceinline__ uint32_t high_pairs(uint32_t high, int j, int i)
{
	uint32_t tile = high >> 16 * j, both = (tile & 0x3333) | (tile >> 2 & 0x3333) << 16;
	return (both >> 4 * i & BOTH_HALVES(3u)) << 4;
}

/* Sets a[j] to the A operand of tile j. */
template <int CODES>
static __device__ __forceinline__ void unpack_codes(const struct weight_record &r, int type,
                                                    uint32_t a[2][4])
{
	UNROLL
	for (int j = 0; j < 2; j++)
		UNROLL
	for (int i = 0; i < 4; i++) {
		uint32_t nibbles = r.code[i / 2] >> 4 * j & 0x0f0f0f0f;
		if constexpr (CODES == CODES_BF16)
			a[j][i] = r.code[4 * j + i];
		else if constexpr (CODES == CODES_BYTES)
			a[j][i] = type == KERN_Q8_0 ? q8_pair(r.code[2 * j + i / 2], i % 2)
			                            : e4m3_pair(r.code[2 * j + i / 2], i % 2);
		else if constexpr (CODES == CODES_Q6_K)
			a[j][i] = fma_bf16x2(spread(nibbles, 0x43, i % 2) | high_pairs(r.high, j, i),
			                     BOTH_HALVES(0x3f80u), BOTH_HALVES(0xc320u));
		else if (type == KERN_MXFP4)
			a[j][i] = mxfp4_pair(spread(nibbles, 0, i % 2));
		else {
			uint32_t bits = spread(nibbles, 0x43, i % 2);
			if (has_fifth_bits(type))
				bits |= fifth_bits(r.high, j, i);
			a[j][i] = fma_bf16x2(bits, BOTH_HALVES(0x3f80u),
			                     BOTH_HALVES(0xc300u | code_zero(type)));
		}
	}
}

/* f16 is the sum of two bfloat16 numbers, f32 of three, each the leading 8 bits of what the ones
 * before it leave. */
static __device__ __forceinline__ int float_parts(int type)
{
	return type == KERN_F32 ? 3 : 2;
}

/* Sets a to the A operand of a tile: part `part` of its values, 0 the largest. */
static __device__ __forceinline__ void unpack_part(const struct weight_record &r, int type,
                                                   int part, uint32_t a[4])
{
	UNROLL
	for (int i = 0; i < 4; i++) {
		float low, high;
		if (type == KERN_F32) {
			low = kern_bits_to_f32(r.code[2 * i]);
			high = kern_bits_to_f32(r.code[2 * i + 1]);
		} else {
			low = f16_value((uint16_t)r.code[i]);
			high = f16_value((uint16_t)(r.code[i] >> 16));
		}
		a[i] = take_part(&low, &high);
		if (part > 0)
			a[i] = take_part(&low, &high);
		if (part > 1)
			a[i] = take_part(&low, &high);
	}
}

/* The scale of row lane / 4 + 8 i, tile j. */
template <int CODES>
static __device__ __forceinline__ float record_scale(const struct weight_record &r, int type, int i,
                                                     int j)
{
	if constexpr (CODES == CODES_BYTES)
		return type == KERN_E4M3 ? r.f32_scale[i] : f16_value((uint16_t)r.scale[i]);
	if constexpr (CODES == CODES_Q6_K)
		return f16_value((uint16_t)r.block[i]) * (float)(int8_t)(r.scale[i] >> 8 * j);
	if (type == KERN_MXFP4)
		return kern_bf16_to_f32(kern_mxfp4_scale((unsigned char)r.scale[i]));
	if (is_k_type(type))
		return f16_value((uint16_t)r.block[i]) * (float)(r.scale[i] & 255);
	return f16_value((uint16_t)r.scale[i]);
}

/* As the file has it, for codes that begin with 0. */
static __device__ __forceinline__ float file_offset(const struct weight_record &r, int type, int i)
{
	return is_k_type(type) ? -(f16_value((uint16_t)(r.block[i] >> 16)) * (float)(r.scale[i] >> 8))
	                       : f16_value((uint16_t)(r.scale[i] >> 16));
}

static __device__ __forceinline__ float record_offset(const struct weight_record &r, int type,
                                                      int i)
{
	return fmaf((float)code_zero(type), record_scale<CODES_NIBBLES>(r, type, i, 0),
	            file_offset(r, type, i));
}

/* --- sums ---------------------------------------------------------------- */

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
