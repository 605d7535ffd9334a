/* tier_memory.c - the host-memory tier: memory cut into units of 64 KiB (units.h); a block is as many units as it needs.
 *
 * Units make the bound exact and leave no holes: any free units serve a block of any size, so blocks of several models live together.
 *
 * What always holds while the lock is free: every unit is free or belongs to one entry; `index` has exactly the entries that are whole and not
 * dropped; each of those is in one of two orders, `clean` (a tier below has them, and they are next to be evicted) or `lru`. Data is
 * copied and checked outside the lock: a put fills units that no entry in the index has, a get pins its entry. An entry that is dropped while
 * it is read is freed by the last reader.
 *
 * Eviction takes the oldest of `clean`, else the oldest of `lru`, that nobody reads: what no tier below has is lost then, and counted. A checksum that does not hold is
 * logged and counted and the block dropped, which may lose it as well. Nothing here ends the process but bugs. */
#include "tier.h"
#include "sum.h"
#include "units.h"

#include "util/check.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/log.h"
#include "util/map.h"
#include "util/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define COPY_TRIES 3u          /* a block that no tier below took so often is not offered again */
#define RETIRE_AT_A_TIME 64u   /* units whose memory is given back under one lock */

struct entry {
	struct list order;         /* in lru or clean while indexed */
	struct list due;           /* in memory.due while it waits for being copied down */
	struct tier_key key;
	struct tier_sum sum;
	size_t bytes;
	uint32_t pins, hits, slot;
	unsigned char indexed, stored, going, clean, tries;   /* stored: a tier below has it; going: it is being copied there; clean: in that order */
	unsigned n;
	struct tier_span span[];   /* (n): one unit each, the last one cut to the block's end */
};

struct memory {
	struct tier tier;
	pthread_mutex_t lock;
	struct map *index;         /* key -> entry */
	struct list lru, clean;    /* front: evicted first */
	size_t clean_units, going_units;
	struct list due;
	struct units units;
	struct entry **slot;       /* (slots) indexed entries, for walks over all; NULL: free */
	uint32_t *slot_free;       /* stack (slots) */
	size_t slots, n_slot_free;
	enum tier_policy policy;
	uint32_t after;
	unsigned low_percent;
	void (*changed)(void *arg, const struct tier_key *key, int stored);
	void *changed_arg;
	struct tier_stat stat;
};

static struct memory *memory_of(struct tier *t)
{
	return (struct memory *)t;
}

static size_t units_for(size_t bytes)
{
	return bytes ? (bytes + UNIT_BYTES - 1) / UNIT_BYTES : 1;
}

/* --- orders; all with the lock held --- */

static void order_remove(struct memory *m, struct entry *e)
{
	list_remove(&e->order);
	if (e->clean)
		m->clean_units -= e->n;
	e->clean = 0;
}

/* As the one used last. */
static void order_used(struct memory *m, struct entry *e)
{
	order_remove(m, e);
	list_push_back(&m->lru, &e->order);
}

static void order_clean(struct memory *m, struct entry *e)
{
	order_remove(m, e);
	list_push_back(&m->clean, &e->order);
	e->clean = 1;
	m->clean_units += e->n;
}

static void going_set(struct memory *m, struct entry *e, int going)
{
	if (e->going == going)
		return;
	e->going = (unsigned char)going;
	m->going_units += going ? e->n : -(size_t)e->n;
}

/* Is it to be copied down by its hits? */
static void due_check(struct memory *m, struct entry *e)
{
	if (m->policy != TIER_WRITE_THROUGH || e->stored || e->going || e->hits < m->after || e->tries >= COPY_TRIES)
		return;
	list_remove(&e->due);
	list_push_back(&m->due, &e->due);
}

/* --- entries; all with the lock held --- */

static void entry_free(struct memory *m, struct entry *e)
{
	for (unsigned i = 0; i < e->n; i++)
		units_give(&m->units, e->span[i].at);
	units_retire(&m->units, e->n);
	free(e);
}

static void changed(struct memory *m, const struct entry *e, int stored)
{
	if (m->changed)
		m->changed(m->changed_arg, &e->key, stored);
}

/* Out of the index; its room is given back now, or by its last reader. */
static void entry_drop(struct memory *m, struct entry *e)
{
	CHECK(map_remove(m->index, e->key.b) == e);
	e->indexed = 0;
	m->slot[e->slot] = NULL;
	m->slot_free[m->n_slot_free++] = e->slot;
	m->stat.blocks--;
	m->stat.bytes -= e->bytes;
	going_set(m, e, 0);
	list_remove(&e->due);
	order_remove(m, e);
	changed(m, e, 0);
	if (!e->pins)
		entry_free(m, e);
}

static void entry_index(struct memory *m, struct entry *e)
{
	CHECK(!map_put(m->index, e->key.b, e) && m->n_slot_free);
	e->indexed = 1;
	e->slot = m->slot_free[--m->n_slot_free];
	m->slot[e->slot] = e;
	m->stat.blocks++;
	m->stat.bytes += e->bytes;
	list_push_back(&m->lru, &e->order);
	changed(m, e, 1);
	due_check(m, e);
}

static struct entry *oldest_unread(struct list *order)
{
	list_each(it, order)   /* those that are being read are few */
		if (!list_entry(it, struct entry, order)->pins)
			return list_entry(it, struct entry, order);
	return NULL;
}

/* 1: the block that is to go first has gone. spare: not if no tier below has it. */
static int evict_one(struct memory *m, int spare)
{
	struct entry *e = oldest_unread(&m->clean);
	if (!e)
		e = oldest_unread(&m->lru);
	if (!e || (spare && !e->stored))
		return 0;   /* all there is is being read or filled, or worth more than what comes */
	m->stat.evictions++;
	m->stat.lost += !e->stored;
	entry_drop(m, e);
	return 1;
}

/* What was in use when the tier became smaller makes room now: a freed entry's units go back as long as there are too many. */
static void shrink_on(struct memory *m)
{
	while (m->units.total > m->units.target && evict_one(m, 0))
		;
}

static void entry_unpin(struct memory *m, struct entry *e)
{
	if (--e->pins == 0 && !e->indexed)
		entry_free(m, e);
	shrink_on(m);
}

static int make_room(struct memory *m, size_t units, int spare)
{
	if (units > m->units.target)
		return ERR_FULL;
	while (m->units.n_free < units)
		if (!evict_one(m, spare))
			return ERR_FULL;
	return 0;
}

/* An entry with room for the operation's block, in no index yet; NULL: no room. */
static struct entry *entry_new(struct memory *m, const struct tier_op *op)
{
	size_t n = units_for(op->bytes);
	if (make_room(m, n, op->aside && m->policy == TIER_OFFLOAD) != 0)
		return NULL;
	struct entry *e = mem_zalloc(sizeof *e + n * sizeof e->span[0]);
	list_init(&e->order);
	list_init(&e->due);
	e->key = op->key;
	e->bytes = op->bytes;
	e->n = (unsigned)n;
	for (size_t i = 0; i < n; i++) {
		e->span[i].at = units_take(&m->units);
		e->span[i].bytes = i + 1 < n ? UNIT_BYTES : op->bytes - (n - 1) * UNIT_BYTES;
	}
	return e;
}

/* --- put and get --- */

/* 1: the block is here already (and counts as used just now). With the lock held. */
static int already_here(struct memory *m, const struct tier_op *op)
{
	struct entry *e = map_get(m->index, op->key.b);
	if (!e || e->bytes != op->bytes)
		return 0;
	order_used(m, e);
	m->stat.known++;
	return 1;
}

/* The copy is whole and was valid: index it, unless another put of the same block was faster. With the lock held. */
static void put_commit(struct memory *m, struct entry *e, const struct tier_op *op)
{
	if (already_here(m, op)) {
		entry_free(m, e);
		return;
	}
	struct entry *other = map_get(m->index, op->key.b);   /* of another size: the newer one counts */
	if (other)
		entry_drop(m, other);
	e->sum = op->sum;
	entry_index(m, e);
}

static void memory_put(struct tier *t, struct tier_op *op)
{
	struct memory *m = memory_of(t);
	pthread_mutex_lock(&m->lock);
	m->stat.puts++;
	int here = already_here(m, op);
	struct entry *e = here ? NULL : entry_new(m, op);
	if (!here && !e)
		m->stat.full++;
	pthread_mutex_unlock(&m->lock);
	if (here) {
		op->done(op, 0, TIER_MEMORY, NULL);
		return;
	}
	if (!e) {
		op->done(op, ERR_FULL, TIER_NONE, "the memory tier has no room that is not in use");
		return;
	}
	uint64_t begun = clock_us();
	int code = op->move(op, e->span, e->n);
	uint64_t took = clock_us() - begun;
	pthread_mutex_lock(&m->lock);
	if (code == 0) {
		m->stat.write_bytes += op->bytes;
		m->stat.write_us += took;
		put_commit(m, e, op);
	} else {
		entry_free(m, e);
	}
	shrink_on(m);
	pthread_mutex_unlock(&m->lock);
	op->done(op, code, code == 0 ? TIER_MEMORY : TIER_NONE, NULL);
}

/* The entry of this key and size, pinned, or NULL. */
static struct entry *get_begin(struct memory *m, const struct tier_op *op)
{
	pthread_mutex_lock(&m->lock);
	struct entry *e = map_get(m->index, op->key.b);
	if (e && e->bytes != op->bytes)
		e = NULL;
	if (e)
		e->pins++;
	if (!op->aside) {
		m->stat.gets++;
		m->stat.hits += e != NULL;
		m->stat.misses += e == NULL;
	}
	if (e && !op->aside) {
		order_used(m, e);
		e->hits++;
		due_check(m, e);
	}
	pthread_mutex_unlock(&m->lock);
	return e;
}

static void get_end(struct memory *m, struct entry *e, int code, uint64_t took_us)
{
	pthread_mutex_lock(&m->lock);
	if (code == 0) {
		m->stat.read_bytes += e->bytes;
		m->stat.read_us += took_us;
	} else if (code == ERR_CORRUPT) {
		m->stat.corrupt++;
		if (e->indexed) {
			m->stat.lost += !e->stored;
			entry_drop(m, e);
		}
	}
	entry_unpin(m, e);
	pthread_mutex_unlock(&m->lock);
}

static void memory_get(struct tier *t, struct tier_op *op)
{
	struct memory *m = memory_of(t);
	struct entry *e = get_begin(m, op);
	if (!e) {
		op->done(op, ERR_NOTFOUND, TIER_NONE, NULL);
		return;
	}
	uint64_t begun = clock_us();
	if (!sum_equal(sum_spans(e->span, e->n), e->sum)) {
		log_error("stored_block_corrupt", "tier=%s bytes=%zu action=dropped", tier_name(TIER_MEMORY), e->bytes);
		get_end(m, e, ERR_CORRUPT, 0);
		op->done(op, ERR_CORRUPT, TIER_NONE, "the checksum of the stored block does not hold; it was dropped");
		return;
	}
	op->sum = e->sum;
	int code = op->move(op, e->span, e->n);
	get_end(m, e, code == ERR_CORRUPT ? ERR_IO : code, clock_us() - begun);
	op->done(op, code, code == 0 ? TIER_MEMORY : TIER_NONE, NULL);
}

/* --- the other calls --- */

static void memory_lookup(struct tier *t, struct tier_find *f)
{
	struct memory *m = memory_of(t);
	pthread_mutex_lock(&m->lock);
	for (uint32_t i = 0; i < f->n; i++) {
		const struct entry *e = f->where[i] ? NULL : map_get(m->index, f->key[i].b);
		if (e && e->bytes == f->bytes)
			f->where[i] = TIER_MEMORY;
		else if (f->leading && !f->where[i])
			break;
	}
	pthread_mutex_unlock(&m->lock);
	f->done(f);
}

static int memory_remove(struct tier *t, const struct tier_key *key)
{
	struct memory *m = memory_of(t);
	pthread_mutex_lock(&m->lock);
	struct entry *e = map_get(m->index, key->b);
	if (e)
		entry_drop(m, e);
	pthread_mutex_unlock(&m->lock);
	return e ? 0 : ERR_NOTFOUND;
}

static uint64_t drop_all(struct memory *m)
{
	uint64_t n = 0;
	pthread_mutex_lock(&m->lock);
	size_t it = 0;
	const void *key;
	void *val;
	while (map_next(m->index, &it, &key, &val)) {
		entry_drop(m, val);
		n++;
	}
	pthread_mutex_unlock(&m->lock);
	return n;
}

static void memory_flush(struct tier *t, struct tier_flush *f)
{
	f->blocks = drop_all(memory_of(t));
	f->done(f);
}

static void memory_stat(struct tier *t, struct tier_stat *ret)
{
	struct memory *m = memory_of(t);
	pthread_mutex_lock(&m->lock);
	*ret = m->stat;
	pthread_mutex_unlock(&m->lock);
}

/* --- capacity --- */

/* Places for as many entries as there are units. With the lock held. */
static void slots_grow(struct memory *m)
{
	if (m->units.target <= m->slots)
		return;
	m->slot = mem_grow(m->slot, m->units.target, sizeof *m->slot);
	m->slot_free = mem_grow(m->slot_free, m->units.target, sizeof *m->slot_free);
	for (size_t i = m->units.target; i > m->slots; i--) {
		m->slot[i - 1] = NULL;
		m->slot_free[m->n_slot_free++] = (uint32_t)(i - 1);
	}
	m->slots = m->units.target;
}

static int capacity_units(uint64_t bytes, size_t *ret, struct err *err)
{
	*ret = (size_t)(bytes / UNIT_BYTES);
	if (*ret == 0 || *ret >= UINT32_MAX)
		return err_set(err, ERR_INVALID, "memory tier: %llu bytes are not between 1 and %u units of %zu", (unsigned long long)bytes, UINT32_MAX - 1, UNIT_BYTES);
	return 0;
}

/* More units, without the lock while the system gives them. With the lock held. */
static int grow(struct memory *m, size_t units, struct err *err)
{
	unsigned char *at[RETIRE_AT_A_TIME];
	struct units_range range;
	size_t missing = units_missing(&m->units, units), n;   /* stays: nobody else adds any */
	if (missing && m->units.n_ranges == UNIT_RANGES_MAX)
		return err_set(err, ERR_FULL, "the memory tier was enlarged %d times already; a restart sets it to any size", UNIT_RANGES_MAX);
	pthread_mutex_unlock(&m->lock);
	int r = missing ? units_reserve(missing, &range, err) : 0;
	pthread_mutex_lock(&m->lock);
	if (r != 0)
		return r;
	m->units.target = units;
	slots_grow(m);
	if (missing)
		units_add(&m->units, range);
	while ((n = units_spare(&m->units, RETIRE_AT_A_TIME, at)) > 0) {
		pthread_mutex_unlock(&m->lock);
		for (size_t i = 0; i < n; i++)
			units_touch(at[i]);
		pthread_mutex_lock(&m->lock);
		units_back(&m->units, at, n);
	}
	return 0;
}

/* What is read while the tier shrinks gives its room back afterwards. */
static int memory_resize(struct tier *t, uint64_t capacity_bytes, struct err *err)
{
	struct memory *m = memory_of(t);
	size_t units;
	int r = capacity_units(capacity_bytes, &units, err);
	if (r != 0)
		return r;
	pthread_mutex_lock(&m->lock);
	r = grow(m, units, err);
	if (r == 0)
		m->stat.capacity_bytes = units * UNIT_BYTES;
	while (r == 0 && m->units.total > m->units.target && (m->units.n_free || evict_one(m, 0))) {
		units_retire(&m->units, RETIRE_AT_A_TIME);
		pthread_mutex_unlock(&m->lock);   /* others want it too */
		pthread_mutex_lock(&m->lock);
	}
	pthread_mutex_unlock(&m->lock);
	return r;
}

/* --- copying down --- */

static void memory_policy(struct tier *t, enum tier_policy policy, uint32_t after, unsigned low_percent)
{
	struct memory *m = memory_of(t);
	pthread_mutex_lock(&m->lock);
	m->policy = policy;
	m->after = after;
	m->low_percent = low_percent;
	pthread_mutex_unlock(&m->lock);
}

static void due_name(struct memory *m, struct entry *e, struct tier_due *ret)
{
	going_set(m, e, 1);
	ret->key = e->key;
	ret->bytes = e->bytes;
}

/* From the oldest on until so many units are free, clean, or will be. */
static uint32_t due_oldest(struct memory *m, uint32_t max, struct tier_due *ret)
{
	size_t low = m->units.target / 100 * m->low_percent + m->units.target % 100 * m->low_percent / 100;
	uint32_t n = 0;
	list_each_safe(it, nx, &m->lru) {
		struct entry *e = list_entry(it, struct entry, order);
		if (n == max || m->units.n_free + m->clean_units + m->going_units >= low)
			break;
		if (e->stored)
			order_clean(m, e);
		else if (!e->going && e->tries < COPY_TRIES)
			due_name(m, e, &ret[n++]);
	}
	return n;
}

static uint32_t memory_due(struct tier *t, uint32_t max, struct tier_due *ret)
{
	struct memory *m = memory_of(t);
	uint32_t n = 0;
	pthread_mutex_lock(&m->lock);
	if (m->policy == TIER_OFFLOAD)
		n = due_oldest(m, max, ret);
	while (m->policy == TIER_WRITE_THROUGH && n < max && !list_empty(&m->due)) {
		struct entry *e = list_entry(m->due.next, struct entry, due);
		list_remove(&e->due);
		due_name(m, e, &ret[n++]);
	}
	pthread_mutex_unlock(&m->lock);
	return n;
}

/* It would be lost now if it were evicted; it is not used for that. */
static void below_gone(struct memory *m, struct entry *e)
{
	e->stored = 0;
	if (!e->clean)
		return;
	order_remove(m, e);
	list_push_front(&m->lru, &e->order);
}

static void memory_stored(struct tier *t, const struct tier_key *key, enum tier_below what)
{
	struct memory *m = memory_of(t);
	pthread_mutex_lock(&m->lock);
	struct entry *e = key ? map_get(m->index, key->b) : NULL;
	if (!key) {
		while (!list_empty(&m->clean))
			below_gone(m, list_entry(m->clean.prev, struct entry, order));
		list_each(it, &m->lru)
			list_entry(it, struct entry, order)->stored = 0;
	} else if (e && what == TIER_BELOW_GONE) {
		below_gone(m, e);
	} else if (e) {
		going_set(m, e, 0);
		e->tries += (unsigned char)(what == TIER_BELOW_REFUSED && e->tries < COPY_TRIES);
		if (what == TIER_BELOW_HAS) {
			e->stored = 1;
			list_remove(&e->due);
		} else {
			due_check(m, e);
		}
	}
	pthread_mutex_unlock(&m->lock);
}

/* --- who wants to know what is here --- */

static void memory_watch(struct tier *t, void (*fn)(void *arg, const struct tier_key *key, int stored), void *arg)
{
	struct memory *m = memory_of(t);
	pthread_mutex_lock(&m->lock);
	m->changed = fn;
	m->changed_arg = arg;
	pthread_mutex_unlock(&m->lock);
}

static uint32_t memory_list(struct tier *t, struct tier_cursor *at, uint32_t max, struct tier_key *ret)
{
	struct memory *m = memory_of(t);
	uint32_t n = 0;
	pthread_mutex_lock(&m->lock);
	for (; at->number < m->slots && n < max; at->number++)
		if (m->slot[at->number])
			ret[n++] = m->slot[at->number]->key;
	at->end = at->number >= m->slots;
	pthread_mutex_unlock(&m->lock);
	return n;
}

/* --- life --- */

static void memory_destroy(struct tier *t)
{
	struct memory *m = memory_of(t);
	drop_all(memory_of(t));
	CHECK(m->units.n_free == m->units.total);   /* else an operation is still under way */
	map_destroy(&m->index);
	units_fini(&m->units);
	free(m->slot);
	free(m->slot_free);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

static const struct tier_ops memory_ops = {
	.id = TIER_MEMORY,
	.put = memory_put,
	.get = memory_get,
	.lookup = memory_lookup,
	.remove = memory_remove,
	.flush = memory_flush,
	.resize = memory_resize,
	.stat = memory_stat,
	.policy = memory_policy,
	.due = memory_due,
	.stored = memory_stored,
	.watch = memory_watch,
	.list = memory_list,
	.destroy = memory_destroy,
};

int tier_memory_new(uint64_t capacity_bytes, struct tier **ret_t, struct err *err)
{
	struct memory *m = mem_zalloc(sizeof *m);
	m->tier.ops = &memory_ops;
	pthread_mutex_init(&m->lock, NULL);
	m->index = map_new(TIER_KEY_BYTES);
	list_init(&m->lru);
	list_init(&m->clean);
	list_init(&m->due);
	units_init(&m->units);
	memcpy(m->stat.state, "ready", sizeof "ready");
	int r = memory_resize(&m->tier, capacity_bytes, err);
	if (r == 0)
		*ret_t = &m->tier;
	else
		memory_destroy(&m->tier);
	return r;
}
