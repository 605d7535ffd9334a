/* linear_mma.cu - products on tensor cores by mma.sync (linear.h): one kernel for few rows of x
 * and one for many, for each class of weights.
 *
 * A warp has two panels of the weight and one tile or several tiles of x. With at most
 * APART_ROWS_MAX planned rows, the warps of a block divide a pair of panels: each sums every n-th
 * segment, and their sums are added in the order of segments. With more rows a warp sums all
 * segments. */
#include "kernels/cuda/linear.h"
#include "kernels/cuda/record.h"

#include <stddef.h>

/* --- a lane's activations ------------------------------------------------- */

template <int TILES> struct lane_inputs {
	/* of each tile, the row of its column in struct ready, beyond the last row that one; the largest
	 * part of its step 0, in units of 16 bytes */
	uint32_t row[TILES], at[TILES];
	uint32_t tiles; /* number of tiles with rows; the same for all lanes */
};

template <int TILES>
static __device__ __forceinline__ void find_inputs(const struct product_args &a,
                                                   const struct task &t,
                                                   struct lane_inputs<TILES> *ret)
{
	uint32_t lane = threadIdx.x % WARP;
	ret->tiles = (t.rows + TILE_ROWS - 1) / TILE_ROWS;
	UNROLL
	for (uint32_t tile = 0; tile < TILES; tile++) {
		uint32_t at = tile * TILE_ROWS + lane / 4, last = t.rows - 1,
				 row = t.of->input * a.ready.rows + input_row(a, t.first + (at < last ? at : last));
		ret->row[tile] = row;
		ret->at[tile] = row / TILE_ROWS * a.ready.steps * a.ready.parts * WARP +
		                4 * (row % TILE_ROWS) + lane % 4;
	}
}

/* A part of a step of a tile: b[0..1] of the first 16 columns, b[2..3] of the others. */
template <int TILES>
static __device__ __forceinline__ void load_inputs(uint32_t b[4], const struct product_args &a,
                                                   const struct lane_inputs<TILES> &x, int tile,
                                                   uint32_t step, int part)
{
	load_words4(b, a.ready.data +
	                   16 * ((size_t)x.at[tile] + (step * a.ready.parts + (uint32_t)part) * WARP));
}

/* --- sums ------------------------------------------------------------------ */

/* Adds a step to a tile of both panels. b: the smallest part of x; larger ones are loaded. */
template <int CODES, int TILES>
static __device__ __forceinline__ void add_tile(float acc[PANELS][TILES][4],
                                                const struct product_args &a, int type,
                                                const struct weight_record r[PANELS],
                                                const uint32_t w[PANELS][2][4], uint32_t b[4],
                                                const struct lane_inputs<TILES> &x, int tile,
                                                uint32_t step)
{
	/* of each 16 values, if they have a scale of their own */
	constexpr int SUMS = CODES == CODES_Q6_K ? 2 : 1;
	float sum[PANELS][SUMS][4] = {}, sums[2] = {0, 0};
	NO_UNROLL
	for (int part = (int)a.ready.parts - 1;; part--) {
		UNROLL
		for (int panel = 0; panel < PANELS; panel++)
			UNROLL
		for (int j = 0; j < 2; j++)
			mma_bf16(sum[panel][j % SUMS], w[panel][j], b + 2 * j);
		if (!part)
			break;
		load_inputs(b, a, x, tile, step, part - 1);
	}
	if (CODES == CODES_NIBBLES && has_offset(type)) {
		/* from the lanes that have the columns of this lane's results */
		uint32_t lane = threadIdx.x % WARP;
		float own = a.ready.sums[(size_t)x.row[tile] * a.ready.steps + step];
		sums[0] = __shfl_sync(ALL_LANES, own, lane % 4 * 8);
		sums[1] = __shfl_sync(ALL_LANES, own, lane % 4 * 8 + 4);
	}
	UNROLL
	for (int panel = 0; panel < PANELS; panel++)
		UNROLL
	for (int j = 0; j < SUMS; j++)
		add_sum<CODES>(acc[panel][tile], type, row_scales_of<CODES>(r[panel], type, j),
		               sum[panel][j], sums);
}

/* The same for the 16 columns of a record of larger numbers: one sum over all parts of both. */
template <int TILES>
static __device__ __forceinline__ void add_float_tile(float acc[PANELS][TILES][4],
                                                      const struct product_args &a,
                                                      const uint32_t w[PANELS][2][4], uint32_t b[4],
                                                      const struct lane_inputs<TILES> &x, int tile,
                                                      uint32_t step, uint32_t half)
{
	float sum[PANELS][4] = {};
	NO_UNROLL
	for (int part = (int)a.ready.parts - 1;; part--) {
		const uint32_t of[2] = {half ? b[2] : b[0], half ? b[3] : b[1]};
		UNROLL
		for (int panel = 0; panel < PANELS; panel++)
			mma_bf16(sum[panel], w[panel][0], of);
		if (!part)
			break;
		load_inputs(b, a, x, tile, step, part - 1);
	}
	UNROLL
	for (int panel = 0; panel < PANELS; panel++)
		UNROLL
	for (int i = 0; i < 4; i++)
		acc[panel][tile][i] += sum[panel][i];
}

/* Adds record `index` of both panels to all tiles, whose activations are loaded some tiles at once.
 * Of x's parts, and a float's, the smallest come first. */
template <int CODES, int TILES>
static __device__ __forceinline__ void add_record(float acc[PANELS][TILES][4],
                                                  const struct product_args &a, int type,
                                                  const struct weight_record r[PANELS],
                                                  const struct lane_inputs<TILES> &x,
                                                  uint32_t index)
{
	constexpr uint32_t EACH = STEP_VALUES / record_values<CODES>;
	constexpr int AT_ONCE = TILES < 4 ? TILES : 4;
	uint32_t step = index / EACH, w[PANELS][2][4];
	if constexpr (CODES != CODES_FLOAT) {
		UNROLL
		for (int panel = 0; panel < PANELS; panel++)
			unpack_codes<CODES>(r[panel], type, w[panel]);
	}
	UNROLL
	for (int first = 0; first < TILES; first += AT_ONCE) {
		if ((uint32_t)first >= x.tiles)
			break;
		uint32_t b[AT_ONCE][4];
		UNROLL
		for (int i = 0; i < AT_ONCE; i++)
			load_inputs(b[i], a, x, first + i, step, (int)a.ready.parts - 1);
		NO_UNROLL
		for (int part = CODES == CODES_FLOAT ? float_parts(type) - 1 : 0; part >= 0; part--) {
			if constexpr (CODES == CODES_FLOAT) {
				UNROLL
				for (int panel = 0; panel < PANELS; panel++)
					unpack_part(r[panel], type, part, w[panel][0]);
			}
			UNROLL
			for (int i = 0; i < AT_ONCE; i++) {
				if ((uint32_t)(first + i) >= x.tiles)
					continue;
				uint32_t own[4] = {b[i][0], b[i][1], b[i][2], b[i][3]};
				if constexpr (CODES == CODES_FLOAT)
					add_float_tile(acc, a, w, own, x, first + i, step, index % EACH);
				else
					add_tile<CODES>(acc, a, type, r, w, own, x, first + i, step);
			}
		}
	}
}

/* acc: the sum over a segment, for two panels of the weight. Records are loaded some steps ahead;
 * loads beyond the end repeat the last record. */
template <int CODES, int TILES>
static __device__ __forceinline__ void sum_segment(float acc[PANELS][TILES][4],
                                                   const struct product_args &a,
                                                   const struct task &t, uint32_t pair,
                                                   uint32_t segment,
                                                   const struct lane_inputs<TILES> &x)
{
	/* many tiles take long, and many registers, as do parts and offsets: load only one record ahead */
	constexpr uint32_t AHEAD = TILES > FEW_TILES || CODES == CODES_FLOAT || CODES == CODES_NIBBLES
	                               ? 1
	                               : 2,
					   EACH = STEP_VALUES / record_values<CODES>;
	const struct weight_view &v = t.of->w;
	const int type = v.type;
	uint32_t lane = threadIdx.x % WARP, k = v.k, panels = (v.n + PANEL_ROWS - 1) / PANEL_ROWS,
			 from = segment_begin(*t.of, segment) * EACH,
			 to = segment_begin(*t.of, segment + 1) * EACH;
	/* the last step of a row may have one of two records */
	if (EACH > 1 && to * record_values<CODES> >= k + record_values<CODES>)
		to--;
	/* the last pair may have one panel: then the second repeats the first, and is discarded */
	const struct panel panel[PANELS] = {
		panel_of(v, t.data, PANELS * pair, lane),
		panel_of(v, t.data, PANELS * pair + (PANELS * pair + 1 < panels), lane)};
	struct weight_record ahead[AHEAD][PANELS];
	UNROLL
	for (uint32_t i = 0; i < AHEAD; i++)
		for (int p = 0; p < PANELS; p++)
			load_record<CODES>(ahead[i][p], panel[p], type, from + i < to ? from + i : to - 1, k,
			                   lane);
	UNROLL
	for (uint32_t i = 0; i < PANELS * TILES * 4; i++)
		acc[i / (TILES * 4)][i / 4 % TILES][i % 4] = 0;
	for (uint32_t at = from; at < to; at++) {
		struct weight_record now[PANELS];
		UNROLL
		for (int p = 0; p < PANELS; p++) {
			now[p] = ahead[0][p];
			for (uint32_t i = 0; i + 1 < AHEAD; i++)
				ahead[i][p] = ahead[i + 1][p];
			load_record<CODES>(ahead[AHEAD - 1][p], panel[p], type,
			                   at + AHEAD < to ? at + AHEAD : to - 1, k, lane);
		}
		add_record<CODES, TILES>(acc, a, type, now, x, at);
	}
}

/* --- a block --------------------------------------------------------------- */

/* What a warp sums: segments `first`, first + each, ... of a pair of panels, which `each` warps
 * divide. */
struct warp_part {
	uint32_t pair, first, each;
};

static __device__ __forceinline__ struct warp_part warp_part_of(const struct product_args &a,
                                                                const struct task &t)
{
	uint32_t warp = threadIdx.x / WARP, each = warps_each(*t.of, a.together);
	return warp_part{t.block * (a.warps / each) + warp / each, warp % each, each};
}

/* Adds up the sums of the warps that divide a pair of panels, in the order of their segments, into
 * the first one's. */
static __device__ __forceinline__ void add_parts(float *total, const struct warp_part &of,
                                                 uint32_t results)
{
	uint32_t threads = blockDim.x, first = threadIdx.x - of.first * WARP;
	for (uint32_t i = of.first; i < results; i += of.each) {
		float sum = total[i * threads + first];
		for (uint32_t w = 1; w < of.each; w++)
			sum += total[i * threads + first + w * WARP];
		total[i * threads + first] = sum;
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

/* The warps that divide a pair of panels divide its results, too. */
template <int TILES>
static __device__ __forceinline__ void put_results(const struct product_args &a,
                                                   const struct task &t, const float *total,
                                                   const struct warp_part &of)
{
	uint32_t threads = blockDim.x, first = threadIdx.x - of.first * WARP;
	for (uint32_t i = of.first; i < TILES * 2; i += of.each) {
		uint32_t tile = i / 2, side = i % 2;
		float v[PANELS][2];
		UNROLL
		for (uint32_t j = 0; j < PANELS * 2; j++)
			v[j / 2][j % 2] =
				total[((j / 2 * TILES + tile) * 4 + j % 2 * 2 + side) * threads + first];
		put_row(a, t, of.pair, tile * TILE_ROWS + threadIdx.x % WARP % 4 * 2 + side, v);
	}
}

/* In shared memory: each thread's sums, (PANELS, TILES, 4, threads). */
template <int CODES, int TILES>
static __device__ __forceinline__ void do_task(const struct product_args &a, const struct task &t)
{
	constexpr uint32_t RESULTS = PANELS * TILES * 4;
	float *total = (float *)shared_memory();
	struct warp_part of = warp_part_of(a, t);
	bool works = of.pair < panel_pairs_of(t.of->w.n);
	struct lane_inputs<TILES> x;
	find_inputs(a, t, &x);
	for (uint32_t s = of.first; s < t.of->segments; s += of.each) {
		if (works) {
			float acc[PANELS][TILES][4];
			sum_segment<CODES, TILES>(acc, a, t, of.pair, s, x);
			UNROLL
			for (uint32_t i = 0; i < RESULTS; i++) {
				float *own = &total[i * blockDim.x + threadIdx.x],
					  sum = acc[i / (TILES * 4)][i / 4 % TILES][i % 4];
				*own = of.first ? sum : (s ? *own : 0.0f) + sum;
			}
		}
		if (of.each == 1)
			continue;
		__syncthreads();
		if (works)
			add_parts(total, of, RESULTS);
		__syncthreads();
	}
	if (works)
		put_results<TILES>(a, t, total, of);
}

/* What a warp prefetches of a panel while the kernel before may still run. All blocks that are on
 * an H100 together: at most 17 MB, what it reads in 5 us. */
enum { FETCH_BYTES = 4096 };

/* Brings what this warp will read first of the weight into the L2 cache. For a block that still
 * waits for its input. */
static __device__ inline void fetch_weights(const struct product_args &a, const struct task &t)
{
	enum { SECTOR_BYTES = 32 }; /* what a prefetch fetches at least */
	struct weight_layout l = weight_layout_of(t.of->w.type);
	struct warp_part part = warp_part_of(a, t);
	uint32_t panels = (t.of->w.n + PANEL_ROWS - 1) / PANEL_ROWS, first = PANELS * part.pair,
			 records = STEP_VALUES / l.values;
	size_t from = (size_t)(segment_begin(*t.of, part.first) * records / l.records) * l.block_bytes,
		   to = (size_t)((segment_begin(*t.of, part.first + 1) * records + l.records - 1) /
	                     l.records) *
	            l.block_bytes;
	if (to > t.of->w.ld) /* the last step may have fewer records */
		to = t.of->w.ld;
	if (to > from + FETCH_BYTES)
		to = from + FETCH_BYTES;
	for (uint32_t panel = first; panel < first + PANELS && panel < panels; panel++)
		for (size_t at = from + threadIdx.x % WARP * SECTOR_BYTES; at < to;
		     at += WARP * SECTOR_BYTES)
			prefetch_l2(t.data + panel * t.of->w.ld + at);
}

template <int CODES, int TILES>
static __device__ __forceinline__ void products(const struct product_args &a)
{
	struct task t;
	bool experts = a.chosen.groups != NULL, /* whose groups the kernels before find */
		works = !experts && task_find(a, PRODUCT_MMA, &t);
	if (KERNELS_OVERLAP && works && !t.first && t.of->w.type != WEIGHT_BF16_ROWS)
		fetch_weights(a, t);
	grid_wait();
	if (experts)
		works = task_find(a, PRODUCT_MMA, &t);
	if (works)
		do_task<CODES, TILES>(a, t);
}

/* --- the kernels ----------------------------------------------------------- */

#define PRODUCT_KERNELS(NAME, CODES)                                           \
	KERNEL_EARLY(product_few_##NAME, FEW_WARPS_MAX *WARP, struct product_args) \
	{                                                                          \
		products<CODES, FEW_TILES>(a);                                         \
	}                                                                          \
	KERNEL_EARLY(product_many_##NAME, MANY_WARPS *WARP, struct product_args)   \
	{                                                                          \
		products<CODES, MANY_TILES>(a);                                        \
	}
PRODUCT_KERNELS(bf16, CODES_BF16)
PRODUCT_KERNELS(float, CODES_FLOAT)
PRODUCT_KERNELS(bytes, CODES_BYTES)
PRODUCT_KERNELS(nibbles, CODES_NIBBLES)
PRODUCT_KERNELS(q6_k, CODES_Q6_K)

struct product_kernel mma_kernel(int type, bool few)
{
#define NAMED(NAME, WARPS, TILES)                                                  \
	{                                                                              \
		(const void *)NAME, #NAME, WARPS, PANELS *TILES * 4 * WARP * sizeof(float) \
	}
#define BOTH(NAME)                                              \
	{                                                           \
		NAMED(product_many_##NAME, MANY_WARPS, MANY_TILES),     \
			NAMED(product_few_##NAME, FEW_WARPS_MAX, FEW_TILES) \
	}
	static const struct product_kernel all[CODES][2] = {BOTH(bf16), BOTH(float), BOTH(bytes),
	                                                    BOTH(nibbles), BOTH(q6_k)};
	return all[codes_of(type)][few];
}
