/* test_conform_route.c - the choice of each row's experts: scores, biases, groups, equals,
 * weights. */
#include "tests/conform/conform.h"

#include <math.h>
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

/* --- route --------------------------------------------------------------- */

struct route_shape {
	const char *name;
	struct kern_router r;
	bool biased;
};

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

/* Whether expert e may be chosen: fewer than groups_used groups are worth more than its own, or as
 * much and before it. The worths of groups are sums of rounded numbers; `slack` decides for or
 * against the own one. */
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
		before += g != own &&
		          (worth[g] > worth[own] + slack || (worth[g] == worth[own] && g < own));
	return before < r->groups_used;
}

static void scores_of(const struct route_shape *s, const float *logits, const float *bias,
                      double *score, double *c)
{
	double max = -INFINITY, sum = 0;
	for (uint32_t e = 0; e < s->r.experts; e++)
		max = fmax(max, (double)logits[e]);
	for (uint32_t e = 0; e < s->r.experts; e++)
		sum += exp((double)logits[e] - max);
	for (uint32_t e = 0; e < s->r.experts; e++) {
		score[e] = s->r.score == KERN_SCORE_SOFTMAX ? exp((double)logits[e] - max) / sum
		                                            : 1 / (1 + exp(-(double)logits[e]));
		c[e] = score[e] + (bias ? (double)bias[e] : 0);
	}
}

/* Ids of a row are experts, and differ, whatever the logits are. */
static void ids_check(const struct route_shape *s, const float *ids)
{
	for (uint32_t i = 0; i < s->r.used; i++) {
		EXPECT(id_of(ids[i]) < s->r.experts, "choice %u is expert %u of %u", i, id_of(ids[i]),
		       s->r.experts);
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
		EXPECT(surely <= i && i <= maybe, "choice %u is expert %u, %u to %u are better", i, id,
		       surely, maybe);
	}
}

/* A weight is a score, the sum of the scores chosen, a quotient and a product. */
static void route_check_row(const struct job *j, const struct precision *p, const struct result *r,
                            uint32_t row, bool poisoned)
{
	(void)p;
	const struct route_shape *s = j->shape;
	const float *logits = job_data(j, LOGITS, row), *ids = r->out[IDS] + (size_t)row * s->r.used,
				*weights = r->out[WEIGHTS] + (size_t)row * s->r.used;
	double score[KERN_EXPERTS_MAX], c[KERN_EXPERTS_MAX], chosen = 0;
	bool nan = false;
	ids_check(s, ids);
	scores_of(s, logits, s->biased ? j->constant[0].data : NULL, score, c);
	for (uint32_t e = 0; e < s->r.experts; e++)
		nan |= isnan(score[e]);
	if (nan) {
		for (uint32_t i = 0; i < s->r.used; i++)
			EXPECT(!isfinite(weights[i]), "row %u: weight %u of NaN logits is %g", row, i,
			       (double)weights[i]);
		return;
	}
	/* with infinities in a row worths of groups may be equal, and then the order of additions
	 * decides */
	if (!poisoned || s->r.groups < 2)
		choice_check(s, ids, c);
	for (uint32_t i = 0; i < s->r.used; i++)
		chosen += score[id_of(ids[i])];
	double divisor = s->r.normalise ? fmax(chosen, (double)s->r.norm_min) + (double)s->r.norm_add
	                                : 1;
	for (uint32_t i = 0; i < s->r.used; i++) {
		double want = score[id_of(ids[i])] / divisor * (double)s->r.scale,
			   bound = (6 + 1.2 * sqrt(s->r.used)) * u * want + 0x1p-126;
		conform_stat(j->kind, fabs((double)weights[i] - want) / bound);
		EXPECT(fabs((double)weights[i] - want) <= bound || (poisoned && !isfinite(weights[i])),
		       "row %u: weight %u is %.9g, want %.9g within %.3g", row, i, (double)weights[i], want,
		       bound);
	}
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
		struct job *j = job_new(KERN_OP_ROUTE, world_get(3 * (i / 3) + 3 * (i % 3) + 1), "%s",
		                        s->name);
		enum kern_rows rows = i % 4 == 3 ? KERN_ROWS_TAIL : KERN_ROWS_ALL;
		j->shape = s;
		job_dense(j, job_field(j, "ids", OUT, rows, 1, s->r.used, 0), TYPE_U32);
		job_dense(j, job_field(j, "weights", OUT, rows, 1, s->r.used, 0), KERN_F32);
		job_field(j, "logits", IN, rows, 1, s->r.experts, 3);
		if (s->biased)
			job_constant(j, rand_floats(s->r.experts, 0.3f), s->r.experts * sizeof(float));
		j->record = route_record;
		j->check_row = route_check_row;
		job_check(j);
		conform_release(mark);
	}
}

/* Of equals the lowest number. By hand, 3 of 8 sigmoids. */
struct equals {
	float logits[8], bias[8];
	uint32_t groups, groups_used, want[3];
};

static void equals_check_row(const struct job *j, const struct precision *p, const struct result *r,
                             uint32_t row, bool poisoned)
{
	(void)p;
	const struct equals
		*c = (const struct equals *)(const void *)((const struct route_shape *)j->shape)->name;
	for (uint32_t i = 0; i < 3 && !poisoned; i++)
		EXPECT(id_of(r->out[IDS][row * 3 + i]) == c->want[i], "choice %u is expert %u, want %u", i,
		       id_of(r->out[IDS][row * 3 + i]), c->want[i]);
}

CONFORM_TEST(route_of_equals)
{
	static const struct equals cases[] = {
		{{0}, {0}, 0, 0, {0, 1, 2}},
		{{0, 0, 1, 0, 1, 0, 0, 1}, {0}, 0, 0, {2, 4, 7}},
		{{0}, {0, 0, 0, 0, 0, 0, 0, 1}, 0, 0, {7, 0, 1}},
		{{0}, {0}, 4, 2, {0, 1, 2}},
		{{0}, {0, 0, 0, 0, 0, 1, 0, 1}, 4, 2, {5, 7, 4}},
		{{-INFINITY, -1e30f, 1e30f, INFINITY, 100, -100, 0, 0}, {0}, 0, 0, {2, 3, 4}},
	};
	for (uint32_t i = 0; i < LEN(cases); i++) {
		size_t mark = conform_mark();
		struct route_shape s = {
			(const char *)&cases[i],
			{KERN_SCORE_SIGMOID, 8, 3, cases[i].groups, cases[i].groups_used, {0}, 1, 0, 0, 1},
			true};
		struct job *j = job_new(KERN_OP_ROUTE, world_get(i), "equals, case %u", i);
		j->shape = &s;
		job_dense(j, job_field(j, "ids", OUT, KERN_ROWS_ALL, 1, 3, 0), TYPE_U32);
		job_dense(j, job_field(j, "weights", OUT, KERN_ROWS_ALL, 1, 3, 0), KERN_F32);
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
