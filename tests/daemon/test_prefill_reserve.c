/* test_prefill_reserve.c - a pdprefilld between played peers: whom it asks when many wait, what a
 * denial's hint does, who is served first, and that a client's abort is honoured in every state.
 * Every test ends with a daemon that holds nothing. */
/* run: waits long minutes */
#include "prefill_world.h"

#define S 1000000u
/* from then on a candidate of which nothing is known may be tried */
#define LATE (2 * S)

static int reserved(struct side *d, uint64_t req)
{
	return count(d, MSG_KV_RESERVE, req) > 0;
}

static void cancel_all(uint64_t from, uint64_t to)
{
	for (uint64_t r = from; r <= to; r++)
		say_cancel(ROUTER, r);
}

static void served(struct side *d, uint64_t req, uint32_t n)
{
	grant(d, req, n);
	struct transfer t = transfer_of(req);
	first_token(req);
	finish(d, req, &t);
}

/* --- a cap for each decode worker ---------------------------------------- */

TEST_CASE("cap", .timeout_s = 300);

TEST(test_cap)
{
	world_begin("kv_blocks=64", "max_inflight_prefill=2");
	/* prompts are prepared by several threads, in any order */
	for (uint64_t r = 1; r <= 2; r++)
		say_submit((struct ask){.req = r, .n = 64, .to = "1"});
	UNTIL(reserved(D1, 1) && reserved(D1, 2));
	for (uint64_t r = 3; r <= 6; r++)
		say_submit((struct ask){.req = r, .n = 64, .to = "1"});
	UNTIL(reserving() == 6);
	pump_for(150000);
	for (uint64_t r = 3; r <= 6; r++)
		ck_assert(!reserved(D1, r));
	ck_assert_uint_eq(kv_count("held"), 0);
	ck_assert_uint_eq(told("status", "decode-1"), 2);
	/* another candidate is asked at once */
	say_submit((struct ask){.req = 7, .n = 64, .to = "12"});
	served(D2, 7, 64);
	ck_assert(!reserved(D1, 7));
	/* each place that is free is the next one's, in order of arrival */
	say_cancel(ROUTER, 2);
	UNTIL(reserved(D1, 3));
	grant(D1, 1, 64);
	struct transfer t = transfer_of(1);
	first_token(1);
	pump_for(100000);
	/* granted and computed: in flight until it is handed over */
	ck_assert(!reserved(D1, 4));
	kv_sent(1, &t);
	UNTIL(reserved(D1, 4));
	ack(D1, 1);
	say_deny(D1, 3, PDS__FAULT__FAULT_TOO_LARGE, "no");
	UNTIL(reserved(D1, 5));
	ck_assert(!reserved(D1, 6));
	cancel_all(4, 6);
	world_end();
}

/* Forty for a decode worker that never answers: those for the other pass them all, one after the
 * other. */
TEST(test_slow_peer_holds_nobody)
{
	world_begin("kv_blocks=8", "prepare_threads=1", "max_inflight_prefill=4");
	for (uint64_t r = 1; r <= 40; r++)
		say_submit((struct ask){.req = r, .n = 128, .to = "1"});
	UNTIL(reserving() == 40);
	for (uint64_t r = 101; r <= 106; r++) {
		say_submit((struct ask){.req = r, .n = 128, .to = r % 2 ? "2" : "12"});
		served(D2, r, 128);
	}
	ck_assert_uint_ge(metric("reserve_parked_total"), 36);
	ck_assert_uint_eq(told("status", "decode-1"), 4);
	cancel_all(1, 40);
	world_end();
}

/* Both full: parked; whichever has a place first is asked, by arrival. */
TEST(test_parked_for_either)
{
	world_begin("kv_blocks=64", "max_inflight_prefill=1");
	say_submit((struct ask){.req = 1, .n = 64, .to = "1"});
	say_submit((struct ask){.req = 2, .n = 64, .to = "2"});
	UNTIL(reserved(D1, 1) && reserved(D2, 2));
	say_submit((struct ask){.req = 3, .n = 64, .to = "1"});
	say_submit((struct ask){.req = 4, .n = 64, .to = "12"});
	say_submit((struct ask){.req = 5, .n = 64, .to = "21"});
	UNTIL(reserving() == 5);
	say_cancel(ROUTER, 2);
	UNTIL(reserved(D2, 4));
	say_cancel(ROUTER, 1);
	UNTIL(reserved(D1, 3));
	ck_assert(!reserved(D1, 5) && !reserved(D2, 5));
	side_close(D1); /* 5 is asked of the other when 4 has gone; 3 has nobody left */
	ck_assert_int_eq(failed(3)->fault, PDS__FAULT__FAULT_DRAINING);
	say_cancel(ROUTER, 4);
	UNTIL(reserved(D2, 5));
	say_cancel(ROUTER, 5);
	world_end();
}

/* --- hints --------------------------------------------------------------- */

TEST_CASE("hint", .timeout_s = 300);

TEST(test_hint_of_the_only_one)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 1, .n = 64, .to = "1"});
	UNTIL(reserved(D1, 1));
	uint64_t said = clock_us();
	say_deny_for(D1, 1, PDS__FAULT__FAULT_OVERLOADED, "the table is full", 400000);
	UNTIL(count(D1, MSG_KV_RESERVE, 1) == 2);
	ck_assert_uint_ge(clock_us() - said, 400000);
	/* a tombstone would forbid the second */
	ck_assert_uint_eq(count(D1, MSG_REQUEST_CANCEL, 1), 0);
	served(D1, 1, 64);
	at_rest();
	/* however short the hint: no storm */
	say_submit((struct ask){.req = 2, .n = 64, .to = "1"});
	UNTIL(reserved(D1, 2));
	said = clock_us();
	while (count(D1, MSG_KV_RESERVE, 2) < 4) {
		unsigned n = count(D1, MSG_KV_RESERVE, 2);
		say_deny_for(D1, 2, PDS__FAULT__FAULT_OVERLOADED, "the table is full", 1);
		UNTIL(count(D1, MSG_KV_RESERVE, 2) > n);
	}
	ck_assert_uint_ge(clock_us() - said, 60000);
	say_cancel(ROUTER, 2);
	world_end();
}

TEST(test_hint_and_another_candidate)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 1, .n = 64, .to = "12"});
	UNTIL(reserved(D1, 1));
	uint64_t said = clock_us();
	say_deny_for(D1, 1, PDS__FAULT__FAULT_OVERLOADED, "the table is full", S / 2);
	UNTIL(reserved(D2, 1));
	/* the hint is for when nobody else is left, or when that one does not answer either */
	ck_assert(count(D1, MSG_KV_RESERVE, 1) == 1 || clock_us() - said >= LATE);
	say_deny(D2, 1, PDS__FAULT__FAULT_DRAINING, "draining");
	UNTIL(count(D1, MSG_KV_RESERVE, 1) == 2);
	ck_assert_uint_ge(clock_us() - said, S / 2);
	ck_assert_uint_eq(count(D2, MSG_KV_RESERVE, 1), 1);
	say_deny(D1, 1, PDS__FAULT__FAULT_NO_ROOM, "still full");
	ck_assert_int_eq(failed(1)->fault, PDS__FAULT__FAULT_NO_ROOM);
	ck_assert_int_eq(failed(1)->retry, 1);
	world_end();
}

/* A hint past the deadline is no hope; a wait ends at the deadline. */
TEST(test_hints_and_deadlines)
{
	world_begin("kv_blocks=64", "max_inflight_prefill=1");
	say_submit((struct ask){.req = 8, .n = 64, .to = "2"}); /* takes D2's place */
	UNTIL(reserved(D2, 8));
	W.deadline_us = clock_us() + 4 * S;
	say_submit((struct ask){.req = 1, .n = 64, .to = "1"});
	say_submit((struct ask){.req = 3, .n = 64, .to = "2"}); /* parked */
	W.deadline_us = 0;
	UNTIL(reserved(D1, 1));
	say_deny_for(D1, 1, PDS__FAULT__FAULT_OVERLOADED, "the table is full", 60000000);
	ck_assert_int_eq(failed(1)->fault, PDS__FAULT__FAULT_OVERLOADED);
	/* the router may tell its client */
	ck_assert_uint_eq(failed(1)->retry_after_us, 60000000);
	ck_assert_uint_eq(failed(3)->retry_after_us, 0);
	ck_assert_int_eq(failed(3)->fault, PDS__FAULT__FAULT_DEADLINE);
	ck_assert_int_eq(failed(3)->retry, 0);
	ck_assert(!reserved(D2, 3));
	say_cancel(ROUTER, 8);
	world_end();
}

/* Denied for want of a link to the router, and with a hint: asked again for 3 s. If only these two
 * have lost sight of each other, nothing else would end that before the deadline. */
TEST(test_no_link_to_the_router)
{
	world_begin("kv_blocks=64");
	uint64_t begun = clock_us();
	say_submit((struct ask){.req = 1, .n = 64, .to = "1"});
	for (unsigned n = 0;; n++) {
		UNTIL(count(D1, MSG_KV_RESERVE, 1) > n || count(ROUTER, MSG_REQUEST_FAILED, 1));
		if (count(ROUTER, MSG_REQUEST_FAILED, 1))
			break;
		ck_assert_uint_lt(clock_us() - begun, 10 * S);
		say_deny_for(D1, 1, PDS__FAULT__FAULT_PEER_LOST, "no link to router", 100000);
	}
	ck_assert_uint_ge(clock_us() - begun, 3 * S);
	ck_assert_int_eq(failed(1)->fault, PDS__FAULT__FAULT_PEER_LOST);
	ck_assert_int_eq(failed(1)->retry, 1);
	world_end();
}

/* A candidate of a life that is over is not waited for. */
TEST(test_candidate_of_an_earlier_life)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 1, .n = 64, .to = "1"});
	UNTIL(reserved(D1, 1));
	say_cancel(ROUTER, 1);
	uint64_t begun, req = 1;
	do { /* the wait for a link is 3 s; a slow machine has several tries */
		ck_assert_uint_lt(++req, 10);
		D1->epoch--;
		say_submit((struct ask){.req = req, .n = 64, .to = "12"});
		D1->epoch++;
		begun = clock_us();
		UNTIL(reserved(D2, req));
		ck_assert(!reserved(D1, req));
		say_cancel(ROUTER, req);
	} while (clock_us() - begun > 2500000);
	world_end();
}

/* The router may know a life whose link is not up here yet, while the one before it still has one:
 * the new one's link is awaited like any other. */
TEST(test_candidate_of_a_later_life)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 1, .n = 64, .to = "1"});
	UNTIL(reserved(D1, 1));
	say_cancel(ROUTER, 1);
	uint64_t begun = clock_us();
	D1->epoch++;
	say_submit((struct ask){.req = 2, .n = 64, .to = "12"});
	D1->epoch--;
	link_again(D1, D1->epoch);
	UNTIL(reserved(D2, 2));
	ck_assert_uint_ge(clock_us() - begun, 3 * S);
	ck_assert(!reserved(D1, 2));
	say_cancel(ROUTER, 2);
	world_end();
}

/* --- own blocks, in order ------------------------------------------------ */

TEST_CASE("blocks", .timeout_s = 300);

/* A long prompt that waits for blocks is not overtaken by short ones for which there would be
 * room. */
TEST(test_blocked_in_order)
{
	world_begin("kv_blocks=8");
	/* 7 of 8 blocks */
	struct transfer one = to_computed(D1, (struct ask){.req = 1, .n = 100, .to = "1", .seed = 1});
	say_submit((struct ask){.req = 2, .n = 128, .to = "1", .seed = 2});
	grant(D1, 2, 128);
	UNTIL(told("status", "blocked") == 1);
	for (uint64_t r = 3; r <= 5; r++) {
		say_submit((struct ask){.req = r, .n = 16, .to = "1", .seed = (uint32_t)r});
		grant(D1, r, 16);
	}
	UNTIL(told("status", "blocked") == 4);
	pump_for(150000);
	ck_assert_uint_eq(kv_count("held"), 7);
	kv_sent(1, &one);
	struct transfer two = transfer_of(2);
	first_token(2);
	/* the first of them looks once more, and does so beside the loop */
	UNTIL(told("status", "blocked") == 3);
	say_cancel(ROUTER, 4);
	ack(D1, 1);
	finish(D1, 2, &two);
	for (uint64_t r = 3; r <= 5; r += 2) {
		struct transfer t = transfer_of(r);
		first_token(r);
		finish(D1, r, &t);
	}
	world_end();
}

/* The ring is full and the messager stands still: who waits for a slot waits for the stall limit
 * of those who have one. */
TEST(test_ring_full_and_no_messager)
{
	world_begin("kv_blocks=64", "ring_slots=1", "stall_ms=2000");
	struct transfer one = to_computed(D1, (struct ask){.req = 1, .n = 64, .to = "1", .seed = 1});
	for (uint64_t r = 2; r <= 3; r++) {
		say_submit((struct ask){.req = r, .n = 64, .to = "1", .seed = (uint32_t)r});
		grant(D1, r, 64);
	}
	ck_assert_int_eq(failed(1)->fault, PDS__FAULT__FAULT_STALLED);
	UNTIL(transfer_is_void(&one));
	first_token(2);
	ck_assert_int_eq(failed(2)->fault, PDS__FAULT__FAULT_STALLED);
	first_token(3);
	struct transfer three = transfer_of(3);
	finish(D1, 3, &three);
	world_end();
}

/* --- aborts -------------------------------------------------------------- */

static void gone_quietly(uint64_t req)
{
	at_rest();
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FAILED, req), 0);
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FIRST_TOKEN, req), 0);
}

TEST_CASE("abort", .timeout_s = 300);

/* What is said while the daemon stands is there all at once when it goes on: the cancel comes
 * right behind what began the state. */
TEST(test_cancel_in_prepare_and_take)
{
	world_begin("kv_blocks=64");
	for (uint64_t r = 1; r <= 20; r++) {
		daemon_stop();
		say_submit((struct ask){.req = r, .n = 480, .to = "1", .seed = (uint32_t)r});
		say_cancel(ROUTER, r);
		pump_for(2000);
		daemon_go_on();
	}
	at_rest();
	for (uint64_t r = 1; r <= 20; r++) {
		gone_quietly(r);
		UNTIL(count(D1, MSG_KV_RESERVE, r) == count(D1, MSG_REQUEST_CANCEL, r));
	}
	for (uint64_t r = 31; r <= 50; r++) {
		say_submit((struct ask){.req = r, .n = 480, .to = "1", .seed = (uint32_t)r});
		UNTIL(reserved(D1, r));
		daemon_stop();
		grant(D1, r, 480);
		say_cancel(ROUTER, r);
		pump_for(2000);
		daemon_go_on();
	}
	at_rest();
	for (uint64_t r = 31; r <= 50; r++) {
		UNTIL(count(D1, MSG_REQUEST_CANCEL, r) == 1);
		gone_quietly(r);
	}
	world_end();
}

TEST(test_cancel_parked)
{
	world_begin("kv_blocks=64", "max_inflight_prefill=1");
	say_submit((struct ask){.req = 1, .n = 64, .to = "1"});
	UNTIL(reserved(D1, 1));
	say_submit((struct ask){.req = 2, .n = 64, .to = "1"}); /* beyond the cap */
	say_submit((struct ask){.req = 3, .n = 64, .to = "9"}); /* its link never comes */
	say_submit((struct ask){.req = 4, .n = 64, .to = "2"});
	UNTIL(reserved(D2, 4));
	say_deny_for(D2, 4, PDS__FAULT__FAULT_OVERLOADED, "later", 20000000); /* told to wait */
	UNTIL(reserving() == 4);
	cancel_all(2, 4);
	UNTIL(reserving() == 1);
	say_cancel(ROUTER, 1);
	for (uint64_t r = 1; r <= 4; r++)
		gone_quietly(r);
	/* nothing was asked there that stands */
	ck_assert_uint_eq(count(D1, MSG_REQUEST_CANCEL, 2) + count(D2, MSG_REQUEST_CANCEL, 4), 0);
	world_end();
}

/* --- storage ------------------------------------------------------------- */

/* Of the common prompt's first four blocks two are in storage and no longer here; a request of n
 * tokens that begins with them has been looked up and stands before its grant. Another prompt, of
 * ten blocks, has taken their place in the pool of twelve; what the next one would evict of it is
 * stored as well. */
static void to_stored(uint64_t req, uint32_t n)
{
	storage_start();
	UNTIL(told("status", "storage_ready") == 1);
	struct transfer t = to_computed(D1, (struct ask){.req = 1, .n = 64, .to = "1"});
	finish(D1, 1, &t);
	/* free and stored together are what offload_low_percent asks for */
	UNTIL(kv_count("cached_stored") == 2);
	t = to_computed(D1, (struct ask){.req = 90, .n = 160, .to = "1", .seed = 90});
	finish(D1, 90, &t);
	UNTIL(kv_count("cached_stored") == 10);
	UNTIL(kv_count("evicted_stored") == 2);
	say_submit((struct ask){.req = req, .n = n, .to = "1"});
	UNTIL(reserved(D1, req));
}

#define STORED                                                                          \
	"storage=storage", "kv_blocks=12", "kv_eviction=offload", "offload_low_percent=90", \
		"storage_lookup_wait_ms=20000", "storage_read_wait_ms=20000"

TEST_CASE("storage", .timeout_s = 300);

/* A storage daemon that stands still in the middle of a read: the request goes on without it in
 * other blocks, and those that it may still write stay where they are until it has said that it
 * does not. */
TEST(test_fetch_from_a_stopped_storage)
{
	world_begin(STORED, "storage_read_wait_ms=1000");
	uint32_t want = alone((struct ask){.req = 9, .n = 80, .to = "1"});
	to_stored(2, 80);
	kill(W.beside, SIGSTOP);
	grant(D1, 2, 80);
	struct transfer t = transfer_of(2);
	const Pds__FirstToken *f = first_token(2);
	ck_assert_uint_eq(f->token->id, want);
	ck_assert_uint_eq(f->timing->cached_tokens, 32);
	finish(D1, 2, &t);
	UNTIL(requests_are("[]"));
	UNTIL(kv_count("held") == 2); /* those that were read */
	UNTIL(metric("fetches_abandoned_total") == 1);
	kill(W.beside, SIGCONT);
	UNTIL(kv_count("held") == 0);
	world_end();
}

/* The others of its blocks are free: it needs nine of the ten that are left, and gets them. */
TEST(test_fetch_given_up_leaves_room)
{
	world_begin(STORED, "storage_read_wait_ms=100");
	to_stored(2, 144);
	kill(W.beside, SIGSTOP);
	grant(D1, 2, 144);
	struct transfer t = transfer_of(2);
	first_token(2);
	ck_assert_uint_eq(metric("fetches_abandoned_total"), 1);
	finish(D1, 2, &t);
	UNTIL(kv_count("held") == 2);
	kill(W.beside, SIGCONT);
	UNTIL(kv_count("held") == 0);
	world_end();
}

TEST(test_cancel_in_fetch)
{
	world_begin(STORED);
	to_stored(2, 80);
	kill(W.beside, SIGSTOP);
	grant(D1, 2, 80);
	UNTIL(told("status", "read") == 1);
	say_cancel(ROUTER, 2);
	UNTIL(count(D1, MSG_REQUEST_CANCEL, 2));
	/* the request ends at once, its blocks when storage is done with them */
	UNTIL(requests_are("[]"));
	UNTIL(kv_count("held") == 2); /* those that were read */
	const char *kv = ctl("kv");
	ck_assert_ptr_nonnull(strstr(kv, "\"reason\":\"fence: storage may still write it\""));
	storage_kill();
	UNTIL(kv_count("held") == 0);
	gone_quietly(2);
	world_end();
}

TEST(test_fetch)
{
	world_begin(STORED);
	uint32_t want = alone((struct ask){.req = 9, .n = 80, .to = "1"});
	to_stored(2, 80);
	grant(D1, 2, 80);
	struct transfer t = transfer_of(2);
	const Pds__FirstToken *f = first_token(2);
	ck_assert_uint_eq(f->token->id, want);
	ck_assert_uint_eq(f->timing->cached_tokens, 64);
	UNTIL(metric("stored_tokens_total") == 32);
	ck_assert_uint_eq(metric("cached_tokens_total"), 32);
	finish(D1, 2, &t);
	at_rest();
	world_end();
}

/* The look-up of a storage that stands still ends after its time; a cancel does not wait for
 * that either. */
TEST(test_lookup_from_a_stopped_storage)
{
	world_begin(STORED, "storage_lookup_wait_ms=1000");
	to_stored(2, 80);
	kill(W.beside, SIGSTOP);
	for (uint64_t r = 10; r < 20; r++) {
		say_submit((struct ask){.req = r, .n = 80, .to = "1", .seed = (uint32_t)r});
		if (r % 2)
			say_cancel(ROUTER, r);
	}
	for (uint64_t r = 10; r < 20; r += 2)
		UNTIL(reserved(D1, r));
	say_cancel(ROUTER, 2);
	for (uint64_t r = 10; r < 20; r += 2)
		say_cancel(ROUTER, r);
	kill(W.beside, SIGCONT);
	at_rest();
	world_end();
}

/* --- whose queue it waits in --------------------------------------------- */

static void queued(struct side *from, uint64_t req, uint32_t position, uint64_t estimate_us)
{
	Pds__Queued m = PDS__QUEUED__INIT;
	m.position = position;
	m.estimate_us = estimate_us;
	say(from, MSG_KV_QUEUED, req, &m);
}

/* Well past the time when a candidate of which nothing is known is tried both say again and
 * again what they said. 0: the machine did not let us, and what was said became old. */
static int goes_on(uint64_t one_us, uint64_t two_us)
{
	uint64_t end = clock_us() + LATE + S / 2, said = clock_us(), gap = 0;
	while (clock_us() < end) {
		queued(D1, 1, 1, one_us);
		if (two_us != UINT64_MAX)
			queued(D2, 9, 3, two_us);
		gap = clock_us() - said > gap ? clock_us() - said : gap;
		said = clock_us();
		pump_for(250000);
	}
	return gap < S;
}

/* What the first candidate says to request 1 that waits there, what the second says to request
 * 9, and whether request 1 goes to the second. */
static const struct {
	uint64_t one_us, two_us; /* UINT64_MAX: nothing is known of it */
	int goes;
} queues[] = {
	{300000, UINT64_MAX, 0}, /* near the front: never, whatever the other may have */
	{300000, 100000, 0},
	/* sooner, but not by so much that a place is given up for an estimate */
	{20 * S, 15 * S, 0},
	{20 * S, 60 * S, 0},
	{0, 0, 0}, /* nobody knows */
	{20 * S, 0, 0},
	{20 * S, 5 * S, 1},
	{0, 5 * S, 1},
	{20 * S, UINT64_MAX, 1}, /* it may have room */
};

TEST_CASE("queue", .timeout_s = 300);

TEST_LOOP(test_place_in_a_queue, 0, COUNT(queues))
{
	int known = queues[_i].two_us != UINT64_MAX;
	world_begin("kv_blocks=64");
	if (known) {
		say_submit((struct ask){.req = 9, .n = 64, .to = "2"});
		UNTIL(reserved(D2, 9));
		queued(D2, 9, 3, queues[_i].two_us);
	}
	say_submit((struct ask){.req = 1, .n = 64, .to = "12"});
	UNTIL(reserved(D1, 1));
	queued(D1, 1, 1, queues[_i].one_us);
	if (queues[_i].goes) {
		UNTIL(reserved(D2, 1) && count(D1, MSG_REQUEST_CANCEL, 1));
		served(D2, 1, 64);
	} else {
		int fresh = goes_on(queues[_i].one_us, queues[_i].two_us);
		ck_assert(!fresh || (!reserved(D2, 1) && !count(D1, MSG_REQUEST_CANCEL, 1)));
		say_cancel(ROUTER, 1);
	}
	if (known)
		say_cancel(ROUTER, 9);
	world_end();
}

/* Who had somebody wait and says no more of it is left like one that never answered. */
TEST(test_silent_queue)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 1, .n = 64, .to = "12"});
	UNTIL(reserved(D1, 1));
	queued(D1, 1, 1, 300000);
	UNTIL(reserved(D2, 1) && count(D1, MSG_REQUEST_CANCEL, 1));
	served(D2, 1, 64);
	world_end();
}

/* What the other one said is too old to count: it may have room by now. */
TEST(test_estimate_that_is_old)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 9, .n = 64, .to = "2"});
	UNTIL(reserved(D2, 9));
	queued(D2, 9, 3, 0); /* it does not know when */
	say_submit((struct ask){.req = 1, .n = 64, .to = "12"});
	UNTIL(reserved(D1, 1));
	for (uint64_t end = clock_us() + 30 * S; !reserved(D2, 1); pump_for(250000)) {
		ck_assert_uint_lt(clock_us(), end);
		queued(D1, 1, 1, 20 * S);
	}
	UNTIL(count(D1, MSG_REQUEST_CANCEL, 1));
	served(D2, 1, 64);
	say_cancel(ROUTER, 9);
	world_end();
}

/* Of three it goes to the one that will have room first, not to the next. */
TEST(test_the_best_of_them)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 8, .n = 64, .to = "1"});
	UNTIL(reserved(D1, 8));
	queued(D1, 8, 1, 15 * S);
	say_submit((struct ask){.req = 9, .n = 64, .to = "2"});
	grant(D2, 9, 64); /* it has room */
	struct transfer nine = transfer_of(9);
	first_token(9);
	say_submit((struct ask){.req = 1, .n = 64, .to = "912"}); /* the first has no link for 3 s */
	UNTIL(reserved(D1, 1) || reserved(D2, 1));
	if (reserved(D1, 1)) {
		queued(D1, 1, 2, 15 * S);
		UNTIL(reserved(D2, 1) && count(D1, MSG_REQUEST_CANCEL, 1));
	}
	served(D2, 1, 64);
	finish(D2, 9, &nine);
	say_cancel(ROUTER, 8);
	world_end();
}

TEST_CASE("hint");

/* That it may be asked again soon says nothing about its room: who waits at another stays there. */
TEST(test_no_link_is_no_room)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 2, .n = 64, .to = "21"});
	UNTIL(reserved(D2, 2));
	queued(D2, 2, 1, 10 * S);
	say_submit((struct ask){.req = 1, .n = 64, .to = "1"});
	UNTIL(reserved(D1, 1));
	say_deny_for(D1, 1, PDS__FAULT__FAULT_PEER_LOST, "no link to router", 100000);
	/* 2 would have gone before */
	for (uint64_t end = clock_us() + 60 * S; count(D1, MSG_KV_RESERVE, 1) < 2; pump_for(20000)) {
		queued(D2, 2, 1, 10 * S); /* or it would be left as one that says no more */
		ck_assert_uint_lt(clock_us(), end);
	}
	ck_assert_uint_eq(count(D1, MSG_KV_RESERVE, 2), 0);
	ck_assert_uint_eq(count(D2, MSG_REQUEST_CANCEL, 2), 0);
	cancel_all(1, 2);
	world_end();
}

/* Who had the link meanwhile is given as long again. */
TEST(test_no_link_again)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 1, .n = 64, .to = "1"});
	UNTIL(reserved(D1, 1));
	say_deny_for(D1, 1, PDS__FAULT__FAULT_PEER_LOST, "no link to router", 100000);
	UNTIL(count(D1, MSG_KV_RESERVE, 1) == 2);
	for (uint64_t from = clock_us(); clock_us() - from < 4 * S; pump_for(500000))
		queued(D1, 1, 1, S);
	say_deny_for(D1, 1, PDS__FAULT__FAULT_PEER_LOST, "no link to router", 100000);
	UNTIL(count(D1, MSG_KV_RESERVE, 1) == 3 || count(ROUTER, MSG_REQUEST_FAILED, 1));
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FAILED, 1), 0);
	cancel_all(1, 1);
	world_end();
}
