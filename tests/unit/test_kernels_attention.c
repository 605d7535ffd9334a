/* test_kernels_attention.c - the paged KV and attention over it, of every CPU variant that this machine runs: against the reference within a
 * stated bound, the fast variants against each other bit for bit, and each against itself with other batches, chunks and numbers of threads. */
#include "kernels_rig.h"

static const enum kern_dtype kv_types[] = { KERN_BF16, KERN_F16, KERN_F32, KERN_I8, KERN_F8 };

/* Each with every type. */
struct att_case {
	const char *name;
	uint32_t heads, kv_heads, head_dim, block_tokens, window;
	uint32_t span[3][2];       /* position, rows */
	uint32_t latent;
	const float *sinks;
};

static const float some_sinks[] = { 1.5f, -2, 0.25f, 3, -30, 0, 2, 90 };

static const struct att_case att_cases[] = {
	{ "first token", 1, 1, 4, 16, 0, { { 0, 1 } }, 0, NULL },
	{ "small prompt", 4, 2, 16, 16, 0, { { 0, 21 } }, 0, NULL },
	{ "demo model", 9, 3, 64, 16, 0, { { 0, 130 }, { 70, 1 }, { 300, 3 } }, 0, NULL },
	{ "decode batch", 9, 3, 64, 32, 0, { { 63, 1 }, { 64, 1 }, { 519, 1 } }, 0, NULL },
	{ "decode in blocks of 1", 3, 1, 64, 1, 0, { { 0, 1 }, { 130, 1 }, { 257, 1 } }, 0, NULL },
	{ "decode, 96 wide", 4, 2, 96, 512, 0, { { 600, 1 }, { 511, 2 }, { 512, 1 } }, 0, NULL },
	{ "odd sizes", 5, 1, 24, 24, 0, { { 11, 37 }, { 255, 2 }, { 256, 1 } }, 0, NULL },
	{ "wide head", 2, 2, 128, 256, 0, { { 200, 60 }, { 1, 1 } }, 0, NULL },
	{ "widest head", 2, 1, 512, 48, 0, { { 60, 9 }, { 100, 1 } }, 0, NULL },
	{ "100 wide in blocks of 7", 6, 2, 100, 7, 0, { { 0, 30 }, { 300, 1 }, { 63, 2 } }, 0, NULL },
	{ "blocks of 8", 6, 2, 20, 8, 0, { { 5, 19 }, { 320, 9 } }, 0, NULL },
	{ "window", 4, 2, 32, 16, 50, { { 0, 120 }, { 290, 40 }, { 49, 2 } }, 0, NULL },
	{ "window of 1", 2, 1, 16, 16, 1, { { 60, 10 } }, 0, NULL },
	{ "long window", 3, 3, 36, 40, 260, { { 500, 30 }, { 270, 1 } }, 0, NULL },
	{ "latent", 4, 1, 32, 16, 0, { { 0, 40 }, { 70, 1 }, { 300, 3 } }, 24, NULL },
	{ "latent, decode", 3, 1, 96, 16, 0, { { 63, 1 }, { 519, 1 }, { 256, 1 } }, 64, NULL },
	{ "latent, many heads", 70, 1, 576, 64, 0, { { 10, 2 }, { 300, 1 } }, 512, NULL },
	{ "latents in blocks of 7", 10, 2, 36, 7, 50, { { 0, 30 }, { 300, 1 } }, 20, NULL },
	{ "many heads on one", 51, 1, 16, 16, 0, { { 30, 3 } }, 0, NULL },
	{ "sinks", 8, 2, 64, 16, 0, { { 0, 70 }, { 300, 1 }, { 70, 5 } }, 0, some_sinks },
	{ "sinks and a window", 8, 8, 32, 16, 30, { { 0, 70 }, { 300, 1 } }, 0, some_sinks },
};
enum { KV_TOKENS = 640 };

static uint32_t out_dim(const struct att_case *c)
{
	return c->latent ? c->latent : c->head_dim;
}

struct att_data { float *q, *k[3], *v[3]; uint32_t rows; };

static struct att_data att_inputs(const struct att_case *c)
{
	struct att_data d = { 0 };
	for (int i = 0; i < 3; i++) {
		d.k[i] = rand_floats((size_t)KV_TOKENS * c->kv_heads * c->head_dim, 2);
		d.v[i] = rand_floats((size_t)KV_TOKENS * c->kv_heads * c->head_dim, 2);
		d.rows += c->span[i][1];
	}
	d.q = rand_floats((size_t)d.rows * (c->heads * c->head_dim + 7), 2);
	return d;
}

static void att_free(struct att_data *d)
{
	for (int i = 0; i < 3; i++)
		free(d->k[i]), free(d->v[i]);
	free(d->q);
}

/* Writes every span's history and the rows, at most `step` rows of a span a call, and returns the outputs of the rows. */
static float *att_run(struct dev *dev, const struct att_case *c, enum kern_dtype type, const struct att_data *d, uint32_t step)
{
	uint32_t blocks = (KV_TOKENS + c->block_tokens - 1) / c->block_tokens, ld = c->kv_heads * c->head_dim, table[3 * KV_TOKENS];
	struct kern_kv_layer kv = { NULL, 0, c->kv_heads, c->head_dim, c->block_tokens, type, 0, c->latent };
	size_t ldq = c->heads * c->head_dim + 7, stride = kv.block_stride_bytes = kern_kv_planes(&kv) * kern_kv_plane_bytes(&kv) + 4, width = c->heads * out_dim(c);
	kv.base = malloc(3 * blocks * stride);
	memset(kv.base, 0xff, 3 * blocks * stride);            /* NaN: unwritten places must not be read */
	for (uint32_t i = 0; i < 3 * blocks; i++)
		table[i] = (i * 7 + 3) % (3 * blocks) ;
	if (3 * blocks % 7 == 0)
		for (uint32_t i = 0; i < 3 * blocks; i++)
			table[i] = 3 * blocks - 1 - i;
	float *out = calloc((size_t)d->rows * width, sizeof *out);
	for (uint32_t done[3] = { 0 }, more = 1; more;) {
		struct kern_span span[3];
		uint32_t spans = 0, rows = 0, first[3];
		for (uint32_t i = 0, row = 0; i < 3; row += c->span[i++][1]) {
			uint32_t left = c->span[i][1] - done[i], m = left < step ? left : step, p = c->span[i][0] + done[i];
			if (!m)
				continue;
			/* the history as one write of its own, once */
			struct kern_span past = { 0, p, 0, i * blocks };
			struct kern_batch b = { .rows = p, .spans = 1, .span = &past, .span_host = &past, .block_table = table };
			if (!done[i] && p)
				ck_assert_int_eq(OPS->kv_write(dev->s, &kv, d->k[i], c->latent ? NULL : d->v[i], ld, &b), 0);
			struct kern_span now = { 0, m, p, i * blocks };
			b.span = b.span_host = &now;
			b.rows = m;
			ck_assert_int_eq(OPS->kv_write(dev->s, &kv, d->k[i] + (size_t)p * ld, c->latent ? NULL : d->v[i] + (size_t)p * ld, ld, &b), 0);
			first[spans] = row + done[i];
			span[spans++] = (struct kern_span){ rows, m, p, i * blocks };
			rows += m;
			done[i] += m;
		}
		if (!(more = spans))
			break;
		float *q = malloc(rows * ldq * sizeof *q), *o = malloc((size_t)rows * width * sizeof *o);
		for (uint32_t i = 0; i < spans; i++)
			memcpy(q + span[i].row * ldq, d->q + first[i] * ldq, span[i].rows * ldq * sizeof *q);
		struct kern_batch b = { .rows = rows, .spans = spans, .span = span, .span_host = span, .block_table = table, .table_len = 3 * blocks };
		ck_assert_int_eq(OPS->attention(dev->s, o, q, ldq, c->heads, &kv, 0.3f, c->window, c->sinks, &b), 0);
		for (uint32_t i = 0; i < spans; i++)
			memcpy(out + first[i] * width, o + span[i].row * width, span[i].rows * width * sizeof *o);
		free(q), free(o);
	}
	free(kv.base);
	return out;
}

START_TEST(attention_near_reference_and_same_bits)
{
	static const struct { const char *variant; unsigned threads; uint32_t step; } runs[] = {
		{ "plain", 2, 9 }, { "avx2", 1, 1000 }, { "avx2", 3, 1 }, { "avx512", 1, 1000 }, { "avx512", 2, 1 }, { "avx512", 3, 5 },
		{ "avx512", 2, 50 }, { "avx512", 16, 1000 },
	};
	for (size_t i = 0; i < LEN(att_cases) * LEN(kv_types); i++) {
		const struct att_case *c = &att_cases[i / LEN(kv_types)];
		enum kern_dtype type = kv_types[i % LEN(kv_types)];
		struct att_data d = att_inputs(c);
		size_t n = (size_t)d.rows * c->heads * out_dim(c);
		struct dev dev;
		ck_assert(dev_try(&dev, "reference", 2));
		float *ref = att_run(&dev, c, type, &d, 1000);
		dev_close(&dev);
		ck_assert(dev_try(&dev, "plain", 1));
		float *want = att_run(&dev, c, type, &d, 1000);
		dev_close(&dev);
		/* what an error of the scores makes of the weights; scores are sums of head_dim products */
		near(want, ref, n, c->head_dim > 128 ? 1e-5f * (float)c->head_dim / 128 : 1e-5f, LABEL("%s, %s", c->name, kern_dtype_name(type)));
		for (size_t v = 0; v < LEN(runs); v++) {
			if (!dev_try(&dev, runs[v].variant, runs[v].threads))
				continue;
			float *got = att_run(&dev, c, type, &d, runs[v].step);
			same_bits(got, want, n, LABEL("%s, %s: %s, %u threads, %u rows a call", c->name, kern_dtype_name(type), runs[v].variant,
			                              runs[v].threads, runs[v].step));
			free(got);
			dev_close(&dev);
		}
		free(ref), free(want);
		att_free(&d);
	}
}
END_TEST

/* --- what is not finite ---------------------------------------- */

/* A token whose K or V is not finite: kinds of it. Whoever sees it gets nothing finite; of an
 * infinite K that is said only where V is, too. */
static const struct { float k, v; bool all;
} poisons[] = {
	{ NAN, NAN, true },
	{ NAN, 1, true },
	{ 1, NAN, true },
	{ 1, INFINITY, true },
	{ -INFINITY, -INFINITY, false },
	{ INFINITY, 1, false },
};
enum { POISONS = LEN(poisons) };

/* Writes it into one element of each head of token `at` of a span; latents have no V. */
static void poison(const struct att_case *c, struct att_data *d, int span, uint32_t at, size_t kind)
{
	for (uint32_t h = 0; h < c->kv_heads; h++) {
		size_t row = ((size_t)at * c->kv_heads + h) * c->head_dim;
		d->k[span][row + (at + h) % (c->latent ? c->latent : c->head_dim)] =
			c->latent ? poisons[kind].v * poisons[kind].k : poisons[kind].k;
		d->v[span][row + (at + 2 * h) % c->head_dim] = poisons[kind].v;
	}
}

/* Rows of `span` that do not see token `at`, and all of the other spans, have the bits of a run
 * without the poison. */
static void isolated(const struct att_case *c, const float *got, const float *clean, int span,
                     uint32_t at, bool all, const char *what)
{
	size_t width = c->heads * out_dim(c), row = 0;
	for (int i = 0; i < 3; i++)
		for (uint32_t r = 0; r < c->span[i][1]; r++, row++) {
			uint32_t position = c->span[i][0] + r;
			bool sees = i == span && position >= at &&
			            (!c->window || position < at + c->window);
			if (!sees)
				same_bits(got + row * width, clean + row * width, width, what);
			for (uint32_t h = 0; sees && all && h < c->heads; h++) {
				float sum = 0;
				for (uint32_t j = 0; j < out_dim(c); j++)
					sum += got[row * width + h * out_dim(c) + j];
				EXPECT(!isfinite(sum),
				       "%s: head %u of position %u, which sees it, is finite", what,
				       h, position);
			}
		}
}

/* The span that run v poisons, and a late token of it; with a window, one that its last rows do not
 * see any more. */
static int poisoned_span(const struct att_case *c, size_t v, uint32_t *ret_at)
{
	int span = (int)(v % 3);
	while (!c->span[span][1])
		span = (span + 1) % 3;
	uint32_t first = c->span[span][0], rows = c->span[span][1],
		 late = first + rows - 1 - rows / 3;
	*ret_at = c->window && v % 2 && first + rows / 2 >= c->window ? first + rows / 2 - c->window
	                                                              : late;
	return span;
}

START_TEST(rows_are_isolated)
{
	static const struct { const char *variant; unsigned threads; uint32_t step;
	} runs[] = {
		{ "reference", 1, 1000 }, { "plain", 1, 1000 }, { "plain", 2, 3 },
		{ "avx2", 1, 1000 },      { "avx2", 2, 7 },     { "avx512", 1, 1000 },
		{ "avx512", 2, 7 },       { "avx512", 3, 1 },
	};
	for (size_t i = 0; i < LEN(att_cases) * LEN(kv_types); i++) {
		const struct att_case *c = &att_cases[i / LEN(kv_types)];
		enum kern_dtype type = kv_types[i % LEN(kv_types)];
		struct att_data d = att_inputs(c);
		float *clean = NULL;
		for (size_t v = 0; v < LEN(runs); v++) {
			struct dev dev;
			if (!dev_try(&dev, runs[v].variant, runs[v].threads))
				continue;
			if (v < 2) {            /* the fast variants have the same bits */
				free(clean);
				clean = att_run(&dev, c, type, &d, 1000);
			}
			size_t floats = (size_t)KV_TOKENS * c->kv_heads * c->head_dim,
			       kind = (i + v) % POISONS;
			uint32_t at;
			int span = poisoned_span(c, i + v, &at);
			struct att_data bad = d;
			bad.k[span] = memcpy(malloc(floats * sizeof(float)), d.k[span],
			                     floats * sizeof(float));
			bad.v[span] = memcpy(malloc(floats * sizeof(float)), d.v[span],
			                     floats * sizeof(float));
			poison(c, &bad, span, at, kind);
			float *got = att_run(&dev, c, type, &bad, runs[v].step);
			isolated(
				c, got, clean, span, at, poisons[kind].all,
				LABEL("%s, %s: %s, %u rows a call, token %u of span %d: K %g, V %g",
				      c->name, kern_dtype_name(type), runs[v].variant, runs[v].step,
				      at, span, (double)poisons[kind].k, (double)poisons[kind].v));
			free(got), free(bad.k[span]), free(bad.v[span]);
			dev_close(&dev);
		}
		free(clean);
		att_free(&d);
	}
}
END_TEST

/* A query that is not finite: its head gives nothing finite, the other heads and rows are as
 * before. */
START_TEST(queries_that_are_not_finite)
{
	static const char *const all[] = { "reference", "plain", "avx2", "avx512" };
	for (size_t i = 0; i < LEN(att_cases) * LEN(all); i++) {
		const struct att_case *c = &att_cases[i / LEN(all)];
		size_t width = c->heads * out_dim(c), ldq = c->heads * c->head_dim + 7;
		struct att_data d = att_inputs(c);
		struct dev dev;
		if (dev_try(&dev, all[i % LEN(all)], 2)) {
			float *clean = att_run(&dev, c, KERN_BF16, &d, 1000);
			uint32_t row = d.rows / 2, head = c->heads / 2;
			d.q[row * ldq + head * c->head_dim + 1] = NAN;
			float *got = att_run(&dev, c, KERN_BF16, &d, 1000);
			for (size_t j = 0; j < d.rows * width; j++)
				if (j / width == row && j % width / out_dim(c) == head)
					EXPECT(isnan(got[j]), "%s, %s: element %zu is %g", c->name,
					       all[i % LEN(all)], j, (double)got[j]);
				else
					EXPECT(memcmp(got + j, clean + j, sizeof *got) == 0,
					       "%s, %s: element %zu changed", c->name,
					       all[i % LEN(all)], j);
			free(got), free(clean);
			dev_close(&dev);
		}
		att_free(&d);
	}
}
END_TEST

/* --- what a row becomes ---------------------------------------------------------------------------------------------------- */

START_TEST(kv_rounding)
{
	/* nearest, ties to even; in the layout's place */
	static const struct { enum kern_dtype type; float in; uint16_t want; } cases[] = {
		{ KERN_BF16, 1.0f, 0x3f80 }, { KERN_BF16, 1.00390625f, 0x3f80 }, { KERN_BF16, 1.01171875f, 0x3f82 },
		{ KERN_BF16, -3.4e38f, 0xff80 }, { KERN_F16, 1.0f, 0x3c00 }, { KERN_F16, 1.00048828125f, 0x3c00 },
		{ KERN_F16, 1.00146484375f, 0x3c02 }, { KERN_F16, 65519.0f, 0x7bff }, { KERN_F16, 65520.0f, 0x7c00 },
		{ KERN_F16, 5.9604645e-8f, 0x0001 }, { KERN_F16, -6.1035156e-5f, 0x8400 }, { KERN_F16, 2.9802322e-8f, 0x0000 },
	};
	struct dev dev;
	ck_assert(dev_try(&dev, NULL, 1));
	for (size_t i = 0; i < LEN(cases); i++) {
		uint16_t pool[2][2][8][4];
		uint32_t table[] = { 1 };
		float k[4] = { 0, cases[i].in }, v[4] = { 0, 0, cases[i].in };
		struct kern_kv_layer kv = { pool, sizeof pool[0], 1, 4, 8, cases[i].type, 0, 0 };
		struct kern_span span = { 0, 1, 5, 0 };
		struct kern_batch b = { .rows = 1, .spans = 1, .span = &span, .span_host = &span, .block_table = table, .table_len = 1 };
		memset(pool, 0, sizeof pool);
		ck_assert_int_eq(OPS->kv_write(dev.s, &kv, k, v, 4, &b), 0);
		ck_assert_msg(pool[1][0][5][1] == cases[i].want && pool[1][1][5][2] == cases[i].want, "case %zu: %g is %04x, want %04x", i,
		              (double)cases[i].in, pool[1][0][5][1], cases[i].want);
	}
	dev_close(&dev);
}
END_TEST

/* One row of one head as token 5 of block 1 of 2, in blocks of 7; the pool's other bytes must stay. Returns the row; its scale in *ret_scale. */
enum { ROW_MAX = 256, AT = 5, TOKENS = 7 };

static const unsigned char *write_row(struct dev *dev, enum kern_dtype type, const float *row, uint32_t dim, int is_v, float *ret_scale)
{
	static unsigned char pool[2 * 2 * TOKENS * (ROW_MAX + 4)];
	struct kern_kv_layer kv = { pool, 0, 1, dim, TOKENS, type, 0, 0 };
	size_t plane = kern_kv_plane_bytes(&kv), at = 2 * plane + (size_t)is_v * plane + AT * dim, scale = 2 * plane + (size_t)is_v * plane + TOKENS * dim + 4 * AT;
	float zero[ROW_MAX] = { 0 };
	uint32_t table[] = { 1 };
	struct kern_span span = { 0, 1, AT, 0 };
	struct kern_batch b = { .rows = 1, .spans = 1, .span = &span, .span_host = &span, .block_table = table, .table_len = 1 };
	kv.block_stride_bytes = 2 * plane;
	ck_assert_uint_eq(plane, TOKENS * (dim + 4));
	memset(pool, 0xa5, sizeof pool);
	ck_assert_int_eq(OPS->kv_write(dev->s, &kv, is_v ? zero : row, is_v ? row : zero, dim, &b), 0);
	size_t other = 2 * plane + (size_t)!is_v * plane;
	for (size_t i = 0; i < sizeof pool; i++)
		if (!(i >= at && i < at + dim) && !(i >= scale && i < scale + 4) && !(i >= other + AT * dim && i < other + AT * dim + dim) &&
		    !(i >= other + TOKENS * dim + 4 * AT && i < other + TOKENS * dim + 4 * AT + 4))
			EXPECT(pool[i] == 0xa5, "%s: byte %zu of the pool was written", kern_dtype_name(type), i);
	memcpy(ret_scale, pool + scale, 4);
	return pool + at;
}

static double f8_value(unsigned c)              /* OCP 8-bit floating point, E4M3: S.EEEE.MMM, bias 7 */
{
	double m = c & 7, v = c >> 3 & 15 ? ldexp(1 + m / 8, (int)(c >> 3 & 15) - 7) : ldexp(m / 8, -6);
	return c & 0x80 ? -v : v;
}

static double code_value(enum kern_dtype type, unsigned c)
{
	return type == KERN_I8 ? (double)(int8_t)c : f8_value(c);
}

/* Every code is the nearest one, of two the even one, and the scale is the row's largest magnitude over the type's. */
START_TEST(scaled_rows_round_to_nearest)
{
	static const enum kern_dtype types[] = { KERN_I8, KERN_F8 };
	struct dev dev;
	ck_assert(dev_try(&dev, NULL, 1));
	for (uint32_t round = 0; round < 400; round++) {
		enum kern_dtype type = types[round % 2];
		uint32_t dim = 4 + 4 * (rand_bits() % 63);
		double top = type == KERN_I8 ? 127 : 448;
		float row[ROW_MAX], max = 0, scale;
		for (uint32_t i = 0; i < dim; i++)       /* some rows with magnitudes far apart, and with halves between codes */
			row[i] = round % 4 < 2 ? rand_unit() * 3 : ldexpf((float)(rand_bits() % 1024) - 512, round % 8 < 4 ? -1 : -(int)(rand_bits() % 20));
		row[rand_bits() % dim] = round % 3 ? (float)top : -20;
		for (uint32_t i = 0; i < dim; i++)
			max = fabsf(row[i]) > max ? fabsf(row[i]) : max;
		const unsigned char *code = write_row(&dev, type, row, dim, round & 1, &scale);
		EXPECT(scale == max / (float)top, "%s: scale %g of a row up to %g", kern_dtype_name(type), (double)scale, (double)max);
		for (uint32_t i = 0; i < dim; i++) {
			double x = (double)(row[i] * ((float)top / max)), got = fabs(code_value(type, code[i]) - x);
			for (unsigned c = 0; c < 256; c++) {
				double other = fabs(code_value(type, c) - x);
				if ((type == KERN_F8 && (c & 0x7f) == 0x7f) || (type == KERN_I8 && c == 0x80))
					continue;
				EXPECT(got < other || (got == other && (code[i] == c || !(code[i] & 1) || code_value(type, c) == code_value(type, code[i]))),
				       "%s: %g became code %02x, but %02x is nearer", kern_dtype_name(type), x, code[i], c);
			}
		}
	}
	dev_close(&dev);
}
END_TEST

START_TEST(scaled_rows_that_are_odd)
{
	static const enum kern_dtype types[] = { KERN_I8, KERN_F8 };
	static const struct { float x, want; } cases[] = {
		{ 0, 0 }, { -0.0f, 0 }, { 1e-42f, 0 }, { -9e-31f, 0 }, { 1e-29f, 1e-29f }, { 3.4e38f, 3.4e38f }, { -3.4e38f, -3.4e38f },
		{ INFINITY, NAN }, { -INFINITY, NAN }, { NAN, NAN },
	};
	struct dev dev;
	ck_assert(dev_try(&dev, NULL, 1));
	for (size_t i = 0; i < LEN(cases) * LEN(types); i++) {
		enum kern_dtype type = types[i % 2];
		float row[8] = { [3] = cases[i / 2].x }, scale, want = cases[i / 2].want;
		const unsigned char *code = write_row(&dev, type, row, 8, 1, &scale);
		float got = scale * (float)code_value(type, code[3]);
		ck_assert_msg(isnan(want) ? isnan(got) : fabsf(got - want) <= 1e-6f * fabsf(want), "%s: %g reads back as %g, want %g", kern_dtype_name(type),
		              (double)row[3], (double)got, (double)want);
	}
	dev_close(&dev);
}
END_TEST

/* All codes, bytes laid by hand: one token's attention is its V. */
START_TEST(scaled_rows_read_back)
{
	static const char *const all[] = { "reference", "plain", "avx2", "avx512" };
	for (size_t i = 0; i < 2 * LEN(all); i++) {
		enum kern_dtype type = i % 2 ? KERN_I8 : KERN_F8;
		static unsigned char pool[2 * 260];
		float q[ROW_MAX] = { 1 }, out[ROW_MAX], scale = 0.75f;
		uint32_t table[] = { 0 };
		struct kern_kv_layer kv = { pool, sizeof pool, 1, ROW_MAX, 1, type, 0, 0 };
		struct kern_span span = { 0, 1, 0, 0 };
		struct kern_batch b = { .rows = 1, .spans = 1, .span = &span, .span_host = &span, .block_table = table, .table_len = 1 };
		struct dev dev;
		if (!dev_try(&dev, all[i / 2], 1))
			continue;
		for (unsigned c = 0; c < 256; c++)
			pool[260 + c] = (unsigned char)c;
		memcpy(pool + 260 + 256, &scale, 4);
		ck_assert_int_eq(OPS->attention(dev.s, out, q, ROW_MAX, 1, &kv, 1, 0, NULL, &b), 0);
		for (unsigned c = 0; c < 256; c++)
			if (type == KERN_I8 || (c & 0x7f) != 0x7f)     /* E4M3's NaNs are never written */
				ck_assert_msg((double)out[c] == 0.75 * code_value(type, c), "%s %s: code %02x reads as %g, want %g", all[i / 2],
				              kern_dtype_name(type), c, (double)out[c], 0.75 * code_value(type, c));
		dev_close(&dev);
	}
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {
		kv_rounding, scaled_rows_round_to_nearest, scaled_rows_that_are_odd, scaled_rows_read_back, attention_near_reference_and_same_bits,
		rows_are_isolated, queries_that_are_not_finite,
	};
	return run_suite("kernels_attention", tests, LEN(tests));
}
