/* bench_storage_redis.c - how fast the Redis tier takes blocks in and gives them back, against the
 * same bytes through a plain local socket and against hiredis's own blocking calls to the same
 * server, in the same run, taken in turns. The server is this program's own, on a local socket; all
 * blocks are new to it each time.
 *
 * bench_storage_redis [TURNS] [DEPTH]. Prints `RESULT name=value`: MB/s (10^6) are medians over
 * the turns; fractions are of the plain socket. */
#include "daemons/storage/sum.h"
#include "daemons/storage/redis.h"

#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"
#include "util/queue.h"

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCKS 128u
/* 30 layers, 3 heads of 64, 64 tokens, BF16, keys and values */
#define BLOCK_BYTES ((size_t)1474560)
#define TURNS_MAX 101

enum { SOCKET, HIREDIS_SET, HIREDIS_GET, PUT, GET, WAYS };
static const char *const way_name[WAYS] = {"socket", "hiredis_set", "hiredis_get", "redis_put",
                                           "redis_get"};

static char dir[] = "/tmp/pdserve-bench-XXXXXX", path[64];
static pid_t server;
static unsigned char *region; /* (BLOCKS, BLOCK_BYTES) */

/* --- the server --- */

static void server_stop(void)
{
	if (server > 0) {
		kill(server, SIGKILL);
		waitpid(server, NULL, 0);
	}
	unlink(path);
	rmdir(dir);
}

static redisContext *server_connect(void)
{
	redisContext *c = redisConnectUnixWithTimeout(path, (struct timeval){.tv_sec = 20});
	if (c && c->err) {
		redisFree(c);
		c = NULL;
	}
	return c;
}

static redisContext *server_start(void)
{
	if (!mkdtemp(dir))
		check_fatal("no folder %s", dir);
	snprintf(path, sizeof path, "%s/redis", dir);
	pid_t parent = getpid();
	server = fork();
	CHECK(server >= 0);
	if (server == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		int null = open("/dev/null", O_RDWR);
		dup2(null, 1);
		if (getppid() == parent)
			execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", path, "--save",
			       "", "--appendonly", "no", "--dir", dir, (char *)NULL);
		_exit(127);
	}
	atexit(server_stop);
	redisContext *c;
	for (int i = 0; !(c = server_connect()); i++) {
		if (i == 1000 || waitpid(server, NULL, WNOHANG) != 0)
			check_fatal("redis-server does not answer; tools/setup --bench installs it");
		usleep(10000);
	}
	return c;
}

static void server_flush(redisContext *c)
{
	redisReply *r = redisCommand(c, "FLUSHALL SYNC");
	CHECK(r && r->type == REDIS_REPLY_STATUS);
	freeReplyObject(r);
}

/* --- the ways --- */

static void *socket_writer(void *arg)
{
	int fd = *(int *)arg;
	for (unsigned i = 0; i < BLOCKS; i++)
		for (size_t at = 0; at < BLOCK_BYTES;) {
			ssize_t n = send(fd, region + i * BLOCK_BYTES + at, BLOCK_BYTES - at, MSG_NOSIGNAL);
			CHECK(n > 0);
			at += (size_t)n;
		}
	return NULL;
}

static void run_socket(unsigned char *to)
{
	int fd[2];
	pthread_t th;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fd) == 0 &&
	      pthread_create(&th, NULL, socket_writer, &fd[0]) == 0);
	for (size_t at = 0; at < BLOCKS * BLOCK_BYTES;) {
		ssize_t n = recv(fd[1], to + at, BLOCKS * BLOCK_BYTES - at, 0);
		CHECK(n > 0);
		at += (size_t)n;
	}
	pthread_join(th, NULL);
	close(fd[0]);
	close(fd[1]);
}

static void run_hiredis(redisContext *c, int set, unsigned char *to)
{
	for (unsigned i = 0; i < BLOCKS; i++) {
		redisReply *r = set ? redisCommand(c, "SET plain:%u %b", i, region + i * BLOCK_BYTES,
		                                   BLOCK_BYTES)
		                    : redisCommand(c, "GET plain:%u", i);
		CHECK(r && r->type == (set ? REDIS_REPLY_STATUS : REDIS_REPLY_STRING));
		if (!set)
			memcpy(to + i * BLOCK_BYTES, r->str, BLOCK_BYTES);
		freeReplyObject(r);
	}
}

struct block_op {
	struct tier_op op;
	unsigned char *at;
};
static struct block_op ops[BLOCKS];
static struct queue *over;

static int move_in(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	const unsigned char *from = ((struct block_op *)op)->at;
	struct sum_state s;
	sum_begin(&s);
	for (unsigned i = 0; i < n; from += span[i++].bytes)
		sum_add_copy(&s, span[i].at, from, span[i].bytes);
	op->sum = sum_end(&s);
	return 0;
}

static int move_out(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	unsigned char *to = ((struct block_op *)op)->at;
	for (unsigned i = 0; i < n; to += span[i++].bytes)
		memcpy(to, span[i].at, span[i].bytes);
	return 0;
}

static void op_done(struct tier_op *op, int code, enum tier_id tier, const char *text)
{
	if (code != 0 || tier != TIER_REDIS)
		check_fatal("an operation ended with %s: %s", err_name(code), text ? text : "");
	CHECK(queue_put(over, op) == 0);
}

static void run_tier(struct tier *t, int put, unsigned char *at)
{
	for (unsigned i = 0; i < BLOCKS; i++) {
		ops[i] = (struct block_op){
			.op = {.bytes = BLOCK_BYTES, .move = put ? move_in : move_out, .done = op_done},
			.at = at + i * BLOCK_BYTES};
		memcpy(ops[i].op.key.b, &i, sizeof i);
		put ? t->ops->put(t, &ops[i].op) : t->ops->get(t, &ops[i].op);
	}
	for (unsigned i = 0; i < BLOCKS; i++)
		CHECK(queue_take(over));
}

static void run(int way, redisContext *c, struct tier *t, unsigned char *to)
{
	switch (way) {
	case SOCKET: run_socket(to); break;
	case HIREDIS_SET:
	case HIREDIS_GET: run_hiredis(c, way == HIREDIS_SET, to); break;
	default: run_tier(t, way == PUT, way == PUT ? region : to);
	}
}

/* --- figures --- */

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static struct tier *tier_start(unsigned depth)
{
	char address[80];
	struct tier *t;
	struct err err;
	struct tier_stat s = {0};
	snprintf(address, sizeof address, "unix:%s", path);
	if (tier_redis_new(
			&(struct tier_redis_opts){.address = address, .timeout_ms = 60000, .depth = depth}, &t,
			&err) != 0)
		check_fatal("%s", err.text);
	for (int i = 0; strcmp(s.state, "ready") != 0; i++) {
		if (i == 3000)
			check_fatal("the tier is \"%s\"", s.state);
		usleep(10000);
		t->ops->stat(t, &s);
	}
	return t;
}

int main(int argc, char **argv)
{
	int turns = argc > 1 ? atoi(argv[1]) : 7, depth = argc > 2 ? atoi(argv[2]) : 16;
	if (turns < 1 || turns > TURNS_MAX || depth < 1 || depth > 1024)
		check_fatal("usage: bench_storage_redis [TURNS 1-%d] [DEPTH 1-1024]", TURNS_MAX);
	log_set_level("warn");
	const size_t bytes = BLOCKS * BLOCK_BYTES;
	region = mem_alloc(bytes);
	unsigned char *to = mem_zalloc(bytes);
	for (size_t i = 0; i < bytes; i++)
		region[i] = (unsigned char)(i * 2654435761u >> 13);
	redisContext *c = server_start();
	struct tier *t = tier_start((unsigned)depth);
	over = queue_new(BLOCKS);
	static uint64_t us[WAYS][TURNS_MAX];
	for (int i = -1; i < turns; i++) /* one turn more, to touch all memory */
		for (int w = 0; w < WAYS; w++) {
			int writes = w == HIREDIS_SET || w == PUT;
			if (writes)
				server_flush(c);
			else
				memset(to, 0, bytes);
			uint64_t t0 = clock_us();
			run(w, c, t, to);
			us[w][i < 0 ? 0 : i] = clock_us() - t0;
			CHECK(writes || memcmp(region, to, bytes) == 0);
		}
	double mbs[WAYS];
	for (int w = 0; w < WAYS; w++) {
		qsort(us[w], (size_t)turns, sizeof us[w][0], by_value);
		mbs[w] = (double)bytes / (double)us[w][turns / 2];
		printf("RESULT %s_mb_s=%.0f\n", way_name[w], mbs[w]);
	}
	printf("RESULT redis_write_fraction=%.3f\nRESULT redis_read_fraction=%.3f\n",
	       mbs[PUT] / mbs[SOCKET], mbs[GET] / mbs[SOCKET]);
	t->ops->destroy(t);
	queue_destroy(&over);
	redisFree(c);
	free(region);
	free(to);
	return 0;
}
