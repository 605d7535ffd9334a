#ifndef HASH_CHAIN_H
#define HASH_CHAIN_H

#include "kv/hash.h"

/* Computes the hashes of all full blocks of tokens[0..n) into out, which has room for
 * n / block_tokens. Returns how many. */
static inline uint32_t hash_chain(const struct kv_hash *root, const uint32_t *tokens, size_t n,
                                  uint32_t block_tokens, struct kv_hash *out)
{
	uint32_t blocks = (uint32_t)(n / block_tokens);
	for (uint32_t i = 0; i < blocks; i++)
		kv_hash_block(i ? &out[i - 1] : root, tokens + i * block_tokens, block_tokens, &out[i]);
	return blocks;
}

#endif
