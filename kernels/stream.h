/* stream.h - copying blocks past the cache. What is stored is not read again soon; not loading and
 * not keeping the overwritten lines leaves memory bandwidth and cache to the engine. */
#ifndef KERNELS_STREAM_H
#define KERNELS_STREAM_H

#include <stddef.h>
#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

/* Like memcpy; other threads see the bytes only after stream_end. ahead: prefetch distance in
 * bytes; 0: none. */
static inline void stream_copy_ahead(void *dst, const void *src, size_t n, size_t ahead)
{
#if defined(__x86_64__)
	unsigned char *d = dst;
	const unsigned char *s = src;
	size_t head = -(size_t)d & 15;
	if (n >= 256) {
		memcpy(d, s, head);
		d += head;
		s += head;
		n -= head;
		for (; n >= 64; n -= 64, d += 64, s += 64) {
			if (ahead)
				__builtin_prefetch(s + ahead);
			__m128i a = _mm_loadu_si128((const __m128i *)s),
					b = _mm_loadu_si128((const __m128i *)(s + 16));
			__m128i c = _mm_loadu_si128((const __m128i *)(s + 32)),
					e = _mm_loadu_si128((const __m128i *)(s + 48));
			_mm_stream_si128((__m128i *)d, a);
			_mm_stream_si128((__m128i *)(d + 16), b);
			_mm_stream_si128((__m128i *)(d + 32), c);
			_mm_stream_si128((__m128i *)(d + 48), e);
		}
	}
	memcpy(d, s, n);
#else
	(void)ahead;
	memcpy(dst, src, n);
#endif
}

static inline void stream_copy(void *dst, const void *src, size_t n)
{
	stream_copy_ahead(dst, src, n, 0);
}

/* Orders all earlier copies of this thread before its later stores. */
static inline void stream_end(void)
{
#if defined(__x86_64__)
	_mm_sfence();
#endif
}

#endif
