/* test_storage_serve.c - puts, gets and look-ups of workers: generations, fences, repeated
 * messages, refusals. */
/* run: threads */
#include "tests/unit/serve_world.h"

/* --- what goes in comes out ---------------------------------------------- */

TEST_CASE("serve", .timeout_s = 60, .setup = set_up, .teardown = tear_down);

TEST(test_put_get)
{
	static const uint32_t names[] = {11, 12, 13}, from[] = {2, 0, 7}, to[] = {3, 4, 5};
	static const uint32_t asked[] = {11, 12, 14, 13};
	for (unsigned i = 0; i < 3; i++)
		block_fill(from[i], names[i]);
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 1, names, from, 3), "ooo");
	ck_assert_uint_eq(lookup(W, asked, 4), 2);
	ck_assert_str_eq(ask_wait(W, MSG_STORE_GET, 2, names, to, 3), "ooo");
	for (unsigned i = 0; i < 3; i++)
		ck_assert(block_holds(to[i], names[i]));
	ck_assert(block_zero(1) && block_zero(6)); /* nobody else's block was touched */
	ck_assert_str_eq(ask_wait(W, MSG_STORE_GET, 3, asked, (uint32_t[]){3, 4, 6, 5}, 4), "oomo");
	ck_assert(block_zero(6));
}

/* Batch numbers, generations and blocks that are not good. */
TEST(test_refusals)
{
	static const uint32_t one[] = {1}, zero[] = {0}, far[] = {BLOCKS};
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 5, one, zero, 1), "o");
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 5, one, zero, 1), "c"); /* used */
	ck_assert_str_eq(ask_wait(W, MSG_STORE_GET, 4, one, zero, 1), "c"); /* older */
	ck_assert_str_eq(ask_wait(W, MSG_STORE_GET, 6, one, far, 1), "e");
	ck_assert_str_eq(ask_wait(W, MSG_STORE_GET, 7, one, zero, 0), "");
	/* has handed nothing over */
	ck_assert_str_eq(ask_wait(&peers[1], MSG_STORE_GET, 1, one, zero, 1), "e");
	ck_assert_uint_eq(lookup(&peers[1], one, 1), 0);
	/* another life of the worker */
	peers[0].epoch++;
	ck_assert_str_eq(ask_wait(W, MSG_STORE_GET, 8, one, zero, 1), "e");
	peers[0].epoch--;
	for (size_t len = 0; len <= 33; len += 31 + (len == 31)) {
		/* 0, 31, 33 bytes of hash, and no byte behind them */
		unsigned char *hash = mem_alloc(len + !len);
		Pds__StoreItem item = PDS__STORE_ITEM__INIT, *list = &item;
		Pds__StorePut put = PDS__STORE_PUT__INIT;
		memset(hash, 1, len + !len);
		item.hash = (ProtobufCBinaryData){.len = len, .data = hash};
		put.batch = 20 + len;
		put.items = &list;
		put.n_items = 1;
		forget_said();
		serve_put(NULL, W, NULL, &put.base);
		loop_until_said(1);
		ck_assert_str_eq(codes_of(0, 20 + len), "e");
		free(hash);
	}
	draining = 1;
	ck_assert_str_eq(ask_wait(W, MSG_STORE_GET, 69, one, zero, 1), "f");
	draining = 0;
	ck_assert_str_eq(ask_wait(W, MSG_STORE_GET, 70, one, zero, 1), "o");
}

/* --- generations --------------------------------------------------------- */

TEST(pm1_pm2_no_check)
{
	static const uint32_t one[] = {1}, zero[] = {0};
	forget_said();
	/* the generation changes between the first check and the last */
	ask(W, MSG_STORE_PUT, 1, one, zero, 1);
	loop_until_said(1);
	ck_assert_str_eq(codes_of(0, 1), "o");
	block_fill(0, 2);
	gate.bump = &shared.region.generations[0];
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 2, (uint32_t[]){2}, zero, 1), "v");
	gate.bump = NULL;
	ck_assert_uint_eq(lookup(W, (uint32_t[]){2}, 1), 0);
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 3, (uint32_t[]){2}, zero, 1), "o");
	/* a get into room that is not the asker's any more: nothing is written */
	block_clear(3);
	gate.bump = &shared.region.generations[3];
	ck_assert_str_eq(ask_wait(W, MSG_STORE_GET, 4, (uint32_t[]){2}, (uint32_t[]){3}, 1), "v");
	gate.bump = NULL;
	ck_assert(block_zero(3));
}

/* Stored, acknowledged, and the block is another's: a put that still names the old generation,
 * repeated or new, stores nothing under the old hash. */
TEST(pm4_same_gen_after_ack)
{
	static const uint32_t one[] = {1}, zero[] = {0}, three[] = {3};
	block_fill(0, 1);
	uint64_t old = atomic_load(&shared.region.generations[0]);
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 1, one, zero, 1), "o");
	/* reused: the generation first, then the first new byte */
	atomic_fetch_add(&shared.region.generations[0], 1);
	block_fill(0, 2);
	for (uint64_t batch = 1; batch <= 2; batch++) {
		struct kv_hash hash = hash_of(batch == 1 ? 1 : 7);
		Pds__StoreItem item = PDS__STORE_ITEM__INIT, *list = &item;
		Pds__StorePut put = PDS__STORE_PUT__INIT;
		item.hash = (ProtobufCBinaryData){.len = 32, .data = hash.b};
		item.generation = old;
		put.batch = batch;
		put.items = &list;
		put.n_items = 1;
		forget_said();
		serve_put(NULL, W, NULL, &put.base);
		loop_until_said(1);
		ck_assert_str_eq(codes_of(0, batch), batch == 1 ? "c" : "v");
	}
	ck_assert_uint_eq(lookup(W, (uint32_t[]){7}, 1), 0);
	ck_assert_str_eq(ask_wait(W, MSG_STORE_GET, 3, one, three, 1), "o");
	ck_assert(block_holds(3, 1));
}

/* All bytes are copied, the put is not committed yet: nobody finds the hash, a get is a miss and
 * writes nothing. */
TEST(pm7_index_before_data)
{
	static const uint32_t one[] = {1}, zero[] = {0}, five[] = {5};
	block_fill(0, 1);
	atomic_store(&gate.closed, 1);
	ask(W, MSG_STORE_PUT, 1, one, zero, 1);
	for (int i = 0; i < 150000 && atomic_load(&gate.inside) != 1; i++)
		usleep(200);
	ck_assert_int_eq(atomic_load(&gate.inside), 1);
	ck_assert_uint_eq(lookup(W, one, 1), 0);
	ck_assert_str_eq(ask_wait(W, MSG_STORE_GET, 2, one, five, 1), "m");
	ck_assert(block_zero(5));
	forget_said();
	atomic_store(&gate.closed, 0);
	loop_until_said(1);
	ck_assert_str_eq(codes_of(0, 1), "o");
	ck_assert_uint_eq(lookup(W, one, 1), 1);
	ck_assert_str_eq(ask_wait(W, MSG_STORE_GET, 3, one, five, 1), "o");
	ck_assert(block_holds(5, 1));
}

/* --- fences -------------------------------------------------------------- */

/* Acknowledged only when no write of the batch is in flight; what had not begun is given up. */
TEST(pm8_ack_while_writing)
{
	static const uint32_t names[] = {1, 2, 3, 4}, blocks[] = {0, 1, 2, 3}, to[] = {4, 5, 6, 7};
	for (unsigned i = 0; i < 4; i++)
		block_fill(blocks[i], names[i]);
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 1, names, blocks, 4), "oooo");
	atomic_store(&gate.closed, 1);
	forget_said();
	ask(W, MSG_STORE_GET, 2, names, to, 4);
	wait_inside(2); /* two threads */
	fence(W, 2);
	fence(W, 2); /* repeated */
	usleep(20000);
	loop();
	ck_assert_uint_eq(n_said, 0);
	atomic_store(&gate.closed, 0);
	loop_until_said(2);
	ck_assert_uint_eq(n_said, 2);
	ck_assert_str_eq(codes_of(0, 2), "oocc");
	ck_assert_int_eq(said[1].type, MSG_STORE_FENCED);
	ck_assert_uint_eq(((Pds__StoreFenced *)said[1].body)->batch, 2);
	ck_assert(block_zero(6) && block_zero(7));
}

/* A fence for a batch that is not there is acknowledged at once, and final: the batch does not
 * begin when it comes after all. */
TEST(test_fence_overtakes)
{
	static const uint32_t one[] = {1}, zero[] = {0}, five[] = {5};
	block_fill(0, 1);
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 1, one, zero, 1), "o");
	forget_said();
	fence(W, 7);
	fence(&peers[2], 3); /* somebody without memory here */
	ck_assert_uint_eq(n_said, 2);
	ck_assert_int_eq(said[0].type, MSG_STORE_FENCED);
	ck_assert_int_eq(said[1].type, MSG_STORE_FENCED);
	ck_assert_str_eq(ask_wait(W, MSG_STORE_GET, 7, one, five, 1), "c");
	ck_assert(block_zero(5));
	ck_assert_str_eq(ask_wait(W, MSG_STORE_GET, 8, one, five, 1), "o");
}

/* A repeated message of a batch under way starts nothing and is answered once. */
TEST(test_repeated)
{
	static const uint32_t one[] = {1}, zero[] = {0};
	atomic_store(&gate.closed, 1);
	ask(W, MSG_STORE_PUT, 1, one, zero, 1);
	wait_inside(1);
	ask(W, MSG_STORE_PUT, 1, one, zero, 1);
	atomic_store(&gate.closed, 0);
	loop_until_said(1);
	usleep(10000);
	loop();
	ck_assert_uint_eq(n_said, 1);
	ck_assert_str_eq(codes_of(0, 1), "o");
}

/* --- bounds -------------------------------------------------------------- */

/* n items of one name and block, in batch number `batch`. */
static void put_many(uint64_t batch, size_t n)
{
	struct kv_hash hash = hash_of(1);
	Pds__StoreItem item = PDS__STORE_ITEM__INIT, **list = mem_array(n, sizeof *list);
	Pds__StorePut m = PDS__STORE_PUT__INIT;
	item.hash = (ProtobufCBinaryData){.len = 32, .data = hash.b};
	item.generation = atomic_load(&shared.region.generations[0]);
	for (size_t i = 0; i < n; i++)
		list[i] = &item;
	m.batch = batch;
	m.items = list;
	m.n_items = n;
	serve_put(NULL, W, NULL, &m.base);
	free(list);
}

/* A worker may have so many blocks under way; one more is refused at once, and when they have
 * ended there is room again. */
TEST(test_items_bound)
{
	static const uint32_t one[] = {1}, zero[] = {0};
	const unsigned full = CLIENT_ITEMS_MAX / BATCH_ITEMS_MAX;
	atomic_store(&gate.closed, 1);
	for (unsigned i = 1; i <= full; i++)
		put_many(i, BATCH_ITEMS_MAX);
	ck_assert_uint_eq(n_said, 0);
	put_many(full + 1, 1);
	ck_assert_uint_eq(n_said, 1);
	ck_assert_str_eq(codes_of(0, full + 1), "f");
	ck_assert_ptr_nonnull(strstr(((Pds__StoreDone *)said[0].body)->results[0]->text, "65536"));
	for (unsigned i = 1; i <= full; i++)
		fence(W, i);
	atomic_store(&gate.closed, 0);
	loop_until_said(1 + 2 * full);
	ck_assert_uint_eq(serve_batches(&st), 0);
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, full + 2, one, zero, 1), "o");
}

static struct tier_find *waiting[FINDINGS_MAX];
static unsigned n_waiting;
static void lookup_waits(struct tier *t, struct tier_find *f)
{
	(void)t;
	if (f->n == 0) {
		f->done(f);
		return;
	}
	ck_assert_uint_lt(n_waiting, FINDINGS_MAX);
	waiting[n_waiting++] = f;
}

/* So many look-ups are with the tiers at a time; what comes on top hears at once that nothing is
 * known to be there. */
TEST(test_lookups_bound)
{
	static const uint32_t one[] = {1}, zero[] = {0};
	struct kv_hash hash = hash_of(1);
	ProtobufCBinaryData list = {.len = 32, .data = hash.b};
	Pds__StoreLookup m = PDS__STORE_LOOKUP__INIT;
	struct tier_ops slow = gate_ops;
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 1, one, zero, 1), "o");
	forget_said();
	slow.lookup = lookup_waits;
	gate.tier.ops = &slow;
	m.hashes = &list;
	m.n_hashes = 1;
	for (unsigned i = 0; i < FINDINGS_MAX; i++)
		serve_lookup(NULL, W, NULL, &m.base);
	loop();
	ck_assert_uint_eq(n_said, 0);
	ck_assert_uint_eq(lookup(W, one, 1), 0);
	for (unsigned i = 0; i < n_waiting; i++)
		gate_lookup(NULL, waiting[i]);
	forget_said();
	loop_until_said(FINDINGS_MAX);
	for (unsigned i = 0; i < FINDINGS_MAX; i++)
		ck_assert_uint_eq(((Pds__StoreFound *)said[i].body)->leading, 1);
	gate.tier.ops = &gate_ops;
	ck_assert_uint_eq(lookup(W, one, 1), 1);
}
