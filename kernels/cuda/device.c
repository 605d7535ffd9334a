/* device.c - a GPU as a kern_device: opening, errors, streams, and the backend's table.
 *
 * Errors from which the device cannot recover (an illegal access, an uncorrectable ECC error, a
 * device lost from the bus) are remembered: every later call returns KERN_ELOST with the reason, so
 * that the worker exits and its requests continue elsewhere. */
#include "kernels/cuda/backend.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

_Static_assert(offsetof(struct kern_weight, k) == offsetof(struct kern_matrices, k),
               "a weight begins with struct kern_matrices");

/* Whether there is code for GPUs of that major compute capability: the Makefile's CUDA_ARCH. */
static int has_code(int major)
{
	return major == 8 || major == 9 || major == 10 || major == 12;
}

/* --- errors -------------------------------------------------------------- */

int cuda_fail(struct kern_device *dev, int code, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(dev->error, sizeof dev->error, fmt, ap);
	va_end(ap);
	return code;
}

/* Remembers the current text as the reason if the device no longer works. Must not be called while
 * `loading` is capturing (program.c). */
static int failed(struct kern_device *dev)
{
	cudaError_t state = dev->broken[0] ? cudaSuccess : cudaStreamQuery(dev->loading);
	cudaGetLastError();
	if (state != cudaSuccess && state != cudaErrorNotReady)
		snprintf(dev->broken, sizeof dev->broken, "%.290s", dev->error);
	if (dev->broken[0] && dev->watch)
		watch_forget(dev->watch);
	return dev->broken[0] ? KERN_ELOST : KERN_EDEVICE;
}

int cuda_check(struct kern_device *dev, cudaError_t rc, const char *doing)
{
	if (rc == cudaSuccess)
		return KERN_OK;
	cudaGetLastError();
	if (rc == cudaErrorMemoryAllocation) {
		size_t left = 0, all = 0;
		cudaMemGetInfo(&left, &all);
		return cuda_fail(dev, KERN_ENOMEM, "%s: the device has %zu MiB free of %zu MiB", doing,
		                 left >> 20, all >> 20);
	}
	cuda_fail(dev, KERN_EDEVICE, "%s: %s (%s)", doing, cudaGetErrorString(rc),
	          cudaGetErrorName(rc));
	return failed(dev);
}

int cuda_check_pinned(struct kern_device *dev, cudaError_t rc, size_t bytes)
{
	if (rc != cudaErrorMemoryAllocation)
		return cuda_check(dev, rc, "pinning host memory");
	cudaGetLastError();
	return cuda_fail(dev, KERN_ENOMEM, "the host has no %zu MiB left that can be pinned",
	                 bytes >> 20);
}

int cuda_check_driver(struct kern_device *dev, CUresult rc, const char *doing)
{
	if (rc == CUDA_SUCCESS)
		return KERN_OK;
	cuda_fail(dev, KERN_EDEVICE, "%s: driver error %d", doing, (int)rc);
	return rc == CUDA_ERROR_OUT_OF_MEMORY ? KERN_ENOMEM : failed(dev);
}

int cuda_choose(struct kern_device *dev)
{
	return dev->hangs ? cuda_fail(dev, KERN_ELOST, "%s", dev->broken)
	                  : cuda_check(dev, cudaSetDevice(dev->index), "choosing the device");
}

uint64_t cuda_now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

cudaError_t cuda_drain(cudaStream_t stream, uint64_t limit_ns)
{
	const struct timespec pause = {.tv_nsec = 100000};
	uint64_t until_ns = cuda_now_ns() + limit_ns;
	cudaError_t state;
	while ((state = cudaStreamQuery(stream)) == cudaErrorNotReady && cuda_now_ns() < until_ns)
		nanosleep(&pause, NULL);
	cudaGetLastError();
	return state;
}

void cuda_hang(struct kern_device *dev)
{
	dev->hangs = 1;
	snprintf(dev->broken, sizeof dev->broken, "%.299s", dev->error);
}

void *cuda_driver(const char *name)
{
	void *fn = NULL;
	enum cudaDriverEntryPointQueryResult found;
	if (cudaGetDriverEntryPointByVersion(name, &fn, CUDA_DRIVER_MIN, cudaEnableDefault, &found) !=
	        cudaSuccess ||
	    found != cudaDriverEntryPointSuccess)
		return NULL;
	return fn;
}

extern const struct kern_ops kern_backend_ops;

int cuda_library(const char *library, const struct cuda_symbol *all, size_t n, char *why,
                 size_t size)
{
	char path[512];
	Dl_info self;
	const char *slash = dladdr(&kern_backend_ops, &self) && self.dli_fname
	                        ? strrchr(self.dli_fname, '/')
	                        : NULL;
	int here = slash &&
	           snprintf(path, sizeof path, "%.*s/%s", (int)(slash - self.dli_fname), self.dli_fname,
	                    library) < (int)sizeof path &&
	           access(path, F_OK) == 0;
	void *handle = dlopen(here ? path : library, RTLD_NOW | RTLD_LOCAL);
	for (size_t i = 0; i < n; i++) {
		void *fn = handle ? dlsym(handle, all[i].name) : NULL;
		if (!fn) {
			snprintf(why, size, "%s", dlerror());
			return 0;
		}
		memcpy(all[i].slot, &fn, sizeof fn);
	}
	return 1;
}

static const char *device_last_error(const struct kern_device *dev)
{
	return dev->error;
}

/* --- opening ------------------------------------------------------------- */

int cuda_find(int index, struct cudaDeviceProp *prop, char *errbuf, size_t errlen)
{
	int driver = 0, count = 0;
	cudaError_t rc = cudaDriverGetVersion(&driver);
	if (rc == cudaSuccess && driver == 0)
		snprintf(errbuf, errlen,
		         "this machine lacks an NVIDIA driver: install one, or use backend \"cpu\"");
	else if (rc == cudaSuccess && driver < CUDA_DRIVER_MIN)
		snprintf(
			errbuf, errlen,
			"the NVIDIA driver supports CUDA %d.%d, expected %d.%d or later: update the driver",
			driver / 1000, driver % 1000 / 10, CUDA_DRIVER_MIN / 1000, CUDA_DRIVER_MIN % 1000 / 10);
	else if (rc != cudaSuccess || (rc = cudaGetDeviceCount(&count)) != cudaSuccess)
		snprintf(errbuf, errlen, "this machine has no usable GPU: %s", cudaGetErrorString(rc));
	else if (index < 0 || index >= count)
		snprintf(errbuf, errlen, "device %d: this machine has %d GPUs, from 0 on", index, count);
	else if ((rc = cudaGetDeviceProperties(prop, index)) != cudaSuccess)
		snprintf(errbuf, errlen, "device %d: %s", index, cudaGetErrorString(rc));
	else if (!has_code(prop->major))
		snprintf(errbuf, errlen,
		         "device %d (%.60s) has compute capability %d.%d, expected 8, 9, 10 or 12: use "
		         "another GPU, or backend \"cpu\"",
		         index, prop->name, prop->major, prop->minor);
	else
		return KERN_OK;
	cudaGetLastError();
	return KERN_ENOTSUP;
}

static void device_close(struct kern_device **devp)
{
	struct kern_device *dev = *devp;
	if (!dev)
		return;
	cudaSetDevice(dev->index);
	watch_destroy(&dev->watch);
	*devp = NULL;
	if (dev->hangs)
		return; /* what frees device memory would wait for the kernel */
	lt_close(&dev->lt);
	nccl_close(&dev->nccl);
	cuda_staging_free(dev);
	peers_close(dev);
	if (dev->loading)
		cudaStreamDestroy(dev->loading);
	cuda_mem_free(dev, &dev->pulse_count);
	cuda_mem_free(dev, &dev->pulse_mem);
	free(dev);
}

int cuda_wgmma(void)
{
	const char *set = getenv("PDSERVE_CUDA_WGMMA");
	return set && *set ? atoi(set) : -1;
}

static int device_begin(struct kern_device *dev, const struct kern_config *conf)
{
	char bus[32] = "";
	int rc = cuda_choose(dev);
	if (cudaDeviceGetPCIBusId(bus, sizeof bus, dev->index) == cudaSuccess)
		dev->nvml = nvml_find(bus);
	if (!rc)
		rc = cuda_check(dev, cudaStreamCreateWithFlags(&dev->loading, cudaStreamNonBlocking),
		                "creating a stream");
	if (!rc)
		rc = cuda_mem_new(dev, KERN_MEM_PINNED, sizeof *dev->pulse, &dev->pulse_mem);
	if (!rc)
		rc = cuda_mem_new(dev, KERN_MEM_DEVICE, sizeof *dev->pulse, &dev->pulse_count);
	if (rc)
		return rc;
	dev->pulse = dev->pulse_mem.host;
	if (conf->progressed &&
	    watch_new(dev->pulse, conf->progressed, conf->progressed_arg, &dev->watch))
		return cuda_fail(dev, KERN_ENOMEM, "out of memory or threads for watching progress");
	if (dev->group.ranks > 1 && (rc = peers_open(dev)))
		return rc;
	if (dev->fast && (rc = lt_open(dev, &dev->lt)))
		return rc;
	if ((rc = nccl_open(dev)))
		return rc;
	rc = cuda_selftest(dev);
	dev->steps = dev->rows = dev->launches = dev->busy_ns = 0;
	return rc;
}

static int device_open(const struct kern_config *conf, struct kern_device **ret_dev, char *errbuf,
                       size_t errlen)
{
	struct cudaDeviceProp prop;
	int fast = conf->variant && !strcmp(conf->variant, "fast");
	if (conf->variant && !fast && strcmp(conf->variant, "auto")) {
		snprintf(errbuf, errlen, "unknown cuda variant %.40s: must be auto or fast", conf->variant);
		return KERN_ENOTSUP;
	}
	if (conf->activations != KERN_F32 && conf->activations != KERN_BF16) {
		snprintf(errbuf, errlen, "cuda device with activations of type %s: must be f32 or bf16",
		         kern_dtype_name(conf->activations));
		return KERN_EINVAL;
	}
	int rc = cuda_find(conf->device_index, &prop, errbuf, errlen);
	if (rc)
		return rc;
	struct kern_device *dev = calloc(1, sizeof *dev);
	if (!dev) {
		snprintf(errbuf, errlen, "out of memory for a device");
		return KERN_ENOMEM;
	}
	dev->index = conf->device_index;
	dev->no_wgmma = "";
	dev->multiprocessors = prop.multiProcessorCount;
	dev->overlaps = prop.major >= 9;
	dev->shared_max = (int)prop.sharedMemPerBlockOptin;
	dev->wgmma = prop.major == 9 && cuda_wgmma() != 0;
	if (prop.major == 9 && !dev->wgmma)
		dev->no_wgmma = " (PDSERVE_CUDA_WGMMA=0)";
	dev->memory_bytes = prop.totalGlobalMem;
	snprintf(dev->name, sizeof dev->name, "%.63s", prop.name);
	dev->group = conf->group;
	dev->pipe = conf->pipe;
	dev->fast = fast;
	dev->bf16_activations = fast || conf->activations == KERN_BF16;
	snprintf(dev->numerics, sizeof dev->numerics, "cuda-sm%d%d-r2%s", prop.major, prop.minor,
	         fast                    ? "-fast"
	         : dev->bf16_activations ? "-bf16act"
	                                 : "");
	rc = device_begin(dev, conf);
	if (rc) {
		snprintf(errbuf, errlen, "%s", dev->error);
		device_close(&dev);
		return rc;
	}
	*ret_dev = dev;
	return KERN_OK;
}

static uint64_t memory_bytes(int index)
{
	struct cudaDeviceProp prop;
	char why[256];
	return cuda_find(index, &prop, why, sizeof why) ? 0 : prop.totalGlobalMem;
}

static const char *device_numerics(const struct kern_device *dev)
{
	return dev->numerics;
}

static int device_rounds(const struct kern_device *dev)
{
	return dev->bf16_activations;
}

static void device_counters(const struct kern_device *dev, struct kern_counters *ret)
{
	uint64_t steps = __atomic_load_n(&dev->steps, __ATOMIC_RELAXED);
	*ret = (struct kern_counters){.pulse = *dev->pulse + steps,
	                              .busy_ns = __atomic_load_n(&dev->busy_ns, __ATOMIC_RELAXED),
	                              .steps = steps,
	                              .rows = __atomic_load_n(&dev->rows, __ATOMIC_RELAXED),
	                              .launches = __atomic_load_n(&dev->launches, __ATOMIC_RELAXED)};
}

static void device_info(const struct kern_device *dev, struct kern_info *ret)
{
	size_t left = 0, all = 0;
	*ret = (struct kern_info){.memory_bytes = dev->memory_bytes};
	snprintf(ret->name, sizeof ret->name, "%.63s", dev->name);
	/* products and attention of prompts; only rounded activations use wgmma */
	snprintf(ret->kernels, sizeof ret->kernels, "%s%s%s",
	         dev->wgmma && dev->bf16_activations ? "wgmma" : "mma.sync",
	         dev->fast ? ", cuBLASLt" : "",
	         dev->bf16_activations ? dev->no_wgmma : ", activations of float32");
	if (cudaSetDevice(dev->index) == cudaSuccess && cudaMemGetInfo(&left, &all) == cudaSuccess)
		ret->free_bytes = left;
	else
		cudaGetLastError();
	nvml_read(dev->nvml, ret);
}

/* --- streams ------------------------------------------------------------- */

void cuda_stream_destroy(struct kern_stream **sp)
{
	struct kern_stream *s = *sp;
	if (!s)
		return;
	if (s->stream)
		cuda_wait(s, 0);
	if (s->stream && !s->dev->hangs)
		cudaStreamDestroy(s->stream);
	for (int i = 0; i < KERN_FLIGHTS && !s->dev->hangs; i++) {
		if (s->begin[i])
			cudaEventDestroy(s->begin[i]);
		if (s->end[i])
			cudaEventDestroy(s->end[i]);
	}
	free(s);
	*sp = NULL;
}

int cuda_stream_new(struct kern_device *dev, struct kern_stream **ret_stream)
{
	struct kern_stream *s = calloc(1, sizeof *s);
	if (!s)
		return cuda_fail(dev, KERN_ENOMEM, "out of memory for a stream");
	s->dev = dev;
	int rc = cuda_choose(dev);
	if (!rc)
		rc = cuda_check(dev, cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking),
		                "creating a stream");
	for (int i = 0; i < KERN_FLIGHTS && !rc; i++) {
		rc = cuda_check(dev, cudaEventCreateWithFlags(&s->begin[i], 0), "creating an event");
		if (!rc)
			rc = cuda_check(dev, cudaEventCreateWithFlags(&s->end[i], 0), "creating an event");
	}
	*ret_stream = s;
	if (rc)
		cuda_stream_destroy(ret_stream);
	return rc;
}

static int copy(struct kern_stream *s, void *to, const void *from, size_t bytes, const char *doing)
{
	int rc = cuda_choose(s->dev);
	return rc ? rc
	          : cuda_check(s->dev, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s->stream),
	                       doing);
}

static int stream_upload(struct kern_stream *s, kern_ptr dst, const void *src, size_t bytes)
{
	return copy(s, (void *)dst.v, src, bytes, "uploading");
}

static int stream_download(struct kern_stream *s, void *dst, kern_ptr src, size_t bytes)
{
	return copy(s, dst, (const void *)src.v, bytes, "downloading");
}

static int stream_sync(struct kern_stream *s)
{
	return cuda_wait(s, 0);
}

static int stream_sync_previous(struct kern_stream *s)
{
	return cuda_wait(s, 1);
}

/* Programs need little host memory: copies of operations and launches. */
static size_t program_bytes(const struct kern_config *conf, const struct kern_limits *limits,
                            const struct kern_shape *shape)
{
	enum { LAUNCHES_OF_AN_OP = 7, LAUNCH_BYTES = 1024 };
	(void)conf, (void)limits;
	return shape->ops * LAUNCHES_OF_AN_OP * LAUNCH_BYTES * CUDA_SIZES;
}

const struct kern_ops kern_backend_ops = {
	.abi = KERN_ABI,
	.name = "cuda",
	.ranks_max = CUDA_RANKS_MAX,
	.stages_max = CUDA_STAGES_MAX,
	.own_memory = 1,
	.queued = 1,
	.memory_bytes = memory_bytes,
	.open = device_open,
	.close = device_close,
	.numerics = device_numerics,
	.reduces = nccl_reduces,
	.rounds = device_rounds,
	.last_error = device_last_error,
	.counters = device_counters,
	.info = device_info,
	.mem_new = cuda_mem_new,
	.mem_share = cuda_mem_share,
	.mem_map = cuda_mem_map,
	.mem_pin = cuda_mem_pin,
	.mem_free = cuda_mem_free,
	.stream_new = cuda_stream_new,
	.stream_destroy = cuda_stream_destroy,
	.upload = stream_upload,
	.download = stream_download,
	.sync = stream_sync,
	.sync_previous = stream_sync_previous,
	.weight_new = cuda_weight_new,
	.weight_load = cuda_weight_load,
	.weight_destroy = cuda_weight_destroy,
	.weight_part_of = cuda_weight_part_of,
	.program_bytes = program_bytes,
	.program_new = cuda_program_new,
	.program_destroy = cuda_program_destroy,
	.run = cuda_run,
};
