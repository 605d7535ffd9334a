/* test_conform_attention.c - the paged KV and attention over it: every type of KV, groups of heads, head sizes, latents, windows, sizes of blocks, depths of context. */
#include "tests/conform/conform.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double u = 0x1p-24;       /* the rounding of one float32 operation */
static const enum kern_dtype kv_types[] = {KERN_BF16, KERN_F16, KERN_F32, KERN_I8, KERN_F8};

/* --- what kv_write writes ----------------------------------------------------------------------------------------------------------------- */

static double top_of(enum kern_dtype t)
{
	return t == KERN_I8 ? 127 : 448;
}

/* The code that is nearest to x (in units of the scale), or as near within `slack` of it: a backend may divide by the scale or multiply by its reciprocal. Codes of a
 * sign are in the order of their values: only neighbours can be nearer, and those of zero. */
static void code_check(enum kern_dtype t, unsigned code, double x, double slack)
{
	unsigned others[] = {code - 1, code + 1, 0x00, 0x01, t == KERN_I8 ? 0xff : 0x81};
	unsigned char c = (unsigned char)code;
	double got = fabs(format_value(t, &c, 0) - x);
	for (size_t i = 0; i < LEN(others); i++) {
		c = (unsigned char)others[i];
		if ((t == KERN_F8 && (c & 0x7f) == 0x7f) || (t == KERN_I8 && c == 0x80))
			continue;
		double other = fabs(format_value(t, &c, 0) - x);
		EXPECT(got <= other + slack, "%s: %.9g became code %02x, but %02x is nearer", kern_dtype_name(t), x, code, c);
		EXPECT(slack > 0 || got < other || c % 2 || !(code % 2), "%s: %.9g became code %02x, but %02x is as near and even", kern_dtype_name(t), x, code, c);
	}
}

static void scaled_check(const struct kern_kv_layer *kv, const unsigned char *at, float scale, const float *x)
{
	double max = 0, top = top_of(kv->dtype);
	bool finite = true;
	for (uint32_t d = 0; d < kv->head_dim; d++) {
		max = fmax(max, fabs((double)x[d]));
		finite = finite && isfinite(x[d]);
	}
	if (!finite) {
		EXPECT(isnan(scale), "the scale of a row that is not finite is %g, want NaN", (double)scale);
	} else if (max < 1.01e-30) {                       /* as good as zero */
		for (uint32_t d = 0; d < kv->head_dim; d++)
			EXPECT(fabs((double)scale * format_value(kv->dtype, at + d, 0)) <= 1.01e-30, "a row of zeros has %g", (double)scale * format_value(kv->dtype, at + d, 0));
	} else {
		EXPECT(scale == (float)(max / top), "the scale of a row up to %.9g is %.9g, want %.9g", max, (double)scale, max / top);
		for (uint32_t d = 0; d < kv->head_dim; d++)            /* a scale of 1 leaves no room */
			code_check(kv->dtype, at[d], (double)x[d] * top / max, max == top ? 0 : 4 * u * fabs((double)x[d]) * top / max);
	}
}

static void row_bytes_check(const struct kern_kv_layer *kv, const unsigned char *at, const unsigned char *scale_at, const float *x)
{
	float scale;
	size_t e = kern_dtype_bytes(kv->dtype, 1);
	if (e == 1) {
		memcpy(&scale, scale_at, 4);
		scaled_check(kv, at, scale, x);
		return;
	}
	for (uint32_t d = 0; d < kv->head_dim; d++) {
		float got = (float)format_value(kv->dtype, at + d * e, 0), want = format_round(kv->dtype, (double)x[d]);
		EXPECT(got == want || (isnan(got) && isnan(want)), "element %u, %.9g, became %.9g, want %.9g", d, (double)x[d], (double)got, (double)want);
	}
}

/* K or V of a position, as it was given. Fields: k, and v unless there is a latent. */
static const float *kv_given(const struct job *j, uint32_t seq, uint32_t position, uint32_t head, uint32_t is_v)
{
	return j->field[is_v].data + ((size_t)(j->world.all[seq] + position) * j->kv.kv_heads + head) * j->kv.head_dim;
}

/* One row of a plane: the bytes of the base, where the input is the same, or right. Wipes it from `rest`. */
static void plane_row_check(const struct job *j, const struct result *r, const struct job *of, const struct result *base, uint32_t seq, uint32_t position, uint32_t plane,
                            unsigned char *rest)
{
	const struct kern_kv_layer *kv = &j->kv;
	uint32_t head = kv->latent ? plane : plane / 2, is_v = kv->latent ? 0 : plane % 2;
	size_t bytes = kern_dtype_bytes(kv->dtype, kv->head_dim), scale = kern_kv_scale_bytes(kv->dtype), scale_at, at = ref_kv_at(j, seq, position, head, is_v, &scale_at);
	const float *given = kv_given(j, seq, position, head, is_v);
	if (base && !memcmp(given, kv_given(of, seq, position, head, is_v), kv->head_dim * sizeof *given)) {
		bool same = !memcmp(r->pool + at, base->pool + at, bytes) && !memcmp(r->pool + scale_at, base->pool + scale_at, scale);
		EXPECT(same, "the KV of position %u of sequence %u, plane %u, has other bytes", position, seq, plane);
	} else {
		conform_about(4, "KV of position %u of sequence %u, plane %u", position, seq, plane);
		row_bytes_check(kv, r->pool + at, r->pool + scale_at, given);
	}
	memset(rest + at, r->fill, bytes);
	memset(rest + scale_at, r->fill, scale);
}

static void pool_check(const struct job *j, const struct result *r, const struct job *of, const struct result *base)
{
	const struct world *w = &j->world;
	size_t all = job_pool_bytes(j);
	unsigned char *rest = conform_alloc(all, 1);
	memcpy(rest, r->pool, all);
	for (uint32_t s = 0; s < w->sequences; s++)
		for (uint32_t p = j->record_history ? 0 : w->seq[s].position; p < w->seq[s].position + w->seq[s].rows; p++)
			for (uint32_t plane = 0; plane < kern_kv_planes(&j->kv); plane++)
				plane_row_check(j, r, of, base, s, p, plane, rest);
	conform_about(4, "%s", "");
	for (size_t i = 0; memcmp(rest, rest + 1, all - 1) != 0 || rest[0] != r->fill; i++)
		EXPECT(rest[i] == r->fill, "byte %zu of the pool (block %zu) was written", i, i / j->kv.block_stride_bytes);
}

static uint32_t kv_write_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	op->kind = KERN_OP_KV_WRITE;
	op->kv_write.kv = l->kv;
	op->kv_write.k = l->field[0];
	op->kv_write.v = j->kv.latent ? (struct kern_tensor){0} : l->field[1];
	return 1;
}

static struct job *kv_job(enum kern_op_kind kind, const struct sequence *seq, uint32_t block_tokens, enum kern_dtype type, uint32_t kv_heads, uint32_t head_dim,
                          uint32_t latent, const char *name)
{
	struct world *w = conform_alloc(1, sizeof *w);
	world_init(w, seq, SEQUENCES, block_tokens, 97);
	struct job *j = job_new(kind, w, "%s, %s", name, kern_dtype_name(type));
	job_kv(j, type, kv_heads, head_dim, latent);
	job_field_history(j, "k", kv_heads * head_dim, 2);
	if (!latent)
		job_field_history(j, "v", kv_heads * head_dim, 2);
	j->check_pool = pool_check;
	return j;
}

static const struct { struct sequence seq[SEQUENCES]; uint32_t block_tokens, kv_heads, head_dim, latent; } kv_cases[] = {
	{{{0, 1}}, 16, 1, 4, 0},                    {{{0, 37}, {5, 1}}, 16, 3, 64, 0},          {{{100, 200}}, 64, 1, 32, 0},
	{{{7, 30}, {0, 2}, {63, 66}}, 7, 2, 20, 0}, {{{3, 5}, {64, 1}, {2, 1}}, 1, 5, 128, 0},  {{{0, 65}}, 16, 2, 36, 20},
	{{{9, 16}, {31, 2}}, 64, 1, 576, 512},      {{{0, 31}}, 256, 8, 100, 0},
};

/* k and v are fields of all positions here, and only those of the rows under test are written. */
CONFORM_TEST(kv_write)
{
	for (uint32_t i = 0; i < LEN(kv_cases) * LEN(kv_types); i++) {
		size_t mark = conform_mark();
		uint32_t c = i / LEN(kv_types);
		struct job *j = kv_job(KERN_OP_KV_WRITE, kv_cases[c].seq, kv_cases[c].block_tokens, kv_types[i % LEN(kv_types)], kv_cases[c].kv_heads, kv_cases[c].head_dim,
		                       kv_cases[c].latent, kv_cases[c].latent ? "latents" : "K and V");
		j->record = kv_write_record;
		job_check(j);
		conform_release(mark);
	}
}

/* Halves between two values of the type go to the even one: integers with one bit too many, of many magnitudes; rows whose scale is 1 for the types that have scales. */
static void halves_fill(struct job *j)
{
	enum kern_dtype t = j->kv.dtype;
	uint32_t dim = j->kv.head_dim, bits = t == KERN_BF16 ? 9 : t == KERN_F16 ? 12 : 5, planes = j->world.all[j->world.sequences] * j->kv.kv_heads;
	for (uint32_t f = 0; f < 2; f++)
		for (uint32_t i = 0; i < planes * dim; i++) {
			float odd = (float)(2 * rand_below(1u << (bits - 1)) + 1), sign = rand_bits() % 2 ? -1 : 1;
			float x = t == KERN_I8 ? (float)rand_below(127) + 0.5f : ldexpf(odd, (int)rand_below(8) - (t == KERN_F8 ? 7 : 20));
			bool scaled = t == KERN_I8 || t == KERN_F8;
			j->field[f].data[i] = sign * (scaled && i % dim == 0 ? (float)top_of(t) : t == KERN_F8 && x > 448 ? 1 : x);
		}
}

CONFORM_TEST(kv_write_of_halves)
{
	static const struct sequence seq[SEQUENCES] = {{0, 40}, {3, 2}};
	for (uint32_t i = 0; i < LEN(kv_types); i++) {
		size_t mark = conform_mark();
		struct job *j = kv_job(KERN_OP_KV_WRITE, seq, 16, kv_types[i], 2, 64, 0, "halves");
		halves_fill(j);
		j->record = kv_write_record;
		job_check(j);
		conform_release(mark);
	}
}

/* --- attention ------------------------------------------------------------------------------------------------------------------------------ */

struct att_case {
	const char *name;
	uint32_t heads, kv_heads, head_dim, latent, block_tokens, window;
	float scale;
	struct sequence seq[SEQUENCES];
};

/* Field q and field out follow k and v. */
static uint32_t q_field(const struct job *j)
{
	return j->kv.latent ? 1 : 2;
}

static uint32_t attention_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	const struct att_case *c = j->shape;
	uint32_t q = q_field(j);
	kv_write_record(j, l, op);
	op[1].kind = KERN_OP_ATTENTION;
	op[1].rows = j->field[q].rows;
	op[1].attention.kv = l->kv;
	op[1].attention.q = l->field[q];
	op[1].attention.out = l->field[q + 1];
	op[1].attention.heads = c->heads;
	op[1].attention.window = c->window;
	op[1].attention.scale = c->scale;
	return 2;
}

/* K and V of a sequence as numbers, of the latest pool that was asked for. */
struct expanded { uint64_t result; uint32_t seq; size_t room; double *k, *v; };

static const struct expanded *expand(const struct job *j, const struct result *r, uint32_t seq)
{
	static struct expanded x;
	const struct kern_kv_layer *kv = &j->kv;
	uint32_t positions = j->world.seq[seq].position + j->world.seq[seq].rows;
	size_t need = (size_t)positions * kv->kv_heads * kv->head_dim;
	if (x.result == r->id && x.seq == seq && x.k)
		return &x;
	if (need > x.room) {
		x.k = realloc(x.k, need * sizeof *x.k);
		x.v = realloc(x.v, need * sizeof *x.v);
		x.room = need;
	}
	for (uint32_t p = 0; p < positions; p++)
		for (uint32_t h = 0; h < kv->kv_heads; h++) {
			ref_kv(j, r->pool, seq, p, h, false, x.k + ((size_t)p * kv->kv_heads + h) * kv->head_dim);
			ref_kv(j, r->pool, seq, p, h, true, x.v + ((size_t)p * kv->kv_heads + h) * kv->head_dim);
		}
	x.result = r->id;
	x.seq = seq;
	return &x;
}

/* The score of a position and, in units of u, what float32 makes of it: see reference.c for sums; the factor and the difference to the largest score are rounded, too. */
static double score(const float *q, const double *k, uint32_t dim, double scale, double *ret_error)
{
	double sum = 0, size = 0, largest = 0;
	for (uint32_t d = 0; d < dim; d++) {
		double part = (double)q[d] * k[d];
		sum += part;
		size += fabs(part);
		largest = fmax(largest, fabs(part));
	}
	*ret_error = (size + 0.7 * sqrt(dim) * (largest + fabs(sum))) * fabs(scale);
	return sum * scale;
}

struct head { double *weight, *error, *v_error; };     /* (positions), (positions), (out) */

static void head_scores(const struct job *j, const struct expanded *x, uint32_t kv_head, uint32_t first, uint32_t at, const float *q, struct head *h)
{
	const struct att_case *c = j->shape;
	double max = -INFINITY, sum = 0;
	for (uint32_t t = first; t <= at; t++) {
		h->weight[t] = score(q, x->k + ((size_t)t * c->kv_heads + kv_head) * c->head_dim, c->head_dim, (double)c->scale, &h->error[t]);
		max = h->weight[t] > max || isnan(h->weight[t]) ? h->weight[t] : max;
	}
	for (uint32_t t = first; t <= at; t++) {
		h->error[t] += 2 * (max - h->weight[t]) + 15;
		h->weight[t] = exp(h->weight[t] - max);
		sum += h->weight[t];
	}
	for (uint32_t t = first; t <= at; t++) {
		h->weight[t] /= sum;
		h->error[t] = h->weight[t] == 0 ? 0 : h->error[t];
	}
}

/* An error of a score is the relative error of a weight, and moves the mean by that part of what V differs from the mean. */
static void head_row(const struct job *j, const struct expanded *x, uint32_t head, uint32_t at, const float *q, double *value, double *bound)
{
	const struct att_case *c = j->shape;
	uint32_t out = c->latent ? c->latent : c->head_dim, kv_head = head / (c->heads / c->kv_heads), first = c->window && at + 1 > c->window ? at + 1 - c->window : 0;
	struct head h = {conform_alloc(at + 1, sizeof(double)), conform_alloc(at + 1, sizeof(double)), conform_alloc(out, sizeof(double))};
	double error = 0;
	head_scores(j, x, kv_head, first, at, q, &h);
	memset(value, 0, out * sizeof *value);
	for (uint32_t t = first; t <= at; t++) {
		const double *v = x->v + ((size_t)t * c->kv_heads + kv_head) * c->head_dim;
		error += h.weight[t] * h.error[t];
		for (uint32_t d = 0; d < out; d++) {
			value[d] += h.weight[t] * v[d];
			h.v_error[d] += (h.weight[t] * h.error[t] + 0x1p-102) * fabs(v[d]);     /* a weight below 2^-126 may be 0 */
		}
	}
	for (uint32_t d = 0; d < out; d++)
		bound[d] = u * (h.v_error[d] + error * fabs(value[d])) + 0x1p-126;
}

static void attention_row(const struct job *j, const struct precision *p, const struct result *r, uint32_t row, struct expect *e)
{
	(void)p;
	const struct att_case *c = j->shape;
	uint32_t f = q_field(j), out = c->latent ? c->latent : c->head_dim;
	const struct expanded *x = expand(j, r, world_sequence(&j->world, row));
	for (uint32_t h = 0; h < c->heads; h++)
		head_row(j, x, h, world_position(&j->world, row), job_data(j, f, row) + h * c->head_dim, e->value[f + 1] + h * out, e->bound[f + 1] + h * out);
}

static void attention_check(const struct att_case *c, enum kern_dtype type, uint32_t number)
{
	size_t mark = conform_mark();
	struct job *j = kv_job(KERN_OP_ATTENTION, c->seq, c->block_tokens, type, c->kv_heads, c->head_dim, c->latent, c->name);
	enum kern_rows rows = number % 4 == 3 ? KERN_ROWS_TAIL : KERN_ROWS_ALL;
	j->shape = c;
	j->window = c->window;
	job_field(j, "q", IN, rows, 1, c->heads * c->head_dim, 2);
	job_field(j, "out", OUT, rows, 1, c->heads * (c->latent ? c->latent : c->head_dim), 0);
	j->record = attention_record;
	j->record_history = kv_write_record;
	j->row = attention_row;
	job_check(j);
	conform_release(mark);
}

/* Every case with bf16 and another type, which changes from case to case. */
static void attention_all(const struct att_case *cases, uint32_t count)
{
	static uint32_t number;
	for (uint32_t i = 0; i < count; i++, number++) {
		attention_check(&cases[i], KERN_BF16, i);
		attention_check(&cases[i], kv_types[1 + number % 4], i + 1);
	}
}

/* Keys that are zero: every position weighs the same, and the result is the mean of V in the window. */
static void mean_row(const struct job *j, const struct precision *p, const struct result *r, uint32_t row, struct expect *e)
{
	(void)p, (void)r;
	const struct att_case *c = j->shape;
	uint32_t at = world_position(&j->world, row), first = at + 1 > c->window ? at + 1 - c->window : 0, s = world_sequence(&j->world, row);
	for (uint32_t i = 0; i < c->heads * c->head_dim; i++) {
		uint32_t head = i / c->head_dim / (c->heads / c->kv_heads);
		for (uint32_t t = first; t <= at; t++) {
			e->value[3][i] += (double)kv_given(j, s, t, head, 1)[i % c->head_dim] / (at + 1 - first);
			e->bound[3][i] += 20 * u * fabs((double)kv_given(j, s, t, head, 1)[i % c->head_dim]) / (at + 1 - first);
		}
	}
}

CONFORM_TEST(attention_by_hand)
{
	static const struct att_case c = {"zero keys", 6, 2, 16, 0, 16, 37, 0.3f, {{0, 70}, {300, 2}}};
	struct job *j = kv_job(KERN_OP_ATTENTION, c.seq, c.block_tokens, KERN_F32, c.kv_heads, c.head_dim, 0, c.name);
	memset(j->field[0].data, 0, (size_t)j->world.all[j->world.sequences] * c.kv_heads * c.head_dim * sizeof(float));
	j->shape = &c;
	j->window = c.window;
	job_field(j, "q", IN, KERN_ROWS_ALL, 1, c.heads * c.head_dim, 2);
	job_field(j, "out", OUT, KERN_ROWS_ALL, 1, c.heads * c.head_dim, 0);
	j->record = attention_record;
	j->record_history = kv_write_record;
	j->row = mean_row;
	j->clean = true;
	job_check(j);
}

CONFORM_TEST(attention_of_groups)
{
	static const struct att_case cases[] = {
		{"first token", 1, 1, 4, 0, 16, 0, 0.3f, {{0, 1}}},
		{"small prompt", 4, 2, 16, 0, 16, 0, 0.3f, {{0, 21}}},
		{"9 heads over 3", 9, 3, 64, 0, 16, 0, 0.125f, {{0, 130}, {70, 1}, {300, 3}}},
		{"9 heads over 3, decode", 9, 3, 64, 0, 32, 0, 0.125f, {{63, 1}, {64, 1}, {519, 1}}},
		{"8 heads, each its own", 8, 8, 32, 0, 16, 0, 0.2f, {{0, 5}, {255, 2}, {256, 1}}},
		{"4 heads over 1", 4, 1, 64, 0, 64, 0, 0.125f, {{10, 31}, {500, 1}}},
		{"5 heads over 1", 5, 1, 24, 0, 24, 0, 0.3f, {{11, 37}, {255, 2}, {256, 1}}},
		{"16 heads over 2", 16, 2, 64, 0, 16, 0, 0.125f, {{31, 17}, {260, 1}, {0, 1}}},
		{"16 heads over 1", 16, 1, 96, 0, 64, 0, 0.1f, {{40, 9}, {257, 1}, {511, 2}}},
		{"51 heads over 1", 51, 1, 16, 0, 16, 0, 0.3f, {{30, 3}}},
		{"7 sequences", 6, 2, 32, 0, 16, 0, 0.2f, {{15, 1}, {16, 1}, {17, 1}, {0, 1}, {63, 2}, {64, 3}, {1, 1}}},
	};
	attention_all(cases, LEN(cases));
}

CONFORM_TEST(attention_of_sizes)
{
	static const struct att_case cases[] = {
		{"96 wide in blocks of 512", 4, 2, 96, 0, 512, 0, 0.1f, {{600, 1}, {511, 2}, {512, 1}}},
		{"128 wide in blocks of 256", 2, 2, 128, 0, 256, 0, 0.1f, {{200, 60}, {1, 1}}},
		{"256 wide", 4, 1, 256, 0, 16, 0, 0.06f, {{30, 9}, {100, 1}}},
		{"512 wide", 2, 1, 512, 0, 48, 0, 0.04f, {{60, 9}, {100, 1}}},
		{"100 wide in blocks of 7", 6, 2, 100, 0, 7, 0, 0.1f, {{0, 30}, {300, 1}, {63, 2}}},
		{"20 wide in blocks of 8", 6, 2, 20, 0, 8, 0, 0.3f, {{5, 19}, {320, 9}}},
		{"blocks of 1", 3, 1, 64, 0, 1, 0, 0.125f, {{0, 1}, {130, 1}, {257, 1}}},
		{"80 wide", 3, 3, 80, 0, 16, 0, 0.11f, {{0, 65}, {191, 2}}},
		{"steep scores", 4, 2, 64, 0, 16, 0, 2.0f, {{0, 70}, {300, 2}}},
	};
	attention_all(cases, LEN(cases));
}

CONFORM_TEST(attention_in_windows)
{
	static const struct att_case cases[] = {
		{"window of 50", 4, 2, 32, 0, 16, 50, 0.2f, {{0, 120}, {290, 40}, {49, 2}}},
		{"window of 1", 2, 1, 16, 0, 16, 1, 0.3f, {{60, 10}}},
		{"window of 260", 3, 3, 36, 0, 40, 260, 0.2f, {{500, 30}, {270, 1}}},
		{"window of 64", 8, 2, 64, 0, 64, 64, 0.125f, {{63, 2}, {127, 1}, {128, 1}, {600, 1}, {0, 66}}},
		{"window of 128, decode", 16, 1, 64, 0, 16, 128, 0.125f, {{127, 1}, {128, 1}, {1500, 1}}},
		{"a window beyond all", 2, 2, 32, 0, 16, 100000, 0.2f, {{20, 20}}},
	};
	attention_all(cases, LEN(cases));
}

CONFORM_TEST(attention_over_latents)
{
	static const struct att_case cases[] = {
		{"latent", 4, 1, 32, 24, 16, 0, 0.2f, {{0, 40}, {70, 1}, {300, 3}}},
		{"latent, decode", 3, 1, 96, 64, 16, 0, 0.1f, {{63, 1}, {519, 1}, {256, 1}}},
		{"latent of 70 heads", 70, 1, 576, 512, 64, 0, 0.04f, {{10, 2}, {300, 1}}},
		{"latent of 16 heads", 16, 1, 576, 512, 16, 0, 0.04f, {{20, 5}, {64, 1}}},
		{"latents in blocks of 7", 10, 2, 36, 20, 7, 50, 0.2f, {{0, 30}, {300, 1}}},
		{"all of a head is latent", 4, 2, 32, 32, 16, 0, 0.2f, {{33, 9}}},
	};
	attention_all(cases, LEN(cases));
}

CONFORM_TEST(attention_deep_in_a_context)
{
	static const struct att_case cases[] = {
		{"deep", 3, 1, 64, 0, 16, 0, 0.125f, {{5000, 2}, {4095, 1}, {2047, 2}}},
		{"deep in large blocks", 4, 2, 32, 0, 64, 0, 0.2f, {{3001, 40}, {1024, 1}}},
		{"deep in a window", 4, 2, 32, 0, 64, 512, 0.2f, {{6000, 3}, {511, 2}}},
	};
	attention_all(cases, LEN(cases));
}
