/* test_prefill_share.c - prompts that share a prefix, of which one is being computed when the other
 * could begin: what is computed twice, what is not, who waits how long, and that nobody reads
 * what is not computed (I2): the first tokens are those of the same prompts alone. */
/* run: minutes */
#include "prefill_world.h"

#define N 300u
#define SHARED 288u /* full blocks of N tokens */

/* Requests 20.. have N tokens of what request 10.. (seed 10..) begins with, and are parked,
 * known to D2. */
static void park(void)
{
	for (unsigned i = 0; i < TRIES; i++)
		say_submit((struct ask){.req = 20 + i, .n = N, .to = "2", .seed = 10 + i});
	for (unsigned i = 0; i < TRIES; i++)
		UNTIL(count(D2, MSG_KV_RESERVE, 20 + i));
}

/* The first of LONG tokens half way, the daemon stopped; *ret_next shares its beginning and has
 * its grant on the way. Others are cancelled. */
static struct transfer half_way(uint64_t *ret_first, uint64_t *ret_next)
{
	*ret_first = 10;
	park();
	struct transfer first = to_running(D1, ret_first, "1");
	*ret_next = *ret_first + 10;
	grant(D2, *ret_next, N);
	for (unsigned i = 0; i < TRIES; i++)
		if (20 + i != *ret_next)
			say_cancel(ROUTER, 20 + i);
	return first;
}

/* The first token of 20.. is that of its prompt alone, which is computed now that all is over. */
static void as_alone(uint64_t req, uint32_t token)
{
	ck_assert_uint_eq(alone((struct ask){.req = 60, .n = N, .to = "1", .seed = (uint32_t)req - 10}),
	                  token);
}

static uint64_t computed_tokens(void)
{
	return told("status", "prompt_tokens");
}

/* The second waits for the first and computes its own tail only. */
TEST(test_waits_for_the_first)
{
	world_begin("kv_blocks=64");
	uint64_t a, b;
	struct transfer first = half_way(&a, &b);
	daemon_go_on();
	const Pds__FirstToken *f = first_token(b);
	const uint32_t token = f->token->id;
	ck_assert_uint_eq(f->timing->cached_tokens, SHARED);
	struct transfer second = transfer_of(b);
	first_token(a);
	/* those met too late, too */
	ck_assert_uint_eq(computed_tokens(), (a - 9) * LONG + N - SHARED);
	ck_assert_uint_eq(metric("prefix_shares_total"), 1);
	ck_assert_uint_gt(metric("prefix_shared_tokens_total"), 0);
	finish(D1, a, &first);
	finish(D2, b, &second);
	as_alone(b, token);
	world_end();
}

/* A longer prompt behind a shorter one: all of the shorter's full blocks. */
TEST(test_longer_behind_shorter)
{
	world_begin("kv_blocks=64");
	uint32_t whole = alone((struct ask){.req = 1, .n = LONG, .to = "1", .seed = 3});
	uint64_t tokens = computed_tokens();
	say_submit((struct ask){.req = 2, .n = LONG, .to = "2", .seed = 3});
	say_submit((struct ask){.req = 3, .n = LONG - 10, .to = "1", .seed = 3});
	UNTIL(count(D2, MSG_KV_RESERVE, 2) && count(D1, MSG_KV_RESERVE, 3));
	daemon_stop(); /* both grants at once, the shorter prompt's first */
	grant(D1, 3, LONG - 10);
	pump_for(20000);
	grant(D2, 2, LONG);
	pump_for(20000);
	daemon_go_on();
	const Pds__FirstToken *f = first_token(2);
	ck_assert_uint_eq(f->token->id, whole);
	first_token(3);
	struct transfer t3 = transfer_of(3), t2 = transfer_of(2);
	/* whichever of the two grants is taken first, the prefix is computed once */
	ck_assert_uint_le(computed_tokens() - tokens, LONG + 2 * BLOCK + 16);
	ck_assert_uint_ge(metric("prefix_shares_total"), 1);
	finish(D1, 3, &t3);
	finish(D2, 2, &t2);
	world_end();
}

/* The source is cancelled in the middle: what it did compute is used, the rest computed at once. */
TEST(test_source_cancelled)
{
	world_begin("kv_blocks=64");
	uint64_t a, b;
	struct transfer first = half_way(&a, &b);
	say_cancel(ROUTER, a);
	daemon_go_on();
	const Pds__FirstToken *f = first_token(b);
	const uint32_t token = f->token->id;
	ck_assert_uint_eq(f->timing->cached_tokens % BLOCK, 0);
	ck_assert_uint_lt(f->timing->cached_tokens, SHARED);
	struct transfer second = transfer_of(b);
	UNTIL(transfer_is_void(&first));
	finish(D2, b, &second);
	as_alone(b, token);
	world_end();
}

/* As the messager does when D has revoked its lease. */
TEST(test_source_fails)
{
	world_begin("kv_blocks=64");
	uint64_t a, b;
	struct transfer first = half_way(&a, &b);
	transfer_failed(a, first.slot, first.gen);
	daemon_go_on();
	const Pds__FirstToken *f = first_token(b);
	const uint32_t token = f->token->id;
	failed(a);
	struct transfer second = transfer_of(b);
	finish(D2, b, &second);
	as_alone(b, token);
	world_end();
}

/* Who waits goes away: cancelled, or its decode worker dies. The source does not notice. */
TEST_LOOP(test_sharer_goes, 0, 2)
{
	world_begin("kv_blocks=64");
	uint64_t a, b;
	struct transfer first = half_way(&a, &b);
	if (_i == 0)
		say_cancel(ROUTER, b);
	daemon_go_on();
	if (_i == 1)
		side_close(D2); /* while it waits, or a moment after */
	first_token(a);
	ck_assert(computed(&first, LONG));
	finish(D1, a, &first);
	if (_i == 1) {
		ck_assert_int_eq(failed(b)->fault, PDS__FAULT__FAULT_DRAINING);
	} else {
		UNTIL(count(D2, MSG_REQUEST_CANCEL, b));
		ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FIRST_TOKEN, b), 0);
	}
	world_end();
}

/* Four of the same prompt, granted at once: one computes, three wait; that one is cancelled,
 * another takes its place. */
TEST_LOOP(test_many_of_one, 0, 2)
{
	world_begin("kv_blocks=128", "ring_slots=64");
	uint32_t whole = alone((struct ask){.req = 1, .n = LONG, .to = "1", .seed = 5});
	uint64_t tokens = computed_tokens();
	for (uint64_t r = 2; r <= 5; r++)
		say_submit((struct ask){.req = r, .n = LONG, .to = "1", .seed = 5});
	for (uint64_t r = 2; r <= 5; r++)
		UNTIL(count(D1, MSG_KV_RESERVE, r));
	daemon_stop();
	for (uint64_t r = 2; r <= 5; r++)
		grant(D1, r, LONG);
	pump_for(20000);
	daemon_go_on();
	struct transfer t = {0};
	uint64_t source = 0;
	for (uint64_t until = clock_us() + WAIT_US; !source; pump()) {
		ck_assert_uint_lt(clock_us(), until);
		for (uint64_t r = 2; r <= 5 && !source; r++)
			source = find_transfer(r, &t) ? r : 0;
	}
	if (_i == 1)
		say_cancel(ROUTER, source);
	unsigned n = 0;
	for (uint64_t r = 2; r <= 5; r++) {
		if (_i == 1 && r == source)
			continue;
		ck_assert_uint_eq(first_token(r)->token->id, whole);
		struct transfer own = transfer_of(r);
		finish(D1, r, &own);
		n++;
	}
	if (_i == 0) /* computed once; each of the others its last block */
		ck_assert_uint_le(computed_tokens() - tokens, LONG + 3 * BLOCK + 16);
	at_rest();
	world_end();
}

/* Prompt logprobs need every token's row: such a prompt shares nothing, and may be a source. */
TEST(test_logprobs_share_nothing)
{
	world_begin("kv_blocks=64");
	uint64_t a = 10;
	say_submit((struct ask){.req = 30, .n = N, .to = "2", .seed = 10, .prompt_logprobs = 1});
	UNTIL(count(D2, MSG_KV_RESERVE, 30));
	struct transfer first = to_running(D1, &a, "1");
	grant(D2, 30, N);
	daemon_go_on();
	const Pds__FirstToken *f = first_token(30);
	ck_assert_uint_eq(f->timing->cached_tokens, 0);
	ck_assert_uint_eq(prompt_logprobs(30), N - 1);
	ck_assert_uint_eq(metric("prefix_shares_total"), 0);
	struct transfer second = transfer_of(30);
	first_token(a);
	finish(D1, a, &first);
	finish(D2, 30, &second);
	world_end();
}

/* With shortest first a short prompt that waits for a long one's beginning is not left behind
 * with it. */
TEST(test_srpt_hurries_the_source)
{
	world_begin("kv_blocks=128", "prefill_order=srpt", "prefill_ageing_ms=600000");
	uint64_t a, b;
	struct transfer first = half_way(&a, &b);
	/* shorter than what the first has left, longer than what the second waits for */
	for (uint64_t r = 41; r <= 43; r++)
		say_submit((struct ask){.req = r, .n = 200, .to = "1", .seed = (uint32_t)r});
	pump_for(5000);
	daemon_go_on();
	for (uint64_t r = 41; r <= 43; r++)
		grant(D1, r, 200);
	const Pds__FirstToken *f = first_token(b);
	const uint32_t token = f->token->id;
	ck_assert_uint_eq(f->timing->cached_tokens, SHARED);
	first_token(a);
	finish(D1, a, &first);
	struct transfer t = transfer_of(b);
	finish(D2, b, &t);
	for (uint64_t r = 41; r <= 43; r++) {
		first_token(r);
		t = transfer_of(r);
		finish(D1, r, &t);
	}
	as_alone(b, token);
	world_end();
}
