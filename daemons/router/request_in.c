/* request_in.c - what workers say about sequences: first token, tokens, failures.
 *
 * A message counts only if its attempt is the present one and its sender, in its present life, is
 * part of that attempt. Everything else is dropped and counted; a worker that goes on with an
 * attempt which nobody remembers cancelling is told again. */
#include "request_int.h"
#include "util/clock.h"
#include "util/err.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* how long a complete answer waits for the prefill worker's account of it */
#define ENDING_US 200000u

#define RETRY_AFTER_MAX_US 3600000000u

static struct seq_place *candidate(struct seq *s, const struct worker *w)
{
	for (unsigned i = 0; i < s->n_cand; i++)
		if (s->cand[i].epoch == w->epoch && strcmp(s->cand[i].name, w->name) == 0)
			return &s->cand[i];
	return NULL;
}

/* The sequence whose present attempt this is, or NULL. */
static struct seq *present(struct seqs *e, struct worker *w, const struct reqid *id,
                           uint32_t attempt)
{
	struct seq *s = seqs_find(e, id);
	if (s && s->attempt == attempt &&
	    (s->state == SEQ_SUBMITTED || s->state == SEQ_HANDED || s->state == SEQ_DECODING))
		return s;
	e->counts.stale++;
	if (!seqs_is_recent(e, id, attempt, w->epoch) && worker_is_up(w))
		seqs_send_cancel(e, w, id, attempt, "the router does not know this attempt");
	return NULL;
}

static enum seq_finish finish_of(Pds__Finish f)
{
	return f == PDS__FINISH__FINISH_STOP     ? SEQ_FINISH_STOP
	       : f == PDS__FINISH__FINISH_LENGTH ? SEQ_FINISH_LENGTH
	                                         : SEQ_FINISH_NONE;
}

/* A prefill worker's, or a lone worker's, account of the stages up to the first token. */
void seqs_take_prompt_times(struct seqs *e, struct seq_times *a, struct seq_prediction *p,
                            const Pds__Timing *t)
{
	if (!t)
		return;
	a->queue_us = t->queue_us;
	a->prepare_us = t->prepare_us;
	a->reserve_us = t->reserve_us;
	a->prefill_us = t->prefill_us;
	a->cached_tokens = t->cached_tokens;
	a->stored_tokens = t->stored_tokens;
	a->chunks = t->chunks;
	if (!p->made)
		return;
	p->made = 0;
	e->counts.hits_predicted += p->hit;
	e->counts.hits_actual += t->cached_tokens;
	e->counts.hits_stored_predicted += p->stored;
	e->counts.hits_stored_actual += t->stored_tokens;
}

/* The account of who made the answer. */
static void take_answer_times(struct seq *s, const Pds__Timing *t)
{
	struct seq_times *a = &s->times;
	if (!t)
		return;
	a->transfer_us = t->transfer_us;
	a->decode_us = t->decode_us;
	a->preemptions = t->preemptions;
}

/* Room for n more tokens of the answer. 0 or ERR_NOMEM. */
static int make_room(struct seq *s, size_t n)
{
	if (s->n_out + n <= s->size)
		return 0;
	uint32_t size = (uint32_t)(s->n_out + n) * 2;
	uint32_t *out = mem_try_grow(s->out, size, sizeof *out);
	if (!out)
		return ERR_NOMEM;
	s->out = out;
	s->size = size;
	return 0;
}

static void append(struct seq *s, Pds__Token *const *tokens, size_t n)
{
	for (size_t i = 0; i < n; i++)
		s->out[s->n_out + i] = tokens[i]->id;
	s->n_out += (uint32_t)n;
	seq_weigh(s, n);
	if (!s->first_us)
		s->first_us = clock_us();
}

/* The part that was there before must be the same: seeds and numerics are equal (a difference is
 * counted; what was said stays). */
static void compare(struct seq *s, const struct worker *w, uint32_t index,
                    Pds__Token *const *tokens, size_t n)
{
	for (size_t i = 0; i < n && index + i < s->n_out; i++) {
		uint32_t had = s->out[index + i];
		s->all->counts.duplicates++;
		if (had == tokens[i]->id)
			continue;
		s->all->counts.mismatches++;
		log_req(LOG_ERROR, &s->id, "token_differs", "attempt=%u index=%zu worker=%s had=%u got=%u",
		        s->attempt, index + i, w->name, had, tokens[i]->id);
	}
}

/* What w sent cannot be. */
static void lost_by(struct seq *s, const struct worker *w, const char *why, int retry)
{
	seq_attempt_lost(s,
	                 &(struct seq_loss){PDS__FAULT__FAULT_INTERNAL, retry, w->name, w->name, why});
}

/* Returns 0 if the sequence goes on, 1 if it ended and must not be touched. */
static int take_tokens(struct seq *s, struct worker *w, uint32_t index, Pds__Token *const *tokens,
                       size_t n, Pds__Finish finish)
{
	if (index > s->n_out) {
		char why[128];
		snprintf(why, sizeof why, "tokens %u to %u are missing before what %s sent", s->n_out,
		         index - 1, w->name);
		lost_by(s, w, why, 1);
		return 1;
	}
	compare(s, w, index, tokens, n);
	size_t skip = s->n_out - index, fresh = n > skip ? n - skip : 0,
		   room = s->max_tokens - s->n_out;
	enum seq_finish last = finish_of(finish);
	if (skip > n)
		/* an end before what is known already: only a worker that is wrong says so */
		last = SEQ_FINISH_NONE;
	if (fresh > room) {
		fresh = room;
		last = SEQ_FINISH_LENGTH;
	}
	int told = last != SEQ_FINISH_NONE;
	if (make_room(s, fresh) < 0) {
		seq_fail(s, 503, "this server has no memory for the rest of the answer");
		return 1;
	}
	if (fresh)
		append(s, tokens + skip, fresh);
	if (last == SEQ_FINISH_NONE && s->n_out >= s->max_tokens)
		last = SEQ_FINISH_LENGTH;
	enum seq_verdict v = fresh || last ? s->hooks->tokens(s->owner, s, tokens + (fresh ? skip : 0),
	                                                      fresh, last)
	                                   : SEQ_GO;
	if (v == SEQ_ABORT) {
		seq_cancel(s, "the client takes no more");
		s->hooks->ended(s->owner, s);
		return 1;
	}
	if (v == SEQ_STOP || last != SEQ_FINISH_NONE) {
		seq_done(s, v == SEQ_STOP ? SEQ_FINISH_STOP : last, told);
		return 1;
	}
	return 0;
}

/* --- log-probabilities of the prompt ------------------------------------- */

/* 0, or 1: the attempt is lost, as there cannot be so many messages with a token each. */
static int hold(struct seq *s, const struct worker *w, const Pds__SequenceTokens *m)
{
	if (s->n_held > s->max_tokens) { /* one that repeats the first token, and one for each */
		char why[192];
		snprintf(why, sizeof why, "%s sent more than %u messages of an answer of at most %u tokens",
		         w->name, s->n_held, s->max_tokens);
		lost_by(s, w, why, 1);
		return 1;
	}
	s->n_held++;
	size_t len = pds__sequence_tokens__get_packed_size(m);
	struct held_tokens *h = mem_try_alloc(sizeof *h + len);
	if (!h) {
		seq_fail(s, 503, "this server has no memory for tokens that wait");
		return 1;
	}
	h->len = pds__sequence_tokens__pack(m, h->bytes);
	list_init(&h->node);
	list_push_back(&s->held, &h->node);
	return 0;
}

int seq_release_held(struct seq *s, struct worker *w)
{
	struct list waiting; /* the sequence may end on the way: the list must outlive it */
	list_init(&waiting);
	list_remove(&s->ending);
	s->n_held = 0;
	while (!list_empty(&s->held)) {
		struct list *n = s->held.next;
		list_remove(n);
		list_push_back(&waiting, n);
	}
	int over = 0;
	list_each_safe(n, next, &waiting) {
		struct held_tokens *h = list_entry(n, struct held_tokens, node);
		Pds__SequenceTokens *m = over ? NULL : pds__sequence_tokens__unpack(NULL, h->len, h->bytes);
		if (m) {
			over = take_tokens(s, w, m->index, m->tokens, m->n_tokens, m->finish);
			pds__sequence_tokens__free_unpacked(m, NULL);
		}
		free(h);
	}
	return over;
}

/* The answer is complete before the prefill worker's account of it came, on a link of its own: its
 * end waits a moment, so that the client is told how many tokens were cached. */
static void wait_for_account(struct seq *s)
{
	if (!list_empty(&s->ending))
		return;
	s->ending_us = clock_us();
	list_push_back(&s->all->ending, &s->ending);
}

void seqs_ending_tick(struct seqs *e, uint64_t now_us)
{
	while (!list_empty(&e->ending)) {
		struct seq *s = list_entry(e->ending.next, struct seq, ending);
		if (now_us < s->ending_us + ENDING_US)
			return;
		seq_release_held(s, s->decode);
	}
}

/* What of m this sequence has not had yet: *ret_from. Returns how many, or -1 when m is none
 * that follows what came before. */
static ptrdiff_t new_of(const struct seq *s, const Pds__PromptLogprobs *m, size_t *ret_from)
{
	size_t n = m->n_logprobs;
	int whole = n && m->n_ranks == n && m->n_top_ids % n == 0 && m->n_top_logprobs == m->n_top_ids;
	if (!whole || m->n_top_ids / n > (size_t)s->sampling.prompt_top || m->first == 0 ||
	    m->first > s->got_prompt || m->first + n > s->prompt_tokens)
		return -1;
	*ret_from = s->got_prompt - m->first;
	return *ret_from < n ? (ptrdiff_t)(n - *ret_from) : 0;
}

/* They are kept over attempts, as all attempts have the same numerics: a new attempt tells them
 * again from the beginning. */
void seqs_prompt(struct seqs *e, struct worker *w, const struct msg_head *head,
                 const Pds__PromptLogprobs *m)
{
	struct seq *s = present(e, w, &head->req, head->attempt);
	size_t from = 0;
	if (!s || s->prefill != w || !s->want_prompt) {
		e->counts.stale += s != NULL;
		return;
	}
	ptrdiff_t n = new_of(s, m, &from);
	if (n < 0) {
		char why[192];
		snprintf(
			why, sizeof why,
			"%s sent log-probabilities of %zu prompt tokens from %u on, where %u of %u were there",
			w->name, m->n_logprobs, m->first, s->got_prompt, s->prompt_tokens);
		lost_by(s, w, why, 1);
		return;
	}
	s->got_prompt += (uint32_t)n;
	if (n)
		s->hooks->prompt(s->owner, s, m, from, (size_t)n);
}

/* Who computed the prompt has sent its first token. 0, or 1: something is missing, and the
 * attempt is lost. */
static int prompt_is_told(struct seq *s, const struct worker *w)
{
	if (s->want_prompt && s->got_prompt < s->prompt_tokens) {
		char why[192];
		snprintf(why, sizeof why,
		         "%s sent the first token after log-probabilities of %u of %u prompt tokens",
		         w->name, s->got_prompt, s->prompt_tokens);
		lost_by(s, w, why, 1);
		return 1;
	}
	s->want_prompt = 0;
	return 0;
}

/* --- messages ------------------------------------------------------------ */

static void name_decode(struct seq *s, struct worker *d)
{
	seq_join_decode(s, d);
	s->named = 1;
	snprintf(s->decode_name, sizeof s->decode_name, "%s", d->name);
}

/* P has said who goes on. 0, or 1: that one is dead already, or has lost its lease, and so the
 * attempt is lost. */
static int hand_to(struct seq *s, struct worker *p, const Pds__FirstToken *m)
{
	const char *name = m->decode ? m->decode : "";
	struct worker *d = registry_find(s->all->registry, name);
	int lives = d && worker_is_up(d) && d->epoch == m->decode_epoch;
	struct seq_place *c = lives ? candidate(s, d) : NULL;
	char why[192];
	if (!c) {
		snprintf(why, sizeof why, "%s handed over to %.64s of epoch %016llx, which is gone",
		         p->name, *name ? name : "nobody", (unsigned long long)m->decode_epoch);
		if (d && d->epoch == m->decode_epoch && d->ended_in_order) {
			seq_attempt_moved(s, d, why);
			return 1;
		}
		seq_attempt_lost(s, &(struct seq_loss){PDS__FAULT__FAULT_PEER_LOST, 1,
		                                       *name ? name : p->name, NULL, why});
		return 1;
	}
	name_decode(s, d);
	if (seq_link_anew(s)) {
		snprintf(why, sizeof why, "%s handed over to %s, whose link has begun anew meanwhile",
		         p->name, d->name);
		seq_attempt_cut(s, d, why);
		return 1;
	}
	if (c->lost) {
		snprintf(why, sizeof why, "%s handed over to %s, which had dropped its lease", p->name,
		         d->name);
		seq_attempt_lost(s, &(struct seq_loss){PDS__FAULT__FAULT_LEASE_LOST, 1, d->name,
		                                       c->blames_prefill ? p->name : NULL, why});
		return 1;
	}
	return 0;
}

void seqs_first_token(struct seqs *e, struct worker *w, const struct msg_head *head,
                      const Pds__FirstToken *m)
{
	if (seqs_late_first_token(e, w, head, m))
		return;
	struct seq *s = present(e, w, &head->req, head->attempt);
	if (!s)
		return;
	if (s->prefill != w || !m->token) {
		e->counts.stale++;
		return;
	}
	s->prefill_told = 1;
	seq_prefill_done(s);
	seqs_take_prompt_times(e, &s->times, &s->predicted, m->timing);
	if (s->alone)
		take_answer_times(s, m->timing);
	registry_outcome(e->registry, w, 1, clock_us());
	if (prompt_is_told(s, w))
		return;
	log_req(LOG_INFO, &s->id, s->state == SEQ_SUBMITTED ? "first_token" : "prefill_told",
	        "attempt=%u index=%u from=%s decode=%s", s->attempt, m->index, w->name,
	        m->decode && *m->decode ? m->decode : "-");
	int over = m->finish != PDS__FINISH__FINISH_NONE;
	if (s->state == SEQ_SUBMITTED) {
		if (!s->alone && !over && hand_to(s, w, m))
			return;
		if (s->alone)
			snprintf(s->decode_name, sizeof s->decode_name, "%s", w->name);
		seq_enter(s, s->alone ? SEQ_DECODING : SEQ_HANDED);
	}
	Pds__Token *one[1] = {m->token};
	if (take_tokens(s, w, m->index, one, 1, m->finish) == 0 && !list_empty(&s->held))
		seq_release_held(s, w);
}

static void sequence_tokens(struct seqs *e, struct worker *w, const Pds__SequenceTokens *m)
{
	struct reqid id = {m->request_hi, m->request_lo};
	struct seq *s = present(e, w, &id, m->attempt);
	if (!s)
		return;
	int mine = s->alone ? s->prefill == w : s->named ? s->decode == w : candidate(s, w) != NULL;
	if (!mine) {
		e->counts.stale++;
		log_req(LOG_WARN, &s->id, "tokens_from_other", "attempt=%u worker=%s expected=%s",
		        s->attempt, w->name, s->named && s->decode ? s->decode->name : "-");
		return;
	}
	if (!s->alone && !s->named)
		name_decode(s, w);
	if (s->alone)
		snprintf(s->decode_name, sizeof s->decode_name, "%s", w->name);
	if (s->state == SEQ_SUBMITTED)
		log_req(LOG_INFO, &s->id, "first_token", "attempt=%u index=%u from=%s decode=%s",
		        s->attempt, m->index, w->name, w->name);
	if (s->state != SEQ_DECODING) {
		seq_enter(s, SEQ_DECODING);
		registry_outcome(e->registry, w, 1, clock_us());
	}
	seq_prefill_done(s);
	if (s->alone)
		seqs_take_prompt_times(e, &s->times, &s->predicted, m->timing);
	take_answer_times(s, m->timing);
	if (s->want_prompt && !s->alone) {
		hold(s, w, m);
		return;
	}
	if (m->finish != PDS__FINISH__FINISH_NONE && !s->alone && !s->prefill_told && s->prefill) {
		if (hold(s, w, m) == 0)
			wait_for_account(s);
		return;
	}
	if (prompt_is_told(s, w) == 0)
		take_tokens(s, w, m->index, m->tokens, m->n_tokens, m->finish);
}

void seqs_tokens(struct seqs *e, struct worker *w, const Pds__Tokens *m)
{
	for (size_t i = 0; i < m->n_sequences; i++)
		sequence_tokens(e, w, m->sequences[i]);
}

/* The blamed worker's name, if it has a part in the attempt. */
static const char *blamed(const struct seq *s, const char *name)
{
	if (!name || !*name)
		return NULL;
	if (strcmp(name, s->prefill_name) == 0)
		return s->prefill_name;
	for (unsigned i = 0; i < s->n_cand; i++)
		if (strcmp(name, s->cand[i].name) == 0)
			return s->cand[i].name;
	return NULL;
}

/* It is not known yet who decodes: the prefill worker may have left this candidate for another,
 * or may notice. */
static void keep_failure(struct seq *s, struct seq_place *c, const Pds__Failed *m)
{
	const char *blame = blamed(s, m->blame);
	c->lost = 1;
	c->blames_prefill = blame == s->prefill_name;
	log_req(LOG_INFO, &s->id, "failure_kept", "attempt=%u worker=%s state=%s why=%s", s->attempt,
	        c->name, seq_state_name(s->state), log_quote(m->text));
}

void seqs_failed(struct seqs *e, struct worker *w, const struct msg_head *head,
                 const Pds__Failed *m)
{
	struct seq *s = seqs_find(e, &head->req);
	if (!s || s->attempt != head->attempt ||
	    (s->state != SEQ_SUBMITTED && s->state != SEQ_HANDED && s->state != SEQ_DECODING)) {
		e->counts.stale++;
		return;
	}
	int from_prefill = s->prefill == w && (s->alone || s->state != SEQ_DECODING || s->want_prompt);
	struct seq_place *c = s->named ? NULL : candidate(s, w);
	if (!from_prefill && c) {
		keep_failure(s, c, m);
		return;
	}
	if (!from_prefill && !(s->named && s->decode == w)) {
		e->counts.stale++;
		log_req(LOG_INFO, &s->id, "failure_ignored", "attempt=%u worker=%s state=%s why=%s",
		        s->attempt, w->name, seq_state_name(s->state), log_quote(m->text));
		return;
	}
	s->retry_after_us = m->retry_after_us < RETRY_AFTER_MAX_US ? m->retry_after_us
	                                                           : RETRY_AFTER_MAX_US;
	const char *why = m->text && *m->text ? m->text : "the worker gave no reason";
	if (m->fault == PDS__FAULT__FAULT_DRAINING && m->retry)
		seq_attempt_moved(s, w, why);
	else
		seq_attempt_lost(s,
		                 &(struct seq_loss){m->fault, m->retry, w->name, blamed(s, m->blame), why});
}
