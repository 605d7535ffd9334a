/* device.c - the CPU device: choice of the variant, memory, streams, weights. Streams run in the calling thread, so every
 * operation is done when it returns. Failures are returned with a text; nothing here is fatal. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/panel.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20, MAX_THREADS = 64 };

int cpu_fail(struct kern_device *dev, int code, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(dev->error, sizeof dev->error, fmt, ap);
	va_end(ap);
	return code;
}

void *cpu_alloc(size_t bytes)
{
	size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : 64;
	if (bytes > SIZE_MAX - align)
		return NULL;
	size_t size = (bytes + align - 1) / align * align;
	void *p = aligned_alloc(align, size ? size : align);
	if (!p)
		return NULL;
	if (align == HUGE_PAGE)
		madvise(p, size, MADV_HUGEPAGE);       /* refused on some kernels: slower, not wrong */
	return memset(p, 0, size ? size : align);
}

void *cpu_scratch(struct kern_device *dev, unsigned slot, size_t bytes)
{
	struct cpu_scratch *s = &dev->scratch[slot];
	if (bytes <= s->bytes && s->mem)
		return s->mem;
	free(s->mem);
	bytes += bytes / 4;
	s->mem = cpu_alloc(bytes);
	s->bytes = s->mem ? bytes : 0;
	return s->mem;
}

int cpu_scratch_workers(struct kern_device *dev, size_t bytes)
{
	for (unsigned i = 0; i < pool_threads(dev->pool); i++)
		if (!cpu_scratch(dev, i, bytes))
			return KERN_ENOMEM;
	return KERN_OK;
}

/* --- device ------------------------------------------------------------------------------------------------------------ */

static bool variant_runs(const struct cpu_variant *v)
{
#if defined(__x86_64__)
	if (v == &cpu_variant_avx2)
		return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
	if (v == &cpu_variant_avx512bf16)
		return variant_runs(&cpu_variant_avx512) && __builtin_cpu_supports("avx512bf16");
	if (v == &cpu_variant_avx512)
		return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
		       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma") &&
		       __builtin_cpu_supports("f16c");
#endif
	return v != NULL;
}

static const struct cpu_variant *const variants[] = {      /* best first */
#if defined(__x86_64__)
	&cpu_variant_avx512bf16, &cpu_variant_avx512, &cpu_variant_avx2,
#endif
	&cpu_variant_plain, &cpu_variant_reference,
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
	snprintf(errbuf, errlen, "unknown cpu variant %.40s: must be auto, avx512bf16, avx512, avx2, plain or reference", name ? name : "");
	return NULL;
}

static unsigned threads_default(void)
{
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
	return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (unsigned)n;
}

static void device_close(struct kern_device **devp)
{
	struct kern_device *dev = *devp;
	if (!dev)
		return;
	pool_destroy(&dev->pool);
	for (unsigned i = 0; i < CPU_SCRATCH_SLOTS; i++)
		free(dev->scratch[i].mem);
	for (unsigned i = 0; i < CPU_ROPE_CACHES; i++) {
		free(dev->rope[i].positions);
		free(dev->rope[i].inv_freq);
		free(dev->rope[i].cos_sin);
	}
	pthread_mutex_destroy(&dev->lock);
	free(dev);
	*devp = NULL;
}

static int device_open(const struct kern_config *conf, struct kern_device **ret_dev, char *errbuf, size_t errlen)
{
	const struct cpu_variant *v = variant_choose(conf->variant, errbuf, errlen);
	if (!v)
		return KERN_ENOTSUP;
	if (conf->threads > MAX_THREADS || !conf->max_rows) {
		snprintf(errbuf, errlen, "cpu device with %u threads (at most %d) and %u rows (at least 1)", conf->threads, MAX_THREADS,
		         conf->max_rows);
		return KERN_EINVAL;
	}
	if (conf->activations != KERN_F32 && conf->activations != KERN_BF16) {
		snprintf(errbuf, errlen, "cpu device with activations of type %s: must be f32 or bf16", kern_dtype_name(conf->activations));
		return KERN_EINVAL;
	}
	struct kern_device *dev = calloc(1, sizeof *dev);
	if (!dev)
		goto nomem;
	dev->variant = v;
	dev->max_rows = conf->max_rows;
	dev->bf16_activations = conf->activations == KERN_BF16;
	snprintf(dev->numerics, sizeof dev->numerics, "%s%s", v->numerics, dev->bf16_activations ? "-bf16act" : "");
	pthread_mutex_init(&dev->lock, NULL);
	dev->pool = pool_new(conf->threads ? conf->threads : threads_default());
	if (!dev->pool)
		goto nomem;
	*ret_dev = dev;
	return KERN_OK;
nomem:
	device_close(&dev);
	snprintf(errbuf, errlen, "no memory or threads for the cpu device");
	return KERN_ENOMEM;
}

static const char *device_numerics(const struct kern_device *dev)
{
	return dev->numerics;
}

static const char *device_last_error(const struct kern_device *dev)
{
	return dev->error;
}

static int device_is_synchronous(const struct kern_device *dev)
{
	(void)dev;
	return 1;
}

/* --- memory and streams --------------------------------------------------------------------------------------------------- */

static int mem_new(struct kern_device *dev, size_t bytes, void **ret_ptr)
{
	void *p = cpu_alloc(bytes);
	if (!p)
		return cpu_fail(dev, KERN_ENOMEM, "no memory for %zu bytes", bytes);
	*ret_ptr = p;
	return KERN_OK;
}

static void mem_free(struct kern_device *dev, void *ptr)
{
	(void)dev;
	free(ptr);
}

static int mem_host_register(struct kern_device *dev, void *host, size_t bytes, void **ret_ptr)
{
	(void)dev, (void)bytes;
	*ret_ptr = host;
	return KERN_OK;
}

static void mem_host_unregister(struct kern_device *dev, void *host)
{
	(void)dev, (void)host;
}

static int stream_new(struct kern_device *dev, struct kern_stream **ret_stream)
{
	struct kern_stream *s = malloc(sizeof *s);
	if (!s)
		return cpu_fail(dev, KERN_ENOMEM, "no memory for a stream");
	s->dev = dev;
	*ret_stream = s;
	return KERN_OK;
}

static void stream_destroy(struct kern_stream **s)
{
	free(*s);
	*s = NULL;
}

static int stream_copy(struct kern_stream *s, void *dst, const void *src, size_t bytes)
{
	(void)s;
	memcpy(dst, src, bytes);
	return KERN_OK;
}

static int stream_sync(struct kern_stream *s)
{
	(void)s;
	return KERN_OK;
}

static int stream_signal(struct kern_stream *s, uint64_t *word, uint64_t value)
{
	(void)s;
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
	return KERN_OK;
}

/* --- weights --------------------------------------------------------------------------------------------------------------- */

static int weight_check(struct kern_device *dev, enum kern_dtype dtype, uint32_t n, uint32_t k)
{
	if ((unsigned)dtype >= KERN_WEIGHT_DTYPES)
		return cpu_fail(dev, KERN_EINVAL, "weight of type %s (%u): no type of weights", kern_dtype_name(dtype), (unsigned)dtype);
	if (!n || !k || k > CPU_MAX_DIM || n > 1u << 28 || !kern_dtype_bytes(dtype, k))
		return cpu_fail(dev, KERN_EINVAL, "weight of %u rows of %u values does not fit type %s", n, k, kern_dtype_name(dtype));
	return KERN_OK;
}

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

static int weight_new(struct kern_device *dev, enum kern_dtype dtype, uint32_t n, uint32_t k, const void *data,
                      struct kern_weight **ret_w, int *ret_borrows)
{
	int rc = weight_check(dev, dtype, n, k);
	if (rc)
		return rc;
	struct kern_weight *w = malloc(sizeof *w);
	if (!w)
		return cpu_fail(dev, KERN_ENOMEM, "no memory for a weight");
	*w = (struct kern_weight){ .dtype = dtype, .n = n, .k = k, .packed = dev->variant->packed, .panel_bytes = panel_bytes(dtype, k) };
	pthread_mutex_lock(&dev->lock);
	w->data = cpu_arena_alloc(&dev->arena, cpu_weight_bytes(w), &w->chunk);
	pthread_mutex_unlock(&dev->lock);
	if (!w->data) {
		free(w);
		return cpu_fail(dev, KERN_ENOMEM, "no memory for a weight of %u rows of %u values of type %s", n, k, kern_dtype_name(dtype));
	}
	pthread_mutex_lock(&dev->lock);
	cpu_weight_pack(w, data, dev->pool);
	pthread_mutex_unlock(&dev->lock);
	*ret_w = w;
	*ret_borrows = 0;
	return KERN_OK;
}

const struct kern_ops kern_cpu_ops = {
	.abi = KERN_ABI,
	.name = "cpu",
	.open = device_open,
	.close = device_close,
	.numerics = device_numerics,
	.last_error = device_last_error,
	.is_synchronous = device_is_synchronous,
	.alloc = mem_new,
	.free = mem_free,
	.host_register = mem_host_register,
	.host_unregister = mem_host_unregister,
	.stream_new = stream_new,
	.stream_destroy = stream_destroy,
	.upload = stream_copy,
	.download = stream_copy,
	.sync = stream_sync,
	.signal = stream_signal,
	.weight_new = weight_new,
	.weight_destroy = weight_destroy,
	.embed = cpu_op_embed,
	.rms_norm = cpu_op_rms_norm,
	.add_rms_norm = cpu_op_add_rms_norm,
	.head_norm = cpu_op_head_norm,
	.matmul = cpu_op_matmul,
	.rope = cpu_op_rope,
	.kv_write = cpu_op_kv_write,
	.attention = cpu_op_attention,
	.act_mul = cpu_op_act_mul,
	.gather_rows = cpu_op_gather_rows,
	.route = cpu_op_route,
	.experts_act = cpu_op_experts_act,
	.experts_down = cpu_op_experts_down,
	.heads_matmul = cpu_op_heads_matmul,
	.scale = cpu_op_scale,
};
