/* queue.c - reservations that wait for room: their order, their places, and how long it may take.
 *
 * Places are numbers, so that a question for a place or an estimate costs nothing, however long the
 * queue is: a sequence's place is its own number less that of the last one that left at the head.
 * Only one that leaves from the middle (a cancel) costs a step for each behind it.
 *
 * The estimate is (blocks that all up to this one ask for, less those that are there) / (blocks
 * given back per second of late); the same for sequence slots; the later of the two. Before
 * anything was given back it is not known, and 0. */
#include "decode.h"

#include <math.h>

#define RATE_MIN_US 20000u /* shorter spans are too few events */
#define RATE_TAU_US 3e6    /* what is older than this hardly counts */
#define ESTIMATE_MAX_US 600000000.0
#define RETRY_UNKNOWN_US 1000000u /* nothing is known: a while */
#define RETRY_MIN_US 20000u
#define RETRY_MAX_US 10000000u

void queue_push(struct decode *d, struct sequence *q)
{
	q->place = ++d->last_place;
	q->cumulative_blocks = d->last_cumulative_blocks += q->asks;
	list_push_back(&d->queued, &q->queue);
}

void queue_remove(struct decode *d, struct sequence *q)
{
	if (list_empty(&q->queue))
		return;
	if (q->queue.prev == &d->queued) {
		d->gone_place = q->place;
		d->gone_cumulative_blocks = q->cumulative_blocks;
	} else {
		for (struct list *it = q->queue.next; it != &d->queued; it = it->next) {
			struct sequence *behind = list_entry(it, struct sequence, queue);
			behind->place--;
			behind->cumulative_blocks -= q->asks;
		}
		d->last_place--;
		d->last_cumulative_blocks -= q->asks;
	}
	list_remove(&q->queue);
}

uint32_t queue_position(const struct decode *d, const struct sequence *q)
{
	return (uint32_t)(q->place - d->gone_place);
}

/* --- rates --------------------------------------------------------------- */

static void rate_add(struct rate *r, uint64_t now, double us)
{
	double keep = exp(-us / RATE_TAU_US);
	r->sum = r->sum * keep + (double)(now - r->last) / us * (1 - keep);
	r->weight = r->weight * keep + (1 - keep);
	r->last = now;
}

static uint64_t given_back(struct decode *d)
{
	struct kv_stats ks;
	kv_pool_stats(d->w->pool, &ks);
	return ks.given_back;
}

void rates_begin(struct decode *d, uint64_t now_us)
{
	d->blocks.last = given_back(d);
	d->ends.last = d->ended;
	d->rated_us = now_us;
}

void rates_update(struct decode *d, uint64_t now_us)
{
	uint64_t us = now_us - d->rated_us;
	if (us < RATE_MIN_US)
		return;
	rate_add(&d->blocks, given_back(d), (double)us);
	rate_add(&d->ends, d->ended, (double)us);
	d->rated_us = now_us;
}

/* --- estimates ----------------------------------------------------------- */

/* How long until `lack` more are there; HUGE_VAL when the rate says never, or is not known. */
static double wait_for(const struct rate *r, double lack)
{
	if (lack <= 0)
		return 0;
	return r->weight > 0 && r->sum > 0 ? lack / (r->sum / r->weight) : HUGE_VAL;
}

uint64_t queue_estimate(struct decode *d, uint64_t cumulative_blocks, uint32_t position)
{
	struct kv_stats ks;
	kv_pool_stats(d->w->pool, &ks);
	double room = (double)ks.by_state[KV_FREE] + ks.evictable - (double)lease_growth(d);
	double slots = (double)d->w->max_sequences - d->active - d->count[SEQUENCE_LEASED];
	double us = fmax(wait_for(&d->blocks, (double)cumulative_blocks - room),
	                 wait_for(&d->ends, position - slots));
	if (us == HUGE_VAL)
		return 0;
	return us < 1 ? 1 : (uint64_t)fmin(us, ESTIMATE_MAX_US);
}

uint64_t queue_estimate_of(struct decode *d, const struct sequence *q)
{
	return queue_estimate(d, q->cumulative_blocks - d->gone_cumulative_blocks,
	                      queue_position(d, q));
}

uint64_t queue_retry_after(struct decode *d)
{
	uint64_t us = queue_estimate(d, d->last_cumulative_blocks - d->gone_cumulative_blocks,
	                             (uint32_t)(d->last_place - d->gone_place) + 1);
	if (!us)
		return RETRY_UNKNOWN_US;
	return us < RETRY_MIN_US ? RETRY_MIN_US : us > RETRY_MAX_US ? RETRY_MAX_US : us;
}
