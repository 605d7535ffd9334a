/* stack_world.h - what the tests of a stack of tiers share: real memory, and below it fakes with a
 * thread of their own that hold, refuse or break what they are told to; operations that are
 * waited for, and letters for where a block is. */
#ifndef TESTS_STACK_WORLD_H
#define TESTS_STACK_WORLD_H

#include "tests/unit/flush_rig.h"

#include "daemons/storage/memory.h"
#include "daemons/storage/sum.h"
#include "daemons/storage/tier_stack.h"

#include "util/clock.h"
#include "util/mem.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNIT 65536u
#define NAMES 256u
#define WAIT_US 20000000u

/* --- a lower tier -------------------------------------------------------- */

struct fake {
	struct tier tier;
	struct tier_ops ops;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct list gets, puts; /* of tier_op */
	unsigned queued, most_queued;
	/* hold: nothing is begun; hold_late: no put that was copied is stored; hold_done: nor told */
	int stop, hold, hold_late, hold_done;
	int put_code; /* what puts end with before they move, 0: they are taken */
	int get_corrupt;
	unsigned char *block[NAMES]; /* by the name in the key */
	size_t bytes[NAMES];
	struct tier_sum sum[NAMES];
	unsigned n_puts, n_gets, n_moved_in;
	void (*changed)(void *arg, const struct tier_key *key, int stored);
	void *changed_arg;
	void (*at_flush)(void);  /* or NULL: before it drops anything */
	enum tier_policy policy; /* offload: due as soon as it is stored */
	uint32_t after, hits[NAMES];
	int due[NAMES];
};

static inline unsigned name_of(const struct tier_key *k)
{
	unsigned name;
	memcpy(&name, k->b, sizeof name);
	return name % NAMES;
}

static inline struct fake *fake_of(struct tier *t)
{
	return (struct fake *)t;
}

static inline void fake_changed(struct fake *f, unsigned name, int stored)
{
	struct tier_key k = {{0}};
	memcpy(k.b, &name, sizeof name);
	if (f->changed)
		f->changed(f->changed_arg, &k, stored);
}

static inline void fake_drop(struct fake *f, unsigned name)
{
	if (f->block[name])
		fake_changed(f, name, 0);
	free(f->block[name]);
	f->block[name] = NULL;
}

static inline void fake_due(struct fake *f, unsigned name)
{
	f->due[name] |= f->policy == TIER_OFFLOAD ||
	                (f->policy == TIER_WRITE_THROUGH && f->hits[name] == f->after);
}

static inline int fake_do_put(struct fake *f, struct tier_op *op)
{
	unsigned name = name_of(&op->key);
	pthread_mutex_lock(&f->lock);
	f->n_puts++;
	int code = f->put_code, known = f->block[name] && f->bytes[name] == op->bytes;
	pthread_mutex_unlock(&f->lock);
	if (code || known)
		return code;
	unsigned char *bytes = mem_alloc(op->bytes);
	size_t half = op->bytes / 3;
	struct tier_span span[2] = {{bytes, half}, {bytes + half, op->bytes - half}};
	code = tier_op_move(op, span, 2);
	pthread_mutex_lock(&f->lock);
	f->n_moved_in++;
	while (f->hold_late && !f->stop)
		pthread_cond_wait(&f->more, &f->lock);
	if (code == 0) {
		fake_drop(f, name);
		f->block[name] = bytes;
		f->bytes[name] = op->bytes;
		f->sum[name] = op->sum;
		f->hits[name] = 0;
		fake_due(f, name);
		fake_changed(f, name, 1);
	} else {
		free(bytes);
	}
	pthread_mutex_unlock(&f->lock);
	return code;
}

static inline int fake_do_get(struct fake *f, struct tier_op *op)
{
	unsigned name = name_of(&op->key);
	pthread_mutex_lock(&f->lock);
	f->n_gets++;
	unsigned char *bytes = f->block[name] && f->bytes[name] == op->bytes ? mem_alloc(op->bytes)
	                                                                     : NULL;
	if (bytes)
		memcpy(bytes, f->block[name], op->bytes);
	if (bytes && !op->aside) {
		f->hits[name]++;
		fake_due(f, name);
	}
	int corrupt = f->get_corrupt;
	pthread_mutex_unlock(&f->lock);
	if (!bytes)
		return ERR_NOTFOUND;
	struct tier_span span = {bytes, op->bytes};
	/* what came down is what was summed */
	ck_assert(sum_equal(sum_spans(&span, 1), f->sum[name]));
	int code = corrupt ? ERR_CORRUPT : tier_op_move(op, &span, 1);
	free(bytes);
	return code;
}

static inline void fake_do(struct fake *f, struct tier_op *op, int put)
{
	int code = tier_op_unwanted(op) ? ERR_CANCELLED : put ? fake_do_put(f, op) : fake_do_get(f, op);
	pthread_mutex_lock(&f->lock);
	while (put && f->hold_done && !f->stop)
		pthread_cond_wait(&f->more, &f->lock);
	pthread_mutex_unlock(&f->lock);
	op->done(op, code, code == 0 ? f->ops.id : TIER_NONE,
	         code == ERR_IO        ? "the device is broken"
	         : code == ERR_CORRUPT ? "damaged"
	                               : NULL);
}

static inline void *fake_thread(void *arg)
{
	struct fake *f = arg;
	pthread_mutex_lock(&f->lock);
	for (;;) {
		struct list *from = !list_empty(&f->gets) ? &f->gets : &f->puts;
		if (list_empty(from) || (f->hold && !f->stop)) {
			if (f->stop)
				break;
			pthread_cond_wait(&f->more, &f->lock);
			continue;
		}
		struct tier_op *op = list_entry(from->next, struct tier_op, link);
		list_remove(&op->link);
		f->queued--;
		pthread_mutex_unlock(&f->lock);
		fake_do(f, op, from == &f->puts);
		pthread_mutex_lock(&f->lock);
	}
	pthread_mutex_unlock(&f->lock);
	return NULL;
}

static inline void fake_queue(struct fake *f, struct list *q, struct tier_op *op)
{
	pthread_mutex_lock(&f->lock);
	list_push_back(q, &op->link);
	f->queued++;
	f->most_queued = f->queued > f->most_queued ? f->queued : f->most_queued;
	pthread_cond_signal(&f->more);
	pthread_mutex_unlock(&f->lock);
}

static inline void fake_put(struct tier *t, struct tier_op *op)
{
	fake_queue(fake_of(t), &fake_of(t)->puts, op);
}
static inline void fake_get(struct tier *t, struct tier_op *op)
{
	fake_queue(fake_of(t), &fake_of(t)->gets, op);
}
static inline void fake_lookup(struct tier *t, struct tier_find *find)
{
	struct fake *f = fake_of(t);
	pthread_mutex_lock(&f->lock);
	for (uint32_t i = 0; i < find->n; i++) {
		unsigned name = name_of(&find->key[i]);
		if (!find->where[i] && f->block[name] && f->bytes[name] == find->bytes)
			find->where[i] = (unsigned char)f->ops.id;
		else if (!find->where[i] && find->leading)
			break;
	}
	pthread_mutex_unlock(&f->lock);
	find->done(find);
}
static inline int fake_remove(struct tier *t, const struct tier_key *key)
{
	struct fake *f = fake_of(t);
	pthread_mutex_lock(&f->lock);
	int there = f->block[name_of(key)] != NULL;
	fake_drop(f, name_of(key));
	pthread_mutex_unlock(&f->lock);
	return there ? 0 : ERR_NOTFOUND;
}
static inline void fake_flush(struct tier *t, struct tier_flush *flush)
{
	if (fake_of(t)->at_flush)
		fake_of(t)->at_flush();
	for (unsigned i = 0; i < NAMES; i++) {
		struct tier_key k = {{0}};
		memcpy(k.b, &i, sizeof i);
		flush->blocks += fake_remove(t, &k) == 0;
	}
	flush->done(flush);
}
static inline void fake_policy(struct tier *t, enum tier_policy policy, uint32_t after,
                               unsigned low_percent)
{
	struct fake *f = fake_of(t);
	(void)low_percent;
	pthread_mutex_lock(&f->lock);
	f->policy = policy;
	f->after = after;
	pthread_mutex_unlock(&f->lock);
}
static inline uint32_t fake_due_take(struct tier *t, uint32_t max, struct tier_due *ret)
{
	struct fake *f = fake_of(t);
	uint32_t n = 0;
	pthread_mutex_lock(&f->lock);
	for (unsigned i = 0; i < NAMES && n < max; i++)
		if (f->due[i] && f->block[i]) {
			f->due[i] = 0;
			ret[n] = (struct tier_due){.bytes = f->bytes[i]};
			memcpy(ret[n++].key.b, &i, sizeof i);
		}
	pthread_mutex_unlock(&f->lock);
	return n;
}
static inline void fake_stored(struct tier *t, const struct tier_key *key, enum tier_below what)
{
	struct fake *f = fake_of(t);
	pthread_mutex_lock(&f->lock);
	if (key && what == TIER_BELOW_LATER)
		f->due[name_of(key)] = 1;
	pthread_mutex_unlock(&f->lock);
}
static inline void fake_watch(struct tier *t,
                              void (*changed)(void *arg, const struct tier_key *key, int stored),
                              void *arg)
{
	struct fake *f = fake_of(t);
	pthread_mutex_lock(&f->lock);
	f->changed = changed;
	f->changed_arg = arg;
	pthread_mutex_unlock(&f->lock);
}
static inline void fake_stat(struct tier *t, struct tier_stat *ret)
{
	struct fake *f = fake_of(t);
	*ret = (struct tier_stat){0};
	pthread_mutex_lock(&f->lock);
	ret->queued = f->queued;
	pthread_mutex_unlock(&f->lock);
	memcpy(ret->state, "ready", 6);
}
static inline void fake_destroy(struct tier *t)
{
	struct fake *f = fake_of(t);
	pthread_mutex_lock(&f->lock);
	f->stop = 1;
	pthread_cond_signal(&f->more);
	pthread_mutex_unlock(&f->lock);
	pthread_join(f->thread, NULL);
	f->changed = NULL;
	for (unsigned i = 0; i < NAMES; i++)
		fake_drop(f, i);
	pthread_mutex_destroy(&f->lock);
	pthread_cond_destroy(&f->more);
	free(f);
}

static inline struct fake *fake_new(enum tier_id id)
{
	struct fake *f = mem_zalloc(sizeof *f);
	f->ops = (struct tier_ops){.id = id,
	                           .put = fake_put,
	                           .get = fake_get,
	                           .lookup = fake_lookup,
	                           .remove = fake_remove,
	                           .flush = fake_flush,
	                           .stat = fake_stat,
	                           .policy = fake_policy,
	                           .due = fake_due_take,
	                           .stored = fake_stored,
	                           .watch = fake_watch,
	                           .destroy = fake_destroy};
	f->tier.ops = &f->ops;
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->more, NULL);
	list_init(&f->gets);
	list_init(&f->puts);
	ck_assert_int_eq(pthread_create(&f->thread, NULL, fake_thread, f), 0);
	return f;
}

static inline void fake_set(struct fake *f, int hold, int put_code)
{
	pthread_mutex_lock(&f->lock);
	f->hold = hold;
	f->put_code = put_code;
	pthread_cond_signal(&f->more);
	pthread_mutex_unlock(&f->lock);
}

static inline int fake_has(struct fake *f, unsigned name)
{
	pthread_mutex_lock(&f->lock);
	int has = f->block[name] != NULL;
	pthread_mutex_unlock(&f->lock);
	return has;
}

static inline unsigned fake_count(struct fake *f, const unsigned *counter)
{
	pthread_mutex_lock(&f->lock);
	unsigned n = *counter;
	pthread_mutex_unlock(&f->lock);
	return n;
}

/* --- operations of a test ------------------------------------------------ */

struct op {
	struct tier_op op;
	unsigned char *bytes;
	int move_code;
	atomic_int moved, done;
	int code;
	enum tier_id tier;
	char text[64];
};

static struct tier *s;
static struct fake *disk, *redis;

static inline void fill(unsigned char *p, size_t n, unsigned name)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (unsigned char)(name * 131u + i * 7u + (i >> 9));
}

static inline int op_move_in(struct tier_op *top, const struct tier_span *span, unsigned n)
{
	struct op *o = (struct op *)top;
	struct sum_state sum;
	sum_begin(&sum);
	o->moved++;
	for (size_t i = 0, at = 0; i < n; at += span[i++].bytes)
		sum_add_copy(&sum, span[i].at, o->bytes + at, span[i].bytes);
	top->sum = sum_end(&sum);
	return o->move_code;
}

static inline int op_move_out(struct tier_op *top, const struct tier_span *span, unsigned n)
{
	struct op *o = (struct op *)top;
	o->moved++;
	for (size_t i = 0, at = 0; i < n; at += span[i++].bytes)
		memcpy(o->bytes + at, span[i].at, span[i].bytes);
	return o->move_code;
}

static inline void op_done(struct tier_op *top, int code, enum tier_id tier, const char *text)
{
	struct op *o = (struct op *)top;
	o->code = code;
	o->tier = tier;
	snprintf(o->text, sizeof o->text, "%s", text ? text : "");
	ck_assert_int_eq(atomic_fetch_add(&o->done, 1), 0);
}

static inline struct op *op_new(int put, unsigned name, size_t bytes)
{
	struct op *o = mem_zalloc(sizeof *o);
	o->bytes = mem_zalloc(bytes);
	memcpy(o->op.key.b, &name, sizeof name);
	o->op.bytes = bytes;
	o->op.move = put ? op_move_in : op_move_out;
	o->op.done = op_done;
	if (put)
		fill(o->bytes, bytes, name);
	return o;
}

static inline struct op *op_begin(int put, unsigned name, size_t bytes)
{
	struct op *o = op_new(put, name, bytes);
	put ? s->ops->put(s, &o->op) : s->ops->get(s, &o->op);
	return o;
}

#define UNTIL(what)                                                    \
	for (uint64_t until_ = clock_us() + WAIT_US; !(what); usleep(200)) \
	ck_assert_msg(clock_us() < until_, "waited in vain for: %s", #what)

/* Waits for the end; the contents of a get that succeeded are compared. */
static inline int op_end(struct op *o, unsigned name, enum tier_id *ret_tier, char *ret_text)
{
	UNTIL(o->done);
	int code = o->code;
	unsigned char *want = mem_alloc(o->op.bytes);
	fill(want, o->op.bytes, name);
	if (code == 0)
		ck_assert_mem_eq(o->bytes, want, o->op.bytes);
	if (ret_tier)
		*ret_tier = o->tier;
	if (ret_text)
		memcpy(ret_text, o->text, sizeof o->text);
	free(want);
	free(o->bytes);
	free(o);
	return code;
}

/* Codes as the tier's letter: m, d, r; '-' for a miss, '!' for anything else. */
static inline char letter(int code, enum tier_id tier)
{
	return code == 0 ? " mdr"[tier] : code == ERR_NOTFOUND ? '-' : '!';
}

static inline char put(unsigned name)
{
	enum tier_id tier;
	int code = op_end(op_begin(1, name, UNIT), name, &tier, NULL);
	return letter(code, tier);
}

static inline char get(unsigned name)
{
	enum tier_id tier;
	int code = op_end(op_begin(0, name, UNIT), name, &tier, NULL);
	return letter(code, tier);
}

static inline void found(struct tier_find *f)
{
	ck_assert(f->done == found);
	f->n = 0;
}

/* Where each of the names is, in letters. */
static inline const char *where(const unsigned *names, uint32_t n, int leading, int prefetch)
{
	static char text[17];
	struct tier_key key[16] = {{{0}}};
	unsigned char at[16] = {0};
	for (uint32_t i = 0; i < n; i++)
		memcpy(key[i].b, &names[i], sizeof names[i]);
	struct tier_find f = {.key = key,
	                      .where = at,
	                      .n = n,
	                      .leading = leading,
	                      .prefetch = prefetch,
	                      .bytes = UNIT,
	                      .done = found};
	s->ops->lookup(s, &f);
	UNTIL(f.n == 0);
	for (uint32_t i = 0; i < n; i++)
		text[i] = "-mdr"[at[i]];
	text[n] = 0;
	return text;
}

static inline char where_is(unsigned name)
{
	return where(&name, 1, 1, 0)[0];
}

/* The code; blocks dropped and the reason may be NULL. */
static inline int flushed(enum tier_id id, uint64_t *ret_blocks, char *ret_text)
{
	struct flush_rig r = flush_rig();
	tier_stack_flush(s, id, &r.f);
	flush_rig_wait(&r);
	if (ret_blocks)
		*ret_blocks = r.f.blocks;
	if (ret_text)
		memcpy(ret_text, r.f.text, sizeof r.f.text);
	return r.f.code;
}

static inline struct stack_stat stat_of(unsigned level)
{
	struct stack_stat l;
	tier_stack_level(s, level, &l);
	return l;
}

static inline struct stack_opts opts_of(void)
{
	return (struct stack_opts){
		.reopen_us = 20000, .open_wait_us = WAIT_US, .pause_us = 20000, .redis_lookup_us = 10000};
}

/* memory of so many units (0: none), a disk, a Redis if wanted; memory's and the disk's policy. */
static inline void start(unsigned units, enum tier_policy policy, uint32_t after, int with_redis,
                         enum tier_policy disk_policy, uint32_t disk_after)
{
	struct stack_opts o = opts_of();
	struct tier *memory;
	disk = fake_new(TIER_DISK);
	redis = with_redis ? fake_new(TIER_REDIS) : NULL;
	if (units) {
		ck_assert_int_eq(tier_memory_new(units * UNIT, &memory, NULL), 0);
		o.level[o.n++] = (struct stack_level){TIER_MEMORY, memory, NULL, NULL, policy, after, 25};
	}
	o.level[o.n++] = (struct stack_level){TIER_DISK,   &disk->tier, NULL, NULL,
	                                      disk_policy, disk_after,  0};
	if (redis)
		o.level[o.n++] = (struct stack_level){TIER_REDIS, &redis->tier, NULL, NULL, TIER_RECYCLE, 0,
		                                      0};
	s = tier_stack_new(&o);
}

static inline void end(void)
{
	s->ops->destroy(s);
}

/* These blocks are on the disk and not in memory. */
static inline void only_below(unsigned from, unsigned to)
{
	struct tier *memory = tier_stack_find(s, TIER_MEMORY);
	for (unsigned i = from; i < to; i++) {
		put(i);
		UNTIL(fake_has(disk, i));
	}
	UNTIL(stat_of(0).copying == 0);
	tier_flushed(memory, NULL);
}

#endif
