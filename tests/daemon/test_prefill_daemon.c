/* test_prefill_daemon.c - a pdprefilld process between a played router, decode workers and
 * messager: what it publishes, sends and gives back, and what it refuses. Every test ends with a
 * daemon that holds nothing and that leaves in order. */
#include "prefill_world.h"

/* --- a grant's way to the end -------------------------------------------- */

/* The KV of the common prompt's full blocks, as the first transfer had it; later transfers name
 * blocks with the same bytes. */
static void check_src(uint32_t skip, uint32_t full)
{
	static unsigned char *kv;
	static uint32_t known;
	int first = !kv;
	if (first) {
		known = full;
		kv = mem_array(full, W.layout.block_bytes);
	}
	for (uint32_t l = 0; l < W.layout.layers; l++)
		for (uint32_t b = skip; b < full; b++) {
			unsigned char *at = kv + W.layout.before_bytes[l] * known + b * W.layout.piece_bytes[l];
			const unsigned char *here = piece(l, transfer_now.src[b - skip]);
			if (first)
				memcpy(at, here, W.layout.piece_bytes[l]);
			ck_assert_msg(memcmp(at, here, W.layout.piece_bytes[l]) == 0,
			              "src[%u] of layer %u is not block %u of the prompt", b - skip, l, b);
		}
}

TEST_CASE("grant", .timeout_s = 300);

TEST(test_transfer_and_first_token)
{
	static const struct {
		uint32_t n, cached;
		int ack_first;
	} cases[] = {{150, 0, 0}, {150, 0, 1}, {150, 32, 0}, {150, 144, 1}, {16, 0, 0}, {1, 0, 1}};
	world_begin("kv_blocks=64");
	for (uint64_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		uint64_t req = i + 1;
		uint32_t n = cases[i].n, skip = cases[i].cached / BLOCK, blocks = blocks_for(n) - skip;
		say_submit((struct ask){.req = req, .n = n, .to = "1"});
		UNTIL(count(D1, MSG_KV_RESERVE, req));
		say_grant(D1, req, req + 500, D1->epoch, cases[i].cached, blocks);
		struct transfer t = transfer_of(req);
		ck_assert_int_eq(t.state, RING_PENDING);
		ck_assert_uint_eq(transfer_now.attempt, 1);
		ck_assert_uint_eq(transfer_now.lease_id, req + 500);
		ck_assert_uint_eq(transfer_now.lease_epoch, D1->epoch);
		ck_assert_uint_eq(transfer_now.lease_generation, req + 505);
		ck_assert_str_eq(transfer_now.decode, "decode-1");
		ck_assert_uint_eq(transfer_now.first_token, cases[i].cached);
		ck_assert_uint_eq(transfer_now.tokens, n);
		ck_assert_uint_eq(transfer_now.blocks, blocks);
		ck_assert_int_eq(ring_transfer_check(&transfer_now, BLOCK, W.hello.blocks, 200), 0);
		for (uint32_t b = 0; b < blocks; b++)
			ck_assert_uint_eq(transfer_now.dst[b], 100 + b);
		const Pds__FirstToken *r = first_token(req);
		ck_assert(computed(&t, n));
		check_src(skip, n / BLOCK);
		ck_assert(n != 150 || r->token->id == golden_first);
		UNTIL(count(D1, MSG_REQUEST_FIRST_TOKEN, req));
		const Pds__FirstToken *d = LATEST(Pds__FirstToken, D1, REQUEST_FIRST_TOKEN, req);
		for (const Pds__FirstToken *s = r;; s = d) {
			ck_assert_uint_eq(s->index, 0);
			ck_assert_uint_eq(s->token->id, r->token->id);
			ck_assert_uint_eq(s->lease_id, req + 500);
			ck_assert_uint_eq(s->lease_generation, req + 505);
			ck_assert_str_eq(s->decode, "decode-1");
			ck_assert_uint_eq(s->decode_epoch, D1->epoch);
			ck_assert_int_eq(s->finish, PDS__FINISH__FINISH_NONE);
			if (s == d)
				break;
		}
		if (cases[i].ack_first)
			ack(D1, req);
		else
			kv_sent(req, &t);
		pump_for(30000);
		UNTIL(handed_over() == 1);
		UNTIL(kv_count("held") == (cases[i].ack_first ? blocks_for(n) : 0));
		if (cases[i].ack_first)
			kv_sent(req, &t);
		else
			ack(D1, req);
		flush();
		ck_assert_uint_eq(count(D1, MSG_REQUEST_CANCEL, req), 0);
		ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FAILED, req), 0);
	}
	world_end();
}

enum { COVERED = 320, FULL = COVERED / BLOCK };

static uint32_t taken[8]; /* blocks of each layer that were copied */

/* Copies each block of the transfer that the board says is there. 1: these were the last. */
static int copy_told(const struct transfer *t, const struct ring_transfer *of, unsigned char *copy,
                     int *half_way)
{
	int done = 1;
	for (uint32_t l = 0; l < W.hello.layers; l++) {
		uint32_t p = ring_progress(W.ring, t->slot, l, t->gen);
		ck_assert_uint_le(p, COVERED);
		ck_assert_uint_ge(p, taken[l] * BLOCK);
		for (; (taken[l] + 1) * BLOCK <= p; taken[l]++)
			memcpy(copy + W.layout.before_bytes[l] * FULL + taken[l] * W.layout.piece_bytes[l],
			       piece(l, of->src[taken[l]]), W.layout.piece_bytes[l]);
		*half_way |= p > 0 && p < COVERED;
		done &= p == COVERED;
	}
	return done;
}

/* Each at the moment that it is there. 0: all was there when this process looked. */
static int copy_as_told(const struct transfer *t, const struct ring_transfer *of,
                        unsigned char *copy)
{
	int half_way = 0;
	ck_assert_uint_le(W.hello.layers, COUNT(taken));
	memset(taken, 0, sizeof taken);
	UNTIL_BY(copy_told(t, of, copy, &half_way), GLANCE());
	return half_way;
}

static void holds(const struct ring_transfer *of, const unsigned char *copy)
{
	for (uint32_t l = 0; l < W.hello.layers; l++)
		for (uint32_t b = 0; b < FULL; b++)
			ck_assert_msg(memcmp(copy + W.layout.before_bytes[l] * FULL +
			                         b * W.layout.piece_bytes[l],
			                     piece(l, of->src[b]), W.layout.piece_bytes[l]) == 0,
			              "layer %u, block %u changed after progress had covered it", l, b);
}

/* What progress covers is final: copied the moment that the board says so, it is what is there
 * at the end, and what a second run computes. */
TEST(bm2_word_before_kernel)
{
	static struct ring_transfer of;
	struct transfer t;
	uint64_t req = 0;
	world_begin("kv_blocks=64");
	unsigned char *copy = mem_array(FULL, W.layout.block_bytes);
	for (int half_way = 0; !half_way;) {
		ck_assert_uint_lt(++req, 20);
		say_submit((struct ask){.req = req, .n = COVERED, .to = "1"});
		grant(D1, req, COVERED);
		t = transfer_of(req);
		of = transfer_now;
		half_way = copy_as_told(&t, &of, copy);
		first_token(req);
		holds(&of, copy);
		finish(D1, req, &t);
		flush();
	}
	t = to_computed(D1, (struct ask){.req = ++req, .n = COVERED, .to = "1"});
	holds(&transfer_now, copy);
	finish(D1, req, &t);
	free(copy);
	world_end();
}

/* s-p-ends-at-kvsent: whichever of KV_SENT and the acknowledgement comes first, the lease is
 * renewed until the other has come, and not after. */
TEST(s_p_ends_at_kvsent)
{
	world_begin("kv_blocks=64");
	struct transfer one = to_computed(D1, (struct ask){.req = 1, .n = 64, .to = "1"}),
					two = to_computed(D2, (struct ask){.req = 2, .n = 64, .to = "2"});
	kv_sent(1, &one);
	say_ack(D1, 1, 999); /* of another lease: counts for nothing */
	ack(D2, 2);
	unsigned before1 = renewals(D1, 501), before2 = renewals(D2, 502);
	UNTIL(renewals(D1, 501) >= before1 + 2 && renewals(D2, 502) >= before2 + 2);
	ck_assert_uint_eq(handed_over(), 2);
	ack(D1, 1);
	kv_sent(2, &two);
	at_rest();
	pump_for(100000); /* those that are under way */
	before1 = renewals(D1, 501);
	before2 = renewals(D2, 502);
	pump_for(900000);
	ck_assert_uint_eq(renewals(D1, 501), before1);
	ck_assert_uint_eq(renewals(D2, 502), before2);
	world_end();
}

TEST(test_kv_sent_before_first_token)
{
	world_begin("kv_blocks=64");
	uint64_t req = 1;
	struct transfer t = to_running(D1, &req, "1");
	kv_sent(req, &t);
	transfer_failed(req, t.slot, t.gen); /* what was sent cannot fail */
	daemon_go_on();
	first_token(req);
	UNTIL(kv_count("held") == 0);
	ck_assert_uint_eq(handed_over(), 1);
	ack(D1, req);
	at_rest();
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FAILED, req), 0);
	world_end();
}

TEST(test_other_generations_are_ignored)
{
	world_begin("kv_blocks=64");
	struct transfer old = to_computed(D1, (struct ask){.req = 1, .n = 64, .to = "1"});
	finish(D1, 1, &old);
	at_rest();
	struct transfer t = to_computed(D1, (struct ask){.req = 2, .n = 64, .to = "1"});
	const struct {
		uint32_t slot;
		uint64_t gen;
	} wrong[] = {{t.slot, t.gen + 1}, {t.slot, t.gen - 1}, {old.slot, old.gen},
	             {t.slot + 1, t.gen}, {100000, t.gen},     {UINT32_MAX, 0}};
	for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		if (wrong[i].slot == t.slot && wrong[i].gen == t.gen)
			continue;
		say_kv_sent(2, wrong[i].slot, wrong[i].gen);
		transfer_failed(2, wrong[i].slot, wrong[i].gen);
	}
	ack(D1, 2);
	pump_for(100000);
	ck_assert_uint_eq(handed_over(), 1);
	ck_assert_uint_eq(kv_count("held"), 4);
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FAILED, 2), 0);
	kv_sent(2, &t);
	at_rest();
	t = to_computed(D1, (struct ask){.req = 3, .n = 64, .to = "1"});
	transfer_failed(3, t.slot, t.gen); /* its own: the attempt ends with what the messager says */
	const Pds__Failed *f = failed(3);
	ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_LEASE_LOST);
	ck_assert_str_eq(f->text, "the lease was refused");
	ck_assert_str_eq(f->blame, "");
	ck_assert_int_eq(f->retry, 1);
	UNTIL(count(D1, MSG_REQUEST_CANCEL, 3));
	world_end();
}

/* --- submitting ---------------------------------------------------------- */

TEST_CASE("submit", .timeout_s = 300);

TEST(test_submitted_twice)
{
	world_begin("kv_blocks=64");
	struct ask a = {.req = 1, .n = 64, .to = "1"};
	say_submit(a);
	say_submit(a);
	struct transfer t = to_computed(D1, a);
	say_submit(a);
	pump_for(100000);
	ck_assert_uint_eq(count(D1, MSG_KV_RESERVE, 1), 1);
	ck_assert_uint_eq(count(ROUTER, MSG_REQUEST_FIRST_TOKEN, 1), 1);
	ck_assert_uint_eq(count(D1, MSG_REQUEST_FIRST_TOKEN, 1), 1);
	ck_assert_uint_eq(told("status", "ring_used"), 1);
	finish(D1, 1, &t);
	world_end();
}

TEST(test_prefix_of_a_finished_request)
{
	static const struct {
		uint32_t n, own_from, cached;
	} cases[] = {{150, 150, 144}, {150, 80, 80}, {150, 70, 64}, {64, 64, 48}, {150, 5, 0}};
	world_begin("kv_blocks=64");
	for (uint64_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ask a = {.req = 10 * i + 1,
		                .n = cases[i].n,
		                .to = "1",
		                .seed = 3,
		                .own_from = cases[i].own_from};
		uint32_t want = alone(a);
		struct transfer t = to_computed(D1, (struct ask){.req = 10 * i + 2, .n = 160, .to = "1"});
		finish(D1, 10 * i + 2, &t);
		at_rest();
		a.req = 10 * i + 3;
		t = to_computed(D1, a);
		const Pds__FirstToken *f = LATEST(Pds__FirstToken, ROUTER, REQUEST_FIRST_TOKEN, a.req);
		ck_assert_msg(f->timing->cached_tokens == cases[i].cached && f->token->id == want,
		              "%u tokens, own from %u: %u cached, not %u; token %u, alone %u", a.n,
		              a.own_from, f->timing->cached_tokens, cases[i].cached, f->token->id, want);
		ck_assert(computed(&t, a.n));
		finish(D1, a.req, &t);
	}
	world_end();
}

/* A second one with the same beginning while the first is half done: it uses no more than what
 * is there. */
TEST(test_prefix_of_a_running_request)
{
	world_begin("kv_blocks=64");
	uint64_t req = 10;
	uint32_t cached = 0, want[TRIES];
	for (unsigned i = 0; i < TRIES; i++)
		want[i] = alone((struct ask){.req = 1 + i, .n = 300, .to = "1", .seed = 10 + i});
	/* parked: one of them has the beginning of whichever is met half way */
	for (unsigned i = 0; i < TRIES; i++)
		say_submit((struct ask){.req = 20 + i, .n = 300, .to = "2", .seed = 10 + i});
	for (unsigned i = 0; i < TRIES; i++)
		UNTIL(count(D2, MSG_KV_RESERVE, 20 + i));
	struct transfer first = to_running(D1, &req, "1");
	uint64_t next = req + 10;
	grant(D2, next, 300);
	for (unsigned i = 0; i < TRIES; i++)
		if (20 + i != next)
			say_cancel(ROUTER, 20 + i);
	daemon_go_on();
	struct transfer second = transfer_of(next);
	for (uint32_t l = 0; l < W.hello.layers; l++) {
		uint32_t said = ring_progress(W.ring, second.slot, l, second.gen);
		/* who takes the blocks now gets computed ones; from 288 on it computes its own */
		ck_assert_uint_le(said < 288 ? said : 288, ring_progress(W.ring, first.slot, l, first.gen));
	}
	const Pds__FirstToken *f = first_token(next);
	cached = f->timing->cached_tokens;
	ck_assert_uint_eq(cached % BLOCK, 0);
	ck_assert_uint_le(cached, 288);
	ck_assert_uint_eq(f->token->id, want[req - 10]);
	first_token(req);
	finish(D1, req, &first);
	finish(D2, next, &second);
	world_end();
}

TEST(test_refused)
{
	static const struct {
		const char *name, *to;
		uint32_t n;
		Pds__Fault fault;
		int retry;
	} cases[] = {
		{"larger than the pool", "1", 129, PDS__FAULT__FAULT_TOO_LARGE, 0},
		/* the router has not heard of a switched role */
		{"no decode worker", "", 64, PDS__FAULT__FAULT_DRAINING, 1},
	};
	world_begin("kv_blocks=8", "max_jobs=2");
	for (uint64_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		say_submit((struct ask){.req = i + 1, .n = cases[i].n, .to = cases[i].to});
		const Pds__Failed *f = failed(i + 1);
		ck_assert_msg(f->fault == cases[i].fault && f->retry == cases[i].retry && f->text[0],
		              "%s: fault %d, retry %d", cases[i].name, f->fault, f->retry);
		ck_assert_uint_eq(count(D1, MSG_KV_RESERVE, i + 1), 0);
	}
	for (uint64_t r = 10; r < 13; r++)
		say_submit((struct ask){.req = r, .n = 128, .to = "1"});
	ck_assert_int_eq(failed(12)->fault, PDS__FAULT__FAULT_OVERLOADED);
	ck_assert_int_eq(failed(12)->retry, 1);
	UNTIL(count(D1, MSG_KV_RESERVE, 10) && count(D1, MSG_KV_RESERVE, 11));
	say_cancel(ROUTER, 10);
	say_cancel(ROUTER, 11);
	world_end();
}

TEST(test_prompt_logprobs)
{
	world_begin("kv_blocks=64", "max_batched_tokens=128");
	for (uint64_t r = 1; r <= 2; r++) {
		/* the second may not use what the first left in the cache */
		struct transfer t = to_computed(
			D1, (struct ask){.req = r, .n = 150, .to = "1", .prompt_logprobs = 1});
		const Pds__FirstToken *f = LATEST(Pds__FirstToken, ROUTER, REQUEST_FIRST_TOKEN, r);
		ck_assert_uint_eq(prompt_logprobs(r), 149);
		ck_assert_uint_eq(f->timing->cached_tokens, 0);
		ck_assert_uint_eq(f->token->id, golden_first);
		finish(D1, r, &t);
	}
	world_end();
}
