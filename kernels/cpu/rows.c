/* rows.c - row phases: operations that compute a row from that row alone. Consecutive ones run one
 * after the other over a few rows, which stay in the cache, before the next few. A row is always
 * computed by one thread. */
#include "kernels/cpu/build.h"
#include "kernels/own_math.h"

#include <math.h>
#include <string.h>

/* --- phases -------------------------------------------------------------- */

uint32_t cpu_grain(const struct kern_program *p, uint32_t count, size_t work, uint32_t multiple)
{
	enum { ITEMS_PER_THREAD = 4, LEAST_WORK = 2048 };
	uint32_t share = count / (ITEMS_PER_THREAD * crew_threads(p->dev->crew)) + 1;
	size_t least = work < LEAST_WORK ? LEAST_WORK / (work ? work : 1) : 1;
	share = share < least ? (uint32_t)least : share;
	return (share + multiple - 1) / multiple * multiple;
}

static uint32_t rows_items(const void *ctx)
{
	const struct row_phase *ph = ctx;
	uint32_t rows = cpu_rows(ph->p, ph->rows),
			 grain = rows > CPU_TILE_ROWS ? cpu_grain(ph->p, rows, ph->work, CPU_TILE_ROWS)
	                                      : CPU_TILE_ROWS;
	return (rows + grain - 1) / grain;
}

static void rows_item(const void *ctx, uint32_t item, unsigned worker)
{
	(void)worker;
	const struct row_phase *ph = ctx;
	uint32_t rows = cpu_rows(ph->p, ph->rows),
			 grain = rows > CPU_TILE_ROWS ? cpu_grain(ph->p, rows, ph->work, CPU_TILE_ROWS)
	                                      : CPU_TILE_ROWS;
	uint32_t from = item * grain;
	uint32_t to = rows - from < grain ? rows : from + grain;
	for (uint32_t i = 0; i < ph->steps; i++)
		ph->step[i].run(&ph->step[i], ph->p, from, to);
}

void build_row_step(struct build *b, const struct kern_op *op,
                    void (*run)(const struct row_step *, const struct kern_program *, uint32_t,
                                uint32_t),
                    const void *with, size_t work)
{
	if (b->rc)
		return;
	if (!b->open || b->open->rows != op->rows || b->open->steps == ROW_STEPS_MAX) {
		struct row_phase *ph = build_alloc(b, sizeof *ph);
		if (!ph)
			return;
		*ph = (struct row_phase){.p = b->p, .rows = op->rows};
		build_phase(b, rows_items, rows_item, ph);
		b->open = ph;
	}
	b->open->work += work;
	b->open->step[b->open->steps++] = (struct row_step){run, op, with};
}

/* --- moving and scaling -------------------------------------------------- */

static void embed_rows(const struct row_step *s, const struct kern_program *p, uint32_t from,
                       uint32_t to)
{
	const uint32_t *tokens = kern_part(p->batch, p->batch->tokens);
	for (uint32_t r = from; r < to; r++) {
		uint32_t id = tokens[r] - s->op->embed.first;
		if (id < s->op->embed.w->n)
			cpu_weight_row(s->op->embed.w, id, cpu_row(&s->op->embed.y, r));
	}
}

void build_embed(struct build *b, const struct kern_op *op)
{
	build_row_step(b, op, embed_rows, NULL, op->embed.w->k);
}

static void gathered_rows(const struct row_step *s, const struct kern_program *p, uint32_t from,
                          uint32_t to)
{
	const uint32_t *index = kern_part(p->batch, p->batch->tail_index);
	for (uint32_t r = from; r < to; r++)
		memcpy(cpu_row(&s->op->gather_rows.y, r), cpu_row(&s->op->gather_rows.x, index[r]),
		       s->op->gather_rows.dim * sizeof(float));
}

void build_gather_rows(struct build *b, const struct kern_op *op)
{
	build_row_step(b, op, gathered_rows, NULL, op->gather_rows.dim);
}

static void scale_rows(const struct row_step *s, const struct kern_program *p, uint32_t from,
                       uint32_t to)
{
	(void)p;
	for (uint32_t r = from; r < to; r++) {
		float *y = cpu_row(&s->op->scale.y, r);
		const float *x = cpu_row(&s->op->scale.x, r);
		for (uint32_t i = 0; i < s->op->scale.dim; i++)
			y[i] = x[i] * s->op->scale.factor;
	}
}

void build_scale(struct build *b, const struct kern_op *op)
{
	build_row_step(b, op, scale_rows, NULL, op->scale.dim);
}

/* --- norms and activation ------------------------------------------------ */

static void norm_rows(const struct row_step *s, const struct kern_program *p, uint32_t from,
                      uint32_t to)
{
	const struct kern_op *op = s->op;
	for (uint32_t r = from; r < to; r++)
		p->dev->variant->rms_norm(cpu_row(&op->norm.y, r), cpu_row(&op->norm.x, r),
		                          op->norm.a.at.v ? cpu_row(&op->norm.a, r) : NULL,
		                          cpu_f32(op->norm.w), op->norm.dim, op->norm.eps);
}

void build_norm(struct build *b, const struct kern_op *op)
{
	build_row_step(b, op, norm_rows, NULL, 2 * (size_t)op->norm.dim);
}

static void head_norm_rows(const struct row_step *s, const struct kern_program *p, uint32_t from,
                           uint32_t to)
{
	const struct kern_op *op = s->op;
	for (uint32_t r = from; r < to; r++)
		for (uint32_t h = 0; h < op->head_norm.heads; h++) {
			float *x = cpu_row(&op->head_norm.x, r) + (size_t)h * op->head_norm.head_dim;
			p->dev->variant->rms_norm(x, x, NULL, cpu_f32(op->head_norm.w), op->head_norm.head_dim,
			                          op->head_norm.eps);
		}
}

void build_head_norm(struct build *b, const struct kern_op *op)
{
	build_row_step(b, op, head_norm_rows, NULL,
	               2 * (size_t)op->head_norm.heads * op->head_norm.head_dim);
}

static void act_rows(const struct row_step *s, const struct kern_program *p, uint32_t from,
                     uint32_t to)
{
	const struct kern_op *op = s->op;
	for (uint32_t r = from; r < to; r++)
		p->dev->variant->act_mul(cpu_row(&op->act_mul.y, r), cpu_row(&op->act_mul.gate, r),
		                         cpu_row(&op->act_mul.up, r), op->act_mul.act, op->act_mul.dim);
}

void build_act_mul(struct build *b, const struct kern_op *op)
{
	build_row_step(b, op, act_rows, NULL, 4 * (size_t)op->act_mul.dim);
}

/* --- rotation ------------------------------------------------------------ */

/* (cos, sin) of each row of the batch: (rows, 2, dims / 2). All layers with the same rope share the
 * table. */
struct cpu_angles {
	struct kern_rope rope;
	float *cos_sin;
};

static void angle_rows(const struct row_step *s, const struct kern_program *p, uint32_t from,
                       uint32_t to)
{
	const struct cpu_angles *a = s->with;
	const uint32_t *positions = kern_part(p->batch, p->batch->positions);
	const float *inv_freq = cpu_f32(a->rope.inv_freq);
	uint32_t pairs = a->rope.dims / 2;
	for (uint32_t r = from; r < to; r++)
		for (uint32_t i = 0; i < pairs; i++) {
			float *cs = a->cos_sin + (size_t)r * a->rope.dims, sn, co;
			own_sin_cos((float)positions[r] * inv_freq[i], &sn, &co);
			cs[i] = co * a->rope.scale;
			cs[pairs + i] = sn * a->rope.scale;
		}
}

static void rope_rows(const struct row_step *s, const struct kern_program *p, uint32_t from,
                      uint32_t to)
{
	const struct kern_op *op = s->op;
	const struct cpu_angles *a = s->with;
	for (uint32_t r = from; r < to; r++)
		p->dev->variant->rope(cpu_row(&op->rope.x, r), op->rope.heads, op->rope.head_dim,
		                      &op->rope.rope, a->cos_sin + (size_t)r * a->rope.dims);
}

/* The table of a rope; computed by a step before its first use. */
static const struct cpu_angles *angles_of(struct build *b, const struct kern_op *op)
{
	struct kern_program *p = b->p;
	const struct kern_rope *rope = &op->rope.rope;
	for (unsigned i = 0; i < p->angle_tables; i++) {
		const struct kern_rope *have = &p->angles[i]->rope;
		if (have->inv_freq.v == rope->inv_freq.v && have->dims == rope->dims &&
		    memcmp(&have->scale, &rope->scale, sizeof rope->scale) == 0)
			return p->angles[i];
	}
	struct cpu_angles *a = build_alloc(b, sizeof *a);
	if (p->angle_tables == sizeof p->angles / sizeof *p->angles)
		build_fail(b, KERN_ENOTSUP, "rope: more than %u tables of angles", p->angle_tables);
	if (b->rc)
		return NULL;
	*a = (struct cpu_angles){*rope,
	                         build_alloc(b, (size_t)p->limits.rows * rope->dims * sizeof(float))};
	p->angles[p->angle_tables++] = a;
	build_row_step(b, op, angle_rows, a, 8 * (size_t)rope->dims);
	return a;
}

void build_rope(struct build *b, const struct kern_op *op)
{
	const struct cpu_angles *a = angles_of(b, op);
	build_row_step(b, op, rope_rows, a, (size_t)op->rope.heads * op->rope.head_dim);
}

/* --- KV ------------------------------------------------------------------ */

static void kv_rows(const struct row_step *s, const struct kern_program *p, uint32_t from,
                    uint32_t to)
{
	const struct kern_op *op = s->op;
	const uint32_t *slots = kern_part(p->batch, p->batch->slots);
	for (uint32_t r = from; r < to; r++)
		cpu_kv_row(&op->kv_write.kv, slots[r], cpu_row(&op->kv_write.k, r),
		           op->kv_write.kv.latent ? NULL : cpu_row(&op->kv_write.v, r));
}

void build_kv_write(struct build *b, const struct kern_op *op)
{
	const struct kern_kv_layer *kv = &op->kv_write.kv;
	build_row_step(b, op, kv_rows, NULL, 2 * (size_t)kv->kv_heads * kv->head_dim);
}

/* --- route --------------------------------------------------------------- */

static void softmax(float *s, const float *logits, uint32_t n)
{
	float max = logits[0];
	double sum = 0, e[KERN_EXPERTS_MAX];
	for (uint32_t i = 1; i < n; i++)
		max = logits[i] > max ? logits[i] : max;
	for (uint32_t i = 0; i < n; i++)
		sum += e[i] = own_exp((double)logits[i] - (double)max);
	for (uint32_t i = 0; i < n; i++)
		s[i] = (float)(e[i] / sum);
}

/* Index of the largest value not marked `out`, the lowest of equals; never one that is out, even
 * with NaN. */
static uint32_t largest(const float *v, const bool *out, uint32_t n)
{
	uint32_t best = n;
	for (uint32_t i = 0; i < n; i++)
		if (!out[i] && (best == n || v[i] > v[best]))
			best = i;
	return best;
}

/* Marks the experts outside the best groups as out. */
static void limit_groups(const struct kern_router *r, const float *c, bool *out)
{
	float worth[KERN_EXPERTS_MAX / 2];
	bool chosen[KERN_EXPERTS_MAX / 2] = {false};
	uint32_t size = r->experts / r->groups;
	for (uint32_t g = 0; g < r->groups; g++) {
		bool first[KERN_EXPERTS_MAX] = {false};
		uint32_t best = largest(c + g * size, first, size);
		first[best] = true;
		worth[g] = c[g * size + best] + c[g * size + largest(c + g * size, first, size)];
	}
	for (uint32_t i = 0; i < r->groups_used; i++)
		chosen[largest(worth, chosen, r->groups)] = true;
	for (uint32_t e = 0; e < r->experts; e++)
		out[e] = !chosen[e / size];
}

static void route_row(const struct kern_router *r, const float *logits, uint32_t *ids,
                      float *weight)
{
	const float *bias = cpu_f32(r->bias);
	float s[KERN_EXPERTS_MAX], c[KERN_EXPERTS_MAX], sum = 0, nan = 0;
	bool out[KERN_EXPERTS_MAX] = {false};
	if (r->score == KERN_SCORE_SOFTMAX)
		softmax(s, logits, r->experts);
	else
		for (uint32_t e = 0; e < r->experts; e++)
			s[e] = (float)(1.0 / (1.0 + own_exp(-(double)logits[e])));
	for (uint32_t e = 0; e < r->experts; e++) {
		c[e] = bias ? s[e] + bias[e] : s[e];
		nan += 0 * s[e]; /* becomes NaN if any score is */
	}
	if (r->groups > 1)
		limit_groups(r, c, out);
	for (uint32_t i = 0; i < r->used; i++) {
		ids[i] = largest(c, out, r->experts);
		out[ids[i]] = true;
		weight[i] = s[ids[i]];
		sum += weight[i];
	}
	float divisor = r->normalise ? (sum < r->norm_min ? r->norm_min : sum) + r->norm_add : 1.0f;
	for (uint32_t i = 0; i < r->used; i++)
		weight[i] = weight[i] / divisor * r->scale + nan;
}

static void route_rows(const struct row_step *s, const struct kern_program *p, uint32_t from,
                       uint32_t to)
{
	(void)p;
	const struct kern_op *op = s->op;
	uint32_t used = op->route.router.used;
	for (uint32_t r = from; r < to; r++)
		route_row(&op->route.router, cpu_row(&op->route.logits, r),
		          (uint32_t *)(void *)op->route.ids.v + (size_t)r * used,
		          cpu_f32(op->route.weights) + (size_t)r * used);
}

void build_route(struct build *b, const struct kern_op *op)
{
	b->group = NULL; /* the rows' experts change */
	build_row_step(b, op, route_rows, NULL, 16 * (size_t)op->route.router.experts);
}
