/* runtime.h - what the two halves of the stand-in for the CUDA runtime share: memory.c (devices,
 * errors, memory, also of several processes) and streams.c (streams, events, copies, graphs by
 * capture and replay, kernels by grid.c). It has what kernels/cuda uses, and no more.
 *
 * One thread is the device. It takes the next piece of work from any stream that has some, in an
 * order that a seed decides: nothing orders streams but the host's waiting, and nothing need be
 * done before the host waits for it. Device memory begins with rubbish. A call may come from any
 * thread. Environment: CUDA_HOST_SEED=n the order; CUDA_HOST_DELAY_US=n up to so many microseconds
 * before a piece of work; CUDA_HOST_FAIL=function:n the n-th call of that function fails,
 * copy:n, set:n or a kernel's name:n that work breaks the device; CUDA_HOST_MEMORY_MB,
 * CUDA_HOST_DEVICES, CUDA_HOST_DRIVER=0 no driver. */
#ifndef CUDA_HOST_RUNTIME_SHARED_H
#define CUDA_HOST_RUNTIME_SHARED_H

#include "tests/cuda_host/grid.h"

#include <stdbool.h>

long cuda_host_environment(const char *name, long otherwise);
/* Does CUDA_HOST_FAIL name this call, for this time? */
bool cuda_host_injected(const char *name);
/* For cudaGetLastError; returns e. */
cudaError_t cuda_host_failed(cudaError_t e);
/* The device breaks; what it returns to every call from then on, or cudaSuccess. */
void cuda_host_break(cudaError_t e);
cudaError_t cuda_host_broken(void);

/* At the beginning of a call that a broken device refuses, and that can be asked to fail. */
#define CALL(NAME)                                           \
	do {                                                     \
		if (cuda_host_broken())                              \
			return cuda_host_failed(cuda_host_broken());     \
		if (cuda_host_injected(NAME))                        \
			return cuda_host_failed(cudaErrorLaunchFailure); \
	} while (0)

#endif
