/* ngram.h - where the last tokens of a sequence stood before: an index over its own tokens, for
 * prompt look-up.
 *
 * A look-up costs the same however long the sequence is: tokens are taken into the index once, as
 * they come, and NGRAM_STEPS places at most are looked at, of which NGRAM_TRIES may match.
 * Memory is bounded: only the last NGRAM_WINDOW tokens are remembered, in at most 8 bytes for
 * each. It keeps no tokens: the caller shows the same array, longer each time. */
#ifndef DECODE_NGRAM_H
#define DECODE_NGRAM_H

#include <stddef.h>
#include <stdint.h>

#define NGRAM_MIN 1u
#define NGRAM_MAX 8u   /* of the least match */
#define NGRAM_LONG 32u /* a match is not measured further */
#define NGRAM_TRIES 16u
#define NGRAM_STEPS 64u     /* places of other tokens may stand between them */
#define NGRAM_WINDOW 65536u /* a power of two */

struct ngram;

/* min: the least number of tokens that count as a match, NGRAM_MIN .. NGRAM_MAX. */
struct ngram *ngram_new(uint32_t min);
void ngram_destroy(struct ngram **x);
/* Takes in what is new of tokens[0 .. n) (what was shown before is not read again, but for
 * comparing), then looks for the last tokens: returns the length of the longest match that lies
 * in the window (of equally long ones the latest), NGRAM_LONG at most, and in *ret_next the
 * place of the token that followed it, < n. 0: none. */
uint32_t ngram_find(struct ngram *x, const uint32_t *tokens, uint32_t n, uint32_t *ret_next);
/* What followed, `count` tokens from place `next` on; behind tokens[n - 1] it goes on with
 * itself, as text that repeats does. out may be tokens + n. */
void ngram_copy(const uint32_t *tokens, uint32_t n, uint32_t next, uint32_t count, uint32_t *out);
size_t ngram_bytes(const struct ngram *x);

#endif
