/* world.c - which rows there are, in what steps they come, and the batch of a step. */
#include "tests/conform/conform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	STEPS_MAX = 4096,
	ROWS_LEAST = 40,
	ROWS_DEEP = 400,
	ROWS_SPARE = 3,
	ALONE = 8,
	SPARE_BLOCKS = 3
};

/* --- worlds -------------------------------------------------------------- */

static uint32_t blocks_of(const struct world *w, uint32_t s)
{
	return (w->seq[s].position + w->seq[s].rows + w->block_tokens - 1) / w->block_tokens;
}

/* Every sequence has blocks from all over the pool. */
static void spread_blocks(struct world *w)
{
	uint32_t *number, next = 0;
	w->blocks = SPARE_BLOCKS;
	for (uint32_t s = 0; s < w->sequences; s++)
		w->blocks += blocks_of(w, s);
	number = conform_alloc(w->blocks, sizeof *number);
	for (uint32_t i = 0; i < w->blocks; i++) {
		uint32_t at = rand_below(i + 1);
		number[i] = number[at];
		number[at] = i;
	}
	for (uint32_t s = 0; s < w->sequences; s++) {
		w->table[s] = number + next;
		next += blocks_of(w, s);
	}
}

void world_init(struct world *w, const struct sequence *seq, uint32_t sequences,
                uint32_t block_tokens, uint32_t vocabulary)
{
	*w = (struct world){.block_tokens = block_tokens};
	for (uint32_t s = 0; s < sequences && seq[s].rows; s++) {
		uint32_t end = seq[s].position + seq[s].rows;
		w->seq[s] = seq[s];
		w->live[s + 1] = w->live[s] + seq[s].rows;
		w->all[s + 1] = w->all[s] + end;
		w->deepest = end > w->deepest ? end : w->deepest;
		w->sequences++;
	}
	spread_blocks(w);
	w->token = conform_alloc(world_rows(w), sizeof *w->token);
	for (uint32_t r = 0; r < world_rows(w); r++)
		w->token[r] = rand_below(vocabulary);
}

struct world *world_new(const struct sequence *seq, uint32_t block_tokens)
{
	struct world *w = conform_alloc(1, sizeof *w);
	world_init(w, seq, SEQUENCES, block_tokens, VOCABULARY);
	return w;
}

uint32_t world_sequence(const struct world *w, uint32_t row)
{
	uint32_t s = 0;
	while (row >= w->live[s + 1])
		s++;
	return s;
}

/* Is the largest batch that of all rows under test? */
static bool exact(const struct world *w)
{
	return world_rows(w) % 2;
}

/* Of the largest batch, which may have to be larger for the history. */
static uint32_t rows_most(const struct world *w)
{
	uint32_t rows = world_rows(w) + (exact(w) ? 0 : ROWS_SPARE),
			 least = w->deepest > 2 * ROWS_DEEP ? ROWS_DEEP : ROWS_LEAST;
	return rows < least && w->all[w->sequences] > world_rows(w) ? least : rows;
}

struct kern_limits world_limits(const struct world *w)
{
	uint32_t rows = rows_most(w), more = !exact(w);
	return (struct kern_limits){.rows = rows,
	                            .tail_rows = rows,
	                            .spans = w->sequences + more,
	                            .positions = w->deepest + more,
	                            .batch_bytes = batch_bytes(w)};
}

/* --- schedules ----------------------------------------------------------- */

static struct step *step_add(struct schedule *s)
{
	if (s->steps == STEPS_MAX)
		conform_fail("a schedule of more than %d steps", STEPS_MAX);
	s->step[s->steps] = (struct step){0};
	return &s->step[s->steps++];
}

/* The history of all sequences, at most a batch at a time. */
static void history_steps(struct schedule *s, const struct world *w, bool uneven)
{
	uint32_t most = world_limits(w).rows;
	for (uint32_t q = 0; q < w->sequences; q++)
		for (uint32_t at = 0, n; at < w->seq[q].position; at += n) {
			struct step *st = step_add(s);
			n = uneven ? most / 2 + rand_below(most / 2) : most;
			n = w->seq[q].position - at < n ? w->seq[q].position - at : n;
			st->history = true;
			st->parts = 1;
			st->part[0] = (struct part){q, at, n, 0};
		}
}

/* How many rows of a sequence come next; 0: none in this step. */
static uint32_t take(enum order order, uint32_t chunk, uint32_t left, uint32_t step, bool first)
{
	uint32_t n = left;
	if (order == ORDER_ALONE)
		n = first ? (step < ALONE ? 1 : left) : 0;
	else if (order == ORDER_CHUNKS)
		n = chunk;
	else if (order == ORDER_ONE_BY_ONE)
		n = first ? left : 0;
	else if (order == ORDER_MIXED)
		n = rand_below(3) ? 1 + rand_below(rand_below(2) ? 4 : left) : 0;
	return n < left ? n : left;
}

static void shuffle_parts(struct step *st)
{
	for (uint32_t i = 1; i < st->parts; i++) {
		uint32_t at = rand_below(i + 1);
		struct part p = st->part[i];
		st->part[i] = st->part[at];
		st->part[at] = p;
	}
}

/* One step of rows that are not done yet; false when all are. */
static bool live_step_make(struct schedule *s, const struct world *w, enum order order,
                           uint32_t chunk, uint32_t *done, uint32_t number)
{
	struct step st = {.tail_reversed = number % 2};
	bool left_over = false;
	for (uint32_t i = 0; i < w->sequences; i++) {
		uint32_t q = order == ORDER_REVERSED ? w->sequences - 1 - i : i,
				 left = w->seq[q].rows - done[q], n;
		if (!left)
			continue;
		left_over = true;
		/* alone: the first rows of every sequence, and then the rest of it */
		n = take(order, chunk, left, done[q], st.parts == 0);
		if (!n)
			continue;
		uint32_t tail = order == ORDER_ALONE      ? n
		                : order == ORDER_WHOLE    ? (n + 1) / 2
		                : order == ORDER_REVERSED ? n
		                                          : rand_below(n + 1);
		st.part[st.parts++] = (struct part){q, w->seq[q].position + done[q], n, tail};
		done[q] += n;
	}
	if (order == ORDER_MIXED)
		shuffle_parts(&st);
	if (st.parts)
		*step_add(s) = st;
	return left_over;
}

struct schedule schedule_make(const struct world *w, enum order order, uint32_t chunk, bool history)
{
	static const char *const names[] = {
		"whole",        "alone", "chunks of", "in reversed order", "one sequence after the other",
		"mixed by seed"};
	struct schedule s = {.step = conform_alloc(STEPS_MAX, sizeof *s.step)};
	uint32_t done[SEQUENCES] = {0};
	snprintf(s.name, sizeof s.name, order == ORDER_CHUNKS || order == ORDER_MIXED ? "%s %u" : "%s",
	         names[order], chunk);
	if (order == ORDER_MIXED)
		rand_seed(chunk * 7919 + 1);
	if (history)
		history_steps(&s, w, order != ORDER_WHOLE);
	for (uint32_t i = 0; live_step_make(&s, w, order, chunk, done, i); i++)
		;
	return s;
}

/* --- batches ------------------------------------------------------------- */

enum { HEAD_WORDS = sizeof(struct kern_batch) / 4, GAP = 5, GARBAGE = 2 };

size_t batch_bytes(const struct world *w)
{
	size_t table = 0, rows = rows_most(w);
	for (uint32_t s = 0; s < w->sequences; s++)
		table += blocks_of(w, s) + GARBAGE;
	size_t spans = w->sequences + 1,
		   words = HEAD_WORDS + 4 * rows +
	               spans * (2 * sizeof(struct kern_span) + sizeof(struct kern_progress)) / 4 +
	               table + 9 * (GAP + 1);
	return (words * 4 + 63) & ~(size_t)63;
}

struct writer {
	uint32_t *word;
	uint32_t next; /* free word */
};

/* Room for a part of the batch, behind some rubbish. */
static uint32_t part_put(struct writer *wr, size_t bytes, uint32_t gap)
{
	for (gap += (wr->next + gap) % 2; gap; gap--)
		wr->word[wr->next++] = 0xdeadbeef;
	uint32_t at = wr->next;
	wr->next += (uint32_t)(bytes / 4);
	return at;
}

/* Block numbers of the sequences of a step; beyond what a sequence may read there are none. */
static void table_write(const struct world *w, const struct step *st, uint32_t *table,
                        uint32_t *first)
{
	uint32_t at = 0;
	for (uint32_t i = 0; i < st->parts; i++) {
		const struct part *p = &st->part[i];
		uint32_t need = (p->position + p->rows + w->block_tokens - 1) / w->block_tokens;
		first[i] = at;
		memcpy(table + at, w->table[p->seq], need * sizeof *table);
		at += need;
		for (int g = 0; g < GARBAGE; g++)
			table[at++] = 0x7ffffff0;
	}
}

static uint32_t table_words(const struct world *w, const struct step *st)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < st->parts; i++)
		n += (st->part[i].position + st->part[i].rows + w->block_tokens - 1) / w->block_tokens +
		     GARBAGE;
	return n;
}

static void rows_write(const struct world *w, const struct step *st, const struct kern_batch *b,
                       uint32_t *word, const uint32_t *first)
{
	struct kern_span *span = (struct kern_span *)(void *)(word + b->span);
	for (uint32_t i = 0, row = 0; i < st->parts; i++) {
		const struct part *p = &st->part[i];
		span[i] = (struct kern_span){row, p->rows, p->position, first[i]};
		for (uint32_t r = 0; r < p->rows; r++, row++) {
			uint32_t position = p->position + r, from = w->seq[p->seq].position;
			word[b->tokens + row] = position >= from ? w->token[w->live[p->seq] + position - from]
			                                         : 0;
			word[b->positions + row] = position;
			word[b->slots + row] = w->table[p->seq][position / w->block_tokens] * w->block_tokens +
			                       position % w->block_tokens;
		}
	}
}

static void tail_write(const struct step *st, const struct kern_batch *b, uint32_t *word,
                       const uint32_t *first)
{
	struct kern_span *span = (struct kern_span *)(void *)(word + b->tail_span);
	const struct kern_span *all = (const struct kern_span *)(const void *)(word + b->span);
	for (uint32_t n = 0, row = 0, spans = 0; n < st->parts; n++) {
		uint32_t i = st->tail_reversed ? st->parts - 1 - n : n;
		const struct part *p = &st->part[i];
		if (p->tail)
			span[spans++] = (struct kern_span){row, p->tail, p->position + p->rows - p->tail,
			                                   first[i]};
		for (uint32_t r = 0; r < p->tail; r++)
			word[b->tail_index + row++] = all[i].row + p->rows - p->tail + r;
	}
}

void batch_write(const struct world *w, const struct step *st, uint32_t salt,
                 const struct kern_progress *progress, void *to)
{
	uint32_t *word = to, first[SEQUENCES] = {0};
	struct kern_batch b = {.spans = st->parts};
	struct writer wr = {word, HEAD_WORDS};
	memset(to, 0xa5, batch_bytes(w));
	for (uint32_t i = 0; i < st->parts; i++) {
		b.rows += st->part[i].rows;
		b.tail_rows += st->part[i].tail;
		b.tail_spans += st->part[i].tail > 0;
	}
	struct {
		uint32_t *at;
		size_t bytes;
	} part[] = {
		{&b.tokens, b.rows * 4},
		{&b.positions, b.rows * 4},
		{&b.slots, b.rows * 4},
		{&b.span, b.spans * sizeof(struct kern_span)},
		{&b.tail_index, b.tail_rows * 4},
		{&b.tail_span, b.tail_spans * sizeof(struct kern_span)},
		{&b.table, table_words(w, st) * 4},
		{&b.progress, progress ? b.spans * sizeof *progress : 0},
	};
	for (uint32_t i = 0; i < LEN(part); i++) {
		uint32_t k = (i + salt) % LEN(part);
		*part[k].at = part_put(&wr, part[k].bytes, (salt + i) % GAP);
	}
	b.progress = progress ? b.progress : 0;
	b.words = wr.next;
	memcpy(word, &b, sizeof b);
	table_write(w, st, word + b.table, first);
	rows_write(w, st, &b, word, first);
	tail_write(st, &b, word, first);
	if (progress)
		memcpy(word + b.progress, progress, b.spans * sizeof *progress);
}
