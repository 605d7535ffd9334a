/* tier_stack.h - several tiers as one, for put, get, look-up and destroy: a put goes to the first
 * that accepts it, a get asks from the fastest down, and blocks move between tiers.
 *
 * Down: by the policy of the tier that has them (offload, write_through), never while a put waits.
 * Up: a block that a get or a prefetch finds below memory is read once for all concurrent requests
 * and copied into memory. No call waits for a lower tier: operations on lower tiers are queued here
 * (in the caller's memory), and a bounded number is with a tier at a time. A tier that cannot be
 * opened is skipped and retried every reopen_us.
 *
 * Memory, if present, is the first level; its calls complete before they return, which copying
 * relies on. */
#ifndef STORAGE_TIER_STACK_H
#define STORAGE_TIER_STACK_H

#include "tier.h"

#include <stdint.h>

#define STACK_LEVELS_MAX 3u

struct stack_level {
	enum tier_id id;
	struct tier *tier; /* owned by the stack from now on; NULL: open it */
	/* called on the stack's thread; may be slow */
	int (*open)(void *arg, struct tier **ret_t, struct err *err);
	void *arg;
	enum tier_policy policy;
	uint32_t after;       /* write_through: hits */
	unsigned low_percent; /* offload */
};

struct stack_opts {
	struct stack_level level[STACK_LEVELS_MAX]; /* from the fastest down */
	unsigned n;
	/* open_wait_us: how long tier_stack_new waits for the first attempts to open */
	uint64_t reopen_us, open_wait_us;
	uint64_t pause_us;        /* after a lower tier did not accept a block */
	uint64_t redis_lookup_us; /* limit of a look-up in the Redis tier */
	/* Told every change of a level that can report changes (tier_ops.watch); key NULL: a level was
	 * opened. Any thread; may be NULL. */
	void (*changed)(void *arg, enum tier_id id, const struct tier_key *key, int stored);
	void *arg;
};

struct stack_stat {
	enum tier_id id;
	enum tier_policy policy;
	int open;              /* else tier.state has the reason */
	struct tier_stat tier; /* `queued` includes operations waiting in the stack */
	uint64_t copied_down;  /* blocks that the tier below accepted from this one */
	uint64_t copy_failed;  /* blocks that it did not accept */
	/* blocks of this tier that were copied up into memory, including prefetched ones */
	uint64_t promoted;
	uint64_t prefetched;
	unsigned copying; /* blocks being copied down from this tier */
};

struct tier *tier_stack_new(const struct stack_opts *o);
unsigned tier_stack_levels(const struct tier *t);
void tier_stack_level(struct tier *t, unsigned i, struct stack_stat *ret);
/* NULL: no such tier, or not open yet */
struct tier *tier_stack_find(struct tier *t, enum tier_id id);
/* Asynchronous, on the stack's thread; errors are logged. */
void tier_stack_resize(struct tier *t, enum tier_id id, uint64_t capacity_bytes);
/* Pins the memory tier's memory for devices, if `by` can; the first to ask stays. As above. */
void tier_stack_pin(struct tier *t, const struct kern_copies *by, int device);
void tier_stack_policy(struct tier *t, enum tier_id id, enum tier_policy policy, uint32_t after,
                       unsigned low_percent);
/* Flushes that tier (TIER_NONE: all). If several fail, reports the first one's reason;
 * ERR_NOTFOUND: no such tier. */
void tier_stack_flush(struct tier *t, enum tier_id id, struct tier_flush *f);

#endif
