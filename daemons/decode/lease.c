/* lease.c - reservations and leases: messages about them, and what the states of a sequence that
 * has one do.
 *
 * Grant rule (all in blocks): asked + sum over running and leased of ceil(min(max_tokens -
 * generated, growth_cap) * ratio / block_tokens) <= free + evictable, no preempted sequence waits,
 * and a sequence slot is free. A reservation is granted only at the head of the queue.
 *
 * Only a messager that has this worker's memory becomes a lease's writer, and KvReady counts only
 * for a lease that had one. Write targets go back only by the registered writer's acknowledgement
 * or its process's end (I3); a timer alone never frees them. KvReady and the first token are
 * acknowledged also for leases that are gone, so that their senders end. */
#include "decode.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define TELL_US 1000000u
#define ROUTER_RETRY_US 100000u /* the answer to its HELLO is mostly on its way */

/* NULL: the lease is gone, or of another life of this worker. */
static struct sequence *by_lease(struct decode *d, const Pds__Lease *l)
{
	if (l->epoch != svc_epoch(d->w->svc))
		return NULL;
	struct sequence *q = map_get(d->by_lease, &l->id);
	return q && q->lease.id == l->generation ? q : NULL;
}

static void fill_lease(const struct sequence *q, Pds__Lease *l)
{
	pds__lease__init(l);
	l->id = l->generation = q->lease.id;
	l->epoch = svc_epoch(q->w->svc);
}

static int is_reserved_by(const struct sequence *q, const char *prefill, uint64_t prefill_epoch)
{
	return q->prefill_epoch == prefill_epoch && strcmp(q->prefill, prefill) == 0;
}

/* Does the ring that names the lease belong to the worker that reserved it? A messager of another
 * host is named by D's own, which has the bytes from it. */
static int is_of_ring(const struct sequence *q, const struct peer *p, const char *messager,
                      const char *prefill, uint64_t prefill_epoch)
{
	return strcmp(q->messager, *messager ? messager : peer_name(p)) == 0 &&
	       is_reserved_by(q, prefill, prefill_epoch);
}

static struct peer *prefill_peer(const struct sequence *q)
{
	struct peer *p = *q->prefill ? chan_find(svc_chan(q->w->svc), q->prefill, TAG_NONE) : NULL;
	return p && peer_epoch(p) == q->prefill_epoch ? p : NULL;
}

/* --- grant --------------------------------------------------------------- */

void lease_send_grant(struct sequence *q)
{
	const struct seq_blocks *b = &q->run.blocks;
	Pds__Grant g = PDS__GRANT__INIT;
	Pds__Lease l;
	struct msg_head h;
	struct peer *p = prefill_peer(q);
	uint32_t matched = b->published;
	if (!p)
		return;
	fill_lease(q, &l);
	request_copy_head(&q->run.req, &h);
	g.lease = &l;
	g.lease_us = q->w->conf.lease_us;
	g.cached_tokens = matched * q->w->info->kv.block_tokens;
	g.blocks = b->block + matched;
	g.n_blocks = worker_blocks_for(q->w, q->run.req.given_tokens) - matched;
	worker_send_awaited(q->w, p, MSG_KV_GRANT, &h, &g.base);
}

static uint64_t growth_of_leases(struct decode *d)
{
	uint64_t blocks = 0;
	if (!d->count[SEQUENCE_LEASED])
		return 0;
	double ratio = batcher_ratio(&d->batcher);
	list_each(it, &d->sequences) {
		const struct sequence *q = list_entry(it, struct sequence, node);
		if (q->state == SEQUENCE_LEASED)
			blocks += batcher_growth(&d->batcher, &q->run.req, ratio);
	}
	return blocks;
}

uint64_t lease_growth(struct decode *d)
{
	return d->batcher.shared.growth_blocks + growth_of_leases(d);
}

static int lease_take_blocks(struct sequence *q)
{
	struct decode *d = decode_of(q->w);
	uint32_t others = decode_active(d) + d->count[SEQUENCE_LEASED];
	if (d->batcher.shared.preempted || others >= q->w->conf.max_sequences)
		return 0;
	/* with nobody else there is nobody's growth to wait for */
	return run_take_blocks(&d->batcher, &q->run, KV_LEASED, others ? lease_growth(d) : 0);
}

enum lease_verdict lease_try(struct sequence *q)
{
	struct worker *w = q->w;
	struct decode *d = decode_of(w);
	uint64_t now = clock_us();
	if (!seq_blocks_hash(&q->run.blocks, w, &q->run.req, HASH_TOKENS)) {
		queue_room(d); /* the rest in the next rounds of the loop */
		return LEASE_MUST_WAIT;
	}
	if (!lease_take_blocks(q))
		return LEASE_MUST_WAIT;
	queue_remove(d, q);
	q->lease = (struct sequence_lease){.id = ++w->last_lease,
	                                   .until_us = now + d->w->conf.lease_us,
	                                   .granted_us = now};
	map_put(d->by_lease, &q->lease.id, q);
	uint64_t waited = now - q->run.born_us;
	w->stats.leases++;
	stat_observe_us(&w->stats.queue_seconds, waited);
	log_req(LOG_INFO, &q->run.req.id, "granted",
	        "attempt=%u prefill=%s lease=%llu blocks=%u cached=%u wait_us=%llu estimate_us=%llu",
	        q->run.req.attempt, q->prefill, (unsigned long long)q->lease.id, q->run.blocks.n,
	        q->run.blocks.published * w->info->kv.block_tokens, (unsigned long long)waited,
	        (unsigned long long)q->place.estimate_us);
	return LEASE_GRANTED;
}

/* --- the wait for it ----------------------------------------------------- */

void lease_send_queued(struct sequence *q)
{
	struct decode *d = decode_of(q->w);
	struct peer *p = prefill_peer(q);
	Pds__Queued m = PDS__QUEUED__INIT;
	struct msg_head h;
	if (!p)
		return;
	request_copy_head(&q->run.req, &h);
	/* COMPILING: it takes its place when its constraint is compiled */
	int queued = q->state == SEQUENCE_QUEUED;
	m.position = queued ? queue_position(d, q) : d->count[SEQUENCE_QUEUED] + 1;
	m.estimate_us = queued ? queue_estimate_of(d, q) : queue_retry_after(d);
	if (!q->place.estimate_us)
		q->place.estimate_us = m.estimate_us;
	q->place.told_us = clock_us();
	svc_send(q->w->svc, p, MSG_KV_QUEUED, &h, &m.base);
}

void lease_send_queued_again(struct sequence *q)
{
	if (clock_us() - q->place.told_us >= TELL_US)
		lease_send_queued(q);
}

static void send_deny(struct worker *w, struct peer *p, const struct msg_head *h, Pds__Fault fault,
                      const char *text, uint64_t retry_us)
{
	Pds__Deny m = PDS__DENY__INIT;
	m.fault = fault;
	m.text = (char *)text;
	m.retry_after_us = retry_us;
	log_req(LOG_INFO, &h->req, "reserve_refused", "attempt=%u prefill=%s text=%s", h->attempt,
	        peer_name(p), log_quote(text));
	w->stats.refused++;
	worker_send_awaited(w, p, MSG_KV_DENY, h, &m.base);
}

void lease_send_deny(struct sequence *q, Pds__Fault fault, const char *text, uint64_t retry_us)
{
	struct peer *p = prefill_peer(q);
	struct msg_head h;
	request_copy_head(&q->run.req, &h);
	if (p)
		send_deny(q->w, p, &h, fault, text, retry_us);
}

void lease_router_gone(struct sequence *q)
{
	if (*q->prefill && (q->state == SEQUENCE_COMPILING || q->state == SEQUENCE_QUEUED))
		lease_send_deny(q, PDS__FAULT__FAULT_PEER_LOST, "the link to its router has ended",
		                ROUTER_RETRY_US);
}

static struct sequence *reserve_sequence(struct worker *w, const struct msg_head *h,
                                         const Pds__Request *r, Pds__Fault *fault, struct err *err)
{
	struct decode *d = decode_of(w);
	uint32_t dropped = d->count[SEQUENCE_GIVEN_UP] + d->count[SEQUENCE_ACTIVE] - d->n_active,
			 waiting = d->count[SEQUENCE_QUEUED] + d->count[SEQUENCE_COMPILING] + dropped;
	*fault = PDS__FAULT__FAULT_DRAINING;
	if (w->role != ROLE_DECODE) {
		err_set(err, ERR_UNSUPPORTED, "role is %s: no hand-over", worker_role_name(w->role));
		return NULL;
	}
	*fault = PDS__FAULT__FAULT_INVALID;
	if (r->pooling) {
		err_set(err, ERR_INVALID, "an embedding is not handed over");
		return NULL;
	}
	*fault = PDS__FAULT__FAULT_TOO_LARGE;
	if (worker_check_handover(w, (uint32_t)r->n_tokens, err) < 0)
		return NULL;
	*fault = PDS__FAULT__FAULT_OVERLOADED;
	if (waiting >= d->w->conf.max_queued) {
		err_set(err, ERR_FULL, "%u reservations wait for room, the limit (max_queued)",
		        d->w->conf.max_queued);
		return NULL;
	}
	return sequence_new(w, h, r, fault, err);
}

void on_reserve(struct svc *s, struct peer *p, const struct msg_head *h,
                const ProtobufCMessage *body)
{
	struct worker *w = worker_of(s);
	struct decode *d = decode_of(w);
	const Pds__Reserve *m = (const Pds__Reserve *)body;
	struct attempt_key k = attempt_key(&h->req, h->attempt);
	struct err err = {0};
	Pds__Fault fault;
	if (tombstone_has(d, &k)) {
		send_deny(w, p, h, PDS__FAULT__FAULT_LEASE_LOST,
		          "this attempt was cancelled or has ended here", 0);
		return;
	}
	struct sequence *q = sequence_find(d, h);
	if (q) { /* asked again: answered again */
		if (q->state == SEQUENCE_LEASED)
			lease_send_grant(q);
		else if (q->state == SEQUENCE_QUEUED || q->state == SEQUENCE_COMPILING)
			lease_send_queued(q);
		return;
	}
	if (!worker_router(w, m->router, m->router_epoch)) { /* there is nobody to send the tokens to */
		err_set(&err, ERR_CLOSED, "no link to %.47s of epoch %llu", m->router,
		        (unsigned long long)m->router_epoch);
		send_deny(w, p, h, PDS__FAULT__FAULT_PEER_LOST, err.text, ROUTER_RETRY_US);
		return;
	}
	q = reserve_sequence(w, h, m->request, &fault, &err);
	if (!q) {
		send_deny(w, p, h, fault, err.text,
		          fault == PDS__FAULT__FAULT_OVERLOADED ? queue_retry_after(d) : 0);
		return;
	}
	snprintf(q->run.req.router, sizeof q->run.req.router, "%s", m->router);
	q->run.req.router_epoch = m->router_epoch;
	snprintf(q->prefill, sizeof q->prefill, "%s", peer_name(p));
	q->prefill_epoch = peer_epoch(p);
	snprintf(q->messager, sizeof q->messager, "%s", m->messager);
	sequence_step(q, SEQUENCE_ON_ENTER);
}

void on_renew(struct svc *s, struct peer *p, const struct msg_head *h, const ProtobufCMessage *body)
{
	struct decode *d = decode_of(worker_of(s));
	const Pds__Renew *m = (const Pds__Renew *)body;
	uint64_t until = clock_us() + d->w->conf.lease_us;
	(void)h;
	if (m->epoch != svc_epoch(s))
		return;
	for (size_t i = 0; i < m->n_lease_ids; i++) {
		struct sequence *q = map_get(d->by_lease, &m->lease_ids[i]);
		if (q && is_reserved_by(q, peer_name(p), peer_epoch(p)))
			q->lease.until_us = until;
	}
}

/* --- giving up ----------------------------------------------------------- */

void lease_revoke(struct sequence *q)
{
	struct worker *w = q->w;
	Pds__LeaseRevoke m = PDS__LEASE_REVOKE__INIT;
	Pds__Lease l;
	struct msg_head h;
	q->lease.revoked = 1;
	if (!w->messager || peer_epoch(w->messager) != q->lease.writer)
		return;
	fill_lease(q, &l);
	request_copy_head(&q->run.req, &h);
	m.lease = &l;
	m.fault = q->lease.in_order ? PDS__FAULT__FAULT_DRAINING : PDS__FAULT__FAULT_LEASE_LOST;
	q->lease.revoked = chan_send(svc_chan(w->svc), w->messager, MSG_LEASE_REVOKE, &h, &m.base) == 0;
}

void lease_fail(struct sequence *q, const char *why, int by_prefill)
{
	struct worker_stats *stats = &q->w->stats;
	log_req(LOG_INFO, &q->run.req.id, "lease_lost", "attempt=%u lease=%llu writer=%d why=%s",
	        q->run.req.attempt, (unsigned long long)q->lease.id, q->lease.writer != 0,
	        log_quote(why));
	stats->leases_lost++;
	stats->cancelled++;
	request_copy_fail(&q->run.req, q->w,
	                  &(struct worker_failure){.fault = PDS__FAULT__FAULT_LEASE_LOST,
	                                           .retry = 1,
	                                           .text = why,
	                                           .blame = by_prefill ? q->prefill : NULL});
}

static void fenced(struct sequence *q, const char *how)
{
	log_req(LOG_INFO, &q->run.req.id, "fenced", "attempt=%u lease=%llu how=%s", q->run.req.attempt,
	        (unsigned long long)q->lease.id, how);
	sequence_step(q, SEQUENCE_ON_FENCED);
}

void lease_messager_gone(struct worker *w, uint64_t epoch)
{
	list_each_safe(it, nx, &decode_of(w)->sequences) {
		struct sequence *q = list_entry(it, struct sequence, node);
		if (q->lease.writer != epoch)
			continue;
		q->lease.writer = 0;
		if (q->state == SEQUENCE_QUARANTINE)
			fenced(q, "process-gone");
	}
}

/* --- messager ------------------------------------------------------------ */

/* What may be written under the lease. generations: room for the lease's blocks. */
static void fill_opened(const struct sequence *q, Pds__LeaseOpened *a, uint64_t *generations)
{
	const struct seq_blocks *b = &q->run.blocks;
	uint32_t matched = b->published;
	a->cached_tokens = matched * q->w->info->kv.block_tokens;
	a->tokens = q->run.req.n_tokens;
	a->blocks = b->block + matched;
	a->n_blocks = b->n - matched;
	for (size_t i = 0; i < a->n_blocks; i++)
		generations[i] = atomic_load_explicit(&q->w->region.generations[a->blocks[i]],
		                                      memory_order_relaxed);
	a->generations = generations;
	a->n_generations = a->n_blocks;
}

void on_lease_open(struct svc *s, struct peer *p, const struct msg_head *h,
                   const ProtobufCMessage *body)
{
	struct worker *w = worker_of(s);
	const Pds__LeaseOpen *m = (const Pds__LeaseOpen *)body;
	struct sequence *q = by_lease(decode_of(w), m->lease);
	Pds__LeaseOpened a = PDS__LEASE_OPENED__INIT;
	uint64_t *generations = NULL;
	a.lease = m->lease;
	a.prefill = m->prefill;
	a.prefill_epoch = m->prefill_epoch;
	/* One that does not have this worker's memory would write into whatever it has instead; and
	 * nothing would report its end. */
	a.refused = !(q && q->state == SEQUENCE_LEASED && !q->lease.ready_us &&
	              attach_is_on(w->messager_attach, peer_epoch(p)) &&
	              is_of_ring(q, p, m->messager, m->prefill, m->prefill_epoch));
	if (!a.refused) {
		q->lease.writer = peer_epoch(p);
		q->lease.opened = 1;
		generations = mem_array(q->run.blocks.n, sizeof *generations);
		fill_opened(q, &a, generations);
	}
	svc_send(w->svc, p, MSG_LEASE_OPENED, h, &a.base);
	free(generations);
}

void on_lease_revoked(struct svc *s, struct peer *p, const struct msg_head *h,
                      const ProtobufCMessage *body)
{
	struct sequence *q = by_lease(decode_of(worker_of(s)),
	                              ((const Pds__LeaseRevoked *)body)->lease);
	(void)h;
	if (q && q->state == SEQUENCE_QUARANTINE && q->lease.writer == peer_epoch(p))
		fenced(q, "acknowledged");
}

/* --- join ---------------------------------------------------------------- */

/* From here on the blocks are matchable: the KV was received and verified. */
enum join_verdict lease_join(struct sequence *q)
{
	struct worker *w = q->w;
	struct run *r = &q->run;
	struct sequence_lease *l = &q->lease;
	uint32_t bt = w->info->kv.block_tokens, index = request_copy_index(&r->req);
	uint64_t now = clock_us();
	kv_pool_lease_to_held(w->pool, r->blocks.block, r->blocks.n);
	r->cached_tokens = r->blocks.published * bt;
	seq_blocks_publish(&r->blocks, w, r->req.n_tokens / bt);
	r->computed = r->req.n_tokens;
	r->scored = r->req.prompt_tokens; /* the prefill worker sends the prompt's log-probabilities */
	r->queue_us = now - l->ready_us;
	r->transfer_us = l->ready_us - l->granted_us;
	r->begin_us = r->first_us = now;
	l->writer = 0;
	Pds__Finish finish = request_copy_append(&r->req, l->first.id, w->info);
	log_req(LOG_INFO, &r->req.id, "joined", "attempt=%u prompt=%u transfer_us=%llu wait_us=%llu",
	        r->req.attempt, r->computed, (unsigned long long)r->transfer_us,
	        (unsigned long long)r->queue_us);
	stat_observe_us(&w->stats.transfer_seconds, r->transfer_us);
	struct token_report *report = report_new(w);
	report_token(report, r, index, &l->first, finish);
	report_prompt(report, &l->prompt);
	report_send(report);
	return finish == PDS__FINISH__FINISH_NONE ? JOIN_RUNS : JOIN_ANSWERED;
}

void on_kv_ready(struct svc *s, struct peer *p, const struct msg_head *h,
                 const ProtobufCMessage *body)
{
	const Pds__KvReady *m = (const Pds__KvReady *)body;
	struct sequence *q = by_lease(decode_of(worker_of(s)), m->lease);
	Pds__KvReadyAck a = PDS__KV_READY_ACK__INIT;
	if (m->lease->epoch != svc_epoch(s))
		return;
	a.lease = m->lease;
	a.prefill = m->prefill;
	a.prefill_epoch = m->prefill_epoch;
	svc_send(s, p, MSG_KV_READY_ACK, h, &a.base);
	if (!q || q->state != SEQUENCE_LEASED || q->lease.ready_us || peer_epoch(p) < q->lease.writer)
		return;
	/* nobody can have written what nobody has opened; or another ring names this lease */
	if (!q->lease.opened || !is_of_ring(q, p, m->messager, m->prefill, m->prefill_epoch))
		return;
	q->lease.ready_us = clock_us();
	log_req(LOG_DEBUG, &q->run.req.id, "kv_ready",
	        "attempt=%u bytes=%llu copy_us=%llu tail_us=%llu", q->run.req.attempt,
	        (unsigned long long)m->bytes, (unsigned long long)m->copy_us,
	        (unsigned long long)m->tail_us);
	sequence_step(q, SEQUENCE_ON_KV_READY);
}

static void take_first(struct sequence *q, const Pds__FirstToken *m)
{
	struct kern_drawn *first = &q->lease.first;
	const Pds__Token *t = m->token;
	first->id = t->id;
	first->logprob = t->logprob;
	first->n_top = t->n_top < KERN_TOP_MAX ? (uint32_t)t->n_top : KERN_TOP_MAX;
	for (uint32_t i = 0; i < first->n_top; i++)
		first->top[i] = (struct kern_top){t->top[i]->id, t->top[i]->logprob};
	q->lease.prompt = m->timing ? *m->timing : (Pds__Timing)PDS__TIMING__INIT;
	q->lease.first_us = clock_us();
}

void on_first_token(struct svc *s, struct peer *p, const struct msg_head *h,
                    const ProtobufCMessage *body)
{
	struct worker *w = worker_of(s);
	const Pds__FirstToken *m = (const Pds__FirstToken *)body;
	struct sequence *q = sequence_find(decode_of(w), h);
	Pds__FirstTokenAck a = PDS__FIRST_TOKEN_ACK__INIT;
	if (m->decode_epoch != svc_epoch(w->svc))
		return;
	a.lease_id = m->lease_id;
	svc_send(w->svc, p, MSG_REQUEST_FIRST_TOKEN_ACK, h, &a.base);
	/* Only the worker that reserved it may send it, over either of the two links between them. */
	if (!q || !is_reserved_by(q, peer_name(p), peer_epoch(p)))
		return;
	if (q->state != SEQUENCE_LEASED || q->lease.first_us || q->lease.id != m->lease_id ||
	    q->lease.id != m->lease_generation)
		return;
	if (m->token->id >= w->info->vocab) {
		sequence_step(q, SEQUENCE_ON_BAD_TOKEN);
		return;
	}
	take_first(q, m);
	sequence_step(q, SEQUENCE_ON_FIRST_TOKEN);
}
