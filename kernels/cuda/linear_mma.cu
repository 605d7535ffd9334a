/* linear_mma.cu - kernels for products with weights in panels, or in rows of bfloat16, on tensor
 * cores (linear_mma.h). */
#include "kernels/cuda/linear_mma.h"

#include <stddef.h>

enum {
	SPLIT_THREADS = SPLIT_WARPS_MAX * WARP,
	SERIAL_THREADS = SERIAL_ACROSS * SERIAL_DOWN * WARP
};

/* --- few rows: a warp for each segment ----------------------------------- */

/* What a warp prefetches of a panel while the kernel before may still run. All blocks that are on an
 * H100 together: at most 17 MB, what it reads in 5 us. */
enum { FETCH_BYTES = 4096 };

template <int TYPE, int PARTS>
static __device__ __forceinline__ void product_split(const struct product_args &a)
{
	struct task t;
	bool experts = a.chosen.groups != NULL, /* whose groups the kernels before find */
		works = !experts && task_find(a, PRODUCT_SPLIT, blockIdx.x, &t);
	if constexpr (KERNELS_OVERLAP && TYPE != WEIGHT_BF16_ROWS)
		if (works && !t.first)
			fetch_weights<TYPE>(a, t, FETCH_BYTES);
	grid_wait();
	if (experts)
		works = task_find(a, PRODUCT_SPLIT, blockIdx.x, &t);
	if (works)
		do_split<TYPE, PARTS>(a, t);
}

/* --- many rows: a warp for all segments ---------------------------------- */

template <int TYPE, int PARTS>
static __device__ __forceinline__ void product_serial(const struct product_args &a)
{
	struct task t;
	if (!task_find(a, PRODUCT_SERIAL, blockIdx.x, &t))
		return;
	uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP,
			 pair = t.block * SERIAL_ACROSS + warp % SERIAL_ACROSS;
	uint32_t first = warp / SERIAL_ACROSS * SERIAL_TILES * TILE_ROWS;
	struct lane_inputs<SERIAL_TILES> x;
	find_inputs(a, t, first, PARTS, &x);
	if (pair >= panel_pairs_of(t.of->w.n) || !x.tiles)
		return;
	float sum[PANELS][SERIAL_TILES][4] = {};
	for (uint32_t s = 0; s < t.of->segments; s++) {
		float acc[PANELS][SERIAL_TILES][4];
		sum_segment<TYPE, PARTS>(acc, t, pair, s, x);
		UNROLL
		for (uint32_t i = 0; i < PANELS * SERIAL_TILES * 4; i++)
			sum[i / (SERIAL_TILES * 4)][i / 4 % SERIAL_TILES][i % 4] +=
				acc[i / (SERIAL_TILES * 4)][i / 4 % SERIAL_TILES][i % 4];
	}
	UNROLL
	for (uint32_t i = 0; i < SERIAL_TILES * 2; i++) {
		uint32_t tile = i / 2, side = i % 2;
		const float v[PANELS][2] = {{sum[0][tile][side], sum[0][tile][side + 2]},
		                            {sum[1][tile][side], sum[1][tile][side + 2]}};
		put_row(a, t, pair, first + tile * TILE_ROWS + lane % 4 * 2 + side, v);
	}
}

/* --- the kernels --------------------------------------------------------- */

#define PRODUCT_KERNELS(TYPE)                                                  \
	KERNEL_EARLY(product_split_##TYPE##_1, SPLIT_THREADS, struct product_args) \
	{                                                                          \
		product_split<KERN_##TYPE, 1>(a);                                      \
	}                                                                          \
	KERNEL_EARLY(product_split_##TYPE##_3, SPLIT_THREADS, struct product_args) \
	{                                                                          \
		product_split<KERN_##TYPE, 3>(a);                                      \
	}                                                                          \
	KERNEL(product_serial_##TYPE##_1, SERIAL_THREADS, struct product_args)     \
	{                                                                          \
		product_serial<KERN_##TYPE, 1>(a);                                     \
	}                                                                          \
	KERNEL(product_serial_##TYPE##_3, SERIAL_THREADS, struct product_args)     \
	{                                                                          \
		product_serial<KERN_##TYPE, 3>(a);                                     \
	}
FOR_PANEL_TYPES(PRODUCT_KERNELS)

/* Rows of bfloat16 are only used with rounded activations. */
KERNEL_EARLY(product_split_rows, SPLIT_THREADS, struct product_args)
{
	product_split<WEIGHT_BF16_ROWS, 1>(a);
}
KERNEL(product_serial_rows, SERIAL_THREADS, struct product_args)
{
	product_serial<WEIGHT_BF16_ROWS, 1>(a);
}

static_assert(PRODUCT_SPLIT == 0 && PRODUCT_SERIAL == 1, "the table below needs this order");

const void *mma_kernel(enum product_kernel kernel, int type, int parts, const char **ret_name)
{
	static const struct {
		int type;
		struct {
			const void *kernel;
			const char *name;
		} of[2][2];
	} all[] = {
#define NAMED(NAME) {(const void *)NAME, #NAME}
#define ENTRY(TYPE)                                                       \
	{KERN_##TYPE,                                                         \
	 {{NAMED(product_split_##TYPE##_1), NAMED(product_split_##TYPE##_3)}, \
	  {NAMED(product_serial_##TYPE##_1), NAMED(product_serial_##TYPE##_3)}}},
		FOR_PANEL_TYPES(ENTRY){WEIGHT_BF16_ROWS,
	                           {{NAMED(product_split_rows), {NULL, NULL}},
	                            {NAMED(product_serial_rows), {NULL, NULL}}}},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (all[i].type == type) {
			*ret_name = all[i].of[kernel][parts > 1].name;
			return all[i].of[kernel][parts > 1].kernel;
		}
	return NULL;
}
