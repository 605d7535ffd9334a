/* chan_name.c - peers whose endpoint has a host's name: DNS is asked when the link is made and
 * whenever it is down, and libzmq gets addresses only. (Left to itself it resolves a name at each
 * of its own attempts, on the thread that serves all links, and blocks them while it waits; it
 * knows only the first address, and an attempt at one that does not answer takes minutes.)
 *
 * An address that the answer does not have any more is left. Of several the next one is tried, each
 * for at least as long as the wait between two questions. A failure of DNS changes nothing, and so
 * does an answer for a link that is up. */
#include "msg/chan_priv.h"
#include "msg/resolve.h"
#include "util/clock.h"
#include "util/least.h"
#include "util/mem.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ASK_FIRST_US 1000000u /* between two questions while the link is down; doubles */
#define ASK_MAX_US 5000000u

struct chan_name {
	struct resolve *question; /* NULL: none */
	uint64_t ask_us;          /* when to ask next, while the link is down */
	uint64_t wait_us;         /* from the last question to the next one; 0: none since it was up */
	char host[RESOLVE_HOST_BYTES], port[8];
	char address[80]; /* that libzmq connects to; "": none yet */
	int failed;       /* code of the last answer that was logged */
};

/* Splits tcp://HOST:PORT. 1: HOST is a name, 0: it is an address, or the endpoint another's. */
static int split(const char *address, struct chan_name *n)
{
	struct in_addr a;
	const char *colon = strrchr(address, ':');
	if (strncmp(address, "tcp://", 6) != 0 || colon < address + 6 || address[6] == '[')
		return 0;
	int len = (int)(colon - address - 6);
	if (len == 0 || len >= (int)sizeof n->host || strlen(colon + 1) >= sizeof n->port)
		return 0;
	snprintf(n->host, sizeof n->host, "%.*s", len, address + 6);
	snprintf(n->port, sizeof n->port, "%s", colon + 1);
	return !strchr(n->host, ':') && inet_pton(AF_INET, n->host, &a) != 1;
}

int chan_zmq_connect(void *z, const char *address)
{
	int v6 = strncmp(address, "tcp://[", 7) == 0;
	zmq_setsockopt(z, ZMQ_IPV6, &v6, sizeof v6);
	return zmq_connect(z, address);
}

/* --- answers ------------------------------------------------------------- */

static void format(const struct chan_name *n, const struct resolve_record *r, char *out,
                   size_t size)
{
	int v6 = strchr(r->host, ':') != NULL;
	snprintf(out, size, "tcp://%s%.60s%s:%s", v6 ? "[" : "", r->host, v6 ? "]" : "", n->port);
}

/* The address to use now: the present one if it is still there, or the one after it. */
static void choose(const struct chan_name *n, const struct resolve_answer *a, char *out,
                   size_t size)
{
	unsigned at = 0;
	for (unsigned i = 0; i < a->n; i++) {
		format(n, &a->records[i], out, size);
		if (strcmp(out, n->address) == 0)
			/* the first question after the link went down: the peer may be back there in a
			 * moment */
			at = n->wait_us > ASK_FIRST_US ? (i + 1) % a->n : i;
	}
	format(n, &a->records[at], out, size);
}

static void move(struct peer *p, const char *address)
{
	struct chan_name *n = p->resolver;
	log_notice("peer_address", "peer=%s host=%s address=%s before=%s", p->expected, n->host,
	           address, *n->address ? n->address : "none");
	if (*n->address)
		zmq_disconnect(p->dealer->z, n->address);
	snprintf(n->address, sizeof n->address, "%s", address);
	if (chan_zmq_connect(p->dealer->z, address) < 0) {
		log_warn("connect_failed", "endpoint=%s why=%s", address, zmq_strerror(zmq_errno()));
		n->address[0] = 0;
	}
	p->hello_waits = 1; /* until the connection is up */
	event_active(p->dealer->again, EV_READ, 1);
}

static void name_on_answer(void *arg, const struct resolve_answer *a)
{
	struct peer *p = arg;
	struct chan_name *n = p->resolver;
	char address[sizeof n->address];
	n->question = NULL;
	chan_tick_soon(p->c, n->ask_us);
	if (a->code != n->failed && a->code != 0)
		log_warn("name_not_resolved", "peer=%s host=%s why=%s", p->expected, n->host,
		         log_quote(a->why));
	n->failed = a->code;
	if (a->code != 0 || p->state == PEER_UP || p->state == PEER_DEAD)
		return;
	choose(n, a, address, sizeof address);
	if (strcmp(address, n->address) != 0)
		move(p, address);
}

/* --- the peer's life ----------------------------------------------------- */

int chan_name_connect(struct peer *p, const char *address)
{
	struct chan_name n = {0};
	if (!split(address, &n))
		return chan_zmq_connect(p->dealer->z, address);
	p->resolver = mem_alloc(sizeof n);
	*p->resolver = n;
	chan_name_tick(p, clock_us());
	return 0;
}

const char *chan_name_address(const struct peer *p)
{
	char name[MSG_NAME_MAX + 1];
	return p->resolver ? p->resolver->address : chan_endpoint_address(p->endpoint, name);
}

void chan_name_up(struct peer *p)
{
	if (p->resolver)
		p->resolver->ask_us = p->resolver->wait_us = 0;
}

uint64_t chan_name_due(const struct peer *p)
{
	return !p->resolver || p->resolver->question ? UINT64_MAX : p->resolver->ask_us;
}

void chan_name_tick(struct peer *p, uint64_t now)
{
	struct chan_name *n = p->resolver;
	if (now < chan_name_due(p))
		return;
	n->wait_us = n->wait_us ? least(2 * n->wait_us, ASK_MAX_US) : ASK_FIRST_US;
	n->ask_us = now + n->wait_us;
	n->question = resolve_start(p->c->base, p->c->opts.dns_servers, RESOLVE_ADDRESSES, n->host,
	                            name_on_answer, p);
}

void chan_name_free(struct peer *p)
{
	if (p->resolver)
		resolve_cancel(&p->resolver->question);
	free(p->resolver);
	p->resolver = NULL;
}
