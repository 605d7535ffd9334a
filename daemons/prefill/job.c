/* job.c - the state machine of a job (prefill.h draws it) but for reservation, sharing, storage and
 * first token. All of it runs on the loop's thread.
 *
 * Whatever ends a job early goes through job_drop: the ring slot is cancelled before the blocks go
 * back (a late reader then fails its mark), the reservation at D is cancelled, and a job that a
 * thread still holds ends when it comes back. Blocks that storage may still write stay with the
 * fetch, not with the job. */
#include "prefill.h"
#include "daemons/worker/seq/constraint.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

const char *job_state_name(enum job_state s)
{
	static const char *const names[] = {"new",   "prepare", "lookup", "reserve",  "take", "blocked",
	                                    "share", "fetch",   "run",    "computed", "end"};
	return names[s];
}

#define TO(s) (1u << JOB_##s)

static int legal(enum job_state from, enum job_state to)
{
	static const unsigned next[JOB_STATE_COUNT] = {
		[JOB_NEW] = TO(PREPARE) | TO(END),
		[JOB_PREPARE] = TO(LOOKUP) | TO(RESERVE) | TO(END),
		[JOB_LOOKUP] = TO(RESERVE) | TO(END),
		[JOB_RESERVE] = TO(TAKE) | TO(BLOCKED) | TO(SHARE) | TO(END),
		[JOB_TAKE] = TO(BLOCKED) | TO(SHARE) | TO(FETCH) | TO(RUN) | TO(END),
		[JOB_BLOCKED] = TO(TAKE) | TO(RUN) | TO(END),
		[JOB_SHARE] = TO(TAKE) | TO(BLOCKED) | TO(END),
		[JOB_FETCH] = TO(TAKE) | TO(BLOCKED) | TO(SHARE) | TO(RUN) | TO(END),
		[JOB_RUN] = TO(COMPUTED) | TO(END),
		[JOB_COMPUTED] = TO(END),
	};
	return (next[from] >> to) & 1;
}

void job_enter(struct job *j, enum job_state next)
{
	struct prefill *s = prefill_of(j->w);
	if (!legal(j->state, next))
		PANIC("job %s: %s -> %s is no legal step", log_reqid(&j->req.id), job_state_name(j->state),
		      job_state_name(next));
	log_req(LOG_DEBUG, &j->req.id, "job_state", "attempt=%u from=%s to=%s", j->req.attempt,
	        job_state_name(j->state), job_state_name(next));
	enum job_state was = j->state;
	s->count[was]--;
	s->count[next]++;
	j->state = next;
	if (was == JOB_RUN)
		share_left(j);
	if (was == JOB_BLOCKED && j->n_blocks)
		s->ring_blocked--;
	if (next == JOB_BLOCKED && j->n_blocks)
		s->ring_blocked++;
	if (next == JOB_BLOCKED || next == JOB_SHARE)
		gate_stalled(j);
}

void job_head(const struct job *j, struct msg_head *h)
{
	*h = (struct msg_head){j->req.id, j->req.attempt, j->req.deadline_us};
}

/* --- ending -------------------------------------------------------------- */

static void job_free_if_unheld(struct job *j)
{
	struct prefill *s = prefill_of(j->w);
	if (j->state != JOB_END || j->holders)
		return;
	list_remove(&j->node);
	s->count[JOB_END]--;
	reserve_leave(j);
	free(j->hashes);
	free(j->dst);
	free(j->blocks);
	free(j->store_tier);
	request_copy_fini(&j->req);
	free(j);
	stage_jobs(s, -1);
}

/* A job that a thread has just failed to serve must hear of it too. */
void job_came_back(struct prefill *s)
{
	s->releases++;
	stage_soon(s, SOON_BLOCKED);
}

void job_leave_ring(struct job *j)
{
	if (!j->in_ring)
		return;
	ring_cancel(j->w->ring, j->slot, j->slot_gen);
	ring_retire(j->w->ring, j->slot, j->slot_gen);
	prefill_of(j->w)->by_slot[j->slot] = NULL;
	j->in_ring = 0;
	job_came_back(prefill_of(j->w));
}

void job_release_blocks(struct job *j)
{
	if (!j->n_blocks)
		return;
	kv_pool_release(j->w->pool, j->blocks, j->n_blocks);
	free(j->blocks);
	j->blocks = NULL;
	j->n_blocks = 0;
	job_came_back(prefill_of(j->w));
}

void job_end(struct job *j)
{
	struct prefill *s = prefill_of(j->w);
	struct attempt_key k = attempt_key(&j->req.id, j->req.attempt);
	enum job_state was = j->state;
	gate_gone(j);
	job_enter(j, JOB_END); /* first: what it counts for depends on what it holds */
	if (was == JOB_SHARE)
		share_stop(j);
	if (was == JOB_BLOCKED)
		stage_soon(s, SOON_BLOCKED); /* who waited behind it */
	reserve_uncount(j);
	fetch_leave(j);
	job_leave_ring(j);
	job_release_blocks(j);
	if (map_get(s->by_key, k.b) == j)
		map_remove(s->by_key, k.b);
	job_free_if_unheld(j);
}

void job_drop(struct job *j, const char *why)
{
	struct prefill *s = prefill_of(j->w);
	if (j->state == JOB_END)
		return;
	if (!j->cancelled) {
		j->cancelled = 1;
		log_req(LOG_INFO, &j->req.id, "job_dropped", "attempt=%u state=%s why=%s", j->req.attempt,
		        job_state_name(j->state), log_quote(why));
		stat_add(svc_stats(j->w->svc), WS_CANCELLED, 1);
		reserve_cancel(j, why);
		if (j->holders)
			gate_gone(j);
		if (j->in_ring)
			ring_cancel(j->w->ring, j->slot, j->slot_gen);
	}
	if (!j->holders) {
		job_end(j);
		return;
	}
	if (j->state == JOB_RUN) {
		share_left(j);
		schedule_kick(s);
	}
	if (j->state == JOB_LOOKUP)
		store_cancel(j->w->store, j->lookup);
}

void job_fail_by(struct job *j, Pds__Fault fault, int retry, const char *text, const char *blame)
{
	if (j->state == JOB_END)
		return;
	if (!j->told_failed && !j->cancelled) {
		struct msg_head h;
		int room = fault == PDS__FAULT__FAULT_OVERLOADED || fault == PDS__FAULT__FAULT_NO_ROOM;
		job_head(j, &h);
		j->told_failed = 1;
		worker_fail_by(j->w, &h, j->req.router, j->req.router_epoch,
		               &(struct worker_failure){fault, retry, text, blame,
		                                        room ? j->room_after_us : 0});
	}
	job_drop(j, text);
}

void job_fail(struct job *j, Pds__Fault fault, int retry, const char *text)
{
	job_fail_by(j, fault, retry, text, NULL);
}

void job_fail_draw(struct job *j)
{
	int retry = j->draw_fault == PDS__FAULT__FAULT_OVERLOADED;
	if (retry)
		j->room_after_us = CONSTRAINT_RETRY_US;
	stat_add(svc_stats(j->w->svc), WS_NOT_FINITE, j->draw_fault == PDS__FAULT__FAULT_INTERNAL);
	job_fail(j, j->draw_fault, retry, j->fail_text);
}

/* --- prepare ------------------------------------------------------------- */

static void compiled(struct compile_task *t)
{
	struct job *j = list_entry(t, struct job, form);
	CHECK(queue_put(prefill_of(j->w)->prepare, j) == 0);
}

/* Its constraint is compiled only before phase 2, when its decode worker has granted: who is
 * parked holds no network. */
static void to_thread(struct job *j, int phase)
{
	struct prefill *s = prefill_of(j->w);
	j->phase = phase;
	j->releases = s->releases;
	j->holders++;
	j->form = (struct compile_task){.req = &j->req, .cancelled = &j->cancelled, .done = compiled};
	if (phase == 2 && !constraint_is_ready(&j->req))
		compiler_put(j->w->compiler, &j->form, s->retrying == j);
	else
		compiled(&j->form);
}

void job_begin(struct job *j)
{
	job_enter(j, JOB_PREPARE);
	to_thread(j, 1);
}

void job_prepared(struct job *j)
{
	j->holders--;
	if (j->cancelled) {
		job_drop(j, "cancelled");
	} else if (fetch_look_up(j)) {
		j->holders++;
		job_enter(j, JOB_LOOKUP);
	} else {
		job_enter(j, JOB_RESERVE);
		reserve_place(j);
	}
}

/* --- own blocks ---------------------------------------------------------- */

void job_take(struct job *j)
{
	struct prefill *s = prefill_of(j->w);
	if (j->state != JOB_BLOCKED && s->count[JOB_BLOCKED] + !!s->retrying > s->ring_blocked) {
		/* others wait for blocks already, and the first of them may be looking for them at this
		 * moment */
		job_enter(j, JOB_BLOCKED);
		stage_soon(s, SOON_BLOCKED);
		return;
	}
	job_enter(j, JOB_TAKE);
	to_thread(j, 2);
}

void job_adopt_taken(struct job *j)
{
	if (!j->taken.n)
		return;
	j->blocks = j->taken.blocks;
	j->n_blocks = j->taken.n;
	j->published = j->taken.matched;
	j->computed = j->start_tokens = j->taken.matched * j->w->info->kv.block_tokens;
	j->taken.n = 0;
}

void job_taken(struct job *j)
{
	struct prefill *s = prefill_of(j->w);
	job_adopt_taken(j);
	int got = j->n_blocks > 0, gone = j->cancelled || j->draw_fault,
		again = s->releases != j->releases;
	j->holders--;
	if (s->retrying == j)
		s->retrying = NULL;
	if (j->cancelled) {
		job_drop(j, "cancelled");
	} else if (j->draw_fault) {
		job_fail_draw(j);
	} else if (!got) {
		job_enter(j, JOB_BLOCKED);
		writeout_hurry(j->w->writeout);
	} else if (fetch_begin(j)) {
		job_enter(j, JOB_FETCH);
	} else if (!share_wait(j, j->published)) {
		job_run(j);
	}
	if (s->count[JOB_BLOCKED] && (got || gone || again))
		stage_soon(s, SOON_BLOCKED);
}

/* --- run ----------------------------------------------------------------- */

static void fill_transfer(const struct job *j, struct ring_transfer *t)
{
	uint32_t skip = j->d_cached / j->w->info->kv.block_tokens;
	t->req = j->req.id;
	t->attempt = j->req.attempt;
	t->lease_id = j->lease.id;
	t->lease_epoch = j->lease.epoch;
	t->lease_generation = j->lease.generation;
	snprintf(t->decode, sizeof t->decode, "%s", job_decode_name(j));
	t->deadline_us = j->req.deadline_us;
	t->want_seen = (uint32_t)gate_wants_seen(prefill_of(j->w));
	t->first_token = j->d_cached;
	t->tokens = j->req.n_tokens;
	t->blocks = j->n_dst;
	memcpy(t->src, j->blocks + skip, j->n_dst * sizeof *t->src);
	memcpy(t->dst, j->dst, j->n_dst * sizeof *t->dst);
}

static int publish(struct job *j)
{
	struct worker *w = j->w;
	struct ring_transfer *t = mem_zalloc(sizeof *t);
	uint32_t computed = j->computed;
	fill_transfer(j, t);
	int r = ring_publish(w->ring, t, &j->slot, &j->slot_gen);
	free(t);
	if (r < 0)
		return r;
	j->in_ring = 1;
	prefill_of(w)->by_slot[j->slot] = j;
	/* what the cache gave counts as computed */
	for (uint32_t l = 0; l < w->info->layers && computed; l++)
		__atomic_store_n(ring_progress_word(w->ring, j->slot, l),
		                 ring_progress_value(j->slot_gen, computed), __ATOMIC_RELEASE);
	ring_bell(w->ring);
	return 0;
}

void job_run(struct job *j)
{
	struct worker *w = j->w;
	struct prefill *s = prefill_of(w);
	if ((j->state != JOB_BLOCKED && s->ring_blocked) || publish(j) < 0) {
		if (j->state != JOB_BLOCKED)
			job_enter(j, JOB_BLOCKED);
		return;
	}
	w->cached_tokens += j->start_tokens;
	stat_add(svc_stats(w->svc), WS_CACHED_TOKENS, j->start_tokens);
	if (j->shares) {
		uint32_t had = j->share_had * w->info->kv.block_tokens;
		stat_add(svc_stats(w->svc), WS_SHARED_TOKENS,
		         j->start_tokens > had ? j->start_tokens - had : 0);
	}
	job_enter(j, JOB_RUN);
	j->holders++;
	j->ready_us = clock_us();
	gate_ready(j);
	schedule_add(s, j);
	gate_run(j);
}

/* In order of arrival: a slot for each that has blocks, while there are slots; blocks for the first
 * that has none. The next is tried when that one has got its own: who came later does not
 * overtake, or a long prompt would wait for ever. */
void job_retry_blocked(struct prefill *s)
{
	struct job *first = NULL;
	int slots = 1;
	if (!s->count[JOB_BLOCKED])
		return;
	list_each_safe(it, nx, &s->jobs) {
		struct job *j = list_entry(it, struct job, node);
		if (j->state != JOB_BLOCKED)
			continue;
		if (!j->n_blocks) {
			first = first ? first : j;
		} else if (slots) {
			job_run(j);
			slots = j->state != JOB_BLOCKED;
		}
	}
	if (first && !s->retrying) {
		s->retrying = first;
		job_take(first);
	}
}
