/* test_kernels.c - the CPU device, and the row operations of every CPU variant that this machine runs: against the reference within a
 * stated bound, the fast variants against each other bit for bit, and each against itself with other batches and numbers of threads. */
#include "kernels_rig.h"
#include "kernels/own_math.h"

/* --- device ------------------------------------------------------------------------------------------------------------------ */

START_TEST(open_errors)
{
	static const struct { struct kern_config conf; int want; const char *text; } cases[] = {
		{ { .variant = "sse9", .max_rows = 1 }, KERN_ENOTSUP, "sse9" },
		{ { .variant = "plain", .max_rows = 0 }, KERN_EINVAL, "0 rows" },
		{ { .variant = "plain", .max_rows = 1, .activations = KERN_F16 }, KERN_EINVAL, "type f16" },
		{ { .variant = "plain", .max_rows = 1, .threads = 65 }, KERN_EINVAL, "65 threads" },
	};
	for (size_t i = 0; i < LEN(cases); i++) {
		struct kern_device *d = NULL;
		char err[160] = "";
		ck_assert_int_eq(OPS->open(&cases[i].conf, &d, err, sizeof err), cases[i].want);
		ck_assert_msg(strstr(err, cases[i].text) != NULL, "\"%s\" lacks \"%s\"", err, cases[i].text);
		ck_assert_ptr_null(d);
	}
}
END_TEST

START_TEST(argument_errors)
{
	struct dev dev;
	ck_assert(dev_try(&dev, NULL, 1));
	float x[64] = { 0 }, inv[32] = { 0 };
	uint32_t token = 3, table[1] = { 0 };
	int borrows;
	unsigned char *data = rand_weight(KERN_F32, 3, 64);
	struct kern_weight *a = weight(&dev, KERN_F32, 3, 64, data), *b = weight(&dev, KERN_F32, 3, 32, data), *c = NULL;
	struct kern_product p[] = { { a, NULL, x, 3 }, { b, NULL, x, 3 } };
	struct kern_rope rope = { KERN_ROPE_HALF, 66, 1, inv };
	struct kern_span span = { 0, 1, 0, 0 };
	struct kern_batch batch = { .rows = 1, .spans = 1, .span = &span, .span_host = &span, .block_table = table };
	struct kern_kv_layer kv = { x, 0, 2, 6, 16, KERN_F32, 0, 0 }, kv_q8 = { x, 0, 2, 8, 16, KERN_Q8_0, 0, 0 }, kv_ok = { x, 0, 2, 8, 16, KERN_F32, 0, 0 };
	struct kern_kv_layer kv_latent = { x, 0, 2, 8, 16, KERN_F32, 0, 12 };
	const struct { int rc; const char *text; } cases[] = {
		{ OPS->embed(dev.s, x, a, &token, 1), NULL },
		{ OPS->embed(dev.s, x, a, &token, MAX_ROWS + 1), NULL },
		{ OPS->matmul(dev.s, x, MAX_ROWS + 1, p, 1), NULL },
		{ OPS->matmul(dev.s, x, 1, p, 2), NULL },
		{ OPS->rope(dev.s, x, 64, 1, 64, &rope, &token, 1), NULL },
		{ OPS->weight_new(dev.d, KERN_Q8_0, 3, 33, data, &c, &borrows), NULL },
		{ OPS->weight_new(dev.d, KERN_Q6_K, 3, 32, data, &c, &borrows), NULL },
		{ OPS->weight_new(dev.d, KERN_DTYPE_COUNT, 3, 32, data, &c, &borrows), NULL },
		{ OPS->weight_new(dev.d, KERN_I8, 3, 32, data, &c, &borrows), NULL },
		{ OPS->weight_new(dev.d, KERN_F8, 3, 32, data, &c, &borrows), NULL },
		{ OPS->weight_new(dev.d, KERN_F32, 0, 32, data, &c, &borrows), NULL },
		{ OPS->kv_write(dev.s, &kv, x, x, 12, &batch), NULL },
		{ OPS->attention(dev.s, x, x, 64, 2, &kv_q8, 1, 0, NULL, &batch), NULL },
		{ OPS->attention(dev.s, x, x, 64, 2, &kv_latent, 1, 0, NULL, &batch), NULL },
		{ OPS->attention(dev.s, x, x, 64, 3, &kv_ok, 1, 0, NULL, &batch), "3 heads over 2" },
	};
	for (size_t i = 0; i < LEN(cases); i++)
		ck_assert_msg(cases[i].rc == KERN_EINVAL, "case %zu returned %d", i, cases[i].rc);
	ck_assert_ptr_nonnull(strstr(OPS->last_error(dev.d), cases[LEN(cases) - 1].text));
	ck_assert_ptr_null(c);
	OPS->weight_destroy(dev.d, &a);
	OPS->weight_destroy(dev.d, &b);
	dev_close(&dev);
	free(data);
}
END_TEST

START_TEST(memory_and_signal)
{
	struct dev dev;
	uint64_t word = 0;
	float in[3] = { 1, 2, 3 }, out[3] = { 0 };
	ck_assert(dev_try(&dev, NULL, 0));
	static const size_t sizes[] = { 1, 100, 5 << 20 };
	for (size_t i = 0; i < LEN(sizes); i++) {
		void *p;
		ck_assert_int_eq(OPS->alloc(dev.d, sizes[i], &p), 0);
		ck_assert_uint_eq((uintptr_t)p % 64, 0);
		ck_assert_int_eq(((unsigned char *)p)[sizes[i] - 1], 0);
		OPS->free(dev.d, p);
	}
	ck_assert_int_eq(OPS->upload(dev.s, out, in, sizeof in), 0);
	ck_assert_int_eq(OPS->signal(dev.s, &word, 77), 0);
	ck_assert_int_eq(OPS->sync(dev.s), 0);
	ck_assert(out[2] == 3 && word == 77);
	dev_close(&dev);
}
END_TEST

START_TEST(numerics_texts)
{
	struct dev dev;
	for (size_t i = 0; i < LEN(fast_variants); i++)
		if (dev_try(&dev, fast_variants[i], 1)) {
			ck_assert_str_eq(OPS->numerics(dev.d), "cpu-r4");
			dev_close(&dev);
			ck_assert(dev_try_as(&dev, fast_variants[i], 1, KERN_BF16));
			ck_assert_str_eq(OPS->numerics(dev.d), "cpu-r4-bf16act");
			dev_close(&dev);
		}
	ck_assert(dev_try(&dev, "reference", 1));
	ck_assert_str_eq(OPS->numerics(dev.d), "cpu-reference-r2");
	dev_close(&dev);
}
END_TEST

/* Close to the C library's, whose last bits are its own; and as floats, which rotary frequencies
 * are, the same for the bases and sizes that models have. */
START_TEST(own_functions)
{
	static const double bases[] = { 1e4, 5e4, 1.5e5, 5e5, 1e6, 5e6, 8e6, 1e7 };
	for (size_t b = 0; b < LEN(bases); b++)
		for (int dims = 2; dims <= 256; dims += 2)
			for (int i = 0; i < dims / 2; i++) {
				float got = (float)own_pow(bases[b], -2.0 * i / dims),
				      want = (float)pow(bases[b], -2.0 * i / dims);
				EXPECT(got == want, "%g^(-2 * %d / %d) is %.9g, want %.9g",
				       bases[b], i, dims, (double)got, (double)want);
			}
	for (int i = 0; i < 100000; i++) {
		double x = ldexp(1 + (double)rand_bits() * 0x1p-32,
		                 (int)(rand_bits() % 2097) - 1074),
		       l = log(x), y = (double)rand_unit() * 600, e = exp(y);
		EXPECT(fabs(own_log(x) - l) <= 5e-16 * fabs(l), "ln %.17g is %.17g, want %.17g", x,
		       own_log(x), l);
		EXPECT(fabs(own_exp(y) - e) <= 2e-15 * e, "e^%.17g is %.17g, want %.17g", y,
		       own_exp(y), e);
	}
	ck_assert(own_log(0) == -INFINITY && own_log(INFINITY) == INFINITY && isnan(own_log(-1)) &&
	          isnan(own_log(NAN)) && isnan(own_exp(NAN)));
	ck_assert(own_log(1) == 0 && own_exp(0) == 1 && own_log(0x1p-1074) == log(0x1p-1074));
}
END_TEST

START_TEST(dtype_sizes)
{
	static const struct { enum kern_dtype type; size_t count, bytes; } cases[] = {
		{ KERN_F32, 3, 12 }, { KERN_F16, 3, 6 }, { KERN_Q8_0, 64, 68 }, { KERN_Q8_0, 33, 0 }, { KERN_Q4_0, 32, 18 }, { KERN_Q4_1, 32, 20 },
		{ KERN_Q6_K, 512, 420 }, { KERN_Q6_K, 32, 0 }, { KERN_I8, 7, 7 }, { KERN_F8, 5, 5 }, { KERN_F32, SIZE_MAX, 0 }, { KERN_DTYPE_COUNT, 32, 0 },
	};
	for (size_t i = 0; i < LEN(cases); i++)
		ck_assert_uint_eq(kern_dtype_bytes(cases[i].type, cases[i].count), cases[i].bytes);
	ck_assert_str_eq(kern_dtype_name(KERN_Q4_1), "q4_1");
}
END_TEST

/* --- row operations ------------------------------------------------------------------------------------------------------------- */

enum { RES = 10 };

/* All row operations over the same inputs, `step` rows a call. */
static void row_ops(struct dev *dev, float *const *in, uint32_t rows, uint32_t dim, uint32_t step, float *out[RES])
{
	uint32_t heads = 3, ld = dim * heads + 5, pos[MAX_ROWS], index[MAX_ROWS];
	float *inv = malloc(dim * sizeof *inv);
	size_t n = (size_t)rows * dim;
	for (uint32_t i = 0; i < dim / 2; i++)
		inv[i] = powf(10000.0f, -2.0f * (float)i / (float)dim);
	for (uint32_t r = 0; r < rows; r++)
		pos[r] = r * 37 % 8000, index[r] = (r + 1) % rows;
	for (int i = 0; i < RES; i++)
		out[i] = calloc((size_t)rows * ld, sizeof(float));
	memcpy(out[1], in[0], n * 4);
	memcpy(out[5], in[3], (size_t)rows * ld * 4);
	memcpy(out[6], in[3], (size_t)rows * ld * 4);
	memcpy(out[8], in[3], (size_t)rows * ld * 4);
	for (uint32_t r = 0; r < rows; r += step) {
		uint32_t m = rows - r < step ? rows - r : step;
		size_t at = (size_t)r * dim;
		struct kern_rope half = { KERN_ROPE_HALF, dim & ~1u, 1.0f, inv }, part = { KERN_ROPE_INTERLEAVED, dim / 2 & ~1u, 1.25f, inv };
		ck_assert_int_eq(OPS->rms_norm(dev->s, out[0] + at, in[0] + at, in[2], m, dim, 0.5f), 0);
		ck_assert_int_eq(OPS->add_rms_norm(dev->s, out[2] + at, out[1] + at, in[1] + at, in[2], m, dim, 0.5f), 0);
		ck_assert_int_eq(OPS->act_mul(dev->s, out[3] + at, in[3] + r * ld, in[3] + r * ld + dim, ld, KERN_SILU, m, dim), 0);
		ck_assert_int_eq(OPS->act_mul(dev->s, out[4] + at, in[3] + r * ld, in[3] + r * ld + dim, ld, KERN_GELU_TANH, m, dim), 0);
		ck_assert_int_eq(OPS->act_mul(dev->s, out[9] + at, in[3] + r * ld, in[3] + r * ld + dim, ld, KERN_SWIGLU_CLAMPED, m, dim), 0);
		ck_assert_int_eq(OPS->rope(dev->s, out[5] + r * ld, ld, heads, dim, &half, pos + r, m), 0);
		ck_assert_int_eq(OPS->head_norm(dev->s, out[8] + r * ld, ld, heads, dim, in[2], m, 0.5f), 0);
		ck_assert_int_eq(OPS->rope(dev->s, out[6] + r * ld, ld, heads, dim, &part, pos + r, m), 0);
	}
	ck_assert_int_eq(OPS->gather_rows(dev->s, out[7], in[0], index, rows, dim), 0);
	ck_assert_int_eq(OPS->scale(dev->s, out[7], 1.5f, n), 0);
	free(inv);
}

START_TEST(rows_near_reference_and_same_bits)
{
	static const char *const name[RES] = { "rms_norm", "add_rms_norm x", "add_rms_norm y", "silu", "gelu", "rope half", "rope part", "gather", "head_norm",
	                                      "clamped swiglu" };
	static const struct { uint32_t rows, dim; } sizes[] = { { 1, 4 }, { 3, 16 }, { 5, 36 }, { 19, 64 }, { 33, 130 }, { 70, 512 } };
	for (size_t z = 0; z < LEN(sizes); z++) {
		uint32_t rows = sizes[z].rows, dim = sizes[z].dim, ld = 3 * dim + 5;
		size_t n = (size_t)rows * ld;
		float *in[4] = { rand_floats(n, 20), rand_floats(n, 20), rand_floats(n, 2), rand_floats(n, 12) }, *ref[RES], *want[RES], *got[RES];
		struct dev dev;
		ck_assert(dev_try(&dev, "reference", 2));
		row_ops(&dev, in, rows, dim, rows, ref);
		dev_close(&dev);
		ck_assert(dev_try(&dev, "plain", 1));
		row_ops(&dev, in, rows, dim, rows, want);
		dev_close(&dev);
		for (int i = 0; i < RES; i++)
			near(want[i], ref[i], n, 3e-6f, LABEL("%s of %ux%u", name[i], rows, dim));
		for (size_t v = 0; v < 2 * LEN(fast_variants); v++) {
			if (!dev_try(&dev, fast_variants[v / 2], v % 2 ? 1 : 3))
				continue;
			row_ops(&dev, in, rows, dim, v % 2 ? 1 : rows, got);
			for (int i = 0; i < RES; i++) {
				same_bits(got[i], want[i], n, LABEL("%s of %ux%u, %s", name[i], rows, dim, fast_variants[v / 2]));
				free(got[i]);
			}
			dev_close(&dev);
		}
		for (int i = 0; i < RES; i++)
			free(ref[i]), free(want[i]);
		for (int i = 0; i < 4; i++)
			free(in[i]);
	}
}
END_TEST

/* Each head is normed by itself, what lies behind the heads stays; and y of add_rms_norm may be what is added. */
START_TEST(norms_in_place)
{
	struct dev dev;
	const float x[] = { 3, 4, 5, 12, 7, 7, 1, 1, 8, 6, 7, 7 }, w[] = { 1, 2 };
	for (size_t v = 0; v < 2; v++) {
		float y[12];
		memcpy(y, x, sizeof x);
		ck_assert(dev_try(&dev, v ? "plain" : "reference", 1));
		ck_assert_int_eq(OPS->head_norm(dev.s, y, 6, 2, 2, w, 2, 0), 0);
		const float f[] = { sqrtf(12.5f), sqrtf(84.5f), 1, sqrtf(50) }, want[] = {
			3 / f[0], 8 / f[0], 5 / f[1], 24 / f[1], 7, 7, 1 / f[2], 2 / f[2], 8 / f[3], 12 / f[3], 7, 7 };
		near(y, want, 12, 1e-6f, "head_norm");
		float r[] = { 2, 2 }, b[] = { 1, 2 };
		ck_assert_int_eq(OPS->add_rms_norm(dev.s, b, r, b, w, 1, 2, 0), 0);
		near(r, (const float[]){ 3, 4 }, 2, 0, "sum");
		near(b, (const float[]){ 3 / f[0], 8 / f[0] }, 2, 1e-6f, "add_rms_norm over its addend");
		ck_assert_int_eq(OPS->head_norm(dev.s, y, 6, 2, 2, w, MAX_ROWS + 1, 0), KERN_EINVAL);
		dev_close(&dev);
	}
}
END_TEST

/* Two tables that take turns, as the layers of some models do. */
START_TEST(rope_tables_in_turns)
{
	struct dev dev;
	float inv[2] = { 1, 0.5f };
	uint32_t position = 3;
	ck_assert(dev_try(&dev, "plain", 1));
	for (int i = 0; i < 6; i++) {
		struct kern_rope rope = { KERN_ROPE_HALF, 2, 1.0f, &inv[i % 2] };
		float y[4] = { 1, 0 };
		if (i == 4)
			position = 4;
		ck_assert_int_eq(OPS->rope(dev.s, y, 4, 1, 4, &rope, &position, 1), 0);
		ck_assert_float_eq_tol(y[0], (float)cos(position * inv[i % 2]), 1e-7f);
	}
	dev_close(&dev);
}
END_TEST

START_TEST(gather_and_scale)
{
	struct dev dev;
	const float x[] = { 1, 2, 3, 4, 5, 6 };
	const uint32_t index[] = { 2, 0, 2 };
	float y[6];
	ck_assert(dev_try(&dev, NULL, 1));
	ck_assert_int_eq(OPS->gather_rows(dev.s, y, x, index, 3, 2), 0);
	ck_assert_int_eq(OPS->scale(dev.s, y, 0.5f, 5), 0);
	same_bits(y, (const float[]){ 2.5f, 3, 0.5f, 1, 2.5f, 6 }, 6, "gather_rows, scale");
	dev_close(&dev);
}
END_TEST

START_TEST(rope_angles)
{
	/* (1, 0) turned by `position` radians: the sine and cosine themselves */
	static const uint32_t positions[] = { 0, 1, 2, 3, 11, 1000, 8191, 131072, 10000000 };
	struct dev dev;
	float inv = 1.0f, x[LEN(positions)][4];
	struct kern_rope rope = { KERN_ROPE_HALF, 2, 1.0f, &inv };
	ck_assert(dev_try(&dev, "plain", 1));
	for (size_t i = 0; i < LEN(positions); i++)
		x[i][0] = 1, x[i][1] = 0, x[i][2] = 7, x[i][3] = 8;
	float y[4] = { 1, 0 };
	ck_assert_int_eq(OPS->rope(dev.s, y, 4, 1, 4, &rope, &positions[1], 1), 0);    /* the device keeps angles: not these for the next call */
	ck_assert_float_eq_tol(y[0], (float)cos(1), 1e-7f);
	ck_assert_int_eq(OPS->rope(dev.s, x[0], 4, 1, 4, &rope, positions, LEN(positions)), 0);
	inv = 2;
	y[0] = 1, y[1] = 0;
	ck_assert_int_eq(OPS->rope(dev.s, y, 4, 1, 4, &rope, positions + 3, 1), 0);
	ck_assert_float_eq_tol(y[0], (float)cos(6), 1e-7f);
	inv = 3;
	y[0] = 1, y[1] = 0;
	ck_assert_int_eq(OPS->rope(dev.s, y, 4, 1, 4, &rope, positions + 3, 1), 0);
	ck_assert_float_eq_tol(y[0], (float)cos(9), 1e-7f);
	for (size_t i = 0; i < LEN(positions); i++) {
		ck_assert_float_eq_tol(x[i][0], (float)cos(positions[i]), 1e-7f);
		ck_assert_float_eq_tol(x[i][1], (float)sin(positions[i]), 1e-7f);
		ck_assert(x[i][2] == 7 && x[i][3] == 8);
	}
	dev_close(&dev);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		own_functions,
		dtype_sizes,
		open_errors,
		argument_errors,
		memory_and_signal,
		numerics_texts,
		rows_near_reference_and_same_bits,
		norms_in_place,
		rope_tables_in_turns,
		gather_and_scale,
		rope_angles,
	};
	return run_suite("kernels", tests, LEN(tests));
}
