/* tier.h - one storage tier: host memory, a local disk, a Redis, or a stack of these; each
 * implements the same table of calls.
 *
 * A tier stores blocks (bytes under a 32-byte key) with their checksum, within its capacity,
 * evicting the least recently used first. Every call is asynchronous: `done` is called exactly
 * once, on any thread, before the call returns or later. The operation's memory belongs to the
 * caller and must live until then. All calls may come from any thread concurrently; none waits for
 * a device or a network: the tier queues what cannot start now, up to a bound, beyond which it ends
 * with ERR_FULL (put) or ERR_NOTFOUND with a text (get).
 *
 * Invariants: a key names a whole block or nothing (data first, then index); a returned block has
 * just been verified; a block with a checksum mismatch is dropped and reported as ERR_CORRUPT. Two
 * puts of one key store one block, and both return 0. */
#ifndef STORAGE_TIER_H
#define STORAGE_TIER_H

#include "kernels/copy.h"
#include "util/err.h"
#include "util/list.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define TIER_KEY_BYTES 32
#define TIER_QUEUE_MIN 128u /* every tier queues at least this many puts and this many gets */

struct tier_key {
	unsigned char b[TIER_KEY_BYTES];
};

/* From the fastest to the slowest; numbers are those of KvEvents.tier and StoreFound.tiers. */
enum tier_id { TIER_NONE, TIER_MEMORY, TIER_DISK, TIER_REDIS, TIER_IDS };

static inline const char *tier_name(enum tier_id t)
{
	static const char *const names[TIER_IDS] = {"", "memory", "disk", "redis"};
	return names[t];
}

struct tier_sum {
	uint64_t lo, hi; /* XXH3, 128 bits, over the block's bytes in order */
};

/* A block's bytes are a list of spans. */
struct tier_span {
	unsigned char *at;
	size_t bytes;
};

/* WAITS -> MOVES -> MOVED -> OVER. Cancelling: WAITS, or MOVED of a put, -> ORPHAN, owned by nobody
 * and freed by its `done`; MOVES of a put -> LATE: the copied data need not be written. */
enum tier_op_state {
	TIER_OP_WAITS,
	TIER_OP_MOVES,
	TIER_OP_LATE,
	TIER_OP_MOVED,
	TIER_OP_OVER,
	TIER_OP_ORPHAN
};

struct stack;
struct tier_op;

/* An operation's progress through a stack of tiers. */
struct tier_route {
	struct stack *s;
	/* the operation's own; replaced by the stack's while it is with a tier */
	void (*done)(struct tier_op *op, int code, enum tier_id tier, const char *text);
	uint64_t since_us; /* start of the wait for a tier */
	unsigned level;    /* the tier that has it, or the next one */
	int kind, waited;  /* waited: once joined a fetch too late */
	int code;          /* of the first tier that failed, 0: none */
	const char *text;
};

struct tier_op {
	struct list link; /* the tier's, until done */
	struct tier_key key;
	size_t bytes; /* of the block; a stored block of another size is a miss */
	/* put: set by move. get: that of the stored block; the tier may set it before move */
	struct tier_sum sum;
	atomic_int state; /* enum tier_op_state */
	/* get: a copy between tiers; counts neither as hit nor as miss and keeps the LRU order */
	int aside;
	/* put: copies the block into the spans, sets sum, then checks that the block was valid
	 * throughout: 0, or ERR_STALE. get: copies it out of the spans. A nonzero result ends the
	 * operation with that code; a put then stores nothing. Called at most once, on any thread, by
	 * tier_op_move. */
	int (*move)(struct tier_op *op, const struct tier_span *span, unsigned n);
	/* code: 0; ERR_NOTFOUND; ERR_FULL: no room even after eviction; ERR_CORRUPT; ERR_IO;
	 * ERR_CLOSED: tier away; or move's result. text: reason (static), or NULL. tier: the tier that
	 * has the block, TIER_NONE: none. */
	void (*done)(struct tier_op *op, int code, enum tier_id tier, const char *text);
	struct tier_route route; /* the stack's, while it has it */
};

static inline int tier_op_turns(struct tier_op *op, enum tier_op_state from, enum tier_op_state to)
{
	int was = (int)from;
	return atomic_compare_exchange_strong(&op->state, &was, (int)to);
}

/* For tiers: calls `move`, unless the operation was cancelled. */
static inline int tier_op_move(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	if (!tier_op_turns(op, TIER_OP_WAITS, TIER_OP_MOVES))
		return ERR_CANCELLED;
	int r = op->move(op, span, n);
	/* from here on the owner may have released what `move` uses */
	int late = !tier_op_turns(op, TIER_OP_MOVES, TIER_OP_MOVED);
	return late && r == 0 ? ERR_CANCELLED : r;
}

/* The operation was cancelled: a tier may end it with ERR_CANCELLED. */
static inline int tier_op_unwanted(const struct tier_op *op)
{
	int state = atomic_load((atomic_int *)&op->state);
	return state == TIER_OP_ORPHAN || state == TIER_OP_LATE;
}

/* Cancels. 1: the caller no longer owns it. 0: it ends normally, soon. */
static inline int tier_op_give_up(struct tier_op *op, int put)
{
	if (put)
		tier_op_turns(op, TIER_OP_MOVES, TIER_OP_LATE);
	return tier_op_turns(op, TIER_OP_WAITS, TIER_OP_ORPHAN) ||
	       (put && tier_op_turns(op, TIER_OP_MOVED, TIER_OP_ORPHAN));
}

/* For `done`: returns 1 if the operation was an orphan. */
static inline int tier_op_over(struct tier_op *op)
{
	return atomic_exchange(&op->state, TIER_OP_OVER) == TIER_OP_ORPHAN;
}

/* Which of these keys are stored? The tier sets where[i] for keys that it has and whose where[i] is
 * TIER_NONE; with `leading` it may stop at the first key not found. The LRU order is unchanged. */
struct tier_find {
	struct list link;           /* the tier's, until done */
	const struct tier_key *key; /* (n) */
	unsigned char *where;       /* (n) enum tier_id */
	uint32_t n;
	int leading;
	size_t bytes;
	int prefetch; /* a stack copies blocks found below memory up into it */
	/* monotonic; a remote tier (Redis) answers by then with what it knows. 0: its own limit */
	uint64_t until_us;
	void (*done)(struct tier_find *f);
};

/* Drops everything in the tier: not found from the call on. */
struct tier_flush {
	struct list link; /* the tier's, until done */
	uint64_t blocks;  /* dropped, as far as known */
	/* 0: nothing of it comes back. ERR_CLOSED: tier away, keeps its blocks. ERR_IO, ERR_FULL:
	 * blocks may be back after a restart */
	int code;
	char text[160]; /* reason of a failure, or "" */
	/* once, on any thread, before the call returns or later */
	void (*done)(struct tier_flush *f);
};

struct tier_stat {
	uint64_t blocks, bytes, capacity_bytes; /* capacity 0: unknown (Redis without maxmemory) */
	/* known: puts of blocks that were already stored */
	uint64_t puts, known, gets, hits, misses, evictions, corrupt, full, errors;
	/* Blocks lost without a request (evicted, damaged, file or index gone) that no tier below had,
	 * as far as `stored` told this tier since it was opened */
	uint64_t lost;
	/* time on the device of successful blocks; for rates */
	uint64_t read_bytes, read_us, write_bytes, write_us;
	uint64_t queued; /* operations that have not started */
	/* monotonic start of the oldest operation in progress, 0: none */
	uint64_t oldest_us;
	char state[96]; /* "ready", or why not: "away: connection refused" */
};

/* What happens to a tier's blocks with respect to the next tier below. */
enum tier_policy {
	TIER_RECYCLE, /* dropped when the room is needed */
	TIER_OFFLOAD, /* the least recently used are copied down before the room is needed */
	/* copied down after a number of hits (0: as soon as they are put) */
	TIER_WRITE_THROUGH
};

/* What a tier is told about a block in the tiers below it. */
enum tier_below {
	TIER_BELOW_HAS,
	TIER_BELOW_REFUSED, /* none accepts it */
	TIER_BELOW_LATER,   /* none accepts it now */
	TIER_BELOW_GONE     /* no tier below has it any more; one had it, or may have had it */
};

struct tier_due {
	struct tier_key key;
	size_t bytes;
};

/* Position of an iteration over all keys; zeroed: the start. number and key are private to the
 * tier. */
struct tier_cursor {
	uint64_t number;
	struct tier_key key;
	int end; /* all were listed */
};

struct tier;

struct tier_ops {
	/* reported in acknowledgements; TIER_NONE: a stack of several */
	enum tier_id id;
	void (*put)(struct tier *t, struct tier_op *op);
	void (*get)(struct tier *t, struct tier_op *op);
	void (*lookup)(struct tier *t, struct tier_find *f);
	int (*remove)(struct tier *t, const struct tier_key *key); /* 0 or ERR_NOTFOUND */
	void (*flush)(struct tier *t, struct tier_flush *f);
	/* Changes the capacity at once and evicts the excess. NULL: not supported. 0 or an error with a
	 * message. */
	int (*resize)(struct tier *t, uint64_t capacity_bytes, struct err *err);
	void (*stat)(struct tier *t, struct tier_stat *ret);
	/* Pins a part of its memory for the devices of `by`, of which `device` is one; may take a
	 * second. Never during a resize. 1: call it again, 0: all is pinned, or an error. NULL: it has
	 * no memory that blocks stay in. */
	int (*pin)(struct tier *t, const struct kern_copies *by, int device, struct err *err);
	/* The rest may be NULL. policy, due, stored: the tier decides what is copied down, the stack
	 * copies. `due` returns at most max blocks to copy down now, each once until `stored` is called
	 * for it. HAS and GONE may also come unasked, GONE with key NULL for all keys. `policy` may be
	 * called again at any time. low_percent: the part of the capacity that TIER_OFFLOAD keeps free
	 * or stored below. */
	void (*policy)(struct tier *t, enum tier_policy policy, uint32_t after, unsigned low_percent);
	uint32_t (*due)(struct tier *t, uint32_t max, struct tier_due *ret);
	void (*stored)(struct tier *t, const struct tier_key *key, enum tier_below what);
	/* watch: called once, before the first put. `changed` is told every key that is stored (1) or
	 * gone (0), in order, on any thread; key NULL: all are gone, or may be (Redis). It may call no
	 * tier function except `stored` of a tier above. list: returns at most max keys and advances
	 * the cursor; every key is listed once, except that keys that change meanwhile may be
	 * missed. */
	void (*watch)(struct tier *t,
	              void (*changed)(void *arg, const struct tier_key *key, int stored), void *arg);
	uint32_t (*list)(struct tier *t, struct tier_cursor *at, uint32_t max, struct tier_key *ret);
	/* ends its threads; operations in progress are completed (ERR_CANCELLED if not started) before
	 * it returns */
	void (*destroy)(struct tier *t);
};

/* First member of every tier. */
struct tier {
	const struct tier_ops *ops;
};

#endif
