/* clients.h - what the addresses that clients come from hold at the edge: connections, bytes of
 * requests, bytes of answers (which output.c bounds).
 *
 * Bytes of requests have one bound for all. An address may hold as many as it leaves free to
 * others: a single one gets half of them, k greedy ones get 1/(k+1) each, and as much remains for
 * the next one. So no address shuts out another, and no share has to be configured. A connection
 * may always hold CLIENT_SURE_BYTES, so that small requests are served while large ones wait. An
 * IPv6 address stands for its /64, since one client can use all of that. */
#ifndef HTTP_CLIENTS_H
#define HTTP_CLIENTS_H

#include "util/fair.h"
#include "util/list.h"

#include <stddef.h>

#define CLIENT_SURE_BYTES 4096u

struct sockaddr;
struct http_clients;

struct http_client {
	struct http_clients *all;
	unsigned char key[16];
	struct {              /* the event loop's */
		unsigned conns;   /* connections that are served */
		unsigned refused; /* connections that are only told that there is no room */
		size_t out_bytes; /* of answers that they have not taken */
		/* served connections that may give way to others (conn_waits), longest waiting first */
		struct list waiting;
		struct fair_owner turns; /* of its connections with bytes to be parsed (conn_queue) */
	} loop;
	struct {           /* under the lock of `all` */
		unsigned refs; /* connections, handshakes, and bodies that outlive theirs */
		size_t bytes;
	} shared;
	struct { /* handshake.c: under the lock of the server's handshakes */
		struct fair_owner turns;
		int has_thread;
	} tls;
};

struct http_clients *clients_new(size_t bytes_max);
void clients_destroy(struct http_clients **c); /* after the last client_put */
/* A reference to this address's client, which is created if it is new. NULL: no memory. Only from
 * the event loop. */
struct http_client *clients_find(struct http_clients *c, const struct sockaddr *from);

/* From any thread. */
size_t clients_bytes(struct http_clients *c); /* held by all */
void client_hold(struct http_client *c);      /* takes one more reference */
/* One connection now holds `now` bytes instead of `had`. 0, or ERR_FULL if the address may not hold
 * that much: nothing has changed then. */
int client_resize(struct http_client *c, size_t had, size_t now);
size_t client_room(struct http_client *c);          /* bytes by which it may grow now */
void client_put(struct http_client *c, size_t had); /* gives a reference back, and bytes */

#endif
