/* units.h - the memory tier's allocator: ranges of memory cut into units of 64 KiB, up to the
 * capacity; it can grow and shrink. A range can be pinned for devices (kernels/copy.h), a slice of
 * 256 MiB at a time; the last unit of a slice is not used, so that no copy is of two slices.
 *
 * A range is touched completely before its units count, so a capacity either exists or is an error
 * with a message; no put runs out of memory later. Child processes do not inherit it. Addresses
 * stay valid until units_fini; shrinking returns memory to the system page by page, unless it is
 * pinned: then at the end. All calls except units_reserve, units_touch and units_pin need one lock
 * of the caller's. */
#ifndef STORAGE_UNITS_H
#define STORAGE_UNITS_H

#include "kernels/copy.h"
#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

#define UNIT_BYTES ((size_t)65536)
#define UNIT_RANGES_MAX 64
#define SLICE_UNITS ((size_t)4096)

struct units_range {
	unsigned char *at;
	size_t units;  /* with those that are not used */
	size_t pinned; /* of these, whole slices from the first on */
};

struct units {
	size_t target; /* desired number of units */
	/* existing units, free or taken; exceeds target only until taken ones are given back */
	size_t total;
	size_t n_free, n_spare;
	unsigned char **free; /* stack (mapped) */
	/* stack (mapped): addresses of units without memory, left from a larger target */
	unsigned char **spare;
	size_t mapped; /* of all ranges */
	struct units_range range[UNIT_RANGES_MAX];
	unsigned n_ranges;
	/* NULL: nothing is pinned. Else pages stay until units_fini */
	const struct kern_copies *pinned_by;
};

/* Allocates and touches n units: about a second per few gigabytes. ERR_NOMEM: not enough memory. */
int units_reserve(size_t n, struct units_range *ret, struct err *err);
/* Pins a slice of the first range that is not pinned whole; pinned_by is set. 1: there may be more,
 * 0: all is pinned, or ERR_IO. No range is added meanwhile. */
int units_pin(struct units *u, int device, struct err *err);
size_t units_pinned(const struct units *u); /* bytes */
/* gives a spare unit memory again */
void units_touch(unsigned char *at);

void units_init(struct units *u);
void units_fini(struct units *u);
unsigned char *units_take(struct units *u); /* requires a free one */
void units_give(struct units *u, unsigned char *at);
/* Units to reserve before the total can be n; 0: the spare ones suffice. */
size_t units_missing(const struct units *u, size_t n);
/* adds a range of free units; n_ranges must be below UNIT_RANGES_MAX */
void units_add(struct units *u, struct units_range r);
/* Takes at most max spare units, up to the target; the caller touches them and passes them to
 * units_back. */
size_t units_spare(struct units *u, size_t max, unsigned char **ret);
void units_back(struct units *u, unsigned char *const *at, size_t n);
/* Returns the memory of at most max free units to the system while total exceeds target; returns
 * their number. */
size_t units_retire(struct units *u, size_t max);

#endif
