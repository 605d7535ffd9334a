/* test_exchange.c - exchanges of a group of which one stage is on another host, here a process that
 * shares nothing with rank 0's but a connection: every rank gets each round's data of all, and the
 * descriptors of its own stage. All processes are this program, under the name pdrank. */
/* run: threads waits */
#include "engine/bridge.h"
#include "stage_rig.h"
#include "tempdir.h"
#include "util/child.h"

#include <check.h>
#include <fcntl.h>
#include <libgen.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STAGES = 2, ROUNDS = 150, SHARED = 4096 };

struct said {
	uint32_t rank, round;
};

/* --- a rank -------------------------------------------------------------- */

static int describes(int fd, struct said want)
{
	struct said got = {99, 99};
	return pread(fd, &got, sizeof got, 0) == sizeof got && !memcmp(&got, &want, sizeof got);
}

/* Rounds with and without descriptors take turns, which shows one that is kept for too long. */
static int round_of(struct tp *tp, uint32_t round)
{
	unsigned me = tp_rank(tp), n = tp_ranks(tp), each = n / STAGES, wrong = 0;
	int with = round % 2 == 0, fd = with ? memfd_create("test", MFD_CLOEXEC) : -1;
	int fds[TP_RANKS_MAX];
	struct said mine = {me, round}, all[TP_RANKS_MAX];
	if (with && write(fd, &mine, sizeof mine) != sizeof mine)
		return ERR_IO;
	int rc = tp_exchange(tp, &mine, sizeof mine, fd, all, fds);
	for (uint32_t r = 0; !rc && r < n; r++) {
		struct said want = {r, round};
		int due = with && r != me && r / each == me / each;
		wrong += memcmp(&all[r], &want, sizeof want) != 0;
		wrong += due ? !describes(fds[r], want) : fds[r] >= 0;
		if (fds[r] >= 0)
			close(fds[r]);
	}
	if (fd >= 0)
		close(fd);
	if (wrong) {
		char why[100];
		snprintf(why, sizeof why, "rank %u: %u wrong in round %u", me, wrong, round);
		tp_fail(tp, why);
	}
	return rc;
}

static void run_rank(void)
{
	struct tp *tp;
	struct err err = {0};
	char hello[8];
	if (tp_join(CHILD_FD, hello, sizeof hello, &tp, &err)) {
		fprintf(stderr, "%s\n", err.text);
		exit(1);
	}
	for (uint32_t round = 0; round < ROUNDS && !round_of(tp, round); round++)
		;
	pause(); /* until the group ends */
}

/* --- the stage's host, and rank 0 ---------------------------------------- */

static void no_change(void *arg, unsigned first, unsigned n)
{
	(void)arg, (void)first, (void)n;
}

static void run_stage(void)
{
	struct engine_stage s;
	struct wire *w;
	struct err err = {0};
	char hello[8];
	unsigned n = 0;
	if (sock_recv(CHILD_FD, &s, sizeof s, NULL, 0, &n) == sizeof s &&
	    !wire_connect(s.host, s.port, &s.ticket, &w, &err))
		bridge_run(w, hello, sizeof hello, no_change, NULL, &err);
	/* not exit: LeakSanitizer's tracer and a process whose threads are ending wait for each other,
	 * one time in ten */
	_exit(0);
}

static void run_rank_0(unsigned each, const char *program)
{
	struct stage_process stage = {0};
	struct err err = {0};
	struct tp *tp;
	struct tp_remote remote = {.name = "rank-1"};
	/* another build is installed while the process runs: ranks are started from its own */
	unlink(program);
	spawn_stage(&stage, "/proc/self/exe", "", 0, 1, STAGES);
	remote.wire = stage.wire;
	const struct tp_start o = {.stages = STAGES,
	                           .ranks = STAGES * each,
	                           .bytes = SHARED,
	                           .hello = "hello..",
	                           .hello_bytes = 8,
	                           .remote = &remote,
	                           .n_remote = 1};
	if (tp_start(&o, &tp, &err)) {
		fprintf(stderr, "%s\n", err.text);
		exit(1);
	}
	for (uint32_t round = 0; round < ROUNDS && !round_of(tp, round); round++)
		;
	int failed = tp_why(tp) != NULL;
	if (failed)
		fprintf(stderr, "%s\n", tp_why(tp));
	tp_destroy(&tp);
	stage_process_end(&stage);
	exit(failed);
}

TEST_START(what_this_process_is)
{
	if (strcmp(argv[0], "pdrank") == 0)
		strcmp(argv[1], "stage") == 0 ? run_stage() : run_rank();
	if (strcmp(argv[0], "rank 0") == 0)
		run_rank_0((unsigned)atoi(argv[1]), argv[2]);
}

/* --- exchanges ----------------------------------------------------------- */

TEST_CASE("exchange", .timeout_s = 120);

/* A copy of this program, which takes itself for pdrank. */
static void copy_program(char path[TEST_FOLDER_BYTES])
{
	struct stat st;
	test_file(path, "pdrank");
	int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC),
		to = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0700);
	ck_assert(from >= 0 && to >= 0 && fstat(from, &st) == 0);
	for (off_t at = 0; at < st.st_size;)
		ck_assert_int_gt(sendfile(to, from, &at, (size_t)(st.st_size - at)), 0);
	close(from);
	close(to);
}

TEST_LOOP(every_rank_gets_the_data_and_descriptors_of_each_round, 0, 3)
{
	extern char **environ;
	static const char *const each[] = {"1", "2", "8"};
	char path[TEST_FOLDER_BYTES];
	char *argv[] = {(char *)"rank 0", (char *)(uintptr_t)each[_i], path, NULL};
	int status = -1;
	pid_t pid;
	copy_program(path);
	ck_assert_int_eq(posix_spawn(&pid, path, NULL, NULL, argv, environ), 0);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
}
