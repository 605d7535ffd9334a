/* test_conform_cpu.c - what the CPU's variants promise beyond the contract: one numerics for all
 * fast ones, sums of quantised products that are exact up to float32, and vdpbf16ps's arithmetic
 * wherever activations are rounded to bfloat16. Tests nothing on other backends. */
#include "tests/conform/conform.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* of an activation: the group's largest magnitude becomes this */
enum { LEVELS = 16319 };

static bool is_cpu(const struct target *t)
{
	return !strcmp(t->backend, "cpu");
}

static bool all_cpu(void)
{
	bool all = true;
	for (unsigned i = 0; i < conform_target_count; i++)
		all = all && is_cpu(&conform_targets[i]);
	return all;
}

/* --- the device ---------------------------------------------------------- */

CONFORM_TEST(open_errors)
{
	static const struct {
		struct kern_config conf;
		int want;
		const char *text;
	} cases[] = {
		{{.variant = "sse9"}, KERN_ENOTSUP, "sse9"},
		{{.variant = "fast"}, KERN_ENOTSUP, "unknown cpu variant fast: must be"},
		{{.variant = "plain", .activations = KERN_F16}, KERN_EINVAL, "type f16"},
		{{.variant = "plain", .threads = 257}, KERN_EINVAL, "257 threads, the limit is 256"},
	};
	char err[200];
	const struct kern_ops *cpu = kern_backend("cpu", err, sizeof err);
	for (size_t i = 0; i < LEN(cases) && all_cpu(); i++) {
		struct kern_device *d = NULL;
		err[0] = 0;
		EXPECT(cpu->open(&cases[i].conf, &d, err, sizeof err) == cases[i].want && !d,
		       "case %zu is not refused as it should be", i);
		EXPECT(strstr(err, cases[i].text), "\"%s\" lacks \"%s\"", err, cases[i].text);
	}
}

/* The fast variants have one text, rounded activations another, the reference its own. */
CONFORM_TEST(numerics_texts)
{
	char fast[64] = "", want[80];
	for (unsigned i = 0; i < conform_target_count && all_cpu(); i++) {
		struct device *dev = device_get(&conform_targets[i], 1);
		if (!dev)
			continue;
		const char *text = dev->ops->numerics(dev->d);
		bool reference = !strcmp(dev->target->variant, "reference"),
			 rounded = dev->target->activations == KERN_BF16;
		if (!fast[0] && !reference && !rounded)
			snprintf(fast, sizeof fast, "%s", text);
		snprintf(want, sizeof want, "%s%s", fast, rounded ? "-bf16act" : "");
		EXPECT(strlen(text) > 3, "%s: numerics \"%s\"", dev->target->name, text);
		EXPECT(reference == (strstr(text, "reference") != NULL), "%s: numerics \"%s\"",
		       dev->target->name, text);
		EXPECT(reference || !fast[0] || !strcmp(text, want), "%s: numerics \"%s\", want \"%s\"",
		       dev->target->name, text, want);
	}
}

/* A deep model's program has more phases than any that was made before; it has no limit but memory.
 */
CONFORM_TEST(a_program_of_many_phases)
{
	enum { PRODUCTS = 70000, DIM = 32 };
	if (!all_cpu())
		return;
	struct world *w = world_new((struct sequence[SEQUENCES]){{0, 1}}, 16);
	struct step st = {.parts = 1, .part = {{0, 0, 1, 0}}};
	struct device *dev = device_get(&conform_targets[0], 2);
	struct kern_mem x = mem_get(dev, KERN_MEM_DEVICE, 2 * DIM * sizeof(float));
	struct kern_mem batch = batch_get(dev, w, &st, NULL);
	struct kern_limits limits = world_limits(w);
	struct kern_op *op = conform_alloc(PRODUCTS, sizeof *op);
	float in[DIM] = {3}, out[DIM], unit[DIM * DIM] = {0};
	struct kern_weight *turn = NULL;
	for (uint32_t i = 0; i < DIM; i++) /* by one place */
		unit[i * DIM + (i + 1) % DIM] = 1;
	turn = weight_get(dev, KERN_F32, 1, DIM, DIM, unit);
	for (uint32_t i = 0; i < PRODUCTS; i++) {
		struct kern_tensor from = {kern_at(x.dev, i % 2 * sizeof in), DIM, KERN_F32}, to = from;
		to.at = kern_at(x.dev, (i + 1) % 2 * sizeof in);
		op[i] = (struct kern_op){.kind = KERN_OP_MATMUL,
		                         .matmul = {.x = from, .products = 1, .p = {{turn, {0}, to}}}};
	}
	struct kern_program *p = program_get(dev, op, PRODUCTS, &limits);
	mem_put(dev, x.dev, in, sizeof in);
	program_run(dev, p, &batch);
	mem_take(dev, out, x.dev, sizeof out);
	for (uint32_t i = 0; i < DIM; i++)
		EXPECT(out[i] == in[(i + PRODUCTS) % DIM], "column %u is %g", i, (double)out[i]);
	dev->ops->program_destroy(&p);
	dev->ops->weight_destroy(dev->d, &turn);
	dev->ops->mem_free(dev->d, &x);
	dev->ops->mem_free(dev->d, &batch);
}

/* --- quantised products -------------------------------------------------- */

static uint32_t product_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	(void)j;
	op->kind = KERN_OP_MATMUL;
	op->matmul.x = l->field[0];
	op->matmul.products = 1;
	op->matmul.p[0] = (struct kern_product){l->w[0], {0}, l->field[1]};
	return 1;
}

/* Activations that are held exactly: what is left is float32's rounding, so a wrong code, scale
 * or zero point cannot hide. */
static void exact_row(const struct job *j, const struct precision *p, const struct result *r,
                      uint32_t row, struct expect *e)
{
	(void)p, (void)r;
	static const struct precision exact = {0};
	uint32_t k = j->field[0].columns;
	double *x = conform_alloc(k, sizeof *x);
	for (uint32_t i = 0; i < k; i++)
		x[i] = (double)job_data(j, 0, row)[i];
	ref_product(&exact, &j->matrix[0], x, e->value[1], e->bound[1]);
}

static struct job *product_job(enum kern_dtype type, uint32_t n, uint32_t k, uint32_t rows,
                               const char *what)
{
	struct sequence seq[SEQUENCES] = {{0, rows}};
	struct job *j = job_new(KERN_OP_MATMUL, world_new(seq, 16), "%u columns by %s of %u rows, %s",
	                        k, kern_dtype_name(type), n, what);
	job_field(j, "x", IN, KERN_ROWS_ALL, 1, k, 3);
	job_field(j, "y", OUT, KERN_ROWS_ALL, 1, n, 0);
	job_matrices(j, 1);
	job_matrix(j, 0, type, n, k);
	j->record = product_record;
	j->clean = true;
	return j;
}

static const enum kern_dtype quantised[] = {KERN_Q8_0, KERN_Q4_0, KERN_Q4_1, KERN_Q6_K, KERN_Q5_0,
                                            KERN_Q5_1, KERN_Q4_K, KERN_Q5_K, KERN_MXFP4};

CONFORM_TEST(products_of_exact_activations)
{
	for (size_t i = 0; i < 2 * LEN(quantised) && all_cpu(); i++) {
		size_t mark = conform_mark();
		struct job *j = product_job(quantised[i / 2], i % 2 ? 97 : 17, i % 2 ? 768 : 256, 9,
		                            "exact activations");
		uint32_t k = j->field[0].columns;
		for (uint32_t at = 0; at < 9 * k; at++)
			j->field[0].data[at] = at % 32 == at / k ? LEVELS
			                                         : (float)rand_below(2 * LEVELS + 1) - LEVELS;
		j->row = exact_row;
		job_check(j);
		conform_release(mark);
	}
}

/* Where the codes of a block lie. */
static bool is_code(enum kern_dtype t, size_t at)
{
	return t == KERN_Q6_K ? at < 192
	                      : at >= (t == KERN_Q4_K || t == KERN_Q5_K   ? 16
	                               : t == KERN_Q4_1 || t == KERN_Q5_1 ? 4
	                               : t == KERN_MXFP4                  ? 1
	                                                                  : 2);
}

/* The largest codes times the largest bytes, of either sign: nothing may saturate or wrap. A
 * value's bytes are hi and lo of 128 hi + lo. */
CONFORM_TEST(products_of_extremes)
{
	static const unsigned char codes[] = {0x00, 0x7f, 0x80, 0x81, 0xff};
	static const float values[] = {
		LEVELS, -LEVELS, 126 * 128 + 64, 126 * 128 - 64, -126 * 128 - 64, -126 * 128 + 64, 64, -64};
	enum { N = 17, K = 256, ROWS = 2 * LEN(values) };
	for (size_t i = 0; i < LEN(quantised) * LEN(codes) && all_cpu(); i++) {
		size_t mark = conform_mark();
		enum kern_dtype t = quantised[i / LEN(codes)];
		struct job *j = product_job(t, N, K, ROWS, "largest codes");
		struct matrix *m = &j->matrix[0];
		size_t bytes = kern_dtype_bytes(t, K),
			   block = kern_dtype_bytes(t, kern_dtype_bytes(t, 32) ? 32 : 256);
		for (size_t b = 0; b < N * bytes; b++)
			if (is_code(t, b % block))
				matrix_row(m, (uint32_t)(b / bytes))[b % bytes] = codes[i % LEN(codes)];
		for (uint32_t c = 0; c < N * K; c++)
			m->value[c] = (float)format_value(t, matrix_row(m, c / K), c % K);
		for (uint32_t at = 0; at < ROWS * K; at++) {
			uint32_t row = at / K;
			j->field[0].data[at] = at % 32 == 3
			                           ? LEVELS
			                           : values[row < LEN(values) ? row : (row + at) % LEN(values)];
		}
		j->row = exact_row;
		job_check(j);
		conform_release(mark);
	}
}

/* --- activations rounded to bfloat16 ------------------------------------- */

struct hand {
	float x[4], w[4], want;
	const char *what;
};

static void hand_check(const struct job *j, const struct precision *p, const struct result *r,
                       uint32_t row, bool poisoned)
{
	(void)poisoned;
	const struct hand *h = j->shape;
	float got = r->out[1][row];
	if (p->bf16_activations)
		EXPECT(got == h->want, "%s: %a, want %a", h->what, (double)got, (double)h->want);
}

static void weight_set(struct matrix *m, uint32_t i, float f)
{
	unsigned char *row = matrix_row(m, i / m->k);
	memcpy(row + 2 * (size_t)(i % m->k), (unsigned char *)&f + 2, 2);
	m->value[i] = (float)format_value(KERN_BF16, row, i % m->k);
}

/* One column by hand: of each pair of k the second is added first; denormals are zeros, in and
 * out, and only what is below 2^-126 after rounding with 24 bits is flushed. */
CONFORM_TEST(products_of_bf16_by_hand)
{
	static const struct hand cases[] = {
		{{1, 0, -1, 0x1p-30f}, {1, 0, 1, 1}, 0, "second first: 1 + 2^-30 - 1"},
		{{1, 0, 0x1p-30f, -1}, {1, 0, 1, 1}, 0x1p-30f, "second first: 1 - 1 + 2^-30"},
		{{1.00390625f}, {1}, 1, "half of an activation's last place goes to the even one"},
		{{1.01171875f}, {1}, 1.015625f, "and up, where that is the even one"},
		{{0x1p100f}, {0x1p-130f}, 0, "denormal weight"},
		{{0x1p-130f}, {0x1p100f}, 0, "denormal activation"},
		{{0x1p-126f, 0x1p-60f}, {1, 0x1p-70f}, 0x1p-126f, "denormal sum, before it is added to"},
		{{0x1p-60f, 0x1p-60f}, {0x1p-67f, 0x1p-67f}, 0, "two halves of the smallest, each flushed"},
		{{-0x1p-76f, 1}, {0x1p-76f, 0x1p-126f}, 0x1p-126f, "2^-126 - 2^-152 rounds to 2^-126"},
		{{-0x1p-75f, 1}, {0x1p-75f, 0x1p-126f}, 0, "2^-126 - 2^-150 does not, with 24 bits"},
		{{-0x1.8p-75f, 1}, {0x1p-76f, 0x1p-126f}, 0, "2^-126 - 1.5 2^-151 neither"},
		{{-0x1p-75f, 1},
	     {0x1p-76f, 0x1p-126f},
	     0x1p-126f,
	     "2^-126 - 2^-151 is half way, to the even one"},
		{{0x1p100f, 0x1p100f}, {0x1p100f, 0x1p-100f}, INFINITY, "too large"},
	};
	for (size_t i = 0; i < LEN(cases) && all_cpu(); i++) {
		size_t mark = conform_mark();
		struct job *j = product_job(KERN_BF16, 1, 4, 3, cases[i].what);
		for (uint32_t c = 0; c < 12; c++)
			j->field[0].data[c] = cases[i].x[c % 4];
		for (uint32_t c = 0; c < 4; c++)
			weight_set(&j->matrix[0], c, cases[i].w[c]);
		j->shape = &cases[i];
		j->check_row = hand_check;
		job_check(j);
		conform_release(mark);
	}
}

/* a number of any size: ordinary, around the smallest that are not denormal, denormal, large, of
 * any exponent, special */
static float any_float(void)
{
	static const float special[] = {0,           -0.0f,       1,         -1,
	                                0x1p-126f,   -0x1p-126f,  0x1p-133f, 0x1.fep-127f,
	                                0x1.fep127f, -0x1.fep127f};
	uint32_t kind = rand_bits() % 7, u = rand_bits(), exponent = u >> 8;
	exponent = kind == 0   ? 120 + exponent % 8
	           : kind == 1 ? exponent % 12
	           : kind == 2 ? 0
	           : kind == 3 ? 243 + exponent % 12
	           : kind == 4 ? 60 + exponent % 8
	                       : exponent % 255;
	float f;
	u = (u & 0x80000000) | exponent << 23 | (rand_bits() & 0x7fffff);
	memcpy(&f, &u, 4);
	return kind == 6 ? special[u % LEN(special)] : f;
}

/* Plain C, fused additions in a mode of the processor, and the instruction: the same bits. With k =
 * 2 numbers of all sizes; else ones whose sums come and go about the smallest that is not
 * denormal. */
CONFORM_TEST(products_of_any_bf16)
{
	enum { N = 70, ROWS = 53, K = 37, ROUNDS = 12 };
	for (uint32_t round = 0; round < ROUNDS && all_cpu(); round++) {
		size_t mark = conform_mark();
		uint32_t k = round % 2 ? K : 2;
		struct job *j = product_job(KERN_BF16, N, k, ROWS, "numbers of any size");
		for (uint32_t i = 0; i < ROWS * k; i++)
			j->field[0].data[i] = k == 2 ? any_float() : rand_unit() * 0x1p-63f;
		for (uint32_t i = 0; i < N * k; i++)
			weight_set(&j->matrix[0], i, k == 2 ? any_float() : rand_unit() * 0x1p-63f);
		job_check(j);
		conform_release(mark);
	}
}
