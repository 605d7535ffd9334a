/* stage.c - the decode stage towards the worker: messages, peers, timer, life. It also takes whole
 * requests (the role is mixed, or no prefill worker is left): they have no lease and no candidates,
 * and go straight to the schedule thread. */
#include "decode.h"
#include "daemons/worker/seq/constraint.h"
#include "util/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TIMER_US 50000u

static void decode_on_submit(struct svc *s, struct peer *p, const struct msg_head *h,
                             const ProtobufCMessage *body)
{
	struct worker *w = worker_of(s);
	struct decode *d = decode_of(w);
	const Pds__Submit *m = (const Pds__Submit *)body;
	struct attempt_key k = attempt_key(&h->req, h->attempt);
	struct err err = {0};
	Pds__Fault fault;
	if (sequence_find(d, h) || tombstone_has(d, &k))
		return;
	if (m->n_candidates) { /* the router does not know yet that the role was switched */
		worker_fail(w, h, peer_name(p), peer_epoch(p), PDS__FAULT__FAULT_DRAINING, 1,
		            "the worker's role was switched to one without hand-over");
		return;
	}
	struct sequence *q = sequence_new(w, h, m->request, &fault, &err);
	if (!q) {
		worker_fail(w, h, peer_name(p), peer_epoch(p), fault,
		            fault == PDS__FAULT__FAULT_OVERLOADED || fault == PDS__FAULT__FAULT_DRAINING,
		            err.text);
		return;
	}
	snprintf(q->run.req.router, sizeof q->run.req.router, "%s", peer_name(p));
	q->run.req.router_epoch = peer_epoch(p);
	log_req(LOG_INFO, &h->req, "accepted", "attempt=%u tokens=%u local=1", h->attempt,
	        q->run.req.n_tokens);
	sequence_step(q, SEQUENCE_ON_ENTER);
}

static void decode_on_cancel(struct svc *s, struct peer *p, const struct msg_head *h,
                             const ProtobufCMessage *body)
{
	struct decode *d = decode_of(worker_of(s));
	struct sequence *q = sequence_find(d, h);
	struct attempt_key k = attempt_key(&h->req, h->attempt);
	if (q && q->state == SEQUENCE_ACTIVE && peer_tag(p) != TAG_ROUTER)
		log_req(LOG_INFO, &h->req, "cancel_ignored", "attempt=%u peer=%s why=%s", h->attempt,
		        peer_name(p), log_quote("it has joined: only the router may cancel it now"));
	else if (q)
		sequence_cancel(q, ((const Pds__Cancel *)body)->reason);
	else
		tombstone_add(d, &k, h->deadline_us ? h->deadline_us : clock_us() + 600000000u);
}

/* --- peers --------------------------------------------------------------- */

static void decode_peer_up(struct worker *w, struct peer *p)
{
	if (peer_tag(p) != TAG_MESSAGER)
		return;
	list_each_safe(it, nx, &decode_of(w)->sequences)
		sequence_step(list_entry(it, struct sequence, node), SEQUENCE_ON_MESSAGER_UP);
}

static void prefill_gone(struct decode *d, struct peer *p)
{
	list_each_safe(it, nx, &d->sequences) {
		struct sequence *q = list_entry(it, struct sequence, node);
		if (q->prefill_epoch == peer_epoch(p) && strcmp(q->prefill, peer_name(p)) == 0)
			sequence_step(q, SEQUENCE_ON_PREFILL_GONE);
	}
}

static void router_gone(struct decode *d, struct peer *p)
{
	list_each_safe(it, nx, &d->sequences) {
		struct sequence *q = list_entry(it, struct sequence, node);
		const struct request_copy *req = &q->run.req;
		if (strcmp(req->router, peer_name(p)) != 0 || req->router_epoch != peer_epoch(p))
			continue;
		lease_router_gone(q);
		sequence_cancel(q, "the router is gone");
	}
}

static void decode_peer_down(struct worker *w, struct peer *p, const char *why)
{
	(void)why;
	if (peer_tag(p) == TAG_ROUTER)
		router_gone(decode_of(w), p);
	else if (peer_tag(p) == TAG_NONE)
		prefill_gone(decode_of(w), p);
}

/* A write-out has ended: its blocks can be taken. */
static void decode_room(struct worker *w)
{
	struct decode *d = decode_of(w);
	if (decode_active(d))
		batcher_kick(&d->batcher);
	queue_room(d);
}

static void restore_ended(struct svc *s, void *batcher)
{
	struct decode *d = list_entry(batcher, struct decode, batcher);
	(void)s;
	/* not before: at 0 the stage may be idle, and freed */
	d->batcher.shared.at_storage--;
	queue_room(d);
	role_look(d->w);
}

static const struct timeval interval = {0, TIMER_US};

/* Runs only while there are sequences: it does not wake an idle worker. */
static void decode_on_timer(evutil_socket_t fd, short what, void *arg)
{
	struct decode *d = arg;
	uint64_t now = clock_us();
	(void)fd;
	(void)what;
	tombstone_expire(d, now);
	queue_rates_update(d, now);
	list_each_safe(it, nx, &d->sequences)
		sequence_step(list_entry(it, struct sequence, node), SEQUENCE_ON_TICK);
	queue_room(d);
	watch_look(d->w);
	if (!list_empty(&d->sequences))
		event_add(d->timer, &interval);
}

void decode_watch(struct decode *d)
{
	if (event_pending(d->timer, EV_TIMEOUT, NULL))
		return;
	queue_rates_begin(d, clock_us());
	event_add(d->timer, &interval);
}

/* --- life ---------------------------------------------------------------- */

static int decode_start(struct worker *w, struct err *err)
{
	const struct worker_conf *c = &w->conf;
	struct decode *d = mem_zalloc(sizeof *d);
	d->w = d->batcher.w = w;
	d->batcher.returned = sequence_returned;
	d->batcher.room = restore_ended;
	w->state = d;
	list_init(&d->sequences);
	tombstones_init(d);
	queue_init(d);
	d->by_key = map_new(ATTEMPT_KEY_BYTES);
	d->by_lease = map_new(sizeof(uint64_t));
	d->batcher.config = (struct batcher_config){
		.drafts = c->speculative,
		.overlap = 1,
		.chunk_tokens = c->prefill_chunk_tokens,
		.save_preempted = c->save_preempted_kv,
		.keep_outputs = c->output_caching,
		.wait_us = c->preempt_wait_us,
		.restore_wait_us = c->restore_wait_us,
		.ratio_first = c->growth_ratio,
		.ratio_min = fmin(GROWTH_MIN, c->growth_ratio),
	};
	d->timer = event_new(svc_base(w->svc), -1, 0, decode_on_timer, d);
	return batcher_start(&d->batcher, err);
}

static void refuse_reservations(struct decode *d)
{
	list_each_safe(it, nx, &d->queue.waiting)
		sequence_step(list_entry(it, struct sequence, place.node), SEQUENCE_ON_NO_HANDOVER);
}

static void decode_drain(struct worker *w)
{
	decode_of(w)->draining = 1;
	refuse_reservations(decode_of(w));
}

static void fail_unless_given_up(struct sequence *q, const char *why)
{
	if (sequence_is_given_up(q))
		return;
	q->lease.in_order = 1;
	request_copy_fail(
		&q->run.req, q->w,
		&(struct worker_failure){.fault = PDS__FAULT__FAULT_DRAINING, .retry = 1, .text = why});
}

/* The router resumes elsewhere with the tokens so far; leases that are written to are fenced. */
static void decode_abort(struct worker *w, const char *why)
{
	list_each_safe(it, nx, &decode_of(w)->sequences) {
		struct sequence *q = list_entry(it, struct sequence, node);
		fail_unless_given_up(q, why);
		sequence_cancel(q, why);
	}
}

static void role_changed(struct worker *w)
{
	if (w->role != ROLE_DECODE)
		refuse_reservations(decode_of(w));
}

static int decode_idle(struct worker *w)
{
	const struct decode *d = decode_of(w);
	return d->n_sequences == 0 && d->batcher.shared.at_storage == 0;
}

static void decode_stop(struct worker *w)
{
	struct decode *d = decode_of(w);
	if (!d)
		return;
	list_each_safe(it, nx, &d->sequences) {
		struct sequence *q = list_entry(it, struct sequence, node);
		fail_unless_given_up(q, "the decode worker is stopping");
		if (q->state == SEQUENCE_COMPILING)
			sequence_step(q, SEQUENCE_ON_CANCEL);
	}
	tasks_wait(w->compiler);
	batcher_stop(&d->batcher);
	list_each_safe(it, nx, &d->sequences)
		sequence_step(list_entry(it, struct sequence, node), SEQUENCE_ON_STOP);
	event_free(d->timer);
	queue_fini(d);
	tombstones_fini(d);
	map_destroy(&d->by_key);
	map_destroy(&d->by_lease);
	free(d);
	w->state = NULL;
}

static uint32_t n_waiting(const struct decode *d)
{
	return d->count[SEQUENCE_COMPILING] + d->count[SEQUENCE_QUEUED] + d->count[SEQUENCE_LEASED];
}

static void decode_heartbeat(struct worker *w, Pds__Heartbeat *hb)
{
	struct decode *d = decode_of(w);
	hb->running = decode_active(d);
	hb->waiting = n_waiting(d);
}

static const char *state_word(const struct sequence *q)
{
	return q->state == SEQUENCE_ACTIVE ? run_phase_name(run_phase(&q->run))
	                                   : sequence_state_name(q->state);
}

static void decode_requests(struct worker *w, struct buf *out)
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
		           first ? "" : ",", log_reqid(&q->run.req.id), q->run.req.attempt, state_word(q),
		           (unsigned long long)(now - q->run.born_us) / 1000, q->run.req.given_tokens,
		           (unsigned long long)q->lease.id, q->prefill);
		first = 0;
	}
	buf_addc(out, ']');
}

static void decode_status(struct worker *w, struct buf *out)
{
	struct decode *d = decode_of(w);
	const struct batcher_shared *shared = &d->batcher.shared;
	uint32_t queued = d->count[SEQUENCE_QUEUED];
	uint64_t blocks = d->queue.last_cumulative_blocks - d->queue.gone_cumulative_blocks;
	buf_printf(out, ",\"storage_ready\":%s,\"saving_blocks\":%u,\"at_storage\":%u",
	           w->store && store_ready(w->store) ? "true" : "false", writeout_saving(w->writeout),
	           shared->at_storage);
	buf_printf(out,
	           ",\"running\":%u,\"waiting\":%u,\"preempted\":%u,\"growth_ratio\":%.3f,\"growth_"
	           "blocks\":%llu,\"queue_us\":%llu,\"sequences\":{",
	           decode_active(d), n_waiting(d), shared->preempted, batcher_ratio(&d->batcher),
	           (unsigned long long)lease_growth(d),
	           (unsigned long long)(queued ? queue_estimate(d, blocks, queued) : 0));
	for (int i = 0; i < SEQUENCE_STATES; i++)
		buf_printf(out, "%s\"%s\":%u", i ? "," : "", sequence_state_name((enum sequence_state)i),
		           d->count[i]);
	buf_adds(out, "}");
	drafts_status(&d->batcher, out);
}

static const char *decode_block_reason(struct worker *w, uint32_t block)
{
	return restore_fences(&decode_of(w)->batcher, block) ? "fence: storage may still write it"
	                                                     : NULL;
}

static const struct svc_msg messages[] = {
	{MSG_REQUEST_SUBMIT, decode_on_submit, 0},
	{MSG_REQUEST_CANCEL, decode_on_cancel, 0},
	{MSG_KV_RESERVE, on_reserve, 0},
	{MSG_KV_RENEW, on_renew, 0},
	{MSG_LEASE_OPEN, on_lease_open, 0},
	{MSG_LEASE_REVOKED, on_lease_revoked, 0},
	{MSG_KV_READY, on_kv_ready, 0},
	{MSG_REQUEST_FIRST_TOKEN, on_first_token, 0},
	{0},
};

const struct stage_ops decode_stage = {
	.name = "decode",
	.messages = messages,
	.start = decode_start,
	.drain = decode_drain,
	.abort = decode_abort,
	.role_changed = role_changed,
	.idle = decode_idle,
	.stop = decode_stop,
	.peer_up = decode_peer_up,
	.peer_down = decode_peer_down,
	.room = decode_room,
	.messager_gone = lease_messager_gone,
	.heartbeat = decode_heartbeat,
	.requests = decode_requests,
	.status = decode_status,
	.reason = decode_block_reason,
};
