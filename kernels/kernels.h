/* kernels.h - the one table of device operations, and nothing of pdserve above it.
 *
 * A backend (kernels/cpu, kernels/cuda, ...) fills a `struct kern_ops`. The engine calls only through that table.
 *
 * Rules that every backend keeps:
 *  - Pointers named *_dev or typed as plain data below are device pointers. On the CPU device and host memory are the same;
 *    the caller never assumes that. `upload`, `download` are the only ways across, except for memory registered
 *    with `host_register` (KV pool, progress board), which device and host both address.
 *  - An operation may return before the work is done; operations of one stream run in order; `sync` is the one wait.
 *    A host buffer given to `upload` may be reused only after `sync`.
 *  - Return 0 or a negative KERN_E*; the text of the latest error of a device is `last_error`.
 *    An error of a launch may be reported by a later call on the stream, at the latest by `sync`.
 *  - Every operation computes each output row from that row's inputs alone, in an order of additions that depends on neither
 *    the number of rows, the place of the row in the batch, nor the number of threads (invariant I8).
 *  - Activations are float32, row-major, dense unless a leading dimension is given.
 *
 * Layouts: shapes are written (rows, columns), the last index is contiguous. */
#ifndef KERNELS_H
#define KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define KERN_ABI 6u                /* raised when a struct or a signature below changes */

enum kern_error { KERN_OK = 0, KERN_ENOMEM = -1, KERN_EINVAL = -2, KERN_ENOTSUP = -3, KERN_EDEVICE = -4 };

/* Element types of weights and KV. Block formats are GGML's: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md */
enum kern_dtype {
	KERN_F32, KERN_F16, KERN_BF16,
	KERN_Q8_0,                 /* 32 values: f16 scale d, 32 x int8; w = d q */
	KERN_Q4_0,                 /* 32 values: f16 d, 16 bytes of nibbles (low: 0..15, high: 16..31); w = d (q - 8) */
	KERN_Q4_1,                 /* 32 values: f16 d, f16 m, 16 bytes of nibbles; w = d q + m */
	KERN_Q6_K,                 /* 256 values: 128 low nibbles, 64 high pairs, 16 int8 scales, f16 d */
	KERN_Q5_0,                 /* 32 values: f16 d, 32 high bits, 16 bytes of low nibbles; w = d (q - 16) */
	KERN_Q5_1,                 /* 32 values: f16 d, f16 m, 32 high bits, 16 bytes of low nibbles; w = d q + m */
	KERN_Q4_K,                 /* 256 values: f16 d, f16 m, 8 x 6 bits each of s and t, 128 bytes of nibbles; w = d s q - m t for each 32 values */
	KERN_Q5_K,                 /* the same with 32 bytes of high bits before the nibbles */
	KERN_MXFP4,                /* 32 values (OCP MX): exponent e, 16 bytes of nibbles as Q4_0's; w = E2M1(q) 2^(e - 127), e = 255: NaN */
	KERN_WEIGHT_DTYPES,        /* weights have one of the types above; the types below are KV's alone: */
	KERN_I8 = KERN_WEIGHT_DTYPES,   /* int8 q, |q| <= 127; x = s q with a float32 scale s for each token, head, and K or V */
	KERN_F8,                   /* OCP's 8-bit E4M3 f, |f| <= 448; x = s f, with scales as above */
	KERN_DTYPE_COUNT
};

struct kern_device;                /* a backend's own state: threads, contexts, scratch */
struct kern_stream;
struct kern_weight;                /* a matrix (n, k), repacked by the backend; y = x W^T */

/* A modelled model on a modelled device (kernels/sim): what a step costs there, and how answers come about. Amounts are those of one whole
 * layer, before it is divided over tp devices. */
struct kern_sim {
	uint32_t layers, vocab, tp;
	uint64_t seed;
	double layer_flops;        /* per row, products with weights */
	double layer_bytes;        /* weights read once a step */
	double attention_flops;    /* per row and position attended to */
	double kv_bytes;           /* of one token */
	double exchange_bytes;     /* per row: what one device sends in the exchanges of a layer; counts when tp > 1 */
	double flops, bandwidth, link_bandwidth;   /* of one device, per second, as they are reached, not as they are sold */
	double launch_us, exchange_us, step_us;    /* fixed: a layer, its exchanges (tp > 1), a step */
	double time_scale;         /* every duration is multiplied by it; 0: no time passes */
	uint64_t hang_step;        /* for tests: this step, counted from 1, never ends; 0: none */
	double eos_rate;           /* share of the tokens that end the sequence; 0: none does */
	uint32_t eos[8], n_eos;
	int check_always;          /* every step walks every sequence's whole context, instead of what is new to the device and a sample */
};

struct kern_config {
	const char *variant;       /* NULL or "auto": best for this machine; cpu: "plain", "avx2", "avx512", "avx512bf16"; the cpu variant
	                              "reference" keeps every product in float32 (no quantised activations) */
	unsigned threads;          /* 0: one per core that the process may run on */
	unsigned max_rows;         /* largest number of rows of any call; scratch is sized by it */
	int device_index;
	enum kern_dtype activations; /* KERN_F32 (0), or cpu: KERN_BF16, which products with weights of that type round activations to */
	const struct kern_sim *sim; /* sim: what it models, copied; others: not read */
};

/* One layer of the paged KV pool. The piece of block b starts at base + b * block_stride_bytes and is (kv_heads, 2) planes, index 1
 * being 0 for K and 1 for V. A plane is (block_tokens, head_dim) elements of dtype and, right behind them for the types that have scales,
 * (block_tokens) float32 scales. So a range of heads of a piece is contiguous, scales and all, and whoever moves pieces need not
 * know of scales. Nothing is padded: head_dim is a multiple of 4, which aligns the scales.
 * With a latent the piece is (kv_heads) planes, one for each head: V is what lies first in K (multi-head latent attention, arXiv:2405.04434). */
struct kern_kv_layer {
	void *base;
	size_t block_stride_bytes;
	uint32_t kv_heads, head_dim, block_tokens;
	enum kern_dtype dtype;     /* KERN_F32, KERN_F16, KERN_BF16, KERN_I8 or KERN_F8 */
	uint32_t layer;            /* which one it is, from 0 */
	uint32_t latent;           /* 0: K and V each have planes; else V is the first `latent` elements of K, at most head_dim, a multiple of 4 */
};

/* What a device counted since it was opened. */
struct kern_counters {
	uint64_t busy_ns;          /* time in which it had work */
	uint64_t steps;
	uint64_t rows;             /* over the steps */
	uint64_t kv_faults;        /* steps that found KV which cannot be: wrong, stale or torn */
};

/* Consecutive rows of one sequence at consecutive positions: a chunk of a prompt, or one decoding row. */
struct kern_span {
	uint32_t row, rows;        /* rows [row, row + rows) of the batch */
	uint32_t position;         /* of the first row; row i of the span attends to positions 0 .. position + i */
	uint32_t table;            /* index in block_table of this sequence's block 0 */
};

/* What one forward step works on; all four pointers are device memory of the stated lengths. */
struct kern_batch {
	uint32_t rows, spans, table_len;
	const uint32_t *tokens;        /* (rows) token ids, each < vocabulary (checked by the caller) */
	const uint32_t *positions;     /* (rows) */
	const struct kern_span *span;  /* (spans), host copy in span_host for launch geometry */
	const struct kern_span *span_host;
	const uint32_t *block_table;   /* (table_len) pool block numbers; token t of a span lies in entry table + t / block_tokens */
};

enum kern_rope_style { KERN_ROPE_HALF, KERN_ROPE_INTERLEAVED };
/* (u, v) -> (u cos a - v sin a, v cos a + u sin a), a = position * inv_freq[i]; cos and sin times `scale`.
 * HALF: pair i is elements (i, i + dims/2); INTERLEAVED: (2i, 2i + 1). Elements from dims on pass unchanged. */
struct kern_rope {
	enum kern_rope_style style;
	uint32_t dims;
	float scale;
	const float *inv_freq;     /* (dims / 2), device */
};

/* act(g) * u: silu(g) u; gelu(g) u; with g' = min(g, 7), u' = u within -7 .. 7: g' sigmoid(1.702 g') (u' + 1) */
enum kern_act { KERN_SILU, KERN_GELU_TANH, KERN_SWIGLU_CLAMPED };

/* How a row's experts are chosen. The scores s are the softmax of the row's logits over all experts, or the sigmoid of each; c = s + bias.
 * With groups, a group's worth is the sum of its two largest c, and only experts of the groups_used best groups can be chosen. Then the `used`
 * largest c are; of equals the lowest number. Their weights are s, divided by max(their sum, norm_min) + norm_add if `normalise`, times `scale`.
 * Formulas: DeepSeek-V3 (arXiv:2412.19437), section 2.1.2; without groups and bias the usual top-k. */
enum kern_score { KERN_SCORE_SOFTMAX, KERN_SCORE_SIGMOID };
enum { KERN_EXPERTS_MAX = 1024, KERN_EXPERTS_USED_MAX = 64 };
struct kern_router {
	enum kern_score score;
	uint32_t experts, used;    /* used <= experts, and no more than the groups used have */
	uint32_t groups, groups_used;   /* equal ones, neighbours together, of at least 2 experts; groups 0 or 1: none */
	const float *bias;         /* (experts) or NULL, device */
	int normalise;
	float norm_min, norm_add, scale;
};

/* The weights of a layer's experts, arrays of `experts` entries in host memory. All of gate and up are (ffn, hidden), all of down (n, k).
 * Biases are device memory, (experts, ffn), (experts, ffn), (experts, n), or NULL. */
struct kern_experts {
	uint32_t experts;
	struct kern_weight **gate, **up, **down;
	float *gate_bias, *up_bias, *down_bias;
};

/* One product of a group over the same activations: y (rows, n) with leading dimension ldy (elements). */
struct kern_product {
	const struct kern_weight *w;
	const float *bias;         /* (n) or NULL, device */
	float *y;
	size_t ldy;
};

struct kern_ops {
	uint32_t abi;              /* KERN_ABI */
	const char *name;          /* "cpu", "cuda", "sim" */

	/* device; ret_ values are written only on success */
	int (*open)(const struct kern_config *conf, struct kern_device **ret_dev, char *errbuf, size_t errlen);
	void (*close)(struct kern_device **dev);
	/* "cpu-r4", "cpu-r4-bf16act" with activations of KERN_BF16: part of the numerics id; equal texts promise equal bits (the fast CPU variants
	 * have the same) */
	const char *(*numerics)(const struct kern_device *dev);
	const char *(*last_error)(const struct kern_device *dev);
	/* 1: operations are done when they return and the host may act on their results at once (CPU) */
	int (*is_synchronous)(const struct kern_device *dev);
	/* NULL for a backend that does not count; may be called by any thread at any time */
	void (*counters)(const struct kern_device *dev, struct kern_counters *ret);

	/* memory: zeroed, aligned to at least 64 bytes */
	int (*alloc)(struct kern_device *dev, size_t bytes, void **ret_ptr);
	void (*free)(struct kern_device *dev, void *ptr);
	/* make host memory (a shared mapping) addressable by the device; *ret_ptr is the device's address of it */
	int (*host_register)(struct kern_device *dev, void *host, size_t bytes, void **ret_ptr);
	void (*host_unregister)(struct kern_device *dev, void *host);

	int (*stream_new)(struct kern_device *dev, struct kern_stream **ret_stream);
	void (*stream_destroy)(struct kern_stream **stream);
	int (*upload)(struct kern_stream *s, void *dst_dev, const void *src_host, size_t bytes);
	int (*download)(struct kern_stream *s, void *dst_host, const void *src_dev, size_t bytes);
	int (*sync)(struct kern_stream *s);
	/* after all earlier work of the stream: store value to *word (registered memory) with release order */
	int (*signal)(struct kern_stream *s, uint64_t *word, uint64_t value);

	/* weights: `data` is host memory in the file's format, n rows of k (sim: not read, may be NULL); it may be unmapped after the call returns
	 * unless *ret_borrows is set to 1 (the backend then reads it in place for as long as the weight lives) */
	int (*weight_new)(struct kern_device *dev, enum kern_dtype dtype, uint32_t n, uint32_t k, const void *data,
	                  struct kern_weight **ret_w, int *ret_borrows);
	void (*weight_destroy)(struct kern_device *dev, struct kern_weight **w);

	/* y[r] = W[tokens[r]]: y (rows, k) */
	int (*embed)(struct kern_stream *s, float *y, const struct kern_weight *w, const uint32_t *tokens, uint32_t rows);
	/* y = w * x / sqrt(mean(x^2) + eps): (rows, dim) */
	int (*rms_norm)(struct kern_stream *s, float *y, const float *x, const float *w, uint32_t rows, uint32_t dim, float eps);
	/* x += a, then y = rms_norm(x) * w: the residual stream and the next norm in one pass; y may be a */
	int (*add_rms_norm)(struct kern_stream *s, float *y, float *x, const float *a, const float *w, uint32_t rows, uint32_t dim,
	                    float eps);
	/* in place, each head by itself: x (rows, heads, head_dim) with leading dimension ldx, w (head_dim) */
	int (*head_norm)(struct kern_stream *s, float *x, size_t ldx, uint32_t heads, uint32_t head_dim, const float *w, uint32_t rows, float eps);
	/* p[i].y = x W_i^T + bias_i for all i: x (rows, k), every W_i has the same k; x is quantised once for the group */
	int (*matmul)(struct kern_stream *s, const float *x, uint32_t rows, const struct kern_product *p, uint32_t products);
	/* in place: x (rows, heads, head_dim) with leading dimension ldx */
	int (*rope)(struct kern_stream *s, float *x, size_t ldx, uint32_t heads, uint32_t head_dim, const struct kern_rope *rope,
	            const uint32_t *positions, uint32_t rows);
	/* k, v (rows, kv_heads, head_dim; v NULL with a latent), leading dimension ld, rounded to the layer's dtype, to each row's place in the pool. The scale of
	 * a token and head is its largest magnitude over the type's largest; a row with a NaN or an infinity has the scale NaN */
	int (*kv_write)(struct kern_stream *s, const struct kern_kv_layer *kv, const float *k, const float *v, size_t ld,
	                const struct kern_batch *batch);
	/* out (rows, heads, head_dim) = softmax(q k * scale) v over positions max(0, p - window + 1) .. p of the row's own sequence;
	 * window 0: none; query head h reads KV head h / (heads / kv_heads); q has leading dimension ldq, out is dense. With a latent
	 * out is (rows, heads, latent). sinks (heads), device, or NULL: one more logit for each head, of no position and no value */
	int (*attention)(struct kern_stream *s, float *out, const float *q, size_t ldq, uint32_t heads, const struct kern_kv_layer *kv,
	                 float scale, uint32_t window, const float *sinks, const struct kern_batch *batch);
	/* y = act(gate) * up: (rows, dim); ld is the leading dimension of gate and up, y is dense */
	int (*act_mul)(struct kern_stream *s, float *y, const float *gate, const float *up, size_t ld, enum kern_act act, uint32_t rows,
	               uint32_t dim);
	/* y[i] = x[index[i]]: (count, dim); index is device memory */
	int (*gather_rows)(struct kern_stream *s, float *y, const float *x, const uint32_t *index, uint32_t count, uint32_t dim);
	/* ids and weights (rows, used) of each row's experts in the order of their c, from logits (rows, experts) */
	int (*route)(struct kern_stream *s, uint32_t *ids, float *weights, const float *logits, const struct kern_router *router, uint32_t rows);
	/* y[r, j] = act(gate_e x[r]) * up_e x[r], e = ids[r, j]: x (rows, hidden), y (rows, used, ffn). ids of a row differ */
	int (*experts_act)(struct kern_stream *s, float *y, const float *x, const uint32_t *ids, uint32_t used, const struct kern_experts *experts,
	                   enum kern_act act, uint32_t rows);
	/* y[r] = sum of weights[r, j] * down_e x[r, j], in ascending order of e; added to what y[r] has if `add`: x (rows, used, k), y (rows, n)
	 * with leading dimension ldy */
	int (*experts_down)(struct kern_stream *s, float *y, size_t ldy, const float *x, const uint32_t *ids, const float *weights, uint32_t used,
	                    const struct kern_experts *experts, int add, uint32_t rows);
	/* y[r, h] = w[h] x[r, h], with the `tail` elements behind a head's k copied behind its n: x (rows, heads, k + tail) and
	 * y (rows, heads, n + tail) with leading dimensions ldx and ldy; w is `heads` matrices (n, k), in host memory */
	int (*heads_matmul)(struct kern_stream *s, float *y, size_t ldy, const float *x, size_t ldx, struct kern_weight *const *w, uint32_t heads,
	                    uint32_t tail, uint32_t rows);
	/* x *= factor over count elements (scaled embeddings, scaled logits) */
	int (*scale)(struct kern_stream *s, float *x, float factor, size_t count);
};

/* Size in bytes of n x k elements of a type, 0 if k is no multiple of the type's block. */
size_t kern_dtype_bytes(enum kern_dtype t, size_t count);
const char *kern_dtype_name(enum kern_dtype t);
/* Of one token and head, beside its elements: 4 for the types with scales, else 0. */
size_t kern_kv_scale_bytes(enum kern_dtype t);
size_t kern_kv_plane_bytes(const struct kern_kv_layer *kv);
static inline uint32_t kern_kv_planes(const struct kern_kv_layer *kv) { return kv->latent ? kv->kv_heads : 2 * kv->kv_heads; }

extern const struct kern_ops kern_cpu_ops, kern_sim_ops;

#endif
