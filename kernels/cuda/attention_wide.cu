/* attention_wide.cu - attention of prompts (attention_wide.h) by mma.sync, and its planning.
 *
 * Where tensor cores may add 16 products in two steps (compute capability 8), it matters which of
 * them have the same place in a step: here all have those of attention.cu. */
#include "kernels/cuda/attention_wide.h"

enum { STAGES = 4 /* in the ring */ };

template <int DIM> struct alignas(128) wide_shared {
	unsigned char stage[STAGES][STAGE * DIM * 2];
	uint32_t q[WARPS][DIM / 16][WARP][4]; /* the vectors as registers of A */
	float value[DIM / 2][THREADS];        /* each thread's values of the run's state */
	struct wide_tile tile;
	struct stage_rows<DIM, THREADS> rows;
};

template <int DIM> static __device__ inline struct wide_shared<DIM> &shared(void) {
	return *(struct wide_shared<DIM> *)shared_memory();
}

/* --- stages -------------------------------------------------------------- */

/* Pieces of a row are swapped with others of the same row so that the lanes of a warp read
 * different banks: K, 8 bytes of 4 rows at a time; V, 16 bytes of 8 rows. Of a row's number within
 * 16 this needs bits 0, 2 and 3. */
static __device__ inline uint32_t
swap_of(uint32_t row)
{
	return (row & 1) << 1 | (row & 4) | (row >> 3 & 1);
}

/* Where a thread's pieces go: the first, and the distance to the next. */
template <int DIM> static __device__ inline unsigned char *place(unsigned char *stage)
{
	const struct stage_share<DIM, THREADS> mine = share_of<DIM, THREADS>();
	return stage + mine.row * DIM * 2 + (mine.piece ^ swap_of(mine.row)) * PIECE;
}

template <int DIM> constexpr uint32_t STEP = DIM * 2 * stage_share<DIM, THREADS>::ROWS;
static_assert(stage_share<64, THREADS>::ROWS % 16 == 0 && stage_share<128, THREADS>::ROWS % 16 == 0,
              "a thread's pieces are swapped alike");

/* The ring: stage n is in slot n % STAGES; those up to n + STAGES - 2 are on their way. */
struct stage_ring {
	struct stage_walk next; /* to load */
	uint32_t used;          /* stages that were waited for */
};

template <int DIM>
static __device__ inline void ring_load(const struct attention_args &a, struct stage_ring *r,
                                        uint32_t number)
{
	struct wide_shared<DIM> &s = shared<DIM>();
	if (!r->next.over)
		load_stage<DIM, THREADS>(a, s.tile, &r->next, s.rows, place<DIM>(s.stage[number % STAGES]),
		                         STEP<DIM>);
	copy_async_commit(); /* also an empty one, so that each stage has one */
}

template <int DIM>
static __device__ inline struct stage_ring ring_begin(const struct attention_args &a)
{
	struct stage_ring r = {walk_begin(shared<DIM>().tile), 0};
	for (uint32_t i = 0; i < STAGES - 1; i++)
		ring_load<DIM>(a, &r, i);
	return r;
}

/* Waits for the next stage; the one before it is no longer in use, and its slot is filled. clean:
 * it is V of positions that not all vectors see. */
template <int DIM>
static __device__ inline unsigned char *ring_next(const struct attention_args &a,
                                                  struct stage_ring *r, bool clean)
{
	uint32_t number = r->used++;
	unsigned char *stage = shared<DIM>().stage[number % STAGES];
	copy_async_wait<STAGES - 2>();
	if (clean)
		clean_stage<DIM, THREADS>(shared<DIM>().tile, place<DIM>(stage), STEP<DIM>);
	__syncthreads();
	ring_load<DIM>(a, r, number + STAGES - 1);
	return stage;
}

/* --- products ------------------------------------------------------------ */

static __device__ inline bool warp_sees(const struct wide_thread &me, uint32_t part)
{
	return me.warp_first <= me.warp_last && part * STAGE <= me.warp_last &&
	       part * STAGE + STAGE > me.warp_first;
}

template <int DIM>
static __device__ inline void make_scores(const struct attention_args &a,
                                          const struct wide_thread &me, const unsigned char *stage,
                                          uint32_t part, float (&of)[STAGE / 2])
{
	const int N = STAGE / 8;
	UNROLL
	for (uint32_t i = 0; i < STAGE / 2; i++)
		of[i] = 0;
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
			mma_bf16(of + 4 * n, q.w, k.w);
		}
	}
	finish_scores<QUADS>(a, shared<DIM>().tile, me, part, of);
}

/* acc += weights of the stage's positions times V. weight: (STAGE / 8, 2) */
template <int DIM>
static __device__ inline void add_values(const struct wide_thread &me, const unsigned char *stage,
                                         const uint32_t (*weight)[2], float (&acc)[DIM / 2])
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
			mma_bf16(acc + 8 * j, w, b);
			mma_bf16(acc + 8 * j + 4, w, b + 2);
		}
	}
}

/* --- a chunk ------------------------------------------------------------- */

template <int DIM>
static __device__ inline void make_chunk(const struct attention_args &a, struct wide_thread &me,
                                         struct stage_ring *ring, uint32_t chunk, bool fresh)
{
	struct wide_shared<DIM> &s = shared<DIM>();
	uint32_t from = first_part(s.tile, chunk), to = last_part(s.tile, chunk);
	uint32_t weight[CHUNK / 8][2];
	float kept[2], added[2], acc[DIM / 2] = {};
	{
		struct scores score;
		UNROLL
		for (uint32_t i = 0; i < PARTS; i++) {
			uint32_t part = chunk * PARTS + i;
			const unsigned char *stage = part >= from && part <= to ? ring_next<DIM>(a, ring, false)
			                                                        : NULL;
			if (stage && warp_sees(me, part))
				make_scores<DIM>(a, me, stage, part, score.of[i]);
			else
				hide_scores(score.of[i]);
		}
		make_weights<QUADS>(me, score, fresh, weight, kept, added);
	}
	UNROLL
	for (uint32_t i = 0; i < PARTS; i++) {
		uint32_t part = chunk * PARTS + i;
		if (part < from || part > to)
			continue;
		const unsigned char *stage = ring_next<DIM>(a, ring, !all_see(s.tile, part));
		if (warp_sees(me, part))
			add_values<DIM>(me, stage, weight + i * (STAGE / 8), acc);
	}
	merge_values<DIM>(s.value, fresh, kept, acc, added);
	if (s.tile.bad)
		mark_values<DIM>(a, s.tile, me, s.value, chunk);
}

template <int DIM> static __device__ inline void attention_body(const struct attention_args &a)
{
	struct wide_shared<DIM> &s = shared<DIM>();
	for (uint32_t i = blockIdx.x; i < a.tiles; i += gridDim.x) {
		find_tile(a, a.tiles - 1 - i, s.tile); /* later tiles of a span see more */
		if (!s.tile.vectors)
			continue;
		struct wide_thread me = thread_of(a, s.tile);
		load_vectors<DIM, QUADS>(a, s.tile, me, s.q[me.warp]);
		struct stage_ring ring = ring_begin<DIM>(a);
		uint32_t first = s.tile.see_first / CHUNK, last = s.tile.see_last / CHUNK;
		for (uint32_t chunk = first; chunk <= last; chunk++) {
			make_chunk<DIM>(a, me, &ring, chunk, begins_run(s.tile, chunk));
			end_chunk<DIM>(a, s.tile, me, s.value, chunk);
		}
		put_results<DIM>(a, s.tile, me, s.value);
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
	const struct wide_attention k = p->wgmma    ? attention_wgmma_of(dim)
	                                : dim == 64 ? wide_attention{(const void *)attention_wide_64,
	                                                             "attention_wide",
	                                                             sizeof(struct wide_shared<64>)}
	                                            : wide_attention{(const void *)attention_wide_128,
	                                                             "attention_wide",
	                                                             sizeof(struct wide_shared<128>)};
	if (!p->dev->bf16_activations || a->kv.dtype != KERN_BF16 || a->kv.latent ||
	    (dim != 64 && dim != 128) || a->kv.base.v % PIECE || a->kv.block_stride_bytes % PIECE ||
	    (size_t)plan_rows(p) * a->group < LEAST || k.shared_bytes > (size_t)p->dev->shared_max ||
	    /* the device would not be busy with so few tiles */
	    (!plan_wide_always(p) &&
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
	plan_launch(p, k.name, k.kernel, (uint32_t)blocks, heads, THREADS, k.shared_bytes, &wide,
	            sizeof wide);
}
