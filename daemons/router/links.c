/* links.c - the router's links to workers: which are admitted, which are up, and their messages.
 *
 * A message counts only if the registry has its sender under the link on which it arrived. */
#include "daemons/router/attempt/attempt.h"
#include "router.h"
#include "util/clock.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define PEERS_WAIT_US 1000u /* for each worker, so that lists take a small part of the time */

int links_send(void *arg, struct worker_record *w, enum msg_type type, const struct msg_head *head,
               const void *body)
{
	struct router *r = arg;
	return svc_send(r->svc, w->peer, type, head, body);
}

/* Sends every worker the list of the others that it can hand KV over to, so that connections exist
 * before the first request. */
static void on_peers_due(struct svc *s, void *arg)
{
	struct router *r = arg;
	unsigned n = r->registry.n_up;
	Pds__Peer *peers = mem_array(n, sizeof *peers), **list = mem_array(n, sizeof *list);
	(void)s;
	svc_timer_del(&r->peers_due);
	list_each(to, &r->registry.workers) {
		struct worker_record *w = list_entry(to, struct worker_record, node);
		struct msg_head head = {0};
		Pds__Peers body = PDS__PEERS__INIT;
		if (!worker_is_up(w))
			continue;
		body.n_peers = registry_peers(&r->registry, w, peers);
		for (size_t i = 0; i < body.n_peers; i++)
			list[i] = &peers[i];
		body.peers = list;
		svc_send(r->svc, w->peer, MSG_PEERS, &head, &body);
	}
	free(peers);
	free(list);
}

/* Sends the lists a little later: when a router starts many workers connect at once, and one
 * list to each of them is enough for all changes within that time. */
static void send_peers_soon(struct router *r)
{
	uint64_t wait_us = (uint64_t)PEERS_WAIT_US * (r->registry.n_up + 1);
	if (!r->peers_due)
		r->peers_due = svc_timer_add(r->svc, wait_us, on_peers_due, r);
}

int links_admit(struct svc *s, const char *name, uint64_t epoch, const Pds__Hello *hello,
                char *reason, size_t reason_len)
{
	struct router *r = svc_data(s);
	(void)epoch;
	if (!hello->worker)
		return 0;
	return registry_admit(&r->registry, name, hello->worker,
	                      r->model->tokenizer ? tokenizer_size(r->model->tokenizer) : 0, reason,
	                      reason_len);
}

void links_up(struct svc *s, struct peer *p)
{
	struct router *r = svc_data(s);
	const Pds__WorkerInfo *info = peer_worker(p);
	if (!info)
		return;
	struct worker_record *w = registry_up(&r->registry, p, peer_name(p), peer_epoch(p), info,
	                                      clock_us());
	peer_set_data(p, w);
	log_notice("worker_up", "worker=%s role=%s epoch=%016llx endpoint=%s numerics=%s blocks=%u",
	           w->name, worker_role_name(w->role), (unsigned long long)w->epoch,
	           log_quote(w->endpoint), log_quote(w->numerics), w->blocks);
	send_peers_soon(r);
	attempts_worker_up(&r->attempts);
}

void links_down(struct svc *s, struct peer *p, const char *why)
{
	struct router *r = svc_data(s);
	/* r is NULL when the router has ended, and its registry with it */
	struct worker_record *w = r ? peer_data(p) : NULL;
	if (!w || w->peer != p)
		return;
	log_warn("worker_down", "worker=%s requests=%u why=%s", w->name, w->requests, log_quote(why));
	enum worker_end how = peer_said_goodbye(p) ? WORKER_GOODBYE : WORKER_LOST;
	if (peer_link_restarts(p))
		how = WORKER_LINK_RESTART;
	registry_down(&r->registry, w, clock_us());
	if (how == WORKER_GOODBYE)
		registry_ended_in_order(w);
	attempts_worker_down(&r->attempts, w, why, how);
	send_peers_soon(r);
}

/* NULL: the worker of this peer is not up, or has another link now. */
static struct worker_record *sender(struct peer *p)
{
	struct worker_record *w = peer_data(p);
	return w && w->peer == p ? w : NULL;
}

static void got_first_token(struct svc *s, struct peer *p, const struct msg_head *head,
                            const ProtobufCMessage *body)
{
	struct router *r = svc_data(s);
	struct worker_record *w = sender(p);
	if (w)
		attempts_first_token(&r->attempts, w, head, (const Pds__FirstToken *)body);
}

static void got_prompt_logprobs(struct svc *s, struct peer *p, const struct msg_head *head,
                                const ProtobufCMessage *body)
{
	struct router *r = svc_data(s);
	struct worker_record *w = sender(p);
	if (w)
		attempts_prompt(&r->attempts, w, head, (const Pds__PromptLogprobs *)body);
}

static void got_embedding(struct svc *s, struct peer *p, const struct msg_head *head,
                          const ProtobufCMessage *body)
{
	struct router *r = svc_data(s);
	struct worker_record *w = sender(p);
	if (w)
		attempts_embedding(&r->attempts, w, head, (const Pds__Embedding *)body);
}

static void got_tokens(struct svc *s, struct peer *p, const struct msg_head *head,
                       const ProtobufCMessage *body)
{
	struct router *r = svc_data(s);
	struct worker_record *w = sender(p);
	(void)head;
	if (w)
		attempts_tokens(&r->attempts, w, (const Pds__Tokens *)body);
}

static void got_failed(struct svc *s, struct peer *p, const struct msg_head *head,
                       const ProtobufCMessage *body)
{
	struct router *r = svc_data(s);
	struct worker_record *w = sender(p);
	if (w)
		attempts_failed(&r->attempts, w, head, (const Pds__Failed *)body);
}

static void got_heartbeat(struct svc *s, struct peer *p, const struct msg_head *head,
                          const ProtobufCMessage *body)
{
	struct worker_record *w = sender(p);
	const Pds__Heartbeat *b = (const Pds__Heartbeat *)body;
	struct router *r = svc_data(s);
	(void)head;
	if (!w)
		return;
	/* preemptions before the link's first heartbeat are not counted */
	if (w->has_heartbeat && b->preemptions > w->beat.preemptions)
		r->stats.preemptions += b->preemptions - w->beat.preemptions;
	registry_beat(w, b, clock_us());
}

static void got_kv_events(struct svc *s, struct peer *p, const struct msg_head *head,
                          const ProtobufCMessage *body)
{
	struct router *r = svc_data(s);
	struct worker_record *w = sender(p);
	(void)head;
	if (w)
		registry_kv_events(&r->registry, w, (const Pds__KvEvents *)body);
	else /* storage sends this type too, but to workers */
		svc_refuse(s, p, MSG_KV_EVENTS, "only workers may send it");
}

/* A worker has switched its role, its messager has come or gone, or it was drained. The other
 * workers are told, and attempts that wait for such a worker are tried again. Its attempts go
 * on. */
static void got_worker_update(struct svc *s, struct peer *p, const struct msg_head *head,
                              const ProtobufCMessage *body)
{
	struct router *r = svc_data(s);
	struct worker_record *w = sender(p);
	const Pds__WorkerUpdate *m = (const Pds__WorkerUpdate *)body;
	char why[256];
	(void)head;
	if (!w || !m->worker)
		return;
	enum worker_role had = w->role;
	if (registry_update(&r->registry, w, m->worker, why, sizeof why) < 0) {
		log_warn("worker_update_refused", "worker=%s why=%s", w->name, log_quote(why));
		return;
	}
	log_notice("worker_update", "worker=%s from=%s role=%s drained=%d requests=%u", w->name,
	           worker_role_name(had), worker_role_name(w->role), w->drained, w->requests);
	send_peers_soon(r);
	attempts_worker_up(&r->attempts);
}

const struct svc_msg links_messages[] = {
	{MSG_REQUEST_FIRST_TOKEN, got_first_token, 0},
	{MSG_REQUEST_PROMPT_LOGPROBS, got_prompt_logprobs, 0},
	{MSG_REQUEST_EMBEDDING, got_embedding, 0},
	{MSG_REQUEST_TOKENS, got_tokens, 0},
	{MSG_REQUEST_FAILED, got_failed, 0},
	{MSG_HEARTBEAT, got_heartbeat, 0},
	{MSG_KV_EVENTS, got_kv_events, 0},
	{MSG_WORKER_UPDATE, got_worker_update, 0},
	{0},
};
