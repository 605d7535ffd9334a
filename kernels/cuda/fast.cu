/* fast.cu - products of variant "fast": cuBLASLt multiplies activations in bfloat16 (lt.c), others
 * once they are rounded into a dense matrix, and the results are written to the batch's rows, with
 * the bias.
 *
 * The library multiplies as many rows as the program's size has. Rows beyond the batch contain
 * zeros or leftovers of an earlier operation; the rows of a product are independent, and the
 * results of those rows are not read. */
#include "kernels/cuda/linear.h"

enum { THREADS = 256, COLUMNS = 2 }; /* COLUMNS: per thread; divides ROWS_UNIT */

/* Blocks for a row with that many columns. */
static uint32_t blocks_for(uint32_t columns)
{
	return (columns + THREADS * COLUMNS - 1) / (THREADS * COLUMNS);
}

struct round_args {
	const struct kern_batch *batch;
	struct kern_tensor x;
	uint16_t *to; /* (rows, k) */
	uint32_t k;
	int rows; /* enum kern_rows */
};

/* blockIdx.x is the row. */
KERNEL(round_rows, THREADS, struct round_args)
{
	uint32_t r = blockIdx.x, c = (blockIdx.y * THREADS + threadIdx.x) * COLUMNS;
	if (r >= batch_rows(a.batch, a.rows) || c >= a.k)
		return;
	uint32_t low = kern_f32_to_bf16(tensor_get(a.x, r, c)),
			 high = kern_f32_to_bf16(tensor_get(a.x, r, c + 1));
	*(uint32_t *)(a.to + (size_t)r * a.k + c) = low | high << 16;
}

struct fast_result {
	struct kern_tensor y;
	const float *from, *bias; /* from: (rows, n); bias: (n), or NULL */
	uint32_t n;
};

struct store_args {
	const struct kern_batch *batch;
	struct fast_result of[KERN_PRODUCTS_MAX];
	int rows;
};

/* blockIdx.x is the row; the products' columns follow one another. */
KERNEL(store_rows, THREADS, struct store_args)
{
	uint32_t r = blockIdx.x, c = (blockIdx.y * THREADS + threadIdx.x) * COLUMNS;
	if (r >= batch_rows(a.batch, a.rows))
		return;
	UNROLL
	for (uint32_t i = 0; i < KERN_PRODUCTS_MAX; i++) {
		const struct fast_result &g = a.of[i];
		if (c < g.n) {
			for (uint32_t j = c; j < c + COLUMNS; j++) {
				float v = g.from[(size_t)r * g.n + j];
				tensor_put(g.y, r, j, g.bias ? v + g.bias[j] : v);
			}
			return;
		}
		c -= g.n;
	}
}

void plan_fast_products(struct plan *p, const struct kern_tensor *x, const struct product *product,
                        uint32_t products)
{
	uint32_t rows = plan_rows(p), k = product[0].w.k, columns = 0;
	const void *from = (const void *)x->at.v;
	size_t ld = x->ld;
	if (x->type != KERN_BF16 || x->at.v % 16 || ld % ROWS_UNIT) { /* the library needs 16 bytes */
		uint16_t *rounded = (uint16_t *)plan_room(p, ROOM_OTHER,
		                                          (size_t)rows * k * sizeof *rounded);
		struct round_args round = {p->batch, *x, rounded, k, p->op->rows};
		PLAN(p, round_rows, rows, blocks_for(k), THREADS, 0, round);
		from = rounded;
		ld = k;
	}
	for (uint32_t i = 0; i < products; i++)
		columns += product[i].w.n;
	float *to = (float *)plan_room(p, ROOM_PARTIAL, (size_t)rows * columns * sizeof *to);
	struct store_args store = {p->batch, {}, p->op->rows};
	for (uint32_t i = 0; i < products; i++) {
		struct lt_product l = {from, product[i].w.data, to, ld, rows, product[i].w.n, k};
		plan_library(p, BY_LT, &l, sizeof l);
		store.of[i] = {product[i].y, to, product[i].bias, product[i].w.n};
		/* a multiple of 32 bytes; the library needs 16 */
		to += (size_t)rows * product[i].w.n;
	}
	PLAN(p, store_rows, rows, blocks_for(columns), THREADS, 0, store);
}
