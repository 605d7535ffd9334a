/* test_pool_events.c - whoever follows the pool's index by its changes knows what is in it: in
 * order, late, from pieces of a list, with another thread at work. */
#include "kv/pool.h"
#include "util/err.h"

#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define IDS 40u
#define BLOCKS 12u
static const struct reqid A = {1, 1};
static _Atomic uint64_t gens[4096];
static struct kv_pool *pool;
static _Atomic int wakes;
static unsigned char heard[IDS]; /* what a follower takes the index to hold, by id */

static struct kv_hash H(uint32_t id) {
	struct kv_hash h;
	memset(h.b, 0xee, sizeof h.b);
	for (int i = 0; i < 8; i++)
		h.b[i] = (unsigned char)((uint64_t)id >> 8 * i);
	return h;
}

static void
make(uint32_t blocks)
{
	memset((void *)gens, 0, sizeof gens);
	memset(heard, 0, sizeof heard);
	wakes = 0;
	pool = kv_pool_new(blocks, 4, gens);
}

static void unmake(void)
{
	if (pool)
		kv_pool_verify(pool);
	kv_pool_destroy(&pool);
}

static void on_wake(void *arg)
{
	struct kv_stats s;
	kv_pool_stats(arg, &s); /* its mutex is free */
	wakes++;
}

static void put(uint32_t id)
{
	struct kv_hash h = H(id);
	uint32_t b;
	ck_assert_int_eq(kv_pool_take(pool, 1, KV_HELD, &A, &b), 0);
	kv_pool_publish(pool, b, &h, NULL);
	kv_pool_release(pool, &b, 1);
}

static int is_stored(uint32_t id)
{
	struct kv_hash h = H(id);
	return kv_pool_probe(pool, &h, 1) == 1;
}

static void hear(const struct kv_change *c)
{
	ck_assert_uint_lt(c->hash, IDS);
	heard[c->hash] = (unsigned char)c->stored;
}

static void hear_all(uint64_t *cursor, uint32_t piece)
{
	struct kv_change c[64];
	uint32_t n;
	do {
		ck_assert_int_eq(kv_pool_changes(pool, cursor, piece, c, &n), 0);
		for (uint32_t i = 0; i < n; i++)
			hear(&c[i]);
	} while (n == piece);
	ck_assert_uint_eq(*cursor, kv_pool_changes_end(pool));
}

static void expect_heard(void)
{
	for (uint32_t id = 0; id < IDS; id++)
		ck_assert_msg(heard[id] == is_stored(id), "hash %u: stored %d, heard %d", id, is_stored(id),
		              heard[id]);
}

TEST_CASE("follow", .timeout_s = 60, .teardown = unmake);

TEST(in_order)
{
	static const struct kv_change want[] = {{1, 1}, {2, 1}, {3, 1}, {1, 0},
	                                        {4, 1}, {2, 0}, {3, 0}, {4, 0}};
	struct kv_change c[16];
	uint64_t cursor = 0, second = 0;
	uint32_t n;
	make(3);
	kv_pool_follow(pool, 16, on_wake, pool);
	for (uint32_t id = 1; id <= 3; id++)
		put(id);
	put(3); /* a twin: no entry, no change */
	put(4);
	kv_pool_flush(pool);
	ck_assert_int_eq(kv_pool_changes(pool, &cursor, 16, c, &n), 0);
	/* the twin took the oldest's block; 2 to 4 go in the order of blocks */
	ck_assert_uint_eq(n, sizeof want / sizeof *want);
	int stored = 0;
	for (uint32_t i = 0; i < n; i++)
		stored += c[i].stored ? 1 : -1;
	ck_assert_int_eq(stored, 0);
	for (uint32_t i = 0; i < 5; i++)
		ck_assert_msg(c[i].hash == want[i].hash && c[i].stored == want[i].stored,
		              "change %u: %llu %d", i, (unsigned long long)c[i].hash, c[i].stored);
	ck_assert_uint_eq(cursor, 8);
	ck_assert_int_eq(kv_pool_changes(pool, &cursor, 16, c, &n), 0);
	ck_assert_uint_eq(n, 0);
	/* another reader, in pieces */
	ck_assert_int_eq(kv_pool_changes(pool, &second, 3, c, &n), 0);
	ck_assert_uint_eq(n, 3);
	ck_assert_uint_eq(c[2].hash, 3);
}

TEST(wakes_once_until_asked)
{
	struct kv_change c[4];
	uint64_t cursor = 0;
	uint32_t n;
	make(8);
	put(1); /* before anybody follows: not recorded */
	kv_pool_follow(pool, 4, on_wake, pool);
	ck_assert_int_eq(wakes, 0);
	put(2);
	put(3);
	ck_assert_int_eq(wakes, 1);
	kv_pool_changes(pool, &cursor, 4, c, &n);
	ck_assert_uint_eq(n, 2);
	put(2); /* nothing changes */
	ck_assert_int_eq(wakes, 1);
	kv_pool_flush(pool);
	ck_assert_int_eq(wakes, 2);
	ck_assert_int_eq(kv_pool_changes(pool, &cursor, 4, c, &n), 0);
	ck_assert_uint_eq(n, 3);
}

/* The record is bounded: who comes too late is told so, each time, until it begins anew; others
 * are not concerned. */
TEST(too_late)
{
	struct kv_change c[8];
	uint64_t late = 0, now;
	uint32_t n;
	make(8);
	kv_pool_follow(pool, 4, on_wake, pool);
	for (uint32_t id = 1; id <= 4; id++)
		put(id);
	ck_assert_int_eq(kv_pool_changes(pool, &late, 1, c, &n), 0);
	put(5);
	put(6);
	ck_assert_int_eq(kv_pool_changes(pool, &late, 8, c, &n), ERR_STALE);
	ck_assert_uint_eq(n, 0);
	ck_assert_int_eq(kv_pool_changes(pool, &late, 8, c, &n), ERR_STALE);
	now = kv_pool_changes_end(pool) - 4; /* as far back as it goes */
	ck_assert_int_eq(kv_pool_changes(pool, &now, 8, c, &n), 0);
	ck_assert_uint_eq(n, 4);
	ck_assert_uint_eq(c[0].hash, 3);
	ck_assert_uint_eq(c[3].hash, 6);
	now++; /* nobody was there yet */
	ck_assert_int_eq(kv_pool_changes(pool, &now, 8, c, &n), ERR_STALE);
}

static void random_change(void)
{
	switch (rand() % 8) {
	case 0:
		if (rand() % 8 == 0)
			kv_pool_flush(pool);
		break;
	default: put((uint32_t)rand() % IDS);
	}
}

TEST_LOOP(follower_knows_the_index, 0, 4)
{
	uint64_t cursor = 0;
	srand(7 + (unsigned)_i);
	make(BLOCKS);
	kv_pool_follow(pool, 32, on_wake, pool);
	for (int i = 0; i < 4000; i++) {
		random_change();
		if (rand() % 4 == 0)
			hear_all(&cursor, 1 + (uint32_t)rand() % 8);
		else if (kv_pool_changes_end(pool) - cursor < 4)
			continue;
		hear_all(&cursor, 64);
		expect_heard();
	}
}

/* A list in pieces while the index changes between them, then the changes since before the first
 * piece. */
TEST_LOOP(list_in_pieces, 0, 4)
{
	srand(70 + (unsigned)_i);
	make(BLOCKS);
	kv_pool_follow(pool, 4096, on_wake, pool);
	for (int round = 0; round < 300; round++) {
		uint64_t out[BLOCKS], cursor = kv_pool_changes_end(pool);
		uint32_t block = 0, piece = 1 + (uint32_t)rand() % 5;
		memset(heard, 0, sizeof heard);
		while (block < BLOCKS) {
			uint32_t before = block, n = kv_pool_entries(pool, &block, piece, out);
			ck_assert_uint_le(n, piece);
			ck_assert_uint_le(block, before + piece);
			for (uint32_t i = 0; i < n; i++)
				hear(&(struct kv_change){out[i], 1});
			for (int k = rand() % 6; k > 0; k--)
				random_change();
		}
		hear_all(&cursor, 7);
		expect_heard();
	}
}

static _Atomic int stop;

static void *changer(void *arg)
{
	(void)arg;
	for (uint32_t i = 0; !stop; i++) {
		put(i * 7 % IDS);
		if (i % 16 == 0)
			sched_yield();
	}
	return NULL;
}

TEST(another_thread_changes_it)
{
	pthread_t t;
	struct kv_change c[64];
	uint64_t cursor = 0, changes = 0, lists = 0;
	uint32_t n;
	make(BLOCKS);
	stop = 0;
	kv_pool_follow(pool, 64, on_wake, pool);
	ck_assert_int_eq(pthread_create(&t, NULL, changer, NULL), 0);
	while (changes < 4000 || lists < 1) {
		if (kv_pool_changes(pool, &cursor, 64, c, &n) == ERR_STALE) {
			uint64_t out[BLOCKS];
			uint32_t block = 0;
			cursor = kv_pool_changes_end(pool);
			memset(heard, 0, sizeof heard);
			n = kv_pool_entries(pool, &block, BLOCKS, out);
			for (uint32_t i = 0; i < n; i++)
				hear(&(struct kv_change){out[i], 1});
			lists++;
			continue;
		}
		for (uint32_t i = 0; i < n; i++)
			hear(&c[i]);
		changes += n;
		if (lists == 0 && changes > 1000) /* fall behind, once */
			for (uint64_t end = cursor + 200; kv_pool_changes_end(pool) < end;)
				;
	}
	stop = 1;
	pthread_join(t, NULL);
	if (kv_pool_changes_end(pool) - cursor <= 64) {
		hear_all(&cursor, 64);
		expect_heard();
	}
	ck_assert_int_gt(wakes, 0);
}
