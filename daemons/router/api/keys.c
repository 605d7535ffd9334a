/* keys.c - see keys.h. A file is read and checked completely before anything of it takes effect.
 * Errors show no word of an invalid line: it may be a key, written there instead of its hash. */
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
	struct tenant *tenant; /* set when the file takes effect */
	char name[TENANT_NAME_MAX];
	uint32_t limit[TENANT_LIMITS];
	int shared_cache;
};

/* The place of a key with this hash in the table. */
static void hash_place(const struct api_keys *k, const unsigned char hash[32],
                       unsigned char ret[32])
{
	crypto_generichash(ret, 32, hash, 32, k->secret, sizeof k->secret);
}

/* --- a line -------------------------------------------------------------- */

/* "requests=60", "shared-cache" */
static int read_limit(char *word, struct api_key *key, struct err *err)
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
	static const char name_chars[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
	static const size_t prefix = sizeof SHA_PREFIX - 1;
	const char *end;
	char *rest = NULL, *word;
	memset(ret, 0, sizeof *ret);
	line[strcspn(line, "#")] = 0;
	if (!(word = strtok_r(line, SPACES, &rest)))
		return 0;
	size_t n = strlen(word), hash_len = 0;
	if (n >= TENANT_NAME_MAX || strspn(word, name_chars) != n)
		return err_set(err, ERR_INVALID, "the name is not 1 to %u letters, digits, '.', '_' or '-'",
		               TENANT_NAME_MAX - 1);
	snprintf(ret->name, sizeof ret->name, "%s", word);
	word = strtok_r(NULL, SPACES, &rest);
	if (!word || strncmp(word, SHA_PREFIX, prefix) != 0 || strlen(word) != prefix + 64 ||
	    sodium_hex2bin(ret->hash, 32, word + prefix, 64, NULL, &hash_len, &end) != 0 ||
	    hash_len != 32)
		return err_set(err, ERR_INVALID,
		               "the key's hash is missing or wrong: it is " SHA_PREFIX
		               " and 64 hexadecimal digits (pdctl apikey)");
	while ((word = strtok_r(NULL, SPACES, &rest)))
		if (read_limit(word, ret, err) < 0)
			return ERR_INVALID;
	return 1;
}

/* --- the file ------------------------------------------------------------ */

/* Adds the key to k. Fails if k has its hash, or its name with other limits. */
static int add_key(struct api_keys *k, struct map *names, const struct api_key *key,
                   struct err *err)
{
	unsigned char at[32];
	struct api_key *had;
	hash_place(k, key->hash, at);
	if ((had = map_get(k->by_place, at)))
		return err_set(err, ERR_INVALID, "the hash of %s is that of %s, too", key->name, had->name);
	had = map_get(names, key->name);
	static const uint32_t none[TENANT_LIMITS];
	int has_limits = key->shared_cache || memcmp(key->limit, none, sizeof none) != 0;
	if (had && has_limits &&
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

static int read_keys(struct api_keys *k, struct map *names, FILE *f, const char *path,
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

/* Sets the tenants of these keys. A name that the old keys have keeps its tenant, and so its use so
 * far. */
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
		int r = read_keys(&fresh, names, f, path, err);
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

int api_keys_allow(const struct api_keys *k, const char *authorization, const char *api_key,
                   struct tenant **ret_t)
{
	unsigned char hash[32], at[32];
	static const char scheme[] = "Bearer ";
	const char *text = api_key;
	*ret_t = NULL;
	if (!k->by_place)
		return 1;
	if (*authorization && strncasecmp(authorization, scheme, sizeof scheme - 1) == 0)
		text = authorization + strspn(authorization + sizeof scheme - 1, " ") + sizeof scheme - 1;
	else if (*authorization)
		text = ""; /* of another scheme */
	crypto_hash_sha256(hash, (const unsigned char *)text, strlen(text));
	hash_place(k, hash, at);
	const struct api_key *key = map_get(k->by_place, at);
	if (!key || sodium_memcmp(key->hash, hash, sizeof hash) != 0 || !*text)
		return 0;
	*ret_t = key->tenant;
	return 1;
}
