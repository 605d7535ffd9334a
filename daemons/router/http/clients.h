/* clients.h - what the addresses that clients come from hold at the edge: connections, bytes of
 * requests, bytes of answers (which output.c bounds).
 *
 * Bytes of requests have one bound for all. An address may hold as many as it leaves free to
 * others: one alone has half of them, k that take all they can have 1/(k+1) each, and as much is
 * left for the next one that comes. So nobody is shut out by another, and no share has to be
 * configured. What needs little (CLIENT_SURE_BYTES for each connection) is let in beyond that, so
 * that small requests are served beside large ones that wait. An IPv6 address stands for its /64,
 * all of which one client can have. */
#ifndef ROUTER_CLIENTS_H
#define ROUTER_CLIENTS_H

#include "util/list.h"

#include <stddef.h>

#define CLIENT_SURE_BYTES 4096u

struct sockaddr;
struct clients;

struct client {
	struct clients *all;
	unsigned char key[16];
	struct {              /* the event loop's */
		unsigned conns;   /* connections that are served */
		unsigned refused; /* connections that are being told that they are not */
		size_t out_bytes; /* of answers that they have not taken */
		/* of those that are served, as conn_waits has it; the longest first */
		struct list waiting;
	} loop;
	struct {           /* under the lock of `all` */
		unsigned refs; /* connections, and what outlives theirs */
		size_t bytes;
	} shared;
};

struct clients *clients_new(size_t bytes_max);
void clients_destroy(struct clients **c); /* after the last client_put */
/* A reference to this address's client, which is made when it is new. NULL: no memory. Event
 * loop. */
struct client *clients_find(struct clients *c, const struct sockaddr *from);

/* From any thread. */
size_t clients_bytes(struct clients *c); /* held by all */
void client_hold(struct client *c);      /* one reference more */
/* What one connection held so far has now another size. 0, or ERR_FULL when it grows past what the
 * address may have: nothing has changed then. */
int client_resize(struct client *c, size_t had, size_t now);
size_t client_room(struct client *c);          /* bytes by which it may grow now */
void client_put(struct client *c, size_t had); /* gives a reference back, and bytes */

#endif
