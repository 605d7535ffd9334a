/* near.c - see near.h. */
#include "util/near.h"
#include "util/least.h"

#include <string.h>

#define NEAR_MAX 3u

#define LONGEST 62u

/* Letters to insert, to delete, to replace, or to swap with the next one. 100 if a word is longer
 * than LONGEST. */
static unsigned distance(const char *a, const char *b)
{
	unsigned d[LONGEST + 1][LONGEST + 1], m = (unsigned)strlen(a), n = (unsigned)strlen(b);
	if (m > LONGEST || n > LONGEST)
		return 100;
	for (unsigned i = 0; i <= m; i++)
		for (unsigned j = 0; j <= n; j++) {
			d[i][j] = i ? i : j;
			if (!i || !j)
				continue;
			d[i][j] = least(least(d[i - 1][j], d[i][j - 1]) + 1,
			                d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				d[i][j] = least(d[i][j], d[i - 2][j - 2] + 1);
		}
	return d[m][n];
}

void nearest_try(struct nearest *n, const char *candidate)
{
	unsigned d = distance(n->word, candidate);
	if (d > NEAR_MAX || 3 * d > strlen(n->word) + 1 || (n->best && d >= n->distance))
		return;
	n->best = candidate;
	n->distance = d;
}
