/* restore.c - blocks that are read back from storage instead of being computed again. On the
 * schedule thread, except `answered`.
 *
 * A run that has just got its blocks and lacks the contents of full ones asks storage what it has
 * (a look-up), reads as much of that as is faster to read than to compute, piece by piece, and
 * computes the rest; meanwhile it takes part in no step. What has arrived and was verified by
 * storage is published (I2).
 *
 * A read is a remote write into the run's blocks: its completion is the fence (store.h). A read is
 * given up when its sequence ends or is preempted, or when storage does not answer within
 * `restore_wait_ms`; the restore keeps the blocks until storage has ended, and the sequence goes on
 * without them. Storage reads for one run at a time, a limited piece at once, and for nobody while
 * an abandoned read is not fenced: a storage daemon that is stopped takes one piece from the pool
 * and no more. That leaves room for each sequence to come to its end, or, if a sequence may fill
 * the whole pool, to go on for long. */
#include "batch.h"
#include "util/least.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES (64u << 20) /* of one read; and a quarter of the pool at most */
/* within this time a storage daemon that runs acknowledges the fence of a late read */
#define FENCE_GRACE_US 200000u
/* pause after a look-up that storage did not answer */
#define SILENT_US 1000000u

enum restore_stage { RESTORE_LOOKUP, RESTORE_TURN, RESTORE_READ };

struct restore {
	struct store_asker asker; /* first */
	struct batcher *b;
	struct list node;           /* of batcher_own.restores */
	struct list answer;         /* of batcher_locked.answers */
	struct store_completion *c; /* with it */
	struct run *r;              /* NULL: abandoned */
	struct reqid id;
	enum restore_stage stage; /* TURN: waits until storage reads for no other run */
	uint64_t batch, begun_us, until_us;
	unsigned expected; /* the slowest tier that is to give blocks */
	uint32_t first, n; /* READ: the run's blocks that storage writes */
	uint32_t end;      /* the run's blocks up to here are to be read */
	uint32_t got;      /* blocks that came so far */
	uint32_t *blocks;  /* abandoned: the n blocks, held until storage has ended */
};

/* How one that was preempted got its contents back: counted if it was. */
static void count_outcome(const struct run *r, _Atomic uint64_t *outcome)
{
	*outcome += r->back_us != 0;
}

/* On the loop. */
static void answered(struct worker *w, struct store_asker *a, struct store_completion *c)
{
	struct restore *x = (struct restore *)a;
	struct batcher_locked *l = &x->b->locked;
	(void)w;
	pthread_mutex_lock(&l->lock);
	x->c = c;
	list_push_back(&l->answers, &x->answer);
	pthread_cond_signal(&l->wake);
	pthread_mutex_unlock(&l->lock);
}

static void restore_free(struct restore *x)
{
	list_remove(&x->node);
	store_completion_free(&x->c);
	free(x->blocks);
	free(x);
}

/* The run goes on with what has arrived; it computes the rest. */
static void restore_finish(struct batcher *b, struct restore *x)
{
	struct run *r = x->r;
	struct worker_stats *stats = &b->w->stats;
	count_outcome(r, x->got ? &stats->restores_read : &stats->restores_computed);
	log_req(LOG_INFO, &r->req.id, "restored",
	        "attempt=%u tokens=%u read_blocks=%u computed=%u took_us=%llu", r->req.attempt,
	        r->req.n_tokens, x->got, r->computed, (unsigned long long)(clock_us() - x->begun_us));
	r->restore = NULL;
	run_enter(b, r, RUN_RUNNING);
	restore_free(x);
}

/* --- asking -------------------------------------------------------------- */

static int may_ask_storage(const struct batcher *b)
{
	const struct store *st = b->w->store;
	return st && store_ready(st) && b->w->rates.mode != RATES_NEVER && !b->own.fenced &&
	       clock_us() >= b->own.no_storage_until_us;
}

void restore_begin(struct batcher *b, struct run *r, uint32_t end, int may_read)
{
	uint32_t have = r->blocks.published, n = end > have ? end - have : 0;
	if (!n || !may_read || !may_ask_storage(b)) {
		count_outcome(r, n ? &b->w->stats.restores_computed : &b->w->stats.restores_kept);
		return;
	}
	struct restore *x = mem_zalloc(sizeof *x);
	list_init(&x->answer);
	x->asker.answered = answered;
	x->b = b;
	x->r = r;
	x->id = r->req.id;
	x->begun_us = clock_us();
	list_push_back(&b->own.restores, &x->node);
	r->restore = x;
	run_enter(b, r, RUN_RESTORING);
	b->shared.at_storage++;
	if (store_lookup(b->w->store, r->blocks.hash + have, (uint32_t)least(n, STORE_ITEMS_MAX), 0,
	                 x->begun_us + b->config.restore_wait_us / 4, &x->asker, &x->batch) < 0) {
		b->shared.at_storage--;
		restore_finish(b, x);
	}
}

/* Blocks that the largest of these runs needs until its end, or until it has grown by `reach`
 * blocks from now. */
static uint32_t most_needed(const struct batcher *b, const struct list *l, uint32_t reach)
{
	uint64_t needed = 0;
	list_each(it, l) {
		const struct request_copy *req = &list_entry(it, struct run, node)->req;
		uint64_t tokens = least((uint64_t)req->prompt_tokens + req->max_tokens, req->limit_tokens);
		uint64_t now = worker_blocks_for(b->w, req->n_tokens);
		needed = most(needed, least(worker_blocks_for(b->w, (uint32_t)tokens), now + reach));
	}
	return (uint32_t)needed;
}

static uint32_t spare_blocks(const struct batcher *b, uint32_t reach)
{
	uint32_t blocks = b->w->region.blocks;
	uint64_t needed = most(most_needed(b, &b->own.running, reach),
	                       most_needed(b, &b->own.waiting, reach));
	return blocks > needed ? blocks - (uint32_t)needed : 0;
}

/* How many blocks storage may write at once. If storage stops and keeps them, there is still room
 * for each run to come to its end; for one that may fill the whole pool, to go on for long. */
static uint32_t piece_blocks(const struct batcher *b)
{
	uint32_t blocks = b->w->region.blocks, quarter = blocks / 4;
	uint64_t to_the_end = spare_blocks(b, UINT32_MAX),
			 soon = least(spare_blocks(b, quarter), blocks / 16);
	uint64_t n = most(1, least(PIECE_BYTES / b->w->info->kv.block_bytes, STORE_ITEMS_MAX));
	return (uint32_t)least(least(n, quarter), most(to_the_end, soon));
}

static int read_piece(struct batcher *b, struct restore *x)
{
	struct run *r = x->r;
	struct worker *w = b->w;
	uint32_t left = x->end - r->blocks.published;
	x->first = r->blocks.published;
	x->n = (uint32_t)least(left, piece_blocks(b));
	if (!x->n)
		return 0;
	struct store_item *items = mem_array(x->n, sizeof *items);
	for (uint32_t i = 0; i < x->n; i++) {
		uint32_t block = r->blocks.block[x->first + i];
		items[i] = (struct store_item){r->blocks.hash[x->first + i], block,
		                               atomic_load(&w->region.generations[block])};
	}
	uint64_t limit = clock_us() + b->config.restore_wait_us;
	x->until_us = limit + FENCE_GRACE_US;
	b->shared.at_storage++;
	int e = store_get(w->store, items, x->n, limit, &x->asker, &x->batch);
	free(items);
	if (e < 0) {
		b->shared.at_storage--;
		return 0;
	}
	x->stage = RESTORE_READ;
	b->own.reading = x;
	return 1;
}

/* The next one reads; none does while an abandoned read may still write. */
static void next_read(struct batcher *b)
{
	list_each_safe(it, nx, &b->own.restores) {
		struct restore *x = list_entry(it, struct restore, node);
		if (b->own.reading)
			return;
		if (x->stage == RESTORE_TURN && (b->own.fenced || !read_piece(b, x)))
			restore_finish(b, x);
	}
}

/* --- giving up ----------------------------------------------------------- */

static void set_fence(struct batcher *b, uint32_t *blocks, uint32_t n)
{
	pthread_mutex_lock(&b->locked.lock);
	b->locked.fence_blocks = blocks;
	b->locked.n_fence_blocks = n;
	pthread_mutex_unlock(&b->locked.lock);
}

int restore_fences(struct batcher *b, uint32_t block)
{
	int found = 0;
	pthread_mutex_lock(&b->locked.lock);
	for (uint32_t i = 0; i < b->locked.n_fence_blocks; i++)
		found |= b->locked.fence_blocks[i] == block;
	pthread_mutex_unlock(&b->locked.lock);
	return found;
}

/* The blocks that storage may write stay with the restore; those after them are empty yet. */
static void keep_target(struct batcher *b, struct restore *x)
{
	struct run *r = x->r;
	x->blocks = mem_array(x->n, sizeof *x->blocks);
	memcpy(x->blocks, r->blocks.block + x->first, x->n * sizeof *x->blocks);
	kv_pool_release(b->w->pool, r->blocks.block + x->first + x->n, r->blocks.n - x->first - x->n);
	r->blocks.n = x->first;
	x->until_us = clock_us() + b->config.wait_us;
	b->own.reading = NULL;
	b->own.fenced++;
	set_fence(b, x->blocks, x->n);
	b->w->stats.restores_abandoned++;
	log_req(LOG_INFO, &x->id, "restore_abandoned", "blocks=%u took_us=%llu", x->n,
	        (unsigned long long)(clock_us() - x->begun_us));
}

void restore_leave(struct batcher *b, struct run *r)
{
	struct restore *x = r->restore;
	if (x->stage == RESTORE_READ)
		keep_target(b, x);
	r->restore = NULL;
	x->r = NULL;
	if (x->stage == RESTORE_TURN)
		restore_free(x);
	else
		store_cancel(b->w->store, x->batch);
}

int restore_is_fenced_soon(const struct batcher *b)
{
	uint64_t now = clock_us();
	list_each(it, &b->own.restores) {
		const struct restore *x = list_entry(it, struct restore, node);
		if (x->blocks && now < x->until_us)
			return 1;
	}
	return 0;
}

uint64_t restore_wake_us(const struct batcher *b)
{
	uint64_t next = 0;
	list_each(it, &b->own.restores) {
		const struct restore *x = list_entry(it, struct restore, node);
		if (x->stage == RESTORE_READ && (x->r || b->own.lacking) && (!next || x->until_us < next))
			next = x->until_us;
	}
	return next;
}

/* --- answers ------------------------------------------------------------- */

static void restore_looked_up(struct batcher *b, struct restore *x)
{
	const struct store_completion *c = x->c;
	uint32_t n = c->code == 0 && c->leading
	                 ? rates_worth_reading(&b->w->rates, c->tiers, c->leading)
	                 : 0;
	if (c->code == ERR_TIMEOUT)
		b->own.no_storage_until_us = clock_us() + SILENT_US;
	for (uint32_t i = 0; i < n; i++)
		x->expected = c->tiers[i] > x->expected ? c->tiers[i] : x->expected;
	store_completion_free(&x->c);
	if (!n) {
		restore_finish(b, x);
		return;
	}
	x->end = x->r->blocks.published + n;
	x->stage = RESTORE_TURN;
}

static void arrived(struct batcher *b, struct restore *x)
{
	struct run *r = x->r;
	uint32_t got = (uint32_t)least(x->c->leading, x->n), bt = b->w->info->kv.block_tokens;
	for (uint32_t i = 0; i < got; i++)
		seq_blocks_publish_read(&r->blocks, b->w, x->c->result[i].tier);
	r->computed = r->blocks.published * bt;
	rates_note_got(&b->w->rates, x->c, x->expected);
	x->got += got;
	if (r->back_us) {
		b->w->stats.restored_blocks += got;
	} else {
		r->cached_tokens += got * bt;
		b->w->stats.stored_tokens += got * bt;
	}
	store_completion_free(&x->c);
	b->own.reading = NULL;
	if (got == x->n && r->blocks.published < x->end)
		x->stage = RESTORE_TURN;
	else
		restore_finish(b, x);
}

static void ended(struct batcher *b, struct restore *x)
{
	if (x->blocks) {
		set_fence(b, NULL, 0);
		kv_pool_release(b->w->pool, x->blocks, x->n);
		b->own.fenced--;
		log_req(LOG_INFO, &x->id, "restore_fenced", "blocks=%u", x->n);
	}
	restore_free(x);
	svc_post(b->w->svc, b->room, b);
}

static void deal(struct batcher *b, struct restore *x)
{
	if (!x->r) {
		ended(b, x);
		return;
	}
	b->shared.at_storage--;
	if (x->stage == RESTORE_LOOKUP)
		restore_looked_up(b, x);
	else
		arrived(b, x);
}

static void give_up_late(struct batcher *b)
{
	struct restore *x = b->own.reading;
	if (!x || clock_us() < x->until_us)
		return;
	struct run *r = x->r;
	log_req(LOG_WARN, &x->id, "restore_late", "attempt=%u blocks=%u limit_us=%llu", r->req.attempt,
	        x->n, (unsigned long long)b->config.restore_wait_us);
	rates_note_read(&b->w->rates, x->expected, 0, b->config.restore_wait_us);
	r->late = 1;
	preempt_wait_again(b, r);
}

void restore_progress(struct batcher *b)
{
	for (;;) {
		pthread_mutex_lock(&b->locked.lock);
		struct restore *x = list_empty(&b->locked.answers)
		                        ? NULL
		                        : list_entry(b->locked.answers.next, struct restore, answer);
		if (x)
			list_remove(&x->answer);
		pthread_mutex_unlock(&b->locked.lock);
		if (!x)
			break;
		deal(b, x);
	}
	give_up_late(b);
	next_read(b);
}

/* The schedule thread has ended. */
void restore_fini(struct batcher *b)
{
	list_each_safe(it, nx, &b->own.restores) {
		struct restore *x = list_entry(it, struct restore, node);
		if (x->blocks)
			kv_pool_release(b->w->pool, x->blocks, x->n);
		restore_free(x);
	}
}
