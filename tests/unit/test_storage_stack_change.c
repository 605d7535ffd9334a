/* test_storage_stack_change.c - a stack whose tiers come later, change their size, or are
 * damaged; and what it tells of its blocks. */
#include "tests/unit/stack_world.h"

/* --- tiers that come later, change their size, or are damaged ------------ */

static atomic_int attempts, come;
static int open_later(void *arg, struct tier **ret, struct err *err)
{
	(void)arg;
	atomic_fetch_add(&attempts, 1);
	if (!atomic_load(&come))
		return err_set(err, ERR_IO, "the disk is not mounted");
	*ret = &disk->tier;
	return 0;
}

TEST_CASE("change", .timeout_s = 60);

TEST(test_missing)
{
	struct stack_opts o = opts_of();
	struct tier *memory;
	atomic_store(&attempts, 0);
	atomic_store(&come, 0);
	disk = fake_new(TIER_DISK);
	ck_assert_int_eq(tier_memory_new(2 * UNIT, &memory, NULL), 0);
	o.level[o.n++] = (struct stack_level){TIER_MEMORY,        memory, NULL, NULL,
	                                      TIER_WRITE_THROUGH, 0,      0};
	o.level[o.n++] = (struct stack_level){TIER_DISK, NULL, open_later, NULL, TIER_RECYCLE, 0, 0};
	s = tier_stack_new(&o);
	ck_assert_int_eq(attempts, 1);
	ck_assert_int_eq(put(1), 'm');
	ck_assert_int_eq(get(1), 'm');
	ck_assert_int_eq(get(2), '-');
	ck_assert_int_eq(stat_of(1).open, 0);
	ck_assert_ptr_nonnull(strstr(stat_of(1).tier.state, "not mounted"));
	uint64_t n;
	char text[160];
	/* whoever asks hears that its blocks stay */
	ck_assert_int_eq(flushed(TIER_DISK, &n, text), ERR_CLOSED);
	ck_assert_ptr_nonnull(strstr(text, "disk is away"));
	ck_assert_int_eq(flushed(TIER_NONE, &n, NULL), ERR_CLOSED);
	ck_assert_uint_eq(n, 1);
	ck_assert_int_eq(get(1), '-');
	ck_assert_int_eq(put(1), 'm');
	UNTIL(attempts >= 3);
	atomic_store(&come, 1);
	UNTIL(fake_has(disk, 1)); /* what was due all the time */
	ck_assert_int_eq(stat_of(1).open, 1);
	end();
}

/* A policy that is set while the tier is being opened is the last word, though the tier hears
 * the older one slowly. */
static atomic_int policies, policy_now;
static void slow_policy(struct tier *t, enum tier_policy policy, uint32_t after,
                        unsigned low_percent)
{
	(void)t;
	(void)after;
	(void)low_percent;
	int nth = atomic_fetch_add(&policies, 1);
	/* the newer one may come meanwhile, or waits for this one */
	for (int i = 0; nth == 0 && i < 300 && atomic_load(&policies) < 2; i++)
		usleep(1000);
	atomic_store(&policy_now, (int)policy);
}

TEST(test_policy_while_opening)
{
	struct stack_opts o = opts_of();
	struct tier *memory;
	atomic_store(&come, 1);
	disk = fake_new(TIER_DISK);
	disk->ops.policy = slow_policy;
	ck_assert_int_eq(tier_memory_new(2 * UNIT, &memory, NULL), 0);
	o.open_wait_us = 0;
	o.level[o.n++] = (struct stack_level){TIER_MEMORY, memory, NULL, NULL, TIER_RECYCLE, 0, 0};
	o.level[o.n++] = (struct stack_level){TIER_DISK, NULL, open_later, NULL, TIER_RECYCLE, 0, 0};
	s = tier_stack_new(&o);
	UNTIL(policies == 1);
	tier_stack_policy(s, TIER_DISK, TIER_WRITE_THROUGH, 3, 20);
	UNTIL(policies == 2);
	end();
	ck_assert_int_eq(policy_now, TIER_WRITE_THROUGH);
}

TEST(test_resize)
{
	start(32, TIER_OFFLOAD, 0, 0, TIER_RECYCLE, 0);
	for (unsigned i = 0; i < 32; i++)
		put(i);
	tier_stack_resize(s, TIER_MEMORY, 4 * UNIT);
	UNTIL(stat_of(0).tier.capacity_bytes == 4 * UNIT && stat_of(0).tier.bytes <= 4 * UNIT);
	for (unsigned i = 0; i < 60; i++)
		ck_assert_int_eq(put(i), 'm');
	ck_assert_uint_le(stat_of(0).tier.bytes, 4 * UNIT);
	tier_stack_resize(s, TIER_MEMORY, 64 * UNIT);
	UNTIL(stat_of(0).tier.capacity_bytes == 64 * UNIT);
	/* a quarter is kept free or stored below: these stay in memory for certain */
	for (unsigned i = 100; i < 148; i++)
		ck_assert_int_eq(put(i), 'm');
	for (unsigned i = 100; i < 148; i++)
		ck_assert_int_eq(get(i), 'm');
	tier_stack_resize(s, TIER_DISK, UNIT); /* one that cannot: logged */
	end();
}

/* Damage in memory: the copy below is given, else the reason. */
static unsigned char *stored_at;
static int peek_move(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	stored_at = span[0].at;
	return op_move_in(op, span, n);
}

TEST(test_damage)
{
	for (int below = 0; below < 2; below++) {
		char text[64];
		start(4, below ? TIER_WRITE_THROUGH : TIER_RECYCLE, 0, 0, TIER_RECYCLE, 0);
		struct op o = {.op = {.bytes = UNIT, .move = peek_move, .done = op_done},
		               .bytes = mem_zalloc(UNIT)};
		memcpy(o.op.key.b, &(unsigned){1}, sizeof(unsigned));
		fill(o.bytes, UNIT, 1);
		s->ops->put(s, &o.op);
		ck_assert_int_eq(o.done, 1);
		free(o.bytes);
		if (below)
			UNTIL(fake_has(disk, 1) && stat_of(0).copying == 0);
		*stored_at ^= 1;
		if (below) {
			ck_assert_int_eq(get(1), 'd');
			ck_assert_int_eq(get(1), 'm'); /* and memory is right again */
		} else {
			ck_assert_int_eq(op_end(op_begin(0, 1, UNIT), 1, NULL, text), ERR_CORRUPT);
			ck_assert_ptr_nonnull(strstr(text, "checksum"));
			ck_assert_int_eq(get(1), '-');
		}
		end();
	}
}

/* --- what is told -------------------------------------------------------- */

static pthread_mutex_t told_lock = PTHREAD_MUTEX_INITIALIZER;
static int told[NAMES];
static unsigned opened;
static void changed(void *arg, enum tier_id id, const struct tier_key *key, int stored)
{
	(void)arg;
	ck_assert_int_eq(id, TIER_MEMORY);
	pthread_mutex_lock(&told_lock);
	if (key)
		told[name_of(key)] += stored ? 1 : -1;
	else
		opened++;
	pthread_mutex_unlock(&told_lock);
}

/* Comings and goings add up to what is listed, and to what is found. */
TEST(test_told)
{
	struct stack_opts o = opts_of();
	struct tier *memory;
	struct tier_key key[5];
	int listed[NAMES] = {0};
	memset(told, 0, sizeof told);
	opened = 0;
	ck_assert_int_eq(tier_memory_new(10 * UNIT, &memory, NULL), 0);
	o.level[o.n++] = (struct stack_level){TIER_MEMORY, memory, NULL, NULL, TIER_RECYCLE, 0, 0};
	o.changed = changed;
	s = tier_stack_new(&o);
	ck_assert_uint_eq(opened, 1);
	for (unsigned i = 0; i < 100; i++) {
		put(i * 7 % 60);
		if (i % 9 == 0)
			tier_stack_find(s, TIER_MEMORY)
				->ops->remove(tier_stack_find(s, TIER_MEMORY),
			                  &(struct tier_key){.b = {(unsigned char)(i * 3 % 60)}});
		if (i == 50)
			tier_stack_resize(s, TIER_MEMORY, 20 * UNIT);
	}
	for (struct tier_cursor at = {0}; !at.end;) {
		uint32_t n = memory->ops->list(memory, &at, 5, key);
		for (uint32_t k = 0; k < n; k++)
			listed[name_of(&key[k])]++;
	}
	unsigned there = 0;
	for (unsigned i = 0; i < 60; i++) {
		ck_assert_int_eq(listed[i], told[i]);
		ck_assert_int_eq(where_is(i) == 'm', told[i]);
		there += (unsigned)told[i];
	}
	ck_assert_uint_ge(there, 9);
	flushed(TIER_NONE, NULL, NULL);
	for (unsigned i = 0; i < 60; i++)
		ck_assert_int_eq(told[i], 0);
	end();
}
