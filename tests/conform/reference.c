/* reference.c - formulas that several jobs need, in double precision, each with what float32
 * arithmetic may make of it.
 *
 * Where bounds come from. u is 2^-24, the rounding of one float32 operation. A sum of k float32
 * products in any order errs as a random walk of the roundings of its partial sums: 0.4 u of each.
 * With terms of like size and random signs that is 0.4 u of the sum of magnitudes, whatever k is.
 * Where the partial sums are as large as the result, or as one term that is nearly all, it is
 * 0.4 u sqrt(k) of that. The largest of a million elements is five times as far off. The sum of
 * the three, 2 to 4 times what is seen, is the bound; the one of k u, which holds for any terms,
 * would hide a lost element. */
#include "tests/conform/conform.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GROUP = 32 };

static bool quantised(enum kern_dtype t)
{
	return t != KERN_F32 && t != KERN_F16 && t != KERN_BF16 && t != KERN_E4M3;
}

/* The rounding of quantised activations: half a step of their group for each |w|. A group of
 * nothing but tiny numbers may count as zero. */
static double group_error(const struct precision *p, const float *w, const double *x,
                          uint32_t count)
{
	double max = 0, sum = 0;
	for (uint32_t i = 0; i < count; i++) {
		max = fmax(max, fabs(x[i]));
		sum += fabs((double)w[i]);
	}
	return sum * (max < 1.01e-30 ? max : max * p->group_step);
}

static double product_row(const struct precision *p, const struct matrix *w, uint32_t row,
                          const double *x, double *ret_bound)
{
	const float *v = w->value + (size_t)row * w->k;
	bool rounded = p->bf16_activations &&
	               (w->type == KERN_BF16 || (w->type == KERN_E4M3 && p->bf16_mma));
	double sum = 0, size = 0, largest = 0, error = 0;
	for (uint32_t i = 0; i < w->k; i++) {
		double part = (double)v[i] * (rounded ? (double)format_round(KERN_BF16, x[i]) : x[i]);
		sum += part;
		size += fabs(part);
		largest = fmax(largest, fabs(part));
	}
	if (quantised(w->type) && p->group_step > 0)
		for (uint32_t i = 0; i < w->k; i += GROUP)
			error += group_error(p, v + i, x + i, GROUP);
	/* denormals have no 24 bits; with rounded activations they may be zeros */
	*ret_bound = 0x1p-24 * (3 * size + sqrt(w->k) * (2 * largest + fabs(sum))) + error +
	             w->k * (rounded ? 0x1p-126 : 0x1p-149);
	return sum;
}

void ref_product(const struct precision *p, const struct matrix *w, const double *x, double *value,
                 double *bound)
{
	for (uint32_t i = 0; i < w->n; i++)
		value[i] = product_row(p, w, i, x, &bound[i]);
}

double *ref_doubles(const float *x, uint32_t n)
{
	double *d = conform_alloc(n, sizeof *d);
	for (uint32_t i = 0; i < n; i++)
		d[i] = (double)x[i];
	return d;
}

double ref_act(enum kern_act act, double x)
{
	/* (1 + tanh t) / 2 is 1 / (1 + exp(-2 t)), which keeps its digits where tanh is near -1 */
	x = act == KERN_SWIGLU_CLAMPED && x > 7 ? 7 : x;
	double z = act == KERN_SILU ? x
	           : act == KERN_SWIGLU_CLAMPED
	               ? 1.702 * x
	               : 2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x);
	return x / (1 + exp(-z));
}

double ref_up(enum kern_act act, double x)
{
	return act != KERN_SWIGLU_CLAMPED ? x : (x > 7 ? 7 : x < -7 ? -7 : x) + 1;
}

/* At least |d act / dx| around x. */
static double act_slope(enum kern_act act, double x)
{
	double h = 1e-3 * (1 + fabs(x));
	return fabs(ref_act(act, x + h) - ref_act(act, x - h)) / (2 * h) + 0.01;
}

/* About six roundings, and those of the exponent: z is rounded to u |z|, which is the relative
 * error of e^z. Below e^-87 float32 has no normal numbers. GELU as it is defined adds 1 to a
 * tanh near -1, which leaves an error of half a unit of 1. What gate and up are off by goes
 * through the activation's slope. */
void ref_act_mul(enum kern_act act, double gate, double gate_bound, double up, double up_bound,
                 double *value, double *bound)
{
	double a = ref_act(act, gate), v = ref_up(act, up), g = fabs(gate);
	double z = act == KERN_SILU             ? g
	           : act == KERN_SWIGLU_CLAMPED ? 1.702 * g
	                                        : 1.6 * g * (1 + 0.0447 * g * g);
	*value = a * v;
	*bound = (6 + (gate < 0 ? 2.5 * fmin(z, 90) : 0)) * 0x1p-24 * fabs(a * v) +
	         ((gate < -8 || gate_bound > 0) && isfinite(gate) ? 1e-36 * fabs(gate * v) : 0);
	*bound += act == KERN_GELU_TANH && gate < 0 ? 0x1p-24 * fabs(gate * v) : 0;
	/* the clamped one makes something of infinities */
	*bound += gate_bound > 0 && isfinite(gate) ? fabs(v) * act_slope(act, gate) * gate_bound : 0;
	*bound += up_bound > 0 && isfinite(up)
	              ? (fabs(a) + (isfinite(gate) ? gate_bound : 0)) * up_bound
	              : 0;
	*bound += gate_bound > 0 || up_bound > 0 ? 0x1p-126 : 0x1p-148;
}

/* --- KV ------------------------------------------------------------------ */

size_t ref_kv_at(const struct job *j, uint32_t seq, uint32_t position, uint32_t head, bool is_v,
                 size_t *ret_scale)
{
	const struct kern_kv_layer *kv = &j->kv;
	size_t elements = kern_dtype_bytes(kv->dtype, (size_t)kv->block_tokens * kv->head_dim);
	size_t plane = elements + (kv->dtype == KERN_I8 || kv->dtype == KERN_F8
	                               ? 4 * (size_t)kv->block_tokens
	                               : 0);
	size_t base = j->world.table[seq][position / kv->block_tokens] * kv->block_stride_bytes +
	              plane * (kv->latent ? head : 2 * (size_t)head + is_v);
	uint32_t at = position % kv->block_tokens;
	*ret_scale = base + elements + 4 * (size_t)at;
	return base + kern_dtype_bytes(kv->dtype, (size_t)at * kv->head_dim);
}

void ref_kv(const struct job *j, const unsigned char *pool, uint32_t seq, uint32_t position,
            uint32_t head, bool is_v, double *out)
{
	size_t scale_at, at = ref_kv_at(j, seq, position, head, is_v && !j->kv.latent, &scale_at);
	float scale = 1;
	if (j->kv.dtype == KERN_I8 || j->kv.dtype == KERN_F8)
		memcpy(&scale, pool + scale_at, 4);
	for (uint32_t d = 0; d < j->kv.head_dim; d++)
		out[d] = (double)scale * format_value(j->kv.dtype, pool + at, d);
}
