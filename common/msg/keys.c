/* keys.c - see keys.h. */
#include "msg/keys.h"
#include "util/buf.h"
#include "util/log.h"
#include "util/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

struct keys {
	char *folder;
	struct key own;
	unsigned char secret[KEY_BYTES];
	struct key *known; /* (n) */
	size_t n;
	unsigned char digest[32];  /* of all known keys, to notice a change */
	unsigned char ignored[32]; /* of the files that were left out, and why */
	int failed;                /* the last reading could not be completed */
	int quiet;                 /* of a reading: files that are left out are not logged */
};

/* What one file says. */
struct key_file {
	struct key key;
	unsigned char secret[KEY_BYTES];
	int has_name, has_role, has_public, has_secret;
};

static const char *const role_names[KEY_ROLES] = {"router",  "worker",   "messager",
                                                  "storage", "operator", "rank"};

const char *key_role_name(enum key_role r)
{
	return r < KEY_ROLES ? role_names[r] : "?";
}

int key_role_parse(const char *text, enum key_role *ret)
{
	for (unsigned r = 0; r < KEY_ROLES; r++)
		if (strcmp(text, role_names[r]) == 0) {
			*ret = (enum key_role)r;
			return 0;
		}
	return ERR_INVALID;
}

int key_role_of_program(const char *program, enum key_role *ret)
{
	static const struct {
		const char *program;
		enum key_role role;
	} table[] = {{"pdrouterd", KEY_ROUTER},   {"pdprefilld", KEY_WORKER},
	             {"pddecoded", KEY_WORKER},   {"pdmessagerd", KEY_MESSAGER},
	             {"pdstoraged", KEY_STORAGE}, {"pdrank", KEY_RANK},
	             {"pdctl", KEY_OPERATOR}};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (strcmp(program, table[i].program) == 0) {
			*ret = table[i].role;
			return 0;
		}
	return ERR_NOTFOUND;
}

static int is_key_name(const char *s)
{
	size_t n = strlen(s);
	return n > 0 && n <= KEYS_NAME_MAX &&
	       strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == n &&
	       s[0] != '.';
}

/* --- files --------------------------------------------------------------- */

/* The public key is the secret times the base point of Curve25519 (RFC 7748). */
static int is_pair(const unsigned char public_key[KEY_BYTES], const unsigned char secret[KEY_BYTES])
{
	unsigned char own[KEY_BYTES];
	return crypto_scalarmult_base(own, secret) == 0 && memcmp(own, public_key, KEY_BYTES) == 0;
}

static int parse_key(const char *text, unsigned char key[KEY_BYTES])
{
	return strlen(text) == KEY_TEXT_BYTES - 1 && zmq_z85_decode(key, text) ? 0 : ERR_INVALID;
}

static int parse_line(struct key_file *f, const char *word, const char *value, struct err *err)
{
	int *seen, r = 0;
	if (strcmp(word, "name") == 0) {
		seen = &f->has_name;
		r = is_key_name(value) ? 0 : ERR_INVALID;
		snprintf(f->key.name, sizeof f->key.name, "%.47s", value);
	} else if (strcmp(word, "role") == 0) {
		seen = &f->has_role;
		r = key_role_parse(value, &f->key.role);
	} else if (strcmp(word, "public") == 0) {
		seen = &f->has_public;
		r = parse_key(value, f->key.public_key);
	} else if (strcmp(word, "secret") == 0) {
		seen = &f->has_secret;
		r = parse_key(value, f->secret);
	} else {
		return err_set(err, ERR_INVALID, "\"%.40s\" is none of name, role, public, secret", word);
	}
	if (r < 0 || (*seen)++)
		return err_set(err, ERR_INVALID, r < 0 ? "%s has no valid value" : "%s is there twice",
		               word);
	return 0;
}

static int parse(char *text, struct key_file *f, struct err *err)
{
	char *rest = text;
	for (char *line; (line = strsep(&rest, "\n"));) {
		char *value = line;
		line[strcspn(line, "\r")] = 0;
		if (!line[0] || line[0] == '#')
			continue;
		char *word = strsep(&value, " \t");
		value = value ? value + strspn(value, " \t") : "";
		int r = parse_line(f, word, value, err);
		if (r < 0)
			return r;
	}
	if (!f->has_name || !f->has_role || !f->has_public)
		return err_set(err, ERR_INVALID, "it lacks the line \"%s\"",
		               !f->has_name   ? "name"
		               : !f->has_role ? "role"
		                              : "public");
	return 0;
}

/* 0; ERR_NOTFOUND: no such file; ERR_IO, ERR_INVALID. private: refuses one that others may read. */
static int read_key_file(const char *path, int private, struct key_file *f, struct err *err)
{
	char text[KEY_FILE_BYTES + 1];
	struct stat st;
	memset(f, 0, sizeof *f);
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return err_set(err, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "cannot read %s: %s", path,
		               strerror(errno));
	ssize_t n = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? read(fd, text, sizeof text) : -1;
	close(fd);
	int r = 0;
	if (n < 0 || (size_t)n > KEY_FILE_BYTES)
		r = err_set(err, ERR_INVALID, "%s is no file of at most %u bytes", path, KEY_FILE_BYTES);
	else if (private && st.st_mode & 077)
		r = err_set(err, ERR_INVALID, "%s can be read by others (mode %03o): chmod 600 %s", path,
		            st.st_mode & 0777, path);
	if (r == 0) {
		text[n] = 0;
		if ((r = parse(text, f, err)) < 0)
			err_prefix(err, "%s", path);
	}
	sodium_memzero(text, sizeof text);
	return r;
}

/* --- the known keys ------------------------------------------------------ */

static int ends_in(const char *name, const char *end)
{
	size_t n = strlen(name), m = strlen(end);
	return n > m && strcmp(name + n - m, end) == 0;
}

static const char *clash(const struct keys *k, const struct key *key)
{
	if (keys_find(k, key->public_key))
		return "another file has the same key";
	if (keys_named(k, key->name))
		return "another file has the same name";
	return k->n == KEYS_MAX ? "there are too many keys" : NULL;
}

/* 0, or ERR_IO: the file is there and cannot be read, so the reading is not complete. */
static int take_file(struct keys *k, const char *path, crypto_generichash_state *ignored)
{
	struct err err = {0};
	struct key_file f;
	int r = read_key_file(path, 0, &f, &err);
	const char *why = r < 0 ? err.text : clash(k, &f.key);
	if (r == ERR_NOTFOUND)
		return 0; /* it was removed meanwhile */
	if (why) {
		crypto_generichash_update(ignored, (const unsigned char *)path, strlen(path) + 1);
		crypto_generichash_update(ignored, (const unsigned char *)why, strlen(why) + 1);
		if (!k->quiet)
			log_warn("key_ignored", "file=%s why=%s", log_quote(path), log_quote(why));
		return r == ERR_IO ? ERR_IO : 0;
	}
	k->known = mem_grow(k->known, k->n + 1, sizeof *k->known);
	k->known[k->n] = f.key;
	key_fingerprint(f.key.public_key, k->known[k->n++].print);
	return 0;
}

/* Reads the files into k, which knows nothing yet. */
static int read_known(struct keys *k, unsigned char ignored[32])
{
	char path[512];
	struct dirent **list = NULL;
	crypto_generichash_state h;
	snprintf(path, sizeof path, "%s/known", k->folder);
	int n = scandir(path, &list, NULL, alphasort), r = n < 0 ? ERR_IO : 0;
	if (n < 0 && !k->quiet)
		log_warn("keys_unreadable", "folder=%s why=%s", log_quote(path), strerror(errno));
	crypto_generichash_init(&h, NULL, 0, 32);
	for (int i = 0; i < n; i++) {
		snprintf(path, sizeof path, "%s/known/%s", k->folder, list[i]->d_name);
		if (r == 0 && ends_in(list[i]->d_name, ".pub"))
			r = take_file(k, path, &h);
		free(list[i]);
	}
	free(list);
	crypto_generichash_final(&h, ignored, 32);
	return r;
}

/* The same files are not complained about again. A reading that could not be completed, for want of
 * descriptors perhaps, changes nothing. */
int keys_reload(struct keys *k)
{
	unsigned char ignored[32], digest[32];
	struct keys fresh = {.folder = k->folder, .quiet = 1};
	int r = read_known(&fresh, ignored);
	if (memcmp(ignored, k->ignored, sizeof ignored) != 0 || (r < 0 && !k->failed)) {
		struct keys aloud = {.folder = k->folder};
		unsigned char unused[32];
		read_known(&aloud, unused);
		free(aloud.known);
	}
	memcpy(k->ignored, ignored, sizeof ignored);
	k->failed = r < 0;
	crypto_generichash(digest, sizeof digest, (const unsigned char *)fresh.known,
	                   fresh.n * sizeof *fresh.known, NULL, 0);
	if (r < 0 || memcmp(digest, k->digest, sizeof digest) == 0) {
		free(fresh.known);
		return 0;
	}
	free(k->known);
	k->known = fresh.known;
	k->n = fresh.n;
	memcpy(k->digest, digest, sizeof digest);
	return 1;
}

int keys_open(const char *folder, const char *name, struct keys **ret, struct err *err)
{
	char path[512];
	struct key_file f;
	snprintf(path, sizeof path, "%s/%s.secret", folder, name);
	int r = read_key_file(path, 1, &f, err);
	if (r == ERR_NOTFOUND)
		return err_set(err, ERR_INVALID,
		               "there is no key %s: make it with `pdctl keygen %s ROLE --keys %s` and copy "
		               "%s.pub into the folder known/ of its peers",
		               path, name, folder, name);
	if (r == 0 && (!f.has_secret || strcmp(f.key.name, name) != 0))
		r = err_set(err, ERR_INVALID, f.has_secret ? "%s is the key of \"%s\"" : "%s has no secret",
		            path, f.key.name);
	if (r == 0 && !is_pair(f.key.public_key, f.secret))
		r = err_set(err, ERR_INVALID, "the public key in %s is not that of the secret", path);
	if (r < 0) {
		sodium_memzero(&f, sizeof f);
		return r;
	}
	struct keys *k = mem_zalloc(sizeof *k);
	k->folder = mem_strdup(folder);
	k->own = f.key;
	key_fingerprint(k->own.public_key, k->own.print);
	memcpy(k->secret, f.secret, sizeof k->secret);
	sodium_memzero(&f, sizeof f);
	keys_reload(k);
	*ret = k;
	return 0;
}

int keys_known(const char *folder, struct keys **ret, struct err *err)
{
	char path[512];
	snprintf(path, sizeof path, "%s/known", folder);
	if (access(path, R_OK | X_OK) != 0)
		return err_set(err, ERR_IO, "cannot read %s: %s", path, strerror(errno));
	struct keys *k = mem_zalloc(sizeof *k);
	k->folder = mem_strdup(folder);
	keys_reload(k);
	*ret = k;
	return 0;
}

void keys_close(struct keys **kp)
{
	struct keys *k = *kp;
	if (!k)
		return;
	sodium_memzero(k->secret, sizeof k->secret);
	free(k->known);
	free(k->folder);
	free(k);
	*kp = NULL;
}

const struct key *keys_own(const struct keys *k)
{
	return &k->own;
}

const unsigned char *keys_secret(const struct keys *k)
{
	return k->secret;
}

const char *keys_folder(const struct keys *k)
{
	return k->folder;
}

const struct key *keys_find(const struct keys *k, const unsigned char public_key[KEY_BYTES])
{
	for (size_t i = 0; i < k->n; i++)
		if (memcmp(k->known[i].public_key, public_key, KEY_BYTES) == 0)
			return &k->known[i];
	return NULL;
}

const struct key *keys_named(const struct keys *k, const char *name)
{
	for (size_t i = 0; i < k->n; i++)
		if (strcmp(k->known[i].name, name) == 0)
			return &k->known[i];
	return NULL;
}

const struct key *keys_printed(const struct keys *k, const char *print)
{
	for (size_t i = 0; i < k->n; i++)
		if (strcmp(k->known[i].print, print) == 0)
			return &k->known[i];
	return NULL;
}

size_t keys_count(const struct keys *k)
{
	return k->n;
}

const struct key *keys_at(const struct keys *k, size_t i)
{
	return &k->known[i];
}

void key_fingerprint(const unsigned char public_key[KEY_BYTES], char ret[KEY_PRINT_BYTES])
{
	unsigned char h[16];
	crypto_generichash(h, sizeof h, public_key, KEY_BYTES, NULL, 0);
	sodium_bin2hex(ret, KEY_PRINT_BYTES, h, sizeof h);
}

/* --- making keys --------------------------------------------------------- */

static int write_file(const char *path, int mode, const struct buf *text, struct err *err)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
	if (fd < 0)
		return err_set(err, errno == EEXIST ? ERR_EXISTS : ERR_IO, "cannot make %s: %s", path,
		               strerror(errno));
	int ok = write(fd, text->data, text->len) == (ssize_t)text->len && fsync(fd) == 0;
	int e = errno;
	close(fd);
	if (ok)
		return 0;
	unlink(path);
	return err_set(err, ERR_IO, "cannot write %s: %s", path, strerror(e));
}

static int make_folders(const char *folder, struct err *err)
{
	char path[512];
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof path, "%s%s", folder, i ? "/known" : "");
		if (mkdir(path, 0755) < 0 && errno != EEXIST)
			return err_set(err, ERR_IO, "cannot make the folder %s: %s", path, strerror(errno));
	}
	return 0;
}

static int write_pair(const char *folder, const char *name, enum key_role role, const char *public,
                      const char *secret, struct err *err)
{
	char path[512];
	struct buf text;
	buf_init(&text, 0);
	buf_printf(&text, "# pdserve: public key of %s\nname %s\nrole %s\npublic %s\n", name, name,
	           key_role_name(role), public);
	snprintf(path, sizeof path, "%s/%s.pub", folder, name);
	int r = write_file(path, 0644, &text, err);
	if (r == 0) {
		buf_reset(&text);
		buf_printf(&text, "# pdserve: key pair of %s. Keep it secret.\nname %s\nrole %s\n", name,
		           name, key_role_name(role));
		buf_printf(&text, "public %s\nsecret %s\n", public, secret);
		char secret_path[512];
		snprintf(secret_path, sizeof secret_path, "%s/%s.secret", folder, name);
		if ((r = write_file(secret_path, 0600, &text, err)) < 0)
			unlink(path);
	}
	sodium_memzero(text.data, text.len);
	buf_fini(&text);
	return r;
}

int keys_generate(const char *folder, const char *name, enum key_role role, struct err *err)
{
	char public[KEY_TEXT_BYTES], secret[KEY_TEXT_BYTES];
	if (!is_key_name(name))
		return err_set(
			err, ERR_INVALID,
			"name \"%.60s\": allowed are 1 to %u letters, digits, \"-\", \"_\" and \".\"", name,
			KEYS_NAME_MAX);
	if (zmq_curve_keypair(public, secret) < 0)
		return err_set(err, ERR_UNSUPPORTED, "this libzmq has no CURVE");
	int r = make_folders(folder, err);
	if (r == 0)
		r = write_pair(folder, name, role, public, secret, err);
	sodium_memzero(secret, sizeof secret);
	return r;
}
