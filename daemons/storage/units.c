/* units.c - see units.h. Memory is reserved, not touched, so that a capacity costs nothing until blocks come. A bound that the system sets
 * is an error with a sentence; nothing else can fail. */
#include "units.h"

#include "util/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A range of n more units, all spare. */
static int map_range(struct units *u, size_t n, struct err *err)
{
	if (u->n_ranges == UNIT_RANGES_MAX)
		return err_set(err, ERR_FULL, "the memory tier was enlarged %d times already; a restart sets it to any size", UNIT_RANGES_MAX);
	unsigned char *at = mmap(NULL, n * UNIT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return err_set(err, ERR_NOMEM, "memory tier: cannot reserve %zu bytes: %s; lower memory_mb", n * UNIT_BYTES, strerror(errno));
	madvise(at, n * UNIT_BYTES, MADV_HUGEPAGE);   /* only faster */
	madvise(at, n * UNIT_BYTES, MADV_DONTFORK);   /* else each page written while a child lives is there twice */
	u->range[u->n_ranges].at = at;
	u->range[u->n_ranges++].bytes = n * UNIT_BYTES;
	u->mapped += n;
	u->free = mem_grow(u->free, u->mapped, sizeof *u->free);
	u->spare = mem_grow(u->spare, u->mapped, sizeof *u->spare);
	for (size_t i = 0; i < n; i++)
		u->spare[u->n_spare++] = at + (n - 1 - i) * UNIT_BYTES;   /* the lowest is taken first */
	return 0;
}

int units_resize(struct units *u, size_t n, struct err *err)
{
	size_t more = n > u->total ? n - u->total : 0;
	int r = more > u->n_spare ? map_range(u, more - u->n_spare, err) : 0;
	if (r != 0)
		return r;
	u->target = n;
	size_t low = u->n_free;
	for (; u->total < n; u->total++)
		u->free[u->n_free++] = u->spare[--u->n_spare];
	for (size_t i = low, k = u->n_free; k > i + 1; i++) {   /* they came off a stack: turned round again */
		unsigned char *at = u->free[i];
		u->free[i] = u->free[--k];
		u->free[k] = at;
	}
	return 0;
}

int units_init(struct units *u, size_t n, struct err *err)
{
	*u = (struct units){0};
	return units_resize(u, n, err);
}

void units_fini(struct units *u)
{
	for (unsigned i = 0; i < u->n_ranges; i++)
		munmap(u->range[i].at, u->range[i].bytes);
	free(u->free);
	free(u->spare);
	*u = (struct units){0};
}

unsigned char *units_take(struct units *u)
{
	return u->free[--u->n_free];
}

void units_give(struct units *u, unsigned char *at)
{
	u->free[u->n_free++] = at;
}

size_t units_retire(struct units *u, size_t max)
{
	size_t n = 0;
	for (; n < max && u->n_free && u->total > u->target; n++, u->total--) {
		unsigned char *at = u->free[--u->n_free];
		madvise(at, UNIT_BYTES, MADV_DONTNEED);
		u->spare[u->n_spare++] = at;
	}
	return n;
}
