/* memory.c - memory of the three kinds. SHARED memory is the driver's virtual memory with a POSIX
 * descriptor, which another process can map anywhere (no shared PID namespace is needed). The
 * driver does not report the size of the memory behind a descriptor, so a trailer stores it.
 *
 * Memory is cleared before it is handed out. A function that fails has freed what it allocated;
 * KERN_ENOMEM says how much the device has left, or that the host lacks memory. Of a device that
 * hangs nothing is freed. */
#include "kernels/cuda/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* At the end of SHARED memory. */
struct trailer {
	uint64_t magic, bytes;
};
#define TRAILER_MAGIC 0x32656d6d6b647073ull

/* How the memory of a kern_mem is freed. */
enum cuda_own { OWN_NOTHING, OWN_DEVICE, OWN_HOST, OWN_SHARED, OWN_REGISTERED, OWN_GROUP };

/* --- the driver's virtual memory ----------------------------------------- */

#define FUNCTIONS(X)                  \
	X(cuMemGetAllocationGranularity)  \
	X(cuMemCreate)                    \
	X(cuMemRelease)                   \
	X(cuMemAddressReserve)            \
	X(cuMemAddressFree)               \
	X(cuMemMap)                       \
	X(cuMemUnmap)                     \
	X(cuMemSetAccess)                 \
	X(cuMemExportToShareableHandle)   \
	X(cuMemImportFromShareableHandle) \
	X(cuMemRetainAllocationHandle)    \
	X(cuDeviceGet)                    \
	X(cuDeviceGetAttribute)
static struct {
	FUNCTIONS(CUDA_MEMBER)
	int found; /* 1: all functions */
} api;

static void api_look(void)
{
	const struct cuda_symbol all[] = {FUNCTIONS(CUDA_SYMBOL)};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		void *fn = cuda_driver(all[i].name);
		if (!fn)
			return;
		memcpy(all[i].slot, &fn, sizeof fn);
	}
	api.found = 1;
}

/* 1: the driver has all functions. */
static int api_find(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, api_look);
	return api.found;
}

/* 0 also where the driver does not say. */
static int attribute_of(int index, CUdevice_attribute which)
{
	CUdevice dev;
	int is = 0;
	if (api.cuDeviceGet(&dev, index) != CUDA_SUCCESS ||
	    api.cuDeviceGetAttribute(&is, which, dev) != CUDA_SUCCESS)
		return 0;
	return is;
}

static CUmemAllocationProp prop_of(int index)
{
	CUmemAllocationProp p;
	memset(&p, 0, sizeof p);
	p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p.location.id = index;
	/* without it network cards cannot register the memory */
	p.allocFlags.gpuDirectRDMACapable =
		attribute_of(index, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0;
	return p;
}

/* `bytes` plus the trailer, rounded up to device pages; 0: the driver does not report the page
 * size. */
static size_t shared_bytes(int index, size_t bytes)
{
	CUmemAllocationProp prop = prop_of(index);
	size_t page = 0;
	if (bytes > SIZE_MAX / 2 ||
	    api.cuMemGetAllocationGranularity(&page, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) !=
	        CUDA_SUCCESS ||
	    !page)
		return 0;
	return (bytes + sizeof(struct trailer) + page - 1) / page * page;
}

/* Maps an allocation of `whole` bytes for device `index`. */
static CUresult shared_place(int index, CUmemGenericAllocationHandle h, size_t whole,
                             CUdeviceptr *ret_at)
{
	CUdeviceptr at = 0;
	CUmemAccessDesc access;
	memset(&access, 0, sizeof access);
	access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	access.location.id = index;
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	CUresult rc = api.cuMemAddressReserve(&at, whole, 0, 0, 0);
	if (rc != CUDA_SUCCESS)
		return rc;
	if ((rc = api.cuMemMap(at, whole, 0, h, 0)) == CUDA_SUCCESS &&
	    (rc = api.cuMemSetAccess(at, whole, &access, 1)) != CUDA_SUCCESS)
		api.cuMemUnmap(at, whole);
	if (rc == CUDA_SUCCESS)
		*ret_at = at;
	else
		api.cuMemAddressFree(at, whole);
	return rc;
}

static void shared_unplace(CUdeviceptr at, size_t whole)
{
	api.cuMemUnmap(at, whole);
	api.cuMemAddressFree(at, whole);
}

static struct kern_mem memory(const void *at, void *host, size_t bytes, enum kern_memory kind,
                              enum cuda_own own)
{
	return (struct kern_mem){.dev = {(uintptr_t)at},
	                         .host = host,
	                         .bytes = bytes,
	                         .kind = kind,
	                         .own = (void *)(uintptr_t)own};
}

static int shared_new(struct kern_device *dev, size_t bytes, struct kern_mem *ret_mem)
{
	CUmemGenericAllocationHandle h;
	struct trailer end = {TRAILER_MAGIC, bytes};
	CUdeviceptr at = 0;
	if (!api_find() ||
	    !attribute_of(dev->index, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
		return cuda_fail(dev, KERN_ENOTSUP,
		                 "processes cannot share memory of device %d (%s): its driver has no "
		                 "POSIX descriptors for it, as under WSL2 and with some vGPUs",
		                 dev->index, dev->name);
	CUmemAllocationProp prop = prop_of(dev->index);
	size_t whole = shared_bytes(dev->index, bytes);
	if (!whole)
		return cuda_fail(dev, KERN_ENOMEM, "cannot allocate %zu bytes of shared memory", bytes);
	int rc = cuda_check_driver(dev, api.cuMemCreate(&h, whole, &prop, 0),
	                           "allocating shared memory");
	if (rc == KERN_ENOMEM)
		/* adds the sizes to the text */
		cuda_check(dev, cudaErrorMemoryAllocation, "allocating shared memory");
	if (rc)
		return rc;
	rc = cuda_check_driver(dev, shared_place(dev->index, h, whole, &at), "mapping shared memory");
	api.cuMemRelease(h); /* the mapping keeps a reference */
	if (!rc)
		rc = cuda_check(dev, cudaMemset((void *)(uintptr_t)at, 0, whole), "clearing memory");
	if (!rc)
		rc = cuda_check(dev,
		                cudaMemcpy((unsigned char *)(uintptr_t)at + whole - sizeof end, &end,
		                           sizeof end, cudaMemcpyDefault),
		                "writing memory");
	if (!rc)
		rc = cuda_check(dev, cudaStreamSynchronize(0), "clearing memory");
	if (!rc)
		*ret_mem = memory((void *)(uintptr_t)at, NULL, bytes, KERN_MEM_SHARED, OWN_SHARED);
	else if (at)
		shared_unplace(at, whole);
	return rc;
}

int cuda_shared_map(int index, int fd, size_t bytes, CUdeviceptr *ret_at, char *errbuf,
                    size_t errlen)
{
	CUmemGenericAllocationHandle h;
	CUdeviceptr at = 0;
	struct trailer end = {0, 0};
	size_t whole = api_find() ? shared_bytes(index, bytes) : 0;
	CUresult rc = whole && fd >= 0
	                  ? api.cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd,
	                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
	                  : CUDA_ERROR_INVALID_VALUE;
	if (rc != CUDA_SUCCESS) {
		snprintf(errbuf, errlen,
		         "descriptor %d is not GPU memory that can be mapped (driver error %d)", fd,
		         (int)rc);
		return KERN_EINVAL;
	}
	rc = shared_place(index, h, whole, &at);
	api.cuMemRelease(h);
	if (rc != CUDA_SUCCESS) {
		snprintf(
			errbuf, errlen,
			"received memory does not have the announced %zu bytes, or cannot be mapped (driver "
			"error %d)",
			bytes, (int)rc);
		return KERN_EINVAL;
	}
	cudaError_t got = cudaMemcpy(&end, (unsigned char *)(uintptr_t)at + whole - sizeof end,
	                             sizeof end, cudaMemcpyDefault);
	if (got == cudaSuccess && end.magic == TRAILER_MAGIC && end.bytes == bytes) {
		*ret_at = at;
		return KERN_OK;
	}
	if (got != cudaSuccess)
		snprintf(errbuf, errlen, "received memory cannot be read: %s", cudaGetErrorString(got));
	else
		snprintf(errbuf, errlen, "received memory has %llu bytes, %zu were announced",
		         end.magic == TRAILER_MAGIC ? (unsigned long long)end.bytes : 0ull, bytes);
	shared_unplace(at, whole);
	return KERN_EINVAL;
}

void cuda_shared_unmap(int index, CUdeviceptr at, size_t bytes)
{
	shared_unplace(at, shared_bytes(index, bytes));
}

/* Copies the trailer to the reader's memory, and from there to the host. */
static int trailer_arrives(CUdeviceptr at, size_t whole, size_t bytes, cudaStream_t stream)
{
	struct trailer end = {0, 0};
	const void *from = (const unsigned char *)(uintptr_t)at + whole - sizeof end;
	void *here = NULL;
	int arrives = cudaMalloc(&here, sizeof end) == cudaSuccess &&
	              cudaMemsetAsync(here, 0, sizeof end, stream) == cudaSuccess &&
	              cudaMemcpyAsync(here, from, sizeof end, cudaMemcpyDefault, stream) ==
	                  cudaSuccess &&
	              cudaMemcpyAsync(&end, here, sizeof end, cudaMemcpyDefault, stream) == cudaSuccess;
	arrives &= cudaStreamSynchronize(stream) == cudaSuccess;
	if (here)
		cudaFree(here);
	return arrives && end.magic == TRAILER_MAGIC && end.bytes == bytes;
}

int cuda_shared_reaches(int index, CUdeviceptr at, size_t bytes, int reader, cudaStream_t stream)
{
	const char *peers = getenv("PDSERVE_CUDA_PEERS");
	CUmemAccessDesc access;
	size_t whole = shared_bytes(index, bytes);
	int can = 0;
	memset(&access, 0, sizeof access);
	access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	access.location.id = reader;
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	int reaches = !(peers && !strcmp(peers, "0")) &&
	              cudaDeviceCanAccessPeer(&can, reader, index) == cudaSuccess && can &&
	              api.cuMemSetAccess(at, whole, &access, 1) == CUDA_SUCCESS &&
	              trailer_arrives(at, whole, bytes, stream);
	if (!reaches)
		cudaGetLastError();
	return reaches;
}

/* --- kern_ops ------------------------------------------------------------ */

static int device_new(struct kern_device *dev, size_t bytes, struct kern_mem *ret_mem)
{
	void *at = NULL;
	int rc = cuda_check(dev, cudaMalloc(&at, bytes ? bytes : 1), "allocating memory");
	if (!rc)
		rc = cuda_check(dev, cudaMemset(at, 0, bytes ? bytes : 1), "clearing memory");
	if (!rc)
		/* other streams do not wait for the one that clears */
		rc = cuda_check(dev, cudaStreamSynchronize(0), "clearing memory");
	if (!rc)
		*ret_mem = memory(at, NULL, bytes, KERN_MEM_DEVICE, OWN_DEVICE);
	else if (at)
		cudaFree(at);
	return rc;
}

/* The device's address of host memory that it can access. */
static int host_mapped(struct kern_device *dev, void *host, size_t bytes, enum cuda_own own,
                       struct kern_mem *ret_mem)
{
	void *at = NULL;
	int rc = cuda_check(dev, cudaHostGetDevicePointer(&at, host, 0), "mapping host memory");
	if (!rc)
		*ret_mem = memory(at, host, bytes, KERN_MEM_PINNED, own);
	return rc;
}

static int pinned_new(struct kern_device *dev, size_t bytes, struct kern_mem *ret_mem)
{
	void *host = NULL;
	int rc = cuda_check_pinned(
		dev, cudaHostAlloc(&host, bytes ? bytes : 1, cudaHostAllocMapped | cudaHostAllocPortable),
		bytes);
	if (rc)
		return rc;
	if ((rc = host_mapped(dev, host, bytes, OWN_HOST, ret_mem)))
		cudaFreeHost(host);
	else
		memset(host, 0, bytes);
	return rc;
}

int cuda_mem_new(struct kern_device *dev, enum kern_memory kind, size_t bytes,
                 struct kern_mem *ret_mem)
{
	int rc = cuda_choose(dev);
	if (rc)
		return rc;
	if (kind == KERN_MEM_PINNED)
		return pinned_new(dev, bytes, ret_mem);
	if (kind == KERN_MEM_SHARED)
		return shared_new(dev, bytes, ret_mem);
	if (kind == KERN_MEM_DEVICE || !dev->peers)
		return device_new(dev, bytes, ret_mem);
	if (!(rc = peers_mem_new(dev, bytes, ret_mem)))
		ret_mem->own = (void *)(uintptr_t)OWN_GROUP;
	return rc;
}

int cuda_mem_share(struct kern_device *dev, const struct kern_mem *mem, int *ret_fd)
{
	CUmemGenericAllocationHandle h;
	int fd = -1;
	if (mem->kind != KERN_MEM_SHARED)
		return cuda_fail(dev, KERN_EINVAL, "memory of %zu bytes cannot be shared", mem->bytes);
	int rc = cuda_choose(dev);
	if (!rc)
		rc = cuda_check_driver(dev, api.cuMemRetainAllocationHandle(&h, (void *)mem->dev.v),
		                       "sharing memory");
	if (rc)
		return rc;
	rc = cuda_check_driver(
		dev, api.cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		"sharing memory");
	api.cuMemRelease(h);
	if (!rc)
		*ret_fd = fd;
	return rc;
}

int cuda_mem_map(struct kern_device *dev, int fd, size_t bytes, struct kern_mem *ret_mem)
{
	CUdeviceptr at = 0;
	int rc = cuda_choose(dev);
	if (!rc && !(rc = cuda_shared_map(dev->index, fd, bytes, &at, dev->error, sizeof dev->error)))
		*ret_mem = memory((void *)(uintptr_t)at, NULL, bytes, KERN_MEM_SHARED, OWN_SHARED);
	return rc;
}

int cuda_mem_pin(struct kern_device *dev, void *host, size_t bytes, struct kern_mem *ret_mem)
{
	int rc = cuda_choose(dev);
	if (!rc)
		rc = cuda_check_pinned(
			dev, cudaHostRegister(host, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable),
			bytes);
	if (!rc && (rc = host_mapped(dev, host, bytes, OWN_REGISTERED, ret_mem)))
		cudaHostUnregister(host);
	return rc;
}

void cuda_mem_free(struct kern_device *dev, struct kern_mem *mem)
{
	enum cuda_own own = (enum cuda_own)(uintptr_t)mem->own;
	cudaSetDevice(dev->index);
	switch (dev->hangs ? OWN_NOTHING : own) {
	case OWN_DEVICE: cudaFree((void *)mem->dev.v); break;
	case OWN_HOST: cudaFreeHost(mem->host); break;
	case OWN_SHARED: cuda_shared_unmap(dev->index, mem->dev.v, mem->bytes); break;
	case OWN_REGISTERED: cudaHostUnregister(mem->host); break;
	case OWN_GROUP: peers_mem_free(dev, mem->dev); break;
	case OWN_NOTHING: break;
	}
	*mem = (struct kern_mem){0};
}
