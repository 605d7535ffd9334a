/* common.c - shared by all backends: names and sizes of the element types, checks of weights and
 * batches. */
#include "kernels/device.h"
#include "kernels/batch.h"

#include <stdio.h>
#include <string.h>

static const struct {
	const char *name;
	unsigned block_values, block_bytes;
} dtypes[KERN_DTYPE_COUNT] = {
	[KERN_F32] = {"f32", 1, 4},          [KERN_F16] = {"f16", 1, 2},
	[KERN_BF16] = {"bf16", 1, 2},        [KERN_Q8_0] = {"q8_0", 32, 34},
	[KERN_Q4_0] = {"q4_0", 32, 18},      [KERN_Q4_1] = {"q4_1", 32, 20},
	[KERN_Q6_K] = {"q6_k", 256, 210},    [KERN_Q5_0] = {"q5_0", 32, 22},
	[KERN_Q5_1] = {"q5_1", 32, 24},      [KERN_Q4_K] = {"q4_k", 256, 144},
	[KERN_Q5_K] = {"q5_k", 256, 176},    [KERN_MXFP4] = {"mxfp4", 32, 17},
	[KERN_E4M3] = {"f8_e4m3", 128, 132}, [KERN_I8] = {"int8", 1, 1},
	[KERN_F8] = {"fp8", 1, 1},
};

size_t kern_dtype_bytes(enum kern_dtype t, size_t count)
{
	if ((unsigned)t >= KERN_DTYPE_COUNT || (count % dtypes[t].block_values && t != KERN_E4M3))
		return 0;
	size_t blocks = count / dtypes[t].block_values + (count % dtypes[t].block_values != 0);
	return blocks > SIZE_MAX / dtypes[t].block_bytes ? 0 : blocks * dtypes[t].block_bytes;
}

const char *kern_dtype_name(enum kern_dtype t)
{
	return (unsigned)t < KERN_DTYPE_COUNT ? dtypes[t].name : "unknown";
}

size_t kern_kv_scale_bytes(enum kern_dtype t)
{
	return t == KERN_I8 || t == KERN_F8 ? sizeof(float) : 0;
}

size_t kern_kv_plane_bytes(const struct kern_kv_layer *kv)
{
	return (kern_dtype_bytes(kv->dtype, kv->head_dim) + kern_kv_scale_bytes(kv->dtype)) *
	       kv->block_tokens;
}

int kern_weight_check(enum kern_dtype dtype, uint32_t count, uint32_t n, uint32_t k, char *errbuf,
                      size_t errlen)
{
	enum { MATRICES_MAX = 1 << 16 };
	if ((unsigned)dtype >= KERN_WEIGHT_DTYPES)
		snprintf(errbuf, errlen, "weight of type %s (%u): not a weight type",
		         kern_dtype_name(dtype), (unsigned)dtype);
	else if (!n || !k || !kern_dtype_bytes(dtype, k))
		snprintf(errbuf, errlen, "weight of %u rows of %u values does not fit type %s", n, k,
		         kern_dtype_name(dtype));
	else if (!count || count > MATRICES_MAX)
		snprintf(errbuf, errlen, "weight of %u matrices, limits are 1 and %d", count, MATRICES_MAX);
	else
		return KERN_OK;
	return KERN_EINVAL;
}

int kern_load_check(enum kern_dtype dtype, uint32_t count, uint32_t k, uint32_t i, const void *data,
                    size_t row_bytes, char *errbuf, size_t errlen)
{
	if (i >= count)
		snprintf(errbuf, errlen, "weight of %u matrices has no matrix %u", count, i);
	else if (row_bytes && row_bytes < kern_dtype_bytes(dtype, k))
		snprintf(errbuf, errlen, "weight of type %s: rows are %zu bytes apart, %u values take %zu",
		         kern_dtype_name(dtype), row_bytes, k, kern_dtype_bytes(dtype, k));
	else if (!data)
		snprintf(errbuf, errlen, "weight of rows of %u values without data", k);
	else
		return KERN_OK;
	return KERN_EINVAL;
}

/* --- batches ------------------------------------------------------------- */

static int part_fits(const struct kern_batch *b, uint32_t at, uint64_t words)
{
	return at + words <= b->words;
}

/* Checks that the spans cover all rows in order; describes the first that does not. */
static int spans_fit(const struct kern_span *span, uint32_t spans, uint32_t rows,
                     uint32_t positions, char *errbuf, size_t errlen)
{
	uint32_t row = 0;
	for (uint32_t i = 0; i < spans; i++) {
		const struct kern_span *s = &span[i];
		if (s->row != row || !s->rows || s->rows > rows - row)
			snprintf(errbuf, errlen,
			         "a batch whose span %u has %u rows from row %u on, expected row %u and at "
			         "most %u rows",
			         i, s->rows, s->row, row, rows - row);
		else if (s->rows > positions || s->position > positions - s->rows)
			snprintf(errbuf, errlen,
			         "a batch with rows up to position %llu of a sequence, the program was made "
			         "for %u positions",
			         (unsigned long long)s->position + s->rows - 1, positions);
		else {
			row += s->rows;
			continue;
		}
		return 0;
	}
	if (row != rows)
		snprintf(errbuf, errlen, "a batch of %u rows whose spans have %u", rows, row);
	return row == rows;
}

static int tail_fits(const struct kern_batch *b, char *errbuf, size_t errlen)
{
	const uint32_t *index = kern_part(b, b->tail_index);
	for (uint32_t i = 0; i < b->tail_rows; i++)
		if (index[i] >= b->rows) {
			snprintf(errbuf, errlen, "a batch of %u rows whose tail has row %u", b->rows, index[i]);
			return 0;
		}
	return 1;
}

static int draw_fits(const struct kern_batch *b, const struct kern_limits *l,
                     const struct kern_draw *d)
{
	uint64_t mask = ((uint64_t)l->vocab + 63) / 64 * 2;
	return d->ask <= KERN_ASK_SCORE && d->id < l->vocab && d->logprobs <= KERN_TOP_MAX &&
	       d->pending <= 1 && part_fits(b, d->mask[0], d->mask[0] ? mask : 0) &&
	       part_fits(b, d->mask[1], d->mask[1] ? mask : 0) &&
	       part_fits(b, d->forbidden.at, d->forbidden.n) &&
	       part_fits(b, d->bias.at, 2 * (uint64_t)d->bias.n) &&
	       part_fits(b, d->seen.at, 2 * (uint64_t)d->seen.n) && d->drafted.n <= KERN_DRAFTED_MAX &&
	       part_fits(b, d->drafted.at, d->drafted.n);
}

static int draws_fit(const struct kern_batch *b, const struct kern_limits *l, char *errbuf,
                     size_t errlen)
{
	const struct kern_draw *d = kern_part(b, b->draws);
	uint32_t results = l->results ? l->results : l->tail_rows;
	if (b->draws && (uint64_t)b->first_result + b->tail_rows > results) {
		snprintf(errbuf, errlen, "a batch with results %u to %llu of %u", b->first_result,
		         (unsigned long long)b->first_result + b->tail_rows, results);
		return 0;
	}
	for (uint32_t i = 0; b->draws && i < b->tail_rows; i++)
		if (!draw_fits(b, l, &d[i])) {
			snprintf(errbuf, errlen,
			         "a batch whose draw %u names an id, a mask or a list beyond its limits", i);
			return 0;
		}
	return 1;
}

static int advance_fits(const struct kern_batch *b, const struct kern_limits *l,
                        const struct kern_advance *c, const struct kern_span *s)
{
	const struct kern_span *tail = kern_part(b, b->tail_span);
	uint32_t results = l->results ? l->results : l->tail_rows;
	int has_history = c->history != KERN_NONE;
	return c->rows && c->rows <= KERN_DRAFTED_MAX + 1 && c->rows <= results &&
	       c->from <= results - c->rows &&
	       (uint64_t)s->position + s->rows + c->rows - 1 <= l->positions &&
	       (has_history ? c->history < l->histories : s->rows == 1) &&
	       c->known.n <= (has_history ? l->history_tokens : 0) &&
	       part_fits(b, c->known.at, c->known.n) &&
	       (c->tail_span == KERN_NONE ||
	        (c->tail_span < b->tail_spans && tail[c->tail_span].rows == s->rows &&
	         tail[c->tail_span].position == s->position));
}

static int advances_fit(const struct kern_batch *b, const struct kern_limits *l, char *errbuf,
                        size_t errlen)
{
	const struct kern_advance *c = kern_part(b, b->advance);
	const struct kern_span *span = kern_part(b, b->span);
	for (uint32_t i = 0; b->advance && i < b->spans; i++)
		if (c[i].from != KERN_NONE && !advance_fits(b, l, &c[i], &span[i])) {
			snprintf(errbuf, errlen,
			         "a batch whose span %u of %u rows at position %u continues %u kept rows from "
			         "%u on, has history %u of %u, begun with %u tokens, and span %u of the tail",
			         i, span[i].rows, span[i].position, c[i].rows, c[i].from, c[i].history,
			         l->histories, c[i].known.n, c[i].tail_span);
			return 0;
		}
	return 1;
}

int kern_batch_check(const struct kern_mem *batch, const struct kern_limits *l, char *errbuf,
                     size_t errlen)
{
	const struct kern_batch *b = batch->host;
	uint64_t span = sizeof(struct kern_span) / 4, progress = sizeof(struct kern_progress) / 4,
			 draw = sizeof(struct kern_draw) / 4, advance = sizeof(struct kern_advance) / 4;
	if (!b || batch->bytes < sizeof *b || b->words > batch->bytes / 4 ||
	    b->words > l->batch_bytes / 4 || b->words < sizeof *b / 4)
		snprintf(errbuf, errlen, "a batch of %u words, the program was made for %zu",
		         b ? b->words : 0, l->batch_bytes / 4);
	else if (!b->rows || b->rows > l->rows || b->tail_rows > l->tail_rows || !b->spans ||
	         b->spans > l->spans || b->tail_spans > l->spans)
		snprintf(errbuf, errlen,
		         "a batch of %u rows, %u of the tail, %u and %u spans, the program was made for "
		         "%u, %u and %u",
		         b->rows, b->tail_rows, b->spans, b->tail_spans, l->rows, l->tail_rows, l->spans);
	else if (!part_fits(b, b->tokens, b->rows) || !part_fits(b, b->positions, b->rows) ||
	         !part_fits(b, b->slots, b->rows) || !part_fits(b, b->span, b->spans * span) ||
	         !part_fits(b, b->tail_index, b->tail_rows) ||
	         !part_fits(b, b->tail_span, b->tail_spans * span) || !part_fits(b, b->table, 0) ||
	         (b->progress &&
	          (b->progress % 2 || !part_fits(b, b->progress, b->spans * progress))) ||
	         (b->draws && !part_fits(b, b->draws, b->tail_rows * draw)) ||
	         (b->advance && !part_fits(b, b->advance, b->spans * advance)))
		snprintf(errbuf, errlen,
		         "a part of a batch is beyond its %u words, or its progress is at an odd word",
		         b->words);
	else if (spans_fit(kern_part(b, b->span), b->spans, b->rows, l->positions, errbuf, errlen) &&
	         spans_fit(kern_part(b, b->tail_span), b->tail_spans, b->tail_rows, l->positions,
	                   errbuf, errlen) &&
	         tail_fits(b, errbuf, errlen) && draws_fit(b, l, errbuf, errlen) &&
	         advances_fit(b, l, errbuf, errlen))
		return KERN_OK;
	return KERN_EINVAL;
}
