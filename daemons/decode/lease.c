/* lease.c - reservations: queued in order, granted as leases, filled by the messager, joined, or
 * given up behind a fence.
 *
 * Grant rule (all in blocks): asked + sum over running and leased of ceil(min(max_tokens -
 * generated, growth_cap) * ratio / block_tokens) <= free + evictable, no preempted sequence waits,
 * and a sequence slot is free. A reservation is granted only at the head of the queue.
 *
 * Write targets go back only by the registered writer's acknowledgement or its process's end (I3);
 * a timer alone never frees them. KvReady and the first token are acknowledged also for leases
 * that are gone, so that their senders end. */
#include "decode.h"
#include "util/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TELL_US 1000000u

static struct sequence *by_lease(struct decode *d, const Pds__Lease *l)
{
	if (l->epoch != svc_epoch(d->w->svc))
		return NULL;
	struct sequence *q = map_get(d->by_lease, &l->id);
	return q && q->lease_generation == l->generation ? q : NULL;
}

static void fill_lease(const struct sequence *q, Pds__Lease *l)
{
	pds__lease__init(l);
	l->id = q->lease_id;
	l->epoch = svc_epoch(q->w->svc);
	l->generation = q->lease_generation;
}

static struct peer *prefill_peer(struct sequence *q)
{
	struct peer *p = chan_find(svc_chan(q->w->svc), q->prefill);
	return p && peer_epoch(p) == q->prefill_epoch ? p : NULL;
}

/* --- grant --------------------------------------------------------------- */

static void send_grant(struct sequence *q)
{
	struct decode *d = decode_of(q->w);
	Pds__Grant g = PDS__GRANT__INIT;
	Pds__Lease l;
	struct msg_head h;
	struct peer *p = prefill_peer(q);
	uint32_t skip = q->n_matched;
	fill_lease(q, &l);
	sequence_head(q, &h);
	g.lease = &l;
	g.lease_us = d->lease_us;
	g.cached_tokens = skip * q->w->info->kv.block_tokens;
	g.blocks = q->blocks + skip;
	g.n_blocks = worker_blocks_for(q->w, q->req.given_tokens) - skip;
	if (p)
		svc_send(q->w->svc, p, MSG_KV_GRANT, &h, &g.base);
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
	stat_add(svc_stats(w->svc), WS_REFUSED, 1);
	svc_send(w->svc, p, MSG_KV_DENY, h, &m.base);
}

static uint64_t growth_at(const struct decode *d, const struct sequence *q, double ratio)
{
	return (uint64_t)ceil((double)sequence_growth_tokens(d, &q->req) * ratio /
	                      d->w->info->kv.block_tokens);
}

static uint64_t growth_leased(struct decode *d, double ratio)
{
	uint64_t blocks = 0;
	if (!d->count[SEQUENCE_LEASED])
		return 0;
	list_each(it, &d->sequences) {
		const struct sequence *q = list_entry(it, struct sequence, node);
		if (q->state == SEQUENCE_LEASED)
			blocks += growth_at(d, q, ratio);
	}
	return blocks;
}

static double ratio_now(struct decode *d)
{
	pthread_mutex_lock(&d->lock);
	double ratio = d->ratio;
	pthread_mutex_unlock(&d->lock);
	return ratio;
}

uint64_t lease_growth(struct decode *d)
{
	return d->growth_blocks + growth_leased(d, ratio_now(d));
}

/* Is there room for `need` blocks beside what those who run will grow by? With nobody else there
 * is nobody's growth to wait for. */
static int fits(struct decode *d, uint64_t need, uint64_t growth)
{
	struct kv_stats ks;
	kv_pool_stats(d->w->pool, &ks);
	if (d->active + d->count[SEQUENCE_LEASED] == 0)
		growth = 0;
	return need + growth <= (uint64_t)ks.by_state[KV_FREE] + ks.evictable;
}

/* 1 if the blocks are q's now. What the index has is matched first; the match is given back when
 * the rest does not fit. One that cannot fit, however much of it is cached, is found out without
 * touching the index: it is asked for often. */
static int room_for(struct decode *d, struct sequence *q)
{
	struct worker *w = d->w;
	uint32_t need = worker_blocks_for(w, q->req.n_tokens), bt = w->info->kv.block_tokens;
	if (d->preempted || d->active + d->count[SEQUENCE_LEASED] >= w->max_sequences)
		return 0;
	uint64_t growth = lease_growth(d);
	if (!q->blocks) {
		q->room_blocks = need + 8;
		q->blocks = mem_array(q->room_blocks, sizeof *q->blocks);
	}
	uint32_t may = q->req.prompt_logprobs ? 0 : (q->req.n_tokens - 1) / bt;
	if (!fits(d, need - kv_pool_probe(w->pool, q->hashes, may), growth))
		return 0;
	uint32_t matched = kv_pool_match(w->pool, q->hashes, may, &q->req.id, q->blocks);
	if (!fits(d, need - matched, growth) ||
	    kv_pool_take(w->pool, need - matched, KV_LEASED, &q->req.id, q->blocks + matched) < 0) {
		kv_pool_release(w->pool, q->blocks, matched);
		return 0;
	}
	q->n_matched = matched;
	q->n_blocks = need;
	return 1;
}

void lease_try_grant(struct decode *d)
{
	uint64_t now = clock_us();
	while (!list_empty(&d->queued)) {
		struct sequence *q = list_entry(d->queued.next, struct sequence, queue);
		if (!sequence_hash_some(q, HASH_TOKENS)) {
			event_add(d->hashing, &(struct timeval){0, 0});
			return;
		}
		if (!room_for(d, q)) {
			if (writeout_wait(d->w->writeout, d->wait_us) == WRITEOUT_VOID)
				continue;
			return;
		}
		queue_remove(d, q);
		q->lease_id = ++d->w->last_lease;
		q->lease_generation = q->lease_id;
		q->lease_until_us = now + d->lease_us;
		q->granted_us = now;
		map_put(d->by_lease, &q->lease_id, q);
		sequence_enter(q, SEQUENCE_LEASED);
		stat_add(svc_stats(d->w->svc), WS_LEASES, 1);
		stat_observe_us(svc_stats(d->w->svc), WS_QUEUE_SECONDS, now - q->accepted_us);
		log_req(
			LOG_INFO, &q->req.id, "granted",
			"attempt=%u prefill=%s lease=%llu blocks=%u cached=%u wait_us=%llu estimate_us=%llu",
			q->req.attempt, q->prefill, (unsigned long long)q->lease_id, q->n_blocks,
			q->n_matched * d->w->info->kv.block_tokens, (unsigned long long)(now - q->accepted_us),
			(unsigned long long)q->estimate_us);
		send_grant(q);
	}
}

static void send_queued(struct decode *d, struct sequence *q, struct peer *p)
{
	Pds__Queued m = PDS__QUEUED__INIT;
	struct msg_head h;
	sequence_head(q, &h);
	/* else its place is taken when its constraint is compiled */
	int waits = q->state == SEQUENCE_QUEUED;
	m.position = waits ? queue_position(d, q) : d->count[SEQUENCE_QUEUED] + 1;
	m.estimate_us = waits ? queue_estimate_of(d, q) : queue_retry_after(d);
	if (!q->estimate_us)
		q->estimate_us = m.estimate_us;
	q->told_us = clock_us();
	svc_send(d->w->svc, p, MSG_KV_QUEUED, &h, &m.base);
}

void lease_deny(struct sequence *q, Pds__Fault fault, const char *text, uint64_t retry_us)
{
	struct peer *p = prefill_peer(q);
	struct msg_head h;
	sequence_head(q, &h);
	if (p)
		send_deny(q->w, p, &h, fault, text, retry_us);
}

void lease_tell_queued(struct decode *d, uint64_t now)
{
	list_each(it, &d->sequences) {
		struct sequence *q = list_entry(it, struct sequence, node);
		int waits = q->state == SEQUENCE_QUEUED || (q->state == SEQUENCE_COMPILING && *q->prefill);
		struct peer *p = waits && now - q->told_us >= TELL_US ? prefill_peer(q) : NULL;
		if (p)
			send_queued(d, q, p);
	}
}

static struct sequence *admit(struct worker *w, const struct msg_head *h, const Pds__Request *r,
                              Pds__Fault *fault, struct err *err)
{
	struct decode *d = decode_of(w);
	*fault = PDS__FAULT__FAULT_DRAINING;
	if (w->role != ROLE_DECODE) {
		err_set(err, ERR_UNSUPPORTED, "role is %s: no hand-over", worker_role_name(w->role));
		return NULL;
	}
	*fault = PDS__FAULT__FAULT_OVERLOADED;
	if (d->count[SEQUENCE_QUEUED] + d->count[SEQUENCE_COMPILING] >= d->max_queued) {
		err_set(err, ERR_FULL, "%u reservations wait for room, the limit (max_queued)",
		        d->max_queued);
		return NULL;
	}
	return sequence_new(w, h, r, fault, err);
}

void on_reserve(struct worker *w, struct peer *p, const struct msg_head *h,
                const ProtobufCMessage *body)
{
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
	if (q) { /* asked twice, answered the same */
		if (q->state == SEQUENCE_LEASED)
			send_grant(q);
		else if (q->state == SEQUENCE_QUEUED || q->state == SEQUENCE_COMPILING)
			send_queued(d, q, p);
		return;
	}
	q = admit(w, h, m->request, &fault, &err);
	if (!q) {
		send_deny(w, p, h, fault, err.text,
		          fault == PDS__FAULT__FAULT_OVERLOADED ? queue_retry_after(d) : 0);
		return;
	}
	snprintf(q->req.router, sizeof q->req.router, "%s", m->router);
	q->req.router_epoch = m->router_epoch;
	snprintf(q->prefill, sizeof q->prefill, "%s", peer_name(p));
	q->prefill_epoch = peer_epoch(p);
	form_then_go_on(q);
	if (q->state == SEQUENCE_COMPILING)
		send_queued(d, q, p);
}

void reserved_new(struct sequence *q)
{
	struct worker *w = q->w;
	struct decode *d = decode_of(w);
	struct peer *p = prefill_peer(q);
	sequence_enter(q, SEQUENCE_QUEUED);
	q->asks = worker_blocks_for(w, q->req.n_tokens) + (uint32_t)growth_at(d, q, ratio_now(d));
	queue_push(d, q);
	lease_try_grant(d);
	if (q->state != SEQUENCE_QUEUED)
		return;
	stat_add(svc_stats(w->svc), WS_QUEUED, 1);
	if (p)
		send_queued(d, q, p);
}

void on_renew(struct worker *w, struct peer *p, const struct msg_head *h,
              const ProtobufCMessage *body)
{
	struct decode *d = decode_of(w);
	const Pds__Renew *m = (const Pds__Renew *)body;
	uint64_t until = clock_us() + d->lease_us;
	(void)h;
	if (m->epoch != svc_epoch(w->svc))
		return;
	for (size_t i = 0; i < m->n_lease_ids; i++) {
		struct sequence *q = map_get(d->by_lease, &m->lease_ids[i]);
		if (q && strcmp(q->prefill, peer_name(p)) == 0)
			q->lease_until_us = until;
	}
}

/* --- giving up ----------------------------------------------------------- */

static void send_revoke(struct sequence *q)
{
	struct worker *w = q->w;
	Pds__LeaseRevoke m = PDS__LEASE_REVOKE__INIT;
	Pds__Lease l;
	struct msg_head h;
	fill_lease(q, &l);
	sequence_head(q, &h);
	m.lease = &l;
	if (w->messager && peer_epoch(w->messager) == q->writer)
		q->revoke_owed = chan_send(svc_chan(w->svc), w->messager, MSG_LEASE_REVOKE, &h, &m.base) <
		                 0;
}

void lease_drop(struct sequence *q, const char *why)
{
	struct decode *d = decode_of(q->w);
	log_req(LOG_INFO, &q->req.id, "lease_dropped",
	        "attempt=%u state=%s lease=%llu writer=%d why=%s", q->req.attempt,
	        sequence_state_name(q->state), (unsigned long long)q->lease_id, q->writer != 0,
	        log_quote(why));
	stat_add(svc_stats(q->w->svc), WS_CANCELLED, 1);
	if (q->state == SEQUENCE_LEASED && q->writer) {
		sequence_enter(q, SEQUENCE_QUARANTINE);
		stat_add(svc_stats(q->w->svc), WS_FENCES, 1);
		send_revoke(q);
		return;
	}
	sequence_end(q);
	lease_try_grant(d);
}

/* Told to P, not to the router: P has the request and asks its next candidate. */
void lease_deny_queued(struct decode *d, const char *why)
{
	list_each_safe(it, nx, &d->queued) {
		struct sequence *q = list_entry(it, struct sequence, queue);
		struct peer *p = prefill_peer(q);
		struct msg_head h;
		sequence_head(q, &h);
		if (p)
			send_deny(d->w, p, &h, PDS__FAULT__FAULT_DRAINING, why, 0);
		sequence_end(q);
	}
}

void lease_lost(struct sequence *q, const char *why, int by_prefill)
{
	struct worker_failure f = {.fault = PDS__FAULT__FAULT_LEASE_LOST,
	                           .retry = 1,
	                           .text = why,
	                           .blame = by_prefill ? q->prefill : NULL};
	struct msg_head h;
	sequence_head(q, &h);
	stat_add(svc_stats(q->w->svc), WS_LEASES_LOST, 1);
	worker_fail_by(q->w, &h, q->req.router, q->req.router_epoch, &f);
	lease_drop(q, why);
}

static void fenced(struct sequence *q, const char *how)
{
	struct decode *d = decode_of(q->w);
	log_req(LOG_INFO, &q->req.id, "fenced", "attempt=%u lease=%llu how=%s", q->req.attempt,
	        (unsigned long long)q->lease_id, how);
	sequence_end(q);
	lease_try_grant(d);
}

void lease_messager_gone(struct decode *d, uint64_t epoch)
{
	list_each_safe(it, nx, &d->sequences) {
		struct sequence *q = list_entry(it, struct sequence, node);
		if (q->writer != epoch)
			continue;
		q->writer = 0;
		if (q->state == SEQUENCE_QUARANTINE)
			fenced(q, "process-gone");
	}
}

void lease_messager_up(struct decode *d)
{
	list_each(it, &d->sequences) {
		struct sequence *q = list_entry(it, struct sequence, node);
		if (q->state == SEQUENCE_QUARANTINE)
			send_revoke(q);
	}
}

void lease_check(struct decode *d, uint64_t now)
{
	list_each_safe(it, nx, &d->sequences) {
		struct sequence *q = list_entry(it, struct sequence, node);
		struct msg_head h;
		sequence_head(q, &h);
		if (q->state == SEQUENCE_QUARANTINE && q->revoke_owed)
			/* the link's window was full: without this word the fence never comes */
			send_revoke(q);
		else if (q->state == SEQUENCE_LEASED && now >= q->lease_until_us &&
		         !(q->kv_ready && q->has_first))
			lease_lost(q, "the lease expired: its prefill worker did not renew it", 1);
		else if (q->state != SEQUENCE_QUARANTINE && now >= q->req.deadline_us && !q->cancelled) {
			worker_fail(d->w, &h, q->req.router, q->req.router_epoch, PDS__FAULT__FAULT_DEADLINE, 0,
			            "the request's deadline has passed in decode");
			if (q->state == SEQUENCE_ACTIVE || q->state == SEQUENCE_COMPILING) {
				q->cancelled = 1;
				batch_kick(d);
			} else {
				lease_drop(q, "deadline");
			}
		}
	}
}

/* --- messager ------------------------------------------------------------ */

static int granted_to(const struct sequence *q, const char *prefill, uint64_t prefill_epoch)
{
	return q->prefill_epoch == prefill_epoch && strcmp(q->prefill, prefill) == 0;
}

/* What may be written under the lease. generations: room for the lease's blocks. */
static void fill_opened(const struct sequence *q, Pds__LeaseOpened *a, uint64_t *generations)
{
	a->cached_tokens = q->n_matched * q->w->info->kv.block_tokens;
	a->tokens = q->req.n_tokens;
	a->blocks = q->blocks + q->n_matched;
	a->n_blocks = q->n_blocks - q->n_matched;
	for (size_t i = 0; i < a->n_blocks; i++)
		generations[i] = atomic_load_explicit(&q->w->region.generations[a->blocks[i]],
		                                      memory_order_relaxed);
	a->generations = generations;
	a->n_generations = a->n_blocks;
}

void on_lease_open(struct worker *w, struct peer *p, const struct msg_head *h,
                   const ProtobufCMessage *body)
{
	const Pds__LeaseOpen *m = (const Pds__LeaseOpen *)body;
	struct sequence *q = by_lease(decode_of(w), m->lease);
	Pds__LeaseOpened a = PDS__LEASE_OPENED__INIT;
	uint64_t *generations = NULL;
	if (peer_tag(p) != TAG_MESSAGER || peer_epoch(p) == w->messager_dead ||
	    (q && peer_epoch(p) < q->writer))
		/* of an older writer, or of a dead one: registered again, its end would never come */
		return;
	a.lease = m->lease;
	a.prefill = m->prefill;
	a.prefill_epoch = m->prefill_epoch;
	a.refused = !(q && q->state == SEQUENCE_LEASED && !q->kv_ready &&
	              granted_to(q, m->prefill, m->prefill_epoch));
	if (!a.refused) {
		q->writer = peer_epoch(p);
		generations = mem_array(q->n_blocks - q->n_matched, sizeof *generations);
		fill_opened(q, &a, generations);
	}
	svc_send(w->svc, p, MSG_LEASE_OPENED, h, &a.base);
	free(generations);
}

void on_lease_revoked(struct worker *w, struct peer *p, const struct msg_head *h,
                      const ProtobufCMessage *body)
{
	struct sequence *q = by_lease(decode_of(w), ((const Pds__LeaseRevoked *)body)->lease);
	(void)h;
	if (q && q->state == SEQUENCE_QUARANTINE && q->writer == peer_epoch(p))
		fenced(q, "acknowledged");
}

/* --- join ---------------------------------------------------------------- */

static void report_first(struct sequence *q, uint32_t index, Pds__Finish finish)
{
	struct report *r = report_new(q->w);
	report_token(r, q, index, &q->first, finish);
	report_send(r);
}

/* Received and verified: matchable from here on. The lease's clock ends. */
static void join(struct sequence *q)
{
	struct worker *w = q->w;
	struct decode *d = decode_of(w);
	uint32_t bt = w->info->kv.block_tokens, full = q->req.n_tokens / bt,
			 index = request_copy_index(&q->req);
	kv_pool_lease_to_held(w->pool, q->blocks, q->n_blocks);
	for (q->published = q->n_matched; q->published < full; q->published++)
		kv_pool_publish(w->pool, q->blocks[q->published], &q->hashes[q->published],
		                q->published ? &q->hashes[q->published - 1] : NULL);
	q->computed = q->req.n_tokens;
	q->cached_tokens = q->n_matched * bt;
	q->writer = 0;
	q->joined_us = q->first_us = clock_us();
	Pds__Finish finish = request_copy_append(&q->req, q->first.id, w->info);
	log_req(LOG_INFO, &q->req.id, "joined", "attempt=%u prompt=%u transfer_us=%llu wait_us=%llu",
	        q->req.attempt, q->computed, (unsigned long long)(q->ready_us - q->granted_us),
	        (unsigned long long)(q->joined_us - q->ready_us));
	stat_observe_us(svc_stats(w->svc), WS_TRANSFER_SECONDS, q->ready_us - q->granted_us);
	report_first(q, index, finish);
	if (finish != PDS__FINISH__FINISH_NONE) {
		sequence_end(q);
		lease_try_grant(d);
		return;
	}
	sequence_enter(q, SEQUENCE_ACTIVE);
	batch_add(d, q);
}

void on_kv_ready(struct worker *w, struct peer *p, const struct msg_head *h,
                 const ProtobufCMessage *body)
{
	const Pds__KvReady *m = (const Pds__KvReady *)body;
	struct sequence *q = by_lease(decode_of(w), m->lease);
	Pds__KvReadyAck a = PDS__KV_READY_ACK__INIT;
	if (m->lease->epoch != svc_epoch(w->svc))
		return;
	a.lease = m->lease;
	a.prefill = m->prefill;
	a.prefill_epoch = m->prefill_epoch;
	svc_send(w->svc, p, MSG_KV_READY_ACK, h, &a.base);
	if (!q || q->state != SEQUENCE_LEASED || q->kv_ready || peer_tag(p) != TAG_MESSAGER ||
	    peer_epoch(p) < q->writer)
		return;
	if (!granted_to(q, m->prefill, m->prefill_epoch))
		return; /* another prefill worker's ring names this lease */
	q->kv_ready = 1;
	q->ready_us = clock_us();
	log_req(LOG_INFO, &q->req.id, "kv_ready", "attempt=%u bytes=%llu copy_us=%llu tail_us=%llu",
	        q->req.attempt, (unsigned long long)m->bytes, (unsigned long long)m->copy_us,
	        (unsigned long long)m->tail_us);
	if (q->has_first)
		join(q);
}

static void take_first(struct sequence *q, const Pds__Token *t)
{
	q->first.id = t->id;
	q->first.logprob = t->logprob;
	q->first.n_top = t->n_top < KERN_TOP_MAX ? (uint32_t)t->n_top : KERN_TOP_MAX;
	for (uint32_t i = 0; i < q->first.n_top; i++)
		q->first.top[i] = (struct kern_top){t->top[i]->id, t->top[i]->logprob};
	q->has_first = 1;
}

void on_first_token(struct worker *w, struct peer *p, const struct msg_head *h,
                    const ProtobufCMessage *body)
{
	const Pds__FirstToken *m = (const Pds__FirstToken *)body;
	struct sequence *q = sequence_find(decode_of(w), h);
	Pds__FirstTokenAck a = PDS__FIRST_TOKEN_ACK__INIT;
	if (m->decode_epoch != svc_epoch(w->svc))
		return;
	a.lease_id = m->lease_id;
	svc_send(w->svc, p, MSG_REQUEST_FIRST_TOKEN_ACK, h, &a.base);
	if (q && (peer_epoch(p) != q->prefill_epoch || strcmp(peer_name(p), q->prefill) != 0))
		/* only who reserved may say it, over whichever of the links between the two */
		return;
	if (!q || q->state != SEQUENCE_LEASED || q->has_first || q->lease_id != m->lease_id ||
	    q->lease_generation != m->lease_generation)
		return;
	if (m->token->id >= w->info->vocab) {
		lease_lost(q, "the prefill worker's first token is outside the vocabulary", 1);
		return;
	}
	take_first(q, m->token);
	if (q->kv_ready)
		join(q);
}
