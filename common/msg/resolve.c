/* resolve.c - see resolve.h. Each question has a c-ares channel of its own: it ends with the
 * question, and name servers that changed meanwhile count for the next one. */
#include "msg/resolve.h"
#include "util/clock.h"
#include "util/mem.h"

#include <ares.h>
#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <event2/event.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY_MS 1000 /* until the next server is asked; doubles after all were */
#define TRIES 2
#define SOCKETS_MAX 16u /* of a question; c-ares opens one or two per server */

enum resolve_state { RESOLVE_ASKS, RESOLVE_HAS_ANSWER, RESOLVE_ENDS };

struct resolve_socket {
	ares_socket_t fd;
	struct event *ev; /* NULL: free */
};

struct resolve {
	enum resolve_state state;
	struct event_base *base;
	ares_channel channel; /* NULL: could not be opened */
	struct event *timer;  /* c-ares's time-outs, and the end of the question */
	struct event *ready;  /* calls fn: never from within c-ares or resolve_start */
	uint64_t end_us;
	struct resolve_socket sockets[SOCKETS_MAX];
	resolve_fn *fn;
	void *arg;
	struct resolve_answer answer;
};

static void destroy(struct resolve *r)
{
	r->state = RESOLVE_ENDS;
	if (r->channel)
		ares_destroy(r->channel); /* calls on_socket and the callbacks of what is pending */
	for (unsigned i = 0; i < SOCKETS_MAX; i++)
		if (r->sockets[i].ev)
			event_free(r->sockets[i].ev);
	event_free(r->timer);
	event_free(r->ready);
	free(r);
}

static void resolve_finish(struct resolve *r, int code, const char *why)
{
	if (r->state != RESOLVE_ASKS)
		return;
	r->state = RESOLVE_HAS_ANSWER;
	r->answer.code = code;
	r->answer.why = why;
	event_active(r->ready, EV_TIMEOUT, 1);
}

static void on_ready(evutil_socket_t fd, short what, void *arg)
{
	struct resolve *r = arg;
	struct resolve_answer answer = r->answer;
	resolve_fn *fn = r->fn;
	void *fn_arg = r->arg;
	(void)fd;
	(void)what;
	destroy(r);
	fn(fn_arg, &answer);
}

/* --- answers ------------------------------------------------------------- */

static int code_of(int status)
{
	switch (status) {
	case ARES_SUCCESS: return 0;
	case ARES_ENOTFOUND:
	case ARES_ENODATA: return ERR_NOTFOUND;
	case ARES_ETIMEOUT: return ERR_TIMEOUT;
	case ARES_EBADRESP: return ERR_CORRUPT;
	default: return ERR_IO;
	}
}

static int is_host(const char *s)
{
	size_t n = strlen(s);
	return n > 0 && n < RESOLVE_HOST_BYTES && s[0] != '.' &&
	       strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == n;
}

static int compare_found(const struct resolve_record *a, const char *host, uint16_t port)
{
	int r = strcmp(a->host, host);
	return r ? r : (int)a->port - port;
}

/* Keeps the records sorted, and of too many the first ones: the same for each answer, although name
 * servers rotate their records. */
static void resolve_add_service(struct resolve_answer *a, const char *host, uint16_t port)
{
	unsigned at = 0;
	while (at < a->n && compare_found(&a->records[at], host, port) < 0)
		at++;
	if (at < a->n && compare_found(&a->records[at], host, port) == 0)
		return;
	a->left_out += a->n == RESOLVE_MAX;
	if (at == RESOLVE_MAX)
		return;
	unsigned last = a->n < RESOLVE_MAX ? a->n++ : RESOLVE_MAX - 1;
	memmove(&a->records[at + 1], &a->records[at], (last - at) * sizeof *a->records);
	snprintf(a->records[at].host, sizeof a->records[at].host, "%s", host);
	a->records[at].port = port;
}

static void on_service(void *arg, int status, int timeouts, unsigned char *bytes, int len)
{
	struct resolve *r = arg;
	struct ares_srv_reply *list = NULL;
	(void)timeouts;
	if (r->state != RESOLVE_ASKS)
		return;
	if (status == ARES_SUCCESS)
		status = ares_parse_srv_reply(bytes, len, &list);
	for (const struct ares_srv_reply *s = list; s; s = s->next) {
		if (is_host(s->host) && s->port)
			resolve_add_service(&r->answer, s->host, s->port);
		else
			r->answer.left_out++;
	}
	ares_free_data(list);
	if (status == ARES_SUCCESS && !r->answer.n)
		status = ARES_ENODATA;
	resolve_finish(r, code_of(status), ares_strerror(status));
}

static void add_address(struct resolve_answer *a, const struct sockaddr *sa)
{
	const void *bytes = sa->sa_family == AF_INET
	                        ? (const void *)&((const struct sockaddr_in *)(const void *)sa)
	                              ->sin_addr
	                        : &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr;
	char text[INET6_ADDRSTRLEN];
	if (!inet_ntop(sa->sa_family, bytes, text, sizeof text))
		return;
	for (unsigned i = 0; i < a->n; i++)
		if (strcmp(a->records[i].host, text) == 0)
			return;
	if (a->n == RESOLVE_MAX) {
		a->left_out++;
		return;
	}
	snprintf(a->records[a->n++].host, sizeof a->records[0].host, "%s", text);
}

static void on_addresses(void *arg, int status, int timeouts, struct ares_addrinfo *info)
{
	struct resolve *r = arg;
	(void)timeouts;
	if (r->state == RESOLVE_ASKS) {
		for (const struct ares_addrinfo_node *n = info ? info->nodes : NULL; n; n = n->ai_next)
			if (n->ai_family == AF_INET || n->ai_family == AF_INET6)
				add_address(&r->answer, n->ai_addr);
		if (status == ARES_SUCCESS && !r->answer.n)
			status = ARES_ENODATA;
		resolve_finish(r, code_of(status), ares_strerror(status));
	}
	if (info)
		ares_freeaddrinfo(info);
}

/* --- c-ares on the event loop -------------------------------------------- */

static void resolve_arm(struct resolve *r)
{
	struct timeval most, next;
	if (r->state != RESOLVE_ASKS)
		return;
	most = clock_timeval(clock_left_us(r->end_us));
	event_add(r->timer, r->channel ? ares_timeout(r->channel, &most, &next) : &most);
}

static void resolve_on_timer(evutil_socket_t fd, short what, void *arg)
{
	struct resolve *r = arg;
	(void)fd;
	(void)what;
	if (!clock_left_us(r->end_us))
		resolve_finish(r, ERR_TIMEOUT, "no answer in time");
	else
		ares_process_fd(r->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
	resolve_arm(r);
}

static void on_io(evutil_socket_t fd, short what, void *arg)
{
	struct resolve *r = arg;
	ares_process_fd(r->channel, what & EV_READ ? fd : ARES_SOCKET_BAD,
	                what & EV_WRITE ? fd : ARES_SOCKET_BAD);
	resolve_arm(r);
}

/* c-ares opens, watches or closes a socket. One beyond SOCKETS_MAX is not watched: it times out. */
static void on_socket(void *arg, ares_socket_t fd, int readable, int writable)
{
	struct resolve *r = arg;
	struct resolve_socket *s = NULL;
	for (unsigned i = 0; i < SOCKETS_MAX; i++)
		if (r->sockets[i].ev && r->sockets[i].fd == fd)
			s = &r->sockets[i];
	if (s) {
		event_free(s->ev);
		s->ev = NULL;
	}
	if (!readable && !writable)
		return;
	for (unsigned i = 0; i < SOCKETS_MAX && !s; i++)
		if (!r->sockets[i].ev)
			s = &r->sockets[i];
	if (!s)
		return;
	s->fd = fd;
	s->ev = event_new(r->base, fd,
	                  (short)((readable ? EV_READ : 0) | (writable ? EV_WRITE : 0) | EV_PERSIST),
	                  on_io, r);
	event_add(s->ev, NULL);
}

static int open_channel(ares_channel *ret, struct resolve *r, const char *servers)
{
	struct ares_options o = {
		.timeout = TRY_MS, .tries = TRIES, .sock_state_cb = on_socket, .sock_state_cb_data = r};
	int status = ares_init_options(
		ret, &o, ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | (r ? ARES_OPT_SOCK_STATE_CB : 0));
	if (status != ARES_SUCCESS) {
		*ret = NULL;
		return status;
	}
	return servers && *servers ? ares_set_servers_ports_csv(*ret, servers) : ARES_SUCCESS;
}

struct resolve *resolve_start(struct event_base *base, const char *servers, enum resolve_kind kind,
                              const char *name, resolve_fn *fn, void *arg)
{
	struct resolve *r = mem_zalloc(sizeof *r);
	r->base = base;
	r->fn = fn;
	r->arg = arg;
	r->end_us = clock_us() + RESOLVE_LIMIT_US;
	r->timer = event_new(base, -1, 0, resolve_on_timer, r);
	r->ready = event_new(base, -1, 0, on_ready, r);
	int status = open_channel(&r->channel, r, servers);
	if (status != ARES_SUCCESS) {
		resolve_finish(r, ERR_IO, ares_strerror(status));
		return r;
	}
	const struct ares_addrinfo_hints hints = {.ai_family = AF_UNSPEC};
	if (kind == RESOLVE_SERVICE)
		ares_search(r->channel, name, C_IN, T_SRV, on_service, r);
	else
		ares_getaddrinfo(r->channel, name, NULL, &hints, on_addresses, r);
	resolve_arm(r);
	return r;
}

void resolve_cancel(struct resolve **rp)
{
	struct resolve *r = *rp;
	*rp = NULL;
	if (r)
		destroy(r);
}

int resolve_check_servers(const char *servers, struct err *err)
{
	ares_channel channel = NULL;
	if (!servers || !*servers)
		return 0;
	int status = open_channel(&channel, NULL, servers);
	if (channel)
		ares_destroy(channel);
	return status == ARES_SUCCESS
	           ? 0
	           : err_set(err, ERR_INVALID, "dns_servers = \"%s\": allowed is ADDRESS[:PORT],...",
	                     servers);
}
