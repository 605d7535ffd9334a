/* test_prefill_ask.c - a pdprefilld between played peers: what it asks of decode workers, and which
 * answers it takes. Every test ends with a daemon that holds nothing. */
/* run: waits */
#include "prefill_world.h"

TEST(test_reserve_is_what_was_submitted)
{
	world_begin("kv_blocks=64");
	char endpoint[128];
	endpoint_of("decode-1", endpoint);
	Pds__Peer d = PDS__PEER__INIT, *list = &d;
	Pds__Peers m = PDS__PEERS__INIT;
	d.name = (char *)"decode-1";
	d.endpoint = endpoint;
	d.role = (char *)"decode";
	d.epoch = D1->epoch;
	m.peers = &list;
	m.n_peers = 1;
	say(ROUTER, MSG_PEERS, 0, &m);
	UNTIL(D1->p); /* before any request */
	say_submit((struct ask){.req = 1, .n = 50, .to = "12"});
	UNTIL(count(D1, MSG_KV_RESERVE, 1));
	const Pds__Reserve *r = LATEST(Pds__Reserve, D1, KV_RESERVE, 1);
	ck_assert_uint_eq(last_got(D1, MSG_KV_RESERVE, 1)->head.attempt, 1);
	ck_assert_uint_eq(r->request->n_tokens, 50);
	ck_assert_int_eq(memcmp(r->request->tokens, words, 50 * sizeof *words), 0);
	ck_assert_uint_eq(r->request->prompt_tokens, 50);
	ck_assert_uint_eq(r->request->max_tokens, 8);
	ck_assert_uint_eq(r->request->stop_ids[0], 319);
	ck_assert_uint_eq(r->request->sampling->seed, 77);
	ck_assert_uint_eq(r->request->cache_salt.len, sizeof salt);
	ck_assert_mem_eq(r->request->cache_salt.data, salt, sizeof salt);
	ck_assert_str_eq(r->router, "router");
	ck_assert_uint_eq(r->router_epoch, ROUTER->epoch);
	pump_for(50000);
	ck_assert_uint_eq(count(D2, MSG_KV_RESERVE, 1), 0);
	ck_assert_uint_eq(count(D1, MSG_KV_RESERVE, 1), 1);
	say_cancel(ROUTER, 1);
	world_end();
}

TEST(test_grant_that_does_not_fit)
{
	static const struct {
		const char *name;
		int epoch_off;
		uint32_t cached, blocks;
	} bad[] = {
		{"cached_tokens no multiple of the block", 0, 8, 4},
		{"a block too few", 0, 0, 3},
		{"a block too many", 0, 0, 5},
		{"no block", 0, 0, 0},
		{"another epoch", 1, 0, 4},
		{"all of the prompt cached", 0, 64, 0},
		{"blocks as if nothing were cached", 0, 32, 4},
	};
	world_begin("kv_blocks=64");
	for (uint64_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		uint64_t req = i + 1;
		say_submit((struct ask){.req = req, .n = 64, .to = "12"});
		for (struct side *d = D1; d <= D2; d++) {
			UNTIL(count(d, MSG_KV_RESERVE, req));
			say_grant(d, req, req + 500, d->epoch + (uint64_t)bad[i].epoch_off, bad[i].cached,
			          bad[i].blocks);
			UNTIL(count(d, MSG_REQUEST_CANCEL, req));
		}
		const Pds__Failed *f = failed(req);
		ck_assert_msg(f->fault == PDS__FAULT__FAULT_INTERNAL && f->retry, "%s: fault %d, retry %d",
		              bad[i].name, f->fault, f->retry);
		ck_assert_str_eq(f->blame, "decode-2");
		at_rest();
		ck_assert_msg(count(ROUTER, MSG_REQUEST_FIRST_TOKEN, req) == 0, "%s: was computed",
		              bad[i].name);
	}
	world_end();
}

/* Two answers of D2, which was not asked, and two of D1. 0: the machine was so slow that D2 was
 * asked, too. */
static int granted_by_the_first(uint64_t req, struct transfer *t)
{
	say_submit((struct ask){.req = req, .n = 64, .to = "12"});
	UNTIL(count(D1, MSG_KV_RESERVE, req));
	say_grant(D2, req, 900, D2->epoch, 0, 4);
	say_deny(D2, req, PDS__FAULT__FAULT_NO_ROOM, "nobody asked");
	pump_for(50000);
	UNTIL(reserving() == 1);
	say_grant(D1, req, req + 500, D1->epoch, 0, 4);
	say_grant(D1, req, 901, D1->epoch, 0, 4);
	UNTIL(find_transfer(req, t) || count(D2, MSG_KV_RESERVE, req));
	return !count(D2, MSG_KV_RESERVE, req);
}

TEST(test_grant_is_taken_once)
{
	struct transfer t;
	uint64_t req = 2;
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 1, .n = 64, .to = "2"});
	UNTIL(count(D2, MSG_KV_RESERVE, 1));
	say_cancel(ROUTER, 1); /* the link to D2 is up now */
	for (; !granted_by_the_first(req, &t); req++) {
		ck_assert_uint_lt(req, 20);
		say_cancel(ROUTER, req);
		at_rest();
	}
	ck_assert_uint_eq(transfer_now.lease_id, req + 500);
	ck_assert_str_eq(transfer_now.decode, "decode-1");
	first_token(req);
	say_grant(D1, req, 902, D1->epoch, 0, 4);
	pump_for(50000);
	ck_assert_uint_eq(told("status", "ring_used"), 1);
	UNTIL(handed_over() == 1);
	ck_assert_uint_eq(told("status", "waiting"), 0);
	finish(D1, req, &t);
	world_end();
}

TEST(test_deny)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 1, .n = 64, .to = "12"});
	UNTIL(count(D1, MSG_KV_RESERVE, 1));
	say_deny(D1, 1, PDS__FAULT__FAULT_NO_ROOM, "decode-1 is full");
	say_deny(D1, 1, PDS__FAULT__FAULT_NO_ROOM, "decode-1 is full");
	UNTIL(count(D2, MSG_KV_RESERVE, 1));
	pump_for(50000);
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FAILED, 1), 0);
	say_deny(D2, 1, PDS__FAULT__FAULT_DRAINING, "decode-2 is draining");
	const Pds__Failed *f = failed(1);
	ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_DRAINING);
	ck_assert_str_eq(f->text, "decode-2 is draining");
	ck_assert_int_eq(f->retry, 1);
	at_rest();
	say_submit((struct ask){.req = 2, .n = 64, .to = "12"}); /* denied, then served by the next */
	UNTIL(count(D1, MSG_KV_RESERVE, 2));
	say_deny(D1, 2, PDS__FAULT__FAULT_NO_ROOM, "decode-1 is full");
	grant(D2, 2, 64);
	struct transfer t = transfer_of(2);
	ck_assert_str_eq(transfer_now.decode, "decode-2");
	ck_assert_str_eq(first_token(2)->decode, "decode-2");
	finish(D2, 2, &t);
	world_end();
}

/* One does not answer for 2 s, one has no link for 3 s: cancelled where it was asked, and the
 * next is asked. */
TEST(test_late_candidate)
{
	world_begin("kv_blocks=64");
	uint64_t begun = clock_us();
	say_submit((struct ask){.req = 1, .n = 64, .to = "12"});
	say_submit((struct ask){.req = 2, .n = 64, .to = "92"});
	say_submit((struct ask){.req = 3, .n = 64, .to = "9"});
	UNTIL(count(D1, MSG_REQUEST_CANCEL, 1) && count(D2, MSG_KV_RESERVE, 1));
	ck_assert_uint_ge(clock_us() - begun, 1900000);
	ck_assert_uint_eq(count(D1, MSG_KV_RESERVE, 1), 1);
	say_grant(D1, 1, 900, D1->epoch, 0, 4); /* too late */
	grant(D2, 1, 64);
	struct transfer one = transfer_of(1);
	ck_assert_uint_eq(transfer_now.lease_id, 501);
	first_token(1);
	finish(D2, 1, &one);
	grant(D2, 2, 64);
	struct transfer two = transfer_of(2);
	first_token(2);
	finish(D2, 2, &two);
	ck_assert_int_eq(failed(3)->fault, PDS__FAULT__FAULT_PEER_LOST);
	ck_assert_int_eq(failed(3)->retry, 1);
	world_end();
}

/* m11, m15: eight requests for a full decode worker hold no block and no thread; one for the
 * other is served at once. */
TEST(m11_m15_parked_with_blocks_or_thread)
{
	world_begin("kv_blocks=8", "prepare_threads=1");
	for (uint64_t r = 1; r <= 8; r++)
		say_submit((struct ask){.req = r, .n = 64, .to = "1"});
	for (uint64_t r = 1; r <= 8; r++)
		UNTIL(count(D1, MSG_KV_RESERVE, r));
	ck_assert_uint_eq(kv_count("held"), 0);
	ck_assert_uint_eq(told("status", "ring_used"), 0);
	struct transfer t = to_computed(D2, (struct ask){.req = 9, .n = 128, .to = "2"});
	ck_assert_uint_eq(kv_count("held"), 8);
	ck_assert_uint_eq(reserving(), 8);
	finish(D2, 9, &t);
	for (uint64_t r = 1; r <= 8; r++)
		say_cancel(ROUTER, r);
	world_end();
}

/* Granted, and no room here: it waits, keeps its lease alive, and runs when another's blocks or
 * slot come back. */
TEST_LOOP(test_granted_and_blocked, 0, 2)
{
	static const char *const tight[2][3] = {{"kv_blocks=8", "ring_slots=8"},
	                                        {"kv_blocks=64", "ring_slots=1"}};
	world_begin_as(tight[_i]);
	struct transfer one = to_computed(D1, (struct ask){.req = 1, .n = 100, .to = "1"});
	say_submit((struct ask){.req = 2, .n = 100, .to = "1", .seed = 2});
	grant(D1, 2, 100);
	UNTIL(told("status", _i ? "slotless" : "blocked") == 1);
	UNTIL(renewals(D1, 502) >= 1);
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FIRST_TOKEN, 2), 0);
	kv_sent(1, &one); /* from here on the first holds nothing but the request */
	struct transfer two = transfer_of(2);
	first_token(2);
	ack(D1, 1);
	finish(D1, 2, &two);
	world_end();
}
