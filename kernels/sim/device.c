/* device.c - the simulated device: opening, streams, weights (sizes only). A replay (program.c)
 * runs in the calling thread and is complete when it returns, except for its time: progress words
 * are stored, and `sync` returns, when the modelled device would be done. Memory uses no pages
 * until it is written. Errors are returned with a text; none is fatal. */
#include "kernels/sim/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(offsetof(struct kern_weight, k) == offsetof(struct kern_matrices, k),
               "a weight begins with struct kern_matrices");

int sim_fail(struct kern_device *dev, int code, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	host_fail(dev, code, fmt, ap);
	va_end(ap);
	return code;
}

/* --- device -------------------------------------------------------------- */

static void device_close(struct kern_device **devp)
{
	struct kern_device *dev = *devp;
	if (!dev)
		return;
	free(dev->record);
	free(dev);
	*devp = NULL;
}

static int device_open(const struct kern_config *conf, struct kern_device **ret_dev, char *errbuf,
                       size_t errlen)
{
	const struct sim_options *o = conf->options;
	if (!o || !o->tp || !(o->flops > 0) || !(o->bandwidth > 0) || !(o->link_bandwidth > 0) ||
	    o->n_eos > sizeof o->eos / sizeof *o->eos) {
		snprintf(errbuf, errlen, "a simulated device needs options, with rates above 0");
		return KERN_EINVAL;
	}
	if (conf->pipe.stages > 1) {
		snprintf(errbuf, errlen, "a simulated device as stage %u of %u: it has no pipelines",
		         conf->pipe.stage, conf->pipe.stages);
		return KERN_ENOTSUP;
	}
	struct kern_device *dev = calloc(1, sizeof *dev);
	/* untouched pages use no memory */
	uint64_t *record = calloc(SIM_RECORDS, sizeof *record);
	if (!dev || !record) {
		snprintf(errbuf, errlen, "out of memory for the simulated device");
		free(record);
		free(dev);
		return KERN_ENOMEM;
	}
	*dev = (struct kern_device){.host = {.untouched = 1},
	                            .opt = *o,
	                            .progressed = conf->progressed,
	                            .progressed_arg = conf->progressed_arg,
	                            .record = record};
	dev->stream.dev = dev;
	*ret_dev = dev;
	return KERN_OK;
}

static const char *device_numerics(const struct kern_device *dev)
{
	(void)dev;
	return "sim-r1";
}

static void device_counters(const struct kern_device *dev, struct kern_counters *ret)
{
	*ret = (struct kern_counters){.pulse = dev->pulse,
	                              .busy_ns = dev->busy_ns,
	                              .steps = dev->steps,
	                              .rows = dev->rows,
	                              .kv_faults = dev->kv_faults};
}

/* --- streams ------------------------------------------------------------- */

static int stream_new(struct kern_device *dev, struct kern_stream **ret_stream)
{
	*ret_stream = &dev->stream;
	return KERN_OK;
}

static void stream_destroy(struct kern_stream **s)
{
	*s = NULL;
}

static int stream_sync(struct kern_stream *s)
{
	sim_clock_end(s->dev);
	return KERN_OK;
}

static int stream_sync_previous(struct kern_stream *s)
{
	sim_clock_end_previous(s->dev);
	return KERN_OK;
}

/* --- weights ------------------------------------------------------------- */

static int weight_new(struct kern_device *dev, enum kern_dtype dtype, uint32_t count, uint32_t n,
                      uint32_t k, struct kern_weight **ret_w)
{
	int rc = kern_weight_check(dtype, count, n, k, dev->host.error, sizeof dev->host.error);
	struct kern_weight *w = rc ? NULL : malloc(sizeof *w);
	if (!w)
		return rc ? rc : sim_fail(dev, KERN_ENOMEM, "out of memory for a weight");
	*w = (struct kern_weight){dtype, count, n, k};
	*ret_w = w;
	return KERN_OK;
}

static int weight_load(struct kern_device *dev, struct kern_weight *w, uint32_t i, const void *data,
                       size_t row_bytes)
{
	(void)dev, (void)w, (void)i, (void)data, (void)row_bytes;
	return KERN_OK;
}

static void weight_destroy(struct kern_device *dev, struct kern_weight **w)
{
	(void)dev;
	free(*w);
	*w = NULL;
}

const struct kern_ops kern_sim_ops = {
	.abi = KERN_ABI,
	.name = "sim",
	.ranks_max = 1,
	.stages_max = 1,
	.modelled = 1,
	.queued = 1,
	.open = device_open,
	.close = device_close,
	.numerics = device_numerics,
	.last_error = host_last_error,
	.counters = device_counters,
	.info = host_info,
	.mem_new = host_mem_new,
	.mem_share = host_mem_share,
	.mem_map = host_mem_map,
	.mem_pin = host_mem_pin,
	.mem_free = host_mem_free,
	.stream_new = stream_new,
	.stream_destroy = stream_destroy,
	.upload = host_upload,
	.download = host_download,
	.sync = stream_sync,
	.sync_previous = stream_sync_previous,
	.weight_new = weight_new,
	.weight_load = weight_load,
	.weight_destroy = weight_destroy,
	.program_bytes = sim_program_bytes,
	.program_new = sim_program_new,
	.program_destroy = sim_program_destroy,
	.run = sim_run,
};
