/* linear.cu - products of activations with weights: planning, and when to prepare activations for
 * tensor cores. See linear.h and ready.h. */
#include "kernels/cuda/linear.h"
#include "kernels/cuda/record.h"
#include "kernels/operands.h"

#include <stdlib.h>

enum { READY_THREADS_MAX = 256, WARPS_FEW = 4, WARPS_WANTED = 4096 };

/* --- preparing activations ----------------------------------------------- */

struct ready_args {
	const struct kern_batch *batch;
	struct make_ready make;
	uint32_t input_columns, rows_each;
	int rows; /* enum kern_rows */
	struct tails tails;
};

/* One block per row of an input. */
KERNEL(ready_rows, READY_THREADS_MAX, struct ready_args)
{
	uint32_t r = blockIdx.x, first = blockIdx.y * a.input_columns, top = 0;
	if (r >= batch_rows(a.batch, a.rows) * a.rows_each)
		return;
	for (uint32_t c = threadIdx.x; c < a.tails.columns; c += blockDim.x)
		tensor_put(a.tails.y, r, blockIdx.y * (a.tails.n + a.tails.columns) + a.tails.n + c,
		           tensor_get(a.make.x, r, first + a.make.k + c));
	for (uint32_t c = threadIdx.x; c < a.make.k; c += blockDim.x) {
		uint32_t u = magnitude_bits(tensor_get(a.make.x, r, first + c));
		top = u > top ? u : top;
	}
	ready_row(a.make, r, first, (size_t)blockIdx.y * a.make.to.rows + r, top, blockDim.x);
}

/* What a product with weights of a type reads: float16 and float32 have more bits than rounded
 * activations. */
static enum ready_kind kind_for(const struct plan *p, int type, bool experts)
{
	if (p->dev->bf16_activations && codes_of(type) == CODES_FLOAT)
		return READY_EXACT;
	return plan_wide(p) && !experts ? READY_WIDE : READY_MMA;
}

/* Lays out the room for prepared activations, in the same way for all planning functions. */
static struct make_ready make_ready_of(struct plan *p, const struct inputs *in,
                                       enum ready_kind kind, bool sums)
{
	bool rounded = p->dev->bf16_activations && kind != READY_EXACT, wide = kind == READY_WIDE;
	uint32_t rows = plan_rows(p) * in->rows_each,
			 unit = wide ? (uint32_t)READY_GROUP : (uint32_t)TILE_ROWS;
	struct ready r = {.steps = steps_of(in->k),
	                  .parts = rounded ? 1u : 3u,
	                  .rows = (rows + unit - 1) / unit * unit,
	                  .wide = wide};
	size_t all = (size_t)r.rows * in->count, data_bytes = all * r.steps * r.parts * STEP_BYTES,
		   sums_bytes = sums ? all * r.steps * sizeof(float) : 0;
	r.data = (unsigned char *)plan_room(p, (enum plan_room)(ROOM_READY + (int)kind),
	                                    data_bytes + sums_bytes + all * sizeof(int32_t));
	r.sums = sums ? (float *)(r.data + data_bytes) : NULL;
	r.exponents = (int32_t *)(r.data + data_bytes + sums_bytes);
	return make_ready{r, in->x, in->k};
}

static bool same_tensor(const struct kern_tensor *a, const struct kern_tensor *b)
{
	return a->at.v == b->at.v && a->ld == b->ld && a->type == b->type;
}

/* The input of an operation that multiplies whole rows, and the weights that our own kernels
 * process. x NULL: no such operation. */
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
		r = {&op->experts_act.x, 2, {op->experts_act.experts.gate, op->experts_act.experts.up}};
	}
	return r;
}

/* Whether an operation leaves x (R, k) unchanged. */
static bool leaves(const struct plan *p, const struct kern_op *op, const struct kern_tensor *x,
                   uint32_t k)
{
	size_t rows = op->rows == KERN_ROWS_ALL ? p->rows : p->tail_rows;
	struct extent of_x = tensor_extent(x, p->rows > p->tail_rows ? p->rows : p->tail_rows, k);
	struct kern_operands all;
	bool apart = true;
	kern_operands(op, p->limits, &all);
	for (uint32_t i = 0; i < all.n; i++) {
		const struct kern_operand *of = &all.of[i];
		size_t lines = of->rows_each ? rows * of->rows_each : 1;
		apart &= of->access == KERN_READ || !lines ||
		         extents_apart(of_x, tensor_extent(&of->x, lines, of->columns));
	}
	return apart;
}

/* Whether an earlier operation prepared what the current one needs, and it is still valid. */
static bool is_ready(const struct plan *p, const struct inputs *in, enum ready_kind kind, bool sums)
{
	const struct prepared *r = &p->ready[kind];
	if (!r->since || in->count != 1 || in->rows_each != 1 || r->rows != p->op->rows ||
	    r->k != in->k || !same_tensor(&r->x, &in->x) || (sums && !r->sums))
		return false;
	for (const struct kern_op *op = r->since; op < p->op; op++)
		if (!leaves(p, op, &in->x, in->k))
			return false;
	return true;
}

struct make_kinds plan_ready_next(struct plan *p, const struct kern_tensor *y, uint32_t dim)
{
	struct inputs in = {*y, dim, 1, 0, 1, {}};
	struct make_kinds make = {};
	bool wanted[READY_KINDS] = {}, sums[READY_KINDS] = {}, other[READY_KINDS] = {}, changed = false;
	for (const struct kern_op *op = p->op + 1; op < p->end && !changed; op++) {
		struct reading of = reading_of(op);
		bool same = of.count && same_tensor(of.x, y) && of.w[0]->k == dim &&
		            op->rows == p->op->rows;
		for (uint32_t i = 0; i < of.count; i++) {
			enum ready_kind kind = kind_for(p, of.w[i]->dtype, op->kind == KERN_OP_EXPERTS_ACT);
			other[kind] |= !same; /* another x takes the room */
			wanted[kind] |= same && !other[kind];
			sums[kind] |= same && !other[kind] && has_offset(of.w[i]->dtype);
		}
		changed = (other[0] && other[1] && other[2]) || !leaves(p, op, y, dim);
	}
	for (int kind = 0; kind < READY_KINDS; kind++) {
		if (!wanted[kind])
			continue;
		p->ready[kind] = {p->op + 1, *y, dim, p->op->rows, sums[kind]};
		make.of[kind] = make_ready_of(p, &in, (enum ready_kind)kind, sums[kind]);
	}
	return make;
}

/* Adds a launch that prepares x, unless it is prepared already, and copies tails. */
static struct ready plan_ready(struct plan *p, const struct inputs *in, enum ready_kind kind,
                               bool sums)
{
	if (!in->tails.columns && is_ready(p, in, kind, sums))
		return make_ready_of(p, in, kind, p->ready[kind].sums).to;
	struct ready_args a = {p->batch,    make_ready_of(p, in, kind, sums),
	                       in->columns, in->rows_each,
	                       p->op->rows, in->tails};
	uint32_t threads = 4 * a.make.to.steps < (uint32_t)READY_THREADS_MAX
	                       ? (4 * a.make.to.steps + WARP - 1) / WARP * WARP
	                       : (uint32_t)READY_THREADS_MAX;
	PLAN(p, ready_rows, plan_rows(p) * in->rows_each, in->count, threads,
	     threads / WARP * sizeof(uint32_t), a);
	p->ready[kind] = {in->count == 1 && in->rows_each == 1 ? p->op : NULL, in->x, in->k,
	                  p->op->rows, sums};
	return a.make.to;
}

/* --- planning ------------------------------------------------------------ */

/* Enough segments for the device to have enough warps, none shorter than segment_unit; of a part of
 * a matrix as many as of the whole one, of n rows. */
static uint32_t segments_of(const struct weight_view &w, uint32_t n)
{
	uint32_t unit = segment_unit(w.type), units = (steps_of(w.k) + unit - 1) / unit, segments = 1;
	while (2 * segments <= SEGMENTS_MAX && 2 * segments <= units &&
	       2 * segments * panel_pairs_of(n) <= WARPS_WANTED)
		segments *= 2;
	return segments;
}

void cuda_weight_part_of(struct kern_weight *w, uint32_t n)
{
	w->whole = n;
}

struct product product_of(const struct kern_weight *w, const float *bias, struct kern_tensor y)
{
	struct product r = {weight_view_of(w), w->stride, bias, y, 0, 1};
	r.segments = segments_of(r.w, w->whole ? w->whole : w->n);
	return r;
}

/* Enough warps for the segments, and a few pairs of panels if there are few segments. */
static uint32_t few_warps(const struct product *product, uint32_t products)
{
	uint32_t warps = 1;
	for (uint32_t i = 0; i < products; i++)
		while (warps < product[i].segments ||
		       (warps < WARPS_FEW && warps < panel_pairs_of(product[i].w.n) * product[i].segments))
			warps *= 2;
	return warps;
}

static void launch_products(struct plan *p, struct product_args *a, int type,
                            const struct product *product)
{
	bool few = plan_few(p);
	enum product_way way = a->ready.wide ? PRODUCT_WIDE : PRODUCT_MMA;
	struct product_kernel k = way == PRODUCT_WIDE ? wide_kernel(type) : mma_kernel(type, few);
	a->warps = few ? few_warps(product, a->products) : k.warps;
	a->together = plan_rows(p) <= (uint32_t)APART_ROWS_MAX ? a->warps : 1;
	uint32_t each = product_blocks(*a, product[0], way), blocks = 0;
	bool alike = true;
	for (uint32_t i = 0; i < a->products; i++) {
		blocks += product_blocks(*a, product[i], way);
		alike &= product_blocks(*a, product[i], way) == each;
	}
	a->blocks_each = alike ? each : 0;
	if ((uint64_t)blocks * a->row_blocks > INT32_MAX) {
		plan_fail(p, KERN_EINVAL,
		          "%u rows by weights of %u blocks of rows: the grid would exceed %d blocks",
		          plan_rows(p), blocks, INT32_MAX);
		return;
	}
	struct launch *l = plan_launch(p, k.name, k.kernel, blocks * a->row_blocks, 1, a->warps * WARP,
	                               a->warps * k.warp_bytes, a, sizeof *a);
	if (l && way == PRODUCT_WIDE)
		l->cluster = 2;
}

void plan_products(struct plan *p, const struct inputs *in, const struct product *product,
                   uint32_t products, const struct chosen *chosen, uint32_t groups)
{
	struct product_args a = {};
	struct product *like = (struct product *)calloc(products, sizeof *like);
	if (!like) {
		plan_fail(p, KERN_ENOMEM, "out of memory for %u products", products);
		return;
	}
	bool sums = false;
	a.batch = p->batch;
	a.rows = p->op->rows;
	if (chosen)
		a.chosen = *chosen;
	for (uint32_t i = 0; i < products; i++)
		sums |= has_offset(product[i].w.type);
	for (int type = 0; type < WEIGHT_TYPES; type++) {
		a.products = 0;
		for (uint32_t i = 0; i < products; i++)
			if (product[i].w.type == type)
				like[a.products++] = product[i];
		if (!a.products)
			continue;
		a.ready = plan_ready(p, in, kind_for(p, type, chosen), sums);
		a.block_rows = a.ready.wide ? (uint32_t)WIDE_COLUMNS : plan_block_rows(p);
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
	struct inputs in = {op->matmul.x, op->matmul.p[0].w->k, 1, 0, 1, {}};
	for (uint32_t i = 0; i < op->matmul.products; i++) {
		const struct kern_product *of = &op->matmul.p[i];
		*(of->w->plain ? &fast[fasts++]
		               : &own[owns++]) = product_of(of->w, (const float *)of->bias.v, of->y);
	}
	if (owns)
		plan_products(p, &in, own, owns, NULL, 0);
	if (fasts)
		plan_fast_products(p, &in.x, fast, fasts);
}

/* --- a matrix per head --------------------------------------------------- */

void plan_heads_matmul(struct plan *p)
{
	const struct kern_op *op = p->op;
	uint32_t heads = op->heads_matmul.heads, tail = op->heads_matmul.tail,
			 n = op->heads_matmul.w->n, k = op->heads_matmul.w->k;
	struct product *product = (struct product *)calloc(heads, sizeof *product);
	struct inputs in = {op->heads_matmul.x, k, heads, k + tail, 1, {op->heads_matmul.y, n, tail}};
	if (!product) {
		plan_fail(p, KERN_ENOMEM, "out of memory for %u heads", heads);
		return;
	}
	for (uint32_t h = 0; h < heads; h++) {
		struct kern_tensor y = op->heads_matmul.y;
		y.at.v += (size_t)h * (n + tail) * element_bytes(&y);
		product[h] = product_of(op->heads_matmul.w, NULL, y);
		product[h].w.data += h * op->heads_matmul.w->stride;
		product[h].input = h;
	}
	plan_products(p, &in, product, heads, NULL, 0);
	free(product);
}
