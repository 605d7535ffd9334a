/* attention_prefill.cu - attention of prompts, with the bits of attention_decode.cu (attention.h):
 * for KV in bfloat16, vectors and weights rounded to it, heads of 64 or 128.
 *
 * A tile is 128 vectors, 16 for each of 8 warps, which share what is loaded: K, then V, of 64
 * positions at a time (a stage) are copied into a ring in shared memory while earlier ones are
 * multiplied. A warp has all scores of a chunk in registers, turns them into weights, which are
 * already where the tensor cores want them, and multiplies these by V.
 *
 * The kernel is written for two instructions (by_mma, by_wgmma). With wgmma two warpgroups have 64
 * vectors each and alternate: while one multiplies (V of a chunk, then K of the next), the other
 * turns its scores into weights, so that tensor cores and the rest of the multiprocessor work at
 * the same time. The first group is ahead and waits for copies. The second starts them, because it
 * is the last to use a stage.
 *
 * Why the bits are those of attention_decode.cu: each product of a vector and a row of K or V is
 * one of the same 16 that are summed at once, and sums are added in the same order: columns of K
 * and positions of V ascending, 16 at a time; weights of a chunk as if by lanes that have every
 * 32nd position, then across these lanes. Positions that are left out here and not there, or the
 * reverse, have weight 0. Where tensor cores may add 16 products in two steps (compute capability
 * 8), it matters which of them have the same place in a step: by_mma has all those of
 * attention_decode.cu. With wgmma it does not (kernel.h). */
#include "kernels/cuda/attention.h"

enum { WARPS = 8, THREADS = WARPS * WARP, GROUP_THREADS = 4 * WARP };
static_assert((int)PREFILL_VECTORS == 16 * WARPS, "a warp has 16 vectors");
static const uint32_t STAGE = 64; /* positions */
static const uint32_t PARTS = CHUNK / STAGE;
static const uint32_t PIECE = 16; /* bytes that are loaded as one */

/* Which of 16 dimensions or positions are lane t's of a group, in the order of its registers.
 * QUADS: 4t, 4t+1, 4t+2, 4t+3. PAIRS, as wgmma reads B: 2t, 2t+1, 2t+8, 2t+9. */
enum order { QUADS, PAIRS };

typedef struct words<4> warp_vectors[WARP]; /* 16 columns of a warp's vectors as registers of A */

/* Weights of 16 positions as registers of A. weight: (CHUNK / 8, 2) */
static __device__ inline struct words<4> weights_at(const uint32_t (*weight)[2], uint32_t k) {
	return {weight[2 * k][0], weight[2 * k][1], weight[2 * k + 1][0], weight[2 * k + 1][1]};
}

/* --- by mma.sync --------------------------------------------------------- */

template <int DIM>
struct by_mma {
	enum { STAGES = 4, LOADERS = THREADS, SAME_ROWS = 16 };
	static const bool ALTERNATES = false;
	static const enum order ORDER = QUADS;

	/* Where a piece of a row lies in a stage. Pieces of a row are swapped so that the lanes of a
	 * warp read different banks: K, 8 bytes of 4 rows at a time; V, 16 bytes of 8 rows. Of a row's
	 * number within SAME_ROWS this needs bits 0, 2 and 3. */
	static __device__ inline uint32_t at(uint32_t row, uint32_t piece)
	{
		return row * DIM * 2 + (piece ^ ((row & 1) << 1 | (row & 4) | (row >> 3 & 1))) * PIECE;
	}

	/* Read where they are used, for lack of registers. */
	typedef const warp_vectors *vectors;
	static __device__ inline vectors vectors_of(const warp_vectors *q)
	{
		return q;
	}

	static __device__ inline void scores(const vectors &q, const unsigned char *stage,
	                                     float (&of)[STAGE / 2])
	{
		uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
		UNROLL
		for (uint32_t i = 0; i < STAGE / 2; i++)
			of[i] = 0;
		UNROLL
		for (uint32_t c = 0; c < DIM / 16; c++) {
			/* column n of B is position 4 (n / 2) + n % 2 of each 16, or that + 2 */
			const unsigned char *from = stage + at(4 * (g / 2) + g % 2, 2 * c + t / 2) + t % 2 * 8;
			const struct words<4> own = q[c][lane];
			UNROLL
			for (uint32_t n = 0; n < STAGE / 8; n++) {
				uint32_t row = 16 * (n / 2) + 2 * (n % 2);
				mma_bf16(of + 4 * n, own.w, ((const struct words<2> *)(from + row * DIM * 2))->w);
			}
		}
	}

	static __device__ inline void values(const uint32_t (*weight)[2], const unsigned char *stage,
	                                     float (&acc)[DIM / 2])
	{
		uint32_t r = threadIdx.x % 8, matrix = threadIdx.x % WARP / 8,
				 row = 4 * (r / 2) + r % 2 + 2 * (matrix % 2);
		UNROLL
		for (uint32_t k = 0; k < STAGE / 16; k++) {
			const struct words<4> w = weights_at(weight, k);
			UNROLL
			for (uint32_t j = 0; j < DIM / 16; j++) {
				uint32_t b[4];
				load_matrices_transposed(b, stage + 16 * k * DIM * 2 + at(row, 2 * j + matrix / 2));
				mma_bf16(acc + 8 * j, w.w, b);
				mma_bf16(acc + 8 * j + 4, w.w, b + 2);
			}
		}
	}

	template <int PENDING, int N> static __device__ inline void wait(float (&)[N])
	{
	}
};

/* --- by wgmma ------------------------------------------------------------ */

/* Starts products, which are done after a wait. */
template <int DIM> struct by_wgmma {
	enum { STAGES = 8, LOADERS = GROUP_THREADS, SAME_ROWS = 8, HALF_BYTES = (int)STAGE * 128 };
	static const bool ALTERNATES = true;
	static const enum order ORDER = PAIRS;
	/* The first group has its turn when the second has started all products of the turn before, and
	 * ends their stages without waiting for the first. */
	static_assert((int)STAGES >= 2 * (int)PARTS, "the ring has no room for the stages of a turn");
	static_assert(STAGE * DIM * 2 % 1024 == 0, "a stage begins with a pattern of swizzling");

	/* by halves of a row: WGMMA_SWIZZLED */
	static __device__ inline uint32_t at(uint32_t row, uint32_t piece)
	{
		return piece / 8 * HALF_BYTES + row * 128 + (piece % 8 ^ row % 8) * PIECE;
	}

	struct vectors {
		struct words<4> of[DIM / 16];
	};
	static __device__ __forceinline__ vectors vectors_of(const warp_vectors *q)
	{
		vectors v;
		UNROLL
		for (uint32_t c = 0; c < DIM / 16; c++)
			v.of[c] = q[c][threadIdx.x % WARP];
		return v;
	}

	static __device__ __forceinline__ void scores(const vectors &q, const unsigned char *stage,
	                                              float (&of)[STAGE / 2])
	{
		uint64_t k = wgmma_operand(stage, WGMMA_SWIZZLED, 0, 1024);
		wgmma_begin();
		UNROLL
		for (uint32_t c = 0; c < DIM / 16; c++)
			wgmma_bf16<STAGE, 0>(of, q.of[c].w, wgmma_after(k, c / 4 * HALF_BYTES + c % 4 * 32),
			                     c > 0);
		wgmma_commit();
	}

	static __device__ __forceinline__ void values(const uint32_t (*weight)[2],
	                                              const unsigned char *stage, float (&acc)[DIM / 2])
	{
		uint64_t v = wgmma_operand(stage, WGMMA_SWIZZLED, HALF_BYTES, 1024);
		wgmma_begin();
		UNROLL
		for (uint32_t k = 0; k < STAGE / 16; k++)
			wgmma_bf16<DIM, 1>(acc, weights_at(weight, k).w, wgmma_after(v, k * 2048), true);
		wgmma_commit();
	}

	template <int PENDING, int N> static __device__ __forceinline__ void wait(float (&of)[N])
	{
		wgmma_wait<PENDING>(of);
	}
};

/* --- a block ------------------------------------------------------------- */

template <int DIM, class BY> struct alignas(128) prefill_shared {
	/* first, so that each begins at a multiple of 1024 */
	unsigned char stage[BY::STAGES][STAGE * DIM * 2];
	warp_vectors q[WARPS][DIM / 16];
	/* Values of the run's state: value 4 j + 2 h + e of a thread is vector h's of column 8 j + 2 t
	 * + e. */
	float value[DIM / 2][THREADS];
	struct attention_tile tile;
	/* where the rows of K that a warp loads begin in the pool, of a chunk's parts */
	uint64_t rows[BY::LOADERS / WARP][PARTS * STAGE * WARP / BY::LOADERS];
	/* barriers of the ring's slots: the stage's bytes have arrived; all warps have used them */
	uint64_t full[BY::STAGES], empty[BY::STAGES];
	uint64_t turn[2]; /* barriers: the other group has had its turn */
	/* positions that any of a warp's vectors sees; first > last: it has none */
	uint32_t first[WARPS], last[WARPS];
};

static_assert(sizeof(struct prefill_shared<128, by_mma<128>>) <= 163 << 10 &&
                  sizeof(struct prefill_shared<128, by_wgmma<128>>) <= 227 << 10,
              "it does not fit into a multiprocessor of compute capability 8.0, or 9.0");

/* A thread. Its two vectors are rows g and g + 8 of its warp's (mma_bf16). */
template <int DIM, class BY> struct prefill {
	const struct attention_args &a;
	struct prefill_shared<DIM, BY> &s;
	uint32_t warp, g, t;
	uint32_t group; /* of warps, if groups alternate; else 0 */
	/* The ring: stage n is in slot n % STAGES; numbers go on from tile to tile. Stages that the
	 * warp has used; whose copies it has started; turns that it has begun. */
	uint32_t ended, loaded, turns;
	/* The next stage to load: STAGE positions, counted from the context's start. In order: K of a
	 * chunk's parts, V of the same, the next chunk. */
	uint32_t next_part;
	bool next_of_v, all_loaded;
	uint32_t first[2],
		last[2]; /* with wgmma: positions that each vector sees; first > last: none */
	struct softmax_state run[2], all[2]; /* of the current run; of the earlier ones */
	uint32_t weight[CHUNK / 8][2];       /* of the latest chunk, as registers of A */
	float kept[2], added[2];             /* factors of values, its run's and its own */

	/* Of a stage a thread loads COUNT pieces of one column, ROWS rows apart; a warp pieces of
	 * ALL_ROWS rows: WARP_ROWS neighbours, those ROWS rows on, and so on. */
	enum {
		PIECES = DIM * 2 / (int)PIECE,
		ROWS = BY::LOADERS / PIECES,
		COUNT = (int)STAGE / ROWS,
		WARP_ROWS = (int)WARP / PIECES,
		ALL_ROWS = COUNT * WARP_ROWS
	};
	static_assert((int)ROWS % (int)BY::SAME_ROWS == 0, "a thread's pieces are swapped alike");

	/* --- loading --- */

	__device__ inline uint32_t first_part(uint32_t chunk) const
	{
		uint32_t see = s.tile.sees.first / STAGE;
		return chunk * PARTS > see ? chunk * PARTS : see;
	}

	__device__ inline uint32_t last_part(uint32_t chunk) const
	{
		uint32_t see = s.tile.sees.last / STAGE;
		return chunk * PARTS + PARTS - 1 < see ? chunk * PARTS + PARTS - 1 : see;
	}

	/* Whether all vectors see all positions of a part. */
	__device__ inline bool all_see(uint32_t part) const
	{
		return part * STAGE >= s.tile.sees.all_first &&
		       part * STAGE + STAGE - 1 <= s.tile.sees.all_last;
	}

	/* Starts copying the next stage to `to`. What no vector sees becomes zeros and is not read: its
	 * block may be another sequence's. */
	__device__ inline void load_stage(unsigned char *to)
	{
		const struct attention_sees &sees = s.tile.sees;
		uint32_t thread = threadIdx.x % BY::LOADERS, own = thread / PIECES, piece = thread % PIECES,
				 chunk = next_part / PARTS, from = next_part * STAGE + own - sees.first;
		uint64_t *rows = s.rows[thread / WARP], row[COUNT],
				 column = piece * PIECE + (next_of_v ? kv_shape_of(a.kv).plane_bytes : 0);
		if (!next_of_v && next_part == first_part(chunk)) {
			__syncwarp(); /* the rows before are no longer read */
			UNROLL
			for (uint32_t i = thread % WARP; i < PARTS * ALL_ROWS; i += WARP) {
				uint32_t p = chunk * CHUNK + i / WARP_ROWS * ROWS + thread / WARP * WARP_ROWS +
				             i % WARP_ROWS;
				rows[i] = p >= sees.first && p <= sees.last ? (uint64_t)kv_row(a, s.tile, false, p)
				                                            : a.kv.base.v;
			}
			__syncwarp();
		}
		UNROLL
		for (uint32_t i = 0; i < COUNT; i++)
			row[i] = rows[next_part % PARTS * ALL_ROWS + i * WARP_ROWS + own % WARP_ROWS];
		UNROLL
		for (uint32_t i = 0; i < COUNT; i++)
			copy_async_16(to + BY::at(own, piece) + i * (BY::at(ROWS, 0) - BY::at(0, 0)),
			              (const unsigned char *)(row[i] + column),
			              from + i * ROWS <= sees.last - sees.first);
	}

	/* Clears what is not finite among the pieces that the thread has copied. */
	__device__ inline void clear_stage(unsigned char *stage)
	{
		uint32_t thread = threadIdx.x % BY::LOADERS;
		copy_async_wait();
		for (uint32_t i = 0; i < COUNT; i++) {
			uint32_t at = BY::at(thread / PIECES + i * ROWS, thread % PIECES);
			if (clear_unbounded<PIECE / 4, true>((uint32_t *)(stage + at), KERN_BF16))
				s.tile.unbounded = 1;
		}
		if (BY::ALTERNATES)
			wgmma_publish();
	}

	/* Starts the copies of all stages for which there is room. */
	__device__ inline void load_stages()
	{
		for (; loaded < ended + BY::STAGES && !all_loaded; loaded++) {
			uint32_t slot = loaded % BY::STAGES, chunk = next_part / PARTS;
			if (loaded >= BY::STAGES)
				barrier_wait(&s.empty[slot], loaded / BY::STAGES - 1);
			load_stage(s.stage[slot]);
			if (next_of_v && !all_see(next_part)) {
				clear_stage(s.stage[slot]);
				barrier_arrive(&s.full[slot]);
			} else {
				barrier_arrive_copied(&s.full[slot]);
			}
			if (next_part != last_part(chunk)) {
				next_part++;
			} else {
				all_loaded = next_of_v && next_part == s.tile.sees.last / STAGE;
				next_part = next_of_v ? next_part + 1 : first_part(chunk);
				next_of_v = !next_of_v;
			}
		}
	}

	/* Waits for a stage: number `ahead` of those that have not ended.
	 *
	 * Between copies into a slot of the ring and each wgmma that reads them there must be a fence
	 * (wgmma_publish). The order is: copies, `full`, the first group's fence and wgmma, `turn`, the
	 * second group's wgmma, `empty`, the next copies. So the only threads with a fence are those
	 * that have no copies in progress, for which it might wait. */
	__device__ inline const unsigned char *begin_stage(uint32_t ahead)
	{
		uint32_t number = ended + ahead, slot = number % BY::STAGES;
		if (!BY::ALTERNATES)
			load_stages();
		if (!group)
			barrier_wait(&s.full[slot], number / BY::STAGES);
		if (BY::ALTERNATES && !group)
			wgmma_publish();
		return s.stage[slot];
	}

	/* This warp no longer reads the earliest stage that has not ended. */
	__device__ inline void end_stage()
	{
		uint32_t number = ended++;
		__syncwarp();
		if (threadIdx.x % WARP == 0)
			barrier_arrive(&s.empty[number % BY::STAGES]);
	}

	__device__ inline void begin_turn()
	{
		uint32_t number = turns++;
		if (BY::ALTERNATES && (group || number))
			barrier_wait(&s.turn[group], group ? number : number - 1);
	}

	__device__ inline void end_turn()
	{
		if (BY::ALTERNATES && threadIdx.x % WARP == 0)
			barrier_arrive(&s.turn[!group]);
	}

	/* --- scores and weights ---
	 * Scores of a part: [4 n + 2 h + e] is vector h's of position 16 (n / 2) + place 2 (n % 2) + e
	 * of the thread (enum order), so that weights of 16 positions lie as A wants them. */
	struct scores {
		float of[PARTS][STAGE / 2];
	};

	/* With mma.sync warps leave out products of what they do not see. */
	__device__ inline bool multiplies(uint32_t part) const
	{
		return BY::ALTERNATES ||
		       (part * STAGE <= s.last[warp] && part * STAGE + STAGE > s.first[warp]);
	}

	/* What the thread's vectors see. With mma.sync it is computed again, for lack of registers. */
	__device__ inline void vectors_see(uint32_t from[2], uint32_t to[2]) const
	{
		UNROLL
		for (int h = 0; h < 2; h++)
			if (BY::ALTERNATES) {
				from[h] = first[h];
				to[h] = last[h];
			} else {
				vector_sees(a, s.tile, 16 * warp + g + 8 * h, &from[h], &to[h]);
			}
	}

	/* Ends a part's stage, scales its products, hides positions that the vector does not see. */
	__device__ inline void finish_scores(uint32_t part, float (&of)[STAGE / 2])
	{
		end_stage();
		bool all = all_see(part);
		UNROLL
		for (uint32_t i = 0; i < STAGE / 2; i++)
			of[i] *= a.scale;
		if (all)
			return;
		uint32_t from[2], to[2];
		vectors_see(from, to);
		UNROLL
		for (uint32_t i = 0; i < STAGE / 2; i++) {
			uint32_t n = i / 4, h = i / 2 % 2, e = 2 * (n % 2) + i % 2,
					 p = part * STAGE + 16 * (n / 2) +
			             (BY::ORDER == QUADS ? 4 * t + e : 2 * t + e % 2 + 8 * (e / 2));
			of[i] = p >= from[h] && p <= to[h] ? of[i] : -INFINITY;
		}
	}

	/* Makes the scores of a chunk and ends the turn. If groups alternate and the chunk is whole, a
	 * part is multiplied while the one before is finished, and the turn ends before the last
	 * products are done. */
	__device__ __forceinline__ void make_scores(uint32_t chunk, struct scores &score)
	{
		uint32_t base = chunk * PARTS, from = first_part(chunk), to = last_part(chunk);
		const typename BY::vectors q = BY::vectors_of(s.q[warp]);
		if (BY::ALTERNATES && to - from == PARTS - 1) {
			BY::scores(q, begin_stage(0), score.of[0]);
			UNROLL
			for (uint32_t i = 1; i < PARTS; i++) {
				BY::scores(q, begin_stage(1), score.of[i]);
				if (i == 1)
					load_stages();
				if (i == PARTS - 1)
					end_turn();
				BY::template wait<1>(score.of[i - 1]);
				finish_scores(base + i - 1, score.of[i - 1]);
			}
			BY::template wait<0>(score.of[PARTS - 1]);
			finish_scores(to, score.of[PARTS - 1]);
			return;
		}
		load_stages();
		UNROLL
		for (uint32_t i = 0; i < PARTS; i++) {
			UNROLL
			for (uint32_t k = 0; k < STAGE / 2; k++)
				score.of[i][k] = -INFINITY;
			if (base + i < from || base + i > to)
				continue;
			const unsigned char *stage = begin_stage(0);
			if (multiplies(base + i))
				BY::scores(q, stage, score.of[i]);
			BY::template wait<0>(score.of[i]);
			finish_scores(base + i, score.of[i]);
		}
		end_turn();
	}

	/* The sum of a chunk's weights over the lanes of a group. lane: the thread's sums of positions
	 * that are equal within 32, [2 (n % 4) + e]. Adds what is 16, 8, 4, 2, 1 positions apart. */
	static __device__ inline float sum_lanes(const float lane[8])
	{
		constexpr int N = BY::ORDER == QUADS ? 4 : 2;
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

	/* Merges the chunk's largest score and sum into the run's. */
	__device__ __forceinline__ void make_weights(uint32_t chunk, const struct scores &score)
	{
		UNROLL
		for (int h = 0; h < 2; h++) {
			float max = -INFINITY, lane[8] = {};
			UNROLL
			for (uint32_t i = 0; i < CHUNK / 4; i++)
				max = state_max(max, score.of[i / 16][i % 16 / 2 * 4 + 2 * h + i % 2]);
			max = state_max(max, __shfl_xor_sync(ALL_LANES, max, 1));
			max = state_max(max, __shfl_xor_sync(ALL_LANES, max, 2));
			float base = max == -INFINITY ? 0.0f : max;
			UNROLL
			for (uint32_t n = 0; n < CHUNK / 8; n++) {
				float w[2];
				UNROLL
				for (int e = 0; e < 2; e++) {
					w[e] = expf(score.of[n / 8][n % 8 * 4 + 2 * h + e] - base);
					lane[n % 4 * 2 + e] += w[e];
				}
				weight[n][h] = bf16_pair(w[0], w[1]);
			}
			if (begins_run(chunk))
				run[h] = EMPTY_STATE;
			state_add(&run[h], softmax_state{max, sum_lanes(lane)}, &kept[h], &added[h]);
		}
	}

	/* --- values --- */

	/* Whether a chunk is the first of a run, of those that the tile sees. */
	__device__ inline bool begins_run(uint32_t chunk) const
	{
		return chunk == s.tile.item.first || chunk % RUN_CHUNKS == 0;
	}

	/* Sets values of vectors that see elements of V which clear_stage has cleared to NaN, which
	 * they stay. Reads V again: this is rare. */
	__device__ inline void mark_values(uint32_t chunk)
	{
		uint32_t from[2], to[2];
		vectors_see(from, to);
		UNROLL
		for (int h = 0; h < 2; h++)
			for (uint32_t p = chunk * CHUNK; p < (chunk + 1) * CHUNK; p++)
				for (int i = 0; i < DIM / 4 && p >= from[h] && p <= to[h]; i++)
					if (is_unbounded<true>(kv_row(a, s.tile, true, p), i / 2 * 8 + 2 * t + i % 2,
					                       KERN_BF16))
						s.value[i / 2 * 4 + 2 * h + i % 2][threadIdx.x] = NAN;
	}

	/* Merges the run's state into that of the earlier runs, in memory of the block; the last run
	 * leaves the result in the thread's own. */
	__device__ inline void merge_run(bool is_first, bool is_last)
	{
		float *runs = a.runs + (size_t)blockIdx.x * (DIM / 2) * THREADS;
		UNROLL
		for (int h = 0; h < 2; h++) {
			float run_kept, run_added;
			state_add(&all[h], run[h], &run_kept, &run_added);
			for (int i = 0; i < DIM / 4 && !(is_first && is_last); i++) {
				uint32_t at = (i / 2 * 4 + 2 * h + i % 2) * THREADS + threadIdx.x;
				float *value = &s.value[0][0] + at;
				(is_last ? value : runs + at)[0] = state_merge(is_first ? 0 : runs[at], run_kept,
				                                               *value, run_added);
			}
		}
	}

	/* Adds weights of a chunk times V to the state of its run, and that to those before if it is
	 * the run's last. */
	__device__ __forceinline__ void add_values(uint32_t chunk)
	{
		float acc[DIM / 2] = {};
		uint32_t base = chunk * PARTS, from = first_part(chunk), to = last_part(chunk);
		if (BY::ALTERNATES && to - from == PARTS - 1) {
			BY::values(weight, begin_stage(0), acc);
			UNROLL
			for (uint32_t i = 1; i < PARTS; i++) {
				BY::values(weight + i * (STAGE / 8), begin_stage(1), acc);
				BY::template wait<1>(acc);
				end_stage();
			}
			BY::template wait<0>(acc);
			end_stage();
		} else {
			UNROLL
			for (uint32_t i = 0; i < PARTS; i++) {
				if (base + i < from || base + i > to)
					continue;
				const unsigned char *stage = begin_stage(0);
				if (multiplies(base + i))
					BY::values(weight + i * (STAGE / 8), stage, acc);
				BY::template wait<0>(acc);
				end_stage();
			}
		}
		bool fresh = begins_run(chunk), is_last = chunk + 1 == s.tile.item.end;
		UNROLL
		for (int i = 0; i < DIM / 2; i++) {
			float *v = &s.value[i][threadIdx.x];
			*v = state_merge(fresh ? 0 : *v, kept[i / 2 % 2], acc[i], added[i / 2 % 2]);
		}
		if (s.tile.unbounded)
			mark_values(chunk);
		if (is_last || (chunk + 1) % RUN_CHUNKS == 0)
			merge_run(chunk / RUN_CHUNKS == s.tile.item.first / RUN_CHUNKS, is_last);
	}

	/* --- a tile --- */

	/* Stores the vectors as registers of A: 16 columns, and then 16 others. */
	__device__ inline void load_vectors()
	{
		uint32_t begin = 16 * warp, left = s.tile.vectors - begin;
		struct attention_sees sees = {UINT32_MAX};
		if (begin < s.tile.vectors && !BY::ALTERNATES)
			sees = tile_sees(s.tile.span, s.tile.item.begin + begin, left < 16 ? left : 16, a.group,
			                 a.window);
		if (!BY::ALTERNATES) { /* by all lanes alike */
			s.first[warp] = sees.first;
			s.last[warp] = sees.last;
		}
		UNROLL
		for (int h = 0; h < 2; h++) {
			uint32_t row, head, v = begin + g + 8 * h;
			all[h] = EMPTY_STATE;
			vector_sees(a, s.tile, v, &first[h], &last[h]);
			find_vector(a, s.tile, v, &row, &head);
			for (uint32_t k = 0; k < DIM / 16; k++) {
				float x[4] = {0, 0, 0, 0};
				UNROLL
				for (uint32_t e = 0; e < 4 && v < s.tile.vectors; e++)
					x[e] = tensor_get(a.q, row,
					                  head * DIM + 16 * k +
					                      (BY::ORDER == QUADS ? 4 * t + e
					                                          : 2 * t + e % 2 + 8 * (e / 2)));
				s.q[warp][k][threadIdx.x % WARP].w[h] = bf16_pair(x[0], x[1]);
				s.q[warp][k][threadIdx.x % WARP].w[2 + h] = bf16_pair(x[2], x[3]);
			}
		}
	}

	__device__ inline void put_results()
	{
		UNROLL
		for (int h = 0; h < 2; h++) {
			uint32_t row, head, v = 16 * warp + g + 8 * h;
			if (v >= s.tile.vectors)
				continue;
			find_vector(a, s.tile, v, &row, &head);
			float end = state_end(all[h], a.sinks, head);
			for (int i = 0; i < DIM / 4; i++)
				tensor_put(a.out, row, head * DIM + i / 2 * 8 + 2 * t + i % 2,
				           state_result(s.value[i / 2 * 4 + 2 * h + i % 2][threadIdx.x], end));
		}
	}

	__device__ __forceinline__ void do_tile()
	{
		next_part = s.tile.sees.first / STAGE;
		next_of_v = false;
		all_loaded = BY::ALTERNATES && !group;
		load_stages();
		load_vectors();
		for (uint32_t chunk = s.tile.item.first;; chunk++) {
			begin_turn();
			if (chunk > s.tile.item.first)
				add_values(chunk - 1);
			if (chunk == s.tile.item.end)
				break;
			struct scores score;
			make_scores(chunk, score);
			load_stages();
			make_weights(chunk, score);
		}
		end_turn();
		put_results();
	}
};

template <int DIM, class BY>
static __device__ __forceinline__ void attention_body(const struct attention_args &a)
{
	uint32_t drawn = blockIdx.x - gridDim.x, lane = threadIdx.x % WARP;
	struct prefill<DIM, BY> me = {
		a, *(struct prefill_shared<DIM, BY> *)shared_memory(), threadIdx.x / WARP, lane / 4,
			lane % 4
	};
	if (BY::ALTERNATES) /* equal in a warp, as the compiler then knows */
		me.group = __shfl_sync(ALL_LANES, threadIdx.x / GROUP_THREADS, 0);
	if (threadIdx.x < BY::STAGES) {
		barrier_init(&me.s.full[threadIdx.x], BY::LOADERS);
		barrier_init(&me.s.empty[threadIdx.x], WARPS);
	}
	if (threadIdx.x < 2)
		barrier_init(&me.s.turn[threadIdx.x], WARPS / 2);
	barrier_ready();
	while (next_tile(a, &drawn, me.s.tile))
		me.do_tile();
}

/* --- the kernels --------------------------------------------------------- */

KERNEL(attention_prefill_64, THREADS, struct attention_args)
{
	attention_body<64, by_mma<64>>(a);
}

KERNEL(attention_prefill_128, THREADS, struct attention_args)
{
	attention_body<128, by_mma<128>>(a);
}

/* Where there is no wgmma the next two are empty, and never launched. */
KERNEL(attention_wgmma_64, THREADS, struct attention_args)
{
	if (WGMMA)
		attention_body<64, by_wgmma<64>>(a);
}

KERNEL(attention_wgmma_128, THREADS, struct attention_args)
{
	if (WGMMA)
		attention_body<128, by_wgmma<128>>(a);
}

struct attention_kernel attention_prefill_kernel(const struct plan *p,
                                                 const struct attention_args *a)
{
#define PREFILL_KERNEL(NAME, DIM, BY) \
	(const void *)NAME, #NAME, THREADS, sizeof(struct prefill_shared<DIM, BY<DIM>>)
	static const struct attention_kernel kernels[2][2] = {
		{{PREFILL_KERNEL(attention_prefill_64, 64, by_mma)},
	     {PREFILL_KERNEL(attention_prefill_128, 128, by_mma)}},
		{{PREFILL_KERNEL(attention_wgmma_64, 64, by_wgmma)},
	     {PREFILL_KERNEL(attention_wgmma_128, 128, by_wgmma)}},
	};
	uint32_t dim = a->kv.head_dim;
	const struct attention_kernel *k = &kernels[p->wgmma][dim == 128];
	if (!p->dev->bf16_activations || a->kv.dtype != KERN_BF16 || a->kv.latent ||
	    (dim != 64 && dim != 128) || a->kv.base.v % PIECE || a->kv.block_stride_bytes % PIECE ||
	    k->shared_bytes > (size_t)p->dev->shared_max)
		return {};
	return *k;
}
