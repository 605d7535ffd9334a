/* test_router_retry.c - attempts that are lost: every order of events that may happen to one at the
 * same moment, which of them count as losses and which do not.
 *
 * One fault may take several workers: a router that was stopped for a while finds that all its
 * links have restarted, one after the other. In every order of such events the attempt goes on
 * elsewhere, and its client sees every token once. */
#include "router_rig.h"

#define MAX_TOKENS 12u

struct fleet {
	struct rig *r;
	struct worker_record *p1, *p2, *d1, *d2, *d3;
	uint64_t now; /* ahead of the clock by what the test let pass */
};

static struct fleet fleet_new(void)
{
	struct fleet f = {.r = rig_new(), .now = clock_us()};
	f.p1 = rig_up(f.r, "p1", "prefill", 11);
	f.p2 = rig_up(f.r, "p2", "prefill", 12);
	f.d1 = rig_up(f.r, "d1", "decode", 21);
	f.d2 = rig_up(f.r, "d2", "decode", 22);
	f.d3 = rig_up(f.r, "d3", "decode", 23);
	rig_seq(f.r, MAX_TOKENS, 0);
	ck_assert_int_eq(attempt_start(f.r->s), 0);
	ck_assert_str_eq(f.r->log, "submit p1 #1 5 d1 d2 d3; ");
	return f;
}

static void later(struct fleet *f, uint64_t us)
{
	uint64_t now = clock_us();
	f->now = (f->now > now ? f->now : now) + us;
	attempts_tick(&f->r->e, f->now);
}

/* --- what may happen ----------------------------------------------------- */

static void anew(struct fleet *f, struct worker_record *w)
{
	char role[16];
	if (!worker_is_up(w))
		return;
	snprintf(role, sizeof role, "%s", worker_role_name(w->role));
	registry_down(&f->r->g, w, clock_us());
	attempts_worker_down(&f->r->e, w, "its link restarts", WORKER_LINK_RESTART);
	rig_up(f->r, w->name, role, w->epoch);
	attempts_worker_up(&f->r->e);
}

static void dies(struct fleet *f, struct worker_record *w)
{
	if (worker_is_up(w))
		rig_down(f->r, w);
}

static void p1_anew(struct fleet *f)
{
	anew(f, f->p1);
}

static void p2_anew(struct fleet *f)
{
	anew(f, f->p2);
}

static void d1_anew(struct fleet *f)
{
	anew(f, f->d1);
}

static void d2_anew(struct fleet *f)
{
	anew(f, f->d2);
}

static void d3_anew(struct fleet *f)
{
	anew(f, f->d3);
}

static void p1_dies(struct fleet *f)
{
	dies(f, f->p1);
}

static void d1_dies(struct fleet *f)
{
	dies(f, f->d1);
}

static void d1_restarts(struct fleet *f)
{
	if (worker_is_up(f->d1))
		rig_down(f->r, f->d1);
	rig_up(f->r, "d1", "decode", f->d1->epoch + 100);
	attempts_worker_up(&f->r->e);
}

/* What was sent in the first attempt, whatever the present one is. */
static void p1_first(struct fleet *f)
{
	if (worker_is_up(f->p1))
		rig_first(f->r, f->p1, 1, 0, 10, "d1", 21);
}

static void p1_fails(struct fleet *f)
{
	if (worker_is_up(f->p1))
		rig_fail(f->r, f->p1, 1, PDS__FAULT__FAULT_STALLED, 1);
}

static void d1_token(struct fleet *f)
{
	if (worker_is_up(f->d1))
		rig_more(f->r, f->d1, 1, 0, 10, 1);
}

static void d1_tokens(struct fleet *f)
{
	if (worker_is_up(f->d1))
		rig_more(f->r, f->d1, 1, 0, 10, 5);
}

static void d1_fails(struct fleet *f)
{
	if (worker_is_up(f->d1))
		rig_fail(f->r, f->d1, 1, PDS__FAULT__FAULT_LEASE_LOST, 1);
}

/* Whoever has the present attempt gives it back. */
static void drains(struct fleet *f)
{
	struct attempt *s = f->r->s;
	if (s->try.prefill && !s->try.decode_sent)
		rig_fail(f->r, s->try.prefill, s->number, PDS__FAULT__FAULT_DRAINING, 1);
	else if (s->try.decode)
		rig_fail(f->r, s->try.decode, s->number, PDS__FAULT__FAULT_DRAINING, 1);
}

static void tick(struct fleet *f)
{
	attempts_tick(&f->r->e, clock_us());
}

static void (*const events[])(struct fleet *) = {
	p1_anew,  p2_anew,  d1_anew,  d2_anew,   d3_anew,  p1_dies, d1_dies, d1_restarts,
	p1_first, p1_fails, d1_token, d1_tokens, d1_fails, drains,  tick,
};
#define EVENTS (sizeof events / sizeof *events)

/* --- and its end --------------------------------------------------------- */

static void waits(struct fleet *f, const char *story)
{
	struct attempt *s = f->r->s;
	for (int i = 0; i < 4 && standing(s) == WAITING; i++)
		later(f, 400000);
	ck_assert_msg(!attempt_ended(s), "%s: %s: %s", story, attempt_state_name(s->state), s->end.why);
	ck_assert_msg(standing(s) != WAITING, "%s: still waiting", story);
}

/* The workers of the present attempt do what they are asked to. */
static void serve(struct fleet *f, const char *story)
{
	struct attempt *s = f->r->s;
	if (standing(s) == SUBMITTED && s->try.n_cand)
		rig_first(f->r, s->try.prefill, s->number, s->got.n_out, 10 + s->got.n_out,
		          s->try.cand[0].name, s->try.cand[0].epoch);
	if (standing(s) == WAITING) {
		/* the one that it was handed to has a new link since: once more */
		waits(f, story);
		rig_first(f->r, s->try.prefill, s->number, s->got.n_out, 10 + s->got.n_out,
		          s->try.cand[0].name, s->try.cand[0].epoch);
	}
	uint32_t n = s->got.n_out;
	struct worker_record *w = s->try.n_cand ? s->try.decode : s->try.prefill;
	ck_assert_msg(w, "%s: nobody decodes", story);
	rig_tokens_from(f->r, w, s->id, s->number, n, 10 + n, MAX_TOKENS - n,
	                PDS__FINISH__FINISH_LENGTH);
}

static void goes_on(struct fleet *f, const char *story)
{
	struct attempt *s = f->r->s;
	waits(f, story);
	serve(f, story);
	ck_assert_msg(standing(s) == DONE, "%s: %s", story, attempt_state_name(s->state));
	ck_assert_msg(strcmp(f->r->out, "10 11 12 13 14 15 16 17 18 19 20 21 length") == 0, "%s: %s",
	              story, f->r->out);
	ck_assert_uint_eq(f->r->e.counts.mismatches, 0);
	ck_assert_int_eq(f->r->ended, 1);
	rig_free(f->r);
}

/* --- tests --------------------------------------------------------------- */

TEST_CASE("retry", .timeout_s = 120);

/* Every three of them in every order, with the same one twice or thrice: both orders of every
 * pair, from every state that one event leads to. */
TEST_LOOP(every_order_of_three, 0, EVENTS)
{
	for (unsigned b = 0; b < EVENTS; b++)
		for (unsigned c = 0; c < EVENTS; c++) {
			char story[64];
			struct fleet f = fleet_new();
			snprintf(story, sizeof story, "events %d, %u, %u", _i, b, c);
			events[_i](&f);
			events[b](&f);
			events[c](&f);
			goes_on(&f, story);
		}
}

/* All links restart in one moment, in every order, before the first token, after it, and
 * midway. */
TEST_LOOP(all_links_anew, 0, 3)
{
	void (*const begun[])(struct fleet *) = {tick, p1_first, d1_tokens};
	unsigned order[5], n = 0;
	for (unsigned code = 0; code < 5 * 5 * 5 * 5 * 5; code++) {
		unsigned seen = 0;
		for (unsigned i = 0, k = code; i < 5; i++, k /= 5)
			seen |= 1u << (order[i] = k % 5);
		if (seen != 31)
			continue;
		char story[64];
		struct fleet f = fleet_new();
		snprintf(story, sizeof story, "order %u%u%u%u%u", order[0], order[1], order[2], order[3],
		         order[4]);
		begun[_i](&f);
		for (unsigned i = 0; i < 5; i++)
			events[order[i]](&f);
		ck_assert_uint_le(f.r->s->number, 3);
		goes_on(&f, story);
		n++;
	}
	ck_assert_uint_eq(n, 120);
}

/* Workers that are restarted in turn while a long answer comes, more of them than max_attempts:
 * that is no loss. */
TEST(restarted_in_turn)
{
	struct fleet f = fleet_new();
	for (uint32_t i = 0; i < 5; i++) {
		struct attempt *s = f.r->s;
		rig_more(f.r, s->try.decode, s->number, s->got.n_out, 10 + s->got.n_out, 2);
		ck_assert_uint_eq(s->got.n_out, 2 * (i + 1));
		drains(&f);
		ck_assert_uint_eq(s->past.lost, 0);
		ck_assert_uint_eq(s->number, i + 2); /* at once */
	}
	goes_on(&f, "restarted in turn");
}

/* However often the links are lost without any progress in between: nobody has failed. */
TEST(links_anew_again_and_again)
{
	struct fleet f = fleet_new();
	for (uint32_t i = 1; i < 3 * ATTEMPTS_TIMES - 1; i++) {
		struct attempt *s = f.r->s;
		f.now = 0;
		ck_assert_uint_eq(s->number, i);
		rig_first(f.r, s->try.prefill, i, s->got.n_out, 10 + s->got.n_out, s->try.cand[0].name,
		          s->try.cand[0].epoch);
		for (unsigned k = 0; k < 5; k++)
			events[(k + i) % 5](&f);
		ck_assert_int_eq(standing(s), WAITING);
		ck_assert_uint_eq(s->past.lost, 0);
		later(&f, 50000);
		ck_assert_int_eq(standing(s), WAITING);
		later(&f, 60000);
	}
	goes_on(&f, "again and again");
}

/* The decode worker's link restarts while the prompt is computed: what it had reserved is given
 * up there, its first tokens may be lost, and whoever tells of it first, no attempt is lost. */
TEST_LOOP(anew_before_it_is_named, 0, 4)
{
	struct fleet f = fleet_new();
	struct attempt *s = f.r->s;
	f.r->e.opts.max_attempts = 1;
	anew(&f, f.d1);
	ck_assert_uint_eq(s->number, 1); /* another candidate may have it */
	switch (_i) {
	case 0:
		rig_more(f.r, f.d1, 1, 1, 11, 1); /* the token before was lost */
		break;
	case 1: rig_first(f.r, f.p1, 1, 0, 10, "d1", 21); break;
	case 2: rig_fail(f.r, f.p1, 1, PDS__FAULT__FAULT_LEASE_LOST, 1); break;
	default:
		rig_fail(f.r, f.d1, 1, PDS__FAULT__FAULT_LEASE_LOST, 1);
		ck_assert_int_eq(standing(s), SUBMITTED);
		rig_first(f.r, f.p1, 1, 0, 10, "d1", 21);
	}
	ck_assert_msg(standing(s) == WAITING, "%d: %s: %s", _i, attempt_state_name(s->state),
	              s->end.why);
	ck_assert_uint_eq(s->past.lost, 0);
	goes_on(&f, "anew before it is named");
}

/* The link of a candidate that has nothing to do with the sequence says nothing of it. */
TEST(another_one_anew)
{
	struct fleet f = fleet_new();
	struct attempt *s = f.r->s;
	anew(&f, f.d2);
	rig_first(f.r, f.p1, 1, 0, 10, "d1", 21);
	ck_assert_int_eq(standing(s), RUNNING);
	rig_more(f.r, f.d1, 1, 3, 13, 1);
	ck_assert_uint_eq(s->past.lost, 1);
	later(&f, 200000);
	goes_on(&f, "another one anew");
}

/* Losses before an attempt that came forward are no more in a row with what comes after it,
 * however that attempt ended. */
TEST_LOOP(cut_after_progress, 0, 2)
{
	struct fleet f = fleet_new();
	struct attempt *s = f.r->s;
	rig_fail(f.r, f.p1, 1, PDS__FAULT__FAULT_STALLED, 1);
	ck_assert_uint_eq(s->past.lost, 1);
	rig_more(f.r, s->try.decode, 2, 0, 10, (size_t)_i + 1);
	anew(&f, s->try.decode);
	ck_assert_uint_eq(s->past.lost, _i == 0); /* a first token alone is no progress */
	later(&f, 200000);
	ck_assert_uint_eq(s->number, 3);
	goes_on(&f, "cut after progress");
}

/* A sequence whose every attempt brings a first token and then takes its decode worker down:
 * that is no progress. */
TEST(one_that_kills)
{
	struct fleet f = fleet_new();
	struct attempt *s = f.r->s;
	for (uint32_t i = 0; i < 3; i++) {
		ck_assert_uint_eq(s->number, i + 1);
		rig_first(f.r, s->try.prefill, s->number, s->got.n_out, 10 + s->got.n_out,
		          s->try.decode->name, s->try.decode->epoch);
		rig_down(f.r, s->try.decode);
		later(&f, 500000);
	}
	ck_assert_int_eq(standing(s), FAILED);
	ck_assert_int_eq(s->end.status, 503);
	ck_assert_str_eq(s->end.why,
	                 "worker d3 is gone: killed (attempt 3, 3 lost in a row: max_attempts)");
	ck_assert_str_eq(f.r->out, "10 11 12 ");
	rig_free(f.r);
}

/* Nor does one have all workers that brings some tokens each time. */
TEST_LOOP(attempts_are_bounded, 0, 2)
{
	struct fleet f = fleet_new();
	struct attempt *s = f.r->s;
	uint32_t n = 0;
	attempt_destroy(&f.r->s);
	s = rig_seq(f.r, 200, 0);
	ck_assert_int_eq(attempt_start(s), 0);
	for (; !attempt_ended(s); n++) {
		struct worker_record *d = s->try.decode;
		rig_more(f.r, d, s->number, s->got.n_out, 10 + s->got.n_out, 2);
		if (_i == 0) {
			anew(&f, d);
		} else {
			rig_down(f.r, d);
			rig_up(f.r, d->name, "decode", d->epoch + 1);
		}
		later(&f, 500000);
	}
	ck_assert_uint_eq(n, 3 * ATTEMPTS_TIMES);
	ck_assert_int_eq(standing(s), FAILED);
	ck_assert_int_eq(s->end.status, 503);
	rig_free(f.r);
}

/* A worker that says when it has room is not asked before that, within retry_wait_ms; one that
 * has none in time for the request ends it. */
TEST_LOOP(room_at_a_time, 0, 6)
{
	static const struct {
		uint64_t hint_us, waits_us; /* 0: fails at once */
	} rows[] = {{0, 100000},          {50000, 100000}, {3000000, 3000000},
	            {30000000, 10000000}, {60000000, 0},   {UINT64_MAX, 0}};
	struct fleet f = fleet_new();
	struct attempt *s = f.r->s;
	struct msg_head head = {.req = s->id, .attempt = 1};
	Pds__Failed m = PDS__FAILED__INIT;
	m.fault = PDS__FAULT__FAULT_OVERLOADED;
	m.text = (char *)"full";
	m.retry = 1;
	m.retry_after_us = rows[_i].hint_us;
	attempts_failed(&f.r->e, f.p1, &head, &m);
	if (!rows[_i].waits_us) {
		ck_assert_int_eq(standing(s), FAILED);
		ck_assert_int_eq(s->end.status, 429);
		ck_assert_str_eq(s->end.why, "full");
		ck_assert_uint_ge(s->end.retry_after_us, 60000000);
		ck_assert_uint_le(s->end.retry_after_us, 3600000000);
		rig_free(f.r);
		return;
	}
	ck_assert_int_eq(standing(s), WAITING);
	later(&f, rows[_i].waits_us - 30000);
	ck_assert_int_eq(standing(s), WAITING);
	f.now = 0;
	later(&f, rows[_i].waits_us);
	ck_assert_int_eq(standing(s), SUBMITTED);
	ck_assert_uint_eq(s->end.retry_after_us, 0);
	goes_on(&f, "room");
}

/* retry_wait_ms 0: nobody is waited for, but a pause is made. */
TEST_LOOP(no_wait_for_workers, 0, 2)
{
	struct fleet f = fleet_new();
	struct attempt *s = f.r->s;
	f.r->e.opts.retry_wait_us = 0;
	rig_fail(f.r, f.p1, 1, PDS__FAULT__FAULT_STALLED, 1);
	ck_assert_int_eq(standing(s), SUBMITTED);
	rig_fail(f.r, s->try.prefill, 2, PDS__FAULT__FAULT_STALLED, 1);
	ck_assert_int_eq(standing(s), WAITING);
	later(&f, 100000);
	ck_assert_int_eq(standing(s), WAITING);
	if (_i == 0) {
		goes_on(&f, "no wait");
		return;
	}
	struct worker_record *all[] = {f.p1, f.p2, f.d1, f.d2, f.d3};
	for (int i = 0; i < 5; i++)
		rig_down(f.r, all[i]);
	later(&f, 400000);
	ck_assert_int_eq(standing(s), FAILED);
	ck_assert_int_eq(s->end.status, 503);
	rig_free(f.r);
}

TEST_START(quiet)
{
	log_init("test", NULL);
	log_set_level("error");
}
