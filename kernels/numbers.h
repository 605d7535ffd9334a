/* numbers.h - conversions between number formats, for every backend; rounding is to nearest, ties
 * to even. Compiles as C, and as C++ for devices. */
#ifndef KERNELS_NUMBERS_H
#define KERNELS_NUMBERS_H

#include "kernels/tensor.h"

#include <math.h>

KERN_INLINE float kern_bits_to_f32(uint32_t u)
{
	union {
		uint32_t u;
		float f;
	} v;
	v.u = u;
	return v.f;
}

KERN_INLINE uint32_t kern_f32_bits(float f)
{
	union {
		float f;
		uint32_t u;
	} v;
	v.f = f;
	return v.u;
}

KERN_INLINE float kern_bf16_to_f32(uint16_t h)
{
	return kern_bits_to_f32((uint32_t)h << 16);
}

KERN_INLINE uint16_t kern_f32_to_bf16(float f) /* NaN stays NaN */
{
	uint32_t u = kern_f32_bits(f), rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16,
			 nan = u >> 16 | 0x40;
	return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

KERN_INLINE float kern_f16_to_f32(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 0x3ff;
	if (exp == 31)
		return kern_bits_to_f32(sign | 0x7f800000 | man << 13);
	if (exp == 0) {
		float f = (float)man * 0x1p-24f;
		return sign ? -f : f;
	}
	return kern_bits_to_f32(sign | (exp + 112) << 23 | man << 13);
}

/* Element i of an array of float32, float16 or bfloat16 numbers, which may lie at any address. */
KERN_INLINE float kern_element(const void *array, enum kern_dtype type, size_t i)
{
	const unsigned char *p = (const unsigned char *)array + i * (type == KERN_F32 ? 4 : 2);
	uint16_t h = (uint16_t)(p[0] | p[1] << 8);
	if (type == KERN_F32)
		return kern_bits_to_f32(h | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
	return type == KERN_BF16 ? kern_bf16_to_f32(h) : kern_f16_to_f32(h);
}

/* S.EEEE.MMM, bias 7; E = 0: subnormal; S.1111.111: NaN */
KERN_INLINE float kern_f8_to_f32(uint8_t c)
{
	uint32_t man = c & 7, exp = c >> 3 & 15, sign = (uint32_t)(c & 0x80) << 24;
	if (exp == 15 && man == 7)
		return kern_bits_to_f32(sign | 0x7fc00000);
	float f = exp ? kern_bits_to_f32((exp + 120) << 23 | man << 20) : (float)man * 0x1p-9f;
	return sign ? -f : f;
}

enum { KERN_E4M3_VALUES = 128 }; /* of a block of KERN_E4M3 */

/* The scale of a block with `count` values in the file's format; NaN if one of its codes is. */
KERN_INLINE float kern_e4m3_scale(const unsigned char *block, uint32_t count)
{
	uint32_t s = (uint32_t)block[0] | (uint32_t)block[1] << 8 | (uint32_t)block[2] << 16 |
	             (uint32_t)block[3] << 24;
	for (uint32_t i = 0; i < count; i++)
		if ((block[4 + i] & 0x7f) == 0x7f)
			s = 0x7fc00000;
	return kern_bits_to_f32(s);
}

/* The next two have no branch, for loops over a row. Values too small for a normal exponent are
 * rounded by adding a constant whose last place is the type's smallest step. Selection uses masks
 * because compilers turn conditionals into branches. */
KERN_INLINE uint16_t kern_f32_to_f16(float f) /* NaN stays NaN */
{
	uint32_t u = kern_f32_bits(f), sum = kern_f32_bits(fabsf(f) + 0.5f);
	uint32_t a = u & 0x7fffffff, normal = ((a + 0xfff + (a >> 13 & 1)) >> 13) - (112 << 10),
			 small = sum - 0x3f000000;
	uint32_t is_small = -(uint32_t)(a < 0x38800000), is_large = -(uint32_t)(a >= 0x477ff000),
			 is_nan = -(uint32_t)(a > 0x7f800000);
	uint32_t c = (small & is_small) | (normal & ~is_small);
	c = (0x7c00 & is_large) | (c & ~is_large); /* rounds to 65536 or more */
	return (uint16_t)((u >> 16 & 0x8000) | c | (0x200 & is_nan));
}

KERN_INLINE uint8_t kern_f32_to_f8(float f) /* saturates at 448; f must not be NaN */
{
	uint32_t u = kern_f32_bits(f), sum = kern_f32_bits(fabsf(f) + 0x1p14f);
	uint32_t a = u & 0x7fffffff, normal = ((a + 0x7ffff + (a >> 20 & 1)) >> 20) - (120 << 3),
			 small = sum - 0x46800000;
	uint32_t is_small = -(uint32_t)(a < 0x3c800000), is_large = -(uint32_t)(a >= 0x43e80000);
	uint32_t c = (small & is_small) | (normal & ~is_small);
	return (uint8_t)((u >> 24 & 0x80) | (0x7e & is_large) | (c & ~is_large));
}

/* 2^(e - 127) / 2, the halved MXFP4 scale of exponent e, as bfloat16. */
KERN_INLINE uint16_t kern_mxfp4_scale(unsigned char e)
{
	if (e == 255)
		return 0x7fc0;
	return (uint16_t)(e > 1 ? (e - 1) << 7 : 0x20 << e); /* subnormal: 2^-128, 2^-127 */
}

/* The 6-bit scale and offset of group j (32 values, j < 8) from the 12 bytes of a Q4_K or Q5_K
 * block. Groups 0 .. 3: the low 6 bits of bytes j and j + 4. Groups 4 .. 7: low nibbles in byte j +
 * 4, the high pairs in the top 2 bits of bytes j - 4 and j. */
KERN_INLINE void kern_k_scales(const unsigned char *s, unsigned j, unsigned *ret_scale,
                               unsigned *ret_offset)
{
	if (j < 4) {
		*ret_scale = s[j] & 63;
		*ret_offset = s[j + 4] & 63;
	} else {
		*ret_scale = (s[j + 4] & 15u) | (s[j - 4] >> 6u) << 4;
		*ret_offset = s[j + 4] >> 4u | (s[j] >> 6u) << 4;
	}
}

#endif
