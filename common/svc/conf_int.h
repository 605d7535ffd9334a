/* conf_int.h - shared by conf.c (loading) and conf_show.c (reading, text). Private to
 * common/svc. */
#ifndef SVC_CONF_INT_H
#define SVC_CONF_INT_H

#include "svc/conf.h"

struct conf_value {
	char *text;   /* normalised, so that equal values have equal texts */
	char *source; /* "default", "default of backend cuda", "FILE:LINE", "option -o" */
	int is_default;
	int64_t integer; /* BOOL, INT */
	double real;     /* FLOAT */
	char **items;    /* LIST */
	size_t n_items;
};

struct conf_entry {
	const struct conf_key *key;
	struct conf_value value;
};

struct conf {
	char *path, **overrides;
	int n_overrides;
	struct conf_entry *entries;
	size_t n;
	const struct conf_key **gone; /* of the tables: keys of earlier versions */
	size_t n_gone;
};

/* NULL if there is no such key */
struct conf_entry *conf_entry_find(const struct conf *c, const char *name);
/* a key of similar spelling, or NULL */
const char *conf_entry_near(const struct conf *c, const char *name);
/* The parts of a key's default "64; backend=cuda: 256"; if_key is empty if it has only the
 * first. */
struct conf_default {
	char first[256], if_key[64], if_value[64], other[64];
};
void conf_default_parse(const struct conf_key *k, struct conf_default *ret);
/* 1: the other key has the value that makes `other` the default. */
int conf_default_is_other(const struct conf *c, const struct conf_default *d);
/* "1 to 64 threads"; "" if there is no limit */
void conf_range_text(const struct conf_key *k, char *out, size_t size);

#endif
