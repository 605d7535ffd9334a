/* check.c - see check.h. If nobody reads stderr, SIGALRM ends the process after END_S seconds. */
#include "util/check.h"
#include "util/log.h"
#include "util/log_file.h"

#include <execinfo.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
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
