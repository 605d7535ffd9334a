/* redis.h - the Redis tier: blocks in a Redis or Valkey server that several hosts share.
 *
 * The tier always exists: a server that is down, slow or rejects us is a state of the tier ("away:
 * ..."), not an error of tier_redis_new; the tier reconnects by itself. While the server is away a
 * put ends at once with ERR_CLOSED, a get and a look-up find nothing. Every operation ends within
 * timeout_ms, a look-up within lookup_ms (or by its own `until_us`), a flush when done or after two
 * minutes, whatever the server does.
 *
 * The contract of tier.h for Redis: other clients may remove or replace blocks, so nothing is
 * remembered about keys. The figures `blocks`, `bytes` and `capacity_bytes` are the server's (all
 * keys of the database; capacity 0 without maxmemory), some seconds old. remove starts the removal
 * and never waits for it. `watch` reports only a flush, and when half of the keys have disappeared
 * or a quarter was evicted. While a flush is in progress the tier finds nothing and rejects
 * puts. */
#ifndef STORAGE_REDIS_H
#define STORAGE_REDIS_H

#include "tier.h"

#include "util/err.h"

#include <stdint.h>

/* Text is copied. Numbers out of range are rejected. */
struct tier_redis_opts {
	const char *address;             /* "host:port", "host", "[v6]:port" or "unix:/path" */
	const char *username, *password; /* NULL or "": none; a username needs a password */
	unsigned db;                     /* 0 .. 65535 */
	const char *prefix;              /* of every key; NULL: TIER_REDIS_PREFIX */
	uint32_t ttl_s;                  /* expiry of a block after its last put; 0: never */
	uint32_t timeout_ms;             /* 10 .. 60000; 0: 1000 */
	uint32_t lookup_ms;              /* 1 .. 60000; 0: 10 */
	/* concurrent operations per direction, 1 .. 1024; 0: 16 */
	uint32_t depth;
};

#define TIER_REDIS_PREFIX "pdserve:1:"

/* 0, or ERR_INVALID with a message. */
int tier_redis_new(const struct tier_redis_opts *o, struct tier **ret_t, struct err *err);

#endif
