/* redis_rig.h - a redis-server of the test's own on a local socket in a temporary folder, that ends
 * with the test whatever happens; operations on a tier that can be waited for; and a proxy in
 * front of the server that delays, cuts or damages what goes through it. */
#ifndef TESTS_REDIS_RIG_H
#define TESTS_REDIS_RIG_H

#include "tests/unit/flush_rig.h"

#include "daemons/storage/redis_value.h"
#include "daemons/storage/sum.h"
#include "daemons/storage/redis.h"

#include "tempdir.h"
#include "util/clock.h"
#include "util/mem.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONG_US 30000000u /* more than anything here takes on a loaded machine */
#define BLOCK 100000u

/* --- the server ---------------------------------------------------------- */

struct redis_rig {
	char path[TEST_FOLDER_BYTES], unix_path[TEST_FOLDER_BYTES + 8];
	pid_t pid;
};

static inline void rig_init(struct redis_rig *r)
{
	memset(r, 0, sizeof *r);
	test_file(r->path, "redis");
	snprintf(r->unix_path, sizeof r->unix_path, "unix:%s", r->path);
}

static inline redisContext *rig_connect(struct redis_rig *r)
{
	redisContext *c = redisConnectUnixWithTimeout(r->path, (struct timeval){.tv_sec = 20});
	if (c && c->err) {
		redisFree(c);
		c = NULL;
	}
	return c;
}

/* extra: further arguments, NULL at the end; may be NULL. Returns when it answers. */
static inline void rig_start(struct redis_rig *r, const char *const *extra)
{
	const char *argv[32] = {"redis-server", "--port", "0",       "--unixsocket",
	                        r->path,        "--save", "",        "--appendonly",
	                        "no",           "--dir",  test_base, "--logfile",
	                        "/dev/null"};
	int n = 13;
	for (; extra && *extra && n < 31; extra++)
		argv[n++] = *extra;
	unlink(r->path);
	pid_t parent = getpid();
	r->pid = fork();
	if (r->pid == 0) {
		/* of a process with threads: nothing here may take a lock, as libcheck's assertions do */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		int null = open("/dev/null", O_RDWR);
		dup2(null, 1);
		execvp(argv[0], (char *const *)(uintptr_t)argv);
		_exit(1);
	}
	ck_assert_int_ge(r->pid, 0);
	for (uint64_t until = clock_us() + LONG_US; clock_us() < until; usleep(5000)) {
		redisContext *c = rig_connect(r);
		if (c) {
			redisReply *a = redisCommand(c, "PING");
			int there = a != NULL; /* NOAUTH is an answer too */
			if (a)
				freeReplyObject(a);
			redisFree(c);
			if (there)
				return;
		}
		ck_assert_msg(waitpid(r->pid, NULL, WNOHANG) == 0,
		              "redis-server ended; tools/setup --test installs it");
	}
	ck_abort_msg("redis-server does not answer");
}

static inline void rig_kill(struct redis_rig *r)
{
	if (r->pid > 0) {
		kill(r->pid, SIGKILL);
		waitpid(r->pid, NULL, 0);
	}
	r->pid = 0;
}

/* The server that each test has. */
static struct redis_rig rig;

static inline void server_start(void)
{
	rig_init(&rig);
	rig_start(&rig, NULL);
}

static inline void server_stop(void)
{
	rig_kill(&rig);
}

/* One command on a connection of its own; the reply's number, or its length, or -1 for an error
 * or nil. */
static inline long long rig_do(struct redis_rig *r, int argc, const char **argv, const size_t *len)
{
	redisContext *c = rig_connect(r);
	ck_assert_ptr_nonnull(c);
	redisReply *a = redisCommandArgv(c, argc, argv, len);
	ck_assert_ptr_nonnull(a);
	long long n = a->type == REDIS_REPLY_INTEGER ? a->integer
	              : a->type == REDIS_REPLY_STATUS || a->type == REDIS_REPLY_STRING
	                  ? (long long)a->len
	                  : -1;
	freeReplyObject(a);
	redisFree(c);
	return n;
}

#define RIG_DO(r, ...)                                                       \
	rig_do(r, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), \
	       (const char *[]){__VA_ARGS__}, NULL)

/* --- blocks and operations ----------------------------------------------- */

struct rop {
	struct tier_op op;
	unsigned char *bytes;
	int move_code, code;
	_Atomic int moved, done;
	enum tier_id tier;
	char text[128];
	uint64_t us; /* it took */
	sem_t over;
};

static inline struct tier_key key_of(unsigned name)
{
	struct tier_key k = {{0}};
	memcpy(k.b, &name, sizeof name);
	k.b[31] = 0x5a;
	return k;
}

static inline void key_text(char *out, unsigned name) /* (80) */
{
	struct tier_key k = key_of(name);
	strcpy(out, TIER_REDIS_PREFIX);
	redis_key_digits(out + strlen(TIER_REDIS_PREFIX), &k);
	out[strlen(TIER_REDIS_PREFIX) + REDIS_KEY_DIGITS] = 0;
}

static inline void fill(unsigned char *p, size_t n, unsigned name)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (unsigned char)(name * 131u + i * 7u + (i >> 9));
}

static inline int rop_move_in(struct tier_op *top, const struct tier_span *span, unsigned n)
{
	struct rop *o = (struct rop *)top;
	struct sum_state s;
	size_t at = 0;
	o->moved++;
	sum_begin(&s);
	for (unsigned i = 0; i < n; at += span[i++].bytes)
		sum_add_copy(&s, span[i].at, o->bytes + at, span[i].bytes);
	ck_assert_uint_eq(at, top->bytes);
	top->sum = sum_end(&s);
	return o->move_code;
}

static inline int rop_move_out(struct tier_op *top, const struct tier_span *span, unsigned n)
{
	struct rop *o = (struct rop *)top;
	size_t at = 0;
	o->moved++;
	for (unsigned i = 0; i < n; at += span[i++].bytes)
		memcpy(o->bytes + at, span[i].at, span[i].bytes);
	ck_assert_uint_eq(at, top->bytes);
	return o->move_code;
}

static inline void rop_done(struct tier_op *top, int code, enum tier_id tier, const char *text)
{
	struct rop *o = (struct rop *)top;
	ck_assert_int_eq(atomic_fetch_add(&o->done, 1), 0);
	o->code = code;
	o->tier = tier;
	o->us = clock_us() - o->us;
	snprintf(o->text, sizeof o->text, "%s", text ? text : "");
	sem_post(&o->over);
}

static inline void rop_init(struct rop *o, unsigned name, size_t bytes)
{
	memset(o, 0, sizeof *o);
	o->op.key = key_of(name);
	o->op.bytes = bytes;
	o->op.done = rop_done;
	o->bytes = mem_zalloc(bytes);
	sem_init(&o->over, 0, 0);
}

static inline void rop_begin_put(struct tier *t, struct rop *o, unsigned name, size_t bytes)
{
	rop_init(o, name, bytes);
	fill(o->bytes, bytes, name);
	o->op.move = rop_move_in;
	o->us = clock_us();
	t->ops->put(t, &o->op);
}

static inline void rop_begin_get(struct tier *t, struct rop *o, unsigned name, size_t bytes)
{
	rop_init(o, name, bytes);
	o->op.move = rop_move_out;
	o->us = clock_us();
	t->ops->get(t, &o->op);
}

static inline void sem_wait_long(sem_t *s)
{
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += 30;
	int r;
	while ((r = sem_clockwait(s, CLOCK_MONOTONIC, &until)) != 0 && errno == EINTR)
		;
	ck_assert_msg(r == 0, "an operation does not end");
}

/* Waits for its end; its code. A get that is a hit has the right bytes. Frees what it has. */
static inline int rop_end(struct rop *o)
{
	sem_wait_long(&o->over);
	if (o->op.move == rop_move_out && o->code == 0) {
		unsigned name;
		memcpy(&name, o->op.key.b, sizeof name);
		unsigned char *want = mem_alloc(o->op.bytes);
		fill(want, o->op.bytes, name);
		ck_assert_msg(memcmp(o->bytes, want, o->op.bytes) == 0, "a wrong block was served");
		free(want);
	}
	ck_assert_int_eq(o->tier, o->code == 0 ? TIER_REDIS : TIER_NONE);
	free(o->bytes);
	sem_destroy(&o->over);
	return o->code;
}

static inline int put(struct tier *t, unsigned name, size_t bytes)
{
	struct rop o;
	rop_begin_put(t, &o, name, bytes);
	return rop_end(&o);
}

static inline int get(struct tier *t, unsigned name, size_t bytes)
{
	struct rop o;
	rop_begin_get(t, &o, name, bytes);
	return rop_end(&o);
}

struct rfind {
	struct tier_find f;
	struct tier_key *key;
	unsigned char *where;
	uint64_t us;
	sem_t over;
};

static inline void rfind_done(struct tier_find *f)
{
	struct rfind *q = (struct rfind *)f;
	q->us = clock_us() - q->us;
	sem_post(&q->over);
}

/* How many of n names from `first` on are there, one after the other; limit 0: the tier's own.
 * *us: how long the answer took. */
static inline uint32_t lookup(struct tier *t, unsigned first, uint32_t n, size_t bytes,
                              uint64_t limit_us, uint64_t *us)
{
	struct rfind q = {.key = mem_array(n, sizeof *q.key), .where = mem_zalloc(n), .us = clock_us()};
	for (uint32_t i = 0; i < n; i++)
		q.key[i] = key_of(first + i);
	q.f = (struct tier_find){.key = q.key,
	                         .where = q.where,
	                         .n = n,
	                         .bytes = bytes,
	                         .leading = 1,
	                         .until_us = limit_us ? q.us + limit_us : 0,
	                         .done = rfind_done};
	sem_init(&q.over, 0, 0);
	t->ops->lookup(t, &q.f);
	sem_wait_long(&q.over);
	uint32_t found = 0;
	while (found < n && q.where[found] == TIER_REDIS)
		found++;
	if (us)
		*us = q.us;
	free(q.key);
	free(q.where);
	sem_destroy(&q.over);
	return found;
}

static inline struct tier *tier_at(const char *address, struct tier_redis_opts o)
{
	struct tier *t = NULL;
	struct err err = {0};
	o.address = address;
	ck_assert_msg(tier_redis_new(&o, &t, &err) == 0, "%s", err.text);
	return t;
}

/* Waits until the state begins with this. */
static inline void wait_state(struct tier *t, const char *state)
{
	struct tier_stat s = {0};
	for (uint64_t until = clock_us() + LONG_US; clock_us() < until; usleep(2000)) {
		t->ops->stat(t, &s);
		if (!strncmp(s.state, state, strlen(state)))
			return;
	}
	ck_abort_msg("the state stays \"%s\", not \"%s\"", s.state, state);
}

static inline struct tier_stat stat_of(struct tier *t)
{
	struct tier_stat s = {0};
	t->ops->stat(t, &s);
	return s;
}

static inline struct tier *ready_tier(struct tier_redis_opts o)
{
	struct tier *t = tier_at(rig.unix_path, o);
	wait_state(t, "ready");
	return t;
}

/* --- a listener on a local socket whose connections a thread each serves --- */

struct front;

struct front_conn {
	struct front *front;
	int fd;
	unsigned number; /* of the connection, from 0 */
};

struct front {
	char path[TEST_FOLDER_BYTES], unix_path[TEST_FOLDER_BYTES + 8];
	int listener;
	pthread_t thread;
	_Atomic int stop;
	_Atomic unsigned n, live;
	void (*serve)(struct front_conn *c);
	void *arg;
};

static inline void *front_serve(void *arg)
{
	struct front_conn *c = arg;
	struct front *f = c->front;
	f->serve(c);
	close(c->fd);
	free(c);
	f->live--;
	return NULL;
}

static inline void *front_accept(void *arg)
{
	struct front *f = arg;
	while (!f->stop) {
		struct pollfd p = {.fd = f->listener, .events = POLLIN};
		if (poll(&p, 1, 20) <= 0)
			continue;
		struct front_conn *c = mem_zalloc(sizeof *c);
		c->front = f;
		c->fd = accept(f->listener, NULL, NULL);
		c->number = f->n++;
		pthread_t th;
		f->live++;
		if (c->fd < 0 || pthread_create(&th, NULL, front_serve, c) != 0) {
			f->live--;
			free(c);
			continue;
		}
		pthread_detach(th);
	}
	return NULL;
}

static inline void front_start(struct front *f, void (*serve)(struct front_conn *c), void *arg)
{
	memset(f, 0, sizeof *f);
	f->serve = serve;
	f->arg = arg;
	test_file(f->path, "front");
	snprintf(f->unix_path, sizeof f->unix_path, "unix:%s", f->path);
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	strcpy(a.sun_path, f->path);
	f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(f->listener, (struct sockaddr *)&a, sizeof a), 0);
	ck_assert_int_eq(listen(f->listener, 64), 0);
	ck_assert_int_eq(pthread_create(&f->thread, NULL, front_accept, f), 0);
}

/* The tier must be gone: its connections end those of the front. */
static inline void front_stop(struct front *f)
{
	f->stop = 1;
	pthread_join(f->thread, NULL);
	for (uint64_t until = clock_us() + LONG_US; f->live; usleep(1000))
		ck_assert_uint_lt(clock_us(), until);
	close(f->listener);
}

#endif
