/* client.c - see client.h. Uses non-blocking sockets and libevent: one recv(2) for all that has
 * arrived, or one record of TLS, parsed in place. The time of bytes is taken when they are here and
 * deciphered. A record is never longer than the room for it, so OpenSSL holds none back, and the
 * socket announces the next one. */
#include "client.h"

#include "reply.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/mem.h"

#include <errno.h>
#include <event2/event_struct.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READ_BYTES 65536

/* A connection, and the call on it, if any. */
struct call {
	struct bench_client *client;
	struct list node;        /* in client->idle while there is no call */
	int fd;                  /* -1: not connected */
	SSL *ssl;                /* NULL: plain HTTP */
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
	SSL_CTX *tls; /* NULL: plain HTTP */
	int fresh;
	struct list idle;
	struct client_stats stats;
	uint64_t now_us;
	char in[READ_BYTES];
};

static void on_readable(evutil_socket_t fd, short what, void *arg);
static void on_writable(evutil_socket_t fd, short what, void *arg);
static void on_later(evutil_socket_t fd, short what, void *arg);

struct bench_client *client_new(struct event_base *base, const struct url *url, SSL_CTX *tls,
                                int fresh_connections)
{
	struct bench_client *c = mem_zalloc(sizeof *c);
	c->base = base;
	c->url = *url;
	c->tls = url->tls ? tls : NULL;
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
	SSL_free(x->ssl);
	x->ssl = NULL;
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

/* --- bytes --------------------------------------------------------------- */

int client_tls(const char *cacert, int insecure, SSL_CTX **ret, struct err *err)
{
	SSL_CTX *c = SSL_CTX_new(TLS_client_method());
	CHECK(c);
	SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
	/* HTTP knows by itself where an answer ends */
	SSL_CTX_set_options(c, SSL_OP_IGNORE_UNEXPECTED_EOF);
	SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE);
	SSL_CTX_set_verify(c, insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
	if (cacert ? SSL_CTX_load_verify_file(c, cacert) : SSL_CTX_set_default_verify_paths(c)) {
		*ret = c;
		return 0;
	}
	SSL_CTX_free(c);
	return err_set(err, ERR_INVALID, "--cacert %s: no certificates can be read from it", cacert);
}

static void begin_tls(struct call *x)
{
	const char *host = x->client->url.host;
	x->ssl = SSL_new(x->client->tls);
	CHECK(x->ssl && SSL_set_fd(x->ssl, x->fd) == 1);
	SSL_set_connect_state(x->ssl);
	if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(x->ssl), host) != 1) {
		SSL_set1_host(x->ssl, host);
		SSL_set_tlsext_host_name(x->ssl, host);
	}
}

/* As of recv and send: what SSL_read and SSL_write have returned. errno is EPROTO for an error of
 * TLS. */
static ssize_t tls_result(const struct call *x, int k)
{
	if (k > 0)
		return k;
	switch (SSL_get_error(x->ssl, k)) {
	case SSL_ERROR_ZERO_RETURN: return 0;
	case SSL_ERROR_WANT_READ:
	case SSL_ERROR_WANT_WRITE: errno = EAGAIN; return -1;
	case SSL_ERROR_SYSCALL: return errno ? -1 : 0;
	default: errno = EPROTO; return -1;
	}
}

static ssize_t receive(struct call *x)
{
	if (!x->ssl)
		return recv(x->fd, x->client->in, READ_BYTES, 0);
	ERR_clear_error();
	errno = 0;
	return tls_result(x, SSL_read(x->ssl, x->client->in, READ_BYTES));
}

static ssize_t transmit(struct call *x, const char *data, size_t n)
{
	if (!x->ssl)
		return send(x->fd, data, n, MSG_NOSIGNAL);
	ERR_clear_error();
	errno = 0;
	return tls_result(x, SSL_write(x->ssl, data, n < INT_MAX ? (int)n : INT_MAX));
}

/* What errno means, or OpenSSL's reason. */
static const char *trouble(const struct call *x, int error, char *out, size_t size)
{
	unsigned long code = ERR_peek_error();
	long verify = x->ssl ? SSL_get_verify_result(x->ssl) : X509_V_OK;
	const char *text = code ? ERR_reason_error_string(code) : NULL;
	if (error != EPROTO || !x->ssl)
		return strerror(error);
	if (verify != X509_V_OK)
		snprintf(out, size,
		         "its certificate is refused (%s): --cacert FILE names its authority, "
		         "--insecure accepts any",
		         X509_verify_cert_error_string(verify));
	else
		snprintf(out, size, "no TLS (%s): does the port speak TLS, or plain http://?",
		         text ? text : "unknown error");
	return out;
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
	if (x->client->tls)
		begin_tls(x);
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
	char text[256];
	while (x->sent < x->out.len) {
		ssize_t k = transmit(x, x->out.data + x->sent, x->out.len - x->sent);
		int e = k ? errno : ECONNRESET;
		if (k < 0 && e == EINTR)
			continue;
		if (k < 0 && (e == EAGAIN || e == EWOULDBLOCK || e == ENOTCONN))
			break;
		if (k <= 0)
			return err_set(&x->why, ERR_IO, "cannot %s %s: %s",
			               x->sent || x->used_before ? "send to" : "connect to",
			               x->client->url.authority, trouble(x, e, text, sizeof text));
		x->sent += (size_t)k;
	}
	/* a handshake may wait for the server's bytes */
	int want = x->sent < x->out.len && !(x->ssl && SSL_want_read(x->ssl));
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
	char text[256];
	(void)fd;
	(void)what;
	if (x->ssl && x->sent < x->out.len && push(x) < 0) { /* a handshake that goes on */
		x->client->now_us = clock_us();
		connection_lost(x);
		return;
	}
	ssize_t k = receive(x);
	int e = errno;
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
		        x->client->url.authority, trouble(x, e, text, sizeof text));
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
