/* clients.c - the workers whose memory this daemon has mapped: one connection each on RUNDIR/NAME.sock.
 *
 * What always holds: at most one attached client of a name (a second one is refused while the first one's socket lives), at most workers_max of them;
 * a client's memory is unmapped only when none of its batches is under way. Its end of file gives up its batches. A connection that
 * says no hello within five seconds is closed. What a worker does wrong is answered with a sentence and logged; nothing here ends the daemon after start. */
#include "storage.h"

#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"
#include "util/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HELLO_WAIT_S 5

struct greeting {
	struct list link;
	struct storage *st;
	int sock;
	struct event *event;
};

struct client *client_find(struct storage *st, const char *name, uint64_t epoch)
{
	list_each(it, &st->clients) {
		struct client *c = list_entry(it, struct client, link);
		if (c->attached && c->epoch == epoch && strcmp(c->name, name) == 0)
			return c;
	}
	return NULL;
}

void client_free_if_done(struct client *c)
{
	if (c->attached || c->n_batches)
		return;
	list_remove(&c->link);
	kv_region_fini(&c->target.region);
	free(c);
}

static void client_detach(struct client *c, const char *why)
{
	log_info("worker_detached", "worker=%s epoch=%016llx batches=%u why=%s", log_quote(c->name), (unsigned long long)c->epoch, c->n_batches, log_quote(why));
	event_free(c->event);
	c->event = NULL;
	close(c->sock);
	c->sock = -1;
	c->attached = 0;
	c->st->n_clients--;
	stat_set_value(svc_stats(c->st->svc), ST_WORKERS, c->st->n_clients);
	serve_cancel(c);
	client_free_if_done(c);
}

/* Nothing is ever sent after the hello: whatever is readable is the end. Returns 1 if c was detached. */
static int client_read(struct client *c)
{
	char byte;
	unsigned n_fds = 0;
	ssize_t n = sock_recv(c->sock, &byte, sizeof byte, NULL, 0, &n_fds);
	if (n == ERR_TIMEOUT)
		return 0;
	client_detach(c, n == 0 || n == ERR_CLOSED ? "its socket is closed" : "it sent something after its hello");
	return 1;
}

static void on_client(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	client_read(arg);
}

/* Reads what the sockets of clients of this name have to say, so that an end of file that has arrived counts. Is the name still taken? */
static int name_taken(struct storage *st, const char *name)
{
	list_each_safe(it, nx, &st->clients) {
		struct client *c = list_entry(it, struct client, link);
		if (c->attached && strcmp(c->name, name) == 0 && !client_read(c))
			return 1;
	}
	return 0;
}

static void layout_salt(const char *text, unsigned char ret[KEY_SALT_BYTES])
{
	unsigned char hash[crypto_generichash_BYTES];
	crypto_generichash(hash, sizeof hash, (const unsigned char *)text, strlen(text), NULL, 0);
	memcpy(ret, hash, KEY_SALT_BYTES);
}

/* Maps the memory; fds are taken over. */
static int client_map(struct client *c, const struct handover_hello *h, int fds[3], struct err *err)
{
	if (fds[2] >= 0)
		close(fds[2]);   /* a task ring is not for us */
	int r = kv_region_map(&c->target.region, &c->target.layout, h->blocks, h->backend, h->device, fds[0], fds[1], err);
	if (r == ERR_CLOSED)       /* the device is lost to this process: one that starts anew may find it well */
		svc_leave(err->text);
	return r;
}

static int client_admit(struct storage *st, const struct handover_hello *h, struct err *err)
{
	if (name_taken(st, h->name))
		return err_set(err, ERR_EXISTS, "a worker named %s is attached already and its socket lives", h->name);
	if (st->n_clients >= st->clients_max)
		return err_set(err, ERR_FULL, "%u workers are attached; workers_max is %u", st->n_clients, st->clients_max);
	return 0;
}

/* The hello is good as a message. Takes fds over; c->sock stays the caller's on failure. */
static int client_attach(struct client *c, const struct handover_hello *h, int fds[3], struct err *err)
{
	struct storage *st = c->st;
	int r = client_admit(st, h, err);
	if (r != 0) {
		for (int i = 0; i < 3; i++)
			if (fds[i] >= 0)
				close(fds[i]);
		return r;
	}
	if ((r = client_map(c, h, fds, err)) != 0)
		return r;
	snprintf(c->name, sizeof c->name, "%s", h->name);
	c->epoch = h->epoch;
	c->since_us = clock_us();
	kv_layout_text(&c->target.layout, c->layout, sizeof c->layout);
	layout_salt(c->layout, c->salt);
	c->event = event_new(svc_base(st->svc), c->sock, EV_READ | EV_PERSIST, on_client, c);
	event_add(c->event, NULL);
	c->attached = 1;
	list_push_back(&st->clients, &c->link);
	stat_set_value(svc_stats(st->svc), ST_WORKERS, ++st->n_clients);
	log_info("worker_attached", "worker=%s epoch=%016llx blocks=%u block_bytes=%zu layout=%s", log_quote(c->name), (unsigned long long)c->epoch, h->blocks,
	         c->target.layout.block_bytes, log_quote(c->layout));
	tell_attached(st->tell, c);
	return 0;
}

/* Receives the hello, answers it, and makes a client of the connection. Takes sock over. */
static void greet(struct storage *st, int sock)
{
	struct err err = {0};
	struct handover_hello h;
	int fds[3] = {-1, -1, -1};
	struct client *c = mem_zalloc(sizeof *c);
	c->st = st;
	c->sock = sock;
	list_init(&c->link);
	list_init(&c->batches);
	int r = handover_receive(sock, &h, &c->target.layout, fds, &err);
	if (r == 0)
		r = client_attach(c, &h, fds, &err);
	int told = handover_answer(sock, svc_epoch(st->svc), r, r == 0 ? "" : err.text, -1);
	if (r != 0) {
		log_warn("worker_refused", "code=%s why=%s", err_name(r), log_quote(err.text));
		close(sock);
		free(c);
	} else if (told != 0) {
		client_detach(c, "it could not be answered");
	}
}

static void greeting_free(struct greeting *g)
{
	list_remove(&g->link);
	g->st->n_greeting--;
	event_free(g->event);
	free(g);
}

static void on_greeting(evutil_socket_t fd, short what, void *arg)
{
	struct greeting *g = arg;
	struct storage *st = g->st;
	greeting_free(g);
	if (what & EV_READ) {
		greet(st, fd);
	} else {
		log_warn("worker_silent", "wait_s=%d action=closed", HELLO_WAIT_S);
		close(fd);
	}
}

static void on_accept(evutil_socket_t fd, short what, void *arg)
{
	(void)what;
	struct storage *st = arg;
	int sock = sock_accept(fd);
	if (sock < 0)
		return;
	if (st->n_greeting >= st->clients_max || fcntl(sock, F_SETFL, O_NONBLOCK) != 0) {
		log_warn("connection_refused", "greeting=%u limit=%u", st->n_greeting, st->clients_max);
		close(sock);
		return;
	}
	struct greeting *g = mem_zalloc(sizeof *g);
	g->st = st;
	g->sock = sock;
	g->event = event_new(svc_base(st->svc), sock, EV_READ, on_greeting, g);
	list_push_back(&st->greeting, &g->link);
	st->n_greeting++;
	event_add(g->event, &(struct timeval){.tv_sec = HELLO_WAIT_S});
}

int clients_start(struct storage *st, struct err *err)
{
	char path[256];
	list_init(&st->clients);
	list_init(&st->greeting);
	svc_sock_path(st->svc, svc_name(st->svc), path, sizeof path);
	st->listener = sock_listen(path, 0660, err);
	if (st->listener < 0)
		return st->listener;
	if (fcntl(st->listener, F_SETFL, O_NONBLOCK) != 0)
		return err_set(err, ERR_IO, "%s: cannot make the socket non-blocking: %s", path, strerror(errno));
	st->accept_event = event_new(svc_base(st->svc), st->listener, EV_READ | EV_PERSIST, on_accept, st);
	event_add(st->accept_event, NULL);
	return 0;
}

void clients_stop(struct storage *st)
{
	list_each_safe(it, nx, &st->greeting) {
		struct greeting *g = list_entry(it, struct greeting, link);
		close(g->sock);
		greeting_free(g);
	}
	list_each_safe(it, nx, &st->clients)
		client_detach(list_entry(it, struct client, link), "storage ends");
	if (st->accept_event)
		event_free(st->accept_event);
	if (st->listener >= 0)
		close(st->listener);
}
