/* schema_int.h - shared by the files of schema. */
#ifndef GRAMMAR_SCHEMA_INT_H
#define GRAMMAR_SCHEMA_INT_H

#include "schema.h"

struct schema_ref {
	const json_t *target;
	uint32_t rule;
};

/* A member of oneOf, and what with_required made of it. */
struct schema_tagged {
	const json_t *from, *made;
};

struct schema {
	struct nfa *f;
	struct json_rules *rules;
	const json_t *root;
	struct err *err;
	int strict, failed;
	unsigned nest;
	char path[200]; /* JSON pointer to the part being built; truncated if longer */
	size_t path_len;
	struct schema_ref *ref;
	uint32_t n_refs;
	struct schema_tagged *tagged;
	uint32_t n_tagged;
	json_t *made; /* array of what was derived from the schema; NULL: nothing yet */
	struct schema_ignored *ignored;
};

/* Each builds the schema v, leading to next. On error it returns 0 with s->failed or f->err set. */
uint32_t schema_value(struct schema *s, const json_t *v, uint32_t next);
/* Like schema_value, as a rule that is built once: not copied for each use, and it may recurse. */
uint32_t schema_call(struct schema *s, const json_t *v, uint32_t next);
/* except: values that are not allowed; NULL: none */
uint32_t schema_string(struct schema *s, const json_t *v, const json_t *except, uint32_t next);
uint32_t schema_number(struct schema *s, const json_t *v, int integer, const json_t *except,
                       uint32_t next);
uint32_t schema_object(struct schema *s, const json_t *v, uint32_t next);
uint32_t schema_array(struct schema *s, const json_t *v, uint32_t next);
/* One of the values of an array. */
uint32_t schema_one_of(struct schema *s, const json_t *values, uint32_t next);

/* Plain printable ASCII, which JSON writes without escapes? */
int schema_is_plain(const char *text);
/* Plain ASCII that is none of the n strings of a sorted list, up to and including its quote.
 * tail: what may follow a byte that tells it from all of them. more: further first bytes of a
 * character that does; 0: none. */
uint32_t schema_other(struct nfa *f, const struct nfa_string *list, size_t n, size_t at,
                      uint32_t tail, uint32_t more, uint32_t next);
int schema_name_cmp(const void *a, const void *b);

/* Records the first error as "path/key: text"; returns 0. key NULL: the schema itself. */
uint32_t schema_bad(struct schema *s, int code, const char *key, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* Notes what is ignored, once each: a keyword, or with a value: "format" and its name. */
void schema_note(struct schema *s, const char *key, const char *value);
/* Appends a member to the path; removes it again. */
size_t schema_enter(struct schema *s, const char *key);
void schema_leave(struct schema *s, size_t mark);
/* Reads a count such as minItems; `def` if absent. Returns 0, or -1 with the error set. */
int schema_count(struct schema *s, const json_t *v, const char *key, uint32_t def, uint32_t *ret);
/* Keeps v, which it takes, as long as s. Returns it, or NULL with the error set: no memory. */
const json_t *schema_keep(struct schema *s, json_t *v);

/* schema_sets.c: the sets of values that schemas allow. */
enum {
	TYPE_NULL = 1,
	TYPE_BOOLEAN = 2,
	TYPE_INTEGER = 4,
	TYPE_FRACTION = 8, /* numbers that are not whole */
	TYPE_STRING = 16,
	TYPE_ARRAY = 32,
	TYPE_OBJECT = 64,
	TYPE_ALL = 127
};
/* Of a type's name; of a name or an array of them as a schema has it. 0: none that is known, or
 * more than SCHEMA_TYPES_MAX. */
#define SCHEMA_TYPES_MAX 7u
unsigned schema_type_bits(const char *name);
unsigned schema_named_types(const json_t *type);
unsigned schema_value_type(const json_t *v);
/* At least the types that the schema allows. */
unsigned schema_types(struct schema *s, const json_t *v);
/* Are they the same, as schemas compare values? Each value that is looked at takes a step. */
int schema_same(struct schema *s, const json_t *a, const json_t *b);
int schema_has(struct schema *s, const json_t *values, const json_t *v);
/* Whether the array `required` of v names the property. */
int schema_requires(struct schema *s, const json_t *v, const char *name);
/* An array of at least all values that the schema allows, if they are few: enum, const, boolean,
 * null; a new reference. NULL: others, or no memory. */
json_t *schema_values(struct schema *s, const json_t *v);
/* Exactly these; sets the error if the schema has a keyword that is not supported beside them. */
json_t *schema_enumerated(struct schema *s, const json_t *v);
/* 1: no value is valid by both. 0: some may be. */
int schema_apart(struct schema *s, const json_t *a, const json_t *b);
/* Frees what was allocated in s. */
void schema_fini(struct schema *s);
/* What $ref leads to; NULL: nowhere. */
const json_t *schema_resolve(struct schema *s, const char *ref);
/* What $ref or an allOf with one member leads to; NULL: v has neither, or is nullable. */
const json_t *schema_behind(struct schema *s, const json_t *v);
/* The schema at the end of these. */
const json_t *schema_meant(struct schema *s, const json_t *v);
/* The same, where nothing may be dropped: sets the error if a schema on the way has a keyword that
 * is not supported beside $ref or allOf. */
const json_t *schema_referred(struct schema *s, const json_t *v);

#endif
