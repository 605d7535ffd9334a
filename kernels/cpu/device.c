/* device.c - the CPU device: choice of the variant, streams, weights. The calling thread and the
 * crew do all work before the call returns. Errors are returned with a text; none is fatal. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/program.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(offsetof(struct kern_weight, k) == offsetof(struct kern_matrices, k),
               "a weight begins with struct kern_matrices");

enum { ROWS_MAX = 1 << 22 };

int cpu_fail(struct kern_device *dev, int code, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	host_fail(dev, code, fmt, ap);
	va_end(ap);
	return code;
}

/* --- device -------------------------------------------------------------- */

static bool variant_runs(const struct cpu_variant *v)
{
#if defined(__x86_64__)
	if (v == &cpu_variant_avx2)
		return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
		       __builtin_cpu_supports("f16c");
	if (v == &cpu_variant_avx512bf16)
		return variant_runs(&cpu_variant_avx512) && __builtin_cpu_supports("avx512bf16");
	if (v == &cpu_variant_avx512)
		return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
		       __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma") &&
		       __builtin_cpu_supports("f16c");
#endif
	return v != NULL;
}

static const struct cpu_variant *const variants[] = {
/* best first */
#if defined(__x86_64__)
	&cpu_variant_avx512bf16, &cpu_variant_avx512,    &cpu_variant_avx2,
#endif
	&cpu_variant_plain,      &cpu_variant_reference,
};

static const struct cpu_variant *variant_choose(const char *name, char *errbuf, size_t errlen)
{
	bool any = !name || !strcmp(name, "auto");
	for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
		const struct cpu_variant *v = variants[i];
		if (!any && strcmp(name, v->name))
			continue;
		if (variant_runs(v))
			return v;
		if (any)
			continue;
		snprintf(errbuf, errlen, "cpu variant %s needs instructions that this machine lacks", name);
		return NULL;
	}
	snprintf(
		errbuf, errlen,
		"unknown cpu variant %.40s: must be auto, avx512bf16, avx512, avx2, plain or reference",
		name ? name : "");
	return NULL;
}

static void device_close(struct kern_device **devp)
{
	struct kern_device *dev = *devp;
	if (!dev)
		return;
	crew_destroy(&dev->crew);
	pthread_mutex_destroy(&dev->lock);
	free(dev);
	*devp = NULL;
}

static int device_open(const struct kern_config *conf, struct kern_device **ret_dev, char *errbuf,
                       size_t errlen)
{
	const struct cpu_variant *v = variant_choose(conf->variant, errbuf, errlen);
	if (!v)
		return KERN_ENOTSUP;
	if (conf->threads > KERN_THREADS_MAX) {
		snprintf(errbuf, errlen, "cpu device with %u threads, the limit is %d", conf->threads,
		         KERN_THREADS_MAX);
		return KERN_EINVAL;
	}
	if (conf->activations != KERN_F32 && conf->activations != KERN_BF16) {
		snprintf(errbuf, errlen, "cpu device with activations of type %s: must be f32 or bf16",
		         kern_dtype_name(conf->activations));
		return KERN_EINVAL;
	}
	struct kern_device *dev = calloc(1, sizeof *dev);
	if (!dev)
		goto nomem;
	dev->variant = v;
	dev->group = conf->group;
	dev->pipe = conf->pipe;
	dev->progressed = conf->progressed;
	dev->progressed_arg = conf->progressed_arg;
	dev->bf16_activations = conf->activations == KERN_BF16;
	snprintf(dev->numerics, sizeof dev->numerics, "%s%s", v->numerics,
	         dev->bf16_activations ? "-bf16act" : "");
	pthread_mutex_init(&dev->lock, NULL);
	dev->crew = crew_new(conf->threads);
	if (!dev->crew)
		goto nomem;
	*ret_dev = dev;
	return KERN_OK;
nomem:
	device_close(&dev);
	snprintf(errbuf, errlen, "out of memory or threads for the cpu device");
	return KERN_ENOMEM;
}

static const char *device_numerics(const struct kern_device *dev)
{
	return dev->numerics;
}

static void device_counters(const struct kern_device *dev, struct kern_counters *ret)
{
	*ret = (struct kern_counters){.pulse = crew_pulse(dev->crew)};
}

static void device_info(const struct kern_device *dev, struct kern_info *ret)
{
	*ret = (struct kern_info){0};
	snprintf(ret->kernels, sizeof ret->kernels, "%s", dev->variant->name);
}

/* --- streams ------------------------------------------------------------- */

static int stream_new(struct kern_device *dev, struct kern_stream **ret_stream)
{
	struct kern_stream *s = malloc(sizeof *s);
	if (!s)
		return cpu_fail(dev, KERN_ENOMEM, "out of memory for a stream");
	s->dev = dev;
	*ret_stream = s;
	return KERN_OK;
}

static void stream_destroy(struct kern_stream **s)
{
	free(*s);
	*s = NULL;
}

/* Work is complete when its call returns. */
static int stream_sync(struct kern_stream *s)
{
	(void)s;
	return KERN_OK;
}

/* --- weights ------------------------------------------------------------- */

static void weight_destroy(struct kern_device *dev, struct kern_weight **wp)
{
	struct kern_weight *w = *wp;
	if (!w)
		return;
	pthread_mutex_lock(&dev->lock);
	cpu_arena_release(&dev->arena, w->chunk);
	pthread_mutex_unlock(&dev->lock);
	free(w);
	*wp = NULL;
}

static int weight_new(struct kern_device *dev, enum kern_dtype dtype, uint32_t count, uint32_t n,
                      uint32_t k, struct kern_weight **ret_w)
{
	int rc = kern_weight_check(dtype, count, n, k, dev->host.error, sizeof dev->host.error);
	if (!rc && (k > CPU_MAX_DIM || n > ROWS_MAX))
		rc = cpu_fail(dev, KERN_EINVAL, "weight of %u rows of %u values, limits are %d and %d", n,
		              k, ROWS_MAX, CPU_MAX_DIM);
	if (rc)
		return rc;
	struct kern_weight *w = malloc(sizeof *w);
	if (!w)
		return cpu_fail(dev, KERN_ENOMEM, "out of memory for a weight");
	*w = (struct kern_weight){.dtype = dtype,
	                          .count = count,
	                          .n = n,
	                          .k = k,
	                          .packed = dev->variant->packed,
	                          .panel_bytes = panel_bytes(dtype, k)};
	w->stride = (cpu_weight_bytes(w) + CPU_ALIGN - 1) / CPU_ALIGN * CPU_ALIGN;
	pthread_mutex_lock(&dev->lock);
	w->data = cpu_arena_alloc(&dev->arena, count * w->stride, &w->chunk);
	pthread_mutex_unlock(&dev->lock);
	if (!w->data) {
		free(w);
		return cpu_fail(dev, KERN_ENOMEM,
		                "out of memory for a weight of %u matrices of %u rows of %u values of type "
		                "%s",
		                count, n, k, kern_dtype_name(dtype));
	}
	*ret_w = w;
	return KERN_OK;
}

static int weight_load(struct kern_device *dev, struct kern_weight *w, uint32_t i, const void *data,
                       size_t row_bytes)
{
	int rc = kern_load_check(w->dtype, w->count, w->k, i, data, row_bytes, dev->host.error,
	                         sizeof dev->host.error);
	if (rc)
		return rc;
	struct kern_weight one = cpu_matrix(w, i);
	pthread_mutex_lock(&dev->lock);
	cpu_weight_pack(&one, data, row_bytes ? row_bytes : kern_dtype_bytes(w->dtype, w->k),
	                dev->crew);
	pthread_mutex_unlock(&dev->lock);
	return KERN_OK;
}

static size_t program_bytes(const struct kern_config *conf, const struct kern_limits *limits,
                            const struct kern_shape *shape)
{
	char text[200];
	const struct cpu_variant *v = variant_choose(conf->variant, text, sizeof text);
	unsigned threads = conf->threads ? conf->threads : 1;
	return v ? cpu_program_bytes(v, threads, conf->activations == KERN_BF16, limits, shape) : 0;
}

const struct kern_ops kern_cpu_ops = {
	.abi = KERN_ABI,
	.name = "cpu",
	.ranks_max = 64,
	.stages_max = 64,
	.open = device_open,
	.close = device_close,
	.numerics = device_numerics,
	.last_error = host_last_error,
	.counters = device_counters,
	.info = device_info,
	.mem_new = cpu_mem_new,
	.mem_share = host_mem_share,
	.mem_map = host_mem_map,
	.mem_pin = host_mem_pin,
	.mem_free = host_mem_free,
	.stream_new = stream_new,
	.stream_destroy = stream_destroy,
	.upload = host_upload,
	.download = host_download,
	.sync = stream_sync,
	.sync_previous = stream_sync,
	.weight_new = weight_new,
	.weight_load = weight_load,
	.weight_destroy = weight_destroy,
	.program_bytes = program_bytes,
	.program_new = cpu_program_new,
	.program_destroy = cpu_program_destroy,
	.run = cpu_run,
};
