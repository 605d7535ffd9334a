/* grid.h - runs grids of kernels on the host, see cuda_host.h; for runtime.c. */
#ifndef CUDA_HOST_GRID_H
#define CUDA_HOST_GRID_H

#include <cuda_runtime_api.h>

struct cuda_host_kernel {
	const char *name;
	const void *fn;
	void (*run)(const void *args);
	size_t args_bytes;
	unsigned threads_max;
	struct cuda_host_kernel *next;
};
extern struct cuda_host_thread *cuda_host_now;

void cuda_host_register(struct cuda_host_kernel *k);
const struct cuda_host_kernel *cuda_host_find(const void *fn);         /* NULL: no kernel */
void cuda_host_seed(uint32_t s);
uint32_t cuda_host_random(void);
unsigned char *cuda_host_shared(void);
int cuda_host_block_meet(int value);
const unsigned char *cuda_host_warp_meet(unsigned mask, const void *mine, size_t bytes);
void cuda_host_mma(float d[4], const uint32_t a[4], const uint32_t b[2]);
/* Runs all blocks; returns when they are done. */
int cuda_host_grid(const struct cuda_host_kernel *k, struct dim3 grid, unsigned threads, size_t shared_bytes, const void *args);

#endif
