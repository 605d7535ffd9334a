/* kernels.h - the contract between the engine and a device: memory, weights and programs. It
 * depends on nothing else of pdserve.
 *
 * A model step is a program: an array of operations (struct kern_op), recorded once for its largest
 * shape and replayed. Everything that differs between steps (number of rows, tokens, KV locations)
 * is in the batch passed to each replay (struct kern_batch). A backend (kernels/cpu, kernels/sim,
 * or a shared object loaded by name) compiles the array into its own form: phases of a thread crew,
 * a graph of launches.
 *
 * Rules for every backend:
 *  - A device address is a kern_ptr, which the host cannot dereference. `upload` and `download`
 *    copy; KERN_MEM_PINNED and KERN_MEM_SHARED memory may also have a host address (struct
 *    kern_mem).
 *  - Work on one stream runs in order. `upload`, `download` and `run` may return before it
 *    completes; `sync` returns when all of it has, `sync_previous` when all before the latest run
 *    has. Host memory passed to them may be changed or freed only after that. Streams of a device
 *    are not ordered with respect to each other; the caller ensures that a program runs on one
 *    stream at a time.
 *  - Whatever a program, a batch or a run refers to (memory, weights, constants) is read when it
 *    runs, and may be freed or destroyed only once that run is complete.
 *  - A replay allocates nothing.
 *  - Functions return 0 or a negative KERN_E*; `last_error` returns the text of the device's latest
 *    error. An error of asynchronous work may be reported by a later call on the stream, at the
 *    latest by `sync`. `program_new` rejects what cannot run at all (unsupported shapes, types,
 *    type combinations or sizes) with a message that names the operation; callers use it to query
 *    capabilities. It also rejects unknown enum values, missing or misaligned weights and
 *    addresses, and overlapping rows. The caller ensures that enough memory lies behind each
 *    address.
 *  - A non-finite value in a row makes that row's dependent results non-finite (a clamp may make an
 *    infinity finite) and changes no bit of other rows. Denormal numbers are kept.
 *  - One thread at a time calls functions of a device and its streams; `counters` and `info` may be
 *    called from any thread.
 *  - Every operation computes each output row from that row's inputs alone, in an order of
 *    additions that is independent of the number of rows, the row's place in the batch and the
 *    number of threads (invariant I8). What a row must not see (later tokens, other sequences)
 *    never changes its bits.
 *
 * Layouts: shapes are written (rows, columns); the last index is contiguous. Addresses are at least
 * 4-byte aligned; leading dimensions are arbitrary. Padding between a row's columns and the next
 * row, and rows beyond the batch, are neither read nor written. Outputs do not overlap inputs
 * unless stated otherwise. */
#ifndef KERNELS_H
#define KERNELS_H

#include "kernels/error.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* For functions that device code uses too. */
#ifdef __CUDACC__
#define KERN_INLINE static inline __host__ __device__
#else
#define KERN_INLINE static inline
#endif

#define KERN_ABI 16u /* raised when a struct or a signature below changes */

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
	/* 256 values: f16 d, f16 m, 8 pairs of 6-bit s and t, 128 bytes of nibbles; for each group of
	 * 32 values w = d s q - m t */
	KERN_Q4_K,
	KERN_Q5_K, /* as Q4_K, with 32 bytes of high bits before the nibbles */
	/* 32 values (OCP MX): exponent e, 16 bytes of nibbles in Q4_0's order; w = E2M1(q) 2^(e - 127);
	 * e = 255: NaN */
	KERN_MXFP4,
	/* 128 values: float32 scale s, 128 codes of OCP 8-bit E4M3; w = s E4M3(c). A NaN code makes its
	 * whole block NaN. The last block of a row may have fewer values than its 128 codes */
	KERN_E4M3,
	/* end of the weight types; the types below are for KV only */
	KERN_WEIGHT_DTYPES,
	/* int8 q, |q| <= 127; x = s q, one float32 scale s per token, head, and K or V */
	KERN_I8 = KERN_WEIGHT_DTYPES,
	KERN_F8, /* OCP 8-bit E4M3 f, |f| <= 448; x = s f, scales as for KERN_I8 */
	KERN_DTYPE_COUNT
};

struct kern_device; /* backend state: threads, contexts, scratch */
struct kern_stream;
struct kern_weight; /* a matrix (n, k), repacked by the backend; computes y = x W^T */
struct kern_program;

/* --- memory -------------------------------------------------------------- */

/* A device address; v = 0: none. */
typedef struct kern_ptr {
	uintptr_t v;
} kern_ptr;

KERN_INLINE kern_ptr kern_at(kern_ptr p, size_t bytes)
{
	return (kern_ptr){p.v + bytes};
}

enum kern_memory {
	KERN_MEM_DEVICE, /* device memory; host is NULL */
	KERN_MEM_PINNED, /* host memory that the device reads and writes in place */
	/* device memory that other processes can map through a descriptor; host is NULL where the host
	 * cannot address it */
	KERN_MEM_SHARED,
	/* operands of collectives. All ranks of a group call mem_new for it in the same order with the
	 * same sizes; it waits for all of them. Ranks whose devices share memory get the same memory,
	 * others a copy each, at corresponding addresses. Without a group: as DEVICE */
	KERN_MEM_GROUP
};

struct kern_mem {
	kern_ptr dev;
	void *host;
	size_t bytes;
	enum kern_memory kind;
	void *own; /* private to the backend */
	int fd;    /* private to the backend */
};

/* A matrix of activations (rows, columns) in device memory; row r starts at element r * ld. */
struct kern_tensor {
	kern_ptr at;
	size_t ld;
	enum kern_dtype type;
};

/* --- devices ------------------------------------------------------------- */

/* The processes of a tensor-parallel group, this one included. All run the same programs over
 * their own columns. The operands of a collective lie in KERN_MEM_GROUP memory, where a rank
 * sees what others wrote only after a collective that names it. A rank may overwrite an operand
 * only after one further collective, by which time all ranks have read it. Every rank takes part
 * in every collective, even with no row or column to contribute. Only rank 0 draws: where its draws
 * are kept, it is in GROUP memory, and a broadcast follows them. */
struct kern_group {
	unsigned rank, ranks; /* ranks 0 or 1: no group */
	/* barrier: returns 0 once all ranks have called it, nonzero if the group is broken. Called from
	 * any thread, one call at a time; every rank calls it once per collective and once per
	 * KERN_OP_PROGRESS (of a batch with progress), in the same order. Devices with own_memory do
	 * not call it */
	int (*meet)(void *arg);
	/* every rank passes `bytes` (at most KERN_EXCHANGE_MAX) and a descriptor, or -1, which stays
	 * its own; returns 0 once it has those of all ranks: ret_all (ranks, bytes), ret_fds (ranks),
	 * of which the caller closes those that are not -1; this rank's own is -1. Nonzero: the group
	 * is broken. Called only in mem_new */
	int (*exchange)(void *arg, const void *mine, size_t bytes, int fd, void *ret_all, int *ret_fds);
	/* a word in host memory that becomes nonzero when the group is broken; a device may pin its
	 * page. NULL: there is none */
	const uint32_t *broken;
	/* devices with own_memory: how long a collective waits for another rank before it fails */
	unsigned limit_s;
	void *arg;
};
enum { KERN_EXCHANGE_MAX = 160 };

enum { KERN_THREADS_MAX = 256 };

struct kern_config {
	/* NULL or "auto": the best for this machine. cpu: "plain", "avx2", "avx512", "avx512bf16", or
	 * "reference", which keeps every product in float32 (no quantised activations). cuda: "fast"
	 * multiplies BF16 weights with cuBLASLt and always uses KERN_BF16 activations; with it a row's
	 * bits may depend on its batch (contrary to invariant I8) */
	const char *variant;
	unsigned threads; /* cpu: at most KERN_THREADS_MAX; 0 is 1 */
	int device_index;
	/* KERN_F32 (0), or KERN_BF16: products with BF16 weights round activations to BF16. cuda with
	 * KERN_BF16 also rounds for quantised weights, and attention rounds queries, K, V and softmax
	 * weights */
	enum kern_dtype activations;
	struct kern_group group;
	/* called from any thread soon after KERN_OP_PROGRESS of a batch with progress; must not block;
	 * may be NULL */
	void (*progressed)(void *arg);
	void *progressed_arg;
	/* backend-specific, or NULL (sim: struct sim_options of kernels/sim/options.h) */
	const void *options;
};

/* Device facts for the operator. Zeros and an empty name: the device is the host, or unknown. */
struct kern_info {
	char name[64]; /* "NVIDIA H100 80GB HBM3" */
	uint64_t memory_bytes, free_bytes;
	uint32_t temperature_c, power_w, clock_mhz, memory_clock_mhz;
	uint64_t memory_errors; /* uncorrectable, since the driver was loaded */
};

/* Runs of a stream that were started and not waited for: with more, busy_ns may leave out older
 * ones. */
enum { KERN_FLIGHTS = 2 };

/* Counters since the device was opened. */
struct kern_counters {
	/* grows while a replay advances: per layer, or at least per replay */
	uint64_t pulse;
	/* time with work in progress; this and the fields below are 0 where not counted */
	uint64_t busy_ns;
	uint64_t steps;
	uint64_t rows;      /* summed over the steps */
	uint64_t launches;  /* of kernels, summed over the steps */
	uint64_t kv_faults; /* steps that found invalid KV: wrong, stale or torn */
};

/* --- batches: what a replay reads ---------------------------------------- */

/* Consecutive rows of one sequence at consecutive positions: a chunk of a prompt, or one
 * decoding row. */
struct kern_span {
	uint32_t row, rows; /* rows [row, row + rows) of its kind (enum kern_rows) */
	/* position of the first row; row i of the span attends to positions 0 .. position + i */
	uint32_t position;
	uint32_t table; /* index in the batch's block table of this sequence's first block */
};

/* What KERN_OP_PROGRESS stores for a span: `value`, to the word of the layer; words are `stride`
 * apart. */
struct kern_progress {
	kern_ptr word; /* of layer 0; 0: no progress for this span */
	uint64_t value;
	uint64_t stride; /* in words */
};

/* What the host wants for a tail row. */
enum kern_ask { KERN_ASK_NOTHING, KERN_ASK_DRAW, KERN_ASK_SCORE };
enum { KERN_TOP_MAX = 20, KERN_DRAFTED_MAX = 64, KERN_MATCH_LONG = 32, KERN_HISTORY_MAX = 1 << 26 };
#define KERN_NONE UINT32_MAX

/* `n` consecutive entries in the batch, from word `at`. */
struct kern_list {
	uint32_t at, n;
};

/* A draw applies these steps to a row's logits, in this order:
 *    logits (reported log-probabilities are of these, the model's own)
 *    -> minus infinity for ids missing from either mask and for forbidden ids
 *    -> add biases
 *    -> for each seen id, in float32: l > 0 ? l / repetition : l * repetition, then - frequency
 *       * times, then - presence if times > 0
 *    -> / temperature -> min_p -> top_k -> top_p -> typical_p -> draw
 * Each filter renormalises the probabilities for the next one.
 *  - min_p keeps ids of at least min_p times the largest probability; top_k the k largest; top_p
 *    the largest until their sum reaches it; typical_p those whose surprise -ln p is nearest to the
 *    entropy, in order of that distance, until their sum reaches it. Ties: lower ids first.
 *  - The draw takes a 53-bit fraction u from Philox4x32-10 (key: seed, counter: index) and picks
 *    the first id, in descending order of probability, at which the running sum (double) exceeds u.
 *  - A temperature below 1e-5 is greedy: the lowest id among the largest logits after the changes.
 *    So is a row whose largest logit is then infinite.
 *  - If no id is left above minus infinity, the result is the lowest id in both masks; without
 *    masks, or if they have none in common, 0.
 * Rows may share masks and lists. A score computes the log-probability of `id` in the same way,
 * without a draw. */
struct kern_draw {
	uint32_t ask; /* enum kern_ask; NOTHING: no result is written */
	uint32_t id;  /* the id to score; below the vocabulary */
	/* number of most probable ids to report, at most KERN_TOP_MAX; -1: no log-probabilities at
	 * all */
	int32_t logprobs;
	float temperature, min_p, top_p, typical_p; /* min_p 0, top_p 1, typical_p 0 or 1: off */
	uint32_t top_k;                             /* 0: off */
	uint32_t seed[2], index[2];                 /* 64 bits, low word first */
	float repetition, presence, frequency;      /* 1, 0, 0: off */
	/* word offset of a bit mask (id % 32 of word id / 32), padded to whole 64 bits; 0: all ids
	 * allowed */
	uint32_t mask[2];
	/* ids; here and below, ids beyond the vocabulary are ignored */
	struct kern_list forbidden;
	struct kern_list bias; /* pairs: id, float32 */
	/* pairs: id, its count in the answer (0: in the prompt only); ids are distinct */
	struct kern_list seen;
	/* further ids that count as part of the answer, at most KERN_DRAFTED_MAX */
	struct kern_list drafted;
	/* 1: the row's own token counts as well, which only the device knows (struct kern_continued) */
	uint32_t pending;
};

/* What a tail row was given and what was drawn from it, kept for the next run. */
struct kern_kept {
	uint32_t token, id;
};

/* How a span continues one of the run before, whose draws the host does not know yet
 * (KERN_OP_CONTINUE). */
struct kern_continued {
	/* the entry of `kept` of the first of the earlier span's rows that drew, and their number: a
	 * row of the sequence's last token, then rows of a draft. KERN_NONE: the span is complete */
	uint32_t from, rows;
	/* the tail's span of this span's rows, no other span's; KERN_NONE: they draw nothing */
	uint32_t tail_span;
	/* the sequence's history, no other span's; KERN_NONE: none, and the span is a single row */
	uint32_t history;
	/* tokens that the history is to begin with, before the draws of the earlier span; n 0: it goes
	 * on */
	struct kern_list known;
};

struct kern_top {
	uint32_t id;
	float logprob;
};

/* The result of a row. Log-probabilities are natural logarithms of the unscaled distribution. */
struct kern_drawn {
	/* a logit is NaN or plus infinity: the other fields are set (NaN counts as minus infinity) but
	 * must not be used */
	uint32_t not_finite;
	uint32_t token; /* the row's own, from which it was drawn */
	uint32_t id;
	float logprob; /* this and the fields below are 0 without log-probabilities */
	uint32_t rank; /* 1: the most probable; ties: lower ids first */
	uint32_t n_top;
	struct kern_top top[KERN_TOP_MAX]; /* descending */
};

/* An operation runs over all rows of the batch or over its tail, the rows that reach the head. */
enum kern_rows { KERN_ROWS_ALL, KERN_ROWS_TAIL };

/* The header of a batch. The batch is one block of 4-byte words, 64-byte aligned, at most
 * kern_limits.batch_bytes long. Its parts are located by word offsets from its start: */
struct kern_batch {
	uint32_t words; /* of the batch, including this header */
	/* at least 1 row and span; the tail may be empty */
	uint32_t rows, spans, tail_rows, tail_spans;
	uint32_t tokens;    /* (rows) ids below the vocabulary (the caller checks) */
	uint32_t positions; /* (rows) consistent with the spans */
	/* (rows) where a row's KV is written: block * block_tokens + position % block_tokens; all
	 * distinct */
	uint32_t slots;
	uint32_t span;       /* (spans) struct kern_span, covering all rows in order */
	uint32_t tail_index; /* (tail_rows) index among all rows */
	uint32_t tail_span;  /* (tail_spans) struct kern_span over the tail's rows */
	/* pool block numbers; token t of a span is in the block at [table + t / block_tokens] */
	uint32_t table;
	/* (spans) struct kern_progress, at an even word; 0: no progress */
	uint32_t progress;
	uint32_t draws; /* (tail_rows) struct kern_draw; 0: no draws */
	/* tail row r's result is written at sample.results[first_result + r], and kept there, so that
	 * runs in flight do not overwrite each other's */
	uint32_t first_result;
	uint32_t continued; /* (spans) struct kern_continued; 0: none continues another */
};

/* The largest batch of a program; memory is sized by it. */
struct kern_limits {
	uint32_t rows, tail_rows, spans;
	uint32_t positions; /* of a sequence */
	uint32_t vocab;     /* for draws; 0: none */
	uint32_t results;   /* rows of sample.results; 0: tail_rows */
	/* histories of sequences, and the tokens that one can hold, at most KERN_HISTORY_MAX */
	uint32_t histories, history_tokens;
	size_t batch_bytes;
};

/* --- operations ---------------------------------------------------------- */

enum kern_rope_style { KERN_ROPE_HALF, KERN_ROPE_INTERLEAVED };
/* (u, v) -> (u cos a - v sin a, v cos a + u sin a), a = position * inv_freq[i], rounded to float32;
 * cos and sin are multiplied by `scale`. HALF: pair i is elements (i, i + dims/2); INTERLEAVED:
 * (2i, 2i + 1). */
struct kern_rope {
	enum kern_rope_style style;
	uint32_t dims;
	float scale;
	kern_ptr inv_freq; /* (dims / 2) float32 */
};

/* act(gate) * up: silu(g) u; gelu(g) u; SWIGLU_CLAMPED: g' sigmoid(1.702 g') (u' + 1) with g' =
 * min(g, 7) and u' = u clamped to -7 .. 7 */
enum kern_act { KERN_SILU, KERN_GELU_TANH, KERN_SWIGLU_CLAMPED };

/* One layer of the paged KV pool. The layer's piece of block b starts at base + b *
 * block_stride_bytes and is (kv_heads, 2) planes; index 0 is K, 1 is V. A plane is (block_tokens,
 * head_dim) elements of dtype, directly followed, for types with scales, by (block_tokens) float32
 * scales. A range of heads of a piece is therefore contiguous including its scales, and code that
 * moves pieces need not know about scales. There is no padding: head_dim is a multiple of 4, which
 * aligns the scales. With a latent the piece is (kv_heads) planes, one per head, and V is K's first
 * `latent` elements (multi-head latent attention, arXiv:2405.04434). */
struct kern_kv_layer {
	kern_ptr base;
	size_t block_stride_bytes;
	uint32_t kv_heads, head_dim, block_tokens;
	enum kern_dtype dtype; /* KERN_F32, KERN_F16, KERN_BF16, KERN_I8 or KERN_F8 */
	uint32_t layer;        /* layer number, from 0 */
	/* 0: separate planes for K and V; else V is K's first `latent` elements; at most head_dim, a
	 * multiple of 4 */
	uint32_t latent;
};

/* How a row's experts are chosen. The scores s are the softmax of the row's logits over all
 * experts, or the sigmoid of each; c = s + bias. With groups, a group's score is the sum of its two
 * largest c, and only experts of the `groups_used` best groups are eligible. The `used` largest c
 * are chosen; ties: lower numbers first. Their weights are s, divided by max(their sum, norm_min) +
 * norm_add if `normalise`, times `scale`. Formulas: DeepSeek-V3 (arXiv:2412.19437), section 2.1.2;
 * without groups and bias the usual top-k. */
enum kern_score { KERN_SCORE_SOFTMAX, KERN_SCORE_SIGMOID };
enum {
	KERN_EXPERTS_MAX = 1024,
	KERN_EXPERTS_USED_MAX = 64,
	KERN_PRODUCTS_MAX = 4,
	KERN_GATHERED_MAX = 2
};
struct kern_router {
	enum kern_score score;
	uint32_t experts, used; /* used <= experts, and at most as many as groups_used groups have */
	/* equal groups of at least 2 consecutive experts; 0 or 1: no groups */
	uint32_t groups, groups_used;
	kern_ptr bias; /* (experts) float32, or 0 */
	int normalise;
	float norm_min, norm_add, scale;
};

/* The weights of a layer's experts: arrays of `experts` entries in host memory that outlive every
 * program that refers to them. All gate and up matrices are (ffn, hidden), all down matrices (n,
 * k). Biases are (experts, ffn), (experts, ffn), (experts, n) float32, or 0. */
struct kern_experts {
	uint32_t experts;
	struct kern_weight **gate, **up, **down;
	kern_ptr gate_bias, up_bias, down_bias;
};

/* One product of a group that shares its activations: y (rows, n) = x W^T + bias. */
struct kern_product {
	const struct kern_weight *w;
	kern_ptr bias; /* (n) float32, or 0 */
	struct kern_tensor y;
};

/* x (R, parts, dim); the leading dimension is a part's. ids = 0: each rank has written its columns
 * of every part, its kern_share of dim in units of `unit` (at least 1). Else whole rows: row r was
 * written by the rank whose kern_share of `ids` contains the row's token. */
struct kern_gathered {
	struct kern_tensor x;
	uint32_t parts, dim, unit, ids;
};

enum kern_op_kind {
	KERN_OP_CONTINUE,
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
	/* collectives: a no-op on a device without a group */
	KERN_OP_GATHER,
	KERN_OP_BROADCAST,
	KERN_OP_BARRIER,
	KERN_OP_SAMPLE,
	KERN_OPS
};

/* An operation over `rows` (R below: their number in the batch). All addresses and shapes are fixed
 * when it is recorded. Norm weights are float32. */
struct kern_op {
	enum kern_op_kind kind;
	enum kern_rows rows;
	union {
		/* Completes spans that continue others; the first operation of a program, in which
		 * `kept` is where the draws of an earlier run were kept. Without it batches are
		 * complete. Of the earlier span's rows in `kept` (limits.results) those count whose
		 * tokens were drawn before them: a + 1 of them. The span's first token is what the last
		 * of these drew. The span, its rows' positions and slots, the tail's span and the
		 * indices of its draws move on by `a`; the host has written them for a = 0, and its
		 * block table covers a = rows - 1. The a + 1 draws are added to its history, and further
		 * tokens of the span are a draft: where the longest run of at least `match` and at most
		 * KERN_MATCH_LONG last tokens occurred before in the history, of equally long ones the
		 * latest, the tokens that followed, and after the last token the draft itself; if there
		 * is none, the first token again. histories (limits.histories, 1 +
		 * limits.history_tokens) words that the caller has zeroed */
		struct {
			kern_ptr kept, histories;
			uint32_t block_tokens, match;
		} carry_on;
		/* y[r] = W[token - first] for rows with token in [first, first + W.n); other rows are left
		 * unchanged. y (R, W.k) */
		struct {
			struct kern_tensor y;
			const struct kern_weight *w;
			uint32_t first;
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
		/* first x += a, if a is given; then y = w * x / sqrt(mean(x^2) + eps): (R, dim); y may be x
		 * or a */
		struct {
			struct kern_tensor y, x, a;
			kern_ptr w;
			uint32_t dim;
			float eps;
		} norm;
		/* in place, per head: x (R, heads, head_dim), w (head_dim) */
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
		/* in place: x (R, heads, head_dim); over all rows only. Elements of a head beyond dims are
		 * neither read nor written */
		struct {
			struct kern_tensor x;
			struct kern_rope rope;
			uint32_t heads, head_dim;
		} rope;
		/* k, v (R, kv_heads, head_dim; no v with a latent), rounded to the layer's dtype, to each
		 * row's slot. The scale of a token and head is its largest magnitude divided by the type's
		 * largest; NaN if the row contains a NaN or an infinity. Over all rows only */
		struct {
			struct kern_kv_layer kv;
			struct kern_tensor k, v;
		} kv_write;
		/* stores the batch's progress words of `layer` with release order, after the KV that
		 * earlier operations wrote. In a group rank 0 stores, once all ranks have reached this
		 * operation. No-op for a batch without progress */
		struct {
			uint32_t layer;
		} progress;
		/* out (R, heads, head_dim) = softmax(q k * scale) v over positions max(0, p - window + 1)
		 * .. p of the row's own sequence; window 0: unlimited; query head h reads KV head h /
		 * (heads / kv_heads). With a latent, out is (R, heads, latent). sinks (heads) float32, or
		 * 0: one extra logit per head, without position or value; -infinity: no sink */
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
		/* ids and weights (R, used), dense: each row's experts in order of their c, from logits (R,
		 * experts). A NaN among a row's logits makes its weights NaN and its ids arbitrary but
		 * distinct experts */
		struct {
			struct kern_router router;
			kern_ptr ids, weights;
			struct kern_tensor logits;
		} route;
		/* y[r, j] = act(gate_e x[r]) * up_e x[r], e = ids[r, j]: x (R, hidden), y (R, used, ffn);
		 * the leading dimension is a pair's (r, j). A row's ids are distinct */
		struct {
			struct kern_experts experts;
			kern_ptr ids;
			uint32_t used;
			enum kern_act act;
			struct kern_tensor y, x;
		} experts_act;
		/* y[r] = sum of weights[r, j] * down_e x[r, j] in ascending order of e, added to y[r] if
		 * `add`: x (R, used, k), leading dimension of a pair; y (R, n) */
		struct {
			struct kern_experts experts;
			kern_ptr ids, weights;
			uint32_t used;
			int add;
			struct kern_tensor y, x;
		} experts_down;
		/* y[r, h] = w[h] x[r, h]; the `tail` elements after a head's k are copied after its n: x
		 * (R, heads, k + tail), y (R, heads, n + tail). w: `heads` matrices (n, k), an array in
		 * host memory that lives as long as the program */
		struct {
			struct kern_tensor y, x;
			struct kern_weight *const *w;
			uint32_t heads, tail;
		} heads_matmul;
		/* afterwards every rank has every tensor complete; with `to_first` only rank 0 needs to */
		struct {
			uint32_t tensors;
			int to_first;
			struct kern_gathered t[KERN_GATHERED_MAX];
		} gather;
		/* afterwards every rank has the `bytes` bytes that rank 0 has at `at`; a multiple of 4. The
		 * batch is not read */
		struct {
			kern_ptr at;
			size_t bytes;
		} broadcast;
		/* no rank continues before all ranks have arrived */
		struct {
			int none;
		} barrier;
		/* answers the batch's draws: results (limits.results) struct kern_drawn in PINNED memory,
		 * from logits (R, limits.vocab); kept (limits.results) struct kern_kept, or 0. Over the
		 * tail only; in a group rank 0 does it */
		struct {
			struct kern_tensor logits;
			kern_ptr results, kept;
		} sample;
	};
};

/* The largest shapes of a program's operations, for kern_ops.program_bytes; 0: no such
 * operation. */
struct kern_shape {
	size_t ops;
	/* columns that a product reads, for a heads_matmul over all heads */
	uint32_t in;
	uint32_t heads;          /* of attention */
	struct kern_kv_layer kv; /* attention's KV heads, head_dim and latent */
	uint32_t angles;         /* dims summed over all distinct ropes */
	uint32_t experts, used;  /* used: per row */
	/* columns: expert_in: read; expert_out: written, gate and up together */
	uint32_t expert_layers, expert_in, expert_out;
};

/* --- a backend ----------------------------------------------------------- */

struct kern_ops {
	uint32_t abi;       /* KERN_ABI */
	const char *name;   /* "cpu", "sim" */
	unsigned ranks_max; /* largest group; 1: no groups */
	/* 1: computes nothing, models time; needs `options`, and weights have no data */
	int modelled;
	/* 1: a device has memory of its own, which the ranks of a group do not share */
	int own_memory;
	/* 1: `run` returns while the device works, so the host can prepare the next run meanwhile */
	int queued;

	/* device; ret_ values are written only on success */
	int (*open)(const struct kern_config *conf, struct kern_device **ret_dev, char *errbuf,
	            size_t errlen);
	void (*close)(struct kern_device **dev);
	/* part of the numerics id: "cpu-r4", with KERN_BF16 activations "cpu-r4-bf16act". Equal texts
	 * promise equal bits (all CPU variants but "reference" share one text), except for cuda's
	 * variant "fast" */
	const char *(*numerics)(const struct kern_device *dev);
	const char *(*last_error)(const struct kern_device *dev);
	/* counters and info: from any thread, at any time */
	void (*counters)(const struct kern_device *dev, struct kern_counters *ret);
	void (*info)(const struct kern_device *dev, struct kern_info *ret);

	/* memory: zeroed, aligned to at least 64 bytes. GROUP memory is not shared or mapped by the two
	 * functions below */
	int (*mem_new)(struct kern_device *dev, enum kern_memory kind, size_t bytes,
	               struct kern_mem *ret_mem);
	/* mem_share: a descriptor of SHARED memory for other processes; the caller closes it. mem_map:
	 * the memory behind such a descriptor, as SHARED memory. ENOTSUP where the device cannot */
	int (*mem_share)(struct kern_device *dev, const struct kern_mem *mem, int *ret_fd);
	int (*mem_map)(struct kern_device *dev, int fd, size_t bytes, struct kern_mem *ret_mem);
	/* registers the caller's host memory (a shared mapping) as PINNED; it stays the caller's, who
	 * keeps it mapped until mem_free */
	int (*mem_pin)(struct kern_device *dev, void *host, size_t bytes, struct kern_mem *ret_mem);
	/* clears *mem; no-op for a cleared one */
	void (*mem_free)(struct kern_device *dev, struct kern_mem *mem);

	int (*stream_new)(struct kern_device *dev, struct kern_stream **ret_stream);
	void (*stream_destroy)(struct kern_stream **stream);
	int (*upload)(struct kern_stream *s, kern_ptr dst, const void *src, size_t bytes);
	int (*download)(struct kern_stream *s, void *dst, kern_ptr src, size_t bytes);
	int (*sync)(struct kern_stream *s);
	/* Like sync, for all work before the latest run: that one may still be in progress. */
	int (*sync_previous)(struct kern_stream *s);

	/* `data` is host memory in the file's format, n rows of k, row_bytes apart (0: dense; larger
	 * for a column range of a wider matrix); may be unmapped after the call returns. sim: not read,
	 * may be NULL */
	int (*weight_new)(struct kern_device *dev, enum kern_dtype dtype, uint32_t n, uint32_t k,
	                  const void *data, size_t row_bytes, struct kern_weight **ret_w);
	void (*weight_destroy)(struct kern_device *dev, struct kern_weight **w);
	/* Says that w has some of the rows of a matrix with `n` rows: products with w get the bits of
	 * products with the whole matrix. Before a program uses w. NULL: bits do not depend on n */
	void (*weight_part_of)(struct kern_weight *w, uint32_t n);

	/* Upper estimate of the host memory that a program takes besides what its operations refer to;
	 * callable before there is a device or a weight. 0: unknown. Never NULL. */
	size_t (*program_bytes)(const struct kern_config *conf, const struct kern_limits *limits,
	                        const struct kern_shape *shape);
	/* Copies the operations; whatever they refer to must outlive the program. One program of a
	 * device runs at a time. */
	int (*program_new)(struct kern_device *dev, const struct kern_op *ops, size_t n,
	                   const struct kern_limits *limits, struct kern_program **ret_p);
	void (*program_destroy)(struct kern_program **p);
	/* Replays the program over a batch that is PINNED memory or a part of it (dev and host offset
	 * alike). The batch must not change before the run is complete; each run may use another one.
	 * Returns EINVAL, before anything runs, for a batch that kern_batch_check rejects. */
	int (*run)(struct kern_stream *s, struct kern_program *p, const struct kern_mem *batch);
};

/* The backend called `name`: a built-in one, or the shared object pdserve-NAME.so (load.h). NULL
 * and a message in errbuf if there is none or its ABI differs. */
const struct kern_ops *kern_backend(const char *name, char *errbuf, size_t errlen);

/* Start of rank `rank`'s share of `total` items, distributed in whole units of `unit` (at least 1);
 * the share ends where the next rank's starts. */
KERN_INLINE uint32_t kern_share(uint32_t total, uint32_t unit, unsigned rank, unsigned ranks)
{
	uint64_t units = ((uint64_t)total + unit - 1) / unit, begin = units * rank / ranks * unit;
	return begin < total ? (uint32_t)begin : total;
}

/* Size in bytes of `count` elements of a row; 0 if `count` is not a multiple of the type's block
 * (KERN_E4M3: rounded up to whole blocks). */
size_t kern_dtype_bytes(enum kern_dtype t, size_t count);
const char *kern_dtype_name(enum kern_dtype t);
const char *kern_op_name(enum kern_op_kind k);
/* Scale bytes per token and head, in addition to its elements: 4 for types with scales, else 0. */
size_t kern_kv_scale_bytes(enum kern_dtype t);
size_t kern_kv_plane_bytes(const struct kern_kv_layer *kv);
KERN_INLINE uint32_t kern_kv_planes(const struct kern_kv_layer *kv)
{
	return kv->latent ? kv->kv_heads : 2 * kv->kv_heads;
}
/* Returns 0, or KERN_EINVAL and a message for a batch that exceeds the limits, has parts beyond its
 * words, or whose spans do not cover all rows in order. The caller checks that block tables cover
 * their spans and that slots and blocks belong to the pool. */
int kern_batch_check(const struct kern_mem *batch, const struct kern_limits *limits, char *errbuf,
                     size_t errlen);
/* For backends: returns 0, or KERN_EINVAL (KERN_ENOTSUP: an unknown operation) and a message for
 * programs and weights that violate the contract. ranks: of the group; 0 or 1: no group. Does
 * not check what depends on a weight's shape or on a backend's own limits; tensors and constants
 * are the backend's to check. row_bytes 0: dense. */
int kern_program_check(const struct kern_op *ops, size_t n, const struct kern_limits *limits,
                       unsigned ranks, char *errbuf, size_t errlen);
int kern_weight_check(enum kern_dtype dtype, uint32_t n, uint32_t k, size_t row_bytes, char *errbuf,
                      size_t errlen);
/* The part of a batch at word `at`. */
KERN_INLINE const void *kern_part(const struct kern_batch *b, uint32_t at)
{
	return (const uint32_t *)(const void *)b + at;
}

extern const struct kern_ops kern_cpu_ops, kern_sim_ops;

#ifdef __cplusplus
}
#endif

#endif
