/* conn.c - see conn.h: one connection, from accept to its last byte.
 *
 * What always holds: a client that leaves is noticed at once, in every state; what it sends while
 * it is answered waits in the input buffer, which is bounded, and a client that does not take its
 * answers gets no further request read, so that pipelining fills no memory. Heads and bodies are
 * parsed in conn_work alone, where addresses take turns. A half-closed client counts as gone once
 * what it has sent is parsed. All bytes that a client makes the edge hold are charged to its
 * address. A connection is freed from the loop alone (by its own event, by the tick, or to make
 * room), never under a function that its owner called. Whatever a client sends costs at most its
 * own connection. */
#include "http/conn.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <arpa/inet.h>
#include <event2/bufferevent_ssl.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define INPUT_MAX 16384u     /* bytes after a request that is being answered */
#define WRITE_MAX (1u << 20) /* bytes that a connection writes at once, at most (plain TCP) */
#define UNREAD_MAX 65536u    /* bytes of answers not taken: the next request waits */
#define LINGER_US 3000000u
#define WORK_US 2000u /* of parsing and requests, before other events get their turn */

/* It may give way to others, the longest waiting first: it has no whole head, and its answers were
 * taken. waits 0: it may not. */
static void conn_waits(struct http_conn *c, int waits)
{
	list_remove(&c->by_server);
	list_remove(&c->by_client);
	if (!waits)
		return;
	list_push_back(&c->server->waiting, &c->by_server);
	list_push_back(&c->client->loop.waiting, &c->by_client);
}

/* --- what is held -------------------------------------------------------- */

void http_body_free(struct http_body *b)
{
	if (!b->data)
		return;
	free(b->data);
	b->data = NULL;
	client_put(b->client, b->charged);
}

size_t http_unsent(const struct http_conn *c)
{
	return !c->bev ? 0 : evbuffer_get_length(bufferevent_get_output(c->bev));
}

static size_t input_bytes(const struct http_conn *c)
{
	return evbuffer_get_length(bufferevent_get_input(c->bev));
}

int conn_has_begun(const struct http_conn *c)
{
	return http_frame_begun(&c->frame) || input_bytes(c);
}

/* What the connection holds is charged to its client. 0, or ERR_FULL: no room. Never when it holds
 * less than before. */
static int charge(struct http_conn *c)
{
	struct http_server *h = c->server;
	size_t held = http_frame_held(&c->frame) + input_bytes(c);
	unsigned more;
	int r = client_resize(c->client, c->in_bytes, held);
	if (r == 0)
		c->in_bytes = held;
	else if (log_note_due(&h->full_note, &more))
		log_warn("http_full", "what=input bytes=%zu limit=%zu more=%u", clients_bytes(h->clients),
		         h->opts.in_bytes_max, more);
	return r;
}

static void drop_input(struct http_conn *c)
{
	evbuffer_drain(bufferevent_get_input(c->bev), input_bytes(c));
	charge(c);
}

/* --- requests ------------------------------------------------------------ */

/* Feeds the frame until it says something, or all bytes are used. The bytes of a next request are
 * left alone while the client has much of its answers to take. */
static enum http_event read_some(struct http_conn *c)
{
	struct evbuffer *in = bufferevent_get_input(c->bev);
	for (;;) {
		if (c->ssl && !input_bytes(c))
			tls_take(c->ssl, in);
		size_t n = evbuffer_get_contiguous_space(in), used;
		if (!http_frame_begun(&c->frame)) {
			if (!n || http_unsent(c) >= UNREAD_MAX)
				return HTTP_MORE;
			c->since_us = clock_us();
		}
		enum http_event event = http_frame_feed(
			&c->frame, n ? (const char *)evbuffer_pullup(in, (ev_ssize_t)n) : "", n, &used);
		evbuffer_drain(in, used);
		if (event != HTTP_MORE || !used)
			return event;
	}
}

/* Its bytes are parsed when it has its turn. Reading takes little time, what a request asks for may
 * take much: so sockets are read as they become ready, which also keeps few of them ready, and a
 * client with thousands of connections costs another client no more than one request's time. */
static void conn_queue(struct http_conn *c)
{
	struct http_server *h = c->server;
	if (fair_waits(&c->turn))
		return;
	if (!h->turns.n)
		event_active(h->work, EV_TIMEOUT, 0);
	fair_put(&h->turns, &c->client->loop.turns, &c->turn, 1);
}

static int has_body(const struct http_conn *c)
{
	return c->frame.head.chunked || c->frame.head.content_length;
}

/* The answer is complete: its request is forgotten. */
static void forget_request(struct http_conn *c)
{
	memset(&c->owner, 0, sizeof c->owner);
	http_frame_next(&c->frame);
	size_t held = http_frame_held(&c->frame) + input_bytes(c);
	if (held < c->in_bytes)
		charge(c);
	conn_count_output(c);
}

static int stays_open(const struct http_conn *c)
{
	return c->keep_alive && !c->server->stopping;
}

struct refusal {
	int status;
	const char *text;
	const char *setting; /* of the limit that was reached; NULL: none */
	size_t bytes;        /* that limit; 0: it is not said */
};

static const struct refusal
	no_room = {503, "this server has no room for the request now; try again in a second",
               "input_bytes_max", 0},
	no_memory = {503, "this server has no memory for the request now", NULL, 0},
	too_late = {408, "the request did not arrive within this server's limit", "read_timeout_ms", 0},
	stopping = {503, "this server is shutting down", NULL, 0},
	no_tls = {400, "this port speaks TLS: use https:// instead of http://", NULL, 0},
	too_many = {503, "too many connections; try again in a second",
                "max_connections, max_connections_per_address", 0};

/* An error of the edge itself is answered. The connection ends then, because it is not known where
 * the next request begins. Less than 0: no memory for the answer. */
static int refuse(struct http_conn *c, struct refusal why)
{
	struct http_server *h = c->server;
	const char *path = c->frame.head.path ? c->frame.head.path : "";
	char body[1024], text[256], bytes[48] = "";
	unsigned more;
	int named = why.setting && h->opts.limits_are_settings;
	if (why.bytes)
		snprintf(bytes, sizeof bytes, ": at most %zu bytes", why.bytes);
	snprintf(text, sizeof text, named ? "%s%s (%s)" : "%s%s", why.text, bytes, why.setting);
	size_t n = h->opts.error_body
	               ? h->opts.error_body(h->arg, path, why.status, text, body, sizeof body)
	               : (size_t)snprintf(body, sizeof body, "%s\n", text);
	h->refused++;
	if (log_note_due(&h->refused_note, &more))
		log_notice("http_refused", "status=%d client=%s path=%s why=%s more=%u", why.status,
		           c->address, log_quote(path), log_quote(text), more);
	conn_waits(c, 0);
	c->keep_alive = 0;
	int r = conn_write_answer(c, why.status, h->opts.error_body ? "application/json" : "text/plain",
	                          why.status == 503 ? "Retry-After: 1\r\n" : NULL, body, n);
	forget_request(c);
	drop_input(c);
	return r;
}

static struct refusal bad_frame(const struct http_conn *c)
{
	const struct http_opts *o = &c->server->opts;
	struct refusal why = {.status = c->frame.status, .text = c->frame.why};
	if (why.status == 431) {
		why.setting = "max_header_bytes";
		why.bytes = o->max_header_bytes;
	} else if (why.status == 413) { /* a path may take less than the setting */
		why.setting = c->frame.body_max == o->max_body_bytes ? "max_body_bytes" : NULL;
		why.bytes = c->frame.body_max;
	}
	return why;
}

/* --- states -------------------------------------------------------------- */

static void handshake_failed(struct http_conn *c, const char *why)
{
	unsigned more;
	c->server->tls_failed++;
	if (log_note_due(&c->server->tls_note, &more))
		log_notice("http_tls_failed", "client=%s why=%s more=%u", c->address, log_quote(why), more);
}

static int is_older(const struct http_conn *c, uint64_t limit_us)
{
	uint64_t now = clock_us();
	return now > c->since_us && now - c->since_us > limit_us;
}

/* It may give way to others as one without a request does. */
static enum connection_state step_handshake(struct http_conn *c, enum connection_event e)
{
	switch (e) {
	case CONNECTION_ON_SECURED: return CONNECTION_HEAD;
	case CONNECTION_ON_PLAIN: return refuse(c, no_tls) < 0 ? CONNECTION_CLOSED : CONNECTION_REFUSED;
	case CONNECTION_ON_TICK:
		if (!is_older(c, c->server->opts.read_us))
			return CONNECTION_HANDSHAKE;
		handshake_failed(c, "it was not complete within read_timeout_ms");
		return CONNECTION_CLOSED;
	case CONNECTION_ON_CLOSE: return CONNECTION_CLOSED;
	default: return CONNECTION_HANDSHAKE;
	}
}

static enum connection_state step_head(struct http_conn *c, enum connection_event e)
{
	const struct http_opts *o = &c->server->opts;
	struct refusal why = no_room;
	switch (e) {
	case CONNECTION_ON_ENTER:
		c->since_us = clock_us();
		if (input_bytes(c))
			conn_queue(c);
		return CONNECTION_HEAD;
	case CONNECTION_ON_WRITTEN:
		conn_waits(c, 1);
		conn_queue(c);
		return CONNECTION_HEAD;
	case CONNECTION_ON_INPUT:
		switch (read_some(c)) {
		case HTTP_HEAD: return CONNECTION_AUTHORISING;
		case HTTP_BAD: why = bad_frame(c); break;
		default:
			if (charge(c) == 0)
				return CONNECTION_HEAD;
		}
		break;
	case CONNECTION_ON_EOF:
		return !http_frame_begun(&c->frame) && http_unsent(c) ? CONNECTION_FLUSHING
		                                                      : CONNECTION_CLOSED;
	case CONNECTION_ON_TICK:
		conn_count_output(c);
		/* with bytes of a request it waits for its client to read: that has its own limit */
		if (!http_frame_begun(&c->frame) && (input_bytes(c) || !is_older(c, o->idle_us)))
			return CONNECTION_HEAD;
		if (http_frame_begun(&c->frame) && !is_older(c, o->read_us))
			return CONNECTION_HEAD;
		/* empty lines are no request: a client that sends nothing else is told nothing */
		if (!c->frame.text.len)
			return http_unsent(c) ? CONNECTION_FLUSHING : CONNECTION_CLOSED;
		why = too_late;
		break;
	case CONNECTION_ON_DRAIN:
		if (!conn_has_begun(c))
			return CONNECTION_HEAD;
		why = stopping;
		break;
	case CONNECTION_ON_TOO_MANY: why = too_many; break;
	case CONNECTION_ON_CLOSE: return CONNECTION_CLOSED;
	default: return CONNECTION_HEAD;
	}
	return refuse(c, why) < 0 ? CONNECTION_CLOSED : CONNECTION_REFUSED;
}

/* A request that the handler answers by its head is not read further, and nothing of its body is
 * kept. */
static enum connection_state step_authorising(struct http_conn *c, enum connection_event e)
{
	struct http_server *h = c->server;
	struct http_head *head = &c->frame.head;
	size_t body_max = h->opts.max_body_bytes;
	struct refusal why = no_room;
	int sends_body = has_body(c);
	switch (e) {
	case CONNECTION_ON_ENTER:
		conn_waits(c, 0);
		c->keep_alive = head->keep_alive && !sends_body;
		if (h->handlers.head(h->arg, c, head, &body_max))
			return CONNECTION_AUTHORISING; /* it has answered, and that was a step of its own */
		if (http_frame_go_on(&c->frame, body_max) < 0) {
			why = bad_frame(c);
			break;
		}
		if (head->content_length > CLIENT_SURE_BYTES &&
		    head->content_length > client_room(c->client))
			break;
		if (head->expect_continue && sends_body)
			evbuffer_add(bufferevent_get_output(c->bev), "HTTP/1.1 100 Continue\r\n\r\n", 25);
		return CONNECTION_BODY;
	case CONNECTION_ON_ANSWERED:
		forget_request(c);
		if (sends_body)
			return CONNECTION_REFUSED;
		return stays_open(c) ? CONNECTION_HEAD : CONNECTION_FLUSHING;
	case CONNECTION_ON_CLOSE: return CONNECTION_CLOSED;
	default: return CONNECTION_AUTHORISING;
	}
	return refuse(c, why) < 0 ? CONNECTION_CLOSED : CONNECTION_REFUSED;
}

static enum connection_state step_body(struct http_conn *c, enum connection_event e)
{
	struct refusal why = no_room;
	struct buf *body = &c->frame.body;
	switch (e) {
	case CONNECTION_ON_WRITTEN: conn_queue(c); return CONNECTION_BODY;
	case CONNECTION_ON_ENTER: /* a request without a body is complete at once */
	case CONNECTION_ON_INPUT:
		switch (read_some(c)) {
		case HTTP_REQUEST:
			if (charge(c) < 0)
				break;
			if (body->data || (body->data = mem_try_array(1, 1)))
				return CONNECTION_SERVING;
			why = no_memory;
			break;
		case HTTP_BAD: why = bad_frame(c); break;
		default:
			if (charge(c) == 0)
				return CONNECTION_BODY;
		}
		break;
	case CONNECTION_ON_TICK:
		conn_count_output(c);
		if (!is_older(c, c->server->opts.read_us))
			return CONNECTION_BODY;
		why = too_late;
		break;
	case CONNECTION_ON_DRAIN: why = stopping; break;
	case CONNECTION_ON_EOF:
	case CONNECTION_ON_CLOSE: return CONNECTION_CLOSED;
	default: return CONNECTION_BODY;
	}
	return refuse(c, why) < 0 ? CONNECTION_CLOSED : CONNECTION_REFUSED;
}

static void hand_over(struct http_conn *c)
{
	struct http_server *h = c->server;
	struct buf *b = &c->frame.body;
	struct http_request q = {.head = &c->frame.head, .body = {b->data, b->len, c->client, b->size}};
	c->in_bytes -= b->size;
	memset(b, 0, sizeof *b);
	client_hold(c->client);
	c->keep_alive = c->frame.head.keep_alive;
	h->handlers.request(h->arg, c, &q);
	http_body_free(&q.body);
}

/* What happens beside an answer. 1: the connection ends. */
static int is_cut(struct http_conn *c, enum connection_event e)
{
	switch (e) {
	case CONNECTION_ON_INPUT: return charge(c) < 0; /* further requests wait in the input */
	case CONNECTION_ON_TICK: conn_count_output(c);  /* fall through */
	case CONNECTION_ON_WRITTEN:
		if (c->owner.taken && !http_unsent(c))
			c->owner.taken(c->owner.taken_arg);
		return 0;
	case CONNECTION_ON_EOF:
	case CONNECTION_ON_CLOSE: return 1;
	default: return 0;
	}
}

static enum connection_state step_serving(struct http_conn *c, enum connection_event e)
{
	switch (e) {
	case CONNECTION_ON_ENTER:
		hand_over(c); /* may answer: that is a step of its own */
		return CONNECTION_SERVING;
	case CONNECTION_ON_STREAM: return CONNECTION_STREAMING;
	case CONNECTION_ON_NO_MEMORY: return CONNECTION_BROKEN;
	case CONNECTION_ON_ANSWERED:
		forget_request(c);
		return stays_open(c) ? CONNECTION_HEAD : CONNECTION_FLUSHING;
	default: return is_cut(c, e) ? CONNECTION_CLOSED : CONNECTION_SERVING;
	}
}

static enum connection_state step_streaming(struct http_conn *c, enum connection_event e)
{
	if (e == CONNECTION_ON_ANSWERED) {
		forget_request(c);
		return stays_open(c) ? CONNECTION_HEAD : CONNECTION_FLUSHING;
	}
	return is_cut(c, e) ? CONNECTION_CLOSED : CONNECTION_STREAMING;
}

static enum connection_state step_broken(struct http_conn *c, enum connection_event e)
{
	return is_cut(c, e) ? CONNECTION_CLOSED : CONNECTION_BROKEN;
}

/* The client has taken nothing for too long. libevent has the same limit, unless it found no memory
 * for its event. */
static int is_stalled(struct http_conn *c)
{
	size_t had = c->out_bytes;
	conn_count_output(c);
	if (c->out_bytes < had)
		c->since_us = clock_us();
	return is_older(c, c->server->opts.write_us);
}

static enum connection_state step_flushing(struct http_conn *c, enum connection_event e)
{
	if (e == CONNECTION_ON_ENTER) {
		conn_waits(c, 0);
		c->since_us = clock_us();
	}
	drop_input(c);
	if (e == CONNECTION_ON_CLOSE || (e == CONNECTION_ON_TICK && is_stalled(c)))
		return CONNECTION_CLOSED;
	if (http_unsent(c))
		return CONNECTION_FLUSHING;
	if (c->ssl)
		tls_end(c->ssl);
	return CONNECTION_CLOSED;
}

static enum connection_state step_refused(struct http_conn *c, enum connection_event e)
{
	if (e == CONNECTION_ON_ENTER)
		c->since_us = clock_us();
	drop_input(c);
	if (e == CONNECTION_ON_CLOSE || (e == CONNECTION_ON_TICK && is_stalled(c)))
		return CONNECTION_CLOSED;
	if (e == CONNECTION_ON_EOF)
		return CONNECTION_FLUSHING;
	return http_unsent(c) ? CONNECTION_REFUSED : CONNECTION_LINGERING;
}

static enum connection_state step_lingering(struct http_conn *c, enum connection_event e)
{
	if (e == CONNECTION_ON_ENTER) {
		c->since_us = clock_us();
		if (!c->not_served)
			conn_waits(c, 1); /* it gives way to others as one without a request does */
		if (c->ssl)
			tls_end(c->ssl);
		shutdown(bufferevent_getfd(c->bev), SHUT_WR);
	}
	drop_input(c);
	if (e == CONNECTION_ON_CLOSE || e == CONNECTION_ON_EOF ||
	    (e == CONNECTION_ON_TICK && is_older(c, LINGER_US)))
		return CONNECTION_CLOSED;
	return CONNECTION_LINGERING;
}

/* The owner is told that its client is gone, unless it was the one who dropped it. */
static enum connection_state step_closed(struct http_conn *c, enum connection_event e)
{
	void (*gone)(void *) = c->owner.gone;
	void *arg = c->owner.gone_arg;
	if (e != CONNECTION_ON_ENTER)
		return CONNECTION_CLOSED;
	memset(&c->owner, 0, sizeof c->owner);
	conn_waits(c, 0);
	if (c->bev)
		bufferevent_disable(c->bev, EV_READ | EV_WRITE);
	event_active(c->later, EV_TIMEOUT, 0);
	if (gone)
		gone(arg);
	return CONNECTION_CLOSED;
}

#define TO(s) (1u << CONNECTION_##s)
static const struct {
	const char *name;
	unsigned next; /* states that may follow */
	enum connection_state (*step)(struct http_conn *c, enum connection_event e);
} states[] = {
	[CONNECTION_HANDSHAKE] = {"handshake", TO(HEAD) | TO(REFUSED) | TO(CLOSED), step_handshake},
	[CONNECTION_HEAD] = {"head", TO(AUTHORISING) | TO(FLUSHING) | TO(REFUSED) | TO(CLOSED),
                         step_head},
	[CONNECTION_AUTHORISING] = {"authorising",
                                TO(BODY) | TO(HEAD) | TO(FLUSHING) | TO(REFUSED) | TO(CLOSED),
                                step_authorising},
	[CONNECTION_BODY] = {"body", TO(SERVING) | TO(REFUSED) | TO(CLOSED), step_body},
	[CONNECTION_SERVING] = {"serving",
                            TO(STREAMING) | TO(BROKEN) | TO(HEAD) | TO(FLUSHING) | TO(CLOSED),
                            step_serving},
	[CONNECTION_STREAMING] = {"streaming", TO(HEAD) | TO(FLUSHING) | TO(CLOSED), step_streaming},
	[CONNECTION_BROKEN] = {"broken", TO(CLOSED), step_broken},
	[CONNECTION_FLUSHING] = {"flushing", TO(CLOSED), step_flushing},
	[CONNECTION_REFUSED] = {"refused", TO(LINGERING) | TO(FLUSHING) | TO(CLOSED), step_refused},
	[CONNECTION_LINGERING] = {"lingering", TO(CLOSED), step_lingering},
	[CONNECTION_CLOSED] = {"closed", 0, step_closed},
};

static void connection_enter(struct http_conn *c, enum connection_state to)
{
	if (!(states[c->state].next & 1u << to))
		PANIC("connection: illegal step %s -> %s", states[c->state].name, states[to].name);
	c->state = to;
}

/* A handler that is called inside of a step may answer, which is a step of its own: the outer one
 * then returns the state that it had, and ends. */
void connection_step(struct http_conn *c, enum connection_event e)
{
	for (;;) {
		enum connection_state from = c->state, to = states[from].step(c, e);
		if (to == from)
			return;
		connection_enter(c, to);
		e = CONNECTION_ON_ENTER;
	}
}

/* --- events -------------------------------------------------------------- */

static void on_closed(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	connection_step(arg, CONNECTION_ON_CLOSE);
}

/* When the input is full nothing more is read, so the client's end would not be seen. */
static void watch_end(struct http_conn *c)
{
	int full = c->state >= CONNECTION_SERVING && c->state <= CONNECTION_BROKEN &&
	           input_bytes(c) >= INPUT_MAX;
	if (full && !c->closed)
		c->closed = event_new(c->server->base, bufferevent_getfd(c->bev), EV_CLOSED, on_closed, c);
	if (full && c->closed)
		event_add(c->closed, NULL);
	else if (c->closed)
		event_del(c->closed);
}

static void on_read(struct bufferevent *bev, void *arg)
{
	struct http_conn *c = arg;
	(void)bev;
	if ((c->state == CONNECTION_HEAD || c->state == CONNECTION_BODY) && charge(c) == 0) {
		conn_queue(c);
		return;
	}
	connection_step(c, CONNECTION_ON_INPUT);
	watch_end(c);
}

/* The client sends nothing more. */
static void on_end(struct http_conn *c)
{
	connection_step(c, CONNECTION_ON_EOF);
	if (c->ssl && http_unsent(c))
		event_active(c->later, EV_TIMEOUT, 0); /* lets it write again */
}

void conn_work(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	struct http_server *h = arg;
	uint64_t until = clock_us() + WORK_US;
	while (h->turns.n && clock_us() < until) {
		struct fair_owner *next = list_entry(h->turns.owners.next, struct fair_owner, node);
		struct http_conn *c = list_entry(fair_first(next), struct http_conn, turn);
		fair_take(&h->turns, &c->turn);
		connection_step(c, CONNECTION_ON_INPUT);
		if (c->ended && !fair_waits(&c->turn))
			on_end(c);
		watch_end(c);
	}
	/* a timer, not event_active: the loop looks for other events first */
	if (h->turns.n && event_add(h->work, &(struct timeval){0}) < 0)
		event_active(h->work, EV_TIMEOUT, 0);
}

static void on_written(struct bufferevent *bev, void *arg)
{
	(void)bev;
	conn_count_output(arg);
	connection_step(arg, CONNECTION_ON_WRITTEN);
	watch_end(arg);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
	struct http_conn *c = arg;
	(void)bev;
	if (what & (BEV_EVENT_ERROR | BEV_EVENT_TIMEOUT))
		connection_step(arg, CONNECTION_ON_CLOSE);
	else if (what & BEV_EVENT_EOF && fair_waits(&c->turn))
		c->ended = 1;
	else if (what & BEV_EVENT_EOF)
		on_end(c);
}

static void on_later(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	struct http_conn *c = arg;
	if (c->state == CONNECTION_CLOSED) {
		conn_free(c);
		return;
	}
	/* libevent stops writing after it has told of a client's close_notify, which ends only what the
	 * client sends */
	if (c->ssl && http_unsent(c))
		bufferevent_enable(c->bev, EV_WRITE);
}

/* --- begin and end ------------------------------------------------------- */

/* Reading and writing, over TLS if ssl is set. Takes ssl and the descriptor; ERR_NOMEM: both are
 * closed. */
static int conn_open(struct http_conn *c, evutil_socket_t fd, SSL *ssl)
{
	struct http_server *h = c->server;
	const uint64_t limit_us = h->opts.write_us;
	struct timeval limit = clock_timeval(limit_us);
	struct bufferevent *bev = ssl ? bufferevent_openssl_socket_new(h->base, fd, ssl,
	                                                               BUFFEREVENT_SSL_OPEN,
	                                                               BEV_OPT_CLOSE_ON_FREE)
	                              : bufferevent_socket_new(h->base, fd, BEV_OPT_CLOSE_ON_FREE);
	if (!bev) { /* BEV_OPT_CLOSE_ON_FREE: ssl is freed already */
		evutil_closesocket(fd);
		return ERR_NOMEM;
	}
	if (ssl)
		bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
	bufferevent_setcb(bev, on_read, on_written, on_event, c);
	bufferevent_setwatermark(bev, EV_READ, 0, INPUT_MAX);
	/* in a turn of the loop; libevent's 16 KiB are less than a router that fell behind makes for
	 * each of its clients meanwhile */
	bufferevent_set_max_single_write(bev, WRITE_MAX);
	if (bufferevent_set_timeouts(bev, NULL, &limit) < 0 ||
	    bufferevent_enable(bev, EV_READ | EV_WRITE) < 0) {
		bufferevent_free(bev);
		return ERR_NOMEM;
	}
	c->bev = bev;
	c->ssl = ssl;
	return 0;
}

static void on_handshake(void *arg, SSL *ssl, int plain_fd, const char *why)
{
	struct http_conn *c = arg;
	enum connection_event e = CONNECTION_ON_CLOSE;
	c->handshake = NULL;
	if (ssl && conn_open(c, SSL_get_fd(ssl), ssl) == 0)
		e = CONNECTION_ON_SECURED;
	else if (plain_fd >= 0 && conn_open(c, plain_fd, NULL) == 0)
		e = CONNECTION_ON_PLAIN;
	else if (!ssl && plain_fd < 0)
		handshake_failed(c, why);
	connection_step(c, e);
}

static void write_address(const struct sockaddr *from, char out[HTTP_ADDRESS_MAX])
{
	const void *a = from->sa_family == AF_INET6
	                    ? (const void *)&((const struct sockaddr_in6 *)from)->sin6_addr
	                    : &((const struct sockaddr_in *)from)->sin_addr;
	if (!inet_ntop(from->sa_family, a, out, HTTP_ADDRESS_MAX))
		snprintf(out, HTTP_ADDRESS_MAX, "-");
}

const char *http_address(const struct http_conn *c)
{
	return c->address;
}

/* What of it needs memory. The descriptor is its own, also when there is none. */
static struct http_conn *conn_made(struct http_server *h, evutil_socket_t fd,
                                   struct http_client *client)
{
	struct http_conn *c = mem_try_array(1, sizeof *c);
	struct event *later = event_new(h->base, -1, 0, on_later, c);
	if (!c || !later) {
		evutil_closesocket(fd);
	} else {
		c->server = h;
		c->later = later;
		c->state = h->tls ? CONNECTION_HANDSHAKE : CONNECTION_HEAD;
		if (h->tls)
			c->handshake = handshake_new(h->handshakes, h->tls, fd, client, on_handshake, c);
		if (c->handshake || (!h->tls && conn_open(c, fd, NULL) == 0))
			return c;
	}
	if (later)
		event_free(later);
	free(c);
	return NULL;
}

struct http_conn *conn_new(struct http_server *h, evutil_socket_t fd, const struct sockaddr *from,
                           struct http_client *client, int not_served)
{
	struct http_conn *c = conn_made(h, fd, client);
	int one = 1;
	if (!c)
		return NULL;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	c->client = client;
	write_address(from, c->address);
	c->not_served = not_served;
	http_frame_init(&c->frame, h->opts.max_header_bytes);
	c->since_us = clock_us();
	list_init(&c->by_server);
	list_init(&c->by_client);
	fair_item_init(&c->turn);
	list_push_back(&h->conns, &c->node);
	*(not_served ? &h->n_not_served : &h->n_served) += 1;
	*(not_served ? &client->loop.refused : &client->loop.conns) += 1;
	if (!not_served)
		conn_waits(c, 1);
	h->accepted++;
	http_tick_on(h);
	return c;
}

void conn_free(struct http_conn *c)
{
	list_remove(&c->node);
	conn_waits(c, 0);
	fair_drop(&c->server->turns, &c->turn);
	c->server->out_bytes -= c->out_bytes;
	c->client->loop.out_bytes -= c->out_bytes;
	*(c->not_served ? &c->server->n_not_served : &c->server->n_served) -= 1;
	*(c->not_served ? &c->client->loop.refused : &c->client->loop.conns) -= 1;
	event_free(c->later);
	if (c->closed)
		event_free(c->closed);
	handshake_end(&c->handshake);
	if (c->bev)
		bufferevent_free(c->bev);
	http_frame_fini(&c->frame);
	client_put(c->client, c->in_bytes);
	free(c);
}
