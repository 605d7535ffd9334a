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
		while (a.with_wait && load_acquire(a.turn) != *ticket)
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

const void *const host_kernels[HOST_KERNELS] = {
	(const void *)rotate_block, (const void *)rotate_warp, (const void *)write_beyond,
	(const void *)lone_lane,    (const void *)multiply,    (const void *)take_turns};
