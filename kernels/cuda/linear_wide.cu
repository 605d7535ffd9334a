/* linear_wide.cu - products for many rows with rounded activations, on tensor cores that multiply
 * for four warps at once (wgmma: compute capability 9.0). Same bits as linear_mma.cu.
 *
 * A block has 128 rows of the weight and COLUMNS rows of x, which are the columns of the results.
 * Each of its 8 warps reads one panel of the weight into registers, as in linear_mma.cu; x comes
 * into a ring in shared memory, a step of 32 columns at a time, and is B of all warps. Two blocks
 * are a cluster: they have the same rows of x, each reads half of them and writes it into the shared
 * memory of both. So the L2 cache gives a byte of the weight for COLUMNS rows of x, and one of x for
 * 256 rows of the weight: with 256 rows of x, 128 operations a byte (linear_mma.cu: 42).
 *
 * Why the bits are the same: a wgmma sums the same 16 products as an mma.sync does, of the same
 * numbers, and the tensor cores of these devices add 16 products and the accumulator as one sum,
 * which has no order (MMA-Sim, arXiv:2511.10909, found the same sum for both instructions). What
 * follows is done in the same order: sums of a step, of a segment, of all segments. The self-test
 * of envelope.c compares the two on the device at hand; where they differ, linear_mma.cu does
 * all. */
#include "kernels/cuda/linear_mma.h"

enum {
	WARPS = WIDE_PANELS,
	THREADS = WARPS * WARP,
	STAGES = 5,
	STAGES_AHEAD = STAGES - 2,
	CLUSTER = 2
};

/* Columns of a wgmma. */
template <int COLUMNS> constexpr int PART = COLUMNS < 128 ? COLUMNS : 128;

template <int COLUMNS> struct alignas(128) wide_products {
	/* a step of x: for 8 rows at a time, 4 matrices of 8 rows by 16 bytes (WGMMA_PLAIN) */
	unsigned char x[STAGES][COLUMNS * STEP_BYTES];
	float sums[STAGES][COLUMNS];
	/* each thread's results, sums of segments: as registers of mma_bf16's d, 8 rows of x at a time */
	struct alignas(16) {
		float of[4];
	} total[COLUMNS / TILE_ROWS][THREADS];
	/* of the block's rows of x: their numbers in struct ready, NO_ROW: there is none */
	uint32_t row[COLUMNS];
	int exponent[COLUMNS];
	/* barriers of the ring's slots: the step's bytes have come; all warps of the cluster are done with
	 * them */
	uint64_t full[STAGES], empty[STAGES];
	/* (not with GATHER) step 0 of the block's rows in struct ready */
	const unsigned char *parts;
	const float *sums_at;
};

/* (unused where there is no wgmma) */
[[maybe_unused]] static const uint32_t NO_ROW = 0xffffffff;
/* a step of 8 rows of x, of a group of rows */
[[maybe_unused]] static const uint32_t TILE_BYTES = TILE_ROWS * STEP_BYTES,
									   GROUP_BYTES = READY_GROUP * STEP_BYTES;

template <int COLUMNS> static __device__ inline struct wide_products<COLUMNS> &shared(void) {
	return *(struct wide_products<COLUMNS> *)shared_memory();
}

template <int COLUMNS, bool GATHER>
static __device__ inline void begin(const struct product_args &a, const struct task &t)
{
	struct wide_products<COLUMNS> &s = shared<COLUMNS>();
	for (uint32_t i = threadIdx.x; i < COLUMNS; i += THREADS) {
		bool there = i < t.rows;
		s.row[i] = there ? t.of->input * a.ready.rows + input_row(a, t.first + i) : NO_ROW;
		s.exponent[i] = there ? a.ready.exponents[s.row[i]] : 0;
	}
	if (threadIdx.x == 0) {
		size_t row = (size_t)t.of->input * a.ready.rows + t.first;
		s.parts = a.ready.parts + row / READY_GROUP * a.ready.steps * GROUP_BYTES;
		if (a.ready.sums)
			s.sums_at = a.ready.sums + (size_t)t.of->input * a.ready.steps * a.ready.rows + t.first;
	}
	if (threadIdx.x < STAGES) {
		barrier_init(&s.full[threadIdx.x], GATHER ? THREADS : 1);
		barrier_init(&s.empty[threadIdx.x], CLUSTER * WARPS);
	}
	barrier_ready();
	if (GATHER)
		__syncthreads();
	else
		cluster_meet();
}

/* --- a step of x --------------------------------------------------------- */

/* Starts this block's part of a step's copies, for both blocks of the cluster, with one thread:
 * whole groups of rows. The last may have rows that are not the batch's; nothing is stored for
 * them. */
template <int TYPE, int COLUMNS>
static __device__ inline void load_groups(const struct product_args &a, const struct task &t,
                                          uint32_t step)
{
	struct wide_products<COLUMNS> &s = shared<COLUMNS>();
	uint32_t slot = step % STAGES, groups = (t.rows + READY_GROUP - 1) / READY_GROUP,
			 sums_bytes = has_offset<TYPE> ? groups * READY_GROUP * (uint32_t)sizeof(float) : 0;
	if (threadIdx.x)
		return;
	if (step >= STAGES)
		barrier_wait(&s.empty[slot], step / STAGES - 1);
	barrier_expect(&s.full[slot], groups * GROUP_BYTES + sums_bytes);
	UNROLL
	for (uint32_t n = 0; n < (COLUMNS / READY_GROUP + CLUSTER - 1) / CLUSTER; n++) {
		uint32_t i = n * CLUSTER + cluster_rank();
		if (i < groups)
			copy_bulk_both(s.x[slot] + i * GROUP_BYTES,
			               s.parts + ((size_t)i * a.ready.steps + step) * GROUP_BYTES, GROUP_BYTES,
			               &s.full[slot]);
	}
	if (sums_bytes && cluster_rank() == CLUSTER - 1)
		copy_bulk_both(s.sums[slot], s.sums_at + (size_t)step * a.ready.rows, sums_bytes,
		               &s.full[slot]);
}

/* The same for rows of any numbers, piece by piece; with an empty part where there is no such step.
 * gathered() must follow. */
template <int TYPE, int COLUMNS>
static __device__ inline void load_rows(const struct product_args &a, uint32_t step)
{
	struct wide_products<COLUMNS> &s = shared<COLUMNS>();
	uint32_t slot = step % STAGES, lane = threadIdx.x % WARP, of = lane % TILE_ROWS,
			 piece = lane / TILE_ROWS;
	UNROLL
	for (uint32_t i = 0; i < COLUMNS * 4 / THREADS && step < a.ready.steps; i++) {
		uint32_t tile = i * WARPS + threadIdx.x / WARP, row = s.row[tile * TILE_ROWS + of];
		const unsigned char *from = a.ready.parts;
		if (row != NO_ROW)
			from += ((size_t)(row / READY_GROUP) * a.ready.steps + step) * GROUP_BYTES +
			        row % READY_GROUP / TILE_ROWS * TILE_BYTES + piece * 128 + row % TILE_ROWS * 16;
		copy_async_16(s.x[slot] + tile * TILE_BYTES + piece * 128 + of * 16, from, row != NO_ROW);
	}
	if (has_offset<TYPE> && step < a.ready.steps)
		for (uint32_t i = threadIdx.x; i < COLUMNS; i += THREADS) {
			uint32_t row = s.row[i];
			bool there = row != NO_ROW;
			copy_async_4(&s.sums[slot][i],
			             a.ready.sums + (there ? (size_t)step * a.ready.rows + row : 0), there);
		}
	copy_async_commit();
}

/* This thread's pieces of a step have come, and at most PENDING later steps are on their way. */
template <int COLUMNS, int PENDING> static __device__ inline void gathered(uint32_t step)
{
	copy_async_wait<PENDING>();
	wgmma_publish();
	barrier_arrive(&shared<COLUMNS>().full[step % STAGES]);
}

template <int TYPE, int COLUMNS, bool GATHER>
static __device__ inline void begin_stages(const struct product_args &a, const struct task &t)
{
	for (uint32_t i = 0; i < STAGES_AHEAD; i++)
		if (GATHER)
			load_rows<TYPE, COLUMNS>(a, i);
		else if (i < a.ready.steps)
			load_groups<TYPE, COLUMNS>(a, t, i);
	if (GATHER)
		gathered<COLUMNS, STAGES_AHEAD - 1>(0);
	__syncwarp();
}

/* Waits for a step, and starts the copies of a later one, whose slot had the step before the last.
 * With GATHER each thread arrives for this step only after it has ended that one. The last arrival
 * is for a step that there is not, and that nobody waits for. */
template <int TYPE, int COLUMNS, bool GATHER>
static __device__ inline void next_stage(const struct product_args &a, const struct task &t,
                                         uint32_t step)
{
	if (GATHER)
		gathered<COLUMNS, STAGES_AHEAD - 2>(step + 1);
	barrier_wait(&shared<COLUMNS>().full[step % STAGES], step / STAGES);
	if (GATHER)
		load_rows<TYPE, COLUMNS>(a, step + STAGES_AHEAD);
	else if (step + STAGES_AHEAD < a.ready.steps)
		load_groups<TYPE, COLUMNS>(a, t, step + STAGES_AHEAD);
	__syncwarp();
}

/* This warp no longer reads the step. */
template <int COLUMNS, bool GATHER> static __device__ inline void end_stage(uint32_t step)
{
	__syncwarp();
	if (!GATHER && threadIdx.x % WARP < CLUSTER)
		barrier_arrive_at(&shared<COLUMNS>().empty[step % STAGES], threadIdx.x % WARP);
}

/* --- products ------------------------------------------------------------ */

/* acc += a step: records times x. */
template <int TYPE, int COLUMNS>
static __device__ __forceinline__ void add_stage(
	float (&acc)[COLUMNS / PART<COLUMNS>][PART<COLUMNS> / 2], const struct weight_record &r,
	uint32_t step, uint32_t rows)
{
	constexpr int N = PART<COLUMNS>;
	struct wide_products<COLUMNS> &s = shared<COLUMNS>();
	const uint32_t t = threadIdx.x % 4;
	const float *sums = s.sums[step % STAGES];
	uint32_t w[2][4];
	unpack_codes<TYPE>(r, w);
	const struct row_scales scales[2] = {row_scales_of<TYPE>(r, 0), row_scales_of<TYPE>(r, 1)};
	uint64_t x = wgmma_operand(s.x[step % STAGES], WGMMA_PLAIN, 128, TILE_BYTES);
	UNROLL
	for (uint32_t part = 0; part < (uint32_t)(COLUMNS / N); part++) {
		if (part && rows <= part * N)
			continue;
		float d[N / 2];
		UNROLL
		for (int j = 0; j < 2; j++) {
			bool alone = TYPE == KERN_Q6_K; /* one scale per 16 values */
			if (j == 0 || alone)
				wgmma_begin();
			wgmma_bf16<N, 0>(d, w[j], wgmma_after(x, part * N * STEP_BYTES + j * 256), j && !alone);
			if (j == 0 && !alone)
				continue;
			wgmma_end(d);
			UNROLL
			for (int i = 0; i < N / 8; i++) {
				float of[2] = {0, 0};
				if constexpr (has_offset<TYPE>) {
					of[0] = sums[part * N + 8 * i + 2 * t];
					of[1] = sums[part * N + 8 * i + 2 * t + 1];
				}
				add_sum<TYPE>(acc[part] + 4 * i, scales[alone ? j : 0], d + 4 * i, of);
			}
		}
	}
}

/* Adds a segment's sums to the results, and clears them. */
template <int COLUMNS>
static __device__ __forceinline__ void end_segment(
	float (&acc)[COLUMNS / PART<COLUMNS>][PART<COLUMNS> / 2], bool first)
{
	constexpr int N = PART<COLUMNS>;
	UNROLL
	for (int tile = 0; tile < COLUMNS / (int)TILE_ROWS; tile++) {
		auto *at = &shared<COLUMNS>().total[tile][threadIdx.x], total = *at;
		UNROLL
		for (int i = 0; i < 4; i++) {
			float *sum = &acc[tile / (N / 8)][tile % (N / 8) * 4 + i];
			total.of[i] = (first ? 0.0f : total.of[i]) + *sum;
			*sum = 0;
		}
		*at = total;
	}
}

template <int COLUMNS>
static __device__ __forceinline__ void put_results(const struct product_args &a,
                                                   const struct task &t, uint32_t panel)
{
	const struct wide_products<COLUMNS> &s = shared<COLUMNS>();
	uint32_t lane = threadIdx.x % WARP, column = panel * PANEL_ROWS + lane / 4;
	for (uint32_t tile = 0; tile * TILE_ROWS < t.rows; tile++) {
		auto total = s.total[tile][threadIdx.x];
		UNROLL
		for (uint32_t i = 0; i < 2; i++) {
			uint32_t at = tile * TILE_ROWS + lane % 4 * 2 + i, row;
			if (at >= t.rows)
				continue;
			row = output_row(a, t.first + at);
			int e = s.exponent[at];
			if (column < t.of->w.n)
				task_put(t, row, column, times_power(total.of[i], e));
			if (column + 8 < t.of->w.n)
				task_put(t, row, column + 8, times_power(total.of[2 + i], e));
		}
	}
}

template <int TYPE, int COLUMNS, bool GATHER>
static __device__ __forceinline__ void product_wide(const struct product_args &a)
{
	constexpr int N = PART<COLUMNS>;
	constexpr uint32_t AHEAD = 2; /* records */
	struct task t;
	if (!task_find(a, PRODUCT_WIDE, blockIdx.x, &t))
		return;
	if (GATHER && t.block * WIDE_PANELS * PANEL_ROWS >= t.of->w.n)
		return;
	begin<COLUMNS, GATHER>(a, t);
	begin_stages<TYPE, COLUMNS, GATHER>(a, t);
	uint32_t lane = threadIdx.x % WARP, panels = (t.of->w.n + PANEL_ROWS - 1) / PANEL_ROWS,
			 index = t.block * WIDE_PANELS + threadIdx.x / WARP, k = t.of->w.k,
			 steps = a.ready.steps;
	/* warps without a panel take part with another's, and store nothing */
	const struct panel panel = panel_of<TYPE>(t.of->w, t.data, index < panels ? index : panels - 1,
	                                          lane);
	struct weight_record ahead[AHEAD];
	UNROLL
	for (uint32_t i = 0; i < AHEAD; i++)
		load_record<TYPE>(ahead[i], panel, i < steps ? i : steps - 1, k, lane);
	float acc[COLUMNS / N][N / 2] = {};
	for (uint32_t segment = 0, step = 0; segment < t.of->segments; segment++) {
		for (uint32_t to = segment_begin(*t.of, segment + 1); step < to; step++) {
			next_stage<TYPE, COLUMNS, GATHER>(a, t, step);
			struct weight_record now = ahead[0];
			UNROLL
			for (uint32_t i = 0; i + 1 < AHEAD; i++)
				ahead[i] = ahead[i + 1];
			load_record<TYPE>(ahead[AHEAD - 1], panel,
			                  step + AHEAD < steps ? step + AHEAD : steps - 1, k, lane);
			add_stage<TYPE, COLUMNS>(acc, now, step, t.rows);
			end_stage<COLUMNS, GATHER>(step);
		}
		end_segment<COLUMNS>(acc, segment == 0);
	}
	if (GATHER)
		copy_async_wait<0>();
	else
		cluster_meet(); /* the other block no longer arrives at barriers of this one */
	put_results<COLUMNS>(a, t, index);
}

/* --- the kernels --------------------------------------------------------- */

/* Where there is no wgmma the kernels are empty, and never launched. */
template <int TYPE, int COLUMNS, bool GATHER, int EXISTS>
static __device__ __forceinline__ void if_there(const struct product_args &a)
{
	if constexpr (EXISTS)
		product_wide<TYPE, COLUMNS, GATHER>(a);
}

#define WIDE_KERNELS(NAME, TYPE)                                        \
	KERNEL(product_wide_##NAME##_256, THREADS, struct product_args)     \
	{                                                                   \
		if_there<TYPE, 256, false, WGMMA>(a);                           \
	}                                                                   \
	KERNEL(product_wide_##NAME##_64, THREADS, struct product_args)      \
	{                                                                   \
		if_there<TYPE, 64, false, WGMMA>(a);                            \
	}                                                                   \
	KERNEL(product_wide_##NAME##_experts, THREADS, struct product_args) \
	{                                                                   \
		if_there<TYPE, 64, true, WGMMA>(a);                             \
	}
#define PANEL_KERNELS(TYPE) WIDE_KERNELS(TYPE, KERN_##TYPE)
FOR_PANEL_TYPES(PANEL_KERNELS)
WIDE_KERNELS(rows, WEIGHT_BF16_ROWS)

struct wide_kernel wide_kernel_of(int type, uint32_t columns, bool experts)
{
	static const struct {
		int type;
		struct wide_kernel many, few, experts;
	} all[] = {
#define NAMED(NAME, KIND, COLUMNS)                                                \
	{(const void *)product_wide_##NAME##_##KIND, "product_wide_" #NAME "_" #KIND, \
	 sizeof(struct wide_products<COLUMNS>)}
#define KINDS(NAME) NAMED(NAME, 256, 256), NAMED(NAME, 64, 64), NAMED(NAME, experts, 64)
#define ENTRY(TYPE) {KERN_##TYPE, KINDS(TYPE)},
		FOR_PANEL_TYPES(ENTRY){WEIGHT_BF16_ROWS, KINDS(rows)},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (all[i].type == type)
			return experts                       ? all[i].experts
			       : columns == WIDE_COLUMNS_MAX ? all[i].many
			                                     : all[i].few;
	return {};
}
