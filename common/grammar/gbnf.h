/* gbnf.h - compiles grammars in llama.cpp's notation (GBNF), which is also what vLLM's
 * guided_grammar takes, to networks. Internal to grammar.
 *
 *   root ::= item ("," item)*      a rule; root is the whole answer. It ends with its line, unless
 *                                  a ( is open or the next line begins with |
 *   "text" [a-z] [^"\\] .          with \n \r \t \\ \" \[ \] \xHH \uHHHH \UHHHHHHHH; . is any
 *                                  character
 *   name (...) | * + ? {m} {m,} {m,n}
 *   # comment, to the end of its line
 *
 * A rule may call itself, but not before a character of it (left recursion). */
#ifndef GRAMMAR_GBNF_H
#define GRAMMAR_GBNF_H

#include "nfa.h"

#define GBNF_NEST_MAX 100u
#define GBNF_RULES_MAX 1024u

/* Builds the network of the rule root, leading to next. 0, or ERR_INVALID or ERR_FULL with "in line
 * N of the grammar". Exceeded limits on nodes are recorded in f. */
int gbnf_build(struct nfa *f, const char *text, size_t len, uint32_t next, uint32_t *ret_begin,
               struct err *err);

#endif
