/* attempt.c - the states of an attempt and the events that change them: start and cancel, messages
 * of workers, time, and workers that come and go. attempt.h has the drawing.
 *
 * What always holds: an attempt that has not ended is in attempts.by_id and in attempts.live; it is
 * in attempts.waiting or attempts.queue exactly in WAITING; it is linked to a worker only in
 * SUBMITTED and RUNNING. `ended` is the last thing that touches an attempt. What a worker sends can
 * fail its own attempt, nothing else. */
#include "attempt_int.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/err.h"
#include "util/map.h"
#include "util/mem.h"

#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* attempts of a worker examined per tick; takes a few ms at most */
#define LEAVE_EACH_TICK 256u
/* searches for a worker that may fail in one pass over waiting attempts */
#define MISSES_MAX 64u
#define TURNS_MAX 256u /* attempts that one pass over the queue submits */

/* --- lost and moved tries ------------------------------------------------ */

/* The worker of the event has left. */
static enum verdict worker_down(struct attempt *a, const struct attempt_event *e)
{
	struct worker_record *w = e->worker;
	int needed = attempt_needs(a, w);
	attempt_leave(a, w);
	if (!needed)
		return GO_ON;
	switch (e->how) {
	case WORKER_LINK_RESTART: return attempt_cut(a, w, e->why);
	case WORKER_GOODBYE: return attempt_moved(a, w, e->why);
	case WORKER_LOST: break;
	}
	return attempt_lost(a, &(struct attempt_loss){PDS__FAULT__FAULT_PEER_LOST, 1, w->name, w->name,
	                                              e->why});
}

/* The worker of the event is stuck or was told to end, and another one can take the attempt. */
static enum verdict take_away(struct attempt *a, const struct attempt_event *e)
{
	const char *name = e->worker->name;
	char why[160];
	if (!e->stuck) {
		snprintf(why, sizeof why, "%s is told to end", name);
		return attempt_moved(a, e->worker, why);
	}
	snprintf(why, sizeof why, "%s makes no progress for longer than %llu ms (stuck_ms)", name,
	         (unsigned long long)a->all->registry->stuck_us / 1000);
	return attempt_lost(a, &(struct attempt_loss){PDS__FAULT__FAULT_STALLED, 1, name, name, why});
}

/* --- states -------------------------------------------------------------- */

static enum attempt_state step_unsent(struct attempt *a, const struct attempt_event *e)
{
	(void)a;
	switch (e->type) {
	case ON_TRIED: return e->placed == PLACED ? ATTEMPT_SUBMITTED : ATTEMPT_WAITING;
	case ON_DEADLINE:
	case ON_REFUSED:
	case ON_CANCEL: return ATTEMPT_ENDED;
	default: return ATTEMPT_NEW;
	}
}

static void leave_queue(struct attempt *a)
{
	struct attempts *e = a->all;
	if (!fair_waits(&a->turn))
		return;
	e->n_prefill_only -= (size_t)attempt_is_prefill_only(a);
	e->queued_tokens -= a->asked.prompt_tokens;
	fair_drop(&e->queue, &a->turn);
}

static void wait_for_turn(struct attempt *a)
{
	struct attempts *e = a->all;
	if (fair_waits(&a->turn))
		return;
	list_remove(&a->waiting);
	a->since_us = clock_us();
	fair_put(&e->queue, &a->asked.caller->turns, &a->turn, attempt_cost(a));
	e->n_prefill_only += (size_t)attempt_is_prefill_only(a);
	e->queued_tokens += a->asked.prompt_tokens;
}

static void wait_for_worker(struct attempt *a, uint64_t now)
{
	if (!list_empty(&a->waiting))
		return;
	leave_queue(a);
	a->until_us = now + a->all->opts.retry_wait_us;
	list_push_back(&a->all->waiting, &a->waiting);
}

static enum attempt_state step_waiting(struct attempt *a, const struct attempt_event *e)
{
	uint64_t now = clock_us();
	enum attempt_placed placed;
	switch (e->type) {
	case ON_ENTER:
		if (!a->past.was_there && now >= a->past.not_before_us) {
			wait_for_turn(a);
			return ATTEMPT_WAITING;
		}
		wait_for_worker(a, now);
		placed = now < a->past.not_before_us ? TOO_EARLY : attempt_submit(a);
		break;
	case ON_TRIED:
		placed = e->placed;
		now = e->now_us;
		break;
	case ON_DEADLINE:
	case ON_CANCEL: return ATTEMPT_ENDED;
	default: return ATTEMPT_WAITING;
	}
	switch (placed) {
	case PLACED: return ATTEMPT_SUBMITTED;
	case TOO_EARLY: return ATTEMPT_WAITING;
	case LATER: wait_for_turn(a); return ATTEMPT_WAITING;
	case TOO_LONG:
		if (a->asked.pooling) /* a worker that took others of this request may come back */
			break;
		attempt_give_up(a, 503, "the workers that are left take no sequence of this length");
		return ATTEMPT_ENDED;
	case LINK_FULL:
	case NO_WORKER: break;
	}
	wait_for_worker(a, now);
	if (now < a->until_us)
		return ATTEMPT_WAITING;
	attempt_give_up(a, 503, "no worker came back in time (retry_wait_ms)");
	return ATTEMPT_ENDED;
}

/* SUBMITTED and RUNNING. */
static enum attempt_state step_at_workers(struct attempt *a, const struct attempt_event *e)
{
	enum verdict v = GO_ON;
	switch (e->type) {
	case ON_FIRST_TOKEN: v = attempt_take_first(a, e); break;
	case ON_PROMPT: v = attempt_take_prompt(a, e); break;
	case ON_EMBEDDING: v = attempt_take_embedding(a, e); break;
	case ON_TOKENS: v = attempt_take_tokens(a, e); break;
	case ON_FAILED: v = attempt_take_failure(a, e); break;
	case ON_WORKER_DOWN: v = worker_down(a, e); break;
	case ON_LEAVE: v = take_away(a, e); break;
	case ON_DEADLINE:
	case ON_CANCEL: v = OVER; break;
	case ON_ENTER:
	case ON_TRIED:
	case ON_REFUSED: break;
	}
	switch (v) {
	case GO_ON: break;
	case DECODES: return ATTEMPT_RUNNING;
	case RETRY: return ATTEMPT_WAITING;
	case OVER: return ATTEMPT_ENDED;
	}
	return a->state;
}

#define TO(state) (1u << ATTEMPT_##state)

static const struct {
	unsigned next; /* the states that may follow */
	enum attempt_state (*step)(struct attempt *a, const struct attempt_event *e); /* NULL: ended */
} states[] = {
	[ATTEMPT_NEW] = {TO(WAITING) | TO(SUBMITTED) | TO(ENDED), step_unsent},
	[ATTEMPT_WAITING] = {TO(SUBMITTED) | TO(ENDED), step_waiting},
	[ATTEMPT_SUBMITTED] = {TO(RUNNING) | TO(WAITING) | TO(ENDED), step_at_workers},
	[ATTEMPT_RUNNING] = {TO(WAITING) | TO(ENDED), step_at_workers},
	[ATTEMPT_ENDED] = {0, NULL},
};

int attempt_ended(const struct attempt *a)
{
	return !states[a->state].step;
}

static void end_attempt(struct attempt *a)
{
	struct attempts *e = a->all;
	const struct attempt_times *t = &a->got.times;
	uint64_t now = clock_us(), first_us = a->got.first_us, begun_us = a->asked.begun_us;
	int is_error = a->end.finish == ANSWER_FINISH_ERROR,
		is_abort = a->end.finish == ANSWER_FINISH_ABORT, is_done = !is_error && !is_abort;
	attempt_close_try(a, is_done ? "the answer is complete" : a->end.why);
	list_remove(&a->by_deadline);
	map_remove(e->by_id, &a->id);
	e->counts.prompt_tokens += a->number ? a->asked.prompt_tokens : 0;
	e->counts.output_tokens += a->got.n_out;
	e->counts.cached_tokens += t->cached_tokens;
	e->counts.done += is_done;
	e->counts.failed += is_error;
	e->counts.cancelled += is_abort;
	if (is_done && !a->asked.pooling)
		registry_answered(e->registry, a->got.n_out);
	log_req(LOG_INFO, &a->id, "request_done",
	        "prompt_tokens=%u cached_tokens=%u output_tokens=%u queue_us=%llu prepare_us=%llu "
	        "reserve_us=%llu prefill_us=%llu transfer_us=%llu "
	        "first_token_us=%llu decode_us=%llu total_us=%llu prefill=%s decode=%s attempts=%u "
	        "finish=%s status=%d%s%s",
	        a->asked.prompt_tokens, t->cached_tokens, a->got.n_out, (unsigned long long)t->queue_us,
	        (unsigned long long)t->prepare_us, (unsigned long long)t->reserve_us,
	        (unsigned long long)t->prefill_us, (unsigned long long)t->transfer_us,
	        (unsigned long long)(first_us ? first_us - begun_us : 0),
	        (unsigned long long)(first_us ? now - first_us : 0),
	        (unsigned long long)(now - begun_us), *a->try.prefill_name ? a->try.prefill_name : "-",
	        *a->try.decode_name ? a->try.decode_name : "-", a->number,
	        answer_finish_name(a->end.finish), a->end.status, *a->end.why ? " why=" : "",
	        *a->end.why ? log_quote(a->end.why) : "");
}

/* Passes the event to the state, and enters states until one stays. The attempt may be freed
 * when it returns. */
static void attempt_step(struct attempt *a, const struct attempt_event *event)
{
	static const struct attempt_event enter = {.type = ON_ENTER};
	const struct attempt_event *e = event;
	for (;;) {
		enum attempt_state next = states[a->state].step(a, e), from = a->state;
		if (next == from)
			return;
		if (!(states[from].next & 1u << next))
			PANIC("attempt %s: illegal step %s -> %s", log_reqid(&a->id), attempt_state_name(from),
			      attempt_state_name(next));
		log_req(LOG_DEBUG, &a->id, "attempt_state", "from=%s to=%s attempt=%u",
		        attempt_state_name(from), attempt_state_name(next), a->number);
		a->state = next;
		list_remove(&a->waiting);
		leave_queue(a);
		if (!states[next].step)
			break;
		e = &enter;
	}
	end_attempt(a);
	if (event->type != ON_CANCEL && event->type != ON_REFUSED) /* else the owner knows */
		a->hooks->ended(a->owner, a);
}

/* --- life ---------------------------------------------------------------- */

void attempts_init(struct attempts *e, struct registry *g, const struct attempts_opts *opts)
{
	memset(e, 0, sizeof *e);
	e->opts = *opts;
	e->registry = g;
	e->by_id = map_new_random_keys(sizeof(struct reqid));
	list_init(&e->live);
	list_init(&e->waiting);
	fair_init(&e->queue);
}

void attempts_fini(struct attempts *e)
{
	map_destroy(&e->by_id);
}

size_t attempts_count(const struct attempts *e)
{
	return map_count(e->by_id);
}

struct attempt *attempts_find(const struct attempts *e, const struct reqid *id)
{
	return map_get(e->by_id, id);
}

void attempt_caller_init(struct attempt_caller *c, uint64_t id)
{
	fair_owner_init(&c->turns);
	c->id = id;
	c->seats = 0;
}

struct attempt *attempt_new(struct attempts *e, const struct attempt_spec *spec,
                            const struct attempt_hooks *hooks, void *owner)
{
	CHECK(spec->prompt_tokens > 0 && spec->max_tokens > 0 && spec->caller);
	struct attempt *a = mem_zalloc(sizeof *a);
	a->all = e;
	a->hooks = hooks;
	a->owner = owner;
	do {
		if (e->n_drawn == 0)
			randombytes_buf(e->drawn, sizeof e->drawn);
		e->n_drawn = (e->n_drawn ? e->n_drawn : ATTEMPTS_DRAWN) - 1;
		a->id = e->drawn[e->n_drawn];
	} while ((a->id.hi == 0 && a->id.lo == 0) || map_get(e->by_id, &a->id));
	a->asked = *spec;
	a->got.size = spec->max_tokens < 256 ? spec->max_tokens : 256;
	a->got.out = mem_array(a->got.size, sizeof *a->got.out);
	a->got.prompt_rows = 1;
	list_init(&a->waiting);
	fair_item_init(&a->turn);
	list_init(&a->try.held);
	/* sorted by deadline; nearly all requests have the same timeout, so the search starts at the
	 * end */
	struct list *at = e->live.prev;
	while (at != &e->live &&
	       list_entry(at, struct attempt, by_deadline)->asked.deadline_us > spec->deadline_us)
		at = at->prev;
	list_push_front(at, &a->by_deadline);
	map_put(e->by_id, &a->id, a);
	e->counts.started++;
	return a;
}

/* Submits without a place in the queue if the caller has no attempt there, and the queue is empty
 * or nothing in it could be submitted since a place became free last. */
int attempt_start(struct attempt *a)
{
	struct attempts *e = a->all;
	uint64_t id = a->asked.caller->id, now = clock_us();
	if (id != e->last.id) {
		e->last.id = id;
		e->last.other_us = e->last.us;
	}
	e->last.us = now;
	struct place_query query = attempt_query(a);
	query.now_us = now;
	int waits = a->asked.caller->turns.n || (e->room && e->queue.n);
	enum attempt_placed placed = LATER;
	if (!waits || !place_possible(e->registry, &query))
		placed = attempt_submit(a);
	if (placed == LINK_FULL)
		placed = attempt_submit(a); /* attempt_submit avoids that worker now */
	int returns = placed == NO_WORKER &&
	              place_may_return(e->registry, &query, e->opts.retry_wait_us);
	if (returns)
		log_req(LOG_INFO, &a->id, "waiting_for_worker", "why=\"none is ready, one restarts\"");
	else if (placed == NO_WORKER || placed == TOO_LONG)
		return placed == TOO_LONG ? ERR_FULL : ERR_NOTFOUND;
	attempt_step(a, &(struct attempt_event){.type = ON_TRIED, .placed = placed});
	return 0;
}

void attempt_wait(struct attempt *a)
{
	attempt_step(a, &(struct attempt_event){.type = ON_TRIED, .placed = NO_WORKER});
}

void attempt_cancel(struct attempt *a, const char *reason)
{
	if (attempt_ended(a))
		return;
	attempt_give_up(a, a->end.status ? a->end.status : 499, reason);
	a->end.finish = ANSWER_FINISH_ABORT;
	attempt_step(a, &(struct attempt_event){.type = ON_CANCEL});
}

void attempt_refuse(struct attempt *a, int status, const char *why)
{
	attempt_give_up(a, status, why);
	attempt_step(a, &(struct attempt_event){.type = ON_REFUSED});
}

void attempt_destroy(struct attempt **ap)
{
	struct attempt *a = *ap;
	if (!a)
		return;
	attempt_cancel(a, "not wanted any more");
	free(a->got.out);
	free(a);
	*ap = NULL;
}

/* --- messages of workers ------------------------------------------------- */

static int is_at_worker(const struct attempt *a)
{
	return a->state == ATTEMPT_SUBMITTED || a->state == ATTEMPT_RUNNING;
}

/* The attempt whose present try this is. NULL: there is none, and a worker that goes on with a try
 * that the router does not remember cancelling is told to cancel it. */
static struct attempt *find_running(struct attempts *e, struct worker_record *w,
                                    const struct reqid *id, uint32_t number)
{
	struct attempt *a = attempts_find(e, id);
	if (a && a->number == number && is_at_worker(a))
		return a;
	e->counts.stale++;
	if (!attempts_is_recent(e, id, number, w->epoch) && worker_is_up(w))
		attempts_send_cancel(e, w, id, number, "the router does not know this attempt");
	return NULL;
}

void attempts_first_token(struct attempts *e, struct worker_record *w, const struct msg_head *head,
                          const Pds__FirstToken *m)
{
	struct attempt *a = find_running(e, w, &head->req, head->attempt);
	if (a && a->try.prefill == w && m->token)
		attempt_step(a, &(struct attempt_event){.type = ON_FIRST_TOKEN, .worker = w, .first = m});
	else
		e->counts.stale += a != NULL;
	attempts_take_turns(e, clock_us());
}

void attempts_prompt(struct attempts *e, struct worker_record *w, const struct msg_head *head,
                     const Pds__PromptLogprobs *m)
{
	struct attempt *a = find_running(e, w, &head->req, head->attempt);
	if (a && a->try.prefill == w)
		attempt_step(a, &(struct attempt_event){.type = ON_PROMPT, .worker = w, .prompt = m});
	else
		e->counts.stale += a != NULL;
}

void attempts_embedding(struct attempts *e, struct worker_record *w, const struct msg_head *head,
                        const Pds__Embedding *m)
{
	struct attempt *a = find_running(e, w, &head->req, head->attempt);
	if (a && a->asked.pooling && a->try.prefill == w)
		attempt_step(a, &(struct attempt_event){.type = ON_EMBEDDING, .worker = w, .embedding = m});
	else
		e->counts.stale += a != NULL;
	attempts_take_turns(e, clock_us());
}

void attempts_tokens(struct attempts *e, struct worker_record *w, const Pds__Tokens *m)
{
	for (size_t i = 0; i < m->n_sequences; i++) {
		const Pds__SequenceTokens *s = m->sequences[i];
		struct reqid id = {s->request_hi, s->request_lo};
		struct attempt *a = find_running(e, w, &id, s->attempt);
		if (a)
			attempt_step(a, &(struct attempt_event){.type = ON_TOKENS, .worker = w, .tokens = s});
	}
	attempts_take_turns(e, clock_us());
}

void attempts_failed(struct attempts *e, struct worker_record *w, const struct msg_head *head,
                     const Pds__Failed *m)
{
	struct attempt *a = attempts_find(e, &head->req);
	if (a && a->number == head->attempt && is_at_worker(a))
		attempt_step(a, &(struct attempt_event){.type = ON_FAILED, .worker = w, .failed = m});
	else
		e->counts.stale++;
	attempts_take_turns(e, clock_us());
}

/* --- workers and time ---------------------------------------------------- */

/* A step may end an attempt, and its owner may destroy others, so loops that call attempt_step take
 * one entry at a time from the head of a list. */

/* Moves the first `most` entries of `from` to `to`. */
static void take_some(struct list *from, unsigned most, struct list *to)
{
	list_init(to);
	for (; most && !list_empty(from); most--) {
		struct list *n = from->next;
		list_remove(n);
		list_push_back(to, n);
	}
}

/* Attempts for which there is still no worker move to the end of the list. After MISSES_MAX of them
 * the next tick continues with the others. */
static void retry_waiting(struct attempts *e, uint64_t now)
{
	struct list again;
	unsigned misses = 0;
	take_some(&e->waiting, UINT_MAX, &again);
	while (!list_empty(&again) && misses < MISSES_MAX) {
		struct attempt *a = list_entry(again.next, struct attempt, waiting);
		list_remove(&a->waiting);
		list_push_back(&e->waiting, &a->waiting);
		if (now < a->past.not_before_us)
			continue;
		struct attempt_event tried = {ON_TRIED, .placed = attempt_submit(a), .now_us = now};
		misses += tried.placed != PLACED;
		attempt_step(a, &tried);
	}
	while (!list_empty(&again)) {
		struct list *last = again.prev;
		list_remove(last);
		list_push_front(&e->waiting, last);
	}
}

/* If workers have no room for an attempt that generates tokens, they may still have room for one
 * that needs no decode worker, but not vice versa. An attempt that only some workers may take is no
 * evidence about the room for others. */
void attempts_take_turns(struct attempts *e, uint64_t now)
{
	unsigned submitted = 0, misses = 0, later = 0;
	if (!e->room)
		return;
	e->room = 0;
	struct list *at = e->queue.owners.next;
	while (at != &e->queue.owners) {
		struct fair_item *first = fair_first(list_entry(at, struct fair_owner, node));
		struct attempt *a = list_entry(first, struct attempt, turn);
		int prefill_only = attempt_is_prefill_only(a);
		at = at->next;
		if (later && !prefill_only)
			continue;
		struct attempt_event tried = {ON_TRIED, .placed = attempt_submit(a), .now_us = now};
		submitted += tried.placed == PLACED;
		misses += tried.placed != PLACED;
		if (submitted == TURNS_MAX || misses == MISSES_MAX) {
			e->room = 1;
			at = &e->queue.owners;
		} else if (tried.placed == LATER) {
			struct place_query query = attempt_query(a);
			int all_busy = !place_is_restricted(e->registry, &query);
			later |= all_busy;
			if (all_busy && (prefill_only || !e->n_prefill_only))
				at = &e->queue.owners;
		} else {
			at = NULL; /* the order changes */
		}
		attempt_step(a, &tried);
		at = at ? at : e->queue.owners.next;
	}
}

void attempts_worker_up(struct attempts *e)
{
	uint64_t now = clock_us();
	retry_waiting(e, now);
	e->room = 1;
	attempts_take_turns(e, now);
}

void attempts_worker_down(struct attempts *e, struct worker_record *w, const char *why,
                          enum worker_end how)
{
	char text[256];
	snprintf(text, sizeof text, "worker %s is gone: %s", w->name, why);
	struct attempt_event down = {.type = ON_WORKER_DOWN, .worker = w, .how = how, .why = text};
	while (!list_empty(&w->prefills))
		attempt_step(list_entry(w->prefills.next, struct attempt, try.at_prefill), &down);
	while (!list_empty(&w->decodes))
		attempt_step(list_entry(w->decodes.next, struct attempt, try.at_decode), &down);
	attempts_take_turns(e, clock_us());
}

/* Takes attempts away from w if another worker, neither stuck nor broken, can take them. A worker
 * that still runs an attempt loses it only to one that has room. A prefill worker that was told to
 * end finishes its attempts or gives them back by itself. Attempts that were examined move to the
 * end of the list, so that the next tick continues with the others. */
static void leave_worker(const struct attempts *e, struct worker_record *w, enum place_stage stage,
                         int stuck, uint64_t now)
{
	struct list some, *here = stage == PLACE_PREFILL ? &w->prefills : &w->decodes;
	struct attempt_event leave_w = {.type = ON_LEAVE, .worker = w, .stuck = stuck};
	take_some(here, LEAVE_EACH_TICK, &some);
	while (!list_empty(&some)) {
		struct list *n = some.next;
		struct attempt *a = stage == PLACE_PREFILL ? list_entry(n, struct attempt, try.at_prefill)
		                                           : list_entry(n, struct attempt, try.at_decode);
		list_remove(n);
		list_push_back(here, n);
		int finishes = w != attempt_decoder(a) || w->role == ROLE_PREFILL;
		if (!attempt_needs(a, w) || (!stuck && finishes))
			continue;
		struct place_query query = attempt_query(a);
		query.leaves = w;
		query.now_us = now;
		query.wants_room = !stuck;
		if (place_possible(e->registry, &query))
			attempt_step(a, &leave_w);
	}
}

void attempts_tick(struct attempts *e, uint64_t now_us)
{
	while (!list_empty(&e->live)) {
		struct attempt *a = list_entry(e->live.next, struct attempt, by_deadline);
		if (a->asked.deadline_us > now_us)
			break;
		attempt_give_up(a, 504, "the request's time is up (request_timeout_ms)");
		attempt_step(a, &(struct attempt_event){.type = ON_DEADLINE});
	}
	list_each(n, &e->registry->workers) {
		struct worker_record *w = list_entry(n, struct worker_record, node);
		int stuck = worker_is_stuck(e->registry, w, now_us);
		if (!worker_is_up(w) || (!stuck && !w->beat.ending))
			continue;
		leave_worker(e, w, PLACE_PREFILL, stuck, now_us);
		leave_worker(e, w, PLACE_DECODE, stuck, now_us);
	}
	retry_waiting(e, now_us);
	e->room = 1; /* a heartbeat may have reported free places */
	attempts_take_turns(e, now_us);
}

void attempts_json(const struct attempts *e, const char *key, uint64_t now_us, struct buf *out)
{
	unsigned n_shown = 0;
	buf_addc(out, '[');
	list_each(n, &e->live) {
		const struct attempt *a = list_entry(n, struct attempt, by_deadline);
		const struct attempt_spec *s = &a->asked;
		const struct worker_record *p = a->try.prefill, *d = attempt_decoder(a);
		uint64_t left_us = s->deadline_us > now_us ? s->deadline_us - now_us : 0;
		if (key && (!s->key || strcmp(key, s->key) != 0))
			continue;
		buf_printf(out,
		           "%s{\"id\":\"%s\",\"key\":\"%s\",\"client\":\"%s\",\"state\":\"%s\",\"age_ms\":%"
		           "llu,\"left_ms\":%llu,\"attempt\":"
		           "%u,\"prompt_tokens\":%u,\"output_tokens\":%u,"
		           "\"max_tokens\":%u,\"prefill\":\"%s\",\"decode\":\"%s\"}",
		           n_shown++ ? "," : "", log_reqid(&a->id), s->key ? s->key : "-",
		           s->client ? s->client : "-", attempt_state_name(a->state),
		           (unsigned long long)((now_us - s->begun_us) / 1000),
		           (unsigned long long)(left_us / 1000), a->number, s->prompt_tokens, a->got.n_out,
		           s->max_tokens, p ? p->name : "", d ? attempt_decode_name(d) : "");
	}
	buf_addc(out, ']');
}
