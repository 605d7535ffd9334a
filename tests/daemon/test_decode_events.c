/* test_decode_events.c - what pddecoded tells a router of its prefix index: the router, who knows
 * nothing but the messages and the worker's description, works out the hashes of the prompts
 * that it sent and finds what is kept and what was evicted. */
/* run: threads waits */
#include "decode_world.h"
#include "hash_chain.h"

#define HASHES 4096u

static struct {
	uint64_t hash[HASHES];
	uint32_t n, resets, messages, largest;
} index_; /* as the router knows it */

static void forget(uint64_t hash)
{
	for (uint32_t i = 0; i < index_.n; i++)
		if (index_.hash[i] == hash) {
			index_.hash[i] = index_.hash[--index_.n];
			return;
		}
}

static void hear_events(void)
{
	const Pds__KvEvents *m;
	while ((m = (const Pds__KvEvents *)take(ROUTER, MSG_KV_EVENTS, 0))) {
		index_.messages++;
		if (m->reset) {
			index_.n = 0;
			index_.resets++;
		}
		ck_assert_uint_eq(m->tier, 0);
		ck_assert_uint_le(m->n_stored + m->n_removed, HASHES);
		for (size_t i = 0; i < m->n_stored; i++)
			for (size_t k = 0; k < m->n_removed; k++)
				ck_assert_msg(m->stored[i] != m->removed[k],
				              "stored and removed in one message: which was last?");
		for (size_t i = 0; i < m->n_removed; i++)
			forget(m->removed[i]);
		for (size_t i = 0; i < m->n_stored; i++) {
			forget(m->stored[i]);
			ck_assert_uint_lt(index_.n, HASHES);
			index_.hash[index_.n++] = m->stored[i];
		}
	}
}

static int knows(uint64_t hash)
{
	for (uint32_t i = 0; i < index_.n; i++)
		if (index_.hash[i] == hash)
			return 1;
	return 0;
}

/* How many leading blocks of the prompt the worker has, as the router sees it. */
static uint32_t leading(struct prompt p)
{
	struct kv_hash root, h[64];
	struct kv_root r = {.model_fingerprint = W.info->model_fingerprint,
	                    .numerics = W.info->numerics,
	                    .layout = W.info->layout};
	uint32_t i = 0;
	kv_hash_root(&r, &root);
	uint32_t n = hash_chain(&root, p.tokens, p.n, BLOCK, h);
	hear_events();
	for (; i < n; i++) {
		uint64_t v = 0;
		for (unsigned k = 8; k-- > 0;)
			v = v << 8 | h[i].b[k];
		if (!knows(v))
			break;
	}
	return i;
}

static void run(uint32_t n, struct prompt p)
{
	p.max_tokens = 1;
	say_submit(n, p);
	UNTIL(D.answer[n].finish == PDS__FINISH__FINISH_LENGTH);
}

static void begin(const char *blocks)
{
	memset(&index_, 0, sizeof index_);
	world_begin(blocks);
	UNTIL((hear_events(), index_.resets == 1)); /* an empty list is said, too */
	ck_assert_uint_eq(index_.n, 0);
}

TEST(stored_and_evicted)
{
	begin("kv_blocks=8");
	run(1, tokens_of(100));
	UNTIL(leading(tokens_of(100)) == 6);
	ck_assert_uint_eq(kv_count("cached"), 6);
	/* 5 blocks, 2 free: the older prompt's tail goes */
	run(2, tokens_of(70));
	UNTIL(leading(tokens_of(70)) == 4);
	UNTIL(leading(tokens_of(100)) == 3);
	UNTIL((hear_events(), index_.n == kv_count("cached")));
	ctl("flush");
	UNTIL((hear_events(), index_.n == 0));
	run(3, tokens_of(40));
	UNTIL(leading(tokens_of(40)) == 2);
	ck_assert_uint_eq(index_.resets, 1);
	world_end();
}

/* A block is not matchable before its contents are there: nothing is said of a lease until it
 * has joined. */
TEST(lease_is_silent_until_it_joins)
{
	begin("kv_blocks=8");
	Pds__Lease l = written(1, tokens_of(40));
	say_first(PREFILL, 1, l, 9);
	settle(PREFILL);
	pump_for(100000);
	hear_events();
	ck_assert_uint_eq(index_.n, 0);
	say_ready(MESSAGER, 1, l);
	UNTIL(leading(tokens_of(40)) == 2);
	say_cancel(ROUTER, 1);
	world_end();
}

/* A restarted router, and one that only lost the link's state, hear everything once more. */
TEST_LOOP(router_comes_back, 0, 2)
{
	begin("kv_blocks=8");
	run(1, tokens_of(100));
	UNTIL(leading(tokens_of(100)) == 6);
	link_again(ROUTER, ROUTER->epoch + (uint64_t)_i);
	memset(&index_, 0, sizeof index_);
	UNTIL(leading(tokens_of(100)) == 6);
	ck_assert_uint_eq(index_.resets, 1);
	run(2, tokens_of(40));
	UNTIL(leading(tokens_of(40)) == 2);
	world_end();
}

/* The next life of the worker has an empty pool, and says so. */
TEST(worker_is_killed)
{
	begin("kv_blocks=8");
	run(1, tokens_of(100));
	UNTIL(leading(tokens_of(100)) == 6);
	daemon_restart();
	UNTIL((hear_events(), index_.resets == 2));
	ck_assert_uint_eq(index_.n, 0);
	run(2, tokens_of(40));
	UNTIL(leading(tokens_of(40)) == 2);
	world_end();
}

/* Many changes while the router does not read: it knows all of them in the end, in few messages. */
TEST(busy_pool)
{
	begin("kv_blocks=40");
	for (uint32_t n = 1; n < 40; n++)
		run(n, tokens_of(100 + n));
	UNTIL(leading(tokens_of(139)) == 8 && index_.n == kv_count("cached"));
	ck_assert_uint_eq(index_.resets, 1);
	world_end();
}
