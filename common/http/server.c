/* server.c - see http.h: the listener, who gets in, and limits of time.
 *
 * An address has at most max_per_address connections, or as many as remain free for others. Without
 * room a new connection takes the place of one that has no complete head yet, the longest waiting
 * first: one of its own address if there is one; else, if its address has less than its share, one
 * of an address that has more connections. If there is none to take, the client gets a 503; beyond
 * max_connections / 8 such refusals at once, or a few from one address, or without memory, or if
 * TLS would take a handshake first, the connection is closed without a word. */
#include "http/conn.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/endpoint.h"
#include "util/log.h"
#include "util/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TICK_US 500000u
#define REFUSED_EACH_MAX 16u
/* Connections that the kernel has made and that wait to be accepted; it takes the least of this and
 * net.core.somaxconn. A client beyond them tries again after a second. */
#define BACKLOG 4096
#define ACCEPT_MAX 16  /* connections accepted in one turn of the loop */
#define HEAD_MAX 4096u /* of an answer */

/* --- who gets in --------------------------------------------------------- */

static unsigned refused_max(unsigned max_connections)
{
	return max_connections / 8 + 16;
}

unsigned http_descriptors(unsigned max_connections)
{
	return max_connections + refused_max(max_connections) + 1 + HANDSHAKE_DESCRIPTORS;
}

static void close_waiting(struct http_server *h, struct http_conn *c)
{
	unsigned more;
	h->closed_waiting++;
	if (log_note_due(&h->full_note, &more))
		log_warn("http_full",
		         "what=connections open=%u limit=%u more=%u "
		         "why=\"one without a request was closed\"",
		         h->n_served, h->opts.max_connections, more);
	conn_free(c);
}

/* Bytes that have arrived and are not parsed yet may be a whole request: such a connection is not
 * closed. */
static struct http_conn *first_by_client(struct http_client *c)
{
	list_each(n, &c->loop.waiting) {
		struct http_conn *first = list_entry(n, struct http_conn, by_client);
		if (!fair_waits(&first->turn))
			return first;
	}
	return NULL;
}

static struct http_conn *first_by_server(struct http_server *h)
{
	list_each(n, &h->waiting) {
		struct http_conn *first = list_entry(n, struct http_conn, by_server);
		if (!fair_waits(&first->turn))
			return first;
	}
	return NULL;
}

static int make_room(struct http_server *h, struct http_client *from)
{
	unsigned max = h->opts.max_connections, each = h->opts.max_per_address, has = from->loop.conns;
	unsigned left = h->n_served < max ? max - h->n_served : 0;
	struct http_conn *first = NULL;
	int capped = each ? has >= each : left && has >= left;
	if (!capped && left)
		return 1;
	if (has)
		first = first_by_client(from);
	if (!first && !capped)
		first = first_by_server(h);
	if (!first || (first->client != from && first->client->loop.conns <= has))
		return 0;
	close_waiting(h, first);
	return 1;
}

static int may_be_told(const struct http_server *h, const struct http_client *from)
{
	return !h->tls && h->n_not_served < refused_max(h->opts.max_connections) &&
	       from->loop.refused < REFUSED_EACH_MAX;
}

static void accepted(struct http_server *h, int fd, const struct sockaddr *addr)
{
	struct http_client *from = clients_find(h->clients, addr);
	int served = from && make_room(h, from);
	struct http_conn *c = NULL;
	if (served || (from && may_be_told(h, from)))
		c = conn_new(h, fd, addr, from, !served);
	else
		evutil_closesocket(fd);
	if (!c) {
		h->refused++;
		if (from)
			client_put(from, 0);
		return;
	}
	if (!served)
		connection_step(c, CONNECTION_ON_TOO_MANY);
}

void http_tick_on(struct http_server *h)
{
	struct timeval each = {.tv_sec = 0, .tv_usec = TICK_US};
	if (!event_pending(h->tick, EV_TIMEOUT, NULL))
		event_add(h->tick, &each);
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	struct http_server *h = arg;
	if (h->paused)
		h->paused = event_add(h->listener, NULL) < 0;
	list_each_safe(n, next, &h->conns)
		connection_step(list_entry(n, struct http_conn, node), CONNECTION_ON_TICK);
	if (list_empty(&h->conns) && !h->paused) /* http_tick_on starts it again */
		event_del(h->tick);
}

/* Out of descriptors. Trying again at once would spin, so the tick does; a connection that only
 * waits is closed to free a descriptor. */
static void accept_failed(struct http_server *h, int error)
{
	struct http_conn *first = first_by_server(h);
	log_warn("http_accept_failed", "why=%s", log_quote(strerror(error)));
	event_del(h->listener);
	h->paused = 1;
	if (first)
		close_waiting(h, first);
	http_tick_on(h);
}

/* Accepts so many at most, of those who have connected already. */
static void accept_some(struct http_server *h, int most)
{
	struct sockaddr_storage from;
	while (most--) {
		socklen_t len = sizeof from;
		int fd = accept4(h->listen_fd, (struct sockaddr *)&from, &len,
		                 SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0) {
			accepted(h, fd, (struct sockaddr *)&from);
			continue;
		}
		if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
			accept_failed(h, errno);
		return;
	}
}

static void on_acceptable(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	accept_some(arg, ACCEPT_MAX);
}

static void listen_end(struct http_server *h)
{
	if (!h->listener)
		return;
	accept_some(h, BACKLOG);
	event_free(h->listener);
	close(h->listen_fd);
	h->listener = NULL;
	h->paused = 0;
}

/* "host:port", "[v6]:port", ":port" */
static int split_listen(const char *setting, const char *s, char *host, size_t host_size,
                        char *port, size_t port_size, struct err *err)
{
	const char *conf = s, *colon = strrchr(s, ':');
	if (!colon || !colon[1] || strlen(colon + 1) >= port_size)
		return err_set(err, ERR_INVALID, "%s \"%s\" is not HOST:PORT", setting, s);
	size_t n = (size_t)(colon - s);
	if (n >= 2 && s[0] == '[' && s[n - 1] == ']') {
		s++;
		n -= 2;
	}
	if (n >= host_size)
		return err_set(err, ERR_INVALID, "%s: the host's name is longer than %zu bytes", setting,
		               host_size - 1);
	memcpy(host, s, n);
	host[n] = 0;
	unsigned long number = strtoul(colon + 1, NULL, 10);
	if (strspn(colon + 1, "0123456789") != strlen(colon + 1) || number > 65535)
		return err_set(err, ERR_INVALID, "%s \"%s\": the port is no number from 0 to 65535",
		               setting, conf);
	if (*host && !endpoint_is_host(host))
		return err_set(err, ERR_INVALID, "%s \"%s\": \"%s\" is no address and no host's name",
		               setting, conf, host);
	memcpy(port, colon + 1, strlen(colon + 1) + 1);
	return 0;
}

int http_check_listen(const char *setting, const char *listen_to, struct err *err)
{
	char host[256], port[16];
	return split_listen(setting, listen_to, host, sizeof host, port, sizeof port, err);
}

static int listen_on(struct http_server *h, struct err *err)
{
	char host[256], port[16];
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_ADDRCONFIG};
	struct addrinfo *found = NULL;
	const char *setting = h->opts.setting, *listen_to = h->opts.listen;
	if (split_listen(setting, listen_to, host, sizeof host, port, sizeof port, err) < 0)
		return ERR_INVALID;
	int r = getaddrinfo(*host ? host : NULL, port, &hints, &found);
	if (r)
		return err_set(err, ERR_INVALID, "%s \"%s\": %s", setting, listen_to, gai_strerror(r));
	int one = 1;
	h->listen_fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (h->listen_fd < 0 ||
	    setsockopt(h->listen_fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one) < 0 ||
	    setsockopt(h->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0 ||
	    bind(h->listen_fd, found->ai_addr, found->ai_addrlen) < 0 ||
	    listen(h->listen_fd, BACKLOG) < 0)
		r = errno;
	freeaddrinfo(found);
	if (r)
		return err_set(err, ERR_IO, "cannot listen on %s \"%s\": %s%s", setting, listen_to,
		               strerror(r),
		               r == EADDRINUSE ? "; stop what uses the port, or choose another" : "");
	h->listener = event_new(h->base, h->listen_fd, EV_READ | EV_PERSIST, on_acceptable, h);
	CHECK(h->listener && event_add(h->listener, NULL) == 0);
	struct sockaddr_storage a;
	socklen_t len = sizeof a;
	if (getsockname(h->listen_fd, (struct sockaddr *)&a, &len) < 0)
		return 0;
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)&a;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&a;
	int is_v6 = a.ss_family == AF_INET6;
	h->port = ntohs(is_v6 ? v6->sin6_port : v4->sin_port);
	h->is_local = is_v6 ? IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr)
	                    : ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
	return 0;
}

/* --- the server ---------------------------------------------------------- */

int http_set_tls(struct http_server *h, const char *cert, const char *key, struct err *err)
{
	struct ssl_ctx_st *tls = NULL;
	int has_cert = cert && *cert, has_key = key && *key;
	if (has_cert != has_key)
		return err_set(err, ERR_INVALID,
		               "http_tls_cert and http_tls_key: %s is missing; set both for "
		               "TLS, neither for plain HTTP",
		               has_cert ? "http_tls_key" : "http_tls_cert");
	int r = has_cert ? tls_open(cert, key, &tls, err) : 0;
	if (r == 0 && h && tls && !h->handshakes)
		r = handshakes_new(h->base, &h->handshakes, err);
	if (r < 0) {
		tls_close(&tls);
		return r;
	}
	tls_close(h ? &h->tls : &tls);
	if (h)
		h->tls = tls;
	return 0;
}

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
	h->listen_fd = -1;
	h->opts = *opts;
	h->handlers = *handlers;
	h->arg = arg;
	h->headers = mem_strdup(opts->headers ? opts->headers : "");
	list_init(&h->conns);
	list_init(&h->waiting);
	fair_init(&h->turns);
	buf_init(&h->head, HEAD_MAX);
	int r = http_set_tls(h, opts->tls_cert, opts->tls_key, err);
	if (r == 0)
		r = listen_on(h, err);
	if (r < 0) {
		if (h->listen_fd >= 0)
			close(h->listen_fd);
		handshakes_destroy(&h->handshakes);
		tls_close(&h->tls);
		buf_fini(&h->head);
		free(h->headers);
		free(h);
		return r;
	}
	h->clients = clients_new(opts->in_bytes_max);
	h->tick = event_new(base, -1, EV_PERSIST, on_tick, h);
	h->work = event_new(base, -1, 0, conn_work, h);
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
	if (h->listener) {
		event_free(h->listener);
		close(h->listen_fd);
	}
	event_free(h->tick);
	event_free(h->work);
	handshakes_destroy(&h->handshakes);
	clients_destroy(&h->clients);
	tls_close(&h->tls);
	buf_fini(&h->head);
	free(h->headers);
	free(h);
	*hp = NULL;
}

void http_drain(struct http_server *h)
{
	h->stopping = 1;
	listen_end(h);
	list_each_safe(n, next, &h->conns)
		connection_step(list_entry(n, struct http_conn, node), CONNECTION_ON_DRAIN);
}

int http_busy(const struct http_server *h)
{
	list_each(n, &h->conns) {
		const struct http_conn *c = list_entry(n, struct http_conn, node);
		int reads = (c->state == CONNECTION_HEAD || c->state == CONNECTION_BODY) &&
		            conn_has_begun(c);
		if (c->state != CONNECTION_CLOSED &&
		    (reads || c->state == CONNECTION_LINGERING || http_unsent(c)))
			return 1;
	}
	return 0;
}

unsigned http_port(const struct http_server *h)
{
	return h->port;
}

int http_is_local(const struct http_server *h)
{
	return h->is_local;
}

int http_has_tls(const struct http_server *h)
{
	return h->tls != NULL;
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
	                            .tls_failed = h->tls_failed,
	                            .connections = http_connections(h),
	                            .in_bytes = clients_bytes(h->clients),
	                            .out_bytes = h->out_bytes};
}
