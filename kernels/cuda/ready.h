/* ready.h - preparing activations for tensor cores: in a separate launch before a product, or,
 * where a product reads the output of a norm or an activation, in that operation's kernel. Planned
 * in linear.cu.
 *
 * A row is prepared from that row alone, independent of the number of threads: only maxima, and
 * sums over the four lanes of a step. */
#ifndef CUDA_READY_H
#define CUDA_READY_H

#include "kernels/cuda/kernel.h"

enum {
	TILE_ROWS = 8, /* rows of x per tensor-core operation */
	/* columns of a row that tensor cores sum before the sum is scaled and added in float32 */
	STEP_VALUES = 32,
	STEP_BYTES = 2 * STEP_VALUES, /* of a row, of each part */
	READY_GROUP = 64              /* rows, for linear_wide.cu */
};

/* Activations in the order in which tensor cores read them: the B operand of mma_bf16. A row is
 * scaled by a power of two such that its largest magnitude is between 1 and 2, and is the sum of
 * `parts` bfloat16 numbers: one if activations are rounded to bfloat16, else three, which hold all
 * 24 bits of a float32. Where activations are rounded, weights of float16 and float32 still take
 * exact ones, and linear_wide.cu reads another order: so a row may be prepared three times (enum
 * ready_kind).
 *
 * For each tile of 8 rows, each step of 32 columns, and each part (largest first), a lane has 16
 * bytes: its two registers of the first 16 columns, then of the others. Columns beyond the weight's
 * are zero. Rows beyond the batch are neither written nor read.
 *
 * With `wide`, for linear_wide.cu: for each READY_GROUP rows, and each step, their tiles of 8 rows,
 * of which each has for each 8 of the 32 columns 8 rows' 16 bytes; one part. Rows beyond the batch
 * are read, but nothing depends on them. */
struct ready {
	unsigned char *data;
	/* (rows, steps), wide: (inputs, steps, rows of one), sums over 32 columns of a row; NULL if no
	 * weight type needs them */
	float *sums;
	/* (rows) exponents of two by which results are scaled */
	int32_t *exponents;
	uint32_t steps, parts;
	uint32_t rows; /* per input; inputs follow each other */
	int wide;
};

/* What to prepare: x (rows, k). */
struct make_ready {
	struct ready to; /* to.data NULL: nothing */
	struct kern_tensor x;
	uint32_t k;
};

/* For an operation that writes y (R, dim): what its kernel must prepare because later operations
 * multiply y. Nothing if none does. */
struct make_kinds {
	struct make_ready of[READY_KINDS];
};
struct make_kinds plan_ready_next(struct plan *p, const struct kern_tensor *y, uint32_t dim);

static __host__ __device__ inline uint32_t steps_of(uint32_t k)
{
	return (k + STEP_VALUES - 1) / STEP_VALUES;
}

/* v 2^e, as two factors because float32 may not represent 2^e. */
static __device__ inline float times_power(float v, int e)
{
	int half = e / 2;
	return v * kern_bits_to_f32((uint32_t)(127 + half) << 23) *
	       kern_bits_to_f32((uint32_t)(127 + e - half) << 23);
}

/* The exponent of a row's largest magnitude, whose bits are `top`; 0 for rows of zeros and rows
 * with a NaN or an infinity. */
static __device__ inline int row_exponent(uint32_t top)
{
	if (top == 0 || top >= 0x7f800000)
		return 0;
	return top >> 23 ? (int)(top >> 23) - 127 : 31 - __clz((int)top) - 149;
}

/* Stores a lane's 8 values of a step as `parts` numbers each: 4 words per part, `apart` bytes from
 * one another; parts are 512 bytes apart. Returns the sum of the values as represented. */
static __device__ inline float put_parts(unsigned char *to, float x[8], uint32_t parts,
                                         uint32_t apart)
{
	float sum = 0;
	for (uint32_t part = 0; part < parts; part++) {
		uint32_t words[4] = {0, 0, 0, 0};
		for (uint32_t i = 0; i < 8; i++) {
			uint16_t h = kern_f32_to_bf16(x[i]);
			float value = kern_bf16_to_f32(h), rest = x[i] - value;
			words[i / 2] |= (uint32_t)h << 16 * (i % 2);
			if (part == 0)
				sum += parts == 1 ? value : x[i];
			x[i] = isfinite(value) ? rest : 0.0f; /* infinities leave no remainder */
		}
		for (uint32_t i = 0; i < 4; i++)
			*(uint32_t *)(to + 512 * part + apart * i) = words[i];
	}
	return sum;
}

/* Prepares columns [first, first + k) of x's row r as row `to_row`, with a whole block, of whose
 * shared memory it uses 4 bytes for each warp. top: the
 * largest magnitude_bits of the columns that this thread has seen; together the threads have seen
 * all, and their earlier writes to the row are visible. Four threads process a step of the row,
 * like the four lanes of a warp that read it: columns 2 t, 2 t + 1, 2 t + 8, 2 t + 9, and the same
 * + 16. */
static __device__ inline void ready_row(const struct make_ready &m, uint32_t r, uint32_t first,
                                        size_t to_row, uint32_t top, uint32_t threads)
{
	uint32_t steps = m.to.steps;
	int e = row_exponent(block_largest(top, (uint32_t *)shared_memory(), threads));
	size_t in_group = to_row % READY_GROUP,
		   step_bytes = m.to.wide ? READY_GROUP * STEP_BYTES : m.to.parts * 512;
	unsigned char *to = m.to.data;
	to += m.to.wide ? to_row / READY_GROUP * steps * step_bytes + in_group / TILE_ROWS * 512 +
	                      in_group % TILE_ROWS * 16
	                : to_row / TILE_ROWS * steps * step_bytes + to_row % TILE_ROWS * 64;
	if (threadIdx.x == 0)
		m.to.exponents[to_row] = e;
	for (uint32_t i = threadIdx.x; i / WARP * WARP < 4 * steps; i += threads) {
		uint32_t step = i / 4, t = i % 4;
		float x[8], sum = 0;
		for (uint32_t v = 0; v < 8; v++) {
			uint32_t c = step * STEP_VALUES + v / 4 * 16 + v / 2 % 2 * 8 + 2 * t + v % 2;
			x[v] = c < m.k ? times_power(tensor_get(m.x, r, first + c), -e) : 0.0f;
		}
		if (step < steps)
			sum = put_parts(to + step * step_bytes + (m.to.wide ? 4 : 16) * t, x, m.to.parts,
			                m.to.wide ? 128 : 4);
		sum += __shfl_xor_sync(ALL_LANES, sum, 1);
		sum += __shfl_xor_sync(ALL_LANES, sum, 2);
		if (m.to.sums && step < steps && t == 0)
			m.to.sums[m.to.wide
			              ? (to_row / m.to.rows * steps + step) * m.to.rows + to_row % m.to.rows
			              : to_row * steps + step] = sum;
	}
}

/* All that a row is prepared for. */
static __device__ inline void ready_rows_of(const struct make_kinds &m, uint32_t r, uint32_t top,
                                            uint32_t threads)
{
	for (int i = 0; i < READY_KINDS; i++) {
		if (!m.of[i].to.data)
			continue;
		ready_row(m.of[i], r, 0, r, top, threads);
		__syncthreads(); /* shared memory is used again */
	}
}

static __host__ __device__ inline bool makes_any(const struct make_kinds &m)
{
	bool any = false;
	for (int i = 0; i < READY_KINDS; i++)
		any |= m.of[i].to.data != NULL;
	return any;
}

#endif
