/* markers.h - the tokens of a vocabulary that are markers of calls (toolcall.h) or thoughts
 * (reasoning.h) in any known format, as far as they are special tokens and a form of bound answers
 * spells them (toolcall_form.h, struct reasoning_form). An answer that is bound to be calls, or to
 * stand behind thoughts, may have these, and no other special token. */
#ifndef TEXT_MARKERS_H
#define TEXT_MARKERS_H

#include "text/tokenizer.h"

#include <stddef.h>
#include <stdint.h>

#define MARKERS_MAX 64

/* Ids, each once, at most max of them; returns how many. */
size_t markers_special(const struct tokenizer *t, uint32_t *ids, size_t max);

#endif
