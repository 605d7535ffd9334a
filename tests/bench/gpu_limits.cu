/* gpu_limits.cu - what a GPU can do at most, to hold figures of the CUDA backend against: bandwidth
 * of reading and copying, dense rates of BF16 and FP8 by each instruction that there is, the gap
 * between kernels of a graph, copies to and from pinned memory, how long a word takes from a kernel
 * to the host, and what an allocation of a matrix's size takes. And an experiment that decides
 * whether kernels for few and for many rows may use different instructions: do wgmma and mma.sync
 * give the same bits? Prints "name value unit" lines. */
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CHECK(CALL)                                                                 \
	do {                                                                            \
		cudaError_t e_ = (CALL);                                                    \
		if (e_ != cudaSuccess) {                                                    \
			fprintf(stderr, "gpu_limits: %s: %s\n", #CALL, cudaGetErrorString(e_)); \
			exit(1);                                                                \
		}                                                                           \
	} while (0)

static cudaStream_t stream;

static double now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static void show(const char *name, double value, const char *unit)
{
	printf("%-28s %12.2f %s\n", name, value, unit);
	fflush(stdout);
}

/* The least of some rounds of what `work` puts into the stream, in microseconds. */
template <typename F> static double least_us(F work)
{
	cudaEvent_t a, b;
	float least = 1e30f;
	CHECK(cudaEventCreate(&a));
	CHECK(cudaEventCreate(&b));
	for (int i = 0; i < 8; i++) {
		float ms;
		CHECK(cudaEventRecord(a, stream));
		work();
		CHECK(cudaEventRecord(b, stream));
		CHECK(cudaEventSynchronize(b));
		CHECK(cudaGetLastError());
		CHECK(cudaEventElapsedTime(&ms, a, b));
		if (i && ms < least)
			least = ms;
	}
	CHECK(cudaEventDestroy(a));
	CHECK(cudaEventDestroy(b));
	return 1e3 * (double)least;
}

/* --- bandwidth ----------------------------------------------------------- */

static __global__ void read_all(const uint4 *x, size_t n, uint32_t *out)
{
	uint32_t sum = 0;
	size_t step = (size_t)gridDim.x * blockDim.x;
	for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += 4 * step) {
		uint4 v[4];
#pragma unroll
		for (int k = 0; k < 4; k++)
			v[k] = i + k * step < n ? __ldcs(x + i + k * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
		for (int k = 0; k < 4; k++)
			sum ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
	}
	if (sum == 0x12345678) /* never, but the compiler does not know */
		*out = sum;
}

static void bandwidth(int multiprocessors)
{
	size_t left, all;
	CHECK(cudaMemGetInfo(&left, &all));
	const size_t bytes = (left / 4 < (size_t)4 << 30 ? left / 4 : (size_t)4 << 30) >> 20 << 20;
	unsigned char *a, *b, *host;
	CHECK(cudaMalloc(&a, bytes));
	CHECK(cudaMalloc(&b, bytes));
	CHECK(cudaMemset(a, 1, bytes));
	double us = least_us([&] {
		read_all<<<multiprocessors * 8, 512, 0, stream>>>((const uint4 *)a, bytes / 16,
		                                                  (uint32_t *)b);
	});
	show("read", bytes / us * 1e-3, "GB/s");
	us = least_us([&] { CHECK(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice, stream)); });
	show("copy (read and written)", 2 * bytes / us * 1e-3, "GB/s");
	CHECK(cudaHostAlloc(&host, bytes / 8, cudaHostAllocDefault));
	us = least_us(
		[&] { CHECK(cudaMemcpyAsync(host, a, bytes / 8, cudaMemcpyDeviceToHost, stream)); });
	show("device to pinned", bytes / 8 / us * 1e-3, "GB/s");
	us = least_us(
		[&] { CHECK(cudaMemcpyAsync(a, host, bytes / 8, cudaMemcpyHostToDevice, stream)); });
	show("pinned to device", bytes / 8 / us * 1e-3, "GB/s");
	CHECK(cudaFreeHost(host));
	CHECK(cudaFree(a));
	CHECK(cudaFree(b));
}

/* What the driver takes for matrices that are allocated one by one: it may round each up. */
static void allocations(void)
{
	enum { N = 1000, BYTES = 42 * (1 << 20) / 10 / 256 * 256 };
	size_t before, after, all;
	CHECK(cudaMemGetInfo(&before, &all));
	void **p = (void **)calloc(N, sizeof *p);
	size_t fit = before / 2 / BYTES, n = fit < N ? fit : N;
	double begun = now_us();
	for (size_t i = 0; i < n; i++)
		CHECK(cudaMalloc(&p[i], BYTES));
	double took = now_us() - begun;
	CHECK(cudaMemGetInfo(&after, &all));
	for (size_t i = 0; i < n; i++)
		CHECK(cudaFree(p[i]));
	free(p);
	if (!n)
		return;
	show("allocation of 4.2 MiB", took / (double)n, "us");
	show("allocation of 4.2 MiB takes", (double)(before - after) / (double)n / (1 << 20), "MiB");
}

/* --- tensor cores -------------------------------------------------------- */

static __device__ void mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, "
	             "%6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* d (16, 8) += a (16, 32) b (32, 8) */
static __device__ void mma_f8(float d[4], const uint32_t a[4], const uint32_t b[2])
{
#if __CUDA_ARCH__ >= 890
	asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, "
	             "%6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
	(void)d, (void)a, (void)b;
#endif
}

/* rounds: some 20 ms, so that the clock is one that the device holds */
enum { MMA_CHAINS = 8, MMA_ROUNDS = 1 << 18 };

/* Numbers of any sign between 1 and 2, two of BF16 or four of E4M3: what operands are changes what
 * the device can do with its power. */
static __device__ uint32_t some_numbers(uint32_t seed, bool f8)
{
	seed = seed * 2654435761u ^ seed >> 15;
	return f8 ? (seed & 0x87878787u) | 0x38383838u : (seed & 0x807f807fu) | 0x3f803f80u;
}

template <bool F8> static __global__ void mma_rate(float *out)
{
	float d[MMA_CHAINS][4] = {};
	uint32_t a[4], b[2];
	for (uint32_t i = 0; i < 6; i++)
		(i < 4 ? a[i] : b[i - 4]) = some_numbers(threadIdx.x * 6 + i, F8);
	for (int i = 0; i < MMA_ROUNDS; i++)
#pragma unroll
		for (int k = 0; k < MMA_CHAINS; k++)
			F8 ? mma_f8(d[k], a, b) : mma(d[k], a, b);
	float sum = 0;
	for (int k = 0; k < MMA_CHAINS; k++)
		sum += d[k][0] + d[k][1] + d[k][2] + d[k][3];
	if (sum == 1234.5f)
		*out = sum;
}

/* Operands of wgmma in shared memory, without swizzling: for each 8 rows two matrices of 8 rows by
 * 16 bytes, one after the other. */
enum {
	WGMMA_M = 64,
	WGMMA_N = 256,
	WGMMA_ROW_BYTES = 32,
	WGMMA_GROUPS = 2,
	WGMMA_ROUNDS = 1 << 17
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
static __device__ uint64_t wgmma_operand(const void *shared)
{
	uint64_t at = (uint64_t)__cvta_generic_to_shared(shared);
	return (at & 0x3ffff) >> 4 | (uint64_t)(128 >> 4) << 16 | (uint64_t)(256 >> 4) << 32;
}
#endif

#define D_4(I) "+f"(d[I]), "+f"(d[I + 1]), "+f"(d[I + 2]), "+f"(d[I + 3])
#define D_16(I) D_4(I), D_4(I + 4), D_4(I + 8), D_4(I + 12)
#define D_64(I) D_16(I), D_16(I + 16), D_16(I + 32), D_16(I + 48)
/* d (64, 256) += a (64, k) b (k, 256): a row's k numbers are 32 bytes. FLAGS: neither is
 * transposed, where that can be */
#define WGMMA(SHAPE_AND_TYPES, FLAGS)                                                            \
	asm volatile(                                                                                \
		"{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                               \
		"wgmma.mma_async.sync.aligned." SHAPE_AND_TYPES " "                                      \
		"{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                \
		"%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "       \
		"%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "       \
		"%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "       \
		"%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "       \
		"%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "       \
		"%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
		"%111, "                                                                                 \
		"%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "   \
		"%126, %127}, "                                                                          \
		"%128, %129, p, 1, 1" FLAGS ";\n}"                                                       \
		: D_64(0), D_64(64)                                                                      \
		: "l"(a), "l"(b))

template <bool F8>
static __global__ void __launch_bounds__(WGMMA_GROUPS * 128) wgmma_rate(float *out)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
	enum { WORDS = (WGMMA_M + WGMMA_N) * WGMMA_ROW_BYTES / 4 };
	__shared__ __align__(128) uint32_t operands[WORDS];
	float d[128] = {};
	for (uint32_t i = threadIdx.x; i < WORDS; i += blockDim.x)
		operands[i] = some_numbers(i, F8);
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
	__syncthreads();
	uint64_t a = wgmma_operand(operands),
			 b = wgmma_operand(operands + WGMMA_M * WGMMA_ROW_BYTES / 4);
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
	for (int i = 0; i < WGMMA_ROUNDS; i++) {
		if constexpr (F8)
			WGMMA("m64n256k32.f32.e4m3.e4m3", "");
		else
			WGMMA("m64n256k16.f32.bf16.bf16", ", 0, 0");
		asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;" ::
		                 : "memory");
	}
	asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
	float sum = 0;
	for (int i = 0; i < 128; i++)
		sum += d[i];
	out[1] = 1; /* it was compiled for this device */
	if (sum == 1234.5f)
		*out = sum;
#else
	(void)out;
#endif
}

/* flop: of a multiprocessor */
template <typename F>
static void show_dense(const char *name, double flop, int multiprocessors, F work)
{
	show(name, flop * multiprocessors / least_us(work) * 1e-6, "TFLOP/s");
}

static void dense(const cudaDeviceProp &p)
{
	enum { THREADS = 512, WGMMA_THREADS = WGMMA_GROUPS * 128 };
	int n = p.multiProcessorCount, capability = 10 * p.major + p.minor;
	double mma_flop = 2.0 * 16 * 8 * 16 * double(MMA_CHAINS) * double(MMA_ROUNDS) * (THREADS / 32),
		   wgmma_flop = 2.0 * double(WGMMA_M) * double(WGMMA_N) * 16 * double(WGMMA_ROUNDS) *
	                    double(WGMMA_GROUPS);
	float *out, ran[2] = {0, 0};
	CHECK(cudaMalloc(&out, sizeof ran));
	CHECK(cudaMemset(out, 0, sizeof ran));
	show_dense("mma.sync bf16", mma_flop, n,
	           [&] { mma_rate<false><<<n, THREADS, 0, stream>>>(out); });
	if (capability >= 89)
		show_dense("mma.sync f8_e4m3", 2 * mma_flop, n,
		           [&] { mma_rate<true><<<n, THREADS, 0, stream>>>(out); });
	if (p.major == 9) {
		wgmma_rate<false><<<1, WGMMA_THREADS, 0, stream>>>(out);
		CHECK(cudaStreamSynchronize(stream));
		CHECK(cudaMemcpy(ran, out, sizeof ran, cudaMemcpyDeviceToHost));
	}
	if (ran[1] != 0) {
		show_dense("wgmma bf16", wgmma_flop, n,
		           [&] { wgmma_rate<false><<<n, WGMMA_THREADS, 0, stream>>>(out); });
		show_dense("wgmma f8_e4m3", 2 * wgmma_flop, n,
		           [&] { wgmma_rate<true><<<n, WGMMA_THREADS, 0, stream>>>(out); });
	}
	CHECK(cudaFree(out));
}

/* d (64, 8) = sum over steps of a (64, 16) b (16, 8): by four warps' mma.sync, and by wgmma of
 * the four. */
enum { STEPS = 64 };

static __global__ void mma_bits(const uint32_t *a, const uint32_t *b, float *d)
{
	uint32_t thread = threadIdx.x, lane = thread % 32;
	float sum[4] = {0, 0, 0, 0};
	for (int s = 0; s < STEPS; s++)
		mma(sum, a + (s * 128 + thread) * 4, b + (s * 32 + lane) * 2);
	for (int i = 0; i < 4; i++)
		d[thread * 4 + i] = sum[i];
}

static __global__ void wgmma_bits(const uint32_t *a, const uint32_t *b, float *d)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
	/* b: two core matrices of 8 columns by 8 values, a column's values together */
	__shared__ __align__(128) uint32_t tile[64];
	uint32_t thread = threadIdx.x, lane = thread % 32, g = lane / 4, t = lane % 4;
	float sum[4] = {0, 0, 0, 0};
	for (int s = 0; s < STEPS; s++) {
		__syncthreads();
		if (thread < 32) {
			tile[g * 4 + t] = b[(s * 32 + lane) * 2];
			tile[32 + g * 4 + t] = b[(s * 32 + lane) * 2 + 1];
		}
		asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
		__syncthreads();
		uint64_t at = (uint64_t)__cvta_generic_to_shared(tile);
		uint64_t descriptor = (at & 0x3ffff) >> 4 | (uint64_t)(128 >> 4) << 16 |
		                      (uint64_t)(256 >> 4) << 32;
		const uint32_t *x = a + (s * 128 + thread) * 4;
		asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
		asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
		             "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, {%4, "
		             "%5, %6, %7}, %8, p, 1, 1, 0;\n}"
		             : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
		             : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(descriptor));
		asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::
		                 : "memory");
	}
	for (int i = 0; i < 4; i++)
		d[thread * 4 + i] = sum[i];
#else
	(void)a, (void)b, (void)d;
#endif
}

static void same_bits(void)
{
	enum { A = STEPS * 128 * 4, B = STEPS * 32 * 2, D = 512 };
	uint32_t *a, *b, differ = 0, seed = 1;
	float *d, *e, worst = 0;
	CHECK(cudaMallocManaged(&a, A * 4));
	CHECK(cudaMallocManaged(&b, B * 4));
	CHECK(cudaMallocManaged(&d, D * 4));
	CHECK(cudaMallocManaged(&e, D * 4));
	for (int i = 0; i < A + B; i++) {
		uint32_t pair = 0;
		for (int k = 0; k < 2; k++) { /* magnitudes of 2^-6 to 2^2, any sign and digits */
			seed = seed * 1664525u + 1013904223u;
			pair = pair << 16 | (seed >> 31) << 15 | (121 + (seed >> 20) % 8) << 7 |
			       (seed >> 8 & 127);
		}
		(i < A ? a[i] : b[i - A]) = pair;
	}
	mma_bits<<<1, 128, 0, stream>>>(a, b, d);
	wgmma_bits<<<1, 128, 0, stream>>>(a, b, e);
	CHECK(cudaStreamSynchronize(stream));
	for (int i = 0; i < D; i++) {
		differ += d[i] != e[i];
		worst = fmaxf(worst, fabsf(d[i] - e[i]));
	}
	show("wgmma: bits that differ", 100.0 * differ / (double)D, "% of elements from mma.sync's");
	show("wgmma: largest difference", worst * 1e6, "1e-6");
}

/* --- latencies ----------------------------------------------------------- */

static __global__ void nothing(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
}

static void launch_gap(int overlap)
{
	enum { KERNELS = 1000 };
	cudaGraph_t g;
	cudaGraphExec_t exec;
	cudaLaunchAttribute attr = {};
	cudaLaunchConfig_t c = {};
	attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attr.val.programmaticStreamSerializationAllowed = 1;
	c.gridDim = dim3(1);
	c.blockDim = dim3(32);
	c.stream = stream;
	c.attrs = &attr;
	c.numAttrs = overlap ? 1 : 0;
	CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
	for (int i = 0; i < KERNELS; i++)
		CHECK(cudaLaunchKernelEx(&c, nothing));
	CHECK(cudaStreamEndCapture(stream, &g));
	CHECK(cudaGraphInstantiate(&exec, g, 0));
	double us = least_us([&] { CHECK(cudaGraphLaunch(exec, stream)); });
	show(overlap ? "kernel in a graph, overlapped" : "kernel in a graph", us / (double)KERNELS,
	     "us");
	CHECK(cudaGraphExecDestroy(exec));
	CHECK(cudaGraphDestroy(g));
}

static __global__ void store_word(uint64_t *word, uint64_t value)
{
	__threadfence_system();
	asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

/* From the call that puts the store into an idle stream until the host sees the word. */
static void board_latency(void)
{
	typedef CUresult (*write_value)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
	volatile uint64_t *word;
	void *dev, *fn = NULL;
	cudaDriverEntryPointQueryResult found;
	double least[2] = {1e9, 1e9};
	CHECK(cudaHostAlloc((void **)&word, 64, cudaHostAllocMapped));
	CHECK(cudaHostGetDevicePointer(&dev, (void *)word, 0));
	*word = 0;
	cudaGetDriverEntryPointByVersion("cuStreamWriteValue64", &fn, 12080, cudaEnableDefault, &found);
	for (uint64_t i = 1; i < 400; i++) {
		double begun = now_us();
		if (i % 2)
			store_word<<<1, 1, 0, stream>>>((uint64_t *)dev, i);
		else if (fn)
			((write_value)fn)((CUstream)stream, (CUdeviceptr)dev, i, 0);
		else
			break;
		while (*word != i && now_us() - begun < 1e6)
			;
		double took = now_us() - begun;
		least[i % 2] = took < least[i % 2] ? took : least[i % 2];
		CHECK(cudaStreamSynchronize(stream));
	}
	show("word by a kernel's store", least[1], "us until the host sees it");
	show("word by cuStreamWriteValue", least[0], "us until the host sees it");
}

int main(void)
{
	cudaDeviceProp p;
	int driver, runtime;
	CHECK(cudaGetDeviceProperties(&p, 0));
	CHECK(cudaDriverGetVersion(&driver));
	CHECK(cudaRuntimeGetVersion(&runtime));
	CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	printf("%s, compute capability %d.%d, %d multiprocessors, %zu MiB, driver %d, runtime %d\n",
	       p.name, p.major, p.minor, p.multiProcessorCount, p.totalGlobalMem >> 20, driver,
	       runtime);
	bandwidth(p.multiProcessorCount);
	allocations();
	dense(p);
	launch_gap(0);
	if (p.major >= 9)
		launch_gap(1);
	board_latency();
	if (p.major == 9)
		same_bits();
	return 0;
}
