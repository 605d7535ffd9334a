/* test_router_attempt.c - the life of an attempt at the router: first token from either side,
 * repetitions, old attempts, deaths, cancels, retries. Each test is a story of messages and
 * deaths, then what was sent to workers, what the client saw, and how it ended. */
#include "router_rig.h"
#include "util/map.h"

#include <unistd.h>

#define STOP PDS__FINISH__FINISH_STOP
#define LENGTH PDS__FINISH__FINISH_LENGTH
#define NONE PDS__FINISH__FINISH_NONE

/* A router with p1, d1, d2 and an attempt that was submitted to p1. */
struct three {
	struct rig *r;
	struct worker_record *p, *d1, *d2;
};

static struct three three(uint32_t max_tokens, int prompt_logprobs)
{
	struct three t = {.r = rig_new()};
	t.p = rig_up(t.r, "p1", "prefill", 11);
	t.d1 = rig_up(t.r, "d1", "decode", 21);
	t.d2 = rig_up(t.r, "d2", "decode", 22);
	rig_seq(t.r, max_tokens, prompt_logprobs);
	ck_assert_int_eq(attempt_start(t.r->s), 0);
	ck_assert_str_eq(t.r->log, "submit p1 #1 5 d1 d2; ");
	t.r->log[0] = 0;
	return t;
}

static void expect(struct rig *r, enum attempt_state state, const char *out, const char *log)
{
	ck_assert_str_eq(attempt_state_name(r->s->state), attempt_state_name(state));
	ck_assert_str_eq(r->out, out);
	ck_assert_str_eq(r->log, log);
	ck_assert_int_eq(r->ended, state == ATTEMPT_DONE || state == ATTEMPT_FAILED ? 1 : 0);
}

START_TEST(prefill_speaks_first)
{
	struct three t = three(4, 0);
	rig_first(t.r, t.p, 1, 0, 10, "d2", 22);
	expect(t.r, ATTEMPT_HANDED, "10 ", "");
	rig_more(t.r, t.d2, 1, 0, 10, 1); /* its repetition */
	expect(t.r, ATTEMPT_DECODING, "10 ", "");
	rig_more(t.r, t.d2, 1, 1, 11, 2);
	rig_tokens_from(t.r, t.d2, t.r->s->id, 1, 3, 13, 1, LENGTH);
	expect(t.r, ATTEMPT_DONE, "10 11 12 13 length", "");
	ck_assert_uint_eq(t.r->e.counts.duplicates, 1);
	ck_assert_uint_eq(t.r->e.counts.mismatches, 0);
	rig_free(t.r);
}
END_TEST

START_TEST(decode_speaks_first)
{
	struct three t = three(4, 0);
	rig_more(t.r, t.d1, 1, 0, 10, 2);
	expect(t.r, ATTEMPT_JOINED, "10 11 ", "");
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	expect(t.r, ATTEMPT_DECODING, "10 11 ", "");
	rig_tokens_from(t.r, t.d1, t.r->s->id, 1, 2, 12, 1, STOP);
	expect(t.r, ATTEMPT_DONE, "10 11 12 stop", "");
	rig_free(t.r);
}
END_TEST

START_TEST(m7_no_attempt_index)
{
	struct three t = three(16, 0);
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	rig_more(t.r, t.d1, 1, 0, 10, 3);
	rig_more(t.r, t.d1, 1, 0, 10, 3); /* all of it again */
	rig_more(t.r, t.d1, 1, 1, 11, 4); /* two old, two new */
	expect(t.r, ATTEMPT_DECODING, "10 11 12 13 14 ", "");
	rig_tokens_from(t.r, t.d1, t.r->s->id, 1, 3, 13, 2, STOP); /* only the end is new */
	expect(t.r, ATTEMPT_DONE, "10 11 12 13 14 stop", "");
	rig_free(t.r);
}
END_TEST

START_TEST(repetition_that_differs_is_counted_and_not_shown)
{
	struct three t = three(16, 0);
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	rig_more(t.r, t.d1, 1, 0, 99, 1);
	expect(t.r, ATTEMPT_DECODING, "10 ", "");
	ck_assert_uint_eq(t.r->e.counts.mismatches, 1);
	rig_free(t.r);
}
END_TEST

START_TEST(gap_is_another_attempt)
{
	struct three t = three(16, 0);
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	rig_more(t.r, t.d1, 1, 2, 12, 1);
	expect(t.r, ATTEMPT_SUBMITTED, "10 ",
	       "cancel p1 #1; cancel d1 #1; cancel d2 #1; submit p1 #2 6 d2 d1; ");
	rig_free(t.r);
}
END_TEST

START_TEST(first_token_ends_the_answer)
{
	struct three t = three(8, 0);
	rig_first_full(t.r, t.p, t.r->s->id, 1, 0, 10, "", 0, LENGTH, 0);
	expect(t.r, ATTEMPT_DONE, "10 length", "");
	rig_free(t.r);
}
END_TEST

/* No decode worker is needed, nor asked if there is one. */
START_TEST(answer_of_a_single_token)
{
	struct rig *r = rig_new();
	struct worker_record *p = rig_up(r, "p1", "prefill", 11);
	if (_i)
		rig_up(r, "d1", "decode", 21);
	rig_seq(r, 1, 0);
	ck_assert_int_eq(attempt_start(r->s), 0);
	ck_assert_str_eq(r->log, "submit p1 #1 5; ");
	r->log[0] = 0;
	rig_first_full(r, p, r->s->id, 1, 0, 10, "", 0, LENGTH, 0);
	expect(r, ATTEMPT_DONE, "10 length", "");
	rig_free(r);
}
END_TEST

START_TEST(prefill_dies_with_a_single_token)
{
	struct rig *r = rig_new();
	struct worker_record *p = rig_up(r, "p1", "prefill", 11);
	rig_seq(r, 1, 0);
	ck_assert_int_eq(attempt_start(r->s), 0);
	r->log[0] = 0;
	struct worker_record *p2 = rig_up(r, "p2", "prefill", 12);
	rig_down(r, p);
	expect(r, ATTEMPT_SUBMITTED, "", "submit p2 #2 5; ");
	rig_first_full(r, p2, r->s->id, 2, 0, 10, "", 0, LENGTH, 0);
	ck_assert_str_eq(r->out, "10 length");
	rig_free(r);
}
END_TEST

/* Whoever pins a decode worker wants the hand-over. */
START_TEST(pinned_with_a_single_token)
{
	struct rig *r = rig_new();
	struct place_pin pin = {.decode = {"d1"}, .n_decode = 1};
	rig_up(r, "p1", "prefill", 11);
	rig_up(r, "d1", "decode", 21);
	rig_seq(r, 1, 0);
	r->s->asked.pin = &pin;
	ck_assert_int_eq(attempt_start(r->s), 0);
	ck_assert_str_eq(r->log, "submit p1 #1 5 d1; ");
	rig_free(r);
}
END_TEST

START_TEST(stop_string_in_the_first_token)
{
	struct three t = three(8, 0);
	t.r->stop_at = 10;
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	expect(t.r, ATTEMPT_DONE, "10 ", "cancel p1 #1; cancel d1 #1; cancel d2 #1; ");
	ck_assert_int_eq(t.r->s->end.finish, ANSWER_FINISH_STOP);
	rig_free(t.r);
}
END_TEST

START_TEST(stop_string_midway_cancels)
{
	struct three t = three(8, 0);
	t.r->stop_at = 12;
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	rig_more(t.r, t.d1, 1, 0, 10, 5);
	expect(t.r, ATTEMPT_DONE, "10 11 12 ", "cancel p1 #1; cancel d1 #1; cancel d2 #1; ");
	rig_more(t.r, t.d1, 1, 5, 15, 1); /* on its way when the cancel was sent */
	expect(t.r, ATTEMPT_DONE, "10 11 12 ", "cancel p1 #1; cancel d1 #1; cancel d2 #1; ");
	rig_free(t.r);
}
END_TEST

START_TEST(prefill_dies_before_anybody_spoke)
{
	struct three t = three(8, 0);
	struct worker_record *p2 = rig_up(t.r, "p2", "prefill", 12);
	rig_down(t.r, t.p);
	(void)p2;
	expect(t.r, ATTEMPT_SUBMITTED, "", "cancel d1 #1; cancel d2 #1; submit p2 #2 5 d2 d1; ");
	rig_free(t.r);
}
END_TEST

START_TEST(prefill_dies_after_its_token_before_decode_joined)
{
	struct three t = three(8, 0);
	rig_up(t.r, "p2", "prefill", 12);
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	rig_down(t.r, t.p);
	expect(t.r, ATTEMPT_SUBMITTED, "10 ", "cancel d1 #1; cancel d2 #1; submit p2 #2 6 d2 d1; ");
	rig_more(t.r, t.d1, 1, 0, 10, 4); /* the old attempt: dropped */
	expect(t.r, ATTEMPT_SUBMITTED, "10 ", "cancel d1 #1; cancel d2 #1; submit p2 #2 6 d2 d1; ");
	rig_first(t.r, registry_find(&t.r->g, "p2"), 2, 1, 11, "d2", 22);
	rig_tokens_from(t.r, t.d2, t.r->s->id, 2, 1, 11, 2, STOP);
	ck_assert_str_eq(t.r->out, "10 11 12 stop");
	rig_free(t.r);
}
END_TEST

START_TEST(prefill_dies_after_decode_joined)
{
	struct three t = three(8, 0);
	rig_more(t.r, t.d1, 1, 0, 10, 1);
	rig_down(t.r, t.p);
	expect(t.r, ATTEMPT_DECODING, "10 ", "");
	rig_tokens_from(t.r, t.d1, t.r->s->id, 1, 1, 11, 1, STOP);
	expect(t.r, ATTEMPT_DONE, "10 11 stop", "");
	rig_free(t.r);
}
END_TEST

START_TEST(decode_dies_midway)
{
	struct three t = three(8, 0);
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	rig_more(t.r, t.d1, 1, 0, 10, 3);
	rig_down(t.r, t.d1);
	expect(t.r, ATTEMPT_SUBMITTED, "10 11 12 ", "cancel p1 #1; cancel d2 #1; submit p1 #2 8 d2; ");
	rig_first(t.r, t.p, 2, 3, 13, "d2", 22);
	rig_tokens_from(t.r, t.d2, t.r->s->id, 2, 3, 13, 2, STOP);
	expect(t.r, ATTEMPT_DONE, "10 11 12 13 14 stop",
	       "cancel p1 #1; cancel d2 #1; submit p1 #2 8 d2; ");
	ck_assert_uint_eq(t.r->e.counts.retries, 1);
	rig_free(t.r);
}
END_TEST

START_TEST(s_d_not_named)
{
	struct three t = three(8, 0);
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	rig_down(t.r, t.d1);
	expect(t.r, ATTEMPT_SUBMITTED, "10 ", "cancel p1 #1; cancel d2 #1; submit p1 #2 6 d2; ");
	rig_free(t.r);
}
END_TEST

START_TEST(candidate_that_was_not_named_dies)
{
	struct three t = three(8, 0);
	rig_down(t.r, t.d1); /* the prefill worker will choose the other */
	expect(t.r, ATTEMPT_SUBMITTED, "", "");
	rig_first(t.r, t.p, 1, 0, 10, "d2", 22);
	expect(t.r, ATTEMPT_HANDED, "10 ", "");
	rig_free(t.r);
}
END_TEST

START_TEST(handed_to_an_earlier_life)
{
	struct three t = three(8, 0);
	rig_down(t.r, t.d1);
	rig_up(t.r, "d1", "decode", 31); /* restarted */
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	expect(t.r, ATTEMPT_SUBMITTED, "", "cancel p1 #1; cancel d2 #1; submit p1 #2 5 d2 d1; ");
	rig_more(t.r, registry_find(&t.r->g, "d1"), 1, 0, 10, 1); /* of the old attempt */
	ck_assert_str_eq(t.r->out, "");
	rig_free(t.r);
}
END_TEST

/* Named, but by an epoch that it never had, or without having been a candidate: nobody that
 * could go on. */
START_TEST(handed_to_a_stranger)
{
	struct three t = three(8, 0);
	rig_first(t.r, t.p, 1, 0, 10, "d1", 99);
	expect(t.r, ATTEMPT_SUBMITTED, "",
	       "cancel p1 #1; cancel d1 #1; cancel d2 #1; submit p1 #2 5 d2 d1; ");
	t.r->log[0] = 0;
	rig_up(t.r, "d3", "decode", 23);
	rig_first(t.r, t.p, 2, 0, 10, "d3", 23);
	expect(t.r, ATTEMPT_WAITING, "", "cancel p1 #2; cancel d2 #2; cancel d1 #2; ");
	attempts_tick(&t.r->e, clock_us() + 300000);
	expect(t.r, ATTEMPT_SUBMITTED, "",
	       "cancel p1 #2; cancel d2 #2; cancel d1 #2; submit p1 #3 5 d1 d2 d3; ");
	rig_free(t.r);
}
END_TEST

/* What a candidate says of a reservation or a lease of its own is nothing until it is known who
 * decodes: the prefill worker may have left it for the other. */
START_TEST(m23_report_before_named)
{
	struct three t = three(8, 0);
	rig_fail(t.r, t.d1, 1, PDS__FAULT__FAULT_LEASE_LOST, 1);
	expect(t.r, ATTEMPT_SUBMITTED, "", "");
	if (_i == 0)
		rig_first(t.r, t.p, 1, 0, 10, "d2", 22);
	else
		rig_more(t.r, t.d2, 1, 0, 10, 1);
	expect(t.r, _i ? ATTEMPT_JOINED : ATTEMPT_HANDED, "10 ", "");
	rig_fail(t.r, t.d1, 1, PDS__FAULT__FAULT_LEASE_LOST, 1); /* nor is it after that */
	rig_tokens_from(t.r, t.d2, t.r->s->id, 1, 1, 11, 1, STOP);
	if (_i)
		rig_first(t.r, t.p, 1, 0, 10, "d2", 22);
	expect(t.r, ATTEMPT_DONE, "10 11 stop", "");
	ck_assert_uint_eq(t.r->e.counts.retries, 0);
	rig_free(t.r);
}
END_TEST

/* It is kept, as it may come before the prefill worker's word: a lease that is gone ends the
 * attempt as soon as its holder is named. Nobody else would tell. */
START_TEST(m24_report_forgotten)
{
	struct three t = three(8, 0);
	if (_i)
		rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	rig_fail(t.r, t.d1, 1, PDS__FAULT__FAULT_LEASE_LOST, 1);
	if (!_i)
		rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	expect(t.r, ATTEMPT_SUBMITTED, _i ? "10 " : "",
	       _i ? "cancel p1 #1; cancel d1 #1; cancel d2 #1; submit p1 #2 6 d2 d1; "
	          : "cancel p1 #1; cancel d1 #1; cancel d2 #1; submit p1 #2 5 d2 d1; ");
	rig_free(t.r);
}
END_TEST

START_TEST(tokens_of_a_stranger)
{
	struct three t = three(8, 0);
	struct worker_record *d3 = rig_up(t.r, "d3", "decode", 23);
	rig_more(t.r, d3, 1, 0, 10, 1);
	expect(t.r, ATTEMPT_SUBMITTED, "", "");
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	rig_more(t.r, t.d2, 1, 0, 10, 2); /* a candidate, but not the one that was named */
	expect(t.r, ATTEMPT_HANDED, "10 ", "");
	rig_free(t.r);
}
END_TEST

START_TEST(failure_of_an_attempt)
{
	struct three t = three(8, 0);
	rig_fail(t.r, t.p, 1, PDS__FAULT__FAULT_STALLED, 1);
	expect(t.r, ATTEMPT_SUBMITTED, "",
	       "cancel p1 #1; cancel d1 #1; cancel d2 #1; submit p1 #2 5 d2 d1; ");
	t.r->log[0] = 0;
	rig_fail(t.r, t.p, 1, PDS__FAULT__FAULT_STALLED, 1); /* again, of the old attempt */
	expect(t.r, ATTEMPT_SUBMITTED, "", "");
	rig_first(t.r, t.p, 2, 0, 10, "d2", 22);
	/* a lease that decode dropped by itself */
	rig_fail(t.r, t.d2, 2, PDS__FAULT__FAULT_LEASE_LOST, 1);
	expect(t.r, ATTEMPT_WAITING, "10 ",
	       "cancel p1 #2; cancel d2 #2; cancel d1 #2; "); /* the second in a row: a pause */
	attempts_tick(&t.r->e, clock_us() + 150000);
	expect(t.r, ATTEMPT_WAITING, "10 ", "cancel p1 #2; cancel d2 #2; cancel d1 #2; ");
	attempts_tick(&t.r->e, clock_us() + 210000);
	expect(t.r, ATTEMPT_SUBMITTED, "10 ",
	       "cancel p1 #2; cancel d2 #2; cancel d1 #2; submit p1 #3 6 d1 d2; ");
	rig_fail(t.r, t.p, 3, PDS__FAULT__FAULT_STALLED, 1); /* the third is the last */
	ck_assert_int_eq(t.r->s->state, ATTEMPT_FAILED);
	ck_assert_int_eq(t.r->s->end.status, 500);
	ck_assert_str_eq(t.r->s->end.why, "so it is (attempt 3, 3 lost in a row: max_attempts)");
	rig_free(t.r);
}
END_TEST

/* Messagers that cannot reach each other, for example: nobody is to blame, and the client is
 * answered all the same. */
START_TEST(last_one_needs_no_handover)
{
	struct three t = three(8, 0);
	rig_fail(t.r, t.p, 1, PDS__FAULT__FAULT_STALLED, 1);
	rig_first(t.r, t.p, 2, 0, 10, "d2", 22);
	rig_fail(t.r, t.p, 2, PDS__FAULT__FAULT_STALLED, 1);
	t.r->log[0] = 0;
	attempts_tick(&t.r->e, clock_us() + 210000);
	expect(t.r, ATTEMPT_SUBMITTED, "10 ", "submit d1 #3 6; ");
	rig_free(t.r);
}
END_TEST

START_TEST(failure_that_no_retry_mends)
{
	struct three t = three(8, 0);
	rig_fail(t.r, t.p, 1, PDS__FAULT__FAULT_INVALID, 0);
	expect(t.r, ATTEMPT_FAILED, "", "cancel p1 #1; cancel d1 #1; cancel d2 #1; ");
	ck_assert_int_eq(t.r->s->end.status, 400);
	rig_free(t.r);
}
END_TEST

START_TEST(failure_of_prefill_after_decode_joined_is_nothing)
{
	struct three t = three(8, 0);
	rig_more(t.r, t.d1, 1, 0, 10, 1);
	rig_fail(t.r, t.p, 1, PDS__FAULT__FAULT_STALLED, 1);
	/* the candidate that was not taken */
	rig_fail(t.r, t.d2, 1, PDS__FAULT__FAULT_LEASE_LOST, 1);
	expect(t.r, ATTEMPT_JOINED, "10 ", "");
	rig_free(t.r);
}
END_TEST

START_TEST(no_worker_at_first)
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
END_TEST

START_TEST(longer_than_any_worker_takes)
{
	struct rig *r = rig_new();
	rig_up(r, "m1", "mixed", 11);
	rig_seq(r, 3000, 0);
	ck_assert_int_eq(attempt_start(r->s), ERR_FULL);
	rig_free(r);
}
END_TEST

START_TEST(waits_for_a_worker_to_come_back)
{
	struct rig *r = rig_new();
	struct worker_record *m = rig_up(r, "m1", "mixed", 11);
	rig_seq(r, 8, 0);
	ck_assert_int_eq(attempt_start(r->s), 0);
	rig_more(r, m, 1, 0, 10, 2);
	rig_down(r, m);
	ck_assert_int_eq(r->s->state, ATTEMPT_WAITING);
	attempts_tick(&r->e, clock_us() + 9000000);
	ck_assert_int_eq(r->s->state, ATTEMPT_WAITING);
	m = rig_up(r, "m1", "mixed", 12);
	attempts_worker_up(&r->e);
	ck_assert_str_eq(r->log, "submit m1 #1 5; submit m1 #2 7; ");
	rig_tokens_from(r, m, r->s->id, 2, 2, 12, 1, STOP);
	expect(r, ATTEMPT_DONE, "10 11 12 stop", "submit m1 #1 5; submit m1 #2 7; ");
	rig_free(r);
}
END_TEST

START_TEST(waits_only_so_long)
{
	struct rig *r = rig_new();
	struct worker_record *m = rig_up(r, "m1", "mixed", 11);
	rig_seq(r, 8, 0);
	ck_assert_int_eq(attempt_start(r->s), 0);
	rig_down(r, m);
	attempts_tick(&r->e, clock_us() + 11000000);
	ck_assert_int_eq(r->s->state, ATTEMPT_FAILED);
	ck_assert_int_eq(r->s->end.status, 503);
	ck_assert_int_eq(r->ended, 1);
	rig_free(r);
}
END_TEST

START_TEST(deadline_ends_every_wait)
{
	struct three t = three(8, 0);
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	attempts_tick(&t.r->e, clock_us() + 59000000);
	ck_assert_int_eq(t.r->s->state, ATTEMPT_HANDED);
	attempts_tick(&t.r->e, clock_us() + 61000000);
	expect(t.r, ATTEMPT_FAILED, "10 ", "cancel p1 #1; cancel d1 #1; cancel d2 #1; ");
	ck_assert_int_eq(t.r->s->end.status, 504);
	rig_free(t.r);
}
END_TEST

START_TEST(overloaded_pauses_before_it_tries_again)
{
	struct three t = three(8, 0);
	rig_fail(t.r, t.p, 1, PDS__FAULT__FAULT_NO_ROOM, 1);
	expect(t.r, ATTEMPT_WAITING, "", "cancel p1 #1; cancel d1 #1; cancel d2 #1; ");
	attempts_tick(&t.r->e, clock_us() + 10000);
	ck_assert_int_eq(t.r->s->state, ATTEMPT_WAITING);
	attempts_tick(&t.r->e, clock_us() + 300000);
	ck_assert_int_eq(t.r->s->state, ATTEMPT_SUBMITTED);
	rig_free(t.r);
}
END_TEST

/* The client goes away in each phase: who hears of it. */
static const struct {
	const char *phase, *log;
} cancels[] = {
	{"new", ""},
	{"submitted", "cancel p1 #1; cancel d1 #1; cancel d2 #1; "},
	{"handed", "cancel p1 #1; cancel d1 #1; cancel d2 #1; "},
	{"decoding", "cancel p1 #1; cancel d1 #1; cancel d2 #1; "},
	{"waiting", ""},
};

START_TEST(cancel_in_each_phase)
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
	ck_assert_int_eq(s->state, ATTEMPT_CANCELLED);
	ck_assert_str_eq(r->log, cancels[_i].log);
	ck_assert_int_eq(r->ended, 0);
	ck_assert_uint_eq(attempts_count(&r->e), 0);
	rig_free(r);
}
END_TEST

START_TEST(owner_that_aborts_inside)
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
END_TEST

START_TEST(many_on_one_worker_that_dies)
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
END_TEST

START_TEST(worker_that_goes_on_with_what_nobody_knows)
{
	struct three t = three(8, 0);
	struct reqid other = {7, 7};
	rig_tokens_from(t.r, t.d1, other, 1, 0, 10, 1, NONE);
	ck_assert_str_eq(t.r->log, "cancel d1 #1; ");
	rig_free(t.r);
}
END_TEST

/* Its link was silent for too long, but it lives: what it still sends is answered with the
 * cancel that could not be sent. */
START_TEST(prefill_that_was_only_silent)
{
	struct three t = three(8, 0);
	rig_down(t.r, t.p);
	ck_assert_str_eq(t.r->log, "cancel d1 #1; cancel d2 #1; submit d2 #2 5; ");
	t.r->log[0] = 0;
	rig_up(t.r, "p1", "prefill", 11);
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	ck_assert_str_eq(t.r->log, "cancel p1 #1; ");
	rig_more(t.r, t.d1, 1, 0, 10, 1); /* that one had been told */
	expect(t.r, ATTEMPT_SUBMITTED, "", "cancel p1 #1; ");
	rig_free(t.r);
}
END_TEST

START_TEST(ended_in_order_needs_no_cancel)
{
	struct three t = three(2, 0);
	struct reqid id = t.r->s->id;
	rig_more(t.r, t.d1, 1, 0, 10, 1);
	rig_tokens_from(t.r, t.d1, id, 1, 1, 11, 1, LENGTH);
	rig_first_full(t.r, t.p, id, 1, 0, 10, "d1", 21, NONE, 0); /* late */
	expect(t.r, ATTEMPT_DONE, "10 11 length", "");
	rig_free(t.r);
}
END_TEST

START_TEST(prompt_logprobs_before_tokens)
{
	struct three t = three(8, 1);
	rig_more(t.r, t.d1, 1, 0, 10, 2); /* decode is faster: held */
	rig_more(t.r, t.d1, 1, 2, 12, 1);
	expect(t.r, ATTEMPT_HELD, "", "");
	rig_first_full(t.r, t.p, t.r->s->id, 1, 0, 10, "d1", 21, NONE, 4);
	ck_assert_int_eq(t.r->n_prompt, 4);
	expect(t.r, ATTEMPT_DECODING, "10 11 12 ", "");
	rig_free(t.r);
}
END_TEST

/* The last log-probabilities release what is held; the end of a complete answer stays held until
 * the prefill worker's first token. */
START_TEST(held_until_the_prompt_is_told)
{
	struct three t = three(8, 1);
	struct reqid id = t.r->s->id;
	rig_more(t.r, t.d1, 1, 0, 10, 2);
	if (_i)
		rig_tokens_from(t.r, t.d1, id, 1, 2, 12, 1, STOP);
	rig_more(t.r, t.d2, 1, 0, 10, 1); /* not the worker that decodes */
	expect(t.r, ATTEMPT_HELD, "", "");
	rig_told(t.r, t.p, id, 1, 1, 3);
	expect(t.r, ATTEMPT_HELD, "", "");
	rig_told(t.r, t.p, id, 1, 4, 1);
	expect(t.r, _i ? ATTEMPT_ENDING : ATTEMPT_JOINED, "10 11 ", "");
	if (!_i)
		rig_tokens_from(t.r, t.d1, id, 1, 2, 12, 1, STOP);
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	expect(t.r, ATTEMPT_DONE, "10 11 12 stop", "");
	rig_free(t.r);
}
END_TEST

/* An answer that is complete cannot fail any more, and an end that is none is not kept as one. */
START_TEST(end_that_nothing_undoes)
{
	struct three t = three(8, 0);
	struct reqid id = t.r->s->id;
	rig_tokens_from(t.r, t.d1, id, 1, 0, 10, 2, (Pds__Finish)77);
	expect(t.r, ATTEMPT_JOINED, "10 11 ", "");
	rig_tokens_from(t.r, t.d1, id, 1, 0, 10, 1, STOP); /* before tokens that are here */
	expect(t.r, ATTEMPT_JOINED, "10 11 ", "");
	rig_tokens_from(t.r, t.d1, id, 1, 2, 12, 1, STOP);
	rig_more(t.r, t.d1, 1, 3, 13, 1);
	rig_told(t.r, t.p, id, 1, 1, 1);
	rig_fail(t.r, t.p, 1, PDS__FAULT__FAULT_STALLED, 1);
	rig_fail(t.r, t.d1, 1, PDS__FAULT__FAULT_LEASE_LOST, 1);
	expect(t.r, ATTEMPT_ENDING, "10 11 ", "");
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	expect(t.r, ATTEMPT_DONE, "10 11 12 stop", "");
	rig_free(t.r);
}
END_TEST

/* A first token with an end that is none: the decode worker that it names counts. */
START_TEST(first_token_with_no_end)
{
	struct three t = three(8, 0);
	rig_first_full(t.r, t.p, t.r->s->id, 1, 0, 10, "d2", 22, (Pds__Finish)77, 0);
	expect(t.r, ATTEMPT_HANDED, "10 ", "");
	rig_tokens_from(t.r, t.d2, t.r->s->id, 1, 0, 10, 2, STOP);
	expect(t.r, ATTEMPT_DONE, "10 11 stop", "");
	rig_free(t.r);
}
END_TEST

/* A decode worker that talks on while its tokens wait for the prompt's log-probabilities fills
 * no memory: its attempt is lost. */
START_TEST(more_held_than_there_can_be)
{
	struct rig *r = rig_new();
	struct worker_record *p = rig_up(r, "p1", "prefill", 11), *d = rig_up(r, "d1", "decode", 21);
	rig_seq(r, 8, 1);
	ck_assert_int_eq(attempt_start(r->s), 0);
	for (uint32_t i = 0; i < 9; i++)
		rig_more(r, d, 1, i ? i - 1 : 0, 10 + (i ? i - 1 : 0), 1);
	ck_assert_uint_eq(r->s->number, 1);
	ck_assert_uint_eq(r->s->try.n_held, 9);
	rig_more(r, d, 1, 0, 10, 1);
	ck_assert_uint_eq(r->s->number, 2);
	ck_assert_uint_eq(r->s->try.n_held, 0);
	ck_assert(list_empty(&r->s->try.held));
	rig_more(r, d, 2, 0, 10, 1); /* the next one is as any */
	rig_first_full(r, p, r->s->id, 2, 0, 10, "d1", 21, PDS__FINISH__FINISH_NONE, 4);
	ck_assert_str_eq(r->out, "10 ");
	ck_assert_uint_eq(r->s->try.n_held, 0);
	rig_free(r);
}
END_TEST

START_TEST(prompt_logprobs_lost_with_prefill)
{
	struct three t = three(8, 1);
	rig_up(t.r, "p2", "prefill", 12);
	rig_more(t.r, t.d1, 1, 0, 10, 2);
	rig_down(t.r, t.p); /* decode has joined, but they are lost */
	expect(t.r, ATTEMPT_SUBMITTED, "", "cancel d1 #1; cancel d2 #1; submit p2 #2 5 d2 d1; ");
	rig_first_full(t.r, registry_find(&t.r->g, "p2"), t.r->s->id, 2, 0, 10, "d2", 22, NONE, 4);
	expect(t.r, ATTEMPT_HANDED, "10 ", "cancel d1 #1; cancel d2 #1; submit p2 #2 5 d2 d1; ");
	rig_free(t.r);
}
END_TEST

/* They come in slices; what was there already is passed over. */
START_TEST(prompt_logprobs_in_slices)
{
	struct three t = three(8, 1);
	struct reqid id = t.r->s->id;
	rig_told(t.r, t.p, id, 1, 1, 2);
	rig_told(t.r, t.p, id, 1, 1, 2);
	rig_told(t.r, t.p, id, 1, 2, 2); /* half of it is new */
	ck_assert_int_eq(t.r->n_prompt, 3);
	rig_told(t.r, t.d1, id, 1, 4, 1); /* not who computes the prompt */
	rig_told(t.r, t.p, id, 2, 4, 1);  /* not this attempt: p1 is told so */
	ck_assert_int_eq(t.r->n_prompt, 3);
	rig_told(t.r, t.p, id, 1, 4, 1);
	for (int i = 0; i < 4; i++)
		ck_assert_double_eq((double)t.r->prompt[i], -(i + 1.0));
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	expect(t.r, ATTEMPT_HANDED, "10 ", "cancel p1 #2; ");
	rig_told(t.r, t.p, id, 1, 4, 1); /* late */
	ck_assert_int_eq(t.r->n_prompt, 4);
	rig_free(t.r);
}
END_TEST

/* A new attempt tells them from the beginning: what the first one told is kept, and when it had
 * told them all they are not asked for again. */
START_TEST(prompt_logprobs_over_attempts)
{
	struct three t = three(8, 1);
	struct worker_record *p2 = rig_up(t.r, "p2", "prefill", 12);
	rig_told(t.r, t.p, t.r->s->id, 1, 1, 3);
	rig_fail(t.r, t.p, 1, PDS__FAULT__FAULT_STALLED, 1);
	ck_assert_uint_eq(t.r->s->got.prompt_rows, 4);
	rig_told(t.r, p2, t.r->s->id, 2, 1, 4);
	ck_assert_int_eq(t.r->n_prompt, 4);
	rig_fail(t.r, p2, 2, PDS__FAULT__FAULT_DRAINING, 1);
	attempts_tick(&t.r->e, clock_us() + 1000000);
	ck_assert_uint_eq(t.r->s->number, 3);
	ck_assert_uint_eq(t.r->s->got.prompt_rows, 5);
	rig_first(t.r, t.r->s->try.prefill, 3, 0, 10, "d1", 21);
	ck_assert_str_eq(t.r->out, "10 ");
	rig_free(t.r);
}
END_TEST

/* A gap, too many, lists that do not fit each other, or a first token before they are complete:
 * the attempt is lost, the next one may do better. */
START_TEST(prompt_logprobs_that_are_not_all_there)
{
	struct three t = three(8, 1);
	static const struct {
		uint32_t first;
		size_t n;
	} bad[] = {{2, 1}, {0, 1}, {1, 5}, {1, 0}};
	rig_first_full(t.r, t.p, t.r->s->id, 1, 0, 10, "d1", 21, NONE, 3);
	ck_assert_uint_eq(t.r->s->number, 2);
	ck_assert_str_eq(t.r->out, "");
	rig_free(t.r);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		t = three(8, 1);
		rig_told(t.r, t.p, t.r->s->id, 1, bad[i].first, bad[i].n);
		ck_assert_uint_eq(t.r->s->number, 2);
		ck_assert_int_eq(t.r->n_prompt, 0);
		rig_free(t.r);
	}
}
END_TEST

START_TEST(more_than_was_asked_for)
{
	struct three t = three(3, 0);
	rig_more(t.r, t.d1, 1, 0, 10, 5);
	expect(t.r, ATTEMPT_DONE, "10 11 12 length", "");
	rig_free(t.r);
}
END_TEST

START_TEST(link_that_takes_nothing)
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
END_TEST

START_TEST(links_that_take_nothing_for_a_while)
{
	struct rig *r = rig_new();
	rig_up(r, "m1", "mixed", 11);
	rig_seq(r, 8, 0);
	r->refuse = 2;
	ck_assert_int_eq(attempt_start(r->s), 0);
	ck_assert_int_eq(r->s->state, ATTEMPT_WAITING);
	attempts_tick(&r->e, clock_us() + 50000);
	ck_assert_str_eq(r->log, "submit m1 #1 5; ");
	rig_free(r);
}
END_TEST

/* What was logged since log_capture, as one text. */
static char *logged(FILE *f)
{
	static char text[16384];
	rewind(f);
	size_t n = fread(text, 1, sizeof text - 1, f);
	text[n] = 0;
	return text;
}

static void say_first(struct rig *r, struct worker_record *w, struct reqid id, uint32_t attempt)
{
	Pds__Timing timing = PDS__TIMING__INIT;
	Pds__Token t = PDS__TOKEN__INIT;
	Pds__FirstToken m = PDS__FIRST_TOKEN__INIT;
	struct msg_head head = {.req = id, .attempt = attempt};
	timing.prefill_us = 4321;
	timing.cached_tokens = 3;
	t.id = 10;
	m.token = &t;
	m.decode = (char *)"d1";
	m.decode_epoch = 21;
	m.timing = &timing;
	attempts_first_token(&r->e, w, &head, &m);
}

/* The whole answer is there before the prefill worker's account of it: the summary waits for
 * that, but not for ever. */
START_TEST(prefill_speaks_when_all_is_over)
{
	struct three t = three(2, 0);
	struct reqid id = t.r->s->id;
	FILE *f = tmpfile();
	int had = dup(2);
	dup2(fileno(f), 2);
	log_set_level("info");
	rig_more(t.r, t.d1, 1, 0, 10, 2);
	expect(t.r, ATTEMPT_DONE, "10 11 length", "cancel p1 #1; cancel d1 #1; cancel d2 #1; ");
	ck_assert_uint_eq(map_count(t.r->e.late_by_id), 1);
	ck_assert_ptr_null(strstr(logged(f), "request_done"));
	ck_assert_ptr_nonnull(strstr(logged(f), "event=first_token attempt=1 index=0 from=d1"));
	attempt_destroy(&t.r->s);
	if (_i == 0) {
		/* of no attempt there was */
		say_first(t.r, t.p, id, 2);
		say_first(t.r, t.p, (struct reqid){1, 2}, 1);
		ck_assert_uint_eq(map_count(t.r->e.late_by_id), 1);
		say_first(t.r, t.p, id, 1);
		ck_assert_ptr_nonnull(strstr(logged(f), "late=1"));
		ck_assert_ptr_nonnull(strstr(logged(f), "cached_tokens=3"));
		ck_assert_ptr_nonnull(strstr(logged(f), "prefill_us=4321"));
		ck_assert_uint_eq(t.r->e.counts.cached_tokens, 3);
		say_first(t.r, t.p, id, 1); /* and again: nothing */
	} else if (_i == 1) {
		attempts_tick(&t.r->e, clock_us() + 500000);
		ck_assert_uint_eq(map_count(t.r->e.late_by_id), 1);
		attempts_tick(&t.r->e, clock_us() + 1000001);
		ck_assert_ptr_nonnull(strstr(logged(f), "request_done"));
		say_first(t.r, t.p, id, 1);
	}
	struct rig *r = t.r;
	/* the third time: at the router's end */
	rig_free(r);
	dup2(had, 2);
	close(had);
	char *done = strstr(logged(f), "event=request_done");
	ck_assert_ptr_nonnull(done);
	ck_assert_ptr_null(strstr(done + 1, "event=request_done"));
	fclose(f);
	log_set_level("error");
}
END_TEST

/* A complete answer waits a moment for the prefill worker's account, which says how much was
 * cached; whatever else happens ends the wait, not the answer. */
START_TEST(end_waits_for_the_account)
{
	struct three t = three(4, 0);
	rig_more(t.r, t.d1, 1, 0, 10, 2);
	rig_tokens_from(t.r, t.d1, t.r->s->id, 1, 2, 12, 2, LENGTH);
	rig_tokens_from(t.r, t.d1, t.r->s->id, 1, 2, 12, 2, LENGTH); /* again */
	expect(t.r, ATTEMPT_ENDING, "10 11 ", "");
	attempts_tick(&t.r->e, clock_us() + 1000);
	expect(t.r, ATTEMPT_ENDING, "10 11 ", "");
	if (_i == 0) {
		say_first(t.r, t.p, t.r->s->id, 1);
		ck_assert_uint_eq(t.r->s->got.times.cached_tokens, 3);
		ck_assert_uint_eq(t.r->s->got.times.prefill_us, 4321);
	} else if (_i == 1) {
		attempts_tick(&t.r->e, clock_us() + 300000);
	} else if (_i == 2) {
		rig_down(t.r, t.p);
	} else if (_i == 3) {
		rig_down(t.r, t.d1);
	} else {
		attempt_cancel(t.r->s, "the client is gone");
		if (_i == 4)
			attempts_tick(&t.r->e, clock_us() + 300000);
		expect(t.r, ATTEMPT_CANCELLED, "10 11 ", "cancel p1 #1; cancel d1 #1; cancel d2 #1; ");
		rig_free(t.r);
		return;
	}
	expect(t.r, ATTEMPT_DONE, "10 11 12 13 length", "");
	ck_assert_uint_eq(t.r->s->number, 1);
	rig_free(t.r);
}
END_TEST

/* A stop string in the held end; the owner destroys the attempt. */
START_TEST(end_that_waits_meets_a_stop_string)
{
	struct three t = three(9, 0);
	t.r->stop_at = 12;
	t.r->destroy_at_end = 1;
	rig_tokens_from(t.r, t.d1, t.r->s->id, 1, 0, 10, 4, STOP);
	attempts_tick(&t.r->e, clock_us() + 300000);
	ck_assert_ptr_null(t.r->s);
	ck_assert_str_eq(t.r->out, "10 11 12 ");
	ck_assert_int_eq(t.r->ended, 1);
	rig_free(t.r);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("router_attempt");
	TCase *c = tcase_create("attempt");
	log_init("test", NULL);
	log_set_level("error");
	tcase_add_test(c, prefill_speaks_first);
	tcase_add_test(c, decode_speaks_first);
	tcase_add_loop_test(c, prefill_speaks_when_all_is_over, 0, 3);
	tcase_add_loop_test(c, end_waits_for_the_account, 0, 6);
	tcase_add_test(c, end_that_waits_meets_a_stop_string);
	tcase_add_test(c, m7_no_attempt_index);
	tcase_add_test(c, repetition_that_differs_is_counted_and_not_shown);
	tcase_add_test(c, gap_is_another_attempt);
	tcase_add_test(c, first_token_ends_the_answer);
	tcase_add_loop_test(c, answer_of_a_single_token, 0, 2);
	tcase_add_test(c, prefill_dies_with_a_single_token);
	tcase_add_test(c, pinned_with_a_single_token);
	tcase_add_test(c, stop_string_in_the_first_token);
	tcase_add_test(c, stop_string_midway_cancels);
	tcase_add_test(c, prefill_dies_before_anybody_spoke);
	tcase_add_test(c, prefill_dies_after_its_token_before_decode_joined);
	tcase_add_test(c, prefill_dies_after_decode_joined);
	tcase_add_test(c, decode_dies_midway);
	tcase_add_test(c, s_d_not_named);
	tcase_add_test(c, candidate_that_was_not_named_dies);
	tcase_add_test(c, handed_to_an_earlier_life);
	tcase_add_test(c, handed_to_a_stranger);
	tcase_add_loop_test(c, m23_report_before_named, 0, 2);
	tcase_add_loop_test(c, m24_report_forgotten, 0, 2);
	tcase_add_test(c, tokens_of_a_stranger);
	tcase_add_test(c, failure_of_an_attempt);
	tcase_add_test(c, last_one_needs_no_handover);
	tcase_add_test(c, failure_that_no_retry_mends);
	tcase_add_test(c, failure_of_prefill_after_decode_joined_is_nothing);
	tcase_add_test(c, no_worker_at_first);
	tcase_add_test(c, longer_than_any_worker_takes);
	tcase_add_test(c, waits_for_a_worker_to_come_back);
	tcase_add_test(c, waits_only_so_long);
	tcase_add_test(c, deadline_ends_every_wait);
	tcase_add_test(c, overloaded_pauses_before_it_tries_again);
	tcase_add_loop_test(c, cancel_in_each_phase, 0, sizeof cancels / sizeof *cancels);
	tcase_add_test(c, owner_that_aborts_inside);
	tcase_add_test(c, many_on_one_worker_that_dies);
	tcase_add_test(c, worker_that_goes_on_with_what_nobody_knows);
	tcase_add_test(c, prefill_that_was_only_silent);
	tcase_add_test(c, ended_in_order_needs_no_cancel);
	tcase_add_test(c, prompt_logprobs_before_tokens);
	tcase_add_loop_test(c, held_until_the_prompt_is_told, 0, 2);
	tcase_add_test(c, end_that_nothing_undoes);
	tcase_add_test(c, first_token_with_no_end);
	tcase_add_test(c, prompt_logprobs_in_slices);
	tcase_add_test(c, prompt_logprobs_over_attempts);
	tcase_add_test(c, prompt_logprobs_lost_with_prefill);
	tcase_add_test(c, more_held_than_there_can_be);
	tcase_add_test(c, prompt_logprobs_that_are_not_all_there);
	tcase_add_test(c, more_than_was_asked_for);
	tcase_add_test(c, link_that_takes_nothing);
	tcase_add_test(c, links_that_take_nothing_for_a_while);
	suite_add_tcase(suite, c);
	SRunner *sr = srunner_create(suite);
	srunner_run_all(sr, CK_NORMAL);
	int failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? 1 : 0;
}
