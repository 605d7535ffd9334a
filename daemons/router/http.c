/* http.c - see http.h: one connection's life, from accept to the last byte.
 *
 * What always holds: reading stays enabled while a request is being answered, so that a client that leaves is noticed at once, in every
 * phase; what it sends meanwhile waits in the input buffer, which is bounded by one head plus one body. A client that does not take its answers is
 * asked for no further request, so that pipelining fills no memory and does not keep the loop from the others. A half-closed client counts as gone. A
 * connection is freed from the loop alone (conn_free by an event of its own or by the tick), never under a function that its owner called.
 * Whatever a client sends costs at most its own connection. */
#include "http.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/log.h"
#include "util/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TICK_US 500000u
#define UNREAD_MAX 65536u    /* bytes of earlier answers that a client has not taken: its next request waits */
#define LINGER_US 3000000u   /* after a refused request: what its client still sends is read and dropped, so that it sees the answer */

enum conn_state {
	CONN_HEAD,        /* between requests, or in the middle of a head */
	CONN_BODY,
	CONN_CHUNK_SIZE,
	CONN_CHUNK_DATA,
	CONN_TRAILER,
	CONN_ANSWERING,   /* the handler has it */
	CONN_FLUSHING,    /* the last answer is on its way out, then linger */
	CONN_LINGER,
	CONN_DEAD         /* to be freed by its event */
};

struct http_conn {
	struct list node;
	struct http_server *server;
	struct bufferevent *bev;
	struct event *later;      /* goes on reading, or frees, outside of everybody's stack */
	enum conn_state state;
	int handling;             /* the handler runs right now */
	int streaming, keep_alive, refused;
	uint64_t since_us;        /* of the present state's limit */
	char *head_text;
	struct http_head head;
	struct evbuffer *body;
	uint64_t chunk_left;
	size_t scanned;           /* bytes of the input in which no end of head was found */
	size_t trailer;           /* bytes of the trailer so far */
	void (*gone)(void *arg);
	void *gone_arg;
	void (*taken)(void *arg);
	void *taken_arg;
};

struct http_server {
	struct event_base *base;
	struct http_opts opts;
	http_handler *handler;
	void *arg;
	struct evconnlistener *listener;
	struct event *tick;
	struct list conns;
	unsigned n_conns, port;
	uint64_t accepted;
	int stopping, paused;
};

static void conn_free(struct http_conn *c)
{
	list_remove(&c->node);
	c->server->n_conns--;
	event_free(c->later);
	bufferevent_free(c->bev);
	evbuffer_free(c->body);
	free(c->head_text);
	free(c);
}

static void conn_kill(struct http_conn *c)
{
	c->gone = NULL;
	c->taken = NULL;
	c->state = CONN_DEAD;
	bufferevent_disable(c->bev, EV_READ | EV_WRITE);
	event_active(c->later, EV_TIMEOUT, 0);
}

/* The client is away: its owner is told once, then nothing of it is used again. */
static void conn_lost(struct http_conn *c)
{
	void (*gone)(void *) = c->gone;
	void *arg = c->gone_arg;
	if (c->state == CONN_DEAD)
		return;
	conn_kill(c);
	if (gone)
		gone(arg);
}

static const char *reason(int status)
{
	static const struct {
		int status;
		const char *text;
	} known[] = {
		{200, "OK"}, {400, "Bad Request"}, {401, "Unauthorized"}, {404, "Not Found"}, {405, "Method Not Allowed"}, {408, "Request Timeout"},
		{413, "Content Too Large"}, {429, "Too Many Requests"}, {431, "Request Header Fields Too Large"}, {500, "Internal Server Error"},
		{501, "Not Implemented"}, {503, "Service Unavailable"}, {504, "Gateway Timeout"}, {505, "HTTP Version Not Supported"},
	};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (known[i].status == status)
			return known[i].text;
	return "Status";
}

/* The answer is complete: next request, or flush and close. */
static void conn_answered(struct http_conn *c)
{
	c->gone = NULL;
	c->taken = NULL;
	c->streaming = 0;
	c->since_us = clock_us();
	evbuffer_drain(c->body, evbuffer_get_length(c->body));
	free(c->head_text);
	c->head_text = NULL;
	if (!c->keep_alive || c->server->stopping) {
		c->state = CONN_FLUSHING;
		return;
	}
	c->state = CONN_HEAD;
	c->scanned = 0;
	if (!c->handling && evbuffer_get_length(bufferevent_get_input(c->bev)))
		event_active(c->later, EV_TIMEOUT, 0);   /* a request that came in behind the answered one */
}

/* "Date: ...\r\n", made once a second. */
static const char *date_header(void)
{
	static char text[64];
	static time_t made;
	time_t now = time(NULL);
	struct tm tm;
	if (now != made && gmtime_r(&now, &tm)) {
		strftime(text, sizeof text, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &tm);
		made = now;
	}
	return text;
}

static void write_head(struct http_conn *c, int status, const char *type, const char *extra)
{
	struct evbuffer *out = bufferevent_get_output(c->bev);
	if (c->server->stopping)
		c->keep_alive = 0;
	evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\n%sContent-Type: %s\r\n%s%s", status, reason(status), date_header(), type,
	                    extra ? extra : "", c->keep_alive ? "" : "Connection: close\r\n");
	if (c->keep_alive && c->head.minor == 0)
		evbuffer_add_printf(out, "Connection: keep-alive\r\n");
}

void http_reply(struct http_conn *c, int status, const char *type, const char *extra, const void *body, size_t len)
{
	if (c->state == CONN_DEAD)
		return;
	CHECK(c->state == CONN_ANSWERING && !c->streaming);
	struct evbuffer *out = bufferevent_get_output(c->bev);
	write_head(c, status, type, extra);
	int r = evbuffer_add_printf(out, "Content-Length: %zu\r\n\r\n", len);
	if (r >= 0 && strcmp(c->head.method ? c->head.method : "", "HEAD") != 0)
		r = evbuffer_add(out, body, len);
	if (r < 0)
		conn_kill(c);     /* no memory: better no answer than half of one */
	else
		conn_answered(c);
}

void http_stream_begin(struct http_conn *c, const char *type, const char *extra)
{
	if (c->state == CONN_DEAD)
		return;
	CHECK(c->state == CONN_ANSWERING && !c->streaming);
	c->streaming = 1;
	if (c->head.minor == 0)
		c->keep_alive = 0;
	write_head(c, 200, type, extra);
	evbuffer_add_printf(bufferevent_get_output(c->bev), "%sCache-Control: no-cache\r\n\r\n",
	                    c->head.minor ? "Transfer-Encoding: chunked\r\n" : "");
}

int http_stream_add(struct http_conn *c, const void *data, size_t n)
{
	if (c->state == CONN_DEAD || n == 0)
		return 0;
	CHECK(c->streaming);
	struct evbuffer *out = bufferevent_get_output(c->bev);
	if (evbuffer_get_length(out) + n > c->server->opts.out_bytes_max)
		return ERR_FULL;
	if (c->head.minor == 0)
		return evbuffer_add(out, data, n);
	char size[24];
	int k = snprintf(size, sizeof size, "%zx\r\n", n);
	if (evbuffer_expand(out, n + 32) < 0)     /* nothing below fails then: all of a chunk, or nothing */
		return ERR_FULL;
	evbuffer_add(out, size, (size_t)k);
	evbuffer_add(out, data, n);
	return evbuffer_add(out, "\r\n", 2);
}

void http_stream_end(struct http_conn *c)
{
	if (c->state == CONN_DEAD)
		return;
	CHECK(c->streaming);
	if (c->head.minor)
		evbuffer_add(bufferevent_get_output(c->bev), "0\r\n\r\n", 5);
	conn_answered(c);
}

void http_on_taken(struct http_conn *c, void (*fn)(void *arg), void *arg)
{
	c->taken = fn;
	c->taken_arg = arg;
}

void http_drop(struct http_conn *c)
{
	if (c->state != CONN_DEAD)
		conn_kill(c);
}

void http_on_gone(struct http_conn *c, void (*fn)(void *arg), void *arg)
{
	c->gone = fn;
	c->gone_arg = arg;
}

/* An error of the edge itself: answered, and the connection ends, because where the next request begins is no longer known. */
static void conn_refuse(struct http_conn *c, int status, const char *text)
{
	char body[1024];
	size_t (*format)(int, const char *, char *, size_t) = c->server->opts.error_body;
	size_t n = format ? format(status, text, body, sizeof body) : (size_t)snprintf(body, sizeof body, "%s\n", text);
	log_info("http_refused", "status=%d why=%s", status, log_quote(text));
	c->keep_alive = 0;
	c->refused = 1;
	if (!c->head_text)
		memset(&c->head, 0, sizeof c->head);
	c->state = CONN_ANSWERING;
	http_reply(c, status, format ? "application/json" : "text/plain", status == 503 ? "Retry-After: 1\r\n" : NULL, body, n);
}

static void conn_hand_over(struct http_conn *c)
{
	struct http_request q = {.head = &c->head, .body_len = evbuffer_get_length(c->body)};
	q.body = mem_try_alloc(q.body_len + 1);
	if (!q.body) {
		conn_refuse(c, 503, "this server has no memory for the request's body now");
		return;
	}
	evbuffer_remove(c->body, q.body, q.body_len);
	q.body[q.body_len] = 0;
	c->state = CONN_ANSWERING;
	c->keep_alive = c->head.keep_alive;
	c->handling = 1;
	c->server->handler(c->server->arg, c, &q);
	c->handling = 0;
	free(q.body);
}

size_t http_unsent(const struct http_conn *c)
{
	return evbuffer_get_length(bufferevent_get_output(c->bev));
}

/* Empty lines before a request are allowed, and are no begin of one, however they come. 1: there is more than that. */
static int skip_empty_lines(struct http_conn *c, struct evbuffer *in)
{
	char two[2];
	int n = 2;
	if (c->scanned)
		return 1;
	while ((n = (int)evbuffer_copyout(in, two, 2)) == 2 && two[0] == '\r' && two[1] == '\n')
		evbuffer_drain(in, 2);
	return n > 1 || (n == 1 && two[0] != '\r');
}

/* Each step returns 1 if it got on, 0 if it needs more bytes or is done. */
static int step_head(struct http_conn *c, struct evbuffer *in)
{
	size_t limit = c->server->opts.max_header_bytes;
	if (http_unsent(c) >= UNREAD_MAX || !skip_empty_lines(c, in))
		return 0;
	if (c->scanned == 0)
		c->since_us = clock_us();
	size_t have = evbuffer_get_length(in);
	struct evbuffer_ptr from, end;
	evbuffer_ptr_set(in, &from, c->scanned > 3 ? c->scanned - 3 : 0, EVBUFFER_PTR_SET);
	end = evbuffer_search(in, "\r\n\r\n", 4, &from);
	if (end.pos < 0 || (size_t)end.pos + 4 > limit) {
		c->scanned = have;
		if (end.pos >= 0 || have > limit)
			conn_refuse(c, 431, "the request's head is longer than this server's limit (max_header_bytes)");
		return 0;
	}
	size_t len = (size_t)end.pos + 4;
	c->scanned = 0;
	c->head_text = mem_try_alloc(len + 1);
	if (!c->head_text) {
		conn_refuse(c, 503, "this server has no memory for the request's head now");
		return 0;
	}
	evbuffer_remove(in, c->head_text, len);
	c->head_text[len] = 0;
	const char *why = "";
	int status = http_parse_head(c->head_text, len, &c->head, &why);
	if (status) {
		free(c->head_text);
		c->head_text = NULL;
		conn_refuse(c, status, why);
		return 0;
	}
	if (c->head.content_length > c->server->opts.max_body_bytes) {
		conn_refuse(c, 413, "the request's body is longer than this server's limit (max_body_bytes)");
		return 0;
	}
	if (c->head.expect_continue && (c->head.chunked || c->head.content_length))
		evbuffer_add(bufferevent_get_output(c->bev), "HTTP/1.1 100 Continue\r\n\r\n", 25);
	c->state = c->head.chunked ? CONN_CHUNK_SIZE : CONN_BODY;
	c->trailer = 0;
	return 1;
}

static int step_body(struct http_conn *c, struct evbuffer *in)
{
	if (evbuffer_get_length(in) < c->head.content_length)
		return 0;
	evbuffer_remove_buffer(in, c->body, c->head.content_length);
	conn_hand_over(c);
	return 1;
}

/* The next line of at most 4 KB into line; its length, or -1 when it is not there yet or was refused. */
static int take_line(struct http_conn *c, struct evbuffer *in, char *line, size_t size)
{
	size_t eol;
	struct evbuffer_ptr p = evbuffer_search_eol(in, NULL, &eol, EVBUFFER_EOL_CRLF_STRICT);
	if (p.pos < 0 ? evbuffer_get_length(in) > size : (size_t)p.pos > size) {
		conn_refuse(c, 400, "a line between chunks is too long");
		return -1;
	}
	if (p.pos < 0)
		return -1;
	evbuffer_remove(in, line, (size_t)p.pos);
	evbuffer_drain(in, 2);
	return (int)p.pos;
}

static int step_chunk_size(struct http_conn *c, struct evbuffer *in)
{
	char line[1024];
	int n = take_line(c, in, line, sizeof line);
	if (n < 0)
		return 0;
	if (http_parse_chunk_size(line, (size_t)n, &c->chunk_left) < 0) {
		conn_refuse(c, 400, "a chunk's size is not a hexadecimal number");
		return 0;
	}
	if (c->chunk_left > c->server->opts.max_body_bytes - evbuffer_get_length(c->body)) {
		conn_refuse(c, 413, "the request's body is longer than this server's limit (max_body_bytes)");
		return 0;
	}
	c->state = c->chunk_left ? CONN_CHUNK_DATA : CONN_TRAILER;
	return 1;
}

static int step_chunk_data(struct http_conn *c, struct evbuffer *in)
{
	if (c->chunk_left) {
		int n = evbuffer_remove_buffer(in, c->body, c->chunk_left);
		c->chunk_left -= n > 0 ? (uint64_t)n : 0;
	}
	char two[2];
	if (c->chunk_left || evbuffer_copyout(in, two, 2) < 2)
		return 0;
	if (two[0] != '\r' || two[1] != '\n') {
		conn_refuse(c, 400, "a chunk does not end in CR LF");
		return 0;
	}
	evbuffer_drain(in, 2);
	c->state = CONN_CHUNK_SIZE;
	return 1;
}

static int step_trailer(struct http_conn *c, struct evbuffer *in)
{
	char line[1024];
	int n = take_line(c, in, line, sizeof line);
	if (n < 0)
		return 0;
	c->trailer += (size_t)n + 2;
	if (c->trailer > c->server->opts.max_header_bytes) {
		conn_refuse(c, 431, "the request's trailer is longer than this server's limit (max_header_bytes)");
		return 0;
	}
	if (n == 0)
		conn_hand_over(c);
	return 1;
}

static int conn_step(struct http_conn *c)
{
	struct evbuffer *in = bufferevent_get_input(c->bev);
	switch (c->state) {
	case CONN_HEAD:
		return evbuffer_get_length(in) ? step_head(c, in) : 0;
	case CONN_BODY:
		return step_body(c, in);
	case CONN_CHUNK_SIZE:
		return step_chunk_size(c, in);
	case CONN_CHUNK_DATA:
		return step_chunk_data(c, in);
	case CONN_TRAILER:
		return step_trailer(c, in);
	case CONN_FLUSHING:
	case CONN_LINGER:
		evbuffer_drain(in, evbuffer_get_length(in));
		return 0;
	case CONN_ANSWERING:
	case CONN_DEAD:
		return 0;
	}
	return 0;
}

/* All written and nothing more to come: close, or (after a refusal) read on for a while so that the client sees the answer. */
static void conn_flushed(struct http_conn *c)
{
	if (c->state != CONN_FLUSHING || evbuffer_get_length(bufferevent_get_output(c->bev)))
		return;
	if (!c->refused) {
		conn_kill(c);
		return;
	}
	c->state = CONN_LINGER;
	c->since_us = clock_us();
	shutdown(bufferevent_getfd(c->bev), SHUT_WR);
}

static void conn_go_on(struct http_conn *c)
{
	while (conn_step(c))
		;
	conn_flushed(c);
}

static void on_read(struct bufferevent *bev, void *arg)
{
	(void)bev;
	conn_go_on(arg);
}

/* The client has taken all there was: its answer goes on, or a request of its that waited for that. */
static void on_written(struct bufferevent *bev, void *arg)
{
	struct http_conn *c = arg;
	(void)bev;
	if (c->taken)
		c->taken(c->taken_arg);
	conn_go_on(c);
}

/* No further request on this connection; what is answered already still goes out. */
static void conn_retire(struct http_conn *c)
{
	if (evbuffer_get_length(bufferevent_get_output(c->bev)) == 0) {
		conn_lost(c);
		return;
	}
	c->state = CONN_FLUSHING;
	bufferevent_disable(c->bev, EV_READ);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
	(void)bev;
	struct http_conn *c = arg;
	if ((what & BEV_EVENT_EOF) && (c->state == CONN_HEAD || c->state == CONN_FLUSHING))
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
		conn_go_on(c);
}

/* Limits are looked at while there is somebody whom they limit, so that an idle server sleeps. */
static void tick_on(struct http_server *h)
{
	struct timeval each = {.tv_sec = 0, .tv_usec = TICK_US};
	if (!event_pending(h->tick, EV_TIMEOUT, NULL))
		event_add(h->tick, &each);
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *addr, int len, void *arg)
{
	(void)l;
	(void)addr;
	(void)len;
	struct http_server *h = arg;
	int one = 1;
	if (h->n_conns >= h->opts.max_connections + h->opts.max_connections / 8 + 16) {
		evutil_closesocket(fd);   /* so many are being told that there are too many: descriptors are left for workers */
		return;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	struct http_conn *c = mem_zalloc(sizeof *c);
	c->server = h;
	c->bev = bufferevent_socket_new(h->base, fd, BEV_OPT_CLOSE_ON_FREE);
	c->later = event_new(h->base, -1, 0, on_later, c);
	c->body = evbuffer_new();
	if (!c->bev || !c->later || !c->body)
		check_fatal("out of memory while accepting a connection: lower max_connections");
	c->since_us = clock_us();
	list_push_back(&h->conns, &c->node);
	tick_on(h);
	h->n_conns++;
	h->accepted++;
	struct timeval write_limit = {.tv_sec = (time_t)(h->opts.write_us / 1000000), .tv_usec = (suseconds_t)(h->opts.write_us % 1000000)};
	bufferevent_setcb(c->bev, on_read, on_written, on_event, c);
	bufferevent_set_timeouts(c->bev, NULL, &write_limit);
	bufferevent_setwatermark(c->bev, EV_READ, 0, h->opts.max_header_bytes + h->opts.max_body_bytes + 4096);
	bufferevent_enable(c->bev, EV_READ | EV_WRITE);
	if (h->n_conns > h->opts.max_connections)
		conn_refuse(c, 503, "too many connections (max_connections); try again in a second");
}

static void on_accept_error(struct evconnlistener *l, void *arg)
{
	struct http_server *h = arg;
	evconnlistener_disable(l);   /* out of descriptors: trying again at once would spin; the tick tries again */
	h->paused = 1;
	tick_on(h);
	log_warn("http_accept_failed", "why=%s", log_quote(evutil_socket_error_to_string(EVUTIL_SOCKET_ERROR())));
}

static void check_limits(struct http_conn *c, uint64_t now)
{
	const struct http_opts *o = &c->server->opts;
	uint64_t age = now > c->since_us ? now - c->since_us : 0;
	int begun = c->state != CONN_HEAD || evbuffer_get_length(bufferevent_get_input(c->bev));
	if (c->state == CONN_HEAD && !begun) {
		if (age > o->idle_us)
			conn_retire(c);
	} else if (c->state < CONN_ANSWERING) {
		int waits = c->state == CONN_HEAD && c->scanned == 0 && http_unsent(c);   /* for its client to read: the limit on writing ends that */
		if (age > o->read_us && !waits)
			conn_refuse(c, 408, "the request did not arrive within this server's limit (read_timeout_ms)");
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
	if (h->paused && h->listener)
		evconnlistener_enable(h->listener);
	h->paused = 0;
	list_each_safe(n, next, &h->conns)
		check_limits(list_entry(n, struct http_conn, node), now);
	if (list_empty(&h->conns))   /* until somebody comes */
		event_del(h->tick);
}

/* "host:port", "[v6]:port", ":port" */
static int split_listen(const char *s, char *host, size_t host_size, char *port, size_t port_size, struct err *err)
{
	const char *colon = strrchr(s, ':');
	if (!colon || !colon[1] || strlen(colon + 1) >= port_size)
		return err_set(err, ERR_INVALID, "http_listen \"%s\" is not HOST:PORT", s);
	size_t n = (size_t)(colon - s);
	if (n >= 2 && s[0] == '[' && s[n - 1] == ']') {
		s++;
		n -= 2;
	}
	if (n >= host_size)
		return err_set(err, ERR_INVALID, "http_listen: the host's name is longer than %zu bytes", host_size - 1);
	memcpy(host, s, n);
	host[n] = 0;
	memcpy(port, colon + 1, strlen(colon + 1) + 1);
	return 0;
}

static int listen_on(struct http_server *h, struct err *err)
{
	char host[256], port[16];
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_ADDRCONFIG}, *found = NULL;
	if (split_listen(h->opts.listen, host, sizeof host, port, sizeof port, err) < 0)
		return ERR_INVALID;
	int r = getaddrinfo(*host ? host : NULL, port, &hints, &found);
	if (r)
		return err_set(err, ERR_INVALID, "http_listen \"%s\": %s", h->opts.listen, gai_strerror(r));
	h->listener = evconnlistener_new_bind(h->base, on_accept, h, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE, 1024,
	                                      found->ai_addr, (int)found->ai_addrlen);
	int cause = errno;
	freeaddrinfo(found);
	if (!h->listener)
		return err_set(err, ERR_IO, "cannot listen on http_listen \"%s\": %s%s", h->opts.listen, strerror(cause),
		               cause == EADDRINUSE ? "; stop what uses the port, or choose another" : "");
	evconnlistener_set_error_cb(h->listener, on_accept_error);
	struct sockaddr_storage a;
	socklen_t len = sizeof a;
	if (getsockname(evconnlistener_get_fd(h->listener), (struct sockaddr *)&a, &len) == 0)
		h->port = ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port);
	return 0;
}

int http_new(struct event_base *base, const struct http_opts *opts, http_handler *handler, void *arg, struct http_server **ret_h, struct err *err)
{
	struct http_server *h = mem_zalloc(sizeof *h);
	h->base = base;
	h->opts = *opts;
	h->handler = handler;
	h->arg = arg;
	list_init(&h->conns);
	int r = listen_on(h, err);
	if (r < 0) {
		free(h);
		return r;
	}
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
	free(h);
	*hp = NULL;
}

void http_stop_accepting(struct http_server *h)
{
	h->stopping = 1;
	if (h->listener)
		evconnlistener_free(h->listener);
	h->listener = NULL;
	list_each_safe(n, next, &h->conns) {
		struct http_conn *c = list_entry(n, struct http_conn, node);
		if (c->state == CONN_HEAD && !evbuffer_get_length(bufferevent_get_input(c->bev)))
			conn_retire(c);
	}
}

unsigned http_port(const struct http_server *h)
{
	return h->port;
}

unsigned http_connections(const struct http_server *h)
{
	return h->n_conns;
}

int http_has_unsent(const struct http_server *h)
{
	list_each(n, &h->conns) {
		const struct http_conn *c = list_entry(n, struct http_conn, node);
		if (c->state != CONN_DEAD && http_unsent(c))
			return 1;
	}
	return 0;
}

uint64_t http_accepted(const struct http_server *h)
{
	return h->accepted;
}
