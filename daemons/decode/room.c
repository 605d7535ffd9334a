/* room.c - blocks for running sequences: who grows, who gives way, who comes back. On the schedule
 * thread.
 *
 * Each step begins with a block for the next token of every running sequence, oldest first. When
 * none is to be had the youngest gives all of its blocks back and waits, by age; what it had
 * computed goes to storage meanwhile (writeout.h). While blocks are on their way there, or wait for
 * a fence, whoever lacks one sits steps out, for a bounded time; those who have what they need run
 * on. The youngest comes back when there is room for all its tokens and for what the others are
 * expected to grow by. What the prefix index still has of them need not be computed; what
 * storage has is read, if that is faster (restore.c). Blocks are taken all at once: nobody waits
 * for blocks while it holds some, but the running ones, of whom the oldest always gets its own. */
#include "decode.h"
#include "util/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void room_insert_by_age(struct list *head, struct sequence *q)
{
	struct list *at = head->prev;
	while (at != head && list_entry(at, struct sequence, batch)->born_us > q->born_us)
		at = at->prev;
	list_push_front(at, &q->batch); /* after `at` */
}

void room_drop_blocks(struct sequence *q)
{
	if (q->restore)
		restore_leave(decode_of(q->w), q);
	if (q->n_blocks)
		kv_pool_release(q->w->pool, q->blocks, q->n_blocks);
	q->n_blocks = 0;
}

void room_wait_again(struct decode *d, struct sequence *q)
{
	list_remove(&q->batch);
	room_drop_blocks(q);
	q->running = 0;
	d->n_running--;
	if (q->preemptions)
		d->preempted++;
	q->back_us = 0;
	q->ahead = 0; /* that draft's room is gone, and its place in a step */
	q->phase = q->preemptions ? PHASE_PREEMPTED : PHASE_WAITING;
	room_insert_by_age(&d->waiting, q);
}

static void room_for_blocks(struct sequence *q, uint32_t n)
{
	if (n <= q->room_blocks)
		return;
	q->room_blocks = n + 16;
	q->blocks = mem_grow(q->blocks, q->room_blocks, sizeof *q->blocks);
}

/* Room for so many more blocks; one that was preempted leaves what the running ones are expected
 * to grow by, or it would soon give way again. */
static int fits(const struct decode *d, const struct sequence *q, uint32_t blocks)
{
	struct kv_stats ks;
	uint64_t growth = 0;
	if (q->preemptions)
		list_each(it, &d->running)
			growth += list_entry(it, struct sequence, batch)->growth;
	kv_pool_stats(d->w->pool, &ks);
	return blocks + growth <= (uint64_t)ks.by_state[KV_FREE] + ks.evictable;
}

/* Blocks for all tokens so far, of which `may` may come from the index. 0: there is no room. */
static int take_blocks(struct decode *d, struct sequence *q, uint32_t may)
{
	struct kv_pool *p = d->w->pool;
	uint32_t need = worker_blocks_for(d->w, q->req.n_tokens);
	room_for_blocks(q, need);
	if (!fits(d, q, need - kv_pool_probe(p, q->hashes, may)))
		return 0;
	uint32_t matched = kv_pool_match(p, q->hashes, may, &q->req.id, q->blocks);
	if (!fits(d, q, need - matched) ||
	    kv_pool_take(p, need - matched, KV_HELD, &q->req.id, q->blocks + matched) < 0) {
		kv_pool_release(p, q->blocks, matched);
		return 0;
	}
	q->n_blocks = need;
	q->published = matched;
	q->computed = matched * d->w->info->kv.block_tokens;
	return 1;
}

/* The last token is always computed, and all of them when the prompt's own probabilities are
 * still to be told. */
static uint32_t may_have(const struct sequence *q)
{
	int all = q->req.prompt_logprobs && q->scored + 1 < q->req.prompt_tokens && !q->first_us;
	return all ? 0 : (q->req.n_tokens - 1) / q->w->info->kv.block_tokens;
}

/* Leading blocks that both have. A hash covers all before it: equal at one place, equal before. */
static uint32_t common_blocks(const struct sequence *r, const struct sequence *q, uint32_t most)
{
	uint32_t low = 0, high = r->n_hashes < most ? r->n_hashes : most;
	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		if (memcmp(&r->hashes[mid], &q->hashes[mid], sizeof *r->hashes) == 0)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* Does a running one compute blocks right now that q would compute once more, as when one call has
 * several answers? Then q waits for them; it holds nothing meanwhile, and who runs waits for
 * nobody, so that comes to an end: the blocks are there, or that one has lost its place. */
static int comes_soon(struct decode *d, const struct sequence *q)
{
	uint32_t may = may_have(q), have = may ? kv_pool_probe(d->w->pool, q->hashes, may) : 0;
	if (have == may)
		return 0;
	list_each(it, &d->running) {
		struct sequence *r = list_entry(it, struct sequence, batch);
		if (r->req.n_tokens - r->computed <= 1)
			continue; /* it only decodes */
		sequence_hash(r);
		uint32_t common = common_blocks(r, q, may);
		if (common > have && common > r->published)
			return 1;
	}
	return 0;
}

static int admit(struct decode *d, struct sequence *q)
{
	struct worker *w = d->w;
	while (!take_blocks(d, q, may_have(q)))
		if (writeout_wait(d->w->writeout, d->wait_us) != WRITEOUT_VOID)
			return 0;
	if (!q->prefill_begin_us) {
		q->prefill_begin_us = clock_us();
		q->cached_tokens = q->computed;
		w->cached_tokens += q->computed;
		stat_add(svc_stats(w->svc), WS_CACHED_TOKENS, q->computed);
	}
	return 1;
}

static void run_again(struct decode *d, struct sequence *q)
{
	list_remove(&q->batch);
	room_insert_by_age(&d->running, q);
	if (q->preemptions) {
		d->preempted--;
		q->back_us = clock_us();
	}
	q->running = 1;
	q->phase = PHASE_RUNNING;
	d->n_running++;
	restore_begin(d, q, may_have(q));
}

void room_admit_waiting(struct decode *d)
{
	list_each_safe(it, nx, &d->waiting) {
		struct sequence *q = list_entry(it, struct sequence, batch);
		if (d->lacking || d->n_running >= d->w->max_sequences)
			return; /* after all who run */
		sequence_hash(q);
		if (comes_soon(d, q))
			continue;
		if (!admit(d, q))
			return; /* in order of age */
		run_again(d, q);
	}
}

void room_caught_up(struct decode *d, struct sequence *q)
{
	stat_observe_us(svc_stats(d->w->svc), WS_RESTORE_SECONDS, clock_us() - q->back_us);
	q->back_us = 0;
}

/* More room is kept from now on, once for all that one step preempts. */
static void raise_ratio(struct decode *d)
{
	if (d->raised)
		return;
	d->raised = 1;
	pthread_mutex_lock(&d->lock);
	d->ratio = fmin(d->ratio + d->ratio_rise, d->ratio_first);
	pthread_mutex_unlock(&d->lock);
}

static void preempt(struct decode *d, struct sequence *q)
{
	log_req(LOG_INFO, &q->req.id, "preempted", "attempt=%u tokens=%u blocks=%u", q->req.attempt,
	        q->req.n_tokens, q->n_blocks);
	if (q->restore)
		restore_leave(d, q);
	if (d->save_preempted && clock_us() >= d->no_storage_until_us)
		writeout_save(d->w->writeout, &q->req.id, q->blocks, q->published);
	q->preemptions++;
	q->no_read = 0;
	room_wait_again(d, q);
	d->w->preemptions++;
	stat_add(svc_stats(d->w->svc), WS_PREEMPTIONS, 1);
	raise_ratio(d);
}

/* One more block, at the cost of the youngest. 0: not now; q itself was the youngest and is
 * preempted, or it sits this step out. */
static int grow_one(struct decode *d, struct sequence *q)
{
	room_for_blocks(q, q->n_blocks + 1);
	while (kv_pool_take(d->w->pool, 1, KV_HELD, &q->req.id, &q->blocks[q->n_blocks]) < 0) {
		enum writeout_wait writes = writeout_wait(d->w->writeout, d->wait_us);
		if (writes == WRITEOUT_VOID)
			continue;
		if (writes == WRITEOUT_WAIT || restore_fenced_soon(d)) {
			d->lacking = 1;
			return 0;
		}
		struct sequence *youngest = list_entry(d->running.prev, struct sequence, batch);
		preempt(d, youngest);
		if (youngest == q)
			return 0;
	}
	q->n_blocks++;
	return 1;
}

static void grow_all(struct decode *d)
{
	for (struct list *it = d->running.next; it != &d->running;) {
		struct sequence *q = list_entry(it, struct sequence, batch);
		uint32_t need = worker_blocks_for(d->w, q->req.n_tokens);
		while (q->n_blocks < need)
			if (!grow_one(d, q))
				return; /* who is younger does not get before it */
		it = it->next;
	}
}

/* Rows ahead of the last token, as far as there is room for them. */
static void grow_ahead(struct decode *d, struct sequence *q)
{
	struct worker *w = d->w;
	uint32_t tokens = q->req.n_tokens, want = worker_blocks_for(w, tokens + q->ahead);
	room_for_blocks(q, want);
	while (!d->lacking && q->n_blocks < want &&
	       kv_pool_take(w->pool, 1, KV_HELD, &q->req.id, &q->blocks[q->n_blocks]) == 0)
		q->n_blocks++;
	uint64_t room = (uint64_t)q->n_blocks * w->info->kv.block_tokens;
	if (room < tokens + q->ahead)
		q->ahead = room > tokens ? (uint32_t)(room - tokens) : 0;
}

void room_grow(struct decode *d)
{
	d->lacking = 0;
	grow_all(d);
	list_each(it, &d->running) {
		struct sequence *q = list_entry(it, struct sequence, batch);
		if (q->ahead && room_ready(d, q))
			grow_ahead(d, q);
		else
			q->ahead = 0;
	}
}

int room_ready(const struct decode *d, const struct sequence *q)
{
	return !q->restore && q->n_blocks >= worker_blocks_for(d->w, q->req.n_tokens);
}

/* --- waiting ------------------------------------------------------------- */

#define LOOK_AGAIN_US 5000u /* others, leases, may give blocks back at any time */

uint64_t room_wake_us(const struct decode *d)
{
	uint64_t writes = writeout_next_us(d->w->writeout, d->wait_us), restores = restore_next_us(d);
	uint64_t next = writes && (!restores || writes < restores) ? writes : restores;
	uint64_t again = !list_empty(&d->waiting) || (d->lacking && !next) ? clock_us() + LOOK_AGAIN_US
	                                                                   : 0;
	return again && (!next || again < next) ? again : next;
}
