/* memory.c - see memory.h: memory cut into units of 64 KiB (units.h); a block is as many units as
 * it needs.
 *
 * Units make the bound exact and avoid fragmentation: any free units serve a block of any size, so
 * blocks of several models share the memory.
 *
 * Invariants while the lock is free: every unit is free or belongs to one entry; `index` has
 * exactly the complete entries that are not dropped; each of those is in one of two LRU lists,
 * `clean` (stored in a tier below; evicted first) or `lru`. Data is copied and verified outside the
 * lock: a put fills a block that is not in the index yet, a get holds one. A block dropped while
 * held is freed by its last holder.
 *
 * Eviction takes the oldest entry without holders of `clean`, else of `lru`; a block that no tier
 * below has is then lost, which is counted. A checksum mismatch is logged and counted and the block
 * dropped, which may also lose it. Only bugs end the process. */
#include "memory.h"
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

#define COPY_TRIES 3u        /* refusals by the tiers below before a block is no longer offered */
#define RETIRE_AT_A_TIME 64u /* units returned to the system per lock acquisition */

struct memory_entry {
	struct storage_block b; /* first */
	struct list order;      /* in lru or clean while indexed */
	struct list due;        /* in memory.due while waiting to be copied down */
	uint32_t hits, slot;
	/* stored: a tier below has it; going: being copied there; clean: in that list */
	unsigned char indexed, stored, going, clean, tries;
	struct tier_span span[]; /* one unit each, the last one truncated at the block's end */
};

struct memory {
	struct tier tier;
	pthread_mutex_t lock;
	struct map *index;      /* key -> entry */
	struct list lru, clean; /* front: evicted first */
	size_t clean_units, going_units;
	struct list due;
	struct units units;
	struct memory_entry **slot; /* (slots) indexed entries, for listing; NULL: free */
	uint32_t *slot_free;        /* stack (slots) */
	size_t slots, n_slot_free;
	enum tier_policy policy;
	uint32_t after;
	unsigned low_percent;
	void (*changed)(void *arg, const struct tier_key *key, int stored);
	void *changed_arg;
	struct tier_stat stat;
	size_t told_pinned; /* bytes, last logged; of the thread that pins */
};

static struct memory *memory_of(struct tier *t)
{
	return (struct memory *)t;
}

static size_t units_for(size_t bytes)
{
	return bytes ? (bytes + UNIT_BYTES - 1) / UNIT_BYTES : 1;
}

/* --- LRU lists; all with the lock held --- */

static void order_remove(struct memory *m, struct memory_entry *e)
{
	list_remove(&e->order);
	if (e->clean)
		m->clean_units -= e->b.n;
	e->clean = 0;
}

/* Makes it the most recently used. */
static void order_used(struct memory *m, struct memory_entry *e)
{
	order_remove(m, e);
	list_push_back(&m->lru, &e->order);
}

static void order_clean(struct memory *m, struct memory_entry *e)
{
	order_remove(m, e);
	list_push_back(&m->clean, &e->order);
	e->clean = 1;
	m->clean_units += e->b.n;
}

static void going_set(struct memory *m, struct memory_entry *e, int going)
{
	if (e->going == going)
		return;
	e->going = (unsigned char)going;
	m->going_units += going ? e->b.n : -(size_t)e->b.n;
}

/* Queues the entry for copying down if it has enough hits. */
static void due_check(struct memory *m, struct memory_entry *e)
{
	if (m->policy != TIER_WRITE_THROUGH || e->stored || e->going || e->hits < m->after ||
	    e->tries >= COPY_TRIES)
		return;
	list_remove(&e->due);
	list_push_back(&m->due, &e->due);
}

/* --- entries; all with the lock held --- */

static void entry_free(struct memory *m, struct memory_entry *e)
{
	for (unsigned i = 0; i < e->b.n; i++)
		units_give(&m->units, e->span[i].at);
	units_retire(&m->units, e->b.n);
	free(e);
}

static void changed(struct memory *m, const struct memory_entry *e, int stored)
{
	if (m->changed)
		m->changed(m->changed_arg, &e->b.key, stored);
}

/* Removes an entry from the index; its memory is freed now or by its last holder. */
static void entry_drop(struct memory *m, struct memory_entry *e)
{
	CHECK(map_remove(m->index, e->b.key.b) == e);
	e->indexed = 0;
	m->slot[e->slot] = NULL;
	m->slot_free[m->n_slot_free++] = e->slot;
	m->stat.blocks--;
	m->stat.bytes -= e->b.bytes;
	going_set(m, e, 0);
	list_remove(&e->due);
	order_remove(m, e);
	changed(m, e, 0);
	if (!e->b.held)
		entry_free(m, e);
}

static void entry_index(struct memory *m, struct memory_entry *e)
{
	CHECK(!map_put(m->index, e->b.key.b, e) && m->n_slot_free);
	e->indexed = 1;
	e->slot = m->slot_free[--m->n_slot_free];
	m->slot[e->slot] = e;
	m->stat.blocks++;
	m->stat.bytes += e->b.bytes;
	list_push_back(&m->lru, &e->order);
	changed(m, e, 1);
	due_check(m, e);
}

static struct memory_entry *oldest_unheld(struct list *order)
{
	list_each(it, order) /* few are held */
		if (!list_entry(it, struct memory_entry, order)->b.held)
			return list_entry(it, struct memory_entry, order);
	return NULL;
}

/* Evicts the next block; 1: done. spare: not if no tier below has it. */
static int evict_one(struct memory *m, int spare)
{
	struct memory_entry *e = oldest_unheld(&m->clean);
	if (!e)
		e = oldest_unheld(&m->lru);
	if (!e || (spare && !e->stored))
		return 0; /* everything is held, or worth more than the new block */
	m->stat.evictions++;
	m->stat.lost += !e->stored;
	entry_drop(m, e);
	return 1;
}

/* Continues an earlier shrink with blocks that were held then; units of freed entries are returned
 * to the system while total exceeds target. */
static void shrink_on(struct memory *m)
{
	while (m->units.total > m->units.target && evict_one(m, 0))
		;
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

/* A block for `bytes` bytes, not indexed yet; NULL: no room. With the lock held. */
static struct storage_block *block_make(struct memory *m, const struct tier_key *key, size_t bytes,
                                        int spare)
{
	size_t n = units_for(bytes);
	if (make_room(m, n, spare && m->policy == TIER_OFFLOAD) != 0)
		return NULL;
	struct memory_entry *e = mem_zalloc(sizeof *e + n * sizeof e->span[0]);
	list_init(&e->order);
	list_init(&e->due);
	e->b = (struct storage_block){.key = *key,
	                              .bytes = bytes,
	                              .memory = &m->tier,
	                              .held = 1,
	                              .n = (unsigned)n,
	                              .span = e->span};
	for (size_t i = 0; i < n; i++) {
		e->span[i].at = units_take(&m->units);
		e->span[i].bytes = i + 1 < n ? UNIT_BYTES : bytes - (n - 1) * UNIT_BYTES;
	}
	return &e->b;
}

/* --- blocks --- */

static struct memory_entry *entry_find(struct memory *m, const struct tier_key *key, size_t bytes)
{
	struct memory_entry *e = map_get(m->index, key->b);
	return e && e->b.bytes == bytes ? e : NULL;
}

struct storage_block *memory_block(struct tier *t, const struct tier_key *key, size_t bytes,
                                   int spare)
{
	struct memory *m = memory_of(t);
	pthread_mutex_lock(&m->lock);
	struct storage_block *b = block_make(m, key, bytes, spare);
	pthread_mutex_unlock(&m->lock);
	return b;
}

/* 1: the block is stored already, and now counts as used. With the lock held. */
static int already_here(struct memory *m, const struct tier_key *key, size_t bytes)
{
	struct memory_entry *e = entry_find(m, key, bytes);
	if (!e)
		return 0;
	order_used(m, e);
	m->stat.known++;
	return 1;
}

void memory_insert(struct storage_block *b)
{
	struct memory *m = memory_of(b->memory);
	pthread_mutex_lock(&m->lock);
	if (!already_here(m, &b->key, b->bytes)) {
		/* of another size: the newer one wins */
		struct memory_entry *other = map_get(m->index, b->key.b);
		if (other)
			entry_drop(m, other);
		entry_index(m, (struct memory_entry *)b);
	}
	pthread_mutex_unlock(&m->lock);
}

struct storage_block *memory_hold(struct tier *t, const struct tier_key *key, size_t bytes)
{
	struct memory *m = memory_of(t);
	pthread_mutex_lock(&m->lock);
	struct memory_entry *e = entry_find(m, key, bytes);
	if (e)
		e->b.held++;
	pthread_mutex_unlock(&m->lock);
	return e ? &e->b : NULL;
}

void memory_release(struct storage_block *b)
{
	struct memory *m = memory_of(b->memory);
	struct memory_entry *e = (struct memory_entry *)b;
	pthread_mutex_lock(&m->lock);
	if (--b->held == 0 && !e->indexed)
		entry_free(m, e);
	shrink_on(m);
	pthread_mutex_unlock(&m->lock);
}

void memory_damaged(struct storage_block *b)
{
	struct memory *m = memory_of(b->memory);
	struct memory_entry *e = (struct memory_entry *)b;
	log_error("stored_block_corrupt", "tier=%s bytes=%zu action=dropped", tier_name(TIER_MEMORY),
	          b->bytes);
	pthread_mutex_lock(&m->lock);
	m->stat.corrupt++;
	if (e->indexed) {
		m->stat.lost += !e->stored;
		entry_drop(m, e);
	}
	pthread_mutex_unlock(&m->lock);
}

/* --- put and get --- */

static void memory_put(struct tier *t, struct tier_op *op)
{
	struct memory *m = memory_of(t);
	pthread_mutex_lock(&m->lock);
	m->stat.puts++;
	int here = already_here(m, &op->key, op->bytes);
	struct storage_block *b = here ? NULL : block_make(m, &op->key, op->bytes, 0);
	m->stat.full += !here && !b;
	pthread_mutex_unlock(&m->lock);
	if (!b) {
		op->done(op, here ? 0 : ERR_FULL, here ? TIER_MEMORY : TIER_NONE,
		         here ? NULL : "all room of the memory tier is in use");
		return;
	}
	uint64_t begun = clock_us();
	int code = tier_op_move(op, b->span, b->n);
	if (code == 0) {
		pthread_mutex_lock(&m->lock);
		m->stat.write_bytes += op->bytes;
		m->stat.write_us += clock_us() - begun;
		pthread_mutex_unlock(&m->lock);
		b->sum = op->sum;
		memory_insert(b);
	}
	memory_release(b);
	op->done(op, code, code == 0 ? TIER_MEMORY : TIER_NONE, NULL);
}

/* Finds, counts and holds the block, or NULL. */
static struct storage_block *get_begin(struct memory *m, const struct tier_op *op)
{
	pthread_mutex_lock(&m->lock);
	struct memory_entry *e = entry_find(m, &op->key, op->bytes);
	m->stat.gets++;
	m->stat.hits += e != NULL;
	m->stat.misses += e == NULL;
	if (e) {
		e->b.held++;
		order_used(m, e);
		e->hits++;
		due_check(m, e);
	}
	pthread_mutex_unlock(&m->lock);
	return e ? &e->b : NULL;
}

static void memory_get(struct tier *t, struct tier_op *op)
{
	struct memory *m = memory_of(t);
	struct storage_block *b = op->aside ? memory_hold(t, &op->key, op->bytes) : get_begin(m, op);
	if (!b) {
		op->done(op, ERR_NOTFOUND, TIER_NONE, NULL);
		return;
	}
	uint64_t begun = clock_us();
	if (!sum_equal(sum_spans(b->span, b->n), b->sum)) {
		memory_damaged(b);
		memory_release(b);
		op->done(op, ERR_CORRUPT, TIER_NONE, "checksum mismatch in a stored block; it was dropped");
		return;
	}
	op->sum = b->sum;
	int code = tier_op_move(op, b->span, b->n);
	if (code == 0) {
		pthread_mutex_lock(&m->lock);
		m->stat.read_bytes += op->bytes;
		m->stat.read_us += clock_us() - begun;
		pthread_mutex_unlock(&m->lock);
	}
	memory_release(b);
	op->done(op, code, code == 0 ? TIER_MEMORY : TIER_NONE, NULL);
}

/* --- the other calls --- */

static void memory_lookup(struct tier *t, struct tier_find *f)
{
	struct memory *m = memory_of(t);
	pthread_mutex_lock(&m->lock);
	for (uint32_t i = 0; i < f->n; i++) {
		const struct memory_entry *e = f->where[i] ? NULL : map_get(m->index, f->key[i].b);
		if (e && e->b.bytes == f->bytes)
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
	struct memory_entry *e = map_get(m->index, key->b);
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

/* Slots for as many entries as there are units. With the lock held. */
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
		return err_set(err, ERR_INVALID,
		               "memory tier: %llu bytes are not between 1 and %u units of %zu",
		               (unsigned long long)bytes, UINT32_MAX - 1, UNIT_BYTES);
	return 0;
}

/* Sets the target and adds missing units; unlocks while the system provides them. Call with the
 * lock held. */
static int grow(struct memory *m, size_t units, struct err *err)
{
	unsigned char *at[RETIRE_AT_A_TIME];
	struct units_range range;
	size_t missing = units_missing(&m->units, units), n; /* constant while unlocked: only this
	                                                      * function adds units */
	if (missing && m->units.n_ranges == UNIT_RANGES_MAX)
		return err_set(err, ERR_FULL,
		               "the memory tier was enlarged %d times already; restart to enlarge it again",
		               UNIT_RANGES_MAX);
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

/* Blocks held during the shrink return their units when released. */
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
	if (r == 0 && m->units.pinned_by && m->units.total > m->units.target)
		log_warn("memory_kept", "bytes=%zu why=\"pinned for GPUs\" action=\"a restart returns it\"",
		         (m->units.total - m->units.target) * UNIT_BYTES);
	while (r == 0 && m->units.total > m->units.target && (m->units.n_free || evict_one(m, 0))) {
		units_retire(&m->units, RETIRE_AT_A_TIME);
		pthread_mutex_unlock(&m->lock); /* let others have the lock */
		pthread_mutex_lock(&m->lock);
	}
	pthread_mutex_unlock(&m->lock);
	return r;
}

static int memory_pin(struct tier *t, const struct kern_copies *by, int device, struct err *err)
{
	struct memory *m = memory_of(t);
	pthread_mutex_lock(&m->lock);
	int smaller = !m->units.pinned_by && m->units.n_spare; /* pinning would bring these back */
	if (!smaller)
		m->units.pinned_by = by; /* first: from now on no page may go */
	pthread_mutex_unlock(&m->lock);
	int r = smaller ? err_set(err, ERR_INVALID,
	                          "memory_mb was made smaller since the start; restart to pin it")
	                : units_pin(&m->units, device, err);
	size_t pinned = units_pinned(&m->units);
	if (r == 0 && pinned != m->told_pinned)
		log_notice("memory_pinned", "bytes=%zu", pinned);
	m->told_pinned = r == 0 ? pinned : m->told_pinned;
	if (r < 0 && !pinned) {
		pthread_mutex_lock(&m->lock);
		m->units.pinned_by = NULL;
		pthread_mutex_unlock(&m->lock);
	}
	return r;
}

/* --- copying down --- */

static void memory_policy(struct tier *t, enum tier_policy policy, uint32_t after,
                          unsigned low_percent)
{
	struct memory *m = memory_of(t);
	pthread_mutex_lock(&m->lock);
	m->policy = policy;
	m->after = after;
	m->low_percent = low_percent;
	pthread_mutex_unlock(&m->lock);
}

static void due_add(struct memory *m, struct memory_entry *e, struct tier_due *ret)
{
	going_set(m, e, 1);
	ret->key = e->b.key;
	ret->bytes = e->b.bytes;
}

/* Returns the oldest blocks until enough units are free, clean or being copied down. */
static uint32_t due_oldest(struct memory *m, uint32_t max, struct tier_due *ret)
{
	size_t low = m->units.target / 100 * m->low_percent +
	             m->units.target % 100 * m->low_percent / 100;
	uint32_t n = 0;
	list_each_safe(it, nx, &m->lru) {
		struct memory_entry *e = list_entry(it, struct memory_entry, order);
		if (n == max || m->units.n_free + m->clean_units + m->going_units >= low)
			break;
		if (e->stored)
			order_clean(m, e);
		else if (!e->going && e->tries < COPY_TRIES)
			due_add(m, e, &ret[n++]);
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
		struct memory_entry *e = list_entry(m->due.next, struct memory_entry, due);
		list_remove(&e->due);
		due_add(m, e, &ret[n++]);
	}
	pthread_mutex_unlock(&m->lock);
	return n;
}

/* The block would now be lost if evicted, so it leaves `clean`; this is no use, so it goes to the
 * front. */
static void below_gone(struct memory *m, struct memory_entry *e)
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
	struct memory_entry *e = key ? map_get(m->index, key->b) : NULL;
	if (!key) {
		while (!list_empty(&m->clean))
			below_gone(m, list_entry(m->clean.prev, struct memory_entry, order));
		list_each(it, &m->lru)
			list_entry(it, struct memory_entry, order)->stored = 0;
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

/* --- watching and listing --- */

static void memory_watch(struct tier *t,
                         void (*fn)(void *arg, const struct tier_key *key, int stored), void *arg)
{
	struct memory *m = memory_of(t);
	pthread_mutex_lock(&m->lock);
	m->changed = fn;
	m->changed_arg = arg;
	pthread_mutex_unlock(&m->lock);
}

static uint32_t memory_list(struct tier *t, struct tier_cursor *at, uint32_t max,
                            struct tier_key *ret)
{
	struct memory *m = memory_of(t);
	uint32_t n = 0;
	pthread_mutex_lock(&m->lock);
	for (; at->number < m->slots && n < max; at->number++)
		if (m->slot[at->number])
			ret[n++] = m->slot[at->number]->b.key;
	at->end = at->number >= m->slots;
	pthread_mutex_unlock(&m->lock);
	return n;
}

/* --- start and end --- */

static void memory_destroy(struct tier *t)
{
	struct memory *m = memory_of(t);
	drop_all(memory_of(t));
	CHECK(m->units.n_free == m->units.total); /* else an operation is in progress */
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
	.pin = memory_pin,
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
