/* stage.c - the decode stage towards the worker: messages, peers, timers, life. It also takes whole
 * requests (role mixed, or no prefill worker lives): they have no lease and no candidate, and go
 * straight to the schedule thread. */
#include "decode.h"
#include "daemons/worker/seq/constraint.h"
#include "util/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TIMER_US 50000u

static void on_peers(struct worker *w, struct peer *p, const struct msg_head *h,
                     const ProtobufCMessage *body)
{
	(void)w;
	(void)p;
	(void)h;
	(void)body; /* a decode worker is connected to; it connects to nobody */
}

static void on_submit(struct worker *w, struct peer *p, const struct msg_head *h,
                      const ProtobufCMessage *body)
{
	struct decode *d = decode_of(w);
	const Pds__Submit *m = (const Pds__Submit *)body;
	struct attempt_key k = attempt_key(&h->req, h->attempt);
	struct err err = {0};
	Pds__Fault fault;
	if (sequence_find(d, h) || tombstone_has(d, &k))
		return;
	if (m->n_candidates) { /* the router took this for a prefill worker, which it was */
		worker_fail(w, h, peer_name(p), peer_epoch(p), PDS__FAULT__FAULT_DRAINING, 1,
		            "the worker's role has been switched: it hands nothing over");
		return;
	}
	struct sequence *q = sequence_new(w, h, m->request, &fault, &err);
	if (!q) {
		worker_fail(w, h, peer_name(p), peer_epoch(p), fault,
		            fault == PDS__FAULT__FAULT_OVERLOADED || fault == PDS__FAULT__FAULT_DRAINING,
		            err.text);
		return;
	}
	snprintf(q->req.router, sizeof q->req.router, "%s", peer_name(p));
	q->req.router_epoch = peer_epoch(p);
	log_req(LOG_INFO, &h->req, "accepted", "attempt=%u tokens=%u local=1", h->attempt,
	        q->req.n_tokens);
	form_then_go_on(q);
}

void submitted_new(struct sequence *q)
{
	sequence_enter(q, SEQUENCE_ACTIVE);
	batch_add(decode_of(q->w), q);
}

static void cancel_sequence(struct sequence *q, const char *why)
{
	if (q->state == SEQUENCE_ACTIVE) {
		if (q->cancelled)
			return;
		q->cancelled = 1;
		log_req(LOG_INFO, &q->req.id, "cancelled", "attempt=%u why=%s", q->req.attempt,
		        log_quote(why));
		stat_add(svc_stats(q->w->svc), WS_CANCELLED, 1);
		batch_kick(decode_of(q->w));
	} else if (q->state == SEQUENCE_COMPILING) {
		q->cancelled = 1;
	} else if (q->state != SEQUENCE_QUARANTINE) {
		lease_drop(q, why);
	}
}

static void on_cancel(struct worker *w, struct peer *p, const struct msg_head *h,
                      const ProtobufCMessage *body)
{
	struct decode *d = decode_of(w);
	struct sequence *q = sequence_find(d, h);
	struct attempt_key k = attempt_key(&h->req, h->attempt);
	if (q && q->state == SEQUENCE_ACTIVE && peer_tag(p) != TAG_ROUTER)
		log_req(LOG_INFO, &h->req, "cancel_ignored", "attempt=%u peer=%s why=%s", h->attempt,
		        peer_name(p), log_quote("it has joined: from then on only the router ends it"));
	else if (q)
		cancel_sequence(q, ((const Pds__Cancel *)body)->reason);
	else
		tombstone_add(d, &k, h->deadline_us ? h->deadline_us : clock_us() + 600000000u);
}

void sequence_ended(struct svc *s, void *arg)
{
	struct sequence *q = arg;
	struct decode *d = decode_of(q->w);
	struct msg_head h;
	(void)s;
	sequence_head(q, &h);
	if (q->failed && !q->cancelled) {
		struct worker_failure f = {.fault = PDS__FAULT__FAULT_INTERNAL,
		                           .retry = 1,
		                           .text = q->fail_text,
		                           .blame = svc_name(q->w->svc)};
		int no_memory = q->draw_fault == PDS__FAULT__FAULT_OVERLOADED;
		if (q->draw_fault)
			f = (struct worker_failure){.fault = q->draw_fault,
			                            .retry = no_memory,
			                            .text = q->fail_text};
		f.retry_after_us = no_memory ? CONSTRAINT_RETRY_US : 0;
		stat_add(svc_stats(q->w->svc), WS_NOT_FINITE, q->draw_fault == PDS__FAULT__FAULT_INTERNAL);
		worker_fail_by(q->w, &h, q->req.router, q->req.router_epoch, &f);
	}
	log_req(LOG_INFO, &q->req.id, "decode_done",
	        "attempt=%u tokens=%u cached=%u decode_us=%llu preemptions=%u drafted=%u accepted=%u "
	        "cancelled=%d",
	        q->req.attempt, request_copy_index(&q->req), q->cached_tokens,
	        (unsigned long long)(q->first_us ? q->done_us - q->first_us : 0), q->preemptions,
	        q->drafted, q->accepted, q->cancelled);
	d->active--;
	sequence_end(q);
	lease_try_grant(d);
}

/* --- peers --------------------------------------------------------------- */

static void peer_up(struct worker *w, struct peer *p)
{
	if (peer_tag(p) == TAG_MESSAGER)
		lease_messager_up(decode_of(w));
}

/* Does not grant what becomes free to others: the caller does. */
static void reservation_drop(struct sequence *q, const char *why)
{
	log_req(LOG_INFO, &q->req.id, "reservation_dropped", "attempt=%u prefill=%s why=%s",
	        q->req.attempt, q->prefill, log_quote(why));
	stat_add(svc_stats(q->w->svc), WS_CANCELLED, 1);
	sequence_end(q);
}

/* A prefill worker that lives asks the next candidate, or fails the attempt itself. So the router
 * hears of leases only, one of which it may know to be the attempt's. Reservations go first: what
 * leases give back is for others. */
static void prefill_gone(struct decode *d, struct peer *p)
{
	static const enum sequence_state order[] = {SEQUENCE_COMPILING, SEQUENCE_QUEUED,
	                                            SEQUENCE_LEASED};
	for (int i = 0; i < 3; i++)
		list_each_safe(it, nx, &d->sequences) {
			struct sequence *q = list_entry(it, struct sequence, node);
			if (q->state != order[i] || q->prefill_epoch != peer_epoch(p) ||
			    strcmp(q->prefill, peer_name(p)) != 0)
				continue;
			if (q->state == SEQUENCE_COMPILING)
				q->cancelled = 1;
			else if (q->state == SEQUENCE_QUEUED)
				reservation_drop(q, "its prefill worker is gone");
			else
				lease_lost(q, "its prefill worker is gone", 0);
		}
	lease_try_grant(d);
}

static void router_gone(struct decode *d, struct peer *p)
{
	list_each_safe(it, nx, &d->sequences) {
		struct sequence *q = list_entry(it, struct sequence, node);
		if (strcmp(q->req.router, peer_name(p)) == 0 && q->req.router_epoch == peer_epoch(p))
			cancel_sequence(q, "the router is gone");
	}
}

static void peer_down(struct worker *w, struct peer *p, const char *why)
{
	(void)why;
	if (peer_tag(p) == TAG_ROUTER)
		router_gone(decode_of(w), p);
	else if (peer_tag(p) == TAG_NONE)
		prefill_gone(decode_of(w), p);
}

static void messager_gone(struct worker *w, uint64_t epoch)
{
	lease_messager_gone(decode_of(w), epoch);
}

/* A write-out has ended: what it was of can be taken. */
static void room(struct worker *w)
{
	struct decode *d = decode_of(w);
	if (d->active)
		batch_kick(d);
	lease_try_grant(d);
}

static void sample_waiting(struct decode *d)
{
	struct kv_stats ks;
	if (!d->count[SEQUENCE_QUEUED])
		return;
	kv_pool_stats(d->w->pool, &ks);
	stat_add(svc_stats(d->w->svc), WS_WAIT_SAMPLES, 1);
	stat_add(svc_stats(d->w->svc), WS_WAIT_FREE, ks.by_state[KV_FREE] + ks.evictable);
}

static void on_hashing(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	lease_try_grant(arg);
}

static const struct timeval interval = {0, TIMER_US};

/* Runs only while there are sequences: an idle worker is not woken. */
static void on_timer(evutil_socket_t fd, short what, void *arg)
{
	struct decode *d = arg;
	uint64_t now = clock_us();
	(void)fd;
	(void)what;
	tombstone_expire(d, now);
	rates_update(d, now);
	sample_waiting(d);
	lease_check(d, now);
	lease_try_grant(d);
	lease_tell_queued(d, now);
	watch_look(d->w);
	if (!list_empty(&d->sequences))
		event_add(d->timer, &interval);
}

void decode_watch(struct decode *d)
{
	if (event_pending(d->timer, EV_TIMEOUT, NULL))
		return;
	rates_begin(d, clock_us());
	event_add(d->timer, &interval);
}

/* --- life ---------------------------------------------------------------- */

static int start(struct worker *w, struct err *err)
{
	struct conf *c = svc_conf(w->svc);
	struct decode *d = mem_zalloc(sizeof *d);
	d->w = w;
	w->state = d;
	list_init(&d->sequences);
	list_init(&d->queued);
	tombstones_init(d);
	d->by_key = map_new(ATTEMPT_KEY_BYTES);
	d->by_lease = map_new(sizeof(uint64_t));
	d->max_sequences = (uint32_t)conf_int(c, "max_jobs");
	d->max_queued = (uint32_t)conf_int(c, "max_queued");
	d->lease_us = (uint64_t)conf_int(c, "lease_ms") * 1000u;
	d->ratio = d->ratio_first = conf_float(c, "growth_ratio");
	d->ratio_min = fmin(conf_float(c, "growth_ratio_min"), d->ratio_first);
	d->ratio_step = conf_float(c, "growth_ratio_step");
	d->ratio_rise = conf_float(c, "growth_ratio_rise");
	d->growth_cap = (uint32_t)conf_int(c, "growth_cap_tokens");
	d->keep_outputs = conf_bool(c, "output_caching");
	d->chunk_tokens = (uint32_t)conf_int(c, "prefill_chunk_tokens");
	d->save_preempted = conf_bool(c, "save_preempted_kv");
	d->wait_us = (uint64_t)conf_int(c, "preempt_wait_ms") * 1000u;
	d->restore_wait_us = (uint64_t)conf_int(c, "restore_wait_ms") * 1000u;
	d->timer = event_new(svc_base(w->svc), -1, 0, on_timer, d);
	d->hashing = event_new(svc_base(w->svc), -1, 0, on_hashing, d);
	return batch_start(d, err);
}

static void drain(struct worker *w)
{
	decode_of(w)->draining = 1;
	lease_deny_queued(decode_of(w), "the decode worker is draining");
}

/* The router goes on elsewhere with what it has; leases that are written go through the fence. */
static void abort_all(struct worker *w, const char *why)
{
	list_each_safe(it, nx, &decode_of(w)->sequences) {
		struct sequence *q = list_entry(it, struct sequence, node);
		struct msg_head h;
		sequence_head(q, &h);
		if (q->state == SEQUENCE_QUARANTINE || q->cancelled)
			continue;
		worker_fail(w, &h, q->req.router, q->req.router_epoch, PDS__FAULT__FAULT_DRAINING, 1, why);
		cancel_sequence(q, why);
	}
}

static void role_changed(struct worker *w)
{
	if (w->role != ROLE_DECODE)
		lease_deny_queued(decode_of(w), "the worker's role is mixed now: no hand-over");
}

static int idle(struct worker *w)
{
	const struct decode *d = decode_of(w);
	return d->n_sequences == 0 && d->at_storage == 0;
}

static void stop(struct worker *w)
{
	struct decode *d = decode_of(w);
	if (!d)
		return;
	event_free(d->timer);
	event_free(d->hashing);
	form_stop(d);
	batch_stop(d);
	list_each_safe(it, nx, &d->sequences) {
		struct sequence *q = list_entry(it, struct sequence, node);
		struct msg_head h;
		sequence_head(q, &h);
		if (q->state != SEQUENCE_QUARANTINE)
			worker_fail(w, &h, q->req.router, q->req.router_epoch, PDS__FAULT__FAULT_DRAINING, 1,
			            "the decode worker ends");
		sequence_end(q);
	}
	tombstones_fini(d);
	map_destroy(&d->by_key);
	map_destroy(&d->by_lease);
	free(d);
	w->state = NULL;
}

static void heartbeat(struct worker *w, Pds__Heartbeat *hb)
{
	struct decode *d = decode_of(w);
	hb->running = d->active;
	hb->waiting = d->count[SEQUENCE_COMPILING] + d->count[SEQUENCE_QUEUED] +
	              d->count[SEQUENCE_LEASED];
}

static const char *state_word(const struct sequence *q)
{
	static const char *const phases[] = {[PHASE_WAITING] = "waiting",
	                                     [PHASE_PREEMPTED] = "preempted",
	                                     [PHASE_RESTORING] = "restoring",
	                                     [PHASE_RUNNING] = "active"};
	return q->state == SEQUENCE_ACTIVE ? phases[q->phase] : sequence_state_name(q->state);
}

static void requests(struct worker *w, struct buf *out)
{
	struct decode *d = decode_of(w);
	uint64_t now = clock_us();
	int first = 1;
	buf_addc(out, '[');
	list_each(it, &d->sequences) {
		struct sequence *q = list_entry(it, struct sequence, node);
		buf_printf(out,
		           "%s{\"request\":\"%s\",\"attempt\":%u,\"state\":\"%s\",\"age_ms\":%llu,"
		           "\"prompt\":%u,\"lease\":%llu,\"prefill\":\"%s\"}",
		           first ? "" : ",", log_reqid(&q->req.id), q->req.attempt, state_word(q),
		           (unsigned long long)(now - q->accepted_us) / 1000, q->req.given_tokens,
		           (unsigned long long)q->lease_id, q->prefill);
		first = 0;
	}
	buf_addc(out, ']');
}

static void status(struct worker *w, struct buf *out)
{
	struct decode *d = decode_of(w);
	pthread_mutex_lock(&d->lock);
	double ratio = d->ratio;
	pthread_mutex_unlock(&d->lock);
	buf_printf(out, ",\"storage_ready\":%s,\"saving_blocks\":%u,\"at_storage\":%u",
	           w->store && store_ready(w->store) ? "true" : "false", writeout_saving(w->writeout),
	           d->at_storage);
	buf_printf(out,
	           ",\"running\":%u,\"waiting\":%u,\"preempted\":%u,\"growth_ratio\":%.3f,\"growth_"
	           "blocks\":%llu,\"queue_us\":%llu,\"sequences\":{",
	           d->active, d->count[SEQUENCE_QUEUED] + d->count[SEQUENCE_LEASED], d->preempted,
	           ratio, (unsigned long long)lease_growth(d),
	           (unsigned long long)(d->count[SEQUENCE_QUEUED]
	                                    ? queue_estimate(d,
	                                                     d->last_cumulative_blocks -
	                                                         d->gone_cumulative_blocks,
	                                                     d->count[SEQUENCE_QUEUED])
	                                    : 0));
	for (int i = SEQUENCE_COMPILING; i < SEQUENCE_END; i++)
		buf_printf(out, "%s\"%s\":%u", i == SEQUENCE_COMPILING ? "" : ",",
		           sequence_state_name((enum sequence_state)i), d->count[i]);
	buf_adds(out, "}");
	spec_status(d, out);
}

static const char *reason(struct worker *w, uint32_t block)
{
	return restore_fences(decode_of(w), block) ? "fence: storage may still write it" : NULL;
}

static const struct stage_msg messages[] = {
	{&pds__peers__descriptor, on_peers},
	{&pds__submit__descriptor, on_submit},
	{&pds__cancel__descriptor, on_cancel},
	{&pds__reserve__descriptor, on_reserve},
	{&pds__renew__descriptor, on_renew},
	{&pds__lease_open__descriptor, on_lease_open},
	{&pds__lease_revoked__descriptor, on_lease_revoked},
	{&pds__kv_ready__descriptor, on_kv_ready},
	{&pds__first_token__descriptor, on_first_token},
	{NULL, NULL},
};

const struct stage_ops decode_stage = {
	.name = "decode",
	.messages = messages,
	.start = start,
	.drain = drain,
	.abort = abort_all,
	.role_changed = role_changed,
	.idle = idle,
	.stop = stop,
	.peer_up = peer_up,
	.peer_down = peer_down,
	.room = room,
	.messager_gone = messager_gone,
	.heartbeat = heartbeat,
	.requests = requests,
	.status = status,
	.reason = reason,
};
