/* test_router_turns.c - new attempts wait at the router when workers have enough to start with: who
 * is next, what ends while it waits, and what waits for nobody. */
#include "router_rig.h"

#include <sodium.h>

#define WINDOW WORKER_STARTING_MAX
#define MOST 1000

static struct {
	struct rig *r;
	struct worker_record *p, *d;
	struct attempt_caller a, b;
	struct attempt *of_a[MOST], *of_b[MOST];
	unsigned n_a, n_b;
	uint64_t deadline_us; /* of the next attempts, from now */
	int ended, status;    /* how many ended; of the last */
} W;

static void note_end(void *owner, struct attempt *s)
{
	(void)owner;
	W.ended++;
	W.status = s->end.status;
}

static void begin(void)
{
	memset(&W, 0, sizeof W);
	W.r = rig_new();
	W.p = rig_up(W.r, "p1", "prefill", 11);
	W.d = rig_up(W.r, "d1", "decode", 21);
	attempt_caller_init(&W.a, 1);
	attempt_caller_init(&W.b, 2);
	W.deadline_us = 60000000;
}

static void end(void)
{
	for (unsigned i = 0; i < W.n_a; i++)
		attempt_destroy(&W.of_a[i]);
	for (unsigned i = 0; i < W.n_b; i++)
		attempt_destroy(&W.of_b[i]);
	rig_free(W.r);
}

static struct attempt *ask(struct attempt_caller *caller, uint32_t max_tokens, int embeds)
{
	static const uint32_t prompt[] = {1, 2, 3, 4, 5};
	static struct attempt_hooks hooks;
	struct attempt_spec spec = {.tokens = prompt,
	                            .prompt_tokens = 5,
	                            .max_tokens = embeds ? 1 : max_tokens,
	                            .cache_salt = rig_salt,
	                            .caller = caller,
	                            .pooling = embeds ? PDS__POOLING__POOLING_LAST : 0,
	                            .hidden = embeds ? 4 : 0,
	                            .begun_us = clock_us(),
	                            .deadline_us = clock_us() + W.deadline_us};
	hooks = rig_hooks;
	hooks.ended = note_end;
	pds__sampling__init(&spec.sampling);
	struct attempt *s = attempt_new(&W.r->e, &spec, &hooks, W.r);
	W.r->log[0] = W.r->out[0] = 0;
	ck_assert_int_eq(attempt_start(s), 0);
	return s;
}

static void ask_a(unsigned n)
{
	for (; n; n--)
		W.of_a[W.n_a++] = ask(&W.a, 20, 0);
}

static void ask_b(unsigned n)
{
	for (; n; n--)
		W.of_b[W.n_b++] = ask(&W.b, 20, 0);
}

static unsigned count(struct attempt *const *s, unsigned n, enum standing want)
{
	unsigned k = 0;
	for (unsigned i = 0; i < n; i++)
		k += s[i] && standing(s[i]) == want;
	return k;
}

static unsigned submitted(void)
{
	return count(W.of_a, W.n_a, SUBMITTED) + count(W.of_b, W.n_b, SUBMITTED);
}

/* The first token, from its prefill worker. */
static void starts(struct attempt *s)
{
	const struct worker_record *d = s->try.decode;
	W.r->log[0] = W.r->out[0] = 0;
	rig_first_full(W.r, s->try.prefill, s->id, s->number, 0, 10, d ? d->name : "", d ? d->epoch : 0,
	               PDS__FINISH__FINISH_NONE, 0);
}

/* All tokens after the first. */
static void ends(struct attempt *s)
{
	W.r->log[0] = W.r->out[0] = 0;
	rig_tokens_from(W.r, s->try.decode, s->id, s->number, 1, 11, 19, PDS__FINISH__FINISH_LENGTH);
	ck_assert_int_eq(standing(s), DONE);
}

static void fails(struct attempt *s, Pds__Fault fault)
{
	W.r->s = s;
	rig_fail(W.r, s->try.prefill, s->number, fault, 1);
	W.r->s = NULL;
}

/* --- turns --------------------------------------------------------------- */

/* Ten requests with n = 128 of another caller wait: this one is placed as the first of all. */
TEST(a_single_request_is_next_beside_a_greedy_caller)
{
	begin();
	ask_a(MOST);
	ck_assert_uint_eq(submitted(), WINDOW);
	ask_b(1);
	ck_assert_int_eq(standing(W.of_b[0]), WAITING);
	starts(W.of_a[0]);
	ck_assert_int_eq(standing(W.of_b[0]), SUBMITTED);
	ck_assert_uint_eq(submitted(), WINDOW);
	end();
}

/* Whatever both have waiting, they get the same. */
TEST(two_callers_get_the_same)
{
	begin();
	ask_a(MOST);
	ask_b(2 * WINDOW);
	for (unsigned i = 0; i < WINDOW; i++)
		starts(W.of_a[i]);
	ck_assert_uint_eq(count(W.of_a, W.n_a, SUBMITTED), WINDOW / 2);
	ck_assert_uint_eq(count(W.of_b, W.n_b, SUBMITTED), WINDOW / 2);
	end();
}

TEST(a_caller_that_is_alone_has_it_all)
{
	begin();
	ask_a(MOST);
	for (unsigned i = 0; i < MOST; i++) {
		ck_assert_uint_eq(submitted(), i + WINDOW < MOST ? WINDOW : MOST - i);
		ck_assert_int_eq(standing(W.of_a[i]), SUBMITTED); /* first in, first out */
		starts(W.of_a[i]);
	}
	ck_assert_uint_eq(W.p->requests, 0);
	ck_assert_uint_eq(W.d->requests, MOST);
	end();
}

/* Two workers are full, and the next attempt in turn, one that is long or an embedding, may use
 * only one of them: when the other has room again, somebody else's go there. */
TEST_LOOP(one_that_few_workers_may_take_keeps_nobody_waiting, 0, 2)
{
	begin();
	rig_free(W.r);
	W.r = rig_new();
	struct worker_record *able = rig_up(W.r, "m1", "mixed", 11),
						 *other = rig_up(W.r, "m2", "mixed", 12);
	able->max_sequences = other->max_sequences = 4;
	if (_i)
		other->hidden = 0;
	else
		other->context_tokens = 30;
	ask_a(8);
	W.of_a[W.n_a++] = ask(&W.a, _i ? 1 : 100, _i);
	ask_b(3);
	ck_assert_uint_eq(W.r->e.queue.n, 4);
	for (unsigned i = 0; i < 8; i++)
		if (W.of_a[i]->try.prefill == other)
			attempt_cancel(W.of_a[i], "the client is gone");
	attempts_tick(&W.r->e, clock_us());
	ck_assert_int_eq(standing(W.of_a[8]), WAITING);
	ck_assert_uint_eq(count(W.of_b, 3, SUBMITTED), 3);
	ck_assert_uint_eq(other->starting, 3);
	end();
}

/* Another caller has been here in the last minute: an eighth of the slots stays free for it. */
TEST(seats_are_kept_for_callers_that_are_about)
{
	begin();
	W.d->max_sequences = 64;
	ask_b(1);
	starts(W.of_b[0]);
	ends(W.of_b[0]);
	ask_a(100);
	ck_assert_uint_eq(submitted(), 57); /* one more than seven times the 8 that were free then */
	for (unsigned i = 0; i < 57; i++)
		starts(W.of_a[i]);
	ask_b(7);
	ck_assert_uint_eq(submitted(), 7);
	for (unsigned i = 1; i < 8; i++)
		starts(W.of_b[i]);
	ends(W.of_a[0]);
	ends(W.of_b[1]);
	ck_assert_uint_eq(submitted(), 0);
	for (unsigned i = 2; i < 8; i++)
		ends(W.of_b[i]);
	ck_assert_uint_eq(submitted(), 1); /* for a's that has ended */
	W.r->e.last.us -= 61000000;        /* b was the last */
	starts(W.of_a[57]);
	ck_assert_uint_eq(submitted(), 7);
	ck_assert_uint_eq(W.a.seats, 64);
	end();
	ck_assert_uint_eq(W.a.seats, 0);
}

/* One caller waits because it has its share: whoever comes after it need not wait for that. */
TEST(a_share_that_is_used_up_keeps_nobody_else_waiting)
{
	begin();
	W.d->max_sequences = 16;
	ask_a(1);
	starts(W.of_a[0]);
	ends(W.of_a[0]);
	ask_b(16);
	ck_assert_uint_eq(submitted(), 15); /* 15 are more than seven times the one that is free */
	W.p->starting += WINDOW;
	fair_charge(&W.r->e.queue, &W.a.turns, 100000); /* b is next */
	ask_a(1);
	ck_assert_int_eq(standing(W.of_a[1]), WAITING);
	W.p->starting -= WINDOW;
	attempt_cancel(W.of_b[15], "the client is gone"); /* another of b's takes its turn */
	ask_b(1);
	W.r->e.room = 1;
	attempts_tick(&W.r->e, clock_us());
	ck_assert_int_eq(standing(W.of_a[1]), SUBMITTED);
	ck_assert_int_eq(standing(W.of_b[16]), WAITING);
	end();
}

/* --- what is enough to start with ---------------------------------------- */

/* All its slots are taken: a few wait there for the next one, the rest here. */
TEST(a_decode_worker_without_slots)
{
	begin();
	W.d->max_sequences = 16;
	ask_a(16);
	for (unsigned i = 0; i < 16; i++)
		starts(W.of_a[i]);
	ask_a(100);
	ck_assert_uint_eq(submitted(), 4);
	ask_b(1);
	ends(W.of_a[0]); /* those that wait there already take the slot */
	starts(W.of_a[16]);
	ck_assert_int_eq(standing(W.of_b[0]), SUBMITTED);
	ck_assert_uint_eq(submitted(), 4);
	end();
}

/* Two steps of its prefill worker; some more, which full decode workers may hold up. */
TEST_LOOP(a_prefill_worker_with_a_backlog, 0, 5)
{
	static const struct {
		uint32_t step_tokens;
		unsigned decoders, want;
	} rows[] = {{50, 1, 20}, {51, 1, 21}, {10, 1, 8}, {10, 3, 16}, {0, 1, WINDOW}};
	begin();
	W.p->step_tokens = rows[_i].step_tokens;
	if (rows[_i].decoders == 3) {
		rig_up(W.r, "d2", "decode", 22);
		rig_up(W.r, "d3", "decode", 23);
	}
	ask_a(300); /* five tokens each */
	ck_assert_uint_eq(submitted(), rows[_i].want);
	end();
}

/* One decode worker is full, the other one fails: neither is a reason to wait for them while
 * another worker does it all. */
TEST_LOOP(full_and_failing_decode_workers_beside_a_free_one, 0, 2)
{
	begin();
	struct worker_record *d2 = rig_up(W.r, "d2", "decode", 22);
	struct worker_record *m = rig_up(W.r, "m1", "mixed", 31);
	W.d->max_sequences = W.d->requests = W.d->starting = 4;
	d2->breaker.open = 1;
	d2->breaker.until_us = clock_us() + 60000000;
	m->tokens_in_flight = 100000; /* the policy would prefer p1 */
	if (_i)                       /* the failing one alone is no reason to prefer p1 either */
		registry_down(&W.r->g, W.d, clock_us());
	ask_a(1);
	ck_assert_int_eq(standing(W.of_a[0]), SUBMITTED);
	ck_assert_ptr_eq(W.of_a[0]->try.prefill, m);
	m->tokens_in_flight -= 100000;
	W.d->requests = W.d->starting = 0;
	end();
}

/* It computes a long prompt itself: what others have computed can still be handed over to it. */
TEST(a_decode_worker_with_a_prompt_of_its_own)
{
	begin();
	W.p->step_tokens = W.d->step_tokens = 512;
	W.d->backlog_tokens = 100000;
	W.d->starting = W.d->requests = 1;
	ask_a(50);
	ck_assert_uint_eq(submitted(), 50);
	W.d->backlog_tokens = 0;
	W.d->starting--;
	W.d->requests--;
	end();
}

/* Where one has room the other does not matter. */
TEST(another_worker_has_room)
{
	begin();
	struct worker_record *p2, *d2;
	ask_a(WINDOW + 10);
	p2 = rig_up(W.r, "p2", "prefill", 12);
	d2 = rig_up(W.r, "d2", "decode", 22);
	W.r->log[0] = 0;
	attempts_worker_up(&W.r->e);
	ck_assert_uint_eq(submitted(), WINDOW + 10);
	ck_assert_uint_eq(p2->starting, 10);
	ck_assert_uint_eq(d2->starting, 10);
	end();
}

/* No decode worker is needed for it, whoever waits for one. */
TEST(a_single_token_needs_no_slot)
{
	begin();
	W.d->max_sequences = 4;
	ask_a(4);
	for (unsigned i = 0; i < 4; i++)
		starts(W.of_a[i]);
	ask_a(50);
	ck_assert_uint_eq(submitted(), 4);
	W.p->step_tokens = 10;
	for (unsigned i = 0; i < 6; i++)
		W.of_b[W.n_b++] = ask(&W.b, 1, 0);
	ck_assert_uint_eq(count(W.of_b, W.n_b, SUBMITTED), 4); /* eight at its prefill worker */
	rig_first_full(W.r, W.p, W.of_b[0]->id, 1, 0, 10, "", 0, PDS__FINISH__FINISH_LENGTH, 0);
	ck_assert_int_eq(standing(W.of_b[4]), SUBMITTED);
	ck_assert_int_eq(standing(W.of_b[5]), WAITING);
	end();
}

/* --- what ends or comes while it waits ----------------------------------- */

TEST(cancelled_while_it_waits)
{
	begin();
	ask_a(WINDOW + 3);
	attempt_cancel(W.of_a[WINDOW], "the client is gone");
	ck_assert_str_eq(W.r->log, ""); /* no worker had it */
	ck_assert_uint_eq(W.r->e.queue.n, 2);
	starts(W.of_a[0]);
	ck_assert_int_eq(standing(W.of_a[WINDOW + 1]), SUBMITTED);
	end();
}

/* One that was under way is cancelled: its place is the next one's. */
TEST(a_place_that_a_cancelled_one_leaves)
{
	begin();
	ask_a(WINDOW + 1);
	attempt_cancel(W.of_a[3], "the client is gone");
	attempts_tick(&W.r->e, clock_us());
	ck_assert_int_eq(standing(W.of_a[WINDOW]), SUBMITTED);
	end();
}

/* A client that comes again is told of what waits here too, not only of what workers have. */
TEST(retry_after_counts_what_waits)
{
	begin();
	W.p->prompt_rate = 10;
	ask_a(900); /* five tokens each */
	ck_assert_uint_eq(W.r->e.queue.n, 900 - WINDOW);
	ck_assert_uint_eq(registry_retry_after_s(&W.r->g, W.r->e.queued_tokens, 1, 6000), 900 * 5 / 10);
	for (unsigned i = WINDOW; i < 900; i++)
		attempt_cancel(W.of_a[i], "the client is gone");
	ck_assert_uint_eq(W.r->e.queued_tokens, 0);
	end();
}

TEST(its_time_is_up_while_it_waits)
{
	begin();
	ask_a(WINDOW);
	W.deadline_us = 1000000;
	ask_b(1);
	attempts_tick(&W.r->e, clock_us() + 1100000);
	ck_assert_int_eq(standing(W.of_b[0]), FAILED);
	ck_assert_int_eq(W.status, 504);
	ck_assert_int_eq(W.ended, 1);
	end();
}

/* Full workers are no reason to give up, however long it takes; none at all is. */
TEST_LOOP(workers_are_lost_while_it_waits, 0, 2)
{
	begin();
	ask_a(WINDOW);
	ask_b(2);
	attempts_tick(&W.r->e, clock_us() + 30000000);
	ck_assert_uint_eq(count(W.of_b, 2, WAITING), 2);
	W.p->beat.draining = W.d->beat.draining = 1;
	uint64_t lost = clock_us() + 31000000;
	attempts_tick(&W.r->e, lost);
	attempts_tick(&W.r->e, lost + 9000000);
	ck_assert_uint_eq(count(W.of_b, 2, WAITING), 2);
	if (_i) {
		W.p->beat.draining = W.d->beat.draining = 0;
		attempts_tick(&W.r->e, lost + 9500000);
		starts(W.of_a[0]);
		starts(W.of_a[1]);
		ck_assert_uint_eq(count(W.of_b, 2, SUBMITTED), 2);
	} else {
		attempts_tick(&W.r->e, lost + 11000000);
		ck_assert_uint_eq(count(W.of_b, 2, FAILED), 2);
		ck_assert_int_eq(W.status, 503);
	}
	end();
}

/* What it had pauses: the place at the decode worker is the next one's, at once. */
TEST(a_place_that_a_lost_worker_leaves_elsewhere)
{
	begin();
	rig_up(W.r, "p2", "prefill", 12);
	W.d->window = 2;
	ask_a(3);
	ck_assert_uint_eq(W.r->e.queue.n, 1);
	struct worker_record *lost = W.of_a[0]->try.prefill;
	W.r->log[0] = 0;
	registry_down(&W.r->g, lost, clock_us());
	attempts_worker_down(&W.r->e, lost, "its link restarts", WORKER_LINK_RESTART);
	ck_assert_uint_eq(W.r->e.queue.n, 0);
	ck_assert_uint_eq(submitted(), 2);
	end();
}

/* --- what waits for no turn ---------------------------------------------- */

/* Its client has tokens, or has waited for the worker that lost it. */
TEST_LOOP(a_lost_attempt_goes_before_new_ones, 0, 2)
{
	begin();
	ask_a(WINDOW + 50);
	if (_i)
		starts(W.of_a[0]);
	fails(W.of_a[0], PDS__FAULT__FAULT_STALLED);
	ck_assert_int_eq(standing(W.of_a[0]), SUBMITTED);
	ck_assert_uint_eq(W.of_a[0]->number, 2);
	end();
}

/* All that were there at once, also if there is a pause first. */
TEST(a_lost_worker)
{
	begin();
	struct worker_record *d2 = rig_up(W.r, "d2", "decode", 22);
	ask_a(WINDOW);
	for (unsigned i = 0; i < WINDOW; i++)
		starts(W.of_a[i]);
	ask_a(WINDOW);
	W.r->log[0] = 0;
	ck_assert_uint_eq(count(W.of_a, WINDOW, RUNNING), WINDOW);
	ck_assert_uint_eq(W.d->requests, WINDOW);
	registry_down(&W.r->g, W.d, clock_us());
	attempts_worker_down(&W.r->e, W.d, "its link restarts", WORKER_LINK_RESTART);
	attempts_tick(&W.r->e, clock_us() + 200000);
	ck_assert_uint_eq(count(W.of_a, WINDOW, SUBMITTED), WINDOW / 2);
	ck_assert_uint_eq(d2->requests, WINDOW + WINDOW / 2);
	ck_assert_uint_eq(count(W.of_a, W.n_a, WAITING), 0);
	end();
}

/* --- embeddings that a full worker refuses ------------------------------- */

static void embeds(struct attempt *s)
{
	float values[] = {1, 2, 3, 4};
	Pds__Embedding m = PDS__EMBEDDING__INIT;
	struct msg_head head = {.req = s->id, .attempt = s->number};
	m.values = values;
	m.n_values = 4;
	W.r->log[0] = 0;
	attempts_embedding(&W.r->e, W.p, &head, &m);
	ck_assert_int_eq(standing(s), DONE);
}

/* It keeps what it has, and gets more as that ends; nothing of it is a loss. */
TEST(a_full_worker_gets_fewer)
{
	begin();
	for (unsigned i = 0; i < 20; i++)
		W.of_a[W.n_a++] = ask(&W.a, 1, 1);
	ck_assert_uint_eq(W.p->starting, 20);
	for (unsigned i = 5; i < 20; i++)
		fails(W.of_a[i], PDS__FAULT__FAULT_OVERLOADED);
	ck_assert_uint_eq(W.p->starting, 5);
	ck_assert_uint_eq(W.r->e.queue.n, 15);
	embeds(W.of_a[0]); /* one place, and one more on trial */
	ck_assert_uint_eq(W.p->starting, 6);
	for (unsigned i = 0; i < W.n_a; i++)
		ck_assert_uint_eq(W.of_a[i]->past.lost, 0);
	end();
}

/* Nothing of ours is there that could end: it is tried again, and in the end it fails. */
TEST(a_worker_that_others_have_filled)
{
	begin();
	W.of_a[W.n_a++] = ask(&W.a, 1, 1);
	for (unsigned i = 0; i < 3; i++) {
		ck_assert_int_eq(standing(W.of_a[0]), SUBMITTED);
		fails(W.of_a[0], PDS__FAULT__FAULT_OVERLOADED);
		W.r->log[0] = 0;
		attempts_tick(&W.r->e, clock_us() + 5000000);
	}
	ck_assert_int_eq(standing(W.of_a[0]), FAILED);
	ck_assert_int_eq(W.status, 429);
	end();
}

TEST_START(quiet)
{
	(void)!sodium_init();
	log_set_level("error");
}
