/* fuzz_keys.c - files of keys: "api_keys", of clients (daemons/router/api/keys.h),
 * "decode-1.secret" and the *.pub files that daemons know (msg/keys.h). A file is taken as a
 * whole or refused with a sentence that names it; no key is let in whose hash the file does not
 * have. */
#include "daemons/router/api/keys.h"
#include "msg/keys.h"
#include "tests/fuzz/fuzz.h"
#include "util/mem.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* of "key" */
#define HASH "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"

static int is_name(const char *s, size_t most)
{
	size_t n = strlen(s);
	for (size_t i = 0; i < n; i++)
		if (!isalnum((unsigned char)s[i]) && !strchr("._-", s[i]))
			return 0;
	return n > 0 && n <= most;
}

/* Whether the file has the hash, in digits of either case. */
static int has_hash(const char *path)
{
	size_t n = 0;
	uint8_t *p = fuzz_read(path, 1 << 14, &n);
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)tolower(p[i]);
	int has = p && memmem(p, n, HASH, strlen(HASH));
	free(p);
	return has;
}

/* 1: the file was taken. */
static int run_clients(const char *path)
{
	struct api_keys k = {0};
	struct tenant *t = NULL;
	struct err err = {0};
	int rc = api_keys_load(&k, path, 1, &err);
	if (rc < 0) {
		must(strstr(err.text, path) != NULL && !k.n);
	} else {
		must(k.n <= API_KEYS_MAX && k.n_tenants <= k.n);
		for (size_t i = 0; i < k.n_tenants; i++)
			must(is_name(k.tenant[i]->name, 63));
		must(!api_keys_allow(&k, "", "", &t) && !api_keys_allow(&k, "Bearer other", "", &t));
		must(!api_keys_allow(&k, "Bearer key", "", &t) || (t && has_hash(path)));
		/* read again it is the same */
		size_t n = k.n;
		must(api_keys_load(&k, path, 2, &err) == 0 && k.n == n);
	}
	api_keys_fini(&k);
	return rc == 0;
}

static void check_key(const struct keys *k, const struct key *key)
{
	must(is_name(key->name, KEYS_NAME_MAX) && (unsigned)key->role < KEY_ROLES);
	must(keys_find(k, key->public_key) == key && keys_named(k, key->name) == key);
	must(keys_printed(k, key->print) == key);
}

static int run_daemons(const char *folder)
{
	struct keys *k = NULL;
	struct err err = {0};
	if (keys_known(folder, &k, &err) == 0) {
		for (size_t i = 0; i < keys_count(k); i++)
			check_key(k, keys_at(k, i));
		must(keys_count(k) <= KEYS_MAX && keys_reload(k) == 0);
	}
	keys_close(&k);
	int rc = keys_open(folder, "decode-1", &k, &err);
	if (rc == 0)
		must(strcmp(keys_own(k)->name, "decode-1") == 0 && keys_secret(k));
	else
		must(strstr(err.text, folder) != NULL);
	keys_close(&k);
	return rc == 0;
}

FUZZ(keys, 1 << 13)
{
	const char *folder = fuzz_files(data, size);
	char *clients = mem_printf("%s/api_keys", folder), *known = mem_printf("%s/known", folder);
	must(symlink(".", known) == 0 || access(known, F_OK) == 0);
	int clients_good = run_clients(clients), daemons_good = run_daemons(folder);
	if (clients_good && daemons_good)
		fuzz_accepted();
	free(clients);
	free(known);
	return 0;
}
