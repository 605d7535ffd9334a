/* bench_gpu.c - steps of models of known shapes on a device, through kern_ops alone: decoding for
 * batches of 1 to 256 sequences, prefill of long prompts. What is printed is a step's time, tokens
 * a second, and for decoding the bytes that must be read (weights, KV) in that time, as a part of
 * the bandwidth that is given. Weights are random; logits are drawn from greedily.
 *   bench_gpu BACKEND[:VARIANT] SHAPE TYPE ACTIVATIONS [read GB/s] [dense TFLOP/s]
 *   bench_gpu cuda 8b q4_k bf16 3000 790 */
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct shape {
	const char *name;
	uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
};
static const struct shape shapes[] = {
	{"8b", 32, 4096, 32, 8, 128, 14336, 128256}, /* Llama 3 8B */
	{"1b", 16, 2048, 32, 8, 64, 8192, 128256},   /* Llama 3.2 1B */
	{"135m", 30, 576, 9, 3, 64, 1536, 49152},    /* SmolLM2 135M */
	{"tiny", 2, 64, 4, 2, 16, 128, 320},
};
enum { BLOCK = 64, OPS_OF_A_LAYER = 12 };
enum { W_QKV, W_O = 3, W_GATE, W_UP, W_DOWN, WEIGHTS };

struct bench {
	const struct kern_ops *k;
	struct kern_device *dev;
	struct kern_stream *stream;
	const struct shape *s;
	enum kern_dtype type;
	struct kern_weight *(*w)[WEIGHTS], *embed, *head;
	struct kern_mem scratch, pool, batch, results, norm;
	struct kern_tensor x, h, q, kk, v, att, gate, up, tail, logits;
	struct kern_op *ops;
	size_t n_ops, weight_bytes;
	uint32_t rows, tail_rows, blocks; /* most of a step; of the pool */
	double read_gbs, dense_tflops;
};

static void die(const struct bench *b, const char *what, int rc)
{
	if (!rc)
		return;
	fprintf(stderr, "bench_gpu: %s: %s\n", what, b->dev ? b->k->last_error(b->dev) : "");
	exit(1);
}

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- weights ------------------------------------------------------------- */

/* Bytes that are small numbers in every format: where blocks have scales, 2^-7 as float16 or
 * bfloat16, or about 2^-11 as float32. */
static unsigned char *random_rows(enum kern_dtype t, uint32_t n, uint32_t k)
{
	static unsigned char *data;
	static size_t have;
	size_t bytes = kern_dtype_bytes(t, k) * n,
		   block = kern_dtype_bytes(t,
	                                t == KERN_Q4_K || t == KERN_Q6_K || t == KERN_Q5_K ? 256 : 32);
	const char *scale = t == KERN_E4M3 ? "\0\0\0\x3a" : "\0\x20";
	uint32_t seed = 1;
	if (bytes <= have)
		return data;
	data = realloc(data, have = bytes);
	for (size_t i = 0; i < bytes; i++) {
		seed = seed * 1664525u + 1013904223u;
		data[i] = (unsigned char)(seed >> 24);
	}
	for (size_t i = 0; t == KERN_E4M3 && i < bytes; i++)
		data[i] &= 0xfe; /* no NaN */
	for (size_t i = 0; t == KERN_BF16 && i < bytes; i += 2)
		data[i + 1] = (unsigned char)((data[i + 1] & 0x80) | 0x3c);
	for (size_t i = 0; t != KERN_BF16 && i < bytes; i += block) {
		memcpy(data + i + (t == KERN_Q6_K ? 208 : 0), scale, t == KERN_E4M3 ? 4 : 2);
		if (t == KERN_Q4_K || t == KERN_Q5_K || t == KERN_Q4_1)
			memcpy(data + i + 2, "\0\x20", 2);
	}
	return data;
}

static struct kern_weight *weight(struct bench *b, uint32_t n, uint32_t k)
{
	struct kern_weight *w = NULL;
	die(b, "weight_new",
	    b->k->weight_new(b->dev, b->type, n, k, random_rows(b->type, n, k), 0, &w));
	b->weight_bytes += kern_dtype_bytes(b->type, k) * n;
	return w;
}

static void weights_new(struct bench *b)
{
	const struct shape *s = b->s;
	uint32_t width = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
	random_rows(b->type, s->vocab, s->hidden);
	b->w = calloc(s->layers, sizeof *b->w);
	for (uint32_t l = 0; l < s->layers; l++) {
		struct kern_weight **w = b->w[l];
		w[W_QKV] = weight(b, width, s->hidden), w[W_QKV + 1] = weight(b, kv, s->hidden),
		w[W_QKV + 2] = weight(b, kv, s->hidden);
		w[W_O] = weight(b, s->hidden, width);
		w[W_GATE] = weight(b, s->ffn, s->hidden), w[W_UP] = weight(b, s->ffn, s->hidden),
		w[W_DOWN] = weight(b, s->hidden, s->ffn);
	}
	b->head = weight(b, s->vocab, s->hidden);
	size_t read = b->weight_bytes;
	b->embed = weight(b, s->vocab, s->hidden);
	b->weight_bytes = read; /* of the embedding only a row of each token is read */
}

/* --- the program --------------------------------------------------------- */

static void alloc(struct bench *b, enum kern_memory kind, size_t bytes, struct kern_mem *m)
{
	die(b, "mem_new", b->k->mem_new(b->dev, kind, bytes, m));
}

static struct kern_tensor take(struct bench *b, size_t *at, uint32_t rows, uint32_t columns)
{
	struct kern_tensor t = {kern_at(b->scratch.dev, *at), columns, KERN_F32};
	*at += ((size_t)rows * columns * sizeof(float) + 255) / 256 * 256;
	return t;
}

static void scratch_new(struct bench *b)
{
	const struct shape *s = b->s;
	uint32_t width = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
	size_t at = 0, floats = 3ull * s->hidden + 2ull * width + 2ull * kv + 2ull * s->ffn;
	float *ones = malloc(s->hidden * sizeof *ones);
	for (uint32_t i = 0; i < s->hidden; i++)
		ones[i] = 1;
	alloc(b, KERN_MEM_DEVICE,
	      16 * 256 +
	          sizeof(float) * (b->rows * floats + (size_t)b->tail_rows * (s->vocab + s->hidden)),
	      &b->scratch);
	alloc(b, KERN_MEM_DEVICE, (s->hidden + s->head_dim) * sizeof *ones, &b->norm);
	die(b, "upload", b->k->upload(b->stream, b->norm.dev, ones, s->hidden * sizeof *ones));
	for (uint32_t i = 0; i < s->head_dim / 2; i++)
		ones[i] = 1.0f / (float)(i + 1);
	die(b, "sync", b->k->sync(b->stream));
	die(b, "upload",
	    b->k->upload(b->stream, kern_at(b->norm.dev, s->hidden * sizeof *ones), ones,
	                 s->head_dim / 2 * sizeof *ones));
	die(b, "sync", b->k->sync(b->stream));
	free(ones);
	b->x = take(b, &at, b->rows, s->hidden), b->h = take(b, &at, b->rows, s->hidden);
	b->q = take(b, &at, b->rows, width), b->kk = take(b, &at, b->rows, kv),
	b->v = take(b, &at, b->rows, kv), b->att = take(b, &at, b->rows, width);
	b->gate = take(b, &at, b->rows, s->ffn), b->up = take(b, &at, b->rows, s->ffn);
	b->tail = take(b, &at, b->tail_rows, s->hidden),
	b->logits = take(b, &at, b->tail_rows, s->vocab);
}

static struct kern_op *next(struct bench *b, enum kern_op_kind kind)
{
	struct kern_op *op = &b->ops[b->n_ops++];
	op->kind = kind;
	return op;
}

static void product(struct bench *b, struct kern_tensor x, uint32_t n, struct kern_weight *const *w,
                    const struct kern_tensor *y)
{
	struct kern_op *op = next(b, KERN_OP_MATMUL);
	op->matmul.x = x;
	op->matmul.products = n;
	for (uint32_t i = 0; i < n; i++)
		op->matmul.p[i] = (struct kern_product){w[i], {0}, y[i]};
}

static void norm(struct bench *b, struct kern_tensor y, struct kern_tensor a)
{
	struct kern_op *op = next(b, KERN_OP_NORM);
	op->norm.y = y, op->norm.x = b->x, op->norm.a = a, op->norm.w = b->norm.dev,
	op->norm.dim = b->s->hidden, op->norm.eps = 1e-5f;
}

static void layer_record(struct bench *b, uint32_t l)
{
	const struct shape *s = b->s;
	struct kern_kv_layer kv = {.kv_heads = s->kv_heads,
	                           .head_dim = s->head_dim,
	                           .block_tokens = BLOCK,
	                           .dtype = KERN_BF16,
	                           .layer = l};
	struct kern_weight **w = b->w[l];
	kv.block_stride_bytes = kern_kv_planes(&kv) * kern_kv_plane_bytes(&kv);
	kv.base = kern_at(b->pool.dev, (size_t)l * b->blocks * kv.block_stride_bytes);
	/* what the layer before gave lies in gate */
	norm(b, b->h, l ? b->gate : (struct kern_tensor){0});
	product(b, b->h, 3, w + W_QKV, (struct kern_tensor[]){b->q, b->kk, b->v});
	for (int i = 0; i < 2; i++) {
		struct kern_op *op = next(b, KERN_OP_ROPE);
		op->rope.x = i ? b->kk : b->q, op->rope.heads = i ? s->kv_heads : s->heads,
		op->rope.head_dim = s->head_dim;
		op->rope.rope = (struct kern_rope){KERN_ROPE_HALF, s->head_dim, 1,
		                                   kern_at(b->norm.dev, s->hidden * sizeof(float))};
	}
	struct kern_op *op = next(b, KERN_OP_KV_WRITE);
	op->kv_write.kv = kv, op->kv_write.k = b->kk, op->kv_write.v = b->v;
	op = next(b, KERN_OP_ATTENTION);
	op->attention.kv = kv, op->attention.out = b->att, op->attention.q = b->q,
	op->attention.heads = s->heads, op->attention.scale = 0.088f;
	product(b, b->att, 1, &w[W_O], (struct kern_tensor[]){{b->gate.at, s->hidden, KERN_F32}});
	norm(b, b->h, (struct kern_tensor){b->gate.at, s->hidden, KERN_F32});
	product(b, b->h, 2, w + W_GATE, (struct kern_tensor[]){b->gate, b->up});
	op = next(b, KERN_OP_ACT_MUL);
	op->act_mul.y = b->up, op->act_mul.gate = b->gate, op->act_mul.up = b->up,
	op->act_mul.dim = s->ffn;
	product(b, b->up, 1, &w[W_DOWN], (struct kern_tensor[]){{b->gate.at, s->hidden, KERN_F32}});
	b->gate.ld = s->ffn;
}

static void record(struct bench *b)
{
	const struct shape *s = b->s;
	b->ops = calloc(s->layers * OPS_OF_A_LAYER + 8, sizeof *b->ops);
	struct kern_op *op = next(b, KERN_OP_EMBED);
	op->embed.y = b->x, op->embed.w = b->embed;
	for (uint32_t l = 0; l < s->layers; l++)
		layer_record(b, l);
	for (size_t i = 0; i < b->n_ops; i++) /* a norm's addend is a layer's result: hidden columns */
		if (b->ops[i].kind == KERN_OP_NORM && b->ops[i].norm.a.at.v)
			b->ops[i].norm.a.ld = s->hidden;
	norm(b, b->h, (struct kern_tensor){b->gate.at, s->hidden, KERN_F32});
	op = next(b, KERN_OP_GATHER_ROWS);
	op->rows = KERN_ROWS_TAIL, op->gather_rows.y = b->tail, op->gather_rows.x = b->h,
	op->gather_rows.dim = s->hidden;
	product(b, b->tail, 1, &b->head, &b->logits);
	b->ops[b->n_ops - 1].rows = KERN_ROWS_TAIL;
	op = next(b, KERN_OP_SAMPLE);
	op->rows = KERN_ROWS_TAIL, op->sample.logits = b->logits, op->sample.results = b->results.dev;
}

/* --- steps --------------------------------------------------------------- */

/* `spans` sequences with `rows` tokens each behind `position` tokens of context; one token is
 * drawn for each. */
static void batch_write(struct bench *b, uint32_t spans, uint32_t rows, uint32_t position)
{
	uint32_t *words = b->batch.host, all = spans * rows, of = (position + rows + BLOCK - 1) / BLOCK;
	struct kern_batch *h = b->batch.host;
	memset(words, 0, b->batch.bytes);
	*h = (struct kern_batch){
		.rows = all, .spans = spans, .tail_rows = spans, .tail_spans = spans, .tokens = 16};
	h->positions = h->tokens + all;
	h->slots = h->positions + all;
	h->span = h->slots + all;
	h->tail_index = h->span + 4 * spans;
	h->tail_span = h->tail_index + spans;
	h->draws = h->tail_span + 4 * spans;
	h->table = h->draws + spans * (uint32_t)(sizeof(struct kern_draw) / 4);
	h->words = h->table + spans * of;
	struct kern_span *span = (void *)(words + h->span), *tail = (void *)(words + h->tail_span);
	struct kern_draw *draw = (void *)(words + h->draws);
	for (uint32_t i = 0; i < spans; i++) {
		span[i] = (struct kern_span){i * rows, rows, position, i * of};
		tail[i] = (struct kern_span){i, 1, position + rows - 1, i * of};
		words[h->tail_index + i] = i * rows + rows - 1;
		draw[i] = (struct kern_draw){.ask = KERN_ASK_DRAW,
		                             .logprobs = -1,
		                             .carry = KERN_NO_CARRY,
		                             .top_p = 1,
		                             .repetition = 1};
		for (uint32_t k = 0; k < of; k++)
			words[h->table + i * of + k] = (i * of + k) % b->blocks;
		for (uint32_t r = 0; r < rows; r++) {
			words[h->tokens + i * rows + r] = (i * 7 + r * 13) % b->s->vocab;
			words[h->positions + i * rows + r] = position + r;
			words[h->slots + i * rows + r] = (i * of + (position + r) / BLOCK) % b->blocks * BLOCK +
			                                 (position + r) % BLOCK;
		}
	}
}

static double step_s(struct bench *b, struct kern_program *p)
{
	double begun, least = 1e9;
	for (int round = 0; round < 4; round++) {
		int times = round ? 8 : 1;
		begun = now_s();
		for (int i = 0; i < times; i++)
			die(b, "run", b->k->run(b->stream, p, &b->batch));
		die(b, "sync", b->k->sync(b->stream));
		double took = (now_s() - begun) / times;
		least = round && took < least ? took : least;
	}
	return least;
}

static void decode(struct bench *b, struct kern_program *p, uint32_t spans, uint32_t position)
{
	if (spans > b->rows || spans > b->tail_rows || spans * ((position + BLOCK) / BLOCK) > b->blocks)
		return;
	batch_write(b, spans, 1, position);
	double s = step_s(b, p), bytes = (double)b->weight_bytes + 4.0 * spans * (position + 1) *
	                                                               b->s->layers * b->s->kv_heads *
	                                                               b->s->head_dim;
	printf("decode  batch %3u context %5u  %9.1f us  %9.0f tokens/s  %6.0f GB/s", spans, position,
	       s * 1e6, spans / s, bytes / s * 1e-9);
	if (b->read_gbs > 0)
		printf("  %5.1f %% of %0.f GB/s", bytes / s * 1e-7 / b->read_gbs, b->read_gbs);
	printf("\n");
	fflush(stdout);
}

static void prefill(struct bench *b, struct kern_program *p, uint32_t rows, uint32_t position)
{
	if (rows > b->rows || (position + rows + BLOCK - 1) / BLOCK > b->blocks)
		return;
	batch_write(b, 1, rows, position);
	const struct shape *h = b->s;
	double products = 2.0 * rows * h->layers *
	                  ((2.0 * h->heads + 2.0 * h->kv_heads) * h->head_dim * h->hidden +
	                   3.0 * h->ffn * h->hidden);
	double attention = 4.0 * h->layers * h->heads * h->head_dim * rows * (position + rows / 2.0),
		   s = step_s(b, p);
	printf("prefill rows %5u behind %6u  %9.1f us  %9.0f tokens/s  %6.1f TFLOP/s", rows, position,
	       s * 1e6, rows / s, (products + attention) / s * 1e-12);
	if (b->dense_tflops > 0)
		printf("  %5.1f %% of %.0f", (products + attention) / s * 1e-10 / b->dense_tflops,
		       b->dense_tflops);
	printf("\n");
	fflush(stdout);
}

static struct kern_program *program(struct bench *b, uint32_t rows, uint32_t tail_rows,
                                    uint32_t positions)
{
	struct kern_program *p = NULL;
	struct kern_limits l = {.rows = rows,
	                        .tail_rows = tail_rows,
	                        .spans = tail_rows,
	                        .positions = positions,
	                        .vocab = b->s->vocab,
	                        .batch_bytes = b->batch.bytes};
	die(b, "program_new", b->k->program_new(b->dev, b->ops, b->n_ops, &l, &p));
	return p;
}

static void run_all(struct bench *b)
{
	static const uint32_t batches[] = {1, 8, 64, 256}, chunks[] = {512, 2048, 8192};
	uint32_t positions = b->blocks * BLOCK;
	struct kern_program *p = program(b, b->tail_rows, b->tail_rows, positions);
	for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
		decode(b, p, batches[i], 1024);
		decode(b, p, batches[i], 8192);
	}
	b->k->program_destroy(&p);
	p = program(b, b->rows, b->tail_rows, positions);
	for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++)
		prefill(b, p, chunks[i], 0);
	prefill(b, p, 2048, 30000);
	prefill(b, p, 40, 50); /* of the tiny shape */
	decode(b, p, 3, 100);
	b->k->program_destroy(&p);
}

int main(int argc, char **argv)
{
	char err[400] = "", backend[32];
	struct bench b = {.type = KERN_WEIGHT_DTYPES};
	if (argc < 5 || argc > 7) {
		fprintf(stderr, "usage: bench_gpu BACKEND[:VARIANT] SHAPE TYPE ACTIVATIONS [read GB/s] "
		                "[dense TFLOP/s]\n");
		return 2;
	}
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
		if (!strcmp(shapes[i].name, argv[2]))
			b.s = &shapes[i];
	for (int t = 0; t < KERN_WEIGHT_DTYPES; t++)
		if (!strcmp(kern_dtype_name((enum kern_dtype)t), argv[3]))
			b.type = (enum kern_dtype)t;
	size_t length = strcspn(argv[1], ":");
	snprintf(backend, sizeof backend, "%.*s", (int)length, argv[1]);
	b.k = kern_backend(backend, err, sizeof err);
	b.read_gbs = argc > 5 ? atof(argv[5]) : 0;
	b.dense_tflops = argc > 6 ? atof(argv[6]) : 0;
	struct kern_config conf = {.variant = argv[1][length] ? argv[1] + length + 1 : NULL,
	                           .activations = strcmp(argv[4], "bf16") ? KERN_F32 : KERN_BF16};
	if (!b.s || b.type == KERN_WEIGHT_DTYPES || !b.k || b.k->open(&conf, &b.dev, err, sizeof err)) {
		fprintf(stderr, "bench_gpu: %s\n", err[0] ? err : "unknown shape or type");
		return 1;
	}
	int tiny = b.s->layers < 8;
	b.rows = tiny ? 64 : 8192;
	b.tail_rows = tiny ? 8 : 256;
	b.blocks = tiny ? 16 : (256 * 1088 + 32768) / BLOCK;
	die(&b, "stream_new", b.k->stream_new(b.dev, &b.stream));
	double begun = now_s();
	weights_new(&b);
	printf("%s %s, activations %s, %s: %.0f MiB of weights in %.2f s\n", b.s->name, argv[3],
	       argv[4], b.k->numerics(b.dev), (double)b.weight_bytes / (1 << 20), now_s() - begun);
	alloc(&b, KERN_MEM_SHARED,
	      (size_t)b.s->layers * b.blocks * 2 * b.s->kv_heads * b.s->head_dim * BLOCK * 2, &b.pool);
	alloc(&b, KERN_MEM_PINNED, 8u << 20, &b.batch);
	alloc(&b, KERN_MEM_PINNED, b.tail_rows * sizeof(struct kern_drawn), &b.results);
	scratch_new(&b);
	record(&b);
	run_all(&b);
	return 0;
}
