/* doors.c - connections on which workers hand their memory over: RUNDIR/NAME.sock.
 *
 * One door per connection: it waits for the one hello, maps what came, answers with a doorbell, and then waits for the end of file, which removes the worker
 * with all its memory. A connection that says nothing, or anything but one proper hello, is refused or closed; the daemon goes on. A worker is in the
 * mover only while its answer could be sent, so that no lease is opened for a worker that does not know us. */
#include "messager.h"

#include "kv/handover.h"
#include "svc/svc.h"
#include "util/clock.h"
#include "util/mem.h"
#include "util/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define HELLO_S 5        /* a connection without a hello is closed after this */
#define REFUSAL_LOG_US 10000000u
#define DOORS_SPARE 16   /* connections beside those of workers_max workers */

struct door {
	struct list node;
	struct messager *m;
	int sock, bell;
	struct event *sock_ev, *bell_ev;
	struct mover_worker *worker;   /* NULL until the hello */
};

static void door_close(struct door *d)
{
	struct messager *m = d->m;
	if (d->worker && m->mover)
		mover_remove(m->mover, d->worker);
	if (d->bell_ev)
		event_free(d->bell_ev);
	if (d->bell >= 0)
		close(d->bell);
	event_free(d->sock_ev);
	close(d->sock);
	list_remove(&d->node);
	m->n_doors--;
	free(d);
	stat_set_value(svc_stats(m->svc), MS_WORKERS, m->mover ? mover_workers(m->mover) : 0);
}

static void on_bell(evutil_socket_t fd, short what, void *arg)
{
	(void)what;
	struct door *d = arg;
	uint64_t begin = clock_us(), count, before = mover_bytes(d->m->mover);
	ssize_t n = read(fd, &count, sizeof count);
	(void)n;
	messager_pump(d->m);
	if (mover_bytes(d->m->mover) != before)
		stat_observe_us(svc_stats(d->m->svc), MS_REACTION_SECONDS, clock_us() - begin);
}

/* The worker of that name, if its connection has ended without us having seen it yet, goes first. 1 when the name is free. */
static int name_is_free(struct messager *m, const char *name)
{
	struct mover_worker *w = mover_find(m->mover, name);
	if (!w)
		return 1;
	list_each(it, &m->doors) {
		struct door *d = list_entry(it, struct door, node);
		struct pollfd p = {.fd = d->sock, .events = POLLIN | POLLRDHUP};
		if (d->worker != w)
			continue;
		if (poll(&p, 1, 0) <= 0 || !(p.revents & (POLLHUP | POLLRDHUP | POLLERR)))
			return 0;
		log_info("worker_gone", "worker=%s", name);
		door_close(d);
		return 1;
	}
	return 0;
}

static int map(struct door *d, const struct handover_hello *h, const struct kv_layout *layout, const int fds[3], struct err *err)
{
	struct kv_region region;
	struct ring *ring = NULL;
	int r = kv_region_map(&region, layout, h->blocks, h->backend, h->device, fds[0], fds[1], err);
	if (r == ERR_CLOSED)       /* the device is lost to this process: one that starts anew may find it well */
		svc_leave(err->text);
	if (r < 0) {
		if (fds[2] >= 0)
			close(fds[2]);
		return r;
	}
	if (fds[2] >= 0 && (r = ring_map(fds[2], h->ring_slots, h->ring_layers, h->epoch, &ring, err)) < 0) {
		kv_region_fini(&region);
		return r;
	}
	if (ring && (d->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0) {
		r = err_set(err, ERR_IO, "cannot create a doorbell: %s", strerror(errno));
		ring_destroy(&ring);
		kv_region_fini(&region);
		return r;
	}
	d->worker = mover_add(d->m->mover, h->name, h->epoch, layout, &region, ring);
	return 0;
}

static int admit(struct door *d, const struct handover_hello *h, const struct kv_layout *layout, const int fds[3], struct err *err)
{
	int r = 0;
	if (!name_is_free(d->m, h->name))
		r = err_set(err, ERR_EXISTS, "another worker named %s is connected: a second one under the same name is refused", h->name);
	else if (mover_workers(d->m->mover) >= d->m->workers_max)
		r = err_set(err, ERR_FULL, "%u workers are connected already (workers_max %u)", mover_workers(d->m->mover), d->m->workers_max);
	if (r == 0)
		return map(d, h, layout, fds, err);
	for (int i = 0; i < 3; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	return r;
}

static void watch_bell(struct door *d)
{
	if (d->bell < 0)
		return;
	d->bell_ev = event_new(svc_base(d->m->svc), d->bell, EV_READ | EV_PERSIST, on_bell, d);
	event_add(d->bell_ev, NULL);
}

static void refused(struct messager *m, const char *name, const char *why)
{
	uint64_t now = clock_us();
	stat_add(svc_stats(m->svc), MS_HANDOVERS_REFUSED, 1);
	if (strcmp(m->refusal, why) == 0 && now - m->refusal_us < REFUSAL_LOG_US)
		return;
	snprintf(m->refusal, sizeof m->refusal, "%s", why);
	m->refusal_us = now;
	log_warn("handover_refused", "worker=%s why=%s", name, log_quote(why));
}

/* 0: the door stays open. */
static int take_hello(struct door *d)
{
	struct handover_hello h;
	struct kv_layout layout;
	struct err err = {0};
	int fds[3], r = handover_receive(d->sock, &h, &layout, fds, &err);
	if (r == ERR_TIMEOUT)
		return 0;
	int known = r == 0;
	if (known)
		r = admit(d, &h, &layout, fds, &err);
	int answered = handover_answer(d->sock, svc_epoch(d->m->svc), r, err.text, d->bell);
	if (r == 0 && answered < 0)
		r = err_set(&err, answered, "the answer could not be sent: %s", err_name(answered));
	if (r < 0) {
		refused(d->m, known ? h.name : "?", err.text);
		return r;
	}
	event_remove_timer(d->sock_ev);
	watch_bell(d);
	stat_set_value(svc_stats(d->m->svc), MS_WORKERS, mover_workers(d->m->mover));
	log_info("worker_attached", "worker=%s epoch=%llu blocks=%u ring_slots=%u", h.name, (unsigned long long)h.epoch, h.blocks, h.ring_slots);
	messager_pump(d->m);
	return 0;
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	struct door *d = arg;
	char byte;
	if (!d->worker) {
		if (what & EV_TIMEOUT)
			refused(d->m, "?", "no hello within 5 s");
		if (what & EV_TIMEOUT || take_hello(d) < 0)
			door_close(d);
		return;
	}
	ssize_t n = sock_recv(d->sock, &byte, sizeof byte, NULL, 0, NULL);
	if (n == ERR_TIMEOUT)
		return;
	struct messager *m = d->m;
	log_info("worker_gone", "worker=%s why=%s", mover_name(d->worker), n == 0 || n == ERR_CLOSED ? "end_of_file" : "it_sent_more_than_a_hello");
	door_close(d);
	messager_pump(m);
}

static void on_connect(evutil_socket_t fd, short what, void *arg)
{
	(void)what;
	struct messager *m = arg;
	int sock;
	while ((sock = sock_accept(fd)) >= 0) {
		if (m->n_doors >= m->workers_max + DOORS_SPARE || fcntl(sock, F_SETFL, O_NONBLOCK) < 0) {
			close(sock);
			continue;
		}
		struct door *d = mem_zalloc(sizeof *d);
		const struct timeval limit = {HELLO_S, 0};
		d->m = m;
		d->sock = sock;
		d->bell = -1;
		d->sock_ev = event_new(svc_base(m->svc), sock, EV_READ | EV_PERSIST, on_readable, d);
		event_add(d->sock_ev, &limit);
		list_push_back(&m->doors, &d->node);
		m->n_doors++;
	}
}

int doors_open(struct messager *m, const char *path, struct err *err)
{
	m->listener = sock_listen(path, 0660, err);
	if (m->listener < 0)
		return m->listener;
	if (fcntl(m->listener, F_SETFL, O_NONBLOCK) < 0)
		return err_set(err, ERR_IO, "cannot set up %s: %s", path, strerror(errno));
	m->listen_ev = event_new(svc_base(m->svc), m->listener, EV_READ | EV_PERSIST, on_connect, m);
	event_add(m->listen_ev, NULL);
	return 0;
}

void doors_close(struct messager *m)
{
	if (m->listen_ev)
		event_free(m->listen_ev);
	m->listen_ev = NULL;
	if (m->listener >= 0)
		close(m->listener);
	m->listener = -1;
	list_each_safe(it, nx, &m->doors)
		door_close(list_entry(it, struct door, node));
}
