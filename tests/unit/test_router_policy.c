/* test_router_policy.c - where sequences go: each policy by tables, sessions that stay while
 * workers come and go. What is cached: test_router_cached.c; what binds all policies:
 * test_router_place.c. */
#include "tests/unit/registry_defaults.h"
#include "place_rig.h"

/* --- one policy after the other ------------------------------------------ */

struct load {
	uint64_t tokens;
	uint32_t requests;
	unsigned placed; /* higher: chosen later */
};

static const struct {
	unsigned policy;
	struct load p[3], d[3];
	const char *want;
} loads[] = {
	{POLICY_LEAST_TOKENS,
     {{5, 0, 0}, {4, 9, 9}, {6, 0, 0}},
     {{50, 1, 1}, {60, 0, 0}, {40, 9, 9}},
     "p2 d3 d1 d2"},
	/* ties: chosen longest ago */
	{POLICY_LEAST_TOKENS,
     {{5, 0, 3}, {5, 9, 2}, {6, 0, 1}},
     {{0, 0, 3}, {0, 0, 2}, {0, 0, 1}},
     "p2 d3 d2 d1"},
	{POLICY_LEAST_REQUESTS,
     {{9, 3, 0}, {9, 2, 1}, {1, 4, 2}},
     {{50, 1, 1}, {60, 0, 0}, {40, 9, 9}},
     "p2 d2 d1 d3"},
	{POLICY_ROUND_ROBIN,
     {{0, 0, 7}, {9, 9, 6}, {0, 0, 8}},
     {{0, 0, 7}, {9, 9, 6}, {0, 0, 8}},
     "p2 d2 d1 d3"},
	/* a sequence weighs 256 tokens */
	{POLICY_KV_AWARE,
     {{5, 0, 0}, {4, 9, 9}, {6, 0, 0}},
     {{500, 1, 1}, {600, 0, 0}, {40, 1, 9}},
     "p2 d3 d2 d1"},
	/* no session: the fallback */
	{POLICY_SESSION,
     {{5, 0, 0}, {4, 9, 9}, {6, 0, 0}},
     {{50, 1, 1}, {60, 0, 0}, {40, 9, 9}},
     "p2 d3 d1 d2"},
};

TEST_LOOP(by_load, 0, COUNT(loads))
{
	static const char *const pn[] = {"p1", "p2", "p3"}, *const dn[] = {"d1", "d2", "d3"};
	struct registry g;
	struct place_query query = {.tokens = 8, .total_tokens = 9};
	registry_defaults(&g, 1000000);
	both(&g, loads[_i].policy);
	g.policy.session_fallback = POLICY_LEAST_TOKENS;
	g.place_seq = 100;
	for (int i = 0; i < 3; i++) {
		struct worker_record *p = add(&g, pn[i], "prefill"), *d = add(&g, dn[i], "decode");
		p->tokens_in_flight = p->backlog_tokens = loads[_i].p[i].tokens;
		p->requests = loads[_i].p[i].requests;
		p->placed_seq = loads[_i].p[i].placed;
		d->tokens_in_flight = loads[_i].d[i].tokens;
		d->requests = loads[_i].d[i].requests;
		d->placed_seq = loads[_i].d[i].placed;
	}
	ck_assert_str_eq(show(&g, &query), loads[_i].want);
	registry_fini(&g);
}

TEST(round_robin_is_even)
{
	struct registry g;
	struct place_query query = {.tokens = 8, .total_tokens = 9};
	struct placement p;
	unsigned n[3] = {0};
	registry_defaults(&g, 1000000);
	both(&g, POLICY_ROUND_ROBIN);
	add(&g, "m0", "mixed");
	add(&g, "m1", "mixed");
	add(&g, "m2", "mixed");
	for (int i = 0; i < 30; i++) {
		ck_assert_int_eq(place_choose(&g, &query, clock_us(), &p), 0);
		n[p.first->name[1] - '0']++;
	}
	ck_assert(n[0] == 10 && n[1] == 10 && n[2] == 10);
	registry_fini(&g);
}

/* Equal seeds, equal choices; all workers have their turn; of two drawn the less loaded one. */
TEST_LOOP(drawn, 0, 2)
{
	static const unsigned which[] = {POLICY_RANDOM, POLICY_POWER_OF_TWO};
	struct place_query query = {.tokens = 8, .total_tokens = 9};
	char first[2][4000] = {"", ""};
	unsigned n[4] = {0};
	for (int round = 0; round < 2; round++) {
		struct registry g;
		registry_defaults(&g, 1000000);
		both(&g, which[_i]);
		g.draw = 42;
		for (int i = 0; i < 4; i++) {
			char name[3] = {'m', (char)('0' + i), 0};
			/* least at 0, then 3, 2, 1 */
			add(&g, name, "mixed")->tokens_in_flight = (uint64_t)(i * 300 % 400);
		}
		for (int i = 0; i < 1000; i++) {
			struct placement p;
			ck_assert_int_eq(place_choose(&g, &query, clock_us(), &p), 0);
			first[round][i] = p.first->name[1];
			n[p.first->name[1] - '0']++;
		}
		registry_fini(&g);
	}
	ck_assert_str_eq(first[0], first[1]);
	if (which[_i] == POLICY_RANDOM) {
		for (int i = 0; i < 4; i++)
			ck_assert_msg(n[i] > 400 && n[i] < 600, "%u", n[i]);
	} else { /* 1/2, 1/3, 1/6, never */
		ck_assert_msg(n[0] > 900 && n[0] < 1100 && n[3] > 560 && n[3] < 770 && n[2] > 250 &&
		                  n[2] < 420 && n[1] == 0,
		              "%u %u %u %u", n[0], n[1], n[2], n[3]);
	}
}

TEST_LOOP(one_worker_serves_under_each_policy, 0, 2)
{
	struct registry g;
	struct place_query query = {.tokens = 8, .total_tokens = 9, .session = (uint64_t)_i};
	for (unsigned policy = 0; policy < POLICIES; policy++) {
		registry_defaults(&g, 1000000);
		both(&g, policy);
		ck_assert_str_eq(show(&g, &query), err_name(ERR_NOTFOUND));
		add(&g, "d1", "decode");
		ck_assert_str_eq(show(&g, &query), "d1");
		add(&g, "p1", "prefill");
		ck_assert_str_eq(show(&g, &query), "p1 d1");
		registry_fini(&g);
	}
}

/* --- sessions ------------------------------------------------------------ */

static struct worker_record *session_goes_to(struct registry *g, uint64_t session)
{
	struct placement p;
	struct place_query query = {.tokens = 8, .total_tokens = 9, .session = session};
	ck_assert_int_eq(place_choose(g, &query, clock_us(), &p), 0);
	return p.first;
}

TEST(sessions_stay)
{
	enum { N = 2000 };
	static struct worker_record *had[N];
	struct registry g;
	char name[8];
	unsigned at[11] = {0}, moved = 0;
	registry_defaults(&g, 1000000);
	both(&g, POLICY_SESSION);
	for (int i = 0; i < 10; i++) {
		snprintf(name, sizeof name, "m%d", i);
		add(&g, name, "mixed");
	}
	for (uint32_t s = 0; s < N; s++) {
		had[s] = session_goes_to(&g, policy_key((const char *)&s, sizeof s));
		at[atoi(had[s]->name + 1)]++;
	}
	for (int i = 0; i < 10; i++)
		/* evenly */
		ck_assert_msg(at[i] > N / 10 * 7 / 10 && at[i] < N / 10 * 13 / 10, "%u", at[i]);
	for (uint32_t s = 0; s < N; s++)
		ck_assert_ptr_eq(session_goes_to(&g, policy_key((const char *)&s, sizeof s)), had[s]);
	struct worker_record *gone = registry_find(&g, "m3"), *joined;
	registry_down(&g, gone, clock_us());
	for (uint32_t s = 0; s < N; s++) { /* its own move, nobody else's */
		struct worker_record *now = session_goes_to(&g, policy_key((const char *)&s, sizeof s));
		ck_assert(had[s] == gone ? now != gone : now == had[s]);
	}
	add(&g, "m3", "mixed"); /* back again: so are they */
	for (uint32_t s = 0; s < N; s++)
		ck_assert_ptr_eq(session_goes_to(&g, policy_key((const char *)&s, sizeof s)), had[s]);
	joined = add(&g, "m10", "mixed");
	for (uint32_t s = 0; s < N; s++) {
		struct worker_record *now = session_goes_to(&g, policy_key((const char *)&s, sizeof s));
		ck_assert(now == had[s] || now == joined);
		moved += now == joined;
	}
	ck_assert_msg(moved > N / 11 * 7 / 10 && moved < N / 11 * 13 / 10, "%u", moved);
	gone->beat.draining = 1;
	for (uint32_t s = 0; s < N; s++)
		ck_assert_ptr_ne(session_goes_to(&g, policy_key((const char *)&s, sizeof s)), gone);
	registry_fini(&g);
}

TEST(sessions_give_way)
{
	struct registry g;
	registry_defaults(&g, 1000000);
	both(&g, POLICY_SESSION);
	g.policy.session_fallback = POLICY_LEAST_TOKENS;
	struct worker_record *m[3] = {add(&g, "m0", "mixed"), add(&g, "m1", "mixed"),
	                              add(&g, "m2", "mixed")};
	struct worker_record *w = session_goes_to(&g, 5);
	w->tokens_in_flight = 16; /* two such requests: not more than twice this one */
	ck_assert_ptr_eq(session_goes_to(&g, 5), w);
	w->tokens_in_flight = 17;
	ck_assert_ptr_ne(session_goes_to(&g, 5), w);
	for (int i = 0; i < 3; i++)
		m[i]->tokens_in_flight = m[i] == w ? 1900 : 700; /* 1900 is less than 2 * 1100 */
	ck_assert_ptr_eq(session_goes_to(&g, 5), w);
	w->tokens_in_flight = 2900; /* which is more than 2 * 1433 */
	ck_assert_ptr_ne(session_goes_to(&g, 5), w);
	ck_assert_uint_eq(g.placed[PLACE_PREFILL][POLICY_SESSION][PLACE_SESSION], 3);
	ck_assert_uint_eq(g.placed[PLACE_PREFILL][POLICY_SESSION][PLACE_OVERLOADED], 2);
	session_goes_to(&g, 0);
	ck_assert_uint_eq(g.placed[PLACE_PREFILL][POLICY_SESSION][PLACE_NO_SESSION], 1);
	for (int i = 0; i < 3; i++)
		m[i]->beat.draining = m[i] != w;
	ck_assert_ptr_eq(session_goes_to(&g, 5), w); /* nobody else is there */
	registry_fini(&g);
}
