/* test_decode_form.c - pddecoded and constraints: they are compiled beside the loop, which goes on
 * with all else; what happens meanwhile to a sequence that waits for it; and their memory. */
#include "decode_world.h"
#include "letters_model.h"

static struct prompt with_form(uint32_t n, uint32_t max_tokens, const char *regex)
{
	struct prompt p = asking(n, max_tokens);
	p.regex = regex;
	return p;
}

/* All that is being compiled also waits. */
static unsigned compiling(void)
{
	const char *text = ctl("status"), *at = strstr(text, "\"compiling\":"),
			   *waits = strstr(text, "\"waiting\":");
	ck_assert_msg(at && waits, "no compiling or waiting in %s", text);
	unsigned n = (unsigned)atoi(at + strlen("\"compiling\":"));
	ck_assert_int_ge(atoi(waits + strlen("\"waiting\":")), (int)n);
	return n;
}

TEST(answer_has_its_form)
{
	world_begin("kv_blocks=64", letters_model());
	say_submit(1, with_form(20, 20, "(b|c){4}d"));
	UNTIL(ended(1));
	ck_assert_int_eq(D.answer[1].finish, PDS__FINISH__FINISH_STOP);
	ck_assert_uint_eq(D.answer[1].n, 6);
	for (int i = 0; i < 4; i++)
		ck_assert(D.answer[1].id[i] == 4 || D.answer[1].id[i] == 5);
	ck_assert_uint_eq(D.answer[1].id[4], 6);
	ck_assert_uint_eq(D.answer[1].id[5], 2);
	world_end();
}

/* Sixty large constraints come, then a request without one: it is answered before they are
 * compiled. */
TEST(loop_goes_on_meanwhile)
{
	enum { N = 60 };
	world_begin("kv_blocks=256", letters_model());
	for (int i = 1; i <= N; i++)
		say_submit((uint32_t)i, with_form(20, 8, letters_costly(i)));
	say_submit(N + 1, tokens_of(20));
	UNTIL(ended(N + 1));
	compiling();
	for (uint32_t i = 1; i <= N; i++)
		UNTIL(ended(i));
	ck_assert_uint_le(D.answer[N + 1].place, N);
	world_end();
}

/* Cancels, a deadline and the end of the prefill worker reach sequences that wait for the
 * compiler; nothing of them is left. */
TEST(ended_while_it_compiles)
{
	world_begin("kv_blocks=256", letters_model());
	daemon_stop(); /* the cancels come before the last ones are compiled */
	for (int i = 1; i <= 30; i++)
		say_submit((uint32_t)i, with_form(20, 8, letters_costly(i)));
	for (uint32_t i = 1; i <= 30; i++)
		say_cancel(ROUTER, i);
	pump_for(20000);
	daemon_go_on();
	settle(ROUTER);
	say_reserve(31, 1, with_form(30, 8, letters_costly(31)));
	say_cancel(PREFILL, 31);
	/* a tombstone, or the one that is cancelled */
	say_reserve(31, 1, with_form(30, 8, letters_costly(31)));
	struct prompt late_one = with_form(30, 8, letters_costly(32));
	late_one.deadline_us = 1000;
	say_reserve(32, 1, late_one);
	say_reserve(33, 1, with_form(30, 8, letters_costly(33)));
	settle(PREFILL);
	side_close(PREFILL);
	UNTIL(requests_are("[]"));
	NONE(ROUTER, REQUEST_FAILED, 30);
	ck_assert_uint_eq(compiling(), 0);
	ck_assert_uint_eq(D.answer[30].n, 0);
	side_open(PREFILL);
	UNTIL(PREFILL->p);
	world_end();
}

TEST(reserved_once)
{
	world_begin("kv_blocks=256", letters_model());
	daemon_stop();
	for (int i = 2; i <= 31; i++)
		say_submit((uint32_t)i, with_form(20, 1, letters_costly(i)));
	say_reserve(1, 1, with_form(40, 8, letters_costly(1)));
	/* while the first stands behind thirty others */
	say_reserve(1, 1, with_form(40, 8, letters_costly(1)));
	pump_for(20000);
	daemon_go_on();
	WANT(Pds__Grant, PREFILL, KV_GRANT, 1);
	say_reserve(1, 1, with_form(40, 8, letters_costly(1)));
	WANT(Pds__Grant, PREFILL, KV_GRANT, 1); /* asked again, answered the same */
	settle(PREFILL);
	NONE(PREFILL, KV_GRANT, 1);
	say_cancel(PREFILL, 1);
	world_end();
}

TEST(one_that_does_not_compile)
{
	world_begin("kv_blocks=64", letters_model());
	say_reserve(1, 1, with_form(40, 8, "(a"));
	const Pds__Deny *d = WANT(Pds__Deny, PREFILL, KV_DENY, 1);
	ck_assert_int_eq(d->fault, PDS__FAULT__FAULT_INVALID);
	say_submit(2, with_form(40, 8, "a)"));
	const Pds__Failed *f = WANT(Pds__Failed, ROUTER, REQUEST_FAILED, 2);
	ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_INVALID);
	ck_assert_int_eq(f->retry, 0);
	world_end();
}

/* With room for the networks of three: the fourth is told when to come again, and is granted
 * when one has gone. */
TEST(no_memory_for_now)
{
	world_begin("kv_blocks=64", letters_model(), "constraint_memory_mb=8");
	for (uint32_t i = 1; i <= 3; i++) {
		say_reserve(i, 1, with_form(40, 8, letters_costly((int)i)));
		WANT(Pds__Grant, PREFILL, KV_GRANT, i);
	}
	say_reserve(4, 1, with_form(40, 8, letters_costly(4)));
	const Pds__Deny *d = WANT(Pds__Deny, PREFILL, KV_DENY, 4);
	ck_assert_int_eq(d->fault, PDS__FAULT__FAULT_OVERLOADED);
	ck_assert_uint_gt(d->retry_after_us, 0);
	say_submit(5, with_form(40, 8, letters_costly(5)));
	const Pds__Failed *f = WANT(Pds__Failed, ROUTER, REQUEST_FAILED, 5);
	ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_OVERLOADED);
	ck_assert_int_eq(f->retry, 1);
	ck_assert_uint_gt(f->retry_after_us, 0);
	say_submit(6, with_form(40, 3, "(b|c)d")); /* a small one finds its room */
	UNTIL(ended(6));
	say_cancel(PREFILL, 1);
	settle(PREFILL);
	say_reserve(4, 1, with_form(40, 8, letters_costly(4)));
	WANT(Pds__Grant, PREFILL, KV_GRANT, 4);
	for (uint32_t i = 2; i <= 4; i++)
		say_cancel(PREFILL, i);
	world_end();
}
