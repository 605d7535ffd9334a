/* panel.h - the layout of packed weights, written by pack.c and read by the matmul kernels.
 *
 * A weight is a sequence of panels. F32, F16: a panel is 64 columns (rows of W), as k rows of 64
 * elements. BF16: the same with pairs of k: 2 i and 2 i + 1 of a column are adjacent, as vdpbf16ps
 * needs; an odd k is padded with a zero. E4M3: 64 columns too; for each 128 k 64 float32 scales,
 * then up to 128 rows of 64 codes. Quantised types: a panel is 32 columns in two sides, 0 ..
 * 15 and 16 .. 31; k is cut into groups of 32, and one or more groups with their scales form a
 * block: first the scales of both sides, then for each group the codes, alternating between the
 * sides every 64 bytes. A kernel for 32 columns thus reads memory as one stream (two streams 512
 * bytes apart cost half the bandwidth, 256 bytes apart a tenth). All parts start at multiples of 64
 * bytes. Codes are unsigned bytes, four consecutive k of one column adjacent (step s: k 4s .. 4s +
 * 3), as the dot-product instructions need. A side has:
 *   Q8_0  2 groups a block: 2 x 16 f16 scales; a group's codes: 8 steps of 64 bytes, q + 128
 *   Q4_0  2 groups a block: 2 x 16 f16 scales; 4 times 64 bytes, low nibbles step j, high nibbles
 *         step j + 4
 *   Q4_1  1 group a block: 16 f16 d, 16 f16 m; codes as Q4_0
 *   Q6_K  8 groups a block: 16 f32 d, 8 x 2 x 16 int8 scales (first and second half of a group);
 *         nibbles as Q4_0, then 2 x 64 bytes of pairs, step s in bits 2 (s % 4) of vector s / 4;
 *         code = value + 32
 *   MXFP4 as Q4_0 with bfloat16 scales, half of the file's; a nibble's code is twice its value,
 *         plus 16 (cpu_mxfp4_codes): 4.5 bits a value, 4.25 in the file
 *   Q5_0  as Q4_0, plus 64 bytes after a group's nibbles: bit s of a byte is the fifth bit of its
 *         column's value in step s
 *   Q5_1  as Q4_1, plus the fifth bits of Q5_0
 *   Q4_K  8 groups a block: 16 f32 d, 16 f32 -m, 8 x (16 uint8 s, 16 uint8 t); codes as Q4_0: 4.75
 *         bits a value, 4.5 in the file. d s and m t are exact in float, so nothing is lost
 *   Q5_K  as Q4_K, plus the fifth bits of Q5_0: 5.75 bits a value, 5.5 in the file
 * Columns beyond n and groups beyond k are zero. */
#ifndef CPU_PANEL_H
#define CPU_PANEL_H

#include "kernels/numbers.h"

enum {
	SIDE_COLUMNS = 16,
	SIDES = 2,
	PANEL_COLUMNS = SIDES * SIDE_COLUMNS,
	FLOAT_COLUMNS = 64,
	GROUP = 32,
	E4M3_SCALES = 4 * FLOAT_COLUMNS, /* bytes of a block's scales */
	E4M3_BLOCK = E4M3_SCALES + KERN_E4M3_VALUES * FLOAT_COLUMNS
};
enum {
	CODE_STEP = 4 * PANEL_COLUMNS
}; /* distance between a side's consecutive 64-byte pieces of
                                         * codes */

/* products use activations as they are, not quantised */
static inline int panel_is_float(enum kern_dtype t)
{
	return t == KERN_F32 || t == KERN_F16 || t == KERN_BF16 || t == KERN_E4M3;
}

static inline uint32_t panel_float_k(enum kern_dtype t) /* k per row of a float panel */
{
	return t == KERN_BF16 ? 2 : 1;
}

static inline size_t panel_float_bytes(enum kern_dtype t) /* per column of such a row */
{
	return t == KERN_E4M3 ? 1 : t == KERN_F16 ? 2 : 4;
}

static inline uint32_t panel_columns(enum kern_dtype t)
{
	return panel_is_float(t) ? FLOAT_COLUMNS : PANEL_COLUMNS;
}

/* Q4_K and Q5_K: float d and m per 8 groups, integer scales per group */
static inline int panel_is_k(enum kern_dtype t)
{
	return t == KERN_Q4_K || t == KERN_Q5_K;
}

/* codes with nibbles and fifth bits */
static inline int panel_is_five(enum kern_dtype t)
{
	return t == KERN_Q5_0 || t == KERN_Q5_1 || t == KERN_Q5_K;
}

/* w = d q + m, without a zero point */
static inline int panel_has_offset(enum kern_dtype t)
{
	return t == KERN_Q4_1 || t == KERN_Q5_1 || panel_is_k(t);
}

/* zero point of nibble codes, in units of 8 */
static inline int panel_zero_eights(enum kern_dtype t)
{
	return t == KERN_Q5_0 || t == KERN_MXFP4 ? 2 : 1;
}

static inline uint32_t panel_block_groups(enum kern_dtype t)
{
	return t == KERN_Q6_K || panel_is_k(t) ? 8 : t == KERN_Q4_1 || t == KERN_Q5_1 ? 1 : 2;
}

static inline size_t panel_scale_bytes(enum kern_dtype t) /* per side */
{
	return t == KERN_Q6_K ? 320 : panel_is_k(t) ? 384 : 64;
}

static inline size_t panel_code_bytes(enum kern_dtype t) /* per group and side */
{
	return t == KERN_Q8_0 ? 512 : t == KERN_Q6_K ? 384 : panel_is_five(t) ? 320 : 256;
}

static inline size_t panel_block_bytes(enum kern_dtype t)
{
	return SIDES * (panel_scale_bytes(t) + panel_block_groups(t) * panel_code_bytes(t));
}

static inline size_t panel_group_bytes(enum kern_dtype t) /* including its share of the scales */
{
	return panel_block_bytes(t) / panel_block_groups(t);
}

static inline size_t panel_bytes(enum kern_dtype t, uint32_t k)
{
	if (t == KERN_E4M3)
		return (size_t)k * FLOAT_COLUMNS +
		       (size_t)((k + KERN_E4M3_VALUES - 1) / KERN_E4M3_VALUES) * E4M3_SCALES;
	if (panel_is_float(t))
		return (size_t)((k + panel_float_k(t) - 1) / panel_float_k(t)) * FLOAT_COLUMNS *
		       panel_float_bytes(t);
	return (k / GROUP + panel_block_groups(t) - 1) / panel_block_groups(t) * panel_block_bytes(t);
}

/* Offsets for group g of a panel: its block; in that, a side's scales (Q6_K, Q4_K, Q5_K: d and m of
 * the block's groups, and the group's integers) and codes. */
static inline size_t panel_block_at(enum kern_dtype t, uint32_t g)
{
	return g / panel_block_groups(t) * panel_block_bytes(t);
}

static inline size_t panel_d_at(enum kern_dtype t, uint32_t side)
{
	return side * panel_scale_bytes(t);
}

static inline size_t panel_scale_at(enum kern_dtype t, uint32_t g, uint32_t side)
{
	return panel_d_at(t, side) +
	       (t == KERN_Q6_K  ? 64
	        : panel_is_k(t) ? 128
	                        : 0) +
	       g % panel_block_groups(t) * 32;
}

static inline size_t panel_code_at(enum kern_dtype t, uint32_t g, uint32_t side)
{
	return SIDES * (panel_scale_bytes(t) + g % panel_block_groups(t) * panel_code_bytes(t)) +
	       side * (CODE_STEP / SIDES);
}

#endif
