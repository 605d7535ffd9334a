/* test_prefill_life.c - the end of a pdprefilld that has work, its threads under questions, and the
 * order of the schedule as a client meets it. */
/* run: threads */
#include "prefill_world.h"

/* --- SIGTERM ------------------------------------------------------------- */

/* While one is computed, one waits for its grant, one is parked and one has been computed: what has
 * no grant, and what comes, goes elsewhere at once; the rest is computed and handed over; then
 * the daemon is gone. */
TEST(test_sigterm_while_computing)
{
	world_begin("kv_blocks=64", "max_inflight_prefill=1", "stop_timeout_ms=60000");
	uint64_t req = 10;
	struct transfer done = to_computed(D2, (struct ask){.req = 1, .n = 64, .to = "2"});
	kv_sent(1, &done);
	say_submit((struct ask){.req = 2, .n = 64, .to = "2"});
	UNTIL(count(D2, MSG_KV_RESERVE, 2));
	say_submit((struct ask){.req = 3, .n = 64, .to = "2"});
	UNTIL(reserving() == 2);
	struct transfer t = to_running(D1, &req, "1");
	kill(W.daemon, SIGTERM);
	say_submit((struct ask){.req = 4, .n = 64, .to = "1"});
	daemon_go_on();
	for (uint64_t r = 2; r <= 4; r++) {
		ck_assert_int_eq(failed(r)->fault, PDS__FAULT__FAULT_DRAINING);
		ck_assert_int_eq(failed(r)->retry, 1);
	}
	UNTIL(count(D2, MSG_REQUEST_CANCEL, 2) == 1);
	ck_assert_uint_eq(count(D2, MSG_KV_RESERVE, 3) + count(D1, MSG_KV_RESERVE, 4), 0);
	say_submit((struct ask){.req = 5, .n = 64, .to = "1"});
	ck_assert_int_eq(failed(5)->fault, PDS__FAULT__FAULT_DRAINING);
	first_token(req);
	ck_assert(computed(&t, LONG));
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FAILED, req) + count(ROUTER, MSG_REQUEST_FAILED, 1),
	                  0);
	unsigned before = renewals(D1, req + 500);
	/* the lease is kept alive until the hand-over is done */
	UNTIL(renewals(D1, req + 500) > before);
	finish(D1, req, &t);
	ack(D2, 1);
	world_ended();
}

/* What does not end in stop_timeout_ms is said to have failed, with retry. */
TEST(test_sigterm_and_no_messager)
{
	world_begin("kv_blocks=64", "stop_timeout_ms=500");
	to_computed(D1, (struct ask){.req = 1, .n = 64, .to = "1"});
	kill(W.daemon, SIGTERM);
	ck_assert_int_eq(failed(1)->fault, PDS__FAULT__FAULT_DRAINING);
	ck_assert_int_eq(failed(1)->retry, 1);
	UNTIL(count(D1, MSG_REQUEST_CANCEL, 1));
	world_ended();
}

/* --- questions ----------------------------------------------------------- */

/* pdctl asks while threads take blocks for many. What can go wrong is for the race detector to
 * see. */
TEST(test_asked_while_blocks_are_taken)
{
	enum { MANY = 40 };
	world_begin("kv_blocks=400", "prepare_threads=1", "max_inflight_prefill=100");
	for (uint64_t round = 0; round < 4; round++) {
		for (uint64_t i = 1; i <= MANY; i++)
			say_submit((struct ask){.req = round * MANY + i, .n = 64, .to = "1"});
		UNTIL(count(D1, MSG_KV_RESERVE, round * MANY + MANY));
		for (uint64_t i = 1; i <= MANY; i++) {
			grant(D1, round * MANY + i, 64);
			if (i % 4 == 0)
				ctl("requests");
		}
		for (uint64_t i = 1; i <= MANY; i++)
			say_cancel(ROUTER, round * MANY + i);
		at_rest();
	}
	world_end();
}

/* --- order --------------------------------------------------------------- */

/* A long prompt and three short ones behind it, from request `base_req` on. Returns how many of
 * these have their first token before it. */
static unsigned shorter_ones_first(uint64_t *req, uint64_t base_req)
{
	struct transfer t = to_running(D1, req, "1"), s;
	for (uint64_t r = base_req; r < base_req + 3; r++)
		say_submit((struct ask){.req = r, .n = 20, .to = "1", .seed = (uint32_t)r});
	daemon_go_on();
	for (uint64_t r = base_req; r < base_req + 3; r++)
		grant(D1, r, 20);
	first_token(*req);
	for (uint64_t r = base_req; r < base_req + 3; r++)
		first_token(r);
	for (uint64_t r = base_req; r < base_req + 3; r++) {
		s = transfer_of(r);
		finish(D1, r, &s);
	}
	finish(D1, *req, &t);
	return first_tokens_before(*req, base_req);
}

/* By arrival the long one's first token comes first, with shortest first the others': all three, or
 * none where the machine held their grants back until the long one had ended. Then it is played
 * again. */
TEST_LOOP(test_order, 0, 2)
{
	world_begin("kv_blocks=128", "prefill_ageing_ms=600000",
	            _i ? "prefill_order=srpt" : "prefill_order=fifo");
	uint64_t req = 10;
	unsigned before = shorter_ones_first(&req, 30);
	for (uint64_t next = 33; _i && !before && next < 60; next += 3) {
		req++;
		before = shorter_ones_first(&req, next);
	}
	ck_assert_int_eq(before > 0, _i);
	world_end();
}
