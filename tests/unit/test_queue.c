/* test_queue.c - order, bounds, close, and that the descriptor is readable exactly while there
 * is something to take. */
/* run: threads */
#include "util/clock.h"
#include "util/err.h"
#include "util/queue.h"

#include <check.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

static int readable(struct queue *q)
{
	struct pollfd p = {.fd = queue_fd(q), .events = POLLIN};
	return poll(&p, 1, 0);
}

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
		ck_assert_ptr_eq(queue_try(q), &v[0]);
		ck_assert_ptr_eq(queue_take(q), &v[1]);
		ck_assert_int_eq(queue_put(q, &v[4]), 0);
		ck_assert_ptr_eq(queue_try(q), &v[2]);
		ck_assert_ptr_eq(queue_try(q), &v[4]);
		ck_assert_ptr_null(queue_try(q));
	}
	queue_destroy(&q);
	ck_assert_ptr_null(q);
	queue_destroy(&q);
}

TEST(fd_is_readable_exactly_while_items_are_there)
{
	struct queue *q = queue_new(8);
	int v;
	ck_assert_int_eq(readable(q), 0);
	for (int i = 0; i < 8; i++)
		ck_assert_int_eq(queue_put(q, &v), 0);
	for (int i = 0; i < 8; i++) {
		ck_assert_int_eq(readable(q), 1);
		if (i % 2 == 0)
			ck_assert_ptr_nonnull(queue_try(q));
		else
			ck_assert_ptr_nonnull(queue_take(q));
	}
	ck_assert_int_eq(readable(q), 0);
	ck_assert_int_eq(queue_put(q, &v), 0);
	ck_assert_int_eq(readable(q), 1);
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
	ck_assert_int_eq(readable(q), 1);
	ck_assert_ptr_eq(queue_try(q), &v[1]);
	ck_assert_ptr_null(queue_take(q));
	ck_assert_ptr_null(queue_try(q));
	ck_assert_int_eq(readable(q), 1); /* an event loop learns of the close */
	queue_destroy(&q);

	q = queue_new(4);
	queue_close(q);
	ck_assert_int_eq(readable(q), 1);
	ck_assert_ptr_null(queue_take(q));
	queue_destroy(&q);
}

#define PRODUCERS 3
#define TAKERS 3
#define EACH 4000

struct crowd {
	struct queue *q;
	_Atomic uint64_t put, got, taken;
	int mode;
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

/* mode 0 waits in take, 1 in poll like an event loop. Returns NULL at the
 * close. */
static void *wait_item(struct crowd *c, int mode)
{
	void *item = NULL;
	if (mode == 0)
		return queue_take(c->q);
	while (!(item = queue_try(c->q))) {
		struct pollfd p = {.fd = queue_fd(c->q), .events = POLLIN};
		ck_assert_int_eq(poll(&p, 1, 10000), 1); /* a lost wake-up would end here */
		void *again = queue_try(c->q);
		if (again)
			return again;
		if (atomic_load(&c->taken) == PRODUCERS * EACH)
			return NULL;
	}
	return item;
}

static void *consume(void *arg)
{
	struct crowd *c = arg;
	int mode = c->mode;
	for (void *item; (item = wait_item(c, mode));) {
		atomic_fetch_add(&c->got, (uintptr_t)item);
		if (atomic_fetch_add(&c->taken, 1) + 1 == PRODUCERS * EACH)
			queue_close(c->q);
	}
	return NULL;
}

TEST_LOOP(nothing_is_lost_or_doubled_between_threads, 0, 2)
{
	struct crowd c = {.q = queue_new(7), .mode = _i};
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
