/* draw.h - what a row that goes to the head is asked for: to draw a token, or the log-probability
 * of a given one. struct kern_draw (kernels/batch.h) specifies what is drawn and how; this file
 * builds it from a request's parameters and its tokens.
 *
 * Stateless: randomness is a function of (seed, token index), so a request samples the same tokens
 * wherever and however often it runs, and a hand-over transfers no sampling state. The order of the
 * steps that change the distribution is vLLM's; vLLM has no typical_p, which is placed where
 * Hugging Face's generate() has it. */
#ifndef ENGINE_DRAW_H
#define ENGINE_DRAW_H

#include "engine/sample_edit.h"
#include "kernels/batch.h"

#include <stddef.h>
#include <stdint.h>

struct sample_params {
	float temperature; /* 0: greedy; 0 .. 100 */
	float top_p;       /* (0, 1]; 1: off */
	float min_p;       /* [0, 1]; 0: off */
	uint32_t top_k;    /* 0: off */
	uint64_t seed;
	int32_t logprobs; /* number of alternatives, -1: no logprobs */
	float typical_p;  /* (0, 1]; 1 or 0: off */
};

/* With all fields 0 except `params`: the first token of an answer, without restrictions. */
struct engine_draw {
	/* NULL: no token is drawn; `score` tells what is asked */
	const struct sample_params *params;
	uint64_t index; /* of the token in the answer, 0 for the first */
	/* (vocab + 63) / 64 words, bit id % 64 of word id / 64: only ids whose bit is set can be drawn;
	 * NULL: all */
	const uint64_t *allowed;
	struct sample_edit *edit; /* NULL: none. With it: */
	/* (n_tokens) prompt and answer so far; the last `drafted` are guesses that may be rejected */
	const uint32_t *tokens;
	uint32_t prompt_tokens, n_tokens, drafted;
	/* 1: another token, which only the device knows (engine_span.continues), follows them */
	uint32_t pending;
	/* without params. 0: nothing is asked of the row; 1: the log-probability of `id`, with
	 * `logprobs` alternatives */
	int score;
	uint32_t id;
	int32_t logprobs;
};

/* Upper bound of the words that d's masks and lists take in a batch. again: the row follows another
 * row of the same sequence, with the same edit. */
size_t draw_words(const struct engine_draw *d, uint32_t vocab, int again);
/* Writes masks and lists from words[*at] on and advances *at. before: the result for the previous
 * row of the same sequence, or NULL; what both have in common is not written again. */
struct kern_draw draw_write(const struct engine_draw *d, uint32_t vocab,
                            const struct kern_draw *before, uint32_t *words, uint32_t *at);

#endif
