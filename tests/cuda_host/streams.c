/* streams.c - the stand-in's device: streams, events, copies, graphs, launches, and the one thread
 * that does all work. See runtime.h.
 *
 * A stream is a list of work, of which the thread takes the first piece; it takes a graph's nodes
 * one at a time, so that streams interleave. A broken device drops its work. */
#include "tests/cuda_host/runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ARGS_MAX = 4096 };

/* --- work ---------------------------------------------------------------- */

enum work_kind { WORK_KERNEL, WORK_COPY, WORK_SET, WORK_RECORD, WORK_GRAPH };

struct work {
	enum work_kind kind;
	struct work *next;
	union {
		struct {
			const struct cuda_host_kernel *k;
			struct dim3 grid;
			unsigned cluster, threads;
			size_t shared;
			void *args;
		} kernel;
		struct {
			unsigned char *to;
			const unsigned char *from;
			size_t to_pitch, from_pitch, width, height;
		} copy;
		struct {
			void *at;
			int value;
			size_t bytes;
		} set;
		struct {
			struct CUevent_st *e;
			uint64_t number;
		} event;
		const struct work *node; /* next node of a graph */
	};
};

struct list {
	struct work *first, **end;
};

struct CUstream_st {
	struct list queue;
	bool busy; /* its first piece of work is running */
	struct CUgraph_st *capturing;
	struct CUstream_st *next;
};
struct CUevent_st {
	uint64_t recorded, done; /* latest record submitted; latest completed */
	struct timespec at;      /* of the latest completed */
};
struct CUgraph_st {
	struct list nodes;
};
struct CUgraphExec_st {
	struct work *nodes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t to_device = PTHREAD_COND_INITIALIZER, to_host = PTHREAD_COND_INITIALIZER;
static struct CUstream_st *streams;
static bool running;
static unsigned delay_us;
static bool computes;

static void work_free(struct work *w)
{
	if (w->kind == WORK_KERNEL)
		free(w->kernel.args);
	free(w);
}

/* --- the device ---------------------------------------------------------- */

static void copy_run(const struct work *w)
{
	for (size_t i = 0; i < w->copy.height; i++)
		memmove(w->copy.to + i * w->copy.to_pitch, w->copy.from + i * w->copy.from_pitch,
		        w->copy.width);
}

/* Its name in CUDA_HOST_FAIL. */
static const char *work_name(const struct work *w)
{
	return w->kind == WORK_KERNEL ? w->kernel.k->name : w->kind == WORK_COPY ? "copy" : "set";
}

static void work_run(const struct work *w)
{
	if (delay_us)
		usleep(cuda_host_random() % delay_us);
	char hang[80];
	snprintf(hang, sizeof hang, "hang_%s", work_name(w));
	for (bool hangs = cuda_host_injected(hang); hangs;)
		pause();
	if (cuda_host_injected(work_name(w)))
		cuda_host_break(cudaErrorIllegalAddress);
	else if (w->kind == WORK_COPY)
		copy_run(w);
	else if (w->kind == WORK_SET)
		memset(w->set.at, w->set.value, w->set.bytes);
	else if (computes || !strncmp(work_name(w), "group_", 6) || !strncmp(work_name(w), "nccl_", 5))
		cuda_host_grid(w->kernel.k, w->kernel.grid, w->kernel.cluster, w->kernel.threads,
		               w->kernel.shared, w->kernel.args);
}

static void pop(struct CUstream_st *s)
{
	struct work *w = s->queue.first;
	s->queue.first = w->next;
	if (!w->next)
		s->queue.end = &s->queue.first;
	work_free(w);
}

/* Runs one piece of a stream's work, or one node of a graph. Call with the lock held; it is
 * released meanwhile. */
static void advance(struct CUstream_st *s)
{
	struct work *w = s->queue.first;
	const struct work *now = w->kind == WORK_GRAPH ? w->node : w;
	if (w->kind == WORK_RECORD) {
		w->event.e->done = w->event.number;
		clock_gettime(CLOCK_MONOTONIC, &w->event.e->at);
	} else if (now && !cuda_host_broken()) {
		s->busy = true;
		pthread_mutex_unlock(&lock);
		work_run(now);
		pthread_mutex_lock(&lock);
		s->busy = false;
	}
	if (w->kind == WORK_GRAPH && now && (w->node = now->next) && !cuda_host_broken())
		return;
	pop(s);
	pthread_cond_broadcast(&to_host);
}

static void *device_run(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&lock);
	for (;;) {
		unsigned n = 0;
		struct CUstream_st *s;
		for (s = streams; s; s = s->next)
			n += s->queue.first != NULL;
		if (!n) {
			pthread_cond_wait(&to_device, &lock);
			continue;
		}
		unsigned pick = cuda_host_random() % n;
		s = streams;
		while (!s->queue.first || pick--)
			s = s->next;
		advance(s);
	}
	return NULL;
}

/* A child process has no device thread and starts without streams. */
static void after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
	pthread_cond_init(&to_device, NULL);
	pthread_cond_init(&to_host, NULL);
	running = false;
	streams = NULL;
}

/* Call with the lock held. */
static cudaError_t device_start(void)
{
	static bool once;
	pthread_t thread;
	if (running)
		return cudaSuccess;
	if (!once) {
		cuda_host_seed((uint32_t)cuda_host_environment("CUDA_HOST_SEED", 1));
		delay_us = (unsigned)cuda_host_environment("CUDA_HOST_DELAY_US", 0);
		computes = cuda_host_environment("CUDA_HOST_COMPUTES", 1);
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

/* Adds work to the stream, or to the graph that it captures. Takes ownership of the work. */
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

/* --- streams ------------------------------------------------------------- */

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

static bool has_work(const struct CUstream_st *s)
{
	return s->queue.first || s->busy;
}

/* The result of calls that wait. */
static cudaError_t state(void)
{
	cudaError_t e = cuda_host_broken();
	return e ? cuda_host_failed(e) : cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
	pthread_mutex_lock(&lock);
	while (running && has_work(s))
		pthread_cond_wait(&to_host, &lock);
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
		return cudaSuccess; /* work without a stream is done synchronously */
	pthread_mutex_lock(&lock);
	while (has_work(s))
		pthread_cond_wait(&to_host, &lock);
	pthread_mutex_unlock(&lock);
	return state();
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
	if (!s)
		return state();
	if (s->capturing)
		return cuda_host_failed(cudaErrorStreamCaptureUnsupported);
	pthread_mutex_lock(&lock);
	bool busy = has_work(s);
	pthread_mutex_unlock(&lock);
	return busy && !cuda_host_broken() ? cuda_host_failed(cudaErrorNotReady) : state();
}

static bool any_work(void)
{
	const struct CUstream_st *s = streams;
	while (s && !has_work(s))
		s = s->next;
	return s != NULL;
}

cudaError_t cudaDeviceSynchronize(void)
{
	pthread_mutex_lock(&lock);
	while (any_work())
		pthread_cond_wait(&to_host, &lock);
	pthread_mutex_unlock(&lock);
	return state();
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t s)
{
	(void)kind;
	CALL("cudaMemcpyAsync");
	return submit(s, (struct work){.kind = WORK_COPY,
	                               .copy = {to, from, to_pitch, from_pitch, width, height}});
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
	return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, s);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_index, const void *from, int from_index,
                                size_t bytes, cudaStream_t s)
{
	CALL("cudaMemcpyPeerAsync");
	return to_index == from_index ? cuda_host_failed(cudaErrorInvalidValue)
	                              : cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s);
}

/* The pieces of a batch have no order: runs them in reverse. None may be in pageable memory. */
cudaError_t cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *bytes,
                                 size_t n, struct cudaMemcpyAttributes *attrs,
                                 size_t *first_of_attrs, size_t n_attrs, cudaStream_t s)
{
	CALL("cudaMemcpyBatchAsync");
	if (!s || !n || n_attrs != 1 || first_of_attrs[0] != 0 ||
	    attrs->srcAccessOrder != cudaMemcpySrcAccessOrderStream)
		return cuda_host_failed(cudaErrorInvalidValue);
	cudaError_t rc = cudaSuccess;
	for (size_t i = 0; i < n; i++)
		if (!cuda_host_reaches(to[i], bytes[i]) || !cuda_host_reaches(from[i], bytes[i]))
			return cuda_host_failed(cudaErrorInvalidValue);
	for (size_t i = n; i-- > 0 && rc == cudaSuccess;)
		rc = submit(s, (struct work){.kind = WORK_COPY,
		                             .copy = {to[i], from[i], bytes[i], bytes[i], bytes[i], 1}});
	return rc;
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t s)
{
	CALL("cudaMemsetAsync");
	return submit(s, (struct work){.kind = WORK_SET, .set = {at, value, bytes}});
}

/* --- events -------------------------------------------------------------- */

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

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
	CALL("cudaEventSynchronize");
	pthread_mutex_lock(&lock);
	for (uint64_t number = e->recorded; e->done < number && !cuda_host_broken();)
		pthread_cond_wait(&to_host, &lock);
	pthread_mutex_unlock(&lock);
	return state();
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
	pthread_mutex_lock(&lock);
	bool done = e->done >= e->recorded;
	pthread_mutex_unlock(&lock);
	return done || cuda_host_broken() ? state() : cuda_host_failed(cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float *ret_ms, cudaEvent_t begin, cudaEvent_t end)
{
	pthread_mutex_lock(&lock);
	int done = begin->recorded && begin->done == begin->recorded && end->recorded &&
	           end->done == end->recorded;
	*ret_ms = (float)((double)(end->at.tv_sec - begin->at.tv_sec) * 1e3 +
	                  (double)(end->at.tv_nsec - begin->at.tv_nsec) / 1e6);
	pthread_mutex_unlock(&lock);
	return cuda_host_broken() ? state() : done ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
	pthread_mutex_lock(&lock);
	while (e->done < e->recorded && !cuda_host_broken())
		pthread_cond_wait(&to_host, &lock);
	pthread_mutex_unlock(&lock);
	free(e);
	return cudaSuccess;
}

/* --- kernels and graphs -------------------------------------------------- */

cudaError_t cudaFuncSetAttribute(const void *fn, enum cudaFuncAttribute attr, int value)
{
	return cuda_host_find(fn) && attr == cudaFuncAttributeMaxDynamicSharedMemorySize && value >= 0
	           ? cudaSuccess
	           : cuda_host_failed(cudaErrorInvalidValue);
}

/* Appends to the file of CUDA_HOST_LAUNCHES. */
static void record_launch(const char *name, struct dim3 grid)
{
	const char *path = getenv("CUDA_HOST_LAUNCHES");
	FILE *f = path ? fopen(path, "a") : NULL;
	if (f) {
		fprintf(f, "%s %u\n", name, grid.x * grid.y);
		fclose(f);
	}
}

static cudaError_t launch(const void *fn, struct dim3 grid, unsigned cluster, struct dim3 block,
                          void **args, size_t shared, cudaStream_t s)
{
	CALL("cudaLaunchKernel");
	const struct cuda_host_kernel *k = cuda_host_find(fn);
	if (!k || !grid.x || !grid.y || grid.z != 1 || grid.y > 65535 || grid.x > INT32_MAX ||
	    !block.x || block.x > k->threads_max || block.y != 1 || block.z != 1 ||
	    k->args_bytes > ARGS_MAX || shared > CUDA_HOST_SHARED_BYTES || grid.x % cluster) {
		fprintf(stderr,
		        "cuda_host: kernel %s cannot be launched: grid (%u, %u, %u), clusters of %u, %u "
		        "threads, %zu bytes of shared memory\n",
		        k ? k->name : "(none)", grid.x, grid.y, grid.z, cluster, block.x, shared);
		return cuda_host_failed(cudaErrorInvalidValue);
	}
	record_launch(k->name, grid);
	void *copy = malloc(k->args_bytes);
	memcpy(copy, args[0], k->args_bytes);
	return submit(s, (struct work){.kind = WORK_KERNEL,
	                               .kernel = {k, grid, cluster, block.x, shared, copy}});
}

cudaError_t cudaLaunchKernel(const void *fn, struct dim3 grid, struct dim3 block, void **args,
                             size_t shared, cudaStream_t s)
{
	return launch(fn, grid, 1, block, args, shared, s);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *fn, void **args)
{
	unsigned cluster = 1;
	for (unsigned i = 0; i < c->numAttrs; i++)
		if (c->attrs[i].id == cudaLaunchAttributeClusterDimension)
			cluster = c->attrs[i].val.clusterDim.x;
	return launch(fn, c->gridDim, cluster, c->blockDim, args, c->dynamicSmemBytes, c->stream);
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
	return *ret ? cudaSuccess : cuda_host_failed(cudaErrorInvalidValue);
}

/* Moves the nodes: a graph can be instantiated once. */
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
	return submit(s, (struct work){.kind = WORK_GRAPH, .node = g->nodes});
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
