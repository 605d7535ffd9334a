/* test_decode_rates.c - what a decode worker measures of computing and of reading, and tells the
 * router: steps that decode are no measure of prompts, and a read that never comes is one of its
 * tier. */
/* run: waits */
#include "preempt_world.h"

/* What the worker says of itself after all that this process has seen of it. */
static void heard(void)
{
	uint32_t beats = D.beats;
	UNTIL(D.beats >= beats + 2);
}

TEST(prompts_are_measured)
{
	world_begin("kv_blocks=40");
	heard();
	ck_assert_uint_eq(D.compute_rate, 0);
	say_submit(1, growing(1, 200, 4));
	expect_length(1, 4);
	UNTIL(D.compute_rate > 0);
	ck_assert_uint_eq(D.memory_rate, 0);
	ck_assert_uint_eq(D.disk_rate, 0);
	world_end();
}

/* A row of a draft costs more than one of a prompt, which shares the step with many. */
TEST(drafts_are_no_prompts)
{
	world_begin("kv_blocks=40", "speculative=ngram");
	say_submit(1, growing(1, 1, 400));
	expect_length(1, 400);
	UNTIL(metric("spec_drafts_total") >= 1);
	heard();
	ck_assert_uint_eq(D.compute_rate, 0);
	world_end();
}

TEST(reads_are_measured)
{
	preempt_begin("output_caching=true");
	say_submit(1, growing(1, PAIR));
	UNTIL(ended(1) && requests_are("[]") && S.puts && kv_count("readers") == 0);
	ctl("flush");
	ck_assert_uint_eq(D.memory_rate, 0);
	say_submit(2, growing(1, PAIR));
	UNTIL(ended(2));
	UNTIL(D.memory_rate > 0);
	ck_assert_uint_eq(D.disk_rate, 0);
	preempt_end();
}

/* Given up by the clock, whether the fence comes at once or never: so long it takes, and nothing
 * comes. One that its client has left says nothing of storage. */
TEST_LOOP(what_never_comes_is_slow, 0, 3)
{
	static const enum manner fence[] = {AT_ONCE, BY_HAND, BY_HAND};
	preempt_begin(_i == 2 ? NULL : "restore_wait_ms=300");
	learn_pair();
	S.get = BY_HAND;
	S.fence = fence[_i];
	submit_pair();
	await(STORAGE, MSG_STORE_GET, 0);
	if (_i == 0) {
		UNTIL(S.fences);
		UNTIL(told("kv", "read_begin_us") >= 300000);
	} else if (_i == 1) {
		UNTIL(metric("restores_abandoned_total") == 1);
		UNTIL(told("kv", "read_begin_us") >= 300000);
	} else {
		say_cancel(ROUTER, 2);
		answer_fence((const Pds__StoreFence *)await(STORAGE, MSG_STORE_FENCE, 0));
		UNTIL(kv_count("held") == 0 || ended(1));
		ck_assert_uint_eq(told("kv", "read_begin_us"), 0);
	}
	S.fence = AT_ONCE;
	S.get = AT_ONCE;
	same(1);
	if (_i < 2)
		same(2);
	preempt_end();
}
