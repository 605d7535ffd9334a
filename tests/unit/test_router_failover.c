/* test_router_failover.c - which worker a lost attempt counts against, how one in a crash loop is
 * chosen, and who loses its attempts although its link stands: a worker that
 * makes no progress, and one that is told to end. */
#include "router_rig.h"

#define COUNT(a) (int)(sizeof(a) / sizeof *(a))
#define STUCK_US 30000000u

/* p1 and p2, d1 and d2, and a sequence that was submitted to p1 with d1 and d2 as candidates. */
struct four {
	struct rig *r;
	struct worker_record *p1, *p2, *d1, *d2;
};

static struct four four(void)
{
	struct four f = {.r = rig_new()};
	f.p1 = rig_up(f.r, "p1", "prefill", 11);
	f.p2 = rig_up(f.r, "p2", "prefill", 12);
	f.d1 = rig_up(f.r, "d1", "decode", 21);
	f.d2 = rig_up(f.r, "d2", "decode", 22);
	rig_seq(f.r, 50, 0);
	ck_assert_int_eq(attempt_start(f.r->s), 0);
	ck_assert_str_eq(f.r->log, "submit p1 #1 5 d1 d2; ");
	f.r->log[0] = 0;
	return f;
}

static struct worker_record *named(struct four *f, const char *name)
{
	return registry_find(&f->r->g, name);
}

/* It runs something and has not got forward for so long. */
static void still(struct worker_record *w, uint64_t us)
{
	w->beat.running = 1;
	w->progress_us = clock_us() - us;
}

static void tick(struct rig *r)
{
	attempts_tick(&r->e, clock_us());
}

static void expect(struct rig *r, enum standing want, const char *log)
{
	ck_assert_str_eq(standing_name(standing(r->s)), standing_name(want));
	ck_assert_str_eq(r->log, log);
}

static int bad_of(const struct worker_record *w)
{
	int n = 0;
	for (unsigned i = 0; i < BREAKER_SLICES; i++)
		n += (int)w->breaker.slices[i].bad;
	return n;
}

/* --- whose failure ------------------------------------------------------- */

/* Who says it, how, whom it blames, and whom it counts against. The sequence decodes on d1. */
static const struct {
	const char *from, *blame, *counts;
	Pds__Fault fault;
} blames[] = {
	{"d1", "d1", "d1", PDS__FAULT__FAULT_INTERNAL},
	{"d1", "p1", "p1", PDS__FAULT__FAULT_LEASE_LOST}, /* it did not renew the lease */
	{"d1", "", NULL, PDS__FAULT__FAULT_LEASE_LOST},   /* the link between the two restarted */
	{"d1", "d2", "d2", PDS__FAULT__FAULT_INTERNAL},
	{"d1", "p2", NULL, PDS__FAULT__FAULT_INTERNAL}, /* it has no part in this attempt */
	{"d1", "nobody", NULL, PDS__FAULT__FAULT_INTERNAL},
	{"d1", "", NULL, PDS__FAULT__FAULT_STALLED}, /* a messager's, say */
};

TEST_CASE("failover", .timeout_s = 120);

TEST_LOOP(it_counts_against_the_blamed, 0, COUNT(blames))
{
	struct four f = four();
	rig_first(f.r, f.p1, 1, 0, 10, "d1", 21);
	rig_more(f.r, f.d1, 1, 0, 10, 3);
	rig_fail_by(f.r, named(&f, blames[_i].from), 1, blames[_i].fault, 1, blames[_i].blame);
	ck_assert_uint_eq(f.r->s->number, 2);
	struct worker_record *all[] = {f.p1, f.p2, f.d1, f.d2};
	for (int i = 0; i < 4; i++)
		ck_assert_msg(bad_of(all[i]) ==
		                  (blames[_i].counts && strcmp(all[i]->name, blames[_i].counts) == 0),
		              "%d: %s has %d", _i, all[i]->name, bad_of(all[i]));
	rig_free(f.r);
}

/* A process that ends, and one that falls silent, is a failure for each attempt that was there;
 * a goodbye and a link restart are none. */
TEST_LOOP(a_lost_worker_counts, 0, 3)
{
	static const enum worker_end how[] = {WORKER_LOST, WORKER_LINK_RESTART, WORKER_GOODBYE};
	struct four f = four();
	rig_more(f.r, f.d1, 1, 0, 10, 3);
	registry_down(&f.r->g, f.d1, clock_us());
	attempts_worker_down(&f.r->e, f.d1, "its process ended", how[_i]);
	ck_assert_int_eq(bad_of(f.d1), _i == 0);
	ck_assert_uint_eq(f.r->s->past.lost, _i == 0);
	ck_assert_uint_eq(f.r->s->past.moved, _i == 2);
	ck_assert_int_eq(f.r->s->state, _i == 1 ? WAITING : SUBMITTED);
	rig_free(f.r);
}

/* --- crash loops --------------------------------------------------------- */

/* How often d1 is the first choice of 20 requests that are answered. */
static int chosen(struct rig *r)
{
	int n = 0;
	for (int i = 0; i < 20; i++) {
		rig_seq(r, 2, 0);
		ck_assert_int_eq(attempt_start(r->s), 0);
		struct worker_record *d = r->s->try.decode;
		n += strcmp(d->name, "d1") == 0;
		rig_tokens_from(r, d, r->s->id, 1, 0, 10, 1, PDS__FINISH__FINISH_LENGTH);
		attempt_destroy(&r->s);
	}
	return n;
}

static void life(struct rig *r, const char *name, uint64_t epoch, int in_order)
{
	struct worker_record *w = registry_find(&r->g, name);
	registry_down(&r->g, w, clock_us());
	if (in_order)
		registry_ended_in_order(w);
	rig_up(r, name, "decode", epoch);
}

TEST(crash_loop)
{
	struct rig *r = rig_new();
	rig_up(r, "p1", "prefill", 11);
	struct worker_record *d1 = rig_up(r, "d1", "decode", 21), *d2;
	d2 = rig_up(r, "d2", "decode", 22);
	ck_assert_int_ge(chosen(r), 9);
	life(r, "d1", 31, 0); /* one crash: on trial, which succeeds at once */
	ck_assert_int_eq(breaker_state(&d1->breaker, clock_us()), BREAKER_HALF_OPEN);
	ck_assert_int_ge(chosen(r), 9);
	uint64_t was = 0;
	/* one after the other, no request in between: nothing for longer and longer */
	for (uint64_t i = 0; i < 10; i++) {
		life(r, "d1", 41 + i, 0);
		ck_assert_int_eq(breaker_state(&d1->breaker, clock_us()), BREAKER_OPEN);
		uint64_t for_us = d1->breaker.until_us - clock_us();
		ck_assert_uint_ge(for_us + 1000000, was);
		ck_assert_uint_le(for_us, BREAKER_OPEN_TIMES_MAX * r->g.breaker.open_us);
		was = for_us;
		ck_assert_int_eq(chosen(r), 0);
	}
	ck_assert_uint_gt(was, 15 * r->g.breaker.open_us);
	life(r, "d1", 99, 1); /* whoever restarts it in order has mended it */
	ck_assert_int_ge(chosen(r), 9);
	life(r, "d2", 98, 1);
	ck_assert_int_eq(breaker_state(&d2->breaker, clock_us()), BREAKER_CLOSED);
	rig_free(r);
}

/* The only one there is gets the requests, whatever it did. */
TEST(crash_loop_of_the_only_one)
{
	struct rig *r = rig_new();
	rig_up(r, "p1", "prefill", 11);
	rig_up(r, "d1", "decode", 21);
	for (uint64_t i = 0; i < 5; i++)
		life(r, "d1", 41 + i, 0);
	ck_assert_int_eq(chosen(r), 20);
	rig_free(r);
}

/* --- no progress --------------------------------------------------------- */

static void decoding(struct four *f)
{
	rig_first(f->r, f->p1, 1, 0, 10, "d1", 21);
	rig_more(f->r, f->d1, 1, 0, 10, 3);
}

TEST(a_stuck_decode_worker)
{
	struct four f = four();
	decoding(&f);
	still(f.d1, STUCK_US - 1000000);
	tick(f.r);
	expect(f.r, RUNNING, "");
	still(f.d1, STUCK_US + 1000);
	tick(f.r);
	/* with the tokens so far; d1 is no candidate */
	expect(f.r, SUBMITTED, "cancel p1 #1; cancel d1 #1; cancel d2 #1; submit p2 #2 8 d2; ");
	ck_assert_int_eq(bad_of(f.d1), 1);
	rig_more(f.r, f.d1, 1, 3, 13, 2); /* what it says when it goes on after all */
	rig_tokens_from(f.r, f.d2, f.r->s->id, 2, 3, 13, 2, PDS__FINISH__FINISH_STOP);
	rig_first(f.r, f.p2, 2, 3, 13, "d2", 22);
	ck_assert_int_eq(standing(f.r->s), DONE);
	ck_assert_str_eq(f.r->out, "10 11 12 13 14 stop");
	rig_free(f.r);
}

/* Who computes the prompt is left before decode has spoken, and not after that. */
TEST_LOOP(a_stuck_prefill_worker, 0, 3)
{
	struct four f = four();
	if (_i == 1)
		rig_first(f.r, f.p1, 1, 0, 10, "d1", 21);
	if (_i == 2)
		decoding(&f);
	still(f.p1, STUCK_US + 1000);
	tick(f.r);
	if (_i == 2)
		expect(f.r, RUNNING, "");
	else
		expect(f.r, SUBMITTED,
		       _i ? "cancel p1 #1; cancel d1 #1; cancel d2 #1; submit p2 #2 6 d2 d1; "
		          : "cancel p1 #1; cancel d1 #1; cancel d2 #1; submit p2 #2 5 d2 d1; ");
	rig_free(f.r);
}

/* Before it is known who decodes the prefill worker may choose; a candidate that stands still is
 * its business. */
TEST(a_stuck_candidate)
{
	struct four f = four();
	still(f.d1, STUCK_US + 1000);
	tick(f.r);
	expect(f.r, SUBMITTED, "");
	rig_first(f.r, f.p1, 1, 0, 10, "d1", 21);
	tick(f.r);
	expect(f.r, SUBMITTED, "cancel p1 #1; cancel d1 #1; cancel d2 #1; submit p2 #2 6 d2; ");
	rig_free(f.r);
}

/* Nobody is there who is well: it stays where it is, and goes as soon as there is somebody. */
TEST_LOOP(nowhere_to_go, 0, 3)
{
	struct four f = four();
	decoding(&f);
	still(f.d1, STUCK_US + 1000);
	if (_i == 0) {
		rig_down(f.r, f.d2);
	} else if (_i == 1) {
		still(f.d2, STUCK_US + 1000);
	} else {
		f.d2->breaker.open = 1;
		f.d2->breaker.until_us = clock_us() + 60000000;
	}
	for (int i = 0; i < 5; i++)
		tick(f.r);
	expect(f.r, RUNNING, "");
	ck_assert_uint_eq(f.r->s->past.lost, 0);
	rig_up(f.r, "d3", "decode", 23);
	tick(f.r);
	ck_assert_uint_eq(f.r->s->number, 2);
	ck_assert_str_eq(f.r->s->try.cand[0].name, "d3");
	rig_free(f.r);
}

/* One that does both phases alone; and one that got the whole sequence as no prefill worker was
 * there. */
TEST_LOOP(a_stuck_lone_worker, 0, 2)
{
	struct rig *r = rig_new();
	struct worker_record *m = rig_up(r, "m1", _i ? "decode" : "mixed", 31);
	rig_seq(r, 20, 0);
	ck_assert_int_eq(attempt_start(r->s), 0);
	rig_more(r, m, 1, 0, 10, 2);
	still(m, STUCK_US + 1000);
	tick(r);
	expect(r, RUNNING, "submit m1 #1 5; ");
	rig_up(r, "m2", "mixed", 32);
	tick(r);
	expect(r, SUBMITTED, "submit m1 #1 5; cancel m1 #1; submit m2 #2 7; ");
	rig_free(r);
}

/* Many at once, whose owners end them and each other under way. */
TEST(all_of_a_stuck_worker)
{
	struct rig *r = rig_new();
	struct worker_record *m = rig_up(r, "m1", "mixed", 31);
	struct attempt *s[50];
	for (int i = 0; i < 50; i++) {
		s[i] = rig_seq(r, 20, 0);
		ck_assert_int_eq(attempt_start(s[i]), 0);
	}
	rig_up(r, "m2", "mixed", 32);
	still(m, STUCK_US + 1000);
	tick(r);
	ck_assert_uint_eq(m->requests, 0);
	for (int i = 0; i < 50; i++) {
		ck_assert_uint_eq(s[i]->number, 2);
		ck_assert_str_eq(s[i]->try.prefill->name, "m2");
		r->s = s[i];
		attempt_destroy(&r->s);
	}
	ck_assert_int_eq(breaker_state(&m->breaker, clock_us()), BREAKER_OPEN);
	rig_free(r);
}

/* More than one tick looks at, of which nobody else may take the first ones: the rest is not
 * forgotten, and no tick looks at all. */
TEST(many_of_a_stuck_worker)
{
	enum { LONG_ONES = 300, SHORT_ONES = 10, MANY = LONG_ONES + SHORT_ONES };
	struct rig *r = rig_new();
	struct worker_record *m = rig_up(r, "m1", "mixed", 31);
	static struct attempt *s[MANY];
	for (int i = 0; i < MANY; i++) {
		s[i] = rig_seq(r, i < LONG_ONES ? 2000 : 20, 0);
		ck_assert_int_eq(attempt_start(s[i]), 0);
		rig_first(r, m, 1, 0, 10, "", 0); /* else the next ones would wait for that */
	}
	rig_up(r, "m2", "mixed", 32)->context_tokens = 100;
	still(m, STUCK_US + 1000);
	for (int i = 0; i < 2; i++) {
		ck_assert_uint_eq(m->requests, MANY);
		tick(r);
	}
	for (int i = 0; i < 2; i++)
		tick(r);
	for (int i = 0; i < MANY; i++) {
		ck_assert_uint_eq(s[i]->number, i < LONG_ONES ? 1 : 2);
		r->s = s[i];
		attempt_destroy(&r->s);
	}
	rig_free(r);
}

/* --- told to end --------------------------------------------------------- */

static void ends(struct worker_record *w)
{
	w->beat.draining = w->beat.ending = 1;
}

TEST_LOOP(a_decode_worker_ends, 0, 2)
{
	struct four f = four();
	if (_i == 0)
		decoding(&f);
	else
		rig_first(f.r, f.p1, 1, 0, 10, "d1", 21);
	/* its role is switched: what runs goes on to its end */
	f.d1->beat.draining = 1;
	tick(f.r);
	expect(f.r, RUNNING, "");
	ends(f.d1);
	tick(f.r);
	expect(f.r, SUBMITTED,
	       _i ? "cancel p1 #1; cancel d1 #1; cancel d2 #1; submit p2 #2 6 d2; "
	          : "cancel p1 #1; cancel d1 #1; cancel d2 #1; submit p2 #2 8 d2; ");
	ck_assert_int_eq(bad_of(f.d1), 0);
	ck_assert_uint_eq(f.r->s->past.lost, 0);
	rig_free(f.r);
}

/* The other has no free slot, or no free blocks: the stream is better off where it runs for as
 * long as that is allowed. From one that is stuck it goes all the same. */
TEST_LOOP(the_other_is_full, 0, 4)
{
	struct four f = four();
	int stuck = _i >= 2;
	decoding(&f);
	if (_i % 2) {
		f.d2->max_sequences = 4;
		f.d2->other_sequences = 4;
	} else {
		f.d2->blocks = 100;
		f.d2->block_tokens = 4;
		f.d2->has_heartbeat = 1;
		f.d2->beat.blocks_free = 3;
		f.d2->promised_blocks = 1;
	}
	if (stuck)
		still(f.d1, STUCK_US + 1000);
	else
		ends(f.d1);
	tick(f.r);
	if (!stuck) {
		expect(f.r, RUNNING, "");
		f.d2->other_sequences = 3;
		f.d2->beat.blocks_free = 4;
		tick(f.r);
	}
	expect(f.r, SUBMITTED, "cancel p1 #1; cancel d1 #1; cancel d2 #1; submit p2 #2 8 d2; ");
	rig_free(f.r);
}

/* It is the only one: its answer goes on there. What it gives back at last is no loss. */
TEST(the_only_decode_worker_ends)
{
	struct four f = four();
	decoding(&f);
	rig_down(f.r, f.d2);
	ends(f.d1);
	tick(f.r);
	rig_more(f.r, f.d1, 1, 3, 13, 2);
	expect(f.r, RUNNING, "");
	rig_fail(f.r, f.d1, 1, PDS__FAULT__FAULT_DRAINING, 1);
	ck_assert_int_eq(standing(f.r->s), WAITING);
	ck_assert_uint_eq(f.r->s->past.lost, 0);
	registry_down(&f.r->g, f.d1, clock_us());
	registry_ended_in_order(f.d1);
	attempts_worker_down(&f.r->e, f.d1, "it said goodbye", WORKER_GOODBYE);
	f.d1 = rig_up(f.r, "d1", "decode", 31);
	attempts_worker_up(&f.r->e);
	ck_assert_int_eq(standing(f.r->s), SUBMITTED);
	rig_tokens_from(f.r, f.d1, f.r->s->id, 2, 5, 15, 1, PDS__FINISH__FINISH_STOP);
	ck_assert_str_eq(f.r->out, "10 11 12 13 14 15 stop");
	rig_free(f.r);
}

/* How a hand-over may fail; those of a peer that has ended come first. */
static const Pds__Fault handover_faults[] = {PDS__FAULT__FAULT_PEER_LOST,
                                             PDS__FAULT__FAULT_LEASE_LOST,
                                             PDS__FAULT__FAULT_STALLED, PDS__FAULT__FAULT_DRAINING};

static void said_goodbye(struct four *f, struct worker_record *w)
{
	registry_down(&f->r->g, w, clock_us());
	registry_ended_in_order(w);
	attempts_worker_down(&f->r->e, w, "it said goodbye", WORKER_GOODBYE);
}

/* It held the lease of a prompt that is being computed. However that comes to be known, it is no
 * loss, and the prefill worker, which has the prompt's KV, may be taken again. Where it has told
 * nothing, the fault must say that it was its end. */
TEST_LOOP(a_decode_worker_ends_with_a_lease, 0, 2 * (COUNT(handover_faults) + 2))
{
	struct four f = four();
	int told = _i % 2, how = _i / 2;
	if (told)
		rig_fail(f.r, f.d1, 1, PDS__FAULT__FAULT_DRAINING, 1);
	if (!told || how == COUNT(handover_faults) + 1)
		said_goodbye(&f, f.d1);
	expect(f.r, SUBMITTED, "");
	if (how < COUNT(handover_faults))
		rig_fail(f.r, f.p1, 1, handover_faults[how], 1);
	else
		rig_first(f.r, f.p1, 1, 0, 10, "d1", 21);
	int is_known = told || how < 2 || how >= COUNT(handover_faults);
	ck_assert_int_eq(standing(f.r->s), SUBMITTED);
	ck_assert_uint_eq(f.r->s->past.lost, !is_known && how == 2);
	ck_assert_uint_eq(f.r->s->number, 2);
	ck_assert_str_eq(f.r->s->past.avoid, is_known ? "d1" : "p1");
	rig_free(f.r);
}

/* The same if the prefill worker has heard of it first: it says DRAINING then, and who that is. */
TEST(a_decode_worker_ends_with_a_lease_and_tells_later)
{
	struct four f = four();
	rig_fail_by(f.r, f.p1, 1, PDS__FAULT__FAULT_DRAINING, 1, "d1");
	rig_fail(f.r, f.d1, 1, PDS__FAULT__FAULT_DRAINING, 1);
	said_goodbye(&f, f.d1);
	ck_assert_int_eq(standing(f.r->s), SUBMITTED);
	ck_assert_str_eq(f.r->s->past.avoid, "d1");
	ck_assert_uint_eq(f.r->s->past.lost, 0);
	ck_assert_uint_eq(f.r->s->number, 2);
	ck_assert_uint_eq(bad_of(f.p1) + bad_of(f.d1), 0);
	rig_free(f.r);
}

/* What the prefill worker itself is to blame for, or could not help with another one, is. */
TEST_LOOP(a_decode_worker_ends_beside_another_failure, 0, 2)
{
	struct four f = four();
	rig_fail(f.r, f.d1, 1, PDS__FAULT__FAULT_DRAINING, 1);
	rig_fail_by(f.r, f.p1, 1, _i ? PDS__FAULT__FAULT_INTERNAL : PDS__FAULT__FAULT_STALLED, 1,
	            _i ? "" : "p1");
	ck_assert_uint_eq(f.r->s->past.lost, 1);
	ck_assert_str_eq(f.r->s->past.avoid, "p1");
	rig_free(f.r);
}

/* A prefill worker that ends computes what it has begun, or gives it back itself. */
TEST(a_prefill_worker_ends)
{
	struct four f = four();
	ends(f.p1);
	tick(f.r);
	expect(f.r, SUBMITTED, "");
	rig_fail(f.r, f.p1, 1, PDS__FAULT__FAULT_DRAINING, 1);
	expect(f.r, SUBMITTED, "cancel p1 #1; cancel d1 #1; cancel d2 #1; submit p2 #2 5 d2 d1; ");
	ck_assert_uint_eq(f.r->s->past.lost, 0);
	rig_free(f.r);
}

/* However many workers are restarted in turn: no loss; but one that gives back again and again
 * is asked after a pause, and not for ever. */
TEST(moves_are_bounded)
{
	struct rig *r = rig_new();
	struct worker_record *m = rig_up(r, "m1", "mixed", 31);
	rig_seq(r, 20, 0);
	ck_assert_int_eq(attempt_start(r->s), 0);
	uint64_t now = clock_us();
	for (unsigned i = 0; i < 2 * ATTEMPT_MOVES_MAX && !attempt_ended(r->s); i++) {
		rig_fail(r, m, r->s->number, PDS__FAULT__FAULT_DRAINING, 1);
		if (i)
			ck_assert(attempt_ended(r->s) || standing(r->s) == WAITING);
		attempts_tick(&r->e, now += 500000);
	}
	ck_assert_int_eq(standing(r->s), FAILED);
	ck_assert_uint_eq(r->s->past.moved, ATTEMPT_MOVES_MAX);
	ck_assert_uint_eq(r->s->number, ATTEMPT_MOVES_MAX + 3);
	rig_free(r);
}

TEST_START(quiet)
{
	log_init("test", NULL);
	log_set_level("error");
}
