/* schedule.c - the prefill scheduler: one thread that walks the running jobs in order and fills the
 * whole token budget of each step.
 *
 * It has no waiting queue and takes no blocks: a job in its list has everything it needs, but for
 * the mask of its token, if its constraint makes that expensive: then the last token of the prompt
 * waits for the mask thread (constraint.h). Long prompts are computed in chunks.
 *
 * Order: by arrival (fifo), or the shortest rest first (srpt). The rest of a job shrinks with the
 * time that it has waited and is 0 after ageing_us; then the job comes before all others, by
 * arrival, so no prompt starves. A job is never passed over for what another job lacks.
 *
 * A job that is cancelled, or whose precondition does not hold, goes back to the loop before the
 * next step. Preconditions are checked in every build and fail their own request only. The same
 * holds for a span that the engine refuses and for logits that are not finite: none of that step's
 * blocks is published then. A step that the device fails fails all jobs in it. A step allocates
 * nothing, but for slices of a prompt's log-probabilities. */
#include "schedule.h"
#include "daemons/worker/seq/constraint.h"
#include "daemons/worker/seq/pooled.h"
#include "daemons/worker/seq/score.h"
#include "util/clock.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

static void give_back(struct schedule *s, struct job_run *r)
{
	list_remove(&r->node);
	svc_post(s->w->svc, s->back, r);
}

/* Now, or in a later sweep: when the mask thread does not have it. */
static void end_run(struct schedule *s, struct job_run *r)
{
	if (constraint_stop(r->req))
		give_back(s, r);
}

static int precondition(const struct worker *w, struct job_run *r)
{
	const struct seq_blocks *b = r->blocks;
	uint32_t need = worker_blocks_for(w, r->req->n_tokens), computed = r->shared->computed,
			 full = computed / w->info->kv.block_tokens;
	int inside = b->n == need, slot = r->alone || r->slot < ring_slots(w->ring);
	char text[160];
	for (uint32_t i = 0; inside && i < need; i++)
		inside = b->block[i] < w->region.blocks;
	if (inside && computed < r->req->n_tokens && b->published <= full && slot)
		return 1;
	snprintf(text, sizeof text,
	         "scheduled with %u of %u blocks%s, %u of %u tokens computed, %u blocks published, "
	         "slot %s",
	         b->n, need, inside || b->n != need ? "" : " (one of them outside of the pool)",
	         computed, r->req->n_tokens, b->published, slot ? "held" : "missing");
	seq_failure_step(&r->failure, text);
	stat_add(svc_stats(w->svc), WS_PRECONDITIONS, 1);
	log_req(LOG_ERROR, &r->req->id, "precondition_broken", "attempt=%u text=%s", r->req->attempt,
	        log_quote(text));
	return 0;
}

void schedule_sweep(struct schedule *s, int all)
{
	list_each_safe(it, nx, &s->running) {
		struct job_run *r = list_entry(it, struct job_run, node);
		if (all || r->shared->cancelled || r->failure.kind != FAILURE_NONE ||
		    !precondition(s->w, r))
			end_run(s, r);
	}
}

/* Moves new jobs to the list; sleeps while there are none. 0: stop. */
static int collect(struct schedule *s)
{
	pthread_mutex_lock(&s->lock);
	while (list_empty(&s->inbox) && (list_empty(&s->running) || s->stalled) && !s->kicked &&
	       !s->stop)
		pthread_cond_wait(&s->wake, &s->lock);
	list_each_safe(it, nx, &s->inbox) {
		list_remove(it);
		list_push_back(&s->running, it);
	}
	int stop = s->stop;
	s->kicked = 0;
	pthread_mutex_unlock(&s->lock);
	schedule_sweep(s, stop);
	return !stop;
}

/* --- order --------------------------------------------------------------- */

/* The tokens left to compute, or those that a sharing job waits for, less the share of ageing_us
 * that the job has waited. */
static uint64_t key_of(const struct schedule *s, const struct job_run *r, uint64_t now)
{
	uint64_t waited = now > r->ready_us ? now - r->ready_us : 0;
	uint32_t computed = r->shared->computed, left = r->req->n_tokens - computed,
			 wanted = r->shared->wanted * s->w->info->kv.block_tokens;
	if (s->order == ORDER_FIFO || waited >= s->ageing_us)
		return 0;
	if (wanted > computed && wanted - computed < left)
		left = wanted - computed;
	return 1 + left * (s->ageing_us - waited) / s->ageing_us;
}

static int before(const struct job_run *a, const struct job_run *b)
{
	uint64_t a_turn = a->shared->turn, b_turn = b->shared->turn;
	return a->key != b->key   ? a->key < b->key
	       : a_turn != b_turn ? a_turn < b_turn
	                          : a->seq < b->seq;
}

/* By insertion: the list is nearly in order from the step before. */
void schedule_sort(struct schedule *s, uint64_t now_us)
{
	list_each(it, &s->running) {
		struct job_run *r = list_entry(it, struct job_run, node);
		r->key = key_of(s, r, now_us);
	}
	list_each_safe(it, nx, &s->running) {
		struct list *at = it->prev;
		while (at != &s->running &&
		       before(list_entry(it, struct job_run, node), list_entry(at, struct job_run, node)))
			at = at->prev;
		if (at == it->prev)
			continue;
		list_remove(it);
		list_push_front(at, it); /* behind `at` */
	}
}

/* --- a step's spans ------------------------------------------------------ */

struct schedule_room {
	uint32_t tokens, logits;
	uint32_t kept; /* rows of logits that prompts with logprobs leave for the others */
};

static uint32_t count_plain(const struct schedule *s)
{
	uint32_t n = 0;
	list_each(it, &s->running) {
		const struct request_copy *req = list_entry(it, struct job_run, node)->req;
		n += !req->prompt_logprobs && !req->pooling;
	}
	return n;
}

/* How many tokens of the job the step computes. A job that wants logits of every token gets at most
 * as many as there are rows; any other needs a row for its last token only, and computes all tokens
 * before that without one. */
static uint32_t share_of(const struct job_run *r, const struct schedule_room *room)
{
	uint32_t left = r->req->n_tokens - r->shared->computed,
			 take = left < room->tokens ? left : room->tokens;
	if (r->req->prompt_logprobs) {
		uint32_t rows = room->logits > room->kept ? room->logits - room->kept : 0;
		return take < rows ? take : rows;
	}
	return take == left && room->logits == 0 && !r->req->pooling ? take - 1 : take;
}

/* May the token after the prompt be drawn in this step? A job that fails here takes part in the
 * step like the others. */
static int mask_is_ready(struct schedule *s, struct job_run *r)
{
	struct err err = {0};
	int code = constraint_prepare(r->req, s->w->info, 0, &s->mask_steps, &err);
	if (code < 0 && code != ERR_TIMEOUT)
		seq_failure_draw(&r->failure, &err);
	s->unmasked += code == ERR_TIMEOUT;
	return code != ERR_TIMEOUT;
}

/* What to draw from the logits of token `row`. */
static struct engine_draw ask(const struct job_run *r, uint32_t row)
{
	if (row + 1 == r->req->n_tokens && r->failure.kind == FAILURE_NONE)
		return request_copy_draw(r->req, 0);
	if (row + 1 < r->req->prompt_tokens)
		return request_copy_score(r->req, row + 1);
	return (struct engine_draw){0};
}

/* draws: how many the step has so far. */
static void add_draws(struct schedule *s, struct job_run *r, struct engine_span *sp,
                      uint32_t *draws)
{
	uint32_t rows = sp->logits == ENGINE_LOGITS_ALL ? sp->n : sp->logits == ENGINE_LOGITS_LAST;
	sp->draws = s->draws + *draws;
	for (uint32_t i = 0; i < rows; i++)
		s->draws[(*draws)++] = ask(r, sp->position + sp->n - rows + i);
}

/* For the messager, which sends what is computed. */
static void add_progress(const struct worker *w, const struct job_run *r, struct engine_span *sp)
{
	sp->progress = ring_progress_word(w->ring, r->slot, 0);
	sp->progress_stride = w->info->layers > 1
	                          ? (size_t)(ring_progress_word(w->ring, r->slot, 1) - sp->progress)
	                          : 1;
	sp->progress_value = ring_progress_value(r->slot_gen, sp->position + sp->n);
}

static void add_span(struct schedule *s, struct job_run *r, uint32_t take, uint32_t n,
                     uint32_t *draws)
{
	uint32_t computed = r->shared->computed;
	struct engine_span *sp = &s->spans[n];
	s->step_runs[n] = r;
	*sp = (struct engine_span){
		.tokens = r->req->tokens + computed,
		.n = take,
		.position = computed,
		.blocks = r->blocks->block,
	};
	if (r->req->pooling) {
		pooled_ask(r->req, r->hidden, sp);
	} else {
		sp->logits = r->req->prompt_logprobs               ? ENGINE_LOGITS_ALL
		             : computed + take == r->req->n_tokens ? ENGINE_LOGITS_LAST
		                                                   : ENGINE_LOGITS_NONE;
		if (!r->alone)
			add_progress(s->w, r, sp);
		add_draws(s, r, sp, draws);
	}
	if (!r->shared->begun_us)
		r->shared->begun_us = clock_us();
	r->chunks++;
}

/* Spans that give hidden states go to the end: they take a pass of their own. */
static void hidden_last(struct schedule *s, uint32_t n)
{
	for (uint32_t i = 0, at = 0; i < n; i++) {
		struct engine_span sp = s->spans[i];
		struct job_run *r = s->step_runs[i];
		if (sp.hidden)
			continue;
		s->spans[i] = s->spans[at];
		s->step_runs[i] = s->step_runs[at];
		s->spans[at] = sp;
		s->step_runs[at++] = r;
	}
}

uint32_t schedule_fill(struct schedule *s)
{
	struct worker *w = s->w;
	uint32_t n = 0, draws = 0, plain = count_plain(s);
	s->mask_steps = CONSTRAINT_STEPS;
	s->unmasked = 0;
	struct schedule_room room = {w->max_batched_tokens, w->max_logits,
	                             plain < w->max_logits / 2 ? plain : w->max_logits / 2};
	list_each(it, &s->running) {
		struct job_run *r = list_entry(it, struct job_run, node);
		uint32_t take = share_of(r, &room);
		if (room.tokens == 0 || n == w->max_sequences)
			break;
		if (r->failure.kind != FAILURE_NONE) { /* it goes back when the mask thread lets it */
			s->unmasked++;
			continue;
		}
		if (take && take == r->req->n_tokens - r->shared->computed && !r->req->pooling)
			take -= !mask_is_ready(s, r);
		if (take == 0)
			continue;
		add_span(s, r, take, n, &draws);
		room.tokens -= take;
		if (!r->req->pooling)
			room.logits -= s->spans[n].logits == ENGINE_LOGITS_ALL
			                   ? take
			                   : s->spans[n].logits == ENGINE_LOGITS_LAST;
		n++;
	}
	hidden_last(s, n);
	return n;
}

/* --- the step ------------------------------------------------------------ */

void schedule_publish(struct schedule *s, struct job_run *r)
{
	seq_blocks_publish(r->blocks, s->w, r->shared->computed / s->w->info->kv.block_tokens);
	uint32_t wanted = r->shared->wanted;
	if (!wanted || r->blocks->published < wanted)
		return;
	r->shared->wanted = 0;
	svc_post(s->w->svc, s->published, r);
}

static void after_step(struct schedule *s, struct job_run *r, const struct engine_span *sp)
{
	struct worker *w = s->w;
	r->shared->computed += sp->n;
	/* before the answer leaves: whoever has it finds its tokens counted */
	w->prompt_tokens += sp->n;
	stat_add(svc_stats(w->svc), WS_PROMPT_TOKENS, sp->n);
	struct err err = {0};
	int whole = r->shared->computed == r->req->n_tokens;
	if (r->req->prompt_logprobs && score_span(w, r->req, sp, &r->scored, &err) < 0)
		seq_failure_draw(&r->failure, &err);
	if (r->req->pooling && pooled_check(sp, w->info, &err) < 0)
		seq_failure_draw(&r->failure, &err);
	if (whole && !r->req->pooling && r->failure.kind == FAILURE_NONE) {
		r->first = sp->drawn[sp->logits == ENGINE_LOGITS_ALL ? sp->n - 1 : 0];
		if (drawn_check_finite(&r->first, "answer", request_copy_index(r->req), &err) < 0)
			seq_failure_draw(&r->failure, &err);
	}
	if (!r->failure.not_finite)
		schedule_publish(s, r);
	if (r->failure.kind == FAILURE_NONE && !whole)
		return;
	r->done_us = clock_us();
	end_run(s, r);
}

static void step_failed(struct schedule *s, struct job_run *r, const struct err *err)
{
	seq_failure_engine(&r->failure, err);
	log_req(LOG_ERROR, &r->req->id, "step_failed", "attempt=%u text=%s", r->req->attempt,
	        log_quote(err->text));
	end_run(s, r);
}

/* A span that the engine refuses (it has written nothing then) fails alone: each span is tried by
 * itself. */
static uint64_t step(struct schedule *s, uint32_t first, uint32_t n)
{
	struct worker *w = s->w;
	struct err err = {0};
	uint64_t rows = 0;
	int code = engine_step(w->engine, s->spans + first, n, &err);
	if (code == ERR_INVALID && n > 1) {
		for (uint32_t i = 0; i < n; i++)
			rows += step(s, first + i, 1);
		return rows;
	}
	for (uint32_t i = first; i < first + n; i++) {
		struct job_run *r = s->step_runs[i];
		if (code < 0) {
			step_failed(s, r, &err);
			continue;
		}
		rows += s->spans[i].n;
		after_step(s, r, &s->spans[i]);
	}
	return rows;
}

static void whole_step(struct schedule *s, uint32_t n)
{
	struct worker *w = s->w;
	watch_begin(&w->watch);
	uint64_t begin = clock_us(), rows = step(s, 0, n);
	watch_end(&w->watch);
	w->progress++;
	stat_add(svc_stats(w->svc), WS_STEPS, 1);
	stat_observe_us(svc_stats(w->svc), WS_STEP_SECONDS, clock_us() - begin);
	stat_observe(svc_stats(w->svc), WS_STEP_TOKENS, rows);
	rates_note_compute(&w->rates, rows, clock_us() - begin);
}

void schedule_tell(struct schedule *s)
{
	ring_step(s->w->ring);
	list_each(it, &s->running) {
		const struct job_run *r = list_entry(it, struct job_run, node);
		if (r->slot != RUN_NO_SLOT)
			ring_schedule(s->w->ring, r->slot, r->slot_gen);
	}
}

static void mask_done(void *schedule)
{
	struct schedule *s = schedule;
	s->w->progress++;
	schedule_kick(s);
}

static void *schedule_main(void *arg)
{
	struct schedule *s = arg;
	while (collect(s)) {
		schedule_tell(s);
		schedule_sort(s, clock_us());
		uint32_t n = schedule_fill(s);
		s->stalled = !n && s->unmasked;
		if (n)
			whole_step(s, n);
	}
	return NULL;
}

void schedule_add(struct schedule *s, struct job_run *r)
{
	pthread_mutex_lock(&s->lock);
	list_push_back(&s->inbox, &r->node);
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
}

void schedule_kick(struct schedule *s)
{
	pthread_mutex_lock(&s->lock);
	s->kicked = 1;
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
}

int schedule_start(struct schedule *s, struct err *err)
{
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->wake, NULL);
	list_init(&s->inbox);
	list_init(&s->running);
	s->draws = mem_array(s->w->max_logits, sizeof *s->draws);
	s->spans = mem_array(s->w->max_sequences, sizeof *s->spans);
	s->step_runs = mem_array(s->w->max_sequences, sizeof *s->step_runs);
	constraints_on_mask(s->w->constraints, mask_done, s);
	if (pthread_create(&s->thread, NULL, schedule_main, s) != 0)
		return err_set(err, ERR_NOMEM, "cannot start the schedule thread");
	return 0;
}

void schedule_stop(struct schedule *s)
{
	pthread_mutex_lock(&s->lock);
	s->stop = 1;
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
	watch_join(s->thread);
	constraints_wait(s->w->constraints); /* it wakes this thread */
	free(s->spans);
	free(s->draws);
	free(s->step_runs);
	pthread_mutex_destroy(&s->lock);
	pthread_cond_destroy(&s->wake);
}
