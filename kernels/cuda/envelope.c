/* envelope.c - the same tokens whatever a request is batched with: that is promised (kernels.h) and rests on how tensor cores add, which no test elsewhere shows
 * for the device at hand. So before it is used, rows of a small model's step are computed among many, in a few, and alone, and must have the same bits; a
 * device where they differ is refused. Takes milliseconds. */
#include "kernels/cuda/backend.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 70, DIM = 256, HEADS = 4, HEAD = 64, BLOCK = 16, BLOCKS = (ROWS + BLOCK - 1) / BLOCK, BATCH_BYTES = 4096, TYPES = 3 };

struct envelope {
	struct kern_device *dev;
	struct kern_stream stream;
	struct kern_mem mem, pool, batch;
	struct kern_weight *w[TYPES];
	struct kern_program *p;
	struct kern_tensor x, h, att, y;       /* (ROWS, DIM) */
	float in[ROWS * DIM];
};

static uint32_t random_bits(uint32_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 17;
	return *seed ^= *seed << 5;
}

/* Rows of any bytes are numbers of these types, if the scales are: every block begins with one of 2^-5, as float16. */
static int weight_new(struct envelope *e, int i, enum kern_dtype type, uint32_t block_bytes)
{
	size_t bytes = kern_dtype_bytes(type, DIM) * DIM;
	unsigned char *data = malloc(bytes);
	uint32_t seed = 7 + (uint32_t)i;
	if (!data)
		return cuda_fail(e->dev, KERN_ENOMEM, "no memory for a first check of the device");
	for (size_t at = 0; at < bytes; at++)
		data[at] = (unsigned char)random_bits(&seed);
	if (type == KERN_BF16)
		for (size_t at = 0; at < bytes; at += 2)
			data[at + 1] = (unsigned char)((data[at + 1] & 0x81) | 0x3c);      /* magnitudes of 2^-8 to 2^-4 */
	else
		for (size_t at = 0; at < bytes; at += block_bytes)
			memcpy(data + at, type == KERN_Q4_K ? "\0\x28\0\x28" : "\0\x28", type == KERN_Q4_K ? 4 : 2);
	int rc = cuda_weight_new(e->dev, type, DIM, DIM, data, 0, &e->w[i]);
	free(data);
	return rc;
}

static struct kern_op product(struct kern_tensor x, const struct kern_weight *w, struct kern_tensor y)
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

/* A product of each type, with attention between them: y = W2 attention(W0 x, W1 W0 x). */
static int program_new(struct envelope *e)
{
	struct kern_op op[5];
	struct kern_kv_layer kv = {.base = e->pool.dev, .kv_heads = HEADS / 2, .head_dim = HEAD, .block_tokens = BLOCK, .dtype = KERN_BF16};
	struct kern_limits limits = {.rows = ROWS, .spans = 1, .positions = ROWS, .batch_bytes = BATCH_BYTES};
	kv.block_stride_bytes = kern_kv_planes(&kv) * kern_kv_plane_bytes(&kv);
	memset(op, 0, sizeof op);
	op[0] = product(e->x, e->w[0], e->h);
	op[1] = product(e->h, e->w[1], e->att);
	op[2].kind = KERN_OP_KV_WRITE;
	op[2].kv_write.kv = kv;
	op[2].kv_write.k = e->h;
	op[2].kv_write.v = e->att;
	op[3].kind = KERN_OP_ATTENTION;
	op[3].attention.kv = kv;
	op[3].attention.q = e->h;
	op[3].attention.out = e->att;
	op[3].attention.heads = HEADS;
	op[3].attention.scale = 0.125f;
	op[4] = product(e->att, e->w[2], e->y);
	return cuda_program_new(e->dev, op, sizeof op / sizeof *op, &limits, &e->p);
}

static struct kern_tensor take(const struct envelope *e, unsigned i)
{
	return (struct kern_tensor){kern_at(e->mem.dev, i * sizeof e->in), DIM, KERN_F32};
}

static int envelope_begin(struct envelope *e)
{
	size_t pool_bytes = (size_t)BLOCKS * BLOCK * HEADS * HEAD * 2;
	uint32_t seed = 5;
	int rc = cuda_check(e->dev, cudaStreamCreateWithFlags(&e->stream.stream, cudaStreamNonBlocking), "making a stream");
	e->stream.dev = e->dev;
	for (size_t i = 0; i < ROWS * DIM; i++)
		e->in[i] = (float)(int32_t)random_bits(&seed) * 0x1p-31f;
	if (!rc)
		rc = cuda_mem_new(e->dev, KERN_MEM_DEVICE, 4 * sizeof e->in, &e->mem);
	if (!rc)
		rc = cuda_mem_new(e->dev, KERN_MEM_DEVICE, pool_bytes, &e->pool);
	if (!rc)
		rc = cuda_mem_new(e->dev, KERN_MEM_PINNED, BATCH_BYTES, &e->batch);
	if (rc || (rc = weight_new(e, 0, KERN_BF16, 0)) || (rc = weight_new(e, 1, KERN_Q8_0, 34)) || (rc = weight_new(e, 2, KERN_Q4_K, 144)))
		return rc;
	e->x = take(e, 0);
	e->h = take(e, 1);
	e->att = take(e, 2);
	e->y = take(e, 3);
	return program_new(e);
}

static void envelope_end(struct envelope *e)
{
	cuda_program_destroy(&e->p);
	for (int i = 0; i < TYPES; i++)
		cuda_weight_destroy(e->dev, &e->w[i]);
	cuda_mem_free(e->dev, &e->mem);
	cuda_mem_free(e->dev, &e->pool);
	cuda_mem_free(e->dev, &e->batch);
	if (e->stream.stream)
		cudaStreamDestroy(e->stream.stream);
}

/* Positions [from, from + rows) of the one sequence; their rows of y. */
static int step(struct envelope *e, uint32_t from, uint32_t rows, float *y)
{
	struct kern_batch *b = e->batch.host;
	uint32_t *words = e->batch.host;
	struct kern_span span = {.rows = rows, .position = from};
	*b = (struct kern_batch){.rows = rows, .spans = 1, .span = 16};
	b->tokens = b->positions = b->tail_index = b->tail_span = b->slots = 16 + sizeof span / 4;
	b->table = b->slots + rows;
	b->words = b->table + BLOCKS;
	memcpy(words + b->span, &span, sizeof span);
	for (uint32_t r = 0; r < rows; r++)
		words[b->slots + r] = from + r;        /* blocks in order: also a row's position */
	for (uint32_t i = 0; i < BLOCKS; i++)
		words[b->table + i] = i;
	size_t bytes = rows * DIM * sizeof *y;
	cudaStream_t s = e->stream.stream;
	int rc = cuda_check(e->dev, cudaMemcpyAsync((void *)e->x.at.v, e->in + (size_t)from * DIM, bytes, cudaMemcpyDefault, s), "uploading");
	if (!rc)
		rc = cuda_run(&e->stream, e->p, &e->batch);
	if (!rc)
		rc = cuda_check(e->dev, cudaMemcpyAsync(y, (const void *)e->y.at.v, bytes, cudaMemcpyDefault, s), "downloading");
	return rc ? rc : cuda_check(e->dev, cudaStreamSynchronize(s), "a first check of the device");
}

int cuda_envelope(struct kern_device *dev)
{
	static const struct { uint32_t from, rows; } parts[] = {{ROWS - 1, 1}, {0, 1}, {33, 9}, {2, 66}};
	struct envelope *e = calloc(1, sizeof *e);
	float *all = calloc(2, sizeof e->in), *part = all + ROWS * DIM;
	if (!e || !all) {
		free(e);
		free(all);
		return cuda_fail(dev, KERN_ENOMEM, "no memory for a first check of the device");
	}
	e->dev = dev;
	int rc = envelope_begin(e);
	if (!rc)
		rc = step(e, 0, ROWS, all);
	for (size_t i = 0; i < sizeof parts / sizeof *parts && !rc; i++) {
		rc = step(e, parts[i].from, parts[i].rows, part);
		if (!rc && memcmp(part, all + (size_t)parts[i].from * DIM, parts[i].rows * DIM * sizeof *part))
			rc = cuda_fail(dev, KERN_ENOTSUP, "%s computes other bits for %u rows alone than among %d: this build must not be used on it", dev->name,
			               parts[i].rows, ROWS);
	}
	envelope_end(e);
	free(e);
	free(all);
	return rc;
}
