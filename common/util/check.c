/* check.c - see check.h. If nobody reads stderr, SIGALRM ends the process after END_S seconds. */
#include "util/check.h"
#include "util/log.h"
#include "util/log_file.h"

#include <execinfo.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define END_S 2
#define LOG_WAIT_MS 500

/* Flushes the log first, so that our line comes after the lines logged before it. A rank's log file
 * may have been renamed by its worker. */
static void begin_end(void)
{
	signal(SIGALRM, SIG_DFL);
	alarm(END_S);
	log_stop(LOG_WAIT_MS);
	log_file_follow();
}

_Noreturn void check_panic(const char *file, int line, const char *fmt, ...)
{
	char msg[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(msg, sizeof msg, fmt, ap);
	va_end(ap);
	begin_end();
	fprintf(stderr, "level=panic event=bug file=%s line=%d text=\"%s\"\n", file, line, msg);
	fflush(stderr);
	void *frames[64];
	backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
	alarm(0); /* writing the core dump may take longer */
	abort();
}

/* Lines that were logged before have a moment to be written: their thread still runs, and no lock
 * may be waited for here. If a second thread crashes in that moment, the process ends without a
 * word. */
static void on_crash(int sig, siginfo_t *info, void *context)
{
	char line[100];
	void *frames[64];
	const struct timespec moment = {.tv_nsec = 20000000};
	(void)context;
	signal(SIGALRM, SIG_DFL);
	alarm(END_S);
	nanosleep(&moment, NULL);
	int n = snprintf(line, sizeof line, "level=panic event=crash signal=%d address=%p\n", sig,
	                 info->si_addr);
	if (write(STDERR_FILENO, line, (size_t)n) == n)
		backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
	alarm(0);
	if (info->si_code <= 0)
		raise(sig); /* a process has sent it; else the instruction is tried again */
}

void check_crashes(void)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	static unsigned char stack[1 << 16]; /* the main thread's own may have overflowed */
	static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
	const struct sigaction act = {.sa_sigaction = on_crash,
	                              .sa_flags = SA_SIGINFO | SA_ONSTACK | (int)SA_RESETHAND};
	const stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
	void *frame[1];
	backtrace(frame, 1); /* the first call allocates */
	sigaltstack(&other, NULL);
	for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
		sigaction(signals[i], &act, NULL);
#endif
}

_Noreturn void check_fatal(const char *fmt, ...)
{
	va_list ap;
	begin_end();
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}
