/* cost.c - see spec.h: is a drafted row worth what it costs?
 *
 * A step reads all weights whether it has one row or eight, so that further rows are cheap until
 * the device has to compute more than it has to read. Where that is depends on the machine.
 * SmolLM2-135M, Q4_1, AVX-512 VNNI, 300 tokens of context; time of a step by its rows, in multiples
 * of a step of one row:
 *     rows                   2     3     4     5     8     9     12    16    32
 *     one core    (4.8 ms)   1.35  1.7   2.1   3.0   4.0   5.5   5.7   7.3   15.5
 *     two cores   (4.2 ms)   1.1   1.25  1.45  2.05  2.7   3.6   3.8   4.7   9.8
 * (two cores read hardly faster than one, but compute twice as fast.) So on one core four rows that
 * are all right bring 1.9 times the tokens and sixteen 2.2 times, on two cores 2.8 and 3.4 times;
 * the fifth and the ninth row cost as much as three others; and four sequences of one row each have
 * used up nearly all that one core has to gain. On an accelerator dozens of rows cost as much as
 * one. Hence a table of measured times instead of a rule.
 *
 * One bad moment of the machine must not count for long: an entry is used from its second note on,
 * of its first few notes the smallest counts, and an entry without notes for long is forgotten, so
 * that it is measured again. */
#include "spec.h"
#include "util/least.h"

#include <math.h>
#include <stddef.h>

#define FORGET 256u /* notes */
#define BELIEVED 2u /* notes from which on an entry is used */
#define SETTLED 4u  /* notes, from which on an entry follows them slowly */
/* part of a deviation that moves all entries: most of it, because entries of rare sizes must not
 * fall behind */
#define COMMON 0.15
#define OWN 0.05    /* part of it that moves the entry of its size */
#define OUTLIER 4.0 /* largest deviation that is counted, as a factor */
/* without measurements: cost of each further row, in costs of the first one */
#define GUESS 0.15
#define WORTH 1.03 /* less gain is noise */
#define TINY 0.005 /* gain of a row that is not worth it on any machine */

static int known(const struct spec_cost *c, uint32_t rows)
{
	return c->times[rows] >= BELIEVED && c->notes - c->when[rows] < FORGET;
}

static double guess(uint32_t rows)
{
	return 1 + GUESS * (rows - 1);
}

static void follow(struct spec_cost *c, uint32_t rows, double us)
{
	double off = us / c->us[rows];
	off = off > OUTLIER ? OUTLIER : off < 1 / OUTLIER ? 1 / OUTLIER : off;
	for (uint32_t r = 1; r <= SPEC_COST_ROWS; r++)
		c->us[r] *= 1 + COMMON * (off - 1);
	c->us[rows] *= 1 + OWN * (off - 1);
}

void spec_cost_note(struct spec_cost *c, uint32_t rows, uint64_t us)
{
	if (!rows || rows > SPEC_COST_ROWS || !us)
		return;
	if (c->notes - c->when[rows] >= FORGET)
		c->times[rows] = 0;
	if (c->times[rows] >= SETTLED)
		follow(c, rows, (double)us);
	else if (!c->times[rows] || (double)us < c->us[rows])
		c->us[rows] = (double)us;
	c->times[rows] += c->times[rows] < SETTLED;
	c->when[rows] = ++c->notes;
}

/* The nearest known entry from `rows` on in this direction, 0: none. */
static uint32_t neighbour(const struct spec_cost *c, uint32_t rows, int step)
{
	for (uint32_t r = rows; r >= 1 && r <= SPEC_COST_ROWS; r += (uint32_t)step)
		if (known(c, r))
			return r;
	return 0;
}

static double beyond(const struct spec_cost *c, uint32_t from, uint32_t rows)
{
	uint32_t low = neighbour(c, 1, 1);
	if (low == from || c->us[from] <= c->us[low])
		return c->us[from] * guess(rows) / guess(from);
	return c->us[from] + (c->us[from] - c->us[low]) / (from - low) * (rows - from);
}

double spec_cost_of(const struct spec_cost *c, uint32_t rows)
{
	if (rows > SPEC_COST_ROWS)
		return spec_cost_of(c, SPEC_COST_ROWS) * rows / SPEC_COST_ROWS;
	uint32_t a = neighbour(c, rows, -1), b = neighbour(c, rows, 1);
	if (!a && !b)
		return guess(rows);
	if (!b)
		return beyond(c, a, rows);
	if (!a)
		return c->us[b] * guess(rows) / guess(b);
	return a == b ? c->us[a] : c->us[a] + (c->us[b] - c->us[a]) * (rows - a) / (b - a);
}

/* --- sharing ------------------------------------------------------------- */

uint32_t spec_spare(uint32_t max_batched, uint32_t chunk_tokens, uint32_t decode, uint32_t prompt,
                    uint32_t *ret_chunk)
{
	uint32_t room = max_batched > decode ? max_batched - decode : 0;
	*ret_chunk = least(least(prompt, decode ? chunk_tokens : max_batched), room);
	return least(room - *ret_chunk, WORKER_DRAFT_ROWS);
}

static void expect_next(struct spec_want *w)
{
	double miss = w->miss / (w->match + w->rows);
	w->right *= miss < 1 ? 1 - miss : 0;
	w->gain = log1p(w->right / w->tokens);
}

/* The want whose next row gains most; NULL: none gains anything. A want's gain falls with each row,
 * so that equal ones get equally many. */
static struct spec_want *next_row(struct spec_want *want, uint32_t n)
{
	struct spec_want *best = NULL;
	double most = TINY;
	for (uint32_t i = 0; i < n; i++)
		if (want[i].rows < want[i].most && want[i].gain > most) {
			best = &want[i];
			most = want[i].gain;
		}
	return best;
}

uint32_t spec_share(const struct spec_cost *c, uint32_t decode, uint32_t chunk, uint32_t budget,
                    struct spec_want *want, uint32_t n)
{
	struct spec_want *order[WORKER_DRAFT_ROWS], *w;
	uint32_t base = decode + chunk, waiting = decode + (chunk != 0), given = 0, keep = 0;
	double plain = n ? spec_cost_of(c, base) : 1, gain = 0, best = waiting * log(WORTH);
	for (uint32_t i = 0; i < n; i++) {
		want[i].rows = 0;
		want[i].right = want[i].tokens = 1;
		expect_next(&want[i]);
	}
	while (given < budget && given < WORKER_DRAFT_ROWS && (w = next_row(want, n))) {
		gain += w->gain;
		w->tokens += w->right;
		w->rows++;
		expect_next(w);
		order[given++] = w;
		double all = gain - waiting * log(spec_cost_of(c, base + given) / plain);
		if (all > best) {
			best = all;
			keep = given;
		}
	}
	while (given > keep)
		order[--given]->rows--;
	return keep;
}
