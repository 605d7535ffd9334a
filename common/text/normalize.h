/* normalize.h - a tokenizer's normalizer: a short list of steps applied to the text, in order,
 * before it is cut. */
#ifndef TEXT_NORMALIZE_H
#define TEXT_NORMALIZE_H

#include "util/buf.h"
#include "util/err.h"

#include <stddef.h>

enum { NORMALIZE_STEPS = 8, NORMALIZE_TEXT = 32 };
enum normalize_op { NORMALIZE_PREPEND, NORMALIZE_REPLACE, NORMALIZE_NFC };

struct normalize_step {
	enum normalize_op op;
	unsigned from_len, to_len;
	char from[NORMALIZE_TEXT], to[NORMALIZE_TEXT]; /* replace: from -> to; prepend: to */
};

struct normalizer {
	struct normalize_step steps[NORMALIZE_STEPS];
	unsigned n;
};

/* Adds a step. `from` must not be empty for a replacement. ERR_FULL: too many steps, or a text
 * longer than NORMALIZE_TEXT. */
int normalizer_add(struct normalizer *n, enum normalize_op op, const char *from, size_t from_len,
                   const char *to, size_t to_len);
/* Applies all steps to well-formed UTF-8. The result replaces the contents of out; spare is a
 * scratch buffer. first 0: skip prepending, which is only for the start of a stretch of text.
 * Returns 0, or ERR_FULL if out's limit is reached. */
int normalizer_run(const struct normalizer *n, int first, const char *text, size_t len,
                   struct buf *out, struct buf *spare);
/* Appends the text with every occurrence of `from` replaced, from left to right, without
 * overlap. */
int normalize_replace(struct buf *out, const char *text, size_t len, const char *from,
                      size_t from_len, const char *to, size_t to_len);

#endif
