/* keys.c - see keys.h. A file is read and checked as a whole before anything of it counts. Errors
 * show no word of a wrong line: it may be a key that was put there instead of its hash. */
#include "keys.h"
#include "util/map.h"
#include "util/mem.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_BYTES 512
#define SHA_PREFIX "sha256:"
#define SPACES " \t\r\n"

_Static_assert(crypto_hash_sha256_BYTES == 32, "a hash has 64 hexadecimal digits");

struct api_key {
	unsigned char hash[32];
	struct tenant *tenant; /* once the file counts */
	char name[TENANT_NAME_MAX];
	uint32_t limit[TENANT_LIMITS];
	int shared_cache;
};

/* Where a key with this hash is in the table. */
static void place(const struct api_keys *k, const unsigned char hash[32], unsigned char ret[32])
{
	crypto_generichash(ret, 32, hash, 32, k->secret, sizeof k->secret);
}

/* --- a line -------------------------------------------------------------- */

static int is_name(const char *s)
{
	static const char chars[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
	size_t n = strlen(s);
	return n && n < TENANT_NAME_MAX && strspn(s, chars) == n;
}

static int read_hash(const char *s, unsigned char ret[32])
{
	size_t n = 0;
	const char *end;
	if (strncmp(s, SHA_PREFIX, strlen(SHA_PREFIX)) != 0)
		return -1;
	s += strlen(SHA_PREFIX);
	if (strlen(s) != 64 || sodium_hex2bin(ret, 32, s, 64, NULL, &n, &end) != 0)
		return -1;
	return n == 32 ? 0 : -1;
}

/* "requests=60", "shared-cache" */
static int read_word(char *word, struct api_key *key, struct err *err)
{
	char *eq = strchr(word, '='), *end;
	if (strcmp(word, "shared-cache") == 0) {
		key->shared_cache = 1;
		return 0;
	}
	for (unsigned i = 0; eq && i < TENANT_LIMITS; i++) {
		const char *name = tenant_limit_name(i);
		unsigned long most = i == TENANT_CONCURRENT ? TENANT_CONCURRENT_MAX : TENANT_PER_MINUTE_MAX;
		if (strlen(name) != (size_t)(eq - word) || strncmp(word, name, strlen(name)) != 0)
			continue;
		errno = 0;
		unsigned long v = strtoul(eq + 1, &end, 10);
		if (eq[1] < '0' || eq[1] > '9' || *end || errno || v < 1 || v > most)
			return err_set(err, ERR_INVALID, "%s must be a number from 1 to %lu", name, most);
		if (key->limit[i])
			return err_set(err, ERR_INVALID, "%s is there twice", name);
		key->limit[i] = (uint32_t)v;
		return 0;
	}
	return err_set(err, ERR_INVALID,
	               "a word after the hash is none of requests=N, tokens=N, concurrent=N, "
	               "shared-cache");
}

/* 1: a key; 0: a line without one; ERR_INVALID */
static int read_line(char *line, struct api_key *ret, struct err *err)
{
	char *rest = NULL, *word;
	memset(ret, 0, sizeof *ret);
	line[strcspn(line, "#")] = 0;
	if (!(word = strtok_r(line, SPACES, &rest)))
		return 0;
	if (!is_name(word))
		return err_set(err, ERR_INVALID, "the name is not 1 to %u letters, digits, '.', '_' or '-'",
		               TENANT_NAME_MAX - 1);
	snprintf(ret->name, sizeof ret->name, "%s", word);
	word = strtok_r(NULL, SPACES, &rest);
	if (!word || read_hash(word, ret->hash) < 0)
		return err_set(err, ERR_INVALID,
		               "the key's hash is missing or wrong: it is " SHA_PREFIX
		               " and 64 hexadecimal digits (pdctl apikey)");
	while ((word = strtok_r(NULL, SPACES, &rest)))
		if (read_word(word, ret, err) < 0)
			return ERR_INVALID;
	return 1;
}

/* --- the file ------------------------------------------------------------ */

static int has_limits(const struct api_key *key)
{
	static const uint32_t none[TENANT_LIMITS];
	return key->shared_cache || memcmp(key->limit, none, sizeof none) != 0;
}

/* The key becomes one of `k`, unless its hash is there already, or its name with other limits. */
static int add_key(struct api_keys *k, struct map *names, const struct api_key *key,
                   struct err *err)
{
	unsigned char at[32];
	struct api_key *had;
	place(k, key->hash, at);
	if ((had = map_get(k->by_place, at)))
		return err_set(err, ERR_INVALID, "the hash of %s is that of %s, too", key->name, had->name);
	had = map_get(names, key->name);
	if (had && has_limits(key) &&
	    (memcmp(had->limit, key->limit, sizeof key->limit) != 0 ||
	     had->shared_cache != key->shared_cache))
		return err_set(err, ERR_INVALID,
		               "%s has other limits on an earlier line: repeat them, or give none",
		               key->name);
	if (k->n == API_KEYS_MAX)
		return err_set(err, ERR_INVALID, "there are more than %u keys", API_KEYS_MAX);
	k->of[k->n] = *key;
	map_put(k->by_place, at, &k->of[k->n]);
	if (!had)
		map_put(names, key->name, &k->of[k->n]);
	k->n++;
	return 0;
}

static int read_file(struct api_keys *k, struct map *names, FILE *f, const char *path,
                     struct err *err)
{
	char line[LINE_MAX_BYTES];
	struct api_key key;
	struct err why = {0};
	int r = 0;
	for (unsigned number = 1; r >= 0 && fgets(line, sizeof line, f); number++) {
		if (!strchr(line, '\n') && !feof(f))
			r = err_set(&why, ERR_INVALID, "the line is longer than %d bytes", LINE_MAX_BYTES - 2);
		else if ((r = read_line(line, &key, &why)) > 0)
			r = add_key(k, names, &key, &why);
		if (r < 0)
			err_set(err, r, "%s:%u: %s", path, number, why.text);
	}
	sodium_memzero(line, sizeof line);
	if (r >= 0 && ferror(f))
		return err_set(err, ERR_IO, "api_keys_file %s: %s", path, strerror(errno));
	return r < 0 ? r : 0;
}

/* The tenants of these keys, with what the same names had used under the old ones. */
static void take_tenants(struct api_keys *k, const struct api_keys *old, struct map *names,
                         uint64_t now_us)
{
	for (size_t i = 0; i < old->n_tenants; i++) {
		struct api_key *key = map_get(names, old->tenant[i]->name);
		if (key) {
			key->tenant = old->tenant[i];
			key->tenant->refs++;
		}
	}
	k->tenant = mem_array(k->n, sizeof(struct tenant *));
	for (size_t i = 0; i < k->n; i++) {
		struct api_key *key = &k->of[i], *first = map_get(names, key->name);
		if (key != first) {
			key->tenant = first->tenant;
			continue;
		}
		if (!key->tenant)
			key->tenant = tenant_new(key->name);
		key->tenant->shared_cache = key->shared_cache;
		tenant_set_limits(key->tenant, key->limit, now_us);
		k->tenant[k->n_tenants++] = key->tenant;
	}
}

int api_keys_load(struct api_keys *k, const char *path, uint64_t now_us, struct err *err)
{
	struct api_keys fresh = {0};
	FILE *f = *path ? fopen(path, "re") : NULL;
	if (*path && !f)
		return err_set(err, ERR_IO, "api_keys_file %s: %s", path, strerror(errno));
	if (f) {
		struct map *names = map_new(TENANT_NAME_MAX);
		randombytes_buf(fresh.secret, sizeof fresh.secret);
		fresh.by_place = map_new_random_keys(32);
		fresh.of = mem_array(API_KEYS_MAX, sizeof *fresh.of);
		int r = read_file(&fresh, names, f, path, err);
		fclose(f);
		if (r == 0)
			take_tenants(&fresh, k, names, now_us);
		map_destroy(&names);
		if (r < 0) {
			map_destroy(&fresh.by_place);
			free(fresh.of);
			return r;
		}
	}
	api_keys_fini(k);
	*k = fresh;
	return 0;
}

void api_keys_fini(struct api_keys *k)
{
	for (size_t i = 0; i < k->n_tenants; i++)
		tenant_put(k->tenant[i]);
	map_destroy(&k->by_place);
	free(k->tenant);
	free(k->of);
	memset(k, 0, sizeof *k);
}

/* --- requests ------------------------------------------------------------ */

/* What follows the scheme and its spaces; "" if the scheme is not Bearer. */
static const char *bearer(const char *authorization)
{
	static const char scheme[] = "Bearer ";
	if (strncasecmp(authorization, scheme, sizeof scheme - 1) != 0)
		return "";
	const char *key = authorization + sizeof scheme - 1;
	return key + strspn(key, " ");
}

int api_keys_allow(const struct api_keys *k, const char *authorization, const char *api_key,
                   struct tenant **ret_t)
{
	unsigned char hash[32], at[32];
	const char *text = *authorization ? bearer(authorization) : api_key;
	*ret_t = NULL;
	if (!k->by_place)
		return 1;
	crypto_hash_sha256(hash, (const unsigned char *)text, strlen(text));
	place(k, hash, at);
	const struct api_key *key = map_get(k->by_place, at);
	if (!key || sodium_memcmp(key->hash, hash, sizeof hash) != 0 || !*text)
		return 0;
	*ret_t = key->tenant;
	return 1;
}
