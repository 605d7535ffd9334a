/* events.c - tells each worker that asked (STORE_LIST) which keys of its layout memory and disk
 * have, for its routers: a full list of each tier, then the changes.
 *
 * Changes of all tiers and layouts go into one ring, from any thread; each worker has a cursor in
 * it. A list is sent in pieces, one per tick, while the tiers change; the changes since before its
 * first piece are sent after its last, so the final state of each key is right. A worker that falls
 * behind by more than the ring gets its lists again. A message that the link rejects is rebuilt
 * later. So memory does not grow for a slow worker, and nothing is recorded while nobody listens.
 * No error here is fatal. */
#include "storage.h"

#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <event2/event.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define PIECE 4096u      /* most keys per message */
#define PIECES_A_TICK 8u /* most pieces searched per tick for keys of a layout */
#define ROOM 65536u      /* changes kept */
#define FULL_TICKS 32u   /* longest pause, in intervals, after the link was full */

/* without Redis, which other clients change */
static const enum tier_id told_tiers[] = {TIER_MEMORY, TIER_DISK};
#define TOLD (sizeof told_tiers / sizeof *told_tiers)

struct change {
	uint64_t hash;
	unsigned char salt[KEY_SALT_BYTES];
	unsigned char tier, stored;
	uint32_t order; /* original order of changes with equal hashes, for sorting */
};

struct listener {
	struct list node;
	char name[HANDOVER_NAME_MAX];
	uint64_t epoch, cursor; /* cursor: next change to send */
	unsigned listing;       /* index in told_tiers of the list being sent; TOLD: all sent */
	int fresh;              /* the next piece is the list's first */
	struct tier_cursor at;
	unsigned full, pause; /* ticks left to wait; length of the last wait */
};

struct tell {
	struct storage *st;
	struct timeval interval;
	struct event *tick;
	int ticking;
	struct list listeners;
	struct change change[PIECE], mine[PIECE];
	uint64_t stored[PIECE], removed[PIECE];
	struct tier_key key[PIECE];
	atomic_int wanted; /* there are listeners */

	pthread_mutex_t lock; /* protects the fields below */
	struct change *ring;  /* (ROOM) */
	uint64_t end;         /* number of the next change */
	int posted, opened;   /* opened: a tier has been opened */
};

static void tell_tick_soon(struct tell *t)
{
	if (t->ticking || list_empty(&t->listeners))
		return;
	t->ticking = 1;
	event_add(t->tick, &t->interval);
}

/* --- the ring; any thread --- */

static void on_change(struct svc *s, void *arg);

void tell_changed(void *tell, enum tier_id id, const struct tier_key *key, int stored)
{
	struct tell *t = tell;
	if (!atomic_load_explicit(&t->wanted, memory_order_acquire))
		return;
	pthread_mutex_lock(&t->lock);
	if (key) {
		struct change *c = &t->ring[t->end++ % ROOM];
		memcpy(&c->hash, key->b, sizeof c->hash);
		memcpy(c->salt, key->b + sizeof key->b - sizeof c->salt, sizeof c->salt);
		c->tier = (unsigned char)id;
		c->stored = stored != 0;
	} else {
		t->opened = 1;
	}
	int post = !t->posted;
	t->posted = 1;
	pthread_mutex_unlock(&t->lock);
	if (post)
		svc_post(t->st->svc, on_change, t);
}

static uint64_t ring_end(struct tell *t)
{
	pthread_mutex_lock(&t->lock);
	uint64_t end = t->end;
	pthread_mutex_unlock(&t->lock);
	return end;
}

/* Copies at most PIECE changes from *cursor into t->change and advances it. ERR_FULL: the changes
 * at *cursor are no longer kept. */
static int ring_read(struct tell *t, uint64_t *cursor, uint32_t *ret_n)
{
	uint32_t n = 0;
	pthread_mutex_lock(&t->lock);
	int lost = t->end - *cursor > ROOM;
	for (; !lost && n < PIECE && *cursor < t->end; n++, ++*cursor)
		t->change[n] = t->ring[*cursor % ROOM];
	pthread_mutex_unlock(&t->lock);
	*ret_n = n;
	return lost ? ERR_FULL : 0;
}

/* --- messages --- */

static void begin_lists(struct tell *t, struct listener *l, const char *why)
{
	l->cursor = ring_end(t);
	l->listing = 0;
	l->fresh = 1;
	l->at = (struct tier_cursor){0};
	t->st->stats.kv_lists++;
	log_debug("kv_list", "worker=%s why=%s", log_quote(l->name), log_quote(why));
	tell_tick_soon(t);
}

static int send_events(struct tell *t, struct listener *l, struct peer *p, enum tier_id id,
                       int reset, size_t n_stored, size_t n_removed)
{
	Pds__KvEvents m = PDS__KV_EVENTS__INIT;
	m.reset = reset;
	m.tier = (uint32_t)id;
	m.stored = t->stored;
	m.n_stored = n_stored;
	m.removed = t->removed;
	m.n_removed = n_removed;
	int r = svc_send(t->st->svc, p, MSG_KV_EVENTS, NULL, &m);
	if (r == 0) {
		l->full = 0;
		return 0;
	}
	l->full = l->full ? l->full * 2 : 1;
	l->pause = l->full = l->full < FULL_TICKS ? l->full : FULL_TICKS;
	return r;
}

/* The next keys of this layout in the tier's list, into t->stored; advances *at. */
static size_t list_piece(struct tell *t, const struct storage_client *c, enum tier_id id,
                         struct tier_cursor *at)
{
	struct tier *tier = tier_stack_find(t->st->tier, id);
	size_t n = 0;
	at->end |= !tier || !tier->ops->list;
	for (unsigned i = 0; i < PIECES_A_TICK && !n && !at->end; i++) {
		uint32_t got = tier->ops->list(tier, at, PIECE, t->key);
		for (uint32_t k = 0; k < got; k++)
			if (memcmp(t->key[k].b + sizeof t->key[k].b - KEY_SALT_BYTES, c->salt,
			           KEY_SALT_BYTES) == 0)
				memcpy(&t->stored[n++], t->key[k].b, sizeof *t->stored);
	}
	return n;
}

static void send_piece(struct tell *t, struct listener *l, struct peer *p,
                       const struct storage_client *c)
{
	enum tier_id id = told_tiers[l->listing];
	struct tier_cursor at = l->at;
	size_t n = list_piece(t, c, id, &at);
	if ((n || l->fresh) && send_events(t, l, p, id, l->fresh, n, 0) < 0)
		return;
	l->fresh = 0;
	l->at = at;
	if (!at.end)
		return;
	l->listing++;
	l->fresh = 1;
	l->at = (struct tier_cursor){0};
}

static int by_hash(const void *a, const void *b)
{
	const struct change *x = a, *y = b;
	return x->hash != y->hash ? (x->hash > y->hash) - (x->hash < y->hash)
	                          : (x->order > y->order) - (x->order < y->order);
}

/* Collects the latest state of each changed key of one tier and layout in t->stored and
 * t->removed. */
static void settle(struct tell *t, const struct storage_client *c, enum tier_id id, uint32_t n,
                   size_t *ret_stored, size_t *ret_removed)
{
	size_t stored = 0, removed = 0, m = 0;
	for (uint32_t i = 0; i < n; i++)
		if (t->change[i].tier == id && memcmp(t->change[i].salt, c->salt, sizeof c->salt) == 0) {
			t->mine[m] = t->change[i];
			t->mine[m++].order = i;
		}
	qsort(t->mine, m, sizeof *t->mine, by_hash);
	for (size_t i = 0; i < m; i++) {
		if (i + 1 < m && t->mine[i + 1].hash == t->mine[i].hash)
			continue;
		if (t->mine[i].stored)
			t->stored[stored++] = t->mine[i].hash;
		else
			t->removed[removed++] = t->mine[i].hash;
	}
	*ret_stored = stored;
	*ret_removed = removed;
}

/* 1: more changes are left. */
static int send_changes(struct tell *t, struct listener *l, struct peer *p,
                        const struct storage_client *c)
{
	uint64_t cursor = l->cursor;
	uint32_t n;
	if (ring_read(t, &cursor, &n) < 0) {
		t->st->stats.kv_overflows++;
		begin_lists(t, l, "fell behind");
		return 1;
	}
	for (unsigned k = 0; k < TOLD && n; k++) {
		size_t stored, removed;
		settle(t, c, told_tiers[k], n, &stored, &removed);
		if ((stored || removed) && send_events(t, l, p, told_tiers[k], 0, stored, removed) < 0)
			return 1; /* tiers already sent are repeated, which is harmless */
		t->st->stats.kv_events += stored + removed;
	}
	l->cursor = cursor;
	return n == PIECE;
}

/* 1: call again at the next tick. A worker that is not attached or not connected waits for that. */
static int tell_one(struct tell *t, struct listener *l)
{
	struct peer *p = chan_find(svc_chan(t->st->svc), l->name, 0);
	const struct storage_client *c = client_find(t->st, l->name, l->epoch);
	if (!c || !p || peer_epoch(p) != l->epoch)
		return 0;
	if (l->pause) {
		l->pause--;
		return 1;
	}
	if (l->listing == TOLD)
		return send_changes(t, l, p, c);
	send_piece(t, l, p, c);
	return 1;
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
	struct tell *t = arg;
	int more = 0;
	(void)fd;
	(void)what;
	t->ticking = 0;
	list_each(it, &t->listeners)
		more |= tell_one(t, list_entry(it, struct listener, node));
	if (more)
		tell_tick_soon(t);
}

static void on_change(struct svc *s, void *arg)
{
	struct tell *t = arg;
	(void)s;
	pthread_mutex_lock(&t->lock);
	int opened = t->opened;
	t->posted = t->opened = 0;
	pthread_mutex_unlock(&t->lock);
	list_each(it, &t->listeners)
		if (opened)
			begin_lists(t, list_entry(it, struct listener, node), "a tier was opened");
	tell_tick_soon(t);
}

/* --- listeners --- */

static struct listener *listener_find(struct tell *t, const char *name, uint64_t epoch)
{
	list_each(it, &t->listeners) {
		struct listener *l = list_entry(it, struct listener, node);
		if (l->epoch == epoch && strcmp(l->name, name) == 0)
			return l;
	}
	return NULL;
}

void tell_list(struct svc *s, struct peer *p, const struct msg_head *head,
               const ProtobufCMessage *body)
{
	struct tell *t = ((struct storage *)svc_data(s))->tell;
	(void)head;
	(void)body;
	if (!t)
		return;
	struct listener *l = listener_find(t, peer_name(p), peer_epoch(p));
	if (!l) { /* at most one per connected worker */
		l = mem_zalloc(sizeof *l);
		strncpy(l->name, peer_name(p), sizeof l->name - 1);
		l->epoch = peer_epoch(p);
		list_push_back(&t->listeners, &l->node);
		if (!t->ring)
			t->ring = mem_array(ROOM, sizeof *t->ring);
		atomic_store_explicit(&t->wanted, 1, memory_order_release);
	}
	begin_lists(t, l, "it asked");
}

void tell_attached(struct tell *t, const struct storage_client *c)
{
	struct listener *l = t ? listener_find(t, c->name, c->epoch) : NULL;
	if (l)
		begin_lists(t, l, "it is attached");
}

void tell_down(struct tell *t, const struct peer *p)
{
	struct listener *l = t ? listener_find(t, peer_name(p), peer_epoch(p)) : NULL;
	if (!l)
		return;
	list_remove(&l->node);
	free(l);
	if (list_empty(&t->listeners))
		atomic_store(&t->wanted, 0);
}

struct tell *tell_new(struct storage *st, uint64_t interval_us)
{
	if (!interval_us)
		return NULL;
	struct tell *t = mem_zalloc(sizeof *t);
	t->st = st;
	t->interval = clock_timeval(interval_us);
	t->tick = event_new(svc_base(st->svc), -1, 0, on_tick, t);
	list_init(&t->listeners);
	pthread_mutex_init(&t->lock, NULL);
	return t;
}

void tell_destroy(struct tell **tp)
{
	struct tell *t = *tp;
	if (!t)
		return;
	list_each_safe(it, nx, &t->listeners)
		free(list_entry(it, struct listener, node));
	event_free(t->tick);
	pthread_mutex_destroy(&t->lock);
	free(t->ring);
	free(t);
	*tp = NULL;
}
