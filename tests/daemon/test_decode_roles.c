/* test_decode_roles.c - the live switch of a worker's role: what runs ends well, what is new is
 * sent elsewhere, and whatever comes late for the role before is answered, so that nobody waits
 * for a stage that is gone. */
/* run: waits */
#include "decode_world.h"

static void expect_update(const char *role)
{
	const Pds__WorkerUpdate *m = WANT(Pds__WorkerUpdate, ROUTER, WORKER_UPDATE, 0);
	ck_assert_str_eq(m->worker->role, role);
	ck_assert_str_eq(m->worker->model_fingerprint, W.info->model_fingerprint);
	ck_assert_str_eq(m->worker->endpoint, W.info->endpoint);
	ck_assert_uint_eq(m->worker->blocks, W.info->blocks);
}

static void switch_to(const char *role)
{
	ask_role(role, 0);
	UNTIL(role_is(role));
	expect_update(role);
}

static void expect_failed(uint32_t n)
{
	const Pds__Failed *f = WANT(Pds__Failed, ROUTER, REQUEST_FAILED, n);
	ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_DRAINING);
	ck_assert_int_eq(f->retry, 1);
}

static void expect_denied(uint32_t n)
{
	ck_assert_int_eq(WANT(Pds__Deny, PREFILL, KV_DENY, n)->fault, PDS__FAULT__FAULT_DRAINING);
}

static struct prompt long_answer(uint32_t n)
{
	return asking(n, 480);
}

TEST(asked)
{
	world_begin("kv_blocks=8");
	ck_assert(role_is("decode"));
	ask_role("decode", 0);
	ck_assert(role_is("decode"));
	ck_assert_ptr_nonnull(strstr(ask_role("boss", 1), "boss"));
	ck_assert_ptr_nonnull(strstr(ask_role("", 1), "prefill"));
	settle(ROUTER);
	NONE(ROUTER, WORKER_UPDATE, 0);
	world_end();
}

/* One stage: at once, under load; who waits for room asks elsewhere, who has a lease goes on. */
TEST(decode_to_mixed_and_back)
{
	world_begin("kv_blocks=8");
	learn_kv(1);
	Pds__Lease l = filled(2, 4);
	reserve(3, tokens_of(90));
	say_reserve(4, 1, tokens_of(70));
	WANT(Pds__Queued, PREFILL, KV_QUEUED, 4);
	ck_assert_str_eq(ask_role("mixed", 0), "{\"role\":\"mixed\",\"switching\":null}");
	expect_update("mixed");
	expect_denied(4);
	say_reserve(5, 1, short_of(4));
	expect_denied(5);
	join(2, l);
	expect_answer(2, 4);
	say_submit(6, short_of(8));
	expect_answer(6, 8);
	say_cancel(PREFILL, 3);
	ask_role("decode", 0);
	expect_update("decode");
	joined(7, 4);
	expect_answer(7, 4);
	world_end();
}

/* As a prefill worker it holds nothing of what decode workers hold, and says so; as a decode
 * worker again it is whom it was: same index, new leases. */
TEST(decode_to_prefill_and_back)
{
	world_begin("kv_blocks=8");
	learn_kv(1);
	Pds__Lease l = written(2, tokens_of(40));
	say_ready(MESSAGER, 2, l);
	say_first(PREFILL, 2, l, 5);
	UNTIL(ended(2));
	UNTIL(requests_are("[]"));
	uint32_t cached = kv_count("cached");
	ck_assert_uint_ge(cached, 2);
	switch_to("prefill");
	ck_assert_uint_eq(kv_count("cached"), cached);
	say_reserve(3, 1, short_of(4));
	expect_denied(3);
	say_submit(4, short_of(4));
	expect_failed(4);
	opened(2, l, 1);
	ready(2, l);
	say_first(PREFILL, 2, l, 5);
	await(PREFILL, MSG_REQUEST_FIRST_TOKEN_ACK, 2);
	say_cancel(ROUTER, 2);
	say_revoked(MESSAGER, 2, l);
	switch_to("decode");
	ck_assert_uint_eq(kv_count("cached"), cached);
	const Pds__Grant *g = reserve(5, tokens_of(40));
	/* what is said of the old lease is not said of this one */
	ck_assert_uint_gt(g->lease->id, l.id);
	ck_assert_uint_eq(g->cached_tokens, 32);
	opened(2, l, 1);
	say_ready(MESSAGER, 2, l);
	say_first(PREFILL, 5, l, 5);
	settle(MESSAGER);
	settle(PREFILL);
	ck_assert(requests_are("\"state\":\"leased\""));
	say_cancel(ROUTER, 5);
	say_submit(6, short_of(8));
	expect_answer(6, 8);
	world_end();
}

/* All states of a sequence at once when the switch begins. */
TEST(drains)
{
	world_begin("kv_blocks=60", "role_switch_timeout_ms=600000");
	learn_kv(1);
	Pds__Lease l = filled(2, 4);
	say_submit(3, long_answer(20));
	UNTIL(D.answer[3].n > 0);
	say_reserve(4, 1, tokens_of(500)); /* more than is left */
	say_reserve(5, 1, tokens_of(500));
	await(PREFILL, MSG_KV_QUEUED, 5);
	ck_assert_str_eq(ask_role("prefill", 0), "{\"role\":\"decode\",\"switching\":\"prefill\"}");
	ck_assert_str_eq(ask_role("prefill", 0), "{\"role\":\"decode\",\"switching\":\"prefill\"}");
	ck_assert_ptr_nonnull(strstr(ask_role("mixed", 1), "prefill"));
	ck_assert_ptr_nonnull(strstr(ask_role("decode", 1), "prefill"));
	expect_denied(5);
	say_reserve(6, 1, short_of(4));
	expect_denied(6);
	say_submit(7, short_of(4));
	expect_failed(7);
	UNTIL(D.draining);
	NONE(ROUTER, WORKER_UPDATE, 0);
	say_cancel(ROUTER, 4); /* granted or queued when it began */
	join(2, l);            /* the lease holds */
	expect_answer(2, 4);
	expect_length(3, 480);
	expect_update("prefill");
	UNTIL(role_is("prefill") && !D.draining);
	NONE(ROUTER, REQUEST_FAILED, 2);
	NONE(ROUTER, REQUEST_FAILED, 3);
	world_end();
}

/* Routers that do not know WorkerInfo's field learn of a drain from the heartbeat. */
TEST(a_drain_is_in_the_heartbeat)
{
	world_begin("kv_blocks=8");
	ctl("drain");
	UNTIL(D.draining);
	ctl("undrain");
	UNTIL(!D.draining);
	world_end();
}

/* How often the daemon's loop has slept so far. */
static unsigned long slept(void)
{
	char path[64], line[128];
	unsigned long n = 0;
	snprintf(path, sizeof path, "/proc/%d/status", (int)W.daemon);
	FILE *f = fopen(path, "r");
	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof line, f))
		sscanf(line, "voluntary_ctxt_switches: %lu", &n);
	fclose(f);
	return n;
}

/* A switch that waits for a fence wakes when that has come, not by the clock: beside it there
 * are heartbeats, and 20 looks a second at what is in quarantine. */
TEST(waits_in_its_sleep)
{
	world_begin("kv_blocks=8", "role_switch_timeout_ms=600000");
	Pds__Lease l = written(2, tokens_of(40));
	ask_role("prefill", 0);
	say_cancel(PREFILL, 2);
	const Pds__LeaseRevoke *r = WANT(Pds__LeaseRevoke, MESSAGER, LEASE_REVOKE, 2);
	ck_assert_int_eq(r->fault, PDS__FAULT__FAULT_LEASE_LOST);
	pump_for(300000);
	unsigned long before = slept();
	uint64_t begin_us = clock_us();
	pump_for(500000);
	ck_assert_uint_lt(slept() - before, 60 * (clock_us() - begin_us) / 500000);
	say_revoked(MESSAGER, 2, l);
	UNTIL(role_is("prefill"));
	expect_update("prefill");
	world_end();
}

/* The time is up: the router is told of each, and a fence is waited for all the same. */
TEST_LOOP(time_is_up, 0, 2)
{
	int how = _i; /* the fence ends by the messager's word, or by its death */
	D.apart = how;
	world_begin("kv_blocks=60", "role_switch_timeout_ms=0");
	Pds__Lease l = written(1, tokens_of(40));
	reserve(2, tokens_of(41));
	struct prompt p = long_answer(20);
	say_submit(3, p);
	ask_role("prefill", 0);
	expect_failed(1);
	expect_failed(2);
	const Pds__LeaseRevoke *r = WANT(Pds__LeaseRevoke, MESSAGER, LEASE_REVOKE, 1);
	ck_assert_int_eq(r->fault, PDS__FAULT__FAULT_DRAINING);
	UNTIL(ended(3) || take(ROUTER, MSG_REQUEST_FAILED, 3));
	UNTIL(kv_count("held") == 0 && kv_count("leased") == 3);
	ck_assert_str_eq(ask_role(NULL, 0), "{\"role\":\"decode\",\"switching\":\"prefill\"}");
	NONE(ROUTER, WORKER_UPDATE, 0);
	if (how)
		process_kill(&D.child);
	else
		say_revoked(MESSAGER, 1, l);
	UNTIL(role_is("prefill"));
	expect_update("prefill");
	switch_to("decode");
	if (how) {
		/* that messager's life is over for this role, too */
		say_open(MESSAGER, 4, *reserve(4, tokens_of(40))->lease);
		ck_assert_int_eq(WANT(Pds__LeaseOpened, MESSAGER, LEASE_OPENED, 4)->refused, 1);
		say_cancel(ROUTER, 4);
	}
	world_end();
}

TEST(told_to_end_meanwhile)
{
	world_begin("kv_blocks=8");
	reserve(1, tokens_of(40));
	ask_role("prefill", 0);
	kill(W.daemon, SIGTERM);
	UNTIL(strstr(ask_role(NULL, 0), "null"));
	ck_assert_ptr_nonnull(strstr(ask_role("mixed", 1), "ending"));
	say_cancel(ROUTER, 1);
	world_ended();
}

TEST_LOOP(others_end_meanwhile, 0, 2)
{
	world_begin("kv_blocks=60");
	reserve(1, tokens_of(40));
	say_submit(2, long_answer(20));
	ask_role("prefill", 0);
	if (_i == 0)
		side_close(ROUTER);
	else {
		side_close(PREFILL);
		WANT(Pds__Failed, ROUTER, REQUEST_FAILED, 1);
	}
	UNTIL(role_is("prefill"));
	world_end();
}

/* A router that comes up later: what its link's HELLO said may be older than the switch. */
TEST(router_comes_later)
{
	world_begin("kv_blocks=8");
	side_close(ROUTER);
	ask_role("prefill", 0);
	UNTIL(role_is("prefill"));
	ROUTER->epoch++;
	side_open(ROUTER);
	UNTIL(ROUTER->p);
	expect_update("prefill");
	switch_to("decode");
	world_end();
}

/* Back and forth many times, with an answer each time. */
TEST(many_times)
{
	world_begin("kv_blocks=8");
	learn_kv(1);
	for (uint32_t n = 2; n < 14; n++) {
		switch_to(n % 3 == 0 ? "mixed" : "prefill");
		switch_to("decode");
		if (n % 2)
			say_submit(n, short_of(4));
		else
			joined(n, 4);
		expect_answer(n, 4);
	}
	world_end();
}
