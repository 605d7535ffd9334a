/* linear.h - products of activations with weights, for matmul, heads_matmul and the experts'
 * operations.
 *
 * Activations are first prepared for the tensor cores (ready.h); then a launch for each type of
 * weights computes all products of that type (linear_mma.cu, linear_wide.cu).
 *
 * A row's bits depend on that row alone: K is cut into segments, whose number depends only on the
 * weight's shape and type; each is summed in order, and so are the segments' sums. With few rows
 * segments have their own warps, with many a warp sums all of them: the bits are the same. */
#ifndef CUDA_LINEAR_H
#define CUDA_LINEAR_H

#include "kernels/cuda/ready.h"
#include "kernels/cuda/weight.h"

enum {
	PANELS = 2,          /* per warp at a time */
	APART_ROWS_MAX = 64, /* planned rows up to which segments have their own warps */
	SEGMENTS_MAX = 16,
	/* blocks of linear_mma.cu: warps, and tiles of rows for each; few: as many warps as needed */
	FEW_WARPS_MAX = 16,
	FEW_TILES = 2,
	MANY_WARPS = 8,
	MANY_TILES = 8,
	/* blocks of linear_wide.cu: panels of the weight, each for a warp; rows of x */
	WIDE_PANELS = 8,
	WIDE_COLUMNS = 256
};

/* by linear_mma.cu, linear_wide.cu */
enum product_way { PRODUCT_MMA, PRODUCT_WIDE };

/* y = x W^T + bias */
struct product {
	struct weight_view w;
	size_t stride;     /* bytes between experts' matrices */
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
	/* PRODUCT_MMA: per block; most that divide the segments of a pair of panels. Powers of two */
	uint32_t warps, together;
	uint32_t blocks_each; /* per product if all are alike, else 0 */
	uint32_t row_blocks;  /* blocks of rows (or groups) for each block of a product */
	uint32_t block_rows;  /* rows per such block */
	int rows;             /* enum kern_rows */
	struct ready ready;
	struct chosen chosen;
};

/* Granularity of segments, in steps: whole blocks for types with large ones. */
static __host__ __device__ inline uint32_t segment_unit(int type)
{
	return is_k_type(type) || type == KERN_Q6_K ? 8 : 4;
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

/* Warps that divide the segments of a pair of panels. */
static __host__ __device__ inline uint32_t warps_each(const struct product &p, uint32_t together)
{
	return p.segments < together ? p.segments : together;
}

/* Number of blocks for all rows of a product's weight. */
static __host__ __device__ inline uint32_t product_blocks(const struct product_args &a,
                                                          const struct product &p,
                                                          enum product_way way)
{
	uint32_t each = way == PRODUCT_WIDE ? (uint32_t)WIDE_PANELS / (uint32_t)PANELS
	                                    : a.warps / warps_each(p, a.together),
			 blocks = (panel_pairs_of(p.w.n) + each - 1) / each;
	return way == PRODUCT_WIDE ? (blocks + 1) / 2 * 2 : blocks; /* pairs: see task_find */
}

/* --- planning (linear.cu) ------------------------------------------------ */

/* What follows each input's k columns goes to y, after the n columns of its product; columns 0:
 * nothing. */
struct tails {
	struct kern_tensor y;
	uint32_t n, columns;
};

/* The inputs of an operation, common to all its products. */
struct inputs {
	struct kern_tensor x;
	uint32_t k;
	uint32_t count, columns; /* number of inputs in a row of x, and their distance */
	uint32_t rows_each;      /* rows of x per row of the batch */
	struct tails tails;
};

/* Whether linear_wide.cu does the current size's products, but for experts', with rounded
 * activations. */
static inline bool plan_wide(const struct plan *p)
{
	return p->wgmma && p->dev->bf16_activations && plan_rows(p) > (uint32_t)APART_ROWS_MAX;
}

/* Whether the current size has rows for no more than FEW_TILES. */
static inline bool plan_few(const struct plan *p)
{
	return plan_rows(p) <= (uint32_t)FEW_TILES * TILE_ROWS;
}

/* Rows of x, or pairs, per block of linear_mma.cu in the current size. */
static inline uint32_t plan_block_rows(const struct plan *p)
{
	return (plan_few(p) ? (uint32_t)FEW_TILES : (uint32_t)MANY_TILES) * TILE_ROWS;
}

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

/* The block's work. Returns false if there is none; the same for all threads of a block. */
static __device__ inline bool task_find(const struct product_args &a, enum product_way way,
                                        struct task *ret)
{
	/* for linear_wide.cu blocks with the same rows of x are neighbours, in pairs */
	uint32_t pair = way == PRODUCT_WIDE ? 2 : 1, number = blockIdx.x,
			 at = number / pair % a.row_blocks,
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
		for (uint32_t blocks; block >= (blocks = product_blocks(a, a.product[of], way)); of++)
			block -= blocks;
	ret->of = &a.product[of];
	ret->block = block;
	ret->data = ret->of->w.data + expert * ret->of->stride;
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

/* --- tensor cores ---------------------------------------------------------
 * The weight is always the A operand (16 of its rows), and activations the B operand (8 rows as 8
 * columns), so the same instructions in the same order compute a result for any number of rows.
 * Tensor cores sum 32 values; they truncate rather than round, so that sum is scaled and added to a
 * float32 sum, which limits the loss (add_sum). */

/* A kernel for weights of some types; `warp_bytes` of shared memory for each warp. */
struct product_kernel {
	const void *kernel;
	const char *name;
	uint32_t warps; /* most of a block */
	size_t warp_bytes;
};
struct product_kernel mma_kernel(int type, bool few);
struct product_kernel wide_kernel(int type);

#endif
