/* try.c - the present try of an attempt: its workers and their load, Submit and Cancel, and what
 * follows when the try is lost.
 *
 * A try is linked to a worker only while that worker is up. Closing a try cancels it at every
 * worker that has a part in it. */
#include "attempt_int.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/err.h"
#include "util/least.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* pause after a link restart: by then all links that restart have done so */
#define LINK_RESTART_US 100000u
/* pause before an attempt is placed again that the same worker gave back twice in a row */
#define MOVED_AGAIN_US 50000u
/* a caller's share of seats leaves room for others if one of them had a request within this time */
#define OTHERS_US 60000000u
/* pause after a worker's link was full */
#define LINK_FULL_US 20000u

/* --- names for logs ------------------------------------------------------ */

const char *attempt_state_name(enum attempt_state state)
{
	static const char *const names[] = {"new", "waiting", "submitted", "running", "ended"};
	return names[state];
}

const char *answer_finish_name(enum answer_finish finish)
{
	static const char *const names[] = {"none", "stop", "length", "abort", "error"};
	return names[finish];
}

/* --- load ---------------------------------------------------------------- */

static void unlink_worker(struct worker_record *w, struct list *node, uint64_t *charged)
{
	list_remove(node);
	w->tokens_in_flight -= *charged;
	*charged = 0;
}

/* A prompt that was handed over no longer counts as the prefill worker's load. */
static int is_prefill_load(const struct attempt_try *t)
{
	return t->backlog || t->n_cand == 0;
}

static void leave_prefill(struct attempt_try *t)
{
	if (!t->prefill)
		return;
	t->prefill->requests -= is_prefill_load(t);
	t->prefill->starting -= t->backlog != 0;
	t->prefill->backlog_tokens -= t->backlog;
	t->backlog = 0;
	unlink_worker(t->prefill, &t->at_prefill, &t->charged_prefill);
	t->prefill = NULL;
}

static void leave_decode(struct attempt_try *t)
{
	if (!t->decode)
		return;
	t->decode->requests--;
	t->decode->starting -= (uint32_t)t->starts;
	t->starts = 0;
	unlink_worker(t->decode, &t->at_decode, &t->charged_decode);
	t->decode = NULL;
}

void attempt_leave(struct attempt *a, struct worker_record *w)
{
	if (a->try.prefill == w)
		leave_prefill(&a->try);
	if (a->try.decode == w)
		leave_decode(&a->try);
}

static uint64_t context_tokens(const struct attempt *a)
{
	return (uint64_t)a->asked.prompt_tokens + a->got.n_out;
}

void attempt_join_decode(struct attempt *a, struct worker_record *w)
{
	struct attempt_try *t = &a->try;
	if (t->decode == w)
		return;
	leave_decode(t);
	t->decode = w;
	t->charged_decode = context_tokens(a);
	list_push_back(&w->decodes, &t->at_decode);
	w->requests++;
	w->tokens_in_flight += t->charged_decode;
}

void attempt_prefill_done(struct attempt *a)
{
	struct attempt_try *t = &a->try;
	a->all->room |= t->starts || t->backlog;
	if (t->decode && t->starts) {
		t->decode->starting--;
		t->starts = 0;
		registry_started(t->decode);
	}
	if (!t->prefill || !t->backlog)
		return;
	t->prefill->starting--;
	registry_started(t->prefill);
	t->prefill->backlog_tokens -= t->backlog;
	t->backlog = 0;
	t->prefill->requests -= !is_prefill_load(t);
	t->prefill->tokens_in_flight -= t->charged_prefill;
	t->charged_prefill = attempt_is_alone(a) ? context_tokens(a) : 0;
	t->prefill->tokens_in_flight += t->charged_prefill;
}

void attempt_add_load(struct attempt *a, uint64_t tokens)
{
	struct worker_record *w = attempt_decoder(a);
	if (!w)
		return;
	w->tokens_in_flight += tokens;
	*(attempt_is_alone(a) ? &a->try.charged_prefill : &a->try.charged_decode) += tokens;
}

struct attempt_candidate *attempt_candidate(struct attempt *a, const struct worker_record *w)
{
	for (unsigned i = 0; i < a->try.n_cand; i++)
		if (a->try.cand[i].epoch == w->epoch && strcmp(a->try.cand[i].name, w->name) == 0)
			return &a->try.cand[i];
	return NULL;
}

/* --- Cancel -------------------------------------------------------------- */

static unsigned recent_slot(const struct reqid *id, uint32_t number, uint64_t epoch)
{
	return (unsigned)(id->lo + number + epoch) % ATTEMPTS_RECENT;
}

int attempts_is_recent(const struct attempts *e, const struct reqid *id, uint32_t number,
                       uint64_t epoch)
{
	unsigned i = recent_slot(id, number, epoch);
	return e->recent[i].id.hi == id->hi && e->recent[i].id.lo == id->lo &&
	       e->recent[i].number == number && e->recent[i].epoch == epoch;
}

int attempts_send_cancel(struct attempts *e, struct worker_record *w, const struct reqid *id,
                         uint32_t number, const char *reason)
{
	struct msg_head head = {.req = *id, .attempt = number};
	Pds__Cancel body = PDS__CANCEL__INIT;
	body.reason = (char *)reason;
	return e->opts.send(e->opts.arg, w, MSG_REQUEST_CANCEL, &head, &body);
}

/* A worker of another epoch never had this try. A worker that is down cannot be told now: if it
 * lives after all, its next message is answered with a cancel. */
static void end_at(struct attempt *a, struct worker_record *w, uint64_t epoch, const char *reason)
{
	if (reason && (!w || !worker_is_up(w) || w->epoch != epoch))
		return;
	if (reason && attempts_send_cancel(a->all, w, &a->id, a->number, reason) < 0)
		return;
	unsigned i = recent_slot(&a->id, a->number, epoch);
	a->all->recent[i].id = a->id;
	a->all->recent[i].number = a->number;
	a->all->recent[i].epoch = epoch;
}

void attempt_close_try(struct attempt *a, const char *reason)
{
	struct attempt_try *t = &a->try;
	if (t->prefill)
		end_at(a, t->prefill, t->prefill->epoch, reason);
	for (unsigned i = 0; i < t->n_cand; i++)
		end_at(a, reason ? registry_find(a->all->registry, t->cand[i].name) : NULL,
		       t->cand[i].epoch, reason);
	leave_prefill(t);
	leave_decode(t);
	a->asked.caller->seats -= (uint32_t)t->seated;
	t->seated = 0;
	a->all->room = 1;
	t->n_cand = 0;
	t->n_held = 0;
	list_each_safe(n, next, &t->held) {
		list_remove(n);
		free(list_entry(n, struct held_tokens, node));
	}
}

/* --- Submit -------------------------------------------------------------- */

static int send_submit(struct attempt *a, const struct placement *p)
{
	const struct attempt_spec *s = &a->asked;
	uint32_t *joined = NULL; /* prompt and answer so far; freed below */
	Pds__Candidate cands[PLACE_CANDIDATES_MAX], *list[PLACE_CANDIDATES_MAX];
	Pds__Request req = PDS__REQUEST__INIT;
	Pds__Submit body = PDS__SUBMIT__INIT;
	Pds__Sampling sampling = s->sampling;
	sampling.prompt_logprobs = attempt_prompt_missing(a);
	for (unsigned i = 0; i < p->n_decode; i++) {
		pds__candidate__init(&cands[i]);
		cands[i].name = p->decode[i]->name;
		cands[i].endpoint = (char *)worker_endpoint(p->first, p->decode[i]);
		cands[i].epoch = p->decode[i]->epoch;
		list[i] = &cands[i];
	}
	req.tokens = (uint32_t *)s->tokens;
	req.n_tokens = (size_t)context_tokens(a);
	if (a->got.n_out) {
		req.tokens = joined = mem_try_alloc(req.n_tokens * sizeof *joined);
		if (!joined)
			return ERR_NOMEM;
		memcpy(joined, s->tokens, s->prompt_tokens * sizeof *joined);
		memcpy(joined + s->prompt_tokens, a->got.out, a->got.n_out * sizeof *joined);
	}
	req.prompt_tokens = s->prompt_tokens;
	req.max_tokens = s->max_tokens;
	req.pooling = s->pooling;
	req.sampling = &sampling;
	req.stop_ids = (uint32_t *)s->stop_ids;
	req.n_stop_ids = s->n_stop_ids;
	req.ignore_eos = s->ignore_eos;
	req.constraint = (Pds__Constraint *)s->constraint;
	if (s->cache_salt)
		req.cache_salt = (ProtobufCBinaryData){CACHE_SALT_BYTES, (unsigned char *)s->cache_salt};
	body.request = &req;
	body.candidates = list;
	body.n_candidates = p->n_decode;
	struct msg_head head = {.req = a->id, .attempt = a->number, .deadline_us = s->deadline_us};
	int r = a->all->opts.send(a->all->opts.arg, p->first, MSG_REQUEST_SUBMIT, &head, &body);
	free(joined);
	return r;
}

/* Reads only `asked`: other answers of the request may have been freed. */
int attempt_is_prefill_only(const struct attempt *a)
{
	const struct attempt_spec *s = &a->asked;
	return s->pooling || (s->max_tokens == 1 && !(s->pin && s->pin->n_decode));
}

struct place_query attempt_query(const struct attempt *a)
{
	const struct attempt_spec *s = &a->asked;
	const struct worker_record *beside = s->beside ? s->beside->try.prefill : NULL;
	uint32_t tokens = s->prompt_tokens + a->got.n_out;
	/* when another caller had a new attempt last */
	uint64_t other_us = a->all->last.id == s->caller->id ? a->all->last.other_us : a->all->last.us;
	int has_others = other_us && clock_us() - other_us < OTHERS_US;
	return (struct place_query){.tokens = tokens,
	                            .total_tokens = s->pooling    ? tokens
	                                            : s->open_end ? tokens + 1
	                                                          : s->prompt_tokens + s->max_tokens,
	                            .hidden = s->hidden,
	                            .prefill_only = attempt_is_prefill_only(a),
	                            .numerics = *a->past.numerics ? a->past.numerics : NULL,
	                            .avoid = *a->past.avoid ? a->past.avoid : NULL,
	                            .alone = a->past.alone,
	                            .prefixes = s->prefixes,
	                            .beside = beside ? beside->name : NULL,
	                            .pin = s->pin,
	                            .session = s->session,
	                            .id = &a->id,
	                            .seats = has_others ? s->caller->seats : 0,
	                            .in_turn = !a->past.was_there};
}

/* Charges the load to the workers that were chosen. */
static void begin_try(struct attempt *a, const struct placement *p)
{
	struct attempt_try *t = &a->try;
	*t = (struct attempt_try){.n_cand = p->n_decode,
	                          .predicted = {p->predicted, p->hit_tokens, p->stored_tokens},
	                          .seated = !attempt_is_prefill_only(a),
	                          .began_out = a->got.n_out,
	                          .began_ups = a->all->registry->ups};
	list_init(&t->at_prefill);
	list_init(&t->at_decode);
	list_init(&t->held);
	for (unsigned i = 0; i < p->n_decode; i++) {
		t->cand[i].epoch = p->decode[i]->epoch;
		memcpy(t->cand[i].name, p->decode[i]->name, sizeof t->cand[i].name);
	}
	a->asked.caller->seats += (uint32_t)t->seated;
	t->prefill = p->first;
	t->charged_prefill = t->backlog = p->work_tokens;
	memcpy(t->prefill_name, p->first->name, sizeof t->prefill_name);
	list_push_back(&p->first->prefills, &t->at_prefill);
	p->first->requests++;
	p->first->starting++;
	p->first->tokens_in_flight += p->work_tokens;
	p->first->backlog_tokens += p->work_tokens;
	if (p->n_decode) {
		attempt_join_decode(a, p->decode[0]);
		p->decode[0]->starting++;
		t->starts = 1;
	}
}

enum attempt_placed attempt_submit(struct attempt *a)
{
	struct placement p;
	struct place_query query = attempt_query(a);
	uint64_t now = clock_us();
	CHECK(a->got.n_out < a->asked.max_tokens);
	int r = place_choose(a->all->registry, &query, now, &p);
	if (r)
		return r == PLACE_LATER ? LATER : r == ERR_FULL ? TOO_LONG : NO_WORKER;
	a->number++;
	if (send_submit(a, &p) < 0) {
		snprintf(a->past.avoid, sizeof a->past.avoid, "%s", p.first->name);
		registry_outcome(a->all->registry, p.first, 0, now);
		a->number--;
		a->past.not_before_us = now + LINK_FULL_US;
		return LINK_FULL;
	}
	begin_try(a, &p);
	if (fair_waits(&a->turn))
		a->got.times.turn_us += now - a->since_us;
	fair_charge(&a->all->queue, &a->asked.caller->turns, attempt_cost(a));
	a->end.retry_after_us = 0;
	if (!*a->past.numerics)
		snprintf(a->past.numerics, sizeof a->past.numerics, "%s", p.first->numerics);
	log_req(
		LOG_INFO, &a->id, "submitted",
		"attempt=%u tokens=%u output_tokens=%u prefill=%s decode=%s candidates=%u hit_tokens=%u "
		"turn_us=%llu",
		a->number, query.tokens, a->got.n_out, p.first->name,
		attempt_decode_name(p.n_decode ? p.decode[0] : p.first), p.n_decode, p.hit_tokens,
		(unsigned long long)a->got.times.turn_us);
	return PLACED;
}

/* --- losses -------------------------------------------------------------- */

enum verdict attempt_give_up(struct attempt *a, int status, const char *why)
{
	a->end.status = status;
	a->end.finish = ANSWER_FINISH_ERROR;
	snprintf(a->end.why, sizeof a->end.why, "%s", why);
	return OVER;
}

/* The try has given more than its first token, which every try gives. */
static int has_progress(const struct attempt *a)
{
	return a->got.n_out > a->try.began_out + 1;
}

/* The total number of tries is bounded too: a request whose tries each generate some tokens and
 * then crash their worker must not reach all workers. */
static enum verdict next_try(struct attempt *a, int status, const char *why, uint64_t pause_us)
{
	uint32_t limit = a->all->opts.max_attempts;
	char text[sizeof a->end.why];
	if (a->past.lost >= limit || a->number - a->past.moved >= (uint64_t)limit * ATTEMPTS_TIMES) {
		snprintf(text, sizeof text, "%s (attempt %u, %u lost in a row: max_attempts)", why,
		         a->number, a->past.lost);
		return attempt_give_up(a, status, text);
	}
	attempt_close_try(a, why);
	a->all->counts.retries++;
	a->past.was_there = 1;
	a->past.not_before_us = clock_us() + pause_us;
	return RETRY;
}

const struct worker_record *attempt_link_restarted(const struct attempt *a)
{
	const struct attempt_try *t = &a->try;
	for (unsigned i = 0; i < t->n_cand; i++) {
		const struct attempt_candidate *c = &t->cand[i];
		const struct worker_record *w = !*t->decode_name || strcmp(c->name, t->decode_name) == 0
		                                    ? registry_find(a->all->registry, c->name)
		                                    : NULL;
		if (w && worker_is_up(w) && w->epoch == c->epoch && w->up_no > t->began_ups)
			return w;
	}
	return NULL;
}

enum verdict attempt_cut(struct attempt *a, const struct worker_record *w, const char *why)
{
	if (has_progress(a))
		a->past.lost = 0;
	log_req(LOG_WARN, &a->id, "attempt_cut",
	        "attempt=%u lost=%u state=%s worker=%s output_tokens=%u", a->number, a->past.lost,
	        attempt_state_name(a->state), w->name, a->got.n_out);
	a->past.avoid[0] = 0;
	return next_try(a, 503, why, LINK_RESTART_US);
}

/* the HTTP status that a client gets */
static int fault_status(Pds__Fault fault)
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

enum verdict attempt_lost(struct attempt *a, const struct attempt_loss *l)
{
	const struct worker_record *restarted = l->retry ? attempt_link_restarted(a) : NULL;
	if (restarted)
		return attempt_cut(a, restarted, l->why);
	struct worker_record *blamed = l->blame ? registry_find(a->all->registry, l->blame) : NULL;
	uint64_t now = clock_us();
	if (blamed)
		registry_outcome(a->all->registry, blamed, 0, now);
	a->past.lost = has_progress(a) ? 1 : a->past.lost + 1;
	/* The prefill worker reports that no candidate got the KV, and no worker is to blame. (Until it
	 * names the one that decodes, try.decode is the one that it asks first.) */
	const struct attempt_try *t = &a->try;
	int failed = t->n_cand && t->prefill && strcmp(t->prefill->name, l->who) == 0 && !l->blame &&
	             (l->fault == PDS__FAULT__FAULT_STALLED || l->fault == PDS__FAULT__FAULT_PEER_LOST);
	if (failed && t->decode)
		registry_handover(a->all->registry, t->prefill, t->decode, 0, now);
	a->past.alone = a->past.lost + 1 >= a->all->opts.max_attempts && failed;
	log_req(LOG_WARN, &a->id, "attempt_lost",
	        "attempt=%u lost=%u state=%s worker=%s blame=%s fault=%d retry=%d output_tokens=%u "
	        "why=%s",
	        a->number, a->past.lost, attempt_state_name(a->state), l->who,
	        blamed ? blamed->name : "-", (int)l->fault, l->retry, a->got.n_out, log_quote(l->why));
	snprintf(a->past.avoid, sizeof a->past.avoid, "%s", blamed ? blamed->name : l->who);
	uint64_t room_us = a->end.retry_after_us;
	if (!l->retry || (room_us && now + room_us >= a->asked.deadline_us))
		return attempt_give_up(a, fault_status(l->fault), l->why);
	/* A full worker stays full for a while, and what took two tries in a row may take a third. */
	int busy = l->fault == PDS__FAULT__FAULT_OVERLOADED || l->fault == PDS__FAULT__FAULT_NO_ROOM ||
	           l->fault == PDS__FAULT__FAULT_DRAINING;
	uint32_t lost = a->past.lost;
	uint64_t pause_us = busy || lost > 1 ? 50000u << (lost < 4 ? lost : 4) : 0;
	room_us = least(room_us, a->all->opts.retry_wait_us);
	return next_try(a, fault_status(l->fault), l->why, most(pause_us, room_us));
}

enum verdict attempt_put_back(struct attempt *a, struct worker_record *w, const char *why)
{
	log_req(LOG_INFO, &a->id, "attempt_put_back", "attempt=%u worker=%s why=%s", a->number, w->name,
	        log_quote(why));
	a->past.moved++; /* so it counts neither as a loss in a row nor in the total */
	attempt_close_try(a, why);
	registry_full(w);
	a->all->counts.retries++;
	a->past.was_there = 0;
	return RETRY;
}

enum verdict attempt_moved(struct attempt *a, const struct worker_record *w, const char *why)
{
	int same = strcmp(a->past.avoid, w->name) == 0;
	if (a->past.moved >= ATTEMPT_MOVES_MAX)
		return attempt_lost(a, &(struct attempt_loss){PDS__FAULT__FAULT_DRAINING, 1, w->name, NULL,
		                                              why});
	a->past.moved++;
	if (has_progress(a))
		a->past.lost = 0;
	log_req(LOG_INFO, &a->id, "attempt_moved",
	        "attempt=%u state=%s worker=%s output_tokens=%u why=%s", a->number,
	        attempt_state_name(a->state), w->name, a->got.n_out, log_quote(why));
	snprintf(a->past.avoid, sizeof a->past.avoid, "%s", w->name);
	return next_try(a, 503, why, same ? MOVED_AGAIN_US : 0);
}
