/* job.c - the state machine of a job; prefill.h draws it. All of it runs on the loop's thread.
 *
 * Each state has a step function: it acts on an event and returns the next state, or ENDS. Helpers
 * in other files return verdicts and never step a job themselves.
 *
 * What always holds: the ring slot is cancelled before blocks go back, so that a late reader fails
 * its mark; a job that a thread has is not freed before it comes back; blocks that storage may
 * still write stay with the read. */
#include "prefill.h"
#include "daemons/worker/seq/pooled.h"
#include "util/check.h"
#include "util/least.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

/* What a step returns when the job is over. */
#define ENDS ((enum job_state)JOB_STATES)

void job_release_blocks(struct job *j)
{
	if (!j->run.blocks.n)
		return;
	seq_blocks_release(&j->run.blocks, j->w);
	job_room_made(prefill_of(j->w));
}

void job_leave_ring(struct job *j)
{
	struct run *r = &j->run;
	if (r->slot == RUN_NO_SLOT)
		return;
	ring_cancel(j->w->ring, r->slot, r->slot_gen);
	ring_retire(j->w->ring, r->slot, r->slot_gen);
	prefill_of(j->w)->by_slot[r->slot] = NULL;
	r->slot = RUN_NO_SLOT;
	job_room_made(prefill_of(j->w));
}

/* Also counted, for a job that a thread has just failed to take blocks for. */
void job_room_made(struct prefill *s)
{
	s->releases++;
	stage_soon(s, SOON_BLOCKED);
}

/* --- giving up ----------------------------------------------------------- */

static void job_abandon(struct job *j, const char *why)
{
	j->shared.cancelled = 1;
	log_req(LOG_INFO, &j->run.req.id, "job_dropped", "attempt=%u state=%s why=%s",
	        j->run.req.attempt, job_state_name(j->state), log_quote(why));
	j->w->stats.cancelled++;
	reserve_cancel(j, why);
	if (j->run.slot != RUN_NO_SLOT)
		ring_cancel(j->w->ring, j->run.slot, j->run.slot_gen);
}

static void job_abandon_failed(struct job *j, struct worker_failure f)
{
	if (f.fault == PDS__FAULT__FAULT_NO_ROOM ||
	    (f.fault == PDS__FAULT__FAULT_OVERLOADED && !f.retry_after_us))
		f.retry_after_us = j->reserve.room_after_us;
	request_copy_fail(&j->run.req, j->w, &f);
	job_abandon(j, f.text);
}

void job_drop(struct job *j, const char *why)
{
	if (j->state == JOB_DROPPED)
		return;
	job_abandon(j, why);
	job_step(j, JE_DROP);
}

void job_fail(struct job *j, const struct worker_failure *f)
{
	if (j->state == JOB_DROPPED)
		return;
	job_abandon_failed(j, *f);
	job_step(j, JE_DROP);
}

/* --- to a grant ---------------------------------------------------------- */

static enum job_state step_prepare(struct job *j, enum job_event e)
{
	if (e == JE_ENTER)
		prepare_hash(&prefill_of(j->w)->prepare, &j->prepare);
	if (e != JE_BACK)
		return JOB_PREPARE;
	return read_look_up(j) ? JOB_LOOKUP : job_is_alone(j) ? JOB_SHARE : JOB_RESERVE;
}

static enum job_state step_lookup(struct job *j, enum job_event e)
{
	if (e != JE_BACK)
		return JOB_LOOKUP;
	return job_is_alone(j) ? JOB_SHARE : JOB_RESERVE;
}

static enum job_state step_reserve(struct job *j, enum job_event e)
{
	if (e == JE_GRANTED)
		return JOB_SHARE;
	if (e != JE_ENTER && e != JE_CHECK && e != JE_REFUSED)
		return JOB_RESERVE;
	if (j->reserve.asked && reserve_move(j))
		return JOB_RESERVE;
	if (reserve_place(j) != RESERVE_NONE_LEFT)
		return JOB_RESERVE;
	job_abandon_failed(j, reserve_failure(j));
	return ENDS;
}

/* --- to the schedule ----------------------------------------------------- */

/* The only place that decides whether a job waits for another's blocks: with a new lease, with
 * blocks, and after a read. */
static enum job_state step_share(struct job *j, enum job_event e)
{
	if (e == JE_PREFIX) {
		share_finish(j);
		return JOB_TAKE;
	}
	if (e != JE_ENTER || share_wait(j))
		return JOB_SHARE;
	if (!j->run.blocks.n)
		return JOB_TAKE;
	return JOB_RUN;
}

static void note_taken(struct job *j)
{
	j->start_tokens = j->run.blocks.published * j->w->info->kv.block_tokens;
	j->run.computed = j->start_tokens;
}

static void wait_for_room(struct job *j, int waits)
{
	struct prefill *s = prefill_of(j->w);
	if (j->waits_room != waits)
		*(j->state == JOB_TAKE ? &s->n_blocked : &s->n_slotless) += waits ? 1 : -1;
	j->waits_room = waits;
}

static enum job_state step_take(struct job *j, enum job_event e)
{
	struct prefill *s = prefill_of(j->w);
	switch (e) {
	case JE_ROOM: wait_for_room(j, 0); /* fall through */
	case JE_ENTER:
		/* others wait for blocks, and the first of them may be trying at this moment */
		if (s->retrying != j && (s->n_blocked || s->retrying)) {
			stage_soon(s, SOON_BLOCKED);
			wait_for_room(j, 1);
			return JOB_TAKE;
		}
		j->releases = s->releases;
		prepare_take(&s->prepare, &j->prepare, &j->run.req, s->retrying == j);
		return JOB_TAKE;
	case JE_BACK: break;
	default: return JOB_TAKE;
	}
	if (j->prepare.failure.kind != FAILURE_NONE) {
		job_abandon_failed(j, seq_failure_report(&j->prepare.failure, j->w));
		return ENDS;
	}
	if (!j->run.blocks.n) {
		writeout_hurry(j->w->writeout);
		wait_for_room(j, 1);
		return JOB_TAKE;
	}
	note_taken(j);
	return JOB_READ;
}

static enum job_state step_read(struct job *j, enum job_event e)
{
	switch (e) {
	case JE_ENTER: return read_begin(j) ? JOB_READ : JOB_SHARE;
	case JE_READ:
		read_finish(j);
		note_taken(j);
		return JOB_SHARE;
	case JE_CHECK: return read_is_late(j) ? JOB_TAKE : JOB_READ;
	default: return JOB_READ;
	}
}

static void fill_transfer(const struct job *j, struct ring_transfer *t)
{
	const struct job_lease *l = &j->lease;
	uint32_t skip = l->cached_tokens / j->w->info->kv.block_tokens;
	t->req = j->run.req.id;
	t->attempt = j->run.req.attempt;
	t->lease_id = l->id.id;
	t->lease_epoch = l->id.epoch;
	t->lease_generation = l->id.generation;
	snprintf(t->decode, sizeof t->decode, "%s", job_decode_name(j));
	t->deadline_us = j->run.req.deadline_us;
	t->first_token = l->cached_tokens;
	t->tokens = j->run.req.n_tokens;
	t->blocks = l->n_dst;
	memcpy(t->src, j->run.blocks.block + skip, l->n_dst * sizeof *t->src);
	memcpy(t->dst, l->dst, l->n_dst * sizeof *t->dst);
}

/* 1: the transfer is in the ring; 0: no slot is free. */
static int publish_transfer(struct job *j)
{
	struct worker *w = j->w;
	struct run *r = &j->run;
	struct ring_transfer *t = mem_zalloc(sizeof *t);
	uint32_t slot, computed = j->run.computed;
	fill_transfer(j, t);
	int code = ring_publish(w->ring, t, &slot, &r->slot_gen);
	free(t);
	if (code < 0)
		return 0;
	r->slot = slot;
	prefill_of(w)->by_slot[slot] = j;
	/* tokens from the cache count as computed */
	for (uint32_t l = 0; l < w->info->layers && computed; l++)
		__atomic_store_n(ring_progress_word(w->ring, slot, l),
		                 ring_progress_value(r->slot_gen, computed), __ATOMIC_RELEASE);
	ring_bell(w->ring);
	return 1;
}

/* --- in the schedule ----------------------------------------------------- */

static void start_run(struct job *j)
{
	struct worker *w = j->w;
	uint32_t had = j->share.had * w->info->kv.block_tokens;
	uint64_t found = j->start_tokens - least(j->start_tokens, j->stored.read_tokens);
	w->stats.cached_tokens += found;
	if (j->share.times && j->start_tokens > had)
		w->stats.shared_tokens += j->start_tokens - had;
	if (j->run.req.pooling)
		j->run.hidden = pooled_new(w->info);
	CHECK(j->run.blocks.n == worker_blocks_for(w, j->run.req.n_tokens) &&
	      j->run.computed < j->run.req.n_tokens &&
	      j->run.blocks.published <= j->run.computed / w->info->kv.block_tokens &&
	      (job_is_alone(j) || j->run.slot != RUN_NO_SLOT));
	j->run.born_us = clock_us();
	batcher_add(&prefill_of(w)->batcher, &j->run);
}

/* The schedule thread is done. 1: the first token was sent; 0: the job ends. */
static int run_result(struct job *j)
{
	static const struct worker_failure first_lost = {
		.fault = PDS__FAULT__FAULT_PEER_LOST,
		.retry = 1,
		.text = "the link to the decode worker does not take the first token"};
	enum handover_first first = FIRST_ENDS_ANSWER;
	if (j->run.failure.kind != FAILURE_NONE)
		job_abandon_failed(j, seq_failure_report(&j->run.failure, j->w));
	else if (j->run.req.pooling)
		handover_embedding(j);
	else
		first = handover_first(j);
	if (first == FIRST_LOST)
		job_abandon_failed(j, first_lost);
	return first == FIRST_SENT;
}

static enum job_state step_run(struct job *j, enum job_event e)
{
	struct prefill *s = prefill_of(j->w);
	switch (e) {
	case JE_ENTER: /* by arrival: one that waits for a slot comes first */
	case JE_ROOM:
		if (job_is_alone(j) || ((e == JE_ROOM || !s->n_slotless) && publish_transfer(j))) {
			wait_for_room(j, 0);
			start_run(j);
		} else {
			wait_for_room(j, 1);
		}
		return JOB_RUN;
	case JE_SENT: j->sent = 1; return JOB_RUN;
	case JE_BACK: return run_result(j) ? JOB_HANDOVER : ENDS;
	default: return JOB_RUN;
	}
}

/* --- hand-over ----------------------------------------------------------- */

/* 1: it is late, and was failed. */
static int fail_if_late(struct job *j)
{
	const char *text = handover_late(j);
	if (text)
		job_abandon_failed(j,
		                   (struct worker_failure){.fault = PDS__FAULT__FAULT_STALLED,
		                                           .retry = 1,
		                                           .text = text,
		                                           .blame = j->sent ? job_decode_name(j) : NULL});
	return text != NULL;
}

static enum job_state step_handover(struct job *j, enum job_event e)
{
	j->sent |= e == JE_SENT;
	j->acked |= e == JE_ACKED;
	if (e == JE_CHECK && fail_if_late(j))
		return ENDS;
	if (j->sent && j->acked)
		return ENDS;
	if (j->sent)
		handover_release(j);
	return JOB_HANDOVER;
}

/* --- end ----------------------------------------------------------------- */

static enum job_state step_dropped(struct job *j, enum job_event e)
{
	(void)j;
	return e == JE_BACK ? ENDS : JOB_DROPPED;
}

static void job_end(struct job *j)
{
	struct prefill *s = prefill_of(j->w);
	struct attempt_key k = attempt_key(&j->run.req.id, j->run.req.attempt);
	wait_for_room(j, 0);
	reserve_uncount(j);
	read_leave(j);
	job_leave_ring(j);
	job_release_blocks(j);
	stage_soon(s, SOON_BLOCKED); /* jobs that were blocked behind it */
	map_remove(s->by_key, k.b);
	list_remove(&j->node);
	list_remove(&j->wait);
	s->count[j->state]--;
	reserve_fini(j);
	seq_blocks_fini(&j->run.blocks);
	free(j->lease.dst);
	free(j->stored.tier);
	free(j->run.hidden);
	request_copy_fini(&j->run.req);
	free(j);
	stage_jobs(s, -1);
}

/* --- the table ----------------------------------------------------------- */

#define TO(s) (1u << JOB_##s)

static const struct {
	const char *name;
	unsigned next;
	enum job_state (*step)(struct job *j, enum job_event e);
} states[] = {
	[JOB_PREPARE] = {"prepare", TO(LOOKUP) | TO(RESERVE) | TO(SHARE) | TO(DROPPED), step_prepare},
	[JOB_LOOKUP] = {"lookup", TO(RESERVE) | TO(SHARE) | TO(DROPPED), step_lookup},
	[JOB_RESERVE] = {"reserve", TO(SHARE), step_reserve},
	[JOB_SHARE] = {"share", TO(TAKE) | TO(RUN), step_share},
	[JOB_TAKE] = {"take", TO(READ) | TO(DROPPED), step_take},
	[JOB_READ] = {"read", TO(TAKE) | TO(SHARE), step_read},
	[JOB_RUN] = {"run", TO(HANDOVER) | TO(DROPPED), step_run},
	[JOB_HANDOVER] = {"handover", 0, step_handover},
	[JOB_DROPPED] = {"dropped", 0, step_dropped},
};

const char *job_state_name(enum job_state s)
{
	return states[s].name;
}

/* Cancelled or failed. A thread or a look-up that has the job gives it back soon. */
static enum job_state state_after_drop(struct job *j)
{
	if (j->state == JOB_LOOKUP)
		store_cancel(j->w->store, j->stored.batch);
	if (job_is_scheduled(j))
		batcher_kick(&prefill_of(j->w)->batcher);
	int has_it = (states[j->state].next >> JOB_DROPPED & 1) && !j->waits_room;
	return has_it ? JOB_DROPPED : ENDS;
}

enum job_state job_step(struct job *j, enum job_event e)
{
	struct prefill *s = prefill_of(j->w);
	for (;;) {
		enum job_state was = j->state,
					   next = e == JE_DROP ? state_after_drop(j) : states[was].step(j, e);
		if (next == was)
			return was;
		log_req(LOG_DEBUG, &j->run.req.id, "job_state", "attempt=%u from=%s to=%s",
		        j->run.req.attempt, states[was].name, next == ENDS ? "end" : states[next].name);
		if (was == JOB_RUN)
			share_source_gone(j); /* it computes no more */
		if (next == ENDS) {
			job_end(j);
			return next;
		}
		if (!(states[was].next >> next & 1))
			PANIC("job %s: state %s may not follow %s", log_reqid(&j->run.req.id),
			      states[next].name, states[was].name);
		s->count[was]--;
		s->count[next]++;
		j->state = next;
		list_remove(&j->wait);
		e = JE_ENTER;
	}
}

void job_init(struct job *j, struct prefill *s)
{
	struct attempt_key k = attempt_key(&j->run.req.id, j->run.req.attempt);
	list_init(&j->wait);
	j->shared.turn = s->next_seq;
	j->prepare.req = &j->run.req;
	j->prepare.blocks = &j->run.blocks;
	j->prepare.cancelled = &j->shared.cancelled;
	list_init(&j->run.node);
	j->run.shared = &j->shared;
	j->run.seq = s->next_seq++;
	j->run.slot = RUN_NO_SLOT;
	j->run.first_only = 1;
	map_put(s->by_key, k.b, j);
	list_push_back(&s->jobs, &j->node);
	s->count[JOB_PREPARE]++;
	stage_jobs(s, 1);
}

/* --- from the threads ---------------------------------------------------- */

void job_prepare_back(struct svc *svc, void *prepare)
{
	struct job *j = list_entry(prepare, struct job, prepare);
	struct prefill *s = prefill_of(j->w);
	(void)svc;
	if (j->prepare.work == PREPARE_HASH) {
		job_step(j, JE_BACK);
		return;
	}
	int room_made = s->releases != j->releases;
	if (s->retrying == j)
		s->retrying = NULL;
	int blocked = job_step(j, JE_BACK) == JOB_TAKE && j->waits_room;
	if ((!blocked || room_made) && s->n_blocked)
		stage_soon(s, SOON_BLOCKED); /* the next may be tried */
}

void job_run_back(struct svc *svc, void *run)
{
	(void)svc;
	job_step(list_entry(run, struct job, run), JE_BACK);
}

/* By arrival: a slot for each job that has blocks, while there are slots; blocks for the first that
 * has none. The next is tried when that one has got its blocks: a later job does not overtake, or a
 * long prompt would wait forever. */
void job_retry_blocked(struct prefill *s)
{
	struct job *first = NULL;
	int slots = 1;
	if (!s->n_blocked && !s->n_slotless)
		return;
	list_each_safe(it, nx, &s->jobs) {
		struct job *j = list_entry(it, struct job, node);
		if (!j->waits_room)
			continue;
		if (j->state == JOB_RUN && slots)
			slots = job_step(j, JE_ROOM) != JOB_RUN || !j->waits_room;
		else if (j->state == JOB_TAKE && !first)
			first = j;
	}
	if (first && !s->retrying) {
		s->retrying = first;
		job_step(first, JE_ROOM);
	}
}
