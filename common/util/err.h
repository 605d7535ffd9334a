/* err.h - error codes and the sentence that goes with one.
 *
 * Functions return 0 or a negative ERR_*. Those that can say more take a `struct err *`, which may
 * be NULL. The text says what was being done and names the value and the limit; it has no line
 * break and is safe to show to a user. */
#ifndef UTIL_ERR_H
#define UTIL_ERR_H

enum err_code {
	ERR_OK = 0,
	ERR_NOMEM = -1,   /* memory, or a configured bound on it */
	ERR_INVALID = -2, /* bad input: the caller's, a file's, a peer's */
	ERR_IO = -3,      /* the operating system refused; text has strerror */
	ERR_NOTFOUND = -4,
	ERR_EXISTS = -5,
	ERR_FULL = -6, /* a bounded queue or table has no room */
	ERR_TIMEOUT = -7,
	ERR_CANCELLED = -8,
	ERR_UNSUPPORTED = -9, /* well formed, but not something this build does */
	ERR_CLOSED = -10,     /* the other side is gone */
	ERR_STALE = -11,      /* epoch, generation or attempt is not the present one */
	ERR_CORRUPT = -12     /* checksum, magic or format does not hold */
};

struct err {
	int code;
	char text[384];
};

/* Stores code and text (truncated to fit, control characters replaced); returns code, so that
 * `return err_set(e, ERR_INVALID, ...)` reads well. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "prefix: " before the present text. Returns e->code (ERR_INVALID if e is NULL). */
int err_prefix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *err_name(int code);

#endif
