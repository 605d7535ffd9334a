/* cuts.h - finds positions where cutting a text does not change its tokens: between two characters
 * that are adjacent in no token. */
#ifndef TEXT_CUTS_H
#define TEXT_CUTS_H

#include "text/vocab.h"

#include <stddef.h>
#include <stdint.h>

enum { CUTS_BITS = 20 };

/* A set of character pairs that may be adjacent in a token, with false positives but no false
 * negatives. */
struct text_cuts {
	uint64_t ascii[128][2];
	uint64_t pairs[1 << (CUTS_BITS - 6)];
};

/* Adds all pairs of adjacent characters of a token's text. */
void cuts_add(struct text_cuts *c, const char *text, size_t len);
/* Length of the first stretch of text that must not be cut. text: well-formed UTF-8; len > 0. */
size_t cuts_next(const struct text_cuts *c, const char *text, size_t len);

#endif
