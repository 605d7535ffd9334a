/* preempt.c - blocks for runs: who grows, who is preempted, who comes back. On the schedule thread.
 *
 * Each step begins with a block for the next token of every running one, oldest first. When the
 * pool has none the youngest gives all of its blocks back and waits, by age; what it had computed
 * goes to storage meanwhile (writeout.h). While blocks are being written there, or wait for a
 * fence, a run that lacks one sits steps out, for a bounded time; those that have what they need
 * run on. The youngest comes back when there is room for all its tokens and for what the others are
 * expected to grow by. What the prefix index still has of it need not be computed; what storage has
 * is read if that is faster (restore.c). Blocks are taken all at once: only running ones wait for a
 * block while they hold some, and the oldest of them always gets its own. */
#include "batch.h"
#include "daemons/worker/seq/pooled.h"
#include "daemons/worker/seq/score.h"
#include "util/check.h"

#include <math.h>
#include <stdlib.h>

static struct run *run_of(struct list *node)
{
	return list_entry(node, struct run, node);
}

void preempt_drop_blocks(struct batcher *b, struct run *r)
{
	if (r->restore)
		restore_leave(b, r);
	seq_blocks_release(&r->blocks, b->w);
}

void preempt_wait_again(struct batcher *b, struct run *r)
{
	CHECK(!r->first_only); /* its blocks are named to the messager */
	preempt_drop_blocks(b, r);
	drafts_give_history(b, r);
	r->ahead = 0; /* its draft had room, and rows, in the step that was planned */
	run_enter(b, r, RUN_PREEMPTED);
}

/* --- coming back --------------------------------------------------------- */

struct pool_room {
	struct kv_pool *pool;
	uint64_t growth; /* blocks that are to stay free */
	int is_pinned;   /* blocks that are being written to storage may be all that is missing */
};

static int pool_has_room(void *arg, uint32_t missing)
{
	struct pool_room *room = arg;
	struct kv_stats ks;
	kv_pool_stats(room->pool, &ks);
	uint64_t want = missing + room->growth, unused = ks.by_state[KV_FREE];
	room->is_pinned = want > unused + ks.evictable && ks.writing &&
	                  want <= unused + ks.by_state[KV_CACHED];
	return want <= unused + ks.evictable;
}

/* Leading blocks of r that need not be computed if they are found. The last token always is, and
 * all of the prompt while its log-probabilities are owed. */
static uint32_t run_may_match(const struct run *r, const struct worker *w)
{
	int all = score_is_owed(&r->req, r->scored) || r->req.pooling == PDS__POOLING__POOLING_MEAN;
	return all ? 0 : (r->req.n_tokens - 1) / w->info->kv.block_tokens;
}

int run_take_blocks(struct batcher *b, struct run *r, enum kv_state state, uint64_t growth)
{
	struct worker *w = b->w;
	struct pool_room room = {w->pool, growth, 0};
	while (
		!seq_blocks_take(&r->blocks, w, &r->req, run_may_match(r, w), state, pool_has_room, &room))
		if (!room.is_pinned || writeout_wait(w->writeout, b->config.wait_us) != WRITEOUT_VOID)
			return 0;
	return 1;
}

/* One that was preempted leaves free what the running ones are expected to grow by: else it would
 * soon be preempted again. */
static uint64_t growth_to_leave(const struct batcher *b, const struct run *r)
{
	uint64_t blocks = 0;
	if (run_phase(r) != RUN_WAITING)
		list_each(it, &b->own.running)
			blocks += run_of(it)->growth;
	return blocks;
}

/* Does a running one compute blocks now that r would compute once more, as when one request has
 * several answers? Then r waits for them. It holds nothing meanwhile and running ones wait for
 * nobody: it ends when the blocks are published, or when that run loses its place. */
static int comes_soon(struct batcher *b, const struct run *r)
{
	uint32_t may = run_may_match(r, b->w);
	uint32_t have = may ? kv_pool_probe(b->w->pool, r->blocks.hash, may) : 0;
	if (have == may)
		return 0;
	list_each(it, &b->own.running) {
		struct run *other = run_of(it);
		if (run_tokens_left(other) <= 1)
			continue; /* it decodes */
		seq_blocks_hash(&other->blocks, b->w, &other->req, other->req.n_tokens);
		uint32_t common = seq_blocks_common(&other->blocks, &r->blocks, may);
		if (common > have && common > other->blocks.published)
			return 1;
	}
	return 0;
}

static int admit_blocks(struct batcher *b, struct run *r)
{
	if (!run_take_blocks(b, r, KV_HELD, growth_to_leave(b, r)))
		return 0;
	r->computed = r->blocks.published * b->w->info->kv.block_tokens;
	if (r->req.pooling) { /* also what it had summed before it lost its blocks */
		free(r->hidden);
		r->hidden = pooled_new(b->w->info);
	}
	return 1;
}

static void admit_run(struct batcher *b, struct run *r)
{
	struct worker *w = b->w;
	int late = r->late;
	uint64_t now = clock_us();
	if (!r->begin_us) {
		r->begin_us = now;
		r->queue_us = now - r->born_us;
		r->cached_tokens = r->computed;
		w->stats.cached_tokens += r->computed;
	}
	if (run_phase(r) == RUN_PREEMPTED && !late)
		r->back_us = now;
	r->late = 0;
	run_enter(b, r, RUN_RUNNING);
	restore_begin(b, r, run_may_match(r, w), !late);
}

void preempt_admit(struct batcher *b)
{
	list_each_safe(it, nx, &b->own.waiting) {
		struct run *r = run_of(it);
		if (b->own.lacking || b->own.n_running >= b->w->conf.max_sequences)
			return; /* running ones go first */
		if (r->ended)
			continue;
		seq_blocks_hash(&r->blocks, b->w, &r->req, r->req.n_tokens);
		if (comes_soon(b, r))
			continue;
		if (!admit_blocks(b, r))
			return; /* in order of age */
		admit_run(b, r);
	}
}

/* --- growing ------------------------------------------------------------- */

static void preempt(struct batcher *b, struct run *r)
{
	log_req(LOG_INFO, &r->req.id, "preempted", "attempt=%u tokens=%u blocks=%u", r->req.attempt,
	        r->req.n_tokens, r->blocks.n);
	if (r->restore)
		restore_leave(b, r);
	if (b->config.save_preempted && clock_us() >= b->own.no_storage_until_us)
		writeout_save(b->w->writeout, &r->req.id, r->blocks.block, r->blocks.published);
	r->preemptions++;
	r->back_us = 0;
	preempt_wait_again(b, r);
	b->w->stats.preemptions++;
}

/* Would there be another block if those that are being written to storage were given up? */
static int are_pinned(struct kv_pool *pool)
{
	struct kv_stats ks;
	kv_pool_stats(pool, &ks);
	return ks.writing && ks.by_state[KV_CACHED] > ks.evictable;
}

/* One more block, at the cost of the youngest. 0: not now; r itself was the youngest and is
 * preempted, or it sits this step out. */
static int grow_one(struct batcher *b, struct run *r)
{
	while (!seq_blocks_add(&r->blocks, b->w, &r->req)) {
		enum writeout_wait writes = are_pinned(b->w->pool)
		                                ? writeout_wait(b->w->writeout, b->config.wait_us)
		                                : WRITEOUT_NONE;
		if (writes == WRITEOUT_VOID)
			continue;
		if (writes == WRITEOUT_WAIT || restore_is_fenced_soon(b)) {
			b->own.lacking = 1;
			return 0;
		}
		if ((b->own.must_land = b->own.in_flight != NULL))
			return 0;
		struct run *youngest = run_of(b->own.running.prev);
		preempt(b, youngest);
		if (youngest == r)
			return 0;
	}
	return 1;
}

static void grow_all(struct batcher *b)
{
	for (struct list *it = b->own.running.next; it != &b->own.running;) {
		struct run *r = run_of(it);
		uint32_t need = worker_blocks_for(b->w, run_tokens_after_drafts(r));
		while (!r->ended && !run_ends_in_flight(r) && r->blocks.n < need)
			if (!grow_one(b, r))
				return; /* younger ones do not go before it */
		it = it->next;
	}
}

/* Rows for the draft, as far as there is room for them. */
static void grow_ahead(struct batcher *b, struct run *r)
{
	uint32_t tokens = run_tokens_after_drafts(r), want = worker_blocks_for(b->w, tokens + r->ahead);
	while (!b->own.lacking && r->blocks.n < want && seq_blocks_add(&r->blocks, b->w, &r->req))
		;
	uint64_t room = (uint64_t)r->blocks.n * b->w->info->kv.block_tokens;
	if (room < tokens + r->ahead)
		r->ahead = room > tokens ? (uint32_t)(room - tokens) : 0;
}

/* More room is kept from now on: once for all that one step preempts. */
static void raise_ratio(struct batcher *b)
{
	pthread_mutex_lock(&b->locked.lock);
	b->locked.ratio = fmin(b->locked.ratio + GROWTH_RISE, b->config.ratio_first);
	pthread_mutex_unlock(&b->locked.lock);
}

void preempt_grow(struct batcher *b)
{
	uint64_t before = b->w->stats.preemptions;
	b->own.lacking = 0;
	grow_all(b);
	if (b->w->stats.preemptions != before)
		raise_ratio(b);
	list_each(it, &b->own.running) {
		struct run *r = run_of(it);
		if (r->ahead && preempt_is_ready(b, r))
			grow_ahead(b, r);
		else
			r->ahead = 0;
	}
}

int preempt_is_ready(const struct batcher *b, const struct run *r)
{
	return run_phase(r) == RUN_RUNNING && !r->ended &&
	       r->blocks.n >= worker_blocks_for(b->w, run_tokens_after_drafts(r));
}

/* --- waiting ------------------------------------------------------------- */

uint64_t preempt_wake_us(const struct batcher *b)
{
	int lacks = !list_empty(&b->own.waiting) || b->own.lacking;
	uint64_t writes = lacks ? writeout_next_us(b->w->writeout, b->config.wait_us) : 0,
			 restores = restore_wake_us(b);
	uint64_t next = writes && (!restores || writes < restores) ? writes : restores;
	int looks = !list_empty(&b->own.waiting) || (b->own.lacking && !next);
	uint64_t again = looks ? clock_us() + LOOK_AGAIN_US : 0;
	return again && (!next || again < next) ? again : next;
}
