/* test_decode_reserve.c - reservations as a prefill worker meets them: limits of the queue,
 * estimates, slots, room that is kept; and every message in every state of a sequence, twice,
 * after which nothing is left behind. */
#include "decode_world.h"

/* --- every message in every state ---------------------------------------- */

enum state {
	NONE_YET,
	CANCELLED_FIRST,
	QUEUED,
	LEASED,
	OPENED,
	READY_SAID,
	FIRST_SAID,
	ACTIVE,
	ALONE,
	FENCED,
	ENDED,
	STATES
};
static const char *const state_names[STATES] = {
	"none yet",   "cancelled first", "queued", "leased", "opened", "ready said",
	"first said", "active",          "alone",  "fenced", "ended"};

static const struct prompt *prompt_of(enum state s)
{
	static struct prompt p;
	p = s == QUEUED ? tokens_of(500) : short_of(s == ACTIVE || s == ALONE ? 490 : 4);
	return &p;
}

/* Brings request n there; what is not known (no lease) is a lease of nobody. */
static Pds__Lease bring(enum state s, uint32_t n)
{
	Pds__Lease l = no_lease();
	switch (s) {
	case NONE_YET: return l;
	case CANCELLED_FIRST:
		say_cancel(ROUTER, n);
		settle(ROUTER); /* a RESERVE comes over another link */
		return l;
	case ALONE:
		say_submit(n, *prompt_of(s));
		UNTIL(D.answer[n].n > 0);
		return l;
	case QUEUED:
		say_reserve(n, 1, *prompt_of(s));
		await(PREFILL, MSG_KV_QUEUED, n);
		return l;
	default: break;
	}
	l = *reserve(n, *prompt_of(s))->lease;
	if (s != LEASED && s != FIRST_SAID)
		opened(n, l, 0);
	if (s == FENCED) {
		say_cancel(ROUTER, n);
		await(MESSAGER, MSG_LEASE_REVOKE, n);
	}
	if (s == READY_SAID || s == ACTIVE || s == ENDED)
		say_ready(MESSAGER, n, l);
	if (s == FIRST_SAID || s == ACTIVE || s == ENDED)
		say_first(PREFILL, n, l, short_answer[0]);
	if (s == ACTIVE)
		UNTIL(D.answer[n].n > 0);
	if (s == ENDED)
		UNTIL(ended(n) && requests_are("[]"));
	return l;
}

enum word { RESERVE, SUBMIT, CANCEL_BY_R, CANCEL_BY_P, RENEW, OPEN, REVOKED, READY, FIRST, WORDS };
static const char *const word_names[WORDS] = {"RESERVE",       "SUBMIT",   "CANCEL by R",
                                              "CANCEL by P",   "RENEW",    "LEASE_OPEN",
                                              "LEASE_REVOKED", "KV_READY", "FIRST_TOKEN"};

static void say_word(enum word what, enum state s, uint32_t n, Pds__Lease l)
{
	switch (what) {
	case RESERVE: say_reserve(n, 1, *prompt_of(s)); return;
	case SUBMIT: say_submit(n, *prompt_of(s)); return;
	case CANCEL_BY_R:
	case CANCEL_BY_P: say_cancel(what == CANCEL_BY_R ? ROUTER : PREFILL, n); return;
	case RENEW: say_renew(PREFILL, l.id, l.epoch); return;
	case OPEN: say_open(MESSAGER, n, l); return;
	case REVOKED: say_revoked(MESSAGER, n, l); return;
	case READY: say_ready(MESSAGER, n, l); return;
	default: say_first(PREFILL, n, l, short_answer[0]);
	}
}

/* The answers that somebody would wait for: one for each time it was said. */
static void expect_answers(enum word what, uint32_t n, unsigned times)
{
	for (unsigned i = 0; i < times; i++) {
		if (what == OPEN)
			await(MESSAGER, MSG_LEASE_OPENED, n);
		if (what == READY)
			await(MESSAGER, MSG_KV_READY_ACK, n);
		if (what == FIRST)
			await(PREFILL, MSG_REQUEST_FIRST_TOKEN_ACK, n);
	}
}

static void drain_answers(uint32_t n)
{
	static const enum msg_type types[] = {
		MSG_LEASE_OPENED, MSG_KV_READY_ACK, MSG_REQUEST_FIRST_TOKEN_ACK,
		MSG_KV_GRANT,     MSG_KV_QUEUED,    MSG_KV_DENY};
	for (unsigned i = 0; i < sizeof types / sizeof *types; i++)
		while (take(i < 2 ? MESSAGER : PREFILL, types[i], n))
			;
}

static int leased_of(uint32_t n, Pds__Lease *ret)
{
	const Pds__Grant *g = (const Pds__Grant *)take(PREFILL, MSG_KV_GRANT, n);
	if (g)
		*ret = *g->lease;
	return g != NULL;
}

/* Whatever it has become: it is cancelled, and a messager that may write says that it does not. */
static void end(uint32_t n, Pds__Lease l, struct side *const all[3])
{
	Pds__Lease granted;
	say_cancel(ROUTER, n);
	settle(ROUTER);
	say_revoked(MESSAGER, n, l);
	if (leased_of(n, &granted))
		say_revoked(MESSAGER, n, granted);
	for (int i = 0; i < 3; i++)
		settle(all[i]);
	UNTIL(requests_are("[]"));
	UNTIL(kv_count("leased") + kv_count("held") == 0);
}

TEST_LOOP(every_message_in_this_state, 0, STATES)
{
	enum state s = (enum state)_i;
	static struct side *all[3];
	all[0] = ROUTER, all[1] = PREFILL, all[2] = MESSAGER;
	world_begin("kv_blocks=40");
	if (s == QUEUED)
		reserve(IDS - 1, tokens_of(400));
	for (enum word what = 0; what < WORDS; what++) {
		uint32_t n = 1 + what;
		Pds__Lease l = bring(s, n);
		drain_answers(n);
		say_word(what, s, n, l);
		say_word(what, s, n, l);
		expect_answers(what, n, 2);
		for (int i = 0; i < 3; i++)
			settle(all[i]);
		if (what == RESERVE && (s == LEASED || s == OPENED || s == READY_SAID || s == FIRST_SAID)) {
			/* asked twice, answered the same */
			for (int i = 0; i < 2; i++) {
				const Pds__Grant *g = (const Pds__Grant *)take(PREFILL, MSG_KV_GRANT, n);
				ck_assert_msg(g && g->lease->id == l.id, "%s in state %s", word_names[what],
				              state_names[s]);
			}
		}
		if (what == RESERVE && (s == CANCELLED_FIRST || s == ENDED))
			ck_assert_msg(take(PREFILL, MSG_KV_DENY, n) && take(PREFILL, MSG_KV_DENY, n),
			              "%s in state %s", word_names[what], state_names[s]);
		/* only the writer's word ends a fence */
		if (s == FENCED && what != REVOKED)
			ck_assert_msg(requests_are("\"state\":\"quarantine\""), "%s in state %s",
			              word_names[what], state_names[s]);
		if ((s == ACTIVE || s == ALONE) && what != CANCEL_BY_R)
			NONE(ROUTER, REQUEST_FAILED, n);
		if (s == QUEUED)
			say_cancel(ROUTER, n), settle(ROUTER);
		else
			end(n, l, all);
	}
	if (s == QUEUED)
		say_cancel(ROUTER, IDS - 1);
	world_end();
}

/* --- only who reserved --------------------------------------------------- */

/* A router that named this worker before its own end of the link was up: its tokens would be
 * lost. */
TEST(router_without_a_link)
{
	world_begin("kv_blocks=8");
	learn_kv(1);
	ROUTER->epoch++;
	say_reserve(2, 1, short_of(4));
	ROUTER->epoch--;
	const Pds__Deny *d = WANT(Pds__Deny, PREFILL, KV_DENY, 2);
	ck_assert_int_eq(d->fault, PDS__FAULT__FAULT_PEER_LOST);
	ck_assert_uint_gt(d->retry_after_us, 0);
	const Pds__Grant *g = reserve(2, short_of(4));
	opened(2, *g->lease, 0);
	fill_kv(g);
	join(2, *g->lease);
	expect_answer(2, 4);
	world_end();
}

/* Another prefill worker, and the next life of the one that reserved, name the lease rightly:
 * acknowledged, and not believed; nor do they renew it. */
TEST(first_token_from_another)
{
	world_begin("kv_blocks=8");
	learn_kv(1);
	side_open(PREFILL_2);
	UNTIL(PREFILL_2->p);
	const Pds__Grant *g = reserve(2, short_of(4));
	opened(2, *g->lease, 0);
	fill_kv(g);
	say_ready(MESSAGER, 2, *g->lease);
	say_first(PREFILL_2, 2, *g->lease, 9);
	await(PREFILL_2, MSG_REQUEST_FIRST_TOKEN_ACK, 2);
	say_renew(PREFILL_2, g->lease->id, g->lease->epoch);
	settle(ROUTER);
	ck_assert(requests_are("\"state\":\"leased\""));
	ck_assert_uint_eq(D.answer[2].n, 0);
	first(2, *g->lease, short_answer[0]);
	expect_answer(2, 4);
	g = reserve(3, short_of(4));
	side_close(PREFILL);
	const Pds__Failed *f = WANT(Pds__Failed, ROUTER, REQUEST_FAILED, 3);
	ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_LEASE_LOST);
	link_again(PREFILL, PREFILL->epoch + 1);
	say_ready(MESSAGER, 3, *g->lease);
	first(3, *g->lease, short_answer[0]);
	settle(ROUTER);
	ck_assert_uint_eq(D.answer[3].n, 0);
	side_close(PREFILL_2);
	world_end();
}

/* The link to the router ends, or its process: a prefill worker that has the router still would
 * wait for its grant to the request's deadline. */
TEST_LOOP(router_goes_while_it_waits, 0, 2)
{
	world_begin("kv_blocks=8");
	reserve(1, tokens_of(100));
	say_reserve(2, 1, tokens_of(60));
	await(PREFILL, MSG_KV_QUEUED, 2);
	link_again(ROUTER, ROUTER->epoch + (uint64_t)_i);
	ck_assert_int_eq(WANT(Pds__Deny, PREFILL, KV_DENY, 2)->fault, PDS__FAULT__FAULT_PEER_LOST);
	say_reserve(2, 1, tokens_of(60)); /* not in this attempt: its answer would be asked for twice */
	ck_assert_int_eq(WANT(Pds__Deny, PREFILL, KV_DENY, 2)->fault, PDS__FAULT__FAULT_LEASE_LOST);
	world_end();
}

/* --- limits and estimates ------------------------------------------------ */

TEST(queue_is_bounded)
{
	world_begin("kv_blocks=8", "max_queued=2");
	reserve(1, tokens_of(100));
	for (uint32_t n = 2; n <= 3; n++) {
		say_reserve(n, 1, tokens_of(60));
		const Pds__Queued *m = WANT(Pds__Queued, PREFILL, KV_QUEUED, n);
		ck_assert_uint_eq(m->position, n - 1);
		ck_assert_uint_eq(m->estimate_us, 0); /* nothing has ended yet: not known */
	}
	say_reserve(4, 1, tokens_of(7));
	const Pds__Deny *d = WANT(Pds__Deny, PREFILL, KV_DENY, 4);
	ck_assert_int_eq(d->fault, PDS__FAULT__FAULT_OVERLOADED);
	ck_assert_uint_ge(d->retry_after_us, 20000);
	ck_assert_ptr_nonnull(strstr(d->text, "max_queued"));
	say_reserve(2, 1, tokens_of(60)); /* those who wait are answered as before */
	ck_assert_uint_eq(WANT(Pds__Queued, PREFILL, KV_QUEUED, 2)->position, 1);
	say_cancel(PREFILL, 2);
	say_reserve(3, 1, tokens_of(60));
	ck_assert_uint_eq(WANT(Pds__Queued, PREFILL, KV_QUEUED, 3)->position, 1);
	/* a refusal is no end: it may come again */
	say_reserve(4, 1, tokens_of(7));
	ck_assert_uint_eq(WANT(Pds__Queued, PREFILL, KV_QUEUED, 4)->position, 2);
	for (uint32_t n = 1; n <= 4; n++)
		say_cancel(PREFILL, n);
	world_end();
}

/* A prefill worker waits for each of them: if some are lost for want of room, its link restarts. */
TEST(answers_that_do_not_fit)
{
	world_begin("window_messages=16", "max_jobs=2");
	for (uint32_t n = 1; n <= 40; n++)
		say_reserve(n, 1, tokens_of(7));
	for (uint64_t end = clock_us() + WAIT_US / 4; !W.downs; pump())
		ck_assert_msg(clock_us() < end, "the link stays, %s", daemon_says());
	world_end();
}

/* More at once than the link to the messager takes: the others are sent when it takes them. */
TEST(revocations_that_do_not_fit)
{
	enum { LEASES = 24 };
	Pds__Lease l[LEASES + 1];
	world_begin("window_messages=16", "kv_blocks=64", "max_jobs=64", "max_sequences=32");
	for (uint32_t n = 1; n <= LEASES; n++)
		l[n] = written(n, short_of(4));
	for (uint32_t n = 1; n <= LEASES; n++)
		say_cancel(ROUTER, n);
	usleep(300000); /* nothing is acknowledged meanwhile */
	for (uint32_t n = 1; n <= LEASES; n++)
		revoked(n, l[n]);
	UNTIL(kv_count("leased") == 0);
	world_end();
}

TEST(table_is_bounded)
{
	world_begin("kv_blocks=8", "max_jobs=2");
	reserve(1, tokens_of(7));
	reserve(2, tokens_of(8));
	say_reserve(3, 1, tokens_of(9));
	const Pds__Deny *d = WANT(Pds__Deny, PREFILL, KV_DENY, 3);
	ck_assert_int_eq(d->fault, PDS__FAULT__FAULT_OVERLOADED);
	ck_assert_uint_ge(d->retry_after_us, 20000);
	say_submit(4, short_of(4));
	const Pds__Failed *f = WANT(Pds__Failed, ROUTER, REQUEST_FAILED, 4);
	ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_OVERLOADED);
	ck_assert_int_eq(f->retry, 1);
	say_cancel(PREFILL, 1);
	reserve(5, tokens_of(9));
	say_cancel(PREFILL, 2);
	say_cancel(PREFILL, 5);
	world_end();
}

#define LAST PDS__POOLING__POOLING_LAST
#define MEAN PDS__POOLING__POOLING_MEAN

static struct prompt embedding(struct prompt p, Pds__Pooling how)
{
	p.pooling = how;
	return p;
}

/* Only a worker that computes the prompt makes one. */
TEST(embedding_needs_no_lease)
{
	world_begin("kv_blocks=8");
	say_reserve(1, 1, embedding(tokens_of(7), LAST));
	const Pds__Deny *d = WANT(Pds__Deny, PREFILL, KV_DENY, 1);
	ck_assert_int_eq(d->fault, PDS__FAULT__FAULT_INVALID);
	ck_assert_uint_eq(d->retry_after_us, 0);
	say_submit(2, embedding(short_of(1), MEAN));
	const Pds__Embedding *e = WANT(Pds__Embedding, ROUTER, REQUEST_EMBEDDING, 2);
	ck_assert_uint_gt(e->n_values, 0);
	NONE(ROUTER, REQUEST_FAILED, 2);
	world_end();
}

/* It draws no token: an input may fill the pool. Each token that is computed counts, also one
 * alone. */
TEST(embedding_fills_the_pool)
{
	world_begin("kv_blocks=8");
	say_submit(1, embedding(tokens_of(8 * BLOCK), MEAN));
	WANT(Pds__Embedding, ROUTER, REQUEST_EMBEDDING, 1);
	say_submit(2, embedding(tokens_of(8 * BLOCK + 1), LAST));
	ck_assert_int_eq(WANT(Pds__Failed, ROUTER, REQUEST_FAILED, 2)->fault,
	                 PDS__FAULT__FAULT_TOO_LARGE);
	UNTIL(requests_are("[]"));
	uint32_t before = told("status", "prompt_tokens");
	say_submit(3, embedding(tokens_of(1), LAST));
	WANT(Pds__Embedding, ROUTER, REQUEST_EMBEDDING, 3);
	UNTIL(told("status", "prompt_tokens") == before + 1);
	world_end();
}

/* It does not grow: no room is kept for that. */
TEST(embedding_keeps_no_room)
{
	world_begin("kv_blocks=8");
	reserve(1, tokens_of(4 * BLOCK));
	say_submit(2, embedding(tokens_of(5 * BLOCK), LAST)); /* four blocks are free */
	settle(ROUTER);
	reserve(3, tokens_of(3 * BLOCK)); /* the fourth is kept for the first */
	NONE(PREFILL, KV_QUEUED, 3);
	say_cancel(PREFILL, 1);
	WANT(Pds__Embedding, ROUTER, REQUEST_EMBEDDING, 2);
	say_cancel(PREFILL, 3);
	world_end();
}

/* It leaves places to those that generate. */
TEST(embeddings_leave_places)
{
	world_begin("kv_blocks=8", "max_jobs=4");
	for (uint32_t n = 1; n <= 3; n++)
		reserve(n, tokens_of(6 + n));
	say_submit(4, embedding(short_of(1), LAST));
	const Pds__Failed *f = WANT(Pds__Failed, ROUTER, REQUEST_FAILED, 4);
	ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_OVERLOADED);
	ck_assert_int_eq(f->retry, 1);
	reserve(5, tokens_of(20));
	for (uint32_t n = 1; n <= 5; n++)
		say_cancel(PREFILL, n);
	world_end();
}

/* Once blocks have been given back, who waits is told how long; who is further behind, longer. */
TEST(estimates_grow_with_the_place)
{
	world_begin("kv_blocks=40");
	reserve(40, tokens_of(400)); /* stays: keeps 25 of the blocks */
	for (uint32_t n = 1; n <= 6; n++) {
		reserve(n, tokens_of(100 + n));
		pump_for(30000);
		say_cancel(PREFILL, n);
		settle(PREFILL);
	}
	reserve(41, tokens_of(160));
	uint64_t last = 0;
	for (uint32_t n = 10; n < 14; n++) {
		say_reserve(n, 1, tokens_of(200 + n));
		uint64_t us = WANT(Pds__Queued, PREFILL, KV_QUEUED, n)->estimate_us;
		ck_assert_uint_gt(us, last);
		ck_assert_uint_lt(us, 60000000);
		last = us;
	}
	for (uint32_t n = 10; n < 14; n++)
		say_cancel(PREFILL, n);
	say_cancel(PREFILL, 40);
	say_cancel(PREFILL, 41);
	world_end();
}

TEST(a_sequence_needs_a_slot)
{
	world_begin("kv_blocks=40", "max_sequences=2");
	reserve(1, tokens_of(7));
	reserve(2, tokens_of(8));
	say_reserve(3, 1, tokens_of(9)); /* blocks enough */
	ck_assert_uint_eq(WANT(Pds__Queued, PREFILL, KV_QUEUED, 3)->position, 1);
	settle(PREFILL);
	NONE(PREFILL, KV_GRANT, 3);
	say_cancel(PREFILL, 1);
	await(PREFILL, MSG_KV_GRANT, 3);
	say_cancel(PREFILL, 2);
	say_cancel(PREFILL, 3);
	world_end();
}

/* The rule, to the block: 1 leased with 160 tokens to come at ratio 0.5 keeps 5; of 20 blocks 2
 * are its own. */
TEST_LOOP(room_is_kept_for_growth, 0, 2)
{
	world_begin("kv_blocks=20", "growth_ratio=0.5");
	struct prompt p = tokens_of(20);
	p.max_tokens = 160;
	reserve(1, p);
	int fits = _i == 0;
	p = tokens_of(fits ? 13 * 16 : 13 * 16 + 1); /* 2 + 5 + 13 = 20 */
	say_reserve(2, 1, p);
	if (fits)
		await(PREFILL, MSG_KV_GRANT, 2);
	else
		await(PREFILL, MSG_KV_QUEUED, 2);
	settle(PREFILL);
	if (!fits)
		NONE(PREFILL, KV_GRANT, 2);
	say_cancel(PREFILL, 1);
	settle(PREFILL);
	if (!fits)
		await(PREFILL, MSG_KV_GRANT, 2); /* alone: nobody's growth */
	say_cancel(PREFILL, 2);
	world_end();
}

static double ratio_said(void)
{
	const char *at = strstr(ctl("status"), "\"growth_ratio\":");
	ck_assert_ptr_nonnull(at);
	return strtod(strchr(at, ':') + 1, NULL);
}

/* It falls with each step, never below its least; preemptions raise it, never above its most. */
TEST(share_adapts)
{
	world_begin("kv_blocks=24");
	ck_assert_double_eq_tol(ratio_said(), 0.7, 0.0011);
	say_submit(1, short_of(60));
	UNTIL(ended(1));
	ck_assert_double_eq_tol(ratio_said(), 0.64, 0.005);
	struct prompt p = tokens_of(4);
	for (uint32_t n = 2; n <= 4; n++) {
		p.max_tokens = 360;
		say_submit(n, p);
		UNTIL(ended(n));
	}
	ck_assert_double_eq_tol(ratio_said(), 0.02, 0.0011);
	for (uint32_t n = 5; n <= 6; n++) {
		p = tokens_of(20 + n);
		p.max_tokens = 300;
		say_submit(n, p);
	}
	UNTIL(!strstr(ctl("status"), "\"preemptions\":0"));
	UNTIL(ended(5) && ended(6));
	ck_assert_double_ge(ratio_said(), 0.0199);
	ck_assert_double_le(ratio_said(), 0.7001);
	world_end();
}

/* What has ended asks for nothing: the next one that needs all blocks gets them without waiting
 * for a step of somebody else. */
TEST(ended_sequences_ask_for_no_room)
{
	world_begin("kv_blocks=20");
	for (uint32_t n = 1; n < 12; n += 2) {
		say_submit(n, short_of(60));
		UNTIL(ended(n) && requests_are("[]"));
		reserve(n + 1, tokens_of(10));
		reserve(n + 40, tokens_of(18 * 16)); /* 1 + its growth of 1 + 18 */
		say_cancel(PREFILL, n + 1);
		say_cancel(PREFILL, n + 40);
		settle(PREFILL);
	}
	world_end();
}

/* A preempted sequence comes back before any reservation is granted, and both get their tokens. */
TEST(preempted_goes_first)
{
	/* nothing is kept: they outgrow the pool together */
	world_begin("kv_blocks=24", "growth_ratio=0");
	for (uint32_t n = 1; n <= 2; n++) {
		struct prompt p = tokens_of(30 + n);
		p.max_tokens = 300;
		say_submit(n, p);
	}
	UNTIL(D.answer[1].n > 0 && D.answer[2].n > 0);
	UNTIL(!strstr(ctl("status"), "\"preemptions\":0"));
	say_reserve(3, 1, tokens_of(7));
	say_reserve(3, 1, tokens_of(7));
	UNTIL(ended(1) && ended(2));
	ck_assert_uint_eq(D.answer[1].n, 300);
	ck_assert_uint_eq(D.answer[2].n, 300);
	await(PREFILL, MSG_KV_GRANT, 3);
	say_cancel(PREFILL, 3);
	world_end();
}

/* Alone and larger than the pool: the answer ends where the room does, instead of being
 * preempted for ever. */
TEST(outgrows_the_pool)
{
	world_begin("kv_blocks=8");
	struct prompt p = tokens_of(20);
	p.max_tokens = 400;
	say_submit(1, p);
	UNTIL(ended(1));
	ck_assert_int_eq(D.answer[1].finish, PDS__FINISH__FINISH_LENGTH);
	ck_assert_uint_eq(D.answer[1].n, 8 * BLOCK + 1 - 20);
	world_end();
}
