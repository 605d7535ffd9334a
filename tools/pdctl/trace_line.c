/* trace_line.c - one logfmt line: ts=... level=... prog=... [name=...] req=... event=... KEY=VALUE
 * ...
 *
 * Lines are untrusted: a value in quotes may contain what looks like other fields, so a line is
 * split from its start, and the order of the first fields is fixed. */
#include "trace.h"

#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *const trace_program_names[PROGRAMS] = {"pdrouterd", "pdprefilld", "pdmessagerd",
                                                   "pddecoded", "pdstoraged"};

static uint64_t stamp_us(const char *text)
{
	struct tm tm = {0};
	unsigned us = 0;
	if (sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d.%6uZ", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
	           &tm.tm_hour, &tm.tm_min, &tm.tm_sec, &us) != 7)
		return 0;
	tm.tm_year -= 1900;
	tm.tm_mon -= 1;
	time_t s = timegm(&tm);
	return s < 0 ? 0 : (uint64_t)s * 1000000 + us;
}

/* If the text at *at is KEY=VALUE, ends the value with 0, moves *at behind it and returns it. */
static char *take(char **at, const char *key)
{
	size_t n = strlen(key);
	char *value = *at + n + 1;
	if (strncmp(*at, key, n) != 0 || (*at)[n] != '=')
		return NULL;
	*at = value + strcspn(value, " ");
	if (**at)
		*(*at)++ = 0;
	return value;
}

static int program_of(const char *name)
{
	int i = 0;
	while (i < PROGRAMS && strcmp(name, trace_program_names[i]) != 0)
		i++;
	return i;
}

/* Makes it valid UTF-8 without control characters: for a terminal, JSON and XML. */
static void clean(char *s)
{
	size_t n = strlen(s);
	for (uint32_t cp; n;) {
		int step = utf8_step(s, n, &cp), len = step > 0 ? step : step < 0 ? -step : (int)n;
		if (step <= 0 || cp < ' ' || (cp >= 127 && cp < 160) || cp == 0xFFFE || cp == 0xFFFF)
			memset(s, step > 0 && cp == '\t' ? ' ' : '?', (size_t)len);
		s += len;
		n -= (size_t)len;
	}
}

/* As our daemons name themselves and their events. */
static int is_name(const char *s)
{
	size_t n = strlen(s);
	for (size_t i = 0; i < n; i++)
		if (s[i] <= ' ' || s[i] >= 127)
			return 0;
	return n > 0 && n < TRACE_NAME_BYTES;
}

int trace_line_split(char *line, struct line_head *ret)
{
	/* journalctl and kubectl may write something before it */
	char *at = strncmp(line, "ts=", 3) == 0 ? line : strstr(line, "ts=");
	if (!at || (at > line && at[-1] != ' ' && at[-1] != '='))
		return -1;
	const char *ts = take(&at, "ts"), *level = take(&at, "level"), *program = take(&at, "prog"),
			   *name = take(&at, "name"), *req = take(&at, "req"), *event = take(&at, "event");
	int which = program ? program_of(program) : PROGRAMS;
	uint64_t us = ts ? stamp_us(ts) : 0;
	name = name ? name : program;
	if (!us || !level || which == PROGRAMS || !is_name(name) || !req || strlen(req) != 32 ||
	    strspn(req, "0123456789abcdef") != 32 || !event || !is_name(event))
		return -1;
	clean(at);
	*ret = (struct line_head){us, (enum trace_program)which, name, req, event, at};
	return 0;
}

/* Copies the value at p into out (size 0: skips it); returns its end. */
static const char *copy_value(const char *p, char *out, size_t size)
{
	size_t len = 0;
	char end = *p == '"' ? '"' : ' ';
	for (p += end == '"'; *p && *p != end; p++) {
		p += end == '"' && *p == '\\' && p[1];
		if (len + 1 < size)
			out[len++] = *p;
	}
	if (size)
		out[len] = 0;
	return p + (end == '"' && *p);
}

int trace_field(const char *p, const char *key, char *out, size_t size)
{
	size_t n = strlen(key);
	for (; *p; p += strspn(p, " ")) {
		int found = strncmp(p, key, n) == 0 && p[n] == '=';
		p += strcspn(p, "= ");
		if (*p == '=')
			p = copy_value(p + 1, out, found ? size : 0);
		if (found)
			return 1;
	}
	return 0;
}

double trace_number(const char *fields, const char *key)
{
	char text[64];
	double v = trace_field(fields, key, text, sizeof text) ? strtod(text, NULL) : 0;
	return v > 0 && v < 1e15 ? v : 0; /* no NaN, and nothing that a time axis cannot show */
}
