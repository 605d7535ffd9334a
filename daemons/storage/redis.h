/* redis.h - the Redis tier: blocks in a Redis or Valkey that several hosts share.
 *
 * It is always there: a server that is away, slow or refuses us is a state of the tier ("away:
 * ..."), not an error of tier_redis_new; the connections are tried again by themselves. While it is
 * away a put ends at once with ERR_CLOSED, a get and a look-up with nothing. Every operation ends
 * within timeout_ms, a look-up within lookup_ms (or by its own `until_us`), a flush when it is done
 * or within two minutes, whatever the server does.
 *
 * What the contract of tier.h means here: other clients may remove or replace what was stored, so
 * nothing is remembered about keys; `blocks`, `bytes` and `capacity_bytes` of the figures are those
 * of the server (all keys of the database; capacity 0 without maxmemory), some seconds old; remove
 * only begins the work and never waits for it. `watch` is told only of a flush, and when half of
 * the keys have gone or a quarter was evicted. From flush until it is done the tier has nothing
 * and takes nothing. */
#ifndef STORAGE_REDIS_H
#define STORAGE_REDIS_H

#include "tier.h"

#include "util/err.h"

#include <stdint.h>

/* Text is copied. Numbers outside their range are refused. */
struct tier_redis_opts {
	const char *address;             /* "host:port", "host", "[v6]:port" or "unix:/path" */
	const char *username, *password; /* NULL or "": none; a username needs a password */
	unsigned db;                     /* 0 .. 65535 */
	const char *prefix;              /* of every key; NULL: TIER_REDIS_PREFIX */
	uint32_t ttl_s;                  /* a block is gone this long after its last put; 0: never */
	uint32_t timeout_ms;             /* 10 .. 60000; 0: 1000 */
	uint32_t lookup_ms;              /* 1 .. 60000; 0: 10 */
	/* operations under way at a time in each direction, 1 .. 1024; 0: 16 */
	uint32_t depth;
};

#define TIER_REDIS_PREFIX "pdserve:1:"

/* 0, or ERR_INVALID with a sentence. */
int tier_redis_new(const struct tier_redis_opts *o, struct tier **ret_t, struct err *err);

#endif
