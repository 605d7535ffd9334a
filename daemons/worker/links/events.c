/* events.c - see events.h.
 *
 * A whole list is sent in pieces, one a tick, while the pool goes on changing. The changes that
 * were made since its first piece are sent after its last piece, so the router ends up with the
 * right state of each hash. A message names a hash at most once, with its latest state. If the link
 * does not take a message, the message is built again later: cursor and piece advance only with
 * what was sent. Nothing here is fatal. */
#include "events.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define PIECE 4096u /* hashes of one message, at most */
/* bounds on the number of changes kept; between them it is the number of blocks */
#define ROOM_MIN 1024u
#define ROOM_MAX 65536u
#define FULL_TICKS 32u /* longest pause, in intervals, after the link was full */

struct events_follower {
	struct list node;
	struct peer *p;
	uint64_t cursor; /* next change to send */
	/* next block of the list to send; the pool's size: the list has been sent */
	uint32_t block;
	int fresh; /* the next piece is the list's first */
	/* full: length of the last pause after a full link, in ticks; pause: ticks left of it */
	unsigned full, pause;
};

struct events {
	struct svc *svc;
	struct kv_pool *pool;
	struct events_stats *stats;
	uint32_t blocks;
	struct timeval interval;
	struct event *tick;
	int ticking;
	struct list followers;
	struct kv_change change[PIECE];
	uint64_t stored[PIECE], removed[PIECE];
};

static void start_ticking(struct events *ev)
{
	if (ev->ticking || list_empty(&ev->followers))
		return;
	ev->ticking = 1;
	event_add(ev->tick, &ev->interval);
}

static void begin_list(struct events *ev, struct events_follower *f, const char *why)
{
	f->cursor = kv_pool_changes_end(ev->pool);
	f->block = 0;
	f->fresh = 1;
	ev->stats->lists++;
	log_notice("kv_list", "router=%s why=%s", peer_name(f->p), log_quote(why));
}

/* 0, or a negative code if the link did not take it: try again later. */
static int send_events(struct events *ev, struct events_follower *f, int reset, size_t n_stored,
                       size_t n_removed)
{
	Pds__KvEvents m = PDS__KV_EVENTS__INIT;
	m.reset = reset;
	m.stored = ev->stored;
	m.n_stored = n_stored;
	m.removed = ev->removed;
	m.n_removed = n_removed;
	int r = chan_send(svc_chan(ev->svc), f->p, MSG_KV_EVENTS, NULL, &m.base);
	if (r == 0) {
		f->full = 0;
		return 0;
	}
	f->full = f->full ? f->full * 2 : 1;
	f->pause = f->full = f->full < FULL_TICKS ? f->full : FULL_TICKS;
	return r;
}

static void send_piece(struct events *ev, struct events_follower *f)
{
	uint32_t block = f->block, n = kv_pool_entries(ev->pool, &block, PIECE, ev->stored);
	if (!n && !f->fresh) {
		f->block = block;
		return;
	}
	if (send_events(ev, f, f->fresh, n, 0) < 0)
		return;
	f->fresh = 0;
	f->block = block;
}

static int by_hash(const void *a, const void *b)
{
	const struct kv_change *x = a, *y = b;
	return x->hash != y->hash ? (x->hash > y->hash) - (x->hash < y->hash)
	                          : (x->stored >> 1) - (y->stored >> 1);
}

/* Splits the changes into ev->stored and ev->removed; each hash once, by its latest change. */
static void merge_changes(struct events *ev, uint32_t n, size_t *ret_stored, size_t *ret_removed)
{
	size_t stored = 0, removed = 0;
	for (uint32_t i = 0; i < n; i++) /* qsort is not stable: the index goes above the bit */
		ev->change[i].stored |= (int)(i << 1);
	qsort(ev->change, n, sizeof *ev->change, by_hash);
	for (uint32_t i = 0; i < n; i++) {
		if (i + 1 < n && ev->change[i + 1].hash == ev->change[i].hash)
			continue;
		if (ev->change[i].stored & 1)
			ev->stored[stored++] = ev->change[i].hash;
		else
			ev->removed[removed++] = ev->change[i].hash;
	}
	*ret_stored = stored;
	*ret_removed = removed;
}

/* Returns 1 if more is to be sent. */
static int send_changes(struct events *ev, struct events_follower *f)
{
	uint64_t cursor = f->cursor;
	size_t stored, removed;
	uint32_t n;
	if (kv_pool_changes(ev->pool, &cursor, PIECE, ev->change, &n) < 0) {
		ev->stats->overflows++;
		begin_list(ev, f, "more changes than are kept");
		return 1;
	}
	if (!n)
		return 0;
	merge_changes(ev, n, &stored, &removed);
	if (send_events(ev, f, 0, stored, removed) < 0)
		return 1;
	f->cursor = cursor;
	ev->stats->changes += n;
	return n == PIECE;
}

/* Returns 1 if this follower needs another tick. */
static int tell(struct events *ev, struct events_follower *f)
{
	if (f->pause) {
		f->pause--;
		return 1;
	}
	if (f->block == ev->blocks)
		return send_changes(ev, f);
	send_piece(ev, f);
	return 1;
}

static void events_on_tick(evutil_socket_t fd, short what, void *arg)
{
	struct events *ev = arg;
	int more = 0;
	(void)fd;
	(void)what;
	ev->ticking = 0;
	list_each(it, &ev->followers)
		more |= tell(ev, list_entry(it, struct events_follower, node));
	if (more)
		start_ticking(ev);
}

static void on_change(struct svc *s, void *arg)
{
	(void)s;
	start_ticking(arg);
}

static void events_wake(void *arg)
{
	struct events *ev = arg;
	svc_post(ev->svc, on_change, ev);
}

struct events *events_new(struct svc *s, struct kv_pool *pool, uint64_t interval_us,
                          struct events_stats *stats)
{
	if (!interval_us)
		return NULL;
	struct kv_stats ks;
	struct events *ev = mem_zalloc(sizeof *ev);
	kv_pool_stats(pool, &ks);
	ev->svc = s;
	ev->pool = pool;
	ev->stats = stats;
	ev->blocks = ks.blocks;
	ev->interval = clock_timeval(interval_us);
	ev->tick = event_new(svc_base(s), -1, 0, events_on_tick, ev);
	list_init(&ev->followers);
	kv_pool_follow(pool,
	               ks.blocks < ROOM_MIN   ? ROOM_MIN
	               : ks.blocks > ROOM_MAX ? ROOM_MAX
	                                      : ks.blocks,
	               events_wake, ev);
	return ev;
}

static void unfollow(struct events_follower *f)
{
	list_remove(&f->node);
	free(f);
}

void events_destroy(struct events **evp)
{
	struct events *ev = *evp;
	if (!ev)
		return;
	list_each_safe(it, nx, &ev->followers)
		unfollow(list_entry(it, struct events_follower, node));
	event_free(ev->tick);
	free(ev);
	*evp = NULL;
}

void events_up(struct events *ev, struct peer *router)
{
	if (!ev)
		return;
	struct events_follower *f = mem_zalloc(sizeof *f);
	f->p = router;
	list_push_back(&ev->followers, &f->node);
	begin_list(ev, f, "the link came up");
	start_ticking(ev);
}

void events_down(struct events *ev, struct peer *router)
{
	if (!ev)
		return;
	list_each_safe(it, nx, &ev->followers)
		if (list_entry(it, struct events_follower, node)->p == router)
			unfollow(list_entry(it, struct events_follower, node));
}
