/* quota.h - memory that one piece of work may take, out of what all of them may take together.
 *
 * Who allocates what an input sizes asks the work's quota first, and gives back what it frees. A
 * quota is used by one thread at a time, its pool by any. The pool lends in pieces, so that asking
 * costs next to nothing. The last eighth of a pool is for small work (QUOTA_SMALL), and for work
 * that has begun: large requests cannot keep ordinary ones from being answered. */
#ifndef UTIL_QUOTA_H
#define UTIL_QUOTA_H

#include <stdatomic.h>
#include <stddef.h>

#define QUOTA_SMALL 65536u /* bytes: work that has taken no more may use the whole pool */

struct quota_pool {
	_Atomic size_t size; /* bytes; may be changed at any time, what is lent stays lent */
	_Atomic size_t lent;
};

/* Why the last request for memory failed. Stays until quota_init. */
enum quota_over {
	QUOTA_FITS,
	QUOTA_OVER_LIMIT, /* the work's own limit */
	QUOTA_OVER_POOL,  /* the others have the rest */
	QUOTA_NO_MEMORY   /* the system has none */
};

struct quota {
	struct quota_pool *pool; /* NULL: only the limit counts */
	size_t limit;            /* bytes */
	size_t used, lent;       /* used <= lent */
	enum quota_over over;
	int begun; /* set by its owner: it may use the last eighth, too */
};

void quota_init(struct quota *q, struct quota_pool *pool, size_t limit);
/* gives all back; may be used again after quota_init */
void quota_fini(struct quota *q);
/* the slow path of quota_take: what is lent is not enough */
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
void quota_give(struct quota *q, size_t bytes); /* no more than was taken */

/* malloc, zeroed array and realloc of what is taken first; NULL: the quota or the system refused
 * (the old block stays). Freed by quota_free with the bytes that were asked for last. q NULL:
 * without a quota. */
void *quota_alloc(struct quota *q, size_t bytes);
void *quota_array(struct quota *q, size_t count, size_t size);
void *quota_grow(struct quota *q, void *p, size_t old_count, size_t count, size_t size);
void quota_free(struct quota *q, void *p, size_t bytes);

#endif
