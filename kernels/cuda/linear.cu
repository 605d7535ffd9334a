/* linear.cu - products of activations with weights: planning, when to prepare activations for
 * tensor cores, and products with weights of float32 and float16. See linear.h and ready.h. */
#include "kernels/cuda/linear.h"

#include <math.h>
#include <stdlib.h>

enum {
	READY_THREADS_MAX = 256,
	FLOAT_THREADS = FLOAT_WARPS * WARP,
	TAIL_THREADS = 256,
	SPLIT_WARPS_FEW = 4,
	SPLIT_WARPS_WANTED = 4096
};

/* --- preparing activations ----------------------------------------------- */

KERNEL(ready_rows, READY_THREADS_MAX, struct ready_args)
{
	make_row_ready(a, place_in_grid());
}

/* Lays out the room for prepared activations, in the same way for all planning functions. */
static struct make_ready make_ready_of(struct plan *p, const struct inputs *in, bool sums)
{
	uint32_t rows = plan_rows(p) * in->rows_each, parts = p->dev->bf16_activations ? 1 : 3,
			 unit = plan_wide(p) ? (uint32_t)READY_GROUP : (uint32_t)TILE_ROWS;
	struct ready r = {NULL,        NULL, NULL, steps_of(in->k), (rows + unit - 1) / unit * unit,
	                  plan_wide(p)};
	size_t all = (size_t)r.rows * in->count, parts_bytes = all * r.steps * parts * 64,
		   sums_bytes = sums ? all * r.steps * sizeof(float) : 0;
	r.parts = (unsigned char *)plan_room(p, ROOM_READY,
	                                     parts_bytes + sums_bytes + all * sizeof(int32_t));
	r.sums = sums ? (float *)(r.parts + parts_bytes) : NULL;
	r.exponents = (int32_t *)(r.parts + parts_bytes + sums_bytes);
	return make_ready{r, in->x, in->k, parts};
}

static bool same_tensor(const struct kern_tensor *a, const struct kern_tensor *b)
{
	return a->at.v == b->at.v && a->ld == b->ld && a->type == b->type;
}

/* The input of an operation that multiplies whole rows, and the weights that our own kernels
 * process; for experts, the first one's represent all. x NULL: no such operation. */
struct reading {
	const struct kern_tensor *x;
	uint32_t count;
	const struct kern_weight *w[KERN_PRODUCTS_MAX];
};

static struct reading reading_of(const struct kern_op *op)
{
	struct reading r = {};
	if (op->kind == KERN_OP_MATMUL) {
		r.x = &op->matmul.x;
		for (uint32_t i = 0; i < op->matmul.products; i++)
			if (!op->matmul.p[i].w->plain)
				r.w[r.count++] = op->matmul.p[i].w;
	} else if (op->kind == KERN_OP_EXPERTS_ACT) {
		r = {&op->experts_act.x,
		     2,
		     {op->experts_act.experts.gate[0], op->experts_act.experts.up[0]}};
	}
	return r;
}

/* Whether an operation leaves x (R, k) unchanged; only operations that occur between readers of the
 * same x are recognised. */
static bool leaves(const struct plan *p, const struct kern_op *op, const struct kern_tensor *x,
                   uint32_t k)
{
	size_t rows = op->rows == KERN_ROWS_ALL ? p->rows : p->tail_rows;
	struct extent of_x = tensor_extent(x, p->rows > p->tail_rows ? p->rows : p->tail_rows, k);
	bool apart = true;
	switch (op->kind) {
	case KERN_OP_MATMUL:
		for (uint32_t i = 0; i < op->matmul.products; i++)
			apart &= extents_apart(of_x,
			                       tensor_extent(&op->matmul.p[i].y, rows, op->matmul.p[i].w->n));
		return apart;
	case KERN_OP_ROUTE:
		rows *= op->route.router.used * sizeof(float);
		return extents_apart(of_x, {op->route.ids.v, op->route.ids.v + rows}) &&
		       extents_apart(of_x, {op->route.weights.v, op->route.weights.v + rows});
	case KERN_OP_EXPERTS_ACT:
		return extents_apart(of_x, tensor_extent(&op->experts_act.y, rows * op->experts_act.used,
		                                         op->experts_act.experts.gate[0]->n));
	default: return false;
	}
}

/* Whether an earlier operation prepared what the current one needs, and it is still valid. */
static bool is_ready(const struct plan *p, const struct inputs *in, bool sums)
{
	if (!p->ready.since || in->count != 1 || in->rows_each != 1 || p->ready.rows != p->op->rows ||
	    p->ready.k != in->k || !same_tensor(&p->ready.x, &in->x) || (sums && !p->ready.sums))
		return false;
	for (const struct kern_op *op = p->ready.since; op < p->op; op++)
		if (!leaves(p, op, &in->x, in->k))
			return false;
	return true;
}

struct make_ready plan_ready_next(struct plan *p, const struct kern_tensor *y, uint32_t dim)
{
	struct inputs in = {*y, dim, 1, 0, 1};
	bool wanted = false, sums = false, other = false;
	for (const struct kern_op *op = p->op + 1; op < p->end && !other; op++) {
		struct reading of = reading_of(op);
		bool same = of.count && same_tensor(of.x, y) && of.w[0]->k == dim &&
		            op->rows == p->op->rows;
		for (uint32_t i = 0; i < of.count; i++) {
			struct weight_layout l = weight_layout_of(of.w[i]->dtype);
			wanted |= same && l.panels;
			sums |= same && l.offset_at;
			other |= !same && l.panels; /* another x takes the room */
		}
		other |= !leaves(p, op, y, dim);
	}
	if (!wanted)
		return make_ready{};
	p->ready = {p->op + 1, *y, dim, p->op->rows, sums};
	return make_ready_of(p, &in, sums);
}

/* Adds a launch that prepares x, unless it is prepared already. */
static struct ready plan_ready(struct plan *p, const struct inputs *in, bool sums)
{
	if (is_ready(p, in, sums))
		return make_ready_of(p, in, p->ready.sums).to;
	struct ready_args a = {p->batch, make_ready_of(p, in, sums), in->columns, in->rows_each,
	                       p->op->rows};
	uint32_t threads = 4 * a.make.to.steps < (uint32_t)READY_THREADS_MAX
	                       ? (4 * a.make.to.steps + WARP - 1) / WARP * WARP
	                       : (uint32_t)READY_THREADS_MAX;
	PLAN_PHASE(p, PHASE_READY, ready_rows, plan_rows(p) * in->rows_each, in->count, threads,
	           threads / WARP * sizeof(uint32_t), a);
	p->ready = {in->count == 1 && in->rows_each == 1 ? p->op : NULL, in->x, in->k, p->op->rows,
	            sums};
	return a.make.to;
}

static bool has_offsets(const struct product *product, uint32_t products)
{
	bool any = false;
	for (uint32_t i = 0; i < products; i++)
		any |= weight_layout_of(product[i].w.type).offset_at != 0;
	return any;
}

/* --- weights of float32 and float16 -------------------------------------- */

template <typename T> static __device__ float float_weight(const unsigned char *data, size_t at)
{
	if constexpr (sizeof(T) == 2)
		return f16_value(((const uint16_t *)data)[at]);
	else
		return ((const float *)data)[at];
}

/* One warp per row of the weight: each lane adds every 32nd product, then the lanes are summed. T:
 * a weight's element type. */
template <typename T>
static __device__ __forceinline__ void product_float(const struct product_args &a)
{
	struct task t;
	if (!task_find(a, PRODUCT_FLOAT, blockIdx.x, &t))
		return;
	uint32_t lane = threadIdx.x % WARP, n = t.block * FLOAT_WARPS + threadIdx.x / WARP;
	if (n >= t.of->w.n)
		return;
	for (uint32_t first = t.first; first < t.first + t.rows; first += TILE_ROWS) {
		uint32_t rows = t.first + t.rows - first, row[TILE_ROWS];
		float sum[TILE_ROWS];
		UNROLL
		for (uint32_t i = 0; i < TILE_ROWS; i++) {
			row[i] = input_row(a, first + (i < rows ? i : 0));
			sum[i] = 0;
		}
		for (uint32_t c = lane; c < t.of->w.k; c += WARP) {
			float w = float_weight<T>(t.data, n * t.of->w.ld + c);
			UNROLL
			for (uint32_t i = 0; i < TILE_ROWS; i++)
				if (i < rows)
					sum[i] = fmaf(w, tensor_get(a.x, row[i], t.of->input * a.input_columns + c),
					              sum[i]);
		}
		UNROLL
		for (uint32_t i = 0; i < TILE_ROWS; i++) {
			if (i >= rows)
				continue;
			float all = warp_sum(sum[i]);
			if (lane == 0)
				task_put(t, output_row(a, first + i), n, all);
		}
	}
}

KERNEL(product_f32, FLOAT_THREADS, struct product_args)
{
	product_float<float>(a);
}

KERNEL(product_f16, FLOAT_THREADS, struct product_args)
{
	product_float<uint16_t>(a);
}

/* --- planning ------------------------------------------------------------ */

/* Enough segments for the device to have enough warps, none shorter than segment_unit; of a part of
 * a matrix as many as of the whole one, of n rows. */
static uint32_t segments_of(const struct weight_view &w, uint32_t n)
{
	uint32_t unit = segment_unit(w.type), units = (steps_of(w.k) + unit - 1) / unit, segments = 1;
	while (2 * segments <= SEGMENTS_MAX && 2 * segments <= units &&
	       2 * segments * panel_pairs_of(n) <= SPLIT_WARPS_WANTED)
		segments *= 2;
	return segments;
}

void cuda_weight_part_of(struct kern_weight *w, uint32_t n)
{
	w->whole = n;
}

struct product product_of(const struct kern_weight *w, const float *bias, struct kern_tensor y)
{
	struct product r = {weight_view_of(w), NULL, bias, y, 0, 1};
	r.segments = segments_of(r.w, w->whole ? w->whole : w->n);
	return r;
}

/* Enough warps for the segments, and a few pairs of panels if there are few segments. */
static uint32_t split_warps(const struct product *product, uint32_t products)
{
	uint32_t warps = 1;
	for (uint32_t i = 0; i < products; i++)
		while (warps < product[i].segments ||
		       (warps < SPLIT_WARPS_FEW &&
		        warps < panel_pairs_of(product[i].w.n) * product[i].segments))
			warps *= 2;
	return warps;
}

static void launch_products(struct plan *p, struct product_args *a, int type,
                            const struct product *product)
{
	enum product_kernel kind = !by_tensor_cores(type)           ? PRODUCT_FLOAT
	                           : plan_rows(p) <= SPLIT_ROWS_MAX ? PRODUCT_SPLIT
	                           : plan_wide(p)                   ? PRODUCT_WIDE
	                                                            : PRODUCT_SERIAL;
	a->warps = kind == PRODUCT_SPLIT   ? split_warps(product, a->products)
	           : kind == PRODUCT_FLOAT ? FLOAT_WARPS
	           : kind == PRODUCT_WIDE  ? WIDE_PANELS
	                                   : SERIAL_ACROSS * SERIAL_DOWN;
	uint32_t each = product_blocks(product[0], kind, a->warps), blocks = 0;
	bool alike = true;
	for (uint32_t i = 0; i < a->products; i++) {
		blocks += product_blocks(product[i], kind, a->warps);
		alike &= product_blocks(product[i], kind, a->warps) == each;
	}
	a->blocks_each = alike ? each : 0;
	if ((uint64_t)blocks * a->row_blocks > INT32_MAX) {
		plan_fail(p, KERN_EINVAL,
		          "%u rows by weights of %u blocks of rows: the grid would exceed %d blocks",
		          plan_rows(p), blocks, INT32_MAX);
		return;
	}
	uint32_t grid = blocks * a->row_blocks;
	if (kind == PRODUCT_FLOAT && type == KERN_F32) {
		PLAN(p, product_f32, grid, 1, a->warps * WARP, 0, *a);
	} else if (kind == PRODUCT_FLOAT) {
		PLAN(p, product_f16, grid, 1, a->warps * WARP, 0, *a);
	} else if (kind == PRODUCT_WIDE) {
		struct wide_kernel wide = wide_kernel_of(type, a->block_rows, a->chosen.groups != NULL);
		struct launch *l = plan_launch(p, wide.name, wide.kernel, grid, 1, a->warps * WARP,
		                               wide.shared_bytes, a, sizeof *a);
		if (l)
			l->cluster = a->chosen.groups ? 0 : 2;
	} else {
		const char *name;
		int parts = p->dev->bf16_activations ? 1 : 3;
		const void *kernel = mma_kernel(kind, type, parts, &name);
		size_t shared = kind == PRODUCT_SPLIT
		                    ? a->warps * PANELS * SPLIT_TILES * 4 * WARP * sizeof(float)
		                    : 0;
		struct launch *l = plan_launch(p, name, kernel, grid, 1, a->warps * WARP, shared, a,
		                               sizeof *a);
		if (l && kind == PRODUCT_SPLIT)
			plan_chain_product(l, type, parts);
	}
}

/* Rows of x in a block of linear_wide.cu: the number that takes less time by calculation. A block
 * takes, for each step, at least 2 cycles of the tensor cores for each row of x, and what the L2
 * cache needs for the bytes of a step of its rows of the weight and half of those of x: 27 bytes a
 * cycle, if all multiprocessors ask at once (H100). */
static uint32_t wide_columns(const struct plan *p, const struct product *product, uint32_t products)
{
	enum { CHOICES = 2 };
	static const uint32_t columns[CHOICES] = {WIDE_COLUMNS_MIN, WIDE_COLUMNS_MAX};
	double cost[CHOICES];
	if (p->dev->wide_columns)
		return p->dev->wide_columns;
	if (cuda_wgmma() == WIDE_COLUMNS_MIN || cuda_wgmma() == WIDE_COLUMNS_MAX)
		return (uint32_t)cuda_wgmma();
	for (int i = 0; i < CHOICES; i++) {
		double blocks = 0, size = p->dev->multiprocessors;
		for (uint32_t n = 0; n < products; n++)
			blocks += product_blocks(product[n], PRODUCT_WIDE, 0);
		blocks *= (plan_rows(p) + columns[i] - 1) / columns[i];
		double busy = blocks < size ? blocks / size : 1, multiply = 2.0 * columns[i],
			   load = (WIDE_PANELS * (uint32_t)PANEL_ROWS + columns[i] / 2) * STEP_BYTES / 27.0 *
		              busy;
		cost[i] = ceil(blocks / size) * (multiply > load ? multiply : load);
	}
	return columns[cost[1] < cost[0]];
}

void plan_products(struct plan *p, const struct inputs *in, const struct product *product,
                   uint32_t products, const struct chosen *chosen, uint32_t groups)
{
	struct product_args a = {};
	struct product *like = (struct product *)calloc(products, sizeof *like);
	bool any_ready = false;
	if (!like) {
		plan_fail(p, KERN_ENOMEM, "out of memory for %u products", products);
		return;
	}
	for (uint32_t i = 0; i < products; i++)
		any_ready |= by_tensor_cores(product[i].w.type);
	if (any_ready)
		a.ready = plan_ready(p, in, has_offsets(product, products));
	a.batch = p->batch;
	a.rows = p->op->rows;
	a.x = in->x;
	a.input_columns = in->columns;
	if (chosen)
		a.chosen = *chosen;
	for (int type = 0; type < WEIGHT_TYPES; type++) {
		a.products = 0;
		for (uint32_t i = 0; i < products; i++)
			if (product[i].w.type == type)
				like[a.products++] = product[i];
		if (!a.products)
			continue;
		a.block_rows = plan_wide(p) && by_tensor_cores(type) && !chosen
		                   ? wide_columns(p, like, a.products)
		                   : plan_block_rows(p);
		a.row_blocks = chosen ? groups : (plan_rows(p) + a.block_rows - 1) / a.block_rows;
		a.product = (const struct product *)plan_keep(p, like, a.products * sizeof *like);
		launch_products(p, &a, type, like);
	}
	free(like);
}

void plan_matmul(struct plan *p)
{
	const struct kern_op *op = p->op;
	struct product own[KERN_PRODUCTS_MAX], fast[KERN_PRODUCTS_MAX];
	uint32_t owns = 0, fasts = 0;
	struct inputs in = {op->matmul.x, op->matmul.p[0].w->k, 1, 0, 1};
	if (plan_tensor(p, &in.x, in.k))
		return;
	for (uint32_t i = 0; i < op->matmul.products; i++) {
		const struct kern_product *of = &op->matmul.p[i];
		if (of->w->k != in.k) {
			plan_fail(p, KERN_EINVAL, "product %u has %u columns, product 0 has %u: must be equal",
			          i, of->w->k, in.k);
			return;
		}
		if (plan_tensor(p, &of->y, of->w->n) || (of->bias.v && plan_address(p, of->bias)))
			return;
		*(of->w->plain ? &fast[fasts++]
		               : &own[owns++]) = product_of(of->w, (const float *)of->bias.v, of->y);
	}
	if (owns)
		plan_products(p, &in, own, owns, NULL, 0);
	if (fasts)
		plan_fast_products(p, &in.x, fast, fasts);
}

/* --- a matrix per head --------------------------------------------------- */

KERNEL(copy_tails, TAIL_THREADS, struct tail_args)
{
	copy_tail(a, place_in_grid());
}

static int check_heads(struct plan *p)
{
	const struct kern_op *op = p->op;
	struct kern_weight *const *w = op->heads_matmul.w;
	uint32_t heads = op->heads_matmul.heads, tail = op->heads_matmul.tail;
	for (uint32_t h = 1; h < heads; h++)
		if (w[h]->n != w[0]->n || w[h]->k != w[0]->k || w[h]->dtype != w[0]->dtype)
			return plan_fail(
				p, KERN_EINVAL,
				"head 0's matrix is (%u, %u, %s), head %u's (%u, %u, %s): must be equal", w[0]->n,
				w[0]->k, kern_dtype_name(w[0]->dtype), h, w[h]->n, w[h]->k,
				kern_dtype_name(w[h]->dtype));
	return plan_tensor(p, &op->heads_matmul.x, heads * ((size_t)w[0]->k + tail)) ||
	       plan_tensor(p, &op->heads_matmul.y, heads * ((size_t)w[0]->n + tail));
}

void plan_heads_matmul(struct plan *p)
{
	const struct kern_op *op = p->op;
	if (check_heads(p))
		return;
	uint32_t heads = op->heads_matmul.heads, tail = op->heads_matmul.tail,
			 n = op->heads_matmul.w[0]->n, k = op->heads_matmul.w[0]->k;
	struct product *product = (struct product *)calloc(heads, sizeof *product);
	struct inputs in = {op->heads_matmul.x, k, heads, k + tail, 1};
	struct tail_args t = {p->batch, op->heads_matmul.y, in.x, heads, tail, k, n, op->rows};
	if (!product) {
		plan_fail(p, KERN_ENOMEM, "out of memory for %u heads", heads);
		return;
	}
	for (uint32_t h = 0; h < heads; h++) {
		struct kern_tensor y = op->heads_matmul.y;
		y.at.v += (size_t)h * (n + tail) * (y.type == KERN_F32 ? 4 : 2);
		product[h] = product_of(op->heads_matmul.w[h], NULL, y);
		product[h].input = h;
	}
	plan_products(p, &in, product, heads, NULL, 0);
	if (tail)
		PLAN_PHASE(p, PHASE_TAILS, copy_tails, plan_rows(p),
		           (heads * tail + TAIL_THREADS - 1) / TAIL_THREADS, TAIL_THREADS, 0, t);
	free(product);
}
