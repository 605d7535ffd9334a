/* device.c - the simulated device: opening, memory, streams, weights that are sizes only. Operations run in the calling thread and are done
 * when they return, but for the time that they take: `signal` and `sync` sleep until the modelled device would be there.
 * Failures are returned with a text; nothing here is fatal. */
#include "kernels/sim/sim.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { ALIGN = 64 };

int sim_fail(struct kern_device *dev, int code, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(dev->error, sizeof dev->error, fmt, ap);
	va_end(ap);
	return code;
}

/* --- device --------------------------------------------------------------------------------------------------------------- */

static int is_amount(double v)
{
	return isfinite(v) && v >= 0;
}

static int check_model(const struct kern_sim *m)
{
	return m->layers && m->vocab > SIM_PEAKS && m->tp && m->n_eos <= sizeof m->eos / sizeof *m->eos && is_amount(m->layer_flops) &&
	       is_amount(m->layer_bytes) && is_amount(m->attention_flops) && is_amount(m->kv_bytes) && is_amount(m->exchange_bytes) && m->flops > 0 &&
	       m->bandwidth > 0 && m->link_bandwidth > 0 && is_amount(m->launch_us) && is_amount(m->exchange_us) && is_amount(m->step_us) &&
	       is_amount(m->time_scale);
}

static void device_close(struct kern_device **devp)
{
	struct kern_device *dev = *devp;
	if (!dev)
		return;
	for (unsigned i = 0; i < SIM_REGIONS; i++)
		sim_records_free(&dev->region[i]);
	free(dev->tables.hash);
	free(dev->logits.peak);
	free(dev);
	*devp = NULL;
}

static int device_open(const struct kern_config *conf, struct kern_device **ret_dev, char *errbuf, size_t errlen)
{
	if (!conf->sim || !check_model(conf->sim) || !conf->max_rows) {
		snprintf(errbuf, errlen, "a simulated device needs a model, device figures above 0, and at least one row");
		return KERN_EINVAL;
	}
	struct kern_device *dev = calloc(1, sizeof *dev);
	if (!dev) {
		snprintf(errbuf, errlen, "no memory for the simulated device");
		return KERN_ENOMEM;
	}
	dev->sim = *conf->sim;
	dev->max_rows = conf->max_rows;
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

static int device_is_synchronous(const struct kern_device *dev)
{
	(void)dev;
	return 1;
}

static void device_counters(const struct kern_device *dev, struct kern_counters *ret)
{
	*ret = (struct kern_counters){
		.busy_ns = atomic_load_explicit(&dev->busy_ns, memory_order_relaxed),
		.steps = atomic_load_explicit(&dev->steps, memory_order_relaxed),
		.rows = atomic_load_explicit(&dev->rows, memory_order_relaxed),
		.kv_faults = atomic_load_explicit(&dev->kv_faults, memory_order_relaxed),
	};
}

/* --- memory --------------------------------------------------------------------------------------------------------------- */

/* Zeroed by the system, page by page as it is used; the start of the allocation lies before what is returned. */
static int mem_new(struct kern_device *dev, size_t bytes, void **ret_ptr)
{
	unsigned char *raw = bytes > SIZE_MAX - 2 * ALIGN ? NULL : calloc(1, bytes + 2 * ALIGN);
	if (!raw)
		return sim_fail(dev, KERN_ENOMEM, "no memory for %zu bytes", bytes);
	unsigned char *p = raw + sizeof raw;
	p += (ALIGN - (uintptr_t)p % ALIGN) % ALIGN;
	memcpy(p - sizeof raw, &raw, sizeof raw);
	*ret_ptr = p;
	return KERN_OK;
}

static void mem_free(struct kern_device *dev, void *ptr)
{
	(void)dev;
	if (!ptr)
		return;
	void *raw;
	memcpy(&raw, (unsigned char *)ptr - sizeof raw, sizeof raw);
	free(raw);
}

static int mem_host_register(struct kern_device *dev, void *host, size_t bytes, void **ret_ptr)
{
	for (unsigned i = 0; i < SIM_REGIONS; i++)
		if (!dev->region[i].host) {
			dev->region[i] = (struct sim_region){.host = host, .bytes = bytes};
			*ret_ptr = host;
			return KERN_OK;
		}
	return sim_fail(dev, KERN_ENOMEM, "%d pieces of memory are registered already", SIM_REGIONS);
}

static void mem_host_unregister(struct kern_device *dev, void *host)
{
	for (unsigned i = 0; i < SIM_REGIONS; i++)
		if (dev->region[i].host == host)
			sim_records_free(&dev->region[i]);
}

/* --- streams -------------------------------------------------------------------------------------------------------------- */

static int stream_new(struct kern_device *dev, struct kern_stream **ret_stream)
{
	struct kern_stream *s = malloc(sizeof *s);
	if (!s)
		return sim_fail(dev, KERN_ENOMEM, "no memory for a stream");
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
	sim_clock_end(s->dev);
	return KERN_OK;
}

static int stream_signal(struct kern_stream *s, uint64_t *word, uint64_t value)
{
	sim_clock_wait(s->dev);
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
	return KERN_OK;
}

/* --- weights -------------------------------------------------------------------------------------------------------------- */

static int weight_new(struct kern_device *dev, enum kern_dtype dtype, uint32_t n, uint32_t k, const void *data,
                      struct kern_weight **ret_w, int *ret_borrows)
{
	(void)dtype, (void)data;
	if (!n || k < sizeof(uint64_t) / sizeof(float))
		return sim_fail(dev, KERN_EINVAL, "weight of %u rows of %u values: a row of activations carries 8 bytes", n, k);
	struct kern_weight *w = malloc(sizeof *w);
	if (!w)
		return sim_fail(dev, KERN_ENOMEM, "no memory for a weight");
	*w = (struct kern_weight){.n = n, .k = k};
	*ret_w = w;
	*ret_borrows = 0;
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
	.open = device_open,
	.close = device_close,
	.numerics = device_numerics,
	.last_error = device_last_error,
	.is_synchronous = device_is_synchronous,
	.counters = device_counters,
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
	.embed = sim_op_embed,
	.rms_norm = sim_op_rms_norm,
	.add_rms_norm = sim_op_add_rms_norm,
	.head_norm = sim_op_head_norm,
	.matmul = sim_op_matmul,
	.rope = sim_op_rope,
	.kv_write = sim_op_kv_write,
	.attention = sim_op_attention,
	.act_mul = sim_op_act_mul,
	.gather_rows = sim_op_gather_rows,
	.route = sim_op_route,
	.experts_act = sim_op_experts_act,
	.experts_down = sim_op_experts_down,
	.heads_matmul = sim_op_heads_matmul,
	.scale = sim_op_scale,
};
