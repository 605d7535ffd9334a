/* arrive.h - open loop: computes when requests are due. During a ramp the rate grows linearly from
 * 0, and the random gaps scale with it. */
#ifndef PDBENCH_ARRIVE_H
#define PDBENCH_ARRIVE_H

#include "draw.h"
#include "options.h"

struct arrive {
	struct draw draw;
	double rate, ramp_s, sum; /* sum: requests due so far, as a real number */
	int poisson;
};

static inline void arrive_init(struct arrive *a, const struct bench_options *o)
{
	*a = (struct arrive){.draw = {draw_mix(o->seed ^ 0x61727276u)},
	                     .rate = o->rate,
	                     .ramp_s = (double)o->ramp_us / 1e6,
	                     .poisson = o->arrivals == ARRIVE_POISSON};
}

/* The next due time, in µs since the run began. */
static inline uint64_t arrive_next(struct arrive *a)
{
	a->sum += a->poisson ? draw_exponential(&a->draw) : 1;
	double whole = a->rate * a->ramp_s / 2, t; /* requests during the ramp */
	if (a->sum < whole)
		t = sqrt(2 * a->ramp_s * a->sum / a->rate);
	else
		t = a->ramp_s / 2 + a->sum / a->rate;
	return (uint64_t)(t * 1e6);
}

#endif
