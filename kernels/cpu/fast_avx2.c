/* fast_avx2.c - the fast variant for AVX2 with FMA. A side of a panel is two registers of 8
 * columns; a tile has up to 4 rows.
 *
 * Codes are widened to 16 bits and multiplied with the activations' 15-bit integers, two k at a
 * time (vpmaddwd). This gives as many products per instruction as separate hi and lo bytes
 * (vpmaddubsw) would, without overflow and without combining hi and lo afterwards. One broadcast of
 * activations serves two column registers: with one broadcast per register, Zen 3 does 1.75 times
 * fewer products per second. */
#include "kernels/cpu/fast_record.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/vec.h"

#define FLOAT_ROWS 6
#define FLOAT_VECS 1
#define FLOAT_VECS_MAX 4
#define ATT_ROWS 3
#define ATT_VECS 2

enum { HALVES = 2, SUMS = TILE_ROWS * HALVES };

/* always unrolled, so that the accumulators are registers, not an array; sum i belongs to row i /
 * HALVES and columns 8 (i % HALVES) .. + 7 */
#define EACH_ROW _Pragma("GCC unroll 8") for (int r = 0; r < R; r++)
#define EACH_HALF _Pragma("GCC unroll 2") for (int c = 0; c < HALVES; c++)
#define EACH_SUM _Pragma("GCC unroll 16") for (int i = 0; i < R * HALVES; i++)
/* never unrolled: otherwise gcc 12 reloads weights for each use or runs out of registers */
#define EACH_STEP(n) _Pragma("GCC unroll 1") for (int s = 0; s < (n); s++)
/* Inline assembly, because gcc 12 otherwise first adds the products of several steps to each other
 * and spills them. */
#define ADD32(acc, v) __asm__("vpaddd %1, %0, %0" : "+x"(acc) : "x"(v))

/* --- activations as words ------------------------------------------------ */

/* A row's values occupy its 64 bytes of the record, 16 bits each; the four of a step in the order
 * first, third, second, fourth, because codes are bytes and a mask turns every other one into a
 * word. */
#define RECORD_STORE record_store
enum { ROW_BYTES = 2 * GROUP, STEP_BYTES = 8 };

INLINE int32_t record_store(unsigned char *rec, uint32_t R, uint32_t r, int half, v16 q)
{
	const __m256i order = _mm256_broadcastsi128_si256(
		_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
	__m256i a = _mm256_cvtps_epi32(q.a), b = _mm256_cvtps_epi32(q.b),
			w = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
	(void)R;
	_mm256_storeu_si256((void *)(rec + r * ROW_BYTES + half * (ROW_BYTES / 2)),
	                    _mm256_shuffle_epi8(w, order));
	a = _mm256_add_epi32(a, b);
	__m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
	s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
	return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

INLINE int32_t rec_i32(const unsigned char *rec, int offset, int R, int r)
{
	return ((const int32_t *)(const void *)(rec + offset * R))[r];
}

INLINE __m256 rec_f32(const unsigned char *rec, int offset, int R, int r)
{
	return _mm256_broadcast_ss((const float *)(const void *)(rec + offset * R) + r);
}

/* --- products of a group ------------------------------------------------- */

/* sum (R, HALVES) += words w of two k times the two activations at x of each row */
INLINE void dots(int R, const __m256i *w, const unsigned char *x, __m256i *sum)
{
	EACH_ROW
	{
		__m256i two = _mm256_set1_epi32(*(const int32_t *)(const void *)(x + r * ROW_BYTES));
		EACH_HALF
		ADD32(sum[r * HALVES + c], _mm256_madd_epi16(w[c], two));
	}
}

/* the four codes of a step, as bytes */
INLINE void dots_bytes(int R, const __m256i *codes, const unsigned char *x, __m256i *sum)
{
	__m256i w[HALVES];
	EACH_HALF
	w[c] = _mm256_and_si256(codes[c], _mm256_set1_epi16(0xff));
	dots(R, w, x, sum);
	EACH_HALF
	w[c] = _mm256_srli_epi16(codes[c], 8);
	dots(R, w, x + STEP_BYTES / 2, sum);
}

INLINE __m256i half_load(const unsigned char *codes, int c)
{
	return _mm256_load_si256((const void *)(codes + 32 * c));
}

INLINE void dots_q8(int R, const unsigned char *codes, const unsigned char *x, __m256i *sum)
{
	EACH_STEP(8)
	{
		__m256i w[HALVES];
		EACH_HALF
		w[c] = half_load(codes + s * CODE_STEP, c);
		dots_bytes(R, w, x + s * STEP_BYTES, sum);
	}
}

/* A vector has step s in its low nibbles and step s + 4 in its high nibbles. */
INLINE void dots_q4(int R, const unsigned char *codes, const unsigned char *x, __m256i *sum)
{
	const __m256i mask = _mm256_set1_epi16(15);
	EACH_STEP(4)
	{
		const unsigned char *v = codes + s * CODE_STEP, *low = x + s * STEP_BYTES,
							*high = low + 4 * STEP_BYTES;
		__m256i w[HALVES];
		EACH_HALF
		w[c] = _mm256_and_si256(half_load(v, c), mask);
		dots(R, w, low, sum);
		EACH_HALF
		w[c] = _mm256_and_si256(_mm256_srli_epi16(half_load(v, c), 8), mask);
		dots(R, w, low + STEP_BYTES / 2, sum);
		EACH_HALF
		w[c] = _mm256_and_si256(_mm256_srli_epi16(half_load(v, c), 4), mask);
		dots(R, w, high, sum);
		EACH_HALF
		w[c] = _mm256_srli_epi16(half_load(v, c), 12);
		dots(R, w, high + STEP_BYTES / 2, sum);
	}
}

INLINE void dots_mxfp4(int R, const unsigned char *codes, const unsigned char *x, __m256i *sum)
{
	const __m256i mask = _mm256_set1_epi8(15);
	const __m256i table = _mm256_broadcastsi128_si256(
		_mm_loadu_si128((const void *)cpu_mxfp4_codes));
	EACH_STEP(4)
	{
		const unsigned char *v = codes + s * CODE_STEP, *low = x + s * STEP_BYTES;
		__m256i w[HALVES];
		EACH_HALF
		w[c] = _mm256_shuffle_epi8(table, _mm256_and_si256(half_load(v, c), mask));
		dots_bytes(R, w, low, sum);
		EACH_HALF
		w[c] = _mm256_shuffle_epi8(table,
		                           _mm256_and_si256(_mm256_srli_epi16(half_load(v, c), 4), mask));
		dots_bytes(R, w, low + 4 * STEP_BYTES, sum);
	}
}

/* steps 4 half .. 4 half + 3 of nibbles with `bits` more bits per step, taken from bit `from` on of
 * the vectors at `more` */
INLINE void dots_more(int R, int half, int bits, int from, const unsigned char *codes,
                      const unsigned char *more, const unsigned char *x, __m256i *sum)
{
	const __m256i mask = _mm256_set1_epi8(15), top = _mm256_set1_epi8(bits == 1 ? 0x10 : 0x30);
	__m256i m[HALVES];
	EACH_HALF
	m[c] = _mm256_srli_epi16(half_load(more, c), from);
	EACH_STEP(4)
	{
		__m256i w[HALVES];
		EACH_HALF
		{
			__m256i v = half_load(codes + s * CODE_STEP, c);
			w[c] = _mm256_and_si256(half ? _mm256_srli_epi16(v, 4) : v, mask);
			w[c] = _mm256_or_si256(w[c], _mm256_and_si256(_mm256_slli_epi16(m[c], 4), top));
			m[c] = _mm256_srli_epi16(m[c], bits);
		}
		dots_bytes(R, w, x + (4 * half + s) * STEP_BYTES, sum);
	}
}

/* half 0: the first 16 values of a group, half 1: the others */
INLINE void dots_five(int R, int half, const unsigned char *codes, const unsigned char *x,
                      __m256i *sum)
{
	dots_more(R, half, 1, 4 * half, codes, codes + 4 * CODE_STEP, x, sum);
}

INLINE void dots_six(int R, int half, const unsigned char *codes, const unsigned char *x,
                     __m256i *sum)
{
	dots_more(R, half, 2, 0, codes, codes + (4 + half) * CODE_STEP, x, sum);
}

/* --- scaling ------------------------------------------------------------- */

/* acc (R, 32) += float(sum + zero) * d * the row's scale, then, if m is not NULL, += m * the row's
 * scaled sum. The zero term is `times` times the record's field; times 0: none. */
INLINE void add_scaled(int R, const __m256i *sum, const unsigned char *rec, int zero, int times,
                       const __m256 *d, const __m256 *m, float *acc)
{
	EACH_ROW
	{
		__m256 x = rec_f32(rec, REC_D, R, r), xs = rec_f32(rec, REC_DSUM, R, r);
		__m256i z = _mm256_set1_epi32(times ? times * rec_i32(rec, zero, R, r) : 0);
		EACH_HALF
		{
			float *at = acc + r * PANEL_COLUMNS + 8 * c;
			__m256 f = _mm256_cvtepi32_ps(times ? _mm256_add_epi32(sum[r * HALVES + c], z)
			                                    : sum[r * HALVES + c]);
			__m256 a = _mm256_fmadd_ps(f, _mm256_mul_ps(d[c], x), _mm256_load_ps(at));
			_mm256_store_ps(at, m ? _mm256_fmadd_ps(m[c], xs, a) : a);
		}
	}
}

/* d times 8 byte integers */
INLINE __m256 scaled8(const unsigned char *d, __m256i integers)
{
	return _mm256_mul_ps(_mm256_load_ps((const float *)(const void *)d),
	                     _mm256_cvtepi32_ps(integers));
}

/* scales (part 0) or offsets (part 1) of columns 8 c .. 8 c + 7; d is used by types that have one
 * per block */
INLINE __m256 scales8(enum kern_dtype type, int part, int c, const unsigned char *d,
                      const unsigned char *scale)
{
	if (type == KERN_MXFP4) {
		__m256i brain = _mm256_cvtepu16_epi32(_mm_load_si128((const void *)(scale + 16 * c)));
		return _mm256_castsi256_ps(_mm256_slli_epi32(brain, 16));
	}
	if (!panel_is_k(type))
		return _mm256_cvtph_ps(_mm_load_si128((const void *)(scale + 32 * part + 16 * c)));
	return scaled8(d + 64 * part + 32 * c, _mm256_cvtepu8_epi32(_mm_loadl_epi64(
											   (const void *)(scale + 16 * part + 8 * c))));
}

INLINE void group_sums(int R, enum kern_dtype type, const unsigned char *codes,
                       const unsigned char *x, __m256i *sum)
{
	EACH_SUM
	sum[i] = _mm256_setzero_si256();
	if (type == KERN_Q8_0) {
		dots_q8(R, codes, x, sum);
	} else if (type == KERN_MXFP4) {
		dots_mxfp4(R, codes, x, sum);
	} else if (panel_is_five(type)) {
		dots_five(R, 0, codes, x, sum);
		dots_five(R, 1, codes, x, sum);
	} else {
		dots_q4(R, codes, x, sum);
	}
}

INLINE void group32(int R, enum kern_dtype type, const unsigned char *d, const unsigned char *scale,
                    const unsigned char *codes, const unsigned char *rec, float *acc)
{
	__m256i sum[SUMS];
	__m256 ds[HALVES], ms[HALVES];
	group_sums(R, type, codes, rec, sum);
	EACH_HALF
	ds[c] = scales8(type, 0, c, d, scale);
	if (panel_has_offset(type)) {
		EACH_HALF
		ms[c] = scales8(type, 1, c, d, scale);
		add_scaled(R, sum, rec, 0, 0, ds, ms, acc);
	} else {
		add_scaled(R, sum, rec, type == KERN_Q8_0 ? REC_Z128 : REC_Z8, panel_zero_eights(type), ds,
		           NULL, acc);
	}
}

/* half a group of Q6_K, which has its own scale */
INLINE void group16(int R, int half, const unsigned char *d, const unsigned char *scale,
                    const unsigned char *codes, const unsigned char *rec, float *acc)
{
	__m256i sum[SUMS];
	__m256 ds[HALVES];
	EACH_SUM
	sum[i] = _mm256_setzero_si256();
	dots_six(R, half, codes, rec, sum);
	EACH_HALF
	ds[c] = scaled8(d + 32 * c, _mm256_cvtepi8_epi32(
									_mm_loadl_epi64((const void *)(scale + 16 * half + 8 * c))));
	add_scaled(R, sum, rec, REC_Z32 + 4 * half, 1, ds, NULL, acc);
}

/* group j of a block, for one side's columns */
INLINE void quant_group(int R, int side, enum kern_dtype type, const unsigned char *block,
                        uint32_t j, const unsigned char *rec, float *acc)
{
	const unsigned char *scale = block + panel_scale_at(type, j, side),
						*codes = block + panel_code_at(type, j, side);
	const unsigned char *d = block + panel_d_at(type, side);
	__asm__("" : "+r"(acc)); /* otherwise gcc 12 keeps copies of the sums on the stack */
	if (type != KERN_Q6_K) {
		group32(R, type, d, scale, codes, rec, acc);
		return;
	}
	group16(R, 0, d, scale, codes, rec, acc);
	group16(R, 1, d, scale, codes, rec, acc);
}

/* acc (R, 32) = panel x records. acc stays in memory because the registers hold a group's sums. */
INLINE void quant_kernel(int R, enum kern_dtype type, const unsigned char *panel,
                         const unsigned char *rec, uint32_t groups, bool first, float *acc)
{
	memset(acc, 0, (size_t)R * PANEL_COLUMNS * sizeof *acc);
	for (uint32_t g = 0; g < groups; panel += panel_block_bytes(type))
		for (uint32_t j = 0; j < panel_block_groups(type) && g < groups;
		     j++, g++, rec += R * REC_BYTES) {
			if (first)
				fetch_ahead(panel + j * panel_group_bytes(type), panel_group_bytes(type));
			_Pragma("GCC unroll 1") for (int side = 0; side < SIDES; side++)
				quant_group(R, side, type, panel, j, rec, acc + side * SIDE_COLUMNS);
		}
}

static void transpose8(__m256 *m)
{
	__m256 t[8], u[8];
	for (int i = 0; i < 4; i++) {
		t[2 * i] = _mm256_unpacklo_ps(m[2 * i], m[2 * i + 1]);
		t[2 * i + 1] = _mm256_unpackhi_ps(m[2 * i], m[2 * i + 1]);
	}
	/* u[i + j], 128-bit lane l: column 4 l + j of rows i .. i + 3 */
	for (int i = 0; i < 8; i += 4)
		for (int j = 0; j < 2; j++) {
			u[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0x44);
			u[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0xee);
		}
	for (int j = 0; j < 4; j++) {
		m[j] = _mm256_permute2f128_ps(u[j], u[4 + j], 0x20);
		m[4 + j] = _mm256_permute2f128_ps(u[j], u[4 + j], 0x31);
	}
}

static void transpose16(v16 *m)
{
	/* quarters: upper left, upper right, lower left, lower right */
	__m256 q[4][8];
	for (int i = 0; i < 8; i++) {
		q[0][i] = m[i].a, q[1][i] = m[i].b;
		q[2][i] = m[8 + i].a, q[3][i] = m[8 + i].b;
	}
	for (int i = 0; i < 4; i++)
		transpose8(q[i]);
	for (int i = 0; i < 8; i++) {
		m[i] = V2(q[0][i], q[2][i]);
		m[8 + i] = V2(q[1][i], q[3][i]);
	}
}

#define VARIANT cpu_variant_avx2
#define VARIANT_NAME "avx2"
#include "kernels/cpu/fast.h"
