/* stack_int.h - what tier_stack.c (operations, look-ups) and stack_copy.c (copies between tiers, and the thread that begins them) share. */
#ifndef STORAGE_STACK_INT_H
#define STORAGE_STACK_INT_H

#include "tier_stack.h"

#include <pthread.h>
#include <stdatomic.h>

#define LEVEL_OPS_MAX 64u     /* puts, and gets, of others that the stack has with a lower tier at a time */
#define COPIES_MAX 16u        /* from one level down at a time; together with the others fewer than a tier queues */
#define UPS_MAX 16u           /* prefetches at a time */
#define PREFETCH_MAX 1024u    /* waiting */

enum { KIND_GET, KIND_PUT, KINDS };

struct stack;

/* An operation on its way through the tiers. */
struct pass {
	struct tier_op op;         /* what the tiers see; first */
	struct list link;          /* in level.waiting, or in copy.waiters */
	struct stack *s;
	struct tier_op *outer;
	unsigned level;            /* that has it, or is next */
	uint64_t begun_us;         /* waiting since */
	uint64_t flushes;          /* as counted at its begin */
	int kind, moved, waited;   /* waited: for a copy up already, once */
	int code;                  /* what the first tier that failed said, 0: none did */
	const char *text;
};

struct level {
	struct stack *s;
	struct stack_level opts;
	_Atomic(struct tier *) tier;   /* NULL until it is open */
	atomic_int policy;             /* enum tier_policy */
	atomic_uint after;
	/* under the stack's lock */
	unsigned running[KINDS];
	int pumping[KINDS];
	struct list waiting[KINDS];
	unsigned n_waiting, copying;
	uint64_t open_at_us, pause_until_us, resize_to;
	int tried;
	char why[96];
	struct stack_stat count;
};

struct fetch {
	struct tier_due what;          /* bytes 0: not wanted any more */
	unsigned level;
};

struct stack {
	struct tier tier;
	struct stack_opts opts;
	unsigned n;
	struct level level[STACK_LEVELS_MAX];
	int memory;                    /* level 0 is memory */
	pthread_mutex_t lock;
	pthread_cond_t wake, opened;
	atomic_int kicked, closing;
	_Atomic uint64_t flushes;
	int stop;
	struct list ups;               /* of copy: prefetches under way */
	unsigned n_ups;
	struct fetch *fetch;           /* ring (PREFETCH_MAX) */
	unsigned fetch_at, n_fetch;
	pthread_t thread;
};

/* --- tier_stack.c --- */
static inline struct tier *level_tier(const struct level *l)
{
	return atomic_load_explicit((_Atomic(struct tier *) *)&l->tier, memory_order_acquire);
}
int stack_next_open(const struct stack *s, unsigned from);       /* the first open level at or below, -1: none */
void stack_pass_next(struct pass *p);                            /* to the next tier that is there, from p->level on */

/* --- stack_copy.c --- */
void stack_kick(struct stack *s);
void stack_used(struct level *l);                                /* its tier took a block, or had one: some may be due now */
void stack_prefetch(struct stack *s, const struct tier_find *f);
int stack_wait_up(struct pass *p);                               /* 1: the block is on its way up, p goes on when it has come */
void stack_promote(struct pass *p, const struct tier_span *span, unsigned n);
void stack_copy_start(struct stack *s);                          /* the thread */
void stack_copy_stop(struct stack *s);

#endif
