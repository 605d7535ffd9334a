/* kernel.h - the basis of all kernels: how to declare one, threads, shared memory, warps, tensor
 * cores, and numbers of the three activation types.
 *
 * A kernel takes one struct and is launched by plan.h. The compiler fuses and reorders nothing
 * (-fmad=false): fused multiply-adds are written as fmaf. Kernels check nothing and report no
 * errors: program_new and kern_batch_check have rejected what they cannot do, and an access beyond
 * memory breaks the device (device.c). Without nvcc the same sources are compiled for the host,
 * where tests/cuda_host runs a block's threads as fibres. */
#ifndef CUDA_KERNEL_H
#define CUDA_KERNEL_H

#include "kernels/cuda/plan.h"
#include "kernels/numbers.h"

#ifdef __CUDACC__

/* Instructions that there are from compute capability 9.0 on, and those of wgmma (below); elsewhere
 * nothing. KERNELS_OVERLAP: kernels may start before the previous one is done. */
#if __CUDA_ARCH__ >= 900
#define KERNELS_OVERLAP 1
#define ASM_SM90(...) asm volatile(__VA_ARGS__)
#else
#define KERNELS_OVERLAP 0
#define ASM_SM90(...) ((void)0)
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WGMMA 1
#define ASM_WGMMA(...) asm volatile(__VA_ARGS__)
#else
#define WGMMA 0
#define ASM_WGMMA(...) ((void)0)
#endif

/* Programmatic dependent launch: lets the next kernel of the stream be launched, whose blocks wait
 * on the device until this one is done. */
static __device__ __forceinline__ void grid_launch_next(void)
{
	ASM_SM90("griddepcontrol.launch_dependents;" ::: "memory");
}

/* Waits until the previous kernel is done, and so everything before it, because every thread of
 * every kernel waits before it ends, and before it reads or writes (but see KERNEL_EARLY). A kernel
 * without this call must not be launched with overlap (program.c). */
static __device__ __forceinline__ void grid_wait(void)
{
	ASM_SM90("griddepcontrol.wait;" ::: "memory");
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
	extern __shared__ __align__(1024) unsigned char shared_bytes[];
	return shared_bytes;
}

/* As instructions take it. */
static __device__ __forceinline__ uint32_t shared_address(const void *at)
{
	return (uint32_t)__cvta_generic_to_shared(at);
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

/* Starts copying 16 bytes into shared memory; both addresses are multiples of 16. If `there` is
 * false, writes zeros and does not read `from`. */
static __device__ __forceinline__ void copy_async_16(void *to, const void *from, bool there)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
	             "l"(from), "r"(there ? 16 : 0)
	             : "memory");
}

/* Waits for all copies that this thread has started. */
static __device__ __forceinline__ void copy_async_wait(void)
{
	asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Arrives at a barrier (below) once all copies that this thread has started so far are done. */
static __device__ __forceinline__ void barrier_arrive_copied(uint64_t *barrier)
{
	asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier))
	             : "memory");
}

/* Four matrices (8, 8) of bfloat16 in shared memory, transposed: lane 8 m + i has the address of
 * row i of matrix m. With g and t as above, m[i]: of matrix i, rows 2t, 2t+1 of column g (PTX ISA,
 * ldmatrix). */
static __device__ __forceinline__ void load_matrices_transposed(uint32_t m[4], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
	             : "r"(shared_address(row))
	             : "memory");
}

/* Barriers in shared memory, on which a thread arrives at one place and waits at another. A phase
 * ends when `count` threads and all bytes that they announced have arrived; phases are numbered
 * from 0, and to wait for one takes the last bit of its number, so a barrier may be at most one
 * phase ahead of a thread that waits. barrier_ready and __syncthreads must follow barrier_init. */
static __device__ __forceinline__ void barrier_init(uint64_t *barrier, uint32_t count)
{
	asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
	             : "memory");
}

static __device__ __forceinline__ void barrier_ready(void)
{
	ASM_SM90("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint64_t *barrier)
{
	asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(
					 shared_address(barrier))
	             : "memory");
}

/* Arrives, and announces the bytes of a copy_bulk_both. From compute capability 9.0 on. */
static __device__ __forceinline__ void barrier_expect(uint64_t *barrier, uint32_t bytes)
{
	ASM_SM90("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n}" ::"r"(
				 shared_address(barrier)),
	         "r"(bytes)
	         : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint64_t *barrier, uint32_t phase)
{
	uint32_t at = shared_address(barrier), done;
	do {
		asm volatile("{\n.reg .pred p;\n"
#if __CUDA_ARCH__ >= 900 /* suspends the thread for a while */
		             "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
#else
		             "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
#endif
		             "selp.b32 %0, 1, 0, p;\n}"
		             : "=r"(done)
		             : "r"(at), "r"(phase & 1)
		             : "memory");
	} while (!done);
}

/* --- clusters: blocks that run at the same time, next to each other (struct launch) --- */

static __device__ __forceinline__ uint32_t cluster_rank(void)
{
	uint32_t rank = 0;
	ASM_SM90("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
	return rank;
}

/* Waits for all threads of the cluster. Before a block uses another's shared memory, and before one
 * ends whose shared memory others use. */
static __device__ __forceinline__ void cluster_meet(void)
{
	ASM_SM90("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
	             : "memory");
}

/* barrier_arrive at the same barrier of another block. Orders nothing but this thread's reads of
 * shared memory, which it has used: a release for the cluster would wait for all its loads. */
static __device__ __forceinline__ void barrier_arrive_at(uint64_t *barrier, uint32_t rank)
{
	ASM_SM90("{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, %1;\n"
	         "mbarrier.arrive.shared::cluster.b64 _, [at];\n}" ::"r"(shared_address(barrier)),
	         "r"(rank)
	         : "memory");
}

/* Starts copying into shared memory, to the same place of both blocks of a cluster of two;
 * addresses and `bytes` are multiples of 16. The same barrier of each counts it: the phase does not
 * end before it is done. Needs no wgmma_publish. */
static __device__ __forceinline__ void copy_bulk_both(void *to, const void *from, uint32_t bytes,
                                                      uint64_t *barrier)
{
	ASM_SM90("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
	         "cluster [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
	         "l"(from), "r"(bytes), "r"(shared_address(barrier)), "h"((uint16_t)3)
	         : "memory");
}

/* --- wgmma: products by four warps together, of which B lies in shared memory ---
 *
 * A wgmma sums the same 16 products as an mma.sync, and the tensor cores of these devices add 16
 * products and the accumulator as one sum, which has no order (MMA-Sim, arXiv:2511.10909, found the
 * same sum for both instructions). So kernels for the two compute the same bits if they take the
 * same 16 columns at a time, in the same order. The self-test (selftest.c) compares them on the
 * device at hand; where they differ, mma.sync does all. */

/* Makes visible to wgmma, after a further barrier, what this thread has written to shared memory or
 * has been told of by a barrier. May wait for the thread's own loads and copies. */
static __device__ __forceinline__ void wgmma_publish(void)
{
	ASM_WGMMA("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Before the first wgmma after any other access to its registers. */
static __device__ __forceinline__ void wgmma_begin(void)
{
	ASM_WGMMA("wgmma.fence.sync.aligned;" ::: "memory");
}

#define WGMMA_D4(I) "+f"(d[I]), "+f"(d[(I) + 1]), "+f"(d[(I) + 2]), "+f"(d[(I) + 3])
#define WGMMA_D16(I) WGMMA_D4(I), WGMMA_D4((I) + 4), WGMMA_D4((I) + 8), WGMMA_D4((I) + 12)
#define WGMMA_D32(I) WGMMA_D16(I), WGMMA_D16((I) + 16)
#define WGMMA_R32                                                                                \
	"%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
	"%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_R64                                                                             \
	WGMMA_R32                                                                                 \
	", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
	"%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/* Starts d (64, N) = a (64, 16) b (16, N), with `add` d += ab, for the four warps of a warpgroup,
 * which the block's warps 4 i to 4 i + 3 are. Warp i has rows 16 i to 16 i + 15 of a and d: a as
 * mma_bf16's, and d like N / 8 times mma_bf16's, one after the other (PTX ISA, wgmma.mma_async). b:
 * wgmma_operand. Until wgmma_wait a and b must not change, and d not be used. Before it
 * wgmma_begin. */
template <int N, int BY_K>
static __device__ __forceinline__ void wgmma_bf16(float (&d)[N / 2], const uint32_t a[4],
                                                  uint64_t b, bool add)
{
	static_assert(N == 64 || N == 128, "written for these");
	if constexpr (N == 64)
		ASM_WGMMA("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
		          "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WGMMA_R32
		          "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
		          : WGMMA_D32(0)
		          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((uint32_t)add),
		            "n"(BY_K));
	else
		ASM_WGMMA("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
		          "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WGMMA_R64
		          "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
		          : WGMMA_D32(0), WGMMA_D32(32)
		          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((uint32_t)add),
		            "n"(BY_K));
}

/* The wgmma since the last call are a group. */
static __device__ __forceinline__ void wgmma_commit(void)
{
	ASM_WGMMA("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits for this warp's groups but for the latest PENDING. d: results of the last one that is
 * waited for, which the compiler then reads after this. */
template <int PENDING, int N> static __device__ __forceinline__ void wgmma_wait(float (&d)[N])
{
	static_assert(N == 32 || N == 64, "written for these");
	if constexpr (N == 32)
		ASM_WGMMA("wgmma.wait_group.sync.aligned %32;" : WGMMA_D32(0) : "n"(PENDING) : "memory");
	else
		ASM_WGMMA("wgmma.wait_group.sync.aligned %64;"
		          : WGMMA_D32(0), WGMMA_D32(32)
		          : "n"(PENDING)
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
static __device__ __forceinline__ void store_release_system(uint32_t *at, uint32_t value)
{
	__threadfence_system();
	asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

/* The same without an order of earlier writes: the caller has __threadfence_system for that. */
static __device__ __forceinline__ void store_relaxed_system(uint64_t *at, uint64_t value)
{
	asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/* Loads a word that another device or the host writes, before all later reads of this thread. */
static __device__ __forceinline__ uint32_t load_acquire_system(const uint32_t *at)
{
	uint32_t value;
	asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
	return value;
}

/* To another rank's memory; the stand-in counts it. */
template <typename T> static __device__ __forceinline__ void store_far(T *at, const T &value)
{
	*at = value;
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

/* How a wgmma's B lies in shared memory (PTX ISA, matrix descriptor). A column is N's, a row K's.
 *
 *   PLAIN    matrices of 8 columns, each with 8 rows' 16 bytes; `leading` bytes from those of rows
 *            0 to 7 to those of rows 8 to 15, `stride` from 8 columns to the next
 *   SWIZZLED by columns: 64 rows' 128 bytes for each column, one column after the other, a column's
 *            pieces of 16 bytes at their number xor the column's within 8; a wgmma takes 32 of
 *            these bytes, from `at` on; `stride` bytes from 8 columns to the next
 *            by rows (BY_K): 64 columns' 128 bytes for each row, swapped likewise; `leading` bytes
 *            from 64 columns to the next, `stride` from 8 rows to the next
 *
 * What is swapped begins at a multiple of 1024 bytes. */
enum wgmma_layout { WGMMA_PLAIN = 0, WGMMA_SWIZZLED = 1 };

static __device__ inline uint64_t wgmma_operand(const void *at, enum wgmma_layout layout,
                                                uint32_t leading, uint32_t stride)
{
	return (uint64_t)(shared_address(at) >> 4 & 0x3fff) | (uint64_t)(leading >> 4) << 16 |
	       (uint64_t)(stride >> 4) << 32 | (uint64_t)layout << 62;
}

/* The operand that begins `bytes` later; a multiple of 16. */
static __device__ inline uint64_t wgmma_after(uint64_t operand, uint32_t bytes)
{
	return operand + (bytes >> 4);
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
#define NO_UNROLL _Pragma("unroll 1")
#else
#define UNROLL
#define NO_UNROLL
#endif

/* Loaded and stored at once; its address is a multiple of its size. */
template <int N> struct alignas(4 * N) words {
	uint32_t w[N];
};

/* The leading 16 bits, a bfloat16 number, of two numbers, the first in the low half. What is left
 * remains in them; of an infinity NaN. */
static __device__ inline uint32_t take_part(float *low, float *high)
{
	uint32_t l = kern_f32_bits(*low) & 0xffff0000u, h = kern_f32_bits(*high) & 0xffff0000u;
	*low -= kern_bits_to_f32(l);
	*high -= kern_bits_to_f32(h);
	return l >> 16 | h;
}

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

/* The sum and the largest over all 32 lanes, in a fixed order; every lane gets the result. */
template <typename T> static __device__ inline T warp_sum(T v)
{
	for (uint32_t by = WARP / 2; by; by /= 2)
		v += __shfl_xor_sync(ALL_LANES, v, by);
	return v;
}

/* Of unsigned integers. */
template <typename T> static __device__ inline T warp_largest(T v)
{
	for (uint32_t by = WARP / 2; by; by /= 2) {
		T other = __shfl_xor_sync(ALL_LANES, v, by);
		v = other > v ? other : v;
	}
	return v;
}

/* The largest of the block's unsigned integers. `part` holds each warp's; it must not be written
 * before all threads have returned. */
template <typename T> static __device__ inline T block_largest(T v, T *part, uint32_t threads)
{
	v = warp_largest(v);
	if (threadIdx.x % WARP == 0)
		part[threadIdx.x / WARP] = v;
	__syncthreads();
	for (uint32_t i = 0; i < threads / WARP; i++)
		v = part[i] > v ? part[i] : v;
	return v;
}

#endif
