/* bench_gpu_model.c - the model of bench_gpu.c: random weights of a shape, its operations, batches,
 * and a pool of random KV. */
#include "tests/bench/bench_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPS_OF_A_LAYER = 12 };

void bench_check(const struct bench *b, const char *what, int rc)
{
	if (!rc)
		return;
	fflush(stdout);
	if (rc == KERN_ENOMEM)
		printf("%s: the rest is not measured: %s\n", b->title, b->k->last_error(b->dev));
	else
		fprintf(stderr, "bench_gpu: %s: %s: %s\n", b->title, what, b->k->last_error(b->dev));
	exit(rc != KERN_ENOMEM);
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
	bench_check(b, "weight_new", b->k->weight_new(b->dev, b->type, 1, n, k, &w));
	bench_check(b, "weight_load", b->k->weight_load(b->dev, w, 0, random_rows(b->type, n, k), 0));
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
	bench_check(b, "mem_new", b->k->mem_new(b->dev, kind, bytes, m));
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
	bench_check(b, "upload", b->k->upload(b->stream, b->norm.dev, ones, s->hidden * sizeof *ones));
	for (uint32_t i = 0; i < s->head_dim / 2; i++)
		ones[i] = 1.0f / (float)(i + 1);
	bench_check(b, "sync", b->k->sync(b->stream));
	bench_check(b, "upload",
	            b->k->upload(b->stream, kern_at(b->norm.dev, s->hidden * sizeof *ones), ones,
	                         s->head_dim / 2 * sizeof *ones));
	bench_check(b, "sync", b->k->sync(b->stream));
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

static void attention(struct bench *b, const struct kern_kv_layer *kv)
{
	struct kern_op *op = next(b, KERN_OP_ATTENTION);
	op->attention.kv = *kv, op->attention.out = b->att, op->attention.q = b->q,
	op->attention.heads = b->s->heads, op->attention.scale = 0.088f;
}

static void kv_write(struct bench *b, const struct kern_kv_layer *kv)
{
	struct kern_op *op = next(b, KERN_OP_KV_WRITE);
	op->kv_write.kv = *kv, op->kv_write.k = b->kk, op->kv_write.v = b->v;
}

static struct kern_kv_layer kv_of(const struct bench *b, uint32_t l)
{
	struct kern_kv_layer kv = {.kv_heads = b->s->kv_heads,
	                           .head_dim = b->s->head_dim,
	                           .block_tokens = BLOCK,
	                           .dtype = KERN_BF16,
	                           .layer = l};
	kv.block_stride_bytes = kern_kv_planes(&kv) * kern_kv_plane_bytes(&kv);
	kv.base = kern_at(b->pool.dev, (size_t)l * b->blocks * kv.block_stride_bytes);
	return kv;
}

static void layer_record(struct bench *b, uint32_t l)
{
	const struct shape *s = b->s;
	struct kern_kv_layer kv = kv_of(b, l);
	struct kern_weight **w = b->w[l];
	/* a block's output is kept in gate, until the next norm adds it to x */
	struct kern_tensor out = {b->gate.at, s->hidden, KERN_F32};
	norm(b, b->h, l ? out : (struct kern_tensor){0});
	product(b, b->h, 3, w + W_QKV, (struct kern_tensor[]){b->q, b->kk, b->v});
	for (int i = 0; i < 2; i++) {
		struct kern_op *op = next(b, KERN_OP_ROPE);
		op->rope.x = i ? b->kk : b->q, op->rope.heads = i ? s->kv_heads : s->heads,
		op->rope.head_dim = s->head_dim;
		op->rope.rope = (struct kern_rope){KERN_ROPE_HALF, s->head_dim, 1,
		                                   kern_at(b->norm.dev, s->hidden * sizeof(float))};
	}
	kv_write(b, &kv);
	attention(b, &kv);
	product(b, b->att, 1, &w[W_O], &out);
	norm(b, b->h, out);
	product(b, b->h, 2, w + W_GATE, (struct kern_tensor[]){b->gate, b->up});
	struct kern_op *op = next(b, KERN_OP_ACT_MUL);
	op->act_mul.y = b->up, op->act_mul.gate = b->gate, op->act_mul.up = b->up,
	op->act_mul.dim = s->ffn;
	product(b, b->up, 1, &w[W_DOWN], &out);
}

static void head_record(struct bench *b)
{
	const struct shape *s = b->s;
	norm(b, b->h, (struct kern_tensor){b->gate.at, s->hidden, KERN_F32});
	struct kern_op *op = next(b, KERN_OP_GATHER_ROWS);
	op->rows = KERN_ROWS_TAIL, op->gather_rows.y = b->tail, op->gather_rows.x = b->h,
	op->gather_rows.dim = s->hidden;
	product(b, b->tail, 1, &b->head, &b->logits);
	b->ops[b->n_ops - 1].rows = KERN_ROWS_TAIL;
	op = next(b, KERN_OP_SAMPLE);
	op->rows = KERN_ROWS_TAIL, op->sample.logits = b->logits, op->sample.results = b->results.dev;
}

struct kern_program *bench_program(struct bench *b, enum part part, uint32_t rows)
{
	struct kern_program *p = NULL;
	struct kern_limits limits = {.rows = rows,
	                             .tail_rows = b->tail_rows,
	                             .spans = b->tail_rows,
	                             .positions = b->positions,
	                             .vocab = b->s->vocab,
	                             .batch_bytes = b->batch.bytes};
	b->n_ops = 0;
	b->ops = calloc(b->s->layers * OPS_OF_A_LAYER + 8, sizeof *b->ops);
	if (part == PART_STEP) {
		struct kern_op *op = next(b, KERN_OP_EMBED);
		op->embed.y = b->x, op->embed.w = b->embed;
	}
	for (uint32_t l = 0; l < b->s->layers; l++) {
		struct kern_kv_layer kv = kv_of(b, l);
		if (part == PART_ATTENTION)
			attention(b, &kv);
		else if (part == PART_KV_WRITE)
			kv_write(b, &kv);
		else
			layer_record(b, l);
	}
	if (part == PART_STEP)
		head_record(b);
	bench_check(b, "program_new", b->k->program_new(b->dev, b->ops, b->n_ops, &limits, &p));
	free(b->ops);
	return p;
}

/* --- batches ------------------------------------------------------------- */

/* The shared blocks follow one for each sequence, its last, which it writes. Their number is such
 * that a block is read by two sequences at places far apart, so that caches do not help: the second
 * time around, sequences are offset by 0.38 of their length, the third time by 0.76, and so on. */
uint32_t bench_shared(const struct bench *b, uint32_t spans, uint32_t of)
{
	uint32_t left = b->blocks - spans, offset = of * 382 / 1000;
	if ((uint64_t)spans * of <= b->blocks || b->blocks < spans + 2 * of)
		return 0;
	return left - (left - offset) % of;
}

static uint32_t block_of(uint32_t i, uint32_t k, uint32_t spans, uint32_t of, uint32_t shared)
{
	return !shared ? i * of + k : k == of - 1 ? i : spans + (i * of + k) % shared;
}

void bench_batch(struct bench *b, uint32_t spans, uint32_t rows, uint32_t position)
{
	uint32_t *words = b->batch.host, all = spans * rows, of = bench_blocks(rows, position),
			 shared = bench_shared(b, spans, of);
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
		uint32_t *table = words + h->table + i * of;
		span[i] = (struct kern_span){i * rows, rows, position, i * of};
		tail[i] = (struct kern_span){i, 1, position + rows - 1, i * of};
		words[h->tail_index + i] = i * rows + rows - 1;
		draw[i] = (struct kern_draw){
			.ask = KERN_ASK_DRAW, .logprobs = -1, .top_p = 1, .repetition = 1};
		for (uint32_t k = 0; k < of; k++)
			table[k] = block_of(i, k, spans, of, shared);
		for (uint32_t r = 0, at = position; r < rows; r++, at++) {
			words[h->tokens + i * rows + r] = (i * 7 + r * 13) % b->s->vocab;
			words[h->positions + i * rows + r] = at;
			words[h->slots + i * rows + r] = table[at / BLOCK] * BLOCK + at % BLOCK;
		}
	}
}

/* --- the pool ------------------------------------------------------------ */

static void random_floats(struct bench *b, struct kern_tensor t)
{
	size_t n = b->rows * t.ld;
	float *data = malloc(n * sizeof *data);
	uint32_t seed = 1;
	for (size_t i = 0; i < n; i++) {
		seed = seed * 1664525u + 1013904223u;
		data[i] = (float)(int32_t)seed * 0x1p-31f;
	}
	bench_check(b, "upload", b->k->upload(b->stream, t.at, data, n * sizeof *data));
	bench_check(b, "sync", b->k->sync(b->stream));
	free(data);
}

/* Zeros would take less power than numbers, so a GPU would be faster with them. */
static void pool_fill(struct bench *b)
{
	struct kern_program *p = bench_program(b, PART_KV_WRITE, b->rows);
	random_floats(b, b->q), random_floats(b, b->kk), random_floats(b, b->v);
	for (uint32_t at = 0; at < b->blocks * BLOCK; at += b->rows) {
		uint32_t left = b->blocks * BLOCK - at, rows = left < b->rows ? left : b->rows;
		bench_batch(b, 1, rows, 0);
		struct kern_batch *h = b->batch.host;
		for (uint32_t r = 0; r < rows; r++)
			((uint32_t *)b->batch.host)[h->slots + r] = at + r;
		bench_check(b, "run", b->k->run(b->stream, p, &b->batch));
		bench_check(b, "sync", b->k->sync(b->stream));
	}
	b->k->program_destroy(&p);
}

/* Most blocks that leave enough memory for programs: inputs of a product as prepared for it, states
 * of attention, graphs. */
static uint32_t blocks_that_fit(const struct bench *b)
{
	struct kern_info info = {0};
	size_t block = BLOCK * bench_kv_token_bytes(b->s),
		   kept = ((size_t)1 << 30) + (size_t)8 * b->rows * b->s->ffn;
	b->k->info(b->dev, &info);
	if (!info.free_bytes || info.free_bytes >= kept + b->blocks * block)
		return b->blocks;
	return info.free_bytes > kept ? (uint32_t)((info.free_bytes - kept) / block) : 0;
}

void bench_model_new(struct bench *b)
{
	weights_new(b);
	alloc(b, KERN_MEM_PINNED, 8u << 20, &b->batch);
	alloc(b, KERN_MEM_PINNED, b->tail_rows * sizeof(struct kern_drawn), &b->results);
	scratch_new(b);
	uint32_t fit = blocks_that_fit(b);
	b->blocks = fit ? fit : 1;
	alloc(b, KERN_MEM_SHARED, b->blocks * BLOCK * bench_kv_token_bytes(b->s), &b->pool);
	pool_fill(b);
}
