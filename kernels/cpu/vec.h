/* vec.h - operations on 16 floats for AVX-512, AVX2 with FMA, or plain C, as the including file may
 * use.
 *
 * Every operation gives the same bits in all three, and so does code built on it: products and sums
 * are rounded as written (v_fma rounds once), and reductions have a fixed order. NaN payloads are
 * an exception. v_min and v_max return their second operand if either is NaN; v_hmax is undefined
 * if a lane is NaN. */
#ifndef CPU_VEC_H
#define CPU_VEC_H

#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline, unused))
/* 1.5 * 2^23 = bits 0x4b400000: adding it leaves the nearest integer in the low bits */
#define V_ROUND 12582912.0f

#if defined(__AVX512F__)
typedef struct { __m512 v; } v16;
#define V1(e) ((v16){ e })
INLINE v16 v_set1(float x) { return V1(_mm512_set1_ps(x)); }
INLINE v16 v_load(const float *p) { return V1(_mm512_loadu_ps(p)); }
INLINE v16 v_loadn(const float *p, uint32_t n) { return V1(_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p)); }
INLINE void v_store(float *p, v16 a) { _mm512_storeu_ps(p, a.v); }
INLINE void v_storen(float *p, v16 a, uint32_t n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a.v); }
INLINE v16 v_add(v16 a, v16 b) { return V1(_mm512_add_ps(a.v, b.v)); }
INLINE v16 v_sub(v16 a, v16 b) { return V1(_mm512_sub_ps(a.v, b.v)); }
INLINE v16 v_mul(v16 a, v16 b) { return V1(_mm512_mul_ps(a.v, b.v)); }
INLINE v16 v_div(v16 a, v16 b) { return V1(_mm512_div_ps(a.v, b.v)); }
INLINE v16 v_fma(v16 a, v16 b, v16 c) { return V1(_mm512_fmadd_ps(a.v, b.v, c.v)); }
INLINE v16 v_max(v16 a, v16 b) { return V1(_mm512_max_ps(a.v, b.v)); }
INLINE v16 v_min(v16 a, v16 b) { return V1(_mm512_min_ps(a.v, b.v)); }
INLINE v16 v_abs(v16 a) { return V1(_mm512_abs_ps(a.v)); }
INLINE float v_hmax(v16 a) { return _mm512_reduce_max_ps(a.v); }
/* compares the lanes' bits: for magnitudes this is the maximum, and a NaN is above all numbers */
INLINE v16 v_max_bits(v16 a, v16 b)
{
	return V1(_mm512_castsi512_ps(
		_mm512_max_epi32(_mm512_castps_si512(a.v), _mm512_castps_si512(b.v))));
}
INLINE int32_t v_hmax_bits(v16 a) { return _mm512_reduce_max_epi32(_mm512_castps_si512(a.v)); }
INLINE v16 v_load_bf16(const uint16_t *p)
{
	return V1(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16)));
}
/* lanes are pairs of bf16: the first of each, the second */
INLINE v16 v_first_bf16(v16 a) { return V1(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 16))); }
INLINE v16 v_second_bf16(v16 a)
{
	return V1(_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32((int)0xffff0000))));
}
/* acc + two products per lane of such pairs, see fast_matmul.h. Inline assembly, so that one file
 * serves processors with and without AVX512_BF16. */
INLINE v16 v_dot_bf16(v16 a, v16 b, v16 acc)
{
	__m512 sum = acc.v;
	__asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a.v), "v"(b.v));
	return V1(sum);
}
INLINE v16 v_load_f16(const uint16_t *p) { return V1(_mm512_cvtph_ps(_mm256_loadu_si256((const void *)p))); }
INLINE v16 v_load_i8(const unsigned char *p) { return V1(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)))); }
/* E4M3 times 2^-8: the bits, shifted left by 7 (sign kept), are those of an f16 */
INLINE v16 v_load_f8(const unsigned char *p)
{
	__m256i h = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)p)), 7);
	return V1(_mm512_cvtph_ps(_mm256_and_si256(h, _mm256_set1_epi16((int16_t)0xbf80))));
}
/* lanes are four int8: byte n of each */
INLINE v16 v_byte_i8(v16 a, int n)
{
	return V1(_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(_mm512_castps_si512(a.v), 24 - 8 * n), 24)));
}
/* a * 2^n for integral n; 0 where t < -126; NaN where a, n and t are NaN */
INLINE v16 v_scale2(v16 a, v16 n, v16 t)
{
	return V1(_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(t.v, _mm512_set1_ps(-126.0f),
	                                                    _CMP_NLT_UQ),
	                                 a.v, n.v));
}
/* stores the nearest integers as 16 int8 and returns their sum; values must be within +-127.5 */
INLINE int32_t v_store_i8(int8_t *p, v16 a)
{
	__m512i n = _mm512_cvtps_epi32(a.v);
	_mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8(n));
	return _mm512_reduce_add_epi32(n);
}
/* lanes outside [lo, hi) become `other` */
INLINE v16 v_keep(v16 a, int lo, int hi, float other)
{
	uint32_t m = (hi >= 16 ? 0xffffu : (1u << hi) - 1) & ~((1u << lo) - 1);
	return V1(_mm512_mask_blend_ps((__mmask16)m, _mm512_set1_ps(other), a.v));
}

#elif defined(__AVX2__)
typedef struct { __m256 a, b; } v16;
#define V2(x, y) ((v16){ x, y })
INLINE v16 v_set1(float x) { return V2(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
INLINE v16 v_load(const float *p) { return V2(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
INLINE void v_store(float *p, v16 x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
INLINE v16 v_add(v16 x, v16 y) { return V2(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)); }
INLINE v16 v_sub(v16 x, v16 y) { return V2(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)); }
INLINE v16 v_mul(v16 x, v16 y) { return V2(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)); }
INLINE v16 v_div(v16 x, v16 y) { return V2(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)); }
INLINE v16 v_fma(v16 x, v16 y, v16 z) { return V2(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)); }
INLINE v16 v_max(v16 x, v16 y) { return V2(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)); }
INLINE v16 v_min(v16 x, v16 y) { return V2(_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)); }
INLINE v16 v_abs(v16 x)
{
	__m256 sign = _mm256_set1_ps(-0.0f);
	return V2(_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b));
}
INLINE float v_hmax(v16 x)
{
	__m256 m = _mm256_max_ps(x.a, x.b);
	__m128 h = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
	h = _mm_max_ps(h, _mm_movehl_ps(h, h));
	return _mm_cvtss_f32(_mm_max_ss(h, _mm_shuffle_ps(h, h, 1)));
}
INLINE __m256 v_half_max_bits(__m256 a, __m256 b)
{
	return _mm256_castsi256_ps(
		_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
INLINE v16 v_max_bits(v16 x, v16 y)
{
	return V2(v_half_max_bits(x.a, y.a), v_half_max_bits(x.b, y.b));
}
INLINE int32_t v_hmax_bits(v16 x)
{
	__m256i m = _mm256_max_epi32(_mm256_castps_si256(x.a), _mm256_castps_si256(x.b));
	__m128i h = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
	h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
	return _mm_cvtsi128_si32(_mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}
INLINE __m256 v_half_bf16(const uint16_t *p)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}
INLINE v16 v_load_bf16(const uint16_t *p) { return V2(v_half_bf16(p), v_half_bf16(p + 8)); }
INLINE __m256 v_half_first(__m256 a) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 16)); }
INLINE __m256 v_half_second(__m256 a) { return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000))); }
INLINE v16 v_first_bf16(v16 x) { return V2(v_half_first(x.a), v_half_first(x.b)); }
INLINE v16 v_second_bf16(v16 x) { return V2(v_half_second(x.a), v_half_second(x.b)); }
INLINE v16 v_load_f16(const uint16_t *p)
{
	return V2(_mm256_cvtph_ps(_mm_loadu_si128((const void *)p)), _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 8))));
}
INLINE __m256 v_half_i8(const unsigned char *p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p))); }
INLINE v16 v_load_i8(const unsigned char *p) { return V2(v_half_i8(p), v_half_i8(p + 8)); }
INLINE v16 v_load_f8(const unsigned char *p)
{
	__m256i h = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)p)), 7);
	h = _mm256_and_si256(h, _mm256_set1_epi16((int16_t)0xbf80));
	return V2(_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)));
}
INLINE __m256 v_half_byte(__m256 a, int n)
{
	return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(_mm256_castps_si256(a), 24 - 8 * n), 24));
}
INLINE v16 v_byte_i8(v16 x, int n) { return V2(v_half_byte(x.a, n), v_half_byte(x.b, n)); }
INLINE __m256 v_half_scale2(__m256 a, __m256 n, __m256 t)
{
	__m256 r = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
	return _mm256_and_ps(r, _mm256_cmp_ps(t, _mm256_set1_ps(-126.0f), _CMP_NLT_UQ));
}
INLINE v16 v_scale2(v16 x, v16 n, v16 t) { return V2(v_half_scale2(x.a, n.a, t.a), v_half_scale2(x.b, n.b, t.b)); }
INLINE int32_t v_store_i8(int8_t *p, v16 x)
{
	__m256i a = _mm256_cvtps_epi32(x.a), b = _mm256_cvtps_epi32(x.b), w = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
	_mm_storeu_si128((void *)p, _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
	a = _mm256_add_epi32(a, b);
	__m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
	s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
	return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

#else
typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));
typedef uint32_t u4 __attribute__((vector_size(16)));
typedef struct { f4 q[4]; } v16;
#define V4(expr) do { for (int i = 0; i < 4; i++) r.q[i] = (expr); return r; } while (0)
/* not unrolled: unrolling it sixteenfold at every use slows the compiler down, especially with
 * sanitizers */
#define V_EACH _Pragma("GCC unroll 1") for (int i = 0; i < 16; i++)
INLINE f4 v_choose(i4 yes, f4 a, f4 b) { return (f4)((yes & (i4)a) | (~yes & (i4)b)); }
INLINE v16 v_set1(float x) { v16 r; V4(((f4){ x, x, x, x })); }
INLINE v16 v_load(const float *p) { v16 r; memcpy(&r, p, sizeof r); return r; }
INLINE void v_store(float *p, v16 a) { memcpy(p, &a, sizeof a); }
INLINE v16 v_add(v16 a, v16 b) { v16 r; V4(a.q[i] + b.q[i]); }
INLINE v16 v_sub(v16 a, v16 b) { v16 r; V4(a.q[i] - b.q[i]); }
INLINE v16 v_mul(v16 a, v16 b) { v16 r; V4(a.q[i] * b.q[i]); }
INLINE v16 v_div(v16 a, v16 b) { v16 r; V4(a.q[i] / b.q[i]); }
INLINE v16 v_max(v16 a, v16 b) { v16 r; V4(v_choose(a.q[i] > b.q[i], a.q[i], b.q[i])); }
INLINE v16 v_min(v16 a, v16 b) { v16 r; V4(v_choose(a.q[i] < b.q[i], a.q[i], b.q[i])); }
INLINE v16 v_abs(v16 a) { v16 r; V4((f4)((i4)a.q[i] & 0x7fffffff)); }
INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
	V_EACH c.q[i / 4][i % 4] = fmaf(a.q[i / 4][i % 4], b.q[i / 4][i % 4], c.q[i / 4][i % 4]);
	return c;
}
INLINE float v_hmax(v16 a)
{
	float m = a.q[0][0];
	V_EACH m = a.q[i / 4][i % 4] > m ? a.q[i / 4][i % 4] : m;
	return m;
}
INLINE v16 v_max_bits(v16 a, v16 b)
{
	v16 r;
	V4(v_choose((i4)a.q[i] > (i4)b.q[i], a.q[i], b.q[i]));
}
INLINE int32_t v_hmax_bits(v16 a)
{
	int32_t m = INT32_MIN;
	V_EACH m = ((i4)a.q[i / 4])[i % 4] > m ? ((i4)a.q[i / 4])[i % 4] : m;
	return m;
}
INLINE v16 v_load_bf16(const uint16_t *p) { v16 r; V_EACH r.q[i / 4][i % 4] = kern_bf16_to_f32(p[i]); return r; }
INLINE v16 v_first_bf16(v16 a) { v16 r; V4((f4)((i4)a.q[i] << 16)); }
INLINE v16 v_second_bf16(v16 a) { v16 r; V4((f4)((i4)a.q[i] & (int32_t)0xffff0000)); }
INLINE v16 v_load_f16(const uint16_t *p) { v16 r; V_EACH r.q[i / 4][i % 4] = kern_f16_to_f32(p[i]); return r; }
INLINE v16 v_load_i8(const unsigned char *p) { v16 r; V_EACH r.q[i / 4][i % 4] = (float)(int8_t)p[i]; return r; }
INLINE v16 v_load_f8(const unsigned char *p) { v16 r; V_EACH r.q[i / 4][i % 4] = kern_f16_to_f32((uint16_t)((p[i] & 0x80) << 8 | (p[i] & 0x7f) << 7)); return r; }
INLINE v16 v_byte_i8(v16 a, int n) { v16 r; V_EACH r.q[i / 4][i % 4] = (float)(int8_t)(((i4)a.q[i / 4])[i % 4] >> 8 * n); return r; }
/* subtracting V_ROUND's bits leaves the nearest integer */
INLINE i4 v_integer(f4 a) { return (i4)((u4)(a + V_ROUND) - 0x4b400000u); }
INLINE v16 v_scale2(v16 a, v16 n, v16 t)
{
	v16 r;
	V4(v_choose(t.q[i] < -126.0f, (f4){ 0 },
	            a.q[i] * (f4)(((u4)v_integer(n.q[i]) + 127u) << 23)));
}
INLINE int32_t v_store_i8(int8_t *p, v16 a)
{
	int32_t sum = 0;
	V_EACH sum += p[i] = (int8_t)v_integer(a.q[i / 4])[i % 4];
	return sum;
}
#endif

/* v_fma with denormals flushed to zero, in and out, like vdpbf16ps; use between v_flush_begin and
 * v_flush_end. Vector instructions take the mode from a register of the thread. Plain C flushes a
 * result that would be below 2^-126 if rounded with unlimited exponent range, i.e. below 2^-126 -
 * 2^-151. In that range the sum of a product of two bfloat16 and a float is exact in a double. */
#if defined(__AVX2__)
INLINE unsigned v_flush_begin(void)
{
	unsigned before = _mm_getcsr();
	_mm_setcsr(before | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
	return before;
}
INLINE void v_flush_end(unsigned before) { _mm_setcsr(before); }
INLINE v16 v_fma_flushed(v16 a, v16 b, v16 c) { return v_fma(a, b, c); }
#else
INLINE unsigned v_flush_begin(void) { return 0; }
INLINE void v_flush_end(unsigned before) { (void)before; }
INLINE float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
INLINE float fma_flushed(float a, float b, float c)
{
	float r = fmaf(flushed(a), flushed(b), flushed(c));
	bool tiny = fabsf(r) <= 0x1p-126f && fabs((double)flushed(a) * (double)flushed(b) + (double)flushed(c)) < 0x1p-126 - 0x1p-151;
	return tiny ? copysignf(0, r) : r;
}
INLINE v16 v_fma_flushed(v16 a, v16 b, v16 c)
{
	V_EACH c.q[i / 4][i % 4] = fma_flushed(a.q[i / 4][i % 4], b.q[i / 4][i % 4], c.q[i / 4][i % 4]);
	return c;
}
#endif

#if !defined(__AVX512F__)
INLINE v16 v_loadn(const float *p, uint32_t n)
{
	float t[16] = { 0 };
	if (n >= 16)
		return v_load(p);
	memcpy(t, p, n * sizeof *t);
	return v_load(t);
}
INLINE void v_storen(float *p, v16 a, uint32_t n)
{
	float t[16];
	if (n >= 16) { /* the common case; a memcpy of variable length is slow */
		v_store(p, a);
		return;
	}
	v_store(t, a);
	memcpy(p, t, n * sizeof *t);
}
INLINE v16 v_keep(v16 a, int lo, int hi, float other)
{
	float t[16];
	v_store(t, a);
	for (int i = 0; i < 16; i++)
		if (i < lo || i >= hi)
			t[i] = other;
	return v_load(t);
}
#endif

INLINE float v_hsum(v16 a)
{
	float t[16];
	v_store(t, a);
	for (int half = 8; half; half /= 2)
		for (int i = 0; i < half; i++)
			t[i] += t[i + half];
	return t[0];
}

/* loads n (at most 16) elements of a KV or weight type; the others are 0. KERN_F8: times 2^-8 */
INLINE v16 v_load_as(const unsigned char *p, enum kern_dtype type, uint32_t n)
{
	uint16_t h[16] = { 0 };
	if (type == KERN_F32)
		return n == 16 ? v_load((const float *)(const void *)p) : v_loadn((const float *)(const void *)p, n);
	if (type == KERN_I8 || type == KERN_F8) {
		unsigned char b[16] = { 0 };
		if (n < 16)
			p = memcpy(b, p, n);
		return type == KERN_I8 ? v_load_i8(p) : v_load_f8(p);
	}
	const uint16_t *src = (const uint16_t *)(const void *)p;
	if (n < 16)
		src = memcpy(h, p, n * sizeof *h);
	return type == KERN_BF16 ? v_load_bf16(src) : v_load_f16(src);
}

/* 2^t within 2 ulp; 0 below -126, 2^127 above 127, NaN for NaN */
INLINE v16 v_exp2(v16 t)
{
	t = v_min(v_set1(127.0f), t);
	v16 low = v_max(v_set1(-200.0f), t),
	    n = v_sub(v_add(low, v_set1(V_ROUND)), v_set1(V_ROUND)), f = v_sub(low, n);
	v16 p = v_set1(1.5403530393381609e-4f);        /* ln(2)^i / i!, i = 6 .. 0 */
	p = v_fma(p, f, v_set1(1.3333558146428443e-3f));
	p = v_fma(p, f, v_set1(9.6181291076284772e-3f));
	p = v_fma(p, f, v_set1(5.5504108664821580e-2f));
	p = v_fma(p, f, v_set1(2.4022650695910071e-1f));
	p = v_fma(p, f, v_set1(6.9314718055994531e-1f));
	p = v_fma(p, f, v_set1(1.0f));
	return v_scale2(p, n, t);
}

#endif
