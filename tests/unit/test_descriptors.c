/* test_descriptors.c - a process without a file descriptor left closes who connects, at once,
 * and goes on. */
/* run: threads */
#include "tempdir.h"
#include "util/clock.h"
#include "util/descriptors.h"
#include "util/log.h"
#include "util/sock.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#define HELD_MAX 4096

static int held[HELD_MAX];
static unsigned n_held;

/* Leaves no descriptor free. */
static void exhaust(void)
{
	struct rlimit l;
	getrlimit(RLIMIT_NOFILE, &l);
	l.rlim_cur = l.rlim_max = 200;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &l), 0);
	for (int fd; (fd = dup(0)) >= 0; held[n_held++] = fd)
		ck_assert_uint_lt(n_held, HELD_MAX);
	ck_assert_int_eq(errno, EMFILE);
}

static void release(void)
{
	while (n_held)
		close(held[--n_held]);
}

/* A process that connects n times and says by its exit status how many of them were closed on
 * it. */
static pid_t client(const char *path, int n)
{
	pid_t pid = fork();
	if (pid)
		return pid;
	int closed = 0;
	release();
	for (int i = 0; i < n; i++) {
		struct err err;
		char byte;
		int fd = sock_connect(path, &err);
		closed += fd >= 0 && read(fd, &byte, 1) == 0;
	}
	_exit(closed);
}

TEST_CASE("descriptors", .timeout_s = 60);

TEST(who_connects_is_closed)
{
	struct err err = {0};
	char path[TEST_FOLDER_BYTES];
	int status;
	test_file(path, "d.sock");
	ck_assert_int_eq(descriptors_init(10, &err), 0);
	int listener = sock_listen(path, 0600, &err);
	ck_assert_int_ge(listener, 0);
	fcntl(listener, F_SETFL, O_NONBLOCK);
	exhaust();
	/* nobody there: not taken for somebody */
	ck_assert_int_eq(sock_accept(listener), ERR_TIMEOUT);
	pid_t pid = client(path, 3);
	for (struct pollfd p = {.fd = listener, .events = POLLIN}; descriptors_refused() < 3;) {
		poll(&p, 1, 1000);
		ck_assert_int_eq(sock_accept(listener), ERR_TIMEOUT);
	}
	waitpid(pid, &status, 0);
	ck_assert_int_eq(WEXITSTATUS(status), 3);
	close(held[--n_held]);
	pid = client(path, 1);
	struct pollfd p = {.fd = listener, .events = POLLIN};
	poll(&p, 1, -1);
	int fd = sock_accept(listener);
	ck_assert_int_ge(fd, 0);
	close(fd);
	waitpid(pid, &status, 0);
	ck_assert_uint_eq(descriptors_refused(), 3);
}

/* --- two threads --------------------------------------------------------- */

#define REFUSED_ENOUGH 5000u /* connections; the race is met within some hundreds */
#define KEPT_MAX 64

static atomic_bool enough;

struct door {
	int listener, kept[KEPT_MAX];
	atomic_uint n_kept;
	pid_t client;
	pthread_t thread;
};

static void *keep_all(void *arg)
{
	struct door *d = arg;
	while (!enough) {
		int fd = sock_accept(d->listener);
		if (fd >= 0 && d->n_kept < KEPT_MAX)
			d->kept[d->n_kept++] = fd;
	}
	return NULL;
}

/* Connects again and again, until it is killed. */
static pid_t flood(const char *path)
{
	pid_t pid = fork();
	if (pid)
		return pid;
	for (;;) {
		struct err err;
		int fd = sock_connect(path, &err);
		if (fd >= 0)
			close(fd);
		else
			usleep(100); /* the listener's queue is full */
	}
}

static void open_door(struct door *d, const char *name)
{
	struct err err = {0};
	char path[TEST_FOLDER_BYTES];
	test_file(path, name);
	*d = (struct door){.listener = sock_listen(path, 0600, &err)};
	ck_assert_int_ge(d->listener, 0);
	fcntl(d->listener, F_SETFL, O_NONBLOCK);
	d->client = flood(path);
}

/* Both refuse at once: one may take the descriptor that the other has freed. When that is over,
 * and descriptors run out again, connections are refused as before. */
TEST(the_reserve_comes_back)
{
	struct err err = {0};
	struct door doors[2];
	int status;
	ck_assert_int_eq(descriptors_init(10, &err), 0);
	open_door(&doors[0], "1.sock");
	open_door(&doors[1], "2.sock");
	exhaust();
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(pthread_create(&doors[i].thread, NULL, keep_all, &doors[i]), 0);
	while (descriptors_refused() < REFUSED_ENOUGH && !doors[0].n_kept && !doors[1].n_kept)
		usleep(1000);
	enough = 1;
	for (int i = 0; i < 2; i++)
		pthread_join(doors[i].thread, NULL);
	release();
	unsigned kept = doors[0].n_kept + doors[1].n_kept;
	for (int i = 0; i < 2; i++)
		while (doors[i].n_kept)
			close(doors[i].kept[--doors[i].n_kept]);
	for (int fd = -1; fd < 0; fd = sock_accept(doors[0].listener))
		/* one is served: the descriptor stays open */
		ck_assert_int_ne(fd, ERR_IO);
	exhaust();
	uint64_t before = descriptors_refused();
	uint64_t end = clock_us() + 20000000;
	for (; descriptors_refused() < before + 10; sock_accept(doors[0].listener))
		ck_assert_msg(clock_us() < end, "%u refused", (unsigned)(descriptors_refused() - before));
	release();
	for (int i = 0; i < 2; i++) {
		kill(doors[i].client, SIGKILL);
		waitpid(doors[i].client, &status, 0);
	}
	ck_assert_uint_eq(kept, 0);
}

/* libzmq 4.3 asserts that its accept on an ipc socket never fails with EMFILE. */
TEST(libzmq_survives)
{
	struct err err = {0};
	char path[TEST_FOLDER_BYTES], endpoint[TEST_FOLDER_BYTES + 8], text[8];
	int status, ms = 30000, go[2];
	test_file(path, "z.ipc");
	snprintf(endpoint, sizeof endpoint, "ipc://%s", path);
	ck_assert_int_eq(descriptors_init(10, &err), 0);
	ck_assert_int_eq(pipe(go), 0);
	pid_t pid = fork(); /* before libzmq has threads */
	if (pid == 0) {
		void *c = zmq_ctx_new(), *push = zmq_socket(c, ZMQ_PUSH);
		_exit(read(go[0], text, 1) != 1 || zmq_connect(push, endpoint) < 0 ||
		      zmq_send(push, "hello", 5, 0) < 0 || (sleep(60), 1));
	}
	void *ctx = zmq_ctx_new(), *z = zmq_socket(ctx, ZMQ_PULL);
	zmq_setsockopt(z, ZMQ_RCVTIMEO, &ms, sizeof ms);
	ck_assert_int_eq(zmq_bind(z, endpoint), 0);
	exhaust();
	ck_assert_int_eq(write(go[1], "g", 1), 1);
	while (descriptors_refused() == 0)
		usleep(1000);
	release();
	/* libzmq connects again by itself */
	ck_assert_int_eq(zmq_recv(z, text, sizeof text, 0), 5);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	zmq_close(z);
	zmq_ctx_term(ctx);
}

TEST(too_few_are_said)
{
	struct err err = {0};
	struct rlimit l = {300, 300};
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &l), 0);
	ck_assert_int_eq(descriptors_init(301, &err), ERR_FULL);
	ck_assert_ptr_nonnull(strstr(err.text, "needs 301 file descriptors, the system allows 300"));
	ck_assert_int_eq(descriptors_init(300, &err), 0);
}

TEST(the_soft_limit_is_raised)
{
	struct err err = {0};
	struct rlimit l = {100, 300};
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &l), 0);
	ck_assert_int_eq(descriptors_init(200, &err), 0);
	ck_assert_uint_eq(descriptors_limit(), 300);
}

TEST_START(quiet)
{
	log_set_level("error");
}
