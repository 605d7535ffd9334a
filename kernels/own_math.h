/* own_math.h - functions whose results decide tokens. The last bit of a libm result depends on the
 * library version and the CPU; additions, products, divisions and what IEEE 754 defines exactly
 * (ldexp, nearbyint, sqrt, fma, floor) are the same everywhere, given -ffp-contract=off
 * (Makefile). */
#ifndef KERNELS_OWN_MATH_H
#define KERNELS_OWN_MATH_H

#include "kernels/tensor.h"

#include <math.h>
#include <stdint.h>

/* ln 2 in two parts; products of the first with an exponent are exact */
#define OWN_LN2_HIGH 0.693147180369123816490
#define OWN_LN2_LOW 1.90821492927058770002e-10

/* e^x with relative error below 1e-15; x is clamped to -700 .. 700 */
KERN_INLINE double own_exp(double x)
{
	static const double inverse[] = {1,
	                                 1,
	                                 1.0 / 2,
	                                 1.0 / 6,
	                                 1.0 / 24,
	                                 1.0 / 120,
	                                 1.0 / 720,
	                                 1.0 / 5040,
	                                 1.0 / 40320,
	                                 1.0 / 362880,
	                                 1.0 / 3628800,
	                                 1.0 / 39916800,
	                                 1.0 / 479001600,
	                                 1.0 / 6227020800.0};
	if (isnan(x))
		return x;
	x = x < -700 ? -700 : x > 700 ? 700 : x;
	double n = nearbyint(x * 1.4426950408889634), r = x - n * OWN_LN2_HIGH, sum = 0;
	r -= n * OWN_LN2_LOW;
	for (int i = sizeof inverse / sizeof *inverse; i-- > 0;)
		sum = sum * r + inverse[i];
	return ldexp(sum, (int)n);
}

/* ln x with relative error below 3e-16; -infinity for 0, NaN for negative x. With x = 2^e (1 + f)
 * and s = f / (2 + f), ln(1 + f) = 2 (s + s^3 / 3 + s^5 / 5 + ...), truncated after s^15 with
 * coefficients that compensate for the rest. */
KERN_INLINE double own_log(double x)
{
	if (!(x > 0) || isinf(x))
		return x == 0 ? -INFINITY : x < 0 ? NAN : x;
	union {
		double d;
		uint64_t u;
	} m = {x < 0x1p-1022 ? x * 0x1p54 : x};
	double e = (double)((int64_t)(m.u >> 52) - 1022 - (x < 0x1p-1022 ? 54 : 0));
	m.u = (m.u & 0xfffffffffffff) | 0x3fe0000000000000; /* in [1/2, 1) */
	if (m.d < 0.70710678118654752440) {
		m.d *= 2;
		e--;
	}
	double f = m.d - 1, s = f / (2 + f), z = s * s, w = z * z, half = 0.5 * f * f;
	double even = w * (3.999999999940941908e-01 +
	                   w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
	double odd = z * (6.666666666666735130e-01 +
	                  w * (2.857142874366239149e-01 +
	                       w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
	return e * OWN_LN2_HIGH - ((half - (s * (half + (even + odd)) + e * OWN_LN2_LOW)) - f);
}

/* b^y for b > 0, with relative error below 1e-15 (1 + |y ln b|) */
KERN_INLINE double own_pow(double b, double y)
{
	return own_exp(y * own_log(b));
}

/* A fraction in [0, 1) from a seed and a draw's index (64 bits each, low word first): the upper 53
 * of the first 64 bits of Philox4x32-10 with counter (index, 0, 0) and the seed as key. */
KERN_INLINE double own_uniform(const uint32_t seed[2], const uint32_t index[2])
{
	uint32_t c0 = index[0], c1 = index[1], c2 = 0, c3 = 0, k0 = seed[0], k1 = seed[1];
	for (int round = 0; round < 10; round++) {
		uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
		c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
		c1 = (uint32_t)b;
		c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
		c3 = (uint32_t)a;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	return (double)(((uint64_t)c1 << 32 | c0) >> 11) * 0x1p-53;
}

/* Sine and cosine of an angle that the caller has rounded to float, as the models' own code does.
 * Error below 2e-9 for angles up to 1e7. */
KERN_INLINE void own_sin_cos(float angle, float *sin_out, float *cos_out)
{
	double x = (double)angle, n = nearbyint(x * 0.63661977236758134308);
	double r = x - n * 1.57079632679489655800, z = r * r;
	double sn = r * (1 + z * (-1.0 / 6 +
	                          z * (1.0 / 120 + z * (-1.0 / 5040 +
	                                                z * (1.0 / 362880 + z * (-1.0 / 39916800))))));
	double cs = 1 + z * (-1.0 / 2 + z * (1.0 / 24 + z * (-1.0 / 720 +
	                                                     z * (1.0 / 40320 + z * (-1.0 / 3628800 +
	                                                                             z / 479001600)))));
	switch ((int64_t)n & 3) {
	case 0: *sin_out = (float)sn, *cos_out = (float)cs; break;
	case 1: *sin_out = (float)cs, *cos_out = (float)-sn; break;
	case 2: *sin_out = (float)-sn, *cos_out = (float)-cs; break;
	default: *sin_out = (float)-cs, *cos_out = (float)sn;
	}
}

#endif
