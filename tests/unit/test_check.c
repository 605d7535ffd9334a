/* test_check.c - a process that crashes writes the signal and a backtrace, and ends by that
 * signal. */
#include "skip.h"
#include "util/check.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

static volatile int zero;

static void at_null(void)
{
	*(volatile int *)(uintptr_t)zero = 1;
}

static void is_sent(void)
{
	raise(SIGBUS);
}

__attribute__((noinline)) static int deeper(volatile char *before)
{
	volatile char here[4096];
	here[0] = before ? before[0] : 1;
	return zero ? 0 : deeper(here) + here[0];
}

static void without_stack(void)
{
	exit(deeper(NULL));
}

static const struct {
	void (*crash)(void);
	int signal;
	const char *says;
} cases[] = {
	{at_null, SIGSEGV, "level=panic event=crash signal=11 address=(nil)\n"},
	{is_sent, SIGBUS, "level=panic event=crash signal=7 "},
	{without_stack, SIGSEGV, "level=panic event=crash signal=11 address=0x"},
};

TEST_LOOP(test_crash, 0, sizeof cases / sizeof cases[0])
{
	char said[8192];
	int out[2], status;
	size_t at = 0;
	ssize_t n;
	if (SANITIZED)
		SKIP("crashes are the sanitizer's in this build");
	ck_assert_int_eq(pipe(out), 0);
	pid_t pid = fork();
	if (pid == 0) {
		const struct rlimit none = {0, 0};
		setrlimit(RLIMIT_CORE, &none);
		dup2(out[1], STDERR_FILENO);
		check_crashes();
		cases[_i].crash();
		_exit(0);
	}
	close(out[1]);
	while (at < sizeof said - 1 && (n = read(out[0], said + at, sizeof said - 1 - at)) > 0)
		at += (size_t)n;
	said[at] = 0;
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == cases[_i].signal, "status %x: %s",
	              (unsigned)status, said);
	ck_assert_msg(!strncmp(said, cases[_i].says, strlen(cases[_i].says)), "%s", said);
	ck_assert_msg(strstr(said, "test_check(") || strstr(said, "test_check["), "%s", said);
	close(out[0]);
}
