/* sample.h - from logits to a token id. Stateless: randomness is a function of (seed, token index), so a request samples the same
 * wherever and however often it runs; nothing needs to be carried over a hand-over.
 *
 * Order, as vLLM has it: logits -> (logprobs are taken here: of the model's own distribution, whatever follows) -> allowed ids, bad words, min_tokens -> logit_bias ->
 * repetition, frequency and presence penalty (all these: sample_edit.h) -> temperature -> min_p -> top_k -> top_p -> typical_p -> draw. vLLM has no typical_p; it stands where
 * Hugging Face's generate() has it. Each cut renormalises what is left for the next. typical_p keeps the ids whose surprise -ln p is nearest to the entropy, in order
 * of that distance (then ascending id), until their probabilities reach typical_p.
 *
 * temperature 0 (anything below 1e-5) is greedy: the lowest id among the largest logits, after the
 * edits and without the cuts. The draw is Philox4x32-10(key = seed, counter = index) -> [0,1) with
 * 53 bits, against the cumulative probabilities in descending order of (probability, then ascending
 * id), summed in double.
 *
 * A row of the model's logits with a NaN or plus infinity anywhere is not finite: the result says
 * so, and means nothing else. Minus infinity alone is a logit like others. */
#ifndef ENGINE_SAMPLE_H
#define ENGINE_SAMPLE_H

#include "engine/sample_edit.h"

#include <stddef.h>
#include <stdint.h>

#define SAMPLE_LOGPROBS_MAX 20

struct sample_params {
	float temperature;        /* 0: greedy; 0 .. 100 */
	float top_p;              /* (0, 1]; 1: off */
	float min_p;              /* [0, 1]; 0: off */
	uint32_t top_k;           /* 0: off */
	uint64_t seed;
	int32_t logprobs;         /* number of alternatives wanted, -1: no logprobs at all */
	float typical_p;          /* (0, 1]; 1 or 0: off */
};

struct sample_top {
	uint32_t id;
	float logprob;
};

struct sample_result {
	int not_finite; /* the logits are not; the rest is set (NaN counts as minus infinity) and
	                   must not be used */
	uint32_t id;
	float logprob;            /* natural log, of the unscaled distribution */
	uint32_t rank;            /* 1: the most probable */
	uint32_t n_top;
	struct sample_top top[SAMPLE_LOGPROBS_MAX];   /* descending */
};

/* Where a draw stands, and what holds for it alone. Zeroed: the first token of an answer, nothing special. */
struct sample_at {
	uint64_t index;           /* number of the token in the answer, 0 for the first */
	const uint64_t *allowed;  /* (vocab + 63) / 64 words, bit id % 64 of word id / 64: only ids whose bit is set can be drawn; NULL: all. Bits past the
	                           * vocabulary are ignored. If no allowed id has a finite logit the lowest allowed one is drawn; if none is allowed at all, 0 */
	struct sample_edit *edit; /* NULL: none. With it: */
	const uint32_t *tokens;   /* (n_tokens) of prompt and answer so far */
	uint32_t prompt_tokens, n_tokens;
};

struct sampler;               /* scratch for one vocabulary size; one thread at a time */

struct sampler *sampler_new(uint32_t vocab);
void sampler_destroy(struct sampler **s);
void sampler_draw(struct sampler *s, const float *logits, const struct sample_params *p, const struct sample_at *at, struct sample_result *ret);
/* Log-probability of a given token (echo, prompt logprobs) with the top alternatives; p->logprobs as above. */
void sampler_score(struct sampler *s, const float *logits, uint32_t id, int32_t logprobs, struct sample_result *ret);

#endif
