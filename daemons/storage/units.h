/* units.h - the memory tier's room: ranges of memory cut into units of 64 KiB, as many as the capacity says; it can grow and shrink.
 *
 * Addresses stay good until units_fini; what shrinks goes back to the system page by page. Every call under one lock of the caller's. */
#ifndef STORAGE_UNITS_H
#define STORAGE_UNITS_H

#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

#define UNIT_BYTES ((size_t)65536)
#define UNIT_RANGES_MAX 64

struct units {
	size_t target;             /* as many as there may be */
	size_t total;              /* as there are: free or taken; more than target only while taken ones must come back first */
	size_t n_free, n_spare;
	unsigned char **free;      /* stack (mapped) */
	unsigned char **spare;     /* stack (mapped): units without memory behind them, left from a larger target */
	size_t mapped;             /* n_free + n_spare + taken ones */
	struct {
		unsigned char *at;
		size_t bytes;
	} range[UNIT_RANGES_MAX];
	unsigned n_ranges;
};

int units_init(struct units *u, size_t n, struct err *err);
void units_fini(struct units *u);
unsigned char *units_take(struct units *u);                 /* there is a free one */
void units_give(struct units *u, unsigned char *at);
/* Larger: at once, or an error and nothing changed. Smaller: sets the target; units_retire does it. */
int units_resize(struct units *u, size_t n, struct err *err);
/* Gives the memory of at most max free units back as long as there are too many; how many. */
size_t units_retire(struct units *u, size_t max);

#endif
