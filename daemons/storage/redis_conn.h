/* redis_conn.h - one connection to a Redis: commands out, replies in, never waiting. hiredis connects and reads the protocol; bytes are
 * written from here, so that a block leaves from the buffer that it was copied into.
 *
 * The server is not trusted: a reply is buffered only up to the bound that redis_conn_allow set, and arrays are handed on item by item, never
 * built. One thread uses a connection. Errors are ERR_CLOSED (gone, refused) or ERR_INVALID (not the protocol, too long), with a sentence; the
 * connection is of no use then. */
#ifndef STORAGE_REDIS_CONN_H
#define STORAGE_REDIS_CONN_H

#include "util/err.h"

#include <stddef.h>

struct redis_address {
	char host[256];   /* or the socket's path */
	int port;         /* 0: a local socket */
};

/* "host:port", "host" (port 6379), "[v6]:port", "unix:/path". 0 or ERR_INVALID. */
int redis_address_parse(struct redis_address *ret, const char *text, struct err *err);

/* A reply, or a part of one. Top level: depth 0, once per command, the reply's end; the parts of an array come before it, with depth 1 or more. */
struct redis_item {
	int type;                   /* REDIS_REPLY_* of hiredis */
	unsigned depth, index;      /* index: within its array */
	long long number;           /* INTEGER */
	const char *text;           /* STRING, STATUS, ERROR: bytes of it, no NUL; lives during the call */
	size_t bytes;
};
typedef void redis_item_fn(void *user, const struct redis_item *it);

struct redis_conn;

/* Begins to connect (a host's name is looked up here, which may take the resolver's time). NULL and err when that is refused at once. */
struct redis_conn *redis_conn_new(const struct redis_address *to, redis_item_fn *item, void *user, struct err *err);
void redis_conn_destroy(struct redis_conn **c);
int redis_conn_fd(const struct redis_conn *c);

/* A command of n arguments; the last one may be followed by a value: see redis_conn_value. Copied. */
struct redis_arg {
	const char *text;
	size_t bytes;
};
void redis_conn_command(struct redis_conn *c, unsigned n, const struct redis_arg *arg);
/* A command with a value at place `at` among its n arguments (arg[at].bytes is its length, its text is not read): n - 1 other arguments, copied.
 * The value stays the caller's until release(value), called once, when it is sent or the connection destroyed. */
void redis_conn_command_value(struct redis_conn *c, unsigned n, const struct redis_arg *arg, unsigned at, const void *value, void (*release)(void *value));

/* Replies of up to this many bytes are expected from now on; the largest one ever given counts. */
void redis_conn_allow(struct redis_conn *c, size_t bytes);
size_t redis_conn_unsent(const struct redis_conn *c);   /* bytes; 0: nothing to write */

/* As much as goes without waiting: bytes in *ret, or an error. read calls `item`. */
int redis_conn_write(struct redis_conn *c, size_t *ret, struct err *err);
int redis_conn_read(struct redis_conn *c, size_t *ret, struct err *err);

#endif
