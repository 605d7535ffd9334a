/* test_model_prefill.c - pdprefilld under the event sequences of the protocol's models
 * (tests/model/README.md) that the tests of prefill workers do not play already. Each test has the
 * name of the line that breaks without its rule. */
#include "prefill_world.h"

static uint64_t sum_of(const uint32_t *blocks, uint32_t n)
{
	uint64_t h = 1469598103934665603ull;
	for (uint32_t l = 0; l < W.layout.layers; l++)
		for (uint32_t b = 0; b < n; b++) {
			const unsigned char *at = piece(l, blocks[b]);
			for (size_t k = 0; k < W.layout.piece_bytes[l]; k += 8)
				h = (h ^ *(const uint64_t *)(at + k)) * 1099511628211ull;
		}
	return h;
}

/* The words of the slot's row, whatever generation they are of. */
static void row_of(const struct transfer *t, uint64_t out[8])
{
	for (uint32_t l = 0; l < W.hello.layers; l++)
		out[l] = __atomic_load_n(ring_progress_word(W.ring, t->slot, l), __ATOMIC_ACQUIRE);
}

/* A prompt that is computed in one long step, stopped in the middle of it; 0: it was over before
 * this process looked. */
static int to_mid_step(uint64_t req, struct transfer *t)
{
	say_submit((struct ask){.req = req, .n = LONG, .to = "1", .seed = (uint32_t)req});
	grant(D1, req, LONG);
	*t = transfer_of(req);
	UNTIL_BY(ring_progress(W.ring, t->slot, 0, t->gen), (void)0);
	daemon_stop();
	return ring_progress(W.ring, t->slot, W.hello.layers - 1, t->gen) == 0;
}

static int retired(const struct transfer *t)
{
	uint64_t gen;
	ring_peek(W.ring, t->slot, &gen);
	return gen != t->gen;
}

/* Cancelled in the middle of a step. Slot and blocks are given back when the device has drained,
 * not before: from the moment that the slot is free nothing is stored into its words and nothing
 * into the transfer's blocks, and no block is free while the request is still there. */
TEST_LOOP(s_drain_not_blocks, 0, 2)
{
	uint64_t after[8], later[8], req = 1;
	static uint32_t src[RING_BLOCKS_MAX];
	struct transfer t;
	world_begin("kv_blocks=36", "max_batched_tokens=480");
	ck_assert_uint_le(W.hello.layers, 8);
	for (; !to_mid_step(req, &t); req++) {
		ck_assert_uint_lt(req, 20);
		daemon_go_on();
		first_token(req);
		finish(D1, req, &t);
		at_rest();
	}
	uint32_t n = transfer_now.blocks;
	memcpy(src, transfer_now.src, n * sizeof *src);
	say_cancel(ROUTER, req);
	pump_for(5000);
	daemon_go_on();
	if (_i == 0) { /* seen in shared memory */
		for (uint64_t end = clock_us() + WAIT_US; !retired(&t);)
			ck_assert_uint_lt(clock_us(), end);
		row_of(&t, after);
		uint64_t sum = sum_of(src, n);
		UNTIL(requests_are("[]"));
		pump_for(50000);
		row_of(&t, later);
		for (uint32_t l = 0; l < W.hello.layers; l++)
			ck_assert_msg(after[l] == later[l],
			              "layer %u: the word was stored after its slot had been given back", l);
		ck_assert_uint_eq(sum, sum_of(src, n));
	} else { /* told by the daemon */
		for (uint64_t end = clock_us() + WAIT_US; kv_count("held") != 0;)
			ck_assert_uint_lt(clock_us(), end);
		ck_assert_msg(requests_are("[]"), "blocks are free while the request still runs: %s",
		              W.text);
	}
	UNTIL(count(D1, MSG_REQUEST_CANCEL, req));
	world_end();
}

static int is_reused(const struct ring_transfer *t, const uint64_t *gen)
{
	int reused = 0;
	for (uint32_t i = 0; i < t->blocks; i++)
		reused |= W.shared.region.generations[t->src[i]] != gen[i];
	return reused;
}

/* P has computed all, is cancelled, and its blocks are the next request's at once: from then on
 * no messager may mark the slot. */
TEST(m8_cancel_not_in_slot_blocks_reused)
{
	world_begin("kv_blocks=8");
	struct transfer one = to_computed(D1, (struct ask){.req = 1, .n = 100, .to = "1"});
	static struct ring_transfer first;
	first = transfer_now;
	say_submit((struct ask){.req = 2, .n = 100, .to = "2", .seed = 2});
	grant(D2, 2, 100);
	UNTIL(told("status", "blocked") == 1);
	uint64_t gen[64];
	ck_assert_uint_le(first.blocks, 64);
	for (uint32_t i = 0; i < first.blocks; i++)
		gen[i] = W.shared.region.generations[first.src[i]];
	say_cancel(ROUTER, 1);
	UNTIL_BY(is_reused(&first, gen), GLANCE());
	ck_assert_int_eq(ring_mark_sent(W.ring, one.slot, one.gen), ERR_STALE);
	struct transfer two = transfer_of(2);
	first_token(2);
	finish(D2, 2, &two);
	world_end();
}
