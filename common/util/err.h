/* err.h - error codes, each with a sentence that explains it.
 *
 * Functions return 0 or a negative ERR_*. Functions that can explain an error take a struct err,
 * which may be NULL. Its text names the operation, the value and the limit; it is one line and safe
 * to show to a user. */
#ifndef UTIL_ERR_H
#define UTIL_ERR_H

enum err_code {
	ERR_OK = 0,
	ERR_NOMEM = -1,   /* out of memory, or over a configured limit on it */
	ERR_INVALID = -2, /* bad input from the caller, a file or a peer */
	ERR_IO = -3,      /* a system call failed; the text contains strerror */
	ERR_NOTFOUND = -4,
	ERR_EXISTS = -5,
	ERR_FULL = -6, /* a bounded queue or table has no room */
	ERR_TIMEOUT = -7,
	ERR_CANCELLED = -8,
	ERR_UNSUPPORTED = -9, /* well formed, but this build does not support it */
	ERR_CLOSED = -10,     /* the other side is gone */
	ERR_STALE = -11,      /* epoch, generation or attempt is not the current one */
	ERR_CORRUPT = -12     /* wrong checksum, magic or format */
};

struct err {
	int code;
	char text[384];
};

/* Stores code and text (truncated to fit, control characters replaced). Returns code, for
 * `return err_set(e, ERR_INVALID, ...)`. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "prefix: " before the current text. Returns e->code (ERR_INVALID if e is NULL). */
int err_prefix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *err_name(int code);

#endif
