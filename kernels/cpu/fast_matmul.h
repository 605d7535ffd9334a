/* fast_matmul.h - products of the fast variants. Included by each variant's file after its
 * micro-kernels.
 *
 * Quantised weights: each activation row is quantised to 15-bit integers in groups of 32 with a
 * float scale, and stored as two bytes per value (fast_record.h), so that byte dot products can be
 * used. Within a group the products are summed exactly in int32; the groups are added in order to
 * one float sum, so all variants agree bit for bit, whatever the order of their integer additions:
 *    acc = fma(float(sum of w_code * x_code - zero * sum of x_code), d_w * d_x, acc), and for
 *    types with an offset acc = fma(m_w, d_x * sum, acc).
 * d_w and m_w of Q4_K and Q5_K are the exact products of their 6-bit scales with the block's d and
 * m. Float weights: acc = fma(x, w, acc) in the order of k. E4M3: the same with codes in a block
 * of 128, then acc = fma(scale, sum, acc). BF16 weights with activations rounded to bfloat16
 * (kern_config.activations) do what vdpbf16ps does: for each pair of k the second and then the
 * first,
 *    acc = fma(x1, w1, acc), acc = fma(x0, w0, acc), each rounded to nearest even; denormals are
 *    flushed to zero, in and out, after that rounding.
 * Measured on Zen 4: equal in 48 million sums of random, huge, tiny, denormal and cancelling
 * values. Not measured on other processors; test_conform_cpu compares the instruction with the
 * other variants wherever it runs.
 *
 * Why two bytes per value, which doubles the number of products: mean error of a log-probability on
 * SmolLM2 Q4_1, teacher-forced over 3,704 positions: 0.0007 with float KV and 0.0092 with bf16 KV
 * (the error of the KV itself); with one byte 0.072. With the second byte only in groups whose
 * largest value is large compared to the row's others: 0.032 with it in 21 % of the groups, 0.019
 * with 61 %; but a tile must use it if any of its rows does: 48 % and 87 % in tiles of 12. The
 * model's close decisions change at 0.05, so saving a tenth of the products is not worth half of
 * that error.
 *
 * Rows are cut into tiles of up to TILE_ROWS; the quantised rows of a tile are interleaved, one
 * record per group, so that a kernel addresses all of them from one pointer. */
#ifndef CPU_FAST_MATMUL_H
#define CPU_FAST_MATMUL_H

#include "kernels/cpu/fast_record.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/vec.h"

#ifndef RECORD_STORE
#define RECORD_STORE record_bytes
/* stores 16 15-bit integers, half of a group, as two bytes each; returns their sum */
INLINE int32_t record_bytes(unsigned char *rec, uint32_t R, uint32_t r, int half, v16 q)
{
	int8_t *hi = (int8_t *)rec + r * GROUP + half * 16, *lo = hi + REC_LO * R;
	v16 round = v_set1(V_ROUND), high = v_sub(v_fma(q, v_set1(1.0f / RADIX), round), round);
	int32_t sum = RADIX * v_store_i8(hi, high);
	return sum + v_store_i8(lo, v_fma(high, v_set1(-RADIX), q));
}
#endif

/* Quantises one group into slot r of a record of R rows. If it contains a NaN or an infinity, the
 * scale is NaN, which makes every sum with this group NaN, and its integers are zero. */
INLINE void quantise_group(unsigned char *rec, uint32_t R, uint32_t r, const float *x)
{
	v16 v[2] = {v_load(x), v_load(x + 16)}, round = v_set1(V_ROUND);
	union {
		int32_t i;
		float f;
	} max = {v_hmax_bits(v_max_bits(v_abs(v[0]), v_abs(v[1])))};
	float d = max.f / LEVELS;
	int32_t sum[2];
	if (!(max.f >= 1e-30f && max.f < INFINITY)) {
		/* the reciprocal would overflow, or max is not finite */
		d = max.f < 1e-30f ? 0 : NAN;
		v[0] = v[1] = v_set1(0);
		max.f = 1;
	}
	v16 inv = v_set1(LEVELS / max.f);
	for (int i = 0; i < 2; i++)
		sum[i] = RECORD_STORE(rec, R, r, i, v_sub(v_fma(v[i], inv, round), round));
	int32_t both = sum[0] + sum[1];
	((float *)(void *)(rec + REC_D * R))[r] = d;
	((float *)(void *)(rec + REC_DSUM * R))[r] = d * (float)both;
	((int32_t *)(void *)(rec + REC_Z8 * R))[r] = -8 * both;
	((int32_t *)(void *)(rec + REC_Z128 * R))[r] = -128 * both;
	((int32_t *)(void *)(rec + REC_Z32 * R))[r] = -32 * sum[0];
	((int32_t *)(void *)(rec + REC_Z32 * R))[R + r] = -32 * sum[1];
}

/* rounds to pairs of bfloat16; an odd k is padded with a zero */
static void round_row(float *pairs, const float *x, uint32_t k)
{
	union {
		uint32_t u;
		float f;
	} pair;
	for (uint32_t i = 0; i < k / 2; i++) {
		pair.u = kern_f32_to_bf16(x[2 * i]) | (uint32_t)kern_f32_to_bf16(x[2 * i + 1]) << 16;
		pairs[i] = pair.f;
	}
	if (k % 2) {
		pair.u = kern_f32_to_bf16(x[k - 1]);
		pairs[k / 2] = pair.f;
	}
}

static size_t fast_tile_bytes(uint32_t groups)
{
	return ((size_t)groups * TILE_ROWS * REC_BYTES + 63) & ~(size_t)63;
}

static size_t fast_rounded_floats(uint32_t k)
{
	return (k + 1) / 2;
}

static void fast_make_ready(const struct cpu_ready *in, uint32_t from, uint32_t to)
{
	for (uint32_t row = from; row < to; row += TILE_ROWS) {
		uint32_t rows = to - row < TILE_ROWS ? to - row : TILE_ROWS;
		for (uint32_t r = 0; r < rows; r++) {
			const float *x = in->x + (row + r) * in->ldx;
			unsigned char *rec = in->rec + row / TILE_ROWS * in->tile_bytes;
			if (in->rounded)
				round_row(in->rounded + (row + r) * in->ld_rounded, x, in->k);
			for (uint32_t g = 0; in->rec && g < in->k / GROUP;
			     g++, x += GROUP, rec += rows * REC_BYTES)
				quantise_group(rec, rows, r, x);
		}
	}
}

/* stores columns c0 .. c0 + 15 of rows [row, row + rows) from acc (rows, 16), adding the bias */
static void store_columns(const struct cpu_part *p, uint32_t row, uint32_t rows, uint32_t c0,
                          const float *acc, size_t ld)
{
	if (c0 >= p->w->n)
		return;
	uint32_t n = p->w->n - c0 < 16 ? p->w->n - c0 : 16;
	for (uint32_t r = 0; r < rows; r++) {
		v16 v = v_load(acc + r * ld);
		if (p->bias)
			v = v_add(v, v_loadn(p->bias + c0, n));
		v_storen(p->y + (row + r) * p->ldy + c0, v, n);
	}
}

/* Weight types; for BF16 also the treatment of activations: float; pairs of bfloat16; pairs with
 * vdpbf16ps. */
enum float_kind { FLOAT_F32, FLOAT_F16, FLOAT_E4M3, FLOAT_BF16, FLOAT_BF16_PAIRS, FLOAT_BF16_DOT };

/* sum (R, V) += products for one k, the first or second of pair i */
INLINE void float_of_pair(const int R, const int V, enum float_kind kind, int second,
                          const float *const *x, uint32_t i, const unsigned char *w,
                          v16 (*sum)[FLOAT_VECS_MAX])
{
	v16 col[FLOAT_VECS_MAX];
	for (int c = 0; c < V; c++) {
		v16 pairs = v_load((const float *)(const void *)(w + (size_t)c * 64));
		col[c] = second ? v_second_bf16(pairs) : v_first_bf16(pairs);
	}
	for (int r = 0; r < R; r++) {
		v16 b = v_set1(kind == FLOAT_BF16 ? x[r][2 * i + second] : x[r][i]);
		if (kind == FLOAT_BF16_PAIRS)
			b = second ? v_second_bf16(b) : v_first_bf16(b);
		for (int c = 0; c < V; c++)
			sum[r][c] = kind == FLOAT_BF16 ? v_fma(b, col[c], sum[r][c])
			                               : v_fma_flushed(b, col[c], sum[r][c]);
	}
}

/* the same for a panel row that is used as a whole */
INLINE void float_row(const int R, const int V, enum float_kind kind, const float *const *x,
                      uint32_t i, const unsigned char *w, v16 (*sum)[FLOAT_VECS_MAX])
{
	v16 col[FLOAT_VECS_MAX];
	for (int c = 0; c < V; c++)
		col[c] = kind == FLOAT_E4M3  ? v_load_f8(w + (size_t)c * 16)
		         : kind == FLOAT_F16 ? v_load_as(w + (size_t)c * 32, KERN_F16, 16)
		                             : v_load((const float *)(const void *)(w + (size_t)c * 64));
	for (int r = 0; r < R; r++) {
		v16 b = v_set1(x[r][i]);
		for (int c = 0; c < V; c++)
#if defined(__AVX512F__)
			if (kind == FLOAT_BF16_DOT)
				sum[r][c] = v_dot_bf16(col[c], b, sum[r][c]);
			else
#endif
				sum[r][c] = v_fma(b, col[c], sum[r][c]);
	}
}

/* R rows x V vectors of columns, over all of k; E4M3: sums of codes times 2^-8 (v_load_f8) */
INLINE void float_kernel(const int R, const int V, enum float_kind kind, const float *const *x,
                         const unsigned char *w, uint32_t k, bool first, float *acc)
{
	v16 sum[FLOAT_ROWS][FLOAT_VECS_MAX];
	size_t row_bytes = FLOAT_COLUMNS * (kind == FLOAT_E4M3 ? 1 : kind == FLOAT_F16 ? 2 : 4);
	uint32_t n = kind == FLOAT_BF16 ? k / 2 : kind > FLOAT_BF16 ? (k + 1) / 2 : k;
	for (int r = 0; r < R; r++)
		for (int c = 0; c < V; c++)
			sum[r][c] = v_set1(0);
	for (uint32_t i = 0; i < n; i++, w += row_bytes) {
		if (first)
			fetch_ahead(w, row_bytes * (size_t)V * 16 / FLOAT_COLUMNS);
		if (kind == FLOAT_BF16 || kind == FLOAT_BF16_PAIRS) {
			float_of_pair(R, V, kind, kind == FLOAT_BF16_PAIRS, x, i, w, sum);
			float_of_pair(R, V, kind, kind == FLOAT_BF16, x, i, w, sum);
		} else {
			float_row(R, V, kind, x, i, w, sum);
		}
	}
	if (kind == FLOAT_BF16 && k % 2)
		float_of_pair(R, V, kind, 0, x, n, w, sum);
	for (int r = 0; r < R; r++)
		for (int c = 0; c < V; c++)
			v_store(acc + (r * V + c) * 16, sum[r][c]);
}

/* returns the number of column vectors computed */
INLINE int float_rows(enum float_kind kind, uint32_t rows, const float *const *x,
                      const unsigned char *w, uint32_t k, bool first, float *acc)
{
	switch (rows) {
	case 1: float_kernel(1, FLOAT_VECS_MAX, kind, x, w, k, first, acc); return FLOAT_VECS_MAX;
	case 2: float_kernel(2, FLOAT_VECS, kind, x, w, k, first, acc); break;
#if FLOAT_ROWS > 4
	case 3: float_kernel(3, FLOAT_VECS, kind, x, w, k, first, acc); break;
	case 4: float_kernel(4, FLOAT_VECS, kind, x, w, k, first, acc); break;
#endif
	default: float_kernel(FLOAT_ROWS, FLOAT_VECS, kind, x, w, k, first, acc);
	}
	return FLOAT_VECS;
}

/* the same for the blocks of an E4M3 panel, from its column c on */
static int e4m3_rows(uint32_t rows, const float *const *x, const unsigned char *panel, uint32_t c,
                     uint32_t k, bool first, float *acc)
{
	_Alignas(64) float sum[FLOAT_ROWS * FLOAT_VECS_MAX * 16];
	const float *at[FLOAT_ROWS];
	int vecs = 0;
	memset(acc, 0, sizeof sum);
	for (uint32_t i = 0; i < k; i += KERN_E4M3_VALUES, panel += E4M3_BLOCK) {
		for (uint32_t r = 0; r < FLOAT_ROWS; r++)
			at[r] = x[r] + i;
		vecs = float_rows(FLOAT_E4M3, rows, at, panel + E4M3_SCALES + c,
		                  k - i < KERN_E4M3_VALUES ? k - i : KERN_E4M3_VALUES, first, sum);
		for (int v = 0; v < vecs; v++) {
			v16 scale = v_load((const float *)(const void *)panel + c + 16 * v);
			for (uint32_t r = 0; r < rows; r++) {
				uint32_t to = (r * (uint32_t)vecs + (uint32_t)v) * 16;
				v16 whole = v_mul(v_load(sum + to), v_set1(256.0f));
				v_store(acc + to, v_fma(scale, whole, v_load(acc + to)));
			}
		}
	}
	return vecs;
}

/* a separate function, so that no other arithmetic is moved to where denormals are flushed to
 * zero */
static __attribute__((noinline)) int float_flushed(uint32_t rows, const float *const *x,
                                                   const unsigned char *w, uint32_t k, bool first,
                                                   float *acc)
{
	return float_rows(FLOAT_BF16_PAIRS, rows, x, w, k, first, acc);
}

static int float_dispatch(enum float_kind kind, uint32_t rows, const float *const *x,
                          const unsigned char *w, uint32_t k, bool first, float *acc)
{
	switch (kind) {
	case FLOAT_F32: return float_rows(FLOAT_F32, rows, x, w, k, first, acc);
	case FLOAT_F16: return float_rows(FLOAT_F16, rows, x, w, k, first, acc);
	case FLOAT_BF16: return float_rows(FLOAT_BF16, rows, x, w, k, first, acc);
#if defined(__AVX512F__)
	case FLOAT_BF16_DOT: return float_rows(FLOAT_BF16_DOT, rows, x, w, k, first, acc);
#endif
	default: break;
	}
	unsigned before = v_flush_begin();
	int done = float_flushed(rows, x, w, k, first, acc);
	v_flush_end(before);
	return done;
}

static enum float_kind float_kind_of(const struct cpu_part *p, const struct cpu_variant *v)
{
	if (p->w->dtype != KERN_BF16)
		return p->w->dtype == KERN_F32    ? FLOAT_F32
		       : p->w->dtype == KERN_E4M3 ? FLOAT_E4M3
		                                  : FLOAT_F16;
	return !p->in.rounded ? FLOAT_BF16 : v->vdpbf16ps ? FLOAT_BF16_DOT : FLOAT_BF16_PAIRS;
}

/* The panel's columns for all rows, in parts of nearly equal height; unused kernel rows repeat the
 * last one. */
static void float_panel(const struct cpu_part *p, enum float_kind kind, uint32_t panel)
{
	const struct kern_weight *w = p->w;
	const unsigned char *data = w->data + panel * w->panel_bytes;
	bool rounded = kind > FLOAT_BF16;
	size_t unit = panel_float_bytes(w->dtype), ldx = rounded ? p->in.ld_rounded : p->in.ldx;
	uint32_t c0 = panel * FLOAT_COLUMNS,
			 columns = w->n - c0 < FLOAT_COLUMNS ? w->n - c0 : FLOAT_COLUMNS;
	_Alignas(64) float acc[FLOAT_ROWS * FLOAT_VECS_MAX * 16];
	const float *x[FLOAT_ROWS];
	for (uint32_t row = 0, left = (p->rows + FLOAT_ROWS - 1) / FLOAT_ROWS; left; left--) {
		uint32_t rows = (p->rows - row + left - 1) / left;
		for (uint32_t r = 0; r < FLOAT_ROWS; r++)
			x[r] = (rounded ? p->in.rounded : p->in.x) + (row + (r < rows ? r : rows - 1)) * ldx;
		for (uint32_t c = 0, done; c < columns; c += done * 16) {
			done = (uint32_t)(kind == FLOAT_E4M3 ? e4m3_rows(rows, x, data, c, w->k, !row, acc)
			                                     : float_dispatch(kind, rows, x, data + c * unit,
			                                                      w->k, !row, acc));
			for (uint32_t v = 0; v < done; v++)
				store_columns(p, row, rows, c0 + c + v * 16, acc + v * 16, (size_t)done * 16);
		}
		row += rows;
	}
}

/* acc (R, 32) = panel x records; the variant's file supplies quant_kernel */
INLINE void quant_rows(enum kern_dtype type, uint32_t rows, const unsigned char *panel,
                       const unsigned char *rec, uint32_t groups, bool first, float *acc)
{
	switch (rows) {
	case 1: quant_kernel(1, type, panel, rec, groups, first, acc); break;
	case 2: quant_kernel(2, type, panel, rec, groups, first, acc); break;
	case 3: quant_kernel(3, type, panel, rec, groups, first, acc); break;
	default: quant_kernel(TILE_ROWS, type, panel, rec, groups, first, acc);
	}
}

/* the rows of the tile that starts at `row` */
static void quant_panel(const struct cpu_part *p, uint32_t row, uint32_t panel)
{
	_Alignas(64) float acc[TILE_ROWS * PANEL_COLUMNS];
	const unsigned char *data = p->w->data + panel * p->w->panel_bytes,
						*rec = p->in.rec + row / TILE_ROWS * p->in.tile_bytes;
	uint32_t groups = p->w->k / GROUP, rows = p->rows - row < TILE_ROWS ? p->rows - row : TILE_ROWS;
	bool first = !row;
	switch (p->w->dtype) {
	case KERN_Q8_0: quant_rows(KERN_Q8_0, rows, data, rec, groups, first, acc); break;
	case KERN_Q4_0: quant_rows(KERN_Q4_0, rows, data, rec, groups, first, acc); break;
	case KERN_Q4_1: quant_rows(KERN_Q4_1, rows, data, rec, groups, first, acc); break;
	case KERN_Q5_0: quant_rows(KERN_Q5_0, rows, data, rec, groups, first, acc); break;
	case KERN_Q5_1: quant_rows(KERN_Q5_1, rows, data, rec, groups, first, acc); break;
	case KERN_Q4_K: quant_rows(KERN_Q4_K, rows, data, rec, groups, first, acc); break;
	case KERN_MXFP4: quant_rows(KERN_MXFP4, rows, data, rec, groups, first, acc); break;
	case KERN_Q5_K: quant_rows(KERN_Q5_K, rows, data, rec, groups, first, acc); break;
	default: quant_rows(KERN_Q6_K, rows, data, rec, groups, first, acc);
	}
	for (uint32_t c = 0; c < PANEL_COLUMNS; c += 16)
		store_columns(p, row, rows, panel * PANEL_COLUMNS + c, acc + c, PANEL_COLUMNS);
}

static uint32_t fast_panels(const struct kern_weight *w)
{
	return (w->n + panel_columns(w->dtype) - 1) / panel_columns(w->dtype);
}

static void fast_product(const struct cpu_part *p, const struct cpu_variant *v, uint32_t panel,
                         uint32_t end, float *scratch)
{
	(void)scratch;
	if (panel_is_float(p->w->dtype)) {
		for (; panel < end; panel++)
			float_panel(p, float_kind_of(p, v), panel);
		return;
	}
	for (uint32_t row = 0; row < p->rows; row += TILE_ROWS)
		for (uint32_t i = panel; i < end; i++)
			quant_panel(p, row, i);
}

#endif
