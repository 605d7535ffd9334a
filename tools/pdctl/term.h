/* term.h - text for a terminal: no control characters, widths in columns, colours where they are
 * wanted. */
#ifndef PDCTL_TERM_H
#define PDCTL_TERM_H

#include "util/buf.h"

#include <stdio.h>

/* Takes the user's character set; UTF-8 if there is none. Call once, before the functions below. */
void term_init(void);
/* f is a terminal that moves its cursor: not TERM=dumb. */
int term_is_screen(FILE *f);
/* The same, and the user wants colours: NO_COLOR is not set. */
int term_has_colour(FILE *f);
/* The columns of stdout: COLUMNS, else the terminal's; 0 if it is no terminal. */
size_t term_columns(void);
/* Adds s with its control characters in visible form: ESC as ^[, U+009B as <U+009B>; likewise
 * characters that reverse the direction of text. Line feed and tab stay; bytes that are not UTF-8
 * become U+FFFD. */
void term_add_safe(struct buf *out, const char *s, size_t n);
/* Prints s to f, in that form if f is a terminal. */
void term_print(FILE *f, const char *s, size_t n);
/* The bytes at the start of s that fit into `columns` of a terminal; *ret_columns: those that they
 * take. */
size_t term_fit(const char *s, size_t columns, size_t *ret_columns);

#endif
