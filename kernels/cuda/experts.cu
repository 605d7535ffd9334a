/* experts.cu - products with the experts that each row has chosen.
 *
 * Pairs (row, slot), numbered row * used + slot, are sorted by expert, so that an expert's
 * matrices are read once for all rows that chose it. In what follows experts are counted from the
 * first that the operation has; pairs of others are left out. The order of an expert's pairs is
 * arbitrary: each pair's product depends on that pair alone (linear.h), and a row's products are
 * added in ascending order of the experts' numbers, so results do not depend on it. Products are
 * numbered like pairs. */
#include "kernels/cuda/act.h"
#include "kernels/cuda/linear.h"

#include <stdlib.h>

enum { SORT_THREADS_MAX = 512, THREADS_MAX = 256 };

/* Whole warps, but no more than the work needs. */
static uint32_t threads_for(uint32_t items, uint32_t most)
{
	return items < most ? (items + WARP - 1) / WARP * WARP : most;
}

/* --- sorting ------------------------------------------------------------- */

struct sort_args {
	const struct kern_batch *batch;
	struct choice of;
	uint32_t group_rows;
	uint32_t *groups; /* output: struct chosen */
	struct group *group;
	uint32_t *pair;
};

/* For the first warp: creates the groups from each expert's number of pairs, and replaces that
 * number by the place of the expert's first pair. Each lane handles adjacent experts. */
static __device__ void place_experts(const struct sort_args &a, uint32_t *count)
{
	uint32_t each = (a.of.experts + WARP - 1) / WARP, from = threadIdx.x * each,
			 to = from + each < a.of.experts ? from + each : a.of.experts;
	uint32_t pairs = 0, groups = 0;
	for (uint32_t e = from; e < to; e++) {
		pairs += count[e];
		groups += (count[e] + a.group_rows - 1) / a.group_rows;
	}
	uint32_t pairs_end = pairs, groups_end = groups;
	for (uint32_t by = 1; by < WARP; by *= 2) {
		uint32_t more_pairs = __shfl_up_sync(ALL_LANES, pairs_end, by),
				 more_groups = __shfl_up_sync(ALL_LANES, groups_end, by);
		pairs_end += threadIdx.x >= by ? more_pairs : 0;
		groups_end += threadIdx.x >= by ? more_groups : 0;
	}
	uint32_t at = pairs_end - pairs, group = groups_end - groups;
	for (uint32_t e = from; e < to; e++) {
		uint32_t n = count[e];
		for (uint32_t i = 0; i < n; i += a.group_rows)
			a.group[group++] = {e, at + i, n - i < a.group_rows ? n - i : a.group_rows};
		count[e] = at;
		at += n;
	}
	if (threadIdx.x == WARP - 1)
		*a.groups = groups_end;
}

/* A single block. */
KERNEL(sort_pairs, SORT_THREADS_MAX, struct sort_args)
{
	const struct choice &of = a.of;
	uint32_t *count = (uint32_t *)shared_memory(), pairs = batch_rows(a.batch, of.rows) * of.used;
	for (uint32_t e = threadIdx.x; e < of.experts; e += blockDim.x)
		count[e] = 0;
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < pairs; i += blockDim.x)
		if (of.ids[i] - of.first < of.experts)
			atomicAdd(&count[of.ids[i] - of.first], 1u);
	__syncthreads();
	if (threadIdx.x < WARP)
		place_experts(a, count);
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < pairs; i += blockDim.x)
		if (of.ids[i] - of.first < of.experts)
			a.pair[atomicAdd(&count[of.ids[i] - of.first], 1u)] = i;
}

/* --- products of all experts --------------------------------------------- */

/* Sorts the pairs unless they are still sorted; only this file uses ROOM_GATHERED. */
static void plan_expert_products(struct plan *p, const struct inputs *in,
                                 const struct product *product, uint32_t products,
                                 uint32_t pairs_per_input, const struct choice *c)
{
	uint32_t pairs = plan_rows(p) * c->used, rows = plan_block_rows(p);
	/* at most, for a grid: each expert's last one may be partial */
	uint32_t groups = pairs / rows + plan_least(pairs, c->experts);
	groups = groups ? groups : 1;
	uint32_t *count = (uint32_t *)plan_room(
		p, ROOM_GATHERED, sizeof *count + groups * sizeof(struct group) + pairs * sizeof *count);
	struct group *group = (struct group *)(count + 1);
	struct chosen chosen = {count, group, (uint32_t *)(group + groups), pairs_per_input};
	struct sort_args a = {p->batch, *c, rows, count, group, (uint32_t *)(group + groups)};
	static_assert(sizeof *c == sizeof(void *) + 4 * sizeof(uint32_t), "choices are compared");
	if (memcmp(&p->sorted, c, sizeof *c))
		PLAN(p, sort_pairs, 1, 1, threads_for(pairs, SORT_THREADS_MAX),
		     c->experts * sizeof(uint32_t), a);
	p->sorted = *c;
	if (!p->rc)
		plan_products(p, in, product, products, &chosen, groups);
}

/* --- gate and up --------------------------------------------------------- */

struct pairs_args {
	const struct kern_batch *batch;
	struct kern_tensor y;
	const float *gate; /* (pairs, 2 * dim): up follows */
	struct choice of;
	uint32_t dim;
	int act; /* enum kern_act */
};

KERNEL(act_pairs, THREADS_MAX, struct pairs_args)
{
	uint32_t i = blockIdx.x, c = blockIdx.y * blockDim.x + threadIdx.x;
	if (i >= batch_rows(a.batch, a.of.rows) * a.of.used || c >= a.dim ||
	    a.of.ids[i] - a.of.first >= a.of.experts)
		return;
	const float *gate = a.gate + (size_t)i * 2 * a.dim;
	tensor_put(a.y, i, c, act_mul(a.act, gate[c], gate[a.dim + c]));
}

void plan_experts_act(struct plan *p)
{
	const struct kern_op *op = p->op;
	const struct kern_experts *x = &op->experts_act.experts;
	uint32_t n = x->gate->n, used = op->experts_act.used;
	float *out = (float *)plan_room(p, ROOM_EXPERT_OUT,
	                                (size_t)plan_rows(p) * used * 2 * n * sizeof *out);
	struct kern_tensor gate = {{(uintptr_t)out}, 2 * (size_t)n, KERN_F32},
					   up = {{(uintptr_t)(out + n)}, 2 * (size_t)n, KERN_F32};
	struct product both[] = {product_of(x->gate, (const float *)x->gate_bias.v, gate),
	                         product_of(x->up, (const float *)x->up_bias.v, up)};
	struct inputs in = {op->experts_act.x, x->gate->k, 1, 0, 1, {}};
	struct choice of = {(const uint32_t *)op->experts_act.ids.v, used, x->first, x->count,
	                    op->rows};
	plan_expert_products(p, &in, both, 2, used, &of);
	struct pairs_args a = {p->batch, op->experts_act.y, out, of, n, op->experts_act.act};
	uint32_t threads = threads_for(n, THREADS_MAX);
	PLAN(p, act_pairs, plan_rows(p) * used, (n + threads - 1) / threads, threads, 0, a);
}

/* --- down ---------------------------------------------------------------- */

struct sum_args {
	const struct kern_batch *batch;
	struct kern_tensor y, x; /* x: (pairs, dim) */
	struct choice of;
	const float *weights;
	uint32_t dim;
	int add;
};

/* Adds up a row's experts in ascending order of their numbers, which are distinct. */
KERNEL(sum_experts, THREADS_MAX, struct sum_args)
{
	uint32_t *order = (uint32_t *)shared_memory(), used = a.of.used;
	uint32_t r = blockIdx.x, c = blockIdx.y * blockDim.x + threadIdx.x;
	if (r >= batch_rows(a.batch, a.of.rows))
		return;
	const uint32_t *ids = a.of.ids + (size_t)r * used;
	for (uint32_t i = threadIdx.x; i < used; i += blockDim.x) {
		uint32_t place = 0;
		for (uint32_t j = 0; j < used; j++)
			place += ids[j] < ids[i];
		order[place] = i;
	}
	__syncthreads();
	if (c >= a.dim)
		return;
	float sum = a.add ? tensor_get(a.y, r, c) : 0.0f;
	for (uint32_t j = 0; j < used; j++) {
		size_t pair = (size_t)r * used + order[j];
		if (ids[order[j]] - a.of.first < a.of.experts)
			sum = fmaf(a.weights[pair], tensor_get(a.x, pair, c), sum);
	}
	tensor_put(a.y, r, c, sum);
}

static void plan_sum(struct plan *p, const struct sum_args *a)
{
	uint32_t threads = threads_for(a->dim, THREADS_MAX);
	PLAN(p, sum_experts, plan_rows(p), (a->dim + threads - 1) / threads, threads,
	     a->of.used * sizeof(uint32_t), *a);
}

void plan_experts_down(struct plan *p)
{
	const struct kern_op *op = p->op;
	const struct kern_experts *x = &op->experts_down.experts;
	uint32_t n = x->down->n, used = op->experts_down.used;
	struct choice of = {(const uint32_t *)op->experts_down.ids.v, used, x->first, x->count,
	                    op->rows};
	struct kern_tensor out = op->experts_down.y;
	if (!op->experts_down.pairs)
		out = {{(uintptr_t)plan_room(p, ROOM_EXPERT_OUT,
		                             (size_t)plan_rows(p) * used * n * sizeof(float))},
		       n,
		       KERN_F32};
	struct product down = product_of(x->down, (const float *)x->down_bias.v, out);
	struct inputs in = {op->experts_down.x, x->down->k, 1, 0, used, {}};
	plan_expert_products(p, &in, &down, 1, 1, &of);
	struct sum_args a = {
		p->batch, op->experts_down.y,  out, of, (const float *)op->experts_down.weights.v,
		n,        op->experts_down.add};
	if (!op->experts_down.pairs)
		plan_sum(p, &a);
}

void plan_experts_sum(struct plan *p)
{
	const struct kern_op *op = p->op;
	struct sum_args a = {p->batch,
	                     op->experts_sum.y,
	                     op->experts_sum.x,
	                     {(const uint32_t *)op->experts_sum.ids.v, op->experts_sum.used, 0,
	                      UINT32_MAX, op->rows},
	                     (const float *)op->experts_sum.weights.v,
	                     op->experts_sum.dim,
	                     op->experts_sum.add};
	plan_sum(p, &a);
}
