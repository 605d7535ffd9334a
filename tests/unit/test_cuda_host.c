/* test_cuda_host.c - the shim on which the CUDA backend runs without a GPU (tests/cuda_host): its
 * streams, events, graphs and shared memory do what CUDA promises and no more, its threads show
 * missing barriers, its failures are those that are asked for. */
/* run: cuda */
#include "tests/cuda_host/grid.h"
#include "tests/cuda_host/kernels.h"
#include "tests/unit/skip.h"

#include <check.h>
#include <cuda.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 64, BLOCKS = 5, N = THREADS * BLOCKS };

static float x[N], z[N], y[N];

static cudaError_t launch(int kernel, unsigned blocks, unsigned threads, size_t shared,
                          const void *a, cudaStream_t s)
{
	void *args[] = {(void *)(uintptr_t)a};
	return cudaLaunchKernel(host_kernels[kernel], (struct dim3){blocks, 1, 1},
	                        (struct dim3){threads, 1, 1}, args, shared, s);
}

static cudaStream_t stream_new(void)
{
	cudaStream_t s;
	ck_assert_int_eq(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
	return s;
}

static void fill(void)
{
	for (int i = 0; i < N; i++) {
		x[i] = (float)(i * 7 % 101) - 50;
		z[i] = (float)(i * 13 % 97) - 48;
		y[i] = -1;
	}
}

static int rotated(int of)
{
	int good = 0;
	for (int i = 0; i < N; i++)
		good += y[i] == x[i / of * of + (i + 1) % of];
	return good;
}

TEST(threads_meet)
{
	cudaStream_t s = stream_new();
	struct rotate_args a = {x, z, y, 1};
	for (uint32_t seed = 1; seed < 20; seed++) {
		cuda_host_seed(seed);
		fill();
		ck_assert_int_eq(launch(ROTATE_BLOCK, BLOCKS, THREADS, THREADS * sizeof(float), &a, s),
		                 cudaSuccess);
		ck_assert_int_eq(cudaStreamSynchronize(s), cudaSuccess);
		ck_assert_int_eq(rotated(THREADS), N);
		fill();
		ck_assert_int_eq(launch(ROTATE_WARP, BLOCKS, THREADS, 0, &a, s), cudaSuccess);
		ck_assert_int_eq(cudaStreamSynchronize(s), cudaSuccess);
		ck_assert_int_eq(rotated(32), N);
		fill();
		ck_assert_int_eq(launch(ROTATE_WARP, N / 16, 16, 0, &a, s), cudaSuccess);
		ck_assert_int_eq(cudaStreamSynchronize(s), cudaSuccess);
		ck_assert_int_eq(rotated(16), N);
	}
	cudaStreamDestroy(s);
}

TEST(a_missing_barrier_shows)
{
	cudaStream_t s = stream_new();
	struct rotate_args a = {x, z, y, 0};
	for (uint32_t seed = 1; seed < 20; seed++) {
		cuda_host_seed(seed);
		fill();
		ck_assert_int_eq(launch(ROTATE_BLOCK, BLOCKS, THREADS, THREADS * sizeof(float), &a, s),
		                 cudaSuccess);
		ck_assert_int_eq(cudaStreamSynchronize(s), cudaSuccess);
		ck_assert_int_lt(rotated(THREADS), N);
	}
	cudaStreamDestroy(s);
}

/* How many of 20 orders have the right result, in each pair of blocks the other's. */
static int bulks_right(int with_barrier)
{
	enum { BLOCKS_HERE = BLOCKS / 2 * 2 };
	struct rotate_args a = {x, z, y, with_barrier};
	void *args[] = {&a};
	cudaLaunchAttribute attr = {.id = cudaLaunchAttributeClusterDimension,
	                            .val.clusterDim = {2, 1, 1}};
	cudaLaunchConfig_t c = {.gridDim = {BLOCKS_HERE, 1, 1},
	                        .blockDim = {THREADS, 1, 1},
	                        .dynamicSmemBytes = 2 * THREADS * sizeof(float) + 16,
	                        .stream = stream_new(),
	                        .attrs = &attr,
	                        .numAttrs = 1};
	int right = 0;
	for (uint32_t seed = 1; seed <= 20; seed++) {
		int good = 0;
		cuda_host_seed(seed);
		fill();
		ck_assert_int_eq(cudaLaunchKernelExC(&c, host_kernels[ROTATE_BULK], args), cudaSuccess);
		ck_assert_int_eq(cudaStreamSynchronize(c.stream), cudaSuccess);
		for (int i = 0; i < BLOCKS_HERE * THREADS; i++)
			good += y[i] == x[(i / THREADS ^ 1) * THREADS + (i + 1) % THREADS];
		right += good == BLOCKS_HERE * THREADS;
	}
	cudaStreamDestroy(c.stream);
	return right;
}

TEST(clusters_copy_for_each_other)
{
	ck_assert_int_eq(bulks_right(1), 20);
	ck_assert_int_eq(bulks_right(0), 0);
}

/* Products of a warpgroup against the definition, with B in each layout. */
TEST_LOOP(warpgroups_multiply, 0, GROUP_EARLY + 1)
{
	enum { M = 64, K = 16, COLUMNS = 64 };
	static float wide_x[M * K], wide_z[K * COLUMNS], wide_y[M * COLUMNS];
	struct group_args a = {wide_x, wide_z, wide_y, _i};
	cudaStream_t s = stream_new();
	int right = 0;
	for (int i = 0; i < M * K; i++) {
		wide_x[i] = (float)(i * 7 % 31) - 15;
		wide_z[i] = (float)(i * 13 % 29) - 14;
	}
	for (uint32_t seed = 1; seed <= 20; seed++) {
		int good = 0;
		cuda_host_seed(seed);
		ck_assert_int_eq(launch(MULTIPLY_GROUP, 1, 128, 8192, &a, s), cudaSuccess);
		ck_assert_int_eq(cudaStreamSynchronize(s), cudaSuccess);
		for (int i = 0; i < M * COLUMNS; i++) {
			float sum = 0;
			for (int k = 0; k < K; k++)
				sum += wide_x[i / COLUMNS * K + k] * wide_z[k * COLUMNS + i % COLUMNS];
			good += wide_y[i] == sum;
		}
		right += good == M * COLUMNS;
	}
	cudaStreamDestroy(s);
	if (_i == GROUP_EARLY)
		ck_assert_int_lt(right, 20);
	else
		ck_assert_int_eq(right, 20);
}

/* Runs BLOCKS blocks in turn. Returns the number of seeds whose result is right. */
static int turns_right(int with_wait, uint32_t seeds)
{
	unsigned counters[2];
	struct turn_args a = {x, y, &counters[0], &counters[1], with_wait};
	cudaStream_t s = stream_new();
	int right = 0;
	for (uint32_t seed = 1; seed <= seeds; seed++) {
		int good = 0;
		cuda_host_seed(seed);
		fill();
		counters[0] = counters[1] = 0;
		ck_assert_int_eq(launch(TAKE_TURNS, BLOCKS, THREADS, sizeof(uint32_t), &a, s), cudaSuccess);
		ck_assert_int_eq(cudaStreamSynchronize(s), cudaSuccess);
		for (int i = 0; i < N; i++)
			good += y[i] == (i < THREADS ? 0 : y[i - THREADS]) + x[i];
		right += good == N;
	}
	cudaStreamDestroy(s);
	return right;
}

TEST(blocks_wait_for_blocks)
{
	ck_assert_int_eq(turns_right(1, 40), 40);
}

TEST(a_missing_wait_shows)
{
	ck_assert_int_lt(turns_right(0, 40), 20);
}

static char said[300]; /* to stderr, by the process of ends_by */

/* How a process that runs the kernel ends. */
static int ends_by(int kernel, unsigned blocks, size_t shared)
{
	int status, ends[2];
	ck_assert_int_eq(pipe(ends), 0);
	pid_t pid = fork();
	if (!pid) {
		struct rotate_args a = {x, z, y, 0};
		cudaStream_t s = stream_new();
		if (dup2(ends[1], STDERR_FILENO) < 0 || launch(kernel, blocks, 32, shared, &a, s))
			_exit(9);
		cudaStreamSynchronize(s);
		_exit(0);
	}
	close(ends[1]);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ssize_t n = read(ends[0], said, sizeof said - 1);
	said[n > 0 ? n : 0] = 0;
	close(ends[0]);
	return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(lanes_that_never_come)
{
	fill();
	for (uint32_t seed = 1; seed < 20; seed++) {
		char text[8];
		snprintf(text, sizeof text, "%u", seed);
		setenv("CUDA_HOST_SEED", text, 1);
		ck_assert_int_eq(ends_by(LONE_LANE, BLOCKS, 0), SIGABRT);
		ck_assert_ptr_nonnull(strstr(said, "block (1, 0)"));
	}
	ck_assert_int_eq(ends_by(WRITE_BEYOND, 1, 33 * sizeof(float)), 0);
}

TEST(memory_beyond_a_block)
{
#ifndef __SANITIZE_ADDRESS__
	SKIP("needs AddressSanitizer");
#else
	fill();
	ck_assert_int_ne(ends_by(WRITE_BEYOND, 1, 32 * sizeof(float)), 0);
#endif
}

/* The products of two blocks, each (16, 8). */
static void check_products(void)
{
	for (int r = 0; r < 32; r++)
		for (int c = 0; c < 8; c++) {
			float want = 0;
			for (int k = 0; k < 16; k++)
				want += x[r / 16 * 64 + r % 16 * 16 + k] * z[k * 8 + c];
			ck_assert_msg(y[r * 8 + c] == want, "row %d, column %d is %g, want %g", r, c,
			              (double)y[r * 8 + c], (double)want);
		}
}

/* Small integers: exact. And a large term beside small ones, of which what is below 2^-24 of it
 * is lost. */
TEST(tensor_cores)
{
	cudaStream_t s = stream_new();
	struct rotate_args a = {x, z, y, 0};
	for (uint32_t seed = 1; seed < 20; seed++) {
		cuda_host_seed(seed);
		fill();
		ck_assert_int_eq(launch(MULTIPLY, 2, 32, 0, &a, s), cudaSuccess);
		ck_assert_int_eq(cudaStreamSynchronize(s), cudaSuccess);
		check_products();
	}
	for (int i = 0; i < 256; i++)
		x[i] = i % 16 ? 0x1p-25f : 1;
	for (int i = 0; i < 128; i++)
		z[i] = 1;
	ck_assert_int_eq(launch(MULTIPLY, 1, 32, 0, &a, s), cudaSuccess);
	ck_assert_int_eq(cudaStreamSynchronize(s), cudaSuccess);
	for (int i = 0; i < 128; i++)
		ck_assert_msg(y[i] == 1, "element %d is %a", i, (double)y[i]);
	cudaStreamDestroy(s);
}

/* Of two streams nothing is ordered but by the host: with some seed the second one's copy comes
 * first; once the host has waited for the first one's event it never does. */
TEST(streams_and_events)
{
	int first = 0;
	setenv("CUDA_HOST_DELAY_US", "200", 1);
	cudaStream_t s = stream_new(), t = stream_new();
	cudaEvent_t e;
	cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
	for (int round = 0; round < 40; round++) {
		int from[2] = {1, 2}, to = 0;
		cudaMemcpyAsync(&to, &from[0], sizeof to, cudaMemcpyDefault, s);
		cudaEventRecord(e, s);
		if (round % 2)
			cudaEventSynchronize(e);
		cudaMemcpyAsync(&to, &from[1], sizeof to, cudaMemcpyDefault, t);
		cudaStreamSynchronize(s);
		cudaStreamSynchronize(t);
		first += to == 1;
		ck_assert(round % 2 == 0 || to == 2);
	}
	ck_assert_int_gt(first, 0);
	cudaEventDestroy(e);
	cudaStreamDestroy(s);
	cudaStreamDestroy(t);
}

/* What is recorded does not run, and runs as often as it is launched, with what memory holds
 * then. */
TEST(graphs)
{
	cudaStream_t s = stream_new();
	cudaGraph_t g;
	cudaGraphExec_t exec;
	int a = 1, b = 0, c = 0;
	ck_assert_int_eq(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed), cudaSuccess);
	cudaMemcpyAsync(&b, &a, sizeof a, cudaMemcpyDefault, s);
	cudaMemcpyAsync(&c, &b, sizeof a, cudaMemcpyDefault, s);
	ck_assert_int_eq(cudaStreamEndCapture(s, &g), cudaSuccess);
	ck_assert_int_eq(cudaGraphInstantiate(&exec, g, 0), cudaSuccess);
	cudaGraphDestroy(g);
	cudaStreamSynchronize(s);
	ck_assert_int_eq(c, 0);
	for (a = 5; a < 8; a++) {
		ck_assert_int_eq(cudaGraphLaunch(exec, s), cudaSuccess);
		cudaStreamSynchronize(s);
		ck_assert_int_eq(c, a);
	}
	cudaGraphExecDestroy(exec);
	cudaStreamDestroy(s);
}

TEST(failures_that_are_asked_for)
{
	void *p;
	fill();
	setenv("CUDA_HOST_FAIL", "cudaMalloc:3", 1);
	ck_assert_int_eq(cudaMalloc(&p, 5), cudaSuccess);
	cudaFree(p);
	ck_assert_int_eq(cudaMalloc(&p, 5), cudaSuccess);
	cudaFree(p);
	ck_assert_int_ne(cudaMalloc(&p, 5), cudaSuccess);
	for (int i = 0; i < 10; i++) { /* once, and the device goes on */
		ck_assert_int_eq(cudaMalloc(&p, 5), cudaSuccess);
		cudaFree(p);
	}
}

TEST(a_device_that_breaks)
{
	cudaStream_t s = stream_new();
	struct rotate_args a = {x, z, y, 1};
	void *p;
	fill();
	setenv("CUDA_HOST_FAIL", "rotate_warp:2", 1);
	ck_assert_int_eq(launch(ROTATE_WARP, 1, 32, 0, &a, s), cudaSuccess);
	ck_assert_int_eq(cudaStreamSynchronize(s), cudaSuccess);
	ck_assert_int_eq(launch(ROTATE_WARP, 1, 32, 0, &a, s), cudaSuccess);
	ck_assert_int_eq(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
	ck_assert_int_eq(cudaMalloc(&p, 5), cudaErrorIllegalAddress);
	ck_assert_int_eq(launch(ROTATE_WARP, 1, 32, 0, &a, s), cudaErrorIllegalAddress);
}

TEST(launches_that_cannot_be)
{
	cudaStream_t s = stream_new();
	struct rotate_args a = {x, z, y, 1};
	ck_assert(freopen("/dev/null", "w", stderr));
	ck_assert_int_ne(launch(ROTATE_WARP, 1, 257, 0, &a, s), cudaSuccess);
	ck_assert_int_ne(launch(ROTATE_WARP, 0, 32, 0, &a, s), cudaSuccess);
	ck_assert_int_ne(launch(ROTATE_WARP, 1, 32, 228 << 10, &a, s), cudaSuccess);
	ck_assert_int_ne(cudaLaunchKernel(&a, (struct dim3){1, 1, 1}, (struct dim3){32, 1, 1}, NULL, 0,
	                                  s),
	                 cudaSuccess);
}

TEST(memory_of_a_device)
{
	void *p;
	size_t left, all;
	setenv("CUDA_HOST_MEMORY_MB", "2", 1);
	ck_assert_int_eq(cudaMalloc(&p, 1 << 20), cudaSuccess);
	cudaMemGetInfo(&left, &all);
	ck_assert_uint_eq(left, 1 << 20);
	ck_assert_uint_eq(((unsigned char *)p)[5], 0xa5); /* nothing is zeroed by itself */
	cudaFree(p);
	ck_assert_int_eq(cudaMalloc(&p, 3 << 20), cudaErrorMemoryAllocation);
	ck_assert_int_eq(cudaMalloc(&p, 2 << 20), cudaSuccess);
	cudaFree(p);
}
