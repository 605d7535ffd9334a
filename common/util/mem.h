/* mem.h - allocation that never returns NULL: running out of memory is fatal and is reported. It
 * is for sizes that the program itself chooses, and for small bounded ones. Where a request, a
 * peer's message or a text in them determines the size, use mem_try_* (or a quota, quota.h): then
 * only that request fails. */
#ifndef UTIL_MEM_H
#define UTIL_MEM_H

#include <stddef.h>

void *mem_alloc(size_t bytes);                      /* not zeroed */
void *mem_zalloc(size_t bytes);                     /* zeroed */
void *mem_array(size_t count, size_t size);         /* zeroed; overflow of count * size is fatal */
void *mem_grow(void *p, size_t count, size_t size); /* realloc */
char *mem_strdup(const char *s);                    /* NULL stays NULL */
char *mem_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* NULL: out of memory (or count * size overflows); mem_try_grow then leaves p unchanged. */
void *mem_try_alloc(size_t bytes);              /* not zeroed */
void *mem_try_array(size_t count, size_t size); /* zeroed */
void *mem_try_grow(void *p, size_t count, size_t size);

#endif
