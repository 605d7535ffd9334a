/* routers.h - which routers this worker is connected to: those that its configuration names, and
 * those that DNS names for a service. On the loop's thread.
 *
 * An entry is an endpoint as chan_connect takes it, or srv://SERVICE, e.g.
 * srv://_pdserve._tcp.routers.example.org: each SRV record is a router. The first label of its host
 * is the router's name, which selects the key in known/: the router must prove that it has that
 * key, and a key of another role than router is not used. So DNS says where routers are, never who
 * is one. (Addresses without names, A records of a service, would say neither.)
 *
 * DNS is asked every `resolve_us`, and when a link is down. Routers that are named are connected. A
 * router that an answer does not name any more stays while its link is up, and is disconnected once
 * it is down. An answer that fails changes nothing. */
#ifndef WORKER_LINKS_ROUTERS_H
#define WORKER_LINKS_ROUTERS_H

#include "msg/chan.h"

#define ROUTERS_MAX 16u /* that DNS names, over all services */

struct routers;
struct event_base;

struct routers_opts {
	struct event_base *base;
	struct chan *chan;
	int tag; /* of the links */
	uint64_t resolve_us;
	const char *dns_servers; /* as in chan_opts */
	/* a router is about to be disconnected; may be NULL */
	void (*left)(void *arg, const struct peer *p);
	void *arg;
};

struct routers *routers_new(const struct routers_opts *opts);
void routers_destroy(struct routers **r);
/* Has the entry one of the forms that are allowed? 0, or ERR_INVALID */
int routers_check(const char *entry, struct err *err);
/* 0; ERR_INVALID: the entry; ERR_IO: cannot connect. */
int routers_add(struct routers *r, const char *entry, struct err *err);
/* A link has gone down. */
void routers_down(struct routers *r, const struct peer *p);

#endif
