/* relay.c - see relay.h.
 *
 * Invariant: for each tier, a router either receives every event of storage in order (has), or
 * nothing until a list restarts (lacks). A message from another peer than storage is counted and
 * dropped. Nothing here is fatal. */
#include "relay.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/log.h"
#include "util/mem.h"

#include <event2/event.h>
#include <stdlib.h>

#define TIER_FIRST 1u
#define TIER_LAST 2u
#define TIERS_ALL 6u   /* bits */
#define PIECE 4096u    /* hashes of one message, at most */
#define SOON_US 10000u /* one list serves all routers that come up within this time */
/* pause before lists are requested again after a full link; it doubles each time */
#define AGAIN_US 200000u
#define AGAIN_MAX_US 10000000u
#define CALM_US 60000000u /* without a full link: the pause is AGAIN_US again */

struct relay_follower {
	struct list node;
	struct peer *p;
	/* bits of tiers: those it was told about; those whose list it still needs */
	unsigned has, lacks;
};

struct relay {
	struct svc *svc;
	struct relay_stats *stats;
	struct peer *storage; /* NULL: its link is down */
	int reads, writes;
	int needs_list; /* no list was requested since storage's link came up */
	struct list followers;
	struct event *timer;
	uint64_t pause_us, cut_us; /* pause before the next request; when a link was last full */
};

static unsigned bit_of(uint32_t tier)
{
	return 1u << tier;
}

static void relay_arm(struct relay *r, uint64_t us)
{
	struct timeval t = clock_timeval(us);
	if (!event_pending(r->timer, EV_TIMEOUT, NULL))
		event_add(r->timer, &t);
}

/* Requests the lists in a moment, also if a longer pause was planned. */
static void ask_soon(struct relay *r)
{
	event_del(r->timer);
	relay_arm(r, SOON_US);
}

static void relay_ask(struct relay *r)
{
	unsigned lacks = r->writes && r->needs_list;
	list_each(it, &r->followers)
		lacks |= r->reads ? list_entry(it, struct relay_follower, node)->lacks : 0;
	if (!r->storage || !lacks)
		return;
	Pds__StoreList m = PDS__STORE_LIST__INIT;
	if (svc_send(r->svc, r->storage, MSG_STORE_LIST, NULL, &m.base) < 0) {
		relay_arm(r, AGAIN_US);
		return;
	}
	r->needs_list = 0;
	r->stats->asked++;
	log_notice("store_list", "storage=%s", peer_name(r->storage));
}

static int say_empty(struct relay *r, struct relay_follower *f, uint32_t tier)
{
	Pds__KvEvents m = PDS__KV_EVENTS__INIT;
	m.reset = 1;
	m.tier = tier;
	return svc_send(r->svc, f->p, MSG_KV_EVENTS, NULL, &m.base);
}

/* Storage is gone, or is not read any more: tells this router that its tiers are empty; again later
 * if its link is full. */
static void say_gone(struct relay *r, struct relay_follower *f)
{
	f->lacks = TIERS_ALL;
	for (uint32_t t = TIER_FIRST; t <= TIER_LAST; t++)
		if (f->has & bit_of(t) && say_empty(r, f, t) == 0)
			f->has &= ~bit_of(t);
	if (f->has)
		relay_arm(r, AGAIN_US);
}

static void all_gone(struct relay *r)
{
	list_each(it, &r->followers)
		say_gone(r, list_entry(it, struct relay_follower, node));
}

static void relay_on_timer(evutil_socket_t fd, short what, void *arg)
{
	struct relay *r = arg;
	(void)fd;
	(void)what;
	if (!r->storage || !r->reads)
		all_gone(r);
	relay_ask(r);
}

/* A router's link is full: its list restarts, after a pause, since a list is even more data. */
static void cut(struct relay *r, struct relay_follower *f, unsigned bit)
{
	uint64_t now = clock_us();
	r->stats->cut++;
	if (!(f->lacks & bit))
		log_notice("store_events_cut", "router=%s", peer_name(f->p));
	f->lacks |= bit;
	if (event_pending(r->timer, EV_TIMEOUT, NULL))
		return;
	r->pause_us = !r->pause_us || now - r->cut_us > CALM_US ? AGAIN_US
	              : r->pause_us < AGAIN_MAX_US / 2          ? r->pause_us * 2
	                                                        : AGAIN_MAX_US;
	r->cut_us = now;
	relay_arm(r, r->pause_us);
}

static void pass(struct relay *r, struct relay_follower *f, const Pds__KvEvents *m)
{
	unsigned bit = bit_of(m->tier);
	if (f->lacks & bit && !m->reset)
		return;
	if (svc_send(r->svc, f->p, MSG_KV_EVENTS, NULL, &m->base) < 0) {
		cut(r, f, bit);
		return;
	}
	f->has |= bit;
	f->lacks &= ~bit;
	r->stats->hashes += m->n_stored + m->n_removed;
}

void relay_events(struct relay *r, const struct peer *from, const Pds__KvEvents *m)
{
	if (!r)
		return;
	if (from != r->storage || m->tier < TIER_FIRST || m->tier > TIER_LAST || m->n_stored > PIECE ||
	    m->n_removed > PIECE) {
		r->stats->bad++;
		log_warn("store_events_bad", "peer=%s tier=%u stored=%zu removed=%zu", peer_name(from),
		         m->tier, m->n_stored, m->n_removed);
		return;
	}
	if (!r->reads)
		return;
	list_each(it, &r->followers)
		pass(r, list_entry(it, struct relay_follower, node), m);
}

void relay_router_up(struct relay *r, struct peer *router)
{
	if (!r)
		return;
	struct relay_follower *f = mem_zalloc(sizeof *f);
	f->p = router;
	f->lacks = TIERS_ALL;
	list_push_back(&r->followers, &f->node);
	ask_soon(r);
}

void relay_router_down(struct relay *r, struct peer *router)
{
	if (!r)
		return;
	list_each_safe(it, nx, &r->followers) {
		struct relay_follower *f = list_entry(it, struct relay_follower, node);
		if (f->p != router)
			continue;
		list_remove(it);
		free(f);
	}
}

void relay_storage_up(struct relay *r, struct peer *storage)
{
	if (!r)
		return;
	r->storage = storage;
	r->needs_list = 1;
	r->pause_us = 0;
	ask_soon(r);
}

void relay_storage_down(struct relay *r, const struct peer *storage)
{
	if (!r || r->storage != storage)
		return;
	r->storage = NULL;
	event_del(r->timer);
	all_gone(r);
}

void relay_reads(struct relay *r, int reads)
{
	if (!r || r->reads == reads)
		return;
	r->reads = reads;
	ask_soon(r);
	if (!reads)
		all_gone(r);
}

void relay_writes(struct relay *r, int writes)
{
	if (!r || r->writes == writes)
		return;
	r->writes = writes;
	ask_soon(r);
}

struct relay *relay_new(struct svc *s, struct relay_stats *stats)
{
	struct relay *r = mem_zalloc(sizeof *r);
	r->svc = s;
	r->stats = stats;
	r->timer = event_new(svc_base(s), -1, 0, relay_on_timer, r);
	list_init(&r->followers);
	return r;
}

void relay_destroy(struct relay **rp)
{
	struct relay *r = *rp;
	if (!r)
		return;
	list_each_safe(it, nx, &r->followers)
		free(list_entry(it, struct relay_follower, node));
	event_free(r->timer);
	free(r);
	*rp = NULL;
}
