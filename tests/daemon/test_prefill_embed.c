/* test_prefill_embed.c - embeddings at a prefill worker: no decode worker, no ring slot, and the
 * blocks go back. */
#include "prefill_world.h"

#define LAST PDS__POOLING__POOLING_LAST
#define MEAN PDS__POOLING__POOLING_MEAN

static const Pds__Embedding *embedding(uint64_t req)
{
	UNTIL(count(ROUTER, MSG_REQUEST_EMBEDDING, req) + count(ROUTER, MSG_REQUEST_FAILED, req));
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FAILED, req), 0);
	return LATEST(Pds__Embedding, ROUTER, REQUEST_EMBEDDING, req);
}

/* It is being computed, or was over before this process looked. */
static void running(uint64_t req)
{
	UNTIL(told("status", "running") == 1 || count(ROUTER, MSG_REQUEST_EMBEDDING, req));
}

static const Pds__Embedding *ask_for(uint64_t req, uint32_t n, Pds__Pooling pooling)
{
	say_submit((struct ask){.req = req, .n = n, .to = "", .max_tokens = 1, .pooling = pooling});
	return embedding(req);
}

TEST_LOOP(without_a_decode_worker, 0, 2)
{
	world_begin("kv_blocks=64");
	const Pds__Embedding *e = ask_for(1, 100, _i ? MEAN : LAST);
	ck_assert_uint_eq(e->n_values, 96);
	ck_assert(e->values[0] != 0);
	ck_assert_uint_eq(e->timing->cached_tokens, 0);
	for (struct side *w = D1; w <= D2; w++)
		ck_assert_uint_eq(count(w, MSG_KV_RESERVE, 1), 0);
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FIRST_TOKEN, 1), 0);
	ck_assert_uint_eq(told("status", "ring_used"), 0);
	at_rest();
	float had[4];
	memcpy(had, e->values, sizeof had);
	e = ask_for(2, 100, _i ? MEAN : LAST); /* what the first has computed may be used for `last` */
	ck_assert_uint_eq(e->timing->cached_tokens, _i ? 0 : 96);
	ck_assert(memcmp(e->values, had, sizeof had) == 0);
	world_end();
}

/* All slots of the ring are held by jobs that wait for KvSent: an embedding needs none. */
TEST(no_slot_needed)
{
	world_begin("kv_blocks=64", "ring_slots=1");
	struct transfer t = to_computed(D1, (struct ask){.req = 1, .n = 40, .to = "1"});
	ask_for(2, 40, LAST);
	ask_for(3, 40, MEAN);
	finish(D1, 1, &t);
	world_end();
}

/* It waits for blocks of a job whose lease is renewed meanwhile; it has none itself. */
TEST(waits_beside_a_lease)
{
	world_begin("kv_blocks=8");
	struct transfer t = to_computed(D1, (struct ask){.req = 1, .n = 100, .to = "1"});
	say_submit(
		(struct ask){.req = 2, .n = 100, .seed = 3, .to = "", .max_tokens = 1, .pooling = MEAN});
	unsigned before = count(D1, MSG_KV_RENEW, 0);
	UNTIL(count(D1, MSG_KV_RENEW, 0) >= before + 3);
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_EMBEDDING, 2), 0);
	finish(D1, 1, &t);
	embedding(2);
	world_end();
}

/* Jobs with a slot and without one in the same steps: each gets its own. */
TEST(beside_a_prompt)
{
	world_begin("kv_blocks=128");
	uint64_t req = 1;
	struct transfer t = to_running(D1, &req, "1"); /* it is stopped there */
	say_submit((struct ask){.req = 100, .n = 60, .to = "", .max_tokens = 1, .pooling = MEAN});
	daemon_go_on();
	const Pds__Embedding *e = embedding(100);
	ck_assert_uint_eq(e->n_values, 96);
	float had[4];
	memcpy(had, e->values, sizeof had);
	first_token(req);
	finish(D1, req, &t);
	e = ask_for(101, 60, MEAN);
	ck_assert(memcmp(e->values, had, sizeof had) == 0);
	world_end();
}

TEST(cancelled)
{
	world_begin("kv_blocks=64");
	uint64_t req = 0;
	do {
		ck_assert_uint_lt(++req, 20);
		say_submit((struct ask){.req = req, .n = LONG, .to = "", .max_tokens = 1, .pooling = MEAN});
		running(req);
		say_cancel(ROUTER, req);
		at_rest();
		ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FAILED, req), 0);
	} while (count(ROUTER, MSG_REQUEST_EMBEDDING, req)); /* it was over before the cancel came */
	world_end();
}

/* Of eight places two are for those that generate. */
TEST(leaves_places)
{
	world_begin("kv_blocks=8", "max_jobs=8");
	struct transfer t = to_computed(D1, (struct ask){.req = 1, .n = 100, .to = "1"});
	for (uint64_t i = 2; i <= 7; i++)
		say_submit((struct ask){.req = i, .n = 100, .to = "", .max_tokens = 1, .pooling = MEAN});
	ck_assert_int_eq(failed(7)->fault, PDS__FAULT__FAULT_OVERLOADED);
	ck_assert_int_eq(failed(7)->retry, 1);
	ck_assert_ptr_nonnull(strstr(failed(7)->text, "6 requests, its limit for embeddings"));
	say_submit((struct ask){.req = 8, .n = 40, .to = "2"});
	grant(D2, 8, 40);
	finish(D1, 1, &t);
	struct transfer u = transfer_of(8);
	first_token(8);
	finish(D2, 8, &u);
	for (uint64_t i = 2; i <= 6; i++)
		embedding(i);
	world_end();
}

/* What a prefill worker answers without a decode worker; 0: a single token. */
static const Pds__Pooling kinds[] = {0, LAST, MEAN};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void answered(uint64_t req, Pds__Pooling kind)
{
	if (kind)
		embedding(req);
	else
		ck_assert_int_eq(first_token(req)->finish, PDS__FINISH__FINISH_LENGTH);
}

/* A router that names candidates all the same changes nothing. */
TEST(candidates_are_not_asked)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 1, .n = 100, .to = "1", .max_tokens = 1, .pooling = MEAN});
	embedding(1);
	at_rest();
	ck_assert_uint_eq(count(D1, MSG_KV_RESERVE, 1), 0);
	world_end();
}

/* Another input with the same beginning waits for the blocks that one computes. */
TEST_LOOP(shares_a_running_prefix, 0, KINDS)
{
	world_begin("kv_blocks=64");
	say_submit((struct ask){.req = 1, .n = LONG, .to = "", .max_tokens = 1, .pooling = kinds[_i]});
	running(1);
	const Pds__Embedding *e = ask_for(2, LONG, LAST);
	ck_assert_uint_eq(e->timing->cached_tokens, (LONG - 1) / BLOCK * BLOCK);
	answered(1, kinds[_i]);
	world_end();
}

/* Told to end, it gives back what it has not begun. */
TEST_LOOP(ends, 0, KINDS)
{
	world_begin("kv_blocks=8", "stop_timeout_ms=60000");
	struct transfer t = to_computed(D1, (struct ask){.req = 1, .n = 100, .to = "1"});
	say_submit((struct ask){
		.req = 2, .n = 100, .seed = 3, .to = "", .max_tokens = 1, .pooling = kinds[_i]});
	UNTIL(told("status", "blocked") == 1);
	kill(W.daemon, SIGTERM);
	ck_assert_int_eq(failed(2)->fault, PDS__FAULT__FAULT_DRAINING);
	ck_assert_int_eq(failed(2)->retry, 1);
	finish(D1, 1, &t);
	world_ended();
}

/* And completes what it has begun. */
TEST_LOOP(ends_while_computing, 0, KINDS)
{
	world_begin("kv_blocks=64", "stop_timeout_ms=60000");
	say_submit((struct ask){.req = 1, .n = LONG, .to = "", .max_tokens = 1, .pooling = kinds[_i]});
	running(1);
	kill(W.daemon, SIGTERM);
	answered(1, kinds[_i]);
	world_ended();
}

TEST_LOOP(refused, 0, 5)
{
	static const struct {
		const char *option;
		struct ask ask;
		Pds__Fault fault;
		const char *says;
	} cases[] = {
		{"embeddings=false", {.n = 20, .pooling = LAST}, PDS__FAULT__FAULT_INVALID, "embeddings"},
		{"embeddings=true", {.n = 20, .pooling = 7}, PDS__FAULT__FAULT_INVALID, "pooling 7"},
		{"embeddings=true",
	     {.n = 20, .pooling = LAST, .prompt_logprobs = 1},
	     PDS__FAULT__FAULT_INVALID,
	     "log-probabilities"},
		{"embeddings=true",
	     {.n = 100, .pooling = LAST},
	     PDS__FAULT__FAULT_TOO_LARGE,
	     "7 KV blocks"},
		{"embeddings=true", {.n = 20}, PDS__FAULT__FAULT_DRAINING, "no decode worker was named"},
	};
	struct ask a = cases[_i].ask;
	world_begin("kv_blocks=6", cases[_i].option);
	a.req = 1;
	a.to = "";
	say_submit(a);
	const Pds__Failed *f = failed(1);
	ck_assert_int_eq(f->fault, cases[_i].fault);
	ck_assert_msg(strstr(f->text, cases[_i].says), "%s", f->text);
	world_end();
}

/* More of them than the pool has blocks for: each waits for its turn. */
TEST(many)
{
	world_begin("kv_blocks=8");
	for (uint64_t i = 1; i <= 20; i++)
		say_submit((struct ask){
			.req = i, .n = 100, .to = "", .max_tokens = 1, .pooling = i % 2 ? LAST : MEAN});
	for (uint64_t i = 1; i <= 20; i++)
		ck_assert_uint_eq(embedding(i)->n_values, 96);
	world_end();
}
