/* spans.h - iterating over lists of spans, for copies between lists with different boundaries. */
#ifndef STORAGE_SPANS_H
#define STORAGE_SPANS_H

#include "tier.h"

struct span_walk {
	const struct tier_span *span; /* remaining spans */
	unsigned n;
	size_t used; /* bytes used of the first */
};

/* Contiguous bytes available at the current position; 0: the end. */
static inline size_t span_left(struct span_walk *w)
{
	for (; w->n && w->used == w->span->bytes; w->span++, w->n--)
		w->used = 0;
	return w->n ? w->span->bytes - w->used : 0;
}

/* Advances by `bytes`, at most span_left; returns the old position. */
static inline unsigned char *span_take(struct span_walk *w, size_t bytes)
{
	unsigned char *at = w->span->at + w->used;
	w->used += bytes;
	return at;
}

#endif
