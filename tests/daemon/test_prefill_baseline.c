/* test_prefill_baseline.c - the two designs that benchmarks compare with (tests/bench/baseline):
 * what is held back until when. */
#include "prefill_world.h"

#define BEGIN_AS(mode, ...)                  \
	do {                                     \
		setenv("PREFILL_BASELINE", mode, 1); \
		world_begin(__VA_ARGS__);            \
	} while (0)

static unsigned n_of(struct side *who, enum msg_type type)
{
	unsigned n = 0;
	list_each(it, &W.got) {
		const struct got *g = list_entry(it, struct got, node);
		n += g->at == who && g->type == type;
	}
	return n;
}

/* Strictly one after the other, one for each step. */
TEST(test_serial)
{
	BEGIN_AS("serial", "kv_blocks=64", "max_batched_tokens=128");
	for (uint64_t r = 1; r <= 3; r++)
		say_submit((struct ask){.req = r, .n = 64, .to = "1", .seed = (uint32_t)r});
	for (uint64_t r = 1; r <= 3; r++) {
		UNTIL(count(D1, MSG_KV_RESERVE, r));
		pump_for(60000);
		ck_assert_uint_eq(n_of(D1, MSG_KV_RESERVE), r);
		grant(D1, r, 64);
		struct transfer t = transfer_of(r);
		first_token(r);
		finish(D1, r, &t);
	}
	/* cancelled in each state; the next one has its turn */
	say_submit((struct ask){.req = 4, .n = 64, .to = "1"});
	UNTIL(count(D1, MSG_KV_RESERVE, 4));
	say_submit((struct ask){.req = 5, .n = 64, .to = "1"});
	say_submit((struct ask){.req = 6, .n = 64, .to = "1"});
	say_submit((struct ask){.req = 7, .n = 64, .to = "1"});
	say_cancel(ROUTER, 6);
	say_cancel(ROUTER, 4);
	grant(D1, 5, 64);
	transfer_of(5);
	say_cancel(ROUTER, 5);
	grant(D1, 7, 64);
	struct transfer t = transfer_of(7);
	first_token(7);
	finish(D1, 7, &t);
	world_end();
}

/* The head waits for room at D: running jobs are computed meanwhile. */
TEST(test_serial_waits)
{
	BEGIN_AS("serial", "kv_blocks=64");
	say_submit((struct ask){.req = 1, .n = LONG, .to = "1", .seed = 1});
	say_submit((struct ask){.req = 2, .n = 64, .to = "2", .seed = 2});
	grant(D1, 1, LONG);
	struct transfer one = transfer_of(1);
	UNTIL(count(D2, MSG_KV_RESERVE, 2));
	Pds__Queued q = PDS__QUEUED__INIT;
	q.position = 1;
	say(D2, MSG_KV_QUEUED, 2, &q);
	first_token(1);
	finish(D1, 1, &one);
	grant(D2, 2, 64);
	struct transfer two = transfer_of(2);
	first_token(2);
	finish(D2, 2, &two);
	say_submit((struct ask){.req = 3, .n = 64, .to = "1", .seed = 3});
	grant(D1, 3, 64);
	struct transfer three = transfer_of(3);
	first_token(3);
	finish(D1, 3, &three);
	world_end();
}

/* The head shares a prefix with a running job: the schedule thread is not held for the head. */
TEST(test_shared_prefix)
{
	BEGIN_AS("serial", "kv_blocks=64");
	for (uint64_t r = 1; r <= 2; r++)
		say_submit((struct ask){.req = r, .n = LONG, .to = "1", .seed = 1});
	for (uint64_t r = 1; r <= 2; r++) {
		grant(D1, r, LONG);
		transfer_of(r);
	}
	for (uint64_t r = 1; r <= 2; r++) {
		first_token(r);
		struct transfer t = transfer_of(r);
		finish(D1, r, &t);
	}
	ck_assert_uint_eq(metric("prefix_shares_total"), 1);
	world_end();
}

static unsigned n_requests(void)
{
	unsigned n = 0;
	for (const char *p = ctl("requests"); *p; p++)
		n += *p == '{';
	return n;
}

/* One queue: the next is reserved when the one before has its blocks, until the budget of a step
 * is spoken for. */
TEST(test_shared)
{
	BEGIN_AS("shared", "kv_blocks=64", "max_batched_tokens=128");
	for (uint64_t r = 1; r <= 4; r++)
		say_submit((struct ask){.req = r, .n = 64, .to = "1", .seed = (uint32_t)r});
	UNTIL(count(D1, MSG_KV_RESERVE, 1));
	UNTIL(n_requests() == 4); /* else the first may run before there is a second */
	pump_for(60000);
	ck_assert_uint_eq(n_of(D1, MSG_KV_RESERVE), 1);
	grant(D1, 1, 64);
	UNTIL(count(D1, MSG_KV_RESERVE, 2));
	pump_for(60000);
	/* held until 2 has its blocks: then the budget is spoken for */
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FIRST_TOKEN, 1), 0);
	ck_assert_uint_eq(n_of(D1, MSG_KV_RESERVE), 2);
	grant(D1, 2, 64);
	first_token(1);
	first_token(2);
	UNTIL(count(D1, MSG_KV_RESERVE, 3));
	say_deny(D1, 3, PDS__FAULT__FAULT_TOO_LARGE, "no");
	grant(D1, 4, 64);
	first_token(4);
	for (uint64_t r = 1; r <= 4; r++) {
		if (r == 3)
			continue;
		struct transfer t = transfer_of(r);
		finish(D1, r, &t);
	}
	world_end();
}

TEST_START(of_the_benchmarks)
{
	W.program = "../bench/pdprefilld_baseline";
}
