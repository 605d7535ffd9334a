/* pipeline.c - see pipeline.h. Everything runs on the loop's thread, within svc_wait. Of strangers
 * at the port STRANGERS are read at a time, each for STRANGER_LIMIT_US: a further one takes the
 * place of the oldest. */
#include "pipeline.h"
#include "util/clock.h"
#include "util/endpoint.h"
#include "util/log.h"
#include "util/mem.h"
#include "util/version.h"

#include <errno.h>
#include <event2/listener.h>
#include <event2/util.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TAKE_LIMIT_US 10000000u
#define STRANGER_LIMIT_US 3000000u
#define TICK_US 500000u
#define REFUSED_PAUSE_US 1000000u
enum { STRANGERS = 16 };
#define RANK_PROGRAM "pdrank"

/* A stage that is missing: nobody has it, or a rank that was told and has until deadline_us to
 * connect, or one that has connected. */
struct seat {
	char name[KEYS_NAME_MAX + 1]; /* of the rank; "": free */
	struct wire_ticket ticket;
	uint64_t deadline_us;
	struct wire *wire;
	struct event *ended; /* its connection is watched */
};

/* A connection that has not shown which ticket it has. */
struct stranger {
	int fd; /* -1: none */
	struct event *ev;
	uint64_t since_us;
	size_t n;
	unsigned char hello[WIRE_HELLO_BYTES];
};

struct gather {
	struct svc *svc;
	unsigned first, n, stages, port;
	struct seat *seat; /* (n) */
	struct stranger stranger[STRANGERS];
	struct evconnlistener *listener;
	uint64_t refused_us; /* when the log had the last line of a refusal */
	unsigned refused;    /* since then */
	char what[120];
};

/* --- who is there -------------------------------------------------------- */

static int is_taken(const struct gather *g, const char *name)
{
	for (unsigned i = 0; i < g->n; i++)
		if (strcmp(g->seat[i].name, name) == 0)
			return 1;
	return 0;
}

/* The next free rank by name after this one, or NULL. A link is one offer: a rank that was taken
 * comes with a new link to be taken again. */
static struct peer *next_offer(struct gather *g, const char *after)
{
	struct chan *c = svc_chan(g->svc);
	struct peer *best = NULL;
	for (struct peer *p = chan_next(c, NULL); p; p = chan_next(c, p))
		if (peer_is_up(p) && strcmp(peer_program(p), RANK_PROGRAM) == 0 && !peer_data(p) &&
		    !is_taken(g, peer_name(p)) && strcmp(peer_name(p), after) > 0 &&
		    (!best || strcmp(peer_name(p), peer_name(best)) < 0))
			best = p;
	return best;
}

static unsigned taken(const struct gather *g)
{
	unsigned n = 0;
	for (unsigned i = 0; i < g->n; i++)
		n += g->seat[i].name[0] != 0;
	return n;
}

static unsigned connected(const struct gather *g)
{
	unsigned n = 0;
	for (unsigned i = 0; i < g->n; i++)
		n += g->seat[i].wire != NULL;
	return n;
}

static unsigned here(struct gather *g)
{
	unsigned n = taken(g);
	for (struct peer *p = next_offer(g, ""); p && n < g->n; p = next_offer(g, peer_name(p)))
		n++;
	return n;
}

static void seat_clear(struct seat *seat)
{
	if (seat->ended)
		event_free(seat->ended);
	wire_destroy(&seat->wire);
	*seat = (struct seat){0};
}

/* One that is late, or whose link has ended, without a connection. */
static void lose_unconnected(struct gather *g, struct seat *seat, const char *why)
{
	log_warn("stage_lost",
	         "stage=%u rank=%s why=\"%s before it connected to port %u: is the port open?\"",
	         g->first + (unsigned)(seat - g->seat), log_quote(seat->name), why, g->port);
	seat_clear(seat);
}

/* --- taking -------------------------------------------------------------- */

static void take_rank(struct gather *g, struct seat *seat, struct peer *p)
{
	Pds__PipelineTake m = PDS__PIPELINE_TAKE__INIT;
	wire_ticket_make(&seat->ticket);
	snprintf(seat->name, sizeof seat->name, "%s", peer_name(p));
	seat->deadline_us = clock_us() + TAKE_LIMIT_US;
	m.stage = g->first + (unsigned)(seat - g->seat);
	m.stages = g->stages;
	m.port = g->port;
	m.ticket = seat->ticket.id;
	m.secret = (ProtobufCBinaryData){sizeof seat->ticket.secret, seat->ticket.secret};
	if (svc_send(g->svc, p, MSG_PIPELINE_TAKE, NULL, &m) < 0) {
		seat_clear(seat); /* offered again, at the latest by its next link */
		return;
	}
	peer_set_data(p, g);
	log_notice("stage_taken", "stage=%u rank=%s", m.stage, log_quote(seat->name));
}

/* Takes ranks once there are enough, gives up those that are late, and says what is waited for. */
static void look(struct gather *g)
{
	uint64_t now = clock_us();
	for (unsigned i = 0; i < g->n; i++)
		if (g->seat[i].name[0] && !g->seat[i].wire && now >= g->seat[i].deadline_us)
			lose_unconnected(g, &g->seat[i], "its time was up");
	unsigned n = here(g);
	for (unsigned i = 0; i < g->n && n == g->n; i++)
		if (!g->seat[i].name[0])
			take_rank(g, &g->seat[i], next_offer(g, ""));
	for (unsigned i = 0; i < STRANGERS; i++)
		if (g->stranger[i].fd >= 0 && now - g->stranger[i].since_us >= STRANGER_LIMIT_US)
			event_active(g->stranger[i].ev, EV_TIMEOUT, 0);
	snprintf(g->what, sizeof g->what, "waiting for stages of its pipeline: %u of %u here", n, g->n);
	if (connected(g) == g->n)
		svc_wait_end(g->svc);
}

static void pipeline_on_tick(struct svc *s, void *arg)
{
	(void)s;
	look(arg);
}

static void on_peer(struct svc *s, struct peer *p)
{
	(void)p;
	look(svc_data(s));
}

static void on_peer_down(struct svc *s, struct peer *p, const char *why)
{
	struct gather *g = svc_data(s);
	(void)why;
	for (unsigned i = 0; i < g->n; i++)
		if (g->seat[i].name[0] && !g->seat[i].wire && strcmp(g->seat[i].name, peer_name(p)) == 0)
			lose_unconnected(g, &g->seat[i], "its link ended");
	look(g);
}

static int admit_rank(struct svc *s, const char *name, uint64_t epoch, const Pds__Hello *h,
                      char *reason, size_t len)
{
	(void)s, (void)name, (void)epoch;
	if (strcmp(h->program, RANK_PROGRAM) != 0)
		snprintf(reason, len, "this worker waits for stages of its pipeline");
	else if (strcmp(h->build, build_version()) != 0)
		snprintf(reason, len, "another build: yours is %.80s, a stage needs this worker's, %.80s",
		         *h->build ? h->build : "unknown", build_version());
	else
		return 0;
	return ERR_UNSUPPORTED;
}

static void pipeline_status(struct svc *s, struct buf *out)
{
	const struct gather *g = svc_data(s);
	buf_printf(out, ",\"doing\":\"%s\",\"stages\":[", g->what);
	for (unsigned i = 0; i < g->n; i++)
		buf_printf(out, "%s{\"stage\":%u,\"rank\":\"%s\",\"connected\":%s}", i ? "," : "",
		           g->first + i, g->seat[i].name, g->seat[i].wire ? "true" : "false");
	buf_addc(out, ']');
}

/* --- connections --------------------------------------------------------- */

static void stranger_close(struct stranger *st)
{
	if (st->fd < 0)
		return;
	event_free(st->ev);
	close(st->fd);
	st->fd = -1;
}

/* Nothing is due before the engine speaks first, so whatever is readable is the end. */
static void on_stage_ended(evutil_socket_t fd, short what, void *arg)
{
	struct gather *g = arg;
	(void)what;
	for (unsigned i = 0; i < g->n; i++)
		if (g->seat[i].wire && wire_fd(g->seat[i].wire) == fd) {
			log_warn("stage_lost", "stage=%u rank=%s why=\"its connection has ended\"",
			         g->first + i, log_quote(g->seat[i].name));
			seat_clear(&g->seat[i]);
		}
	look(g);
}

/* Anybody can connect as often as he likes: a line a second, with the number of those before. */
static void say_refused(struct gather *g, const char *why)
{
	g->refused++;
	if (g->refused_us && clock_us() - g->refused_us < REFUSED_PAUSE_US)
		return;
	log_warn("stage_refused", "why=\"%s\" more=%u", why, g->refused - 1);
	g->refused_us = clock_us();
	g->refused = 0;
}

/* A whole HELLO has arrived. */
static void identify(struct gather *g, struct stranger *st)
{
	uint64_t id = wire_hello_id(st->hello);
	struct seat *seat = NULL;
	for (unsigned i = 0; i < g->n; i++)
		if (id && g->seat[i].ticket.id == id && !g->seat[i].wire)
			seat = &g->seat[i];
	int rc = seat ? wire_accept(st->fd, st->hello, &seat->ticket, &seat->wire) : ERR_NOTFOUND;
	if (rc) {
		say_refused(g, seat ? "it does not have the secret" : "its ticket is not known");
		stranger_close(st);
		return;
	}
	event_free(st->ev);
	st->fd = -1;
	seat->ended = event_new(svc_base(g->svc), wire_fd(seat->wire), EV_READ | EV_PERSIST,
	                        on_stage_ended, g);
	event_add(seat->ended, NULL);
	log_notice("stage_connected", "stage=%u rank=%s", g->first + (unsigned)(seat - g->seat),
	           log_quote(seat->name));
	look(g);
}

static void on_stranger(evutil_socket_t fd, short what, void *arg)
{
	struct gather *g = arg;
	struct stranger *st = NULL;
	for (unsigned i = 0; i < STRANGERS; i++)
		if (g->stranger[i].fd == fd)
			st = &g->stranger[i];
	if (!st)
		return;
	ssize_t n = what & EV_TIMEOUT ? 0 : recv(fd, st->hello + st->n, sizeof st->hello - st->n, 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		stranger_close(st);
		return;
	}
	st->n += (size_t)n;
	if (st->n == sizeof st->hello)
		identify(g, st);
}

static void on_connection(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *address,
                          int len, void *arg)
{
	struct gather *g = arg;
	struct stranger *st = &g->stranger[0];
	(void)l, (void)address, (void)len;
	for (unsigned i = 0; i < STRANGERS && st->fd >= 0; i++)
		if (g->stranger[i].fd < 0 || g->stranger[i].since_us < st->since_us)
			st = &g->stranger[i];
	stranger_close(st);
	*st = (struct stranger){.fd = (int)fd, .since_us = clock_us()};
	st->ev = event_new(svc_base(g->svc), fd, EV_READ | EV_PERSIST, on_stranger, g);
	event_add(st->ev, NULL);
}

/* --- the port ------------------------------------------------------------ */

static int listen_at(struct gather *g, struct err *err)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
	                               .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE};
	const char *listen = svc_common(g->svc)->listen;
	char host[ENDPOINT_BYTES_MAX + 1] = "127.0.0.1", port[8];
	struct addrinfo *a = NULL;
	struct sockaddr_storage bound;
	socklen_t size = sizeof bound;
	if (*listen)
		endpoint_host(listen, host, sizeof host);
	snprintf(port, sizeof port, "%u", g->port);
	int rc = getaddrinfo(strcmp(host, "*") == 0 ? NULL : host, port, &hints, &a);
	if (rc)
		return err_set(err, ERR_IO, "stage_port: cannot listen on %.100s: %s", host,
		               gai_strerror(rc));
	g->listener = evconnlistener_new_bind(svc_base(g->svc), on_connection, g,
	                                      LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC |
	                                          LEV_OPT_REUSEABLE,
	                                      STRANGERS, a->ai_addr, (int)a->ai_addrlen);
	int no = errno;
	freeaddrinfo(a);
	if (!g->listener)
		return err_set(err, ERR_IO, "stage_port = %u: cannot listen on %.100s: %s", g->port, host,
		               strerror(no));
	getsockname(evconnlistener_get_fd(g->listener), (struct sockaddr *)&bound, &size);
	g->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
	                                            : ((struct sockaddr_in *)&bound)->sin_port);
	return 0;
}

int pipeline_gather(struct svc *s, unsigned stages, unsigned n, unsigned port,
                    struct tp_remote *ret, struct err *err)
{
	const struct svc_hooks hooks = {
		.admit = admit_rank, .up = on_peer, .down = on_peer_down, .status = pipeline_status};
	struct gather g = {.svc = s, .first = stages - n, .n = n, .stages = stages, .port = port};
	for (unsigned i = 0; i < STRANGERS; i++)
		g.stranger[i].fd = -1;
	int rc = listen_at(&g, err);
	if (rc)
		return rc;
	g.seat = mem_zalloc(n * sizeof *g.seat);
	struct svc_timer *tick = svc_timer_add(s, TICK_US, pipeline_on_tick, &g);
	look(&g);
	log_notice("stages_awaited", "stages=%u port=%u", n, g.port);
	svc_wait(s, &hooks, &g, g.what);
	svc_timer_del(&tick);
	for (unsigned i = 0; i < n; i++) {
		ret[i].wire = g.seat[i].wire;
		snprintf(ret[i].name, sizeof ret[i].name, "%s", g.seat[i].name);
		g.seat[i].wire = NULL;
		seat_clear(&g.seat[i]);
	}
	for (struct peer *p = chan_next(svc_chan(s), NULL); p; p = chan_next(svc_chan(s), p))
		peer_set_data(p, NULL);
	for (unsigned i = 0; i < STRANGERS; i++)
		stranger_close(&g.stranger[i]);
	evconnlistener_free(g.listener);
	free(g.seat);
	return 0;
}
