/* near.c - see near.h. */
#include "util/near.h"
#include "util/least.h"

#include <string.h>

#define NEAR_MAX 3u

/* 100 if one has 63 bytes or more. */
static unsigned distance(const char *a, const char *b)
{
	unsigned row[64], n = (unsigned)strlen(b);
	if (n >= 63 || strlen(a) >= 63)
		return 100;
	for (unsigned j = 0; j <= n; j++)
		row[j] = j;
	for (unsigned i = 1; a[i - 1]; i++) {
		unsigned diagonal = row[0];
		row[0] = i;
		for (unsigned j = 1; j <= n; j++) {
			unsigned up = row[j];
			row[j] = least(least(up, row[j - 1]) + 1, diagonal + (a[i - 1] != b[j - 1]));
			diagonal = up;
		}
	}
	return row[n];
}

void nearest_try(struct nearest *n, const char *candidate)
{
	unsigned d = distance(n->word, candidate);
	if (d > NEAR_MAX || d >= strlen(n->word) || (n->best && d >= n->distance))
		return;
	n->best = candidate;
	n->distance = d;
}
