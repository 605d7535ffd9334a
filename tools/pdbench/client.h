/* client.h - requests to one address over kept connections, on an event loop.
 *
 * A call ends exactly once: by its `end` hook, or by call_drop. A connection that the server closed
 * while it lay idle is replaced once without anybody noticing, as long as nothing of the answer
 * has come. */
#ifndef PDBENCH_CLIENT_H
#define PDBENCH_CLIENT_H

#include "url.h"
#include "util/buf.h"

#include <event2/event.h>
#include <stdint.h>

struct client;
struct call;

struct call_hooks {
	/* Bytes of the body; now_us: when they were read. Nonzero: no more is wanted, the call ends
	 * with ERR_CANCELLED. Must not drop the call. */
	int (*body)(void *arg, int status, const char *data, size_t n, uint64_t now_us);
	/* why NULL: the answer is whole. Otherwise status is 0 or that of the broken answer. Never
	 * from inside client_call. */
	void (*end)(void *arg, int status, const struct err *why, uint64_t now_us);
};

struct client_stats {
	uint64_t connections, bytes_in;
};

struct client *client_new(struct event_base *base, const struct url *url, int fresh_connections);
void client_destroy(struct client **c); /* all its calls are over */
/* request: head and body; its memory becomes the call's (the buf is empty afterwards). */
struct call *client_call(struct client *c, struct buf *request, const struct call_hooks *hooks,
                         void *arg);
void call_drop(struct call *x); /* closes its connection */
const struct client_stats *client_stats(const struct client *c);

#endif
