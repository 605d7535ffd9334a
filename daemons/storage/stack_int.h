/* stack_int.h - what tier_stack.c (operations, look-ups) and stack_copy.c (copies between tiers,
 * and the thread that begins them) share. */
#ifndef STORAGE_STACK_INT_H
#define STORAGE_STACK_INT_H

#include "tier_stack.h"

#include <pthread.h>
#include <stdatomic.h>

/* puts, and gets, of others that the stack has with a lower tier at a time */
#define LEVEL_OPS_MAX 64u
/* from one level down at a time; together with the others fewer than a tier queues */
#define COPIES_MAX 16u
#define PREFETCHING_MAX 16u /* at a time */
#define PREFETCH_MAX 1024u  /* waiting */

enum { KIND_GET, KIND_PUT, KINDS };

struct stack;

/* A block on its way up from a lower tier: to all gets that wait for it, and into memory. */
struct fetch {
	struct tier_op op;           /* the get; first */
	struct list link;            /* in stack.fetches */
	struct list waiters, served; /* of tier_op; served: its `move` was called */
	struct stack *s;
	unsigned level;
	uint64_t flushes;          /* as counted at its begin */
	int prefetch, moved, kept; /* kept: in memory now */
};

struct level {
	struct stack *s;
	struct stack_level opts;
	_Atomic(struct tier *) tier; /* NULL until it is open */
	atomic_int policy;           /* enum tier_policy */
	atomic_uint after;
	/* under the stack's lock */
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
	struct tier_due what; /* bytes 0: not wanted any more */
	unsigned level;
};

struct stack {
	struct tier tier;
	struct stack_opts opts;
	unsigned n;
	struct level level[STACK_LEVELS_MAX];
	int memory; /* level 0 is memory */
	pthread_mutex_t lock;
	pthread_cond_t wake, opened;
	atomic_int kicked, closing;
	_Atomic uint64_t flushes; /* begun and ended */
	/* under way: some tiers have nothing yet, others still have theirs */
	atomic_uint flushing;
	int stop;
	struct list fetches; /* under way or waiting for their turn */
	unsigned n_prefetching;
	struct wish *wish; /* ring (PREFETCH_MAX): what is to be prefetched */
	unsigned wish_at, n_wishes;
	pthread_t thread;
};

/* --- tier_stack.c --- */
static inline struct tier *level_tier(const struct level *l)
{
	return atomic_load_explicit((_Atomic(struct tier *) *)&l->tier, memory_order_acquire);
}
/* the first open level at or below, -1: none */
int stack_next_open(const struct stack *s, unsigned from);
/* to the next tier that is there, from route.level on */
void stack_op_next(struct tier_op *op);
/* this tier did not do it: to the next one */
void stack_op_failed(struct tier_op *op, int code, const char *text);
void stack_op_end(struct tier_op *op, int code, enum tier_id tier, const char *text);
int stack_op_unwanted(const struct tier_op *op);
void stack_level_submit(struct level *l, int kind, struct tier_op *op); /* when it is its turn */
void stack_level_back(struct level *l, int kind); /* the tier is done with one */

/* --- stack_copy.c --- */
void stack_kick(struct stack *s);
/* its tier took a block, or had one: some may be due now */
void stack_used(struct level *l);
void stack_prefetch(struct stack *s, const struct tier_find *f);
void stack_fetch(struct tier_op *op); /* a get, from route.level */
/* it is given up if nobody waits for it any more. With the lock held */
void stack_fetch_begins(struct tier_op *op);
void stack_copy_start(struct stack *s); /* the thread */
void stack_copy_stop(struct stack *s);

#endif
