/* methods.h - inside common/jinja: tables of methods by name. */
#ifndef JINJA_METHODS_H
#define JINJA_METHODS_H

#include "jinja/value.h"

enum { METHOD_ANY = 255 };

struct method_def {
	const char *name; /* NULL: the end of a table */
	/* NULL: refused, since it would modify its object */
	struct jv (*call)(struct jin *r, struct jv self, const struct jargs *a);
	uint8_t least, most; /* arguments, including keywords; METHOD_ANY: no limit */
};

#define METHOD(name) static struct jv name(struct jin *r, struct jv self, const struct jargs *a)

extern const struct method_def methods_of_str[];

#endif
