/* writeout.c - see writeout.h.
 *
 * Sleeps until the pool says that blocks are due (on any thread; posted to the loop), waits
 * GATHER_US so that a message carries many blocks, then sends until nothing is due or the bounds
 * are reached: BATCHES_MAX batches, and a quarter of the pool. After a batch that storage did not
 * answer it pauses, longer each time.
 *
 * Blocks of a preempted sequence do not wait for their turn: they are pinned before the sequence
 * releases them, and sent beside the batches that are under way. Only a caller that lacks a block
 * waits for them, for a bounded time. After it their pins are dropped and the write-out continues:
 * blocks that are taken get a new generation, which makes their write void; the others are still
 * stored. While a save that was given up is still under way, no other save begins.
 *
 * Invariant: each block that kv_pool_collect returned is in exactly one batch of the list until the
 * batch's completion, and its pin ends (or is void) by then. A batch is removed from the list on
 * the loop, or where it could not be sent; adding a batch and giving it up need the lock. */
#include "writeout.h"
#include "daemons/worker/stage.h"
#include "daemons/worker/worker.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define BATCHES_MAX 4u
#define BLOCKS_MAX 128u
#define GATHER_US 5000u
#define PAUSE_MIN_US 250000u
#define PAUSE_MAX_US 8000000u

struct writeout_batch {
	struct store_asker asker;
	struct list link;
	uint64_t begun_us, number;
	/* the preempted sequence whose blocks these are; zeros: chosen by the pool */
	struct reqid of;
	int given_up; /* its pins were dropped */
	uint32_t n;
	struct kv_due due[WRITEOUT_BATCH];
};

struct writeout {
	struct worker *w;
	struct event *timer;
	uint32_t blocks_max;
	uint64_t epoch; /* of the storage that was ready last, 0: none yet */
	uint64_t pause_us;
	_Atomic uint64_t not_before_us;

	_Atomic int posted; /* on_post was posted to the loop */
	int destroyed;

	pthread_mutex_t lock; /* the fields below */
	struct list batches;
	uint32_t n_batches, n_blocks;
};

static void go(struct writeout *wo);

/* --- waking -------------------------------------------------------------- */

static void start_timer(struct writeout *wo, uint64_t us)
{
	struct timeval tv = clock_timeval(us);
	event_add(wo->timer, &tv);
}

static void gather(struct writeout *wo)
{
	uint64_t pause = wo->not_before_us ? clock_left_us(wo->not_before_us) : 0;
	if (!event_pending(wo->timer, EV_TIMEOUT, NULL))
		start_timer(wo, pause > GATHER_US ? pause : GATHER_US);
}

static void writeout_on_timer(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	go(arg);
}

static void on_post(struct svc *s, void *arg)
{
	struct writeout *wo = arg;
	(void)s;
	wo->posted = 0;
	if (!wo->destroyed) {
		gather(wo);
		return;
	}
	pthread_mutex_destroy(&wo->lock);
	free(wo);
}

/* The pool's wake. Any thread, which may hold any lock: none is taken here. */
static void something_is_due(void *arg)
{
	struct writeout *wo = arg;
	if (!atomic_exchange(&wo->posted, 1))
		svc_post(wo->w->svc, on_post, wo);
}

/* --- one batch ----------------------------------------------------------- */

static void pause_after(struct writeout *wo, int code)
{
	if (code != ERR_TIMEOUT && code != ERR_CANCELLED) {
		wo->pause_us = wo->not_before_us = 0;
		return;
	}
	wo->pause_us = wo->pause_us ? wo->pause_us * 2 : PAUSE_MIN_US;
	if (wo->pause_us > PAUSE_MAX_US)
		wo->pause_us = PAUSE_MAX_US;
	wo->not_before_us = clock_us() + wo->pause_us;
}

/* Storage answered that it stored none of the blocks: each of its tiers is full or unavailable. */
static int took_nothing(const struct store_completion *c, uint32_t stored)
{
	for (uint32_t i = 0; i < c->n; i++)
		if (c->result[i].code != PDS__STORE_CODE__STORE_FULL &&
		    c->result[i].code != PDS__STORE_CODE__STORE_ERROR)
			return 0;
	return !stored && c->n > 0;
}

static int is_save(const struct writeout_batch *b)
{
	return b->of.hi || b->of.lo;
}

static void batch_leave(struct writeout *wo, struct writeout_batch *b)
{
	pthread_mutex_lock(&wo->lock);
	list_remove(&b->link);
	wo->n_batches--;
	wo->n_blocks -= b->n;
	pthread_mutex_unlock(&wo->lock);
}

/* Notes storage's answer for each block, then ends the pins, or makes them void if storage may
 * still read. c NULL: the batch was never sent. Returns how many blocks are stored. */
static uint32_t note_results(struct writeout *wo, struct writeout_batch *b,
                             const struct store_completion *c)
{
	struct worker *w = wo->w;
	int same_life = c && c->epoch == wo->epoch;
	uint32_t stored = 0;
	for (uint32_t i = 0; i < b->n; i++) {
		unsigned tier = c && i < c->n && c->result[i].code == PDS__STORE_CODE__STORE_OK
		                    ? c->result[i].tier
		                    : STORE_TIER_NONE;
		if (tier == STORE_TIER_MEMORY && !same_life)
			tier = STORE_TIER_NONE;
		stored += tier != STORE_TIER_NONE;
		kv_pool_set_stored(w->pool, b->due[i].block, b->due[i].generation, tier);
		if (!c || c->quiet)
			kv_pool_read_end(w->pool, b->due[i].pin);
		else
			kv_pool_void(w->pool, b->due[i].pin);
	}
	return stored;
}

static void count_written(struct writeout *wo, const struct writeout_batch *b, uint32_t stored)
{
	struct worker_stats *stats = &wo->w->stats;
	stats->written += stored;
	stats->not_written += b->n - stored;
	if (!is_save(b))
		return;
	stats->saved_blocks += stored;
	stats->unsaved_blocks += b->n - stored;
}

static void count_saved(struct writeout *wo, const struct writeout_batch *b, uint32_t stored,
                        const struct store_completion *c)
{
	stat_observe_us(&wo->w->stats.save_seconds, c->took_us);
	log_req(LOG_INFO, &b->of, "preempt_saved",
	        "blocks=%u stored=%u took_us=%llu overdue=%d text=%s", b->n, stored,
	        (unsigned long long)c->took_us, b->given_up, log_quote(c->text));
}

static void writeout_done(struct worker *w, struct store_asker *a, struct store_completion *c)
{
	struct writeout_batch *b = (struct writeout_batch *)a;
	struct writeout *wo = w->writeout;
	batch_leave(wo, b);
	uint32_t stored = note_results(wo, b, c);
	count_written(wo, b, stored);
	if (is_save(b))
		count_saved(wo, b, stored, c);
	stat_observe_us(&w->stats.write_seconds, c->took_us);
	rates_note_write(&w->rates, stored, c->took_us);
	log_at(c->code ? LOG_WARN : LOG_DEBUG, NULL, "written_out",
	       "blocks=%u stored=%u took_us=%llu text=%s", b->n, stored, (unsigned long long)c->took_us,
	       log_quote(c->code         ? c->text
	                 : stored < b->n ? c->result[0].text
	                                 : ""));
	pause_after(wo, took_nothing(c, stored) ? ERR_TIMEOUT : c->code);
	store_completion_free(&c);
	free(b);
	go(wo);
	if (w->state && w->stage->room)
		w->stage->room(w);
}

static int writeout_send(struct writeout *wo, struct writeout_batch *b)
{
	struct store_item items[WRITEOUT_BATCH];
	for (uint32_t i = 0; i < b->n; i++)
		items[i] = (struct store_item){b->due[i].hash, b->due[i].block, b->due[i].generation};
	b->asker.answered = writeout_done;
	b->begun_us = clock_us();
	pthread_mutex_lock(&wo->lock);
	list_push_back(&wo->batches, &b->link);
	wo->n_batches++;
	wo->n_blocks += b->n;
	int r = store_put(wo->w->store, items, b->n, b->begun_us + WRITEOUT_US, &b->asker, &b->number);
	pthread_mutex_unlock(&wo->lock);
	if (r == 0)
		return 0;
	batch_leave(wo, b);
	note_results(wo, b, NULL);
	count_written(wo, b, 0);
	free(b);
	return r;
}

/* How many more blocks may be sent now. */
static uint32_t may_send(struct writeout *wo)
{
	pthread_mutex_lock(&wo->lock);
	uint32_t n = wo->n_batches < BATCHES_MAX && wo->n_blocks < wo->blocks_max
	                 ? wo->blocks_max - wo->n_blocks
	                 : 0;
	pthread_mutex_unlock(&wo->lock);
	return n < WRITEOUT_BATCH ? n : WRITEOUT_BATCH;
}

/* Sends what is due, within the bounds. */
static void go(struct writeout *wo)
{
	struct worker *w = wo->w;
	if (!store_ready(w->store))
		return; /* writeout_storage_ready goes on */
	if (wo->not_before_us && clock_left_us(wo->not_before_us)) {
		gather(wo);
		return;
	}
	for (uint32_t n; (n = may_send(wo));) {
		struct writeout_batch *b = mem_zalloc(sizeof *b);
		b->n = kv_pool_collect(w->pool, n, b->due);
		if (!b->n) {
			free(b);
			return;
		}
		if (writeout_send(wo, b) < 0) {
			pause_after(wo, ERR_TIMEOUT);
			gather(wo);
			return;
		}
	}
}

/* --- for others ---------------------------------------------------------- */

void writeout_hurry(struct writeout *wo)
{
	if (wo)
		go(wo);
}

/* With the lock held. A save is not cancelled: blocks that nobody takes are still stored. */
static void batch_void(struct writeout *wo, struct writeout_batch *b)
{
	b->given_up = 1;
	for (uint32_t i = 0; i < b->n; i++)
		kv_pool_void(wo->w->pool, b->due[i].pin);
	if (!is_save(b))
		store_cancel(wo->w->store, b->number);
}

/* Gives up the batches begun before this time; returns their number of blocks. *left: 1 if there
 * are younger batches. */
static uint32_t give_up_old(struct writeout *wo, uint64_t begun_before_us, int *left)
{
	uint32_t blocks = 0, saves = 0;
	*left = 0;
	pthread_mutex_lock(&wo->lock);
	list_each(it, &wo->batches) {
		struct writeout_batch *b = list_entry(it, struct writeout_batch, link);
		if (b->given_up)
			continue;
		if (b->begun_us >= begun_before_us) {
			*left = 1;
			continue;
		}
		batch_void(wo, b);
		blocks += b->n;
		saves += is_save(b);
	}
	pthread_mutex_unlock(&wo->lock);
	if (blocks) {
		wo->w->stats.writes_void += blocks;
		wo->w->stats.saves_void += saves;
		log_warn("write_out_void", "blocks=%u why=\"the blocks are needed\"", blocks);
	}
	return blocks;
}

uint32_t writeout_give_up(struct writeout *wo, uint64_t begun_before_us)
{
	int left;
	return wo ? give_up_old(wo, begun_before_us, &left) : 0;
}

enum writeout_wait writeout_wait(struct writeout *wo, uint64_t wait_us)
{
	int left = 0;
	uint64_t now = clock_us();
	if (wo && give_up_old(wo, now > wait_us ? now - wait_us + 1 : 0, &left))
		return WRITEOUT_VOID;
	return left ? WRITEOUT_WAIT : WRITEOUT_NONE;
}

/* 1: a save was given up and is still under way. */
static int has_overdue_save(struct writeout *wo)
{
	int found = 0;
	pthread_mutex_lock(&wo->lock);
	list_each(it, &wo->batches) {
		const struct writeout_batch *b = list_entry(it, struct writeout_batch, link);
		found |= is_save(b) && b->given_up;
	}
	pthread_mutex_unlock(&wo->lock);
	return found;
}

void writeout_save(struct writeout *wo, const struct reqid *id, const uint32_t *blocks, uint32_t n)
{
	if (!wo || !store_ready(wo->w->store) || writeout_pauses(wo) || has_overdue_save(wo))
		return;
	while (n) {
		struct writeout_batch *b = mem_zalloc(sizeof *b);
		b->of = *id;
		b->n = kv_pool_collect_of(wo->w->pool, blocks, &n, WRITEOUT_BATCH, b->due);
		if (!b->n) {
			free(b);
			return;
		}
		if (writeout_send(wo, b) < 0)
			return;
	}
}

uint32_t writeout_saving(struct writeout *wo)
{
	uint32_t blocks = 0;
	if (!wo)
		return 0;
	pthread_mutex_lock(&wo->lock);
	list_each(it, &wo->batches) {
		const struct writeout_batch *b = list_entry(it, struct writeout_batch, link);
		blocks += is_save(b) && !b->given_up ? b->n : 0;
	}
	pthread_mutex_unlock(&wo->lock);
	return blocks;
}

int writeout_pauses(struct writeout *wo)
{
	uint64_t until = wo ? wo->not_before_us : 0;
	return until && clock_left_us(until);
}

/* When the oldest batch that may still be waited for began, 0: none. */
static uint64_t oldest_us(struct writeout *wo)
{
	uint64_t oldest = 0;
	pthread_mutex_lock(&wo->lock);
	list_each(it, &wo->batches) {
		const struct writeout_batch *b = list_entry(it, struct writeout_batch, link);
		if (!b->given_up && (!oldest || b->begun_us < oldest))
			oldest = b->begun_us;
	}
	pthread_mutex_unlock(&wo->lock);
	return oldest;
}

uint64_t writeout_next_us(struct writeout *wo, uint64_t wait_us)
{
	uint64_t oldest = wo ? oldest_us(wo) : 0;
	return oldest ? oldest + wait_us : 0;
}

/* What was in the memory of a former life is gone; disk and Redis outlive it. */
void writeout_storage_ready(struct writeout *wo, uint64_t epoch)
{
	if (wo->epoch && wo->epoch != epoch)
		kv_pool_forget_stored(wo->w->pool, STORE_TIER_MEMORY);
	wo->epoch = epoch;
	wo->pause_us = wo->not_before_us = 0;
	gather(wo);
}

void writeout_json(struct writeout *wo, struct buf *out)
{
	pthread_mutex_lock(&wo->lock);
	uint32_t batches = wo->n_batches, blocks = wo->n_blocks;
	pthread_mutex_unlock(&wo->lock);
	uint64_t oldest = oldest_us(wo), now = clock_us();
	buf_printf(out, ",\"writing_batches\":%u,\"writing_blocks\":%u,\"oldest_write_ms\":%llu",
	           batches, blocks,
	           (unsigned long long)(oldest && oldest < now ? (now - oldest) / 1000 : 0));
}

/* --- life ---------------------------------------------------------------- */

static void set_policy(struct writeout *wo)
{
	const struct worker_conf *c = &wo->w->conf;
	uint32_t low = 0, after = UINT32_MAX;
	if (c->kv_eviction == EVICT_OFFLOAD)
		low = (uint32_t)((uint64_t)wo->w->region.blocks * c->offload_low_percent / 100u);
	else if (c->kv_eviction == EVICT_WRITE_THROUGH)
		after = c->write_through_after;
	kv_pool_write_policy(wo->w->pool, low, after, something_is_due, wo);
}

struct writeout *writeout_new(struct worker *w)
{
	struct writeout *wo = mem_zalloc(sizeof *wo);
	wo->w = w;
	wo->blocks_max = w->region.blocks / 4 > BLOCKS_MAX ? BLOCKS_MAX
	                 : w->region.blocks / 4 > 2        ? w->region.blocks / 4
	                                                   : 2;
	pthread_mutex_init(&wo->lock, NULL);
	list_init(&wo->batches);
	wo->timer = event_new(svc_base(w->svc), -1, 0, writeout_on_timer, wo);
	set_policy(wo);
	return wo;
}

void writeout_destroy(struct writeout **wop)
{
	struct writeout *wo = *wop;
	if (!wo)
		return;
	*wop = NULL;
	kv_pool_write_policy(wo->w->pool, 0, UINT32_MAX, NULL, NULL);
	event_free(wo->timer);
	pthread_mutex_lock(&wo->lock);
	list_each_safe(it, nx, &wo->batches) {
		struct writeout_batch *b = list_entry(it, struct writeout_batch, link);
		for (uint32_t i = 0; i < b->n; i++)
			kv_pool_void(wo->w->pool, b->due[i].pin);
		free(b);
	}
	list_init(&wo->batches);
	pthread_mutex_unlock(&wo->lock);
	wo->destroyed = 1;
	if (wo->posted)
		return; /* the loop frees it */
	pthread_mutex_destroy(&wo->lock);
	free(wo);
}
