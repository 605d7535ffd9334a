/* attach.c - see attach.h.
 *
 * States: IDLE --connect, offer--> OFFERED --answer--> ON --end of file and process dead--> IDLE.
 * The peer's process is watched before the offer is sent: there is no moment in which the peer has
 * our memory and we could miss its death. If the connection ends before an answer was read, neither
 * `on` nor `gone` is called: the peer answers before it opens any lease, and data that it sent is
 * read before the end of file. Refusals and failures are logged once per text and retried; nothing
 * here is fatal. */
#include "attach.h"

#include "kv/ring.h"
#include "msg/process.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"
#include "util/sock.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RETRY_US 50000u
#define RETRIES_SOON 100u /* after this many retries, one tenth of the rate */
/* no answer within this time (the peer may be stopped): start over */
#define ANSWER_US 5000000u
/* warn if the process lives this long after its connection ended */
#define LINGER_US 1000000u

enum attach_state { ATTACH_IDLE, ATTACH_OFFERED, ATTACH_ON };

struct attach {
	struct event_base *base;
	char *what, *path;
	struct handover_hello hello;
	struct handover_fds fds;
	struct attach_hooks hooks;
	enum attach_state state;
	/* -1: closed; while ON, sock -1: end of file was read; pidfd -1: the process is dead */
	int sock, pidfd;
	struct event *sock_ev, *pid_ev, *timer;
	uint64_t epoch; /* of the attached peer, 0: none */
	char remote[HANDOVER_REMOTE_BYTES];
	unsigned tries; /* since the last ON */
	char said[384]; /* last complaint that was logged */
};

static void attach_arm(struct attach *a, uint64_t us)
{
	struct timeval tv = clock_timeval(us);
	event_add(a->timer, &tv);
}

static void complain(struct attach *a, const char *text)
{
	if (strcmp(a->said, text) == 0)
		return;
	snprintf(a->said, sizeof a->said, "%s", text);
	log_warn("attach_failed", "to=%s path=%s why=%s", a->what, a->path, log_quote(text));
}

static void drop_sock(struct attach *a)
{
	if (a->sock_ev)
		event_free(a->sock_ev);
	a->sock_ev = NULL;
	if (a->sock >= 0)
		close(a->sock);
	a->sock = -1;
}

static void drop_process(struct attach *a)
{
	if (a->pid_ev)
		event_free(a->pid_ev);
	a->pid_ev = NULL;
	if (a->pidfd >= 0)
		close(a->pidfd);
	a->pidfd = -1;
}

static void attach_again(struct attach *a)
{
	drop_sock(a);
	drop_process(a);
	a->state = ATTACH_IDLE;
	attach_arm(a, a->tries++ < RETRIES_SOON ? RETRY_US : 10 * RETRY_US);
}

/* While ON: `gone` needs both the end of file and the end of the process, in either order. */
static void check_gone(struct attach *a)
{
	if (a->sock >= 0 || a->pidfd >= 0)
		return;
	uint64_t epoch = a->epoch;
	a->epoch = 0;
	log_notice("attach_gone", "to=%s epoch=%llu", a->what, (unsigned long long)epoch);
	attach_again(a);
	a->hooks.gone(a->hooks.arg, epoch);
}

static void sock_ended(struct attach *a)
{
	if (a->state != ATTACH_ON) {
		attach_again(a);
		return;
	}
	drop_sock(a);
	attach_arm(a, LINGER_US);
	check_gone(a);
}

static void on_dead(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	struct attach *a = arg;
	drop_process(a);
	if (a->state == ATTACH_ON)
		check_gone(a);
	/* else: the socket's end of file follows; an answer still in the socket is read first */
}

static void attach_take_answer(struct attach *a)
{
	struct handover_reply reply;
	struct err err = {0};
	int bell = -1, r = handover_result(a->sock, &reply, &bell, &err);
	if (r == ERR_TIMEOUT)
		return;
	if (r < 0 || reply.code < 0) {
		complain(a, r < 0 ? err.text : reply.text[0] ? reply.text : err_name(reply.code));
		attach_again(a);
		return;
	}
	event_del(a->timer);
	a->said[0] = 0;
	a->tries = 0;
	a->epoch = reply.epoch;
	snprintf(a->remote, sizeof a->remote, "%s", reply.remote);
	a->state = ATTACH_ON;
	log_notice("attach_on", "to=%s epoch=%llu", a->what, (unsigned long long)a->epoch);
	a->hooks.on(a->hooks.arg, reply.epoch, bell);
}

static void attach_on_readable(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	struct attach *a = arg;
	if (a->state == ATTACH_OFFERED) {
		attach_take_answer(a);
		return;
	}
	char byte;
	ssize_t n = sock_recv(a->sock, &byte, sizeof byte, NULL, 0, NULL);
	if (n > 0 || n == ERR_INVALID)
		complain(a, "unexpected data after its answer");
	else if (n != ERR_TIMEOUT)
		sock_ended(a);
}

static int offer(struct attach *a, struct err *err)
{
	struct process_origin who;
	char why[160];
	pid_t pid;
	if ((a->sock = sock_connect(a->path, err)) < 0)
		return a->sock;
	if (process_origin_of(a->sock, &who, why, sizeof why) < 0)
		return err_set(err, ERR_INVALID, "%s: %s", a->path, why);
	if ((a->pidfd = sock_peer_pidfd(a->sock, &pid)) < 0)
		return err_set(
			err, a->pidfd,
			"cannot watch the process behind %s (%s): its death could not serve as a fence",
			a->path, err_name(a->pidfd));
	int r = handover_offer(a->sock, &a->hello, &a->fds, err);
	if (r < 0)
		return r;
	if (fcntl(a->sock, F_SETFL, O_NONBLOCK) < 0)
		return err_set(err, ERR_IO, "cannot set up the connection to %s", a->path);
	a->state = ATTACH_OFFERED;
	a->sock_ev = event_new(a->base, a->sock, EV_READ | EV_PERSIST, attach_on_readable, a);
	a->pid_ev = event_new(a->base, a->pidfd, EV_READ, on_dead, a);
	event_add(a->sock_ev, NULL);
	event_add(a->pid_ev, NULL);
	attach_arm(a, ANSWER_US);
	return 0;
}

static void attach_on_timer(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	struct attach *a = arg;
	struct err err = {0};
	if (a->state == ATTACH_ON) {
		log_warn(
			"attach_lingers", "to=%s epoch=%llu why=%s", a->what, (unsigned long long)a->epoch,
			log_quote(
				"the connection has ended but the process lives: it may still map our memory"));
		return;
	}
	if (a->state == ATTACH_OFFERED) {
		complain(a, "no answer to the hand-over within 5 s");
		attach_again(a);
		return;
	}
	if (offer(a, &err) < 0) {
		complain(a, err.text);
		attach_again(a);
	}
}

struct attach *attach_new(struct svc *s, const char *what, const char *path,
                          const struct handover_hello *hello, const struct handover_fds *fds,
                          const struct attach_hooks *hooks)
{
	struct attach *a = mem_zalloc(sizeof *a);
	a->base = svc_base(s);
	a->what = mem_strdup(what);
	a->path = mem_strdup(path);
	a->hello = *hello;
	a->fds = *fds;
	a->hooks = *hooks;
	a->sock = a->pidfd = -1;
	a->timer = event_new(a->base, -1, 0, attach_on_timer, a);
	attach_arm(a, 0);
	return a;
}

void attach_destroy(struct attach **ap)
{
	struct attach *a = *ap;
	if (!a)
		return;
	drop_sock(a);
	drop_process(a);
	event_free(a->timer);
	free(a->what);
	free(a->path);
	free(a);
	*ap = NULL;
}

void attach_leave_open(struct attach **ap)
{
	struct attach *a = *ap;
	if (a->sock_ev)
		event_free(a->sock_ev);
	a->sock_ev = NULL;
	a->sock = -1;
	attach_destroy(ap);
}

int attach_is_on(struct attach *a, uint64_t epoch)
{
	if (a->state == ATTACH_OFFERED)
		attach_take_answer(a);
	return a->state == ATTACH_ON && a->epoch == epoch;
}

int attach_stands(const struct attach *a)
{
	return a->state == ATTACH_ON && a->sock >= 0;
}

const char *attach_remote(const struct attach *a)
{
	return a->remote;
}
