/* attention.cu - softmax attention over the paged KV, with the same arithmetic for prompts and
 * decoding.
 *
 * A tile is 16 or 32 vectors of one span: the heads of one KV head's group for one row, then for
 * the next row. A block multiplies a tile's vectors by K of a chunk (256 positions, aligned to
 * 256), turns all scores of the chunk into weights, multiplies these by V, and obtains the chunk's
 * state (attention.h). Warps divide the chunk's positions for scores, and the columns of V for
 * values.
 *
 * Chunk states are merged in ascending order into a run's state (8 chunks), and run states into the
 * vector's. One block may do all of that for its tile, or blocks may write the states of single
 * chunks or runs, which another kernel merges: the bits are the same, because the same states are
 * merged in the same order. The vector's place in the tile, the tile's size and the other vectors
 * do not matter either, because rows of the tensor cores' A operand are independent. Positions that
 * a vector must not see have weight 0, and V is made finite there; a visible non-finite V gives NaN
 * (clean_quad). */
#include "kernels/cuda/attention.h"
#include "kernels/cuda/kv.h"

enum {
	WARPS = 4,
	THREADS = WARPS * WARP,
	SCORES_AT_ONCE = 32, /* positions that a warp has in registers */
	COLUMNS = 32,        /* columns of V that a warp has in registers */
	/* quarter warps read four columns of two rows each, from different banks */
	SCORE_LD = CHUNK + 16
};

template <int TILES> struct alignas(16) attention_shared {
	/* rows of the chunk's positions; NULL: no vector sees them */
	const unsigned char *k[CHUNK];
	float k_scale[CHUNK], v_scale[CHUNK];
	float score[16 * TILES][SCORE_LD]; /* then weights */
	/* positions that vectors see; first > last: no such vector */
	uint32_t first[16 * TILES], last[16 * TILES];
	uint32_t row[16 * TILES], head[16 * TILES];
	float *state[16 * TILES]; /* where to write the state; NULL: nowhere */
	/* of the current run; of the earlier ones */
	float max[16 * TILES], sum[16 * TILES], run_max[16 * TILES], run_sum[16 * TILES];
	float kept[16 * TILES], added[16 * TILES]; /* factors of a merge */
	struct kern_span span;
	/* the tile's vectors, within the span's; 0: no such tile */
	uint32_t begin, vectors;
	/* positions that any vector sees; that all see */
	uint32_t see_first, see_last, all_first, all_last;
};

/* A thread's place in its warp and in the tensor cores' registers (mma_bf16). */
struct lane_place {
	uint32_t warp, lane, g, t;
};

static __device__ inline struct lane_place place_of_thread(void)
{
	uint32_t lane = threadIdx.x % WARP;
	return lane_place{threadIdx.x / WARP, lane, lane / 4, lane % 4};
}

/* Dynamic shared memory: struct attention_shared, then the vectors as rows of A, then the values of
 * the run's state. */
template <int TILES> static __device__ inline struct attention_shared<TILES> &shared_part(void) {
	return *(struct attention_shared<TILES> *)shared_memory();
}

template <int TILES>
static __device__ inline float *shared_q(void)
{
	return (float *)(shared_memory() + sizeof(struct attention_shared<TILES>));
}

template <int TILES> static __device__ inline float *shared_values(const struct attention_args &a)
{
	return shared_q<TILES>() + 16 * TILES * round_up(a.kv.head_dim, 16);
}

template <int TILES> static size_t shared_bytes(const struct attention_args *a)
{
	return sizeof(struct attention_shared<TILES>) +
	       16 * TILES * sizeof(float) *
	           (round_up(a->kv.head_dim, 16) + round_up(a->out_dim, COLUMNS));
}

/* --- tiles --------------------------------------------------------------- */

/* Finds the span of a tile number. */
template <int TILES>
static __device__ void find_tile(const struct attention_args &a, struct attention_shared<TILES> &s,
                                 uint32_t number)
{
	uint32_t spans;
	const struct kern_span *span = batch_spans(a.batch, a.rows, &spans);
	if (threadIdx.x == 0)
		s.vectors = 0;
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < spans; i += THREADS) {
		uint32_t begin, all = span[i].rows * a.group;
		if ((a.wide_from && all >= a.wide_from) ||
		    !span_has_tile(span, i, a.group, 16 * TILES, number, &begin))
			continue;
		s.span = span[i];
		s.begin = begin;
		s.vectors = all - s.begin < 16 * TILES ? all - s.begin : 16 * TILES;
	}
	__syncthreads();
}

/* Loads the vectors and what they see. Layout of vectors, for each 16 columns and 16 vectors: all
 * lanes' four columns of row g, then of row g + 8. */
template <int TILES>
static __device__ void load_tile(const struct attention_args &a, struct attention_shared<TILES> &s)
{
	uint32_t dim = a.kv.head_dim, v = threadIdx.x;
	if (v < 16 * TILES) {
		uint32_t i = (s.begin + v) / a.group, position = s.span.position + i;
		s.row[v] = s.span.row + i;
		s.head[v] = blockIdx.y * a.group + (s.begin + v) % a.group;
		s.first[v] = v < s.vectors ? first_seen(position, a.window) : 1;
		s.last[v] = v < s.vectors ? position : 0;
		if (v == 0) {
			s.see_first = s.first[v];
			s.all_last = position;
		}
		if (v + 1 == s.vectors) {
			s.all_first = s.first[v];
			s.see_last = position;
		}
	}
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < round_up(dim, 16) * 4 * TILES; i += THREADS) {
		uint32_t lane = i % WARP, vector = i / 64 % TILES * 16 + i / WARP % 2 * 8 + lane / 4,
				 c = i / 64 / TILES * 16 + lane % 4 * 4;
		for (uint32_t e = 0; e < 4; e++)
			shared_q<TILES>()[4 * i + e] = vector < s.vectors && c < dim
			                                   ? tensor_get(a.q, s.row[vector],
			                                                s.head[vector] * dim + c + e)
			                                   : 0;
	}
	__syncthreads();
}

/* --- a chunk ------------------------------------------------------------- */

/* Positions of a chunk that the tile needs; begin is a multiple of SCORES_AT_ONCE or the chunk's
 * start. */
struct chunk_part {
	uint32_t chunk, begin, end;
};

template <int TILES>
static __device__ inline struct chunk_part chunk_range(const struct attention_shared<TILES> &s,
                                                       uint32_t chunk)
{
	uint32_t first = chunk * CHUNK, see = s.see_first / SCORES_AT_ONCE * SCORES_AT_ONCE;
	return chunk_part{first, first < see ? see : first,
	                  s.see_last - first < CHUNK ? s.see_last + 1 : first + CHUNK};
}

template <int TILES>
static __device__ void find_rows(const struct attention_args &a, struct attention_shared<TILES> &s,
                                 struct chunk_part r)
{
	const struct kern_kv_layer &kv = a.kv;
	struct kv_shape shape = kv_shape_of(kv);
	const uint32_t *table = batch_words(a.batch, a.batch->table) + s.span.table;
	size_t plane = shape.plane_bytes * (kv.latent ? blockIdx.y : 2 * blockIdx.y);
	for (uint32_t p = r.begin + threadIdx.x; p < round_up(r.end, SCORES_AT_ONCE); p += THREADS) {
		uint32_t i = p - r.chunk, at = p % kv.block_tokens;
		s.k[i] = NULL;
		if (p >= r.end)
			continue;
		const unsigned char *base = (const unsigned char *)kv.base.v +
		                            table[p / kv.block_tokens] * kv.block_stride_bytes + plane;
		s.k[i] = base + at * shape.row_bytes;
		if (!shape.scaled)
			continue;
		const unsigned char *scale = base + shape.row_bytes * kv.block_tokens + 4 * (size_t)at;
		s.k_scale[i] = *(const float *)scale;
		s.v_scale[i] = *(const float *)(scale + (kv.latent ? 0 : shape.plane_bytes));
	}
	__syncthreads();
}

static __device__ inline bool is_scaled(int type)
{
	return type == KERN_I8 || type == KERN_F8;
}

/* Stores -infinity for positions that the vector does not see; 0 where there is no vector. */
template <int TYPE, int TILES>
static __device__ inline void put_score(const struct attention_args &a,
                                        struct attention_shared<TILES> &s, uint32_t v,
                                        uint32_t chunk, uint32_t i, float product)
{
	if (is_scaled(TYPE))
		product *= s.k_scale[i];
	float hidden = v < s.vectors ? -INFINITY : 0;
	s.score[v][i] = chunk + i >= s.first[v] && chunk + i <= s.last[v] ? product * a.scale : hidden;
}

template <int TYPE, bool ROUNDED, int TILES>
static __device__ void make_scores(const struct attention_args &a,
                                   struct attention_shared<TILES> &s, struct chunk_part r)
{
	enum {
		Q_PARTS = ROUNDED ? 1 : 3,
		K_PARTS = kv_parts<TYPE, ROUNDED>::N,
		N = SCORES_AT_ONCE / 8
	};
	struct lane_place at = place_of_thread();
	for (uint32_t p = r.begin + SCORES_AT_ONCE * at.warp; p < r.end; p += SCORES_AT_ONCE * WARPS) {
		const unsigned char *row[N];
		float acc[TILES][N][4] = {};
		UNROLL
		for (int n = 0; n < N; n++)
			row[n] = s.k[p - r.chunk + 8 * n + at.g];
		for (uint32_t c = 0; c < a.kv.head_dim; c += 16) {
			uint32_t k[N][K_PARTS][2];
			UNROLL
			for (int n = 0; n < N; n++) {
				clear_quad<K_PARTS>(k[n]);
				if (row[n] && c + 4 * at.t < a.kv.head_dim)
					load_quad<TYPE, K_PARTS>(k[n], row[n], c + 4 * at.t, a.aligned);
			}
			UNROLL
			for (uint32_t i = 0; i < TILES; i++) {
				if (s.vectors <= 16 * i)
					continue;
				uint32_t q[Q_PARTS][4];
				const float *upper = shared_q<TILES>() + (c / 16 * TILES + i) * 256 + 4 * at.lane;
				split_a<Q_PARTS>(q, upper, upper + 128);
				UNROLL
				for (int n = 0; n < N; n++)
					multiply<Q_PARTS, K_PARTS>(acc[i][n], q, k[n]);
			}
		}
		UNROLL
		for (int i = 0; i < TILES; i++) {
			UNROLL
			for (int e = 0; e < 4 * N; e++)
				put_score<TYPE>(a, s, 16 * i + at.g + e % 4 / 2 * 8, r.chunk,
				                p - r.chunk + e / 4 * 8 + 2 * at.t + e % 2, acc[i][e / 4][e % 4]);
		}
	}
	__syncthreads();
}

/* Turns scores into weights (times V's scales) and merges the chunk's largest score and sum into
 * the run's. One vector per warp. */
template <int TYPE, int TILES>
static __device__ void make_weights(struct attention_shared<TILES> &s, struct chunk_part r,
                                    bool fresh)
{
	enum { N = CHUNK / WARP };
	struct lane_place at = place_of_thread();
	uint32_t begin = r.begin - r.chunk, end = r.end - r.chunk;
	for (uint32_t v = at.warp; v < s.vectors; v += WARPS) {
		float score[N], max = -INFINITY, sum = 0;
		UNROLL
		for (int i = 0; i < N; i++) {
			score[i] = WARP * i >= begin && WARP * i < end ? s.score[v][WARP * i + at.lane]
			                                               : -INFINITY;
			max = state_max(max, score[i]);
		}
		for (uint32_t by = WARP / 2; by; by /= 2)
			max = state_max(max, __shfl_xor_sync(ALL_LANES, max, by));
		UNROLL
		for (int i = 0; i < N; i++) {
			uint32_t p = WARP * i + at.lane;
			if (WARP * i < begin || WARP * i >= end)
				continue;
			float weight = expf(score[i] - (max == -INFINITY ? 0.0f : max));
			sum += weight;
			if (is_scaled(TYPE))
				weight = r.chunk + p >= s.first[v] && r.chunk + p <= s.last[v]
				             ? weight * s.v_scale[p]
				             : 0;
			s.score[v][p] = weight;
		}
		sum = warp_sum(sum);
		if (at.lane == 0) {
			float before = fresh ? -INFINITY : s.max[v], m = state_max(before, max);
			s.kept[v] = state_factor(before, m);
			s.added[v] = state_factor(max, m);
			s.sum[v] = state_merge(fresh ? 0 : s.sum[v], s.kept[v], sum, s.added[v]);
			s.max[v] = m;
		}
	}
	__syncthreads();
}

/* Handles non-finite elements of V that have been set to 0 where not all vectors see them: sets the
 * values of the vectors that see them to NaN. mark: a quad for each of the lane's four positions
 * from p + 4t on. */
template <int TILES>
static __device__ void mark_values(const struct attention_shared<TILES> &s, uint32_t p,
                                   const uint32_t mark[4][2], float acc[TILES][4][4])
{
	struct lane_place at = place_of_thread();
	UNROLL
	for (int i = 0; i < TILES; i++) {
		uint32_t sees[4];
		UNROLL
		for (int e = 0; e < 4; e++) {
			uint32_t v = 16 * i + at.g + e % 2 * 8, from = p + 4 * at.t + e / 2 * 2;
			sees[e] = (from >= s.first[v] && from <= s.last[v] ? 0x3f80u : 0) |
			          (from + 1 >= s.first[v] && from + 1 <= s.last[v] ? 0x3f800000u : 0);
		}
		UNROLL
		for (int j = 0; j < 4; j++) {
			uint32_t b[2] = {pick_pair(mark[0], mark[1], j), pick_pair(mark[2], mark[3], j)};
			float seen[4] = {0, 0, 0, 0};
			mma_bf16(seen, sees, b);
			UNROLL
			for (int e = 0; e < 4; e++)
				acc[i][j][e] = seen[e] > 0 ? NAN : acc[i][j][e];
		}
	}
}

/* Weights times V of the chunk for 32 columns: lane group g has columns 4g .. 4g + 3, column j in
 * acc[][j]. */
template <int TYPE, bool ROUNDED, int TILES>
static __device__ inline void chunk_values(const struct attention_args &a,
                                           const struct attention_shared<TILES> &s,
                                           struct chunk_part r, size_t v_offset, uint32_t columns,
                                           float acc[TILES][4][4])
{
	enum { P_PARTS = ROUNDED ? 1 : 3, V_PARTS = kv_parts<TYPE, ROUNDED>::N };
	struct lane_place at = place_of_thread();
	uint32_t c = columns + 4 * at.g;
	for (uint32_t p = r.begin; p < r.end; p += 16) {
		uint32_t quad[4][V_PARTS][2], i0 = p - r.chunk + 4 * at.t;
		UNROLL
		for (int i = 0; i < 4; i++) {
			clear_quad<V_PARTS>(quad[i]);
			if (s.k[i0 + i] && c < a.out_dim)
				load_quad<TYPE, V_PARTS>(quad[i], s.k[i0 + i] + v_offset, c, a.aligned);
		}
		if (!is_scaled(TYPE) && (p < s.all_first || p + 15 > s.all_last)) {
			uint32_t mark[4][2], any = 0;
			UNROLL
			for (int i = 0; i < 4; i++) {
				clean_quad<V_PARTS>(quad[i], mark[i]);
				any |= mark[i][0] | mark[i][1];
			}
			if (__any_sync(ALL_LANES, any != 0))
				mark_values<TILES>(s, p, mark, acc);
		}
		uint32_t b[4][V_PARTS][2];
		UNROLL
		for (int j = 0; j < 4; j++) {
			UNROLL
			for (int i = 0; i < V_PARTS; i++) {
				b[j][i][0] = pick_pair(quad[0][i], quad[1][i], j);
				b[j][i][1] = pick_pair(quad[2][i], quad[3][i], j);
			}
		}
		UNROLL
		for (uint32_t i = 0; i < TILES; i++) {
			if (s.vectors <= 16 * i)
				continue;
			uint32_t w[P_PARTS][4];
			split_a<P_PARTS>(w, &s.score[16 * i + at.g][i0], &s.score[16 * i + at.g + 8][i0]);
			UNROLL
			for (int j = 0; j < 4; j++)
				multiply<P_PARTS, V_PARTS>(acc[i][j], w, b[j]);
		}
	}
}

/* A value of the run's state that belongs to this thread: its place, vector and column. */
struct own_value {
	uint32_t at, vector, column;
};

template <int TILES>
static __device__ inline struct own_value own_value(struct lane_place at, uint32_t columns,
                                                    uint32_t tile, uint32_t j, uint32_t e)
{
	return {((columns / COLUMNS * TILES + tile) * 16 + 4 * j + e) * WARP + at.lane,
	        16 * tile + at.g + e / 2 * 8, columns + 8 * at.t + e % 2 * 4 + j};
}

/* Calls f for all values of the thread. */
template <int TILES, typename F> static __device__ inline void each_value(uint32_t out_dim, F f)
{
	struct lane_place at = place_of_thread();
	for (uint32_t columns = COLUMNS * at.warp; columns < out_dim; columns += COLUMNS * WARPS)
		for (uint32_t i = 0; i < 16 * TILES; i++)
			f(own_value<TILES>(at, columns, i / 16, i / 4 % 4, i % 4));
}

template <int TYPE, bool ROUNDED, int TILES>
static __device__ void make_values(const struct attention_args &a,
                                   const struct attention_shared<TILES> &s, struct chunk_part r,
                                   bool fresh)
{
	struct lane_place at = place_of_thread();
	size_t v_offset = a.kv.latent ? 0 : kv_shape_of(a.kv).plane_bytes;
	float *value = shared_values<TILES>(a);
	for (uint32_t columns = COLUMNS * at.warp; columns < a.out_dim; columns += COLUMNS * WARPS) {
		float acc[TILES][4][4] = {};
		chunk_values<TYPE, ROUNDED, TILES>(a, s, r, v_offset, columns, acc);
		UNROLL
		for (int i = 0; i < 16 * TILES; i++) {
			struct own_value o = own_value<TILES>(at, columns, i / 16, i / 4 % 4, i % 4);
			value[o.at] = state_merge(fresh ? 0 : value[o.at], s.kept[o.vector],
			                          acc[i / 16][i / 4 % 4][i % 4], s.added[o.vector]);
		}
	}
	__syncthreads();
}

/* Computes the states of positions [first, first + count), in whole chunks, for the tile's vectors;
 * results in shared memory. */
template <int TYPE, bool ROUNDED, int TILES>
static __device__ void make_state(const struct attention_args &a, struct attention_shared<TILES> &s,
                                  uint32_t first, uint32_t count)
{
	uint32_t begin = first > s.see_first ? first : s.see_first,
			 end = s.see_last - first < count ? s.see_last : first + count - 1;
	for (uint32_t chunk = begin / CHUNK; chunk <= end / CHUNK; chunk++) {
		struct chunk_part r = chunk_range(s, chunk);
		bool fresh = chunk == begin / CHUNK;
		find_rows(a, s, r);
		make_scores<TYPE, ROUNDED>(a, s, r);
		make_weights<TYPE>(s, r, fresh);
		make_values<TYPE, ROUNDED>(a, s, r, fresh);
	}
}

/* --- using states -------------------------------------------------------- */

/* Merges the run's state into that of the earlier runs, in the block's own memory; the last run
 * leaves the result in shared memory. */
template <int TILES>
static __device__ void merge_run(const struct attention_args &a, struct attention_shared<TILES> &s,
                                 bool fresh, bool is_last)
{
	uint32_t v = threadIdx.x;
	float *value = shared_values<TILES>(a),
		  *runs = a.states + (size_t)(blockIdx.y * gridDim.x + blockIdx.x) * 16 * TILES *
	                             round_up(a.out_dim, COLUMNS);
	if (v < s.vectors) {
		float before = fresh ? -INFINITY : s.run_max[v], max = state_max(before, s.max[v]);
		s.kept[v] = state_factor(before, max);
		s.added[v] = state_factor(s.max[v], max);
		s.sum[v] = s.run_sum[v] = state_merge(fresh ? 0 : s.run_sum[v], s.kept[v], s.sum[v],
		                                      s.added[v]);
		s.max[v] = s.run_max[v] = max;
	}
	__syncthreads();
	each_value<TILES>(a.out_dim, [&](struct own_value o) {
		float *to = is_last ? value : runs;
		to[o.at] = state_merge(fresh ? 0 : runs[o.at], s.kept[o.vector], value[o.at],
		                       s.added[o.vector]);
	});
	__syncthreads();
}

template <int TILES>
static __device__ void put_results(const struct attention_args &a,
                                   struct attention_shared<TILES> &s)
{
	uint32_t v = threadIdx.x;
	if (v < s.vectors)
		s.kept[v] = state_end(s.max[v], s.sum[v], a.sinks, s.head[v]);
	__syncthreads();
	each_value<TILES>(a.out_dim, [&](struct own_value o) {
		if (o.vector < s.vectors && o.column < a.out_dim)
			tensor_put(a.out, s.row[o.vector], s.head[o.vector] * a.out_dim + o.column,
			           state_result(shared_values<TILES>(a)[o.at], s.kept[o.vector]));
	});
}

/* Writes the state of a unit for the vectors that see part of it. */
template <int TILES>
static __device__ void put_states(const struct attention_args &a, struct attention_shared<TILES> &s,
                                  uint32_t unit)
{
	uint32_t v = threadIdx.x;
	if (v < 16 * TILES) {
		uint32_t from = s.first[v] / a.unit;
		s.state[v] = NULL;
		if (v < s.vectors && unit >= from && unit <= s.last[v] / a.unit) {
			s.state[v] = a.states +
			             (((size_t)s.row[v] * a.heads + s.head[v]) * a.units + unit - from) *
			                 state_ld(a.out_dim);
			s.state[v][a.out_dim] = s.max[v];
			s.state[v][a.out_dim + 1] = s.sum[v];
		}
	}
	__syncthreads();
	each_value<TILES>(a.out_dim, [&](struct own_value o) {
		if (s.state[o.vector] && o.column < a.out_dim)
			s.state[o.vector][o.column] = shared_values<TILES>(a)[o.at];
	});
}

KERNEL(attention_merge, MERGE_THREADS, struct attention_args)
{
	merge_row(a, place_in_grid());
}

/* --- kernels ------------------------------------------------------------- */

/* A block has one KV head (blockIdx.y) and either tiles with all their runs, or every a.slots-th
 * unit of a tile. */
template <int TYPE, bool ROUNDED, int TILES>
static __device__ inline void attention_body(const struct attention_args &a)
{
	struct attention_shared<TILES> &s = shared_part<TILES>();
	uint32_t positions = a.unit ? a.unit : (uint32_t)RUN;
	for (uint32_t tile = blockIdx.x / a.slots; tile < a.tiles; tile += gridDim.x / a.slots) {
		find_tile(a, s, tile);
		if (!s.vectors)
			continue;
		load_tile(a, s);
		uint32_t first = s.see_first / positions, last = s.see_last / positions;
		for (uint32_t i = first + blockIdx.x % a.slots; i <= last; i += a.slots) {
			make_state<TYPE, ROUNDED>(a, s, i * positions, positions);
			if (a.unit)
				put_states(a, s, i);
			else if (first != last)
				merge_run(a, s, i == first, i == last);
		}
		if (!a.unit)
			put_results(a, s);
		__syncthreads();
	}
}

#define ATTENTION_KERNEL(NAME, TYPE, ROUNDED, TILES) \
	KERNEL(NAME, THREADS, struct attention_args)     \
	{                                                \
		attention_body<TYPE, ROUNDED, TILES>(a);     \
	}
#define ATTENTION_KERNELS(NAME, TYPE)                  \
	ATTENTION_KERNEL(NAME##_16, TYPE, false, 1)        \
	ATTENTION_KERNEL(NAME##_32, TYPE, false, 2)        \
	ATTENTION_KERNEL(NAME##_16_rounded, TYPE, true, 1) \
	ATTENTION_KERNEL(NAME##_32_rounded, TYPE, true, 2)

ATTENTION_KERNELS(attention_f32, KERN_F32)
ATTENTION_KERNELS(attention_f16, KERN_F16)
ATTENTION_KERNELS(attention_bf16, KERN_BF16)
ATTENTION_KERNELS(attention_i8, KERN_I8)
ATTENTION_KERNELS(attention_f8, KERN_F8)

#define KERNELS_OF(NAME)                                                     \
	{                                                                        \
		{(const void *)NAME##_16, (const void *)NAME##_32},                  \
		{                                                                    \
			(const void *)NAME##_16_rounded, (const void *)NAME##_32_rounded \
		}                                                                    \
	}

/* --- planning ------------------------------------------------------------ */

/* Most units of `unit` positions that a row sees. */
static uint32_t most_units(const struct plan *p, const struct attention_args *a, uint32_t unit)
{
	uint32_t all = (p->limits->positions + unit - 1) / unit;
	uint32_t seen = a->window && a->window < p->limits->positions
	                    ? (a->window + unit - 2) / unit + 1
	                    : all;
	return seen < all ? seen : all;
}

/* The unit that blocks divide if the tiles alone are too few for the device: chunks, or runs if the
 * states of chunks would take too much memory. 0: none. */
static uint32_t choose_unit(const struct plan *p, const struct attention_args *a)
{
	const size_t states_max = (size_t)192 << 20;
	size_t row_bytes = (size_t)a->heads * state_ld(a->out_dim) * sizeof(float) * plan_rows(p);
	if (plan_wide_always(p) || most_units(p, a, CHUNK) == 1 ||
	    (size_t)plan_rows(p) * a->group / 16 * a->kv.kv_heads >=
	        2 * (size_t)p->dev->multiprocessors)
		return 0;
	return most_units(p, a, CHUNK) * row_bytes <= states_max ? CHUNK
	       : most_units(p, a, RUN) * row_bytes <= states_max ? RUN
	                                                         : 0;
}

/* The kernel for a type, with or without rounding, and `tiles` times 16 vectors. */
static const void *choose_kernel(const struct plan *p, enum kern_dtype type, uint32_t tiles)
{
	static const struct {
		enum kern_dtype type;
		const void *kernel[2][2];
	} kernels[] = {
		{KERN_F32, KERNELS_OF(attention_f32)},   {KERN_F16, KERNELS_OF(attention_f16)},
		{KERN_BF16, KERNELS_OF(attention_bf16)}, {KERN_I8, KERNELS_OF(attention_i8)},
		{KERN_F8, KERNELS_OF(attention_f8)},
	};
	uint32_t i = 0;
	while (kernels[i].type != type) /* kern_program_check has checked it */
		i++;
	return kernels[i].kernel[p->dev->bf16_activations][tiles - 1];
}

/* Plans blocks that write states, and the kernel that merges them. Slots per tile: enough to fill
 * the device several times, because batches have fewer tiles than the most. */
static void plan_units(struct plan *p, struct attention_args *a)
{
	uint32_t heads = a->kv.kv_heads;
	size_t tiles = most_tiles(p, a, 16),
		   wanted = 32 * (size_t)p->dev->multiprocessors / (tiles * heads) + 1;
	a->units = most_units(p, a, a->unit);
	a->slots = wanted < a->units ? (uint32_t)wanted : a->units;
	a->tiles = (uint32_t)tiles;
	a->states = (float *)plan_room(p, ROOM_PARTIAL,
	                               (size_t)plan_rows(p) * a->heads * a->units *
	                                   state_ld(a->out_dim) * sizeof(float));
	plan_launch(p, "attention", choose_kernel(p, a->kv.dtype, 1), a->tiles * a->slots, heads,
	            THREADS, shared_bytes<1>(a), a, sizeof *a);
	PLAN_PHASE(p, PHASE_MERGE, attention_merge, plan_rows(p), a->heads, MERGE_THREADS,
	           sizeof(uint32_t), *a);
}

/* Plans blocks that process whole tiles one after the other: as many as run at once, because each
 * has memory for merged runs. */
static void plan_tiles(struct plan *p, struct attention_args *a)
{
	uint32_t heads = a->kv.kv_heads, wide = (size_t)plan_rows(p) * a->group > 32 &&
	                                                shared_bytes<2>(a) <= (size_t)p->dev->shared_max
	                                            ? 2
	                                            : 1;
	size_t tiles = most_tiles(p, a, 16 * wide),
		   at_once = 8 * (size_t)p->dev->multiprocessors / heads + 1,
		   blocks = tiles < at_once ? tiles : at_once;
	a->slots = 1;
	a->tiles = (uint32_t)tiles;
	if (p->limits->positions > RUN)
		a->states = (float *)plan_room(p, ROOM_PARTIAL,
		                               blocks * heads * 16 * wide * round_up(a->out_dim, COLUMNS) *
		                                   sizeof(float));
	size_t shared = wide == 2 ? shared_bytes<2>(a) : shared_bytes<1>(a);
	plan_launch(p, "attention", choose_kernel(p, a->kv.dtype, wide), (uint32_t)blocks, heads,
	            THREADS, shared, a, sizeof *a);
}

void plan_attention(struct plan *p)
{
	const struct kern_op *op = p->op;
	const struct kern_kv_layer *kv = &op->attention.kv;
	struct attention_args a = {p->batch, *kv, op->attention.out, op->attention.q,
	                           (const float *)op->attention.sinks.v};
	size_t quad_bytes = kern_dtype_bytes(kv->dtype, 4);
	a.heads = op->attention.heads;
	a.group = a.heads / kv->kv_heads;
	a.window = op->attention.window;
	a.out_dim = kv->latent ? kv->latent : kv->head_dim;
	a.scale = op->attention.scale;
	a.rows = op->rows;
	a.aligned = kv->base.v % quad_bytes == 0 && kv->block_stride_bytes % quad_bytes == 0;
	if (plan_kv(p, kv) || plan_tensor(p, &a.q, (size_t)a.heads * kv->head_dim) ||
	    plan_tensor(p, &a.out, (size_t)a.heads * a.out_dim) ||
	    (a.sinks && plan_address(p, op->attention.sinks)))
		return;
	if ((uint64_t)plan_rows(p) * a.heads > INT32_MAX) {
		plan_fail(p, KERN_EINVAL, "%u rows of %u heads: more than %d in all", plan_rows(p), a.heads,
		          INT32_MAX);
		return;
	}
	if (!plan_rows(p))
		return;
	a.unit = choose_unit(p, &a);
	if (a.unit)
		plan_units(p, &a);
	else {
		plan_attention_wide(p, &a);
		plan_tiles(p, &a);
	}
}
