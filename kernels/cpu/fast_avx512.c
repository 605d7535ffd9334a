/* fast_avx512.c - the fast variant for AVX-512 with VNNI. A side of a panel is one register of 16
 * columns; a tile has up to 4 rows: the sums of hi and lo bytes for both sides take 16 registers.
 * Tiles of 6 and 12 rows (lo after hi in the same registers) are 3 to 5 % slower on Zen 5, and
 * would need 4 % fewer instructions per product on Intel. */
#include "kernels/cpu/panel.h"
#include "kernels/cpu/vec.h"

#define FLOAT_ROWS 6
#define FLOAT_VECS 4
#define FLOAT_VECS_MAX 4
#define ATT_ROWS 6
#define ATT_VECS 4
#include "kernels/cpu/fast_record.h"

enum { SUMS = 2 * TILE_ROWS * SIDES };

/* acc += 4 products per lane of unsigned w and signed x. Inline assembly, because gcc 12 copies and
 * spills the accumulators of the intrinsic in large tiles. */
#define DOT(acc, w, x) __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x))

/* always unrolled, so that the accumulators are registers, not an array; sum i belongs to row i /
 * SIDES and side i % SIDES */
#define EACH_ROW _Pragma("GCC unroll 8") for (int r = 0; r < R; r++)
#define EACH_SIDE _Pragma("GCC unroll 2") for (int c = 0; c < SIDES; c++)
#define EACH_SUM _Pragma("GCC unroll 8") for (int i = 0; i < R * SIDES; i++)
/* never unrolled: otherwise gcc 12 reloads weights for each use */
#define EACH_STEP(n) _Pragma("GCC unroll 1") for (int s = 0; s < (n); s++)

INLINE __m512i rec_i32(const unsigned char *rec, int offset, int R, int r)
{
	return _mm512_set1_epi32(((const int32_t *)(const void *)(rec + offset * R))[r]);
}

INLINE __m512 rec_f32(const unsigned char *rec, int offset, int R, int r)
{
	return _mm512_set1_ps(((const float *)(const void *)(rec + offset * R))[r]);
}

INLINE __m512 half16(const unsigned char *p)
{
	return _mm512_cvtph_ps(_mm256_load_si256((const void *)p));
}

/* sum (rows, SIDES) += products of a step's weights w with the 4 bytes at x of each row */
INLINE void dots(int R, const __m512i *w, const unsigned char *x, __m512i *sum)
{
	EACH_ROW
	{
		__m512i four = _mm512_set1_epi32(*(const int32_t *)(const void *)(x + r * GROUP));
		EACH_SIDE
		DOT(sum[r * SIDES + c], w[c], four);
	}
}

INLINE void dots_q8(int R, const unsigned char *const *codes, const unsigned char *x, __m512i *sum)
{
	EACH_STEP(8)
	{
		__m512i w[SIDES];
		EACH_SIDE
		w[c] = _mm512_load_si512(codes[c] + s * CODE_STEP);
		dots(R, w, x + 4 * s, sum);
	}
}

INLINE void dots_q4(int R, const unsigned char *const *codes, const unsigned char *x, __m512i *sum)
{
	const __m512i mask = _mm512_set1_epi8(15);
	EACH_STEP(4)
	{
		__m512i w[SIDES];
		EACH_SIDE
		w[c] = _mm512_and_si512(_mm512_load_si512(codes[c] + s * CODE_STEP), mask);
		dots(R, w, x + 4 * s, sum);
		EACH_SIDE
		w[c] = _mm512_and_si512(_mm512_srli_epi16(_mm512_load_si512(codes[c] + s * CODE_STEP), 4),
		                        mask);
		dots(R, w, x + 4 * (s + 4), sum);
	}
}

INLINE void dots_mxfp4(int R, const unsigned char *const *codes, const unsigned char *x,
                       __m512i *sum)
{
	const __m512i mask = _mm512_set1_epi8(15);
	const __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)cpu_mxfp4_codes));
	EACH_STEP(4)
	{
		__m512i v[SIDES], w[SIDES];
		EACH_SIDE
		{
			v[c] = _mm512_load_si512(codes[c] + s * CODE_STEP);
			w[c] = _mm512_shuffle_epi8(table, _mm512_and_si512(v[c], mask));
		}
		dots(R, w, x + 4 * s, sum);
		EACH_SIDE
		w[c] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(v[c], 4), mask));
		dots(R, w, x + 4 * (s + 4), sum);
	}
}

INLINE void dots_q5(int R, const unsigned char *const *codes, const unsigned char *x, __m512i *sum)
{
	const __m512i mask = _mm512_set1_epi8(15), mask_fifth = _mm512_set1_epi8(0x10);
	__m512i fifths[SIDES];
	EACH_SIDE
	fifths[c] = _mm512_load_si512(codes[c] + 4 * CODE_STEP);
	EACH_STEP(4)
	{
		__m512i w[SIDES];
		EACH_SIDE
		w[c] = _mm512_or_si512(_mm512_and_si512(_mm512_load_si512(codes[c] + s * CODE_STEP), mask),
		                       _mm512_and_si512(_mm512_slli_epi16(fifths[c], 4), mask_fifth));
		dots(R, w, x + 4 * s, sum);
		EACH_SIDE
		{
			w[c] = _mm512_or_si512(
				_mm512_and_si512(_mm512_srli_epi16(_mm512_load_si512(codes[c] + s * CODE_STEP), 4),
			                     mask),
				_mm512_and_si512(fifths[c], mask_fifth));
			fifths[c] = _mm512_srli_epi16(fifths[c], 1);
		}
		dots(R, w, x + 4 * (s + 4), sum);
	}
}

INLINE void dots_q6(int R, int half, const unsigned char *const *codes, const unsigned char *x,
                    __m512i *sum)
{
	const __m512i mask = _mm512_set1_epi8(15), mask_pair = _mm512_set1_epi8(0x30);
	__m512i pairs[SIDES];
	EACH_SIDE
	pairs[c] = _mm512_load_si512(codes[c] + (4 + half) * CODE_STEP);
	EACH_STEP(4)
	{
		__m512i w[SIDES];
		EACH_SIDE
		{
			__m512i v = _mm512_load_si512(codes[c] + s * CODE_STEP);
			w[c] = _mm512_and_si512(half ? _mm512_srli_epi16(v, 4) : v, mask);
			w[c] = _mm512_or_si512(w[c],
			                       _mm512_and_si512(_mm512_slli_epi16(pairs[c], 4), mask_pair));
			pairs[c] = _mm512_srli_epi16(pairs[c], 2);
		}
		dots(R, w, x + 16 * half + 4 * s, sum);
	}
}

/* sum (R, SIDES) = RADIX * hi + lo of a group (Q6_K: of half a group). The hi and lo bytes are
 * processed as 2 R rows, so that weights are unpacked once for both. */
INLINE void group_sums(int R, enum kern_dtype type, int half, const unsigned char *const *codes,
                       const unsigned char *rec, __m512i *sum)
{
	__m512i *low = sum + R * SIDES;
	EACH_SUM
	sum[i] = low[i] = _mm512_setzero_si512();
	if (type == KERN_Q8_0)
		dots_q8(2 * R, codes, rec, sum);
	else if (type == KERN_Q6_K)
		dots_q6(2 * R, half, codes, rec, sum);
	else if (type == KERN_MXFP4)
		dots_mxfp4(2 * R, codes, rec, sum);
	else if (panel_is_five(type))
		dots_q5(2 * R, codes, rec, sum);
	else
		dots_q4(2 * R, codes, rec, sum);
	EACH_SUM
	sum[i] = _mm512_add_epi32(_mm512_slli_epi32(sum[i], LO_BITS), low[i]);
}

/* acc += float(sum + times * zero) * d * the row's scale; zero: offset of the record's field,
 * negative: none; times is 1 or 2 */
INLINE void add_scaled(int R, const __m512i *sum, const unsigned char *rec, int zero, int times,
                       const __m512 *d, float *acc)
{
	EACH_ROW
	{
		__m512 x = rec_f32(rec, REC_D, R, r);
		__m512i z = zero < 0 ? _mm512_setzero_si512()
		                     : _mm512_slli_epi32(rec_i32(rec, zero, R, r), times - 1);
		EACH_SIDE
		{
			int i = r * SIDES + c;
			__m512 f = _mm512_cvtepi32_ps(zero < 0 ? sum[i] : _mm512_add_epi32(sum[i], z));
			_mm512_store_ps(acc + i * 16, _mm512_fmadd_ps(f, _mm512_mul_ps(d[c], x),
			                                              _mm512_load_ps(acc + i * 16)));
		}
	}
}

/* d times 16 byte integers */
INLINE __m512 scaled16(const unsigned char *d, __m512i integers)
{
	return _mm512_mul_ps(_mm512_load_ps((const float *)(const void *)d),
	                     _mm512_cvtepi32_ps(integers));
}

/* a side's scales (part 0) or offsets (part 1) in group j of a block */
INLINE __m512 scales16(enum kern_dtype type, int part, const unsigned char *block, uint32_t j,
                       int side)
{
	const unsigned char *scale = block + panel_scale_at(type, j, (uint32_t)side);
	if (type == KERN_MXFP4)
		return v_load_as(scale, KERN_BF16, 16).v;
	if (!panel_is_k(type))
		return half16(scale + 32 * part);
	return scaled16(block + panel_d_at(type, (uint32_t)side) + 64 * part,
	                _mm512_cvtepu8_epi32(_mm_load_si128((const void *)(scale + 16 * part))));
}

/* group j of a block, for all types except Q6_K */
INLINE void group32(int R, enum kern_dtype type, const unsigned char *block, uint32_t j,
                    const unsigned char *rec, float *acc)
{
	const unsigned char *codes[SIDES];
	__m512i sum[SUMS];
	__m512 d[SIDES], m[SIDES];
	EACH_SIDE
	codes[c] = block + panel_code_at(type, j, c);
	group_sums(R, type, 0, codes, rec, sum);
	EACH_SIDE
	d[c] = scales16(type, 0, block, j, c);
	add_scaled(R, sum, rec,
	           panel_has_offset(type) ? -1
	           : type == KERN_Q8_0    ? REC_Z128
	                                  : REC_Z8,
	           panel_zero_eights(type), d, acc);
	if (!panel_has_offset(type))
		return;
	EACH_SIDE
	m[c] = scales16(type, 1, block, j, c);
	EACH_ROW
	{
		__m512 x = rec_f32(rec, REC_DSUM, R, r);
		EACH_SIDE
		{
			float *a = acc + (r * SIDES + c) * 16;
			_mm512_store_ps(a, _mm512_fmadd_ps(m[c], x, _mm512_load_ps(a)));
		}
	}
}

/* half a group (16 values) of Q6_K */
INLINE void group16(int R, const unsigned char *block, uint32_t j, int half,
                    const unsigned char *rec, float *acc)
{
	const unsigned char *codes[SIDES];
	__m512i sum[SUMS];
	__m512 d[SIDES];
	EACH_SIDE
	codes[c] = block + panel_code_at(KERN_Q6_K, j, c);
	group_sums(R, KERN_Q6_K, half, codes, rec, sum);
	EACH_SIDE
	{
		const unsigned char *scale = block + panel_scale_at(KERN_Q6_K, j, c) + 16 * half;
		d[c] = scaled16(block + panel_d_at(KERN_Q6_K, c),
		                _mm512_cvtepi8_epi32(_mm_load_si128((const void *)scale)));
	}
	add_scaled(R, sum, rec, REC_Z32 + 4 * half, 1, d, acc);
}

/* acc (R, 32) = panel x records. acc stays in memory because the registers hold a group's sums. */
INLINE void quant_kernel(int R, enum kern_dtype type, const unsigned char *panel,
                         const unsigned char *rec, uint32_t groups, bool first, float *acc)
{
	EACH_SUM
	_mm512_store_ps(acc + i * 16, _mm512_setzero_ps());
	for (uint32_t g = 0; g < groups; panel += panel_block_bytes(type))
		for (uint32_t j = 0; j < panel_block_groups(type) && g < groups;
		     j++, g++, rec += R * REC_BYTES) {
			if (first)
				fetch_ahead(panel + j * panel_group_bytes(type), panel_group_bytes(type));
			if (type == KERN_Q6_K) {
				group16(R, panel, j, 0, rec, acc);
				group16(R, panel, j, 1, rec, acc);
			} else {
				group32(R, type, panel, j, rec, acc);
			}
		}
}

static void transpose16(v16 *m)
{
	__m512 t[16], u[16];
	for (int i = 0; i < 8; i++) {
		t[2 * i] = _mm512_unpacklo_ps(m[2 * i].v, m[2 * i + 1].v);
		t[2 * i + 1] = _mm512_unpackhi_ps(m[2 * i].v, m[2 * i + 1].v);
	}
	/* u[i + j], 128-bit lane l: column 4 l + j of rows i .. i + 3 */
	for (int i = 0; i < 16; i += 4)
		for (int j = 0; j < 2; j++) {
			__m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + 2 + j]);
			u[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
			u[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
		}
	for (int j = 0; j < 4; j++) {
		__m512 a = _mm512_shuffle_f32x4(u[j], u[4 + j], 0x88),
			   b = _mm512_shuffle_f32x4(u[j], u[4 + j], 0xdd);
		__m512 c = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0x88),
			   d = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0xdd);
		m[j].v = _mm512_shuffle_f32x4(a, c, 0x88);
		m[4 + j].v = _mm512_shuffle_f32x4(b, d, 0x88);
		m[8 + j].v = _mm512_shuffle_f32x4(a, c, 0xdd);
		m[12 + j].v = _mm512_shuffle_f32x4(b, d, 0xdd);
	}
}

#define VARIANT cpu_variant_avx512
#define VARIANT_NAME "avx512"
#include "kernels/cpu/fast.h"

const struct cpu_variant cpu_variant_avx512bf16 = FAST_VARIANT("avx512bf16", true);
