/* act.h - enum kern_act in float32: about 4 rounding errors in addition to the exponential's. */
#ifndef CUDA_ACT_H
#define CUDA_ACT_H

#include "kernels/cuda/kernel.h"

/* All are g / (1 + exp(-z)) times something; GELU's tanh form too, with z twice the argument of the
 * tanh. */
static __device__ inline float act_mul(int act, float g, float u)
{
	float z = g;
	if (act == KERN_SWIGLU_CLAMPED) {
		g = g > 7 ? 7 : g; /* NaN stays */
		u = (u > 7 ? 7 : u < -7 ? -7 : u) + 1;
		z = 1.702f * g;
	} else if (act == KERN_GELU_TANH)
		z = 1.5957691216057308f * fmaf(0.044715f * g * g, g, g);
	return g / (1.0f + expf(-z)) * u;
}

#endif
