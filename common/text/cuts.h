/* cuts.h - places where a text may be cut without changing what it becomes: between two
 * characters that no token has side by side. */
#ifndef TEXT_CUTS_H
#define TEXT_CUTS_H

#include "text/vocab.h"

#include <stddef.h>
#include <stdint.h>

enum { CUTS_BITS = 20 };

/* A set of pairs of characters; what is not in it is surely no pair of any token, what is in it
 * may be none either. */
struct cuts {
	uint64_t ascii[128][2];
	uint64_t pairs[1 << (CUTS_BITS - 6)];
};

/* Adds the pairs within a token's text. */
void cuts_add(struct cuts *c, const char *text, size_t len);
/* The end of the first stretch of well-formed UTF-8 that stays together, len > 0. */
size_t cuts_next(const struct cuts *c, const char *text, size_t len);

#endif
