/* test_prefill_life.c - the end of a pdprefilld that has work, the order of the schedule as a
 * client meets it, and the two benchmark baselines: what is held back until when. */
#include "prefill_world.h"

static unsigned n_of(enum who who, enum msg_type type)
{
	unsigned n = 0;
	for (unsigned i = 0; i < n_seen; i++)
		n += seen[i].who == who && seen[i].type == type;
	return n;
}

/* --- SIGTERM ------------------------------------------------------------- */

/* While one is computed, one waits for its grant, one is parked and one has been computed: what has
 * no grant, and what comes, goes elsewhere at once; the rest is computed and handed over; then
 * the daemon is gone. */
START_TEST(test_sigterm_while_computing)
{
	BEGIN("kv_blocks=64", "max_inflight_prefill=1", "stop_timeout_ms=60000");
	uint64_t req = 10;
	struct transfer done = to_computed(D2, (struct ask){.req = 1, .n = 64, .to = "2"});
	kv_sent(1, &done);
	submit((struct ask){.req = 2, .n = 64, .to = "2"});
	WAIT(count(D2, MSG_KV_RESERVE, 2));
	submit((struct ask){.req = 3, .n = 64, .to = "2"});
	WAIT(told("status", "reserve") == 2);
	struct transfer t = to_running(D1, &req, "1");
	kill(pid, SIGTERM);
	submit((struct ask){.req = 4, .n = 64, .to = "1"});
	kill(pid, SIGCONT);
	for (uint64_t r = 2; r <= 4; r++) {
		ck_assert_int_eq(failed(r)->fault, PDS__FAULT__FAULT_DRAINING);
		ck_assert_int_eq(failed(r)->retry, 1);
	}
	WAIT(count(D2, MSG_REQUEST_CANCEL, 2) == 1);
	ck_assert_uint_eq(count(D2, MSG_KV_RESERVE, 3) + count(D1, MSG_KV_RESERVE, 4), 0);
	submit((struct ask){.req = 5, .n = 64, .to = "1"});
	ck_assert_int_eq(failed(5)->fault, PDS__FAULT__FAULT_DRAINING);
	first_token(req);
	ck_assert(computed(&t, LONG));
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FAILED, req) + count(ROUTER, MSG_REQUEST_FAILED, 1),
	                  0);
	unsigned before = renewals(D1, req + 500);
	/* the lease is kept alive until the hand-over is done */
	WAIT(renewals(D1, req + 500) > before);
	finish(D1, req, &t);
	ack(D2, 1);
	ended();
}
END_TEST

/* What does not end in stop_timeout_ms is said to have failed, with retry. */
START_TEST(test_sigterm_and_no_messager)
{
	BEGIN("kv_blocks=64", "stop_timeout_ms=500");
	to_computed(D1, (struct ask){.req = 1, .n = 64, .to = "1"});
	kill(pid, SIGTERM);
	ck_assert_int_eq(failed(1)->fault, PDS__FAULT__FAULT_DRAINING);
	ck_assert_int_eq(failed(1)->retry, 1);
	WAIT(count(D1, MSG_REQUEST_CANCEL, 1));
	ended();
}
END_TEST

/* --- order --------------------------------------------------------------- */

/* A long prompt and three short ones behind it, from request `base_req` on. Returns how many of
 * these have their first token before it. */
static unsigned shorter_ones_first(uint64_t *req, uint64_t base_req)
{
	struct transfer t = to_running(D1, req, "1"), s;
	unsigned at = 0, before = 0;
	for (uint64_t r = base_req; r < base_req + 3; r++)
		submit((struct ask){.req = r, .n = 20, .to = "1", .seed = (uint32_t)r});
	kill(pid, SIGCONT);
	for (uint64_t r = base_req; r < base_req + 3; r++)
		grant(D1, r, 20);
	first_token(*req);
	for (uint64_t r = base_req; r < base_req + 3; r++)
		first_token(r);
	for (unsigned i = 0; i < n_seen; i++) {
		int is_first = seen[i].who == ROUTER && seen[i].type == MSG_REQUEST_FIRST_TOKEN;
		if (is_first && seen[i].req == *req)
			at = i;
	}
	for (unsigned i = 0; i < at; i++)
		before += seen[i].who == ROUTER && seen[i].type == MSG_REQUEST_FIRST_TOKEN &&
		          seen[i].req >= base_req;
	for (uint64_t r = base_req; r < base_req + 3; r++) {
		s = transfer_of(r);
		finish(D1, r, &s);
	}
	finish(D1, *req, &t);
	return before;
}

/* By arrival the long one's first token comes first, with shortest first the others': all three, or
 * none where the machine held their grants back until the long one had ended. Then it is played
 * again. */
START_TEST(test_order)
{
	BEGIN("kv_blocks=128", "prefill_ageing_ms=600000",
	      _i ? "prefill_order=srpt" : "prefill_order=fifo");
	uint64_t req = 10;
	unsigned before = shorter_ones_first(&req, 30);
	for (uint64_t next = 33; _i && !before && next < 60; next += 3) {
		req++;
		before = shorter_ones_first(&req, next);
	}
	ck_assert_int_eq(before > 0, _i);
	end();
}
END_TEST

/* --- the benchmark baselines --------------------------------------------- */

static void transfer_seen(uint64_t req, const struct transfer *t)
{
	Pds__TransferSeen m = PDS__TRANSFER_SEEN__INIT;
	m.slot = t->slot;
	m.generation = t->gen;
	say(MESSAGER, MSG_TRANSFER_SEEN, req, &m);
}

/* Strictly one after the other; no step before the messager has seen the transfer. */
START_TEST(test_serial)
{
	BEGIN("kv_blocks=64", "bench_prepare=serial", "max_batched_tokens=128");
	for (uint64_t r = 1; r <= 3; r++)
		submit((struct ask){.req = r, .n = 64, .to = "1", .seed = (uint32_t)r});
	for (uint64_t r = 1; r <= 3; r++) {
		WAIT(count(D1, MSG_KV_RESERVE, r));
		pump_for(60000);
		ck_assert_uint_eq(n_of(D1, MSG_KV_RESERVE), r);
		grant(D1, r, 64);
		struct transfer t = transfer_of(r);
		ck_assert_uint_eq(transfer_now.want_seen, 1);
		pump_for(60000);
		ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FIRST_TOKEN, r), 0);
		ck_assert_uint_eq(n_of(D1, MSG_KV_RESERVE), r);
		transfer_seen(r, &t);
		first_token(r);
		finish(D1, r, &t);
	}
	/* cancelled at each stand; the next one has its turn */
	submit((struct ask){.req = 4, .n = 64, .to = "1"});
	WAIT(count(D1, MSG_KV_RESERVE, 4));
	submit((struct ask){.req = 5, .n = 64, .to = "1"});
	submit((struct ask){.req = 6, .n = 64, .to = "1"});
	submit((struct ask){.req = 7, .n = 64, .to = "1"});
	cancel(6);
	cancel(4);
	grant(D1, 5, 64);
	transfer_of(5);
	cancel(5);
	grant(D1, 7, 64);
	struct transfer t = transfer_of(7);
	transfer_seen(7, &t);
	first_token(7);
	finish(D1, 7, &t);
	end();
}
END_TEST

/* The head waits for room at D: what runs is computed; a messager that does not answer ends the
 * wait. */
START_TEST(test_serial_waits)
{
	BEGIN("kv_blocks=64", "bench_prepare=serial", "stall_ms=700");
	submit((struct ask){.req = 1, .n = LONG, .to = "1", .seed = 1});
	submit((struct ask){.req = 2, .n = 64, .to = "2", .seed = 2});
	grant(D1, 1, LONG);
	struct transfer one = transfer_of(1);
	transfer_seen(1, &one);
	WAIT(count(D2, MSG_KV_RESERVE, 2));
	Pds__Queued q = PDS__QUEUED__INIT;
	q.position = 1;
	say(D2, MSG_KV_QUEUED, 2, &q);
	first_token(1);
	finish(D1, 1, &one);
	grant(D2, 2, 64);
	transfer_of(2);
	ck_assert_int_eq(failed(2)->fault, PDS__FAULT__FAULT_STALLED);
	submit((struct ask){.req = 3, .n = 64, .to = "1", .seed = 3});
	grant(D1, 3, 64);
	struct transfer three = transfer_of(3);
	transfer_seen(3, &three);
	first_token(3);
	finish(D1, 3, &three);
	end();
}
END_TEST

/* The head shares a prefix with what runs: the schedule thread computes that, it is not held for
 * the head. */
START_TEST(test_shared_prefix_at_the_gate)
{
	BEGIN("kv_blocks=64", "bench_prepare=serial");
	for (uint64_t r = 1; r <= 2; r++)
		submit((struct ask){.req = r, .n = LONG, .to = "1", .seed = 1});
	for (uint64_t r = 1; r <= 2; r++) {
		grant(D1, r, LONG);
		struct transfer t = transfer_of(r);
		transfer_seen(r, &t);
	}
	for (uint64_t r = 1; r <= 2; r++) {
		first_token(r);
		struct transfer t = transfer_of(r);
		finish(D1, r, &t);
	}
	ck_assert_uint_eq(metric("pdserve_prefix_shares_total"), 1);
	end();
}
END_TEST

static unsigned n_requests(void)
{
	char *text = ctl("requests");
	unsigned n = 0;
	for (const char *p = text; *p; p++)
		n += *p == '{';
	free(text);
	return n;
}

/* One queue: the next is reserved when the one before has its blocks, until the budget of a step
 * is spoken for. */
START_TEST(test_shared)
{
	BEGIN("kv_blocks=64", "bench_scheduler=shared", "max_batched_tokens=128");
	for (uint64_t r = 1; r <= 4; r++)
		submit((struct ask){.req = r, .n = 64, .to = "1", .seed = (uint32_t)r});
	WAIT(count(D1, MSG_KV_RESERVE, 1));
	WAIT(n_requests() == 4); /* else the first may run before there is a second */
	pump_for(60000);
	ck_assert_uint_eq(n_of(D1, MSG_KV_RESERVE), 1);
	grant(D1, 1, 64);
	WAIT(count(D1, MSG_KV_RESERVE, 2));
	pump_for(60000);
	/* held until 2 has its blocks: then the budget is spoken for */
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FIRST_TOKEN, 1), 0);
	ck_assert_uint_eq(n_of(D1, MSG_KV_RESERVE), 2);
	grant(D1, 2, 64);
	first_token(1);
	first_token(2);
	WAIT(count(D1, MSG_KV_RESERVE, 3));
	deny(D1, 3, PDS__FAULT__FAULT_TOO_LARGE, "no");
	grant(D1, 4, 64);
	first_token(4);
	for (uint64_t r = 1; r <= 4; r++) {
		if (r == 3)
			continue;
		struct transfer t = transfer_of(r);
		ck_assert_uint_eq(transfer_now.want_seen, 0);
		finish(D1, r, &t);
	}
	end();
}
END_TEST

int main(int argc, char **argv)
{
	(void)argc;
	world_main(argv[0]);
	Suite *s = suite_create("prefill_life");
	TCase *c = tcase_create("all");
	tcase_set_timeout(c, 300);
	suite_add_tcase(s, c);
	tcase_add_test(c, test_sigterm_while_computing);
	tcase_add_test(c, test_sigterm_and_no_messager);
	tcase_add_loop_test(c, test_order, 0, 2);
	tcase_add_test(c, test_serial);
	tcase_add_test(c, test_serial_waits);
	tcase_add_test(c, test_shared);
	tcase_add_test(c, test_shared_prefix_at_the_gate);
	return world_run(s);
}
