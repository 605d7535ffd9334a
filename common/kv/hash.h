/* hash.h - the prefix hash, which names a full block of tokens together with all before it; the
 * same on every daemon and host, byte for byte.
 *
 *   root      = BLAKE2b-256("pdserve-prefix-1" || 0x00 || for each of model fingerprint, tokenizer
 *             hash, numerics id, layout text,
 *               adapter, and an empty text: u32 little-endian length || bytes)
 *   salted    = BLAKE2b-256("pdserve-salt-1" || 0x00 || root || cache salt): takes the root's place
 *             in requests with a cache salt (Request.cache_salt), so that requests with different
 *             salts share no blocks
 *   block(i)  = BLAKE2b-256(block(i-1) or root || u32 little-endian token ids of the block,
 *             block_tokens of them)
 *
 * Workers leave tokenizer hash and adapter empty: their model fingerprint covers the tokenizer
 * (common/engine/model_tokenizer.c). A worker reports fingerprint, numerics id and layout
 * when a link comes up (WorkerInfo), so that any peer can compute its root.
 *
 * Only full blocks have a hash. Equal hashes are treated as equal prefixes (collision: 2^-128). */
#ifndef KV_HASH_H
#define KV_HASH_H

#include <stddef.h>
#include <stdint.h>

struct kv_hash {
	unsigned char b[32];
};

#define CACHE_SALT_BYTES 32u

struct kv_root {
	/* NULL counts as empty */
	const char *model_fingerprint, *tokenizer_hash, *numerics, *layout, *adapter;
};

void kv_hash_root(const struct kv_root *root, struct kv_hash *ret);
/* salt: CACHE_SALT_BYTES. ret may be root. */
void kv_hash_salt(const struct kv_hash *root, const unsigned char *salt, struct kv_hash *ret);
void kv_hash_block(const struct kv_hash *parent, const uint32_t *tokens, uint32_t block_tokens,
                   struct kv_hash *ret);
#endif
