/* pool.h - threads that work through the items of one job at a time.
 *
 * pool_run calls fn(ctx, item, worker) once for every item below `items`, from the calling thread (worker 0) and from those
 * pool threads that come in time, and returns when all calls have returned. Which thread takes which item is not fixed:
 * an item's result must not depend on it. One pool_run at a time. */
#ifndef CPU_POOL_H
#define CPU_POOL_H

#include <stdint.h>

struct pool;
typedef void pool_fn(void *ctx, uint32_t item, unsigned worker);

/* threads counts the caller too; NULL when memory or threads are lacking */
struct pool *pool_new(unsigned threads);
void pool_destroy(struct pool **pool);
unsigned pool_threads(const struct pool *pool);
void pool_run(struct pool *pool, uint32_t items, pool_fn *fn, void *ctx);

#endif
