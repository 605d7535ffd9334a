/* fast_plain.c - the fast variant's arithmetic in portable C: for machines without AVX2, and the
 * reference for the other two. */
#include "kernels/cpu/fast_record.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/vec.h"

#define FLOAT_ROWS 4
#define FLOAT_VECS 1
#define FLOAT_VECS_MAX 4
#define ATT_ROWS 2
#define ATT_VECS 1

static unsigned code(enum kern_dtype type, const unsigned char *codes, int i, int c)
{
	int step = i / 4, byte = c * 4 + i % 4;
	if (type == KERN_Q8_0)
		return codes[step * CODE_STEP + byte];
	unsigned low = codes[step % 4 * CODE_STEP + byte] >> (step < 4 ? 0 : 4) & 15;
	if (panel_is_five(type))
		return low | (codes[4 * CODE_STEP + byte] >> step & 1u) << 4;
	if (type != KERN_Q6_K)
		return type == KERN_MXFP4 ? cpu_mxfp4_codes[low] : low;
	return low | (codes[(4 + step / 4) * CODE_STEP + byte] >> 2 * (step % 4) & 3u) << 4;
}

/* sum[c] = start + products of values [from, to) of row r of the record with column c's codes */
static void dot(enum kern_dtype type, const unsigned char *codes, int R, int r,
                const unsigned char *rec, int from, int to, int32_t start, float *sum)
{
	const int8_t *hi = (const int8_t *)rec + r * GROUP, *lo = hi + REC_LO * R;
	for (int c = 0; c < SIDE_COLUMNS; c++) {
		int32_t s = start;
		for (int i = from; i < to; i++)
			s += (int32_t)code(type, codes, i, c) * (RADIX * hi[i] + lo[i]);
		sum[c] = (float)s;
	}
}

static float half_at(const unsigned char *p)
{
	uint16_t h;
	memcpy(&h, p, 2);
	return kern_f16_to_f32(h);
}

static float rec_f32(const unsigned char *rec, int offset, int R, int r)
{
	return ((const float *)(const void *)(rec + offset * R))[r];
}

static int32_t rec_i32(const unsigned char *rec, int offset, int R, int r)
{
	return ((const int32_t *)(const void *)(rec + offset * R))[r];
}

static void group16(int R, int r, int half, const unsigned char *d, const unsigned char *sc,
                    const unsigned char *codes, const unsigned char *rec, float *acc)
{
	float sum[SIDE_COLUMNS], f;
	dot(KERN_Q6_K, codes, R, r, rec, 16 * half, 16 * half + 16,
	    rec_i32(rec, REC_Z32, R, half * R + r), sum);
	for (int c = 0; c < SIDE_COLUMNS; c++) {
		memcpy(&f, d + 4 * c, 4);
		acc[c] = fmaf(sum[c], f * (float)(int8_t)sc[16 * half + c] * rec_f32(rec, REC_D, R, r),
		              acc[c]);
	}
}

static int32_t zero_sum(enum kern_dtype type, const unsigned char *rec, int R, int r)
{
	if (panel_has_offset(type))
		return 0;
	return type == KERN_Q8_0 ? rec_i32(rec, REC_Z128, R, r)
	                         : rec_i32(rec, REC_Z8, R, r) * panel_zero_eights(type);
}

/* column c's scale (part 0) or offset (part 1) */
static float scale_of(enum kern_dtype type, int part, const unsigned char *d,
                      const unsigned char *scale, int c)
{
	uint16_t brain;
	if (type == KERN_MXFP4) {
		memcpy(&brain, scale + 2 * c, 2);
		return kern_bf16_to_f32(brain);
	}
	if (!panel_is_k(type))
		return half_at(scale + 32 * part + 2 * c);
	float f;
	memcpy(&f, d + 64 * part + 4 * c, 4);
	return f * (float)scale[16 * part + c];
}

static void group32(int R, int r, enum kern_dtype type, const unsigned char *d,
                    const unsigned char *scale, const unsigned char *codes,
                    const unsigned char *rec, float *acc)
{
	float sum[SIDE_COLUMNS];
	dot(type, codes, R, r, rec, 0, GROUP, zero_sum(type, rec, R, r), sum);
	for (int c = 0; c < SIDE_COLUMNS; c++) {
		acc[c] = fmaf(sum[c], scale_of(type, 0, d, scale, c) * rec_f32(rec, REC_D, R, r), acc[c]);
		if (panel_has_offset(type))
			acc[c] = fmaf(scale_of(type, 1, d, scale, c), rec_f32(rec, REC_DSUM, R, r), acc[c]);
	}
}

static void quant_group(int R, uint32_t side, enum kern_dtype type, const unsigned char *block,
                        uint32_t g, const unsigned char *rec, float *out)
{
	const unsigned char *d = block + panel_d_at(type, side),
						*scale = block + panel_scale_at(type, g, side),
						*codes = block + panel_code_at(type, g, side);
	for (int r = 0; r < R; r++, out += PANEL_COLUMNS) {
		if (type != KERN_Q6_K) {
			group32(R, r, type, d, scale, codes, rec, out);
			continue;
		}
		group16(R, r, 0, d, scale, codes, rec, out);
		group16(R, r, 1, d, scale, codes, rec, out);
	}
}

static void quant_kernel(int R, enum kern_dtype type, const unsigned char *panel,
                         const unsigned char *rec, uint32_t groups, bool first, float *out)
{
	(void)first;
	memset(out, 0, (size_t)R * PANEL_COLUMNS * sizeof *out);
	for (uint32_t g = 0; g < groups; g++, rec += R * REC_BYTES)
		for (uint32_t side = 0; side < SIDES; side++)
			quant_group(R, side, type, panel + panel_block_at(type, g), g, rec,
			            out + side * SIDE_COLUMNS);
}

static void transpose16(v16 *m)
{
	for (int i = 0; i < 16; i++)
		for (int j = 0; j < i; j++) {
			float t = m[i].q[j / 4][j % 4];
			m[i].q[j / 4][j % 4] = m[j].q[i / 4][i % 4];
			m[j].q[i / 4][i % 4] = t;
		}
}

#define VARIANT cpu_variant_plain
#define VARIANT_NAME "plain"
#include "kernels/cpu/fast.h"
