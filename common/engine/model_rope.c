/* model_rope.c - the rules that scale a model's rotary frequencies for longer contexts. Nothing
 * here fails. */
#include "engine/family.h"
#include "kernels/own_math.h"

#include <math.h>

void model_rope_default(struct model_rope *r, uint32_t dims, double base)
{
	r->scale = 1.0f;
	for (uint32_t i = 0; i < dims / 2; i++)
		r->inv_freq[i] = (float)own_pow(base, -2.0 * i / dims);
}

void model_rope_linear(struct model_rope *r, uint32_t dims, double factor)
{
	for (uint32_t i = 0; i < dims / 2; i++)
		r->inv_freq[i] = (float)(r->inv_freq[i] / factor);
}

/* Long waves are stretched by factor, short ones are kept, those between are a mix of both. */
void model_rope_llama3(struct model_rope *r, uint32_t dims, double factor, double low, double high,
                       double original)
{
	for (uint32_t i = 0; i < dims / 2; i++) {
		double f = r->inv_freq[i], wave = 2.0 * M_PI / f;
		double t = (original / wave - low) / (high - low);
		if (wave > original / low)
			f /= factor;
		else if (wave >= original / high)
			f = (1.0 - t) * f / factor + t * f;
		r->inv_freq[i] = (float)f;
	}
}

/* YaRN (arXiv:2309.00071): a pair that rotates more than beta_fast times within the original length
 * keeps its frequency, one that rotates less than beta_slow times is stretched by factor, and those
 * between are mixed along a ramp over the pairs. */
void model_rope_yarn(struct model_rope *r, uint32_t dims, const struct model_yarn *y)
{
	double low = dims * own_log(y->original / (2.0 * M_PI * y->beta_fast)) /
	             (2.0 * own_log(y->base));
	double high = dims * own_log(y->original / (2.0 * M_PI * y->beta_slow)) /
	              (2.0 * own_log(y->base));
	low = fmax(y->truncate ? floor(low) : low, 0);
	high = fmin(y->truncate ? ceil(high) : high, (double)dims - 1);
	if (low == high)
		high += 0.001;
	for (uint32_t i = 0; i < dims / 2; i++) {
		double f = own_pow(y->base, -2.0 * i / dims),
			   g = fmin(fmax((i - low) / (high - low), 0), 1);
		r->inv_freq[i] = (float)((1.0 - g) * f + g * f / y->factor);
	}
	r->scale = (float)y->attention_factor;
}

/* LongRoPE (arXiv:2402.13753) has two lists of divisors: for contexts up to the original length,
 * and for longer ones. The model's context decides, not a sequence's length: a sequence that grows
 * past the original length would leave keys in the cache that were rotated by the other list, and a
 * row's bits would depend on the rows around it. vLLM (max_model_len) and llama.cpp (n_ctx) do the
 * same. */
int model_rope_is_long(const struct model_conf *c, double original)
{
	return c->context > original;
}

double model_rope_longrope_scale(double factor, double original)
{
	return factor > 1 ? sqrt(1.0 + own_log(factor) / own_log(original)) : 1.0;
}

double model_rope_mscale(double factor, double m)
{
	return factor > 1 ? 0.1 * m * own_log(factor) + 1.0 : 1.0;
}

void model_rope_stretch(struct model_conf *c, double original, double factor)
{
	double tokens = (original > 0 ? original : c->family->local_rope ? 0 : c->context) * factor;
	if (tokens > c->context)
		c->context = tokens < MODEL_CONTEXT_MAX ? (uint32_t)tokens : MODEL_CONTEXT_MAX;
}
