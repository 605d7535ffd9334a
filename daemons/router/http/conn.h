/* conn.h - what the files of the HTTP edge share: server.c (connections), input.c (requests),
 * output.c (answers), listen.c (who gets in). */
#ifndef ROUTER_HTTP_INT_H
#define ROUTER_HTTP_INT_H

#include "clients.h"
#include "http.h"
#include "frame.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>

/* of answers that a client has not taken: its next request waits */
#define HTTP_UNREAD_MAX 65536u

enum conn_state {
	CONN_READING,   /* between requests, or in the middle of one: `frame` says which */
	CONN_ANSWERING, /* the handlers have it */
	CONN_FLUSHING,  /* the last answer is on its way out, then it closes or lingers */
	CONN_LINGER,    /* refused: what its client sends is dropped, so that it sees the answer */
	CONN_DEAD       /* to be freed by its event */
};

struct http_conn {
	struct list node;
	struct http_server *server;
	struct client *client;
	struct list by_server, by_client; /* see conn_waits */
	struct bufferevent *bev;
	struct event *later;  /* goes on reading, or frees, outside of everybody's stack */
	struct event *closed; /* the client's end, while its input is full; NULL until it was */
	enum conn_state state;
	int streaming, keep_alive;
	int no_head;       /* of the stream: there was no memory for it, and nothing follows */
	int refused;       /* an answer goes out before the request was read: it lingers */
	int not_served;    /* one too many: it is only told so */
	uint64_t since_us; /* of the present state's limit */
	struct http_frame frame;
	size_t in_bytes;  /* charged to the client */
	size_t out_bytes; /* counted in the server's and the client's */
	void (*gone)(void *arg);
	void *gone_arg;
	void (*taken)(void *arg);
	void *taken_arg;
};

/* Of a flood one line a second is logged, with the number of those that were not. */
struct http_note {
	uint64_t at_us;
	unsigned more;
};

struct http_server {
	struct event_base *base;
	struct http_opts opts;
	struct http_handlers handlers;
	void *arg;
	struct evconnlistener *listener;
	struct event *tick;
	struct clients *clients;
	struct list conns;
	struct list waiting; /* without a whole head; who has waited longest comes first */
	unsigned n_served, n_not_served, port;
	size_t out_bytes;
	uint64_t accepted, refused, closed_waiting, cut;
	struct http_note refused_note, full_note, cut_note;
	int stopping;
	/* the listener is off, until the tick: there was no descriptor or memory */
	int paused;
};

/* server.c */
/* Takes the descriptor. NULL: no memory; the descriptor is closed, the client still the
 * caller's. */
struct http_conn *conn_new(struct http_server *h, evutil_socket_t fd, struct client *client,
                           int not_served);
/* From the loop alone, under no function that its owner called. */
void conn_free(struct http_conn *c);
void conn_kill(struct http_conn *c);   /* closes it, soon; its owner is not told */
void conn_lost(struct http_conn *c);   /* the client is gone: its owner is told */
void conn_retire(struct http_conn *c); /* no further request; what is answered still goes out */
/* It may give way to others, the longest waiting first: it has no whole head, and its answers were
 * taken; or it does not. */
void conn_waits(struct http_conn *c, int waits);
int http_note_due(struct http_note *n, unsigned *ret_more);

/* The tick looks at limits and tries a paused listener again. It ends by itself when there is
 * nobody and nothing is paused, so that an idle server sleeps. */
void http_tick_on(struct http_server *h);

/* input.c */
void conn_go_on(struct http_conn *c);
/* An error of the edge itself: answered, and the connection ends, because where the next request
 * begins is not known. */
void conn_refuse(struct http_conn *c, int status, const char *text);
int conn_has_begun(const struct http_conn *c); /* something of a request is there */
void conn_uncharge(struct http_conn *c); /* what it no longer holds its client has free again */

/* output.c */
void conn_answered(struct http_conn *c);
void conn_count_output(struct http_conn *c);

/* listen.c */
int http_listen(struct http_server *h, struct err *err);
void http_listen_end(struct http_server *h); /* takes in who has connected already */

#endif
