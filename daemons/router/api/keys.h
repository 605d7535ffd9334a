/* keys.h - the keys that clients may send, stored as keyed digests: checking a request costs one
 * digest, in a time that does not depend on how much of its key is right. */
#ifndef ROUTER_API_KEYS_H
#define ROUTER_API_KEYS_H

#include <stddef.h>

#define API_KEY_DIGEST_BYTES 32u

struct api_keys {
	unsigned char secret[API_KEY_DIGEST_BYTES]; /* random, new with each api_keys_set */
	unsigned char (*digests)[API_KEY_DIGEST_BYTES];
	size_t n; /* 0: no key is needed */
};

/* Replaces the keys. The texts are not kept. */
void api_keys_set(struct api_keys *k, const char *const *keys, size_t n);
void api_keys_fini(struct api_keys *k);
/* 1 if a request with this Authorization is allowed: "Bearer" in any case, one or more spaces, a
 * key. */
int api_keys_allow(const struct api_keys *k, const char *authorization);

#endif
