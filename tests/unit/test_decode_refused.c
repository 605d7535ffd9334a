/* test_decode_refused.c - steps that the engine refuses before it computes anything: the runs go
 * through steps of their own, and only those fail that are refused there, too. The engine is
 * played. */
#include "engine/engine.h"

static int played_start(struct engine *e, struct engine_span *spans, uint32_t n, struct err *err);
static int played_finish(struct engine *e, struct err *err);
#define engine_start played_start
#define engine_finish played_finish
#include "daemons/worker/batch/batch.c"
#undef engine_start
#undef engine_finish

#include "daemons/worker/draft/spec.c"
#include "svc/svc_int.h"

#include <check.h>
#include <string.h>

enum { RUNS = 4, BAD = 666, TOKENS = 8 };

static struct engine_info info;
static struct worker w;
static struct batcher b;
static struct drafts drafts;
static struct svc svc; /* its posts and its counters only */
static struct run run[RUNS];
static struct run_shared shared[RUNS];
static uint32_t refuse_above, steps, refused, landed;
static struct kern_drawn drawn[2][RUNS];

/* Draws for each span 100 more than its last token. */
static int played_start(struct engine *e, struct engine_span *spans, uint32_t n, struct err *err)
{
	(void)e;
	int bad = n > refuse_above;
	for (uint32_t i = 0; i < n; i++)
		bad |= !spans[i].continues && spans[i].tokens[spans[i].n - 1] == BAD;
	refused += (uint32_t)bad;
	if (bad)
		return err_set(err, ERR_INVALID, "%u spans are refused", n);
	for (uint32_t i = 0; i < n; i++) {
		spans[i].drawn = &drawn[steps % 2][i];
		drawn[steps % 2][i].id = spans[i].continues ? 7 : spans[i].tokens[spans[i].n - 1] + 100;
	}
	steps++;
	return 0;
}

static int played_finish(struct engine *e, struct err *err)
{
	(void)e;
	(void)err;
	landed++;
	return 0;
}

static void on_returned(struct svc *s, void *r)
{
	(void)s;
	(void)r;
}

static void set_up(void)
{
	static uint32_t tokens[RUNS][TOKENS + 8], block[RUNS];
	static _Atomic uint64_t generations[RUNS];
	static const struct reqid owner = {1, 1};
	struct err err = {0};
	info.vocab = 1000;
	info.context = 1000;
	info.kv.block_tokens = 1000;
	w.info = &info;
	w.svc = &svc;
	w.conf.max_batched_tokens = 64;
	w.conf.max_sequences = RUNS;
	w.max_logits = 64;
	svc.base = event_base_new();
	pthread_mutex_init(&svc.posts.lock, NULL);
	ck_assert_int_eq(svc_posts_start(&svc, &err), 0);
	w.pool = kv_pool_new(RUNS, info.kv.block_tokens, generations);
	ck_assert_int_eq(kv_pool_take(w.pool, RUNS, KV_HELD, &owner, block), 0);
	svc.name = (char *)"decode-1";
	b.w = &w;
	b.returned = on_returned;
	b.own.drafts = &drafts;
	list_init(&b.own.running);
	list_init(&b.own.waiting);
	for (struct batch_step *s = b.own.step; s < b.own.step + 2; s++) {
		s->draws = mem_array(w.max_logits, sizeof *s->draws);
		s->spans = mem_array(RUNS, sizeof *s->spans);
		s->runs = mem_array(RUNS, sizeof *s->runs);
	}
	for (uint32_t i = 0; i < RUNS; i++) {
		struct run *r = &run[i];
		tokens[i][0] = 10 + i;
		*r = (struct run){.shared = &shared[i], .slot = RUN_NO_SLOT, .born_us = 1 + i};
		r->req = (struct request_copy){.tokens = tokens[i],
		                               .n_tokens = 1,
		                               .prompt_tokens = 1,
		                               .given_tokens = 1,
		                               .room_tokens = TOKENS + 8,
		                               .limit_tokens = 500,
		                               .max_tokens = TOKENS};
		r->blocks.block = &block[i];
		r->blocks.n = 1;
		list_init(&r->node);
		run_enter(&b, r, RUN_RUNNING);
	}
	refuse_above = RUNS;
}

static int was_posted(void (*fn)(struct svc *, void *), const struct run *r)
{
	for (size_t i = 0; i < svc.posts.n; i++)
		if (svc.posts.items[i].fn == fn && svc.posts.items[i].arg == r)
			return 1;
	return 0;
}

TEST_CASE("refused", .setup = set_up);

/* Too much together: each gets its token, none fails. */
TEST(what_is_too_much_together_goes_alone)
{
	refuse_above = 1;
	next_step(&b);
	ck_assert_uint_eq(refused, 1);
	ck_assert_uint_eq(steps, RUNS);
	ck_assert_uint_eq(landed, RUNS);
	ck_assert_uint_eq(w.watch.begun, w.watch.ended);
	for (uint32_t i = 0; i < RUNS; i++) {
		ck_assert_int_eq(run[i].failure.kind, FAILURE_NONE);
		ck_assert_uint_eq(run[i].req.n_tokens, 2);
		ck_assert_uint_eq(run[i].req.tokens[1], 110 + i);
		ck_assert_uint_eq(run[i].computed, 1);
		ck_assert_ptr_null(run[i].step);
	}
}

/* Those of a prefill worker end with their first token, keep their blocks, and count the step that
 * was refused as no chunk. */
TEST(first_tokens_that_are_too_much_together)
{
	refuse_above = 1;
	for (uint32_t i = 0; i < RUNS; i++)
		run[i].first_only = 1;
	next_step(&b);
	ck_assert_uint_eq(refused, 1);
	for (uint32_t i = 0; i < RUNS; i++) {
		ck_assert(was_posted(on_returned, &run[i]));
		ck_assert_int_eq(run[i].failure.kind, FAILURE_NONE);
		ck_assert_uint_eq(run[i].first.id, 110 + i);
		ck_assert_uint_eq(run[i].req.n_tokens, 1);
		ck_assert_uint_eq(run[i].blocks.n, 1);
		ck_assert_uint_eq(run[i].chunks, 1);
	}
}

/* One that is refused by itself fails without blame for this worker; the others go on. */
TEST(one_that_is_refused_fails_alone)
{
	run[1].req.tokens[0] = BAD;
	next_step(&b);
	for (uint32_t i = 0; i < RUNS; i++) {
		ck_assert_int_eq(run[i].failure.kind, i == 1 ? FAILURE_REFUSED : FAILURE_NONE);
		ck_assert_uint_eq(run[i].req.n_tokens, i == 1 ? 1 : 2);
		ck_assert_int_eq(was_posted(on_returned, &run[i]), i == 1);
	}
	struct worker_failure f = seq_failure_report(&run[1].failure, &w);
	ck_assert_ptr_null(f.blame);
	ck_assert_int_eq(f.retry, 1);
	ck_assert_str_eq(f.text, "forward step failed: 1 spans are refused");
}

/* The step before is in flight when the next is refused: what it brings is taken first. */
TEST(refused_while_another_is_in_flight)
{
	info.overlap = b.config.overlap = 1;
	next_step(&b);
	ck_assert_ptr_nonnull(b.own.in_flight);
	ck_assert_uint_eq(landed, 0);
	refuse_above = 1;
	run[2].req.max_tokens = 1; /* ends with what is in flight */
	next_step(&b);
	ck_assert_ptr_null(b.own.in_flight);
	ck_assert_uint_eq(w.watch.begun, w.watch.ended);
	for (uint32_t i = 0; i < RUNS; i++) {
		ck_assert_int_eq(run[i].failure.kind, FAILURE_NONE);
		ck_assert_uint_eq(run[i].req.n_tokens, i == 2 ? 2 : 3);
		ck_assert_uint_eq(run[i].req.tokens[1], 110 + i);
		ck_assert_int_eq(was_posted(on_returned, &run[i]), i == 2);
	}
	ck_assert_uint_eq(run[0].req.tokens[2], 210);
}
