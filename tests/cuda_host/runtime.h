/* runtime.h - shared by the two halves of the CUDA runtime stand-in: memory.c (devices, errors,
 * memory, also across processes) and streams.c (streams, events, copies, graphs by capture and
 * replay, kernels by grid.c). It implements only what kernels/cuda uses.
 *
 * One thread is the device. It takes the next piece of work from any stream, in an order determined
 * by a seed: only the host's waiting orders streams, and work may be delayed until the host waits
 * for it. Device memory starts with garbage. Calls may come from any thread. Environment:
 * CUDA_HOST_SEED=n: the order; CUDA_HOST_DELAY_US=n: up to n microseconds of delay before each
 * piece of work; CUDA_HOST_FAIL=function:n: the n-th call of that function fails;
 * CUDA_HOST_FAIL=copy:n, set:n or a kernel's name:n: that work breaks the device; with hang_
 * before its name it never ends;
 * CUDA_HOST_FAIL_IN=program: both only in processes of that program;
 * CUDA_HOST_MEMORY_MB, CUDA_HOST_DEVICES: the devices; CUDA_HOST_SIZE: their multiprocessors;
 * CUDA_HOST_PEERS=0: they cannot access each other's memory; CUDA_HOST_PEER_WRITES=0: what a
 * process writes to another's memory is lost; CUDA_HOST_PEER_READS=0: and it reads nothing there;
 * CUDA_HOST_CAPABILITY=100: their compute capability is 10.0, not 9.9;
 * CUDA_HOST_DESCRIPTORS=0: processes cannot share its memory; CUDA_HOST_RDMA=0: network cards
 * cannot register it, and it is an error to ask for that, as it is not to ask where they can;
 * CUDA_HOST_DRIVER=0: no driver; CUDA_HOST_WGMMA=0: wgmma has other bits than mma.sync;
 * CUDA_HOST_LAUNCHES=file: a line for each launch, when it is submitted or captured: the kernel's
 * name and how many blocks it has; CUDA_HOST_SENT=file: its first 8 bytes count what processes
 * write to each other's memory and give to NCCL; CUDA_HOST_COMPUTES=0: no kernel runs but those. */
#ifndef CUDA_HOST_RUNTIME_SHARED_H
#define CUDA_HOST_RUNTIME_SHARED_H

#include "tests/cuda_host/grid.h"

#include <stdbool.h>

enum { CUDA_HOST_SHARED_BYTES = 227 << 10 }; /* most of a block */

long cuda_host_environment(const char *name, long otherwise);
/* Whether CUDA_HOST_FAIL names this call; counts it. */
bool cuda_host_injected(const char *name);
/* Records the error for cudaGetLastError; returns e. */
cudaError_t cuda_host_failed(cudaError_t e);
/* Breaks the device; the error that every call returns from then on, or cudaSuccess. */
void cuda_host_break(cudaError_t e);
cudaError_t cuda_host_broken(void);

/* Whether a device can access these bytes itself: shared memory, or registered at once. */
bool cuda_host_reaches(const void *at, size_t bytes);

/* Starts a call that a broken device rejects and that CUDA_HOST_FAIL can make fail. */
#define CALL(NAME)                                           \
	do {                                                     \
		if (cuda_host_broken())                              \
			return cuda_host_failed(cuda_host_broken());     \
		if (cuda_host_injected(NAME))                        \
			return cuda_host_failed(cudaErrorLaunchFailure); \
	} while (0)

#endif
