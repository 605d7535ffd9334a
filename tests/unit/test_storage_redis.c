/* test_storage_redis.c - the Redis tier against a real redis-server: what is stored comes back, and
 * what happens when the server is not there, dies, stops, is full, refuses us, or has something
 * else under our keys. */
#include "daemons/storage/redis_int.h"
#include "redis_rig.h"

#include <arpa/inet.h>
#include <netinet/in.h>

static struct redis_rig rig;

static void start(void)
{
	rig_init(&rig);
	rig_start(&rig, NULL);
}

static void stop(void)
{
	rig_kill(&rig);
}

static struct tier *ready_tier(struct tier_redis_opts o)
{
	struct tier *t = tier_at(rig.unix_path, o);
	wait_state(t, "ready");
	return t;
}

/* Small ones, and some that fill socket buffers many times; whole in, whole out, also by another
 * tier. */
START_TEST(test_sizes)
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
END_TEST

START_TEST(test_put_known)
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
END_TEST

/* What move says ends the operation; a put leaves nothing behind. */
START_TEST(test_void)
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
END_TEST

/* Given up before it begins: not sent, not copied. A copy between tiers is neither hit nor miss,
 * and is told the stored checksum. */
START_TEST(test_given_up_and_aside)
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
END_TEST

START_TEST(test_lookup)
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
END_TEST

/* Keys that another tier has already are not asked for and stay as they are; without `leading`
 * all are looked at. */
START_TEST(test_lookup_where)
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
END_TEST

/* --- the server is not there, dies, stops -------------------------------- */

START_TEST(test_away_and_back)
{
	stop();
	struct tier *t = tier_at(rig.unix_path, (struct tier_redis_opts){0});
	wait_state(t, "away: ");
	for (int round = 0; round < 2; round++) {
		struct rop o;
		rop_begin_put(t, &o, 1, BLOCK);
		/* at once, on this thread; later this connection may not have noticed yet */
		ck_assert(round > 0 || o.done == 1);
		ck_assert_int_eq(rop_end(&o), ERR_CLOSED);
		ck_assert_str_eq(o.text, "redis is away");
		rop_begin_get(t, &o, 1, BLOCK);
		ck_assert(round > 0 || o.done == 1);
		int code = rop_end(&o);
		ck_assert(code == ERR_NOTFOUND || (round > 0 && code == ERR_CLOSED));
		ck_assert_uint_eq(lookup(t, 1, 1, BLOCK, LONG_US, NULL), 0);
		ck_assert(round > 0 || t->ops->remove(t, &o.op.key) == ERR_NOTFOUND);
		int flushed = ERR_CLOSED;
		if (round == 0)
			tier_flushed(t, &flushed);
		ck_assert_int_eq(flushed, ERR_CLOSED); /* which whoever asks for it hears */
		rig_start(&rig, NULL);
		wait_state(t, "ready");
		ck_assert_int_eq(put(t, 1, BLOCK), 0);
		ck_assert_int_eq(get(t, 1, BLOCK), 0);
		rig_kill(&rig);
		wait_state(t, "away: ");
	}
	wait_state(t, "away: Connection refused");
	t->ops->destroy(t);
}
END_TEST

struct hammer {
	struct tier *t;
	pthread_t thread;
	unsigned first;
	_Atomic int *stop;
	unsigned hits, puts, other;
};

/* Puts and gets the same few blocks until it is told to stop; every operation ends, and no wrong
 * block comes. */
static void *hammer_main(void *arg)
{
	struct hammer *h = arg;
	for (unsigned i = h->first; !*h->stop; i++) {
		struct rop o[6];
		for (unsigned k = 0; k < 6; k++)
			k & 1 ? rop_begin_get(h->t, &o[k], (i + k) % 16, BLOCK)
				  : rop_begin_put(h->t, &o[k], (i + k) % 16, BLOCK);
		for (unsigned k = 0; k < 6; k++) {
			int code = rop_end(&o[k]);
			h->hits += k & 1 && code == 0;
			h->puts += !(k & 1) && code == 0;
			h->other += code != 0;
		}
		if (h->other)
			usleep(200);
	}
	return NULL;
}

/* Killed again and again under load, started again: what is asked ends, what is served is right,
 * hits come back. */
START_TEST(test_killed_under_load)
{
	_Atomic int over = 0;
	struct tier *t = ready_tier((struct tier_redis_opts){.timeout_ms = 5000});
	struct hammer h[3];
	for (unsigned i = 0; i < 3; i++) {
		h[i] = (struct hammer){.t = t, .first = 5 * i, .stop = &over};
		pthread_create(&h[i].thread, NULL, hammer_main, &h[i]);
	}
	for (int round = 0; round < 3; round++) {
		struct tier_stat before = stat_of(t), s;
		for (uint64_t until = clock_us() + LONG_US;
		     s = stat_of(t), s.hits < before.hits + 20 || s.write_bytes == before.write_bytes;
		     usleep(1000))
			ck_assert_uint_lt(clock_us(), until);
		rig_kill(&rig);
		rig_start(&rig, NULL);
	}
	wait_state(t, "ready");
	over = 1;
	for (unsigned i = 0; i < 3; i++) {
		pthread_join(h[i].thread, NULL);
		ck_assert_uint_gt(h[i].hits, 0);
	}
	ck_assert_uint_eq(stat_of(t).corrupt, 0);
	t->ops->destroy(t);
}
END_TEST

START_TEST(test_stopped)
{
	struct tier *t = ready_tier((struct tier_redis_opts){.timeout_ms = 300});
	struct rop o[8];
	uint64_t us;
	ck_assert_int_eq(put(t, 1, BLOCK), 0);
	kill(rig.pid, SIGSTOP);
	ck_assert_uint_eq(lookup(t, 1, 1, BLOCK, 20000, &us), 0);
	ck_assert_uint_lt(us, 5000000); /* 20 ms, but for a loaded machine */
	for (unsigned i = 0; i < 8; i++)
		i & 1 ? rop_begin_get(t, &o[i], 1, BLOCK) : rop_begin_put(t, &o[i], 100 + i, BLOCK);
	for (unsigned i = 0; i < 8; i++) {
		int code = rop_end(&o[i]);
		ck_assert_msg(code == ERR_TIMEOUT || code == ERR_CLOSED || code == ERR_NOTFOUND, "%d",
		              code);
		ck_assert_uint_lt(o[i].us, 30000000);
	}
	wait_state(t, "away: no answer");
	ck_assert_int_eq(put(t, 2, BLOCK), ERR_CLOSED);
	kill(rig.pid, SIGCONT);
	wait_state(t, "ready");
	ck_assert_int_eq(get(t, 1, BLOCK), 0);
	t->ops->destroy(t);
}
END_TEST

/* Look-ups that the server does not answer end by their limit, the caller's or the tier's, and
 * say nothing about the server: it may just be far away. */
START_TEST(test_lookup_limit)
{
	struct tier *t = ready_tier((struct tier_redis_opts){.timeout_ms = 60000, .lookup_ms = 20});
	uint64_t us;
	ck_assert_int_eq(put(t, 1, BLOCK), 0);
	kill(rig.pid, SIGSTOP);
	for (int i = 0; i < 8; i++) {
		ck_assert_uint_eq(lookup(t, 1, 1, BLOCK, i & 1 ? 10000 : 0, &us), 0);
		ck_assert_uint_lt(us, 30000000); /* 10 or 20 ms, but for a loaded machine */
	}
	ck_assert_str_eq(stat_of(t).state, "ready");
	kill(rig.pid, SIGCONT);
	ck_assert_uint_eq(lookup(t, 1, 1, BLOCK, LONG_US, NULL), 1);
	t->ops->destroy(t);
}
END_TEST

/* Ended with operations under way and waiting: each is told once, and destroy comes back. */
START_TEST(test_destroy_busy)
{
	struct tier *t = ready_tier((struct tier_redis_opts){.timeout_ms = 60000, .depth = 2});
	static struct rop o[64];
	kill(rig.pid, SIGSTOP);
	for (unsigned i = 0; i < 64; i++)
		i & 1 ? rop_begin_get(t, &o[i], i, BLOCK) : rop_begin_put(t, &o[i], i, 10 * BLOCK);
	struct flush_rig f = flush_rig();
	t->ops->flush(t, &f.f);
	t->ops->destroy(t);
	for (unsigned i = 0; i < 64; i++)
		ck_assert_int_eq(rop_end(&o[i]), ERR_CANCELLED);
	flush_rig_wait(&f);
	ck_assert_int_eq(f.f.code, ERR_CANCELLED);
	t = tier_at(rig.unix_path, (struct tier_redis_opts){0}); /* connected, not greeted */
	usleep(20000);
	t->ops->destroy(t);
	kill(rig.pid, SIGCONT);
}
END_TEST

/* More than may wait: refused at once; the rest ends. */
START_TEST(test_queue_bound)
{
	enum { N = 1200 };
	struct tier *t = ready_tier((struct tier_redis_opts){.timeout_ms = 3000, .depth = 4});
	struct rop *o = mem_array(N, sizeof *o);
	unsigned full = 0;
	kill(rig.pid, SIGSTOP);
	for (unsigned i = 0; i < N; i++)
		rop_begin_put(t, &o[i], i, 100);
	ck_assert_uint_le(stat_of(t).queued, 1024);
	for (unsigned i = 0; i < N; i++)
		full += rop_end(&o[i]) == ERR_FULL;
	ck_assert_uint_ge(full, N - 1024 - 4);
	ck_assert_uint_le(full, N - 1024);
	ck_assert_uint_eq(stat_of(t).full, full);
	kill(rig.pid, SIGCONT);
	t->ops->destroy(t);
	free(o);
}
END_TEST

static unsigned free_port(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof a;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&a, &len), 0);
	close(fd);
	return ntohs(a.sin_port);
}

/* Over TCP, by number and by name, killed and back. */
START_TEST(test_tcp)
{
	char port[16], address[2][40];
	unsigned n = free_port();
	snprintf(port, sizeof port, "%u", n);
	snprintf(address[0], sizeof address[0], "127.0.0.1:%u", n);
	snprintf(address[1], sizeof address[1], "localhost:%u", n);
	rig_kill(&rig);
	for (int i = 0; i < 2; i++) {
		struct tier *t = tier_at(address[i], (struct tier_redis_opts){.timeout_ms = 5000});
		wait_state(t, "away: Connection refused");
		for (int life = 0; life < 2; life++) {
			rig_start(&rig, (const char *const[]){"--port", port, "--bind", "127.0.0.1", NULL});
			wait_state(t, "ready");
			ck_assert_int_eq(put(t, 1, 20 * BLOCK), 0);
			ck_assert_int_eq(get(t, 1, 20 * BLOCK), 0);
			rig_kill(&rig);
			wait_state(t, "away: ");
		}
		t->ops->destroy(t);
	}
}
END_TEST

/* --- what it says -------------------------------------------------------- */

START_TEST(test_full_server)
{
	struct tier *t = ready_tier((struct tier_redis_opts){0});
	struct rop o;
	ck_assert_int_eq(put(t, 1, BLOCK), 0);
	RIG_DO(&rig, "CONFIG", "SET", "maxmemory-policy", "noeviction");
	RIG_DO(&rig, "CONFIG", "SET", "maxmemory", "1000");
	rop_begin_put(t, &o, 2, BLOCK);
	ck_assert_int_eq(rop_end(&o), ERR_FULL);
	ck_assert_str_eq(o.text, "redis is at its maxmemory and evicts nothing");
	rop_begin_put(t, &o, 3, BLOCK);
	ck_assert_int_eq(o.moved, 0); /* for a while not even tried */
	ck_assert_int_eq(rop_end(&o), ERR_FULL);
	ck_assert_int_eq(get(t, 1, BLOCK), 0);
	ck_assert_int_eq(put(t, 1, BLOCK), ERR_FULL);
	ck_assert_uint_eq(stat_of(t).full, 3);
	ck_assert_str_eq(stat_of(t).state, "ready, redis is at its maxmemory and evicts nothing");
	RIG_DO(&rig, "CONFIG", "SET", "maxmemory", "0");
	for (uint64_t until = clock_us() + LONG_US; put(t, 2, BLOCK) != 0; usleep(20000))
		ck_assert_uint_lt(clock_us(), until);
	ck_assert_str_eq(stat_of(t).state, "ready");
	t->ops->destroy(t);
}
END_TEST

START_TEST(test_replica)
{
	struct tier *t = ready_tier((struct tier_redis_opts){0});
	struct rop o;
	ck_assert_int_eq(put(t, 1, BLOCK), 0);
	RIG_DO(&rig, "REPLICAOF", "127.0.0.1", "1");
	rop_begin_put(t, &o, 2, BLOCK);
	ck_assert_int_eq(rop_end(&o), ERR_IO);
	ck_assert_str_eq(o.text, "this redis is a replica and refuses writes");
	ck_assert_int_eq(get(t, 1, BLOCK), 0);
	t->ops->destroy(t);
}
END_TEST

static int has_state(const char *address, struct tier_redis_opts o, const char *state)
{
	struct tier *t = tier_at(address, o);
	wait_state(t, state);
	t->ops->destroy(t);
	return 1;
}

START_TEST(test_password_and_db)
{
	ck_assert(has_state(rig.unix_path, (struct tier_redis_opts){.db = 99},
	                    "away: SELECT: ERR DB index is out of range"));
	struct tier *zero = ready_tier((struct tier_redis_opts){0}),
				*five = ready_tier((struct tier_redis_opts){.db = 5});
	ck_assert_int_eq(put(five, 1, BLOCK), 0);
	ck_assert_int_eq(get(zero, 1, BLOCK), ERR_NOTFOUND);
	five->ops->destroy(five);
	zero->ops->destroy(zero);
	RIG_DO(&rig, "ACL", "SETUSER", "kv", "on", ">geheim", "~pdserve:*", "+@all");
	RIG_DO(&rig, "ACL", "SETUSER", "dull", "on", ">geheim", "~other:*", "+@all");
	RIG_DO(&rig, "CONFIG", "SET", "requirepass", "offen");
	ck_assert(has_state(rig.unix_path, (struct tier_redis_opts){0}, "away: EXISTS: NOAUTH"));
	ck_assert(has_state(rig.unix_path, (struct tier_redis_opts){.password = "falsch"},
	                    "away: AUTH: WRONGPASS"));
	ck_assert(has_state(rig.unix_path, (struct tier_redis_opts){.password = "offen"}, "ready"));
	ck_assert(has_state(rig.unix_path,
	                    (struct tier_redis_opts){.username = "kv", .password = "offen"},
	                    "away: AUTH: WRONGPASS"));
	ck_assert(has_state(rig.unix_path,
	                    (struct tier_redis_opts){.username = "kv", .password = "geheim"}, "ready"));
	ck_assert(has_state(rig.unix_path,
	                    (struct tier_redis_opts){.username = "dull", .password = "geheim"},
	                    "away: EXISTS: NOPERM"));
}
END_TEST

/* The password is put right while the daemon runs: it is tried again without anybody's help. */
START_TEST(test_password_mended)
{
	redisContext *c = rig_connect(&rig);
	freeReplyObject(redisCommand(c, "CONFIG SET requirepass other"));
	struct tier *t = tier_at(rig.unix_path, (struct tier_redis_opts){.password = "mine"});
	wait_state(t, "away: AUTH");
	freeReplyObject(redisCommand(c, "CONFIG SET requirepass mine"));
	wait_state(t, "ready");
	ck_assert_int_eq(put(t, 1, BLOCK), 0);
	redisFree(c);
	t->ops->destroy(t);
}
END_TEST

START_TEST(test_figures)
{
	RIG_DO(&rig, "CONFIG", "SET", "maxmemory", "100000000");
	RIG_DO(&rig, "SET", "somebody", "else");
	struct tier *t = ready_tier((struct tier_redis_opts){0});
	for (uint64_t until = clock_us() + LONG_US; stat_of(t).blocks != 1; usleep(1000))
		ck_assert_uint_lt(clock_us(), until);
	struct tier_stat s = stat_of(t);
	ck_assert_uint_eq(s.capacity_bytes, 100000000);
	ck_assert_uint_gt(s.bytes, 100000);
	ck_assert_uint_eq(s.evictions, 0);
	t->ops->destroy(t);
}
END_TEST

/* What the server evicts is counted when it is asked again, and has gone nowhere else: it is
 * lost. */
START_TEST(test_evicted)
{
	struct tier *t = ready_tier((struct tier_redis_opts){0});
	for (uint64_t until = clock_us() + LONG_US; stat_of(t).bytes == 0; usleep(1000))
		ck_assert_uint_lt(clock_us(), until);
	RIG_DO(&rig, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru");
	RIG_DO(&rig, "CONFIG", "SET", "maxmemory", "8000000");
	for (unsigned i = 0; i < 300; i++)
		ck_assert_int_eq(put(t, i, 65536), 0);
	tier_flushed(t, NULL); /* its end asks for the figures */
	for (uint64_t until = clock_us() + LONG_US; stat_of(t).evictions < 150; usleep(1000))
		ck_assert_uint_lt(clock_us(), until);
	struct tier_stat s = stat_of(t);
	ck_assert_uint_eq(s.lost, s.evictions);
	t->ops->destroy(t);
}
END_TEST

START_TEST(test_ttl)
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
END_TEST

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

START_TEST(test_wrong_values)
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
END_TEST

/* A value of 100 MB under our key: no more than the block's bytes are ever sent. */
START_TEST(test_huge_value)
{
	char key[96];
	key_text(key, 1);
	struct tier *t = ready_tier((struct tier_redis_opts){0});
	RIG_DO(&rig, "SETRANGE", key, "100000000", "x");
	ck_assert(corrupt_and_gone(t, key));
	t->ops->destroy(t);
}
END_TEST

/* Two daemons write and read the same blocks at the same time. */
START_TEST(test_two_clients)
{
	_Atomic int over = 0;
	struct hammer h[4];
	struct tier *t[2] = {ready_tier((struct tier_redis_opts){.timeout_ms = 20000}),
	                     ready_tier((struct tier_redis_opts){.timeout_ms = 20000})};
	for (unsigned i = 0; i < 4; i++) {
		h[i] = (struct hammer){.t = t[i & 1], .first = i, .stop = &over};
		pthread_create(&h[i].thread, NULL, hammer_main, &h[i]);
	}
	for (int i = 0; i < 20; i++) {
		for (unsigned n = 0; n < 16; n++) {
			struct tier_key k = key_of(n);
			t[n & 1]->ops->remove(t[n & 1], &k);
		}
		usleep(10000);
	}
	over = 1;
	for (unsigned i = 0; i < 4; i++)
		pthread_join(h[i].thread, NULL);
	for (int i = 0; i < 2; i++) {
		ck_assert_uint_eq(stat_of(t[i]).corrupt + stat_of(t[i]).errors + stat_of(t[i]).full, 0);
		t[i]->ops->destroy(t[i]);
	}
}
END_TEST

/* --- flush --------------------------------------------------------------- */

START_TEST(test_flush)
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
END_TEST

/* What was asked before a flush and is answered after it: not found, not stored, and nothing of
 * it is there afterwards. */
START_TEST(test_flush_voids)
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
END_TEST

/* A block that is on its way when the flush comes goes with the others. */
START_TEST(test_flush_after_put)
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
END_TEST

static void count_gone(void *arg, const struct tier_key *key, int stored)
{
	ck_assert(!key && !stored);
	atomic_fetch_add((atomic_int *)arg, 1);
}

/* A server that somebody has emptied has nothing, and no fault; who keeps blocks above since
 * they were here hears of it, and of a flush. */
START_TEST(test_emptied)
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
END_TEST

/* The server dies in the middle of it: that is the end of it, and the tier works again when the
 * server is back. */
START_TEST(test_flush_cut)
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
END_TEST

/* --- options ------------------------------------------------------------- */

START_TEST(test_options)
{
	static const struct {
		const char *address, *want;
	} bad[] = {
		{"", "no host"},
		{":6379", "no host"},
		{"host:", "port"},
		{"host:0", "port"},
		{"host:65536", "port"},
		{"host:12x", "port"},
		{"host:-1", "port"},
		{"fe80::1", "brackets"},
		{"[fe80::1", "bracket"},
		{"[fe80::1]6", "bracket"},
		{"[]:1", "no host"},
		{"unix:", "absolute"},
		{"unix:rel/ative", "absolute"},
		{"unix:/"
	     "01234567890123456789012345678901234567890123456789012345678901234567890123456789012345678"
	     "9012345678901234567",
	     "108"},
	};
	struct tier *t = NULL;
	struct err err;
	struct redis_address a;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		ck_assert_int_eq(tier_redis_new(&(struct tier_redis_opts){.address = bad[i].address}, &t,
		                                &err),
		                 ERR_INVALID);
		ck_assert_msg(strstr(err.text, bad[i].want) != NULL, "%s: %s", bad[i].address, err.text);
	}
	ck_assert_int_eq(redis_address_parse(&a, "kv.example", &err), 0);
	ck_assert_int_eq(a.port, 6379);
	ck_assert_int_eq(redis_address_parse(&a, "[::1]", &err), 0);
	ck_assert_str_eq(a.host, "::1");
	ck_assert_int_eq(redis_address_parse(&a, "[::1]:77", &err), 0);
	ck_assert_int_eq(a.port, 77);
	static const struct tier_redis_opts wrong[] = {
		{.db = 65536},
		{.timeout_ms = 9},
		{.timeout_ms = 60001},
		{.lookup_ms = 60001},
		{.depth = 1025},
		{.prefix = ""},
		{.prefix = "a b"},
		{.username = "x"},
		{.prefix = "01234567890123456789012345678901234567890123456789012345678901234"},
	};
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		struct tier_redis_opts o = wrong[i];
		o.address = "localhost:1";
		ck_assert_msg(tier_redis_new(&o, &t, &err) == ERR_INVALID, "%zu", i);
	}
	ck_assert_ptr_null(t);
}
END_TEST

/* Nobody listens, and no such host: both are states. */
START_TEST(test_no_host)
{
	ck_assert(has_state("127.0.0.1:1", (struct tier_redis_opts){0}, "away: Connection refused"));
	ck_assert(has_state("unix:/nowhere/redis", (struct tier_redis_opts){0}, "away: No such file"));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("storage_redis");
	TCase *c = tcase_create("server"), *none = tcase_create("none");
	tcase_set_timeout(c, 120);
	tcase_set_timeout(none, 60);
	tcase_add_checked_fixture(c, start, stop);
	tcase_add_test(c, test_sizes);
	tcase_add_test(c, test_put_known);
	tcase_add_test(c, test_void);
	tcase_add_test(c, test_given_up_and_aside);
	tcase_add_test(c, test_lookup);
	tcase_add_test(c, test_lookup_where);
	tcase_add_test(c, test_away_and_back);
	tcase_add_test(c, test_killed_under_load);
	tcase_add_test(c, test_stopped);
	tcase_add_test(c, test_lookup_limit);
	tcase_add_test(c, test_destroy_busy);
	tcase_add_test(c, test_queue_bound);
	tcase_add_test(c, test_tcp);
	tcase_add_test(c, test_full_server);
	tcase_add_test(c, test_replica);
	tcase_add_test(c, test_password_and_db);
	tcase_add_test(c, test_password_mended);
	tcase_add_test(c, test_figures);
	tcase_add_test(c, test_evicted);
	tcase_add_test(c, test_ttl);
	tcase_add_test(c, test_wrong_values);
	tcase_add_test(c, test_huge_value);
	tcase_add_test(c, test_two_clients);
	tcase_add_test(c, test_flush);
	tcase_add_test(c, test_flush_cut);
	tcase_add_test(c, test_flush_voids);
	tcase_add_test(c, test_flush_after_put);
	tcase_add_test(c, test_emptied);
	tcase_add_test(none, test_options);
	tcase_add_test(none, test_no_host);
	suite_add_tcase(s, c);
	suite_add_tcase(s, none);
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
