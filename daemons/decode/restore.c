/* restore.c - blocks of a sequence that are read back from storage instead of being computed again.
 * On the schedule thread, but `answered`.
 *
 * A sequence that has just got its blocks and lacks the contents of full ones asks storage what it
 * has (a look-up), reads as much of that as is faster than to compute it, piece by piece, and
 * computes the rest; meanwhile it runs in no step. What has arrived and was verified by storage is
 * published (I2).
 *
 * A read is a remote write into the sequence's blocks: its completion is the fence (store.h). One
 * that is given up, because the sequence ends, gives way, or storage does not answer within
 * `restore_wait_ms`, keeps its blocks until then; the sequence goes on without them. Storage reads
 * for one sequence at a time and a limited piece at once, and for nobody while a read that was
 * given up is not fenced: a storage that is stopped takes one piece from the pool and no more,
 * and leaves room for each sequence to come to its end, or, if it may fill the whole pool, to go
 * on for long. */
#include "decode.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES (64u << 20) /* of one read; and a quarter of the pool at most */
/* a storage that lives acknowledges the fence of a late read in this time */
#define FENCE_GRACE_US 200000u
/* a storage that has not answered is not asked for so long */
#define SILENT_US 1000000u

enum restore_what { RESTORE_LOOKUP, RESTORE_TURN, RESTORE_READ };

struct restore {
	struct store_asker asker;   /* first */
	struct list node;           /* of decode.restores */
	struct list answer;         /* of decode.answers, under the lock */
	struct store_completion *c; /* with it */
	struct sequence *q;         /* NULL: given up */
	struct reqid id;
	enum restore_what what; /* TURN: waits until storage reads for nobody else */
	uint64_t batch, begun_us, until_us;
	unsigned expected; /* the slowest tier that is to give some */
	uint32_t first, n; /* READ: the sequence's blocks that storage writes */
	uint32_t end;      /* its blocks up to here are to be read */
	uint32_t got;      /* blocks that came so far */
	uint32_t *blocks;  /* given up: the n blocks, held until storage has ended */
};

static void count(struct decode *d, enum worker_stat i, uint64_t n)
{
	stat_add(svc_stats(d->w->svc), i, n);
}

static void outcome(struct decode *d, const struct sequence *q, enum worker_stat i)
{
	if (q->preemptions)
		count(d, i, 1);
}

/* On the loop. */
static void answered(struct worker *w, struct store_asker *a, struct store_completion *c)
{
	struct decode *d = decode_of(w);
	struct restore *r = (struct restore *)a;
	pthread_mutex_lock(&d->lock);
	r->c = c;
	list_push_back(&d->answers, &r->answer);
	pthread_cond_signal(&d->wake);
	pthread_mutex_unlock(&d->lock);
}

static void drop(struct restore *r)
{
	list_remove(&r->node);
	store_completion_free(&r->c);
	free(r->blocks);
	free(r);
}

/* The sequence goes on with what has come; it computes the rest in its place. */
static void finish(struct decode *d, struct restore *r)
{
	struct sequence *q = r->q;
	outcome(d, q, r->got ? WS_RESTORES_READ : WS_RESTORES_COMPUTED);
	log_req(LOG_INFO, &q->req.id, "restored",
	        "attempt=%u tokens=%u read_blocks=%u computed=%u took_us=%llu", q->req.attempt,
	        q->req.n_tokens, r->got, q->computed, (unsigned long long)(clock_us() - r->begun_us));
	q->restore = NULL;
	q->phase = PHASE_RUNNING;
	drop(r);
}

/* --- asking -------------------------------------------------------------- */

static int may_ask(const struct decode *d, const struct sequence *q)
{
	const struct store *st = d->w->store;
	return st && store_ready(st) && d->w->rates.mode != RATES_NEVER && !q->no_read && !d->fenced &&
	       clock_us() >= d->no_storage_until_us;
}

void restore_begin(struct decode *d, struct sequence *q, uint32_t end)
{
	uint32_t n = end > q->published ? end - q->published : 0;
	if (!n) {
		outcome(d, q, WS_RESTORES_KEPT);
		return;
	}
	if (!may_ask(d, q)) {
		outcome(d, q, WS_RESTORES_COMPUTED);
		return;
	}
	struct restore *r = mem_zalloc(sizeof *r);
	list_init(&r->answer);
	r->asker.answered = answered;
	r->q = q;
	r->id = q->req.id;
	r->begun_us = clock_us();
	list_push_back(&d->restores, &r->node);
	d->at_storage++;
	if (store_lookup(d->w->store, q->hashes + q->published,
	                 n < STORE_ITEMS_MAX ? n : STORE_ITEMS_MAX, 0,
	                 r->begun_us + d->restore_wait_us / 4, &r->asker, &r->batch) < 0) {
		d->at_storage--;
		finish(d, r);
		return;
	}
	q->restore = r;
	q->phase = PHASE_RESTORING;
}

/* What the largest of these sequences needs until its end, or until it has grown by `reach`
 * blocks from now. */
static uint32_t most_needed(const struct decode *d, const struct list *l, uint32_t reach)
{
	uint32_t most = 0;
	list_each(it, l) {
		const struct request_copy *k = &list_entry(it, struct sequence, batch)->req;
		uint64_t tokens = (uint64_t)k->prompt_tokens + k->max_tokens;
		uint32_t need = worker_blocks_for(d->w, tokens < k->limit_tokens ? (uint32_t)tokens
		                                                                 : k->limit_tokens);
		uint32_t soon = worker_blocks_for(d->w, k->n_tokens);
		need = need > soon && need - soon > reach ? soon + reach : need;
		most = need > most ? need : most;
	}
	return most;
}

static uint32_t spare(const struct decode *d, uint32_t reach)
{
	uint32_t blocks = d->w->region.blocks, runs = most_needed(d, &d->running, reach),
			 waits = most_needed(d, &d->waiting, reach);
	uint32_t need = runs > waits ? runs : waits;
	return blocks > need ? blocks - need : 0;
}

/* How many blocks storage may write at once. Without them, should it stop, there is still room for
 * whoever is here to come to its end; for those who might fill the whole pool, to go on for
 * long. */
static uint32_t piece_blocks(const struct decode *d)
{
	uint32_t blocks = d->w->region.blocks, quarter = blocks / 4, few = blocks / 16,
			 to_the_end = spare(d, UINT32_MAX), soon = spare(d, quarter);
	uint64_t n = PIECE_BYTES / d->w->info->kv.block_bytes;
	soon = soon < few ? soon : few;
	n = n < 1 ? 1 : n < STORE_ITEMS_MAX ? n : STORE_ITEMS_MAX;
	n = n < quarter ? n : quarter;
	return (uint32_t)(n < to_the_end ? n : to_the_end > soon ? to_the_end : n < soon ? n : soon);
}

static int read_piece(struct decode *d, struct restore *r)
{
	struct sequence *q = r->q;
	struct worker *w = d->w;
	uint32_t left = r->end - q->published, most = piece_blocks(d);
	r->first = q->published;
	r->n = left < most ? left : most;
	if (!r->n)
		return 0;
	struct store_item *items = mem_array(r->n, sizeof *items);
	for (uint32_t i = 0; i < r->n; i++) {
		uint32_t b = q->blocks[r->first + i];
		items[i] = (struct store_item){q->hashes[r->first + i], b,
		                               atomic_load(&w->region.generations[b])};
	}
	uint64_t limit = clock_us() + d->restore_wait_us;
	r->until_us = limit + FENCE_GRACE_US;
	d->at_storage++;
	int e = store_get(w->store, items, r->n, limit, &r->asker, &r->batch);
	free(items);
	if (e < 0) {
		d->at_storage--;
		return 0;
	}
	r->what = RESTORE_READ;
	d->reading = r;
	return 1;
}

/* Who is next reads; nobody does while a read that was given up may still write. */
static void next_read(struct decode *d)
{
	list_each_safe(it, nx, &d->restores) {
		struct restore *r = list_entry(it, struct restore, node);
		if (d->reading)
			return;
		if (r->what == RESTORE_TURN && (d->fenced || !read_piece(d, r)))
			finish(d, r);
	}
}

/* --- giving up ----------------------------------------------------------- */

static void set_fence(struct decode *d, uint32_t *blocks, uint32_t n)
{
	pthread_mutex_lock(&d->lock);
	d->fence_blocks = blocks;
	d->n_fence_blocks = n;
	pthread_mutex_unlock(&d->lock);
}

int restore_fences(struct decode *d, uint32_t block)
{
	int found = 0;
	pthread_mutex_lock(&d->lock);
	for (uint32_t i = 0; i < d->n_fence_blocks; i++)
		found |= d->fence_blocks[i] == block;
	pthread_mutex_unlock(&d->lock);
	return found;
}

/* The blocks that storage may write stay with r; those after them have nothing yet. */
static void keep_target(struct decode *d, struct restore *r)
{
	struct sequence *q = r->q;
	r->blocks = mem_array(r->n, sizeof *r->blocks);
	memcpy(r->blocks, q->blocks + r->first, r->n * sizeof *r->blocks);
	kv_pool_release(d->w->pool, q->blocks + r->first + r->n, q->n_blocks - r->first - r->n);
	q->n_blocks = r->first;
	r->until_us = clock_us() + d->wait_us;
	d->reading = NULL;
	d->fenced++;
	set_fence(d, r->blocks, r->n);
	count(d, WS_RESTORES_ABANDONED, 1);
	log_req(LOG_INFO, &r->id, "restore_abandoned", "blocks=%u took_us=%llu", r->n,
	        (unsigned long long)(clock_us() - r->begun_us));
}

void restore_leave(struct decode *d, struct sequence *q)
{
	struct restore *r = q->restore;
	if (r->what == RESTORE_READ)
		keep_target(d, r);
	q->restore = NULL;
	r->q = NULL;
	if (r->what == RESTORE_TURN)
		drop(r);
	else
		store_cancel(d->w->store, r->batch);
}

int restore_fenced_soon(const struct decode *d)
{
	uint64_t now = clock_us();
	list_each(it, &d->restores) {
		const struct restore *r = list_entry(it, struct restore, node);
		if (r->blocks && now < r->until_us)
			return 1;
	}
	return 0;
}

uint64_t restore_next_us(const struct decode *d)
{
	uint64_t next = 0;
	list_each(it, &d->restores) {
		const struct restore *r = list_entry(it, struct restore, node);
		if (r->what == RESTORE_READ && (r->q || d->lacking) && (!next || r->until_us < next))
			next = r->until_us;
	}
	return next;
}

/* --- answers ------------------------------------------------------------- */

static void looked_up(struct decode *d, struct restore *r)
{
	const struct store_completion *c = r->c;
	uint32_t n = c->code == 0 && c->leading
	                 ? rates_worth_reading(&d->w->rates, c->tiers, c->leading)
	                 : 0;
	if (c->code == ERR_TIMEOUT)
		d->no_storage_until_us = clock_us() + SILENT_US;
	for (uint32_t i = 0; i < n; i++)
		r->expected = c->tiers[i] > r->expected ? c->tiers[i] : r->expected;
	store_completion_free(&r->c);
	if (!n) {
		finish(d, r);
		return;
	}
	r->end = r->q->published + n;
	r->what = RESTORE_TURN;
}

static void publish(struct decode *d, struct sequence *q, const struct store_result *result,
                    uint32_t n)
{
	for (uint32_t i = 0; i < n; i++, q->published++) {
		kv_pool_publish(d->w->pool, q->blocks[q->published], &q->hashes[q->published],
		                q->published ? &q->hashes[q->published - 1] : NULL);
		kv_pool_set_stored(d->w->pool, q->blocks[q->published], result[i].item.generation,
		                   result[i].tier);
	}
	q->computed = q->published * d->w->info->kv.block_tokens;
}

static void arrived(struct decode *d, struct restore *r)
{
	struct sequence *q = r->q;
	uint32_t got = r->c->leading < r->n ? r->c->leading : r->n;
	publish(d, q, r->c->result, got);
	rates_note_got(&d->w->rates, r->c, r->expected);
	r->got += got;
	if (q->preemptions) {
		count(d, WS_RESTORED_BLOCKS, got);
	} else {
		q->cached_tokens += got * d->w->info->kv.block_tokens;
		count(d, WS_STORED_TOKENS, got * d->w->info->kv.block_tokens);
	}
	store_completion_free(&r->c);
	d->reading = NULL;
	if (got == r->n && q->published < r->end)
		r->what = RESTORE_TURN;
	else
		finish(d, r);
}

static void room_made(struct svc *s, void *arg)
{
	struct decode *d = arg;
	(void)s;
	d->at_storage--; /* not before: without it the stage may be idle, and gone */
	lease_try_grant(d);
	role_look(d->w);
}

static void ended(struct decode *d, struct restore *r)
{
	if (r->blocks) {
		set_fence(d, NULL, 0);
		kv_pool_release(d->w->pool, r->blocks, r->n);
		d->fenced--;
		log_req(LOG_INFO, &r->id, "restore_fenced", "blocks=%u", r->n);
	}
	drop(r);
	svc_post(d->w->svc, room_made, d);
}

static void deal(struct decode *d, struct restore *r)
{
	if (!r->q) {
		ended(d, r);
		return;
	}
	d->at_storage--;
	if (r->what == RESTORE_LOOKUP)
		looked_up(d, r);
	else
		arrived(d, r);
}

static void give_up_late(struct decode *d)
{
	struct restore *r = d->reading;
	if (!r || clock_us() < r->until_us)
		return;
	struct sequence *q = r->q;
	log_req(LOG_WARN, &r->id, "restore_late", "attempt=%u blocks=%u limit_us=%llu", q->req.attempt,
	        r->n, (unsigned long long)d->restore_wait_us);
	rates_note_read(&d->w->rates, r->expected, 0, d->restore_wait_us);
	q->no_read = 1;
	restore_leave(d, q);
	room_wait_again(d, q);
}

void restore_deal(struct decode *d)
{
	for (;;) {
		pthread_mutex_lock(&d->lock);
		struct restore *r = list_empty(&d->answers)
		                        ? NULL
		                        : list_entry(d->answers.next, struct restore, answer);
		if (r)
			list_remove(&r->answer);
		pthread_mutex_unlock(&d->lock);
		if (!r)
			break;
		deal(d, r);
	}
	give_up_late(d);
	next_read(d);
}

/* The schedule thread has ended. */
void restore_fini(struct decode *d)
{
	list_each_safe(it, nx, &d->restores) {
		struct restore *r = list_entry(it, struct restore, node);
		if (r->blocks)
			kv_pool_release(d->w->pool, r->blocks, r->n);
		drop(r);
	}
}
