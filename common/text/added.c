/* added.c - see added.h. The tokens are sorted by their bytes. At each position where a token may
 * start, a binary search per byte narrows the range of tokens that match the text. Searching
 * allocates nothing and cannot fail. */
#include "text/added.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *pa, const void *pb)
{
	const struct added_token *a = pa, *b = pb;
	int d = memcmp(a->text, b->text, a->len < b->len ? a->len : b->len);
	return d ? d : (a->len > b->len) - (a->len < b->len);
}

void added_init(struct added_set *a, struct added_token *tokens, size_t n)
{
	memset(a, 0, sizeof *a);
	a->tokens = tokens;
	a->n = n;
	if (n)
		qsort(tokens, n, sizeof *tokens, compare);
	for (size_t i = 0; i < n; i++)
		a->begins[(unsigned char)tokens[i].text[0]] = 1;
}

void added_fini(struct added_set *a)
{
	for (size_t i = 0; i < a->n; i++)
		free(a->tokens[i].text);
	free(a->tokens);
	memset(a, 0, sizeof *a);
}

/* All tokens of [lo, hi) share their first `depth` bytes and are longer than that. Returns the
 * first one whose next byte is >= c, or hi. */
static size_t lower(const struct added_set *a, size_t lo, size_t hi, size_t depth, unsigned c)
{
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		if ((unsigned char)a->tokens[mid].text[depth] < c)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static const struct added_token *longest_at(const struct added_set *a, const char *text, size_t len)
{
	const struct added_token *best = NULL;
	size_t lo = 0, hi = a->n;
	for (size_t depth = 0; depth < len && lo < hi; depth++) {
		unsigned c = (unsigned char)text[depth];
		lo = lower(a, lo, hi, depth, c);
		hi = lower(a, lo, hi, depth, c + 1);
		for (; lo < hi && a->tokens[lo].len == depth + 1; lo++)
			best = &a->tokens[lo];
	}
	return best;
}

const struct added_token *added_find(const struct added_set *a, const char *text, size_t len,
                                     size_t *pos)
{
	for (size_t i = *pos; a->n && i < len; i++) {
		if (!a->begins[(unsigned char)text[i]])
			continue;
		const struct added_token *t = longest_at(a, text + i, len - i);
		if (t) {
			*pos = i;
			return t;
		}
	}
	return NULL;
}
