/* reference.c - every operation in its simplest form, in float32 without quantised activations. The
 * other variants are measured against it, so it stays simple: weights are dequantised row by row,
 * and dot products add up in 16 fixed lanes. */
#include "kernels/cpu/program.h"
#include "kernels/own_math.h"

#include <math.h>
#include <string.h>

enum { LANES = 16, COLUMNS_PER_ITEM = 16 };

static float dot(const float *a, const float *b, uint32_t n)
{
	float lane[LANES] = {0};
	uint32_t i = 0;
	for (; i + LANES <= n; i += LANES)
		for (int j = 0; j < LANES; j++)
			lane[j] += a[i + j] * b[i + j];
	for (int j = 0; i < n; i++, j++)
		lane[j] += a[i] * b[i];
	for (int half = LANES / 2; half; half /= 2)
		for (int j = 0; j < half; j++)
			lane[j] += lane[j + half];
	return lane[0];
}

static void ref_rms_norm(float *y, float *x, const float *a, const float *w, uint32_t dim,
                         float eps)
{
	double sum = 0;
	for (uint32_t i = 0; i < dim; i++) {
		if (a)
			x[i] += a[i];
		sum += (double)x[i] * (double)x[i];
	}
	float f = (float)(1.0 / sqrt(sum / dim + (double)eps));
	for (uint32_t i = 0; i < dim; i++)
		y[i] = x[i] * f * w[i];
}

static void ref_rope(float *x, uint32_t heads, uint32_t head_dim, const struct kern_rope *rope,
                     const float *cos_sin)
{
	uint32_t pairs = rope->dims / 2;
	bool half = rope->style == KERN_ROPE_HALF;
	for (uint32_t h = 0; h < heads; h++, x += head_dim)
		for (uint32_t i = 0; i < pairs; i++) {
			float *pu = half ? &x[i] : &x[2 * i], *pv = half ? &x[i + pairs] : &x[2 * i + 1];
			float u = *pu, v = *pv, c = cos_sin[i], s = cos_sin[pairs + i];
			*pu = u * c - v * s;
			*pv = v * c + u * s;
		}
}

static void ref_act_mul(float *y, const float *gate, const float *up, enum kern_act act,
                        uint32_t dim)
{
	for (uint32_t i = 0; i < dim; i++) {
		/* all are g / (1 + exp(-z)) times something; GELU's tanh form too, with z twice the
		 * argument of the tanh */
		double g = (double)gate[i], u = (double)up[i], z = g;
		if (act == KERN_SWIGLU_CLAMPED) {
			g = g > 7 ? 7 : g;
			u = (u > 7 ? 7 : u < -7 ? -7 : u) + 1;
			z = 1.702 * g;
		} else if (act == KERN_GELU_TANH)
			z = 1.5957691216057308 * (g + 0.044715 * g * g * g);
		y[i] = (float)(g / (1.0 + own_exp(-z))) * (float)u;
	}
}

static size_t ref_rounded_floats(uint32_t k)
{
	return k;
}

static void ref_make_ready(const struct cpu_ready *in, uint32_t from, uint32_t to)
{
	for (uint32_t r = from; r < to && in->rounded; r++)
		for (uint32_t i = 0; i < in->k; i++)
			in->rounded[r * in->ld_rounded + i] = kern_bf16_to_f32(
				kern_f32_to_bf16(in->x[r * in->ldx + i]));
}

static uint32_t ref_panels(const struct kern_weight *w)
{
	return (w->n + COLUMNS_PER_ITEM - 1) / COLUMNS_PER_ITEM;
}

static void ref_product(const struct cpu_part *p, const struct cpu_variant *v, uint32_t panel,
                        uint32_t end, float *scratch)
{
	(void)v;
	const struct kern_weight *w = p->w;
	bool rounded = p->in.rounded && w->dtype == KERN_BF16;
	const float *x = rounded ? p->in.rounded : p->in.x;
	size_t ldx = rounded ? p->in.ld_rounded : p->in.ldx;
	uint32_t last = end * COLUMNS_PER_ITEM < w->n ? end * COLUMNS_PER_ITEM : w->n;
	for (uint32_t c = panel * COLUMNS_PER_ITEM; c < last; c++) {
		cpu_weight_row(w, c, scratch);
		for (uint32_t r = 0; r < p->rows; r++)
			p->y[r * p->ldy + c] = dot(x + r * ldx, scratch, w->k) + (p->bias ? p->bias[c] : 0.0f);
	}
}

/* loads K or V of one token as floats */
static void kv_load(float *out, const struct kern_kv_layer *kv, const uint32_t *table,
                    uint32_t token, uint32_t head, int is_v)
{
	uint32_t at = token % kv->block_tokens;
	const unsigned char *plane = cpu_kv_plane(kv, table[token / kv->block_tokens], head, is_v);
	cpu_dequantise(out, kv->dtype, plane + at * kern_dtype_bytes(kv->dtype, kv->head_dim),
	               kv->head_dim);
	if (kern_kv_scale_bytes(kv->dtype))
		for (uint32_t d = 0; d < kv->head_dim; d++)
			out[d] *= cpu_kv_scales(kv, plane)[at];
}

/* An item is one row and head. */
static void ref_att_item(const void *attention, uint32_t item, unsigned worker)
{
	const struct cpu_attention *a = attention;
	const struct kern_kv_layer *kv = &a->kv;
	const struct att_tile *t = &a->cut->tile[item / a->heads];
	const uint32_t *table = cpu_table(a->p, t->span);
	uint32_t head = item % a->heads, dim = kv->head_dim, out_dim = cpu_kv_out_dim(kv),
			 kv_head = head / (a->heads / kv->kv_heads);
	uint32_t last = t->span->position + t->row - t->span->row,
			 first = a->window && last + 1 > a->window ? last + 1 - a->window : 0;
	float *score = a->p->scratch[worker], vec[CPU_MAX_HEAD_DIM], max = -INFINITY;
	const float *q = a->q + t->row * a->ldq + (size_t)head * dim;
	double sum = 0, acc[CPU_MAX_HEAD_DIM] = {0};

	for (uint32_t i = first; i <= last; i++) {
		kv_load(vec, kv, table, i, kv_head, 0);
		score[i - first] = dot(q, vec, dim) * a->scale;
		max = fmaxf(max, score[i - first]);
	}
	if (a->sinks) {
		max = fmaxf(max, a->sinks[head]);
		sum = own_exp((double)a->sinks[head] - (double)max);
	}
	for (uint32_t i = first; i <= last; i++) {
		double e = own_exp((double)score[i - first] - (double)max);
		sum += e;
		kv_load(vec, kv, table, i, kv_head, 1);
		for (uint32_t d = 0; d < out_dim; d++)
			acc[d] += e * (double)vec[d];
	}
	for (uint32_t d = 0; d < out_dim; d++)
		a->out[t->row * a->ldo + (size_t)head * out_dim + d] = (float)(acc[d] / sum);
}

static void ref_att_share(struct cpu_attention *a, uint32_t *ret_tile_rows)
{
	a->parts = a->group = 1;
	a->items = a->heads;
	*ret_tile_rows = 1;
}

static size_t ref_att_scratch(const struct cpu_attention *a, uint32_t positions)
{
	(void)a;
	return positions;
}

const struct cpu_variant cpu_variant_reference = {
	.name = "reference",
	.numerics = "cpu-reference-r2",
	.rms_norm = ref_rms_norm,
	.rope = ref_rope,
	.act_mul = ref_act_mul,
	.rounded_floats = ref_rounded_floats,
	.make_ready = ref_make_ready,
	.panels = ref_panels,
	.product = ref_product,
	.att_share = ref_att_share,
	.att_scratch = ref_att_scratch,
	.att_item = ref_att_item,
};
