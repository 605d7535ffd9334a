/* test_queue.c - order, bounds, close. */
/* run: threads */
#include "util/err.h"
#include "util/queue.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

TEST_CASE("queue", .timeout_s = 60);

TEST(keeps_order_and_bound)
{
	struct queue *q = queue_new(3);
	int v[5];
	for (int round = 0; round < 4; round++) { /* the ring's end is passed */
		ck_assert_int_eq(queue_put(q, &v[0]), 0);
		ck_assert_int_eq(queue_put(q, &v[1]), 0);
		ck_assert_int_eq(queue_put(q, &v[2]), 0);
		ck_assert_int_eq(queue_put(q, &v[3]), ERR_FULL);
		ck_assert_ptr_eq(queue_take(q), &v[0]);
		ck_assert_ptr_eq(queue_take(q), &v[1]);
		ck_assert_int_eq(queue_put(q, &v[4]), 0);
		ck_assert_ptr_eq(queue_take(q), &v[2]);
		ck_assert_ptr_eq(queue_take(q), &v[4]);
	}
	queue_destroy(&q);
	ck_assert_ptr_null(q);
	queue_destroy(&q);
}

TEST(close_drains_then_says_closed)
{
	struct queue *q = queue_new(4);
	int v[2];
	queue_put(q, &v[0]);
	queue_put(q, &v[1]);
	queue_close(q);
	queue_close(q);
	ck_assert_int_eq(queue_put(q, &v[0]), ERR_CLOSED);
	ck_assert_ptr_eq(queue_take(q), &v[0]);
	ck_assert_ptr_eq(queue_take(q), &v[1]);
	ck_assert_ptr_null(queue_take(q));
	queue_destroy(&q);

	q = queue_new(4);
	queue_close(q);
	ck_assert_ptr_null(queue_take(q));
	queue_destroy(&q);
}

#define PRODUCERS 3
#define TAKERS 3
#define EACH 4000

struct crowd {
	struct queue *q;
	_Atomic uint64_t put, got, taken;
};

static void *produce(void *arg)
{
	struct crowd *c = arg;
	for (uintptr_t i = 1; i <= EACH;) {
		if (queue_put(c->q, (void *)i) == 0) {
			atomic_fetch_add(&c->put, i);
			i++;
		} else {
			sched_yield();
		}
	}
	return NULL;
}

static void *consume(void *arg)
{
	struct crowd *c = arg;
	for (void *item; (item = queue_take(c->q));) {
		atomic_fetch_add(&c->got, (uintptr_t)item);
		if (atomic_fetch_add(&c->taken, 1) + 1 == PRODUCERS * EACH)
			queue_close(c->q);
	}
	return NULL;
}

TEST(nothing_is_lost_or_doubled_between_threads)
{
	struct crowd c = {.q = queue_new(7)};
	pthread_t p[PRODUCERS], t[TAKERS];
	for (int i = 0; i < TAKERS; i++)
		ck_assert_int_eq(pthread_create(&t[i], NULL, consume, &c), 0);
	for (int i = 0; i < PRODUCERS; i++)
		ck_assert_int_eq(pthread_create(&p[i], NULL, produce, &c), 0);
	for (int i = 0; i < PRODUCERS; i++)
		pthread_join(p[i], NULL);
	for (int i = 0; i < TAKERS; i++)
		pthread_join(t[i], NULL);
	ck_assert_uint_eq(c.taken, PRODUCERS * EACH);
	ck_assert_uint_eq(c.got, c.put);
	queue_destroy(&c.q);
}
