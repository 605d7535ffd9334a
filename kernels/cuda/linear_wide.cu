/* linear_wide.cu - products for many rows with rounded activations, on tensor cores that multiply
 * for four warps at once (wgmma: compute capability 9.0). Same bits as linear_mma.cu, which has
 * experts' products: a block of 64 rows of x would get 42 operations a byte here, and 51 there.
 *
 * A block has 128 rows of the weight and 256 rows of x, which are the columns of the results. Each
 * of its 8 warps reads one panel of the weight into registers, as in linear_mma.cu; x comes into a
 * ring in shared memory, a step of 32 columns at a time, and is B of all warps. Two blocks are a
 * cluster: they have the same rows of x, each reads half of them and writes it into the shared
 * memory of both. So the L2 cache gives a byte of the weight for 256 rows of x, and one of x for
 * 256 rows of the weight: 128 operations a byte.
 *
 * The bits are the same because the two instructions' are (kernel.h), and what follows is done in
 * the same order: sums of a step, of a segment, of all segments. */
#include "kernels/cuda/linear.h"
#include "kernels/cuda/record.h"

enum {
	WARPS = WIDE_PANELS,
	THREADS = WARPS * WARP,
	COLUMNS = WIDE_COLUMNS,
	PART = 128, /* columns of a wgmma */
	PARTS = COLUMNS / PART,
	STAGES = 5,
	STAGES_AHEAD = STAGES - 2,
	CLUSTER = 2
};

struct alignas(128) wide_shared {
	/* a step of x: for 8 rows at a time, 4 matrices of 8 rows by 16 bytes (WGMMA_PLAIN) */
	unsigned char x[STAGES][COLUMNS * (int)STEP_BYTES];
	float sums[STAGES][COLUMNS];
	/* each thread's results, sums of segments: as registers of mma_bf16's d, 8 rows of x at a time */
	struct alignas(16) {
		float of[4];
	} total[COLUMNS / (int)TILE_ROWS][THREADS];
	int exponent[COLUMNS]; /* of the block's rows of x */
	/* barriers of the ring's slots: the step's bytes have arrived; all warps of the cluster have
	 * used them */
	uint64_t full[STAGES], empty[STAGES];
	/* step 0 of the block's rows in struct ready */
	const unsigned char *parts;
	const float *sums_at;
};

/* A step of 8 rows of x, of a group of rows. */
static const uint32_t TILE_BYTES = TILE_ROWS * STEP_BYTES, GROUP_BYTES = READY_GROUP * STEP_BYTES;

static __device__ inline struct wide_shared &shared(void)
{
	return *(struct wide_shared *)shared_memory();
}

static __device__ inline void begin(const struct product_args &a, const struct task &t)
{
	struct wide_shared &s = shared();
	size_t row = (size_t)t.of->input * a.ready.rows + t.first;
	for (uint32_t i = threadIdx.x; i < COLUMNS; i += THREADS)
		s.exponent[i] = i < t.rows ? a.ready.exponents[row + i] : 0;
	if (threadIdx.x == 0) {
		s.parts = a.ready.data + row / READY_GROUP * a.ready.steps * GROUP_BYTES;
		if (a.ready.sums)
			s.sums_at = a.ready.sums + (size_t)t.of->input * a.ready.steps * a.ready.rows + t.first;
	}
	if (threadIdx.x < STAGES) {
		barrier_init(&s.full[threadIdx.x], 1);
		barrier_init(&s.empty[threadIdx.x], CLUSTER * WARPS);
	}
	barrier_ready();
	cluster_meet();
}

/* --- a step of x --------------------------------------------------------- */

/* Starts this block's part of a step's copies, for both blocks of the cluster, with one thread:
 * whole groups of rows. The last may have rows that are not the batch's; nothing is stored for
 * them. */
template <int CODES>
static __device__ inline void load_stage(const struct product_args &a, const struct task &t,
                                         uint32_t step)
{
	struct wide_shared &s = shared();
	uint32_t slot = step % STAGES, groups = (t.rows + READY_GROUP - 1) / READY_GROUP,
			 sums_bytes = CODES == CODES_NIBBLES && has_offset(t.of->w.type)
	                          ? groups * READY_GROUP * (uint32_t)sizeof(float)
	                          : 0;
	if (threadIdx.x || step >= a.ready.steps)
		return;
	if (step >= STAGES)
		barrier_wait(&s.empty[slot], step / STAGES - 1);
	barrier_expect(&s.full[slot], groups * GROUP_BYTES + sums_bytes);
	UNROLL
	for (uint32_t n = 0; n < (COLUMNS / (int)READY_GROUP + CLUSTER - 1) / CLUSTER; n++) {
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

/* Waits for a step, and starts the copies of a later one, whose slot had the step before the
 * last. */
template <int CODES>
static __device__ inline void next_stage(const struct product_args &a, const struct task &t,
                                         uint32_t step)
{
	barrier_wait(&shared().full[step % STAGES], step / STAGES);
	load_stage<CODES>(a, t, step + STAGES_AHEAD);
	__syncwarp();
}

/* This warp no longer reads the step. */
static __device__ inline void end_stage(uint32_t step)
{
	__syncwarp();
	if (threadIdx.x % WARP < CLUSTER)
		barrier_arrive_at(&shared().empty[step % STAGES], threadIdx.x % WARP);
}

/* --- products ------------------------------------------------------------ */

/* acc += a step: records times x. */
template <int CODES>
static __device__ __forceinline__ void add_stage(float (&acc)[PARTS][PART / 2],
                                                 const struct weight_record &r, int type,
                                                 uint32_t step, uint32_t rows)
{
	struct wide_shared &s = shared();
	const uint32_t t = threadIdx.x % 4;
	const float *sums = s.sums[step % STAGES];
	uint32_t w[2][4];
	unpack_codes<CODES>(r, type, w);
	const struct row_scales scales[2] = {row_scales_of<CODES>(r, type, 0),
	                                     row_scales_of<CODES>(r, type, 1)};
	uint64_t x = wgmma_operand(s.x[step % STAGES], WGMMA_PLAIN, 128, TILE_BYTES);
	UNROLL
	for (uint32_t part = 0; part < PARTS; part++) {
		if (part && rows <= part * PART)
			continue;
		float d[PART / 2];
		UNROLL
		for (int j = 0; j < 2; j++) {
			constexpr bool alone = CODES == CODES_Q6_K; /* one scale per 16 values */
			if (j == 0 || alone)
				wgmma_begin();
			wgmma_bf16<PART, 0>(d, w[j], wgmma_after(x, part * PART * STEP_BYTES + j * 256),
			                    j && !alone);
			if (j == 0 && !alone)
				continue;
			wgmma_commit();
			wgmma_wait<0>(d);
			UNROLL
			for (int i = 0; i < PART / 8; i++) {
				float of[2] = {0, 0};
				if (CODES == CODES_NIBBLES && has_offset(type)) {
					of[0] = sums[part * PART + 8 * i + 2 * t];
					of[1] = sums[part * PART + 8 * i + 2 * t + 1];
				}
				add_sum<CODES>(acc[part] + 4 * i, type, scales[alone ? j : 0], d + 4 * i, of);
			}
		}
	}
}

/* Adds a segment's sums to the results, and clears them. */
static __device__ __forceinline__ void end_segment(float (&acc)[PARTS][PART / 2], bool first)
{
	UNROLL
	for (int tile = 0; tile < COLUMNS / (int)TILE_ROWS; tile++) {
		auto *at = &shared().total[tile][threadIdx.x], total = *at;
		UNROLL
		for (int i = 0; i < 4; i++) {
			float *sum = &acc[tile / (PART / 8)][tile % (PART / 8) * 4 + i];
			total.of[i] = (first ? 0.0f : total.of[i]) + *sum;
			*sum = 0;
		}
		*at = total;
	}
}

static __device__ __forceinline__ void put_results(const struct product_args &a,
                                                   const struct task &t, uint32_t panel)
{
	const struct wide_shared &s = shared();
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

template <int CODES>
static __device__ __forceinline__ void product_wide(const struct product_args &a)
{
	constexpr uint32_t AHEAD = 2; /* records */
	struct task t;
	if (!task_find(a, PRODUCT_WIDE, &t))
		return;
	begin(a, t);
	for (uint32_t i = 0; i < STAGES_AHEAD; i++)
		load_stage<CODES>(a, t, i);
	__syncwarp();
	uint32_t lane = threadIdx.x % WARP, panels = (t.of->w.n + PANEL_ROWS - 1) / PANEL_ROWS,
			 index = t.block * WIDE_PANELS + threadIdx.x / WARP, k = t.of->w.k,
			 steps = a.ready.steps;
	const int type = t.of->w.type;
	/* warps without a panel take part with another's, and store nothing */
	const struct panel panel = panel_of(t.of->w, t.data, index < panels ? index : panels - 1, lane);
	struct weight_record ahead[AHEAD];
	UNROLL
	for (uint32_t i = 0; i < AHEAD; i++)
		load_record<CODES>(ahead[i], panel, type, i < steps ? i : steps - 1, k, lane);
	float acc[PARTS][PART / 2] = {};
	for (uint32_t segment = 0, step = 0; segment < t.of->segments; segment++) {
		for (uint32_t to = segment_begin(*t.of, segment + 1); step < to; step++) {
			next_stage<CODES>(a, t, step);
			struct weight_record now = ahead[0];
			UNROLL
			for (uint32_t i = 0; i + 1 < AHEAD; i++)
				ahead[i] = ahead[i + 1];
			load_record<CODES>(ahead[AHEAD - 1], panel, type,
			                   step + AHEAD < steps ? step + AHEAD : steps - 1, k, lane);
			add_stage<CODES>(acc, now, type, step, t.rows);
			end_stage(step);
		}
		end_segment(acc, segment == 0);
	}
	cluster_meet(); /* the other block no longer arrives at barriers of this one */
	put_results(a, t, index);
}

/* --- the kernels --------------------------------------------------------- */

/* Where there is no wgmma the kernels are empty, and never launched. */
#define WIDE_KERNEL(NAME, CODES)                              \
	KERNEL(product_wide_##NAME, THREADS, struct product_args) \
	{                                                         \
		if (WGMMA)                                            \
			product_wide<CODES>(a);                           \
	}
WIDE_KERNEL(bf16, CODES_BF16)
WIDE_KERNEL(bytes, CODES_BYTES)
WIDE_KERNEL(nibbles, CODES_NIBBLES)
WIDE_KERNEL(q6_k, CODES_Q6_K)

struct product_kernel wide_kernel(int type)
{
#define NAMED(NAME)                                                          \
	{                                                                        \
		(const void *)NAME, #NAME, WARPS, sizeof(struct wide_shared) / WARPS \
	}
	static_assert(sizeof(struct wide_shared) % WARPS == 0,
	              "shared memory is counted for each warp");
	static const struct product_kernel all[CODES] = {NAMED(product_wide_bf16),
	                                                 {},
	                                                 NAMED(product_wide_bytes),
	                                                 NAMED(product_wide_nibbles),
	                                                 NAMED(product_wide_q6_k)};
	return all[codes_of(type)];
}
