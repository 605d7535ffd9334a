/* quota.h - limits the memory of one piece of work (such as a request), and of all of them
 * together.
 *
 * Code whose allocations depend on an input's size takes the bytes from the quota first and gives
 * back what it frees. One thread at a time uses a quota; any thread may use its pool. A quota
 * borrows from the pool in pieces, so that most calls do not touch the pool. The last eighth of a
 * pool is reserved for small work (QUOTA_SMALL) and for work that has begun, so that large requests
 * cannot keep ordinary ones from being answered. */
#ifndef UTIL_QUOTA_H
#define UTIL_QUOTA_H

#include <stdatomic.h>
#include <stddef.h>

#define QUOTA_SMALL 65536u /* bytes: work that borrows no more may use the whole pool */

struct quota_pool {
	_Atomic size_t size; /* bytes; may change at any time, what is already lent stays lent */
	_Atomic size_t lent;
};

/* Why the last failed request for memory failed. Stays until quota_init. */
enum quota_over {
	QUOTA_FITS,
	QUOTA_OVER_LIMIT, /* the quota's own limit */
	QUOTA_OVER_POOL,  /* the pool has too little left */
	QUOTA_NO_MEMORY   /* malloc failed */
};

struct quota {
	struct quota_pool *pool; /* NULL: only `limit` applies */
	size_t limit;            /* bytes */
	size_t used, lent;       /* bytes taken, and borrowed from the pool; used <= lent */
	enum quota_over over;
	int begun; /* set by the owner once the work has begun: it may use the last eighth too */
};

void quota_init(struct quota *q, struct quota_pool *pool, size_t limit);
/* Returns all memory to the pool; quota_init makes the quota usable again. */
void quota_fini(struct quota *q);
/* The slow path of quota_take: borrows more from the pool. */
int quota_borrow(struct quota *q, size_t bytes);
/* 0, or ERR_NOMEM with `over` set and nothing taken. q NULL: always 0. */
static inline int quota_take(struct quota *q, size_t bytes)
{
	if (!q)
		return 0;
	if (bytes > q->lent - q->used || bytes > q->limit - q->used)
		return quota_borrow(q, bytes);
	q->used += bytes;
	return 0;
}
void quota_give(struct quota *q, size_t bytes); /* at most what was taken; q NULL: does nothing */

/* malloc, zeroed array and realloc, charged to the quota. NULL: the quota or malloc refused, and
 * quota_grow leaves the old block as it is. Free with quota_free and the bytes of the last size.
 * q NULL: no quota. */
void *quota_alloc(struct quota *q, size_t bytes);
void *quota_array(struct quota *q, size_t count, size_t size);
void *quota_grow(struct quota *q, void *p, size_t old_count, size_t count, size_t size);
void quota_free(struct quota *q, void *p, size_t bytes);

#endif
