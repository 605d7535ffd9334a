/* stage.c - the prefill stage towards the worker: messages, peers, timers, life.
 *
 * A message about an unknown job (ended, of another attempt, of another life) is dropped: its
 * sender learns of the end by the reservation's cancel, the lease's expiry, or the ring slot. */
#include "prefill.h"
#include "daemons/worker/seq/constraint.h"
#include "daemons/worker/seq/pooled.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define TIMER_US 50000u
#define STILL_US 1000000u /* a step without progress for this long stalls its transfers */
#define RENEW_US 400000u  /* or a third of the shortest lease held, if that is less */

static void prefill_on_timer(struct svc *svc, void *arg);

/* --- soon ---------------------------------------------------------------- */

static void look_soon(struct svc *svc, void *arg)
{
	struct worker *w = worker_of(svc);
	(void)arg;
	if (w->stage != &prefill_stage)
		return; /* the role has changed since this was posted */
	struct prefill *s = prefill_of(w);
	unsigned soon = s->soon;
	s->soon = 0;
	if (soon & SOON_SHARE)
		share_wake(s);
	if (soon & SOON_BLOCKED)
		job_retry_blocked(s);
	if (soon & SOON_PLACE)
		reserve_parked(s);
}

void stage_soon(struct prefill *s, unsigned what)
{
	if (!s->soon)
		svc_post(s->w->svc, look_soon, NULL);
	s->soon |= what;
}

/* --- links --------------------------------------------------------------- */

static int is_named(const Pds__Peers *m, const char *endpoint)
{
	for (size_t i = 0; i < m->n_peers; i++)
		if (strcmp(m->peers[i]->role, "decode") == 0 &&
		    strcmp(m->peers[i]->endpoint, endpoint) == 0)
			return 1;
	return 0;
}

static int is_target(const struct prefill *s, const char *name)
{
	list_each(it, &s->targets)
		if (strcmp(list_entry(it, struct decode_target, node)->name, name) == 0)
			return 1;
	return 0;
}

/* Closes links that are down, to decode workers that no router and no job names any more: each
 * holds a socket and tries to connect again and again. */
static void close_dead_links(struct prefill *s)
{
	struct chan *c = svc_chan(s->w->svc);
	struct peer *down = chan_next(c, NULL);
	while (down && (peer_tag(down) != TAG_WORKER || peer_is_up(down)))
		down = chan_next(c, down);
	if (!down)
		return; /* the lists need not be joined */
	Pds__Peers m;
	peer_lists_union(&s->w->peer_lists, 0, &m);
	for (struct peer *p = chan_next(c, NULL), *next; p; p = next) {
		next = chan_next(c, p);
		if (peer_tag(p) != TAG_WORKER || peer_is_up(p) || is_named(&m, peer_endpoint(p)) ||
		    is_target(s, peer_expected(p)))
			continue;
		log_notice("link_closed", "decode=%s why=\"no router names it any more\"",
		           peer_expected(p));
		chan_disconnect(c, p);
	}
	free(m.peers);
}

void stage_jobs(struct prefill *s, int by)
{
	s->n_jobs += (uint32_t)by;
	role_look(s->w);
	if (s->n_jobs == 0)
		close_dead_links(s);
	if (s->n_jobs == 0)
		svc_timer_del(&s->timer);
	else if (!s->timer)
		s->timer = svc_timer_add(s->w->svc, TIMER_US, prefill_on_timer, s);
}

static struct job *job_find(struct prefill *s, const struct msg_head *h)
{
	struct attempt_key k = attempt_key(&h->req, h->attempt);
	return map_get(s->by_key, k.b);
}

/* --- from the router ----------------------------------------------------- */

/* Makes the link, unless there is one. A link that is down gives way to a new endpoint: the worker
 * may run on another host now. ERR_INVALID: the worker is on another host, and the keys for it are
 * missing; ERR_FULL: no link can be made, which was logged. */
static int connect_to(struct worker *w, const char *name, const char *endpoint)
{
	struct chan *c = svc_chan(w->svc);
	struct peer *p = chan_next(c, NULL);
	while (p && (peer_tag(p) != TAG_WORKER || strcmp(peer_expected(p), name) != 0))
		p = chan_next(c, p);
	if (strcmp(name, svc_name(w->svc)) == 0 ||
	    (p && (peer_is_up(p) || strcmp(peer_endpoint(p), endpoint) == 0)))
		return 0;
	if (!chan_has_keys_for(c, endpoint, name))
		return ERR_INVALID;
	if (p)
		chan_disconnect(c, p);
	return chan_connect(c, endpoint, name, TAG_WORKER) ? 0 : ERR_FULL;
}

/* Connects to the decode workers that routers have named. Logs which have no link for want of keys,
 * once while they are the same. */
static void prefill_peers(struct worker *w, const Pds__Peers *m)
{
	struct prefill *s = prefill_of(w);
	char keyless[sizeof s->keyless] = ""; /* their names, cut off where it is full */
	int r = 0;
	close_dead_links(s);
	for (size_t i = 0; i < m->n_peers && r != ERR_FULL; i++) {
		if (strcmp(m->peers[i]->role, "decode") != 0)
			continue;
		r = connect_to(w, m->peers[i]->name, m->peers[i]->endpoint);
		size_t at = strlen(keyless);
		if (r == ERR_INVALID)
			snprintf(keyless + at, sizeof keyless - at, "%s%s", at ? " " : "", m->peers[i]->name);
	}
	if (strcmp(s->keyless, keyless) == 0)
		return;
	memcpy(s->keyless, keyless, sizeof keyless);
	if (*keyless)
		log_warn("peers_skipped", "decode=%s why=%s", log_quote(keyless),
		         log_quote("they are on other hosts, and this worker lacks its own key or theirs "
		                   "(pdctl keygen, pdctl keys): nothing is handed over to them"));
}

/* Those of an embedding, which needs none, are not asked. */
static void copy_candidates(struct job *j, const Pds__Submit *m)
{
	struct job_reserve *r = &j->reserve;
	size_t n = m->request->pooling ? 0 : m->n_candidates;
	r->candidate = mem_array(n, sizeof *r->candidate);
	for (; r->n < n; r->n++) {
		const Pds__Candidate *c = m->candidates[r->n];
		int linked = connect_to(j->w, c->name, c->endpoint);
		r->candidate[r->n].target = target_get(prefill_of(j->w), c->name, c->epoch);
		if (linked == ERR_INVALID)
			reserve_skip(j, &r->candidate[r->n], "there are no keys for the decode worker's host");
	}
}

/* handed_over: to a decode worker. */
static const char *refusal(struct prefill *s, const struct job *j, int handed_over,
                           Pds__Fault *fault)
{
	static char text[160];
	struct err err = {0};
	uint32_t need = worker_blocks_for(s->w, j->run.req.n_tokens);
	uint32_t most = pooled_jobs_max(&j->run.req, s->w->conf.max_jobs);
	*fault = PDS__FAULT__FAULT_DRAINING;
	if (s->draining)
		return "the prefill worker is draining";
	*fault = PDS__FAULT__FAULT_OVERLOADED;
	if (s->n_jobs >= most) {
		snprintf(text, sizeof text, "the prefill worker holds %u requests, its limit%s (max_jobs)",
		         s->n_jobs, j->run.req.pooling ? " for embeddings" : "");
		return text;
	}
	*fault = PDS__FAULT__FAULT_TOO_LARGE;
	if (need > s->w->region.blocks) {
		snprintf(text, sizeof text, "%u tokens need %u KV blocks, the prefill worker has %u",
		         j->run.req.n_tokens, need, s->w->region.blocks);
		return text;
	}
	if (handed_over && worker_check_handover(s->w, j->run.req.n_tokens, &err) < 0) {
		snprintf(text, sizeof text, "%.150s", err.text);
		return text;
	}
	return NULL;
}

/* Copies the request. -1: *f says why it is not accepted; its text may be in err. */
static int take_request(struct prefill *s, struct job *j, const struct msg_head *h,
                        const Pds__Submit *m, struct worker_failure *f, struct err *err)
{
	struct worker *w = s->w;
	int code = request_copy_init(&j->run.req, h, m->request, w->info, err);
	if (code == 0)
		code = constraint_take(w->constraints, &j->run.req, m->request, err);
	if (code == 0) {
		f->text = refusal(s, j, m->n_candidates && !m->request->pooling, &f->fault);
		f->retry = f->fault != PDS__FAULT__FAULT_TOO_LARGE;
		return f->text ? -1 : 0;
	}
	f->text = err->text;
	f->fault = PDS__FAULT__FAULT_INVALID;
	if (code == ERR_NOMEM) {
		f->fault = PDS__FAULT__FAULT_OVERLOADED;
		f->retry = 1;
		f->retry_after_us = CONSTRAINT_RETRY_US;
	}
	return -1;
}

/* Does the answer need no more than what a prefill gives: an embedding, or a single token? */
static int is_prefill_only(const Pds__Request *r)
{
	return r->pooling || (r->max_tokens == 1 && r->n_tokens == r->prompt_tokens);
}

static void prefill_on_submit(struct svc *svc, struct peer *p, const struct msg_head *h,
                              const ProtobufCMessage *body)
{
	struct worker *w = worker_of(svc);
	struct prefill *s = prefill_of(w);
	const Pds__Submit *m = (const Pds__Submit *)body;
	struct worker_failure f = {0};
	struct err err = {0};
	if (job_find(s, h))
		return;
	if (m->n_candidates == 0 && !is_prefill_only(m->request)) {
		/* the router believes that this worker decodes, as it did before */
		worker_fail(w, h, peer_name(p), peer_epoch(p), PDS__FAULT__FAULT_DRAINING, 1,
		            "the worker's role is prefill, and no decode worker was named");
		return;
	}
	struct job *j = mem_zalloc(sizeof *j);
	j->w = w;
	if (take_request(s, j, h, m, &f, &err) < 0) {
		worker_fail_by(w, h, peer_name(p), peer_epoch(p), &f);
		request_copy_fini(&j->run.req);
		free(j);
		return;
	}
	snprintf(j->run.req.router, sizeof j->run.req.router, "%s", peer_name(p));
	j->run.req.router_epoch = peer_epoch(p);
	copy_candidates(j, m);
	j->accepted_us = clock_us();
	job_init(j, s);
	w->stats.requests++;
	log_req(LOG_INFO, &h->req, "accepted", "attempt=%u tokens=%u candidates=%u", h->attempt,
	        j->run.req.n_tokens, j->reserve.n);
	job_step(j, JE_ENTER);
}

static void prefill_on_cancel(struct svc *s, struct peer *p, const struct msg_head *h,
                              const ProtobufCMessage *body)
{
	struct job *j = job_find(prefill_of(worker_of(s)), h);
	(void)p;
	if (j)
		job_drop(j, ((const Pds__Cancel *)body)->reason);
}

/* --- from the decode worker ---------------------------------------------- */

/* The job that asked this peer and has no answer yet. NULL: the message is late (granted meanwhile,
 * or another candidate is asked). */
static struct job *find_asked(struct worker *w, const struct peer *p, const struct msg_head *h)
{
	struct job *j = job_find(prefill_of(w), h);
	return j && j->state == JOB_RESERVE && strcmp(peer_name(p), job_decode_name(j)) == 0 ? j : NULL;
}

static void on_queued(struct svc *s, struct peer *p, const struct msg_head *h,
                      const ProtobufCMessage *body)
{
	struct job *j = find_asked(worker_of(s), p, h);
	if (!j)
		return;
	reserve_queued(j, (const Pds__Queued *)body);
	job_step(j, JE_CHECK);
}

static void on_grant(struct svc *s, struct peer *p, const struct msg_head *h,
                     const ProtobufCMessage *body)
{
	struct job *j = find_asked(worker_of(s), p, h);
	if (!j)
		return;
	if (reserve_granted(j, (const Pds__Grant *)body)) {
		job_step(j, JE_GRANTED);
		return;
	}
	reserve_close(j, PDS__FAULT__FAULT_INTERNAL,
	              "the decode worker's grant does not fit the prompt");
	job_step(j, JE_REFUSED);
}

static void on_deny(struct svc *s, struct peer *p, const struct msg_head *h,
                    const ProtobufCMessage *body)
{
	struct job *j = find_asked(worker_of(s), p, h);
	if (!j)
		return;
	reserve_denied(j, (const Pds__Deny *)body);
	job_step(j, JE_REFUSED);
}

static void on_first_ack(struct svc *s, struct peer *p, const struct msg_head *h,
                         const ProtobufCMessage *body)
{
	struct job *j = job_find(prefill_of(worker_of(s)), h);
	(void)p;
	if (j && ((const Pds__FirstTokenAck *)body)->lease_id == j->lease.id.id)
		job_step(j, JE_ACKED);
}

/* --- from the messager --------------------------------------------------- */

static struct job *of_slot(struct worker *w, uint32_t slot, uint64_t gen)
{
	struct prefill *s = prefill_of(w);
	struct job *j = w->ring && slot < ring_slots(w->ring) ? s->by_slot[slot] : NULL;
	return j && j->run.slot_gen == gen ? j : NULL;
}

static void on_sent(struct svc *s, struct peer *p, const struct msg_head *h,
                    const ProtobufCMessage *body)
{
	const Pds__KvSent *m = (const Pds__KvSent *)body;
	struct job *j = of_slot(worker_of(s), m->slot, m->generation);
	(void)p;
	(void)h;
	if (j)
		job_step(j, JE_SENT);
}

/* A malformed transfer is our failure, and so is one that stalled because our step makes no
 * progress. A lease that was given back in order names the decode worker: no failure, but the
 * router goes on without that one. Otherwise it was the messager, or the link to the decode
 * worker. */
static const char *transfer_failed_by(const struct job *j, Pds__Fault fault)
{
	struct worker *w = j->w;
	int ours = fault == PDS__FAULT__FAULT_INTERNAL ||
	           (fault == PDS__FAULT__FAULT_STALLED && watch_still_us(w) >= STILL_US);
	return ours                                  ? svc_name(w->svc)
	       : fault == PDS__FAULT__FAULT_DRAINING ? job_decode_name(j)
	                                             : NULL;
}

static void on_transfer_failed(struct svc *s, struct peer *p, const struct msg_head *h,
                               const ProtobufCMessage *body)
{
	const Pds__TransferFailed *m = (const Pds__TransferFailed *)body;
	struct job *j = of_slot(worker_of(s), m->slot, m->generation);
	(void)p;
	(void)h;
	if (j && !j->sent) /* a transfer that was sent cannot fail */
		job_fail(j, &(struct worker_failure){.fault = m->fault,
		                                     .retry = 1,
		                                     .text = m->text,
		                                     .blame = transfer_failed_by(j, m->fault)});
}

/* --- peers --------------------------------------------------------------- */

static void prefill_peer_up(struct worker *w, struct peer *p)
{
	if (peer_tag(p) == TAG_WORKER)
		reserve_link(prefill_of(w), p, 1);
}

/* restarts: the worker is alive, but had lost sight of us. */
static void decode_lost(struct job *j, int restarts)
{
	const struct decode_target *t = j->reserve.asked->target;
	struct worker_failure f = {.fault = reserve_gone_fault(t),
	                           .retry = 1,
	                           .text = "the decode worker is gone",
	                           .blame = restarts ? NULL : t->name};
	if (j->state != JOB_RESERVE) {
		job_fail(j, &f);
		return;
	}
	reserve_close(j, f.fault, "every decode worker that was named is gone");
	job_step(j, JE_REFUSED);
}

static void prefill_peer_down(struct worker *w, struct peer *p, const char *why)
{
	struct prefill *s = prefill_of(w);
	(void)why;
	if (peer_tag(p) == TAG_WORKER)
		reserve_link(s, p, 0);
	list_each_safe(it, nx, &s->jobs) {
		struct job *j = list_entry(it, struct job, node);
		if (peer_tag(p) == TAG_ROUTER && strcmp(j->run.req.router, peer_name(p)) == 0 &&
		    j->run.req.router_epoch == peer_epoch(p))
			job_drop(j, "the router is gone");
		else if (peer_tag(p) == TAG_WORKER && j->reserve.asked && !job_decode(j) &&
		         strcmp(job_decode_name(j), peer_name(p)) == 0)
			decode_lost(j, peer_link_restarts(p));
	}
	if (peer_tag(p) == TAG_WORKER)
		close_dead_links(s);
}

/* --- timers -------------------------------------------------------------- */

/* A lease of this length is held: it must be renewed at least twice before it expires. */
void stage_leased(struct prefill *s, uint64_t lease_us)
{
	if (lease_us / 3 < s->renew_us)
		s->renew_us = lease_us / 3;
}

static void send_renew(struct worker *w, struct decode_target *t, uint64_t *ids, size_t n)
{
	Pds__Renew m = PDS__RENEW__INIT;
	m.lease_ids = ids;
	m.n_lease_ids = n;
	m.epoch = t->epoch;
	svc_send(w->svc, t->peer, MSG_KV_RENEW, NULL, &m.base);
}

/* A few times a second, in batches, one message for each decode worker. */
static void renew(struct prefill *s)
{
	uint64_t ids[256];
	s->renew_us = RENEW_US;
	list_each(at, &s->targets) {
		struct decode_target *t = list_entry(at, struct decode_target, node);
		size_t n = 0;
		if (!t->peer)
			continue;
		list_each(it, &s->jobs) {
			struct job *j = list_entry(it, struct job, node);
			if (!job_is_leased(j) || !j->reserve.asked || j->reserve.asked->target != t)
				continue;
			ids[n++] = j->lease.id.id;
			stage_leased(s, j->lease.length_us);
			if (n == sizeof ids / sizeof *ids) {
				send_renew(s->w, t, ids, n);
				n = 0;
			}
		}
		if (n)
			send_renew(s->w, t, ids, n);
	}
}

static void prefill_on_timer(struct svc *svc, void *arg)
{
	static const struct worker_failure late = {
		.fault = PDS__FAULT__FAULT_DEADLINE,
		.text = "the request's deadline has passed in prefill"};
	static const struct worker_failure no_messager = {
		.fault = PDS__FAULT__FAULT_PEER_LOST,
		.retry = 1,
		.text = "the prefill worker's messager is gone or silent"};
	struct prefill *s = arg;
	uint64_t now = clock_us();
	(void)svc;
	list_each_safe(it, nx, &s->jobs) {
		struct job *j = list_entry(it, struct job, node);
		if (now >= j->run.req.deadline_us)
			job_fail(j, &late);
		else if (!job_is_alone(j) && !j->sent && !tell_has_messager(&s->w->tell))
			job_fail(j, &no_messager);
		else
			job_step(j, JE_CHECK);
	}
	if (now - s->renewed_us > s->renew_us) {
		s->renewed_us = now;
		renew(s);
	}
	job_retry_blocked(s);
	watch_look(s->w);
}

/* --- life ---------------------------------------------------------------- */

static int prefill_start(struct worker *w, struct err *err)
{
	if (!w->ring)
		return err_set(
			err, ERR_INVALID,
			"messager is \"none\": a prefill worker cannot hand anything over without one");
	struct prefill *s = mem_zalloc(sizeof *s);
	s->w = w;
	w->state = s;
	list_init(&s->jobs);
	list_init(&s->targets);
	list_init(&s->parked);
	list_init(&s->reads);
	list_init(&s->sharing);
	s->by_key = map_new(ATTEMPT_KEY_BYTES);
	s->by_slot = mem_array(ring_slots(w->ring), sizeof *s->by_slot);
	s->renew_us = RENEW_US;
	s->prepare.w = s->batcher.w = w;
	s->prepare.back = job_prepare_back;
	s->batcher.returned = job_run_back;
	s->batcher.published = share_published;
	s->batcher.config = (struct batcher_config){
		.order = w->conf.prefill_srpt ? ORDER_SRPT : ORDER_FIFO,
		.ageing_us = w->conf.prefill_ageing_us,
		.hands_over = 1,
		.chunk_tokens = w->conf.max_batched_tokens,
	};
	int r = prepare_start(&s->prepare, err);
	return r < 0 ? r : batcher_start(&s->batcher, err);
}

static void fail_draining(struct job *j, const char *why)
{
	job_fail(
		j, &(struct worker_failure){.fault = PDS__FAULT__FAULT_DRAINING, .retry = 1, .text = why});
}

/* Jobs that have no lease, or need none and are not begun, go elsewhere at once; the others are
 * computed and handed over. */
static void prefill_drain(struct worker *w)
{
	struct prefill *s = prefill_of(w);
	s->draining = 1;
	list_each_safe(it, nx, &s->jobs) {
		struct job *j = list_entry(it, struct job, node);
		if (!job_is_leased(j) || (job_is_alone(j) && !j->run.begin_us))
			fail_draining(j, "the prefill worker is draining");
	}
}

static void prefill_abort(struct worker *w, const char *why)
{
	list_each_safe(it, nx, &prefill_of(w)->jobs)
		fail_draining(list_entry(it, struct job, node), why);
}

/* A write-out has ended: its blocks can be taken. */
static void prefill_room(struct worker *w)
{
	job_room_made(prefill_of(w));
}

static int prefill_idle(struct worker *w)
{
	struct prefill *s = prefill_of(w);
	return s->n_jobs == 0 && list_empty(&s->reads);
}

static void prefill_stop(struct worker *w)
{
	struct prefill *s = prefill_of(w);
	if (!s)
		return;
	list_each_safe(it, nx, &s->jobs)
		fail_draining(list_entry(it, struct job, node), "the prefill worker ends");
	prepare_stop(&s->prepare);
	batcher_stop(&s->batcher);
	/* jobs that a thread or a look-up had */
	list_each_safe(it, nx, &s->jobs)
		job_step(list_entry(it, struct job, node), JE_BACK);
	list_each_safe(it, nx, &s->reads)
		read_free(list_entry(it, struct prefill_read, node));
	svc_timer_del(&s->timer);
	map_destroy(&s->by_key);
	free(s->by_slot);
	free(s);
	w->state = NULL;
}

/* Running: jobs of which some is, or is being, computed; others that the schedule thread has still
 * wait for their first step. Waiting: not yet running. */
static void count_jobs(const struct prefill *s, uint32_t *running, uint32_t *waiting)
{
	*running = 0;
	list_each(it, &s->jobs) {
		const struct job *j = list_entry(it, struct job, node);
		*running += job_is_scheduled(j) && j->run.begin_us;
	}
	*waiting = s->n_jobs - *running - s->count[JOB_HANDOVER];
}

static void prefill_heartbeat(struct worker *w, Pds__Heartbeat *hb)
{
	count_jobs(prefill_of(w), &hb->running, &hb->waiting);
}

/* In TAKE a prepare thread may be taking them. */
static int job_has_blocks(const struct job *j)
{
	return j->state >= JOB_READ && j->state <= JOB_HANDOVER;
}

static void prefill_requests(struct worker *w, struct buf *out)
{
	struct prefill *s = prefill_of(w);
	uint64_t now = clock_us();
	int first = 1;
	buf_addc(out, '[');
	list_each(it, &s->jobs) {
		struct job *j = list_entry(it, struct job, node);
		buf_printf(out,
		           "%s{\"request\":\"%s\",\"attempt\":%u,\"state\":\"%s\",\"age_ms\":%llu,"
		           "\"tokens\":%u,\"computed\":%u,\"blocks\":%u,\"decode\":\"%s\"}",
		           first ? "" : ",", log_reqid(&j->run.req.id), j->run.req.attempt,
		           job_state_name(j->state), (unsigned long long)(now - j->accepted_us) / 1000,
		           j->run.req.given_tokens, j->run.computed,
		           job_has_blocks(j) ? j->run.blocks.n : 0, job_decode_name(j));
		first = 0;
	}
	buf_addc(out, ']');
}

static void prefill_status(struct worker *w, struct buf *out)
{
	struct prefill *s = prefill_of(w);
	int first = 1;
	uint32_t running, waiting;
	count_jobs(s, &running, &waiting);
	buf_printf(out, ",\"running\":%u,\"waiting\":%u,\"jobs\":{", running, waiting);
	for (int i = 0; i < JOB_STATES; i++)
		buf_printf(out, "%s\"%s\":%u", i ? "," : "", job_state_name((enum job_state)i),
		           s->count[i]);
	buf_printf(out, ",\"blocked\":%u,\"slotless\":%u},\"ring_used\":%u,\"inflight\":{",
	           s->n_blocked, s->n_slotless, ring_used(w->ring));
	list_each(it, &s->targets) {
		const struct decode_target *t = list_entry(it, struct decode_target, node);
		buf_addc(out, first ? ' ' : ',');
		buf_add_json(out, t->name, strlen(t->name));
		buf_printf(out, ":%u", t->inflight);
		first = 0;
	}
	buf_printf(out, "},\"storage_ready\":%d", s->w->store ? store_ready(s->w->store) : 0);
}

static const char *prefill_block_reason(struct worker *w, uint32_t block)
{
	return read_fences(prefill_of(w), block) ? "fence: storage may still write it" : NULL;
}

static const struct svc_msg messages[] = {
	{MSG_REQUEST_SUBMIT, prefill_on_submit, 0},
	{MSG_REQUEST_CANCEL, prefill_on_cancel, 0},
	{MSG_KV_QUEUED, on_queued, 0},
	{MSG_KV_GRANT, on_grant, 0},
	{MSG_KV_DENY, on_deny, 0},
	{MSG_REQUEST_FIRST_TOKEN_ACK, on_first_ack, 0},
	{MSG_KV_SENT, on_sent, 0},
	{MSG_TRANSFER_FAILED, on_transfer_failed, 0},
	{0},
};

const struct stage_ops prefill_stage = {
	.name = "prefill",
	.messages = messages,
	.start = prefill_start,
	.drain = prefill_drain,
	.abort = prefill_abort,
	.peers = prefill_peers,
	.idle = prefill_idle,
	.stop = prefill_stop,
	.peer_up = prefill_peer_up,
	.peer_down = prefill_peer_down,
	.room = prefill_room,
	.heartbeat = prefill_heartbeat,
	.requests = prefill_requests,
	.status = prefill_status,
	.reason = prefill_block_reason,
};
