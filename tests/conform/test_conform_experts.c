/* test_conform_experts.c - mixtures of experts: the choice, the products, and all of them as one program. */
#include "tests/conform/conform.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double u = 0x1p-24;       /* the rounding of one float32 operation */

static const struct { struct sequence seq[SEQUENCES]; } worlds[] = {
	{{{0, 1}}}, {{{0, 21}}}, {{{4, 2}}}, {{{0, 3}, {5, 1}}}, {{{0, 65}}}, {{{7, 14}, {0, 2}}}, {{{0, 31}, {5, 1}, {6, 1}}}, {{{0, 120}, {15, 1}, {333, 79}}},
};

static struct world *world_get(uint32_t i)
{
	struct world *w = conform_alloc(1, sizeof *w);
	world_init(w, worlds[i % LEN(worlds)].seq, SEQUENCES, 16, 97);
	return w;
}

static uint32_t id_of(float f)
{
	uint32_t id;
	memcpy(&id, &f, 4);
	return id;
}

static float as_id(uint32_t id)
{
	float f;
	memcpy(&f, &id, 4);
	return f;
}

/* --- route ------------------------------------------------------------------------------------------------------------------------------- */

struct route_shape { const char *name; struct kern_router r; bool biased; };

enum { IDS, WEIGHTS, LOGITS };

static uint32_t route_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	const struct route_shape *s = j->shape;
	op->kind = KERN_OP_ROUTE;
	op->rows = j->field[LOGITS].rows;
	op->route.router = s->r;
	op->route.router.bias = s->biased ? l->constant[0] : (kern_ptr){0};
	op->route.ids = l->field[IDS].at;
	op->route.weights = l->field[WEIGHTS].at;
	op->route.logits = l->field[LOGITS];
	return 1;
}

/* Whether expert e may be chosen: fewer than groups_used groups are worth more than its own, or as much and before it. The worths of groups are sums of rounded
 * numbers; `slack` decides for or against the own one. */
static bool group_open(const struct kern_router *r, const double *c, uint32_t e, double slack)
{
	uint32_t size = r->groups > 1 ? r->experts / r->groups : r->experts, before = 0, own = e / size;
	double worth[KERN_EXPERTS_MAX / 2];
	if (r->groups < 2)
		return true;
	for (uint32_t g = 0; g < r->groups; g++) {
		double a = -INFINITY, b = -INFINITY;
		for (uint32_t i = g * size; i < (g + 1) * size; i++) {
			b = fmax(b, fmin(a, c[i]));
			a = fmax(a, c[i]);
		}
		worth[g] = a + b;
	}
	for (uint32_t g = 0; g < r->groups; g++)
		before += g != own && (worth[g] > worth[own] + slack || (worth[g] == worth[own] && g < own));
	return before < r->groups_used;
}

static void scores_of(const struct route_shape *s, const float *logits, const float *bias, double *score, double *c)
{
	double max = -INFINITY, sum = 0;
	for (uint32_t e = 0; e < s->r.experts; e++)
		max = fmax(max, (double)logits[e]);
	for (uint32_t e = 0; e < s->r.experts; e++)
		sum += exp((double)logits[e] - max);
	for (uint32_t e = 0; e < s->r.experts; e++) {
		score[e] = s->r.score == KERN_SCORE_SOFTMAX ? exp((double)logits[e] - max) / sum : 1 / (1 + exp(-(double)logits[e]));
		c[e] = score[e] + (bias ? (double)bias[e] : 0);
	}
}

/* Ids of a row are experts, and differ, whatever the logits are. */
static void ids_check(const struct route_shape *s, const float *ids)
{
	for (uint32_t i = 0; i < s->r.used; i++) {
		EXPECT(id_of(ids[i]) < s->r.experts, "choice %u is expert %u of %u", i, id_of(ids[i]), s->r.experts);
		for (uint32_t k = 0; k < i; k++)
			EXPECT(id_of(ids[i]) != id_of(ids[k]), "expert %u is chosen twice", id_of(ids[i]));
	}
}

/* Experts whose c are as large within rounding, 1e-6 of a score, may stand in either order. */
static void choice_check(const struct route_shape *s, const float *ids, const double *c)
{
	for (uint32_t i = 0; i < s->r.used; i++) {
		uint32_t surely = 0, maybe = 0, id = id_of(ids[i]);
		for (uint32_t e = 0; e < s->r.experts; e++) {
			surely += e != id && group_open(&s->r, c, e, -1e-6) && c[e] > c[id] + 1e-6;
			maybe += e != id && group_open(&s->r, c, e, 1e-6) && c[e] > c[id] - 1e-6;
		}
		EXPECT(group_open(&s->r, c, id, 1e-6), "choice %u is expert %u, whose group is out", i, id);
		EXPECT(surely <= i && i <= maybe, "choice %u is expert %u, %u to %u are better", i, id, surely, maybe);
	}
}

/* A weight is a score, the sum of the scores chosen, a quotient and a product. */
static void route_check_row(const struct job *j, const struct precision *p, const struct result *r, uint32_t row, bool poisoned)
{
	(void)p;
	const struct route_shape *s = j->shape;
	const float *logits = job_data(j, LOGITS, row), *ids = r->out[IDS] + (size_t)row * s->r.used, *weights = r->out[WEIGHTS] + (size_t)row * s->r.used;
	double score[KERN_EXPERTS_MAX], c[KERN_EXPERTS_MAX], chosen = 0;
	bool nan = false;
	ids_check(s, ids);
	scores_of(s, logits, s->biased ? j->constant[0].data : NULL, score, c);
	for (uint32_t e = 0; e < s->r.experts; e++)
		nan |= isnan(score[e]);
	if (nan) {                                     /* of a softmax all weights are NaN; of sigmoids, those that are chosen all the same, and their sum */
		for (uint32_t i = 0; i < s->r.used; i++)
			EXPECT(!isfinite(weights[i]) || (s->r.score == KERN_SCORE_SIGMOID && !isnan(score[id_of(ids[i])])), "row %u: weight %u of NaN logits is %g", row, i,
			       (double)weights[i]);
		return;
	}
	if (!poisoned || s->r.groups < 2)              /* with infinities in a row worths of groups may be equal, and then the order of additions decides */
		choice_check(s, ids, c);
	for (uint32_t i = 0; i < s->r.used; i++)
		chosen += score[id_of(ids[i])];
	double divisor = s->r.normalise ? fmax(chosen, (double)s->r.norm_min) + (double)s->r.norm_add : 1;
	for (uint32_t i = 0; i < s->r.used; i++) {
		double want = score[id_of(ids[i])] / divisor * (double)s->r.scale, bound = (6 + 1.2 * sqrt(s->r.used)) * u * want + 0x1p-126;
		conform_stat(j->kind, fabs((double)weights[i] - want) / bound);
		EXPECT(fabs((double)weights[i] - want) <= bound || (poisoned && !isfinite(weights[i])), "row %u: weight %u is %.9g, want %.9g within %.3g", row, i,
		       (double)weights[i], want, bound);
	}
}

static void dense(struct job *j, uint32_t f, int type)
{
	j->field[f].dense = true;
	j->field[f].type = (enum kern_dtype)type;
}

CONFORM_TEST(route)
{
	static const struct route_shape shapes[] = {
		{"top 2 of 8", {KERN_SCORE_SOFTMAX, 8, 2, 0, 0, {0}, 1, 0, 0, 1}, false},
		{"top 2 of 8, not normalised", {KERN_SCORE_SOFTMAX, 8, 2, 1, 1, {0}, 0, 0, 0, 1}, false},
		{"all of 3", {KERN_SCORE_SOFTMAX, 3, 3, 0, 0, {0}, 1, 0, 0, 1}, false},
		{"4 of 4 with a bias", {KERN_SCORE_SIGMOID, 4, 4, 0, 0, {0}, 1, 0, 0, 1}, true},
		{"one of 1", {KERN_SCORE_SIGMOID, 1, 1, 0, 0, {0}, 1, 0, 1e-20f, 2}, true},
		{"least sum", {KERN_SCORE_SOFTMAX, 16, 3, 0, 0, {0}, 1, 0.9f, 0, 1}, true},
		{"8 of 128", {KERN_SCORE_SOFTMAX, 128, 8, 0, 0, {0}, 1, 0, 0, 1}, false},
		{"2 of 3 groups", {KERN_SCORE_SIGMOID, 12, 3, 3, 2, {0}, 1, 0, 1e-20f, 2.5f}, true},
		{"1 of 4 groups", {KERN_SCORE_SIGMOID, 12, 2, 4, 1, {0}, 0, 0, 0, 1.5f}, true},
		{"4 of 8 groups", {KERN_SCORE_SIGMOID, 256, 8, 8, 4, {0}, 1, 0, 1e-20f, 2.5f}, true},
		{"64 of 1024", {KERN_SCORE_SIGMOID, 1024, 64, 0, 0, {0}, 1, 0, 1e-20f, 1}, true},
	};
	for (uint32_t i = 0; i < 3 * LEN(shapes); i++) {
		size_t mark = conform_mark();
		const struct route_shape *s = &shapes[i / 3];
		struct job *j = job_new(KERN_OP_ROUTE, world_get(3 * (i / 3) + 3 * (i % 3) + 1), "%s", s->name);
		enum kern_rows rows = i % 4 == 3 ? KERN_ROWS_TAIL : KERN_ROWS_ALL;
		j->shape = s;
		dense(j, job_field(j, "ids", OUT, rows, 1, s->r.used, 0), TYPE_U32);
		dense(j, job_field(j, "weights", OUT, rows, 1, s->r.used, 0), KERN_F32);
		job_field(j, "logits", IN, rows, 1, s->r.experts, 3);
		if (s->biased)
			job_constant(j, rand_floats(s->r.experts, 0.3f), s->r.experts * sizeof(float));
		j->record = route_record;
		j->check_row = route_check_row;
		job_check(j);
		conform_release(mark);
	}
}

/* Of equals the lowest number; a NaN is less than any number. By hand, 3 of 8 sigmoids. */
struct equals { float logits[8], bias[8]; uint32_t groups, groups_used, want[3]; };

static void equals_check_row(const struct job *j, const struct precision *p, const struct result *r, uint32_t row, bool poisoned)
{
	(void)p;
	const struct equals *c = (const struct equals *)(const void *)((const struct route_shape *)j->shape)->name;
	for (uint32_t i = 0; i < 3 && !poisoned; i++)
		EXPECT(id_of(r->out[IDS][row * 3 + i]) == c->want[i], "choice %u is expert %u, want %u", i, id_of(r->out[IDS][row * 3 + i]), c->want[i]);
}

CONFORM_TEST(route_of_equals)
{
	static const struct equals cases[] = {
		{{0}, {0}, 0, 0, {0, 1, 2}},
		{{0, 0, 1, 0, 1, 0, 0, 1}, {0}, 0, 0, {2, 4, 7}},
		{{0}, {0, 0, 0, 0, 0, 0, 0, 1}, 0, 0, {7, 0, 1}},
		{{0}, {0}, 4, 2, {0, 1, 2}},
		{{0}, {0, 0, 0, 0, 0, 1, 0, 1}, 4, 2, {5, 7, 4}},
		{{0, 0, 0, 0, 0, 0, NAN, NAN}, {0}, 0, 0, {0, 1, 2}},
		{{NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN}, {0}, 4, 2, {0, 1, 2}},
		{{-INFINITY, -1e30f, 1e30f, INFINITY, 100, -100, 0, 0}, {0}, 0, 0, {2, 3, 4}},
	};
	for (uint32_t i = 0; i < LEN(cases); i++) {
		size_t mark = conform_mark();
		struct route_shape s = {(const char *)&cases[i], {KERN_SCORE_SIGMOID, 8, 3, cases[i].groups, cases[i].groups_used, {0}, 1, 0, 0, 1}, true};
		struct job *j = job_new(KERN_OP_ROUTE, world_get(i), "equals, case %u", i);
		j->shape = &s;
		dense(j, job_field(j, "ids", OUT, KERN_ROWS_ALL, 1, 3, 0), TYPE_U32);
		dense(j, job_field(j, "weights", OUT, KERN_ROWS_ALL, 1, 3, 0), KERN_F32);
		uint32_t f = job_field(j, "logits", IN, KERN_ROWS_ALL, 1, 8, 0);
		for (uint32_t r = 0; r < world_rows(&j->world); r++)
			memcpy(j->field[f].data + 8 * r, cases[i].logits, sizeof cases[i].logits);
		job_constant(j, cases[i].bias, sizeof cases[i].bias);
		j->record = route_record;
		j->check_row = equals_check_row;
		job_check(j);
		conform_release(mark);
	}
}

/* --- experts ------------------------------------------------------------------------------------------------------------------------------ */

struct expert_shape { enum kern_dtype type; uint32_t experts, used, hidden, ffn; enum kern_act act; };

static const struct expert_shape expert_shapes[] = {
	{KERN_F32, 4, 1, 1, 1, KERN_SILU},       {KERN_BF16, 8, 2, 64, 48, KERN_SILU},   {KERN_BF16, 12, 3, 33, 17, KERN_GELU_TANH}, {KERN_Q8_0, 6, 4, 96, 64, KERN_SILU},
	{KERN_F32, 40, 8, 20, 24, KERN_SILU},    {KERN_Q4_0, 5, 2, 64, 160, KERN_SILU},  {KERN_Q4_K, 4, 2, 256, 256, KERN_GELU_TANH}, {KERN_BF16, 128, 8, 32, 16, KERN_SILU},
	{KERN_F16, 16, 6, 48, 80, KERN_SILU},    {KERN_Q5_1, 4, 4, 64, 32, KERN_SILU},
};

/* Of a row, different ones; some experts are chosen by many rows and some by none. */
static void ids_random(struct job *j, uint32_t f, const struct expert_shape *s)
{
	for (uint32_t r = 0; r < world_rows(&j->world); r++) {
		uint32_t step = 1 + rand_below(s->experts > 7 ? 5 : 1), first = r % 3 ? rand_below(s->experts) : 1 % s->experts;
		while (step > 1 && s->experts % step == 0)
			step--;
		for (uint32_t i = 0; i < s->used; i++)
			j->field[f].data[r * s->used + i] = as_id((first + i * step) % s->experts);
	}
}

static struct kern_experts experts_of(const struct expert_shape *s, const struct live *l, bool gate_up, bool down)
{
	return (struct kern_experts){s->experts, gate_up ? l->w : NULL, gate_up ? l->w + s->experts : NULL, down ? l->w + (gate_up ? 2 : 0) * s->experts : NULL};
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

/* The products' bounds through the activation's slope, and the activation's own roundings (test_conform_rows.c). */
static void act_values(const struct precision *p, const struct job *j, const struct expert_shape *s, uint32_t e, const double *x, double *y, double *bound)
{
	double *g = conform_alloc(4 * (size_t)s->ffn, sizeof *g), *gb = g + s->ffn, *up = gb + s->ffn, *ub = up + s->ffn;
	ref_product(p, &j->matrix[e], x, g, gb);
	ref_product(p, &j->matrix[s->experts + e], x, up, ub);
	for (uint32_t i = 0; i < s->ffn; i++) {
		double a = ref_act(s->act, g[i]), z = fmin(fabs(g[i]) * (s->act == KERN_SILU ? 1 : 1.6 + 0.072 * g[i] * g[i]), 90);
		y[i] = a * up[i];
		bound[i] = fabs(up[i]) * ref_act_slope(s->act, g[i]) * gb[i] + (fabs(a) + gb[i]) * ub[i] + (6 + (g[i] < 0 ? 2.5 * z : 0)) * u * fabs(y[i]) +
		           (s->act == KERN_GELU_TANH && g[i] < 0 ? u : 1e-36) * fabs(g[i] * up[i]) + 0x1p-126;
	}
}

static void act_row(const struct job *j, const struct precision *p, const struct result *r, uint32_t row, struct expect *e)
{
	(void)r;
	const struct expert_shape *s = j->shape;
	const double *x = ref_doubles(job_data(j, 1, row), s->hidden);
	for (uint32_t i = 0; i < s->used; i++)
		act_values(p, j, s, id_of(job_data(j, 0, row)[i]), x, e->value[2] + i * s->ffn, e->bound[2] + i * s->ffn);
}

CONFORM_TEST(experts_act)
{
	for (uint32_t i = 0; i < 3 * LEN(expert_shapes); i++) {
		size_t mark = conform_mark();
		const struct expert_shape *s = &expert_shapes[i / 3];
		struct job *j = job_new(KERN_OP_EXPERTS_ACT, world_get(3 * (i / 3) + 3 * (i % 3) + 1), "%u of %u experts, %u to %u of %s", s->used, s->experts, s->hidden, s->ffn,
		                        kern_dtype_name(s->type));
		enum kern_rows rows = i % 4 == 3 ? KERN_ROWS_TAIL : KERN_ROWS_ALL;
		j->shape = s;
		dense(j, job_field(j, "ids", IN, rows, 1, s->used, 0), TYPE_U32);
		ids_random(j, 0, s);
		job_field(j, "x", IN, rows, 1, s->hidden, 2);
		job_field(j, "y", OUT, rows, s->used, s->ffn, 0);
		job_matrices(j, 2 * s->experts);
		for (uint32_t e = 0; e < 2 * s->experts; e++)
			job_matrix(j, e, s->type, s->ffn, s->hidden);
		j->record = act_record;
		j->row = act_row;
		job_check(j);
		conform_release(mark);
	}
}

/* --- experts_down */

struct down_shape { struct expert_shape s; bool add; };
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
static void down_values(const struct precision *p, const struct matrix *w, uint32_t used, const float *ids, const float *weights, const float *x, double *y, double *bound)
{
	double *v = conform_alloc(2 * (size_t)w->n, sizeof *v), *vb = v + w->n;
	for (uint32_t j = 0; j < used; j++) {
		ref_product(p, &w[id_of(ids[j])], ref_doubles(x + (size_t)j * w->k, w->k), v, vb);
		for (uint32_t i = 0; i < w->n; i++) {
			double part = (double)weights[j] * v[i];
			y[i] += part;
			bound[i] += fabs((double)weights[j]) * vb[i] + 2 * u * fabs(part) + u * fabs(y[i]) + 0x1p-148;
		}
	}
}

static void down_row(const struct job *j, const struct precision *p, const struct result *r, uint32_t row, struct expect *e)
{
	(void)r;
	const struct down_shape *d = j->shape;
	for (uint32_t i = 0; i < d->s.hidden && d->add; i++)
		e->value[DOWN_Y][i] = (double)job_data(j, DOWN_Y, row)[i];
	down_values(p, j->matrix, d->s.used, job_data(j, DOWN_IDS, row), job_data(j, DOWN_WEIGHTS, row), job_data(j, DOWN_X, row), e->value[DOWN_Y], e->bound[DOWN_Y]);
}

CONFORM_TEST(experts_down)
{
	for (uint32_t i = 0; i < 3 * LEN(expert_shapes); i++) {
		size_t mark = conform_mark();
		struct down_shape d = {expert_shapes[i / 3], i % 2};
		const struct expert_shape *s = &d.s;
		struct job *j = job_new(KERN_OP_EXPERTS_DOWN, world_get(3 * (i / 3) + 3 * (i % 3) + 2), "%u of %u experts, %u to %u of %s%s", s->used, s->experts, s->ffn, s->hidden,
		                        kern_dtype_name(s->type), d.add ? ", added" : "");
		enum kern_rows rows = i % 4 == 2 ? KERN_ROWS_TAIL : KERN_ROWS_ALL;
		j->shape = &d;
		dense(j, job_field(j, "ids", IN, rows, 1, s->used, 0), TYPE_U32);
		ids_random(j, 0, s);
		dense(j, job_field(j, "weights", IN, rows, 1, s->used, 1), KERN_F32);
		job_field(j, "x", IN, rows, s->used, s->ffn, 2);
		job_field(j, "y", d.add ? INOUT : OUT, rows, 1, s->hidden, 5);
		job_matrices(j, s->experts);
		for (uint32_t e = 0; e < s->experts; e++)
			job_matrix(j, e, s->type, s->hidden, s->ffn);
		j->record = down_record;
		j->row = down_row;
		job_check(j);
		conform_release(mark);
	}
}

/* --- all of a layer of experts: what was chosen and computed by one operation is taken by the next --------------------------------------------- */

enum { MIX_IDS, MIX_WEIGHTS, MIX_LOGITS, MIX_X, MIX_ACT, MIX_Y };

static uint32_t mix_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	const struct expert_shape *s = j->shape;
	op[0].kind = KERN_OP_MATMUL;
	op[0].matmul.x = l->field[MIX_X];
	op[0].matmul.products = 1;
	op[0].matmul.p[0] = (struct kern_product){l->w[3 * s->experts], {0}, l->field[MIX_LOGITS]};
	op[1].kind = KERN_OP_ROUTE;
	op[1].route.router = (struct kern_router){.score = KERN_SCORE_SOFTMAX, .experts = s->experts, .used = s->used, .normalise = 1, .scale = 1};
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
static void mix_row(const struct job *j, const struct precision *p, const struct result *r, uint32_t row, struct expect *e)
{
	const struct expert_shape *s = j->shape;
	const float *ids = r->out[MIX_IDS] + row * s->used, *weights = r->out[MIX_WEIGHTS] + row * s->used, *act = r->out[MIX_ACT] + (size_t)row * s->used * s->ffn;
	for (uint32_t i = 0; i < s->used; i++) {
		e->value[MIX_IDS][i] = (double)ids[i];
		e->value[MIX_WEIGHTS][i] = (double)weights[i];
	}
	ref_product(p, &j->matrix[3 * s->experts], ref_doubles(job_data(j, MIX_X, row), s->hidden), e->value[MIX_LOGITS], e->bound[MIX_LOGITS]);
	for (uint32_t i = 0; i < s->used; i++)
		act_values(p, j, s, id_of(ids[i]), ref_doubles(job_data(j, MIX_X, row), s->hidden), e->value[MIX_ACT] + i * s->ffn, e->bound[MIX_ACT] + i * s->ffn);
	for (uint32_t i = 0; i < s->hidden; i++)
		e->value[MIX_Y][i] = (double)job_data(j, MIX_Y, row)[i];
	down_values(p, j->matrix + 2 * s->experts, s->used, ids, weights, act, e->value[MIX_Y], e->bound[MIX_Y]);
}

CONFORM_TEST(experts_together)
{
	for (uint32_t i = 1; i < LEN(expert_shapes); i++) {
		size_t mark = conform_mark();
		const struct expert_shape *s = &expert_shapes[i];
		struct job *j = job_new(KERN_OP_EXPERTS_DOWN, world_get(3 * i + 1), "a whole layer, %u of %u experts, %u to %u of %s", s->used, s->experts, s->hidden, s->ffn,
		                        kern_dtype_name(s->type));
		j->shape = s;
		dense(j, job_field(j, "ids", OUT, KERN_ROWS_ALL, 1, s->used, 0), TYPE_U32);
		dense(j, job_field(j, "weights", OUT, KERN_ROWS_ALL, 1, s->used, 0), KERN_F32);
		job_field(j, "logits", OUT, KERN_ROWS_ALL, 1, s->experts, 0);
		job_field(j, "x", IN, KERN_ROWS_ALL, 1, s->hidden, 2);
		job_field(j, "act", OUT, KERN_ROWS_ALL, s->used, s->ffn, 0);
		job_field(j, "y", INOUT, KERN_ROWS_ALL, 1, s->hidden, 5);
		job_matrices(j, 3 * s->experts + 1);
		for (uint32_t e = 0; e < 3 * s->experts; e++)
			job_matrix(j, e, s->type, e < 2 * s->experts ? s->ffn : s->hidden, e < 2 * s->experts ? s->hidden : s->ffn);
		job_matrix(j, 3 * s->experts, KERN_F32, s->experts, s->hidden);
		j->record = mix_record;
		j->row = mix_row;
		job_check(j);
		conform_release(mark);
	}
}
