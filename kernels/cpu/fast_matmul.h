/* fast_matmul.h - products of the fast variants. Included by each variant's file after its micro-kernels.
 *
 * Quantised weights: each activation row becomes integers of 15 bits in groups of 32 with a float scale, kept as two bytes each
 * (fast_record.h), so that byte products do the work. Over one group the products add up exactly in int32; the groups follow each other
 * in one float sum, so the variants agree in every bit, whatever order their integers go in:
 *     acc = fma(float(sum of w_code * x_code - zero * sum of x_code), d_w * d_x, acc), and for types with an offset
 *     acc = fma(m_w, d_x * sum, acc).
 * d_w and m_w of Q4_K and Q5_K are the exact products of their 6-bit scales with the block's d and m.
 * Float weights: acc = fma(x, w, acc) in the order of k.
 *
 * Why two bytes a value, which is twice the products: mean error of a log-probability on SmolLM2 Q4_1, teacher-forced over 3,704 positions,
 * with float KV 0.0007 and with bf16 KV 0.0092, which is the KV's own; with one byte 0.072. With the second byte only in groups whose largest
 * value is large beside the row's others: 0.032 with it in 21 % of the groups, 0.019 with 61 %; but a tile must do what any of its rows wants,
 * 48 % and 87 % in tiles of 12. The model's close calls change at 0.05, so what a tenth fewer products would save is not worth the half of that.
 *
 * Rows are cut into tiles of up to TILE_ROWS (4); the quantised rows of a tile lie interleaved, one record a group, so that a kernel
 * addresses all of them from one pointer. */
#ifndef CPU_FAST_MATMUL_H
#define CPU_FAST_MATMUL_H

#include "kernels/cpu/fast_record.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/vec.h"

struct fast_tile {
	uint32_t row, rows;
	size_t act;                        /* offset of its records in fast_matmul.act */
};

struct fast_matmul {
	struct kern_device *dev;
	const float *x;
	const struct kern_product *p;
	uint32_t products, rows, k, tiles;
	struct fast_tile *tile;
	unsigned char *act;
	uint32_t *first_item;      /* of each product, in items of panels_per_item panels */
	uint32_t *panels_per_item;
};

INLINE float group_max(const float *x)
{
	return v_hmax(v_max(v_abs(v_load(x)), v_abs(v_load(x + 16))));
}

#ifndef RECORD_STORE
#define RECORD_STORE record_bytes
/* 16 integers of 15 bits, half of a group, as two bytes each; returns their sum */
INLINE int32_t record_bytes(unsigned char *rec, uint32_t R, uint32_t r, int half, v16 q)
{
	int8_t *hi = (int8_t *)rec + r * GROUP + half * 16, *lo = hi + REC_LO * R;
	v16 round = v_set1(V_ROUND), high = v_sub(v_fma(q, v_set1(1.0f / RADIX), round), round);
	int32_t sum = RADIX * v_store_i8(hi, high);
	return sum + v_store_i8(lo, v_fma(high, v_set1(-RADIX), q));
}
#endif

/* One group into slot r of a record of R rows. */
INLINE void quantise_group(unsigned char *rec, uint32_t R, uint32_t r, const float *x)
{
	float max = group_max(x);
	bool tiny = max < 1e-30f;                        /* its reciprocal would overflow */
	float d = tiny ? 0 : max / LEVELS;
	v16 inv = v_set1(tiny ? 0 : LEVELS / max), round = v_set1(V_ROUND);
	int32_t sum[2];
	for (int i = 0; i < 2; i++)
		sum[i] = RECORD_STORE(rec, R, r, i, v_sub(v_fma(v_load(x + i * 16), inv, round), round));
	int32_t both = sum[0] + sum[1];
	((float *)(void *)(rec + REC_D * R))[r] = d;
	((float *)(void *)(rec + REC_DSUM * R))[r] = d * (float)both;
	((int32_t *)(void *)(rec + REC_Z8 * R))[r] = -8 * both;
	((int32_t *)(void *)(rec + REC_Z128 * R))[r] = -128 * both;
	((int32_t *)(void *)(rec + REC_Z32 * R))[r] = -32 * sum[0];
	((int32_t *)(void *)(rec + REC_Z32 * R))[R + r] = -32 * sum[1];
}

static void quantise_tile(void *ctx, uint32_t item, unsigned worker)
{
	(void)worker;
	const struct fast_matmul *m = ctx;
	const struct fast_tile *t = &m->tile[item];
	for (uint32_t r = 0; r < t->rows; r++) {
		const float *x = m->x + (size_t)(t->row + r) * m->k;
		unsigned char *rec = m->act + t->act;
		for (uint32_t g = 0; g < m->k / GROUP; g++, x += GROUP, rec += t->rows * REC_BYTES)
			quantise_group(rec, t->rows, r, x);
	}
}

/* columns c0 .. c0 + 15 of the tile's rows from acc (rows, 16), with the bias */
static void store_columns(const struct kern_product *p, const struct fast_tile *t, uint32_t c0, const float *acc, size_t ld)
{
	if (c0 >= p->w->n)
		return;
	uint32_t n = p->w->n - c0 < 16 ? p->w->n - c0 : 16;
	for (uint32_t r = 0; r < t->rows; r++) {
		v16 v = v_load(acc + r * ld);
		if (p->bias)
			v = v_add(v, v_loadn(p->bias + c0, n));
		v_storen(p->y + (t->row + r) * p->ldy + c0, v, n);
	}
}

/* R rows x V vectors of columns, over all of k */
INLINE void float_kernel(const int R, const int V, enum kern_dtype type, const float *const *x, const unsigned char *w, uint32_t k,
                         float *acc)
{
	size_t elem = type == KERN_F32 ? 4 : 2;
	v16 sum[FLOAT_ROWS][FLOAT_VECS_MAX];
	for (int r = 0; r < R; r++)
		for (int c = 0; c < V; c++)
			sum[r][c] = v_set1(0);
	for (uint32_t i = 0; i < k; i++, w += FLOAT_COLUMNS * elem) {
		v16 col[FLOAT_VECS_MAX];
		for (int c = 0; c < V; c++)
			col[c] = v_load_as(w + (size_t)c * 16 * elem, type, 16);
		for (int r = 0; r < R; r++) {
			v16 b = v_set1(x[r][i]);
			for (int c = 0; c < V; c++)
				sum[r][c] = v_fma(b, col[c], sum[r][c]);
		}
	}
	for (int r = 0; r < R; r++)
		for (int c = 0; c < V; c++)
			v_store(acc + (r * V + c) * 16, sum[r][c]);
}

/* returns the number of vectors of columns done */
INLINE int float_type(enum kern_dtype type, uint32_t rows, const float *const *x, const unsigned char *w, uint32_t k, float *acc)
{
	switch (rows) {
	case 1: float_kernel(1, FLOAT_VECS_MAX, type, x, w, k, acc); return FLOAT_VECS_MAX;
	case 2: float_kernel(2, FLOAT_VECS, type, x, w, k, acc); break;
#if FLOAT_ROWS > 4
	case 3: float_kernel(3, FLOAT_VECS, type, x, w, k, acc); break;
	case 4: float_kernel(4, FLOAT_VECS, type, x, w, k, acc); break;
#endif
	default: float_kernel(FLOAT_ROWS, FLOAT_VECS, type, x, w, k, acc);
	}
	return FLOAT_VECS;
}

static int float_dispatch(enum kern_dtype type, uint32_t rows, const float *const *x, const unsigned char *w, uint32_t k, float *acc)
{
	switch (type) {
	case KERN_F32: return float_type(KERN_F32, rows, x, w, k, acc);
	case KERN_F16: return float_type(KERN_F16, rows, x, w, k, acc);
	default: return float_type(KERN_BF16, rows, x, w, k, acc);
	}
}

/* The panel's columns of all rows, in parts of nearly equal height; spare rows of a kernel repeat the last one. */
static void float_panel(const struct fast_matmul *m, const struct kern_product *p, uint32_t panel)
{
	const struct kern_weight *w = p->w;
	const unsigned char *data = w->data + panel * w->panel_bytes;
	size_t elem = w->dtype == KERN_F32 ? 4 : 2;
	uint32_t c0 = panel * FLOAT_COLUMNS, columns = w->n - c0 < FLOAT_COLUMNS ? w->n - c0 : FLOAT_COLUMNS;
	_Alignas(64) float acc[FLOAT_ROWS * FLOAT_VECS_MAX * 16];
	const float *x[FLOAT_ROWS];
	for (uint32_t row = 0, left = (m->rows + FLOAT_ROWS - 1) / FLOAT_ROWS; left; left--) {
		struct fast_tile part = { .row = row, .rows = (m->rows - row + left - 1) / left };
		for (uint32_t r = 0; r < FLOAT_ROWS; r++)
			x[r] = m->x + (size_t)(row + (r < part.rows ? r : part.rows - 1)) * m->k;
		for (uint32_t c = 0, done; c < columns; c += done * 16) {
			done = (uint32_t)float_dispatch(w->dtype, part.rows, x, data + c * elem, m->k, acc);
			for (uint32_t v = 0; v < done; v++)
				store_columns(p, &part, c0 + c + v * 16, acc + v * 16, (size_t)done * 16);
		}
		row += part.rows;
	}
}

/* acc (R, 32) = panel x records; the variant's file supplies quant_kernel */
INLINE void quant_rows(enum kern_dtype type, uint32_t rows, const unsigned char *panel, const unsigned char *rec, uint32_t groups, float *acc)
{
	switch (rows) {
	case 1: quant_kernel(1, type, panel, rec, groups, acc); break;
	case 2: quant_kernel(2, type, panel, rec, groups, acc); break;
	case 3: quant_kernel(3, type, panel, rec, groups, acc); break;
	default: quant_kernel(TILE_ROWS, type, panel, rec, groups, acc);
	}
}

static void quant_panel(const struct fast_matmul *m, const struct kern_product *p, const struct fast_tile *t, uint32_t panel)
{
	_Alignas(64) float acc[TILE_ROWS * PANEL_COLUMNS];
	const unsigned char *data = p->w->data + panel * p->w->panel_bytes, *rec = m->act + t->act;
	uint32_t groups = m->k / GROUP;
	switch (p->w->dtype) {
	case KERN_Q8_0: quant_rows(KERN_Q8_0, t->rows, data, rec, groups, acc); break;
	case KERN_Q4_0: quant_rows(KERN_Q4_0, t->rows, data, rec, groups, acc); break;
	case KERN_Q4_1: quant_rows(KERN_Q4_1, t->rows, data, rec, groups, acc); break;
	case KERN_Q5_0: quant_rows(KERN_Q5_0, t->rows, data, rec, groups, acc); break;
	case KERN_Q5_1: quant_rows(KERN_Q5_1, t->rows, data, rec, groups, acc); break;
	case KERN_Q4_K: quant_rows(KERN_Q4_K, t->rows, data, rec, groups, acc); break;
	case KERN_Q5_K: quant_rows(KERN_Q5_K, t->rows, data, rec, groups, acc); break;
	default: quant_rows(KERN_Q6_K, t->rows, data, rec, groups, acc);
	}
	for (uint32_t c = 0; c < PANEL_COLUMNS; c += 16)
		store_columns(p, t, panel * PANEL_COLUMNS + c, acc + c, PANEL_COLUMNS);
}

static uint32_t panel_count(const struct kern_weight *w)
{
	return (w->n + panel_columns(w->dtype) - 1) / panel_columns(w->dtype);
}

static void matmul_item(void *ctx, uint32_t item, unsigned worker)
{
	(void)worker;
	const struct fast_matmul *m = ctx;
	uint32_t i = 0;
	while (i + 1 < m->products && item >= m->first_item[i + 1])
		i++;
	const struct kern_product *p = &m->p[i];
	uint32_t panels = panel_count(p->w), first = (item - m->first_item[i]) * m->panels_per_item[i], end = first + m->panels_per_item[i];
	end = end < panels ? end : panels;
	if (panel_is_float(p->w->dtype))
		for (uint32_t panel = first; panel < end; panel++)
			float_panel(m, p, panel);
	else
		for (uint32_t t = 0; t < m->tiles; t++)
			for (uint32_t panel = first; panel < end; panel++)
				quant_panel(m, p, &m->tile[t], panel);
}

/* Full tiles and one for the rest. Returns the bytes of the records; none when nothing is quantised. */
static size_t matmul_tiles(struct fast_matmul *m, uint32_t rows, bool quantised)
{
	size_t act = 0, groups = quantised ? m->k / GROUP : 0;
	for (uint32_t t = 0, row = 0; t < m->tiles; t++, row += TILE_ROWS) {
		uint32_t height = rows - row < TILE_ROWS ? rows - row : TILE_ROWS;
		m->tile[t] = (struct fast_tile){ .row = row, .rows = height, .act = act };
		act = (act + groups * height * REC_BYTES + 63) & ~(size_t)63;
	}
	return act;
}

/* Items small enough to share the work out evenly and to stay in the second-level cache, and few enough to claim cheaply. */
static uint32_t matmul_items(struct fast_matmul *m)
{
	enum { ITEMS_PER_THREAD = 6, ITEM_BYTES = 192 << 10 };
	size_t total = 0;
	for (uint32_t i = 0; i < m->products; i++)
		total += panel_count(m->p[i].w) * m->p[i].w->panel_bytes;
	size_t share = total / (ITEMS_PER_THREAD * pool_threads(m->dev->pool)) + 1;
	if (m->tiles > 1 && share > ITEM_BYTES)
		share = ITEM_BYTES;
	uint32_t items = 0;
	for (uint32_t i = 0; i < m->products; i++) {
		uint32_t each = (uint32_t)(share / m->p[i].w->panel_bytes);
		m->panels_per_item[i] = each ? each : 1;
		m->first_item[i] = items;
		items += (panel_count(m->p[i].w) + m->panels_per_item[i] - 1) / m->panels_per_item[i];
	}
	return items;
}

static int matmul_quantise(struct fast_matmul *m, size_t act_bytes, uint32_t rows)
{
	enum { INLINE_VALUES = 4096 };
	m->act = cpu_scratch(m->dev, CPU_SCRATCH_ACT, act_bytes);
	if (!m->act)
		return KERN_ENOMEM;
	if ((size_t)rows * m->k >= INLINE_VALUES)
		pool_run(m->dev->pool, m->tiles, quantise_tile, m);
	else
		for (uint32_t t = 0; t < m->tiles; t++)
			quantise_tile(m, t, 0);
	return KERN_OK;
}

static int fast_matmul(struct kern_device *dev, const float *x, uint32_t rows, const struct kern_product *p, uint32_t products)
{
	struct fast_matmul m = { .dev = dev, .x = x, .p = p, .products = products, .rows = rows, .k = p[0].w->k, .tiles = (rows + TILE_ROWS - 1) / TILE_ROWS };
	bool quantised = false;
	for (uint32_t i = 0; i < products; i++)
		quantised |= !panel_is_float(p[i].w->dtype);
	m.tile = cpu_scratch(dev, CPU_SCRATCH_SHARED, m.tiles * sizeof *m.tile + 2 * products * sizeof(uint32_t));
	if (!m.tile)
		return KERN_ENOMEM;
	m.first_item = (uint32_t *)(void *)(m.tile + m.tiles);
	m.panels_per_item = m.first_item + products;
	size_t act_bytes = matmul_tiles(&m, rows, quantised);
	int rc = quantised ? matmul_quantise(&m, act_bytes, rows) : KERN_OK;
	if (!rc)
		pool_run(dev->pool, matmul_items(&m), matmul_item, &m);
	return rc;
}

#endif
