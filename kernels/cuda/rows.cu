/* rows.cu - operations that compute a row from that row alone: embedding, norms, rotation, K and V into the pool, activation; and progress. A block has a
 * row, or a part of one; sums go over a fixed number of threads, so that a row's bits depend on nothing else. */
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/act.h"
#include "kernels/cuda/kv.h"
#include "kernels/cuda/weight.h"
#include "kernels/own_math.h"

enum { THREADS = 256, NORM_THREADS = 256, HEAD_THREADS = 32 };

static uint32_t blocks_of(uint32_t columns)
{
	return (columns + THREADS - 1) / THREADS;
}

/* --- moving and scaling ------------------------------------------------------------------------------------------------------ */

struct embed_args {
	const struct kern_batch *batch;
	struct kern_tensor y;
	struct weight_view w;
	uint32_t first;
	const struct kern_carry *carries;
};

KERNEL(embed_rows, THREADS, struct embed_args)
{
	uint32_t r = blockIdx.x, c = blockIdx.y * THREADS + threadIdx.x;
	if (r >= a.batch->rows || c >= a.w.k)
		return;
	uint32_t token = batch_words(a.batch, a.batch->tokens)[r];
	if (token & KERN_OF_CARRY)
		token = a.carries[token - KERN_OF_CARRY].id[0];
	if (token >= a.first && token - a.first < a.w.n)
		tensor_put(a.y, r, c, weight_value(a.w, token - a.first, c));
}

static void plan_embed(struct plan *p)
{
	const struct kern_op *op = p->op;
	if (plan_tensor(p, &op->embed.y, op->embed.w->k))
		return;
	struct embed_args a = {p->batch, op->embed.y, weight_view_of(op->embed.w), op->embed.first, (const struct kern_carry *)op->embed.carries.v};
	PLAN(p, embed_rows, plan_rows(p), blocks_of(a.w.k), THREADS, 0, a);
}

struct move_args {
	const struct kern_batch *batch;
	struct kern_tensor y, x;
	uint32_t dim;
	int rows;                  /* enum kern_rows */
	float factor;
};

KERNEL(gather_rows, THREADS, struct move_args)
{
	uint32_t r = blockIdx.x, c = blockIdx.y * THREADS + threadIdx.x;
	if (r < a.batch->tail_rows && c < a.dim)
		tensor_put(a.y, r, c, tensor_get(a.x, batch_words(a.batch, a.batch->tail_index)[r], c));
}

KERNEL(scale_rows, THREADS, struct move_args)
{
	uint32_t r = blockIdx.x, c = blockIdx.y * THREADS + threadIdx.x;
	if (r < batch_rows(a.batch, a.rows) && c < a.dim)
		tensor_put(a.y, r, c, tensor_get(a.x, r, c) * a.factor);
}

static void plan_gather_rows(struct plan *p)
{
	struct move_args a = {p->batch, p->op->gather_rows.y, p->op->gather_rows.x, p->op->gather_rows.dim, p->op->rows, 0};
	if (!plan_tensor(p, &a.y, a.dim) && !plan_tensor(p, &a.x, a.dim))
		PLAN(p, gather_rows, plan_rows(p), blocks_of(a.dim), THREADS, 0, a);
}

static void plan_scale(struct plan *p)
{
	struct move_args a = {p->batch, p->op->scale.y, p->op->scale.x, p->op->scale.dim, p->op->rows, p->op->scale.factor};
	if (!plan_tensor(p, &a.y, a.dim) && !plan_tensor(p, &a.x, a.dim))
		PLAN(p, scale_rows, plan_rows(p), blocks_of(a.dim), THREADS, 0, a);
}

/* --- norms and activation ------------------------------------------------------------------------------------------------------ */

struct norm_args {
	const struct kern_batch *batch;
	struct kern_tensor y, x, addend;       /* addend.at 0: none; heads: y is x */
	const float *w;
	uint32_t dim;              /* of a norm: a row's, or a head's */
	int rows;
	float eps;
};

/* The sum goes over all threads in the order of columns, then over the block: the number of threads is the same for every row of every batch. */
KERNEL(norm_rows, NORM_THREADS, struct norm_args)
{
	double *part = (double *)shared_memory();
	uint32_t r = blockIdx.x;
	if (r >= batch_rows(a.batch, a.rows))
		return;
	double sum = 0;
	for (uint32_t c = threadIdx.x; c < a.dim; c += NORM_THREADS) {
		float x = tensor_get(a.x, r, c);
		if (a.addend.at.v) {
			tensor_put(a.x, r, c, x + tensor_get(a.addend, r, c));
			x = tensor_get(a.x, r, c);
		}
		sum += (double)x * (double)x;
	}
	sum = block_sum(sum, part);
	float f = (float)(1.0 / sqrt(sum / a.dim + (double)a.eps));
	for (uint32_t c = threadIdx.x; c < a.dim; c += NORM_THREADS)
		tensor_put(a.y, r, c, tensor_get(a.x, r, c) * f * a.w[c]);
}

/* A warp has a head. */
KERNEL(norm_heads, HEAD_THREADS, struct norm_args)
{
	uint32_t r = blockIdx.x, first = blockIdx.y * a.dim;
	if (r >= batch_rows(a.batch, a.rows))
		return;
	double sum = 0;
	for (uint32_t c = threadIdx.x; c < a.dim; c += HEAD_THREADS) {
		float x = tensor_get(a.x, r, first + c);
		sum += (double)x * (double)x;
	}
	sum = warp_sum(sum);
	float f = (float)(1.0 / sqrt(sum / a.dim + (double)a.eps));
	for (uint32_t c = threadIdx.x; c < a.dim; c += HEAD_THREADS)
		tensor_put(a.x, r, first + c, tensor_get(a.x, r, first + c) * f * a.w[c]);
}

static void plan_norm(struct plan *p)
{
	const struct kern_op *op = p->op;
	struct norm_args a = {p->batch, op->norm.y, op->norm.x, op->norm.a, (const float *)op->norm.w.v, op->norm.dim, op->rows, op->norm.eps};
	if (!plan_tensor(p, &a.y, a.dim) && !plan_tensor(p, &a.x, a.dim) && !(a.addend.at.v && plan_tensor(p, &a.addend, a.dim)) && !plan_address(p, op->norm.w))
		PLAN(p, norm_rows, plan_rows(p), 1, NORM_THREADS, NORM_THREADS / WARP * sizeof(double), a);
}

static void plan_head_norm(struct plan *p)
{
	const struct kern_op *op = p->op;
	struct norm_args a = {p->batch, op->head_norm.x, op->head_norm.x, {{0}, 0, KERN_F32}, (const float *)op->head_norm.w.v, op->head_norm.head_dim, op->rows,
	                      op->head_norm.eps};
	if (!plan_tensor(p, &a.x, (size_t)op->head_norm.heads * a.dim) && !plan_address(p, op->head_norm.w))
		PLAN(p, norm_heads, plan_rows(p), op->head_norm.heads, HEAD_THREADS, 0, a);
}

struct act_args {
	const struct kern_batch *batch;
	struct kern_tensor y, gate, up;
	uint32_t dim;
	int rows, act;             /* enum kern_act */
};

KERNEL(act_rows, THREADS, struct act_args)
{
	uint32_t r = blockIdx.x, c = blockIdx.y * THREADS + threadIdx.x;
	if (r < batch_rows(a.batch, a.rows) && c < a.dim)
		tensor_put(a.y, r, c, act_mul(a.act, tensor_get(a.gate, r, c), tensor_get(a.up, r, c)));
}

static void plan_act_mul(struct plan *p)
{
	const struct kern_op *op = p->op;
	struct act_args a = {p->batch, op->act_mul.y, op->act_mul.gate, op->act_mul.up, op->act_mul.dim, op->rows, op->act_mul.act};
	if (!plan_tensor(p, &a.y, a.dim) && !plan_tensor(p, &a.gate, a.dim) && !plan_tensor(p, &a.up, a.dim))
		PLAN(p, act_rows, plan_rows(p), blocks_of(a.dim), THREADS, 0, a);
}

/* --- rotation -------------------------------------------------------------------------------------------------------------------- */

struct rope_args {
	const struct kern_batch *batch;
	struct kern_tensor x;
	struct kern_rope rope;
	uint32_t heads, head_dim;
};

/* A thread has a pair of a row, in all heads. */
KERNEL(rope_rows, THREADS, struct rope_args)
{
	uint32_t r = blockIdx.x, pairs = a.rope.dims / 2;
	if (r >= a.batch->rows)
		return;
	float position = (float)batch_words(a.batch, a.batch->positions)[r];
	for (uint32_t i = threadIdx.x; i < pairs; i += THREADS) {
		float s, c;
		own_sin_cos(position * ((const float *)a.rope.inv_freq.v)[i], &s, &c);
		s *= a.rope.scale;
		c *= a.rope.scale;
		for (uint32_t h = 0; h < a.heads; h++) {
			int half = a.rope.style == KERN_ROPE_HALF;
			uint32_t at_u = h * a.head_dim + (half ? i : 2 * i), at_v = half ? at_u + pairs : at_u + 1;
			float u = tensor_get(a.x, r, at_u), v = tensor_get(a.x, r, at_v);
			tensor_put(a.x, r, at_u, u * c - v * s);
			tensor_put(a.x, r, at_v, v * c + u * s);
		}
	}
}

static void plan_rope(struct plan *p)
{
	const struct kern_op *op = p->op;
	struct rope_args a = {p->batch, op->rope.x, op->rope.rope, op->rope.heads, op->rope.head_dim};
	if (a.head_dim > CUDA_MAX_HEAD_DIM)
		plan_fail(p, KERN_EINVAL, "heads of %u elements, the limit is %d", a.head_dim, CUDA_MAX_HEAD_DIM);
	if (!plan_tensor(p, &a.x, (size_t)a.heads * a.head_dim) && a.rope.dims && !plan_address(p, a.rope.inv_freq))
		PLAN(p, rope_rows, plan_rows(p), 1, THREADS, 0, a);
}

/* --- K and V ------------------------------------------------------------------------------------------------------------------------ */

struct kv_args {
	const struct kern_batch *batch;
	struct kern_kv_layer kv;
	struct kern_tensor k, v;
};

/* The largest magnitude of a head's elements; NaN if one is none or infinite. As bits: a NaN's are above all numbers'. */
static __device__ float largest_of(const struct kern_tensor &x, uint32_t r, uint32_t first, uint32_t count)
{
	uint32_t top = 0;
	for (uint32_t c = threadIdx.x; c < count; c += WARP) {
		uint32_t u = kern_f32_bits(tensor_get(x, r, first + c)) & 0x7fffffff;
		top = u > top ? u : top;
	}
	for (uint32_t by = WARP / 2; by; by /= 2) {
		uint32_t other = __shfl_xor_sync(ALL_LANES, top, by);
		top = other > top ? other : top;
	}
	return top < 0x7f800000 ? kern_bits_to_f32(top) : kern_bits_to_f32(0x7fc00000);
}

static __device__ void store_scaled(unsigned char *to, float *scale, const struct kern_tensor &x, uint32_t r, uint32_t first, uint32_t count, int i8)
{
	float max = largest_of(x, r, first, count), top = i8 ? 127.0f : 448.0f;
	float factor = max >= 1e-30f ? top / max : 0.0f;       /* as good as zero, or none: all zeros */
	if (threadIdx.x == 0)
		*scale = max >= 1e-30f ? max / top : isnan(max) ? max : 0.0f;
	for (uint32_t c = threadIdx.x; c < count; c += WARP) {
		float v = tensor_get(x, r, first + c) * factor;
		/* 1.5 * 2^23: the sum's low bits are the nearest integer, ties to even */
		to[c] = factor == 0 ? 0 : i8 ? (unsigned char)kern_f32_bits(v + 12582912.0f) : kern_f32_to_f8(v);
	}
}

/* A warp has a row's K or V of a head: blockIdx.y is the plane. */
KERNEL(kv_rows, WARP, struct kv_args)
{
	const struct kern_kv_layer &kv = a.kv;
	uint32_t r = blockIdx.x, plane = blockIdx.y, head = kv.latent ? plane : plane / 2, count = kv.head_dim;
	if (r >= a.batch->rows)
		return;
	uint32_t slot = batch_words(a.batch, a.batch->slots)[r], at = slot % kv.block_tokens;
	const struct kern_tensor &x = !kv.latent && plane % 2 ? a.v : a.k;
	struct kv_shape s = kv_shape_of(kv);
	unsigned char *base = (unsigned char *)kv.base.v + slot / kv.block_tokens * kv.block_stride_bytes + plane * s.plane_bytes;
	unsigned char *to = base + (size_t)at * s.row_bytes;
	float *scale = (float *)(base + s.row_bytes * kv.block_tokens) + at;
	if (kv.dtype == KERN_I8 || kv.dtype == KERN_F8) {
		store_scaled(to, scale, x, r, head * count, count, kv.dtype == KERN_I8);
		return;
	}
	struct kern_tensor out = {{(uintptr_t)to}, 0, kv.dtype};
	for (uint32_t c = threadIdx.x; c < count; c += WARP)
		tensor_put(out, 0, c, tensor_get(x, r, head * count + c));
}

static void plan_kv_write(struct plan *p)
{
	const struct kern_op *op = p->op;
	struct kv_args a = {p->batch, op->kv_write.kv, op->kv_write.k, op->kv_write.v};
	size_t dim = (size_t)a.kv.kv_heads * a.kv.head_dim;
	if (!plan_kv(p, &a.kv) && !plan_tensor(p, &a.k, dim) && (a.kv.latent || !plan_tensor(p, &a.v, dim)))
		PLAN(p, kv_rows, plan_rows(p), kern_kv_planes(&a.kv), WARP, 0, a);
}

/* --- progress ----------------------------------------------------------------------------------------------------------------------- */

struct progress_args {
	const struct kern_batch *batch;
	uint64_t *pulse;
	uint32_t layer;
};

/* One thread, so that a span's words are stored one after the other; the grid begins when those before it are done, so KV is there. */
KERNEL(progress_words, 1, struct progress_args)
{
	const struct kern_batch *b = a.batch;
	if (!b->progress)
		return;
	const struct kern_progress *of = (const struct kern_progress *)batch_words(b, b->progress);
	for (uint32_t i = 0; i < b->spans; i++)
		if (of[i].word.v)
			store_release_system((uint64_t *)of[i].word.v + a.layer * of[i].stride, of[i].value);
	store_release_system(a.pulse, *a.pulse + 1);
}

void plan_progress(struct plan *p)
{
	struct progress_args a = {p->batch, (uint64_t *)(uintptr_t)p->dev->pulse_dev.v, p->op->progress.layer};
	p->progress++;
	PLAN(p, progress_words, 1, 1, 1, 0, a);
}

/* --- all of them ----------------------------------------------------------------------------------------------------------------------- */

void plan_row_op(struct plan *p)
{
	switch (p->op->kind) {
	case KERN_OP_EMBED: plan_embed(p); break;
	case KERN_OP_GATHER_ROWS: plan_gather_rows(p); break;
	case KERN_OP_SCALE: plan_scale(p); break;
	case KERN_OP_NORM: plan_norm(p); break;
	case KERN_OP_HEAD_NORM: plan_head_norm(p); break;
	case KERN_OP_ROPE: plan_rope(p); break;
	case KERN_OP_KV_WRITE: plan_kv_write(p); break;
	case KERN_OP_ACT_MUL: plan_act_mul(p); break;
	default: plan_fail(p, KERN_ENOTSUP, "this device has no such operation");
	}
}
