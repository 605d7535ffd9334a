/* conn.h - one connection of a client, and what the files of the HTTP edge share: conn.c
 * (connections: states, requests), output.c (answers), server.c (who gets in, limits of time).
 *
 *   HANDSHAKE -> HEAD, REFUSED, CLOSED        with TLS: handshake.c has the connection
 *   HEAD -> AUTHORISING, FLUSHING, REFUSED, CLOSED  between requests, or a head is arriving
 *   AUTHORISING -> BODY, HEAD, FLUSHING, REFUSED, CLOSED  the handler decides by the head
 *                                             whether the body may come
 *   BODY -> SERVING, REFUSED, CLOSED          the body is arriving
 *   SERVING -> STREAMING, BROKEN, HEAD, FLUSHING, CLOSED  a handler has the request and has not
 *                                             answered yet
 *   STREAMING -> HEAD, FLUSHING, CLOSED       an answer has begun and has not ended
 *   BROKEN -> CLOSED                          no memory for the head of a stream: nothing more is
 *                                             sent
 *   FLUSHING -> CLOSED                        the last answer is on its way out
 *   REFUSED -> LINGERING, FLUSHING, CLOSED    the same, of an answer to a request that was not read
 *                                             to its end
 *   LINGERING -> CLOSED                       what the client still sends is dropped, so that it
 *                                             sees the answer
 *   CLOSED                                    to be freed by its event
 *
 * connection_step moves it on: with each event the function of its state (step_..., conn.c) acts
 * and returns the next state. */
#ifndef HTTP_CONN_H
#define HTTP_CONN_H

#include "http/clients.h"
#include "http/http.h"
#include "http/frame.h"
#include "http/handshake.h"
#include "http/tls.h"
#include "util/log.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>

enum connection_state {
	CONNECTION_HANDSHAKE,
	CONNECTION_HEAD,
	CONNECTION_AUTHORISING,
	CONNECTION_BODY,
	CONNECTION_SERVING,
	CONNECTION_STREAMING,
	CONNECTION_BROKEN,
	CONNECTION_FLUSHING,
	CONNECTION_REFUSED,
	CONNECTION_LINGERING,
	CONNECTION_CLOSED
};

enum connection_event {
	CONNECTION_ON_ENTER,     /* the state has just been entered */
	CONNECTION_ON_SECURED,   /* the TLS handshake is complete */
	CONNECTION_ON_PLAIN,     /* the client speaks HTTP without TLS */
	CONNECTION_ON_INPUT,     /* bytes have arrived, or are still there */
	CONNECTION_ON_WRITTEN,   /* the client has taken all there was */
	CONNECTION_ON_EOF,       /* the client sends nothing more */
	CONNECTION_ON_TICK,      /* about twice a second */
	CONNECTION_ON_DRAIN,     /* the server stops: no new requests */
	CONNECTION_ON_TOO_MANY,  /* there is no room for this connection: it is told so */
	CONNECTION_ON_STREAM,    /* the head of a stream is out */
	CONNECTION_ON_NO_MEMORY, /* it is not: there was no memory for it */
	CONNECTION_ON_ANSWERED,  /* the answer is complete */
	CONNECTION_ON_CLOSE      /* the client is gone, or is dropped */
};

struct http_conn {
	enum connection_state state;
	int keep_alive;    /* further requests may follow this one */
	int not_served;    /* one too many: it is only told so */
	int ended;         /* the client sends nothing more; its input is to be parsed first */
	uint64_t since_us; /* of the present state's limit */
	struct http_server *server;
	struct http_client *client;
	char address[HTTP_ADDRESS_MAX]; /* the client's own, while `client` may stand for several */
	struct list node;
	struct list by_server, by_client; /* see conn_waits */
	struct fair_item turn;            /* to be parsed; see conn_queue */
	struct handshake *handshake;      /* in CONNECTION_HANDSHAKE; then bev and ssl are NULL */
	struct bufferevent *bev;
	struct ssl_st *ssl;   /* the bufferevent's; NULL: plain HTTP */
	struct event *later;  /* goes on, or frees, outside of everybody's stack */
	struct event *closed; /* the client's end, while its input is full; NULL before that */
	struct http_frame frame;
	size_t in_bytes;  /* charged to the client */
	size_t out_bytes; /* counted in the server's and the client's */
	struct {          /* the owner of the request that is served */
		void (*gone)(void *arg);
		void *gone_arg;
		void (*taken)(void *arg);
		void *taken_arg;
	} owner;
};

struct http_server {
	struct event_base *base;
	struct http_opts opts;
	struct http_handlers handlers;
	char *headers; /* of every answer */
	void *arg;
	int listen_fd;
	struct event *listener; /* NULL: it accepts no more */
	struct event *tick;
	struct ssl_ctx_st *tls;        /* of new connections; NULL: plain HTTP */
	struct handshakes *handshakes; /* NULL while there was no TLS */
	struct http_clients *clients;
	struct list conns;
	struct list waiting;     /* connections without a complete head, longest waiting first */
	struct fair_queue turns; /* of clients with bytes to be parsed */
	struct event *work;      /* parses */
	unsigned n_served, n_not_served, port;
	size_t out_bytes;
	struct buf head; /* of the answer that is being written */
	uint64_t accepted, refused, closed_waiting, cut, tls_failed;
	struct log_note refused_note, full_note, cut_note, tls_note;
	int is_local; /* listens on a loopback address */
	int stopping;
	/* the listener is off until the next tick: no descriptor or memory */
	int paused;
};

/* conn.c */
/* Takes the descriptor. NULL: no memory; the descriptor is closed, the client still the
 * caller's. */
struct http_conn *conn_new(struct http_server *h, evutil_socket_t fd, const struct sockaddr *from,
                           struct http_client *client, int not_served);
/* From the loop alone, never under a function that its owner called. */
void conn_free(struct http_conn *c);
void connection_step(struct http_conn *c, enum connection_event e);
/* The event `work`: what has arrived is parsed, and requests are handed over, for WORK_US;
 * addresses take turns, and so do the connections of an address. */
void conn_work(evutil_socket_t fd, short what, void *arg);
int conn_has_begun(const struct http_conn *c); /* something of a request is there */

/* server.c */
/* The tick looks at limits and tries a paused listener again. It ends by itself when there is
 * nobody and nothing is paused, so that an idle server sleeps. */
void http_tick_on(struct http_server *h);

/* output.c */
void conn_count_output(struct http_conn *c);
/* A whole answer, or a 503 if there is no room for it. 0 or ERR_NOMEM: then perhaps half of it. */
int conn_write_answer(struct http_conn *c, int status, const char *type, const char *extra,
                      const void *body, size_t len);

#endif
