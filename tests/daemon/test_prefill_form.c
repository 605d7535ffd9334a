/* test_prefill_form.c - a pdprefilld between played peers, and constraints: they are compiled
 * beside the loop and the prepare threads, when a decode worker has granted; and their memory.
 * Every test ends with a daemon that holds nothing. */
/* run: waits */
#include "letters_model.h"
#include "prefill_world.h"

static struct ask with_form(uint64_t req, const char *regex)
{
	return (struct ask){.req = req, .n = 40, .to = "1", .regex = regex};
}

/* Asked for, granted. */
static void begun(struct ask a)
{
	say_submit(a);
	grant(D1, a.req, a.n);
}

TEST(first_token_is_of_the_form)
{
	world_begin(letters_model(), "kv_blocks=64");
	struct transfer t = to_computed(D1, with_form(1, "q[a-z]{3}"));
	ck_assert_uint_eq(first_token(1)->token->id, 3 + 'q' - 'a');
	finish(D1, 1, &t);
	world_end();
}

/* Sixty costly ones are granted, then one without a constraint: it has its first token before
 * they are compiled. */
TEST(others_go_on_meanwhile)
{
	enum { N = 60 };
	world_begin(letters_model(), "kv_blocks=256", "max_inflight_prefill=100",
	            "constraint_memory_mb=1024");
	for (int i = 1; i <= N; i++)
		say_submit(with_form((uint64_t)i, letters_costly(i)));
	say_submit((struct ask){.req = N + 1, .n = 40, .to = "1"});
	UNTIL(count(D1, MSG_KV_RESERVE, N) && count(D1, MSG_KV_RESERVE, N + 1));
	for (uint64_t i = 1; i <= N + 1; i++)
		grant(D1, i, 40);
	for (uint64_t i = 1; i <= N + 1; i++)
		first_token(i);
	ck_assert_uint_lt(first_tokens_before(N + 1, 1), N);
	for (uint64_t i = 1; i <= N + 1; i++)
		say_cancel(ROUTER, i);
	world_end();
}

/* What is cancelled, or whose worker goes, while its constraint waits for the compiler: nothing
 * of it is left. */
TEST(ended_while_it_compiles)
{
	world_begin(letters_model(), "kv_blocks=256", "max_inflight_prefill=100");
	for (int i = 1; i <= 30; i++)
		begun(with_form((uint64_t)i, letters_costly(i)));
	for (uint64_t i = 1; i <= 15; i++)
		say_cancel(ROUTER, i);
	side_close(D1);
	for (uint64_t i = 16; i <= 30; i++)
		ck_assert(failed(i)->retry);
	world_end();
}

TEST(stopped_while_it_compiles)
{
	world_begin(letters_model(), "kv_blocks=256", "max_inflight_prefill=100",
	            "stop_timeout_ms=1000");
	for (int i = 1; i <= 60; i++)
		begun(with_form((uint64_t)i, letters_costly(i)));
	ctl("status"); /* all grants were read */
	kill(W.daemon, SIGTERM);
	world_ended();
}

TEST(one_that_does_not_compile)
{
	world_begin(letters_model(), "kv_blocks=64");
	begun(with_form(1, "(a"));
	const Pds__Failed *f = failed(1);
	ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_INVALID);
	ck_assert(!f->retry);
	world_end();
}

/* There is room for the networks of two or three that are computed and not handed over yet: the
 * others are told when to come again, a small one has its room, and so has another large one
 * when they have gone. */
TEST(no_memory_for_now)
{
	struct transfer t[9];
	unsigned has = 0;
	world_begin(letters_model(), "kv_blocks=64", "constraint_memory_mb=8",
	            "max_inflight_prefill=100");
	for (uint64_t i = 1; i <= 8; i++) {
		begun(with_form(i, letters_costly((int)i)));
		UNTIL(count(ROUTER, MSG_REQUEST_FAILED, i) || count(ROUTER, MSG_REQUEST_FIRST_TOKEN, i));
		if (count(ROUTER, MSG_REQUEST_FIRST_TOKEN, i)) {
			t[i] = transfer_of(i);
			has++;
			continue;
		}
		ck_assert_int_eq(failed(i)->fault, PDS__FAULT__FAULT_OVERLOADED);
		ck_assert(failed(i)->retry);
		ck_assert_uint_gt(failed(i)->retry_after_us, 0);
	}
	ck_assert_uint_ge(has, 1);
	ck_assert_uint_le(has, 4);
	begun(with_form(9, "(b|c)d"));
	first_token(9);
	say_cancel(ROUTER, 9);
	for (uint64_t i = 1; i <= 8; i++)
		if (count(ROUTER, MSG_REQUEST_FIRST_TOKEN, i))
			finish(D1, i, &t[i]);
	at_rest();
	begun(with_form(10, letters_costly(10)));
	first_token(10);
	say_cancel(ROUTER, 10);
	world_end();
}
