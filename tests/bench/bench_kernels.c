/* bench_kernels.c - speed of the CPU kernels: `bench_kernels [variant [threads]]`. Matrix products per type and number of rows in
 * GOP/s (two operations a weight and row) and, for one row, GB/s of packed weights; attention in GFLOP/s and us. Shapes of a 135M
 * model. The weights of a measurement are several matrices, so that one row reads memory and not the cache. */
#include "kernels/kernels.h"
#include "util/clock.h"

#include <stdio.h>
#include <stdlib.h>

#define OPS (&kern_cpu_ops)
enum { N = 1536, K = 576, WEIGHTS = 60, MAX_ROWS = 512, MEASURE_MS = 150 };

struct bench { struct kern_device *d; struct kern_stream *s; float *x, *y; };

static void fill(unsigned char *p, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		p[i] = (unsigned char)(i * 2654435761u >> 13) & 0x3b;
}

static double seconds(void)
{
	return (double)clock_ns() * 1e-9;
}

static void matmul(struct bench *b, enum kern_dtype type, uint32_t n, uint32_t k)
{
	static const uint32_t rows[] = { 1, 2, 4, 8, 16, 64, 512 };
	size_t bytes = kern_dtype_bytes(type, (size_t)n * k);
	struct kern_weight *w[WEIGHTS];
	unsigned char *data = malloc(bytes);
	int borrows;
	if (!bytes)
		goto out;
	fill(data, bytes);
	for (int i = 0; i < WEIGHTS; i++)
		if (OPS->weight_new(b->d, type, n, k, data, &w[i], &borrows))
			exit(1);
	printf("%-5s %5ux%-4u", kern_dtype_name(type), n, k);
	for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
		uint32_t calls = 0;
		double start = seconds(), took;
		do {
			struct kern_product p = { w[calls % WEIGHTS], NULL, b->y, n };
			OPS->matmul(b->s, b->x, rows[r], &p, 1);
			calls++;
		} while ((took = seconds() - start) < MEASURE_MS * 1e-3);
		printf("  %u:%4.0f", rows[r], 2e-9 * n * k * rows[r] * calls / took);
		if (rows[r] == 1)
			printf(" (%.1f GB/s)", 1e-9 * (double)bytes * calls / took);
	}
	printf("\n");
	for (int i = 0; i < WEIGHTS; i++)
		OPS->weight_destroy(b->d, &w[i]);
out:
	free(data);
}

static void attention(struct bench *b, enum kern_dtype type, uint32_t position, uint32_t rows)
{
	enum { HEADS = 9, KV_HEADS = 3, DIM = 64, BLOCK = 32, BLOCKS = 64 };
	size_t stride = 2 * KV_HEADS * BLOCK * DIM * kern_dtype_bytes(type, 1);
	uint32_t table[BLOCKS], calls = 0;
	void *pool;
	if (OPS->alloc(b->d, BLOCKS * stride, &pool))
		exit(1);
	for (uint32_t i = 0; i < BLOCKS; i++)
		table[i] = i;
	struct kern_kv_layer kv = { pool, stride, KV_HEADS, DIM, BLOCK, type, 0, 0 };
	struct kern_span span = { 0, rows, position, 0 };
	struct kern_batch batch = { .rows = rows, .spans = 1, .table_len = BLOCKS, .span = &span, .span_host = &span, .block_table = table };
	double start = seconds(), took, pairs = (double)rows * (position + (rows + 1) / 2.0);
	do {
		OPS->attention(b->s, b->y, b->x, HEADS * DIM, HEADS, &kv, 0.125f, 0, NULL, &batch);
		calls++;
	} while ((took = seconds() - start) < MEASURE_MS * 1e-3);
	printf("attention %s, %u rows at %u: %.1f GFLOP/s, %.1f us\n", kern_dtype_name(type), rows, position,
	       4e-9 * pairs * HEADS * DIM * calls / took, 1e6 * took / calls);
	OPS->free(b->d, pool);
}

int main(int argc, char **argv)
{
	struct bench b;
	char err[160];
	struct kern_config conf = { .variant = argc > 1 ? argv[1] : NULL, .threads = argc > 2 ? (unsigned)atoi(argv[2]) : 0,
	                            .max_rows = MAX_ROWS };
	if (OPS->open(&conf, &b.d, err, sizeof err)) {
		fprintf(stderr, "%s\n", err);
		return 1;
	}
	OPS->stream_new(b.d, &b.s);
	b.x = malloc((size_t)MAX_ROWS * 4096 * sizeof *b.x);
	b.y = malloc((size_t)MAX_ROWS * 4096 * sizeof *b.y);
	for (size_t i = 0; i < (size_t)MAX_ROWS * 4096; i++)
		b.x[i] = (float)(i % 37) - 18;
	printf("%s; matrix products: rows:GOP/s\n", OPS->numerics(b.d));
	for (int t = 0; t < KERN_DTYPE_COUNT; t++)
		matmul(&b, (enum kern_dtype)t, N, kern_dtype_bytes((enum kern_dtype)t, K) ? K : 512);
	matmul(&b, KERN_Q4_1, K, N);
	attention(&b, KERN_BF16, 0, 512);
	attention(&b, KERN_BF16, 1024, 256);
	attention(&b, KERN_BF16, 127, 1);
	attention(&b, KERN_BF16, 1023, 1);
	attention(&b, KERN_F16, 1023, 1);
	free(b.x), free(b.y);
	OPS->stream_destroy(&b.s);
	OPS->close(&b.d);
	return 0;
}
