/* log.c - see log.h. A line longer than LINE_BYTES_MAX is truncated.
 *
 * The writer thread copies whole lines, at most PIPE_BUF bytes, out of the ring and writes them
 * without the lock. So a writer that blocks in write(2) holds no lock, and its lines do not mix
 * with those of other daemons on the same pipe. After the first line it waits LINGER_MS for more,
 * so that the lines of one request do not cost a wake-up each; warnings and errors are written at
 * once. If a write fails (the pipe's reader is gone, the disk is full), its lines count as
 * dropped. */
#include "util/log.h"
#include "util/clock.h"
#include "util/err.h"
#include "util/log_file.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES_MAX 2048u /* below PIPE_BUF */
#define LINGER_MS 20
/* of one log_note: so many lines in so much time */
#define NOTE_LINES 20u
#define NOTE_US 1000000u

static const char *const level_names[] = {"debug", "info", "notice", "warn", "error"};

static _Atomic int threshold = LOG_INFO;
static char prog_text[96] = "prog=?";

static struct {
	pthread_mutex_t lock;
	pthread_cond_t filled, hurried, written;
	int running; /* between log_start and log_stop */
	int hurry;   /* write what is in the ring without waiting for more */
	int writing; /* the writer is in write(2) */
	/* the last write failed: dropped lines are reported only after one succeeds */
	int failed;
	char ring[LOG_BUFFER_BYTES];
	size_t begin, len; /* bytes not yet taken by the writer */
	uint64_t dropped;  /* lines in total */
	uint64_t told;     /* how many of them a log line has reported */
} sink = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.filled = PTHREAD_COND_INITIALIZER,
	.hurried = PTHREAD_COND_INITIALIZER,
	.written = PTHREAD_COND_INITIALIZER,
};

void log_init(const char *prog, const char *instance)
{
	if (instance)
		snprintf(prog_text, sizeof prog_text, "prog=%.32s name=%.48s", prog, instance);
	else
		snprintf(prog_text, sizeof prog_text, "prog=%.32s", prog);
}

int log_set_level(const char *name)
{
	for (int i = LOG_DEBUG; i <= LOG_ERROR; i++)
		if (strcmp(name, level_names[i]) == 0) {
			atomic_store(&threshold, i);
			return 0;
		}
	return ERR_INVALID;
}

const char *log_level_name(void)
{
	return level_names[atomic_load(&threshold)];
}

int log_note_due(struct log_note *n, unsigned *ret_more)
{
	uint64_t now = clock_us();
	if (!n->since_us || now - n->since_us > NOTE_US) {
		n->since_us = now;
		n->lines = 0;
	}
	if (n->lines == NOTE_LINES) {
		n->more++;
		return 0;
	}
	n->lines++;
	*ret_more = n->more;
	n->more = 0;
	return 1;
}

enum log_level log_threshold(void)
{
	return (enum log_level)atomic_load_explicit(&threshold, memory_order_relaxed);
}

static int stamp(char *out, size_t size)
{
	uint64_t us = clock_unix_us();
	time_t s = (time_t)(us / 1000000u);
	struct tm tm;
	gmtime_r(&s, &tm);
	return snprintf(out, size, "ts=%04d-%02d-%02dT%02d:%02d:%02d.%06uZ", tm.tm_year + 1900,
	                tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec,
	                (unsigned)(us % 1000000u));
}

/* Formats one line, with its line break, into line[LINE_BYTES_MAX]; returns its length. */
static size_t format_line(char *line, enum log_level level, const struct reqid *req,
                          const char *event, const char *fmt, va_list ap)
{
	int size = LINE_BYTES_MAX, n = stamp(line, LINE_BYTES_MAX);
	n += snprintf(line + n, (size_t)(size - n), " level=%s %s", level_names[level], prog_text);
	if (req)
		n += snprintf(line + n, (size_t)(size - n), " req=%016llx%016llx",
		              (unsigned long long)req->hi, (unsigned long long)req->lo);
	n += snprintf(line + n, (size_t)(size - n), " event=%s ", event);
	int more = vsnprintf(line + n, (size_t)(size - n - 1), fmt, ap);
	if (more > 0)
		n = n + more < size - 2 ? n + more : size - 2;
	if (line[n - 1] == ' ')
		n--;
	line[n++] = '\n';
	return (size_t)n;
}

/* --- the ring; the caller holds the lock --------------------------------- */

static int ring_put(const char *line, size_t n)
{
	size_t at = (sink.begin + sink.len) % sizeof sink.ring, head = sizeof sink.ring - at;
	if (sink.len + n > sizeof sink.ring)
		return ERR_FULL;
	memcpy(sink.ring + at, line, n < head ? n : head);
	if (n > head)
		memcpy(sink.ring, line + head, n - head);
	sink.len += n;
	return 0;
}

/* Moves whole lines, at most PIPE_BUF bytes, into chunk[PIPE_BUF]; the ring must not be empty. */
static size_t ring_take(char *chunk)
{
	size_t n = sink.len < PIPE_BUF ? sink.len : PIPE_BUF, head = sizeof sink.ring - sink.begin;
	memcpy(chunk, sink.ring + sink.begin, n < head ? n : head);
	if (n > head)
		memcpy(chunk + head, sink.ring, n - head);
	while (chunk[n - 1] != '\n')
		n--;
	sink.begin = (sink.begin + n) % sizeof sink.ring;
	sink.len -= n;
	return n;
}

__attribute__((format(printf, 2, 3))) static void put_own_line(const char *event, const char *fmt,
                                                               ...)
{
	char line[LINE_BYTES_MAX];
	va_list ap;
	va_start(ap, fmt);
	size_t n = format_line(line, LOG_WARN, NULL, event, fmt, ap);
	va_end(ap);
	ring_put(line, n);
}

static void report_dropped(void)
{
	if (sink.failed || sink.dropped == sink.told || sink.len > sizeof sink.ring / 2)
		return;
	put_own_line("log_lines_dropped", "lines=%llu total=%llu",
	             (unsigned long long)(sink.dropped - sink.told), (unsigned long long)sink.dropped);
	sink.told = sink.dropped;
}

static void report_file(int why)
{
	if (why)
		put_own_line("log_file_not_replaced", "path=%s why=%s", log_quote(log_file_path()),
		             log_quote(strerror(why)));
}

static uint64_t count_lines(const char *s, size_t n)
{
	uint64_t lines = 0;
	for (size_t i = 0; i < n; i++)
		lines += s[i] == '\n';
	return lines;
}

/* --- the writer ---------------------------------------------------------- */

/* Returns the number of bytes that could not be written. */
static size_t write_whole(const char *s, size_t n)
{
	while (n) {
		ssize_t done = write(STDERR_FILENO, s, n);
		if (done < 0 && errno == EAGAIN) {
			struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
			poll(&room, 1, -1);
		} else if (done < 0 && errno != EINTR) {
			return n;
		} else if (done > 0) {
			s += done;
			n -= (size_t)done;
		}
	}
	return 0;
}

static struct timespec from_now(unsigned ms)
{
	uint64_t us = clock_us() + ms * 1000u;
	return (struct timespec){.tv_sec = (time_t)(us / 1000000u),
	                         .tv_nsec = (long)(us % 1000000u) * 1000};
}

static void wait_for_lines(void)
{
	while (sink.len == 0)
		pthread_cond_wait(&sink.filled, &sink.lock);
	struct timespec until = from_now(LINGER_MS);
	while (!sink.hurry && sink.len < PIPE_BUF &&
	       pthread_cond_clockwait(&sink.hurried, &sink.lock, CLOCK_MONOTONIC, &until) == 0)
		;
}

static void *writer_main(void *arg)
{
	char chunk[PIPE_BUF];
	(void)arg;
	pthread_setname_np(pthread_self(), "log");
	pthread_mutex_lock(&sink.lock);
	for (;;) {
		report_dropped();
		wait_for_lines();
		size_t n = ring_take(chunk);
		sink.writing = 1;
		pthread_mutex_unlock(&sink.lock);
		int why = log_file_make_room(n);
		size_t left = write_whole(chunk, n);
		pthread_mutex_lock(&sink.lock);
		report_file(why);
		sink.writing = 0;
		sink.failed = left > 0;
		sink.dropped += count_lines(chunk + n - left, left);
		if (sink.len == 0) {
			sink.hurry = 0;
			pthread_cond_broadcast(&sink.written);
		}
	}
	return NULL;
}

int log_start(void)
{
	pthread_t thread;
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* the main thread takes all signals */
	int r = pthread_create(&thread, NULL, writer_main, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r)
		return ERR_NOMEM;
	pthread_detach(thread);
	pthread_mutex_lock(&sink.lock);
	sink.running = 1;
	pthread_mutex_unlock(&sink.lock);
	return 0;
}

static void hurry(void)
{
	sink.hurry = 1;
	pthread_cond_signal(&sink.hurried);
}

void log_stop(unsigned wait_ms)
{
	struct timespec until = from_now(wait_ms);
	pthread_mutex_lock(&sink.lock);
	hurry();
	while (sink.running && (sink.len || sink.writing) &&
	       pthread_cond_clockwait(&sink.written, &sink.lock, CLOCK_MONOTONIC, &until) == 0)
		;
	sink.running = 0;
	pthread_mutex_unlock(&sink.lock);
}

uint64_t log_dropped(void)
{
	pthread_mutex_lock(&sink.lock);
	uint64_t n = sink.dropped;
	pthread_mutex_unlock(&sink.lock);
	return n;
}

void log_write(enum log_level level, const struct reqid *req, const char *event, const char *fmt,
               ...)
{
	char line[LINE_BYTES_MAX];
	va_list ap;
	va_start(ap, fmt);
	size_t n = format_line(line, level, req, event, fmt, ap);
	va_end(ap);
	pthread_mutex_lock(&sink.lock);
	int running = sink.running;
	if (running) {
		int was_empty = sink.len == 0;
		if (ring_put(line, n) < 0)
			sink.dropped++;
		else if (was_empty)
			pthread_cond_signal(&sink.filled);
		if (level >= LOG_WARN || sink.len >= PIPE_BUF)
			hurry();
	}
	pthread_mutex_unlock(&sink.lock);
	if (!running)
		write_whole(line, n);
}

static char *scratch(void)
{
	static _Thread_local char bufs[8][272];
	static _Thread_local unsigned at;
	return bufs[at++ & 7];
}

const char *log_quote(const char *s)
{
	char *out = scratch();
	size_t n = 0;
	out[n++] = '"';
	for (; s && *s && n < 256; s++) {
		if (*s == '"' || *s == '\\')
			out[n++] = '\\';
		out[n++] = (unsigned char)*s < 0x20 || *s == 0x7F ? ' ' : *s;
	}
	out[n++] = '"';
	out[n] = 0;
	return out;
}

const char *log_reqid(const struct reqid *id)
{
	char *out = scratch();
	snprintf(out, 40, "%016llx%016llx", (unsigned long long)id->hi, (unsigned long long)id->lo);
	return out;
}

int reqid_parse(const char *s, struct reqid *ret_id)
{
	uint64_t v[2] = {0, 0};
	int digits = 0;
	for (; *s; s++) {
		if (*s == '-')
			continue;
		int d = *s >= '0' && *s <= '9'   ? *s - '0'
		        : *s >= 'a' && *s <= 'f' ? *s - 'a' + 10
		        : *s >= 'A' && *s <= 'F' ? *s - 'A' + 10
		                                 : -1;
		if (d < 0 || digits == 32)
			return ERR_INVALID;
		v[digits / 16] = v[digits / 16] << 4 | (unsigned)d;
		digits++;
	}
	if (digits != 32)
		return ERR_INVALID;
	ret_id->hi = v[0];
	ret_id->lo = v[1];
	return 0;
}
