/* check.h - what is done about a bug: say where, print a backtrace, abort. In every build; never
 * for what a peer or a file said. */
#ifndef UTIL_CHECK_H
#define UTIL_CHECK_H

_Noreturn void check_panic(const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Start-up and environment: one line with the remedy on stderr, exit status 1. Only programs
 * call it, never a library. */
_Noreturn void check_fatal(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#define CHECK(cond) ((cond) ? (void)0 : check_panic(__FILE__, __LINE__, "check failed: %s", #cond))
#define PANIC(...) check_panic(__FILE__, __LINE__, __VA_ARGS__)

#endif
