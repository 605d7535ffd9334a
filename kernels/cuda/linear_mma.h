/* linear_mma.h - products on tensor cores: what warps do for a segment, and what a block does for
 * few rows, in linear_mma.cu's kernels and in chains (chain.cu).
 *
 * The weight is always the A operand (16 of its rows), and activations the B operand (8 rows as 8
 * columns), so the same instructions in the same order compute a result for any number of rows.
 * Tensor cores sum 32 values; they truncate rather than round, so that sum is scaled and added to a
 * float32 sum, which limits the loss. Of three parts of activations the smallest are added
 * first. */
#ifndef CUDA_LINEAR_MMA_H
#define CUDA_LINEAR_MMA_H

#include "kernels/cuda/linear.h"
#include "kernels/cuda/record.h"

/* A lane's part of the activations of several tiles. */
template <int TILES> struct lane_inputs {
	/* the largest part of step 0 of its column's row; NULL: no row */
	const unsigned char *at[TILES];
	const float *sums[TILES];
	uint32_t tiles; /* number of tiles with rows; the same for all lanes */
};

template <int TILES>
static __device__ __forceinline__ void find_inputs(const struct product_args &a,
                                                   const struct task &t, uint32_t first,
                                                   uint32_t parts, struct lane_inputs<TILES> *ret)
{
	uint32_t lane = threadIdx.x % WARP;
	ret->tiles = first < t.rows ? (t.rows - first + TILE_ROWS - 1) / TILE_ROWS : 0;
	UNROLL
	for (uint32_t tile = 0; tile < TILES; tile++) {
		uint32_t at = first + tile * TILE_ROWS + lane / 4;
		ret->at[tile] = NULL;
		ret->sums[tile] = NULL;
		if (at >= t.rows)
			continue;
		size_t row = (size_t)t.of->input * a.ready.rows + input_row(a, t.first + at);
		ret->at[tile] = a.ready.parts + row / TILE_ROWS * a.ready.steps * parts * 512 +
		                16 * (4 * (row % TILE_ROWS) + lane % 4);
		ret->sums[tile] = a.ready.sums ? a.ready.sums + row * a.ready.steps : NULL;
	}
}

template <int PARTS>
static __device__ __forceinline__ void load_inputs(uint32_t b[PARTS][4], const unsigned char *at,
                                                   uint32_t step)
{
	for (int part = 0; part < PARTS; part++) {
		if (at)
			load_words4(b[part], at + ((size_t)step * PARTS + part) * 512);
		else
			b[part][0] = b[part][1] = b[part][2] = b[part][3] = 0;
	}
}

/* What sums of a panel's rows lane / 4 and lane / 4 + 8 are multiplied by, and what sums of x. */
struct row_scales {
	float scale[2], offset[2];
};

/* j: the tile of q6_k, which has one scale per tile of 16 values; else 0. */
template <int TYPE>
static __device__ __forceinline__ struct row_scales row_scales_of(const struct weight_record &r,
                                                                  int j)
{
	struct row_scales s = {};
	for (int i = 0; i < 2; i++) {
		if constexpr (!is_bf16<TYPE>)
			s.scale[i] = record_scale<TYPE>(r, i, j);
		if constexpr (has_offset<TYPE>)
			s.offset[i] = record_offset<TYPE>(r, i);
	}
	return s;
}

/* acc += what tensor cores have summed for 8 rows of x, of which this lane has two, with `sums`. */
template <int TYPE>
static __device__ __forceinline__ void add_sum(float acc[4], const struct row_scales &s,
                                               const float sum[4], const float sums[2])
{
	for (int i = 0; i < 4; i++) {
		if constexpr (is_bf16<TYPE>)
			acc[i] += sum[i];
		else
			acc[i] = fmaf(s.scale[i / 2], sum[i], acc[i]);
		if constexpr (has_offset<TYPE>)
			acc[i] = fmaf(s.offset[i / 2], sums[i % 2], acc[i]);
	}
}

/* Adds a step to a tile of a panel. */
template <int TYPE, int PARTS>
static __device__ __forceinline__ void add_tile(float acc[4], const struct weight_record &r,
                                                const uint32_t a[2][4], const uint32_t b[PARTS][4],
                                                const float sums[2])
{
	if constexpr (TYPE == KERN_Q6_K) {
		for (int j = 0; j < 2; j++) {
			float sum[4] = {0, 0, 0, 0};
			for (int part = PARTS - 1; part >= 0; part--)
				mma_bf16(sum, a[j], b[part] + 2 * j);
			add_sum<TYPE>(acc, row_scales_of<TYPE>(r, j), sum, sums);
		}
		return;
	}
	float sum[4] = {0, 0, 0, 0};
	for (int part = PARTS - 1; part >= 0; part--)
		for (int j = 0; j < 2; j++)
			mma_bf16(sum, a[j], b[part] + 2 * j);
	add_sum<TYPE>(acc, row_scales_of<TYPE>(r, 0), sum, sums);
}

template <int TYPE, int PARTS, int TILES>
static __device__ __forceinline__ void add_step(float acc[PANELS][TILES][4],
                                                const struct weight_record r[PANELS],
                                                const struct lane_inputs<TILES> &x, uint32_t step)
{
	/* loads all tiles before the first is used; few rows have few tiles */
	constexpr bool at_once = TILES > SPLIT_TILES;
	uint32_t a[PANELS][2][4], b[TILES][PARTS][4], lane = threadIdx.x % WARP;
	UNROLL
	for (uint32_t tile = 0; at_once && tile < TILES; tile++)
		load_inputs<PARTS>(b[tile], x.at[tile], step);
	UNROLL
	for (int panel = 0; panel < PANELS; panel++)
		unpack_codes<TYPE>(r[panel], a[panel]);
	UNROLL
	for (uint32_t tile = 0; tile < TILES; tile++) {
		if (tile >= x.tiles)
			continue;
		float sums[2] = {0, 0};
		if (!at_once)
			load_inputs<PARTS>(b[tile], x.at[tile], step);
		if constexpr (has_offset<TYPE>) {
			/* from the lanes that have the columns of this lane's results */
			float own = x.at[tile] ? x.sums[tile][step] : 0;
			sums[0] = __shfl_sync(ALL_LANES, own, lane % 4 * 8);
			sums[1] = __shfl_sync(ALL_LANES, own, lane % 4 * 8 + 4);
		}
		UNROLL
		for (int panel = 0; panel < PANELS; panel++)
			add_tile<TYPE, PARTS>(acc[panel][tile], r[panel], a[panel], b[tile], sums);
	}
}

/* acc: the sum over a segment, for two panels of the weight. Records are loaded some steps ahead;
 * loads beyond the end repeat the last record. */
template <int TYPE, int PARTS, int TILES>
static __device__ __forceinline__ void sum_segment(float acc[PANELS][TILES][4],
                                                   const struct task &t, uint32_t pair,
                                                   uint32_t segment,
                                                   const struct lane_inputs<TILES> &x)
{
	uint32_t lane = threadIdx.x % WARP, from = segment_begin(*t.of, segment),
			 to = segment_begin(*t.of, segment + 1);
	uint32_t k = t.of->w.k, panels = (t.of->w.n + PANEL_ROWS - 1) / PANEL_ROWS;
	/* the last pair may have one panel: then the second repeats the first, and is discarded */
	const struct panel panel[PANELS] = {
		panel_of<TYPE>(t.of->w, t.data, PANELS * pair, lane),
		panel_of<TYPE>(t.of->w, t.data, PANELS * pair + (PANELS * pair + 1 < panels), lane)};
	/* many tiles take long, and both cases take many registers: load only one step ahead */
	constexpr uint32_t AHEAD = TILES > SPLIT_TILES || (is_k_type<TYPE> && has_offset<TYPE>) ? 1 : 2;
	struct weight_record ahead[AHEAD][PANELS];
	UNROLL
	for (uint32_t i = 0; i < AHEAD; i++)
		for (int p = 0; p < PANELS; p++)
			load_record<TYPE>(ahead[i][p], panel[p], from + i < to ? from + i : to - 1, k, lane);
	UNROLL
	for (uint32_t i = 0; i < PANELS * TILES * 4; i++)
		acc[i / (TILES * 4)][i / 4 % TILES][i % 4] = 0;
	/* reconverge lanes with and without rows: all are needed below */
	__syncwarp();
	for (uint32_t step = from; step < to; step++) {
		struct weight_record now[PANELS];
		UNROLL
		for (int p = 0; p < PANELS; p++) {
			now[p] = ahead[0][p];
			for (uint32_t i = 0; i + 1 < AHEAD; i++)
				ahead[i][p] = ahead[i + 1][p];
			load_record<TYPE>(ahead[AHEAD - 1][p], panel[p],
			                  step + AHEAD < to ? step + AHEAD : to - 1, k, lane);
		}
		add_step<TYPE, PARTS, TILES>(acc, now, x, step);
	}
}

/* Stores the results of two panels for one row of x; a lane has rows lane / 4 and lane / 4 + 8 of
 * each panel. */
static __device__ __forceinline__ void put_row(const struct product_args &a, const struct task &t,
                                               uint32_t pair, uint32_t at, const float v[PANELS][2])
{
	if (at >= t.rows)
		return;
	int e = a.ready.exponents[(size_t)t.of->input * a.ready.rows + input_row(a, t.first + at)];
	uint32_t row = output_row(a, t.first + at), n = t.of->w.n;
	UNROLL
	for (uint32_t i = 0; i < PANELS * 2; i++) {
		uint32_t column = (pair * PANELS + i / 2) * PANEL_ROWS + threadIdx.x % WARP / 4 + i % 2 * 8;
		if (column < n)
			task_put(t, row, column, times_power(v[i / 2][i % 2], e));
	}
}

/* --- few rows: a warp for each segment ----------------------------------- */

enum { SPLIT_RESULTS = PANELS * SPLIT_TILES * 4 }; /* per lane */

/* Adds the segments' sums and stores the results. part: each warp's sums, (warps, PANELS,
 * SPLIT_TILES, 4, lanes). */
static __device__ __forceinline__ void put_sums(const struct product_args &a, const struct task &t,
                                                const float *part)
{
	uint32_t segments = t.of->segments, each = a.warps / segments, lane = threadIdx.x % WARP;
	for (uint32_t i = threadIdx.x / WARP; i < each * SPLIT_TILES * 2; i += a.warps) {
		uint32_t of = i / (SPLIT_TILES * 2), tile = i / 2 % SPLIT_TILES, side = i % 2;
		float sum[PANELS][2] = {};
		for (uint32_t s = 0; s < segments; s++)
			UNROLL
		for (uint32_t j = 0; j < PANELS * 2; j++)
			sum[j / 2][j % 2] += part[((of * segments + s) * SPLIT_RESULTS +
			                           (j / 2 * SPLIT_TILES + tile) * 4 + j % 2 * 2 + side) *
			                              WARP +
			                          lane];
		put_row(a, t, t.block * each + of, tile * TILE_ROWS + lane % 4 * 2 + side, sum);
	}
}

/* What a warp of a split block sums: a segment of a pair of panels. */
struct warp_part {
	uint32_t pair, segment;
};

static __device__ __forceinline__ struct warp_part warp_part_of(const struct product_args &a,
                                                                const struct task &t)
{
	uint32_t warp = threadIdx.x / WARP, segments = t.of->segments;
	return warp_part{t.block * (a.warps / segments) + warp / segments, warp % segments};
}

/* Brings what this warp will read of the weight into the L2 cache: of each panel the first `most`
 * bytes. For a block that still waits for its input. */
template <int TYPE>
static __device__ inline void fetch_weights(const struct product_args &a, const struct task &t,
                                            size_t most)
{
	enum { SECTOR_BYTES = 32 }; /* what a prefetch fetches at least */
	constexpr struct weight_layout l = weight_layout_of(TYPE);
	constexpr uint32_t step_records = STEP_VALUES / l.values;
	struct warp_part part = warp_part_of(a, t);
	uint32_t panels = (t.of->w.n + PANEL_ROWS - 1) / PANEL_ROWS, first = PANELS * part.pair;
	size_t from = (size_t)(segment_begin(*t.of, part.segment) * step_records / l.records) *
	              l.block_bytes,
		   to = (size_t)((segment_begin(*t.of, part.segment + 1) * step_records + l.records - 1) /
	                     l.records) *
	            l.block_bytes;
	if (to > t.of->w.ld) /* the last step may have fewer records */
		to = t.of->w.ld;
	if (to > from + most)
		to = from + most;
	for (uint32_t panel = first; panel < first + PANELS && panel < panels; panel++)
		for (size_t at = from + threadIdx.x % WARP * SECTOR_BYTES; at < to;
		     at += WARP * SECTOR_BYTES)
			prefetch_l2(t.data + panel * t.of->w.ld + at);
}

/* The work of a block for few rows. */
template <int TYPE, int PARTS>
static __device__ __forceinline__ void do_split(const struct product_args &a, const struct task &t)
{
	float *part = (float *)shared_memory();
	struct warp_part of = warp_part_of(a, t);
	if (of.pair < panel_pairs_of(t.of->w.n)) {
		float acc[PANELS][SPLIT_TILES][4];
		struct lane_inputs<SPLIT_TILES> x;
		find_inputs(a, t, 0, PARTS, &x);
		sum_segment<TYPE, PARTS>(acc, t, of.pair, of.segment, x);
		UNROLL
		for (uint32_t i = 0; i < SPLIT_RESULTS; i++)
			part[(threadIdx.x / WARP * SPLIT_RESULTS + i) * WARP + threadIdx.x % WARP] =
				acc[i / (SPLIT_TILES * 4)][i / 4 % SPLIT_TILES][i % 4];
	}
	__syncthreads();
	put_sums(a, t, part);
}

/* DO(TYPE) for each type whose weights are stored in panels. */
#define FOR_PANEL_TYPES(DO) \
	DO(BF16)                \
	DO(Q8_0) DO(Q4_0) DO(Q4_1) DO(Q6_K) DO(Q5_0) DO(Q5_1) DO(Q4_K) DO(Q5_K) DO(MXFP4) DO(E4M3)

#endif
