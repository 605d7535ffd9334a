/* test_prefill_ends.c - a pdprefilld between played peers: requests that end early, by a cancel, a
 * failure, silence or somebody's death. Every test ends with a daemon that holds nothing. */
/* run: waits long */
#include "prefill_world.h"

static void cancelled_quietly(struct side *d, uint64_t req, unsigned first_tokens)
{
	UNTIL(count(d, MSG_REQUEST_CANCEL, req));
	UNTIL(requests_are("[]"));
	pump_for(50000);
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FAILED, req), 0);
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FIRST_TOKEN, req), first_tokens);
	ck_assert_uint_eq(count(d, MSG_REQUEST_CANCEL, req), 1);
	at_rest();
}

TEST(test_cancel_waiting_for_grant)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 1, .n = 64, .to = "12"});
	UNTIL(count(D1, MSG_KV_RESERVE, 1));
	say_cancel(ROUTER, 1);
	cancelled_quietly(D1, 1, 0);
	say_grant(D1, 1, 501, D1->epoch, 0, 4); /* was under way */
	pump_for(50000);
	ck_assert_uint_eq(count(D2, MSG_KV_RESERVE, 1), 0);
	world_end();
}

TEST(test_cancel_granted)
{
	world_begin("kv_blocks=8");
	struct transfer other = to_computed(D2, (struct ask){.req = 1, .n = 100, .to = "2"});
	say_submit((struct ask){.req = 2, .n = 100, .to = "1", .seed = 2});
	grant(D1, 2, 100);
	UNTIL(told("status", "blocked") == 1);
	say_cancel(ROUTER, 2);
	UNTIL(count(D1, MSG_REQUEST_CANCEL, 2));
	UNTIL(told("status", "blocked") == 0);
	finish(D2, 1, &other);
	cancelled_quietly(D1, 2, 0);
	world_end();
}

TEST(test_cancel_running)
{
	world_begin("kv_blocks=64");
	uint64_t req = 1;
	struct transfer t = to_running(D1, &req, "1");
	say_cancel(ROUTER, req);
	daemon_go_on();
	UNTIL(transfer_is_void(&t));
	cancelled_quietly(D1, req, 0);
	/* it was not computed to its end */
	ck_assert_uint_ne(told("status", "prompt_tokens") % LONG, 0);
	world_end();
}

TEST(test_cancel_computed)
{
	world_begin("kv_blocks=64");
	struct transfer t = to_computed(D1, (struct ask){.req = 1, .n = 64, .to = "1"});
	say_cancel(ROUTER, 1);
	UNTIL(transfer_is_void(&t));
	ck_assert_int_lt(ring_mark_sent(W.ring, t.slot, t.gen), 0);
	cancelled_quietly(D1, 1, 1);
	world_end();
}

/* Nobody answers any more: the messager, or the decode worker with its acknowledgement. */
TEST(test_stalled)
{
	world_begin("kv_blocks=64", "stall_ms=2000");
	struct transfer one = to_computed(D1, (struct ask){.req = 1, .n = 64, .to = "1"}),
					two = to_computed(D2, (struct ask){.req = 2, .n = 64, .to = "2"});
	uint64_t begun = clock_us();
	kv_sent(2, &two);
	for (uint64_t r = 1; r <= 2; r++) {
		const Pds__Failed *f = failed(r);
		ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_STALLED);
		ck_assert_int_eq(f->retry, 1);
		ck_assert_ptr_nonnull(strstr(f->text, r == 1 ? "messager" : "decode worker"));
		/* a messager's failure is no worker's */
		ck_assert_str_eq(f->blame, r == 1 ? "" : "decode-2");
		UNTIL(count(r == 1 ? D1 : D2, MSG_REQUEST_CANCEL, r));
	}
	ck_assert_uint_lt(clock_us() - begun, 30000000);
	UNTIL(transfer_is_void(&one));
	world_end();
}

/* The window of the link to the decode worker is full when the first token is to go there: nobody
 * waits for it, and it is not the decode worker's failure. */
TEST(test_first_token_does_not_fit)
{
	enum { WINDOW = 16 };
	D1->fault = "dir=out:noack=100%";
	world_begin("kv_blocks=64", "window_messages=16", "stall_ms=8000");
	for (uint64_t r = 1; r <= WINDOW; r++) {
		say_submit((struct ask){.req = r, .n = 64, .to = "1", .seed = (uint32_t)r});
		UNTIL(count(D1, MSG_KV_RESERVE, r));
	}
	grant(D1, 1, 64);
	const Pds__Failed *f = failed(1);
	ck_assert_msg(f->fault == PDS__FAULT__FAULT_PEER_LOST, "fault %d: %s", f->fault, f->text);
	ck_assert_int_eq(f->retry, 1);
	ck_assert_str_eq(f->blame, "");
	ck_assert_ptr_nonnull(strstr(f->text, "does not take the first token"));
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FIRST_TOKEN, 1), 0); /* the next attempt's is it */
	for (uint64_t r = 2; r <= WINDOW; r++)
		say_cancel(ROUTER, r);
	world_end();
}

/* Without a messager nothing can be handed over: what is to be fails at once, whoever is asked, and
 * the routers are told; they are told again when it is back. */
TEST_LOOP(test_the_messager_is_lost, 0, 2)
{
	world_begin("kv_blocks=64", "silence_ms=4000");
	ck_assert_str_ne(W.info->site, "");
	if (_i) {
		/* it is silent: a process that is stopped */
		side_close(MESSAGER);
		MESSAGER->fault = "type=HEARTBEAT:dir=out:drop=100%";
		link_again(MESSAGER, MESSAGER->epoch);
	}
	struct transfer one = to_computed(D1, (struct ask){.req = 1, .n = 64, .to = "1"}),
					two = to_computed(D2, (struct ask){.req = 2, .n = 64, .to = "2"});
	kv_sent(2, &two); /* this one needs it no more */
	say_submit((struct ask){.req = 3, .n = 64, .to = "1"});
	UNTIL(count(D1, MSG_KV_RESERVE, 3));
	if (!_i)
		side_close(MESSAGER);
	for (uint64_t r = 1; r <= 3; r += 2) {
		const Pds__Failed *f = failed(r);
		ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_PEER_LOST);
		ck_assert_int_eq(f->retry, 1);
		ck_assert_str_eq(f->blame, "");
		ck_assert_ptr_nonnull(strstr(f->text, "messager"));
		UNTIL(count(D1, MSG_REQUEST_CANCEL, r));
	}
	UNTIL(transfer_is_void(&one));
	ck_assert_str_eq(LATEST(Pds__WorkerUpdate, ROUTER, WORKER_UPDATE, 0)->worker->site, "");
	ack(D2, 2);
	at_rest();
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FAILED, 2), 0);
	MESSAGER->fault = NULL;
	link_again(MESSAGER, MESSAGER->epoch);
	UNTIL(strcmp(LATEST(Pds__WorkerUpdate, ROUTER, WORKER_UPDATE, 0)->worker->site, W.info->site) ==
	      0);
	struct transfer t = to_computed(D1, (struct ask){.req = 30, .n = 64, .to = "1"});
	finish(D1, 30, &t);
	world_end();
}

/* A transfer that the messager found malformed is this worker's failure; one that stalled while its
 * steps go on is not. Whose lease it gave back in order is named. */
TEST(test_failed_transfers)
{
	static const struct {
		Pds__Fault fault;
		const char *blame;
	} rows[] = {{PDS__FAULT__FAULT_INTERNAL, "prefill"},
	            {PDS__FAULT__FAULT_STALLED, ""},
	            {PDS__FAULT__FAULT_LEASE_LOST, ""},
	            {PDS__FAULT__FAULT_DRAINING, "decode-1"}};
	world_begin("kv_blocks=64");
	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		uint64_t req = i + 1;
		struct transfer t = to_computed(D1, (struct ask){.req = req, .n = 64, .to = "1"});
		say_transfer_failed(req, t.slot, t.gen, rows[i].fault, "so it is");
		const Pds__Failed *f = failed(req);
		ck_assert_int_eq(f->fault, rows[i].fault);
		ck_assert_int_eq(f->retry, 1);
		ck_assert_str_eq(f->blame, rows[i].blame);
	}
	world_end();
}

/* A decode worker whose end comes without a goodbye: that is its failure. */
TEST(test_decode_worker_falls_silent)
{
	world_begin("kv_blocks=64", "silence_ms=4000");
	side_close(D1);
	D1->fault = "type=GOODBYE:dir=out:drop=100%";
	side_again(D1, D1->epoch + 1);
	to_computed(D1, (struct ask){.req = 1, .n = 64, .to = "1"});
	side_close(D1);
	const Pds__Failed *f = failed(1);
	ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_PEER_LOST);
	ck_assert_int_eq(f->retry, 1);
	ck_assert_str_eq(f->blame, "decode-1");
	D1->fault = NULL;
	side_again(D1, D1->epoch + 1);
	world_end();
}

static void expect_lost(uint64_t req)
{
	const Pds__Failed *f = failed(req);
	ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_DRAINING); /* it ended in order: no loss */
	ck_assert_int_eq(f->retry, 1);
	ck_assert_str_eq(f->blame, "decode-1"); /* which the router goes on without */
}

static int failed_before(uint64_t a, uint64_t b)
{
	list_each(it, &W.got) {
		const struct got *g = list_entry(it, struct got, node);
		if (got_is(g, ROUTER, MSG_REQUEST_FAILED, a))
			return 1;
		if (got_is(g, ROUTER, MSG_REQUEST_FAILED, b))
			return 0;
	}
	return 0;
}

TEST(test_decode_worker_dies)
{
	world_begin("kv_blocks=34");
	say_submit((struct ask){.req = 1, .n = 64, .to = "12"}); /* asked, another is left */
	say_submit((struct ask){.req = 2, .n = 64, .to = "1"});  /* asked, the last one */
	UNTIL(count(D1, MSG_KV_RESERVE, 1) && count(D1, MSG_KV_RESERVE, 2));
	struct transfer three = to_computed(D1, (struct ask){.req = 3, .n = 64, .to = "12"});
	/* it waits 3 s for a link, and fails then: the others do not wait so long */
	say_submit((struct ask){.req = 4, .n = 64, .to = "9"});
	side_close(D1);
	UNTIL(count(D2, MSG_KV_RESERVE, 1) && count(ROUTER, MSG_REQUEST_FAILED, 2));
	grant(D2, 1, 64);
	struct transfer one = transfer_of(1);
	first_token(1);
	expect_lost(2);
	expect_lost(3);
	ck_assert_int_eq(failed(4)->fault, PDS__FAULT__FAULT_PEER_LOST);
	ck_assert(failed_before(2, 4) && failed_before(3, 4));
	UNTIL(transfer_is_void(&three));
	finish(D2, 1, &one);
	at_rest();
	side_again(D1, D1->epoch + 1); /* its next life */
	uint64_t req = 10;
	struct transfer long_one = to_running(D1, &req, "12");
	/* granted, and waits for blocks */
	say_submit((struct ask){.req = 20, .n = 100, .to = "12", .seed = 20});
	daemon_go_on();
	grant(D1, 20, 100);
	UNTIL(told("status", "blocked") == 1 || count(ROUTER, MSG_REQUEST_FIRST_TOKEN, req));
	side_close(D1);
	expect_lost(req);
	expect_lost(20);
	UNTIL(transfer_is_void(&long_one));
	ck_assert_uint_eq(count(D2, MSG_KV_RESERVE, req), 0);
	side_again(D1, D1->epoch + 1);
	struct transfer t = to_computed(D1, (struct ask){.req = 30, .n = 64, .to = "1"});
	finish(D1, 30, &t);
	world_end();
}

TEST(test_router_dies)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 1, .n = 64, .to = "12"});
	struct transfer two = to_computed(D1, (struct ask){.req = 2, .n = 64, .to = "1"});
	uint64_t req = 10;
	UNTIL(count(D1, MSG_KV_RESERVE, 1));
	struct transfer three = to_running(D2, &req, "2");
	/* its goodbye and the end of the connection are there together when the daemon goes on */
	side_close(ROUTER);
	daemon_go_on();
	UNTIL(count(D1, MSG_REQUEST_CANCEL, 1) && count(D1, MSG_REQUEST_CANCEL, 2) &&
	      count(D2, MSG_REQUEST_CANCEL, req));
	UNTIL(transfer_is_void(&two) && transfer_is_void(&three));
	at_rest();
	/* its next life hears nothing of the former's requests and is served */
	side_again(ROUTER, ROUTER->epoch + 1);
	UNTIL(ROUTER->p);
	struct transfer t = to_computed(D1, (struct ask){.req = 20, .n = 64, .to = "1"});
	finish(D1, 20, &t);
	at_rest();
	for (uint64_t r = 1; r <= req; r++)
		ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FAILED, r), 0);
	world_end();
}

TEST(test_first_token_ends_the_answer)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 1, .n = 150, .to = "1", .max_tokens = 1});
	grant(D1, 1, 150);
	const Pds__FirstToken *f = first_token(1);
	ck_assert_int_eq(f->finish, PDS__FINISH__FINISH_LENGTH);
	ck_assert_uint_eq(f->token->id, golden_first);
	UNTIL(count(D1, MSG_REQUEST_CANCEL, 1));
	at_rest();
	ck_assert_uint_eq(count(D1, MSG_REQUEST_FIRST_TOKEN, 1), 0);
	world_end();
}

/* An answer of one token needs no decode worker: there is nothing to ask for, to move or to wait
 * for. */
TEST(test_single_token)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 1, .n = 150, .to = "", .max_tokens = 1});
	const Pds__FirstToken *f = first_token(1);
	ck_assert_int_eq(f->finish, PDS__FINISH__FINISH_LENGTH);
	ck_assert_uint_eq(f->token->id, golden_first);
	ck_assert_str_eq(f->decode, "");
	at_rest();
	ck_assert_uint_eq(count(D1, MSG_KV_RESERVE, 1), 0);
	ck_assert_uint_eq(count(D1, MSG_REQUEST_FIRST_TOKEN, 1), 0);
	/* of more tokens somebody must decode the others */
	say_submit((struct ask){.req = 2, .n = 150, .to = "", .max_tokens = 2});
	ck_assert_int_eq(failed(2)->fault, PDS__FAULT__FAULT_DRAINING);
	at_rest();
	world_end();
}
