/* linear.h - products of activations with weights, for matmul, heads_matmul and the experts'
 * operations.
 *
 * Activations are first made ready for the tensor cores (ready.h); then a kernel for each type of
 * weights computes all products of that type (linear_mma.cu), or, for weights of float32 and
 * float16, a kernel that takes activations as they are (linear.cu).
 *
 * A row's bits depend on that row alone: K is cut into segments whose number depends on the
 * weight's shape and type only; each is added up in order, and so are their sums. The kernel for
 * few rows gives each segment a warp, the kernel for many rows has one warp for all segments:
 * the bits are the same. */
#ifndef CUDA_LINEAR_H
#define CUDA_LINEAR_H

#include "kernels/cuda/ready.h"
#include "kernels/cuda/weight.h"

enum {
	PANELS = 2,          /* that a warp has at a time */
	SPLIT_ROWS_MAX = 64, /* planned rows up to which segments have warps of their own */
	SEGMENTS_MAX = 16,
	/* of a block: a warp has a segment of two panels, and SPLIT_TILES of rows */
	SPLIT_WARPS_MAX = 16,
	SPLIT_TILES = 2,
	/* of a block: so many warps, each with two panels of its own, times SERIAL_DOWN, each with
	 * SERIAL_TILES of its own */
	SERIAL_ACROSS = 4,
	SERIAL_DOWN = 2,
	SERIAL_TILES = 4,
	FLOAT_WARPS = 8 /* of a block: each has a row of the weight */
};

enum product_kernel { PRODUCT_SPLIT, PRODUCT_SERIAL, PRODUCT_FLOAT };

/* y = x W^T + bias */
struct product {
	struct weight_view w; /* of experts: the shape that all have */
	/* (experts) each one's panels or rows; NULL: no experts */
	const unsigned char *const *data;
	const float *bias; /* (n), of experts (experts, n), or NULL */
	struct kern_tensor y;
	uint32_t input;    /* of several: which, see struct ready */
	uint32_t segments; /* a power of two */
};

/* Pairs (row, slot) of one expert, numbered row * used + slot: `rows` of struct chosen.pair,
 * from `first` on. */
struct group {
	uint32_t expert, first, rows;
};

/* What rows have chosen, sorted by expert; on the device. */
struct chosen {
	const uint32_t *groups; /* how many; NULL: no experts */
	const struct group *group;
	const uint32_t *pair;
	/* the input's row of a pair is pair / this, the output's is the pair */
	uint32_t pairs_per_input;
};

struct product_args {
	const struct kern_batch *batch;
	const struct product *product;
	uint32_t products;
	/* of a block: for PRODUCT_SPLIT a power of two, no fewer than a product has segments */
	uint32_t warps;
	uint32_t blocks_each; /* of every product, if they are alike, else 0 */
	uint32_t row_blocks;  /* blocks for the rows, or the groups, of each product's block, */
	uint32_t block_rows;  /* so many of them each */
	int rows;             /* enum kern_rows */
	struct ready ready;
	struct kern_tensor x;   /* for PRODUCT_FLOAT */
	uint32_t input_columns; /* of x, from one input to the next */
	struct chosen chosen;
};

/* How many columns of a step's size are added up before segments are cut: whole blocks of the
 * types that have large ones. */
static __host__ __device__ inline uint32_t segment_unit(int type)
{
	return type == KERN_Q4_K || type == KERN_Q5_K || type == KERN_Q6_K ? 8 : 4;
}

static __host__ __device__ inline uint32_t panel_pairs_of(uint32_t n)
{
	enum { ROWS = (int)PANELS * (int)PANEL_ROWS };
	return (n + ROWS - 1) / ROWS;
}

/* Where segment `s` begins, as a step; segment `segments` is the end. */
static __host__ __device__ inline uint32_t segment_begin(const struct product &p, uint32_t s)
{
	uint32_t unit = segment_unit(p.w.type), steps = steps_of(p.w.k),
			 units = (steps + unit - 1) / unit, at = units * s / p.segments * unit;
	return at < steps ? at : steps;
}

/* Blocks of a kernel, of so many warps, for all rows of a product's weight. */
static __host__ __device__ inline uint32_t product_blocks(const struct product &p,
                                                          enum product_kernel kernel,
                                                          uint32_t warps)
{
	uint32_t each = SERIAL_ACROSS;
	if (kernel == PRODUCT_FLOAT)
		return (p.w.n + warps - 1) / warps;
	if (kernel == PRODUCT_SPLIT)
		each = warps / p.segments;
	return (panel_pairs_of(p.w.n) + each - 1) / each;
}

/* --- planning (linear.cu) ------------------------------------------------ */

/* The operation's inputs; what is the same for all its products. */
struct inputs {
	struct kern_tensor x;
	uint32_t k;
	uint32_t count, columns; /* inputs side by side in a row of x, so far apart */
	uint32_t rows_each;      /* rows of x for a row of the batch */
};

/* Rows of x, or pairs, that a block has in the present size. */
static inline uint32_t plan_block_rows(const struct plan *p)
{
	return (plan_rows(p) <= SPLIT_ROWS_MAX ? SPLIT_TILES : SERIAL_DOWN * SERIAL_TILES) * TILE_ROWS;
}

struct product product_of(const struct kern_weight *w, const float *bias, struct kern_tensor y);
/* Launches all products, in one launch for each type of weights, after one that makes x ready for
 * them unless it is. chosen: of experts, with at most so many groups of at most plan_block_rows
 * pairs; or NULL. */
void plan_products(struct plan *p, const struct inputs *in, const struct product *product,
                   uint32_t products, const struct chosen *chosen, uint32_t groups);

/* The same for rows of bfloat16 and one input x, by cuBLASLt (fast.cu). At most
 * KERN_PRODUCTS_MAX. */
void plan_fast_products(struct plan *p, const struct kern_tensor *x, const struct product *product,
                        uint32_t products);

/* --- in kernels ---------------------------------------------------------- */

/* What a block has to do: a block of a product's weight, for some rows or for the pairs of one
 * expert. */
struct task {
	const struct product *of;
	const unsigned char *data;
	const float *bias;    /* or NULL */
	uint32_t block;       /* of the product's */
	uint32_t first, rows; /* positions: rows of the batch, or in chosen.pair */
};

/* False: nothing. The same for all threads of a block. */
static __device__ inline bool task_find(const struct product_args &a, enum product_kernel kernel,
                                        struct task *ret)
{
	uint32_t at = blockIdx.x % a.row_blocks, block = blockIdx.x / a.row_blocks, of = 0, expert = 0;
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

/* The row of x, and of y, at a position. */
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

/* --- tensor cores (linear_mma.cu) ---------------------------------------- */

/* The kernel for weights in panels, and its name. */
const void *mma_kernel(enum product_kernel kernel, int type, int parts, const char **ret_name);

#endif
