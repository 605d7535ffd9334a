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
	char prefix[sizeof e->text], all[2 * sizeof e->text + 2] = "";
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(prefix, sizeof prefix, fmt, ap);
	va_end(ap);
	snprintf(all, sizeof all, "%s: %s", prefix, e->text);
	memcpy(e->text, all, sizeof e->text - 1);
	e->text[sizeof e->text - 1] = 0;
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
