/* json.h - the parts of JSON as networks. Internal to grammar. */
#ifndef GRAMMAR_JSON_H
#define GRAMMAR_JSON_H

#include "nfa.h"

/* Rules that many places call; made when first asked for. */
struct json_rules {
	struct nfa *f;
	uint32_t string, chars, number, integer, any, object, array; /* rule + 1; 0: not made */
};

uint32_t json_space(struct nfa *f, uint32_t next); /* one space or none */
uint32_t json_string_rule(struct json_rules *r, uint32_t next);
/* characters */
uint32_t json_string_of(struct json_rules *r, uint32_t min, uint32_t max, uint32_t next);
uint32_t json_number_rule(struct json_rules *r, uint32_t next);
uint32_t json_integer_rule(struct json_rules *r, uint32_t next);
uint32_t json_any_rule(struct json_rules *r, uint32_t next); /* any value */
uint32_t json_object_rule(struct json_rules *r, uint32_t next);
/* value(arg, next) is an element. */
uint32_t json_array_of(struct nfa *f, uint32_t (*value)(struct nfa *f, void *arg, uint32_t next),
                       void *arg, uint32_t min, uint32_t max, uint32_t next);

/* A number from lo to hi, if has_ says so; open_: the bound itself is not in it. Bounds of both
 * kinds are whole; integers are exact, numbers are without exponents. */
struct json_bounds {
	int has_lo, has_hi, open_lo, open_hi;
	int64_t lo, hi;
};
/* 0: there is none */
uint32_t json_integer_in(struct nfa *f, const struct json_bounds *b, uint32_t next);
uint32_t json_number_in(struct nfa *f, const struct json_bounds *b, uint32_t next);

#endif
