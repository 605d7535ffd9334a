/* weight.cu - converts weights from the file's format to the layout of weight.h.
 *
 * The host copies a batch of rows into pinned memory; they are copied to the device and packed
 * there while the host copies the next batch. A call returns when nothing of it is in progress;
 * after an error the matrix's values are undefined. */
#include "kernels/cuda/weight.h"

#include <stdlib.h>
#include <string.h>

enum { STAGE_BYTES = 8 << 20, PACK_THREADS = 32, STAGES = 2 };

struct staging {
	struct {
		unsigned char *host, *dev;
		cudaEvent_t free;
	} stage[STAGES];
	size_t bytes; /* per stage */
	unsigned next;
};

/* --- packing ------------------------------------------------------------- */

struct pack_args {
	unsigned char *to;         /* destination of the first row, the start of a panel */
	const unsigned char *from; /* rows in the file's format, dense */
	size_t row_bytes, ld;      /* of the file's rows; weight_view.ld */
	uint32_t n, k;             /* n: rows in this batch */
	int type;
};

/* Code of value `column` of a row in the file's format, before weight_zero is
 * subtracted. The formats are GGML's, see tensor.h. */
static __device__ int file_code(int type, const unsigned char *row, uint32_t column)
{
	uint32_t b = column / 32, i = column % 32, q;
	const unsigned char *at;
	switch (type) {
	case KERN_Q8_0: return (int)(int8_t)row[b * 34 + 2 + i];
	case KERN_E4M3:
		return (int)row[column / KERN_E4M3_VALUES * 132 + 4 + column % KERN_E4M3_VALUES];
	case KERN_Q4_0: return (int)(row[b * 18 + 2 + i % 16] >> (i < 16 ? 0 : 4) & 15);
	case KERN_Q4_1: return (int)(row[b * 20 + 4 + i % 16] >> (i < 16 ? 0 : 4) & 15);
	case KERN_MXFP4: return (int)(row[b * 17 + 1 + i % 16] >> (i < 16 ? 0 : 4) & 15);
	case KERN_Q5_0:
	case KERN_Q5_1:
		at = row + b * (type == KERN_Q5_0 ? 22 : 24) + (type == KERN_Q5_0 ? 2 : 4);
		return (int)((at[4 + i % 16] >> (i < 16 ? 0 : 4) & 15) | (at[i / 8] >> i % 8 & 1) << 4);
	case KERN_Q4_K:
	case KERN_Q5_K:
		at = row + column / 256 * (type == KERN_Q4_K ? 144 : 176);
		b = column % 256 / 32;
		q = at[(type == KERN_Q4_K ? 16 : 48) + b / 2 * 32 + i] >> (b % 2 ? 4 : 0) & 15;
		return (int)(type == KERN_Q4_K ? q : q | (uint32_t)(at[16 + i] >> b & 1) << 4);
	default: /* q6_k: two halves of 128 values; value l + 32 j of a half */
		at = row + column / 256 * 210;
		q = column % 256 / 128;
		b = column % 128 / 32;
		return (int)((at[64 * q + i + 32 * (b & 1)] >> (b >= 2 ? 4 : 0) & 15) |
		             (at[128 + 32 * q + i] >> 2 * b & 3) << 4);
	}
}

/* Reads two bytes at an address of any alignment. */
static __device__ uint16_t file_half(const unsigned char *at)
{
	return (uint16_t)(at[0] | at[1] << 8);
}

static __device__ void pack_codes(const struct pack_args &a, unsigned char *record,
                                  uint32_t first_row, uint32_t first, uint32_t lane)
{
	uint32_t code[2][8];
	for (uint32_t j = 0; j < 2; j++)
		for (uint32_t e = 0; e < 8; e++) {
			uint32_t row = first_row + lane / 4 + 8 * (e / 2 % 2),
					 column = first + TILE_VALUES * j + lane % 4 * 2 + e % 2 + 8 * (e / 4);
			code[j][e] = row < a.n && column < a.k
			                 ? (uint32_t)file_code(a.type, a.from + row * a.row_bytes, column)
			                 : (uint32_t)weight_zero(a.type);
		}
	struct weight_layout l = weight_layout_of(a.type);
	for (uint32_t e = 0; e < 8; e++)
		if (a.type == KERN_Q8_0 || a.type == KERN_E4M3) {
			record[16 * lane + e] = (unsigned char)code[0][e];
			record[16 * lane + 8 + e] = (unsigned char)code[1][e];
		} else
			record[8 * lane + e] = (unsigned char)((code[0][e] & 15) | (code[1][e] & 15) << 4);
	for (uint32_t j = 0; j < 2 && l.high_at && a.type != KERN_Q6_K; j++) {
		uint32_t bits = 0;
		for (uint32_t e = 0; e < 8; e++)
			bits |= (code[j][e] >> 4 & 1) << e;
		record[l.high_at + 2 * lane + j] = (unsigned char)bits;
	}
	for (uint32_t b = 0; b < 4 && a.type == KERN_Q6_K; b++) {
		uint32_t bits = 0;
		for (uint32_t e = 0; e < 4; e++)
			bits |= (code[b / 2][b % 2 * 4 + e] >> 4 & 3) << 2 * e;
		record[l.high_at + 4 * lane + b] = (unsigned char)bits;
	}
}

/* Stores the scales of row `row` of a record; `first` is the record's first column. The scales of
 * missing rows are the zeros of a new weight. */
static __device__ void pack_scales(const struct pack_args &a, unsigned char *record,
                                   unsigned char *shared, uint32_t row, const unsigned char *from,
                                   uint32_t first)
{
	unsigned char *s = record + weight_layout_of(a.type).scale_at;
	uint16_t *half = (uint16_t *)s, *shared_half = (uint16_t *)shared;
	uint32_t b = first / 32, group = first % 256 / 32, left = a.k - first;
	const unsigned char *big = from + first / 256 *
	                                      (a.type == KERN_Q4_K   ? 144
	                                       : a.type == KERN_Q5_K ? 176
	                                                             : 210),
						*pair = from + b * (a.type == KERN_Q4_1 ? 20 : 24);
	unsigned scale, offset;
	switch (a.type) {
	case KERN_Q8_0: half[row] = file_half(from + b * 34); break;
	case KERN_Q4_0: half[row] = file_half(from + b * 18); break;
	case KERN_Q5_0: half[row] = file_half(from + b * 22); break;
	case KERN_MXFP4: s[row] = from[b * 17]; break;
	case KERN_E4M3:
		if (first % KERN_E4M3_VALUES == 0) /* the first record of a block stores what they share */
			((float *)shared)[row] = kern_e4m3_scale(from + first / KERN_E4M3_VALUES * 132,
			                                         left < KERN_E4M3_VALUES
			                                             ? left
			                                             : (uint32_t)KERN_E4M3_VALUES);
		break;
	case KERN_Q4_1:
	case KERN_Q5_1:
		half[2 * row] = file_half(pair);
		half[2 * row + 1] = file_half(pair + 2);
		break;
	case KERN_Q4_K:
	case KERN_Q5_K:
		kern_k_scales(big + 4, group, &scale, &offset);
		s[2 * row] = (unsigned char)scale;
		s[2 * row + 1] = (unsigned char)offset;
		shared_half[2 * row] = file_half(big);
		shared_half[2 * row + 1] = file_half(big + 2);
		break;
	default:
		s[2 * row] = big[192 + 2 * group];
		s[2 * row + 1] = big[193 + 2 * group];
		shared_half[row] = file_half(big + 208);
	}
}

/* One warp per record: blockIdx.x is its number in the panel, blockIdx.y the panel. */
KERNEL(pack_records, PACK_THREADS, struct pack_args)
{
	struct weight_layout l = weight_layout_of(a.type);
	uint32_t lane = threadIdx.x, first_row = blockIdx.y * PANEL_ROWS, first = blockIdx.x * l.values;
	unsigned char *block = a.to + blockIdx.y * a.ld +
	                       (size_t)(blockIdx.x / l.records) * l.block_bytes;
	unsigned char *record = block + blockIdx.x % l.records * l.record_bytes;
	if (a.type == KERN_F32 || a.type == KERN_F16 || a.type == KERN_BF16) {
		uint32_t halves = a.type == KERN_F32 ? 2 : 1; /* of a value */
		for (uint32_t i = 0; i < 8 * halves; i++) {
			uint32_t e = i / halves, row = first_row + lane / 4 + 8 * (e / 2 % 2),
					 column = first + lane % 4 * 2 + e % 2 + 8 * (e / 4);
			((uint16_t *)record)[8 * halves * lane + i] = row < a.n && column < a.k
			                                                  ? file_half(
																	a.from + row * a.row_bytes +
																	2 * ((size_t)column * halves +
			                                                             i % halves))
			                                                  : 0;
		}
		return;
	}
	pack_codes(a, record, first_row, first, lane);
	if (lane < PANEL_ROWS && first_row + lane < a.n)
		pack_scales(a, record, block + l.records * l.record_bytes, lane,
		            a.from + (first_row + lane) * a.row_bytes, first);
}

/* --- loading ------------------------------------------------------------- */

void cuda_staging_free(struct kern_device *dev)
{
	if (!dev->staging)
		return;
	for (int i = 0; i < STAGES; i++) {
		cudaFreeHost(dev->staging->stage[i].host);
		cudaFree(dev->staging->stage[i].dev);
		if (dev->staging->stage[i].free)
			cudaEventDestroy(dev->staging->stage[i].free);
	}
	free(dev->staging);
	dev->staging = NULL;
}

/* Ensures stages of at least `bytes` each. */
static int staging_room(struct kern_device *dev, size_t bytes)
{
	if (bytes < STAGE_BYTES)
		bytes = STAGE_BYTES;
	if (dev->staging && dev->staging->bytes >= bytes)
		return KERN_OK;
	int rc = cuda_check(dev, cudaStreamSynchronize(dev->loading), "loading weights");
	cuda_staging_free(dev);
	if (rc)
		return rc;
	struct staging *s = (struct staging *)calloc(1, sizeof *s);
	if (!s)
		return cuda_fail(dev, KERN_ENOMEM, "out of memory for loading weights");
	dev->staging = s;
	s->bytes = bytes;
	for (int i = 0; i < STAGES && !rc; i++) {
		rc = cuda_check_pinned(
			dev, cudaHostAlloc((void **)&s->stage[i].host, bytes, cudaHostAllocPortable), bytes);
		if (!rc)
			rc = cuda_check(dev, cudaMalloc((void **)&s->stage[i].dev, bytes),
			                "allocating memory to load weights");
		if (!rc)
			rc = cuda_check(dev,
			                cudaEventCreateWithFlags(&s->stage[i].free, cudaEventDisableTiming),
			                "loading weights");
	}
	if (rc)
		cuda_staging_free(dev);
	return rc;
}

/* Starts loading rows [from, from + rows) of a matrix; `data` is the first of them, in rows of
 * `dense` bytes. */
static int load_rows(struct kern_device *dev, const struct weight_view *w, size_t dense,
                     const unsigned char *data, size_t row_bytes, uint32_t from, uint32_t rows)
{
	struct staging *s = dev->staging;
	unsigned i = s->next++ % STAGES;
	int rc = cuda_check(dev, cudaEventSynchronize(s->stage[i].free), "loading weights");
	if (rc)
		return rc;
	for (uint32_t r = 0; r < rows; r++)
		memcpy(s->stage[i].host + r * dense, data + r * row_bytes, dense);
	struct weight_layout l = weight_layout_of(w->type);
	unsigned char *to = (unsigned char *)(uintptr_t)w->data;
	if (!l.panels) {
		rc = cuda_check(dev,
		                cudaMemcpy2DAsync(to + from * w->ld * 2, w->ld * 2, s->stage[i].host, dense,
		                                  dense, rows, cudaMemcpyDefault, dev->loading),
		                "loading weights");
	} else {
		struct pack_args a = {
			to + from / PANEL_ROWS * w->ld, s->stage[i].dev, dense, w->ld, rows, w->k, w->type};
		struct dim3 grid = {(unsigned)(w->ld / l.block_bytes * l.records),
		                    (rows + PANEL_ROWS - 1) / PANEL_ROWS, 1},
					block = {PACK_THREADS, 1, 1};
		void *args[] = {&a};
		rc = cuda_check(dev,
		                cudaMemcpyAsync(s->stage[i].dev, s->stage[i].host, rows * dense,
		                                cudaMemcpyDefault, dev->loading),
		                "loading weights");
		if (!rc)
			rc = cuda_check(dev,
			                cudaLaunchKernel((const void *)pack_records, grid, block, args, 0,
			                                 dev->loading),
			                "loading weights");
	}
	return rc ? rc
	          : cuda_check(dev, cudaEventRecord(s->stage[i].free, dev->loading), "loading weights");
}

int cuda_weight_new(struct kern_device *dev, enum kern_dtype dtype, uint32_t count, uint32_t n,
                    uint32_t k, struct kern_weight **ret_w)
{
	enum { ALIGN = 256 };
	int rc = kern_weight_check(dtype, count, n, k, dev->error, sizeof dev->error);
	if (!rc && (k > CUDA_MAX_DIM || n > CUDA_MAX_ROWS))
		rc = cuda_fail(dev, KERN_EINVAL, "weight of %u rows of %u values, limits are %d and %d", n,
		               k, CUDA_MAX_ROWS, CUDA_MAX_DIM);
	if (!rc)
		rc = cuda_choose(dev);
	if (rc)
		return rc;
	struct kern_weight *w = (struct kern_weight *)calloc(1, sizeof *w);
	if (!w)
		return cuda_fail(dev, KERN_ENOMEM, "out of memory for a weight");
	w->dtype = dtype;
	w->count = count;
	w->n = n;
	w->k = k;
	w->plain = dev->fast && dtype == KERN_BF16 && n % ROWS_UNIT == 0 && k % ROWS_UNIT == 0;
	struct weight_view v = weight_view_of(w);
	w->stride = weight_layout_of(v.type).panels ? (n + PANEL_ROWS - 1) / PANEL_ROWS * v.ld
	                                            : n * v.ld * 2;
	w->stride = (w->stride + ALIGN - 1) / ALIGN * ALIGN;
	rc = cuda_check(dev, cudaMalloc((void **)&w->data, count * w->stride), "allocating a weight");
	if (!rc)
		rc = cuda_check(dev, cudaMemsetAsync(w->data, 0, count * w->stride, dev->loading),
		                "clearing a weight");
	if (rc)
		cuda_weight_destroy(dev, &w);
	else
		*ret_w = w;
	return rc;
}

/* Returns when the matrix is loaded, because programs that use it may run on any stream. */
int cuda_weight_load(struct kern_device *dev, struct kern_weight *weight, uint32_t i,
                     const void *data, size_t row_bytes)
{
	size_t dense = kern_dtype_bytes(weight->dtype, weight->k);
	int rc = kern_load_check(weight->dtype, weight->count, weight->k, i, data, row_bytes,
	                         dev->error, sizeof dev->error);
	if (!rc)
		rc = cuda_choose(dev);
	if (!rc)
		rc = staging_room(dev, PANEL_ROWS * dense);
	if (rc)
		return rc;
	struct weight_view w = weight_view_of(weight);
	w.data += i * weight->stride;
	size_t apart = row_bytes ? row_bytes : dense,
		   fit = dev->staging->bytes / dense / PANEL_ROWS * PANEL_ROWS;
	for (uint32_t from = 0; from < w.n && !rc;) {
		uint32_t rows = w.n - from < fit ? w.n - from : (uint32_t)fit;
		rows = rows > 1 << 19 ? 1 << 19 : rows; /* limit of a grid's second dimension */
		rc = load_rows(dev, &w, dense, (const unsigned char *)data + from * apart, apart, from,
		               rows);
		from += rows;
	}
	/* also after an error: nothing still reads the stages */
	int end = cuda_check(dev, cudaStreamSynchronize(dev->loading), "loading weights");
	return rc ? rc : end;
}

void cuda_weight_destroy(struct kern_device *dev, struct kern_weight **wp)
{
	if (!*wp || dev->hangs)
		return;
	if ((*wp)->data)
		cudaFree((*wp)->data);
	free(*wp);
	*wp = NULL;
}
