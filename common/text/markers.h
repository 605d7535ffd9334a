/* markers.h - finds the special tokens of a vocabulary that mark tool calls (toolcall.h) or
 * reasoning (reasoning.h) in any known format and that constrained answers use (toolcall_form.h,
 * struct reasoning_form). An answer constrained to be calls, or to follow reasoning, may contain
 * these special tokens and no others. */
#ifndef TEXT_MARKERS_H
#define TEXT_MARKERS_H

#include "text/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

#define MARKERS_MAX 64

/* Writes at most max different ids and returns their number. */
size_t markers_special(const struct tokenizer *t, uint32_t *ids, size_t max);

#endif
