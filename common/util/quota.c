/* quota.c - see quota.h. */
#include "util/quota.h"
#include "util/check.h"
#include "util/err.h"
#include "util/mem.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The least that is borrowed from the pool at once, in bytes: */
#define PIECE_SMALL 4096u  /* while less than QUOTA_SMALL is lent */
#define PIECE_LARGE 65536u /* from then on */

void quota_init(struct quota *q, struct quota_pool *pool, size_t limit)
{
	memset(q, 0, sizeof *q);
	q->pool = pool;
	q->limit = limit;
}

static void give_back(struct quota *q, size_t bytes)
{
	q->lent -= bytes;
	if (q->pool)
		atomic_fetch_sub(&q->pool->lent, bytes);
}

void quota_fini(struct quota *q)
{
	give_back(q, q->lent);
	q->used = 0;
}

static int borrow(struct quota *q, size_t bytes)
{
	struct quota_pool *p = q->pool;
	size_t size = p ? p->size : SIZE_MAX, lent = p ? p->lent : 0;
	if (q->lent + bytes > QUOTA_SMALL && !q->begun)
		size -= size / 8;
	do
		if (lent > size || bytes > size - lent)
			return 0;
	while (p && !atomic_compare_exchange_weak(&p->lent, &lent, lent + bytes));
	q->lent += bytes;
	return 1;
}

int quota_borrow(struct quota *q, size_t bytes)
{
	if (bytes > q->limit - q->used) {
		q->over = QUOTA_OVER_LIMIT;
		return ERR_NOMEM;
	}
	size_t need = bytes - (q->lent - q->used),
		   piece = q->lent < QUOTA_SMALL ? PIECE_SMALL : PIECE_LARGE;
	if (!borrow(q, need > piece ? need : piece) && !borrow(q, need)) {
		q->over = QUOTA_OVER_POOL;
		return ERR_NOMEM;
	}
	q->used += bytes;
	return 0;
}

void quota_give(struct quota *q, size_t bytes)
{
	if (!q)
		return;
	CHECK(bytes <= q->used);
	q->used -= bytes;
	size_t free_bytes = q->lent - q->used;
	if (free_bytes > PIECE_LARGE)
		give_back(q, free_bytes - PIECE_SMALL);
}

static void *present(struct quota *q, void *p, size_t bytes)
{
	if (!p && q) {
		quota_give(q, bytes);
		q->over = QUOTA_NO_MEMORY;
	}
	return p;
}

void *quota_alloc(struct quota *q, size_t bytes)
{
	return quota_take(q, bytes) < 0 ? NULL : present(q, mem_try_alloc(bytes), bytes);
}

void *quota_array(struct quota *q, size_t count, size_t size)
{
	CHECK(!size || count <= SIZE_MAX / size);
	return quota_take(q, count * size) < 0 ? NULL
	                                       : present(q, mem_try_array(count, size), count * size);
}

void *quota_grow(struct quota *q, void *p, size_t old_count, size_t count, size_t size)
{
	size_t more = (count - old_count) * size;
	CHECK(count >= old_count && (!size || count <= SIZE_MAX / size));
	return quota_take(q, more) < 0 ? NULL : present(q, mem_try_grow(p, count, size), more);
}

void quota_free(struct quota *q, void *p, size_t bytes)
{
	if (p)
		quota_give(q, bytes);
	free(p);
}
