/* log.h - one logfmt line per event on stderr: ts=... level=... prog=... [req=...] event=...
 * key=value ...
 *
 * Lines of several threads, or of daemons that share a pipe or a file, never mix. Pass values
 * through log_quote if they may contain spaces or come from outside. Debug lines cost nothing while
 * the level is off.
 *
 * After log_start a log call never waits: it puts the line into a buffer of LOG_BUFFER_BYTES, which
 * a thread writes to stderr. When the buffer is full (nobody reads the pipe, the disk is full or
 * hangs) lines are dropped and counted; event=log_lines_dropped reports how many once there is room
 * again. If stderr is a log file of our own, that thread keeps it below its limit (log_file.h).
 * Before log_start and after log_stop a log call writes to stderr itself and may wait, which suits
 * a tool or a test. */
#ifndef UTIL_LOG_H
#define UTIL_LOG_H

#include <stdint.h>

/* info: each step of each request; notice: what happens to the daemon, and how each request
 * ended */
enum log_level { LOG_DEBUG, LOG_INFO, LOG_NOTICE, LOG_WARN, LOG_ERROR };

/* 128-bit request id; printed as 32 hex digits. */
struct reqid {
	uint64_t hi, lo;
};

#define LOG_BUFFER_BYTES (256u << 10)

void log_init(const char *prog, const char *instance); /* both copied; instance may be NULL */
/* 0, or ERR_NOMEM: the thread could not be started */
int log_start(void);
/* Waits until the buffer is written, at most wait_ms; from then on log calls write directly. Does
 * nothing without log_start. */
void log_stop(unsigned wait_ms);
uint64_t log_dropped(void); /* lines lost so far */
#define LOG_LEVELS "debug, info, notice, warn, error"
/* one of these; ERR_INVALID otherwise */
int log_set_level(const char *name);
const char *log_level_name(void);
enum log_level log_threshold(void);

void log_write(enum log_level level, const struct reqid *req, const char *event, const char *fmt,
               ...) __attribute__((format(printf, 4, 5)));

#define log_at(level, req, event, ...) \
	((level) >= log_threshold() ? log_write(level, req, event, __VA_ARGS__) : (void)0)
#define log_debug(event, ...) log_at(LOG_DEBUG, 0, event, __VA_ARGS__)
#define log_notice(event, ...) log_at(LOG_NOTICE, 0, event, __VA_ARGS__)
#define log_warn(event, ...) log_at(LOG_WARN, 0, event, __VA_ARGS__)
#define log_error(event, ...) log_at(LOG_ERROR, 0, event, __VA_ARGS__)
#define log_req(level, id, event, ...) log_at(level, id, event, __VA_ARGS__)

/* Lines that strangers cause: some in each second, then none. 1: this one may be written, and
 * *ret_more were left out before it. One thread. */
struct log_note {
	uint64_t since_us;
	unsigned lines, more;
};
int log_note_due(struct log_note *n, unsigned *ret_more);

/* s as a quoted, escaped value, cut at about 256 bytes; NULL gives "". The result lies in one of 8
 * buffers that the thread reuses in turn. */
const char *log_quote(const char *s);
/* 32 hex digits, in one of the same buffers. */
const char *log_reqid(const struct reqid *id);
/* Parses 32 hex digits (dashes ignored). 0 or ERR_INVALID. */
int reqid_parse(const char *s, struct reqid *ret_id);

#endif
