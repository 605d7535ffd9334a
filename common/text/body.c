/* body.c - see body.h. */
#include "text/body.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int body_bad(struct body_error *e, const char *param, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(e->text, sizeof e->text, fmt, ap);
	va_end(ap);
	snprintf(e->param, sizeof e->param, "%s", param ? param : "");
	return -1;
}

#define SHOWN 40

struct shown {
	char text[SHOWN + 4];
	size_t n;
};

/* Returns -1 to stop the dump once the buffer is full. */
static int show(const char *s, size_t len, void *arg)
{
	struct shown *out = arg;
	size_t take = len < SHOWN - out->n ? len : SHOWN - out->n;
	memcpy(out->text + out->n, s, take);
	out->n += take;
	memcpy(out->text + out->n, take < len ? "..." : "", take < len ? 4 : 1);
	return take < len ? -1 : 0;
}

/* The value may have megabytes: the dump stops at SHOWN bytes. */
const char *body_show(const json_t *v)
{
	static __thread struct shown out;
	out.n = 0;
	memcpy(out.text, "", 1);
	if (v)
		json_dump_callback(v, show, &out,
		                   JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII |
		                       JSON_REAL_PRECISION(15));
	return out.n ? out.text : "nothing";
}

const json_t *body_member(const json_t *o, const char *name)
{
	const json_t *v = json_object_get(o, name);
	return v && !json_is_null(v) ? v : NULL;
}

int body_bool(const json_t *o, const char *name, int def, int *ret, struct body_error *e)
{
	const json_t *v = body_member(o, name);
	if (v && !json_is_boolean(v))
		return body_bad(e, name, "%s must be true or false, got %s", name, body_show(v));
	*ret = v ? json_is_true(v) : def;
	return 0;
}
