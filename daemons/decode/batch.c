/* batch.c - continuous batching: the decode stage's schedule thread.
 *
 * Each step takes one row of every sequence that decodes and, beside them, chunks of those whose
 * prompt (or, after a preemption, whole prefix) is still to be computed. A sequence needs only
 * `computed < n_tokens`: decoding is the case of one token, and a draft of what may come next
 * (spec.c) is rows beyond it, of which those that turn out right count. When a block is missing the
 * youngest sequence gives way (room.c). A failed step fails the sequences in it; logits that are
 * not finite fail their own, and none of its blocks of that step is published. */
#include "decode.h"
#include "daemons/worker/seq/constraint.h"
#include "util/check.h"
#include "util/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void give_back(struct decode *d, struct sequence *q)
{
	keep_output(d, q);
	room_drop_blocks(q);
	spec_forget(q);
	list_remove(&q->batch);
	/* now, not at the next count: the loop looks for room as soon as it hears of the end */
	d->growth_blocks -= q->growth;
	q->growth = 0;
	if (q->running)
		d->n_running--;
	else if (q->preemptions)
		d->preempted--;
	q->running = 0;
	q->done_us = clock_us();
	svc_post(d->w->svc, sequence_ended, q);
}

/* --- collecting ---------------------------------------------------------- */

static uint64_t growth_blocks(const struct decode *d, const struct sequence *q)
{
	return (uint64_t)ceil((double)sequence_growth_tokens(d, &q->req) * d->ratio /
	                      d->w->info->kv.block_tokens);
}

static uint64_t growth_of(const struct decode *d, const struct list *l)
{
	uint64_t blocks = 0;
	list_each(it, l) {
		struct sequence *q = list_entry(it, struct sequence, batch);
		blocks += q->growth = growth_blocks(d, q);
	}
	return blocks;
}

static int may_sleep(const struct decode *d)
{
	return !d->stop && !d->kicked && list_empty(&d->inbox) && list_empty(&d->answers) &&
	       (list_empty(&d->running) || d->stalled);
}

/* Until there is something to do, or until those who wait for room or for storage are to be
 * looked at again. */
static void sleep_for_work(struct decode *d)
{
	while (may_sleep(d)) {
		uint64_t until = room_wake_us(d);
		if (!until && (list_empty(&d->running) || !list_empty(&d->restores))) {
			pthread_cond_wait(&d->wake, &d->lock);
			continue;
		}
		struct timespec t = {.tv_sec = (time_t)(until / 1000000u),
		                     .tv_nsec = (long)(until % 1000000u) * 1000};
		pthread_cond_timedwait(&d->wake, &d->lock, &t);
		break;
	}
	d->kicked = 0;
}

static void sweep(struct decode *d, struct list *l)
{
	list_each_safe(it, nx, l) {
		struct sequence *q = list_entry(it, struct sequence, batch);
		if (q->cancelled || d->stop)
			give_back(d, q);
	}
}

/* With the lock held. Also before the thread sleeps: what has ended asks for no room any more. */
static void count_growth(struct decode *d)
{
	d->growth_blocks = growth_of(d, &d->running) + growth_of(d, &d->waiting) +
	                   growth_of(d, &d->inbox);
}

static int collect(struct decode *d)
{
	pthread_mutex_lock(&d->lock);
	count_growth(d);
	sleep_for_work(d);
	list_each_safe(it, nx, &d->inbox) {
		struct sequence *q = list_entry(it, struct sequence, batch);
		list_remove(it);
		room_insert_by_age(q->n_blocks ? &d->running : &d->waiting, q);
		q->running = q->n_blocks != 0;
		q->phase = q->running ? PHASE_RUNNING : PHASE_WAITING;
		d->n_running += q->running;
	}
	if (!list_empty(&d->running))
		d->ratio = fmax(d->ratio - d->ratio_step, d->ratio_min);
	d->raised = 0;
	count_growth(d);
	int go = !d->stop;
	pthread_mutex_unlock(&d->lock);
	restore_deal(d);
	sweep(d, &d->running);
	sweep(d, &d->waiting);
	return go;
}

/* --- one step ------------------------------------------------------------ */

/* Its constraint cannot be followed any further, or its logits are not finite: another worker would
 * find the same, unless it was memory that lacked. */
static void fail_draw(struct sequence *q, const struct err *err)
{
	q->failed = 1;
	q->draw_fault = constraint_fault(err->code);
	snprintf(q->fail_text, sizeof q->fail_text, "%.150s", err->text);
}

/* Finds what may be drawn behind its last token and behind those of its draft, which is cut where
 * the constraint cannot tell. A sequence that fails here goes through the step like the others,
 * and is given back after it. */
static void prepare(struct decode *d, struct sequence *q)
{
	struct err err = {0};
	int ahead = constraint_prepare(&q->req, d->w->info, q->ahead, &err);
	if (ahead < 0)
		fail_draw(q, &err);
	q->ahead = ahead < 0 ? 0 : (uint32_t)ahead;
}

/* What is asked of the row that computes token `row` of q, counted with its draft. */
static struct engine_draw ask(const struct sequence *q, uint32_t row)
{
	uint32_t last = q->req.n_tokens - 1;
	if (row >= last && !q->failed)
		return request_copy_draw(&q->req, row - last);
	if (q->req.prompt_logprobs && row + 1 < q->req.prompt_tokens && row + 1 > q->scored)
		return request_copy_score(&q->req, row + 1);
	return (struct engine_draw){0};
}

static void add_draws(struct decode *d, const struct sequence *q, struct engine_span *sp,
                      uint32_t *at)
{
	uint32_t rows = sp->logits == ENGINE_LOGITS_ALL ? sp->n : sp->logits == ENGINE_LOGITS_LAST;
	sp->draws = d->draws + *at;
	for (uint32_t i = 0; i < rows; i++)
		d->draws[(*at)++] = ask(q, sp->position + sp->n - rows + i);
}

static void add_span(struct decode *d, struct sequence *q, uint32_t n_rows, uint32_t *n,
                     uint32_t *draws)
{
	uint32_t left = q->req.n_tokens - q->computed;
	int all = q->req.prompt_logprobs && q->scored + 1 < q->req.prompt_tokens && !q->first_us;
	d->step_sequences[*n] = q;
	d->spans[*n] = (struct engine_span){
		.tokens = q->req.tokens + q->computed,
		.n = n_rows,
		.position = q->computed,
		.blocks = q->blocks,
		.logits = all || n_rows > left ? ENGINE_LOGITS_ALL
	              : n_rows == left     ? ENGINE_LOGITS_LAST
	                                   : ENGINE_LOGITS_NONE,
	};
	if (left > 1 && n_rows == left)
		prepare(d, q);
	add_draws(d, q, &d->spans[*n], draws);
	q->chunks += left > 1;
	++*n;
}

static uint32_t fill(struct decode *d)
{
	struct worker *w = d->w;
	uint32_t n = 0, rows = 0, logits = 0, draws = 0;
	list_each(it, &d->running) {
		struct sequence *q = list_entry(it, struct sequence, batch);
		if (q->req.n_tokens - q->computed == 1 && n < w->max_sequences && room_ready(d, q)) {
			prepare(d, q);
			/* its last token's row, and those of its draft for which room_grow has found room */
			uint32_t take = 1 + q->ahead;
			add_span(d, q, take, &n, &draws);
			rows += take;
			logits += take;
		}
	}
	uint32_t budget = rows ? d->chunk_tokens : w->max_batched_tokens;
	if (budget >
	    w->max_batched_tokens - (rows < w->max_batched_tokens ? rows : w->max_batched_tokens))
		budget = w->max_batched_tokens -
		         (rows < w->max_batched_tokens ? rows : w->max_batched_tokens);
	list_each(it, &d->running) {
		struct sequence *q = list_entry(it, struct sequence, batch);
		uint32_t left = q->req.n_tokens - q->computed, take = left < budget ? left : budget;
		if (left <= 1 || !room_ready(d, q))
			continue;
		int all = q->req.prompt_logprobs && !q->first_us;
		if (all && take > w->max_logits - logits)
			take = w->max_logits - logits;
		if (!take || n == w->max_sequences || logits == w->max_logits)
			break;
		budget -= take;
		logits += all ? take : 1;
		add_span(d, q, take, &n, &draws);
	}
	return n;
}

static void publish_full(struct worker *w, struct sequence *q)
{
	uint32_t full = q->computed / w->info->kv.block_tokens;
	if (q->published >= full)
		return;
	sequence_hash(q);
	for (; q->published < full; q->published++)
		kv_pool_publish(w->pool, q->blocks[q->published], &q->hashes[q->published],
		                q->published ? &q->hashes[q->published - 1] : NULL);
}

/* Row i of a span is the distribution of token position + i + 1. What was sent before a preemption
 * is not sent again. 0, or ERR_CORRUPT: one is not finite. */
static int score_prompt(struct decode *d, struct sequence *q, const struct engine_span *sp,
                        struct err *err)
{
	struct score *c = NULL;
	int rc = 0;
	for (uint32_t i = 0; i < sp->n; i++) {
		uint32_t at = sp->position + i + 1;
		if (at >= q->req.prompt_tokens || at != q->scored + 1)
			continue;
		if ((rc = drawn_check_finite(&sp->drawn[i], "prompt", at, err)))
			break;
		if (!c)
			c = score_new(d->w, &q->req, at);
		q->scored++;
		if (score_add(c, &sp->drawn[i])) {
			svc_post(d->w->svc, score_post, c);
			c = NULL;
		}
	}
	if (c)
		svc_post(d->w->svc, score_post, c);
	return rc;
}

/* Takes what was drawn behind the last token, and behind its draft as long as the draft says
 * what was drawn. Returns how the answer ended, if it did; it may have failed. */
static Pds__Finish take_drawn(struct decode *d, struct sequence *q, const struct kern_drawn *drawn,
                              uint32_t drafted, struct report *rep)
{
	struct worker *w = d->w;
	struct request_copy *k = &q->req;
	for (uint32_t right = 0;; right++) {
		const struct kern_drawn *s = &drawn[right];
		uint32_t index = request_copy_index(k),
				 draft = right < drafted ? k->tokens[k->n_tokens] : UINT32_MAX;
		struct err err = {0};
		if (drawn_check_finite(s, "answer", index, &err) < 0) {
			fail_draw(q, &err);
			return PDS__FINISH__FINISH_NONE;
		}
		if (!q->first_us)
			q->first_us = clock_us();
		Pds__Finish finish = request_copy_append(k, s->id, w->info);
		report_token(rep, q, index, s, finish);
		w->generated_tokens++;
		stat_add(svc_stats(w->svc), WS_GENERATED_TOKENS, 1);
		int go = s->id == draft && finish == PDS__FINISH__FINISH_NONE;
		q->computed += go; /* that token's KV is there already */
		if (go)
			continue;
		if (drafted)
			spec_learn(d, q, drafted, right + (s->id == draft));
		return finish;
	}
}

static void after_step(struct decode *d, struct sequence *q, const struct engine_span *sp,
                       struct report *rep)
{
	uint32_t left = q->req.n_tokens - q->computed, drafted = sp->n > left ? sp->n - left : 0,
			 own = sp->n - drafted;
	Pds__Finish finish = PDS__FINISH__FINISH_NONE;
	struct err err = {0};
	q->computed += own;
	if (sp->logits == ENGINE_LOGITS_ALL && !drafted && score_prompt(d, q, sp, &err) < 0)
		fail_draw(q, &err);
	if (q->computed == q->req.n_tokens && !q->failed) {
		if (q->back_us)
			room_caught_up(d, q);
		uint32_t last = sp->logits == ENGINE_LOGITS_ALL ? own - 1 : 0;
		finish = take_drawn(d, q, sp->drawn + last, drafted, rep);
	}
	if (q->draw_fault != PDS__FAULT__FAULT_INTERNAL)
		publish_full(d->w, q);
	if (finish != PDS__FINISH__FINISH_NONE || q->failed)
		give_back(d, q);
}

static void fail(struct decode *d, struct sequence *q, const struct err *err)
{
	q->failed = 1;
	q->draw_fault = PDS__FAULT__FAULT_NONE;
	snprintf(q->fail_text, sizeof q->fail_text, "forward step failed: %.120s", err->text);
	give_back(d, q);
}

static void step(struct decode *d, uint32_t n)
{
	struct worker *w = d->w;
	struct err err = {0};
	uint64_t begin = clock_us(), rows = 0, of_prompts = 0;
	struct report *rep = report_new(w);
	watch_turn(&w->watch);
	int r = engine_step(w->engine, d->spans, n, &err);
	watch_turn(&w->watch);
	uint64_t took = clock_us() - begin;
	for (uint32_t i = 0; i < n; i++) {
		struct sequence *q = d->step_sequences[i];
		uint32_t take = d->spans[i].n, left = q->req.n_tokens - q->computed;
		rows += take;
		of_prompts += take > 1 && left > 1 ? take : 0;
		if (r < 0)
			fail(d, q, &err);
		else
			after_step(d, q, &d->spans[i], rep);
	}
	if (!of_prompts && r == 0)
		spec_step_took(d, (uint32_t)rows, took);
	/* before anybody sees the answer: who has it finds it counted */
	w->prompt_tokens += of_prompts;
	stat_add(svc_stats(w->svc), WS_PROMPT_TOKENS, of_prompts);
	stat_add(svc_stats(w->svc), WS_STEPS, 1);
	report_send(rep);
	w->progress++;
	stat_observe_us(svc_stats(w->svc), WS_STEP_SECONDS, clock_us() - begin);
	/* drafts, and rows of those who decode, cost more than a prompt's */
	if (2 * of_prompts > rows && r == 0)
		rates_note_compute(&w->rates, rows, clock_us() - begin);
}

static void *batch_main(void *arg)
{
	struct decode *d = arg;
	while (collect(d)) {
		spec_plan(d);
		room_grow(d);
		room_admit_waiting(d);
		uint32_t n = fill(d);
		d->stalled = n == 0;
		if (n)
			step(d, n);
	}
	return NULL;
}

/* --- towards the loop ---------------------------------------------------- */

void batch_add(struct decode *d, struct sequence *q)
{
	pthread_mutex_lock(&d->lock);
	d->active++;
	d->growth_blocks += q->growth = growth_blocks(d, q);
	list_push_back(&d->inbox, &q->batch);
	pthread_cond_signal(&d->wake);
	pthread_mutex_unlock(&d->lock);
}

void batch_kick(struct decode *d)
{
	pthread_mutex_lock(&d->lock);
	d->kicked = 1;
	pthread_cond_signal(&d->wake);
	pthread_mutex_unlock(&d->lock);
}

int batch_start(struct decode *d, struct err *err)
{
	pthread_condattr_t a;
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_mutex_init(&d->lock, NULL);
	pthread_cond_init(&d->wake, &a);
	pthread_condattr_destroy(&a);
	list_init(&d->inbox);
	list_init(&d->waiting);
	list_init(&d->running);
	list_init(&d->answers);
	list_init(&d->restores);
	d->draws = mem_array(d->w->max_logits, sizeof *d->draws);
	d->spans = mem_array(d->w->max_sequences, sizeof *d->spans);
	d->step_sequences = mem_array(d->w->max_sequences, sizeof *d->step_sequences);
	d->spec = spec_new(d->w);
	if (pthread_create(&d->thread, NULL, batch_main, d) != 0)
		return err_set(err, ERR_NOMEM, "cannot start the schedule thread");
	return 0;
}

void batch_stop(struct decode *d)
{
	pthread_mutex_lock(&d->lock);
	d->stop = 1;
	pthread_cond_signal(&d->wake);
	pthread_mutex_unlock(&d->lock);
	watch_join(d->thread);
	restore_fini(d);
	spec_destroy(&d->spec);
	free(d->spans);
	free(d->draws);
	free(d->step_sequences);
	pthread_mutex_destroy(&d->lock);
	pthread_cond_destroy(&d->wake);
}
