/* request.c - see request.h: the state machine of a sequence, attempts, cancels.
 *
 * What always holds: a live sequence is in seqs.by_id and in seqs.live; it is in seqs.waiting
 * exactly while WAITING; it is linked to a worker only while that worker is up and its present
 * attempt is there. `ended` is the last thing that touches a sequence. What a worker sends can
 * fail its own attempt, nothing else. request_in.c has the messages, request_late.c the summary. */
#include "request.h"
#include "request_int.h"
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
	[SEQ_NEW] = "new",       [SEQ_WAITING] = "waiting",     [SEQ_SUBMITTED] = "submitted",
	[SEQ_HANDED] = "handed", [SEQ_DECODING] = "decoding",   [SEQ_DONE] = "done",
	[SEQ_FAILED] = "failed", [SEQ_CANCELLED] = "cancelled",
};

/* after a link began anew, until an attempt is placed: the others that do so have done it */
#define ANEW_US 100000u
/* before it is placed again that one worker gave back twice in a row */
#define MOVED_AGAIN_US 50000u
/* attempts of a worker that are looked at in a tick: some ms at most */
#define LEAVE_EACH_TICK 256u
#define ENDS (1u << SEQ_DONE | 1u << SEQ_FAILED | 1u << SEQ_CANCELLED)

/* from -> the states that may follow */
static const unsigned legal[] = {
	[SEQ_NEW] = 1u << SEQ_SUBMITTED | 1u << SEQ_WAITING | ENDS,
	[SEQ_WAITING] = 1u << SEQ_SUBMITTED | ENDS,
	[SEQ_SUBMITTED] = 1u << SEQ_HANDED | 1u << SEQ_DECODING | 1u << SEQ_WAITING | ENDS,
	[SEQ_HANDED] = 1u << SEQ_DECODING | 1u << SEQ_WAITING | ENDS,
	[SEQ_DECODING] = 1u << SEQ_WAITING | ENDS,
	[SEQ_DONE] = 0,
	[SEQ_FAILED] = 0,
	[SEQ_CANCELLED] = 0,
};

const char *seq_state_name(enum seq_state state)
{
	return state_names[state];
}

const char *seq_finish_name(enum seq_finish finish)
{
	static const char *const names[] = {"none", "stop", "length", "abort"};
	return names[finish];
}

int seq_ended(const struct seq *s)
{
	return 1u << s->state & ENDS ? 1 : 0;
}

void seq_enter(struct seq *s, enum seq_state to)
{
	if (!(legal[s->state] & 1u << to))
		PANIC("sequence %s: %s -> %s is no legal step", log_reqid(&s->id), state_names[s->state],
		      state_names[to]);
	log_req(LOG_DEBUG, &s->id, "seq_state", "from=%s to=%s attempt=%u", state_names[s->state],
	        state_names[to], s->attempt);
	s->state = to;
}

void seqs_init(struct seqs *e, struct registry *g, const struct seqs_opts *opts)
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

void seqs_fini(struct seqs *e)
{
	seqs_late_tick(e, UINT64_MAX);
	map_destroy(&e->late_by_id);
	map_destroy(&e->by_id);
}

size_t seqs_count(const struct seqs *e)
{
	return map_count(e->by_id);
}

struct seq *seqs_find(const struct seqs *e, const struct reqid *id)
{
	return map_get(e->by_id, id);
}

/* Earliest deadline first. Nearly all have the same allowance, so the place is found from the
 * end. */
static void insert_live(struct seqs *e, struct seq *s)
{
	struct list *at = e->live.prev;
	while (at != &e->live && list_entry(at, struct seq, by_deadline)->deadline_us > s->deadline_us)
		at = at->prev;
	list_push_front(at, &s->by_deadline);
}

struct seq *seq_new(struct seqs *e, const struct seq_spec *spec, const struct seq_hooks *hooks,
                    void *owner)
{
	CHECK(spec->prompt_tokens > 0 && spec->max_tokens > 0);
	struct seq *s = mem_zalloc(sizeof *s);
	s->all = e;
	s->hooks = hooks;
	s->owner = owner;
	do
		randombytes_buf(&s->id, sizeof s->id);
	while ((s->id.hi == 0 && s->id.lo == 0) || map_get(e->by_id, &s->id));
	s->size = spec->max_tokens < 256 ? spec->max_tokens : 256;
	s->out = mem_array(s->size, sizeof *s->out);
	s->prompt = spec->tokens;
	s->prompt_tokens = spec->prompt_tokens;
	s->max_tokens = spec->max_tokens;
	s->sampling = spec->sampling;
	s->want_prompt = spec->sampling.prompt_logprobs && spec->prompt_tokens > 1;
	s->got_prompt = 1;
	s->ignore_eos = spec->ignore_eos;
	s->constraint = spec->constraint;
	s->prefixes = spec->prefixes;
	s->pin = spec->pin;
	s->session = spec->session;
	s->beside = spec->beside;
	s->n_stop_ids = spec->n_stop_ids;
	if (spec->n_stop_ids) {
		s->stop_ids = mem_array(spec->n_stop_ids, sizeof *s->stop_ids);
		memcpy(s->stop_ids, spec->stop_ids, spec->n_stop_ids * sizeof *s->stop_ids);
	}
	s->begun_us = spec->begun_us;
	s->deadline_us = spec->deadline_us;
	list_init(&s->waiting);
	list_init(&s->at_prefill);
	list_init(&s->at_decode);
	list_init(&s->held);
	list_init(&s->ending);
	insert_live(e, s);
	map_put(e->by_id, &s->id, s);
	e->counts.started++;
	return s;
}

/* --- where the present attempt is ---------------------------------------- */

static void unlink_worker(struct worker *w, struct list *node, uint64_t *charged)
{
	list_remove(node);
	w->requests--;
	w->tokens_in_flight -= *charged;
	*charged = 0;
}

static void backlog_done(struct seq *s)
{
	s->prefill->backlog_tokens -= s->backlog;
	s->backlog = 0;
}

void seq_leave_prefill(struct seq *s)
{
	if (s->prefill)
		backlog_done(s);
	if (s->prefill)
		unlink_worker(s->prefill, &s->at_prefill, &s->charged_prefill);
	s->prefill = NULL;
}

void seq_leave_decode(struct seq *s)
{
	if (s->decode)
		unlink_worker(s->decode, &s->at_decode, &s->charged_decode);
	s->decode = NULL;
}

static void join_prefill(struct seq *s, struct worker *w, uint64_t tokens)
{
	s->prefill = w;
	s->charged_prefill = tokens;
	list_push_back(&w->prefills, &s->at_prefill);
	w->requests++;
	w->tokens_in_flight += tokens;
	w->backlog_tokens += tokens;
	s->backlog = tokens;
	snprintf(s->prefill_name, sizeof s->prefill_name, "%s", w->name);
}

void seq_join_decode(struct seq *s, struct worker *w)
{
	if (s->decode == w)
		return;
	seq_leave_decode(s);
	s->decode = w;
	s->charged_decode = (uint64_t)s->prompt_tokens + s->n_out;
	list_push_back(&w->decodes, &s->at_decode);
	w->requests++;
	w->tokens_in_flight += s->charged_decode;
}

void seq_prefill_done(struct seq *s)
{
	if (!s->prefill || !s->backlog)
		return;
	backlog_done(s);
	s->prefill->tokens_in_flight -= s->charged_prefill;
	s->charged_prefill = s->alone ? (uint64_t)s->prompt_tokens + s->n_out : 0;
	s->prefill->tokens_in_flight += s->charged_prefill;
}

void seq_weigh(struct seq *s, uint64_t tokens)
{
	struct worker *w = s->alone ? s->prefill : s->decode;
	uint64_t *charged = s->alone ? &s->charged_prefill : &s->charged_decode;
	if (!w)
		return;
	w->tokens_in_flight += tokens;
	*charged += tokens;
}

static unsigned recent_slot(const struct reqid *id, uint32_t attempt, uint64_t epoch)
{
	return (unsigned)(id->lo + attempt + epoch) % SEQS_RECENT;
}

static void remember(struct seq *s, uint64_t epoch)
{
	struct seqs *e = s->all;
	unsigned i = recent_slot(&s->id, s->attempt, epoch);
	e->recent[i].id = s->id;
	e->recent[i].attempt = s->attempt;
	e->recent[i].epoch = epoch;
}

int seqs_is_recent(const struct seqs *e, const struct reqid *id, uint32_t attempt, uint64_t epoch)
{
	unsigned i = recent_slot(id, attempt, epoch);
	return e->recent[i].id.hi == id->hi && e->recent[i].id.lo == id->lo &&
	       e->recent[i].attempt == attempt && e->recent[i].epoch == epoch;
}

int seqs_send_cancel(struct seqs *e, struct worker *w, const struct reqid *id, uint32_t attempt,
                     const char *reason)
{
	struct msg_head head = {.req = *id, .attempt = attempt};
	Pds__Cancel body = PDS__CANCEL__INIT;
	body.reason = (char *)reason;
	return e->opts.send(e->opts.arg, w, MSG_REQUEST_CANCEL, &head, &body);
}

/* Another life than `epoch` had nothing to do with it. One that is down cannot be told now:
 * should it live after all, its next message is answered. */
static void cancel_at(struct seq *s, struct worker *w, uint64_t epoch, const char *reason)
{
	if (!w || !worker_is_up(w) || w->epoch != epoch)
		return;
	if (seqs_send_cancel(s->all, w, &s->id, s->attempt, reason) == 0)
		remember(s, epoch);
}

static void drop_held(struct seq *s)
{
	list_remove(&s->ending);
	s->n_held = 0;
	list_each_safe(n, next, &s->held) {
		list_remove(n);
		free(list_entry(n, struct held_tokens, node));
	}
}

/* The present attempt is given up: cancelled at its prefill worker and at every candidate that
 * lives, and forgotten. */
static void abandon(struct seq *s, const char *reason)
{
	if (s->attempt &&
	    (s->state == SEQ_SUBMITTED || s->state == SEQ_HANDED || s->state == SEQ_DECODING)) {
		if (s->prefill)
			cancel_at(s, s->prefill, s->prefill->epoch, reason);
		for (unsigned i = 0; i < s->n_cand; i++)
			cancel_at(s, registry_find(s->all->registry, s->cand[i].name), s->cand[i].epoch,
			          reason);
	}
	seq_leave_prefill(s);
	seq_leave_decode(s);
	drop_held(s);
	s->n_cand = 0;
	s->named = 0;
}

/* --- the end ------------------------------------------------------------- */

static void take_out(struct seq *s)
{
	struct seqs *e = s->all;
	list_remove(&s->waiting);
	list_remove(&s->by_deadline);
	map_remove(e->by_id, &s->id);
	e->counts.prompt_tokens += s->attempt ? s->prompt_tokens : 0;
	e->counts.output_tokens += s->n_out;
	e->counts.cached_tokens += s->times.cached_tokens;
	e->counts.done += s->state == SEQ_DONE;
	e->counts.failed += s->state == SEQ_FAILED;
	e->counts.cancelled += s->state == SEQ_CANCELLED;
	if (s->state == SEQ_DONE)
		registry_answered(e->registry, s->n_out);
	seqs_summary(s);
}

void seq_done(struct seq *s, enum seq_finish finish, int worker_knows)
{
	if (worker_knows) {
		if (s->prefill)
			remember(s, s->prefill->epoch);
		for (unsigned i = 0; i < s->n_cand; i++)
			remember(s, s->cand[i].epoch);
		seq_leave_prefill(s);
		seq_leave_decode(s);
		drop_held(s);
	} else {
		abandon(s, "the answer is complete");
	}
	s->finish = finish;
	s->status = 200;
	seq_enter(s, SEQ_DONE);
	take_out(s);
	s->hooks->ended(s->owner, s);
}

void seq_fail(struct seq *s, int status, const char *why)
{
	abandon(s, why);
	s->status = status;
	snprintf(s->why, sizeof s->why, "%s", why);
	seq_enter(s, SEQ_FAILED);
	take_out(s);
	s->hooks->ended(s->owner, s);
}

void seq_cancel(struct seq *s, const char *reason)
{
	if (seq_ended(s))
		return;
	abandon(s, reason);
	s->status = s->status ? s->status : 499;
	s->finish = SEQ_FINISH_ABORT;
	snprintf(s->why, sizeof s->why, "%s", reason);
	seq_enter(s, SEQ_CANCELLED);
	take_out(s);
}

void seq_destroy(struct seq **sp)
{
	struct seq *s = *sp;
	if (!s)
		return;
	seq_cancel(s, "not wanted any more");
	free(s->out);
	free(s->stop_ids);
	free(s);
	*sp = NULL;
}

/* --- attempts ------------------------------------------------------------ */

/* Prompt and answer so far, as one array: *ret_own is to be freed. NULL: no memory. */
static uint32_t *all_tokens(const struct seq *s, uint32_t **ret_own)
{
	*ret_own = NULL;
	if (!s->n_out)
		return (uint32_t *)s->prompt;
	uint32_t *all = mem_try_alloc(((size_t)s->prompt_tokens + s->n_out) * sizeof *all);
	if (all) {
		memcpy(all, s->prompt, s->prompt_tokens * sizeof *all);
		memcpy(all + s->prompt_tokens, s->out, s->n_out * sizeof *all);
	}
	return *ret_own = all;
}

static int send_submit(struct seq *s, const struct placement *p)
{
	uint32_t *own;
	Pds__Candidate cands[PLACE_CANDIDATES_MAX], *list[PLACE_CANDIDATES_MAX];
	Pds__Request req = PDS__REQUEST__INIT;
	Pds__Submit body = PDS__SUBMIT__INIT;
	Pds__Sampling sampling = s->sampling;
	sampling.prompt_logprobs = s->want_prompt;
	for (unsigned i = 0; i < p->n_decode; i++) {
		pds__candidate__init(&cands[i]);
		cands[i].name = p->decode[i]->name;
		cands[i].endpoint = p->decode[i]->endpoint;
		cands[i].epoch = p->decode[i]->epoch;
		list[i] = &cands[i];
	}
	req.tokens = all_tokens(s, &own);
	req.n_tokens = (size_t)s->prompt_tokens + s->n_out;
	req.prompt_tokens = s->prompt_tokens;
	req.max_tokens = s->max_tokens;
	req.sampling = &sampling;
	req.stop_ids = s->stop_ids;
	req.n_stop_ids = s->n_stop_ids;
	req.ignore_eos = s->ignore_eos;
	req.constraint = (Pds__Constraint *)s->constraint;
	body.request = &req;
	body.candidates = list;
	body.n_candidates = p->n_decode;
	struct msg_head head = {.req = s->id, .attempt = s->attempt, .deadline_us = s->deadline_us};
	int r = req.tokens
	            ? s->all->opts.send(s->all->opts.arg, p->first, MSG_REQUEST_SUBMIT, &head, &body)
	            : ERR_NOMEM;
	free(own);
	return r;
}

static struct place_wish wish_of(const struct seq *s)
{
	return (struct place_wish){.tokens = s->prompt_tokens + s->n_out,
	                           .total_tokens = s->prompt_tokens + s->max_tokens,
	                           .numerics = *s->numerics ? s->numerics : NULL,
	                           .avoid = *s->avoid ? s->avoid : NULL,
	                           .prefixes = s->prefixes,
	                           .beside = s->beside && s->beside->prefill ? s->beside->prefill->name
	                                                                     : NULL,
	                           .pin = s->pin,
	                           .session = s->session,
	                           .id = &s->id};
}

/* One more attempt on workers that are there now. 0, ERR_NOTFOUND, ERR_FULL (too long for all),
 * ERR_CLOSED (the worker's link took nothing). */
static int submit(struct seq *s)
{
	struct placement p;
	struct place_wish wish = wish_of(s);
	uint64_t now = clock_us();
	if (s->got_prompt == s->prompt_tokens)
		s->want_prompt = 0; /* an earlier attempt has told them all */
	int r = place_choose(s->all->registry, &wish, now, &p);
	if (r < 0)
		return r;
	s->attempt++;
	if (send_submit(s, &p) < 0) {
		snprintf(s->avoid, sizeof s->avoid, "%s", p.first->name);
		registry_outcome(s->all->registry, p.first, 0, now);
		s->attempt--;
		return ERR_CLOSED;
	}
	s->submitted_us = now;
	s->began_out = s->n_out;
	s->began_ups = s->all->registry->ups;
	s->retry_after_us = 0;
	s->alone = p.n_decode == 0;
	s->named = 0;
	s->prefill_told = 0;
	s->decode_name[0] = 0;
	if (!*s->numerics)
		snprintf(s->numerics, sizeof s->numerics, "%s", p.first->numerics);
	join_prefill(s, p.first, p.work_tokens);
	s->predicted = (struct seq_prediction){p.predicted, p.hit_tokens, p.stored_tokens};
	s->n_cand = p.n_decode;
	for (unsigned i = 0; i < p.n_decode; i++) {
		s->cand[i] = (struct seq_place){.epoch = p.decode[i]->epoch};
		snprintf(s->cand[i].name, sizeof s->cand[i].name, "%s", p.decode[i]->name);
	}
	if (p.n_decode)
		seq_join_decode(s, p.decode[0]);
	list_remove(&s->waiting);
	seq_enter(s, SEQ_SUBMITTED);
	log_req(
		LOG_INFO, &s->id, "submitted",
		"attempt=%u tokens=%u output_tokens=%u prefill=%s decode=%s candidates=%u hit_tokens=%u",
		s->attempt, s->prompt_tokens + s->n_out, s->n_out, p.first->name,
		p.n_decode ? p.decode[0]->name : p.first->name, p.n_decode, p.hit_tokens);
	return 0;
}

static void wait_for_worker(struct seq *s, uint64_t pause_us)
{
	uint64_t now = clock_us();
	if (s->state != SEQ_WAITING) {
		seq_enter(s, SEQ_WAITING);
		s->wait_until_us = now + s->all->opts.retry_wait_us;
	}
	s->not_before_us = now + pause_us;
	list_remove(&s->waiting);
	list_push_back(&s->all->waiting, &s->waiting);
}

int seq_start(struct seq *s)
{
	int r = submit(s);
	if (r == ERR_CLOSED)
		r = submit(s); /* another one than that, if there is another */
	if (r == ERR_CLOSED) {
		wait_for_worker(s, 20000);
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
static uint64_t pause_of(const struct seq *s, Pds__Fault fault)
{
	int busy = fault == PDS__FAULT__FAULT_OVERLOADED || fault == PDS__FAULT__FAULT_NO_ROOM ||
	           fault == PDS__FAULT__FAULT_DRAINING;
	uint64_t pause = busy || s->lost > 1 ? 50000u << (s->lost < 4 ? s->lost : 4) : 0,
			 room = s->retry_after_us;
	if (room > s->all->opts.retry_wait_us)
		room = s->all->opts.retry_wait_us;
	return pause > room ? pause : room;
}

/* A sequence in WAITING: an attempt if the time has come and somebody is there, the end if the
 * wait was too long. */
static void try_again(struct seq *s, uint64_t now)
{
	int r = now < s->not_before_us ? ERR_NOTFOUND : submit(s);
	if (r == 0)
		return;
	if (r == ERR_FULL)
		seq_fail(s, 503, "the workers that are left take no sequence of this length");
	else if (now >= s->wait_until_us && now >= s->not_before_us)
		seq_fail(s, 503, "no worker came back in time for another attempt (retry_wait_ms)");
	else
		wait_for_worker(s, r == ERR_CLOSED          ? 20000
		                   : s->not_before_us > now ? s->not_before_us - now
		                                            : 0);
}

/* A sequence that workers bring forward may lose one after the other, as when all are restarted
 * in turn; one that brings them down may not have them all. */
static int is_enough(const struct seq *s)
{
	uint32_t most = s->all->opts.max_attempts;
	return s->lost >= most || s->attempt - s->moved >= (uint64_t)most * SEQ_ATTEMPTS_TIMES;
}

static void fail_lost(struct seq *s, int status, const char *why)
{
	char text[sizeof s->why];
	snprintf(text, sizeof text, "%s (attempt %u, %u lost in a row: max_attempts)", why, s->attempt,
	         s->lost);
	seq_fail(s, status, text);
}

/* The present attempt is over: another one, at once or after a pause; or the end. */
static void go_on(struct seq *s, int status, const char *why, uint64_t pause_us)
{
	if (is_enough(s)) {
		fail_lost(s, status, why);
		return;
	}
	abandon(s, why);
	if (s->n_out >= s->max_tokens) {
		seq_enter(s, SEQ_WAITING);
		seq_done(s, SEQ_FINISH_LENGTH, 0);
		return;
	}
	s->all->counts.retries++;
	wait_for_worker(s, pause_us);
	try_again(s, clock_us());
}

const struct worker *seq_link_anew(const struct seq *s)
{
	for (unsigned i = 0; i < s->n_cand; i++) {
		const struct seq_place *c = &s->cand[i];
		const struct worker *w = !s->named || strcmp(c->name, s->decode_name) == 0
		                             ? registry_find(s->all->registry, c->name)
		                             : NULL;
		if (w && worker_is_up(w) && w->epoch == c->epoch && w->up_no > s->began_ups)
			return w;
	}
	return NULL;
}

/* The link took it, through no fault of the sequence or the worker. That one is up again in a
 * moment, and so are others if it was us who were away. */
void seq_attempt_cut(struct seq *s, const struct worker *w, const char *why)
{
	if (s->n_out > s->began_out + 1)
		s->lost = 0;
	log_req(LOG_WARN, &s->id, "attempt_cut",
	        "attempt=%u lost=%u state=%s worker=%s output_tokens=%u", s->attempt, s->lost,
	        state_names[s->state], w->name, s->n_out);
	s->avoid[0] = 0;
	go_on(s, 503, why, ANEW_US);
}

void seq_attempt_lost(struct seq *s, const struct seq_loss *l)
{
	const struct worker *anew = l->retry ? seq_link_anew(s) : NULL;
	if (anew) {
		seq_attempt_cut(s, anew, l->why);
		return;
	}
	struct worker *blamed = l->blame ? registry_find(s->all->registry, l->blame) : NULL;
	if (blamed)
		registry_outcome(s->all->registry, blamed, 0, clock_us());
	s->lost = s->n_out > s->began_out + 1 ? 1 : s->lost + 1;
	log_req(LOG_WARN, &s->id, "attempt_lost",
	        "attempt=%u lost=%u state=%s worker=%s blame=%s fault=%d retry=%d output_tokens=%u "
	        "why=%s",
	        s->attempt, s->lost, state_names[s->state], l->who, blamed ? blamed->name : "-",
	        (int)l->fault, l->retry, s->n_out, log_quote(l->why));
	snprintf(s->avoid, sizeof s->avoid, "%s", blamed ? blamed->name : l->who);
	/* past the deadline: its client may come again, with more time */
	if (!l->retry || (s->retry_after_us && clock_us() + s->retry_after_us >= s->deadline_us)) {
		seq_fail(s, status_of(l->fault), l->why);
		return;
	}
	go_on(s, status_of(l->fault), l->why, pause_of(s, l->fault));
}

/* Placed again at once; after a pause if the same worker gave the attempt before back too. */
void seq_attempt_moved(struct seq *s, const struct worker *w, const char *why)
{
	int again = strcmp(s->avoid, w->name) == 0;
	if (s->moved >= SEQ_MOVES_MAX) {
		seq_attempt_lost(s, &(struct seq_loss){PDS__FAULT__FAULT_DRAINING, 1, w->name, NULL, why});
		return;
	}
	s->moved++;
	if (s->n_out > s->began_out + 1)
		s->lost = 0;
	log_req(LOG_INFO, &s->id, "attempt_moved",
	        "attempt=%u state=%s worker=%s output_tokens=%u why=%s", s->attempt,
	        state_names[s->state], w->name, s->n_out, log_quote(why));
	snprintf(s->avoid, sizeof s->avoid, "%s", w->name);
	go_on(s, 503, why, again ? MOVED_AGAIN_US : 0);
}

/* --- what happens to workers, and time ----------------------------------- */

/* Each sequence may end here, and its owner may destroy others: the list is taken from its head. */
static void retry_waiting(struct seqs *e, uint64_t now)
{
	struct list again;
	list_init(&again);
	while (!list_empty(&e->waiting)) {
		struct list *n = e->waiting.next;
		list_remove(n);
		list_push_back(&again, n);
	}
	while (!list_empty(&again)) {
		struct seq *s = list_entry(again.next, struct seq, waiting);
		list_remove(&s->waiting);
		try_again(s, now);
	}
}

void seqs_worker_up(struct seqs *e)
{
	retry_waiting(e, clock_us());
}

static void worker_lost(struct seq *s, const struct worker *w, const char *why, enum worker_end how)
{
	if (how == WORKER_ANEW)
		seq_attempt_cut(s, w, why);
	else if (how == WORKER_GOODBYE)
		seq_attempt_moved(s, w, why);
	else
		seq_attempt_lost(s,
		                 &(struct seq_loss){PDS__FAULT__FAULT_PEER_LOST, 1, w->name, w->name, why});
}

void seqs_worker_down(struct seqs *e, struct worker *w, const char *why, enum worker_end how)
{
	char text[256];
	(void)e;
	snprintf(text, sizeof text, "worker %s is gone: %s", w->name, why);
	while (!list_empty(&w->prefills)) {
		struct seq *s = list_entry(w->prefills.next, struct seq, at_prefill);
		seq_leave_prefill(s);
		if (s->alone || s->state != SEQ_DECODING || s->want_prompt)
			worker_lost(s, w, text, how);
		else if (!list_empty(&s->ending))
			seq_release_held(s, s->decode);
	}
	while (!list_empty(&w->decodes)) {
		struct seq *s = list_entry(w->decodes.next, struct seq, at_decode);
		seq_leave_decode(s);
		if (!list_empty(&s->ending) && seq_release_held(s, w))
			continue;
		if (s->named)
			worker_lost(s, w, text, how);
	}
}

/* Could a worker that is neither stuck nor broken take it? From one that still runs it goes only to
 * one that has room. */
static int can_leave(const struct seq *s, const struct worker *w, int stuck, uint64_t now)
{
	struct place_wish wish = wish_of(s);
	wish.leaves = w;
	wish.now_us = now;
	wish.wants_room = !stuck;
	return list_empty(&s->ending) && place_possible(s->all->registry, &wish);
}

static void leave(struct seq *s, const struct worker *w, int stuck)
{
	char why[160];
	if (!stuck) {
		snprintf(why, sizeof why, "%s is told to end", w->name);
		seq_attempt_moved(s, w, why);
		return;
	}
	snprintf(why, sizeof why, "%s makes no progress for longer than %llu ms (stuck_ms)", w->name,
	         (unsigned long long)s->all->registry->stuck_us / 1000);
	seq_attempt_lost(s, &(struct seq_loss){PDS__FAULT__FAULT_STALLED, 1, w->name, w->name, why});
}

/* Does the present attempt need w? A prefill worker that is told to end finishes it or gives it
 * back by itself. */
static int needs(const struct seq *s, const struct worker *w, int stuck)
{
	if (s->prefill == w && (s->alone || (stuck && (s->state != SEQ_DECODING || s->want_prompt))))
		return 1;
	return s->decode == w && s->named;
}

/* Each sequence may end here, and its owner may destroy others: a list is taken from its head.
 * Those that were looked at go to the back; the next tick goes on with the rest. */
static void leave_worker(struct worker *w, enum place_stage stage, int stuck, uint64_t now)
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
		struct seq *s = stage == PLACE_PREFILL ? list_entry(n, struct seq, at_prefill)
		                                       : list_entry(n, struct seq, at_decode);
		list_remove(n);
		list_push_back(attempts, n);
		if (needs(s, w, stuck) && can_leave(s, w, stuck, now))
			leave(s, w, stuck);
	}
}

/* Attempts leave workers that are stuck or told to end, if somebody else can take them. */
static void leave_workers(struct seqs *e, uint64_t now)
{
	list_each(n, &e->registry->workers) {
		struct worker *w = list_entry(n, struct worker, node);
		int stuck = worker_is_stuck(e->registry, w, now);
		if (!worker_is_up(w) || (!stuck && !w->beat.ending))
			continue;
		leave_worker(w, PLACE_PREFILL, stuck, now);
		leave_worker(w, PLACE_DECODE, stuck, now);
	}
}

void seqs_tick(struct seqs *e, uint64_t now_us)
{
	while (!list_empty(&e->live)) {
		struct seq *s = list_entry(e->live.next, struct seq, by_deadline);
		if (s->deadline_us > now_us)
			break;
		seq_fail(s, 504, "the request's time is up (request_timeout_ms)");
	}
	leave_workers(e, now_us);
	retry_waiting(e, now_us);
	seqs_ending_tick(e, now_us);
	seqs_late_tick(e, now_us);
}

void seqs_json(const struct seqs *e, uint64_t now_us, struct buf *out)
{
	buf_addc(out, '[');
	list_each(n, &e->live) {
		const struct seq *s = list_entry(n, struct seq, by_deadline);
		buf_printf(out,
		           "%s{\"id\":\"%s\",\"state\":\"%s\",\"age_ms\":%llu,\"left_ms\":%llu,\"attempt\":"
		           "%u,\"prompt_tokens\":%u,\"output_tokens\":%u,"
		           "\"max_tokens\":%u,\"prefill\":\"%s\",\"decode\":\"%s\"}",
		           n == e->live.next ? "" : ",", log_reqid(&s->id), state_names[s->state],
		           (unsigned long long)((now_us - s->begun_us) / 1000),
		           (unsigned long long)(s->deadline_us > now_us ? (s->deadline_us - now_us) / 1000
		                                                        : 0),
		           s->attempt, s->prompt_tokens, s->n_out, s->max_tokens,
		           s->prefill ? s->prefill->name : "",
		           s->decode                ? s->decode->name
		           : s->alone && s->prefill ? s->prefill->name
		                                    : "");
	}
	buf_addc(out, ']');
}
