/* handshake.h - TLS handshakes of new connections, computed by threads, since one costs as much
 * time as a hundred requests' heads. The event loop waits for the client's bytes; a thread computes
 * what they ask for and gives the handshake back.
 *
 * Addresses take turns, and one address has at most one thread at a time, so that another one finds
 * a thread free however many handshakes the first begins. What waits is bounded by the connections
 * that an address may have. How long a handshake may take is the caller's to watch. */
#ifndef HTTP_HANDSHAKE_H
#define HTTP_HANDSHAKE_H

#include "util/err.h"

struct event_base;
struct handshake;
struct handshakes;
struct http_client;
struct ssl_ctx_st; /* OpenSSL's SSL_CTX and SSL */
struct ssl_st;

#define HANDSHAKE_THREADS 2u
/* open at once beyond those of connections: for ended handshakes that are still computed, and to
 * wake the loop */
#define HANDSHAKE_DESCRIPTORS (HANDSHAKE_THREADS + 1u)

int handshakes_new(struct event_base *base, struct handshakes **ret, struct err *err);
void handshakes_destroy(struct handshakes **h); /* after the last handshake_end */

/* Called once, from the loop; the handshake must not be used any more. The caller's are now: ssl
 * and its descriptor; or plain_fd alone, of a client that speaks HTTP without TLS, none of whose
 * bytes has been read; or nothing (NULL, -1): it has failed, and why. */
typedef void handshake_done_fn(void *arg, struct ssl_st *ssl, int plain_fd, const char *why);

/* Takes the descriptor. tls may be closed before the handshake is done. NULL: no memory; the
 * descriptor is closed. */
struct handshake *handshake_new(struct handshakes *h, struct ssl_ctx_st *tls, int fd,
                                struct http_client *client, handshake_done_fn *done, void *arg);
/* Closes the connection instead. done is not called. */
void handshake_end(struct handshake **s);

#endif
