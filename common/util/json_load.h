/* json_load.h - JSON that a client sent, read and kept within the quota of its request.
 *
 * jansson 2.14 cannot be refused memory while it reads: where it ignores that, it reads and writes
 * past what it has. So what a text takes at most, which may be about 80 times its size
 * (JSON_LOAD_TIMES bounds it) ("[{},{},..."), is taken from the quota and from the system before it
 * is read, and what it did not take goes back. All else that jansson makes is refused when the
 * quota has no more. */
#ifndef UTIL_JSON_LOAD_H
#define UTIL_JSON_LOAD_H

#include "util/quota.h"

#include <jansson.h>
#include <stddef.h>

/* JSON values made on this thread between begin and end are counted in `used`, and taken from the
 * quota. What is left of them at the end stays taken. One at a time on a thread. quota NULL: they
 * are only counted. Begun within another one's time: returns that one, which begin puts back. */
struct json_account {
	struct quota *quota;
	size_t used;
};

/* once, at start, before there is any JSON; without it json_load is json_loadb */
void json_account_setup(void);
struct json_account *json_account_begin(struct json_account *a);
/* From now on what it has counted is taken from this quota, unless it has one. 0, or ERR_NOMEM:
 * nothing has changed. */
int json_account_charge(struct json_account *a, struct quota *q);
int json_account_end(void); /* 0, or ERR_NOMEM: malloc failed for a value at least */

/* json_loadb within the present account, or without one. NULL: bad says why. If that is
 * json_error_out_of_memory, the quota's `over` says whose memory it was; 0: the system's. */
json_t *json_load(const char *text, size_t len, size_t flags, json_error_t *bad);

#define JSON_LOAD_TIMES 96u      /* no text takes more than so many times its size, */
#define JSON_LOAD_NESTED 524288u /* and this: 2048 arrays within each other */

/* An upper bound of the bytes that jansson has allocated at once while it loads the text, whether
 * that is JSON or not. Reads each byte once. */
size_t json_load_bytes(const char *text, size_t len);

#endif
