/* arena.c - a chain of chunks; an allocation above a quarter of a chunk gets its own. */
#include "util/arena.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES 8192u

struct chunk {
	struct chunk *next;
	size_t used, size;
	_Alignas(16) unsigned char data[];
};

struct arena {
	struct chunk *head;
};

struct arena *arena_new(void)
{
	return mem_zalloc(sizeof(struct arena));
}

void arena_destroy(struct arena **a)
{
	if (!*a)
		return;
	for (struct chunk *c = (*a)->head, *next; c; c = next) {
		next = c->next;
		free(c);
	}
	free(*a);
	*a = NULL;
}

void *arena_try_alloc(struct arena *a, size_t bytes)
{
	CHECK(bytes < (size_t)1 << 40);
	bytes = (bytes + 15) & ~(size_t)15;
	struct chunk *c = a->head;
	if (!c || c->size - c->used < bytes) {
		size_t size = bytes > CHUNK_BYTES / 4 ? bytes : CHUNK_BYTES;
		c = mem_try_array(1, sizeof *c + size);
		if (!c)
			return NULL;
		c->size = size;
		if (size != CHUNK_BYTES && a->head) {
			/* insert a large piece behind the open chunk, which stays in use */
			c->next = a->head->next;
			a->head->next = c;
		} else {
			c->next = a->head;
			a->head = c;
		}
	}
	void *p = c->data + c->used;
	c->used += bytes;
	return p;
}

void *arena_alloc(struct arena *a, size_t bytes)
{
	void *p = arena_try_alloc(a, bytes);
	if (!p)
		check_fatal("out of memory while asking for %zu bytes: give the process more", bytes);
	return p;
}

void *arena_array(struct arena *a, size_t count, size_t size)
{
	CHECK(!size || count < ((size_t)1 << 40) / size);
	return arena_alloc(a, count * size);
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
	va_list ap, again;
	va_start(ap, fmt);
	va_copy(again, ap);
	int n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	char *p = arena_alloc(a, n < 0 ? 1 : (size_t)n + 1);
	if (n >= 0)
		vsnprintf(p, (size_t)n + 1, fmt, again);
	va_end(again);
	return p;
}
