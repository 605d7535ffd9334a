/* test_batch.c - the batcher by itself, with the runs of a prefill worker: which tokens of which
 * make a step, in which order, and who is given back. Runs are made up; nothing is computed, only
 * counted. */
/* run: threads */
#include "daemons/worker/batch/batch.h"
#include "svc/svc_int.h"
#include "util/clock.h"
#include "util/mem.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 16u
#define POOL 4096u
#define JOBS 64u

static struct engine_info info;
static struct worker w;
static struct batcher batcher;
static struct batch_step *const step = &batcher.own.step[0];
static struct svc svc; /* its posts only */
static struct run job[JOBS];
static struct run_shared shared[JOBS];
static unsigned n_jobs;

static void on_back(struct svc *unused, void *run)
{
	(void)unused;
	(void)run;
}

static void on_published(struct svc *unused, void *run)
{
	(void)unused;
	(void)run;
}

/* How often this was posted. */
static unsigned posted(void (*fn)(struct svc *, void *), const struct run *r)
{
	unsigned n = 0;
	for (size_t i = 0; i < svc.posts.n; i++)
		n += svc.posts.items[i].fn == fn && svc.posts.items[i].arg == r;
	return n;
}

static void set_up(void)
{
	struct err err = {0};
	memset(&info, 0, sizeof info);
	memset(&w, 0, sizeof w);
	memset(&batcher, 0, sizeof batcher);
	memset(&svc, 0, sizeof svc);
	memset(job, 0, sizeof job);
	memset(shared, 0, sizeof shared);
	n_jobs = 0;
	info.layers = 3;
	info.kv.block_tokens = BLOCK;
	w.info = &info;
	w.svc = &svc;
	w.region.blocks = POOL;
	w.conf.max_batched_tokens = 256;
	w.conf.max_sequences = 32;
	w.max_logits = 64;
	ck_assert_int_eq(ring_create(JOBS, info.layers, 1, &w.ring, &err), 0);
	svc.base = event_base_new();
	pthread_mutex_init(&svc.posts.lock, NULL);
	ck_assert_int_eq(svc_posts_start(&svc, &err), 0);
	batcher.w = &w;
	batcher.returned = on_back;
	batcher.published = on_published;
	batcher.config = (struct batcher_config){.order = ORDER_FIFO,
	                                         .ageing_us = 1000000,
	                                         .chunk_tokens = w.conf.max_batched_tokens};
	list_init(&batcher.own.running);
	list_init(&batcher.own.waiting);
	step->spans = mem_array(w.conf.max_sequences, sizeof *step->spans);
	step->runs = mem_array(w.conf.max_sequences, sizeof *step->runs);
	step->draws = mem_array(64, sizeof *step->draws);
}

static void tear_down(void)
{
	for (unsigned i = 0; i < n_jobs; i++) {
		free(job[i].req.tokens);
		seq_blocks_fini(&job[i].blocks);
	}
	ring_destroy(&w.ring);
	free(step->spans);
	free(step->runs);
	free(step->draws);
	svc_posts_stop(&svc);
	event_base_free(svc.base);
}

static struct run *add(uint32_t tokens, int logprobs, uint64_t ready_us)
{
	static struct ring_transfer transfer;
	ck_assert_uint_lt(n_jobs, JOBS);
	struct run *j = &job[n_jobs];
	j->shared = &shared[n_jobs];
	j->first_only = 1;
	j->req.id.lo = n_jobs + 1;
	j->seq = n_jobs;
	j->shared->turn = n_jobs++;
	j->req.n_tokens = j->req.given_tokens = j->req.prompt_tokens = tokens;
	j->req.tokens = mem_array(tokens, sizeof *j->req.tokens);
	j->req.prompt_logprobs = logprobs;
	j->blocks.n = worker_blocks_for(&w, tokens);
	j->blocks.block = mem_array(j->blocks.n, sizeof *j->blocks.block);
	j->born_us = ready_us;
	transfer.req = j->req.id;
	transfer.attempt = 1;
	transfer.tokens = tokens;
	transfer.blocks = j->blocks.n;
	ck_assert_int_eq(ring_publish(w.ring, &transfer, &j->slot, &j->slot_gen), 0);
	list_init(&j->node);
	run_enter(&batcher, j, RUN_RUNNING);
	return j;
}

static uint32_t fill(void)
{
	batch_fill(&batcher, step);
	return step->n;
}

static struct run *nth(unsigned n)
{
	struct list *it = batcher.own.running.next;
	while (n--)
		it = it->next;
	return list_entry(it, struct run, node);
}

static unsigned running(void)
{
	unsigned n = 0;
	list_each(it, &batcher.own.running)
		n++;
	return n;
}

/* What the engine and after_step would do. */
static void done(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct run *j = step->runs[i];
		ck_assert_uint_eq(step->spans[i].position, j->computed);
		ck_assert_ptr_eq(step->spans[i].tokens, j->req.tokens + j->computed);
		j->computed += step->spans[i].n;
		j->step = NULL;
		j->rows_in_flight = j->draws_in_flight = 0;
		ck_assert_uint_le(j->computed, j->req.n_tokens);
		if (j->computed == j->req.n_tokens)
			list_remove(&j->node);
	}
}

static uint32_t tokens_of(const struct run *j, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (step->runs[i] == j)
			return step->spans[i].n;
	return 0;
}

/* --- filling ------------------------------------------------------------- */

TEST_CASE("all", .setup = set_up, .teardown = tear_down);

TEST(test_whole_budget_in_order)
{
	struct run *a = add(100, 0, 0), *b = add(500, 0, 0), *c = add(50, 0, 0);
	order_sort(&batcher, 0);
	uint32_t n = fill();
	ck_assert_uint_eq(n, 2);
	ck_assert_uint_eq(tokens_of(a, n), 100);
	ck_assert_uint_eq(tokens_of(b, n), 156);
	ck_assert_int_eq(step->spans[0].logits, ENGINE_LOGITS_LAST);
	ck_assert_int_eq(step->spans[1].logits, ENGINE_LOGITS_NONE);
	ck_assert_uint_eq(step->spans[1].progress_value, ring_progress_value(b->slot_gen, 156));
	ck_assert_ptr_eq(step->spans[1].progress, ring_progress_word(w.ring, b->slot, 0));
	ck_assert_ptr_eq(step->spans[1].progress + step->spans[1].progress_stride,
	                 ring_progress_word(w.ring, b->slot, 1));
	done(n);
	n = fill();
	ck_assert_uint_eq(tokens_of(b, n), 256);
	done(n);
	n = fill();
	ck_assert_uint_eq(tokens_of(b, n), 88);
	ck_assert_uint_eq(tokens_of(c, n), 50);
}

/* Prompt logprobs need a row of logits for each token: whoever comes behind still gets its row
 * and the rest of the budget. */
TEST(test_logprobs_do_not_block_others)
{
	struct run *a = add(500, 1, 0), *b = add(400, 1, 0), *c = add(40, 0, 0), *d = add(300, 0, 0);
	uint32_t n = fill(), rows = 0;
	ck_assert_uint_ge(tokens_of(a, n), 32);
	ck_assert_uint_eq(tokens_of(c, n), 40);
	ck_assert_uint_eq(tokens_of(a, n) + tokens_of(b, n) + tokens_of(c, n) + tokens_of(d, n), 256);
	for (uint32_t i = 0; i < n; i++)
		rows += step->spans[i].logits == ENGINE_LOGITS_ALL
		            ? step->spans[i].n
		            : step->spans[i].logits == ENGINE_LOGITS_LAST;
	ck_assert_uint_le(rows, w.max_logits);
	done(n);
	for (unsigned i = 0; i < 1000 && running(); i++)
		done(fill());
	ck_assert_uint_eq(running(), 0);
}

/* More prompts end in a step than there are rows: who gets none computes all but its last token. */
TEST(test_no_row_left)
{
	w.max_logits = 4;
	for (unsigned i = 0; i < 6; i++)
		add(10, 0, 0);
	uint32_t n = fill();
	ck_assert_uint_eq(n, 6);
	for (unsigned i = 0; i < 6; i++) {
		ck_assert_uint_eq(step->spans[i].n, i < 4 ? 10 : 9);
		ck_assert_int_eq(step->spans[i].logits, i < 4 ? ENGINE_LOGITS_LAST : ENGINE_LOGITS_NONE);
	}
	done(n);
	n = fill();
	ck_assert_uint_eq(n, 2);
	done(n);
	ck_assert_uint_eq(running(), 0);
}

TEST(test_random_loads_are_computed_once)
{
	srandom(7);
	for (unsigned round = 0; round < 50; round++) {
		uint64_t now = 0;
		if (round)
			set_up();
		batcher.config.order = round % 2 ? ORDER_SRPT : ORDER_FIFO;
		w.conf.max_sequences = 1 + (uint32_t)random() % 32;
		w.max_logits = 2 + (uint32_t)random() % 63;
		for (unsigned i = 0; i < JOBS; i++)
			add(1 + (uint32_t)random() % 900, random() % 4 == 0, (uint64_t)random() % 3000000);
		for (unsigned n_steps = 0; running(); n_steps++, now += 20000) {
			uint32_t sum = 0, left = 0, rows = 0, open = running(), plain = 0;
			ck_assert_uint_lt(n_steps, 60000);
			order_sort(&batcher, now);
			list_each(it, &batcher.own.running) {
				const struct run *j = list_entry(it, struct run, node);
				left += j->req.n_tokens - j->computed;
				plain += !j->req.prompt_logprobs;
			}
			uint32_t n = fill();
			ck_assert_uint_ge(n, 1);
			ck_assert_uint_le(n, w.conf.max_sequences);
			for (uint32_t i = 0; i < n; i++) {
				sum += step->spans[i].n;
				rows += step->spans[i].logits == ENGINE_LOGITS_ALL
				            ? step->spans[i].n
				            : step->spans[i].logits == ENGINE_LOGITS_LAST;
			}
			ck_assert_uint_le(sum, w.conf.max_batched_tokens);
			ck_assert_uint_le(rows, w.max_logits);
			/* nothing but the budget ended this step, or rows that only a last token lacks */
			if (plain == open && n < w.conf.max_sequences && n < open)
				ck_assert_uint_ge(sum + open, left < w.conf.max_batched_tokens
				                                  ? left
				                                  : w.conf.max_batched_tokens);
			done(n);
		}
		if (round < 49)
			tear_down();
	}
}

/* --- order --------------------------------------------------------------- */

TEST(test_fifo_is_by_arrival)
{
	struct run *a = add(900, 0, 500), *b = add(10, 0, 0), *c = add(100, 0, 0);
	list_remove(&a->node);
	list_push_back(&batcher.own.running, &a->node); /* came back late: parked longer */
	order_sort(&batcher, 3000000);
	ck_assert_ptr_eq(nth(0), a);
	ck_assert_ptr_eq(nth(1), b);
	ck_assert_ptr_eq(nth(2), c);
	a->shared->turn = 2; /* b and c do not wait for it */
	c->shared->turn = 0; /* somebody older waits for c's blocks */
	order_sort(&batcher, 3000000);
	ck_assert_ptr_eq(nth(0), c);
	ck_assert_ptr_eq(nth(1), b);
}

TEST(test_srpt_shortest_first)
{
	batcher.config.order = ORDER_SRPT;
	struct run *a = add(900, 0, 0), *b = add(500, 0, 0), *c = add(700, 0, 0);
	order_sort(&batcher, 1000);
	ck_assert_ptr_eq(nth(0), b);
	ck_assert_ptr_eq(nth(1), c);
	ck_assert_ptr_eq(nth(2), a);
	a->computed = 850; /* what is left counts */
	order_sort(&batcher, 1000);
	ck_assert_ptr_eq(nth(0), a);
	a->computed = 0;
	a->shared->wanted = 2; /* somebody waits for its first 32 tokens */
	order_sort(&batcher, 1000);
	ck_assert_ptr_eq(nth(0), a);
}

/* A short prompt arrives for every step, and alone fills it: the long one is computed all the
 * same, soon after ageing. */
TEST(test_srpt_starves_nobody)
{
	batcher.config.order = ORDER_SRPT;
	struct run *a = add(2560, 0, 0);
	uint64_t now = 0, each_us = 50000;
	unsigned steps = 0;
	for (; a->computed < a->req.n_tokens; steps++, now += each_us) {
		ck_assert_uint_lt(steps, 60);
		add(256, 0, now);
		order_sort(&batcher, now);
		done(fill());
		if (now + each_us < batcher.config.ageing_us / 2)
			/* and the short ones were not held up by it at first */
			ck_assert_uint_eq(a->computed, 0);
	}
	ck_assert_uint_le(now, batcher.config.ageing_us + 11 * each_us);
}

TEST(test_aged_stand_by_arrival)
{
	batcher.config.order = ORDER_SRPT;
	struct run *a = add(900, 0, 0), *b = add(800, 0, 0), *c = add(5, 0, 1999000);
	order_sort(&batcher, 2000000);
	ck_assert_ptr_eq(nth(0), a);
	ck_assert_ptr_eq(nth(1), b);
	ck_assert_ptr_eq(nth(2), c);
	order_sort(&batcher, 0); /* a clock before all: nothing underflows */
	ck_assert_ptr_eq(nth(0), c);
}

/* What a job has waited makes it smaller before that, too. */
TEST(test_ageing_is_gradual)
{
	batcher.config.order = ORDER_SRPT;
	struct run *a = add(900, 0, 0), *b = add(200, 0, 900000);
	order_sort(&batcher, 100000);
	ck_assert_ptr_eq(nth(0), b);
	order_sort(&batcher, 900000);
	ck_assert_ptr_eq(nth(0), a);
}

/* A prompt that arrives while a long step runs waits for that one alone, not for another that was
 * planned behind it; a decode worker plans ahead. */
TEST_LOOP(test_steps_of_prompts_do_not_overlap, 0, 2)
{
	info.overlap = 1;
	batcher.config.overlap = _i;
	add(100, 0, 0);
	ck_assert_uint_eq(fill(), 1);
	ck_assert_int_eq(step->alone, !_i);
}

/* Who waits for a running prompt's blocks is told when they are published, once, and not before. */
TEST(test_sharers_are_told)
{
	struct run *a = add(100, 0, 0);
	a->blocks.published = 2;
	batch_publish(&batcher, a);
	ck_assert_uint_eq(posted(on_published, a), 0);
	a->shared->wanted = 3;
	batch_publish(&batcher, a);
	ck_assert_uint_eq(posted(on_published, a), 0);
	a->blocks.published = 4;
	batch_publish(&batcher, a);
	ck_assert_uint_eq(posted(on_published, a), 1);
	ck_assert_uint_eq(a->shared->wanted, 0);
	batch_publish(&batcher, a);
	ck_assert_uint_eq(posted(on_published, a), 1);
}

/* --- who is given back --------------------------------------------------- */

TEST(test_sweep_gives_back_the_cancelled)
{
	struct run *a = add(100, 0, 0), *b = add(100, 0, 0);
	a->shared->cancelled = 1;
	batch_sweep(&batcher, &batcher.own.running);
	ck_assert_uint_eq(running(), 1);
	ck_assert_uint_eq(posted(on_back, a), 1);
	ck_assert_int_eq(a->failure.kind, FAILURE_NONE);
	batcher.shared.stop = 1;
	batch_sweep(&batcher, &batcher.own.running);
	ck_assert_uint_eq(running(), 0);
	ck_assert_uint_eq(posted(on_back, b), 1);
	ck_assert_int_eq(b->failure.kind, FAILURE_NONE);
}

/* The messager is told of every job that computes or waits for its turn, and of nobody else: two
 * steps on, one that the schedule has not is not in hand any more. */
TEST(test_messager_is_told_who_is_in_hand)
{
	struct run *a = add(10000, 0, 0), *b = add(100, 0, 0), *lost = add(100, 0, 0);
	list_remove(&lost->node);
	for (int i = 0; i < 3; i++) {
		batch_tell_messager(&batcher);
		order_sort(&batcher, 0);
		ck_assert_uint_eq(fill(), 1); /* b waits */
		ck_assert(ring_in_schedule(w.ring, a->slot, a->slot_gen));
		ck_assert(ring_in_schedule(w.ring, b->slot, b->slot_gen));
		ck_assert_int_eq(ring_in_schedule(w.ring, lost->slot, lost->slot_gen), i == 0);
		done(1);
	}
}
