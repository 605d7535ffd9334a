/* attention_decode.cu - attention with any type of KV, head size, latent and activations
 * (attention.h): of rows that decode, and of prompts that attention_prefill.cu does not do.
 *
 * A tile is up to 16 or 32 vectors. A block multiplies them by K of a chunk, turns all scores of
 * the chunk into weights, multiplies these by V, and merges the chunk's state into that of the run
 * or of the unit that is written. Warps divide the chunk's positions for scores, and the columns of
 * V for values, so their number does not matter for the bits.
 *
 * A float32 number is exactly the sum of three bfloat16 numbers ("parts"): its leading 8 bits, the
 * next 8, and the rest, truncated, not rounded. A product of two parts is exact in float32, so sums
 * of all products of parts are as good as sums of float32 products. f16 has two parts; bf16 and the
 * codes of int8 and fp8 have one. With rounded activations everything has one, which is rounded. */
#include "kernels/cuda/attention.h"

enum {
	THREADS_MAX = 8 * WARP,
	VECTORS_MAX = 2 * DECODE_VECTORS,
	TILES = VECTORS_MAX / 16, /* of the tensor cores */
	AT_ONCE = 32,             /* positions that a warp has in registers */
	/* quarter warps read four columns of two rows each, from different banks */
	SCORE_LD = CHUNK + 16,
	ANY = -1 /* a type of KV that is known only when the kernel runs */
};

/* Followed by the vectors as rows of A, the values of a state, and the scores. */
struct alignas(16) decode_shared {
	struct attention_tile tile;
	/* rows of the chunk's positions; NULL: no vector sees them */
	const unsigned char *k[CHUNK];
	float k_scale[CHUNK], v_scale[CHUNK];
	/* positions that vectors see; first > last: no such vector */
	uint32_t first[VECTORS_MAX], last[VECTORS_MAX];
	struct softmax_state run[VECTORS_MAX],
		all[VECTORS_MAX];                        /* of the current run; of the earlier ones */
	float kept[VECTORS_MAX], added[VECTORS_MAX]; /* factors of a merge */
};

/* --- parts --------------------------------------------------------------- */

/* Rounds or splits two numbers into parts at first[0], first[STRIDE] ...; the first of the two goes
 * into the low halves. */
template <int PARTS, int STRIDE>
static __device__ inline void split_pair(float low, float high, uint32_t *first)
{
	if constexpr (PARTS == 1) {
		*first = bf16_pair(low, high);
	} else {
		UNROLL
		for (int i = 0; i < PARTS; i++)
			first[i * STRIDE] = take_part(&low, &high);
	}
}

/* acc += a b, summed over all products of parts except that of two third parts, which is below
 * 2^-30 of the whole; b has only `parts`. Tensor cores truncate what is below 2^-24 of a sum's
 * largest term, so each sum starts at zero, adds the smallest products first, and is then added to
 * acc in float32. Rounded numbers do not need this. */
template <int PARTS>
static __device__ inline void multiply(float acc[4], const uint32_t a[PARTS][4],
                                       const uint32_t b[PARTS][2], int parts)
{
	if constexpr (PARTS == 1) {
		mma_bf16(acc, a[0], b[0]);
	} else {
		float sum[4] = {0, 0, 0, 0};
		UNROLL
		for (int order = 2 * PARTS - 3; order >= 0; order--) {
			UNROLL
			for (int i = PARTS - 1; i >= 0; i--)
				if (order - i >= 0 && order - i < PARTS && order - i < parts)
					mma_bf16(sum, a[i], b[order - i]);
		}
		UNROLL
		for (int i = 0; i < 4; i++)
			acc[i] += sum[i];
	}
}

/* Four numbers, or four adjacent elements of K or V as they are. */
typedef struct words<4> quad;

/* Fills A's registers from four adjacent columns of rows g and g + 8. The order of columns is
 * arbitrary if B's rows have the same order: lane t of a group has columns 4t .. 4t + 3 of 16. */
template <int PARTS>
static __device__ inline void split_a(uint32_t a[PARTS][4], const float *upper, const float *lower)
{
	UNROLL
	for (int i = 0; i < 2; i++) {
		const quad q = *(const quad *)(i ? lower : upper);
		split_pair<PARTS, 4>(kern_bits_to_f32(q.w[0]), kern_bits_to_f32(q.w[1]), &a[0][i]);
		split_pair<PARTS, 4>(kern_bits_to_f32(q.w[2]), kern_bits_to_f32(q.w[3]), &a[0][2 + i]);
	}
}

/* Uses one load if the address is aligned to the size. */
template <int WORDS>
static __device__ inline void load_words(quad *q, const unsigned char *at, bool aligned)
{
	struct words<WORDS> v;
	if (aligned)
		v = *(const struct words<WORDS> *)at;
	UNROLL
	for (int i = 0; i < WORDS; i++)
		q->w[i] = aligned ? v.w[i] : ((const uint32_t *)at)[i];
}

/* Loads elements c .. c + 3 of N rows, `offset` bytes on; zeros of a row that is NULL. */
template <int N>
static __device__ inline void load_quads(quad q[N], const unsigned char *const row[N],
                                         size_t offset, uint32_t c, bool there,
                                         enum kern_dtype type, bool aligned)
{
	UNROLL
	for (int i = 0; i < N; i++) {
		q[i] = quad{};
		if (!row[i] || !there)
			continue;
		const unsigned char *at = row[i] + offset;
		if (type == KERN_BF16 || type == KERN_F16)
			load_words<2>(&q[i], at + 2 * c, aligned);
		else if (type == KERN_F32)
			load_words<4>(&q[i], at + 4 * c, aligned);
		else
			q[i].w[0] = *(const uint32_t *)(at + c);
	}
}

/* Splits a quad into parts; pairs have the first element in the low half. Codes are exact in
 * bfloat16: E4M3's bits are those of a float32 with an exponent reduced by 120, including
 * denormals. */
template <int PARTS>
static __device__ inline void split_quad(uint32_t pair[PARTS][2], const quad &q,
                                         enum kern_dtype type)
{
	if (PARTS == 1 && type == KERN_BF16) {
		pair[0][0] = q.w[0];
		pair[0][1] = q.w[1];
		return;
	}
	float v[4];
	auto each = [&](auto value) {
		UNROLL
		for (int i = 0; i < 4; i++)
			v[i] = value(q.w[i], (uint16_t)(q.w[i / 2] >> 16 * (i % 2)), q.w[0] >> 8 * i & 0xff);
	};
	switch (type) {
	case KERN_F32: each([](uint32_t w, uint16_t, uint32_t) { return kern_bits_to_f32(w); }); break;
	case KERN_F16: each([](uint32_t, uint16_t h, uint32_t) { return f16_value(h); }); break;
	case KERN_BF16: each([](uint32_t, uint16_t h, uint32_t) { return kern_bf16_to_f32(h); }); break;
	case KERN_I8: each([](uint32_t, uint16_t, uint32_t c) { return (float)(int8_t)c; }); break;
	default:
		each([](uint32_t, uint16_t, uint32_t c) {
			return kern_bits_to_f32((c & 0x80) << 24 | (c & 0x7f) << 20) * 0x1p120f;
		});
	}
	split_pair<PARTS, 2>(v[0], v[1], &pair[0][0]);
	split_pair<PARTS, 2>(v[2], v[3], &pair[0][1]);
}

/* Element j of both quads, as a pair. */
static __device__ inline uint32_t pick_pair(const uint32_t x[2], const uint32_t y[2], int j)
{
	return j % 2 ? x[j / 2] >> 16 | (y[j / 2] & 0xffff0000u)
	             : (x[j / 2] & 0xffffu) | y[j / 2] << 16;
}

/* --- a thread of a block ------------------------------------------------- */

/* TYPE: of KV, or ANY. */
template <int TYPE, bool ROUNDED> struct decode {
	enum { PARTS = ROUNDED ? 1 : 3 };
	const struct attention_args &a;
	struct decode_shared &s;
	enum kern_dtype type;
	int parts;                        /* of an element of KV, unless it is rounded */
	bool scaled;                      /* the type of KV has scales */
	float *q, *value, *score;         /* score: (vectors, SCORE_LD); then weights */
	uint32_t warp, warps, lane, g, t; /* its place in the tensor cores' registers (mma_bf16) */
	/* the current chunk: positions of it that the tile needs; begin is a multiple of AT_ONCE or the
	 * chunk's start */
	uint32_t chunk, begin, end;

	__device__ inline decode(const struct attention_args &args, unsigned char *memory)
		: a(args), s(*(struct decode_shared *)memory)
	{
		type = TYPE == ANY ? a.kv.dtype : (enum kern_dtype)TYPE;
		parts = type == KERN_F32 ? 3 : type == KERN_F16 ? 2 : 1;
		scaled = type == KERN_I8 || type == KERN_F8;
		q = (float *)(memory + sizeof s);
		value = q + a.vectors * round_up(a.kv.head_dim, 16);
		score = value + a.vectors * round_up(a.out_dim, COLUMNS);
		warp = threadIdx.x / WARP;
		warps = blockDim.x / WARP;
		lane = threadIdx.x % WARP;
		g = lane / 4;
		t = lane % 4;
	}

	/* Loads the vectors and what they see. Layout of vectors, for each 16 columns and 16 vectors:
	 * all lanes' four columns of row g, then of row g + 8. */
	__device__ inline void load_vectors()
	{
		uint32_t dim = a.kv.head_dim, tiles = a.vectors / 16, row, head;
		if (threadIdx.x < a.vectors) {
			vector_sees(a, s.tile, threadIdx.x, &s.first[threadIdx.x], &s.last[threadIdx.x]);
			s.all[threadIdx.x] = EMPTY_STATE;
		}
		for (uint32_t i = threadIdx.x; i < round_up(dim, 16) * 4 * tiles; i += blockDim.x) {
			uint32_t v = i / 64 % tiles * 16 + i / WARP % 2 * 8 + g,
					 c = i / 64 / tiles * 16 + 4 * t;
			find_vector(a, s.tile, v, &row, &head);
			for (uint32_t e = 0; e < 4; e++)
				q[4 * i + e] = v < s.tile.vectors && c < dim
				                   ? tensor_get(a.q, row, head * dim + c + e)
				                   : 0;
		}
		__syncthreads();
	}

	__device__ inline void find_rows()
	{
		const struct kv_shape shape = kv_shape_of(a.kv);
		for (uint32_t p = begin + threadIdx.x; p < round_up(end, AT_ONCE); p += blockDim.x) {
			uint32_t i = p - chunk, at = p % a.kv.block_tokens;
			s.k[i] = p < end ? kv_row(a, s.tile, false, p) : NULL;
			if (!scaled || p >= end)
				continue;
			/* after the plane's elements */
			const unsigned char *scale = s.k[i] - at * shape.row_bytes +
			                             shape.row_bytes * a.kv.block_tokens + 4 * (size_t)at;
			s.k_scale[i] = *(const float *)scale;
			s.v_scale[i] = *(const float *)(scale + (a.kv.latent ? 0 : shape.plane_bytes));
		}
		__syncthreads();
	}

	__device__ inline bool sees(uint32_t v, uint32_t p) const
	{
		return p >= s.first[v] && p <= s.last[v];
	}

	/* -infinity for positions that the vector does not see; 0 where there is no vector */
	__device__ inline void make_scores()
	{
		enum { N = AT_ONCE / 8 };
		for (uint32_t p = begin + AT_ONCE * warp; p < end; p += AT_ONCE * warps) {
			const unsigned char *row[N];
			float acc[TILES][N][4] = {};
			UNROLL
			for (int n = 0; n < N; n++)
				row[n] = s.k[p - chunk + 8 * n + g];
			for (uint32_t c = 0; c < a.kv.head_dim; c += 16) {
				quad raw[N];
				uint32_t k[N][PARTS][2];
				load_quads<N>(raw, row, 0, c + 4 * t, c + 4 * t < a.kv.head_dim, type, a.aligned);
				UNROLL
				for (int n = 0; n < N; n++)
					split_quad<PARTS>(k[n], raw[n], type);
				UNROLL
				for (uint32_t i = 0; i < TILES; i++) {
					if (s.tile.vectors <= 16 * i)
						continue;
					uint32_t own[PARTS][4];
					const float *upper = q + (c / 16 * (a.vectors / 16) + i) * 256 + 4 * lane;
					split_a<PARTS>(own, upper, upper + 128);
					UNROLL
					for (int n = 0; n < N; n++)
						multiply<PARTS>(acc[i][n], own, k[n], parts);
				}
			}
			UNROLL
			for (uint32_t i = 0; i < TILES; i++) {
				if (a.vectors <= 16 * i)
					continue;
				UNROLL
				for (uint32_t e = 0; e < 4 * N; e++) {
					uint32_t v = 16 * i + g + e % 4 / 2 * 8, at = p + e / 4 * 8 + 2 * t + e % 2;
					float x = acc[i][e / 4][e % 4] * (scaled ? s.k_scale[at - chunk] : 1);
					score[v * SCORE_LD + at - chunk] = sees(v, at)          ? x * a.scale
					                                   : v < s.tile.vectors ? -INFINITY
					                                                        : 0;
				}
			}
		}
		__syncthreads();
	}

	/* Turns scores into weights (times V's scales) and merges the chunk's largest score and sum
	 * into the run's. One vector per warp. */
	__device__ inline void make_weights()
	{
		enum { N = CHUNK / WARP };
		for (uint32_t v = warp; v < s.tile.vectors; v += warps) {
			float x[N], *own = score + v * SCORE_LD + lane, max = -INFINITY, sum = 0;
			UNROLL
			for (uint32_t i = 0; i < N; i++) {
				bool there = chunk + WARP * i >= begin && chunk + WARP * i < end;
				x[i] = there ? own[WARP * i] : -INFINITY;
				max = state_max(max, x[i]);
			}
			for (uint32_t by = WARP / 2; by; by /= 2)
				max = state_max(max, __shfl_xor_sync(ALL_LANES, max, by));
			UNROLL
			for (uint32_t i = 0; i < N; i++) {
				uint32_t p = WARP * i + lane;
				if (chunk + WARP * i < begin || chunk + WARP * i >= end)
					continue;
				float weight = expf(x[i] - (max == -INFINITY ? 0.0f : max));
				sum += weight;
				if (scaled)
					weight = sees(v, chunk + p) ? weight * s.v_scale[p] : 0;
				own[WARP * i] = weight;
			}
			sum = warp_sum(sum);
			if (lane == 0)
				state_add(&s.run[v], softmax_state{max, sum}, &s.kept[v], &s.added[v]);
		}
		__syncthreads();
	}

	/* Weights times V of the chunk for 32 columns: lane group g has columns 4g .. 4g + 3, column j
	 * in acc[][j]. */
	__device__ inline void multiply_values(size_t v_offset, uint32_t columns,
	                                       float acc[TILES][4][4])
	{
		enum { N = 4 };
		for (uint32_t p = begin; p < end; p += 16) {
			quad raw[N];
			const unsigned char *row[N];
			uint32_t pair[N][PARTS][2], b[4][PARTS][2], i0 = p - chunk + 4 * t, c = columns + 4 * g;
			UNROLL
			for (int i = 0; i < N; i++)
				row[i] = s.k[i0 + i];
			load_quads<N>(raw, row, v_offset, c, c < a.out_dim, type, a.aligned);
			UNROLL
			for (int i = 0; i < N; i++) {
				if ((p < s.tile.sees.all_first || p + 15 > s.tile.sees.all_last) &&
				    clear_unbounded<4, ROUNDED>(raw[i].w, type))
					s.tile.unbounded = 1;
				split_quad<PARTS>(pair[i], raw[i], type);
			}
			UNROLL
			for (int i = 0; i < 4 * PARTS; i++)
				UNROLL
			for (int h = 0; h < 2; h++)
				b[i % 4][i / 4][h] = pick_pair(pair[2 * h][i / 4], pair[2 * h + 1][i / 4], i % 4);
			UNROLL
			for (uint32_t i = 0; i < TILES; i++) {
				if (s.tile.vectors <= 16 * i)
					continue;
				uint32_t w[PARTS][4];
				const float *upper = score + (16 * i + g) * SCORE_LD + i0;
				split_a<PARTS>(w, upper, upper + 8 * SCORE_LD);
				UNROLL
				for (int j = 0; j < 4; j++)
					multiply<PARTS>(acc[i][j], w, b[j], parts);
			}
		}
	}

	/* Calls f(place, vector, column, i) for the thread's values of 32 columns: i is the number of
	 * the one in acc (multiply_values). */
	template <typename F> __device__ inline void each_of(uint32_t columns, F f)
	{
		UNROLL
		for (uint32_t i = 0; i < 16 * TILES; i++)
			if (i < a.vectors)
				f((columns / COLUMNS * a.vectors + i) * WARP + lane,
				  i / 16 * 16 + g + i % 4 / 2 * 8, columns + 8 * t + i % 2 * 4 + i / 4 % 4, i);
	}

	/* Calls f(place, vector, column) for all of the thread's values that there are. */
	template <typename F> __device__ inline void each_value(F f)
	{
		for (uint32_t columns = warp * COLUMNS; columns < a.out_dim; columns += warps * COLUMNS)
			each_of(columns, [&](uint32_t at, uint32_t v, uint32_t column, uint32_t) {
				if (v < s.tile.vectors && column < a.out_dim)
					f(at, v, column);
			});
	}

	__device__ inline void make_values(bool fresh)
	{
		size_t v_offset = a.kv.latent ? 0 : kv_shape_of(a.kv).plane_bytes;
		for (uint32_t columns = warp * COLUMNS; columns < a.out_dim; columns += warps * COLUMNS) {
			float acc[TILES][4][4] = {};
			multiply_values(v_offset, columns, acc);
			each_of(columns, [&](uint32_t at, uint32_t v, uint32_t, uint32_t i) {
				value[at] = state_merge(fresh ? 0 : value[at], s.kept[v],
				                        acc[i / 16][i / 4 % 4][i % 4], s.added[v]);
			});
		}
		__syncthreads();
		if (!s.tile.unbounded)
			return;
		/* Sets values of vectors that see elements of V which have been cleared to NaN, which they
		 * stay. Reads V again: this is rare. */
		each_value([&](uint32_t at, uint32_t v, uint32_t column) {
			for (uint32_t p = begin; p < end; p++)
				if (sees(v, p) && is_unbounded<ROUNDED>(s.k[p - chunk] + v_offset, column, type))
					value[at] = NAN;
		});
		__syncthreads(); /* the rows are no longer read */
	}

	/* Computes the state of chunks [first, past) for the tile's vectors; in shared memory. */
	__device__ inline void make_state(uint32_t first, uint32_t past)
	{
		const struct attention_sees &seen = s.tile.sees;
		uint32_t from = seen.first / AT_ONCE * AT_ONCE;
		if (threadIdx.x < a.vectors)
			s.run[threadIdx.x] = EMPTY_STATE;
		for (uint32_t i = first; i < past; i++) {
			chunk = i * CHUNK;
			begin = chunk < from ? from : chunk;
			end = seen.last - chunk < CHUNK ? seen.last + 1 : chunk + CHUNK;
			find_rows();
			make_scores();
			make_weights();
			make_values(i == first);
		}
	}

	/* Merges the run's state into that of the earlier runs, in the block's own memory; the last run
	 * leaves the result in shared memory. */
	__device__ inline void merge_run(bool is_first, bool is_last)
	{
		float *runs = a.runs + (size_t)blockIdx.x * a.vectors * round_up(a.out_dim, COLUMNS);
		if (threadIdx.x < s.tile.vectors)
			state_add(&s.all[threadIdx.x], s.run[threadIdx.x], &s.kept[threadIdx.x],
			          &s.added[threadIdx.x]);
		__syncthreads();
		if (is_first && is_last)
			return;
		each_value([&](uint32_t at, uint32_t v, uint32_t) {
			(is_last ? value : runs)[at] = state_merge(is_first ? 0 : runs[at], s.kept[v],
			                                           value[at], s.added[v]);
		});
		__syncthreads();
	}

	__device__ inline void put_results()
	{
		each_value([&](uint32_t at, uint32_t v, uint32_t column) {
			uint32_t row, head;
			find_vector(a, s.tile, v, &row, &head);
			tensor_put(a.out, row, head * a.out_dim + column,
			           state_result(value[at], state_end(s.all[v], a.sinks, head)));
		});
	}

	/* --- divided tiles --- */

	/* Where the state of a vector is written. */
	__device__ inline float *state_at(uint32_t unit, uint32_t v) const
	{
		return a.states +
		       (((size_t)(s.tile.item.state + unit) * a.kv.kv_heads + s.tile.head) * a.vectors +
		        v) *
		           state_ld(a.out_dim);
	}

	__device__ inline void put_state(uint32_t unit)
	{
		if (threadIdx.x < s.tile.vectors)
			*(struct softmax_state *)(state_at(unit, threadIdx.x) + a.out_dim) = s.run[threadIdx.x];
		each_value([&](uint32_t at, uint32_t v, uint32_t column) {
			state_at(unit, v)[column] = value[at];
		});
		__syncthreads();
	}

	/* Whether this was the last of the tile's items; then it sees what the others' blocks have
	 * written. */
	__device__ inline bool item_done()
	{
		__threadfence();
		__syncthreads();
		if (threadIdx.x == 0) {
			uint32_t *done = &a.list.done[s.tile.item.divided * a.kv.kv_heads + s.tile.head];
			s.tile.merges = atomicAdd(done, 1u) + 1 == s.tile.item.parts;
			if (s.tile.merges)
				*done = 0;
			__threadfence();
		}
		__syncthreads();
		return s.tile.merges;
	}

	/* Merges the states of the tile's units into runs, and those into one, in the same order as a
	 * block for its tile. A thread has four columns, and reads several states at once; missing ones
	 * are empty. */
	__device__ inline void merge_states(uint32_t unit)
	{
		enum { N = 4 };
		struct part {
			struct softmax_state s;
			float v[4];
			__device__ inline void add(const struct part &p)
			{
				float kept, added;
				state_add(&s, p.s, &kept, &added);
				UNROLL
				for (int e = 0; e < 4; e++)
					v[e] = state_merge(v[e], kept, p.v[e], added);
			}
		};
		const struct part empty = {EMPTY_STATE, {}};
		uint32_t base = s.tile.sees.first / CHUNK / unit, row, head, each = a.out_dim / 4,
				 units = s.tile.sees.last / CHUNK / unit - base + 1;
		for (uint32_t i = threadIdx.x; i < s.tile.vectors * each; i += blockDim.x) {
			uint32_t v = i / each, c = i % each * 4;
			struct part all = empty, run = empty, p[N];
			for (uint32_t u = 0; u < units; u += N) {
				UNROLL
				for (uint32_t n = 0; n < N; n++) {
					p[n] = empty;
					if (u + n >= units)
						continue;
					const float *from = state_at(u + n, v);
					const quad x = *(const quad *)(from + c);
					p[n].s = *(const struct softmax_state *)(from + a.out_dim);
					memcpy(p[n].v, &x, sizeof x);
				}
				UNROLL
				for (uint32_t n = 0; n < N; n++) {
					run.add(p[n]);
					if ((base + u + n + 1) * unit % RUN_CHUNKS && u + n + 1 < units)
						continue;
					all.add(run);
					run = empty;
				}
			}
			find_vector(a, s.tile, v, &row, &head);
			float factor = state_end(all.s, a.sinks, head);
			for (int e = 0; e < 4; e++)
				tensor_put(a.out, row, head * a.out_dim + c + e, state_result(all.v[e], factor));
		}
	}

	__device__ inline void do_tile()
	{
		const struct attention_item &item = s.tile.item;
		bool divided = item.parts > 1;
		uint32_t unit = divided ? a.list.work->unit : (uint32_t)RUN_CHUNKS, next;
		load_vectors();
		for (uint32_t i = item.first; i < item.end; i = next) {
			next = (i / unit + 1) * unit;
			next = next < item.end ? next : item.end;
			make_state(i, next);
			if (divided)
				put_state(i / unit - s.tile.sees.first / CHUNK / unit);
			else
				merge_run(i == item.first, next == item.end);
		}
		if (!divided)
			put_results();
		else if (item_done())
			merge_states(unit);
	}
};

template <int TYPE, bool ROUNDED>
static __device__ inline void attention_body(const struct attention_args &a)
{
	uint32_t drawn = blockIdx.x - gridDim.x;
	struct decode<TYPE, ROUNDED> me(a, shared_memory());
	while (next_tile(a, &drawn, me.s.tile))
		me.do_tile();
}

/* --- kernels ------------------------------------------------------------- */

KERNEL(attention_decode_bf16, THREADS_MAX, struct attention_args)
{
	attention_body<KERN_BF16, true>(a);
}

KERNEL(attention_decode_rounded, THREADS_MAX, struct attention_args)
{
	attention_body<ANY, true>(a);
}

KERNEL(attention_decode_exact, THREADS_MAX, struct attention_args)
{
	attention_body<ANY, false>(a);
}

/* A block has 4 warps; 8 for latents, which have more to share among them. */
struct attention_kernel attention_decode_kernel(const struct plan *p,
                                                const struct attention_args *a)
{
	size_t columns = round_up(a->kv.head_dim, 16) + round_up(a->out_dim, COLUMNS) + SCORE_LD;
	const void *kernel = !p->dev->bf16_activations  ? (const void *)attention_decode_exact
	                     : a->kv.dtype == KERN_BF16 ? (const void *)attention_decode_bf16
	                                                : (const void *)attention_decode_rounded;
	return {kernel, "attention_decode", (a->kv.latent ? 8 : 4) * WARP,
	        sizeof(struct decode_shared) + a->vectors * columns * sizeof(float)};
}
