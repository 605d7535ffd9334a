/* chan_in.c - what arrives on the message links: decode, find the peer, judge the number, hand up.
 *
 * From an unknown connection only HELLO and CTL_REQUEST count; anything else is answered by WHO. What is malformed is counted, logged
 * at most once a second, and dropped; refusals are logged at most five times a second. */
#include "msg/chan_priv.h"
#include "util/clock.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void complain(struct chan *c, const struct err *err)
{
	c->counts.bad++;
	uint64_t now = clock_us();
	if (now - c->bad_logged_us < 1000000u)
		return;
	c->bad_logged_us = now;
	log_warn("bad_message", "total=%llu text=%s", (unsigned long long)c->counts.bad, log_quote(err->text));
}

struct peer *chan_find_rid(struct chan *c, const void *rid, size_t n)
{
	list_each(it, &c->peers) {
		struct peer *p = list_entry(it, struct peer, node);
		if (!p->dealer && p->rid_len == n && memcmp(p->rid, rid, n) == 0)
			return p;
	}
	return NULL;
}

static struct peer *find_accepted(struct chan *c, const char *name)
{
	list_each(it, &c->peers) {
		struct peer *p = list_entry(it, struct peer, node);
		if (!p->dealer && strcmp(p->name, name) == 0)
			return p;
	}
	return NULL;
}

/* --- HELLO: somebody connected to us ---------------------------------------------------------------------------------------- */

static void refuse(struct chan *c, const struct incoming *in, const char *reason)
{
	Pds__Welcome w = PDS__WELCOME__INIT;
	w.program = c->program;
	w.refused = 1;
	w.reason = (char *)reason;
	w.link = ((const Pds__Hello *)in->m.body)->nth;
	chan_send_rid(c, in->rid, in->rid_len, MSG_WELCOME, &w.base);
	uint64_t now = clock_us();
	if (c->refused_logged_us && now - c->refused_logged_us < 200000u)
		return;
	c->refused_logged_us = now;
	log_warn("hello_refused", "peer=%s reason=%s", log_quote(in->m.env->sender), log_quote(reason));
}

/* 1: the name is somebody else's, who lives. A peer whose process has ended or who was silent is already down and gone. */
static int name_taken(struct chan *c, const struct incoming *in, struct peer *old, char *why, size_t len)
{
	if (in->m.env->epoch == old->epoch)
		return 0;
	if (in->m.env->epoch < old->epoch) {
		snprintf(why, len, "the name %s belongs to a newer life: epoch %llu, yours is %llu", old->name, (unsigned long long)old->epoch,
		         (unsigned long long)in->m.env->epoch);
		return 1;
	}
	if ((old->watched && !old->self) || clock_us() - old->heard_us < c->opts.silence_us / 2) {
		snprintf(why, len, "the name %s is taken by process %u, which lives", old->name,
		         old->hello && old->hello->process ? old->hello->process->pid : 0);
		return 1;
	}
	return 0;
}

static void accept_hello(struct chan *c, struct incoming *in, struct peer *p, Pds__Hello *h, int resumed)
{
	memcpy(p->rid, in->rid, in->rid_len);
	p->rid_len = in->rid_len;
	p->heard_us = clock_us();
	p->hello_nth = h->nth;
	p->their_silence_ms = h->silence_ms;
	if (resumed) {
		if (h->link == p->link_id)
			chan_acked(c, p, h->received);
		log_debug("peer_resumed", "peer=%s again=%u", p->name, p->link.n_window);
		chan_welcome(c, p, 1);
		chan_resend(c, p, UINT32_MAX);
		return;
	}
	p->link_id = h->nth;
	snprintf(p->name, sizeof p->name, "%s", in->m.env->sender);
	snprintf(p->program, sizeof p->program, "%s", h->program);
	p->epoch = in->m.env->epoch;
	if (p->hello)
		pds__hello__free_unpacked(p->hello, NULL);
	p->hello = h;
	in->m.body = NULL;      /* kept: it is the peer's now */
	p->state = PEER_HELLO;
	chan_peer_watch(c, p, h->process);
	chan_welcome(c, p, 0);
	chan_peer_up(c, p);
}

/* Nothing has come from it and it has acknowledged nothing: a second HELLO is then only a repetition of the first. */
static int untouched(const struct link *l)
{
	return l->expect == 1 && l->n_window == l->next_seq - 1;
}

static void on_hello(struct chan *c, struct incoming *in)
{
	Pds__Hello *h = (Pds__Hello *)in->m.body;
	char why[320];
	struct peer *old = find_accepted(c, in->m.env->sender);
	if (old && name_taken(c, in, old, why, sizeof why)) {
		refuse(c, in, why);
		return;
	}
	if (old && old->epoch == in->m.env->epoch && h->nth <= old->hello_nth)
		return;                 /* late, or a repetition */
	if (strcmp(in->m.env->sender, c->name) == 0) {
		refuse(c, in, "that is my own name");
		return;
	}
	if (old && old->epoch == in->m.env->epoch && ((h->knows_epoch == c->opts.epoch && h->link == old->link_id) || (h->link == 0 && untouched(&old->link)))) {
		accept_hello(c, in, old, h, 1);
		return;
	}
	if (c->hooks.admit && c->hooks.admit(c->hooks.arg, in->m.env->sender, in->m.env->epoch, h, why, sizeof why) != 0) {
		refuse(c, in, why);
		return;
	}
	if (old) {
		old->anew = old->epoch == in->m.env->epoch;
		chan_peer_down(c, old, old->anew ? "its link starts anew" : "restarted", PEER_DEAD);
	}
	if (c->n_peers >= c->opts.peers_max) {
		snprintf(why, sizeof why, "%u peers are connected, the limit is %u", c->n_peers, c->opts.peers_max);
		refuse(c, in, why);
		return;
	}
	accept_hello(c, in, chan_peer_new(c), h, 0);
}

/* --- WELCOME: the one we connected to ------------------------------------------------------------------------------------------ */

static void on_refused(struct chan *c, struct peer *p, const struct incoming *in, const char *reason)
{
	if (p->state == PEER_UP)
		chan_peer_down(c, p, "it refuses us now", PEER_REFUSED);
	if (p->state == PEER_DEAD)
		return;                 /* its owner was told and has done with it */
	if (strcmp(p->refusal, reason) != 0)
		log_error("refused", "peer=%s reason=%s", log_quote(in->m.env->sender), log_quote(reason));
	snprintf(p->refusal, sizeof p->refusal, "%s", reason);
	p->state = PEER_REFUSED;
}

static void on_welcome(struct chan *c, struct peer *p, struct incoming *in)
{
	const Pds__Welcome *w = (const Pds__Welcome *)in->m.body;
	if (p->expected[0] && strcmp(p->expected, in->m.env->sender) != 0) {
		log_warn("peer_unexpected", "endpoint=%s expected=%s found=%s", log_quote(p->endpoint), p->expected, log_quote(in->m.env->sender));
		return;
	}
	if (w->refused) {
		if (w->link == p->hello_nth)
			on_refused(c, p, in, w->reason);
		return;
	}
	p->heard_us = clock_us();
	p->their_silence_ms = w->silence_ms;
	int same = p->state == PEER_UP && p->epoch == in->m.env->epoch;
	if (same && w->knows_epoch == c->opts.epoch && w->link == p->link_id) {
		chan_acked(c, p, w->received);
		log_debug("peer_resumed", "peer=%s again=%u", p->name, p->link.n_window);
		chan_resend(c, p, UINT32_MAX);
		return;
	}
	if (same && w->link <= p->link_id)
		return;                 /* of a link before this one, or a repetition */
	p->anew = same;
	if (p->state == PEER_UP)
		chan_peer_down(c, p, same ? "its link starts anew" : "restarted", PEER_HELLO);
	p->anew = 0;
	if (p->state == PEER_DEAD)
		return;
	snprintf(p->name, sizeof p->name, "%s", in->m.env->sender);
	snprintf(p->program, sizeof p->program, "%s", w->program);
	p->epoch = in->m.env->epoch;
	p->link_id = w->link;
	chan_peer_watch(c, p, w->process);
	chan_peer_up(c, p);
}

/* --- pdctl --------------------------------------------------------------------------------------------------------------------- */

static void on_ctl(struct chan *c, struct incoming *in)
{
	const Pds__CtlRequest *q = (const Pds__CtlRequest *)in->m.body;
	Pds__CtlReply a = PDS__CTL_REPLY__INIT;
	char *text = NULL;
	a.code = c->hooks.ctl ? c->hooks.ctl(c->hooks.arg, q->command, q->args, q->n_args, &text) : ERR_UNSUPPORTED;
	a.text = text ? text : (char *)"";
	chan_send_rid(c, in->rid, in->rid_len, MSG_CTL_REPLY, &a.base);
	free(text);
}

/* --- everything else ------------------------------------------------------------------------------------------------------------ */

void chan_hand_up(struct chan *c, struct peer *p, struct incoming *in)
{
	const Pds__Envelope *e = in->m.env;
	struct msg_head head = {.req = {e->request_hi, e->request_lo}, .attempt = e->attempt};
	if (e->time_left_us)
		head.deadline_us = clock_us() + (e->time_left_us < 86400000000ull ? e->time_left_us : 86400000000ull);
	if (c->hooks.message)
		c->hooks.message(c->hooks.arg, p, in->m.info->type, &head, in->m.body);
}

static void deliver(struct chan *c, struct peer *p, struct incoming *in)
{
	if (in->late_us)
		chan_fault_late(c, p, in);
	else
		chan_hand_up(c, p, in);
}

/* A number was skipped: what was lost is asked for again at once, but not for each of the messages behind it. */
static void tell_gap(struct chan *c, struct peer *p)
{
	Pds__Ack a = PDS__ACK__INIT;
	uint64_t now = clock_us();
	c->counts.dropped++;
	if (now - p->gap_us < c->pace.gap_us)
		return;
	p->gap_us = now;
	a.missing = 1;
	chan_send_link(c, p, MSG_ACK, &a.base);
}

static void on_numbered(struct chan *c, struct peer *p, struct incoming *in)
{
	Pds__Ack a = PDS__ACK__INIT;
	chan_worked(c, p);
	switch (link_arrived(&p->link, in->m.env->seq)) {
	case LINK_DELIVER:
		if (p->link.expect - 1 - p->link.told >= 64)
			chan_send_link(c, p, MSG_ACK, &a.base);
		else
			chan_owe_ack(c, p);
		deliver(c, p, in);
		return;
	case LINK_DUPLICATE:
		c->counts.duplicates++;
		chan_owe_ack(c, p);     /* its window still holds it */
		return;
	case LINK_GAP:
		tell_gap(c, p);
		return;
	}
}

static void on_ack(struct chan *c, struct peer *p, const Pds__Ack *a)
{
	if (!a->missing || list_empty(&p->link.window) || p->resend_at_us)
		return;
	p->resend_at_us = list_entry(p->link.window.next, struct link_out, node)->sent_us + c->pace.gap_us;
	chan_tick_soon(c, p->resend_at_us);
}

static void on_known(struct chan *c, struct peer *p, struct incoming *in)
{
	const Pds__Envelope *e = in->m.env;
	if (e->epoch != p->epoch)
		return;                 /* of another life; that life's HELLO or WELCOME comes */
	p->heard_us = clock_us();
	int this_link = e->ack_epoch == c->opts.epoch && e->link == p->link_id;
	if (this_link)
		chan_acked(c, p, e->ack);
	if (in->m.info->type == MSG_ACK && this_link)
		on_ack(c, p, (const Pds__Ack *)in->m.body);
	if (in->m.info->flags & MSG_LINK)
		return;
	if (in->m.info->flags & MSG_NUMBERED) {
		if (e->seq && this_link)
			on_numbered(c, p, in);
		return;
	}
	deliver(c, p, in);
	if (in->m.info->type == MSG_HEARTBEAT && !in->late_us)
		chan_beat_taken(c, p, (const Pds__Heartbeat *)in->m.body);
}

void chan_dispatch(struct chan *c, struct incoming *in)
{
	const struct sock *s = in->s;
	struct peer *p = s->peer ? s->peer : chan_find_rid(c, in->rid, in->rid_len);
	enum msg_type t = in->m.info->type;
	c->counts.received++;
	if ((p && p->state == PEER_DEAD) || (c->ending && t != MSG_GOODBYE))
		return;                 /* disconnected: its socket closes at the next tick */
	if (t == MSG_GOODBYE) {
		chan_goodbye_taken(c, p, in);
	} else if (!s->peer && t == MSG_HELLO) {
		on_hello(c, in);
	} else if (!s->peer && t == MSG_CTL_REQUEST) {
		on_ctl(c, in);          /* whom we connected to asks us nothing */
	} else if (s->peer && t == MSG_WELCOME) {
		on_welcome(c, p, in);
	} else if (s->peer && t == MSG_WHO) {
		if (clock_us() - p->hello_us > c->pace.hello_us / 6)
			chan_hello(c, p);
	} else if (p && p->state == PEER_UP) {
		on_known(c, p, in);
	} else if (!s->peer && !(in->m.info->flags & MSG_LINK)) {
		Pds__Who who = PDS__WHO__INIT;
		chan_send_rid(c, in->rid, in->rid_len, MSG_WHO, &who.base);
	}
}

/* The bytes were written by ZeroMQ's own thread, which a race detector does not see synchronise: kept apart for its suppressions. */
__attribute__((noinline)) static size_t copy_rid(unsigned char *out, zmq_msg_t *f)
{
	memcpy(out, zmq_msg_data(f), zmq_msg_size(f));
	return zmq_msg_size(f);
}

/* Reads one multipart message; 0, or -1 when there is none. Frames beyond what is expected make it bad. */
static int take_one(struct sock *s)
{
	zmq_msg_t f[3];
	int want = s->peer ? 2 : 3, n = 0, more = 1, extra = 0;
	while (more) {
		zmq_msg_t m;
		zmq_msg_init(&m);
		if (zmq_msg_recv(&m, s->z, ZMQ_DONTWAIT) < 0) {
			zmq_msg_close(&m);
			break;
		}
		more = zmq_msg_more(&m);
		if (n < want)
			f[n++] = m;
		else
			extra++, zmq_msg_close(&m);
	}
	if (n == 0)
		return -1;
	struct incoming in = {.s = s};
	struct err err = {0};
	if (n == want && !extra && (s->peer || zmq_msg_size(&f[0]) <= RID_MAX)) {
		if (!s->peer)
			in.rid_len = copy_rid(in.rid, &f[0]);
		zmq_msg_t *env = &f[n - 2], *body = &f[n - 1];
		if (msg_decode(zmq_msg_data(env), zmq_msg_size(env), zmq_msg_data(body), zmq_msg_size(body), &in.m, &err) < 0)
			complain(s->c, &err);
		else if (s->c->fault)
			chan_fault_in(s->c, &in);
		else
			chan_dispatch(s->c, &in);
		msg_in_fini(&in.m);
	} else {
		err_set(&err, ERR_CORRUPT, "message of %d frames, expected %d", n + extra, want);
		complain(s->c, &err);
	}
	for (int i = 0; i < n; i++)
		zmq_msg_close(&f[i]);
	return 0;
}

void chan_take(struct sock *s)
{
	for (int i = 0; i < DRAIN_MAX; i++) {
		int events = 0;
		size_t len = sizeof events;
		zmq_getsockopt(s->z, ZMQ_EVENTS, &events, &len);
		if (s->peer && s->peer->hello_waits && (events & ZMQ_POLLOUT) && s->peer->state == PEER_HELLO)
			chan_hello(s->c, s->peer);
		if (!(events & ZMQ_POLLIN) || take_one(s) < 0)
			return;
	}
	event_active(s->again, EV_READ, 1);
}
