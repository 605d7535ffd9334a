/* sample_edit.h - what one request changes in the logits before each of its draws: penalties,
 * favoured and forbidden tokens, a least length. It makes the lists of a struct kern_draw, where
 * the formulas stand: forbidden are the last token of a bad word whose rest the answer ends with,
 * and what would end the answer before min_tokens; seen are the tokens of the answer, and with a
 * repetition penalty of the prompt.
 *
 * Everything is a function of the request and its tokens: whoever has these continues exactly,
 * after a hand-over, a preemption or on another worker. Counts are kept up incrementally: a draw
 * costs a step for each different token that is penalised and none for the length. */
#ifndef ENGINE_SAMPLE_EDIT_H
#define ENGINE_SAMPLE_EDIT_H

#include <stddef.h>
#include <stdint.h>

/* The arrays must outlive what is made of them. Ids beyond the vocabulary mean nothing. */
struct sample_edit_opts {
	uint32_t vocab;
	/* of prompt and answer: bounds the memory, 16 bytes for each different one */
	uint32_t tokens_max;
	float repetition;          /* 1 or 0: off */
	float presence, frequency; /* 0: off */
	uint32_t min_tokens;       /* of the answer, before one of `ends` may come */
	const uint32_t *ends[2];   /* ids that end the answer, in two lists */
	size_t n_ends[2];
	const uint32_t *bias_ids; /* (n_bias) */
	const float *bias;        /* (n_bias) */
	size_t n_bias;
	const uint32_t *allowed; /* ids */
	size_t n_allowed;        /* 0: all are */
	/* bad words one after the other: how many tokens, then these */
	const uint32_t *bad;
	size_t n_bad; /* of the array */
};

struct sample_edit;

/* NULL if nothing would ever be changed. */
struct sample_edit *sample_edit_new(const struct sample_edit_opts *o);
void sample_edit_destroy(struct sample_edit **e);
/* Is `bad` well formed: whole lists of 1 token or more each? */
int sample_edit_bad_valid(const uint32_t *bad, size_t n);

/* A bit for each allowed id, as in struct engine_draw; NULL: all are. */
const uint64_t *sample_edit_allowed(const struct sample_edit *e);
/* What d, which names e, gets beside the masks: lists in words[*at ..], *at is then behind them,
 * and the penalties. before: as of draw_write. Later calls for the same request must not have
 * fewer tokens, drafted ones aside. */
struct engine_draw;
struct kern_draw;
void sample_edit_write(struct sample_edit *e, const struct engine_draw *d,
                       const struct kern_draw *before, struct kern_draw *ret, uint32_t *words,
                       uint32_t *at);
/* At most so many words; `again`: behind another row of the same sequence. */
size_t sample_edit_words(struct sample_edit *e, const struct engine_draw *d, int again);

#endif
