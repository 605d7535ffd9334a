/* test_conform_matmul.c - products with weights: matmul of every type, alone and in groups, with
 * and without bias; heads_matmul. */
/* run: fast long */
#include "tests/conform/conform.h"

#include <math.h>
#include <string.h>

static const double u = 0x1p-24; /* the rounding of one float32 operation */

static const struct {
	struct sequence seq[SEQUENCES];
} worlds[] = {
	{{{0, 1}}},
	{{{0, 5}, {9, 1}, {3, 25}}},
	{{{4, 2}}},
	{{{0, 65}}},
	{{{0, 3}}},
	{{{7, 16}}},
	{{{0, 2}, {5, 3}}},
	{{{0, 31}, {5, 1}, {6, 1}}},
	{{{0, 120}, {15, 1}, {333, 79}}},
};

static struct world *world_get(uint32_t i)
{
	return world_new(worlds[i % LEN(worlds)].seq, 16);
}

/* --- matmul -------------------------------------------------------------- */

struct product_shape {
	enum kern_dtype type;
	uint32_t n;
	bool bias;
};
struct matmul_shape {
	uint32_t k;
	struct product_shape p[KERN_PRODUCTS_MAX];
};

static uint32_t products_of(const struct matmul_shape *s)
{
	uint32_t n = 0;
	while (n < KERN_PRODUCTS_MAX && s->p[n].n)
		n++;
	return n;
}

/* Field 0 is x, field 1 + i is y of product i; biases are constants in order. */
static uint32_t matmul_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	const struct matmul_shape *s = j->shape;
	op->kind = KERN_OP_MATMUL;
	op->rows = j->field[0].rows;
	op->matmul.x = l->field[0];
	op->matmul.products = products_of(s);
	for (uint32_t i = 0, bias = 0; i < op->matmul.products; i++)
		op->matmul.p[i] = (struct kern_product){l->w[i],
		                                        s->p[i].bias ? l->constant[bias++] : (kern_ptr){0},
		                                        l->field[1 + i]};
	return 1;
}

/* ref_product's bound, and the rounding of the sum with the bias. */
static void matmul_row(const struct job *j, const struct precision *p, const struct result *r,
                       uint32_t row, struct expect *e)
{
	(void)r;
	const struct matmul_shape *s = j->shape;
	const double *x = ref_doubles(job_data(j, 0, row), s->k);
	for (uint32_t i = 0, bias = 0; i < products_of(s); i++) {
		ref_product(p, &j->matrix[i], x, e->value[1 + i], e->bound[1 + i]);
		const float *b = s->p[i].bias ? j->constant[bias++].data : NULL;
		for (uint32_t c = 0; b && c < s->p[i].n; c++) {
			e->value[1 + i][c] += (double)b[c];
			e->bound[1 + i][c] += u * fabs(e->value[1 + i][c]);
		}
	}
}

static struct job *matmul_job(const struct matmul_shape *s, uint32_t world, uint32_t number)
{
	struct job *j = job_new(KERN_OP_MATMUL, world_get(world),
	                        "%u columns by %s of %u rows%s, %u products", s->k,
	                        kern_dtype_name(s->p[0].type), s->p[0].n,
	                        s->p[0].bias ? " with a bias" : "", products_of(s));
	enum kern_rows rows = number % 4 == 3 ? KERN_ROWS_TAIL : KERN_ROWS_ALL;
	j->shape = s;
	job_field(j, "x", IN, rows, 1, s->k, 3);
	job_matrices(j, products_of(s));
	for (uint32_t i = 0; i < products_of(s); i++) {
		static const char *const names[] = {"y0", "y1", "y2", "y3"};
		job_field(j, names[i], OUT, rows, 1, s->p[i].n, 0);
		job_matrix(j, i, s->p[i].type, s->p[i].n, s->k);
		if (s->p[i].bias)
			job_constant(j, rand_floats(s->p[i].n, 1), s->p[i].n * sizeof(float));
	}
	j->record = matmul_record;
	j->row = matmul_row;
	return j;
}

static void matmul_all(const struct matmul_shape *shapes, uint32_t count, uint32_t worlds_each)
{
	for (uint32_t i = 0; i < count; i++)
		for (uint32_t n = 0; n < worlds_each; n++) {
			size_t mark = conform_mark();
			job_check(matmul_job(&shapes[i], 2 * i + 4 * n, i + n));
			conform_release(mark);
		}
}

CONFORM_TEST(matmul_of_floats)
{
	static const struct matmul_shape shapes[] = {
		{1, {{KERN_F32, 1, false}}},      {37, {{KERN_F32, 70, true}}},
		{96, {{KERN_F32, 192, false}}},   {33, {{KERN_F16, 65, false}}},
		{64, {{KERN_F16, 130, true}}},    {31, {{KERN_BF16, 63, true}}},
		{576, {{KERN_BF16, 128, false}}}, {1, {{KERN_BF16, 7, false}}},
		{577, {{KERN_BF16, 66, true}}},   {1000, {{KERN_F16, 17, false}}},
		{64, {{KERN_BF16, 130, false}}},  {40, {{KERN_BF16, 72, true}}},
		{513, {{KERN_F32, 33, true}}},
	};
	matmul_all(shapes, LEN(shapes), 3);
}

CONFORM_TEST(matmul_of_blocks_of_32)
{
	static const struct matmul_shape shapes[] = {
		{32, {{KERN_Q8_0, 1, false}}},    {96, {{KERN_Q8_0, 50, true}}},
		{576, {{KERN_Q8_0, 96, false}}},  {32, {{KERN_Q4_0, 17, true}}},
		{576, {{KERN_Q4_0, 64, false}}},  {1056, {{KERN_Q4_0, 33, false}}},
		{32, {{KERN_Q4_1, 15, false}}},   {576, {{KERN_Q4_1, 80, true}}},
		{1056, {{KERN_Q4_1, 47, false}}}, {32, {{KERN_Q5_0, 17, true}}},
		{576, {{KERN_Q5_0, 64, false}}},  {1056, {{KERN_Q5_0, 33, false}}},
		{32, {{KERN_Q5_1, 15, false}}},   {576, {{KERN_Q5_1, 47, true}}},
		{1056, {{KERN_Q5_1, 33, false}}}, {32, {{KERN_MXFP4, 17, true}}},
		{576, {{KERN_MXFP4, 64, false}}}, {1056, {{KERN_MXFP4, 33, true}}},
	};
	matmul_all(shapes, LEN(shapes), 3);
}

CONFORM_TEST(matmul_of_blocks_of_256)
{
	static const struct matmul_shape shapes[] = {
		{256, {{KERN_Q6_K, 16, false}}},  {768, {{KERN_Q6_K, 37, true}}},
		{256, {{KERN_Q4_K, 16, true}}},   {768, {{KERN_Q4_K, 37, false}}},
		{256, {{KERN_Q5_K, 1, false}}},   {768, {{KERN_Q5_K, 35, true}}},
		{1536, {{KERN_Q4_K, 64, false}}}, {512, {{KERN_Q6_K, 97, false}}},
	};
	matmul_all(shapes, LEN(shapes), 3);
}

/* The last block of a row may be a part of one. */
CONFORM_TEST(matmul_of_blocks_of_128)
{
	static const struct matmul_shape shapes[] = {
		{128, {{KERN_E4M3, 1, false}}},  {1, {{KERN_E4M3, 5, true}}},
		{129, {{KERN_E4M3, 33, false}}}, {576, {{KERN_E4M3, 64, true}}},
		{300, {{KERN_E4M3, 17, false}}}, {1024, {{KERN_E4M3, 130, true}}},
		{96, {{KERN_E4M3, 70, true}}},   {640, {{KERN_E4M3, 96, false}}},
	};
	matmul_all(shapes, LEN(shapes), 3);
}

/* Products of the same rows, of one type and of unlike ones. */
CONFORM_TEST(matmul_of_groups)
{
	static const struct matmul_shape shapes[] = {
		{64, {{KERN_BF16, 64, true}, {KERN_BF16, 32, true}, {KERN_BF16, 32, true}}},
		{256,
	     {{KERN_Q4_1, 75, false},
	      {KERN_Q6_K, 75, false},
	      {KERN_F16, 75, false},
	      {KERN_BF16, 75, false}}},
		{256,
	     {{KERN_Q8_0, 96, true},
	      {KERN_Q4_0, 33, false},
	      {KERN_Q5_0, 1, true},
	      {KERN_Q5_1, 64, false}}},
		{256, {{KERN_Q4_K, 20, false}, {KERN_Q5_K, 75, true}}},
		{512, {{KERN_F32, 40, false}, {KERN_Q6_K, 130, true}, {KERN_F32, 3, true}}},
		{96,
	     {{KERN_BF16, 48, false},
	      {KERN_Q8_0, 33, true},
	      {KERN_BF16, 120, true},
	      {KERN_BF16, 9, false}}},
		{576, {{KERN_Q4_0, 192, false}, {KERN_Q4_0, 192, false}}},
		{96, {{KERN_MXFP4, 70, true}, {KERN_Q8_0, 33, false}, {KERN_F32, 65, true}}},
		{288, {{KERN_E4M3, 70, true}, {KERN_Q4_1, 33, false}, {KERN_BF16, 65, false}}},
		{384, {{KERN_E4M3, 64, false}, {KERN_E4M3, 64, true}, {KERN_E4M3, 1, false}}},
	};
	matmul_all(shapes, LEN(shapes), 4);
}

/* Large enough that backends cut the work in other ways than above. */
CONFORM_TEST(matmul_of_many_columns)
{
	static const struct matmul_shape shapes[] = {
		{256, {{KERN_Q4_0, 3000, false}}},
		{64, {{KERN_BF16, 5001, true}}},
		{2304, {{KERN_Q8_0, 70, false}}},
		{256, {{KERN_Q4_K, 1025, false}, {KERN_Q6_K, 511, false}}},
		{2240, {{KERN_E4M3, 300, false}}},
		{128, {{KERN_E4M3, 5001, false}}},
	};
	matmul_all(shapes, LEN(shapes), 2);
}

/* Where a block's scale lies, and what makes it NaN or infinite. */
static void spoil(struct matrix *m, uint32_t row, uint32_t column, bool infinite)
{
	uint32_t values = m->type == KERN_E4M3            ? 128
	                  : kern_dtype_bytes(m->type, 1)  ? 1
	                  : kern_dtype_bytes(m->type, 32) ? 32
	                                                  : 256;
	unsigned char *at = matrix_row(m, row) + kern_dtype_bytes(m->type, column / values * values) +
	                    (m->type == KERN_Q6_K ? 208 : 0);
	float f = infinite ? INFINITY : NAN;
	if (m->type == KERN_F32 || m->type == KERN_E4M3) {
		memcpy(at, &f, 4);
	} else if (m->type == KERN_MXFP4) {
		*at = 255;
	} else {
		uint16_t bits = format_bits(m->type == KERN_BF16 ? KERN_BF16 : KERN_F16, f);
		memcpy(at, &bits, 2);
	}
	format_row(m->type, matrix_row(m, row), m->k, m->value + (size_t)row * m->k);
}

/* NaN and infinity in some rows of a matrix, or in the scales of their blocks: those columns of
 * the result are not finite, the others are as ever. */
CONFORM_TEST(matmul_of_spoilt_weights)
{
	for (int t = KERN_F32; t < KERN_WEIGHT_DTYPES; t++) {
		size_t mark = conform_mark();
		const struct matmul_shape s = {512, {{(enum kern_dtype)t, 37, t % 2}}};
		struct job *j = matmul_job(&s, (uint32_t)(t % 2 ? 1 : 4), 0);
		for (uint32_t i = 0; i < 6; i++)
			spoil(&j->matrix[0], (const uint32_t[]){0, 3, 16, 17, 31, 36}[i],
			      (const uint32_t[]){511, 0, 300, 77, 255, 256}[i], i % 2);
		j->clean = true;
		job_check(j);
		conform_release(mark);
	}
}

/* Every code in any place of a row; NaN in codes makes their block NaN, and with it a
 * column of the result, but not in codes beyond the row's values, here those of a wider matrix. */
CONFORM_TEST(matmul_of_all_codes)
{
	enum { N = 70, K = 300 };
	static const struct matmul_shape s = {K, {{KERN_E4M3, N, true}}};
	for (uint32_t nan = 0; nan < 2; nan++) {
		size_t mark = conform_mark();
		struct job *j = matmul_job(&s, 7 + nan, 0);
		struct matrix *m = &j->matrix[0];
		for (uint32_t i = 0; i < N * K; i++) {
			unsigned code = i * 7 + i / K;
			bool spare = (code & 127) == 127 && !(nan && i / K % 10 == 3);
			unsigned char *block = matrix_row(m, i / K) +
			                       kern_dtype_bytes(KERN_E4M3, i % K / 128 * 128);
			block[4 + i % K % 128] = (unsigned char)(spare ? code - 1 : code);
		}
		for (uint32_t r = 0; r < N; r++) {
			unsigned char *last = matrix_row(m, r) + kern_dtype_bytes(KERN_E4M3, K - K % 128);
			last[4 + K % 128] = 0x7f;
			format_row(m->type, matrix_row(m, r), K, m->value + (size_t)r * K);
		}
		j->clean = nan;
		job_check(j);
		conform_release(mark);
	}
}

/* --- one matrix for each head -------------------------------------------- */

struct heads_shape {
	enum kern_dtype type;
	uint32_t heads, n, k, tail;
};

static uint32_t heads_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	const struct heads_shape *s = j->shape;
	op->kind = KERN_OP_HEADS_MATMUL;
	op->rows = j->field[0].rows;
	op->heads_matmul.x = l->field[0];
	op->heads_matmul.y = l->field[1];
	op->heads_matmul.w = l->w[0];
	op->heads_matmul.heads = s->heads;
	op->heads_matmul.tail = s->tail;
	return 1;
}

static void heads_row(const struct job *j, const struct precision *p, const struct result *r,
                      uint32_t row, struct expect *e)
{
	(void)r;
	const struct heads_shape *s = j->shape;
	const double *x = ref_doubles(job_data(j, 0, row), s->heads * (s->k + s->tail));
	for (uint32_t h = 0; h < s->heads; h++, x += s->k + s->tail) {
		uint32_t to = h * (s->n + s->tail);
		ref_product(p, &j->matrix[h], x, e->value[1] + to, e->bound[1] + to);
		memcpy(e->value[1] + to + s->n, x + s->k, s->tail * sizeof *x); /* exact */
	}
}

CONFORM_TEST(heads_matmul)
{
	static const struct heads_shape shapes[] = {
		{KERN_BF16, 1, 1, 1, 0},    {KERN_BF16, 4, 24, 16, 8},    {KERN_F32, 3, 20, 24, 0},
		{KERN_BF16, 5, 70, 33, 4},  {KERN_Q8_0, 16, 32, 64, 12},  {KERN_F16, 2, 512, 128, 64},
		{KERN_MXFP4, 3, 40, 32, 0}, {KERN_E4M3, 4, 512, 128, 64}, {KERN_E4M3, 3, 40, 20, 8},
	};
	for (uint32_t i = 0; i < LEN(shapes); i++)
		for (uint32_t n = 0; n < 3; n++) {
			size_t mark = conform_mark();
			const struct heads_shape *s = &shapes[i];
			struct job *j = job_new(KERN_OP_HEADS_MATMUL, world_get(3 * i + 2 * n + 1),
			                        "%u heads, %u to %u columns of %s, and %u more", s->heads, s->k,
			                        s->n, kern_dtype_name(s->type), s->tail);
			enum kern_rows rows = i % 3 == 2 ? KERN_ROWS_TAIL : KERN_ROWS_ALL;
			j->shape = s;
			job_field(j, "x", IN, rows, 1, s->heads * (s->k + s->tail), 3);
			job_field(j, "y", OUT, rows, 1, s->heads * (s->n + s->tail), 0);
			job_matrices(j, s->heads);
			for (uint32_t h = 0; h < s->heads; h++)
				job_matrix_of(j, h, h ? 0 : s->heads, s->type, s->n, s->k);
			j->record = heads_record;
			j->row = heads_row;
			job_check(j);
			conform_release(mark);
		}
}
