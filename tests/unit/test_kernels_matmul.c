/* test_kernels_matmul.c - products with weights, and rows of them, of every CPU variant that this machine runs: against the reference within
 * a stated bound, the fast variants against each other bit for bit, and each against itself with other batches and numbers of threads. */
#include "kernels_rig.h"

/* --- matmul ------------------------------------------------------------------------------------------------------------------ */

static const struct { enum kern_dtype type; uint32_t n, k; } shapes[] = {
	{ KERN_F32, 1, 1 }, { KERN_F32, 70, 37 }, { KERN_F32, 192, 96 },
	{ KERN_F16, 65, 33 }, { KERN_F16, 130, 64 },
	{ KERN_BF16, 63, 31 }, { KERN_BF16, 128, 576 }, { KERN_BF16, 7, 1 },
	{ KERN_Q8_0, 1, 32 }, { KERN_Q8_0, 50, 96 }, { KERN_Q8_0, 96, 576 },
	{ KERN_Q4_0, 17, 32 }, { KERN_Q4_0, 64, 576 }, { KERN_Q4_0, 33, 1536 },
	{ KERN_Q4_1, 15, 32 }, { KERN_Q4_1, 80, 576 }, { KERN_Q4_1, 47, 1536 },
	{ KERN_Q6_K, 16, 256 }, { KERN_Q6_K, 37, 768 },
	{ KERN_Q5_0, 17, 32 }, { KERN_Q5_0, 64, 576 }, { KERN_Q5_0, 33, 1056 },
	{ KERN_Q5_1, 15, 32 }, { KERN_Q5_1, 47, 576 }, { KERN_Q5_1, 33, 1056 },
	{ KERN_Q4_K, 16, 256 }, { KERN_Q4_K, 37, 768 },
	{ KERN_Q5_K, 1, 256 }, { KERN_Q5_K, 35, 768 },
	{ KERN_MXFP4, 17, 32 }, { KERN_MXFP4, 64, 576 }, { KERN_MXFP4, 33, 1056 },
};
static const uint32_t heights[] = { 1, 2, 3, 4, 5, 7, 12, 13, 29, 64 };

enum { LEVELS = 16319 };                /* of an activation: the group's largest magnitude becomes this */

/* What rounding the activations in groups of 32 may change: half a unit of the group's scale for each |w|; and the float sums. */
static float matmul_bound(struct dev *ref, const struct kern_weight *w, enum kern_dtype t, uint32_t row, uint32_t k, const float *x)
{
	float *v = malloc(k * sizeof *v), bound = 0, max = 0;
	OPS->embed(ref->s, v, w, &row, 1);
	for (uint32_t i = 0; i < k; i++) {
		if (t >= KERN_Q8_0 && i % 32 == 0) {
			max = 0;
			for (uint32_t j = i; j < i + 32; j++)
				max = fabsf(x[j]) > max ? fabsf(x[j]) : max;
		}
		bound += fabsf(v[i]) * (max / LEVELS * 0.501f + 1e-6f * fabsf(x[i]));
	}
	free(v);
	return bound + 1e-6f;
}

static void matmul_compare(const char *variant, size_t shape, uint32_t rows)
{
	struct dev ref, dev;
	enum kern_dtype t = shapes[shape].type;
	uint32_t n = shapes[shape].n, k = shapes[shape].k, ld = n + 3;
	if (!dev_try(&dev, variant, 2))
		return;
	ck_assert(dev_try(&ref, "reference", 1));
	unsigned char *data = rand_weight(t, n, k);
	struct kern_weight *w = weight(&dev, t, n, k, data), *w_ref = weight(&ref, t, n, k, data);
	float *x = rand_floats((size_t)rows * k, 3), *bias = rand_floats(n, 1), *y = rand_floats((size_t)rows * ld, 1);
	float *want = malloc((size_t)rows * ld * sizeof *want);
	memcpy(want, y, (size_t)rows * ld * sizeof *y);
	struct kern_product p = { w, bias, y, ld }, p_ref = { w_ref, bias, want, ld };
	ck_assert_int_eq(OPS->matmul(dev.s, x, rows, &p, 1), 0);
	ck_assert_int_eq(OPS->matmul(ref.s, x, rows, &p_ref, 1), 0);
	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t c = 0; c < ld; c++) {
			float bound = c < n ? matmul_bound(&ref, w_ref, t, c, k, x + (size_t)r * k) : 0;
			size_t i = (size_t)r * ld + c;
			EXPECT(fabsf(y[i] - want[i]) <= bound, "%s %s %ux%u, %u rows: (%u, %u) is %g, want %g within %g", variant,
			              kern_dtype_name(t), n, k, rows, r, c, (double)y[i], (double)want[i], (double)bound);
		}
	OPS->weight_destroy(dev.d, &w);
	OPS->weight_destroy(ref.d, &w_ref);
	dev_close(&dev), dev_close(&ref);
	free(data), free(x), free(bias), free(y), free(want);
}

START_TEST(matmul_near_reference)
{
	for (size_t v = 0; v < LEN(fast_variants); v++)
		for (size_t s = 0; s < LEN(shapes); s++)
			for (size_t h = 0; h < LEN(heights); h += h < 7 && shapes[s].k > 600 ? 3 : 1)
				matmul_compare(fast_variants[v], s, heights[h]);
}
END_TEST

/* One call of 5 rows on a variant against sums in double. */
static void matmul_exact(const char *variant, enum kern_dtype type, uint32_t n, uint32_t k, const unsigned char *data, const float *x, const char *what)
{
	enum { ROWS = 5 };
	struct dev dev;
	if (!dev_try(&dev, variant, 1))
		return;
	struct kern_weight *w = weight(&dev, type, n, k, data);
	float *row = malloc(k * sizeof *row), *y = malloc(ROWS * n * sizeof *y);
	struct kern_product p = { w, NULL, y, n };
	ck_assert_int_eq(OPS->matmul(dev.s, x, ROWS, &p, 1), 0);
	for (uint32_t c = 0; c < n; c++) {
		OPS->embed(dev.s, row, w, &c, 1);
		for (uint32_t r = 0; r < ROWS; r++) {
			double want = 0, all = 0;
			for (uint32_t i = 0; i < k; i++) {
				double part = (double)row[i] * (double)x[r * k + i];
				want += part;
				all += fabs(part);
			}
			EXPECT(fabs((double)y[r * n + c] - want) <= 1e-6 * all, "%s %s %ux%u, %s: (%u, %u) is %g, want %g within %g", variant, kern_dtype_name(type),
			       n, k, what, r, c, (double)y[r * n + c], want, 1e-6 * all);
		}
	}
	OPS->weight_destroy(dev.d, &w);
	dev_close(&dev);
	free(row), free(y);
}

/* Activations that are held exactly: what is left is float rounding, so a wrong code, scale or zero point cannot hide. */
START_TEST(matmul_exact_activations)
{
	for (size_t v = 0; v < LEN(fast_variants); v++)
		for (size_t i = 0; i < LEN(shapes); i++) {
			uint32_t n = shapes[i].n, k = shapes[i].k;
			unsigned char *data = rand_weight(shapes[i].type, n, k);
			float *x = malloc(5 * k * sizeof *x);
			for (uint32_t j = 0; j < 5 * k; j++)
				x[j] = j % 32 == j / k ? LEVELS : (float)(rand_bits() % (2 * LEVELS + 1)) - LEVELS;
			matmul_exact(fast_variants[v], shapes[i].type, n, k, data, x, "exact activations");
			free(data), free(x);
		}
}
END_TEST

/* where the codes begin in a block */
static size_t codes_at(enum kern_dtype t)
{
	return t == KERN_Q4_K || t == KERN_Q5_K ? 16 : t == KERN_Q4_1 || t == KERN_Q5_1 ? 4 : t == KERN_Q6_K ? 0 : t == KERN_MXFP4 ? 1 : 2;
}

/* The largest codes times the largest bytes, of either sign: nothing may saturate or wrap. A value's bytes are hi and lo of 128 hi + lo. */
START_TEST(matmul_extremes)
{
	static const enum kern_dtype type[] = { KERN_Q8_0, KERN_Q4_0, KERN_Q4_1, KERN_Q6_K, KERN_Q5_0, KERN_Q5_1, KERN_Q4_K, KERN_Q5_K,
	                                        KERN_MXFP4 };
	static const unsigned char codes[] = { 0x00, 0x7f, 0x80, 0x81, 0xff };
	static const float values[] = { LEVELS, -LEVELS, 126 * 128 + 64, 126 * 128 - 64, -126 * 128 - 64, -126 * 128 + 64, 64, -64 };
	enum { N = 17, K = 256 };
	for (size_t v = 0; v < LEN(fast_variants); v++)
		for (size_t t = 0; t < LEN(type); t++)
			for (size_t c = 0; c < LEN(codes); c++)
				for (size_t a = 0; a < LEN(values); a++) {
					unsigned char *data = rand_weight(type[t], N, K);
					size_t block = kern_dtype_bytes(type[t], kern_dtype_bytes(type[t], 32) ? 32 : 256), from = codes_at(type[t]);
					for (size_t i = 0; i < kern_dtype_bytes(type[t], (size_t)N * K); i++)
						if (type[t] == KERN_Q6_K ? i % block < 192 : i % block >= from)
							data[i] = codes[c];
					float x[5 * K];
					for (size_t i = 0; i < LEN(x); i++)
						x[i] = i % 32 == 3 ? LEVELS : i / K == 4 ? values[(a + i) % LEN(values)] : values[a];
					matmul_exact(fast_variants[v], type[t], N, K, data, x, LABEL("codes %02x, activations %g", codes[c], (double)values[a]));
					free(data);
				}
}
END_TEST

/* of the group below */
static const enum kern_dtype type[] = { KERN_Q4_1, KERN_Q6_K, KERN_F16, KERN_BF16, KERN_Q8_0, KERN_Q4_0, KERN_Q5_0, KERN_Q5_1, KERN_Q4_K, KERN_Q5_K,
                                        KERN_MXFP4 };

/* Products of unlike types over `rows` rows, the rows given one call of `step` rows after the other. */
static float *matmul_group(struct dev *dev, unsigned char *const *data, const float *x, uint32_t rows, uint32_t step)
{
	enum { N = 75, K = 256, COUNT = LEN(type) };
	float *y = calloc((size_t)rows * N * COUNT, sizeof *y);
	struct kern_weight *w[COUNT];
	struct kern_product p[COUNT];
	for (size_t i = 0; i < COUNT; i++)
		w[i] = weight(dev, type[i], N, K, data[i]);
	for (uint32_t r = 0; r < rows; r += step) {
		for (size_t i = 0; i < COUNT; i++)
			p[i] = (struct kern_product){ w[i], NULL, y + (size_t)r * N * COUNT + N * i, N * COUNT };
		ck_assert_int_eq(OPS->matmul(dev->s, x + (size_t)r * K, rows - r < step ? rows - r : step, p, COUNT), 0);
	}
	for (size_t i = 0; i < COUNT; i++)
		OPS->weight_destroy(dev->d, &w[i]);
	return y;
}

START_TEST(matmul_same_bits)
{
	enum { N = 75, K = 256, ROWS = 53 };
	static const struct { const char *variant; unsigned threads; uint32_t step; } runs[] = {
		{ "plain", 2, 1 }, { "plain", 3, 7 }, { "avx2", 1, ROWS }, { "avx2", 2, 1 }, { "avx2", 3, 6 }, { "avx512", 1, ROWS },
		{ "avx512", 2, 1 }, { "avx512", 3, 2 }, { "avx512", 1, 5 }, { "avx512", 2, 12 }, { "avx512", 2, 13 },
	};
	unsigned char *data[LEN(type)];
	for (size_t i = 0; i < LEN(type); i++)
		data[i] = rand_weight(type[i], N, K);
	float *x = rand_floats(ROWS * K, 5);
	for (uint32_t r = 0; r < ROWS; r += 3)          /* outliers, in some rows */
		x[r * K + r % K] = 300, x[r * K + (r * 5 + 32) % K] = -400;
	struct dev dev;
	ck_assert(dev_try(&dev, "plain", 1));
	float *want = matmul_group(&dev, data, x, ROWS, ROWS);
	dev_close(&dev);
	for (size_t i = 0; i < LEN(runs); i++) {
		if (!dev_try(&dev, runs[i].variant, runs[i].threads))
			continue;
		float *got = matmul_group(&dev, data, x, ROWS, runs[i].step);
		same_bits(got, want, ROWS * N * LEN(type), LABEL("%s, %u threads, %u rows a call", runs[i].variant, runs[i].threads, runs[i].step));
		free(got);
		dev_close(&dev);
	}
	for (size_t i = 0; i < LEN(type); i++)
		free(data[i]);
	free(x), free(want);
}
END_TEST

/* What is not a number in one row. For types of the group `type`, types with block scales give NaN,
 * the others a NaN or an infinity. */
static void not_finite_row(struct dev *dev, unsigned char *const *data, const float *x,
                           const float *clean, uint32_t rows, uint32_t bad, const char *what)
{
	enum { N = 75, COUNT = LEN(type) };
	float *y = matmul_group(dev, data, x, rows, rows);
	for (uint32_t r = 0; r < rows; r++)
		for (size_t i = 0; i < COUNT * N; i++) {
			const float *got = y + (size_t)r * COUNT * N + i;
			if (r != bad)
				EXPECT(memcmp(got, clean + (got - y), sizeof *got) == 0,
				       "%s: row %u, which is finite, changed", what, r);
			else if (kern_dtype_bytes(type[i / N], 1))
				EXPECT(!isfinite(*got), "%s, %s: column %zu is %g", what,
				       kern_dtype_name(type[i / N]), i % N, (double)*got);
			else
				EXPECT(strstr(what, "reference") ? !isfinite(*got) : isnan(*got),
				       "%s, %s: column %zu is %g", what,
				       kern_dtype_name(type[i / N]), i % N, (double)*got);
		}
	free(y);
}

/* A row of activations with a NaN or an infinity gives nothing finite, wherever it stands, and does
 * not reach other rows. */
START_TEST(matmul_not_finite)
{
	enum { N = 75, K = 256, ROWS = 13 };
	static const char *const all[] = { "reference", "plain", "avx2", "avx512" };
	static const uint32_t rows[] = { 1, 2, 3, 4, ROWS }, at[] = { 0, 15, 16, 31, 100, K - 1 };
	static const float bad[] = { NAN, -NAN, INFINITY, -INFINITY };
	unsigned char *data[LEN(type)];
	for (size_t i = 0; i < LEN(type); i++)
		data[i] = rand_weight(type[i], N, K);
	float *x = rand_floats(ROWS * K, 5), was;
	for (size_t v = 0; v < 2 * LEN(all); v++) {
		struct dev dev;
		if (!dev_try_as(&dev, all[v / 2], 2, v % 2 ? KERN_BF16 : KERN_F32))
			continue;
		float *clean = matmul_group(&dev, data, x, ROWS, ROWS);
		for (size_t h = 0; h < LEN(rows); h++)
			for (size_t a = 0; a < LEN(at); a++)
				for (size_t b = 0; b < LEN(bad); b++) {
					uint32_t row = (uint32_t)(a + b) % rows[h];
					float *place = x + row * K + at[a];
					was = *place;
					*place = bad[b];
					not_finite_row(&dev, data, x, clean, rows[h], row,
					               LABEL("%s%s, %g at %u of row %u of %u",
					                     all[v / 2], v % 2 ? " bf16" : "",
					                     (double)bad[b], at[a], row, rows[h]));
					*place = was;
				}
		free(clean);
		dev_close(&dev);
	}
	for (size_t i = 0; i < LEN(type); i++)
		free(data[i]);
	free(x);
}
END_TEST

/* A row with one outlier: its steps may show in its own group alone. */
START_TEST(matmul_outliers)
{
	enum { N = 64, K = 576 };
	for (size_t v = 0; v < LEN(fast_variants); v++) {
		struct dev ref, dev;
		if (!dev_try(&dev, fast_variants[v], 1))
			continue;
		ck_assert(dev_try(&ref, "reference", 1));
		unsigned char *data = rand_weight(KERN_Q4_1, N, K);
		struct kern_weight *w = weight(&dev, KERN_Q4_1, N, K, data), *w_ref = weight(&ref, KERN_Q4_1, N, K, data);
		float *x = rand_floats(K, 1), y[N], want[N];
		x[100] = 1000;
		struct kern_product p = { w, NULL, y, N }, p_ref = { w_ref, NULL, want, N };
		ck_assert_int_eq(OPS->matmul(dev.s, x, 1, &p, 1), 0);
		ck_assert_int_eq(OPS->matmul(ref.s, x, 1, &p_ref, 1), 0);
		for (uint32_t c = 0; c < N; c++) {
			float bound = matmul_bound(&ref, w_ref, KERN_Q4_1, c, K, x) + 1e-6f * 1000 * 2;
			EXPECT(fabsf(y[c] - want[c]) <= bound, "%s column %u is %g, want %g within %g", fast_variants[v], c, (double)y[c],
			              (double)want[c], (double)bound);
		}
		OPS->weight_destroy(dev.d, &w);
		OPS->weight_destroy(ref.d, &w_ref);
		dev_close(&dev), dev_close(&ref);
		free(data), free(x);
	}
}
END_TEST

START_TEST(matmul_odd_activations)
{
	/* all zero, and a group so small that its reciprocal overflows, give 0 and not NaN */
	for (size_t v = 0; v < LEN(fast_variants); v++) {
		struct dev dev;
		if (!dev_try(&dev, fast_variants[v], 1))
			continue;
		unsigned char *data = rand_weight(KERN_Q4_1, 16, 64);
		struct kern_weight *w = weight(&dev, KERN_Q4_1, 16, 64, data);
		float x[2 * 64] = { [64] = 1e-42f, [100] = -1e-38f }, y[2 * 16], want[2 * 16] = { 0 };
		struct kern_product p = { w, NULL, y, 16 };
		ck_assert_int_eq(OPS->matmul(dev.s, x, 2, &p, 1), 0);
		near(y, want, 32, 0, fast_variants[v]);
		OPS->weight_destroy(dev.d, &w);
		dev_close(&dev);
		free(data);
	}
}
END_TEST

/* --- activations rounded to bfloat16 ------------------------------------------------------------------------------------------- */

static const char *const bf16_variants[] = { "plain", "avx2", "avx512", "avx512bf16" };      /* the last one by vdpbf16ps, plain and the others by what it does */

/* Against the reference's float32 sums, within what these round: of the same rounded activations; and of the whole ones, each of which moves by up to
 * 2^-8 of itself, half a unit in the last place of 8 bits. */
static void bf16_compare(const char *variant, uint32_t n, uint32_t k, uint32_t rows)
{
	struct dev dev, ref[2];
	if (!dev_try_as(&dev, variant, 2, KERN_BF16))
		return;
	ck_assert(dev_try_as(&ref[0], "reference", 1, KERN_BF16) && dev_try(&ref[1], "reference", 1));
	unsigned char *data = rand_weight(KERN_BF16, n, k);
	float *x = rand_floats((size_t)rows * k, 3), *y = rand_floats((size_t)rows * n, 1), *want = rand_floats((size_t)rows * n, 1), *row = rand_floats(k, 1);
	struct kern_weight *w = weight(&dev, KERN_BF16, n, k, data);
	struct kern_product p = { w, NULL, y, n };
	ck_assert_int_eq(OPS->matmul(dev.s, x, rows, &p, 1), 0);
	for (int i = 0; i < 2; i++) {
		struct kern_weight *w_ref = weight(&ref[i], KERN_BF16, n, k, data);
		struct kern_product p_ref = { w_ref, NULL, want, n };
		ck_assert_int_eq(OPS->matmul(ref[i].s, x, rows, &p_ref, 1), 0);
		for (uint32_t c = 0; c < n; c++) {
			OPS->embed(ref[i].s, row, w_ref, &c, 1);
			for (uint32_t r = 0; r < rows; r++) {
				float bound = 1e-6f, got = y[r * n + c], of = want[r * n + c];
				for (uint32_t j = 0; j < k; j++)
					bound += fabsf(row[j] * x[r * k + j]) * ((i ? 0x1p-8f : 0) + 1e-6f);
				EXPECT(fabsf(got - of) <= bound, "%s %ux%u, %u rows, %s: (%u, %u) is %g, want %g within %g", variant, n, k, rows, i ? "whole" : "rounded",
				       r, c, (double)got, (double)of, (double)bound);
			}
		}
		OPS->weight_destroy(ref[i].d, &w_ref);
		dev_close(&ref[i]);
	}
	OPS->weight_destroy(dev.d, &w);
	dev_close(&dev);
	free(data), free(x), free(y), free(want), free(row);
}

START_TEST(bf16_near_reference)
{
	static const struct { uint32_t n, k; } of[] = { { 1, 1 }, { 63, 31 }, { 130, 64 }, { 128, 577 } };
	for (size_t v = 0; v < LEN(bf16_variants); v++)
		for (size_t i = 0; i < LEN(of); i++)
			for (size_t h = 0; h < LEN(heights); h++)
				bf16_compare(bf16_variants[v], of[i].n, of[i].k, heights[h]);
}
END_TEST

/* One row and column by hand: of each pair of k the second is added first; denormals are zeros, in and out, and only what is below 2^-126 after rounding
 * with 24 bits is flushed. */
START_TEST(bf16_by_hand)
{
	static const struct { float x[4], w[4]; float want; const char *what; } cases[] = {
		{ { 1, 0, -1, 0x1p-30f }, { 1, 0, 1, 1 }, 0, "second first: 1 + 2^-30 - 1" },
		{ { 1, 0, 0x1p-30f, -1 }, { 1, 0, 1, 1 }, 0x1p-30f, "second first: 1 - 1 + 2^-30" },
		{ { 1.00390625f }, { 1 }, 1, "half of an activation's last place goes to the even one" },
		{ { 1.01171875f }, { 1 }, 1.015625f, "and up, where that is the even one" },
		{ { 0x1p100f }, { 0x1p-130f }, 0, "denormal weight" },
		{ { 0x1p-130f }, { 0x1p100f }, 0, "denormal activation" },
		{ { 0x1p-126f, 0x1p-60f }, { 1, 0x1p-70f }, 0x1p-126f, "denormal sum, before it is added to" },
		{ { 0x1p-60f, 0x1p-60f }, { 0x1p-67f, 0x1p-67f }, 0, "two halves of the smallest, each flushed" },
		{ { -0x1p-76f, 1 }, { 0x1p-76f, 0x1p-126f }, 0x1p-126f, "2^-126 - 2^-152 rounds to 2^-126" },
		{ { -0x1p-75f, 1 }, { 0x1p-75f, 0x1p-126f }, 0, "2^-126 - 2^-150 does not, with 24 bits" },
		{ { -0x1.8p-75f, 1 }, { 0x1p-76f, 0x1p-126f }, 0, "2^-126 - 1.5 2^-151 neither" },
		{ { -0x1p-75f, 1 }, { 0x1p-76f, 0x1p-126f }, 0x1p-126f, "2^-126 - 2^-151 is half way, to the even one" },
		{ { 0x1p100f, 0x1p100f }, { 0x1p100f, 0x1p-100f }, INFINITY, "too large" },
	};
	for (size_t v = 0; v < LEN(bf16_variants); v++)
		for (size_t i = 0; i < LEN(cases); i++) {
			struct dev dev;
			float y;
			uint16_t data[4];
			if (!dev_try_as(&dev, bf16_variants[v], 1, KERN_BF16))
				continue;
			for (int j = 0; j < 4; j++)
				memcpy(&data[j], (const unsigned char *)&cases[i].w[j] + 2, 2);
			struct kern_weight *w = weight(&dev, KERN_BF16, 1, 4, (const unsigned char *)data);
			struct kern_product p = { w, NULL, &y, 1 };
			ck_assert_int_eq(OPS->matmul(dev.s, cases[i].x, 1, &p, 1), 0);
			EXPECT(y == cases[i].want, "%s: %s: %a, want %a", bf16_variants[v], cases[i].what, (double)y, (double)cases[i].want);
			OPS->weight_destroy(dev.d, &w);
			dev_close(&dev);
		}
}
END_TEST

/* a number of any size: ordinary, around the smallest that are not denormal, denormal, large, of any exponent, special */
static float any_float(void)
{
	static const float special[] = { 0, -0.0f, 1, -1, 0x1p-126f, -0x1p-126f, 0x1p-133f, 0x1.fep-127f, 0x1.fep127f, -0x1.fep127f };
	uint32_t kind = rand_bits() % 7, u = rand_bits(), exponent = u >> 8;
	exponent = kind == 0 ? 120 + exponent % 8 : kind == 1 ? exponent % 12 : kind == 2 ? 0 : kind == 3 ? 243 + exponent % 12 : kind == 4 ? 60 + exponent % 8 : exponent % 255;
	float f;
	u = (u & 0x80000000) | exponent << 23 | (rand_bits() & 0x7fffff);
	memcpy(&f, &u, 4);
	return kind == 6 ? special[u % LEN(special)] : f;
}

/* y (ROWS, N) by a variant, the rows given `step` rows a call; false if the machine lacks it. With k = 2 numbers of all sizes; else ones whose sums come and go
 * about the smallest that is not denormal. */
enum { BF16_N = 70, BF16_ROWS = 53, BF16_K = 37 };
static bool bf16_product(const char *variant, unsigned threads, uint32_t k, uint32_t step, uint32_t from, float *y)
{
	struct dev dev;
	float x[BF16_ROWS * BF16_K];
	uint16_t data[BF16_N * BF16_K];
	if (!dev_try_as(&dev, variant, threads, KERN_BF16))
		return false;
	seed = from;
	for (uint32_t i = 0; i < BF16_ROWS * k; i++)
		x[i] = k == 2 ? any_float() : rand_unit() * 0x1p-63f;
	for (uint32_t i = 0; i < BF16_N * k; i++) {
		float f = k == 2 ? any_float() : rand_unit() * 0x1p-63f;
		memcpy(&data[i], (unsigned char *)&f + 2, 2);
	}
	struct kern_weight *w = weight(&dev, KERN_BF16, BF16_N, k, (unsigned char *)data);
	for (uint32_t r = 0; r < BF16_ROWS; r += step) {
		struct kern_product p = { w, NULL, y + r * BF16_N, BF16_N };
		ck_assert_int_eq(OPS->matmul(dev.s, x + r * k, BF16_ROWS - r < step ? BF16_ROWS - r : step, &p, 1), 0);
	}
	OPS->weight_destroy(dev.d, &w);
	dev_close(&dev);
	return true;
}

/* Plain C, fused additions in a mode of the processor, and the instruction: the same bits, however rows are put together. A NaN is a NaN. */
START_TEST(bf16_same_bits)
{
	static const struct { const char *variant; unsigned threads; uint32_t step; } runs[] = {
		{ "plain", 2, 1 }, { "avx2", 1, BF16_ROWS }, { "avx2", 2, 1 }, { "avx2", 3, 7 }, { "avx512", 1, BF16_ROWS }, { "avx512", 2, 1 }, { "avx512", 3, 5 },
		{ "avx512bf16", 1, BF16_ROWS }, { "avx512bf16", 2, 1 }, { "avx512bf16", 3, 2 }, { "avx512bf16", 1, 3 }, { "avx512bf16", 2, 16 },
	};
	static float want[BF16_ROWS * BF16_N], got[BF16_ROWS * BF16_N];
	for (uint32_t round = 0; round < 16; round++) {
		uint32_t k = round % 2 ? BF16_K : 2, from = 1 + 77 * round;
		ck_assert(bf16_product("plain", 1, k, BF16_ROWS, from, want));
		for (size_t i = 0; i < LEN(runs); i++) {
			if (!bf16_product(runs[i].variant, runs[i].threads, k, runs[i].step, from, got))
				continue;
			for (size_t j = 0; j < LEN(want); j++)
				got[j] = isnan(got[j]) && isnan(want[j]) ? want[j] : got[j];
			same_bits(got, want, LEN(want), LABEL("round %u: %s, %u threads, %u rows a call", round, runs[i].variant, runs[i].threads, runs[i].step));
		}
	}
}
END_TEST

START_TEST(embed_is_exact)
{
	for (size_t v = 0; v < LEN(fast_variants); v++)
		for (size_t i = 0; i < LEN(shapes); i++) {
			struct dev ref, dev;
			uint32_t n = shapes[i].n, k = shapes[i].k, tokens[] = { n - 1, 0, n / 2, n / 3, n - 1 };
			if (!dev_try(&dev, fast_variants[v], 2))
				continue;
			ck_assert(dev_try(&ref, "reference", 1));
			unsigned char *data = rand_weight(shapes[i].type, n, k);
			struct kern_weight *w = weight(&dev, shapes[i].type, n, k, data), *w_ref = weight(&ref, shapes[i].type, n, k, data);
			float *got = malloc(5 * k * sizeof *got), *want = malloc(5 * k * sizeof *want);
			ck_assert_int_eq(OPS->embed(dev.s, got, w, tokens, 5), 0);
			ck_assert_int_eq(OPS->embed(ref.s, want, w_ref, tokens, 5), 0);
			same_bits(got, want, 5 * k, LABEL("%s %s %ux%u", fast_variants[v], kern_dtype_name(shapes[i].type), n, k));
			OPS->weight_destroy(dev.d, &w);
			OPS->weight_destroy(ref.d, &w_ref);
			dev_close(&dev), dev_close(&ref);
			free(data), free(got), free(want);
		}
}
END_TEST

/* Blocks written by hand, the values by the definition of the format. */
START_TEST(formats_by_hand)
{
	static const struct { enum kern_dtype type; uint32_t k; unsigned char block[210]; uint32_t at; float want; } cases[] = {
		{ KERN_Q8_0, 32, { 0x00, 0x38, [2 + 31] = 0xfd }, 31, -1.5f },                    /* d = 0.5, q = -3 */
		{ KERN_Q4_0, 32, { 0x00, 0x3c, [2 + 5] = 0x2b }, 5, 3 },                          /* low nibble 11 - 8 */
		{ KERN_Q4_0, 32, { 0x00, 0x3c, [2 + 5] = 0x2b }, 21, -6 },                        /* high nibble 2 - 8 */
		{ KERN_MXFP4, 32, { 128, [1 + 5] = 0x2b }, 5, -3 },                               /* 2^1, low nibble 11: -1.5 */
		{ KERN_MXFP4, 32, { 128, [1 + 5] = 0x27 }, 21, 2 },                               /* high nibble 2: 1 */
		{ KERN_MXFP4, 32, { 0, [1 + 5] = 0x27 }, 5, 6 * 0x1p-127f },
		{ KERN_Q4_1, 32, { 0x00, 0x40, 0x00, 0xbc, [4 + 15] = 0x7f }, 15, 29 },           /* d = 2, m = -1, 15 */
		{ KERN_Q4_1, 32, { 0x00, 0x40, 0x00, 0xbc, [4 + 15] = 0x7f }, 31, 13 },
		/* value 128 + 32 * 3 + 7 = 231: high nibble of ql[64 + 32 + 7], bits 6-7 of qh[32 + 7], scale 8 + 6 */
		{ KERN_Q6_K, 256, { [103] = 0x50, [128 + 39] = 0xc0, [192 + 14] = 0xfe, [209] = 0x3c }, 231, -42 },
		{ KERN_Q6_K, 256, { [103] = 0x50, [128 + 39] = 0xc0, [192 + 15] = 0x03, [209] = 0x3c }, 255, -96 },
		{ KERN_Q5_0, 32, { 0x00, 0x3c, [2] = 0x20, [6 + 5] = 0x2b }, 5, 11 },             /* d = 1, bit 5 and low nibble: 27 - 16 */
		{ KERN_Q5_0, 32, { 0x00, 0x3c, [2] = 0x20, [6 + 5] = 0x2b }, 21, -14 },           /* bit 21 is not set */
		{ KERN_Q5_1, 32, { 0x00, 0x40, 0x00, 0xbc, [7] = 0x80, [8 + 15] = 0x7f }, 31, 45 },     /* d = 2, m = -1, bit 31: 23 */
		{ KERN_Q5_1, 32, { 0x00, 0x40, 0x00, 0xbc, [7] = 0x80, [8 + 15] = 0x7f }, 15, 29 },
		/* group 2: byte 4 + 2, offset byte 4 + 6; value 64 + 7 in the low nibble of byte 16 + 32 + 7: 2 * 5 * 11 - 1 * 3 */
		{ KERN_Q4_K, 256, { 0x00, 0x40, 0x00, 0x3c, [6] = 5, [10] = 3, [55] = 0x2b }, 71, 107 },
		/* group 5: low nibbles of byte 4 + 9, high pairs above bytes 4 + 1 and 4 + 5; value 160 + 7: 2 * (16 + 5) * 2 - 1 * (48 + 9) */
		{ KERN_Q4_K, 256, { 0x00, 0x40, 0x00, 0x3c, [5] = 0x40, [9] = 0xc0, [13] = 0x95, [16 + 64 + 7] = 0x2b }, 167, 27 },
		/* the same, the fifth bit of value 7 of group 5: 2 * 21 * 18 - 57 */
		{ KERN_Q5_K, 256, { 0x00, 0x40, 0x00, 0x3c, [5] = 0x40, [9] = 0xc0, [13] = 0x95, [16 + 7] = 0x20, [48 + 64 + 7] = 0x2b }, 167, 699 },
	};
	static const char *const variants[] = { "reference", "plain" };
	for (size_t v = 0; v < LEN(variants); v++)
		for (size_t i = 0; i < LEN(cases); i++) {
			struct dev dev;
			uint32_t token = 0;
			float got[256];
			ck_assert(dev_try(&dev, variants[v], 1));
			struct kern_weight *w = weight(&dev, cases[i].type, 1, cases[i].k, cases[i].block);
			ck_assert_int_eq(OPS->embed(dev.s, got, w, &token, 1), 0);
			ck_assert_msg(got[cases[i].at] == cases[i].want, "%s %s case %zu is %g, want %g", variants[v],
			              kern_dtype_name(cases[i].type), i, (double)got[cases[i].at], (double)cases[i].want);
			OPS->weight_destroy(dev.d, &w);
			dev_close(&dev);
		}
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		formats_by_hand,          embed_is_exact,         matmul_near_reference,
		matmul_exact_activations, matmul_extremes,        matmul_same_bits,
		matmul_not_finite,        matmul_odd_activations, matmul_outliers,
		bf16_near_reference,      bf16_by_hand,           bf16_same_bits,
	};
	return run_suite("kernels_matmul", tests, LEN(tests));
}
