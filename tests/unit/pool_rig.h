/* pool_rig.h - one block pool under test, its generations, and what its accounting must say. */
#ifndef TESTS_POOL_RIG_H
#define TESTS_POOL_RIG_H

#include "kv/copies.h"
#include "kv/pool.h"
#include "util/err.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BT 4u
static const struct reqid A = {1, 1}, B = {2, 2};
static _Atomic uint64_t gens[256];
static struct kv_pool *pool;

static inline struct kv_hash H(uint32_t id) {
	struct kv_hash h = {{0}};
	memcpy(h.b, &id, sizeof id);
	return h;
}

static inline void
make(uint32_t blocks)
{
	memset((void *)gens, 0, sizeof gens);
	pool = kv_pool_new(blocks, BT, gens);
}

static inline void unmake(void)
{
	if (pool)
		kv_pool_verify(pool);
	kv_pool_destroy(&pool);
}

static inline void expect(uint32_t is_free, uint32_t held, uint32_t leased, uint32_t cached,
                          uint32_t evictable)
{
	struct kv_stats s;
	kv_pool_verify(pool);
	kv_pool_stats(pool, &s);
	ck_assert_uint_eq(s.by_state[KV_FREE], is_free);
	ck_assert_uint_eq(s.by_state[KV_HELD], held);
	ck_assert_uint_eq(s.by_state[KV_LEASED], leased);
	ck_assert_uint_eq(s.by_state[KV_CACHED], cached);
	ck_assert_uint_eq(s.evictable, evictable);
	ck_assert_uint_eq(is_free + held + leased + cached, s.blocks);
}

TEST_CASE("pool", .timeout_s = 120, .teardown = unmake);

#endif
