/* mem.h - allocation that does not return NULL: running out of memory is fatal and says so. It is
 * for what the program itself sizes, and for what has a small bound. Whatever a request, a
 * peer's message or a text of theirs can make large is allocated by mem_try_* (or a quota,
 * quota.h), and fails alone. */
#ifndef UTIL_MEM_H
#define UTIL_MEM_H

#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t bytes);                      /* not zeroed */
void *mem_zalloc(size_t bytes);                     /* zeroed */
void *mem_array(size_t count, size_t size);         /* zeroed; overflow of count * size is fatal */
void *mem_grow(void *p, size_t count, size_t size); /* realloc */
char *mem_strdup(const char *s);                    /* NULL stays NULL */
char *mem_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* NULL: there is no memory (or count * size overflows); mem_try_grow then leaves p as it is. */
void *mem_try_alloc(size_t bytes);              /* not zeroed */
void *mem_try_array(size_t count, size_t size); /* zeroed */
void *mem_try_grow(void *p, size_t count, size_t size);

/* Bytes that the process may still take: the machine's free memory, or its control group's limit
 * if that is less. UINT64_MAX: the system does not say. */
uint64_t mem_available(void);

#endif
