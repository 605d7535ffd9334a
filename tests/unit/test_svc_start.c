/* test_svc_start.c - a daemon that ends before it has started: told to, or because it cannot. Each
 * test starts one without work of its own in a child. */
/* run: threads waits */
#include "svc/svc.h"
#include "util/clock.h"
#include "tempdir.h"

#include <check.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[TEST_FOLDER_BYTES], said[4096];
static int tell_fd; /* the child writes a byte when it is within `start` */

static void nothing(struct svc *s, void *arg)
{
	(void)s;
	(void)arg;
}

/* As a device does that has something to say. */
static void *post_for_ever(void *arg)
{
	for (;; usleep(50))
		svc_post(arg, nothing, NULL);
	return NULL;
}

static int start_that_fails(struct svc *s, struct err *err)
{
	pthread_t t;
	pthread_create(&t, NULL, post_for_ever, s);
	usleep(20000);
	return err_set(err, ERR_INVALID, "this daemon never starts");
}

static int start_that_takes_minutes(struct svc *s, struct err *err)
{
	char path[200];
	svc_sock_path(s, svc_name(s), path, sizeof path);
	close(open(path, O_CREAT | O_WRONLY, 0600));
	ssize_t n = write(tell_fd, "s", 1);
	for (;;)
		usleep((useconds_t)(n > 0 ? 1000 : 1));
	return err_set(err, ERR_IO, "not reached");
}

static const struct conf_key no_keys[] = {CONF_END};
static const struct svc_msg no_messages[] = {{0}};
static const struct svc_ctl no_ctl[] = {{0}};

static void make_dir(void)
{
	test_folder(dir, "s");
}

static pid_t launch(int (*start)(struct svc *s, struct err *err), int *ret_said, int *ret_started)
{
	int out[2], started[2];
	char rundir[96];
	snprintf(rundir, sizeof rundir, "rundir=%s", dir);
	ck_assert(pipe(out) == 0 && pipe(started) == 0);
	pid_t pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		char *argv[] = {(char *)"pdtestd", (char *)"-o", rundir, NULL};
		const struct svc_hooks hooks = {.program = "pdtestd",
		                                .default_name = "test",
		                                .keys = no_keys,
		                                .messages = no_messages,
		                                .ctl = no_ctl,
		                                .start = start};
		mallopt(M_PERTURB, 0xaa); /* what is used after it is freed is not what it was */
		tell_fd = started[1];
		dup2(out[1], STDERR_FILENO);
		int status = svc_main(3, argv, &hooks);
		usleep(50000); /* a thread that runs yet meets what was freed */
		exit(status);
	}
	close(out[1]);
	close(started[1]);
	*ret_said = out[0];
	*ret_started = started[0];
	return pid;
}

static int status_of(pid_t pid, int fd)
{
	size_t n = 0;
	int status;
	for (ssize_t more; n + 1 < sizeof said && (more = read(fd, said + n, sizeof said - 1 - n)) > 0;)
		n += (size_t)more;
	said[n] = 0;
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	return status;
}

static void expect_no_sockets(void)
{
	static const char *const sockets[] = {"test.ipc", "test.sock"};
	char path[200];
	struct stat st;
	for (size_t i = 0; i < 2; i++) {
		snprintf(path, sizeof path, "%s/%s", dir, sockets[i]);
		ck_assert_msg(lstat(path, &st) < 0, "%s was left", path);
	}
}

TEST_CASE("start", .timeout_s = 60, .setup = make_dir);

/* A device's thread runs already: it meets no memory that was given back. */
TEST(a_start_that_fails_beside_threads)
{
	for (int i = 0; i < 5; i++) {
		int out, started;
		pid_t pid = launch(start_that_fails, &out, &started);
		int status = status_of(pid, out);
		ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "status %x: %s", status, said);
		ck_assert_msg(strstr(said, "pdtestd: cannot start: this daemon never starts"), "%s", said);
		expect_no_sockets();
	}
}

/* It ends in order, and at once, however long its start would take. */
TEST_LOOP(told_to_end_while_it_starts, 0, 2)
{
	int out, started;
	char byte;
	pid_t pid = launch(start_that_takes_minutes, &out, &started);
	ck_assert_int_eq(read(started, &byte, 1), 1);
	uint64_t from = clock_us();
	kill(pid, _i ? SIGINT : SIGTERM);
	int status = status_of(pid, out);
	ck_assert_uint_lt(clock_us() - from, 10000000);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x: %s", status, said);
	ck_assert_msg(strstr(said, "event=stopped"), "%s", said);
	expect_no_sockets();
}

/* The name is another's, and so is its socket. */
TEST(a_name_that_is_taken_keeps_its_socket)
{
	int out[2], started[2];
	char byte, path[200];
	struct stat st;
	pid_t first = launch(start_that_takes_minutes, &out[0], &started[0]);
	ck_assert_int_eq(read(started[0], &byte, 1), 1);
	pid_t second = launch(start_that_fails, &out[1], &started[1]);
	int status = status_of(second, out[1]);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "status %x: %s", status, said);
	ck_assert_msg(strstr(said, "is taken by process"), "%s", said);
	snprintf(path, sizeof path, "%s/test.ipc", dir);
	ck_assert_int_eq(lstat(path, &st), 0);
	kill(first, SIGTERM);
	status_of(first, out[0]);
	expect_no_sockets();
}
