/* svg.h - what drawings in SVG share: text, and the steps of an axis. */
#ifndef UTIL_SVG_H
#define UTIL_SVG_H

#include <stdio.h>

/* Writes s (UTF-8) as the content of an element; control characters are left out. */
void svg_text(FILE *f, const char *s);
/* A step of 1, 2 or 5 times a power of ten, for about n steps up to `most`. */
double svg_step(double most, int n);

#endif
