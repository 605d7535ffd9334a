/* attached.c - see attached.h.
 *
 * Invariants: a connection is in the list from accept to close; its process runs as our user or
 * root; `worker` is set exactly while the daemon has an object for it. A hello is read only when a
 * link of its process is up. Descriptors received with a hello are closed, or belong to the
 * region or ring that was mapped from them. A listener whose accept fails without taking the
 * connection stays readable: it is removed from the loop for ACCEPT_PAUSE_MS, so that the loop does
 * not spin. */
#include "kv/ring.h"
#include "svc/attached.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/log.h"
#include "util/mem.h"
#include "util/once.h"
#include "util/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define HELLO_WAIT_S 5
#define ACCEPT_PAUSE_MS 100
#define LOG_EVERY_US 10000000u /* a failing accept */
#define SPARE 16u              /* connections allowed in addition to workers_max */

struct connection {
	struct list link;
	struct attached *a;
	int sock, bell; /* bell -1: none */
	struct process_origin process;
	struct event *event, *bell_event;
	char name[HANDOVER_NAME_MAX];
	uint64_t epoch;
	void *worker; /* NULL until the hello was accepted */
};

struct attached {
	struct attached_hooks h;
	int listener;
	struct event *accept, *pause;
	struct list connections;
	unsigned n_connections, n_workers;
	uint64_t accept_logged_us;
	struct once refusals; /* a refused worker retries 20 times a second */
};

static void workers_changed(struct attached *a, int by)
{
	a->n_workers += (unsigned)by;
	*a->h.workers = a->n_workers;
}

static void refused(struct attached *a, const char *name, int code, const char *why)
{
	if (a->h.refused)
		++*a->h.refused;
	if (once_may_log(&a->refusals, why, strlen(why)))
		log_warn("handover_refused", "worker=%s code=%s why=%s", log_quote(name), err_name(code),
		         log_quote(why));
}

static void connection_end(struct connection *c, const char *why)
{
	struct attached *a = c->a;
	if (c->bell_event)
		event_free(c->bell_event);
	if (c->bell >= 0)
		close(c->bell);
	event_free(c->event);
	close(c->sock);
	list_remove(&c->link);
	a->n_connections--;
	if (c->worker) {
		workers_changed(a, -1);
		log_notice("worker_detached", "worker=%s epoch=%016llx why=%s", log_quote(c->name),
		           (unsigned long long)c->epoch, log_quote(why));
		a->h.detach(a->h.arg, c->worker, why);
	}
	free(c);
}

/* For an attached worker: anything readable ends the connection. Returns 1 if c has ended. */
static int connection_read(struct connection *c)
{
	char byte;
	ssize_t n = sock_recv(c->sock, &byte, sizeof byte, NULL, 0, NULL);
	if (n == ERR_TIMEOUT)
		return 0;
	connection_end(c, n == 0 || n == ERR_CLOSED ? "its socket is closed"
	                                            : "it sent data after its hello");
	return 1;
}

/* An unread end of file counts: that worker no longer has the name. */
static int attached_name_taken(struct attached *a, const char *name)
{
	list_each_safe(it, nx, &a->connections) {
		struct connection *c = list_entry(it, struct connection, link);
		if (c->worker && strcmp(c->name, name) == 0 && !connection_read(c))
			return 1;
	}
	return 0;
}

/* The connections of that process; attached: only those with a worker. */
static unsigned connections_of(const struct attached *a, const struct process_origin *process,
                               int attached)
{
	unsigned n = 0;
	list_each(it, &a->connections) {
		const struct connection *c = list_entry(it, struct connection, link);
		n += process_origin_same(&c->process, process) && (c->worker || !attached);
	}
	return n;
}

/* The link of this name is the one that HELLO has admitted: its process alone has the name. */
static int attached_admit(const struct connection *c, const struct handover_hello *h,
                          struct err *err)
{
	struct attached *a = c->a;
	const struct peer *p = chan_find(svc_chan(a->h.svc), h->name, 0);
	if (!p || peer_epoch(p) != h->epoch || !process_origin_same(peer_origin(p), &c->process))
		return err_set(err, ERR_INVALID,
		               "process %u has no link as %s of epoch %016llx: memory is taken only from "
		               "the process that has the link of that name",
		               c->process.pid, h->name, (unsigned long long)h->epoch);
	if (attached_name_taken(a, h->name))
		return err_set(
			err, ERR_EXISTS,
			"a worker named %s is already attached and its socket is open: a second one is refused",
			h->name);
	if (a->n_workers >= a->h.workers_max)
		return err_set(err, ERR_FULL, "%u workers are attached; workers_max is %u", a->n_workers,
		               a->h.workers_max);
	if (connections_of(a, &c->process, 1) >= (a->h.workers_max + 1) / 2)
		return err_set(err, ERR_FULL,
		               "process %u has handed over memory as %u workers: one process may do so for "
		               "half of workers_max (%u)",
		               c->process.pid, connections_of(a, &c->process, 1), a->h.workers_max);
	return 0;
}

/* Takes over fds. On an error m owns nothing. */
static int map(struct connection *c, struct attached_memory *m, const struct handover_fds *fds,
               struct err *err)
{
	const struct handover_hello *h = m->hello;
	int r = kv_region_map(&m->region, &m->layout, h->blocks, h->backend, fds->control, &fds->data,
	                      err);
	if (r == ERR_CLOSED) /* this process has lost the device; a restarted one may have it */
		svc_leave(err->text);
	if (fds->ring >= 0 && (r < 0 || !c->a->h.bell)) {
		close(fds->ring);
	} else if (fds->ring >= 0 && (r = ring_map(fds->ring, h->ring_slots, h->ring_layers, h->epoch,
	                                           &m->ring, err)) < 0) {
		kv_region_fini(&m->region);
	} else if (m->ring && (c->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0) {
		r = err_set(err, ERR_IO, "cannot create a doorbell: %s", strerror(errno));
		ring_destroy(&m->ring);
		kv_region_fini(&m->region);
	}
	return r;
}

static int attach(struct connection *c, struct attached_memory *m, struct handover_fds *fds,
                  struct err *err)
{
	const struct attached_hooks *hooks = &c->a->h;
	int r = attached_admit(c, m->hello, err);
	if (r < 0) {
		handover_fds_close(fds);
		return r;
	}
	if ((r = map(c, m, fds, err)) < 0)
		return r;
	if ((r = hooks->attach(hooks->arg, m, &c->worker, err)) < 0) {
		ring_destroy(&m->ring);
		kv_region_fini(&m->region);
		return r;
	}
	snprintf(c->name, sizeof c->name, "%s", m->hello->name);
	c->epoch = m->hello->epoch;
	workers_changed(c->a, 1);
	return 0;
}

static void on_bell(evutil_socket_t fd, short what, void *arg)
{
	struct connection *c = arg;
	uint64_t count;
	(void)what;
	ssize_t n = read(fd, &count, sizeof count);
	(void)n;
	c->a->h.bell(c->a->h.arg);
}

static void log_attached(const struct attached_memory *m)
{
	const struct handover_hello *h = m->hello;
	char layout[KV_LAYOUT_TEXT_MAX];
	kv_layout_text(&m->layout, layout, sizeof layout);
	log_notice("worker_attached",
	           "worker=%s epoch=%016llx blocks=%u block_bytes=%zu parts=%u stages=%u ring_slots=%u "
	           "layout=%s",
	           log_quote(h->name), (unsigned long long)h->epoch, h->blocks, m->layout.block_bytes,
	           h->parts, h->stages, h->ring_slots, log_quote(layout));
}

/* Receives the hello and replies. */
static void receive_hello(struct connection *c)
{
	struct attached *a = c->a;
	struct err err = {0};
	struct handover_hello h;
	struct attached_memory m = {.hello = &h};
	struct handover_fds fds;
	int r = handover_receive(c->sock, &h, &m.layout, &fds, &err);
	if (r == ERR_TIMEOUT)
		return;
	int known = r == 0;
	if (known)
		r = attach(c, &m, &fds, &err);
	int answered = handover_answer(c->sock, svc_epoch(a->h.svc), r, r < 0 ? err.text : "",
	                               svc_remote(a->h.svc), c->bell);
	if (r < 0) {
		refused(a, known ? h.name : "?", r, err.text);
		connection_end(c, err.text);
		return;
	}
	log_attached(&m);
	if (answered < 0) {
		connection_end(c, "the reply to its hello could not be sent");
		return;
	}
	event_remove_timer(c->event);
	if (c->bell >= 0) {
		c->bell_event = event_new(svc_base(a->h.svc), c->bell, EV_READ | EV_PERSIST, on_bell, c);
		event_add(c->bell_event, NULL);
	}
}

static void attached_on_readable(evutil_socket_t fd, short what, void *arg)
{
	struct connection *c = arg;
	(void)fd;
	if (c->worker) {
		connection_read(c);
	} else if (what & EV_READ) {
		receive_hello(c);
	} else {
		refused(c->a, "?", ERR_TIMEOUT,
		        "within 5 s a new connection had no hello, or its process no link");
		connection_end(c, "no hello");
	}
}

static int process_has_link(const struct attached *a, const struct process_origin *process)
{
	struct chan *links = svc_chan(a->h.svc);
	for (struct peer *p = chan_next(links, NULL); p; p = chan_next(links, p))
		if (peer_is_up(p) && !peer_tag(p) && process_origin_same(peer_origin(p), process))
			return 1;
	return 0;
}

/* Waits for the hello, or for a link of its process first. */
static void connection_wait(struct connection *c)
{
	short what = process_has_link(c->a, &c->process) ? EV_READ | EV_PERSIST : EV_PERSIST;
	if (c->event)
		event_free(c->event);
	c->event = event_new(svc_base(c->a->h.svc), c->sock, what, attached_on_readable, c);
	event_add(c->event, &(struct timeval){.tv_sec = HELLO_WAIT_S});
}

void attached_link_up(struct attached *a, const struct peer *p)
{
	list_each(it, &a->connections) {
		struct connection *c = list_entry(it, struct connection, link);
		if (!c->worker && process_origin_same(peer_origin(p), &c->process))
			connection_wait(c);
	}
}

static void connection_new(struct attached *a, int sock)
{
	const unsigned most = a->h.workers_max + SPARE;
	struct process_origin process;
	char why[160] = "too many connections: the limit is workers_max + 16, and half of "
					"that for one process";
	int r = process_origin_of(sock, &process, why, sizeof why);
	if (r == 0 && (a->n_connections >= most || connections_of(a, &process, 0) >= most / 2 ||
	               fcntl(sock, F_SETFL, O_NONBLOCK) < 0))
		r = ERR_FULL;
	if (r < 0) {
		refused(a, "?", r, why);
		close(sock);
		return;
	}
	struct connection *c = mem_zalloc(sizeof *c);
	c->a = a;
	c->sock = sock;
	c->bell = -1;
	c->process = process;
	list_push_back(&a->connections, &c->link);
	a->n_connections++;
	connection_wait(c);
}

static void on_pause_end(evutil_socket_t fd, short what, void *arg)
{
	struct attached *a = arg;
	(void)fd;
	(void)what;
	event_add(a->accept, NULL);
}

/* If no descriptor is free, accept4 (util/descriptors.h) has logged it and code is ERR_TIMEOUT. */
static void pause_listener(struct attached *a, int code)
{
	uint64_t now = clock_us();
	if (code != ERR_TIMEOUT &&
	    (!a->accept_logged_us || now - a->accept_logged_us >= LOG_EVERY_US)) {
		log_error("accept_failed", "why=%s retry_ms=%d", log_quote(strerror(errno)),
		          ACCEPT_PAUSE_MS);
		a->accept_logged_us = now;
	}
	event_del(a->accept);
	event_add(a->pause, &(struct timeval){.tv_usec = ACCEPT_PAUSE_MS * 1000});
}

static void on_connect(evutil_socket_t fd, short what, void *arg)
{
	struct attached *a = arg;
	int sock, taken = 0;
	(void)what;
	for (; (sock = sock_accept(fd)) >= 0; taken = 1)
		connection_new(a, sock);
	if (!taken)
		pause_listener(a, sock);
}

int attached_listen(const struct attached_hooks *hooks, struct attached **ret_a, struct err *err)
{
	char path[256];
	svc_sock_path(hooks->svc, svc_name(hooks->svc), path, sizeof path);
	int fd = sock_listen(path, 0600, err);
	if (fd < 0)
		return fd;
	if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0) {
		int r = err_set(err, ERR_IO, "%s: cannot make the socket non-blocking: %s", path,
		                strerror(errno));
		close(fd);
		return r;
	}
	struct attached *a = mem_zalloc(sizeof *a);
	a->h = *hooks;
	a->listener = fd;
	list_init(&a->connections);
	a->accept = event_new(svc_base(hooks->svc), fd, EV_READ | EV_PERSIST, on_connect, a);
	a->pause = event_new(svc_base(hooks->svc), -1, 0, on_pause_end, a);
	event_add(a->accept, NULL);
	*ret_a = a;
	return 0;
}

void attached_close(struct attached **ap, const char *why)
{
	struct attached *a = *ap;
	if (!a)
		return;
	while (!list_empty(&a->connections))
		connection_end(list_entry(a->connections.next, struct connection, link), why);
	event_free(a->accept);
	event_free(a->pause);
	close(a->listener);
	free(a);
	*ap = NULL;
}

void *attached_find(const struct attached *a, const char *name, uint64_t epoch)
{
	list_each(it, &a->connections) {
		const struct connection *c = list_entry(it, struct connection, link);
		if (c->worker && c->epoch == epoch && strcmp(c->name, name) == 0)
			return c->worker;
	}
	return NULL;
}

unsigned attached_workers(const struct attached *a)
{
	return a->n_workers;
}
