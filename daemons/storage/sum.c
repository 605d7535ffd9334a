/* sum.c - 128-bit XXH3 from libxxhash; on x86-64 the variant for the CPU is chosen at run time,
 * with the same result.
 *
 * It protects against changed memory and torn writes, not against forgery: anyone who can write a
 * store can write its checksums. Nothing here fails. */
#include "sum.h"
#include "kernels/stream.h"

#define XXH_STATIC_LINKING_ONLY /* the state's size */
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

/* Fits into the L1 cache between hashing and copying. */
#define CHUNK_BYTES 8192u

_Static_assert(sizeof(XXH3_state_t) <= sizeof(struct sum_state), "the hash's state does not fit");

void sum_begin(struct sum_state *s)
{
	XXH3_INITSTATE((XXH3_state_t *)s);
	XXH3_128bits_reset((XXH3_state_t *)s);
}

void sum_add(struct sum_state *s, const void *p, size_t n)
{
	XXH3_128bits_update((XXH3_state_t *)s, p, n);
}

void sum_add_copy(struct sum_state *s, void *dst, const void *src, size_t n)
{
	for (size_t at = 0; at < n; at += CHUNK_BYTES) {
		size_t part = n - at < CHUNK_BYTES ? n - at : CHUNK_BYTES;
		sum_add(s, (const char *)src + at, part);
		/* prefetches the next chunk while copying this one; otherwise its first read would stall in
		 * sum_add */
		stream_copy_ahead((char *)dst + at, (const char *)src + at, part, CHUNK_BYTES);
	}
}

struct tier_sum sum_end(const struct sum_state *s)
{
	XXH128_hash_t h = XXH3_128bits_digest((const XXH3_state_t *)s);
	return (struct tier_sum){.lo = h.low64, .hi = h.high64};
}

struct tier_sum sum_spans(const struct tier_span *span, unsigned n)
{
	struct sum_state s;
	sum_begin(&s);
	for (unsigned i = 0; i < n; i++)
		sum_add(&s, span[i].at, span[i].bytes);
	return sum_end(&s);
}
