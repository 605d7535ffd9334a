/* body.h - reading the JSON body of a request: the error that a client gets, and readers of
 * single members. */
#ifndef TEXT_BODY_H
#define TEXT_BODY_H

#include <jansson.h>

struct body_error {
	char param[64]; /* the member that is wrong; "": none */
	char text[512];
};

/* Returns -1, so that `return body_bad(...)` reads well. */
int body_bad(struct body_error *e, const char *param, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* A JSON value as short text for a message; from a per-thread buffer. */
const char *body_show(const json_t *v);
/* The member; NULL when it is absent or null. */
const json_t *body_member(const json_t *o, const char *name);
/* Absent or null gives the default. 0 or -1 with the error set. */
int body_bool(const json_t *o, const char *name, int def, int *ret, struct body_error *e);

#endif
