/* step.c - one step: checks the spans, lays them out as the program's batch, runs the program, and
 * waits for it, perhaps when the next step has been started.
 *
 * All spans are checked before anything is written to the KV pool. A bad span is the caller's error
 * and is returned, as is a failure of the device or of another process. A step allocates nothing.
 *
 * With several stages process 0 orders the step of all and waits until all have done their parts:
 * only then the batch may change, and the KV of their layers is in the pool. */
#include "engine/engine_impl.h"
#include "util/check.h"
#include "util/mem.h"

#include <string.h>

enum {
	SPAN_WORDS = sizeof(struct kern_span) / 4,
	PROGRESS_WORDS = sizeof(struct kern_progress) / 4,
	HEAD_WORDS = sizeof(struct kern_batch) / 4,
	DRAW_WORDS = sizeof(struct kern_draw) / 4,
	ADVANCE_WORDS = sizeof(struct kern_advance) / 4
};

static uint32_t wanted_rows(const struct engine_span *s)
{
	return s->logits == ENGINE_LOGITS_ALL ? s->n : s->logits == ENGINE_LOGITS_LAST ? 1 : 0;
}

/* Rows that go to the head. */
static uint32_t head_rows(const struct engine_span *s)
{
	return s->hidden ? 0 : wanted_rows(s);
}

/* The place of the step that is being started, among those that may be in flight. */
static uint32_t flight_of(const struct engine *e)
{
	return (uint32_t)(e->started % e->flights);
}

/* The rows that the span continues after. */
static struct drawn_rows drawn_before(const struct engine *e, const struct engine_span *s)
{
	const struct step_in_flight *before = &e->flight[(e->started + e->flights - 1) % e->flights];
	return e->flights > 1 && s->continues && s->continues <= before->spans
	           ? before->drawn[s->continues - 1]
	           : (struct drawn_rows){0};
}

/* Positions that the span may reach: all drafts before it may be right. */
static uint64_t end_of(const struct engine *e, const struct engine_span *s)
{
	uint32_t before = drawn_before(e, s).rows;
	return (uint64_t)s->position + s->n + (before ? before - 1 : 0);
}

static uint32_t table_length(const struct engine *e, const struct engine_span *s)
{
	return (uint32_t)((end_of(e, s) + e->opts.block_tokens - 1) / e->opts.block_tokens);
}

/* --- checks -------------------------------------------------------------- */

/* Checks that the words of all layers are on the board. */
static int on_board(const struct engine *e, const struct engine_span *s)
{
	uintptr_t at = (uintptr_t)s->progress - (uintptr_t)e->board.host,
			  last = (e->info.layers - 1) * s->progress_stride * sizeof *s->progress;
	return e->board.host && at % sizeof *s->progress == 0 && at < e->board.bytes &&
	       last < e->board.bytes - at;
}

static int check_advance(const struct engine *e, const struct engine_span *s, uint32_t index,
                         struct err *err)
{
	if (s->n != 1 + s->drafts || !drawn_before(e, s).rows)
		return err_set(err, ERR_INVALID,
		               "span %u: %u tokens, %u of them drafts, that continue span %u of the step "
		               "before, which draws none for it",
		               index, s->n, s->drafts, s->continues - 1);
	if (s->history > e->limits.histories || (s->drafts && !s->history) ||
	    s->n_known > (s->history ? e->limits.history_tokens : 0))
		return err_set(err, ERR_INVALID,
		               "span %u: %u drafts from history %u of %u, begun with %u tokens of %u",
		               index, s->drafts, s->history, e->limits.histories, s->n_known,
		               e->limits.history_tokens);
	return 0;
}

static int check_span(const struct engine *e, const struct engine_span *s, uint32_t index,
                      struct err *err)
{
	if (s->continues && check_advance(e, s, index, err))
		return ERR_INVALID;
	if (s->drafts && (s->drafts >= head_rows(s) || s->drafts > KERN_DRAFTED_MAX))
		return err_set(
			err, ERR_INVALID,
			"span %u: %u drafts, the limit is %d; %u rows draw, one more than drafts must", index,
			s->drafts, KERN_DRAFTED_MAX, head_rows(s));
	if (s->n < 1 || s->n > e->opts.max_rows)
		return err_set(err, ERR_INVALID, "span %u: %u tokens, limits are 1 and %u", index, s->n,
		               e->opts.max_rows);
	if (end_of(e, s) > e->info.context)
		return err_set(err, ERR_INVALID,
		               "span %u: positions %u up to %llu, the model's context is %u", index,
		               s->position, (unsigned long long)end_of(e, s) - 1, e->info.context);
	for (uint32_t i = 0; i < s->n && !s->continues; i++)
		if (s->tokens[i] >= e->info.vocab)
			return err_set(err, ERR_INVALID, "span %u: token %u is id %u, the vocabulary has %u",
			               index, i, s->tokens[i], e->info.vocab);
	if (s->progress && (!e->has_progress || !on_board(e, s)))
		return err_set(err, ERR_INVALID,
		               "span %u: its progress words are not on the board of %zu bytes", index,
		               e->board.bytes);
	if (s->hidden && (!e->opts.hidden || s->draws))
		return err_set(err, ERR_INVALID, "span %u: hidden states %s", index,
		               s->draws ? "and draws" : "from an engine that was opened without them");
	for (uint32_t i = 0; i < table_length(e, s); i++)
		if (s->blocks[i] >= e->kv_blocks)
			return err_set(err, ERR_INVALID,
			               "span %u: entry %u of the block table is block %u, the pool has %u",
			               index, i, s->blocks[i], e->kv_blocks);
	return 0;
}

static size_t list_words(const struct engine *e, const struct engine_span *s)
{
	size_t words = s->continues ? s->n_known : 0;
	for (uint32_t i = 0; s->draws && i < wanted_rows(s); i++)
		words += draw_words(&s->draws[i], e->info.vocab, i > 0 && s->draws[i - 1].params);
	return words;
}

static int check_draws(const struct engine *e, const struct engine_span *s, uint32_t index,
                       struct err *err)
{
	size_t words = e->listed[index] = list_words(e, s);
	for (uint32_t i = 0; s->draws && i < wanted_rows(s); i++) {
		const struct engine_draw *d = &s->draws[i];
		if (d->score && d->id >= e->info.vocab)
			return err_set(err, ERR_INVALID, "span %u: the score of id %u, the vocabulary has %u",
			               index, d->id, e->info.vocab);
		if ((d->params ? d->params->logprobs : d->logprobs) > KERN_TOP_MAX)
			return err_set(err, ERR_INVALID, "span %u: %d alternatives, the limit is %d", index,
			               d->params ? d->params->logprobs : d->logprobs, KERN_TOP_MAX);
	}
	if (words > e->list_words)
		return err_set(err, ERR_INVALID, "span %u: its draws list %zu words, the limit is %u",
		               index, words, e->list_words);
	return 0;
}

/* Sums over the spans of one pass. */
struct totals {
	uint64_t rows, logits, table;
	size_t lists;
};

static void add_span(const struct engine *e, const struct engine_span *s, size_t listed,
                     struct totals *t)
{
	t->rows += s->n;
	t->logits += head_rows(s);
	t->table += table_length(e, s);
	t->lists += listed;
}

static int check_step(const struct engine *e, const struct engine_span *spans, uint32_t n,
                      struct err *err)
{
	struct totals t = {0};
	if (!e->program[PASS_TOKENS])
		return err_set(err, ERR_INVALID, "no KV pool is attached");
	if (n < 1 || n > e->opts.max_spans)
		return err_set(err, ERR_INVALID, "%u spans in one step, limits are 1 and %u", n,
		               e->opts.max_spans);
	for (uint32_t i = 0; i < n; i++) {
		int rc = check_span(e, &spans[i], i, err);
		if (rc || (rc = check_draws(e, &spans[i], i, err)))
			return rc;
		add_span(e, &spans[i], e->listed[i], &t);
	}
	if (t.rows > e->opts.max_rows)
		return err_set(err, ERR_INVALID, "%llu tokens in one step, the limit is %u",
		               (unsigned long long)t.rows, e->opts.max_rows);
	if (t.logits > e->opts.max_logits)
		return err_set(err, ERR_INVALID, "%llu rows of logits in one step, the limit is %u",
		               (unsigned long long)t.logits, e->opts.max_logits);
	if (t.table > e->max_table)
		return err_set(err, ERR_INVALID, "%llu block table entries in one step, the limit is %u",
		               (unsigned long long)t.table, e->max_table);
	return 0;
}

/* --- the batch ----------------------------------------------------------- */

/* The batch while it is laid out. */
struct layout {
	uint32_t *words;
	struct kern_batch *b;
	uint32_t table;
};

/* Which optional parts of a batch the spans need. */
struct step_parts {
	uint32_t tail_spans;
	int progress, draws, advance;
};

static struct step_parts parts_of(const struct engine_span *spans, uint32_t n)
{
	struct step_parts p = {0};
	for (uint32_t i = 0; i < n; i++) {
		p.tail_spans += head_rows(&spans[i]) != 0;
		p.progress |= spans[i].progress != NULL;
		p.draws |= spans[i].draws && head_rows(&spans[i]);
		p.advance |= spans[i].continues != 0;
	}
	return p;
}

/* Sets the parts' offsets without gaps, so that a small step is a small batch. The lists of draws
 * follow as they are written. */
static void place(struct layout *l, const struct totals *t, uint32_t spans,
                  const struct step_parts *p)
{
	struct kern_batch *b = l->b;
	uint32_t at = HEAD_WORDS;
	*b = (struct kern_batch){.rows = (uint32_t)t->rows,
	                         .spans = spans,
	                         .tail_rows = (uint32_t)t->logits,
	                         .tail_spans = p->tail_spans};
	const struct {
		uint32_t *offset, words;
	} parts[] = {
		{&b->progress, p->progress ? spans * PROGRESS_WORDS : 0},
		{&b->tokens, b->rows},
		{&b->positions, b->rows},
		{&b->slots, b->rows},
		{&b->span, spans * SPAN_WORDS},
		{&b->tail_index, b->tail_rows},
		{&b->tail_span, p->tail_spans * SPAN_WORDS},
		{&b->table, (uint32_t)t->table},
		{&b->draws, p->draws ? b->tail_rows * DRAW_WORDS : 0},
		{&b->advance, p->advance ? spans * ADVANCE_WORDS : 0},
	};
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		*parts[i].offset = at;
		at += parts[i].words;
	}
	if (!p->progress)
		b->progress = 0;
	if (!p->draws)
		b->draws = 0;
	if (!p->advance)
		b->advance = 0;
	b->words = at;
}

static void put_span(struct layout *l, uint32_t at, uint32_t index, const struct kern_span *span)
{
	memcpy(l->words + at + index * SPAN_WORDS, span, sizeof *span);
}

static void add_rows(struct layout *l, const struct engine *e, const struct engine_span *s,
                     uint32_t row)
{
	uint32_t *words = l->words, per_block = e->opts.block_tokens;
	if (s->continues) /* the device writes them */
		memset(words + l->b->tokens + row, 0, s->n * sizeof *words);
	else
		memcpy(words + l->b->tokens + row, s->tokens, s->n * sizeof *s->tokens);
	for (uint32_t i = 0; i < s->n; i++) {
		uint32_t position = s->position + i;
		words[l->b->positions + row + i] = position;
		words[l->b->slots + row + i] = s->blocks[position / per_block] * per_block +
		                               position % per_block;
	}
}

static void add_progress(struct layout *l, const struct engine *e, const struct engine_span *s,
                         uint32_t index)
{
	struct kern_progress p = {.value = s->progress_value, .stride = s->progress_stride};
	if (s->progress)
		p.word = kern_at(e->board.dev, (size_t)((const unsigned char *)s->progress -
		                                        (const unsigned char *)e->board.host));
	memcpy(l->words + l->b->progress + index * PROGRESS_WORDS, &p, sizeof p);
}

/* tail_span: its number among the tail's */
static void add_advance(struct layout *l, const struct engine *e, const struct engine_span *s,
                        uint32_t index, uint32_t tail_span)
{
	struct drawn_rows before = drawn_before(e, s);
	struct kern_advance c = {.from = KERN_NONE};
	if (s->continues) {
		c = (struct kern_advance){.from = before.from,
		                          .rows = before.rows,
		                          .tail_span = head_rows(s) ? tail_span : KERN_NONE,
		                          .history = s->history ? s->history - 1 : KERN_NONE,
		                          .known = {l->b->words, s->n_known}};
		if (s->n_known)
			memcpy(l->words + l->b->words, s->known, s->n_known * sizeof *s->known);
		l->b->words += s->n_known;
	}
	memcpy(l->words + l->b->advance + index * ADVANCE_WORDS, &c, sizeof c);
}

static void add_draws(struct layout *l, const struct engine *e, const struct engine_span *s,
                      uint32_t row)
{
	struct kern_draw k = {.ask = KERN_ASK_NOTHING};
	for (uint32_t i = 0; i < head_rows(s); i++, row++) {
		if (s->draws)
			k = draw_write(&s->draws[i], e->info.vocab, i ? &k : NULL, l->words, &l->b->words);
		memcpy(l->words + l->b->draws + row * DRAW_WORDS, &k, sizeof k);
	}
}

static void add_tail(struct layout *l, const struct engine_span *s, uint32_t end, uint32_t table,
                     uint32_t *tail, uint32_t *tails)
{
	uint32_t wanted = head_rows(s);
	for (uint32_t k = 0; k < wanted; k++)
		l->words[l->b->tail_index + *tail + k] = end - wanted + k;
	if (wanted)
		put_span(l, l->b->tail_span, (*tails)++,
		         &(struct kern_span){.row = *tail,
		                             .rows = wanted,
		                             .position = s->position + s->n - wanted,
		                             .table = table});
	*tail += wanted;
}

static int draws_token(const struct engine_span *s)
{
	return s->draws && head_rows(s) && s->draws[head_rows(s) - 1].params;
}

/* The part of the batch for the step that is being started. */
static struct kern_mem batch_of(const struct engine *e, uint32_t flight)
{
	size_t at = flight * e->limits.batch_bytes;
	return (struct kern_mem){.dev = kern_at(e->batch.dev, at),
	                         .host = (unsigned char *)e->batch.host + at,
	                         .bytes = e->limits.batch_bytes};
}

/* first: row of the results that follows those of earlier passes */
static void lay_out(struct engine *e, const struct engine_span *spans, uint32_t n,
                    const struct totals *t, uint32_t first)
{
	struct kern_mem batch = batch_of(e, flight_of(e));
	struct layout l = {.words = batch.host, .b = batch.host};
	struct step_parts parts = parts_of(spans, n);
	uint32_t row = 0, tail = 0, tails = 0, table = 0;
	place(&l, t, n, &parts);
	l.b->first_result = first;
	CHECK(((size_t)l.b->words + t->lists) * 4 <= e->limits.batch_bytes);
	for (uint32_t i = 0; i < n; i++) {
		const struct engine_span *s = &spans[i];
		uint32_t blocks = table_length(e, s);
		add_rows(&l, e, s, row);
		put_span(
			&l, l.b->span, i,
			&(struct kern_span){.row = row, .rows = s->n, .position = s->position, .table = table});
		if (parts.progress)
			add_progress(&l, e, s, i);
		if (parts.advance)
			add_advance(&l, e, s, i, tails);
		if (parts.draws)
			add_draws(&l, e, s, tail);
		memcpy(l.words + l.b->table + table, s->blocks, blocks * sizeof *s->blocks);
		row += s->n;
		add_tail(&l, s, row, table, &tail, &tails);
		table += blocks;
	}
}

/* --- running ------------------------------------------------------------- */

/* Remembers the failure of a device or a group that cannot recover; returns rc. */
static int note_failure(struct engine *e, int rc)
{
	if (rc && e->tp) /* the first reason is kept */
		tp_fail(e->tp, e->ops->last_error(e->dev));
	else if (rc == KERN_ELOST && !e->lost) {
		e->lost = mem_strdup(e->ops->last_error(e->dev));
		if (e->opts.broken)
			e->opts.broken(e->opts.broken_arg, e->lost);
	}
	return rc;
}

/* Stores the progress words of the layers of other stages, whose processes do not see the board. */
static void report_layers(struct engine *e, const struct kern_batch *b)
{
	const struct kern_progress *p = kern_part(b, b->progress);
	uint32_t first = e->shard.layers.begin + e->shard.layers.count;
	for (uint32_t i = 0; i < b->spans; i++) {
		uint64_t *word = (uint64_t *)((unsigned char *)e->board.host +
		                              (p[i].word.v - e->board.dev.v));
		for (uint32_t l = first; p[i].word.v && l < e->info.layers; l++)
			__atomic_store_n(word + l * p[i].stride, p[i].value, __ATOMIC_RELEASE);
	}
	e->opts.progressed(e->opts.progressed_arg);
}

/* Waits for all that is in flight, on all stages. */
static int wait_all(struct engine *e, uint32_t flight)
{
	const struct kern_batch *b = batch_of(e, flight).host;
	int rc = e->ops->sync(e->stream);
	if (rc || engine_process(e) || engine_stages(e) == 1)
		return rc;
	if (tp_await_done(e->tp, TP_STAGE_LIMIT_S))
		return KERN_EDEVICE;
	if (b->progress)
		report_layers(e, b);
	return 0;
}

/* Starts this process's part of a pass. Leaves nothing in flight after an error. */
static int run(struct engine *e, enum pass pass, uint32_t flight, int wait)
{
	struct kern_mem batch = batch_of(e, flight);
	int rc = e->ops->run(e->stream, e->program[pass], &batch), waited = 0;
	/* also for an empty tail: the last stage's device may pass rows all the same */
	if (!rc && e->finish[pass])
		rc = e->ops->run(e->stream, e->finish[pass], &batch);
	if (rc)
		e->ops->sync(e->stream);
	else if (wait)
		waited = wait_all(e, flight);
	return note_failure(e, rc ? rc : waited);
}

int engine_settle(struct engine *e)
{
	e->finished = e->started;
	return note_failure(e, e->ops->sync(e->stream));
}

int engine_follow(struct engine *e, enum pass pass, uint32_t flight)
{
	int alone = e->flights == 1, rc = run(e, pass, flight, alone);
	if (rc || alone || ++e->started - e->finished == 1)
		return rc;
	e->finished++;
	return note_failure(e, e->ops->sync_previous(e->stream));
}

const char *engine_broken(const struct engine *e)
{
	return e->tp ? tp_why(e->tp) : e->lost;
}

static int step_error(struct engine *e, int kern_rc, struct err *err)
{
	if (engine_broken(e))
		return err_set(err, ERR_IO, "forward pass: %.300s", engine_broken(e));
	engine_device_error(e, kern_rc, "forward pass", err);
	return err ? (err->code = ERR_IO) : ERR_IO;
}

/* Returns how many of the spans, at least one, need the same program and fit into a batch with
 * their draws; *ret are their sums. */
static uint32_t count_fitting(const struct engine *e, const struct engine_span *spans,
                              const size_t *listed, uint32_t n, struct totals *ret)
{
	uint32_t i = 0;
	*ret = (struct totals){0};
	for (; i < n && (i == 0 || (!spans[i].hidden == !spans[0].hidden &&
	                            ret->lists + listed[i] <= e->list_words));
	     i++)
		add_span(e, &spans[i], listed[i], ret);
	return i;
}

/* Adds the hidden states of the span's selected rows, which the pass computed from row `row` on, in
 * pieces. */
static int add_hidden(struct engine *e, const struct engine_span *s, uint32_t row)
{
	size_t hidden = e->info.hidden;
	uint32_t n = wanted_rows(s), at = row + s->n - n;
	for (uint32_t end = at + n, take; at < end; at += take) {
		take = end - at < ENGINE_HIDDEN_ROWS ? end - at : ENGINE_HIDDEN_ROWS;
		kern_ptr from = kern_at(e->s.h.at, at * e->s.h.ld * sizeof *e->hidden_rows);
		int rc = e->ops->download(e->stream, e->hidden_rows, from,
		                          take * hidden * sizeof *e->hidden_rows);
		if (rc || (rc = e->ops->sync(e->stream)))
			return rc;
		for (uint32_t i = 0; i < take; i++)
			for (size_t k = 0; k < hidden; k++)
				s->hidden[k] += (double)e->hidden_rows[i * hidden + k];
	}
	return 0;
}

static int run_hidden(struct engine *e, struct engine_span *spans, uint32_t n)
{
	uint32_t row = 0;
	if (e->tp)
		ranks_step(e, PASS_HIDDEN, flight_of(e));
	int rc = run(e, PASS_HIDDEN, flight_of(e), 1);
	for (uint32_t i = 0; i < n && !rc; row += spans[i++].n)
		rc = add_hidden(e, &spans[i], row);
	return rc;
}

/* Starts one pass over some of the spans, whose results begin at row `first`. wait: another pass
 * follows, in the same batch. */
static int start_pass(struct engine *e, struct engine_span *spans, uint32_t n,
                      struct drawn_rows *ret_drawn, const struct totals *t, uint32_t first,
                      int wait)
{
	struct step_in_flight *f = &e->flight[flight_of(e)];
	uint32_t row = first, place = flight_of(e) * e->opts.max_logits;
	struct kern_drawn *drawn = (struct kern_drawn *)e->results.host + place;
	f->done = wait || spans->hidden;
	lay_out(e, spans, n, t, place + first);
	if (spans->hidden)
		return run_hidden(e, spans, n);
	for (uint32_t i = 0; i < n; i++) {
		struct engine_span *s = &spans[i];
		s->logits_row = row;
		s->drawn = drawn + row;
		row += head_rows(s);
		if (draws_token(s))
			ret_drawn[i] = (struct drawn_rows){place + row - 1 - s->drafts, 1 + s->drafts};
	}
	if (e->tp)
		ranks_step(e, PASS_TOKENS, flight_of(e));
	return run(e, PASS_TOKENS, flight_of(e), wait);
}

int engine_start(struct engine *e, struct engine_span *spans, uint32_t n_spans, struct err *err)
{
	CHECK(e->started - e->finished < e->flights);
	int rc = check_step(e, spans, n_spans, err);
	uint32_t row = 0;
	if (rc)
		return rc;
	if (engine_broken(e))
		return step_error(e, 0, err);
	struct step_in_flight *f = &e->flight[flight_of(e)];
	f->spans = n_spans;
	memset(f->drawn, 0, n_spans * sizeof *f->drawn);
	for (uint32_t i = 0, n; !rc && i < n_spans; i += n) {
		struct totals t;
		n = count_fitting(e, spans + i, e->listed + i, n_spans - i, &t);
		rc = start_pass(e, spans + i, n, f->drawn + i, &t, row, i + n < n_spans);
		row += (uint32_t)t.logits;
		e->tail_rows = (uint32_t)t.logits;
	}
	e->copied = 0;
	if (rc)
		return step_error(e, rc, err);
	e->started++;
	return 0;
}

int engine_finish(struct engine *e, struct err *err)
{
	CHECK(e->started > e->finished);
	int rc = 0;
	uint32_t flight = (uint32_t)(e->finished % e->flights);
	int last = ++e->finished == e->started;
	if (!e->flight[flight].done)
		rc = note_failure(e, last ? wait_all(e, flight) : e->ops->sync_previous(e->stream));
	return rc ? step_error(e, rc, err) : 0;
}

int engine_step(struct engine *e, struct engine_span *spans, uint32_t n_spans, struct err *err)
{
	int rc = engine_start(e, spans, n_spans, err);
	return rc ? rc : engine_finish(e, err);
}

const float *engine_logits(struct engine *e, uint32_t row)
{
	CHECK(row < e->tail_rows);
	if (!e->copy)
		e->copy = mem_array((size_t)e->opts.max_logits * e->info.vocab, sizeof *e->copy);
	if (!e->copied && (e->ops->download(e->stream, e->copy, e->s.logits.at,
	                                    (size_t)e->tail_rows * e->info.vocab * sizeof *e->copy) ||
	                   e->ops->sync(e->stream)))
		CHECK(!"the logits can be copied");
	e->copied = e->tail_rows;
	return e->copy + (size_t)row * e->info.vocab;
}
