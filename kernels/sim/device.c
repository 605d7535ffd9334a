/* device.c - the simulated device: opening, memory, streams, weights that are sizes only. A replay (program.c) runs in the calling thread and
 * is done when it returns, but for the time that it takes: progress words are stored, and `sync` returns, when the modelled device would be
 * there. Memory of every kind is host memory; what is DEVICE memory has no host address, and pages of it that nobody writes do not exist.
 * Failures are returned with a text; nothing here is fatal. */
#include "kernels/sim/sim.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int sim_fail(struct kern_device *dev, int code, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(dev->error, sizeof dev->error, fmt, ap);
	va_end(ap);
	return code;
}

/* --- memory --------------------------------------------------------------------------------------------------------------- */

/* Of a descriptor, or (-1) pages that are there once they are written. */
static int mem_add(struct kern_device *dev, enum kern_memory kind, int fd, size_t bytes, struct kern_mem *ret_mem)
{
	int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
	if (p == MAP_FAILED)
		return sim_fail(dev, KERN_ENOMEM, "no memory for %zu bytes: %m", bytes);
	*ret_mem = (struct kern_mem){.dev = {(uintptr_t)p}, .host = kind == KERN_MEM_DEVICE ? NULL : p, .bytes = bytes, .kind = kind, .own = p};
	return KERN_OK;
}

static int mem_new(struct kern_device *dev, enum kern_memory kind, size_t bytes, struct kern_mem *ret_mem)
{
	if (kind != KERN_MEM_SHARED)
		return mem_add(dev, kind, -1, bytes, ret_mem);
	int fd = memfd_create("pdserve-device", MFD_CLOEXEC | MFD_ALLOW_SEALING), rc;
	if (fd < 0 || ftruncate(fd, (off_t)bytes) || fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK))
		rc = sim_fail(dev, KERN_ENOMEM, "no shared memory of %zu bytes: %m", bytes);
	else if (!(rc = mem_add(dev, kind, fd, bytes, ret_mem)))
		ret_mem->fd = fd;
	if (rc && fd >= 0)
		close(fd);
	return rc;
}

static int mem_share(struct kern_device *dev, const struct kern_mem *mem, int *ret_fd)
{
	int fd = mem->fd > 0 ? fcntl(mem->fd, F_DUPFD_CLOEXEC, 0) : -1;
	if (fd < 0)
		return sim_fail(dev, KERN_EINVAL, "memory of %zu bytes cannot be shared", mem->bytes);
	*ret_fd = fd;
	return KERN_OK;
}

static int mem_map(struct kern_device *dev, int fd, size_t bytes, struct kern_mem *ret_mem)
{
	return mem_add(dev, KERN_MEM_SHARED, fd, bytes, ret_mem);
}

static int mem_pin(struct kern_device *dev, void *host, size_t bytes, struct kern_mem *ret_mem)
{
	(void)dev;
	*ret_mem = (struct kern_mem){.dev = {(uintptr_t)host}, .host = host, .bytes = bytes, .kind = KERN_MEM_PINNED};
	return KERN_OK;
}

static void mem_free(struct kern_device *dev, struct kern_mem *mem)
{
	(void)dev;
	if (mem->own)
		munmap(mem->own, mem->bytes);
	if (mem->fd > 0)
		close(mem->fd);
	*mem = (struct kern_mem){0};
}

/* --- device --------------------------------------------------------------------------------------------------------------- */

static void device_close(struct kern_device **devp)
{
	struct kern_device *dev = *devp;
	if (!dev)
		return;
	free(dev->record);
	free(dev);
	*devp = NULL;
}

static int device_open(const struct kern_config *conf, struct kern_device **ret_dev, char *errbuf, size_t errlen)
{
	const struct sim_options *o = conf->options;
	if (!o || !o->tp || !(o->flops > 0) || !(o->bandwidth > 0) || !(o->link_bandwidth > 0) || o->n_eos > sizeof o->eos / sizeof *o->eos) {
		snprintf(errbuf, errlen, "a simulated device needs options, with rates above 0");
		return KERN_EINVAL;
	}
	struct kern_device *dev = calloc(1, sizeof *dev);
	uint64_t *record = calloc(SIM_RECORDS, sizeof *record);      /* pages that nobody writes do not exist */
	if (!dev || !record) {
		snprintf(errbuf, errlen, "no memory for the simulated device");
		free(record);
		free(dev);
		return KERN_ENOMEM;
	}
	*dev = (struct kern_device){.opt = *o, .progressed = conf->progressed, .progressed_arg = conf->progressed_arg, .record = record};
	dev->stream.dev = dev;
	*ret_dev = dev;
	return KERN_OK;
}

static const char *device_numerics(const struct kern_device *dev)
{
	(void)dev;
	return "sim-r1";
}

static const char *device_last_error(const struct kern_device *dev)
{
	return dev->error;
}

static void device_counters(const struct kern_device *dev, struct kern_counters *ret)
{
	*ret = (struct kern_counters){.pulse = dev->pulse, .busy_ns = dev->busy_ns, .steps = dev->steps, .rows = dev->rows,
	                              .kv_faults = dev->kv_faults};
}

/* --- streams -------------------------------------------------------------------------------------------------------------- */

static int stream_new(struct kern_device *dev, struct kern_stream **ret_stream)
{
	*ret_stream = &dev->stream;
	return KERN_OK;
}

static void stream_destroy(struct kern_stream **s)
{
	*s = NULL;
}

static int stream_upload(struct kern_stream *s, kern_ptr dst, const void *src, size_t bytes)
{
	(void)s;
	memcpy((void *)dst.v, src, bytes);
	return KERN_OK;
}

static int stream_download(struct kern_stream *s, void *dst, kern_ptr src, size_t bytes)
{
	(void)s;
	memcpy(dst, (const void *)src.v, bytes);
	return KERN_OK;
}

static int stream_sync(struct kern_stream *s)
{
	sim_clock_end(s->dev);
	return KERN_OK;
}

/* --- weights -------------------------------------------------------------------------------------------------------------- */

static int weight_new(struct kern_device *dev, enum kern_dtype dtype, uint32_t n, uint32_t k, const void *data, size_t row_bytes,
                      struct kern_weight **ret_w)
{
	(void)dtype, (void)data, (void)row_bytes;
	struct kern_weight *w = n && k ? malloc(sizeof *w) : NULL;
	if (!w)
		return sim_fail(dev, n && k ? KERN_ENOMEM : KERN_EINVAL, "no weight of %u rows of %u values", n, k);
	*w = (struct kern_weight){.n = n, .k = k};
	*ret_w = w;
	return KERN_OK;
}

static void weight_destroy(struct kern_device *dev, struct kern_weight **w)
{
	(void)dev;
	free(*w);
	*w = NULL;
}

const struct kern_ops kern_sim_ops = {
	.abi = KERN_ABI, .name = "sim", .ranks_max = 1,
	.open = device_open, .close = device_close,
	.numerics = device_numerics, .last_error = device_last_error, .counters = device_counters,
	.mem_new = mem_new, .mem_share = mem_share, .mem_map = mem_map, .mem_pin = mem_pin, .mem_free = mem_free,
	.stream_new = stream_new, .stream_destroy = stream_destroy,
	.upload = stream_upload, .download = stream_download, .sync = stream_sync,
	.weight_new = weight_new, .weight_destroy = weight_destroy,
	.program_new = sim_program_new, .program_destroy = sim_program_destroy, .run = sim_run,
};
