/* test_conform_experts.c - mixtures of experts: the products of those that a row chose, with
 * biases and matrices of unlike types; and all of a layer as one program. */
/* run: fast long */
#include "tests/conform/conform.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double u = 0x1p-24; /* the rounding of one float32 operation */

static const struct {
	struct sequence seq[SEQUENCES];
} worlds[] = {
	{{{0, 1}}},
	{{{0, 21}}},
	{{{4, 2}}},
	{{{0, 3}, {5, 1}}},
	{{{0, 65}}},
	{{{7, 14}, {0, 2}}},
	{{{0, 31}, {5, 1}, {6, 1}}},
	{{{0, 120}, {15, 1}, {333, 79}}},
};

static struct world *world_get(uint32_t i)
{
	return world_new(worlds[i % LEN(worlds)].seq, 16);
}

static float as_id(uint32_t id)
{
	float f;
	memcpy(&f, &id, 4);
	return f;
}

/* --- experts ------------------------------------------------------------- */

struct expert_shape {
	enum kern_dtype gate, up, down;
	uint32_t experts, used, hidden, ffn;
	enum kern_act act;
	bool biased;
	uint32_t before, after; /* experts that the device does not have */
};
#define ALL(type) type, type, type

static const struct expert_shape expert_shapes[] = {
	{ALL(KERN_F32), 4, 1, 1, 1, KERN_SILU, false, 0, 0},
	{ALL(KERN_BF16), 8, 2, 64, 48, KERN_SILU, true, 0, 0},
	{ALL(KERN_BF16), 12, 3, 33, 17, KERN_GELU_TANH, false, 0, 0},
	{ALL(KERN_Q8_0), 6, 4, 96, 64, KERN_SILU, false, 0, 0},
	{ALL(KERN_F32), 40, 8, 20, 24, KERN_SILU, false, 0, 0},
	{ALL(KERN_Q4_0), 5, 2, 64, 160, KERN_SILU, true, 0, 0},
	{ALL(KERN_Q4_K), 4, 2, 256, 256, KERN_GELU_TANH, false, 0, 0},
	{ALL(KERN_BF16), 128, 8, 32, 16, KERN_SILU, false, 0, 0},
	{ALL(KERN_F16), 16, 6, 48, 80, KERN_SILU, false, 0, 0},
	{ALL(KERN_Q5_1), 4, 4, 64, 32, KERN_SILU, false, 0, 0},
	{ALL(KERN_MXFP4), 8, 4, 96, 64, KERN_SWIGLU_CLAMPED, true, 0, 0},
	{ALL(KERN_E4M3), 6, 2, 256, 128, KERN_SILU, false, 0, 0},
	{ALL(KERN_E4M3), 8, 4, 100, 60, KERN_SILU, true, 0, 0},
	/* of a type each, so of panels of unlike widths */
	{KERN_F32, KERN_Q8_0, KERN_BF16, 6, 2, 64, 160, KERN_SILU, true, 0, 0},
	{KERN_Q4_0, KERN_F16, KERN_MXFP4, 5, 3, 32, 96, KERN_SWIGLU_CLAMPED, false, 0, 0},
	{KERN_BF16, KERN_Q6_K, KERN_F32, 4, 2, 256, 37, KERN_GELU_TANH, true, 0, 0},
	{KERN_E4M3, KERN_BF16, KERN_E4M3, 5, 2, 160, 37, KERN_SILU, false, 0, 0},
	/* parts of them, and none */
	{ALL(KERN_BF16), 8, 4, 64, 48, KERN_SILU, true, 0, 5},
	{ALL(KERN_Q8_0), 40, 8, 96, 64, KERN_SILU, false, 13, 14},
	{KERN_F32, KERN_MXFP4, KERN_BF16, 6, 2, 64, 160, KERN_SILU, true, 5, 0},
	{ALL(KERN_BF16), 6, 3, 32, 16, KERN_SILU, true, 2, 4},
};

static uint32_t own_experts(const struct expert_shape *s)
{
	return s->experts - s->before - s->after;
}

static bool is_own(const struct expert_shape *s, uint32_t expert)
{
	return expert - s->before < own_experts(s);
}

/* A weight has at least one. */
static uint32_t matrices_of(const struct expert_shape *s)
{
	return own_experts(s) ? own_experts(s) : 1;
}

/* Of a row, different ones; some experts are chosen by many rows and some by none. */
static void ids_random(struct job *j, uint32_t f, const struct expert_shape *s)
{
	for (uint32_t r = 0; r < world_rows(&j->world); r++) {
		uint32_t step = 1 + rand_below(s->experts > 7 ? 5 : 1),
				 first = r % 3 ? rand_below(s->experts) : 1 % s->experts;
		while (step > 1 && s->experts % step == 0)
			step--;
		for (uint32_t i = 0; i < s->used; i++)
			j->field[f].data[r * s->used + i] = as_id((first + i * step) % s->experts);
	}
}

/* The matrices of a job, and its constants: those of gate and up, of down. */
static struct kern_experts experts_of(const struct expert_shape *s, const struct live *l,
                                      bool gate_up, bool down)
{
	struct kern_experts e = {.experts = s->experts, .first = s->before, .count = own_experts(s)};
	struct kern_weight **w = l->w;
	const kern_ptr *bias = l->constant;
	if (gate_up) {
		e.gate = *w;
		e.up = w[matrices_of(s)];
		w += 2 * matrices_of(s);
	}
	if (gate_up && s->biased) {
		e.gate_bias = *bias++;
		e.up_bias = *bias++;
	}
	if (down)
		e.down = *w;
	if (down && s->biased)
		e.down_bias = *bias;
	return e;
}

/* Matrices i, i + 1 ... of all experts; a bias for each if they have any. */
static void add_matrices(struct job *j, uint32_t i, const struct expert_shape *s,
                         enum kern_dtype type, uint32_t n, uint32_t k)
{
	for (uint32_t e = 0; e < matrices_of(s); e++)
		job_matrix_of(j, i + e, e ? 0 : matrices_of(s), type, n, k);
	if (s->biased)
		job_constant(j, rand_floats((size_t)matrices_of(s) * n, 1),
		             (size_t)matrices_of(s) * n * sizeof(float));
}

/* ref_product with the bias of an expert, if there is any. */
static void product_of(const struct precision *p, const struct matrix *w, const float *bias,
                       uint32_t expert, const double *x, double *y, double *bound)
{
	ref_product(p, &w[expert], x, y, bound);
	for (uint32_t i = 0; i < w->n && bias; i++) {
		y[i] += (double)bias[(size_t)expert * w->n + i];
		bound[i] += u * fabs(y[i]);
	}
}

static const float *bias_of(const struct job *j, const struct expert_shape *s, uint32_t constant)
{
	return s->biased ? j->constant[constant].data : NULL;
}

/* --- experts_act */

static uint32_t act_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	const struct expert_shape *s = j->shape;
	op->kind = KERN_OP_EXPERTS_ACT;
	op->rows = j->field[0].rows;
	op->experts_act.experts = experts_of(s, l, true, false);
	op->experts_act.ids = l->field[0].at;
	op->experts_act.used = s->used;
	op->experts_act.act = s->act;
	op->experts_act.x = l->field[1];
	op->experts_act.y = l->field[2];
	return 1;
}

static void act_values(const struct precision *p, const struct job *j, const struct expert_shape *s,
                       uint32_t e, const double *x, double *y, double *bound)
{
	double *g = conform_alloc(4 * (size_t)s->ffn, sizeof *g), *gb = g + s->ffn, *up = gb + s->ffn,
		   *ub = up + s->ffn;
	product_of(p, j->matrix, bias_of(j, s, 0), e - s->before, x, g, gb);
	product_of(p, j->matrix + matrices_of(s), bias_of(j, s, 1), e - s->before, x, up, ub);
	for (uint32_t i = 0; i < s->ffn; i++)
		ref_act_mul(s->act, g[i], gb[i], up[i], ub[i], &y[i], &bound[i]);
}

static void act_row(const struct job *j, const struct precision *p, const struct result *r,
                    uint32_t row, struct expect *e)
{
	(void)r;
	const struct expert_shape *s = j->shape;
	const double *x = ref_doubles(job_data(j, 1, row), s->hidden);
	for (uint32_t i = 0; i < s->used; i++) {
		uint32_t expert = id_of(job_data(j, 0, row)[i]), at = i * s->ffn;
		if (is_own(s, expert))
			act_values(p, j, s, expert, x, e->value[2] + at, e->bound[2] + at);
		for (uint32_t c = at; c < at + s->ffn && !is_own(s, expert); c++)
			e->value[2][c] = (double)job_data(j, 2, row)[c];
	}
}

CONFORM_TEST(experts_act)
{
	for (uint32_t i = 0; i < 3 * LEN(expert_shapes); i++) {
		size_t mark = conform_mark();
		const struct expert_shape *s = &expert_shapes[i / 3];
		struct job *j = job_new(KERN_OP_EXPERTS_ACT, world_get(3 * (i / 3) + 3 * (i % 3) + 1),
		                        "%u of %u experts, %u there, %u to %u of %s and %s", s->used,
		                        s->experts, own_experts(s), s->hidden, s->ffn,
		                        kern_dtype_name(s->gate), kern_dtype_name(s->up));
		enum kern_rows rows = i % 4 == 3 ? KERN_ROWS_TAIL : KERN_ROWS_ALL;
		j->shape = s;
		job_dense(j, job_field(j, "ids", IN, rows, 1, s->used, 0), TYPE_U32);
		ids_random(j, 0, s);
		job_field(j, "x", IN, rows, 1, s->hidden, 2);
		job_field(j, "y", own_experts(s) == s->experts ? OUT : INOUT, rows, s->used, s->ffn, 1);
		job_matrices(j, 2 * matrices_of(s));
		add_matrices(j, 0, s, s->gate, s->ffn, s->hidden);
		add_matrices(j, matrices_of(s), s, s->up, s->ffn, s->hidden);
		j->record = act_record;
		j->row = act_row;
		job_check(j);
		conform_release(mark);
	}
}

/* --- experts_down */

struct down_shape {
	struct expert_shape s;
	bool add;
};
enum { DOWN_IDS, DOWN_WEIGHTS, DOWN_X, DOWN_Y };

static uint32_t down_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	const struct down_shape *d = j->shape;
	op->kind = KERN_OP_EXPERTS_DOWN;
	op->rows = j->field[DOWN_IDS].rows;
	op->experts_down.experts = experts_of(&d->s, l, false, true);
	op->experts_down.ids = l->field[DOWN_IDS].at;
	op->experts_down.weights = l->field[DOWN_WEIGHTS].at;
	op->experts_down.used = d->s.used;
	op->experts_down.add = d->add;
	op->experts_down.y = l->field[DOWN_Y];
	op->experts_down.x = l->field[DOWN_X];
	return 1;
}

/* The products' bounds times the weights, and two roundings of each of the `used` partial sums. */
static void down_values(const struct precision *p, const struct matrix *w, const float *bias,
                        const struct expert_shape *s, const float *ids, const float *weights,
                        const float *x, double *y, double *bound)
{
	double *v = conform_alloc(2 * (size_t)w->n, sizeof *v), *vb = v + w->n;
	for (uint32_t j = 0; j < s->used; j++) {
		if (!is_own(s, id_of(ids[j])))
			continue;
		product_of(p, w, bias, id_of(ids[j]) - s->before, ref_doubles(x + (size_t)j * w->k, w->k),
		           v, vb);
		for (uint32_t i = 0; i < w->n; i++) {
			double part = (double)weights[j] * v[i];
			y[i] += part;
			bound[i] += fabs((double)weights[j]) * vb[i] + 2 * u * fabs(part) + u * fabs(y[i]) +
			            0x1p-148;
		}
	}
}

static void down_row(const struct job *j, const struct precision *p, const struct result *r,
                     uint32_t row, struct expect *e)
{
	(void)r;
	const struct down_shape *d = j->shape;
	for (uint32_t i = 0; i < d->s.hidden && d->add; i++)
		e->value[DOWN_Y][i] = (double)job_data(j, DOWN_Y, row)[i];
	down_values(p, j->matrix, bias_of(j, &d->s, 0), &d->s, job_data(j, DOWN_IDS, row),
	            job_data(j, DOWN_WEIGHTS, row), job_data(j, DOWN_X, row), e->value[DOWN_Y],
	            e->bound[DOWN_Y]);
}

CONFORM_TEST(experts_down)
{
	for (uint32_t i = 0; i < 3 * LEN(expert_shapes); i++) {
		size_t mark = conform_mark();
		struct down_shape d = {expert_shapes[i / 3], i % 2};
		const struct expert_shape *s = &d.s;
		struct job *j = job_new(KERN_OP_EXPERTS_DOWN, world_get(3 * (i / 3) + 3 * (i % 3) + 2),
		                        "%u of %u experts, %u there, %u to %u of %s%s", s->used, s->experts,
		                        own_experts(s), s->ffn, s->hidden, kern_dtype_name(s->down),
		                        d.add ? ", added" : "");
		enum kern_rows rows = i % 4 == 2 ? KERN_ROWS_TAIL : KERN_ROWS_ALL;
		j->shape = &d;
		job_dense(j, job_field(j, "ids", IN, rows, 1, s->used, 0), TYPE_U32);
		ids_random(j, 0, s);
		job_dense(j, job_field(j, "weights", IN, rows, 1, s->used, 1), KERN_F32);
		job_field(j, "x", IN, rows, s->used, s->ffn, 2);
		job_field(j, "y", d.add ? INOUT : OUT, rows, 1, s->hidden, 5);
		job_matrices(j, matrices_of(s));
		add_matrices(j, 0, s, s->down, s->hidden, s->ffn);
		j->record = down_record;
		j->row = down_row;
		job_check(j);
		conform_release(mark);
	}
}

/* --- experts_down of pairs, and experts_sum */

enum { APART_IDS, APART_WEIGHTS, APART_X, APART_Y, APART_PAIRS, APART_SUM };

static uint32_t apart_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	const struct down_shape *d = j->shape;
	for (int i = 0; i < 2; i++) {
		op[i].kind = KERN_OP_EXPERTS_DOWN;
		op[i].experts_down.experts = experts_of(&d->s, l, false, true);
		op[i].experts_down.ids = l->field[APART_IDS].at;
		op[i].experts_down.used = d->s.used;
		op[i].experts_down.x = l->field[APART_X];
	}
	op[0].experts_down.weights = l->field[APART_WEIGHTS].at;
	op[0].experts_down.y = l->field[APART_Y];
	op[1].experts_down.pairs = 1;
	op[1].experts_down.y = l->field[APART_PAIRS];
	op[2].kind = KERN_OP_EXPERTS_SUM;
	op[2].experts_sum.ids = l->field[APART_IDS].at;
	op[2].experts_sum.weights = l->field[APART_WEIGHTS].at;
	op[2].experts_sum.used = d->s.used;
	op[2].experts_sum.dim = d->s.hidden;
	op[2].experts_sum.add = d->add;
	op[2].experts_sum.y = l->field[APART_SUM];
	op[2].experts_sum.x = l->field[APART_PAIRS];
	for (int i = 0; i < 3; i++)
		op[i].rows = j->field[APART_IDS].rows;
	return 3;
}

/* The sum of what the device has of each pair has the bits of its sum of all experts, if it has
 * all and adds to nothing. */
static void apart_row(const struct job *j, const struct precision *p, const struct result *r,
                      uint32_t row, struct expect *e)
{
	const struct down_shape *d = j->shape;
	const struct expert_shape *s = &d->s;
	const float *ids = job_data(j, APART_IDS, row), *weights = job_data(j, APART_WEIGHTS, row),
				*x = job_data(j, APART_X, row),
				*pairs = r->out[APART_PAIRS] + (size_t)row * s->used * s->hidden;
	double *sum = e->value[APART_SUM], *bound = e->bound[APART_SUM];
	down_values(p, j->matrix, bias_of(j, s, 0), s, ids, weights, x, e->value[APART_Y],
	            e->bound[APART_Y]);
	for (uint32_t i = 0; i < s->used; i++) {
		uint32_t at = i * s->hidden;
		if (is_own(s, id_of(ids[i])))
			product_of(p, j->matrix, bias_of(j, s, 0), id_of(ids[i]) - s->before,
			           ref_doubles(x + (size_t)i * s->ffn, s->ffn), e->value[APART_PAIRS] + at,
			           e->bound[APART_PAIRS] + at);
		for (uint32_t c = at; c < at + s->hidden && !is_own(s, id_of(ids[i])); c++)
			e->value[APART_PAIRS][c] = (double)job_data(j, APART_PAIRS, row)[c];
	}
	bool same = own_experts(s) == s->experts && !d->add;
	for (uint32_t c = 0; c < s->hidden; c++) {
		if (same) {
			sum[c] = (double)r->out[APART_Y][(size_t)row * s->hidden + c];
			continue;
		}
		sum[c] = d->add ? (double)job_data(j, APART_SUM, row)[c] : 0;
		double size = fabs(sum[c]);
		for (uint32_t i = 0; i < s->used; i++) {
			double part = (double)weights[i] * (double)pairs[i * s->hidden + c];
			sum[c] += part;
			size += fabs(part);
		}
		bound[c] = (s->used + 2) * u * size + 0x1p-148;
	}
}

CONFORM_TEST(experts_apart)
{
	for (uint32_t i = 0; i < 2 * LEN(expert_shapes); i++) {
		size_t mark = conform_mark();
		struct down_shape d = {expert_shapes[i / 2], i % 2};
		const struct expert_shape *s = &d.s;
		struct job *j = job_new(KERN_OP_EXPERTS_DOWN, world_get(3 * (i / 2) + 3 * (i % 2) + 2),
		                        "pairs: %u of %u experts, %u there, %u to %u of %s%s", s->used,
		                        s->experts, own_experts(s), s->ffn, s->hidden,
		                        kern_dtype_name(s->down), d.add ? ", added" : "");
		enum kern_rows rows = i % 3 == 2 ? KERN_ROWS_TAIL : KERN_ROWS_ALL;
		j->shape = &d;
		job_dense(j, job_field(j, "ids", IN, rows, 1, s->used, 0), TYPE_U32);
		ids_random(j, 0, s);
		job_dense(j, job_field(j, "weights", IN, rows, 1, s->used, 1), KERN_F32);
		job_field(j, "x", IN, rows, s->used, s->ffn, 2);
		job_dense(j, job_field(j, "y", OUT, rows, 1, s->hidden, 0), KERN_F32);
		job_dense(j,
		          job_field(j, "pairs", own_experts(s) == s->experts ? OUT : INOUT, rows, s->used,
		                    s->hidden, 1),
		          KERN_F32);
		job_field(j, "sum", d.add ? INOUT : OUT, rows, 1, s->hidden, 5);
		job_matrices(j, matrices_of(s));
		add_matrices(j, 0, s, s->down, s->hidden, s->ffn);
		j->record = apart_record;
		j->row = apart_row;
		job_check(j);
		conform_release(mark);
	}
}

/* --- all of a layer of experts: what was chosen and computed by one operation is taken by the
 * next --- */

enum { MIX_IDS, MIX_WEIGHTS, MIX_LOGITS, MIX_X, MIX_ACT, MIX_Y };

static uint32_t mix_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	const struct expert_shape *s = j->shape;
	op[0].kind = KERN_OP_MATMUL;
	op[0].matmul.x = l->field[MIX_X];
	op[0].matmul.products = 1;
	op[0].matmul.p[0] = (struct kern_product){l->w[3 * s->experts], {0}, l->field[MIX_LOGITS]};
	op[1].kind = KERN_OP_ROUTE;
	op[1].route.router = (struct kern_router){.score = KERN_SCORE_SOFTMAX,
	                                          .experts = s->experts,
	                                          .used = s->used,
	                                          .normalise = 1,
	                                          .scale = 1};
	op[1].route.ids = l->field[MIX_IDS].at;
	op[1].route.weights = l->field[MIX_WEIGHTS].at;
	op[1].route.logits = l->field[MIX_LOGITS];
	op[2].kind = KERN_OP_EXPERTS_ACT;
	op[2].experts_act.experts = experts_of(s, l, true, true);
	op[2].experts_act.ids = l->field[MIX_IDS].at;
	op[2].experts_act.used = s->used;
	op[2].experts_act.act = s->act;
	op[2].experts_act.x = l->field[MIX_X];
	op[2].experts_act.y = l->field[MIX_ACT];
	op[3].kind = KERN_OP_EXPERTS_DOWN;
	op[3].experts_down.experts = op[2].experts_act.experts;
	op[3].experts_down.ids = l->field[MIX_IDS].at;
	op[3].experts_down.weights = l->field[MIX_WEIGHTS].at;
	op[3].experts_down.used = s->used;
	op[3].experts_down.add = 1;
	op[3].experts_down.x = l->field[MIX_ACT];
	op[3].experts_down.y = l->field[MIX_Y];
	return 4;
}

/* What the last operation made of what the device itself chose and computed before. */
static void mix_row(const struct job *j, const struct precision *p, const struct result *r,
                    uint32_t row, struct expect *e)
{
	const struct expert_shape *s = j->shape;
	const float *ids = r->out[MIX_IDS] + row * s->used,
				*weights = r->out[MIX_WEIGHTS] + row * s->used,
				*act = r->out[MIX_ACT] + (size_t)row * s->used * s->ffn;
	for (uint32_t i = 0; i < s->used; i++) {
		e->value[MIX_IDS][i] = (double)ids[i];
		e->value[MIX_WEIGHTS][i] = (double)weights[i];
	}
	ref_product(p, &j->matrix[3 * s->experts], ref_doubles(job_data(j, MIX_X, row), s->hidden),
	            e->value[MIX_LOGITS], e->bound[MIX_LOGITS]);
	for (uint32_t i = 0; i < s->used; i++)
		act_values(p, j, s, id_of(ids[i]), ref_doubles(job_data(j, MIX_X, row), s->hidden),
		           e->value[MIX_ACT] + i * s->ffn, e->bound[MIX_ACT] + i * s->ffn);
	for (uint32_t i = 0; i < s->hidden; i++)
		e->value[MIX_Y][i] = (double)job_data(j, MIX_Y, row)[i];
	down_values(p, j->matrix + 2 * s->experts, bias_of(j, s, 2), s, ids, weights, act,
	            e->value[MIX_Y], e->bound[MIX_Y]);
}

CONFORM_TEST(experts_together)
{
	for (uint32_t i = 1; i < LEN(expert_shapes); i++) {
		size_t mark = conform_mark();
		const struct expert_shape *s = &expert_shapes[i];
		if (own_experts(s) < s->experts)
			continue;
		struct job *j = job_new(KERN_OP_EXPERTS_DOWN, world_get(3 * i + 1),
		                        "a whole layer, %u of %u experts, %u to %u of %s", s->used,
		                        s->experts, s->hidden, s->ffn, kern_dtype_name(s->gate));
		j->shape = s;
		job_dense(j, job_field(j, "ids", OUT, KERN_ROWS_ALL, 1, s->used, 0), TYPE_U32);
		job_dense(j, job_field(j, "weights", OUT, KERN_ROWS_ALL, 1, s->used, 0), KERN_F32);
		job_field(j, "logits", OUT, KERN_ROWS_ALL, 1, s->experts, 0);
		job_field(j, "x", IN, KERN_ROWS_ALL, 1, s->hidden, 2);
		job_field(j, "act", OUT, KERN_ROWS_ALL, s->used, s->ffn, 0);
		job_field(j, "y", INOUT, KERN_ROWS_ALL, 1, s->hidden, 5);
		job_matrices(j, 3 * s->experts + 1);
		add_matrices(j, 0, s, s->gate, s->ffn, s->hidden);
		add_matrices(j, s->experts, s, s->up, s->ffn, s->hidden);
		add_matrices(j, 2 * s->experts, s, s->down, s->hidden, s->ffn);
		job_matrix(j, 3 * s->experts, KERN_F32, s->experts, s->hidden);
		j->record = mix_record;
		j->row = mix_row;
		job_check(j);
		conform_release(mark);
	}
}
