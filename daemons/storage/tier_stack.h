/* tier_stack.h - several tiers as one, for put, get, look-up and destroy: a put goes to the first
 * that takes it, a get asks from the fastest down, and blocks move between them.
 *
 * Down: by the policy of the tier that has them (offload, write_through), never while a put waits.
 * Up: what a get or a prefetch finds below memory is read once for all who ask for it meanwhile,
 * and copied into it. No call waits for a lower tier: operations on lower tiers are queued here
 * (the operation's memory is the caller's), a bounded number is with a tier at a time. A tier that
 * cannot be opened is left out and tried again each reopen_us.
 *
 * Memory, if it is there, is the first; its calls end before they return, which copying relies
 * on. */
#ifndef STORAGE_TIER_STACK_H
#define STORAGE_TIER_STACK_H

#include "tier.h"

#include <stdint.h>

#define STACK_LEVELS_MAX 3u

struct stack_level {
	enum tier_id id;
	struct tier *tier; /* the stack's from now on; NULL: open it */
	/* on the stack's thread; may take its time */
	int (*open)(void *arg, struct tier **ret_t, struct err *err);
	void *arg;
	enum tier_policy policy;
	uint32_t after;       /* write_through: hits */
	unsigned low_percent; /* offload */
};

struct stack_opts {
	struct stack_level level[STACK_LEVELS_MAX]; /* from the fastest down */
	unsigned n;
	/* open_wait_us: how long tier_stack_new waits for the first attempt of all */
	uint64_t reopen_us, open_wait_us;
	uint64_t pause_us;        /* after a lower tier could not take a block */
	uint64_t redis_lookup_us; /* of a look-up, for the Redis tier */
	/* Hears of every change of a level that can tell (tier_ops.watch), and with key NULL that a
	 * level was opened; any thread; may be NULL. */
	void (*changed)(void *arg, enum tier_id id, const struct tier_key *key, int stored);
	void *arg;
};

struct stack_stat {
	enum tier_id id;
	enum tier_policy policy;
	int open;              /* else tier.state says why not */
	struct tier_stat tier; /* `queued` has those that wait in the stack too */
	uint64_t copied_down;  /* blocks that the tier below took from this one */
	uint64_t copy_failed;  /* that it did not take */
	/* blocks of this one that were copied up into memory, prefetched ones too */
	uint64_t promoted;
	uint64_t prefetched;
	unsigned copying; /* blocks on their way down from here now */
};

struct tier *tier_stack_new(const struct stack_opts *o);
unsigned tier_stack_levels(const struct tier *t);
void tier_stack_level(struct tier *t, unsigned i, struct stack_stat *ret);
/* NULL: not there, or not open yet */
struct tier *tier_stack_find(struct tier *t, enum tier_id id);
/* By another thread, soon; what goes wrong is logged. */
void tier_stack_resize(struct tier *t, enum tier_id id, uint64_t capacity_bytes);
void tier_stack_policy(struct tier *t, enum tier_id id, enum tier_policy policy, uint32_t after,
                       unsigned low_percent);
/* Drops what that tier has (TIER_NONE: all tiers). Of several that could not the first one's
 * reason; ERR_NOTFOUND: there is none of that name. */
void tier_stack_flush(struct tier *t, enum tier_id id, struct tier_flush *f);

#endif
