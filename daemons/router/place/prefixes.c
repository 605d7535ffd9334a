/* prefixes.c - see prefixes.h. Uses nothing but its arguments, so any thread may call it. Nothing
 * fails: without memory for its hashes a prompt counts as not cached. */
#include "prefixes.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

int prefix_root_same(const struct prefix_root *a, const struct prefix_root *b)
{
	return a->block_tokens == b->block_tokens && memcmp(&a->hash, &b->hash, sizeof a->hash) == 0;
}

void prefix_root_add(struct prefix_roots *roots, const struct prefix_root *root)
{
	if (!root->block_tokens || roots->n == PREFIX_ROOTS_MAX)
		return;
	for (unsigned i = 0; i < roots->n; i++)
		if (prefix_root_same(&roots->of[i], root))
			return;
	roots->of[roots->n++] = *root;
}

uint64_t prefix_short(const struct kv_hash *h)
{
	uint64_t v = 0;
	for (unsigned i = 8; i--;)
		v = v << 8 | h->b[i];
	return v;
}

void prefixes_make(const struct prefix_roots *roots, const unsigned char *salt,
                   const uint32_t *tokens, size_t n, struct prefixes *ret)
{
	memset(ret, 0, sizeof *ret);
	for (unsigned r = 0; r < roots->n; r++) {
		uint32_t bt = roots->of[r].block_tokens;
		size_t blocks = n / bt < PREFIX_BLOCKS_MAX ? n / bt : PREFIX_BLOCKS_MAX;
		struct kv_hash h = roots->of[r].hash;
		if (salt)
			kv_hash_salt(&h, salt, &h);
		ret->of[r].root = roots->of[r];
		ret->of[r].hashes = blocks ? mem_try_array(blocks, sizeof(uint64_t)) : NULL;
		ret->of[r].n = ret->of[r].hashes ? blocks : 0;
		for (size_t i = 0; i < ret->of[r].n; i++) {
			struct kv_hash parent = h;
			kv_hash_block(&parent, tokens + i * bt, bt, &h);
			ret->of[r].hashes[i] = prefix_short(&h);
		}
		ret->n++;
	}
}

void prefixes_fini(struct prefixes *p)
{
	for (unsigned i = 0; i < p->n; i++)
		free(p->of[i].hashes);
	p->n = 0;
}

const uint64_t *prefixes_find(const struct prefixes *p, const struct prefix_root *root,
                              size_t *ret_n)
{
	for (unsigned i = 0; p && i < p->n; i++)
		if (prefix_root_same(&p->of[i].root, root)) {
			*ret_n = p->of[i].n;
			return p->of[i].hashes;
		}
	*ret_n = 0;
	return NULL;
}
