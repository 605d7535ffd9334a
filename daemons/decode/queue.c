/* queue.c - reservations that wait for room: their order, their places, and how long it may take.
 *
 * Position and estimate are O(1): a position is the sequence's number minus the number of the last
 * one that left at the head. Removal from the middle (a cancel) is O(n).
 *
 * The estimate is (blocks that all up to this one ask for - free blocks) / (blocks given back per
 * second recently); the same for sequence slots; the later of the two. It is 0, unknown, before
 * anything was given back.
 *
 * Granting has one place, on_room: whatever gives room back only calls queue_room. */
#include "decode.h"

#include <math.h>

#define RATE_MIN_US 20000u /* a shorter span has too few events */
#define RATE_TAU_US 3e6    /* older events hardly count */
#define ESTIMATE_MAX_US 600000000.0
#define RETRY_UNKNOWN_US 1000000u /* when the estimate is unknown */
#define RETRY_MIN_US 20000u
#define RETRY_MAX_US 10000000u

void queue_push(struct decode *d, struct sequence *q)
{
	struct reserve_queue *r = &d->queue;
	q->place.number = ++r->last_number;
	q->place.cumulative_blocks = r->last_cumulative_blocks += q->place.blocks;
	list_push_back(&r->waiting, &q->place.node);
}

void queue_remove(struct decode *d, struct sequence *q)
{
	struct reserve_queue *r = &d->queue;
	struct queue_place *p = &q->place;
	if (list_empty(&p->node))
		return;
	if (p->node.prev == &r->waiting) {
		r->gone_number = p->number;
		r->gone_cumulative_blocks = p->cumulative_blocks;
	} else {
		for (struct list *it = p->node.next; it != &r->waiting; it = it->next) {
			struct queue_place *behind = list_entry(it, struct queue_place, node);
			behind->number--;
			behind->cumulative_blocks -= p->blocks;
		}
		r->last_number--;
		r->last_cumulative_blocks -= p->blocks;
	}
	list_remove(&p->node);
}

uint32_t queue_position(const struct decode *d, const struct sequence *q)
{
	return (uint32_t)(q->place.number - d->queue.gone_number);
}

/* --- granting ------------------------------------------------------------ */

/* The head is never freed here: ON_ROOM grants it or leaves it where it is. */
static void on_room(evutil_socket_t fd, short what, void *arg)
{
	struct decode *d = arg;
	struct list *head = NULL;
	(void)fd;
	(void)what;
	while (!list_empty(&d->queue.waiting) && d->queue.waiting.next != head) {
		head = d->queue.waiting.next;
		sequence_step(list_entry(head, struct sequence, place.node), SEQUENCE_ON_ROOM);
	}
}

void queue_room(struct decode *d)
{
	if (!list_empty(&d->queue.waiting))
		event_add(d->queue.room, &(struct timeval){0, 0});
}

void queue_init(struct decode *d)
{
	list_init(&d->queue.waiting);
	d->queue.room = event_new(svc_base(d->w->svc), -1, 0, on_room, d);
}

void queue_fini(struct decode *d)
{
	event_free(d->queue.room);
}

/* --- rates --------------------------------------------------------------- */

static void rate_add(struct event_rate *r, uint64_t now, double us)
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

void queue_rates_begin(struct decode *d, uint64_t now_us)
{
	d->queue.blocks.last = given_back(d);
	d->queue.ends.last = d->queue.ended;
	d->queue.rated_us = now_us;
}

void queue_rates_update(struct decode *d, uint64_t now_us)
{
	uint64_t us = now_us - d->queue.rated_us;
	if (us < RATE_MIN_US)
		return;
	rate_add(&d->queue.blocks, given_back(d), (double)us);
	rate_add(&d->queue.ends, d->queue.ended, (double)us);
	d->queue.rated_us = now_us;
}

/* --- estimates ----------------------------------------------------------- */

/* Time in us until `lack` more events; HUGE_VAL: never, or the rate is unknown. */
static double wait_for(const struct event_rate *r, double lack)
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
	double slots = (double)d->w->conf.max_sequences - decode_active(d) - d->count[SEQUENCE_LEASED];
	double us = fmax(wait_for(&d->queue.blocks, (double)cumulative_blocks - room),
	                 wait_for(&d->queue.ends, position - slots));
	if (us == HUGE_VAL)
		return 0;
	return us < 1 ? 1 : (uint64_t)fmin(us, ESTIMATE_MAX_US);
}

uint64_t queue_estimate_of(struct decode *d, const struct sequence *q)
{
	return queue_estimate(d, q->place.cumulative_blocks - d->queue.gone_cumulative_blocks,
	                      queue_position(d, q));
}

uint64_t queue_retry_after(struct decode *d)
{
	uint64_t us = queue_estimate(d,
	                             d->queue.last_cumulative_blocks - d->queue.gone_cumulative_blocks,
	                             (uint32_t)(d->queue.last_number - d->queue.gone_number) + 1);
	if (!us)
		return RETRY_UNKNOWN_US;
	return us < RETRY_MIN_US ? RETRY_MIN_US : us > RETRY_MAX_US ? RETRY_MAX_US : us;
}
