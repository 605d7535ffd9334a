/* bench_gpu_copies.c - how fast KV moves between pools of GPUs, and to host memory and back, as the
 * messager and the storage move it (kernels/copy.h): blocks of an 8B model, a layer at a time. What
 * is printed is bytes moved a second, and their part of the rate that is given.
 *   bench_gpu_copies BACKEND BLOCKS [copy GB/s] [device to pinned GB/s] [pinned to device GB/s]
 *   bench_gpu_copies cuda 512 1200 55 55 */
#include "daemons/storage/sum.h"
#include "kernels/copy.h"
#include "kernels/device.h"
#include "kv/layout.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LAYERS = 32, HEADS = 8, DIM = 128, TOKENS = 64, ROUNDS = 3, BURST = 16, STRIDE = 7 };
enum { THREADS_MAX = 8 };

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
	return kv_part_find(&b.l, b.blocks, (struct kv_parts){1, *(const uint32_t *)parts}, at,
	                    ret_part, ret_at);
}

/* In `parts` parts on one device, opened as another process does. */
static void pool_new(struct pool *p, int device, uint32_t parts)
{
	struct kern_part part[KERN_PARTS_MAX];
	char why[256] = "";
	*p = (struct pool){.parts = parts};
	for (uint32_t i = 0; i < parts; i++) {
		size_t bytes = kv_part_offset(&b.l, b.blocks, i, (struct kv_parts){1, parts}, LAYERS, 0);
		part[i] = (struct kern_part){device, -1, bytes};
		if (b.k->mem_new(b.dev[device], KERN_MEM_SHARED, bytes, &p->mem[i]) ||
		    b.k->mem_share(b.dev[device], &p->mem[i], &part[i].fd))
			die("a pool", b.k->last_error(b.dev[device]));
	}
	int rc = parts == 1
	             ? kern_pool_open(b.backend, device, part[0].fd, part[0].bytes, &p->pool, why,
	                              sizeof why)
	             : kern_pool_open_divided(b.backend, part, parts,
	                                      kv_layout_copies(&b.l, (struct kv_parts){1, parts}),
	                                      b.l.block_bytes * b.blocks, locate, &p->parts, &p->pool,
	                                      why, sizeof why);
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
	sum_add(sum, at, bytes);
}

/* Where block i of a list lies: neighbours, or all apart. */
static uint32_t block_at(uint32_t i, int apart)
{
	return apart ? i * STRIDE % b.blocks : i;
}

/* Copies of all blocks of all layers. */
struct copies {
	struct kern_pool *to, *from; /* NULL: host memory */
	unsigned char *host;
	int apart;        /* blocks lie apart */
	int sums;         /* as the storage does: what comes while it comes, what goes before it goes */
	unsigned threads; /* layers in turn */
};

struct copier {
	const struct copies *c;
	unsigned number;
	pthread_t thread;
};

static size_t burst_make(const struct copies *c, uint32_t layer, uint32_t first,
                         struct kern_piece *piece)
{
	uint32_t n = b.blocks - first < BURST ? b.blocks - first : BURST;
	for (uint32_t j = 0; j < n; j++) {
		uint64_t here = kv_piece_offset(&b.l, b.blocks, layer, block_at(first + j, c->apart)),
				 there = kv_piece_offset(&b.l, b.blocks, layer, first + j);
		piece[j] = (struct kern_piece){c->to ? there : (uintptr_t)(c->host + there),
		                               c->from ? here : (uintptr_t)(c->host + here),
		                               b.l.piece_bytes[layer]};
	}
	return n;
}

static void *copier_run(void *arg)
{
	struct copier *r = arg;
	const struct copies *c = r->c;
	struct kern_ticket t = {0};
	struct sum_state sum;
	char why[256] = "";
	sum_begin(&sum);
	for (uint32_t layer = r->number; layer < LAYERS; layer += c->threads)
		for (uint32_t i = 0; i < b.blocks; i += BURST) {
			struct kern_piece piece[BURST];
			const struct kern_copy k = {.to = c->to,
			                            .from = c->from,
			                            .piece = piece,
			                            .n = burst_make(c, layer, i, piece),
			                            .seen = c->sums && !c->to ? see : NULL,
			                            .seen_arg = &sum};
			for (size_t j = 0; j < k.n && c->sums && c->to; j++)
				/* NOLINTNEXTLINE(performance-no-int-to-ptr) */
				see(&sum, (const void *)(uintptr_t)piece[j].from, piece[j].bytes);
			if (kern_copy(&k, &t, why, sizeof why))
				die("copying", why);
		}
	if (kern_wait(&t, why, sizeof why))
		die("copying", why);
	return NULL;
}

/* Returns seconds. */
static double copy_all(const struct copies *c)
{
	struct copier run[THREADS_MAX];
	double begun = now_s();
	for (unsigned i = 0; i < c->threads; i++) {
		run[i] = (struct copier){.c = c, .number = i};
		if (pthread_create(&run[i].thread, NULL, copier_run, &run[i]))
			die("a thread", "cannot be started");
	}
	for (unsigned i = 0; i < c->threads; i++)
		pthread_join(run[i].thread, NULL);
	return now_s() - begun;
}

static void report(const char *what, double limit_gbs, struct copies c)
{
	double least = 1e9, bytes = (double)b.l.block_bytes * b.blocks;
	c.threads += !c.threads;
	for (int i = 0; i < ROUNDS; i++) {
		double s = copy_all(&c);
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
	report("pool to pool, neighbours", copy_gbs, (struct copies){.to = c.pool, .from = a.pool});
	report("pool to pool, blocks apart", copy_gbs,
	       (struct copies){.to = c.pool, .from = a.pool, .apart = 1});
	pool_free(&c, 0);
	pool_new(&halves, 0, 2);
	report("pool to a pool of 2 parts, neighbours", copy_gbs,
	       (struct copies){.to = halves.pool, .from = a.pool});
	report("pool of 2 parts to a pool, blocks apart", copy_gbs,
	       (struct copies){.to = a.pool, .from = halves.pool, .apart = 1});
	pool_free(&halves, 0);
	pool_free(&a, 0);
}

static void two_gpus(void)
{
	struct pool a, c;
	pool_new(&a, 0, 1);
	pool_new(&c, 1, 1);
	report("to another GPU, neighbours", 0, (struct copies){.to = c.pool, .from = a.pool});
	report("to another GPU, blocks apart", 0,
	       (struct copies){.to = c.pool, .from = a.pool, .apart = 1});
	pool_free(&c, 1);
	pool_free(&a, 0);
}

static void to_and_from(const char *kind, struct kern_pool *pool, unsigned char *host,
                        unsigned threads, double out_gbs, double in_gbs)
{
	char what[80];
	snprintf(what, sizeof what, "to %s memory, summed, %u thread%s", kind, threads,
	         threads == 1 ? "" : "s");
	report(what, out_gbs,
	       (struct copies){.from = pool, .host = host, .apart = 1, .sums = 1, .threads = threads});
	snprintf(what, sizeof what, "from %s memory, summed, %u thread%s", kind, threads,
	         threads == 1 ? "" : "s");
	report(what, in_gbs,
	       (struct copies){.to = pool, .host = host, .apart = 1, .sums = 1, .threads = threads});
}

/* Ordinary memory, then the same pinned, as that of the storage's memory tier is. */
static void host_memory(double out_gbs, double in_gbs)
{
	struct pool a;
	char why[256] = "";
	size_t bytes = b.blocks * b.l.block_bytes;
	unsigned char *host = aligned_alloc(4096, bytes);
	if (!host)
		die("memory", "none left");
	memset(host, 1, bytes);
	pool_new(&a, 0, 1);
	to_and_from("ordinary", a.pool, host, 1, out_gbs, in_gbs);
	to_and_from("ordinary", a.pool, host, THREADS_MAX, out_gbs, in_gbs);
	if (a.pool->by->pin) {
		double begun = now_s();
		if (a.pool->by->pin(0, host, bytes, why, sizeof why))
			die("pinning memory", why);
		printf("%-44s %10.1f GB/s\n", "pinning", 1e-9 * (double)bytes / (now_s() - begun));
		for (unsigned threads = 1; threads <= THREADS_MAX; threads *= 2)
			to_and_from("pinned", a.pool, host, threads, out_gbs, in_gbs);
		report("from pinned memory, not summed", in_gbs,
		       (struct copies){.to = a.pool, .host = host, .apart = 1});
		a.pool->by->unpin(host);
	}
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
