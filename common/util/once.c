/* once.c - see once.h. */
#include "util/once.h"
#include "util/clock.h"

#include <xxhash.h>

int once_may_log(struct once *o, const void *what, size_t len)
{
	uint64_t hash = XXH3_64bits(what, len), now = clock_us();
	uint64_t from = o->full_us > now ? o->full_us : now;
	if (from - now > (ONCE_BURST - 1) * ONCE_US)
		return 0; /* not kept: it is logged when it comes again */
	for (unsigned i = 0; i < o->n && i < ONCE_KEPT; i++)
		if (o->kept[i] == hash)
			return 0;
	o->kept[o->n++ % ONCE_KEPT] = hash;
	o->full_us = from + ONCE_US;
	return 1;
}
