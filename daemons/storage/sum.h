/* sum.h - the checksum of stored blocks (XXH3, 128 bits), alone or combined with a copy. */
#ifndef STORAGE_SUM_H
#define STORAGE_SUM_H

#include "tier.h"

/* The hash's state; sum.c checks that it fits. */
struct sum_state {
	_Alignas(64) unsigned char bytes[640];
};

void sum_begin(struct sum_state *s);
void sum_add(struct sum_state *s, const void *p, size_t n);
/* Hashes src and copies it to dst (stream_copy), chunk by chunk while it is in the cache. If the
 * source changes meanwhile, the sum will not match. */
void sum_add_copy(struct sum_state *s, void *dst, const void *src, size_t n);
struct tier_sum sum_end(const struct sum_state *s);
struct tier_sum sum_spans(const struct tier_span *span, unsigned n);

static inline int sum_equal(struct tier_sum a, struct tier_sum b)
{
	return a.lo == b.lo && a.hi == b.hi;
}

#endif
