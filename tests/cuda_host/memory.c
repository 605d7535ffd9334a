/* memory.c - the stand-in's devices, errors and memory: device memory, host memory, and memory
 * shared by processes. See runtime.h. */
#include "tests/cuda_host/runtime.h"

#include <errno.h>
#include <cuda.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAPPINGS_MAX = 4096, PAGE = 2 << 20 };

/* --- devices and errors -------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the static data below */
static cudaError_t broken;
static _Thread_local cudaError_t last;

long cuda_host_environment(const char *name, long otherwise)
{
	const char *v = getenv(name);
	return v ? atol(v) : otherwise;
}

bool cuda_host_injected(const char *name)
{
	static char text[80]; /* the setting that `left` counts for */
	static int left;
	const char *what = getenv("CUDA_HOST_FAIL"), *colon = what ? strrchr(what, ':') : NULL,
			   *in = getenv("CUDA_HOST_FAIL_IN");
	if (in && strcmp(in, program_invocation_short_name))
		return false;
	if (!colon || strncmp(what, name, (size_t)(colon - what)) != 0 || name[colon - what])
		return false;
	pthread_mutex_lock(&lock);
	if (strcmp(text, what)) {
		snprintf(text, sizeof text, "%s", what);
		left = atoi(colon + 1);
	}
	bool now = left > 0 && --left == 0;
	pthread_mutex_unlock(&lock);
	return now;
}

static uint64_t *sent; /* NULL: not counted */

static void sent_begin(void)
{
	const char *path = getenv("CUDA_HOST_SENT");
	int fd = path ? open(path, O_RDWR) : -1;
	void *at = fd < 0 ? MAP_FAILED
	                  : mmap(NULL, sizeof *sent, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	sent = at == MAP_FAILED ? NULL : at;
}

void cuda_host_sent(size_t bytes)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, sent_begin);
	if (sent)
		__atomic_fetch_add(sent, bytes, __ATOMIC_RELAXED);
}

cudaError_t cuda_host_failed(cudaError_t e)
{
	last = e;
	return e;
}

void cuda_host_break(cudaError_t e)
{
	__atomic_store_n(&broken, e, __ATOMIC_RELEASE);
}

cudaError_t cuda_host_broken(void)
{
	return __atomic_load_n(&broken, __ATOMIC_ACQUIRE);
}

cudaError_t cudaDriverGetVersion(int *ret)
{
	*ret = (int)cuda_host_environment("CUDA_HOST_DRIVER", 13000);
	return cudaSuccess;
}

/* a real driver that was initialised before a fork is of no use to the child */
static bool begun, lost_by_fork, told;
static void at_fork_child(void)
{
	lost_by_fork = begun;
}
__attribute__((constructor)) static void at_fork_register(void)
{
	pthread_atfork(NULL, NULL, at_fork_child);
}

cudaError_t cudaGetDeviceCount(int *ret)
{
	begun = true;
	if (lost_by_fork) {
		if (!told)
			fprintf(stderr, "cuda_host: CUDA used in a child forked after initialisation\n");
		told = true;
		return cuda_host_failed((cudaError_t)3);
	}
	*ret = (int)cuda_host_environment("CUDA_HOST_DEVICES", 8);
	return *ret ? cudaSuccess : cuda_host_failed(cudaErrorNoDevice);
}

static size_t memory_bytes(void)
{
	return (size_t)cuda_host_environment("CUDA_HOST_MEMORY_MB", 64 << 10) << 20;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *ret, int device)
{
	(void)device;
	int capability = (int)cuda_host_environment("CUDA_HOST_CAPABILITY", 99);
	*ret = (struct cudaDeviceProp){
		.name = "host",
		.totalGlobalMem = memory_bytes(),
		.sharedMemPerBlockOptin = CUDA_HOST_SHARED_BYTES,
		.major = capability / 10,
		.minor = capability % 10,
		.multiProcessorCount = (int)cuda_host_environment("CUDA_HOST_SIZE", 4)};
	return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
	int n;
	cudaGetDeviceCount(&n);
	if (cuda_host_broken())
		return cuda_host_failed(cuda_host_broken());
	return device >= 0 && device < n ? cudaSuccess : cuda_host_failed(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceCanAccessPeer(int *ret, int device, int peer)
{
	CALL("cudaDeviceCanAccessPeer");
	*ret = device != peer && cuda_host_environment("CUDA_HOST_PEERS", 1);
	return cudaSuccess;
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

/* --- memory -------------------------------------------------------------- */

static size_t used_bytes;

static bool beyond(size_t bytes)
{
	size_t all = memory_bytes();
	return bytes > all || __atomic_load_n(&used_bytes, __ATOMIC_RELAXED) > all - bytes;
}

cudaError_t cudaMemGetInfo(size_t *ret_free, size_t *ret_total)
{
	size_t used = __atomic_load_n(&used_bytes, __ATOMIC_RELAXED);
	*ret_total = memory_bytes();
	*ret_free = *ret_total - (used < *ret_total ? used : *ret_total);
	return cudaSuccess;
}

/* A header before each allocation stores its size for cudaFree. */
enum { HEAD = 256 };

/* What an allocation takes from a device. */
static size_t in_pages(size_t bytes)
{
	return bytes > PAGE / 2 ? (bytes + PAGE - 1) / PAGE * PAGE : bytes;
}

cudaError_t cudaMalloc(void **ret, size_t bytes)
{
	unsigned char *p;
	CALL("cudaMalloc");
	if (beyond(in_pages(bytes)) || posix_memalign((void **)&p, HEAD, HEAD + bytes))
		return cuda_host_failed(cudaErrorMemoryAllocation);
	memcpy(p, &bytes, sizeof bytes);
	memset(p + HEAD, 0xa5, bytes < (64 << 20) ? bytes : 64 << 20);
	__atomic_add_fetch(&used_bytes, in_pages(bytes), __ATOMIC_RELAXED);
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
	__atomic_sub_fetch(&used_bytes, in_pages(bytes), __ATOMIC_RELAXED);
	free((unsigned char *)at - HEAD);
	return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **ret, size_t bytes, unsigned flags)
{
	(void)flags;
	CALL("cudaHostAlloc");
	/* AddressSanitizer ends the program if as much is asked of it */
	return bytes > 1ull << 40 || posix_memalign(ret, 4096, bytes)
	           ? cuda_host_failed(cudaErrorMemoryAllocation)
	           : cudaSuccess;
}

cudaError_t cudaFreeHost(void *at)
{
	cudaDeviceSynchronize();
	free(at);
	return cudaSuccess;
}

/* at NULL: free */
static struct registration {
	unsigned char *at;
	size_t bytes;
} registered[MAPPINGS_MAX];

/* Call with the lock held. `at`: where it begins; NULL: a free one. */
static struct registration *find_registered(const void *at)
{
	for (int i = 0; i < MAPPINGS_MAX; i++)
		if (registered[i].at == at)
			return &registered[i];
	return NULL;
}

/* Call with the lock held. The one that has all these bytes, none of which may be in another. */
static const struct registration *registration_of(const unsigned char *at, size_t bytes)
{
	for (int i = 0; i < MAPPINGS_MAX; i++) {
		const struct registration *r = &registered[i];
		if (r->at && at >= r->at && at - r->at < (ptrdiff_t)r->bytes)
			return bytes <= r->bytes - (size_t)(at - r->at) ? r : NULL;
	}
	return NULL;
}

cudaError_t cudaHostRegister(void *at, size_t bytes, unsigned flags)
{
	(void)flags;
	CALL("cudaHostRegister");
	cudaError_t rc = cudaErrorInvalidValue;
	pthread_mutex_lock(&lock);
	struct registration *room = find_registered(NULL);
	if (at && registration_of(at, 1))
		rc = cudaErrorHostMemoryAlreadyRegistered;
	else if (at && bytes && room) {
		*room = (struct registration){at, bytes};
		rc = cudaSuccess;
	}
	pthread_mutex_unlock(&lock);
	return rc ? cuda_host_failed(rc) : cudaSuccess;
}

cudaError_t cudaHostUnregister(void *at)
{
	cudaDeviceSynchronize();
	pthread_mutex_lock(&lock);
	struct registration *found = at ? find_registered(at) : NULL;
	if (found)
		found->at = NULL;
	pthread_mutex_unlock(&lock);
	return found ? cudaSuccess : cuda_host_failed(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *ret, const void *at)
{
	CALL("cudaPointerGetAttributes");
	pthread_mutex_lock(&lock);
	int found = registration_of(at, 1) != NULL;
	pthread_mutex_unlock(&lock);
	*ret = (struct cudaPointerAttributes){
		found ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered, 0, NULL, NULL, {0}};
	return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **ret, void *host, unsigned flags)
{
	(void)flags;
	*ret = host;
	return cudaSuccess;
}

/* --- memory shared by processes ------------------------------------------ */

struct handle {
	int fd;
	size_t bytes;
	unsigned users;
	bool imported;
};
/* h NULL: free */
static struct mapping {
	uintptr_t at;
	size_t bytes;
	struct handle *h;
} mappings[MAPPINGS_MAX];

/* Starts a driver call. */
#define DRIVER_CALL(NAME)                                                                        \
	do {                                                                                         \
		if (cuda_host_broken() || cuda_host_injected(NAME))                                      \
			return cuda_host_broken() ? (CUresult)cuda_host_broken() : CUDA_ERROR_INVALID_VALUE; \
	} while (0)

static void handle_release(struct handle *h)
{
	if (__atomic_sub_fetch(&h->users, 1, __ATOMIC_RELAXED))
		return;
	__atomic_sub_fetch(&used_bytes, h->bytes, __ATOMIC_RELAXED);
	close(h->fd);
	free(h);
}

/* Call with the lock held. */
static struct mapping *find_mapping(uintptr_t at)
{
	for (int i = 0; i < MAPPINGS_MAX; i++)
		if (mappings[i].h && at - mappings[i].at < mappings[i].bytes)
			return &mappings[i];
	return NULL;
}

bool cuda_host_reaches(const void *at, size_t bytes)
{
	pthread_mutex_lock(&lock);
	bool reaches = find_mapping((uintptr_t)at) || registration_of(at, bytes);
	pthread_mutex_unlock(&lock);
	return reaches;
}

static struct mapping *free_mapping(void)
{
	int i = 0;
	while (i < MAPPINGS_MAX && mappings[i].h)
		i++;
	return i < MAPPINGS_MAX ? &mappings[i] : NULL;
}

static struct handle *handle_of(CUmemGenericAllocationHandle h)
{
	return (struct handle *)(uintptr_t)h;
}

static CUresult vmm_granularity(size_t *ret, const CUmemAllocationProp *prop,
                                CUmemAllocationGranularity_flags option)
{
	(void)prop, (void)option;
	*ret = PAGE;
	return CUDA_SUCCESS;
}

static CUresult handle_new(int fd, size_t bytes, bool imported, CUmemGenericAllocationHandle *ret)
{
	struct handle *h = malloc(sizeof *h);
	*h = (struct handle){fd, bytes, 1, imported};
	__atomic_add_fetch(&used_bytes, bytes, __ATOMIC_RELAXED);
	*ret = (uintptr_t)h;
	return CUDA_SUCCESS;
}

static CUresult vmm_create(CUmemGenericAllocationHandle *ret, size_t bytes,
                           const CUmemAllocationProp *prop, unsigned long long flags)
{
	(void)flags;
	if (prop->allocFlags.gpuDirectRDMACapable != cuda_host_environment("CUDA_HOST_RDMA", 1))
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes % PAGE || prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	if (cuda_host_broken() || beyond(bytes) || cuda_host_injected("cuMemCreate"))
		return CUDA_ERROR_OUT_OF_MEMORY;
	int fd = memfd_create("cuda-host-memory", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)bytes)) {
		if (fd >= 0)
			close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return handle_new(fd, bytes, false, ret);
}

static CUresult vmm_release(CUmemGenericAllocationHandle h)
{
	handle_release(handle_of(h));
	return CUDA_SUCCESS;
}

static CUresult vmm_reserve(CUdeviceptr *ret, size_t bytes, size_t align, CUdeviceptr at,
                            unsigned long long flags)
{
	(void)align, (void)at, (void)flags;
	DRIVER_CALL("cuMemAddressReserve");
	void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	*ret = (uintptr_t)p;
	return p == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult vmm_give_back(CUdeviceptr at, size_t bytes)
{
	munmap((void *)(uintptr_t)at, bytes);
	return CUDA_SUCCESS;
}

static CUresult vmm_map(CUdeviceptr at, size_t bytes, size_t offset,
                        CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	(void)flags;
	struct handle *h = handle_of(handle);
	bool lost = h->imported && !cuda_host_environment("CUDA_HOST_PEER_WRITES", 1),
		 unseen = h->imported && !cuda_host_environment("CUDA_HOST_PEER_READS", 1);
	DRIVER_CALL("cuMemMap");
	if (offset || bytes != h->bytes ||
	    mmap((void *)(uintptr_t)at, bytes, PROT_NONE,
	         (unseen ? MAP_PRIVATE | MAP_ANONYMOUS
	          : lost ? MAP_PRIVATE
	                 : MAP_SHARED) |
	             MAP_FIXED,
	         unseen ? -1 : h->fd, 0) == MAP_FAILED)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	struct mapping *m = free_mapping();
	if (m) {
		__atomic_add_fetch(&h->users, 1, __ATOMIC_RELAXED);
		*m = (struct mapping){(uintptr_t)at, bytes, h};
	}
	pthread_mutex_unlock(&lock);
	return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult vmm_unmap(CUdeviceptr at, size_t bytes)
{
	struct handle *h = NULL;
	cudaDeviceSynchronize();
	pthread_mutex_lock(&lock);
	struct mapping *m = find_mapping((uintptr_t)at);
	if (m && m->at == at && m->bytes == bytes) {
		h = m->h;
		m->h = NULL;
	}
	pthread_mutex_unlock(&lock);
	if (!h)
		return CUDA_ERROR_INVALID_VALUE;
	mmap((void *)(uintptr_t)at, bytes, PROT_NONE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
	handle_release(h);
	return CUDA_SUCCESS;
}

static CUresult vmm_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *desc, size_t count)
{
	(void)desc, (void)count;
	DRIVER_CALL("cuMemSetAccess");
	return mprotect((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE) ? CUDA_ERROR_INVALID_VALUE
	                                                                      : CUDA_SUCCESS;
}

static CUresult vmm_share(void *ret, CUmemGenericAllocationHandle h, CUmemAllocationHandleType type,
                          unsigned long long flags)
{
	(void)type, (void)flags;
	DRIVER_CALL("cuMemExportToShareableHandle");
	int fd = fcntl(handle_of(h)->fd, F_DUPFD_CLOEXEC, 0);
	memcpy(ret, &fd, sizeof fd);
	return fd < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult vmm_import(CUmemGenericAllocationHandle *ret, void *shared,
                           CUmemAllocationHandleType type)
{
	(void)type;
	struct stat st;
	char path[64], name[128];
	int fd = (int)(intptr_t)shared;
	DRIVER_CALL("cuMemImportFromShareableHandle");
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(path, name, sizeof name - 1);
	if (n < 0 || fstat(fd, &st) || !(name[n] = 0, strstr(name, "cuda-host-memory")))
		return CUDA_ERROR_INVALID_VALUE;
	return handle_new(fcntl(fd, F_DUPFD_CLOEXEC, 0), (size_t)st.st_size, true, ret);
}

static CUresult vmm_retain(CUmemGenericAllocationHandle *ret, void *at)
{
	DRIVER_CALL("cuMemRetainAllocationHandle");
	pthread_mutex_lock(&lock);
	const struct mapping *m = find_mapping((uintptr_t)at);
	if (m) {
		__atomic_add_fetch(&m->h->users, 1, __ATOMIC_RELAXED);
		*ret = (uintptr_t)m->h;
	}
	pthread_mutex_unlock(&lock);
	return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult device_get(CUdevice *ret, int index)
{
	*ret = index;
	return CUDA_SUCCESS;
}

static CUresult device_attribute(int *ret, CUdevice_attribute which, CUdevice dev)
{
	(void)dev;
	*ret = (int)cuda_host_environment(
		which == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
			? "CUDA_HOST_RDMA"
			: "CUDA_HOST_DESCRIPTORS",
		1);
	return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **ret_fn, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *ret_found)
{
	(void)version, (void)flags;
	const struct {
		const char *name;
		void (*fn)(void);
	} all[] = {
		{"cuMemGetAllocationGranularity", (void (*)(void))vmm_granularity},
		{"cuMemCreate", (void (*)(void))vmm_create},
		{"cuMemRelease", (void (*)(void))vmm_release},
		{"cuMemAddressReserve", (void (*)(void))vmm_reserve},
		{"cuMemAddressFree", (void (*)(void))vmm_give_back},
		{"cuMemMap", (void (*)(void))vmm_map},
		{"cuMemUnmap", (void (*)(void))vmm_unmap},
		{"cuMemSetAccess", (void (*)(void))vmm_access},
		{"cuMemExportToShareableHandle", (void (*)(void))vmm_share},
		{"cuMemImportFromShareableHandle", (void (*)(void))vmm_import},
		{"cuMemRetainAllocationHandle", (void (*)(void))vmm_retain},
		{"cuDeviceGet", (void (*)(void))device_get},
		{"cuDeviceGetAttribute", (void (*)(void))device_attribute},
	};
	*ret_found = cudaDriverEntryPointSymbolNotFound;
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (strcmp(all[i].name, name) == 0) {
			memcpy(ret_fn, &all[i].fn, sizeof all[i].fn);
			*ret_found = cudaDriverEntryPointSuccess;
		}
	return cudaSuccess;
}

/* --- synchronous copies and clearing ------------------------------------- */

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
	(void)kind;
	CALL("cudaMemcpy");
	memmove(to, from, bytes);
	return cudaSuccess;
}

/* Shared memory may be larger than the machine's: clearing a whole mapping releases its pages. */
cudaError_t cudaMemset(void *at, int value, size_t bytes)
{
	CALL("cudaMemset");
	pthread_mutex_lock(&lock);
	const struct mapping *m = find_mapping((uintptr_t)at);
	bool whole = m && m->at == (uintptr_t)at && m->bytes == bytes;
	pthread_mutex_unlock(&lock);
	if (value || !whole || madvise(at, bytes, MADV_REMOVE))
		memset(at, value, bytes);
	return cudaSuccess;
}
