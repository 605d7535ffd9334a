/* envelope.c - self-test at open. The same tokens for a request, whatever it is batched with: this
 * promise (kernels.h) depends on how tensor cores add, which no other test verifies for the device
 * at hand. So before use, rows of a small model's step are computed among many, in a few, and
 * alone, also deep in a context, and must have the same bits; otherwise wgmma is not used, and if
 * they still differ the device is rejected. */
#include "kernels/cuda/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* DIM is large enough that products cut it into several segments (linear.h). */
enum {
	ROWS = 136,
	DIM = 1024,
	HEADS = 2,
	HEAD = 32,
	WIDTH = HEADS * HEAD,
	BLOCK = 16,
	BATCH_BYTES = 4096,
	TYPES = 3
};

/* A context longer than a run of attention's chunks, 2048 positions (attention.cu): rows (FAR_ROWS,
 * FAR_HEADS * FAR_HEAD) of one KV head. */
enum {
	FAR_ROWS = 9,
	FAR_HEADS = 2,
	FAR_HEAD = 16,
	FAR_COLUMNS = FAR_HEADS * FAR_HEAD,
	FAR_BLOCKS = 148,
	FAR_POSITIONS = FAR_BLOCKS * BLOCK
};

/* So many rows that attention_wgmma.cu or attention_wide.cu does them: (WIDE_ROWS, WIDE_HEADS *
 * WIDE_HEAD), also with heads of half that size. Y_COLUMNS: the most that an output has. */
enum {
	WIDE_ROWS = 66,
	WIDE_HEADS = 2,
	WIDE_HEAD = 128,
	WIDE_BLOCKS = 40, /* of KV: positions for three chunks */
	Y_COLUMNS = WIDE_HEADS * WIDE_HEAD
};
_Static_assert((int)Y_COLUMNS <= (TYPES + 1) * WIDTH && (int)Y_COLUMNS <= (int)DIM &&
                   (int)WIDE_ROWS <= (int)ROWS,
               "the memory of the model's rows has no room for it");

/* K and V in bfloat16, for each of the three. */
enum {
	MODEL_BYTES = (ROWS + BLOCK - 1) / BLOCK * BLOCK * 2 * WIDTH * 2,
	FAR_BYTES = FAR_POSITIONS * 2 * FAR_HEAD * 2,
	WIDE_BYTES = WIDE_BLOCKS * BLOCK * 2 * WIDE_HEAD * 2,
	POOL_BYTES = (int)FAR_BYTES > (int)WIDE_BYTES ? (int)FAR_BYTES : (int)WIDE_BYTES
};
_Static_assert((int)MODEL_BYTES <= (int)POOL_BYTES, "the pool has no room for the model's KV");

struct envelope {
	struct kern_device *dev;
	struct kern_stream *stream;
	struct kern_mem mem, pool, batch;
	struct kern_weight *w[TYPES]; /* (WIDTH, DIM) */
	struct kern_program *p;
	struct kern_tensor x, of[TYPES], y; /* input; w x; output */
	float in[ROWS * DIM], all[ROWS * Y_COLUMNS], part[ROWS * Y_COLUMNS];
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

/* Random bytes are valid numbers of these types if the scales are: every block starts with a scale
 * of 2^-5 as float16. */
static int weight_new(struct envelope *e, int i, enum kern_dtype type, uint32_t block_bytes)
{
	size_t bytes = kern_dtype_bytes(type, DIM) * WIDTH;
	unsigned char *data = random_bytes(bytes, 7 + (uint32_t)i, type == KERN_BF16);
	if (!data)
		return no_memory(e->dev);
	for (size_t at = 0; at < bytes && type != KERN_BF16; at += block_bytes)
		memcpy(data + at, type == KERN_Q4_K ? "\0\x28\0\x28" : "\0\x28", type == KERN_Q4_K ? 4 : 2);
	int rc = cuda_weight_new(e->dev, type, WIDTH, DIM, data, 0, &e->w[i]);
	free(data);
	return rc;
}

static struct kern_op product(struct kern_tensor x, const struct kern_weight *w,
                              struct kern_tensor y)
{
	struct kern_op op;
	memset(&op, 0, sizeof op);
	op.kind = KERN_OP_MATMUL;
	op.matmul.x = x;
	op.matmul.products = 1;
	op.matmul.p[0].w = w;
	op.matmul.p[0].y = y;
	return op;
}

static struct kern_kv_layer kv_layer(const struct envelope *e, uint32_t heads, uint32_t head)
{
	struct kern_kv_layer kv = {.base = e->pool.dev,
	                           .kv_heads = heads,
	                           .head_dim = head,
	                           .block_tokens = BLOCK,
	                           .dtype = KERN_BF16};
	kv.block_stride_bytes = kern_kv_planes(&kv) * kern_kv_plane_bytes(&kv);
	return kv;
}

static struct kern_op attention(struct kern_kv_layer kv, struct kern_tensor q,
                                struct kern_tensor out, uint32_t heads, float scale)
{
	struct kern_op op;
	memset(&op, 0, sizeof op);
	op.kind = KERN_OP_ATTENTION;
	op.attention.kv = kv;
	op.attention.q = q;
	op.attention.out = out;
	op.attention.heads = heads;
	op.attention.scale = scale;
	return op;
}

/* y = attention(w[0] x, w[1] x, w[2] x), each w of a different type. */
static int model_new(struct envelope *e)
{
	struct kern_op op[TYPES + 2];
	struct kern_kv_layer kv = kv_layer(e, HEADS, HEAD);
	struct kern_limits limits = {
		.rows = ROWS, .spans = 1, .positions = ROWS, .batch_bytes = BATCH_BYTES};
	memset(op, 0, sizeof op);
	for (int i = 0; i < TYPES; i++)
		op[i] = product(e->x, e->w[i], e->of[i]);
	op[TYPES].kind = KERN_OP_KV_WRITE;
	op[TYPES].kv_write.kv = kv;
	op[TYPES].kv_write.k = e->of[1];
	op[TYPES].kv_write.v = e->of[2];
	op[TYPES + 1] = attention(kv, e->of[0], e->y, HEADS, 0.01f);
	return cuda_program_new(e->dev, op, sizeof op / sizeof *op, &limits, &e->p);
}

static struct kern_tensor take(const struct envelope *e, size_t *at, uint32_t columns)
{
	struct kern_tensor t = {kern_at(e->mem.dev, *at), columns, KERN_F32};
	*at += ROWS * columns * sizeof(float);
	return t;
}

static int envelope_begin(struct envelope *e)
{
	size_t at = 0;
	uint32_t seed = 5;
	int rc = cuda_stream_new(e->dev, &e->stream);
	for (size_t i = 0; i < ROWS * DIM; i++)
		e->in[i] = (float)(int32_t)random_bits(&seed) * 0x1p-31f;
	if (!rc)
		rc = cuda_mem_new(e->dev, KERN_MEM_DEVICE,
		                  ROWS * (DIM + (TYPES + 1) * WIDTH) * sizeof(float), &e->mem);
	if (!rc)
		rc = cuda_mem_new(e->dev, KERN_MEM_DEVICE, POOL_BYTES, &e->pool);
	if (!rc)
		rc = cuda_mem_new(e->dev, KERN_MEM_PINNED, BATCH_BYTES, &e->batch);
	/* "fast" multiplies bfloat16 by cuBLASLt */
	enum kern_dtype plain = e->dev->fast ? KERN_Q4_0 : KERN_BF16;
	if (rc || (rc = weight_new(e, 0, plain, 18)) || (rc = weight_new(e, 1, KERN_Q8_0, 34)) ||
	    (rc = weight_new(e, 2, KERN_Q4_K, 144)))
		return rc;
	e->x = take(e, &at, DIM);
	e->y = take(e, &at, WIDTH);
	for (int i = 0; i < TYPES; i++)
		e->of[i] = take(e, &at, WIDTH);
	return KERN_OK;
}

static void envelope_end(struct envelope *e)
{
	if (e->stream)
		/* after an error work may be in progress */
		cudaStreamSynchronize(e->stream->stream);
	cuda_program_destroy(&e->p);
	for (int i = 0; i < TYPES; i++)
		cuda_weight_destroy(e->dev, &e->w[i]);
	cuda_mem_free(e->dev, &e->mem);
	cuda_mem_free(e->dev, &e->pool);
	cuda_mem_free(e->dev, &e->batch);
	cuda_stream_destroy(&e->stream);
}

/* A batch of `rows` rows of one sequence, with blocks in order, starting at `position`. */
static void batch_write(struct envelope *e, uint32_t position, uint32_t rows)
{
	struct kern_batch *b = e->batch.host;
	uint32_t *words = e->batch.host;
	struct kern_span span = {.rows = rows, .position = position};
	*b = (struct kern_batch){.rows = rows, .spans = 1, .span = 16};
	b->tokens = b->positions = b->tail_index = b->tail_span = b->slots = 16 + sizeof span / 4;
	b->table = b->slots + rows;
	b->words = b->table + FAR_BLOCKS;
	memcpy(words + b->span, &span, sizeof span);
	for (uint32_t r = 0; r < rows; r++)
		words[b->slots + r] = position + r; /* also the row's position */
	for (uint32_t i = 0; i < FAR_BLOCKS; i++)
		words[b->table + i] = i;
}

/* Runs the program over rows [from, from + rows) of `in`, at positions first + from on; results in
 * y. */
static int step(struct envelope *e, uint32_t first, uint32_t from, uint32_t rows, float *y)
{
	size_t x_bytes = rows * e->x.ld * sizeof *e->in, y_bytes = rows * e->y.ld * sizeof *y;
	cudaStream_t s = e->stream->stream;
	batch_write(e, first + from, rows);
	int rc = cuda_check(e->dev,
	                    cudaMemcpyAsync((void *)e->x.at.v, e->in + from * e->x.ld, x_bytes,
	                                    cudaMemcpyDefault, s),
	                    "uploading");
	if (!rc)
		rc = cuda_run(e->stream, e->p, &e->batch);
	if (!rc)
		rc = cuda_check(e->dev,
		                cudaMemcpyAsync(y, (const void *)e->y.at.v, y_bytes, cudaMemcpyDefault, s),
		                "downloading");
	return rc ? rc : cuda_check(e->dev, cudaStreamSynchronize(s), "self-test of the device");
}

/* Repeats rows [from, from + rows) without the others of the `among` in e->all and compares the
 * bits. */
static int compare(struct envelope *e, uint32_t first, uint32_t from, uint32_t rows, int among)
{
	int rc = step(e, first, from, rows, e->part);
	if (!rc && memcmp(e->part, e->all + from * e->y.ld, rows * e->y.ld * sizeof *e->part))
		rc = cuda_fail(
			e->dev, KERN_ENOTSUP,
			"%s computes different bits for %u rows from position %u on alone than among "
			"%d: this build must not be used on it",
			e->dev->name, rows, first + from, among);
	return rc;
}

/* All rows at once, with as many as possible in a block of linear_wide.cu, against some of them:
 * few, which linear_mma.cu does, and many with the other number of rows in a block. */
static int compare_model(struct envelope *e)
{
	static const struct {
		uint32_t from, rows;
	} parts[] = {{ROWS - 1, 1}, {0, 1}, {126, 9}, {66, 70}};
	enum { PARTS = sizeof parts / sizeof *parts };
	int rc = KERN_OK;
	for (int few = 0; few < 2 && !rc; few++) {
		e->dev->wide_columns = few ? 64 : 256;
		rc = model_new(e);
		e->dev->wide_columns = 0;
		if (!rc && !few)
			rc = step(e, 0, 0, ROWS, e->all);
		for (size_t i = few ? PARTS - 1 : 0; i < (few ? PARTS : PARTS - 1) && !rc; i++)
			rc = compare(e, 0, parts[i].from, parts[i].rows, ROWS);
		cuda_program_destroy(&e->p);
	}
	return rc;
}

static int pool_fill(struct envelope *e)
{
	unsigned char *data = random_bytes(POOL_BYTES, 11, 1);
	if (!data)
		return no_memory(e->dev);
	int rc = cuda_check(e->dev,
	                    cudaMemcpyAsync((void *)e->pool.dev.v, data, POOL_BYTES, cudaMemcpyDefault,
	                                    e->stream->stream),
	                    "uploading");
	if (!rc)
		rc = cuda_check(e->dev, cudaStreamSynchronize(e->stream->stream), "uploading");
	if (rc)
		cudaStreamSynchronize(e->stream->stream); /* a started copy still reads data */
	free(data);
	return rc;
}

/* Deep in a context, attention is split among blocks by chunks, by runs of chunks if the states of
 * chunks would need too much memory, or not at all, depending on the largest possible number of
 * rows and positions. Tests limits that need each (41 million positions: runs for up to 8 rows, no
 * split for 64). */
static int compare_far(struct envelope *e)
{
	static const uint32_t positions[] = {FAR_POSITIONS, 41000000};
	const uint32_t first = FAR_POSITIONS - FAR_ROWS;
	e->x.ld = e->y.ld = FAR_COLUMNS;
	struct kern_op op = attention(kv_layer(e, 1, FAR_HEAD), e->x, e->y, FAR_HEADS, 8);
	int rc = KERN_OK;
	for (int i = 0; i < 2 && !rc; i++) {
		struct kern_limits limits = {
			.rows = 64, .spans = 1, .positions = positions[i], .batch_bytes = BATCH_BYTES};
		rc = cuda_program_new(e->dev, &op, 1, &limits, &e->p);
		if (!rc)
			rc = i ? compare(e, first, 0, FAR_ROWS, FAR_ROWS) : step(e, first, 0, FAR_ROWS, e->all);
		if (!rc)
			rc = compare(e, first, FAR_ROWS - 1, 1, FAR_ROWS);
		cuda_program_destroy(&e->p);
	}
	return rc;
}

/* A prompt's rows, among many and in a few; over so many positions that rings in shared memory come
 * round. */
static int compare_wide(struct envelope *e)
{
	const uint32_t first = WIDE_BLOCKS * BLOCK - WIDE_ROWS;
	int rc = KERN_OK;
	for (uint32_t head = WIDE_HEAD / 2; head <= WIDE_HEAD && !rc; head += WIDE_HEAD / 2) {
		struct kern_limits limits = {
			.rows = ROWS, .spans = 1, .positions = WIDE_BLOCKS * BLOCK, .batch_bytes = BATCH_BYTES};
		e->x.ld = e->y.ld = WIDE_HEADS * head;
		struct kern_op op = attention(kv_layer(e, 1, head), e->x, e->y, WIDE_HEADS, 2);
		e->dev->wide_always = 1;
		rc = cuda_program_new(e->dev, &op, 1, &limits, &e->p);
		e->dev->wide_always = 0;
		if (!rc)
			rc = step(e, first, 0, WIDE_ROWS, e->all);
		if (!rc)
			rc = compare(e, first, WIDE_ROWS - 1, 1, WIDE_ROWS);
		if (!rc)
			rc = compare(e, first, 20, 30, WIDE_ROWS);
		cuda_program_destroy(&e->p);
	}
	return rc;
}

static int compare_all(struct envelope *e)
{
	int rc = compare_model(e);
	if (!rc)
		rc = pool_fill(e);
	if (!rc)
		rc = compare_far(e);
	return rc ? rc : compare_wide(e);
}

int cuda_envelope(struct kern_device *dev)
{
	struct envelope *e = calloc(1, sizeof *e);
	if (!e)
		return no_memory(dev);
	e->dev = dev;
	int rc = envelope_begin(e);
	/* "fast" promises no bits, but uses wgmma only where it is right */
	if (!rc && (!dev->fast || dev->wgmma))
		rc = compare_all(e);
	if (rc == KERN_ENOTSUP && dev->wgmma && cuda_wgmma() < 0) {
		fprintf(stderr, "%s: wgmma has other bits than mma.sync, so it is not used\n", dev->name);
		dev->wgmma = 0;
		rc = dev->fast ? KERN_OK : compare_all(e);
	}
	envelope_end(e);
	free(e);
	return rc;
}
