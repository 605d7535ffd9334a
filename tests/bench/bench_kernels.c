/* bench_kernels.c - speed of the CPU kernels: `bench_kernels [variant [threads]]`. Matrix products
 * per type and number of rows in GOP/s (two operations a weight and row) and, for one row, GB/s of
 * packed weights; attention in GFLOP/s and us. Shapes of a 135M model. A measured program has
 * several products, each with a matrix of its own, so that one row reads memory and not the
 * cache; or attention of as many layers as the model has.
 *   bench_kernels decode TYPE [variant]   one row by matrices of 4096 x 4096 with one thread, in
 *                                         GB/s of packed weights by the process's processor time */
#include "kernels/device.h"
#include "kernels/ops.h"
#include "util/clock.h"
#include "util/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OPS (&kern_cpu_ops)
#define LEN(a) (sizeof(a) / sizeof *(a))
enum {
	N = 1536,
	K = 576,
	WEIGHTS = 60,
	FEW = 6,
	FEW_ROWS = 16,
	LAYERS = 30,
	MAX_ROWS = 512,
	WIDE = 4096, /* of decode: matrices larger together than the cache */
	WIDE_WEIGHTS = 8,
	MEASURE_MS = 150,
	POSITIONS = 2048,
	BLOCK = 32,
	BATCH_BYTES = 16384
};

struct bench {
	struct kern_device *d;
	struct kern_stream *s;
	struct kern_mem x, y, batch;
};

static void ok(const struct bench *b, int rc)
{
	if (rc == 0)
		return;
	fprintf(stderr, "bench_kernels: %s\n", OPS->last_error(b->d));
	exit(1);
}

static void fill(unsigned char *p, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		p[i] = (unsigned char)(i * 2654435761u >> 13) & 0x3b;
}

static int processor_time;

static double seconds(void)
{
	struct timespec t;
	if (!processor_time)
		return (double)clock_ns() * 1e-9;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One sequence in blocks of its own, `rows` rows at `position`. */
static void batch_set(struct bench *b, uint32_t position, uint32_t rows)
{
	uint32_t *word = b->batch.host, head = sizeof(struct kern_batch) / 4,
			 span = sizeof(struct kern_span) / 4;
	struct kern_batch h = {.rows = rows,
	                       .spans = 1,
	                       .tokens = head,
	                       .positions = head + rows,
	                       .slots = head + 2 * rows,
	                       .span = head + 3 * rows};
	h.tail_index = h.tail_span = h.table = h.span + span;
	h.words = h.table + POSITIONS / BLOCK;
	memcpy(word, &h, sizeof h);
	for (uint32_t i = 0; i < rows; i++) {
		word[h.tokens + i] = 0;
		word[h.positions + i] = word[h.slots + i] = position + i;
	}
	memcpy(word + h.span, &(struct kern_span){0, rows, position, 0}, sizeof(struct kern_span));
	for (uint32_t i = 0; i < POSITIONS / BLOCK; i++)
		word[h.table + i] = i;
}

/* Seconds of an operation of the program. */
static double measure(struct bench *b, const struct kern_op *op, uint32_t n)
{
	struct kern_limits limits = {
		.rows = MAX_ROWS, .spans = 1, .positions = POSITIONS, .batch_bytes = BATCH_BYTES};
	struct kern_program *p;
	uint32_t runs = 0;
	ok(b, OPS->program_new(b->d, op, n, &limits, &p));
	double start = seconds(), took;
	do {
		ok(b, OPS->run(b->s, p, &b->batch));
		ok(b, OPS->sync(b->s));
		runs++;
	} while ((took = seconds() - start) < MEASURE_MS * 1e-3);
	OPS->program_destroy(&p);
	return took / runs / n;
}

/* `count` products with a matrix each; returns a matrix's bytes. */
static size_t products(struct bench *b, enum kern_dtype type, uint32_t n, uint32_t k, int count,
                       struct kern_weight **w, struct kern_op *op)
{
	size_t bytes = n * kern_dtype_bytes(type, k);
	unsigned char *data = malloc(bytes);
	fill(data, bytes);
	for (int i = 0; i < count; i++) {
		ok(b, OPS->weight_new(b->d, type, 1, n, k, &w[i]));
		ok(b, OPS->weight_load(b->d, w[i], 0, data, 0));
		op[i].kind = KERN_OP_MATMUL;
		op[i].matmul.x = (struct kern_tensor){b->x.dev, k, KERN_F32};
		op[i].matmul.products = 1;
		op[i].matmul.p[0] = (struct kern_product){w[i], {0}, {b->y.dev, n, KERN_F32}};
	}
	free(data);
	return bytes;
}

static void decode(struct bench *b, enum kern_dtype type)
{
	struct kern_weight *w[WIDE_WEIGHTS];
	struct kern_op op[WIDE_WEIGHTS] = {0};
	size_t bytes = products(b, type, WIDE, WIDE, WIDE_WEIGHTS, w, op);
	batch_set(b, 0, 1);
	measure(b, op, WIDE_WEIGHTS);
	double each = measure(b, op, WIDE_WEIGHTS);
	printf("%s %.1f us %.2f GB/s\n", kern_dtype_name(type), 1e6 * each,
	       1e-9 * (double)bytes / each);
	for (int i = 0; i < WIDE_WEIGHTS; i++)
		OPS->weight_destroy(b->d, &w[i]);
}

static void matmul(struct bench *b, enum kern_dtype type, uint32_t n, uint32_t k)
{
	static const uint32_t rows[] = {1, 2, 4, 8, 16, 64, 512};
	struct kern_weight *w[WEIGHTS];
	struct kern_op op[WEIGHTS] = {0};
	size_t bytes = products(b, type, n, k, WEIGHTS, w, op);
	printf("%-5s %5ux%-4u", kern_dtype_name(type), n, k);
	for (size_t r = 0; r < LEN(rows); r++) {
		batch_set(b, 0, rows[r]);
		double each = measure(b, op, rows[r] <= FEW_ROWS ? WEIGHTS : FEW);
		printf("  %u:%4.0f", rows[r], 2e-9 * n * k * rows[r] / each);
		if (rows[r] == 1)
			printf(" (%.1f GB/s)", 1e-9 * (double)bytes / each);
	}
	printf("\n");
	for (int i = 0; i < WEIGHTS; i++)
		OPS->weight_destroy(b->d, &w[i]);
}

static void attention(struct bench *b, enum kern_dtype type, uint32_t position, uint32_t rows)
{
	enum { HEADS = 9, KV_HEADS = 3, DIM = 64 };
	struct kern_kv_layer kv = {
		.kv_heads = KV_HEADS, .head_dim = DIM, .block_tokens = BLOCK, .dtype = type};
	size_t layer = kern_kv_planes(&kv) * kern_kv_plane_bytes(&kv) * (POSITIONS / BLOCK);
	struct kern_op op[LAYERS] = {0};
	struct kern_mem pool;
	kv.block_stride_bytes = kern_kv_planes(&kv) * kern_kv_plane_bytes(&kv);
	ok(b, OPS->mem_new(b->d, KERN_MEM_DEVICE, LAYERS * layer, &pool));
	for (uint32_t i = 0; i < LAYERS; i++) {
		kv.base = kern_at(pool.dev, i * layer);
		kv.layer = i;
		op[i].kind = KERN_OP_ATTENTION;
		op[i].attention.kv = kv;
		op[i].attention.q = (struct kern_tensor){b->x.dev, HEADS * DIM, KERN_F32};
		op[i].attention.out = (struct kern_tensor){b->y.dev, HEADS * DIM, KERN_F32};
		op[i].attention.heads = HEADS;
		op[i].attention.scale = 0.125f;
	}
	batch_set(b, position, rows);
	double each = measure(b, op, LAYERS), pairs = (double)rows * (position + (rows + 1) / 2.0);
	printf("attention %s, %u rows at %u: %.1f GFLOP/s, %.1f us\n", kern_dtype_name(type), rows,
	       position, 4e-9 * pairs * HEADS * DIM / each, 1e6 * each);
	OPS->mem_free(b->d, &pool);
}

static void bench_open(struct bench *b, const struct kern_config *conf)
{
	char err[160];
	float *x = malloc((size_t)MAX_ROWS * N * sizeof *x);
	if (OPS->open(conf, &b->d, err, sizeof err)) {
		fprintf(stderr, "bench_kernels: %s\n", err);
		exit(1);
	}
	ok(b, OPS->stream_new(b->d, &b->s));
	ok(b, OPS->mem_new(b->d, KERN_MEM_DEVICE, (size_t)MAX_ROWS * N * sizeof *x, &b->x));
	ok(b, OPS->mem_new(b->d, KERN_MEM_DEVICE, (size_t)MAX_ROWS * N * sizeof *x, &b->y));
	ok(b, OPS->mem_new(b->d, KERN_MEM_PINNED, BATCH_BYTES, &b->batch));
	for (size_t i = 0; i < (size_t)MAX_ROWS * N; i++)
		x[i] = (float)(i % 37) - 18;
	ok(b, OPS->upload(b->s, b->x.dev, x, (size_t)MAX_ROWS * N * sizeof *x));
	ok(b, OPS->sync(b->s));
	free(x);
}

static int bench_close(struct bench *b)
{
	OPS->mem_free(b->d, &b->x);
	OPS->mem_free(b->d, &b->y);
	OPS->mem_free(b->d, &b->batch);
	OPS->stream_destroy(&b->s);
	OPS->close(&b->d);
	return 0;
}

int main(int argc, char **argv)
{
	struct bench b;
	struct kern_config conf = {.variant = argc > 1 ? argv[1] : NULL,
	                           .threads = argc > 2 ? (unsigned)atoi(argv[2]) : machine_threads("")};
	processor_time = argc > 2 && strcmp(argv[1], "decode") == 0;
	if (processor_time)
		conf = (struct kern_config){.variant = argc > 3 ? argv[3] : NULL, .threads = 1};
	bench_open(&b, &conf);
	for (int t = 0; processor_time && t < KERN_WEIGHT_DTYPES; t++)
		if (strcmp(kern_dtype_name((enum kern_dtype)t), argv[2]) == 0)
			decode(&b, (enum kern_dtype)t);
	if (processor_time)
		return bench_close(&b);
	printf("%s; matrix products: rows:GOP/s\n", OPS->numerics(b.d));
	for (int t = 0; t < KERN_WEIGHT_DTYPES; t++)
		matmul(&b, (enum kern_dtype)t, N, kern_dtype_bytes((enum kern_dtype)t, K) ? K : 512);
	matmul(&b, KERN_Q4_1, K, N);
	attention(&b, KERN_BF16, 0, 512);
	attention(&b, KERN_BF16, 1024, 256);
	attention(&b, KERN_BF16, 127, 1);
	attention(&b, KERN_BF16, 1023, 1);
	attention(&b, KERN_F16, 1023, 1);
	return bench_close(&b);
}
