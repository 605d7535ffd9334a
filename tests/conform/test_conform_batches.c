/* test_conform_batches.c - a batch that kern_batch_check refuses: EINVAL, a sentence, and nothing
 * has run. Each field in turn, one beyond what can be. */
#include "tests/conform/conform.h"

enum { DIM = 16, ROWS = 7, TAIL = 4, SPANS = 2, DEEPEST = 11, WRONG_MAX = 96 };

/* Words of a batch that are changed; of several the others are consistent with the one that is
 * wrong. */
enum { CHANGES = 3 };
struct wrong {
	const char *what;
	struct {
		uint32_t at, to;
	} change[CHANGES];
}; /* at 0: none */
struct wrongs {
	struct wrong w[WRONG_MAX];
	uint32_t n;
};

static void add(struct wrongs *all, const char *what, uint32_t at, uint32_t to)
{
	if (all->n == WRONG_MAX)
		conform_fail("more than %d wrong batches", WRONG_MAX);
	all->w[all->n++] = (struct wrong){what, {{at, to}}};
}

/* An empty span at the end, which leaves the number of rows right. */
static void add_empty_span(struct wrongs *all, uint32_t part, uint32_t rows)
{
	const uint32_t words = sizeof(struct kern_span) / 4;
	add(all, "a last span of no rows", part + 1, rows);
	all->w[all->n - 1].change[1].at = part + words;
	all->w[all->n - 1].change[1].to = rows;
	all->w[all->n - 1].change[2].at = part + words + 1;
}

/* Makes the changes; again: takes them back. */
static void swap_words(uint32_t *word, struct wrong *w)
{
	for (uint32_t i = 0; i < CHANGES && (w->change[i].at || i == 0); i++) {
		uint32_t keep = word[w->change[i].at];
		word[w->change[i].at] = w->change[i].to;
		w->change[i].to = keep;
	}
}

/* Where a part of `words` words may not begin. */
static void add_part(struct wrongs *all, const char *what, size_t field, uint32_t words,
                     uint32_t of)
{
	add(all, what, (uint32_t)field / 4, of - words + 1 + (of - words + 1) % 2);
	add(all, what, (uint32_t)field / 4, UINT32_MAX - 1);
}

#define HEAD(F) ((uint32_t)offsetof(struct kern_batch, F) / 4)

static void wrong_heads(struct wrongs *all, const struct kern_batch *b, uint32_t room)
{
	const uint32_t span = sizeof(struct kern_span) / 4;
	add(all, "no words", HEAD(words), 0);
	add(all, "fewer words than the head", HEAD(words), sizeof *b / 4 - 1);
	add(all, "more words than the memory", HEAD(words), room + 1);
	add(all, "2^32 words", HEAD(words), UINT32_MAX);
	add(all, "no rows", HEAD(rows), 0);
	add(all, "too many rows", HEAD(rows), ROWS + 1);
	add(all, "fewer rows than the spans have", HEAD(rows), ROWS - 1);
	add(all, "no spans", HEAD(spans), 0);
	add(all, "too many spans", HEAD(spans), SPANS + 1);
	add(all, "fewer spans than the rows need", HEAD(spans), SPANS - 1);
	add(all, "too many rows of the tail", HEAD(tail_rows), TAIL + 1);
	add(all, "fewer rows of the tail than its spans have", HEAD(tail_rows), TAIL - 1);
	add(all, "no rows of the tail, but spans", HEAD(tail_rows), 0);
	add(all, "too many spans of the tail", HEAD(tail_spans), SPANS + 1);
	add(all, "fewer spans of the tail than its rows need", HEAD(tail_spans), SPANS - 1);
	add(all, "no spans of the tail, but rows", HEAD(tail_spans), 0);
	add_part(all, "tokens beyond the words", offsetof(struct kern_batch, tokens), ROWS, b->words);
	add_part(all, "positions beyond the words", offsetof(struct kern_batch, positions), ROWS,
	         b->words);
	add_part(all, "slots beyond the words", offsetof(struct kern_batch, slots), ROWS, b->words);
	add_part(all, "spans beyond the words", offsetof(struct kern_batch, span), SPANS * span,
	         b->words);
	add_part(all, "the tail beyond the words", offsetof(struct kern_batch, tail_index), TAIL,
	         b->words);
	add_part(all, "spans of the tail beyond the words", offsetof(struct kern_batch, tail_span),
	         SPANS * span, b->words);
	add(all, "a table beyond the words", HEAD(table), b->words + 1);
	add_part(all, "progress beyond the words", offsetof(struct kern_batch, progress),
	         SPANS * sizeof(struct kern_progress) / 4, b->words);
	add(all, "progress at an odd word", HEAD(progress), b->progress - 1);
}

static void wrong_spans(struct wrongs *all, const struct kern_batch *b, uint32_t part)
{
	const struct kern_span *s = kern_part(b, part);
	for (uint32_t i = 0; i < SPANS; i++) {
		uint32_t at = part + i * (uint32_t)(sizeof *s / 4);
		add(all, "a span that begins a row late", at, s[i].row + 1);
		add(all, "a span that begins before row 0 or overlaps", at, s[i].row - 1);
		add(all, "a span of no rows", at + 1, 0);
		add(all, "a span of a row too many", at + 1, s[i].rows + 1);
		add(all, "a span of 2^32 rows", at + 1, UINT32_MAX);
		add(all, "a span whose rows go round", at + 1, 0 - s[i].row);
		add(all, "a span up to a position too deep", at + 2, DEEPEST - s[i].rows + 1);
		add(all, "a span at the last position of all", at + 2, UINT32_MAX);
	}
}

static struct wrongs *wrong_batches(const struct kern_batch *b, uint32_t room)
{
	struct wrongs *all = conform_alloc(1, sizeof *all);
	wrong_heads(all, b, room);
	wrong_spans(all, b, b->span);
	wrong_spans(all, b, b->tail_span);
	add_empty_span(all, b->span, ROWS);
	add_empty_span(all, b->tail_span, TAIL);
	for (uint32_t i = 0; i < TAIL; i += TAIL - 1) {
		add(all, "a tail beyond the rows", b->tail_index + i, ROWS);
		add(all, "a tail at row 2^32", b->tail_index + i, UINT32_MAX);
	}
	return all;
}

struct scaled {
	const struct device *dev;
	struct kern_mem mem;
	struct kern_program *p;
};

/* Has the program run? Fails if it did half. */
static bool ran(const struct scaled *t, const struct kern_mem *batch, int *ret_rc, const char *what)
{
	float x[ROWS * DIM];
	uint32_t changed = 0;
	for (uint32_t i = 0; i < LEN(x); i++)
		x[i] = 3;
	mem_put(t->dev, t->mem.dev, x, sizeof x);
	*ret_rc = t->dev->ops->run(t->dev->s, t->p, batch);
	device_ok(t->dev, t->dev->ops->sync(t->dev->s), "sync");
	mem_take(t->dev, x, t->mem.dev, sizeof x);
	for (uint32_t i = 0; i < LEN(x); i++)
		changed += x[i] != 3;
	EXPECT(changed == 0 || changed == LEN(x), "%s: %u of %zu numbers were written", what, changed,
	       LEN(x));
	return changed > 0;
}

static void scaled_new(struct scaled *t, const struct device *dev, const struct kern_limits *limits)
{
	*t = (struct scaled){.dev = dev,
	                     .mem = mem_get(dev, KERN_MEM_DEVICE, ROWS * DIM * sizeof(float))};
	struct kern_op op = op_scale(t->mem.dev, t->mem.dev, 2, DIM);
	t->p = program_get(dev, &op, 1, limits);
}

static void scaled_free(struct scaled *t)
{
	t->dev->ops->program_destroy(&t->p);
	t->dev->ops->mem_free(t->dev->d, &t->mem);
}

static struct world *world_of_two(struct schedule *ret_schedule)
{
	static const struct sequence seq[SEQUENCES] = {{0, 5}, {9, 2}};
	struct world *w = world_new(seq, 16);
	*ret_schedule = schedule_make(w, ORDER_WHOLE, 0, false);
	return w;
}

CONFORM_TEST(batches_that_cannot_be)
{
	static const struct kern_progress nobody[SPANS] = {{{0}, 0, 0}, {{0}, 0, 0}};
	struct schedule s;
	struct world *w = world_of_two(&s);
	const struct kern_limits limits = {.rows = ROWS,
	                                   .tail_rows = TAIL,
	                                   .spans = SPANS,
	                                   .positions = DEEPEST,
	                                   .batch_bytes = batch_bytes(w)};
	EACH_TARGET(dev, 2)
	{
		struct scaled t;
		struct kern_mem batch = batch_get(dev, w, &s.step[0], nobody);
		uint32_t *word = batch.host;
		struct wrongs *all = wrong_batches(batch.host, (uint32_t)batch.bytes / 4);
		int rc;
		scaled_new(&t, dev, &limits);
		for (uint32_t i = 0; i < all->n; i++) {
			struct wrong *x = &all->w[i];
			swap_words(word, x);
			bool did = ran(&t, &batch, &rc, x->what);
			EXPECT(rc == KERN_EINVAL && !did, "%s (word %u): run returned %d and %s", x->what,
			       x->change[0].at, rc, did ? "ran" : "did not run");
			EXPECT(strstr(dev->ops->last_error(dev->d), "batch"), "%s: \"%s\"", x->what,
			       dev->ops->last_error(dev->d));
			swap_words(word, x);
			EXPECT(ran(&t, &batch, &rc, "the whole batch") && rc == 0,
			       "the batch that can be returned %d after: %s", rc, x->what);
		}
		dev->ops->mem_free(dev->d, &batch);
		scaled_free(&t);
	}
}

/* A program for one row, span, position or word less than the batch has; at last a batch whose tail
 * alone has too many spans. */
CONFORM_TEST(batches_beyond_the_limits)
{
	struct schedule s;
	struct world *w = world_of_two(&s);
	EACH_TARGET(dev, 2)
	{
		struct kern_mem batch = batch_get(dev, w, &s.step[0], NULL);
		const struct kern_limits exact = {
			.rows = ROWS,
			.tail_rows = TAIL,
			.spans = SPANS,
			.positions = DEEPEST,
			.batch_bytes = ((const struct kern_batch *)batch.host)->words * 4};
		for (uint32_t i = 0; i < 7; i++) {
			struct kern_limits l = exact;
			struct scaled t;
			int rc;
			l.rows -= i == 1;
			l.tail_rows -= i == 2;
			l.spans -= i == 3 || i == 6;
			l.positions -= i == 4;
			l.batch_bytes -= i == 5 ? 4 : 0;
			if (i == 6) {
				struct kern_batch *b = batch.host;
				b->spans = 1;
				((struct kern_span *)(uintptr_t)kern_part(b, b->span))->rows = ROWS;
			}
			scaled_new(&t, dev, &l);
			bool did = ran(&t, &batch, &rc, "limits");
			EXPECT(rc == (i ? KERN_EINVAL : 0) && did == !i,
			       "limits, case %u: run returned %d and %s", i, rc, did ? "ran" : "did not run");
			scaled_free(&t);
		}
		dev->ops->mem_free(dev->d, &batch);
	}
}
