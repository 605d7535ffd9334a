/* tier_stack.c - see tier_stack.h: operations and look-ups passing through the tiers.
 *
 * Invariants: an operation is with at most one tier at a time, and its `move` is called at most
 * once. If it has moved, or was accepted without a move, it ends with that tier's result; otherwise
 * it goes to the next tier. At most LEVEL_OPS_MAX of a kind are with a lower tier, the rest are
 * queued here in order. A tier may complete before its call returns: the running pump (`pumping`)
 * then continues, so recursion is no deeper than the number of tiers.
 *
 * Every failure has a code and, except for a plain miss, a reason: the first one's if several tiers
 * failed. Nothing here is fatal. */
#include "stack_int.h"

#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct stack *stack_of(struct tier *t)
{
	return (struct stack *)t;
}

int stack_next_open(const struct stack *s, unsigned from)
{
	for (; from < s->n; from++)
		if (level_tier(&s->level[from]))
			return (int)from;
	return -1;
}

/* --- operations --- */

void stack_op_end(struct tier_op *op, int code, enum tier_id tier, const char *text)
{
	op->done = op->route.done;
	op->done(op, code, tier, text);
}

int stack_op_unwanted(const struct tier_op *op)
{
	return atomic_load(&op->route.s->closing) || tier_op_unwanted(op);
}

static int is_memory(const struct stack_tier *l)
{
	return l->s->memory && l == &l->s->level[0];
}

static void op_start(struct stack_tier *l, int kind, struct tier_op *op)
{
	struct tier *t = level_tier(l);
	if (atomic_load(&l->s->closing) || tier_op_unwanted(op))
		op->done(op, ERR_CANCELLED, TIER_NONE, NULL);
	else if (kind == KIND_PUT)
		t->ops->put(t, op);
	else
		t->ops->get(t, op);
}

/* Passes queued operations to the tier up to LEVEL_OPS_MAX. */
static void level_pump(struct stack_tier *l, int kind)
{
	struct stack *s = l->s;
	pthread_mutex_lock(&s->lock);
	if (l->pumping[kind]) {
		pthread_mutex_unlock(&s->lock);
		return;
	}
	l->pumping[kind] = 1;
	while (!list_empty(&l->waiting[kind]) && l->running[kind] < LEVEL_OPS_MAX) {
		struct tier_op *op = list_entry(l->waiting[kind].next, struct tier_op, link);
		list_remove(&op->link);
		l->n_waiting--;
		l->running[kind]++;
		if (kind == KIND_GET)
			stack_fetch_begins(op); /* cancels it if no get waits for it */
		pthread_mutex_unlock(&s->lock);
		op_start(l, kind, op);
		pthread_mutex_lock(&s->lock);
	}
	l->pumping[kind] = 0;
	pthread_mutex_unlock(&s->lock);
}

void stack_level_submit(struct stack_tier *l, int kind, struct tier_op *op)
{
	pthread_mutex_lock(&l->s->lock);
	op->route.since_us = clock_us();
	/* from here on another thread may pass it to the tier */
	list_push_back(&l->waiting[kind], &op->link);
	l->n_waiting++;
	pthread_mutex_unlock(&l->s->lock);
	level_pump(l, kind);
}

void stack_level_back(struct stack_tier *l, int kind)
{
	pthread_mutex_lock(&l->s->lock);
	l->running[kind]--;
	pthread_mutex_unlock(&l->s->lock);
	level_pump(l, kind);
}

void stack_op_next(struct tier_op *op)
{
	struct tier_route *r = &op->route;
	int at = stack_next_open(r->s, r->level);
	if (stack_op_unwanted(op)) {
		stack_op_end(op, ERR_CANCELLED, TIER_NONE, NULL);
	} else if (at < 0) {
		int code = r->code ? r->code : r->kind == KIND_GET ? ERR_NOTFOUND : ERR_CLOSED;
		stack_op_end(op, code, TIER_NONE,
		             r->code || r->kind == KIND_GET ? r->text : "no tier is open");
	} else {
		struct stack_tier *l = &r->s->level[at];
		r->level = (unsigned)at;
		if (is_memory(l))
			op_start(l, r->kind, op);
		else if (r->kind == KIND_GET)
			stack_fetch(op);
		else
			stack_level_submit(l, r->kind, op);
	}
}

void stack_op_failed(struct tier_op *op, int code, const char *text)
{
	struct tier_route *r = &op->route;
	if (!r->code && (code != ERR_NOTFOUND || text)) {
		r->code = code;
		r->text = text;
	}
	r->level++;
	stack_op_next(op);
}

/* tier_op.done while the operation is with a tier: memory, or a lower one for a put. */
static void op_done(struct tier_op *op, int code, enum tier_id tier, const char *text)
{
	struct stack_tier *l = &op->route.s->level[op->route.level];
	int kind = op->route.kind;
	if (code == ERR_CORRUPT)
		stack_kick(l->s); /* dropped: the tier above may have to copy it down again */
	if (code == 0)
		stack_used(l);
	if (code == 0 || atomic_load(&op->state) != TIER_OP_WAITS)
		stack_op_end(op, code, tier, text);
	else
		stack_op_failed(op, code, text);
	if (!is_memory(l))
		stack_level_back(l, kind);
}

static void op_begin(struct tier *t, struct tier_op *op, int kind)
{
	list_init(&op->link);
	op->route = (struct tier_route){.s = stack_of(t), .done = op->done, .kind = kind};
	op->done = op_done;
	stack_op_next(op);
}

static void stack_put(struct tier *t, struct tier_op *op)
{
	op_begin(t, op, KIND_PUT);
}

static void stack_get(struct tier *t, struct tier_op *op)
{
	op_begin(t, op, KIND_GET);
}

/* --- look-ups --- */

struct finder {
	struct tier_find find; /* passed to the tiers; first */
	struct tier_find *outer;
	struct stack *s;
	unsigned level; /* the last one asked */
};

static int all_found(const struct tier_find *f)
{
	for (uint32_t i = 0; i < f->n; i++)
		if (!f->where[i])
			return 0;
	return 1;
}

static void finder_end(struct finder *f)
{
	struct tier_find *outer = f->outer;
	if (outer->prefetch)
		stack_prefetch(f->s, outer);
	free(f);
	outer->done(outer);
}

static void finder_ask(struct finder *f, unsigned from)
{
	int at = all_found(&f->find) || atomic_load(&f->s->closing) ? -1 : stack_next_open(f->s, from);
	if (at < 0) {
		finder_end(f);
		return;
	}
	struct stack_tier *l = &f->s->level[at];
	struct tier *t = level_tier(l);
	f->level = (unsigned)at;
	/* a lower tier may fill a gap of this one */
	f->find.leading = f->outer->leading && stack_next_open(f->s, f->level + 1) < 0;
	f->find.until_us = f->outer->until_us;
	if (l->opts.id == TIER_REDIS && f->s->opts.redis_lookup_us) {
		uint64_t until = clock_us() + f->s->opts.redis_lookup_us;
		f->find.until_us = f->find.until_us && f->find.until_us < until ? f->find.until_us : until;
	}
	t->ops->lookup(t, &f->find);
}

static void finder_done(struct tier_find *find)
{
	struct finder *f = (struct finder *)find;
	finder_ask(f, f->level + 1);
}

static void stack_lookup(struct tier *t, struct tier_find *outer)
{
	struct finder *f = mem_zalloc(sizeof *f);
	f->find = *outer;
	list_init(&f->find.link);
	f->find.done = finder_done;
	f->outer = outer;
	f->s = stack_of(t);
	finder_ask(f, 0);
}

/* --- flush --- */

struct flush_part {
	struct tier_flush f; /* first */
	struct flush *of;
	enum tier_id id;
};

struct flush {
	struct tier_flush *outer;
	atomic_uint left; /* unfinished parts, plus one until all are started */
	unsigned n;
	struct flush_part part[STACK_LEVELS_MAX];
};

static void flush_leave(struct flush *a)
{
	struct tier_flush *outer = a->outer;
	const struct flush_part *failed = NULL;
	if (atomic_fetch_sub(&a->left, 1) != 1)
		return;
	outer->blocks = 0;
	for (unsigned i = 0; i < a->n; i++) {
		outer->blocks += a->part[i].f.blocks;
		failed = failed || a->part[i].f.code == 0 ? failed : &a->part[i];
	}
	outer->code = failed ? failed->f.code : 0;
	outer->text[0] = 0;
	if (failed && failed->f.code == ERR_CLOSED)
		snprintf(outer->text, sizeof outer->text,
		         "tier %s is away and keeps its blocks; %llu blocks of other tiers were dropped",
		         tier_name(failed->id), (unsigned long long)outer->blocks);
	else if (failed)
		snprintf(outer->text, sizeof outer->text, "tier %s: %.140s", tier_name(failed->id),
		         failed->f.text);
	free(a);
	outer->done(outer);
}

static void flush_part_done(struct tier_flush *f)
{
	flush_leave(((struct flush_part *)f)->of);
}

void tier_stack_flush(struct tier *t, enum tier_id id, struct tier_flush *f)
{
	struct stack *s = stack_of(t);
	struct flush *a = mem_zalloc(sizeof *a);
	a->outer = f;
	atomic_init(&a->left, 1);
	/* voids copies between tiers that are in progress or start meanwhile */
	atomic_fetch_add(&s->flushing, 1);
	atomic_fetch_add(&s->flushes, 1);
	for (unsigned i = 0; i < s->n; i++) {
		if (id != TIER_NONE && id != s->level[i].opts.id)
			continue;
		struct tier *l = level_tier(&s->level[i]);
		struct flush_part *p = &a->part[a->n++];
		*p = (struct flush_part){.f = {.code = l ? 0 : ERR_CLOSED, .done = flush_part_done},
		                         .of = a,
		                         .id = s->level[i].opts.id};
		list_init(&p->f.link);
		if (l) {
			atomic_fetch_add(&a->left, 1);
			l->ops->flush(l, &p->f);
		}
	}
	if (a->n == 0) {
		a->part[a->n++] = (struct flush_part){.f = {.code = ERR_NOTFOUND}, .id = id};
		snprintf(a->part[0].f.text, sizeof a->part[0].f.text, "no such tier");
	}
	atomic_fetch_add(&s->flushes, 1);
	atomic_fetch_sub(&s->flushing, 1);
	flush_leave(a);
	/* blocks above a flushed tier may have to be copied down again */
	stack_kick(s);
}

unsigned tier_stack_levels(const struct tier *t)
{
	return ((const struct stack *)t)->n;
}

static struct stack_tier *level_find(struct stack *s, enum tier_id id)
{
	for (unsigned i = 0; i < s->n; i++)
		if (s->level[i].opts.id == id)
			return &s->level[i];
	return NULL;
}

struct tier *tier_stack_find(struct tier *t, enum tier_id id)
{
	struct stack_tier *l = level_find(stack_of(t), id);
	return l ? level_tier(l) : NULL;
}

static uint64_t waiting_since(const struct stack_tier *l)
{
	uint64_t oldest = 0;
	for (int k = 0; k < KINDS; k++)
		if (!list_empty(&l->waiting[k])) {
			uint64_t at = list_entry(l->waiting[k].next, struct tier_op, link)->route.since_us;
			oldest = !oldest || at < oldest ? at : oldest;
		}
	return oldest;
}

void tier_stack_level(struct tier *t, unsigned i, struct stack_stat *ret)
{
	struct stack *s = stack_of(t);
	struct stack_tier *l = &s->level[i];
	struct tier_stat ts = {0};
	struct tier *tier = level_tier(l);
	if (tier)
		tier->ops->stat(tier, &ts);
	pthread_mutex_lock(&s->lock);
	*ret = l->count;
	if (!tier)
		snprintf(ts.state, sizeof ts.state, "%s", l->why);
	ts.queued += l->n_waiting;
	uint64_t since = waiting_since(l);
	if (since && (!ts.oldest_us || since < ts.oldest_us))
		ts.oldest_us = since;
	ret->copying = l->copying;
	pthread_mutex_unlock(&s->lock);
	ret->id = l->opts.id;
	ret->policy = (enum tier_policy)atomic_load(&l->policy);
	ret->open = tier != NULL;
	ret->tier = ts;
}

void tier_stack_resize(struct tier *t, enum tier_id id, uint64_t capacity_bytes)
{
	struct stack *s = stack_of(t);
	struct stack_tier *l = level_find(s, id);
	if (!l)
		return;
	pthread_mutex_lock(&s->lock);
	l->resize_to = capacity_bytes;
	pthread_mutex_unlock(&s->lock);
	stack_kick(s);
}

void tier_stack_pin(struct tier *t, const struct kern_copies *by, int device)
{
	struct stack *s = stack_of(t);
	if (!by->pin)
		return;
	pthread_mutex_lock(&s->lock);
	int first = !s->pin.by;
	if (first) {
		s->pin.by = by;
		s->pin.device = device;
	}
	pthread_mutex_unlock(&s->lock);
	if (first)
		stack_kick(s);
}

void tier_stack_policy(struct tier *t, enum tier_id id, enum tier_policy policy, uint32_t after,
                       unsigned low_percent)
{
	struct stack *s = stack_of(t);
	struct stack_tier *l = level_find(s, id);
	if (!l)
		return;
	pthread_mutex_lock(&s->lock);
	l->opts.policy = policy;
	l->opts.after = after;
	l->opts.low_percent = low_percent;
	atomic_store(&l->policy, (int)policy);
	atomic_store(&l->after, after);
	struct tier *tier = level_tier(l);
	if (tier && tier->ops->policy)
		/* under the lock, as in level_try, so that the latest policy wins */
		tier->ops->policy(tier, policy, after, low_percent);
	pthread_mutex_unlock(&s->lock);
	stack_kick(s);
}

/* --- start and end --- */

static void stack_destroy(struct tier *t)
{
	struct stack *s = stack_of(t);
	atomic_store(&s->closing, 1); /* from now on failed operations end instead of going to the next
	                               * tier */
	stack_copy_stop(s);
	for (unsigned i = s->n; i-- > 0;) { /* memory last: copies may still read it */
		struct tier *l = level_tier(&s->level[i]);
		for (int k = 0; k < KINDS; k++)
			level_pump(&s->level[i], k);
		if (l)
			l->ops->destroy(l);
	}
	free(s->wish);
	pthread_cond_destroy(&s->wake);
	pthread_cond_destroy(&s->opened);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

static const struct tier_ops stack_ops = {
	.id = TIER_NONE,
	.put = stack_put,
	.get = stack_get,
	.lookup = stack_lookup,
	.destroy = stack_destroy,
};

struct tier *tier_stack_new(const struct stack_opts *o)
{
	CHECK(o->n >= 1 && o->n <= STACK_LEVELS_MAX);
	struct stack *s = mem_zalloc(sizeof *s);
	pthread_condattr_t monotonic;
	s->tier.ops = &stack_ops;
	s->opts = *o;
	s->n = o->n;
	s->memory = o->level[0].id == TIER_MEMORY;
	pthread_mutex_init(&s->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&s->wake, &monotonic);
	pthread_cond_init(&s->opened, &monotonic);
	pthread_condattr_destroy(&monotonic);
	list_init(&s->fetches);
	s->wish = mem_array(PREFETCH_MAX, sizeof *s->wish);
	for (unsigned i = 0; i < s->n; i++) {
		struct stack_tier *l = &s->level[i];
		l->s = s;
		l->opts = o->level[i];
		atomic_init(&l->policy, (int)l->opts.policy);
		atomic_init(&l->after, l->opts.after);
		for (int k = 0; k < KINDS; k++)
			list_init(&l->waiting[k]);
		snprintf(l->why, sizeof l->why, "opening");
	}
	stack_copy_start(s);
	return &s->tier;
}
