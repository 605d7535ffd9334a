/* sample_edit.h - a request's changes to the logits before each draw: penalties, biased, allowed
 * and forbidden tokens, a minimum length. It builds the lists of struct kern_draw, which has the
 * formulas. Forbidden tokens are the last token of each bad word whose other tokens end the answer,
 * and tokens that would end the answer before min_tokens. Seen tokens are those of the answer, and
 * with a repetition penalty those of the prompt.
 *
 * Everything is a function of the request and its tokens: any worker that has them continues
 * exactly, after a hand-over or a preemption. Counts are kept incrementally: the cost of a draw
 * depends on the number of distinct penalised tokens, not on the length. */
#ifndef ENGINE_SAMPLE_EDIT_H
#define ENGINE_SAMPLE_EDIT_H

#include <stddef.h>
#include <stdint.h>

/* The arrays must outlive the edit. Ids beyond the vocabulary are ignored. */
struct sample_edit_opts {
	uint32_t vocab;
	/* of prompt and answer together; bounds the memory, about 16 bytes per distinct token */
	uint32_t tokens_max;
	float repetition;          /* 1 or 0: off */
	float presence, frequency; /* 0: off */
	uint32_t min_tokens;       /* of the answer, before it may end with one of `ends` */
	const uint32_t *ends[2];   /* ids that end the answer, two lists */
	size_t n_ends[2];
	const uint32_t *bias_ids; /* (n_bias) */
	const float *bias;        /* (n_bias) */
	size_t n_bias;
	const uint32_t *allowed; /* ids */
	size_t n_allowed;        /* 0: all ids are allowed */
	/* bad words one after another: the number of tokens, then the tokens */
	const uint32_t *bad;
	size_t n_bad; /* elements of `bad` */
};

struct sample_edit;

/* NULL if the options change nothing. */
struct sample_edit *sample_edit_new(const struct sample_edit_opts *o);
void sample_edit_destroy(struct sample_edit **e);
/* 1 if `bad` is well formed: only complete words of 1 token or more. */
int sample_edit_bad_valid(const uint32_t *bad, size_t n);

/* A bit per allowed id, as in struct engine_draw; NULL: all are allowed. */
const uint64_t *sample_edit_allowed(const struct sample_edit *e);
/* 1: what is forbidden depends on the latest token (bad words of several tokens), so that a draw
 * cannot be prepared while it is pending. */
int sample_edit_needs_latest(const struct sample_edit *e);
/* Writes what e adds to d's result besides masks: lists from words[*at] on, advancing *at, and the
 * penalties. before: as in draw_write. Later calls for the same request must not have fewer tokens,
 * not counting drafted ones. */
struct engine_draw;
struct kern_draw;
void sample_edit_write(struct sample_edit *e, const struct engine_draw *d,
                       const struct kern_draw *before, struct kern_draw *ret, uint32_t *words,
                       uint32_t *at);
/* Upper bound of the words that sample_edit_write needs; again: as in draw_words. */
size_t sample_edit_words(struct sample_edit *e, const struct engine_draw *d, int again);

#endif
