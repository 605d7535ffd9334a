/* line.h - what a person types, or what comes from a pipe: one input after the other. */
#ifndef PDCTL_LINE_H
#define PDCTL_LINE_H

struct lines;

/* At a terminal: line editing, and a history that outlives the program. Else lines without a
 * prompt. */
struct lines *lines_open(void);
/* Saves nothing more; gives the terminal back. */
void lines_close(struct lines **l);
int lines_edited(const struct lines *l); /* 1: a person types at a terminal */
/* The next input without its line feed, malloc'd; NULL at the end. Lines that end with a backslash
 * or stand between """ and """ are one input. Ctrl-C drops what was typed so far; on an empty line
 * it prints `hint`. */
char *lines_next(struct lines *l, const char *hint);

#endif
