/* rows.cu - operations that compute a row from that row alone: embedding, norms, activation; and
 * progress. A block processes a row or a part of one; sums use a fixed number of threads, so a
 * row's bits depend on nothing else. A norm or an activation whose output a product reads next also
 * prepares it for that product. */
#include "kernels/cuda/act.h"
#include "kernels/cuda/ready.h"
#include "kernels/cuda/record.h"

enum { THREADS = 256, NORM_THREADS = 256, ACT_THREADS_MAX = 1024 };

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

/* Value e of 2 of register i of tile j. */
template <int CODES>
static __device__ inline float value_of(const struct weight_record &w, const uint32_t code[2][4],
                                        int type, uint32_t j, uint32_t i, uint32_t e)
{
	if constexpr (CODES == CODES_FLOAT)
		return type == KERN_F32 ? kern_bits_to_f32(w.code[2 * i + e])
		                        : kern_f16_to_f32((uint16_t)(w.code[i] >> 16 * e));
	float v = kern_bf16_to_f32((uint16_t)(code[j][i] >> 16 * e));
	if constexpr (CODES == CODES_BF16)
		return v;
	if (CODES == CODES_NIBBLES && has_offset(type))
		return record_scale<CODES>(w, type, i % 2, j) * (v + (float)code_zero(type)) +
		       file_offset(w, type, i % 2);
	return record_scale<CODES>(w, type, i % 2, j) * v + 0.0f;
}

/* Writes the values of record `index` of a row of the weight that lane t of its four has, of
 * registers for row lane / 4 of a panel or for row lane / 4 + 8. */
template <int CODES>
static __device__ inline void embed_record(const struct embed_args &a, uint32_t r, uint32_t row,
                                           uint32_t index, uint32_t t)
{
	uint32_t first = index * record_values<CODES>, lane = row % 8 * 4 + t, code[2][4];
	struct weight_record w;
	if (first >= a.w.k)
		return;
	load_record<CODES>(w, panel_of(a.w, a.w.data, row / PANEL_ROWS, lane), a.w.type, index, a.w.k,
	                   lane);
	if constexpr (CODES != CODES_FLOAT)
		unpack_codes<CODES>(w, a.w.type, code);
	UNROLL
	for (uint32_t n = 0; n < record_values<CODES> / 4; n++) {
		uint32_t j = n / 4, half = n / 2 % 2, e = n % 2, c = first + 16 * j + 8 * half + 2 * t + e;
		float low = value_of<CODES>(w, code, a.w.type, j, 2 * half, e),
			  high = value_of<CODES>(w, code, a.w.type, j, 2 * half + 1, e);
		if (c < a.w.k)
			tensor_put(a.y, r, c, row % PANEL_ROWS < 8 ? low : high);
	}
}

/* blockIdx.x is the row; four threads for each record. */
KERNEL(embed_rows, THREADS, struct embed_args)
{
	uint32_t r = blockIdx.x, i = blockIdx.y * THREADS + threadIdx.x;
	if (r >= a.batch->rows)
		return;
	uint32_t row = batch_words(a.batch, a.batch->tokens)[r] - a.first;
	if (row >= a.w.n)
		return;
	switch (codes_of(a.w.type)) {
	case CODES_BF16: embed_record<CODES_BF16>(a, r, row, i / 4, i % 4); break;
	case CODES_FLOAT: embed_record<CODES_FLOAT>(a, r, row, i / 4, i % 4); break;
	case CODES_BYTES: embed_record<CODES_BYTES>(a, r, row, i / 4, i % 4); break;
	case CODES_Q6_K: embed_record<CODES_Q6_K>(a, r, row, i / 4, i % 4); break;
	default: embed_record<CODES_NIBBLES>(a, r, row, i / 4, i % 4);
	}
}

void plan_embed(struct plan *p)
{
	const struct kern_op *op = p->op;
	struct embed_args a = {p->batch, op->embed.y, weight_view_of(op->embed.w), op->embed.first};
	uint32_t records = (a.w.k + TILE_VALUES - 1) / TILE_VALUES; /* at most */
	PLAN(p, embed_rows, plan_rows(p), blocks_of(4 * records), THREADS, 0, a);
}

struct move_args {
	const struct kern_batch *batch;
	struct kern_tensor y, x;
	uint32_t dim;
	int rows; /* enum kern_rows */
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

void plan_gather_rows(struct plan *p)
{
	struct move_args a = {
		p->batch, p->op->gather_rows.y, p->op->gather_rows.x, p->op->gather_rows.dim, p->op->rows,
		0};
	PLAN(p, gather_rows, plan_rows(p), blocks_of(a.dim), THREADS, 0, a);
}

void plan_scale(struct plan *p)
{
	struct move_args a = {p->batch,         p->op->scale.y, p->op->scale.x,
	                      p->op->scale.dim, p->op->rows,    p->op->scale.factor};
	PLAN(p, scale_rows, plan_rows(p), blocks_of(a.dim), THREADS, 0, a);
}

/* --- norms and activation ------------------------------------------------ */

struct norm_args {
	const struct kern_batch *batch;
	struct kern_tensor y, x, addend; /* addend.at 0: none */
	const float *w;
	uint32_t dim;
	int rows;
	float eps;
	struct make_kinds make; /* of y */
};

/* Sum over the block; `part` (NORM_THREADS / WARP) may be used again after the call. */
static __device__ inline double block_sum(double v, double *part)
{
	v = warp_sum(v);
	if (threadIdx.x % WARP == 0)
		part[threadIdx.x / WARP] = v;
	__syncthreads();
	double sum = part[0];
	for (uint32_t i = 1; i < NORM_THREADS / WARP; i++)
		sum += part[i];
	__syncthreads();
	return sum;
}

/* Each thread sums its columns in order, then the block is summed: the number of threads is the
 * same for every row of every batch. */
KERNEL(norm_rows, NORM_THREADS, struct norm_args)
{
	uint32_t r = blockIdx.x, top = 0;
	if (r >= batch_rows(a.batch, a.rows))
		return;
	double sum = 0;
	for (uint32_t c = threadIdx.x; c < a.dim; c += NORM_THREADS) {
		float x = tensor_get(a.x, r, c);
		if (a.addend.at.v)
			x = tensor_put(a.x, r, c, x + tensor_get(a.addend, r, c));
		sum += (double)x * (double)x;
	}
	sum = block_sum(sum, (double *)shared_memory());
	float f = (float)(1.0 / sqrt(sum / a.dim + (double)a.eps));
	for (uint32_t c = threadIdx.x; c < a.dim; c += NORM_THREADS) {
		uint32_t u = magnitude_bits(tensor_put(a.y, r, c, tensor_get(a.x, r, c) * f * a.w[c]));
		top = u > top ? u : top;
	}
	ready_rows_of(a.make, r, top, NORM_THREADS);
}

void plan_norm(struct plan *p)
{
	const struct kern_op *op = p->op;
	struct norm_args a = {
		p->batch,     op->norm.y, op->norm.x,   op->norm.a, (const float *)op->norm.w.v,
		op->norm.dim, op->rows,   op->norm.eps, {}};
	a.make = plan_ready_next(p, &a.y, a.dim);
	PLAN(p, norm_rows, plan_rows(p), 1, NORM_THREADS, NORM_THREADS / WARP * sizeof(double), a);
}

struct act_args {
	const struct kern_batch *batch;
	struct kern_tensor y, gate, up;
	uint32_t dim;
	int rows, act;          /* enum kern_act */
	struct make_kinds make; /* of y */
};

/* Blocks divide a row, except when it is prepared for a product: then one block processes all of
 * it. */
KERNEL(act_rows, ACT_THREADS_MAX, struct act_args)
{
	uint32_t r = blockIdx.x, top = 0;
	if (r >= batch_rows(a.batch, a.rows))
		return;
	for (uint32_t c = blockIdx.y * blockDim.x + threadIdx.x; c < a.dim;
	     c += gridDim.y * blockDim.x) {
		uint32_t u = magnitude_bits(tensor_put(
			a.y, r, c, act_mul(a.act, tensor_get(a.gate, r, c), tensor_get(a.up, r, c))));
		top = u > top ? u : top;
	}
	ready_rows_of(a.make, r, top, blockDim.x);
}

void plan_act_mul(struct plan *p)
{
	const struct kern_op *op = p->op;
	struct act_args a = {p->batch,        op->act_mul.y, op->act_mul.gate, op->act_mul.up,
	                     op->act_mul.dim, op->rows,      op->act_mul.act,  {}};
	a.make = plan_ready_next(p, &a.y, a.dim);
	uint32_t whole = a.dim < (uint32_t)ACT_THREADS_MAX ? (a.dim + WARP - 1) / WARP * WARP
	                                                   : (uint32_t)ACT_THREADS_MAX;
	if (makes_any(a.make))
		PLAN(p, act_rows, plan_rows(p), 1, whole, whole / WARP * sizeof(uint32_t), a);
	else
		PLAN(p, act_rows, plan_rows(p), blocks_of(a.dim), THREADS, 0, a);
}

/* --- progress ------------------------------------------------------------ */

struct progress_args {
	const struct kern_batch *batch;
	/* how many of these kernels have run: in the device's memory, and for the host, which the device
	 * only writes: a load from there would take longer than all else */
	uint64_t *count, *pulse;
	uint32_t layer;
	const uint32_t *broken; /* a word that is nonzero if the group is broken; NULL: no group */
};

/* A lane for each span. The grid starts when the previous ones are done, so words are stored in the
 * order of layers, and the KV is written: one fence makes it visible before the words, another one
 * the words before the pulse, at which the host looks for words. */
KERNEL(progress_words, WARP, struct progress_args)
{
	const struct kern_batch *b = a.batch;
	if (!b->progress || (a.broken && *a.broken))
		return;
	const struct kern_progress *of = (const struct kern_progress *)batch_words(b, b->progress);
	__threadfence_system();
	for (uint32_t i = threadIdx.x; i < b->spans; i += WARP)
		if (of[i].word.v)
			store_relaxed_system((uint64_t *)of[i].word.v + a.layer * of[i].stride, of[i].value);
	__syncwarp();
	if (threadIdx.x)
		return;
	__threadfence_system();
	store_relaxed_system(a.pulse, ++*a.count);
}

void plan_progress(struct plan *p)
{
	struct progress_args a = {p->batch, (uint64_t *)p->dev->pulse_count.dev.v,
	                          (uint64_t *)p->dev->pulse_mem.dev.v, p->op->progress.layer,
	                          plan_meet(p, true)};
	if (p->dev->group.rank)
		return;
	p->progress++;
	PLAN(p, progress_words, 1, 1, WARP, 0, a);
}
