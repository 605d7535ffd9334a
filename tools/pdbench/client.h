/* client.h - sends HTTP requests to one address over kept-alive connections, on an event loop.
 *
 * A call ends exactly once: by its `end` hook or by call_drop. If the server closed an idle
 * connection, the call is silently repeated once on a new one, provided that nothing of the answer
 * has arrived. */
#ifndef PDBENCH_CLIENT_H
#define PDBENCH_CLIENT_H

#include "url.h"
#include "util/buf.h"

#include <event2/event.h>
#include <openssl/types.h>
#include <stdint.h>

struct bench_client;
struct call;

struct call_hooks {
	/* Receives bytes of the body; now_us: when they were read. Returning nonzero ends the call with
	 * ERR_CANCELLED. Must not drop the call. */
	int (*body)(void *arg, int status, const char *data, size_t n, uint64_t now_us);
	/* why NULL: the answer is complete. Otherwise status is that of the incomplete answer, or 0.
	 * Never called from inside client_call. */
	void (*end)(void *arg, int status, const struct err *why, uint64_t now_us);
};

struct client_stats {
	uint64_t connections, bytes_in;
};

/* For https: what a certificate is checked with. cacert NULL: the system's authorities. */
int client_tls(const char *cacert, int insecure, SSL_CTX **ret, struct err *err);
/* tls: for a url of https; stays the caller's. */
struct bench_client *client_new(struct event_base *base, const struct url *url, SSL_CTX *tls,
                                int fresh_connections);
void client_destroy(struct bench_client **c); /* there must be no unfinished calls */
/* request: head and body; the call takes over its memory and leaves the buf empty. */
struct call *client_call(struct bench_client *c, struct buf *request,
                         const struct call_hooks *hooks, void *arg);
void call_drop(struct call *x); /* also closes its connection */
const struct client_stats *client_stats(const struct bench_client *c);

#endif
