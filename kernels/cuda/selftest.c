/* selftest.c - self-test at open. The same tokens for a request, whatever it is batched with: this
 * promise (device.h) depends on how tensor cores add, which no other test verifies for the device
 * at hand. So before use, rows of products and of attention are computed among many, in a few, and
 * alone, and must have the same bits; otherwise wgmma is not used, and if they still differ the
 * device is rejected. So it is if a step does not end: kernels with wgmma wait for copies and for
 * one another, in ways that only a GPU can show to be right. */
#include "kernels/cuda/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A product is (ROWS, DIM) by (WIDTH, DIM): columns enough for several segments (linear.h), and
 * for rings in shared memory to be used again. Attention has one KV head of at most HEAD_MAX
 * columns, ATTENTION_ROWS rows of HEADS heads, and a context longer than a run of its chunks,
 * 2048 positions (attention.h). */
enum {
	ROWS = 136,
	DIM = 512,
	WIDTH = 64,
	ATTENTION_ROWS = 66,
	HEADS = 2,
	HEAD_MAX = 128,
	BLOCK = 16, /* positions */
	BLOCKS = 148,
	POOL_BYTES = BLOCKS * BLOCK * 2 * HEAD_MAX * 2, /* K and V in bfloat16 */
	BATCH_BYTES = 4096,
	Y_COLUMNS = HEADS * HEAD_MAX, /* the most */
	LIMIT_S = 20                  /* for a step, which takes milliseconds */
};
#define LIMIT_NS (LIMIT_S * 1000000000ull)
_Static_assert((int)Y_COLUMNS <= (int)DIM && (int)Y_COLUMNS >= (int)WIDTH &&
                   (int)ATTENTION_ROWS <= (int)ROWS,
               "the memory of x and y has no room for it");

struct selftest {
	struct kern_device *dev;
	struct kern_stream *stream;
	struct kern_mem x_mem, y_mem, pool, batch;
	/* of the comparison that runs: a kernel that hangs keeps using them */
	struct kern_program *program;
	struct kern_weight *weight;
	struct kern_tensor x, y;
	/* ROWS rows: input; output of all rows at once, and of some */
	float in[ROWS * DIM], all[ROWS * Y_COLUMNS], some[ROWS * Y_COLUMNS];
};

static uint32_t random_bits(uint32_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 17;
	return *seed ^= *seed << 5;
}

/* Random bytes; with `bf16`, bfloat16 numbers of magnitudes 2^-8 to 2^-4. NULL: out of memory. */
static unsigned char *random_bytes(size_t bytes, uint32_t seed, int bf16)
{
	unsigned char *data = malloc(bytes);
	for (size_t at = 0; data && at < bytes; at++) {
		data[at] = (unsigned char)random_bits(&seed);
		if (bf16 && at % 2)
			data[at] = (data[at] & 0x81) | 0x3c;
	}
	return data;
}

static int no_memory(struct kern_device *dev)
{
	return cuda_fail(dev, KERN_ENOMEM, "out of memory for the device's self-test");
}

static int selftest_begin(struct selftest *t)
{
	struct kern_device *dev = t->dev;
	uint32_t seed = 5;
	for (size_t i = 0; i < ROWS * DIM; i++)
		t->in[i] = (float)(int32_t)random_bits(&seed) * 0x1p-31f;
	unsigned char *kv = random_bytes(POOL_BYTES, 11, 1);
	int rc = kv ? cuda_stream_new(dev, &t->stream) : no_memory(dev);
	if (!rc)
		rc = cuda_mem_new(dev, KERN_MEM_DEVICE, sizeof t->in, &t->x_mem);
	if (!rc)
		rc = cuda_mem_new(dev, KERN_MEM_DEVICE, sizeof t->all, &t->y_mem);
	if (!rc)
		rc = cuda_mem_new(dev, KERN_MEM_DEVICE, POOL_BYTES, &t->pool);
	if (!rc)
		rc = cuda_mem_new(dev, KERN_MEM_PINNED, BATCH_BYTES, &t->batch);
	if (!rc)
		rc = cuda_check(dev, cudaMemcpy((void *)t->pool.dev.v, kv, POOL_BYTES, cudaMemcpyDefault),
		                "uploading");
	if (!rc)
		rc = cuda_check(dev, cudaStreamSynchronize(0), "uploading");
	free(kv);
	t->x = (struct kern_tensor){t->x_mem.dev, 0, KERN_F32};
	t->y = (struct kern_tensor){t->y_mem.dev, 0, KERN_F32};
	return rc;
}

static void selftest_end(struct selftest *t)
{
	cuda_mem_free(t->dev, &t->x_mem);
	cuda_mem_free(t->dev, &t->y_mem);
	cuda_mem_free(t->dev, &t->pool);
	cuda_mem_free(t->dev, &t->batch);
	cuda_stream_destroy(&t->stream);
}

/* --- a step -------------------------------------------------------------- */

/* A batch of `rows` rows of one sequence, with blocks in order, starting at `position`. */
static void batch_write(struct selftest *t, uint32_t position, uint32_t rows)
{
	struct kern_batch *b = t->batch.host;
	uint32_t *words = t->batch.host;
	struct kern_span span = {.rows = rows, .position = position};
	*b = (struct kern_batch){.rows = rows, .spans = 1, .span = 16};
	b->tokens = b->positions = b->tail_index = b->tail_span = b->slots = 16 + sizeof span / 4;
	b->table = b->slots + rows;
	b->words = b->table + BLOCKS;
	memcpy(words + b->span, &span, sizeof span);
	for (uint32_t r = 0; r < rows; r++)
		words[b->slots + r] = position + r; /* also the row's position */
	for (uint32_t i = 0; i < BLOCKS; i++)
		words[b->table + i] = i;
}

/* Waits for the stream as long as a kernel may take. */
static int wait_limited(struct selftest *t)
{
	struct kern_device *dev = t->dev;
	cudaError_t state = cuda_drain(t->stream->stream, LIMIT_NS);
	if (state != cudaErrorNotReady)
		return cuda_check(dev, state, "self-test of the device");
	cuda_fail(dev, KERN_EDEVICE, "%s: a kernel of the self-test has not ended in %d s%s", dev->name,
	          LIMIT_S,
	          dev->wgmma ? ": set PDSERVE_CUDA_WGMMA=0 in the environment to do without those that "
	                       "use wgmma"
	                     : ": this build must not be used on it");
	cuda_hang(dev);
	return KERN_EDEVICE;
}

/* Runs the program over rows [from, from + rows) of `in`, at positions first + from on; results in
 * y. */
static int step(struct selftest *t, struct kern_program *p, uint32_t first, uint32_t from,
                uint32_t rows, float *y)
{
	size_t x_bytes = rows * t->x.ld * sizeof *t->in, y_bytes = rows * t->y.ld * sizeof *y;
	cudaStream_t s = t->stream->stream;
	batch_write(t, first + from, rows);
	int rc = cuda_check(t->dev,
	                    cudaMemcpyAsync((void *)t->x.at.v, t->in + from * t->x.ld, x_bytes,
	                                    cudaMemcpyDefault, s),
	                    "uploading");
	if (!rc)
		rc = cuda_run(t->stream, p, &t->batch);
	/* first: a copy to memory that is not pinned returns only when the device has done it */
	if (!rc)
		rc = wait_limited(t);
	if (!rc)
		rc = cuda_check(t->dev,
		                cudaMemcpyAsync(y, (const void *)t->y.at.v, y_bytes, cudaMemcpyDefault, s),
		                "downloading");
	return rc ? rc : wait_limited(t);
}

/* --- comparing ----------------------------------------------------------- */

struct rows {
	uint32_t from, rows;
};

/* Computes `rows` rows at positions from `first` on, all at once, unless `kept`: then they are
 * those of the program before; then each of `some` by itself, and compares the bits. */
static int compare(struct selftest *t, const struct kern_op *op, uint32_t first, uint32_t rows,
                   int kept, const struct rows *some, size_t n)
{
	struct kern_limits limits = {
		.rows = ROWS, .spans = 1, .positions = BLOCKS * BLOCK, .batch_bytes = BATCH_BYTES};
	int rc = cuda_program_new(t->dev, op, 1, &limits, &t->program);
	if (!rc && !kept)
		rc = step(t, t->program, first, 0, rows, t->all);
	for (size_t i = 0; i < n && !rc; i++) {
		size_t bytes = some[i].rows * t->y.ld * sizeof *t->some;
		rc = step(t, t->program, first, some[i].from, some[i].rows, t->some);
		if (!rc && memcmp(t->some, t->all + some[i].from * t->y.ld, bytes))
			rc = cuda_fail(
				t->dev, KERN_ENOTSUP,
				"%s computes different bits for %u rows from position %u on alone than among "
				"%u: this build must not be used on it",
				t->dev->name, some[i].rows, first + some[i].from, rows);
	}
	cuda_program_destroy(&t->program);
	return rc;
}

/* Weights of types that kernels handle in a way of their own. Random bytes are valid numbers of
 * them if the scales are, here 2^-5. */
static const struct form {
	enum kern_dtype type;
	uint32_t block_bytes, scale_at, scale_bytes;
	const char *scale;
} forms[] = {
	{KERN_BF16, 2, 0, 0, ""},
	{KERN_Q8_0, 34, 0, 2, "\0\x28"},
	{KERN_Q4_K, 144, 0, 4, "\0\x28\0\x28"},
	{KERN_Q6_K, 210, 208, 2, "\0\x28"},
	{KERN_MXFP4, 17, 0, 1, "\x7a"},
	{KERN_E4M3, 132, 0, 4, "\0\0\0\x3d"},
};
enum { FORMS = sizeof forms / sizeof *forms };

static int weight_new(struct kern_device *dev, const struct form *f, struct kern_weight **ret_w)
{
	size_t bytes = kern_dtype_bytes(f->type, DIM) * WIDTH;
	unsigned char *data = random_bytes(bytes, 7 + (uint32_t)f->type, f->type == KERN_BF16);
	if (!data)
		return no_memory(dev);
	for (size_t at = 0; at < bytes && f->type == KERN_E4M3; at++)
		data[at] &= 0xbf; /* no NaN */
	for (size_t at = 0; at < bytes; at += f->block_bytes)
		memcpy(data + at + f->scale_at, f->scale, f->scale_bytes);
	int rc = cuda_weight_new(dev, f->type, 1, WIDTH, DIM, ret_w);
	if (!rc)
		rc = cuda_weight_load(dev, *ret_w, 0, data, 0);
	free(data);
	return rc;
}

/* All rows at once, as many as linear_wide.cu does where there is wgmma; some by the program's
 * other sizes, in which linear_mma.cu does them in its three ways. */
static int compare_products(struct selftest *t)
{
	static const struct rows some[] = {{ROWS - 1, 1}, {126, 9}, {0, 20}, {66, 70}};
	int rc = KERN_OK;
	t->x.ld = DIM;
	t->y.ld = WIDTH;
	/* "fast" multiplies bfloat16 by cuBLASLt */
	for (int i = t->dev->fast ? 1 : 0; i < FORMS && !rc; i++) {
		rc = weight_new(t->dev, &forms[i], &t->weight);
		struct kern_op op = {
			.kind = KERN_OP_MATMUL,
			.matmul = {.x = t->x, .products = 1, .p = {{.w = t->weight, .y = t->y}}}};
		if (!rc)
			rc = compare(t, &op, 0, ROWS, 0, some, sizeof some / sizeof *some);
		if (!t->dev->hangs)
			cuda_weight_destroy(t->dev, &t->weight);
	}
	return rc;
}

/* Deep in a context, attention is divided among blocks by chunks, by runs of chunks, or not at all,
 * depending on how much there is to do: each gives the same bits. So do the kernels for prompts,
 * with several chunks, so that rings in shared memory are used again. */
static int compare_attention(struct selftest *t)
{
	static const struct {
		uint32_t head, blocks, least; /* least: chunks of a block */
		int prefill, kept;
		float scale;
	} cases[] = {{16, BLOCKS, 1, 0, 0, 8},
	             {16, BLOCKS, 8, 0, 1, 8},
	             {16, BLOCKS, UINT32_MAX, 0, 1, 8},
	             {HEAD_MAX / 2, 40, 0, 1, 0, 2},
	             {HEAD_MAX, 40, 0, 1, 0, 2}};
	static const struct rows some[] = {{ATTENTION_ROWS - 1, 1}, {50, 9}, {20, 30}};
	int rc = KERN_OK;
	for (size_t i = 0; i < sizeof cases / sizeof *cases && !rc; i++) {
		struct kern_kv_layer kv = {.base = t->pool.dev,
		                           .kv_heads = 1,
		                           .head_dim = cases[i].head,
		                           .block_tokens = BLOCK,
		                           .dtype = KERN_BF16};
		kv.block_stride_bytes = kern_kv_planes(&kv) * kern_kv_plane_bytes(&kv);
		t->x.ld = t->y.ld = HEADS * cases[i].head;
		struct kern_op op = {
			.kind = KERN_OP_ATTENTION,
			.attention = {
				.kv = kv, .q = t->x, .out = t->y, .heads = HEADS, .scale = cases[i].scale}};
		t->dev->attention_least = cases[i].least;
		t->dev->prefill_always = cases[i].prefill;
		rc = compare(t, &op, cases[i].blocks * BLOCK - ATTENTION_ROWS, ATTENTION_ROWS,
		             cases[i].kept, some, sizeof some / sizeof *some);
		t->dev->attention_least = 0;
		t->dev->prefill_always = 0;
	}
	return rc;
}

static int compare_all(struct selftest *t)
{
	int rc = compare_products(t);
	return rc ? rc : compare_attention(t);
}

/* Never freed: a kernel or a copy that hangs uses it. */
static struct selftest *volatile hanging;

int cuda_selftest(struct kern_device *dev)
{
	struct selftest *t = calloc(1, sizeof *t);
	if (!t)
		return no_memory(dev);
	t->dev = dev;
	int rc = selftest_begin(t);
	/* "fast" promises no bits, but uses wgmma only where it is right */
	if (!rc && (!dev->fast || dev->wgmma))
		rc = compare_all(t);
	if (rc == KERN_ENOTSUP && dev->wgmma && cuda_wgmma() < 0) {
		dev->wgmma = 0;
		dev->no_wgmma = " (the self-test found other bits of wgmma)";
		rc = dev->fast ? KERN_OK : compare_all(t);
	}
	/* after an error work may be in progress */
	if (!dev->hangs && t->stream && cuda_drain(t->stream->stream, LIMIT_NS) == cudaErrorNotReady)
		cuda_hang(dev);
	if (dev->hangs) {
		hanging = t;
		return rc;
	}
	selftest_end(t);
	free(t);
	return rc;
}
