/* ops.h - the operations of a program: what each computes, and where its operands are.
 *
 * Rules for every backend:
 *  - Every operation computes each output row from that row's inputs alone, in an order of
 *    additions that is independent of the number of rows, the row's place in the batch and the
 *    number of threads (invariant I8). What a row must not see (later tokens, other sequences)
 *    never changes its bits.
 *  - A non-finite value in a row makes that row's dependent results non-finite (a clamp may make an
 *    infinity finite) and changes no bit of other rows. Denormal numbers are kept.
 *
 * Layouts: shapes are written (rows, columns); the last index is contiguous. Addresses are at least
 * 4-byte aligned; leading dimensions are arbitrary. Padding between a row's columns and the next
 * row, and rows beyond the batch, are neither read nor written. Outputs do not overlap inputs
 * unless stated otherwise. */
#ifndef KERNELS_OPS_H
#define KERNELS_OPS_H

#include "kernels/batch.h"
#include "kernels/group.h"

#ifdef __cplusplus
extern "C" {
#endif

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

/* How a row's experts are chosen. The scores s are the softmax of the row's logits over all
 * experts, or the sigmoid of each; c = s + bias. With groups, a group's score is the sum of its two
 * largest c, and only experts of the `groups_used` best groups are eligible. The `used` largest c
 * are chosen; ties: lower numbers first. Their weights are s, divided by max(their sum, norm_min) +
 * norm_add if `normalise`, times `scale`. Formulas: DeepSeek-V3 (arXiv:2412.19437), section 2.1.2;
 * without groups and bias the usual top-k. */
enum kern_score { KERN_SCORE_SOFTMAX, KERN_SCORE_SIGMOID };
enum { KERN_EXPERTS_MAX = 1024, KERN_EXPERTS_USED_MAX = 64, KERN_PRODUCTS_MAX = 4 };
struct kern_router {
	enum kern_score score;
	uint32_t experts, used; /* used <= experts, and at most as many as groups_used groups have */
	/* equal groups of at least 2 consecutive experts; 0 or 1: no groups */
	uint32_t groups, groups_used;
	kern_ptr bias; /* (experts) float32, or 0 */
	int normalise;
	float norm_min, norm_add, scale;
};

/* The weights of a layer's experts first .. first + count - 1, of `experts` that rows choose from:
 * pairs (row, expert) of others are skipped. gate, up (count, ffn, hidden), down (count, n, k), one
 * matrix if count is 0. Biases are (count, ffn), (count, ffn), (count, n) float32, or 0. */
struct kern_experts {
	uint32_t experts, first, count;
	const struct kern_weight *gate, *up, *down;
	kern_ptr gate_bias, up_bias, down_bias;
};

/* One product of a group that shares its activations: y (rows, n) = x W^T + bias. */
struct kern_product {
	const struct kern_weight *w;
	kern_ptr bias; /* (n) float32, or 0 */
	struct kern_tensor y;
};

/* Kind and name of each operation: the name of its member in struct kern_op, of its description
 * (ops.c), and in what compiles it: build_NAME (cpu), plan_NAME (cuda). */
#define KERN_OPERATIONS(X)                                               \
	X(KERN_OP_ADVANCE, advance)                                          \
	X(KERN_OP_EMBED, embed)                                              \
	X(KERN_OP_GATHER_ROWS, gather_rows)                                  \
	X(KERN_OP_SCALE, scale)                                              \
	X(KERN_OP_NORM, norm)                                                \
	X(KERN_OP_HEAD_NORM, head_norm)                                      \
	X(KERN_OP_MATMUL, matmul)                                            \
	X(KERN_OP_ROPE, rope)                                                \
	X(KERN_OP_KV_WRITE, kv_write)                                        \
	X(KERN_OP_PROGRESS, progress)                                        \
	X(KERN_OP_ATTENTION, attention)                                      \
	X(KERN_OP_ACT_MUL, act_mul)                                          \
	X(KERN_OP_ROUTE, route)                                              \
	X(KERN_OP_EXPERTS_ACT, experts_act)                                  \
	X(KERN_OP_EXPERTS_DOWN, experts_down)                                \
	X(KERN_OP_EXPERTS_SUM, experts_sum)                                  \
	X(KERN_OP_HEADS_MATMUL, heads_matmul)                                \
	/* collectives: a no-op on a device without a group */               \
	X(KERN_OP_GATHER, gather)                                            \
	X(KERN_OP_BROADCAST, broadcast)                                      \
	/* no rank continues before all ranks have arrived; has no member */ \
	X(KERN_OP_BARRIER, barrier)                                          \
	X(KERN_OP_REDUCE, reduce)                                            \
	X(KERN_OP_SEND, send) /* between stages of a pipeline */             \
	X(KERN_OP_RECV, recv)                                                \
	X(KERN_OP_SAMPLE, sample)
#define KERN_OP_KIND(KIND, NAME) KIND,
enum kern_op_kind { KERN_OPERATIONS(KERN_OP_KIND) KERN_OPS };

/* An operation over `rows` (R below: their number in the batch). All addresses and shapes are fixed
 * when it is recorded. Norm weights are float32. */
struct kern_op {
	enum kern_op_kind kind;
	enum kern_rows rows;
	union {
		/* Completes spans whose first token the run before has drawn (struct kern_advance); the
		 * first operation of a program. `kept`: where an earlier run has kept its draws. Without
		 * this operation all spans are complete. histories (limits.histories, 1 +
		 * limits.history_tokens) words that the caller has zeroed */
		struct {
			kern_ptr kept, histories;
			uint32_t block_tokens, match;
		} advance;
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
		 * the leading dimension is a pair's (r, j). A row's ids are distinct. y of a pair that is
		 * skipped is left unchanged */
		struct {
			struct kern_experts experts;
			kern_ptr ids;
			uint32_t used;
			enum kern_act act;
			struct kern_tensor y, x;
		} experts_act;
		/* y[r] = sum of weights[r, j] * down_e x[r, j] in ascending order of e, added to y[r] if
		 * `add`: x (R, used, k), leading dimension of a pair; y (R, n). Of a pair that is skipped
		 * neither x nor the weight is read. With `pairs` nothing is added up, and there are no
		 * weights: y[r, j] = down_e x[r, j], (R, used, n); y of a pair that is skipped is left
		 * unchanged */
		struct {
			struct kern_experts experts;
			kern_ptr ids, weights;
			uint32_t used;
			int add, pairs;
			struct kern_tensor y, x;
		} experts_down;
		/* the rest of experts_down, with its bits: y[r] = sum of weights[r, j] * x[r, j] in
		 * ascending order of ids[r, j], added to y[r] if `add`: x (R, used, dim), y (R, dim) */
		struct {
			kern_ptr ids, weights;
			uint32_t used, dim;
			int add;
			struct kern_tensor y, x;
		} experts_sum;
		/* y[r, h] = w[h] x[r, h]; the `tail` elements after a head's k are copied after its n: x
		 * (R, heads, k + tail), y (R, heads, n + tail), w (heads, n, k) */
		struct {
			struct kern_tensor y, x;
			const struct kern_weight *w;
			uint32_t heads, tail;
		} heads_matmul;
		struct kern_gather gather; /* this and the next four: group.h */
		struct kern_broadcast broadcast;
		struct kern_reduce reduce;
		struct kern_transfer send, recv;
		/* answers the batch's draws: results (limits.results) struct kern_drawn in PINNED memory,
		 * from logits (R, limits.vocab); kept (limits.results) struct kern_kept, or 0. Over the
		 * tail only; in a group rank 0 does it */
		struct {
			struct kern_tensor logits;
			kern_ptr results, kept;
		} sample;
	};
};

const char *kern_op_name(enum kern_op_kind k);

#ifdef __cplusplus
}
#endif

#endif
