/* stage.c - the prefill stage towards the worker: messages, peers, timers, life.
 *
 * A message about a job that is not known (ended, of another attempt, of another life) is dropped:
 * whoever sent it has heard or will hear of the end by the reservation's cancel, the lease's
 * expiry, or the ring slot. */
#include "prefill.h"
#include "daemons/worker/seq/constraint.h"
#include "util/check.h"
#include "util/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define TIMER_US 50000u
#define STILL_US 1000000u /* a step without progress for so long stalls its transfers */
#define RENEW_US 400000u  /* or a third of the shortest lease held, if that is less */

static void on_timer(struct svc *svc, void *arg);

/* --- between the threads and the loop ------------------------------------ */

void stage_soon(struct prefill *s, unsigned what)
{
	if (atomic_fetch_or(&s->soon, what) == 0)
		CHECK(eventfd_write(s->bell_fd, 1) == 0);
}

void stage_return(struct prefill *s, struct job *j, enum job_back as)
{
	j->back_as = as;
	pthread_mutex_lock(&s->back_lock);
	list_push_back(&s->back, &j->back);
	pthread_mutex_unlock(&s->back_lock);
	stage_soon(s, SOON_RETURNED);
}

void stage_score(struct prefill *s, struct score *c)
{
	pthread_mutex_lock(&s->back_lock);
	list_push_back(&s->scores, score_node(c));
	pthread_mutex_unlock(&s->back_lock);
	stage_soon(s, SOON_RETURNED);
}

static struct list *take_first(struct list *l)
{
	struct list *n = list_empty(l) ? NULL : l->next;
	if (n)
		list_remove(n);
	return n;
}

/* The next job that came back, when all slices that were given before it are sent. */
static struct job *returned(struct prefill *s)
{
	struct list *slice, *job;
	do {
		pthread_mutex_lock(&s->back_lock);
		slice = take_first(&s->scores);
		job = slice ? NULL : take_first(&s->back);
		pthread_mutex_unlock(&s->back_lock);
		if (slice)
			score_send(score_of(slice));
	} while (slice);
	return job ? list_entry(job, struct job, back) : NULL;
}

static void on_bell(evutil_socket_t fd, short what, void *arg)
{
	static void (*const back[])(struct job * j) = {
		[BACK_PREPARED] = job_prepared, [BACK_TAKEN] = job_taken, [BACK_COMPUTED] = job_computed};
	struct prefill *s = arg;
	eventfd_t v;
	(void)what;
	eventfd_read(fd, &v);
	unsigned soon = atomic_exchange(&s->soon, 0);
	for (struct job *j; (j = returned(s));)
		back[j->back_as](j);
	if (soon & SOON_SHARE)
		share_wake(s);
	if (soon & SOON_BLOCKED)
		job_retry_blocked(s);
	if (soon & SOON_PLACE)
		reserve_parked(s);
	if (soon & SOON_GATE)
		gate_turn(s);
}

static int is_named(const Pds__Peers *m, const char *endpoint)
{
	for (size_t i = 0; m && i < m->n_peers; i++)
		if (strcmp(m->peers[i]->role, "decode") == 0 &&
		    strcmp(m->peers[i]->endpoint, endpoint) == 0)
			return 1;
	return 0;
}

static int is_target(const struct prefill *s, const char *name)
{
	list_each(it, &s->targets)
		if (strcmp(list_entry(it, struct target, node)->name, name) == 0)
			return 1;
	return 0;
}

static int any_link_down(struct chan *c)
{
	for (struct peer *p = chan_next(c, NULL); p; p = chan_next(c, p))
		if (peer_tag(p) == TAG_WORKER && !peer_is_up(p))
			return 1;
	return 0;
}

/* Links that are down to decode workers which no router and no job names any more: each holds a
 * socket, and asks again and again. */
static void close_dead_links(struct prefill *s)
{
	struct chan *c = svc_chan(s->w->svc);
	if (!any_link_down(c))
		return; /* PEERS need not be unpacked */
	Pds__Peers *m = role_peers(s->w);
	for (struct peer *p = chan_next(c, NULL), *next; p; p = next) {
		next = chan_next(c, p);
		if (peer_tag(p) != TAG_WORKER || peer_is_up(p) || is_named(m, peer_endpoint(p)) ||
		    is_target(s, peer_expected(p)))
			continue;
		log_info("link_closed", "decode=%s why=\"no router names it any more\"", peer_expected(p));
		chan_disconnect(c, p);
	}
	if (m)
		pds__peers__free_unpacked(m, NULL);
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
		s->timer = svc_timer_add(s->w->svc, TIMER_US, on_timer, s);
}

static struct job *find(struct prefill *s, const struct msg_head *h)
{
	struct attempt_key k = attempt_key(&h->req, h->attempt);
	return map_get(s->by_key, k.b);
}

/* --- from the router ----------------------------------------------------- */

/* -1: no link to it can be made. */
static int connect_to(struct worker *w, const char *name, const char *endpoint)
{
	struct chan *c = svc_chan(w->svc);
	if (strcmp(name, svc_name(w->svc)) == 0)
		return 0;
	for (struct peer *p = chan_next(c, NULL); p; p = chan_next(c, p))
		if (peer_tag(p) == TAG_WORKER && strcmp(peer_endpoint(p), endpoint) == 0)
			return 0;
	return chan_connect(c, endpoint, name, TAG_WORKER) ? 0 : -1;
}

static void on_peers(struct worker *w, struct peer *p, const struct msg_head *h,
                     const ProtobufCMessage *body)
{
	const Pds__Peers *m = (const Pds__Peers *)body;
	int r = 0;
	(void)p;
	(void)h;
	close_dead_links(prefill_of(w));
	for (size_t i = 0; i < m->n_peers && r == 0; i++)
		if (strcmp(m->peers[i]->role, "decode") == 0)
			r = connect_to(w, m->peers[i]->name, m->peers[i]->endpoint);
}

static void copy_candidates(struct job *j, const Pds__Submit *m)
{
	j->candidate = mem_array(m->n_candidates, sizeof *j->candidate);
	for (size_t i = 0; i < m->n_candidates; i++) {
		connect_to(j->w, m->candidates[i]->name, m->candidates[i]->endpoint);
		j->candidate[j->n_candidates++].target = target_get(prefill_of(j->w),
		                                                    m->candidates[i]->name,
		                                                    m->candidates[i]->epoch);
	}
}

static const char *refusal(struct prefill *s, const struct job *j, Pds__Fault *fault)
{
	static char text[160];
	uint32_t need = worker_blocks_for(s->w, j->req.n_tokens);
	*fault = PDS__FAULT__FAULT_DRAINING;
	if (s->draining)
		return "the prefill worker is draining";
	*fault = PDS__FAULT__FAULT_OVERLOADED;
	if (s->n_jobs >= s->max_jobs) {
		snprintf(text, sizeof text, "the prefill worker holds %u requests, its limit", s->max_jobs);
		return text;
	}
	*fault = PDS__FAULT__FAULT_TOO_LARGE;
	if (need > s->w->region.blocks || need > RING_BLOCKS_MAX) {
		snprintf(text, sizeof text, "%u tokens need %u KV blocks, the prefill worker has %u",
		         j->req.n_tokens, need, s->w->region.blocks);
		return text;
	}
	return NULL;
}

static void job_accept(struct prefill *s, struct job *j, const Pds__Submit *m)
{
	struct attempt_key k = attempt_key(&j->req.id, j->req.attempt);
	copy_candidates(j, m);
	map_put(s->by_key, k.b, j);
	list_push_back(&s->jobs, &j->node);
	list_init(&j->run);
	j->seq = s->next_seq++;
	j->turn = j->seq;
	s->count[JOB_NEW]++;
	stage_jobs(s, 1);
	stat_add(svc_stats(j->w->svc), WS_REQUESTS, 1);
	j->accepted_us = clock_us();
	log_req(LOG_INFO, &j->req.id, "accepted", "attempt=%u tokens=%u candidates=%u", j->req.attempt,
	        j->req.n_tokens, j->n_candidates);
	if (!gate_admit(j))
		job_begin(j);
}

static void on_submit(struct worker *w, struct peer *p, const struct msg_head *h,
                      const ProtobufCMessage *body)
{
	struct prefill *s = prefill_of(w);
	const Pds__Submit *m = (const Pds__Submit *)body;
	struct err err = {0};
	if (find(s, h))
		return;
	if (m->n_candidates == 0) {
		/* the router took this for a worker that decodes, which it was */
		worker_fail(w, h, peer_name(p), peer_epoch(p), PDS__FAULT__FAULT_DRAINING, 1,
		            "the worker's role is prefill, and no decode worker was named");
		return;
	}
	struct job *j = mem_zalloc(sizeof *j);
	j->w = w;
	int code = request_copy_init(&j->req, h, m->request, w->info, &err);
	if (code < 0 || (code = constraint_take(w->constraints, &j->req, m->request, &err)) < 0) {
		int later = code == ERR_NOMEM;
		struct worker_failure f = {.fault = PDS__FAULT__FAULT_INVALID, .text = err.text};
		if (later)
			f = (struct worker_failure){.fault = PDS__FAULT__FAULT_OVERLOADED,
			                            .retry = 1,
			                            .text = err.text,
			                            .retry_after_us = CONSTRAINT_RETRY_US};
		worker_fail_by(w, h, peer_name(p), peer_epoch(p), &f);
		request_copy_fini(&j->req);
		free(j);
		return;
	}
	snprintf(j->req.router, sizeof j->req.router, "%s", peer_name(p));
	j->req.router_epoch = peer_epoch(p);
	Pds__Fault fault;
	const char *why = refusal(s, j, &fault);
	if (why) {
		worker_fail(w, h, peer_name(p), peer_epoch(p), fault, fault != PDS__FAULT__FAULT_TOO_LARGE,
		            why);
		request_copy_fini(&j->req);
		free(j);
		return;
	}
	job_accept(s, j, m);
}

static void on_cancel(struct worker *w, struct peer *p, const struct msg_head *h,
                      const ProtobufCMessage *body)
{
	struct job *j = find(prefill_of(w), h);
	(void)p;
	if (j)
		job_drop(j, ((const Pds__Cancel *)body)->reason);
}

/* --- from the decode worker ---------------------------------------------- */

static int is_asked(const struct job *j, const struct peer *p)
{
	return j && j->state == JOB_RESERVE && j->asked &&
	       strcmp(peer_name(p), job_decode_name(j)) == 0;
}

static void on_queued(struct worker *w, struct peer *p, const struct msg_head *h,
                      const ProtobufCMessage *body)
{
	const Pds__Queued *m = (const Pds__Queued *)body;
	struct job *j = find(prefill_of(w), h);
	if (!is_asked(j, p))
		return; /* late: granted meanwhile, or another candidate is asked */
	gate_stalled(j);
	reserve_queued(j, m);
}

static void on_grant(struct worker *w, struct peer *p, const struct msg_head *h,
                     const ProtobufCMessage *body)
{
	struct job *j = find(prefill_of(w), h);
	if (j)
		reserve_granted(j, (const Pds__Grant *)body, peer_name(p));
}

static void on_deny(struct worker *w, struct peer *p, const struct msg_head *h,
                    const ProtobufCMessage *body)
{
	struct job *j = find(prefill_of(w), h);
	if (is_asked(j, p))
		reserve_denied(j, (const Pds__Deny *)body);
}

static void on_first_ack(struct worker *w, struct peer *p, const struct msg_head *h,
                         const ProtobufCMessage *body)
{
	struct job *j = find(prefill_of(w), h);
	(void)p;
	if (!j || ((const Pds__FirstTokenAck *)body)->lease_id != j->lease.id)
		return;
	j->first_acked = 1;
	job_finish_if_done(j);
}

/* --- from the messager --------------------------------------------------- */

static struct job *of_slot(struct worker *w, uint32_t slot, uint64_t gen)
{
	struct prefill *s = prefill_of(w);
	struct job *j = w->ring && slot < ring_slots(w->ring) ? s->by_slot[slot] : NULL;
	return j && j->slot_gen == gen ? j : NULL;
}

static void on_sent(struct worker *w, struct peer *p, const struct msg_head *h,
                    const ProtobufCMessage *body)
{
	const Pds__KvSent *m = (const Pds__KvSent *)body;
	struct job *j = of_slot(w, m->slot, m->generation);
	(void)p;
	(void)h;
	if (!j)
		return;
	j->kv_sent = 1;
	job_finish_if_done(j);
}

/* A transfer that was malformed is our doing, and so is one that stalled because our step stands
 * still. Else it was the messager, or the link to the decode worker. */
static const char *transfer_failed_by(const struct job *j, Pds__Fault fault)
{
	struct worker *w = j->w;
	int ours = fault == PDS__FAULT__FAULT_INTERNAL ||
	           (fault == PDS__FAULT__FAULT_STALLED && watch_still_us(w) >= STILL_US);
	return ours ? svc_name(w->svc) : NULL;
}

static void on_transfer_failed(struct worker *w, struct peer *p, const struct msg_head *h,
                               const ProtobufCMessage *body)
{
	const Pds__TransferFailed *m = (const Pds__TransferFailed *)body;
	struct job *j = of_slot(w, m->slot, m->generation);
	(void)p;
	(void)h;
	if (j && !j->kv_sent)
		job_fail_by(j, m->fault, 1, m->text, transfer_failed_by(j, m->fault));
}

/* Only asked for by the gate. */
static void on_transfer_seen(struct worker *w, struct peer *p, const struct msg_head *h,
                             const ProtobufCMessage *body)
{
	const Pds__TransferSeen *m = (const Pds__TransferSeen *)body;
	struct job *j = of_slot(w, m->slot, m->generation);
	(void)p;
	(void)h;
	if (j)
		gate_seen(j);
}

/* --- peers --------------------------------------------------------------- */

static void peer_up(struct worker *w, struct peer *p)
{
	if (peer_tag(p) == TAG_WORKER)
		reserve_link(prefill_of(w), p, 1);
}

/* anew: it lives, and had lost sight of us. */
static void decode_lost(struct job *j, int restarts)
{
	const struct target *t = j->candidate[j->at].target;
	j->asked = 0;
	if (j->state == JOB_RESERVE)
		reserve_close(j, reserve_gone_fault(t), "every decode worker that was named is gone");
	else
		job_fail_by(j, reserve_gone_fault(t), 1, "the decode worker is gone",
		            restarts || t->ended_in_order ? NULL : t->name);
}

static void peer_down(struct worker *w, struct peer *p, const char *why)
{
	struct prefill *s = prefill_of(w);
	(void)why;
	if (peer_tag(p) == TAG_WORKER)
		reserve_link(s, p, 0);
	list_each_safe(it, nx, &s->jobs) {
		struct job *j = list_entry(it, struct job, node);
		if (j->state == JOB_END)
			continue;
		if (peer_tag(p) == TAG_ROUTER && strcmp(j->req.router, peer_name(p)) == 0 &&
		    j->req.router_epoch == peer_epoch(p))
			job_drop(j, "the router is gone");
		else if (peer_tag(p) == TAG_WORKER && j->asked && !job_decode(j) &&
		         strcmp(job_decode_name(j), peer_name(p)) == 0)
			decode_lost(j, peer_link_restarts(p));
	}
	if (peer_tag(p) == TAG_WORKER)
		close_dead_links(s);
}

/* --- timers -------------------------------------------------------------- */

static void check_waits(struct prefill *s, struct job *j, uint64_t now)
{
	if (j->state == JOB_END || j->cancelled)
		return;
	if (now >= j->req.deadline_us)
		job_fail(j, PDS__FAULT__FAULT_DEADLINE, 0, "the request's deadline has passed in prefill");
	else if (j->state == JOB_RESERVE)
		reserve_check(j, now);
	else if (j->state == JOB_FETCH)
		fetch_late(j);
	else if (j->state == JOB_COMPUTED && now - j->first_us > s->stall_us)
		job_fail_by(j, PDS__FAULT__FAULT_STALLED, 1,
		            j->kv_sent ? "the decode worker does not acknowledge the first token"
		                       : "the messager does not report the transfer as done",
		            j->kv_sent ? job_decode_name(j) : NULL);
}

/* A lease of this length is held: it must be renewed twice at least while it lasts. */
void stage_leased(struct prefill *s, uint64_t lease_us)
{
	if (lease_us / 3 < s->renew_us)
		s->renew_us = lease_us / 3;
}

static void send_renew(struct worker *w, struct target *t, uint64_t *ids, size_t n)
{
	Pds__Renew m = PDS__RENEW__INIT;
	m.lease_ids = ids;
	m.n_lease_ids = n;
	m.epoch = t->epoch;
	svc_send(w->svc, t->peer, MSG_KV_RENEW, NULL, &m.base);
}

/* In batches, each decode worker's leases by themselves; a few times a second. */
static void renew(struct prefill *s)
{
	uint64_t ids[256];
	s->renew_us = RENEW_US;
	list_each(at, &s->targets) {
		struct target *t = list_entry(at, struct target, node);
		size_t n = 0;
		if (!t->peer)
			continue;
		list_each(it, &s->jobs) {
			struct job *j = list_entry(it, struct job, node);
			if (j->state == JOB_END || j->cancelled || !j->leased ||
			    j->candidate[j->at].target != t)
				continue;
			ids[n++] = j->lease.id;
			stage_leased(s, j->lease_us);
			if (n == sizeof ids / sizeof *ids) {
				send_renew(s->w, t, ids, n);
				n = 0;
			}
		}
		if (n)
			send_renew(s->w, t, ids, n);
	}
}

static void on_timer(struct svc *svc, void *arg)
{
	struct prefill *s = arg;
	uint64_t now = clock_us();
	(void)svc;
	list_each_safe(it, nx, &s->jobs)
		check_waits(s, list_entry(it, struct job, node), now);
	if (now - s->renewed_us > s->renew_us) {
		s->renewed_us = now;
		renew(s);
	}
	gate_check(s, now);
	job_retry_blocked(s);
	watch_look(s->w);
}

/* --- life ---------------------------------------------------------------- */

static void configure(struct prefill *s)
{
	struct conf *c = svc_conf(s->w->svc);
	s->renew_us = RENEW_US;
	s->max_jobs = (uint32_t)conf_int(c, "max_jobs");
	s->stall_us = (uint64_t)conf_int(c, "stall_ms") * 1000u;
	s->max_inflight = (uint32_t)conf_int(c, "max_inflight_prefill");
	s->share = conf_bool(c, "share_running_prefix");
	s->order = strcmp(conf_str(c, "prefill_order"), "srpt") == 0 ? ORDER_SRPT : ORDER_FIFO;
	s->ageing_us = (uint64_t)conf_int(c, "prefill_ageing_ms") * 1000u;
	s->lookup_us = (uint64_t)conf_int(c, "storage_lookup_wait_ms") * 1000u;
	s->fetch_us = (uint64_t)conf_int(c, "storage_read_wait_ms") * 1000u;
	s->evict_wait_us = (uint64_t)conf_int(c, "offload_wait_ms") * 1000u;
	s->offload = strcmp(conf_str(c, "kv_eviction"), "offload") == 0;
}

static int start(struct worker *w, struct err *err)
{
	if (!w->ring)
		return err_set(
			err, ERR_INVALID,
			"messager is \"none\": a prefill worker cannot hand anything over without one");
	struct prefill *s = mem_zalloc(sizeof *s);
	s->w = w;
	w->state = s;
	list_init(&s->jobs);
	list_init(&s->back);
	list_init(&s->scores);
	list_init(&s->targets);
	list_init(&s->parked);
	list_init(&s->fetches);
	list_init(&s->sharing);
	pthread_mutex_init(&s->back_lock, NULL);
	s->by_key = map_new(ATTEMPT_KEY_BYTES);
	s->by_slot = mem_array(ring_slots(w->ring), sizeof *s->by_slot);
	configure(s);
	s->bell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (s->bell_fd < 0)
		return err_set(err, ERR_IO, "cannot create an eventfd: %s", strerror(errno));
	s->bell = event_new(svc_base(w->svc), s->bell_fd, EV_READ | EV_PERSIST, on_bell, s);
	if (!s->bell || event_add(s->bell, NULL) < 0)
		return err_set(err, ERR_IO, "cannot watch an eventfd");
	int r = gate_init(s, err);
	if (r < 0 || (r = prepare_start(s, err)) < 0)
		return r;
	return schedule_start(s, err);
}

/* Who has no grant yet goes elsewhere at once; what is granted is computed and handed over. */
static void drain(struct worker *w)
{
	struct prefill *s = prefill_of(w);
	s->draining = 1;
	list_each_safe(it, nx, &s->jobs) {
		struct job *j = list_entry(it, struct job, node);
		if (!j->leased)
			job_fail(j, PDS__FAULT__FAULT_DRAINING, 1, "the prefill worker is draining");
	}
}

static void abort_all(struct worker *w, const char *why)
{
	list_each_safe(it, nx, &prefill_of(w)->jobs)
		job_fail(list_entry(it, struct job, node), PDS__FAULT__FAULT_DRAINING, 1, why);
}

static void role_changed(struct worker *w)
{
	(void)w; /* it serves one role only */
}

/* A write-out has ended: what it was of can be taken. */
static void room(struct worker *w)
{
	job_came_back(prefill_of(w));
}

static int idle(struct worker *w)
{
	struct prefill *s = prefill_of(w);
	return s->n_jobs == 0 && list_empty(&s->fetches);
}

static void free_fetches(struct prefill *s)
{
	list_each_safe(it, nx, &s->fetches)
		fetch_free(list_entry(it, struct fetch, node));
}

static void stop(struct worker *w)
{
	struct prefill *s = prefill_of(w);
	if (!s)
		return;
	prepare_stop(s);
	schedule_stop(s);
	list_each_safe(it, nx, &s->jobs) {
		struct job *j = list_entry(it, struct job, node);
		job_adopt_taken(j);
		j->holders = 0;
		j->cancelled = 0;
		job_fail(j, PDS__FAULT__FAULT_DRAINING, 1, "the prefill worker ends");
	}
	list_each_safe(it, nx, &s->scores)
		score_free(score_of(it));
	free_fetches(s);
	gate_fini(s);
	if (s->bell)
		event_free(s->bell);
	if (s->bell_fd >= 0)
		close(s->bell_fd);
	svc_timer_del(&s->timer);
	map_destroy(&s->by_key);
	free(s->by_slot);
	pthread_mutex_destroy(&s->back_lock);
	pthread_mutex_destroy(&s->lock);
	pthread_cond_destroy(&s->wake);
	free(s);
	w->state = NULL;
}

static void heartbeat(struct worker *w, Pds__Heartbeat *hb)
{
	struct prefill *s = prefill_of(w);
	hb->running = s->count[JOB_RUN];
	hb->waiting = s->n_jobs - s->count[JOB_RUN] - s->count[JOB_COMPUTED];
}

static void requests(struct worker *w, struct buf *out)
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
		           first ? "" : ",", log_reqid(&j->req.id), j->req.attempt,
		           job_state_name(j->state), (unsigned long long)(now - j->accepted_us) / 1000,
		           j->req.given_tokens, j->computed, j->n_blocks, job_decode_name(j));
		first = 0;
	}
	buf_addc(out, ']');
}

static void status(struct worker *w, struct buf *out)
{
	struct prefill *s = prefill_of(w);
	int first = 1;
	buf_printf(out, ",\"running\":%u,\"waiting\":%u,\"jobs\":{", s->count[JOB_RUN],
	           s->n_jobs - s->count[JOB_RUN]);
	for (int i = JOB_PREPARE; i < JOB_END; i++)
		buf_printf(out, "%s\"%s\":%u", i == JOB_PREPARE ? "" : ",",
		           job_state_name((enum job_state)i), s->count[i]);
	buf_printf(out, "},\"ring_used\":%u,\"inflight\":{", ring_used(w->ring));
	list_each(it, &s->targets) {
		const struct target *t = list_entry(it, struct target, node);
		buf_addc(out, first ? ' ' : ',');
		buf_add_json(out, t->name, strlen(t->name));
		buf_printf(out, ":%u", t->inflight);
		first = 0;
	}
	buf_printf(out, "},\"storage_ready\":%d", s->w->store ? store_ready(s->w->store) : 0);
}

static const char *reason(struct worker *w, uint32_t block)
{
	return fetch_fences(prefill_of(w), block) ? "fence: storage may still write it" : NULL;
}

static const struct stage_msg messages[] = {
	{&pds__peers__descriptor, on_peers},
	{&pds__submit__descriptor, on_submit},
	{&pds__cancel__descriptor, on_cancel},
	{&pds__queued__descriptor, on_queued},
	{&pds__grant__descriptor, on_grant},
	{&pds__deny__descriptor, on_deny},
	{&pds__first_token_ack__descriptor, on_first_ack},
	{&pds__kv_sent__descriptor, on_sent},
	{&pds__transfer_failed__descriptor, on_transfer_failed},
	{&pds__transfer_seen__descriptor, on_transfer_seen},
	{NULL, NULL},
};

const struct stage_ops prefill_stage = {
	.name = "prefill",
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
	.heartbeat = heartbeat,
	.requests = requests,
	.status = status,
	.reason = reason,
};
