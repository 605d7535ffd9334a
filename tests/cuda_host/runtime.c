/* runtime.c - the CUDA runtime on the host, as far as kernels/cuda uses it: memory, streams, events, graphs by capture and replay, kernels by grid.c, memory
 * that processes share.
 *
 * One thread is the device. It takes the next piece of work from any stream that has some, in an order that a seed decides, so that streams are ordered
 * among each other by events alone and nothing is done before the host waits for it. Device memory begins with rubbish.
 * Environment: CUDA_HOST_SEED=n the order; CUDA_HOST_DELAY_US=n up to so many microseconds before a piece of work;
 * CUDA_HOST_FAIL=function:n the n-th call of that function fails, a kernel's name:n that launch breaks the device; CUDA_HOST_MEMORY_MB, CUDA_HOST_DEVICES,
 * CUDA_HOST_DRIVER=0 no driver. */
#include "tests/cuda_host/grid.h"

#include <cuda.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ARGS_MAX = 4096, MAPPINGS_MAX = 4096, PAGE = 2 << 20 };

/* --- work -------------------------------------------------------------------------------------------------------------------------- */

enum work_kind { WORK_KERNEL, WORK_COPY, WORK_SET, WORK_RECORD, WORK_AWAIT, WORK_GRAPH };

struct work {
	enum work_kind kind;
	struct work *next;
	union {
		struct { const struct cuda_host_kernel *k; struct dim3 grid; unsigned threads; size_t shared; void *args; } kernel;
		struct { unsigned char *to; const unsigned char *from; size_t to_pitch, from_pitch, width, height; } copy;
		struct { void *at; int value; size_t bytes; } set;
		struct { struct CUevent_st *e; uint64_t number; } event;
		struct { struct CUgraphExec_st *g; const struct work *at; } graph;
	};
};

struct list { struct work *first, **end; };

struct CUstream_st {
	struct list queue;
	bool busy;                 /* its first piece of work is under way */
	struct CUgraph_st *capturing;
	struct CUstream_st *next;
};
struct CUevent_st { uint64_t recorded, done; };        /* numbers of records: asked for; done */
struct CUgraph_st { struct list nodes; };
struct CUgraphExec_st { struct work *nodes; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t to_device = PTHREAD_COND_INITIALIZER, to_host = PTHREAD_COND_INITIALIZER;
static struct CUstream_st *streams;
static bool running;
static cudaError_t broken;             /* the device's; what every later call returns */
static _Thread_local cudaError_t last;
static unsigned delay_us;

static cudaError_t failed(cudaError_t e)
{
	last = e;
	return e;
}

/* Does CUDA_HOST_FAIL name this call, for this time? */
static bool injected(const char *name)
{
	static int countdown = -1;
	const char *what = getenv("CUDA_HOST_FAIL"), *colon = what ? strrchr(what, ':') : NULL;
	if (!colon || strncmp(what, name, (size_t)(colon - what)) != 0 || name[colon - what])
		return false;
	if (countdown < 0)
		countdown = atoi(colon + 1);
	return --countdown == 0;
}

#define CALL(NAME) \
	do { \
		if (broken) \
			return failed(broken); \
		if (injected(NAME)) \
			return failed(cudaErrorLaunchFailure); \
	} while (0)

static void work_free(struct work *w)
{
	if (w->kind == WORK_KERNEL)
		free(w->kernel.args);
	free(w);
}

/* --- the device ------------------------------------------------------------------------------------------------------------------------ */

static void copy_run(const struct work *w)
{
	for (size_t i = 0; i < w->copy.height; i++)
		memmove(w->copy.to + i * w->copy.to_pitch, w->copy.from + i * w->copy.from_pitch, w->copy.width);
}

static void work_run(const struct work *w)
{
	if (delay_us)
		usleep(cuda_host_random() % delay_us);
	if (w->kind == WORK_COPY)
		copy_run(w);
	else if (w->kind == WORK_SET)
		memset(w->set.at, w->set.value, w->set.bytes);
	else if (w->kind == WORK_KERNEL && injected(w->kernel.k->name))
		broken = cudaErrorIllegalAddress;
	else if (w->kind == WORK_KERNEL)
		cuda_host_grid(w->kernel.k, w->kernel.grid, w->kernel.threads, w->kernel.shared, w->kernel.args);
}

static bool can_run(const struct CUstream_st *s)
{
	const struct work *w = s->queue.first;
	return w && (w->kind != WORK_AWAIT || w->event.e->done >= w->event.number);
}

static void pop(struct CUstream_st *s)
{
	struct work *w = s->queue.first;
	s->queue.first = w->next;
	if (!w->next)
		s->queue.end = &s->queue.first;
	work_free(w);
}

/* One piece of work of a stream; of a graph one node. Called with the lock, which is given away meanwhile. */
static void advance(struct CUstream_st *s)
{
	struct work *w = s->queue.first;
	const struct work *now = w;
	if (w->kind == WORK_GRAPH)
		now = w->graph.at;
	if (w->kind == WORK_RECORD) {
		w->event.e->done = w->event.number;
	} else if (w->kind != WORK_AWAIT && now && !broken) {
		s->busy = true;
		pthread_mutex_unlock(&lock);
		work_run(now);
		pthread_mutex_lock(&lock);
		s->busy = false;
	}
	if (w->kind == WORK_GRAPH && now && (w->graph.at = now->next) && !broken)
		return;
	pop(s);
	pthread_cond_broadcast(&to_host);
}

static void *device_run(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&lock);
	for (;;) {
		unsigned n = 0, i = 0;
		for (struct CUstream_st *s = streams; s; s = s->next)
			n += can_run(s);
		if (!n) {
			pthread_cond_wait(&to_device, &lock);
			continue;
		}
		unsigned pick = cuda_host_random() % n;
		struct CUstream_st *s = streams;
		for (;; s = s->next)
			if (can_run(s) && i++ == pick)
				break;
		advance(s);
	}
	return NULL;
}

/* A child has no device thread; its streams are those of its parent, and done. */
static void after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
	pthread_cond_init(&to_device, NULL);
	pthread_cond_init(&to_host, NULL);
	running = false;
	streams = NULL;
}

/* With the lock. */
static cudaError_t device_start(void)
{
	static bool once;
	pthread_t thread;
	if (running)
		return cudaSuccess;
	if (!once) {
		const char *seed = getenv("CUDA_HOST_SEED"), *delay = getenv("CUDA_HOST_DELAY_US");
		cuda_host_seed(seed ? (uint32_t)atoi(seed) : 1);
		delay_us = delay ? (unsigned)atoi(delay) : 0;
		pthread_atfork(NULL, NULL, after_fork);
		once = true;
	}
	if (pthread_create(&thread, NULL, device_run, NULL))
		return cudaErrorMemoryAllocation;
	pthread_detach(thread);
	running = true;
	return cudaSuccess;
}

static struct list list_empty(struct list *of)
{
	return (struct list){NULL, &of->first};
}

static void append(struct list *l, struct work *w)
{
	*l->end = w;
	l->end = &w->next;
}

/* To the stream, or to the graph that it records. Takes the work. */
static cudaError_t submit(struct CUstream_st *s, struct work w)
{
	struct work *copy = malloc(sizeof *copy);
	if (!copy)
		abort();
	*copy = w;
	copy->next = NULL;
	pthread_mutex_lock(&lock);
	cudaError_t rc = device_start();
	append(s->capturing ? &s->capturing->nodes : &s->queue, copy);
	pthread_cond_signal(&to_device);
	pthread_mutex_unlock(&lock);
	return rc;
}

/* --- devices and errors ------------------------------------------------------------------------------------------------------------------ */

static long environment(const char *name, long otherwise)
{
	const char *v = getenv(name);
	return v ? atol(v) : otherwise;
}

cudaError_t cudaDriverGetVersion(int *ret)
{
	*ret = (int)environment("CUDA_HOST_DRIVER", 13000);
	return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *ret)
{
	*ret = (int)environment("CUDA_HOST_DEVICES", 8);
	return *ret ? cudaSuccess : failed(cudaErrorNoDevice);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *ret, int device)
{
	(void)device;
	*ret = (struct cudaDeviceProp){.name = "host", .totalGlobalMem = (size_t)environment("CUDA_HOST_MEMORY_MB", 64 << 10) << 20,
	                               .sharedMemPerBlockOptin = 99 << 10, .major = 9, .minor = 9, .multiProcessorCount = 4};
	return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
	int n;
	cudaGetDeviceCount(&n);
	return device >= 0 && device < n ? cudaSuccess : failed(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceGetPCIBusId(char *ret, int bytes, int device)
{
	snprintf(ret, (size_t)bytes, "0000:%02x:00.0", device);
	return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
	cudaError_t e = last;
	last = cudaSuccess;
	return e;
}

const char *cudaGetErrorString(cudaError_t e)
{
	switch (e) {
	case cudaSuccess: return "no error";
	case cudaErrorInvalidValue: return "invalid argument";
	case cudaErrorMemoryAllocation: return "out of memory";
	case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
	case cudaErrorLaunchFailure: return "unspecified launch failure";
	case cudaErrorNotReady: return "device not ready";
	case cudaErrorNoDevice: return "no CUDA-capable device is detected";
	default: return "another error";
	}
}

const char *cudaGetErrorName(cudaError_t e)
{
	static _Thread_local char text[40];
	snprintf(text, sizeof text, "cudaError %d", (int)e);
	return text;
}

/* --- memory --------------------------------------------------------------------------------------------------------------------------------- */

static size_t used_bytes;

static bool beyond(size_t bytes)
{
	size_t all = (size_t)environment("CUDA_HOST_MEMORY_MB", 64 << 10) << 20;
	return bytes > all || __atomic_load_n(&used_bytes, __ATOMIC_RELAXED) > all - bytes;
}

cudaError_t cudaMemGetInfo(size_t *ret_free, size_t *ret_total)
{
	*ret_total = (size_t)environment("CUDA_HOST_MEMORY_MB", 64 << 10) << 20;
	*ret_free = *ret_total - (used_bytes < *ret_total ? used_bytes : *ret_total);
	return cudaSuccess;
}

/* Before each allocation its size, so that freeing it gives the size back. */
enum { HEAD = 256 };

cudaError_t cudaMalloc(void **ret, size_t bytes)
{
	unsigned char *p;
	CALL("cudaMalloc");
	if (beyond(bytes) || posix_memalign((void **)&p, HEAD, HEAD + bytes))
		return failed(cudaErrorMemoryAllocation);
	memcpy(p, &bytes, sizeof bytes);
	memset(p + HEAD, 0xa5, bytes < (64 << 20) ? bytes : 64 << 20);
	__atomic_add_fetch(&used_bytes, bytes, __ATOMIC_RELAXED);
	*ret = p + HEAD;
	return cudaSuccess;
}

cudaError_t cudaFree(void *at)
{
	size_t bytes;
	if (!at)
		return cudaSuccess;
	cudaDeviceSynchronize();
	memcpy(&bytes, (unsigned char *)at - HEAD, sizeof bytes);
	__atomic_sub_fetch(&used_bytes, bytes, __ATOMIC_RELAXED);
	free((unsigned char *)at - HEAD);
	return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **ret, size_t bytes, unsigned flags)
{
	(void)flags;
	CALL("cudaHostAlloc");
	return posix_memalign(ret, 4096, bytes) ? failed(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t cudaFreeHost(void *at)
{
	cudaDeviceSynchronize();
	free(at);
	return cudaSuccess;
}

static struct { void *at; size_t bytes; } registered[MAPPINGS_MAX];

static int find_registered(const void *at)
{
	for (int i = 0; i < MAPPINGS_MAX; i++)
		if (registered[i].at == at)
			return i;
	return -1;
}

cudaError_t cudaHostRegister(void *at, size_t bytes, unsigned flags)
{
	(void)flags;
	CALL("cudaHostRegister");
	int i = find_registered(NULL);
	if (!at || !bytes || i < 0)
		return failed(cudaErrorInvalidValue);
	if (find_registered(at) >= 0)
		return failed(cudaErrorHostMemoryAlreadyRegistered);
	registered[i].at = at;
	registered[i].bytes = bytes;
	return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *at)
{
	int i = at ? find_registered(at) : -1;
	if (i < 0)
		return failed(cudaErrorHostMemoryNotRegistered);
	cudaDeviceSynchronize();
	registered[i].at = NULL;
	return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **ret, void *host, unsigned flags)
{
	(void)flags;
	*ret = host;
	return cudaSuccess;
}

/* --- memory that processes share ---------------------------------------------------------------------------------------------------------------- */

struct handle { int fd; size_t bytes; unsigned users; };
static struct { uintptr_t at; size_t bytes; struct handle *h; } mapping[MAPPINGS_MAX];

static void handle_release(struct handle *h)
{
	if (__atomic_sub_fetch(&h->users, 1, __ATOMIC_RELAXED))
		return;
	__atomic_sub_fetch(&used_bytes, h->bytes, __ATOMIC_RELAXED);
	close(h->fd);
	free(h);
}

static int find_mapping(uintptr_t at)
{
	for (int i = 0; i < MAPPINGS_MAX; i++)
		if (mapping[i].h && at - mapping[i].at < mapping[i].bytes)
			return i;
	return -1;
}

static struct handle *handle_of(CUmemGenericAllocationHandle h)
{
	return (struct handle *)(uintptr_t)h;
}

static CUresult vmm_granularity(size_t *ret, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option)
{
	(void)prop, (void)option;
	*ret = PAGE;
	return CUDA_SUCCESS;
}

static CUresult handle_new(int fd, size_t bytes, CUmemGenericAllocationHandle *ret)
{
	struct handle *h = malloc(sizeof *h);
	*h = (struct handle){fd, bytes, 1};
	__atomic_add_fetch(&used_bytes, bytes, __ATOMIC_RELAXED);
	*ret = (uintptr_t)h;
	return CUDA_SUCCESS;
}

static CUresult vmm_create(CUmemGenericAllocationHandle *ret, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)
{
	(void)flags;
	if (bytes % PAGE || prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	if (beyond(bytes) || injected("cuMemCreate"))
		return CUDA_ERROR_OUT_OF_MEMORY;
	int fd = memfd_create("cuda-host-memory", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)bytes)) {
		if (fd >= 0)
			close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return handle_new(fd, bytes, ret);
}

static CUresult vmm_release(CUmemGenericAllocationHandle h)
{
	handle_release(handle_of(h));
	return CUDA_SUCCESS;
}

static CUresult vmm_reserve(CUdeviceptr *ret, size_t bytes, size_t align, CUdeviceptr at, unsigned long long flags)
{
	(void)align, (void)at, (void)flags;
	void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	*ret = (uintptr_t)p;
	return p == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult vmm_give_back(CUdeviceptr at, size_t bytes)
{
	munmap((void *)(uintptr_t)at, bytes);
	return CUDA_SUCCESS;
}

static CUresult vmm_map(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	(void)flags;
	struct handle *h = handle_of(handle);
	int i = 0;
	while (i < MAPPINGS_MAX && mapping[i].h)
		i++;
	if (offset || bytes != h->bytes || i == MAPPINGS_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	if (mmap((void *)(uintptr_t)at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, h->fd, 0) == MAP_FAILED)
		return CUDA_ERROR_INVALID_VALUE;
	__atomic_add_fetch(&h->users, 1, __ATOMIC_RELAXED);
	mapping[i].at = (uintptr_t)at;
	mapping[i].bytes = bytes;
	mapping[i].h = h;
	return CUDA_SUCCESS;
}

static CUresult vmm_unmap(CUdeviceptr at, size_t bytes)
{
	int i = find_mapping((uintptr_t)at);
	if (i < 0 || mapping[i].at != at || mapping[i].bytes != bytes)
		return CUDA_ERROR_INVALID_VALUE;
	cudaDeviceSynchronize();
	mmap((void *)(uintptr_t)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
	handle_release(mapping[i].h);
	mapping[i].h = NULL;
	return CUDA_SUCCESS;
}

static CUresult vmm_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *desc, size_t count)
{
	(void)desc, (void)count;
	return mprotect((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult vmm_share(void *ret, CUmemGenericAllocationHandle h, CUmemAllocationHandleType type, unsigned long long flags)
{
	(void)type, (void)flags;
	int fd = fcntl(handle_of(h)->fd, F_DUPFD_CLOEXEC, 0);
	memcpy(ret, &fd, sizeof fd);
	return fd < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult vmm_import(CUmemGenericAllocationHandle *ret, void *shared, CUmemAllocationHandleType type)
{
	(void)type;
	struct stat st;
	char path[64], name[128];
	int fd = (int)(intptr_t)shared;
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(path, name, sizeof name - 1);
	if (n < 0 || fstat(fd, &st) || !(name[n] = 0, strstr(name, "cuda-host-memory")))
		return CUDA_ERROR_INVALID_VALUE;
	return handle_new(fcntl(fd, F_DUPFD_CLOEXEC, 0), (size_t)st.st_size, ret);
}

static CUresult vmm_retain(CUmemGenericAllocationHandle *ret, void *at)
{
	int i = find_mapping((uintptr_t)at);
	if (i < 0)
		return CUDA_ERROR_INVALID_VALUE;
	__atomic_add_fetch(&mapping[i].h->users, 1, __ATOMIC_RELAXED);
	*ret = (uintptr_t)mapping[i].h;
	return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **ret_fn, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *ret_found)
{
	(void)version, (void)flags;
	const struct { const char *name; void (*fn)(void); } all[] = {
		{"cuMemGetAllocationGranularity", (void (*)(void))vmm_granularity}, {"cuMemCreate", (void (*)(void))vmm_create},
		{"cuMemRelease", (void (*)(void))vmm_release}, {"cuMemAddressReserve", (void (*)(void))vmm_reserve},
		{"cuMemAddressFree", (void (*)(void))vmm_give_back}, {"cuMemMap", (void (*)(void))vmm_map}, {"cuMemUnmap", (void (*)(void))vmm_unmap},
		{"cuMemSetAccess", (void (*)(void))vmm_access}, {"cuMemExportToShareableHandle", (void (*)(void))vmm_share},
		{"cuMemImportFromShareableHandle", (void (*)(void))vmm_import}, {"cuMemRetainAllocationHandle", (void (*)(void))vmm_retain},
	};
	*ret_found = cudaDriverEntryPointSymbolNotFound;
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (strcmp(all[i].name, name) == 0) {
			memcpy(ret_fn, &all[i].fn, sizeof all[i].fn);
			*ret_found = cudaDriverEntryPointSuccess;
		}
	return cudaSuccess;
}

/* --- streams --------------------------------------------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret, unsigned flags)
{
	(void)flags;
	CALL("cudaStreamCreateWithFlags");
	struct CUstream_st *s = calloc(1, sizeof *s);
	s->queue = list_empty(&s->queue);
	pthread_mutex_lock(&lock);
	s->next = streams;
	streams = s;
	pthread_mutex_unlock(&lock);
	*ret = s;
	return cudaSuccess;
}

static void drain(struct CUstream_st *s)
{
	while (s->queue.first || s->busy)
		pthread_cond_wait(&to_host, &lock);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
	pthread_mutex_lock(&lock);
	if (running)
		drain(s);
	struct CUstream_st **at = &streams;
	while (*at && *at != s)
		at = &(*at)->next;
	if (*at)
		*at = s->next;
	pthread_mutex_unlock(&lock);
	free(s);
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
	CALL("cudaStreamSynchronize");
	if (!s)
		return cudaSuccess;        /* what has no stream is done at once */
	pthread_mutex_lock(&lock);
	drain(s);
	pthread_mutex_unlock(&lock);
	return broken ? failed(broken) : cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
	if (!s)
		return broken ? failed(broken) : cudaSuccess;
	if (s->capturing)
		return failed(cudaErrorStreamCaptureUnsupported);
	pthread_mutex_lock(&lock);
	bool busy = s->queue.first || s->busy;
	pthread_mutex_unlock(&lock);
	return broken ? failed(broken) : busy ? failed(cudaErrorNotReady) : cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
	pthread_mutex_lock(&lock);
	for (struct CUstream_st *s = streams; s; s = s->next)
		drain(s);
	pthread_mutex_unlock(&lock);
	return broken ? failed(broken) : cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t s)
{
	(void)kind;
	CALL("cudaMemcpyAsync");
	return submit(s, (struct work){.kind = WORK_COPY, .copy = {to, from, to_pitch, from_pitch, width, height}});
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t s)
{
	return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, s);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_index, const void *from, int from_index, size_t bytes, cudaStream_t s)
{
	return to_index == from_index ? failed(cudaErrorInvalidValue) : cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s);
}

/* The pieces of a batch are in no order. */
cudaError_t cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *bytes, size_t n, struct cudaMemcpyAttributes *attrs,
                                 size_t *first_of_attrs, size_t n_attrs, cudaStream_t s)
{
	CALL("cudaMemcpyBatchAsync");
	if (!s || !n || n_attrs != 1 || first_of_attrs[0] != 0 || attrs->srcAccessOrder != cudaMemcpySrcAccessOrderStream)
		return failed(cudaErrorInvalidValue);
	for (size_t i = n; i-- > 0;)
		cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDefault, s);
	return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t s)
{
	CALL("cudaMemsetAsync");
	return submit(s, (struct work){.kind = WORK_SET, .set = {at, value, bytes}});
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
	(void)kind;
	CALL("cudaMemcpy");
	memmove(to, from, bytes);
	return cudaSuccess;
}

/* Memory that processes share may be larger than the machine's: its zeros take no room. */
cudaError_t cudaMemset(void *at, int value, size_t bytes)
{
	CALL("cudaMemset");
	int i = find_mapping((uintptr_t)at);
	if (i >= 0 && !value && mapping[i].at == (uintptr_t)at && mapping[i].bytes == bytes && !madvise(at, bytes, MADV_REMOVE))
		return cudaSuccess;
	memset(at, value, bytes);
	return cudaSuccess;
}

/* --- events ------------------------------------------------------------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned flags)
{
	(void)flags;
	*ret = calloc(1, sizeof **ret);
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
	CALL("cudaEventRecord");
	pthread_mutex_lock(&lock);
	uint64_t number = ++e->recorded;
	pthread_mutex_unlock(&lock);
	return submit(s, (struct work){.kind = WORK_RECORD, .event = {e, number}});
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
	(void)flags;
	CALL("cudaStreamWaitEvent");
	pthread_mutex_lock(&lock);
	uint64_t number = e->recorded;
	pthread_mutex_unlock(&lock);
	return submit(s, (struct work){.kind = WORK_AWAIT, .event = {e, number}});
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
	CALL("cudaEventSynchronize");
	pthread_mutex_lock(&lock);
	for (uint64_t number = e->recorded; e->done < number && !broken;)
		pthread_cond_wait(&to_host, &lock);
	pthread_mutex_unlock(&lock);
	return broken ? failed(broken) : cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
	pthread_mutex_lock(&lock);
	bool done = e->done >= e->recorded;
	pthread_mutex_unlock(&lock);
	return broken ? failed(broken) : done ? cudaSuccess : failed(cudaErrorNotReady);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
	pthread_mutex_lock(&lock);
	while (e->done < e->recorded && !broken)
		pthread_cond_wait(&to_host, &lock);
	pthread_mutex_unlock(&lock);
	free(e);
	return cudaSuccess;
}

/* --- kernels and graphs ------------------------------------------------------------------------------------------------------------------------------ */

cudaError_t cudaFuncSetAttribute(const void *fn, enum cudaFuncAttribute attr, int value)
{
	return cuda_host_find(fn) && attr == cudaFuncAttributeMaxDynamicSharedMemorySize && value >= 0 ? cudaSuccess : failed(cudaErrorInvalidValue);
}

cudaError_t cudaLaunchKernel(const void *fn, struct dim3 grid, struct dim3 block, void **args, size_t shared, cudaStream_t s)
{
	CALL("cudaLaunchKernel");
	const struct cuda_host_kernel *k = cuda_host_find(fn);
	if (!k || !grid.x || !grid.y || grid.z != 1 || grid.y > 65535 || grid.x > INT32_MAX || !block.x || block.x > k->threads_max || block.y != 1 ||
	    block.z != 1 || k->args_bytes > ARGS_MAX || shared > (99 << 10)) {
		fprintf(stderr, "cuda_host: kernel %s cannot be launched: grid (%u, %u, %u), %u threads, %zu bytes of shared memory\n", k ? k->name : "(none)", grid.x,
		        grid.y, grid.z, block.x, shared);
		return failed(cudaErrorInvalidValue);
	}
	void *copy = malloc(k->args_bytes);
	memcpy(copy, args[0], k->args_bytes);
	return submit(s, (struct work){.kind = WORK_KERNEL, .kernel = {k, grid, block.x, shared, copy}});
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *fn, void **args)
{
	return cudaLaunchKernel(fn, c->gridDim, c->blockDim, args, c->dynamicSmemBytes, c->stream);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
	(void)mode;
	CALL("cudaStreamBeginCapture");
	struct CUgraph_st *g = calloc(1, sizeof *g);
	g->nodes = list_empty(&g->nodes);
	s->capturing = g;
	return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *ret)
{
	*ret = s->capturing;
	s->capturing = NULL;
	return *ret ? cudaSuccess : failed(cudaErrorInvalidValue);
}

/* Takes the nodes: a graph is instantiated once. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ret, cudaGraph_t g, unsigned long long flags)
{
	(void)flags;
	CALL("cudaGraphInstantiate");
	*ret = calloc(1, sizeof **ret);
	(*ret)->nodes = g->nodes.first;
	g->nodes = list_empty(&g->nodes);
	return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t s)
{
	CALL("cudaGraphLaunch");
	return submit(s, (struct work){.kind = WORK_GRAPH, .graph = {g, g->nodes}});
}

static void nodes_free(struct work *w)
{
	for (struct work *next; w; w = next) {
		next = w->next;
		work_free(w);
	}
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
	nodes_free(g->nodes.first);
	free(g);
	return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g)
{
	cudaDeviceSynchronize();
	nodes_free(g->nodes);
	free(g);
	return cudaSuccess;
}
