/* bench_storage.c - how fast the memory and the disk tier take blocks in and give them back,
 * checksums included. The copy threads and the tiers are the daemon's; messages are left out (a
 * batch is one message each way).
 *
 * bench_storage memory [TURNS] [THREADS]: against memcpy of the same pieces in the same run, taken
 * in turns. GB/s (10^9) are medians; fractions are of memcpy. bench_storage disk FOLDER MIB BLOCK
 * DEPTH IO: one pass over a folder, all written and then all read; bytes/s, to be compared with
 * fio's (bench_storage.py).
 *     BLOCK is small (184320 bytes), model (1474560) or large (8388608); IO as the setting disk_io.
 * bench_storage index FOLDER BLOCKS: as many blocks of 64 bytes, so that nearly all that the tier
 * has is its index; look-ups of random keys, of which half are there,
 *     and gets; then the same after a new start. What of the process is resident is told each time:
 *     memory of its own (the buffers, a bit for each block), and pages of the index's file, which
 *     the system takes when it needs them.
 *
 * Prints `RESULT name=value`. */
#include "daemons/storage/copier.h"
#include "daemons/storage/memory.h"
#include "daemons/storage/sum.h"
#include "daemons/storage/disk.h"
#include "tests/unit/pool_memory.h"

#include "util/check.h"
#include "util/clock.h"
#include "util/mem.h"
#include "util/queue.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCKS 128u
#define TURNS_MAX 101

enum { MEMCPY, PUT, GET, WAYS };
static const char *const way_name[WAYS] = {"memcpy", "put", "get"};

static struct copy_target target;
static struct pool_memory owner;
static struct queue *over;

static void finished(void *arg, struct batch *b)
{
	(void)arg;
	CHECK(queue_put(over, b) == 0);
}

static struct batch *batch_begin(struct copier *c, enum copy_kind kind, uint32_t first_key)
{
	struct batch *b = batch_new(kind, &target, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		uint32_t key = first_key + i;
		b->item[i].block = i;
		memcpy(b->item[i].key.b, &key, sizeof key);
	}
	copier_submit(c, b);
	return b;
}

static void batch_check(struct batch *b)
{
	for (uint32_t i = 0; i < BLOCKS; i++)
		if (b->item[i].code != PDS__STORE_CODE__STORE_OK)
			check_fatal("block %u: %s", i, b->item[i].text ? b->item[i].text : "not stored");
	batch_free(b);
}

/* Batches of all blocks, two at a time; microseconds. */
static uint64_t run_batches(struct copier *c, enum copy_kind kind, uint32_t n)
{
	uint64_t t0 = clock_us();
	for (uint32_t begun = 0, ended = 0; ended < n; ended++) {
		for (; begun < n && begun < ended + 2; begun++)
			batch_begin(c, kind, begun * BLOCKS);
		batch_check(queue_take(over));
	}
	return clock_us() - t0;
}

/* The same pieces, block after block, into plain memory that was written before. */
static uint64_t run_memcpy(unsigned char *to)
{
	const struct kv_layout *l = &target.layout;
	uint64_t t0 = clock_us();
	for (uint32_t b = 0; b < BLOCKS; b++)
		for (uint32_t i = 0; i < l->layers; i++, to += l->piece_bytes[l->layers - 1])
			memcpy(to, owner.data + kv_piece_offset(l, BLOCKS, i, b), l->piece_bytes[i]);
	return clock_us() - t0;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static void region_make(uint32_t layers, uint32_t heads, uint32_t dim, uint32_t tokens)
{
	struct err err = {0};
	struct kv_layout layout;
	struct kv_region region;
	CHECK(kv_layout_uniform(&layout, layers, heads, dim, tokens, KV_BF16) == 0);
	if (pool_memory_new(&owner, &layout, BLOCKS, &err) != 0)
		check_fatal("%s", err.text);
	struct kv_data data = one_part(dup(owner.region.data.fd[0]));
	if (kv_region_map(&region, &layout, BLOCKS, "cpu", dup(owner.region.control_fd), &data, &err))
		check_fatal("%s", err.text);
	copy_target_init(&target, &layout, &region);
	for (size_t i = 0; i < owner.region.data_bytes; i++)
		owner.data[i] = (unsigned char)(i * 2654435761u >> 13);
}

static void flush_done(struct tier_flush *f)
{
	atomic_store((atomic_int *)(void *)(f + 1), 1);
}

static void flush(struct tier *t)
{
	struct {
		struct tier_flush f;
		atomic_int done;
	} a = {.f = {.done = flush_done}};
	t->ops->flush(t, &a.f);
	while (!atomic_load(&a.done))
		usleep(100);
}

static void bench_memory(int turns, int threads)
{
	struct err err = {0};
	struct tier *t;
	if (turns < 1 || turns > TURNS_MAX || threads < 1 || threads > 64)
		check_fatal("usage: bench_storage memory [TURNS 1-%d] [THREADS 1-64]", TURNS_MAX);
	region_make(30, 3, 64, 64);
	size_t bytes = target.layout.block_bytes * BLOCKS;
	if (tier_memory_new(2 * bytes, &t, &err) != 0)
		check_fatal("%s", err.text);
	unsigned char *plain = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
	                            -1, 0);
	if (plain == MAP_FAILED)
		check_fatal("no memory: %zu bytes", bytes);
	madvise(plain, bytes, MADV_HUGEPAGE);
	struct copier *c = copier_new(t, (unsigned)threads, finished, NULL);
	static uint64_t us[WAYS][TURNS_MAX];
	run_memcpy(plain);
	run_batches(c, COPY_PUT, 1);
	for (int i = 0; i < turns; i++) {
		flush(t);
		us[MEMCPY][i] = run_memcpy(plain);
		us[PUT][i] = run_batches(c, COPY_PUT, 1);
		us[GET][i] = run_batches(c, COPY_GET, 1);
	}
	double gbs[WAYS];
	for (int w = 0; w < WAYS; w++) {
		qsort(us[w], (size_t)turns, sizeof us[w][0], by_value);
		gbs[w] = (double)bytes / (double)us[w][turns / 2] / 1e3;
		printf("RESULT storage_%s_gb_s=%.2f\n", way_name[w], gbs[w]);
	}
	printf("RESULT memory_write_fraction=%.3f\nRESULT memory_read_fraction=%.3f\n",
	       gbs[PUT] / gbs[MEMCPY], gbs[GET] / gbs[MEMCPY]);
	copier_stop(c);
	t->ops->destroy(t);
	copier_destroy(&c);
	munmap(plain, bytes);
}

static void bench_disk(const char *folder, int mib, const char *block, int depth, const char *io)
{
	struct err err = {0};
	struct tier *t;
	if (strcmp(block, "small") == 0)
		region_make(30, 3, 64, 8);
	else if (strcmp(block, "model") == 0)
		region_make(30, 3, 64, 64);
	else if (strcmp(block, "large") == 0)
		region_make(32, 8, 128, 64);
	else
		check_fatal("BLOCK is small, model or large");
	uint64_t bytes = target.layout.block_bytes * BLOCKS;
	uint32_t n = (uint32_t)(((uint64_t)mib << 20) / bytes) + 1;
	struct tier_disk_opts o = {.path = folder,
	                           .capacity_bytes = 2 * n * bytes,
	                           .depth = (unsigned)depth,
	                           .io = io,
	                           .direct = 1};
	if (tier_disk_new(&o, &t, &err) != 0)
		check_fatal("%s", err.text);
	struct copier *c = copier_new(t, 1, finished, NULL);
	uint64_t write_us = run_batches(c, COPY_PUT, n), read_us = run_batches(c, COPY_GET, n);
	printf("RESULT bytes=%llu\nRESULT write_bytes_s=%.0f\nRESULT read_bytes_s=%.0f\n",
	       (unsigned long long)(n * bytes), (double)(n * bytes) / (double)write_us * 1e6,
	       (double)(n * bytes) / (double)read_us * 1e6);
	copier_stop(c);
	flush(t);
	t->ops->destroy(t);
	copier_destroy(&c);
}

/* --- an index of many blocks --- */

#define TINY_BYTES 64u
#define UNDER_WAY 512u
#define FIND_KEYS 64u
#define FINDS 8192u
#define TINY_GETS 20000u

struct tiny_op {
	struct tier_op op;
	uint64_t number;
};

static sem_t may_begin;
static atomic_uint wrong;

/* Keys of hashes: those that follow each other are far from each other in the index. */
static struct tier_key tiny_key(uint64_t number)
{
	struct tier_key k = {{0}};
	uint64_t h = (number + 1) * 0x9e3779b97f4a7c15u;
	h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
	memcpy(k.b, &h, sizeof h);
	memcpy(k.b + 8, &number, sizeof number);
	return k;
}

static int tiny_in(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	uint64_t number = ((struct tiny_op *)op)->number;
	CHECK(n == 1);
	for (size_t i = 0; i < TINY_BYTES; i += sizeof number)
		memcpy(span->at + i, &number, sizeof number);
	op->sum = sum_spans(span, n);
	return 0;
}

static int tiny_out(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	CHECK(n == 1);
	if (memcmp(span->at, &((struct tiny_op *)op)->number, sizeof(uint64_t)) != 0)
		atomic_fetch_add(&wrong, 1);
	return 0;
}

static void tiny_done(struct tier_op *op, int code, enum tier_id tier, const char *text)
{
	(void)tier;
	if (code != 0 && atomic_fetch_add(&wrong, 1) == 0)
		fprintf(stderr, "a block of %u bytes: %s\n", TINY_BYTES, text ? text : err_name(code));
	free(op);
	sem_post(&may_begin);
}

/* One block for each number, `step` apart; microseconds until all are done. */
static uint64_t tiny_all(struct tier *t, int put, uint64_t n, uint64_t blocks, uint64_t step)
{
	uint64_t t0 = clock_us();
	for (uint64_t i = 0; i < n; i++) {
		struct tiny_op *o = mem_zalloc(sizeof *o);
		o->number = i * step % blocks;
		o->op = (struct tier_op){.key = tiny_key(o->number),
		                         .bytes = TINY_BYTES,
		                         .move = put ? tiny_in : tiny_out,
		                         .done = tiny_done};
		list_init(&o->op.link);
		sem_wait(&may_begin);
		if (put)
			t->ops->put(t, &o->op);
		else
			t->ops->get(t, &o->op);
	}
	for (unsigned i = 0; i < UNDER_WAY; i++)
		sem_wait(&may_begin);
	for (unsigned i = 0; i < UNDER_WAY; i++)
		sem_post(&may_begin);
	return clock_us() - t0;
}

static void find_done(struct tier_find *f)
{
	(void)f;
	sem_post(&may_begin);
}

/* Every other key is there. Microseconds for FINDS look-ups of FIND_KEYS keys, one after the
 * other. */
static uint64_t tiny_finds(struct tier *t, uint64_t blocks)
{
	struct tier_key key[FIND_KEYS];
	unsigned char where[FIND_KEYS];
	uint64_t t0 = clock_us(), number = 1;
	for (unsigned i = 0; i < FINDS; i++) {
		for (unsigned k = 0; k < FIND_KEYS; k++) {
			number = number * 6364136223846793005u + 1442695040888963407u;
			key[k] = tiny_key((number >> 20) % blocks + (k % 2 ? blocks : 0));
		}
		memset(where, 0, sizeof where);
		struct tier_find f = {
			.key = key, .where = where, .n = FIND_KEYS, .bytes = TINY_BYTES, .done = find_done};
		sem_wait(&may_begin);
		t->ops->lookup(t, &f);
		for (unsigned n = 0; n < UNDER_WAY; n++)
			sem_wait(&may_begin);
		for (unsigned n = 0; n < UNDER_WAY; n++)
			sem_post(&may_begin);
		for (unsigned k = 0; k < FIND_KEYS; k++)
			if ((where[k] == TIER_DISK) != (k % 2 == 0))
				atomic_fetch_add(&wrong, 1);
	}
	return clock_us() - t0;
}

static void say_resident(const char *when)
{
	char line[256];
	FILE *f = fopen("/proc/self/status", "r");
	if (!f)
		check_fatal("/proc/self/status cannot be read");
	while (fgets(line, sizeof line, f)) {
		unsigned long kib;
		if (sscanf(line, "RssAnon: %lu kB", &kib) == 1)
			printf("RESULT %s_own_mib=%.1f\n", when, (double)kib / 1024);
	}
	fclose(f);
}

static void say_asked(struct tier *t, uint64_t blocks, const char *when)
{
	uint64_t find_us = tiny_finds(t, blocks), get_us = tiny_all(t, 0, TINY_GETS, blocks, 7919);
	printf("RESULT %s_keys_s=%.0f\nRESULT %s_gets_s=%.0f\n", when,
	       (double)FINDS * FIND_KEYS / (double)find_us * 1e6, when,
	       TINY_GETS / (double)get_us * 1e6);
	say_resident(when);
}

static void bench_index(const char *folder, uint64_t blocks)
{
	struct err err = {0};
	struct tier *t;
	struct tier_stat st;
	struct tier_disk_opts o = {.path = folder,
	                           .capacity_bytes = blocks * 4096 + ((uint64_t)64 << 20),
	                           .depth = 64,
	                           .direct = 1};
	if (blocks < 1000)
		check_fatal("BLOCKS is a number, 1000 at least");
	sem_init(&may_begin, 0, UNDER_WAY);
	if (tier_disk_new(&o, &t, &err) != 0)
		check_fatal("%s", err.text);
	say_resident("empty");
	uint64_t put_us = tiny_all(t, 1, blocks, blocks, 1);
	printf("RESULT puts_s=%.0f\n", (double)blocks / (double)put_us * 1e6);
	say_asked(t, blocks, "filled");
	t->ops->destroy(t);
	say_resident("closed");
	uint64_t t0 = clock_us();
	if (tier_disk_new(&o, &t, &err) != 0)
		check_fatal("%s", err.text);
	printf("RESULT start_s=%.2f\n", (double)(clock_us() - t0) / 1e6);
	t->ops->stat(t, &st);
	printf("RESULT blocks=%llu\n", (unsigned long long)st.blocks);
	say_asked(t, blocks, "again");
	printf("RESULT wrong=%u\n", atomic_load(&wrong) + (st.blocks != blocks));
	t->ops->destroy(t);
	sem_destroy(&may_begin);
}

int main(int argc, char **argv)
{
	over = queue_new(2);
	if (argc == 7 && strcmp(argv[1], "disk") == 0)
		bench_disk(argv[2], atoi(argv[3]), argv[4], atoi(argv[5]), argv[6]);
	else if (argc >= 2 && argc <= 4 && strcmp(argv[1], "memory") == 0)
		bench_memory(argc > 2 ? atoi(argv[2]) : 11, argc > 3 ? atoi(argv[3]) : 1);
	else if (argc == 4 && strcmp(argv[1], "index") == 0)
		bench_index(argv[2], strtoull(argv[3], NULL, 10));
	else
		check_fatal("usage: bench_storage memory [TURNS] [THREADS] | disk FOLDER MIB "
		            "small|model|large DEPTH auto|io_uring|threads | index FOLDER BLOCKS");
	queue_destroy(&over);
	kv_region_fini(&target.region);
	pool_memory_fini(&owner);
	return 0;
}
