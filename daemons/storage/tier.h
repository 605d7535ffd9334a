/* tier.h - one place where blocks are kept: host memory, a local disk, a Redis, or a stack of
 * these; each is a table of the same calls.
 *
 * A tier keeps blocks (bytes under a 32-byte key) with their checksum, within its capacity, least
 * recently used out first. Every call ends by completion: `done` is called exactly once, on any
 * thread, before the call returns or later. The operation's memory is the caller's and must live
 * until then. All calls may come from any thread at a time; none waits for a device or a network:
 * what cannot begin now is queued by the tier, up to a bound, and past it ends with ERR_FULL (put)
 * or ERR_NOTFOUND with a text (get).
 *
 * What always holds: a key names a whole block or nothing (data, then index); what is handed out
 * has just been verified; a block whose checksum does not hold is dropped and said to be
 * ERR_CORRUPT. Two puts of one key store one block, and both are told 0. */
#ifndef STORAGE_TIER_H
#define STORAGE_TIER_H

#include "util/err.h"
#include "util/list.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define TIER_KEY_BYTES 32
#define TIER_QUEUE_MIN 128u /* so many puts and so many gets every tier queues at least */

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

/* The block's bytes lie in a row of spans. */
struct tier_span {
	unsigned char *at;
	size_t bytes;
};

/* WAITS -> MOVES -> MOVED -> OVER. Given up: WAITS, and MOVED of a put, -> ORPHAN, nobody's, which
 * its `done` is to free; MOVES of a put -> LATE: what was copied is not to take its time with a
 * device. */
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

/* Where an operation stands in a stack of tiers. */
struct tier_route {
	struct stack *s;
	/* the operation's own; while it is with a tier the stack's stands in for it */
	void (*done)(struct tier_op *op, int code, enum tier_id tier, const char *text);
	uint64_t since_us; /* waits for a tier since */
	unsigned level;    /* that has it, or is next */
	int kind, waited;  /* waited: came too late for a fetch already, once */
	int code;          /* what the first tier that failed said, 0: none did */
	const char *text;
};

struct tier_op {
	struct list link; /* the tier's, until done */
	struct tier_key key;
	size_t bytes; /* of the block; a stored block of another size is a miss */
	/* put: set by move. get: the stored one, set by the tier before move, if it likes */
	struct tier_sum sum;
	atomic_int state; /* enum tier_op_state */
	/* get: a copy between tiers, neither a hit nor a miss, and the order of use stays */
	int aside;
	/* put: copy the block into the spans and set sum, then check that it was valid all the while:
	 * 0, or ERR_STALE. get: copy it out of them. Anything but 0 ends the operation with that
	 * code; a put then leaves nothing behind. Called at most once, on any thread, by
	 * tier_op_move. */
	int (*move)(struct tier_op *op, const struct tier_span *span, unsigned n);
	/* 0; ERR_NOTFOUND; ERR_FULL: no room even after eviction; ERR_CORRUPT; ERR_IO; ERR_CLOSED: the
	 * tier is away; or what move said. text: reason (static), or NULL. tier: who has the block
	 * now, TIER_NONE if nobody. */
	void (*done)(struct tier_op *op, int code, enum tier_id tier, const char *text);
	struct tier_route route; /* the stack's, while it has it */
};

static inline int tier_op_turns(struct tier_op *op, enum tier_op_state from, enum tier_op_state to)
{
	int was = (int)from;
	return atomic_compare_exchange_strong(&op->state, &was, (int)to);
}

/* For tiers: calls `move`, unless it was given up. */
static inline int tier_op_move(struct tier_op *op, const struct tier_span *span, unsigned n)
{
	if (!tier_op_turns(op, TIER_OP_WAITS, TIER_OP_MOVES))
		return ERR_CANCELLED;
	int r = op->move(op, span, n);
	/* from now on what its owner keeps for `move` may be gone */
	int late = !tier_op_turns(op, TIER_OP_MOVES, TIER_OP_MOVED);
	return late && r == 0 ? ERR_CANCELLED : r;
}

/* Nobody waits for it any more: a tier may end it with ERR_CANCELLED. */
static inline int tier_op_unwanted(const struct tier_op *op)
{
	int state = atomic_load((atomic_int *)&op->state);
	return state == TIER_OP_ORPHAN || state == TIER_OP_LATE;
}

/* 1: it is nobody's from now on. 0: it ends as any other, soon. */
static inline int tier_op_give_up(struct tier_op *op, int put)
{
	if (put)
		tier_op_turns(op, TIER_OP_MOVES, TIER_OP_LATE);
	return tier_op_turns(op, TIER_OP_WAITS, TIER_OP_ORPHAN) ||
	       (put && tier_op_turns(op, TIER_OP_MOVED, TIER_OP_ORPHAN));
}

/* For `done`: 1 if it was nobody's. */
static inline int tier_op_over(struct tier_op *op)
{
	return atomic_exchange(&op->state, TIER_OP_OVER) == TIER_OP_ORPHAN;
}

/* Which of these keys are there now? The tier sets where[i] for those that it has and whose
 * where[i] is TIER_NONE; it may stop at the first key that is nowhere if `leading` is set. It
 * touches no LRU order. */
struct tier_find {
	struct list link;           /* the tier's, until done */
	const struct tier_key *key; /* (n) */
	unsigned char *where;       /* (n) enum tier_id */
	uint32_t n;
	int leading;
	size_t bytes;
	int prefetch; /* a stack brings what is found below memory up into it */
	/* monotonic; a tier that must ask elsewhere (Redis) says by then what it knows. 0: its own
	 * limit */
	uint64_t until_us;
	void (*done)(struct tier_find *f);
};

/* Everything that the tier has is dropped: it is not found from the call on. */
struct tier_flush {
	struct list link; /* the tier's, until done */
	uint64_t blocks;  /* dropped, as far as known */
	/* 0: nothing of it comes back. ERR_CLOSED: the tier is away and keeps what it has. ERR_IO,
	 * ERR_FULL: it may be back after a restart */
	int code;
	char text[160]; /* why not, or "" */
	/* once, on any thread, before the call returns or later */
	void (*done)(struct tier_flush *f);
};

struct tier_stat {
	uint64_t blocks, bytes, capacity_bytes; /* capacity 0: not known (Redis without maxmemory) */
	/* known: puts of what was there already */
	uint64_t puts, known, gets, hits, misses, evictions, corrupt, full, errors;
	/* Blocks that went without being asked to (evicted, damaged, their file or index gone) and that
	 * no tier below had, as far as this tier was told (stored) since it was opened */
	uint64_t lost;
	/* time with the device, of blocks that went through; for rates */
	uint64_t read_bytes, read_us, write_bytes, write_us;
	uint64_t queued; /* operations that have not begun */
	/* monotonic begin of the oldest operation under way, 0: none */
	uint64_t oldest_us;
	char state[96]; /* "ready", or why not: "away: connection refused" */
};

/* What becomes of a tier's blocks towards the next tier below. */
enum tier_policy {
	TIER_RECYCLE, /* dropped when the room is needed */
	TIER_OFFLOAD, /* the least recently used are copied down before the room is needed */
	/* copied down once they were hit so many times (0: as soon as they are put) */
	TIER_WRITE_THROUGH
};

/* What a tier hears of a block and the tiers below it. */
enum tier_below {
	TIER_BELOW_HAS,
	TIER_BELOW_REFUSED, /* none takes it */
	TIER_BELOW_LATER,   /* none takes it now */
	TIER_BELOW_GONE     /* the one that had it, or may have had it, has it no longer */
};

struct tier_due {
	struct tier_key key;
	size_t bytes;
};

/* Where a walk over all keys stands; zeroed: at the begin. number and key are the tier's. */
struct tier_cursor {
	uint64_t number;
	struct tier_key key;
	int end; /* all were listed */
};

struct tier;

struct tier_ops {
	/* what acknowledgements say; TIER_NONE: a stack of several */
	enum tier_id id;
	void (*put)(struct tier *t, struct tier_op *op);
	void (*get)(struct tier *t, struct tier_op *op);
	void (*lookup)(struct tier *t, struct tier_find *f);
	int (*remove)(struct tier *t, const struct tier_key *key); /* 0 or ERR_NOTFOUND */
	void (*flush)(struct tier *t, struct tier_flush *f);
	/* Another capacity, at once: what is too much is evicted. NULL: cannot. 0 or an error with a
	 * sentence. */
	int (*resize)(struct tier *t, uint64_t capacity_bytes, struct err *err);
	void (*stat)(struct tier *t, struct tier_stat *ret);
	/* The rest may be NULL.
	 * policy, due, stored: copying down is decided by the tier and done by the stack. `due` names
	 * at most max blocks that should be copied down now, each once until `stored` is called for it;
	 * enum tier_below, HAS and GONE may also come unasked, GONE with key NULL for all. `policy`
	 * may come again at any time. low_percent: of the capacity, how much TIER_OFFLOAD keeps free
	 * or stored below. */
	void (*policy)(struct tier *t, enum tier_policy policy, uint32_t after, unsigned low_percent);
	uint32_t (*due)(struct tier *t, uint32_t max, struct tier_due *ret);
	void (*stored)(struct tier *t, const struct tier_key *key, enum tier_below what);
	/* watch: `changed` hears of every key that comes (stored 1) and goes, in order, on any thread;
	 * with key NULL: all are gone, or may be (Redis). It calls no tier but `stored` of one above.
	 * Once, before the first put. list: at most max keys from the cursor on, which moves; what
	 * changes meanwhile may be listed or not, all else is, once. */
	void (*watch)(struct tier *t,
	              void (*changed)(void *arg, const struct tier_key *key, int stored), void *arg);
	uint32_t (*list)(struct tier *t, struct tier_cursor *at, uint32_t max, struct tier_key *ret);
	/* ends its threads; operations under way are done (ERR_CANCELLED if not begun) before it
	 * returns */
	void (*destroy)(struct tier *t);
};

/* First member of every tier. */
struct tier {
	const struct tier_ops *ops;
};

#endif
