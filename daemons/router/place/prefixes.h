/* prefixes.h - the hashes of a prompt's full blocks, once for each kind of worker; kvindex.h looks
 * them up.
 *
 * Workers whose KV is interchangeable (fingerprint, numerics, layout) share a root, so the hashes
 * are computed once for all of them, on the thread that prepares the request. A prompt of 64,000
 * tokens costs about half a millisecond. */
#ifndef ROUTER_PREFIXES_H
#define ROUTER_PREFIXES_H

#include "kv/hash.h"

#include <stddef.h>
#include <stdint.h>

/* blocks of a prompt that are hashed; further ones count as not cached */
#define PREFIX_BLOCKS_MAX 65536u
/* kinds of workers; prompts are not hashed for further kinds, which are placed by load alone */
#define PREFIX_ROOTS_MAX 4u

struct prefix_root {
	struct kv_hash hash;
	uint32_t block_tokens; /* 0: no root */
};

struct prefix_roots {
	unsigned n;
	struct prefix_root of[PREFIX_ROOTS_MAX];
};

struct prefixes {
	unsigned n;
	struct {
		struct prefix_root root;
		size_t n;         /* full blocks */
		uint64_t *hashes; /* the first 8 bytes of each, little-endian */
	} of[PREFIX_ROOTS_MAX];
};

int prefix_root_same(const struct prefix_root *a, const struct prefix_root *b);
/* ignores a root that is there already, and roots beyond PREFIX_ROOTS_MAX */
void prefix_root_add(struct prefix_roots *roots, const struct prefix_root *root);
uint64_t prefix_short(const struct kv_hash *h);
/* salt: (CACHE_SALT_BYTES), or NULL */
void prefixes_make(const struct prefix_roots *roots, const unsigned char *salt,
                   const uint32_t *tokens, size_t n, struct prefixes *ret);
void prefixes_fini(struct prefixes *p);
/* The hashes under this root, or NULL. */
const uint64_t *prefixes_find(const struct prefixes *p, const struct prefix_root *root,
                              size_t *ret_n);

#endif
