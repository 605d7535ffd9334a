/* attention_wide.h - attention of prompts, with the bits of attention.cu: for KV in bfloat16,
 * vectors and weights rounded to it, heads of 64 or 128. What attention_wide.cu (mma.sync) and
 * attention_wgmma.cu (wgmma) share: tiles, stages, weights, states.
 *
 * A tile is 128 vectors of one span, 16 for each of 8 warps, which share what is loaded: K, then
 * V, of 64 positions at a time (a stage) come into a ring in shared memory while earlier ones are
 * multiplied. attention.cu loads K and V once for 32 vectors; there a long prompt is limited by
 * the L2 cache. A warp has all scores of a chunk in registers, turns them into weights, which are
 * already where the tensor cores want them, and multiplies these by V.
 *
 * Why the bits are those of attention.cu: each product of a vector and a row of K or V is one of
 * the same 16 that are summed at once, and sums are added in the same order: columns of K and
 * positions of V ascending, 16 at a time; weights of a chunk as if by lanes that have every 32nd
 * position, then across these lanes; states of chunks, then of runs. Positions that are left out
 * here and not there, or the reverse, have weight 0.
 *
 * Spans with few vectors are left to attention.cu, whose launch follows. */
#ifndef CUDA_ATTENTION_WIDE_H
#define CUDA_ATTENTION_WIDE_H

#include "kernels/cuda/attention.h"
#include "kernels/cuda/kv.h"

enum { WARPS = 8, THREADS = WARPS * WARP };
static const uint32_t VECTORS = 16 * WARPS;
static const uint32_t LEAST = VECTORS / 2; /* vectors of a span */
static const uint32_t STAGE = 64;          /* positions */
static const uint32_t PARTS = CHUNK / STAGE;
static const uint32_t PIECE = 16; /* bytes that are loaded as one */

/* In shared memory, of the current tile. */
struct wide_tile {
	struct kern_span span;
	uint32_t table; /* of the span's blocks, in words of the batch */
	/* its vectors, within the span's; 0: no such tile */
	uint32_t begin, vectors;
	/* positions that any vector sees; that all see */
	uint32_t see_first, see_last, all_first, all_last;
	int bad; /* some stage had elements of V that are not finite */
};

/* A thread's place, and what belongs to its two vectors, which are rows g and g + 8 of its warp's
 * (mma_bf16). */
struct wide_thread {
	uint32_t warp, lane, g, t;
	uint32_t first[2], last[2]; /* positions that the vector sees; first > last: no vector */
	/* positions that any of the warp's vectors sees */
	uint32_t warp_first, warp_last;
	float max[2], sum[2], run_max[2], run_sum[2];
};

/* Which of 16 dimensions or positions are lane t's of a group, in the order of its registers.
 * QUADS: 4t, 4t+1, 4t+2, 4t+3. PAIRS, as wgmma reads B: 2t, 2t+1, 2t+8, 2t+9. */
enum wide_order { QUADS, PAIRS };

template <enum wide_order ORDER> static __device__ inline uint32_t place_of(uint32_t t, uint32_t i)
{
	return ORDER == QUADS ? 4 * t + i : 2 * t + i % 2 + 8 * (i / 2);
}

/* --- tiles --------------------------------------------------------------- */

static __device__ void find_tile(const struct attention_args &a, uint32_t number,
                                 struct wide_tile &tile)
{
	uint32_t spans;
	const struct kern_span *span = batch_spans(a.batch, a.rows, &spans);
	if (threadIdx.x == 0)
		tile.vectors = 0;
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < spans; i += THREADS) {
		uint32_t begin, all = span[i].rows * a.group;
		if (all < a.wide_from || !span_has_tile(span, i, a.group, VECTORS, number, &begin))
			continue;
		uint32_t vectors = all - begin < VECTORS ? all - begin : VECTORS,
				 seen_from = span[i].position + begin / a.group,
				 seen_to = span[i].position + (begin + vectors - 1) / a.group;
		tile = wide_tile{span[i],
		                 a.batch->table + span[i].table,
		                 begin,
		                 vectors,
		                 first_seen(seen_from, a.window),
		                 seen_to,
		                 first_seen(seen_to, a.window),
		                 seen_from,
		                 0};
	}
	__syncthreads();
}

static __device__ struct wide_thread thread_of(const struct attention_args &a,
                                               const struct wide_tile &tile)
{
	struct wide_thread me = {threadIdx.x / WARP, threadIdx.x % WARP};
	uint32_t warp_begin = tile.begin + 16 * me.warp, warp_end = warp_begin + 15;
	me.g = me.lane / 4;
	me.t = me.lane % 4;
	UNROLL
	for (int h = 0; h < 2; h++) {
		uint32_t v = 16 * me.warp + me.g + 8 * h,
				 position = tile.span.position + (tile.begin + v) / a.group;
		bool there = v < tile.vectors;
		me.first[h] = there ? first_seen(position, a.window) : 1;
		me.last[h] = there ? position : 0;
	}
	if (warp_end >= tile.begin + tile.vectors)
		warp_end = tile.begin + tile.vectors - 1;
	me.warp_first = 1;
	me.warp_last = 0;
	if (16 * me.warp < tile.vectors) {
		me.warp_first = first_seen(tile.span.position + warp_begin / a.group, a.window);
		me.warp_last = tile.span.position + warp_end / a.group;
	}
	return me;
}

/* The row and the head of a thread's vector h. */
static __device__ inline void find_vector(const struct attention_args &a,
                                          const struct wide_tile &tile,
                                          const struct wide_thread &me, int h, uint32_t *ret_row,
                                          uint32_t *ret_head)
{
	uint32_t v = tile.begin + 16 * me.warp + me.g + 8 * h;
	*ret_row = tile.span.row + v / a.group;
	*ret_head = blockIdx.y * a.group + v % a.group;
}

/* Stores the thread's elements of its vectors as registers of A: 16 columns, and then 16 others. */
template <int DIM, enum wide_order ORDER>
static __device__ inline void load_vectors(const struct attention_args &a,
                                           const struct wide_tile &tile,
                                           const struct wide_thread &me, uint32_t (*q)[WARP][4])
{
	UNROLL
	for (int h = 0; h < 2; h++) {
		uint32_t row, head;
		find_vector(a, tile, me, h, &row, &head);
		for (uint32_t k = 0; k < DIM / 16; k++) {
			float x[4] = {0, 0, 0, 0};
			UNROLL
			for (int e = 0; e < 4; e++)
				if (me.first[h] <= me.last[h])
					x[e] = tensor_get(a.q, row, head * DIM + 16 * k + place_of<ORDER>(me.t, e));
			q[k][me.lane][h] = bf16_pair(x[0], x[1]);
			q[k][me.lane][2 + h] = bf16_pair(x[2], x[3]);
		}
	}
}

/* --- stages -------------------------------------------------------------- */

static __device__ inline uint32_t first_part(const struct wide_tile &tile, uint32_t chunk)
{
	uint32_t see = tile.see_first / STAGE;
	return chunk * PARTS > see ? chunk * PARTS : see;
}

static __device__ inline uint32_t last_part(const struct wide_tile &tile, uint32_t chunk)
{
	uint32_t see = tile.see_last / STAGE;
	return chunk * PARTS + PARTS - 1 < see ? chunk * PARTS + PARTS - 1 : see;
}

/* Whether all vectors see all positions of a part. */
static __device__ inline bool all_see(const struct wide_tile &tile, uint32_t part)
{
	return part * STAGE >= tile.all_first && part * STAGE + STAGE - 1 <= tile.all_last;
}

/* Where a position's row of K or V begins in the pool. */
template <int DIM>
static __device__ inline const unsigned char *row_of(const struct attention_args &a,
                                                     const struct wide_tile &tile, bool of_v,
                                                     uint32_t p)
{
	return (const unsigned char *)a.kv.base.v +
	       batch_words(a.batch, tile.table)[p / a.kv.block_tokens] * a.kv.block_stride_bytes +
	       kv_shape_of(a.kv).plane_bytes * (2 * blockIdx.y + of_v) +
	       p % a.kv.block_tokens * (DIM * 2);
}

/* A thread's pieces of a stage that LOADERS threads load: COUNT pieces of one column, ROWS rows
 * apart. A warp has pieces of ALL_ROWS rows: WARP_ROWS neighbours, those ROWS rows on, and so
 * on. */
template <int DIM, int LOADERS> struct stage_share {
	enum {
		PIECES = DIM * 2 / (int)PIECE,
		ROWS = LOADERS / PIECES,
		COUNT = (int)STAGE / ROWS,
		WARP_ROWS = (int)WARP / PIECES,
		ALL_ROWS = COUNT * WARP_ROWS
	};
	uint32_t warp, row, piece;
};

template <int DIM, int LOADERS>
static __device__ inline struct stage_share<DIM, LOADERS> share_of(void) {
	constexpr uint32_t PIECES = stage_share<DIM, LOADERS>::PIECES;
	uint32_t thread = threadIdx.x % LOADERS;
	return stage_share<DIM, LOADERS>{thread / WARP, thread / PIECES, thread % PIECES};
}

/* The stages of a tile in order: K of a chunk's parts, V of the same, the next chunk. */
struct stage_walk {
	uint32_t part; /* STAGE positions, counted from the context's start */
	bool of_v;
	bool over;
};

static __device__ inline struct stage_walk walk_begin(const struct wide_tile &tile)
{
	return stage_walk{tile.see_first / STAGE, false, false};
}

static __device__ inline void walk_on(const struct wide_tile &tile, struct stage_walk *w)
{
	uint32_t chunk = w->part / PARTS;
	if (w->part != last_part(tile, chunk))
		w->part++;
	else if (!w->of_v)
		*w = stage_walk{first_part(tile, chunk), true, false};
	else if (w->part != tile.see_last / STAGE)
		*w = stage_walk{w->part + 1, false, false};
	else
		w->over = true;
}

/* In shared memory: where the rows of K that a warp loads begin in the pool, of a chunk's parts. */
template <int DIM, int LOADERS> struct stage_rows {
	uint64_t of[LOADERS / WARP][PARTS * stage_share<DIM, LOADERS>::ALL_ROWS];
};

template <int DIM, int LOADERS>
static __device__ inline void find_rows(const struct attention_args &a,
                                        const struct wide_tile &tile, uint32_t chunk,
                                        struct stage_rows<DIM, LOADERS> &rows)
{
	typedef struct stage_share<DIM, LOADERS> share;
	uint32_t warp = share_of<DIM, LOADERS>().warp, lane = threadIdx.x % WARP;
	__syncwarp(); /* the rows before are no longer read */
	UNROLL
	for (uint32_t i = lane; i < PARTS * share::ALL_ROWS; i += WARP) {
		uint32_t p = chunk * CHUNK + i / share::WARP_ROWS * share::ROWS + warp * share::WARP_ROWS +
		             i % share::WARP_ROWS;
		rows.of[warp][i] = p >= tile.see_first && p <= tile.see_last
		                       ? (uint64_t)row_of<DIM>(a, tile, false, p)
		                       : a.kv.base.v;
	}
	__syncwarp();
}

/* Starts copying a thread's pieces of the next stage, the first to `to`, each `step` bytes after
 * the one before. What no vector sees becomes zeros and is not read: its block may be another
 * sequence's. */
template <int DIM, int LOADERS>
static __device__ inline void load_stage(const struct attention_args &a,
                                         const struct wide_tile &tile, struct stage_walk *w,
                                         struct stage_rows<DIM, LOADERS> &rows, unsigned char *to,
                                         uint32_t step)
{
	typedef struct stage_share<DIM, LOADERS> share;
	const struct stage_share<DIM, LOADERS> mine = share_of<DIM, LOADERS>();
	uint32_t chunk = w->part / PARTS, seen = tile.see_last - tile.see_first,
			 from = w->part * STAGE + mine.row - tile.see_first;
	uint64_t row[share::COUNT], column = mine.piece * PIECE;
	if (!w->of_v && w->part == first_part(tile, chunk))
		find_rows<DIM, LOADERS>(a, tile, chunk, rows);
	if (w->of_v)
		column += kv_shape_of(a.kv).plane_bytes;
	UNROLL
	for (uint32_t i = 0; i < share::COUNT; i++)
		row[i] = rows.of[mine.warp][w->part % PARTS * share::ALL_ROWS + i * share::WARP_ROWS +
		                            mine.row % share::WARP_ROWS];
	UNROLL
	for (uint32_t i = 0; i < share::COUNT; i++)
		copy_async_16(to + i * step, (const unsigned char *)(row[i] + column),
		              from + i * share::ROWS <= seen);
	walk_on(tile, w);
}

/* Sets elements of V among a thread's pieces (load_stage) that are not finite to 0; its copies are
 * done. Needed only for what not all vectors see: elsewhere the results of all are not finite. */
template <int DIM, int LOADERS>
static __device__ void clean_stage(struct wide_tile &tile, unsigned char *to, uint32_t step)
{
	for (uint32_t i = 0; i < stage_share<DIM, LOADERS>::COUNT; i++) {
		uint32_t *x = (uint32_t *)(to + i * step);
		UNROLL
		for (uint32_t j = 0; j < PIECE / 4; j++) {
			uint32_t low = (x[j] & 0x7f80u) == 0x7f80u ? 0xffffu : 0,
					 high = (x[j] & 0x7f800000u) == 0x7f800000u ? 0xffff0000u : 0;
			x[j] &= ~(low | high);
			if (low | high)
				tile.bad = 1;
		}
	}
}

/* --- scores and weights -------------------------------------------------- */

/* The scores of a chunk by parts: [8 n / 2 + 2 h + e] is vector h's of position 16 (n / 2) + place
 * 2 (n % 2) + e of the thread, so that weights of 16 positions lie as A wants them. */
struct scores {
	float of[PARTS][STAGE / 2];
};

/* Scales products of a part, and hides positions that the vector does not see. */
template <enum wide_order ORDER>
static __device__ inline void finish_scores(const struct attention_args &a,
                                            const struct wide_tile &tile,
                                            const struct wide_thread &me, uint32_t part,
                                            float (&of)[STAGE / 2])
{
	bool all = all_see(tile, part);
	UNROLL
	for (uint32_t i = 0; i < STAGE / 2; i++)
		of[i] *= a.scale;
	if (all)
		return;
	UNROLL
	for (uint32_t i = 0; i < STAGE / 2; i++) {
		uint32_t n = i / 4, h = i / 2 % 2,
				 p = part * STAGE + 16 * (n / 2) + place_of<ORDER>(me.t, 2 * (n % 2) + i % 2);
		of[i] = p >= me.first[h] && p <= me.last[h] ? of[i] : -INFINITY;
	}
}

static __device__ inline void hide_scores(float (&of)[STAGE / 2])
{
	UNROLL
	for (uint32_t i = 0; i < STAGE / 2; i++)
		of[i] = -INFINITY;
}

/* The sum of a chunk's weights over the lanes of a group. lane: the thread's sums of positions that
 * are equal within 32, [2 (n % 4) + e]. Adds what is 16, 8, 4, 2, 1 positions apart. */
template <enum wide_order ORDER> static __device__ inline float sum_lanes(const float lane[8])
{
	constexpr int N = ORDER == QUADS ? 4 : 2;
	float sum[4];
	UNROLL
	for (int i = 0; i < 4; i++)
		sum[i] = lane[i] + lane[i + 4];
	UNROLL
	for (int i = 0; i < 4 - N; i++)
		sum[i] += sum[i + 2];
	UNROLL
	for (int i = 0; i < N; i++) {
		sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], 2);
		sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], 1);
	}
	UNROLL
	for (int i = 0; i < N - 2; i++)
		sum[i] += sum[i + 2];
	return sum[0] + sum[1];
}

/* Weights as registers of A: [n][h]. Merges the chunk's largest score and sum into the run's. */
template <enum wide_order ORDER>
static __device__ inline void make_weights(struct wide_thread &me, const struct scores &score,
                                           bool fresh, uint32_t weight[CHUNK / 8][2], float kept[2],
                                           float added[2])
{
	UNROLL
	for (int h = 0; h < 2; h++) {
		float max = -INFINITY, lane[8] = {};
		UNROLL
		for (uint32_t i = 0; i < CHUNK / 4; i++)
			max = state_max(max,
			                score.of[i / (STAGE / 4)][i % (STAGE / 4) / 2 * 4 + 2 * h + i % 2]);
		max = state_max(max, __shfl_xor_sync(ALL_LANES, max, 1));
		max = state_max(max, __shfl_xor_sync(ALL_LANES, max, 2));
		float base = max == -INFINITY ? 0.0f : max;
		UNROLL
		for (uint32_t n = 0; n < CHUNK / 8; n++) {
			float w[2];
			UNROLL
			for (int e = 0; e < 2; e++) {
				w[e] = expf(score.of[n / (STAGE / 8)][n % (STAGE / 8) * 4 + 2 * h + e] - base);
				lane[n % 4 * 2 + e] += w[e];
			}
			weight[n][h] = bf16_pair(w[0], w[1]);
		}
		float sum = sum_lanes<ORDER>(lane), before = fresh ? -INFINITY : me.max[h],
			  m = state_max(before, max);
		kept[h] = state_factor(before, m);
		added[h] = state_factor(max, m);
		me.sum[h] = state_merge(fresh ? 0 : me.sum[h], kept[h], sum, added[h]);
		me.max[h] = m;
	}
}

/* --- values -------------------------------------------------------------- */

/* Value 4 j + 2 h + e of a thread is vector h's of column 8 j + 2 t + e. The run's state has them
 * in shared memory, [DIM / 2][THREADS]. */

template <int DIM>
static __device__ inline void merge_values(float (*value)[THREADS], bool fresh, const float kept[2],
                                           const float (&acc)[DIM / 2], const float added[2])
{
	UNROLL
	for (int i = 0; i < DIM / 2; i++) {
		float *v = &value[i][threadIdx.x];
		*v = state_merge(fresh ? 0 : *v, kept[i / 2 % 2], acc[i], added[i / 2 % 2]);
	}
}

/* Sets values of vectors that see elements of V which clean_stage has removed to NaN, which they
 * stay. Reads V again: this is rare. */
template <int DIM>
static __device__ void mark_values(const struct attention_args &a, const struct wide_tile &tile,
                                   const struct wide_thread &me, float (*value)[THREADS],
                                   uint32_t chunk)
{
	for (uint32_t part = first_part(tile, chunk); part <= last_part(tile, chunk); part++)
		for (uint32_t p = part * STAGE; p < (part + 1) * STAGE && !all_see(tile, part); p++)
			for (int i = 0; i < DIM / 2; i++) {
				int h = i / 2 % 2;
				if (p < me.first[h] || p > me.last[h])
					continue;
				const uint16_t *row = (const uint16_t *)row_of<DIM>(a, tile, true, p);
				if ((row[i / 4 * 8 + 2 * me.t + i % 2] & 0x7f80) == 0x7f80)
					value[i][threadIdx.x] = NAN;
			}
}

/* Merges the run's state into that of the earlier runs, in memory of the block; the last run leaves
 * the result in the thread's own. */
template <int DIM>
static __device__ inline void merge_run(const struct attention_args &a, struct wide_thread &me,
                                        float (*value)[THREADS], bool fresh, bool is_last)
{
	float kept[2], added[2],
		*runs = a.states + (size_t)(blockIdx.y * gridDim.x + blockIdx.x) * (DIM / 2) * THREADS +
	            threadIdx.x;
	UNROLL
	for (int h = 0; h < 2; h++) {
		float before = fresh ? -INFINITY : me.run_max[h], max = state_max(before, me.max[h]);
		kept[h] = state_factor(before, max);
		added[h] = state_factor(me.max[h], max);
		me.sum[h] = me.run_sum[h] = state_merge(fresh ? 0 : me.run_sum[h], kept[h], me.sum[h],
		                                        added[h]);
		me.max[h] = me.run_max[h] = max;
	}
	for (int i = 0; i < DIM / 2; i++) {
		float *v = &value[i][threadIdx.x];
		float merged = state_merge(fresh ? 0 : runs[(size_t)i * THREADS], kept[i / 2 % 2], *v,
		                           added[i / 2 % 2]);
		*(is_last ? v : &runs[(size_t)i * THREADS]) = merged;
	}
}

/* Whether a chunk's state is the first of its run, of those that the tile sees. */
static __device__ inline bool begins_run(const struct wide_tile &tile, uint32_t chunk)
{
	return chunk == tile.see_first / CHUNK || chunk % (RUN / CHUNK) == 0;
}

/* Merges the run if the chunk is its last, and there is another. */
template <int DIM>
static __device__ inline void end_chunk(const struct attention_args &a,
                                        const struct wide_tile &tile, struct wide_thread &me,
                                        float (*value)[THREADS], uint32_t chunk)
{
	uint32_t first = tile.see_first / RUN, last = tile.see_last / RUN, run = chunk / (RUN / CHUNK);
	bool is_last = chunk == tile.see_last / CHUNK;
	if (first != last && (is_last || chunk % (RUN / CHUNK) == RUN / CHUNK - 1))
		merge_run<DIM>(a, me, value, run == first, is_last);
}

template <int DIM>
static __device__ inline void put_results(const struct attention_args &a,
                                          const struct wide_tile &tile,
                                          const struct wide_thread &me, float (*value)[THREADS])
{
	UNROLL
	for (int h = 0; h < 2; h++) {
		uint32_t row, head;
		if (me.first[h] > me.last[h])
			continue;
		find_vector(a, tile, me, h, &row, &head);
		float end = state_end(me.max[h], me.sum[h], a.sinks, head);
		for (int i = 0; i < DIM / 4; i++) {
			int at = i / 2 * 4 + 2 * h + i % 2;
			tensor_put(a.out, row, head * DIM + i / 2 * 8 + 2 * me.t + i % 2,
			           state_result(value[at][threadIdx.x], end));
		}
	}
}

/* --- planning ------------------------------------------------------------ */

/* The kernel for heads of `dim`. */
struct wide_attention {
	const void *kernel;
	const char *name;
	size_t shared_bytes;
};
struct wide_attention attention_wgmma_of(uint32_t dim);

#endif
