/* regex.h - regular expressions to networks. Internal to grammar.
 *
 * The syntax, of which all else is refused by name and place:
 *   literals          any character but \ ^ $ . [ ] ( ) { } | * + ?, or these behind a \ ; a { that
 *                     begins no counter stands for itself
 *   .                 any character but the four ends of line of ECMAScript
 *   [...] [^...]      characters, ranges, \d \w \s \D \W \S and escapes
 *   \d \w \s          digits, letters with digits and _, white space, all of ASCII; \D \W are all
 *                     else, \S all that is not white space in Unicode either
 *   \n \r \t \f \v \0 \xHH \uHHHH (a surrogate pair is one character)
 *   (...) (?:...)  |  ? * + {m} {m,} {m,n}    a lazy ? behind them changes nothing
 *   ^ $               at the beginning and the end of the expression or of an alternative of it */
#ifndef GRAMMAR_REGEX_H
#define GRAMMAR_REGEX_H

#include "nfa.h"

#define REGEX_NEST_MAX 100u

struct regex_opts {
	/* without ^ ($) anything may stand before (behind): a match somewhere, as JSON schema says;
	 * else the whole text matches either way */
	int search;
	/* the text stands within a JSON string: what needs an escape is written with one */
	int json;
};

/* The network of the expression, leading to next. 0, or ERR_INVALID, ERR_UNSUPPORTED with "at
 * offset N". A limit on nodes is noted in f. */
int regex_build(struct nfa *f, const char *text, size_t len, const struct regex_opts *o,
                uint32_t next, uint32_t *ret_begin, struct err *err);
/* One character of [lo, hi], as above; 0 if it has none. */
uint32_t regex_points(struct nfa *f, uint32_t lo, uint32_t hi, int json, uint32_t next);

#endif
