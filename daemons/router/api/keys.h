/* keys.h - the access keys that clients may send, from a file (api_keys_file) with a line for each:
 *
 *   NAME sha256:HEX [requests=N] [tokens=N] [concurrent=N] [shared-cache]
 *
 * Words are separated by spaces or tabs; # begins a comment. NAME: 1 to 63 letters, digits, . _ -;
 * HEX: SHA-256 of the key, 64 digits. `pdctl apikey` makes keys of 160 random bits, which cannot be
 * guessed from a fast hash either: a slow one would only cost time at each request. A hash occurs
 * once. Further lines of a name are further keys of the same tenant, so that a key can be replaced
 * while the old one still works; they have the limits of the first line, or none.
 *
 * Checking a key costs two hashes and a look-up, however many keys there are. The table's own keys
 * are hashed under a secret of this process, so that the time that a look-up takes reveals nothing
 * about the hashes in the file; the hash itself is compared in constant time. */
#ifndef ROUTER_API_KEYS_H
#define ROUTER_API_KEYS_H

#include "tenant.h"
#include "util/err.h"

#define API_KEYS_MAX 4096u

struct api_key;

struct api_keys {
	unsigned char secret[32];
	struct map *by_place;   /* struct api_key, by the place of its hash; NULL: no key is needed */
	struct api_key *of;     /* (n), in the file's order */
	struct tenant **tenant; /* (n_tenants), in the order of their first keys; with references */
	size_t n, n_tenants;
};

/* Reads the file; path "": no key is needed. A tenant that existed before keeps its use so far,
 * and running requests keep their tenant. 0, or ERR_* with file, line and reason: nothing has
 * changed then. */
int api_keys_load(struct api_keys *k, const char *path, uint64_t now_us, struct err *err);
void api_keys_fini(struct api_keys *k);
/* 1 if a request with this Authorization is allowed: "Bearer" in any case, one or more spaces, a
 * key; or, if that is "", with the key api_key. *ret_t: whose key it is; NULL: no key is needed.
 * The set keeps its reference. */
int api_keys_allow(const struct api_keys *k, const char *authorization, const char *api_key,
                   struct tenant **ret_t);

#endif
