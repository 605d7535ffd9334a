/* test_router_cached.c - where sequences go by what is cached there, on the device and below it,
 * by what decode workers have to do and room for, and bursts. */
#include "tests/unit/registry_defaults.h"
#include "place_rig.h"

static const struct {
	unsigned blocks[3], tier[3]; /* of 20, that each prefill worker has */
	uint64_t backlog[3];
	const char *want;
} caches[] = {
	{{0, 5, 0}, {0}, {0, 0, 0}, "p2"},
	{{5, 6, 4}, {0}, {0, 0, 0}, "p2"},
	{{0, 5, 0}, {0}, {0, 159, 0}, "p2"}, /* 80 tokens cached against half of 159 that wait */
	{{0, 5, 0}, {0}, {0, 161, 1000}, "p1"},
	{{0, 5, 5}, {0, 1, 0}, {0, 0, 0}, "p3"}, /* on the device rather than below it */
	/* 128 to be read back from memory cost 32: 224 against 240 */
	{{0, 8, 5}, {0, 1, 0}, {0, 0, 0}, "p2"},
	{{0, 8, 5}, {0, 2, 0}, {0, 0, 0}, "p3"}, /* from disk 64: 256 */
	{{0, 8, 8}, {0, 2, 1}, {0, 0, 0}, "p3"},
	{{0, 0, 1}, {0, 2, 2}, {0, 0, 0}, "p3"}, /* even that is better than computing */
	/* the last token is always computed: 20 blocks are worth no more than 19 */
	{{20, 19, 0}, {0}, {1, 0, 0}, "p2"},
	{{20, 20, 20}, {0}, {9, 9, 8}, "p3"},
};

TEST_LOOP(by_what_is_cached, 0, COUNT(caches))
{
	static const char *const names[] = {"p1", "p2", "p3"};
	struct registry g;
	struct prompt_of p;
	registry_defaults(&g, 1000000);
	for (int i = 0; i < 3; i++)
		add(&g, names[i], "prefill");
	add(&g, "d1", "decode");
	make_prompt(&g, &p, 1, 320);
	g.policy.kv_load_weight = 0.5;
	for (int i = 0; i < 3; i++) {
		struct worker_record *w = registry_find(&g, names[i]);
		w->backlog_tokens = w->tokens_in_flight = caches[_i].backlog[i];
		holds(&g, w, &p, caches[_i].blocks[i], caches[_i].tier[i]);
	}
	struct placement pl;
	ck_assert_int_eq(place_choose(&g, &p.query, clock_us(), &pl), 0);
	ck_assert_str_eq(pl.first->name, caches[_i].want);
	ck_assert_int_eq(pl.predicted, 1);
	unsigned at = (unsigned)(caches[_i].want[1] - '1'), blocks = caches[_i].blocks[at];
	ck_assert_uint_eq(pl.stored_tokens, caches[_i].tier[at] ? blocks * BT : 0);
	ck_assert_uint_eq(pl.hit_tokens, (blocks < 20 ? blocks : 19) * BT);
	prefixes_fini(&p.prefixes);
	registry_fini(&g);
}

/* Where a worker has measured both rates they weigh what it would read, at most like computing;
 * else the settings do. */
static const struct {
	unsigned tier;
	uint32_t compute, memory, disk;
	double want;
	int measured;
} weights[] = {
	{1, 0, 0, 0, 0.25, 0},
	{2, 0, 0, 0, 0.5, 0},
	{1, 1000, 0, 4000, 0.25, 0},
	{2, 1000, 0, 4000, 0.25, 1},
	{1, 0, 4000, 4000, 0.25, 0},
	{1, 1000, 100000, 4000, 0.01, 1},
	{1, 1000, 1000, 0, 1, 1},
	/* slower than computing: the worker computes, and the block is worth nothing */
	{2, 5000, 0, 1000, 1, 1},
	{1, UINT32_MAX, 1, 1, 1, 1},
	{2, 1, UINT32_MAX, UINT32_MAX, 1.0 / UINT32_MAX, 1},
};

TEST_LOOP(by_measured_rates, 0, COUNT(weights))
{
	struct registry g;
	struct prompt_of p;
	struct placement pl;
	Pds__Heartbeat b = PDS__HEARTBEAT__INIT;
	int measured = -1;
	registry_defaults(&g, 1000000);
	struct worker_record *p1 = add(&g, "p1", "prefill"), *p2 = add(&g, "p2", "prefill");
	add(&g, "d1", "decode");
	make_prompt(&g, &p, 1, 320);
	b.compute_tokens_per_s = weights[_i].compute;
	b.memory_tokens_per_s = weights[_i].memory;
	b.disk_tokens_per_s = weights[_i].disk;
	registry_beat(p1, &b, clock_us());
	ck_assert_double_eq_tol(policy_read_weight(p1, weights[_i].tier, &measured), weights[_i].want,
	                        1e-9);
	ck_assert_int_eq(measured, weights[_i].measured);
	holds(&g, p1, &p, 10, weights[_i].tier);
	g.policy.kv_load_weight = 1;
	/* what was placed is not there soon */
	g.policy.kv_predict_us = 0;
	/* so p1 while it costs the same */
	p2->backlog_tokens = p2->tokens_in_flight = 1;
	ck_assert_int_eq(place_choose(&g, &p.query, clock_us(), &pl), 0);
	ck_assert_ptr_eq(pl.first, p1);
	/* more than reading saves */
	p1->backlog_tokens = p1->tokens_in_flight = 2 + (uint64_t)(160 * (1 - weights[_i].want));
	ck_assert_int_eq(place_choose(&g, &p.query, clock_us(), &pl), 0);
	ck_assert_ptr_eq(pl.first, p2);
	registry_down(&g, p1, clock_us());
	p1->backlog_tokens = p1->tokens_in_flight = 0;
	p1 = add(&g, "p1", "prefill");
	policy_read_weight(p1, weights[_i].tier, &measured);
	ck_assert_int_eq(measured, 0); /* a new life */
	prefixes_fini(&p.prefixes);
	registry_fini(&g);
}

/* Only prefill workers read a prompt's blocks from storage: elsewhere what is below the device
 * draws nobody. */
TEST_LOOP(storage_is_read_by_prefill_workers, 0, 3)
{
	static const char *const roles[] = {"decode", "mixed", "prefill"};
	struct registry g;
	struct prompt_of p;
	struct placement pl;
	registry_defaults(&g, 1000000);
	struct worker_record *w1 = add(&g, "w1", roles[_i]), *w2 = add(&g, "w2", roles[_i]);
	if (_i != 1)
		add(&g, _i ? "d1" : "p1", _i ? "decode" : "prefill");
	make_prompt(&g, &p, 1, 320);
	holds(&g, w1, &p, 15, 1);
	holds(&g, w2, &p, 1, 0);
	holds(&g, w2, &p, 15, 2);
	ck_assert_int_eq(place_choose(&g, &p.query, clock_us(), &pl), 0);
	struct worker_record *at = _i ? pl.first : pl.decode[0];
	ck_assert_ptr_eq(at, _i == 2 ? w1 : w2);
	ck_assert_uint_eq(pl.hit_tokens, _i == 2 ? 15 * BT : _i ? BT : 0);
	ck_assert_uint_eq(pl.stored_tokens, _i == 2 ? 15 * BT : 0);
	prefixes_fini(&p.prefixes);
	registry_fini(&g);
}

/* Only the leading blocks count, and only of the same prompt. */
TEST(other_prompts_help_nobody)
{
	struct registry g;
	struct prompt_of a, b;
	struct placement pl;
	registry_defaults(&g, 1000000);
	struct worker_record *p1 = add(&g, "p1", "prefill"), *p2 = add(&g, "p2", "prefill");
	add(&g, "d1", "decode");
	make_prompt(&g, &a, 1, 320);
	make_prompt(&g, &b, 2, 320);
	holds(&g, p1, &b, 20, 0);
	p1->backlog_tokens = 1;
	ck_assert_int_eq(place_choose(&g, &a.query, clock_us(), &pl), 0);
	ck_assert_ptr_eq(pl.first, p2);
	ck_assert_uint_eq(pl.hit_tokens, 0);
	struct prefixes none = {0};
	b.query.prefixes = &none; /* not hashed: by load, and nothing is predicted */
	p2->backlog_tokens = 50;
	ck_assert_int_eq(place_choose(&g, &b.query, clock_us(), &pl), 0);
	ck_assert_ptr_eq(pl.first, p1);
	ck_assert_int_eq(pl.predicted, 0);
	prefixes_fini(&a.prefixes);
	prefixes_fini(&b.prefixes);
	registry_fini(&g);
}

static const struct {
	unsigned blocks[3]; /* of 20, that each decode worker has */
	uint64_t tokens[3];
	uint32_t requests[3], free_blocks[3];
	const char *want;
} decodes[] = {
	{{0, 5, 0}, {0}, {0}, {1000, 1000, 1000}, "d2 d1 d3"},
	{{0, 5, 0}, {0, 81, 0}, {0}, {1000, 1000, 1000}, "d1 d3 d2"},
	/* a sequence there: 256 tokens */
	{{0, 5, 0}, {0, 0, 1}, {0, 1, 0}, {1000, 1000, 1000}, "d1 d3 d2"},
	/* no room for it: 4 times 256 tokens */
	{{0, 0, 0}, {0, 300, 500}, {0}, {5, 1000, 1000}, "d2 d3 d1"},
	/* what it has counted as free until now, and needs room like the rest */
	{{0, 0, 15}, {0, 300, 300}, {0}, {21, 1000, 7}, "d1 d2 d3"},
	/* 320 tokens more in each step of three cost more than 900 in its own */
	{{0}, {900, 300, 0}, {1, 3, 3}, {1000, 1000, 1000}, "d1 d3 d2"},
	/* all full: who lacks least */
	{{0, 0, 0}, {0, 0, 0}, {0}, {0, 3, 2}, "d2 d3 d1"},
};

TEST_LOOP(decode_workers, 0, COUNT(decodes))
{
	static const char *const names[] = {"d1", "d2", "d3"};
	struct registry g;
	struct prompt_of p;
	registry_defaults(&g, 1000000);
	g.policy.kv_transfer_weight = 1;
	add(&g, "p1", "prefill");
	for (int i = 0; i < 3; i++)
		add(&g, names[i], "decode");
	make_prompt(&g, &p, 1, 320);
	for (int i = 0; i < 3; i++) {
		struct worker_record *w = registry_find(&g, names[i]);
		Pds__Heartbeat b = PDS__HEARTBEAT__INIT;
		b.blocks_free = decodes[_i].free_blocks[i];
		registry_beat(w, &b, clock_us());
		w->tokens_in_flight = decodes[_i].tokens[i];
		w->requests = decodes[_i].requests[i];
		holds(&g, w, &p, decodes[_i].blocks[i], 0);
	}
	ck_assert_str_eq(show(&g, &p.query) + 3, decodes[_i].want);
	prefixes_fini(&p.prefixes);
	registry_fini(&g);
}

/* A long sequence goes where few are slowed by it, a short one where little slows it. */
TEST_LOOP(long_and_short, 0, 2)
{
	static const struct {
		uint32_t tokens;
		const char *want;
	} rows[] = {{100, "p1 d2 d1"}, {10000, "p1 d1 d2"}};
	struct registry g;
	struct place_query query = {.tokens = rows[_i].tokens, .total_tokens = rows[_i].tokens + 1};
	registry_defaults(&g, 1000000);
	add(&g, "p1", "prefill");
	struct worker_record *d1 = add(&g, "d1", "decode"), *d2 = add(&g, "d2", "decode");
	d1->tokens_in_flight = 60000;
	d1->requests = 1;
	d2->tokens_in_flight = 20000;
	d2->requests = 9;
	ck_assert_str_eq(show(&g, &query), rows[_i].want);
	registry_fini(&g);
}

/* Another router's sequences count with what they hold, ours as they are now: what a heartbeat
 * said of them is old at once. */
TEST(other_routers)
{
	struct registry g;
	Pds__Heartbeat b = PDS__HEARTBEAT__INIT;
	struct place_query query = {.tokens = 100, .total_tokens = 110};
	registry_defaults(&g, 1000000);
	add(&g, "p1", "prefill");
	struct worker_record *d1 = add(&g, "d1", "decode"), *d2 = add(&g, "d2", "decode");
	d1->requests = 2;
	d1->tokens_in_flight = 50 * BT;
	b.running = 2;
	b.blocks_held = 52;
	b.blocks_free = 900;
	registry_beat(d1, &b, clock_us());
	/* all ours, whatever a block more or less holds */
	ck_assert_uint_eq(d1->other_sequences, 0);
	ck_assert_uint_eq(d1->other_tokens, 0);
	d1->requests = 0; /* they have ended since */
	d1->tokens_in_flight = 0;
	d2->tokens_in_flight = 10;
	ck_assert_str_eq(show(&g, &query), "p1 d1 d2");
	b.running = 3;
	b.waiting = 1;
	b.blocks_held = 80;
	d1->requests = 2;
	d1->tokens_in_flight = 50 * BT;
	registry_beat(d1, &b, clock_us());
	ck_assert_uint_eq(d1->other_sequences, 2);
	ck_assert_uint_eq(d1->other_tokens, 30 * BT);
	d1->requests = 0;
	d1->tokens_in_flight = 0;
	d2->tokens_in_flight = 30 * BT + 2 * 256 + 2 * 100 - 1;
	ck_assert_str_eq(show(&g, &query), "p1 d2 d1");
	d2->tokens_in_flight += 2;
	ck_assert_str_eq(show(&g, &query), "p1 d1 d2");
	/* nonsense costs a guess, no more */
	b.running = b.waiting = b.blocks_held = b.blocks_free = UINT32_MAX;
	d1->tokens_in_flight = UINT64_MAX / 4;
	registry_beat(d1, &b, clock_us());
	ck_assert_str_eq(show(&g, &query), "p1 d2 d1");
	registry_down(&g, d1, clock_us());
	d1 = add(&g, "d1", "decode");
	ck_assert_uint_eq(d1->other_sequences, 0); /* a new life */
	registry_fini(&g);
}

/* Blocks that were promised since the last heartbeat are not free any more. */
TEST(room_that_was_given_away)
{
	struct registry g;
	Pds__Heartbeat b = PDS__HEARTBEAT__INIT;
	struct place_query query = {.tokens = 320, .total_tokens = 330};
	registry_defaults(&g, 1000000);
	add(&g, "p1", "prefill");
	struct worker_record *d1 = add(&g, "d1", "decode"), *d2 = add(&g, "d2", "decode");
	b.blocks_free = 30;
	registry_beat(d1, &b, clock_us());
	registry_beat(d2, &b, clock_us());
	d2->tokens_in_flight = 300;
	/* the rig charges nothing: only the promise counts */
	ck_assert_str_eq(show(&g, &query), "p1 d1 d2");
	ck_assert_str_eq(show(&g, &query), "p1 d2 d1");
	registry_beat(d1, &b, clock_us());
	ck_assert_str_eq(show(&g, &query), "p1 d1 d2");
	registry_fini(&g);
}

/* A burst with one prefix goes where its first request went, as long as that is worth the wait;
 * without expectations it is spread. */
TEST_LOOP(bursts, 0, 2)
{
	struct registry g;
	struct prompt_of p;
	struct placement pl;
	registry_defaults(&g, 1000000);
	struct worker_record *w[2] = {add(&g, "p1", "prefill"), add(&g, "p2", "prefill")};
	add(&g, "d1", "decode");
	make_prompt(&g, &p, 1, 330);
	for (int i = 0; i < 2; i++)
		holds(&g, w[i], &p, 0, 0);
	g.policy.kv_predict_us = _i ? 60000000 : 0;
	unsigned n[2] = {0};
	for (int i = 0; i < 10; i++) {
		ck_assert_int_eq(place_choose(&g, &p.query, clock_us(), &pl), 0);
		pl.first->backlog_tokens += 330 - pl.hit_tokens;
		n[pl.first == w[1]]++;
		if (_i)
			ck_assert_uint_eq(pl.hit_tokens, i ? 320 : 0);
	}
	if (_i)
		ck_assert_msg(n[0] == 10 || n[1] == 10, "%u %u", n[0], n[1]);
	else
		ck_assert_msg(n[0] == 5 && n[1] == 5, "%u %u", n[0], n[1]);
	/* what waits there in the end outweighs the prefix */
	struct worker_record *last = pl.first;
	last->backlog_tokens += 5000;
	ck_assert_int_eq(place_choose(&g, &p.query, clock_us(), &pl), 0);
	ck_assert_ptr_ne(pl.first, last);
	prefixes_fini(&p.prefixes);
	registry_fini(&g);
}
