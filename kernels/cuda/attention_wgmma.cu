/* attention_wgmma.cu - attention of prompts (attention_wide.h) by wgmma: compute capability 9.0.
 *
 * Two warpgroups have 64 vectors each and take turns: while one multiplies (V of a chunk, then K
 * of the next), the other turns its scores into weights, so that tensor cores and the rest of the
 * multiprocessor work at the same time. The first group is ahead by a turn and waits for copies.
 * The second starts them, because it is the last to use a stage.
 *
 * Why the bits are the same: a wgmma sums the same 16 products as an mma.sync does, and the tensor
 * cores of these devices add 16 products and the accumulator as one sum, which has no order
 * (MMA-Sim, arXiv:2511.10909, found the same sum for both instructions): dimensions and positions
 * need not have the places that they have in attention.cu. The self-test of envelope.c compares
 * the two on the device at hand; where they differ, attention_wide.cu is used.
 *
 * Between copies into a slot of the ring and each wgmma that reads them there must be a fence
 * (wgmma_publish). The order is: copies, `full`, the first group's fence and wgmma, `turn`, the
 * second group's wgmma, `empty`, the next copies. So the only threads with a fence are those that
 * have no copies in progress, for which it might wait. */
#include "kernels/cuda/attention_wide.h"

enum { GROUPS = 2, LOADERS = THREADS / GROUPS, GROUP_WARPS = WARPS / GROUPS, STAGES = 8 };
enum { HALF_BYTES = STAGE * 128 }; /* 64 columns of a stage */
/* The first group has its turn when the second has started all products of the turn before, and ends
 * their stages without waiting for the first. */
static_assert((int)STAGES >= 2 * (int)PARTS, "the ring has no room for the stages of a turn");

template <int DIM> struct alignas(128) shared_wgmma {
	/* first, so that each begins at a multiple of 1024; by halves of a row: WGMMA_SWIZZLED */
	unsigned char stage[STAGES][STAGE * DIM * 2];
	uint32_t q[WARPS][DIM / 16][WARP][4]; /* the vectors as registers of A */
	float value[DIM / 2][THREADS];        /* each thread's values of the run's state */
	struct wide_tile tile;
	struct stage_rows<DIM, LOADERS> rows;
	/* barriers of the ring's slots: the stage's bytes have arrived; all warps have used them */
	uint64_t full[STAGES], empty[STAGES];
	uint64_t turn[GROUPS]; /* barriers: the other group has had its turn */
};

template <int DIM> static __device__ inline struct shared_wgmma<DIM> &shared(void) {
	return *(struct shared_wgmma<DIM> *)shared_memory();
}

/* Where a thread's pieces go: the first, and the distance to the next. */
template <int DIM>
static __device__ inline unsigned char *place(unsigned char *stage)
{
	const struct stage_share<DIM, LOADERS> mine = share_of<DIM, LOADERS>();
	return stage + mine.piece / 8 * HALF_BYTES + mine.row * 128 +
	       (mine.piece % 8 ^ mine.row % 8) * PIECE;
}

template <int DIM> constexpr uint32_t STEP = 128 * stage_share<DIM, LOADERS>::ROWS;
static_assert(stage_share<64, LOADERS>::ROWS % 8 == 0 && stage_share<128, LOADERS>::ROWS % 8 == 0,
              "a thread's pieces are swapped alike");

/* The ring as a warp sees it. Stage n is in slot n % STAGES; numbers go on from tile to tile. */
struct group_ring {
	uint32_t group;
	uint32_t ended, loaded; /* stages that it has used; whose copies it has started */
	uint32_t turns;         /* that it has begun */
	struct stage_walk next; /* stage to load; the first group loads none */
};

/* --- the ring ------------------------------------------------------------ */

/* Starts the copies of all stages for which there is room. */
template <int DIM>
static __device__ inline void load_stages(const struct attention_args &a, struct group_ring *r)
{
	struct shared_wgmma<DIM> &s = shared<DIM>();
	for (; r->loaded < r->ended + STAGES && !r->next.over; r->loaded++) {
		uint32_t slot = r->loaded % STAGES;
		unsigned char *to = place<DIM>(s.stage[slot]);
		bool clean = r->next.of_v && !all_see(s.tile, r->next.part);
		if (r->loaded >= STAGES)
			barrier_wait(&s.empty[slot], r->loaded / STAGES - 1);
		load_stage<DIM, LOADERS>(a, s.tile, &r->next, s.rows, to, STEP<DIM>);
		if (clean) {
			copy_async_commit();
			copy_async_wait<0>();
			clean_stage<DIM, LOADERS>(s.tile, to, STEP<DIM>);
			wgmma_publish();
			barrier_arrive(&s.full[slot]);
		} else {
			barrier_arrive_copied(&s.full[slot]);
		}
	}
}

/* Waits for a stage, which wgmma may then read: number `ahead` of those that have not ended. */
template <int DIM>
static __device__ inline const unsigned char *begin_stage(const struct group_ring *r,
                                                          uint32_t ahead)
{
	struct shared_wgmma<DIM> &s = shared<DIM>();
	uint32_t number = r->ended + ahead;
	static_assert(STAGE * DIM * 2 % 1024 == 0, "a stage begins with a pattern of swizzling");
	if (!r->group) {
		barrier_wait(&s.full[number % STAGES], number / STAGES);
		wgmma_publish();
	}
	wgmma_begin();
	return s.stage[number % STAGES];
}

/* This warp's wgmma no longer read the earliest stage that has not ended. */
template <int DIM> static __device__ inline void end_stage(struct group_ring *r)
{
	uint32_t number = r->ended++;
	if (threadIdx.x % WARP == 0)
		barrier_arrive(&shared<DIM>().empty[number % STAGES]);
}

template <int DIM> static __device__ inline void begin_turn(struct group_ring *r)
{
	uint32_t number = r->turns++;
	if (r->group || number)
		barrier_wait(&shared<DIM>().turn[r->group], r->group ? number : number - 1);
}

template <int DIM> static __device__ inline void end_turn(const struct group_ring *r)
{
	if (threadIdx.x % WARP == 0)
		barrier_arrive(&shared<DIM>().turn[!r->group]);
}

/* --- products ------------------------------------------------------------ */

/* Starts products of the vectors, q, and a part of K. */
template <int DIM>
static __device__ __forceinline__ void start_scores(const struct words<4> (&q)[DIM / 16],
                                                    const struct group_ring *r, uint32_t ahead,
                                                    float (&of)[STAGE / 2])
{
	uint64_t k = wgmma_operand(begin_stage<DIM>(r, ahead), WGMMA_SWIZZLED, 0, 1024);
	UNROLL
	for (uint32_t c = 0; c < DIM / 16; c++)
		wgmma_bf16<STAGE, 0>(of, q[c].w, wgmma_after(k, c / 4 * HALF_BYTES + c % 4 * 32), c > 0);
	wgmma_commit();
}

/* Makes the scores of a chunk and ends the turn. If the chunk is whole, a part is multiplied while
 * the one before is finished, and the turn ends before the last products are done. */
template <int DIM>
static __device__ __forceinline__ void make_scores(const struct attention_args &a,
                                                   const struct wide_thread &me,
                                                   struct group_ring *r, uint32_t chunk,
                                                   struct scores &score)
{
	const struct wide_tile &tile = shared<DIM>().tile;
	uint32_t first = chunk * PARTS, from = first_part(tile, chunk), to = last_part(tile, chunk);
	struct words<4> q[DIM / 16];
	UNROLL
	for (uint32_t c = 0; c < DIM / 16; c++)
		q[c] = *(const struct words<4> *)shared<DIM>().q[me.warp][c][me.lane];
	if (to - from == PARTS - 1) {
		start_scores<DIM>(q, r, 0, score.of[0]);
		UNROLL
		for (uint32_t i = 1; i < PARTS; i++) {
			start_scores<DIM>(q, r, 1, score.of[i]);
			if (i == 1)
				load_stages<DIM>(a, r);
			if (i == PARTS - 1)
				end_turn<DIM>(r);
			wgmma_wait<1>(score.of[i - 1]);
			end_stage<DIM>(r);
			finish_scores<PAIRS>(a, tile, me, first + i - 1, score.of[i - 1]);
		}
		wgmma_wait<0>(score.of[PARTS - 1]);
		end_stage<DIM>(r);
		finish_scores<PAIRS>(a, tile, me, to, score.of[PARTS - 1]);
		return;
	}
	load_stages<DIM>(a, r);
	UNROLL
	for (uint32_t i = 0; i < PARTS; i++) {
		if (first + i < from || first + i > to) {
			hide_scores(score.of[i]);
			continue;
		}
		start_scores<DIM>(q, r, 0, score.of[i]);
		wgmma_wait<0>(score.of[i]);
		end_stage<DIM>(r);
		finish_scores<PAIRS>(a, tile, me, first + i, score.of[i]);
	}
	end_turn<DIM>(r);
}

/* Starts products of weights and a part of V, which are added to acc. */
template <int DIM>
static __device__ __forceinline__ void start_values(const uint32_t (*weight)[2],
                                                    const struct group_ring *r, uint32_t ahead,
                                                    float (&acc)[DIM / 2])
{
	uint64_t v = wgmma_operand(begin_stage<DIM>(r, ahead), WGMMA_SWIZZLED, HALF_BYTES, 1024);
	UNROLL
	for (uint32_t k = 0; k < STAGE / 16; k++) {
		const uint32_t w[4] = {weight[2 * k][0], weight[2 * k][1], weight[2 * k + 1][0],
		                       weight[2 * k + 1][1]};
		wgmma_bf16<DIM, 1>(acc, w, wgmma_after(v, k * 2048), true);
	}
	wgmma_commit();
}

/* Adds weights of a chunk times V to the state. */
template <int DIM>
static __device__ __forceinline__ void add_values(const struct attention_args &a,
                                                  struct wide_thread &me, struct group_ring *r,
                                                  uint32_t chunk,
                                                  const uint32_t (&weight)[CHUNK / 8][2],
                                                  const float kept[2], const float added[2])
{
	struct shared_wgmma<DIM> &s = shared<DIM>();
	const struct wide_tile &tile = s.tile;
	float acc[DIM / 2] = {};
	uint32_t first = chunk * PARTS, from = first_part(tile, chunk), to = last_part(tile, chunk);
	if (to - from == PARTS - 1) {
		start_values<DIM>(weight, r, 0, acc);
		UNROLL
		for (uint32_t i = 1; i < PARTS; i++) {
			start_values<DIM>(weight + i * (STAGE / 8), r, 1, acc);
			wgmma_wait<1>();
			end_stage<DIM>(r);
		}
		wgmma_wait<0>(acc);
		end_stage<DIM>(r);
	} else {
		UNROLL
		for (uint32_t i = 0; i < PARTS; i++) {
			if (first + i < from || first + i > to)
				continue;
			start_values<DIM>(weight + i * (STAGE / 8), r, 0, acc);
			wgmma_wait<0>(acc);
			end_stage<DIM>(r);
		}
	}
	merge_values<DIM>(s.value, begins_run(tile, chunk), kept, acc, added);
	if (tile.bad)
		mark_values<DIM>(a, tile, me, s.value, chunk);
	end_chunk<DIM>(a, tile, me, s.value, chunk);
}

/* --- a tile -------------------------------------------------------------- */

template <int DIM>
static __device__ __forceinline__ void do_tile(const struct attention_args &a, struct group_ring *r)
{
	struct shared_wgmma<DIM> &s = shared<DIM>();
	struct wide_thread me = thread_of(a, s.tile);
	uint32_t first = s.tile.see_first / CHUNK, last = s.tile.see_last / CHUNK,
			 weight[CHUNK / 8][2]; /* weight, kept, added: of the chunk before */
	float kept[2], added[2];
	r->next = walk_begin(s.tile);
	r->next.over = !r->group;
	load_stages<DIM>(a, r);
	load_vectors<DIM, PAIRS>(a, s.tile, me, s.q[me.warp]);
	for (uint32_t chunk = first;; chunk++) {
		begin_turn<DIM>(r);
		if (chunk > first)
			add_values<DIM>(a, me, r, chunk - 1, weight, kept, added);
		if (chunk > last)
			break;
		struct scores score;
		make_scores<DIM>(a, me, r, chunk, score);
		load_stages<DIM>(a, r);
		make_weights<PAIRS>(me, score, begins_run(s.tile, chunk), weight, kept, added);
	}
	end_turn<DIM>(r);
	put_results<DIM>(a, s.tile, me, s.value);
}

template <int DIM>
static __device__ __forceinline__ void attention_wgmma(const struct attention_args &a)
{
	struct shared_wgmma<DIM> &s = shared<DIM>();
	struct group_ring ring = {__shfl_sync(ALL_LANES, threadIdx.x / LOADERS, 0)};
	if (threadIdx.x < STAGES) {
		barrier_init(&s.full[threadIdx.x], LOADERS);
		barrier_init(&s.empty[threadIdx.x], WARPS);
	}
	if (threadIdx.x < GROUPS)
		barrier_init(&s.turn[threadIdx.x], GROUP_WARPS);
	barrier_ready();
	for (uint32_t i = blockIdx.x; i < a.tiles; i += gridDim.x) {
		__syncthreads();
		find_tile(a, a.tiles - 1 - i, s.tile); /* later tiles of a span see more */
		if (s.tile.vectors)
			do_tile<DIM>(a, &ring);
	}
}

/* --- the kernels --------------------------------------------------------- */

/* Where there is no wgmma the kernels are empty, and never launched. */
template <int DIM, int EXISTS>
static __device__ __forceinline__ void if_there(const struct attention_args &a)
{
	if constexpr (EXISTS)
		attention_wgmma<DIM>(a);
}

KERNEL(attention_wgmma_64, THREADS, struct attention_args)
{
	if_there<64, WGMMA>(a);
}

KERNEL(attention_wgmma_128, THREADS, struct attention_args)
{
	if_there<128, WGMMA>(a);
}

struct wide_attention attention_wgmma_of(uint32_t dim)
{
	if (dim == 64)
		return {(const void *)attention_wgmma_64, "attention_wgmma",
		        sizeof(struct shared_wgmma<64>)};
	return {(const void *)attention_wgmma_128, "attention_wgmma", sizeof(struct shared_wgmma<128>)};
}
