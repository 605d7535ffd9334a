/* keys.c - keys of links between hosts: make one, and show whom this host knows; access keys of
 * clients: make one. Works on files; no daemon is asked. */
#include "pdctl.h"

#include "msg/keys.h"
#include "util/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define API_KEY_BYTES 20u /* random: 160 bits */

int keygen_command(const struct options *o, char *const *args, size_t n_args)
{
	struct err err = {0};
	enum key_role role;
	if (n_args != 2) {
		fprintf(stderr,
		        "pdctl: keygen takes a NAME and a ROLE, as in `pdctl keygen decode-1 worker`\n");
		return EXIT_USAGE;
	}
	if (key_role_parse(args[1], &role) < 0) {
		fprintf(stderr, "pdctl: %s is no role: router, worker, rank, messager, storage, operator\n",
		        args[1]);
		return EXIT_USAGE;
	}
	if (keys_generate(o->keys, args[0], role, &err) < 0) {
		fprintf(stderr, "pdctl: %s\n", err.text);
		return EXIT_REFUSED;
	}
	printf("%s/%s.secret  the key pair; it stays here, readable for its owner only, who must run "
	       "the daemon\n"
	       "%s/%s.pub     copy it into %s/known/ on every host that talks to %s\n",
	       o->keys, args[0], o->keys, args[0], o->keys, args[0]);
	return EXIT_DONE;
}

int keys_command(const struct options *o, char *const *args, size_t n_args)
{
	struct keys *k = NULL;
	struct err err = {0};
	json_t *all = json_array();
	(void)args;
	(void)n_args;
	if (keys_known(o->keys, &k, &err) < 0) {
		fprintf(stderr, "pdctl: %s\n", err.text);
		json_decref(all);
		return EXIT_REFUSED;
	}
	struct table *t = table_new();
	table_cell(t, "name");
	table_cell(t, "role");
	table_cell(t, "fingerprint");
	table_end_row(t);
	for (size_t i = 0; i < keys_count(k); i++) {
		const struct key *key = keys_at(k, i);
		table_cell(t, "%s", key->name);
		table_cell(t, "%s", key_role_name(key->role));
		table_cell(t, "%s", key->print);
		table_end_row(t);
		json_array_append_new(all, json_pack("{s:s,s:s,s:s}", "name", key->name, "role",
		                                     key_role_name(key->role), "fingerprint", key->print));
	}
	if (o->json) {
		print_json(all);
		table_destroy(&t);
	} else {
		table_print(&t);
	}
	json_decref(all);
	keys_close(&k);
	return EXIT_DONE;
}

/* The rest of a line of the file of keys (daemons/router/api/keys.h), as the router checks it. 0,
 * or EXIT_USAGE. */
static int check_limit(const char *name, const char *value, unsigned long most)
{
	char *end;
	unsigned long v = value ? strtoul(value, &end, 10) : 1;
	if (!value || (*value >= '0' && *value <= '9' && !*end && v >= 1 && v <= most))
		return 0;
	fprintf(stderr, "pdctl: --%s must be a number from 1 to %lu, got \"%s\"\n", name, most, value);
	return EXIT_USAGE;
}

static void print_limit(const char *name, const char *value)
{
	if (value)
		printf(" %s=%s", name, value);
}

/* Copies the lines; the first one of this name gets the hash, the others of this name are left out.
 * Returns how many there were. */
static size_t copy_lines(FILE *in, FILE *out, const char *name, const char *hex)
{
	char *line = NULL;
	size_t size = 0, n = 0, len = strlen(name);
	while (getline(&line, &size, in) > 0) {
		const char *word = line + strspn(line, " \t"), *rest = word + len;
		if (strncmp(word, name, len) != 0 || (*rest != ' ' && *rest != '\t')) {
			fputs(line, out);
		} else if (n++ == 0) {
			rest += strspn(rest, " \t");
			rest += strcspn(rest, " \t\r\n");
			fprintf(out, "%s sha256:%s%s", name, hex, rest);
		}
	}
	free(line);
	return n;
}

/* The file is replaced as a whole, with its owner and mode. Returns an exit code. */
static int replace_key(const char *file, const char *name, const char *hex)
{
	char *path = realpath(file, NULL);
	FILE *in = path ? fopen(path, "re") : NULL, *out = NULL;
	struct stat st;
	if (!in || fstat(fileno(in), &st) < 0) {
		fprintf(stderr, "pdctl: cannot read %s: %s\n", file, strerror(errno));
		if (in)
			fclose(in);
		free(path);
		return EXIT_REFUSED;
	}
	char *fresh = mem_printf("%s.new", path);
	int fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600), code = EXIT_REFUSED;
	out = fd < 0 ? NULL : fdopen(fd, "w");
	size_t n = out ? copy_lines(in, out, name, hex) : 0;
	if (out && n == 0)
		fprintf(stderr, "pdctl: %s has no key of %s: `pdctl apikey %s >>%s` adds one\n", file, name,
		        name, file);
	else if (fd < 0 && errno == EEXIST)
		fprintf(
			stderr,
			"pdctl: cannot write %s: File exists, so nothing was changed; if no other pdctl is at "
			"work, one was killed: rm %s\n",
			fresh, fresh);
	else if (!out || ferror(in) || ferror(out) || fflush(out) != 0 ||
	         fchown(fd, st.st_uid, st.st_gid) < 0 || fchmod(fd, st.st_mode & 07777) < 0 ||
	         fsync(fd) < 0 || rename(fresh, path) < 0)
		fprintf(stderr, "pdctl: cannot write %s: %s, so nothing was changed\n", fresh,
		        strerror(errno));
	else
		code = EXIT_DONE;
	if (out && code != EXIT_DONE)
		unlink(fresh);
	if (out)
		fclose(out);
	fclose(in);
	free(fresh);
	free(path);
	return code;
}

/* The line goes to stdout, so that it can be appended to the file, or with --replace into the file;
 * the key to stderr, once. */
int apikey_command(const struct options *o, char *const *args, size_t n_args)
{
	static const char chars[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
	unsigned char drawn[API_KEY_BYTES], hash[crypto_hash_sha256_BYTES];
	char key[4 + 2 * API_KEY_BYTES + 1] = "pds-", hex[2 * sizeof hash + 1];
	const char *name = n_args ? args[0] : "";
	size_t n = strlen(name);
	if (!n || n > 63 || strspn(name, chars) != n) {
		fprintf(stderr, "pdctl: apikey takes a NAME of 1 to 63 letters, digits, '.', '_' or '-'\n");
		return EXIT_USAGE;
	}
	if (check_limit("requests", o->limit.requests, 1000000000) ||
	    check_limit("tokens", o->limit.tokens, 1000000000) ||
	    check_limit("concurrent", o->limit.concurrent, 1000000))
		return EXIT_USAGE;
	if (o->replace &&
	    (o->limit.requests || o->limit.tokens || o->limit.concurrent || o->limit.shared_cache)) {
		fprintf(stderr,
		        "pdctl: apikey --replace keeps the limits that the file has: edit them there\n");
		return EXIT_USAGE;
	}
	if (sodium_init() < 0) {
		fprintf(stderr, "pdctl: no random numbers: the system's random device is missing\n");
		return EXIT_REFUSED;
	}
	randombytes_buf(drawn, sizeof drawn);
	sodium_bin2hex(key + 4, sizeof key - 4, drawn, sizeof drawn);
	crypto_hash_sha256(hash, (const unsigned char *)key, strlen(key));
	sodium_bin2hex(hex, sizeof hex, hash, sizeof hash);
	int code = o->replace ? replace_key(o->replace, name, hex) : EXIT_DONE;
	if (!o->replace) {
		printf("%s sha256:%s", name, hex);
		print_limit("requests", o->limit.requests);
		print_limit("tokens", o->limit.tokens);
		print_limit("concurrent", o->limit.concurrent);
		printf("%s\n", o->limit.shared_cache ? " shared-cache" : "");
	}
	if (code == EXIT_DONE)
		fprintf(stderr, "key %s is stored nowhere: give it to %s now%s\n", key, name,
		        o->replace ? "; it counts after `pdctl -d router reload`" : "");
	sodium_memzero(drawn, sizeof drawn);
	sodium_memzero(key, sizeof key);
	return code;
}
