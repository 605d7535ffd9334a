/* http.h - HTTP/1.1 server edge on libevent: connections, limits, keep-alive, replies whole or streamed, and clients that go away.
 *
 * One thread, the event loop's. A request is handed to the handler when its body is complete. The handler, or whatever it starts, answers with
 * http_reply, or with http_stream_begin, http_stream_add, http_stream_end. Until the answer is complete the connection pointer is valid,
 * unless the client goes first: then the function given to http_on_gone is called, once, and the pointer is dead after it. */
#ifndef ROUTER_HTTP_H
#define ROUTER_HTTP_H

#include "http_parse.h"
#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

struct event_base;
struct http_server;
struct http_conn;

struct http_request {
	const struct http_head *head;
	char *body;          /* malloc, followed by a NUL; a handler that keeps it sets this to NULL */
	size_t body_len;
};

typedef void http_handler(void *arg, struct http_conn *c, struct http_request *q);

struct http_opts {
	const char *listen;          /* "127.0.0.1:8080", "[::1]:0", ":8080" (all addresses) */
	size_t max_header_bytes, max_body_bytes;
	size_t out_bytes_max;        /* not yet taken by one client; past it http_stream_add says ERR_FULL */
	unsigned max_connections;
	uint64_t idle_us;            /* a connection without a request is closed */
	uint64_t read_us;            /* from a request's first byte to its last */
	uint64_t write_us;           /* a client that takes nothing for so long is gone */
	/* an error of the edge itself (400, 408, 413, 431, 503): fills body; NULL: plain text */
	size_t (*error_body)(int status, const char *text, char *out, size_t size);
};

int http_new(struct event_base *base, const struct http_opts *opts, http_handler *handler, void *arg, struct http_server **ret_h, struct err *err);
void http_destroy(struct http_server **h);         /* closes every connection; gone functions are not called */
void http_stop_accepting(struct http_server *h);   /* later answers close their connections */
unsigned http_port(const struct http_server *h);
unsigned http_connections(const struct http_server *h);
int http_has_unsent(const struct http_server *h);  /* whether a client has still to take some of its answer; one that takes nothing is gone after write_us */
uint64_t http_accepted(const struct http_server *h);

/* extra: header lines, each ended by CR LF, or NULL. */
void http_reply(struct http_conn *c, int status, const char *type, const char *extra, const void *body, size_t len);
void http_stream_begin(struct http_conn *c, const char *type, const char *extra);
int http_stream_add(struct http_conn *c, const void *data, size_t n);   /* 0 or ERR_FULL */
void http_stream_end(struct http_conn *c);
size_t http_unsent(const struct http_conn *c);     /* bytes of its answers that the client has not taken */
/* Until the answer is complete: fn is called from the loop whenever the client has taken all there was. */
void http_on_taken(struct http_conn *c, void (*fn)(void *arg), void *arg);
void http_drop(struct http_conn *c);               /* closes without (more of) an answer; the gone function is not called */
void http_on_gone(struct http_conn *c, void (*fn)(void *arg), void *arg);   /* fn NULL: nobody is told */

#endif
