/* schedule.c - the prefill scheduler: one thread that walks the running jobs in order and fills the
 * whole token budget of each step.
 *
 * It has no waiting queue and takes no blocks: what is in its list has everything it needs. Long
 * prompts are computed in chunks. Order: by arrival (fifo), or the least left to compute first
 * (srpt), which shrinks with the time a job has waited and is nothing after ageing_us: from then on
 * it stands, by arrival, before everybody, so that no prompt waits for ever. A job is never passed
 * over for what another lacks.
 *
 * A job that is cancelled or whose precondition does not hold goes back to the loop before the next
 * step; a precondition is checked in every build, and fails its own request only. So does a span
 * that the engine refuses, and one whose logits are not finite: none of that step's blocks is
 * published then. A step that the device fails fails all who are in it. A step allocates
 * nothing. */
#include "prefill.h"
#include "daemons/worker/seq/constraint.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

static void give_back(struct prefill *s, struct job *j)
{
	list_remove(&j->run);
	stage_return(s, j, BACK_COMPUTED);
}

static int precondition(const struct worker *w, struct job *j)
{
	uint32_t need = worker_blocks_for(w, j->req.n_tokens), computed = j->computed,
			 full = computed / w->info->kv.block_tokens;
	int inside = j->n_blocks == need;
	for (uint32_t i = 0; inside && i < need; i++)
		inside = j->blocks[i] < w->region.blocks;
	if (inside && computed < j->req.n_tokens && j->published <= full && j->in_ring &&
	    j->slot < ring_slots(w->ring))
		return 1;
	snprintf(
		j->fail_text, sizeof j->fail_text,
		"scheduled with %u of %u blocks%s, %u of %u tokens computed, %u blocks published, slot %s",
		j->n_blocks, need,
		inside || j->n_blocks != need ? "" : " (one of them outside of the pool)", computed,
		j->req.n_tokens, j->published, j->in_ring ? "held" : "missing");
	j->step_failed = j->broken = 1;
	log_req(LOG_ERROR, &j->req.id, "precondition_broken", "attempt=%u text=%s", j->req.attempt,
	        log_quote(j->fail_text));
	return 0;
}

void schedule_sweep(struct prefill *s, int all)
{
	list_each_safe(it, nx, &s->running) {
		struct job *j = list_entry(it, struct job, run);
		if (all || j->cancelled || !precondition(s->w, j))
			give_back(s, j);
	}
}

/* Collects the new; sleeps while there is nothing. 0: stop. */
static int collect(struct prefill *s)
{
	pthread_mutex_lock(&s->lock);
	for (gate_hold(s); list_empty(&s->inbox) && list_empty(&s->running) && !s->stop; gate_hold(s))
		pthread_cond_wait(&s->wake, &s->lock);
	list_each_safe(it, nx, &s->inbox) {
		list_remove(it);
		list_push_back(&s->running, it);
	}
	int stop = s->stop;
	pthread_mutex_unlock(&s->lock);
	schedule_sweep(s, stop);
	return !stop;
}

/* --- order --------------------------------------------------------------- */

/* What is left of it, or of the part that somebody waits for, less the share of ageing_us that
 * it has waited. */
static uint64_t key_of(const struct prefill *s, const struct job *j, uint64_t now)
{
	uint64_t waited = now > j->ready_us ? now - j->ready_us : 0;
	uint32_t computed = j->computed, left = j->req.n_tokens - computed,
			 wanted = j->wanted * s->w->info->kv.block_tokens;
	if (s->order == ORDER_FIFO || waited >= s->ageing_us)
		return 0;
	if (wanted > computed && wanted - computed < left)
		left = wanted - computed;
	return 1 + left * (s->ageing_us - waited) / s->ageing_us;
}

static int before(const struct job *a, const struct job *b)
{
	return a->key != b->key     ? a->key < b->key
	       : a->turn != b->turn ? a->turn < b->turn
	                            : a->seq < b->seq;
}

/* By insertion: the list is nearly in order from the step before. */
void schedule_sort(struct prefill *s, uint64_t now_us)
{
	list_each(it, &s->running) {
		struct job *j = list_entry(it, struct job, run);
		j->key = key_of(s, j, now_us);
	}
	list_each_safe(it, nx, &s->running) {
		struct list *at = it->prev;
		while (at != &s->running &&
		       before(list_entry(it, struct job, run), list_entry(at, struct job, run)))
			at = at->prev;
		if (at == it->prev)
			continue;
		list_remove(it);
		list_push_front(at, it); /* behind `at` */
	}
}

/* --- a step's spans ------------------------------------------------------ */

struct room {
	uint32_t tokens, logits;
	uint32_t kept; /* rows of logits that prompts with logprobs leave for the others */
};

static uint32_t count_plain(const struct prefill *s)
{
	uint32_t n = 0;
	list_each(it, &s->running)
		n += !list_entry(it, struct job, run)->req.prompt_logprobs;
	return n;
}

/* Tokens that the job gets. One that wants logits of every token gets as many as there are rows;
 * any other may lack a row only for its last token, and computes all before it. */
static uint32_t share_of(const struct job *j, const struct room *r)
{
	uint32_t left = j->req.n_tokens - j->computed, take = left < r->tokens ? left : r->tokens;
	if (j->req.prompt_logprobs) {
		uint32_t rows = r->logits > r->kept ? r->logits - r->kept : 0;
		return take < rows ? take : rows;
	}
	return take == left && r->logits == 0 ? take - 1 : take;
}

static void fail_draw(struct job *j, const struct err *err)
{
	snprintf(j->fail_text, sizeof j->fail_text, "%.150s", err->text);
	j->draw_fault = constraint_fault(err->code);
}

/* What is asked of the row that computes token `row`. A job that fails here goes through the
 * step like the others. */
static struct engine_draw ask(struct prefill *s, struct job *j, uint32_t row)
{
	struct err err = {0};
	if (row + 1 == j->req.n_tokens) {
		if (constraint_prepare(&j->req, s->w->info, 0, &err) == 0)
			return request_copy_draw(&j->req, 0);
		fail_draw(j, &err);
	} else if (row + 1 < j->req.prompt_tokens) {
		return request_copy_score(&j->req, row + 1);
	}
	return (struct engine_draw){0};
}

/* draws: how many the step has so far. */
static void add_draws(struct prefill *s, struct job *j, struct engine_span *sp, uint32_t *draws)
{
	uint32_t rows = sp->logits == ENGINE_LOGITS_ALL ? sp->n : sp->logits == ENGINE_LOGITS_LAST;
	sp->draws = s->draws + *draws;
	for (uint32_t i = 0; i < rows; i++)
		s->draws[(*draws)++] = ask(s, j, sp->position + sp->n - rows + i);
}

static void add_span(struct prefill *s, struct job *j, uint32_t take, uint32_t n, uint32_t *draws)
{
	struct worker *w = s->w;
	uint32_t computed = j->computed;
	uint64_t *word = ring_progress_word(w->ring, j->slot, 0);
	s->step_jobs[n] = j;
	s->spans[n] = (struct engine_span){
		.tokens = j->req.tokens + computed,
		.n = take,
		.position = computed,
		.blocks = j->blocks,
		.logits = j->req.prompt_logprobs               ? ENGINE_LOGITS_ALL
	              : computed + take == j->req.n_tokens ? ENGINE_LOGITS_LAST
	                                                   : ENGINE_LOGITS_NONE,
		.progress = word,
		.progress_stride = w->info->layers > 1
	                           ? (size_t)(ring_progress_word(w->ring, j->slot, 1) - word)
	                           : 1,
		.progress_value = ring_progress_value(j->slot_gen, computed + take),
	};
	add_draws(s, j, &s->spans[n], draws);
	if (!j->run_us)
		j->run_us = clock_us();
	j->chunks++;
}

uint32_t schedule_fill(struct prefill *s)
{
	struct worker *w = s->w;
	uint32_t n = 0, draws = 0, plain = count_plain(s);
	struct room r = {w->max_batched_tokens, w->max_logits,
	                 plain < w->max_logits / 2 ? plain : w->max_logits / 2};
	list_each(it, &s->running) {
		struct job *j = list_entry(it, struct job, run);
		uint32_t take = share_of(j, &r);
		if (r.tokens == 0 || n == w->max_sequences)
			break;
		if (take == 0)
			continue;
		add_span(s, j, take, n, &draws);
		r.tokens -= take;
		r.logits -= s->spans[n].logits == ENGINE_LOGITS_ALL
		                ? take
		                : s->spans[n].logits == ENGINE_LOGITS_LAST;
		n++;
	}
	return n;
}

/* --- the step ------------------------------------------------------------ */

static void publish_full(struct worker *w, struct job *j)
{
	uint32_t full = j->computed / w->info->kv.block_tokens;
	for (; j->published < full && j->published < j->n_hashes; j->published++)
		kv_pool_publish(w->pool, j->blocks[j->published], &j->hashes[j->published],
		                j->published ? &j->hashes[j->published - 1] : NULL);
	share_published(j);
}

/* Row i of a span is the distribution of token position + i + 1. 0, or ERR_CORRUPT: one is not
 * finite. */
static int score_prompt(struct prefill *s, struct job *j, const struct engine_span *sp,
                        struct err *err)
{
	struct score *c = NULL;
	int rc = 0;
	for (uint32_t i = 0; i < sp->n && sp->position + i + 1 < j->req.prompt_tokens; i++) {
		uint32_t at = sp->position + i + 1;
		if ((rc = drawn_check_finite(&sp->drawn[i], "prompt", at, err)))
			break;
		if (!c)
			c = score_new(s->w, &j->req, at);
		if (score_add(c, &sp->drawn[i])) {
			stage_score(s, c);
			c = NULL;
		}
	}
	if (c)
		stage_score(s, c);
	return rc;
}

static void after_step(struct prefill *s, struct job *j, const struct engine_span *sp)
{
	struct worker *w = s->w;
	j->computed += sp->n;
	/* before anybody sees the answer: who has it finds it counted */
	w->prompt_tokens += sp->n;
	stat_add(svc_stats(w->svc), WS_PROMPT_TOKENS, sp->n);
	struct err err = {0};
	int whole = j->computed == j->req.n_tokens;
	if (j->req.prompt_logprobs && score_prompt(s, j, sp, &err) < 0)
		fail_draw(j, &err);
	if (whole && !j->draw_fault) {
		j->first = sp->drawn[sp->logits == ENGINE_LOGITS_ALL ? sp->n - 1 : 0];
		if (drawn_check_finite(&j->first, "answer", request_copy_index(&j->req), &err) < 0)
			fail_draw(j, &err);
	}
	if (j->draw_fault != PDS__FAULT__FAULT_INTERNAL)
		publish_full(w, j);
	if (!j->draw_fault && !whole)
		return;
	j->first_us = clock_us();
	give_back(s, j);
}

static void step_failed(struct prefill *s, struct job *j, const struct err *err)
{
	snprintf(j->fail_text, sizeof j->fail_text, "forward step failed: %.120s", err->text);
	j->step_failed = 1;
	log_req(LOG_ERROR, &j->req.id, "step_failed", "attempt=%u text=%s", j->req.attempt,
	        log_quote(err->text));
	give_back(s, j);
}

/* A span that the engine refuses (nothing was written then) fails alone: each is tried by
 * itself. */
static uint64_t step(struct prefill *s, uint32_t first, uint32_t n)
{
	struct worker *w = s->w;
	struct err err = {0};
	uint64_t rows = 0;
	int r = engine_step(w->engine, s->spans + first, n, &err);
	if (r == ERR_INVALID && n > 1) {
		for (uint32_t i = 0; i < n; i++)
			rows += step(s, first + i, 1);
		return rows;
	}
	for (uint32_t i = first; i < first + n; i++) {
		struct job *j = s->step_jobs[i];
		if (r < 0) {
			step_failed(s, j, &err);
			continue;
		}
		rows += s->spans[i].n;
		after_step(s, j, &s->spans[i]);
	}
	return rows;
}

static void whole_step(struct prefill *s, uint32_t n)
{
	struct worker *w = s->w;
	watch_turn(&w->watch);
	uint64_t begin = clock_us(), rows = step(s, 0, n);
	watch_turn(&w->watch);
	w->progress++;
	stat_add(svc_stats(w->svc), WS_STEPS, 1);
	stat_observe_us(svc_stats(w->svc), WS_STEP_SECONDS, clock_us() - begin);
	rates_note_compute(&w->rates, rows, clock_us() - begin);
}

void schedule_tell(struct prefill *s)
{
	ring_step(s->w->ring);
	list_each(it, &s->running) {
		const struct job *j = list_entry(it, struct job, run);
		ring_schedule(s->w->ring, j->slot, j->slot_gen);
	}
}

static void *schedule_main(void *arg)
{
	struct prefill *s = arg;
	while (collect(s)) {
		schedule_tell(s);
		schedule_sort(s, clock_us());
		uint32_t n = schedule_fill(s);
		if (n)
			whole_step(s, n);
	}
	return NULL;
}

void schedule_add(struct prefill *s, struct job *j)
{
	pthread_mutex_lock(&s->lock);
	list_push_back(&s->inbox, &j->run);
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
}

void schedule_kick(struct prefill *s)
{
	pthread_mutex_lock(&s->lock);
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
}

int schedule_start(struct prefill *s, struct err *err)
{
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->wake, NULL);
	list_init(&s->inbox);
	list_init(&s->running);
	s->draws = mem_array(s->w->max_logits, sizeof *s->draws);
	s->spans = mem_array(s->w->max_sequences, sizeof *s->spans);
	s->step_jobs = mem_array(s->w->max_sequences, sizeof *s->step_jobs);
	if (pthread_create(&s->schedule, NULL, schedule_main, s) != 0)
		return err_set(err, ERR_NOMEM, "cannot start the schedule thread");
	return 0;
}

void schedule_stop(struct prefill *s)
{
	pthread_mutex_lock(&s->lock);
	s->stop = 1;
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
	watch_join(s->schedule);
	free(s->spans);
	free(s->draws);
	free(s->step_jobs);
}
