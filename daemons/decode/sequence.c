/* sequence.c - sequences of the decode stage: registration, states, end. On the loop's thread.
 *
 * sequence_step alone enters states. A step function acts on an event and returns the next state;
 * what it calls (lease.c, queue.c, batch.c) answers and never steps. The end of a sequence gives
 * room back: who waits for it is looked at in the loop's next round (queue_room). */
#include "decode.h"
#include "daemons/worker/seq/constraint.h"
#include "daemons/worker/seq/pooled.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

static const char lease_expired[] = "the lease expired: its prefill worker did not renew it";

/* --- registration -------------------------------------------------------- */

struct sequence *sequence_find(struct decode *d, const struct msg_head *h)
{
	struct attempt_key k = attempt_key(&h->req, h->attempt);
	return map_get(d->by_key, k.b);
}

static int refusal_of(struct decode *d, const struct request_copy *req, Pds__Fault *fault,
                      struct err *err)
{
	/* also for the first token that is drawn; an embedding draws none */
	uint32_t need = worker_blocks_for(d->w, req->n_tokens + !req->pooling);
	uint32_t most = pooled_jobs_max(req, d->w->conf.max_jobs);
	*fault = PDS__FAULT__FAULT_DRAINING;
	if (d->draining)
		return err_set(err, ERR_CLOSED, "the decode worker is draining");
	*fault = PDS__FAULT__FAULT_OVERLOADED;
	if (d->n_sequences >= most)
		return err_set(err, ERR_FULL, "the decode worker has %u requests, the limit%s (max_jobs)",
		               d->n_sequences, req->pooling ? " for embeddings" : "");
	*fault = PDS__FAULT__FAULT_TOO_LARGE;
	if (need > d->w->region.blocks)
		return err_set(err, ERR_FULL, "%u tokens need %u KV blocks, the decode worker has %u",
		               req->n_tokens, need, d->w->region.blocks);
	return 0;
}

struct sequence *sequence_new(struct worker *w, const struct msg_head *h, const Pds__Request *r,
                              Pds__Fault *fault, struct err *err)
{
	struct decode *d = decode_of(w);
	struct sequence *q = mem_zalloc(sizeof *q);
	struct request_copy *req = &q->run.req;
	*fault = PDS__FAULT__FAULT_INVALID;
	int code = request_copy_init(req, h, r, w->info, err);
	if (code == 0)
		code = constraint_take(w->constraints, req, r, err);
	if (code == ERR_NOMEM)
		*fault = PDS__FAULT__FAULT_OVERLOADED;
	if (code < 0 || refusal_of(d, req, fault, err) < 0) {
		request_copy_fini(req);
		free(q);
		return NULL;
	}
	/* The last token needs no block. A longer sequence would be preempted again and again. */
	uint64_t most = (uint64_t)w->region.blocks * w->info->kv.block_tokens + 1;
	if (req->limit_tokens > most)
		req->limit_tokens = (uint32_t)most;
	struct attempt_key k = attempt_key(&h->req, h->attempt);
	map_put(d->by_key, k.b, q);
	list_push_back(&d->sequences, &q->node);
	list_init(&q->place.node);
	list_init(&q->run.node);
	q->w = w;
	q->state = SEQUENCE_COMPILING;
	q->run.shared = &q->shared;
	q->run.slot = RUN_NO_SLOT;
	q->run.born_us = clock_us();
	d->n_sequences++;
	d->count[q->state]++;
	w->stats.requests++;
	decode_watch(d);
	return q;
}

/* Gives back what it has. */
static void sequence_free(struct sequence *q)
{
	struct decode *d = decode_of(q->w);
	struct request_copy *req = &q->run.req;
	struct attempt_key k = attempt_key(&req->id, req->attempt);
	if (!q->refused)
		tombstone_add(d, &k, req->deadline_us);
	seq_blocks_release(&q->run.blocks, q->w);
	seq_blocks_fini(&q->run.blocks);
	map_remove(d->by_key, k.b);
	if (q->lease.id)
		map_remove(d->by_lease, &q->lease.id);
	d->count[q->state]--;
	d->n_sequences--;
	list_remove(&q->node);
	queue_remove(d, q);
	d->queue.ended++;
	role_look(q->w);
	request_copy_fini(req);
	free(q->run.hidden);
	free(q);
	queue_room(d);
}

/* --- giving up ----------------------------------------------------------- */

static void note_cancelled(struct sequence *q, const char *why)
{
	log_req(LOG_INFO, &q->run.req.id, "cancelled",
	        "attempt=%u why=%s state=%s lease=%llu writer=%d", q->run.req.attempt, log_quote(why),
	        sequence_state_name(q->state), (unsigned long long)q->lease.id, q->lease.writer != 0);
	q->w->stats.cancelled++;
}

void sequence_cancel(struct sequence *q, const char *why)
{
	if (sequence_is_given_up(q))
		return;
	note_cancelled(q, why);
	sequence_step(q, SEQUENCE_ON_CANCEL);
}

static void sequence_fail_late(struct sequence *q)
{
	request_copy_fail(
		&q->run.req, q->w,
		&(struct worker_failure){.fault = PDS__FAULT__FAULT_DEADLINE,
	                             .text = "the request's deadline has passed in decode"});
	note_cancelled(q, "deadline");
}

/* --- states -------------------------------------------------------------- */

/* What a step returns when the sequence is over: nothing is held any more. */
#define ENDS ((enum sequence_state)SEQUENCE_STATES)

/* Tells who asked that it is not taken. */
static enum sequence_state refuse_late(struct sequence *q)
{
	Pds__Fault fault = PDS__FAULT__FAULT_DRAINING;
	const char *text = decode_of(q->w)->draining ? "the decode worker is draining"
	                                             : "the worker's role is mixed now: no hand-over";
	if (q->form.code < 0) {
		fault = q->form.code == ERR_NOMEM ? PDS__FAULT__FAULT_OVERLOADED
		                                  : PDS__FAULT__FAULT_INVALID;
		text = q->form.err.text;
	}
	uint64_t retry_us = fault == PDS__FAULT__FAULT_OVERLOADED ? CONSTRAINT_RETRY_US : 0;
	if (*q->prefill) /* and not the router: the prefill worker asks its next candidate */
		lease_send_deny(q, fault, text, retry_us);
	else
		request_copy_fail(&q->run.req, q->w,
		                  &(struct worker_failure){.fault = fault,
		                                           .retry = fault != PDS__FAULT__FAULT_INVALID,
		                                           .text = text,
		                                           .retry_after_us = retry_us});
	q->refused = 1;
	return ENDS;
}

static void compiled(struct svc *s, void *sequence)
{
	(void)s;
	sequence_step(sequence, SEQUENCE_ON_COMPILED);
}

static void on_compiler_done(struct constraint_task *t)
{
	struct sequence *q = list_entry(t, struct sequence, form);
	svc_post(q->w->svc, compiled, q);
}

static int takes_no_more(const struct sequence *q)
{
	return decode_of(q->w)->draining || (*q->prefill && q->w->role != ROLE_DECODE);
}

static enum sequence_state step_compiling(struct sequence *q, enum sequence_event event)
{
	switch (event) {
	case SEQUENCE_ON_ENTER:
		if (constraint_is_ready(&q->run.req))
			return *q->prefill ? SEQUENCE_QUEUED : SEQUENCE_ACTIVE;
		q->form = (struct constraint_task){.req = &q->run.req,
		                                   .work = constraint_compile,
		                                   .cancelled = &q->shared.cancelled,
		                                   .done = on_compiler_done};
		tasks_put(q->w->compiler, &q->form, 0);
		lease_send_queued(q);
		return SEQUENCE_COMPILING;
	case SEQUENCE_ON_COMPILED:
		if (q->form.code < 0 || takes_no_more(q))
			return refuse_late(q);
		return *q->prefill ? SEQUENCE_QUEUED : SEQUENCE_ACTIVE;
	case SEQUENCE_ON_TICK: lease_send_queued_again(q); return SEQUENCE_COMPILING;
	case SEQUENCE_ON_PREFILL_GONE:
	case SEQUENCE_ON_CANCEL: return SEQUENCE_GIVEN_UP;
	default: return SEQUENCE_COMPILING;
	}
}

static enum sequence_state step_queued(struct sequence *q, enum sequence_event event)
{
	struct decode *d = decode_of(q->w);
	switch (event) {
	case SEQUENCE_ON_ENTER:
		q->place.blocks = worker_blocks_for(q->w, q->run.req.n_tokens) +
		                  (uint32_t)batcher_growth(&d->batcher, &q->run.req,
		                                           batcher_ratio(&d->batcher));
		queue_push(d, q);
		if (queue_position(d, q) == 1 && lease_try(q) == LEASE_GRANTED)
			return SEQUENCE_LEASED;
		q->w->stats.queued++;
		lease_send_queued(q);
		return SEQUENCE_QUEUED;
	case SEQUENCE_ON_ROOM: return lease_try(q) == LEASE_GRANTED ? SEQUENCE_LEASED : SEQUENCE_QUEUED;
	case SEQUENCE_ON_NO_HANDOVER: return refuse_late(q);
	case SEQUENCE_ON_TICK: lease_send_queued_again(q); return SEQUENCE_QUEUED;
	case SEQUENCE_ON_PREFILL_GONE:
		/* The router is not told. A prefill worker that lives asks the next candidate, or fails the
		 * attempt itself. */
		log_req(LOG_INFO, &q->run.req.id, "reservation_dropped",
		        "attempt=%u prefill=%s why=\"its prefill worker is gone\"", q->run.req.attempt,
		        q->prefill);
		q->w->stats.cancelled++;
		return ENDS;
	case SEQUENCE_ON_CANCEL: return ENDS;
	default: return SEQUENCE_QUEUED;
	}
}

static enum sequence_state step_leased(struct sequence *q, enum sequence_event event)
{
	switch (event) {
	case SEQUENCE_ON_ENTER: lease_send_grant(q); return SEQUENCE_LEASED;
	case SEQUENCE_ON_KV_READY:
	case SEQUENCE_ON_FIRST_TOKEN:
		if (!q->lease.ready_us || !q->lease.first_us)
			return SEQUENCE_LEASED;
		return lease_join(q) == JOIN_RUNS ? SEQUENCE_ACTIVE : ENDS;
	case SEQUENCE_ON_TICK:
		if (clock_us() < q->lease.until_us)
			return SEQUENCE_LEASED;
		lease_fail(q, lease_expired, 1);
		/* a prefill worker that the grant did not reach still waits for it */
		lease_send_deny(q, PDS__FAULT__FAULT_LEASE_LOST, lease_expired, 0);
		break;
	case SEQUENCE_ON_BAD_TOKEN:
		lease_fail(q, "the prefill worker's first token is outside the vocabulary", 1);
		break;
	case SEQUENCE_ON_PREFILL_GONE: lease_fail(q, "its prefill worker is gone", 0); break;
	case SEQUENCE_ON_CANCEL: break;
	default: return SEQUENCE_LEASED;
	}
	if (!q->lease.writer)
		return ENDS;
	q->w->stats.fences++;
	return SEQUENCE_QUARANTINE;
}

static enum sequence_state step_quarantine(struct sequence *q, enum sequence_event event)
{
	switch (event) {
	case SEQUENCE_ON_ENTER:
	case SEQUENCE_ON_MESSAGER_UP: lease_revoke(q); break;
	case SEQUENCE_ON_TICK: /* it did not fit the link's window */
		if (!q->lease.revoked)
			lease_revoke(q);
		break;
	case SEQUENCE_ON_FENCED: return ENDS;
	default: break;
	}
	return SEQUENCE_QUARANTINE;
}

static void log_decode_done(const struct sequence *q)
{
	const struct run *r = &q->run;
	log_req(LOG_INFO, &r->req.id, "decode_done",
	        "attempt=%u tokens=%u cached=%u decode_us=%llu preemptions=%u drafted=%u accepted=%u "
	        "cancelled=%d",
	        r->req.attempt, request_copy_index(&r->req), r->cached_tokens,
	        (unsigned long long)(r->first_us ? r->done_us - r->first_us : 0), r->preemptions,
	        r->drafted, r->accepted, q->state == SEQUENCE_GIVEN_UP);
}

static enum sequence_state step_active(struct sequence *q, enum sequence_event event)
{
	switch (event) {
	case SEQUENCE_ON_ENTER:
		decode_of(q->w)->n_active++;
		batcher_add(&decode_of(q->w)->batcher, &q->run);
		return SEQUENCE_ACTIVE;
	case SEQUENCE_ON_RETURNED:
		if (q->run.failure.kind != FAILURE_NONE) {
			struct worker_failure f = seq_failure_report(&q->run.failure, q->w);
			request_copy_fail(&q->run.req, q->w, &f);
		} else if (q->run.req.pooling && q->run.first_us) {
			Pds__Timing timing;
			report_timing(&q->run, &timing);
			pooled_send(&q->run.req, q->w, q->run.hidden, &timing);
		}
		log_decode_done(q);
		return ENDS;
	case SEQUENCE_ON_CANCEL: return SEQUENCE_GIVEN_UP;
	default: return SEQUENCE_ACTIVE;
	}
}

static enum sequence_state step_given_up(struct sequence *q, enum sequence_event event)
{
	switch (event) {
	case SEQUENCE_ON_ENTER:
		q->shared.cancelled = 1;
		batcher_kick(&decode_of(q->w)->batcher);
		return SEQUENCE_GIVEN_UP;
	case SEQUENCE_ON_RETURNED: log_decode_done(q); return ENDS;
	case SEQUENCE_ON_COMPILED: return ENDS;
	default: return SEQUENCE_GIVEN_UP;
	}
}

#define TO(s) (1u << SEQUENCE_##s)

static const struct {
	const char *name;
	unsigned followers;
	enum sequence_state (*step)(struct sequence *q, enum sequence_event event);
} states[SEQUENCE_STATES] = {
	[SEQUENCE_COMPILING] = {"compiling", TO(QUEUED) | TO(ACTIVE) | TO(GIVEN_UP), step_compiling},
	[SEQUENCE_QUEUED] = {"queued", TO(LEASED), step_queued},
	[SEQUENCE_LEASED] = {"leased", TO(ACTIVE) | TO(QUARANTINE), step_leased},
	[SEQUENCE_ACTIVE] = {"active", TO(GIVEN_UP), step_active},
	[SEQUENCE_QUARANTINE] = {"quarantine", 0, step_quarantine},
	[SEQUENCE_GIVEN_UP] = {"given_up", 0, step_given_up},
};

const char *sequence_state_name(enum sequence_state s)
{
	return states[s].name;
}

/* Common to all states: ON_STOP ends it, and the deadline is a cancel. */
void sequence_step(struct sequence *q, enum sequence_event event)
{
	struct decode *d = decode_of(q->w);
	if (event == SEQUENCE_ON_TICK && !sequence_is_given_up(q) &&
	    clock_us() >= q->run.req.deadline_us) {
		sequence_fail_late(q);
		event = SEQUENCE_ON_CANCEL;
	}
	for (;;) {
		enum sequence_state was = q->state,
							next = event == SEQUENCE_ON_STOP ? ENDS : states[was].step(q, event);
		if (next == was)
			return;
		log_req(LOG_DEBUG, &q->run.req.id, "sequence_state", "attempt=%u from=%s to=%s",
		        q->run.req.attempt, states[was].name, next == ENDS ? "end" : states[next].name);
		if (next == ENDS) {
			sequence_free(q);
			return;
		}
		if (!((states[was].followers >> next) & 1))
			PANIC("sequence %s: %s -> %s is no legal step", log_reqid(&q->run.req.id),
			      states[was].name, states[next].name);
		d->count[was]--;
		d->count[next]++;
		q->state = next;
		event = SEQUENCE_ON_ENTER;
	}
}

/* --- from the schedule thread -------------------------------------------- */

void sequence_returned(struct svc *s, void *run)
{
	struct sequence *q = list_entry((struct run *)run, struct sequence, run);
	(void)s;
	decode_of(q->w)->n_active--;
	sequence_step(q, SEQUENCE_ON_RETURNED);
}
