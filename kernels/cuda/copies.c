/* copies.c - copies of KV pools for the messager and the storage (kernels/copy.h): uses copy
 * engines on one stream per pool, never kernels, which would take multiprocessors from decoding.
 *
 * Copies are numbered; the end of a copy is an event in a ring, which is reused only after its
 * copy is done, so at most RING copies of a pool are in progress. A reader (`seen`) reads what
 * has landed in host memory. After an error the stream is synchronised. */
#include "kernels/copy.h"
#include "kernels/cuda/backend.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)CUDA_RANKS_MAX <= (int)KERN_PARTS_MAX, "a pool of a group has too many parts");
enum { RING = 64, BATCH_MAX = 64 };

struct cuda_pool {
	struct kern_pool head; /* first */
	int device;
	CUdeviceptr at;
	size_t bytes;
	cudaStream_t stream;
	/* protects the fields below and the order of submissions to the stream */
	pthread_mutex_t lock;
	uint64_t number; /* of the latest copy; the first is 1 */
	/* bits of other devices: it was tried whether they read this memory themselves; they do */
	_Atomic uint64_t tried, direct;
	cudaEvent_t end[RING]; /* of copy n: n % RING */
};

static int check(cudaError_t rc, const char *doing, char *errbuf, size_t errlen)
{
	if (rc == cudaSuccess)
		return KERN_OK;
	cudaGetLastError();
	snprintf(errbuf, errlen, "%s: %s (%s)", doing, cudaGetErrorString(rc), cudaGetErrorName(rc));
	return rc == cudaErrorMemoryAllocation ? KERN_ENOMEM : KERN_EDEVICE;
}

/* --- pools --------------------------------------------------------------- */

static void pool_close(struct kern_pool **poolp)
{
	struct cuda_pool *p = (struct cuda_pool *)*poolp;
	cudaSetDevice(p->device);
	if (p->stream) {
		cudaStreamSynchronize(p->stream);
		cudaStreamDestroy(p->stream);
	}
	for (int i = 0; i < RING; i++)
		if (p->end[i])
			cudaEventDestroy(p->end[i]);
	if (p->at)
		cuda_shared_unmap(p->device, p->at, p->bytes);
	pthread_mutex_destroy(&p->lock);
	free(p);
	*poolp = NULL;
}

static int pool_begin(struct cuda_pool *p, char *errbuf, size_t errlen)
{
	int rc = check(cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking),
	               "creating a stream", errbuf, errlen);
	for (int i = 0; i < RING && !rc; i++)
		rc = check(cudaEventCreateWithFlags(&p->end[i],
		                                    cudaEventDisableTiming | cudaEventBlockingSync),
		           "creating an event", errbuf, errlen);
	return rc;
}

/* Returns KERN_ELOST if the context is broken, else rc. */
static int open_failed(int rc, char *errbuf, size_t errlen)
{
	cudaError_t state = cudaDeviceSynchronize();
	cudaGetLastError();
	if (state == cudaSuccess)
		return rc;
	snprintf(errbuf, errlen, "the device is lost to this process: %s (%s)",
	         cudaGetErrorString(state), cudaGetErrorName(state));
	return KERN_ELOST;
}

static int pool_open(int device, int fd, size_t bytes, struct kern_pool **ret_pool, char *errbuf,
                     size_t errlen)
{
	struct cudaDeviceProp prop;
	int rc = cuda_find(device, &prop, errbuf, errlen);
	if (rc)
		return rc;
	if ((rc = check(cudaSetDevice(device), "choosing the device", errbuf, errlen)))
		return open_failed(rc, errbuf, errlen);
	struct cuda_pool *p = calloc(1, sizeof *p);
	if (!p) {
		snprintf(errbuf, errlen, "out of memory");
		return KERN_ENOMEM;
	}
	p->device = device;
	p->bytes = bytes;
	pthread_mutex_init(&p->lock, NULL);
	struct kern_pool *pool = &p->head;
	if ((rc = cuda_shared_map(device, fd, bytes, &p->at, errbuf, errlen)) ||
	    (rc = pool_begin(p, errbuf, errlen))) {
		pool_close(&pool);
		return open_failed(rc, errbuf, errlen);
	}
	*ret_pool = pool;
	return KERN_OK;
}

static unsigned char *address(const struct kern_pool *pool, uint64_t at)
{
	return pool ? (unsigned char *)(uintptr_t)((const struct cuda_pool *)pool)->at + at
	            : (unsigned char *)(uintptr_t)at;
}

/* --- pinned host memory -------------------------------------------------- */

static int host_pin(int device, void *at, size_t bytes, char *errbuf, size_t errlen)
{
	int rc = check(cudaSetDevice(device), "choosing the device", errbuf, errlen);
	return rc ? rc
	          : check(cudaHostRegister(at, bytes, cudaHostRegisterPortable), "pinning memory",
	                  errbuf, errlen);
}

static void host_unpin(void *at)
{
	cudaHostUnregister(at);
	cudaGetLastError();
}

/* Whether all host memory of a copy between a pool and the host is pinned. */
static bool is_pinned(const struct kern_copy *c)
{
	bool pinned = true;
	for (size_t i = 0; i < c->n && pinned; i++) {
		const struct kern_piece *p = &c->piece[i];
		const void *host = (const void *)(uintptr_t)(c->to ? p->from : p->to);
		struct cudaPointerAttributes a;
		pinned = !p->bytes || (cudaPointerGetAttributes(&a, host) == cudaSuccess &&
		                       a.type == cudaMemoryTypeHost);
	}
	cudaGetLastError();
	return pinned;
}

/* --- a copy -------------------------------------------------------------- */

/* Copies pieces in calls of up to BATCH_MAX, which have no order within a call; where the order
 * matters each has a call of its own. Only this call can request copy engines within a device. */
static cudaError_t copy_batches(const struct kern_copy *c, cudaStream_t stream)
{
	void *to[BATCH_MAX];
	const void *from[BATCH_MAX];
	size_t bytes[BATCH_MAX], first = 0, most = kern_copy_is_ordered(c) ? 1 : BATCH_MAX;
	struct cudaMemcpyAttributes attrs;
	cudaError_t rc = cudaSuccess;
	memset(&attrs, 0, sizeof attrs);
	attrs.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
	attrs.flags = cudaMemcpyFlagPreferOverlapWithCompute;
	for (size_t i = 0, n = 0; i < c->n && rc == cudaSuccess; i++) {
		if (c->piece[i].bytes) {
			to[n] = address(c->to, c->piece[i].to);
			from[n] = address(c->from, c->piece[i].from);
			bytes[n++] = c->piece[i].bytes;
		}
		if (n == most || (n && i + 1 == c->n)) {
			rc = cudaMemcpyBatchAsync(to, from, bytes, n, &attrs, &first, 1, stream);
			n = 0;
		}
	}
	return rc;
}

/* Whether p's device reads what is in that pool itself, over NVLink or PCIe. Else the driver copies
 * through host memory. */
static bool reads(const struct cuda_pool *p, struct cuda_pool *from)
{
	uint64_t bit = p->device < 64 ? 1ull << p->device : 0;
	if (bit && !(atomic_load(&from->tried) & bit)) {
		if (cuda_shared_reaches(from->device, from->at, from->bytes, p->device, p->stream))
			atomic_fetch_or(&from->direct, bit);
		atomic_fetch_or(&from->tried, bit);
	}
	return atomic_load(&from->direct) & bit;
}

/* Between device and host, and from a device that this one can read, copies always use copy
 * engines. */
static cudaError_t copy_pieces(const struct kern_copy *c, bool pinned, cudaStream_t stream)
{
	const struct cuda_pool *to_pool = (const struct cuda_pool *)c->to;
	struct cuda_pool *from_pool = (struct cuda_pool *)c->from;
	cudaError_t rc = cudaSuccess;
	if (pinned || (c->to && c->from && to_pool->device == from_pool->device))
		return copy_batches(c, stream);
	bool through_host = c->to && c->from && !reads(to_pool, from_pool);
	for (size_t i = 0; i < c->n && rc == cudaSuccess; i++) {
		unsigned char *to = address(c->to, c->piece[i].to);
		const unsigned char *from = address(c->from, c->piece[i].from);
		size_t bytes = c->piece[i].bytes;
		if (bytes && through_host)
			rc = cudaMemcpyPeerAsync(to, to_pool->device, from, from_pool->device, bytes, stream);
		else if (bytes)
			rc = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
	}
	return rc;
}

/* Passes what has landed in host memory to `seen`. Without the lock: meanwhile the device copies
 * for other threads. */
static int see_landed(const struct cuda_pool *p, const struct kern_copy *c, uint64_t number,
                      char *errbuf, size_t errlen)
{
	int rc = check(cudaEventSynchronize(p->end[number % RING]), "copying", errbuf, errlen);
	for (size_t i = 0; i < c->n && !rc; i++)
		c->seen(c->seen_arg, address(NULL, c->piece[i].to), c->piece[i].bytes);
	return rc;
}

/* Returns KERN_ELOST if this process has lost the device; a restarted process may be able to use
 * it. p may be NULL: host memory. */
static int or_lost(const struct kern_pool *p, int rc)
{
	cudaError_t state = rc == KERN_EDEVICE && p
	                        ? cudaStreamQuery(((const struct cuda_pool *)p)->stream)
	                        : cudaSuccess;
	cudaGetLastError();
	return state == cudaSuccess || state == cudaErrorNotReady ? rc : KERN_ELOST;
}

static int pool_copy(const struct kern_copy *c, uint64_t *ret_number, char *errbuf, size_t errlen)
{
	struct cuda_pool *p = (struct cuda_pool *)(c->to ? c->to : c->from);
	int rc = check(cudaSetDevice(p->device), "choosing the device", errbuf, errlen);
	if (rc)
		return or_lost(&p->head, rc);
	if (c->seen && c->n > 1 && kern_copy_is_ordered(c)) {
		/* of pieces that overlap the reader would only see what the last ones brought */
		struct kern_copy one = *c;
		one.n = 1;
		for (; one.piece < c->piece + c->n && !rc; one.piece++)
			rc = pool_copy(&one, ret_number, errbuf, errlen);
		return rc;
	}
	bool pinned = (!c->to || !c->from) && is_pinned(c);
	pthread_mutex_lock(&p->lock);
	uint64_t number = p->number + 1;
	rc = check(cudaEventSynchronize(p->end[number % RING]), "waiting for a copy", errbuf, errlen);
	if (!rc)
		rc = check(copy_pieces(c, pinned, p->stream), "copying", errbuf, errlen);
	if (!rc)
		rc = check(cudaEventRecord(p->end[number % RING], p->stream), "copying", errbuf, errlen);
	if (rc)
		cudaStreamSynchronize(p->stream);
	else
		*ret_number = p->number = number;
	pthread_mutex_unlock(&p->lock);
	if (!rc && c->seen)
		rc = see_landed(p, c, number, errbuf, errlen);
	return or_lost(c->to, or_lost(c->from, rc));
}

/* If the event was reused, it belongs to a later copy, and this one has completed. */
static int pool_wait(struct kern_pool *pool, uint64_t number, char *errbuf, size_t errlen)
{
	struct cuda_pool *p = (struct cuda_pool *)pool;
	int rc = check(cudaSetDevice(p->device), "choosing the device", errbuf, errlen);
	return or_lost(pool, rc ? rc
	                        : check(cudaEventSynchronize(p->end[number % RING]), "copying", errbuf,
	                                errlen));
}

const struct kern_copies kern_backend_copies = {
	.abi = KERN_COPIES_ABI,
	.name = "cuda",
	.open = pool_open,
	.close = pool_close,
	.copy = pool_copy,
	.wait = pool_wait,
	.pin = host_pin,
	.unpin = host_unpin,
};
