/* keys.c - see keys.h. */
#include "keys.h"
#include "util/mem.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

static void digest(const struct api_keys *k, const char *key,
                   unsigned char out[API_KEY_DIGEST_BYTES])
{
	crypto_generichash(out, API_KEY_DIGEST_BYTES, (const unsigned char *)key, strlen(key),
	                   k->secret, sizeof k->secret);
}

void api_keys_set(struct api_keys *k, const char *const *keys, size_t n)
{
	api_keys_fini(k);
	randombytes_buf(k->secret, sizeof k->secret);
	k->digests = mem_array(n, sizeof *k->digests);
	for (k->n = 0; k->n < n; k->n++)
		digest(k, keys[k->n], k->digests[k->n]);
}

void api_keys_fini(struct api_keys *k)
{
	free(k->digests);
	memset(k, 0, sizeof *k);
}

/* What follows the scheme and its spaces; "" if the scheme is not Bearer. */
static const char *bearer(const char *authorization)
{
	static const char scheme[] = "Bearer ";
	if (strncasecmp(authorization, scheme, sizeof scheme - 1) != 0)
		return "";
	const char *key = authorization + sizeof scheme - 1;
	return key + strspn(key, " ");
}

int api_keys_allow(const struct api_keys *k, const char *authorization)
{
	unsigned char got[API_KEY_DIGEST_BYTES];
	const char *key = bearer(authorization);
	int good = 0;
	if (k->n == 0)
		return 1;
	digest(k, key, got);
	for (size_t i = 0; i < k->n; i++)
		good |= sodium_memcmp(k->digests[i], got, sizeof got) == 0;
	return good && *key;
}
