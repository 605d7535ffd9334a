/* http.h - HTTP/1.1 server edge on libevent: connections, limits, keep-alive, replies whole or
 * streamed, and clients that go away.
 *
 * One thread, the event loop's; only TLS handshakes have threads (handshake.h). What clients ask
 * for at once is served a few milliseconds at a time, so that other events of the loop have their
 * turn, and addresses take turns. The handlers are asked twice about a request: when its head is
 * complete, before anything of the body is asked for or kept, and when the body is complete. They,
 * or whatever they start, answer with http_reply, or with http_stream_begin, http_stream_add,
 * http_stream_end. The connection pointer is valid until the answer is complete. If the client
 * leaves before that, the function given to http_on_gone is called once, and the pointer is invalid
 * from then on. */
#ifndef HTTP_HTTP_H
#define HTTP_HTTP_H

#include "http/parse.h"
#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

#define HTTP_ADDRESS_MAX 46u  /* of a client, as text */
#define HTTP_SURE_BYTES 4096u /* an answer of at most this size is always accepted */

struct http_client;
struct event_base;
struct http_server;
struct http_conn;

/* Counts as held by its client's address (clients.h) until http_body_free. */
struct http_body {
	char *data; /* malloc, followed by a NUL; NULL: none, or given away */
	size_t len;
	struct http_client *client;
	size_t charged;
};

void http_body_free(struct http_body *b);             /* from any thread; may be repeated */
uint64_t http_client_id(const struct http_client *c); /* of its address: the same when it returns */

struct http_request {
	const struct http_head *head;
	struct http_body body; /* a handler that keeps it copies it and sets body.data to NULL */
};

struct http_handlers {
	/* 0: the body may come, up to *body_max bytes, which the handler may lower; head->route is its
	 * own. 1: it has answered. The body, if there is one, is then dropped unread and the connection
	 * ends. */
	int (*head)(void *arg, struct http_conn *c, struct http_head *head, size_t *body_max);
	void (*request)(void *arg, struct http_conn *c, struct http_request *q);
};

struct http_opts {
	const char *setting;            /* the name of the next in messages, "http_listen" */
	const char *listen;             /* "127.0.0.1:8080", "[::]:0" (all addresses), ":8080" (IPv4) */
	const char *tls_cert, *tls_key; /* PEM files; "" or NULL, both: plain HTTP */
	size_t max_header_bytes, max_body_bytes;
	/* bytes of requests held for all clients; at least twice the sum of the above */
	size_t in_bytes_max;
	/* not yet taken by one client; past it http_stream_add says ERR_FULL */
	size_t out_bytes_max;
	size_t out_total_max; /* not yet taken by all clients; shares: output.c */
	unsigned max_connections;
	unsigned max_per_address; /* 0: at most as many as remain free for others */
	uint64_t idle_us;         /* a connection without a request is closed */
	uint64_t read_us;         /* from a request's first byte to its last; a TLS handshake */
	uint64_t write_us;        /* a client that reads nothing for this long is dropped */
	/* The limits are settings, which messages may name: input_bytes_max, max_connections,
	 * max_connections_per_address, read_timeout_ms */
	int limits_are_settings;
	const char *headers; /* lines of every answer, each ended by CR LF; NULL: none. Copied */
	/* an error of the edge itself (400, 408, 413, 431, 501, 503, 505), about a request for this
	 * path ("": it is not known yet); arg: of http_new. NULL: plain text */
	size_t (*error_body)(void *arg, const char *path, int status, const char *text, char *out,
	                     size_t size);
};

struct http_counts {
	uint64_t accepted;       /* connections */
	uint64_t refused;        /* requests and connections, by the edge itself */
	uint64_t closed_waiting; /* connections without a request that were closed to make room */
	uint64_t cut;            /* answers that were dropped after they had begun */
	uint64_t tls_failed;     /* TLS handshakes */
	unsigned connections;
	size_t in_bytes, out_bytes; /* held now */
};

int http_new(struct event_base *base, const struct http_opts *opts,
             const struct http_handlers *handlers, void *arg, struct http_server **ret_h,
             struct err *err);
/* Closes every connection; gone functions are not called. To be called after the last
 * http_body_free. */
void http_destroy(struct http_server **h);
/* Reads these files (again), as http_opts says; connections that there are stay as they are. h
 * NULL: checks them only. 0, or ERR_* and nothing has changed. */
int http_set_tls(struct http_server *h, const char *cert, const char *key, struct err *err);
/* Is it the HOST:PORT that http_opts.listen must be? Asks no DNS. 0, or ERR_INVALID */
int http_check_listen(const char *setting, const char *listen_to, struct err *err);
unsigned http_port(const struct http_server *h);
int http_is_local(const struct http_server *h); /* 1: only this host can connect */
int http_has_tls(const struct http_server *h);
unsigned http_connections(const struct http_server *h);
void http_counts(const struct http_server *h, struct http_counts *ret);
/* How many may be open at once, the listener's included. */
unsigned http_descriptors(unsigned max_connections);

/* Stops accepting connections; a request that is not complete gets 503, and each later answer
 * closes its connection. May be repeated. */
void http_drain(struct http_server *h);
/* 1 while a client still has something to send or to receive: an incomplete request, an answer that
 * it has not taken, a refusal that it may not have read. */
int http_busy(const struct http_server *h);

/* extra: header lines, each ended by CR LF, or NULL. An answer for which there is no room
 * (out_total_max) becomes a 503. */
void http_reply(struct http_conn *c, int status, const char *type, const char *extra,
                const void *body, size_t len);
void http_stream_begin(struct http_conn *c, const char *type, const char *extra);
int http_is_streaming(const struct http_conn *c);                     /* begun and not ended */
int http_stream_add(struct http_conn *c, const void *data, size_t n); /* 0 or ERR_FULL */
void http_stream_end(struct http_conn *c);
/* bytes of its answers that the client has not taken */
size_t http_unsent(const struct http_conn *c);
size_t http_room(struct http_conn *c); /* bytes that http_stream_add takes now */
/* Until the answer is complete: fn is called from the loop whenever the client has taken all there
 * was, and about twice a second while there is nothing to take (others may have made room). */
void http_on_taken(struct http_conn *c, void (*fn)(void *arg), void *arg);
/* Closes without (more of) an answer, which is counted and logged if it had begun. The gone
 * function is not called. */
void http_drop(struct http_conn *c);
const char *http_address(const struct http_conn *c); /* of its client */
/* fn NULL: nobody is told */
void http_on_gone(struct http_conn *c, void (*fn)(void *arg), void *arg);

#endif
