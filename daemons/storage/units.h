/* units.h - the memory tier's room: ranges of memory cut into units of 64 KiB, as many as the
 * capacity says; it can grow and shrink.
 *
 * Memory is the system's until it is in use no longer: a range is touched as a whole before its
 * units count, so that a capacity is there, or is an error with a sentence, and no put finds later
 * that it is not. A child process has none of it. Addresses stay good until units_fini; what
 * shrinks goes back to the system page by page. Every call but units_reserve and units_touch is
 * under one lock of the caller's. */
#ifndef STORAGE_UNITS_H
#define STORAGE_UNITS_H

#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

#define UNIT_BYTES ((size_t)65536)
#define UNIT_RANGES_MAX 64

struct units_range {
	unsigned char *at;
	size_t units;
};

struct units {
	size_t target; /* as many as there may be */
	/* as there are: free or taken; more than target only while taken ones must come back first */
	size_t total;
	size_t n_free, n_spare;
	unsigned char **free; /* stack (mapped) */
	/* stack (mapped): units without memory behind them, left from a larger target */
	unsigned char **spare;
	size_t mapped; /* of all ranges */
	struct units_range range[UNIT_RANGES_MAX];
	unsigned n_ranges;
};

/* n units that are there: a second for some gigabytes. ERR_NOMEM: they are not. */
int units_reserve(size_t n, struct units_range *ret, struct err *err);
/* a unit that was spare has memory again */
void units_touch(unsigned char *at);

void units_init(struct units *u);
void units_fini(struct units *u);
unsigned char *units_take(struct units *u); /* there is a free one */
void units_give(struct units *u, unsigned char *at);
/* How many are to be reserved before there can be n; 0: spare ones do. */
size_t units_missing(const struct units *u, size_t n);
/* all free; n_ranges is below UNIT_RANGES_MAX */
void units_add(struct units *u, struct units_range r);
/* At most max spare ones, for a total up to the target: to be touched and given to units_back. */
size_t units_spare(struct units *u, size_t max, unsigned char **ret);
void units_back(struct units *u, unsigned char *const *at, size_t n);
/* Gives the memory of at most max free units back as long as there are too many; how many. */
size_t units_retire(struct units *u, size_t max);

#endif
