/* tls.h - TLS of the HTTP edge: one certificate and its key, for all connections that begin from
 * now on. TLS 1.2 and 1.3, without compression, renegotiation and a cache of sessions; ALPN selects
 * http/1.1. */
#ifndef HTTP_TLS_H
#define HTTP_TLS_H

#include "util/err.h"

#include <stddef.h>

struct evbuffer;
struct ssl_ctx_st; /* OpenSSL's SSL_CTX and SSL */
struct ssl_st;

/* Reads the chain of certificates and its private key (PEM). 0, or ERR_* with the setting, the
 * file's name and OpenSSL's reason. */
int tls_open(const char *cert, const char *key, struct ssl_ctx_st **ret, struct err *err);
void tls_close(struct ssl_ctx_st **tls); /* connections that it has begun go on */
/* Moves what OpenSSL has decrypted already into `in`. libevent reads on when the socket has more,
 * and would wait for ever for a client that waits for its answer: once the input was full, the rest
 * of the last record has left the socket, but not OpenSSL. */
void tls_take(struct ssl_st *ssl, struct evbuffer *in);
/* Sends the end of the stream (close_notify): what was sent is all. Without it the client knows
 * that its answer was cut. */
void tls_end(struct ssl_st *ssl);
/* Why a handshake failed, from OpenSSL's code; 0: the client has closed the connection. */
void tls_reason(unsigned long code, char *out, size_t size);

#endif
