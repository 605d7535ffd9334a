/* step.c - one step: the spans are checked, laid out as the program's batch, and the program is replayed.
 *
 * Nothing is written to the KV pool before every span has been checked. A bad span is the caller's error and is returned; so is a failure of the device or of
 * a rank. A step allocates nothing. */
#include "engine/engine_impl.h"
#include "util/check.h"

#include <string.h>

enum { SPAN_WORDS = sizeof(struct kern_span) / 4, PROGRESS_WORDS = sizeof(struct kern_progress) / 4, HEAD_WORDS = sizeof(struct kern_batch) / 4 };

static uint32_t wanted_rows(const struct engine_span *s)
{
	return s->logits == ENGINE_LOGITS_ALL ? s->n : s->logits == ENGINE_LOGITS_LAST ? 1 : 0;
}

static uint32_t table_length(const struct engine *e, const struct engine_span *s)
{
	return (uint32_t)(((uint64_t)s->position + s->n + e->opts.block_tokens - 1) / e->opts.block_tokens);
}

/* --- checks ------------------------------------------------------------------------------------------------------------- */

/* The words of all layers. */
static int on_board(const struct engine *e, const struct engine_span *s)
{
	uintptr_t at = (uintptr_t)s->progress - (uintptr_t)e->board.host, last = (e->info.layers - 1) * s->progress_stride * sizeof *s->progress;
	return e->board.host && at % sizeof *s->progress == 0 && at < e->board.bytes && last < e->board.bytes - at;
}

static int check_span(const struct engine *e, const struct engine_span *s, uint32_t index, struct err *err)
{
	if (s->n < 1 || s->n > e->opts.max_rows)
		return err_set(err, ERR_INVALID, "span %u: %u tokens, limits are 1 and %u", index, s->n, e->opts.max_rows);
	if ((uint64_t)s->position + s->n > e->info.context)
		return err_set(err, ERR_INVALID, "span %u: positions %u up to %llu, the model's context is %u", index, s->position,
		               (unsigned long long)s->position + s->n - 1, e->info.context);
	for (uint32_t i = 0; i < s->n; i++)
		if (s->tokens[i] >= e->info.vocab)
			return err_set(err, ERR_INVALID, "span %u: token %u is id %u, the vocabulary has %u", index, i, s->tokens[i], e->info.vocab);
	if (s->progress && (!e->opts.progressed || !on_board(e, s)))
		return err_set(err, ERR_INVALID, "span %u: its progress words are not on the board of %zu bytes", index, e->board.bytes);
	for (uint32_t i = 0; i < table_length(e, s); i++)
		if (s->blocks[i] >= e->kv_blocks)
			return err_set(err, ERR_INVALID, "span %u: entry %u of the block table is block %u, the pool has %u", index, i, s->blocks[i], e->kv_blocks);
	return 0;
}

/* Sums over the spans of one step. */
struct totals {
	uint64_t rows, logits, table;
};

static int check_step(const struct engine *e, const struct engine_span *spans, uint32_t n, struct totals *ret, struct err *err)
{
	uint64_t rows = 0, logits = 0, table = 0;
	if (!e->program)
		return err_set(err, ERR_INVALID, "no KV pool is attached");
	if (n < 1 || n > e->opts.max_spans)
		return err_set(err, ERR_INVALID, "%u spans in one step, limits are 1 and %u", n, e->opts.max_spans);
	for (uint32_t i = 0; i < n; i++) {
		int rc = check_span(e, &spans[i], i, err);
		if (rc)
			return rc;
		rows += spans[i].n;
		logits += wanted_rows(&spans[i]);
		table += table_length(e, &spans[i]);
	}
	if (rows > e->opts.max_rows)
		return err_set(err, ERR_INVALID, "%llu tokens in one step, the limit is %u", (unsigned long long)rows, e->opts.max_rows);
	if (logits > e->opts.max_logits)
		return err_set(err, ERR_INVALID, "%llu rows of logits in one step, the limit is %u", (unsigned long long)logits, e->opts.max_logits);
	if (table > e->opts.max_table)
		return err_set(err, ERR_INVALID, "%llu block table entries in one step, the limit is %u", (unsigned long long)table, e->opts.max_table);
	*ret = (struct totals){rows, logits, table};
	return 0;
}

/* --- the batch ---------------------------------------------------------------------------------------------------------- */

/* How much of the batch is laid out. */
struct layout {
	uint32_t *words;
	struct kern_batch *b;
	uint32_t table;
};

/* Where the parts lie, without a hole, so that a small step is a small batch. */
static void place(struct layout *l, const struct totals *t, uint32_t spans, uint32_t tail_spans, int progress)
{
	struct kern_batch *b = l->b;
	uint32_t at = HEAD_WORDS;
	*b = (struct kern_batch){.rows = (uint32_t)t->rows, .spans = spans, .tail_rows = (uint32_t)t->logits, .tail_spans = tail_spans};
	const struct {
		uint32_t *offset, words;
	} parts[] = {
		{&b->progress, progress ? spans * PROGRESS_WORDS : 0}, {&b->tokens, b->rows}, {&b->positions, b->rows}, {&b->slots, b->rows},
		{&b->span, spans * SPAN_WORDS}, {&b->tail_index, b->tail_rows}, {&b->tail_span, tail_spans * SPAN_WORDS}, {&b->table, (uint32_t)t->table},
	};
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		*parts[i].offset = at;
		at += parts[i].words;
	}
	if (!progress)
		b->progress = 0;
	b->words = at;
}

static void put_span(struct layout *l, uint32_t at, uint32_t index, const struct kern_span *span)
{
	memcpy(l->words + at + index * SPAN_WORDS, span, sizeof *span);
}

static void add_rows(struct layout *l, const struct engine *e, const struct engine_span *s, uint32_t row)
{
	uint32_t *words = l->words, per_block = e->opts.block_tokens;
	memcpy(words + l->b->tokens + row, s->tokens, s->n * sizeof *s->tokens);
	for (uint32_t i = 0; i < s->n; i++) {
		uint32_t position = s->position + i;
		words[l->b->positions + row + i] = position;
		words[l->b->slots + row + i] = s->blocks[position / per_block] * per_block + position % per_block;
	}
}

static void add_progress(struct layout *l, const struct engine *e, const struct engine_span *s, uint32_t index)
{
	struct kern_progress p = {.value = s->progress_value, .stride = s->progress_stride};
	if (s->progress)
		p.word = kern_at(e->board.dev, (size_t)((const unsigned char *)s->progress - (const unsigned char *)e->board.host));
	memcpy(l->words + l->b->progress + index * PROGRESS_WORDS, &p, sizeof p);
}

static void lay_out(struct engine *e, struct engine_span *spans, uint32_t n, const struct totals *t)
{
	struct layout l = {.words = e->batch.host, .b = e->batch.host};
	uint32_t row = 0, tail = 0, tails = 0, table = 0;
	int progress = 0;
	for (uint32_t i = 0; i < n; i++) {
		tails += wanted_rows(&spans[i]) != 0;
		progress |= spans[i].progress != NULL;
	}
	place(&l, t, n, tails, progress);
	CHECK((size_t)l.b->words * 4 <= e->limits.batch_bytes);
	tails = 0;
	for (uint32_t i = 0; i < n; i++) {
		struct engine_span *s = &spans[i];
		uint32_t blocks = table_length(e, s), wanted = wanted_rows(s), end = row + s->n;
		add_rows(&l, e, s, row);
		put_span(&l, l.b->span, i, &(struct kern_span){.row = row, .rows = s->n, .position = s->position, .table = table});
		if (progress)
			add_progress(&l, e, s, i);
		memcpy(l.words + l.b->table + table, s->blocks, blocks * sizeof *s->blocks);
		s->logits_row = tail;
		for (uint32_t k = 0; k < wanted; k++)
			l.words[l.b->tail_index + tail + k] = end - wanted + k;
		if (wanted)
			put_span(&l, l.b->tail_span, tails++, &(struct kern_span){.row = tail, .rows = wanted, .position = s->position + s->n - wanted, .table = table});
		row = end;
		tail += wanted;
		table += blocks;
	}
}

/* --- running ------------------------------------------------------------------------------------------------------------ */

int engine_run(struct engine *e)
{
	int rc = e->ops->run(e->stream, e->program, &e->batch), sync = e->ops->sync(e->stream);
	rc = rc ? rc : sync;
	if (rc && e->tp)
		tp_fail(e->tp, e->ops->last_error(e->dev));
	return rc;
}

const char *engine_broken(const struct engine *e)
{
	return e->tp ? tp_why(e->tp) : NULL;
}

static int step_error(struct engine *e, int kern_rc, struct err *err)
{
	if (engine_broken(e))
		return err_set(err, ERR_IO, "forward pass: %.300s", engine_broken(e));
	engine_device_error(e, kern_rc, "forward pass", err);
	return err ? (err->code = ERR_IO) : ERR_IO;
}

int engine_step(struct engine *e, struct engine_span *spans, uint32_t n_spans, struct err *err)
{
	struct totals totals = {0};
	int rc = check_step(e, spans, n_spans, &totals, err);
	if (rc)
		return rc;
	if (engine_broken(e))
		return step_error(e, 0, err);
	lay_out(e, spans, n_spans, &totals);
	if (e->tp)
		tp_order(e->tp, TP_STEP, NULL, 0);
	rc = engine_run(e);
	return rc ? step_error(e, rc, err) : 0;
}

const float *engine_logits(const struct engine *e, uint32_t row)
{
	CHECK(row < e->opts.max_logits);
	return (const float *)e->logits.host + (size_t)row * e->info.vocab;
}
