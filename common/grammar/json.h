/* json.h - the parts of JSON as networks. Internal to grammar. */
#ifndef GRAMMAR_JSON_H
#define GRAMMAR_JSON_H

#include "nfa.h"

/* Rules that are called from many places; built on first use. */
struct json_rules {
	struct nfa *f;
	uint32_t string, chars, number, integer, any, object, array; /* rule + 1; 0: not built yet */
};

uint32_t json_space(struct nfa *f, uint32_t next); /* zero or one space */
uint32_t json_string_rule(struct json_rules *r, uint32_t next);
/* min, max: in characters */
uint32_t json_string_of(struct json_rules *r, uint32_t min, uint32_t max, uint32_t next);
/* the rest of a string, with its quote */
uint32_t json_string_rest(struct json_rules *r, uint32_t next);
uint32_t json_number_rule(struct json_rules *r, uint32_t next);
uint32_t json_integer_rule(struct json_rules *r, uint32_t next);
uint32_t json_any_rule(struct json_rules *r, uint32_t next); /* any value */
uint32_t json_object_rule(struct json_rules *r, uint32_t next);
/* value(arg, next) builds one element. */
uint32_t json_array_of(struct nfa *f, uint32_t (*value)(struct nfa *f, void *arg, uint32_t next),
                       void *arg, uint32_t min, uint32_t max, uint32_t next);

/* A number from lo to hi, as far as has_lo and has_hi are set; open_lo, open_hi: excluding the
 * bound itself. Bounds are whole numbers. Numbers are written without exponents. */
struct json_bounds {
	int has_lo, has_hi, open_lo, open_hi;
	int64_t lo, hi;
	uint32_t places; /* at most so many digits after the point; 0: any number */
};
/* 0: no number fits */
uint32_t json_integer_in(struct nfa *f, const struct json_bounds *b, uint32_t next);
uint32_t json_number_in(struct nfa *f, const struct json_bounds *b, uint32_t next);
/* Integers that are whole multiples of `of`. */
uint32_t json_multiple_in(struct nfa *f, const struct json_bounds *b, uint32_t of, uint32_t next);

#endif
