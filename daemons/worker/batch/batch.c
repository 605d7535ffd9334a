/* batch.c - continuous batching: the schedule thread of both stages.
 *
 * Each step takes one row of every run that decodes and, beside them, chunks of those whose prompt
 * (after a preemption: all tokens so far) is still to be computed. A run needs only
 * `computed < n_tokens`: decoding is the case of one token, and a draft of the next tokens (draft/)
 * is rows beyond it, which count as long as they are right. When a block is missing the youngest
 * run is preempted (preempt.c). A failed step fails the runs in it. The runs of a step that the
 * engine refuses are tried one by one, and those that it refuses again fail. Logits that are not
 * finite fail their own run, and none of its blocks of that step is published.
 *
 * Where the device can, a step is planned and started while the one before it is in flight; its
 * results are taken (land) after that. A run that has ended meanwhile is `ended`, and given back
 * when no step in flight has rows of it.
 *
 * The masks of a step's constrained runs may take CONSTRAINT_STEPS of this thread. A run whose mask
 * takes more sits steps out until the mask thread has computed it. */
#include "batch.h"
#include "daemons/worker/seq/constraint.h"
#include "daemons/worker/seq/pooled.h"
#include "daemons/worker/seq/score.h"
#include "util/check.h"
#include "util/least.h"
#include "util/mem.h"

#include <math.h>
#include <stdlib.h>

/* --- phases of a run ----------------------------------------------------- */

#define TO(p) (1u << RUN_##p)

static const struct {
	const char *name;
	unsigned followers;
} phases[] = {
	[RUN_WAITING] = {"waiting", TO(RUNNING)},
	[RUN_PREEMPTED] = {"preempted", TO(RUNNING)},
	[RUN_RUNNING] = {"active", TO(RESTORING) | TO(PREEMPTED)},
	[RUN_RESTORING] = {"restoring", TO(RUNNING) | TO(PREEMPTED)},
};

const char *run_phase_name(enum run_phase p)
{
	return phases[p].name;
}

static void insert_by_age(struct list *head, struct run *r)
{
	struct list *at = head->prev;
	while (at != head && list_entry(at, struct run, node)->born_us > r->born_us)
		at = at->prev;
	list_push_front(at, &r->node); /* after `at` */
}

/* Is it in batcher_own.running? */
static int phase_has_blocks(enum run_phase p)
{
	return p == RUN_RUNNING || p == RUN_RESTORING;
}

void run_enter(struct batcher *b, struct run *r, enum run_phase next)
{
	enum run_phase was = run_phase(r);
	int ran = phase_has_blocks(was), runs = phase_has_blocks(next);
	if (!((phases[was].followers >> next) & 1))
		PANIC("run of %s: %s -> %s is no legal step", log_reqid(&r->req.id), phases[was].name,
		      phases[next].name);
	if (ran != runs) {
		list_remove(&r->node);
		insert_by_age(runs ? &b->own.running : &b->own.waiting, r);
	}
	b->own.n_running += (uint32_t)runs - (uint32_t)ran;
	b->shared.preempted += (uint32_t)(next == RUN_PREEMPTED) - (uint32_t)(was == RUN_PREEMPTED);
	atomic_store_explicit(&r->shared->phase, next, memory_order_relaxed);
}

/* Output caching: what a sequence has computed, prompt and answer, goes to storage when it ends, so
 * that the next turn of the conversation finds both there. Blocks are only marked here; the
 * worker's write-out sends those that storage lacks, and they stay matchable meanwhile. */
static void keep_output(struct batcher *b, struct run *r)
{
	if (!b->config.keep_outputs || r->failure.kind != FAILURE_NONE || b->shared.stop ||
	    r->req.pooling)
		return;
	uint32_t n = kv_pool_want_stored(b->w->pool, r->blocks.block,
	                                 (uint32_t)least(r->blocks.published, r->blocks.n));
	b->w->stats.kept += n;
}

static void return_run(struct batcher *b, struct run *r)
{
	keep_output(b, r);
	if (!r->first_only)
		preempt_drop_blocks(b, r);
	drafts_forget(b, r);
	/* not only at the next count: the loop looks for room as soon as it hears of the end */
	b->shared.growth_blocks -= r->growth;
	r->growth = 0;
	list_remove(&r->node);
	b->own.n_running -= (uint32_t)phase_has_blocks(run_phase(r));
	b->shared.preempted -= run_phase(r) == RUN_PREEMPTED;
	r->done_us = clock_us();
	svc_post(b->w->svc, b->returned, r);
}

/* --- collecting ---------------------------------------------------------- */

uint64_t batcher_growth(const struct batcher *b, const struct request_copy *req, double ratio)
{
	if (req->pooling)
		return 0;
	uint64_t left = least(req->max_tokens - request_copy_index(req), GROWTH_CAP_TOKENS);
	return (uint64_t)ceil((double)left * ratio / b->w->info->kv.block_tokens);
}

static uint64_t growth_of(const struct batcher *b, const struct run *r)
{
	return r->first_only ? 0 : batcher_growth(b, &r->req, b->locked.ratio);
}

static uint64_t growth_of_all(const struct batcher *b, const struct list *l)
{
	uint64_t blocks = 0;
	list_each(it, l) {
		struct run *r = list_entry(it, struct run, node);
		blocks += r->growth = growth_of(b, r);
	}
	return blocks;
}

static int may_sleep(const struct batcher *b)
{
	return !b->own.in_flight && !b->shared.stop && !b->locked.kicked &&
	       list_empty(&b->locked.inbox) && list_empty(&b->locked.answers) &&
	       (list_empty(&b->own.running) || b->own.stalled);
}

/* Until there is something to do, or until those that wait for room or for storage are to be looked
 * at again. */
static void sleep_for_work(struct batcher *b)
{
	struct batcher_locked *l = &b->locked;
	while (may_sleep(b)) {
		uint64_t until = preempt_wake_us(b);
		if (!until &&
		    (list_empty(&b->own.running) || !list_empty(&b->own.restores) || b->own.unmasked)) {
			pthread_cond_wait(&l->wake, &l->lock);
			continue;
		}
		if (!until)
			until = clock_us() + LOOK_AGAIN_US;
		struct timespec t = {.tv_sec = (time_t)(until / 1000000u),
		                     .tv_nsec = (long)(until % 1000000u) * 1000};
		pthread_cond_timedwait(&l->wake, &l->lock, &t);
		break;
	}
	l->kicked = 0;
}

/* Gives the run back now, or when nothing else has it any more. */
static void end_run(struct batcher *b, struct run *r)
{
	r->ended = 1;
	if (!r->step && constraint_stop(&r->req))
		return_run(b, r);
}

void batch_sweep(struct batcher *b, struct list *l)
{
	list_each_safe(it, nx, l) {
		struct run *r = list_entry(it, struct run, node);
		if (r->shared->cancelled || r->ended || b->shared.stop)
			end_run(b, r);
	}
}

/* With the lock held. Also before the thread sleeps: runs that were returned ask for no room. */
static void count_growth(struct batcher *b)
{
	b->shared.growth_blocks = growth_of_all(b, &b->own.running) +
	                          growth_of_all(b, &b->own.waiting) +
	                          growth_of_all(b, &b->locked.inbox);
}

/* Returns 0 when the thread is to end. */
static int collect(struct batcher *b)
{
	struct batcher_locked *l = &b->locked;
	pthread_mutex_lock(&l->lock);
	count_growth(b);
	sleep_for_work(b);
	list_each_safe(it, nx, &l->inbox) {
		struct run *r = list_entry(it, struct run, node);
		list_remove(&r->node);
		insert_by_age(&b->own.waiting, r);
		if (r->blocks.n)
			run_enter(b, r, RUN_RUNNING);
	}
	if (!list_empty(&b->own.running))
		l->ratio = fmax(l->ratio - GROWTH_STEP, b->config.ratio_min);
	count_growth(b);
	int go = !b->shared.stop;
	pthread_mutex_unlock(&l->lock);
	restore_progress(b);
	batch_sweep(b, &b->own.running);
	batch_sweep(b, &b->own.waiting);
	return go;
}

/* --- one step ------------------------------------------------------------ */

/* Finds the tokens that the constraint allows after the last token and after each of its draft,
 * which is cut where that is unknown. A run that fails here goes through the step like the others,
 * and is given back after it. Returns 0: its next token cannot be drawn yet. */
static int prepare_mask(struct batcher *b, struct run *r)
{
	struct err err = {0};
	int ahead = constraint_prepare(&r->req, b->w->info, r->ahead, &b->own.mask_steps, &err);
	if (ahead < 0 && ahead != ERR_TIMEOUT)
		seq_failure_draw(&r->failure, &err);
	r->ahead = ahead < 0 ? 0 : (uint32_t)ahead;
	b->own.unmasked += ahead == ERR_TIMEOUT;
	return ahead != ERR_TIMEOUT;
}

/* What to draw or score from the row that computes token `row`, counted with the draft. */
static struct engine_draw row_draw(const struct run *r, uint32_t row)
{
	uint32_t last = r->req.n_tokens - 1;
	if (r->draws_in_flight)
		return request_copy_draw_pending(&r->req, row - r->req.n_tokens);
	if (row >= last && r->failure.kind == FAILURE_NONE)
		return request_copy_draw(&r->req, row - last);
	if (r->req.prompt_logprobs && row + 1 < r->req.prompt_tokens && row + 1 > r->scored)
		return request_copy_score(&r->req, row + 1);
	return (struct engine_draw){0};
}

/* Its next step depends on what this one brings. With `edit` the draws after a draft depend on how
 * many of it are right. */
static int needs_tokens(const struct run *r, const struct engine_span *sp)
{
	return r->req.constraint || r->req.needs_latest || r->req.pooling ||
	       (r->req.edit && sp->drafts) || score_is_owed(&r->req, r->scored);
}

static void ask_draws(const struct run *r, struct engine_span *sp, struct engine_draw *draws,
                      uint32_t *n_draws)
{
	uint32_t left = run_rows_after_step(r);
	sp->logits = score_is_owed(&r->req, r->scored) || sp->n > left ? ENGINE_LOGITS_ALL
	             : sp->n == left                                   ? ENGINE_LOGITS_LAST
	                                                               : ENGINE_LOGITS_NONE;
	sp->draws = draws + *n_draws;
	uint32_t rows = sp->logits == ENGINE_LOGITS_ALL ? sp->n : sp->logits == ENGINE_LOGITS_LAST;
	for (uint32_t i = 0; i < rows; i++)
		draws[(*n_draws)++] = row_draw(r, sp->position + sp->n - rows + i);
}

static void add_span(struct batcher *b, struct batch_step *s, struct run *r, uint32_t n_rows,
                     uint32_t *draws)
{
	struct worker *w = b->w;
	uint32_t left = run_rows_after_step(r);
	struct engine_span *sp = &s->spans[s->n];
	*sp = (struct engine_span){
		.tokens = r->req.tokens + r->computed + r->rows_in_flight,
		.n = n_rows,
		.position = r->computed + r->rows_in_flight,
		.drafts = n_rows > left ? n_rows - left : 0,
		.continues = r->draws_in_flight ? 1 + r->span_in_flight : 0,
		.blocks = r->blocks.block,
	};
	drafts_ask(b, r, sp);
	if (!r->begin_us)
		r->begin_us = clock_us();
	if (r->slot != RUN_NO_SLOT) { /* for the messager, which sends what is computed */
		sp->progress = ring_progress_word(w->ring, r->slot, 0);
		sp->progress_stride = w->info->layers > 1
		                          ? (size_t)(ring_progress_word(w->ring, r->slot, 1) - sp->progress)
		                          : 1;
		sp->progress_value = ring_progress_value(r->slot_gen, sp->position + sp->n);
	}
	if (r->req.pooling)
		pooled_ask(&r->req, r->hidden, sp);
	else
		ask_draws(r, sp, s->draws, draws);
	s->alone |= needs_tokens(r, sp);
	r->step = s;
	r->span_in_flight = s->n;
	r->rows_in_flight = n_rows - sp->drafts;
	r->drafts_in_flight = sp->drafts;
	r->draws_in_flight = n_rows >= left && !r->req.pooling;
	s->runs[s->n++] = r;
}

/* Spans that give hidden states go to the end: they take a pass of their own. */
static void hidden_last(struct batch_step *s)
{
	for (uint32_t i = 0, at = 0; i < s->n; i++) {
		struct engine_span sp = s->spans[i];
		struct run *r = s->runs[i];
		if (sp.hidden)
			continue;
		s->spans[i] = s->spans[at];
		s->runs[i] = s->runs[at];
		s->spans[at] = sp;
		s->runs[at++] = r;
	}
	for (uint32_t i = 0; i < s->n; i++)
		s->runs[i]->span_in_flight = i;
}

void batch_fill(struct batcher *b, struct batch_step *s)
{
	struct worker *w = b->w;
	uint32_t rows = 0, logits = 0, draws = 0, plain = 0;
	s->n = 0;
	s->alone = !b->config.overlap || !w->info->overlap;
	b->own.unmasked = 0;
	list_each(it, &b->own.running) {
		struct run *r = list_entry(it, struct run, node);
		b->own.unmasked += r->ended; /* given back when its mask is ready */
		plain += !r->req.pooling && !score_is_owed(&r->req, r->scored) &&
		         run_rows_after_step(r) > 1;
		if (run_rows_after_step(r) == 1 && s->n < w->conf.max_sequences && logits < w->max_logits &&
		    preempt_is_ready(b, r) && !run_ends_in_flight(r) && prepare_mask(b, r)) {
			/* the row of its last token, and rows of the draft, for which there is room */
			uint32_t take = 1 + r->ahead;
			add_span(b, s, r, take, &draws);
			rows += take;
			logits += take;
		}
	}
	uint32_t free_rows = rows < w->conf.max_batched_tokens ? w->conf.max_batched_tokens - rows : 0;
	uint32_t budget = (uint32_t)least(rows ? b->config.chunk_tokens : w->conf.max_batched_tokens,
	                                  free_rows);
	/* a prompt whose tokens all need a row of logits leaves some to those that need one row each */
	uint32_t kept = (uint32_t)least(plain, w->max_logits / 2);
	list_each(it, &b->own.running) {
		struct run *r = list_entry(it, struct run, node);
		uint32_t left = run_rows_after_step(r), take = (uint32_t)least(left, budget);
		int all = score_is_owed(&r->req, r->scored), draws_last = take == left && !r->req.pooling;
		if (!budget || s->n == w->conf.max_sequences)
			break;
		if (r->step == s || left <= 1 || !preempt_is_ready(b, r))
			continue;
		if (all)
			take = (uint32_t)least(take, logits + kept < w->max_logits
			                                 ? w->max_logits - logits - kept
			                                 : 0);
		else if (draws_last && logits == w->max_logits)
			take--;
		if (take == left && draws_last && !prepare_mask(b, r))
			take--; /* the row that draws waits for its mask */
		if (!take)
			continue;
		budget -= take;
		logits += all ? take : take == left && draws_last;
		add_span(b, s, r, take, &draws);
	}
	hidden_last(s);
}

void batch_publish(struct batcher *b, struct run *r)
{
	uint32_t full = r->computed / b->w->info->kv.block_tokens;
	if (r->blocks.published < full) {
		seq_blocks_hash(&r->blocks, b->w, &r->req, r->req.n_tokens);
		seq_blocks_publish(&r->blocks, b->w, full);
	}
	uint32_t wanted = r->shared->wanted;
	if (wanted && r->blocks.published >= wanted) {
		r->shared->wanted = 0;
		svc_post(b->w->svc, b->published, r);
	}
}

/* Takes what was drawn after the last token, and after each token of its draft as long as the draft
 * has the token that was drawn. Returns how the answer ended, if it did; the run may have
 * failed. */
static Pds__Finish take_drawn(struct batcher *b, struct run *r, const struct kern_drawn *drawn,
                              uint32_t drafted, struct token_report *report)
{
	struct worker *w = b->w;
	struct request_copy *req = &r->req;
	if (drafted)
		drafts_recall(r);
	for (uint32_t right = 0;; right++) {
		const struct kern_drawn *s = &drawn[right];
		uint32_t index = request_copy_index(req),
				 draft = right < drafted ? drawn[right + 1].token : UINT32_MAX;
		struct err err = {0};
		if (drawn_check_finite(s, "answer", index, &err) < 0) {
			seq_failure_draw(&r->failure, &err);
			return PDS__FINISH__FINISH_NONE;
		}
		if (!r->first_us)
			r->first_us = clock_us();
		Pds__Finish finish = request_copy_append(req, s->id, w->info);
		report_token(report, r, index, s, finish);
		w->stats.generated_tokens++;
		int go = s->id == draft && finish == PDS__FINISH__FINISH_NONE;
		r->computed += go; /* that token's KV was computed as the draft's */
		if (go)
			continue;
		drafts_learn(b, r, drafted, right + (s->id == draft));
		return finish;
	}
}

static void note_caught_up(struct batcher *b, struct run *r)
{
	if (r->back_us)
		stat_observe_us(&b->w->stats.restore_seconds, clock_us() - r->back_us);
	r->back_us = 0;
}

/* Of a run that makes an embedding. Returns 1 if it has ended. */
static int after_pooled(struct batcher *b, struct run *r, const struct engine_span *sp)
{
	struct err err = {0};
	r->computed += sp->n;
	if (pooled_check(sp, b->w->info, &err) < 0)
		seq_failure_draw(&r->failure, &err);
	else if (r->computed == r->req.n_tokens)
		r->first_us = clock_us();
	if (!r->failure.not_finite)
		batch_publish(b, r);
	return r->first_us || r->failure.kind != FAILURE_NONE;
}

/* Returns 1 if the run has ended: it is to be given back. */
static int after_step(struct batcher *b, struct run *r, const struct engine_span *sp,
                      struct token_report *report)
{
	uint32_t drafted = sp->drafts, own = sp->n - drafted;
	Pds__Finish finish = PDS__FINISH__FINISH_NONE;
	struct err err = {0};
	r->computed += own;
	if (sp->logits == ENGINE_LOGITS_ALL && !drafted &&
	    score_span(b->w, &r->req, sp, &r->scored, &err) < 0)
		seq_failure_draw(&r->failure, &err);
	int complete = r->computed == r->req.n_tokens && r->failure.kind == FAILURE_NONE;
	const struct kern_drawn *drawn = sp->drawn + (sp->logits == ENGINE_LOGITS_ALL ? own - 1 : 0);
	if (complete && r->first_only) {
		r->first = *drawn;
		if (drawn_check_finite(drawn, "answer", request_copy_index(&r->req), &err) < 0)
			seq_failure_draw(&r->failure, &err);
	} else if (complete) {
		note_caught_up(b, r);
		finish = take_drawn(b, r, drawn, drafted, report);
	}
	if (!r->failure.not_finite)
		batch_publish(b, r);
	return (complete && r->first_only) || finish != PDS__FINISH__FINISH_NONE ||
	       r->failure.kind != FAILURE_NONE;
}

static void start_step(struct batcher *b, struct batch_step *s)
{
	s->begin_us = clock_us();
	watch_begin(&b->w->watch);
	s->code = engine_start(b->w->engine, s->spans, s->n, &s->err);
}

static void leave_step(struct run *r)
{
	r->step = NULL;
	r->rows_in_flight = r->draws_in_flight = r->drafts_in_flight = 0;
}

/* Takes what span `i` of a step has brought. */
static void take_span(struct batcher *b, struct batch_step *s, uint32_t i,
                      struct token_report *report)
{
	struct run *r = s->runs[i];
	if (r->step == s)
		leave_step(r);
	if (r->ended)
		return;
	/* before the tokens, which go with the timing; a step that was refused is no chunk */
	r->chunks += s->code == 0 && (r->first_only || run_tokens_left(r) > 1);
	if (s->code < 0)
		seq_failure_engine(&r->failure, &s->err);
	r->ended = s->code < 0 || (r->req.pooling ? after_pooled(b, r, &s->spans[i])
	                                          : after_step(b, r, &s->spans[i], report));
}

static void count_step(struct batcher *b, const struct batch_step *s, uint32_t rows,
                       uint32_t of_prompts, uint64_t took)
{
	struct worker *w = b->w;
	if (!of_prompts && s->code == 0)
		drafts_step_took(b, rows, took);
	w->stats.prompt_tokens += s->code == 0 ? of_prompts : 0;
	w->stats.steps++;
	stat_observe_us(&w->stats.step_seconds, took);
	stat_observe(&w->stats.step_tokens, rows);
	/* rows of drafts and of those that decode cost more than rows of a prompt */
	if (2 * of_prompts > rows && s->code == 0)
		rates_note_compute(&w->rates, rows, took);
	w->progress++;
}

/* Waits for the step's end. */
static void land(struct batcher *b, struct batch_step *s)
{
	uint32_t rows = 0, of_prompts = 0;
	struct token_report *report = report_new(b->w);
	if (s->code == 0)
		s->code = engine_finish(b->w->engine, &s->err);
	watch_end(&b->w->watch);
	if (s->code < 0)
		log_error("step_failed", "spans=%u text=%s", s->n, log_quote(s->err.text));
	/* it ran only after the one before it */
	uint64_t since = s->begin_us > b->own.landed_us ? s->begin_us : b->own.landed_us;
	b->own.landed_us = clock_us();
	for (uint32_t i = 0; i < s->n; i++) {
		const struct run *r = s->runs[i];
		uint32_t take = s->spans[i].n;
		rows += take;
		of_prompts += r->first_only || r->req.pooling || (take > 1 && run_tokens_left(r) > 1) ? take
		                                                                                      : 0;
		take_span(b, s, i, report);
	}
	/* before it is sent: whoever sees an answer finds it in the counters */
	count_step(b, s, rows, of_prompts, b->own.landed_us - since);
	report_send(report);
	/* after their tokens: at the end of the process the loop stops with the last sequence */
	for (uint32_t i = 0; i < s->n; i++)
		if (s->runs[i]->ended)
			end_run(b, s->runs[i]);
}

static void land_in_flight(struct batcher *b)
{
	struct batch_step *s = b->own.in_flight;
	b->own.in_flight = NULL;
	if (s)
		land(b, s);
}

/* The engine has refused s and written nothing; no other step is in flight. Each run goes through a
 * step of its own, without its draft, so that only those fail that are refused by themselves. */
static void step_each(struct batcher *b, struct batch_step *s)
{
	struct batch_step *one = &b->own.step[s == &b->own.step[0]];
	watch_end(&b->w->watch);
	for (uint32_t i = 0; i < s->n; i++) {
		struct run *r = s->runs[i];
		uint32_t draws = 0;
		leave_step(r);
		if (r->ended) { /* by what the step before brought */
			end_run(b, r);
			continue;
		}
		one->n = 0;
		add_span(b, one, r, s->spans[i].n - s->spans[i].drafts, &draws);
		start_step(b, one);
		land(b, one);
	}
}

/* Starts the next step, if there is anything to do, and only then waits for the one before it: the
 * host takes and sends the tokens of a step while the device computes the next one. */
static void next_step(struct batcher *b)
{
	struct batch_step *before = b->own.in_flight, *s = &b->own.step[before == &b->own.step[0]];
	batch_fill(b, s);
	b->own.stalled = !s->n && !before;
	if (s->n)
		start_step(b, s);
	b->own.in_flight = s->n ? s : NULL;
	if (before)
		land(b, before);
	if (s->code == ERR_INVALID && s->n > 1) {
		b->own.in_flight = NULL;
		step_each(b, s);
	} else if (s->n && (s->alone || s->code < 0)) {
		land_in_flight(b);
	}
}

void batch_tell_messager(struct batcher *b)
{
	ring_step(b->w->ring);
	list_each(it, &b->own.running) {
		const struct run *r = list_entry(it, struct run, node);
		if (r->slot != RUN_NO_SLOT)
			ring_schedule(b->w->ring, r->slot, r->slot_gen);
	}
}

static void *batch_main(void *arg)
{
	struct batcher *b = arg;
	while (collect(b)) {
		if (b->config.hands_over)
			batch_tell_messager(b);
		if (b->config.order != ORDER_AGE)
			order_sort(b, clock_us());
		b->own.must_land = 0;
		b->own.mask_steps = CONSTRAINT_STEPS;
		drafts_plan(b);
		preempt_grow(b);
		if (b->own.must_land) {
			land_in_flight(b);
			continue;
		}
		preempt_admit(b);
		next_step(b);
	}
	land_in_flight(b);
	return NULL;
}

/* --- towards the loop ---------------------------------------------------- */

void batcher_add(struct batcher *b, struct run *r)
{
	pthread_mutex_lock(&b->locked.lock);
	b->shared.growth_blocks += r->growth = growth_of(b, r);
	list_push_back(&b->locked.inbox, &r->node);
	pthread_cond_signal(&b->locked.wake);
	pthread_mutex_unlock(&b->locked.lock);
}

void batcher_kick(struct batcher *b)
{
	pthread_mutex_lock(&b->locked.lock);
	b->locked.kicked = 1;
	pthread_cond_signal(&b->locked.wake);
	pthread_mutex_unlock(&b->locked.lock);
}

double batcher_ratio(struct batcher *b)
{
	pthread_mutex_lock(&b->locked.lock);
	double ratio = b->locked.ratio;
	pthread_mutex_unlock(&b->locked.lock);
	return ratio;
}

/* A mask is as much progress as a step, which it may keep from coming. */
static void on_mask_done(void *batcher)
{
	struct batcher *b = batcher;
	b->w->progress++;
	batcher_kick(b);
}

int batcher_start(struct batcher *b, struct err *err)
{
	struct batcher_own *own = &b->own;
	struct batcher_locked *l = &b->locked;
	pthread_condattr_t a;
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->wake, &a);
	pthread_condattr_destroy(&a);
	list_init(&l->inbox);
	list_init(&l->answers);
	l->ratio = b->config.ratio_first;
	list_init(&own->waiting);
	list_init(&own->running);
	list_init(&own->restores);
	for (struct batch_step *s = own->step; s < own->step + 2; s++) {
		s->draws = mem_array(b->w->max_logits, sizeof *s->draws);
		s->spans = mem_array(b->w->conf.max_sequences, sizeof *s->spans);
		s->runs = mem_array(b->w->conf.max_sequences, sizeof *s->runs);
	}
	own->drafts = drafts_new(b);
	constraints_on_mask(b->w->constraints, on_mask_done, b);
	if (pthread_create(&b->thread, NULL, batch_main, b) != 0)
		return err_set(err, ERR_NOMEM, "cannot start the schedule thread");
	return 0;
}

void batcher_stop(struct batcher *b)
{
	pthread_mutex_lock(&b->locked.lock);
	b->shared.stop = 1;
	pthread_cond_signal(&b->locked.wake);
	pthread_mutex_unlock(&b->locked.lock);
	watch_join(b->thread);
	constraints_wait(b->w->constraints); /* it wakes this thread */
	restore_fini(b);
	drafts_destroy(&b->own.drafts);
	for (struct batch_step *s = b->own.step; s < b->own.step + 2; s++) {
		free(s->spans);
		free(s->draws);
		free(s->runs);
	}
	pthread_mutex_destroy(&b->locked.lock);
	pthread_cond_destroy(&b->locked.wake);
}
