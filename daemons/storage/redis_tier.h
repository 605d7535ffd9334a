/* redis_tier.h - what the parts of the Redis tier share.
 *
 *   tier_redis.c    options, the tier's calls, figures
 *   redis_block.c   puts and gets: works of the lanes "put" and "get"
 *   redis_keys.c    look-ups, removal, flush, and what the server says about itself: works of the lane "ask"
 *   redis_lane.c    a connection with its thread, queue and time limits
 *   redis_conn.c    bytes and replies;  redis_value.c  what a stored block looks like */
#ifndef STORAGE_REDIS_TIER_H
#define STORAGE_REDIS_TIER_H

#include "redis_lane.h"
#include "redis_value.h"
#include "tier.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum redis_lane_id { LANE_ASK, LANE_GET, LANE_PUT, REDIS_LANES };

#define REDIS_PREFIX_MAX 64u

struct redis_tier {
	struct tier tier;
	struct redis_lane *lane[REDIS_LANES];
	char *username, *password;           /* NULL: none */
	char prefix[REDIS_PREFIX_MAX + 1];
	size_t prefix_bytes;
	uint64_t timeout_us, lookup_us, ttl_ms;
	_Atomic uint64_t flushing_until_us;  /* 0: no */

	pthread_mutex_t lock;                /* of what follows */
	struct tier_stat stat;
	uint64_t read_mark_us, write_mark_us;   /* end of the last block that went through */
	uint64_t puts_pause_until_us;           /* the server refuses writes: until then none is tried */
	int puts_pause_code;
	const char *puts_pause_text;            /* NULL: the last put was taken */
	uint64_t refused_logged_us, evictions_seen;
	uint64_t keys_most, evictions_told;     /* since somebody was last told that blocks have gone */
	void (*changed)(void *arg, const struct tier_key *key, int stored);   /* or NULL */
	void *changed_arg;
};

/* "PREFIX" and the key's digits, for a command's argument. */
struct redis_key_text {
	char b[REDIS_PREFIX_MAX + REDIS_KEY_DIGITS];
	size_t bytes;
};
struct redis_arg redis_key_arg(const struct redis_tier *t, const struct tier_key *key, struct redis_key_text *room);

/* Is it being emptied? Then it has nothing and takes nothing. */
int redis_tier_flushing(const struct redis_tier *t);
/* What an error reply means for the operation: code and static text; logged now and then. is_put: it may hold for all puts, which then pause. */
int redis_tier_refusal(struct redis_tier *t, const struct redis_item *it, int is_put, const char **ret_text);

/* Who keeps blocks above because they are here hears that they may not be any more. Without the lock. */
void redis_tier_tell_gone(struct redis_tier *t);

/* --- redis_block.c --- */
void redis_block_put(struct redis_tier *t, struct tier_op *op);
void redis_block_get(struct redis_tier *t, struct tier_op *op);

/* --- redis_keys.c --- */
void redis_keys_find(struct redis_tier *t, struct tier_find *f);
int redis_keys_remove(struct redis_tier *t, const struct tier_key *key);
int redis_keys_flush(struct redis_tier *t);                        /* 0: begun */
void redis_keys_ask_figures(void *tier, struct redis_lane *l);     /* the lane's beat */

#endif
