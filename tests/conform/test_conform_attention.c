/* test_conform_attention.c - attention over the paged KV: every type of KV, groups of heads,
 * head sizes, latents, windows, sinks, sizes of blocks, depths of context. */
/* run: long */
#include "tests/conform/conform.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double u = 0x1p-24; /* the rounding of one float32 operation */
/* the rounding to bfloat16, of struct precision's bf16_mma */
static const double bf = 0x1p-8;

/* --- attention ----------------------------------------------------------- */

struct att_case {
	const char *name;
	uint32_t heads, kv_heads, head_dim, latent, block_tokens, window;
	float scale;
	struct sequence seq[SEQUENCES];
};

/* Field q and field out follow k and v; sinks are constant 0, if there is one. */
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
	op[1].attention.sinks = j->constants ? l->constant[0] : (kern_ptr){0};
	return 2;
}

/* K and V of a sequence as numbers, of the latest pool that was asked for. */
struct expanded {
	uint64_t result;
	uint32_t seq;
	size_t room;
	double *k, *v;
};

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
			ref_kv(j, r->pool, seq, p, h, false,
			       x.k + ((size_t)p * kv->kv_heads + h) * kv->head_dim);
			ref_kv(j, r->pool, seq, p, h, true,
			       x.v + ((size_t)p * kv->kv_heads + h) * kv->head_dim);
		}
	x.result = r->id;
	x.seq = seq;
	return &x;
}

/* How many of the two factors of a product with K or V are rounded to bfloat16: a type of KV may
 * be exact in it. */
static double rounded_factors(const struct job *j, const struct precision *p)
{
	return !p->bf16_mma ? 0 : j->kv.dtype == KERN_F32 || j->kv.dtype == KERN_F16 ? 2 : 1;
}

/* The score of a position and, in units of u, what float32 makes of it: see reference.c for sums;
 * the factor and the difference to the largest score are rounded, too. Roundings to bfloat16 are
 * 0.6 bf of each product at random, all in the same direction at worst; what the score is off by
 * then is too much for a relative error of the weight, and of the sum of weights, to be the
 * same. Infinity: too far off to say anything of the result (rows that are huge, or not finite). */
static double score(const float *q, const double *k, uint32_t dim, double scale, double rounded,
                    double *ret_error)
{
	double sum = 0, size = 0, largest = 0, squares = 0;
	for (uint32_t d = 0; d < dim; d++) {
		double part = (double)q[d] * k[d];
		sum += part;
		size += fabs(part);
		squares += part * part;
		largest = fmax(largest, fabs(part));
	}
	*ret_error = (size + 0.7 * sqrt(dim) * (largest + fabs(sum))) * fabs(scale);
	if (rounded > 0) {
		double off = bf * fmin(rounded * size, 3 * sqrt(rounded * squares)) * fabs(scale);
		*ret_error += off < 10 ? expm1(off) * exp(off) / u : INFINITY;
	}
	return sum * scale;
}

struct head {
	/* (positions), (positions), (out), the sink's logit and then weight */
	double *weight, *error, *v_error, sink, sink_error;
	bool unknown; /* some error of a score is infinite */
};

static void head_scores(const struct job *j, const struct precision *p, const struct expanded *x,
                        uint32_t kv_head, uint32_t first, uint32_t at, const float *q,
                        struct head *h)
{
	const struct att_case *c = j->shape;
	double max = h->sink, sum = 0;
	for (uint32_t t = first; t <= at; t++) {
		h->weight[t] = score(q, x->k + ((size_t)t * c->kv_heads + kv_head) * c->head_dim,
		                     c->head_dim, (double)c->scale, rounded_factors(j, p), &h->error[t]);
		max = h->weight[t] > max || isnan(h->weight[t]) ? h->weight[t] : max;
		h->unknown |= isinf(h->error[t]) && p->bf16_mma;
	}
	for (uint32_t t = first; t <= at; t++) {
		h->error[t] += 2 * (max - h->weight[t]) + 15;
		h->weight[t] = exp(h->weight[t] - max);
		sum += h->weight[t];
	}
	h->sink_error = j->constants ? 2 * (max - h->sink) + 15 : 0;
	h->sink = exp(h->sink - max);
	sum += j->constants ? h->sink : 0;
	h->sink /= sum;
	for (uint32_t t = first; t <= at; t++) {
		h->weight[t] /= sum;
		h->error[t] = h->weight[t] == 0 ? 0 : h->error[t];
	}
}

/* An error of a score is the relative error of a weight, and moves the mean by that part of what
 * V differs from the mean. */
static void head_row(const struct job *j, const struct precision *p, const struct expanded *x,
                     uint32_t head, uint32_t at, const float *q, double *value, double *bound)
{
	const struct att_case *c = j->shape;
	uint32_t out = c->latent ? c->latent : c->head_dim, kv_head = head / (c->heads / c->kv_heads),
			 first = c->window && at + 1 > c->window ? at + 1 - c->window : 0;
	struct head h = {conform_alloc(at + 1, sizeof(double)),
	                 conform_alloc(at + 1, sizeof(double)),
	                 conform_alloc(out, sizeof(double)),
	                 -INFINITY,
	                 0,
	                 false};
	double error = 0;
	if (j->constants)
		h.sink = (double)((const float *)j->constant[0].data)[head];
	head_scores(j, p, x, kv_head, first, at, q, &h);
	error += j->constants ? h.sink * h.sink_error : 0;
	memset(value, 0, out * sizeof *value);
	for (uint32_t t = first; t <= at; t++) {
		const double *v = x->v + ((size_t)t * c->kv_heads + kv_head) * c->head_dim;
		error += h.weight[t] * h.error[t];
		for (uint32_t d = 0; d < out; d++) {
			value[d] += h.weight[t] * v[d];
			/* a weight below 2^-126 may be 0 */
			h.v_error[d] += (h.weight[t] * (h.error[t] + rounded_factors(j, p) * bf / u) +
			                 0x1p-102) *
			                fabs(v[d]);
		}
	}
	for (uint32_t d = 0; d < out; d++)
		bound[d] = h.unknown ? INFINITY : u * (h.v_error[d] + error * fabs(value[d])) + 0x1p-126;
}

static void attention_row(const struct job *j, const struct precision *p, const struct result *r,
                          uint32_t row, struct expect *e)
{
	const struct att_case *c = j->shape;
	uint32_t f = q_field(j), out = c->latent ? c->latent : c->head_dim;
	const struct expanded *x = expand(j, r, world_sequence(&j->world, row));
	for (uint32_t h = 0; h < c->heads; h++)
		head_row(j, p, x, h, world_position(&j->world, row), job_data(j, f, row) + h * c->head_dim,
		         e->value[f + 1] + h * out, e->bound[f + 1] + h * out);
}

/* Some as large as scores are, one that takes nearly all of the weight, one that takes none. */
static float *sinks_random(uint32_t heads)
{
	float *s = rand_floats(heads, 3);
	s[heads / 2] = 25;
	s[heads - 1] = heads > 2 ? -80 : s[heads - 1];
	return s;
}

static struct job *attention_job(const struct att_case *c, enum kern_dtype type,
                                 enum kern_rows rows, bool sinks)
{
	struct job *j = kv_job(KERN_OP_ATTENTION, c->seq, c->block_tokens, type, c->kv_heads,
	                       c->head_dim, c->latent, c->name);
	j->shape = c;
	j->window = c->window;
	job_field(j, "q", IN, rows, 1, c->heads * c->head_dim, 2);
	job_field(j, "out", OUT, rows, 1, c->heads * (c->latent ? c->latent : c->head_dim), 0);
	if (sinks)
		job_constant(j, sinks_random(c->heads), c->heads * sizeof(float));
	j->record = attention_record;
	j->record_history = kv_write_record;
	j->row = attention_row;
	return j;
}

static void attention_check(const struct att_case *c, enum kern_dtype type, uint32_t number,
                            bool sinks)
{
	size_t mark = conform_mark();
	job_check(attention_job(c, type, number % 4 == 3 ? KERN_ROWS_TAIL : KERN_ROWS_ALL, sinks));
	conform_release(mark);
}

/* Every case with bf16 and another type, which changes from case to case. */
static void attention_all(const struct att_case *cases, uint32_t count, bool sinks)
{
	static uint32_t number;
	for (uint32_t i = 0; i < count; i++, number++) {
		attention_check(&cases[i], KERN_BF16, i, sinks);
		attention_check(&cases[i], kv_types[1 + number % (KV_TYPES - 1)], i + 1, sinks);
	}
}

/* Keys that are zero: every position weighs the same, and the result is the mean of V in the
 * window. */
static void mean_row(const struct job *j, const struct precision *p, const struct result *r,
                     uint32_t row, struct expect *e)
{
	(void)r;
	const struct att_case *c = j->shape;
	uint32_t at = world_position(&j->world, row),
			 first = at + 1 > c->window ? at + 1 - c->window : 0,
			 s = world_sequence(&j->world, row);
	for (uint32_t i = 0; i < c->heads * c->head_dim; i++) {
		uint32_t head = i / c->head_dim / (c->heads / c->kv_heads);
		for (uint32_t t = first; t <= at; t++) {
			e->value[3][i] += (double)kv_given(j, s, t, head, 1)[i % c->head_dim] /
			                  (at + 1 - first);
			e->bound[3][i] += (20 * u + rounded_factors(j, p) * bf) *
			                  fabs((double)kv_given(j, s, t, head, 1)[i % c->head_dim]) /
			                  (at + 1 - first);
		}
	}
}

CONFORM_TEST(attention_by_hand)
{
	static const struct att_case c = {"zero keys", 6, 2, 16, 0, 16, 37, 0.3f, {{0, 70}, {300, 2}}};
	struct job *j = attention_job(&c, KERN_F32, KERN_ROWS_ALL, false);
	memset(j->field[0].data, 0,
	       (size_t)j->world.all[j->world.sequences] * c.kv_heads * c.head_dim * sizeof(float));
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
		{"7 sequences",
	     6,
	     2,
	     32,
	     0,
	     16,
	     0,
	     0.2f,
	     {{15, 1}, {16, 1}, {17, 1}, {0, 1}, {63, 2}, {64, 3}, {1, 1}}},
	};
	attention_all(cases, LEN(cases), false);
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
	attention_all(cases, LEN(cases), false);
}

/* Elements of K, and of some in V, at these positions are NaN: rows whose window has them are not
 * finite, though they may be all that is seen of what a backend takes together. */
static void set_nan(struct job *j, const uint32_t *at, uint32_t n, uint32_t every)
{
	const struct att_case *c = j->shape;
	for (uint32_t i = 0; i < n; i++)
		j->field[i % every == every - 1]
			.data[at[i] * c->kv_heads * c->head_dim + 33 % c->head_dim * i] = NAN;
	j->clean = true;
}

static const uint32_t nan_at[] = {255, 281, 319, 330};

/* Many rows of one sequence: a backend may do them in another way than few, with the same bits. */
CONFORM_TEST(attention_of_prompts)
{
	static const struct att_case cases[] = {
		{"a prompt, 64 wide", 4, 2, 64, 0, 16, 0, 0.125f, {{150, 66}}},
		{"prompts, 128 wide", 4, 2, 128, 0, 64, 0, 0.1f, {{490, 34}, {40, 1}}},
		{"prompts in windows", 6, 2, 64, 0, 7, 90, 0.125f, {{200, 45}, {0, 3}}},
		{"a prompt deep in a context", 8, 2, 64, 0, 64, 0, 0.5f, {{2030, 33}}},
		{"NaN here and there, 64 wide", 4, 2, 64, 0, 16, 3, 0.3f, {{240, 100}}},
	};
	for (uint32_t i = 0; i < LEN(cases); i++) {
		size_t mark = conform_mark();
		struct job *j = attention_job(&cases[i], KERN_BF16, KERN_ROWS_ALL, i == 2);
		j->kv.block_stride_bytes = (j->kv.block_stride_bytes + 15) / 16 * 16;
		if (i == 4)
			set_nan(j, nan_at, LEN(nan_at), 2);
		if (conform_thin <= 5 || i == 1 || i == 2) /* the others take longest, and in their turn */
			job_next_counts();
		job_check(j);
		conform_release(mark);
	}
}

CONFORM_TEST(attention_in_windows)
{
	static const struct att_case cases[] = {
		{"window of 50", 4, 2, 32, 0, 16, 50, 0.2f, {{0, 120}, {290, 40}, {49, 2}}},
		{"window of 1", 2, 1, 16, 0, 16, 1, 0.3f, {{60, 10}}},
		{"window of 1, further on", 4, 2, 16, 0, 16, 1, 0.3f, {{2040, 40}}},
		{"window of 260", 3, 3, 36, 0, 40, 260, 0.2f, {{500, 30}, {270, 1}}},
		{"window of 64",
	     8,
	     2,
	     64,
	     0,
	     64,
	     64,
	     0.125f,
	     {{63, 2}, {127, 1}, {128, 1}, {600, 1}, {0, 66}}},
		{"window of 128, decode", 16, 1, 64, 0, 16, 128, 0.125f, {{127, 1}, {128, 1}, {1500, 1}}},
		{"a window beyond all", 2, 2, 32, 0, 16, 100000, 0.2f, {{20, 20}}},
	};
	attention_all(cases, LEN(cases), false);
}

CONFORM_TEST(attention_with_sinks)
{
	static const struct att_case cases[] = {
		{"sinks", 4, 2, 32, 0, 16, 0, 0.2f, {{0, 21}, {70, 1}}},
		{"sinks, 8 heads over 1", 8, 1, 64, 0, 16, 0, 0.125f, {{250, 9}, {519, 1}, {0, 1}}},
		{"sinks of each head", 3, 3, 20, 0, 8, 0, 0.3f, {{0, 65}, {300, 2}}},
		{"sinks in a window of 128",
	     16,
	     2,
	     64,
	     0,
	     16,
	     128,
	     0.125f,
	     {{120, 20}, {255, 3}, {1500, 1}}},
		{"sinks in a window of 1", 4, 2, 16, 0, 16, 1, 0.3f, {{60, 10}}},
		{"sinks in a window of 300", 8, 1, 64, 0, 64, 300, 0.125f, {{500, 30}, {299, 1}, {0, 3}}},
		{"sinks and a latent", 4, 1, 32, 24, 16, 0, 0.2f, {{0, 9}, {300, 3}}},
		{"sinks deep in a context", 3, 1, 64, 0, 64, 0, 0.125f, {{2000, 1}}},
	};
	attention_all(cases, LEN(cases), true);
}

CONFORM_TEST(attention_sees_nan)
{
	static const struct att_case c = {"NaN here and there", 2, 1, 16, 0, 16, 3, 0.3f, {{240, 100}}};
	for (uint32_t i = 0; i < 4; i++) {
		size_t mark = conform_mark();
		struct job *j = attention_job(&c, i % 2 ? KERN_BF16 : KERN_F32, KERN_ROWS_ALL, i / 2 == 1);
		set_nan(j, nan_at, LEN(nan_at), 4);
		job_check(j);
		conform_release(mark);
	}
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
	attention_all(cases, LEN(cases), false);
}

CONFORM_TEST(attention_deep_in_a_context)
{
	static const struct att_case cases[] = {
		{"deep", 3, 1, 64, 0, 16, 0, 0.125f, {{5000, 2}, {4095, 1}, {2047, 2}}},
		{"deep in large blocks", 4, 2, 32, 0, 64, 0, 0.2f, {{3001, 40}, {1024, 1}}},
		{"deep in a window", 4, 2, 32, 0, 64, 512, 0.2f, {{6000, 3}, {511, 2}}},
		{"deep beside a prompt", 4, 2, 64, 0, 64, 0, 0.125f, {{5000, 1}, {10, 66}, {300, 1}}},
	};
	attention_all(cases, LEN(cases), false);
}
