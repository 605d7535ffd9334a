/* redis_conn.c - see redis_conn.h.
 *
 * Out: a list of pieces, small commands copied together into pieces of their own, each value a piece that points to the caller's memory; all
 * of it goes by sendmsg. hiredis's own output buffer would copy each block and move the rest of the buffer at each partial write.
 * In: hiredis's reader, with functions that build nothing: a block is looked at where it was received. What the reader has buffered and not
 * understood is bounded after each read, so that a server that promises or sends more than it was asked for costs a connection, not memory. */
#include "redis_conn.h"

#include "util/buf.h"
#include "util/check.h"
#include "util/list.h"
#include "util/mem.h"

#include <hiredis/hiredis.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#define READ_BYTES ((size_t)256 << 10)
#define REPLY_BYTES ((size_t)64 << 10)   /* any reply but blocks */
#define SMALL_BYTES 4096u                /* a piece of commands takes no further one beyond */
#define IOVECS 16
#define PORT_DEFAULT 6379

struct piece {
	struct list link;
	struct buf text;             /* commands; or */
	const unsigned char *value;
	size_t bytes, sent;          /* bytes of the value */
	void (*release)(void *value);
};

struct redis_conn {
	redisContext *ctx;
	redisReader *reader;
	redis_item_fn *item;
	void *user;
	struct list out;
	size_t unsent, allowed;
	char *in;                    /* (READ_BYTES) */
};

/* --- addresses --- */

static int bad_address(struct err *err, const char *text, const char *why)
{
	return err_set(err, ERR_INVALID, "redis address \"%.100s\": %s (host:port, [v6]:port or unix:/path)", text, why);
}

static int parse_port(const char *text, int *ret)
{
	char *end;
	long n = strtol(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || n < 1 || n > 65535)
		return ERR_INVALID;
	*ret = (int)n;
	return 0;
}

int redis_address_parse(struct redis_address *ret, const char *text, struct err *err)
{
	struct redis_address a = {.port = PORT_DEFAULT};
	if (!strncmp(text, "unix:", 5)) {
		if (text[5] != '/' || strlen(text + 5) >= sizeof((struct sockaddr_un *)0)->sun_path)
			return bad_address(err, text, "not an absolute path of less than 108 bytes");
		a.port = 0;
		strcpy(a.host, text + 5);
		*ret = a;
		return 0;
	}
	const char *host = text, *end = text + strlen(text), *port = NULL;
	if (*text == '[') {
		host = text + 1;
		end = strchr(host, ']');
		if (!end || (end[1] && end[1] != ':'))
			return bad_address(err, text, "the bracket does not end");
		port = end[1] ? end + 2 : NULL;
	} else if (strchr(text, ':')) {
		end = strrchr(text, ':');
		if (strchr(text, ':') != end)
			return bad_address(err, text, "an address of IPv6 needs brackets");
		port = end + 1;
	}
	if (end == host || (size_t)(end - host) >= sizeof a.host)
		return bad_address(err, text, "no host of 1 to 255 bytes");
	if (port && parse_port(port, &a.port) != 0)
		return bad_address(err, text, "the port is not 1 to 65535");
	memcpy(a.host, host, (size_t)(end - host));
	*ret = a;
	return 0;
}

/* --- hiredis's reader: each item is handed on and forgotten. What a function returns must only not be NULL --- */

static void *hand_on(const redisReadTask *t, struct redis_item *it)
{
	struct redis_conn *c = t->privdata;
	for (const redisReadTask *up = t->parent; up; up = up->parent)
		it->depth++;
	it->index = it->depth ? (unsigned)t->idx : 0;
	c->item(c->user, it);
	return c;
}

static void *on_string(const redisReadTask *t, char *text, size_t bytes)
{
	return hand_on(t, &(struct redis_item){.type = t->type, .text = text, .bytes = bytes});
}

static void *on_integer(const redisReadTask *t, long long number)
{
	return hand_on(t, &(struct redis_item){.type = REDIS_REPLY_INTEGER, .number = number});
}

static void *on_nil(const redisReadTask *t)
{
	return hand_on(t, &(struct redis_item){.type = REDIS_REPLY_NIL});
}

/* An array's end is told when all of it was read: see take_replies. */
static char array_mark;

static void *on_array(const redisReadTask *t, int elements)
{
	(void)t;
	(void)elements;
	return &array_mark;
}

static void on_free(void *object)
{
	(void)object;
}

static redisReplyObjectFunctions functions = {on_string, on_array, on_integer, on_nil, on_free};

/* --- life --- */

struct redis_conn *redis_conn_new(const struct redis_address *to, redis_item_fn *item, void *user, struct err *err)
{
	redisContext *ctx = to->port ? redisConnectNonBlock(to->host, to->port) : redisConnectUnixNonBlock(to->host);
	if (!ctx || ctx->err) {
		err_set(err, ERR_CLOSED, "%s", ctx ? ctx->errstr : "no memory");
		if (ctx)
			redisFree(ctx);
		return NULL;
	}
	fcntl(ctx->fd, F_SETFD, FD_CLOEXEC);
	if (to->port) {
		int on = 1;
		setsockopt(ctx->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);   /* a host that vanished is noticed, if late, also while nothing is asked */
	}
	struct redis_conn *c = mem_zalloc(sizeof *c);
	c->ctx = ctx;
	c->item = item;
	c->user = user;
	c->allowed = REPLY_BYTES;
	c->in = mem_alloc(READ_BYTES);
	list_init(&c->out);
	c->reader = redisReaderCreateWithFunctions(&functions);
	if (!c->reader) {
		err_set(err, ERR_CLOSED, "no memory");
		redis_conn_destroy(&c);
		return NULL;
	}
	c->reader->privdata = c;
	c->reader->maxbuf = 0;   /* keep the buffer between blocks */
	return c;
}

static void piece_free(struct piece *p)
{
	list_remove(&p->link);
	if (p->release)
		p->release((void *)(uintptr_t)p->value);
	buf_fini(&p->text);
	free(p);
}

void redis_conn_destroy(struct redis_conn **pc)
{
	struct redis_conn *c = *pc;
	if (!c)
		return;
	list_each_safe(it, nx, &c->out)
		piece_free(list_entry(it, struct piece, link));
	if (c->reader)
		redisReaderFree(c->reader);
	redisFree(c->ctx);
	free(c->in);
	free(c);
	*pc = NULL;
}

int redis_conn_fd(const struct redis_conn *c)
{
	return c->ctx->fd;
}

void redis_conn_allow(struct redis_conn *c, size_t bytes)
{
	if (c->allowed < bytes + REPLY_BYTES)
		c->allowed = bytes + REPLY_BYTES;
}

size_t redis_conn_unsent(const struct redis_conn *c)
{
	return c->unsent;
}

/* --- out --- */

static struct piece *piece_new(struct redis_conn *c)
{
	struct piece *p = mem_zalloc(sizeof *p);
	list_push_back(&c->out, &p->link);
	return p;
}

/* The piece that commands are added to now. */
static struct buf *small_out(struct redis_conn *c)
{
	struct piece *p = list_empty(&c->out) ? NULL : list_entry(c->out.prev, struct piece, link);
	if (!p || p->value || p->text.len > SMALL_BYTES)
		p = piece_new(c);
	return &p->text;
}

static void add_length(struct buf *b, char kind, size_t n)
{
	buf_printf(b, "%c%zu\r\n", kind, n);
}

static void add_args(struct buf *b, unsigned n, const struct redis_arg *arg)
{
	for (unsigned i = 0; i < n; i++) {
		add_length(b, '$', arg[i].bytes);
		buf_add(b, arg[i].text, arg[i].bytes);
		buf_adds(b, "\r\n");
	}
}

void redis_conn_command(struct redis_conn *c, unsigned n, const struct redis_arg *arg)
{
	struct buf *b = small_out(c);
	size_t before = b->len;
	add_length(b, '*', n);
	add_args(b, n, arg);
	c->unsent += b->len - before;
}

void redis_conn_command_value(struct redis_conn *c, unsigned n, const struct redis_arg *arg, unsigned at, const void *value, void (*release)(void *value))
{
	CHECK(at < n);
	struct buf *b = small_out(c);
	size_t before = b->len;
	add_length(b, '*', n);
	add_args(b, at, arg);
	add_length(b, '$', arg[at].bytes);
	c->unsent += b->len - before;
	struct piece *p = piece_new(c);
	p->value = value;
	p->bytes = arg[at].bytes;
	p->release = release;
	b = small_out(c);
	buf_adds(b, "\r\n");
	add_args(b, n - at - 1, arg + at + 1);
	c->unsent += p->bytes + b->len;
}

/* What is left of the first pieces. */
static size_t gather(const struct redis_conn *c, struct iovec *iov)
{
	size_t n = 0;
	list_each(it, &c->out) {
		struct piece *p = list_entry(it, struct piece, link);
		if (n == IOVECS)
			break;
		const unsigned char *from = p->value ? p->value : (const unsigned char *)p->text.data;
		iov[n].iov_base = (void *)(uintptr_t)(from + p->sent);
		iov[n++].iov_len = (p->value ? p->bytes : p->text.len) - p->sent;
	}
	return n;
}

static void forget_sent(struct redis_conn *c, size_t bytes)
{
	c->unsent -= bytes;
	while (bytes) {
		struct piece *p = list_entry(c->out.next, struct piece, link);
		size_t left = (p->value ? p->bytes : p->text.len) - p->sent;
		if (bytes < left) {
			p->sent += bytes;
			return;
		}
		bytes -= left;
		piece_free(p);
	}
}

static int io_error(struct err *err, int code)
{
	return err_set(err, ERR_CLOSED, "%s", strerror(code));
}

int redis_conn_write(struct redis_conn *c, size_t *ret, struct err *err)
{
	*ret = 0;
	while (c->unsent) {
		struct iovec iov[IOVECS];
		struct msghdr m = {.msg_iov = iov, .msg_iovlen = gather(c, iov)};
		ssize_t n = sendmsg(c->ctx->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == ENOTCONN))   /* still connecting */
			return 0;
		if (n < 0)
			return io_error(err, errno);
		forget_sent(c, (size_t)n);
		*ret += (size_t)n;
	}
	return 0;
}

/* --- in --- */

static int take_replies(struct redis_conn *c, struct err *err)
{
	for (;;) {
		void *reply = NULL;
		if (redisReaderGetReply(c->reader, &reply) != REDIS_OK)
			return err_set(err, ERR_INVALID, "not a reply of Redis: %s", c->reader->errstr);
		if (!reply)
			break;
		if (reply == &array_mark)
			c->item(c->user, &(struct redis_item){.type = REDIS_REPLY_ARRAY});
	}
	if (c->reader->len - c->reader->pos > c->allowed)
		return err_set(err, ERR_INVALID, "a reply of more than the %zu bytes that were asked for", c->allowed);
	return 0;
}

int redis_conn_read(struct redis_conn *c, size_t *ret, struct err *err)
{
	*ret = 0;
	ssize_t n;
	do
		n = recv(c->ctx->fd, c->in, READ_BYTES, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n < 0 && (errno == EAGAIN || errno == ENOTCONN))
		return 0;
	if (n < 0)
		return io_error(err, errno);
	if (n == 0)
		return err_set(err, ERR_CLOSED, "the server closed the connection");
	*ret = (size_t)n;
	if (redisReaderFeed(c->reader, c->in, (size_t)n) != REDIS_OK)
		return err_set(err, ERR_INVALID, "not a reply of Redis: %s", c->reader->errstr);
	return take_replies(c, err);
}
