/* test_storage_walk.c - what the disk tier says of its blocks: which came and went, which there
 * are, which are to be copied down before they are evicted. */
#include "tests/unit/flush_rig.h"

#include "daemons/storage/sum.h"
#include "daemons/storage/disk.h"

#include "util/clock.h"
#include "util/mem.h"
#include "tempdir.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK 16384u
#define NAMES 600u
#define WAIT_US 20000000u

#define UNTIL(what)                                                    \
	for (uint64_t until_ = clock_us() + WAIT_US; !(what); usleep(200)) \
	ck_assert_msg(clock_us() < until_, "waited in vain for: %s", #what)

static struct tier *t;
static char dir[TEST_FOLDER_BYTES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int told[NAMES];

static void changed(void *arg, const struct tier_key *key, int stored)
{
	unsigned name;
	ck_assert_ptr_eq(arg, told);
	pthread_mutex_lock(&lock);
	if (key) {
		memcpy(&name, key->b, sizeof name);
		told[name] = stored;
	} else {
		memset(told, 0, sizeof told);
	}
	pthread_mutex_unlock(&lock);
}

static int told_of(unsigned name)
{
	pthread_mutex_lock(&lock);
	int is = told[name];
	pthread_mutex_unlock(&lock);
	return is;
}

static void start(void)
{
	struct err err = {0};
	char path[128];
	snprintf(path, sizeof path, "%s/blocks", dir);
	struct tier_disk_opts o = {.path = path, .capacity_bytes = 4 << 20, .segment_bytes = 512 << 10};
	int r = tier_disk_new(&o, &t, &err);
	ck_assert_msg(r == 0, "%s", err.text);
	memset(told, 0, sizeof told);
	t->ops->watch(t, changed, told);
}

static void set_up(void)
{
	test_folder(dir, "walk");
	start();
}

static void tear_down(void)
{
	t->ops->destroy(t);
}

struct op {
	struct tier_op op;
	atomic_int done, code;
};

static int move(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		memset(span[i].at, 7, span[i].bytes);
	op->sum = sum_spans(span, n);
	return 0;
}

static int move_out(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	(void)op;
	(void)span;
	(void)n;
	return 0;
}

static void done(struct tier_op *op, int code, enum tier_id tier, const char *text)
{
	struct op *o = (struct op *)op;
	(void)tier;
	(void)text;
	o->code = code;
	o->done = 1;
}

static int run(int put, unsigned name)
{
	struct op o = {.op = {.bytes = BLOCK, .move = put ? move : move_out, .done = done}};
	memcpy(o.op.key.b, &name, sizeof name);
	put ? t->ops->put(t, &o.op) : t->ops->get(t, &o.op);
	UNTIL(o.done);
	return o.code;
}

static unsigned list(int *ret_there)
{
	struct tier_key key[7];
	unsigned all = 0;
	memset(ret_there, 0, NAMES * sizeof *ret_there);
	for (struct tier_cursor at = {0}; !at.end;) {
		uint32_t n = t->ops->list(t, &at, 7, key);
		for (uint32_t i = 0; i < n; i++, all++) {
			unsigned name;
			memcpy(&name, key[i].b, sizeof name);
			ret_there[name]++;
		}
	}
	return all;
}

static int there(unsigned name)
{
	return run(0, name) == 0;
}

TEST_CASE("disk", .timeout_s = 60, .setup = set_up, .teardown = tear_down);

/* What is told adds up to what is listed and to what can be had: through puts, evictions,
 * removes, a smaller size, a flush and a new life. */
TEST(test_told_and_listed)
{
	static int listed[NAMES];
	for (unsigned i = 0; i < 400; i++) /* there is room for some 250 */
		ck_assert_int_eq(run(1, i), 0);
	for (unsigned i = 390; i < 400; i++) {
		struct tier_key key = {{0}};
		memcpy(key.b, &i, sizeof i);
		ck_assert_int_eq(t->ops->remove(t, &key), 0);
		UNTIL(!told_of(i));
	}
	for (int again = 0; again < 2; again++) {
		unsigned n = list(listed);
		ck_assert_uint_gt(n, 50);
		ck_assert_uint_lt(n, 300);
		for (unsigned i = 0; i < 400; i++) {
			ck_assert_int_eq(listed[i], told_of(i));
			ck_assert_int_eq(there(i), listed[i]);
		}
		ck_assert_int_eq(t->ops->resize(t, 2 << 20, NULL), 0);
		UNTIL(list(listed) <= 128);
		usleep(20000);
	}
	unsigned before = list(listed);
	tear_down();
	start();
	ck_assert_uint_eq(list(listed), before);
	tier_flushed(t, NULL);
	UNTIL(list(listed) == 0);
	ck_assert_int_eq(run(1, 5), 0);
	ck_assert_int_eq(told_of(5), 1);
	ck_assert_uint_eq(list(listed), 1);
}

/* The oldest are named before they are evicted, each once as long as it is not used again; what
 * could not go is named again. */
TEST(test_due)
{
	struct tier_due due[64];
	unsigned char named[NAMES] = {0};
	unsigned n_named = 0, last = 0;
	t->ops->policy(t, TIER_OFFLOAD, 0, 20);
	for (unsigned i = 0; i < 600; i++) {
		ck_assert_int_eq(run(1, i), 0);
		uint32_t n = t->ops->due(t, 64, due);
		for (uint32_t k = 0; k < n; k++, n_named++) {
			unsigned name;
			memcpy(&name, due[k].key.b, sizeof name);
			ck_assert_uint_eq(due[k].bytes, BLOCK);
			ck_assert_int_eq(named[name], 0);
			ck_assert(name == 0 || name > last || n_named == 0);
			named[name] = 1;
			last = name;
			t->ops->stored(t, &due[k].key, TIER_BELOW_HAS);
		}
	}
	unsigned lost = 0, kept = 0;
	for (unsigned i = 0; i < 600; i++) {
		lost += !told_of(i) && !named[i];
		kept += told_of(i) != 0;
	}
	ck_assert_uint_eq(lost, 0);
	ck_assert_uint_gt(n_named, 600 - kept);
	ck_assert_uint_lt(n_named, 600 - kept / 2); /* not all of what is there */
	ck_assert_uint_eq(t->ops->due(t, 64, due), 0);
	t->ops->stored(t, &due[0].key, TIER_BELOW_LATER);
	unsigned again = 0;
	for (uint32_t n = t->ops->due(t, 64, due); n-- > 0;) {
		unsigned name;
		memcpy(&name, due[n].key.b, sizeof name);
		again += named[name];
	}
	ck_assert_uint_gt(again, 0);
	t->ops->policy(t, TIER_RECYCLE, 0, 20);
	t->ops->stored(t, &due[0].key, TIER_BELOW_LATER);
	ck_assert_uint_eq(t->ops->due(t, 64, due), 0);
}

/* The name that is due, 0: none; never more than one. */
static unsigned due_now(void)
{
	struct tier_due due[4];
	unsigned name = 0;
	uint32_t n = t->ops->due(t, 4, due);
	ck_assert_uint_le(n, 1);
	if (n)
		memcpy(&name, due[0].key.b, sizeof name);
	return name;
}

static void stored(unsigned name, enum tier_below what)
{
	struct tier_key key = {{0}};
	memcpy(key.b, &name, sizeof name);
	t->ops->stored(t, &key, what);
}

/* By hits: named once when it was hit so often, again if it could not go, not any more once it
 * is below, and again when that has gone. */
TEST(test_due_by_hits)
{
	t->ops->policy(t, TIER_WRITE_THROUGH, 2, 0);
	for (unsigned i = 1; i <= 3; i++)
		ck_assert_int_eq(run(1, i), 0);
	ck_assert(there(1) && there(2) && due_now() == 0);
	ck_assert(there(1) && due_now() == 1 && due_now() == 0);
	ck_assert(there(1) && due_now() == 0); /* it is on its way */
	stored(1, TIER_BELOW_LATER);
	ck_assert_uint_eq(due_now(), 1);
	stored(1, TIER_BELOW_HAS);
	ck_assert(there(1) && due_now() == 0);
	stored(1, TIER_BELOW_GONE);
	ck_assert(there(1) && due_now() == 1);
	stored(1, TIER_BELOW_REFUSED);
	ck_assert_uint_eq(due_now(), 0); /* not before it is hit again */
	ck_assert(there(1) && due_now() == 1);
	t->ops->policy(t, TIER_WRITE_THROUGH, 0, 0);
	ck_assert_int_eq(run(1, 4), 0);
	ck_assert_uint_eq(due_now(), 4);
}
