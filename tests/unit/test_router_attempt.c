/* test_router_attempt.c - what an attempt at the router gives its client: first token from either
 * side, repetitions, stops, log-probabilities of the prompt, the end. Each test is a story of
 * messages, then what was sent to workers, what the client saw, and how it ended. Attempts that are
 * lost, fail, wait or are cancelled: test_router_attempt_lost.c. */
#include "attempt_rig.h"
#include "util/map.h"

#include <unistd.h>

/* --- tokens -------------------------------------------------------------- */

TEST(prefill_speaks_first)
{
	struct three t = three(4, 0);
	rig_first(t.r, t.p, 1, 0, 10, "d2", 22);
	expect(t.r, RUNNING, "10 ", "");
	rig_more(t.r, t.d2, 1, 0, 10, 1); /* its repetition */
	expect(t.r, RUNNING, "10 ", "");
	rig_more(t.r, t.d2, 1, 1, 11, 2);
	rig_tokens_from(t.r, t.d2, t.r->s->id, 1, 3, 13, 1, LENGTH);
	expect(t.r, DONE, "10 11 12 13 length", "");
	ck_assert_uint_eq(t.r->e.counts.duplicates, 1);
	ck_assert_uint_eq(t.r->e.counts.mismatches, 0);
	rig_free(t.r);
}

TEST(decode_speaks_first)
{
	struct three t = three(4, 0);
	rig_more(t.r, t.d1, 1, 0, 10, 2);
	expect(t.r, RUNNING, "10 11 ", "");
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	expect(t.r, RUNNING, "10 11 ", "");
	rig_tokens_from(t.r, t.d1, t.r->s->id, 1, 2, 12, 1, STOP);
	expect(t.r, DONE, "10 11 12 stop", "");
	rig_free(t.r);
}

TEST(m7_no_attempt_index)
{
	struct three t = three(16, 0);
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	rig_more(t.r, t.d1, 1, 0, 10, 3);
	rig_more(t.r, t.d1, 1, 0, 10, 3); /* all of it again */
	rig_more(t.r, t.d1, 1, 1, 11, 4); /* two old, two new */
	expect(t.r, RUNNING, "10 11 12 13 14 ", "");
	rig_tokens_from(t.r, t.d1, t.r->s->id, 1, 3, 13, 2, STOP); /* only the end is new */
	expect(t.r, DONE, "10 11 12 13 14 stop", "");
	rig_free(t.r);
}

TEST(repetition_that_differs_is_counted_and_not_shown)
{
	struct three t = three(16, 0);
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	rig_more(t.r, t.d1, 1, 0, 99, 1);
	expect(t.r, RUNNING, "10 ", "");
	ck_assert_uint_eq(t.r->e.counts.mismatches, 1);
	rig_free(t.r);
}

TEST(gap_is_another_attempt)
{
	struct three t = three(16, 0);
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	rig_more(t.r, t.d1, 1, 2, 12, 1);
	expect(t.r, SUBMITTED, "10 ",
	       "cancel p1 #1; cancel d1 #1; cancel d2 #1; submit p1 #2 6 d2 d1; ");
	rig_free(t.r);
}

TEST(more_than_was_asked_for)
{
	struct three t = three(3, 0);
	rig_more(t.r, t.d1, 1, 0, 10, 5);
	expect(t.r, DONE, "10 11 12 length", "");
	rig_free(t.r);
}

/* The prompt is the prefill worker's load until it is computed; the context is that of the worker
 * that decodes, and grows with it. */
TEST(load_of_an_attempt)
{
	struct three t = three(4, 0);
	struct reqid id = t.r->s->id;
	ck_assert_uint_eq(t.p->tokens_in_flight, 5);
	ck_assert_uint_eq(t.p->backlog_tokens, 5);
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	ck_assert_uint_eq(t.p->tokens_in_flight, 0);
	ck_assert_uint_eq(t.p->backlog_tokens, 0);
	ck_assert_uint_eq(t.d1->tokens_in_flight, 6);
	rig_more(t.r, t.d1, 1, 1, 11, 2);
	ck_assert_uint_eq(t.d1->tokens_in_flight, 8);
	rig_tokens_from(t.r, t.d1, id, 1, 3, 13, 1, LENGTH);
	expect(t.r, DONE, "10 11 12 13 length", "");
	ck_assert_uint_eq(t.p->tokens_in_flight + t.d1->tokens_in_flight, 0);
	rig_free(t.r);
}

TEST(load_of_an_attempt_at_one_worker)
{
	struct rig *r = rig_new();
	struct worker_record *d = rig_up(r, "d1", "decode", 21);
	rig_seq(r, 8, 0);
	ck_assert_int_eq(attempt_start(r->s), 0);
	ck_assert_str_eq(r->log, "submit d1 #1 5; ");
	ck_assert_uint_eq(d->tokens_in_flight, 5);
	rig_first(r, d, 1, 0, 10, "", 0);
	ck_assert_uint_eq(d->tokens_in_flight, 6);
	ck_assert_uint_eq(d->backlog_tokens, 0);
	rig_more(r, d, 1, 1, 11, 2);
	ck_assert_uint_eq(d->tokens_in_flight, 8);
	attempt_cancel(r->s, "the client is gone");
	ck_assert_uint_eq(d->tokens_in_flight, 0);
	rig_free(r);
}

/* --- the last token, stops ----------------------------------------------- */

TEST(first_token_ends_the_answer)
{
	struct three t = three(8, 0);
	rig_first_full(t.r, t.p, t.r->s->id, 1, 0, 10, "", 0, LENGTH, 0);
	expect(t.r, DONE, "10 length", "");
	rig_free(t.r);
}

/* No decode worker is needed, nor asked if there is one. */
TEST_LOOP(answer_of_a_single_token, 0, 2)
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
	expect(r, DONE, "10 length", "");
	rig_free(r);
}

/* Whoever pins a decode worker wants the hand-over. */
TEST(pinned_with_a_single_token)
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

TEST(stop_string_in_the_first_token)
{
	struct three t = three(8, 0);
	t.r->stop_at = 10;
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	expect(t.r, DONE, "10 ", "cancel p1 #1; cancel d1 #1; cancel d2 #1; ");
	ck_assert_int_eq(t.r->s->end.finish, ANSWER_FINISH_STOP);
	rig_free(t.r);
}

TEST(stop_string_midway_cancels)
{
	struct three t = three(8, 0);
	t.r->stop_at = 12;
	rig_first(t.r, t.p, 1, 0, 10, "d1", 21);
	rig_more(t.r, t.d1, 1, 0, 10, 5);
	expect(t.r, DONE, "10 11 12 ", "cancel p1 #1; cancel d1 #1; cancel d2 #1; ");
	rig_more(t.r, t.d1, 1, 5, 15, 1); /* on its way when the cancel was sent */
	expect(t.r, DONE, "10 11 12 ", "cancel p1 #1; cancel d1 #1; cancel d2 #1; ");
	rig_free(t.r);
}

TEST(ended_in_order_needs_no_cancel)
{
	struct three t = three(2, 0);
	struct reqid id = t.r->s->id;
	rig_more(t.r, t.d1, 1, 0, 10, 1);
	rig_tokens_from(t.r, t.d1, id, 1, 1, 11, 1, LENGTH);
	rig_first_full(t.r, t.p, id, 1, 0, 10, "d1", 21, NONE, 0); /* late */
	expect(t.r, DONE, "10 11 length", "");
	rig_free(t.r);
}

/* Nothing of the prefill worker ends what the decode worker has begun, and an end that is none is
 * not taken for one. */
TEST(end_that_nothing_undoes)
{
	struct three t = three(8, 0);
	struct reqid id = t.r->s->id;
	rig_tokens_from(t.r, t.d1, id, 1, 0, 10, 2, (Pds__Finish)77);
	expect(t.r, RUNNING, "10 11 ", "");
	rig_tokens_from(t.r, t.d1, id, 1, 0, 10, 1, STOP); /* before tokens that are here */
	expect(t.r, RUNNING, "10 11 ", "");
	rig_told(t.r, t.p, id, 1, 1, 1);
	rig_fail(t.r, t.p, 1, PDS__FAULT__FAULT_STALLED, 1);
	expect(t.r, RUNNING, "10 11 ", "");
	rig_tokens_from(t.r, t.d1, id, 1, 2, 12, 1, STOP);
	rig_first_full(t.r, t.p, id, 1, 0, 10, "d1", 21, NONE, 0);
	rig_fail(t.r, t.d1, 1, PDS__FAULT__FAULT_LEASE_LOST, 1);
	expect(t.r, DONE, "10 11 12 stop", "");
	rig_free(t.r);
}

/* A first token with an end that is none: the decode worker that it names counts. */
TEST(first_token_with_no_end)
{
	struct three t = three(8, 0);
	rig_first_full(t.r, t.p, t.r->s->id, 1, 0, 10, "d2", 22, (Pds__Finish)77, 0);
	expect(t.r, RUNNING, "10 ", "");
	rig_tokens_from(t.r, t.d2, t.r->s->id, 1, 0, 10, 2, STOP);
	expect(t.r, DONE, "10 11 stop", "");
	rig_free(t.r);
}

/* --- log-probabilities of the prompt ------------------------------------- */

TEST(prompt_logprobs_before_tokens)
{
	struct three t = three(8, 1);
	rig_more(t.r, t.d1, 1, 0, 10, 2); /* decode is faster: held */
	rig_more(t.r, t.d1, 1, 2, 12, 1);
	expect(t.r, RUNNING, "", "");
	rig_first_full(t.r, t.p, t.r->s->id, 1, 0, 10, "d1", 21, NONE, 4);
	ck_assert_int_eq(t.r->n_prompt, 4);
	expect(t.r, RUNNING, "10 11 12 ", "");
	rig_free(t.r);
}

/* The last log-probabilities release what is held, be it a whole answer. */
TEST_LOOP(held_until_the_prompt_rows_complete, 0, 2)
{
	struct three t = three(8, 1);
	struct reqid id = t.r->s->id;
	rig_more(t.r, t.d1, 1, 0, 10, 2);
	if (_i)
		rig_tokens_from(t.r, t.d1, id, 1, 2, 12, 1, STOP);
	rig_more(t.r, t.d2, 1, 0, 10, 1); /* not the worker that decodes */
	expect(t.r, RUNNING, "", "");
	rig_told(t.r, t.p, id, 1, 1, 3);
	expect(t.r, RUNNING, "", "");
	rig_told(t.r, t.p, id, 1, 4, 1);
	if (!_i) {
		expect(t.r, RUNNING, "10 11 ", "");
		rig_tokens_from(t.r, t.d1, id, 1, 2, 12, 1, STOP);
	}
	expect(t.r, DONE, "10 11 12 stop", "");
	rig_free(t.r);
}

/* They come in slices; what was there already is passed over. */
TEST(prompt_logprobs_in_slices)
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
	expect(t.r, RUNNING, "10 ", "cancel p1 #2; ");
	rig_told(t.r, t.p, id, 1, 4, 1); /* late */
	ck_assert_int_eq(t.r->n_prompt, 4);
	rig_free(t.r);
}

/* A new attempt tells them from the beginning: what the first one told is kept, and when it had
 * told them all they are not asked for again. */
TEST(prompt_logprobs_over_attempts)
{
	struct three t = three(8, 1);
	struct worker_record *p2 = rig_up(t.r, "p2", "prefill", 12);
	rig_told(t.r, t.p, t.r->s->id, 1, 1, 3);
	rig_fail(t.r, t.p, 1, PDS__FAULT__FAULT_STALLED, 1);
	ck_assert_uint_eq(t.r->s->got.prompt_rows, 4);
	ck_assert_int_eq(t.r->asks_prompt, 1);
	rig_told(t.r, p2, t.r->s->id, 2, 1, 4);
	ck_assert_int_eq(t.r->n_prompt, 4);
	rig_fail(t.r, p2, 2, PDS__FAULT__FAULT_DRAINING, 1);
	attempts_tick(&t.r->e, clock_us() + 1000000);
	ck_assert_uint_eq(t.r->s->number, 3);
	ck_assert_int_eq(t.r->asks_prompt, 0);
	ck_assert_uint_eq(t.r->s->got.prompt_rows, 5);
	rig_first(t.r, t.r->s->try.prefill, 3, 0, 10, "d2", 22);
	ck_assert_str_eq(t.r->out, "10 ");
	rig_free(t.r);
}

TEST(prompt_logprobs_lost_with_prefill)
{
	struct three t = three(8, 1);
	rig_up(t.r, "p2", "prefill", 12);
	rig_more(t.r, t.d1, 1, 0, 10, 2);
	rig_down(t.r, t.p); /* decode has joined, but they are lost */
	expect(t.r, SUBMITTED, "", "cancel d1 #1; cancel d2 #1; submit p2 #2 5 d2 d1; ");
	rig_first_full(t.r, registry_find(&t.r->g, "p2"), t.r->s->id, 2, 0, 10, "d2", 22, NONE, 4);
	expect(t.r, RUNNING, "10 ", "cancel d1 #1; cancel d2 #1; submit p2 #2 5 d2 d1; ");
	rig_free(t.r);
}

/* A decode worker that talks on while its tokens wait for the prompt's log-probabilities fills
 * no memory: its attempt is lost. */
TEST(more_held_than_there_can_be)
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

/* A gap, too many, lists that do not fit each other, or a first token before they are complete:
 * the attempt is lost, the next one may do better. */
TEST(prompt_logprobs_that_are_not_all_there)
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

/* --- timings ------------------------------------------------------------- */

static void say_first(struct rig *r, struct worker_record *w, struct reqid id, Pds__Timing *timing)
{
	Pds__Token t = PDS__TOKEN__INIT;
	Pds__FirstToken m = PDS__FIRST_TOKEN__INIT;
	struct msg_head head = {.req = id, .attempt = 1};
	t.id = 10;
	m.token = &t;
	m.decode = (char *)"d1";
	m.decode_epoch = 21;
	m.timing = timing;
	attempts_first_token(&r->e, w, &head, &m);
}

/* Token 10, with both timings. */
static void say_joined(struct rig *r, struct worker_record *w, Pds__Timing *own,
                       Pds__Timing *prompt)
{
	Pds__Token t = PDS__TOKEN__INIT, *tp = &t;
	Pds__SequenceTokens s = PDS__SEQUENCE_TOKENS__INIT, *sp = &s;
	Pds__Tokens m = PDS__TOKENS__INIT;
	t.id = 10;
	s.request_hi = r->s->id.hi;
	s.request_lo = r->s->id.lo;
	s.attempt = 1;
	s.tokens = &tp;
	s.n_tokens = 1;
	s.timing = own;
	s.prompt = prompt;
	m.sequences = &sp;
	m.n_sequences = 1;
	attempts_tokens(&r->e, w, &m);
}

/* The prefill worker's timing comes with its first token, and by way of the decode worker:
 * whichever is first is enough, and neither undoes what the other told. */
TEST_LOOP(timing_by_either_way, 0, 4)
{
	struct three t = three(3, 0);
	struct reqid id = t.r->s->id;
	Pds__Timing prompt = PDS__TIMING__INIT, own = PDS__TIMING__INIT;
	prompt.prefill_us = 4321;
	prompt.cached_tokens = 3;
	own.transfer_us = 77;
	own.cached_tokens = own.prefill_us = 99; /* the decode worker's own affair */
	if (_i == 1 || _i == 2)
		say_first(t.r, t.p, id, &prompt);
	say_joined(t.r, t.d1, &own, _i == 2 ? NULL : &prompt);
	if (_i == 3)
		say_first(t.r, t.p, id, &prompt);
	ck_assert_uint_eq(t.r->s->got.times.cached_tokens, 3);
	ck_assert_uint_eq(t.r->s->got.times.prefill_us, 4321);
	ck_assert_uint_eq(t.r->s->got.times.transfer_us, 77);
	rig_tokens_from(t.r, t.d1, id, 1, 1, 11, 2, LENGTH);
	expect(t.r, DONE, "10 11 12 length", "");
	ck_assert_uint_eq(t.r->e.counts.cached_tokens, 3);
	if (_i == 0)
		say_first(t.r, t.p, id, &prompt); /* when all is over: nothing, not even a cancel */
	expect(t.r, DONE, "10 11 12 length", "");
	rig_free(t.r);
}

TEST_START(quiet)
{
	log_init("test", NULL);
	log_set_level("error");
}
