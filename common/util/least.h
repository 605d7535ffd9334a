/* least.h - the smaller and the larger of two numbers. */
#ifndef UTIL_LEAST_H
#define UTIL_LEAST_H

#include <stdint.h>

static inline uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t most(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

#endif
