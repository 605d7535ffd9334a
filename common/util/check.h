/* check.h - assertions for our own bugs: report the place, print a backtrace, abort. Active in
 * every build; never used for the contents of a peer's message or a file. */
#ifndef UTIL_CHECK_H
#define UTIL_CHECK_H

_Noreturn void check_panic(const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Start-up and environment errors: prints one line with the remedy on stderr, exits with status 1.
 * Only programs call it; of the libraries only the allocators that treat out of memory as fatal. */
_Noreturn void check_fatal(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#define CHECK(cond) ((cond) ? (void)0 : check_panic(__FILE__, __LINE__, "check failed: %s", #cond))
#define PANIC(...) check_panic(__FILE__, __LINE__, __VA_ARGS__)

#endif
