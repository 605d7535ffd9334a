/* cuda_host.h - runs kernels on the host. A block's threads are fibres of one thread, which switch
 * only at barriers, at exchanges between lanes and in wait_a_little, in an order determined by a
 * seed. Several blocks of a grid run interleaved, also in such an order (grid.c). Code that lacks a
 * barrier, or a wait for another block, therefore computes a different result, and with
 * AddressSanitizer an access out of bounds aborts. Included by kernels/cuda/kernel.h instead of the
 * toolkit's headers. */
#ifndef CUDA_HOST_H
#define CUDA_HOST_H

#include "tests/cuda_host/grid.h"

#include <math.h>
#include <string.h>
#include <type_traits>

#define __device__
#define __host__
#define __forceinline__ inline

#define threadIdx (cuda_host_now->thread)
#define blockIdx (cuda_host_now->block)
#define blockDim (cuda_host_now->block_dim)
#define gridDim (cuda_host_now->grid_dim)

#define KERNEL(NAME, THREADS, ARGS)                                        \
	static void NAME##_body(const ARGS &a);                                \
	extern "C" void NAME(const void *args)                                 \
	{                                                                      \
		NAME##_body(*(const ARGS *)args);                                  \
	}                                                                      \
	__attribute__((constructor)) static void NAME##_register(void)         \
	{                                                                      \
		static struct cuda_host_kernel k = {                               \
			#NAME, (const void *)NAME, NAME, sizeof(ARGS), THREADS, NULL}; \
		cuda_host_register(&k);                                            \
	}                                                                      \
	static void NAME##_body(const ARGS &a)

/* kernels run one after the other, but what they do before their turn is done as well */
#define KERNELS_OVERLAP 1
#define KERNEL_APART KERNEL
#define KERNEL_EARLY KERNEL
static inline void grid_wait(void)
{
}

static inline unsigned char *shared_memory(void)
{
	return cuda_host_shared();
}

static inline void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
	cuda_host_mma(d, a, b);
}

/* Bytes arrive when they, or a barrier, are waited for. */
static inline void copy_async_16(void *to, const void *from, bool there)
{
	cuda_host_copy_async(to, from, 16, there);
}

static inline void copy_async_wait(void)
{
	cuda_host_copy_wait();
}

static inline void barrier_arrive_copied(uint64_t *barrier)
{
	cuda_host_barrier_arrive_copied(barrier);
}

static inline void load_matrices_transposed(uint32_t m[4], const void *row)
{
	const unsigned char *all = cuda_host_warp_meet(0xffffffffu, &row, sizeof row);
	unsigned g = cuda_host_now->lane / 4, t = cuda_host_now->lane % 4;
	for (unsigned i = 0; i < 4; i++) {
		const uint16_t *rows[2];
		for (unsigned k = 0; k < 2; k++)
			memcpy(&rows[k], all + 32 * (8 * i + 2 * t + k), sizeof rows[k]);
		m[i] = rows[0][g] | (uint32_t)rows[1][g] << 16;
	}
}

static inline void barrier_init(uint64_t *barrier, uint32_t count)
{
	cuda_host_barrier_init(barrier, count);
}

static inline void barrier_ready(void)
{
}

static inline void barrier_arrive(uint64_t *barrier)
{
	cuda_host_barrier_arrive(barrier, 0);
}

static inline void barrier_expect(uint64_t *barrier, uint32_t bytes)
{
	cuda_host_barrier_arrive(barrier, bytes);
}

static inline uint32_t cluster_rank(void)
{
	return cuda_host_cluster_rank();
}

static inline void cluster_meet(void)
{
	cuda_host_cluster_meet();
}

static inline void barrier_arrive_at(uint64_t *barrier, uint32_t rank)
{
	cuda_host_barrier_arrive((uint64_t *)cuda_host_peer(barrier, rank), 0);
}

static inline void copy_bulk_both(void *to, const void *from, uint32_t bytes, uint64_t *barrier)
{
	for (unsigned rank = 0; rank < 2; rank++)
		cuda_host_copy_bulk(cuda_host_peer(to, rank), from, bytes,
		                    (uint64_t *)cuda_host_peer(barrier, rank));
}

static inline void barrier_wait(uint64_t *barrier, uint32_t phase)
{
	cuda_host_barrier_wait(barrier, phase & 1);
}

#define WGMMA 1
static inline void wgmma_publish(void)
{
}

static inline void wgmma_begin(void)
{
}

template <int N, int BY_K>
static inline void wgmma_bf16(float (&d)[N / 2], const uint32_t a[4], uint64_t b, bool add)
{
	cuda_host_wgmma(d, N, a, b, BY_K, add);
}

static inline void wgmma_commit(void)
{
	cuda_host_wgmma_commit();
}

template <int PENDING, int N> static inline void wgmma_wait(float (&)[N])
{
	cuda_host_wgmma_wait(PENDING);
}

static inline uint32_t shared_address(const void *at)
{
	return (uint32_t)((const unsigned char *)at - cuda_host_shared());
}

/* For finite numbers, for which the result is exact. */
static inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
	uint32_t d[2];
	for (int i = 0; i < 2; i++) {
		uint32_t u[3] = {a << (i ? 0 : 16) & 0xffff0000u, b << (i ? 0 : 16) & 0xffff0000u,
		                 c << (i ? 0 : 16) & 0xffff0000u};
		float f[3], r;
		memcpy(f, u, sizeof f);
		r = fmaf(f[0], f[1], f[2]);
		memcpy(&d[i], &r, sizeof r);
	}
	return d[0] >> 16 | (d[1] & 0xffff0000u);
}

/* Byte i of the result is the byte of (low, high) selected by the lower three bits of nibble i of
 * `which`. */
static inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t which)
{
	uint64_t all = (uint64_t)high << 32 | low;
	uint32_t r = 0;
	for (int i = 0; i < 4; i++)
		r |= (uint32_t)(all >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
	return r;
}

static inline void store_relaxed_system(uint64_t *at, uint64_t value)
{
	__atomic_store_n(at, value, __ATOMIC_RELEASE);
}

static inline void store_release_system(uint32_t *at, uint32_t value)
{
	__atomic_store_n(at, value, __ATOMIC_RELEASE);
}

static inline uint32_t load_acquire_system(const uint32_t *at)
{
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

template <typename T> static inline void store_far(T *at, const T &value)
{
	*at = value;
	cuda_host_sent(sizeof value);
}

/* Reads, so that AddressSanitizer finds an address out of bounds. */
static inline void prefetch_l2(const void *at)
{
	(void)*(const volatile char *)at;
}

static inline void wait_a_little(void)
{
	cuda_host_pause();
}

static inline uint64_t clock_ns(void)
{
	return cuda_host_clock_ns();
}

static inline void __syncthreads(void)
{
	cuda_host_block_meet(0);
}

static inline int __syncthreads_or(int value)
{
	return cuda_host_block_meet(value) != 0;
}

static inline int __syncthreads_count(int value)
{
	return cuda_host_block_meet(value);
}

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
	cuda_host_warp_meet(mask, NULL, 0);
}

static inline void __threadfence(void)
{
}
static inline void __threadfence_system(void)
{
}

template <typename T> static inline T cuda_host_lane(const unsigned char *all, unsigned lane)
{
	T v;
	memcpy(&v, all + 32 * (lane % 32), sizeof v);
	return v;
}

template <typename T> static inline T __shfl_sync(unsigned mask, T v, unsigned lane)
{
	return cuda_host_lane<T>(cuda_host_warp_meet(mask, &v, sizeof v), lane);
}

template <typename T> static inline T __shfl_xor_sync(unsigned mask, T v, unsigned by)
{
	return cuda_host_lane<T>(cuda_host_warp_meet(mask, &v, sizeof v), cuda_host_now->lane ^ by);
}

/* Lanes beyond the end keep their own value. */
template <typename T> static inline T __shfl_down_sync(unsigned mask, T v, unsigned by)
{
	const unsigned char *all = cuda_host_warp_meet(mask, &v, sizeof v);
	return cuda_host_lane<T>(all, cuda_host_now->lane + by < 32 ? cuda_host_now->lane + by
	                                                            : cuda_host_now->lane);
}

template <typename T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned by)
{
	const unsigned char *all = cuda_host_warp_meet(mask, &v, sizeof v);
	return cuda_host_lane<T>(all, cuda_host_now->lane >= by ? cuda_host_now->lane - by
	                                                        : cuda_host_now->lane);
}

static inline unsigned __ballot_sync(unsigned mask, int value)
{
	const unsigned char *all = cuda_host_warp_meet(mask, &value, sizeof value);
	unsigned bits = 0;
	for (unsigned i = 0; i < 32; i++)
		bits |= (unsigned)(mask >> i & 1 && cuda_host_lane<int>(all, i) != 0) << i;
	return bits;
}

static inline int __any_sync(unsigned mask, int value)
{
	return __ballot_sync(mask, value) != 0;
}

static inline int __all_sync(unsigned mask, int value)
{
	return __ballot_sync(mask, value) == mask;
}

/* Fibres do not switch here, so plain accesses are atomic. */
template <typename T> static inline T atomicAdd(T *at, std::common_type_t<T> by)
{
	T old = *at;
	*at = old + by;
	return old;
}

template <typename T> static inline T atomicMax(T *at, std::common_type_t<T> v)
{
	T old = *at;
	*at = old > v ? old : v;
	return old;
}

template <typename T> static inline T atomicMin(T *at, std::common_type_t<T> v)
{
	T old = *at;
	*at = old < v ? old : v;
	return old;
}

template <typename T> static inline T atomicOr(T *at, std::common_type_t<T> v)
{
	T old = *at;
	*at = old | v;
	return old;
}

static inline int __popc(unsigned v)
{
	return __builtin_popcount(v);
}
static inline int __clz(int v)
{
	return v ? __builtin_clz((unsigned)v) : 32;
}
static inline int __ffs(int v)
{
	return __builtin_ffs(v);
}

#endif
