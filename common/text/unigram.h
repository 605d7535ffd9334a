/* unigram.h - SentencePiece's unigram model: of all ways to cut a text into tokens the one with
 * the highest sum of scores. */
#ifndef TEXT_UNIGRAM_H
#define TEXT_UNIGRAM_H

#include "text/vocab.h"

#include <stddef.h>
#include <stdint.h>

enum { UNIGRAM_UNKNOWN = UINT32_MAX };

struct quota;
struct unigram;

/* Over the tokens that vocab_find gives, but for special ones. Keeps v, which must outlive it. */
struct unigram *unigram_new(const struct vocab *v);
void unigram_destroy(struct unigram **u);

struct unigram_part {
	uint32_t id;         /* UNIGRAM_UNKNOWN: characters that no token matches */
	uint32_t begin, len; /* bytes of the text */
};

/* What one call, or many calls of one thread, need besides; zeroed to begin with. */
struct unigram_scratch {
	/* that it is taken from, 54 bytes for each of the longest text; NULL: none */
	struct quota *quota;
	struct unigram_step *steps;
	size_t steps_size;
	struct unigram_part *parts; /* the result; as many */
};
void unigram_scratch_fini(struct unigram_scratch *s);

/* The best path through well-formed UTF-8 of less than 2^31 bytes: parts in s->parts, in order,
 * their number returned. Neighbouring unknown characters are one part. Of two paths with one
 * score the one whose last token begins first wins, as in the reference. Time: characters times
 * the longest token. */
#define UNIGRAM_NO_MEMORY SIZE_MAX /* as the number */
size_t unigram_best(const struct unigram *u, struct unigram_scratch *s, const char *text,
                    size_t len);

#endif
