/* messages.c - what workers say about answers: first token, tokens, failures.
 *
 * A message counts only if its attempt is the present one and its sender, in its present life, is
 * part of that attempt. Everything else is dropped and counted; a worker that goes on with an
 * attempt which nobody remembers cancelling is told again. */
#include "attempt_int.h"
#include "util/clock.h"
#include "util/err.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* how long a complete answer waits for the prefill worker's account of it */
#define ENDING_US 200000u

#define RETRY_AFTER_MAX_US 3600000000u

static struct attempt_place *candidate(struct attempt *a, const struct worker_record *w)
{
	for (unsigned i = 0; i < a->n_cand; i++)
		if (a->cand[i].epoch == w->epoch && strcmp(a->cand[i].name, w->name) == 0)
			return &a->cand[i];
	return NULL;
}

/* The answer whose present attempt this is, or NULL. */
static struct attempt *present(struct attempts *e, struct worker_record *w, const struct reqid *id,
                               uint32_t attempt)
{
	struct attempt *a = attempts_find(e, id);
	if (a && a->number == attempt &&
	    (a->state == ATTEMPT_SUBMITTED || a->state == ATTEMPT_HANDED ||
	     a->state == ATTEMPT_DECODING))
		return a;
	e->counts.stale++;
	if (!attempts_is_recent(e, id, attempt, w->epoch) && worker_is_up(w))
		attempts_send_cancel(e, w, id, attempt, "the router does not know this attempt");
	return NULL;
}

static enum answer_finish finish_of(Pds__Finish f)
{
	return f == PDS__FINISH__FINISH_STOP     ? ANSWER_FINISH_STOP
	       : f == PDS__FINISH__FINISH_LENGTH ? ANSWER_FINISH_LENGTH
	                                         : ANSWER_FINISH_NONE;
}

/* A prefill worker's, or a lone worker's, account of the stages up to the first token. */
void attempts_take_prompt_times(struct attempts *e, struct attempt_times *times,
                                struct attempt_prediction *p, const Pds__Timing *t)
{
	if (!t)
		return;
	times->queue_us = t->queue_us;
	times->prepare_us = t->prepare_us;
	times->reserve_us = t->reserve_us;
	times->prefill_us = t->prefill_us;
	times->cached_tokens = t->cached_tokens;
	times->stored_tokens = t->stored_tokens;
	times->chunks = t->chunks;
	if (!p->made)
		return;
	p->made = 0;
	e->counts.hits_predicted += p->hit;
	e->counts.hits_actual += t->cached_tokens;
	e->counts.hits_stored_predicted += p->stored;
	e->counts.hits_stored_actual += t->stored_tokens;
}

/* The account of who made the answer. */
static void take_answer_times(struct attempt *a, const Pds__Timing *t)
{
	struct attempt_times *times = &a->times;
	if (!t)
		return;
	times->transfer_us = t->transfer_us;
	times->decode_us = t->decode_us;
	times->preemptions = t->preemptions;
}

/* Room for n more tokens of the answer. 0 or ERR_NOMEM. */
static int make_room(struct attempt *a, size_t n)
{
	if (a->n_out + n <= a->size)
		return 0;
	uint32_t size = (uint32_t)(a->n_out + n) * 2;
	uint32_t *out = mem_try_grow(a->out, size, sizeof *out);
	if (!out)
		return ERR_NOMEM;
	a->out = out;
	a->size = size;
	return 0;
}

static void append(struct attempt *a, Pds__Token *const *tokens, size_t n)
{
	for (size_t i = 0; i < n; i++)
		a->out[a->n_out + i] = tokens[i]->id;
	a->n_out += (uint32_t)n;
	attempt_weigh(a, n);
	if (!a->first_us)
		a->first_us = clock_us();
}

/* The part that was there before must be the same: seeds and numerics are equal (a difference is
 * counted; what was said stays). */
static void compare(struct attempt *a, const struct worker_record *w, uint32_t index,
                    Pds__Token *const *tokens, size_t n)
{
	for (size_t i = 0; i < n && index + i < a->n_out; i++) {
		uint32_t had = a->out[index + i];
		a->all->counts.duplicates++;
		if (had == tokens[i]->id)
			continue;
		a->all->counts.mismatches++;
		log_req(LOG_ERROR, &a->id, "token_differs", "attempt=%u index=%zu worker=%s had=%u got=%u",
		        a->number, index + i, w->name, had, tokens[i]->id);
	}
}

/* What w sent cannot be. */
static void lost_by(struct attempt *a, const struct worker_record *w, const char *why, int retry)
{
	attempt_lost(a,
	             &(struct attempt_loss){PDS__FAULT__FAULT_INTERNAL, retry, w->name, w->name, why});
}

/* Returns 0 if the answer goes on, 1 if it ended and must not be touched. */
static int take_tokens(struct attempt *a, struct worker_record *w, uint32_t index,
                       Pds__Token *const *tokens, size_t n, Pds__Finish finish)
{
	if (index > a->n_out) {
		char why[128];
		snprintf(why, sizeof why, "tokens %u to %u are missing before what %s sent", a->n_out,
		         index - 1, w->name);
		lost_by(a, w, why, 1);
		return 1;
	}
	compare(a, w, index, tokens, n);
	size_t skip = a->n_out - index, fresh = n > skip ? n - skip : 0,
		   room = a->max_tokens - a->n_out;
	enum answer_finish last = finish_of(finish);
	if (skip > n)
		/* an end before tokens that we already have: a faulty worker */
		last = ANSWER_FINISH_NONE;
	if (fresh > room) {
		fresh = room;
		last = ANSWER_FINISH_LENGTH;
	}
	int told = last != ANSWER_FINISH_NONE;
	if (make_room(a, fresh) < 0) {
		attempt_fail(a, 503, "this server has no memory for the rest of the answer");
		return 1;
	}
	if (fresh)
		append(a, tokens + skip, fresh);
	if (last == ANSWER_FINISH_NONE && a->n_out >= a->max_tokens)
		last = ANSWER_FINISH_LENGTH;
	enum attempt_verdict v = fresh || last
	                             ? a->hooks->tokens(a->owner, a, tokens + (fresh ? skip : 0), fresh,
	                                                last)
	                             : ATTEMPT_GO;
	if (v == ATTEMPT_ABORT) {
		attempt_cancel(a, "the client takes no more");
		a->hooks->ended(a->owner, a);
		return 1;
	}
	if (v == ATTEMPT_STOP || last != ANSWER_FINISH_NONE) {
		attempt_done(a, v == ATTEMPT_STOP ? ANSWER_FINISH_STOP : last, told);
		return 1;
	}
	return 0;
}

/* --- log-probabilities of the prompt ------------------------------------- */

/* 0, or 1: more messages than tokens, so the attempt is lost. */
static int hold(struct attempt *a, const struct worker_record *w, const Pds__SequenceTokens *m)
{
	if (a->n_held > a->max_tokens) { /* one per token, and one that repeats the first */
		char why[192];
		snprintf(why, sizeof why, "%s sent more than %u messages of an answer of at most %u tokens",
		         w->name, a->n_held, a->max_tokens);
		lost_by(a, w, why, 1);
		return 1;
	}
	a->n_held++;
	size_t len = pds__sequence_tokens__get_packed_size(m);
	struct held_tokens *h = mem_try_alloc(sizeof *h + len);
	if (!h) {
		attempt_fail(a, 503, "this server has no memory for tokens that wait");
		return 1;
	}
	h->len = pds__sequence_tokens__pack(m, h->bytes);
	list_init(&h->node);
	list_push_back(&a->held, &h->node);
	return 0;
}

int attempt_release_held(struct attempt *a, struct worker_record *w)
{
	struct list waiting; /* the answer may end on the way: the list must outlive it */
	list_init(&waiting);
	list_remove(&a->ending);
	a->n_held = 0;
	while (!list_empty(&a->held)) {
		struct list *n = a->held.next;
		list_remove(n);
		list_push_back(&waiting, n);
	}
	int over = 0;
	list_each_safe(n, next, &waiting) {
		struct held_tokens *h = list_entry(n, struct held_tokens, node);
		Pds__SequenceTokens *m = over ? NULL : pds__sequence_tokens__unpack(NULL, h->len, h->bytes);
		if (m) {
			over = take_tokens(a, w, m->index, m->tokens, m->n_tokens, m->finish);
			pds__sequence_tokens__free_unpacked(m, NULL);
		}
		free(h);
	}
	return over;
}

/* The answer is complete before the prefill worker's account of it came, on a link of its own: its
 * end waits a moment, so that the client is told how many tokens were cached. */
static void wait_for_account(struct attempt *a)
{
	if (!list_empty(&a->ending))
		return;
	a->ending_us = clock_us();
	list_push_back(&a->all->ending, &a->ending);
}

void attempts_ending_tick(struct attempts *e, uint64_t now_us)
{
	while (!list_empty(&e->ending)) {
		struct attempt *a = list_entry(e->ending.next, struct attempt, ending);
		if (now_us < a->ending_us + ENDING_US)
			return;
		attempt_release_held(a, a->decode);
	}
}

/* What of m this answer has not had yet: *ret_from. Returns how many, or -1 when m is none
 * that follows what came before. */
static ptrdiff_t new_of(const struct attempt *a, const Pds__PromptLogprobs *m, size_t *ret_from)
{
	size_t n = m->n_logprobs;
	int whole = n && m->n_ranks == n && m->n_top_ids % n == 0 && m->n_top_logprobs == m->n_top_ids;
	if (!whole || m->n_top_ids / n > (size_t)a->sampling.prompt_top || m->first == 0 ||
	    m->first > a->got_prompt || m->first + n > a->prompt_tokens)
		return -1;
	*ret_from = a->got_prompt - m->first;
	return *ret_from < n ? (ptrdiff_t)(n - *ret_from) : 0;
}

/* They are kept over attempts, as all attempts have the same numerics: a new attempt tells them
 * again from the beginning. */
void attempts_prompt(struct attempts *e, struct worker_record *w, const struct msg_head *head,
                     const Pds__PromptLogprobs *m)
{
	struct attempt *a = present(e, w, &head->req, head->attempt);
	size_t from = 0;
	if (!a || a->prefill != w || !a->want_prompt) {
		e->counts.stale += a != NULL;
		return;
	}
	ptrdiff_t n = new_of(a, m, &from);
	if (n < 0) {
		char why[192];
		snprintf(
			why, sizeof why,
			"%s sent log-probabilities of %zu prompt tokens from %u on, where %u of %u were there",
			w->name, m->n_logprobs, m->first, a->got_prompt, a->prompt_tokens);
		lost_by(a, w, why, 1);
		return;
	}
	a->got_prompt += (uint32_t)n;
	if (n)
		a->hooks->prompt(a->owner, a, m, from, (size_t)n);
}

/* Who computed the prompt has sent its first token. 0, or 1: something is missing, and the
 * attempt is lost. */
static int prompt_is_told(struct attempt *a, const struct worker_record *w)
{
	if (a->want_prompt && a->got_prompt < a->prompt_tokens) {
		char why[192];
		snprintf(why, sizeof why,
		         "%s sent the first token after log-probabilities of %u of %u prompt tokens",
		         w->name, a->got_prompt, a->prompt_tokens);
		lost_by(a, w, why, 1);
		return 1;
	}
	a->want_prompt = 0;
	return 0;
}

/* --- messages ------------------------------------------------------------ */

static void name_decode(struct attempt *a, struct worker_record *d)
{
	attempt_join_decode(a, d);
	a->named = 1;
	snprintf(a->decode_name, sizeof a->decode_name, "%s", d->name);
}

/* P has said who goes on. 0, or 1: that one is dead already, or has lost its lease, and so the
 * attempt is lost. */
static int hand_to(struct attempt *a, struct worker_record *p, const Pds__FirstToken *m)
{
	const char *name = m->decode ? m->decode : "";
	struct worker_record *d = registry_find(a->all->registry, name);
	int lives = d && worker_is_up(d) && d->epoch == m->decode_epoch;
	struct attempt_place *c = lives ? candidate(a, d) : NULL;
	char why[192];
	if (!c) {
		snprintf(why, sizeof why, "%s handed over to %.64s of epoch %016llx, which is gone",
		         p->name, *name ? name : "nobody", (unsigned long long)m->decode_epoch);
		if (d && d->epoch == m->decode_epoch && d->ended_in_order) {
			attempt_moved(a, d, why);
			return 1;
		}
		attempt_lost(a, &(struct attempt_loss){PDS__FAULT__FAULT_PEER_LOST, 1,
		                                       *name ? name : p->name, NULL, why});
		return 1;
	}
	name_decode(a, d);
	if (attempt_link_restarted(a)) {
		snprintf(why, sizeof why, "%s handed over to %s, whose link has restarted meanwhile",
		         p->name, d->name);
		attempt_cut(a, d, why);
		return 1;
	}
	if (c->lost) {
		snprintf(why, sizeof why, "%s handed over to %s, which had dropped its lease", p->name,
		         d->name);
		attempt_lost(a, &(struct attempt_loss){PDS__FAULT__FAULT_LEASE_LOST, 1, d->name,
		                                       c->blames_prefill ? p->name : NULL, why});
		return 1;
	}
	return 0;
}

void attempts_first_token(struct attempts *e, struct worker_record *w, const struct msg_head *head,
                          const Pds__FirstToken *m)
{
	if (attempts_late_first_token(e, w, head, m))
		return;
	struct attempt *a = present(e, w, &head->req, head->attempt);
	if (!a)
		return;
	if (a->prefill != w || !m->token) {
		e->counts.stale++;
		return;
	}
	a->prefill_told = 1;
	attempt_prefill_done(a);
	attempts_take_prompt_times(e, &a->times, &a->predicted, m->timing);
	if (a->alone)
		take_answer_times(a, m->timing);
	registry_outcome(e->registry, w, 1, clock_us());
	if (prompt_is_told(a, w))
		return;
	log_req(LOG_INFO, &a->id, a->state == ATTEMPT_SUBMITTED ? "first_token" : "prefill_told",
	        "attempt=%u index=%u from=%s decode=%s", a->number, m->index, w->name,
	        m->decode && *m->decode ? m->decode : "-");
	int over = m->finish != PDS__FINISH__FINISH_NONE;
	if (a->state == ATTEMPT_SUBMITTED) {
		if (!a->alone && !over && hand_to(a, w, m))
			return;
		if (a->alone)
			snprintf(a->decode_name, sizeof a->decode_name, "%s", w->name);
		attempt_enter(a, a->alone ? ATTEMPT_DECODING : ATTEMPT_HANDED);
	}
	Pds__Token *one[1] = {m->token};
	if (take_tokens(a, w, m->index, one, 1, m->finish) == 0 && !list_empty(&a->held))
		attempt_release_held(a, w);
}

static void take_sequence(struct attempts *e, struct worker_record *w, const Pds__SequenceTokens *m)
{
	struct reqid id = {m->request_hi, m->request_lo};
	struct attempt *a = present(e, w, &id, m->attempt);
	if (!a)
		return;
	int mine = a->alone ? a->prefill == w : a->named ? a->decode == w : candidate(a, w) != NULL;
	if (!mine) {
		e->counts.stale++;
		log_req(LOG_WARN, &a->id, "tokens_from_other", "attempt=%u worker=%s expected=%s",
		        a->number, w->name, a->named && a->decode ? a->decode->name : "-");
		return;
	}
	if (!a->alone && !a->named)
		name_decode(a, w);
	if (a->alone)
		snprintf(a->decode_name, sizeof a->decode_name, "%s", w->name);
	if (a->state == ATTEMPT_SUBMITTED)
		log_req(LOG_INFO, &a->id, "first_token", "attempt=%u index=%u from=%s decode=%s", a->number,
		        m->index, w->name, w->name);
	if (a->state != ATTEMPT_DECODING) {
		attempt_enter(a, ATTEMPT_DECODING);
		registry_outcome(e->registry, w, 1, clock_us());
	}
	attempt_prefill_done(a);
	if (a->alone)
		attempts_take_prompt_times(e, &a->times, &a->predicted, m->timing);
	take_answer_times(a, m->timing);
	if (a->want_prompt && !a->alone) {
		hold(a, w, m);
		return;
	}
	if (m->finish != PDS__FINISH__FINISH_NONE && !a->alone && !a->prefill_told && a->prefill) {
		if (hold(a, w, m) == 0)
			wait_for_account(a);
		return;
	}
	if (prompt_is_told(a, w) == 0)
		take_tokens(a, w, m->index, m->tokens, m->n_tokens, m->finish);
}

void attempts_tokens(struct attempts *e, struct worker_record *w, const Pds__Tokens *m)
{
	for (size_t i = 0; i < m->n_sequences; i++)
		take_sequence(e, w, m->sequences[i]);
}

/* The blamed worker's name, if it has a part in the attempt. */
static const char *blamed(const struct attempt *a, const char *name)
{
	if (!name || !*name)
		return NULL;
	if (strcmp(name, a->prefill_name) == 0)
		return a->prefill_name;
	for (unsigned i = 0; i < a->n_cand; i++)
		if (strcmp(name, a->cand[i].name) == 0)
			return a->cand[i].name;
	return NULL;
}

/* It is not known yet who decodes: the prefill worker may have left this candidate for another,
 * or may notice. */
static void keep_failure(struct attempt *a, struct attempt_place *c, const Pds__Failed *m)
{
	const char *blame = blamed(a, m->blame);
	c->lost = 1;
	c->blames_prefill = blame == a->prefill_name;
	log_req(LOG_INFO, &a->id, "failure_kept", "attempt=%u worker=%s state=%s why=%s", a->number,
	        c->name, attempt_state_name(a->state), log_quote(m->text));
}

void attempts_failed(struct attempts *e, struct worker_record *w, const struct msg_head *head,
                     const Pds__Failed *m)
{
	struct attempt *a = attempts_find(e, &head->req);
	if (!a || a->number != head->attempt ||
	    (a->state != ATTEMPT_SUBMITTED && a->state != ATTEMPT_HANDED &&
	     a->state != ATTEMPT_DECODING)) {
		e->counts.stale++;
		return;
	}
	int from_prefill = a->prefill == w &&
	                   (a->alone || a->state != ATTEMPT_DECODING || a->want_prompt);
	struct attempt_place *c = a->named ? NULL : candidate(a, w);
	if (!from_prefill && c) {
		keep_failure(a, c, m);
		return;
	}
	if (!from_prefill && !(a->named && a->decode == w)) {
		e->counts.stale++;
		log_req(LOG_INFO, &a->id, "failure_ignored", "attempt=%u worker=%s state=%s why=%s",
		        a->number, w->name, attempt_state_name(a->state), log_quote(m->text));
		return;
	}
	a->retry_after_us = m->retry_after_us < RETRY_AFTER_MAX_US ? m->retry_after_us
	                                                           : RETRY_AFTER_MAX_US;
	const char *why = m->text && *m->text ? m->text : "the worker gave no reason";
	if (m->fault == PDS__FAULT__FAULT_DRAINING && m->retry)
		attempt_moved(a, w, why);
	else
		attempt_lost(a,
		             &(struct attempt_loss){m->fault, m->retry, w->name, blamed(a, m->blame), why});
}
