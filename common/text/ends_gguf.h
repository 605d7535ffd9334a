/* ends_gguf.h - tokens that end an answer by their text, beside those that a GGUF file names. */
#ifndef TEXT_ENDS_GGUF_H
#define TEXT_ENDS_GGUF_H

#include "format/gguf.h"

/* At most max ids, in ascending order; returns how many. */
unsigned ends_from_gguf(const struct gguf *g, uint32_t *ids, unsigned max);

#endif
