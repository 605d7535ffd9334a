/* device.c - a GPU as a kern_device: opening, errors, streams, and the backend's table.
 *
 * Errors from which the device cannot recover (an illegal access, an uncorrectable ECC error, a
 * device lost from the bus) are remembered: every later call returns KERN_ELOST with the reason, so
 * that the worker exits and its requests continue elsewhere. */
#include "kernels/cuda/backend.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	CAPABILITY_MIN = 80,
	CAPABILITY_MAX = 99 /* later ones have no code: the Makefile's CUDA_ARCH */
};

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

int cuda_check_driver(struct kern_device *dev, CUresult rc, const char *doing)
{
	if (rc == CUDA_SUCCESS)
		return KERN_OK;
	cuda_fail(dev, KERN_EDEVICE, "%s: driver error %d", doing, (int)rc);
	return rc == CUDA_ERROR_OUT_OF_MEMORY ? KERN_ENOMEM : failed(dev);
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
	else if (prop->major * 10 + prop->minor < CAPABILITY_MIN ||
	         prop->major * 10 + prop->minor > CAPABILITY_MAX)
		snprintf(errbuf, errlen,
		         "device %d (%.60s) has compute capability %d.%d, expected 8.0 to 9.0: use another "
		         "GPU, or backend \"cpu\"",
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
	lt_close(&dev->lt);
	nvml_close(&dev->nvml);
	cuda_staging_free(dev);
	peers_close(dev);
	if (dev->loading)
		cudaStreamDestroy(dev->loading);
	if (dev->pulse)
		cudaFreeHost((void *)(uintptr_t)dev->pulse);
	free(dev);
	*devp = NULL;
}

int cuda_wgmma(void)
{
	const char *set = getenv("PDSERVE_CUDA_WGMMA");
	return set && *set ? atoi(set) : -1;
}

static int device_begin(struct kern_device *dev, const struct kern_config *conf)
{
	char bus[32] = "";
	int rc = cuda_check(dev, cudaSetDevice(dev->index), "choosing the device");
	if (cudaDeviceGetPCIBusId(bus, sizeof bus, dev->index) == cudaSuccess)
		dev->nvml = nvml_open(bus);
	void *pulse = NULL;
	if (!rc)
		rc = cuda_check(dev, cudaStreamCreateWithFlags(&dev->loading, cudaStreamNonBlocking),
		                "creating a stream");
	if (!rc)
		rc = cuda_check(dev,
		                cudaHostAlloc(&pulse, sizeof *dev->pulse,
		                              cudaHostAllocMapped | cudaHostAllocPortable),
		                "pinning memory");
	if (rc)
		return rc;
	memset(pulse, 0, sizeof *dev->pulse);
	dev->pulse = (volatile uint64_t *)pulse;
	if ((rc = cuda_check(dev, cudaHostGetDevicePointer((void **)&dev->pulse_dev.v, pulse, 0),
	                     "mapping memory")))
		return rc;
	if (conf->progressed &&
	    watch_new(dev->pulse, conf->progressed, conf->progressed_arg, &dev->watch))
		return cuda_fail(dev, KERN_ENOMEM, "out of memory or threads for watching progress");
	if (dev->group.ranks > 1 && (rc = peers_open(dev)))
		return rc;
	if (dev->fast && (rc = lt_open(dev, &dev->lt)))
		return rc;
	rc = cuda_envelope(dev);
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
	dev->multiprocessors = prop.multiProcessorCount;
	dev->overlaps = prop.major >= 9;
	dev->shared_max = (int)prop.sharedMemPerBlockOptin;
	dev->wgmma = prop.major == 9 && cuda_wgmma() != 0;
	dev->memory_bytes = prop.totalGlobalMem;
	snprintf(dev->name, sizeof dev->name, "%.63s", prop.name);
	dev->group = conf->group;
	dev->fast = fast;
	dev->bf16_activations = fast || conf->activations == KERN_BF16;
	snprintf(dev->numerics, sizeof dev->numerics, "cuda-sm%d%d-r1%s", prop.major, prop.minor,
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

static const char *device_numerics(const struct kern_device *dev)
{
	return dev->numerics;
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
	if (s->stream) {
		cudaStreamSynchronize(s->stream);
		cudaStreamDestroy(s->stream);
	}
	for (int i = 0; i < KERN_FLIGHTS; i++) {
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
	int rc = cuda_check(dev, cudaSetDevice(dev->index), "choosing the device");
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

/* Makes the stream's device the calling thread's. */
static int choose(struct kern_stream *s)
{
	return cuda_check(s->dev, cudaSetDevice(s->dev->index), "choosing the device");
}

static int stream_upload(struct kern_stream *s, kern_ptr dst, const void *src, size_t bytes)
{
	int rc = choose(s);
	return rc ? rc
	          : cuda_check(s->dev,
	                       cudaMemcpyAsync((void *)dst.v, src, bytes, cudaMemcpyDefault, s->stream),
	                       "uploading");
}

static int stream_download(struct kern_stream *s, void *dst, kern_ptr src, size_t bytes)
{
	int rc = choose(s);
	return rc ? rc
	          : cuda_check(s->dev,
	                       cudaMemcpyAsync(dst, (const void *)src.v, bytes, cudaMemcpyDefault,
	                                       s->stream),
	                       "downloading");
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
	.own_memory = 1,
	.queued = 1,
	.open = device_open,
	.close = device_close,
	.numerics = device_numerics,
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
	.weight_destroy = cuda_weight_destroy,
	.weight_part_of = cuda_weight_part_of,
	.program_bytes = program_bytes,
	.program_new = cuda_program_new,
	.program_destroy = cuda_program_destroy,
	.run = cuda_run,
};
