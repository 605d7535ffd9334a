/* test_conform_rows.c - operations on rows of activations: embed, gather_rows, scale, norm,
 * head_norm, rope, act_mul. */
/* run: fast */
#include "tests/conform/conform.h"

#include <math.h>
#include <string.h>

static const double u = 0x1p-24; /* the rounding of one float32 operation */

static const struct {
	struct sequence seq[SEQUENCES];
} worlds[] = {
	{{{0, 1}}},
	{{{4, 2}}},
	{{{0, 3}, {40, 2}}},
	{{{0, 16}}},
	{{{0, 2}, {77, 1}, {1000, 2}}},
	{{{0, 30}, {5, 1}}},
	{{{131000, 65}}},
	{{{0, 120}, {15, 1}, {3333, 79}}},
	{{{10000000, 1}, {8190, 3}, {131072, 1}}},
};

/* The number of worlds that a shape is tried in, spread over all of them. */
#define EACH_WORLD(shape, w)                                                          \
	for (size_t n_ = 0, mark_ = conform_mark(); n_ < 3; n_++, conform_release(mark_)) \
		for (struct world *w = world_get((uint32_t)(3 * (shape) + 2 * n_ + 1)); w; w = NULL)

static struct world *world_get(uint32_t i)
{
	const struct sequence *seq = worlds[i % LEN(worlds)].seq;
	return world_new(seq, seq->position > 100000 ? 4096 : 16);
}

static enum kern_rows rows_of(uint32_t i)
{
	return i % 3 == 2 ? KERN_ROWS_TAIL : KERN_ROWS_ALL;
}

/* --- embed --------------------------------------------------------------- */

/* Exact: each value is rounded to float32 once. The table may be a part of the vocabulary: rows
 * [first, first + n) of 97. */
struct embed_shape {
	enum kern_dtype type;
	uint32_t k, first, n;
};

static uint32_t embed_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	const struct embed_shape *s = j->shape;
	op->kind = KERN_OP_EMBED;
	op->embed.y = l->field[0];
	op->embed.w = l->w[0];
	op->embed.first = s->first;
	return 1;
}

static void embed_row(const struct job *j, const struct precision *p, const struct result *r,
                      uint32_t row, struct expect *e)
{
	(void)p, (void)r;
	const struct embed_shape *s = j->shape;
	uint32_t token = j->world.token[row];
	e->untouched = token < s->first || token >= s->first + s->n;
	for (uint32_t i = 0; i < s->k && !e->untouched; i++)
		e->value[0][i] = (double)j->matrix[0].value[(size_t)(token - s->first) * s->k + i];
}

CONFORM_TEST(embed)
{
	static const struct embed_shape shapes[] = {
		{KERN_F32, 1, 0, 97},    {KERN_F32, 37, 0, 97},   {KERN_F16, 33, 0, 97},
		{KERN_BF16, 31, 30, 40}, {KERN_BF16, 576, 0, 97}, {KERN_Q8_0, 96, 0, 97},
		{KERN_Q4_0, 32, 60, 37}, {KERN_Q4_1, 96, 0, 97},  {KERN_Q5_0, 160, 0, 33},
		{KERN_Q5_1, 64, 0, 97},  {KERN_Q4_K, 256, 0, 97}, {KERN_Q5_K, 512, 1, 95},
		{KERN_Q6_K, 256, 0, 97}, {KERN_MXFP4, 96, 0, 97}, {KERN_MXFP4, 32, 11, 50},
		{KERN_BF16, 40, 9, 88},  {KERN_E4M3, 256, 0, 97}, {KERN_E4M3, 200, 5, 80},
	};
	for (uint32_t i = 0; i < LEN(shapes); i++)
		EACH_WORLD(i, w)
		{
			const struct embed_shape *s = &shapes[i];
			struct job *j = job_new(KERN_OP_EMBED, w, "%s, rows %u to %u of 97, %u wide",
			                        kern_dtype_name(s->type), s->first, s->first + s->n, s->k);
			j->shape = s;
			job_field(j, "y", OUT, KERN_ROWS_ALL, 1, s->k, 0);
			job_matrices(j, 1);
			job_matrix(j, 0, s->type, s->n, s->k);
			j->record = embed_record;
			j->row = embed_row;
			job_check(j);
		}
}

/* --- gather_rows, scale -------------------------------------------------- */

/* The formats of activations of a job are those of its fields, so a copied value is exact. */
static uint32_t gather_rows_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	op->kind = KERN_OP_GATHER_ROWS;
	op->rows = KERN_ROWS_TAIL;
	op->gather_rows.y = l->field[0];
	op->gather_rows.x = l->field[1];
	op->gather_rows.dim = j->field[0].columns;
	return 1;
}

static void gather_rows_row(const struct job *j, const struct precision *p, const struct result *r,
                            uint32_t row, struct expect *e)
{
	(void)p, (void)r;
	for (uint32_t i = 0; i < j->field[0].columns; i++)
		e->value[0][i] = (double)job_data(j, 1, row)[i];
}

CONFORM_TEST(gather_rows)
{
	static const uint32_t dims[] = {1, 5, 16, 33, 576};
	for (uint32_t i = 0; i < LEN(dims); i++)
		EACH_WORLD(i, w)
		{
			struct job *j = job_new(KERN_OP_GATHER_ROWS, w, "%u columns", dims[i]);
			job_field(j, "y", OUT, KERN_ROWS_TAIL, 1, dims[i], 0);
			job_field(j, "x", IN, KERN_ROWS_ALL, 1, dims[i], 3);
			j->record = gather_rows_record;
			j->row = gather_rows_row;
			job_check(j);
		}
}

/* Exact: one rounding. Field 0 is y, or x in place. */
struct scale_shape {
	uint32_t dim;
	float factor;
	bool in_place;
};

static uint32_t scale_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	const struct scale_shape *s = j->shape;
	op->kind = KERN_OP_SCALE;
	op->rows = j->field[0].rows;
	op->scale.y = l->field[0];
	op->scale.x = l->field[s->in_place ? 0 : 1];
	op->scale.factor = s->factor;
	op->scale.dim = s->dim;
	return 1;
}

static void scale_row(const struct job *j, const struct precision *p, const struct result *r,
                      uint32_t row, struct expect *e)
{
	(void)p, (void)r;
	const struct scale_shape *s = j->shape;
	for (uint32_t i = 0; i < s->dim; i++)
		e->value[0][i] = (double)job_data(j, s->in_place ? 0 : 1, row)[i] * (double)s->factor;
}

CONFORM_TEST(scale)
{
	static const struct scale_shape shapes[] = {{1, 3, false},
	                                            {7, 1.1f, true},
	                                            {36, -0.7f, false},
	                                            {512, 24.5f, true},
	                                            {1030, 0.05f, false}};
	for (uint32_t i = 0; i < LEN(shapes); i++)
		EACH_WORLD(i, w)
		{
			struct job *j = job_new(KERN_OP_SCALE, w, "%u columns by %g%s", shapes[i].dim,
			                        (double)shapes[i].factor,
			                        shapes[i].in_place ? ", in place" : "");
			j->shape = &shapes[i];
			job_field(j, "y", shapes[i].in_place ? INOUT : OUT, rows_of(i), 1, shapes[i].dim, 3);
			if (!shapes[i].in_place)
				job_field(j, "x", IN, rows_of(i), 1, shapes[i].dim, 3);
			j->record = scale_record;
			j->row = scale_row;
			job_check(j);
		}
}

/* --- norm ---------------------------------------------------------------- */

/* Where y is. With an addend, x takes the sum. */
enum norm_form { NORM_PLAIN, NORM_IN_PLACE, NORM_ADD, NORM_ADD_IN_X, NORM_ADD_IN_A, NORM_FORMS };
static const char *const norm_forms[] = {"", ", y is x", ", x += a", ", x += a, y is x",
                                         ", x += a, y is a"};
struct norm_shape {
	uint32_t dim;
	float eps, scale;
	enum norm_form form;
};

static uint32_t norm_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	const struct norm_shape *s = j->shape;
	bool add = s->form >= NORM_ADD;
	op->kind = KERN_OP_NORM;
	op->rows = j->field[0].rows;
	op->norm.x = l->field[0];
	op->norm.a = add ? l->field[1] : (struct kern_tensor){0};
	op->norm.y = s->form == NORM_IN_PLACE || s->form == NORM_ADD_IN_X ? l->field[0]
	             : s->form == NORM_ADD_IN_A                           ? l->field[1]
	                                                                  : l->field[add ? 2 : 1];
	op->norm.w = l->constant[0];
	op->norm.dim = s->dim;
	op->norm.eps = s->eps;
	return 1;
}

/* y is x and the weight times a factor: three roundings, and the factor's own, which are half of
 * those of the mean of squares. Its terms are positive, so its sum goes as a random walk of
 * roundings of the sum itself: at worst, when one element is nearly all of it, about sqrt(dim) /
 * 3 of them, halved by the root. */
static void norm_values(const float *w, const double *x, uint32_t dim, double eps, double *y,
                        double *bound)
{
	double sum = 0;
	for (uint32_t i = 0; i < dim; i++)
		sum += x[i] * x[i];
	for (uint32_t i = 0; i < dim; i++) {
		y[i] = (double)w[i] * x[i] / sqrt(sum / dim + eps);
		bound[i] = (5 + sqrt(dim) / 8) * u * fabs(y[i]) + 0x1p-148;
	}
}

static void norm_row(const struct job *j, const struct precision *p, const struct result *r,
                     uint32_t row, struct expect *e)
{
	(void)p, (void)r;
	const struct norm_shape *s = j->shape;
	bool add = s->form >= NORM_ADD;
	double *x = conform_alloc(s->dim, sizeof *x);
	uint32_t y = s->form == NORM_IN_PLACE || s->form == NORM_ADD_IN_X ? 0
	             : s->form == NORM_ADD_IN_A                           ? 1
	             : add                                                ? 2
	                                                                  : 1;
	for (uint32_t i = 0; i < s->dim; i++) {
		x[i] = (double)job_data(j, 0, row)[i];
		if (add)
			x[i] = (double)format_round(j->field[0].type, x[i] + (double)job_data(j, 1, row)[i]);
		if (e->value[0])
			e->value[0][i] = x[i]; /* the sum, exactly */
	}
	norm_values(j->constant[0].data, x, s->dim, (double)s->eps, e->value[y], e->bound[y]);
	for (uint32_t i = 0; i < s->dim && j->field[0].type != KERN_F32; i++)
		/* y may be of the sum before it is rounded */
		e->bound[y][i] += 2 * format_error(j->field[0].type, e->value[y][i]);
}

CONFORM_TEST(norm)
{
	static const struct norm_shape shapes[] = {
		{1, 1e-5f, 20, NORM_PLAIN},       {4, 0.5f, 20, NORM_ADD},
		{5, 1e-6f, 1e-3f, NORM_IN_PLACE}, {16, 1e-5f, 2, NORM_ADD_IN_X},
		{33, 1e-5f, 20, NORM_ADD_IN_A},   {36, 0.5f, 20, NORM_PLAIN},
		{130, 1e-5f, 1e5f, NORM_ADD},     {512, 1e-6f, 1, NORM_IN_PLACE},
		{576, 1e-5f, 5, NORM_ADD_IN_A},   {1000, 1e-5f, 5, NORM_ADD},
		{2049, 1e-6f, 30, NORM_PLAIN},
	};
	for (uint32_t i = 0; i < LEN(shapes); i++)
		EACH_WORLD(i, w)
		{
			const struct norm_shape *s = &shapes[i];
			struct job *j = job_new(KERN_OP_NORM, w, "%u columns%s", s->dim, norm_forms[s->form]);
			j->shape = s;
			bool add = s->form >= NORM_ADD;
			job_field(j, "x", s->form == NORM_PLAIN ? IN : INOUT, rows_of(i), 1, s->dim, s->scale);
			if (add)
				job_field(j, "a", s->form == NORM_ADD_IN_A ? INOUT : IN, rows_of(i), 1, s->dim,
				          s->scale);
			if (s->form == NORM_PLAIN || s->form == NORM_ADD)
				job_field(j, "y", OUT, rows_of(i), 1, s->dim, 0);
			job_constant(j, rand_floats(s->dim, 2), s->dim * sizeof(float));
			j->record = norm_record;
			j->row = norm_row;
			job_check(j);
		}
}

struct head_norm_shape {
	uint32_t heads, head_dim;
};

static uint32_t head_norm_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	const struct head_norm_shape *s = j->shape;
	op->kind = KERN_OP_HEAD_NORM;
	op->rows = j->field[0].rows;
	op->head_norm.x = l->field[0];
	op->head_norm.w = l->constant[0];
	op->head_norm.heads = s->heads;
	op->head_norm.head_dim = s->head_dim;
	op->head_norm.eps = 1e-5f;
	return 1;
}

static void head_norm_row(const struct job *j, const struct precision *p, const struct result *r,
                          uint32_t row, struct expect *e)
{
	(void)p, (void)r;
	const struct head_norm_shape *s = j->shape;
	double *x = conform_alloc(s->head_dim, sizeof *x);
	for (uint32_t h = 0; h < s->heads; h++) {
		for (uint32_t i = 0; i < s->head_dim; i++)
			x[i] = (double)job_data(j, 0, row)[h * s->head_dim + i];
		norm_values(j->constant[0].data, x, s->head_dim, (double)1e-5f,
		            e->value[0] + h * s->head_dim, e->bound[0] + h * s->head_dim);
	}
}

CONFORM_TEST(head_norm)
{
	static const struct head_norm_shape shapes[] = {{1, 4},  {2, 2},    {5, 24}, {9, 64},
	                                                {3, 33}, {16, 128}, {2, 576}};
	for (uint32_t i = 0; i < LEN(shapes); i++)
		EACH_WORLD(i, w)
		{
			struct job *j = job_new(KERN_OP_HEAD_NORM, w, "%u heads of %u", shapes[i].heads,
			                        shapes[i].head_dim);
			j->shape = &shapes[i];
			job_field(j, "x", INOUT, rows_of(i), 1, shapes[i].heads * shapes[i].head_dim, 8);
			job_constant(j, rand_floats(shapes[i].head_dim, 2), shapes[i].head_dim * sizeof(float));
			j->record = head_norm_record;
			j->row = head_norm_row;
			job_check(j);
		}
}

/* --- rope ---------------------------------------------------------------- */

struct rope_shape {
	enum kern_rope_style style;
	uint32_t heads, head_dim, dims;
	float scale, base;
};

static uint32_t rope_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	const struct rope_shape *s = j->shape;
	op->kind = KERN_OP_ROPE;
	op->rope.x = l->field[0];
	op->rope.rope = (struct kern_rope){s->style, s->dims, s->scale, l->constant[0]};
	op->rope.heads = s->heads;
	op->rope.head_dim = s->head_dim;
	return 1;
}

/* The angle is rounded to float32, as in the models' own code: 2^17 radians are off by up to 0.004.
 * What follows: sine and cosine, their products with the scale, two products and a sum: five
 * roundings of parts of |u| + |v|; 3 u of that is seen no more than half used. */
static void rope_row(const struct job *j, const struct precision *p, const struct result *r,
                     uint32_t row, struct expect *e)
{
	(void)p, (void)r;
	const struct rope_shape *s = j->shape;
	const float *inv_freq = j->constant[0].data, *x = job_data(j, 0, row);
	for (uint32_t i = 0; i < s->heads * s->head_dim; i++)
		e->value[0][i] = (double)x[i];
	for (uint32_t h = 0; h < s->heads; h++)
		for (uint32_t i = 0; i < s->dims / 2; i++) {
			bool half = s->style == KERN_ROPE_HALF;
			uint32_t at = h * s->head_dim + (half ? i : 2 * i),
					 to = half ? at + s->dims / 2 : at + 1;
			double a = (double)((float)world_position(&j->world, row) * inv_freq[i]),
				   c = cos(a) * (double)s->scale, sn = sin(a) * (double)s->scale;
			double x0 = (double)x[at], x1 = (double)x[to];
			e->value[0][at] = x0 * c - x1 * sn;
			e->value[0][to] = x1 * c + x0 * sn;
			e->bound[0][at] = e->bound[0][to] = 3 * u * (fabs(x0) + fabs(x1)) * (double)s->scale +
			                                    0x1p-148;
		}
}

CONFORM_TEST(rope)
{
	static const struct rope_shape shapes[] = {
		{KERN_ROPE_HALF, 1, 2, 2, 1, 10000},
		{KERN_ROPE_INTERLEAVED, 2, 4, 4, 1, 10000},
		{KERN_ROPE_HALF, 9, 64, 64, 1, 100000},
		{KERN_ROPE_HALF, 3, 80, 32, 1, 10000},
		{KERN_ROPE_INTERLEAVED, 5, 36, 18, 1.25f, 10000},
		{KERN_ROPE_INTERLEAVED, 16, 64, 64, 1, 500000},
		{KERN_ROPE_HALF, 2, 130, 130, 0.8f, 1e6f},
		{KERN_ROPE_HALF, 1, 576, 64, 1, 10000},
		{KERN_ROPE_INTERLEAVED, 1, 33, 30, 1.5f, 10000},
		{KERN_ROPE_HALF, 2, 16, 0, 1, 10000},
		{KERN_ROPE_HALF, 1, 4, 2, 1, 1},
	};
	for (uint32_t i = 0; i < LEN(shapes); i++)
		EACH_WORLD(i, w)
		{
			const struct rope_shape *s = &shapes[i];
			struct job *j = job_new(KERN_OP_ROPE, w, "%u heads, %u of %u elements, %s", s->heads,
			                        s->dims, s->head_dim,
			                        s->style == KERN_ROPE_HALF ? "half" : "interleaved");
			float *inv_freq = conform_alloc(s->dims / 2 + 1, sizeof *inv_freq);
			for (uint32_t d = 0; d < s->dims / 2; d++)
				inv_freq[d] = powf(s->base, -2.0f * (float)d / (float)s->dims);
			j->shape = s;
			job_field(j, "x", INOUT, KERN_ROWS_ALL, 1, s->heads * s->head_dim, 8);
			job_constant(j, inv_freq, (s->dims / 2 + 1) * sizeof *inv_freq);
			j->record = rope_record;
			j->row = rope_row;
			job_check(j);
		}
}

/* --- act_mul ------------------------------------------------------------- */

struct act_shape {
	enum kern_act act;
	uint32_t dim;
	float scale;
};

static uint32_t act_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	const struct act_shape *s = j->shape;
	op->kind = KERN_OP_ACT_MUL;
	op->rows = j->field[0].rows;
	op->act_mul.gate = l->field[0];
	op->act_mul.up = l->field[1];
	op->act_mul.y = l->field[2];
	op->act_mul.act = s->act;
	op->act_mul.dim = s->dim;
	return 1;
}

static void act_row(const struct job *j, const struct precision *p, const struct result *r,
                    uint32_t row, struct expect *e)
{
	(void)p, (void)r;
	const struct act_shape *s = j->shape;
	for (uint32_t i = 0; i < s->dim; i++)
		ref_act_mul(s->act, (double)job_data(j, 0, row)[i], 0, (double)job_data(j, 1, row)[i], 0,
		            &e->value[2][i], &e->bound[2][i]);
}

CONFORM_TEST(act_mul)
{
	static const struct act_shape shapes[] = {
		{KERN_SILU, 1, 4},
		{KERN_GELU_TANH, 3, 4},
		{KERN_SILU, 16, 12},
		{KERN_GELU_TANH, 31, 12},
		{KERN_SILU, 100, 60},
		{KERN_GELU_TANH, 256, 2},
		{KERN_SILU, 1536, 12},
		{KERN_GELU_TANH, 1000, 5},
		{KERN_SWIGLU_CLAMPED, 1, 12},
		{KERN_SWIGLU_CLAMPED, 37, 12},
		{KERN_SWIGLU_CLAMPED, 1024, 9},
	};
	for (uint32_t i = 0; i < LEN(shapes); i++)
		EACH_WORLD(i, w)
		{
			const struct act_shape *s = &shapes[i];
			struct job *j = job_new(KERN_OP_ACT_MUL, w, "%s, %u columns",
			                        s->act == KERN_SILU        ? "SiLU"
			                        : s->act == KERN_GELU_TANH ? "GELU"
			                                                   : "clamped SwiGLU",
			                        s->dim);
			j->shape = s;
			job_field(j, "gate", IN, rows_of(i), 1, s->dim, s->scale);
			job_field(j, "up", IN, rows_of(i), 1, s->dim, s->act == KERN_SWIGLU_CLAMPED ? 10 : 3);
			job_field(j, "y", OUT, rows_of(i), 1, s->dim, 0);
			j->record = act_record;
			j->row = act_row;
			job_check(j);
		}
}
