/* arena.h - memory of one request or one parse: many allocations, one release. Allocations are
 * zeroed and 16-byte aligned. Out of memory is fatal, except in arena_try_alloc. Not
 * thread-safe. */
#ifndef UTIL_ARENA_H
#define UTIL_ARENA_H

#include <stddef.h>

struct arena;

struct arena *arena_new(void);
void arena_destroy(struct arena **a);
void *arena_alloc(struct arena *a, size_t bytes);
void *arena_try_alloc(struct arena *a, size_t bytes); /* NULL: out of memory */
void *arena_array(struct arena *a, size_t count, size_t size);
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
