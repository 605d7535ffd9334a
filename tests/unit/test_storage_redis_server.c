/* test_storage_redis_server.c - the Redis tier and its redis-server: what happens when the server
 * is not there, dies, stops, is full or busy, or refuses us, and what it says of itself. */
/* run: waits */
#include "daemons/storage/redis_int.h"
#include "redis_rig.h"
#include "skip.h"

#include <arpa/inet.h>
#include <netinet/in.h>

/* --- the server is not there, dies, stops -------------------------------- */

TEST_CASE("server", .timeout_s = 120, .setup = server_start, .teardown = server_stop);

TEST(test_away_and_back)
{
	server_stop();
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

TEST(test_stopped)
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

/* Look-ups that the server does not answer end by their limit, the caller's or the tier's, and
 * say nothing about the server: it may just be far away. */
TEST(test_lookup_limit)
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

/* Ended with operations under way and waiting: each is told once, and destroy comes back. */
TEST(test_destroy_busy)
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

/* More than may wait: refused at once; the rest ends. */
TEST(test_queue_bound)
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
TEST(test_tcp)
{
	char port[16], address[2][40];
	unsigned n = free_port();
	snprintf(port, sizeof port, "%u", n);
	snprintf(address[0], sizeof address[0], "127.0.0.1:%u", n);
	snprintf(address[1], sizeof address[1], "localhost:%u", n);
	int ways = localhost_resolves() ? 2 : 1;
	if (ways < 2)
		SKIP_PART(SKIP_NO_LOCALHOST);
	rig_kill(&rig);
	for (int i = 0; i < ways; i++) {
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

/* --- load ---------------------------------------------------------------- */

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
TEST(test_killed_under_load)
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

/* Two daemons write and read the same blocks at the same time. */
TEST(test_two_clients)
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

/* --- what it says -------------------------------------------------------- */

TEST(test_full_server)
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

TEST(test_replica)
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

static int has_state(const char *address, struct tier_redis_opts o, const char *state)
{
	struct tier *t = tier_at(address, o);
	wait_state(t, state);
	t->ops->destroy(t);
	return 1;
}

TEST(test_password_and_db)
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

/* The password is put right while the daemon runs: it is tried again without anybody's help. */
TEST(test_password_mended)
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

TEST(test_figures)
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

/* What the server evicts is counted when it is asked again, and has gone nowhere else: it is
 * lost. */
TEST(test_evicted)
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

/* --- options ------------------------------------------------------------- */

TEST_CASE("none", .timeout_s = 60);

TEST(test_options)
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

/* Nobody listens, and no such host: both are states. */
TEST(test_no_host)
{
	ck_assert(has_state("127.0.0.1:1", (struct tier_redis_opts){0}, "away: Connection refused"));
	ck_assert(has_state("unix:/nowhere/redis", (struct tier_redis_opts){0}, "away: No such file"));
}
