/* role.c - see role.h.
 *
 * Invariant: between two rounds of the loop exactly one stage is started. If the next one cannot
 * start, the process ends. Messages meant for the previous stage may still arrive;
 * they are answered so that no sender waits for ever. */
#include "role.h"
#include "stage.h"
#include "util/clock.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

static const struct stage_ops *stage_of(enum worker_role r)
{
	return r == ROLE_PREFILL ? &prefill_stage : &decode_stage;
}

static void look_in(struct worker *w, uint64_t us)
{
	struct timeval tv = clock_timeval(us);
	event_add(w->sw.look, &tv);
}

/* Not at once: the caller belongs to the stage that may be stopped. */
void role_look(struct worker *w)
{
	if (w->sw.active)
		look_in(w, 0);
}

/* --- the switch ---------------------------------------------------------- */

void role_tell_peers(struct worker *w)
{
	Pds__Peers m;
	if (!w->stage->peers)
		return;
	peer_lists_union(&w->peer_lists, 0, &m);
	w->stage->peers(w, &m);
	free(m.peers);
}

static void done(struct worker *w, enum worker_role was)
{
	uint64_t took = clock_us() - w->sw.began_us;
	w->sw.active = 0;
	w->stats.role_switches++;
	worker_relay_by_role(w);
	log_notice("role_switched", "from=%s to=%s took_us=%llu failed=%d", worker_role_name(was),
	           worker_role_name(w->role), (unsigned long long)took, w->sw.aborted);
	tell_changed(w);
}

static void change_stage(struct worker *w)
{
	enum worker_role was = w->role;
	struct err err = {0};
	w->stage->stop(w);
	w->role = w->sw.next;
	w->stage = stage_of(w->role);
	if (w->stage->start(w, &err) < 0) {
		char why[448];
		snprintf(why, sizeof why, "the %s stage cannot start: %s", w->stage->name, err.text);
		svc_leave(why); /* nothing runs that could be drained */
	}
	svc_handle(w->svc, w->stage->messages);
	role_tell_peers(w);
	done(w, was);
}

/* Completes the switch if the stage is idle. After the time limit what still runs is failed, and
 * only fences are waited for. */
static void role_on_look(evutil_socket_t fd, short what, void *arg)
{
	struct worker *w = arg;
	(void)fd;
	(void)what;
	if (!w->sw.active)
		return;
	if (w->stage->idle(w)) {
		change_stage(w);
	} else if (!w->sw.aborted && clock_us() >= w->sw.until_us) {
		w->sw.aborted = 1;
		log_warn("role_switch_late",
		         "to=%s timeout_us=%llu why=\"running requests are moved to other workers\"",
		         worker_role_name(w->sw.next),
		         (unsigned long long)(w->sw.until_us - w->sw.began_us));
		w->stage->abort(w, "the worker's role is switched");
	} else if (!w->sw.aborted) {
		look_in(w, clock_left_us(w->sw.until_us));
	}
}

static void begin(struct worker *w, enum worker_role next)
{
	enum worker_role was = w->role;
	w->sw.next = next;
	w->sw.aborted = 0;
	w->sw.began_us = clock_us();
	w->sw.until_us = w->sw.began_us + w->conf.role_switch_timeout_us;
	log_notice("role_switch", "from=%s to=%s", worker_role_name(was), worker_role_name(next));
	if (stage_of(next) == w->stage) {
		w->role = next;
		if (w->stage->role_changed)
			w->stage->role_changed(w);
		done(w, was);
		return;
	}
	w->sw.active = 1;
	w->stage->drain(w);
	role_look(w);
}

/* --- pdctl --------------------------------------------------------------- */

void role_json(const struct worker *w, struct buf *out)
{
	buf_printf(out, "\"role\":\"%s\",\"switching\":", worker_role_name(w->role));
	buf_printf(out, w->sw.active ? "\"%s\"" : "null", worker_role_name(w->sw.next));
}

static int role_refusal(const struct worker *w, enum worker_role next, struct err *err)
{
	if (svc_draining(w->svc))
		return err_set(err, ERR_CLOSED, "the worker is ending: its role stays %s",
		               worker_role_name(w->role));
	if (w->sw.active && next != w->sw.next)
		return err_set(err, ERR_EXISTS,
		               "a switch from %s to %s is under way: ask for %s when it is done",
		               worker_role_name(w->role), worker_role_name(w->sw.next),
		               worker_role_name(next));
	if (next == ROLE_PREFILL && !w->ring)
		return err_set(
			err, ERR_INVALID,
			"messager is \"none\" here: a prefill worker cannot hand anything over without one");
	return 0;
}

int role_command(struct worker *w, char *const *args, size_t n, struct buf *out, struct err *err)
{
	enum worker_role next;
	int r;
	if (n > 1 || (n == 1 && worker_role_parse(args[0], &next) < 0))
		return err_set(err, ERR_INVALID,
		               "role takes one of prefill, decode, mixed, or nothing, not %s",
		               n > 1 ? "several words" : args[0]);
	if (n == 1) {
		if ((r = role_refusal(w, next, err)) < 0)
			return r;
		if (!w->sw.active && next != w->role)
			begin(w, next);
	}
	buf_addc(out, '{');
	role_json(w, out);
	buf_addc(out, '}');
	return 0;
}

/* --- messages ------------------------------------------------------------ */

void role_stray(struct svc *s, struct peer *p, const struct msg_head *h,
                const ProtobufCMessage *body)
{
	log_req(LOG_INFO, h->attempt ? &h->req : NULL, "stray_message", "peer=%s body=%s role=%s",
	        peer_name(p), body->descriptor->short_name, worker_role_name(worker_of(s)->role));
}

void role_stray_reserve(struct svc *s, struct peer *p, const struct msg_head *h,
                        const ProtobufCMessage *body)
{
	struct worker *w = worker_of(s);
	Pds__Deny m = PDS__DENY__INIT;
	char text[96];
	role_stray(s, p, h, body);
	snprintf(text, sizeof text, "role is %s: no hand-over", worker_role_name(w->role));
	m.fault = PDS__FAULT__FAULT_DRAINING;
	m.text = text;
	worker_send_awaited(w, p, MSG_KV_DENY, h, &m.base);
}

void role_stray_lease_open(struct svc *s, struct peer *p, const struct msg_head *h,
                           const ProtobufCMessage *body)
{
	const Pds__LeaseOpen *m = (const Pds__LeaseOpen *)body;
	Pds__LeaseOpened a = PDS__LEASE_OPENED__INIT;
	role_stray(s, p, h, body);
	a.lease = m->lease;
	a.refused = 1;
	a.prefill = m->prefill;
	a.prefill_epoch = m->prefill_epoch;
	svc_send(s, p, MSG_LEASE_OPENED, h, &a.base);
}

void role_stray_kv_ready(struct svc *s, struct peer *p, const struct msg_head *h,
                         const ProtobufCMessage *body)
{
	const Pds__KvReady *m = (const Pds__KvReady *)body;
	Pds__KvReadyAck a = PDS__KV_READY_ACK__INIT;
	role_stray(s, p, h, body);
	a.lease = m->lease;
	a.prefill = m->prefill;
	a.prefill_epoch = m->prefill_epoch;
	if (m->lease->epoch == svc_epoch(s))
		svc_send(s, p, MSG_KV_READY_ACK, h, &a.base);
}

void role_stray_first_token(struct svc *s, struct peer *p, const struct msg_head *h,
                            const ProtobufCMessage *body)
{
	const Pds__FirstToken *m = (const Pds__FirstToken *)body;
	Pds__FirstTokenAck a = PDS__FIRST_TOKEN_ACK__INIT;
	role_stray(s, p, h, body);
	a.lease_id = m->lease_id;
	if (m->decode_epoch == svc_epoch(s))
		svc_send(s, p, MSG_REQUEST_FIRST_TOKEN_ACK, h, &a.base);
}

/* --- life ---------------------------------------------------------------- */

void role_init(struct worker *w, enum worker_role r)
{
	w->role = r;
	w->stage = stage_of(r);
	w->sw.look = event_new(svc_base(w->svc), -1, 0, role_on_look, w);
}

void role_give_up(struct worker *w)
{
	if (w->sw.active)
		log_warn("role_switch_given_up", "to=%s why=\"the worker is told to end\"",
		         worker_role_name(w->sw.next));
	w->sw.active = 0;
}

void role_fini(struct worker *w)
{
	if (w->sw.look)
		event_free(w->sw.look);
}
