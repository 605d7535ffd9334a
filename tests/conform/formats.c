/* formats.c - element types as their descriptions say: random matrices in the files' formats, what
 * their bytes mean, rounding to the half types. Written from the formats, not from kernels/. */
#include "tests/conform/conform.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- random matrices ----------------------------------------------------- */

static void put_half(unsigned char *p, float f)
{
	uint16_t u = format_bits(KERN_F16, format_round(KERN_F16, (double)f));
	p[0] = (unsigned char)u;
	p[1] = (unsigned char)(u >> 8);
}

/* Where a block has f16 numbers, and how large they are; a second number is -16 times the first,
 * or 8 times for the K types. */
static const struct {
	uint16_t values, scale_at;
	float scale, second;
} blocks[KERN_DTYPE_COUNT] = {
	[KERN_Q8_0] = {32, 0, 1.0f / 256, 0},   [KERN_Q4_0] = {32, 0, 1.0f / 16, 0},
	[KERN_Q4_1] = {32, 0, 1.0f / 16, -8},   [KERN_Q5_0] = {32, 0, 1.0f / 32, 0},
	[KERN_Q5_1] = {32, 0, 1.0f / 32, -16},  [KERN_Q6_K] = {256, 208, 1.0f / 8192, 0},
	[KERN_Q4_K] = {256, 0, 1.0f / 1024, 8}, [KERN_Q5_K] = {256, 0, 1.0f / 1024, 8},
	[KERN_MXFP4] = {32, 0, 0, 0},           [KERN_E4M3] = {128, 0, 1.0f / 256, 0},
};

/* A block's numbers; some are so small that a half is subnormal, as many of real models are. */
static void put_scales(enum kern_dtype t, unsigned char *block)
{
	bool tiny = rand_below(7) == 0;
	float f = (rand_unit() + 2) * blocks[t].scale * (tiny ? 0x1p-9f : 1);
	if (t == KERN_MXFP4) {
		block[0] = (unsigned char)((tiny ? 100 : 121) + rand_below(5));
		return;
	}
	if (t == KERN_E4M3) {
		f *= tiny ? 0x1p-60f : 1;
		memcpy(block, &f, 4);
		return;
	}
	put_half(block + blocks[t].scale_at, f);
	if (blocks[t].second != 0)
		put_half(block + blocks[t].scale_at + 2, f * blocks[t].second);
}

/* Codes that are not NaN; those beyond a row's values stay what they are. */
static void put_codes(unsigned char *row, uint32_t k)
{
	for (uint32_t i = 0; i < k; i++) {
		unsigned char *c = row + kern_dtype_bytes(KERN_E4M3, i - i % 128) + 4 + i % 128;
		*c = (*c & 0x7f) == 0x7f ? (unsigned char)(*c - 1 - rand_below(60)) : *c;
	}
}

unsigned char *rand_weight(enum kern_dtype t, uint32_t n, uint32_t k)
{
	size_t count = (size_t)n * k, row = kern_dtype_bytes(t, k), bytes = n * row;
	unsigned char *w = conform_alloc(bytes, 1);
	for (size_t i = 0; i < bytes; i++)
		w[i] = (unsigned char)rand_bits();
	for (size_t i = 0; i < count; i++) {
		float f = rand_unit();
		if (t == KERN_F32)
			memcpy(w + 4 * i, &f, 4);
		else if (t == KERN_F16)
			put_half(w + 2 * i, i % 13 == 5 ? f * 0x1p-14f : f);
		else if (t == KERN_BF16)
			memcpy(w + 2 * i, (unsigned char *)&f + 2, 2);
		else if (i % k % blocks[t].values == 0)
			put_scales(t, w + i / k * row + kern_dtype_bytes(t, i % k));
	}
	for (uint32_t r = 0; t == KERN_E4M3 && r < n; r++)
		put_codes(w + r * row, k);
	return w;
}

/* --- what bytes mean ----------------------------------------------------- */

static double half(const unsigned char *p)
{
	unsigned u = p[0] | (unsigned)p[1] << 8, exponent = u >> 10 & 31, m = u & 1023;
	double v = exponent == 31 ? (m ? NAN : INFINITY)
	           : exponent     ? (1024 + m) * (double)(1u << exponent) * 0x1p-25
	                          : m * 0x1p-24;
	return u >> 15 ? -v : v;
}

static double single(const unsigned char *p, size_t bytes) /* the upper `bytes` of a float32 */
{
	unsigned char b[4] = {0};
	float f;
	memcpy(b + 4 - bytes, p, bytes);
	memcpy(&f, b, 4);
	return (double)f;
}

/* OCP 8-bit floating point, E4M3: S.EEEE.MMM, bias 7, no infinities */
double format_f8(unsigned c)
{
	unsigned e = c >> 3 & 15, m = c & 7;
	double v = (c & 0x7f) == 0x7f ? NAN : e ? (8 + m) * (double)(1u << e) / 1024 : m / 512.0;
	return c & 0x80 ? -v : v;
}

/* Value i of 32: nibbles at p, the first 16 in the low halves. */
static unsigned nibble(const unsigned char *p, unsigned i)
{
	return i < 16 ? p[i] & 15u : p[i - 16] >> 4u;
}

static unsigned bit(const unsigned char *p, unsigned i)
{
	return p[i / 8] >> i % 8 & 1u;
}

/* 6 bits each of scale and offset of 8 groups in 12 bytes: the low 6 bits of bytes j and j + 4 for
 * groups 0 to 3; for the others the nibbles of byte j + 4, with two more bits each above those
 * of groups j - 4. */
static void k_scales(const unsigned char *s, unsigned g, unsigned *ret_scale, unsigned *ret_offset)
{
	*ret_scale = g < 4 ? s[g] & 63u : (s[g + 4] & 15u) | (s[g - 4] & 192u) >> 2;
	*ret_offset = g < 4 ? s[g + 4] & 63u : (s[g + 4] & 240u) >> 4 | (s[g] & 192u) >> 2;
}

static double k_value(const unsigned char *b, const unsigned char *high, const unsigned char *low,
                      unsigned i)
{
	unsigned g = i / 32, scale, offset, q = low[g / 2 * 32 + i % 32] >> (g % 2 ? 4 : 0) & 15u;
	k_scales(b + 4, g, &scale, &offset);
	q |= high ? (high[i % 32] >> g & 1u) << 4 : 0;
	return half(b) * scale * q - half(b + 2) * offset;
}

/* Halves of 128 values: value 32 j + l of a half has its low nibble in byte l (j even) or 32 + l,
 * lower half for j < 2; two high bits at 2 j of byte l; an int8 scale for each 16 values. */
static double q6_value(const unsigned char *b, unsigned i)
{
	unsigned h = i / 128, j = i % 128 / 32, l = i % 32;
	unsigned low = b[64 * h + 32 * (j % 2) + l] >> (j >= 2 ? 4 : 0) & 15u,
			 high = b[128 + 32 * h + l] >> 2 * j & 3u;
	return half(b + 208) * (int8_t)b[192 + i / 16] * ((int)(low | high << 4) - 32);
}

/* OCP MX: E2M1 numbers, S.EE.M with bias 1, times a power of two */
static double mx_value(const unsigned char *b, unsigned i)
{
	static const double magnitude[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
	unsigned q = nibble(b + 1, i);
	/* no negative zero */
	return b[0] == 255 ? NAN : ldexp(q & 8 ? 0 - magnitude[q & 7] : magnitude[q & 7], b[0] - 127);
}

double format_value(enum kern_dtype t, const unsigned char *row, uint32_t at)
{
	unsigned i = blocks[t].values ? at % blocks[t].values : 0;
	const unsigned char *b = blocks[t].values ? row + kern_dtype_bytes(t, at - i) : row;
	switch (t) {
	case KERN_F32: return single(b + 4 * (size_t)at, 4);
	case KERN_F16: return half(b + 2 * (size_t)at);
	case KERN_BF16: return single(b + 2 * (size_t)at, 2);
	case KERN_Q8_0: return half(b) * (int8_t)b[2 + i];
	case KERN_Q4_0: return half(b) * ((int)nibble(b + 2, i) - 8);
	case KERN_Q4_1: return half(b) * nibble(b + 4, i) + half(b + 2);
	case KERN_Q5_0: return half(b) * ((int)(nibble(b + 6, i) | bit(b + 2, i) << 4) - 16);
	case KERN_Q5_1: return half(b) * (nibble(b + 8, i) | bit(b + 4, i) << 4) + half(b + 2);
	case KERN_Q6_K: return q6_value(b, i);
	case KERN_Q4_K: return k_value(b, NULL, b + 16, i);
	case KERN_Q5_K: return k_value(b, b + 16, b + 48, i);
	case KERN_MXFP4: return mx_value(b, i);
	case KERN_E4M3: return single(b, 4) * format_f8(b[4 + i]);
	case KERN_I8: return (int8_t)b[at];
	case KERN_F8: return format_f8(b[at]);
	default: return NAN;
	}
}

void format_row(enum kern_dtype t, const unsigned char *row, uint32_t k, float *ret)
{
	for (uint32_t c = 0; c < k; c++)
		ret[c] = (float)format_value(t, row, c);
	for (uint32_t c = 0; t == KERN_E4M3 && c < k; c++) {
		unsigned code = row[kern_dtype_bytes(t, c - c % 128) + 4 + c % 128];
		for (uint32_t i = c - c % 128; (code & 127) == 127 && i < k && i < c - c % 128 + 128; i++)
			ret[i] = NAN;
	}
}

/* --- rounding ------------------------------------------------------------ */

double format_error(enum kern_dtype t, double x)
{
	return t == KERN_F16    ? 0x1p-11 * fabs(x) + 0x1p-25
	       : t == KERN_BF16 ? 0x1p-8 * fabs(x) + 0x1p-134
	                        : 0x1p-24 * fabs(x) + 0x1p-150;
}

float format_round(enum kern_dtype t, double x)
{
	int digits = t == KERN_F16    ? 11
	             : t == KERN_BF16 ? 8
	                              : 24,
		least = t == KERN_F16    ? -24
	            : t == KERN_BF16 ? -133
	                             : -149,
		e;
	double top = t == KERN_F16 ? 0x1p16 : 0x1p128;
	if (!isfinite(x) || x == 0)
		return (float)x;
	frexp(x, &e); /* |x| in [2^(e-1), 2^e) */
	int place = e - digits > least ? e - digits : least;
	double r = ldexp(nearbyint(ldexp(x, -place)), place);
	return fabs(r) >= top ? (float)copysign(INFINITY, x) : (float)r;
}

uint16_t format_bits(enum kern_dtype t, float x)
{
	uint32_t u;
	int e;
	memcpy(&u, &x, 4);
	if (t == KERN_BF16)
		return (uint16_t)(u >> 16 | (isnan(x) ? 0x40 : 0));
	uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
	if (isnan(x) || isinf(x))
		return sign | (isnan(x) ? 0x7e00 : 0x7c00);
	double a = fabs((double)x);
	if (a < 0x1p-14)
		return sign | (uint16_t)ldexp(a, 24);
	double m = frexp(a, &e); /* [0.5, 1) */
	return sign | (uint16_t)((e + 14) << 10 | ((int)ldexp(m, 11) - 1024));
}
