/* chan_in.c - incoming messages: decode the envelope, find the peer, check the number, join parts,
 * decode the body, hand up.
 *
 * On the bound socket an unknown connection may send HELLO, CTL_REQUEST and GOODBYE. Any other
 * message from it is dropped without decoding its body, and answered by WHO unless it belongs to
 * the link itself. Malformed messages are counted, logged once for each reason (once.h), and
 * dropped. A numbered message with a bad body counts as received, so that the link goes on; with a
 * bad envelope its number stays missing, and the link goes down. A refused HELLO is counted, and
 * logged once for each sender and reason (once.h). */
#include "msg/chan_priv.h"
#include "util/clock.h"
#include "util/mem.h"
#include "util/version.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void count_bad(struct chan *c, const struct err *err)
{
	c->counts.bad++;
	if (!once_may_log(&c->bad, err->text, strlen(err->text)))
		return;
	log_warn("bad_message", "total=%llu text=%s", (unsigned long long)c->counts.bad,
	         log_quote(err->text));
}

void incoming_fini(struct incoming *in)
{
	msg_in_fini(&in->m);
	free(in->own);
	in->own = NULL;
}

/* 0, or an error: the message was counted as bad, drop it. */
static int decode_body(struct chan *c, struct incoming *in)
{
	struct err err = {0};
	int r = msg_decode_body(&in->m, in->bytes, in->len, &err);
	if (r < 0)
		count_bad(c, &err);
	return r;
}

struct peer *chan_find_rid(const struct sock *s, const void *rid, size_t n)
{
	list_each(it, &s->c->peers) {
		struct peer *p = list_entry(it, struct peer, node);
		if (p->accepted == s && p->rid_len == n && memcmp(p->rid, rid, n) == 0)
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

/* --- HELLO: a peer connected to us --------------------------------------- */

static void send_refusal(struct chan *c, const struct incoming *in, const char *reason)
{
	Pds__Welcome w = PDS__WELCOME__INIT;
	w.program = c->program;
	w.refused = 1;
	w.reason = (char *)reason;
	w.link = in->m.body ? ((const Pds__Hello *)in->m.body)->nth : 0;
	chan_send_rid(c, in->s, in->rid, in->rid_len, MSG_WELCOME, &w.base);
}

static void refuse_hello(struct chan *c, const struct incoming *in, const char *reason)
{
	send_refusal(c, in, reason);
	char what[MSG_NAME_MAX + 330];
	c->counts.hellos_refused++;
	snprintf(what, sizeof what, "%s %s", in->m.env->sender, reason);
	if (once_may_log(&c->refused, what, strlen(what)))
		log_warn("hello_refused", "peer=%s total=%llu reason=%s", log_quote(in->m.env->sender),
		         (unsigned long long)c->counts.hellos_refused, log_quote(reason));
}

/* 1 if another process has the name and is alive. A peer whose process has ended, or that was
 * silent for too long, is no longer in the list. The end of a process ends its connections, also
 * those to another host, and sending fails; the end of a host does not, nor does a cut, before what
 * was sent there has been waited for (sock_open). */
static int name_is_taken(struct chan *c, const struct incoming *in, struct peer *old, char *why,
                         size_t len)
{
	uint64_t epoch = in->m.env->epoch;
	Pds__Ack probe = PDS__ACK__INIT;
	if (epoch == old->epoch && process_origin_same(&in->origin, &old->origin))
		return 0;
	if (epoch < old->epoch) {
		snprintf(why, len,
		         "the name %s belongs to a newer process: its epoch is %llu, yours is %llu",
		         old->name, (unsigned long long)old->epoch, (unsigned long long)epoch);
		return 1;
	}
	if (epoch == old->epoch || (old->watched && !old->self) ||
	    (clock_us() - old->heard_us < c->opts.silence_us / 2 &&
	     chan_send_link(c, old, MSG_ACK, &probe.base) != ERR_CLOSED)) {
		const Pds__Process *process = old->hello ? old->hello->process : NULL;
		snprintf(why, len, "the name %s is taken by process %u, which lives", old->name,
		         process ? process->pid : 0);
		return 1;
	}
	return 0;
}

/* The whole window, however often it is asked for at once: the peer lacks what came before. */
static void resend_soon(struct chan *c, struct peer *p)
{
	if (list_empty(&p->link.window))
		return;
	p->resend_all = 1;
	if (p->resend_at_us)
		return;
	p->resend_at_us = list_entry(p->link.window.next, struct link_out, node)->sent_us +
	                  c->timers.gap_us;
	chan_tick_soon(c, p->resend_at_us);
}

static void accept_hello(struct chan *c, struct incoming *in, struct peer *p, Pds__Hello *h,
                         int resumed)
{
	int same = chan_find_rid(in->s, in->rid, in->rid_len) == p;
	memcpy(p->rid, in->rid, in->rid_len);
	p->rid_len = in->rid_len;
	p->accepted = in->s;
	p->origin = in->origin;
	p->heard_us = clock_us();
	p->hello_nth = h->nth;
	p->their_silence_ms = h->silence_ms;
	if (resumed) {
		if (h->link == p->link_id)
			chan_acked(c, p, h->received);
		log_debug("peer_resumed", "peer=%s again=%u", p->name, p->link.n_window);
		chan_welcome(c, p, 1);
		if (!same)
			chan_resend(c, p, UINT32_MAX);
		else if (h->link != p->link_id) /* what it got without a link it has dropped */
			resend_soon(c, p);
		return;
	}
	p->link_id = h->nth;
	snprintf(p->name, sizeof p->name, "%s", in->m.env->sender);
	snprintf(p->program, sizeof p->program, "%s", h->program);
	p->epoch = in->m.env->epoch;
	p->hello = h;
	in->m.body = NULL; /* the peer owns it now */
	p->state = PEER_HELLO;
	chan_peer_watch(c, p, h->process);
	chan_welcome(c, p, 0);
	chan_peer_up(c, p);
}

static void on_hello(struct chan *c, struct incoming *in)
{
	Pds__Hello *h = (Pds__Hello *)in->m.body;
	char why[320];
	if (strcmp(h->program, "pdctl") == 0) { /* it only wants to know the protocol */
		send_refusal(c, in, "pdctl has no links");
		return;
	}
	if (chan_origin_check(c, &in->origin, in->m.env->sender, h->program, h->process, why,
	                      sizeof why) < 0) {
		refuse_hello(c, in, why);
		return;
	}
	struct peer *old = find_accepted(c, in->m.env->sender);
	if (old && name_is_taken(c, in, old, why, sizeof why)) {
		refuse_hello(c, in, why);
		return;
	}
	if (old && old->epoch == in->m.env->epoch && h->nth <= old->hello_nth) {
		c->counts.duplicates++; /* an older HELLO, or a repetition */
		return;
	}
	if (strcmp(in->m.env->sender, c->name) == 0) {
		refuse_hello(c, in, "this is my own name");
		return;
	}
	/* without a numbered message or an acknowledgement a second HELLO only repeats the first */
	int is_unused = old && old->link.expect == 1 && old->link.n_window == old->link.next_seq - 1;
	if (old && old->epoch == in->m.env->epoch &&
	    ((h->knows_epoch == c->opts.epoch && h->link == old->link_id) ||
	     (h->link == 0 && is_unused))) {
		accept_hello(c, in, old, h, 1);
		return;
	}
	if (c->hooks.admit && c->hooks.admit(c->hooks.arg, in->m.env->sender, in->m.env->epoch, h, why,
	                                     sizeof why) != 0) {
		refuse_hello(c, in, why);
		return;
	}
	if (old) {
		old->restarting = old->epoch == in->m.env->epoch;
		chan_peer_down(c, old, old->restarting ? "its link restarts" : "restarted", PEER_DEAD);
	}
	if (c->n_peers >= c->opts.peers_max) {
		snprintf(why, sizeof why, "%u peers are connected, the limit is %u", c->n_peers,
		         c->opts.peers_max);
		refuse_hello(c, in, why);
		return;
	}
	accept_hello(c, in, chan_peer_new(c), h, 0);
}

/* --- WELCOME: from a peer that we connected to --------------------------- */

/* The peer refused us, or we refuse its WELCOME. */
static void on_refused(struct chan *c, struct peer *p, const struct incoming *in,
                       const char *reason)
{
	if (p->state == PEER_UP)
		chan_peer_down(c, p, reason, PEER_REFUSED);
	if (p->state == PEER_DEAD)
		return; /* disconnected by its owner within `down` */
	if (strcmp(p->refusal, reason) != 0)
		log_error("refused", "peer=%s reason=%s", log_quote(in->m.env->sender), log_quote(reason));
	snprintf(p->refusal, sizeof p->refusal, "%s", reason);
	p->state = PEER_REFUSED;
}

static void on_welcome(struct chan *c, struct peer *p, struct incoming *in)
{
	const Pds__Welcome *w = (const Pds__Welcome *)in->m.body;
	if (p->expected[0] && strcmp(p->expected, in->m.env->sender) != 0) {
		log_warn("peer_unexpected", "endpoint=%s expected=%s found=%s", log_quote(p->endpoint),
		         p->expected, log_quote(in->m.env->sender));
		return;
	}
	if (w->refused) {
		if (w->link == p->hello_nth)
			on_refused(c, p, in, *w->reason ? w->reason : "it gave no reason");
		return;
	}
	char why[320];
	if (chan_origin_check(c, &in->origin, in->m.env->sender, w->program, w->process, why,
	                      sizeof why) < 0) {
		on_refused(c, p, in, why);
		return;
	}
	p->heard_us = clock_us();
	p->their_silence_ms = w->silence_ms;
	int same = p->state == PEER_UP && p->epoch == in->m.env->epoch;
	if (same && w->knows_epoch == c->opts.epoch && w->link == p->link_id) {
		chan_acked(c, p, w->received);
		log_debug("peer_resumed", "peer=%s again=%u", p->name, p->link.n_window);
		resend_soon(c, p); /* several may have queued */
		return;
	}
	if (same && w->link <= p->link_id)
		return; /* of an earlier link, or a repetition */
	p->restarting = same;
	if (p->state == PEER_UP)
		chan_peer_down(c, p, same ? "its link restarts" : "restarted", PEER_HELLO);
	p->restarting = 0;
	if (p->state == PEER_DEAD)
		return;
	snprintf(p->name, sizeof p->name, "%s", in->m.env->sender);
	snprintf(p->program, sizeof p->program, "%s", w->program);
	p->epoch = in->m.env->epoch;
	p->link_id = w->link;
	p->origin = in->origin;
	chan_peer_watch(c, p, w->process);
	chan_peer_up(c, p);
}

/* --- everything else ----------------------------------------------------- */

void chan_hand_up(struct chan *c, struct peer *p, struct incoming *in)
{
	const Pds__Envelope *e = in->m.env;
	struct msg_head head = {.req = {e->request_hi, e->request_lo}, .attempt = e->attempt};
	if (e->time_left_us)
		head.deadline_us = clock_us() +
		                   (e->time_left_us < 86400000000ull ? e->time_left_us : 86400000000ull);
	if (c->hooks.message)
		c->hooks.message(c->hooks.arg, p, in->m.info->type, &head, in->m.body);
}

void parts_drop(struct chan_parts *j)
{
	free(j->bytes);
	*j = (struct chan_parts){0};
}

/* 1: the body is complete, and in->bytes is all of it. 0: more parts follow, or the body was lost
 * and is dropped. */
static int join_parts(struct chan *c, struct chan_parts *j, struct incoming *in)
{
	struct err err = {0};
	size_t limit = c->opts.message_bytes_max;
	if (!in->m.env->more && !j->bytes && !j->lost)
		return 1;
	int too_long = in->len > limit || j->len > limit - in->len;
	if (!too_long && !j->lost && j->len + in->len > j->size) {
		size_t size = 2 * (j->len + in->len);
		unsigned char *longer = realloc(j->bytes, size);
		if (longer) {
			j->bytes = longer;
			j->size = size;
		}
	}
	if (!j->lost && (too_long || j->len + in->len > j->size)) {
		err_set(&err, too_long ? ERR_FULL : ERR_NOMEM, "%s from %s %s %zu bytes", in->m.info->name,
		        in->m.env->sender,
		        too_long ? "has more than" : "cannot be joined: out of memory after",
		        too_long ? limit : j->len);
		count_bad(c, &err);
		parts_drop(j);
		j->lost = 1;
	} else if (!j->lost) {
		if (in->len) /* of an empty first part j->bytes may be NULL */
			memcpy(j->bytes + j->len, in->bytes, in->len);
		j->len += in->len;
	}
	if (in->m.env->more)
		return 0;
	int whole = !j->lost;
	free(in->own);
	in->bytes = in->own = j->bytes;
	in->len = j->len;
	*j = (struct chan_parts){0};
	return whole;
}

static void deliver_body(struct chan *c, struct peer *p, struct incoming *in)
{
	if (decode_body(c, in) == 0 && !(c->fault && chan_faults->late(c, p, in)))
		chan_hand_up(c, p, in);
}

static void on_numbered(struct chan *c, struct peer *p, struct incoming *in)
{
	Pds__Ack a = PDS__ACK__INIT;
	uint64_t now = clock_us();
	chan_worked(c, p);
	switch (link_arrived(&p->link, in->m.env->seq)) {
	case LINK_DELIVER:
		if (p->link.expect - 1 - p->link.acked_out >= 64)
			chan_send_link(c, p, MSG_ACK, &a.base);
		else
			chan_owe_ack(c, p);
		if (join_parts(c, &p->parts, in))
			deliver_body(c, p, in);
		return;
	case LINK_DUPLICATE:
		c->counts.duplicates++;
		chan_owe_ack(c, p); /* the peer's window still has it */
		return;
	case LINK_GAP: /* asks for what was skipped, but not again for each later message */
		c->counts.dropped++;
		if (now - p->gap_us < c->timers.gap_us)
			return;
		p->gap_us = now;
		a.missing = 1;
		chan_send_link(c, p, MSG_ACK, &a.base);
	}
}

static void on_known(struct chan *c, struct peer *p, struct incoming *in)
{
	const Pds__Envelope *e = in->m.env;
	if (e->epoch != p->epoch)
		return; /* of another process; its HELLO or WELCOME follows */
	p->heard_us = clock_us();
	int this_link = e->ack_epoch == c->opts.epoch && e->link == p->link_id;
	if (this_link)
		chan_acked(c, p, e->ack);
	if (in->m.info->type == MSG_ACK && this_link && decode_body(c, in) == 0 &&
	    ((const Pds__Ack *)in->m.body)->missing)
		resend_soon(c, p);
	if (in->m.info->flags & MSG_LINK)
		return;
	if (in->m.info->flags & MSG_NUMBERED) {
		if (e->seq && this_link)
			on_numbered(c, p, in);
		return;
	}
	enum msg_type type = in->m.info->type;
	deliver_body(c, p, in);
	if (type == MSG_HEARTBEAT && in->m.body)
		chan_beat_taken(c, p, (const Pds__Heartbeat *)in->m.body);
}

/* The peer is up, but the message on its connection came from another process. */
static int is_forged(struct chan *c, const struct peer *p, const struct incoming *in)
{
	struct err err = {0};
	if (p->state != PEER_UP || process_origin_same(&p->origin, &in->origin))
		return 0;
	if (p->origin.key[0])
		err_set(&err, ERR_INVALID, "%s as %s, but with another key", in->m.info->name, p->name);
	else
		err_set(&err, ERR_INVALID, "%s as %s, but from process %u of user %u, not %u of %u",
		        in->m.info->name, p->name, in->origin.pid, in->origin.uid, p->origin.pid,
		        p->origin.uid);
	count_bad(c, &err);
	return 1;
}

/* A connection from another host outlives its key: what it asks counts no more. */
static int has_lost_key(struct chan *c, const struct incoming *in)
{
	struct err err = {0};
	if (in->s != c->net || keys_printed(c->opts.keys, in->origin.key))
		return 0;
	err_set(&err, ERR_INVALID, "%s over a connection whose key is not known any more",
	        in->m.info->name);
	count_bad(c, &err);
	return 1;
}

void chan_dispatch(struct chan *c, struct incoming *in)
{
	const struct sock *s = in->s;
	struct peer *p = s->peer ? s->peer : chan_find_rid(s, in->rid, in->rid_len);
	enum msg_type t = in->m.info->type;
	c->counts.received++;
	if ((p && p->state == PEER_DEAD) || (c->ending && t != MSG_GOODBYE))
		return; /* disconnected: its socket is closed at the next tick */
	if (!s->peer && t == MSG_HELLO) {
		if (decode_body(c, in) == 0)
			on_hello(c, in);
	} else if (!s->peer && t == MSG_CTL_REQUEST) {
		if (!has_lost_key(c, in) && decode_body(c, in) == 0)
			chan_ctl(c, in, NULL); /* only on the bound socket */
	} else if (s->peer && t == MSG_WELCOME) {
		if (decode_body(c, in) == 0)
			on_welcome(c, p, in);
	} else if (s->peer && t == MSG_WHO) {
		if (clock_us() - p->hello_us > c->timers.hello_us / 6)
			chan_hello(c, p);
	} else if (p && is_forged(c, p, in)) {
		return;
	} else if (t == MSG_GOODBYE) {
		if (decode_body(c, in) == 0)
			chan_goodbye_taken(c, p, in);
	} else if (p && p->state == PEER_UP) {
		on_known(c, p, in);
	} else if (!s->peer && !(in->m.info->flags & MSG_LINK)) {
		Pds__Who who = PDS__WHO__INIT;
		chan_send_rid(c, in->s, in->rid, in->rid_len, MSG_WHO, &who.base);
	}
}

/* Tells a peer or a pdctl of another protocol version why it is refused, or logs it for one that we
 * connected to. Returns 0 if the message is none that gets such an answer. */
static int other_version(struct chan *c, struct incoming *in, const char *why)
{
	struct err ignored = {0};
	char text[160];
	if (!in->s->peer && in->m.info->type == MSG_HELLO) {
		if (msg_decode_body(&in->m, in->bytes, in->len, &ignored) < 0 && in->m.body) {
			protobuf_c_message_free_unpacked(in->m.body, NULL);
			in->m.body = NULL;
		}
		refuse_hello(c, in, why);
	} else if (in->s->peer && in->m.info->type == MSG_WELCOME) {
		on_refused(c, in->s->peer, in, why);
	} else if (!in->s->peer && in->m.info->type == MSG_CTL_REQUEST && !c->ending &&
	           !has_lost_key(c, in)) {
		snprintf(text, sizeof text, "runs protocol %u (version %s), this pdctl speaks %u",
		         PROTOCOL_VERSION, build_version(), in->m.env->version);
		chan_ctl(c, in, text);
	} else {
		return 0;
	}
	return 1;
}

/* The bytes were written by ZeroMQ's own thread in a way that race detectors do not see as
 * synchronised: a function of its own, which their suppressions name. */
__attribute__((noinline)) static size_t copy_rid(unsigned char *out, zmq_msg_t *f)
{
	memcpy(out, zmq_msg_data(f), zmq_msg_size(f));
	return zmq_msg_size(f);
}

void chan_arrived(struct incoming *in, const void *env, size_t env_len)
{
	struct chan *c = in->s->c;
	struct err err = {0};
	int r = msg_decode_head(env, env_len, in->len, &in->m, &err);
	if (r == ERR_UNSUPPORTED && in->m.info && other_version(c, in, err.text))
		c->counts.bad++;
	else if (r < 0)
		count_bad(c, &err);
	else if (c->fault)
		chan_faults->in(c, in);
	else
		chan_dispatch(c, in);
	incoming_fini(in);
}

/* Reads one multipart message. 0, or -1 if there is none. Any other number of frames than expected
 * makes it bad. */
static int take_one(struct sock *s)
{
	zmq_msg_t f[4];
	int want = s->peer ? 2 : 3, n = 0;
	struct incoming in = {.s = s};
	struct err err = {0};
	for (int more = 1; more; n++) {
		zmq_msg_t *m = &f[n < want ? n : want]; /* f[want]: frames too many */
		zmq_msg_init(m);
		if (zmq_msg_recv(m, s->z, ZMQ_DONTWAIT) < 0) {
			zmq_msg_close(m);
			break;
		}
		more = zmq_msg_more(m);
		if (n >= want)
			zmq_msg_close(m);
	}
	if (n == 0)
		return -1;
	if (n == want && (s->peer || zmq_msg_size(&f[0]) <= RID_MAX)) {
		zmq_msg_t *env = &f[n - 2], *body = &f[n - 1];
		if (!s->peer)
			in.rid_len = copy_rid(in.rid, &f[0]);
		/* over ipc a peer may claim any User-Id: only CURVE's is to be believed */
		const char *key = s->peer          ? s->peer->server_key
		                  : s == s->c->net ? zmq_msg_gets(body, "User-Id")
		                                   : NULL;
		process_origin_parse(zmq_msg_gets(body, "Peer-Address"), key, &in.origin);
		in.bytes = zmq_msg_data(body);
		in.len = zmq_msg_size(body);
		chan_arrived(&in, zmq_msg_data(env), zmq_msg_size(env));
	} else {
		err_set(&err, ERR_CORRUPT, "message of %d frames, expected %d", n, want);
		count_bad(s->c, &err);
	}
	for (int i = 0; i < n && i < want; i++)
		zmq_msg_close(&f[i]);
	return 0;
}

int chan_events(struct sock *s)
{
	int events = 0;
	size_t len = sizeof events;
	zmq_getsockopt(s->z, ZMQ_EVENTS, &events, &len);
	return events;
}

/* Ends a socket's turn. libevent lets events of lower priority wait while one of higher priority
 * is ready. `wait`: some event is ready now; `waited`: since the turn before, nothing of lower
 * priority was handled. Then the socket rests for REST_US, times the number of sockets that rest,
 * since these take their turns one after the other. */
static void end_turn(struct sock *s, int has_more)
{
	struct chan *c = s->c;
	event_del(s->again); /* it may have been made active before this turn */
	int waited = c->others_wait,
		wait = waited || event_base_get_num_events(c->base, EVENT_BASE_COUNT_ACTIVE) > 0;
	if (wait && !waited) {
		c->others_wait = 1;
		event_active(c->others, EV_TIMEOUT, 0);
	}
	if (s->rests || waited || (wait && has_more)) {
		if (!s->rests) {
			s->rests = 1;
			c->n_rests++;
			event_del(s->ev);
		}
		struct timeval tv = clock_timeval((uint64_t)REST_US * c->n_rests);
		event_add(s->again, &tv);
	} else if (has_more) {
		event_active(s->again, EV_READ, 1);
	}
}

int chan_take(struct sock *s)
{
	uint64_t until = clock_us() + DRAIN_US;
	int has_more = 1;
	s->takes = 1;
	for (int i = 0; has_more && i < DRAIN_MAX && (i == 0 || clock_us() < until); i++) {
		int events = chan_events(s);
		/* a connection that is made anew needs a HELLO of its own, at once */
		if (s->peer && s->peer->state == PEER_HELLO && !(events & ZMQ_POLLOUT)) {
			s->peer->hello_waits = 1; /* there is no connection now */
		} else if (s->peer && s->peer->state == PEER_HELLO && s->peer->hello_waits) {
			chan_hello(s->c, s->peer);
			events = chan_events(s); /* the send may have consumed the descriptor's edge */
		}
		has_more = events & ZMQ_POLLIN && take_one(s) == 0;
	}
	s->takes = 0;
	end_turn(s, has_more);
	return has_more;
}
