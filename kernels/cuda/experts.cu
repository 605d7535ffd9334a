/* experts.cu - products with the experts that each row has chosen.
 *
 * Pairs (row, slot), numbered row * used + slot, are sorted by expert, so that an expert's matrices
 * are read once for all rows that chose it. The order of an expert's pairs is arbitrary: each
 * pair's product depends on that pair alone (linear.h), and a row's products are added in ascending
 * order of the experts' numbers, so results do not depend on it. Products are numbered like
 * pairs. */
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
	const uint32_t *ids;
	uint32_t used, experts;
	int rows; /* enum kern_rows */
	uint32_t group_rows;
	uint32_t *groups; /* output: struct chosen */
	struct group *group;
	uint32_t *pair;
};

/* For the first warp: creates the groups from each expert's number of pairs, and replaces that
 * number by the place of the expert's first pair. Each lane handles adjacent experts. */
static __device__ void place_experts(const struct sort_args &a, uint32_t *count)
{
	uint32_t each = (a.experts + WARP - 1) / WARP, from = threadIdx.x * each,
			 to = from + each < a.experts ? from + each : a.experts;
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
	uint32_t *count = (uint32_t *)shared_memory(), pairs = batch_rows(a.batch, a.rows) * a.used;
	for (uint32_t e = threadIdx.x; e < a.experts; e += blockDim.x)
		count[e] = 0;
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < pairs; i += blockDim.x)
		atomicAdd(&count[a.ids[i]], 1u);
	__syncthreads();
	if (threadIdx.x < WARP)
		place_experts(a, count);
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < pairs; i += blockDim.x)
		a.pair[atomicAdd(&count[a.ids[i]], 1u)] = i;
}

/* An operation's view of the experts chosen by its rows. */
struct choice {
	const uint32_t *ids;
	uint32_t used, experts;
};

static struct choice choice_of(const struct kern_op *op)
{
	if (op->kind == KERN_OP_EXPERTS_ACT)
		return choice{(const uint32_t *)op->experts_act.ids.v, op->experts_act.used,
		              op->experts_act.experts.experts};
	return choice{(const uint32_t *)op->experts_down.ids.v, op->experts_down.used,
	              op->experts_down.experts.experts};
}

/* Most groups: each expert's last group may be partial. */
static uint32_t groups_max(const struct plan *p, const struct choice *c)
{
	uint32_t pairs = plan_rows(p) * c->used;
	return pairs / plan_block_rows(p) + (pairs < c->experts ? pairs : c->experts);
}

/* Sorts the pairs unless they are sorted already. p->groups is the operation that sorted last, NULL
 * if rows have chosen since (plan_route). Only this file uses ROOM_GATHERED, so the sorted pairs
 * are still there. */
static struct chosen plan_chosen(struct plan *p, uint32_t pairs_per_input)
{
	const struct kern_op *last = (const struct kern_op *)p->groups;
	struct choice c = choice_of(p->op), of = last ? choice_of(last) : choice{NULL, 0, 0};
	uint32_t groups = groups_max(p, &c);
	size_t groups_bytes = groups * sizeof(struct group),
		   pairs_bytes = (size_t)plan_rows(p) * c.used * sizeof(uint32_t);
	uint32_t *count = (uint32_t *)plan_room(p, ROOM_GATHERED,
	                                        sizeof *count + groups_bytes + pairs_bytes);
	struct group *group = (struct group *)(count + 1);
	uint32_t *pair = (uint32_t *)(group + groups);
	struct sort_args a = {p->batch,           c.ids, c.used, c.experts, p->op->rows,
	                      plan_block_rows(p), count, group,  pair};
	if (!last || last->rows != p->op->rows || of.ids != c.ids || of.used != c.used ||
	    of.experts != c.experts)
		PLAN(p, sort_pairs, 1, 1, threads_for(plan_rows(p) * c.used, SORT_THREADS_MAX),
		     c.experts * sizeof(uint32_t), a);
	p->groups = (void *)(uintptr_t)p->op;
	return chosen{count, group, pair, pairs_per_input};
}

/* --- products of all experts --------------------------------------------- */

/* One matrix per expert, and the destination of its products. */
struct matrices {
	struct kern_weight *const *w;
	kern_ptr bias;
	struct kern_tensor y;
};

/* Checks that all experts' matrices of one kind have the same type and shape. */
static int check_alike(struct plan *p, struct kern_weight *const *w, uint32_t experts)
{
	for (uint32_t e = 1; e < experts; e++)
		if (w[e]->n != w[0]->n || w[e]->k != w[0]->k || w[e]->dtype != w[0]->dtype)
			return plan_fail(
				p, KERN_EINVAL,
				"expert 0's matrix is (%u, %u, %s), expert %u's (%u, %u, %s): must be equal",
				w[0]->n, w[0]->k, kern_dtype_name(w[0]->dtype), e, w[e]->n, w[e]->k,
				kern_dtype_name(w[e]->dtype));
	return p->rc;
}

static struct product product_of_experts(struct plan *p, const struct matrices *m, uint32_t experts)
{
	struct product r = product_of(m->w[0], (const float *)m->bias.v, m->y);
	const unsigned char **data = (const unsigned char **)calloc(experts, sizeof *data);
	if (!data) {
		plan_fail(p, KERN_ENOMEM, "out of memory for %u experts", experts);
		return r;
	}
	for (uint32_t e = 0; e < experts; e++)
		data[e] = m->w[e]->data;
	r.data = (const unsigned char *const *)plan_keep(p, data, experts * sizeof *data);
	free(data);
	return r;
}

static void plan_expert_products(struct plan *p, const struct inputs *in, const struct matrices *m,
                                 uint32_t count, uint32_t pairs_per_input)
{
	struct choice c = choice_of(p->op);
	struct product product[2];
	for (uint32_t i = 0; i < count; i++)
		product[i] = product_of_experts(p, &m[i], c.experts);
	struct chosen chosen = plan_chosen(p, pairs_per_input);
	if (!p->rc)
		plan_products(p, in, product, count, &chosen, groups_max(p, &c));
}

/* --- gate and up --------------------------------------------------------- */

struct pairs_args {
	const struct kern_batch *batch;
	struct kern_tensor y;
	const float *gate; /* (pairs, 2 * dim): up follows */
	uint32_t used, dim;
	int rows, act; /* enum kern_act */
};

KERNEL(act_pairs, THREADS_MAX, struct pairs_args)
{
	uint32_t i = blockIdx.x, c = blockIdx.y * blockDim.x + threadIdx.x;
	if (i >= batch_rows(a.batch, a.rows) * a.used || c >= a.dim)
		return;
	const float *gate = a.gate + (size_t)i * 2 * a.dim;
	tensor_put(a.y, i, c, act_mul(a.act, gate[c], gate[a.dim + c]));
}

static int check_act(struct plan *p)
{
	const struct kern_op *op = p->op;
	const struct kern_experts *x = &op->experts_act.experts;
	if (check_alike(p, x->gate, x->experts) || check_alike(p, x->up, x->experts))
		return p->rc;
	if (x->up[0]->n != x->gate[0]->n || x->up[0]->k != x->gate[0]->k)
		return plan_fail(p, KERN_EINVAL, "gate is (%u, %u), up (%u, %u): must be equal",
		                 x->gate[0]->n, x->gate[0]->k, x->up[0]->n, x->up[0]->k);
	if (plan_address(p, op->experts_act.ids) || (x->gate_bias.v && plan_address(p, x->gate_bias)) ||
	    (x->up_bias.v && plan_address(p, x->up_bias)))
		return p->rc;
	return plan_tensor(p, &op->experts_act.x, x->gate[0]->k) ||
	       plan_tensor(p, &op->experts_act.y, x->gate[0]->n);
}

void plan_experts_act(struct plan *p)
{
	const struct kern_op *op = p->op;
	const struct kern_experts *x = &op->experts_act.experts;
	if (check_act(p))
		return;
	uint32_t n = x->gate[0]->n, used = op->experts_act.used;
	float *given = (float *)plan_room(p, ROOM_GIVEN,
	                                  (size_t)plan_rows(p) * used * 2 * n * sizeof *given);
	struct kern_tensor gate = {{(uintptr_t)given}, 2 * (size_t)n, KERN_F32},
					   up = {{(uintptr_t)(given + n)}, 2 * (size_t)n, KERN_F32};
	struct matrices m[] = {{x->gate, x->gate_bias, gate}, {x->up, x->up_bias, up}};
	struct inputs in = {op->experts_act.x, x->gate[0]->k, 1, 0, 1};
	plan_expert_products(p, &in, m, 2, used);
	struct pairs_args a = {p->batch, op->experts_act.y,  given, used, n,
	                       op->rows, op->experts_act.act};
	uint32_t threads = threads_for(n, THREADS_MAX);
	PLAN(p, act_pairs, plan_rows(p) * used, (n + threads - 1) / threads, threads, 0, a);
}

/* --- down ---------------------------------------------------------------- */

struct sum_args {
	const struct kern_batch *batch;
	struct kern_tensor y;
	const float *given; /* (pairs, dim) */
	const uint32_t *ids;
	const float *weights;
	uint32_t used, dim;
	int rows, add;
};

/* Adds up a row's experts in ascending order of their numbers, which are distinct. */
KERNEL(sum_experts, THREADS_MAX, struct sum_args)
{
	uint32_t *order = (uint32_t *)shared_memory();
	uint32_t r = blockIdx.x, c = blockIdx.y * blockDim.x + threadIdx.x;
	if (r >= batch_rows(a.batch, a.rows))
		return;
	const uint32_t *ids = a.ids + (size_t)r * a.used;
	for (uint32_t i = threadIdx.x; i < a.used; i += blockDim.x) {
		uint32_t place = 0;
		for (uint32_t j = 0; j < a.used; j++)
			place += ids[j] < ids[i];
		order[place] = i;
	}
	__syncthreads();
	if (c >= a.dim)
		return;
	float sum = a.add ? tensor_get(a.y, r, c) : 0.0f;
	for (uint32_t j = 0; j < a.used; j++) {
		size_t pair = (size_t)r * a.used + order[j];
		sum = fmaf(a.weights[pair], a.given[pair * a.dim + c], sum);
	}
	tensor_put(a.y, r, c, sum);
}

static int check_down(struct plan *p)
{
	const struct kern_op *op = p->op;
	const struct kern_experts *x = &op->experts_down.experts;
	if (check_alike(p, x->down, x->experts) || plan_address(p, op->experts_down.ids) ||
	    plan_address(p, op->experts_down.weights))
		return p->rc;
	if (x->down_bias.v && plan_address(p, x->down_bias))
		return p->rc;
	return plan_tensor(p, &op->experts_down.x, x->down[0]->k) ||
	       plan_tensor(p, &op->experts_down.y, x->down[0]->n);
}

void plan_experts_down(struct plan *p)
{
	const struct kern_op *op = p->op;
	const struct kern_experts *x = &op->experts_down.experts;
	if (check_down(p))
		return;
	uint32_t n = x->down[0]->n, used = op->experts_down.used;
	float *given = (float *)plan_room(p, ROOM_GIVEN,
	                                  (size_t)plan_rows(p) * used * n * sizeof *given);
	struct matrices m = {x->down, x->down_bias, {{(uintptr_t)given}, n, KERN_F32}};
	struct inputs in = {op->experts_down.x, x->down[0]->k, 1, 0, used};
	plan_expert_products(p, &in, &m, 1, 1);
	struct sum_args a = {p->batch,
	                     op->experts_down.y,
	                     given,
	                     (const uint32_t *)op->experts_down.ids.v,
	                     (const float *)op->experts_down.weights.v,
	                     used,
	                     n,
	                     op->rows,
	                     op->experts_down.add};
	uint32_t threads = threads_for(n, THREADS_MAX);
	PLAN(p, sum_experts, plan_rows(p), (n + threads - 1) / threads, threads,
	     used * sizeof(uint32_t), a);
}
