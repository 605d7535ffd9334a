/* attention_wide.cu - attention of prompts, with the bits of attention.cu: for KV in bfloat16,
 * vectors and weights rounded to it, heads of 64 or 128.
 *
 * A tile is 128 vectors of one span, 16 for each of 8 warps, which share what is loaded: K, then V,
 * of 64 positions at a time (a stage) come into a ring in shared memory while earlier ones are
 * multiplied. attention.cu loads K and V once for 32 vectors; there a long prompt is limited by the
 * L2 cache. A warp has all scores of a chunk in registers, turns them into weights, which are
 * already where the tensor cores want them, and multiplies these by V.
 *
 * Why the bits are those of attention.cu: each product of a vector and a row of K or V goes through
 * the same instruction with the same numbers in the same places, and sums are added in the same
 * order: columns of K and positions of V ascending, 16 at a time; weights of a chunk as if by lanes
 * that have every 32nd position, then across these lanes; states of chunks, then of runs. Positions
 * that are left out here and not there, or the reverse, have weight 0.
 *
 * Spans with few vectors are left to attention.cu, whose launch follows. */
#include "kernels/cuda/attention.h"
#include "kernels/cuda/kv.h"

enum { WARPS = 8, THREADS = WARPS * WARP, STAGES = 4 /* in the ring */ };
static const uint32_t VECTORS = 16 * WARPS;
static const uint32_t LEAST = VECTORS / 2; /* vectors of a span */
static const uint32_t STAGE = 64;          /* positions */
static const uint32_t PARTS = CHUNK / STAGE;
static const uint32_t PIECE = 16; /* bytes that are loaded, and swapped, as one */

template <int DIM> struct alignas(128) wide_shared {
	unsigned char stage[STAGES][STAGE * DIM * 2];
	uint32_t q[WARPS][DIM / 16][WARP][4]; /* the vectors as registers of A */
	float value[DIM / 2][THREADS];        /* each thread's values of the run's state */
	struct kern_span span;
	/* the tile's vectors, within the span's; 0: no such tile */
	uint32_t begin, vectors;
	/* positions that any vector sees; that all see */
	uint32_t see_first, see_last, all_first, all_last;
	int bad; /* the stage has elements of V that are not finite */
};

template <int DIM> static __device__ inline struct wide_shared<DIM> &shared(void) {
	return *(struct wide_shared<DIM> *)shared_memory();
}

/* A thread's place, and what belongs to its two vectors, which are rows g and g + 8 of its warp's
 * (mma_bf16). */
struct wide_thread {
	uint32_t warp, lane, g, t;
	uint32_t row[2], head[2];
	uint32_t first[2], last[2]; /* positions that the vector sees; first > last: no vector */
	/* positions that any of the warp's vectors sees */
	uint32_t warp_first, warp_last;
	float max[2], sum[2], run_max[2], run_sum[2];
};

/* --- tiles --------------------------------------------------------------- */

template <int DIM> static __device__ void find_tile(const struct attention_args &a, uint32_t number)
{
	struct wide_shared<DIM> &s = shared<DIM>();
	uint32_t spans;
	const struct kern_span *span = batch_spans(a.batch, a.rows, &spans);
	if (threadIdx.x == 0)
		s.vectors = 0;
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < spans; i += THREADS) {
		uint32_t begin, all = span[i].rows * a.group;
		if (all < a.wide_from || !span_has_tile(span, i, a.group, VECTORS, number, &begin))
			continue;
		s.span = span[i];
		s.begin = begin;
		s.vectors = all - begin < VECTORS ? all - begin : VECTORS;
	}
	__syncthreads();
}

template <int DIM> static __device__ struct wide_thread load_tile(const struct attention_args &a)
{
	struct wide_shared<DIM> &s = shared<DIM>();
	struct wide_thread me = {threadIdx.x / WARP, threadIdx.x % WARP};
	uint32_t seen_from = s.span.position + s.begin / a.group,
			 seen_to = s.span.position + (s.begin + s.vectors - 1) / a.group,
			 warp_begin = s.begin + 16 * me.warp, warp_end = warp_begin + 15;
	me.g = me.lane / 4;
	me.t = me.lane % 4;
	UNROLL
	for (int h = 0; h < 2; h++) {
		uint32_t v = 16 * me.warp + me.g + 8 * h, i = (s.begin + v) / a.group,
				 position = s.span.position + i;
		bool there = v < s.vectors;
		me.row[h] = s.span.row + i;
		me.head[h] = blockIdx.y * a.group + (s.begin + v) % a.group;
		me.first[h] = there ? first_seen(position, a.window) : 1;
		me.last[h] = there ? position : 0;
	}
	if (warp_end >= s.begin + s.vectors)
		warp_end = s.begin + s.vectors - 1;
	me.warp_first = 1;
	me.warp_last = 0;
	if (16 * me.warp < s.vectors) {
		me.warp_first = first_seen(s.span.position + warp_begin / a.group, a.window);
		me.warp_last = s.span.position + warp_end / a.group;
	}
	if (threadIdx.x == 0) {
		s.see_first = first_seen(seen_from, a.window);
		s.see_last = seen_to;
		s.all_first = first_seen(seen_to, a.window);
		s.all_last = seen_from;
	}
	for (uint32_t i = threadIdx.x; i < WARPS * (DIM / 16) * WARP; i += THREADS) {
		uint32_t lane = i % WARP, k = i / WARP % (DIM / 16), warp = i / WARP / (DIM / 16),
				 *q = s.q[warp][k][lane];
		UNROLL
		for (int h = 0; h < 2; h++) {
			uint32_t v = 16 * warp + lane / 4 + 8 * h;
			float x[4] = {0, 0, 0, 0};
			if (v < s.vectors) {
				size_t row = s.span.row + (s.begin + v) / a.group;
				uint32_t head = blockIdx.y * a.group + (s.begin + v) % a.group;
				UNROLL
				for (int e = 0; e < 4; e++)
					x[e] = tensor_get(a.q, row, head * DIM + 16 * k + lane % 4 * 4 + e);
			}
			q[h] = bf16_pair(x[0], x[1]);
			q[2 + h] = bf16_pair(x[2], x[3]);
		}
	}
	__syncthreads();
	return me;
}

/* --- stages -------------------------------------------------------------- */

/* The stages of a tile in order: K of a chunk's parts, V of the same, the next chunk. */
struct stage_walk {
	uint32_t part; /* STAGE positions, counted from the context's start */
	bool of_v;
	bool over;
};

template <int DIM> static __device__ inline uint32_t first_part(uint32_t chunk)
{
	uint32_t see = shared<DIM>().see_first / STAGE;
	return chunk * PARTS > see ? chunk * PARTS : see;
}

template <int DIM> static __device__ inline uint32_t last_part(uint32_t chunk)
{
	uint32_t see = shared<DIM>().see_last / STAGE;
	return chunk * PARTS + PARTS - 1 < see ? chunk * PARTS + PARTS - 1 : see;
}

template <int DIM> static __device__ inline void walk_on(struct stage_walk *w)
{
	uint32_t chunk = w->part / PARTS;
	if (w->part != last_part<DIM>(chunk))
		w->part++;
	else if (!w->of_v)
		*w = stage_walk{first_part<DIM>(chunk), true, false};
	else if (w->part != shared<DIM>().see_last / STAGE)
		*w = stage_walk{w->part + 1, false, false};
	else
		w->over = true;
}

/* Pieces of a row are swapped with others of the same row so that the lanes of a warp read different
 * banks: K, 8 bytes of 4 rows at a time; V, 16 bytes of 8 rows. Of a row's number within 16 this
 * needs bits 0, 2 and 3. */
static __device__ inline uint32_t swap_of(uint32_t row)
{
	return (row & 1) << 1 | (row & 4) | (row >> 3 & 1);
}

/* Starts the copies of a stage. What no vector sees is zeros, and not read: its block may be another
 * sequence's. */
template <int DIM>
static __device__ inline void load_stage(const struct attention_args &a, const struct stage_walk &w,
                                         uint32_t slot)
{
	const uint32_t PIECES = DIM * 2 / PIECE;
	const struct wide_shared<DIM> &s = shared<DIM>();
	struct kv_shape shape = kv_shape_of(a.kv);
	const uint32_t *table = batch_words(a.batch, a.batch->table) + s.span.table;
	size_t plane = shape.plane_bytes * (2 * blockIdx.y + w.of_v);
	UNROLL
	for (uint32_t i = 0; i < STAGE * PIECES / THREADS; i++) {
		uint32_t piece = i * THREADS + threadIdx.x, row = piece / PIECES, c = piece % PIECES,
				 p = w.part * STAGE + row;
		bool seen = p >= s.see_first && p <= s.see_last;
		const unsigned char *from = (const unsigned char *)a.kv.base.v;
		if (seen)
			from += table[p / a.kv.block_tokens] * a.kv.block_stride_bytes + plane +
			        p % a.kv.block_tokens * (DIM * 2) + c * PIECE;
		copy_async_16(shared<DIM>().stage[slot] + row * DIM * 2 + (c ^ swap_of(row)) * PIECE, from,
		              seen);
	}
}

/* The ring: stage n is in slot n % STAGES; those up to n + STAGES - 2 are on their way. */
struct stage_ring {
	struct stage_walk next; /* to load */
	uint32_t used;          /* stages that were waited for */
};

template <int DIM>
static __device__ inline void ring_load(const struct attention_args &a, struct stage_ring *r,
                                        uint32_t number)
{
	if (!r->next.over) {
		load_stage<DIM>(a, r->next, number % STAGES);
		walk_on<DIM>(&r->next);
	}
	copy_async_commit(); /* also an empty one, so that each stage has one */
}

template <int DIM>
static __device__ inline struct stage_ring ring_begin(const struct attention_args &a)
{
	struct stage_ring r = {{shared<DIM>().see_first / STAGE, false, false}, 0};
	for (uint32_t i = 0; i < STAGES - 1; i++)
		ring_load<DIM>(a, &r, i);
	return r;
}

/* Waits for the next stage; the one before it is no longer in use, and its slot is filled. */
template <int DIM>
static __device__ inline unsigned char *ring_next(const struct attention_args &a,
                                                  struct stage_ring *r)
{
	uint32_t number = r->used++;
	copy_async_wait<STAGES - 2>();
	__syncthreads();
	ring_load<DIM>(a, r, number + STAGES - 1);
	return shared<DIM>().stage[number % STAGES];
}

/* --- scores and weights -------------------------------------------------- */

/* The scores of a chunk: [n][2 h + e] is vector h's of position 16 (n / 2) + 4 t + 2 (n % 2) + e, so
 * that weights of 16 positions lie as A wants them. */
struct scores {
	float of[CHUNK / 8][4];
};

static __device__ inline uint32_t score_position(const struct wide_thread &me, int n, int e)
{
	return 16 * (n / 2) + 4 * me.t + 2 * (n % 2) + e % 2;
}

static __device__ inline bool warp_sees(const struct wide_thread &me, uint32_t part)
{
	return me.warp_first <= me.warp_last && part * STAGE <= me.warp_last &&
	       part * STAGE + STAGE > me.warp_first;
}

/* of: (STAGE / 8, 4) */
template <int DIM>
static __device__ inline void make_scores(const struct attention_args &a,
                                          const struct wide_thread &me, const unsigned char *stage,
                                          uint32_t part, float (*of)[4])
{
	const int N = STAGE / 8;
	UNROLL
	for (int n = 0; n < N; n++)
		of[n][0] = of[n][1] = of[n][2] = of[n][3] = 0;
	/* column n of B is position 4 (n / 2) + n % 2 of each 16, or that + 2 */
	uint32_t row = 4 * (me.g / 2) + me.g % 2, swap = swap_of(row);
	UNROLL
	for (int c = 0; c < DIM / 16; c++) {
		uint32_t at = ((2 * c + me.t / 2) ^ swap) * PIECE + me.t % 2 * 8;
		struct words<4> q = *(const struct words<4> *)shared<DIM>().q[me.warp][c][me.lane];
		UNROLL
		for (int n = 0; n < N; n++) {
			struct words<2> k = *(
				const struct words<2> *)(stage + (row + 16 * (n / 2) + 2 * (n % 2)) * DIM * 2 + at);
			mma_bf16(of[n], q.w, k.w);
		}
	}
	UNROLL
	for (int n = 0; n < N; n++) {
		UNROLL
		for (int e = 0; e < 4; e++) {
			uint32_t p = part * STAGE + score_position(me, n, e);
			of[n][e] = p >= me.first[e / 2] && p <= me.last[e / 2] ? of[n][e] * a.scale : -INFINITY;
		}
	}
}

static __device__ inline void hide_scores(float (*of)[4])
{
	UNROLL
	for (uint32_t n = 0; n < STAGE / 8; n++)
		of[n][0] = of[n][1] = of[n][2] = of[n][3] = -INFINITY;
}

/* Weights as registers of A: [n][h]. Merges the chunk's largest score and sum into the run's. */
static __device__ inline void make_weights(struct wide_thread &me, const struct scores &score,
                                           bool fresh, uint32_t weight[CHUNK / 8][2], float kept[2],
                                           float added[2])
{
	UNROLL
	for (int h = 0; h < 2; h++) {
		/* lane[8 positions of 32]: the sums of lanes that have every 32nd position */
		float max = -INFINITY, lane[8] = {};
		UNROLL
		for (int n = 0; n < CHUNK / 8; n++)
			max = state_max(state_max(max, score.of[n][2 * h]), score.of[n][2 * h + 1]);
		max = state_max(max, __shfl_xor_sync(ALL_LANES, max, 1));
		max = state_max(max, __shfl_xor_sync(ALL_LANES, max, 2));
		UNROLL
		for (int n = 0; n < CHUNK / 8; n++) {
			float w[2];
			UNROLL
			for (int e = 0; e < 2; e++) {
				w[e] = expf(score.of[n][2 * h + e] - (max == -INFINITY ? 0.0f : max));
				lane[n % 4 * 2 + e] += w[e];
			}
			weight[n][h] = bf16_pair(w[0], w[1]);
		}
		/* by 16, 8, 4, 2, 1 positions */
		float sum[4];
		UNROLL
		for (int i = 0; i < 4; i++) {
			sum[i] = lane[i] + lane[i + 4];
			sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], 2);
			sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], 1);
		}
		float all = (sum[0] + sum[2]) + (sum[1] + sum[3]), before = fresh ? -INFINITY : me.max[h],
			  m = state_max(before, max);
		kept[h] = state_factor(before, m);
		added[h] = state_factor(max, m);
		me.sum[h] = state_merge(fresh ? 0 : me.sum[h], kept[h], all, added[h]);
		me.max[h] = m;
	}
}

/* --- values -------------------------------------------------------------- */

/* Value [j][2 h + e] of a thread is vector h's of column 8 j + 2 t + e. */

/* acc += weights of the stage's positions times V. weight: (STAGE / 8, 2) */
template <int DIM>
static __device__ inline void add_values(const struct wide_thread &me, const unsigned char *stage,
                                         const uint32_t (*weight)[2], float acc[DIM / 8][4])
{
	uint32_t r = me.lane % 8, matrix = me.lane / 8, row = 4 * (r / 2) + r % 2 + 2 * (matrix % 2),
			 swap = swap_of(row);
	UNROLL
	for (uint32_t k = 0; k < STAGE / 16; k++) {
		const uint32_t w[4] = {weight[2 * k][0], weight[2 * k][1], weight[2 * k + 1][0],
		                       weight[2 * k + 1][1]};
		UNROLL
		for (int j = 0; j < DIM / 16; j++) {
			uint32_t b[4];
			load_matrices_transposed(b, stage + (16 * k + row) * DIM * 2 +
			                                ((2 * j + matrix / 2) ^ swap) * PIECE);
			mma_bf16(acc[2 * j], w, b);
			mma_bf16(acc[2 * j + 1], w, b + 2);
		}
	}
}

/* Sets elements of V in shared memory that are not finite to 0. Returns whether there are any. */
template <int DIM> static __device__ bool clean_stage(unsigned char *stage)
{
	struct wide_shared<DIM> &s = shared<DIM>();
	if (threadIdx.x == 0)
		s.bad = 0;
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < STAGE * DIM / 2; i += THREADS) {
		uint32_t x = ((const uint32_t *)stage)[i];
		uint32_t low = (x & 0x7f80u) == 0x7f80u ? 0xffffu : 0,
				 high = (x & 0x7f800000u) == 0x7f800000u ? 0xffff0000u : 0;
		if (!(low | high))
			continue;
		((uint32_t *)stage)[i] = x & ~(low | high);
		s.bad = 1;
	}
	__syncthreads();
	return s.bad;
}

/* Sets values of vectors that see such an element to NaN, which they stay. Reads V again: this is
 * rare. */
template <int DIM>
static __device__ void mark_values(const struct attention_args &a, const struct wide_thread &me,
                                   uint32_t part)
{
	struct wide_shared<DIM> &s = shared<DIM>();
	const uint32_t *table = batch_words(a.batch, a.batch->table) + s.span.table;
	size_t plane = kv_shape_of(a.kv).plane_bytes * (2 * blockIdx.y + 1);
	for (uint32_t p = part * STAGE; p < (part + 1) * STAGE; p++)
		for (int i = 0; i < DIM / 2; i++) {
			int h = i / 2 % 2;
			if (p < me.first[h] || p > me.last[h])
				continue;
			const uint16_t *row = (const uint16_t *)((const unsigned char *)a.kv.base.v +
			                                         table[p / a.kv.block_tokens] *
			                                             a.kv.block_stride_bytes +
			                                         plane + p % a.kv.block_tokens * (DIM * 2));
			if ((row[i / 4 * 8 + 2 * me.t + i % 2] & 0x7f80) == 0x7f80)
				s.value[i][threadIdx.x] = NAN;
		}
}

/* --- a chunk ------------------------------------------------------------- */

template <int DIM>
static __device__ inline void make_chunk(const struct attention_args &a, struct wide_thread &me,
                                         struct stage_ring *ring, uint32_t chunk, bool fresh)
{
	struct wide_shared<DIM> &s = shared<DIM>();
	uint32_t from = first_part<DIM>(chunk), to = last_part<DIM>(chunk);
	uint32_t weight[CHUNK / 8][2], bad = 0; /* bad: bits of parts */
	float kept[2], added[2], acc[DIM / 8][4] = {};
	{
		struct scores score;
		UNROLL
		for (uint32_t i = 0; i < PARTS; i++) {
			uint32_t part = chunk * PARTS + i;
			float(*of)[4] = score.of + i * (STAGE / 8);
			const unsigned char *stage = part >= from && part <= to ? ring_next<DIM>(a, ring)
			                                                        : NULL;
			if (stage && warp_sees(me, part))
				make_scores<DIM>(a, me, stage, part, of);
			else
				hide_scores(of);
		}
		make_weights(me, score, fresh, weight, kept, added);
	}
	UNROLL
	for (uint32_t i = 0; i < PARTS; i++) {
		uint32_t part = chunk * PARTS + i, p = part * STAGE;
		if (part < from || part > to)
			continue;
		unsigned char *stage = ring_next<DIM>(a, ring);
		if ((p < s.all_first || p + STAGE - 1 > s.all_last) && clean_stage<DIM>(stage))
			bad |= 1u << i;
		if (warp_sees(me, part))
			add_values<DIM>(me, stage, weight + i * (STAGE / 8), acc);
	}
	UNROLL
	for (int i = 0; i < DIM / 2; i++) {
		float *value = &s.value[i][threadIdx.x];
		*value = state_merge(fresh ? 0 : *value, kept[i / 2 % 2], acc[i / 4][i % 4],
		                     added[i / 2 % 2]);
	}
	for (uint32_t i = 0; bad >> i; i++)
		if (bad >> i & 1)
			mark_values<DIM>(a, me, chunk * PARTS + i);
}

/* Merges the run's state into that of the earlier runs, in memory of the block; the last run leaves
 * the result in the thread's own. */
template <int DIM>
static __device__ inline void merge_run(const struct attention_args &a, struct wide_thread &me,
                                        bool fresh, bool is_last)
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
		float *value = &shared<DIM>().value[i][threadIdx.x];
		float merged = state_merge(fresh ? 0 : runs[(size_t)i * THREADS], kept[i / 2 % 2], *value,
		                           added[i / 2 % 2]);
		*(is_last ? value : &runs[(size_t)i * THREADS]) = merged;
	}
}

template <int DIM>
static __device__ inline void put_results(const struct attention_args &a,
                                          const struct wide_thread &me)
{
	UNROLL
	for (int h = 0; h < 2; h++) {
		if (me.first[h] > me.last[h])
			continue;
		float end = state_end(me.max[h], me.sum[h], a.sinks, me.head[h]);
		for (int i = 0; i < DIM / 4; i++) {
			int at = i / 2 * 4 + 2 * h + i % 2;
			tensor_put(a.out, me.row[h], me.head[h] * DIM + i / 2 * 8 + 2 * me.t + i % 2,
			           state_result(shared<DIM>().value[at][threadIdx.x], end));
		}
	}
}

template <int DIM> static __device__ inline void attention_body(const struct attention_args &a)
{
	struct wide_shared<DIM> &s = shared<DIM>();
	for (uint32_t i = blockIdx.x; i < a.tiles; i += gridDim.x) {
		find_tile<DIM>(a, a.tiles - 1 - i); /* later tiles of a span see more */
		if (!s.vectors)
			continue;
		struct wide_thread me = load_tile<DIM>(a);
		struct stage_ring ring = ring_begin<DIM>(a);
		uint32_t first = s.see_first / CHUNK, last = s.see_last / CHUNK, runs = RUN / CHUNK;
		for (uint32_t chunk = first; chunk <= last; chunk++) {
			make_chunk<DIM>(a, me, &ring, chunk, chunk == first || chunk % runs == 0);
			if (first / runs != last / runs && (chunk == last || chunk % runs == runs - 1))
				merge_run<DIM>(a, me, chunk / runs == first / runs, chunk == last);
		}
		put_results<DIM>(a, me);
		copy_async_wait<0>();
		__syncthreads();
	}
}

KERNEL(attention_wide_64, THREADS, struct attention_args)
{
	attention_body<64>(a);
}

KERNEL(attention_wide_128, THREADS, struct attention_args)
{
	attention_body<128>(a);
}

/* --- planning ------------------------------------------------------------ */

void plan_attention_wide(struct plan *p, struct attention_args *a)
{
	uint32_t dim = a->kv.head_dim, heads = a->kv.kv_heads;
	size_t shared_bytes = dim == 64 ? sizeof(struct wide_shared<64>)
	                                : sizeof(struct wide_shared<128>);
	if (!p->dev->bf16_activations || a->kv.dtype != KERN_BF16 || a->kv.latent ||
	    (dim != 64 && dim != 128) || a->kv.base.v % PIECE || a->kv.block_stride_bytes % PIECE ||
	    (size_t)plan_rows(p) * a->group < LEAST || shared_bytes > (size_t)p->dev->shared_max ||
	    /* the device would not be busy with so few tiles */
	    (!p->dev->wide_always &&
	     2 * ((size_t)plan_rows(p) * a->group / VECTORS) * heads < (size_t)p->dev->multiprocessors))
		return;
	a->wide_from = LEAST;
	struct attention_args wide = *a;
	size_t tiles = most_tiles(p, a, VECTORS),
		   at_once = (size_t)p->dev->multiprocessors / heads + 1, /* registers: one on each */
		blocks = tiles < at_once ? tiles : at_once;
	wide.tiles = (uint32_t)tiles;
	if (p->limits->positions > RUN)
		wide.states = (float *)plan_room(p, ROOM_PARTIAL,
		                                 blocks * heads * (dim / 2) * THREADS * sizeof(float));
	plan_launch(p, "attention_wide",
	            dim == 64 ? (const void *)attention_wide_64 : (const void *)attention_wide_128,
	            (uint32_t)blocks, heads, THREADS, shared_bytes, &wide, sizeof wide);
}
