/* route.cu - the choice of each row's experts (struct kern_router), as in kernels/cpu/rows.c: in
 * the same double arithmetic except for the sum of a softmax, whose order is that of a warp's
 * lanes.
 *
 * A warp handles a row, with its scores in shared memory. Warps never wait for each other. */
#include "kernels/cuda/kernel.h"
#include "kernels/own_math.h"

enum { ROUTE_WARPS = 4, ROUTE_THREADS = ROUTE_WARPS * WARP };

struct route_args {
	const struct kern_batch *batch;
	struct kern_tensor logits;
	struct kern_router router;
	uint32_t *ids;  /* (R, used) */
	float *weights; /* (R, used) */
	int rows;       /* enum kern_rows */
};

/* A warp's shared memory. An order is an integer that sorts like the value it represents; 0: not
 * eligible. */
struct route_room {
	float *score;          /* (experts) */
	uint32_t *order;       /* (experts) of score + bias */
	uint32_t *group_order; /* (groups) of a group's score */
	float *chosen;         /* (used) scores of the chosen */
};

static __host__ __device__ uint32_t route_room_words(const struct kern_router &r)
{
	return 2 * r.experts + r.groups + r.used;
}

static __device__ struct route_room route_room_of(const struct kern_router &r, uint32_t warp)
{
	uint32_t *at = (uint32_t *)shared_memory() + warp * route_room_words(r);
	uint32_t *order = at + r.experts, *group_order = order + r.experts;
	return {(float *)at, order, group_order, (float *)(group_order + r.groups)};
}

/* NaN is below all numbers; the two zeros are equal. */
static __device__ uint32_t order_of(float v)
{
	if (isnan(v))
		return 1;
	uint32_t u = v == 0 ? 0 : kern_f32_bits(v);
	return u >> 31 ? ~u : u | 0x80000000u;
}

/* Returns the index of the largest order (the lowest of equals) to all lanes, and makes it
 * ineligible. At least one must be eligible. */
static __device__ uint32_t take_largest(uint32_t *order, uint32_t n, uint32_t lane)
{
	uint64_t best = 0;
	for (uint32_t i = lane; i < n; i += WARP) {
		uint64_t key = (uint64_t)order[i] << 32 | ~i;
		best = key > best ? key : best;
	}
	uint32_t number = ~(uint32_t)warp_largest(best);
	if (lane == 0)
		order[number] = 0;
	__syncwarp();
	return number;
}

static __device__ void softmax_scores(const struct route_args &a, uint32_t r, float *score,
                                      uint32_t lane)
{
	float max = -INFINITY;
	double sum = 0;
	for (uint32_t e = lane; e < a.router.experts; e += WARP)
		max = fmaxf(max, tensor_get(a.logits, r, e)); /* a NaN counts as smaller than all numbers */
	for (uint32_t by = WARP / 2; by; by /= 2)
		max = fmaxf(max, __shfl_xor_sync(ALL_LANES, max, by));
	for (uint32_t e = lane; e < a.router.experts; e += WARP)
		sum += own_exp((double)tensor_get(a.logits, r, e) - (double)max);
	sum = warp_sum(sum);
	for (uint32_t e = lane; e < a.router.experts; e += WARP)
		score[e] = (float)(own_exp((double)tensor_get(a.logits, r, e) - (double)max) / sum);
}

/* Fills score and order. Returns whether a score is NaN. */
static __device__ bool score_experts(const struct route_args &a, uint32_t r,
                                     const struct route_room &room, uint32_t lane)
{
	const float *bias = (const float *)a.router.bias.v;
	bool nan = false;
	if (a.router.score == KERN_SCORE_SOFTMAX)
		softmax_scores(a, r, room.score, lane);
	for (uint32_t e = lane; e < a.router.experts; e += WARP) {
		if (a.router.score == KERN_SCORE_SIGMOID)
			room.score[e] = (float)(1.0 / (1.0 + own_exp(-(double)tensor_get(a.logits, r, e))));
		nan |= isnan(room.score[e]);
		room.order[e] = order_of(bias ? room.score[e] + bias[e] : room.score[e]);
	}
	__syncwarp();
	return __any_sync(ALL_LANES, nan);
}

/* The sum of the two largest score + bias of a group. */
static __device__ float worth_of(const struct kern_router &r, const float *score, uint32_t group)
{
	const float *bias = (const float *)r.bias.v;
	uint32_t size = r.experts / r.groups;
	float first = -INFINITY, second = -INFINITY;
	for (uint32_t e = group * size; e < (group + 1) * size; e++) {
		float c = bias ? score[e] + bias[e] : score[e];
		second = fmaxf(second, fminf(first, c));
		first = fmaxf(first, c);
	}
	return first + second;
}

/* Makes the experts of all but the best groups ineligible. */
static __device__ void limit_groups(const struct kern_router &r, const struct route_room &room,
                                    uint32_t lane)
{
	uint32_t size = r.experts / r.groups;
	for (uint32_t g = lane; g < r.groups; g += WARP)
		room.group_order[g] = order_of(worth_of(r, room.score, g));
	__syncwarp();
	for (uint32_t i = 0; i < r.groups_used; i++)
		take_largest(room.group_order, r.groups, lane);
	for (uint32_t e = lane; e < r.experts; e += WARP)
		if (room.group_order[e / size])
			room.order[e] = 0;
	__syncwarp();
}

KERNEL(route_rows, ROUTE_THREADS, struct route_args)
{
	uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP,
			 r = blockIdx.x * ROUTE_WARPS + warp;
	uint32_t used = a.router.used;
	if (r >= batch_rows(a.batch, a.rows))
		return;
	struct route_room room = route_room_of(a.router, warp);
	bool nan = score_experts(a, r, room, lane);
	float sum = 0;
	if (a.router.groups > 1)
		limit_groups(a.router, room, lane);
	for (uint32_t i = 0; i < used; i++) {
		uint32_t e = take_largest(room.order, a.router.experts, lane);
		float s = room.score[e];
		sum += s;
		if (lane == 0) {
			a.ids[(size_t)r * used + i] = e;
			room.chosen[i] = s;
		}
	}
	__syncwarp();
	sum = sum < a.router.norm_min ? a.router.norm_min : sum;
	float divisor = a.router.normalise ? sum + a.router.norm_add : 1.0f;
	for (uint32_t i = lane; i < used; i += WARP)
		a.weights[(size_t)r * used + i] = nan ? NAN : room.chosen[i] / divisor * a.router.scale;
}

void plan_route(struct plan *p)
{
	const struct kern_op *op = p->op;
	const struct kern_router &r = op->route.router;
	kern_ptr ids = op->route.ids, weights = op->route.weights;
	p->sorted.ids = NULL; /* the rows' experts change */
	struct route_args a = {p->batch,          op->route.logits,   r,
	                       (uint32_t *)ids.v, (float *)weights.v, op->rows};
	uint32_t blocks = (plan_rows(p) + ROUTE_WARPS - 1) / ROUTE_WARPS;
	PLAN(p, route_rows, blocks, 1, ROUTE_THREADS,
	     ROUTE_WARPS * route_room_words(r) * sizeof(uint32_t), a);
}
