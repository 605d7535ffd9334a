/* cpu.h - what the files of the CPU backend share: the device, weights, and the table that a variant fills. */
#ifndef CPU_CPU_H
#define CPU_CPU_H

#include "kernels/cpu/pool.h"
#include "kernels/kernels.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>

enum {
	CPU_MAX_HEAD_DIM = 640,    /* DeepSeek's latent and its rotated part are 576 */
	CPU_MAX_DIM = 1 << 20,
	CPU_SCRATCH_ACT = 64,      /* slots below belong to the workers; quantised and rounded activations; */
	CPU_SCRATCH_SHARED = 65,   /* what else all workers share */
	CPU_SCRATCH_GATHERED = 66, /* rows that a product takes from here and there */
	CPU_SCRATCH_SLOTS = 67,
	CPU_ROPE_CACHES = 2        /* a model may have two tables, layers taking turns */
};

/* A matrix (n, k). Plain rows in the file's format, or panels (see pack.c) when `packed`. */
struct kern_weight {
	enum kern_dtype dtype;
	uint32_t n, k;
	bool packed;
	size_t panel_bytes;
	unsigned char *data;
	struct cpu_chunk *chunk;   /* that holds data */
};

struct cpu_attention {
	float *out;
	const float *q;
	size_t ldq;
	uint32_t heads;
	const struct kern_kv_layer *kv;
	float scale;
	uint32_t window;
	const float *sinks;        /* (heads) or NULL */
	const struct kern_batch *batch;
};

/* One implementation of the operations that do arithmetic. Row functions work on one row; the others split the work themselves.
 * They return 0 or KERN_ENOMEM. */
struct cpu_variant {
	const char *name, *numerics;
	bool packed;               /* wants packed weights */
	bool vdpbf16ps;            /* may use that instruction */
	void (*rms_norm)(float *y, float *x, const float *a, const float *w, uint32_t dim, float eps);   /* a: NULL or added to x */
	void (*rope)(float *x, uint32_t heads, uint32_t head_dim, const struct kern_rope *rope, const float *cos_sin);
	void (*act_mul)(float *y, const float *gate, const float *up, enum kern_act act, uint32_t dim);
	int (*matmul)(struct kern_device *dev, const float *x, uint32_t rows, const struct kern_product *p, uint32_t products);
	int (*attention)(struct kern_device *dev, const struct cpu_attention *a);
};

extern const struct cpu_variant cpu_variant_reference, cpu_variant_plain;
#if defined(__x86_64__)
extern const struct cpu_variant cpu_variant_avx2, cpu_variant_avx512, cpu_variant_avx512bf16;
#endif

struct cpu_scratch { void *mem; size_t bytes; };

/* (cos, sin) of the rows of a rope call: all layers of a step ask for the same ones */
struct cpu_rope_cache {
	uint32_t rows, dims;
	float scale;
	uint32_t *positions;       /* (max_rows) */
	float *inv_freq;           /* (dims / 2) */
	float *cos_sin;            /* (rows, 2, dims / 2) */
	size_t positions_count, inv_freq_count, cos_sin_count;
};

struct kern_device {
	const struct cpu_variant *variant;
	struct pool *pool;
	uint32_t max_rows;
	bool bf16_activations;     /* kern_config.activations */
	char numerics[32];
	pthread_mutex_t lock;      /* one operation at a time: pool and scratch are shared by the streams */
	struct cpu_scratch scratch[CPU_SCRATCH_SLOTS];
	struct cpu_rope_cache rope[CPU_ROPE_CACHES];
	unsigned rope_oldest;
	struct cpu_chunk *arena;   /* weights; guarded by lock */
	char error[256];
};

struct kern_stream { struct kern_device *dev; };

int cpu_fail(struct kern_device *dev, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* zeroed, 64-byte aligned (2 MiB and huge pages advised when large); free() frees it */
void *cpu_alloc(size_t bytes);
/* The slot's memory, at least `bytes`, contents undefined; NULL when there is none. Not from inside pool_run. */
void *cpu_scratch(struct kern_device *dev, unsigned slot, size_t bytes);
int cpu_scratch_workers(struct kern_device *dev, size_t bytes);   /* the same for all workers' slots */

/* `bytes` of zeroed memory in one of the arena's chunks, which counts its users; NULL when there is none */
void *cpu_arena_alloc(struct cpu_chunk **arena, size_t bytes, struct cpu_chunk **ret_chunk);
void cpu_arena_release(struct cpu_chunk **arena, struct cpu_chunk *chunk);

float cpu_f16_to_f32(uint16_t h);
static inline float cpu_bf16_to_f32(uint16_t h)
{
	union { uint32_t u; float f; } v = { (uint32_t)h << 16 };
	return v.f;
}

static inline uint16_t cpu_f32_to_bf16(float f)        /* nearest, ties to even; NaN stays NaN */
{
	union { float f; uint32_t u; } v = { f };
	uint32_t rounded = (v.u + 0x7fff + (v.u >> 16 & 1)) >> 16, nan = v.u >> 16 | 0x40;
	return (uint16_t)((v.u & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

float cpu_f8_to_f32(uint8_t c);

/* The next two without a branch, for loops over a row: what is too small for the type's exponents is rounded by adding a number whose last
 * place is the type's smallest step. The choice is by masks, for a compiler makes a branch of any other. */
static inline uint16_t cpu_f32_to_f16(float f)         /* nearest, ties to even; NaN stays NaN */
{
	union { float f; uint32_t u; } v = { f }, sum = { fabsf(f) + 0.5f };
	uint32_t a = v.u & 0x7fffffff, normal = ((a + 0xfff + (a >> 13 & 1)) >> 13) - (112 << 10), small = sum.u - 0x3f000000;
	uint32_t is_small = -(uint32_t)(a < 0x38800000), is_large = -(uint32_t)(a >= 0x477ff000), is_nan = -(uint32_t)(a > 0x7f800000);
	uint32_t c = (small & is_small) | (normal & ~is_small);
	c = (0x7c00 & is_large) | (c & ~is_large);     /* rounds to 65536 or more */
	return (uint16_t)((v.u >> 16 & 0x8000) | c | (0x200 & is_nan));
}

static inline uint8_t cpu_f32_to_f8(float f)           /* nearest, ties to even; beyond 448: 448; f is no NaN */
{
	union { float f; uint32_t u; } v = { f }, sum = { fabsf(f) + 0x1p14f };
	uint32_t a = v.u & 0x7fffffff, normal = ((a + 0x7ffff + (a >> 20 & 1)) >> 20) - (120 << 3), small = sum.u - 0x46800000;
	uint32_t is_small = -(uint32_t)(a < 0x3c800000), is_large = -(uint32_t)(a >= 0x43e80000);
	uint32_t c = (small & is_small) | (normal & ~is_small);
	return (uint8_t)((v.u >> 24 & 0x80) | (0x7e & is_large) | (c & ~is_large));
}

/* count values (whole blocks) of a row in the file's format, to float; KV types: without their scale */
void cpu_dequantise(float *out, enum kern_dtype dtype, const void *src, uint32_t count);
/* MXFP4: of four bits, twice the value plus 16; of an exponent, half of its scale as bfloat16. */
extern const unsigned char cpu_mxfp4_codes[16];
uint16_t cpu_mxfp4_scale(unsigned char e);
/* group j's (0 .. 7) 6-bit scale and offset from the 12 bytes of a Q4_K or Q5_K block */
void cpu_k_scales(const unsigned char *s, unsigned j, unsigned *ret_scale, unsigned *ret_offset);
size_t cpu_weight_bytes(const struct kern_weight *w);
void cpu_weight_pack(struct kern_weight *w, const void *src, struct pool *pool);     /* into w->data, zeroed */
void cpu_weight_row(const struct kern_weight *w, uint32_t row, float *out);

static inline unsigned char *cpu_kv_plane(const struct kern_kv_layer *kv, uint32_t block, uint32_t head, int is_v)
{
	size_t plane = kv->latent ? head : 2 * (size_t)head + (size_t)is_v;
	return (unsigned char *)kv->base + block * kv->block_stride_bytes + plane * kern_kv_plane_bytes(kv);
}

/* of a plane's tokens, where the type has scales */
static inline float *cpu_kv_scales(const struct kern_kv_layer *kv, const unsigned char *plane)
{
	return (float *)(void *)(uintptr_t)(plane + kern_dtype_bytes(kv->dtype, kv->head_dim) * kv->block_tokens);
}

int cpu_kv_check(struct kern_device *dev, const struct kern_kv_layer *kv);     /* KERN_EINVAL and a text if the layer cannot be */

/* what attention gives for a head */
static inline uint32_t cpu_kv_out_dim(const struct kern_kv_layer *kv)
{
	return kv->latent ? kv->latent : kv->head_dim;
}

/* operations that are the same for all variants (ops.c, kv.c, experts.c) */
int cpu_op_embed(struct kern_stream *s, float *y, const struct kern_weight *w, const uint32_t *tokens, uint32_t rows);
int cpu_op_rms_norm(struct kern_stream *s, float *y, const float *x, const float *w, uint32_t rows, uint32_t dim, float eps);
int cpu_op_add_rms_norm(struct kern_stream *s, float *y, float *x, const float *a, const float *w, uint32_t rows, uint32_t dim,
                        float eps);
int cpu_op_head_norm(struct kern_stream *s, float *x, size_t ldx, uint32_t heads, uint32_t head_dim, const float *w, uint32_t rows, float eps);
int cpu_op_matmul(struct kern_stream *s, const float *x, uint32_t rows, const struct kern_product *p, uint32_t products);
int cpu_op_rope(struct kern_stream *s, float *x, size_t ldx, uint32_t heads, uint32_t head_dim, const struct kern_rope *rope,
                const uint32_t *positions, uint32_t rows);
int cpu_op_kv_write(struct kern_stream *s, const struct kern_kv_layer *kv, const float *k, const float *v, size_t ld,
                    const struct kern_batch *batch);
int cpu_op_attention(struct kern_stream *s, float *out, const float *q, size_t ldq, uint32_t heads, const struct kern_kv_layer *kv,
                     float scale, uint32_t window, const float *sinks, const struct kern_batch *batch);
int cpu_op_act_mul(struct kern_stream *s, float *y, const float *gate, const float *up, size_t ld, enum kern_act act, uint32_t rows,
                   uint32_t dim);
int cpu_op_gather_rows(struct kern_stream *s, float *y, const float *x, const uint32_t *index, uint32_t count, uint32_t dim);
int cpu_op_route(struct kern_stream *s, uint32_t *ids, float *weights, const float *logits, const struct kern_router *router, uint32_t rows);
int cpu_op_experts_act(struct kern_stream *s, float *y, const float *x, const uint32_t *ids, uint32_t used, const struct kern_experts *experts,
                       enum kern_act act, uint32_t rows);
int cpu_op_experts_down(struct kern_stream *s, float *y, size_t ldy, const float *x, const uint32_t *ids, const float *weights, uint32_t used,
                        const struct kern_experts *experts, int add, uint32_t rows);
int cpu_op_heads_matmul(struct kern_stream *s, float *y, size_t ldy, const float *x, size_t ldx, struct kern_weight *const *w, uint32_t heads,
                        uint32_t tail, uint32_t rows);
int cpu_op_scale(struct kern_stream *s, float *x, float factor, size_t count);

#endif
