/* schema_int.h - shared by the files of schema. */
#ifndef GRAMMAR_SCHEMA_INT_H
#define GRAMMAR_SCHEMA_INT_H

#include "schema.h"

struct schema_ref {
	const json_t *target;
	uint32_t rule;
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
};

/* Each builds the schema v, leading to next. On error it returns 0 with s->failed or f->err set. */
uint32_t schema_value(struct schema *s, const json_t *v, uint32_t next);
/* Like schema_value, as a rule that is built once: not copied for each use, and it may recurse. */
uint32_t schema_call(struct schema *s, const json_t *v, uint32_t next);
uint32_t schema_string(struct schema *s, const json_t *v, uint32_t next);
uint32_t schema_number(struct schema *s, const json_t *v, int integer, uint32_t next);
uint32_t schema_object(struct schema *s, const json_t *v, uint32_t next);
uint32_t schema_array(struct schema *s, const json_t *v, uint32_t next);

/* Records the first error as "path/key: text"; returns 0. key NULL: the schema itself. */
uint32_t schema_bad(struct schema *s, int code, const char *key, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* Appends a member to the path; removes it again. */
size_t schema_enter(struct schema *s, const char *key);
void schema_leave(struct schema *s, size_t mark);
/* Reads a count such as minItems; `def` if absent. Returns 0, or -1 with the error set. */
int schema_count(struct schema *s, const json_t *v, const char *key, uint32_t def, uint32_t *ret);

#endif
