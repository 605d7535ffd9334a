/* draw.h - seeded random numbers: the same seed gives the same run on every machine. */
#ifndef PDBENCH_DRAW_H
#define PDBENCH_DRAW_H

#include "options.h"

#include <math.h>

struct draw {
	uint64_t state;
};

/* The finalizer of splitmix64: a permutation of the 64-bit numbers. */
static inline uint64_t draw_mix(uint64_t z)
{
	z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
	z = (z ^ z >> 27) * 0x94D049BB133111EBu;
	return z ^ z >> 31;
}

static inline uint64_t draw_u64(struct draw *d)
{
	return draw_mix(d->state += 0x9E3779B97F4A7C15u);
}

/* Uniform in (0, 1]. */
static inline double draw_unit(struct draw *d)
{
	return (double)((draw_u64(d) >> 11) + 1) * 0x1p-53;
}

static inline uint32_t draw_below(struct draw *d, uint32_t n)
{
	return (uint32_t)((draw_u64(d) >> 32) * n >> 32);
}

/* Exponential with mean 1. */
static inline double draw_exponential(struct draw *d)
{
	return -log(draw_unit(d));
}

static inline double draw_normal(struct draw *d)
{
	double r = sqrt(-2 * log(draw_unit(d)));
	return r * cos(2 * 3.14159265358979323846 * draw_unit(d));
}

static inline double draw_dist(struct draw *d, const struct dist *of)
{
	double v = of->a;
	if (of->kind == DIST_UNIFORM)
		v = of->a + floor(draw_unit(d) * (of->b - of->a + 1) * (1 - 1e-12));
	else if (of->kind == DIST_LOGNORMAL)
		v = of->a > 0 ? exp(log(of->a) - of->b * of->b / 2 + of->b * draw_normal(d)) : 0;
	return v > of->max ? of->max : v;
}

#endif
