/* attention.h - what the two kernels of attention share: items of work, tiles, softmax states.
 *
 * A context is cut into chunks of 256 positions and runs of 8 chunks, at absolute positions. A
 * vector is a query head of a row. The states of its chunks are merged in ascending order into the
 * state of a run, and those of runs into the vector's. So its bits do not depend on which block
 * computes a state, in which kernel, or which block merges them, nor on the other vectors of its
 * tile, because rows of the tensor cores' A operand are independent. Positions that a vector must
 * not see have weight 0, and V is made finite there (clear_unbounded); a visible element of V that
 * is not finite gives NaN.
 *
 * A kernel (attention.cu) lists a step's items of work once for all layers of the same shape, the
 * longest first. The blocks of a grid, as many as run at once, take them one after the other. */
#ifndef CUDA_ATTENTION_H
#define CUDA_ATTENTION_H

#include "kernels/cuda/kernel.h"
#include "kernels/cuda/kv.h"

enum {
	CHUNK = 256,
	RUN_CHUNKS = 8,
	RUN = RUN_CHUNKS * CHUNK,
	/* vectors of a tile: of the decode kernel, or twice that; of the prefill kernel */
	DECODE_VECTORS = 16,
	PREFILL_VECTORS = 128,
	COLUMNS = 32, /* the decode kernel pads its values to a multiple of this */
};

/* Vectors of one span and KV head: the heads of its group for one row, then for the next row; and a
 * part of the chunks that they see. There is one such item for each KV head. */
struct attention_item {
	uint32_t span, begin; /* begin: of its vectors, among the span's */
	uint32_t first, end;  /* chunks [first, end) */
	/* items that the tile's chunks are divided among. If more than 1: the tile's number among such
	 * tiles, and the number of its first state */
	uint32_t parts, divided, state;
};

/* In device memory; `ticket` is 0 before and after a launch. */
struct attention_work {
	uint32_t ticket;
	uint32_t items; /* for each KV head */
	uint32_t unit;  /* chunks of a state that is written for divided tiles: 1 or RUN_CHUNKS */
};

struct attention_list {
	struct attention_work *work;
	struct attention_item *item;
	uint32_t *done; /* (divided tiles, KV heads): items that are done; 0 between launches */
};

struct attention_args {
	const struct kern_batch *batch;
	struct kern_kv_layer kv;
	struct kern_tensor out, q;
	const float *sinks; /* or NULL */
	struct attention_list list;
	/* of divided tiles: (units, KV heads, vectors, state_ld); of each block: its merged runs */
	float *states, *runs;
	uint32_t heads, group, window, out_dim;
	uint32_t vectors; /* of a tile */
	float scale;
	int rows;     /* enum kern_rows */
	bool aligned; /* KV is aligned to four elements */
};

/* attention_decode.cu, attention_prefill.cu */
struct attention_kernel {
	const void *kernel; /* NULL: none for this shape */
	const char *name;
	uint32_t threads;
	size_t shared_bytes;
};
struct attention_kernel attention_decode_kernel(const struct plan *p,
                                                const struct attention_args *a);
struct attention_kernel attention_prefill_kernel(const struct plan *p,
                                                 const struct attention_args *a);

static __host__ __device__ inline uint32_t round_up(uint32_t n, uint32_t to)
{
	return (n + to - 1) / to * to;
}

/* A state in memory: values, largest score, sum. */
static __host__ __device__ inline uint32_t state_ld(uint32_t out_dim)
{
	return round_up(out_dim + 2, 4);
}

/* Rounds two numbers to bfloat16; the first goes into the low half. */
static __device__ inline uint32_t bf16_pair(float low, float high)
{
#ifdef __CUDACC__
	uint32_t pair;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
	return pair;
#else
	return kern_f32_to_bf16(low) | (uint32_t)kern_f32_to_bf16(high) << 16;
#endif
}

/* --- tiles --------------------------------------------------------------- */

/* Positions that vectors of a tile see: any of them from first to last, all of them from all_first
 * to all_last (none if that is less). */
struct attention_sees {
	uint32_t first, all_first, all_last, last;
};

struct attention_tile {
	struct kern_span span;
	struct attention_item item;
	struct attention_sees sees;
	uint32_t head, vectors; /* of KV; 0: there are no more tiles */
	int unbounded;          /* clear_unbounded has found elements of V */
	int merges;             /* this block merges the states of the divided tile */
};

static __device__ inline const struct kern_span *batch_spans(const struct kern_batch *b, int rows,
                                                             uint32_t *ret_spans)
{
	*ret_spans = rows == KERN_ROWS_ALL ? b->spans : b->tail_spans;
	return (const struct kern_span *)batch_words(b, rows == KERN_ROWS_ALL ? b->span : b->tail_span);
}

static __device__ inline uint32_t first_seen(uint32_t position, uint32_t window)
{
	return window && position + 1 > window ? position + 1 - window : 0;
}

static __device__ inline struct attention_sees tile_sees(const struct kern_span &span,
                                                         uint32_t begin, uint32_t vectors,
                                                         uint32_t group, uint32_t window)
{
	uint32_t from = span.position + begin / group,
			 to = span.position + (begin + vectors - 1) / group;
	return attention_sees{first_seen(from, window), first_seen(to, window), from, to};
}

/* Positions that vector v of the tile sees; first > last: there is no such vector. */
static __device__ inline void vector_sees(const struct attention_args &a,
                                          const struct attention_tile &tile, uint32_t v,
                                          uint32_t *ret_first, uint32_t *ret_last)
{
	uint32_t position = tile.span.position + (tile.item.begin + v) / a.group;
	*ret_first = v < tile.vectors ? first_seen(position, a.window) : 1;
	*ret_last = v < tile.vectors ? position : 0;
}

static __device__ inline void find_vector(const struct attention_args &a,
                                          const struct attention_tile &tile, uint32_t v,
                                          uint32_t *ret_row, uint32_t *ret_head)
{
	*ret_row = tile.span.row + (tile.item.begin + v) / a.group;
	*ret_head = tile.head * a.group + (tile.item.begin + v) % a.group;
}

/* Gives the block its next tile; false: there is none. *drawn, known to thread 0 alone, is
 * blockIdx.x - gridDim.x at first: tickets below gridDim.x belong to the blocks with these numbers.
 * Who has an item draws the next ticket, for which it waits only here; so there are as many draws
 * as items, of which the last one clears the counter. */
static __device__ inline bool next_tile(const struct attention_args &a, uint32_t *drawn,
                                        struct attention_tile &tile)
{
	__syncthreads(); /* nobody reads the tile before */
	if (threadIdx.x == 0) {
		uint32_t items = a.list.work->items * a.kv.kv_heads, n = gridDim.x + *drawn, spans;
		if (*drawn + 1 == items)
			a.list.work->ticket = 0;
		tile.vectors = 0;
		if (n < items) {
			*drawn = atomicAdd(&a.list.work->ticket, 1u);
			const struct attention_item item = a.list.item[n / a.kv.kv_heads];
			const struct kern_span span = batch_spans(a.batch, a.rows, &spans)[item.span];
			uint32_t left = span.rows * a.group - item.begin,
					 vectors = left < a.vectors ? left : a.vectors;
			tile = attention_tile{span,
			                      item,
			                      tile_sees(span, item.begin, vectors, a.group, a.window),
			                      n % a.kv.kv_heads,
			                      vectors,
			                      0,
			                      0};
		}
	}
	__syncthreads();
	return tile.vectors != 0;
}

/* --- K and V ------------------------------------------------------------- */

/* Where the row of a position begins in the pool, of K or of V. */
static __device__ inline const unsigned char *kv_row(const struct attention_args &a,
                                                     const struct attention_tile &tile, bool of_v,
                                                     uint32_t p)
{
	const struct kv_shape shape = kv_shape_of(a.kv);
	uint32_t block = batch_words(a.batch, a.batch->table)[tile.span.table + p / a.kv.block_tokens],
			 plane = a.kv.latent ? tile.head : 2 * tile.head + of_v;
	return (const unsigned char *)a.kv.base.v + block * a.kv.block_stride_bytes +
	       plane * shape.plane_bytes + p % a.kv.block_tokens * shape.row_bytes;
}

/* Sets elements of V that are not finite, or not after rounding to bfloat16, to 0. Needed only
 * where not all vectors of a tile see a position: elsewhere none of their results is finite. Words
 * hold one float32 or two halves; codes of int8 and fp8 are finite. Returns whether there were
 * any. */
template <int WORDS, bool ROUNDED>
static __device__ inline bool clear_unbounded(uint32_t *w, enum kern_dtype type)
{
	const uint32_t least = ROUNDED ? 0x7f7f8000u : 0x7f800000u;
	uint32_t found = 0, half = type == KERN_F16 ? 0x7c00u : 0x7f80u;
	if (type == KERN_I8 || type == KERN_F8)
		return false;
	UNROLL
	for (int i = 0; i < WORDS; i++) {
		uint32_t bad = (w[i] & 0x7fffffffu) >= least ? 0xffffffffu : 0;
		if (type != KERN_F32)
			bad = ((w[i] & half) == half ? 0xffffu : 0) |
			      ((w[i] >> 16 & half) == half ? 0xffff0000u : 0);
		w[i] &= ~bad;
		found |= bad;
	}
	return found != 0;
}

/* Whether clear_unbounded clears element c of a row. */
template <bool ROUNDED>
static __device__ inline bool is_unbounded(const unsigned char *row, uint32_t c,
                                           enum kern_dtype type)
{
	uint32_t w = type == KERN_F32 ? ((const uint32_t *)row)[c] : ((const uint16_t *)row)[c];
	return clear_unbounded<1, ROUNDED>(&w, type);
}

/* --- states ----------------------------------------------------------------
 * A state of some positions: the largest score, the sum of weights exp(score - largest), and V's
 * elements times their weights. An empty state is -infinity, 0 and zeros: merging it changes
 * nothing except the sign of zeros. */

/* NaN counts as larger than all numbers. */
static __device__ inline float state_max(float a, float b)
{
#ifdef __CUDACC__
	float max;
	asm("max.NaN.f32 %0, %1, %2;" : "=f"(max) : "f"(a), "f"(b));
	return max;
#else
	return b > a || isnan(b) ? b : a;
#endif
}

/* Factor of a state's sums when its largest score becomes `max`. */
static __device__ inline float state_factor(float own, float max)
{
	return own == max ? 1.0f : expf(own - max);
}

static __device__ inline float state_merge(float a, float a_factor, float b, float b_factor)
{
	return fmaf(b, b_factor, a * a_factor);
}

/* A state but for its values. */
struct softmax_state {
	float max, sum;
};
#define EMPTY_STATE (softmax_state{-INFINITY, 0})

/* Merges a state into another; the factors of the other's values and of its own. */
static __device__ inline void state_add(struct softmax_state *to, struct softmax_state s,
                                        float *ret_kept, float *ret_added)
{
	float max = state_max(to->max, s.max);
	*ret_kept = state_factor(to->max, max);
	*ret_added = state_factor(s.max, max);
	*to = softmax_state{max, state_merge(to->sum, *ret_kept, s.sum, *ret_added)};
}

/* 1 / x within one ulp, for a normal number; avoids the function call of a division. */
static __device__ inline float reciprocal(float x)
{
#ifdef __CUDACC__
	float r;
	asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
	return r;
#else
	return 1.0f / x;
#endif
}

/* Final factor of the values. A sink is merged last, as a state of one position without a value. */
static __device__ inline float state_end(struct softmax_state s, const float *sinks, uint32_t head)
{
	float kept = 1, added;
	if (sinks)
		state_add(&s, softmax_state{sinks[head], 1}, &kept, &added);
	return kept * reciprocal(s.sum);
}

/* Turns non-finite values into NaN, because whether a visible infinity of V gives infinity or NaN
 * depends on the order of work. No zero is negative. */
static __device__ inline float state_result(float value, float end)
{
	return isfinite(value) ? value * end + 0.0f : NAN;
}

#endif
