/* test_conform_advance.c - KERN_OP_ADVANCE: a batch whose spans the device completes gives what
 * the complete batch gives. */
#include "tests/conform/conform.h"

#include <stdlib.h>
#include <string.h>

enum {
	DIM = 32,
	VOCAB = 40,
	IDS = 4, /* of so few ids, tokens occur again and again */
	SPANS = 6,
	MOST = 5, /* rows of a span */
	ROWS = SPANS * MOST,
	BLOCK = 4,
	BLOCKS = 12, /* of a sequence */
	POSITIONS = BLOCK * BLOCKS,
	HISTORY = 40,
	MATCH = 2,
	KEPT = 2 * ROWS,
	WORDS = 4096,
	OUTS = 6
};

/* --- a sequence, as the host knows it and as it is ----------------------- */

struct history {
	uint32_t n, token[HISTORY];
};

struct asked {
	struct kern_advance c; /* but `known.at`; from KERN_NONE: the span is complete */
	struct kern_span span; /* as the host writes it */
	uint32_t tokens[MOST], known[HISTORY], table[BLOCKS];
	int draws; /* all its rows do, else none */
	struct kern_draw draw;
};

/* What is expected of a span that continues another. */
static void complete(struct asked *a, const struct kern_kept *kept, struct history *h)
{
	uint32_t drawn = 1;
	while (drawn < a->c.rows && kept[a->c.from + drawn - 1].id == kept[a->c.from + drawn].token)
		drawn++;
	uint64_t index = (a->draw.index[0] | (uint64_t)a->draw.index[1] << 32) + drawn - 1;
	a->draw.index[0] = (uint32_t)index;
	a->draw.index[1] = (uint32_t)(index >> 32);
	a->span.position += drawn - 1;
	a->tokens[0] = kept[a->c.from + drawn - 1].id;
	if (a->c.history == KERN_NONE)
		return;
	if (a->c.known.n)
		memcpy(h->token, a->known, sizeof a->known), h->n = a->c.known.n;
	if (h->n + drawn > HISTORY)
		h->n = 0;
	for (uint32_t i = 0; i < drawn; i++)
		h->token[h->n++] = kept[a->c.from + i].id;
	uint32_t long_ = 0, next = 0;
	for (uint32_t end = 1; end < h->n; end++) { /* tokens before `end` against the last ones */
		uint32_t k = 0;
		while (k < end && k < KERN_MATCH_LONG && h->token[end - k - 1] == h->token[h->n - k - 1])
			k++;
		if (k >= MATCH && k >= long_)
			long_ = k, next = end;
	}
	for (uint32_t i = 1; i < a->span.rows; i++) {
		uint32_t at = next + i - 1;
		a->tokens[i] = !next ? a->tokens[0] : at < h->n ? h->token[at] : a->tokens[at - h->n + 1];
	}
}

static void random_span(struct asked *a, uint32_t number, uint32_t row)
{
	uint32_t before = 1 + rand_below(MOST), rows = 1 + rand_below(MOST), way = rand_below(5);
	*a = (struct asked){.draws = rand_below(4) != 0,
	                    .draw = {.ask = KERN_ASK_DRAW,
	                             .logprobs = -1,
	                             .temperature = 1,
	                             .top_p = 1,
	                             .seed = {number},
	                             .index = {rand_below(2) ? rand_below(99) : UINT32_MAX - 1, 7},
	                             .repetition = 1}};
	a->c = (struct kern_advance){.from = way ? number * MOST + rand_below(2) * ROWS : KERN_NONE,
	                             .rows = before,
	                             .tail_span = KERN_NONE,
	                             .history = way > 1 ? number : KERN_NONE};
	rows = way == 1 ? 1 : rows;
	a->span = (struct kern_span){.row = row,
	                             .rows = rows,
	                             .position = rand_below(POSITIONS - before - rows + 2),
	                             .table = number * BLOCKS};
	for (uint32_t i = 0; i < rows; i++)
		a->tokens[i] = way ? 0 : rand_below(VOCAB);
	if (way > 2)
		a->c.known.n = 1 + rand_below(HISTORY);
	for (uint32_t i = 0; i < HISTORY; i++)
		a->known[i] = rand_below(IDS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		a->table[i] = number * BLOCKS + (i * 5 + 2) % BLOCKS;
}

/* Some first ones of a span's drafts were right, and sometimes later ones by chance. */
static void random_kept(struct kern_kept kept[KEPT])
{
	for (uint32_t i = 0; i < KEPT; i++)
		kept[i] = (struct kern_kept){.token = rand_below(IDS), .id = rand_below(IDS)};
	for (uint32_t i = 1; i < KEPT; i++)
		if (rand_below(3))
			kept[i].token = kept[i - 1].id;
}

/* --- the batch ----------------------------------------------------------- */

static uint32_t take(struct kern_batch *b, size_t words)
{
	b->words += (uint32_t)words;
	return b->words - (uint32_t)words;
}

static void lay_out(uint32_t *words, struct asked *asked, int advance)
{
	struct kern_batch *b = (struct kern_batch *)(void *)words;
	uint32_t last = asked[SPANS - 1].span.row + asked[SPANS - 1].span.rows;
	memset(words, 0, WORDS * 4);
	*b = (struct kern_batch){.words = sizeof *b / 4, .rows = last, .spans = SPANS};
	b->tokens = take(b, last), b->positions = take(b, last), b->slots = take(b, last);
	b->span = take(b, SPANS * sizeof(struct kern_span) / 4);
	b->tail_span = take(b, SPANS * sizeof(struct kern_span) / 4);
	b->tail_index = take(b, last), b->table = take(b, (size_t)SPANS * BLOCKS);
	b->draws = take(b, last * sizeof(struct kern_draw) / 4);
	b->advance = advance ? take(b, SPANS * sizeof(struct kern_advance) / 4) : 0;
	for (uint32_t i = 0; i < SPANS; i++) {
		struct asked *a = &asked[i];
		struct kern_span tail = {b->tail_rows, a->span.rows, a->span.position, a->span.table};
		memcpy(words + b->span + i * 4, &a->span, sizeof a->span);
		memcpy(words + b->table + a->span.table, a->table, sizeof a->table);
		for (uint32_t r = 0; r < a->span.rows; r++) {
			uint32_t p = a->span.position + r, row = a->span.row + r;
			words[b->tokens + row] = a->tokens[r];
			words[b->positions + row] = p;
			words[b->slots + row] = a->table[p / BLOCK] * BLOCK + p % BLOCK;
			if (!a->draws)
				continue;
			struct kern_draw d = a->draw;
			d.index[0] += r;
			d.index[1] += d.index[0] < r;
			words[b->tail_index + b->tail_rows] = row;
			memcpy(words + b->draws + b->tail_rows++ * sizeof d / 4, &d, sizeof d);
		}
		a->c.tail_span = a->draws ? b->tail_spans : KERN_NONE;
		if (a->draws)
			memcpy(words + b->tail_span + b->tail_spans++ * 4, &tail, sizeof tail);
		if (!advance)
			continue;
		a->c.known.at = take(b, a->c.known.n);
		memcpy(words + a->c.known.at, a->known, a->c.known.n * 4);
		memcpy(words + b->advance + i * sizeof a->c / 4, &a->c, sizeof a->c);
	}
}

/* --- the program: everything that depends on what is completed ----------- */

struct rig {
	const struct device *dev;
	struct kern_mem batch, results, kept, histories, zeros, freqs, attended;
	struct kern_mem out[OUTS]; /* embedded, rotated and written, both attentions, logits */
	struct kern_weight *w;
	struct kern_program *p;
};

static const size_t out_bytes[OUTS] = {ROWS * DIM * 4,  2 * (size_t)SPANS *BLOCKS *BLOCK *DIM * 4,
                                       ROWS *DIM * 4,   ROWS *DIM * 4,
                                       ROWS *VOCAB * 4, ROWS *DIM * 4};

static struct kern_limits limits(void)
{
	return (struct kern_limits){.rows = ROWS,
	                            .tail_rows = ROWS,
	                            .spans = SPANS,
	                            .positions = POSITIONS,
	                            .vocab = VOCAB,
	                            .results = KEPT,
	                            .histories = SPANS,
	                            .history_tokens = HISTORY,
	                            .batch_bytes = WORDS * 4};
}

static struct kern_kv_layer layer(kern_ptr base)
{
	return (struct kern_kv_layer){.base = base,
	                              .block_stride_bytes = (size_t)2 * BLOCK * DIM * 4,
	                              .kv_heads = 1,
	                              .head_dim = DIM,
	                              .block_tokens = BLOCK,
	                              .dtype = KERN_F32};
}

static int record(struct rig *r, struct kern_op op[9])
{
	struct kern_tensor x = {r->out[0].dev, DIM, KERN_F32}, tail = {r->out[5].dev, DIM, KERN_F32},
					   logits = {r->out[4].dev, VOCAB, KERN_F32};
	int n = 0;
	op[n++] = (struct kern_op){.kind = KERN_OP_ADVANCE,
	                           .advance = {r->kept.dev, r->histories.dev, BLOCK, MATCH}};
	op[n++] = (struct kern_op){.kind = KERN_OP_EMBED, .embed = {x, r->w, 0}};
	op[n++] = (struct kern_op){.kind = KERN_OP_ROPE,
	                           .rope = {x, {KERN_ROPE_HALF, DIM, 1, r->freqs.dev}, 1, DIM}};
	op[n++] = (struct kern_op){.kind = KERN_OP_KV_WRITE, .kv_write = {layer(r->out[1].dev), x, x}};
	for (int t = 0; t < 2; t++) {
		op[n++] = (struct kern_op){.kind = KERN_OP_ATTENTION,
		                           .rows = t ? KERN_ROWS_TAIL : KERN_ROWS_ALL,
		                           .attention = {.kv = layer(r->attended.dev),
		                                         .out = {r->out[2 + t].dev, DIM, KERN_F32},
		                                         .q = {r->zeros.dev, DIM, KERN_F32},
		                                         .heads = 1,
		                                         .scale = 1}};
	}
	op[n++] = (struct kern_op){.kind = KERN_OP_GATHER_ROWS,
	                           .rows = KERN_ROWS_TAIL,
	                           .gather_rows = {tail, x, DIM}};
	op[n++] = (struct kern_op){.kind = KERN_OP_MATMUL,
	                           .rows = KERN_ROWS_TAIL,
	                           .matmul = {tail, 1, {{r->w, {0}, logits}}}};
	op[n++] = (struct kern_op){.kind = KERN_OP_SAMPLE,
	                           .rows = KERN_ROWS_TAIL,
	                           .sample = {logits, r->results.dev, r->kept.dev}};
	return n;
}

static struct rig rig_new(const struct device *dev)
{
	struct rig r = {.dev = dev};
	struct kern_limits l = limits();
	struct kern_op op[9];
	float freqs[DIM / 2], *table = rand_floats(VOCAB * DIM, 1),
						  *attended = rand_floats(out_bytes[1] / 4, 1);
	for (int i = 0; i < DIM / 2; i++)
		freqs[i] = 1.0f / (float)(1 + i);
	r.batch = mem_get(dev, KERN_MEM_PINNED, l.batch_bytes);
	r.results = mem_get(dev, KERN_MEM_PINNED, KEPT * sizeof(struct kern_drawn));
	r.kept = mem_get(dev, KERN_MEM_DEVICE, KEPT * sizeof(struct kern_kept));
	r.histories = mem_get(dev, KERN_MEM_DEVICE, SPANS * sizeof(struct history));
	r.zeros = mem_get(dev, KERN_MEM_DEVICE, ROWS * DIM * 4);
	r.freqs = mem_get(dev, KERN_MEM_DEVICE, sizeof freqs);
	r.attended = mem_get(dev, KERN_MEM_DEVICE, out_bytes[1]);
	mem_put(dev, r.freqs.dev, freqs, sizeof freqs);
	mem_put(dev, r.attended.dev, attended, out_bytes[1]);
	for (int i = 0; i < OUTS; i++)
		r.out[i] = mem_get(dev, KERN_MEM_DEVICE, out_bytes[i]);
	r.w = weight_get(dev, KERN_F32, 1, VOCAB, DIM, table);
	device_ok(dev, dev->ops->program_new(dev->d, op, (size_t)record(&r, op), &l, &r.p),
	          "program_new");
	return r;
}

static void rig_free(struct rig *r)
{
	const struct kern_ops *k = r->dev->ops;
	struct kern_mem *const all[] = {&r->batch, &r->results, &r->kept,    &r->histories,
	                                &r->zeros, &r->freqs,   &r->attended};
	k->program_destroy(&r->p);
	k->weight_destroy(r->dev->d, &r->w);
	for (size_t i = 0; i < LEN(all); i++)
		k->mem_free(r->dev->d, all[i]);
	for (int i = 0; i < OUTS; i++)
		k->mem_free(r->dev->d, &r->out[i]);
}

/* Runs what lies in the batch; everything that it has written, in `ret` of enough bytes. */
static void run_batch(struct rig *r, struct asked *asked, int advance, unsigned char *ret)
{
	const struct device *dev = r->dev;
	lay_out(r->batch.host, asked, advance);
	memset(r->results.host, 0, r->results.bytes);
	for (int i = 0; i < OUTS; i++) {
		memset(ret, 0, out_bytes[i]);
		mem_put(dev, r->out[i].dev, ret, out_bytes[i]);
	}
	device_ok(dev, dev->ops->run(dev->s, r->p, &r->batch), "run");
	device_ok(dev, dev->ops->sync(dev->s), "sync");
	memcpy(ret, r->results.host, r->results.bytes);
	ret += r->results.bytes;
	for (int i = 0; i < OUTS; ret += out_bytes[i++])
		mem_take(dev, ret, r->out[i].dev, out_bytes[i]);
}

static void check_histories(const struct rig *r, const struct history *want)
{
	struct history got[SPANS];
	mem_take(r->dev, got, r->histories.dev, sizeof got);
	for (uint32_t i = 0; i < SPANS; i++)
		EXPECT(got[i].n == want[i].n && !memcmp(got[i].token, want[i].token, want[i].n * 4),
		       "history %u has %u tokens, or others than the %u that are wanted", i, got[i].n,
		       want[i].n);
}

CONFORM_TEST(continued_spans_are_completed)
{
	enum { ROUNDS = 60 };
	size_t bytes = KEPT * sizeof(struct kern_drawn), at[OUTS];
	for (int i = 0; i < OUTS; i++)
		at[i] = bytes, bytes += out_bytes[i];
	EACH_TARGET(dev, 2)
	{
		rand_seed(77);
		struct rig r = rig_new(dev);
		struct asked asked[SPANS];
		struct history history[SPANS] = {0};
		struct kern_kept kept[KEPT];
		unsigned char *got = conform_alloc(bytes, 1), *want = conform_alloc(bytes, 1);
		for (unsigned round = 0; round < ROUNDS; round++) {
			conform_about(1, "round %u", round);
			for (uint32_t i = 0, row = 0; i < SPANS; row += asked[i++].span.rows)
				random_span(&asked[i], i, row);
			random_kept(kept);
			mem_put(dev, r.kept.dev, kept, sizeof kept);
			run_batch(&r, asked, 1, got);
			for (uint32_t i = 0; i < SPANS; i++)
				if (asked[i].c.from != KERN_NONE)
					complete(&asked[i], kept, &history[i]);
			check_histories(&r, history);
			run_batch(&r, asked, 0, want);
			EXPECT(!memcmp(got, want, KEPT * sizeof(struct kern_drawn)),
			       "other tokens were given or drawn");
			for (int i = 0; i < OUTS; i++)
				EXPECT(!memcmp(got + at[i], want + at[i], out_bytes[i]), "output %d differs", i);
		}
		rig_free(&r);
	}
}

/* What names rows, histories, blocks or positions beyond the limits is refused before anything
 * runs. */
CONFORM_TEST(continued_spans_that_are_refused)
{
	static const struct kern_advance bad[] = {
		{.rows = 0, .tail_span = KERN_NONE, .history = 0},
		{.rows = KERN_DRAFTED_MAX + 2, .tail_span = KERN_NONE, .history = 0},
		{.from = KEPT - 1, .rows = 2, .tail_span = KERN_NONE, .history = 0},
		{.from = KERN_NONE - 1, .rows = 2, .tail_span = KERN_NONE, .history = 0},
		{.rows = 2, .tail_span = 1, .history = 0},
		{.rows = 2, .tail_span = KERN_NONE, .history = SPANS},
		{.rows = 2, .tail_span = KERN_NONE, .history = KERN_NONE},
		{.rows = 2, .tail_span = KERN_NONE, .history = 0, .known = {0, HISTORY + 1}},
		{.rows = 2, .tail_span = KERN_NONE, .history = 0, .known = {WORDS, 1}},
		{.rows = MOST, .tail_span = KERN_NONE, .history = 0}, /* beyond the last position */
	};
	EACH_TARGET(dev, 1)
	{
		struct rig r = rig_new(dev);
		struct asked asked[SPANS];
		for (size_t k = 0; k <= LEN(bad); k++) {
			for (uint32_t i = 0, row = 0; i < SPANS; row += asked[i++].span.rows) {
				random_span(&asked[i], i, row);
				asked[i].c.from = KERN_NONE;
				asked[i].draws = 0;
			}
			asked[SPANS - 1].span.rows = 2;
			asked[SPANS - 1].span.position = POSITIONS - 3;
			asked[SPANS - 1].draws = 1; /* the only span of the tail */
			lay_out(r.batch.host, asked, 1);
			struct kern_batch *b = r.batch.host;
			if (k < LEN(bad))
				memcpy((uint32_t *)r.batch.host + b->advance + (SPANS - 1) * sizeof bad[k] / 4,
				       &bad[k], sizeof bad[k]);
			else
				b->advance = b->words - 1;
			EXPECT(dev->ops->run(dev->s, r.p, &r.batch) == KERN_EINVAL &&
			           *dev->ops->last_error(dev->d),
			       "bad span %zu was taken", k);
		}
		rig_free(&r);
	}
}

CONFORM_TEST(continuing_that_is_refused)
{
	EACH_TARGET(dev, 1)
	{
		struct rig r = rig_new(dev);
		for (int k = 0; k < 8; k++) {
			struct kern_limits l = limits();
			struct kern_op op[10];
			struct kern_program *p = NULL;
			size_t n = (size_t)record(&r, op);
			switch (k) {
			case 0: op[0].advance.kept.v = 0; break;
			case 1: op[0].advance.kept.v += 2; break;
			case 2: op[0].advance.block_tokens = 0; break;
			case 3: op[0].advance.histories.v = 0; break;
			case 4: op[0].advance.match = 0; break;
			case 5: op[0].advance.match = KERN_MATCH_LONG + 1; break;
			case 6: l.history_tokens = 0; break;
			default: op[n++] = op[0]; /* not the first */
			}
			EXPECT(dev->ops->program_new(dev->d, op, n, &l, &p) == KERN_EINVAL &&
			           strstr(dev->ops->last_error(dev->d), "advance: "),
			       "program %d was taken", k);
		}
		rig_free(&r);
	}
}
