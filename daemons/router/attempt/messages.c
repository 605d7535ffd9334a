/* messages.c - what a worker's message means for the try that it is about: first token, tokens,
 * log-probabilities, embedding, failure. attempt.c has found the try.
 *
 * A message counts only if its sender, in its present life, has a part in the try. All others are
 * dropped and counted. */
#include "attempt_int.h"
#include "util/clock.h"
#include "util/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_AFTER_MAX_US 3600000000u

/* --- tokens -------------------------------------------------------------- */

/* The worker `from` has sent an invalid message. */
static enum verdict lost_by_sender(struct attempt *a, const char *from, const char *why)
{
	return attempt_lost(a, &(struct attempt_loss){PDS__FAULT__FAULT_INTERNAL, 1, from, from, why});
}

/* The attempt asked for an embedding. */
static enum verdict no_embedding(struct attempt *a, const char *from)
{
	char why[192];
	snprintf(why, sizeof why, "%s sent tokens, not the embedding that it was asked for", from);
	return lost_by_sender(a, from, why);
}

static enum verdict no_token_memory(struct attempt *a)
{
	return attempt_give_up(a, 503, "this server has no memory for the answer's tokens");
}

static enum answer_finish finish_of(Pds__Finish f)
{
	return f == PDS__FINISH__FINISH_STOP     ? ANSWER_FINISH_STOP
	       : f == PDS__FINISH__FINISH_LENGTH ? ANSWER_FINISH_LENGTH
	                                         : ANSWER_FINISH_NONE;
}

/* n tokens from the worker `from`; the first one is the answer's token `index`. */
static enum verdict take_tokens(struct attempt *a, const char *from, uint32_t index,
                                Pds__Token *const *tokens, size_t n, Pds__Finish end)
{
	struct attempt_output *got = &a->got;
	enum answer_finish last = finish_of(end);
	if (index > got->n_out) {
		char why[128];
		snprintf(why, sizeof why, "tokens %u to %u are missing before what %s sent", got->n_out,
		         index - 1, from);
		return lost_by_sender(a, from, why);
	}
	/* Repeated tokens must be the same, because seeds and numerics are equal. A difference is
	 * counted; the client keeps the token that it has. */
	for (size_t i = 0; i < n && index + i < got->n_out; i++) {
		uint32_t had = got->out[index + i];
		a->all->counts.duplicates++;
		if (had == tokens[i]->id)
			continue;
		a->all->counts.mismatches++;
		log_req(LOG_ERROR, &a->id, "token_differs", "attempt=%u index=%zu worker=%s had=%u got=%u",
		        a->number, index + i, from, had, tokens[i]->id);
	}
	size_t skip = got->n_out - index, fresh = n > skip ? n - skip : 0,
		   room = a->asked.max_tokens - got->n_out;
	if (skip > n) /* a faulty worker's end, before tokens that have arrived already */
		last = ANSWER_FINISH_NONE;
	if (fresh > room) {
		fresh = room;
		last = ANSWER_FINISH_LENGTH;
	}
	int worker_knows = last != ANSWER_FINISH_NONE;
	if (got->n_out + fresh > got->size) {
		uint32_t size = (uint32_t)(got->n_out + fresh) * 2;
		uint32_t *out = mem_try_grow(got->out, size, sizeof *out);
		if (!out)
			return no_token_memory(a);
		got->out = out;
		got->size = size;
	}
	for (size_t i = 0; i < fresh; i++)
		got->out[got->n_out + i] = tokens[skip + i]->id;
	got->n_out += (uint32_t)fresh;
	attempt_add_load(a, fresh);
	if (fresh && !got->first_us)
		got->first_us = clock_us();
	if (!worker_knows && got->n_out >= a->asked.max_tokens)
		last = ANSWER_FINISH_LENGTH;
	if (!fresh && !last)
		return DECODES;
	enum attempt_verdict v = a->hooks->tokens(a->owner, a, tokens + (fresh ? skip : 0), fresh,
	                                          last);
	if (v == ATTEMPT_GO && !last)
		return DECODES;
	if (v == ATTEMPT_ABORT) {
		attempt_give_up(a, 499, "the client takes no more");
		a->end.finish = ANSWER_FINISH_ABORT;
		return OVER;
	}
	if (worker_knows)
		attempt_close_try(a, NULL);
	a->end.status = 200;
	a->end.finish = v == ATTEMPT_STOP ? ANSWER_FINISH_STOP : last;
	return OVER;
}

/* --- timings ------------------------------------------------------------- */

/* A message of the worker that computed the prompt, or of the decode worker that took it over,
 * shows that the prompt is computed. t: as the message has it; NULL: it has none. */
static void prompt_is_computed(struct attempt *a, const Pds__Timing *t)
{
	struct attempt_times *times = &a->got.times;
	struct attempt_prediction *p = &a->try.predicted;
	struct attempts_counts *counts = &a->all->counts;
	attempt_prefill_done(a);
	if (!a->try.computed)
		registry_outcome(a->all->registry, a->try.prefill, 1, clock_us());
	a->try.computed = 1;
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
	counts->hits_predicted += p->hit;
	counts->hits_actual += t->cached_tokens;
	counts->hits_stored_predicted += p->stored;
	counts->hits_stored_actual += t->stored_tokens;
}

/* t: of the worker that generates the answer; NULL: none yet */
static void take_answer_times(struct attempt *a, const Pds__Timing *t)
{
	if (!t)
		return;
	a->got.times.transfer_us = t->transfer_us;
	a->got.times.decode_us = t->decode_us;
	a->got.times.preemptions = t->preemptions;
}

/* --- tokens of the decode worker ----------------------------------------- */

static void name_decoder(struct attempt *a, struct worker_record *d)
{
	if (!attempt_is_alone(a))
		attempt_join_decode(a, d);
	snprintf(a->try.decode_name, sizeof a->try.decode_name, "%s", attempt_decode_name(d));
}

/* All log-probabilities of the prompt must come before the first token. */
static enum verdict prompt_incomplete(struct attempt *a, const char *from)
{
	char why[192];
	snprintf(why, sizeof why,
	         "%s sent the first token after log-probabilities of %u of %u prompt tokens", from,
	         a->got.prompt_rows, a->asked.prompt_tokens);
	return lost_by_sender(a, from, why);
}

static enum verdict hold_tokens(struct attempt *a, const char *from, const Pds__SequenceTokens *m)
{
	struct attempt_try *t = &a->try;
	if (t->n_held > a->asked.max_tokens) { /* one per token, and one that repeats the first */
		char why[192];
		snprintf(why, sizeof why, "%s sent more than %u messages of an answer of at most %u tokens",
		         from, t->n_held, a->asked.max_tokens);
		return lost_by_sender(a, from, why);
	}
	size_t len = pds__sequence_tokens__get_packed_size(m);
	struct held_tokens *h = mem_try_alloc(sizeof *h + len);
	if (!h)
		return no_token_memory(a);
	t->n_held++;
	h->len = pds__sequence_tokens__pack(m, h->bytes);
	list_init(&h->node);
	list_push_back(&t->held, &h->node);
	return DECODES;
}

static enum verdict release_tokens(struct attempt *a)
{
	struct attempt_try *t = &a->try;
	enum verdict v = GO_ON;
	while ((v == GO_ON || v == DECODES) && !list_empty(&t->held)) {
		struct held_tokens *h = list_entry(t->held.next, struct held_tokens, node);
		Pds__SequenceTokens *m = pds__sequence_tokens__unpack(NULL, h->len, h->bytes);
		if (!m)
			return no_token_memory(a);
		list_remove(&h->node);
		free(h);
		t->n_held--;
		v = take_tokens(a, t->decode_name, m->index, m->tokens, m->n_tokens, m->finish);
		pds__sequence_tokens__free_unpacked(m, NULL);
	}
	return v;
}

enum verdict attempt_take_tokens(struct attempt *a, const struct attempt_event *e)
{
	const Pds__SequenceTokens *m = e->tokens;
	struct worker_record *w = e->worker;
	const struct worker_record *d = attempt_decoder(a);
	int alone = attempt_is_alone(a), named = a->state != ATTEMPT_SUBMITTED || alone;
	if (named ? d != w : !attempt_candidate(a, w)) {
		a->all->counts.stale++;
		log_req(LOG_WARN, &a->id, "tokens_from_other", "attempt=%u worker=%s expected=%s",
		        a->number, w->name, named && d ? d->name : "-");
		return GO_ON;
	}
	if (a->asked.pooling)
		return no_embedding(a, w->name);
	if (a->state == ATTEMPT_SUBMITTED) {
		name_decoder(a, w);
		log_req(LOG_INFO, &a->id, "first_token", "attempt=%u index=%u from=%s decode=%s", a->number,
		        m->index, w->name, attempt_decode_name(w));
	}
	prompt_is_computed(a, alone ? m->timing : m->prompt);
	take_answer_times(a, m->timing);
	if (!alone && !a->try.decode_sent) {
		a->try.decode_sent = 1;
		registry_outcome(a->all->registry, w, 1, clock_us());
		registry_handover(a->all->registry, a->try.prefill, w, 1, clock_us());
	}
	if (!attempt_prompt_missing(a))
		return take_tokens(a, w->name, m->index, m->tokens, m->n_tokens, m->finish);
	return alone ? prompt_incomplete(a, w->name) : hold_tokens(a, w->name, m);
}

/* --- log-probabilities of the prompt ------------------------------------- */

/* Entries are kept across tries, because all tries have the same numerics: a new try sends them
 * again from the first one. */
enum verdict attempt_take_prompt(struct attempt *a, const struct attempt_event *e)
{
	const Pds__PromptLogprobs *m = e->prompt;
	size_t n = m->n_logprobs;
	uint32_t have = a->got.prompt_rows;
	if (!attempt_prompt_missing(a)) {
		a->all->counts.stale++;
		return GO_ON;
	}
	if (!n || m->n_ranks != n || m->n_top_ids % n || m->n_top_logprobs != m->n_top_ids ||
	    m->n_top_ids / n > (size_t)a->asked.sampling.prompt_top || m->first == 0 ||
	    m->first > have || m->first + n > a->asked.prompt_tokens) {
		char why[192];
		snprintf(why, sizeof why,
		         "%s sent log-probabilities of %zu prompt tokens from %u on, having sent %u of %u",
		         e->worker->name, n, m->first, have, a->asked.prompt_tokens);
		return lost_by_sender(a, e->worker->name, why);
	}
	size_t skip = have - m->first; /* entries that arrived before */
	if (skip < n) {
		a->got.prompt_rows += (uint32_t)(n - skip);
		a->hooks->prompt(a->owner, a, m, skip, n - skip);
	}
	return attempt_prompt_missing(a) ? GO_ON : release_tokens(a);
}

/* --- embedding ----------------------------------------------------------- */

static int is_finite(const Pds__Embedding *m)
{
	for (size_t i = 0; i < m->n_values; i++)
		if (!isfinite(m->values[i]))
			return 0;
	return 1;
}

enum verdict attempt_take_embedding(struct attempt *a, const struct attempt_event *e)
{
	const Pds__Embedding *m = e->embedding;
	struct worker_record *w = e->worker;
	char why[192];
	if (m->n_values != a->asked.hidden || !is_finite(m)) {
		snprintf(why, sizeof why, "%s sent an embedding of %zu numbers%s, expected %u", w->name,
		         m->n_values, is_finite(m) ? "" : ", not all of them finite", a->asked.hidden);
		return lost_by_sender(a, w->name, why);
	}
	name_decoder(a, w);
	prompt_is_computed(a, m->timing);
	if (a->hooks->embedding(a->owner, a, m->values) < 0)
		return no_token_memory(a);
	attempt_close_try(a, NULL);
	a->end.status = 200;
	a->end.finish = ANSWER_FINISH_STOP;
	return OVER;
}

/* --- first token --------------------------------------------------------- */

/* The prefill worker has named the decode worker. RETRY or OVER: the decode worker is down or has
 * dropped the lease. */
static enum verdict accept_decoder(struct attempt *a, struct worker_record *p,
                                   const Pds__FirstToken *m)
{
	const char *name = m->decode ? m->decode : "";
	struct worker_record *d = registry_find(a->all->registry, name);
	int is_same_life = d && d->epoch == m->decode_epoch;
	struct attempt_candidate *c = is_same_life && worker_is_up(d) ? attempt_candidate(a, d) : NULL;
	char why[192];
	if (!c) {
		snprintf(why, sizeof why, "%s handed over to %.64s of epoch %016llx, which is gone",
		         p->name, *name ? name : "nobody", (unsigned long long)m->decode_epoch);
		if (is_same_life && d->ended_in_order)
			return attempt_moved(a, d, why);
		return attempt_lost(a, &(struct attempt_loss){PDS__FAULT__FAULT_PEER_LOST, 1,
		                                              *name ? name : p->name, NULL, why});
	}
	name_decoder(a, d);
	if (attempt_link_restarted(a)) {
		snprintf(why, sizeof why, "%s handed over to %s, whose link has restarted meanwhile",
		         p->name, d->name);
		return attempt_cut(a, d, why);
	}
	if (c->lease == LEASE_KEPT)
		return GO_ON;
	if (c->lease == LEASE_GIVEN_BACK) {
		snprintf(why, sizeof why, "%s handed over to %s, which is ending", p->name, d->name);
		return attempt_moved(a, d, why);
	}
	const char *blame = c->lease == LEASE_LOST_BY_PREFILL ? p->name : NULL;
	snprintf(why, sizeof why, "%s handed over to %s, which had dropped its lease", p->name,
	         d->name);
	return attempt_lost(a, &(struct attempt_loss){PDS__FAULT__FAULT_LEASE_LOST, 1, d->name, blame,
	                                              why});
}

enum verdict attempt_take_first(struct attempt *a, const struct attempt_event *e)
{
	const Pds__FirstToken *m = e->first;
	struct worker_record *p = e->worker;
	int alone = attempt_is_alone(a), is_first = a->state == ATTEMPT_SUBMITTED,
		/* the answer ends with this token, without a decode worker; ignored if later tokens have
		 * arrived already */
		ends = finish_of(m->finish) != ANSWER_FINISH_NONE && m->index + 1 >= a->got.n_out;
	enum verdict v = GO_ON;
	if (a->asked.pooling)
		return no_embedding(a, p->name);
	prompt_is_computed(a, m->timing);
	if (is_first)
		log_req(LOG_INFO, &a->id, "first_token", "attempt=%u index=%u from=%s decode=%s", a->number,
		        m->index, p->name, m->decode && *m->decode ? m->decode : "-");
	if (alone) {
		take_answer_times(a, m->timing);
		name_decoder(a, p);
	}
	if (attempt_prompt_missing(a))
		return prompt_incomplete(a, p->name);
	if (!alone && is_first && !ends)
		v = accept_decoder(a, p, m);
	if (v != GO_ON)
		return v;
	return take_tokens(a, p->name, m->index, &m->token, 1, m->finish);
}

/* --- failures ------------------------------------------------------------ */

int attempt_needs(const struct attempt *a, const struct worker_record *w)
{
	if (a->state == ATTEMPT_SUBMITTED)
		return a->try.prefill == w;
	int both = !a->try.decode_sent || attempt_prompt_missing(a);
	return a->state == ATTEMPT_RUNNING &&
	       (attempt_decoder(a) == w || (both && a->try.prefill == w));
}

/* Returns the name of the worker that a message blames if that worker has a part in the try; else
 * NULL. */
static const char *blamed(const struct attempt *a, const char *name)
{
	if (!name || !*name)
		return NULL;
	if (strcmp(name, a->try.prefill_name) == 0)
		return a->try.prefill_name;
	for (unsigned i = 0; i < a->try.n_cand; i++)
		if (strcmp(name, a->try.cand[i].name) == 0)
			return a->try.cand[i].name;
	return NULL;
}

/* The candidate with whose orderly end the lease was lost: the candidate has given it back, or
 * the fault shows it. Such a failure of the hand-over is not a loss, and not the prefill
 * worker's fault. NULL: no candidate ended in order. */
static const struct worker_record *ended_candidate(const struct attempt *a, Pds__Fault fault)
{
	int is_gone = fault == PDS__FAULT__FAULT_PEER_LOST || fault == PDS__FAULT__FAULT_LEASE_LOST;
	if (!is_gone && fault != PDS__FAULT__FAULT_STALLED && fault != PDS__FAULT__FAULT_DRAINING)
		return NULL; /* the fault has nothing to do with the hand-over */
	for (unsigned i = 0; i < a->try.n_cand; i++) {
		const struct attempt_candidate *c = &a->try.cand[i];
		const struct worker_record *w = registry_find(a->all->registry, c->name);
		if (w && (c->lease == LEASE_GIVEN_BACK ||
		          (is_gone && w->epoch == c->epoch && w->ended_in_order)))
			return w;
	}
	return NULL;
}

enum verdict attempt_take_failure(struct attempt *a, const struct attempt_event *e)
{
	const Pds__Failed *m = e->failed;
	const char *who = e->worker->name, *blame = blamed(a, m->blame);
	if (!attempt_needs(a, e->worker)) {
		/* In SUBMITTED the prefill worker may have left this candidate for another, or may notice
		 * the failure itself. */
		struct attempt_candidate *c = a->state == ATTEMPT_SUBMITTED
		                                  ? attempt_candidate(a, e->worker)
		                                  : NULL;
		if (c)
			c->lease = m->fault == PDS__FAULT__FAULT_DRAINING ? LEASE_GIVEN_BACK
			           : blame == a->try.prefill_name         ? LEASE_LOST_BY_PREFILL
			                                                  : LEASE_LOST;
		a->all->counts.stale += !c;
		log_req(LOG_INFO, &a->id, c ? "failure_kept" : "failure_ignored",
		        "attempt=%u worker=%s state=%s why=%s", a->number, who,
		        attempt_state_name(a->state), log_quote(m->text));
		return GO_ON;
	}
	a->end.retry_after_us = m->retry_after_us < RETRY_AFTER_MAX_US ? m->retry_after_us
	                                                               : RETRY_AFTER_MAX_US;
	const char *why = m->text && *m->text ? m->text : "the worker gave no reason";
	const struct worker_record *ended = a->state == ATTEMPT_SUBMITTED && m->retry && !blame
	                                        ? ended_candidate(a, m->fault)
	                                        : NULL;
	if (ended)
		return attempt_moved(a, ended, why);
	if (m->fault == PDS__FAULT__FAULT_DRAINING && m->retry) {
		const struct worker_record *other = blame ? registry_find(a->all->registry, blame) : NULL;
		return attempt_moved(a, other ? other : e->worker, why);
	}
	if (m->fault == PDS__FAULT__FAULT_OVERLOADED && m->retry && a->asked.pooling &&
	    e->worker->starting > 1)
		return attempt_put_back(a, e->worker, why);
	return attempt_lost(a, &(struct attempt_loss){m->fault, m->retry, who, blame, why});
}
