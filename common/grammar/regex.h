/* regex.h - compiles regular expressions to networks. Internal to grammar.
 *
 * Supported syntax; anything else is refused with its name and offset:
 *   literals          any character but \ ^ $ . [ ] ( ) { } | * + ?, or these after a \ ; a { that
 *                     starts no counter stands for itself
 *   .                 any character except the four line ends of ECMAScript
 *   [...] [^...]      characters, ranges, \d \w \s \D \W \S and escapes
 *   \d \w \s          ASCII digits, ASCII letters with digits and _, ASCII white space; \D \W \S,
 *                     and these three in [^...], are what is not that in Unicode either: \W is
 *                     ASCII, punctuation, symbols, emoji
 *   \n \r \t \f \v \0 \xHH \uHHHH (a surrogate pair is one character)
 *   (...) (?:...)  |  ? * + {m} {m,} {m,n}    a lazy ? after them changes nothing
 *   ^ $               at the start and end of the expression or of a top-level alternative */
#ifndef GRAMMAR_REGEX_H
#define GRAMMAR_REGEX_H

#include "nfa.h"

#define REGEX_NEST_MAX 100u

struct regex_opts {
	/* 1: without ^ ($), any text may come before (after) the match, as JSON schema defines; 0: the
	 * whole text matches */
	int search;
	/* the text is inside a JSON string: characters that need an escape are written as one */
	int json;
};

/* Builds the network of the expression, leading to next. Returns 0, or ERR_INVALID or
 * ERR_UNSUPPORTED with "at offset N". Exceeded limits on nodes are recorded in f. */
int regex_build(struct nfa *f, const char *text, size_t len, const struct regex_opts *o,
                uint32_t next, uint32_t *ret_begin, struct err *err);

#endif
