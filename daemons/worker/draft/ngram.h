/* ngram.h - finds earlier occurrences of a sequence's last tokens in its own tokens (prompt
 * look-up).
 *
 * A look-up is O(1): each token is indexed once, when it comes, and at most NGRAM_STEPS places are
 * compared, of which NGRAM_TRIES may match. Memory is bounded: only the last NGRAM_WINDOW tokens
 * are indexed, in at most 8 bytes each. It keeps no tokens: the caller passes the same array,
 * longer each time. */
#ifndef DECODE_NGRAM_H
#define DECODE_NGRAM_H

#include <stddef.h>
#include <stdint.h>

#define NGRAM_MIN 1u
#define NGRAM_MAX 8u   /* of the shortest match */
#define NGRAM_LONG 32u /* longer matches count as this long */
#define NGRAM_TRIES 16u
#define NGRAM_STEPS 64u     /* places of other tokens may lie between them */
#define NGRAM_WINDOW 65536u /* a power of two */

struct ngram;

/* min: tokens of the shortest match, NGRAM_MIN .. NGRAM_MAX. */
struct ngram *ngram_new(uint32_t min);
void ngram_destroy(struct ngram **x);
/* Indexes the new ones of tokens[0 .. n), then looks for the last tokens: returns the length of the
 * longest match in the window (of equally long ones the latest), NGRAM_LONG at most, and in
 * *ret_next the place of the token that followed it, < n. 0: none. */
uint32_t ngram_find(struct ngram *x, const uint32_t *tokens, uint32_t n, uint32_t *ret_next);
/* Copies `count` tokens from place `next` on to out; after tokens[n - 1] it continues with what it
 * has copied, as text that repeats does. out may be tokens + n. */
void ngram_copy(const uint32_t *tokens, uint32_t n, uint32_t next, uint32_t count, uint32_t *out);

#endif
