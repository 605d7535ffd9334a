/* listen.c - who gets in: the listener, and the room that there is for connections.
 *
 * An address has at most max_per_address of them, or as many as it leaves to others. Whoever comes
 * when there is no room takes the place of a connection that has no whole head yet, which has
 * waited longest: one of his own address if there is one; else, if his address does not have its
 * share, anybody's whose address has more connections than his. When there is none he is told so
 * (503); past an eighth of max_connections of such, a few from one address, or without memory,
 * nobody is told. */
#include "conn.h"
#include "util/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REFUSED_EACH_MAX 16u
#define BACKLOG 1024

static unsigned refused_max(unsigned max_connections)
{
	return max_connections / 8 + 16;
}

unsigned http_descriptors(unsigned max_connections)
{
	return max_connections + refused_max(max_connections) + 1;
}

static void close_waiting(struct http_server *h, struct http_conn *c)
{
	unsigned more;
	h->closed_waiting++;
	if (http_note_due(&h->full_note, &more))
		log_warn("http_full",
		         "what=connections open=%u limit=%u more=%u "
		         "why=\"one without a request was closed\"",
		         h->n_served, h->opts.max_connections, more);
	conn_free(c);
}

static struct http_conn *first_by_client(struct client *c)
{
	struct list *first = c->loop.waiting.next;
	return first == &c->loop.waiting ? NULL : list_entry(first, struct http_conn, by_client);
}

static struct http_conn *first_by_server(struct http_server *h)
{
	struct list *first = h->waiting.next;
	return first == &h->waiting ? NULL : list_entry(first, struct http_conn, by_server);
}

static int make_room(struct http_server *h, struct client *from)
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

static int may_be_told(const struct http_server *h, const struct client *from)
{
	return h->n_not_served < refused_max(h->opts.max_connections) &&
	       from->loop.refused < REFUSED_EACH_MAX;
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *addr, int len,
                      void *arg)
{
	(void)l;
	(void)len;
	struct http_server *h = arg;
	struct client *from = clients_find(h->clients, addr);
	int served = from && make_room(h, from);
	struct http_conn *c = NULL;
	if (served || (from && may_be_told(h, from)))
		c = conn_new(h, fd, from, !served);
	else
		evutil_closesocket(fd);
	if (!c) {
		h->refused++;
		if (from)
			client_put(from, 0);
		return;
	}
	if (!served)
		conn_refuse(c, 503,
		            "too many connections (max_connections, max_connections_per_address); "
		            "try again in a second");
}

/* Out of descriptors: trying again at once would spin; the tick tries again, perhaps with the place
 * of one who only waits. */
static void on_accept_error(struct evconnlistener *l, void *arg)
{
	struct http_server *h = arg;
	struct http_conn *first = first_by_server(h);
	log_warn("http_accept_failed", "why=%s",
	         log_quote(evutil_socket_error_to_string(EVUTIL_SOCKET_ERROR())));
	evconnlistener_disable(l);
	h->paused = 1;
	if (first)
		close_waiting(h, first);
	http_tick_on(h);
}

void http_listen_end(struct http_server *h)
{
	if (!h->listener)
		return;
	struct sockaddr_storage from;
	for (int i = 0; i < BACKLOG; i++) {
		socklen_t len = sizeof from;
		int fd = accept4(evconnlistener_get_fd(h->listener), (struct sockaddr *)&from, &len,
		                 SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd < 0)
			break;
		on_accept(h->listener, fd, (struct sockaddr *)&from, (int)len, h);
	}
	evconnlistener_free(h->listener);
	h->listener = NULL;
}

/* "host:port", "[v6]:port", ":port" */
static int split_listen(const char *s, char *host, size_t host_size, char *port, size_t port_size,
                        struct err *err)
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
		return err_set(err, ERR_INVALID, "http_listen: the host's name is longer than %zu bytes",
		               host_size - 1);
	memcpy(host, s, n);
	host[n] = 0;
	memcpy(port, colon + 1, strlen(colon + 1) + 1);
	return 0;
}

int http_listen(struct http_server *h, struct err *err)
{
	char host[256], port[16];
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_ADDRCONFIG};
	struct addrinfo *found = NULL;
	if (split_listen(h->opts.listen, host, sizeof host, port, sizeof port, err) < 0)
		return ERR_INVALID;
	int r = getaddrinfo(*host ? host : NULL, port, &hints, &found);
	if (r)
		return err_set(err, ERR_INVALID, "http_listen \"%s\": %s", h->opts.listen, gai_strerror(r));
	h->listener = evconnlistener_new_bind(h->base, on_accept, h,
	                                      LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC |
	                                          LEV_OPT_REUSEABLE,
	                                      BACKLOG, found->ai_addr, (int)found->ai_addrlen);
	int cause = errno;
	freeaddrinfo(found);
	if (!h->listener)
		return err_set(err, ERR_IO, "cannot listen on http_listen \"%s\": %s%s", h->opts.listen,
		               strerror(cause),
		               cause == EADDRINUSE ? "; stop what uses the port, or choose another" : "");
	evconnlistener_set_error_cb(h->listener, on_accept_error);
	struct sockaddr_storage a;
	socklen_t len = sizeof a;
	if (getsockname(evconnlistener_get_fd(h->listener), (struct sockaddr *)&a, &len) == 0)
		h->port = ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
		                                        : ((struct sockaddr_in *)&a)->sin_port);
	return 0;
}
