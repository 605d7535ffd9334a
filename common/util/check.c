/* check.c - see check.h. A stderr that nobody reads delays the end by END_S at most: SIGALRM
 * then ends the process. */
#include "util/check.h"
#include "util/log.h"

#include <execinfo.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define END_S 2
#define LOG_WAIT_MS 500

/* Lines that were logged before stand before ours. */
static void begin_end(void)
{
	signal(SIGALRM, SIG_DFL);
	alarm(END_S);
	log_stop(LOG_WAIT_MS);
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
	alarm(0); /* a core dump may take its time */
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
