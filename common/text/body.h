/* body.h - readers for single members of a request's JSON body, and the error that the client
 * gets. */
#ifndef TEXT_BODY_H
#define TEXT_BODY_H

#include <jansson.h>

struct body_error {
	char param[64]; /* name of the invalid member; "": no particular one */
	char text[512];
};

/* Sets the error. Returns -1, for `return body_bad(...)`. */
int body_bad(struct body_error *e, const char *param, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* The JSON value as short text for an error message. The result lies in a per-thread buffer and is
 * valid until that thread's next call. */
const char *body_show(const json_t *v);
/* Returns NULL if the member is absent or null. */
const json_t *body_member(const json_t *o, const char *name);
/* Reads a boolean; `def` if it is absent or null. Returns 0, or -1 with the error set. */
int body_bool(const json_t *o, const char *name, int def, int *ret, struct body_error *e);

#endif
