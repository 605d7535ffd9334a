/* reference.c - every operation written plainly, in float32 without quantised activations. The other variants are measured
 * against it, so it stays simple: weights are dequantised row by row and dot products add up in 16 fixed lanes. */
#include "kernels/cpu/cpu.h"
#include "kernels/own_math.h"

#include <math.h>
#include <string.h>

enum { LANES = 16, COLUMNS_PER_ITEM = 16 };

static float dot(const float *a, const float *b, uint32_t n)
{
	float lane[LANES] = { 0 };
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

static void ref_rms_norm(float *y, float *x, const float *a, const float *w, uint32_t dim, float eps)
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

static void ref_rope(float *x, uint32_t heads, uint32_t head_dim, const struct kern_rope *rope, const float *cos_sin)
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

static void ref_act_mul(float *y, const float *gate, const float *up, enum kern_act act, uint32_t dim)
{
	for (uint32_t i = 0; i < dim; i++) {
		/* GELU's tanh form is g / (1 + exp(-2 z)), too, with z what the tanh is of */
		double g = (double)gate[i],
		       z = act == KERN_SILU ? g : 1.5957691216057308 * (g + 0.044715 * g * g * g);
		y[i] = (float)(g / (1.0 + own_exp(-z))) * up[i];
	}
}

struct ref_matmul {
	struct kern_device *dev;
	const float *x;
	uint32_t rows;
	const struct kern_product *p;
};

static void matmul_columns(void *ctx, uint32_t item, unsigned worker)
{
	const struct ref_matmul *m = ctx;
	const struct kern_weight *w = m->p->w;
	float *row = m->dev->scratch[worker].mem;
	uint32_t end = (item + 1) * COLUMNS_PER_ITEM < w->n ? (item + 1) * COLUMNS_PER_ITEM : w->n;
	for (uint32_t c = item * COLUMNS_PER_ITEM; c < end; c++) {
		cpu_weight_row(w, c, row);
		for (uint32_t r = 0; r < m->rows; r++)
			m->p->y[r * m->p->ldy + c] = dot(m->x + (size_t)r * w->k, row, w->k) + (m->p->bias ? m->p->bias[c] : 0.0f);
	}
}

static const float *rounded_to_bf16(struct kern_device *dev, const float *x, size_t n)
{
	float *r = cpu_scratch(dev, CPU_SCRATCH_ACT, n * sizeof *r);
	for (size_t i = 0; r && i < n; i++)
		r[i] = cpu_bf16_to_f32(cpu_f32_to_bf16(x[i]));
	return r;
}

static int ref_matmul(struct kern_device *dev, const float *x, uint32_t rows, const struct kern_product *p, uint32_t products)
{
	const float *rounded = dev->bf16_activations ? rounded_to_bf16(dev, x, (size_t)rows * p[0].w->k) : x;
	if (!rounded || cpu_scratch_workers(dev, (size_t)p[0].w->k * sizeof(float)))
		return KERN_ENOMEM;
	for (uint32_t i = 0; i < products; i++) {
		struct ref_matmul m = { dev, p[i].w->dtype == KERN_BF16 ? rounded : x, rows, &p[i] };
		pool_run(dev->pool, (p[i].w->n + COLUMNS_PER_ITEM - 1) / COLUMNS_PER_ITEM, matmul_columns, &m);
	}
	return KERN_OK;
}

struct ref_attention {
	struct kern_device *dev;
	const struct cpu_attention *a;
	const struct kern_span *span;
	uint32_t row;              /* within the span */
};

/* K (or V) of one token as floats */
static void kv_load(float *out, const struct kern_kv_layer *kv, const uint32_t *table, uint32_t token, uint32_t head, int is_v)
{
	uint32_t at = token % kv->block_tokens;
	const unsigned char *plane = cpu_kv_plane(kv, table[token / kv->block_tokens], head, is_v);
	cpu_dequantise(out, kv->dtype, plane + at * kern_dtype_bytes(kv->dtype, kv->head_dim), kv->head_dim);
	if (kern_kv_scale_bytes(kv->dtype))
		for (uint32_t d = 0; d < kv->head_dim; d++)
			out[d] *= cpu_kv_scales(kv, plane)[at];
}

static void attention_head(void *ctx, uint32_t head, unsigned worker)
{
	const struct ref_attention *t = ctx;
	const struct cpu_attention *a = t->a;
	const struct kern_kv_layer *kv = a->kv;
	const uint32_t *table = a->batch->block_table + t->span->table;
	uint32_t dim = kv->head_dim, out_dim = cpu_kv_out_dim(kv), kv_head = head / (a->heads / kv->kv_heads), row = t->span->row + t->row;
	uint32_t last = t->span->position + t->row, first = a->window && last + 1 > a->window ? last + 1 - a->window : 0;
	float *score = t->dev->scratch[worker].mem, vec[CPU_MAX_HEAD_DIM], max = -INFINITY;
	const float *q = a->q + row * a->ldq + (size_t)head * dim;
	double sum = 0, acc[CPU_MAX_HEAD_DIM] = { 0 };

	for (uint32_t i = first; i <= last; i++) {
		kv_load(vec, kv, table, i, kv_head, 0);
		score[i - first] = dot(q, vec, dim) * a->scale;
		max = fmaxf(max, score[i - first]);
	}
	for (uint32_t i = first; i <= last; i++) {
		double e = own_exp((double)score[i - first] - (double)max);
		sum += e;
		kv_load(vec, kv, table, i, kv_head, 1);
		for (uint32_t d = 0; d < out_dim; d++)
			acc[d] += e * (double)vec[d];
	}
	for (uint32_t d = 0; d < out_dim; d++)
		a->out[((size_t)row * a->heads + head) * out_dim + d] = (float)(acc[d] / sum);
}

static int ref_attention(struct kern_device *dev, const struct cpu_attention *a)
{
	for (uint32_t i = 0; i < a->batch->spans; i++) {
		const struct kern_span *span = &a->batch->span_host[i];
		if (cpu_scratch_workers(dev, ((size_t)span->position + span->rows) * sizeof(float)))
			return KERN_ENOMEM;
		for (uint32_t r = 0; r < span->rows; r++) {
			struct ref_attention t = { dev, a, span, r };
			pool_run(dev->pool, a->heads, attention_head, &t);
		}
	}
	return KERN_OK;
}

const struct cpu_variant cpu_variant_reference = {
	.name = "reference",
	.numerics = "cpu-reference-r2",
	.rms_norm = ref_rms_norm,
	.rope = ref_rope,
	.act_mul = ref_act_mul,
	.matmul = ref_matmul,
	.attention = ref_attention,
};
