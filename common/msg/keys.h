/* keys.h - who may talk to a daemon from another host: CURVE key pairs (CurveZMQ, RFC 26), one for
 * each daemon and each operator, bound to a name and a role.
 *
 * A folder holds them as small text files that `pdctl keygen` writes:
 *
 *   NAME.secret      this daemon's own pair; for its user only (mode 0600)
 *   known/NAME.pub   public keys of the peers that may connect, and that may be connected to
 *
 * Each line is "name VALUE", "role VALUE", "public VALUE" or "secret VALUE", keys in Z85 (RFC 32);
 * lines that begin with # are comments. A file that cannot be read or does not parse is logged and
 * left out; two files with the same key or the same name: the second one is left out. All functions
 * on one thread. */
#ifndef MSG_KEYS_H
#define MSG_KEYS_H

#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

#define KEY_BYTES 32u
#define KEY_TEXT_BYTES 41u  /* Z85 of a key, with its end */
#define KEY_PRINT_BYTES 33u /* a fingerprint in hexadecimal, with its end */
#define KEYS_MAX 4096u      /* known keys; further files are left out */
#define KEY_FILE_BYTES 2048u
#define KEYS_NAME_MAX 47u /* as of daemons */

enum key_role {
	KEY_ROUTER,
	KEY_WORKER,
	KEY_MESSAGER,
	KEY_STORAGE,
	KEY_OPERATOR,
	KEY_RANK,
	KEY_ROLES
};

struct key {
	char name[KEYS_NAME_MAX + 1];
	enum key_role role;
	unsigned char public_key[KEY_BYTES];
	char print[KEY_PRINT_BYTES]; /* key_fingerprint */
};

struct keys;

const char *key_role_name(enum key_role r);
/* 0 or ERR_INVALID. */
int key_role_parse(const char *text, enum key_role *ret);
/* Which role a daemon's program has ("pddecoded": WORKER). 0 or ERR_NOTFOUND. */
int key_role_of_program(const char *program, enum key_role *ret);

/* Reads FOLDER/NAME.secret and FOLDER/known. 0; ERR_INVALID with the remedy: the secret is missing,
 * malformed, another name's, or readable for others. */
int keys_open(const char *folder, const char *name, struct keys **ret, struct err *err);
/* FOLDER/known alone, without a secret. 0, or ERR_IO: it cannot be read. */
int keys_known(const char *folder, struct keys **ret, struct err *err);
void keys_close(struct keys **k);
/* Reads FOLDER/known again. Returns 1 if it has changed since the last time. */
int keys_reload(struct keys *k);

const struct key *keys_own(const struct keys *k);
const unsigned char *keys_secret(const struct keys *k); /* (KEY_BYTES) */
const char *keys_folder(const struct keys *k);
/* NULL: not known. Valid until the next keys_reload. */
const struct key *keys_find(const struct keys *k, const unsigned char public_key[KEY_BYTES]);
/* By its fingerprint. */
const struct key *keys_printed(const struct keys *k, const char *print);
const struct key *keys_named(const struct keys *k, const char *name);
size_t keys_count(const struct keys *k);
const struct key *keys_at(const struct keys *k, size_t i);

/* Makes a key pair and writes FOLDER/NAME.secret (0600) and FOLDER/NAME.pub (0644), making the
 * folder and FOLDER/known if they are missing. 0; ERR_EXISTS: a file is there already; ERR_IO;
 * ERR_INVALID: the name. */
int keys_generate(const char *folder, const char *name, enum key_role role, struct err *err);
/* Hexadecimal, the first 16 bytes of the key's BLAKE2b: for people to compare. */
void key_fingerprint(const unsigned char public_key[KEY_BYTES], char ret[KEY_PRINT_BYTES]);

#endif
