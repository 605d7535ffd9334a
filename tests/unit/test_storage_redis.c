/* test_storage_redis.c - the Redis tier against a real redis-server: what is stored comes back, is
 * found, lives its time and is flushed; what if something else is under our keys. The server's own
 * troubles: test_storage_redis_server.c; hostile ones: test_storage_redis_hostile.c. */
/* run: waits */
#include "redis_rig.h"

TEST_CASE("server", .timeout_s = 120, .setup = server_start, .teardown = server_stop);

/* Small ones, and some that fill socket buffers many times; whole in, whole out, also by another
 * tier. */
TEST(test_sizes)
{
	static const size_t size[] = {1, 63, 64, 4096, 65536, 1474560, 5000001};
	struct tier *a = ready_tier((struct tier_redis_opts){0}),
				*b = ready_tier((struct tier_redis_opts){0});
	for (unsigned i = 0; i < 7; i++) {
		ck_assert_int_eq(get(a, i, size[i]), ERR_NOTFOUND);
		ck_assert_int_eq(put(a, i, size[i]), 0);
		ck_assert_int_eq(get(a, i, size[i]), 0);
		ck_assert_int_eq(get(b, i, size[i]), 0);
		ck_assert_int_eq(get(b, i, size[i] + 1), ERR_NOTFOUND);
		if (size[i] > 1)
			ck_assert_int_eq(get(b, i, size[i] - 1), ERR_NOTFOUND);
		ck_assert_int_eq(get(a, i, size[i]), 0); /* another size drops nothing */
	}
	struct tier_stat s = stat_of(a);
	ck_assert_uint_eq(s.puts, 7);
	ck_assert_uint_eq(s.hits, 14);
	ck_assert_uint_eq(s.misses, 7);
	ck_assert_uint_eq(s.corrupt + s.errors + s.full, 0);
	ck_assert_uint_eq(s.write_bytes * 2, s.read_bytes);
	ck_assert_uint_gt(s.write_us, 0);
	a->ops->destroy(a);
	b->ops->destroy(b);
}

TEST(test_put_known)
{
	struct tier *t = ready_tier((struct tier_redis_opts){0});
	struct rop o;
	ck_assert_int_eq(put(t, 1, BLOCK), 0);
	rop_begin_put(t, &o, 1, BLOCK);
	ck_assert_int_eq(rop_end(&o), 0);
	ck_assert_int_eq(o.moved, 0); /* not copied, not sent again */
	ck_assert_uint_eq(stat_of(t).known, 1);
	rop_begin_put(t, &o, 1, BLOCK + 5);
	ck_assert_int_eq(rop_end(&o), 0);
	ck_assert_int_eq(o.moved, 1); /* another size: the newer one counts */
	ck_assert_int_eq(get(t, 1, BLOCK), ERR_NOTFOUND);
	ck_assert_int_eq(get(t, 1, BLOCK + 5), 0);
	t->ops->destroy(t);
}

/* What move says ends the operation; a put leaves nothing behind. */
TEST(test_void)
{
	struct tier *t = ready_tier((struct tier_redis_opts){0});
	struct rop o;
	rop_init(&o, 1, BLOCK);
	o.op.move = rop_move_in;
	/* with its head more than Redis takes: refused here, not by the end of the connection */
	o.op.bytes = (size_t)512 << 20;
	t->ops->put(t, &o.op);
	ck_assert_int_eq(rop_end(&o), ERR_INVALID);
	ck_assert_int_eq(o.moved, 0);
	rop_init(&o, 1, BLOCK);
	o.op.move = rop_move_in;
	o.move_code = ERR_STALE;
	t->ops->put(t, &o.op);
	ck_assert_int_eq(rop_end(&o), ERR_STALE);
	ck_assert_int_eq(get(t, 1, BLOCK), ERR_NOTFOUND);
	ck_assert_int_eq(put(t, 1, BLOCK), 0);
	rop_init(&o, 1, BLOCK);
	o.op.move = rop_move_out;
	o.move_code = ERR_STALE;
	t->ops->get(t, &o.op);
	ck_assert_int_eq(rop_end(&o), ERR_STALE);
	ck_assert_int_eq(get(t, 1, BLOCK), 0);
	t->ops->destroy(t);
}

/* Given up before it begins: not sent, not copied. A copy between tiers is neither hit nor miss,
 * and is told the stored checksum. */
TEST(test_given_up_and_aside)
{
	struct tier *t = ready_tier((struct tier_redis_opts){0});
	struct rop o;
	rop_init(&o, 1, BLOCK);
	o.op.move = rop_move_in;
	tier_op_give_up(&o.op, 1);
	t->ops->put(t, &o.op);
	ck_assert_int_eq(rop_end(&o), ERR_CANCELLED);
	ck_assert_int_eq(o.moved, 0);
	rop_init(&o, 1, BLOCK);
	fill(o.bytes, BLOCK, 1);
	o.op.move = rop_move_in;
	t->ops->put(t, &o.op);
	ck_assert_int_eq(rop_end(&o), 0);
	struct tier_sum put_sum = o.op.sum;
	rop_init(&o, 1, BLOCK);
	o.op.move = rop_move_out;
	tier_op_give_up(&o.op, 0);
	t->ops->get(t, &o.op);
	ck_assert_int_eq(rop_end(&o), ERR_CANCELLED);
	for (unsigned name = 1; name <= 2; name++) {
		rop_init(&o, name, BLOCK);
		o.op.move = rop_move_out;
		o.op.aside = 1;
		t->ops->get(t, &o.op);
		ck_assert_int_eq(rop_end(&o), name == 1 ? 0 : ERR_NOTFOUND);
		ck_assert(name != 1 || sum_equal(o.op.sum, put_sum));
	}
	struct tier_stat s = stat_of(t);
	/* the one that was given up was asked for */
	ck_assert_uint_eq(s.gets + s.hits + s.misses + s.errors, 1);
	t->ops->destroy(t);
}

TEST(test_lookup)
{
	struct tier *t = ready_tier((struct tier_redis_opts){0});
	for (unsigned i = 0; i < 600; i++)
		if (i != 555)
			ck_assert_int_eq(put(t, i, 100), 0);
	ck_assert_uint_eq(lookup(t, 0, 1, 100, LONG_US, NULL), 1);
	ck_assert_uint_eq(lookup(t, 0, 600, 100, LONG_US, NULL), 555);
	ck_assert_uint_eq(lookup(t, 0, 600, 101, LONG_US, NULL), 0);
	ck_assert_uint_eq(lookup(t, 600, 5, 100, LONG_US, NULL), 0);
	ck_assert_int_eq(t->ops->remove(t, &(struct tier_key){{0}}), 0);
	struct tier_key k = key_of(100);
	ck_assert_int_eq(t->ops->remove(t, &k), 0);
	for (uint64_t until = clock_us() + LONG_US; lookup(t, 0, 600, 100, LONG_US, NULL) != 100;)
		ck_assert_uint_lt(clock_us(), until);
	t->ops->destroy(t);
}

/* Keys that another tier has already are not asked for and stay as they are; without `leading`
 * all are looked at. */
TEST(test_lookup_where)
{
	struct tier *t = ready_tier((struct tier_redis_opts){0});
	struct tier_key key[6];
	unsigned char where[6] = {TIER_MEMORY, 0, 0, TIER_DISK, 0, 0};
	for (unsigned i = 0; i < 6; i++)
		key[i] = key_of(i);
	ck_assert_int_eq(put(t, 0, 100), 0);
	ck_assert_int_eq(put(t, 2, 100), 0);
	ck_assert_int_eq(put(t, 5, 100), 0);
	struct rfind q = {.f = {.key = key,
	                        .where = where,
	                        .n = 6,
	                        .bytes = 100,
	                        .until_us = clock_us() + LONG_US,
	                        .done = rfind_done}};
	sem_init(&q.over, 0, 0);
	t->ops->lookup(t, &q.f);
	sem_wait_long(&q.over);
	ck_assert_mem_eq(where,
	                 ((unsigned char[]){TIER_MEMORY, 0, TIER_REDIS, TIER_DISK, 0, TIER_REDIS}), 6);
	t->ops->destroy(t);
}

TEST(test_ttl)
{
	char key[96];
	key_text(key, 1);
	struct tier *t = ready_tier((struct tier_redis_opts){.ttl_s = 100}),
				*forever = ready_tier((struct tier_redis_opts){0});
	ck_assert_int_eq(put(t, 1, BLOCK), 0);
	long long left = RIG_DO(&rig, "PTTL", key);
	ck_assert_msg(left > 50000 && left <= 100000, "%lld", left);
	RIG_DO(&rig, "PEXPIRE", key, "20000");
	ck_assert_int_eq(put(t, 1, BLOCK), 0); /* known: only the time is set anew */
	ck_assert_uint_eq(stat_of(t).known, 1);
	for (uint64_t until = clock_us() + LONG_US; RIG_DO(&rig, "PTTL", key) < 50000; usleep(1000))
		ck_assert_uint_lt(clock_us(), until);
	RIG_DO(&rig, "PEXPIRE", key, "1");
	usleep(5000);
	ck_assert_int_eq(get(t, 1, BLOCK), ERR_NOTFOUND);
	key_text(key, 2);
	ck_assert_int_eq(put(forever, 2, BLOCK), 0);
	ck_assert_int_eq(RIG_DO(&rig, "PTTL", key), -1);
	t->ops->destroy(t);
	forever->ops->destroy(forever);
}

/* --- what is under our keys ---------------------------------------------- */

static void set_raw(const char *key, const unsigned char *v, size_t n)
{
	const char *argv[] = {"SET", key, (const char *)v};
	const size_t len[] = {3, strlen(key), n};
	ck_assert_int_eq(rig_do(&rig, 3, argv, len), 2);
}

/* A right value of BLOCK bytes under name 1. */
static unsigned char *right_value(void)
{
	unsigned char *v = mem_alloc(REDIS_VALUE_HEAD_BYTES + 2 * BLOCK);
	struct tier_span span = {v + REDIS_VALUE_HEAD_BYTES, BLOCK};
	struct tier_key key = key_of(1);
	fill(span.at, 2 * BLOCK, 1);
	redis_value_head(v, &key, BLOCK, sum_spans(&span, 1));
	return v;
}

static int corrupt_and_gone(struct tier *t, const char *key)
{
	struct rop o;
	rop_begin_get(t, &o, 1, BLOCK);
	int code = rop_end(&o);
	if (code != ERR_CORRUPT || o.moved)
		return 0;
	for (uint64_t until = clock_us() + LONG_US; RIG_DO(&rig, "EXISTS", key) != 0; usleep(1000))
		ck_assert_uint_lt(clock_us(), until);
	return get(t, 1, BLOCK) == ERR_NOTFOUND;
}

TEST(test_wrong_values)
{
	static const size_t cut[] = {1, 8, 63, 64, 65, 64 + BLOCK - 1, 64 + BLOCK + 1, 64 + 2 * BLOCK};
	char key[96];
	key_text(key, 1);
	struct tier *t = ready_tier((struct tier_redis_opts){0});
	unsigned char *v = right_value();
	set_raw(key, v, 64 + BLOCK);
	ck_assert_int_eq(get(t, 1, BLOCK), 0); /* what this test makes is what the tier makes */
	for (size_t i = 0; i < sizeof cut / sizeof cut[0]; i++) {
		set_raw(key, v, cut[i]);
		ck_assert_msg(corrupt_and_gone(t, key), "cut at %zu", cut[i]);
	}
	for (size_t i = 0; i < 64 + BLOCK; i += i < 64 ? 1 : 9973) {
		v[i] ^= 0x10;
		set_raw(key, v, 64 + BLOCK);
		ck_assert_msg(corrupt_and_gone(t, key), "byte %zu", i);
		v[i] ^= 0x10;
	}
	RIG_DO(&rig, "SET", key,
	       "a text of somebody else that is longer than the head of a block, which has 64 bytes");
	ck_assert(corrupt_and_gone(t, key));
	RIG_DO(&rig, "RPUSH", key, "a list");
	ck_assert_uint_eq(lookup(t, 1, 1, BLOCK, LONG_US, NULL), 0);
	ck_assert(corrupt_and_gone(t, key));
	RIG_DO(&rig, "RPUSH", key, "a list");
	ck_assert_int_eq(put(t, 1, BLOCK), 0); /* replaces whatever is there */
	ck_assert_int_eq(get(t, 1, BLOCK), 0);
	ck_assert_uint_eq(stat_of(t).corrupt, 8 + 64 + (BLOCK + 9972) / 9973 + 2);
	ck_assert_uint_eq(stat_of(t).lost, stat_of(t).corrupt);
	free(v);
	t->ops->destroy(t);
}

/* A value of 100 MB under our key: no more than the block's bytes are ever sent. */
TEST(test_huge_value)
{
	char key[96];
	key_text(key, 1);
	struct tier *t = ready_tier((struct tier_redis_opts){0});
	RIG_DO(&rig, "SETRANGE", key, "100000000", "x");
	ck_assert(corrupt_and_gone(t, key));
	t->ops->destroy(t);
}

/* --- flush --------------------------------------------------------------- */

TEST(test_flush)
{
	redisContext *c = rig_connect(&rig);
	struct tier_redis_opts odd = {.prefix = "pd[1]*?:"};
	struct tier *t = ready_tier((struct tier_redis_opts){.timeout_ms = 60000}),
				*u = ready_tier(odd);
	for (unsigned i = 0; i < 10000; i++) {
		char key[96];
		key_text(key, i);
		redisAppendCommand(c, "SET %s x", key);
		redisAppendCommand(c, "SET other:%u x", i);
	}
	for (unsigned i = 0; i < 20000; i++) {
		void *a;
		ck_assert_int_eq(redisGetReply(c, &a), REDIS_OK);
		freeReplyObject(a);
	}
	ck_assert_int_eq(put(u, 1, BLOCK), 0);
	struct flush_rig whole = flush_rig();
	kill(rig.pid, SIGSTOP); /* or it may be over before we look */
	t->ops->flush(t, &whole.f);
	ck_assert_int_eq(get(t, 1, BLOCK), ERR_NOTFOUND);
	ck_assert_str_eq(stat_of(t).state, "ready, being flushed");
	ck_assert_int_eq(put(t, 1, BLOCK), ERR_FULL);
	ck_assert_uint_eq(lookup(t, 1, 1, 1, LONG_US, NULL), 0);
	kill(rig.pid, SIGCONT);
	flush_rig_wait(&whole);
	ck_assert_int_eq(whole.f.code, 0);
	ck_assert_uint_eq(whole.f.blocks, 10000);
	ck_assert_str_eq(stat_of(t).state, "ready");
	ck_assert_int_eq(RIG_DO(&rig, "DBSIZE"), 10001); /* those of others are there */
	ck_assert_int_eq(get(u, 1, BLOCK), 0);
	ck_assert_int_eq(put(t, 1, BLOCK), 0);
	ck_assert_uint_eq(tier_flushed(u, NULL), 1); /* its prefix is no pattern */
	ck_assert_int_eq(RIG_DO(&rig, "DBSIZE"), 10001);
	ck_assert_int_eq(get(t, 1, BLOCK), 0);
	redisFree(c);
	t->ops->destroy(t);
	u->ops->destroy(u);
}

/* What was asked before a flush and is answered after it: not found, not stored, and nothing of
 * it is there afterwards. */
TEST(test_flush_voids)
{
	struct tier *t = ready_tier((struct tier_redis_opts){.timeout_ms = 20000, .depth = 2});
	struct rop o[8];
	ck_assert_int_eq(put(t, 1, BLOCK), 0);
	kill(rig.pid, SIGSTOP);
	for (unsigned i = 0; i < 8; i++) /* two of each are sent, two wait */
		i & 1 ? rop_begin_get(t, &o[i], 1, BLOCK) : rop_begin_put(t, &o[i], 100 + i, BLOCK);
	usleep(20000);
	struct flush_rig f = flush_rig();
	t->ops->flush(t, &f.f);
	kill(rig.pid, SIGCONT);
	for (unsigned i = 0; i < 8; i++) {
		ck_assert_int_eq(rop_end(&o[i]), i & 1 ? ERR_NOTFOUND : ERR_FULL);
		ck_assert_str_eq(o[i].text, "the redis tier is being flushed");
	}
	flush_rig_wait(&f);
	ck_assert_int_eq(f.f.code, 0);
	ck_assert_int_eq(RIG_DO(&rig, "DBSIZE"), 0);
	ck_assert_int_eq(put(t, 1, BLOCK), 0);
	ck_assert_int_eq(get(t, 1, BLOCK), 0);
	t->ops->destroy(t);
}

/* A block that is on its way when the flush comes goes with the others. */
TEST(test_flush_after_put)
{
	struct tier *t = ready_tier((struct tier_redis_opts){.timeout_ms = 20000});
	for (unsigned i = 0; i < 20; i++) {
		struct rop o[8];
		for (unsigned k = 0; k < 8; k++)
			rop_begin_put(t, &o[k], k, 10 * BLOCK);
		usleep(300 * i);
		struct flush_rig f = flush_rig();
		t->ops->flush(t, &f.f);
		for (unsigned k = 0; k < 8; k++) {
			int code = rop_end(&o[k]);
			ck_assert_msg(code == 0 || code == ERR_FULL, "%d", code);
		}
		flush_rig_wait(&f);
		ck_assert_int_eq(f.f.code, 0);
		ck_assert_int_eq(RIG_DO(&rig, "DBSIZE"), 0);
	}
	t->ops->destroy(t);
}

static void count_gone(void *arg, const struct tier_key *key, int stored)
{
	ck_assert(!key && !stored);
	atomic_fetch_add((atomic_int *)arg, 1);
}

/* A server that somebody has emptied has nothing, and no fault; who keeps blocks above since
 * they were here hears of it, and of a flush. */
TEST(test_emptied)
{
	atomic_int gone = 0;
	struct tier *t = ready_tier((struct tier_redis_opts){0});
	t->ops->watch(t, count_gone, &gone);
	for (unsigned i = 0; i < 8; i++)
		ck_assert_int_eq(put(t, i, BLOCK), 0);
	for (uint64_t until = clock_us() + LONG_US; stat_of(t).blocks != 8; usleep(10000))
		ck_assert_uint_lt(clock_us(), until);
	ck_assert_int_eq(gone, 0);
	RIG_DO(&rig, "FLUSHALL");
	ck_assert_int_eq(get(t, 1, BLOCK), ERR_NOTFOUND);
	for (uint64_t until = clock_us() + LONG_US; !gone; usleep(10000))
		ck_assert_uint_lt(clock_us(), until);
	ck_assert_int_eq(gone, 1);
	ck_assert_uint_eq(stat_of(t).errors, 0);
	ck_assert_int_eq(put(t, 1, BLOCK), 0);
	tier_flushed(t, NULL);
	ck_assert_int_ge(gone, 2);
	t->ops->destroy(t);
}

/* The server dies in the middle of it: that is the end of it, and the tier works again when the
 * server is back. */
TEST(test_flush_cut)
{
	struct tier *t = ready_tier((struct tier_redis_opts){.timeout_ms = 500});
	kill(rig.pid, SIGSTOP);
	struct flush_rig cut = flush_rig();
	t->ops->flush(t, &cut.f);
	ck_assert_str_eq(stat_of(t).state, "ready, being flushed");
	rig_kill(&rig);
	flush_rig_wait(&cut);
	ck_assert_int_eq(cut.f.code, ERR_IO); /* whoever asked for it hears */
	ck_assert_str_eq(cut.f.text,
	                 "redis flush incomplete (redis is away): some blocks are still there");
	wait_state(t, "away");
	rig_start(&rig, NULL);
	for (uint64_t until = clock_us() + LONG_US; strcmp(stat_of(t).state, "ready") != 0; usleep(500))
		ck_assert_uint_lt(clock_us(), until);
	ck_assert_int_eq(put(t, 1, BLOCK), 0);
	ck_assert_int_eq(get(t, 1, BLOCK), 0);
	t->ops->destroy(t);
}
