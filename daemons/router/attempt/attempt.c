/* attempt.c - see attempt.h: the state machine of an answer, attempts, cancels.
 *
 * What always holds: a live answer is in attempts.by_id and in attempts.live; it is in
 * attempts.waiting exactly while WAITING; it is linked to a worker only while that worker is up and
 * its present attempt is there. `ended` is the last thing that touches an answer. What a worker
 * sends can fail its own attempt, nothing else. messages.c has the messages, summary.c the
 * summary. */
#include "attempt.h"
#include "attempt_int.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/err.h"
#include "util/map.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const state_names[] = {
	[ATTEMPT_NEW] = "new",
	[ATTEMPT_WAITING] = "waiting",
	[ATTEMPT_SUBMITTED] = "submitted",
	[ATTEMPT_HANDED] = "handed",
	[ATTEMPT_DECODING] = "decoding",
	[ATTEMPT_DONE] = "done",
	[ATTEMPT_FAILED] = "failed",
	[ATTEMPT_CANCELLED] = "cancelled",
};

/* pause after a link restart: by then all links that restart have done so */
#define LINK_RESTART_US 100000u
/* pause before an attempt is placed again that the same worker gave back twice in a row */
#define MOVED_AGAIN_US 50000u
/* attempts of a worker examined per tick; takes a few ms at most */
#define LEAVE_EACH_TICK 256u
#define ENDS (1u << ATTEMPT_DONE | 1u << ATTEMPT_FAILED | 1u << ATTEMPT_CANCELLED)

/* from -> the states that may follow */
static const unsigned legal[] = {
	[ATTEMPT_NEW] = 1u << ATTEMPT_SUBMITTED | 1u << ATTEMPT_WAITING | ENDS,
	[ATTEMPT_WAITING] = 1u << ATTEMPT_SUBMITTED | ENDS,
	[ATTEMPT_SUBMITTED] = 1u << ATTEMPT_HANDED | 1u << ATTEMPT_DECODING | 1u << ATTEMPT_WAITING |
                          ENDS,
	[ATTEMPT_HANDED] = 1u << ATTEMPT_DECODING | 1u << ATTEMPT_WAITING | ENDS,
	[ATTEMPT_DECODING] = 1u << ATTEMPT_WAITING | ENDS,
	[ATTEMPT_DONE] = 0,
	[ATTEMPT_FAILED] = 0,
	[ATTEMPT_CANCELLED] = 0,
};

const char *attempt_state_name(enum attempt_state state)
{
	return state_names[state];
}

const char *answer_finish_name(enum answer_finish finish)
{
	static const char *const names[] = {"none", "stop", "length", "abort"};
	return names[finish];
}

int attempt_ended(const struct attempt *a)
{
	return 1u << a->state & ENDS ? 1 : 0;
}

void attempt_enter(struct attempt *a, enum attempt_state to)
{
	if (!(legal[a->state] & 1u << to))
		PANIC("attempt %s: illegal step %s -> %s", log_reqid(&a->id), state_names[a->state],
		      state_names[to]);
	log_req(LOG_DEBUG, &a->id, "attempt_state", "from=%s to=%s attempt=%u", state_names[a->state],
	        state_names[to], a->number);
	a->state = to;
}

void attempts_init(struct attempts *e, struct registry *g, const struct attempts_opts *opts)
{
	memset(e, 0, sizeof *e);
	e->opts = *opts;
	e->registry = g;
	e->by_id = map_new(sizeof(struct reqid));
	list_init(&e->live);
	list_init(&e->waiting);
	list_init(&e->late);
	e->late_by_id = map_new(sizeof(struct reqid));
	list_init(&e->ending);
}

void attempts_fini(struct attempts *e)
{
	attempts_late_tick(e, UINT64_MAX);
	map_destroy(&e->late_by_id);
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

/* Earliest deadline first. Nearly all have the same allowance, so the place is found from the
 * end. */
static void insert_live(struct attempts *e, struct attempt *a)
{
	struct list *at = e->live.prev;
	while (at != &e->live &&
	       list_entry(at, struct attempt, by_deadline)->deadline_us > a->deadline_us)
		at = at->prev;
	list_push_front(at, &a->by_deadline);
}

struct attempt *attempt_new(struct attempts *e, const struct attempt_spec *spec,
                            const struct attempt_hooks *hooks, void *owner)
{
	CHECK(spec->prompt_tokens > 0 && spec->max_tokens > 0);
	struct attempt *a = mem_zalloc(sizeof *a);
	a->all = e;
	a->hooks = hooks;
	a->owner = owner;
	do
		randombytes_buf(&a->id, sizeof a->id);
	while ((a->id.hi == 0 && a->id.lo == 0) || map_get(e->by_id, &a->id));
	a->size = spec->max_tokens < 256 ? spec->max_tokens : 256;
	a->out = mem_array(a->size, sizeof *a->out);
	a->prompt = spec->tokens;
	a->prompt_tokens = spec->prompt_tokens;
	a->max_tokens = spec->max_tokens;
	a->sampling = spec->sampling;
	a->want_prompt = spec->sampling.prompt_logprobs && spec->prompt_tokens > 1;
	a->got_prompt = 1;
	a->ignore_eos = spec->ignore_eos;
	a->constraint = spec->constraint;
	a->prefixes = spec->prefixes;
	a->pin = spec->pin;
	a->session = spec->session;
	a->beside = spec->beside;
	a->n_stop_ids = spec->n_stop_ids;
	if (spec->n_stop_ids) {
		a->stop_ids = mem_array(spec->n_stop_ids, sizeof *a->stop_ids);
		memcpy(a->stop_ids, spec->stop_ids, spec->n_stop_ids * sizeof *a->stop_ids);
	}
	a->begun_us = spec->begun_us;
	a->deadline_us = spec->deadline_us;
	list_init(&a->waiting);
	list_init(&a->at_prefill);
	list_init(&a->at_decode);
	list_init(&a->held);
	list_init(&a->ending);
	insert_live(e, a);
	map_put(e->by_id, &a->id, a);
	e->counts.started++;
	return a;
}

/* --- where the present attempt is ---------------------------------------- */

static void unlink_worker(struct worker_record *w, struct list *node, uint64_t *charged)
{
	list_remove(node);
	w->requests--;
	w->tokens_in_flight -= *charged;
	*charged = 0;
}

static void backlog_done(struct attempt *a)
{
	a->prefill->backlog_tokens -= a->backlog;
	a->backlog = 0;
}

void attempt_leave_prefill(struct attempt *a)
{
	if (a->prefill)
		backlog_done(a);
	if (a->prefill)
		unlink_worker(a->prefill, &a->at_prefill, &a->charged_prefill);
	a->prefill = NULL;
}

void attempt_leave_decode(struct attempt *a)
{
	if (a->decode)
		unlink_worker(a->decode, &a->at_decode, &a->charged_decode);
	a->decode = NULL;
}

static void join_prefill(struct attempt *a, struct worker_record *w, uint64_t tokens)
{
	a->prefill = w;
	a->charged_prefill = tokens;
	list_push_back(&w->prefills, &a->at_prefill);
	w->requests++;
	w->tokens_in_flight += tokens;
	w->backlog_tokens += tokens;
	a->backlog = tokens;
	snprintf(a->prefill_name, sizeof a->prefill_name, "%s", w->name);
}

void attempt_join_decode(struct attempt *a, struct worker_record *w)
{
	if (a->decode == w)
		return;
	attempt_leave_decode(a);
	a->decode = w;
	a->charged_decode = (uint64_t)a->prompt_tokens + a->n_out;
	list_push_back(&w->decodes, &a->at_decode);
	w->requests++;
	w->tokens_in_flight += a->charged_decode;
}

void attempt_prefill_done(struct attempt *a)
{
	if (!a->prefill || !a->backlog)
		return;
	backlog_done(a);
	a->prefill->tokens_in_flight -= a->charged_prefill;
	a->charged_prefill = a->alone ? (uint64_t)a->prompt_tokens + a->n_out : 0;
	a->prefill->tokens_in_flight += a->charged_prefill;
}

void attempt_weigh(struct attempt *a, uint64_t tokens)
{
	struct worker_record *w = a->alone ? a->prefill : a->decode;
	uint64_t *charged = a->alone ? &a->charged_prefill : &a->charged_decode;
	if (!w)
		return;
	w->tokens_in_flight += tokens;
	*charged += tokens;
}

static unsigned recent_slot(const struct reqid *id, uint32_t attempt, uint64_t epoch)
{
	return (unsigned)(id->lo + attempt + epoch) % ATTEMPTS_RECENT;
}

static void remember(struct attempt *a, uint64_t epoch)
{
	struct attempts *e = a->all;
	unsigned i = recent_slot(&a->id, a->number, epoch);
	e->recent[i].id = a->id;
	e->recent[i].attempt = a->number;
	e->recent[i].epoch = epoch;
}

int attempts_is_recent(const struct attempts *e, const struct reqid *id, uint32_t attempt,
                       uint64_t epoch)
{
	unsigned i = recent_slot(id, attempt, epoch);
	return e->recent[i].id.hi == id->hi && e->recent[i].id.lo == id->lo &&
	       e->recent[i].attempt == attempt && e->recent[i].epoch == epoch;
}

int attempts_send_cancel(struct attempts *e, struct worker_record *w, const struct reqid *id,
                         uint32_t attempt, const char *reason)
{
	struct msg_head head = {.req = *id, .attempt = attempt};
	Pds__Cancel body = PDS__CANCEL__INIT;
	body.reason = (char *)reason;
	return e->opts.send(e->opts.arg, w, MSG_REQUEST_CANCEL, &head, &body);
}

/* Another life than `epoch` had nothing to do with it. One that is down cannot be told now:
 * should it live after all, its next message is answered. */
static void cancel_at(struct attempt *a, struct worker_record *w, uint64_t epoch,
                      const char *reason)
{
	if (!w || !worker_is_up(w) || w->epoch != epoch)
		return;
	if (attempts_send_cancel(a->all, w, &a->id, a->number, reason) == 0)
		remember(a, epoch);
}

static void drop_held(struct attempt *a)
{
	list_remove(&a->ending);
	a->n_held = 0;
	list_each_safe(n, next, &a->held) {
		list_remove(n);
		free(list_entry(n, struct held_tokens, node));
	}
}

/* The present attempt is given up: cancelled at its prefill worker and at every candidate that
 * lives, and forgotten. */
static void abandon(struct attempt *a, const char *reason)
{
	if (a->number && (a->state == ATTEMPT_SUBMITTED || a->state == ATTEMPT_HANDED ||
	                  a->state == ATTEMPT_DECODING)) {
		if (a->prefill)
			cancel_at(a, a->prefill, a->prefill->epoch, reason);
		for (unsigned i = 0; i < a->n_cand; i++)
			cancel_at(a, registry_find(a->all->registry, a->cand[i].name), a->cand[i].epoch,
			          reason);
	}
	attempt_leave_prefill(a);
	attempt_leave_decode(a);
	drop_held(a);
	a->n_cand = 0;
	a->named = 0;
}

/* --- the end ------------------------------------------------------------- */

static void take_out(struct attempt *a)
{
	struct attempts *e = a->all;
	list_remove(&a->waiting);
	list_remove(&a->by_deadline);
	map_remove(e->by_id, &a->id);
	e->counts.prompt_tokens += a->number ? a->prompt_tokens : 0;
	e->counts.output_tokens += a->n_out;
	e->counts.cached_tokens += a->times.cached_tokens;
	e->counts.done += a->state == ATTEMPT_DONE;
	e->counts.failed += a->state == ATTEMPT_FAILED;
	e->counts.cancelled += a->state == ATTEMPT_CANCELLED;
	if (a->state == ATTEMPT_DONE)
		registry_answered(e->registry, a->n_out);
	attempts_summary(a);
}

void attempt_done(struct attempt *a, enum answer_finish finish, int worker_knows)
{
	if (worker_knows) {
		if (a->prefill)
			remember(a, a->prefill->epoch);
		for (unsigned i = 0; i < a->n_cand; i++)
			remember(a, a->cand[i].epoch);
		attempt_leave_prefill(a);
		attempt_leave_decode(a);
		drop_held(a);
	} else {
		abandon(a, "the answer is complete");
	}
	a->finish = finish;
	a->status = 200;
	attempt_enter(a, ATTEMPT_DONE);
	take_out(a);
	a->hooks->ended(a->owner, a);
}

void attempt_fail(struct attempt *a, int status, const char *why)
{
	abandon(a, why);
	a->status = status;
	snprintf(a->why, sizeof a->why, "%s", why);
	attempt_enter(a, ATTEMPT_FAILED);
	take_out(a);
	a->hooks->ended(a->owner, a);
}

void attempt_cancel(struct attempt *a, const char *reason)
{
	if (attempt_ended(a))
		return;
	abandon(a, reason);
	a->status = a->status ? a->status : 499;
	a->finish = ANSWER_FINISH_ABORT;
	snprintf(a->why, sizeof a->why, "%s", reason);
	attempt_enter(a, ATTEMPT_CANCELLED);
	take_out(a);
}

void attempt_destroy(struct attempt **ap)
{
	struct attempt *a = *ap;
	if (!a)
		return;
	attempt_cancel(a, "not wanted any more");
	free(a->out);
	free(a->stop_ids);
	free(a);
	*ap = NULL;
}

/* --- attempts ------------------------------------------------------------ */

/* Prompt and answer so far, as one array: *ret_own is to be freed. NULL: no memory. */
static uint32_t *all_tokens(const struct attempt *a, uint32_t **ret_own)
{
	*ret_own = NULL;
	if (!a->n_out)
		return (uint32_t *)a->prompt;
	uint32_t *all = mem_try_alloc(((size_t)a->prompt_tokens + a->n_out) * sizeof *all);
	if (all) {
		memcpy(all, a->prompt, a->prompt_tokens * sizeof *all);
		memcpy(all + a->prompt_tokens, a->out, a->n_out * sizeof *all);
	}
	return *ret_own = all;
}

static int send_submit(struct attempt *a, const struct placement *p)
{
	uint32_t *own;
	Pds__Candidate cands[PLACE_CANDIDATES_MAX], *list[PLACE_CANDIDATES_MAX];
	Pds__Request req = PDS__REQUEST__INIT;
	Pds__Submit body = PDS__SUBMIT__INIT;
	Pds__Sampling sampling = a->sampling;
	sampling.prompt_logprobs = a->want_prompt;
	for (unsigned i = 0; i < p->n_decode; i++) {
		pds__candidate__init(&cands[i]);
		cands[i].name = p->decode[i]->name;
		cands[i].endpoint = p->decode[i]->endpoint;
		cands[i].epoch = p->decode[i]->epoch;
		list[i] = &cands[i];
	}
	req.tokens = all_tokens(a, &own);
	req.n_tokens = (size_t)a->prompt_tokens + a->n_out;
	req.prompt_tokens = a->prompt_tokens;
	req.max_tokens = a->max_tokens;
	req.sampling = &sampling;
	req.stop_ids = a->stop_ids;
	req.n_stop_ids = a->n_stop_ids;
	req.ignore_eos = a->ignore_eos;
	req.constraint = (Pds__Constraint *)a->constraint;
	body.request = &req;
	body.candidates = list;
	body.n_candidates = p->n_decode;
	struct msg_head head = {.req = a->id, .attempt = a->number, .deadline_us = a->deadline_us};
	int r = req.tokens
	            ? a->all->opts.send(a->all->opts.arg, p->first, MSG_REQUEST_SUBMIT, &head, &body)
	            : ERR_NOMEM;
	free(own);
	return r;
}

static struct place_wish wish_of(const struct attempt *a)
{
	return (struct place_wish){.tokens = a->prompt_tokens + a->n_out,
	                           .total_tokens = a->prompt_tokens + a->max_tokens,
	                           .numerics = *a->numerics ? a->numerics : NULL,
	                           .avoid = *a->avoid ? a->avoid : NULL,
	                           .prefixes = a->prefixes,
	                           .beside = a->beside && a->beside->prefill ? a->beside->prefill->name
	                                                                     : NULL,
	                           .pin = a->pin,
	                           .session = a->session,
	                           .id = &a->id};
}

/* One more attempt on workers that are there now. 0, ERR_NOTFOUND, ERR_FULL (too long for all),
 * ERR_CLOSED (the worker's link took nothing). */
static int submit(struct attempt *a)
{
	struct placement p;
	struct place_wish wish = wish_of(a);
	uint64_t now = clock_us();
	if (a->got_prompt == a->prompt_tokens)
		a->want_prompt = 0; /* an earlier attempt has told them all */
	int r = place_choose(a->all->registry, &wish, now, &p);
	if (r < 0)
		return r;
	a->number++;
	if (send_submit(a, &p) < 0) {
		snprintf(a->avoid, sizeof a->avoid, "%s", p.first->name);
		registry_outcome(a->all->registry, p.first, 0, now);
		a->number--;
		return ERR_CLOSED;
	}
	a->submitted_us = now;
	a->began_out = a->n_out;
	a->began_ups = a->all->registry->ups;
	a->retry_after_us = 0;
	a->alone = p.n_decode == 0;
	a->named = 0;
	a->prefill_told = 0;
	a->decode_name[0] = 0;
	if (!*a->numerics)
		snprintf(a->numerics, sizeof a->numerics, "%s", p.first->numerics);
	join_prefill(a, p.first, p.work_tokens);
	a->predicted = (struct attempt_prediction){p.predicted, p.hit_tokens, p.stored_tokens};
	a->n_cand = p.n_decode;
	for (unsigned i = 0; i < p.n_decode; i++) {
		a->cand[i] = (struct attempt_place){.epoch = p.decode[i]->epoch};
		snprintf(a->cand[i].name, sizeof a->cand[i].name, "%s", p.decode[i]->name);
	}
	if (p.n_decode)
		attempt_join_decode(a, p.decode[0]);
	list_remove(&a->waiting);
	attempt_enter(a, ATTEMPT_SUBMITTED);
	log_req(
		LOG_INFO, &a->id, "submitted",
		"attempt=%u tokens=%u output_tokens=%u prefill=%s decode=%s candidates=%u hit_tokens=%u",
		a->number, a->prompt_tokens + a->n_out, a->n_out, p.first->name,
		p.n_decode ? p.decode[0]->name : p.first->name, p.n_decode, p.hit_tokens);
	return 0;
}

static void wait_for_worker(struct attempt *a, uint64_t pause_us)
{
	uint64_t now = clock_us();
	if (a->state != ATTEMPT_WAITING) {
		attempt_enter(a, ATTEMPT_WAITING);
		a->wait_until_us = now + a->all->opts.retry_wait_us;
	}
	a->not_before_us = now + pause_us;
	list_remove(&a->waiting);
	list_push_back(&a->all->waiting, &a->waiting);
}

int attempt_start(struct attempt *a)
{
	int r = submit(a);
	if (r == ERR_CLOSED)
		r = submit(a); /* another one than that, if there is another */
	if (r == ERR_CLOSED) {
		wait_for_worker(a, 20000);
		r = 0;
	}
	return r;
}

static int status_of(Pds__Fault fault)
{
	switch (fault) {
	case PDS__FAULT__FAULT_INVALID:
	case PDS__FAULT__FAULT_TOO_LARGE: return 400;
	case PDS__FAULT__FAULT_OVERLOADED: return 429;
	case PDS__FAULT__FAULT_DRAINING:
	case PDS__FAULT__FAULT_NO_ROOM:
	case PDS__FAULT__FAULT_PEER_LOST: return 503;
	case PDS__FAULT__FAULT_DEADLINE: return 504;
	default: return 500;
	}
}

/* Would another attempt at once meet the same fault? A full worker's, until it has room, and
 * what took the attempt after a lost one too. */
static uint64_t pause_of(const struct attempt *a, Pds__Fault fault)
{
	int busy = fault == PDS__FAULT__FAULT_OVERLOADED || fault == PDS__FAULT__FAULT_NO_ROOM ||
	           fault == PDS__FAULT__FAULT_DRAINING;
	uint64_t pause = busy || a->lost > 1 ? 50000u << (a->lost < 4 ? a->lost : 4) : 0,
			 room = a->retry_after_us;
	if (room > a->all->opts.retry_wait_us)
		room = a->all->opts.retry_wait_us;
	return pause > room ? pause : room;
}

/* An answer in WAITING: an attempt if the time has come and somebody is there, the end if the
 * wait was too long. */
static void try_again(struct attempt *a, uint64_t now)
{
	int r = now < a->not_before_us ? ERR_NOTFOUND : submit(a);
	if (r == 0)
		return;
	if (r == ERR_FULL)
		attempt_fail(a, 503, "the workers that are left take no sequence of this length");
	else if (now >= a->wait_until_us && now >= a->not_before_us)
		attempt_fail(a, 503, "no worker came back in time for another attempt (retry_wait_ms)");
	else
		wait_for_worker(a, r == ERR_CLOSED          ? 20000
		                   : a->not_before_us > now ? a->not_before_us - now
		                                            : 0);
}

/* An answer that workers bring forward may lose one after the other, as when all are restarted
 * in turn; one that crashes them must not reach all of them. */
static int is_enough(const struct attempt *a)
{
	uint32_t most = a->all->opts.max_attempts;
	return a->lost >= most || a->number - a->moved >= (uint64_t)most * ATTEMPTS_TIMES;
}

static void fail_lost(struct attempt *a, int status, const char *why)
{
	char text[sizeof a->why];
	snprintf(text, sizeof text, "%s (attempt %u, %u lost in a row: max_attempts)", why, a->number,
	         a->lost);
	attempt_fail(a, status, text);
}

/* The present attempt is over: another one, at once or after a pause; or the end. */
static void go_on(struct attempt *a, int status, const char *why, uint64_t pause_us)
{
	if (is_enough(a)) {
		fail_lost(a, status, why);
		return;
	}
	abandon(a, why);
	if (a->n_out >= a->max_tokens) {
		attempt_enter(a, ATTEMPT_WAITING);
		attempt_done(a, ANSWER_FINISH_LENGTH, 0);
		return;
	}
	a->all->counts.retries++;
	wait_for_worker(a, pause_us);
	try_again(a, clock_us());
}

const struct worker_record *attempt_link_restarted(const struct attempt *a)
{
	for (unsigned i = 0; i < a->n_cand; i++) {
		const struct attempt_place *c = &a->cand[i];
		const struct worker_record *w = !a->named || strcmp(c->name, a->decode_name) == 0
		                                    ? registry_find(a->all->registry, c->name)
		                                    : NULL;
		if (w && worker_is_up(w) && w->epoch == c->epoch && w->up_no > a->began_ups)
			return w;
	}
	return NULL;
}

/* The link took it, through no fault of the answer or the worker. That one is up again in a
 * moment, and so are others if it was us who were away. */
void attempt_cut(struct attempt *a, const struct worker_record *w, const char *why)
{
	if (a->n_out > a->began_out + 1)
		a->lost = 0;
	log_req(LOG_WARN, &a->id, "attempt_cut",
	        "attempt=%u lost=%u state=%s worker=%s output_tokens=%u", a->number, a->lost,
	        state_names[a->state], w->name, a->n_out);
	a->avoid[0] = 0;
	go_on(a, 503, why, LINK_RESTART_US);
}

void attempt_lost(struct attempt *a, const struct attempt_loss *l)
{
	const struct worker_record *restarted = l->retry ? attempt_link_restarted(a) : NULL;
	if (restarted) {
		attempt_cut(a, restarted, l->why);
		return;
	}
	struct worker_record *blamed = l->blame ? registry_find(a->all->registry, l->blame) : NULL;
	if (blamed)
		registry_outcome(a->all->registry, blamed, 0, clock_us());
	a->lost = a->n_out > a->began_out + 1 ? 1 : a->lost + 1;
	log_req(LOG_WARN, &a->id, "attempt_lost",
	        "attempt=%u lost=%u state=%s worker=%s blame=%s fault=%d retry=%d output_tokens=%u "
	        "why=%s",
	        a->number, a->lost, state_names[a->state], l->who, blamed ? blamed->name : "-",
	        (int)l->fault, l->retry, a->n_out, log_quote(l->why));
	snprintf(a->avoid, sizeof a->avoid, "%s", blamed ? blamed->name : l->who);
	/* past the deadline: its client may come again, with more time */
	if (!l->retry || (a->retry_after_us && clock_us() + a->retry_after_us >= a->deadline_us)) {
		attempt_fail(a, status_of(l->fault), l->why);
		return;
	}
	go_on(a, status_of(l->fault), l->why, pause_of(a, l->fault));
}

/* Placed again at once; after a pause if the same worker gave the attempt before back too. */
void attempt_moved(struct attempt *a, const struct worker_record *w, const char *why)
{
	int again = strcmp(a->avoid, w->name) == 0;
	if (a->moved >= ATTEMPT_MOVES_MAX) {
		attempt_lost(a, &(struct attempt_loss){PDS__FAULT__FAULT_DRAINING, 1, w->name, NULL, why});
		return;
	}
	a->moved++;
	if (a->n_out > a->began_out + 1)
		a->lost = 0;
	log_req(LOG_INFO, &a->id, "attempt_moved",
	        "attempt=%u state=%s worker=%s output_tokens=%u why=%s", a->number,
	        state_names[a->state], w->name, a->n_out, log_quote(why));
	snprintf(a->avoid, sizeof a->avoid, "%s", w->name);
	go_on(a, 503, why, again ? MOVED_AGAIN_US : 0);
}

/* --- what happens to workers, and time ----------------------------------- */

/* Each answer may end here, and its owner may destroy others: the list is taken from its head. */
static void retry_waiting(struct attempts *e, uint64_t now)
{
	struct list again;
	list_init(&again);
	while (!list_empty(&e->waiting)) {
		struct list *n = e->waiting.next;
		list_remove(n);
		list_push_back(&again, n);
	}
	while (!list_empty(&again)) {
		struct attempt *a = list_entry(again.next, struct attempt, waiting);
		list_remove(&a->waiting);
		try_again(a, now);
	}
}

void attempts_worker_up(struct attempts *e)
{
	retry_waiting(e, clock_us());
}

static void worker_lost(struct attempt *a, const struct worker_record *w, const char *why,
                        enum worker_end how)
{
	if (how == WORKER_LINK_RESTART)
		attempt_cut(a, w, why);
	else if (how == WORKER_GOODBYE)
		attempt_moved(a, w, why);
	else
		attempt_lost(a,
		             &(struct attempt_loss){PDS__FAULT__FAULT_PEER_LOST, 1, w->name, w->name, why});
}

void attempts_worker_down(struct attempts *e, struct worker_record *w, const char *why,
                          enum worker_end how)
{
	char text[256];
	(void)e;
	snprintf(text, sizeof text, "worker %s is gone: %s", w->name, why);
	while (!list_empty(&w->prefills)) {
		struct attempt *a = list_entry(w->prefills.next, struct attempt, at_prefill);
		attempt_leave_prefill(a);
		if (a->alone || a->state != ATTEMPT_DECODING || a->want_prompt)
			worker_lost(a, w, text, how);
		else if (!list_empty(&a->ending))
			attempt_release_held(a, a->decode);
	}
	while (!list_empty(&w->decodes)) {
		struct attempt *a = list_entry(w->decodes.next, struct attempt, at_decode);
		attempt_leave_decode(a);
		if (!list_empty(&a->ending) && attempt_release_held(a, w))
			continue;
		if (a->named)
			worker_lost(a, w, text, how);
	}
}

/* Could a worker that is neither stuck nor broken take it? From one that still runs it goes only to
 * one that has room. */
static int can_leave(const struct attempt *a, const struct worker_record *w, int stuck,
                     uint64_t now)
{
	struct place_wish wish = wish_of(a);
	wish.leaves = w;
	wish.now_us = now;
	wish.wants_room = !stuck;
	return list_empty(&a->ending) && place_possible(a->all->registry, &wish);
}

static void leave(struct attempt *a, const struct worker_record *w, int stuck)
{
	char why[160];
	if (!stuck) {
		snprintf(why, sizeof why, "%s is told to end", w->name);
		attempt_moved(a, w, why);
		return;
	}
	snprintf(why, sizeof why, "%s makes no progress for longer than %llu ms (stuck_ms)", w->name,
	         (unsigned long long)a->all->registry->stuck_us / 1000);
	attempt_lost(a, &(struct attempt_loss){PDS__FAULT__FAULT_STALLED, 1, w->name, w->name, why});
}

/* Does the present attempt need w? A prefill worker that is told to end finishes it or gives it
 * back by itself. */
static int needs(const struct attempt *a, const struct worker_record *w, int stuck)
{
	if (a->prefill == w &&
	    (a->alone || (stuck && (a->state != ATTEMPT_DECODING || a->want_prompt))))
		return 1;
	return a->decode == w && a->named;
}

/* Each answer may end here, and its owner may destroy others: a list is taken from its head.
 * Those that were looked at go to the back; the next tick goes on with the rest. */
static void leave_worker(struct worker_record *w, enum place_stage stage, int stuck, uint64_t now)
{
	struct list some, *attempts = stage == PLACE_PREFILL ? &w->prefills : &w->decodes;
	list_init(&some);
	for (unsigned i = 0; i < LEAVE_EACH_TICK && !list_empty(attempts); i++) {
		struct list *n = attempts->next;
		list_remove(n);
		list_push_back(&some, n);
	}
	while (!list_empty(&some)) {
		struct list *n = some.next;
		struct attempt *a = stage == PLACE_PREFILL ? list_entry(n, struct attempt, at_prefill)
		                                           : list_entry(n, struct attempt, at_decode);
		list_remove(n);
		list_push_back(attempts, n);
		if (needs(a, w, stuck) && can_leave(a, w, stuck, now))
			leave(a, w, stuck);
	}
}

/* Attempts leave workers that are stuck or told to end, if somebody else can take them. */
static void leave_workers(struct attempts *e, uint64_t now)
{
	list_each(n, &e->registry->workers) {
		struct worker_record *w = list_entry(n, struct worker_record, node);
		int stuck = worker_is_stuck(e->registry, w, now);
		if (!worker_is_up(w) || (!stuck && !w->beat.ending))
			continue;
		leave_worker(w, PLACE_PREFILL, stuck, now);
		leave_worker(w, PLACE_DECODE, stuck, now);
	}
}

void attempts_tick(struct attempts *e, uint64_t now_us)
{
	while (!list_empty(&e->live)) {
		struct attempt *a = list_entry(e->live.next, struct attempt, by_deadline);
		if (a->deadline_us > now_us)
			break;
		attempt_fail(a, 504, "the request's time is up (request_timeout_ms)");
	}
	leave_workers(e, now_us);
	retry_waiting(e, now_us);
	attempts_ending_tick(e, now_us);
	attempts_late_tick(e, now_us);
}

void attempts_json(const struct attempts *e, uint64_t now_us, struct buf *out)
{
	buf_addc(out, '[');
	list_each(n, &e->live) {
		const struct attempt *a = list_entry(n, struct attempt, by_deadline);
		buf_printf(out,
		           "%s{\"id\":\"%s\",\"state\":\"%s\",\"age_ms\":%llu,\"left_ms\":%llu,\"attempt\":"
		           "%u,\"prompt_tokens\":%u,\"output_tokens\":%u,"
		           "\"max_tokens\":%u,\"prefill\":\"%s\",\"decode\":\"%s\"}",
		           n == e->live.next ? "" : ",", log_reqid(&a->id), state_names[a->state],
		           (unsigned long long)((now_us - a->begun_us) / 1000),
		           (unsigned long long)(a->deadline_us > now_us ? (a->deadline_us - now_us) / 1000
		                                                        : 0),
		           a->number, a->prompt_tokens, a->n_out, a->max_tokens,
		           a->prefill ? a->prefill->name : "",
		           a->decode                ? a->decode->name
		           : a->alone && a->prefill ? a->prefill->name
		                                    : "");
	}
	buf_addc(out, ']');
}
