/* check.h - assertions for our own bugs: report the place, print a backtrace, abort. Active in
 * every build; never used for the contents of a peer's message or a file. */
#ifndef UTIL_CHECK_H
#define UTIL_CHECK_H

_Noreturn void check_panic(const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* From now on a crash (SIGSEGV, SIGBUS, SIGFPE, SIGILL) also writes a line and a backtrace to
 * stderr before it ends the process. Not in builds with a sanitizer, which does so itself. */
void check_crashes(void);
/* Start-up and environment errors: prints one line with the remedy on stderr, exits with status 1.
 * Only programs call it; of the libraries only the allocators that treat out of memory as fatal. */
_Noreturn void check_fatal(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#define CHECK(cond) ((cond) ? (void)0 : check_panic(__FILE__, __LINE__, "check failed: %s", #cond))
#define PANIC(...) check_panic(__FILE__, __LINE__, __VA_ARGS__)

#endif
