/* copier.c - the copy threads: they take items from two queues (gets first) and pass them to the
 * tier, which calls back to copy.
 *
 * Invariants while the lock is free: a batch is in its worker's turn exactly while next < n and it
 * is not over; a turn is in the queue of its kind exactly while it has a batch and less than
 * AWAY_BYTES_MAX with the tiers; `running` items of a batch are with the tier; a batch is over when
 * next == n and running == 0, and `finished` is then called once. A worker's memory is accessed
 * only inside `move` of an item that counts as running.
 *
 * A ride is the tier's view of an item. When the batch is cancelled it may become an orphan
 * (tier_op_state): the item is then complete, and the ride is freed when the tier is done with it.
 *
 * A put copies, then checks the block's generation (and also before, to avoid useless work); a
 * block that was not valid throughout becomes STORE_VOID and is not stored. A get checks for
 * cancellation before each burst. An error of one item is reported as that item's code and text. If
 * this process loses the device, it exits, because a restarted process can use the device again. */
#include "copier.h"
#include "spans.h"
#include "sum.h"

#include "svc/svc.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct copier {
	struct tier *tier;
	void (*finished)(void *arg, struct batch *b);
	void *arg;
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct list queue[COPY_KINDS]; /* of copy_turn */
	size_t gets_bytes;             /* started since the last put */
	int stop, joined;
	unsigned n_threads;
	pthread_t thread[];
};

/* --- copying --- */

/* Orders all reads of the block before the read of its generation. */
static void order_copy_before_check(void)
{
#if defined(__SANITIZE_THREAD__)
	atomic_signal_fence(memory_order_seq_cst); /* ThreadSanitizer does not model fences */
#else
	atomic_thread_fence(memory_order_acquire);
#endif
}

static int generation_holds(const struct copy_item *it)
{
	const struct kv_region *r = &it->batch->target->region;
	return atomic_load_explicit(&r->generations[it->block], memory_order_acquire) == it->generation;
}

/* bounds of one copy; cancellation is checked between copies */
enum { BURST_PIECES = 32, BURST_BYTES = 1 << 20 };

struct burst {
	struct kern_copy copy;
	struct kern_piece piece[BURST_PIECES];
	size_t bytes;
};

/* Returns 0, ERR_CANCELLED or ERR_IO. */
static int burst_run(struct burst *b, const struct copy_item *it)
{
	struct kern_ticket ticket;
	char why[256] = "";
	size_t n = b->copy.n;
	b->bytes = 0;
	b->copy.piece = b->piece;
	if (atomic_load_explicit(&it->batch->cancelled, memory_order_relaxed))
		return ERR_CANCELLED;
	int rc = n ? kern_copy(&b->copy, &ticket, why, sizeof why) : KERN_OK;
	if (n && !rc)
		rc = kern_wait(&ticket, why, sizeof why);
	if (rc == KERN_ELOST)
		svc_leave(why);
	if (!rc) {
		b->copy.n = 0;
		return 0;
	}
	log_warn("copy_failed", "block=%u pieces=%zu why=%s", it->block, n, log_quote(why));
	return ERR_IO;
}

/* Copies the block between its pieces and the spans, range by range, each contiguous on both
 * sides. */
static int walk(const struct copy_item *it, const struct tier_span *span, unsigned n,
                struct burst *b)
{
	const struct copy_target *t = it->batch->target;
	struct span_walk w = {span, n, 0};
	int r = 0;
	for (uint32_t layer = 0; r == 0 && layer < t->layout.layers; layer++) {
		uint64_t piece = kv_piece_offset(&t->layout, t->region.blocks, layer, it->block);
		for (size_t left = t->layout.piece_bytes[layer], part; r == 0 && left;
		     left -= part, piece += part) {
			part = span_left(&w);
			CHECK(part);
			part = part < left ? part : left;
			uint64_t stored = (uintptr_t)span_take(&w, part);
			b->piece[b->copy.n++] = b->copy.to ? (struct kern_piece){piece, stored, part}
			                                   : (struct kern_piece){stored, piece, part};
			b->bytes += part;
			if (b->copy.n == BURST_PIECES || b->bytes >= BURST_BYTES)
				r = burst_run(b, it);
		}
	}
	return r ? r : burst_run(b, it);
}

static void see_sum(void *sum, const void *at, size_t bytes)
{
	sum_add(sum, at, bytes);
}

struct copy_ride {
	struct tier_op op;      /* first */
	struct copy_item *item; /* invalid once the ride is an orphan */
};

static int copy_in(struct copy_item *it, struct tier_op *op, const struct tier_span *span,
                   unsigned n)
{
	struct sum_state s;
	struct burst b = {
		.copy = {.from = it->batch->target->region.pool, .seen = see_sum, .seen_arg = &s}};
	sum_begin(&s);
	int r = walk(it, span, n, &b);
	if (r != 0)
		return r;
	op->sum = sum_end(&s);
	it->moved = 1;
	order_copy_before_check();
	return generation_holds(it) ? 0 : ERR_STALE;
}

static int copy_out(struct copy_item *it, const struct tier_span *span, unsigned n)
{
	struct burst b = {.copy = {.to = it->batch->target->region.pool}};
	int r = generation_holds(it) ? walk(it, span, n, &b) : ERR_STALE;
	it->moved = r == 0;
	return r;
}

static int ride_move(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	struct copy_item *it = ((struct copy_ride *)op)->item;
	return it->batch->kind == COPY_PUT ? copy_in(it, op, span, n) : copy_out(it, span, n);
}

/* --- items --- */

static void item_set(struct copy_item *it, int code, enum tier_id tier, const char *text)
{
	static const struct {
		int code;
		Pds__StoreCode store;
		const char *text;
	} as[] = {
		{0, PDS__STORE_CODE__STORE_OK, NULL},
		{ERR_NOTFOUND, PDS__STORE_CODE__STORE_MISS, NULL},
		{ERR_STALE, PDS__STORE_CODE__STORE_VOID, "the block's generation has changed"},
		{ERR_FULL, PDS__STORE_CODE__STORE_FULL, "no room"},
		{ERR_CANCELLED, PDS__STORE_CODE__STORE_CANCELLED, "cancelled"},
	};
	it->tier = tier;
	it->code = PDS__STORE_CODE__STORE_ERROR;
	it->text = text ? text : err_name(code);
	for (size_t i = 0; i < sizeof as / sizeof as[0]; i++)
		if (as[i].code == code) {
			it->code = as[i].store;
			it->text = text ? text : as[i].text;
		}
}

/* With the lock held: returns 1 if the batch is over; the caller then calls finished without the
 * lock. */
static int batch_ends(struct batch *b)
{
	if (b->next < b->n || b->running || b->over)
		return 0;
	b->over = 1;
	return 1;
}

/* With the lock held, after a change: queues or dequeues the turn, and moves it to the end of the
 * queue when it has used up its bytes. */
static void turn_settle(struct copier *c, enum copy_kind kind, struct copy_turn *t)
{
	int queued = !list_empty(&t->link),
		wants = !list_empty(&t->batches) && t->away_bytes < AWAY_BYTES_MAX,
		over = t->begun_bytes >= TURN_BYTES;
	if (queued && wants && !over)
		return;
	list_remove(&t->link);
	t->begun_bytes = 0;
	if (!wants)
		return;
	list_push_back(&c->queue[kind], &t->link);
	if (!queued)
		pthread_cond_broadcast(&c->more);
}

/* With the lock held: a started item is no longer with a tier. */
static void item_back(struct copier *c, struct copy_item *it)
{
	struct batch *b = it->batch;
	struct copy_turn *t = &b->target->turn[b->kind];
	b->running--;
	t->away_bytes -= b->target->layout.block_bytes;
	turn_settle(c, b->kind, t);
}

static void item_done(struct copier *c, struct copy_item *it)
{
	struct batch *b = it->batch;
	pthread_mutex_lock(&c->lock);
	item_back(c, it);
	it->ride = NULL;
	if (it->moved) {
		b->bytes += b->target->layout.block_bytes;
		b->copy_ns += clock_ns() - it->begun_ns;
	}
	int ends = batch_ends(b);
	pthread_mutex_unlock(&c->lock);
	if (ends)
		c->finished(c->arg, b);
}

/* tier_op.done; any thread. */
static void ride_done(struct tier_op *op, int code, enum tier_id tier, const char *text)
{
	struct copy_ride *ride = (struct copy_ride *)op;
	if (!tier_op_over(op)) {
		struct copy_item *it = ride->item;
		item_set(it, code, tier, text);
		item_done(it->batch->copier, it);
	}
	free(ride);
}

static void item_ends(struct copier *c, struct copy_item *it, int code)
{
	item_set(it, code, TIER_NONE, NULL);
	item_done(c, it);
}

/* Returns NULL if the batch has been cancelled. */
static struct copy_ride *ride_new(struct copier *c, struct copy_item *it)
{
	struct copy_ride *ride = mem_zalloc(sizeof *ride);
	list_init(&ride->op.link);
	ride->op.key = it->key;
	ride->op.bytes = it->batch->target->layout.block_bytes;
	ride->op.move = ride_move;
	ride->op.done = ride_done;
	ride->item = it;
	pthread_mutex_lock(&c->lock);
	int wanted = !atomic_load(&it->batch->cancelled);
	it->ride = wanted ? ride : NULL;
	pthread_mutex_unlock(&c->lock);
	if (wanted)
		return ride;
	free(ride);
	return NULL;
}

static void item_run(struct copier *c, struct copy_item *it)
{
	struct batch *b = it->batch;
	it->begun_ns = clock_ns();
	if (it->refused) {
		item_done(c, it);
	} else if (!generation_holds(it)) {
		item_ends(c, it, ERR_STALE);
	} else {
		int put = b->kind == COPY_PUT; /* the batch may be freed as soon as the ride is visible */
		struct copy_ride *ride = ride_new(c, it);
		if (!ride)
			item_ends(c, it, ERR_CANCELLED);
		else if (put)
			c->tier->ops->put(c->tier, &ride->op);
		else
			c->tier->ops->get(c->tier, &ride->op);
	}
}

/* With the lock held: the next item to run, or NULL. A batch leaves the turn with its last item. */
static struct copy_item *next_item(struct copier *c)
{
	int put_waits = !list_empty(&c->queue[COPY_PUT]);
	enum copy_kind kind = !list_empty(&c->queue[COPY_GET]) &&
	                              !(put_waits && c->gets_bytes >= GETS_BYTES)
	                          ? COPY_GET
	                          : COPY_PUT;
	if (kind == COPY_PUT && !put_waits)
		return NULL;
	struct copy_turn *t = list_entry(c->queue[kind].next, struct copy_turn, link);
	struct batch *b = list_entry(t->batches.next, struct batch, run);
	struct copy_item *it = &b->item[b->next++];
	size_t bytes = b->target->layout.block_bytes;
	c->gets_bytes = kind == COPY_GET ? c->gets_bytes + bytes : 0;
	t->begun_bytes += bytes;
	t->away_bytes += bytes;
	b->running++;
	if (b->next == b->n)
		list_remove(&b->run);
	turn_settle(c, kind, t);
	return it;
}

static void *copy_thread(void *arg)
{
	struct copier *c = arg;
	pthread_mutex_lock(&c->lock);
	for (;;) {
		struct copy_item *it = next_item(c);
		if (it) {
			pthread_mutex_unlock(&c->lock);
			item_run(c, it);
			pthread_mutex_lock(&c->lock);
		} else if (c->stop) {
			break;
		} else {
			pthread_cond_wait(&c->more, &c->lock);
		}
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

/* --- batches --- */

void copy_target_init(struct copy_target *t, const struct kv_layout *layout,
                      const struct kv_region *region)
{
	*t = (struct copy_target){.layout = *layout, .region = *region};
	for (int k = 0; k < COPY_KINDS; k++) {
		list_init(&t->turn[k].link);
		list_init(&t->turn[k].batches);
	}
}

struct batch *batch_new(enum copy_kind kind, struct copy_target *target, uint32_t n)
{
	CHECK(n > 0);
	struct batch *b = mem_zalloc(sizeof *b + (size_t)n * sizeof b->item[0]);
	list_init(&b->run);
	list_init(&b->link);
	b->kind = kind;
	b->target = target;
	b->n = n;
	for (uint32_t i = 0; i < n; i++)
		b->item[i].batch = b;
	return b;
}

void batch_free(struct batch *b)
{
	free(b);
}

void copier_submit(struct copier *c, struct batch *b)
{
	b->copier = c;
	b->begun_us = clock_us();
	pthread_mutex_lock(&c->lock);
	list_push_back(&b->target->turn[b->kind].batches, &b->run);
	turn_settle(c, b->kind, &b->target->turn[b->kind]);
	pthread_mutex_unlock(&c->lock);
}

/* With the lock held: cancels an item that a tier has and is not copying at this moment. */
static void ride_give_up(struct copier *c, struct copy_item *it)
{
	if (!it->ride || !tier_op_give_up(&it->ride->op, it->batch->kind == COPY_PUT))
		return;
	it->ride = NULL;
	item_set(it, ERR_CANCELLED, TIER_NONE, NULL);
	item_back(c, it);
}

void copier_cancel(struct copier *c, struct batch *b)
{
	atomic_store(&b->cancelled, 1);
	pthread_mutex_lock(&c->lock);
	list_remove(&b->run);
	for (uint32_t i = 0; i < b->next; i++)
		ride_give_up(c, &b->item[i]);
	for (; b->next < b->n; b->next++)
		if (!b->item[b->next].refused)
			item_set(&b->item[b->next], ERR_CANCELLED, TIER_NONE, NULL);
	turn_settle(c, b->kind, &b->target->turn[b->kind]);
	int ends = batch_ends(b);
	pthread_mutex_unlock(&c->lock);
	if (ends)
		c->finished(c->arg, b);
}

struct copier *copier_new(struct tier *tier, unsigned threads,
                          void (*finished)(void *arg, struct batch *b), void *arg)
{
	CHECK(threads > 0);
	struct copier *c = mem_zalloc(sizeof *c + threads * sizeof c->thread[0]);
	c->tier = tier;
	c->finished = finished;
	c->arg = arg;
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->more, NULL);
	for (int k = 0; k < COPY_KINDS; k++)
		list_init(&c->queue[k]);
	for (; c->n_threads < threads; c->n_threads++)
		if (pthread_create(&c->thread[c->n_threads], NULL, copy_thread, c) != 0)
			check_fatal("cannot start copy thread %u of %u; raise the limit on tasks (LimitNPROC, "
			            "TasksMax)",
			            c->n_threads + 1, threads);
	return c;
}

void copier_stop(struct copier *c)
{
	pthread_mutex_lock(&c->lock);
	c->stop = 1;
	pthread_cond_broadcast(&c->more);
	pthread_mutex_unlock(&c->lock);
	for (unsigned i = 0; i < c->n_threads && !c->joined; i++)
		pthread_join(c->thread[i], NULL);
	c->joined = 1;
}

void copier_destroy(struct copier **cp)
{
	struct copier *c = *cp;
	if (!c)
		return;
	copier_stop(c);
	pthread_cond_destroy(&c->more);
	pthread_mutex_destroy(&c->lock);
	free(c);
	*cp = NULL;
}
