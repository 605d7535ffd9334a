/* dequant.c - scalar conversions: half formats and the blocks of the file formats. Used at load, by
 * `embed` and by the reference; the fast kernels read panels. Every value is exact except for one
 * rounding to float. */
#include "kernels/cpu/cpu.h"

#include <string.h>

static float half_at(const unsigned char *p)
{
	return kern_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

static void q8_0(float *out, const unsigned char *b)
{
	float d = half_at(b);
	for (int i = 0; i < 32; i++)
		out[i] = d * (float)(int8_t)b[2 + i];
}

static void q4_0(float *out, const unsigned char *b)
{
	float d = half_at(b);
	for (int i = 0; i < 16; i++) {
		out[i] = d * (float)((b[2 + i] & 15) - 8);
		out[16 + i] = d * (float)((b[2 + i] >> 4) - 8);
	}
}

static void q4_1(float *out, const unsigned char *b)
{
	float d = half_at(b), m = half_at(b + 2);
	for (int i = 0; i < 16; i++) {
		out[i] = d * (float)(b[4 + i] & 15) + m;
		out[16 + i] = d * (float)(b[4 + i] >> 4) + m;
	}
}

/* Two halves of 128 values; in a half, value l + 32 j (l < 32, j < 4) has its low nibble in ql[l +
 * 32 (j & 1)] (high half of the byte for j >= 2) and its high pair in bits 2j of qh[l]; each scale
 * applies to 16 values. */
static void q6_k(float *out, const unsigned char *b)
{
	float d = half_at(b + 208);
	for (int half = 0; half < 2; half++) {
		const unsigned char *ql = b + 64 * half, *qh = b + 128 + 32 * half,
							*sc = b + 192 + 8 * half;
		for (int i = 0; i < 128; i++) {
			int j = i / 32, l = i % 32;
			int low = ql[l + 32 * (j & 1)] >> (j >= 2 ? 4 : 0) & 15, high = qh[l] >> (2 * j) & 3;
			out[128 * half + i] = d * (float)(int8_t)sc[i / 16] * (float)((low | high << 4) - 32);
		}
	}
}

/* value i's fifth bit: bit i of the 32 at p */
static unsigned fifth(const unsigned char *p, int i)
{
	return (p[i / 8] >> i % 8 & 1u) << 4;
}

static void q5_0(float *out, const unsigned char *b)
{
	float d = half_at(b);
	for (int i = 0; i < 16; i++) {
		out[i] = d * (float)((int)((b[6 + i] & 15) | fifth(b + 2, i)) - 16);
		out[16 + i] = d * (float)((int)(b[6 + i] >> 4 | fifth(b + 2, 16 + i)) - 16);
	}
}

static void q5_1(float *out, const unsigned char *b)
{
	float d = half_at(b), m = half_at(b + 2);
	for (int i = 0; i < 16; i++) {
		out[i] = d * (float)((b[8 + i] & 15) | fifth(b + 4, i)) + m;
		out[16 + i] = d * (float)(b[8 + i] >> 4 | fifth(b + 4, 16 + i)) + m;
	}
}

/* Groups 2 j and 2 j + 1 are the low and high nibbles of 32 bytes; bit g of high[i] is the fifth
 * bit of value i of group g. The products of f16 and 6 bits, and those with q, are exact in a
 * float: only the difference is rounded. */
static void q45_k(float *out, const unsigned char *b, const unsigned char *high,
                  const unsigned char *low)
{
	float d = half_at(b), m = half_at(b + 2);
	for (unsigned g = 0; g < 8; g++) {
		unsigned scale, offset;
		kern_k_scales(b + 4, g, &scale, &offset);
		for (unsigned i = 0; i < 32; i++) {
			unsigned q = (low[g / 2 * 32 + i] >> (g % 2 ? 4 : 0) & 15u) |
			             (high ? (high[i] >> g & 1u) << 4 : 0);
			out[32 * g + i] = d * (float)scale * (float)q - m * (float)offset;
		}
	}
}

static void q4_k(float *out, const unsigned char *b)
{
	q45_k(out, b, NULL, b + 16);
}

static void q5_k(float *out, const unsigned char *b)
{
	q45_k(out, b, b + 16, b + 48);
}

/* Twice the E2M1 value of each nibble, plus 16. */
const unsigned char cpu_mxfp4_codes[16] = {16, 17, 18, 19, 20, 22, 24, 28,
                                           16, 15, 14, 13, 12, 10, 8,  4};

static void mxfp4(float *out, const unsigned char *b)
{
	float d = kern_bf16_to_f32(kern_mxfp4_scale(b[0]));
	for (int i = 0; i < 16; i++) {
		out[i] = d * (float)(cpu_mxfp4_codes[b[1 + i] & 15] - 16);
		out[16 + i] = d * (float)(cpu_mxfp4_codes[b[1 + i] >> 4] - 16);
	}
}

static void e4m3(float *out, const unsigned char *b, uint32_t count)
{
	float d = kern_e4m3_scale(b, count);
	for (uint32_t i = 0; i < count; i++)
		out[i] = d * kern_f8_to_f32(b[4 + i]);
}

static void blocks(float *out, const unsigned char *src, uint32_t count, uint32_t values,
                   void (*block)(float *, const unsigned char *), enum kern_dtype dtype)
{
	size_t bytes = kern_dtype_bytes(dtype, values);
	for (uint32_t i = 0; i < count; i += values, src += bytes)
		block(out + i, src);
}

void cpu_dequantise(float *out, enum kern_dtype dtype, const void *data, uint32_t count)
{
	const unsigned char *src = data;
	switch (dtype) {
	case KERN_F32: memcpy(out, src, (size_t)count * 4); break;
	case KERN_F16:
		for (uint32_t i = 0; i < count; i++)
			out[i] = half_at(src + 2 * (size_t)i);
		break;
	case KERN_BF16:
		for (uint32_t i = 0; i < count; i++)
			out[i] = kern_bf16_to_f32((uint16_t)(src[2 * (size_t)i] | src[2 * (size_t)i + 1] << 8));
		break;
	case KERN_Q8_0: blocks(out, src, count, 32, q8_0, dtype); break;
	case KERN_Q4_0: blocks(out, src, count, 32, q4_0, dtype); break;
	case KERN_Q4_1: blocks(out, src, count, 32, q4_1, dtype); break;
	case KERN_Q6_K: blocks(out, src, count, 256, q6_k, dtype); break;
	case KERN_Q5_0: blocks(out, src, count, 32, q5_0, dtype); break;
	case KERN_Q5_1: blocks(out, src, count, 32, q5_1, dtype); break;
	case KERN_Q4_K: blocks(out, src, count, 256, q4_k, dtype); break;
	case KERN_Q5_K: blocks(out, src, count, 256, q5_k, dtype); break;
	case KERN_MXFP4: blocks(out, src, count, 32, mxfp4, dtype); break;
	case KERN_E4M3:
		for (uint32_t i = 0; i < count; i += KERN_E4M3_VALUES)
			e4m3(out + i, src + kern_dtype_bytes(dtype, i),
			     count - i < KERN_E4M3_VALUES ? count - i : KERN_E4M3_VALUES);
		break;
	case KERN_I8:
		for (uint32_t i = 0; i < count; i++)
			out[i] = (float)(int8_t)src[i];
		break;
	case KERN_F8:
		for (uint32_t i = 0; i < count; i++)
			out[i] = kern_f8_to_f32(src[i]);
		break;
	case KERN_DTYPE_COUNT: break;
	}
}
