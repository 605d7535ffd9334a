/* resolve.h - questions to DNS: the addresses of a host's name, or the hosts and ports of a
 * service's SRV records (RFC 2782). c-ares asks on the event loop and never blocks it. libzmq could
 * resolve names too, but blocks all links of the daemon while it waits for a name server.
 *
 * A question ends within RESOLVE_LIMIT_US, whatever the servers do. An answer has at most
 * RESOLVE_MAX records. Names in it have letters, digits, "-", "_" and "." only; records with other
 * names, without a host or a port are left out. /etc/hosts and the search domains of
 * /etc/resolv.conf count; both files are read for each question. */
#ifndef MSG_RESOLVE_H
#define MSG_RESOLVE_H

#include "util/err.h"

#include <stdint.h>

#define RESOLVE_MAX 16u
#define RESOLVE_HOST_BYTES 256u
#define RESOLVE_LIMIT_US 5000000u

struct event_base;
struct resolve; /* a question that has no answer yet */

enum resolve_kind { RESOLVE_ADDRESSES, RESOLVE_SERVICE };

struct resolve_record {
	char host[RESOLVE_HOST_BYTES]; /* a numeric address; of a service: its host's name */
	uint16_t port;                 /* of a service */
};

struct resolve_answer {
	/* 0; ERR_NOTFOUND: DNS answers that there is no such record; ERR_TIMEOUT, ERR_IO,
	 * ERR_CORRUPT: nothing is known */
	int code;
	const char *why; /* of an error */
	unsigned n;
	unsigned left_out; /* records of the answer that are not in `records` */
	/* addresses: the preferred one first; hosts: in the order of their names */
	struct resolve_record records[RESOLVE_MAX];
};

/* Called once, from the event loop. The question has ended and must not be cancelled any more. */
typedef void resolve_fn(void *arg, const struct resolve_answer *a);

/* servers: "ADDRESS[:PORT],..." to ask instead of those of /etc/resolv.conf; NULL or "": none. */
struct resolve *resolve_start(struct event_base *base, const char *servers, enum resolve_kind kind,
                              const char *name, resolve_fn *fn, void *arg);
/* *r may be NULL. Its function is not called any more. */
void resolve_cancel(struct resolve **r);
/* 0, or ERR_INVALID: `servers` is not as resolve_start takes it. */
int resolve_check_servers(const char *servers, struct err *err);

#endif
