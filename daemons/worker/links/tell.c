/* tell.c - see tell.h. */
#include "daemons/worker/links/tell.h"
#include "daemons/worker/worker.h"
#include "util/clock.h"
#include "util/least.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AGAIN_US 50000u
/* a messager that is gone for a shorter time is described as if it were there */
#define RESTART_US 1000000u
/* A silent messager is looked at again this much later, before it counts: if it was this process
 * that did not run, what has arrived meanwhile is read first. */
#define GLANCE_US 100000u

static void tell_again(struct worker *w)
{
	struct timeval tv = clock_timeval(AGAIN_US);
	event_add(w->tell.again, &tv);
}

static void routers(struct worker *w)
{
	struct chan *c = svc_chan(w->svc);
	Pds__WorkerUpdate m = PDS__WORKER_UPDATE__INIT;
	Pds__WorkerInfo info = PDS__WORKER_INFO__INIT;
	struct msg_head none = {0};
	worker_describe(w, &info);
	m.worker = &info;
	w->tell.routers_untold = 0;
	for (struct peer *p = chan_next(c, NULL); p; p = chan_next(c, p))
		if (peer_tag(p) == TAG_ROUTER && peer_is_up(p) &&
		    chan_send(c, p, MSG_WORKER_UPDATE, &none, &m.base) == ERR_FULL)
			w->tell.routers_untold = 1;
	if (w->tell.routers_untold)
		tell_again(w);
}

void tell_changed(struct worker *w)
{
	w->tell.changes++;
	routers(w);
}

void tell_messager_awaited(struct worker *w)
{
	const struct svc_conf *c = svc_common(w->svc);
	/* it answers our heartbeats, which go out every five heartbeat_ms or more often */
	w->tell.silent_us = most(c->heartbeat_us * 15 / 2, c->silence_us * 3 / 4);
	w->tell.has_messager = 1;
	tell_messager_seen(w);
}

void tell_messager_seen(struct worker *w)
{
	struct tell_state *t = &w->tell;
	int linked = w->messager && attach_stands(w->messager_attach), had = t->has_messager;
	uint64_t now = clock_us(), quiet = linked ? now - peer_heard_us(w->messager) : 0,
			 grace = linked ? GLANCE_US : RESTART_US;
	if (linked && quiet < t->silent_us)
		t->lost_us = 0;
	else if (!t->lost_us)
		t->lost_us = now;
	uint64_t lost = t->lost_us ? now - t->lost_us : 0;
	t->has_messager = !t->lost_us || (had && lost < grace);
	if (linked || t->has_messager) { /* else its return is an event */
		struct timeval tv = clock_timeval(!t->lost_us       ? t->silent_us - quiet
		                                  : t->has_messager ? grace - lost
		                                                    : GLANCE_US);
		event_add(t->look, &tv);
	}
	if (had && !t->has_messager)
		log_warn("messager_lost", "why=%s effect=%s",
		         log_quote(linked ? "it is silent" : "it has not taken this worker's memory"),
		         log_quote("no KV is handed over until it is back"));
	else if (!had && t->has_messager)
		log_notice("messager_back", "epoch=%llu", (unsigned long long)peer_epoch(w->messager));
	const char *remote = t->has_messager ? attach_remote(w->messager_attach) : "";
	if (had == t->has_messager && strcmp(remote, t->messager) == 0)
		return;
	snprintf(t->messager, sizeof t->messager, "%s", remote);
	tell_changed(w);
}

void tell_router_up(struct worker *w)
{
	if (w->tell.changes)
		routers(w);
}

static void forget_peers(struct tell_state *t)
{
	free(t->peers);
	t->peers = NULL;
	t->peers_len = 0;
}

/* Sends the packed list, unless it is what the messager was told last. Takes it over. */
static void tell_send_peers(struct worker *w, const Pds__Peers *m, unsigned char *packed,
                            size_t len)
{
	struct tell_state *t = &w->tell;
	struct msg_head none = {0};
	int same = t->peers && t->peers_len == len && memcmp(t->peers, packed, len) == 0;
	/* on one host there is nobody to tell of; a messager whose link restarts may know somebody */
	if (same || (!t->peers_told && !m->n_peers)) {
		free(packed);
		return;
	}
	int r = chan_send(svc_chan(w->svc), w->messager, MSG_PEERS, &none, &m->base);
	if (r < 0) {
		free(packed);
		t->messager_untold = r == ERR_FULL;
		if (t->messager_untold)
			tell_again(w);
		return;
	}
	log_notice("messager_told", "peers=%zu", m->n_peers);
	t->peers_told = 1;
	forget_peers(t);
	t->peers = packed;
	t->peers_len = len;
}

void tell_messager(struct worker *w, int link_is_new)
{
	Pds__Peers m;
	if (link_is_new)
		forget_peers(&w->tell);
	w->tell.messager_untold = 0;
	if (!w->messager)
		return;
	peer_lists_union(&w->peer_lists, 1, &m);
	size_t len = pds__peers__get_packed_size(&m);
	unsigned char *packed = mem_alloc(len + 1);
	pds__peers__pack(&m, packed);
	tell_send_peers(w, &m, packed, len);
	free(m.peers);
}

static void on_again(evutil_socket_t fd, short what, void *arg)
{
	struct worker *w = arg;
	(void)fd;
	(void)what;
	if (w->tell.routers_untold)
		routers(w);
	if (w->tell.messager_untold)
		tell_messager(w, 0);
}

static void tell_on_look(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	tell_messager_seen(arg);
}

void tell_init(struct worker *w)
{
	w->tell.look = event_new(svc_base(w->svc), -1, 0, tell_on_look, w);
	w->tell.again = event_new(svc_base(w->svc), -1, 0, on_again, w);
}

void tell_fini(struct worker *w)
{
	if (w->tell.again)
		event_free(w->tell.again);
	if (w->tell.look)
		event_free(w->tell.look);
	w->tell.again = w->tell.look = NULL;
	forget_peers(&w->tell);
}
