/* bench_gpu.h - a model of a known shape with random weights, as programs of kern_ops alone. What
 * fails ends the process with status 1; a lack of memory ends it with status 0 and a line
 * that says so. */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H

#include "kernels/device.h"
#include "kernels/ops.h"

struct shape {
	const char *name;
	uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
};
enum { BLOCK = 64 };
enum { W_QKV, W_O = 3, W_GATE, W_UP, W_DOWN, WEIGHTS };

/* A step's operations, or some of them, for each layer. */
enum part { PART_STEP, PART_LAYERS, PART_ATTENTION, PART_KV_WRITE };

struct bench {
	const struct kern_ops *k;
	struct kern_device *dev;
	struct kern_stream *stream;
	const struct shape *s;
	enum kern_dtype type;
	char title[64]; /* "8b q4_k bf16" */
	struct kern_weight *(*w)[WEIGHTS], *embed, *head;
	struct kern_mem scratch, pool, batch, results, norm;
	struct kern_tensor x, h, q, kk, v, att, gate, up, tail, logits;
	struct kern_op *ops;
	size_t n_ops, weight_bytes;
	uint32_t rows, tail_rows; /* most of a step */
	uint32_t positions;       /* of a sequence */
	uint32_t blocks;          /* of the pool */
	double read_gbs, dense_tflops;
};

/* Continues if rc is 0. */
void bench_check(const struct bench *b, const char *what, int rc);
/* Weights, scratch memory, and a pool of at most b->blocks, full of random KV; sets b->blocks to
 * the number that fits. */
void bench_model_new(struct bench *b);
/* At most `rows` rows. */
struct kern_program *bench_program(struct bench *b, enum part part, uint32_t rows);
/* Lays out a batch of `spans` sequences with `rows` tokens each behind `position` tokens of
 * context; one token is drawn for each. */
void bench_batch(struct bench *b, uint32_t spans, uint32_t rows, uint32_t position);
/* Blocks that the sequences share because the pool cannot hold all that they have; 0: each has `of`
 * blocks of its own, or even shared ones do not fit. */
uint32_t bench_shared(const struct bench *b, uint32_t spans, uint32_t of);

/* Blocks of a sequence. */
static inline uint32_t bench_blocks(uint32_t rows, uint32_t position)
{
	return (position + rows + BLOCK - 1) / BLOCK;
}

static inline size_t bench_kv_token_bytes(const struct shape *s)
{
	return (size_t)4 * s->layers * s->kv_heads * s->head_dim; /* K and V, bfloat16 */
}

#endif
