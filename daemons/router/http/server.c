/* server.c - see http.h: one connection's life, from accept to the last byte, and the server's.
 *
 * What always holds: a client that leaves is noticed at once, in every phase; what it sends while
 * it is answered waits in the input buffer, which is bounded, and a client that does not take its
 * answers is asked for no further request, so that pipelining fills no memory and does not keep the
 * loop from the others. A half-closed client counts as gone. All bytes that a client makes the edge
 * hold are charged to its address. A connection is freed from the loop alone (by an event of its
 * own, by the tick, or to make room), never under a function that its owner called. Whatever a
 * client sends costs at most its own connection. */
#include "conn.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>

#define TICK_US 500000u
#define NOTE_US 1000000u
#define INPUT_MAX 16384u /* bytes behind a request that is being answered */
#define LINGER_US 3000000u

int http_note_due(struct http_note *n, unsigned *ret_more)
{
	uint64_t now = clock_us();
	if (n->at_us && now - n->at_us < NOTE_US) {
		n->more++;
		return 0;
	}
	*ret_more = n->more;
	n->at_us = now;
	n->more = 0;
	return 1;
}

/* --- the end of a connection --------------------------------------------- */

void conn_waits(struct http_conn *c, int waits)
{
	list_remove(&c->by_server);
	list_remove(&c->by_client);
	if (!waits)
		return;
	list_push_back(&c->server->waiting, &c->by_server);
	list_push_back(&c->client->loop.waiting, &c->by_client);
}

void conn_free(struct http_conn *c)
{
	list_remove(&c->node);
	conn_waits(c, 0);
	c->server->out_bytes -= c->out_bytes;
	c->client->loop.out_bytes -= c->out_bytes;
	*(c->not_served ? &c->server->n_not_served : &c->server->n_served) -= 1;
	*(c->not_served ? &c->client->loop.refused : &c->client->loop.conns) -= 1;
	event_free(c->later);
	if (c->closed)
		event_free(c->closed);
	bufferevent_free(c->bev);
	http_frame_fini(&c->frame);
	client_put(c->client, c->in_bytes);
	free(c);
}

void conn_kill(struct http_conn *c)
{
	c->gone = NULL;
	c->taken = NULL;
	c->state = CONN_DEAD;
	conn_waits(c, 0);
	bufferevent_disable(c->bev, EV_READ | EV_WRITE);
	event_active(c->later, EV_TIMEOUT, 0);
}

void conn_lost(struct http_conn *c)
{
	void (*gone)(void *) = c->gone;
	void *arg = c->gone_arg;
	if (c->state == CONN_DEAD)
		return;
	conn_kill(c);
	if (gone)
		gone(arg);
}

void conn_retire(struct http_conn *c)
{
	if (http_unsent(c) == 0) {
		conn_lost(c);
		return;
	}
	c->state = CONN_FLUSHING;
	c->since_us = clock_us();
	conn_waits(c, 0);
	bufferevent_disable(c->bev, EV_READ);
}

void http_drop(struct http_conn *c)
{
	struct http_server *h = c->server;
	unsigned more;
	if (c->state == CONN_DEAD)
		return;
	if (c->streaming) {
		h->cut++;
		if (http_note_due(&h->cut_note, &more))
			log_warn("http_answer_cut", "unsent=%zu more=%u", http_unsent(c), more);
	}
	conn_kill(c);
}

void http_on_taken(struct http_conn *c, void (*fn)(void *arg), void *arg)
{
	c->taken = fn;
	c->taken_arg = arg;
}

void http_on_gone(struct http_conn *c, void (*fn)(void *arg), void *arg)
{
	c->gone = fn;
	c->gone_arg = arg;
}

size_t http_unsent(const struct http_conn *c)
{
	return evbuffer_get_length(bufferevent_get_output(c->bev));
}

/* --- what happens to it -------------------------------------------------- */

/* All written and nothing more to come: close, or (after a refusal) read on for a while. */
static void conn_flushed(struct http_conn *c)
{
	if (c->state != CONN_FLUSHING || http_unsent(c))
		return;
	if (!c->refused) {
		conn_kill(c);
		return;
	}
	c->state = CONN_LINGER;
	c->since_us = clock_us();
	if (!c->not_served)
		conn_waits(c, 1); /* it gives way to others as one without a request does */
	shutdown(bufferevent_getfd(c->bev), SHUT_WR);
}

static void on_closed(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	conn_lost(arg);
}

/* Nothing is read any more when the input is full, so that its end would not be seen. */
static void watch_end(struct http_conn *c)
{
	int full = c->state == CONN_ANSWERING &&
	           evbuffer_get_length(bufferevent_get_input(c->bev)) >= INPUT_MAX;
	if (full && !c->closed)
		c->closed = event_new(c->server->base, bufferevent_getfd(c->bev), EV_CLOSED, on_closed, c);
	if (full && c->closed)
		event_add(c->closed, NULL);
	else if (c->closed)
		event_del(c->closed);
}

static void go_on(struct http_conn *c)
{
	conn_go_on(c);
	conn_flushed(c);
	watch_end(c);
}

static void on_read(struct bufferevent *bev, void *arg)
{
	(void)bev;
	go_on(arg);
}

/* The client has taken all there was: its answer goes on, or a request of its that waited for that,
 * or it may make room for others now. */
static void on_written(struct bufferevent *bev, void *arg)
{
	(void)bev;
	struct http_conn *c = arg;
	conn_count_output(c);
	if (c->taken)
		c->taken(c->taken_arg);
	if (c->state == CONN_READING && c->frame.state == HTTP_FRAME_HEAD)
		conn_waits(c, 1);
	go_on(c);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
	(void)bev;
	struct http_conn *c = arg;
	int waits = c->state == CONN_READING && !http_frame_begun(&c->frame);
	if ((what & BEV_EVENT_EOF) && (waits || c->state == CONN_FLUSHING))
		conn_retire(c);
	else if (what & (BEV_EVENT_EOF | BEV_EVENT_ERROR | BEV_EVENT_TIMEOUT))
		conn_lost(c);
}

static void on_later(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	struct http_conn *c = arg;
	if (c->state == CONN_DEAD)
		conn_free(c);
	else
		go_on(c);
}

void http_tick_on(struct http_server *h)
{
	struct timeval each = {.tv_sec = 0, .tv_usec = TICK_US};
	if (!event_pending(h->tick, EV_TIMEOUT, NULL))
		event_add(h->tick, &each);
}

/* What of it needs memory. The descriptor is its own, also when there is none. */
static struct http_conn *conn_made(struct http_server *h, evutil_socket_t fd)
{
	const uint64_t limit_us = h->opts.write_us;
	struct timeval limit = clock_timeval(limit_us);
	struct http_conn *c = mem_try_array(1, sizeof *c);
	if (!c) {
		evutil_closesocket(fd);
		return NULL;
	}
	c->server = h;
	c->later = event_new(h->base, -1, 0, on_later, c);
	c->bev = c->later ? bufferevent_socket_new(h->base, fd, BEV_OPT_CLOSE_ON_FREE) : NULL;
	if (c->bev) {
		bufferevent_setcb(c->bev, on_read, on_written, on_event, c);
		bufferevent_setwatermark(c->bev, EV_READ, 0, INPUT_MAX);
		if (bufferevent_set_timeouts(c->bev, NULL, &limit) == 0 &&
		    bufferevent_enable(c->bev, EV_READ | EV_WRITE) == 0)
			return c;
		bufferevent_free(c->bev);
	} else {
		evutil_closesocket(fd);
	}
	if (c->later)
		event_free(c->later);
	free(c);
	return NULL;
}

struct http_conn *conn_new(struct http_server *h, evutil_socket_t fd, struct client *client,
                           int not_served)
{
	struct http_conn *c = conn_made(h, fd);
	int one = 1;
	if (!c)
		return NULL;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	c->client = client;
	c->not_served = not_served;
	http_frame_init(&c->frame, h->opts.max_header_bytes);
	c->since_us = clock_us();
	list_init(&c->by_server);
	list_init(&c->by_client);
	list_push_back(&h->conns, &c->node);
	*(not_served ? &h->n_not_served : &h->n_served) += 1;
	*(not_served ? &client->loop.refused : &client->loop.conns) += 1;
	if (!not_served)
		conn_waits(c, 1);
	h->accepted++;
	http_tick_on(h);
	return c;
}

/* --- limits of time ------------------------------------------------------ */

/* Empty lines are no request: who sends nothing else is told nothing. */
static void request_is_late(struct http_conn *c)
{
	if (c->frame.state == HTTP_FRAME_HEAD && !c->frame.text.len)
		conn_retire(c);
	else
		conn_refuse(c, 408,
		            "the request did not arrive within this server's limit (read_timeout_ms)");
}

static void check_limits(struct http_conn *c, uint64_t now)
{
	const struct http_opts *o = &c->server->opts;
	size_t had = c->out_bytes;
	conn_count_output(c);
	if (c->state == CONN_FLUSHING && c->out_bytes < had)
		c->since_us = now;
	uint64_t age = now > c->since_us ? now - c->since_us : 0;
	if (c->taken && !http_unsent(c))
		c->taken(c->taken_arg);
	if (c->state == CONN_READING && http_frame_begun(&c->frame)) {
		if (age > o->read_us)
			request_is_late(c);
	} else if (c->state == CONN_READING) {
		/* with a request there it waits for its client to read: that has its own limit */
		if (age > o->idle_us && !conn_has_begun(c))
			conn_retire(c);
	} else if (c->state == CONN_FLUSHING && age > o->write_us) {
		conn_lost(c); /* libevent has the same limit, unless it found no memory for its event */
	} else if (c->state == CONN_LINGER && age > LINGER_US) {
		conn_lost(c);
	}
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	struct http_server *h = arg;
	uint64_t now = clock_us();
	if (h->paused)
		h->paused = h->listener && evconnlistener_enable(h->listener) < 0;
	list_each_safe(n, next, &h->conns)
		check_limits(list_entry(n, struct http_conn, node), now);
	if (list_empty(&h->conns) && !h->paused) /* until somebody comes */
		event_del(h->tick);
}

/* --- the server ---------------------------------------------------------- */

int http_new(struct event_base *base, const struct http_opts *opts,
             const struct http_handlers *handlers, void *arg, struct http_server **ret_h,
             struct err *err)
{
	size_t request = opts->max_header_bytes + opts->max_body_bytes;
	if (opts->in_bytes_max / 2 < request)
		return err_set(err, ERR_INVALID,
		               "input_bytes_max = %zu is less than a request needs, twice "
		               "max_header_bytes + max_body_bytes = %zu: raise it, or lower these",
		               opts->in_bytes_max, 2 * request);
	struct http_server *h = mem_zalloc(sizeof *h);
	h->base = base;
	h->opts = *opts;
	h->handlers = *handlers;
	h->arg = arg;
	list_init(&h->conns);
	list_init(&h->waiting);
	int r = http_listen(h, err);
	if (r < 0) {
		free(h);
		return r;
	}
	h->clients = clients_new(opts->in_bytes_max);
	h->tick = event_new(base, -1, EV_PERSIST, on_tick, h);
	*ret_h = h;
	return 0;
}

void http_destroy(struct http_server **hp)
{
	struct http_server *h = *hp;
	if (!h)
		return;
	list_each_safe(n, next, &h->conns)
		conn_free(list_entry(n, struct http_conn, node));
	if (h->listener)
		evconnlistener_free(h->listener);
	event_free(h->tick);
	clients_destroy(&h->clients);
	free(h);
	*hp = NULL;
}

void http_drain(struct http_server *h)
{
	h->stopping = 1;
	http_listen_end(h);
	list_each_safe(n, next, &h->conns) {
		struct http_conn *c = list_entry(n, struct http_conn, node);
		if (c->state == CONN_READING && conn_has_begun(c))
			conn_refuse(c, 503, "this server is shutting down");
	}
}

int http_busy(const struct http_server *h)
{
	list_each(n, &h->conns) {
		const struct http_conn *c = list_entry(n, struct http_conn, node);
		if (c->state != CONN_DEAD && (http_unsent(c) || c->state == CONN_LINGER ||
		                              (c->state == CONN_READING && conn_has_begun(c))))
			return 1;
	}
	return 0;
}

unsigned http_port(const struct http_server *h)
{
	return h->port;
}

unsigned http_connections(const struct http_server *h)
{
	return h->n_served + h->n_not_served;
}

void http_counts(const struct http_server *h, struct http_counts *ret)
{
	*ret = (struct http_counts){.accepted = h->accepted,
	                            .refused = h->refused,
	                            .closed_waiting = h->closed_waiting,
	                            .cut = h->cut,
	                            .connections = http_connections(h),
	                            .in_bytes = clients_bytes(h->clients),
	                            .out_bytes = h->out_bytes};
}
