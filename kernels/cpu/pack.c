/* pack.c - converts weights from the file's rows to panels (panel.h), and single rows back, for
 * embeddings. Exact in both directions: a row read back equals cpu_dequantise of the file's row.
 * The reference variant keeps the file's rows.
 *
 * All threads pack, each panel by one thread. Codes move as 4-byte words, the unit of a column in a
 * panel; a mask after each shift keeps bits within their byte. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/panel.h"

#include <stdlib.h>
#include <string.h>

static uint32_t load_word(const unsigned char *p)
{
	uint32_t w;
	memcpy(&w, p, sizeof w);
	return w;
}

static void store_word(unsigned char *p, uint32_t w)
{
	memcpy(p, &w, sizeof w);
}

static unsigned get_code(const unsigned char *codes, uint32_t i, unsigned column)
{
	uint32_t step = i / 4;
	return codes[(step % 4) * CODE_STEP + column * 4 + i % 4] >> (step < 4 ? 0 : 4) & 15;
}

static size_t pair_at(uint32_t i, unsigned column)
{
	return (4 + i / 16) * CODE_STEP + column * 4 + i % 4;
}

static unsigned pair_shift(uint32_t i)
{
	return 2 * (i / 4 % 4);
}

/* moves bit i of the file's 32 bits to bit s of byte l of the column, i = 4 s + l */
static uint32_t spread_fifths(const unsigned char *bits)
{
	uint32_t from = load_word(bits), to = 0;
	for (uint32_t i = 0; i < 32; i++)
		to |= (from >> i & 1) << (i % 4 * 8 + i / 4);
	return to;
}

/* the file's bytes are used as they are: value i in the low, i + 16 in the high nibble */
static void pack_q4(unsigned char *scale, unsigned char *codes, enum kern_dtype t, unsigned c,
                    const unsigned char *b)
{
	memcpy(scale + 2 * c, b, 2);
	if (panel_has_offset(t))
		memcpy(scale + 32 + 2 * c, b + 2, 2);
	b += panel_has_offset(t) ? 4 : 2;
	if (panel_is_five(t)) {
		store_word(codes + 4 * CODE_STEP + 4 * c, spread_fifths(b));
		b += 4;
	}
	for (uint32_t i = 0; i < 4; i++)
		store_word(codes + i * CODE_STEP + 4 * c, load_word(b + 4 * i));
}

static void pack_mxfp4(unsigned char *scale, unsigned char *codes, unsigned c,
                       const unsigned char *b)
{
	uint16_t d = kern_mxfp4_scale(b[0]);
	memcpy(scale + 2 * c, &d, 2);
	for (uint32_t i = 0; i < 4; i++)
		store_word(codes + i * CODE_STEP + 4 * c, load_word(b + 1 + 4 * i));
}

static void pack_q8(unsigned char *scale, unsigned char *codes, unsigned c, const unsigned char *b)
{
	memcpy(scale + 2 * c, b, 2);
	for (uint32_t i = 0; i < 8; i++)
		store_word(codes + i * CODE_STEP + 4 * c, load_word(b + 2 + 4 * i) ^ 0x80808080);
}

/* stores the low or high nibbles of 32 bytes as a group's codes */
static void pack_nibbles(unsigned char *codes, unsigned c, const unsigned char *low, unsigned shift)
{
	for (uint32_t i = 0; i < 4; i++)
		store_word(codes + i * CODE_STEP + 4 * c,
		           (load_word(low + 4 * i) >> shift & 0x0f0f0f0f) |
		               (load_word(low + 16 + 4 * i) >> shift & 0x0f0f0f0f) << 4);
}

/* group j of a 256-value block of the file; see q45_k in dequant.c */
static void pack_k(unsigned char *ds, unsigned char *scale, unsigned char *codes, enum kern_dtype t,
                   unsigned j, unsigned c, const unsigned char *b)
{
	float d = kern_f16_to_f32((uint16_t)(b[0] | b[1] << 8)),
		  m = -kern_f16_to_f32((uint16_t)(b[2] | b[3] << 8));
	unsigned s, offset;
	kern_k_scales(b + 4, j, &s, &offset);
	memcpy(ds + 4 * c, &d, 4);
	memcpy(ds + 64 + 4 * c, &m, 4);
	scale[c] = (unsigned char)s;
	scale[16 + c] = (unsigned char)offset;
	b += 16;
	if (panel_is_five(t)) {
		uint32_t fifths = 0;
		for (uint32_t step = 0; step < 8; step++)
			fifths |= (load_word(b + 4 * step) >> j & 0x01010101) << step;
		store_word(codes + 4 * CODE_STEP + 4 * c, fifths);
		b += 32;
	}
	pack_nibbles(codes, c, b + j / 2 * 32, j % 2 ? 4 : 0);
}

/* group j of a 256-value block of the file; see q6_k in dequant.c */
static void pack_q6(unsigned char *ds, unsigned char *scale, unsigned char *codes, unsigned j,
                    unsigned c, const unsigned char *b)
{
	unsigned half = j / 4, quarter = j % 4, shift = quarter >= 2 ? 4 : 0;
	const unsigned char *low = b + 64 * half + 32 * (quarter & 1), *high = b + 128 + 32 * half;
	float d = kern_f16_to_f32((uint16_t)(b[208] | b[209] << 8));
	memcpy(ds + 4 * c, &d, 4);
	for (unsigned i = 0; i < 2; i++) {
		scale[i * 16 + c] = b[192 + 2 * j + i];
		uint32_t pairs = 0;
		for (uint32_t s = 0; s < 4; s++)
			pairs |= (load_word(high + 16 * i + 4 * s) >> 2 * quarter & 0x03030303) << 2 * s;
		store_word(codes + (4 + i) * CODE_STEP + 4 * c, pairs);
	}
	pack_nibbles(codes, c, low, shift);
}

/* packs `columns` rows of the file into one panel, group by group */
static void pack_quantised(const struct kern_weight *w, unsigned char *panel,
                           const unsigned char *src, size_t row_bytes, uint32_t columns)
{
	uint32_t per_block = w->dtype == KERN_Q6_K || panel_is_k(w->dtype) ? GROUP * 8 : GROUP;
	size_t bytes = kern_dtype_bytes(w->dtype, per_block);
	for (uint32_t g = 0; g < w->k / GROUP; g++) {
		unsigned char *block = panel + panel_block_at(w->dtype, g);
		size_t from = g * GROUP / per_block * bytes;
		for (uint32_t r = 0; r < columns; r++) {
			uint32_t side = r / SIDE_COLUMNS, c = r % SIDE_COLUMNS;
			unsigned char *scale = block + panel_scale_at(w->dtype, g, side),
						  *codes = block + panel_code_at(w->dtype, g, side);
			const unsigned char *b = src + r * row_bytes + from;
			if (w->dtype == KERN_Q8_0)
				pack_q8(scale, codes, c, b);
			else if (w->dtype == KERN_MXFP4)
				pack_mxfp4(scale, codes, c, b);
			else if (w->dtype == KERN_Q6_K)
				pack_q6(block + panel_d_at(w->dtype, side), scale, codes, g % 8, c, b);
			else if (panel_is_k(w->dtype))
				pack_k(block + panel_d_at(w->dtype, side), scale, codes, w->dtype, g % 8, c, b);
			else
				pack_q4(scale, codes, w->dtype, c, b);
		}
	}
}

/* packs `columns` rows of the file into one panel, a cache line of each row at a time. Units are
 * floats, F16 or pairs of BF16; the last pair may be incomplete. */
static void pack_float(const struct kern_weight *w, unsigned char *panel, const unsigned char *src,
                       size_t row_bytes, uint32_t columns)
{
	enum { STEP = 16 };
	uint32_t units = w->k / panel_float_k(w->dtype);
	for (uint32_t i = 0; i < units; i += STEP)
		for (uint32_t r = 0; r < columns; r++) {
			uint32_t n = units - i < STEP ? units - i : STEP;
			const unsigned char *from = src + r * row_bytes;
			size_t to = (size_t)i * FLOAT_COLUMNS + r;
			if (w->dtype == KERN_F16)
				for (uint32_t j = 0; j < n; j++)
					memcpy(panel + 2 * (to + j * FLOAT_COLUMNS), from + 2 * (i + j), 2);
			else
				for (uint32_t j = 0; j < n; j++)
					memcpy(panel + 4 * (to + j * FLOAT_COLUMNS), from + 4 * (i + j), 4);
		}
	for (uint32_t r = 0; w->k % panel_float_k(w->dtype) && r < columns; r++)
		memcpy(panel + 4 * ((size_t)units * FLOAT_COLUMNS + r),
		       src + r * row_bytes + 4 * (size_t)units, 2);
}

/* packs `columns` rows of the file into one panel */
static void pack_e4m3(const struct kern_weight *w, unsigned char *panel, const unsigned char *src,
                      size_t row_bytes, uint32_t columns)
{
	for (uint32_t k = 0; k < w->k; k += KERN_E4M3_VALUES, panel += E4M3_BLOCK)
		for (uint32_t r = 0; r < columns; r++) {
			uint32_t n = w->k - k < KERN_E4M3_VALUES ? w->k - k : KERN_E4M3_VALUES;
			const unsigned char *b = src + r * row_bytes + kern_dtype_bytes(KERN_E4M3, k);
			float scale = kern_e4m3_scale(b, n);
			memcpy(panel + 4 * r, &scale, 4);
			for (uint32_t i = 0; i < n; i++)
				panel[E4M3_SCALES + i * FLOAT_COLUMNS + r] = b[4 + i];
		}
}

size_t cpu_weight_bytes(const struct kern_weight *w)
{
	uint32_t columns = panel_columns(w->dtype);
	return w->packed ? (w->n + columns - 1) / columns * w->panel_bytes
	                 : w->n * kern_dtype_bytes(w->dtype, w->k);
}

struct pack_job {
	const struct kern_weight *w;
	const unsigned char *src;
	size_t row_bytes;
};

static uint32_t pack_panels(const void *ctx)
{
	const struct pack_job *j = ctx;
	return (j->w->n + panel_columns(j->w->dtype) - 1) / panel_columns(j->w->dtype);
}

static void pack_panel(const void *ctx, uint32_t item, unsigned worker)
{
	(void)worker;
	const struct pack_job *j = ctx;
	const struct kern_weight *w = j->w;
	uint32_t columns = panel_columns(w->dtype), first = item * columns,
			 n = w->n - first < columns ? w->n - first : columns;
	(w->dtype == KERN_E4M3      ? pack_e4m3
	 : panel_is_float(w->dtype) ? pack_float
	                            : pack_quantised)(w, w->data + item * w->panel_bytes,
	                                              j->src + first * j->row_bytes, j->row_bytes, n);
}

void cpu_weight_pack(struct kern_weight *w, const void *src, size_t row_bytes, struct crew *crew)
{
	struct pack_job job = {w, src, row_bytes};
	size_t dense = kern_dtype_bytes(w->dtype, w->k);
	if (w->packed)
		crew_run(crew, &(struct crew_phase){.items = pack_panels, .item = pack_panel, .ctx = &job},
		         1);
	else
		for (uint32_t r = 0; r < w->n; r++)
			memcpy(w->data + r * dense, job.src + r * row_bytes, dense);
}

/* --- rows back out ------------------------------------------------------- */

static float half_at(const unsigned char *p)
{
	uint16_t h;
	memcpy(&h, p, 2);
	return kern_f16_to_f32(h);
}

static float brain_at(const unsigned char *p)
{
	uint16_t h;
	memcpy(&h, p, 2);
	return kern_bf16_to_f32(h);
}

static void unpack_group_q6(float *out, const unsigned char *ds, const unsigned char *scale,
                            const unsigned char *codes, unsigned c)
{
	float d;
	memcpy(&d, ds + 4 * c, 4);
	for (uint32_t i = 0; i < GROUP; i++) {
		unsigned code = get_code(codes, i, c) | (codes[pair_at(i, c)] >> pair_shift(i) & 3) << 4;
		out[i] = d * (float)(int8_t)scale[i / 16 * 16 + c] * (float)((int)code - 32);
	}
}

/* d and m of a group's column; ds: the block's, for types that have them */
static void unpack_scales(enum kern_dtype t, const unsigned char *ds, const unsigned char *scale,
                          unsigned c, float *ret_d, float *ret_m)
{
	if (panel_is_k(t)) {
		float d, m;
		memcpy(&d, ds + 4 * c, 4);
		memcpy(&m, ds + 64 + 4 * c, 4);
		*ret_d = d * (float)scale[c];
		*ret_m = m * (float)scale[16 + c];
	} else {
		*ret_d = t == KERN_MXFP4 ? brain_at(scale + 2 * c) : half_at(scale + 2 * c);
		*ret_m = panel_has_offset(t) ? half_at(scale + 32 + 2 * c) : 0;
	}
}

static void unpack_group(float *out, enum kern_dtype t, const unsigned char *ds,
                         const unsigned char *scale, const unsigned char *codes, unsigned c)
{
	float d, m;
	unpack_scales(t, ds, scale, c, &d, &m);
	for (uint32_t i = 0; i < GROUP; i++) {
		unsigned code = t == KERN_Q8_0 ? codes[i / 4 * CODE_STEP + c * 4 + i % 4]
		                               : get_code(codes, i, c);
		if (panel_is_five(t))
			code |= (codes[4 * CODE_STEP + 4 * c + i % 4] >> i / 4 & 1u) << 4;
		if (t == KERN_MXFP4)
			code = cpu_mxfp4_codes[code];
		if (panel_has_offset(t))
			out[i] = d * (float)code + m;
		else
			out[i] = d * (float)((int)code - (t == KERN_Q8_0 ? 128 : 8 * panel_zero_eights(t)));
	}
}

static void unpack_e4m3(float *out, const unsigned char *panel, uint32_t k, uint32_t c)
{
	float d = 0;
	for (uint32_t i = 0; i < k; i++) {
		const unsigned char *block = panel + (size_t)(i / KERN_E4M3_VALUES) * E4M3_BLOCK;
		memcpy(&d, block + 4 * c, 4);
		out[i] = d * kern_f8_to_f32(block[E4M3_SCALES + i % KERN_E4M3_VALUES * FLOAT_COLUMNS + c]);
	}
}

void cpu_weight_row(const struct kern_weight *w, uint32_t row, float *out)
{
	if (!w->packed) {
		cpu_dequantise(out, w->dtype, w->data + row * kern_dtype_bytes(w->dtype, w->k), w->k);
		return;
	}
	uint32_t columns = panel_columns(w->dtype), c = row % columns, side = c / SIDE_COLUMNS;
	const unsigned char *panel = w->data + row / columns * w->panel_bytes;
	if (w->dtype == KERN_E4M3) {
		unpack_e4m3(out, panel, w->k, c);
		return;
	}
	if (panel_is_float(w->dtype)) {
		uint32_t each = panel_float_k(w->dtype);
		size_t unit = panel_float_bytes(w->dtype);
		for (uint32_t i = 0; i < w->k; i += each)
			cpu_dequantise(&out[i], w->dtype,
			               panel + ((size_t)(i / each) * FLOAT_COLUMNS + c) * unit,
			               w->k - i < each ? w->k - i : each);
		return;
	}
	for (uint32_t g = 0; g < w->k / GROUP; g++) {
		const unsigned char *block = panel + panel_block_at(w->dtype, g);
		const unsigned char *scale = block + panel_scale_at(w->dtype, g, side),
							*codes = block + panel_code_at(w->dtype, g, side);
		const unsigned char *ds = block + panel_d_at(w->dtype, side);
		if (w->dtype == KERN_Q6_K)
			unpack_group_q6(out + g * GROUP, ds, scale, codes, c % SIDE_COLUMNS);
		else
			unpack_group(out + g * GROUP, w->dtype, ds, scale, codes, c % SIDE_COLUMNS);
	}
}
