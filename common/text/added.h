/* added.h - finds added tokens (special and user-defined ones) in text: the leftmost match, and the
 * longest of those that start at the same position. */
#ifndef TEXT_ADDED_H
#define TEXT_ADDED_H

#include <stddef.h>
#include <stdint.h>

struct added_token {
	char *text; /* malloc'ed, owned by the set */
	size_t len;
	uint32_t id;
	uint8_t special, lstrip, rstrip;
};

struct added_set {
	struct added_token *tokens; /* sorted by their bytes */
	size_t n;
	unsigned char begins[256]; /* 1: some token starts with this byte */
};

/* Takes ownership of the malloc'ed array `tokens`, none of which is empty, and sorts it. */
void added_init(struct added_set *a, struct added_token *tokens, size_t n);
void added_fini(struct added_set *a);
/* Returns the first token at or after *pos and sets *pos to its position. NULL: none is left. */
const struct added_token *added_find(const struct added_set *a, const char *text, size_t len,
                                     size_t *pos);

#endif
