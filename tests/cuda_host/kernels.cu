/* kernels.cu - kernels that test the stand-in itself (tests/unit/test_cuda_host.c): correct ones,
 * and ones with faults that it must reveal. */
#include "kernels/cuda/kernel.h"
#include "tests/cuda_host/kernels.h"

/* y[block, i] = x[block, next thread of the block], through shared memory; with_barrier 0: wrong in
 * any order of threads. */
KERNEL(rotate_block, 256, struct rotate_args)
{
	float *s = (float *)shared_memory();
	uint32_t i = threadIdx.x, n = blockDim.x, first = blockIdx.x * n;
	s[i] = a.x[first + i];
	if (a.with_barrier)
		__syncthreads();
	a.y[first + i] = s[(i + 1) % n];
}

/* The same within a warp, with an exchange between lanes. A block may have fewer lanes than a
 * warp. */
KERNEL(rotate_warp, 256, struct rotate_args)
{
	uint32_t i = threadIdx.x, first = blockIdx.x * blockDim.x,
			 lanes = blockDim.x < WARP ? blockDim.x : WARP, mask = ALL_LANES >> (WARP - lanes);
	a.y[first + i] = __shfl_sync(mask, a.x[first + i], (i + 1) % lanes);
}

/* Writes one element beyond a block's shared memory. */
KERNEL(write_beyond, 32, struct rotate_args)
{
	float *s = (float *)shared_memory();
	s[threadIdx.x + 1] = a.x[threadIdx.x];
	__syncwarp();
	a.y[threadIdx.x] = s[threadIdx.x];
}

/* Lane 0 of block 1 does not take part in the warp's exchange. */
KERNEL(lone_lane, 32, struct rotate_args)
{
	if (threadIdx.x || blockIdx.x != 1)
		a.y[threadIdx.x] = warp_sum(a.x[threadIdx.x]);
}

/* y (blocks, 16, 8) = x (16, 16) z (16, 8), as bfloat16; a block's x begins 64 values after the
 * one before. */
KERNEL(multiply, 32, struct rotate_args)
{
	uint32_t lane = threadIdx.x, g = lane / 4, t = lane % 4, ra[4], rb[2];
	float d[4] = {0, 0, 0, 0};
	for (uint32_t i = 0; i < 4; i++) {
		const float *x = a.x + blockIdx.x * 64 + (g + 8 * (i & 1)) * 16 + 2 * t + 8 * (i >> 1);
		ra[i] = (uint32_t)kern_f32_to_bf16(x[0]) | (uint32_t)kern_f32_to_bf16(x[1]) << 16;
	}
	for (uint32_t i = 0; i < 2; i++) {
		const float *z = a.z + (2 * t + 8 * i) * 8 + g;
		rb[i] = (uint32_t)kern_f32_to_bf16(z[0]) | (uint32_t)kern_f32_to_bf16(z[8]) << 16;
	}
	mma_bf16(d, ra, rb);
	for (uint32_t i = 0; i < 4; i++)
		a.y[blockIdx.x * 128 + (g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = d[i];
}

/* y[n, i] = y[n - 1, i] + x[n, i], where n is a block's ticket: blocks wait for one another in the
 * order in which they start. with_wait 0: they do not wait, and read what may not be written. */
KERNEL(take_turns, 64, struct turn_args)
{
	uint32_t *ticket = (uint32_t *)shared_memory(), i = threadIdx.x, n = blockDim.x;
	if (i == 0) {
		*ticket = atomicAdd(a.tickets, 1u);
		while (a.with_wait && load_acquire_system(a.turn) != *ticket)
			wait_a_little();
	}
	__syncthreads();
	uint32_t own = *ticket * n + i;
	float before = *ticket ? a.y[own - n] : 0;
	__syncthreads();
	a.y[own] = before + a.x[own];
	__threadfence();
	__syncthreads();
	if (i == 0)
		atomicAdd(a.turn, 1u);
}

/* In clusters of two: each block copies its part of x into both, and y is the other's part,
 * rotated; with_barrier 0: reads before it has come. */
KERNEL(rotate_bulk, 256, struct rotate_args)
{
	float *s = (float *)shared_memory();
	uint32_t i = threadIdx.x, n = blockDim.x, rank = cluster_rank(), first = blockIdx.x * n;
	uint64_t *full = (uint64_t *)(s + 2 * n), *done = full + 1;
	if (i == 0) {
		barrier_init(full, 1);
		barrier_init(done, 2);
	}
	barrier_ready();
	cluster_meet();
	if (i == 0) {
		barrier_expect(full, 2 * n * 4);
		copy_bulk_both(s + rank * n, a.x + first, n * 4, full);
	}
	if (a.with_barrier)
		barrier_wait(full, 0);
	a.y[first + i] = s[(1 - rank) * n + (i + 1) % n];
	barrier_wait(full, 0);
	if (i < 2)
		barrier_arrive_at(done, i);
	barrier_wait(done, 0);
	cluster_meet();
}

/* y (64, 64) = x (64, 16) z (16, 64), as bfloat16. */
KERNEL(multiply_group, 128, struct group_args)
{
	enum { ROWS = 16, COLUMNS = 64 };
	unsigned char *s = shared_memory();
	uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4, x[4];
	for (uint32_t i = threadIdx.x; i < ROWS * COLUMNS; i += blockDim.x) {
		uint32_t k = i / COLUMNS, n = i % COLUMNS,
				 at = k / 8 * 128 + n / 8 * 256 + n % 8 * 16 + k % 8 * 2;
		if (a.how == GROUP_BY_COLUMNS) /* the third and fourth piece of 16 bytes */
			at = n / 8 * 1024 + n % 8 * 128 + ((2 + k / 8) ^ n % 8) * 16 + k % 8 * 2;
		if (a.how == GROUP_BY_ROWS)
			at = k / 8 * 1024 + k % 8 * 128 + (n / 8 ^ k % 8) * 16 + n % 8 * 2;
		*(uint16_t *)(s + at) = kern_f32_to_bf16(a.z[i]);
	}
	for (uint32_t i = 0; i < 4; i++) {
		const float *of = a.x + (16 * warp + g + 8 * (i & 1)) * ROWS + 2 * t + 8 * (i >> 1);
		x[i] = (uint32_t)kern_f32_to_bf16(of[0]) | (uint32_t)kern_f32_to_bf16(of[1]) << 16;
	}
	wgmma_publish();
	__syncthreads();
	float d[COLUMNS / 2] = {};
	wgmma_begin();
	if (a.how == GROUP_BY_ROWS)
		wgmma_bf16<COLUMNS, 1>(d, x, wgmma_operand(s, WGMMA_SWIZZLED, 0, 1024), false);
	else if (a.how == GROUP_BY_COLUMNS)
		wgmma_bf16<COLUMNS, 0>(d, x, wgmma_operand(s + 32, WGMMA_SWIZZLED, 0, 1024), false);
	else
		wgmma_bf16<COLUMNS, 0>(d, x, wgmma_operand(s, WGMMA_PLAIN, 128, 256), false);
	for (int late = 0; late < 2; late++) {
		if (late || a.how != GROUP_EARLY)
			wgmma_commit();
		wgmma_wait<0>(d);
		for (uint32_t i = 0; i < COLUMNS / 2 && late == (a.how != GROUP_EARLY); i++)
			a.y[(16 * warp + g + 8 * (i / 2 % 2)) * COLUMNS + i / 4 * 8 + 2 * t + i % 2] = d[i];
	}
}

const void *const host_kernels[HOST_KERNELS] = {
	(const void *)rotate_block, (const void *)rotate_warp,   (const void *)write_beyond,
	(const void *)lone_lane,    (const void *)multiply,      (const void *)take_turns,
	(const void *)rotate_bulk,  (const void *)multiply_group};
