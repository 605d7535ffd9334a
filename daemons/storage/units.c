/* units.c - see units.h. Only the system's refusal of memory is an error, with a message. */
#include "units.h"

#include "util/check.h"
#include "util/machine.h"
#include "util/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define TOUCH_BYTES ((size_t)256 << 20) /* per call: bounds how long a signal waits */

/* Allocates the pages now. 0 or an errno. */
static int touch(unsigned char *at, size_t bytes)
{
	for (size_t done = 0, n; done < bytes; done += n) {
		n = bytes - done < TOUCH_BYTES ? bytes - done : TOUCH_BYTES;
		int r = madvise(at + done, n, MADV_POPULATE_WRITE), e = r == 0 ? 0 : errno;
		if (e == EINTR || e == EAGAIN)
			n = 0;
		else if (e == EINVAL) /* kernels before 5.14 */
			memset(at + done, 0, n);
		else if (e != 0)
			return e;
	}
	return 0;
}

int units_reserve(size_t n, struct units_range *ret, struct err *err)
{
	size_t units = n + (n + SLICE_UNITS - 2) / (SLICE_UNITS - 1), bytes = units * UNIT_BYTES;
	uint64_t there = machine_memory("");
	if (bytes > there)
		return err_set(err, ERR_NOMEM,
		               "memory tier: needs %zu MiB, %llu MiB are available; lower memory_mb",
		               bytes >> 20, (unsigned long long)(there >> 20));
	unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
	                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return err_set(err, ERR_NOMEM, "memory tier: cannot map %zu MiB: %s; lower memory_mb",
		               bytes >> 20, strerror(errno));
	madvise(at, bytes, MADV_HUGEPAGE); /* optional: faster */
	/* else each page written while a child lives would exist twice */
	madvise(at, bytes, MADV_DONTFORK);
	int e = touch(at, bytes);
	if (e != 0) {
		munmap(at, bytes);
		return err_set(err, ERR_NOMEM, "memory tier: cannot allocate %zu MiB: %s; lower memory_mb",
		               bytes >> 20, strerror(e));
	}
	*ret = (struct units_range){at, units, 0};
	return 0;
}

int units_pin(struct units *u, int device, struct err *err)
{
	char why[256] = "";
	for (unsigned i = 0; i < u->n_ranges; i++) {
		struct units_range *r = &u->range[i];
		size_t left = r->units - r->pinned, n = left < SLICE_UNITS ? left : SLICE_UNITS;
		if (!n)
			continue;
		if (u->pinned_by->pin(device, r->at + r->pinned * UNIT_BYTES, n * UNIT_BYTES, why,
		                      sizeof why))
			return err_set(err, ERR_IO, "%s", why);
		r->pinned += n;
		return 1;
	}
	return 0;
}

size_t units_pinned(const struct units *u)
{
	size_t units = 0;
	for (unsigned i = 0; i < u->n_ranges; i++)
		units += u->range[i].pinned;
	return units * UNIT_BYTES;
}

void units_touch(unsigned char *at)
{
	(void)touch(at, UNIT_BYTES); /* on failure the page is allocated at its first write */
}

void units_init(struct units *u)
{
	*u = (struct units){0};
}

void units_fini(struct units *u)
{
	for (unsigned i = 0; i < u->n_ranges; i++) {
		for (size_t at = 0; at < u->range[i].pinned; at += SLICE_UNITS)
			u->pinned_by->unpin(u->range[i].at + at * UNIT_BYTES);
		munmap(u->range[i].at, u->range[i].units * UNIT_BYTES);
	}
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

size_t units_missing(const struct units *u, size_t n)
{
	return n > u->total + u->n_spare ? n - u->total - u->n_spare : 0;
}

void units_add(struct units *u, struct units_range r)
{
	CHECK(u->n_ranges < UNIT_RANGES_MAX);
	u->range[u->n_ranges++] = r;
	u->mapped += r.units;
	u->free = mem_grow(u->free, u->mapped, sizeof *u->free);
	u->spare = mem_grow(u->spare, u->mapped, sizeof *u->spare);
	for (size_t i = r.units - 1; i-- > 0;) /* so that the lowest is taken first */
		if (i % SLICE_UNITS != SLICE_UNITS - 1) {
			units_give(u, r.at + i * UNIT_BYTES);
			u->total++;
		}
}

size_t units_spare(struct units *u, size_t max, unsigned char **ret)
{
	size_t n = 0;
	while (n < max && u->n_spare && u->total + n < u->target)
		ret[n++] = u->spare[--u->n_spare];
	return n;
}

void units_back(struct units *u, unsigned char *const *at, size_t n)
{
	for (; n > 0; u->total++)
		units_give(u, at[--n]);
}

size_t units_retire(struct units *u, size_t max)
{
	size_t n = 0;
	for (; n < max && u->n_free && u->total > u->target; n++, u->total--) {
		unsigned char *at = u->free[--u->n_free];
		if (!u->pinned_by) /* a device would go on using the old page */
			madvise(at, UNIT_BYTES, MADV_DONTNEED);
		u->spare[u->n_spare++] = at;
	}
	return n;
}
