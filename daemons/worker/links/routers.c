/* routers.c - see routers.h. Only routers that DNS names are kept here; the others are the links'
 * own. Links are ended by the timer and by answers, never within a hook of the links. */
#include "routers.h"
#include "msg/resolve.h"
#include "util/clock.h"
#include "util/endpoint.h"
#include "util/least.h"
#include "util/log.h"
#include "util/mem.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SERVICES_MAX 16u
#define ASK_AGAIN_US 2000000u /* while a link is down, or no router is known */
#define SOON_US 20000u
#define SCHEME "srv://"

/* NAMED: by the last answer. LEFT: not any more; it ends when its link is down. */

struct router_link {
	int left; /* not named any more: kept until its link ends */
	unsigned service;
	struct peer *peer;
	char name[KEYS_NAME_MAX + 1];
	char endpoint[RESOLVE_HOST_BYTES + KEYS_NAME_MAX + 32];
};

struct service {
	struct resolve *question; /* NULL: none */
	uint64_t asked_us, ask_us;
	int code;          /* of the last answer; 1: none yet */
	unsigned left_out; /* of the last answer */
	struct routers *routers;
	char name[RESOLVE_HOST_BYTES];
};

struct routers {
	struct routers_opts opts;
	struct event *timer;
	struct service services[SERVICES_MAX];
	unsigned n_services;
	struct router_link links[ROUTERS_MAX];
	unsigned n_links;
};

static unsigned service_index(const struct service *s)
{
	return (unsigned)(s - s->routers->services);
}

/* --- links --------------------------------------------------------------- */

static void end(struct routers *r, struct router_link *l, const char *why)
{
	log_notice("router_left", "router=%s endpoint=%s why=%s", l->name, l->endpoint, log_quote(why));
	if (r->opts.left)
		r->opts.left(r->opts.arg, l->peer);
	chan_disconnect(r->opts.chan, l->peer);
	*l = r->links[--r->n_links];
}

static void end_those_left(struct routers *r)
{
	for (unsigned i = r->n_links; i-- > 0;)
		if (r->links[i].left && !peer_is_up(r->links[i].peer))
			end(r, &r->links[i], "DNS does not name it any more");
}

static struct router_link *routers_find(struct routers *r, const char *name)
{
	for (unsigned i = 0; i < r->n_links; i++)
		if (strcmp(r->links[i].name, name) == 0)
			return &r->links[i];
	return NULL;
}

/* The configuration names this router itself. */
static int is_configured(const struct routers *r, const char *name)
{
	for (struct peer *p = chan_next(r->opts.chan, NULL); p; p = chan_next(r->opts.chan, p))
		if (peer_tag(p) == r->opts.tag && strcmp(peer_expected(p), name) == 0)
			return 1;
	return 0;
}

static int has_router_key(const struct routers *r, const char *name)
{
	const struct key *k = keys_named(chan_keys(r->opts.chan), name);
	return k && k->role == KEY_ROUTER;
}

/* NULL, or why the router that the record names is not connected. */
static const char *routers_take(struct service *s, const struct resolve_record *record)
{
	struct routers *r = s->routers;
	struct router_link l = {.service = service_index(s)};
	size_t label = strcspn(record->host, ".");
	if (label > KEYS_NAME_MAX)
		return "its name is too long";
	snprintf(l.name, sizeof l.name, "%.*s", (int)label, record->host);
	snprintf(l.endpoint, sizeof l.endpoint, "%s@tcp://%s:%u", l.name, record->host, record->port);
	struct router_link *old = routers_find(r, l.name);
	if (old && (strcmp(old->endpoint, l.endpoint) == 0 || peer_is_up(old->peer))) {
		old->left = 0;
		return NULL;
	}
	if (old)
		end(r, old, "DNS has another endpoint for it");
	else if (is_configured(r, l.name))
		return NULL;
	if (!has_router_key(r, l.name))
		chan_keys_reload(r->opts.chan); /* a key that was added counts */
	if (!has_router_key(r, l.name))
		return "there is no key of that name and of the role router in known/";
	if (r->n_links == ROUTERS_MAX)
		return "the limit on routers is reached";
	if (!(l.peer = chan_connect(r->opts.chan, l.endpoint, l.name, r->opts.tag)))
		return "it cannot be connected";
	log_notice("router_found", "router=%s endpoint=%s service=%s", l.name, l.endpoint, s->name);
	r->links[r->n_links++] = l;
	return NULL;
}

/* --- answers ------------------------------------------------------------- */

static void routers_arm(struct routers *r)
{
	uint64_t at = UINT64_MAX;
	for (unsigned i = 0; i < r->n_services; i++)
		if (!r->services[i].question)
			at = least(at, r->services[i].ask_us);
	if (at == UINT64_MAX)
		return;
	struct timeval tv = clock_timeval(clock_left_us(at));
	event_add(r->timer, &tv);
}

static int all_up(const struct service *s)
{
	const struct routers *r = s->routers;
	unsigned n = 0;
	for (unsigned i = 0; i < r->n_links; i++)
		if (r->links[i].service == service_index(s)) {
			n++;
			if (!peer_is_up(r->links[i].peer))
				return 0;
		}
	return n > 0;
}

static void apply(struct service *s, const struct resolve_answer *a)
{
	struct routers *r = s->routers;
	unsigned left_out = a->left_out;
	const char *why = "not a valid record, or too many";
	for (unsigned i = 0; i < r->n_links; i++)
		if (r->links[i].service == service_index(s))
			r->links[i].left = 1;
	for (unsigned i = 0; i < a->n; i++) {
		const char *refused = routers_take(s, &a->records[i]);
		left_out += refused != NULL;
		why = refused ? refused : why;
	}
	if (left_out && left_out != s->left_out)
		log_warn("routers_ignored", "service=%s records=%u why=%s", s->name, left_out,
		         log_quote(why));
	s->left_out = left_out;
	end_those_left(r);
}

static void routers_on_answer(void *arg, const struct resolve_answer *a)
{
	struct service *s = arg;
	s->question = NULL;
	if (a->code == 0 || a->code == ERR_NOTFOUND)
		apply(s, a);
	if (a->code != 0 && a->code != s->code)
		log_warn("routers_not_resolved", "service=%s why=%s", s->name, log_quote(a->why));
	s->code = a->code;
	uint64_t resolve_us = s->routers->opts.resolve_us;
	s->ask_us = s->asked_us + (all_up(s) ? resolve_us : least(resolve_us, ASK_AGAIN_US));
	routers_arm(s->routers);
}

static void routers_on_timer(evutil_socket_t fd, short what, void *arg)
{
	struct routers *r = arg;
	uint64_t now = clock_us();
	(void)fd;
	(void)what;
	end_those_left(r);
	for (unsigned i = 0; i < r->n_services; i++) {
		struct service *s = &r->services[i];
		if (s->question || s->ask_us > now)
			continue;
		s->asked_us = now;
		s->question = resolve_start(r->opts.base, r->opts.dns_servers, RESOLVE_SERVICE, s->name,
		                            routers_on_answer, s);
	}
	routers_arm(r);
}

void routers_down(struct routers *r, const struct peer *p)
{
	for (unsigned i = 0; r && i < r->n_links; i++)
		if (r->links[i].peer == p) {
			struct service *s = &r->services[r->links[i].service];
			uint64_t soon = clock_us() + SOON_US;
			s->ask_us = least(s->ask_us, most(soon, s->asked_us + ASK_AGAIN_US));
			struct timeval tv = clock_timeval(SOON_US); /* ends the link if its router is LEFT */
			event_add(r->timer, &tv);
		}
}

/* --- life ---------------------------------------------------------------- */

struct routers *routers_new(const struct routers_opts *opts)
{
	struct routers *r = mem_zalloc(sizeof *r);
	r->opts = *opts;
	r->timer = event_new(opts->base, -1, 0, routers_on_timer, r);
	return r;
}

void routers_destroy(struct routers **rp)
{
	struct routers *r = *rp;
	*rp = NULL;
	if (!r)
		return;
	for (unsigned i = 0; i < r->n_services; i++)
		resolve_cancel(&r->services[i].question);
	event_free(r->timer);
	free(r);
}

static int routers_add_service(struct routers *r, const char *name, struct err *err)
{
	if (!chan_keys(r->opts.chan))
		return err_set(err, ERR_INVALID,
		               "routers: %s%s needs keys: set `keys` and `pdctl keygen` one of this "
		               "daemon's name",
		               SCHEME, name);
	if (r->n_services == SERVICES_MAX)
		return err_set(err, ERR_INVALID, "routers: more than %u services", SERVICES_MAX);
	struct service *s = &r->services[r->n_services++];
	s->routers = r;
	s->code = 1;
	snprintf(s->name, sizeof s->name, "%s", name);
	event_active(r->timer, EV_TIMEOUT, 1);
	return 0;
}

int routers_check(const char *entry, struct err *err)
{
	const char *service = strncmp(entry, SCHEME, strlen(SCHEME)) == 0 ? entry + strlen(SCHEME)
	                                                                  : NULL;
	if (service && (!*service || strlen(service) >= RESOLVE_HOST_BYTES || strpbrk(service, ":/@")))
		return err_set(err, ERR_INVALID,
		               "routers: %.80s: allowed is %s_SERVICE._tcp.DOMAIN, without a port", entry,
		               SCHEME);
	if (service || endpoint_is_remote(entry) || (strncmp(entry, "ipc:///", 7) == 0 && entry[7]))
		return 0;
	return err_set(
		err, ERR_INVALID,
		"routers: \"%.200s\": allowed is NAME@tcp://HOST:PORT, %s_SERVICE._tcp.DOMAIN, or "
		"ipc:///PATH",
		entry, SCHEME);
}

int routers_add(struct routers *r, const char *entry, struct err *err)
{
	int rc = routers_check(entry, err);
	if (rc < 0)
		return rc;
	if (strncmp(entry, SCHEME, strlen(SCHEME)) == 0)
		return routers_add_service(r, entry + strlen(SCHEME), err);
	return chan_connect(r->opts.chan, entry, NULL, r->opts.tag)
	           ? 0
	           : err_set(err, ERR_IO, "cannot connect to %s", entry);
}
