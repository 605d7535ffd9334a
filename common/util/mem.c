/* mem.c - see mem.h. */
#include "util/mem.h"
#include "util/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *present(void *p, size_t bytes)
{
	if (!p)
		check_fatal("out of memory while asking for %zu bytes: give the process more, or lower the "
		            "configured sizes",
		            bytes);
	return p;
}

void *mem_try_alloc(size_t bytes)
{
	return malloc(bytes ? bytes : 1);
}

void *mem_try_array(size_t count, size_t size)
{
	return calloc(count ? count : 1, size ? size : 1);
}

void *mem_try_grow(void *p, size_t count, size_t size)
{
	return reallocarray(p, count ? count : 1, size ? size : 1);
}

void *mem_alloc(size_t bytes)
{
	return present(mem_try_alloc(bytes), bytes);
}

void *mem_zalloc(size_t bytes)
{
	return present(calloc(1, bytes ? bytes : 1), bytes);
}

void *mem_array(size_t count, size_t size)
{
	return present(mem_try_array(count, size), count * size);
}

void *mem_grow(void *p, size_t count, size_t size)
{
	return present(mem_try_grow(p, count, size), count * size);
}

char *mem_strdup(const char *s)
{
	return s ? present(strdup(s), strlen(s)) : NULL;
}

char *mem_printf(const char *fmt, ...)
{
	char *s = NULL;
	va_list ap;
	va_start(ap, fmt);
	int n = vasprintf(&s, fmt, ap);
	va_end(ap);
	return n < 0 ? present(NULL, 0) : s;
}
