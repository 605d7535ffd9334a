/* pool.c - see pool.h. This file has states and reference counts, prefix.c the index, copies.c what
 * storage has; one mutex protects all of it.
 *
 * Invariants: each block is in one state and counted there once; a FREE block has no reference, no
 * reader and no entry; a CACHED block has an entry and no reference; an entry is busy in the index
 * exactly while its block is not CACHED or is being read. A wrong call (a reference released twice,
 * a FREE block published) is a bug and panics; ending a reader twice or too late is harmless. */
#include "kv/copies.h"
#include "kv/pool.h"
#include "kv/prefix.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/err.h"
#include "util/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A reader of a block. Its number is (turn << 32 | index in `pin`). Each reuse of a place takes a
 * new turn, so the number of a reader that has ended is never valid again. */
struct pin {
	const char *why;
	uint64_t since_us;
	uint32_t block; /* KV_BLOCK_NONE: this place is free */
	uint32_t turn;  /* counts from 1 */
	uint32_t next;  /* next free place */
};

struct pool_block {
	enum kv_state state;
	uint32_t refs, readers, next_free;
	uint64_t since_us;
	struct reqid owner;
};

struct kv_pool {
	pthread_mutex_t lock;
	uint32_t n, block_tokens, free; /* free: head of the free list */
	struct pool_block *block;       /* (n) */
	_Atomic uint64_t *generation;   /* (n), owned by the caller */
	struct prefix *index;
	struct copies *copies;
	struct pin *pin;
	uint32_t pins, free_pin;
	uint32_t by_state[KV_STATE_COUNT], being_read;
	/* LRU clock: advances when a block with an entry loses its last reference */
	uint64_t uses;
	uint64_t queries_tokens, hit_tokens, evictions, evicted_stored, given_back;
	/* (change_room): change i is at i % change_room; NULL: changes are not recorded */
	struct kv_change *change;
	uint64_t changes; /* number of the next change */
	uint32_t change_room;
	/* armed: the next change shall call wake; due: it has happened, call wake after unlocking */
	int wake_armed, wake_due;
	void (*wake)(void *arg);
	void *wake_arg;
	int write_armed;               /* the next block that becomes due shall call write_wake */
	void (*write_wake)(void *arg); /* NULL: nothing is written to storage */
	void *write_arg;
};

static const char *const state_names[] = {"free", "held", "leased", "cached"};

const char *kv_state_name(enum kv_state s)
{
	return (unsigned)s < KV_STATE_COUNT ? state_names[s] : "?";
}

/* --- states; the caller holds the lock ----------------------------------- */

static struct pool_block *block_at(struct kv_pool *p, uint32_t b)
{
	CHECK(b < p->n);
	return &p->block[b];
}

/* The only place where a state changes. */
static void block_enter(struct kv_pool *p, uint32_t b, enum kv_state s, uint64_t now_us)
{
	static const unsigned char legal[KV_STATE_COUNT] = {
		[KV_FREE] = 1 << KV_HELD | 1 << KV_LEASED,
		[KV_HELD] = 1 << KV_FREE | 1 << KV_CACHED,
		[KV_LEASED] = 1 << KV_FREE | 1 << KV_CACHED | 1 << KV_HELD,
		[KV_CACHED] = 1 << KV_FREE | 1 << KV_HELD,
	};
	struct pool_block *k = &p->block[b];
	if (!(legal[k->state] & 1 << s))
		PANIC("block %u cannot go from %s to %s", b, kv_state_name(k->state), kv_state_name(s));
	p->by_state[k->state]--;
	p->by_state[s]++;
	k->state = s;
	k->since_us = now_us;
	if (s == KV_FREE) {
		k->next_free = p->free;
		p->free = b;
	}
}

static int block_is_busy(const struct pool_block *k)
{
	return k->state != KV_CACHED || k->readers;
}

/* Tells the index about a change of state or readers. */
static void entry_update(struct kv_pool *p, uint32_t b)
{
	if (prefix_hash(p->index, b))
		prefix_set_busy(p->index, b, block_is_busy(&p->block[b]));
}

/* Unlocks after a change of states or of the index, then calls the wakes that are due. */
static void pool_unlock(struct kv_pool *p)
{
	copies_free_blocks(p->copies, p->by_state[KV_FREE]);
	int due = p->wake_due, write = p->write_armed && copies_pending(p->copies);
	p->wake_due = 0;
	if (write)
		p->write_armed = 0;
	pthread_mutex_unlock(&p->lock);
	if (due)
		p->wake(p->wake_arg);
	if (write)
		p->write_wake(p->write_arg);
}

static uint64_t hash_64(const struct kv_hash *h)
{
	uint64_t v = 0;
	for (unsigned i = 8; i-- > 0;)
		v = v << 8 | h->b[i];
	return v;
}

static void record(struct kv_pool *p, const struct kv_hash *hash, int stored)
{
	if (!p->change)
		return;
	p->change[p->changes++ % p->change_room] = (struct kv_change){hash_64(hash), stored};
	p->wake_due |= p->wake_armed;
	p->wake_armed = 0;
}

/* The only place where an entry is made. Together with entry_drop it sees every change of what is
 * cached here. */
static int entry_add(struct kv_pool *p, uint32_t b, const struct kv_hash *hash,
                     const struct kv_hash *parent)
{
	int r = prefix_add(p->index, b, hash, parent);
	if (r) {
		record(p, hash, 1);
		copies_add(p->copies, b);
	}
	return r;
}

/* The only place where an entry is removed. Its block is CACHED and has no readers. */
static void entry_drop(struct kv_pool *p, uint32_t b, uint64_t now_us)
{
	CHECK(p->block[b].state == KV_CACHED && !p->block[b].readers);
	record(p, prefix_hash(p->index, b), 0);
	prefix_drop(p->index, b);
	p->evicted_stored += copies_drop(p->copies, b) == COPY_STORED;
	block_enter(p, b, KV_FREE, now_us);
	p->evictions++;
}

/* The block has lost its last reference: it becomes CACHED or FREE. With a reader and without an
 * entry it keeps its state until the reader has ended. */
static void block_rest(struct kv_pool *p, uint32_t b, uint64_t now_us)
{
	struct pool_block *k = &p->block[b];
	p->given_back += prefix_hash(p->index, b) || !k->readers;
	if (prefix_hash(p->index, b)) {
		block_enter(p, b, KV_CACHED, now_us);
		/* a read by storage is not a use: it must not make a block younger */
		prefix_touch(p->index, b, ++p->uses);
		copies_rest(p->copies, b);
		entry_update(p, b);
	} else if (!k->readers) {
		block_enter(p, b, KV_FREE, now_us);
	}
}

/* New contents may be written only after this returns: a reader that copies any of them then sees
 * the new generation when it checks. */
static void block_hand_out(struct kv_pool *p, uint32_t b, enum kv_state s,
                           const struct reqid *owner, uint64_t now_us)
{
	struct pool_block *k = &p->block[b];
	CHECK(k->state == KV_FREE && !k->refs && !k->readers);
	atomic_fetch_add_explicit(&p->generation[b], 1, memory_order_seq_cst);
	block_enter(p, b, s, now_us);
	k->refs = 1;
	k->owner = *owner;
}

/* --- life ---------------------------------------------------------------- */

struct kv_pool *kv_pool_new(uint32_t blocks, uint32_t block_tokens, _Atomic uint64_t *generations)
{
	CHECK(blocks > 0 && blocks < KV_BLOCK_NONE / 2 && block_tokens > 0 && generations);
	struct kv_pool *p = mem_zalloc(sizeof *p);
	pthread_mutex_init(&p->lock, NULL);
	p->n = blocks;
	p->block_tokens = block_tokens;
	p->generation = generations;
	p->block = mem_array(blocks, sizeof *p->block);
	p->index = prefix_new(blocks);
	p->copies = copies_new(blocks);
	p->free = p->free_pin = KV_BLOCK_NONE;
	p->by_state[KV_FREE] = blocks;
	uint64_t now = clock_us();
	for (uint32_t b = blocks; b-- > 0;) {
		/* block 0 is first in the free list, so that a new pool hands out neighbours */
		p->block[b].since_us = now;
		p->block[b].next_free = p->free;
		p->free = b;
	}
	return p;
}

void kv_pool_destroy(struct kv_pool **pp)
{
	struct kv_pool *p = *pp;
	if (!p)
		return;
	prefix_destroy(&p->index);
	copies_destroy(&p->copies);
	pthread_mutex_destroy(&p->lock);
	free(p->block);
	free(p->pin);
	free(p->change);
	free(p);
	*pp = NULL;
}

/* --- taking and giving back ---------------------------------------------- */

int kv_pool_take(struct kv_pool *p, uint32_t n, enum kv_state state, const struct reqid *owner,
                 uint32_t *out)
{
	CHECK(state == KV_HELD || state == KV_LEASED);
	uint64_t now = clock_us();
	pthread_mutex_lock(&p->lock);
	int r = n <= p->by_state[KV_FREE] + prefix_evictable(p->index) ? 0 : ERR_FULL;
	if (r == 0) {
		while (p->by_state[KV_FREE] < n)
			entry_drop(p, prefix_oldest(p->index), now);
		for (uint32_t i = 0; i < n; i++) {
			out[i] = p->free;
			p->free = p->block[out[i]].next_free;
			block_hand_out(p, out[i], state, owner, now);
		}
		/* the new generations become visible before anything stored into the blocks */
		atomic_thread_fence(memory_order_release);
	}
	pool_unlock(p);
	return r;
}

uint32_t kv_pool_match(struct kv_pool *p, const struct kv_hash *hashes, uint32_t n,
                       const struct reqid *owner, uint32_t *out)
{
	uint64_t now = clock_us();
	uint32_t i = 0;
	pthread_mutex_lock(&p->lock);
	for (uint32_t b; i < n && (b = prefix_find(p->index, &hashes[i])) != KV_BLOCK_NONE; i++) {
		struct pool_block *k = &p->block[b];
		if (k->state == KV_CACHED) {
			block_enter(p, b, KV_HELD, now);
			copies_wake(p->copies, b);
			entry_update(p, b);
		}
		copies_use(p->copies, b);
		k->refs++;
		k->owner = *owner;
		out[i] = b;
	}
	p->queries_tokens += (uint64_t)n * p->block_tokens;
	p->hit_tokens += (uint64_t)i * p->block_tokens;
	pool_unlock(p);
	return i;
}

uint32_t kv_pool_probe(struct kv_pool *p, const struct kv_hash *hashes, uint32_t n)
{
	uint32_t i = 0;
	pthread_mutex_lock(&p->lock);
	while (i < n && prefix_find(p->index, &hashes[i]) != KV_BLOCK_NONE)
		i++;
	pthread_mutex_unlock(&p->lock);
	return i;
}

void kv_pool_lease_to_held(struct kv_pool *p, const uint32_t *blocks, uint32_t n)
{
	uint64_t now = clock_us();
	pthread_mutex_lock(&p->lock);
	for (uint32_t i = 0; i < n; i++) {
		CHECK(block_at(p, blocks[i])->refs > 0);
		if (p->block[blocks[i]].state == KV_LEASED)
			block_enter(p, blocks[i], KV_HELD, now);
	}
	pthread_mutex_unlock(&p->lock);
}

int kv_pool_publish(struct kv_pool *p, uint32_t block, const struct kv_hash *hash,
                    const struct kv_hash *parent)
{
	pthread_mutex_lock(&p->lock);
	CHECK(block_at(p, block)->refs > 0);
	const struct kv_hash *has = prefix_hash(p->index, block);
	if (has && memcmp(has, hash, sizeof *hash) != 0)
		PANIC("block %u is already in the index under another hash", block);
	int r = has ? 1 : entry_add(p, block, hash, parent);
	pool_unlock(p);
	return r;
}

void kv_pool_release(struct kv_pool *p, const uint32_t *blocks, uint32_t n)
{
	uint64_t now = clock_us();
	pthread_mutex_lock(&p->lock);
	for (uint32_t i = n; i-- > 0;) {
		/* backwards: the tail of a sequence gets the older use, and is evicted before the head */
		struct pool_block *k = block_at(p, blocks[i]);
		CHECK(k->refs > 0);
		if (--k->refs == 0)
			block_rest(p, blocks[i], now);
	}
	pool_unlock(p);
}

/* --- readers ------------------------------------------------------------- */

static void pins_grow(struct kv_pool *p)
{
	uint32_t more = p->pins ? p->pins * 2 : 64;
	CHECK(more > p->pins);
	p->pin = mem_grow(p->pin, more, sizeof *p->pin);
	for (uint32_t i = more; i-- > p->pins;) {
		p->pin[i] = (struct pin){.block = KV_BLOCK_NONE, .next = p->free_pin};
		p->free_pin = i;
	}
	p->pins = more;
}

static uint64_t pin_add(struct kv_pool *p, uint32_t b, const char *why, uint64_t now_us)
{
	if (p->free_pin == KV_BLOCK_NONE)
		pins_grow(p);
	uint32_t place = p->free_pin;
	struct pin *pin = &p->pin[place];
	p->free_pin = pin->next;
	pin->block = b;
	pin->why = why;
	pin->since_us = now_us;
	pin->turn += pin->turn == UINT32_MAX ? 2 : 1; /* skip 0 */
	if (p->block[b].readers++ == 0)
		p->being_read++;
	entry_update(p, b);
	return (uint64_t)pin->turn << 32 | place;
}

static void pin_drop(struct kv_pool *p, uint64_t number)
{
	uint32_t place = (uint32_t)number;
	if (place >= p->pins || p->pin[place].block == KV_BLOCK_NONE ||
	    p->pin[place].turn != number >> 32)
		return;
	uint32_t b = p->pin[place].block;
	struct pool_block *k = &p->block[b];
	p->pin[place].block = KV_BLOCK_NONE;
	p->pin[place].next = p->free_pin;
	p->free_pin = place;
	if (--k->readers == 0)
		p->being_read--;
	if (k->state == KV_CACHED)
		entry_update(p, b);
	else if (!k->refs)
		block_rest(p, b, clock_us());
}

uint64_t kv_pool_read_begin(struct kv_pool *p, uint32_t block, uint64_t *ret_gen)
{
	uint64_t now = clock_us();
	pthread_mutex_lock(&p->lock);
	CHECK(block_at(p, block)->state != KV_FREE);
	uint64_t number = pin_add(p, block, "reader", now);
	if (ret_gen)
		*ret_gen = atomic_load_explicit(&p->generation[block], memory_order_relaxed);
	pthread_mutex_unlock(&p->lock);
	return number;
}

void kv_pool_read_end(struct kv_pool *p, uint64_t pin)
{
	pthread_mutex_lock(&p->lock);
	pin_drop(p, pin);
	pool_unlock(p);
}

/* Same as the end of the reader: the next hand-out of the block takes a new generation, by which
 * the late reader finds its copy invalid. */
void kv_pool_void(struct kv_pool *p, uint64_t pin)
{
	kv_pool_read_end(p, pin);
}

int kv_pool_oldest_pin(struct kv_pool *p, struct kv_oldest_pin *ret)
{
	int found = 0;
	pthread_mutex_lock(&p->lock);
	for (uint32_t i = 0; i < p->pins; i++) {
		const struct pin *pin = &p->pin[i];
		if (pin->block == KV_BLOCK_NONE || (found && pin->since_us >= ret->since_us))
			continue;
		found = 1;
		*ret = (struct kv_oldest_pin){.block = pin->block,
		                              .since_us = pin->since_us,
		                              .why = pin->why};
	}
	pthread_mutex_unlock(&p->lock);
	return found;
}

uint32_t kv_pool_flush(struct kv_pool *p)
{
	uint64_t now = clock_us();
	uint32_t freed = 0;
	pthread_mutex_lock(&p->lock);
	for (uint32_t b = 0; b < p->n; b++)
		if (p->block[b].state == KV_CACHED && !p->block[b].readers) {
			entry_drop(p, b, now);
			freed++;
		}
	pool_unlock(p);
	return freed;
}

/* --- copies in storage --------------------------------------------------- */

void kv_pool_write_policy(struct kv_pool *p, uint32_t low, uint32_t after, void (*wake)(void *arg),
                          void *arg)
{
	pthread_mutex_lock(&p->lock);
	p->write_wake = wake;
	p->write_arg = arg;
	p->write_armed = wake != NULL;
	copies_policy(p->copies, low, after);
	pool_unlock(p);
}

static struct kv_due due_of(const struct kv_pool *p, uint32_t b)
{
	return (
		struct kv_due){.hash = *prefix_hash(p->index, b),
	                   .block = b,
	                   .generation = atomic_load_explicit(&p->generation[b], memory_order_relaxed)};
}

uint32_t kv_pool_collect(struct kv_pool *p, uint32_t n, struct kv_due *out)
{
	uint64_t now = clock_us();
	uint32_t count = 0;
	pthread_mutex_lock(&p->lock);
	for (uint32_t b; count < n && (b = copies_next(p->copies)) != KV_BLOCK_NONE; count++)
		out[count] = due_of(p, b);
	/* Due blocks mostly list children before parents. Pinning backwards makes the parent busy
	 * first, so that the update for the child stops after one step up the chain. */
	for (uint32_t i = count; i-- > 0;)
		out[i].pin = pin_add(p, out[i].block, "write-out", now);
	p->write_armed = p->write_wake && !copies_pending(p->copies);
	pthread_mutex_unlock(&p->lock);
	return count;
}

uint32_t kv_pool_collect_of(struct kv_pool *p, const uint32_t *blocks, uint32_t *end, uint32_t n,
                            struct kv_due *out)
{
	uint64_t now = clock_us();
	uint32_t count = 0;
	pthread_mutex_lock(&p->lock);
	for (; *end && count < n; --*end) {
		uint32_t b = blocks[*end - 1];
		CHECK(block_at(p, b)->refs > 0);
		if (!prefix_hash(p->index, b) || !copies_begin(p->copies, b))
			continue;
		out[count] = due_of(p, b);
		out[count++].pin = pin_add(p, b, "write-out", now);
	}
	pthread_mutex_unlock(&p->lock);
	return count;
}

static int is_entry_of(const struct kv_pool *p, uint32_t block, uint64_t generation)
{
	return prefix_hash(p->index, block) &&
	       atomic_load_explicit(&p->generation[block], memory_order_relaxed) == generation;
}

void kv_pool_set_stored(struct kv_pool *p, uint32_t block, uint64_t generation, unsigned tier)
{
	pthread_mutex_lock(&p->lock);
	block_at(p, block);
	if (is_entry_of(p, block, generation))
		copies_set(p->copies, block, tier < COPIES_TIERS ? tier : 0);
	pthread_mutex_unlock(&p->lock);
}

uint32_t kv_pool_want_stored(struct kv_pool *p, const uint32_t *blocks, uint32_t n)
{
	uint32_t count = 0;
	pthread_mutex_lock(&p->lock);
	for (uint32_t i = 0; i < n && p->write_wake; i++)
		if (block_at(p, blocks[i])->state != KV_FREE && prefix_hash(p->index, blocks[i]))
			count += (uint32_t)copies_want(p->copies, blocks[i], 0);
	pool_unlock(p);
	return count;
}

uint32_t kv_pool_unstored_for(struct kv_pool *p, uint32_t n)
{
	pthread_mutex_lock(&p->lock);
	uint32_t n_free = p->by_state[KV_FREE],
			 count = n > n_free && p->write_wake ? copies_prepare(p->copies, n - n_free) : 0;
	pool_unlock(p);
	return count;
}

void kv_pool_note_stored(struct kv_pool *p, unsigned tier, const uint64_t *hashes, size_t n,
                         int stored)
{
	if (!tier || tier >= COPIES_TIERS)
		return;
	for (size_t i = 0, end; i < n;) {
		/* 256 at a time, so that other threads get the lock in between */
		pthread_mutex_lock(&p->lock);
		for (end = n - i < 256 ? n : i + 256; i < end; i++) {
			uint32_t b = prefix_find_64(p->index, hashes[i]);
			if (b != KV_BLOCK_NONE)
				copies_note(p->copies, b, tier, stored);
		}
		pthread_mutex_unlock(&p->lock);
	}
}

void kv_pool_doubt_stored(struct kv_pool *p, unsigned tier)
{
	if (!tier || tier >= COPIES_TIERS)
		return;
	pthread_mutex_lock(&p->lock);
	for (uint32_t b = 0; b < p->n; b++)
		copies_note(p->copies, b, tier, 0);
	pthread_mutex_unlock(&p->lock);
}

void kv_pool_forget_stored(struct kv_pool *p, unsigned tier)
{
	pthread_mutex_lock(&p->lock);
	copies_forget(p->copies, tier);
	pool_unlock(p);
}

/* --- following the index ------------------------------------------------- */

void kv_pool_follow(struct kv_pool *p, uint32_t room, void (*wake)(void *arg), void *arg)
{
	CHECK(room > 0 && !p->change && wake);
	struct kv_change *change = mem_array(room, sizeof *change);
	pthread_mutex_lock(&p->lock);
	p->change_room = room;
	p->wake = wake;
	p->wake_arg = arg;
	p->wake_armed = 1;
	p->change = change;
	pthread_mutex_unlock(&p->lock);
}

uint64_t kv_pool_changes_end(struct kv_pool *p)
{
	pthread_mutex_lock(&p->lock);
	uint64_t end = p->changes;
	pthread_mutex_unlock(&p->lock);
	return end;
}

int kv_pool_changes(struct kv_pool *p, uint64_t *cursor, uint32_t n, struct kv_change *out,
                    uint32_t *ret_n)
{
	int r = 0;
	uint32_t i = 0;
	pthread_mutex_lock(&p->lock);
	p->wake_armed = p->change != NULL;
	if (*cursor > p->changes || p->changes - *cursor > p->change_room)
		r = ERR_STALE;
	else
		for (; i < n && *cursor < p->changes; ++*cursor)
			out[i++] = p->change[*cursor % p->change_room];
	pthread_mutex_unlock(&p->lock);
	*ret_n = i;
	return r;
}

uint32_t kv_pool_entries(struct kv_pool *p, uint32_t *block, uint32_t n, uint64_t *out)
{
	uint32_t count = 0;
	pthread_mutex_lock(&p->lock);
	for (; n > 0 && *block < p->n; n--, ++*block) {
		const struct kv_hash *h = prefix_hash(p->index, *block);
		if (h)
			out[count++] = hash_64(h);
	}
	pthread_mutex_unlock(&p->lock);
	return count;
}

/* --- queries ------------------------------------------------------------- */

void kv_pool_stats(struct kv_pool *p, struct kv_stats *ret)
{
	pthread_mutex_lock(&p->lock);
	ret->blocks = p->n;
	memcpy(ret->by_state, p->by_state, sizeof p->by_state);
	ret->readers = p->being_read;
	ret->evictable = prefix_evictable(p->index);
	ret->queries_tokens = p->queries_tokens;
	ret->hit_tokens = p->hit_tokens;
	ret->evictions = p->evictions;
	ret->evicted_stored = p->evicted_stored;
	ret->stored[0] = 0;
	for (unsigned t = 1; t < COPIES_TIERS; t++)
		ret->stored[0] += ret->stored[t] = copies_cached(p->copies, t);
	ret->due = copies_count(p->copies, COPY_DUE);
	ret->writing = copies_count(p->copies, COPY_WRITING);
	ret->given_back = p->given_back;
	pthread_mutex_unlock(&p->lock);
}

void kv_pool_block(struct kv_pool *p, uint32_t block, struct kv_block_info *ret)
{
	pthread_mutex_lock(&p->lock);
	const struct pool_block *k = block_at(p, block);
	*ret = (struct kv_block_info){.block = block,
	                              .refs = k->refs,
	                              .readers = k->readers,
	                              .state = k->state,
	                              .since_us = k->since_us,
	                              .indexed = prefix_hash(p->index, block) != NULL,
	                              .owner = k->owner,
	                              .generation = atomic_load_explicit(&p->generation[block],
	                                                                 memory_order_relaxed)};
	copies_state(p->copies, block, &ret->stored);
	pthread_mutex_unlock(&p->lock);
}

/* --- verification -------------------------------------------------------- */

static void verify_block(const struct kv_pool *p, uint32_t b, uint32_t readers)
{
	const struct pool_block *k = &p->block[b];
	int indexed = prefix_hash(p->index, b) != NULL, ok = k->readers == readers;
	switch (k->state) {
	case KV_FREE: ok = ok && !k->refs && !k->readers && !indexed; break;
	case KV_CACHED: ok = ok && !k->refs && indexed; break;
	default: ok = ok && (k->refs || (k->readers && !indexed));
	}
	if (!ok)
		PANIC("block %u is %s with %u references, %u readers (%u pins), %s the index", b,
		      kv_state_name(k->state), k->refs, k->readers, readers, indexed ? "in" : "not in");
}

static void verify_free(const struct kv_pool *p)
{
	uint32_t n = 0;
	for (uint32_t b = p->free; b != KV_BLOCK_NONE; b = p->block[b].next_free, n++)
		if (n >= p->n || p->block[b].state != KV_FREE)
			PANIC("the free list contains block %u, which is %s", b,
			      kv_state_name(p->block[b].state));
	if (n != p->by_state[KV_FREE])
		PANIC("the free list has %u blocks, the count is %u", n, p->by_state[KV_FREE]);
}

void kv_pool_verify(struct kv_pool *p)
{
	pthread_mutex_lock(&p->lock);
	uint32_t *readers = mem_array(p->n, sizeof *readers), count[KV_STATE_COUNT] = {0},
			 being_read = 0;
	unsigned char *busy = mem_array(p->n, 1), *cached = mem_array(p->n, 1),
				  *indexed = mem_array(p->n, 1);
	for (uint32_t i = 0; i < p->pins; i++)
		if (p->pin[i].block != KV_BLOCK_NONE)
			readers[p->pin[i].block]++;
	for (uint32_t b = 0; b < p->n; b++) {
		verify_block(p, b, readers[b]);
		count[p->block[b].state]++;
		being_read += readers[b] > 0;
		busy[b] = (unsigned char)block_is_busy(&p->block[b]);
		cached[b] = p->block[b].state == KV_CACHED;
		indexed[b] = prefix_hash(p->index, b) != NULL;
	}
	if (memcmp(count, p->by_state, sizeof count) != 0 || being_read != p->being_read)
		PANIC(
			"wrong counts: free %u held %u leased %u cached %u read %u; the blocks are %u %u %u %u "
			"and %u",
			p->by_state[0], p->by_state[1], p->by_state[2], p->by_state[3], p->being_read, count[0],
			count[1], count[2], count[3], being_read);
	verify_free(p);
	prefix_verify(p->index, busy);
	copies_verify(p->copies, cached, indexed, p->by_state[KV_FREE]);
	pthread_mutex_unlock(&p->lock);
	free(readers);
	free(busy);
	free(cached);
	free(indexed);
}
