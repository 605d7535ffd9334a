/* near.h - what a mistyped word may have meant. */
#ifndef UTIL_NEAR_H
#define UTIL_NEAR_H

struct nearest {
	const char *word, *best; /* best NULL: none is near */
	unsigned distance;       /* of best */
};

/* best becomes this one if it is nearer than all before: at most 3 letters to insert, delete,
 * replace or swap, one for about three that the word has. {.word = ...}: none was tried yet. */
void nearest_try(struct nearest *n, const char *candidate);

#endif
