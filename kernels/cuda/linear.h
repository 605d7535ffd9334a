/* linear.h - products of activations with weights, for matmul, heads_matmul and the experts'
 * operations.
 *
 * Activations are first prepared for the tensor cores (ready.h); then one kernel per weight type
 * computes all products of that type (linear_mma.cu, linear_wide.cu). Weights of float32 and
 * float16 use a kernel that reads the activations directly (linear.cu).
 *
 * A row's bits depend on that row alone: K is cut into segments, whose number depends only on the
 * weight's shape and type; each is summed in order, and so are the segments' sums. The kernel for
 * few rows gives each segment a warp; the kernels for many rows have one warp for all segments. All
 * give the same bits. */
#ifndef CUDA_LINEAR_H
#define CUDA_LINEAR_H

#include "kernels/cuda/ready.h"
#include "kernels/cuda/weight.h"

enum {
	PANELS = 2,          /* per warp at a time */
	SPLIT_ROWS_MAX = 64, /* planned rows up to which segments have their own warps */
	SEGMENTS_MAX = 16,
	/* split blocks: a warp has one segment of two panels, for SPLIT_TILES tiles of rows */
	SPLIT_WARPS_MAX = 16,
	SPLIT_TILES = 2,
	/* serial blocks: SERIAL_ACROSS warps with two panels each, times SERIAL_DOWN with
	 * SERIAL_TILES tiles of rows each */
	SERIAL_ACROSS = 4,
	SERIAL_DOWN = 2,
	SERIAL_TILES = 4,
	/* wide blocks: panels of the weight, each for a warp; rows of x, WIDE_COLUMNS_MIN for experts
	 * and where there would be few blocks */
	WIDE_PANELS = 8,
	WIDE_COLUMNS_MIN = 64,
	WIDE_COLUMNS_MAX = 256,
	FLOAT_WARPS = 8 /* per block: each has one row of the weight */
};

enum product_kernel { PRODUCT_SPLIT, PRODUCT_SERIAL, PRODUCT_WIDE, PRODUCT_FLOAT };

/* y = x W^T + bias */
struct product {
	struct weight_view w; /* experts: their common shape */
	/* (experts) panels or rows of each; NULL: no experts */
	const unsigned char *const *data;
	const float *bias; /* (n), experts: (experts, n), or NULL */
	struct kern_tensor y;
	uint32_t input;    /* index of the input, see struct ready */
	uint32_t segments; /* a power of two */
};

/* `rows` pairs (row, slot) of one expert in chosen.pair, from `first` on; a pair's number is row *
 * used + slot. */
struct group {
	uint32_t expert, first, rows;
};

/* The pairs sorted by expert; in device memory. */
struct chosen {
	const uint32_t *groups; /* number of groups; NULL: no experts */
	const struct group *group;
	const uint32_t *pair;
	/* a pair's input row is pair / pairs_per_input, its output row is the pair */
	uint32_t pairs_per_input;
};

struct product_args {
	const struct kern_batch *batch;
	const struct product *product;
	uint32_t products;
	/* per block; for PRODUCT_SPLIT a power of two, at least the segments of a product */
	uint32_t warps;
	uint32_t blocks_each; /* per product if all are alike, else 0 */
	uint32_t row_blocks;  /* blocks of rows (or groups) for each block of a product */
	uint32_t block_rows;  /* rows per such block */
	int rows;             /* enum kern_rows */
	struct ready ready;
	struct kern_tensor x;   /* for PRODUCT_FLOAT */
	uint32_t input_columns; /* distance between inputs in x */
	struct chosen chosen;
};

/* Granularity of segments, in steps: whole blocks for types with large ones. */
static __host__ __device__ inline uint32_t segment_unit(int type)
{
	return type == KERN_Q4_K || type == KERN_Q5_K || type == KERN_Q6_K ? 8 : 4;
}

static __host__ __device__ inline uint32_t panel_pairs_of(uint32_t n)
{
	enum { ROWS = (int)PANELS * (int)PANEL_ROWS };
	return (n + ROWS - 1) / ROWS;
}

/* First step of segment `s`; segment `segments` is the end. */
static __host__ __device__ inline uint32_t segment_begin(const struct product &p, uint32_t s)
{
	uint32_t unit = segment_unit(p.w.type), steps = steps_of(p.w.k),
			 units = (steps + unit - 1) / unit, at = units * s / p.segments * unit;
	return at < steps ? at : steps;
}

/* Number of blocks of a kernel with that many warps, for all rows of a product's weight. */
static __host__ __device__ inline uint32_t product_blocks(const struct product &p,
                                                          enum product_kernel kernel,
                                                          uint32_t warps)
{
	uint32_t each = SERIAL_ACROSS;
	if (kernel == PRODUCT_FLOAT)
		return (p.w.n + warps - 1) / warps;
	if (kernel == PRODUCT_SPLIT)
		each = warps / p.segments;
	if (kernel == PRODUCT_WIDE)
		each = WIDE_PANELS / PANELS;
	uint32_t blocks = (panel_pairs_of(p.w.n) + each - 1) / each;
	return kernel == PRODUCT_WIDE ? (blocks + 1) / 2 * 2 : blocks; /* pairs: see task_find */
}

/* --- planning (linear.cu) ------------------------------------------------ */

/* The inputs of an operation, common to all its products. */
struct inputs {
	struct kern_tensor x;
	uint32_t k;
	uint32_t count, columns; /* number of inputs in a row of x, and their distance */
	uint32_t rows_each;      /* rows of x per row of the batch */
};

/* Whether linear_wide.cu does the current size's products. */
static inline bool plan_wide(const struct plan *p)
{
	return p->wgmma && p->dev->bf16_activations && plan_rows(p) > (uint32_t)SPLIT_ROWS_MAX;
}

/* Rows of x, or pairs, per block in the current size; linear_wide.cu may take more for a matmul. */
static inline uint32_t plan_block_rows(const struct plan *p)
{
	return (plan_rows(p) <= SPLIT_ROWS_MAX ? SPLIT_TILES : SERIAL_DOWN * SERIAL_TILES) * TILE_ROWS;
}

static_assert((int)SERIAL_DOWN * (int)SERIAL_TILES * (int)TILE_ROWS == (int)WIDE_COLUMNS_MIN,
              "groups of experts have one size for both kernels");

struct product product_of(const struct kern_weight *w, const float *bias, struct kern_tensor y);
/* Launches all products, one launch per weight type, preceded by one that prepares x unless it is
 * prepared. chosen: for experts, with at most `groups` groups of at most plan_block_rows pairs; or
 * NULL. */
void plan_products(struct plan *p, const struct inputs *in, const struct product *product,
                   uint32_t products, const struct chosen *chosen, uint32_t groups);

/* The same for bfloat16 weights and one input x, with cuBLASLt (fast.cu). At most
 * KERN_PRODUCTS_MAX. */
void plan_fast_products(struct plan *p, const struct kern_tensor *x, const struct product *product,
                        uint32_t products);

/* --- in kernels ---------------------------------------------------------- */

/* A block's work: one block of a product's weight, for some rows or for the pairs of one expert. */
struct task {
	const struct product *of;
	const unsigned char *data;
	const float *bias;    /* or NULL */
	uint32_t block;       /* index among the product's blocks */
	uint32_t first, rows; /* positions: rows of the batch, or indices in chosen.pair */
};

/* The work of block `number` of the products. Returns false if there is none; the same for all
 * threads of a block. */
static __device__ inline bool task_find(const struct product_args &a, enum product_kernel kernel,
                                        uint32_t number, struct task *ret)
{
	/* for linear_wide.cu blocks with the same rows of x are neighbours, in pairs */
	uint32_t pair = kernel == PRODUCT_WIDE ? 2 : 1, at = number / pair % a.row_blocks,
			 block = number / pair / a.row_blocks * pair + number % pair, of = 0, expert = 0;
	if (a.chosen.groups) {
		if (at >= *a.chosen.groups)
			return false;
		struct group g = a.chosen.group[at];
		ret->first = g.first;
		ret->rows = g.rows;
		expert = g.expert;
	} else {
		uint32_t rows = batch_rows(a.batch, a.rows);
		ret->first = at * a.block_rows;
		if (ret->first >= rows)
			return false;
		ret->rows = rows - ret->first < a.block_rows ? rows - ret->first : a.block_rows;
	}
	if (a.blocks_each) {
		of = block / a.blocks_each;
		block %= a.blocks_each;
	} else
		for (uint32_t blocks; block >= (blocks = product_blocks(a.product[of], kernel, a.warps));
		     of++)
			block -= blocks;
	ret->of = &a.product[of];
	ret->block = block;
	ret->data = ret->of->data ? ret->of->data[expert] : ret->of->w.data;
	ret->bias = ret->of->bias ? ret->of->bias + (size_t)expert * ret->of->w.n : NULL;
	return true;
}

/* The row of x (input_row) and of y (output_row) at a position. */
static __device__ inline uint32_t input_row(const struct product_args &a, uint32_t position)
{
	return a.chosen.groups ? a.chosen.pair[position] / a.chosen.pairs_per_input : position;
}

static __device__ inline uint32_t output_row(const struct product_args &a, uint32_t position)
{
	return a.chosen.groups ? a.chosen.pair[position] : position;
}

static __device__ inline void task_put(const struct task &t, uint32_t row, uint32_t column, float v)
{
	tensor_put(t.of->y, row, column, t.bias ? v + t.bias[column] : v);
}

/* Elements after each head's columns, which are copied, not multiplied. */
struct tail_args {
	const struct kern_batch *batch;
	struct kern_tensor y, x;
	uint32_t heads, tail, k, n;
	int rows; /* enum kern_rows */
};

static __device__ inline void copy_tail(const struct tail_args &a, struct block_place at)
{
	uint32_t i = at.y * at.threads + threadIdx.x, head = i / a.tail, c = i % a.tail;
	if (at.x < batch_rows(a.batch, a.rows) && head < a.heads)
		tensor_put(a.y, at.x, head * (a.n + a.tail) + a.n + c,
		           tensor_get(a.x, at.x, head * (a.k + a.tail) + a.k + c));
}

/* --- tensor cores --------------------------------------------------------- */

/* The kernel for weights in panels, and its name (linear_mma.cu). */
const void *mma_kernel(enum product_kernel kernel, int type, int parts, const char **ret_name);

/* linear_wide.cu: the kernel of PRODUCT_WIDE for so many rows of x in a block (WIDE_COLUMNS_MIN or
 * MAX; for experts MIN). */
struct wide_kernel {
	const void *kernel;
	const char *name;
	size_t shared_bytes;
};
struct wide_kernel wide_kernel_of(int type, uint32_t columns, bool experts);

#endif
