/* normalize.h - what a tokenizer does to text before it cuts it: a short list of steps, each on
 * the result of the one before. */
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
	char from[NORMALIZE_TEXT], to[NORMALIZE_TEXT]; /* replace: from, to; prepend: to */
};

struct normalizer {
	struct normalize_step steps[NORMALIZE_STEPS];
	unsigned n;
};

/* ERR_FULL: too many steps or a text longer than NORMALIZE_TEXT. from is not empty (replace). */
int normalizer_add(struct normalizer *n, enum normalize_op op, const char *from, size_t from_len,
                   const char *to, size_t to_len);
/* The text, well-formed UTF-8, through all steps; out is emptied first, spare is used between.
 * Those that prepend are left out when first is 0: only what begins a stretch of text gets that.
 * 0, or ERR_FULL by the bound of out. */
int normalizer_run(const struct normalizer *n, int first, const char *text, size_t len,
                   struct buf *out, struct buf *spare);
/* Every place of from becomes to, from the left; they do not overlap. Appends. */
int normalize_replace(struct buf *out, const char *text, size_t len, const char *from,
                      size_t from_len, const char *to, size_t to_len);

#endif
