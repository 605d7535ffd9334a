/* test_router_attempt_lost.c - attempts that are lost, fail, wait or are cancelled: deaths,
 * strangers, messages of old attempts, pauses, deadlines. Each test is a story of messages and
 * deaths, then what was sent to workers, what the client saw, and how it ended. */
#include "attempt_rig.h"

/* --- a worker dies ------------------------------------------------------- */

TEST(prefill_dies_with_a_single_token)
{
	struct rig *r = rig_new();
	struct worker_record *p = rig_up(r, "p1", "prefill", 11);
	rig_seq(r, 1, 0);
	ck_assert_int_eq(attempt_start(r->s), 0);
	r->log[0] = 0;
	struct worker_record *p2 = rig_up(r, "p2", "prefill", 12);
	rig_down(r, p);
	expect(r, SUBMITTED, "", "submit p2 #2 5; ");
	rig_first_full(r, p2, r->s->id, 2, 0, 10, "", 0, LENGTH, 0);
	ck_assert_str_eq(r->out, "10 length");
	rig_free(r);
}

TEST(prefill_dies_before_anybody_spoke)
{
	struct three t = three(8, 0);
	struct worker_record *p2 = rig_up(t.r, "p2", "prefill", 12);
	rig_down(t.r, t.p);
	(void)p2;
	expect(t.r, SUBMITTED, "", "cancel d1 #1; cancel d2 #1; submit p2 #2 5 d2 d1; ");
	rig_free(t.r);
}

TEST(prefill_dies_after_its_token_before_decode_joined)
{
	struct three t = three(8, 0);
	rig_up(t.r, "p2", "prefill", 12);
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	rig_down(t.r, t.p);
	expect(t.r, SUBMITTED, "10 ", "cancel d1 #1; cancel d2 #1; submit p2 #2 6 d2 d1; ");
	rig_more(t.r, t.d1, 1, 0, 10, 4); /* the old attempt: dropped */
	expect(t.r, SUBMITTED, "10 ", "cancel d1 #1; cancel d2 #1; submit p2 #2 6 d2 d1; ");
	rig_first(t.r, registry_find(&t.r->g, "p2"), 2, 1, 11, "d2", 22);
	rig_tokens_from(t.r, t.d2, t.r->s->id, 2, 1, 11, 2, STOP);
	ck_assert_str_eq(t.r->out, "10 11 12 stop");
	rig_free(t.r);
}

TEST(prefill_dies_after_decode_joined)
{
	struct three t = three(8, 0);
	rig_more(t.r, t.d1, 1, 0, 10, 1);
	rig_down(t.r, t.p);
	expect(t.r, RUNNING, "10 ", "");
	rig_tokens_from(t.r, t.d1, t.r->s->id, 1, 1, 11, 1, STOP);
	expect(t.r, DONE, "10 11 stop", "");
	rig_free(t.r);
}

TEST(decode_dies_midway)
{
	struct three t = three(8, 0);
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	rig_more(t.r, t.d1, 1, 0, 10, 3);
	rig_down(t.r, t.d1);
	expect(t.r, SUBMITTED, "10 11 12 ", "cancel p1 #1; cancel d2 #1; submit p1 #2 8 d2; ");
	rig_first(t.r, t.p, 2, 3, 13, "d2", 22);
	rig_tokens_from(t.r, t.d2, t.r->s->id, 2, 3, 13, 2, STOP);
	expect(t.r, DONE, "10 11 12 13 14 stop", "cancel p1 #1; cancel d2 #1; submit p1 #2 8 d2; ");
	ck_assert_uint_eq(t.r->e.counts.retries, 1);
	rig_free(t.r);
}

TEST(s_d_not_named)
{
	struct three t = three(8, 0);
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	rig_down(t.r, t.d1);
	expect(t.r, SUBMITTED, "10 ", "cancel p1 #1; cancel d2 #1; submit p1 #2 6 d2; ");
	rig_free(t.r);
}

TEST(candidate_that_was_not_named_dies)
{
	struct three t = three(8, 0);
	rig_down(t.r, t.d1); /* the prefill worker will choose the other */
	expect(t.r, SUBMITTED, "", "");
	rig_first(t.r, t.p, 1, 0, 10, "d2", 22);
	expect(t.r, RUNNING, "10 ", "");
	rig_free(t.r);
}

TEST(many_on_one_worker_that_dies)
{
	struct rig *r = rig_new();
	struct worker_record *m = rig_up(r, "m1", "mixed", 11);
	struct attempt *s[50];
	r->e.opts.max_attempts = 1;
	for (int i = 0; i < 50; i++) {
		s[i] = rig_seq(r, 8, 0);
		ck_assert_int_eq(attempt_start(s[i]), 0);
	}
	rig_down(r, m);
	ck_assert_int_eq(r->ended, 50);
	ck_assert_uint_eq(r->e.counts.failed, 50);
	for (int i = 0; i < 50; i++)
		attempt_destroy(&s[i]);
	r->s = NULL;
	rig_free(r);
}

/* --- who may speak ------------------------------------------------------- */

TEST(handed_to_an_earlier_life)
{
	struct three t = three(8, 0);
	rig_down(t.r, t.d1);
	rig_up(t.r, "d1", "decode", 31); /* restarted */
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	expect(t.r, SUBMITTED, "", "cancel p1 #1; cancel d2 #1; submit p1 #2 5 d2 d1; ");
	rig_more(t.r, registry_find(&t.r->g, "d1"), 1, 0, 10, 1); /* of the old attempt */
	ck_assert_str_eq(t.r->out, "");
	rig_free(t.r);
}

/* Named, but by an epoch that it never had, or without having been a candidate: nobody that
 * could go on. */
TEST(handed_to_a_stranger)
{
	struct three t = three(8, 0);
	rig_first(t.r, t.p, 1, 0, 10, "d1", 99);
	expect(t.r, SUBMITTED, "", "cancel p1 #1; cancel d1 #1; cancel d2 #1; submit p1 #2 5 d2 d1; ");
	t.r->log[0] = 0;
	rig_up(t.r, "d3", "decode", 23);
	rig_first(t.r, t.p, 2, 0, 10, "d3", 23);
	expect(t.r, WAITING, "", "cancel p1 #2; cancel d2 #2; cancel d1 #2; ");
	attempts_tick(&t.r->e, clock_us() + 300000);
	expect(t.r, SUBMITTED, "",
	       "cancel p1 #2; cancel d2 #2; cancel d1 #2; submit p1 #3 5 d1 d2 d3; ");
	rig_free(t.r);
}

/* What a candidate says of a reservation or a lease of its own is nothing until it is known who
 * decodes: the prefill worker may have left it for the other. */
TEST_LOOP(m23_report_before_named, 0, 2)
{
	struct three t = three(8, 0);
	rig_fail(t.r, t.d1, 1, PDS__FAULT__FAULT_LEASE_LOST, 1);
	expect(t.r, SUBMITTED, "", "");
	if (_i == 0)
		rig_first(t.r, t.p, 1, 0, 10, "d2", 22);
	else
		rig_more(t.r, t.d2, 1, 0, 10, 1);
	expect(t.r, RUNNING, "10 ", "");
	rig_fail(t.r, t.d1, 1, PDS__FAULT__FAULT_LEASE_LOST, 1); /* nor is it after that */
	rig_tokens_from(t.r, t.d2, t.r->s->id, 1, 1, 11, 1, STOP);
	expect(t.r, DONE, "10 11 stop", "");
	ck_assert_uint_eq(t.r->e.counts.retries, 0);
	rig_free(t.r);
}

/* It is kept, as it may come before the prefill worker's word: a lease that is gone ends the
 * attempt as soon as its holder is named. Nobody else would tell. */
TEST_LOOP(m24_report_forgotten, 0, 2)
{
	struct three t = three(8, 0);
	if (_i)
		rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	rig_fail(t.r, t.d1, 1, PDS__FAULT__FAULT_LEASE_LOST, 1);
	if (!_i)
		rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	expect(t.r, SUBMITTED, _i ? "10 " : "",
	       _i ? "cancel p1 #1; cancel d1 #1; cancel d2 #1; submit p1 #2 6 d2 d1; "
	          : "cancel p1 #1; cancel d1 #1; cancel d2 #1; submit p1 #2 5 d2 d1; ");
	rig_free(t.r);
}

TEST(tokens_of_a_stranger)
{
	struct three t = three(8, 0);
	struct worker_record *d3 = rig_up(t.r, "d3", "decode", 23);
	rig_more(t.r, d3, 1, 0, 10, 1);
	expect(t.r, SUBMITTED, "", "");
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	rig_more(t.r, t.d2, 1, 0, 10, 2); /* a candidate, but not the one that was named */
	expect(t.r, RUNNING, "10 ", "");
	rig_free(t.r);
}

TEST(worker_that_goes_on_with_what_nobody_knows)
{
	struct three t = three(8, 0);
	struct reqid other = {7, 7};
	rig_tokens_from(t.r, t.d1, other, 1, 0, 10, 1, NONE);
	ck_assert_str_eq(t.r->log, "cancel d1 #1; ");
	rig_free(t.r);
}

/* Its link was silent for too long, but it lives: what it still sends is answered with the
 * cancel that could not be sent. */
TEST(prefill_that_was_only_silent)
{
	struct three t = three(8, 0);
	rig_down(t.r, t.p);
	ck_assert_str_eq(t.r->log, "cancel d1 #1; cancel d2 #1; submit d2 #2 5; ");
	t.r->log[0] = 0;
	rig_up(t.r, "p1", "prefill", 11);
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	ck_assert_str_eq(t.r->log, "cancel p1 #1; ");
	rig_more(t.r, t.d1, 1, 0, 10, 1); /* that one had been told */
	expect(t.r, SUBMITTED, "", "cancel p1 #1; ");
	rig_free(t.r);
}

/* --- failures ------------------------------------------------------------ */

TEST(failure_of_an_attempt)
{
	struct three t = three(8, 0);
	rig_fail(t.r, t.p, 1, PDS__FAULT__FAULT_STALLED, 1);
	expect(t.r, SUBMITTED, "", "cancel p1 #1; cancel d1 #1; cancel d2 #1; submit p1 #2 5 d2; ");
	t.r->log[0] = 0;
	rig_fail(t.r, t.p, 1, PDS__FAULT__FAULT_STALLED, 1); /* again, of the old attempt */
	expect(t.r, SUBMITTED, "", "");
	rig_first(t.r, t.p, 2, 0, 10, "d2", 22);
	/* a lease that decode dropped by itself */
	rig_fail(t.r, t.d2, 2, PDS__FAULT__FAULT_LEASE_LOST, 1);
	expect(t.r, WAITING, "10 ", "cancel p1 #2; cancel d2 #2; "); /* the second in a row: a pause */
	attempts_tick(&t.r->e, clock_us() + 150000);
	expect(t.r, WAITING, "10 ", "cancel p1 #2; cancel d2 #2; ");
	attempts_tick(&t.r->e, clock_us() + 210000);
	expect(t.r, SUBMITTED, "10 ", "cancel p1 #2; cancel d2 #2; submit p1 #3 6 d2; ");
	rig_fail(t.r, t.p, 3, PDS__FAULT__FAULT_STALLED, 1); /* the third is the last */
	ck_assert_int_eq(standing(t.r->s), FAILED);
	ck_assert_int_eq(t.r->s->end.status, 500);
	ck_assert_str_eq(t.r->s->end.why, "so it is (attempt 3, 3 lost in a row: max_attempts)");
	rig_free(t.r);
}

/* Messagers that cannot reach each other, for example: nobody is to blame, and the client is
 * answered all the same. */
TEST(last_one_needs_no_handover)
{
	struct three t = three(8, 0);
	rig_fail(t.r, t.p, 1, PDS__FAULT__FAULT_STALLED, 1);
	rig_first(t.r, t.p, 2, 0, 10, "d2", 22);
	rig_fail(t.r, t.p, 2, PDS__FAULT__FAULT_STALLED, 1);
	t.r->log[0] = 0;
	attempts_tick(&t.r->e, clock_us() + 210000);
	expect(t.r, SUBMITTED, "10 ", "submit d1 #3 6; ");
	rig_free(t.r);
}

/* What the prefill worker says of a hand-over that failed, and what the next request gets. */
static const struct {
	const char *what, *next;
	Pds__Fault fault;
	const char *blame;
} handovers[] = {
	{"the messager stalls", "submit p1 #1 5 d2; ", PDS__FAULT__FAULT_STALLED, ""},
	{"the messager is gone", "submit p1 #1 5 d2; ", PDS__FAULT__FAULT_PEER_LOST, ""},
	{"the decode worker's failure", "submit p1 #1 5 d2 d1; ", PDS__FAULT__FAULT_STALLED, "d1"},
	{"not a hand-over", "submit p1 #1 5 d2 d1; ", PDS__FAULT__FAULT_NO_ROOM, ""},
};

TEST_LOOP(the_next_request_avoids_a_failed_pair, 0, sizeof handovers / sizeof *handovers)
{
	struct three t = three(8, 0);
	rig_fail_by(t.r, t.p, 1, handovers[_i].fault, 1, handovers[_i].blame);
	attempt_destroy(&t.r->s);
	t.d1->placed_seq = 1u << 20; /* so that only the failure makes a difference */
	rig_seq(t.r, 8, 0);
	t.r->log[0] = 0;
	ck_assert_int_eq(attempt_start(t.r->s), 0);
	ck_assert_msg(strcmp(t.r->log, handovers[_i].next) == 0, "%s: %s", handovers[_i].what,
	              t.r->log);
	rig_free(t.r);
}

/* The pair that decodes is known by then, and its success is what counts. */
TEST(a_handover_that_succeeds_clears_the_pair)
{
	struct three t = three(8, 0);
	registry_handover(&t.r->g, t.p, t.d1, 0, clock_us());
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	ck_assert_uint_eq(t.r->g.n_failed, 1);
	rig_more(t.r, t.d1, 1, 0, 10, 2);
	ck_assert_uint_eq(t.r->g.n_failed, 0);
	rig_free(t.r);
}

TEST(failure_that_no_retry_mends)
{
	struct three t = three(8, 0);
	rig_fail(t.r, t.p, 1, PDS__FAULT__FAULT_INVALID, 0);
	expect(t.r, FAILED, "", "cancel p1 #1; cancel d1 #1; cancel d2 #1; ");
	ck_assert_int_eq(t.r->s->end.status, 400);
	rig_free(t.r);
}

TEST(failure_of_prefill_after_decode_joined_is_nothing)
{
	struct three t = three(8, 0);
	rig_more(t.r, t.d1, 1, 0, 10, 1);
	rig_fail(t.r, t.p, 1, PDS__FAULT__FAULT_STALLED, 1);
	/* the candidate that was not taken */
	rig_fail(t.r, t.d2, 1, PDS__FAULT__FAULT_LEASE_LOST, 1);
	expect(t.r, RUNNING, "10 ", "");
	rig_free(t.r);
}

TEST(overloaded_pauses_before_it_tries_again)
{
	struct three t = three(8, 0);
	rig_fail(t.r, t.p, 1, PDS__FAULT__FAULT_NO_ROOM, 1);
	expect(t.r, WAITING, "", "cancel p1 #1; cancel d1 #1; cancel d2 #1; ");
	attempts_tick(&t.r->e, clock_us() + 10000);
	ck_assert_int_eq(standing(t.r->s), WAITING);
	attempts_tick(&t.r->e, clock_us() + 300000);
	ck_assert_int_eq(standing(t.r->s), SUBMITTED);
	rig_free(t.r);
}

/* --- no worker, no link, no time ----------------------------------------- */

TEST(no_worker_at_first)
{
	struct rig *r = rig_new();
	rig_seq(r, 8, 0);
	ck_assert_int_eq(attempt_start(r->s), ERR_NOTFOUND);
	rig_up(r, "p1", "prefill", 11); /* a prefill worker alone is nobody */
	ck_assert_int_eq(attempt_start(r->s), ERR_NOTFOUND);
	rig_up(r, "d1", "decode", 21);
	ck_assert_int_eq(attempt_start(r->s), 0);
	ck_assert_str_eq(r->log, "submit p1 #1 5 d1; ");
	rig_free(r);
}

static void end_of(struct rig *r, struct worker_record *w, const char *how)
{
	Pds__Heartbeat hb = PDS__HEARTBEAT__INIT;
	if (strcmp(how, "ending") == 0) {
		hb.draining = hb.ending = 1;
		registry_beat(w, &hb, clock_us());
	} else if (strcmp(how, "drained") == 0) {
		w->drained = 1;
	} else if (strcmp(how, "drained, down") == 0) {
		end_of(r, w, "drained");
		end_of(r, w, "ending");
		registry_down(&r->g, w, clock_us());
	} else if (strcmp(how, "down") == 0) {
		registry_down(&r->g, w, clock_us());
	} else if (strcmp(how, "down for 11 s") == 0) {
		registry_down(&r->g, w, clock_us() - 11000000);
	}
}

static const struct {
	const char *role[2], *end[2]; /* of two workers */
	const char *pin;
	uint32_t max_tokens;
	int waits;
} restarts[] = {
	{{"mixed"}, {"down"}, "", 8, 1},
	{{"mixed"}, {"ending"}, "", 8, 1},
	{{"decode"}, {"down"}, "", 8, 1},
	{{"prefill", "decode"}, {"up", "down"}, "", 8, 1},
	{{"prefill", "decode"}, {"down", "ending"}, "", 8, 1},
	{{"prefill"}, {"down"}, "", 1, 1},
	{{"mixed", "mixed"}, {"drained", "down"}, "", 8, 1},
	{{"mixed"}, {"down for 11 s"}, "", 8, 0},
	{{"mixed"}, {"drained"}, "", 8, 0},
	{{"mixed"}, {"drained, down"}, "", 8, 0},
	{{"prefill"}, {"up"}, "", 8, 0},
	{{"prefill"}, {"down"}, "", 8, 0}, /* it decodes nothing */
	{{"prefill", "decode"}, {"down", "drained"}, "", 8, 0},
	{{"mixed"}, {"down"}, "w0", 8, 0},
	{{"mixed"}, {"down"}, "", 100000, 0}, /* longer than it takes */
};

/* What no worker takes now waits if one that could take it restarts; else it is refused at once. */
TEST_LOOP(waits_for_one_that_restarts, 0, sizeof restarts / sizeof *restarts)
{
	struct rig *r = rig_new();
	struct place_pin pin = {.n_decode = 0};
	rig_seq(r, restarts[_i].max_tokens, 0);
	snprintf(pin.prefill, sizeof pin.prefill, "%s", restarts[_i].pin);
	r->s->asked.pin = *pin.prefill ? &pin : NULL;
	for (int i = 0; i < 2 && restarts[_i].role[i]; i++) {
		char name[] = {'w', (char)('0' + i), 0};
		end_of(r, rig_up(r, name, restarts[_i].role[i], (uint64_t)(11 + i)), restarts[_i].end[i]);
	}
	ck_assert_int_eq(attempt_start(r->s), restarts[_i].waits ? 0 : ERR_NOTFOUND);
	expect(r, restarts[_i].waits ? WAITING : NEW, "", "");
	if (restarts[_i].waits) {
		attempts_tick(&r->e, clock_us() + 9000000);
		expect(r, WAITING, "", "");
		rig_up(r, "w9", "mixed", 99);
		attempts_worker_up(&r->e);
		ck_assert_str_eq(attempt_state_name(r->s->state), "submitted");
	}
	rig_free(r);
}

TEST(waits_only_so_long_for_one_that_restarts)
{
	struct rig *r = rig_new();
	end_of(r, rig_up(r, "m1", "mixed", 11), "down");
	rig_seq(r, 8, 0);
	ck_assert_int_eq(attempt_start(r->s), 0);
	attempts_tick(&r->e, clock_us());
	attempts_tick(&r->e, clock_us() + 11000000);
	expect(r, FAILED, "", "");
	ck_assert_int_eq(r->s->end.status, 503);
	rig_free(r);
	r = rig_new();
	end_of(r, rig_up(r, "m1", "mixed", 11), "ending");
	r->e.opts.retry_wait_us = 0;
	rig_seq(r, 8, 0);
	ck_assert_int_eq(attempt_start(r->s), ERR_NOTFOUND);
	rig_free(r);
}

TEST(longer_than_any_worker_takes)
{
	struct rig *r = rig_new();
	rig_up(r, "m1", "mixed", 11);
	rig_seq(r, 3000, 0);
	ck_assert_int_eq(attempt_start(r->s), ERR_FULL);
	rig_free(r);
}

TEST(waits_for_a_worker_to_come_back)
{
	struct rig *r = rig_new();
	struct worker_record *m = rig_up(r, "m1", "mixed", 11);
	rig_seq(r, 8, 0);
	ck_assert_int_eq(attempt_start(r->s), 0);
	rig_more(r, m, 1, 0, 10, 2);
	rig_down(r, m);
	ck_assert_int_eq(standing(r->s), WAITING);
	attempts_tick(&r->e, clock_us() + 9000000);
	ck_assert_int_eq(standing(r->s), WAITING);
	m = rig_up(r, "m1", "mixed", 12);
	attempts_worker_up(&r->e);
	ck_assert_str_eq(r->log, "submit m1 #1 5; submit m1 #2 7; ");
	rig_tokens_from(r, m, r->s->id, 2, 2, 12, 1, STOP);
	expect(r, DONE, "10 11 12 stop", "submit m1 #1 5; submit m1 #2 7; ");
	rig_free(r);
}

TEST(waits_only_so_long)
{
	struct rig *r = rig_new();
	struct worker_record *m = rig_up(r, "m1", "mixed", 11);
	rig_seq(r, 8, 0);
	ck_assert_int_eq(attempt_start(r->s), 0);
	rig_down(r, m);
	attempts_tick(&r->e, clock_us() + 11000000);
	ck_assert_int_eq(standing(r->s), FAILED);
	ck_assert_int_eq(r->s->end.status, 503);
	ck_assert_int_eq(r->ended, 1);
	rig_free(r);
}

TEST(deadline_ends_every_wait)
{
	struct three t = three(8, 0);
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	attempts_tick(&t.r->e, clock_us() + 59000000);
	ck_assert_int_eq(standing(t.r->s), RUNNING);
	attempts_tick(&t.r->e, clock_us() + 61000000);
	expect(t.r, FAILED, "10 ", "cancel p1 #1; cancel d1 #1; cancel d2 #1; ");
	ck_assert_int_eq(t.r->s->end.status, 504);
	rig_free(t.r);
}

TEST(link_that_takes_nothing)
{
	struct rig *r = rig_new();
	rig_up(r, "m1", "mixed", 11);
	rig_up(r, "m2", "mixed", 12);
	rig_seq(r, 8, 0);
	r->refuse = 1;
	ck_assert_int_eq(attempt_start(r->s), 0);
	ck_assert_str_eq(r->log, "submit m2 #1 5; ");
	rig_free(r);
}

TEST(links_that_take_nothing_for_a_while)
{
	struct rig *r = rig_new();
	rig_up(r, "m1", "mixed", 11);
	rig_seq(r, 8, 0);
	r->refuse = 2;
	ck_assert_int_eq(attempt_start(r->s), 0);
	ck_assert_int_eq(standing(r->s), WAITING);
	attempts_tick(&r->e, clock_us() + 50000);
	ck_assert_str_eq(r->log, "submit m1 #1 5; ");
	rig_free(r);
}

/* --- the client goes ----------------------------------------------------- */

/* The client goes away in each phase: who hears of it. */
static const struct {
	const char *phase, *log;
} cancels[] = {
	{"new", ""},
	{"submitted", "cancel p1 #1; cancel d1 #1; cancel d2 #1; "},
	{"running", "cancel p1 #1; cancel d1 #1; cancel d2 #1; "},
	{"running", "cancel p1 #1; cancel d1 #1; cancel d2 #1; "},
	{"waiting", ""},
};

TEST_LOOP(cancel_in_each_phase, 0, sizeof cancels / sizeof *cancels)
{
	struct rig *r = rig_new();
	struct worker_record *p = rig_up(r, "p1", "prefill", 11), *d1 = rig_up(r, "d1", "decode", 21),
						 *d2 = rig_up(r, "d2", "decode", 22);
	struct attempt *s = rig_seq(r, 8, 0);
	if (_i >= 1)
		ck_assert_int_eq(attempt_start(s), 0);
	if (_i >= 2)
		rig_first(r, p, 1, 0, 10, "d1", 21);
	if (_i >= 3)
		rig_more(r, d1, 1, 0, 10, 2);
	if (_i >= 4) {
		rig_down(r, p);
		rig_down(r, d2);
		rig_down(r, d1);
	}
	ck_assert_str_eq(attempt_state_name(s->state), cancels[_i].phase);
	r->log[0] = 0;
	attempt_cancel(s, "gone");
	ck_assert_int_eq(standing(s), CANCELLED);
	ck_assert_str_eq(r->log, cancels[_i].log);
	ck_assert_int_eq(r->ended, 0);
	ck_assert_uint_eq(attempts_count(&r->e), 0);
	rig_free(r);
}

TEST(owner_that_aborts_inside)
{
	struct three t = three(8, 0);
	t.r->abort_now = 1;
	t.r->destroy_at_end = 1;
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	ck_assert_ptr_null(t.r->s);
	ck_assert_int_eq(t.r->ended, 1);
	ck_assert_str_eq(t.r->log, "cancel p1 #1; cancel d1 #1; cancel d2 #1; ");
	rig_free(t.r);
}

TEST_START(quiet)
{
	log_init("test", NULL);
	log_set_level("error");
}
