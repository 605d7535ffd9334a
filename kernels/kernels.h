/* kernels.h - the contract between the engine and a device: memory, weights, and programs. Nothing
 * of pdserve is above it.
 *
 * A step of a model is a program: an array of operations (struct kern_op), recorded once for its
 * largest shape and replayed. All that differs from step to step - how many rows, which tokens,
 * where their KV lies - is in the batch that a replay is given (struct kern_batch). A backend
 * (kernels/cpu, kernels/sim, or one that is loaded by name) compiles the array into what suits it:
 * phases of a crew of threads, a graph of launches.
 *
 * Rules that every backend keeps:
 *  - A device address is a kern_ptr, which the host cannot dereference. `upload` and `download`
 *    copy; memory of the kinds KERN_MEM_PINNED and KERN_MEM_SHARED may have a host address as well
 *    (struct kern_mem).
 *  - Work of one stream runs in order. `upload`, `download` and `run` may return before it is done;
 *    `sync` returns when all is. Host memory given to them may be changed or freed only after
 *    `sync`. Streams of a device are not ordered among each other; a program runs on one at a time,
 *    which is the caller's duty.
 *  - What a program, a batch or a run names (memory, weights, constants) is read when it runs, and
 *    freed or destroyed only after `sync`.
 *  - A replay allocates nothing.
 *  - 0, or a negative KERN_E*; the text of the latest error of a device is `last_error`. An error
 *    of work may be reported by a later call on the stream, at the latest by `sync`. What cannot
 *    run at all (shapes, types and mixes of types, sizes beyond what the backend has) is refused by
 *    `program_new`, in a sentence that names the operation: that is how capabilities are asked for.
 *    So are unknown enum values, weights and addresses that are missing or not aligned, and rows
 *    that overlap. That enough memory lies behind an address is the caller's to get right.
 *  - What is not finite in a row makes that row's results not finite, wherever they depend on it (a
 *    clamp may make an infinity finite), and changes no bit of other rows. Denormal numbers are
 *    kept.
 *  - Calls on one device and its streams come from one thread at a time; `counters` from any.
 *  - Every operation computes each output row from that row's inputs alone, in an order of
 *    additions that depends on neither the number of rows, the place of the row in the batch, nor
 *    the number of threads (invariant I8). What a row must not see (later tokens, other sequences)
 *    never changes its bits.
 *
 * Layouts: shapes are written (rows, columns), the last index is contiguous. Addresses are 4-byte
 * aligned at least, leading dimensions any; what lies between the columns of a row and the next
 * row, and rows beyond the batch's, is neither read nor written. Outputs overlap no input unless
 * it is said. */
#ifndef KERNELS_H
#define KERNELS_H

#include "kernels/error.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What devices compute with as well. */
#ifdef __CUDACC__
#define KERN_INLINE static inline __host__ __device__
#else
#define KERN_INLINE static inline
#endif

#define KERN_ABI 10u /* raised when a struct or a signature below changes */

/* Element types of weights and KV. Block formats are GGML's:
 * https://github.com/ggml-org/ggml/blob/master/docs/gguf.md */
enum kern_dtype {
	KERN_F32,
	KERN_F16,
	KERN_BF16,
	KERN_Q8_0, /* 32 values: f16 scale d, 32 x int8; w = d q */
	/* 32 values: f16 d, 16 bytes of nibbles (low: 0..15, high: 16..31); w = d (q - 8) */
	KERN_Q4_0,
	KERN_Q4_1, /* 32 values: f16 d, f16 m, 16 bytes of nibbles; w = d q + m */
	/* 256 values: 128 low nibbles, 64 high pairs, 16 int8 scales, f16 d */
	KERN_Q6_K,
	/* 32 values: f16 d, 32 high bits, 16 bytes of low nibbles; w = d (q - 16) */
	KERN_Q5_0,
	/* 32 values: f16 d, f16 m, 32 high bits, 16 bytes of low nibbles; w = d q + m */
	KERN_Q5_1,
	/* 256 values: f16 d, f16 m, 8 x 6 bits each of s and t, 128 bytes of nibbles; w = d s q - m
	 * t for each 32 values */
	KERN_Q4_K,
	KERN_Q5_K, /* the same with 32 bytes of high bits before the nibbles */
	/* 32 values (OCP MX): exponent e, 16 bytes of nibbles as Q4_0's; w = E2M1(q) 2^(e - 127), e
	 * = 255: NaN */
	KERN_MXFP4,
	/* weights have one of the types above; the types below are KV's alone: */
	KERN_WEIGHT_DTYPES,
	/* int8 q, |q| <= 127; x = s q with a float32 scale s for each token, head, and K or V */
	KERN_I8 = KERN_WEIGHT_DTYPES,
	KERN_F8, /* OCP's 8-bit E4M3 f, |f| <= 448; x = s f, with scales as above */
	KERN_DTYPE_COUNT
};

struct kern_device; /* a backend's own state: threads, contexts, scratch */
struct kern_stream;
struct kern_weight; /* a matrix (n, k), repacked by the backend; y = x W^T */
struct kern_program;

/* --- memory -------------------------------------------------------------- */

/* An address on the device; v is 0 for none. */
typedef struct kern_ptr {
	uintptr_t v;
} kern_ptr;

KERN_INLINE kern_ptr kern_at(kern_ptr p, size_t bytes)
{
	return (kern_ptr){p.v + bytes};
}

enum kern_memory {
	KERN_MEM_DEVICE, /* the device's own; host is NULL */
	KERN_MEM_PINNED, /* host memory that the device reads and writes in place */
	/* the device's, and other processes can map it by a descriptor; host is NULL where the host
	 * cannot address it */
	KERN_MEM_SHARED
};

struct kern_mem {
	kern_ptr dev;
	void *host;
	size_t bytes;
	enum kern_memory kind;
	void *own; /* the backend's, */
	int fd;    /* and so is this */
};

/* A matrix of activations (rows, columns) in the device's memory: row r begins at element r *
 * ld. */
struct kern_tensor {
	kern_ptr at;
	size_t ld;
	enum kern_dtype type;
};

/* --- devices ------------------------------------------------------------- */

/* The processes of a tensor-parallel group, this one among them. They run the same programs over
 * their own columns. What a collective names lies in memory that all ranks share and each has
 * pinned. A rank writes it again only after one more collective, when all have read it; a backend
 * that computes in memory of its own moves what the operations name, and need not meet for that.
 * Every rank takes part in every collective, also with no row or column to give. There are no
 * carries in a group. */
struct kern_group {
	unsigned rank, ranks; /* ranks 0 or 1: alone */
	/* returns 0 when all ranks have called it, else the group is broken; on any thread, one at a
	 * time: once for each collective and each KERN_OP_PROGRESS (of a batch with progress), in
	 * their order, by every rank */
	int (*meet)(void *arg);
	void *arg;
};

struct kern_config {
	/* NULL or "auto": best for this machine; cpu: "plain", "avx2", "avx512", "avx512bf16"; the
	 * cpu variant "reference" keeps every product in float32 (no quantised activations). cuda:
	 * "fast" multiplies BF16 weights by cuBLASLt, and has `activations` of KERN_BF16 whatever
	 * they say; then, against invariant I8, a row's bits may depend on its batch */
	const char *variant;
	unsigned threads; /* 0: one per core that the process may run on */
	int device_index;
	/* KERN_F32 (0); or KERN_BF16, which products round activations to: with weights of that
	 * type, cuda: with quantised ones too; cuda's attention rounds queries, K, V and the
	 * softmax's weights to it as well */
	enum kern_dtype activations;
	struct kern_group group;
	/* called, on any thread, soon after KERN_OP_PROGRESS of a batch with progress; may be NULL.
	 * It must not wait */
	void (*progressed)(void *arg);
	void *progressed_arg;
	/* the backend's own, or NULL (sim: struct sim_options of kernels/sim/options.h) */
	const void *options;
};

/* A device as its user knows it. Zeros and an empty name: the host itself, or not known. */
struct kern_info {
	char name[64]; /* "NVIDIA H100 80GB HBM3" */
	uint64_t memory_bytes, free_bytes;
	uint32_t temperature_c, power_w, clock_mhz, memory_clock_mhz;
	uint64_t memory_errors; /* that could not be corrected, since the driver was loaded */
};

/* What a device counted since it was opened. */
struct kern_counters {
	/* grows while a replay advances: with each layer, or at least with each replay */
	uint64_t pulse;
	/* time in which it had work; this and what follows: 0 where it is not counted */
	uint64_t busy_ns;
	uint64_t steps;
	uint64_t rows;      /* over the steps */
	uint64_t kv_faults; /* steps that found KV which cannot be: wrong, stale or torn */
};

/* --- what a replay reads ------------------------------------------------- */

/* Consecutive rows of one sequence at consecutive positions: a chunk of a prompt, or one
 * decoding row. */
struct kern_span {
	uint32_t row, rows; /* rows [row, row + rows) of its rows (enum kern_rows) */
	/* of the first row; row i of the span attends to positions 0 .. position + i */
	uint32_t position;
	uint32_t table; /* index in the batch's block table of this sequence's block 0 */
};

/* What KERN_OP_PROGRESS stores for a span: `value` to the word of the layer, words `stride`
 * apart. */
struct kern_progress {
	kern_ptr word; /* of layer 0; 0: none */
	uint64_t value;
	uint64_t stride; /* in words */
};

/* What is asked of a row of the tail. */
enum kern_ask { KERN_ASK_NOTHING, KERN_ASK_DRAW, KERN_ASK_SCORE };
enum { KERN_TOP_MAX = 20, KERN_CARRY_DRAWS = 8, KERN_DRAFTED_MAX = 64 };
#define KERN_NO_CARRY UINT32_MAX

/* Entries one after the other in the batch, the first at word `at`. */
struct kern_list {
	uint32_t at, n;
};

/* A draw: logits -> (log-probabilities are of these, the model's own) -> ids that are not in both
 * masks, and the forbidden ones, become minus infinity
 * -> biases are added -> of each id seen, l > 0 ? l / repetition : l * repetition, then - frequency
 * * times, then - presence if times > 0, all in float32 -> / temperature -> min_p -> top_k -> top_p
 *   -> typical_p -> the draw. Each cut renormalises what is left for the next.
 *  - min_p keeps ids of at least min_p times the largest probability, top_k the k largest, top_p
 *    the largest until their sum reaches it, typical_p those whose surprise -ln p is nearest to the
 *    entropy, in order of that distance, until their sum reaches it. Of equals the lowest ids come
 *    first.
 *  - The draw is Philox4x32-10 (key: the seed, counter: the index) as a fraction u of 53 bits: the
 *    first id, in descending order of probability, where the sum, in double, passes u.
 *  - A temperature below 1e-5 is greedy: the lowest id among the largest logits after the changes.
 *    So is a row whose largest logit is then infinite.
 *  - If no id is left above minus infinity it is the lowest that both masks have; without masks, or
 *    if they have none, 0.
 * Rows may share masks and lists.
 * A score gives the log-probability of `id` in the same way, without a draw. */
struct kern_draw {
	uint32_t ask; /* enum kern_ask; NOTHING: no result is written */
	uint32_t id;  /* of a score, below the vocabulary */
	/* how many of the most probable ids are wanted, at most KERN_TOP_MAX; -1: no
	 * log-probabilities at all */
	int32_t logprobs;
	uint32_t carry; /* keeps what is drawn (struct kern_carry); KERN_NO_CARRY: none */
	float temperature, min_p, top_p, typical_p; /* min_p 0, top_p 1, typical_p 0 or 1: off */
	uint32_t top_k;                             /* 0: off */
	uint32_t seed[2], index[2];                 /* 64 bits, the lower ones first */
	float repetition, presence, frequency;      /* 1, 0, 0: off */
	/* words of a bit for each id, id % 32 of word id / 32, in whole 64 bits; 0: all are allowed */
	uint32_t mask[2];
	/* ids. Here and below ids beyond the vocabulary mean nothing */
	struct kern_list forbidden;
	struct kern_list bias; /* pairs: id, float32 */
	/* pairs: id, how many times the answer has it (0: the prompt alone). Ids differ */
	struct kern_list seen;
	/* ids that are in the answer as well, at most KERN_DRAFTED_MAX */
	struct kern_list drafted;
	/* and so many of the carry's latest draws, at most KERN_CARRY_DRAWS */
	uint32_t pending;
};

/* What a sequence drew last, the latest first, carried from run to run in device memory that the
 * caller has zeroed. A row's token can be one of these, so that a sequence goes on without the
 * host in between. */
struct kern_carry {
	uint32_t id[KERN_CARRY_DRAWS];
};
/* a token that is KERN_OF_CARRY + carry: what this carry drew last */
#define KERN_OF_CARRY 0x80000000u

struct kern_top {
	uint32_t id;
	float logprob;
};

/* What came of a row. Log-probabilities are natural, of the unscaled distribution. */
struct kern_drawn {
	/* a logit is NaN or plus infinity: the rest is set, NaN counts as minus infinity, and must
	 * not be used */
	uint32_t not_finite;
	uint32_t id;
	float logprob; /* this and what follows: 0 without log-probabilities */
	uint32_t rank; /* 1: the most probable; of equals the lowest id is first */
	uint32_t n_top;
	struct kern_top top[KERN_TOP_MAX]; /* descending */
};

/* Operations run over all rows of the batch, or over its tail: the rows that go on to the head. */
enum kern_rows { KERN_ROWS_ALL, KERN_ROWS_TAIL };

/* The head of a batch. The batch is one block of 4-byte words, at most kern_limits.batch_bytes
 * long, 64-byte aligned; where its parts lie is said in words from its beginning. The parts: */
struct kern_batch {
	uint32_t words; /* of the batch, this head included */
	/* at least 1 row and span; the tail may be empty */
	uint32_t rows, spans, tail_rows, tail_spans;
	/* (rows) ids, each below the vocabulary (the caller checks), or KERN_OF_CARRY + carry */
	uint32_t tokens;
	uint32_t positions; /* (rows) as the spans say */
	/* (rows) where a row's KV goes: block * block_tokens + position % block_tokens; all differ */
	uint32_t slots;
	uint32_t span;       /* (spans) struct kern_span, all rows in order */
	uint32_t tail_index; /* (tail_rows) which of all rows it is */
	uint32_t tail_span;  /* (tail_spans) struct kern_span over the tail's rows */
	/* pool block numbers; token t of a span lies in the block at [table + t / block_tokens] */
	uint32_t table;
	/* (spans) struct kern_progress, at an even word; 0: nothing is told */
	uint32_t progress;
	uint32_t draws; /* (tail_rows) struct kern_draw; 0: nothing is asked */
	uint32_t unused[2];
};

/* The largest batch of a program; memory is sized by it. */
struct kern_limits {
	uint32_t rows, tail_rows, spans;
	uint32_t positions;      /* of a sequence */
	uint32_t vocab, carries; /* of draws; 0: there are none */
	size_t batch_bytes;
};

/* --- operations ---------------------------------------------------------- */

enum kern_rope_style { KERN_ROPE_HALF, KERN_ROPE_INTERLEAVED };
/* (u, v) -> (u cos a - v sin a, v cos a + u sin a), a = position * inv_freq[i]; cos and sin times
 * `scale`. The angle is rounded to float32 before its sine and cosine are taken. HALF: pair i is
 * elements (i, i + dims/2); INTERLEAVED: (2i, 2i + 1). */
struct kern_rope {
	enum kern_rope_style style;
	uint32_t dims;
	float scale;
	kern_ptr inv_freq; /* (dims / 2) float32 */
};

/* act(g) * u: silu(g) u; gelu(g) u; with g' = min(g, 7), u' = u within -7 .. 7: g' sigmoid(1.702
 * g') (u' + 1) */
enum kern_act { KERN_SILU, KERN_GELU_TANH, KERN_SWIGLU_CLAMPED };

/* One layer of the paged KV pool. The piece of block b starts at base + b * block_stride_bytes and
 * is (kv_heads, 2) planes, index 1 being 0 for K and 1 for V. A plane is (block_tokens, head_dim)
 * elements of dtype and, right behind them for the types that have scales, (block_tokens) float32
 * scales. So a range of heads of a piece is contiguous, scales and all, and whoever moves pieces
 * need not know of scales. Nothing is padded: head_dim is a multiple of 4, which aligns the
 * scales. With a latent the piece is (kv_heads) planes, one for each head: V is K's first
 * `latent` elements (multi-head latent attention, arXiv:2405.04434). */
struct kern_kv_layer {
	kern_ptr base;
	size_t block_stride_bytes;
	uint32_t kv_heads, head_dim, block_tokens;
	enum kern_dtype dtype; /* KERN_F32, KERN_F16, KERN_BF16, KERN_I8 or KERN_F8 */
	uint32_t layer;        /* which one it is, from 0 */
	/* 0: K and V each have planes; else V is the first `latent` elements of K, at most head_dim,
	 * a multiple of 4 */
	uint32_t latent;
};

/* How a row's experts are chosen. The scores s are the softmax of the row's logits over all
 * experts, or the sigmoid of each; c = s + bias. With groups, a group's worth is the sum of its two
 * largest c, and only experts of the groups_used best groups can be chosen. Then the `used` largest
 * c are; of equals the lowest number. Their weights are s, divided by max(their sum, norm_min) +
 * norm_add if `normalise`, times `scale`. Formulas: DeepSeek-V3 (arXiv:2412.19437), section
 * 2.1.2; without groups and bias the usual top-k. */
enum kern_score { KERN_SCORE_SOFTMAX, KERN_SCORE_SIGMOID };
enum {
	KERN_EXPERTS_MAX = 1024,
	KERN_EXPERTS_USED_MAX = 64,
	KERN_PRODUCTS_MAX = 4,
	KERN_GATHERED_MAX = 2
};
struct kern_router {
	enum kern_score score;
	uint32_t experts, used; /* used <= experts, and no more than the groups used have */
	/* equal ones, neighbours together, of at least 2 experts; groups 0 or 1: none */
	uint32_t groups, groups_used;
	kern_ptr bias; /* (experts) float32, or 0 */
	int normalise;
	float norm_min, norm_add, scale;
};

/* The weights of a layer's experts, arrays of `experts` entries in host memory, which live as long
 * as programs that name them. All of gate and up are (ffn, hidden), all of down (n, k). Biases
 * are (experts, ffn), (experts, ffn), (experts, n) float32, or 0. */
struct kern_experts {
	uint32_t experts;
	struct kern_weight **gate, **up, **down;
	kern_ptr gate_bias, up_bias, down_bias;
};

/* One product of a group over the same activations: y (rows, n) = x W^T + bias. */
struct kern_product {
	const struct kern_weight *w;
	kern_ptr bias; /* (n) float32, or 0 */
	struct kern_tensor y;
};

/* x (R, parts, dim), leading dimension of a part. With ids 0 each rank has written its columns of
 * every part: its kern_share of dim, in units of `unit`, at least 1. Else whole rows: row r was
 * written by the rank in whose kern_share of `ids` its token is. */
struct kern_gathered {
	struct kern_tensor x;
	uint32_t parts, dim, unit, ids;
};

enum kern_op_kind {
	KERN_OP_EMBED,
	KERN_OP_GATHER_ROWS,
	KERN_OP_SCALE,
	KERN_OP_NORM,
	KERN_OP_HEAD_NORM,
	KERN_OP_MATMUL,
	KERN_OP_ROPE,
	KERN_OP_KV_WRITE,
	KERN_OP_PROGRESS,
	KERN_OP_ATTENTION,
	KERN_OP_ACT_MUL,
	KERN_OP_ROUTE,
	KERN_OP_EXPERTS_ACT,
	KERN_OP_EXPERTS_DOWN,
	KERN_OP_HEADS_MATMUL,
	/* the collectives: nothing, or a copy, for a device that is alone */
	KERN_OP_GATHER,
	KERN_OP_REDUCE,
	KERN_OP_BARRIER,
	KERN_OP_SAMPLE,
	KERN_OPS
};

/* An operation over `rows` (R below: as many as the batch has). Every address and shape is fixed
 * when it is recorded. Weights of norms are float32. */
struct kern_op {
	enum kern_op_kind kind;
	enum kern_rows rows;
	union {
		/* y[r] = W[token - first] for the rows whose token is in [first, first + W.n): the others
		 * are left as they are. y (R, W.k); carries (limits.carries) struct kern_carry, or 0 */
		struct {
			struct kern_tensor y;
			const struct kern_weight *w;
			uint32_t first;
			kern_ptr carries;
		} embed;
		/* y[r] = x[tail_index[r]]: (R, dim); rows is the tail */
		struct {
			struct kern_tensor y, x;
			uint32_t dim;
		} gather_rows;
		/* y = x * factor: (R, dim); y may be x */
		struct {
			struct kern_tensor y, x;
			float factor;
			uint32_t dim;
		} scale;
		/* x += a first, unless a is none; y = w * x / sqrt(mean(x^2) + eps): (R, dim); y may be
		 * x or a */
		struct {
			struct kern_tensor y, x, a;
			kern_ptr w;
			uint32_t dim;
			float eps;
		} norm;
		/* in place, each head by itself: x (R, heads, head_dim), w (head_dim) */
		struct {
			struct kern_tensor x;
			kern_ptr w;
			uint32_t heads, head_dim;
			float eps;
		} head_norm;
		/* every W has the same k; x (R, k) */
		struct {
			struct kern_tensor x;
			uint32_t products;
			struct kern_product p[KERN_PRODUCTS_MAX];
		} matmul;
		/* in place: x (R, heads, head_dim); rows are all. Elements of a head from dims on are
		 * neither read nor written */
		struct {
			struct kern_tensor x;
			struct kern_rope rope;
			uint32_t heads, head_dim;
		} rope;
		/* k, v (R, kv_heads, head_dim; no v with a latent), rounded to the layer's dtype, to each
		 * row's slot. The scale of a token and head is its largest magnitude over the type's
		 * largest; a row with a NaN or an infinity has the scale NaN. Rows are all */
		struct {
			struct kern_kv_layer kv;
			struct kern_tensor k, v;
		} kv_write;
		/* stores the words of the batch's progress for `layer`, with release order, after the KV
		 * that earlier operations wrote. Of a group rank 0 stores, when all ranks have come this
		 * far. Does nothing for a batch without progress */
		struct {
			uint32_t layer;
		} progress;
		/* out (R, heads, head_dim) = softmax(q k * scale) v over positions max(0, p - window + 1)
		 * .. p of the row's own sequence; window 0: none; query head h reads KV head h / (heads /
		 * kv_heads). With a latent out is (R, heads, latent). sinks (heads) float32, or 0: one
		 * more logit for each head, of no position and no value; -infinity: none */
		struct {
			struct kern_kv_layer kv;
			struct kern_tensor out, q;
			uint32_t heads, window;
			float scale;
			kern_ptr sinks;
		} attention;
		/* y = act(gate) * up: (R, dim) */
		struct {
			struct kern_tensor y, gate, up;
			enum kern_act act;
			uint32_t dim;
		} act_mul;
		/* ids and weights (R, used), dense, of each row's experts in the order of their c, from
		 * logits (R, experts). With a NaN among its logits a row has weights of NaN, and its ids
		 * are some experts that differ */
		struct {
			struct kern_router router;
			kern_ptr ids, weights;
			struct kern_tensor logits;
		} route;
		/* y[r, j] = act(gate_e x[r]) * up_e x[r], e = ids[r, j]: x (R, hidden), y (R, used, ffn)
		 * with the leading dimension of a pair (r, j). ids of a row differ */
		struct {
			struct kern_experts experts;
			kern_ptr ids;
			uint32_t used;
			enum kern_act act;
			struct kern_tensor y, x;
		} experts_act;
		/* y[r] = sum of weights[r, j] * down_e x[r, j], in ascending order of e; added to what y[r]
		 * has if `add`: x (R, used, k), leading dimension of a pair, y (R, n) */
		struct {
			struct kern_experts experts;
			kern_ptr ids, weights;
			uint32_t used;
			int add;
			struct kern_tensor y, x;
		} experts_down;
		/* y[r, h] = w[h] x[r, h], with the `tail` elements behind a head's k copied behind its n: x
		 * (R, heads, k + tail) and y (R, heads, n + tail); w is `heads` matrices (n, k), an
		 * array in host memory that lives as long as the program */
		struct {
			struct kern_tensor y, x;
			struct kern_weight *const *w;
			uint32_t heads, tail;
		} heads_matmul;
		/* every tensor is whole for every rank */
		struct {
			uint32_t tensors;
			struct kern_gathered t[KERN_GATHERED_MAX];
		} gather;
		/* y[r] = the sum of the ranks' x[r], added in their order: (R, dim); y is no rank's x. Rank
		 * i + 1's x lies `stride` bytes behind rank i's, where ranks share memory */
		struct {
			struct kern_tensor y, x;
			uint32_t dim;
			size_t stride;
		} reduce;
		/* no rank goes on before all have come */
		struct {
			int none;
		} barrier;
		/* what the batch asks of each row: results (R) struct kern_drawn in PINNED memory, from
		 * logits (R, limits.vocab); carries (limits.carries) struct kern_carry, or 0. A carry
		 * stands in one row at most. Rows are the tail; of a group rank 0 does it */
		struct {
			struct kern_tensor logits;
			kern_ptr results, carries;
		} sample;
	};
};

/* The largest shapes of a program's operations, for kern_ops.program_bytes; 0: it has none such. */
struct kern_shape {
	size_t ops;
	/* columns that a product reads, all heads of a heads_matmul together */
	uint32_t in;
	uint32_t heads;          /* of attention, over: */
	struct kern_kv_layer kv; /* its heads, head_dim and latent */
	uint32_t angles;         /* dims of all ropes that differ */
	uint32_t experts, used;  /* used: of a row */
	/* columns: read; given, of gate and up together */
	uint32_t expert_layers, expert_in, expert_out;
};

/* --- a backend ----------------------------------------------------------- */

struct kern_ops {
	uint32_t abi;       /* KERN_ABI */
	const char *name;   /* "cpu", "sim" */
	unsigned ranks_max; /* of a group; 1: a device works alone */
	/* 1: computes nothing; its model is a description, `options` are needed, weights have no
	 * data */
	int modelled;

	/* device; ret_ values are written only on success */
	int (*open)(const struct kern_config *conf, struct kern_device **ret_dev, char *errbuf,
	            size_t errlen);
	void (*close)(struct kern_device **dev);
	/* "cpu-r4", "cpu-r4-bf16act" with activations of KERN_BF16: part of the numerics id; equal
	 * texts promise equal bits (all CPU variants but "reference" have the same); cuda's variant
	 * "fast" promises no bits */
	const char *(*numerics)(const struct kern_device *dev);
	const char *(*last_error)(const struct kern_device *dev);
	/* the next two: any thread, at any time */
	void (*counters)(const struct kern_device *dev, struct kern_counters *ret);
	void (*info)(const struct kern_device *dev, struct kern_info *ret);

	/* memory: zeroed, aligned to at least 64 bytes */
	int (*mem_new)(struct kern_device *dev, enum kern_memory kind, size_t bytes,
	               struct kern_mem *ret_mem);
	/* a descriptor of SHARED memory for other processes (the caller closes it); the memory behind a
	 * descriptor, as SHARED memory. ENOTSUP where the device cannot */
	int (*mem_share)(struct kern_device *dev, const struct kern_mem *mem, int *ret_fd);
	int (*mem_map)(struct kern_device *dev, int fd, size_t bytes, struct kern_mem *ret_mem);
	/* host memory of the caller's (a shared mapping) becomes PINNED memory; it stays the
	 * caller's and is mapped until mem_free */
	int (*mem_pin)(struct kern_device *dev, void *host, size_t bytes, struct kern_mem *ret_mem);
	/* clears *mem; nothing for a cleared one */
	void (*mem_free)(struct kern_device *dev, struct kern_mem *mem);

	int (*stream_new)(struct kern_device *dev, struct kern_stream **ret_stream);
	void (*stream_destroy)(struct kern_stream **stream);
	int (*upload)(struct kern_stream *s, kern_ptr dst, const void *src, size_t bytes);
	int (*download)(struct kern_stream *s, void *dst, kern_ptr src, size_t bytes);
	int (*sync)(struct kern_stream *s);

	/* weights: `data` is host memory in the file's format, n rows of k (sim: not read, may be
	 * NULL), row_bytes apart (0: dense; more for some columns of a wider matrix); it may be
	 * unmapped after the call returns */
	int (*weight_new)(struct kern_device *dev, enum kern_dtype dtype, uint32_t n, uint32_t k,
	                  const void *data, size_t row_bytes, struct kern_weight **ret_w);
	void (*weight_destroy)(struct kern_device *dev, struct kern_weight **w);

	/* About the most memory of the host that a program takes beside what its operations name,
	 * before there is a device or a weight; 0: not known. Never NULL. */
	size_t (*program_bytes)(const struct kern_config *conf, const struct kern_limits *limits,
	                        const struct kern_shape *shape);
	/* The operations are copied; what they name must outlive the program. One program of a
	 * device runs at a time. */
	int (*program_new)(struct kern_device *dev, const struct kern_op *ops, size_t n,
	                   const struct kern_limits *limits, struct kern_program **ret_p);
	void (*program_destroy)(struct kern_program **p);
	/* Replays it over a batch in PINNED memory or a part of it (dev and host moved alike), which
	 * must not change before `sync`; another run may have another one. EINVAL, before anything
	 * runs, for a batch that kern_batch_check refuses. */
	int (*run)(struct kern_stream *s, struct kern_program *p, const struct kern_mem *batch);
};

/* The backend of that name: one that is built in, or the shared object pdserve-NAME.so (load.h).
 * NULL and a sentence in errbuf if there is none, or its ABI is another. */
const struct kern_ops *kern_backend(const char *name, char *errbuf, size_t errlen);

/* Where rank `rank`'s share of `total` things begins, which are shared out in whole units of at
 * least 1; its end is the next rank's beginning. */
KERN_INLINE uint32_t kern_share(uint32_t total, uint32_t unit, unsigned rank, unsigned ranks)
{
	uint64_t units = ((uint64_t)total + unit - 1) / unit, begin = units * rank / ranks * unit;
	return begin < total ? (uint32_t)begin : total;
}

/* Size in bytes of `count` elements of a type, 0 if that is no multiple of the type's block. */
size_t kern_dtype_bytes(enum kern_dtype t, size_t count);
const char *kern_dtype_name(enum kern_dtype t);
const char *kern_op_name(enum kern_op_kind k);
/* Of one token and head, beside its elements: 4 for the types with scales, else 0. */
size_t kern_kv_scale_bytes(enum kern_dtype t);
size_t kern_kv_plane_bytes(const struct kern_kv_layer *kv);
KERN_INLINE uint32_t kern_kv_planes(const struct kern_kv_layer *kv)
{
	return kv->latent ? kv->kv_heads : 2 * kv->kv_heads;
}
/* 0, or KERN_EINVAL and a sentence for a batch beyond the limits, with parts beyond its words, or
 * whose spans are not all its rows in order. That block tables cover their spans, and that slots
 * and blocks are the pool's, is the caller's to check. */
int kern_batch_check(const struct kern_mem *batch, const struct kern_limits *limits, char *errbuf,
                     size_t errlen);
/* For backends: 0, or KERN_EINVAL (KERN_ENOTSUP: an unknown operation) and a sentence for programs
 * and weights that the contract has not. Checks nothing that needs a weight's shape or a backend's
 * own limits: tensors and constants are the backend's to check. row_bytes 0: dense. */
int kern_program_check(const struct kern_op *ops, size_t n, const struct kern_limits *limits,
                       char *errbuf, size_t errlen);
int kern_weight_check(enum kern_dtype dtype, uint32_t n, uint32_t k, size_t row_bytes, char *errbuf,
                      size_t errlen);
/* A part of a batch. */
KERN_INLINE const void *kern_part(const struct kern_batch *b, uint32_t at)
{
	return (const uint32_t *)(const void *)b + at;
}

extern const struct kern_ops kern_cpu_ops, kern_sim_ops;

#ifdef __cplusplus
}
#endif

#endif
