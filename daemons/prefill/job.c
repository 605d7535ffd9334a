/* job.c - the state machine of a job; prefill.h draws it. All of it runs on the loop's thread.
 *
 * Each state has a step function: it acts on an event and returns the next state. Helpers in other
 * files return verdicts and never step a job themselves.
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

void job_release_blocks(struct job *j)
{
	if (!j->blocks.n)
		return;
	seq_blocks_release(&j->blocks, j->w);
	job_room_made(prefill_of(j->w));
}

void job_leave_ring(struct job *j)
{
	struct job_run *r = &j->run;
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

static void give_up(struct job *j, const char *why)
{
	j->shared.cancelled = 1;
	log_req(LOG_INFO, &j->req.id, "job_dropped", "attempt=%u state=%s why=%s", j->req.attempt,
	        job_state_name(j->state), log_quote(why));
	stat_add(svc_stats(j->w->svc), WS_CANCELLED, 1);
	reserve_cancel(j, why);
	if (j->run.slot != RUN_NO_SLOT)
		ring_cancel(j->w->ring, j->run.slot, j->run.slot_gen);
}

static void give_up_failed(struct job *j, struct worker_failure f)
{
	if (f.fault == PDS__FAULT__FAULT_NO_ROOM ||
	    (f.fault == PDS__FAULT__FAULT_OVERLOADED && !f.retry_after_us))
		f.retry_after_us = j->reserve.room_after_us;
	request_copy_fail(&j->req, j->w, &f);
	give_up(j, f.text);
}

void job_drop(struct job *j, const char *why)
{
	if (j->state == JOB_DROPPED)
		return;
	give_up(j, why);
	job_step(j, JE_DROP);
}

void job_fail(struct job *j, const struct worker_failure *f)
{
	if (j->state == JOB_DROPPED)
		return;
	give_up_failed(j, *f);
	job_step(j, JE_DROP);
}

/* --- to a grant ---------------------------------------------------------- */

static enum job_state step_new(struct job *j, enum job_event e)
{
	(void)j;
	return e == JE_BEGIN ? JOB_PREPARE : JOB_NEW;
}

static enum job_state step_prepare(struct job *j, enum job_event e)
{
	if (e == JE_ENTER)
		prepare_hash(&prefill_of(j->w)->prepare, &j->prepare);
	if (e == JE_DROP)
		return JOB_DROPPED;
	if (e != JE_BACK)
		return JOB_PREPARE;
	return read_look_up(j) ? JOB_LOOKUP : job_is_alone(j) ? JOB_SHARE : JOB_PARKED;
}

static enum job_state step_lookup(struct job *j, enum job_event e)
{
	if (e == JE_DROP) {
		store_cancel(j->w->store, j->stored.batch);
		return JOB_DROPPED;
	}
	if (e != JE_BACK)
		return JOB_LOOKUP;
	return job_is_alone(j) ? JOB_SHARE : JOB_PARKED;
}

static enum job_state step_parked(struct job *j, enum job_event e)
{
	if (e != JE_ENTER && e != JE_CHECK)
		return JOB_PARKED;
	switch (reserve_place(j)) {
	case RESERVE_ASKED: return JOB_ASKED;
	case RESERVE_MUST_WAIT: return JOB_PARKED;
	default: give_up_failed(j, reserve_failure(j)); return JOB_END;
	}
}

static enum job_state step_asked(struct job *j, enum job_event e)
{
	switch (e) {
	case JE_CHECK: return reserve_move(j) ? JOB_ASKED : JOB_PARKED;
	case JE_REFUSED: return JOB_PARKED;
	case JE_GRANTED: return JOB_SHARE;
	default: return JOB_ASKED;
	}
}

/* --- to the schedule ----------------------------------------------------- */

/* The only place that decides whether a job waits for another's blocks: with a new lease, with
 * blocks, and after a read. */
static enum job_state step_share(struct job *j, enum job_event e)
{
	if (e == JE_PREFIX) {
		share_over(j);
		return JOB_TAKE;
	}
	if (e != JE_ENTER || share_wait(j))
		return JOB_SHARE;
	if (!j->blocks.n)
		return JOB_TAKE;
	return job_is_alone(j) ? JOB_RUN : JOB_SLOT;
}

static void note_taken(struct job *j)
{
	j->start_tokens = j->blocks.published * j->w->info->kv.block_tokens;
	j->shared.computed = j->start_tokens;
}

static enum job_state step_take(struct job *j, enum job_event e)
{
	struct prefill *s = prefill_of(j->w);
	if (e == JE_DROP)
		return JOB_DROPPED;
	if (e == JE_ENTER) {
		/* others wait for blocks, and the first of them may be trying at this moment */
		if (s->retrying != j && (s->count[JOB_BLOCKED] || s->retrying)) {
			stage_soon(s, SOON_BLOCKED);
			return JOB_BLOCKED;
		}
		j->releases = s->releases;
		prepare_take(&s->prepare, &j->prepare, &j->req, s->retrying == j);
	}
	if (e != JE_BACK)
		return JOB_TAKE;
	if (j->prepare.failure.kind != FAILURE_NONE) {
		give_up_failed(j, seq_failure_report(&j->prepare.failure, j->w));
		return JOB_END;
	}
	if (!j->blocks.n) {
		writeout_hurry(j->w->writeout);
		return JOB_BLOCKED;
	}
	note_taken(j);
	return JOB_READ;
}

static enum job_state step_blocked(struct job *j, enum job_event e)
{
	(void)j;
	return e == JE_ROOM ? JOB_TAKE : JOB_BLOCKED;
}

static enum job_state step_read(struct job *j, enum job_event e)
{
	switch (e) {
	case JE_ENTER: return read_begin(j) ? JOB_READ : JOB_SHARE;
	case JE_READ:
		read_over(j);
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
	t->req = j->req.id;
	t->attempt = j->req.attempt;
	t->lease_id = l->id.id;
	t->lease_epoch = l->id.epoch;
	t->lease_generation = l->id.generation;
	snprintf(t->decode, sizeof t->decode, "%s", job_decode_name(j));
	t->deadline_us = j->req.deadline_us;
	t->first_token = l->cached_tokens;
	t->tokens = j->req.n_tokens;
	t->blocks = l->n_dst;
	memcpy(t->src, j->blocks.block + skip, l->n_dst * sizeof *t->src);
	memcpy(t->dst, l->dst, l->n_dst * sizeof *t->dst);
}

/* 1: the transfer is in the ring; 0: no slot is free. */
static int publish(struct job *j)
{
	struct worker *w = j->w;
	struct job_run *r = &j->run;
	struct ring_transfer *t = mem_zalloc(sizeof *t);
	uint32_t slot, computed = j->shared.computed;
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

static enum job_state step_slot(struct job *j, enum job_event e)
{
	int first = prefill_of(j->w)->count[JOB_SLOT] == 1;
	if (e != JE_ROOM && !(e == JE_ENTER && first))
		return JOB_SLOT;
	return publish(j) ? JOB_RUN : JOB_SLOT;
}

/* --- in the schedule ----------------------------------------------------- */

static void start_run(struct job *j)
{
	struct worker *w = j->w;
	uint32_t had = j->share.had * w->info->kv.block_tokens;
	uint64_t found = j->start_tokens - least(j->start_tokens, j->stored.read_tokens);
	w->cached_tokens += found;
	stat_add(svc_stats(w->svc), WS_CACHED_TOKENS, found);
	if (j->share.times && j->start_tokens > had)
		stat_add(svc_stats(w->svc), WS_SHARED_TOKENS, j->start_tokens - had);
	if (j->req.pooling)
		j->run.hidden = pooled_new(w->info);
	j->run.ready_us = clock_us();
	schedule_add(&prefill_of(w)->schedule, &j->run);
}

/* The schedule thread is done. 1: the first token was sent; 0: the job ends. */
static int run_over(struct job *j)
{
	static const struct worker_failure first_lost = {
		.fault = PDS__FAULT__FAULT_PEER_LOST,
		.retry = 1,
		.text = "the link to the decode worker does not take the first token"};
	enum handover_first first = FIRST_ENDS_ANSWER;
	if (j->run.failure.kind != FAILURE_NONE)
		give_up_failed(j, seq_failure_report(&j->run.failure, j->w));
	else if (j->req.pooling)
		handover_embedding(j);
	else
		first = handover_first(j);
	if (first == FIRST_LOST)
		give_up_failed(j, first_lost);
	return first == FIRST_SENT;
}

static enum job_state step_run(struct job *j, enum job_event e)
{
	switch (e) {
	case JE_ENTER: start_run(j); return JOB_RUN;
	case JE_DROP: schedule_kick(&prefill_of(j->w)->schedule); return JOB_DROPPED;
	case JE_SENT: return JOB_EARLY;
	case JE_BACK: return run_over(j) ? JOB_COMPUTED : JOB_END;
	default: return JOB_RUN;
	}
}

static enum job_state step_early(struct job *j, enum job_event e)
{
	if (e == JE_DROP)
		return JOB_DROPPED;
	if (e == JE_BACK)
		return run_over(j) ? JOB_MOVED : JOB_END;
	return JOB_EARLY;
}

/* --- hand-over ----------------------------------------------------------- */

/* 1: it is late, and was failed. */
static int fail_late(struct job *j)
{
	const char *text = handover_late(j);
	if (text)
		give_up_failed(
			j, (struct worker_failure){.fault = PDS__FAULT__FAULT_STALLED,
		                               .retry = 1,
		                               .text = text,
		                               .blame = j->state == JOB_MOVED ? job_decode_name(j) : NULL});
	return text != NULL;
}

static enum job_state step_computed(struct job *j, enum job_event e)
{
	if (e == JE_SENT)
		return JOB_MOVED;
	if (e == JE_ACKED)
		return JOB_ACKED;
	return e == JE_CHECK && fail_late(j) ? JOB_END : JOB_COMPUTED;
}

static enum job_state step_acked(struct job *j, enum job_event e)
{
	if (e == JE_SENT)
		return JOB_END;
	return e == JE_CHECK && fail_late(j) ? JOB_END : JOB_ACKED;
}

static enum job_state step_moved(struct job *j, enum job_event e)
{
	if (e == JE_ENTER)
		handover_release(j);
	if (e == JE_ACKED)
		return JOB_END;
	return e == JE_CHECK && fail_late(j) ? JOB_END : JOB_MOVED;
}

/* --- end ----------------------------------------------------------------- */

static enum job_state step_dropped(struct job *j, enum job_event e)
{
	(void)j;
	return e == JE_BACK ? JOB_END : JOB_DROPPED;
}

static enum job_state step_end(struct job *j, enum job_event e)
{
	struct prefill *s = prefill_of(j->w);
	struct attempt_key k = attempt_key(&j->req.id, j->req.attempt);
	(void)e;
	reserve_uncount(j);
	read_leave(j);
	job_leave_ring(j);
	job_release_blocks(j);
	stage_soon(s, SOON_BLOCKED); /* jobs that were blocked behind it */
	map_remove(s->by_key, k.b);
	return JOB_END;
}

static void job_free(struct job *j)
{
	struct prefill *s = prefill_of(j->w);
	list_remove(&j->node);
	s->count[JOB_END]--;
	reserve_fini(j);
	seq_blocks_fini(&j->blocks);
	free(j->lease.dst);
	free(j->stored.tier);
	free(j->run.hidden);
	request_copy_fini(&j->req);
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
	[JOB_NEW] = {"new", TO(PREPARE) | TO(END), step_new},
	[JOB_PREPARE] = {"prepare", TO(LOOKUP) | TO(PARKED) | TO(SHARE) | TO(DROPPED) | TO(END),
                     step_prepare},
	[JOB_LOOKUP] = {"lookup", TO(PARKED) | TO(SHARE) | TO(DROPPED) | TO(END), step_lookup},
	[JOB_PARKED] = {"parked", TO(ASKED) | TO(END), step_parked},
	[JOB_ASKED] = {"asked", TO(PARKED) | TO(SHARE) | TO(END), step_asked},
	[JOB_SHARE] = {"share", TO(TAKE) | TO(SLOT) | TO(RUN) | TO(END), step_share},
	[JOB_TAKE] = {"take", TO(BLOCKED) | TO(READ) | TO(DROPPED) | TO(END), step_take},
	[JOB_BLOCKED] = {"blocked", TO(TAKE) | TO(END), step_blocked},
	[JOB_READ] = {"read", TO(TAKE) | TO(SHARE) | TO(END), step_read},
	[JOB_SLOT] = {"slot", TO(RUN) | TO(END), step_slot},
	[JOB_RUN] = {"run", TO(EARLY) | TO(COMPUTED) | TO(DROPPED) | TO(END), step_run},
	[JOB_EARLY] = {"early", TO(MOVED) | TO(DROPPED) | TO(END), step_early},
	[JOB_COMPUTED] = {"computed", TO(ACKED) | TO(MOVED) | TO(END), step_computed},
	[JOB_ACKED] = {"acked", TO(END), step_acked},
	[JOB_MOVED] = {"moved", TO(END), step_moved},
	[JOB_DROPPED] = {"dropped", TO(END), step_dropped},
	[JOB_END] = {"end", 0, step_end},
};

static int may_follow(enum job_state from, enum job_state to)
{
	return (states[from].next >> to) & 1;
}

const char *job_state_name(enum job_state s)
{
	return states[s].name;
}

static void job_enter(struct job *j, enum job_state next)
{
	struct prefill *s = prefill_of(j->w);
	enum job_state was = j->state;
	if (!may_follow(was, next))
		PANIC("job %s: state %s may not follow %s", log_reqid(&j->req.id), job_state_name(next),
		      job_state_name(was));
	log_req(LOG_DEBUG, &j->req.id, "job_state", "attempt=%u from=%s to=%s", j->req.attempt,
	        job_state_name(was), job_state_name(next));
	s->count[was]--;
	s->count[next]++;
	j->state = next;
	list_remove(&j->wait);
	/* an EARLY job still computes for those that share its prefix */
	if ((was == JOB_RUN && next != JOB_EARLY) || was == JOB_EARLY)
		share_left(j);
}

enum job_state job_step(struct job *j, enum job_event e)
{
	int has_step_for_drop = may_follow(j->state, JOB_DROPPED);
	enum job_state was = j->state,
				   next = e == JE_DROP && !has_step_for_drop ? JOB_END : states[was].step(j, e);
	while (next != j->state) {
		job_enter(j, next);
		next = states[next].step(j, JE_ENTER);
	}
	if (prefill_baseline)
		prefill_baseline->stepped(j, was);
	if (next == JOB_END)
		job_free(j);
	return next;
}

void job_init(struct job *j, struct prefill *s)
{
	struct attempt_key k = attempt_key(&j->req.id, j->req.attempt);
	list_init(&j->wait);
	j->shared.turn = s->next_seq;
	j->prepare.req = &j->req;
	j->prepare.blocks = &j->blocks;
	j->prepare.cancelled = &j->shared.cancelled;
	list_init(&j->run.node);
	j->run.req = &j->req;
	j->run.blocks = &j->blocks;
	j->run.shared = &j->shared;
	j->run.seq = s->next_seq++;
	j->run.slot = RUN_NO_SLOT;
	j->run.alone = job_is_alone(j);
	map_put(s->by_key, k.b, j);
	list_push_back(&s->jobs, &j->node);
	s->count[JOB_NEW]++;
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
	if ((job_step(j, JE_BACK) != JOB_BLOCKED || room_made) && s->count[JOB_BLOCKED])
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
	if (!s->count[JOB_BLOCKED] && !s->count[JOB_SLOT])
		return;
	list_each_safe(it, nx, &s->jobs) {
		struct job *j = list_entry(it, struct job, node);
		if (j->state == JOB_BLOCKED && !first)
			first = j;
		else if (j->state == JOB_SLOT && slots)
			slots = job_step(j, JE_ROOM) != JOB_SLOT;
	}
	if (first && !s->retrying) {
		s->retrying = first;
		job_step(first, JE_ROOM);
	}
}
