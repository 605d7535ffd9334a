/* svg.c - see svg.h. */
#include "util/svg.h"

#include <math.h>

void svg_text(FILE *f, const char *s)
{
	for (; *s; s++) {
		if (*s == '<' || *s == '>' || *s == '&')
			fprintf(f, "&#%d;", *s);
		else if ((unsigned char)*s >= ' ' && *s != 127)
			fputc(*s, f);
	}
}

double svg_step(double most, int n)
{
	double raw = most / n, ten = pow(10, floor(log10(raw))), r = raw / ten;
	return ten * (r <= 1 ? 1 : r <= 2 ? 2 : r <= 5 ? 5 : 10);
}
