/* attention.h - building blocks of attention.cu: elements of K and V as sums of bfloat16 numbers
 * for the tensor cores, softmax states, and their merge, which chains (chain.cu) do as well.
 *
 * A float32 number is exactly the sum of three bfloat16 numbers ("parts"): its leading 8 bits, the
 * next 8, and the rest, truncated, not rounded. A product of two parts is exact in float32, so sums
 * of all products of parts are as good as sums of float32 products. f16 has two parts; bf16 and the
 * codes of int8 and fp8 have one. */
#ifndef CUDA_ATTENTION_H
#define CUDA_ATTENTION_H

#include "kernels/cuda/kernel.h"

/* --- parts --------------------------------------------------------------- */

/* Number of parts of an element of K or V; one if it is rounded to bfloat16. */
template <int TYPE, bool ROUNDED> struct kv_parts {
	enum { N = ROUNDED ? 1 : TYPE == KERN_F32 ? 3 : TYPE == KERN_F16 ? 2 : 1 };
};

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

/* Splits two numbers into parts at first[0], first[STRIDE] ...; a single part is rounded. */
template <int PARTS, int STRIDE>
static __device__ inline void split_pair(float low, float high, uint32_t *first)
{
	if constexpr (PARTS == 1) {
		*first = bf16_pair(low, high);
	} else {
		UNROLL
		for (int i = 0; i < PARTS; i++) {
			uint32_t l = kern_f32_bits(low) & 0xffff0000u, h = kern_f32_bits(high) & 0xffff0000u;
			first[i * STRIDE] = l >> 16 | h;
			low -= kern_bits_to_f32(l); /* an infinity leaves NaN in the second part */
			high -= kern_bits_to_f32(h);
		}
	}
}

/* acc += a b, summed over all products of parts except that of two third parts, which is below
 * 2^-30 of the whole. Tensor cores truncate what is below 2^-24 of a sum's largest term, so each
 * sum starts at zero, adds the smallest products first, and is then added to acc in float32.
 * Rounded numbers do not need this. */
template <int A_PARTS, int B_PARTS>
static __device__ inline void multiply(float acc[4], const uint32_t a[A_PARTS][4],
                                       const uint32_t b[B_PARTS][2])
{
	if constexpr (A_PARTS == 1) {
		mma_bf16(acc, a[0], b[0]);
	} else {
		float sum[4] = {0, 0, 0, 0};
		UNROLL
		for (int order = A_PARTS + B_PARTS - 2; order >= 0; order--) {
			UNROLL
			for (int i = A_PARTS - 1; i >= 0; i--)
				if (order - i >= 0 && order - i < B_PARTS && order < 4)
					mma_bf16(sum, a[i], b[order - i]);
		}
		UNROLL
		for (int i = 0; i < 4; i++)
			acc[i] += sum[i];
	}
}

/* Fills A's registers from four adjacent columns of rows g and g + 8. The order of columns is
 * arbitrary if B's rows have the same order: lane t of a group has columns 4t .. 4t + 3 of 16. The
 * numbers are aligned to 16 bytes, so that one load reads them. */
template <int PARTS>
static __device__ inline void split_a(uint32_t a[PARTS][4], const float *upper, const float *lower)
{
	struct alignas(16) four {
		float v[4];
	} u = *(const struct four *)upper, l = *(const struct four *)lower;
	split_pair<PARTS, 4>(u.v[0], u.v[1], &a[0][0]);
	split_pair<PARTS, 4>(l.v[0], l.v[1], &a[0][1]);
	split_pair<PARTS, 4>(u.v[2], u.v[3], &a[0][2]);
	split_pair<PARTS, 4>(l.v[2], l.v[3], &a[0][3]);
}

/* --- quads: four adjacent elements of K or V ----------------------------- */

template <int WORDS> struct alignas(4 * WORDS) words {
	uint32_t w[WORDS];
};

/* Uses one load if the address is aligned to the size. */
template <int WORDS>
static __device__ inline struct words<WORDS> load_words(const unsigned char *at, bool aligned) {
	if (aligned)
		return *(const struct words<WORDS> *)at;
	struct words<WORDS> v;
	UNROLL
	for (int i = 0; i < WORDS; i++)
		v.w[i] = ((const uint32_t *)at)[i];
	return v;
}

/* The value of an int8 or fp8 code, exact in bfloat16. E4M3's bits are those of a float32 with an
 * exponent reduced by 120, including denormals. */
template <int TYPE>
static __device__ inline float code_value(uint32_t c)
{
	if (TYPE == KERN_I8)
		return (float)(int8_t)c;
	return kern_bits_to_f32((c & 0x80) << 24 | (c & 0x7f) << 20) * 0x1p120f;
}

/* Loads elements c .. c + 3 of a row as parts; pairs have the first element in the low half. */
template <int TYPE, int PARTS>
static __device__ inline void load_quad(uint32_t quad[PARTS][2], const unsigned char *row,
                                        uint32_t c, bool aligned)
{
	float v[4];
	if (TYPE == KERN_BF16) {
		struct words<2> x = load_words<2>(row + 2 * c, aligned);
		quad[0][0] = x.w[0];
		quad[0][1] = x.w[1];
		return;
	}
	if (TYPE == KERN_F16) {
		struct words<2> x = load_words<2>(row + 2 * c, aligned);
		UNROLL
		for (int i = 0; i < 4; i++)
			v[i] = f16_value(x.w[i / 2] >> 16 * (i % 2) & 0xffff);
	} else if (TYPE == KERN_F32) {
		struct words<4> x = load_words<4>(row + 4 * c, aligned);
		UNROLL
		for (int i = 0; i < 4; i++)
			v[i] = kern_bits_to_f32(x.w[i]);
	} else {
		uint32_t x = *(const uint32_t *)(row + c);
		UNROLL
		for (int i = 0; i < 4; i++)
			v[i] = code_value<TYPE>(x >> 8 * i & 0xff);
	}
	split_pair<PARTS, 2>(v[0], v[1], &quad[0][0]);
	split_pair<PARTS, 2>(v[2], v[3], &quad[0][1]);
}

template <int PARTS> static __device__ inline void clear_quad(uint32_t quad[PARTS][2])
{
	UNROLL
	for (int i = 0; i < PARTS; i++)
		quad[i][0] = quad[i][1] = 0;
}

/* Sets non-finite elements to 0 and marks them with a bfloat16 1 in `mark`. */
template <int PARTS>
static __device__ inline void clean_quad(uint32_t quad[PARTS][2], uint32_t mark[2])
{
	UNROLL
	for (int w = 0; w < 2; w++) {
		uint32_t x = quad[0][w], low = (x & 0x7f80u) == 0x7f80u ? 0xffffu : 0,
				 high = (x & 0x7f800000u) == 0x7f800000u ? 0xffff0000u : 0, bad = low | high;
		UNROLL
		for (int i = 0; i < PARTS; i++)
			quad[i][w] &= ~bad;
		mark[w] = bad & 0x3f803f80u;
	}
}

/* Element j of both quads, as a pair. */
static __device__ inline uint32_t pick_pair(const uint32_t x[2], const uint32_t y[2], int j)
{
	return j % 2 ? x[j / 2] >> 16 | (y[j / 2] & 0xffff0000u)
	             : (x[j / 2] & 0xffffu) | y[j / 2] << 16;
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
static __device__ inline float state_end(float max, float sum, const float *sinks, uint32_t head)
{
	if (!sinks)
		return reciprocal(sum);
	float m = state_max(max, sinks[head]), factor = state_factor(max, m);
	return factor * reciprocal(state_merge(sum, factor, 1, state_factor(sinks[head], m)));
}

/* Turns non-finite values into NaN, because whether a visible infinity of V gives infinity or NaN
 * depends on the order of work. No zero is negative. */
static __device__ inline float state_result(float value, float end)
{
	return isfinite(value) ? value * end + 0.0f : NAN;
}

/* --- merging states that blocks have written ----------------------------- */

enum { CHUNK = 256, RUN = 8 * CHUNK, MERGE_THREADS = 128 };

struct attention_args {
	const struct kern_batch *batch;
	struct kern_kv_layer kv;
	struct kern_tensor out, q;
	const float *sinks; /* or NULL */
	/* with units: (rows, heads, units, state_ld); else per block the merged runs of its vectors */
	float *states;
	uint32_t heads, group, window, out_dim;
	float scale;
	int rows;       /* enum kern_rows */
	uint32_t tiles; /* largest number */
	/* positions per state that blocks write, CHUNK or RUN; 0: blocks do everything */
	uint32_t unit;
	uint32_t units, slots; /* most units of a row; blocks that divide them */
	bool aligned;          /* KV is aligned to four elements */
	/* spans with so many vectors of a KV head are plan_attention_wide's; 0: none */
	uint32_t wide_from;
};

static __device__ inline const struct kern_span *batch_spans(const struct kern_batch *b, int rows,
                                                             uint32_t *ret_spans)
{
	*ret_spans = rows == KERN_ROWS_ALL ? b->spans : b->tail_spans;
	return (const struct kern_span *)batch_words(b, rows == KERN_ROWS_ALL ? b->span : b->tail_span);
}

static __host__ __device__ inline uint32_t round_up(uint32_t n, uint32_t to)
{
	return (n + to - 1) / to * to;
}

/* Tiles of `size` vectors are numbered: those of span i start at an upper bound of the tiles of all
 * earlier spans, so some numbers are unused. Whether this one is the span's, and at which of its
 * vectors it begins. */
static __device__ inline bool span_has_tile(const struct kern_span *span, uint32_t i,
                                            uint32_t group, uint32_t size, uint32_t number,
                                            uint32_t *ret_begin)
{
	uint32_t all = span[i].rows * group,
			 before = (uint32_t)((uint64_t)span[i].row * group / size) + i;
	*ret_begin = (number - before) * size;
	return number >= before && number - before < round_up(all, size) / size;
}

/* Most tiles for the planned rows and spans. */
static inline size_t most_tiles(const struct plan *p, const struct attention_args *a, uint32_t size)
{
	return (size_t)plan_rows(p) * a->group / size + p->spans;
}

/* attention_wide.cu: plans attention of prompts (attention_wide.h) and sets a->wide_from, if there
 * is a kernel for it. */
void plan_attention_wide(struct plan *p, struct attention_args *a);
/* Whether it is used also where that does not pay. */
static inline bool plan_wide_always(const struct plan *p)
{
	return p->dev->wide_always || cuda_wgmma() > 1;
}

/* a state in memory: values, largest score, sum */
static __host__ __device__ inline uint32_t state_ld(uint32_t out_dim)
{
	return round_up(out_dim + 2, 4);
}

static __device__ inline uint32_t first_seen(uint32_t position, uint32_t window)
{
	return window && position + 1 > window ? position + 1 - window : 0;
}

/* State for one column: the largest score, the sum, and the column's value. */
struct column_state {
	float max, sum, value;
};

static __device__ inline void add_state(struct column_state *to, struct column_state s)
{
	float max = state_max(to->max, s.max), kept = state_factor(to->max, max),
		  added = state_factor(s.max, max);
	*to = column_state{max, state_merge(to->sum, kept, s.sum, added),
	                   state_merge(to->value, kept, s.value, added)};
}

/* Merges the states of units first .. last into runs, and those into one, in the same order as a
 * block for its tile. Reads several at once; missing ones are empty. */
static __device__ inline struct column_state merge_units(const struct attention_args &a,
                                                         const float *states, uint32_t first,
                                                         uint32_t last, uint32_t column)
{
	enum { AT_ONCE = RUN / CHUNK };
	const struct column_state empty = {-INFINITY, 0, 0};
	struct column_state all = empty, run = empty;
	uint32_t ld = state_ld(a.out_dim);
	for (uint32_t base = first / AT_ONCE * AT_ONCE; base <= last; base += AT_ONCE) {
		struct column_state part[AT_ONCE];
		UNROLL
		for (uint32_t i = 0; i < AT_ONCE; i++) {
			part[i] = empty;
			if (base + i < first || base + i > last)
				continue;
			const float *s = states + (size_t)(base + i - first) * ld;
			part[i] = column_state{s[a.out_dim], s[a.out_dim + 1], s[column]};
		}
		UNROLL
		for (uint32_t i = 0; i < AT_ONCE; i++) {
			add_state(&run, part[i]);
			if (a.unit == CHUNK && i + 1 < AT_ONCE)
				continue;
			add_state(&all, run);
			run = empty;
		}
	}
	return all;
}

/* One block per row and head. */
static __device__ inline void merge_row(const struct attention_args &a, struct block_place at)
{
	uint32_t row = at.x, head = at.y, spans, *position = (uint32_t *)shared_memory();
	const struct kern_span *span = batch_spans(a.batch, a.rows, &spans);
	if (row >= batch_rows(a.batch, a.rows))
		return;
	for (uint32_t i = threadIdx.x; i < spans; i += MERGE_THREADS)
		if (row >= span[i].row && row - span[i].row < span[i].rows)
			*position = span[i].position + row - span[i].row;
	__syncthreads();
	uint32_t first = first_seen(*position, a.window) / a.unit, last = *position / a.unit;
	const float *states = a.states + ((size_t)row * a.heads + head) * a.units * state_ld(a.out_dim);
	for (uint32_t c = threadIdx.x; c < a.out_dim; c += MERGE_THREADS) {
		struct column_state s = merge_units(a, states, first, last, c);
		tensor_put(a.out, row, head * a.out_dim + c,
		           state_result(s.value, state_end(s.max, s.sum, a.sinks, head)));
	}
}

#endif
