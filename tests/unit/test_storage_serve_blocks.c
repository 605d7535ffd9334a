/* test_storage_serve_blocks.c - other layouts and other workers, damage, a tier that is full;
 * and messages with any fields in any order. */
#include "tests/unit/serve_world.h"

/* --- other layouts, other workers ---------------------------------------- */

TEST_CASE("blocks", .timeout_s = 60, .setup = set_up, .teardown = tear_down);

TEST(test_layouts)
{
	static const uint32_t one[] = {1}, zero[] = {0}, two[] = {2};
	int code;
	struct err err = {0};
	struct kv_layout l2 = layout;
	struct pool_memory r2;
	l2.type = KV_F16; /* the same sizes under another name */
	ck_assert_int_eq(pool_memory_new(&r2, &l2, 4, &err), 0);
	block_fill(0, 1);
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 1, one, zero, 1), "o");
	int s2 = hand_over("worker-1", 101, &l2, &r2, &code);
	ck_assert_int_eq(code, 0);
	ck_assert_uint_eq(lookup(&peers[1], one, 1), 0);
	ck_assert_str_eq(ask_wait(&peers[1], MSG_STORE_GET, 1, one, zero, 1), "m");
	/* and neither takes the other's place */
	ck_assert_str_eq(ask_wait(&peers[1], MSG_STORE_PUT, 2, one, zero, 1), "o");
	ck_assert_str_eq(ask_wait(W, MSG_STORE_GET, 2, one, two, 1), "o");
	ck_assert(block_holds(2, 1));
	close(s2);
	pool_memory_fini(&r2);
}

/* Layouts of many layers, and of pieces larger than what is copied in one go. */
TEST_LOOP(test_bursts, 0, 5)
{
	static const uint32_t one[] = {1}, zero[] = {0}, two[] = {2};
	static const struct {
		uint32_t layers, heads, dim;
	} shape[] = {{1, 1, 4}, {32, 1, 4}, {33, 1, 12}, {250, 2, 4}, {5, 40, 128}};
	int code;
	struct err err = {0};
	struct kv_layout l2;
	struct pool_memory r2;
	ck_assert_int_eq(
		kv_layout_uniform(&l2, shape[_i].layers, shape[_i].heads, shape[_i].dim, 16, KV_F32), 0);
	ck_assert_int_eq(pool_memory_new(&r2, &l2, 4, &err), 0);
	for (size_t i = 0; i < r2.region.data_bytes; i++)
		r2.data[i] = (unsigned char)(i * 2654435761u >> 13);
	int s2 = hand_over("worker-1", 101, &l2, &r2, &code);
	ck_assert_int_eq(code, 0);
	ck_assert_str_eq(ask_wait(&peers[1], MSG_STORE_PUT, 1, one, zero, 1), "o");
	ck_assert_str_eq(ask_wait(&peers[1], MSG_STORE_GET, 2, one, two, 1), "o");
	for (uint32_t l = 0; l < l2.layers; l++)
		for (uint32_t b = 0; b < 4; b++) {
			const unsigned char *at = r2.data + kv_piece_offset(&l2, 4, l, b),
								*from = r2.data + kv_piece_offset(&l2, 4, l, b == 2 ? 0 : b);
			ck_assert_int_eq(memcmp(at, from, l2.piece_bytes[l]), 0);
			for (size_t i = 0; b != 2 && i < l2.piece_bytes[l]; i++)
				ck_assert_uint_eq(at[i],
				                  (unsigned char)((size_t)(at + i - r2.data) * 2654435761u >> 13));
		}
	close(s2);
	pool_memory_fini(&r2);
}

static int wait_fails(struct kern_pool *pool, uint64_t number, char *errbuf, size_t errlen)
{
	(void)pool, (void)number;
	snprintf(errbuf, errlen, "the device fell off");
	return KERN_EDEVICE;
}

/* A device that fails: an error of each item, nothing is stored, and the daemon goes on. */
TEST(test_copy_fails)
{
	static const uint32_t one[] = {1}, zero[] = {0}, both[] = {1, 2}, at[] = {0, 3};
	struct kern_copies broken = kern_host_copies;
	struct kern_pool *pool = client_find(&st, "worker-0", 100)->target.region.pool;
	broken.wait = wait_fails;
	pool->by = &broken;
	block_fill(0, 1);
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 1, both, at, 2), "ee");
	ck_assert_uint_eq(lookup(W, one, 1), 0);
	pool->by = &kern_host_copies;
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 2, one, zero, 1), "o");
	pool->by = &broken;
	ck_assert_str_eq(ask_wait(W, MSG_STORE_GET, 3, one, zero, 1), "e");
	pool->by = &kern_host_copies;
	block_clear(0);
	ck_assert_str_eq(ask_wait(W, MSG_STORE_GET, 4, one, zero, 1), "o");
	ck_assert(block_holds(0, 1));
}

/* A worker of the same layout gets what another one put. */
TEST(test_shared)
{
	static const uint32_t one[] = {1}, zero[] = {0};
	int code;
	struct err err = {0};
	struct pool_memory r2;
	ck_assert_int_eq(pool_memory_new(&r2, &layout, BLOCKS, &err), 0);
	block_fill(0, 1);
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 1, one, zero, 1), "o");
	int s2 = hand_over("worker-1", 101, &layout, &r2, &code);
	ck_assert_str_eq(ask_wait(&peers[1], MSG_STORE_GET, 1, one, zero, 1), "o");
	ck_assert_mem_eq(r2.data, shared.data, layout.piece_bytes[0]);
	struct tier_stat t;
	ck_assert_str_eq(ask_wait(&peers[1], MSG_STORE_PUT, 2, one, zero, 1), "o");
	gate.inner->ops->stat(gate.inner, &t);
	ck_assert_uint_eq(t.blocks, 1);
	ck_assert_uint_eq(t.known, 1);
	close(s2);
	pool_memory_fini(&r2);
}

/* A stored byte changes: the get is an error, the worker's block is untouched, the next one is a
 * miss. */
static unsigned char *damaged;
static int (*damage_inner)(struct tier_op *op, const struct tier_span *span, unsigned n);
static int damage_move(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	damaged = span[0].at + 5;
	return damage_inner(op, span, n);
}
static void damage_put(struct tier *t, struct tier_op *op)
{
	(void)t;
	damage_inner = op->move;
	op->move = damage_move;
	gate.inner->ops->put(gate.inner, op);
}

TEST(test_damage)
{
	static const uint32_t one[] = {1}, zero[] = {0}, three[] = {3};
	struct tier_ops ops = gate_ops;
	ops.put = damage_put;
	gate.tier.ops = &ops;
	block_fill(0, 1);
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 1, one, zero, 1), "o");
	*damaged ^= 0x40;
	ck_assert_str_eq(ask_wait(W, MSG_STORE_GET, 2, one, three, 1), "e");
	ck_assert(block_zero(3));
	ck_assert_str_eq(ask_wait(W, MSG_STORE_GET, 3, one, three, 1), "m");
	gate.tier.ops = &gate_ops;
}

static void set_up_small(void)
{
	int code;
	start_with(4 * 65536, 1);
	sock = hand_over("worker-0", 100, &layout, &shared, &code);
	ck_assert_int_ge(sock, 0);
}

TEST_CASE("small", .timeout_s = 60, .setup = set_up_small, .teardown = tear_down);

TEST(test_full)
{
	uint32_t names[6], blocks[6] = {0, 1, 2, 3, 4, 5};
	for (unsigned i = 0; i < 6; i++) {
		names[i] = 50 + i;
		block_fill(i, names[i]);
	}
	/* the tier holds 4: least recently used go */
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 1, names, blocks, 6), "oooooo");
	ck_assert_uint_eq(lookup(W, names, 1), 0);
	ck_assert_uint_eq(lookup(W, &names[2], 4), 4);
}

/* --- workers in turn ----------------------------------------------------- */

/* Batches of worker-0, all of other blocks. */
static void ask_many(enum msg_type type, unsigned batches)
{
	uint32_t names[ASK_MAX], blocks[ASK_MAX];
	for (unsigned b = 0; b < batches; b++) {
		for (uint32_t i = 0; i < ASK_MAX; i++) {
			names[i] = 1000 + b * ASK_MAX + i;
			blocks[i] = i % BLOCKS;
		}
		ask(W, type, 1 + b, names, blocks, ASK_MAX);
	}
}

/* How many answers were given before that one to worker-1. */
static unsigned said_before_other(void)
{
	unsigned n = 0;
	while (n < n_said && said[n].to != &peers[1])
		n++;
	return n;
}

TEST_CASE("turns", .timeout_s = 60, .setup = set_up_one, .teardown = tear_down);

/* One worker queues 27 MB, with one copy thread; another one's block waits for 4 MB of that, and
 * a put for 16 MB of gets. */
TEST_LOOP(test_turns, 0, 4)
{
	static const uint32_t one[] = {1}, zero[] = {0};
	static const struct {
		enum msg_type many, other;
		size_t bytes;
	} row[] = {
		{MSG_STORE_PUT, MSG_STORE_PUT, TURN_BYTES},
		{MSG_STORE_GET, MSG_STORE_GET, TURN_BYTES},
		{MSG_STORE_GET, MSG_STORE_PUT, GETS_BYTES},
		{MSG_STORE_PUT, MSG_STORE_GET, 0},
	};
	enum { MANY = 30 };
	int code;
	struct err err = {0};
	struct pool_memory r2;
	ck_assert_uint_gt(MANY * ASK_MAX * layout.block_bytes, row[_i].bytes * 3 / 2);
	ck_assert_int_eq(pool_memory_new(&r2, &layout, BLOCKS, &err), 0);
	int s2 = hand_over("worker-1", 101, &layout, &r2, &code);
	atomic_store(&gate.closed, 1);
	/* it waits in the copy; what comes is queued behind it */
	ask(W, MSG_STORE_PUT, 1, one, zero, 1);
	for (uint64_t until = clock_us() + 30000000; !atomic_load(&gate.inside) && clock_us() < until;)
		usleep(100);
	ask_many(row[_i].many, MANY + 1); /* number 1 is the one that waits */
	ask(&peers[1], row[_i].other, 1, one, zero, 1);
	atomic_store(&gate.closed, 0);
	loop_until_said(MANY + 2);
	ck_assert_uint_eq(n_said, MANY + 2);
	ck_assert_uint_le(said_before_other(), 2 + row[_i].bytes / (ASK_MAX * layout.block_bytes));
	close(s2);
	pool_memory_fini(&r2);
}

/* A tier that answers nobody until it is told to. */
static struct list held = LIST_INIT(held);
static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint n_held;
static void held_get(struct tier *t, struct tier_op *op)
{
	(void)t;
	pthread_mutex_lock(&held_lock);
	list_push_back(&held, &op->link);
	pthread_mutex_unlock(&held_lock);
	atomic_fetch_add(&n_held, 1);
}

static struct tier_op *held_take(void)
{
	struct tier_op *op = NULL;
	pthread_mutex_lock(&held_lock);
	if (!list_empty(&held)) {
		op = list_entry(held.next, struct tier_op, link);
		list_remove(&op->link);
	}
	pthread_mutex_unlock(&held_lock);
	return op;
}

static int wait_held(unsigned n)
{
	for (uint64_t until = clock_us() + 30000000; atomic_load(&n_held) < n && clock_us() < until;)
		usleep(100);
	usleep(20000);
	return atomic_load(&n_held) == n;
}

/* A slow tier has AWAY_BYTES_MAX of one worker at most, so that another one's block is behind
 * these alone. All are begun in the end. */
TEST(test_away)
{
	static const uint32_t one[] = {1}, zero[] = {0};
	struct tier_ops ops = gate_ops;
	int code;
	struct err err = {0};
	struct pool_memory r2;
	unsigned most = (unsigned)((AWAY_BYTES_MAX + layout.block_bytes - 1) / layout.block_bytes),
			 batches = 2 * most / ASK_MAX;
	ck_assert_int_eq(pool_memory_new(&r2, &layout, BLOCKS, &err), 0);
	int s2 = hand_over("worker-1", 101, &layout, &r2, &code);
	ops.get = held_get;
	gate.tier.ops = &ops;
	atomic_store(&n_held, 0);
	ask_many(MSG_STORE_GET, batches);
	ck_assert(wait_held(most));
	ask(&peers[1], MSG_STORE_GET, 1, one, zero, 1);
	ck_assert(wait_held(most + 1));
	for (uint64_t until = clock_us() + 30000000; n_said < batches + 1 && clock_us() < until;) {
		struct tier_op *op = held_take();
		if (op)
			op->done(op, ERR_NOTFOUND, TIER_NONE, NULL);
		loop();
	}
	ck_assert_uint_eq(n_said, batches + 1);
	gate.tier.ops = &gate_ops;
	close(s2);
	pool_memory_fini(&r2);
}

/* --- fuzz ---------------------------------------------------------------- */

static uint64_t seed;
static uint64_t rnd(uint64_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed % below;
}

static uint64_t rnd_number(void)
{
	static const uint64_t odd[] = {0, 1, UINT32_MAX, UINT64_MAX, 1ull << 63, 4096};
	return rnd(4) ? rnd(200) : odd[rnd(6)];
}

static void at_most(unsigned batches)
{
	for (uint64_t until = clock_us() + 60000000; serve_batches(&st) > batches; usleep(50)) {
		ck_assert_uint_lt(clock_us(), until);
		loop();
	}
}

TEST_CASE("fuzz", .timeout_s = 60, .setup = set_up_one, .teardown = tear_down);

/* Messages with any fields, in any order, of a worker that is attached, one that is not, and one of
 * another life. One copy thread: messages that ask for two writes into one block are answered,
 * but what they deliver is nobody's, and no race is to be reported. */
TEST(test_fuzz)
{
	struct kv_hash hash[40];
	Pds__StoreItem item[40], *list[40];
	ProtobufCBinaryData hashes[40];
	seed = 88172645463325252ull;
	for (unsigned round = 100; round < 3100; round++) {
		size_t n = rnd(40);
		for (size_t i = 0; i < n; i++) {
			hash[i] = hash_of((uint32_t)rnd(30));
			pds__store_item__init(&item[i]);
			hashes[i] = item[i].hash = (ProtobufCBinaryData){.len = rnd(8) ? 32 : rnd(33),
			                                                 .data = hash[i].b};
			item[i].block = (uint32_t)(rnd(8) ? rnd(BLOCKS) : rnd_number());
			item[i].generation = rnd(4) ? 0 : rnd_number();
			list[i] = &item[i];
		}
		Pds__StorePut put = PDS__STORE_PUT__INIT;
		Pds__StoreGet get = PDS__STORE_GET__INIT;
		Pds__StoreLookup look = PDS__STORE_LOOKUP__INIT;
		struct peer *p = rnd(8) ? W : &peers[1];
		peers[0].epoch = rnd(16) ? 100 : 100 + rnd(3);
		put.batch = get.batch = look.batch = rnd(4)    ? round
		                                     : rnd(20) ? round - rnd(50)
		                                               : rnd_number() % 100;
		put.items = get.items = list;
		look.hashes = hashes;
		put.n_items = get.n_items = look.n_hashes = n;
		switch (rnd(4)) {
		case 0: serve_put(NULL, p, NULL, &put.base); break;
		case 1: serve_get(NULL, p, NULL, &get.base); break;
		case 2: serve_lookup(NULL, p, NULL, &look.base); break;
		default: fence(p, round - rnd(8));
		}
		if (rnd(100) == 0)
			serve_down(NULL, p, "fuzz");
		loop();
		at_most(8); /* or a copy thread that gets no processor finds little stored */
		if (n_said > 6000)
			forget_said();
	}
	peers[0].epoch = 100;
	at_most(0);                                 /* everything that began has ended */
	ck_assert_uint_gt(st.stats.gets_hit, 1000); /* and much of it was good */
	block_fill(0, 900);
	ck_assert_str_eq(ask_wait(W, MSG_STORE_PUT, 100000, (uint32_t[]){900}, (uint32_t[]){0}, 1),
	                 "o");
	ck_assert_str_eq(ask_wait(W, MSG_STORE_GET, 100001, (uint32_t[]){900}, (uint32_t[]){1}, 1),
	                 "o");
	ck_assert(block_holds(1, 900));
}
