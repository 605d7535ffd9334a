/* grid.h - runs grids of kernels on the host; used by streams.c, and by kernels through
 * cuda_host.h. C and C++. */
#ifndef CUDA_HOST_GRID_H
#define CUDA_HOST_GRID_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A thread of a block. */
struct cuda_host_thread {
	struct dim3 thread, block, block_dim, grid_dim;
	unsigned lane;
};
extern struct cuda_host_thread *cuda_host_now; /* the running fibre's */

struct cuda_host_kernel {
	const char *name;
	const void *fn;
	void (*run)(const void *args);
	size_t args_bytes;
	unsigned threads_max;
	struct cuda_host_kernel *next;
};
void cuda_host_register(struct cuda_host_kernel *k);
const struct cuda_host_kernel *cuda_host_find(const void *fn); /* NULL: no kernel */
void cuda_host_seed(uint32_t s);
uint32_t cuda_host_random(void);

/* --- for kernels --- */

/* The current block's dynamic shared memory. */
unsigned char *cuda_host_shared(void);
/* Waits for all threads of the block; returns the number of them with a nonzero value. */
int cuda_host_block_meet(int value);
/* Exchanges `bytes` (at most 32) between the lanes of the mask: returns the warp's values, 32 bytes
 * per lane, valid until the exchange after the next. */
const unsigned char *cuda_host_warp_meet(unsigned mask, const void *mine, size_t bytes);
/* See mma_bf16 in kernels/cuda/kernel.h. Products are exact; the 16 products and d are truncated
 * below 2^-24 of the largest and then added, and the sum is truncated to float32. This is no more
 * exact than the known behaviour of the tensor cores of any device that kernels/cuda supports
 * (arXiv:2301.11471, arXiv:2412.00287). */
void cuda_host_mma(float d[4], const uint32_t a[4], const uint32_t b[2]);

/* See wgmma_bf16 in kernels/cuda/kernel.h; adds like cuda_host_mma. Each is done at once or when it
 * is waited for, by chance. */
void cuda_host_wgmma(float *d, unsigned n, const uint32_t a[4], uint64_t b, int by_k, int add);
void cuda_host_wgmma_commit(void);
void cuda_host_wgmma_wait(unsigned pending);

/* See copy_async_16 in kernels/cuda/kernel.h: of `bytes`, which become zeros if they are not
 * there. */
void cuda_host_copy_async(void *to, const void *from, size_t bytes, int there);
void cuda_host_copy_wait(void);

/* See barrier_init and what follows in kernels/cuda/kernel.h. Bytes, and a thread's copies, come
 * while somebody waits for them; those of different threads in any order. */
void cuda_host_barrier_init(uint64_t *barrier, unsigned count);
void cuda_host_barrier_arrive_copied(uint64_t *barrier);
void cuda_host_barrier_arrive(uint64_t *barrier, uint32_t bytes);
void cuda_host_barrier_wait(uint64_t *barrier, unsigned phase);
void cuda_host_copy_bulk(void *to, const void *from, uint32_t bytes, uint64_t *barrier);

/* Blocks of a cluster: blockIdx.x / their number is equal. cuda_host_peer: an address of this
 * block's shared memory in another's. */
unsigned cuda_host_cluster_rank(void);
void cuda_host_cluster_meet(void);
void *cuda_host_peer(const void *own, unsigned rank);

/* While a thread waits for another block or another process: lets other fibres run, also of other
 * blocks; if all only wait, the scheduler sleeps for a moment so that other processes can run. */
void cuda_host_pause(void);
uint64_t cuda_host_clock_ns(void);

/* Counts bytes that go to another process (CUDA_HOST_SENT). */
void cuda_host_sent(size_t bytes);

/* --- for the runtime --- */

/* Runs all blocks, in clusters of `cluster`; returns when they are done. */
int cuda_host_grid(const struct cuda_host_kernel *k, struct dim3 grid, unsigned cluster,
                   unsigned threads, size_t shared_bytes, const void *args);

#ifdef __cplusplus
}
#endif
#endif
