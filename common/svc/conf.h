/* conf.h - configuration by table: libconfig files; each key has a type, default, range, unit and
 * one line of help. An unknown key, a wrong type or a value out of range is an error that names
 * file, line, key, value and range. */
#ifndef SVC_CONF_H
#define SVC_CONF_H

#include "util/buf.h"
#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

enum conf_type {
	CONF_BOOL,
	CONF_INT,
	CONF_FLOAT,
	CONF_STRING,
	CONF_LIST /* of strings */,
	CONF_REMOVED
};

enum conf_flag { CONF_RELOADABLE = 1 /* can change by SIGHUP */ };

/* A value of CONF_LIST; valid until the next conf_reload. */
struct conf_items {
	const char *const *item;
	unsigned n;
};

/* Where conf_fill puts a value in the daemon's own structure. */
enum conf_kind { CONF_INT32, CONF_UINT32, CONF_UINT64, CONF_DOUBLE, CONF_TEXT, CONF_ITEMS };
struct conf_place {
	enum conf_kind kind;
	size_t offset;
	uint64_t times; /* units of the field in one of the key's */
};
/* A field of a structure: an int, enum, uint32_t, uint64_t, size_t, double, const char * or struct
 * conf_items. BOOL: 0 or 1; STRING with choices in a number: the number of the choice, from 0.
 * Texts are valid until the next conf_reload, those of keys that it does not change until
 * conf_destroy. */
#define CONF_TO(structure, field) CONF_TIMES(structure, field, 1)
#define CONF_US(structure, field) CONF_TIMES(structure, field, 1000)           /* of ms */
#define CONF_BYTES(structure, field) CONF_TIMES(structure, field, 1024 * 1024) /* of MiB */
#define CONF_TIMES(structure, field, n)                    \
	{                                                      \
		.kind = _Generic(((structure *)0)->field,        \
		                 int: CONF_INT32,                \
		                 unsigned: CONF_UINT32,          \
		                 unsigned long: CONF_UINT64,     \
		                 double: CONF_DOUBLE,            \
		                 const char *: CONF_TEXT,        \
		                 struct conf_items: CONF_ITEMS), \
		.offset = offsetof(structure, field), .times = n \
	}

struct conf_key {
	const char *name; /* "max_batched_tokens" */
	enum conf_type type;
	/* as text; lists: items separated by spaces. "64; backend=cuda: 256": another one if that
	 * STRING key has that value */
	const char *def;
	/* INT, FLOAT: inclusive; STRING: of the length in bytes; LIST: of the number of items */
	double min, max;
	const char *unit; /* "tokens", "us", "" */
	int flags;        /* of enum conf_flag */
	const char *help;
	const char *choices; /* STRING: "a|b|c", or NULL */
	struct conf_place at;
};
/* A key of earlier versions: a file that has it is refused with `instead`, what to do now. */
#define CONF_GONE(key, instead)                            \
	{                                                      \
		.name = key, .type = CONF_REMOVED, .help = instead \
	}
#define CONF_END \
	{            \
		0        \
	}

struct conf;

/* tables: NULL-terminated list of key tables (each ended by CONF_END). path NULL: defaults only.
 * overrides: "key=value", may be NULL. */
int conf_load(const struct conf_key *const *tables, const char *path, char *const *overrides,
              int n_overrides, struct conf **ret_c, struct err *err);
void conf_destroy(struct conf **c);
/* Replaces a default by one that became known at start; no-op if the key is set. source: where it
 * comes from, for conf_json. A text that the key refuses is a bug (panic). */
void conf_set_default(struct conf *c, const char *key, const char *text, const char *source);
/* Reads the file again. Reloadable keys get their new values; ret_changed and ret_refused
 * (malloc'd, or NULL) name the changed keys that are reloadable and those that are not. apply
 * (NULL: none) makes the new values work; if it cannot, it has changed nothing, and the old ones
 * are back. On an error nothing changes. */
typedef int (*conf_apply)(void *arg, struct err *err);
int conf_reload(struct conf *c, conf_apply apply, void *arg, char **ret_changed, char **ret_refused,
                struct err *err);

/* Puts the values of these keys where their places in *ret say; a key that was not loaded is a bug
 * (panic). Texts are "" if empty, never NULL. */
void conf_fill(const struct conf *c, const struct conf_key *keys, void *ret);
/* key -> {value, type, default, unit, min, max, help, choices, reloadable, source} */
void conf_json(const struct conf *c, struct buf *out);
/* text for --help, --print-config and the manual */
void conf_help(const struct conf_key *const *tables, struct buf *out);

#endif
