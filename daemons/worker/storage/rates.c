/* rates.c - see rates.h. Arithmetic under one lock; nothing fails. Where the points do not
 * determine a line (all reads have one size) it goes through the origin. Neither the begin nor the
 * slope is ever negative. */
#include "rates.h"
#include "util/clock.h"

#include <string.h>

#define KEEP 0.9 /* a point's weight after the next one */

void rates_init(struct rates *r, enum rates_mode mode, uint32_t block_tokens, uint64_t block_bytes)
{
	memset(r, 0, sizeof *r);
	pthread_mutex_init(&r->lock, NULL);
	r->mode = mode;
	r->block_tokens = block_tokens;
	r->block_bytes = block_bytes;
	r->retry_us = RATES_RETRY_US;
}

void rates_fini(struct rates *r)
{
	pthread_mutex_destroy(&r->lock);
}

static void line_add(struct rates_line *l, double x, double y)
{
	l->weight = l->weight * KEEP + 1;
	l->x = l->x * KEEP + x;
	l->y = l->y * KEEP + y;
	l->xx = l->xx * KEEP + x * x;
	l->xy = l->xy * KEEP + x * y;
}

/* Fits y = *begin + x * *slope. Returns 0 if there are no points. */
static int line_fit(const struct rates_line *l, double *begin, double *slope)
{
	*begin = *slope = 0;
	if (l->weight <= 0)
		return 0;
	double spread = l->xx * l->weight - l->x * l->x;
	if (spread > l->xx * l->weight * 0.01) {
		*slope = (l->xy * l->weight - l->x * l->y) / spread;
		*begin = (l->y - *slope * l->x) / l->weight;
	}
	if (*slope <= 0 || *begin < 0) {
		/* one size only, or noise: attribute all time to the bytes */
		*begin = l->x > 0 ? 0 : l->y / l->weight;
		*slope = l->x > 0 ? l->y / l->x : 0;
	}
	return 1;
}

/* --- measurements -------------------------------------------------------- */

void rates_note_read(struct rates *r, unsigned tier, uint64_t bytes, uint64_t us)
{
	if (tier == STORE_TIER_NONE || tier >= STORE_TIERS)
		return;
	pthread_mutex_lock(&r->lock);
	line_add(&r->read[tier], (double)bytes, (double)us);
	r->noted_us[tier] = clock_us();
	pthread_mutex_unlock(&r->lock);
}

/* In a mixed read the slowest tier is charged what is left of the time after the estimates of the
 * others. */
void rates_note_blocks(struct rates *r, const uint32_t blocks[STORE_TIERS], unsigned expected,
                       uint64_t us)
{
	double left = (double)us;
	unsigned slowest = STORE_TIERS - 1;
	while (slowest > STORE_TIER_NONE && !blocks[slowest])
		slowest--;
	pthread_mutex_lock(&r->lock);
	for (unsigned t = STORE_TIER_MEMORY; t < slowest; t++) {
		double begin, slope;
		line_fit(&r->read[t], &begin, &slope);
		left -= blocks[t] ? begin + slope * (double)(blocks[t] * r->block_bytes) : 0;
	}
	pthread_mutex_unlock(&r->lock);
	rates_note_read(r, slowest ? slowest : expected,
	                blocks[slowest] * (slowest ? r->block_bytes : 0),
	                left > 0 ? (uint64_t)left : 0);
}

void rates_note_got(struct rates *r, const struct store_completion *c, unsigned expected)
{
	uint32_t blocks[STORE_TIERS] = {0};
	for (uint32_t i = 0; i < c->n; i++)
		blocks[c->result[i].tier] += c->result[i].code == PDS__STORE_CODE__STORE_OK;
	rates_note_blocks(r, blocks, expected, c->took_us);
}

void rates_note_write(struct rates *r, uint32_t blocks, uint64_t us)
{
	pthread_mutex_lock(&r->lock);
	line_add(&r->write, (double)(blocks * r->block_bytes), (double)us);
	pthread_mutex_unlock(&r->lock);
}

void rates_note_compute(struct rates *r, uint64_t tokens, uint64_t us)
{
	if (!tokens)
		return;
	pthread_mutex_lock(&r->lock);
	line_add(&r->compute, (double)tokens, (double)us);
	pthread_mutex_unlock(&r->lock);
}

/* --- the rule ------------------------------------------------------------ */

/* us to compute one block; 0: not known. The fixed cost of a step is not counted: most steps are
 * taken in any case. */
static double compute_block_us(const struct rates *r)
{
	const struct rates_line *l = &r->compute;
	return l->x > 0 ? l->y / l->x * r->block_tokens : 0;
}

/* 1: a read from this tier may be tried although it is expected to be slower: rates change. */
static int retry_due(struct rates *r, unsigned tier, uint64_t now_us)
{
	if (now_us - r->noted_us[tier] < r->retry_us)
		return 0;
	r->noted_us[tier] = now_us;
	return 1;
}

static unsigned tier_of(const unsigned char *tiers, uint32_t i)
{
	return tiers[i] == STORE_TIER_NONE || tiers[i] >= STORE_TIERS ? STORE_TIER_MEMORY : tiers[i];
}

static uint32_t rate_worth(struct rates *r, const unsigned char *tiers, uint32_t n)
{
	double compute_us = compute_block_us(r), gain = 0, best = 0;
	uint32_t count = 0;
	unsigned begun = 0;
	if (compute_us <= 0)
		return n;
	for (uint32_t i = 0; i < n; i++) {
		unsigned tier = tier_of(tiers, i);
		double begin, slope;
		int known = line_fit(&r->read[tier], &begin, &slope);
		gain += known
		            ? compute_us - slope * (double)r->block_bytes - (begun & 1u << tier ? 0 : begin)
		            : compute_us;
		begun |= 1u << tier;
		if (gain > best || !known) {
			best = gain > best ? gain : best;
			count = i + 1;
		}
	}
	return count < n && retry_due(r, tier_of(tiers, count), clock_us()) ? n : count;
}

uint32_t rates_worth_reading(struct rates *r, const unsigned char *tiers, uint32_t n_blocks)
{
	pthread_mutex_lock(&r->lock);
	uint32_t n = r->mode == RATES_NEVER    ? 0
	             : r->mode == RATES_ALWAYS ? n_blocks
	                                       : rate_worth(r, tiers, n_blocks);
	r->chosen_read += n;
	r->chosen_compute += n_blocks - n;
	pthread_mutex_unlock(&r->lock);
	return n;
}

void rates_brought_up(struct rates *r, unsigned char *tiers, uint32_t n_blocks, uint64_t elapsed_us)
{
	double took[STORE_TIERS] = {0};
	pthread_mutex_lock(&r->lock);
	for (uint32_t i = 0; i < n_blocks; i++) {
		unsigned tier = tier_of(tiers, i);
		double begin, slope;
		if (tier == STORE_TIER_MEMORY || !line_fit(&r->read[tier], &begin, &slope))
			continue;
		took[tier] += (took[tier] > 0 ? 0 : begin) + slope * (double)r->block_bytes;
		if (took[tier] <= (double)elapsed_us)
			tiers[i] = STORE_TIER_MEMORY;
	}
	pthread_mutex_unlock(&r->lock);
}

/* --- for pdctl ----------------------------------------------------------- */

static uint32_t break_even(const struct rates *r, double begin, double slope)
{
	double gain = compute_block_us(r) - slope * (double)r->block_bytes;
	if (gain <= 0)
		return UINT32_MAX;
	double blocks = begin / gain;
	return blocks >= 1e6 ? UINT32_MAX : (uint32_t)blocks + 1;
}

void rates_view(struct rates *r, struct rates_view *ret)
{
	memset(ret, 0, sizeof *ret);
	pthread_mutex_lock(&r->lock);
	double us = compute_block_us(r);
	ret->compute_tokens_us = us > 0 ? r->block_tokens / us : 0;
	for (unsigned t = STORE_TIER_MEMORY; t < STORE_TIERS; t++) {
		double begin, slope;
		if (!line_fit(&r->read[t], &begin, &slope))
			continue;
		ret->read_begin_us[t] = begin;
		ret->read_bytes_us[t] = slope > 0 ? 1 / slope : 0;
		ret->read_tokens_us[t] = ret->read_bytes_us[t] * r->block_tokens / (double)r->block_bytes;
		ret->break_even_blocks[t] = us > 0 ? break_even(r, begin, slope) : 0;
	}
	ret->write_bytes_us = r->write.y > 0 ? r->write.x / r->write.y : 0;
	ret->chosen_read = r->chosen_read;
	ret->chosen_compute = r->chosen_compute;
	pthread_mutex_unlock(&r->lock);
}
