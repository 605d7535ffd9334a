/* near.c - see near.h. */
#include "util/near.h"
#include "util/least.h"

#include <string.h>

unsigned word_distance(const char *a, const char *b)
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
