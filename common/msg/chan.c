/* chan.c - sockets, sending, and the life of peers. chan.h states the guarantees; chan_in.c handles
 * incoming messages.
 *
 * A send never waits: messages that the socket does not take now stay in the link's window, and a
 * later tick sends them. */
#include "msg/chan_priv.h"
#include "msg/process.h"
#include "msg/resolve.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/descriptors.h"
#include "util/least.h"
#include "util/mem.h"
#include "util/version.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SOCKET_MESSAGES 4096 /* per connection and direction, before the socket is full */

static void sock_ready(evutil_socket_t fd, short what, void *arg)
{
	struct sock *s = arg;
	(void)fd;
	(void)what;
	if (s->rests) {
		s->rests = 0;
		s->c->n_rests--;
		event_add(s->ev, NULL);
	}
	chan_take(s);
}

/* All events that waited when links had their last turn have been handled. */
static void others_done(evutil_socket_t fd, short what, void *arg)
{
	struct chan *c = arg;
	(void)fd;
	(void)what;
	c->others_wait = 0;
	if (!c->n_rests)
		return;
	struct sock *bound[] = {c->bound, c->net};
	for (int i = 0; i < 2; i++)
		if (bound[i] && bound[i]->rests)
			event_active(bound[i]->again, EV_READ, 1);
	list_each(it, &c->peers) {
		struct sock *s = list_entry(it, struct peer, node)->dealer;
		if (s && s->rests)
			event_active(s->again, EV_READ, 1);
	}
}

static int sock_open(struct chan *c, int type, struct sock **ret)
{
	void *z = zmq_socket(c->ctx, type);
	if (!z)
		return ERR_IO;
	int zero = 0, hwm = SOCKET_MESSAGES, one = 1, ivl = 20, ivl_max = 500, handshake_ms = 5000;
	int connect_ms = 3000; /* the kernel's own limit is minutes */
	/* nothing sent was acknowledged, or the peer takes nothing: the same */
	int lost_ms = 5000;
	int64_t max = 2 * MSG_PART_BYTES; /* a part and its envelope; ZeroMQ closes on larger frames */
	zmq_setsockopt(z, ZMQ_LINGER, &zero, sizeof zero);
	zmq_setsockopt(z, ZMQ_SNDHWM, &hwm, sizeof hwm);
	zmq_setsockopt(z, ZMQ_RCVHWM, &hwm, sizeof hwm);
	zmq_setsockopt(z, ZMQ_MAXMSGSIZE, &max, sizeof max);
	zmq_setsockopt(z, ZMQ_HANDSHAKE_IVL, &handshake_ms, sizeof handshake_ms);
	zmq_setsockopt(z, ZMQ_TCP_MAXRT, &lost_ms, sizeof lost_ms);
	if (type == ZMQ_ROUTER) {
		/* ZMQ_BACKLOG stays at 100: the I/O thread accepts thousands of connections per second, so
		 * only a flood fills the queue, and a longer one would not let a peer in sooner. */
		zmq_setsockopt(z, ZMQ_ROUTER_MANDATORY, &one, sizeof one);
	} else {
		zmq_setsockopt(z, ZMQ_IMMEDIATE, &one, sizeof one);
		zmq_setsockopt(z, ZMQ_CONNECT_TIMEOUT, &connect_ms, sizeof connect_ms);
		zmq_setsockopt(z, ZMQ_RECONNECT_IVL, &ivl, sizeof ivl);
		zmq_setsockopt(z, ZMQ_RECONNECT_IVL_MAX, &ivl_max, sizeof ivl_max);
	}
	int fd;
	size_t len = sizeof fd;
	zmq_getsockopt(z, ZMQ_FD, &fd, &len);
	struct sock *s = mem_zalloc(sizeof *s);
	s->c = c;
	s->z = z;
	s->ev = event_new(c->base, fd, EV_READ | EV_PERSIST, sock_ready, s);
	s->again = event_new(c->base, -1, 0, sock_ready, s);
	event_priority_set(s->ev, 0);
	event_priority_set(s->again, 0);
	event_add(s->ev, NULL);
	*ret = s;
	return 0;
}

static void sock_close(struct sock **sp)
{
	struct sock *s = *sp;
	if (!s)
		return;
	s->c->n_rests -= (unsigned)s->rests;
	event_free(s->ev);
	event_free(s->again);
	zmq_close(s->z);
	free(s);
	*sp = NULL;
}

/* --- sending ------------------------------------------------------------- */

void chan_envelope(struct chan *c, struct peer *p, enum msg_type type, Pds__Envelope *env)
{
	pds__envelope__init(env);
	env->version = PROTOCOL_VERSION;
	env->type = type;
	env->sender = c->name;
	env->epoch = c->opts.epoch;
	if (p && p->epoch) {
		env->ack_epoch = p->epoch;
		env->ack = p->link.expect - 1;
		env->link = p->link_id;
	}
}

static int put_frames(struct sock *s, const void *rid, size_t rid_len, const void *head,
                      size_t head_len, zmq_msg_t *body)
{
	if (!s->peer && (!rid_len || zmq_send(s->z, rid, rid_len, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0))
		return rid_len && zmq_errno() == EAGAIN ? ERR_FULL : ERR_CLOSED;
	if (zmq_send(s->z, head, head_len, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
	    zmq_msg_send(body, s->z, ZMQ_DONTWAIT) < 0)
		return ERR_CLOSED;
	s->c->counts.sent++;
	return 0;
}

int chan_put_msg(struct sock *s, const void *rid, size_t rid_len, const void *head, size_t head_len,
                 zmq_msg_t *body)
{
	int r = put_frames(s, rid, rid_len, head, head_len, body);
	/* Also if the send fails: any ZeroMQ call may consume the edge of its descriptor, and messages
	 * that have arrived, or a connection that is up, would not be seen. */
	if (!s->rests && !s->takes &&
	    (chan_events(s) & ZMQ_POLLIN || (s->peer && s->peer->state == PEER_HELLO)))
		event_active(s->again, EV_READ, 1);
	return r;
}

int chan_put(struct sock *s, const void *rid, size_t rid_len, const void *head, size_t head_len,
             const void *body, size_t len)
{
	zmq_msg_t m;
	if (zmq_msg_init_size(&m, len) < 0)
		return ERR_CLOSED;
	if (len)
		memcpy(zmq_msg_data(&m), body, len);
	int r = chan_put_msg(s, rid, rid_len, head, head_len, &m);
	zmq_msg_close(&m);
	return r;
}

const struct chan_faults *chan_faults;

int chan_transmit(struct chan *c, struct peer *p, struct sock *s, const void *rid, size_t rid_len,
                  const Pds__Envelope *env, const void *body, size_t len)
{
	unsigned char head[512];
	if (c->fault)
		return chan_faults->out(c, p, s, rid, rid_len, env, body, len);
	size_t n = pds__envelope__get_packed_size(env);
	CHECK(n <= sizeof head);
	pds__envelope__pack(env, head);
	return chan_put(s, rid, rid_len, head, n, body, len);
}

static unsigned char *pack(const ProtobufCMessage *body, size_t *ret_len)
{
	*ret_len = protobuf_c_message_get_packed_size(body);
	unsigned char *b = mem_alloc(*ret_len);
	protobuf_c_message_pack(body, b);
	return b;
}

/* An acknowledgement was sent with this message. */
static void ack_left(struct peer *p, const Pds__Envelope *env)
{
	if (!env->ack_epoch)
		return;
	p->link.acked_out = env->ack;
	p->ack_due_us = 0;
}

int chan_send_link(struct chan *c, struct peer *p, enum msg_type type, const ProtobufCMessage *body)
{
	Pds__Envelope env;
	chan_envelope(c, p, type, &env);
	size_t len;
	unsigned char *b = pack(body, &len);
	int r = chan_transmit(c, p, peer_sock(p), p->rid, p->rid_len, &env, b, len);
	free(b);
	if (r == 0)
		ack_left(p, &env);
	return r;
}

int chan_send_rid(struct chan *c, struct sock *s, const void *rid, size_t rid_len,
                  enum msg_type type, const ProtobufCMessage *body)
{
	Pds__Envelope env;
	chan_envelope(c, NULL, type, &env);
	size_t len;
	unsigned char *b = pack(body, &len);
	int r = chan_transmit(c, NULL, s, rid, rid_len, &env, b, len);
	free(b);
	return r;
}

static void send_out(struct chan *c, struct peer *p, struct link_out *o)
{
	Pds__Envelope env;
	chan_envelope(c, p, o->type, &env);
	env.seq = o->seq;
	env.more = o->more;
	env.request_hi = o->req.hi;
	env.request_lo = o->req.lo;
	env.attempt = o->attempt;
	if (o->deadline_us) {
		uint64_t left = clock_left_us(o->deadline_us);
		env.time_left_us = left ? left : 1;
	}
	if (chan_transmit(c, p, peer_sock(p), p->rid, p->rid_len, &env, o->body, o->len) < 0) {
		p->resend_at_us = clock_us() + c->timers.retry_us;
		chan_tick_soon(c, p->resend_at_us);
		return;
	}
	o->sent_us = clock_us();
	ack_left(p, &env);
}

void chan_resend(struct chan *c, struct peer *p, uint32_t most)
{
	p->resend_at_us = 0;
	p->resend_all = 0;
	list_each(it, &p->link.window) {
		struct link_out *o = list_entry(it, struct link_out, node);
		if (most-- == 0)
			return;
		int again = o->sent_us != 0;
		send_out(c, p, o);
		c->counts.resent += again && !p->resend_at_us;
		if (p->resend_at_us) {
			p->resend_all = o->sent_us != 0;
			return;
		}
	}
}

/* The window begins with the messages that the socket has taken; this finds the first one after
 * them. */
void chan_send_rest(struct chan *c, struct peer *p)
{
	struct list *first = &p->link.window;
	p->resend_at_us = 0;
	while (first->prev != &p->link.window &&
	       !list_entry(first->prev, struct link_out, node)->sent_us)
		first = first->prev;
	for (; first != &p->link.window && !p->resend_at_us; first = first->next)
		send_out(c, p, list_entry(first, struct link_out, node));
}

/* Progress resets the resend time of the messages that remain. */
void chan_acked(struct chan *c, struct peer *p, uint64_t ack)
{
	uint32_t before = p->link.n_window;
	link_acked(&p->link, ack);
	if (p->link.n_window == before)
		return;
	p->resend_wait_us = c->timers.resend_us;
	p->progress_us = clock_us();
	if (!list_empty(&p->link.window))
		chan_tick_soon(c, list_entry(p->link.window.next, struct link_out, node)->sent_us +
		                      p->resend_wait_us);
}

/* Checks that the peer would accept the message. A peer drops what it refuses without an answer, so
 * the sender gets the error here. */
static int check_out(const struct chan *c, const struct peer *p, const struct msg_type_info *info,
                     const ProtobufCMessage *body, size_t len)
{
	size_t limit = info->flags & MSG_NUMBERED ? c->opts.message_bytes_max : MSG_PART_BYTES;
	struct err err = {0};
	if (len > limit)
		err_set(&err, ERR_INVALID, "the body has %zu bytes, allowed %zu", len, limit);
	else if (msg_validate(info, body, &err) == 0)
		return 0;
	log_error("message_refused", "peer=%s type=%s why=%s", p->name, info->name,
	          log_quote(err.text));
	return ERR_INVALID;
}

static size_t parts_of(size_t len)
{
	return len ? (len + MSG_PART_BYTES - 1) / MSG_PART_BYTES : 1;
}

/* Appends the body to the window, in as many parts as needed; *ret_first is the first part.
 * ERR_FULL: out of memory. */
static int push_parts(struct peer *p, const ProtobufCMessage *body, size_t len,
                      struct link_out **ret_first)
{
	size_t n = parts_of(len), pushed = 0;
	unsigned char *whole = n > 1 ? malloc(len) : NULL;
	struct link_out *o = NULL;
	if (whole)
		protobuf_c_message_pack(body, whole);
	for (; pushed < n && (n == 1 || whole); pushed++) {
		size_t at = pushed * MSG_PART_BYTES,
			   size = len - at < MSG_PART_BYTES ? len - at : MSG_PART_BYTES;
		if (!(o = link_push(&p->link, size)))
			break;
		o->more = pushed + 1 < n;
		if (whole)
			memcpy(o->body, whole + at, size);
		else
			protobuf_c_message_pack(body, o->body);
		if (pushed == 0)
			*ret_first = o;
	}
	free(whole);
	if (pushed == n)
		return 0;
	while (pushed--)
		link_pop(&p->link);
	return ERR_FULL;
}

int chan_send(struct chan *c, struct peer *p, enum msg_type type, const struct msg_head *head,
              const ProtobufCMessage *body)
{
	const struct msg_type_info *info = msg_type_find(type);
	CHECK(info && info->body == body->descriptor && !(info->flags & MSG_LINK));
	CHECK(!(info->flags & MSG_REQUEST) ||
	      (head && (head->req.hi || head->req.lo) && head->attempt));
	/* after what was not sent nothing goes out: the peer would see a gap */
	if (p->state != PEER_UP || p->overrun)
		return info->flags & MSG_NUMBERED ? ERR_CLOSED : 0;
	size_t len = protobuf_c_message_get_packed_size(body);
	struct link_out *first = NULL;
	int r = check_out(c, p, info, body, len);
	if (r < 0)
		return r;
	if (!(info->flags & MSG_NUMBERED)) {
		chan_send_link(c, p, type, body);
		return 0;
	}
	if (!link_has_room(&p->link, c->opts.window_messages, c->opts.window_bytes, parts_of(len), len))
		return ERR_FULL;
	if (list_empty(&p->link.window))
		p->progress_us = clock_us();
	if ((r = push_parts(p, body, len, &first)) < 0)
		return r;
	for (struct list *it = &first->node; it != &p->link.window; it = it->next) {
		struct link_out *o = list_entry(it, struct link_out, node);
		o->type = type;
		if (head) {
			o->req = head->req;
			o->attempt = head->attempt;
			o->deadline_us = head->deadline_us;
		}
		if (!p->resend_at_us)
			send_out(c, p, o);
	}
	chan_worked(c, p);
	if (!p->resend_at_us) /* else the timer is armed for the socket, and `first` may be unsent */
		chan_tick_soon(c, first->sent_us + p->resend_wait_us);
	return 0;
}

void chan_restart(struct chan *c, struct peer *p)
{
	if (p->state != PEER_UP)
		return;
	p->overrun = 1;
	chan_tick_soon(c, clock_us());
}

/* --- hello, welcome, up, down -------------------------------------------- */

void chan_hello(struct chan *c, struct peer *p)
{
	Pds__Hello h = PDS__HELLO__INIT;
	Pds__Process proc;
	Pds__WorkerInfo w = PDS__WORKER_INFO__INIT;
	process_self(&proc);
	h.program = c->program;
	h.process = &proc;
	if (c->hooks.describe && c->hooks.describe(c->hooks.arg, &w))
		h.worker = &w;
	h.knows_epoch = p->epoch;
	h.received = p->epoch ? p->link.expect - 1 : 0;
	h.silence_ms = (uint32_t)(c->opts.silence_us / 1000u);
	h.nth = p->hello_nth = ++c->hello_n;
	h.link = p->link_id;
	h.build = (char *)build_version();
	p->hello_us = clock_us();
	p->hello_wait_us = c->timers.hello_us;
	p->hello_waits = chan_send_link(c, p, MSG_HELLO, &h.base) < 0;
	chan_tick_soon(c, p->hello_us + p->hello_wait_us);
}

void chan_welcome(struct chan *c, struct peer *p, int resumed)
{
	Pds__Welcome w = PDS__WELCOME__INIT;
	Pds__Process proc;
	process_self(&proc);
	w.program = c->program;
	w.process = &proc;
	w.knows_epoch = resumed ? p->epoch : 0;
	w.received = p->link.expect - 1;
	w.silence_ms = (uint32_t)(c->opts.silence_us / 1000u);
	w.link = p->link_id;
	chan_send_link(c, p, MSG_WELCOME, &w.base);
}

struct peer *chan_peer_new(struct chan *c)
{
	struct peer *p = mem_zalloc(sizeof *p);
	p->c = c;
	p->pidfd = -1;
	p->resend_wait_us = c->timers.resend_us;
	p->hello_wait_us = c->timers.hello_us;
	snprintf(p->name, sizeof p->name, "?");
	link_init(&p->link);
	list_push_back(&c->peers, &p->node);
	c->n_peers++;
	return p;
}

static void peer_unwatch(struct peer *p)
{
	if (p->pid_ev)
		event_free(p->pid_ev);
	p->pid_ev = NULL;
	if (p->pidfd >= 0)
		close(p->pidfd);
	p->pidfd = -1;
	p->watched = 0;
}

void chan_peer_free(struct peer *p)
{
	list_remove(&p->node);
	if (p->c->fault)
		chan_faults->forget(p->c, p);
	peer_unwatch(p);
	link_fini(&p->link);
	parts_drop(&p->parts);
	chan_name_free(p);
	sock_close(&p->dealer);
	if (p->hello)
		pds__hello__free_unpacked(p->hello, NULL);
	free(p);
}

static void pid_ended(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	struct peer *p = arg;
	enum peer_state state = p->state;
	uint64_t epoch = p->epoch;
	p->watched = 0; /* its successor may have the name */
	int more = chan_take(peer_sock(p));
	if (p->state != state || p->epoch != epoch)
		return;
	if (more && p->pid_ev) {
		/* its goodbye may still be unread: again when other events have had their turn */
		event_priority_set(p->pid_ev, 1);
		event_add(p->pid_ev, NULL);
		return;
	}
	chan_peer_down(p->c, p, "its process ended", p->dealer ? PEER_HELLO : PEER_DEAD);
}

void chan_peer_watch(struct chan *c, struct peer *p, const Pds__Process *proc)
{
	int dead;
	peer_unwatch(p);
	p->self = 0;
	if (!p->origin.is_local) /* its process is of another host, whatever it says */
		return;
	p->pidfd = process_watch(proc, &dead);
	p->self = p->pidfd >= 0 && proc->pid == (uint32_t)getpid();
	if (p->pidfd < 0)
		return;
	p->watched = 1;
	p->pid_ev = event_new(c->base, p->pidfd, EV_READ, pid_ended, p);
	event_priority_set(p->pid_ev, 0);
	event_add(p->pid_ev, NULL);
}

void chan_peer_up(struct chan *c, struct peer *p)
{
	p->state = PEER_UP;
	p->heard_us = p->beat_us = p->busy_us = p->busy_since_us = clock_us();
	p->refusal[0] = 0;
	chan_name_up(p);
	c->counts.peers_up++;
	log_notice("peer_up", "peer=%s epoch=%llu program=%s", p->name, (unsigned long long)p->epoch,
	           p->program);
	if (c->hooks.up)
		c->hooks.up(c->hooks.arg, p);
	c->active_us = clock_us();
	chan_tick_soon(c, c->active_us);
}

void chan_peer_down(struct chan *c, struct peer *p, const char *why, enum peer_state next)
{
	int was_up = p->state == PEER_UP;
	if (p->state == PEER_DEAD)
		/* ended already, by its owner within the `down` hook or before: `down` is called once */
		return;
	p->state = next;
	if (was_up) {
		c->counts.peers_up--;
		log_notice("peer_down", "peer=%s epoch=%llu why=%s", p->name, (unsigned long long)p->epoch,
		           log_quote(why));
		if (c->hooks.down)
			c->hooks.down(c->hooks.arg, p, why);
	}
	p->data = NULL;
	if (c->fault)
		chan_faults->forget(c, p);
	link_fini(&p->link);
	link_init(&p->link);
	parts_drop(&p->parts);
	p->resend_all = p->overrun = 0;
	p->resend_at_us = p->ack_due_us = p->gap_us = p->link_id = 0;
	p->resend_wait_us = c->timers.resend_us;
	p->hello_us = 0;
	peer_unwatch(p);
	chan_tick_soon(c, clock_us() + (next == PEER_DEAD ? GRAVE_US : 0));
	if (next == PEER_DEAD) {
		list_remove(&p->node);
		list_push_back(&c->graveyard, &p->node);
		c->n_peers--;
	} else {
		p->epoch = 0;
	}
}

/* --- life ---------------------------------------------------------------- */

static struct chan_timers timers_of(uint64_t resend_us)
{
	uint64_t r = resend_us ? resend_us : RESEND_US, hello = least(r, HELLO_RETRY_US);
	return (struct chan_timers){.resend_us = r,
	                            .resend_max_us = 8 * r,
	                            .ack_us = r / 4,
	                            .retry_us = r / 20,
	                            .gap_us = r / 20,
	                            .hello_us = hello,
	                            .hello_max_us = 8 * hello};
}

/* Strangers may open it: they must not take the descriptors that peers and pdctl need. */
static void guard(void *z)
{
	char bound[300];
	size_t len = sizeof bound;
	const char *port = zmq_getsockopt(z, ZMQ_LAST_ENDPOINT, bound, &len) == 0 ? strrchr(bound, ':')
	                                                                          : NULL;
	if (port)
		descriptors_guard_port((uint16_t)strtoul(port + 1, NULL, 10));
}

static int bind_one(struct chan *c, const char *endpoint, int net, struct sock **ret_s,
                    struct err *err)
{
	if (!endpoint || !*endpoint)
		return 0;
	if (sock_open(c, ZMQ_ROUTER, ret_s) == 0) {
		int v6 = strchr(endpoint, '[') != NULL;
		if (net)
			chan_curve_server(c, (*ret_s)->z);
		zmq_setsockopt((*ret_s)->z, ZMQ_IPV6, &v6, sizeof v6);
		if (zmq_bind((*ret_s)->z, endpoint) == 0) {
			if (net)
				guard((*ret_s)->z);
			return 0;
		}
	}
	return err_set(err, ERR_IO, "cannot listen on %s: %s", endpoint, zmq_strerror(zmq_errno()));
}

static int bind_all(struct chan *c, struct err *err)
{
	int r = c->opts.keys ? chan_zap_start(c, err) : 0;
	if (r == 0)
		r = bind_one(c, c->opts.bind, 0, &c->bound, err);
	if (r == 0 && c->opts.listen && *c->opts.listen && !c->opts.keys)
		return err_set(err, ERR_INVALID, "listening on %s needs keys", c->opts.listen);
	return r == 0 ? bind_one(c, c->opts.listen, 1, &c->net, err) : r;
}

int chan_new(struct event_base *base, const struct chan_opts *opts, const struct chan_hooks *hooks,
             struct chan **ret_c, struct err *err)
{
	if (strlen(opts->name) > MSG_NAME_MAX || !opts->name[0])
		return err_set(err, ERR_INVALID, "name \"%.60s\" has %zu bytes, allowed 1 to %u",
		               opts->name, strlen(opts->name), MSG_NAME_MAX);
	struct chan *c = mem_zalloc(sizeof *c);
	c->base = base;
	c->hooks = *hooks;
	c->opts = *opts;
	c->timers = timers_of(opts->resend_us);
	c->name = mem_strdup(opts->name);
	c->program = mem_strdup(opts->program);
	list_init(&c->peers);
	list_init(&c->graveyard);
	list_init(&c->asked);
	c->tick_at_us = UINT64_MAX;
	c->ctx = zmq_ctx_new();
	zmq_ctx_set(c->ctx, ZMQ_MAX_SOCKETS, (int)opts->peers_max + 8);
	c->tick = event_new(base, -1, 0, chan_tick, c);
	event_priority_set(c->tick, 0);
	c->others = event_new(base, -1, 0, others_done, c);
	int bad = resolve_check_servers(opts->dns_servers, err);
	if (bad == 0 && chan_faults)
		bad = chan_faults->start(c, err);
	if (bad < 0) {
		chan_destroy(&c);
		return bad;
	}
	if ((bad = bind_all(c, err)) < 0) {
		chan_destroy(&c);
		return bad;
	}
	*ret_c = c;
	return 0;
}

void chan_destroy(struct chan **cp)
{
	struct chan *c = *cp;
	if (!c)
		return;
	int linger = 1000;
	chan_say_goodbye(c);
	list_each_safe(it, nx, &c->peers) {
		struct peer *p = list_entry(it, struct peer, node);
		if (p->dealer)
			zmq_setsockopt(p->dealer->z, ZMQ_LINGER, &linger, sizeof linger);
		chan_peer_free(p);
	}
	if (c->fault)
		chan_faults->stop(c);
	chan_ctl_forget(c);
	list_each_safe(it, nx, &c->graveyard)
		chan_peer_free(list_entry(it, struct peer, node));
	struct sock **bound[] = {&c->bound, &c->net};
	for (int i = 0; i < 2; i++) {
		if (*bound[i])
			zmq_setsockopt((*bound[i])->z, ZMQ_LINGER, &linger, sizeof linger);
		sock_close(bound[i]);
	}
	chan_zap_stop(c);
	event_free(c->tick);
	event_free(c->others);
	zmq_ctx_term(c->ctx);
	free(c->name);
	free(c->program);
	free(c);
	*cp = NULL;
}

struct peer *chan_connect(struct chan *c, const char *endpoint, const char *expected_name, int tag)
{
	struct sock *dealer = NULL;
	char own_name[MSG_NAME_MAX + 1];
	const char *why = NULL, *address = chan_endpoint_address(endpoint, own_name);
	struct err err = {0};
	int net = strncmp(address, "ipc://", 6) != 0;
	if (!expected_name && *own_name)
		expected_name = own_name;
	if (*own_name && strcmp(expected_name, own_name) != 0)
		why = "the endpoint names another daemon";
	else if (c->n_peers >= c->opts.peers_max)
		why = "the limit on peers is reached";
	else if (sock_open(c, ZMQ_DEALER, &dealer) < 0)
		why = zmq_strerror(zmq_errno());
	else if (net && chan_curve_client(c->opts.keys, dealer->z, expected_name, &err) < 0)
		why = err.text;
	if (why) {
		char what[400]; /* owners try again and again */
		snprintf(what, sizeof what, "%s %s", endpoint, why);
		if (once_may_log(&c->refused, what, strlen(what)))
			log_error("connect_failed", "endpoint=%s peers=%u limit=%u why=%s", log_quote(endpoint),
			          c->n_peers, c->opts.peers_max, log_quote(why));
		sock_close(&dealer);
		return NULL;
	}
	struct peer *p = chan_peer_new(c);
	p->tag = tag;
	p->state = PEER_HELLO;
	snprintf(p->endpoint, sizeof p->endpoint, "%s", endpoint);
	snprintf(p->expected, sizeof p->expected, "%s", expected_name ? expected_name : "");
	p->dealer = dealer;
	p->dealer->peer = p;
	if (net)
		snprintf(p->server_key, sizeof p->server_key, "%s",
		         keys_named(c->opts.keys, expected_name)->print);
	p->hello_us = clock_us();
	p->hello_waits = 1; /* until the connection is up */
	if (chan_name_connect(p, address) < 0) {
		log_error("connect_failed", "endpoint=%s why=%s", log_quote(endpoint),
		          log_quote(zmq_strerror(zmq_errno())));
		c->n_peers--;
		chan_peer_free(p);
		return NULL;
	}
	chan_tick_soon(c, p->hello_us + c->timers.hello_us);
	return p;
}

void chan_disconnect(struct chan *c, struct peer *p)
{
	chan_peer_down(c, p, "disconnected", PEER_DEAD);
}

/* --- queries ------------------------------------------------------------- */

struct keys *chan_keys(const struct chan *c)
{
	return c->opts.keys;
}

struct peer *chan_find(struct chan *c, const char *name, int tag)
{
	list_each(it, &c->peers) {
		struct peer *p = list_entry(it, struct peer, node);
		if (p->state == PEER_UP && peer_tag(p) == tag && strcmp(p->name, name) == 0)
			return p;
	}
	return NULL;
}

struct peer *chan_next(struct chan *c, struct peer *after)
{
	struct list *n = after ? after->node.next : c->peers.next;
	return n == &c->peers ? NULL : list_entry(n, struct peer, node);
}

const char *peer_name(const struct peer *p)
{
	return p->name;
}
uint64_t peer_epoch(const struct peer *p)
{
	return p->epoch;
}

int peer_link_restarts(const struct peer *p)
{
	return p->restarting;
}
const char *peer_expected(const struct peer *p)
{
	return p->expected;
}
int peer_said_goodbye(const struct peer *p)
{
	return p->bye;
}
const char *peer_endpoint(const struct peer *p)
{
	return p->endpoint;
}
const char *peer_address(const struct peer *p)
{
	const char *a = chan_name_address(p);
	return *a ? a : p->endpoint;
}

int peer_is_up(const struct peer *p)
{
	return p->state == PEER_UP;
}
const char *peer_refusal(const struct peer *p)
{
	return p->state == PEER_REFUSED && p->refusal[0] ? p->refusal : NULL;
}
int peer_has_all(const struct peer *p, enum msg_type type)
{
	list_each(it, &p->link.window)
		if (list_entry(it, struct link_out, node)->type == type)
			return 0;
	return 1;
}
int peer_tag(const struct peer *p)
{
	return p->tag;
}
const char *peer_program(const struct peer *p)
{
	return p->program;
}
const Pds__WorkerInfo *peer_worker(const struct peer *p)
{
	return p->hello ? p->hello->worker : NULL;
}
const struct process_origin *peer_origin(const struct peer *p)
{
	return &p->origin;
}
uint64_t peer_heard_us(const struct peer *p)
{
	return p->heard_us;
}
void *peer_data(const struct peer *p)
{
	return p->data;
}
void peer_set_data(struct peer *p, void *data)
{
	p->data = data;
}
void chan_counts(const struct chan *c, struct chan_counts *ret)
{
	*ret = c->counts;
}
