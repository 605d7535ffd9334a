/* remote.c - see remote.h. */
#include "remote.h"

#include "util/check.h"
#include "util/clock.h"
#include "util/endpoint.h"
#include "util/list.h"
#include "util/mem.h"
#include "util/once.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENDPOINT_MAX (ENDPOINT_BYTES_MAX + 1)

struct remote {
	struct list node;
	struct remotes *of;
	char endpoint[ENDPOINT_MAX]; /* NAME@tcp://HOST:PORT */
	char name[RING_NAME_MAX];
	struct peer *peer; /* NULL: its key is not known yet, or there are too many peers */
	struct mover_via via;
	Pds__Pools *pools; /* as it said last; NULL: nothing since its link came up */
	uint64_t down_us;  /* since when the link is down, if it is */
	int refused;       /* it takes KV over no transport of this messager's; until the link ends */
	char trouble[256]; /* why there is no path, for people */
};

/* What one worker of this host has named: workers of other hosts, and the messager of each. */
struct named {
	char worker[RING_NAME_MAX], endpoint[ENDPOINT_MAX];
};
struct naming {
	struct list node;
	char worker[RING_NAME_MAX];
	struct named *named;
	size_t n;
};

struct remotes {
	struct svc *svc;
	struct mover *mover;
	const struct transports *transports;
	struct list remotes, namings;
	unsigned n;
	struct svc_timer *timer; /* connects those whose keys come late */
	struct once logged;
	char why[ENDPOINT_MAX + 300]; /* of remotes_unreachable */
};

#define each_remote(it, r) list_each_safe(it, it##_next, &(r)->remotes)
#define remote_entry(it) list_entry(it, struct remote, node)

/* --- one messager -------------------------------------------------------- */

static int via_linked(void *arg)
{
	const struct remote *o = arg;
	return o->peer && peer_is_up(o->peer) && o->via.path != NULL;
}

static int via_send(void *arg, enum msg_type type, const struct msg_head *head,
                    const ProtobufCMessage *body)
{
	const struct remote *o = arg;
	return chan_send(svc_chan(o->of->svc), o->peer, type, head, body);
}

static int path_say(void *arg, const void *bytes, size_t n)
{
	const struct remote *o = arg;
	Pds__Path m = PDS__PATH__INIT;
	m.transport = (char *)o->via.ops->name;
	m.data = (ProtobufCBinaryData){n, (uint8_t *)bytes};
	return chan_send(svc_chan(o->of->svc), o->peer, MSG_PATH, NULL, &m.base);
}

static void path_up(void *arg, int up, const char *why)
{
	const struct remote *o = arg;
	if (up)
		log_notice("path_up", "messager=%s transport=%s", o->name, o->via.ops->name);
	else
		log_warn("path_down", "messager=%s transport=%s why=%s", o->name, o->via.ops->name,
		         log_quote(why));
}

/* Its workers, but those in `keep` (NULL: all). */
static void remove_pools(struct remote *o, const Pds__Pools *keep)
{
	struct mover_worker *w, *next;
	for (w = mover_next_of(o->of->mover, &o->via, NULL); w; w = next) {
		int kept = 0;
		next = mover_next_of(o->of->mover, &o->via, w);
		for (size_t i = 0; keep && i < keep->n_pools; i++)
			kept |= keep->pools[i]->epoch == mover_worker_epoch(w) &&
			        strcmp(keep->pools[i]->worker, mover_worker_name(w)) == 0;
		if (!kept)
			mover_remove(o->of->mover, w);
	}
}

static void path_close(struct remote *o)
{
	remove_pools(o, NULL);
	if (o->pools)
		pds__pools__free_unpacked(o->pools, NULL);
	o->pools = NULL;
	if (o->via.path)
		o->via.ops->path_destroy(&o->via.path);
}

static void remote_free(struct remote *o)
{
	path_close(o);
	list_remove(&o->node);
	o->of->n--;
	free(o);
}

static void remote_connect(struct remote *o)
{
	struct chan *c = svc_chan(o->of->svc);
	if (o->peer)
		return;
	int has_key = chan_has_keys_for(c, o->endpoint, NULL);
	if (has_key)
		o->peer = chan_connect(c, o->endpoint, NULL, REMOTE_TAG);
	else if (once_may_log(&o->of->logged, o->endpoint, strlen(o->endpoint)))
		log_warn("messager_without_key", "endpoint=%s why=%s", o->endpoint,
		         log_quote("its key is not known here; it is connected once it is"));
	snprintf(o->trouble, sizeof o->trouble, "%s",
	         o->peer   ? "the link is not up yet"
	         : has_key ? "the link cannot be made: the log says why"
	                   : "its key is not known here");
}

static void remote_new(struct remotes *r, const char *endpoint)
{
	const char *at = strchr(endpoint, '@');
	struct remote *o = mem_zalloc(sizeof *o);
	o->of = r;
	o->down_us = clock_us();
	snprintf(o->endpoint, sizeof o->endpoint, "%s", endpoint);
	snprintf(o->name, sizeof o->name, "%.*s", (int)(at - endpoint), endpoint);
	o->via = (struct mover_via){.arg = o, .name = o->name, .linked = via_linked, .send = via_send};
	list_push_back(&r->remotes, &o->node);
	r->n++;
	remote_connect(o);
}

static void on_timer(struct svc *s, void *arg)
{
	struct remotes *r = arg;
	(void)s;
	each_remote(it, r)
		remote_connect(remote_entry(it));
}

struct remotes *remotes_new(struct svc *s, struct mover *m, const struct transports *t)
{
	struct remotes *r = mem_zalloc(sizeof *r);
	r->svc = s;
	r->mover = m;
	r->transports = t;
	list_init(&r->remotes);
	list_init(&r->namings);
	r->timer = svc_timer_add(s, 1000000, on_timer, r);
	return r;
}

/* --- which there are ----------------------------------------------------- */

/* worker NULL: any. */
static int is_named(const struct remotes *r, const char *worker, const char *endpoint)
{
	list_each(it, &r->namings) {
		const struct naming *n = list_entry(it, struct naming, node);
		for (size_t i = 0; i < n->n; i++)
			if (strcmp(n->named[i].endpoint, endpoint) == 0 &&
			    (!worker || strcmp(n->named[i].worker, worker) == 0))
				return 1;
	}
	return 0;
}

static struct remote *remote_find(const struct remotes *r, const char *endpoint)
{
	list_each(it, &r->remotes) {
		if (strcmp(remote_entry(it)->endpoint, endpoint) == 0)
			return remote_entry(it);
	}
	return NULL;
}

static void drop_unnamed(struct remotes *r)
{
	each_remote(it, r) {
		struct remote *o = remote_entry(it);
		if ((o->peer && peer_is_up(o->peer)) || is_named(r, NULL, o->endpoint))
			continue;
		if (o->peer)
			chan_disconnect(svc_chan(r->svc), o->peer);
		remote_free(o);
	}
}

static void naming_free(struct naming *n)
{
	list_remove(&n->node);
	free(n->named);
	free(n);
}

static void naming_drop(struct remotes *r, const char *worker)
{
	list_each_safe(it, nx, &r->namings) {
		if (strcmp(list_entry(it, struct naming, node)->worker, worker) == 0)
			naming_free(list_entry(it, struct naming, node));
	}
}

static int is_acceptable(const struct remotes *r, const Pds__Peer *p)
{
	const char *at = strchr(p->messager, '@');
	const char *why = NULL;
	if (!endpoint_is_remote(p->messager) || (size_t)(at - p->messager) >= RING_NAME_MAX ||
	    strlen(p->name) >= RING_NAME_MAX)
		why = "not a worker's name and NAME@tcp://HOST:PORT";
	else if (!remote_find(r, p->messager) && r->n >= REMOTES_MAX)
		why = "too many messagers";
	if (why && once_may_log(&((struct remotes *)r)->logged, p->messager, strlen(p->messager)))
		log_warn("messager_refused", "endpoint=%s why=%s limit=%u", log_quote(p->messager),
		         log_quote(why), REMOTES_MAX);
	return !why;
}

static void naming_add(struct remotes *r, const char *worker, const Pds__Peers *b)
{
	struct naming *n = mem_zalloc(sizeof *n);
	snprintf(n->worker, sizeof n->worker, "%s", worker);
	n->named = mem_array(b->n_peers, sizeof *n->named);
	list_push_back(&r->namings, &n->node);
	for (size_t i = 0; i < b->n_peers; i++) {
		const Pds__Peer *p = b->peers[i];
		if (!*p->messager || !is_acceptable(r, p))
			continue;
		struct named *d = &n->named[n->n++];
		snprintf(d->worker, sizeof d->worker, "%s", p->name);
		snprintf(d->endpoint, sizeof d->endpoint, "%s", p->messager);
		if (!remote_find(r, p->messager))
			remote_new(r, p->messager);
	}
}

/* Its workers, of those that it names, which a worker of this host has named with this messager: no
 * messager can pass for another one's worker. */
static void take_pools(struct remote *o)
{
	struct mover *m = o->of->mover;
	remove_pools(o, o->pools);
	if (o->refused)
		return;
	for (size_t i = 0; i < o->pools->n_pools; i++) {
		const Pds__Pool *p = o->pools->pools[i];
		const struct mover_worker *w = mover_find(m, p->worker);
		if (!*p->worker || strlen(p->worker) >= RING_NAME_MAX || !p->blocks ||
		    !is_named(o->of, p->worker, o->endpoint))
			continue;
		if (!w || mover_worker_via(w) != &o->via)
			mover_add_remote(m, p->worker, p->epoch, p->layout, p->blocks, &o->via);
	}
}

void remotes_named(struct remotes *r, const char *worker, const Pds__Peers *b)
{
	naming_drop(r, worker);
	if (b)
		naming_add(r, worker, b);
	drop_unnamed(r);
	each_remote(it, r) {
		if (remote_entry(it)->pools)
			take_pools(remote_entry(it));
	}
}

static const struct named *named_find(const struct remotes *r, const char *name)
{
	list_each(it, &r->namings) {
		const struct naming *n = list_entry(it, struct naming, node);
		for (size_t i = 0; i < n->n; i++)
			if (strcmp(n->named[i].worker, name) == 0)
				return &n->named[i];
	}
	return NULL;
}

const char *remotes_unreachable(struct remotes *r, const char *decode)
{
	const struct named *d = named_find(r, decode);
	if (!d)
		return NULL;
	const struct remote *o = remote_find(r, d->endpoint);
	uint64_t now = clock_us();
	if (!o || !o->peer)
		snprintf(r->why, sizeof r->why,
		         "there is no key of its messager %s here, or no room for a link", d->endpoint);
	else if (!peer_is_up(o->peer) && now - o->down_us >= REMOTE_PATIENCE_US)
		snprintf(r->why, sizeof r->why, "the link to its messager %s is down for %" PRIu64 " ms",
		         d->endpoint, (now - o->down_us) / 1000);
	else if (o->refused)
		snprintf(r->why, sizeof r->why, "its messager %s refuses: %s", d->endpoint, o->trouble);
	else
		return NULL;
	return r->why;
}

/* --- links --------------------------------------------------------------- */

static struct remote *remote_of(const struct remotes *r, const struct peer *p)
{
	list_each(it, &r->remotes) {
		if (remote_entry(it)->peer == p)
			return remote_entry(it);
	}
	return NULL;
}

static void say_transports(struct remote *o)
{
	char list[TRANSPORTS_TEXT_MAX];
	Pds__Path m = PDS__PATH__INIT;
	transport_list(o->of->transports, list);
	m.data = (ProtobufCBinaryData){strlen(list), (uint8_t *)list};
	snprintf(o->trouble, sizeof o->trouble,
	         "it has not said yet how to send it KV; this messager has %s",
	         *list ? list : "no way");
	svc_send(o->of->svc, o->peer, MSG_PATH, NULL, &m.base);
}

void remotes_up(struct remotes *r, struct peer *p)
{
	struct remote *o = remote_of(r, p);
	if (!o)
		return;
	log_notice("messager_up", "messager=%s endpoint=%s", o->name, o->endpoint);
	say_transports(o);
}

void remotes_down(struct remotes *r, struct peer *p, const char *why)
{
	struct remote *o = remote_of(r, p);
	if (!o)
		return;
	log_notice("messager_down", "messager=%s why=%s", o->name, log_quote(why));
	o->down_us = clock_us();
	o->refused = 0;
	snprintf(o->trouble, sizeof o->trouble, "the link is down: %s", why);
	path_close(o);
	drop_unnamed(r);
}

/* It takes KV over nothing that this messager has: transfers to its workers fail at once. */
static void path_refused(struct remote *o, const char *takes)
{
	char ours[TRANSPORTS_TEXT_MAX];
	transport_list(o->of->transports, ours);
	snprintf(o->trouble, sizeof o->trouble,
	         "it takes KV over %.*s only, which this messager does not have (it has: %s)",
	         TRANSPORTS_TEXT_MAX, takes, *ours ? ours : "none");
	if (once_may_log(&o->of->logged, o->name, strlen(o->name)))
		log_error("path_refused", "messager=%s why=%s", o->name, log_quote(o->trouble));
	o->refused = 1;
	remove_pools(o, NULL);
}

static void got_path(struct remote *o, const Pds__Path *b)
{
	const struct transports *t = o->of->transports;
	struct err err = {0};
	if (!o->via.path) {
		int i = transport_named(t, b->transport);
		if (i < 0) {
			path_refused(o, b->transport);
			return;
		}
		char what[sizeof o->name + 40];
		snprintf(what, sizeof what, "%s falls back to %s", o->name, t->at[i].ops->name);
		if (i > 0 && once_may_log(&o->of->logged, what, strlen(what)))
			log_warn("path_fallback", "messager=%s transport=%s why=%s", o->name, b->transport,
			         log_quote("the messager over there does not take a better one"));
		struct path_peer who = {.epoch = peer_epoch(o->peer)};
		snprintf(who.name, sizeof who.name, "%s", o->name);
		endpoint_host(peer_address(o->peer), who.host, sizeof who.host);
		o->via.ops = t->at[i].ops;
		o->via.path = o->via.ops->path_new(t->at[i].transport, &who,
		                                   &(struct path_hooks){o, path_say, path_up});
		o->refused = 0;
		if (o->pools)
			take_pools(o);
	}
	if (strcmp(o->via.ops->name, b->transport) != 0 ||
	    o->via.ops->path_said(o->via.path, b->data.data, b->data.len, &err) < 0)
		if (once_may_log(&o->of->logged, o->name, strlen(o->name)))
			log_error("path_refused", "messager=%s transport=%s why=%s", o->name,
			          log_quote(b->transport), log_quote(err.text));
}

/* Kept: a worker may be named later. */
static void got_pools(struct remote *o, const Pds__Pools *b)
{
	size_t n = pds__pools__get_packed_size(b);
	uint8_t *bytes = mem_alloc(n ? n : 1);
	pds__pools__pack(b, bytes);
	if (o->pools)
		pds__pools__free_unpacked(o->pools, NULL);
	o->pools = pds__pools__unpack(NULL, n, bytes);
	free(bytes);
	CHECK(o->pools);
	take_pools(o);
}

/* The worker that a message is about, if it is one of this messager's; else NULL. The mover drops
 * what is about a lease of another life of it. */
static const struct mover_worker *worker_of(const struct remote *o, const char *decode)
{
	const struct mover_worker *w = mover_find(o->of->mover, decode);
	return w && mover_worker_via(w) == &o->via ? w : NULL;
}

void remotes_message(struct remotes *r, struct peer *p, enum msg_type type,
                     const ProtobufCMessage *body)
{
	struct remote *o = remote_of(r, p);
	const Pds__LeaseOpened *opened = (const Pds__LeaseOpened *)body;
	const Pds__LeaseRevoke *revoke = (const Pds__LeaseRevoke *)body;
	const Pds__KvReadyAck *ack = (const Pds__KvReadyAck *)body;
	const struct mover_worker *w;
	if (!o)
		return;
	switch (type) {
	case MSG_PATH: got_path(o, (const Pds__Path *)body); break;
	case MSG_POOLS: got_pools(o, (const Pds__Pools *)body); break;
	case MSG_LEASE_OPENED:
		if ((w = worker_of(o, opened->decode)))
			mover_lease_opened(r->mover, opened->decode, mover_worker_epoch(w), opened);
		break;
	case MSG_LEASE_REVOKE:
		if ((w = worker_of(o, revoke->decode)))
			mover_remote_revoked(r->mover, w, revoke);
		break;
	case MSG_KV_READY_ACK:
		if ((w = worker_of(o, ack->decode)))
			mover_kv_ready_ack(r->mover, ack->decode, mover_worker_epoch(w), ack);
		break;
	default: break;
	}
}

void remotes_destroy(struct remotes **rp)
{
	struct remotes *r = *rp;
	if (!r)
		return;
	each_remote(it, r)
		remote_free(remote_entry(it));
	list_each_safe(it, nx, &r->namings)
		naming_free(list_entry(it, struct naming, node));
	svc_timer_del(&r->timer);
	free(r);
	*rp = NULL;
}

/* --- pdctl links --------------------------------------------------------- */

static void add_text(struct buf *out, const char *key, const char *value)
{
	buf_printf(out, ",\"%s\":", key);
	buf_add_json(out, value, strlen(value));
}

void path_state_json(const struct path_state *s, struct buf *out)
{
	uint64_t now = clock_us();
	add_text(out, "transport", s->transport);
	buf_printf(out, ",\"up\":%s", s->up ? "false" : "true");
	add_text(out, "why", s->up ? s->up : "");
	add_text(out, "via", s->via);
	buf_printf(out,
	           ",\"bytes\":%" PRIu64 ",\"frames\":%" PRIu64 ",\"repeated_bytes\":%" PRIu64
	           ",\"restarts\":%" PRIu64 ",\"errors\":%" PRIu64 ",\"canary_us\":%" PRIu64
	           ",\"canary_mbit_s\":%" PRIu64 ",\"canaries\":%" PRIu64 ",\"canaries_lost\":%" PRIu64,
	           s->bytes, s->frames, s->repeated_bytes, s->restarts, s->errors, s->canary_us,
	           s->canary_mbit_s, s->canaries, s->canaries_lost);
	add_text(out, "last_error", s->last_error);
	buf_printf(out, ",\"last_error_s\":%" PRIu64,
	           s->last_error_at_us && now > s->last_error_at_us
	               ? (now - s->last_error_at_us) / 1000000
	               : 0);
}

static void state_of(const struct remote *o, struct path_state *s)
{
	*s = (struct path_state){.transport = "-", .up = o->trouble};
	if (o->via.path)
		o->via.ops->path_state(o->via.path, s);
	else if (o->peer && peer_refusal(o->peer))
		snprintf(s->last_error, sizeof s->last_error, "%s", peer_refusal(o->peer));
}

unsigned remotes_json(const struct remotes *r, struct buf *out)
{
	unsigned n = 0;
	list_each(it, &r->remotes) {
		const struct remote *o = remote_entry(it);
		struct path_state s;
		state_of(o, &s);
		buf_printf(out, "%s{\"direction\":\"to\"", n++ ? "," : "");
		add_text(out, "messager", o->name);
		path_state_json(&s, out);
		buf_addc(out, '}');
	}
	return n;
}
