/* test_kernels_experts.c - mixture of experts and products for single heads, of every CPU variant that this machine runs: routing against a plain
 * statement of its rules, products against sums in double, the fast variants against each other bit for bit, and each against itself with rows
 * alone, in other batches, and with other numbers of threads; and attention over a latent against its formula. */
#include "kernels_rig.h"

static const char *const all_variants[] = { "reference", "plain", "avx2", "avx512" };

/* --- route -------------------------------------------------------------------------------------------------------------- */

static const struct { const char *name; struct kern_router r; bool biased; } routers[] = {
	{ "top 2 of 8", { KERN_SCORE_SOFTMAX, 8, 2, 0, 0, NULL, 1, 0, 0, 1 }, false },
	{ "top 2 of 8, as they are", { KERN_SCORE_SOFTMAX, 8, 2, 1, 1, NULL, 0, 0, 0, 1 }, false },
	{ "all of 3", { KERN_SCORE_SOFTMAX, 3, 3, 0, 0, NULL, 1, 0, 0, 1 }, false },
	{ "one of 1", { KERN_SCORE_SIGMOID, 1, 1, 0, 0, NULL, 1, 0, 1e-20f, 2 }, true },
	{ "least sum", { KERN_SCORE_SOFTMAX, 16, 3, 0, 0, NULL, 1, 0.9f, 0, 1 }, true },
	{ "2 of 3 groups", { KERN_SCORE_SIGMOID, 12, 3, 3, 2, NULL, 1, 0, 1e-20f, 2.5f }, true },
	{ "1 of 4 groups", { KERN_SCORE_SIGMOID, 12, 2, 4, 1, NULL, 0, 0, 0, 1.5f }, true },
	{ "4 of 8 groups", { KERN_SCORE_SIGMOID, 256, 8, 8, 4, NULL, 1, 0, 1e-20f, 2.5f }, true },
};

/* Whether e may be chosen: fewer than groups_used groups are worth more than its own, or as much and before it. */
static bool group_open(const struct kern_router *r, const float *c, uint32_t e)
{
	uint32_t size = r->groups > 1 ? r->experts / r->groups : r->experts, before = 0;
	float own = 0;
	if (r->groups < 2)
		return true;
	for (uint32_t pass = 0; pass < 2; pass++)
		for (uint32_t g = 0; g < r->groups; g++) {
			float a = -INFINITY, b = -INFINITY;
			for (uint32_t i = g * size; i < (g + 1) * size; i++)
				if (c[i] > a)
					b = a, a = c[i];
				else if (c[i] > b)
					b = c[i];
			if (!pass && g == e / size)
				own = a + b;
			before += pass && (a + b > own || (a + b >= own && g < e / size));
		}
	return before < r->groups_used;
}

static void route_check(const char *name, const struct kern_router *r, const float *logits, const uint32_t *ids, const float *weights)
{
	float s[256], c[256];
	double sum = 0, chosen = 0;
	for (uint32_t e = 0; e < r->experts; e++)
		sum += exp((double)logits[e]);
	for (uint32_t e = 0; e < r->experts; e++) {
		s[e] = (float)(r->score == KERN_SCORE_SOFTMAX ? exp((double)logits[e]) / sum : 1 / (1 + exp(-(double)logits[e])));
		c[e] = r->bias ? s[e] + r->bias[e] : s[e];
	}
	for (uint32_t i = 0; i < r->used; i++) {
		/* the number of experts that come before it; those that are as good within rounding may stand either way */
		uint32_t surely = 0, maybe = 0;
		for (uint32_t e = 0; e < r->experts; e++) {
			if (!group_open(r, c, e) || e == ids[i])
				continue;
			surely += c[e] > c[ids[i]] + 1e-6f;
			maybe += c[e] > c[ids[i]] - 1e-6f;
		}
		EXPECT(group_open(r, c, ids[i]) && surely <= i && i <= maybe, "%s: choice %u is expert %u, %u to %u are better", name, i, ids[i], surely, maybe);
		chosen += (double)s[ids[i]];
	}
	double divisor = r->normalise ? fmax(chosen, (double)r->norm_min) + (double)r->norm_add : 1;
	for (uint32_t i = 0; i < r->used; i++) {
		double want = (double)s[ids[i]] / divisor * (double)r->scale;
		EXPECT(fabs((double)weights[i] - want) <= 1e-6 * want, "%s: weight %u is %g, want %g", name, i, (double)weights[i], want);
	}
}

START_TEST(route_follows_the_rules)
{
	enum { ROWS = 70 };
	struct dev dev;
	for (size_t z = 0; z < LEN(routers); z++) {
		struct kern_router r = routers[z].r;
		float *logits = rand_floats((size_t)ROWS * r.experts, 3), *bias = rand_floats(r.experts, 0.3f), *weights[2];
		uint32_t *ids[2];
		r.bias = routers[z].biased ? bias : NULL;
		for (unsigned t = 0; t < 2; t++) {       /* all at once by two threads, one by one by one */
			ids[t] = calloc((size_t)ROWS * r.used, sizeof **ids);
			weights[t] = calloc((size_t)ROWS * r.used, sizeof **weights);
			ck_assert(dev_try(&dev, NULL, 2 - t));
			for (uint32_t row = 0, step = t ? 1 : ROWS; row < ROWS; row += step)
				ck_assert_int_eq(OPS->route(dev.s, ids[t] + row * r.used, weights[t] + row * r.used, logits + row * r.experts, &r, step), 0);
			dev_close(&dev);
		}
		for (uint32_t row = 0; row < ROWS; row++)
			route_check(routers[z].name, &r, logits + row * r.experts, ids[0] + row * r.used, weights[0] + row * r.used);
		ck_assert_msg(!memcmp(ids[0], ids[1], ROWS * r.used * sizeof **ids), "%s: rows alone choose others", routers[z].name);
		same_bits(weights[0], weights[1], (size_t)ROWS * r.used, routers[z].name);
		for (unsigned t = 0; t < 2; t++)
			free(ids[t]), free(weights[t]);
		free(logits), free(bias);
	}
}
END_TEST

START_TEST(route_of_equals_takes_the_lowest)
{
	static const struct { float logits[8], bias[8]; uint32_t groups, groups_used, want[3]; } cases[] = {
		{ { 0 }, { 0 }, 0, 0, { 0, 1, 2 } },
		{ { 0, 0, 1, 0, 1, 0, 0, 1 }, { 0 }, 0, 0, { 2, 4, 7 } },
		{ { 0 }, { 0, 0, 0, 0, 0, 0, 0, 1 }, 0, 0, { 7, 0, 1 } },
		{ { 0 }, { 0 }, 4, 2, { 0, 1, 2 } },
		{ { 0 }, { 0, 0, 0, 0, 0, 1, 0, 1 }, 4, 2, { 5, 7, 4 } },
		{ { 0, 0, 0, 0, 0, 0, NAN, NAN }, { 0 }, 0, 0, { 0, 1, 2 } },
		{ { NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN }, { 0 }, 4, 2, { 0, 1, 2 } },
		{ { -INFINITY, -1e30f, 1e30f, INFINITY, 100, -100, 0, 0 }, { 0 }, 0, 0, { 2, 3, 4 } },
	};
	struct dev dev;
	ck_assert(dev_try(&dev, NULL, 1));
	for (size_t i = 0; i < LEN(cases); i++) {
		struct kern_router r = { KERN_SCORE_SIGMOID, 8, 3, cases[i].groups, cases[i].groups_used, cases[i].bias, 1, 0, 0, 1 };
		uint32_t ids[3];
		float weights[3];
		ck_assert_int_eq(OPS->route(dev.s, ids, weights, cases[i].logits, &r, 1), 0);
		ck_assert_msg(!memcmp(ids, cases[i].want, sizeof ids), "case %zu: experts %u, %u, %u, want %u, %u, %u", i, ids[0], ids[1], ids[2],
		              cases[i].want[0], cases[i].want[1], cases[i].want[2]);
	}
	dev_close(&dev);
}
END_TEST

START_TEST(arguments_that_cannot_be)
{
	static const struct kern_router bad[] = {
		{ KERN_SCORE_SOFTMAX, 0, 1, 0, 0, NULL, 0, 0, 0, 1 },   { KERN_SCORE_SOFTMAX, 1025, 1, 0, 0, NULL, 0, 0, 0, 1 },
		{ KERN_SCORE_SOFTMAX, 8, 0, 0, 0, NULL, 0, 0, 0, 1 },   { KERN_SCORE_SOFTMAX, 8, 9, 0, 0, NULL, 0, 0, 0, 1 },
		{ KERN_SCORE_SOFTMAX, 128, 65, 0, 0, NULL, 0, 0, 0, 1 }, { KERN_SCORE_SOFTMAX, 8, 2, 3, 2, NULL, 0, 0, 0, 1 },
		{ KERN_SCORE_SOFTMAX, 8, 2, 8, 4, NULL, 0, 0, 0, 1 },   { KERN_SCORE_SOFTMAX, 8, 5, 4, 2, NULL, 0, 0, 0, 1 },
		{ KERN_SCORE_SOFTMAX, 8, 2, 4, 0, NULL, 0, 0, 0, 1 },   { KERN_SCORE_SOFTMAX, 8, 2, 4, 5, NULL, 0, 0, 0, 1 },
	};
	struct dev dev;
	float x[64] = { 0 };
	uint32_t ids[64] = { 5 };
	ck_assert(dev_try(&dev, NULL, 1));
	for (size_t i = 0; i < LEN(bad); i++)
		ck_assert_msg(OPS->route(dev.s, ids, x, x, &bad[i], 1) == KERN_EINVAL, "router %zu was taken", i);
	struct kern_experts e = { .experts = 5 };
	ck_assert_int_eq(OPS->experts_act(dev.s, x, x, ids, 1, &e, KERN_SILU, 1), KERN_EINVAL);
	ck_assert_ptr_nonnull(strstr(OPS->last_error(dev.d), "expert 5, there are 5"));
	ck_assert_int_eq(OPS->experts_down(dev.s, x, 1, x, ids, x, 1, &e, 0, 1), KERN_EINVAL);
	ck_assert_int_eq(OPS->experts_down(dev.s, x, 1, x, ids, x, 1, &e, 0, MAX_ROWS + 1), KERN_EINVAL);
	dev_close(&dev);
}
END_TEST

/* --- experts ------------------------------------------------------------------------------------------------------------ */

static const struct expert_case { enum kern_dtype type; uint32_t experts, used, hidden, ffn, rows; int clamped; } expert_cases[] = {
	{ KERN_F32, 1, 1, 1, 1, 1, 0 },   { KERN_BF16, 8, 2, 64, 48, 37, 0 }, { KERN_BF16, 12, 3, 33, 17, 70, 0 },
	{ KERN_Q8_0, 6, 4, 96, 64, 21, 0 }, { KERN_F32, 40, 8, 20, 24, 3, 0 }, { KERN_Q4_0, 5, 2, 64, 160, 130, 0 },
	{ KERN_BF16, 8, 2, 64, 48, 37, 1 }, { KERN_MXFP4, 8, 3, 64, 96, 19, 1 }, { KERN_F32, 5, 4, 20, 24, 1, 1 },   /* biases as well */
};

struct expert_data { unsigned char *w[3][40]; float *bias[3], *x, *weights, *base; uint32_t *ids; };

static struct expert_data expert_inputs(const struct expert_case *c)
{
	struct expert_data d;
	size_t pairs = (size_t)c->rows * c->used;
	for (uint32_t e = 0; e < c->experts; e++)
		for (int m = 0; m < 3; m++)
			d.w[m][e] = rand_weight(c->type, m == 2 ? c->hidden : c->ffn, m == 2 ? c->ffn : c->hidden);
	for (int m = 0; m < 3; m++)
		d.bias[m] = rand_floats((size_t)c->experts * (m == 2 ? c->hidden : c->ffn), m == 2 ? 1 : 9);
	d.x = rand_floats((size_t)c->rows * c->hidden, 1);
	d.base = rand_floats((size_t)c->rows * c->hidden, 1);
	d.weights = rand_floats(pairs, 1);
	d.ids = malloc(pairs * sizeof *d.ids);
	for (size_t i = 0; i < pairs; i++)       /* distinct in a row */
		d.ids[i] = i % c->used ? (d.ids[i - 1] + 1) % c->experts : rand_bits() % c->experts;
	return d;
}

static void expert_free(const struct expert_case *c, struct expert_data *d)
{
	for (uint32_t e = 0; e < c->experts; e++)
		for (int m = 0; m < 3; m++)
			free(d->w[m][e]);
	free(d->bias[0]), free(d->bias[1]), free(d->bias[2]);
	free(d->x), free(d->weights), free(d->base), free(d->ids);
}

/* `step` rows a call; y has a leading dimension of hidden + 3. */
static float *expert_run(struct dev *dev, const struct expert_case *c, const struct expert_data *d, int add, uint32_t step)
{
	struct kern_weight *w[3][40];
	size_t ld = c->hidden + 3;
	float *y = calloc(c->rows * ld, sizeof *y), *act = malloc((size_t)c->rows * c->used * c->ffn * sizeof *act);
	for (uint32_t e = 0; e < c->experts; e++)
		for (int m = 0; m < 3; m++)
			w[m][e] = weight(dev, c->type, m == 2 ? c->hidden : c->ffn, m == 2 ? c->ffn : c->hidden, d->w[m][e]);
	struct kern_experts set = { .experts = c->experts, .gate = w[0], .up = w[1], .down = w[2] };
	if (c->clamped)
		set.gate_bias = d->bias[0], set.up_bias = d->bias[1], set.down_bias = d->bias[2];
	for (uint32_t r = 0; r < c->rows; r++)
		memcpy(y + r * ld, d->base + (size_t)r * c->hidden, c->hidden * sizeof *y);
	for (uint32_t r = 0; r < c->rows; r += step) {
		uint32_t n = c->rows - r < step ? c->rows - r : step;
		size_t pair = (size_t)r * c->used;
		ck_assert_int_eq(OPS->experts_act(dev->s, act + pair * c->ffn, d->x + (size_t)r * c->hidden, d->ids + pair, c->used, &set,
		                                   c->clamped ? KERN_SWIGLU_CLAMPED : KERN_SILU, n), 0);
		ck_assert_int_eq(OPS->experts_down(dev->s, y + r * ld, ld, act + pair * c->ffn, d->ids + pair, d->weights + pair, c->used, &set, add, n), 0);
	}
	for (uint32_t e = 0; e < c->experts; e++)
		for (int m = 0; m < 3; m++)
			OPS->weight_destroy(dev->d, &w[m][e]);
	free(act);
	return y;
}

/* y = W x in double, from the values that the file's rows stand for. */
static void product(double *y, enum kern_dtype type, const unsigned char *data, uint32_t n, uint32_t k, const double *x)
{
	struct dev ref;
	float *row = malloc(k * sizeof *row);
	ck_assert(dev_try(&ref, "reference", 1));
	struct kern_weight *w = weight(&ref, type, n, k, data);
	for (uint32_t i = 0; i < n; i++) {
		OPS->embed(ref.s, row, w, &i, 1);
		y[i] = 0;
		for (uint32_t j = 0; j < k; j++)
			y[i] += (double)row[j] * x[j];
	}
	OPS->weight_destroy(ref.d, &w);
	dev_close(&ref);
	free(row);
}

/* What the formula gives for one row. */
static void expert_formula(const struct expert_case *c, const struct expert_data *d, uint32_t r, int add, double *y)
{
	double *x = malloc((c->hidden + 3 * c->ffn) * sizeof *x), *gate = x + c->hidden, *up = gate + c->ffn, *act = up + c->ffn, *out = malloc(c->hidden * sizeof *out);
	for (uint32_t i = 0; i < c->hidden; i++) {
		x[i] = (double)d->x[(size_t)r * c->hidden + i];
		y[i] = add ? (double)d->base[(size_t)r * c->hidden + i] : 0;
	}
	for (uint32_t j = 0; j < c->used; j++) {
		uint32_t e = d->ids[(size_t)r * c->used + j];
		product(gate, c->type, d->w[0][e], c->ffn, c->hidden, x);
		product(up, c->type, d->w[1][e], c->ffn, c->hidden, x);
		for (uint32_t i = 0; i < c->ffn; i++) {
			double g = gate[i] + (double)d->bias[0][(size_t)e * c->ffn + i], u = up[i] + (double)d->bias[1][(size_t)e * c->ffn + i];
			if (c->clamped)
				act[i] = fmin(g, 7) / (1 + exp(-1.702 * fmin(g, 7))) * (fmax(-7, fmin(u, 7)) + 1);
			else
				act[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
		}
		product(out, c->type, d->w[2][e], c->hidden, c->ffn, act);
		for (uint32_t i = 0; i < c->hidden && c->clamped; i++)
			out[i] += (double)d->bias[2][(size_t)e * c->hidden + i];
		for (uint32_t i = 0; i < c->hidden; i++)
			y[i] += (double)d->weights[(size_t)r * c->used + j] * out[i];
	}
	free(x), free(out);
}

START_TEST(experts_near_formula_and_same_bits)
{
	static const struct { const char *variant; unsigned threads; uint32_t step; } runs[] = {
		{ "plain", 2, 1 }, { "avx2", 1, 1000 }, { "avx2", 2, 5 }, { "avx512", 2, 1 }, { "avx512", 1, 7 }, { "avx512", 3, 1000 },
	};
	for (size_t z = 0; z < 2 * LEN(expert_cases); z++) {
		const struct expert_case *c = &expert_cases[z / 2];
		struct expert_data d = expert_inputs(c);
		size_t ld = c->hidden + 3;
		struct dev dev;
		int add = z % 2;
		ck_assert(dev_try(&dev, "plain", 1));
		float *want = expert_run(&dev, c, &d, add, 1000);
		dev_close(&dev);
		ck_assert(dev_try(&dev, "reference", 2));
		float *ref = expert_run(&dev, c, &d, add, 3);
		dev_close(&dev);
		double *y = malloc(c->hidden * sizeof *y);
		for (uint32_t r = 0; r < c->rows; r += 1 + c->rows / 4) {
			double size = 1;
			expert_formula(c, &d, r, add, y);
			for (uint32_t i = 0; i < c->hidden; i++)
				size = fmax(size, fabs(y[i]));
			/* sums of some dozen to hundred products, twice; the fast variants round activations of quantised products to 1 in 32638 */
			for (uint32_t i = 0; i < c->hidden; i++)
				EXPECT(fabs((double)ref[r * ld + i] - y[i]) <= 1e-5 * size && fabs((double)want[r * ld + i] - y[i]) <= (c->type >= KERN_Q8_0 ? 1e-3 : 1e-5) * size,
				       "case %zu, row %u: element %u is %g (%g by the reference), want %g", z, r, i, (double)want[r * ld + i], (double)ref[r * ld + i], y[i]);
		}
		for (size_t v = 0; v < LEN(runs); v++) {
			if (!dev_try(&dev, runs[v].variant, runs[v].threads))
				continue;
			float *got = expert_run(&dev, c, &d, add, runs[v].step);
			same_bits(got, want, c->rows * ld, LABEL("case %zu: %s, %u threads, %u rows a call", z, runs[v].variant, runs[v].threads, runs[v].step));
			free(got);
			dev_close(&dev);
		}
		free(want), free(ref), free(y);
		expert_free(c, &d);
	}
}
END_TEST

/* --- single heads --------------------------------------------------------------------------------------------------------- */

START_TEST(heads_near_formula_and_same_bits)
{
	static const struct { uint32_t heads, n, k, tail, rows; } cases[] = { { 1, 1, 1, 0, 1 }, { 4, 24, 16, 8, 21 }, { 3, 20, 24, 0, 70 }, { 5, 70, 33, 4, 2 } };
	enum { HEADS = 5 };
	for (size_t z = 0; z < LEN(cases); z++) {
		uint32_t heads = cases[z].heads, n = cases[z].n, k = cases[z].k, tail = cases[z].tail, rows = cases[z].rows;
		size_t ldx = heads * (k + tail) + 5, ldy = heads * (n + tail) + 3;
		unsigned char *data[HEADS];
		float *x = rand_floats(rows * ldx, 1), *want = NULL;
		for (uint32_t h = 0; h < heads; h++)
			data[h] = rand_weight(KERN_BF16, n, k);
		for (size_t v = 0; v < 2 * LEN(all_variants); v++) {
			struct dev dev;
			struct kern_weight *w[HEADS];
			uint32_t step = v % 2 ? 1 : rows;
			if (!dev_try(&dev, all_variants[v / 2], 2 - v % 2))
				continue;
			float *y = calloc(rows * ldy, sizeof *y);
			for (uint32_t h = 0; h < heads; h++)
				w[h] = weight(&dev, KERN_BF16, n, k, data[h]);
			for (uint32_t r = 0; r < rows; r += step)
				ck_assert_int_eq(OPS->heads_matmul(dev.s, y + r * ldy, ldy, x + r * ldx, ldx, w, heads, tail, step), 0);
			for (uint32_t h = 0; h < heads; h++)
				OPS->weight_destroy(dev.d, &w[h]);
			dev_close(&dev);
			if (v / 2 && want)
				same_bits(y, want, rows * ldy, LABEL("case %zu, %s", z, all_variants[v / 2]));
			for (uint32_t i = 0; i < rows * ldy && !want; i++) {
				uint32_t r = i / (uint32_t)ldy, h = (uint32_t)(i % ldy) / (n + tail), c = (uint32_t)(i % ldy) % (n + tail);
				if (h >= heads)
					continue;
				const float *in = x + r * ldx + h * (k + tail);
				double sum = c < n ? 0 : (double)in[k + c - n];
				for (uint32_t j = 0; c < n && j < k; j++) {
					uint32_t bits = (uint32_t)data[h][2 * (c * k + j)] << 16 | (uint32_t)data[h][2 * (c * k + j) + 1] << 24;
					float f;
					memcpy(&f, &bits, sizeof f);
					sum += (double)f * (double)in[j];
				}
				EXPECT(fabs((double)y[i] - sum) <= 1e-5, "case %zu, %s: row %u, head %u, element %u is %g, want %g", z, all_variants[v / 2], r, h, c, (double)y[i], sum);
			}
			if (v / 2 && !want)
				want = y;              /* of the first fast variant; the reference adds up in another order */
			else
				free(y);
		}
		for (uint32_t h = 0; h < heads; h++)
			free(data[h]);
		free(x), free(want);
	}
}
END_TEST

/* Keys whose first elements are the values, against the formula; what a token's bytes are, and that nothing else is written. */
START_TEST(latent_is_key_and_value)
{
	enum { HEADS = 3, DIM = 12, LATENT = 8, TOKENS = 21, BLOCK = 4, BLOCKS = 6 };
	for (size_t v = 0; v < LEN(all_variants); v++) {
		static unsigned char pool[BLOCKS + 1][BLOCK * DIM * 4];
		struct kern_kv_layer kv = { pool, sizeof pool[0], 1, DIM, BLOCK, KERN_F32, 0, LATENT };
		float out[TOKENS * HEADS * LATENT];
		uint32_t table[BLOCKS] = { 5, 0, 3, 1, 4, 2 };
		struct kern_span span = { 0, TOKENS, 0, 0 };
		struct kern_batch b = { .rows = TOKENS, .spans = 1, .span = &span, .span_host = &span, .block_table = table, .table_len = BLOCKS };
		struct dev dev;
		if (!dev_try(&dev, all_variants[v], 2))
			continue;
		float *k = rand_floats(TOKENS * DIM, 1), *q = rand_floats(TOKENS * HEADS * DIM, 1);
		memset(pool, 0xa5, sizeof pool);
		ck_assert_uint_eq(kern_kv_planes(&kv) * kern_kv_plane_bytes(&kv), sizeof pool[0]);
		ck_assert_int_eq(OPS->kv_write(dev.s, &kv, k, NULL, DIM, &b), 0);
		for (uint32_t t = 0; t < TOKENS; t++)
			ck_assert_int_eq(memcmp(pool[table[t / BLOCK]] + t % BLOCK * DIM * 4, k + t * DIM, DIM * 4), 0);
		for (size_t i = 0; i < sizeof pool[0]; i++)
			ck_assert_int_eq(pool[BLOCKS][i], 0xa5);
		ck_assert_int_eq(OPS->attention(dev.s, out, q, HEADS * DIM, HEADS, &kv, 0.5f, 0, NULL, &b), 0);
		for (uint32_t i = 0; i < TOKENS * HEADS; i++) {
			double sum = 0, acc[LATENT] = { 0 };
			for (uint32_t t = 0; t <= i / HEADS; t++) {
				double s = 0;
				for (uint32_t d = 0; d < DIM; d++)
					s += (double)q[i * DIM + d] * (double)k[t * DIM + d];
				sum += exp(s / 2);
				for (uint32_t d = 0; d < LATENT; d++)
					acc[d] += exp(s / 2) * (double)k[t * DIM + d];
			}
			for (uint32_t d = 0; d < LATENT; d++)
				EXPECT(fabs((double)out[i * LATENT + d] - acc[d] / sum) <= 1e-6, "%s: row and head %u: element %u is %g, want %g", all_variants[v], i, d,
				       (double)out[i * LATENT + d], acc[d] / sum);
		}
		dev_close(&dev);
		free(k), free(q);
	}
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		route_follows_the_rules, route_of_equals_takes_the_lowest, arguments_that_cannot_be, experts_near_formula_and_same_bits,
		heads_near_formula_and_same_bits, latent_is_key_and_value,
	};
	return run_suite("kernels_experts", tests, LEN(tests));
}
