/* rows.cu - operations that compute a row from that row alone: embedding, norms, activation; and
 * progress. A block processes a row or a part of one; sums use a fixed number of threads, so a
 * row's bits depend on nothing else. A norm or an activation whose output a product reads next also
 * prepares it for that product. */
#include "kernels/cuda/rows.h"
#include "kernels/cuda/weight.h"

enum { THREADS = 256, ACT_THREADS_MAX = 1024 };

static uint32_t blocks_of(uint32_t columns)
{
	return (columns + THREADS - 1) / THREADS;
}

/* --- moving and scaling -------------------------------------------------- */

struct embed_args {
	const struct kern_batch *batch;
	struct kern_tensor y;
	struct weight_view w;
	uint32_t first;
};

KERNEL(embed_rows, THREADS, struct embed_args)
{
	uint32_t r = blockIdx.x, c = blockIdx.y * THREADS + threadIdx.x;
	if (r >= a.batch->rows || c >= a.w.k)
		return;
	uint32_t token = batch_words(a.batch, a.batch->tokens)[r];
	if (token >= a.first && token - a.first < a.w.n)
		tensor_put(a.y, r, c, weight_value(a.w, token - a.first, c));
}

static void plan_embed(struct plan *p)
{
	const struct kern_op *op = p->op;
	if (plan_tensor(p, &op->embed.y, op->embed.w->k))
		return;
	struct embed_args a = {p->batch, op->embed.y, weight_view_of(op->embed.w), op->embed.first};
	PLAN(p, embed_rows, plan_rows(p), blocks_of(a.w.k), THREADS, 0, a);
}

KERNEL(gather_rows, THREADS, struct move_args)
{
	gather_row(a, place_in_grid());
}

KERNEL(scale_rows, THREADS, struct move_args)
{
	scale_row(a, place_in_grid());
}

static void plan_gather_rows(struct plan *p)
{
	struct move_args a = {
		p->batch, p->op->gather_rows.y, p->op->gather_rows.x, p->op->gather_rows.dim, p->op->rows,
		0};
	if (!plan_tensor(p, &a.y, a.dim) && !plan_tensor(p, &a.x, a.dim))
		PLAN_PHASE(p, PHASE_GATHER, gather_rows, plan_rows(p), blocks_of(a.dim), THREADS, 0, a);
}

static void plan_scale(struct plan *p)
{
	struct move_args a = {p->batch,         p->op->scale.y, p->op->scale.x,
	                      p->op->scale.dim, p->op->rows,    p->op->scale.factor};
	if (!plan_tensor(p, &a.y, a.dim) && !plan_tensor(p, &a.x, a.dim))
		PLAN_PHASE(p, PHASE_SCALE, scale_rows, plan_rows(p), blocks_of(a.dim), THREADS, 0, a);
}

/* --- norms and activation ------------------------------------------------ */

KERNEL(norm_rows, NORM_THREADS, struct norm_args)
{
	norm_row(a, place_in_grid());
}

static void plan_norm(struct plan *p)
{
	const struct kern_op *op = p->op;
	struct norm_args a = {
		p->batch,     op->norm.y, op->norm.x,   op->norm.a, (const float *)op->norm.w.v,
		op->norm.dim, op->rows,   op->norm.eps, {}};
	if (plan_tensor(p, &a.y, a.dim) || plan_tensor(p, &a.x, a.dim) ||
	    (a.addend.at.v && plan_tensor(p, &a.addend, a.dim)) || plan_address(p, op->norm.w))
		return;
	a.make = plan_ready_next(p, &a.y, a.dim);
	PLAN_PHASE(p, PHASE_NORM, norm_rows, plan_rows(p), 1, NORM_THREADS,
	           NORM_THREADS / WARP * sizeof(double), a);
}

KERNEL(act_rows, ACT_THREADS_MAX, struct act_args)
{
	act_row(a, place_in_grid());
}

static void plan_act_mul(struct plan *p)
{
	const struct kern_op *op = p->op;
	struct act_args a = {p->batch,        op->act_mul.y, op->act_mul.gate, op->act_mul.up,
	                     op->act_mul.dim, op->rows,      op->act_mul.act,  {}};
	if (plan_tensor(p, &a.y, a.dim) || plan_tensor(p, &a.gate, a.dim) ||
	    plan_tensor(p, &a.up, a.dim))
		return;
	a.make = plan_ready_next(p, &a.y, a.dim);
	uint32_t whole = a.dim < (uint32_t)ACT_THREADS_MAX ? (a.dim + WARP - 1) / WARP * WARP
	                                                   : (uint32_t)ACT_THREADS_MAX;
	if (a.make.to.parts)
		PLAN_PHASE(p, PHASE_ACT, act_rows, plan_rows(p), 1, whole, whole / WARP * sizeof(uint32_t),
		           a);
	else
		PLAN_PHASE(p, PHASE_ACT, act_rows, plan_rows(p), blocks_of(a.dim), THREADS, 0, a);
}

/* --- progress ------------------------------------------------------------ */

struct progress_args {
	const struct kern_batch *batch;
	uint64_t *pulse;
	uint32_t layer;
	const uint32_t *broken; /* a word that is nonzero if the group is broken; NULL: no group */
};

/* A single thread, so that a span's words are stored in order. The grid starts when the previous
 * ones are done, so the KV is written. */
KERNEL(progress_words, 1, struct progress_args)
{
	const struct kern_batch *b = a.batch;
	if (!b->progress || (a.broken && *a.broken))
		return;
	const struct kern_progress *of = (const struct kern_progress *)batch_words(b, b->progress);
	for (uint32_t i = 0; i < b->spans; i++)
		if (of[i].word.v)
			store_release_system((uint64_t *)of[i].word.v + a.layer * of[i].stride, of[i].value);
	store_release_system(a.pulse, *a.pulse + 1);
}

void plan_progress(struct plan *p)
{
	struct progress_args a = {p->batch, (uint64_t *)(uintptr_t)p->dev->pulse_dev.v,
	                          p->op->progress.layer, plan_meet_progress(p)};
	if (p->dev->group.rank)
		return;
	p->progress++;
	PLAN(p, progress_words, 1, 1, 1, 0, a);
}

/* --- dispatch ------------------------------------------------------------ */

void plan_row_op(struct plan *p)
{
	switch (p->op->kind) {
	case KERN_OP_EMBED: plan_embed(p); break;
	case KERN_OP_GATHER_ROWS: plan_gather_rows(p); break;
	case KERN_OP_SCALE: plan_scale(p); break;
	case KERN_OP_NORM: plan_norm(p); break;
	case KERN_OP_ACT_MUL: plan_act_mul(p); break;
	default: plan_fail(p, KERN_ENOTSUP, "not supported by this device");
	}
}
