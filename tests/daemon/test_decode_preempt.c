/* test_decode_preempt.c - pddecoded whose sequences do not fit: they are preempted, saved, restored
 * or computed again, beside a storage daemon that answers well, late, twice, wrongly, never, or
 * is killed before any step. Whatever it does: every token is that of the undisturbed sequence,
 * and no block or pin is left. */
/* run: minutes */
#include "preempt_world.h"

/* --- as it should be ----------------------------------------------------- */

TEST_CASE("storage answers", .timeout_s = 300);

TEST_LOOP(saved_and_read_back, 0, 2)
{
	static const enum manner manner[] = {AT_ONCE, TWICE};
	preempt_begin();
	learn_pair();
	ck_assert_uint_eq(S.puts, 0); /* nobody was preempted */
	S.put = S.get = S.lookup = S.fence = manner[_i];
	submit_pair();
	same_pair();
	UNTIL(metric("preempt_saved_blocks_total") >= 7);
	ck_assert_uint_eq(metric("preempt_unsaved_blocks_total"), 0);
	UNTIL(metric("restores_read_total") >= 1);
	UNTIL(metric("restored_blocks_total") >= 4);
	ck_assert_uint_eq(metric("restores_abandoned_total"), 0);
	preempt_end();
}

TEST(not_saved_when_it_is_off)
{
	preempt_begin("save_preempted_kv=false");
	learn_pair();
	submit_pair();
	same_pair();
	ck_assert_uint_eq(S.puts, 0);
	ck_assert_uint_eq(metric("restores_read_total"), 0);
	UNTIL(metric("restores_computed_total") >= 1);
	preempt_end();
}

/* What storage has keeps the tail of the one that comes back from being computed: only its last
 * block is. */
TEST(what_was_read_is_not_computed)
{
	preempt_begin();
	learn_pair();
	uint64_t before = metric("prompt_tokens_total");
	submit_pair();
	same_pair();
	uint64_t computed = metric("prompt_tokens_total") - before;
	ck_assert_uint_ge(computed, 200); /* the prompts */
	ck_assert_uint_lt(computed, 200 + 2 * BLOCK);
	preempt_end();
}

/* A local request that was never preempted: what storage has of it is read as well. */
TEST(a_local_request_is_read_back)
{
	preempt_begin("output_caching=true");
	say_submit(2, growing(1, PAIR));
	UNTIL(ended(2) && requests_are("[]") && S.puts && kv_count("readers") == 0);
	want[1] = D.answer[2];
	ctl("flush");
	say_submit(1, growing(1, PAIR));
	same(1);
	ck_assert_uint_ge(S.gets, 1);
	UNTIL(metric("stored_tokens_total") == 96);
	ck_assert_uint_eq(metric("restores_read_total"), 0);
	preempt_end();
}

/* --- late, or never ------------------------------------------------------ */

/* The write-out is not acknowledged: the older one takes the blocks after a bounded wait. The
 * acknowledgement that comes then is about contents that are gone. */
TEST(a_late_save_is_void)
{
	preempt_begin("preempt_wait_ms=20");
	learn_pair();
	S.put = BY_HAND;
	submit_pair();
	const Pds__StorePut *m = (const Pds__StorePut *)await(STORAGE, MSG_STORE_PUT, 0);
	UNTIL(ended(1));
	UNTIL(metric("preempt_saves_void_total") >= 1);
	uint32_t reused = 0;
	for (size_t i = 0; i < m->n_items; i++)
		reused += generation_of(m->items[i]->block) != m->items[i]->generation;
	ck_assert_uint_ge(reused, 5);
	answer_put(m);
	same_pair();
	UNTIL(metric("preempt_unsaved_blocks_total") >= reused);
	preempt_end();
}

/* A late write-out is given up for its blocks only: not while what waits lacks a place. */
TEST(a_late_write_out_is_in_nobodys_way)
{
	preempt_begin("preempt_wait_ms=20", "output_caching=true", "max_sequences=1", "lease_ms=1000");
	S.put = BY_HAND;
	say_submit(1, growing(1, 40, 16));
	const Pds__StorePut *m = (const Pds__StorePut *)await(STORAGE, MSG_STORE_PUT, 0);
	UNTIL(ended(1) && requests_are("[]"));
	reserve(2, tokens_of(20)); /* it has the only place */
	say_reserve(3, 1, tokens_of(21));
	await(PREFILL, MSG_KV_QUEUED, 3);
	pump_for(150000);
	ck_assert_uint_eq(kv_count("readers"), (uint32_t)m->n_items);
	for (size_t i = 0; i < m->n_items; i++)
		ck_assert_uint_eq(generation_of(m->items[i]->block), m->items[i]->generation);
	answer_put(m);
	UNTIL(kv_count("readers") == 0);
	preempt_end();
}

/* Blocks that are on their way to storage are not reused before the wait is over. */
TEST(pinned_until_it_is_saved)
{
	preempt_begin();
	learn_pair();
	S.put = BY_HAND;
	submit_pair();
	const Pds__StorePut *m = (const Pds__StorePut *)await(STORAGE, MSG_STORE_PUT, 0);
	UNTIL(strstr(ctl("status"), "\"preempted\":1") && kv_count("readers") == m->n_items);
	pump_for(300000);
	ck_assert(!ended(1)); /* it sits out */
	for (size_t i = 0; i < m->n_items; i++)
		ck_assert_uint_eq(generation_of(m->items[i]->block), m->items[i]->generation);
	ck_assert_uint_eq(kv_count("readers"), (uint32_t)m->n_items);
	answer_put(m);
	S.put = AT_ONCE;
	same_pair();
	ck_assert_uint_eq(metric("preempt_saves_void_total"), 0);
	ck_assert_uint_eq(metric("preempt_unsaved_blocks_total"), 0);
	preempt_end();
}

/* While the older one sits out, whoever has what it needs decodes on. */
TEST(others_run_while_one_sits_out)
{
	preempt_begin("kv_blocks=23");
	learn_pair();
	learn(3, 10, 18); /* two blocks for its whole life */
	S.put = BY_HAND;
	submit_pair();
	const Pds__StorePut *m = (const Pds__StorePut *)await(STORAGE, MSG_STORE_PUT, 0);
	pump_for(50000);
	ck_assert(!ended(1));
	answer_put(m);
	S.put = AT_ONCE;
	say_submit(3, growing(3, 10, 18));
	same_pair();
	same(3);
	preempt_end();
}

static const struct {
	const char *what;
	enum manner put, lookup, get;
} silent[] = {{"no put is answered", BY_HAND, AT_ONCE, AT_ONCE},
              {"no look-up", AT_ONCE, BY_HAND, AT_ONCE},
              {"nothing is", BY_HAND, BY_HAND, BY_HAND}};

TEST_CASE("storage is silent", .timeout_s = 300);

TEST_LOOP(never_answered, 0, COUNT(silent))
{
	preempt_begin("preempt_wait_ms=20", "restore_wait_ms=200");
	learn_pair();
	S.put = silent[_i].put;
	S.lookup = silent[_i].lookup;
	S.get = silent[_i].get;
	submit_pair();
	same_pair();
	if (S.lookup == BY_HAND)
		ck_assert_uint_eq(metric("restores_read_total"), 0);
	UNTIL(strstr(ctl("status"), "\"at_storage\":0"));
	preempt_end();
}

/* --- a read that does not end -------------------------------------------- */

static void scribble(const Pds__StoreGet *m)
{
	unsigned char *junk = mem_alloc(W.layout.block_bytes);
	memset(junk, 0x42, W.layout.block_bytes);
	for (size_t i = 0; i < m->n_items; i++)
		pieces_move(m->items[i]->block, junk, 0, W.layout.layers, 1);
	free(junk);
}

static void same_generations(const Pds__StoreGet *m)
{
	for (size_t i = 0; i < m->n_items; i++)
		ck_assert_uint_eq(generation_of(m->items[i]->block), m->items[i]->generation);
}

/* Brings 2 there: storage is asked to write into its blocks, and does not answer. */
static const Pds__StoreGet *to_read(void)
{
	S.get = S.fence = BY_HAND;
	submit_pair();
	return (const Pds__StoreGet *)await(STORAGE, MSG_STORE_GET, 0);
}

/* The sequence goes on in other blocks; those that storage may write are nobody's until it
 * acknowledges the fence, and what it writes there harms nobody. */
TEST(a_silent_read_keeps_its_blocks)
{
	preempt_begin("restore_wait_ms=1000");
	learn_pair();
	learn(3, 60, 40);
	const Pds__StoreGet *m = to_read();
	ck_assert_uint_ge(m->n_items, 2);
	const Pds__StoreFence *f = (const Pds__StoreFence *)await(STORAGE, MSG_STORE_FENCE, 0);
	ck_assert_uint_eq(f->batch, m->batch);
	same_pair();
	UNTIL(metric("restores_abandoned_total") >= 1);
	UNTIL(requests_are("[]"));
	UNTIL(kv_count("held") == m->n_items);
	ck_assert_ptr_nonnull(strstr(ctl("kv"), "\"reason\":\"fence"));
	scribble(m);
	say_submit(3, growing(3, 60, 40));
	same(3);
	same_generations(m);
	answer_fence(f);
	UNTIL(kv_count("held") == 0);
	preempt_end();
}

/* A lease takes the room that the late one needs, so that it waits until its fence has ended: it
 * does not ask storage once more then. */
TEST(a_late_read_is_computed)
{
	preempt_begin("restore_wait_ms=2000");
	learn_pair();
	const Pds__StoreGet *m = to_read();
	ck_assert_uint_ge(m->n_items, 2);
	reserve(3, tokens_of(150)); /* 10 blocks */
	const Pds__StoreFence *f = (const Pds__StoreFence *)await(STORAGE, MSG_STORE_FENCE, 0);
	UNTIL(requests_are("\"state\":\"preempted\""));
	answer_fence(f);
	UNTIL(requests_are("\"state\":\"active\""));
	say_cancel(PREFILL, 3);
	same_pair();
	ck_assert_ptr_null(take(STORAGE, MSG_STORE_GET, 0));
	preempt_end();
}

/* Answered after all, before the fence: what has come is used. */
TEST(a_slow_read_is_used)
{
	preempt_begin();
	learn_pair();
	const Pds__StoreGet *m = to_read();
	UNTIL(requests_are("\"state\":\"restoring\""));
	pump_for(200000);
	same_generations(m);
	ck_assert(!ended(2));
	S.get = AT_ONCE;
	answer_get(m);
	same_pair();
	UNTIL(metric("restores_read_total") >= 1);
	preempt_end();
}

/* Given up while storage may write: by the client, by its own deadline, by the router's end. Its
 * blocks wait for the fence, nothing else does. */
TEST_LOOP(cancelled_while_it_is_restored, 0, 2)
{
	preempt_begin();
	learn_pair();
	learn(3, 60, 40);
	const Pds__StoreGet *m = to_read();
	if (_i == 0)
		say_cancel(ROUTER, 2);
	else
		side_close(ROUTER);
	const Pds__StoreFence *f = (const Pds__StoreFence *)await(STORAGE, MSG_STORE_FENCE, 0);
	UNTIL(requests_are("[]"));
	UNTIL(kv_count("held") == m->n_items);
	if (_i == 0) {
		say_submit(3, growing(3, 60, 40));
		same(3);
	}
	scribble(m);
	same_generations(m);
	UNTIL(kv_count("held") == m->n_items);
	answer_fence(f);
	UNTIL(kv_count("held") == 0);
	preempt_end();
}

/* The stage does not end before storage has: the role is switched when the fence has come. */
TEST(the_role_waits_for_the_fence)
{
	preempt_begin("role_switch_timeout_ms=600000");
	learn_pair();
	const Pds__StoreGet *m = to_read();
	ask_role("prefill", 0);
	say_cancel(ROUTER, 2);
	const Pds__StoreFence *f = (const Pds__StoreFence *)await(STORAGE, MSG_STORE_FENCE, 0);
	UNTIL(requests_are("[]"));
	pump_for(300000);
	ck_assert_ptr_nonnull(strstr(ask_role(NULL, 0), "\"switching\":\"prefill\""));
	UNTIL(kv_count("held") == m->n_items);
	answer_fence(f);
	UNTIL(strstr(ask_role(NULL, 0), "\"role\":\"prefill\",\"switching\":null"));
	preempt_end();
}

/* As when it is told to end. */
TEST(the_end_waits_for_the_fence)
{
	preempt_begin();
	learn_pair();
	to_read();
	say_cancel(ROUTER, 2);
	const Pds__StoreFence *f = (const Pds__StoreFence *)await(STORAGE, MSG_STORE_FENCE, 0);
	UNTIL(requests_are("[]"));
	kill(W.daemon, SIGTERM);
	pump_for(300000);
	ck_assert_int_eq(waitpid(W.daemon, NULL, WNOHANG), 0);
	answer_fence(f);
	world_ended();
	storage_kill();
}

/* Three sequences; the younger two come back again and again while the oldest grows, and storage
 * never answers a read: the oldest takes its blocks in the end. */
TEST(silent_reads_do_not_hold_the_oldest)
{
	preempt_begin("kv_blocks=24", "preempt_wait_ms=20");
	learn(1, 100, 200);
	learn(2, 100, 100);
	learn(3, 100, 60);
	S.get = S.fence = BY_HAND;
	for (uint32_t n = 1; n <= 3; n++)
		say_submit(n, n == 1 ? growing(1, 100, 200) : growing(n, 100, n == 2 ? 100 : 60));
	same(1);
	/* what was asked so far is answered now: fences, and reads that were given up */
	S.get = S.fence = AT_ONCE;
	same(2);
	same(3);
	preempt_end();
}

/* --- answers that are wrong ---------------------------------------------- */

static Pds__StoreCode wrong_code;
static uint32_t wrong_from;

static void answer_wrong(const Pds__StoreGet *m)
{
	Pds__StoreCode code[16];
	ck_assert_uint_le(m->n_items, 16);
	scribble(m);
	for (size_t i = 0; i < m->n_items; i++) {
		code[i] = i < wrong_from ? PDS__STORE_CODE__STORE_OK : wrong_code;
		const struct stored *s = stored_find(m->items[i]->hash.data);
		if (i < wrong_from)
			pieces_move(m->items[i]->block, s->data, 0, W.layout.layers, 1);
	}
	say_done(m->batch, m->items, m->n_items, code);
}

TEST_CASE("storage answers");

/* Only what storage says to be there and verified, from the first on, is used; the rest is
 * computed over whatever it left in the blocks. */
TEST(misses_and_errors_are_computed)
{
	static const Pds__StoreCode codes[] = {PDS__STORE_CODE__STORE_MISS,
	                                       PDS__STORE_CODE__STORE_ERROR,
	                                       PDS__STORE_CODE__STORE_VOID,
	                                       PDS__STORE_CODE__STORE_CANCELLED};
	preempt_begin();
	learn_pair();
	for (int i = 0; i < COUNT(codes); i++) {
		uint64_t computed = metric("restores_computed_total");
		wrong_code = codes[i];
		wrong_from = (uint32_t)i % 2;
		S.get = BY_HAND;
		submit_pair();
		answer_wrong((const Pds__StoreGet *)await(STORAGE, MSG_STORE_GET, 0));
		S.get = AT_ONCE;
		same_pair();
		ck_assert_uint_eq(metric("restores_computed_total") > computed, wrong_from == 0);
		pair_again();
	}
	preempt_end();
}

/* --- killed -------------------------------------------------------------- */

static int kill_at;

static void killer(int step)
{
	if (step == kill_at)
		storage_kill();
}

TEST_CASE("storage is killed", .timeout_s = 300);

/* Before each of its steps: a put received, copied; a look-up; a get received, half written,
 * written. It comes back with what it had committed, or with nothing. */
TEST(killed_before_any_step)
{
	preempt_begin();
	learn_pair();
	for (kill_at = 0; kill_at < 10; kill_at++) {
		S.step = 0;
		S.before = killer;
		submit_pair();
		UNTIL(!STORAGE->c || (ended(pair) && ended(pair + 1)));
		int killed = !STORAGE->c;
		S.before = NULL;
		if (kill_at % 2 && killed)
			storage_forget();
		if (killed)
			storage_again();
		same_pair();
		ck_assert_msg(killed || kill_at > 4, "storage was not asked enough to be killed at step %d",
		              kill_at);
		UNTIL(storage_ready());
		pair_again();
	}
	preempt_end();
}

/* Killed with a read half written that nobody fenced: the end of its process is the fence. */
TEST(killed_in_a_read_that_was_given_up)
{
	preempt_begin("restore_wait_ms=1000");
	learn_pair();
	const Pds__StoreGet *m = to_read();
	await(STORAGE, MSG_STORE_FENCE, 0);
	UNTIL(metric("restores_abandoned_total") == 1);
	scribble(m);
	same_generations(m);
	storage_kill();
	same_pair();
	UNTIL(kv_count("held") == 0);
	preempt_end();
}

/* Its link ends and its process lives: it may write on, so the blocks stay. */
TEST(a_lost_link_is_no_fence)
{
	preempt_begin("restore_wait_ms=1000");
	learn_pair();
	const Pds__StoreGet *m = to_read();
	side_close(STORAGE);
	same_pair();
	UNTIL(requests_are("[]"));
	scribble(m);
	same_generations(m);
	UNTIL(kv_count("held") == m->n_items);
	storage_kill();
	UNTIL(kv_count("held") == 0);
	preempt_end();
}
