/* test_conform_sample.c - draws and scores against a plain reference in double precision; the
 * same bits wherever a row stands; sequences that go on without the host. */
#include "tests/conform/conform.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 24, TALKS = 5, SEEN = 12, LISTS = 8, DIM = 16 };

/* --- what is asked ------------------------------------------------------- */

struct pair {
	uint32_t id;
	union {
		float bias;
		uint32_t times;
	};
};

/* A row: its logits, and what is asked of it. */
struct row {
	float *logits;
	struct kern_draw d; /* but places in the batch */
	uint64_t *mask[2];  /* NULL: none */
	uint32_t forbidden[LISTS], drafted[LISTS];
	struct pair bias[LISTS], seen[SEEN];
};

/* Steps of 1/64, which no change makes much finer: what differs differs by more than a device's
 * exp may round, and there are ties. */
static void random_logits(float *l, uint32_t vocab)
{
	for (uint32_t i = 0; i < vocab; i++)
		l[i] = floorf(rand_unit() * 300) / 64 + (rand_below(9) ? 0 : 3);
	if (vocab > 1 && rand_below(4) == 0)
		l[rand_below(vocab)] = -INFINITY;
}

static uint64_t *random_mask(uint32_t vocab)
{
	uint64_t *m = conform_alloc((vocab + 63) / 64, sizeof *m);
	for (uint32_t i = 0; i < (vocab + 63) / 64; i++)
		m[i] = (uint64_t)rand_bits() << 32 | rand_bits();
	return rand_below(3) ? m : NULL;
}

/* Ids that differ, in the beginning of the vocabulary and one beyond it. */
static uint32_t list_id(uint32_t i, uint32_t vocab)
{
	return i == 3 ? vocab + 5 : i * 3 % 61;
}

static void random_row(struct row *r, uint32_t vocab)
{
	static const float temperatures[] = {0, 1, 0.7f, 1.5f, 9}, top_p[] = {1, 1, 0.9f, 0.5f},
					   min_p[] = {0, 0, 0.05f}, typical[] = {0, 1, 0.8f};
	const uint32_t top_k[] = {0, 0, 1, 40, rand_below(vocab)};
	bool edited = rand_below(2);
	*r = (struct row){.logits = conform_alloc(vocab, sizeof(float))};
	random_logits(r->logits, vocab);
	r->d = (struct kern_draw){.ask = rand_below(5) ? KERN_ASK_DRAW : KERN_ASK_SCORE,
	                          .id = rand_below(vocab),
	                          .logprobs = (int32_t)rand_below(KERN_TOP_MAX + 2) - 1,
	                          .temperature = temperatures[rand_below(5)],
	                          .min_p = min_p[rand_below(3)],
	                          .top_p = top_p[rand_below(4)],
	                          .typical_p = typical[rand_below(3)],
	                          .top_k = top_k[rand_below(5)],
	                          .seed = {rand_bits(), rand_below(2) ? rand_bits() : 0},
	                          .index = {rand_below(100000), rand_below(8) ? 0 : 1},
	                          .repetition = 1};
	if (!edited)
		return;
	r->mask[0] = random_mask(vocab);
	r->mask[1] = random_mask(vocab);
	r->d.repetition = rand_below(2) ? 2 : 1;
	r->d.presence = rand_below(2) ? 3 : 0;
	r->d.frequency = rand_below(2) ? -0.25f : 0.75f;
	r->d.forbidden.n = rand_below(LISTS + 1);
	r->d.bias.n = rand_below(LISTS + 1);
	r->d.seen.n = rand_below(SEEN + 1);
	r->d.drafted.n = rand_below(LISTS + 1);
	for (uint32_t i = 0; i < LISTS; i++) {
		r->forbidden[i] = list_id(i, vocab) + 1;
		r->drafted[i] = list_id(rand_below(SEEN + 3), vocab);
		r->bias[i] = (struct pair){.id = list_id(i, vocab), .bias = floorf(rand_unit() * 256) / 64};
	}
	for (uint32_t i = 0; i < SEEN; i++)
		r->seen[i] = (struct pair){.id = list_id(i, vocab), .times = i % 3};
}

/* --- the batch ----------------------------------------------------------- */

struct batch {
	uint32_t *words, n;
};

static uint32_t put(struct batch *b, const void *data, uint32_t words)
{
	uint32_t at = b->n;
	if (words)
		memcpy(b->words + at, data, words * 4);
	b->n += words;
	return at;
}

static uint32_t zeros(struct batch *b, uint32_t words)
{
	b->n += words;
	return b->n - words;
}

static size_t batch_words(uint32_t vocab)
{
	return 64 + ROWS * (16 + sizeof(struct kern_advance) / 4 + sizeof(struct kern_draw) / 4 +
	                    2 * ((vocab + 63) / 64 * 2) + 4 * 2 * SEEN);
}

/* Every row a sequence of its own, all of them in the tail, in the order of `row`. */
static void batch_of(struct batch *b, const struct row *rows, const uint32_t *order, uint32_t n,
                     uint32_t vocab, const uint32_t *tokens)
{
	struct kern_batch *head = (struct kern_batch *)(void *)b->words;
	uint32_t words = (vocab + 63) / 64 * 2;
	b->n = sizeof *head / 4;
	memset(b->words, 0, batch_words(vocab) * 4);
	*head = (struct kern_batch){.rows = n, .spans = n, .tail_rows = n, .tail_spans = n};
	head->tokens = put(b, tokens, tokens ? n : 0);
	if (!tokens)
		zeros(b, n);
	head->positions = zeros(b, n);
	head->slots = zeros(b, n);
	head->table = zeros(b, 1);
	head->span = head->tail_span = zeros(b, n * sizeof(struct kern_span) / 4);
	head->tail_index = zeros(b, n);
	for (uint32_t i = 0; i < n; i++) {
		struct kern_span span = {.row = i, .rows = 1};
		memcpy(b->words + head->span + i * sizeof span / 4, &span, sizeof span);
		b->words[head->tail_index + i] = i;
	}
	head->draws = zeros(b, n * sizeof(struct kern_draw) / 4);
	for (uint32_t i = 0; i < n; i++) {
		const struct row *r = &rows[order[i]];
		struct kern_draw d = r->d;
		for (int m = 0; m < 2; m++)
			d.mask[m] = r->mask[m] ? put(b, r->mask[m], words) : 0;
		d.forbidden.at = put(b, r->forbidden, d.forbidden.n);
		d.bias.at = put(b, r->bias, 2 * d.bias.n);
		d.seen.at = put(b, r->seen, 2 * d.seen.n);
		d.drafted.at = put(b, r->drafted, d.drafted.n);
		memcpy(b->words + head->draws + i * sizeof d / 4, &d, sizeof d);
	}
	head->words = b->n;
}

/* A program that samples, on a device. */
struct sampling {
	const struct device *dev;
	uint32_t vocab;
	struct kern_mem logits, results, kept, batch, x;
	struct kern_weight *w;
	struct kern_program *p;
};

static struct kern_limits limits_of(uint32_t vocab)
{
	return (struct kern_limits){.rows = ROWS,
	                            .tail_rows = ROWS,
	                            .spans = ROWS,
	                            .positions = 1,
	                            .vocab = vocab,
	                            .results = 2 * ROWS,
	                            .batch_bytes = batch_words(vocab) * 4};
}

/* With a table of DIM columns the logits are those of the batch's tokens; else they are
 * uploaded. */
static struct sampling sampling_new(const struct device *dev, uint32_t vocab, const float *table)
{
	struct sampling s = {.dev = dev, .vocab = vocab};
	struct kern_limits l = limits_of(vocab);
	struct kern_op op[4] = {{.kind = KERN_OP_ADVANCE},
	                        {.kind = KERN_OP_EMBED},
	                        {.kind = KERN_OP_MATMUL, .rows = KERN_ROWS_TAIL},
	                        {.kind = KERN_OP_SAMPLE, .rows = KERN_ROWS_TAIL}};
	s.logits = mem_get(dev, KERN_MEM_DEVICE, ROWS * (vocab + 3) * sizeof(float));
	s.results = mem_get(dev, KERN_MEM_PINNED, 2 * ROWS * sizeof(struct kern_drawn));
	s.kept = mem_get(dev, KERN_MEM_DEVICE, 2 * ROWS * sizeof(struct kern_kept));
	s.batch = mem_get(dev, KERN_MEM_PINNED, l.batch_bytes);
	s.x = mem_get(dev, KERN_MEM_DEVICE, ROWS * DIM * sizeof(float));
	struct kern_tensor logits = {s.logits.dev, vocab + 3, KERN_F32}, x = {s.x.dev, DIM, KERN_F32};
	if (table)
		s.w = weight_get(dev, KERN_F32, 1, vocab, DIM, table);
	op[0].advance.kept = s.kept.dev;
	op[0].advance.block_tokens = 1;
	op[1].embed.y = op[2].matmul.x = x;
	op[1].embed.w = s.w;
	op[2].matmul.products = 1;
	op[2].matmul.p[0] = (struct kern_product){s.w, {0}, logits};
	op[3].sample.logits = logits;
	op[3].sample.results = s.results.dev;
	op[3].sample.kept = s.kept.dev;
	device_ok(dev, dev->ops->program_new(dev->d, table ? op : op + 3, table ? 4 : 1, &l, &s.p),
	          "program_new");
	return s;
}

static void sampling_free(struct sampling *s)
{
	const struct device *dev = s->dev;
	dev->ops->program_destroy(&s->p);
	if (s->w)
		dev->ops->weight_destroy(dev->d, &s->w);
	struct kern_mem *const all[] = {&s->logits, &s->results, &s->kept, &s->batch, &s->x};
	for (size_t i = 0; i < LEN(all); i++)
		dev->ops->mem_free(dev->d, all[i]);
}

static void run_batch(struct sampling *s, const struct kern_mem *batch, const struct batch *b)
{
	memcpy(batch->host, b->words, b->n * 4);
	device_ok(s->dev, s->dev->ops->run(s->dev->s, s->p, batch), "run");
}

/* Rows order[0 .. n) of `rows` in one batch; what came of them, by row. */
static void sample_rows(struct sampling *s, const struct row *rows, const uint32_t *order,
                        uint32_t n, struct kern_drawn *ret)
{
	struct batch b = {.words = conform_alloc(batch_words(s->vocab), 4)};
	struct kern_drawn *got = s->results.host;
	for (uint32_t i = 0; i < n; i++)
		mem_put(s->dev, kern_at(s->logits.dev, i * (s->vocab + 3) * sizeof(float)),
		        rows[order[i]].logits, s->vocab * sizeof(float));
	batch_of(&b, rows, order, n, s->vocab, NULL);
	memset(got, 0xd5, 2 * ROWS * sizeof *got);
	run_batch(s, &s->batch, &b);
	device_ok(s->dev, s->dev->ops->sync(s->dev->s), "sync");
	for (uint32_t i = 0; i < 2 * ROWS; i++)
		if (i < n && rows[order[i]].d.ask != KERN_ASK_NOTHING)
			ret[order[i]] = got[i];
		else
			EXPECT(((unsigned char *)&got[i])[0] == 0xd5,
			       "result %u of %u rows was written, and nothing asked", i, n);
}

/* --- the reference ------------------------------------------------------- */

/* The logits that the draw sees, in float as is said in batch.h. */
static float *changed(const struct row *r, uint32_t vocab)
{
	float *l = conform_alloc(vocab, sizeof *l);
	for (uint32_t i = 0; i < vocab; i++) {
		bool allowed = (!r->mask[0] || r->mask[0][i / 64] >> i % 64 & 1) &&
		               (!r->mask[1] || r->mask[1][i / 64] >> i % 64 & 1);
		l[i] = allowed ? r->logits[i] : -INFINITY;
	}
	for (uint32_t i = 0; i < r->d.forbidden.n; i++)
		if (r->forbidden[i] < vocab)
			l[r->forbidden[i]] = -INFINITY;
	for (uint32_t i = 0; i < r->d.bias.n; i++)
		if (r->bias[i].id < vocab)
			l[r->bias[i].id] += r->bias[i].bias;
	for (uint32_t id = 0; id < vocab; id++) {
		uint32_t times = 0, found = 0;
		for (uint32_t i = 0; i < r->d.seen.n; i++)
			if (r->seen[i].id == id)
				times += r->seen[i].times, found = 1;
		for (uint32_t i = 0; i < r->d.drafted.n; i++)
			times += r->drafted[i] == id;
		if (!found && !times)
			continue;
		l[id] = l[id] > 0 ? l[id] / r->d.repetition : l[id] * r->d.repetition;
		l[id] -= r->d.frequency * (float)times;
		l[id] -= times ? r->d.presence : 0;
	}
	return l;
}

static const float *by_logit;

/* The most probable first, of equals the lowest id. */
static int compare_logits(const void *a, const void *b)
{
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
	return by_logit[i] > by_logit[j] ? -1 : by_logit[i] < by_logit[j] ? 1 : i < j ? -1 : 1;
}

static uint32_t *sorted(const float *l, uint32_t vocab)
{
	uint32_t *ids = conform_alloc(vocab, sizeof *ids);
	for (uint32_t i = 0; i < vocab; i++)
		ids[i] = i;
	by_logit = l;
	qsort(ids, vocab, sizeof *ids, compare_logits);
	return ids;
}

struct kept {
	uint32_t id;
	double p;
	float far;
};

static int compare_far(const void *a, const void *b)
{
	const struct kept *x = a, *y = b;
	return x->far < y->far ? -1 : x->far > y->far ? 1 : x->id < y->id ? -1 : 1;
}

static int compare_kept(const void *a, const void *b)
{
	const struct kept *x = a, *y = b;
	return x->p > y->p ? -1 : x->p < y->p ? 1 : x->id < y->id ? -1 : 1;
}

/* How many of the first n reach `part` of their sum, which becomes theirs. */
static uint32_t reach(const struct kept *k, uint32_t n, double part, double *sum)
{
	double want = part * *sum, upto = 0;
	uint32_t i = 0;
	while (i < n && upto < want)
		upto += k[i++].p;
	*sum = upto;
	return i;
}

static double fraction(const struct kern_draw *d)
{
	uint32_t c[4] = {d->index[0], d->index[1], 0, 0}, k[2] = {d->seed[0], d->seed[1]};
	for (int i = 0; i < 10; i++, k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u) {
		uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
		uint32_t y[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b,
		                 (uint32_t)(a >> 32) ^ c[3] ^ k[1], (uint32_t)a};
		memcpy(c, y, sizeof c);
	}
	return (double)(((uint64_t)c[1] << 32 | c[0]) >> 11) * 0x1p-53;
}

/* The id that is drawn from l, whose largest is finite; the cuts and the fraction moved by a
 * part of themselves, as a device's rounding may. */
static uint32_t drawn_at(const struct kern_draw *d, const float *l, const uint32_t *order,
                         uint32_t vocab, double cut, double moved)
{
	struct kept *k = conform_alloc(vocab, sizeof *k);
	double sum = 0, u = fraction(d) * (1 + moved);
	uint32_t n = 0;
	for (uint32_t i = 0; i < vocab; i++) {
		double p = exp((double)(l[order[i]] - l[order[0]]) * (double)(1 / d->temperature));
		if (p > 1e-37 && p * (1 + cut) >= (double)d->min_p)
			k[n++] = (struct kept){.id = order[i], .p = p};
	}
	n = d->top_k && d->top_k < n ? d->top_k : n;
	for (uint32_t i = 0; i < n; i++)
		sum += k[i].p;
	if (d->top_p < 1)
		n = reach(k, n, (double)d->top_p * (1 + cut), &sum);
	if (d->typical_p > 0 && d->typical_p < 1) {
		double mean = 0;
		for (uint32_t i = 0; i < n; i++)
			mean += k[i].p * log(k[i].p) / sum;
		for (uint32_t i = 0; i < n; i++)
			k[i].far = (float)fabs(log(k[i].p) - mean);
		qsort(k, n, sizeof *k, compare_far);
		n = reach(k, n, (double)d->typical_p * (1 + cut), &sum);
		qsort(k, n, sizeof *k, compare_kept);
	}
	double upto = 0;
	uint32_t i = 0;
	for (; i < n; i++)
		if ((upto += k[i].p) > u * sum)
			break;
	return k[i < n ? i : n - 1].id;
}

/* Is this what may be drawn? */
static bool may_draw(const struct row *r, uint32_t vocab, uint32_t id, uint32_t *ret_want)
{
	float *l = changed(r, vocab);
	uint32_t *order = sorted(l, vocab), lowest = 0;
	*ret_want = order[0];
	if (l[order[0]] == -INFINITY) {
		while (lowest < vocab && ((r->mask[0] && !(r->mask[0][lowest / 64] >> lowest % 64 & 1)) ||
		                          (r->mask[1] && !(r->mask[1][lowest / 64] >> lowest % 64 & 1))))
			lowest++;
		*ret_want = lowest < vocab && (r->mask[0] || r->mask[1]) ? lowest : 0;
	} else if (r->d.temperature > 0) {
		*ret_want = drawn_at(&r->d, l, order, vocab, 0, 0);
		for (int i = 0; i < 9; i++)
			if (drawn_at(&r->d, l, order, vocab, (i / 3 - 1) * 1e-5, (i % 3 - 1) * 1e-6) == id)
				return true;
	}
	return id == *ret_want;
}

static void check_logprobs(const struct row *r, uint32_t vocab, const struct kern_drawn *got)
{
	uint32_t *order = sorted(r->logits, vocab), rank = 0,
			 n = (uint32_t)r->d.logprobs < vocab ? (uint32_t)r->d.logprobs : vocab;
	double sum = 0, most = (double)r->logits[order[0]];
	for (uint32_t i = 0; i < vocab; i++)
		sum += exp((double)r->logits[i] - most);
	sum = most + log(sum);
	while (order[rank] != got->id)
		rank++;
	EXPECT(got->rank == rank + 1, "id %u has rank %u, want %u", got->id, got->rank, rank + 1);
	EXPECT(got->n_top == n, "%u of the most probable, want %u", got->n_top, n);
	double bound = 1e-5 * (4 + fabs(sum));
	EXPECT(got->logprob == (double)r->logits[got->id] - sum ||
	           fabs((double)got->logprob - ((double)r->logits[got->id] - sum)) <= bound,
	       "log-probability %g, want %g", (double)got->logprob, (double)r->logits[got->id] - sum);
	for (uint32_t i = 0; i < n; i++)
		EXPECT(got->top[i].id == order[i] && (isinf(r->logits[order[i]]) ||
		                                      fabs((double)got->top[i].logprob -
		                                           ((double)r->logits[order[i]] - sum)) <= bound),
		       "place %u of the most probable is id %u with %g, want %u with %g", i, got->top[i].id,
		       (double)got->top[i].logprob, order[i], (double)r->logits[order[i]] - sum);
}

static void check_row(const struct row *r, uint32_t vocab, const struct kern_drawn *got)
{
	uint32_t want;
	EXPECT(!got->not_finite && got->id < vocab, "not finite: %u, id %u of %u", got->not_finite,
	       got->id, vocab);
	if (r->d.ask == KERN_ASK_SCORE)
		EXPECT(got->id == r->d.id, "the score of id %u, asked for %u", got->id, r->d.id);
	else
		EXPECT(
			may_draw(r, vocab, got->id, &want),
			"id %u was drawn, want %u (temperature %g, top_k %u, top_p %g, min_p %g, typical_p %g)",
			got->id, want, (double)r->d.temperature, r->d.top_k, (double)r->d.top_p,
			(double)r->d.min_p, (double)r->d.typical_p);
	if (r->d.logprobs >= 0)
		check_logprobs(r, vocab, got);
	else
		EXPECT(!got->rank && !got->n_top && got->logprob == 0,
		       "log-probabilities that nobody asked for");
}

/* --- tests --------------------------------------------------------------- */

static bool same_drawn(const struct kern_drawn *a, const struct kern_drawn *b)
{
	return a->not_finite == b->not_finite && a->id == b->id &&
	       !memcmp(&a->logprob, &b->logprob, sizeof a->logprob) && a->rank == b->rank &&
	       a->n_top == b->n_top && !memcmp(a->top, b->top, a->n_top * sizeof *a->top);
}

/* All rows together are right; alone, and in another order between others, each has the same
 * bits. */
static void check_table(const struct device *dev, const struct row *rows, uint32_t vocab,
                        struct kern_drawn *first)
{
	struct kern_drawn together[ROWS] = {0}, turned[ROWS] = {0}, alone[ROWS] = {0};
	uint32_t order[ROWS], back[ROWS];
	struct sampling s = sampling_new(dev, vocab, NULL);
	for (uint32_t i = 0; i < ROWS; i++) {
		order[i] = i;
		back[i] = (i * 7 + 3) % ROWS;
	}
	sample_rows(&s, rows, order, ROWS, together);
	sample_rows(&s, rows, back, ROWS - 3, turned);
	for (uint32_t i = 0; i < ROWS; i++) {
		conform_about(1, "vocabulary %u, row %u", vocab, i);
		sample_rows(&s, rows, &i, 1, alone);
		if (rows[i].d.ask != KERN_ASK_NOTHING)
			check_row(&rows[i], vocab, &together[i]);
		EXPECT(same_drawn(&alone[i], &together[i]),
		       "alone another result than among others: id %u and %u", alone[i].id, together[i].id);
		for (uint32_t k = 0; k < ROWS - 3; k++)
			EXPECT(back[k] != i || same_drawn(&turned[i], &together[i]),
			       "in another place another result");
		EXPECT(!first->rank || same_drawn(&first[i], &together[i]),
		       "with other threads another result");
	}
	memcpy(first, together, sizeof together);
	sampling_free(&s);
}

CONFORM_TEST(draws_and_scores)
{
	static const uint32_t vocabs[] = {1, 7, 64, 65, 700, 5003};
	rand_seed(41);
	for (uint32_t v = 0; v < LEN(vocabs); v++)
		for (uint32_t turn = 0; turn < (vocabs[v] < 100 ? 20 : 6) / conform_thin; turn++) {
			size_t mark = conform_mark();
			struct row rows[ROWS];
			for (uint32_t i = 0; i < ROWS; i++)
				random_row(&rows[i], vocabs[v]);
			rows[0].d.logprobs = 3;
			rows[0].d.ask = KERN_ASK_DRAW;
			rows[5].d.ask = KERN_ASK_NOTHING;
			for (unsigned t = 0; t < conform_target_count; t++) {
				struct kern_drawn first[ROWS] = {0};
				for (unsigned threads = 1; threads <= 3; threads += 2) {
					struct device *dev = conform_targets[t].activations == KERN_F32
					                         ? device_get(&conform_targets[t], threads)
					                         : NULL;
					if (!dev)
						continue;
					conform_about(0, "%s, %u threads", dev->target->name, threads);
					check_table(dev, rows, vocabs[v], first);
				}
			}
			conform_release(mark);
		}
}

/* A NaN or an infinity, wherever it is and whatever the masks say, is told, and of no other row. */
CONFORM_TEST(rows_that_are_not_finite)
{
	static const float bad[] = {NAN, INFINITY};
	enum { VOCAB = 130 };
	rand_seed(42);
	EACH_TARGET(dev, 2)
	{
		struct sampling s = sampling_new(dev, VOCAB, NULL);
		struct row rows[ROWS];
		struct kern_drawn got[ROWS], want[ROWS];
		uint32_t order[ROWS];
		for (uint32_t i = 0; i < ROWS; i++) {
			order[i] = i;
			random_row(&rows[i], VOCAB);
		}
		sample_rows(&s, rows, order, ROWS, want);
		for (uint32_t at = 0; at < VOCAB; at++)
			for (size_t b = 0; b < LEN(bad); b++) {
				uint32_t r = (at + (uint32_t)b) % ROWS;
				float was = rows[r].logits[at];
				rows[r].logits[at] = bad[b];
				sample_rows(&s, rows, order, ROWS, got);
				rows[r].logits[at] = was;
				for (uint32_t i = 0; i < ROWS; i++)
					EXPECT(i == r ? got[i].not_finite == 1 : same_drawn(&got[i], &want[i]),
					       "%g at %u of row %u: row %u is told as %u", (double)bad[b], at, r, i,
					       got[i].not_finite);
			}
		sampling_free(&s);
	}
}

enum { RUNS = 5 };

/* The first n tokens of what a sequence said, of which the first is its prompt. */
static void see(struct row *r, const uint32_t *said, uint32_t n)
{
	r->d.seen.n = 0;
	for (uint32_t t = 0; t < n; t++) {
		uint32_t at = 0;
		while (at < r->d.seen.n && r->seen[at].id != said[t])
			at++;
		if (at == r->d.seen.n)
			r->seen[r->d.seen.n++] = (struct pair){.id = said[t]};
		r->seen[at].times += t > 0;
	}
}

/* Each run gets the tokens of the one before it, and all of a sequence so far as seen. */
static void with_the_host_between(struct sampling *s, struct batch *b, struct row *rows,
                                  uint32_t said[TALKS][RUNS + 1])
{
	const struct kern_drawn *got = s->results.host;
	uint32_t order[TALKS], tokens[TALKS];
	for (uint32_t k = 0; k < RUNS; k++) {
		for (uint32_t i = 0; i < TALKS; i++) {
			order[i] = i;
			tokens[i] = said[i][k];
			rows[i].d.index[0] = k;
			see(&rows[i], said[i], k + 1);
		}
		batch_of(b, rows, order, TALKS, s->vocab, tokens);
		run_batch(s, &s->batch, b);
		device_ok(s->dev, s->dev->ops->sync(s->dev->s), "sync");
		for (uint32_t i = 0; i < TALKS; i++)
			said[i][k + 1] = got[i].id;
	}
}

/* Says that each span continues the one of the run before, whose results begin at `from`. */
static void continue_all(struct batch *b, uint32_t from)
{
	struct kern_batch *head = (struct kern_batch *)(void *)b->words;
	head->advance = zeros(b, TALKS * sizeof(struct kern_advance) / 4);
	for (uint32_t i = 0; i < TALKS; i++) {
		struct kern_advance c = {.from = from + i, .rows = 1, .tail_span = i, .history = KERN_NONE};
		memcpy(b->words + head->advance + i * sizeof c / 4, &c, sizeof c);
	}
	head->words = b->n;
}

/* What was drawn last is the next token, and penalised: five runs that the host only gives draws
 * for say what five say that it gives the tokens for. The results of a run are there while the next
 * one may be in progress. */
CONFORM_TEST(runs_without_the_host_between)
{
	enum { VOCAB = 97 };
	rand_seed(43);
	float *table = rand_floats(VOCAB * DIM, 0.9f);
	EACH_TARGET(dev, 2)
	{
		struct sampling s = sampling_new(dev, VOCAB, table);
		struct batch b = {.words = conform_alloc(batch_words(VOCAB), 4)};
		struct row rows[TALKS] = {0};
		struct kern_mem batch[RUNS];
		struct kern_drawn last[TALKS], *got = s.results.host;
		uint32_t order[TALKS], tokens[TALKS], said[TALKS][RUNS + 1];
		struct kern_kept kept[2 * ROWS];
		for (uint32_t i = 0; i < TALKS; i++) {
			order[i] = i;
			said[i][0] = 11 * i + 1;
			rows[i].d = (struct kern_draw){.ask = KERN_ASK_DRAW,
			                               .logprobs = 2,
			                               .temperature = i ? 0.5f * (float)i : 0,
			                               .top_p = 1,
			                               .seed = {i},
			                               .repetition = 1.3f,
			                               .presence = 0.4f,
			                               .frequency = 0.3f};
		}
		with_the_host_between(&s, &b, rows, said);
		memcpy(last, got, sizeof last);
		for (uint32_t k = 0; k < RUNS; k++) {
			for (uint32_t i = 0; i < TALKS; i++) {
				tokens[i] = k ? 0 : said[i][0];
				rows[i].d.index[0] = k;
				rows[i].d.pending = k > 0;
				see(&rows[i], said[i], k ? k : 1);
			}
			batch[k] = mem_get(dev, KERN_MEM_PINNED, limits_of(VOCAB).batch_bytes);
			batch_of(&b, rows, order, TALKS, VOCAB, tokens);
			((struct kern_batch *)(void *)b.words)->first_result = k % 2 * ROWS;
			if (k)
				continue_all(&b, (k - 1) % 2 * ROWS);
			run_batch(&s, &batch[k], &b);
			if (!k)
				continue;
			device_ok(dev, dev->ops->sync_previous(dev->s), "sync_previous");
			for (uint32_t i = 0; i < TALKS; i++)
				EXPECT(got[(k - 1) % 2 * ROWS + i].id == said[i][k],
				       "run %u: sequence %u got %u, with the host between %u", k - 1, i,
				       got[(k - 1) % 2 * ROWS + i].id, said[i][k]);
		}
		device_ok(dev, dev->ops->sync(dev->s), "sync");
		got += (RUNS - 1) % 2 * ROWS;
		mem_take(dev, kept, s.kept.dev, sizeof kept);
		for (uint32_t i = 0; i < TALKS; i++) {
			EXPECT(same_drawn(&got[i], &last[i]),
			       "sequence %u ends with %u, with the host between with %u", i, got[i].id,
			       last[i].id);
			for (uint32_t k = RUNS - 2; k < RUNS; k++) {
				const struct kern_kept *row = &kept[k % 2 * ROWS + i];
				EXPECT(row->token == said[i][k] && row->id == said[i][k + 1],
				       "sequence %u: of run %u %u and %u were kept, want %u and %u", i, k,
				       row->token, row->id, said[i][k], said[i][k + 1]);
			}
		}
		for (uint32_t k = 0; k < RUNS; k++)
			dev->ops->mem_free(dev->d, &batch[k]);
		sampling_free(&s);
	}
}

/* A draw that names what is beyond the batch or the program's limits is refused before anything
 * runs. */
CONFORM_TEST(draws_that_are_refused)
{
	enum { VOCAB = 70, BEYOND = 1u << 30 };
	static const struct kern_draw bad[] = {
		{.ask = 3},
		{.id = VOCAB},
		{.logprobs = KERN_TOP_MAX + 1},
		{.pending = 2},
		{.mask = {BEYOND}},
		{.mask = {0, BEYOND}},
		{.forbidden = {BEYOND, 1}},
		{.forbidden = {16, BEYOND}},
		{.bias = {16, UINT32_MAX / 2 + 1}},
		{.seen = {UINT32_MAX, 1}},
		{.drafted = {16, KERN_DRAFTED_MAX + 1}},
		{.drafted = {BEYOND, 1}},
	};
	EACH_TARGET(dev, 1)
	{
		struct sampling s = sampling_new(dev, VOCAB, NULL);
		struct batch b = {.words = conform_alloc(batch_words(VOCAB), 4)};
		struct row row = {.d = {.ask = KERN_ASK_DRAW}};
		for (size_t i = 0; i <= LEN(bad) + 1; i++) {
			uint32_t order = 0;
			batch_of(&b, &row, &order, 1, VOCAB, NULL);
			struct kern_batch *head = (struct kern_batch *)(void *)b.words;
			if (i < LEN(bad))
				memcpy(b.words + head->draws, &bad[i], sizeof bad[i]);
			if (i == LEN(bad))
				head->draws = head->words - 1;
			if (i == LEN(bad) + 1)
				head->first_result = 2 * ROWS;
			memcpy(s.batch.host, b.words, b.n * 4);
			memset(s.results.host, 0xd5, sizeof(struct kern_drawn));
			EXPECT(dev->ops->run(dev->s, s.p, &s.batch) == KERN_EINVAL &&
			           *dev->ops->last_error(dev->d),
			       "bad draw %zu was taken", i);
			device_ok(dev, dev->ops->sync(dev->s), "sync");
			EXPECT(*(unsigned char *)s.results.host == 0xd5, "a result came of bad draw %zu", i);
		}
		sampling_free(&s);
	}
}
