/* client.c - see client.h. Uses non-blocking sockets and libevent: one recv(2) for all that has
 * arrived, parsed in place. */
#include "client.h"

#include "reply.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/mem.h"

#include <errno.h>
#include <event2/event_struct.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READ_BYTES 65536

/* A connection, and the call on it, if any. */
struct call {
	struct bench_client *client;
	struct list node;        /* in client->idle while there is no call */
	int fd;                  /* -1: not connected */
	int in_use, used_before; /* used_before: this connection has already served an answer */
	int writing;             /* 1: wr is added */
	struct event rd, wr, later;
	struct reply reply;
	struct buf out; /* kept until the answer starts, in case of a second try */
	size_t sent;
	int answered; /* 1: at least one byte of the answer has arrived */
	const struct call_hooks *hooks;
	void *arg;
	struct err why; /* cause of a failure that is reported later */
};

struct bench_client {
	struct event_base *base;
	struct url url;
	int fresh;
	struct list idle;
	struct client_stats stats;
	uint64_t now_us;
	char in[READ_BYTES];
};

static void on_readable(evutil_socket_t fd, short what, void *arg);
static void on_writable(evutil_socket_t fd, short what, void *arg);
static void on_later(evutil_socket_t fd, short what, void *arg);

struct bench_client *client_new(struct event_base *base, const struct url *url,
                                int fresh_connections)
{
	struct bench_client *c = mem_zalloc(sizeof *c);
	c->base = base;
	c->url = *url;
	c->fresh = fresh_connections;
	list_init(&c->idle);
	return c;
}

static void hang_up(struct call *x)
{
	if (x->fd < 0)
		return;
	event_del(&x->rd);
	if (x->writing)
		event_del(&x->wr);
	x->writing = 0;
	close(x->fd);
	x->fd = -1;
}

static void call_free(struct call *x)
{
	hang_up(x);
	event_del(&x->later);
	list_remove(&x->node);
	buf_fini(&x->out);
	free(x);
}

void client_destroy(struct bench_client **pc)
{
	struct bench_client *c = *pc;
	if (!c)
		return;
	list_each_safe(it, nx, &c->idle)
		call_free(list_entry(it, struct call, node));
	free(c);
	*pc = NULL;
}

const struct client_stats *client_stats(const struct bench_client *c)
{
	return &c->stats;
}

/* --- the end of a call --------------------------------------------------- */

static void end_call(struct call *x, const struct err *given)
{
	struct bench_client *c = x->client;
	/* `given` may be x->why, and x may be freed below */
	struct err why = given ? *given : (struct err){0};
	int status = x->reply.status,
		keep = !given && x->reply.keep_alive && !c->fresh && x->fd >= 0 && x->sent == x->out.len;
	const struct call_hooks *hooks = x->hooks;
	void *arg = x->arg;
	x->in_use = 0;
	if (keep) {
		x->used_before = 1;
		list_push_front(&c->idle, &x->node);
	} else {
		call_free(x);
	}
	hooks->end(arg, status, given ? &why : NULL, c->now_us);
}

/* Reports the failure from the loop, so that client_call never calls the end hook itself. */
static void fail_later(struct call *x)
{
	struct timeval now = {0};
	hang_up(x);
	event_add(&x->later, &now);
}

static void on_later(evutil_socket_t fd, short what, void *arg)
{
	struct call *x = arg;
	(void)fd;
	(void)what;
	x->client->now_us = clock_us();
	end_call(x, &x->why);
}

void call_drop(struct call *x)
{
	call_free(x);
}

/* --- sending ------------------------------------------------------------- */

static int dial(struct call *x)
{
	const struct url *u = &x->client->url;
	int one = 1;
	x->fd = socket(u->addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (x->fd < 0)
		return err_set(&x->why, ERR_IO, "cannot create a socket: %s", strerror(errno));
	setsockopt(x->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	if (connect(x->fd, (const struct sockaddr *)&u->addr, u->addr_len) < 0 &&
	    errno != EINPROGRESS) {
		int e = errno;
		close(x->fd);
		x->fd = -1;
		return err_set(&x->why, ERR_IO, "cannot connect to %s: %s", u->authority, strerror(e));
	}
	x->used_before = 0;
	x->client->stats.connections++;
	event_assign(&x->rd, x->client->base, x->fd, EV_READ | EV_PERSIST, on_readable, x);
	event_assign(&x->wr, x->client->base, x->fd, EV_WRITE | EV_PERSIST, on_writable, x);
	event_add(&x->rd, NULL);
	return 0;
}

/* Sends what the socket accepts. Returns 0, or ERR_IO with x->why: the connection is unusable. */
static int push(struct call *x)
{
	while (x->sent < x->out.len) {
		ssize_t k = send(x->fd, x->out.data + x->sent, x->out.len - x->sent, MSG_NOSIGNAL);
		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOTCONN))
			break;
		if (k < 0)
			return err_set(&x->why, ERR_IO, "cannot %s %s: %s",
			               x->sent || x->used_before ? "send to" : "connect to",
			               x->client->url.authority, strerror(errno));
		x->sent += (size_t)k;
	}
	int want = x->sent < x->out.len;
	if (want && !x->writing)
		event_add(&x->wr, NULL);
	else if (!want && x->writing)
		event_del(&x->wr);
	x->writing = want;
	return 0;
}

/* If a kept connection turns out to be dead before the answer started, sends the call again on a
 * new one. Returns 1 if the call goes on. */
static int second_try(struct call *x)
{
	if (!x->used_before || x->answered)
		return 0;
	hang_up(x);
	x->sent = 0;
	reply_init(&x->reply);
	return dial(x) == 0 && push(x) == 0;
}

static void connection_lost(struct call *x)
{
	if (!second_try(x))
		end_call(x, &x->why);
}

struct call *client_call(struct bench_client *c, struct buf *request,
                         const struct call_hooks *hooks, void *arg)
{
	struct call *x = list_empty(&c->idle) ? NULL : list_entry(c->idle.next, struct call, node);
	int bad = 0;
	if (!x) {
		x = mem_zalloc(sizeof *x);
		x->client = c;
		x->fd = -1;
		list_init(&x->node);
		evtimer_assign(&x->later, c->base, on_later, x);
	}
	list_remove(&x->node);
	buf_fini(&x->out);
	x->out = *request;
	buf_init(request, request->limit);
	x->sent = 0;
	x->answered = 0;
	x->in_use = 1;
	x->hooks = hooks;
	x->arg = arg;
	reply_init(&x->reply);
	if (x->fd < 0)
		bad = dial(x) < 0;
	if (!bad && push(x) < 0)
		bad = !second_try(x);
	if (bad)
		fail_later(x);
	return x;
}

/* --- receiving ----------------------------------------------------------- */

static int on_body(void *arg, const char *data, size_t n)
{
	struct call *x = arg;
	return x->hooks->body(x->arg, x->reply.status, data, n, x->client->now_us);
}

static void on_bytes(struct call *x, size_t n)
{
	struct bench_client *c = x->client;
	size_t used;
	c->stats.bytes_in += n;
	if (!x->answered && x->sent == x->out.len) { /* there will be no second try */
		buf_fini(&x->out);
		x->sent = 0;
	}
	x->answered = 1;
	int code = reply_feed(&x->reply, c->in, n, on_body, x, &used, &x->why);
	if (code == 0)
		return;
	if (code < 0) {
		end_call(x, &x->why);
		return;
	}
	if (used < n)
		/* unexpected bytes after the answer: do not reuse the connection */
		x->reply.keep_alive = 0;
	end_call(x, NULL);
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
	struct call *x = arg;
	ssize_t k = recv(fd, x->client->in, READ_BYTES, 0);
	int e = errno;
	(void)what;
	if (k < 0 && (e == EAGAIN || e == EWOULDBLOCK || e == EINTR))
		return;
	x->client->now_us = clock_us();
	if (!x->in_use) { /* idle: closed by the server, or unsolicited bytes */
		call_free(x);
		return;
	}
	if (k > 0) {
		on_bytes(x, (size_t)k);
		return;
	}
	if (k == 0) {
		if (reply_eof(&x->reply, &x->why) == 1) {
			x->reply.keep_alive = 0;
			end_call(x, NULL);
			return;
		}
	} else {
		err_set(&x->why, ERR_IO,
		        x->sent || x->used_before ? "the connection to %s broke: %s"
		                                  : "cannot connect to %s: %s",
		        x->client->url.authority, strerror(e));
	}
	connection_lost(x);
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
	struct call *x = arg;
	(void)fd;
	(void)what;
	if (push(x) < 0) {
		x->client->now_us = clock_us();
		connection_lost(x);
	}
}
