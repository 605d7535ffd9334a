/* near.h - what a mistyped word may have meant. */
#ifndef UTIL_NEAR_H
#define UTIL_NEAR_H

/* Levenshtein distance of two short words; 100 if one has 63 bytes or more. */
unsigned word_distance(const char *a, const char *b);
/* Words farther away than that mean something else. */
#define WORD_NEAR_MAX 3u

#endif
