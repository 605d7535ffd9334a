/* chan_tick.c - timers of a link: repeat HELLO, heartbeat, resend, acknowledge, detect silence.
 *
 * One timer for all links is armed for the earliest due time, so that an idle daemon sleeps. At
 * work (a numbered message within ACTIVE_US, or load to report) routers and workers send a
 * heartbeat each heartbeat_us. Otherwise heartbeats are rarer, and aligned so that few wake-ups
 * suffice: the side that connected sends them at common points of the clock, and the other side
 * answers. The interval is never longer than a quarter of the silence that the peer tolerates. */
#include "msg/chan_priv.h"
#include "util/clock.h"
#include "util/least.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define WORK_BEAT_US 50000u /* delay of the first heartbeat after an idle time, at most */
#define BEAT_MIN_US 20000u  /* shortest interval, whatever silence the peer announces */
/* while messages wait in its socket a peer may be silent for as many times silence_us more */
#define UNREAD_SILENCES 4u

/* --- intervals ----------------------------------------------------------- */

/* One of the two is a router: it places requests by the load in its workers' heartbeats. */
static int has_router(const struct chan *c, const struct peer *p)
{
	return strcmp(p->program, "pdrouterd") == 0 || strcmp(c->program, "pdrouterd") == 0;
}

static int busy(const struct chan *c, const struct peer *p, uint64_t now)
{
	return !list_empty(&p->link.window) || now - p->busy_us < c->opts.silence_us;
}

/* Multiple of silence_us that a peer may be silent. The end of a watched process is noticed at
 * once, so that silence there only means that it hangs. */
static unsigned silence_factor(const struct chan *c, const struct peer *p, int is_busy)
{
	if (!p->watched)
		return 1;
	return !has_router(c, p) ? 5 : is_busy ? 1 : 2;
}

static uint64_t silent_at(const struct chan *c, const struct peer *p, uint64_t now)
{
	int is_busy = busy(c, p, now);
	uint64_t since = is_busy ? most(p->heard_us, p->busy_since_us) : p->heard_us;
	return since + c->opts.silence_us * silence_factor(c, p, is_busy);
}

static int is_idle(const struct chan *c, const struct peer *p, uint64_t now)
{
	return !has_router(c, p) || now - c->active_us >= ACTIVE_US;
}

static uint64_t beat_every(const struct chan *c, const struct peer *p, uint64_t now)
{
	uint64_t theirs = p->their_silence_ms ? p->their_silence_ms * 1000ull : c->opts.silence_us;
	uint64_t own = c->opts.heartbeat_us;
	if (is_idle(c, p, now)) {
		theirs *= silence_factor(c, p, 0);
		own *= 5;
	}
	return most(BEAT_MIN_US, least(own, theirs / 4));
}

static uint64_t beat_at(const struct chan *c, const struct peer *p, uint64_t now)
{
	uint64_t every = beat_every(c, p, now);
	if (!is_idle(c, p, now))
		return p->beat_us + every;
	if (!p->dealer) /* the peer's comes first and is answered; this is sent only if it does not */
		return p->beat_us + every + every / 4;
	return (p->beat_us + every / 4) / every * every + every;
}

/* --- heartbeats ---------------------------------------------------------- */

/* Hash of a heartbeat. One with fields that we do not know may be longer than any of ours: it gets
 * a constant, so that it never counts as changed. */
static uint64_t sum(const Pds__Heartbeat *hb)
{
	unsigned char b[160];
	size_t n = pds__heartbeat__get_packed_size(hb);
	return n <= sizeof b ? XXH3_64bits(b, pds__heartbeat__pack(hb, b)) : 1;
}

/* News make heartbeats frequent for a while, because routers place requests by load. */
static int is_news(const Pds__Heartbeat *hb, uint64_t *last)
{
	uint64_t now = sum(hb), before = *last;
	*last = now;
	return now != before || hb->running || hb->waiting;
}

static void mark_busy(struct chan *c, struct peer *p, uint64_t now)
{
	if (!busy(c, p, now))
		p->busy_since_us = now;
	p->busy_us = now;
}

static void beat(struct chan *c, struct peer *p, uint64_t now)
{
	Pds__Heartbeat hb = PDS__HEARTBEAT__INIT;
	if (c->hooks.heartbeat)
		c->hooks.heartbeat(c->hooks.arg, p, &hb);
	p->beat_us = now;
	if (is_news(&hb, &p->sent_beat_hash) && has_router(c, p))
		c->active_us = now;
	chan_send_link(c, p, MSG_HEARTBEAT, &hb.base);
}

void chan_worked(struct chan *c, struct peer *p)
{
	uint64_t now = clock_us();
	mark_busy(c, p, now);
	if (now - c->active_us >= ACTIVE_US)
		chan_tick_soon(c, now + least(c->opts.heartbeat_us / 4, WORK_BEAT_US));
	c->active_us = now;
}

void chan_owe_ack(struct chan *c, struct peer *p)
{
	if (p->ack_due_us)
		return;
	p->ack_due_us = clock_us() + c->timers.ack_us;
	chan_tick_soon(c, p->ack_due_us);
}

/* --- the timer ----------------------------------------------------------- */

static uint64_t hello_at(const struct chan *c, const struct peer *p)
{
	if (!p->dealer)
		return UINT64_MAX;
	if (!p->hello_us) /* its link has just gone down */
		return 0;
	return p->hello_us + (p->state == PEER_REFUSED ? 4 * c->timers.hello_us : p->hello_wait_us);
}

/* One that has no answer is repeated less and less often: nobody listens there, or the peer hangs
 * and would find all of them. chan_take says it at once when a connection is made. */
static void hello_due(struct chan *c, struct peer *p)
{
	uint64_t wait = p->hello_us ? least(2 * p->hello_wait_us, c->timers.hello_max_us)
	                            : c->timers.hello_us;
	chan_hello(c, p);
	p->hello_wait_us = wait;
}

/* When the timer has something to do for this peer. */
static uint64_t due_at(const struct chan *c, const struct peer *p, uint64_t now)
{
	if (p->state == PEER_DEAD)
		return UINT64_MAX;
	if (p->state != PEER_UP)
		return least(hello_at(c, p), chan_name_due(p));
	if (p->overrun)
		return 0;
	uint64_t at = least(silent_at(c, p, now) + 1, beat_at(c, p, now));
	if (p->ack_due_us)
		at = least(at, p->ack_due_us);
	if (p->resend_at_us)
		return least(at, p->resend_at_us);
	if (!list_empty(&p->link.window))
		at = least(at, list_entry(p->link.window.next, struct link_out, node)->sent_us +
		                   p->resend_wait_us);
	return at;
}

static void check_window(struct chan *c, struct peer *p, uint64_t now)
{
	if (list_empty(&p->link.window))
		p->resend_at_us = 0, p->resend_all = 0;
	else if (p->resend_at_us && now >= p->resend_at_us && p->resend_all)
		chan_resend(c, p, UINT32_MAX);
	else if (p->resend_at_us && now >= p->resend_at_us)
		chan_send_rest(c, p);
	else if (!p->resend_at_us &&
	         now >= list_entry(p->link.window.next, struct link_out, node)->sent_us +
	                    p->resend_wait_us) {
		p->resend_wait_us = least(2 * p->resend_wait_us, c->timers.resend_max_us);
		chan_resend(c, p, RESEND_BATCH);
	}
}

/* What the peer has sent may wait in the socket, unread because this daemon has too much to do. But
 * others share the bound socket, and must not hide a silent peer for ever by keeping it full. */
static int may_be_unread(const struct chan *c, struct peer *p, uint64_t now)
{
	struct sock *s = peer_sock(p);
	uint64_t limit = silent_at(c, p, now) + UNREAD_SILENCES * c->opts.silence_us;
	if (now >= limit || !(chan_events(s) & ZMQ_POLLIN))
		return 0;
	if (!s->rests)
		event_active(s->again, EV_READ, 1); /* the look may have consumed the descriptor's edge */
	return 1;
}

static void check_peer(struct chan *c, struct peer *p, uint64_t now)
{
	if (now < due_at(c, p, now))
		return;
	if (p->state != PEER_UP) {
		chan_name_tick(p, now);
		if (now >= hello_at(c, p))
			hello_due(c, p);
		return;
	}
	if (p->overrun) {
		chan_peer_down(c, p, "its window is full", p->dealer ? PEER_HELLO : PEER_DEAD);
		return;
	}
	if (now > silent_at(c, p, now) && !may_be_unread(c, p, now)) {
		chan_peer_down(c, p, "silent for too long", p->dealer ? PEER_HELLO : PEER_DEAD);
		return;
	}
	if (!list_empty(&p->link.window) &&
	    now - p->progress_us > most(STUCK_WAITS * c->timers.resend_us, 5 * c->opts.silence_us)) {
		chan_peer_down(c, p, "it acknowledges nothing", p->dealer ? PEER_HELLO : PEER_DEAD);
		return;
	}
	if (now >= beat_at(c, p, now))
		beat(c, p, now);
	check_window(c, p, now);
	if (p->ack_due_us && now >= p->ack_due_us) {
		Pds__Ack a = PDS__ACK__INIT;
		p->ack_due_us = 0;
		chan_send_link(c, p, MSG_ACK, &a.base);
	}
}

void chan_tick_soon(struct chan *c, uint64_t at_us)
{
	uint64_t now = clock_us();
	if (at_us >= c->tick_at_us)
		return;
	/* excuse_absence would take an earlier time for one in which we had no processor */
	at_us = most(at_us, now);
	struct timeval tv = clock_timeval(at_us - now);
	c->tick_at_us = at_us;
	event_add(c->tick, &tv);
}

/* Arms the timer for the earliest due time, also if that is later than now armed. */
static void arm_tick(struct chan *c, uint64_t now)
{
	uint64_t at = list_empty(&c->graveyard) ? UINT64_MAX : now + GRAVE_US;
	list_each(it, &c->peers)
		at = least(at, due_at(c, list_entry(it, struct peer, node), now));
	c->tick_at_us = UINT64_MAX;
	if (at != UINT64_MAX)
		chan_tick_soon(c, most(at, now + 1000));
}

/* A timer that fires much too late means that this process was stopped or got no processor. What
 * peers sent meanwhile waits in the sockets, and may be read only after this tick, so that time
 * does not count as silence. (A peer that has taken us for dead says so by a HELLO, which restarts
 * its link.) */
static void excuse_absence(struct chan *c, uint64_t now)
{
	uint64_t late = now > c->tick_at_us ? now - c->tick_at_us : 0; /* not armed: UINT64_MAX */
	if (late <= c->opts.silence_us / 4)
		return;
	list_each(it, &c->peers) {
		struct peer *p = list_entry(it, struct peer, node);
		p->heard_us = least(now, p->heard_us + late);
		p->progress_us = least(now, p->progress_us + late);
	}
}

void chan_tick(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	struct chan *c = arg;
	uint64_t now = clock_us();
	excuse_absence(c, now);
	c->tick_at_us = UINT64_MAX;
	list_each_safe(it, nx, &c->graveyard)
		chan_peer_free(list_entry(it, struct peer, node));
	/* A hook may end any peer; ended peers stay in the graveyard until the next tick, so the
	 * pointers in this snapshot stay valid. */
	uint32_t n = 0;
	struct peer **all = mem_array(c->n_peers, sizeof *all);
	list_each(it, &c->peers)
		all[n++] = list_entry(it, struct peer, node);
	for (uint32_t i = 0; i < n; i++)
		check_peer(c, all[i], now);
	free(all);
	arm_tick(c, now);
}

void chan_beat_taken(struct chan *c, struct peer *p, const Pds__Heartbeat *hb)
{
	uint64_t now = clock_us();
	if (is_news(hb, &p->heard_beat_hash))
		mark_busy(c, p, now);
	/* without a router the connecting side sets the pace: it may look for a peer that is stopped */
	uint64_t least_us = has_router(c, p) ? beat_every(c, p, now) / 2 : BEAT_MIN_US;
	int soon = now - p->beat_us < least_us;
	if (p->state != PEER_UP || p->dealer || !is_idle(c, p, now) || soon)
		return;
	beat(c, p, now);
	excuse_absence(c, now);
	/* the next heartbeat is mostly later now: without this the timer would fire for nothing */
	arm_tick(c, now);
}
