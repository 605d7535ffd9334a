/* test_prefill_schedule.c - the prefill scheduler by itself: which tokens of which jobs make a
 * step, in which order, and what happens to a job that is broken. Jobs are made up; nothing is
 * computed, only counted. */
/* run: threads */
#include "daemons/prefill/schedule.h"
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
static struct schedule s;
static struct svc svc; /* its posts and its counters only */
static struct stat_def counters[WS_COUNT];
static struct job_run job[JOBS];
static struct request_copy req[JOBS];
static struct seq_blocks blocks[JOBS];
static struct job_shared shared[JOBS];
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
static unsigned posted(void (*fn)(struct svc *, void *), const struct job_run *r)
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
	memset(&s, 0, sizeof s);
	memset(&svc, 0, sizeof svc);
	memset(job, 0, sizeof job);
	memset(req, 0, sizeof req);
	memset(blocks, 0, sizeof blocks);
	memset(shared, 0, sizeof shared);
	n_jobs = 0;
	info.layers = 3;
	info.kv.block_tokens = BLOCK;
	w.info = &info;
	w.svc = &svc;
	w.region.blocks = POOL;
	w.max_batched_tokens = 256;
	w.max_sequences = 32;
	w.max_logits = 64;
	ck_assert_int_eq(ring_create(JOBS, info.layers, 1, &w.ring, &err), 0);
	for (unsigned i = 0; i < WS_COUNT; i++)
		counters[i] = (struct stat_def){.name = "x", .help = "x", .type = STAT_COUNTER};
	svc.stats = stat_new(counters, WS_COUNT);
	svc.base = event_base_new();
	pthread_mutex_init(&svc.posts.lock, NULL);
	ck_assert_int_eq(svc_posts_start(&svc, &err), 0);
	s.w = &w;
	s.back = on_back;
	s.published = on_published;
	s.ageing_us = 1000000;
	list_init(&s.running);
	s.spans = mem_array(w.max_sequences, sizeof *s.spans);
	s.step_runs = mem_array(w.max_sequences, sizeof *s.step_runs);
	s.draws = mem_array(64, sizeof *s.draws);
}

static void tear_down(void)
{
	for (unsigned i = 0; i < n_jobs; i++) {
		free(req[i].tokens);
		seq_blocks_fini(&blocks[i]);
	}
	ring_destroy(&w.ring);
	free(s.spans);
	free(s.step_runs);
	free(s.draws);
	svc_posts_stop(&svc);
	event_base_free(svc.base);
	stat_destroy(&svc.stats);
}

static struct job_run *add(uint32_t tokens, int logprobs, uint64_t ready_us)
{
	static struct ring_transfer transfer;
	ck_assert_uint_lt(n_jobs, JOBS);
	struct job_run *j = &job[n_jobs];
	j->req = &req[n_jobs];
	j->blocks = &blocks[n_jobs];
	j->shared = &shared[n_jobs];
	j->req->id.lo = n_jobs + 1;
	j->seq = n_jobs;
	j->shared->turn = n_jobs++;
	j->req->n_tokens = j->req->given_tokens = tokens;
	j->req->tokens = mem_array(tokens, sizeof *j->req->tokens);
	j->req->prompt_logprobs = logprobs;
	j->blocks->n = worker_blocks_for(&w, tokens);
	j->blocks->block = mem_array(j->blocks->n, sizeof *j->blocks->block);
	j->ready_us = ready_us;
	transfer.req = j->req->id;
	transfer.attempt = 1;
	transfer.tokens = tokens;
	transfer.blocks = j->blocks->n;
	ck_assert_int_eq(ring_publish(w.ring, &transfer, &j->slot, &j->slot_gen), 0);
	list_push_back(&s.running, &j->node);
	return j;
}

static struct job_run *nth(unsigned n)
{
	struct list *it = s.running.next;
	while (n--)
		it = it->next;
	return list_entry(it, struct job_run, node);
}

static unsigned running(void)
{
	unsigned n = 0;
	list_each(it, &s.running)
		n++;
	return n;
}

/* What the engine and after_step would do. */
static void done(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct job_run *j = s.step_runs[i];
		ck_assert_uint_eq(s.spans[i].position, j->shared->computed);
		ck_assert_ptr_eq(s.spans[i].tokens, j->req->tokens + j->shared->computed);
		j->shared->computed += s.spans[i].n;
		ck_assert_uint_le(j->shared->computed, j->req->n_tokens);
		if (j->shared->computed == j->req->n_tokens)
			list_remove(&j->node);
	}
}

static uint32_t tokens_of(const struct job_run *j, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (s.step_runs[i] == j)
			return s.spans[i].n;
	return 0;
}

/* --- filling ------------------------------------------------------------- */

TEST_CASE("all", .setup = set_up, .teardown = tear_down);

TEST(test_whole_budget_in_order)
{
	struct job_run *a = add(100, 0, 0), *b = add(500, 0, 0), *c = add(50, 0, 0);
	schedule_sort(&s, 0);
	uint32_t n = schedule_fill(&s);
	ck_assert_uint_eq(n, 2);
	ck_assert_uint_eq(tokens_of(a, n), 100);
	ck_assert_uint_eq(tokens_of(b, n), 156);
	ck_assert_int_eq(s.spans[0].logits, ENGINE_LOGITS_LAST);
	ck_assert_int_eq(s.spans[1].logits, ENGINE_LOGITS_NONE);
	ck_assert_uint_eq(s.spans[1].progress_value, ring_progress_value(b->slot_gen, 156));
	ck_assert_ptr_eq(s.spans[1].progress, ring_progress_word(w.ring, b->slot, 0));
	ck_assert_ptr_eq(s.spans[1].progress + s.spans[1].progress_stride,
	                 ring_progress_word(w.ring, b->slot, 1));
	done(n);
	n = schedule_fill(&s);
	ck_assert_uint_eq(tokens_of(b, n), 256);
	done(n);
	n = schedule_fill(&s);
	ck_assert_uint_eq(tokens_of(b, n), 88);
	ck_assert_uint_eq(tokens_of(c, n), 50);
}

/* Prompt logprobs need a row of logits for each token: whoever comes behind still gets its row
 * and the rest of the budget. */
TEST(test_logprobs_do_not_block_others)
{
	struct job_run *a = add(500, 1, 0), *b = add(400, 1, 0), *c = add(40, 0, 0),
				   *d = add(300, 0, 0);
	uint32_t n = schedule_fill(&s), rows = 0;
	ck_assert_uint_ge(tokens_of(a, n), 32);
	ck_assert_uint_eq(tokens_of(c, n), 40);
	ck_assert_uint_eq(tokens_of(a, n) + tokens_of(b, n) + tokens_of(c, n) + tokens_of(d, n), 256);
	for (uint32_t i = 0; i < n; i++)
		rows += s.spans[i].logits == ENGINE_LOGITS_ALL ? s.spans[i].n
		                                               : s.spans[i].logits == ENGINE_LOGITS_LAST;
	ck_assert_uint_le(rows, w.max_logits);
	for (unsigned i = 0; i < 1000 && running(); i++)
		done(schedule_fill(&s));
	ck_assert_uint_eq(running(), 0);
}

/* More prompts end in a step than there are rows: who gets none computes all but its last token. */
TEST(test_no_row_left)
{
	w.max_logits = 4;
	for (unsigned i = 0; i < 6; i++)
		add(10, 0, 0);
	uint32_t n = schedule_fill(&s);
	ck_assert_uint_eq(n, 6);
	for (unsigned i = 0; i < 6; i++) {
		ck_assert_uint_eq(s.spans[i].n, i < 4 ? 10 : 9);
		ck_assert_int_eq(s.spans[i].logits, i < 4 ? ENGINE_LOGITS_LAST : ENGINE_LOGITS_NONE);
	}
	done(n);
	n = schedule_fill(&s);
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
		s.order = round % 2 ? ORDER_SRPT : ORDER_FIFO;
		w.max_sequences = 1 + (uint32_t)random() % 32;
		w.max_logits = 2 + (uint32_t)random() % 63;
		for (unsigned i = 0; i < JOBS; i++)
			add(1 + (uint32_t)random() % 900, random() % 4 == 0, (uint64_t)random() % 3000000);
		for (unsigned step = 0; running(); step++, now += 20000) {
			uint32_t sum = 0, left = 0, rows = 0, open = running(), plain = 0;
			ck_assert_uint_lt(step, 60000);
			schedule_sort(&s, now);
			list_each(it, &s.running) {
				const struct job_run *j = list_entry(it, struct job_run, node);
				left += j->req->n_tokens - j->shared->computed;
				plain += !j->req->prompt_logprobs;
			}
			uint32_t n = schedule_fill(&s);
			ck_assert_uint_ge(n, 1);
			ck_assert_uint_le(n, w.max_sequences);
			for (uint32_t i = 0; i < n; i++) {
				sum += s.spans[i].n;
				rows += s.spans[i].logits == ENGINE_LOGITS_ALL
				            ? s.spans[i].n
				            : s.spans[i].logits == ENGINE_LOGITS_LAST;
			}
			ck_assert_uint_le(sum, w.max_batched_tokens);
			ck_assert_uint_le(rows, w.max_logits);
			/* nothing but the budget ended this step, or rows that only a last token lacks */
			if (plain == open && n < w.max_sequences && n < open)
				ck_assert_uint_ge(sum + open,
				                  left < w.max_batched_tokens ? left : w.max_batched_tokens);
			done(n);
		}
		if (round < 49)
			tear_down();
	}
}

/* --- order --------------------------------------------------------------- */

TEST(test_fifo_is_by_arrival)
{
	struct job_run *a = add(900, 0, 500), *b = add(10, 0, 0), *c = add(100, 0, 0);
	list_remove(&a->node);
	list_push_back(&s.running, &a->node); /* came back late: parked longer */
	schedule_sort(&s, 3000000);
	ck_assert_ptr_eq(nth(0), a);
	ck_assert_ptr_eq(nth(1), b);
	ck_assert_ptr_eq(nth(2), c);
	a->shared->turn = 2; /* b and c do not wait for it */
	c->shared->turn = 0; /* somebody older waits for c's blocks */
	schedule_sort(&s, 3000000);
	ck_assert_ptr_eq(nth(0), c);
	ck_assert_ptr_eq(nth(1), b);
}

TEST(test_srpt_shortest_first)
{
	s.order = ORDER_SRPT;
	struct job_run *a = add(900, 0, 0), *b = add(500, 0, 0), *c = add(700, 0, 0);
	schedule_sort(&s, 1000);
	ck_assert_ptr_eq(nth(0), b);
	ck_assert_ptr_eq(nth(1), c);
	ck_assert_ptr_eq(nth(2), a);
	a->shared->computed = 850; /* what is left counts */
	schedule_sort(&s, 1000);
	ck_assert_ptr_eq(nth(0), a);
	a->shared->computed = 0;
	a->shared->wanted = 2; /* somebody waits for its first 32 tokens */
	schedule_sort(&s, 1000);
	ck_assert_ptr_eq(nth(0), a);
}

/* A short prompt arrives for every step, and alone fills it: the long one is computed all the
 * same, soon after ageing. */
TEST(test_srpt_starves_nobody)
{
	s.order = ORDER_SRPT;
	struct job_run *a = add(2560, 0, 0);
	uint64_t now = 0, step_us = 50000;
	unsigned steps = 0;
	for (; a->shared->computed < a->req->n_tokens; steps++, now += step_us) {
		ck_assert_uint_lt(steps, 60);
		add(256, 0, now);
		schedule_sort(&s, now);
		done(schedule_fill(&s));
		if (now + step_us < s.ageing_us / 2)
			/* and the short ones were not held up by it at first */
			ck_assert_uint_eq(a->shared->computed, 0);
	}
	ck_assert_uint_le(now, s.ageing_us + 11 * step_us);
}

TEST(test_aged_stand_by_arrival)
{
	s.order = ORDER_SRPT;
	struct job_run *a = add(900, 0, 0), *b = add(800, 0, 0), *c = add(5, 0, 1999000);
	schedule_sort(&s, 2000000);
	ck_assert_ptr_eq(nth(0), a);
	ck_assert_ptr_eq(nth(1), b);
	ck_assert_ptr_eq(nth(2), c);
	schedule_sort(&s, 0); /* a clock before all: nothing underflows */
	ck_assert_ptr_eq(nth(0), c);
}

/* What a job has waited makes it smaller before that, too. */
TEST(test_ageing_is_gradual)
{
	s.order = ORDER_SRPT;
	struct job_run *a = add(900, 0, 0), *b = add(200, 0, 900000);
	schedule_sort(&s, 100000);
	ck_assert_ptr_eq(nth(0), b);
	schedule_sort(&s, 900000);
	ck_assert_ptr_eq(nth(0), a);
}

/* Who waits for a running prompt's blocks is told when they are published, once, and not before. */
TEST(test_sharers_are_told)
{
	struct job_run *a = add(100, 0, 0);
	a->blocks->published = 2;
	schedule_publish(&s, a);
	ck_assert_uint_eq(posted(on_published, a), 0);
	a->shared->wanted = 3;
	schedule_publish(&s, a);
	ck_assert_uint_eq(posted(on_published, a), 0);
	a->blocks->published = 4;
	schedule_publish(&s, a);
	ck_assert_uint_eq(posted(on_published, a), 1);
	ck_assert_uint_eq(a->shared->wanted, 0);
	schedule_publish(&s, a);
	ck_assert_uint_eq(posted(on_published, a), 1);
}

/* --- what is broken ------------------------------------------------------ */

static void few_blocks(struct job_run *j)
{
	j->blocks->n--;
}
static void no_blocks(struct job_run *j)
{
	j->blocks->n = 0;
}
static void block_outside(struct job_run *j)
{
	j->blocks->block[2] = POOL;
}
static void all_computed(struct job_run *j)
{
	j->shared->computed = j->req->n_tokens;
}
static void beyond(struct job_run *j)
{
	j->shared->computed = UINT32_MAX;
}
static void early(struct job_run *j)
{
	j->blocks->published = j->shared->computed / BLOCK + 1;
}
static void no_slot(struct job_run *j)
{
	j->slot = RUN_NO_SLOT;
}
static void slot_outside(struct job_run *j)
{
	j->slot = JOBS;
}

static const struct {
	const char *name;
	void (*fn)(struct job_run *j);
} breaks[] = {
	{"a block too few", few_blocks},
	{"no block", no_blocks},
	{"a block outside of the pool", block_outside},
	{"all computed already", all_computed},
	{"computed beyond its end", beyond},
	{"published before it was computed", early},
	{"no slot", no_slot},
	{"a slot outside of the ring", slot_outside},
};

/* In every build: logged, its own request fails, the others are computed. */
TEST_LOOP(test_broken_precondition, 0, sizeof breaks / sizeof *breaks)
{
	log_set_level("error");
	struct job_run *a = add(100, 0, 0), *b = add(100, 0, 0), *c = add(100, 0, 0);
	breaks[_i].fn(b);
	schedule_sweep(&s, 0);
	ck_assert_msg(running() == 2 && nth(0) == a && nth(1) == c, "%s: %u are left", breaks[_i].name,
	              running());
	ck_assert_msg(posted(on_back, b) == 1, "%s: was not given back", breaks[_i].name);
	ck_assert_int_eq(b->failure.kind, FAILURE_STEP);
	ck_assert_uint_eq(stat_get(svc.stats, WS_PRECONDITIONS), 1);
	ck_assert_uint_gt(strlen(b->failure.text), 20);
	ck_assert_int_eq(a->failure.kind, FAILURE_NONE);
	ck_assert_int_eq(c->failure.kind, FAILURE_NONE);
	uint32_t n = schedule_fill(&s);
	ck_assert_uint_eq(n, 2);
}

TEST(test_sweep_gives_back_the_cancelled)
{
	struct job_run *a = add(100, 0, 0), *b = add(100, 0, 0);
	a->shared->cancelled = 1;
	schedule_sweep(&s, 0);
	ck_assert_uint_eq(running(), 1);
	ck_assert_uint_eq(posted(on_back, a), 1);
	ck_assert_int_eq(a->failure.kind, FAILURE_NONE);
	schedule_sweep(&s, 1);
	ck_assert_uint_eq(running(), 0);
	ck_assert_uint_eq(posted(on_back, b), 1);
	ck_assert_int_eq(b->failure.kind, FAILURE_NONE);
}

/* The messager is told of every job that computes or waits for its turn, and of nobody else: two
 * steps on, one that the schedule has not is not in hand any more. */
TEST(test_messager_is_told_who_is_in_hand)
{
	struct job_run *a = add(10000, 0, 0), *b = add(100, 0, 0), *lost = add(100, 0, 0);
	list_remove(&lost->node);
	for (int step = 0; step < 3; step++) {
		schedule_tell(&s);
		schedule_sort(&s, 0);
		ck_assert_uint_eq(schedule_fill(&s), 1); /* b waits */
		ck_assert(ring_in_schedule(w.ring, a->slot, a->slot_gen));
		ck_assert(ring_in_schedule(w.ring, b->slot, b->slot_gen));
		ck_assert_int_eq(ring_in_schedule(w.ring, lost->slot, lost->slot_gen), step == 0);
		done(1);
	}
}
