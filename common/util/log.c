/* log.c - see log.h. A line that does not fit is cut; a write that fails is dropped: logging never stops a daemon. */
#include "util/log.h"
#include "util/clock.h"
#include "util/err.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const level_names[] = {"debug", "info", "warn", "error"};
static _Atomic int threshold = LOG_INFO;
static char prog_text[96] = "prog=?";

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
	return snprintf(out, size, "ts=%04d-%02d-%02dT%02d:%02d:%02d.%06uZ", tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour,
	                tm.tm_min, tm.tm_sec, (unsigned)(us % 1000000u));
}

void log_write(enum log_level level, const struct reqid *req, const char *event, const char *fmt, ...)
{
	char line[2048];
	int n = stamp(line, sizeof line);
	n += snprintf(line + n, sizeof line - (size_t)n, " level=%s %s", level_names[level], prog_text);
	if (req)
		n += snprintf(line + n, sizeof line - (size_t)n, " req=%016llx%016llx", (unsigned long long)req->hi, (unsigned long long)req->lo);
	n += snprintf(line + n, sizeof line - (size_t)n, " event=%s ", event);
	va_list ap;
	va_start(ap, fmt);
	int more = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
	va_end(ap);
	if (more > 0)
		n = n + more < (int)sizeof line - 2 ? n + more : (int)sizeof line - 2;
	if (line[n - 1] == ' ')
		n--;
	line[n++] = '\n';
	ssize_t done = write(STDERR_FILENO, line, (size_t)n);
	(void)done;
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
		int d = *s >= '0' && *s <= '9' ? *s - '0' : *s >= 'a' && *s <= 'f' ? *s - 'a' + 10 : *s >= 'A' && *s <= 'F' ? *s - 'A' + 10 : -1;
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
