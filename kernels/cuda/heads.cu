/* heads.cu - operations on single heads of a row: norm, rotation, storing K and V in the pool.
 *
 * Consecutive operations share one launch if possible: a warp takes a piece of a row (an item),
 * usually a head, and applies all operations to it in order. This is correct if data that one
 * operation writes and another one touches always lies in one item of one row, which planning
 * ensures. The bits equal those of separate operations, because one warp computes each operation in
 * either case. */
#include "kernels/cuda/kv.h"
#include "kernels/own_math.h"

enum { HEAD_STEPS_MAX = 6, WARPS = 8, ROWS_FEW = 64, ACROSS_MAX = 64 };

/* What an operation does to its heads. */
enum step_kind { STEP_NORM, STEP_ROPE_HALF, STEP_ROPE_INTERLEAVED, STEP_STORE_K, STEP_STORE_V };

struct head_step {
	struct kern_tensor x; /* (R, heads, stride) */
	const float *w;       /* NORM: (dim) */
	float eps;
	uint32_t heads, stride;
	uint32_t dim;   /* elements of a head that are touched */
	uint32_t first; /* head i belongs to item first + i */
	enum step_kind kind;
};

struct heads_args {
	const struct kern_batch *batch;
	const float *inv_freq; /* (pairs), for all rotation steps */
	uint32_t pairs;
	float scale;
	struct kern_kv_layer kv;
	int rows; /* enum kern_rows */
	uint32_t items, steps;
	struct head_step step[HEAD_STEPS_MAX];
};

/* A head of a row, processed by the lanes of a warp. */
struct head {
	struct kern_tensor x;
	size_t row;
	uint32_t first, count, lane; /* columns [first, first + count) */
};

static __device__ inline void norm_head(const struct head &h, const float *w, float eps)
{
	double sum = 0;
	for (uint32_t c = h.lane; c < h.count; c += WARP) {
		float x = tensor_get(h.x, h.row, h.first + c);
		sum += (double)x * (double)x;
	}
	sum = warp_sum(sum);
	float f = (float)(1.0 / sqrt(sum / h.count + (double)eps));
	for (uint32_t c = h.lane; c < h.count; c += WARP)
		tensor_put(h.x, h.row, h.first + c, tensor_get(h.x, h.row, h.first + c) * f * w[c]);
}

/* Sine and cosine of a row's pairs, shared by all its heads because they are computed in double
 * precision, which is slow on some GPUs. */
static __device__ inline void put_angles(const struct heads_args &a, uint32_t row, float *sines,
                                         uint32_t threads)
{
	float position = (float)batch_words(a.batch, a.batch->positions)[row];
	for (uint32_t i = threadIdx.x; i < a.pairs; i += threads) {
		float s, c;
		own_sin_cos(position * a.inv_freq[i], &s, &c);
		sines[i] = s * a.scale;
		sines[a.pairs + i] = c * a.scale;
	}
}

static __device__ inline void rope_head(const struct head &h, const float *sines, bool half)
{
	uint32_t pairs = h.count / 2;
	for (uint32_t i = h.lane; i < pairs; i += WARP) {
		uint32_t at_u = h.first + (half ? i : 2 * i), at_v = half ? at_u + pairs : at_u + 1;
		float u = tensor_get(h.x, h.row, at_u), v = tensor_get(h.x, h.row, at_v), s = sines[i],
			  c = sines[pairs + i];
		tensor_put(h.x, h.row, at_u, u * c - v * s);
		tensor_put(h.x, h.row, at_v, v * c + u * s);
	}
}

/* The largest magnitude of a head's elements, or NaN if one is NaN or infinite. Compares bits: a
 * NaN's are above all numbers'. */
static __device__ inline float largest_of(const struct head &h)
{
	uint32_t top = 0;
	for (uint32_t c = h.lane; c < h.count; c += WARP) {
		uint32_t u = magnitude_bits(tensor_get(h.x, h.row, h.first + c));
		top = u > top ? u : top;
	}
	top = warp_largest(top);
	return top < 0x7f800000 ? kern_bits_to_f32(top) : kern_bits_to_f32(0x7fc00000);
}

static __device__ inline void store_scaled(unsigned char *to, float *scale, const struct head &h,
                                           int i8)
{
	float max = largest_of(h), top = i8 ? 127.0f : 448.0f;
	float factor = max >= 1e-30f ? top / max : 0.0f; /* (nearly) zero or not finite: all zeros */
	if (h.lane == 0)
		*scale = max >= 1e-30f ? max / top : isnan(max) ? max : 0.0f;
	for (uint32_t c = h.lane; c < h.count; c += WARP) {
		float v = tensor_get(h.x, h.row, h.first + c) * factor;
		/* 1.5 * 2^23: the sum's low bits are the nearest integer, ties to even */
		to[c] = factor == 0 ? 0
		        : i8        ? (unsigned char)kern_f32_bits(v + 12582912.0f)
		                    : kern_f32_to_f8(v);
	}
}

static __device__ inline void store_head(const struct heads_args &a, const struct head &h,
                                         uint32_t plane)
{
	const struct kern_kv_layer &kv = a.kv;
	struct kv_shape s = kv_shape_of(kv);
	uint32_t slot = batch_words(a.batch, a.batch->slots)[h.row], at = slot % kv.block_tokens;
	unsigned char *base = (unsigned char *)kv.base.v +
	                      slot / kv.block_tokens * kv.block_stride_bytes + plane * s.plane_bytes;
	unsigned char *to = base + (size_t)at * s.row_bytes;
	if (s.scaled) {
		store_scaled(to, (float *)(base + s.row_bytes * kv.block_tokens) + at, h,
		             kv.dtype == KERN_I8);
		return;
	}
	struct kern_tensor out = {{(uintptr_t)to}, 0, kv.dtype};
	for (uint32_t c = h.lane; c < h.count; c += WARP)
		tensor_put(out, 0, c, tensor_get(h.x, h.row, h.first + c));
}

static __device__ inline void do_step(const struct heads_args &a, const struct head_step &s,
                                      uint32_t row, uint32_t i, const float *sines)
{
	struct head h = {s.x, row, i * s.stride, s.dim, threadIdx.x % WARP};
	switch (s.kind) {
	case STEP_NORM: norm_head(h, s.w, s.eps); break;
	case STEP_ROPE_HALF: rope_head(h, sines, true); break;
	case STEP_ROPE_INTERLEAVED: rope_head(h, sines, false); break;
	case STEP_STORE_K: store_head(a, h, a.kv.latent ? i : 2 * i); break;
	case STEP_STORE_V: store_head(a, h, 2 * i + 1); break;
	}
}

/* Blocks divide a row's items among their warps. */
KERNEL(head_steps, WARPS *WARP, struct heads_args)
{
	float *sines = (float *)shared_memory();
	uint32_t r = blockIdx.x, warps = blockDim.x / WARP;
	if (r >= batch_rows(a.batch, a.rows))
		return;
	if (a.pairs)
		put_angles(a, r, sines, blockDim.x);
	__syncthreads();
	for (uint32_t item = blockIdx.y * warps + threadIdx.x / WARP; item < a.items;
	     item += gridDim.y * warps)
		for (uint32_t s = 0; s < a.steps; s++) {
			if (item - a.step[s].first < a.step[s].heads)
				do_step(a, a.step[s], r, item - a.step[s].first, sines);
			__syncwarp(); /* other lanes read what the step wrote */
		}
}

/* --- ranges of heads ------------------------------------------------------ */

/* Equally spaced items of one tensor. */
struct head_range {
	struct kern_tensor x;          /* starts at the first item */
	uint32_t items, stride, width; /* in elements; width: part of an item that steps touch */
	uint32_t first;                /* number of the first item */
};

/* Whether the step's heads lie in the first items of the range, one in each; if so, it has them. */
static bool range_has(struct head_range *l, const struct head_step *s)
{
	/* huge if the step begins before the range */
	size_t apart = s->x.at.v - l->x.at.v, bytes = element_bytes(&l->x),
		   end = apart / bytes + s->dim, width = end > l->width ? end : l->width;
	if (s->x.type != l->x.type || s->x.ld != l->x.ld || apart % bytes || end > l->stride ||
	    s->heads > l->items || (s->heads > 1 && s->stride != l->stride) ||
	    (l->items - 1) * (size_t)l->stride + width > l->x.ld)
		return false;
	l->width = (uint32_t)width;
	return true;
}

static struct extent range_extent(const struct head_range *l, size_t rows)
{
	return tensor_extent(&l->x, rows, (l->items - 1) * (size_t)l->stride + l->width);
}

/* Whether the ranges share no byte: different memory, or different columns of the same rows. */
static bool ranges_apart(const struct head_range *a, const struct head_range *b, uint32_t rows)
{
	struct extent x = range_extent(a, 1), y = range_extent(b, 1);
	size_t row_bytes = a->x.ld * element_bytes(&a->x);
	if (extents_apart(range_extent(a, rows), range_extent(b, rows)))
		return true;
	return row_bytes == b->x.ld * element_bytes(&b->x) && extents_apart(x, y) &&
	       (x.to > y.to ? x.to : y.to) - (x.from < y.from ? x.from : y.from) <= row_bytes;
}

/* Assigns items to all steps, starting with the last step, which covers the most of a head, such as
 * a latent and its rotated part. False: steps that touch the same bytes have them in different
 * items. */
static bool place_steps(struct heads_args *a, uint32_t rows)
{
	struct head_range range[HEAD_STEPS_MAX];
	uint32_t ranges = 0, of[HEAD_STEPS_MAX];
	bool apart = true;
	for (uint32_t s = a->steps; s-- > 0;) {
		const struct head_step *step = &a->step[s];
		for (of[s] = 0; of[s] < ranges && !range_has(&range[of[s]], step);)
			of[s]++;
		if (of[s] == ranges)
			range[ranges++] = {step->x, step->heads, step->stride, step->dim, 0};
	}
	a->items = 0;
	for (uint32_t i = 0; i < ranges; i++) {
		range[i].first = a->items;
		a->items += range[i].items;
		for (uint32_t j = 0; j < i; j++)
			apart &= ranges_apart(&range[i], &range[j], rows);
	}
	for (uint32_t s = 0; s < a->steps; s++)
		a->step[s].first = range[of[s]].first;
	return apart;
}

/* --- planning ------------------------------------------------------------ */

static void add_step(struct heads_args *a, enum step_kind kind, const struct kern_tensor *x,
                     uint32_t heads, uint32_t stride, uint32_t dim)
{
	a->step[a->steps++] = {*x, NULL, 0, heads, stride, dim, 0, kind};
}

/* Adds the steps of an operation. False: they do not fit the earlier ones. All rotations of a
 * launch have the same angles, and it has one kv_write, because two could write the same slots. */
static bool add_op(const struct kern_op *op, struct heads_args *a)
{
	const struct kern_rope *rope = &op->rope.rope;
	const struct kern_kv_layer *kv = &op->kv_write.kv;
	const float *inv_freq = (const float *)rope->inv_freq.v;
	if (a->steps + 2 > HEAD_STEPS_MAX)
		return false;
	switch (op->kind) {
	case KERN_OP_HEAD_NORM:
		add_step(a, STEP_NORM, &op->head_norm.x, op->head_norm.heads, op->head_norm.head_dim,
		         op->head_norm.head_dim);
		a->step[a->steps - 1].w = (const float *)op->head_norm.w.v;
		a->step[a->steps - 1].eps = op->head_norm.eps;
		return true;
	case KERN_OP_ROPE:
		if (!rope->dims)
			return true;
		if (a->pairs &&
		    (a->inv_freq != inv_freq || a->pairs != rope->dims / 2 || a->scale != rope->scale))
			return false;
		a->inv_freq = inv_freq;
		a->pairs = rope->dims / 2;
		a->scale = rope->scale;
		add_step(a, rope->style == KERN_ROPE_HALF ? STEP_ROPE_HALF : STEP_ROPE_INTERLEAVED,
		         &op->rope.x, op->rope.heads, op->rope.head_dim, rope->dims);
		return true;
	case KERN_OP_KV_WRITE:
		if (a->kv.base.v)
			return false;
		a->kv = *kv;
		add_step(a, STEP_STORE_K, &op->kv_write.k, kv->kv_heads, kv->head_dim, kv->head_dim);
		if (!kv->latent)
			add_step(a, STEP_STORE_V, &op->kv_write.v, kv->kv_heads, kv->head_dim, kv->head_dim);
		return true;
	default: return false;
	}
}

/* With few rows, each row is divided among several blocks. */
static void launch_heads(struct plan *p, const struct heads_args *a)
{
	uint32_t warps = a->items < (uint32_t)WARPS ? a->items : (uint32_t)WARPS, across = 1;
	if (plan_rows(p) <= ROWS_FEW)
		across = (a->items + warps - 1) / warps;
	if (across > ACROSS_MAX)
		across = ACROSS_MAX;
	PLAN(p, head_steps, plan_rows(p), across, warps * WARP, 2 * a->pairs * sizeof(float), *a);
}

void plan_heads(struct plan *p)
{
	uint32_t rows = plan_rows(p);
	struct heads_args a = {}, more;
	a.batch = p->batch;
	a.rows = p->op->rows;
	if (!add_op(p->op, &a))
		return;
	/* one operation always fits: only K and V may overlap, and they are only read */
	place_steps(&a, rows);
	while (p->op + 1 < p->end && p->op[1].rows == p->op->rows) {
		more = a;
		p->op++;
		if (!add_op(p->op, &more) || !place_steps(&more, rows)) {
			p->op--;
			break;
		}
		a = more;
	}
	if (a.steps) /* a rotation may have no elements */
		launch_heads(p, &a);
}
