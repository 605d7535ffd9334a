/* stack_copy.c - copies of blocks between the tiers of a stack, and the thread that starts them,
 * opens tiers and resizes them.
 *
 * Down: a block that a tier reports as due is copied to the next tier below; memory's blocks are
 * read in place, up to COPIES_MAX others through a buffer block each. Up: a requested block that is
 * not in memory is fetched once for all waiters and inserted into memory.
 *
 * Invariants: a started copy down ends with `stored` for the tier it came from. A flush in between
 * voids it, and keeps a fetched block out of memory. A tier below that does not accept blocks is
 * left alone for pause_us; meanwhile blocks may be evicted without a copy. The thread sleeps until
 * there is work; only failure to start it is fatal. */
#include "stack_int.h"
#include "memory.h"

#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A block being copied down. */
struct sink {
	struct tier_op op;      /* the put below; first */
	struct tier_op from_op; /* the get of a block that is not in memory */
	struct stack *s;
	struct stack_tier *from, *to;
	uint64_t flushes;
	struct storage_block *block; /* buffer, or NULL: memory has the block */
};

static void found_nothing(struct tier_find *f)
{
	(void)f;
}

/* Whether the level has this block now; only for tiers that answer synchronously. */
static int level_has(struct stack_tier *l, const struct tier_key *key, size_t bytes)
{
	struct tier *t = level_tier(l);
	unsigned char where = TIER_NONE;
	struct tier_find f = {
		.key = key, .where = &where, .n = 1, .bytes = bytes, .done = found_nothing};
	t->ops->lookup(t, &f);
	return where != TIER_NONE;
}

/* Tells `t` that `below` has the block, so that it may evict it at no loss. `below` may have lost
 * the block before that, when its `changed` was ignored, so check again. (Redis cannot be checked
 * synchronously.) */
static void kept_below(struct tier *t, struct stack_tier *below, const struct tier_key *key,
                       size_t bytes)
{
	t->ops->stored(t, key, TIER_BELOW_HAS);
	if (below->opts.id != TIER_REDIS && !level_has(below, key, bytes))
		t->ops->stored(t, key, TIER_BELOW_GONE);
}

static struct tier *memory_tier(struct stack *s)
{
	return s->memory ? level_tier(&s->level[0]) : NULL;
}

static int is_void(const struct stack *s, uint64_t flushes)
{
	return atomic_load(&s->closing) || atomic_load(&s->flushing) ||
	       flushes != atomic_load(&s->flushes);
}

/* --- down --- */

/* Tells the source tier the result. */
static void down_told(struct sink *c, int code)
{
	struct tier *from = level_tier(c->from);
	int later = code == ERR_CLOSED || code == ERR_IO || code == ERR_TIMEOUT || code == ERR_NOMEM;
	if (from->ops->stored && code == 0)
		kept_below(from, c->to, &c->op.key, c->op.bytes);
	else if (from->ops->stored)
		from->ops->stored(from, &c->op.key, later ? TIER_BELOW_LATER : TIER_BELOW_REFUSED);
}

/* Stops copies to the tier for pause_us; logs once per pause. */
static void pause_level(struct stack_tier *to, const struct stack_tier *from, int code,
                        const char *text)
{
	uint64_t now = clock_us();
	pthread_mutex_lock(&to->s->lock);
	int told = to->pause_until_us > now;
	to->pause_until_us = now + to->s->opts.pause_us;
	pthread_mutex_unlock(&to->s->lock);
	if (!told)
		log_warn("copy_down_failed", "from=%s to=%s code=%s why=%s action=paused pause_ms=%llu",
		         tier_name(from->opts.id), tier_name(to->opts.id), err_name(code),
		         log_quote(text ? text : err_name(code)),
		         (unsigned long long)(to->s->opts.pause_us / 1000));
}

static void down_end(struct sink *c, int code, const char *text)
{
	struct stack *s = c->s;
	struct tier *to = level_tier(c->to);
	if (code == 0 && is_void(s, c->flushes)) { /* flushed during the write */
		if (!atomic_load(&s->closing))
			to->ops->remove(to, &c->op.key);
		code = ERR_CANCELLED;
	}
	if (code == ERR_CLOSED || code == ERR_IO || code == ERR_TIMEOUT || code == ERR_NOMEM ||
	    code == ERR_FULL)
		pause_level(c->to, c->from, code, text);
	down_told(c, code);
	if (code == 0)
		stack_used(c->to);
	pthread_mutex_lock(&s->lock);
	c->from->copying--;
	if (code == 0)
		c->from->count.copied_down++;
	else if (code != ERR_NOTFOUND && code != ERR_CANCELLED)
		c->from->count.copy_failed++;
	pthread_mutex_unlock(&s->lock);
	if (c->block)
		block_release(c->block);
	free(c);
	stack_kick(s);
}

static void down_done(struct tier_op *op, int code, enum tier_id tier, const char *text)
{
	(void)tier;
	down_end((struct sink *)op, code, text);
}

static int down_move(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	struct sink *c = (struct sink *)op;
	struct storage_block *b = c->block ? c->block
	                                   : memory_hold(memory_tier(c->s), &op->key, op->bytes);
	if (!b)
		return ERR_NOTFOUND;
	int code = is_void(c->s, c->flushes) ? ERR_CANCELLED : block_read(b, span, n);
	op->sum = b->sum;
	if (code == ERR_CORRUPT && b->memory)
		memory_damaged(b);
	if (!c->block)
		block_release(b);
	return code;
}

static void down_put(struct sink *c)
{
	struct tier *to = level_tier(c->to);
	c->op.move = down_move;
	c->op.done = down_done;
	to->ops->put(to, &c->op);
}

static int read_move(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	block_write(list_entry(op, struct sink, from_op)->block, span, n);
	return 0;
}

static void read_done(struct tier_op *op, int code, enum tier_id tier, const char *text)
{
	struct sink *c = list_entry(op, struct sink, from_op);
	(void)tier;
	(void)text;
	if (code == 0 && !is_void(c->s, c->flushes))
		down_put(c);
	else
		down_end(c, ERR_NOTFOUND, NULL); /* no longer there: nothing to copy */
}

/* 1: the block is also in memory and was copied from there, which saves a device read. */
static int read_above(struct sink *c)
{
	struct tier *memory = memory_tier(c->s);
	struct storage_block *b = memory ? memory_hold(memory, &c->op.key, c->op.bytes) : NULL;
	int there = b && block_read(b, c->block->span, c->block->n) == 0;
	if (there)
		c->block->sum = b->sum;
	if (b)
		block_release(b);
	return there;
}

static void down_start(struct stack *s, struct stack_tier *from, struct stack_tier *to,
                       const struct tier_due *d)
{
	struct sink *c = mem_zalloc(sizeof *c);
	c->s = s;
	c->from = from;
	c->to = to;
	c->flushes = atomic_load(&s->flushes);
	list_init(&c->op.link);
	list_init(&c->from_op.link);
	c->op.key = c->from_op.key = d->key;
	c->op.bytes = c->from_op.bytes = d->bytes;
	pthread_mutex_lock(&s->lock);
	from->copying++;
	pthread_mutex_unlock(&s->lock);
	if (from == s->level && s->memory) {
		down_put(c);
		return;
	}
	c->block = block_new(&d->key, d->bytes);
	if (!c->block) { /* blocks may be large; retried later */
		down_end(c, ERR_NOMEM, "out of memory for a buffer");
		return;
	}
	if (read_above(c)) {
		down_put(c);
		return;
	}
	c->from_op.move = read_move;
	c->from_op.done = read_done;
	c->from_op.aside = 1;
	level_tier(from)->ops->get(level_tier(from), &c->from_op);
}

void stack_used(struct stack_tier *l)
{
	if (atomic_load(&l->policy) != TIER_RECYCLE &&
	    stack_next_open(l->s, (unsigned)(l - l->s->level) + 1) >= 0)
		stack_kick(l->s);
}

/* Starts as many copies as allowed; makes *wake earlier if a pause must end first. */
static void downs_begin(struct stack *s, unsigned i, uint64_t *wake)
{
	struct stack_tier *l = &s->level[i];
	struct tier *t = level_tier(l);
	int below = stack_next_open(s, i + 1);
	if (!t || !t->ops->due || below < 0 || atomic_load(&l->policy) == TIER_RECYCLE)
		return;
	for (;;) {
		struct tier_due due[COPIES_MAX];
		pthread_mutex_lock(&s->lock);
		uint32_t room = COPIES_MAX - l->copying;
		uint64_t until = s->level[below].pause_until_us;
		pthread_mutex_unlock(&s->lock);
		if (until > clock_us()) {
			*wake = until < *wake ? until : *wake;
			return;
		}
		uint32_t n = room ? t->ops->due(t, room, due) : 0;
		for (uint32_t k = 0; k < n; k++)
			down_start(s, l, &s->level[below], &due[k]);
		if (!n)
			return;
	}
}

/* --- up --- */

static int same_block(const struct tier_op *a, const struct tier_key *key, size_t bytes)
{
	return a->bytes == bytes && memcmp(a->key.b, key->b, sizeof key->b) == 0;
}

static struct stack_fetch *fetch_find(struct stack *s, const struct tier_key *key, size_t bytes,
                                      int moved_too)
{
	list_each(it, &s->fetches) {
		struct stack_fetch *f = list_entry(it, struct stack_fetch, link);
		if (same_block(&f->op, key, bytes) && (moved_too || !f->moved) &&
		    f->flushes == atomic_load(&s->flushes))
			return f;
	}
	return NULL;
}

void stack_fetch_begins(struct tier_op *op)
{
	struct stack_fetch *f = (struct stack_fetch *)op;
	int wanted = f->prefetch;
	list_each(it, &f->waiters)
		wanted |= !stack_op_unwanted(list_entry(it, struct tier_op, link));
	if (!wanted)
		tier_op_give_up(op, 0);
}

static void list_move_all(struct list *to, struct list *from)
{
	while (!list_empty(from)) {
		struct list *at = from->next;
		list_remove(at);
		list_push_back(to, at);
	}
}

/* Inserts the block into memory, unless there is no room without evicting better blocks or a flush
 * came after the request. */
static void fetch_keep(struct stack_fetch *f, const struct tier_span *span, unsigned n)
{
	struct stack *s = f->s;
	struct tier *memory = memory_tier(s);
	struct storage_block *b = memory && !is_void(s, f->flushes)
	                              ? memory_block(memory, &f->op.key, f->op.bytes, 1)
	                              : NULL;
	if (!b)
		return;
	block_write(b, span, n);
	memory_insert(b);
	block_release(b);
	f->kept = !is_void(s, f->flushes);
	if (f->kept)
		kept_below(memory, &s->level[f->level], &f->op.key, f->op.bytes);
	else /* a flush after this check finds the block in memory */
		memory->ops->remove(memory, &f->op.key);
	if (atomic_load(&s->level[0].policy) == TIER_OFFLOAD)
		stack_kick(s); /* it used up free room */
}

static int fetch_move(struct tier_op *get, const struct tier_span *span, unsigned n)
{
	struct stack_fetch *f = (struct stack_fetch *)get;
	int code = 0, served = 0;
	pthread_mutex_lock(&f->s->lock);
	f->moved = 1;
	list_move_all(&f->served, &f->waiters);
	pthread_mutex_unlock(&f->s->lock);
	list_each(it, &f->served) {
		struct tier_op *op = list_entry(it, struct tier_op, link);
		op->sum = f->op.sum;
		op->route.code = tier_op_move(op, span, n);
		code = op->route.code;
		served |= code == 0;
	}
	fetch_keep(f, span, n);
	return served || f->kept ? 0 : code;
}

static void fetch_done(struct tier_op *get, int code, enum tier_id tier, const char *text)
{
	struct stack_fetch *f = (struct stack_fetch *)get;
	struct stack *s = f->s;
	struct stack_tier *l = &s->level[f->level];
	pthread_mutex_lock(&s->lock);
	list_remove(&f->link); /* no more waiters can join */
	s->n_prefetching -= f->prefetch != 0;
	l->count.promoted += f->kept && code == 0;
	l->count.prefetched += f->kept && code == 0 && f->prefetch;
	pthread_mutex_unlock(&s->lock);
	if (code == 0)
		stack_used(l);
	if (code == ERR_CORRUPT || f->prefetch)
		stack_kick(s);
	while (!list_empty(&f->served)) {
		struct tier_op *got = list_entry(f->served.next, struct tier_op, link);
		list_remove(&got->link);
		int end = got->route.code ? got->route.code : code;
		stack_op_end(got, end, end == 0 ? tier : TIER_NONE, end == code ? text : NULL);
	}
	while (!list_empty(&f->waiters)) {
		struct tier_op *late = list_entry(f->waiters.next, struct tier_op, link);
		list_remove(&late->link);
		if (f->moved || code == ERR_CANCELLED) {
			/* joined too late: the block may be in memory now */
			late->route.waited |= f->moved;
			late->route.level = 0;
			stack_op_next(late);
		} else {
			stack_op_failed(late, code, text);
		}
	}
	free(f);
	stack_level_back(l, KIND_GET);
}

static struct stack_fetch *fetch_new(struct stack *s, const struct tier_key *key, size_t bytes,
                                     unsigned level)
{
	struct stack_fetch *f = mem_zalloc(sizeof *f);
	list_init(&f->op.link);
	list_init(&f->waiters);
	list_init(&f->served);
	f->s = s;
	f->level = level;
	f->op.key = *key;
	f->op.bytes = bytes;
	f->op.move = fetch_move;
	f->op.done = fetch_done;
	f->flushes = atomic_load(&s->flushes);
	list_push_back(&s->fetches, &f->link);
	return f;
}

void stack_fetch(struct tier_op *op)
{
	struct stack *s = op->route.s;
	unsigned level = op->route.level;
	struct stack_fetch *own = NULL;
	pthread_mutex_lock(&s->lock);
	struct stack_fetch *f = fetch_find(s, &op->key, op->bytes, !op->route.waited);
	if (!f || f->level != level)
		f = own = fetch_new(s, &op->key, op->bytes, level);
	for (unsigned i = 0; own && i < s->n_wishes; i++) {
		struct wish *w = &s->wish[(s->wish_at + i) % PREFETCH_MAX];
		if (same_block(op, &w->what.key, w->what.bytes))
			w->what.bytes = 0; /* the new fetch brings it up */
	}
	list_push_back(&f->waiters, &op->link); /* from here on the fetch owns op */
	pthread_mutex_unlock(&s->lock);
	if (own)
		stack_level_submit(&s->level[level], KIND_GET, &own->op);
}

void stack_prefetch(struct stack *s, const struct tier_find *f)
{
	unsigned added = 0;
	if (!s->memory)
		return;
	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < f->n && f->where[i] && s->n_wishes < PREFETCH_MAX; i++)
		for (unsigned k = 1; k < s->n; k++)
			if (f->where[i] == s->level[k].opts.id) {
				s->wish[(s->wish_at + s->n_wishes++) % PREFETCH_MAX] = (struct wish){
					{f->key[i], f->bytes}, k};
				added++;
			}
	pthread_mutex_unlock(&s->lock);
	if (added)
		stack_kick(s);
}

/* Starts tracking the next prefetch, or NULL. */
static struct stack_fetch *prefetch_next(struct stack *s)
{
	struct stack_fetch *f = NULL;
	pthread_mutex_lock(&s->lock);
	while (!f && s->n_wishes && s->n_prefetching < PREFETCHING_MAX) {
		struct wish w = s->wish[s->wish_at];
		s->wish_at = (s->wish_at + 1) % PREFETCH_MAX;
		s->n_wishes--;
		if (!w.what.bytes || fetch_find(s, &w.what.key, w.what.bytes, 1) ||
		    level_has(&s->level[0], &w.what.key, w.what.bytes))
			continue;
		f = fetch_new(s, &w.what.key, w.what.bytes, w.level);
		f->prefetch = 1;
		s->n_prefetching++;
	}
	pthread_mutex_unlock(&s->lock);
	return f;
}

static void prefetches_begin(struct stack *s)
{
	struct stack_fetch *f;
	while ((f = prefetch_next(s)))
		stack_level_submit(&s->level[f->level], KIND_GET, &f->op);
}

/* --- the thread --- */

void stack_kick(struct stack *s)
{
	if (atomic_exchange(&s->kicked, 1))
		return;
	pthread_mutex_lock(&s->lock);
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
}

static int level_open(struct stack_tier *l, struct tier **ret, struct err *err)
{
	*ret = l->opts.tier;
	return *ret ? 0 : l->opts.open(l->opts.arg, ret, err);
}

/* tier_ops.watch callback: tells the tiers above that blocks are gone below them. With the tier's
 * lock held. */
static void level_changed(void *arg, const struct tier_key *key, int stored)
{
	struct stack_tier *l = arg;
	struct stack *s = l->s;
	for (struct stack_tier *above = s->level; !stored && above < l; above++) {
		struct tier *t = level_tier(above);
		if (t && t->ops->stored)
			t->ops->stored(t, key, TIER_BELOW_GONE);
	}
	if (s->opts.changed && l->opts.id != TIER_REDIS) /* other clients change what is in Redis */
		s->opts.changed(s->opts.arg, l->opts.id, key, stored);
}

static void level_try(struct stack_tier *l)
{
	struct stack *s = l->s;
	struct err err = {0};
	struct tier *t = NULL;
	int r = level_open(l, &t, &err);
	if (r == 0 && t->ops->watch)
		t->ops->watch(t, level_changed, l);
	pthread_mutex_lock(&s->lock);
	if (r == 0) {
		if (t->ops->policy)
			t->ops->policy(t, l->opts.policy, l->opts.after, l->opts.low_percent);
		atomic_store_explicit(&l->tier, t, memory_order_release);
	} else {
		snprintf(l->why, sizeof l->why, "unavailable: %.80s", err.text);
		l->open_at_us = clock_us() + s->opts.reopen_us;
	}
	int first = !l->tried;
	l->tried = 1;
	pthread_cond_broadcast(&s->opened);
	pthread_mutex_unlock(&s->lock);
	if (r == 0 && s->opts.changed)
		s->opts.changed(s->opts.arg, l->opts.id, NULL, 1);
	if (r == 0)
		/* the first time, the daemon's start message is enough */
		log_at(first ? LOG_DEBUG : LOG_INFO, NULL, "tier_open", "tier=%s", tier_name(l->opts.id));
	else if (first)
		log_error("tier_missing", "tier=%s why=%s action=\"continuing without it\" again_ms=%llu",
		          tier_name(l->opts.id), log_quote(err.text),
		          (unsigned long long)(s->opts.reopen_us / 1000));
	else
		log_debug("tier_missing", "tier=%s why=%s", tier_name(l->opts.id), log_quote(err.text));
}

static void level_resize(struct stack_tier *l)
{
	struct tier *t = level_tier(l);
	struct err err = {0};
	pthread_mutex_lock(&l->s->lock);
	uint64_t to = t ? l->resize_to : 0;
	l->resize_to = t ? 0 : l->resize_to;
	pthread_mutex_unlock(&l->s->lock);
	if (!to)
		return;
	if (!t->ops->resize)
		log_warn("tier_resize_failed", "tier=%s why=\"this tier has a fixed size\"",
		         tier_name(l->opts.id));
	else if (t->ops->resize(t, to, &err) != 0)
		log_error("tier_resize_failed", "tier=%s capacity_bytes=%llu why=%s", tier_name(l->opts.id),
		          (unsigned long long)to, log_quote(err.text));
	else
		log_notice("tier_resized", "tier=%s capacity_bytes=%llu", tier_name(l->opts.id),
		           (unsigned long long)to);
}

/* Pins a part of memory; a kick calls it again for the next. */
static void memory_pins(struct stack *s)
{
	struct err err = {0};
	pthread_mutex_lock(&s->lock);
	const struct kern_copies *by = s->pin.failed ? NULL : s->pin.by;
	int device = s->pin.device;
	pthread_mutex_unlock(&s->lock);
	struct tier *t = by ? level_tier(&s->level[0]) : NULL;
	int r = t && t->ops->pin ? t->ops->pin(t, by, device, &err) : 0;
	if (r > 0)
		stack_kick(s);
	if (r >= 0)
		return;
	log_warn("memory_not_pinned", "why=%s action=\"copies to and from GPUs are slower\"",
	         log_quote(err.text));
	pthread_mutex_lock(&s->lock);
	s->pin.failed = 1;
	pthread_mutex_unlock(&s->lock);
}

/* Does everything due now; returns the latest time of the next call. */
static uint64_t work(struct stack *s)
{
	uint64_t wake = UINT64_MAX;
	for (unsigned i = 0; i < s->n && !atomic_load(&s->closing); i++) {
		struct stack_tier *l = &s->level[i];
		if (!level_tier(l) && l->open_at_us <= clock_us())
			level_try(l);
		if (!level_tier(l) && l->open_at_us < wake)
			wake = l->open_at_us;
		level_resize(l);
	}
	memory_pins(s);
	for (unsigned i = 0; i < s->n; i++)
		downs_begin(s, i, &wake);
	prefetches_begin(s);
	return wake;
}

static void *copy_thread(void *arg)
{
	struct stack *s = arg;
	pthread_mutex_lock(&s->lock);
	while (!s->stop) {
		atomic_store(&s->kicked, 0);
		pthread_mutex_unlock(&s->lock);
		uint64_t wake = work(s);
		pthread_mutex_lock(&s->lock);
		struct timespec at = {(time_t)(wake / 1000000), (long)(wake % 1000000) * 1000};
		int late = 0;
		while (!s->stop && !atomic_load(&s->kicked) && !late) {
			if (wake == UINT64_MAX)
				pthread_cond_wait(&s->wake, &s->lock);
			else
				late = pthread_cond_timedwait(&s->wake, &s->lock, &at) != 0;
		}
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static int all_tried(const struct stack *s)
{
	for (unsigned i = 0; i < s->n; i++)
		if (!s->level[i].tried)
			return 0;
	return 1;
}

void stack_copy_start(struct stack *s)
{
	uint64_t until = clock_us() + s->opts.open_wait_us;
	struct timespec at = {(time_t)(until / 1000000), (long)(until % 1000000) * 1000};
	if (s->memory)
		level_try(&s->level[0]);
	if (pthread_create(&s->thread, NULL, copy_thread, s) != 0)
		check_fatal("cannot start the thread that copies between tiers; raise the limit on tasks "
		            "(LimitNPROC, TasksMax)");
	pthread_mutex_lock(&s->lock);
	while (!all_tried(s) && pthread_cond_timedwait(&s->opened, &s->lock, &at) == 0)
		;
	pthread_mutex_unlock(&s->lock);
}

void stack_copy_stop(struct stack *s)
{
	pthread_mutex_lock(&s->lock);
	s->stop = 1;
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->thread, NULL);
}
