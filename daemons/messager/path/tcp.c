/* tcp.c - the TCP transport: its listener, the clock of its limits, and when hooks are called.
 *
 * Hooks run from one event (`notices`), never within a call or below a connection's callback: so a
 * hook may end any object. A peer's errors are counted, and logged once for each path or intake;
 * those of connections that belong to nobody at most every 10 seconds. */
#include "tcp_priv.h"

#include "tcp_in.h"
#include "tcp_out.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BACKLOG = 512 };

/* --- hooks --------------------------------------------------------------- */

void tcp_notice(struct tcp_transport *t, struct notice *n)
{
	if (!list_empty(&n->node))
		return;
	list_push_back(&t->notices, &n->node);
	event_active(t->ev_notice, EV_TIMEOUT, 0);
}

/* Only what is there now: notices that hooks cause wait for the next call. */
static void on_notice(evutil_socket_t fd, short what, void *arg)
{
	struct tcp_transport *t = arg;
	(void)fd, (void)what;
	list_push_back(&t->notices, &t->notices_end);
	for (struct list *at; (at = t->notices.next) != &t->notices_end;) {
		struct notice *n = list_entry(at, struct notice, node);
		list_remove(&n->node);
		n->run(n);
	}
	list_remove(&t->notices_end);
	if (!list_empty(&t->notices))
		event_active(t->ev_notice, EV_TIMEOUT, 0);
}

void tcp_side_init(struct tcp_side *s, struct tcp_transport *t, const struct path_peer *peer,
                   const struct path_hooks *hooks, void (*run)(struct notice *n))
{
	*s = (struct tcp_side){.t = t, .peer = *peer, .hooks = *hooks, .say_due = 1};
	s->state.transport = "tcp";
	s->notice.run = run;
	list_init(&s->notice.node);
	snprintf(s->why, sizeof s->why, "no connection yet");
	tcp_notice(t, &s->notice);
	tcp_start_tick(t);
}

void tcp_side_count(struct tcp_side *s, int change)
{
	s->n_up += (unsigned)change;
	if ((s->n_up > 0) != s->up_told)
		tcp_notice(s->t, &s->notice);
}

int tcp_side_tell_up(struct tcp_side *s)
{
	int up = s->n_up > 0;
	if (up == s->up_told)
		return 0;
	s->up_told = up;
	log_notice(up ? "path_up" : "path_down", "transport=tcp peer=%s why=%s",
	           log_quote(s->peer.name), log_quote(up ? "" : s->why));
	if (s->hooks.up)
		s->hooks.up(s->hooks.arg, up, up ? "" : s->why);
	return 1;
}

void tcp_side_error(struct tcp_side *s, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(s->state.last_error, sizeof s->state.last_error, fmt, ap);
	va_end(ap);
	s->state.errors++;
	s->state.last_error_at_us = clock_us();
	log_at(s->warned ? LOG_DEBUG : LOG_WARN, NULL, "path_error", "transport=tcp peer=%s why=%s",
	       log_quote(s->peer.name), log_quote(s->state.last_error));
	s->warned = 1;
}

void tcp_side_state(const struct tcp_side *s, struct path_state *ret)
{
	*ret = s->state;
	ret->up = s->n_up > 0 ? NULL : s->why;
}

/* --- sockets ------------------------------------------------------------- */

static void set_option(int fd, int level, int name, int value)
{
	if (setsockopt(fd, level, name, &value, sizeof value) < 0)
		log_debug("path_socket_option", "level=%d option=%d error=%s", level, name,
		          strerror(errno));
}

void tcp_set_options(const struct tcp_transport *t, int fd)
{
	set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 2);
	set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
	set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
	set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(t->opts.stall_us / 1000));
}

void tcp_address_text(const struct sockaddr *a, socklen_t bytes, char *out, size_t size)
{
	char host[INET6_ADDRSTRLEN + 20], port[8];
	if (getnameinfo(a, bytes, host, sizeof host, port, sizeof port,
	                NI_NUMERICHOST | NI_NUMERICSERV) != 0)
		snprintf(out, size, "unknown address");
	else
		snprintf(out, size, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

uint64_t tcp_jitter(uint64_t us)
{
	return us / 2 + randombytes_uniform((uint32_t)(us / 2 > UINT32_MAX ? UINT32_MAX : us / 2 + 1));
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *from,
                      int bytes, void *arg)
{
	struct tcp_transport *t = arg;
	(void)l;
	tcp_in_accept(t, fd, from, (socklen_t)bytes);
}

/* No descriptor is free, for example: the tick listens again. */
static void on_accept_error(struct evconnlistener *l, void *arg)
{
	log_warn("path_accept_failed", "transport=tcp error=%s", log_quote(strerror(errno)));
	evconnlistener_disable(l);
	tcp_start_tick(arg);
}

static int listen_at(struct tcp_transport *t, const char *address, struct err *err)
{
	const struct addrinfo hints = {.ai_family = address ? AF_UNSPEC : AF_INET6,
	                               .ai_socktype = SOCK_STREAM,
	                               .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE};
	const char *shown = address ? address : "*";
	struct addrinfo *at = NULL;
	struct sockaddr_storage got;
	socklen_t got_bytes = sizeof got;
	char port[8];
	snprintf(port, sizeof port, "%u", t->opts.port);
	if (getaddrinfo(address, port, &hints, &at) != 0)
		return err_set(err, ERR_INVALID, "cannot listen at %s: not a numeric address", shown);
	int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 && !address) { /* no IPv6 here */
		freeaddrinfo(at);
		return listen_at(t, "0.0.0.0", err);
	}
	if (fd >= 0) {
		set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
		if (!address)
			set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
	}
	int r = fd < 0 || bind(fd, at->ai_addr, at->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0 ||
	        getsockname(fd, (struct sockaddr *)&got, &got_bytes) < 0;
	if (r) {
		err_set(err, ERR_IO, "cannot listen at %s port %u for data connections: %s", shown,
		        t->opts.port, strerror(errno));
		if (fd >= 0)
			close(fd);
	} else {
		t->port = ntohs(got.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&got)->sin6_port
		                                          : ((struct sockaddr_in *)&got)->sin_port);
		t->listener = evconnlistener_new(t->base, on_accept, t,
		                                 LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
		CHECK(t->listener);
		evconnlistener_set_error_cb(t->listener, on_accept_error);
	}
	freeaddrinfo(at);
	return r ? ERR_IO : 0;
}

/* --- transport ----------------------------------------------------------- */

void tcp_start_tick(struct tcp_transport *t)
{
	const struct timeval tick = clock_timeval(TCP_TICK_US);
	if (!event_pending(t->ev_tick, EV_TIMEOUT, NULL))
		event_add(t->ev_tick, &tick);
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
	struct tcp_transport *t = arg;
	uint64_t now_us = clock_us();
	(void)fd, (void)what;
	evconnlistener_enable(t->listener);
	if (list_empty(&t->strangers) && list_empty(&t->paths) && list_empty(&t->intakes))
		event_del(t->ev_tick);
	list_each_safe(it, next, &t->strangers)
		tcp_in_tick(tcp_in_of_stranger(it), now_us);
	list_each(it, &t->paths)
		path_tick(list_entry(it, struct tcp_path, node), now_us);
	list_each(it, &t->intakes) {
		struct tcp_side *s = &list_entry(it, struct tcp_intake, node)->side;
		if (s->say_due)
			tcp_notice(t, &s->notice);
	}
}

static void set_default(struct tcp_opts *o)
{
#define DEFAULT(field, value) (o->field = o->field ? o->field : (value))
	DEFAULT(connections, 2);
	DEFAULT(frame_bytes, 1u << 20);
	DEFAULT(window_bytes, 32u << 20);
	DEFAULT(backoff_us, 100000);
	DEFAULT(backoff_max_us, 5000000);
	DEFAULT(canary_us, 5000000);
	DEFAULT(handshake_us, 3000000);
	DEFAULT(stall_us, 5000000);
	DEFAULT(strangers, 512);
	DEFAULT(turn_bytes, 1u << 20);
#undef DEFAULT
}

int tcp_transport_new(struct event_base *base, const struct tcp_opts *opts,
                      struct tcp_transport **ret, struct err *err)
{
	if (sodium_init() < 0)
		return err_set(err, ERR_IO, "libsodium cannot be initialised");
	if (opts->connections > TCP_CONNECTIONS_MAX)
		return err_set(err, ERR_INVALID, "%u data connections for each pair: the limit is %u",
		               opts->connections, TCP_CONNECTIONS_MAX);
	if (opts->frame_bytes > FRAME_PAYLOAD_MAX)
		return err_set(err, ERR_INVALID, "frames of %u bytes: the limit is %u", opts->frame_bytes,
		               FRAME_PAYLOAD_MAX);
	struct tcp_transport *t = mem_zalloc(sizeof *t);
	t->base = base;
	t->opts = *opts;
	t->opts.address = NULL;
	set_default(&t->opts);
	list_init(&t->notices);
	list_init(&t->paths);
	list_init(&t->intakes);
	list_init(&t->strangers);
	t->pairs = map_new_random_keys(sizeof(uint64_t));
	t->aes = crypto_aead_aes256gcm_is_available();
	t->scratch = mem_alloc(TCP_READ_MAX);
	t->canary = mem_zalloc(TCP_CANARY_BYTES);
	t->ev_notice = event_new(base, -1, 0, on_notice, t);
	t->ev_tick = event_new(base, -1, EV_PERSIST, on_tick, t);
	CHECK(t->ev_notice && t->ev_tick);
	int r = listen_at(t, opts->address, err);
	if (r)
		tcp_transport_destroy(&t);
	else
		*ret = t;
	return r;
}

void tcp_transport_destroy(struct tcp_transport **pt)
{
	struct tcp_transport *t = *pt;
	if (!t)
		return;
	CHECK(list_empty(&t->paths) && list_empty(&t->intakes));
	list_each_safe(it, next, &t->strangers)
		tcp_in_close(tcp_in_of_stranger(it));
	if (t->listener)
		evconnlistener_free(t->listener);
	/* libevent still calls back for a look-up that was cancelled: then its memory is left to the
	 * end of the process */
	if (t->dns && t->n_lookups == 0)
		evdns_base_free(t->dns, 0);
	event_free(t->ev_notice);
	event_free(t->ev_tick);
	map_destroy(&t->pairs);
	free(t->scratch);
	free(t->canary);
	if (t->n_lookups == 0)
		free(t);
	*pt = NULL;
}

uint16_t tcp_transport_port(const struct tcp_transport *t)
{
	return t->port;
}
