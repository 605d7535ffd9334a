/* prompt.h - generates prompts of random tokens (or words): token p of stream s is always the same
 * for the same seed. */
#ifndef PDBENCH_PROMPT_H
#define PDBENCH_PROMPT_H

#include "util/buf.h"

struct prompt_maker {
	uint64_t seed;
	uint32_t low, high; /* token ids in [low, high) */
	int words;
	double per_token; /* words of a token; 0: 1 */
};

void prompt_maker_init(struct prompt_maker *m, uint64_t seed, uint32_t low, uint32_t high,
                       int words);
/* Appends tokens 0 to n - 1 of a stream: ids separated by commas, or words for a JSON string.
 * Continues whatever `out` already contains. */
void prompt_add(const struct prompt_maker *m, struct buf *out, uint32_t kind, uint64_t stream,
                uint32_t n);

#endif
