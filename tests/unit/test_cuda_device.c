/* test_cuda_device.c - what goes wrong on a CUDA device, on the host's stand-in for a GPU
 * (tests/cuda_host): every call of the runtime and of cuBLASLt fails once, a device breaks,
 * memory runs out. What fails says so, leaves nothing behind, and a device that is not broken
 * goes on. And what several threads call at once. */
/* run: cuda */
#include "kernels/copy.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "skip.h"

#include <check.h>
#include <libgen.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DIM = 64, ROWS = 12, BATCH_BYTES = 4096 };

static const struct kern_ops *k;
static const char *const variants[] = {"auto", "fast"};
static enum kern_dtype activations = KERN_F32;
static char why[400];

struct rig {
	struct kern_device *dev;
	struct kern_stream *s;
	struct kern_mem mem, batch;
	struct kern_weight *w;
	struct kern_program *p;
};

static void rig_close(struct rig *r)
{
	if (r->p)
		k->program_destroy(&r->p);
	if (r->w)
		k->weight_destroy(r->dev, &r->w);
	if (r->dev) {
		k->mem_free(r->dev, &r->mem);
		k->mem_free(r->dev, &r->batch);
	}
	if (r->s)
		k->stream_destroy(&r->s);
	k->close(&r->dev);
}

static int program_new(struct rig *r)
{
	static const struct kern_limits limits = {
		.rows = ROWS, .spans = 1, .positions = ROWS, .batch_bytes = BATCH_BYTES};
	struct kern_op op[2] = {{.kind = KERN_OP_SCALE}, {.kind = KERN_OP_MATMUL}};
	struct kern_tensor x = {r->mem.dev, DIM, KERN_F32},
					   y = {kern_at(r->mem.dev, ROWS * DIM * 4), DIM, KERN_F32};
	op[0].scale.x = op[0].scale.y = op[1].matmul.x = x;
	op[0].scale.dim = DIM;
	op[0].scale.factor = 2;
	op[1].matmul.products = 1;
	op[1].matmul.p[0] = (struct kern_product){r->w, {0}, y};
	return k->program_new(r->dev, op, 2, &limits, &r->p);
}

/* One row through the program. */
static int step(struct rig *r, float *y)
{
	float x[DIM];
	struct kern_batch *b = r->batch.host;
	uint32_t *words = r->batch.host;
	for (int i = 0; i < DIM; i++)
		x[i] = (float)i;
	*b = (struct kern_batch){.words = 64,
	                         .rows = 1,
	                         .spans = 1,
	                         .span = 16,
	                         .tokens = 20,
	                         .positions = 20,
	                         .slots = 20,
	                         .tail_index = 20,
	                         .tail_span = 20,
	                         .table = 20};
	memset(words + 16, 0, 48 * 4);
	words[17] = 1; /* the span's rows */
	int rc = k->upload(r->s, r->mem.dev, x, sizeof x);
	if (!rc)
		rc = k->run(r->s, r->p, &r->batch);
	if (!rc)
		rc = k->download(r->s, y, kern_at(r->mem.dev, ROWS * DIM * 4), DIM * sizeof *y);
	int sync = k->sync(r->s);
	return rc ? rc : sync;
}

static int rig_open(struct rig *r, const char *variant)
{
	struct kern_config conf = {.variant = variant, .activations = activations};
	uint16_t data[DIM * DIM] = {0};
	for (int i = 0; i < DIM; i++)
		data[i * DIM + i] = 0x3f80; /* the unit matrix, as bfloat16 */
	*r = (struct rig){0};
	int rc = k->open(&conf, &r->dev, why, sizeof why);
	if (rc)
		return rc;
	if (!(rc = k->stream_new(r->dev, &r->s)) &&
	    !(rc = k->mem_new(r->dev, KERN_MEM_DEVICE, 2 * ROWS * DIM * 4, &r->mem)) &&
	    !(rc = k->mem_new(r->dev, KERN_MEM_PINNED, BATCH_BYTES, &r->batch)) &&
	    !(rc = k->weight_new(r->dev, KERN_BF16, 1, DIM, DIM, &r->w)) &&
	    !(rc = k->weight_load(r->dev, r->w, 0, data, 0)))
		rc = program_new(r);
	if (rc)
		snprintf(why, sizeof why, "%s", k->last_error(r->dev));
	return rc;
}

static void expect_right(struct rig *r)
{
	float y[DIM];
	ck_assert_int_eq(step(r, y), 0);
	for (int i = 0; i < DIM; i++)
		ck_assert_msg(y[i] == 2 * (float)i, "column %d is %g", i, (double)y[i]);
}

TEST_CASE("cuda_device", .timeout_s = 120);

TEST_LOOP(a_device_computes, 0, 2)
{
	struct rig r;
	ck_assert_msg(rig_open(&r, variants[_i]) == 0, "%s", why);
	ck_assert_str_eq(k->numerics(r.dev), _i ? "cuda-sm99-r2-fast" : "cuda-sm99-r2");
	expect_right(&r);
	rig_close(&r);
}

/* The n-th call of a function fails, for more and more n until none does: what was asked for is
 * refused in words, nothing is leaked (AddressSanitizer), and the device is not lost. */
static const struct {
	const char *name, *variant;
} calls[] = {
	{"cudaMalloc", "auto"},
	{"cudaHostAlloc", "auto"},
	{"cudaLaunchKernel", "auto"},
	{"cudaGraphInstantiate", "auto"},
	{"cudaMemcpyAsync", "auto"},
	{"cudaStreamCreateWithFlags", "auto"},
	{"cudaStreamBeginCapture", "auto"},
	{"cudaEventRecord", "auto"},
	{"cudaStreamSynchronize", "auto"},
	{"cudaMemset", "auto"},
	{"cudaGraphLaunch", "auto"},
	{"cudaMemcpy", "auto"},
	{"cudaEventSynchronize", "auto"},
	{"cudaMalloc", "fast"},
	{"cudaLaunchKernel", "fast"},
	{"cublasLtCreate", "fast"},
	{"cublasLtMatmulPreferenceCreate", "fast"},
	{"cublasLtMatmulDescCreate", "fast"},
	{"cublasLtMatrixLayoutCreate", "fast"},
	{"cublasLtMatmulAlgoGetHeuristic", "fast"},
	{"cublasLtMatmul", "fast"},
};
#ifdef __SANITIZE_THREAD__ /* takes a minute for all, and one thread calls */
enum { CALLS_TRIED = 1 };
#else
enum { CALLS_TRIED = sizeof calls / sizeof *calls };
#endif

TEST_LOOP(calls_that_fail, 0, CALLS_TRIED)
{
	const char *full = getenv("PD_FULL");
	char text[80];
	int failures = 0;
	/* what opens soonest makes the same calls */
	setenv("PDSERVE_CUDA_WGMMA", "0", 1);
	activations = KERN_BF16;
	for (int n = 1; n < 400; n += n < (full ? 12 : 6) ? 1 : full ? 9 : n / 2) {
		struct rig r;
		float y[DIM];
		snprintf(text, sizeof text, "%s:%d", calls[_i].name, n);
		setenv("CUDA_HOST_FAIL", text, 1);
		int rc = rig_open(&r, calls[_i].variant), ran = rc ? 0 : step(&r, y);
		setenv("CUDA_HOST_FAIL", "none:1", 1);
		ck_assert_msg(rc == 0 || strlen(why) > 10, "%s: %d without a text", text, rc);
		ck_assert_msg(rc != KERN_ELOST && ran != KERN_ELOST, "%s: %s", text,
		              rc ? why : k->last_error(r.dev));
		failures += rc || ran;
		if (!rc)
			expect_right(&r);
		rig_close(&r);
		if (!rc && !ran)
			break;
	}
	ck_assert_int_gt(failures, 0);
}

TEST(a_device_that_breaks)
{
	struct rig r;
	struct kern_mem m = {0};
	struct kern_pool *pool;
	float y[DIM];
	char text[300];
	ck_assert_msg(rig_open(&r, "auto") == 0, "%s", why);
	expect_right(&r);
	setenv("CUDA_HOST_FAIL", "product_few_bf16:1", 1);
	ck_assert_int_eq(step(&r, y), KERN_ELOST);
	ck_assert_ptr_nonnull(strstr(k->last_error(r.dev), "an illegal memory access"));
	ck_assert_int_eq(step(&r, y), KERN_ELOST);
	ck_assert_int_eq(k->mem_new(r.dev, KERN_MEM_DEVICE, 10, &m), KERN_ELOST);
	ck_assert_int_eq(k->sync(r.s), KERN_ELOST);
	ck_assert_int_eq(kern_pool_open("cuda", 0, 0, 10, &pool, text, sizeof text), KERN_ELOST);
	ck_assert_ptr_nonnull(strstr(text, "an illegal memory access"));
	rig_close(&r);
}

/* What a device took is given back when it is closed. */
TEST_LOOP(memory_comes_back, 0, 2)
{
	struct kern_info before, after;
	struct rig r, other;
	ck_assert_int_eq(rig_open(&other, "auto"), 0);
	k->info(other.dev, &before);
	ck_assert_msg(rig_open(&r, variants[_i]) == 0, "%s", why);
	k->info(other.dev, &after);
	ck_assert_uint_lt(after.free_bytes, before.free_bytes);
	ck_assert_str_eq(after.name, "host");
	rig_close(&r);
	k->info(other.dev, &after);
	ck_assert_uint_eq(after.free_bytes, before.free_bytes);
	rig_close(&other);
}

/* The same for memory that processes share: made, shared, mapped. */
static const char *const shared_calls[] = {"cuMemCreate",
                                           "cuMemAddressReserve",
                                           "cuMemMap",
                                           "cuMemSetAccess",
                                           "cudaMemset",
                                           "cudaMemcpy",
                                           "cuMemRetainAllocationHandle",
                                           "cuMemExportToShareableHandle",
                                           "cuMemImportFromShareableHandle"};
enum { SHARED_CALLS = sizeof shared_calls / sizeof *shared_calls };

static int share_and_map(struct kern_device *dev)
{
	struct kern_mem mem = {0}, mapped = {0};
	int fd = -1, rc = k->mem_new(dev, KERN_MEM_SHARED, 5000, &mem);
	if (!rc)
		rc = k->mem_share(dev, &mem, &fd);
	if (!rc)
		rc = k->mem_map(dev, fd, 5000, &mapped);
	if (fd >= 0)
		close(fd);
	k->mem_free(dev, &mapped);
	k->mem_free(dev, &mem);
	return rc;
}

TEST(shared_memory_that_fails)
{
	struct kern_config conf = {0};
	struct kern_device *dev;
	struct kern_info before, after;
	char text[80];
	int failures = 0, rc;
	ck_assert_msg(k->open(&conf, &dev, why, sizeof why) == 0, "%s", why);
	k->info(dev, &before);
	for (int i = 0; i < SHARED_CALLS; i++)
		for (int n = 1; n <= 3; n++, failures += rc != 0) {
			snprintf(text, sizeof text, "%s:%d", shared_calls[i], n);
			setenv("CUDA_HOST_FAIL", text, 1);
			rc = share_and_map(dev);
			setenv("CUDA_HOST_FAIL", "none:1", 1);
			ck_assert_msg(rc != KERN_ELOST && (n > 1 || rc), "%s: %d", text, rc);
			ck_assert_msg(!rc || strlen(k->last_error(dev)) > 10, "%s: %d without a text", text,
			              rc);
			k->info(dev, &after);
			ck_assert_msg(after.free_bytes == before.free_bytes, "%s: %zu bytes less", text,
			              (size_t)(before.free_bytes - after.free_bytes));
			ck_assert_int_eq(share_and_map(dev), 0);
		}
	ck_assert_int_gt(failures, SHARED_CALLS);
	k->close(&dev);
}

TEST(memory_that_runs_out)
{
	struct rig r;
	struct kern_mem m = {0};
	setenv("CUDA_HOST_MEMORY_MB", "64", 1);
	ck_assert_msg(rig_open(&r, "auto") == 0, "%s", why);
	for (int kind = KERN_MEM_DEVICE; kind <= KERN_MEM_SHARED; kind += 2) {
		ck_assert_int_eq(k->mem_new(r.dev, (enum kern_memory)kind, 65 << 20, &m), KERN_ENOMEM);
		ck_assert_msg(strstr(k->last_error(r.dev), "MiB free of 64 MiB"), "%s",
		              k->last_error(r.dev));
	}
	ck_assert_int_eq(k->mem_new(r.dev, KERN_MEM_PINNED, 1ull << 50, &m), KERN_ENOMEM);
	ck_assert_msg(strstr(k->last_error(r.dev), "the host has no 1073741824 MiB left"), "%s",
	              k->last_error(r.dev));
	expect_right(&r);
	rig_close(&r);
}

/* What any thread may ask, while another one runs steps. */
struct looker {
	struct kern_device *dev;
	bool ends;
};

static void *look(void *arg)
{
	struct looker *l = arg;
	struct kern_counters c, before = {0};
	struct kern_info info;
	do {
		k->counters(l->dev, &c);
		k->info(l->dev, &info);
		ck_assert_uint_ge(c.steps, before.steps);
		ck_assert_uint_ge(c.pulse, before.pulse);
		before = c;
	} while (!__atomic_load_n(&l->ends, __ATOMIC_RELAXED));
	return NULL;
}

TEST(looked_at_while_it_works)
{
	struct rig r;
	pthread_t thread;
	struct kern_counters c;
	ck_assert_msg(rig_open(&r, "auto") == 0, "%s", why);
	struct looker l = {.dev = r.dev};
	ck_assert_int_eq(pthread_create(&thread, NULL, look, &l), 0);
	for (int i = 0; i < 20; i++)
		expect_right(&r);
	__atomic_store_n(&l.ends, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	k->counters(r.dev, &c);
	ck_assert_uint_eq(c.steps, 20);
	ck_assert_uint_eq(c.rows, 20);
	ck_assert_uint_eq(c.launches, 60); /* scale, preparing its result, the product */
	rig_close(&r);
}

/* A device whose wgmma has other bits than mma.sync works without it; where it is demanded, it does
 * not open. */
TEST(wgmma_of_other_bits)
{
	struct rig r;
	setenv("CUDA_HOST_WGMMA", "0", 1);
	setenv("PDSERVE_CUDA_WGMMA", "1", 1);
	struct kern_config conf = {.variant = "auto", .activations = KERN_BF16};
	struct kern_device *dev = NULL;
	ck_assert_int_eq(k->open(&conf, &dev, why, sizeof why), KERN_ENOTSUP);
	ck_assert_ptr_nonnull(strstr(why, "computes different bits"));
	setenv("PDSERVE_CUDA_WGMMA", "", 1);
	ck_assert_msg(k->open(&conf, &dev, why, sizeof why) == 0, "%s", why);
	struct kern_info info;
	k->info(dev, &info);
	ck_assert_str_eq(info.kernels, "mma.sync (the self-test found other bits of wgmma)");
	k->close(&dev);
	/* nothing of a device with activations of float32 uses it */
	setenv("PDSERVE_CUDA_WGMMA", "1", 1);
	ck_assert_msg(rig_open(&r, "auto") == 0, "%s", why);
	expect_right(&r);
	rig_close(&r);
	unsetenv("PDSERVE_CUDA_WGMMA");
	unsetenv("CUDA_HOST_WGMMA");
}

/* Copies of one pool by several threads: each finds its own bytes. The pool is of one device, or
 * of several, and a thread's bytes are in all of them. */
enum {
	COPIERS = 3,
	COPIES = 100,
	COPY_BYTES = 3000,
	POOL_BYTES = COPIERS * COPY_BYTES,
	PARTS = 3,
	STRIPE_BYTES = 700
};

struct copier {
	struct kern_pool *pool;
	uint64_t at;
	size_t seen;
};

static void count_seen(void *arg, const void *at, size_t bytes)
{
	(void)at;
	((struct copier *)arg)->seen += bytes;
}

static void copy_one(struct kern_pool *to, uint64_t to_at, struct kern_pool *from, uint64_t from_at,
                     struct copier *seen)
{
	struct kern_piece piece = {to_at, from_at, COPY_BYTES};
	struct kern_copy c = {.to = to,
	                      .from = from,
	                      .piece = &piece,
	                      .n = 1,
	                      .seen = seen ? count_seen : NULL,
	                      .seen_arg = seen};
	struct kern_ticket t = {0};
	char text[300];
	ck_assert_msg(kern_copy(&c, &t, text, sizeof text) == 0, "%s", text);
	ck_assert_msg(kern_wait(&t, text, sizeof text) == 0, "%s", text);
}

static void *copy_there_and_back(void *arg)
{
	struct copier *c = arg;
	unsigned char there[COPY_BYTES], back[COPY_BYTES];
	for (int i = 0; i < COPIES; i++) {
		memset(there, (int)c->at + i, sizeof there);
		copy_one(c->pool, c->at, NULL, (uintptr_t)there, NULL);
		copy_one(NULL, (uintptr_t)back, c->pool, c->at, i % 2 ? c : NULL);
		ck_assert_int_eq(memcmp(there, back, sizeof there), 0);
	}
	return NULL;
}

/* Where a byte of the divided pool is. */
static uint64_t in_stripes(const void *arg, uint64_t at, unsigned *ret_part, uint64_t *ret_at)
{
	(void)arg;
	uint64_t stripe = at / STRIPE_BYTES, in = at % STRIPE_BYTES;
	*ret_part = (unsigned)(stripe % PARTS);
	*ret_at = stripe / PARTS * STRIPE_BYTES + in;
	return STRIPE_BYTES - in;
}

static const unsigned several_parts[] = {1, PARTS};

TEST_LOOP(copies_of_several_threads, 0, 2)
{
	unsigned parts = several_parts[_i];
	struct kern_device *dev[PARTS];
	struct kern_mem mem[PARTS] = {0};
	struct kern_part part[PARTS];
	struct kern_pool *pool;
	struct copier c[COPIERS];
	pthread_t thread[COPIERS];
	for (unsigned i = 0; i < parts; i++) {
		const struct kern_config conf = {.device_index = (int)i};
		ck_assert_msg(k->open(&conf, &dev[i], why, sizeof why) == 0, "%s", why);
		part[i] = (struct kern_part){.device = (int)i};
		ck_assert_int_eq(k->mem_new(dev[i], KERN_MEM_SHARED, POOL_BYTES, &mem[i]), 0);
		ck_assert_int_eq(k->mem_share(dev[i], &mem[i], &part[i].fd), 0);
		part[i].bytes = mem[i].bytes;
	}
	int rc = parts > 1
	             ? kern_pool_open_divided("cuda", part, parts, 1, POOL_BYTES, in_stripes, NULL,
	                                      &pool, why, sizeof why)
	             : kern_pool_open("cuda", 0, part[0].fd, mem[0].bytes, &pool, why, sizeof why);
	ck_assert_msg(rc == 0, "%s", why);
	for (int i = 0; i < COPIERS; i++) {
		c[i] = (struct copier){pool, (uint64_t)i * COPY_BYTES, 0};
		ck_assert_int_eq(pthread_create(&thread[i], NULL, copy_there_and_back, &c[i]), 0);
	}
	for (int i = 0; i < COPIERS; i++) {
		pthread_join(thread[i], NULL);
		ck_assert_uint_eq(c[i].seen, COPIES / 2 * COPY_BYTES);
	}
	kern_pool_close(&pool);
	for (unsigned i = 0; i < parts; i++) {
		close(part[i].fd);
		k->mem_free(dev[i], &mem[i]);
		k->close(&dev[i]);
	}
}

static struct kern_pool *pool_on(struct kern_device *dev, int device, struct kern_mem *mem)
{
	struct kern_pool *pool;
	int fd;
	ck_assert_int_eq(k->mem_new(dev, KERN_MEM_SHARED, COPY_BYTES, mem), 0);
	ck_assert_int_eq(k->mem_share(dev, mem, &fd), 0);
	ck_assert_msg(kern_pool_open("cuda", device, fd, mem->bytes, &pool, why, sizeof why) == 0, "%s",
	              why);
	close(fd);
	return pool;
}

/* From one device's pool to another's: directly, if the hardware can and what is read arrives; else
 * by the driver, whose call fails here. */
TEST_LOOP(copies_between_devices, 0, 3)
{
	static const char *const settings[] = {NULL, "CUDA_HOST_PEERS", "PDSERVE_CUDA_PEERS"};
	struct kern_device *dev[2];
	struct kern_mem mem[4] = {0};
	struct kern_pool *pool[4];
	unsigned char there[COPY_BYTES], back[COPY_BYTES];
	char text[300] = "";
	if (settings[_i])
		setenv(settings[_i], "0", 1);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(
			k->open(&(struct kern_config){.device_index = i}, &dev[i], why, sizeof why), 0);
	for (int i = 0; i < 4; i++)
		pool[i] = pool_on(dev[i % 2], i % 2, &mem[i]);
	setenv("CUDA_HOST_FAIL", "cudaMemcpyPeerAsync:1", 1);
	for (int i = 0; i < 4; i += 2) { /* the second pair's memory is reached as well */
		memset(there, 7 + i, sizeof there);
		copy_one(pool[i], 0, NULL, (uintptr_t)there, NULL);
		const struct kern_piece all = {0, 0, COPY_BYTES};
		const struct kern_copy c = {.to = pool[i + 1], .from = pool[i], .piece = &all, .n = 1};
		struct kern_ticket t;
		int rc = kern_copy(&c, &t, text, sizeof text);
		ck_assert_int_eq(rc != 0, settings[_i] && i == 0);
		if (rc)
			continue;
		ck_assert_int_eq(kern_wait(&t, text, sizeof text), 0);
		copy_one(NULL, (uintptr_t)back, pool[i + 1], 0, NULL);
		ck_assert_mem_eq(there, back, sizeof there);
	}
	for (int i = 0; i < 4; i++) {
		kern_pool_close(&pool[i]);
		k->mem_free(dev[i % 2], &mem[i]);
	}
	for (int i = 0; i < 2; i++)
		k->close(&dev[i]);
}

TEST_CASE("fast", .timeout_s = 120);

/* In variant fast activations in bfloat16 are multiplied where they are, unless a row begins where
 * the library cannot read it. */
TEST_LOOP(bfloat16_is_not_rounded_again, 0, 3)
{
	static const struct {
		size_t at, ld;
		uint64_t launches; /* rounding; the product; its rows */
	} of[] = {{16, DIM, 2}, {16, DIM + 4, 3}, {8, DIM, 3}};
	static const struct kern_limits limits = {
		.rows = ROWS, .spans = 1, .positions = ROWS, .batch_bytes = BATCH_BYTES};
	struct kern_op op = {.kind = KERN_OP_MATMUL};
	struct kern_counters c;
	struct rig r;
	uint16_t x[DIM];
	float y[DIM];
	ck_assert_msg(rig_open(&r, "fast") == 0, "%s", why);
	k->program_destroy(&r.p);
	op.matmul.x = (struct kern_tensor){kern_at(r.mem.dev, of[_i].at), of[_i].ld, KERN_BF16};
	op.matmul.products = 1;
	op.matmul.p[0] = (struct kern_product){r.w,
	                                       {0},
	                                       {kern_at(r.mem.dev, ROWS * DIM * 4), DIM, KERN_F32}};
	ck_assert_msg(k->program_new(r.dev, &op, 1, &limits, &r.p) == 0, "%s", k->last_error(r.dev));
	ck_assert_int_eq(step(&r, y), 0); /* lays out the batch */
	for (int i = 0; i < DIM; i++)
		x[i] = (uint16_t)(0x3f80 + i);
	ck_assert_int_eq(k->upload(r.s, op.matmul.x.at, x, sizeof x), 0);
	ck_assert_int_eq(k->run(r.s, r.p, &r.batch), 0);
	ck_assert_int_eq(k->download(r.s, y, op.matmul.p[0].y.at, sizeof y), 0);
	ck_assert_int_eq(k->sync(r.s), 0);
	for (int i = 0; i < DIM; i++)
		ck_assert_msg(y[i] == 1 + (float)i / 128, "column %d is %g", i, (double)y[i]);
	k->counters(r.dev, &c);
	ck_assert_uint_eq(c.launches, 2 * of[_i].launches);
	rig_close(&r);
}

TEST_CASE("planning", .timeout_s = 120);

/* Blocks take attention's work by tickets, so there are as many as run at once: of the prefill
 * kernel one on each multiprocessor, of the decode kernel four. */
TEST(attention_fills_the_device)
{
	enum { HEADS = 8, HEAD = 128, GROUP = 8, PROMPT = 512, SIZE = 132 };
	struct kern_config conf = {.activations = KERN_BF16};
	struct kern_limits limits = {
		.rows = PROMPT, .spans = 1, .positions = PROMPT, .batch_bytes = 1 << 16};
	struct kern_op op = {.kind = KERN_OP_ATTENTION};
	struct kern_device *dev;
	struct kern_program *p;
	struct kern_mem mem = {0};
	char path[] = "/tmp/pd-launches-XXXXXX", name[80];
	unsigned blocks, prefill = 0, decode = 0;
	int fd = mkstemp(path);
	ck_assert_int_ge(fd, 0);
	setenv("CUDA_HOST_SIZE", "132", 1);
	ck_assert_msg(k->open(&conf, &dev, why, sizeof why) == 0, "%s", why);
	ck_assert_int_eq(k->mem_new(dev, KERN_MEM_DEVICE, 1 << 20, &mem), 0); /* never run */
	op.attention.kv = (struct kern_kv_layer){.base = mem.dev,
	                                         .kv_heads = HEADS,
	                                         .head_dim = HEAD,
	                                         .block_tokens = 16,
	                                         .dtype = KERN_BF16};
	op.attention.kv.block_stride_bytes = 2 * HEADS * HEAD * 16 * 2;
	op.attention.q = (struct kern_tensor){mem.dev, HEADS * GROUP * HEAD, KERN_F32};
	op.attention.out = (struct kern_tensor){kern_at(mem.dev,
	                                                (uint64_t)PROMPT * HEADS * GROUP * HEAD * 4),
	                                        HEADS * GROUP * HEAD, KERN_F32};
	op.attention.heads = HEADS * GROUP;
	op.attention.scale = 1;
	setenv("CUDA_HOST_LAUNCHES", path, 1);
	ck_assert_msg(k->program_new(dev, &op, 1, &limits, &p) == 0, "%s", k->last_error(dev));
	unsetenv("CUDA_HOST_LAUNCHES");
	FILE *f = fdopen(fd, "r");
	while (fscanf(f, "%79s %u", name, &blocks) == 2) {
		if (!strcmp(name, "attention_wgmma_128"))
			prefill = blocks > prefill ? blocks : prefill;
		if (!strcmp(name, "attention_decode_bf16"))
			decode = blocks > decode ? blocks : decode;
	}
	fclose(f);
	unlink(path);
	ck_assert_uint_eq(prefill, SIZE);
	ck_assert_uint_eq(decode, 4 * SIZE);
	k->program_destroy(&p);
	k->mem_free(dev, &mem);
	k->close(&dev);
	unsetenv("CUDA_HOST_SIZE");
}

TEST_CASE("self_test", .timeout_s = 120);

/* Every kernel of linear_wide.cu with its own way of reading a weight is tried, against those of
 * linear_mma.cu for few and for many rows: one that computes other bits, or never ends, is found
 * when the device opens. */
static const char *const wide_kernels[] = {
	"product_wide_bf16", "product_wide_bytes", "product_wide_nibbles", "product_wide_q6_k",
	"product_many_bf16", "product_few_bf16",   "attention_wgmma_64",   "attention_wgmma_128",
};
enum { WIDE_KERNELS = sizeof wide_kernels / sizeof *wide_kernels };

TEST_LOOP(a_wide_kernel_is_tried, 0, WIDE_KERNELS)
{
	struct kern_config conf = {.activations = KERN_BF16};
	struct kern_device *dev;
	char text[80];
	snprintf(text, sizeof text, "%s:1", wide_kernels[_i]);
	setenv("CUDA_HOST_FAIL", text, 1);
	ck_assert_msg(k->open(&conf, &dev, why, sizeof why) == KERN_ELOST, "%s was not launched", text);
	unsetenv("CUDA_HOST_FAIL");
}

/* GPUs of other generations work without wgmma; those for which there is no code are refused. */
static const struct {
	const char *capability, *numerics; /* NULL: refused */
} generations[] = {{"75", NULL},
                   {"80", "cuda-sm80-r2-bf16act"},
                   {"89", "cuda-sm89-r2-bf16act"},
                   {"103", "cuda-sm103-r2-bf16act"},
                   {"110", NULL},
                   {"120", "cuda-sm120-r2-bf16act"},
                   {"130", NULL}};

TEST_LOOP(generations_of_gpus, 0, sizeof generations / sizeof *generations)
{
	struct kern_config conf = {.activations = KERN_BF16};
	struct kern_device *dev;
	struct kern_info info;
	setenv("CUDA_HOST_CAPABILITY", generations[_i].capability, 1);
	int rc = k->open(&conf, &dev, why, sizeof why);
	unsetenv("CUDA_HOST_CAPABILITY");
	if (!generations[_i].numerics) {
		ck_assert_int_eq(rc, KERN_ENOTSUP);
		ck_assert_ptr_nonnull(strstr(why, "expected 8, 9, 10 or 12: use another GPU"));
		return;
	}
	ck_assert_msg(rc == 0, "%s", why);
	ck_assert_str_eq(k->numerics(dev), generations[_i].numerics);
	k->info(dev, &info);
	ck_assert_str_eq(info.kernels, "mma.sync");
	k->close(&dev);
}

/* A kernel that never ends costs 20 s, and the error says what to do; that then works. */
TEST_LOOP(a_self_test_that_hangs, 0, 2)
{
	struct kern_config conf = {.activations = KERN_BF16};
	struct kern_device *dev = NULL;
	setenv("CUDA_HOST_FAIL", "hang_product_wide_q6_k:1", 1);
	setenv("PDSERVE_CUDA_WGMMA", _i ? "0" : "", 1);
	int rc = k->open(&conf, &dev, why, sizeof why);
	if (_i) {
		ck_assert_msg(rc == 0, "%s", why);
		k->close(&dev);
	} else {
		ck_assert_int_eq(rc, KERN_EDEVICE);
		ck_assert_ptr_nonnull(strstr(why, "has not ended in 20 s: set PDSERVE_CUDA_WGMMA=0"));
		ck_assert_ptr_null(dev);
	}
}

TEST_CASE("memory", .timeout_s = 120);

/* Memory that network cards can register is asked for exactly where there is such. */
TEST_LOOP(memory_for_network_cards, 0, 2)
{
	struct kern_config conf = {0};
	struct kern_device *dev;
	setenv("CUDA_HOST_RDMA", _i ? "1" : "0", 1);
	ck_assert_msg(k->open(&conf, &dev, why, sizeof why) == 0, "%s", why);
	ck_assert_msg(share_and_map(dev) == 0, "%s", k->last_error(dev));
	k->close(&dev);
	unsetenv("CUDA_HOST_RDMA");
}

/* Matrices of little more than half a page, as experts have: they take what they need, not a page
 * each, and nothing of one that the device has no room for. */
TEST(matrices_of_a_weight_lie_together)
{
	enum { COUNT = 36, N = 640, K = 1024, BYTES = N * K * 2 };
	static uint16_t data[N * K];
	struct kern_config conf = {0};
	struct kern_device *dev;
	struct kern_weight *w = NULL;
	struct kern_info before, after;
	setenv("CUDA_HOST_MEMORY_MB", "72", 1);
	ck_assert_msg(k->open(&conf, &dev, why, sizeof why) == 0, "%s", why);
	ck_assert_int_eq(k->weight_new(dev, KERN_BF16, 1, N, K, &w), 0);
	ck_assert_int_eq(k->weight_load(dev, w, 0, data, 0), 0); /* and its staging */
	k->weight_destroy(dev, &w);
	k->info(dev, &before);
	ck_assert_int_eq(k->weight_new(dev, KERN_BF16, COUNT, N, K, &w), 0);
	for (uint32_t i = 0; i < COUNT; i++)
		ck_assert_msg(k->weight_load(dev, w, i, data, 0) == 0, "%u: %s", i, k->last_error(dev));
	k->info(dev, &after);
	ck_assert_uint_le(before.free_bytes - after.free_bytes, COUNT * BYTES + (2 << 20));
	k->weight_destroy(dev, &w);
	ck_assert_int_eq(k->weight_new(dev, KERN_BF16, 2 * COUNT, N, K, &w), KERN_ENOMEM);
	ck_assert_ptr_null(w);
	k->info(dev, &after);
	ck_assert_uint_eq(after.free_bytes, before.free_bytes);
	k->close(&dev);
	unsetenv("CUDA_HOST_MEMORY_MB");
}

TEST_START(backend)
{
	char folder[512];
	snprintf(folder, sizeof folder, "%.400s/../cuda_host", dirname(argv[0]));
	setenv("PDSERVE_BACKENDS", folder, 0);
	k = kern_backend("cuda", why, sizeof why);
	if (!k) {
		fprintf(stderr, "%s\n", why);
		exit(2);
	}
}
