/* fast_record.h - the quantised activations of one group of 32 for a tile of R rows. A value is
 * RADIX * hi + lo, two signed bytes, times the group's scale. The record is int8 hi[R][32], int8
 * lo[R][32] (AVX2: R rows of 32 int16 instead, see fast_avx2.c), then R of each further field: the
 * offsets below are per row, field f starts at f * R.
 *
 * |RADIX hi + lo| <= LEVELS, so with unsigned weight codes up to 255, before subtracting their zero
 * point, a group's sum stays below 32 * 255 * 16319 < 2^27 and cannot overflow int32. */
#ifndef CPU_FAST_RECORD_H
#define CPU_FAST_RECORD_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/panel.h"

#define TILE_ROWS CPU_TILE_ROWS

static inline __attribute__((always_inline)) void fetch(const unsigned char *at, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 64)
		__builtin_prefetch(at + i);
}

/* Prefetches in a stream of weights, FETCH_AHEAD bytes after `at`. Hardware prefetches only within
 * a 4 KiB page: without this one row reaches 78 % of the memory bandwidth, and a few rows, which
 * compute between reads, less. The first rows that read a panel prefetch; the others find it in the
 * cache. Shorter and longer distances are both slower. */
enum { FETCH_AHEAD = 8192 };
static inline __attribute__((always_inline)) void fetch_ahead(const unsigned char *at, size_t bytes)
{
	fetch(at + FETCH_AHEAD, bytes);
}

enum {
	LO_BITS = 7,
	RADIX = 1 << LO_BITS,
	LEVELS = 127 * RADIX + RADIX / 2 - 1,
	REC_LO = 32,
	REC_D = 64,    /* float scale */
	REC_DSUM = 68, /* float scale * sum of the values */
	/* int32 -8 * sum: the sum of zero points for Q4_0 and (twice) Q5_0 and MXFP4 */
	REC_Z8 = 72,
	REC_Z128 = 76, /* int32 -128 * sum: for Q8_0 */
	REC_Z32 = 80,  /* int32 -32 * sum: for Q6_K, first halves of all rows, then second halves */
	REC_BYTES = 88
};

#endif
