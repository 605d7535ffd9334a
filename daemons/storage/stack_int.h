/* stack_int.h - shared by tier_stack.c (operations, look-ups) and stack_copy.c (copies between
 * tiers and the thread that starts them). */
#ifndef STORAGE_STACK_INT_H
#define STORAGE_STACK_INT_H

#include "tier_stack.h"

#include <pthread.h>
#include <stdatomic.h>

/* concurrent puts, and concurrent gets, of callers per lower tier */
#define LEVEL_OPS_MAX 64u
/* concurrent copies down from one level; together with the above less than a tier's queue */
#define COPIES_MAX 16u
#define PREFETCHING_MAX 16u /* concurrent */
#define PREFETCH_MAX 1024u  /* waiting */

enum { KIND_GET, KIND_PUT, KINDS };

struct stack;

/* A block being read from a lower tier, for all waiting gets and for memory. */
struct stack_fetch {
	struct tier_op op;           /* the get; first */
	struct list link;            /* in stack.fetches */
	struct list waiters, served; /* of tier_op; served: `move` has been called */
	struct stack *s;
	unsigned level;
	uint64_t flushes;          /* stack.flushes at the start */
	int prefetch, moved, kept; /* kept: in memory now */
};

struct stack_tier {
	struct stack *s;
	struct stack_level opts;
	_Atomic(struct tier *) tier; /* NULL until it is open */
	atomic_int policy;           /* enum tier_policy */
	atomic_uint after;
	/* protected by the stack's lock */
	unsigned running[KINDS];
	int pumping[KINDS];
	struct list waiting[KINDS]; /* of tier_op: puts, and fetches */
	unsigned n_waiting, copying;
	uint64_t open_at_us, pause_until_us, resize_to;
	int tried;
	char why[96];
	struct stack_stat count;
};

struct wish {
	struct tier_due what; /* bytes 0: cancelled */
	unsigned level;
};

struct stack {
	struct tier tier;
	struct stack_opts opts;
	unsigned n;
	struct stack_tier level[STACK_LEVELS_MAX];
	int memory; /* level 0 is memory */
	pthread_mutex_t lock;
	pthread_cond_t wake, opened;
	atomic_int kicked, closing;
	_Atomic uint64_t flushes; /* counts starts and ends */
	/* a flush is in progress: some tiers are empty, others still have their blocks */
	atomic_uint flushing;
	int stop;
	struct list fetches; /* in progress or queued */
	unsigned n_prefetching;
	struct wish *wish; /* ring (PREFETCH_MAX): blocks to prefetch */
	unsigned wish_at, n_wishes;
	pthread_t thread;
	/* for whom memory is pinned; by NULL: nobody yet. Protected by the lock */
	struct {
		const struct kern_copies *by;
		int device, failed;
	} pin;
};

/* --- tier_stack.c --- */
static inline struct tier *level_tier(const struct stack_tier *l)
{
	return atomic_load_explicit((_Atomic(struct tier *) *)&l->tier, memory_order_acquire);
}
/* the first open level from `from` down, -1: none */
int stack_next_open(const struct stack *s, unsigned from);
/* passes the operation to the next open tier from route.level on */
void stack_op_next(struct tier_op *op);
/* the tier failed: tries the next one */
void stack_op_failed(struct tier_op *op, int code, const char *text);
void stack_op_end(struct tier_op *op, int code, enum tier_id tier, const char *text);
int stack_op_unwanted(const struct tier_op *op);
void stack_level_submit(struct stack_tier *l, int kind,
                        struct tier_op *op);           /* queues it if needed */
void stack_level_back(struct stack_tier *l, int kind); /* the tier has finished one operation */

/* --- stack_copy.c --- */
void stack_kick(struct stack *s);
/* the tier stored or returned a block: some blocks may be due for copying down */
void stack_used(struct stack_tier *l);
void stack_prefetch(struct stack *s, const struct tier_find *f);
void stack_fetch(struct tier_op *op); /* a get, from route.level */
/* cancels the fetch if no get waits for it any more. Call with the lock held */
void stack_fetch_begins(struct tier_op *op);
void stack_copy_start(struct stack *s); /* the thread */
void stack_copy_stop(struct stack *s);

#endif
