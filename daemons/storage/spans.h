/* spans.h - a walk over a row of spans, for copies between rows that are cut at different
 * places. */
#ifndef STORAGE_SPANS_H
#define STORAGE_SPANS_H

#include "tier.h"

struct span_walk {
	const struct tier_span *span; /* what is left of the row */
	unsigned n;
	size_t used; /* of the first */
};

/* Bytes that lie in a row from here on; 0: the end. */
static inline size_t span_left(struct span_walk *w)
{
	for (; w->n && w->used == w->span->bytes; w->span++, w->n--)
		w->used = 0;
	return w->n ? w->span->bytes - w->used : 0;
}

/* Goes on by so many, at most span_left; where they are. */
static inline unsigned char *span_take(struct span_walk *w, size_t bytes)
{
	unsigned char *at = w->span->at + w->used;
	w->used += bytes;
	return at;
}

#endif
