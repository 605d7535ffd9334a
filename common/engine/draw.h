/* draw.h - what is asked of a row that goes to the head: a token, or how probable a given one was.
 * What is drawn, and how, is said at struct kern_draw (kernels/kernels.h); here it is put together
 * from a request's parameters and its tokens.
 *
 * Stateless: randomness is a function of (seed, token index), so a request samples the same
 * wherever and however often it runs; nothing needs to be carried over a hand-over. The order of
 * all that changes a distribution is vLLM's, which has no typical_p: that stands where Hugging
 * Face's generate() has it. */
#ifndef ENGINE_DRAW_H
#define ENGINE_DRAW_H

#include "engine/sample_edit.h"
#include "kernels/kernels.h"

#include <stddef.h>
#include <stdint.h>

struct sample_params {
	float temperature; /* 0: greedy; 0 .. 100 */
	float top_p;       /* (0, 1]; 1: off */
	float min_p;       /* [0, 1]; 0: off */
	uint32_t top_k;    /* 0: off */
	uint64_t seed;
	int32_t logprobs; /* number of alternatives wanted, -1: no logprobs at all */
	float typical_p;  /* (0, 1]; 1 or 0: off */
};

/* All 0 but `params`: the first token of an answer, nothing special. */
struct engine_draw {
	/* NULL: nothing is drawn, and `score` tells what is asked */
	const struct sample_params *params;
	uint64_t index; /* number of the token in the answer, 0 for the first */
	/* (vocab + 63) / 64 words, bit id % 64 of word id / 64: only ids whose bit is set can be
	 * drawn; NULL: all */
	const uint64_t *allowed;
	struct sample_edit *edit; /* NULL: none. With it: */
	/* (n_tokens) of prompt and answer so far, the last `drafted` of which may turn out to be
	 * others */
	const uint32_t *tokens;
	uint32_t prompt_tokens, n_tokens, drafted;
	/* 0: nothing is asked of the row; 1: the log-probability of `id`, with `logprobs`
	 * alternatives */
	int score;
	uint32_t id;
	int32_t logprobs;
};

/* Words of a batch that masks and lists of d take at most; of a row behind another one of the
 * same sequence (`again`), with the same edit. */
size_t draw_words(const struct engine_draw *d, uint32_t vocab, int again);
/* Writes these from words[*at] on, and *at is then behind them. before: what it gave for the row
 * before, of the same sequence, or NULL: what both have in common is not written again. */
struct kern_draw draw_write(const struct engine_draw *d, uint32_t vocab,
                            const struct kern_draw *before, uint32_t *words, uint32_t *at);

#endif
