/* kernel.h - the basis of all kernels: how to declare one, threads, shared memory, warps, tensor
 * cores, and numbers of the three activation types.
 *
 * A kernel takes one struct and is launched by plan.h. The compiler fuses and reorders nothing
 * (-fmad=false): fused multiply-adds are written as fmaf. Without nvcc the same sources are
 * compiled for the host, where tests/cuda_host runs a block's threads as fibres. */
#ifndef CUDA_KERNEL_H
#define CUDA_KERNEL_H

#include "kernels/cuda/plan.h"
#include "kernels/numbers.h"

#ifdef __CUDACC__

/* Kernels may start before the previous one is done. */
#if __CUDA_ARCH__ >= 900
#define KERNELS_OVERLAP 1
#else
#define KERNELS_OVERLAP 0
#endif

/* Programmatic dependent launch: lets the next kernel of the stream be launched, whose blocks wait
 * on the device until this one is done. */
static __device__ __forceinline__ void grid_launch_next(void)
{
#if KERNELS_OVERLAP
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Waits until the previous kernel is done, and so everything before it, because every thread of
 * every kernel waits before it ends, and before it reads or writes (but see KERNEL_EARLY). A kernel
 * without this call must not be launched with overlap (program.c). */
static __device__ __forceinline__ void grid_wait(void)
{
#if KERNELS_OVERLAP
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* KERNEL(name, most threads per block, struct of its argument `a`) { ... } Requesting one block per
 * multiprocessor keeps the compiler from spilling registers to fit more. KERNEL_APART: no block of
 * the next kernel is on the device before all of this one have ended. KERNEL_EARLY: calls grid_wait
 * itself; until then it reads only what no kernel of a program writes (weights, constants, the
 * header of a batch), and memory of its own. */
#define KERNEL(NAME, THREADS, ARGS) \
	KERNEL_FROM((grid_launch_next(), grid_wait()), NAME, THREADS, ARGS)
#define KERNEL_APART(NAME, THREADS, ARGS) KERNEL_FROM(grid_wait(), NAME, THREADS, ARGS)
#define KERNEL_EARLY(NAME, THREADS, ARGS) KERNEL_FROM(grid_launch_next(), NAME, THREADS, ARGS)
#define KERNEL_FROM(FIRST, NAME, THREADS, ARGS)                                                   \
	static __device__ __forceinline__ void NAME##_body(const ARGS &a);                            \
	extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const __grid_constant__ ARGS a) \
	{                                                                                             \
		FIRST;                                                                                    \
		NAME##_body(a);                                                                           \
	}                                                                                             \
	static __device__ __forceinline__ void NAME##_body(const ARGS &a)

/* The block's dynamic shared memory. */
static __device__ __forceinline__ unsigned char *shared_memory(void)
{
	extern __shared__ __align__(128) unsigned char shared_bytes[];
	return shared_bytes;
}

/* d (16, 8) += a (16, 16) b (16, 8) in float32, for a warp. With g = lane / 4 and t = lane % 4, low
 * half of a register first: a[0]: row g, columns 2t, 2t+1; a[1]: row g + 8, same columns; a[2]: row
 * g, columns 2t+8, 2t+9; a[3]: row g + 8, same columns as a[2]; b[0]: rows 2t, 2t+1 of column g;
 * b[1]: rows 2t+8, 2t+9; d[0], d[1]: row g, columns 2t, 2t+1; d[2], d[3]: row g + 8 (PTX ISA,
 * mma.m16n8k16). */
static __device__ __forceinline__ void mma_bf16(float d[4], const uint32_t a[4],
                                                const uint32_t b[2])
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, "
	             "%6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Starts copying 16 bytes into shared memory; both addresses are multiples of 16. Not there: zeros,
 * and nothing is read. Done once the group that they are committed to has been waited for. */
static __device__ __forceinline__ void copy_async_16(void *to, const void *from, bool there)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
					 (uint32_t)__cvta_generic_to_shared(to)),
	             "l"(from), "r"(there ? 16 : 0)
	             : "memory");
}

static __device__ __forceinline__ void copy_async_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits for this thread's groups but for the latest PENDING. */
template <int PENDING> static __device__ __forceinline__ void copy_async_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* Four matrices (8, 8) of bfloat16 in shared memory, transposed: lane 8 m + i has the address of
 * row i of matrix m. With g and t as above, m[i]: of matrix i, rows 2t, 2t+1 of column g (PTX ISA,
 * ldmatrix). */
static __device__ __forceinline__ void load_matrices_transposed(uint32_t m[4], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
	             : "r"((uint32_t)__cvta_generic_to_shared(row))
	             : "memory");
}

/* a b + c for each bfloat16 half, rounded once; denormals are kept. */
static __device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
	uint32_t d;
	asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
	return d;
}

/* Stores a word that another process or the host reads, after all earlier writes of this block's
 * threads (which the caller orders with __syncthreads). */
static __device__ __forceinline__ void store_release_system(uint64_t *at, uint64_t value)
{
	__threadfence_system();
	asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

static __device__ __forceinline__ void store_release_system(uint32_t *at, uint32_t value)
{
	__threadfence_system();
	asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

/* Loads a word that another device or the host writes, before all later reads of this thread. */
static __device__ __forceinline__ uint32_t load_acquire_system(const uint32_t *at)
{
	uint32_t value;
	asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
	return value;
}

/* Loads a word that other blocks of this device write, before all later reads of this thread. */
static __device__ __forceinline__ uint32_t load_acquire(const uint32_t *at)
{
	uint32_t value;
	asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
	return value;
}

/* The same without an order of later reads. */
static __device__ __forceinline__ uint32_t load_relaxed(const uint32_t *at)
{
	uint32_t value;
	asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
	return value;
}

/* Brings what is at an address into the L2 cache. */
static __device__ __forceinline__ void prefetch_l2(const void *at)
{
	asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/* In a loop that waits for another block or another device. */
static __device__ __forceinline__ void wait_a_little(void)
{
	__nanosleep(64);
}

static __device__ __forceinline__ uint64_t clock_ns(void)
{
	uint64_t now;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
	return now;
}

#else
#include "cuda_host.h"
#endif

#define WARP 32u
#define ALL_LANES 0xffffffffu

/* A block's place in its grid, or in its phase of a chain (chain.cu). */
struct block_place {
	uint32_t x, y, height; /* height: blocks for each x */
	uint32_t threads;
};

static __device__ inline struct block_place place_in_grid(void)
{
	return block_place{blockIdx.x, blockIdx.y, gridDim.y, blockDim.x};
}

/* --- batches ------------------------------------------------------------- */

/* rows: enum kern_rows */
static __device__ inline uint32_t batch_rows(const struct kern_batch *b, int rows)
{
	return rows == KERN_ROWS_ALL ? b->rows : b->tail_rows;
}

static __device__ inline const uint32_t *batch_words(const struct kern_batch *b, uint32_t at)
{
	return (const uint32_t *)b + at;
}

/* --- numbers ------------------------------------------------------------- */

/* For loops whose index must be a compile-time constant, so that indexed arrays become
 * registers. */
#ifdef __CUDACC__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL
#endif

/* Converts float16 bits with the device's instruction. */
static __device__ inline float f16_value(uint16_t bits)
{
#ifdef __CUDACC__
	float f;
	asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
	return f;
#else
	return kern_f16_to_f32(bits);
#endif
}

/* --- activations --------------------------------------------------------- */

/* Element c of row r of a tensor. */
static __device__ inline float tensor_get(const struct kern_tensor &t, size_t r, uint32_t c)
{
	size_t i = r * t.ld + c;
	if (t.type == KERN_F32)
		return ((const float *)t.at.v)[i];
	uint16_t h = ((const uint16_t *)t.at.v)[i];
	return t.type == KERN_BF16 ? kern_bf16_to_f32(h) : kern_f16_to_f32(h);
}

/* Stores v, rounded to the tensor's type, and returns the stored value. */
static __device__ inline float tensor_put(const struct kern_tensor &t, size_t r, uint32_t c,
                                          float v)
{
	size_t i = r * t.ld + c;
	if (t.type == KERN_F32)
		return ((float *)t.at.v)[i] = v;
	uint16_t h = t.type == KERN_BF16 ? kern_f32_to_bf16(v) : kern_f32_to_f16(v);
	((uint16_t *)t.at.v)[i] = h;
	return t.type == KERN_BF16 ? kern_bf16_to_f32(h) : kern_f16_to_f32(h);
}

/* Bits of the magnitude, which sort like magnitudes; infinities and NaN are above all numbers. */
static __device__ inline uint32_t magnitude_bits(float v)
{
	return kern_f32_bits(v) & 0x7fffffff;
}

/* --- warps and blocks ---------------------------------------------------- */

/* Sums and maxima over all 32 lanes, in a fixed order; every lane gets the result. */
static __device__ inline float warp_sum(float v)
{
	for (uint32_t by = WARP / 2; by; by /= 2)
		v += __shfl_xor_sync(ALL_LANES, v, by);
	return v;
}

static __device__ inline double warp_sum(double v)
{
	for (uint32_t by = WARP / 2; by; by /= 2)
		v += __shfl_xor_sync(ALL_LANES, v, by);
	return v;
}

/* NaN counts as smaller than all numbers. */
static __device__ inline float warp_max(float v)
{
	for (uint32_t by = WARP / 2; by; by /= 2)
		v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, by));
	return v;
}

static __device__ inline uint32_t warp_largest(uint32_t v)
{
	for (uint32_t by = WARP / 2; by; by /= 2) {
		uint32_t other = __shfl_xor_sync(ALL_LANES, v, by);
		v = other > v ? other : v;
	}
	return v;
}

/* Sum over the whole block of `threads`, a multiple of 32; `part` is shared memory for one value
 * per warp, and may be reused after the call. */
template <typename T> static __device__ inline T block_sum(T v, T *part, uint32_t threads)
{
	uint32_t warp = threadIdx.x / WARP, warps = threads / WARP;
	v = warp_sum(v);
	if (threadIdx.x % WARP == 0)
		part[warp] = v;
	__syncthreads();
	T sum = part[0];
	for (uint32_t i = 1; i < warps; i++)
		sum += part[i];
	__syncthreads();
	return sum;
}

#endif
