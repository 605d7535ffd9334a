/* test_router_place.c - what binds all policies, pins, what a sequence weighs at its workers,
 * and what a router says of when to come again. */
#include "tests/unit/registry_defaults.h"
#include "place_rig.h"

/* --- what binds all ------------------------------------------------------ */

/* Whatever the policy and the state of the workers: a pair is alike, all are up, take new work and
 * are long enough; stuck, failed and broken ones come after the others. */
TEST_LOOP(constraints_under_each_policy, 0, POLICIES)
{
	static const char *const roles[] = {"prefill", "decode", "mixed"}, *const numerics[] = {"n1",
	                                                                                        "n2"};
	unsigned seed = 11 + (unsigned)_i, placed = 0, pairs = 0;
	for (int round = 0; round < 600; round++) {
		struct registry g;
		char name[16];
		struct placement p;
		uint64_t now = clock_us();
		registry_defaults(&g, 1000000);
		both(&g, (unsigned)_i);
		for (int i = 0, n = 1 + rand_r(&seed) % 14; i < n; i++) {
			snprintf(name, sizeof name, "w%d", i);
			struct worker_record *w = add_like(&g, name, roles[rand_r(&seed) % 3],
			                                   numerics[rand_r(&seed) % 2],
			                                   rand_r(&seed) % 3 ? 2000 : 100);
			w->tokens_in_flight = (uint64_t)(rand_r(&seed) % 1000);
			w->backlog_tokens = (uint64_t)rand_r(&seed) % (w->tokens_in_flight + 1);
			w->requests = (uint32_t)rand_r(&seed) % 5;
			int out = rand_r(&seed) % 10;
			w->beat.draining = out == 0;
			w->drained = out == 5;
			if (rand_r(&seed) % 5 == 0) {
				w->beat.running = 1;
				w->progress_us = now - 2000000;
			}
			if (rand_r(&seed) % 5 == 0) {
				w->breaker.open = 1;
				w->breaker.until_us = now + 1000000;
			}
			if (rand_r(&seed) % 6 == 0)
				registry_down(&g, w, now);
		}
		struct place_query query = {.tokens = 50,
		                            .total_tokens = rand_r(&seed) % 2 ? 90 : 1000,
		                            .session = (uint64_t)rand_r(&seed) % 3,
		                            .prefill_only = round % 8 == 7};
		query.avoid = rand_r(&seed) % 2 ? "w1" : NULL;
		int r = place_choose(&g, &query, now, &p);
		ck_assert_int_eq(r == 0, place_possible(&g, &query));
		for (unsigned i = 0; r == 0 && i <= p.n_decode; i++) {
			const struct worker_record *w = i ? p.decode[i - 1] : p.first;
			ck_assert(worker_is_up(w) && !w->beat.draining && !w->drained &&
			          w->context_tokens >= query.total_tokens);
			ck_assert(i ? w->role == ROLE_DECODE && strcmp(w->numerics, p.first->numerics) == 0
			            : 1);
			for (unsigned k = 1; k < i; k++) {
				const struct worker_record *before = p.decode[k - 1];
				ck_assert_ptr_ne(before, w);
				ck_assert_int_le(worker_is_stuck(&g, before, now) && !before->breaker.open,
				                 worker_is_stuck(&g, w, now) || w->breaker.open);
				/* open ones are named only among themselves */
				ck_assert_int_eq(before->breaker.open, w->breaker.open);
			}
		}
		if (r == 0 && p.first->role == ROLE_PREFILL)
			ck_assert_int_eq(p.n_decode > 0, !query.prefill_only);
		if (r == 0 && (p.first->breaker.open || worker_is_stuck(&g, p.first, now)))
			list_each(it, &g.workers) {
				const struct worker_record *o = list_entry(it, struct worker_record, node);
				ck_assert(o->role != ROLE_MIXED || !worker_is_up(o) || worker_drains(o) ||
				          o->context_tokens < query.total_tokens || o->breaker.open ||
				          (!p.first->breaker.open && worker_is_stuck(&g, o, now)));
			}
		placed += r == 0;
		pairs += r == 0 && p.n_decode > 1;
		registry_fini(&g);
	}
	ck_assert_uint_gt(placed, 200);
	ck_assert_uint_gt(pairs, 10);
}

TEST(breaker_lets_one_try)
{
	struct registry g;
	struct placement p;
	struct place_query query = {.tokens = 8, .total_tokens = 9};
	uint64_t now = clock_us();
	unsigned n = 0;
	registry_defaults(&g, 1000000);
	both(&g, POLICY_ROUND_ROBIN);
	add(&g, "p1", "prefill");
	struct worker_record *p2 = add(&g, "p2", "prefill");
	add(&g, "d1", "decode");
	for (int i = 0; i < 10; i++)
		registry_outcome(&g, p2, 0, now);
	ck_assert_uint_eq(g.breaker_opened, 1);
	for (int i = 0; i < 10; i++) {
		ck_assert_int_eq(place_choose(&g, &query, now, &p), 0);
		ck_assert_str_eq(p.first->name, "p1");
	}
	now += g.breaker.open_us;
	for (int i = 0; i < 10; i++) {
		ck_assert_int_eq(place_choose(&g, &query, now, &p), 0);
		n += p.first == p2;
	}
	ck_assert_uint_eq(n, 1);
	registry_outcome(&g, p2, 1, now);
	for (int i = 0; i < 10; i++) {
		ck_assert_int_eq(place_choose(&g, &query, now, &p), 0);
		n += p.first == p2;
	}
	ck_assert_uint_ge(n, 6);
	registry_fini(&g);
}

/* Rather a decode worker alone than a pair whose prefill worker is stuck or keeps failing. */
TEST(all_prefill_workers_are_ill)
{
	struct registry g;
	struct place_query query = {.tokens = 8, .total_tokens = 9};
	uint64_t now = clock_us();
	registry_defaults(&g, 1000000);
	struct worker_record *p1 = add(&g, "p1", "prefill"), *p2 = add(&g, "p2", "prefill"),
						 *d1 = add(&g, "d1", "decode");
	p1->beat.running = p2->beat.running = 1;
	p1->progress_us = now - 2000000;
	ck_assert_str_eq(show(&g, &query), "p2 d1");
	p2->breaker.open = 1;
	p2->breaker.until_us = now + 60000000;
	ck_assert_str_eq(show(&g, &query), "d1");
	d1->beat.running = 1;
	d1->progress_us = now - 2000000;
	ck_assert_str_eq(show(&g, &query), "p1 d1"); /* nobody is well: as always */
	registry_fini(&g);
}

/* A sequence longer than one of the two can hand over goes to a worker that does it all, also when
 * only its answer has made it so long. What needs no hand-over has no such limit. */
TEST(too_long_to_hand_over)
{
	struct registry g;
	registry_defaults(&g, 1000000);
	struct worker_record *p = add(&g, "p", "prefill"), *d = add(&g, "d", "decode");
	p->handover_tokens = 800;
	struct place_query query = {.tokens = 800, .total_tokens = 900};
	ck_assert_str_eq(show(&g, &query), "p d");
	query.tokens = 801;
	ck_assert_str_eq(show(&g, &query), "d");
	p->handover_tokens = 0;
	d->handover_tokens = 800;
	ck_assert_str_eq(show(&g, &query), "d");
	p->handover_tokens = 800;
	query.prefill_only = 1;
	ck_assert_str_eq(show(&g, &query), "p");
	query.prefill_only = 0;
	add(&g, "m", "mixed");
	ck_assert_str_eq(show(&g, &query), "m");
	registry_fini(&g);
}

TEST(rather_alone)
{
	struct registry g;
	struct place_query query = {.tokens = 8, .total_tokens = 9, .alone = 1};
	registry_defaults(&g, 1000000);
	add(&g, "p1", "prefill");
	struct worker_record *d1 = add(&g, "d1", "decode");
	ck_assert_str_eq(show(&g, &query), "d1");
	d1->breaker.open = 1;
	d1->breaker.until_us = clock_us() + 60000000;
	ck_assert_str_eq(show(&g, &query), "d1"); /* as it would be in a pair */
	add(&g, "m1", "mixed");
	ck_assert_str_eq(show(&g, &query), "m1");
	registry_fini(&g);
}

static const struct {
	const char *prefill, *decode[3];
	const char *want;
} pins[] = {
	{"p2", {NULL}, "p2 d1 d2"},
	{"", {"d2"}, "p1 d2"},
	{"p2", {"d2", "d1"}, "p2 d2 d1"}, /* in the order that was asked for */
	{"p2", {"d9", "d1"}, "p2 d1"},
	{"p9", {NULL}, "not found"},
	{"", {"d9"}, "not found"},
	{"m1", {NULL}, "m1"},
	{"m1", {"d1"}, "not found"}, /* m1 decodes what it begins */
	{"d1", {NULL}, "d1"},        /* alone, and asked for */
	{"", {"m1"}, "m1"},
	{"p1", {"other"}, "not found"}, /* not alike */
};

TEST_LOOP(pinned, 0, COUNT(pins))
{
	struct registry g;
	struct place_pin pin = {0};
	struct place_query query = {.tokens = 8, .total_tokens = 9, .pin = &pin};
	registry_defaults(&g, 1000000);
	add(&g, "p1", "prefill");
	add(&g, "p2", "prefill")->backlog_tokens = 5000;
	add(&g, "d1", "decode");
	add(&g, "d2", "decode")->tokens_in_flight = 5000;
	add(&g, "m1", "mixed")->backlog_tokens = 9000;
	add_like(&g, "other", "decode", "else", 0);
	snprintf(pin.prefill, sizeof pin.prefill, "%s", pins[_i].prefill);
	for (unsigned i = 0; i < 3 && pins[_i].decode[i]; i++)
		snprintf(pin.decode[pin.n_decode++], WORKER_NAME_MAX, "%s", pins[_i].decode[i]);
	const char *want = strcmp(pins[_i].want, "not found") == 0 ? err_name(ERR_NOTFOUND)
	                                                           : pins[_i].want;
	ck_assert_str_eq(show(&g, &query), want);
	registry_fini(&g);
}

/* --- several hosts ------------------------------------------------------- */

static const struct {
	const char *p_site, *p_tells, *d_site, *d_tells;
	int pairs;
} sites[] = {
	{"a", "", "a", "", 1},     {"a", "m", "a", "rm", 1}, {"a", "m", "b", "rm", 1},
	{"a", "rm", "b", "rm", 1}, {"a", "r", "b", "rm", 0}, {"a", "", "b", "rm", 0},
	{"a", "m", "b", "r", 0},   {"a", "m", "b", "m", 0},  {"a", "m", "b", "", 0},
	{"", "", "", "", 0},       {"a", "", "", "", 0},     {"", "", "a", "", 0}, /* no messager */
};

/* KV goes to another host only from a messager to a messager, and to a worker that can be asked. */
TEST_LOOP(pairs_of_several_hosts, 0, COUNT(sites))
{
	struct registry g;
	struct placement p;
	Pds__Peer list[2];
	struct place_query query = {.tokens = 8, .total_tokens = 9};
	int pairs = sites[_i].pairs, far = strcmp(sites[_i].p_site, sites[_i].d_site) != 0;
	registry_defaults(&g, 1000000);
	struct worker_record *p1 = add_at(&g, "p1", "prefill", sites[_i].p_site, sites[_i].p_tells),
						 *d1 = add_at(&g, "d1", "decode", sites[_i].d_site, sites[_i].d_tells);
	ck_assert_int_eq(place_choose(&g, &query, clock_us(), &p), 0);
	ck_assert_str_eq(p.first->name, pairs ? "p1" : "d1");
	ck_assert_uint_eq(p.n_decode, (unsigned)pairs);
	ck_assert_uint_eq(registry_peers(&g, p1, list), (size_t)pairs);
	if (pairs) {
		ck_assert_str_eq(list[0].name, "d1");
		ck_assert_str_eq(list[0].role, "decode");
		ck_assert_uint_eq(list[0].epoch, 1);
		ck_assert_str_eq(list[0].endpoint, far ? "d1@tcp://b:7001" : "d1");
		ck_assert_str_eq(list[0].messager, far ? "messager-b@tcp://b:7003" : "");
		ck_assert_str_eq(worker_endpoint(p1, d1), list[0].endpoint);
	}
	registry_down(&g, d1, clock_us());
	ck_assert_uint_eq(registry_peers(&g, p1, list), 0);
	registry_fini(&g);
}

/* A pair whose hand-over has failed is left alone for a while, then tried once in that while, until
 * it succeeds. */
TEST(a_failed_pair_waits)
{
	struct registry g;
	struct placement p;
	const struct place_query query = {.tokens = 8, .total_tokens = 9};
	registry_defaults(&g, 1000000);
	const uint64_t now = clock_us(), while_us = g.breaker.open_us;
	struct worker_record *p1 = add(&g, "p1", "prefill"), *d1 = add(&g, "d1", "decode");
	const struct {
		const char *what;
		uint64_t at_us;
		int outcome; /* of a hand-over before: -1 failed, 1 succeeded, 0 none */
		unsigned pairs;
	} steps[] = {
		{"a first time", 0, 0, 1},
		{"it failed", 0, -1, 0},
		{"just before the end", while_us - 1, 0, 0},
		{"a trial", while_us, 0, 1},
		{"only one", while_us, 0, 0},
		{"the trial failed", while_us + 1, -1, 0},
		{"one more trial", 2 * while_us + 1, 0, 1},
		{"it succeeded", 2 * while_us + 1, 1, 1},
		{"and again", 2 * while_us + 1, 0, 1},
	};
	for (int i = 0; i < COUNT(steps); i++) {
		if (steps[i].outcome)
			registry_handover(&g, p1, d1, steps[i].outcome > 0, now + steps[i].at_us);
		ck_assert_int_eq(place_choose(&g, &query, now + steps[i].at_us, &p), 0);
		ck_assert_msg(p.n_decode == steps[i].pairs, "%s: %u", steps[i].what, p.n_decode);
		ck_assert_msg(p.first == (p.n_decode ? p1 : d1), "%s", steps[i].what);
	}
	registry_fini(&g);
}

/* Others are placed meanwhile, of either kind. */
TEST(a_failed_pair_leaves_others)
{
	struct registry g;
	const struct place_query query = {.tokens = 8, .total_tokens = 9};
	registry_defaults(&g, 1000000);
	struct worker_record *p1 = add(&g, "p1", "prefill"), *d1 = add(&g, "d1", "decode"),
						 *d2 = add(&g, "d2", "decode");
	registry_handover(&g, p1, d1, 0, clock_us());
	ck_assert_str_eq(show(&g, &query), "p1 d2");
	registry_handover(&g, p1, d2, 0, clock_us());
	ck_assert_str_eq(show(&g, &query), "d1"); /* which needs no hand-over */
	struct worker_record *p2 = add(&g, "p2", "prefill");
	registry_handover(&g, p2, d2, 0, clock_us());
	ck_assert_str_eq(show(&g, &query), "p2 d1");
	const struct place_pin pin = {.prefill = "p1", .decode = {"d1"}, .n_decode = 1};
	const struct place_query pinned = {.tokens = 8, .total_tokens = 9, .pin = &pin};
	ck_assert_str_eq(show(&g, &pinned), "p1 d1");
	registry_fini(&g);
}

/* A worker that has another messager, or begins another life, starts without failures; and what is
 * remembered is bounded, the latest stays. */
TEST(failed_pairs_are_forgotten)
{
	struct registry g;
	char why[200], name[16];
	Pds__WorkerInfo info = PDS__WORKER_INFO__INIT;
	const struct place_query query = {.tokens = 8, .total_tokens = 9};
	registry_defaults(&g, 1000000);
	struct worker_record *p1 = add(&g, "p1", "prefill"), *d1 = add(&g, "d1", "decode");
	info.role = "decode";
	info.model_fingerprint = "f";
	info.numerics = "n";
	info.layout = "l";
	registry_handover(&g, p1, d1, 0, clock_us());
	info.site = ""; /* its messager goes, and comes back */
	ck_assert_int_eq(registry_update(&g, d1, &info, why, sizeof why), 0);
	ck_assert_str_eq(show(&g, &query), "d1");
	info.site = "s";
	ck_assert_int_eq(registry_update(&g, d1, &info, why, sizeof why), 0);
	ck_assert_str_eq(show(&g, &query), "p1 d1");
	registry_handover(&g, p1, d1, 0, clock_us());
	ck_assert_int_eq(registry_update(&g, d1, &info, why, sizeof why), 0);
	ck_assert_str_eq(show(&g, &query), "d1"); /* nothing has changed */
	registry_down(&g, p1, clock_us());
	p1->epoch = 0; /* add() starts life 1 */
	ck_assert_ptr_eq(add(&g, "p1", "prefill"), p1);
	ck_assert_str_eq(show(&g, &query), "p1 d1");
	for (unsigned i = 0; i <= HANDOVERS_FAILED_MAX; i++) {
		snprintf(name, sizeof name, "x%u", i);
		struct worker_record *x = add(&g, name, "decode");
		registry_down(&g, x, clock_us());
		registry_handover(&g, p1, i < HANDOVERS_FAILED_MAX ? x : d1, 0, clock_us());
	}
	ck_assert_uint_eq(g.n_failed, HANDOVERS_FAILED_MAX);
	ck_assert_str_eq(show(&g, &query), "d1");
	registry_forget(&g, clock_us() + WORKER_FORGET_US + 1000000); /* all x */
	ck_assert_uint_eq(g.n_failed, 1);
	registry_fini(&g);
}

static const struct {
	uint64_t near_tokens, far_tokens; /* in flight there */
	unsigned policy;
	const char *want;
} near[] = {
	{0, 0, POLICY_KV_AWARE, "p1 near far"},
	{0, 0, POLICY_LEAST_TOKENS, "p1 near far"},
	{0, 0, POLICY_LEAST_REQUESTS, "p1 near far"},
	{1000, 0, POLICY_KV_AWARE, "p1 far near"}, /* busy here, idle there */
	{1000, 0, POLICY_LEAST_TOKENS, "p1 far near"},
	{0, 1000, POLICY_KV_AWARE, "p1 near far"},
	{3, 0, POLICY_KV_AWARE, "p1 near far"}, /* less than what the way there costs */
};

/* Of equals the one of the same host, also if it was chosen last; a busy one is not an equal. */
TEST_LOOP(workers_of_the_same_host_come_first, 0, COUNT(near))
{
	struct registry g;
	struct place_query query = {.tokens = 64, .total_tokens = 70};
	registry_defaults(&g, 1000000);
	both(&g, near[_i].policy);
	add_at(&g, "p1", "prefill", "a", "rm");
	struct worker_record *far = add_at(&g, "far", "decode", "b", "rm"),
						 *here = add_at(&g, "near", "decode", "a", "rm");
	here->placed_seq = 7;
	here->tokens_in_flight = near[_i].near_tokens;
	far->tokens_in_flight = near[_i].far_tokens;
	ck_assert_str_eq(show(&g, &query), near[_i].want);
	registry_fini(&g);
}

/* Nothing is told to other workers that they could not use, or that is another worker's. */
TEST_LOOP(addresses_are_checked, 0, 8)
{
	static const struct {
		const char *remote, *messager, *why;
	} rows[] = {
		{"", "", NULL},
		{"d1@tcp://10.0.0.1:1", "m@tcp://h:2", NULL},
		{"d2@tcp://10.0.0.1:1", "", "is not d1@tcp://"},
		{"d1@tcp://0.0.0.0:1", "", "is not d1@tcp://"},
		{"tcp://10.0.0.1:1", "", "is not d1@tcp://"},
		{"", "tcp://10.0.0.1:1", "is not NAME@tcp://HOST:PORT"},
		{"", "m@tcp://*:1", "is not NAME@tcp://HOST:PORT"},
		{"", "m@ipc:///tmp/x", "is not NAME@tcp://HOST:PORT"},
	};
	struct registry g;
	Pds__WorkerInfo info = PDS__WORKER_INFO__INIT;
	char why[200] = "";
	registry_defaults(&g, 1000000);
	info.role = (char *)"decode";
	info.model_fingerprint = (char *)"f";
	info.site = (char *)"s";
	info.remote = (char *)rows[_i].remote;
	info.messager = (char *)rows[_i].messager;
	int want = rows[_i].why ? ERR_INVALID : 0;
	ck_assert_int_eq(registry_admit(&g, "d1", &info, 0, why, sizeof why), want);
	ck_assert_msg(!rows[_i].why || strstr(why, rows[_i].why), "%s", why);
	struct worker_record *d1 = add_at(&g, "d1", "decode", "a", "rm");
	ck_assert_int_eq(registry_update(&g, d1, &info, why, sizeof why), want);
	ck_assert_str_eq(d1->remote, want ? "d1@tcp://a:7001" : rows[_i].remote);
	ck_assert_str_eq(d1->messager, want ? "messager-a@tcp://a:7003" : rows[_i].messager);
	registry_fini(&g);
}

/* --- when to come again -------------------------------------------------- */

TEST(retry_after)
{
	struct registry g;
	Pds__Heartbeat b = PDS__HEARTBEAT__INIT;
	uint64_t now = clock_us();
	registry_defaults(&g, 1000000);
	ck_assert_uint_eq(registry_retry_after_s(&g, 0, 2, 60), 2); /* nothing was measured */
	struct worker_record *p = add(&g, "p1", "prefill"), *d = add(&g, "d1", "decode");
	p->backlog_tokens = 10000;
	ck_assert_uint_eq(registry_retry_after_s(&g, 0, 2, 60), 2);
	for (int i = 0; i < 5; i++) {
		/* 1,000 prompt tokens and 50 of answers a second */
		registry_beat(p, &b, now);
		registry_beat(d, &b, now);
		now += 1000000;
		b.prompt_tokens += 1000;
		b.generated_tokens += 50;
	}
	ck_assert_double_eq_tol(p->prompt_rate, 1000, 1);
	p->output_rate = d->prompt_rate = 0;
	ck_assert_uint_eq(registry_retry_after_s(&g, 0, 2, 60), 10);
	/* and 2 s until somebody is done */
	registry_answered(&g, 100);
	ck_assert_uint_eq(registry_retry_after_s(&g, 0, 2, 60), 12);
	p->backlog_tokens = 10;
	ck_assert_uint_eq(registry_retry_after_s(&g, 0, 1, 60), 3);
	p->backlog_tokens = 1000000000;
	ck_assert_uint_eq(registry_retry_after_s(&g, 0, 2, 60), 60);
	p->backlog_tokens = UINT64_MAX / 2;
	ck_assert_uint_eq(registry_retry_after_s(&g, 0, 2, 60), 60);
	registry_down(&g, p, now);
	ck_assert_uint_eq(registry_retry_after_s(&g, 0, 1, 60), 2);
	/* totals that go back, or jump, do no harm */
	b.prompt_tokens = 0;
	registry_beat(d, &b, now);
	b.prompt_tokens = UINT64_MAX;
	registry_beat(d, &b, now + 1);
	registry_beat(d, &b, now + 2000000);
	ck_assert_uint_le(registry_retry_after_s(&g, 0, 1, 60), 60);
	p->backlog_tokens = 0;
	registry_fini(&g);
}

/* --- what a sequence weighs ---------------------------------------------- */

TEST(only_uncached_tokens_weigh)
{
	struct rig *r = rig_new();
	struct prompt_of p;
	struct worker_record *pw = add(&r->g, "p1", "prefill"), *d = add(&r->g, "d1", "decode");
	make_prompt(&r->g, &p, 1, 320);
	holds(&r->g, pw, &p, 15, 0);
	struct attempt_spec spec = {.cache_salt = rig_salt,
	                            .tokens = p.tokens,
	                            .prompt_tokens = 320,
	                            .max_tokens = 4,
	                            .begun_us = clock_us(),
	                            .deadline_us = clock_us() + 60000000,
	                            .prefixes = &p.prefixes,
	                            .caller = &r->caller};
	pds__sampling__init(&spec.sampling);
	r->s = attempt_new(&r->e, &spec, &rig_hooks, r);
	ck_assert_int_eq(attempt_start(r->s), 0);
	ck_assert_uint_eq(pw->backlog_tokens, 320 - 15 * BT);
	ck_assert_uint_eq(pw->tokens_in_flight, 320 - 15 * BT);
	ck_assert_uint_eq(d->tokens_in_flight, 320);
	ck_assert_uint_eq(d->backlog_tokens, 0);
	ck_assert_uint_eq(pw->requests, 1);
	rig_first(r, pw, 1, 0, 10, "d1", 1);
	ck_assert_uint_eq(pw->backlog_tokens, 0);
	ck_assert_uint_eq(pw->tokens_in_flight, 0);
	ck_assert_uint_eq(pw->requests, 0);
	ck_assert_uint_eq(d->requests, 1);
	rig_more(r, d, 1, 0, 10, 4);
	ck_assert_int_eq(standing(r->s), DONE);
	ck_assert_uint_eq(d->tokens_in_flight, 0);
	rig_free(r);
	prefixes_fini(&p.prefixes);
}

/* What is to be read first weighs like what it takes: where reading is as slow as computing, no
 * worker looks idle for it. */
TEST_LOOP(stored_tokens_weigh_what_reading_takes, 0, 3)
{
	static const struct {
		uint32_t compute, memory, disk, want;
	} rows[] = {{0, 0, 0, 80 + 80 / 4 + 160 / 2},
	            {1000, 100000, 10000, 80 + 16},
	            {1000, 1000, 500, 320}};
	struct rig *r = rig_new();
	struct prompt_of p;
	Pds__Heartbeat b = PDS__HEARTBEAT__INIT;
	struct worker_record *pw = add(&r->g, "p1", "prefill"), *d = add(&r->g, "d1", "decode");
	make_prompt(&r->g, &p, 1, 320);
	holds(&r->g, pw, &p, 15, 2);
	holds(&r->g, pw, &p, 5, 1);
	b.compute_tokens_per_s = rows[_i].compute;
	b.memory_tokens_per_s = rows[_i].memory;
	b.disk_tokens_per_s = rows[_i].disk;
	registry_beat(pw, &b, clock_us());
	struct attempt_spec spec = {.cache_salt = rig_salt,
	                            .tokens = p.tokens,
	                            .prompt_tokens = 320,
	                            .max_tokens = 4,
	                            .begun_us = clock_us(),
	                            .deadline_us = clock_us() + 60000000,
	                            .prefixes = &p.prefixes,
	                            .caller = &r->caller};
	pds__sampling__init(&spec.sampling);
	r->s = attempt_new(&r->e, &spec, &rig_hooks, r);
	ck_assert_int_eq(attempt_start(r->s), 0);
	ck_assert_uint_eq(r->s->try.predicted.stored, 15 * BT);
	ck_assert_uint_eq(pw->backlog_tokens, rows[_i].want);
	ck_assert_uint_eq(pw->tokens_in_flight, rows[_i].want);
	rig_first(r, pw, 1, 0, 10, "d1", 1);
	ck_assert_uint_eq(pw->backlog_tokens + pw->tokens_in_flight, 0);
	rig_more(r, d, 1, 0, 10, 4);
	rig_free(r);
	prefixes_fini(&p.prefixes);
}

TEST(a_lone_worker_weighs_the_whole_sequence)
{
	struct rig *r = rig_new();
	struct worker_record *m = rig_up(r, "m1", "mixed", 7);
	rig_seq(r, 8, 0);
	ck_assert_int_eq(attempt_start(r->s), 0);
	ck_assert_uint_eq(m->backlog_tokens, 5);
	rig_more(r, m, 1, 0, 10, 1);
	ck_assert_uint_eq(m->backlog_tokens, 0);
	ck_assert_uint_eq(m->tokens_in_flight, 6);
	ck_assert_uint_eq(m->requests, 1);
	rig_more(r, m, 1, 1, 11, 3); /* and grows with it */
	ck_assert_uint_eq(m->tokens_in_flight, 9);
	rig_down(r, m);
	ck_assert_uint_eq(m->tokens_in_flight, 0);
	rig_free(r);
}

/* What clients do, and what a full or draining worker says, is no failure of the worker. */
TEST(client_errors_trip_no_breaker)
{
	static const Pds__Fault innocent[] = {PDS__FAULT__FAULT_INVALID,    PDS__FAULT__FAULT_TOO_LARGE,
	                                      PDS__FAULT__FAULT_OVERLOADED, PDS__FAULT__FAULT_DEADLINE,
	                                      PDS__FAULT__FAULT_DRAINING,   PDS__FAULT__FAULT_NO_ROOM,
	                                      PDS__FAULT__FAULT_PEER_LOST};
	struct rig *r = rig_new();
	struct worker_record *m = rig_up(r, "m1", "mixed", 7);
	r->g.breaker.min_requests = 3;
	for (int i = 0; i < 70; i++) {
		rig_seq(r, 8, 0);
		ck_assert_int_eq(attempt_start(r->s), 0);
		if (i % 2)
			rig_fail(r, m, 1, innocent[i % COUNT(innocent)], 0);
		else
			attempt_cancel(r->s, "the client is gone");
		attempt_destroy(&r->s);
	}
	ck_assert_int_eq(breaker_state(&m->breaker, clock_us()), BREAKER_CLOSED);
	for (int i = 0; i < 3; i++) {
		rig_seq(r, 8, 0);
		ck_assert_int_eq(attempt_start(r->s), 0);
		rig_fail_by(r, m, 1, PDS__FAULT__FAULT_STALLED, 0, "m1");
		attempt_destroy(&r->s);
	}
	ck_assert_int_eq(breaker_state(&m->breaker, clock_us()), BREAKER_OPEN);
	rig_seq(r, 8, 0);
	/* nobody else is there: it is asked all the same */
	ck_assert_int_eq(attempt_start(r->s), 0);
	attempt_destroy(&r->s);
	rig_free(r);
}

/* A role that changes under running sequences leaves them as they are. */
TEST(a_role_changes_under_way)
{
	struct rig *r = rig_new();
	struct worker_record *p = rig_up(r, "p1", "prefill", 11), *d = rig_up(r, "d1", "decode", 21);
	Pds__WorkerInfo info = PDS__WORKER_INFO__INIT;
	char why[200];
	rig_seq(r, 3, 0);
	ck_assert_int_eq(attempt_start(r->s), 0);
	info.role = (char *)"mixed";
	info.model_fingerprint = (char *)"f";
	info.site = (char *)"s";
	info.numerics = (char *)"cpu-r3:tp1:bf16";
	info.layout = (char *)"l";
	ck_assert_int_eq(registry_update(&r->g, p, &info, why, sizeof why), 0);
	info.role = (char *)"prefill";
	ck_assert_int_eq(registry_update(&r->g, d, &info, why, sizeof why), 0);
	rig_first(r, p, 1, 0, 10, "d1", 21);
	rig_more(r, d, 1, 0, 10, 3);
	ck_assert_int_eq(standing(r->s), DONE);
	ck_assert_str_eq(r->out, "10 11 12 length");
	rig_free(r);
}

/* What a worker has last said of its drain counts, whether it says so in its information or, before
 * that had the field, in heartbeats. */
TEST_LOOP(drained_by_information_or_heartbeat, 0, 4)
{
	int told = _i & 1, ending = _i & 2;
	struct registry g;
	char why[200];
	registry_defaults(&g, 0);
	struct worker_record *w = add(&g, "d1", "decode");
	Pds__Heartbeat b = PDS__HEARTBEAT__INIT;
	Pds__WorkerInfo info = PDS__WORKER_INFO__INIT;
	info.role = "decode";
	info.model_fingerprint = "f";
	info.numerics = "n";
	info.layout = "l";
	info.drained = told;
	ck_assert_int_eq(registry_update(&g, w, &info, why, sizeof why), 0);
	ck_assert_int_eq(worker_drains(w), told);
	b.draining = 1;
	b.ending = ending != 0;
	registry_beat(w, &b, clock_us());
	ck_assert_int_eq(worker_drains(w), 1);
	info.drained = 0;
	ck_assert_int_eq(registry_update(&g, w, &info, why, sizeof why), 0);
	ck_assert_int_eq(worker_drains(w), !told || ending);
	registry_fini(&g);
}
