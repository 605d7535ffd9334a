/* stack_copy.c - blocks on their way from one tier of a stack to another, and the thread that begins them, opens tiers and changes their size.
 *
 * Down: what a tier names as due. From memory the tier below copies by itself, inside its `move`; from
 * another one the block goes through a buffer, at most COPIES_MAX of them. Up: only into memory, inside the `move` of the get below; a get that comes while
 * its block is on its way up waits for it.
 *
 * What always holds: a copy that was begun ends with `stored` for the tier it came from. A flush meanwhile makes it void. A tier below that does not take
 * blocks is left alone for pause_us; nothing is lost by that but the room in which the blocks would have been safe. The thread sleeps until something is
 * to be done; nothing here is fatal but that it cannot be started. */
#include "stack_int.h"
#include "spans.h"
#include "kernels/stream.h"
#include "sum.h"

#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct copy {
	struct tier_op op;         /* first: the put below, or the get of a block that goes up */
	struct tier_op from_op;    /* the get of a block that goes through buf */
	struct list link;          /* in stack.ups */
	struct list waiters;       /* of pass */
	struct stack *s;
	struct level *from, *to;
	uint64_t flushes;
	unsigned char *buf;
};

/* --- bytes from one tier's spans into another's --- */

/* One end of a copy within a `move`: the spans that the other tier's move has to be joined with. */
struct joint {
	struct tier_op op;         /* first */
	const struct tier_span *span;
	unsigned n;
	int code;
};

/* Walks two rows of spans of the same length beside each other. s: sums what is copied, may be NULL. */
static void spans_copy(const struct tier_span *to, unsigned n_to, const struct tier_span *from, unsigned n_from, struct sum_state *s)
{
	struct span_walk a = {to, n_to, 0}, b = {from, n_from, 0};
	for (size_t left_to, left_from; (left_to = span_left(&a)) && (left_from = span_left(&b));) {
		size_t n = left_to < left_from ? left_to : left_from;
		if (s)
			sum_add_copy(s, span_take(&a, n), span_take(&b, n), n);
		else
			stream_copy(span_take(&a, n), span_take(&b, n), n);
	}
	stream_end();
}

static void joint_done(struct tier_op *op, int code, enum tier_id tier, const char *text)
{
	(void)tier;
	(void)text;
	((struct joint *)op)->code = code;
}

/* Into memory. The sum is taken anew: these bytes were just verified, and not every tier says what it compared them with. */
static int joint_put(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	struct joint *j = (struct joint *)op;
	struct sum_state s;
	sum_begin(&s);
	spans_copy(span, n, j->span, j->n, &s);
	op->sum = sum_end(&s);
	return 0;
}

static int joint_get(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	struct joint *j = (struct joint *)op;
	spans_copy(j->span, j->n, span, n, NULL);
	return 0;
}

static void found_nothing(struct tier_find *f)
{
	(void)f;
}

/* Has the level, whose tier answers at once, this block now? */
static int level_has(struct level *l, const struct tier_key *key, size_t bytes)
{
	struct tier *t = level_tier(l);
	unsigned char where = TIER_NONE;
	struct tier_find f = {.key = key, .where = &where, .n = 1, .bytes = bytes, .done = found_nothing};
	t->ops->lookup(t, &f);
	return where != TIER_NONE;
}

/* A block is kept in `below` too: `t` may evict it for nothing. If it has gone there meanwhile, who watches `below` told that before this was said, so it is
 * looked at after. (What a Redis has cannot be seen at once.) */
static void kept_below(struct tier *t, struct level *below, const struct tier_key *key, size_t bytes)
{
	t->ops->stored(t, key, TIER_BELOW_HAS);
	if (below->opts.id != TIER_REDIS && !level_has(below, key, bytes))
		t->ops->stored(t, key, TIER_BELOW_GONE);
}

/* Puts the block that lies in these spans, and came from that level, into memory, at once. flushes: as counted when it was asked for; after a flush it does not
 * arrive. */
static int into_memory(struct level *from, const struct tier_op *op, uint64_t flushes, const struct tier_span *span, unsigned n)
{
	struct stack *s = from->s;
	struct tier *memory = level_tier(&s->level[0]);
	struct joint j = {.op = {.key = op->key, .bytes = op->bytes, .move = joint_put, .done = joint_done, .aside = 1}, .span = span, .n = n, .code = ERR_IO};
	if (!s->memory || !memory)
		return ERR_CLOSED;
	memory->ops->put(memory, &j.op);
	if (j.code == 0 && flushes != atomic_load(&s->flushes)) {   /* one that comes later than this look finds the block in memory */
		memory->ops->remove(memory, &op->key);
		return ERR_CANCELLED;
	}
	if (j.code == 0)
		kept_below(memory, from, &op->key, op->bytes);
	if (atomic_load(&s->level[0].policy) == TIER_OFFLOAD)
		stack_kick(s);   /* it took room */
	return j.code;
}

/* Reads it out of memory into these spans, at once; *ret_sum is the block's. */
static int out_of_memory(struct stack *s, const struct tier_op *op, const struct tier_span *span, unsigned n, struct tier_sum *ret_sum)
{
	struct tier *memory = level_tier(&s->level[0]);
	struct joint j = {.op = {.key = op->key, .bytes = op->bytes, .move = joint_get, .done = joint_done, .aside = 1}, .span = span, .n = n, .code = ERR_IO};
	if (!s->memory || !memory)
		return ERR_NOTFOUND;
	memory->ops->get(memory, &j.op);
	if (j.code == 0)
		*ret_sum = j.op.sum;
	return j.code;
}

void stack_promote(struct pass *p, const struct tier_span *span, unsigned n)
{
	struct level *l = &p->s->level[p->level];
	if (!p->s->memory || into_memory(l, &p->op, p->flushes, span, n) != 0)
		return;
	pthread_mutex_lock(&p->s->lock);
	l->count.promoted++;
	pthread_mutex_unlock(&p->s->lock);
}

/* --- down --- */

static struct copy *copy_new(struct stack *s, struct level *from, struct level *to, const struct tier_due *d)
{
	struct copy *c = mem_zalloc(sizeof *c);
	list_init(&c->op.link);
	list_init(&c->from_op.link);
	list_init(&c->link);
	list_init(&c->waiters);
	c->s = s;
	c->from = from;
	c->to = to;
	c->op.key = c->from_op.key = d->key;
	c->op.bytes = c->from_op.bytes = d->bytes;
	c->flushes = atomic_load(&s->flushes);
	return c;
}

static int copy_void(const struct copy *c)
{
	return atomic_load(&c->s->closing) || c->flushes != atomic_load(&c->s->flushes);
}

/* What the tier that the block came from hears. */
static void down_told(struct copy *c, int code)
{
	struct tier *from = level_tier(c->from);
	int later = code == ERR_CLOSED || code == ERR_IO || code == ERR_TIMEOUT || code == ERR_NOMEM;
	if (from->ops->stored && code == 0)
		kept_below(from, c->to, &c->op.key, c->op.bytes);
	else if (from->ops->stored)
		from->ops->stored(from, &c->op.key, later ? TIER_BELOW_LATER : TIER_BELOW_REFUSED);
}

/* Leaves the tier below alone for a while; says so once in that while. */
static void pause_level(struct level *to, const struct level *from, int code, const char *text)
{
	uint64_t now = clock_us();
	pthread_mutex_lock(&to->s->lock);
	int told = to->pause_until_us > now;
	to->pause_until_us = now + to->s->opts.pause_us;
	pthread_mutex_unlock(&to->s->lock);
	if (!told)
		log_warn("copy_down_failed", "from=%s to=%s code=%s why=%s action=paused pause_ms=%llu", tier_name(from->opts.id), tier_name(to->opts.id), err_name(code),
		         log_quote(text ? text : err_name(code)), (unsigned long long)(to->s->opts.pause_us / 1000));
}

static void down_end(struct copy *c, int code, const char *text)
{
	struct stack *s = c->s;
	struct tier *to = level_tier(c->to);
	if (code == 0 && copy_void(c)) {   /* flushed while it was written */
		if (!atomic_load(&s->closing))
			to->ops->remove(to, &c->op.key);
		code = ERR_CANCELLED;
	}
	if (code == ERR_CLOSED || code == ERR_IO || code == ERR_TIMEOUT || code == ERR_NOMEM || code == ERR_FULL)
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
	free(c->buf);
	free(c);
	stack_kick(s);
}

static void down_done(struct tier_op *op, int code, enum tier_id tier, const char *text)
{
	(void)tier;
	down_end((struct copy *)op, code, text);
}

static int down_move(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	struct copy *c = (struct copy *)op;
	struct tier_span buf = {c->buf, op->bytes};
	if (copy_void(c))
		return ERR_CANCELLED;
	if (!c->buf)
		return out_of_memory(c->s, op, span, n, &op->sum);
	spans_copy(span, n, &buf, 1, NULL);
	op->sum = c->from_op.sum;
	return 0;
}

static void down_put(struct copy *c)
{
	struct tier *to = level_tier(c->to);
	c->op.move = down_move;
	c->op.done = down_done;
	to->ops->put(to, &c->op);
}

static int buf_move(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	struct copy *c = list_entry(op, struct copy, from_op);
	struct tier_span buf = {c->buf, op->bytes};
	struct sum_state s;
	sum_begin(&s);
	spans_copy(&buf, 1, span, n, &s);
	op->sum = sum_end(&s);
	return 0;
}

static void buf_done(struct tier_op *op, int code, enum tier_id tier, const char *text)
{
	struct copy *c = list_entry(op, struct copy, from_op);
	(void)tier;
	(void)text;
	if (code == 0 && !copy_void(c))
		down_put(c);
	else
		down_end(c, ERR_NOTFOUND, NULL);   /* it is not there any more: there is nothing to copy */
}

static void down_start(struct stack *s, struct level *from, struct level *to, const struct tier_due *d)
{
	struct copy *c = copy_new(s, from, to, d);
	pthread_mutex_lock(&s->lock);
	from->copying++;
	pthread_mutex_unlock(&s->lock);
	if (s->memory && from == &s->level[0]) {
		down_put(c);
		return;
	}
	c->buf = malloc(d->bytes);
	if (!c->buf) {   /* a block may be large: this one does not go down now */
		down_end(c, ERR_NOMEM, "no memory for a buffer");
		return;
	}
	struct tier_span buf = {c->buf, d->bytes};
	c->from_op.move = buf_move;
	c->from_op.done = buf_done;
	c->from_op.aside = 1;
	if (out_of_memory(s, &c->from_op, &buf, 1, &c->from_op.sum) == 0)
		down_put(c);
	else
		level_tier(from)->ops->get(level_tier(from), &c->from_op);
}

void stack_used(struct level *l)
{
	if (atomic_load(&l->policy) != TIER_RECYCLE && stack_next_open(l->s, (unsigned)(l - l->s->level) + 1) >= 0)
		stack_kick(l->s);
}

/* Begins as many as may be under way; *wake becomes earlier if there is a pause to wait for. */
static void downs_begin(struct stack *s, unsigned i, uint64_t *wake)
{
	struct level *l = &s->level[i];
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

void stack_prefetch(struct stack *s, const struct tier_find *f)
{
	unsigned added = 0;
	if (!s->memory)
		return;
	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < f->n && f->where[i] && s->n_fetch < PREFETCH_MAX; i++)
		for (unsigned k = 1; k < s->n; k++)
			if (f->where[i] == s->level[k].opts.id) {
				s->fetch[(s->fetch_at + s->n_fetch++) % PREFETCH_MAX] = (struct fetch){{f->key[i], f->bytes}, k};
				added++;
			}
	pthread_mutex_unlock(&s->lock);
	if (added)
		stack_kick(s);
}

static int same_block(const struct tier_op *a, const struct tier_key *key, size_t bytes)
{
	return a->bytes == bytes && memcmp(a->key.b, key->b, sizeof key->b) == 0;
}

static struct copy *up_find(struct stack *s, const struct tier_key *key, size_t bytes)
{
	list_each(it, &s->ups)
		if (same_block(&list_entry(it, struct copy, link)->op, key, bytes))
			return list_entry(it, struct copy, link);
	return NULL;
}

/* Under way: wait. Only wanted: the get itself brings it up. */
int stack_wait_up(struct pass *p)
{
	struct stack *s = p->s;
	pthread_mutex_lock(&s->lock);
	struct copy *c = p->waited || !s->n_ups ? NULL : up_find(s, &p->op.key, p->op.bytes);
	if (c) {
		p->waited = 1;
		list_push_back(&c->waiters, &p->link);
	}
	for (unsigned i = 0; !c && i < s->n_fetch; i++) {
		struct fetch *f = &s->fetch[(s->fetch_at + i) % PREFETCH_MAX];
		if (same_block(&p->op, &f->what.key, f->what.bytes))
			f->what.bytes = 0;
	}
	pthread_mutex_unlock(&s->lock);
	return c != NULL;
}

static int up_move(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	struct copy *c = (struct copy *)op;
	return copy_void(c) ? ERR_CANCELLED : into_memory(c->from, op, c->flushes, span, n);
}

static void up_done(struct tier_op *op, int code, enum tier_id tier, const char *text)
{
	struct copy *c = (struct copy *)op;
	struct stack *s = c->s;
	struct list waiters;
	(void)tier;
	(void)text;
	pthread_mutex_lock(&s->lock);
	list_remove(&c->link);
	s->n_ups--;
	if (code == 0) {
		c->from->count.promoted++;
		c->from->count.prefetched++;
	}
	list_init(&waiters);
	while (!list_empty(&c->waiters)) {
		struct list *at = c->waiters.next;
		list_remove(at);
		list_push_back(&waiters, at);
	}
	pthread_mutex_unlock(&s->lock);
	free(c);
	while (!list_empty(&waiters)) {
		struct pass *p = list_entry(waiters.next, struct pass, link);
		list_remove(&p->link);
		p->level = 0;
		stack_pass_next(p);
	}
	stack_kick(s);
}

static int fetch_take(struct stack *s, struct fetch *ret)
{
	int got = 0;
	pthread_mutex_lock(&s->lock);
	while (!got && s->n_fetch && s->n_ups < UPS_MAX) {
		*ret = s->fetch[s->fetch_at];
		s->fetch_at = (s->fetch_at + 1) % PREFETCH_MAX;
		s->n_fetch--;
		got = ret->what.bytes && !up_find(s, &ret->what.key, ret->what.bytes);
	}
	pthread_mutex_unlock(&s->lock);
	return got;
}

static void ups_begin(struct stack *s)
{
	struct fetch f;
	while (fetch_take(s, &f)) {
		struct tier *t = level_tier(&s->level[f.level]);
		if (level_has(&s->level[0], &f.what.key, f.what.bytes))
			continue;
		struct copy *c = copy_new(s, &s->level[f.level], &s->level[0], &f.what);
		c->op.move = up_move;
		c->op.done = up_done;
		pthread_mutex_lock(&s->lock);
		list_push_back(&s->ups, &c->link);
		s->n_ups++;
		pthread_mutex_unlock(&s->lock);
		t->ops->get(t, &c->op);
	}
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

static int level_open(struct level *l, struct tier **ret, struct err *err)
{
	*ret = l->opts.tier;
	return *ret ? 0 : l->opts.open(l->opts.arg, ret, err);
}

/* Blocks that are kept in a tier above because they were here are not any more. With the tier's lock held. */
static void level_changed(void *arg, const struct tier_key *key, int stored)
{
	struct level *l = arg;
	struct stack *s = l->s;
	for (struct level *above = s->level; !stored && above < l; above++) {
		struct tier *t = level_tier(above);
		if (t && t->ops->stored)
			t->ops->stored(t, key, TIER_BELOW_GONE);
	}
	if (s->opts.changed && l->opts.id != TIER_REDIS)   /* others change what is in a Redis */
		s->opts.changed(s->opts.arg, l->opts.id, key, stored);
}

static void level_try(struct level *l)
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
		snprintf(l->why, sizeof l->why, "not there: %.80s", err.text);
		l->open_at_us = clock_us() + s->opts.reopen_us;
	}
	int first = !l->tried;
	l->tried = 1;
	pthread_cond_broadcast(&s->opened);
	pthread_mutex_unlock(&s->lock);
	if (r == 0 && s->opts.changed)
		s->opts.changed(s->opts.arg, l->opts.id, NULL, 1);
	if (r == 0)
		log_at(first ? LOG_DEBUG : LOG_INFO, NULL, "tier_open", "tier=%s", tier_name(l->opts.id));   /* at first the start of the daemon is enough */
	else if (first)
		log_error("tier_missing", "tier=%s why=%s action=\"goes on without it\" again_ms=%llu", tier_name(l->opts.id), log_quote(err.text),
		          (unsigned long long)(s->opts.reopen_us / 1000));
	else
		log_debug("tier_missing", "tier=%s why=%s", tier_name(l->opts.id), log_quote(err.text));
}

static void level_resize(struct level *l)
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
		log_warn("tier_resize_failed", "tier=%s why=\"this tier's size is not ours\"", tier_name(l->opts.id));
	else if (t->ops->resize(t, to, &err) != 0)
		log_error("tier_resize_failed", "tier=%s capacity_bytes=%llu why=%s", tier_name(l->opts.id), (unsigned long long)to, log_quote(err.text));
	else
		log_info("tier_resized", "tier=%s capacity_bytes=%llu", tier_name(l->opts.id), (unsigned long long)to);
}

/* All there is to do now; when to look again at the latest. */
static uint64_t work(struct stack *s)
{
	uint64_t wake = UINT64_MAX;
	for (unsigned i = 0; i < s->n && !atomic_load(&s->closing); i++) {
		struct level *l = &s->level[i];
		if (!level_tier(l) && l->open_at_us <= clock_us())
			level_try(l);
		if (!level_tier(l) && l->open_at_us < wake)
			wake = l->open_at_us;
		level_resize(l);
	}
	for (unsigned i = 0; i < s->n; i++)
		downs_begin(s, i, &wake);
	ups_begin(s);
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
		check_fatal("cannot start the thread that copies between tiers; raise the limit on tasks (LimitNPROC, TasksMax)");
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
