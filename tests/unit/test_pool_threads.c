/* test_pool_threads.c - two threads match, take, publish and give back along chains that both
 * share. */
/* run: threads */
#include "pool_rig.h"

#include <pthread.h>

#define T_BLOCKS 64u
static _Atomic int stamp[T_BLOCKS]; /* which thread has the block exclusively, 0: none */

/* Matches, takes, publishes and gives back along chains that both threads share; blocks that
 * were taken are nobody else's. */
static void *worker(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;
	for (int round = 0; round < 1500; round++) {
		uint32_t out[8], first = (uint32_t)rand_r(&seed) % 12 * 10 + 1,
						 n = (uint32_t)rand_r(&seed) % 8 + 1;
		struct kv_hash h[8];
		for (uint32_t i = 0; i < n; i++)
			h[i] = H(first + i);
		uint32_t got = kv_pool_match(pool, h, n, &A, out);
		if (kv_pool_take(pool, n - got, KV_HELD, &A, out + got) < 0) {
			kv_pool_release(pool, out, got);
			continue;
		}
		for (uint32_t i = got; i < n; i++)
			ck_assert_int_eq(atomic_exchange(&stamp[out[i]], (int)(uintptr_t)arg), 0);
		uint64_t pin = kv_pool_read_begin(pool, out[n - 1], NULL);
		for (uint32_t i = got; i < n; i++) {
			ck_assert_int_eq(atomic_exchange(&stamp[out[i]], 0), (int)(uintptr_t)arg);
			kv_pool_publish(pool, out[i], &h[i], i ? &h[i - 1] : NULL);
		}
		kv_pool_release(pool, out, n);
		if (round % 100 == 0)
			kv_pool_verify(pool);
		if (round % 3)
			kv_pool_read_end(pool, pin);
		else
			kv_pool_void(pool, pin);
	}
	return NULL;
}

TEST(two_threads)
{
	pthread_t t[2];
	make(T_BLOCKS);
	for (uintptr_t i = 0; i < 2; i++)
		ck_assert_int_eq(pthread_create(&t[i], NULL, worker, (void *)(i + 1)), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	struct kv_stats s;
	kv_pool_stats(pool, &s);
	ck_assert_uint_eq(s.by_state[KV_HELD] + s.readers, 0);
	ck_assert_uint_gt(s.evictions, 0);
	ck_assert_uint_gt(s.hit_tokens, 0);
	kv_pool_flush(pool);
	expect(T_BLOCKS, 0, 0, 0, 0);
}
