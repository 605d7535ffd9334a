/* err.c - see err.h. Nothing here allocates or fails. */
#include "util/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Text quoted from a file or a peer must not break the line or send control codes to a terminal. */
static void make_one_line(char *s)
{
	for (; *s; s++)
		if ((unsigned char)*s < ' ' || *s == 0x7f)
			*s = *s == '\n' || *s == '\t' || *s == '\r' ? ' ' : '?';
}

int err_set(struct err *e, int code, const char *fmt, ...)
{
	if (!e)
		return code;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(e->text, sizeof e->text, fmt, ap);
	va_end(ap);
	make_one_line(e->text);
	e->code = code;
	return code;
}

int err_prefix(struct err *e, const char *fmt, ...)
{
	if (!e)
		return ERR_INVALID;
	char old[sizeof e->text];
	memcpy(old, e->text, sizeof old);
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
	va_end(ap);
	if (n >= 0 && (size_t)n < sizeof e->text)
		snprintf(e->text + n, sizeof e->text - (size_t)n, ": %s", old);
	make_one_line(e->text);
	return e->code;
}

const char *err_name(int code)
{
	static const char *const names[] = {"ok",        "no_memory",   "invalid", "io",
	                                    "not_found", "exists",      "full",    "timeout",
	                                    "cancelled", "unsupported", "closed",  "stale",
	                                    "corrupt"};
	int i = -code;
	return i >= 0 && i < (int)(sizeof names / sizeof *names) ? names[i] : "unknown";
}
