/* json_load.h - loads JSON that a client sent, and charges it to the quota of its request.
 *
 * jansson 2.14 does not check every allocation while it parses: when one fails, it reads and writes
 * out of bounds. So the most memory a text can need is taken from the quota and from the system
 * before it is parsed, and the unused part is given back after it. That bound may be about 80 times
 * the text's size ("[{},{},..."); JSON_LOAD_TIMES bounds it. All other allocations by jansson fail
 * when the quota is exhausted. */
#ifndef UTIL_JSON_LOAD_H
#define UTIL_JSON_LOAD_H

#include "util/quota.h"

#include <jansson.h>
#include <stddef.h>

/* JSON values made on this thread between begin and end are counted in `used` and charged to the
 * quota (NULL: only counted). Values that still exist at the end stay charged. A thread has one
 * current account: begin returns the one that was current before; to nest, make it current again by
 * another begin. */
struct json_account {
	struct quota *quota;
	size_t used;
};

/* Call once at start, before any JSON is made; without it json_load does not count. */
void json_account_setup(void);
struct json_account *json_account_begin(struct json_account *a);
/* Charges what the account has counted to q, and all that follows; does nothing if the account has
 * a quota already. 0, or ERR_NOMEM with nothing changed. */
int json_account_charge(struct json_account *a, struct quota *q);
int json_account_end(void); /* 0, or ERR_NOMEM: malloc failed at least once */

/* json_loadb, charged to the current account if there is one. NULL: bad says why. If the code is
 * json_error_out_of_memory, the quota's `over` tells which limit was hit; 0: the system's. */
json_t *json_load(const char *text, size_t len, size_t flags, json_error_t *bad);

/* No text of n bytes needs more than JSON_LOAD_TIMES * n, ... */
#define JSON_LOAD_TIMES 96u
#define JSON_LOAD_NESTED 524288u /* ... or this, the need of 2048 nested arrays */

/* An upper bound of the bytes that jansson holds at any time while it loads the text, whether that
 * is valid JSON or not. Reads each byte once. */
size_t json_load_bytes(const char *text, size_t len);

#endif
