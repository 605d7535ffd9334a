/* test_decode_reserve.c - reservations as a prefill worker meets them: limits of the queue,
 * estimates, slots, room that is kept; and every message in every state of a sequence, twice,
 * after which nothing is left behind. */
#include "decode_world.h"

#define CALM_MS 60000u

static void say_renew(struct side *s, Pds__Lease l)
{
	Pds__Renew m = PDS__RENEW__INIT;
	struct msg_head none = {0};
	m.lease_ids = &l.id;
	m.n_lease_ids = 1;
	m.epoch = l.epoch;
	ck_assert_int_eq(chan_send(s->c, s->p, MSG_KV_RENEW, &none, &m.base), 0);
}

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
		say_cancel(&W.router, n);
		settle(&W.router); /* a RESERVE comes over another link */
		return l;
	case ALONE:
		say_submit(n, *prompt_of(s));
		UNTIL(W.answer[n].n > 0);
		return l;
	case QUEUED:
		say_reserve(n, 1, *prompt_of(s));
		await(&W.prefill, MSG_KV_QUEUED, n);
		return l;
	default: break;
	}
	l = *reserve(n, *prompt_of(s))->lease;
	if (s == OPENED || s == FENCED)
		opened(n, l, 0);
	if (s == FENCED) {
		say_cancel(&W.router, n);
		await(&W.messager, MSG_LEASE_REVOKE, n);
	}
	if (s == READY_SAID || s == ACTIVE || s == ENDED)
		say_ready(&W.messager, n, l);
	if (s == FIRST_SAID || s == ACTIVE || s == ENDED)
		say_first(n, l, short_answer[0]);
	if (s == ACTIVE)
		UNTIL(W.answer[n].n > 0);
	if (s == ENDED)
		UNTIL(W.answer[n].finish != PDS__FINISH__FINISH_NONE);
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
	case CANCEL_BY_P: say_cancel(what == CANCEL_BY_R ? &W.router : &W.prefill, n); return;
	case RENEW: say_renew(&W.prefill, l); return;
	case OPEN: say_open(&W.messager, n, l); return;
	case REVOKED: say_revoked(&W.messager, n, l); return;
	case READY: say_ready(&W.messager, n, l); return;
	default: say_first(n, l, short_answer[0]);
	}
}

/* The answers that somebody would wait for: one for each time it was said. */
static void expect_answers(enum word what, uint32_t n, unsigned times)
{
	for (unsigned i = 0; i < times; i++) {
		if (what == OPEN)
			await(&W.messager, MSG_LEASE_OPENED, n);
		if (what == READY)
			await(&W.messager, MSG_KV_READY_ACK, n);
		if (what == FIRST)
			await(&W.prefill, MSG_REQUEST_FIRST_TOKEN_ACK, n);
	}
}

static void drain_answers(uint32_t n)
{
	static const enum msg_type types[] = {
		MSG_LEASE_OPENED, MSG_KV_READY_ACK, MSG_REQUEST_FIRST_TOKEN_ACK,
		MSG_KV_GRANT,     MSG_KV_QUEUED,    MSG_KV_DENY};
	for (unsigned i = 0; i < sizeof types / sizeof *types; i++)
		while (take(i < 2 ? &W.messager : &W.prefill, types[i], n))
			;
}

static int leased_of(uint32_t n, Pds__Lease *ret)
{
	const Pds__Grant *g = (const Pds__Grant *)take(&W.prefill, MSG_KV_GRANT, n);
	if (g)
		*ret = *g->lease;
	return g != NULL;
}

/* Whatever it has become: it is cancelled, and a messager that may write says that it does not. */
static void end(uint32_t n, Pds__Lease l, struct side *const all[3])
{
	Pds__Lease granted;
	say_cancel(&W.router, n);
	settle(&W.router);
	say_revoked(&W.messager, n, l);
	if (leased_of(n, &granted))
		say_revoked(&W.messager, n, granted);
	for (int i = 0; i < 3; i++)
		settle(all[i]);
	UNTIL(requests_are("[]"));
	ck_assert_uint_eq(kv_count("leased") + kv_count("held"), 0);
}

START_TEST(every_message_in_this_state)
{
	enum state s = (enum state)_i;
	static struct side *all[3];
	all[0] = &W.router, all[1] = &W.prefill, all[2] = &W.messager;
	world_begin(40, CALM_MS, 0);
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
				const Pds__Grant *g = (const Pds__Grant *)take(&W.prefill, MSG_KV_GRANT, n);
				ck_assert_msg(g && g->lease->id == l.id, "%s in state %s", word_names[what],
				              state_names[s]);
			}
		}
		if (what == RESERVE && (s == CANCELLED_FIRST || s == ENDED))
			ck_assert_msg(take(&W.prefill, MSG_KV_DENY, n) && take(&W.prefill, MSG_KV_DENY, n),
			              "%s in state %s", word_names[what], state_names[s]);
		/* only the writer's word ends a fence */
		if (s == FENCED && what != REVOKED)
			ck_assert_msg(requests_are("\"state\":\"quarantine\""), "%s in state %s",
			              word_names[what], state_names[s]);
		if ((s == ACTIVE || s == ALONE) && what != CANCEL_BY_R)
			NONE(router, REQUEST_FAILED, n);
		if (s == QUEUED)
			say_cancel(&W.router, n), settle(&W.router);
		else
			end(n, l, all);
	}
	if (s == QUEUED)
		say_cancel(&W.router, IDS - 1);
	world_end();
}
END_TEST

/* --- only who reserved --------------------------------------------------- */

static struct side other = {"prefill-2", "pdprefilld", 5000, NULL, NULL};

static void other_open(void)
{
	struct err e = {0};
	struct chan_opts o = {.program = other.program,
	                      .name = other.name,
	                      .epoch = other.epoch,
	                      .heartbeat_us = 200000,
	                      .silence_us = WAIT_US,
	                      .window_messages = 1024,
	                      .window_bytes = 1u << 24,
	                      .peers_max = 8,
	                      .message_bytes_max = 1u << 20};
	struct chan_hooks h = {.arg = &other,
	                       .describe = describe_prefill,
	                       .up = on_up,
	                       .down = on_down,
	                       .message = on_message};
	ck_assert_msg(chan_new(W.base, &o, &h, &other.c, &e) == 0, "%s", e.text);
	chan_connect(other.c, W.info->endpoint, "decode", 1);
	UNTIL(other.p);
}

static void say_first_by(struct side *s, uint32_t n, Pds__Lease l, uint32_t token)
{
	Pds__FirstToken m = PDS__FIRST_TOKEN__INIT;
	Pds__Token t = PDS__TOKEN__INIT;
	t.id = token;
	m.token = &t;
	m.decode = "decode";
	m.decode_epoch = l.epoch;
	m.lease_id = l.id;
	m.lease_generation = l.generation;
	say(s, MSG_REQUEST_FIRST_TOKEN, n, &m.base);
	await(s, MSG_REQUEST_FIRST_TOKEN_ACK, n);
}

/* A router that named this worker before its own end of the link was up: its tokens would be
 * lost. */
START_TEST(router_without_a_link)
{
	world_begin(8, CALM_MS, 0);
	learn_kv(1);
	W.router.epoch++;
	say_reserve(2, 1, short_of(4));
	W.router.epoch--;
	const Pds__Deny *d = WANT(Pds__Deny, prefill, KV_DENY, 2);
	ck_assert_int_eq(d->fault, PDS__FAULT__FAULT_PEER_LOST);
	ck_assert_uint_gt(d->retry_after_us, 0);
	const Pds__Grant *g = reserve(2, short_of(4));
	fill_kv(g);
	say_ready(&W.messager, 2, *g->lease);
	say_first(2, *g->lease, short_answer[0]);
	expect_answer(2, 4);
	world_end();
}
END_TEST

/* Another prefill worker, and the next life of the one that reserved, name the lease rightly:
 * acknowledged, and not believed; nor do they renew it. */
START_TEST(first_token_from_another)
{
	world_begin(8, CALM_MS, 0);
	learn_kv(1);
	other_open();
	const Pds__Grant *g = reserve(2, short_of(4));
	fill_kv(g);
	say_ready(&W.messager, 2, *g->lease);
	say_first_by(&other, 2, *g->lease, 9);
	say_renew(&other, *g->lease);
	settle(&W.router);
	ck_assert(requests_are("\"state\":\"leased\""));
	ck_assert_uint_eq(W.answer[2].n, 0);
	say_first_by(&W.prefill, 2, *g->lease, short_answer[0]);
	expect_answer(2, 4);
	g = reserve(3, short_of(4));
	side_close(&W.prefill);
	const Pds__Failed *f = WANT(Pds__Failed, router, REQUEST_FAILED, 3);
	ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_LEASE_LOST);
	W.prefill.epoch++;
	side_open(&W.prefill);
	UNTIL(W.prefill.p);
	say_ready(&W.messager, 3, *g->lease);
	say_first_by(&W.prefill, 3, *g->lease, short_answer[0]);
	settle(&W.router);
	ck_assert_uint_eq(W.answer[3].n, 0);
	side_close(&other);
	world_end();
}
END_TEST

/* --- limits and estimates ------------------------------------------------ */

START_TEST(queue_is_bounded)
{
	world_option = "max_queued=2";
	world_begin(8, CALM_MS, 0);
	reserve(1, tokens_of(100));
	for (uint32_t n = 2; n <= 3; n++) {
		say_reserve(n, 1, tokens_of(60));
		const Pds__Queued *m = WANT(Pds__Queued, prefill, KV_QUEUED, n);
		ck_assert_uint_eq(m->position, n - 1);
		ck_assert_uint_eq(m->estimate_us, 0); /* nothing has ended yet: not known */
	}
	say_reserve(4, 1, tokens_of(7));
	const Pds__Deny *d = WANT(Pds__Deny, prefill, KV_DENY, 4);
	ck_assert_int_eq(d->fault, PDS__FAULT__FAULT_OVERLOADED);
	ck_assert_uint_ge(d->retry_after_us, 20000);
	ck_assert_ptr_nonnull(strstr(d->text, "max_queued"));
	say_reserve(2, 1, tokens_of(60)); /* those who wait are answered as before */
	ck_assert_uint_eq(WANT(Pds__Queued, prefill, KV_QUEUED, 2)->position, 1);
	say_cancel(&W.prefill, 2);
	say_reserve(3, 1, tokens_of(60));
	ck_assert_uint_eq(WANT(Pds__Queued, prefill, KV_QUEUED, 3)->position, 1);
	/* a refusal is no end: it may come again */
	say_reserve(4, 1, tokens_of(7));
	ck_assert_uint_eq(WANT(Pds__Queued, prefill, KV_QUEUED, 4)->position, 2);
	for (uint32_t n = 1; n <= 4; n++)
		say_cancel(&W.prefill, n);
	world_end();
}
END_TEST

START_TEST(table_is_bounded)
{
	world_option = "max_jobs=2";
	world_begin(8, CALM_MS, 0);
	reserve(1, tokens_of(7));
	reserve(2, tokens_of(8));
	say_reserve(3, 1, tokens_of(9));
	const Pds__Deny *d = WANT(Pds__Deny, prefill, KV_DENY, 3);
	ck_assert_int_eq(d->fault, PDS__FAULT__FAULT_OVERLOADED);
	ck_assert_uint_ge(d->retry_after_us, 20000);
	say_submit(4, short_of(4));
	const Pds__Failed *f = WANT(Pds__Failed, router, REQUEST_FAILED, 4);
	ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_OVERLOADED);
	ck_assert_int_eq(f->retry, 1);
	say_cancel(&W.prefill, 1);
	reserve(5, tokens_of(9));
	say_cancel(&W.prefill, 2);
	say_cancel(&W.prefill, 5);
	world_end();
}
END_TEST

/* Only a worker that computes the prompt makes one. */
START_TEST(embedding_needs_no_lease)
{
	world_begin(8, CALM_MS, 0);
	world_pooling = PDS__POOLING__POOLING_LAST;
	say_reserve(1, 1, tokens_of(7));
	const Pds__Deny *d = WANT(Pds__Deny, prefill, KV_DENY, 1);
	ck_assert_int_eq(d->fault, PDS__FAULT__FAULT_INVALID);
	ck_assert_uint_eq(d->retry_after_us, 0);
	world_pooling = PDS__POOLING__POOLING_MEAN;
	say_submit(2, short_of(1));
	const Pds__Embedding *e = WANT(Pds__Embedding, router, REQUEST_EMBEDDING, 2);
	ck_assert_uint_gt(e->n_values, 0);
	NONE(router, REQUEST_FAILED, 2);
	world_end();
}
END_TEST

static unsigned long prompt_tokens(void)
{
	static const char key[] = "\"prompt_tokens\":";
	const char *at = strstr(ctl("status"), key);
	ck_assert_ptr_nonnull(at);
	return strtoul(at + strlen(key), NULL, 10);
}

/* It draws no token: an input may fill the pool. Each token that is computed counts, also one
 * alone. */
START_TEST(embedding_fills_the_pool)
{
	world_begin(8, CALM_MS, 0);
	world_pooling = PDS__POOLING__POOLING_MEAN;
	say_submit(1, tokens_of(8 * BLOCK_TOKENS));
	WANT(Pds__Embedding, router, REQUEST_EMBEDDING, 1);
	world_pooling = PDS__POOLING__POOLING_LAST;
	say_submit(2, tokens_of(8 * BLOCK_TOKENS + 1));
	ck_assert_int_eq(WANT(Pds__Failed, router, REQUEST_FAILED, 2)->fault,
	                 PDS__FAULT__FAULT_TOO_LARGE);
	unsigned long before = prompt_tokens();
	world_pooling = PDS__POOLING__POOLING_LAST;
	say_submit(3, tokens_of(1));
	WANT(Pds__Embedding, router, REQUEST_EMBEDDING, 3);
	ck_assert_uint_eq(prompt_tokens(), before + 1);
	world_end();
}
END_TEST

/* It does not grow: no room is kept for that. */
START_TEST(embedding_keeps_no_room)
{
	world_begin(8, CALM_MS, 0);
	reserve(1, tokens_of(4 * BLOCK_TOKENS));
	world_pooling = PDS__POOLING__POOLING_LAST;
	say_submit(2, tokens_of(5 * BLOCK_TOKENS)); /* four blocks are free */
	settle(&W.router);
	reserve(3, tokens_of(3 * BLOCK_TOKENS)); /* the fourth is kept for the first */
	NONE(prefill, KV_QUEUED, 3);
	say_cancel(&W.prefill, 1);
	WANT(Pds__Embedding, router, REQUEST_EMBEDDING, 2);
	say_cancel(&W.prefill, 3);
	world_end();
}
END_TEST

/* It leaves places to those that generate. */
START_TEST(embeddings_leave_places)
{
	world_option = "max_jobs=4";
	world_begin(8, CALM_MS, 0);
	for (uint32_t n = 1; n <= 3; n++)
		reserve(n, tokens_of(6 + n));
	world_pooling = PDS__POOLING__POOLING_LAST;
	say_submit(4, short_of(1));
	const Pds__Failed *f = WANT(Pds__Failed, router, REQUEST_FAILED, 4);
	ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_OVERLOADED);
	ck_assert_int_eq(f->retry, 1);
	reserve(5, tokens_of(20));
	for (uint32_t n = 1; n <= 5; n++)
		say_cancel(&W.prefill, n);
	world_end();
}
END_TEST

/* Once blocks have been given back, who waits is told how long; who is further behind, longer. */
START_TEST(estimates_grow_with_the_place)
{
	world_begin(40, CALM_MS, 0);
	reserve(40, tokens_of(400)); /* stays: keeps 25 of the blocks */
	for (uint32_t n = 1; n <= 6; n++) {
		reserve(n, tokens_of(100 + n));
		pump_for(30000);
		say_cancel(&W.prefill, n);
		settle(&W.prefill);
	}
	reserve(41, tokens_of(160));
	uint64_t last = 0;
	for (uint32_t n = 10; n < 14; n++) {
		say_reserve(n, 1, tokens_of(200 + n));
		uint64_t us = WANT(Pds__Queued, prefill, KV_QUEUED, n)->estimate_us;
		ck_assert_uint_gt(us, last);
		ck_assert_uint_lt(us, 60000000);
		last = us;
	}
	for (uint32_t n = 10; n < 14; n++)
		say_cancel(&W.prefill, n);
	say_cancel(&W.prefill, 40);
	say_cancel(&W.prefill, 41);
	world_end();
}
END_TEST

START_TEST(a_sequence_needs_a_slot)
{
	world_option = "max_sequences=2";
	world_begin(40, CALM_MS, 0);
	reserve(1, tokens_of(7));
	reserve(2, tokens_of(8));
	say_reserve(3, 1, tokens_of(9)); /* blocks enough */
	ck_assert_uint_eq(WANT(Pds__Queued, prefill, KV_QUEUED, 3)->position, 1);
	settle(&W.prefill);
	NONE(prefill, KV_GRANT, 3);
	say_cancel(&W.prefill, 1);
	await(&W.prefill, MSG_KV_GRANT, 3);
	say_cancel(&W.prefill, 2);
	say_cancel(&W.prefill, 3);
	world_end();
}
END_TEST

/* The rule, to the block: 1 leased with 160 tokens to come at ratio 0.5 keeps 5; of 20 blocks 2
 * are its own. */
START_TEST(room_is_kept_for_growth)
{
	world_option = "growth_ratio=0.5";
	world_begin(20, CALM_MS, 0);
	struct prompt p = tokens_of(20);
	p.max_tokens = 160;
	reserve(1, p);
	int fits = _i == 0;
	p = tokens_of(fits ? 13 * 16 : 13 * 16 + 1); /* 2 + 5 + 13 = 20 */
	say_reserve(2, 1, p);
	if (fits)
		await(&W.prefill, MSG_KV_GRANT, 2);
	else
		await(&W.prefill, MSG_KV_QUEUED, 2);
	settle(&W.prefill);
	if (!fits)
		NONE(prefill, KV_GRANT, 2);
	say_cancel(&W.prefill, 1);
	settle(&W.prefill);
	if (!fits)
		await(&W.prefill, MSG_KV_GRANT, 2); /* alone: nobody's growth */
	say_cancel(&W.prefill, 2);
	world_end();
}
END_TEST

static double ratio_said(void)
{
	const char *at = strstr(ctl("status"), "\"growth_ratio\":");
	ck_assert_ptr_nonnull(at);
	return strtod(strchr(at, ':') + 1, NULL);
}

/* It falls with each step, never below its least; preemptions raise it, never above its most. */
START_TEST(share_adapts)
{
	world_begin(24, CALM_MS, 0);
	ck_assert_double_eq_tol(ratio_said(), 0.7, 0.0011);
	say_submit(1, short_of(60));
	UNTIL(W.answer[1].finish != PDS__FINISH__FINISH_NONE);
	ck_assert_double_eq_tol(ratio_said(), 0.64, 0.005);
	struct prompt p = tokens_of(4);
	for (uint32_t n = 2; n <= 4; n++) {
		p.max_tokens = 360;
		say_submit(n, p);
		UNTIL(W.answer[n].finish != PDS__FINISH__FINISH_NONE);
	}
	ck_assert_double_eq_tol(ratio_said(), 0.02, 0.0011);
	for (uint32_t n = 5; n <= 6; n++) {
		p = tokens_of(20 + n);
		p.max_tokens = 300;
		say_submit(n, p);
	}
	UNTIL(!strstr(ctl("status"), "\"preemptions\":0"));
	UNTIL(W.answer[5].finish != PDS__FINISH__FINISH_NONE &&
	      W.answer[6].finish != PDS__FINISH__FINISH_NONE);
	ck_assert_double_ge(ratio_said(), 0.0199);
	ck_assert_double_le(ratio_said(), 0.7001);
	world_end();
}
END_TEST

/* What has ended asks for nothing: the next one that needs all blocks gets them without waiting
 * for a step of somebody else. */
START_TEST(ended_sequences_ask_for_no_room)
{
	world_begin(20, CALM_MS, 0);
	for (uint32_t n = 1; n < 12; n += 2) {
		say_submit(n, short_of(60));
		UNTIL(W.answer[n].finish != PDS__FINISH__FINISH_NONE && requests_are("[]"));
		reserve(n + 1, tokens_of(10));
		reserve(n + 40, tokens_of(18 * 16)); /* 1 + its growth of 1 + 18 */
		say_cancel(&W.prefill, n + 1);
		say_cancel(&W.prefill, n + 40);
		settle(&W.prefill);
	}
	world_end();
}
END_TEST

/* A preempted sequence comes back before any reservation is granted, and both get their tokens. */
START_TEST(preempted_goes_first)
{
	/* nothing is kept: they outgrow the pool together */
	world_option = "growth_ratio=0";
	world_begin(24, CALM_MS, 0);
	for (uint32_t n = 1; n <= 2; n++) {
		struct prompt p = tokens_of(30 + n);
		p.max_tokens = 300;
		say_submit(n, p);
	}
	UNTIL(W.answer[1].n > 0 && W.answer[2].n > 0);
	UNTIL(!strstr(ctl("status"), "\"preemptions\":0"));
	say_reserve(3, 1, tokens_of(7));
	say_reserve(3, 1, tokens_of(7));
	UNTIL(W.answer[1].finish != PDS__FINISH__FINISH_NONE &&
	      W.answer[2].finish != PDS__FINISH__FINISH_NONE);
	ck_assert_uint_eq(W.answer[1].n, 300);
	ck_assert_uint_eq(W.answer[2].n, 300);
	await(&W.prefill, MSG_KV_GRANT, 3);
	say_cancel(&W.prefill, 3);
	world_end();
}
END_TEST

/* Alone and larger than the pool: the answer ends where the room does, instead of being
 * preempted for ever. */
START_TEST(outgrows_the_pool)
{
	world_begin(8, CALM_MS, 0);
	struct prompt p = tokens_of(20);
	p.max_tokens = 400;
	say_submit(1, p);
	UNTIL(W.answer[1].finish != PDS__FINISH__FINISH_NONE);
	ck_assert_int_eq(W.answer[1].finish, PDS__FINISH__FINISH_LENGTH);
	ck_assert_uint_eq(W.answer[1].n, 8 * BLOCK_TOKENS + 1 - 20);
	world_end();
}
END_TEST

int main(int argc, char **argv)
{
	(void)argc;
	world_main(argv[0]);
	Suite *s = suite_create("decode_reserve");
	TCase *c = tcase_create("process");
	tcase_set_timeout(c, 60);
	tcase_add_loop_test(c, every_message_in_this_state, 0, STATES);
	tcase_add_test(c, first_token_from_another);
	tcase_add_test(c, router_without_a_link);
	tcase_add_test(c, queue_is_bounded);
	tcase_add_test(c, table_is_bounded);
	tcase_add_test(c, embedding_needs_no_lease);
	tcase_add_test(c, embedding_fills_the_pool);
	tcase_add_test(c, embedding_keeps_no_room);
	tcase_add_test(c, embeddings_leave_places);
	tcase_add_test(c, estimates_grow_with_the_place);
	tcase_add_test(c, a_sequence_needs_a_slot);
	tcase_add_loop_test(c, room_is_kept_for_growth, 0, 2);
	tcase_add_test(c, share_adapts);
	tcase_add_test(c, ended_sequences_ask_for_no_room);
	tcase_add_test(c, preempted_goes_first);
	tcase_add_test(c, outgrows_the_pool);
	suite_add_tcase(s, c);
	return world_run(s);
}
