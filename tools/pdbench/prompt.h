/* prompt.h - tokens (or words) that nobody has said before: place p of stream s under a seed is
 * always the same. */
#ifndef PDBENCH_PROMPT_H
#define PDBENCH_PROMPT_H

#include "util/buf.h"

struct prompt_maker {
	uint64_t seed;
	uint32_t low, high; /* token ids in [low, high) */
	int words;
};

void prompt_maker_init(struct prompt_maker *m, uint64_t seed, uint32_t low, uint32_t high,
                       int words);
/* Appends tokens 0 to n-1 of a stream: ids with commas, or words for a JSON string; what stands
 * in `out` already is gone on with. */
void prompt_add(const struct prompt_maker *m, struct buf *out, uint32_t kind, uint64_t stream,
                uint32_t n);

#endif
