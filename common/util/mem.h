/* mem.h - allocation that does not return NULL: running out of memory is fatal and says so. For sizes that a peer or a file
 * chooses, check them against their limit first. */
#ifndef UTIL_MEM_H
#define UTIL_MEM_H

#include <stddef.h>

void *mem_alloc(size_t bytes);                     /* not zeroed */
void *mem_zalloc(size_t bytes);                    /* zeroed */
void *mem_array(size_t count, size_t size);        /* zeroed; overflow of count * size is fatal */
void *mem_grow(void *p, size_t count, size_t size); /* realloc */
char *mem_strdup(const char *s);                   /* NULL stays NULL */
char *mem_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
