/* added.h - finds added tokens (special and user-defined ones) in text: leftmost first, longest
 * at one place. */
#ifndef TEXT_ADDED_H
#define TEXT_ADDED_H

#include <stddef.h>
#include <stdint.h>

struct added_token {
	char *text; /* malloc'ed, the set's */
	size_t len;
	uint32_t id;
	uint8_t special, lstrip, rstrip;
};

struct added {
	struct added_token *tokens; /* sorted by bytes */
	size_t n;
	unsigned char begins[256]; /* some token begins with this byte */
};

/* Takes over the malloc'ed array of non-empty tokens and sorts it. */
void added_init(struct added *a, struct added_token *tokens, size_t n);
void added_fini(struct added *a);
/* The first token at or after *pos: its place goes to *pos. NULL when there is none. */
const struct added_token *added_find(const struct added *a, const char *text, size_t len,
                                     size_t *pos);

#endif
