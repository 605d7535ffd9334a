/* spec.c - speculative decoding on the schedule thread: which running ones get a draft for the next
 * step, how long, and what became of it.
 *
 * A draft is what ngram.h expects after a run's last token. It is written behind the tokens
 * (n_tokens does not count it) and computed in the same step, one row per token. While a step is in
 * flight, only the device knows the last tokens: then it makes the draft, from its own history of
 * the sequence, and here only its length is planned, by what is known. Each row is
 * sampled as it would have been alone, by the request's seed and the token's index, and the rows
 * count as long as the draft has the token that was sampled. So the answer is the same bit for bit
 * as without drafts: they only decide how many steps it takes.
 *
 * How long a draft may be is learned from what became of the run's last ones (record.c) and from
 * what rows cost (cost.c). A draft only gets rows that the step has to spare: it never makes a
 * prompt's chunk smaller, preempts nobody, and takes no block that a preempted one waits for. */
#include "spec.h"
#include "daemons/worker/batch/batch.h"
#include "daemons/worker/seq/constraint.h"
#include "ngram.h"
#include "util/least.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define SHOWN 5u /* sizes of steps whose times pdctl shows: 1, 2, 4, 8, 16 rows */

struct sequence_drafts {
	struct ngram *index;
	struct spec_record record;
	/* of the draft that was looked for last: the place that it is copied from; number of tokens
	 * before that place that equal the last ones, 0: there is none */
	uint32_t next, match;
	/* the device's history of it: 1 + its number, 0: none yet; tokens that it has at most, 0: they
	 * are not its latest ones */
	uint32_t history, history_tokens;
};

struct drafts {
	int is_on;
	uint32_t ngram_min;
	struct spec_cost cost;
	_Atomic uint32_t shown_us[SHOWN]; /* of `cost`, for other threads; 0: nothing was measured */
	struct spec_want *want;           /* (max_sequences) of this step */
	struct run **wanting;             /* (max_sequences) the runs that they are of */
	uint32_t *unused, n_unused;       /* (info.histories) the device's histories, from 1 */
};

/* 1: something is proposed, sd->next and sd->match are set. */
static int find_ngram(struct sequence_drafts *sd, const struct request_copy *req)
{
	sd->match = ngram_find(sd->index, req->tokens, req->n_tokens, &sd->next);
	return sd->match != 0;
}

/* --- life ---------------------------------------------------------------- */

struct drafts *drafts_new(const struct batcher *b)
{
	struct worker *w = b->w;
	struct drafts *s = mem_zalloc(sizeof *s);
	s->is_on = b->config.drafts;
	s->ngram_min = w->conf.spec_ngram_min;
	s->want = mem_array(w->conf.max_sequences, sizeof *s->want);
	s->wanting = mem_array(w->conf.max_sequences, sizeof *s->wanting);
	s->unused = mem_array(w->info->histories, sizeof *s->unused);
	while (s->n_unused < w->info->histories) {
		s->unused[s->n_unused] = s->n_unused + 1;
		s->n_unused++;
	}
	if (s->is_on)
		log_notice("speculative", "proposer=ngram tokens_max=%u ngram_min=%u", WORKER_DRAFT_TOKENS,
		           s->ngram_min);
	return s;
}

void drafts_destroy(struct drafts **sp)
{
	struct drafts *s = *sp;
	if (!s)
		return;
	free(s->want);
	free(s->wanting);
	free(s->unused);
	free(s);
	*sp = NULL;
}

void drafts_give_history(struct batcher *b, struct run *r)
{
	struct drafts *s = b->own.drafts;
	if (!r->drafts || !r->drafts->history)
		return;
	s->unused[s->n_unused++] = r->drafts->history;
	r->drafts->history = r->drafts->history_tokens = 0;
}

void drafts_forget(struct batcher *b, struct run *r)
{
	if (!r->drafts)
		return;
	drafts_give_history(b, r);
	ngram_destroy(&r->drafts->index);
	free(r->drafts);
	r->drafts = NULL;
}

static struct sequence_drafts *sequence_drafts_new(const struct drafts *s)
{
	struct sequence_drafts *sd = mem_zalloc(sizeof *sd);
	sd->index = ngram_new(s->ngram_min);
	spec_record_init(&sd->record, WORKER_DRAFT_TOKENS);
	return sd;
}

/* --- planning ------------------------------------------------------------ */

/* How many tokens its answer may get after the one of this step. */
static uint32_t tokens_beyond(const struct run *r)
{
	const struct request_copy *req = &r->req;
	uint32_t answer = req->max_tokens - request_copy_index(req),
			 room = req->limit_tokens - req->n_tokens, most = (uint32_t)least(answer, room),
			 used = 1 + run_tokens_after_drafts(r) - req->n_tokens;
	return most > used ? most - used : 0;
}

/* 1: a draft is expected to help r; *ret says how many rows it could use. */
static int wants(struct drafts *s, const struct batcher *b, struct run *r, struct spec_want *ret)
{
	if (!r->first_us)
		return 0; /* it computes its prompt's last token, which may be scored */
	if (!r->drafts)
		r->drafts = sequence_drafts_new(s);
	struct sequence_drafts *sd = r->drafts;
	uint32_t most = tokens_beyond(r), has = r->blocks.n * b->w->info->kv.block_tokens,
			 tokens = run_tokens_after_drafts(r);
	if (b->shared.preempted)
		/* free blocks are for those that wait for them */
		most = (uint32_t)least(most, has > tokens ? has - tokens : 0);
	if (!find_ngram(sd, &r->req) || !most)
		return 0;
	*ret = (struct spec_want){.most = least(most, sd->record.length),
	                          .match = sd->match,
	                          .miss = spec_record_miss(&sd->record)};
	return 1;
}

/* The device's history of r goes on with what is in flight. */
static int history_goes_on(const struct batcher *b, const struct run *r)
{
	uint32_t tokens = r->drafts->history_tokens;
	return tokens &&
	       tokens + r->draws_in_flight + r->drafts_in_flight <= b->w->info->history_tokens;
}

/* Leaves the draft to the device, with a history that goes on or, with `may_begin`, begins now. */
static void plan_on_device(struct batcher *b, struct run *r, uint32_t rows, int *may_begin)
{
	if (r->req.edit) { /* its draws need the tokens */
		b->own.must_land = 1;
		return;
	}
	int begins = !history_goes_on(b, r), can = r->drafts->history || b->own.drafts->n_unused;
	if (!begins || (*may_begin && can))
		r->ahead = rows;
	*may_begin &= !begins;
}

/* Writes the draft behind the tokens, where the next ones will be. */
static void write_draft(struct batcher *b, struct run *r, uint32_t rows)
{
	struct request_copy *req = &r->req;
	if (req->n_tokens + rows > req->room_tokens) {
		req->room_tokens = req->n_tokens + rows + 64;
		req->tokens = mem_grow(req->tokens, req->room_tokens, sizeof *req->tokens);
	}
	ngram_copy(req->tokens, req->n_tokens, r->drafts->next, rows, req->tokens + req->n_tokens);
	/* tokens that its constraint does not allow will not be sampled */
	r->ahead = constraint_leading(req, rows, &b->own.mask_steps);
}

void drafts_plan(struct batcher *b)
{
	struct drafts *s = b->own.drafts;
	uint32_t n = 0, decode = 0, prompt = 0, chunk;
	if (!s->is_on)
		return;
	list_each(it, &b->own.running) {
		struct run *r = list_entry(it, struct run, node);
		uint32_t left = run_rows_after_step(r);
		r->ahead = 0;
		if (run_phase(r) != RUN_RUNNING || r->ended || run_ends_in_flight(r) ||
		    constraint_is_busy(&r->req))
			continue; /* it takes part in no step, perhaps before storage has answered */
		decode += left == 1;
		prompt += left > 1 ? left : 0;
		if (left == 1 && n < b->w->conf.max_sequences && wants(s, b, r, &s->want[n]))
			s->wanting[n++] = r;
	}
	uint32_t spare = spec_spare(b->w->conf.max_batched_tokens, b->config.chunk_tokens, decode,
	                            prompt, &chunk);
	if (!n || !spec_share(&s->cost, decode, chunk, spare, s->want, n))
		return;
	int may_begin = 1; /* one history a step: it takes room in the batch */
	for (uint32_t i = 0; i < n; i++)
		if (s->want[i].rows && s->wanting[i]->draws_in_flight)
			plan_on_device(b, s->wanting[i], s->want[i].rows, &may_begin);
		else if (s->want[i].rows)
			write_draft(b, s->wanting[i], s->want[i].rows);
}

void drafts_ask(struct batcher *b, struct run *r, struct engine_span *sp)
{
	struct sequence_drafts *sd = r->drafts;
	uint32_t most = b->w->info->history_tokens, more = r->draws_in_flight + r->drafts_in_flight;
	if (!sd || !most)
		return;
	if (!sp->continues || !history_goes_on(b, r))
		sd->history_tokens = 0;
	if (!sp->continues || (!sd->history_tokens && !sp->drafts))
		return;
	if (!sd->history)
		sd->history = b->own.drafts->unused[--b->own.drafts->n_unused];
	sp->history = sd->history;
	if (!sd->history_tokens) { /* room is left for what will be drawn */
		sp->n_known = (uint32_t)least(r->req.n_tokens, most / 2);
		sp->known = r->req.tokens + r->req.n_tokens - sp->n_known;
		sd->history_tokens = sp->n_known;
	}
	sd->history_tokens += more;
}

/* --- learning ------------------------------------------------------------ */

void drafts_step_took(struct batcher *b, uint32_t rows, uint64_t us)
{
	struct drafts *s = b->own.drafts;
	if (!s->is_on)
		return;
	spec_cost_note(&s->cost, rows, us);
	if (s->cost.notes % 16)
		return;
	for (uint32_t i = 0; i < SHOWN; i++)
		s->shown_us[i] = (uint32_t)spec_cost_of(&s->cost, 1u << i);
}

void drafts_recall(struct run *r)
{
	find_ngram(r->drafts, &r->req);
}

void drafts_learn(struct batcher *b, struct run *r, uint32_t drafted, uint32_t right)
{
	struct sequence_drafts *sd = r->drafts;
	struct worker_stats *stats = &b->w->stats;
	if (!sd)
		return;
	spec_record_step(&sd->record);
	if (!drafted || !sd->match)
		return; /* the device found nothing, either, and has repeated a token */
	spec_record_draft(&sd->record, sd->match, drafted, right, WORKER_DRAFT_TOKENS);
	r->drafted += drafted;
	r->accepted += right;
	stats->spec_drafts++;
	stats->spec_proposed += drafted;
	stats->spec_accepted += right;
}

void drafts_status(const struct batcher *b, struct buf *out)
{
	const struct worker_stats *stats = &b->w->stats;
	buf_printf(
		out,
		",\"speculative\":\"%s\",\"drafts\":%llu,\"drafted_tokens\":%llu,\"accepted_tokens\":%llu",
		b->own.drafts->is_on ? "ngram" : "off", (unsigned long long)stats->spec_drafts,
		(unsigned long long)stats->spec_proposed, (unsigned long long)stats->spec_accepted);
	if (!b->own.drafts->is_on)
		return;
	buf_adds(out, ",\"step_us_by_rows\":{");
	for (uint32_t i = 0; i < SHOWN; i++)
		buf_printf(out, "%s\"%u\":%u", i ? "," : "", 1u << i, b->own.drafts->shown_us[i]);
	buf_addc(out, '}');
}
