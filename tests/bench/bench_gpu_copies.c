/* bench_gpu_copies.c - how fast KV moves between pools of GPUs, and to host memory and back, as the
 * messager and the storage move it (kernels/copy.h): blocks of an 8B model, a layer at a time. What
 * is printed is bytes moved a second, and their part of the rate that is given.
 *   bench_gpu_copies BACKEND BLOCKS [copy GB/s] [device to pinned GB/s] [pinned to device GB/s]
 *   bench_gpu_copies cuda 512 1200 55 55 */
#include "kernels/copy.h"
#include "kernels/kernels.h"
#include "kv/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LAYERS = 32, HEADS = 8, DIM = 128, TOKENS = 64, ROUNDS = 3, BURST = 16, STRIDE = 7 };

struct pool {
	struct kern_mem mem[KERN_PARTS_MAX];
	struct kern_pool *pool;
	uint32_t parts;
};

static struct {
	const struct kern_ops *k;
	struct kern_device *dev[2];
	struct kv_layout l;
	uint32_t blocks;
	const char *backend;
} b;

static void die(const char *what, const char *why)
{
	fprintf(stderr, "bench_gpu_copies: %s: %s\n", what, why);
	exit(1);
}

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- pools --------------------------------------------------------------- */

static uint64_t locate(const void *parts, uint64_t at, unsigned *ret_part, uint64_t *ret_at)
{
	return kv_part_find(&b.l, b.blocks, *(const uint32_t *)parts, at, ret_part, ret_at);
}

/* In `parts` parts on one device, opened as another process does. */
static void pool_new(struct pool *p, int device, uint32_t parts)
{
	struct kern_part part[KERN_PARTS_MAX];
	char why[256] = "";
	*p = (struct pool){.parts = parts};
	for (uint32_t i = 0; i < parts; i++) {
		size_t bytes = kv_part_offset(&b.l, b.blocks, i, parts, LAYERS, 0);
		part[i] = (struct kern_part){device, -1, bytes};
		if (b.k->mem_new(b.dev[device], KERN_MEM_SHARED, bytes, &p->mem[i]) ||
		    b.k->mem_share(b.dev[device], &p->mem[i], &part[i].fd))
			die("a pool", b.k->last_error(b.dev[device]));
	}
	int rc = parts == 1 ? kern_pool_open(b.backend, device, part[0].fd, part[0].bytes, &p->pool,
	                                     why, sizeof why)
	                    : kern_pool_open_divided(b.backend, part, parts, b.l.block_bytes * b.blocks,
	                                             locate, &p->parts, &p->pool, why, sizeof why);
	if (rc)
		die("opening a pool", why);
	for (uint32_t i = 0; i < parts; i++)
		close(part[i].fd);
}

static void pool_free(struct pool *p, int device)
{
	kern_pool_close(&p->pool);
	for (uint32_t i = 0; i < p->parts; i++)
		b.k->mem_free(b.dev[device], &p->mem[i]);
}

/* --- copies -------------------------------------------------------------- */

static void see(void *sum, const void *at, size_t bytes)
{
	*(uint64_t *)sum += ((const unsigned char *)at)[0] + bytes;
}

/* Where block i of a list lies: neighbours, or all apart. */
static uint32_t block_at(uint32_t i, int apart)
{
	return apart ? i * STRIDE % b.blocks : i;
}

/* All blocks of all layers; `host` stands for a pool that is NULL. Returns seconds. */
static double copy_all(struct kern_pool *to, struct kern_pool *from, unsigned char *host, int apart,
                       int seen)
{
	uint64_t sum = 0;
	struct kern_ticket t = {0};
	char why[256] = "";
	double begun = now_s();
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		for (uint32_t i = 0, n; i < b.blocks; i += n) {
			struct kern_piece piece[BURST];
			n = b.blocks - i < BURST ? b.blocks - i : BURST;
			for (uint32_t j = 0; j < n; j++) {
				uint64_t here = kv_piece_offset(&b.l, b.blocks, layer, block_at(i + j, apart)),
						 there = kv_piece_offset(&b.l, b.blocks, layer, i + j);
				piece[j] = (struct kern_piece){to ? there : (uintptr_t)(host + there),
				                               from ? here : (uintptr_t)(host + here),
				                               b.l.piece_bytes[layer]};
			}
			const struct kern_copy c = {.to = to,
			                            .from = from,
			                            .piece = piece,
			                            .n = n,
			                            .seen = seen ? see : NULL,
			                            .seen_arg = &sum};
			if (kern_copy(&c, &t, why, sizeof why))
				die("copying", why);
		}
	if (kern_wait(&t, why, sizeof why))
		die("copying", why);
	return now_s() - begun;
}

static void report(const char *what, struct kern_pool *to, struct kern_pool *from,
                   unsigned char *host, int apart, int seen, double limit_gbs)
{
	double least = 1e9, bytes = (double)b.l.block_bytes * b.blocks;
	for (int i = 0; i < ROUNDS; i++) {
		double s = copy_all(to, from, host, apart, seen);
		least = s < least ? s : least;
	}
	printf("%-44s %10.1f GB/s", what, bytes / least * 1e-9);
	if (limit_gbs > 0)
		printf(" %6.1f %% of %.0f", 100e-9 * bytes / least / limit_gbs, limit_gbs);
	printf("\n");
	fflush(stdout);
}

/* --- what is measured ---------------------------------------------------- */

static void one_gpu(double copy_gbs)
{
	struct pool a, c, halves;
	pool_new(&a, 0, 1);
	pool_new(&c, 0, 1);
	report("pool to pool, neighbours", c.pool, a.pool, NULL, 0, 0, copy_gbs);
	report("pool to pool, blocks apart", c.pool, a.pool, NULL, 1, 0, copy_gbs);
	pool_free(&c, 0);
	pool_new(&halves, 0, 2);
	report("pool to a pool of 2 parts, neighbours", halves.pool, a.pool, NULL, 0, 0, copy_gbs);
	report("pool of 2 parts to a pool, blocks apart", a.pool, halves.pool, NULL, 1, 0, copy_gbs);
	pool_free(&halves, 0);
	pool_free(&a, 0);
}

static void two_gpus(void)
{
	struct pool a, c;
	pool_new(&a, 0, 1);
	pool_new(&c, 1, 1);
	report("to another GPU, neighbours", c.pool, a.pool, NULL, 0, 0, 0);
	report("to another GPU, blocks apart", c.pool, a.pool, NULL, 1, 0, 0);
	pool_free(&c, 1);
	pool_free(&a, 0);
}

static void host_memory(double out_gbs, double in_gbs)
{
	struct pool a;
	unsigned char *host = calloc(b.blocks, b.l.block_bytes);
	if (!host)
		die("memory", "none left");
	memset(host, 1, b.blocks * b.l.block_bytes);
	pool_new(&a, 0, 1);
	report("to host memory, summed on the way", NULL, a.pool, host, 1, 1, out_gbs);
	report("from host memory", a.pool, NULL, host, 1, 0, in_gbs);
	pool_free(&a, 0);
	free(host);
}

int main(int argc, char **argv)
{
	char err[400] = "";
	if (argc < 3 || argc > 6 || atoi(argv[2]) < 1) {
		fprintf(stderr,
		        "usage: bench_gpu_copies BACKEND BLOCKS [copy GB/s] [device to pinned GB/s] "
		        "[pinned to device GB/s]\n");
		return 2;
	}
	b.backend = argv[1];
	b.blocks = (uint32_t)atoi(argv[2]);
	if (!(b.k = kern_backend(b.backend, err, sizeof err)))
		die(b.backend, err);
	for (int i = 0; i < 2; i++) {
		struct kern_config conf = {.threads = 1, .device_index = i};
		if (b.k->open(&conf, &b.dev[i], err, sizeof err) && i == 0)
			die(b.backend, err);
	}
	kv_layout_uniform(&b.l, LAYERS, HEADS, DIM, TOKENS, KV_BF16);
	printf("copies of %u blocks of %u tokens of an 8B model, %.0f MiB\n", b.blocks, TOKENS,
	       (double)b.l.block_bytes * b.blocks / (1 << 20));
	one_gpu(argc > 3 ? atof(argv[3]) : 0);
	if (b.dev[1] && b.k->own_memory)
		two_gpus();
	host_memory(argc > 4 ? atof(argv[4]) : 0, argc > 5 ? atof(argv[5]) : 0);
	for (int i = 0; i < 2; i++)
		if (b.dev[i])
			b.k->close(&b.dev[i]);
	return 0;
}
