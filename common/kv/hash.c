/* hash.c - see hash.h. Numbers are serialized byte by byte, so that hosts of either byte order
 * agree. Nothing here fails. */
#include "kv/hash.h"
#include "util/check.h"

#include <sodium.h>
#include <string.h>

_Static_assert(sizeof(struct kv_hash) == crypto_generichash_BYTES, "a hash is 256 bits");

static void put_le32(unsigned char *b, uint32_t v)
{
	b[0] = (unsigned char)v;
	b[1] = (unsigned char)(v >> 8);
	b[2] = (unsigned char)(v >> 16);
	b[3] = (unsigned char)(v >> 24);
}

static void add_text(crypto_generichash_state *h, const char *s)
{
	size_t n = s ? strlen(s) : 0;
	unsigned char len[4];
	CHECK(n <= UINT32_MAX);
	put_le32(len, (uint32_t)n);
	crypto_generichash_update(h, len, sizeof len);
	crypto_generichash_update(h, (const unsigned char *)s, n);
}

void kv_hash_root(const struct kv_root *root, struct kv_hash *ret)
{
	static const char label[] = "pdserve-prefix-1"; /* its NUL is hashed too */
	crypto_generichash_state h;
	crypto_generichash_init(&h, NULL, 0, sizeof ret->b);
	crypto_generichash_update(&h, (const unsigned char *)label, sizeof label);
	add_text(&h, root->model_fingerprint);
	add_text(&h, root->tokenizer_hash);
	add_text(&h, root->numerics);
	add_text(&h, root->layout);
	add_text(&h, root->adapter);
	add_text(&h, NULL); /* stored blocks have hashes with it */
	crypto_generichash_final(&h, ret->b, sizeof ret->b);
}

void kv_hash_salt(const struct kv_hash *root, const unsigned char *salt, struct kv_hash *ret)
{
	static const char label[] = "pdserve-salt-1"; /* its NUL is hashed too */
	crypto_generichash_state h;
	crypto_generichash_init(&h, NULL, 0, sizeof ret->b);
	crypto_generichash_update(&h, (const unsigned char *)label, sizeof label);
	crypto_generichash_update(&h, root->b, sizeof root->b);
	crypto_generichash_update(&h, salt, CACHE_SALT_BYTES);
	crypto_generichash_final(&h, ret->b, sizeof ret->b);
}

void kv_hash_block(const struct kv_hash *parent, const uint32_t *tokens, uint32_t block_tokens,
                   struct kv_hash *ret)
{
	unsigned char part[256];
	crypto_generichash_state h;
	crypto_generichash_init(&h, NULL, 0, sizeof ret->b);
	crypto_generichash_update(&h, parent->b, sizeof parent->b);
	for (uint32_t i = 0; i < block_tokens;) {
		size_t n = 0;
		while (i < block_tokens && n < sizeof part) {
			put_le32(part + n, tokens[i++]);
			n += 4;
		}
		crypto_generichash_update(&h, part, n);
	}
	crypto_generichash_final(&h, ret->b, sizeof ret->b);
}
