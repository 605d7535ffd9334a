/* fast_rows.h - row operations of the fast variants: norm, rope, activation. Included by each
 * variant's file. */
#ifndef CPU_FAST_ROWS_H
#define CPU_FAST_ROWS_H

#include "kernels/cpu/vec.h"

#define LOG2E 1.44269504088896341f

static void fast_rms_norm(float *y, float *x, const float *a, const float *w, uint32_t dim,
                          float eps)
{
	v16 sum = v_set1(0);
	uint32_t i = 0, whole = dim & ~15u, rest = dim & 15;
	for (; i < whole; i += 16) {
		v16 t = v_load(x + i);
		if (a) {
			t = v_add(t, v_load(a + i));
			v_store(x + i, t);
		}
		sum = v_fma(t, t, sum);
	}
	if (rest) {
		v16 t = v_loadn(x + i, rest);
		if (a) {
			t = v_add(t, v_loadn(a + i, rest));
			v_storen(x + i, t, rest);
		}
		sum = v_fma(t, t, sum);
	}
	float mean = v_hsum(sum) / (float)dim;
	/* NaN, not 0, where squares overflow */
	v16 f = v_set1(1.0f / sqrtf(mean + eps) + (mean - mean));
	for (i = 0; i < whole; i += 16)
		v_store(y + i, v_mul(v_mul(v_load(x + i), f), v_load(w + i)));
	if (rest)
		v_storen(y + i, v_mul(v_mul(v_loadn(x + i, rest), f), v_loadn(w + i, rest)), rest);
}

/* (u, v) -> (u c - v s, v c + u s); one product is rounded, the other is fused into the addition */
static void rope_half(float *u, float *v, const float *c, const float *s, uint32_t pairs)
{
	for (uint32_t i = 0; i < pairs; i += 16) {
		uint32_t n = pairs - i < 16 ? pairs - i : 16;
		v16 a = v_loadn(u + i, n), b = v_loadn(v + i, n), co = v_loadn(c + i, n),
			sn = v_loadn(s + i, n);
		v_storen(u + i, v_fma(a, co, v_mul(v_sub(v_set1(0), b), sn)), n);
		v_storen(v + i, v_fma(b, co, v_mul(a, sn)), n);
	}
}

static void fast_rope(float *x, uint32_t heads, uint32_t head_dim, const struct kern_rope *rope,
                      const float *cos_sin)
{
	uint32_t pairs = rope->dims / 2;
	const float *c = cos_sin, *s = cos_sin + pairs;
	float u[CPU_MAX_HEAD_DIM / 2], v[CPU_MAX_HEAD_DIM / 2];
	for (uint32_t h = 0; h < heads; h++, x += head_dim) {
		if (rope->style == KERN_ROPE_HALF) {
			rope_half(x, x + pairs, c, s, pairs);
			continue;
		}
		for (uint32_t i = 0; i < pairs; i++)
			u[i] = x[2 * i], v[i] = x[2 * i + 1];
		rope_half(u, v, c, s, pairs);
		for (uint32_t i = 0; i < pairs; i++)
			x[2 * i] = u[i], x[2 * i + 1] = v[i];
	}
}

/* g / (1 + exp(-z)): z = g for SiLU, 1.702 g for clamped SwiGLU, 2 sqrt(2/pi) (g + 0.044715 g^3)
 * for GELU's tanh form */
INLINE v16 act(v16 g, v16 up, enum kern_act kind)
{
	if (kind == KERN_SWIGLU_CLAMPED) {
		/* the limit is the first operand: for NaN, min and max return the second */
		g = v_min(v_set1(7), g);
		up = v_add(v_max(v_set1(-7), v_min(v_set1(7), up)), v_set1(1));
	}
	v16 z = kind == KERN_SWIGLU_CLAMPED ? v_mul(g, v_set1(1.702f)) : g;
	if (kind == KERN_GELU_TANH)
		z = v_mul(v_mul(v_set1(1.5957691216057308f), g),
		          v_fma(v_mul(v_set1(0.044715f), g), g, v_set1(1.0f)));
	v16 e = v_exp2(v_mul(z, v_set1(-LOG2E)));
	return v_mul(v_div(g, v_add(v_set1(1.0f), e)), up);
}

static void fast_act_mul(float *y, const float *gate, const float *up, enum kern_act kind,
                         uint32_t dim)
{
	uint32_t i = 0;
	for (; i + 16 <= dim; i += 16)
		v_store(y + i, act(v_load(gate + i), v_load(up + i), kind));
	if (i < dim)
		v_storen(y + i, act(v_loadn(gate + i, dim - i), v_loadn(up + i, dim - i), kind), dim - i);
}

#endif
