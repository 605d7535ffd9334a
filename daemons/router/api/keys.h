/* keys.h - the keys that clients may send, as keyed digests made once: a request costs one
 * digest, and time does not tell how much of a key was right. */
#ifndef ROUTER_API_KEYS_H
#define ROUTER_API_KEYS_H

#include <stddef.h>

#define API_KEY_DIGEST_BYTES 32u

struct api_keys {
	unsigned char secret[API_KEY_DIGEST_BYTES]; /* drawn with each set */
	unsigned char (*digests)[API_KEY_DIGEST_BYTES];
	size_t n; /* 0: no key is needed */
};

/* In place of those before. The texts are not kept. */
void api_keys_set(struct api_keys *k, const char *const *keys, size_t n);
void api_keys_fini(struct api_keys *k);
/* May a request with this Authorization come in? "Bearer" in any case, one or more spaces, a
 * key. */
int api_keys_allow(const struct api_keys *k, const char *authorization);

#endif
