/* unigram.h - SentencePiece's unigram model: among all ways to cut a text into tokens, finds the
 * one with the highest sum of scores. */
#ifndef TEXT_UNIGRAM_H
#define TEXT_UNIGRAM_H

#include "text/vocab.h"

#include <stddef.h>
#include <stdint.h>

enum { UNIGRAM_UNKNOWN = UINT32_MAX };

struct quota;
struct unigram;

/* Uses the tokens that vocab_find returns, except special ones. Keeps v, which must outlive it. */
struct unigram *unigram_new(const struct vocab *v);
void unigram_destroy(struct unigram **u);

struct unigram_part {
	uint32_t id;         /* UNIGRAM_UNKNOWN: characters that no token matches */
	uint32_t begin, len; /* in bytes */
};

/* Working memory of one call, or of all calls of one thread. Initialise it with zeros. */
struct unigram_scratch {
	/* accounts for the memory, about 54 bytes per byte of the longest text; NULL: no limit */
	struct quota *quota;
	struct unigram_step *steps;
	size_t steps_size;
	struct unigram_part *parts; /* the result; steps_size elements */
};
void unigram_scratch_fini(struct unigram_scratch *s);

/* Finds the best path through well-formed UTF-8 of less than 2^31 bytes: writes the parts to
 * s->parts, in order, and returns their number, or UNIGRAM_NO_MEMORY. Adjacent unknown characters
 * are one part. If two paths have the same score, the one whose last token starts first wins, as in
 * the reference. Time: characters times the longest token. */
#define UNIGRAM_NO_MEMORY SIZE_MAX
size_t unigram_best(const struct unigram *u, struct unigram_scratch *s, const char *text,
                    size_t len);

#endif
