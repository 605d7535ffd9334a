/* sequence.c - sequences of the decode stage: registration, state, end. On the loop's thread. */
#include "decode.h"
#include "daemons/worker/seq/constraint.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

const char *sequence_state_name(enum sequence_state s)
{
	static const char *const names[] = {"new",        "compiling", "queued", "leased",
	                                    "quarantine", "active",    "end"};
	return names[s];
}

static int legal(enum sequence_state from, enum sequence_state to)
{
	static const unsigned next[SEQUENCE_STATE_COUNT] = {
		[SEQUENCE_NEW] = 1u << SEQUENCE_COMPILING | 1u << SEQUENCE_QUEUED | 1u << SEQUENCE_ACTIVE |
	                     1u << SEQUENCE_END,
		[SEQUENCE_COMPILING] = 1u << SEQUENCE_QUEUED | 1u << SEQUENCE_ACTIVE | 1u << SEQUENCE_END,
		[SEQUENCE_QUEUED] = 1u << SEQUENCE_LEASED | 1u << SEQUENCE_END,
		[SEQUENCE_LEASED] = 1u << SEQUENCE_QUARANTINE | 1u << SEQUENCE_ACTIVE | 1u << SEQUENCE_END,
		[SEQUENCE_QUARANTINE] = 1u << SEQUENCE_END,
		[SEQUENCE_ACTIVE] = 1u << SEQUENCE_END,
	};
	return (next[from] >> to) & 1;
}

void sequence_enter(struct sequence *q, enum sequence_state next)
{
	struct decode *d = decode_of(q->w);
	if (!legal(q->state, next))
		PANIC("sequence %s: %s -> %s is no legal step", log_reqid(&q->req.id),
		      sequence_state_name(q->state), sequence_state_name(next));
	log_req(LOG_DEBUG, &q->req.id, "sequence_state", "attempt=%u from=%s to=%s", q->req.attempt,
	        sequence_state_name(q->state), sequence_state_name(next));
	d->count[q->state]--;
	d->count[next]++;
	q->state = next;
}

void sequence_head(const struct sequence *q, struct msg_head *h)
{
	*h = (struct msg_head){q->req.id, q->req.attempt, q->req.deadline_us};
}

struct sequence *sequence_find(struct decode *d, const struct msg_head *h)
{
	struct attempt_key k = attempt_key(&h->req, h->attempt);
	return map_get(d->by_key, k.b);
}

int sequence_hash_some(struct sequence *q, uint32_t tokens)
{
	const struct worker *w = q->w;
	uint32_t bt = w->info->kv.block_tokens, full = q->req.n_tokens / bt;
	uint32_t some = (tokens + bt - 1) / bt, left = full - q->n_hashes;
	uint32_t to = left > some ? q->n_hashes + some : full;
	if (full > q->room_hashes) {
		q->room_hashes = full + 64;
		q->hashes = mem_grow(q->hashes, q->room_hashes, sizeof *q->hashes);
	}
	for (; q->n_hashes < to; q->n_hashes++)
		kv_hash_block(q->n_hashes ? &q->hashes[q->n_hashes - 1] : &w->root,
		              q->req.tokens + (size_t)q->n_hashes * bt, bt, &q->hashes[q->n_hashes]);
	return q->n_hashes == full;
}

void sequence_hash(struct sequence *q)
{
	sequence_hash_some(q, q->req.n_tokens);
}

uint64_t sequence_growth_tokens(const struct decode *d, const struct request_copy *w)
{
	uint64_t left = w->max_tokens - (w->n_tokens - w->prompt_tokens);
	return left < d->growth_cap ? left : d->growth_cap;
}

static int refuse(struct decode *d, const struct request_copy *k, Pds__Fault *fault,
                  struct err *err)
{
	uint32_t need = worker_blocks_for(d->w, k->n_tokens + 1);
	*fault = PDS__FAULT__FAULT_DRAINING;
	if (d->draining)
		return err_set(err, ERR_CLOSED, "the decode worker is draining");
	*fault = PDS__FAULT__FAULT_OVERLOADED;
	if (d->n_sequences >= d->max_sequences)
		return err_set(err, ERR_FULL, "the decode worker holds %u requests, its limit",
		               d->max_sequences);
	*fault = PDS__FAULT__FAULT_TOO_LARGE;
	if (need > d->w->region.blocks || need > RING_BLOCKS_MAX)
		return err_set(err, ERR_FULL, "%u tokens need %u KV blocks, the decode worker has %u",
		               k->n_tokens, need, d->w->region.blocks);
	return 0;
}

struct sequence *sequence_new(struct worker *w, const struct msg_head *h, const Pds__Request *r,
                              Pds__Fault *fault, struct err *err)
{
	struct decode *d = decode_of(w);
	struct sequence *q = mem_zalloc(sizeof *q);
	q->w = w;
	*fault = PDS__FAULT__FAULT_INVALID;
	int code = request_copy_init(&q->req, h, r, w->info, err);
	if (code == 0)
		code = constraint_take(w->constraints, &q->req, r, err);
	if (code == ERR_NOMEM)
		*fault = PDS__FAULT__FAULT_OVERLOADED;
	if (code < 0 || refuse(d, &q->req, fault, err) < 0) {
		request_copy_fini(&q->req);
		free(q);
		return NULL;
	}
	/* the last token needs no room; more would be preempted for ever */
	uint64_t most = (uint64_t)w->region.blocks * w->info->kv.block_tokens + 1;
	if (q->req.limit_tokens > most)
		q->req.limit_tokens = (uint32_t)most;
	struct attempt_key k = attempt_key(&h->req, h->attempt);
	map_put(d->by_key, k.b, q);
	list_push_back(&d->sequences, &q->node);
	list_init(&q->queue);
	list_init(&q->batch);
	d->n_sequences++;
	d->count[SEQUENCE_NEW]++;
	q->accepted_us = q->born_us = clock_us();
	stat_add(svc_stats(w->svc), WS_REQUESTS, 1);
	decode_watch(d);
	return q;
}

void sequence_end(struct sequence *q)
{
	struct attempt_key k = attempt_key(&q->req.id, q->req.attempt);
	tombstone_add(decode_of(q->w), &k, q->req.deadline_us);
	sequence_forget(q);
}

void sequence_forget(struct sequence *q)
{
	struct decode *d = decode_of(q->w);
	struct attempt_key k = attempt_key(&q->req.id, q->req.attempt);
	if (q->n_blocks)
		kv_pool_release(q->w->pool, q->blocks, q->n_blocks);
	map_remove(d->by_key, k.b);
	if (q->lease_id)
		map_remove(d->by_lease, &q->lease_id);
	sequence_enter(q, SEQUENCE_END);
	d->count[SEQUENCE_END]--;
	d->n_sequences--;
	list_remove(&q->node);
	queue_remove(d, q);
	d->ended++;
	role_look(q->w);
	free(q->hashes);
	free(q->blocks);
	request_copy_fini(&q->req);
	free(q);
}
