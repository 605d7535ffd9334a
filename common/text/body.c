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

const char *body_show(const json_t *v)
{
	static __thread char text[48];
	char *s = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15)) : NULL;
	size_t n = s ? strlen(s) : 0;
	snprintf(text, sizeof text, "%.40s%s", s ? s : "nothing", n > 40 ? "..." : "");
	free(s);
	return text;
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
